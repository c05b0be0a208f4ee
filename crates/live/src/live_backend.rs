//! What a daemon needs of a live backend beside the seam: members that enter by `exec`, reloads, and an end.

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};

use commonhold_contract::{Contract, UnitId};
use commonhold_dispatch::Account;
use commonhold_policy::Time;

use crate::apply::kernel::Switched;
use crate::journal::{Journal, ProcessKey};
use crate::observe::arena::NotJoined;
use crate::roster::{Roster, Seen};
use crate::{Backend, LiveError};

/// What holds a contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBy {
    /// The backend in force: `kernel`, `cgroup` or `user`.
    pub backend: &'static str,
    /// The backend that it stands in for.
    pub instead: Option<Instead>,
}

/// A backend that is to hold a contract and does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instead {
    /// Its name.
    pub of: &'static str,
    /// Since when it does not, on the backend's clock.
    pub since: Time,
    /// Why.
    pub why: String,
}

/// A backend on a running machine.
pub trait LiveBackend: Backend<Error = LiveError> {
    /// Takes another contract: a reload, or sub-units that came or went ([`LiveBackend::take_seen`]). Units that stay have their identities
    /// still ([`Contract::adopt`]), and orders on them stay in force. The next [`Backend::settle_members`] puts processes where
    /// they belong now.
    fn set_contract(&mut self, contract: &Contract);

    /// What was seen since the last call of units with `each`.
    fn take_seen(&mut self) -> Seen;

    /// What is wrong now, for as long as it is: said when it begins, and shown until it is over.
    fn standing(&self) -> Vec<&LiveError> {
        Vec::new()
    }

    /// Who is in which unit.
    fn roster(&self) -> &Roster;

    /// The same, to let processes enter by `exec`.
    fn roster_mut(&mut self) -> &mut Roster;

    /// Has a process of a user tell what it transfers over the memory bus: the descriptor of its page, and how often it is to
    /// tell, in nanoseconds. Nothing where the contract has no gangs.
    fn join(&mut self, key: ProcessKey, user: u32) -> Option<Result<(OwnedFd, u64), NotJoined>>;

    /// What holds the contract now.
    fn held_by(&self) -> HeldBy;

    /// What a scheduler of the project's own counted of a unit, sub-units left out, since the backend began; nothing where
    /// there is none.
    fn switched(&self, _: UnitId) -> Option<Switched> {
        None
    }

    /// The accounts of which that is the sum, by the CPU's number.
    fn accounts(&self, _: UnitId) -> Vec<Account> {
        Vec::new()
    }

    /// Becomes readable when there is a reason to look before the plan's next: a unit meets a bound of its memory.
    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Makes [`LiveBackend::alarm`] quiet until something else happens.
    fn hear(&mut self) {}

    /// The end: what there is to undo, for the caretaker.
    fn into_journal(self: Box<Self>) -> Journal;
}

/// The last part of [`Backend::settle_members`] on a live machine: adds the sub-units that `each` asks for, and removes
/// those whose control groups have ended. Whether the contract changed.
pub(crate) fn follow_each(
    backend: &mut impl LiveBackend,
    contract: &mut Contract,
    free: &BTreeSet<UnitId>,
) -> bool {
    let seen = backend.take_seen();
    let came = contract.welcome(&seen.newcomers, free);
    let given = contract.give_cpus(&seen.cpus);
    let changed = contract.dismiss(&seen.gone) || came || given;
    if changed {
        backend.set_contract(contract);
    }
    changed
}

/// Never silently nothing: a plan was made for other means.
pub(crate) fn cannot(what: &str) -> LiveError {
    LiveError::Unavailable {
        what: format!("a plan orders to {what}, which this backend cannot"),
        remedy: "this is a fault of the program: please report it".to_owned(),
    }
}
