//! Processes that entered units by `exec`: what is kept of them, so that the next daemon knows their units.

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

/// Where processes that enter are kept for the next daemon.
pub trait KeepsEntered: std::fmt::Debug {
    /// Keeps one more, before it is in its unit. `others` are those that entered before and have not ended.
    fn keep(&mut self, new: &Entered, others: &[Entered]) -> Result<(), LiveError>;
}

impl Roster {
    /// Keeps who enters from now on there. Nobody enters who cannot be kept.
    pub fn keep_entered(&mut self, keeper: Box<dyn KeepsEntered>) {
        self.keeper = Some(keeper);
    }

    /// Takes in processes that entered under an earlier daemon; the next look puts them into their units. They were allowed to
    /// enter then, so that is not asked again. Those that have ended are left out. Of those whose unit the contract does not
    /// have any more, this is what is to be said.
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
                    "process {} entered unit `{unit}` by `commonhold exec` before this start; the contract has no such unit now, so \
                     the rules decide where it is",
                    process.pid
                ));
            }
            // Kept all the same: a reload may bring the unit back.
            self.grants.insert((uid, unit.clone()));
            self.entered.insert(process, (uid, unit));
            self.stale.insert(process.pid);
        }
        Ok(notes)
    }

    /// Keeps a process that is about to enter.
    pub(super) fn keep(&mut self, process: ProcessKey, uid: u32, unit: &str) -> Result<(), LiveError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        let others = self.entered.iter().filter(|(key, _)| **key != process);
        let others =
            others.map(|(process, (uid, unit))| Entered { process: *process, uid: *uid, unit: unit.clone() });
        let new = Entered { process, uid, unit: unit.to_owned() };
        keeper.keep(&new, &others.collect::<Vec<_>>())
    }
}
