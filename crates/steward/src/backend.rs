//! The seam between policies and machines.

use std::collections::BTreeSet;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::{Means, Plan, Snapshot, Time};

/// The one seam between policies and machines, live or simulated.
///
/// A turn calls [`Backend::settle_members`], then [`Backend::observe`], then [`Backend::apply`] with the plan made from the
/// snapshot. Only the first and the last write to the machine.
pub trait Backend {
    /// What can go wrong on the machine.
    type Error;

    /// The orders that the backend can enforce.
    fn means(&self) -> Means;

    /// The backend's monotonic clock, in nanoseconds.
    fn now(&self) -> Time;

    /// Finds the processes that came, exited or changed their unit since the last call, and brings them under the orders in
    /// force: moves, confines and stops them. A process that forks while this runs may be found by the next call only.
    ///
    /// Where a process needs a unit that `each` has not made yet, or such a unit has ended, the backend changes `contract`,
    /// follows the change, and returns true. Members belong elsewhere then, so the caller calls again. `free` has the
    /// vacant unit numbers that a new unit may take.
    ///
    /// An error ends the turn. Processes settled before it stay settled; the next call finds the rest.
    fn settle_members(
        &mut self,
        now: Time,
        contract: &mut Contract,
        free: &BTreeSet<UnitId>,
    ) -> Result<bool, Self::Error>;

    /// The state of the machine at `now`, the time of the last [`Backend::settle_members`]. Only reads. Facts about the units
    /// in `watch` are fresh; those about other units may be up to 100 ms old.
    fn observe(&mut self, now: Time, watch: &[UnitId]) -> Result<Snapshot, Self::Error>;

    /// Carries out a plan's orders, in order, and makes no choices. A failed order does not stop those after it; all failures
    /// are returned. A process that has exited is not a failure.
    fn apply(&mut self, plan: &Plan) -> Vec<Self::Error>;

    /// Failures in settling and observing since the last call.
    fn take_problems(&mut self) -> Vec<Self::Error> {
        Vec::new()
    }
}
