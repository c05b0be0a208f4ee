//! Every key of a contract, once. The parser refuses any other key. The schema for editors and the tables of
//! `docs/contract-reference.md` are made from it.

use crate::document::{self, key};
use crate::jobs::{GANG_WINDOW_MAX, POOL_CPUS_MAX};
use crate::resource::{DEFAULT_TICKETS, Resource};

/// The version of the contract's language that this program reads.
pub(crate) const VERSION: u64 = 1;

/// The most units that a contract may declare: a runaway generator gets an error, instead of filling memory.
pub(crate) const UNITS_MAX: usize = 100_000;

/// The most levels of units.
pub(crate) const DEPTH_MAX: usize = 16;

/// The most entries of one unit's `members`: positions are stored in 16 bits.
pub(crate) const MEMBERS_MAX: usize = 65_535;

/// The largest process number of a 64-bit kernel: `PID_MAX_LIMIT` in include/linux/threads.h.
pub(crate) const PID_MAX: u32 = 4_194_304;

/// The type of a key's value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// The number [`VERSION`].
    Version,
    /// A table with these keys.
    Table(&'static Table),
    /// A table whose keys are names of units.
    Units,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number from `min` to `max`.
    Count { min: u64, max: u64 },
    /// A list of members.
    Members,
    /// One user or group.
    Owner,
    /// A quantity of a resource, as an absolute amount or as a part.
    Amount(Resource),
    /// A percentage, up to all.
    Part,
    /// A length of time from `min_ns` to `max_ns`.
    Duration { min_ns: u64, max_ns: u64 },
    /// The path of a unit: `physics/night-batch`.
    UnitPath,
    /// One number for all resources, or a table of numbers with these keys.
    Counts(&'static Table),
    /// Yes, no, or a quantity of a resource, as an absolute amount or as a part.
    Permission(Resource),
    /// Yes or no for all resources, or a table of permissions with these keys.
    Permissions(&'static Table),
    /// One of these words, or a whole number from `min` to `max`.
    WordOrCount { words: &'static [&'static str], min: u64, max: u64 },
    /// Yes or no.
    Flag,
}

pub(crate) type Key = document::Key<Kind>;
pub(crate) type Table = document::Table<Kind>;

/// The whole contract.
pub(crate) static ROOT: Table = Table {
    title: "a contract",
    definition: "contract",
    keys: &[
        key("version", Kind::Version, "", "1", "The version of the contract's language: 1. Required."),
        key(
            "machine",
            Kind::Table(&MACHINE),
            "",
            "{ scheme = \"quota\" }",
            "Rules for the machine as a whole.",
        ),
        key(
            "unit",
            Kind::Units,
            "",
            "{ physics = {} }",
            "The units by name. Each is a group of processes, and says what the group holds.",
        ),
    ],
};

pub(crate) const CALL_BACK_IDLE: &str = "call-back-memory-idle";
pub(crate) const CALL_BACK_MOST: &str = "call-back-memory-most";
const CALL_BACK_MOST_KIND: Kind = Kind::Duration { min_ns: 100_000_000, max_ns: 600_000_000_000 };
const CALL_BACK_IDLE_DOC: &str = "A loan of memory may take this part of the time for which its owner left it idle, where that \
     is longer than `call-back-memory`. With `10%`, memory that was idle for a minute is to be back within 6 s. `0%`: the time \
     does not grow.";
const CALL_BACK_MOST_DOC: &str = "However long its owner left it idle, a loan of memory is to be back within this time, or within `call-back-memory`.";

const CALL_BACK_IDLE_OF_UNIT_DOC: &str = "For memory that the unit and its sub-units lend: `call-back-memory-idle` of `[machine]`. \
     Without it, as in the unit around it.";
const CALL_BACK_MOST_OF_UNIT_DOC: &str = "For memory that the unit and its sub-units lend: `call-back-memory-most` of `[machine]`. \
     Without it, as in the unit around it.";

/// The `[machine]` table.
pub(crate) static MACHINE: Table = Table {
    title: "[machine]",
    definition: "machine",
    keys: &[
        key(
            "cpu",
            Kind::Choice(&["auto", "partition", "proportional"]),
            "\"auto\"",
            "\"partition\"",
            "How CPU is divided. `partition`: each unit has home CPUs. `proportional`: all CPUs are time-shared. `auto`: \
             `partition` while there are no more units than CPUs, else `proportional`.",
        ),
        key(
            "scheme",
            Kind::Choice(&["isolate", "quota", "smp"]),
            "\"isolate\"",
            "\"quota\"",
            "`isolate`: units are isolated, and lend what is idle. `quota`: isolated, and nothing is lent. `smp`: \
             accounts only.",
        ),
        key(
            "reserve",
            Kind::Amount(Resource::Memory),
            "\"8%\"",
            "\"512MiB\"",
            "Memory that is never lent, so that a loan of memory can be called back quickly. A part is of the machine's \
             memory.",
        ),
        key(
            "rotation",
            Kind::Duration { min_ns: 10_000_000, max_ns: 10_000_000_000 },
            "\"250ms\"",
            "\"100ms\"",
            "How often a CPU that several units hold in part changes its owner.",
        ),
        key(
            "call-back",
            Kind::Duration { min_ns: 1_000_000, max_ns: 1_000_000_000 },
            "\"10ms\"",
            "\"20ms\"",
            "The longest that a lender may wait for a CPU that it lent.",
        ),
        key(
            "call-back-memory",
            Kind::Duration { min_ns: 100_000_000, max_ns: 60_000_000_000 },
            "\"1s\"",
            "\"500ms\"",
            "Within this time a loan of memory is to be back whose owner left it idle for a short time. Memory that was idle for \
             longer may take longer: see `call-back-memory-idle`. No loan is made that would take longer than it may, by how fast \
             memory was taken so far.",
        ),
        key(CALL_BACK_IDLE, Kind::Part, "\"10%\"", "\"0%\"", CALL_BACK_IDLE_DOC),
        key(CALL_BACK_MOST, CALL_BACK_MOST_KIND, "\"30s\"", "\"5s\"", CALL_BACK_MOST_DOC),
        key(
            "loans-remembered",
            Kind::Duration { min_ns: 0, max_ns: 604_800_000_000_000 },
            "\"10min\"",
            "\"0s\"",
            "The half-life of what a unit lent and was lent. Of units that want to be lent to, one that lent more comes \
             first. `0s`: nothing is remembered.",
        ),
        key(
            "pools",
            Kind::WordOrCount {
                words: &["auto", "cache", "node", "socket", "machine"],
                min: 1,
                max: POOL_CPUS_MAX as u64,
            },
            "\"auto\"",
            "\"node\"",
            "How CPUs are grouped into pools, in which units have home CPUs and jobs are placed. `auto`: by what suits the \
             machine; `commonhold doctor` says how. `cache`, `node`, `socket`: a pool for each. `machine`: one for all. A \
             number: pools of so many CPUs, wherever they lie, for experiments.",
        ),
        key(
            "isolated",
            Kind::Flag,
            "false",
            "true",
            "Whether isolated CPUs are divided among units, too: those of `isolcpus`, of `nohz_full`, and of isolated partitions of \
             cpusets. Otherwise no unit gets one as its own or on loan. Only CPUs that the daemon itself may use are divided. A \
             kernel with `isolcpus` lets it use those if it was started so (`taskset -c LIST`, or systemd's `CPUAffinity=`).",
        ),
        key(
            "placement",
            Kind::Choice(&["worst-fit", "first-fit", "best-fit", "fewest-jobs", "near"]),
            "\"worst-fit\"",
            "\"near\"",
            "The pool that a job begins in, and goes on in when its pools are full. `worst-fit`: the one with the most free \
             CPUs. `first-fit`: the first with a free CPU. `best-fit`: the one with the fewest free CPUs, but one at least. \
             `fewest-jobs`: the one with a free CPU in which the fewest jobs are. `near`: the one where the thread is.",
        ),
        key(
            "repartition",
            Kind::Flag,
            "true",
            "false",
            "Whether threads of a job that lie in several pools are brought together when there is room, and what that gains is \
             more than what moving them costs.",
        ),
        key(
            "gangs",
            Kind::Choice(&["off", "latest-quantum", "quanta-window", "demand"]),
            "\"off\"",
            "\"demand\"",
            "Whether the jobs of units with `job` are gangs: all threads of a job run in a quantum, or none. Which jobs run \
             together goes by what they transfer over the memory bus, or by what `gangs-share` says. `latest-quantum`: by the latest quantum in which each \
             ran. `quanta-window`: by the average of the latest ones. `demand`: by what each would transfer if the bus were \
             its own, which is estimated.",
        ),
        key(
            "gangs-share",
            Kind::Choice(&["bus", "cache", "cores"]),
            "\"bus\"",
            "\"cache\"",
            "What gangs are chosen by. `bus`: what they transfer over the memory bus. `cache`: what they hold of the last-level \
             caches. `cores`: the instructions that they execute, where hardware threads share a core. The last two have no \
             `gangs = \"demand\"`, and hold no amounts of the bus.",
        ),
        key(
            "quantum",
            Kind::Duration { min_ns: 10_000_000, max_ns: 60_000_000_000 },
            "\"200ms\"",
            "\"1s\"",
            "How long gangs run before others are chosen.",
        ),
        key(
            "window",
            Kind::Count { min: 1, max: GANG_WINDOW_MAX as u64 },
            "5",
            "20",
            "The quanta of which `gangs = \"quanta-window\"` takes the average. With more than 5, older ones count less and \
             less.",
        ),
        key(
            "first-rate",
            Kind::Amount(Resource::Bus),
            "\"100%\"",
            "\"0B/s\"",
            "What a thread is taken to transfer whose job has not been measured yet. A part is of the bus for each CPU. With \
             `gangs-share`, a part of the cache or of the cores for each CPU, and nothing else.",
        ),
        key(
            "default",
            Kind::UnitPath,
            "\"shared\"",
            "\"physics\"",
            "The unit of every process that matches no member of any unit, by its path.",
        ),
    ],
};

/// The table of a unit.
pub(crate) static UNIT: Table = Table {
    title: "a unit",
    definition: "unit",
    keys: &[
        key(
            "members",
            Kind::Members,
            "[]",
            "[\"group:physics\", \"user:ana\"]",
            "The processes that belong to the unit: `group:`, `user:`, `command:`, `cgroup:` or `pid:`. In a sub-unit, \
             they select among the members of the unit around it. The most specific match wins. With an empty list, \
             processes enter by `commonhold exec` alone.",
        ),
        key(
            "owner",
            Kind::Owner,
            "",
            "\"user:ana\"",
            "The user, or each user of the group, that may change the tickets of the units directly in this one, and give or \
             offer this unit's own. Without it, the owner of the unit around it may change the tickets in it, and its \
             members may give its own. A unit without an owner, in none with one, is governed by its members.",
        ),
        key(
            "each",
            Kind::Choice(&["user", "cgroup"]),
            "",
            "\"user\"",
            "`user`: every user among the members gets a sub-unit. `cgroup`: every control group directly in one that a \
             `cgroup:` rule of the unit names gets one, such as a job of Slurm's, a pod or a container. All of these \
             have equal parts, unless `each-by` says otherwise. A control group's sub-unit goes ten seconds after its last process.",
        ),
        key(
            "each-by",
            Kind::Choice(&["cpus", "weight"]),
            "",
            "\"cpus\"",
            "With `each = \"cgroup\"`: the tickets of a sub-unit, by what the group's manager has set. `cpus`: 100 for each \
             CPU that it has given the group, and where the group is not systemd's, also for those that it gives later. \
             `weight`: the group's `cpu.weight` when the sub-unit comes. Where nothing is set, 100. Without this key, all \
             have equal parts.",
        ),
        key(
            "tickets",
            Kind::Counts(&TICKETS),
            "100",
            "200",
            "The unit's share against its siblings, after all reservations: one number for every resource, or one for \
             each.",
        ),
        key(
            "hard",
            Kind::Table(&HARD),
            "{}",
            "{ cpu = \"2\" }",
            "Reserved for the unit before tickets divide the rest. A part is of the machine, and of memory what there is to \
             divide; in a sub-unit, of what the unit around it is entitled to. The unit has its part of the rest as well.",
        ),
        key(
            "limit",
            Kind::Table(&LIMIT),
            "{}",
            "{ memory = \"32GiB\" }",
            "What the unit never exceeds, loans included, whatever is idle.",
        ),
        key(
            "lend",
            Kind::Permissions(&LEND),
            "true",
            "{ memory = \"2GiB\" }",
            "Whether others may use what the unit leaves idle, and how much of it at any time. A part is of what the unit \
             is entitled to. With `each`, this holds for each sub-unit.",
        ),
        key(
            "borrow",
            Kind::Permissions(&BORROW),
            "true",
            "{ disk = false }",
            "Whether the unit may use what others leave idle, and how much of it at any time. A part is of what a part in \
             `limit` would be of. At the top that is the machine, and of memory what there is to divide.",
        ),
        key(CALL_BACK_IDLE, Kind::Part, "", "\"0%\"", CALL_BACK_IDLE_OF_UNIT_DOC),
        key(CALL_BACK_MOST, CALL_BACK_MOST_KIND, "", "\"5s\"", CALL_BACK_MOST_OF_UNIT_DOC),
        key(
            "negotiate",
            Kind::Flag,
            "false",
            "true",
            "Whether exchanges of the unit's tickets with siblings that negotiate too are tried for it. One is kept while both \
             sides get on faster by it.",
        ),
        key(
            "discipline",
            Kind::Choice(&[
                "stride",
                "lottery",
                "entitlement",
                "decay",
                "fifo",
                "rr",
                "batch",
                "job-currency",
                "gang",
                "dwcs",
                "smp",
                "classes",
            ]),
            "\"stride\"",
            "\"lottery\"",
            "Which of the unit's own tasks and sub-units runs next, under the `kernel` backend and in the simulator. \
             `stride`: the one that had least for its weight. `lottery`: by chance, in proportion to weights. `entitlement`, \
             `decay`: the one that used least for its weight of late, where usage is forgotten within seconds, or within \
             minutes. `fifo`: the one that came first. `rr`: each in turn. `batch`: likewise, with long turns. \
             `job-currency`: those first that used less than they were handed by weight at intervals. `gang`: the sub-units in \
             turn, each on all CPUs at once. `dwcs`: the sub-unit whose `deadline` is next. `smp`: all tasks alike, whatever sub-unit they are in. `classes`: the sub-unit of the highest class. A sub-unit's own discipline says its \
             class: real time (`dwcs`, `fifo`, `rr`), time share (the others), `entitlement`, `batch`, in this order.",
        ),
        key(
            "job",
            Kind::Choice(&["unit", "process", "tree", "session", "cgroup"]),
            "",
            "\"tree\"",
            "What of the unit is one job: threads that belong together, and are placed near each other, in one pool where \
             they fit. `unit`: all of its own processes. `process`: each process with its threads. `tree`: each process \
             that a shell started, with all that it started itself. `session`: what one terminal or one service runs. \
             `cgroup`: each control group. Without it, nothing of the unit is placed.",
        ),
        key(
            "deadline",
            Kind::Table(&DEADLINE),
            "",
            "{ period = \"20ms\", budget = \"4ms\", misses = 1, of = 10 }",
            "CPU time that the unit wants where the unit around it has `discipline = \"dwcs\"`: `budget` before the end of each \
             `period`, but for `misses` of any `of` periods in a row. Budgets that do not fit are refused.",
        ),
        key(
            "unit",
            Kind::Units,
            "",
            "{ batch = {} }",
            "Sub-units by name. They divide what this unit holds.",
        ),
    ],
};

const CPU_DOC: &str = "CPUs, as a number (`1.5`) or as a part (`\"25%\"`).";
const MEMORY_DOC: &str = "Memory: `\"8GiB\"` or a part (`\"25%\"`).";
const DISK_DOC: &str = "Bandwidth of each disk: `\"100MB/s\"` or a part (`\"25%\"`).";
const BUS_DOC: &str = "Bandwidth of the memory bus: `\"2GiB/s\"` or a part (`\"25%\"`). [Gangs](gangs.md#units-and-the-bus) hold it, or the processor.";

static AMOUNTS: [Key; 4] = [
    key("cpu", Kind::Amount(Resource::Cpu), "", "1.5", CPU_DOC),
    key("memory", Kind::Amount(Resource::Memory), "", "\"8GiB\"", MEMORY_DOC),
    key("disk", Kind::Amount(Resource::Disk), "", "\"100MB/s\"", DISK_DOC),
    key("bus", Kind::Amount(Resource::Bus), "", "\"25%\"", BUS_DOC),
];

const TICKETS_OF_ONE: Kind = Kind::Count { min: 1, max: 1_000_000 };

static COUNTS: [Key; 4] = [
    key("cpu", TICKETS_OF_ONE, "100", "1000", "For CPUs."),
    key("memory", TICKETS_OF_ONE, "100", "1375", "For memory."),
    key("disk", TICKETS_OF_ONE, "100", "1000", "For the bandwidth of each disk."),
    key("bus", TICKETS_OF_ONE, "100", "50", "For the bandwidth of the memory bus."),
];

static PERMISSIONS: [Key; 4] = [
    key(
        "cpu",
        Kind::Permission(Resource::Cpu),
        "true",
        "4",
        "Idle CPUs. Where whole CPUs are lent, the amount is rounded down to these.",
    ),
    key("memory", Kind::Permission(Resource::Memory), "true", "\"2GiB\"", "Idle memory."),
    key("disk", Kind::Permission(Resource::Disk), "true", "\"10%\"", "Idle bandwidth of each disk."),
    key("bus", Kind::Permission(Resource::Bus), "true", "false", "Idle memory-bus bandwidth."),
];

/// A unit's `tickets`, one by one.
pub(crate) static TICKETS: Table = Table { title: "`tickets`", definition: "tickets", keys: &COUNTS };

/// A unit's `hard`.
pub(crate) static HARD: Table = Table { title: "`hard`", definition: "amounts", keys: &AMOUNTS };

/// A unit's `deadline`.
pub(crate) static DEADLINE: Table = Table {
    title: "`deadline`",
    definition: "deadline",
    keys: &[
        key(
            "period",
            Kind::Duration { min_ns: 1_000_000, max_ns: 4_000_000_000 },
            "",
            "\"20ms\"",
            "Each period ends with a deadline. Required.",
        ),
        key(
            "budget",
            Kind::Duration { min_ns: 100_000, max_ns: 4_000_000_000 },
            "",
            "\"4ms\"",
            "CPU time in each period, no more than the period. Required.",
        ),
        key(
            "misses",
            Kind::Count { min: 0, max: 999 },
            "0",
            "1",
            "So many deadlines may be missed of any `of` in a row, less than `of`.",
        ),
        key(
            "of",
            Kind::Count { min: 1, max: 1_000 },
            "1",
            "10",
            "How many deadlines in a row `misses` is about.",
        ),
    ],
};

/// A unit's `limit`.
pub(crate) static LIMIT: Table = Table { title: "`limit`", definition: "amounts", keys: &AMOUNTS };

/// A unit's `lend`.
pub(crate) static LEND: Table = Table { title: "`lend`", definition: "permissions", keys: &PERMISSIONS };

/// A unit's `borrow`.
pub(crate) static BORROW: Table = Table { title: "`borrow`", definition: "permissions", keys: &PERMISSIONS };

// The tables above spell it out for editors.
const _: () = assert!(DEFAULT_TICKETS == 100);
