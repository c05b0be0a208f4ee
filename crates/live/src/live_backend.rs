//! The interface of a live backend to the daemon. It extends [`Backend`], which simulated backends have as
//! well, by members that enter by `exec`, reloads, accounts and shutdown.

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};

use commonhold_contract::{Contract, UnitId};
use commonhold_dispatch::Account;
use commonhold_policy::Time;

use crate::apply::kernel::UnitCounters;
use crate::observe::arena::NotJoined;
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Roster, Seen};
use crate::undo::journal::Journal;
use crate::{Backend, LiveError};

/// The backend that enforces a contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveBackend {
    /// `kernel`, `cgroup` or `user`.
    pub name: &'static str,
    /// The requested backend, if this one is its fallback.
    pub fallback_from: Option<Unavailable>,
}

/// A requested backend that does not enforce the contract at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// Its name.
    pub name: &'static str,
    /// Since when, on the backend's clock.
    pub since: Time,
    /// Why.
    pub why: String,
}

/// A backend on a live machine.
pub trait LiveBackend: Backend<Error = LiveError> {
    /// Switches to another contract, after a reload or because `each` added or removed units. Orders on units
    /// that stay ([`Contract::adopt`] keeps their identities) remain in force. The next
    /// [`Backend::settle_members`] moves processes.
    fn set_contract(&mut self, contract: &Contract);

    /// Failures that persist. The daemon reports each of them when it begins and when it ends.
    fn standing(&self) -> Vec<&LiveError> {
        Vec::new()
    }

    /// The unit of each process.
    fn roster(&self) -> &Roster;

    /// The mutable roster, to record a process that enters a unit by `exec`.
    fn roster_mut(&mut self) -> &mut Roster;

    /// Gives a user's process an arena page in which the process reports its memory bus transfers. Returns
    /// the page's descriptor and the reporting period in nanoseconds; `None` if the contract has no gangs.
    fn join(&mut self, key: ProcessKey, user: u32) -> Option<Result<(OwnedFd, u64), NotJoined>>;

    /// The backend that enforces the contract now.
    fn active(&self) -> ActiveBackend;

    /// The counters of a unit, without its sub-units, in all `sched_ext` schedulers of ours since the backend
    /// began; `None` for a backend without such a scheduler.
    fn unit_counters(&self, _: UnitId) -> Option<UnitCounters> {
        None
    }

    /// A unit's account on each CPU, indexed by CPU number; [`LiveBackend::unit_counters`] has the sums.
    fn accounts(&self, _: UnitId) -> Vec<Account> {
        Vec::new()
    }

    /// A descriptor that becomes readable when the loop must run before the plan's `next` time, because a
    /// unit has reached its memory bound. `None` if the backend has no such event.
    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Drains [`LiveBackend::alarm`], which is level-triggered.
    fn drain_alarm(&mut self) {}

    /// Ends the backend. The caretaker undoes what the journal has.
    fn into_journal(self: Box<Self>) -> Journal;
}

/// Adapts the contract to `each`, as the last stage of [`Backend::settle_members`] on a live machine: adds
/// sub-units for users and control groups that appeared, and removes sub-units whose control groups have
/// ended. Returns whether the contract changed. Newcomers may reuse the unit ids in `free`.
pub(crate) fn follow_each(
    backend: &mut impl LiveBackend,
    seen: &Seen,
    contract: &mut Contract,
    free: &BTreeSet<UnitId>,
) -> bool {
    let has_added_units = contract.welcome(&seen.newcomers, free);
    let has_changed_cpus = contract.give_cpus(&seen.cpus);
    let changed = contract.dismiss(&seen.gone) || has_added_units || has_changed_cpus;
    if changed {
        backend.set_contract(contract);
    }
    changed
}

/// The error for an order outside the backend's means. Ignoring it would leave the contract unenforced
/// without notice.
pub(crate) fn cannot(what: &str) -> LiveError {
    LiveError::Unavailable {
        what: format!("a plan orders to {what}, which this backend cannot"),
        remedy: "this is a fault of the program: please report it".to_owned(),
    }
}
