//! The tables of keys of `machine.toml` and `workload.toml`. The readers refuse a key that is not in a table,
//! and the reference is written from the tables.

use super::model::{Enforces, Scheduler};
use commonhold_contract::Resource;
use commonhold_contract::document::{self, key};
use commonhold_policy::rights::TICKETS_MAX;

use super::limits::{
    ACCESS_MAX_NS, BYTES_MAX, COUNT_MAX, DISK_BYTES_MIN, DISTANCE_LOCAL, DISTANCE_MAX, FRAME_MAX, FRAME_MIN,
    HORIZON_MAX_NS, KERNEL_MAX_NS, LATENCY_MAX_NS, PERIOD_MIN_NS, RATE_MAX, RATE_MIN, SECTOR, STEP_MAX_NS,
    TICK_MIN_NS, TIMES_MAX,
};

/// The version of both languages that this program reads.
pub(crate) const VERSION: u64 = 1;

pub(crate) type Key = document::Key<Kind>;
pub(crate) type Table = document::Table<Kind>;

/// The type of a key's value. Ranges include both ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// The number [`VERSION`].
    Version,
    /// Any text.
    Text,
    /// A machine's shape in words: `nodes:2 cpus:8`.
    Shape,
    /// A table with these keys.
    Table(&'static Table),
    /// A table of tables by name, such as `[disk.NAME]`, each with these keys.
    Named(&'static Table),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number.
    Count { min: u64, max: u64 },
    /// A whole number, or "forever".
    Times,
    /// A number with at most three decimals; `max` is in thousandths.
    Decimal { max: u64 },
    /// A length of time, in nanoseconds.
    Time { min: u64, max: u64 },
    /// An amount of bytes.
    Bytes { min: u64, max: u64 },
    /// Bytes, or a percentage of the machine's memory.
    BytesOrPart,
    /// Bytes per second.
    Rate { min: u64, max: u64 },
    /// A percentage, in millionths.
    Part { min: u64, max: u64 },
    /// A percentage, or "exponential".
    Spread,
    /// Yes or no.
    Switch,
    /// The name of a declared table of this kind: `file`, `disk`.
    Name(&'static str),
    /// The path of a unit of the contract.
    Unit,
    /// A resource and at least one ticket for it: `disk:300`.
    Tickets { max: u64 },
    /// A number of a job's rounds: `100 rounds of JOB`.
    Rounds,
    /// CPUs by number: `0-3,8`.
    Cpus,
    /// A list of steps.
    Steps,
    /// A matrix of distances between nodes, as a list of lists.
    Distances { min: u64, max: u64 },
}

const WHOLE: u64 = commonhold_contract::MILLIONTH;

const fn kernel_time(min: u64) -> Kind {
    Kind::Time { min, max: KERNEL_MAX_NS }
}

const STEP_TIME: Kind = Kind::Time { min: 1, max: STEP_MAX_NS };
const STEP_BYTES: Kind = Kind::Bytes { min: 1, max: BYTES_MAX };

const VERSION_KEY: Key = key("version", Kind::Version, "", "1", "The version of the language: 1. Required.");
const TITLE: Key = key("title", Kind::Text, "\"\"", "\"Eight CPUs\"", "What reports call it.");
const SOURCE: Key = key(
    "source",
    Kind::Text,
    "\"\"",
    "\"seed 000, section 4.1\"",
    "Where its numbers come from; shown in reports.",
);

/// A whole machine.
pub(crate) static MACHINE: Table = Table {
    title: "a machine",
    definition: "machine.toml",
    keys: &[
        VERSION_KEY,
        TITLE,
        SOURCE,
        key(
            "shape",
            Kind::Shape,
            "",
            "\"nodes:1 cpus:8 memory:44MiB\"",
            "NUMA nodes, CPUs and memory per node, as in `commonhold check --machine`; without disks. A list has a value for \
             each node: `cpus:8,8,4 memory:32GiB,32GiB,16GiB`. Required.",
        ),
        // The published experiments ran on `irix`.
        key(
            "enforces",
            Kind::Choice(&[Enforces::Irix.name(), Enforces::Linux.name()]),
            "\"linux\"",
            "\"irix\"",
            "How its kernel limits units' memory and disk use. linux: as control groups do. Memory has bounds that slow \
             down, protection, and one reclaim for the whole machine; disks have rates and weights. irix: as the modified \
             IRIX of the published experiments. Memory has allowances that are never exceeded and a pager for each unit; \
             disks schedule by units' shares.",
        ),
        key("kernel", Kind::Table(&KERNEL), "{}", "{ tick = \"10ms\" }", "What the kernel costs."),
        key(
            "cache",
            Kind::Table(&CACHE),
            "",
            "{}",
            "Each CPU's cache. Without this table, moving to another CPU costs nothing.",
        ),
        key(
            "last_cache",
            Kind::Table(&LAST_CACHE),
            "",
            "{ miss = 2 }",
            "What the last-level caches are worth, where steps have a `cache`.",
        ),
        key(
            "latency",
            Kind::Table(&LATENCY),
            "",
            "{}",
            "How far the memory of each node is. Without this table, all memory is equally far.",
        ),
        key(
            "bus",
            Kind::Table(&BUS),
            "",
            "{}",
            "The memory bus. Without this table, memory traffic never waits.",
        ),
        key(
            "contention",
            Kind::Table(&CONTENTION),
            "",
            "{}",
            "How CPUs in the kernel slow each other down. Without this table, they do not.",
        ),
        key(
            "interrupts",
            Kind::Table(&INTERRUPTS),
            "",
            "{}",
            "The CPU time that interrupts take. Without this table, they take none.",
        ),
        key(
            "disturbance",
            Kind::Table(&DISTURBANCE),
            "",
            "{}",
            "What disturbs every run on a real machine. Without this table, nothing does.",
        ),
        key("disk", Kind::Named(&DISK), "", "{ d0 = {} }", "The disks by name, in the order of the text."),
    ],
};

/// `[kernel]`. The defaults are those of Linux 6.12 on a present-day server, where it has a setting, else
/// round figures of the right size; reproductions of old machines set them all.
pub(crate) static KERNEL: Table = Table {
    title: "[kernel]",
    definition: "[kernel]",
    keys: &[
        // CONFIG_HZ=250, as distributions set it.
        key("tick", kernel_time(0), "\"4ms\"", "\"10ms\"", "The clock tick. \"0s\": none."),
        // The slice of the project's own scheduler (`commonhold_dispatch::SLICE_NS`), rounded up to a tick.
        key(
            "slice",
            kernel_time(TICK_MIN_NS),
            "\"8ms\"",
            "\"30ms\"",
            "How long a task runs before others get a turn. With linux-2.4: its counter at nice 0, which Linux sets to \
             60 ms.",
        ),
        // All but `commonhold` are baselines, for comparison with published results.
        key(
            "scheduler",
            Kind::Choice(&[
                Scheduler::Commonhold.name(),
                Scheduler::IrixDecay.name(),
                Scheduler::Linux24.name(),
                Scheduler::Hurricane.name(),
            ]),
            "\"commonhold\"",
            "\"irix-decay\"",
            "What decides which task a CPU runs next: the project's own scheduler, or a baseline of the published \
             experiments: IRIX 5, Linux 2.4, or Hurricane, where each process of a job has a CPU of its own. Baselines know \
             no units, and need the scheme smp.",
        ),
        key("switch", kernel_time(0), "\"2us\"", "\"10us\"", "What a switch to another task costs."),
        key(
            "ipi",
            kernel_time(0),
            "\"1us\"",
            "\"5us\"",
            "How long an inter-processor interrupt takes to arrive.",
        ),
        key(
            "signal",
            kernel_time(0),
            "\"10us\"",
            "\"50us\"",
            "How long a signal takes to arrive, by which a task of a gang stops or goes on.",
        ),
        key(
            "counter_age",
            kernel_time(0),
            "\"0s\"",
            "\"50ms\"",
            "How old the count of a gang's use of the bus or cache is when the policy reads it, as where programs publish \
             their counters from time to time.",
        ),
        key(
            "interrupt",
            kernel_time(0),
            "\"0s\"",
            "\"6ms\"",
            "Mean time that a disk's or a timer's interrupt takes to arrive; exponentially distributed. Until then the \
             kernel does not know that a request is done.",
        ),
        key("fault", kernel_time(0), "\"1us\"", "\"20us\"", "CPU time of a page fault that needs no disk."),
        key("request", kernel_time(0), "\"5us\"", "\"100us\"", "CPU time of setting up a disk request."),
        key("fork", kernel_time(0), "\"300us\"", "\"1ms\"", "CPU time of creating a process."),
        // The project's scheduler preempts the borrower by an interrupt.
        key(
            "call_back",
            Kind::Choice(&["tick", "entry", "now"]),
            "\"now\"",
            "\"tick\"",
            "When a lent CPU goes back: at the borrower's next clock tick (tick), then or when it enters the kernel \
             (entry), or at once by an interrupt (now).",
        ),
        key(
            "frame",
            Kind::Bytes { min: FRAME_MIN, max: FRAME_MAX },
            "\"4KiB\"",
            "\"16KiB\"",
            "Size of a page frame: a power of two.",
        ),
        // 64 bytes of `struct page` for each page are 1.6 %; text, slabs and tables are about as much again.
        key(
            "memory",
            Kind::BytesOrPart,
            "\"4%\"",
            "\"6MiB\"",
            "Memory that the kernel keeps for itself; a percentage is one of the machine's memory.",
        ),
        // vm.page-cluster = 3 means 2^3 pages.
        key(
            "cluster",
            Kind::Count { min: 1, max: 1024 },
            "8",
            "4",
            "Pages that one fault or one page-out moves at once.",
        ),
        key(
            "memory_period",
            Kind::Time { min: 1_000_000, max: KERNEL_MAX_NS },
            "\"100ms\"",
            "\"1s\"",
            "How often memory is redistributed among units.",
        ),
        // Live machines lend as `in-time`; `any` is for comparison with published results.
        key(
            "memory_loans",
            Kind::Choice(&["in-time", "any"]),
            "\"in-time\"",
            "\"any\"",
            "How much idle memory is lent to a unit that is short. in-time: as much as could be called back within the \
             contract's call-back-memory, judged by the unit's pages and the measured rate of page writes; called-back \
             pages are written at once. any: all idle memory; called-back pages are written when the lender needs them.",
        ),
        // Enough for a disk to sort the requests, few enough that a read does not wait long for them.
        key(
            "write_behind",
            Kind::Count { min: 1, max: 1024 },
            "8",
            "4",
            "Write-behind requests that are under way at once.",
        ),
        // The current read-ahead window and the next, each of 128 KiB (read_ahead_kb).
        key(
            "read_ahead",
            Kind::Count { min: 0, max: 1024 },
            "2",
            "3",
            "Read-ahead requests kept outstanding for a file that is read in sequence. 0: none.",
        ),
        key(
            "request_sectors",
            Kind::Count { min: 1, max: 65_536 },
            "256",
            "78",
            "Size of a read-ahead or write-behind request, in sectors of 512 bytes; at least a frame.",
        ),
        // vm.dirty_background_ratio and vm.dirty_expire_centisecs.
        key(
            "dirty_limit",
            Kind::Part { min: 0, max: WHOLE },
            "\"10%\"",
            "\"5%\"",
            "Dirty pages are written behind when they are more than this part of memory.",
        ),
        key(
            "dirty_age",
            Kind::Time { min: 0, max: KERNEL_MAX_NS },
            "\"30s\"",
            "\"5s\"",
            "Dirty pages are written behind when they are this old.",
        ),
    ],
};

/// `[cache]`.
pub(crate) static CACHE: Table = Table {
    title: "[cache]",
    definition: "[cache]",
    keys: &[
        // A second-level cache of a present-day server core, missed to the third level or to memory.
        key(
            "bytes",
            Kind::Bytes { min: 1, max: 1 << 40 },
            "\"1MiB\"",
            "\"2MiB\"",
            "Size of each CPU's cache.",
        ),
        key("line", Kind::Bytes { min: 1, max: 1 << 20 }, "\"64B\"", "\"128B\"", "Size of one of its lines."),
        key("miss", kernel_time(0), "\"80ns\"", "\"500ns\"", "What fetching a line costs."),
    ],
};

/// `[last_cache]`.
pub(crate) static LAST_CACHE: Table = Table {
    title: "[last_cache]",
    definition: "[last_cache]",
    keys: &[key(
        "miss",
        Kind::Decimal { max: 100_000 },
        // A program that waits half of its time for the last-level cache, where memory takes three times as
        // long as the cache.
        "1",
        "2.5",
        "How much longer a step takes if its `cache` is not in the last-level cache at all: with 1, twice as long. The size \
         of each last-level cache is part of the `shape`: `cache:32MiB`.",
    )],
};

/// `[latency]`.
pub(crate) static LATENCY: Table = Table {
    title: "[latency]",
    definition: "[latency]",
    keys: &[
        // An idle load on a present-day server of two sockets, in round figures.
        key(
            "local",
            Kind::Time { min: 1, max: LATENCY_MAX_NS },
            "\"80ns\"",
            "\"1590ns\"",
            "What a load from memory of the CPU's own node takes.",
        ),
        key(
            "remote",
            Kind::Time { min: 1, max: LATENCY_MAX_NS / DISTANCE_LOCAL * DISTANCE_MAX },
            "",
            "\"140ns\"",
            "What a load from another node's memory takes. Twice `local` if not said, as Linux assumes.",
        ),
        key(
            "near",
            Kind::Time { min: 1, max: LATENCY_MAX_NS / DISTANCE_LOCAL * DISTANCE_MAX },
            "",
            "\"110ns\"",
            "What a load from another node of the same socket takes. As `remote` if not said.",
        ),
        key(
            "module",
            Kind::Time { min: 0, max: LATENCY_MAX_NS },
            "\"0ns\"",
            "\"20ns\"",
            "How long a load occupies the memory of a node, while other loads wait. 0: not at all.",
        ),
        key(
            "bus",
            Kind::Time { min: 0, max: LATENCY_MAX_NS },
            "\"0ns\"",
            "\"5ns\"",
            "How long a load from another node occupies the bus of a socket.",
        ),
        key(
            "ring",
            Kind::Time { min: 0, max: LATENCY_MAX_NS },
            "\"0ns\"",
            "\"5ns\"",
            "How long a load from another socket occupies the ring between the sockets.",
        ),
        key(
            "distances",
            Kind::Distances { min: DISTANCE_LOCAL, max: DISTANCE_MAX },
            "",
            "[[10, 17], [17, 10]]",
            "In place of `remote`: the distances between nodes, a list for each node, as `numactl --hardware` prints \
             them. 10 is the distance of a node from itself; 20 takes twice as long as `local`.",
        ),
    ],
};

/// `[bus]`.
pub(crate) static BUS: Table = Table {
    title: "[bus]",
    definition: "[bus]",
    keys: &[
        key(
            "transactions",
            // A step's rate, in thousandths per microsecond, is also an integer per ms: both fit in 32 bits.
            Kind::Count { min: 1, max: 1_000_000_000 },
            // One channel of DDR4-3200: 25.6 GB/s in lines of 64 bytes.
            "400000",
            "29500",
            "Transactions that the bus carries in a millisecond.",
        ),
        key(
            "streams",
            Kind::Count { min: 1, max: 64 },
            "4",
            "8",
            "How many transactions a task that uses the whole bus has outstanding; a task that uses a part of the \
             bus has that part of them, at least one.",
        ),
        key(
            "division",
            Kind::Choice(&["queue", "even"]),
            "\"queue\"",
            "\"even\"",
            "How the bus divides its capacity. \"queue\": transactions queue, so that tasks slow each other down \
             before the bus is full. \"even\": each task gets its rate, or an equal part of what is left.",
        ),
    ],
};

/// `[contention]`.
pub(crate) static CONTENTION: Table = Table {
    title: "[contention]",
    definition: "[contention]",
    keys: &[
        // Beyond 50 %, the lock limits the kernel to two CPUs; at 100 %, all kernel work would be serial.
        key(
            "lock",
            Kind::Part { min: 0, max: WHOLE - 1 },
            "\"0%\"",
            "\"11.7%\"",
            "Part of kernel work that holds the one spin lock.",
        ),
        key(
            "stall",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"1.77%\"",
            "Memory stall that each further CPU in the kernel adds to kernel work, as a part of the work.",
        ),
    ],
};

/// `[interrupts]`.
pub(crate) static INTERRUPTS: Table = Table {
    title: "[interrupts]",
    definition: "[interrupts]",
    keys: &[
        // At least a tenth of the CPU is left for tasks.
        key(
            "part",
            Kind::Part { min: 0, max: WHOLE / 10 * 9 },
            "\"0%\"",
            "\"50%\"",
            "The part of one CPU's time that interrupts take while a process runs there. Without `cpu`, this time is \
             spread over all CPUs.",
        ),
        key(
            "cpu",
            Kind::Count { min: 0, max: 1 << 20 },
            "",
            "0",
            "The CPU, numbered from 0, that takes all interrupts. If not said, all CPUs take them evenly.",
        ),
    ],
};

/// `[disturbance]`.
pub(crate) static DISTURBANCE: Table = Table {
    title: "[disturbance]",
    definition: "[disturbance]",
    keys: &[
        key(
            "daemons",
            Kind::Count { min: 0, max: 1_000 },
            "0",
            "4",
            "The number of daemons: tasks in no unit that compute now and then.",
        ),
        key(
            "every",
            Kind::Time { min: 1_000_000, max: STEP_MAX_NS },
            "\"100ms\"",
            "\"1s\"",
            "The mean time for which a daemon sleeps; exponentially distributed.",
        ),
        key(
            "runs",
            STEP_TIME,
            "\"1ms\"",
            "\"200us\"",
            "The mean CPU time for which it then computes; exponentially distributed.",
        ),
        key(
            "starts",
            Kind::Time { min: 0, max: STEP_MAX_NS },
            "\"0s\"",
            "\"50ms\"",
            "Each copy of a job starts later than the workload says, by a uniformly distributed time of up to this.",
        ),
    ],
};

const RATE: Kind = Kind::Rate { min: RATE_MIN, max: RATE_MAX };
const ACCESS: Kind = Kind::Time { min: 0, max: ACCESS_MAX_NS };

/// `[disk.NAME]`.
pub(crate) static DISK: Table = Table {
    title: "a disk",
    definition: "[disk.NAME]",
    keys: &[
        key(
            "model",
            Kind::Choice(&["ssd", "fixed", "hp97560"]),
            "\"ssd\"",
            "\"hp97560\"",
            "Its mechanics: several requests at a time (ssd), one at a time (fixed), or an HP 97560 with its arm and \
             platters (hp97560). Some of the other keys belong to one model only.",
        ),
        key("scale", Kind::Count { min: 1, max: 1000 }, "1", "2", "All times are divided by this."),
        key("access", ACCESS, "\"5ms\"", "\"3ms\"", "Time of each request."),
        key("channels", Kind::Count { min: 1, max: 4096 }, "8", "4", "Requests served side by side."),
        key("read", ACCESS, "\"80us\"", "\"50us\"", "Time of each read request."),
        key("write", ACCESS, "\"20us\"", "\"10us\"", "Time of each write request."),
        key(
            "rate",
            RATE,
            "\"400MiB/s\"",
            "\"5MiB/s\"",
            "Transfer rate, of each channel if there are several; its time per sector is rounded to a nanosecond.",
        ),
        key(
            "size",
            Kind::Bytes { min: DISK_BYTES_MIN, max: BYTES_MAX },
            "\"1TiB\"",
            "\"1GiB\"",
            "Its size, rounded down to sectors of 512 bytes.",
        ),
        key(
            "order",
            Kind::Choice(&["position", "isolation", "fair", "batched", "linux", "yfq"]),
            "",
            "\"position\"",
            "How its queue is served: by head position alone (position), by the units' bandwidth alone (isolation), by \
             position among the units that had no more than their share (fair), like fair but in bounded batches \
             (batched), as Linux does (linux), or by virtual finish times (yfq). If not said: linux if the machine enforces \
             as Linux does, else an order that the contract's scheme implies.",
        ),
        key(
            "weighs",
            Kind::Switch,
            "false",
            "true",
            "Whether the kernel honours units' weights on it, as Linux does with io.cost on a disk that was measured. \
             Without it, rates hold units. Only if the machine enforces as Linux does.",
        ),
        key(
            "depth",
            Kind::Count { min: 1, max: 1024 },
            "",
            "4",
            "Requests that the kernel hands to it, waiting there or in service: the disk serves them in an order of its own. \
             If not said: as many as it serves at once, or 32 where rates hold units.",
        ),
        key(
            "threshold",
            Kind::Count { min: 0, max: 1 << 40 },
            "64",
            "256",
            "Sectors that a unit may be ahead of the average, where the order is `fair`.",
        ),
        key(
            "half_life",
            Kind::Time { min: 1_000_000, max: KERNEL_MAX_NS },
            "\"500ms\"",
            "\"1s\"",
            "After this long, a unit's count of transferred sectors is halved.",
        ),
        key(
            "batch",
            Kind::Count { min: 1, max: 1024 },
            "2",
            "8",
            "Requests that are chosen together and served by position, where the order is `yfq`.",
        ),
        key(
            "batch_chosen",
            Kind::Choice(&["at-completion", "after-resubmission"]),
            "\"at-completion\"",
            "\"after-resubmission\"",
            "When the next batch is chosen, where the order is `yfq`: as soon as the last request of a batch has completed \
             (at-completion), or once its process has had 1 ms in which to send its next request (after-resubmission). With \
             at-completion, a process that sends one request at a time misses the batch after one in which it was last.",
        ),
    ],
};

/// Keys of a disk that only some models have, with these models.
pub(crate) const OF_MODELS: [(&str, &[&str]); 7] = [
    ("scale", &["hp97560"]),
    ("access", &["fixed"]),
    ("channels", &["ssd"]),
    ("read", &["ssd"]),
    ("write", &["ssd"]),
    ("rate", &["ssd", "fixed"]),
    ("size", &["ssd", "fixed"]),
];

/// A whole workload.
pub(crate) static WORKLOAD: Table = Table {
    title: "a workload",
    definition: "workload.toml",
    keys: &[
        VERSION_KEY,
        TITLE,
        SOURCE,
        key(
            "horizon",
            Kind::Time { min: 1000, max: HORIZON_MAX_NS },
            "\"1h\"",
            "\"10min\"",
            "When the simulation ends at the latest. A workload without it gets a warning.",
        ),
        key("file", Kind::Named(&FILE), "", "{ source = { size = \"4MiB\" } }", "The files by name."),
        key("lock", Kind::Named(&LOCK), "", "{ inode = {} }", "The kernel locks by name."),
        key(
            "event",
            Kind::Named(&EVENT),
            "",
            "{ ready = {} }",
            "The events by name, which processes signal.",
        ),
        key("timer", Kind::Named(&TIMER), "", "{ frame = {} }", "The periodic timers by name."),
        key(
            "program",
            Kind::Named(&PROGRAM),
            "",
            "{ hog = { do = [{ cpu = \"1s\" }] } }",
            "The programs by name: what processes do.",
        ),
        key(
            "job",
            Kind::Named(&JOB),
            "",
            "{ a = { unit = \"physics\", program = \"hog\" } }",
            "The jobs by name. A job is a process, with all that it runs.",
        ),
        key(
            "change",
            Kind::Named(&CHANGE),
            "",
            "{ evening = { unit = \"physics\", resource = \"cpu\", tickets = 300 } }",
            "Changes of units' tickets by name, as `commonhold tickets` makes them while a daemon runs.",
        ),
        key(
            "offer",
            Kind::Named(&OFFER),
            "",
            "{ swap = { unit = \"physics\", give = \"disk:300\", want = \"cpu:200\" } }",
            "Offers by name: tickets of one resource for tickets of another. Offers that fit each other are served; \
             exchanged tickets come back when the exchange ends.",
        ),
        key(
            "cpus",
            Kind::Named(&CPUS),
            "",
            "{ maintenance = { at = \"10s\", offline = \"1\" } }",
            "CPUs that go offline or come online, by name of the event.",
        ),
    ],
};

/// `[file.NAME]`.
pub(crate) static FILE: Table = Table {
    title: "a file",
    definition: "[file.NAME]",
    keys: &[
        key("size", Kind::Bytes { min: 1, max: BYTES_MAX }, "", "\"4MiB\"", "Its size. Required."),
        key("disk", Kind::Name("disk"), "", "\"d0\"", "The disk it is on; the job's if not said."),
        key(
            "shared",
            Kind::Switch,
            "false",
            "true",
            "One file for the whole machine. Else each job has a file of its own.",
        ),
        key(
            "hot",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"20%\"",
            "With `hot_reads`: this part of its pages is read most often, and stays in memory longest.",
        ),
        key(
            "hot_reads",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"80%\"",
            "The part of the random reads that go to the hot pages.",
        ),
        key(
            "gap",
            Kind::Bytes { min: 0, max: BYTES_MAX },
            "\"0B\"",
            "\"10MiB\"",
            "Free space on the disk between it and the next file.",
        ),
        key(
            "fragment",
            Kind::Bytes { min: SECTOR, max: BYTES_MAX },
            "",
            "\"8KiB\"",
            "Size of its pieces, which lie apart on the disk. One piece if not said.",
        ),
        key(
            "buffer",
            Kind::Bytes { min: 0, max: BYTES_MAX },
            "\"0B\"",
            "\"4MiB\"",
            "Size of the cache into which processes copy what they read from the file, as a database does: that much of the \
             file is in memory twice. The copies take frames of the unit that reads. When frames are short, the older and \
             larger of page cache and copies is reclaimed first. A read of a page in the page cache needs no disk.",
        ),
    ],
};

/// `[lock.NAME]`.
pub(crate) static LOCK: Table = Table {
    title: "a lock",
    definition: "[lock.NAME]",
    keys: &[
        key("readers", Kind::Switch, "false", "true", "Several readers may hold it at once."),
        key(
            "inherit",
            Kind::Switch,
            "false",
            "true",
            "A process that waits for it lends its unit's CPUs to the holder.",
        ),
        key(
            "spins",
            Kind::Switch,
            "false",
            "true",
            "A process that waits for it stays on its CPU and is busy, as with a spin lock; else it sleeps.",
        ),
        key(
            "unfair",
            Kind::Switch,
            "false",
            "true",
            "The last holder may take it again, ahead of those that wait, while its cache line is on its way to the next.",
        ),
        key(
            "line",
            kernel_time(0),
            "\"0s\"",
            "\"200ns\"",
            "How long the lock's cache line takes from one CPU to another. When a lock that spins is released, the line \
             goes to each CPU that spins.",
        ),
    ],
};

/// `[event.NAME]`.
pub(crate) static EVENT: Table = Table {
    title: "an event",
    definition: "[event.NAME]",
    keys: &[key(
        "counts",
        Kind::Switch,
        "false",
        "true",
        "A signal for which no process waits is kept for the next `wait`, as by a semaphore. Else it is lost, as by a \
         condition variable.",
    )],
};

/// `[timer.NAME]`.
pub(crate) static TIMER: Table = Table {
    title: "a timer",
    definition: "[timer.NAME]",
    keys: &[key(
        "shared",
        Kind::Switch,
        "false",
        "true",
        "One timer for the whole machine. Else each process has its own.",
    )],
};

/// `[program.NAME]`.
pub(crate) static PROGRAM: Table = Table {
    title: "a program",
    definition: "[program.NAME]",
    keys: &[
        key(
            "memory",
            Kind::Bytes { min: 0, max: BYTES_MAX },
            "\"0B\"",
            "\"1MiB\"",
            "Its working set of anonymous memory.",
        ),
        key(
            "resident",
            Kind::Switch,
            "false",
            "true",
            "Its working set is in memory when it starts, if there is room. Else its first touches bring it in.",
        ),
        key(
            "reuse",
            Kind::Time { min: 1000, max: STEP_MAX_NS },
            "\"300ms\"",
            "\"100ms\"",
            "CPU time within which it touches each page of its working set once.",
        ),
        key(
            "hot",
            Kind::Bytes { min: 0, max: BYTES_MAX },
            "\"0B\"",
            "\"256KiB\"",
            "Bytes that it loads into the cache again after a move to another CPU.",
        ),
        key(
            "stalled",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"30%\"",
            "Part of its CPU time that it waits for memory while all its memory is in its own node. For memory of \
             other nodes, this part takes longer, as the machine's `[latency]` says.",
        ),
        key(
            "shares",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"30%\"",
            "Part of its CPU time that it waits for data of its job's other processes, if all that data is in its own node. \
             A process's data lies in the node where the process ran first.",
        ),
        key(
            "of_first",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"50%\"",
            "Part of `shares` that is for data of the job's first process. The rest is spread evenly over the others.",
        ),
        key(
            "job",
            Kind::Switch,
            "false",
            "true",
            "Each run of it is a job of its own: it is placed as one, and has a response time of its own in the outcome.",
        ),
        key("do", Kind::Steps, "", "[{ cpu = \"1s\" }]", "Its steps, in order. Required."),
    ],
};

/// `[job.NAME]`.
pub(crate) static JOB: Table = Table {
    title: "a job",
    definition: "[job.NAME]",
    keys: &[
        key(
            "unit",
            Kind::Unit,
            "",
            "\"physics/batch\"",
            "The path of the unit that it belongs to, as the contract has it. Required.",
        ),
        key("program", Kind::Name("program"), "", "\"hog\"", "What it runs. Required."),
        key("start", Kind::Time { min: 0, max: HORIZON_MAX_NS }, "\"0s\"", "\"1s\"", "When it starts."),
        key(
            "count",
            Kind::Count { min: 1, max: COUNT_MAX },
            "1",
            "2",
            "The number of copies that are started, each a job of its own.",
        ),
        key(
            "every",
            Kind::Time { min: 0, max: HORIZON_MAX_NS },
            "\"0s\"",
            "\"1s\"",
            "Time between the starts of two copies.",
        ),
        key(
            "deadline",
            Kind::Time { min: 1, max: HORIZON_MAX_NS },
            "",
            "\"20ms\"",
            "Time within which its processes should sleep again, or end, after each sleep. It is not enforced: reports \
             count how often it was met and missed.",
        ),
        key(
            "disk",
            Kind::Name("disk"),
            "",
            "\"d0\"",
            "The disk of its files and its swap; the machine's first if not said.",
        ),
        key(
            "background",
            Kind::Switch,
            "false",
            "true",
            "The simulation does not wait for its end, but ends with the others.",
        ),
    ],
};

/// The resources that units have tickets for.
pub(crate) const RESOURCES: [&str; 4] =
    [Resource::Cpu.name(), Resource::Memory.name(), Resource::Disk.name(), Resource::Bus.name()];

/// `[change.NAME]`.
pub(crate) static CHANGE: Table = Table {
    title: "a change of rights",
    definition: "[change.NAME]",
    keys: &[
        key("at", Kind::Time { min: 0, max: HORIZON_MAX_NS }, "\"0s\"", "\"10s\"", "When it is made."),
        key(
            "unit",
            Kind::Unit,
            "",
            "\"physics\"",
            "The path of the unit whose tickets change, as the contract has it. Required.",
        ),
        key("resource", Kind::Choice(&RESOURCES), "", "\"cpu\"", "What the tickets are for. Required."),
        key(
            "tickets",
            Kind::Count { min: 1, max: TICKETS_MAX },
            "",
            "50",
            "How many the unit has from then on; with `to`, how many it gives. Required.",
        ),
        key("to", Kind::Unit, "", "\"chemistry\"", "The unit, with the same parent, that receives them."),
    ],
};

/// `[cpus.NAME]`.
pub(crate) static CPUS: Table = Table {
    title: "a change of the CPUs that are online",
    definition: "[cpus.NAME]",
    keys: &[
        key("at", Kind::Time { min: 0, max: HORIZON_MAX_NS }, "\"0s\"", "\"10s\"", "When it happens."),
        key(
            "offline",
            Kind::Cpus,
            "",
            "\"4-7\"",
            "The CPUs that go offline. Memory stays. The daemon notices within a second and a turn. This key or `online` \
             is required.",
        ),
        key("online", Kind::Cpus, "", "\"4-7\"", "The CPUs that come back online."),
    ],
};

/// `[offer.NAME]`.
pub(crate) static OFFER: Table = Table {
    title: "an offer",
    definition: "[offer.NAME]",
    keys: &[
        key("at", Kind::Time { min: 0, max: HORIZON_MAX_NS }, "\"0s\"", "\"10s\"", "When it is made."),
        key(
            "after",
            Kind::Rounds,
            "",
            "\"10000 rounds of small\"",
            "In place of `at`: the offer is made after this number of rounds of this job. A round is an iteration of an \
             outermost loop of its program; the rounds of all copies count together.",
        ),
        key(
            "unit",
            Kind::Unit,
            "",
            "\"physics\"",
            "The path of the unit that makes it, as the contract has it. Required.",
        ),
        key(
            "give",
            Kind::Tickets { max: TICKETS_MAX },
            "",
            "\"disk:300\"",
            "What it gives: a resource and a number of tickets, of which it keeps at least one; or a part of its `hard` \
             reservation, such as `\"memory:2GiB\"`. Required.",
        ),
        key(
            "want",
            Kind::Tickets { max: TICKETS_MAX },
            "",
            "\"cpu:200\"",
            "What it wants in return. Required.",
        ),
        key(
            "at_least",
            Kind::Tickets { max: TICKETS_MAX },
            "",
            "\"cpu:100\"",
            "The least of `want` that it accepts; it then gives less in proportion. All of `want` if not said.",
        ),
        key(
            "with",
            Kind::Unit,
            "",
            "\"chemistry\"",
            "The only unit, with the same parent, that may serve it. Any may if not said.",
        ),
        key(
            "for",
            Kind::Time { min: 1, max: HORIZON_MAX_NS },
            "",
            "\"10m\"",
            "How long an exchange lasts at most; to the end if not said.",
        ),
    ],
};

const SPREAD: Key = key(
    "spread",
    Kind::Spread,
    "\"0%\"",
    "\"20%\"",
    "How the amount varies from time to time: evenly within this part of it, or exponentially (\"exponential\").",
);
const BYTES: Key = key("bytes", STEP_BYTES, "", "\"16KiB\"", "How much. Required.");
const RANDOM: Key = key(
    "random",
    Kind::Switch,
    "false",
    "true",
    "Begins anywhere in the file. Else it begins where the process's last access ended, and a new process at the \
     file's beginning.",
);
const DIRECT: Key = key(
    "direct",
    Kind::Switch,
    "false",
    "true",
    "Transfers every page to or from the disk, past the page cache, and waits for it, as with O_DIRECT.",
);
const DO: Key = key("do", Kind::Steps, "", "[{ cpu = \"1ms\" }]", "The steps. Required.");

/// A step that computes.
static CPU: Table = Table {
    title: "a `cpu` step",
    definition: "{ cpu = .. }",
    keys: &[
        key("cpu", STEP_TIME, "", "\"400ms\"", "Computes for this time, if alone on the machine."),
        SPREAD,
        key(
            "kernel",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"30%\"",
            "Part of it that is kernel work.",
        ),
        key(
            "bus",
            Kind::Decimal { max: 1_000_000_000 },
            "0",
            "0.5",
            "Bus transactions per microsecond, if alone on the machine.",
        ),
        key(
            "cache",
            Kind::Bytes { min: 0, max: BYTES_MAX },
            "\"0B\"",
            "\"6MiB\"",
            "Its working set in the last-level cache, the size of which is in the machine's `shape`.",
        ),
        key(
            "core",
            Kind::Part { min: 0, max: WHOLE },
            "\"0%\"",
            "\"90%\"",
            "Part of a core that it uses, if alone there; beyond the whole, hardware threads slow each other down.",
        ),
    ],
};

/// A step that reads from a file.
static READ: Table = Table {
    title: "a `read` step",
    definition: "{ read = .. }",
    keys: &[
        key("read", Kind::Name("file"), "", "\"source\"", "Reads from this file, through the page cache."),
        BYTES,
        SPREAD,
        RANDOM,
        DIRECT,
    ],
};

/// A step that writes to a file.
static WRITE: Table = Table {
    title: "a `write` step",
    definition: "{ write = .. }",
    keys: &[
        key("write", Kind::Name("file"), "", "\"objects\"", "Writes to this file, into the page cache."),
        BYTES,
        SPREAD,
        RANDOM,
        key("sync", Kind::Switch, "false", "true", "Waits until it is on the disk."),
        DIRECT,
    ],
};

/// A step that writes a file's metadata.
static METADATA: Table = Table {
    title: "a `metadata` step",
    definition: "{ metadata = .. }",
    keys: &[
        key(
            "metadata",
            Kind::Name("file"),
            "",
            "\"source\"",
            "Writes the one sector that holds this file's metadata.",
        ),
        key("delayed", Kind::Switch, "false", "true", "Does not wait until it is on the disk."),
    ],
};

/// A step that sleeps.
static SLEEP: Table = Table {
    title: "a `sleep` step",
    definition: "{ sleep = .. }",
    keys: &[key("sleep", STEP_TIME, "", "\"10ms\"", "Sleeps for this time."), SPREAD],
};

/// A step that spends time on a CPU.
static BUSY: Table = Table {
    title: "a `busy` step",
    definition: "{ busy = .. }",
    keys: &[
        key(
            "busy",
            STEP_TIME,
            "",
            "\"10ms\"",
            "Stays on its CPU until this time has passed. Time without a CPU counts too.",
        ),
        SPREAD,
    ],
};

/// A step that sleeps to a timer's next release.
static TIMED: Table = Table {
    title: "a `timer` step",
    definition: "{ timer = .. }",
    keys: &[
        key(
            "timer",
            Kind::Name("timer"),
            "",
            "\"frame\"",
            "Sleeps to the next release of this timer, a period after the last. The first period begins when the process \
             starts. A release that has passed is an overrun: the process goes on at once.",
        ),
        key(
            "period",
            Kind::Time { min: PERIOD_MIN_NS, max: STEP_MAX_NS },
            "",
            "\"20ms\"",
            "The time between two releases. Required.",
        ),
        key(
            "catch_up",
            Kind::Switch,
            "false",
            "true",
            "After an overrun, the next period begins at the release that was missed, so that later releases keep their \
             times. Else it begins at once.",
        ),
    ],
};

/// A step that waits for an event.
static WAIT: Table = Table {
    title: "a `wait` step",
    definition: "{ wait = .. }",
    keys: &[
        key(
            "wait",
            Kind::Name("event"),
            "",
            "\"ready\"",
            "Waits until a process signals this event. Processes of any job wait in the order in which they came.",
        ),
        key(
            "lock",
            Kind::Name("lock"),
            "",
            "\"inode\"",
            "Releases this lock while it waits, and takes it again before the next step: the step is within `do` of that \
             lock.",
        ),
    ],
};

/// A step that signals an event.
static SIGNAL: Table = Table {
    title: "a `signal` step",
    definition: "{ signal = .. }",
    keys: &[
        key(
            "signal",
            Kind::Name("event"),
            "",
            "\"ready\"",
            "Wakes the process that has waited for this event the longest.",
        ),
        key("all", Kind::Switch, "false", "true", "Wakes all processes that wait for it."),
    ],
};

/// A step that runs other processes.
static RUN: Table = Table {
    title: "a `run` step",
    definition: "{ run = .. }",
    keys: &[
        key(
            "run",
            Kind::Name("program"),
            "",
            "\"cc1\"",
            "Runs this program, and waits until all runs have ended.",
        ),
        key("times", Kind::Count { min: 1, max: TIMES_MAX }, "1", "24", "How often in all."),
        key(
            "at_once",
            Kind::Count { min: 1, max: COUNT_MAX },
            "1",
            "2",
            "How many at a time; no more than `times`.",
        ),
        key(
            "beside",
            Kind::Switch,
            "false",
            "true",
            "Goes on with the next step as soon as all have begun, all at once. The program waits for them at its end.",
        ),
    ],
};

/// A step that waits for siblings.
static BARRIER: Table = Table {
    title: "a `barrier` step",
    definition: "{ barrier = .. }",
    keys: &[
        key(
            "barrier",
            Kind::Count { min: 1, max: COUNT_MAX },
            "",
            "4",
            "Waits until this number of siblings have come to a barrier: processes that one `run` step started, or copies \
             of a job.",
        ),
        key(
            "at",
            Kind::Name("event"),
            "",
            "\"ready\"",
            "Waits for processes of any job that come to a barrier at this event, in place of siblings.",
        ),
        key("spin", Kind::Switch, "false", "true", "Waits on the CPU, spinning."),
        key(
            "spin_for",
            Kind::Time { min: 1, max: HORIZON_MAX_NS },
            "",
            "\"200ms\"",
            "With `spin`: spins for this time, and then sleeps.",
        ),
    ],
};

/// Steps under a lock.
static LOCKED: Table = Table {
    title: "a `lock` step",
    definition: "{ lock = .. }",
    keys: &[
        key("lock", Kind::Name("lock"), "", "\"inode\"", "Holds this lock during the steps of `do`."),
        key("read", Kind::Switch, "false", "true", "As a reader."),
        DO,
    ],
};

/// Steps that are repeated.
static REPEAT: Table = Table {
    title: "a `repeat` step",
    definition: "{ repeat = .. }",
    keys: &[
        key("repeat", Kind::Times, "", "10", "Does the steps of `do` this number of times."),
        key(
            "for",
            STEP_TIME,
            "",
            "\"30s\"",
            "Ends after this time, with the steps of `do` that are under way then, if it has not ended earlier.",
        ),
        DO,
    ],
};

/// Steps that the processes of a job divide among them.
static PIECES: Table = Table {
    title: "a `pieces` step",
    definition: "{ pieces = .. }",
    keys: &[
        key(
            "pieces",
            Kind::Count { min: 1, max: COUNT_MAX },
            "",
            "64",
            "The processes of the job do the steps of `do` this number of times in all: each takes the next piece when it \
             has done one. All such steps of a job share one count.",
        ),
        DO,
    ],
};

/// The kinds of step: the key that says what a step does, and the table of its keys. The first key of this
/// list that a step has decides its kind, since `read` is also a key of `lock` steps, and `lock` of `wait`
/// steps.
pub(crate) static STEPS: [(&str, &Table); 14] = [
    ("wait", &WAIT),
    ("signal", &SIGNAL),
    ("lock", &LOCKED),
    ("repeat", &REPEAT),
    ("pieces", &PIECES),
    ("cpu", &CPU),
    ("read", &READ),
    ("write", &WRITE),
    ("metadata", &METADATA),
    ("sleep", &SLEEP),
    ("busy", &BUSY),
    ("timer", &TIMED),
    ("run", &RUN),
    ("barrier", &BARRIER),
];
