//! What had the CPU while units' tasks waited for it.

use commonhold_contract::UnitId;

/// The time for which a unit's own tasks, sub-units excluded, waited for the CPU on which they then ran,
/// while `occupant` had that CPU. Since the backend started, in nanoseconds. Monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitedFor {
    /// The unit whose tasks waited.
    pub waiter: UnitId,
    /// What had the CPU.
    pub occupant: Occupant,
    /// The sum over all tasks.
    pub ns: u64,
}

/// What had a CPU for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occupant {
    /// A task of this unit, which may be the waiter itself, or a built-in unit.
    Unit(UnitId),
    /// A task of a higher scheduling class: real-time, deadline or stop.
    HigherClass,
    /// No task: the CPU was idle, or switched.
    Idle,
    /// Not known: the wait was longer than the scheduler's record of the CPU.
    Unknown,
}
