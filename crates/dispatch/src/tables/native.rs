//! What the scheduler shares with a simulated machine, and with the test of its decision at exec. Described here as the
//! tables are, for the native build alone: the kernel has a `struct task_struct` of its own.

use super::exec::Match;
use super::{Account, Cpu, Own, Rescues, Rules, Unit};

/// The part of a task that `sched_ext` shares with a scheduler.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Entity {
    /// For how long it may still run, in ns.
    pub(crate) slice: u64,
    /// `SCX_TASK_QUEUED`: runnable.
    pub(crate) flags: u32,
    pub(crate) weight: u32,
}

/// A task: the kernel's side of it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Task {
    pub(crate) scx: Entity,
    pub(crate) own: Own,
    /// The simulator's number for it.
    pub(crate) id: u32,
    /// Where it runs, or ran last.
    pub(crate) cpu: u32,
    pub(crate) nr_cpus_allowed: i32,
    pub(crate) unused: u32,
    /// Its affinity, a word per 64 CPUs; null: any CPU.
    pub(crate) allowed: *const u64,
}

/// One simulated machine's tables.
#[repr(C)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    /// The simulated clock, in ns.
    pub(crate) now: u64,
    /// How far the time-shared CPUs are.
    pub(crate) pass: u64,
    pub(crate) rescues: Rescues,
    /// How far those are that borrow.
    pub(crate) loan_pass: u64,
    pub(crate) units: *mut Unit,
    /// A unit has one for all CPUs: here they do not write at the same time.
    pub(crate) accounts: *mut Account,
    pub(crate) cpus: *mut Cpu,
    /// The kernel's idle CPUs, a word per 64.
    pub(crate) idle: *mut u64,
    /// Two masks per unit, two of the machine.
    pub(crate) masks: *mut u64,
    /// CPUs near each other, by number of the group.
    pub(crate) groups: *mut u64,
    /// Tasks in each unit's queue.
    pub(crate) queued: *mut u32,
    /// Tasks that wait, by unit, then by block of units.
    pub(crate) waits: *mut u32,
    /// Words of a mask.
    pub(crate) words: u32,
    /// How many CPUs are idle: mostly none, and then none need be searched.
    pub(crate) idling: u32,
    /// The calling CPU if it is known, or [`NOBODY`](super::NOBODY).
    pub(crate) here: u32,
    /// 1: a unit may have another discipline than stride.
    pub(crate) disciplined: u32,
    /// 1: tasks may have seats.
    pub(crate) seated: u32,
    /// CPUs whose tasks have their seats elsewhere.
    pub(crate) away: u32,
    /// 1: there may be gangs.
    pub(crate) gated: u32,
    pub(crate) unused: u32,
    /// By gang, 1: it is shut.
    pub(crate) gates: *mut u32,
    /// The last number drawn, never 0.
    pub(crate) random: u64,
}

/// A decision at exec that a test asks for.
#[repr(C)]
pub(crate) struct Case {
    pub(crate) matches: *const Match,
    /// The unit around each, or [`NOBODY`](super::NOBODY).
    pub(crate) parents: *const u32,
    /// All groups of the process.
    pub(crate) groups: *const u32,
    pub(crate) matches_count: u32,
    pub(crate) units: u32,
    pub(crate) groups_count: u32,
    /// The unit of its control group.
    pub(crate) base: u32,
}
