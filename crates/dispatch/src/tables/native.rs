//! The tables of the native build alone: those that the scheduler shares with a simulated machine, and with
//! the test of its decision at exec. `build.rs` generates their C definitions. The kernel's build has the
//! kernel's own `struct task_struct`.

use super::exec::Match;
use super::{Account, Cpu, History, Occupancy, Own, Pairs, Rescues, Rules, Unit};

/// The part of a task that `sched_ext` shares with a scheduler.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Entity {
    /// The rest of its slice, in ns.
    pub(crate) slice: u64,
    /// `SCX_TASK_QUEUED`: runnable.
    pub(crate) flags: u32,
    pub(crate) weight: u32,
}

/// A task, as the kernel represents it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Task {
    pub(crate) scx: Entity,
    pub(crate) own: Own,
    /// The simulator's number for it.
    pub(crate) id: u32,
    /// The CPU that it runs on, or ran on last.
    pub(crate) cpu: u32,
    pub(crate) nr_cpus_allowed: i32,
    pub(crate) unused: u32,
    /// Its affinity: a bit mask of CPUs in words of 64 bits; null: any CPU.
    pub(crate) allowed: *const u64,
}

/// One simulated machine's tables.
#[repr(C)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    /// The simulated clock, in ns.
    pub(crate) now: u64,
    /// The clock of the outermost units on time-shared CPUs.
    pub(crate) pass: u64,
    pub(crate) rescues: Rescues,
    /// The clock of borrowers.
    pub(crate) loan_pass: u64,
    pub(crate) units: *mut Unit,
    /// One per unit, for all CPUs: the simulation is sequential, so CPUs do not write concurrently.
    pub(crate) accounts: *mut Account,
    pub(crate) cpus: *mut Cpu,
    /// One per CPU.
    pub(crate) histories: *mut History,
    /// Per CPU, one for each unit and one for higher classes.
    pub(crate) occupancies: *mut Occupancy,
    /// One per CPU.
    pub(crate) pairs: *mut Pairs,
    /// The idle CPUs: a bit mask in words of 64 bits.
    pub(crate) idle: *mut u64,
    /// Two masks of CPUs per unit, then two of the machine: `enum mask` in `world.h`.
    pub(crate) masks: *mut u64,
    /// The masks of the groups of near CPUs, by number of the group.
    pub(crate) groups: *mut u64,
    /// The number of tasks in each unit's queue.
    pub(crate) queued: *mut u32,
    /// The number of tasks that wait, first by unit, then by block of units.
    pub(crate) waits: *mut u32,
    /// The number of 64-bit words of a mask.
    pub(crate) words: u32,
    /// The number of idle CPUs. It is usually 0, which saves the search of the mask.
    pub(crate) idling: u32,
    /// The calling CPU if it is known, or [`NOBODY`](super::NOBODY).
    pub(crate) here: u32,
    /// 1: units may have disciplines other than stride.
    pub(crate) disciplined: u32,
    /// 1: tasks may have seats.
    pub(crate) seated: u32,
    /// The number of CPUs that run tasks with seats in other pools.
    pub(crate) away: u32,
    /// 1: there may be gangs.
    pub(crate) gated: u32,
    pub(crate) unused: u32,
    /// By gang; 1: its gate is shut.
    pub(crate) gates: *mut u32,
    /// The state of the random number generator, never 0.
    pub(crate) random: u64,
}

/// The input of one decision at exec, for the test that compares it with the policy's.
#[repr(C)]
pub(crate) struct Case {
    pub(crate) matches: *const Match,
    /// The parent of each unit, or [`NOBODY`](super::NOBODY).
    pub(crate) parents: *const u32,
    /// All groups of the process.
    pub(crate) groups: *const u32,
    pub(crate) matches_count: u32,
    pub(crate) units: u32,
    pub(crate) groups_count: u32,
    /// The unit of the process's control group.
    pub(crate) base: u32,
}
