//! The seam between policies and machines: [`Backend`].

use std::collections::BTreeSet;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::{Means, Plan, Snapshot, Time};

/// A machine, live or simulated, as the loop sees it.
///
/// A turn calls [`Backend::settle_members`], then [`Backend::observe`], then [`Backend::apply`] with the plan made from the
/// snapshot. Only `settle_members` and `apply` write to the machine.
pub trait Backend {
    /// A failure of the machine.
    type Error;

    /// The orders that the backend can enforce.
    fn means(&self) -> Means;

    /// The backend's monotonic clock, in nanoseconds.
    fn now(&self) -> Time;

    /// Finds the processes that came, exited or changed their unit since the last call, and brings them under the orders in
    /// force: moves, confines and stops them. A process that is forked meanwhile may be found by the next call only.
    ///
    /// If a process needs a unit that `each` has not made yet, or a unit made by `each` has ended, the backend changes
    /// `contract`, adopts the changed contract, and returns true. Some members then belong to other units, so the caller
    /// calls again. `free` has the vacant unit numbers that a new unit may take.
    ///
    /// An error ends the turn. Processes settled before the error stay settled; the next call finds the others.
    fn settle_members(
        &mut self,
        now: Time,
        contract: &mut Contract,
        free: &BTreeSet<UnitId>,
    ) -> Result<bool, Self::Error>;

    /// The state of the machine at `now`, the time of the last [`Backend::settle_members`]. Only reads. Facts about the units
    /// in `watch` are fresh; facts about other units may be up to 100 ms old.
    fn observe(&mut self, now: Time, watch: &[UnitId]) -> Result<Snapshot, Self::Error>;

    /// Carries out a plan's orders, in order, and makes no choices. After a failed order, the orders that follow are carried out
    /// all the same; all failures are returned. A process that has exited is not a failure.
    fn apply(&mut self, plan: &Plan) -> Vec<Self::Error>;

    /// Failures in settling and observing since the last call.
    fn take_problems(&mut self) -> Vec<Self::Error> {
        Vec::new()
    }
}
