//! The facts that a backend observed ([`Snapshot`]), and the orders that it can enforce ([`Means`]).

mod disk;
mod foreign_groups;
mod jobs;
mod memory;
mod waits;

use alloc::vec::Vec;

use commonhold_contract::UnitId;

pub use disk::{DeviceUse, DiskFacts, DiskMeans, DiskUse};
pub use foreign_groups::{GroupBounds, GroupFacts, GroupId};
pub use jobs::{BusUse, JobFacts, JobId, Seats, SharedUse, ThreadFacts, ThreadId};
pub use memory::{Frames, MemoryFacts, MemoryMeans, UnitMemory};
pub use waits::{Occupant, WaitedFor};

use crate::time::Time;

/// The kinds of order that a backend can enforce. The policy issues no other orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means {
    /// Units can be confined to sets of CPUs.
    pub cpu_sets: bool,
    /// Units that share CPUs can be weighted (by proportional-share scheduling).
    pub weights: bool,
    /// A unit's CPU use can be capped below what its CPU set allows.
    pub caps: bool,
    /// A unit can be stopped and continued as a whole.
    pub gates: bool,
    /// The project's own scheduler decides at every switch. It keeps units on the CPUs that they own, lends
    /// idle CPUs and calls them back, and time-shares unowned CPUs by weight. So the policy plans ownership,
    /// but no loans or CPU sets.
    pub switches: bool,
    /// How the threads of jobs can be placed.
    pub seats: Seats,
    /// All threads of a job can be stopped and continued together.
    pub gangs: bool,
    /// The processor's throttling of a unit's memory bandwidth; `None`: not supported.
    pub throttle: Option<Throttle>,
    /// A job's pages can be migrated between nodes.
    pub brings: bool,
    /// Units' limits can be applied in the control groups of other programs, where their processes are.
    pub foreign_groups: bool,
    /// Orders for disks.
    pub disk: DiskMeans,
    /// Orders for memory.
    pub memory: MemoryMeans,
}

impl Means {
    /// No means at all; a base for others.
    pub const NONE: Means = Means {
        cpu_sets: false,
        weights: false,
        caps: false,
        gates: false,
        switches: false,
        seats: Seats::None,
        gangs: false,
        throttle: None,
        brings: false,
        foreign_groups: false,
        disk: DiskMeans::NONE,
        memory: MemoryMeans::NONE,
    };
}

/// A processor's throttling of a unit's memory bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// The smallest setting, in percent: 1 to 100.
    pub least: u32,
    /// The step between settings, in percentage points: 1 to 100.
    pub step: u32,
}

/// A unit at one sample, sub-units excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitFacts {
    /// When it was sampled, on the backend's clock; older than the snapshot for units that are not watched.
    pub at: Time,
    /// Number of member processes.
    pub processes: u32,
    /// The number of these processes that stay in other programs' control groups, outside the unit's limits.
    pub outside: u32,
    /// Threads that want a CPU now: running, runnable, or stopped by a gate while runnable.
    pub runnable: u32,
    /// CPU time of its members since the backend started, in nanoseconds. Monotone.
    pub used_ns: u64,
    /// Time that its threads were runnable without a CPU since the backend started, in nanoseconds; 0 if the
    /// kernel does not report it. Monotone.
    pub waited_ns: u64,
    /// Time for which the unit's limit on CPU time kept its runnable threads, and those of its sub-units,
    /// from running since the backend started, summed over CPUs, in nanoseconds; 0 if the backend does not
    /// report it. Monotone.
    pub limited_ns: u64,
    /// The unit's loans made at switches, which no plan contains.
    pub loans: SwitchLoans,
    /// Its memory bus transfers, if the machine reports them by unit.
    pub bus: Option<BusUse>,
}

/// A unit's loans made at switches by a scheduler that lends by itself ([`Means::switches`]), since the
/// backend started. All 0 if plans make the loans. Monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SwitchLoans {
    /// CPU time of other units on its home CPUs, in nanoseconds.
    pub lent_ns: u64,
    /// Its own CPU time on others' home CPUs, in nanoseconds.
    pub borrowed_ns: u64,
    /// The number of call-backs.
    pub called_back: u64,
    /// The sum of all call-backs' durations, in nanoseconds.
    pub call_back_sum_ns: u64,
    /// The longest call-back, in nanoseconds.
    pub call_back_max_ns: u64,
    /// The number of call-backs that took longer than the contract promises. A scheduler that only counts
    /// them by classes of duration leaves out those less than twice as long as promised.
    pub late: u64,
}

/// The loans made at switches by a scheduler that lends by itself ([`Means::switches`]), by pairs of units.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoansByPair {
    /// When they were sampled, on the backend's clock; 0 if they were not.
    pub at: Time,
    /// By ascending lender and borrower.
    pub lent: Vec<LentTo>,
}

/// The loans from one unit to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentTo {
    /// The unit that owned the CPUs.
    pub lender: UnitId,
    /// The unit that used them, sub-units excluded.
    pub borrower: UnitId,
    /// CPU time since the backend started, in nanoseconds. Monotone.
    pub ns: u64,
}

/// The facts that a backend observed at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// When it was taken, on the backend's clock.
    pub at: Time,
    /// Indexed by [`UnitId::index`](commonhold_contract::UnitId::index); units of the contract beyond its end
    /// count as empty.
    pub units: Vec<UnitFacts>,
    /// What had the CPU while units' tasks waited for it, by ascending waiter and occupant; empty if the
    /// backend does not count it, or not at present. A wait counts when it ends. From one snapshot that lists
    /// a waiter to the next one in succession, the sum over its occupants grows by as much as its `waited_ns`
    /// ([`UnitFacts`]): live, both are up to a second old.
    pub waited_for: Vec<WaitedFor>,
    /// Loans made at switches, live up to a second old; not sampled if plans make the loans, or if the
    /// backend does not count them by pairs.
    pub loans: LoansByPair,
    /// Idle CPU time of all CPUs since the backend started, in nanoseconds.
    pub idle_ns: u64,
    /// How long CPUs were online, summed over all CPUs since the backend started, in nanoseconds. `None`: the
    /// backend does not count it, and the machine's CPUs count as online since the previous snapshot.
    pub online_ns: Option<u64>,
    /// Disks sampled, in any order; empty if nothing can be ordered for disks.
    pub disks: Vec<DiskFacts>,
    /// Jobs, if their threads can be placed; by ascending number.
    pub jobs: Vec<JobFacts>,
    /// The foreign groups in which units are held, by ascending number.
    pub foreign_groups: Vec<GroupFacts>,
    /// Memory; `None` if it was not sampled this time, or is not controlled.
    pub memory: Option<MemoryFacts>,
    /// CPU time of a turn of the loop, in nanoseconds; 0 in a simulation.
    pub look_ns: u64,
}

impl Snapshot {
    /// The facts of a unit; all 0 for one that the backend does not know.
    pub fn unit(&self, unit: UnitId) -> UnitFacts {
        self.units.get(unit.index()).copied().unwrap_or_default()
    }
}
