//! The table of all keys that a contract may have. The parser refuses any other key. The schema for editors,
//! the tables of `docs/contract-reference.md` and many remedies are generated from this table, so its texts
//! are written for users.

use crate::document::{self, key};
use crate::jobs::{GANG_WINDOW_MAX, POOL_CPUS_MAX};
use crate::resource::{DEFAULT_TICKETS, Resource};

/// The version of the contract's language that this program reads.
pub(crate) const VERSION: u64 = 1;

/// The most units that a contract may declare. The text of a runaway generator then gives an error, and does
/// not fill the memory.
pub(crate) const UNITS_MAX: usize = 100_000;

/// The most levels of nested units.
pub(crate) const DEPTH_MAX: usize = 16;

/// The most entries of one unit's `members`: an entry's position is stored in 16 bits elsewhere.
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
    /// An amount of a resource: absolute, or a percentage.
    Amount(Resource),
    /// A percentage, up to 100 %.
    Part,
    /// A length of time from `min_ns` to `max_ns`.
    Duration { min_ns: u64, max_ns: u64 },
    /// The path of a unit: `physics/night-batch`.
    UnitPath,
    /// One number for all resources, or a table of numbers with these keys.
    Counts(&'static Table),
    /// A boolean, or an amount of a resource: absolute, or a percentage.
    Permission(Resource),
    /// A boolean for all resources, or a table of permissions with these keys.
    Permissions(&'static Table),
    /// One of these words, or a whole number from `min` to `max`.
    WordOrCount { words: &'static [&'static str], min: u64, max: u64 },
    /// A boolean.
    Flag,
}

pub(crate) type Key = document::Key<Kind>;
pub(crate) type Table = document::Table<Kind>;

/// The keys at the top level.
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
const CALL_BACK_IDLE_DOC: &str = "Returning a loan of memory may take this fraction of the time that its owner left \
     it idle, if that is longer than `call-back-memory`. With `10%`, memory that was idle for a minute is returned \
     within 6 s. `0%`: the time does not grow.";
const CALL_BACK_MOST_DOC: &str = "The longest time to return a loan of memory, however long its owner left it idle; \
     or `call-back-memory`, if that is longer.";

const CALL_BACK_IDLE_OF_UNIT_DOC: &str = "For memory that the unit and its sub-units lend: overrides \
     `call-back-memory-idle` of `[machine]`. By default, inherited from the enclosing unit.";
const CALL_BACK_MOST_OF_UNIT_DOC: &str = "For memory that the unit and its sub-units lend: overrides \
     `call-back-memory-most` of `[machine]`. By default, inherited from the enclosing unit.";

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
            "How CPU is divided. `partition`: each unit has home CPUs. `proportional`: all CPUs are time-shared. \
             `auto`: `partition` while there are no more units than CPUs, else `proportional`.",
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
            "Memory that is never lent, so that a loan of memory can be called back quickly. A part is of the \
             machine's memory.",
        ),
        key(
            "rotation",
            Kind::Duration { min_ns: 10_000_000, max_ns: 10_000_000_000 },
            "\"250ms\"",
            "\"100ms\"",
            "The interval at which a CPU that several units hold in part changes its owner.",
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
            "The promised time to return a loan of memory that its owner left idle only briefly. Memory that was \
             idle for longer may take longer: see `call-back-memory-idle`. Loans that could not be returned in time, \
             at the rate of reclaim measured so far, are not made.",
        ),
        key(CALL_BACK_IDLE, Kind::Part, "\"10%\"", "\"0%\"", CALL_BACK_IDLE_DOC),
        key(CALL_BACK_MOST, CALL_BACK_MOST_KIND, "\"30s\"", "\"5s\"", CALL_BACK_MOST_DOC),
        key(
            "loans-remembered",
            Kind::Duration { min_ns: 0, max_ns: 604_800_000_000_000 },
            "\"10min\"",
            "\"0s\"",
            "The half-life of the record of CPU time that a unit lent and borrowed. Among units that want to borrow, \
             one that lent more comes first. `0s`: no record is kept.",
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
            "How CPUs are grouped into pools, in which units have home CPUs and jobs are placed. `auto`: at a level \
             that suits the machine; `commonhold doctor` shows which. `cache`, `node`, `socket`: a pool for each. \
             `machine`: one pool. A number: pools of that many CPUs, whatever the topology, for experiments.",
        ),
        key(
            "isolated",
            Kind::Flag,
            "false",
            "true",
            "Whether isolated CPUs are divided among units, too: those of `isolcpus`, of `nohz_full`, and of \
             isolated partitions of cpusets. Otherwise no unit owns or borrows any of them. Only CPUs in the \
             daemon's own affinity are divided. With `isolcpus`, add those to its affinity at its start (`taskset -c \
             LIST`, or systemd's `CPUAffinity=`).",
        ),
        key(
            "placement",
            Kind::Choice(&["worst-fit", "first-fit", "best-fit", "fewest-jobs", "near"]),
            "\"worst-fit\"",
            "\"near\"",
            "The pool that a job starts in, and expands to when its pools are full. `worst-fit`: the one with the \
             most free CPUs. `first-fit`: the first with a free CPU. `best-fit`: the one with the fewest free CPUs, \
             at least one. `fewest-jobs`: among those with a free CPU, the one with the fewest jobs. `near`: the one \
             where the thread is.",
        ),
        key(
            "repartition",
            Kind::Flag,
            "true",
            "false",
            "Whether threads of a job in several pools are brought together when there is room, and the gain exceeds \
             the cost of migration.",
        ),
        key(
            "gangs",
            Kind::Choice(&["off", "latest-quantum", "quanta-window", "demand"]),
            "\"off\"",
            "\"demand\"",
            "Whether the jobs of units with `job` are gangs: all threads of a job run in a quantum, or no thread. \
             Jobs that run together are chosen by their memory-bus bandwidth, or by the measure of `gangs-share`. \
             `latest-quantum`: in the latest quantum in which each ran. `quanta-window`: the average of the latest \
             ones. `demand`: the estimated bandwidth of each without contention.",
        ),
        key(
            "gangs-share",
            Kind::Choice(&["bus", "cache"]),
            "\"bus\"",
            "\"cache\"",
            "The measure by which gangs are chosen. `bus`: bandwidth on the memory bus. `cache`: occupancy of the \
             last-level caches, which does not support `gangs = \"demand\"`, and does not enforce amounts of the bus.",
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
            "The number of quanta in the average of `gangs = \"quanta-window\"`. Above 5, older ones have decreasing \
             weights.",
        ),
        key(
            "first-rate",
            Kind::Amount(Resource::Bus),
            "\"100%\"",
            "\"0B/s\"",
            "The assumed bandwidth of a thread of an unmeasured job. A part is of the bus, per CPU. With \
             `gangs-share = \"cache\"`, only a part of the cache, per CPU.",
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
            "The processes that belong to the unit: `group:`, `user:`, `command:`, `cgroup:` or `pid:`. In a \
             sub-unit, they select among the members of the enclosing unit. The most specific match wins. With an \
             empty list, processes enter by `commonhold exec` alone.",
        ),
        key(
            "owner",
            Kind::Owner,
            "",
            "\"user:ana\"",
            "The user, or each user of the group, that may change the tickets of the units directly in this one, and \
             transfer or offer this unit's own. Without it, the owner of the enclosing unit may change the tickets \
             in it, and its members may transfer its own. If no enclosing unit has an owner either, its members \
             govern it.",
        ),
        key(
            "each",
            Kind::Choice(&["user", "cgroup"]),
            "",
            "\"user\"",
            "`user`: every user among the members gets a sub-unit. `cgroup`: every control group directly in one \
             that a `cgroup:` rule of the unit names gets one, such as a job of Slurm's, a pod or a container. All \
             of these have equal shares, unless `each-by` is set. A control group's sub-unit is removed ten seconds \
             after its last process.",
        ),
        key(
            "each-by",
            Kind::Choice(&["cpus", "weight"]),
            "",
            "\"cpus\"",
            "With `each = \"cgroup\"`: the tickets of a sub-unit, by the settings of the group's manager. `cpus`: \
             100 for each CPU of the group, updated later unless the group is systemd's. `weight`: the group's \
             `cpu.weight` when the sub-unit is created. If it is not set, 100. Without this key, all have equal \
             shares.",
        ),
        key(
            "tickets",
            Kind::Counts(&TICKETS),
            "100",
            "200",
            "The unit's share against its siblings, after all reservations: one number for every resource, or one \
             for each.",
        ),
        key(
            "hard",
            Kind::Table(&HARD),
            "{}",
            "{ cpu = \"2\" }",
            "Reserved for the unit before tickets divide the rest. A part is of the machine, for memory of the \
             divisible amount; in a sub-unit, of the entitlement of the enclosing unit. The unit gets its share of \
             the rest as well.",
        ),
        key(
            "limit",
            Kind::Table(&LIMIT),
            "{}",
            "{ memory = \"32GiB\" }",
            "The unit never exceeds this, loans included, even if more is idle.",
        ),
        key(
            "lend",
            Kind::Permissions(&LEND),
            "true",
            "{ memory = \"2GiB\" }",
            "Whether others may use idle resources of the unit, and how much at any time. A part is of the unit's \
             entitlement. With `each`, this applies to each sub-unit.",
        ),
        key(
            "borrow",
            Kind::Permissions(&BORROW),
            "true",
            "{ disk = false }",
            "Whether the unit may use idle resources of others, and how much at any time. A part is of the same \
             whole as in `limit`: at the top level, the machine, for memory its divisible amount.",
        ),
        key(CALL_BACK_IDLE, Kind::Part, "", "\"0%\"", CALL_BACK_IDLE_OF_UNIT_DOC),
        key(CALL_BACK_MOST, CALL_BACK_MOST_KIND, "", "\"5s\"", CALL_BACK_MOST_OF_UNIT_DOC),
        key(
            "negotiate",
            Kind::Flag,
            "false",
            "true",
            "Whether exchanges of the unit's tickets with siblings that also negotiate are tried. An exchange is \
             kept while both sides make faster progress with it.",
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
             `stride`: the one with the least CPU time for its weight. `lottery`: a random one, in proportion to \
             weights. `entitlement`, `decay`: the one with the least recent usage for its weight, which decays \
             within seconds, or within minutes. `fifo`: first come, first served. `rr`: round robin. `batch`: \
             likewise, with long turns. `job-currency`: first those that used less than their allowance, which is \
             handed out by weight at intervals. `gang`: the sub-units in turn, each on all CPUs at once. `dwcs`: the \
             sub-unit with the earliest `deadline`. `smp`: all tasks are equal, in any sub-unit. `classes`: the \
             sub-unit of the highest class. A sub-unit's own discipline says its class: real time (`dwcs`, `fifo`, \
             `rr`), time share (the others), `entitlement`, `batch`, in this order.",
        ),
        key(
            "job",
            Kind::Choice(&["unit", "process", "tree", "session", "cgroup"]),
            "",
            "\"tree\"",
            "Which processes of the unit form one job: threads that belong together, and are placed near each other, \
             in one pool if they fit. `unit`: all of its own processes. `process`: each process with its threads. \
             `tree`: each child of a shell, with its descendants. `session`: the processes of one terminal or one \
             service. `cgroup`: each control group. Without it, the unit's threads are not placed.",
        ),
        key(
            "deadline",
            Kind::Table(&DEADLINE),
            "",
            "{ period = \"20ms\", budget = \"4ms\", misses = 1, of = 10 }",
            "CPU time that the unit wants if the enclosing unit has `discipline = \"dwcs\"`: `budget` before the end \
             of each `period`, except in `misses` of any `of` consecutive periods. Budgets that do not fit are \
             rejected.",
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
const BUS_DOC: &str = "Bandwidth of the memory bus: `\"2GiB/s\"` or a part (`\"25%\"`). \
     [Gangs](gangs.md#units-and-the-bus) hold it, or the processor.";

static AMOUNTS: [Key; 4] = [
    key("cpu", Kind::Amount(Resource::Cpu), "", "1.5", CPU_DOC),
    key("memory", Kind::Amount(Resource::Memory), "", "\"8GiB\"", MEMORY_DOC),
    key("disk", Kind::Amount(Resource::Disk), "", "\"100MB/s\"", DISK_DOC),
    key("bus", Kind::Amount(Resource::Bus), "", "\"25%\"", BUS_DOC),
];

/// The type of a number of tickets of one resource.
const TICKET_COUNT: Kind = Kind::Count { min: 1, max: 1_000_000 };

static COUNTS: [Key; 4] = [
    key("cpu", TICKET_COUNT, "100", "1000", "For CPUs."),
    key("memory", TICKET_COUNT, "100", "1375", "For memory."),
    key("disk", TICKET_COUNT, "100", "1000", "For the bandwidth of each disk."),
    key("bus", TICKET_COUNT, "100", "50", "For the bandwidth of the memory bus."),
];

static PERMISSIONS: [Key; 4] = [
    key(
        "cpu",
        Kind::Permission(Resource::Cpu),
        "true",
        "4",
        "Idle CPUs. Rounded down to whole CPUs where only these are lent.",
    ),
    key("memory", Kind::Permission(Resource::Memory), "true", "\"2GiB\"", "Idle memory."),
    key("disk", Kind::Permission(Resource::Disk), "true", "\"10%\"", "Idle bandwidth of each disk."),
    key("bus", Kind::Permission(Resource::Bus), "true", "false", "Idle memory-bus bandwidth."),
];

/// A unit's `tickets`, as a table by resource.
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
            "How many of any `of` consecutive deadlines may be missed; fewer than `of`.",
        ),
        key(
            "of",
            Kind::Count { min: 1, max: 1_000 },
            "1",
            "10",
            "The number of consecutive deadlines to which `misses` refers.",
        ),
    ],
};

/// A unit's `limit`.
pub(crate) static LIMIT: Table = Table { title: "`limit`", definition: "amounts", keys: &AMOUNTS };

/// A unit's `lend`.
pub(crate) static LEND: Table = Table { title: "`lend`", definition: "permissions", keys: &PERMISSIONS };

/// A unit's `borrow`.
pub(crate) static BORROW: Table = Table { title: "`borrow`", definition: "permissions", keys: &PERMISSIONS };

// The tables above have this number as text, which must be changed with it.
const _: () = assert!(DEFAULT_TICKETS == 100);
