//! Processes that entered units by `exec`, and their record, from which the next daemon learns their units.

use commonhold_contract::{Contract, UnitId};

use super::Roster;
use crate::LiveError;
use crate::observe::process::{ProcessKey, is_alive};

/// A process that entered a unit by `exec`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entered {
    /// The process.
    pub process: ProcessKey,
    /// Its effective user when it entered.
    pub uid: u32,
    /// The unit's path.
    pub unit: String,
}

/// Stores a record of the processes that entered units, for the next daemon.
pub trait KeepsEntered: std::fmt::Debug {
    /// Stores the process `new`. This is called before the process is placed in its unit. `others` are the
    /// processes that entered earlier and have not ended; a keeper may rewrite its record from `new` and
    /// `others`.
    fn keep(&mut self, new: &Entered, others: &[Entered]) -> Result<(), LiveError>;
}

impl Roster {
    /// Sets the keeper for processes that enter from now on. A process that the keeper cannot store does not
    /// enter.
    pub fn keep_entered(&mut self, keeper: Box<dyn KeepsEntered>) {
        self.keeper = Some(keeper);
    }

    /// Takes over the processes that entered under an earlier daemon and have not ended. The next scan places
    /// them. Permission is not checked again. Returns a message for each process whose unit the contract no
    /// longer has.
    pub fn restore_entered(
        &mut self,
        contract: &Contract,
        kept: Vec<Entered>,
    ) -> Result<Vec<String>, LiveError> {
        let mut notes = Vec::new();
        for entered in kept {
            let Entered { process, uid, unit } = entered;
            if !is_alive(&mut self.procfs, process)? {
                continue;
            }
            if contract.find(&unit).is_none_or(UnitId::is_common) {
                notes.push(format!(
                    "process {} entered unit `{unit}` by `commonhold exec` before this start; the contract no longer has that \
                     unit, so the rules decide its unit",
                    process.pid
                ));
            }
            // Such a process is remembered nevertheless: a reload may bring its unit back.
            self.grants.insert((uid, unit.clone()));
            self.entered.insert(process, (uid, unit));
            self.stale.insert(process.pid);
        }
        Ok(notes)
    }

    /// Has the keeper, if there is one, store a process that is about to enter a unit.
    pub(super) fn keep(&mut self, process: ProcessKey, uid: u32, unit: &str) -> Result<(), LiveError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        let others = self.entered.iter().filter(|(key, _)| **key != process);
        let others =
            others.map(|(process, (uid, unit))| Entered { process: *process, uid: *uid, unit: unit.clone() });
        let new = Entered { process, uid, unit: unit.to_owned() };
        keeper.keep(&new, &others.collect::<Vec<_>>())
    }
}
