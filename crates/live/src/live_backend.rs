//! What a daemon needs of a live backend beside the seam: members that come by `exec`, reloads, and an end.

use commonhold_contract::{Contract, UnitId};

use crate::cgroup::CgroupBackend;
use crate::journal::Journal;
use crate::roster::Roster;
use crate::user::UserBackend;
use crate::{Backend, LiveError};

/// A backend on a running machine.
pub trait LiveBackend: Backend {
    /// Takes another contract: a reload, or sub-units for users that were seen. Units are known by their path.
    fn set_contract(&mut self, contract: &Contract);

    /// Users seen in units with `each = "user"` since the last call: unit, number, name.
    fn take_users(&mut self) -> Vec<(UnitId, u32, String)>;

    /// What went wrong in observing since the last call.
    fn take_problems(&mut self) -> Vec<LiveError>;

    /// Who is in which unit.
    fn roster(&self) -> &Roster;

    /// The same, to let processes enter by `exec`.
    fn roster_mut(&mut self) -> &mut Roster;

    /// The end: what there is to undo, for the caretaker.
    fn into_journal(self: Box<Self>) -> Journal;
}

impl LiveBackend for CgroupBackend {
    fn set_contract(&mut self, contract: &Contract) {
        CgroupBackend::set_contract(self, contract);
    }

    fn take_users(&mut self) -> Vec<(UnitId, u32, String)> {
        CgroupBackend::take_users(self)
    }

    fn take_problems(&mut self) -> Vec<LiveError> {
        CgroupBackend::take_problems(self)
    }

    fn roster(&self) -> &Roster {
        CgroupBackend::roster(self)
    }

    fn roster_mut(&mut self) -> &mut Roster {
        CgroupBackend::roster_mut(self)
    }

    fn into_journal(self: Box<Self>) -> Journal {
        (*self).close()
    }
}

impl LiveBackend for UserBackend {
    fn set_contract(&mut self, contract: &Contract) {
        UserBackend::set_contract(self, contract.clone());
    }

    fn take_users(&mut self) -> Vec<(UnitId, u32, String)> {
        UserBackend::take_users(self)
    }

    fn take_problems(&mut self) -> Vec<LiveError> {
        UserBackend::take_problems(self)
    }

    fn roster(&self) -> &Roster {
        UserBackend::roster(self)
    }

    fn roster_mut(&mut self) -> &mut Roster {
        UserBackend::roster_mut(self)
    }

    fn into_journal(self: Box<Self>) -> Journal {
        (*self).close()
    }
}
