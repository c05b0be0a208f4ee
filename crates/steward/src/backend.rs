//! The interface between the policy and a machine: the trait [`Backend`].

use std::collections::BTreeSet;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::{Means, Plan, Snapshot, Time};

/// A machine, live or simulated, as the loop sees it.
///
/// A turn calls [`Backend::settle_members`], then [`Backend::observe`], then [`Backend::apply`] with the plan
/// made from the snapshot. Only `settle_members` and `apply` write to the machine.
pub trait Backend {
    /// A failure of the machine.
    type Error;

    /// The orders that the backend can enforce.
    fn means(&self) -> Means;

    /// The backend's monotonic clock, in nanoseconds.
    fn now(&self) -> Time;

    /// Finds the processes that came, exited or changed their unit since the last call. Brings them under the
    /// orders in force: moves, confines and stops them. A process that is forked during the call may be found
    /// only by the next call.
    ///
    /// If a process needs a unit that `each` has not made yet, or if a unit made by `each` has ended, the
    /// backend changes `contract`, adopts the changed contract, and returns true. Some members then belong to
    /// other units, so the caller calls again. `free` has the vacant unit numbers that a new unit may take.
    ///
    /// An error ends the turn. Processes brought under the orders before the error stay under them; the next
    /// call finds the other processes.
    fn settle_members(
        &mut self,
        now: Time,
        contract: &mut Contract,
        free: &BTreeSet<UnitId>,
    ) -> Result<bool, Self::Error>;

    /// Reads the state of the machine at `now`, the time of the last [`Backend::settle_members`], and changes
    /// nothing. Facts about the units in `watch` are fresh; facts about other units may be up to 100 ms old.
    fn observe(&mut self, now: Time, watch: &[UnitId]) -> Result<Snapshot, Self::Error>;

    /// Carries out a plan's orders in the plan's order, and makes no choices. If an order fails, the
    /// following orders are still carried out; all failures are returned. That a process has exited meanwhile
    /// is not a failure.
    fn apply(&mut self, plan: &Plan) -> Vec<Self::Error>;

    /// Returns the failures in [`Backend::settle_members`] and [`Backend::observe`] since the last call of
    /// this function.
    fn take_problems(&mut self) -> Vec<Self::Error> {
        Vec::new()
    }
}
