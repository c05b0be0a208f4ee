//! Every key of a contract, once. The parser refuses a key that is not here, and the schema for editors is made from
//! it.

use crate::document::{self, key};
use crate::model::{DEFAULT_TICKETS, Resource};

/// The version of the contract's language that this program reads.
pub(crate) const VERSION: u64 = 1;

/// Units that a contract may declare, at most: so that a runaway generator is told, rather than the machine filled.
pub(crate) const UNITS_MAX: usize = 100_000;

/// How deep units may nest.
pub(crate) const DEPTH_MAX: usize = 16;

/// Entries that one unit's `members` may have: positions in it are kept in 16 bits.
pub(crate) const MEMBERS_MAX: usize = 65_535;

/// Characters that a unit's name may have.
pub(crate) const NAME_CHARS_MAX: usize = 64;

/// Names that units may not take: the built-in units, and the leaf cgroup of a unit that has sub-units.
pub(crate) const RESERVED_NAMES: [&str; 3] = ["kernel", "shared", "own"];

/// The largest process number of a 64-bit kernel: `PID_MAX_LIMIT` in include/linux/threads.h.
pub(crate) const PID_MAX: u32 = 4_194_304;

/// What a key's value is.
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
    /// A quantity of a resource, as an absolute amount or as a part.
    Amount(Resource),
    /// A length of time from `min_ns` to `max_ns`.
    Duration { min_ns: u64, max_ns: u64 },
    /// The path of a unit: `physics/night-batch`.
    UnitPath,
    /// Yes or no.
    Switch,
    /// One switch for all, or a table of switches with these keys.
    Switches(&'static Table),
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
            "The units by name. A unit is a group of processes, with what it holds.",
        ),
    ],
};

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
            "How CPU is divided: home CPUs per unit (partition), every CPU time-shared (proportional), or partition \
             while there are no more units than CPUs (auto).",
        ),
        key(
            "scheme",
            Kind::Choice(&["isolate", "quota", "smp"]),
            "\"isolate\"",
            "\"quota\"",
            "Isolation and sharing (isolate), isolation without sharing (quota), or accounts only (smp).",
        ),
        key(
            "reserve",
            Kind::Amount(Resource::Memory),
            "\"8%\"",
            "\"512MiB\"",
            "Memory kept free so that a memory loan can be called back quickly.",
        ),
        key(
            "rotation",
            Kind::Duration { min_ns: 10_000_000, max_ns: 10_000_000_000 },
            "\"250ms\"",
            "\"100ms\"",
            "How often a CPU that several units hold in part changes its owner, 10 ms to 10 s.",
        ),
        key(
            "call-back",
            Kind::Duration { min_ns: 1_000_000, max_ns: 1_000_000_000 },
            "\"10ms\"",
            "\"20ms\"",
            "The longest that a lender may wait for a CPU it lent, 1 ms to 1 s.",
        ),
        key(
            "call-back-memory",
            Kind::Duration { min_ns: 100_000_000, max_ns: 60_000_000_000 },
            "\"1s\"",
            "\"500ms\"",
            "The longest that calling back a loan of memory may take, 100 ms to 1 min. No loan is made that would \
             take longer, at the pace of taking memory so far.",
        ),
        key(
            "default",
            Kind::UnitPath,
            "\"shared\"",
            "\"physics\"",
            "The path of the unit for processes that match no unit's members.",
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
            "The processes that belong to it: group:, user:, command:, cgroup: or pid:. In a sub-unit, these select \
             among the members of the enclosing unit. The most specific match wins. With an empty list, processes enter by `commonhold exec` alone.",
        ),
        key(
            "each",
            Kind::Choice(&["user"]),
            "",
            "\"user\"",
            "Every user among its members gets a sub-unit of its own, in equal parts.",
        ),
        key(
            "tickets",
            Kind::Count { min: 1, max: 1_000_000 },
            "100",
            "200",
            "Its share against its siblings, for every resource.",
        ),
        key(
            "hard",
            Kind::Table(&HARD),
            "{}",
            "{ cpu = \"2\" }",
            "Absolute reservations, before anything is shared by tickets.",
        ),
        key(
            "limit",
            Kind::Table(&LIMIT),
            "{}",
            "{ memory = \"32GiB\" }",
            "What it never exceeds, even while more is idle.",
        ),
        key("lend", Kind::Switches(&LEND), "true", "false", "Whether its idle resources may be lent."),
        key(
            "borrow",
            Kind::Switches(&BORROW),
            "true",
            "{ disk = false }",
            "Whether it may use what others lend.",
        ),
        key(
            "unit",
            Kind::Units,
            "",
            "{ batch = {} }",
            "Its sub-units by name. They divide what it holds, by their own tickets.",
        ),
    ],
};

const CPU_DOC: &str = "CPUs, as a number (1.5) or as a part (\"25%\").";
const MEMORY_DOC: &str = "Memory: \"8GiB\" or a part (\"25%\").";
const DISK_DOC: &str = "Bandwidth of each disk: \"100MB/s\" or a part (\"25%\").";
const BUS_DOC: &str = "Bandwidth of the memory bus: \"2GiB/s\" or a part (\"25%\").";

static AMOUNTS: [Key; 4] = [
    key("cpu", Kind::Amount(Resource::Cpu), "", "1.5", CPU_DOC),
    key("memory", Kind::Amount(Resource::Memory), "", "\"8GiB\"", MEMORY_DOC),
    key("disk", Kind::Amount(Resource::Disk), "", "\"100MB/s\"", DISK_DOC),
    key("bus", Kind::Amount(Resource::Bus), "", "\"25%\"", BUS_DOC),
];

static SWITCHES: [Key; 4] = [
    key("cpu", Kind::Switch, "true", "false", "Idle CPUs."),
    key("memory", Kind::Switch, "true", "false", "Idle memory."),
    key("disk", Kind::Switch, "true", "false", "Idle disk bandwidth."),
    key("bus", Kind::Switch, "true", "false", "Idle memory-bus bandwidth."),
];

/// A unit's `hard`.
pub(crate) static HARD: Table = Table { title: "`hard`", definition: "amounts", keys: &AMOUNTS };

/// A unit's `limit`.
pub(crate) static LIMIT: Table = Table { title: "`limit`", definition: "amounts", keys: &AMOUNTS };

/// A unit's `lend`.
pub(crate) static LEND: Table = Table { title: "`lend`", definition: "switches", keys: &SWITCHES };

/// A unit's `borrow`.
pub(crate) static BORROW: Table = Table { title: "`borrow`", definition: "switches", keys: &SWITCHES };

// The table above spells it out for editors.
const _: () = assert!(DEFAULT_TICKETS == 100);

/// Prefixes, up to the first dot, that the kernel gives to its own files in a cgroup's folder: a unit of that name could
/// not have a cgroup (Documentation/admin-guide/cgroup-v2.rst, "Avoid Name Collisions").
pub(crate) const KERNEL_PREFIXES: [&str; 11] =
    ["cgroup", "cpu", "cpuset", "memory", "io", "irq", "pids", "rdma", "hugetlb", "misc", "dmem"];
