//! The seam between policies and machines.

use std::collections::BTreeSet;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::{Means, Plan, Snapshot, Time};

/// The one seam between policies and machines: a live machine and a simulated one look alike from above.
pub trait Backend {
    /// What can go wrong on it.
    type Error;

    /// What it can enforce.
    fn means(&self) -> Means;

    /// Its clock, in nanoseconds.
    fn now(&self) -> Time;

    /// What is happening at `now`. Facts of the units that the plan's `watch` names are fresh; those of others may be up to
    /// 100 ms old. Also finds new processes and puts them where they belong, under the orders in force.
    fn observe(&mut self, now: Time, watch: &[UnitId]) -> Result<Snapshot, Self::Error>;

    /// Whether processes were seen that the contract gives a unit of their own (`each`), and it has none yet, or such units
    /// are over: the contract is changed then, and the machine is to be looked at again. `free`: vacant places that may be taken.
    fn newcomers(&mut self, _contract: &mut Contract, _free: &BTreeSet<UnitId>) -> bool {
        false
    }

    /// Carries out a plan's orders, in order, without any choice of its own. What fails is returned and the rest is done; a
    /// process that exited meanwhile is not a failure.
    fn apply(&mut self, plan: &Plan) -> Vec<Self::Error>;

    /// What went wrong in observing since the last call.
    fn take_problems(&mut self) -> Vec<Self::Error> {
        Vec::new()
    }
}
