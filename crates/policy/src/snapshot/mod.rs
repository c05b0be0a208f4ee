//! What a backend observed, and what it can enforce.

mod disk;
mod foreign_groups;
mod jobs;
mod memory;

use alloc::vec::Vec;

use commonhold_contract::UnitId;

pub use disk::{DeviceUse, DiskFacts, DiskMeans, DiskUse};
pub use foreign_groups::{GroupBounds, GroupFacts, GroupId};
pub use jobs::{BusUse, JobFacts, JobId, Seats, SharedUse, ThreadFacts, ThreadId};
pub use memory::{Frames, MemoryFacts, MemoryMeans, UnitMemory};

use crate::time::Time;

/// What a backend can enforce. The policy plans only what the backend can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means {
    /// Units can be confined to sets of CPUs.
    pub cpu_sets: bool,
    /// Units that share CPUs can be given weights (a proportional-share scheduler underneath).
    pub weights: bool,
    /// A unit's CPU use can be capped below what its CPU set allows.
    pub caps: bool,
    /// A unit can be stopped and continued as a whole.
    pub gates: bool,
    /// The project's own scheduler decides at every switch, unit by unit: it keeps units to the CPUs that they own,
    /// lends idle ones and calls them back by itself, and time-shares CPUs that no unit owns by weight. The policy then
    /// says which unit owns what, and plans neither loans nor CPU sets.
    pub switches: bool,
    /// What can be ordered of where the threads of jobs run.
    pub seats: Seats,
    /// The threads of a job can be stopped and continued, all at once.
    pub gangs: bool,
    /// How the processor slows down what a unit transfers over the memory bus; `None`: it cannot.
    pub throttle: Option<Throttle>,
    /// A job's pages can be moved from node to node.
    pub brings: bool,
    /// Units can be held in control groups of other programs, where their processes are.
    pub foreign_groups: bool,
    /// What can be ordered for disks.
    pub disk: DiskMeans,
    /// What it can enforce for memory.
    pub memory: MemoryMeans,
}

impl Means {
    /// Nothing can be held: what others' means are made from that have only some.
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

/// How a processor slows down what a unit transfers over the memory bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// The least that it gives, in percent: 1 to 100.
    pub least: u32,
    /// The percentages in between are so far apart: 1 to 100.
    pub step: u32,
}

/// One unit at one moment. Processes of sub-units are counted in the sub-unit alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitFacts {
    /// When these facts were read, on the backend's clock: older than the snapshot for units that were not watched.
    pub at: Time,
    /// Member processes that exist.
    pub processes: u32,
    /// Of these, the processes that stay in the control groups of other programs: what holds the unit does not hold them.
    pub outside: u32,
    /// Threads that want a CPU now: running, runnable, or stopped by a gate while they were.
    pub runnable: u32,
    /// CPU time its members used since the backend began, in nanoseconds. Never goes back.
    pub used_ns: u64,
    /// Time its members' threads spent runnable without a CPU since the backend began, in nanoseconds, where the kernel
    /// tells. Never goes back.
    pub waited_ns: u64,
    /// Loans that no plan knows of, because they are made at every switch.
    pub loans: SwitchLoans,
    /// What it transferred over the memory bus, where the machine tells it unit by unit.
    pub bus: Option<BusUse>,
}

/// What a unit lent and borrowed by itself where the scheduler underneath lends at every switch ([`Means::switches`]), since
/// the backend began. All nothing where plans make the loans. Never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SwitchLoans {
    /// CPU time of others on its home CPUs, in nanoseconds.
    pub lent_ns: u64,
    /// CPU time of its own on others' home CPUs, in nanoseconds.
    pub borrowed_ns: u64,
    /// CPUs that it called back.
    pub called_back: u64,
    /// The times that this took, summed, in nanoseconds.
    pub call_back_sum_ns: u64,
    /// The longest of them.
    pub call_back_max_ns: u64,
}

/// What the backend observed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// When, on the backend's clock.
    pub at: Time,
    /// One per unit of the contract, by [`UnitId::index`](commonhold_contract::UnitId::index). Units that the contract
    /// has and this list has not are taken as empty.
    pub units: Vec<UnitFacts>,
    /// Idle CPU time since the backend began, summed over the machine's CPUs, in nanoseconds.
    pub idle_ns: u64,
    /// The disks that were observed, in any order; none where nothing of them can be ordered.
    pub disks: Vec<DiskFacts>,
    /// The jobs of units that have some, where their threads can be placed; by ascending number.
    pub jobs: Vec<JobFacts>,
    /// The foreign groups in which units are held, by ascending number.
    pub foreign_groups: Vec<GroupFacts>,
    /// Memory, where it was looked at; `None` where it was not, or is not held.
    pub memory: Option<MemoryFacts>,
    /// CPU time that a look takes, with all that follows from it, in nanoseconds; 0 where it takes none.
    pub look_ns: u64,
}

impl Snapshot {
    /// The facts of a unit; nothing at all if the backend does not know it.
    pub fn unit(&self, unit: UnitId) -> UnitFacts {
        self.units.get(unit.index()).copied().unwrap_or_default()
    }
}
