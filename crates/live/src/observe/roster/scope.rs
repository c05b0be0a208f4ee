//! The processes that get a systemd scope, where units are held in place.
//!
//! A process that entered by `exec`, or that a `pid:` or `command:` rule names, may be in a control group
//! with processes of other units. Such a mixed group cannot hold any of them. So systemd is asked to make a
//! scope for the process, in its unit's slice. The request for a process that entered by `exec` is due at
//! once. The request for any other process is due a second after the process was first seen, since many
//! processes live for less than a second.

use std::collections::BTreeSet;

use commonhold_contract::UnitId;
use commonhold_policy::Time;
use commonhold_policy::membership::Stays;
use commonhold_policy::tree::lineage;

use super::foreign_groups::{inhabited, is_kept_by_manager};
use super::{Changes, Known, Roster, SECOND};
use crate::LiveError;
use crate::observe::process::ProcessKey;
use crate::systemd::slice_for;

/// The parent slice of the units' slices.
pub(super) const SLICE: &str = "/commonhold.slice";

/// The state of scopes.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Whether the backend asks systemd for scopes.
    are_made: bool,
    /// Processes that entered by `exec` and have not executed their program yet.
    pub(super) entering: BTreeSet<ProcessKey>,
}

/// A process that is due for a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The process.
    pub key: ProcessKey,
    /// The process's unit.
    pub unit: UnitId,
    /// Whether the process is entering by `exec`, and waits for its scope before it executes its program.
    pub enters: bool,
}

impl Roster {
    /// Declares that the backend asks systemd for scopes.
    pub fn makes_scopes(&mut self) {
        self.scopes.are_made = true;
    }

    /// The processes that are due for a scope now.
    pub fn due_for_scopes(&mut self, now: Time) -> Vec<Due> {
        let mut candidates = std::mem::take(&mut self.in_mixed_groups);
        candidates.retain(|pid| self.known.get(pid).is_some_and(|known| self.needs_scope(known)));
        let due = candidates.iter().filter_map(|pid| {
            let known = self.known.get(pid)?;
            let key = known.member.key;
            let enters = self.scopes.entering.contains(&key);
            let is_due = enters || now >= known.seen_at.saturating_add(SECOND);
            is_due.then_some(Due { key, unit: known.member.placement.unit, enters })
        });
        let due = due.collect();
        self.scopes.entering.retain(|key| candidates.contains(&key.pid));
        self.in_mixed_groups = candidates;
        due
    }

    /// Whether a process is entering by `exec` and waits for its scope.
    pub fn is_entering(&self, key: ProcessKey) -> bool {
        let known = self.known.get(&key.pid).filter(|known| known.member.key == key);
        self.scopes.entering.contains(&key) && known.is_some_and(|known| self.needs_scope(known))
    }

    /// Records that systemd has been asked for a scope for these processes.
    pub fn leave_for_scope(&mut self, keys: &[ProcessKey]) {
        for key in keys {
            self.charge_until_now(key.pid);
            if let Some(known) = self.known.get_mut(&key.pid) {
                known.is_leaving = true;
            }
        }
    }

    /// Reads these processes again, after systemd has answered the request for their scopes, or after they
    /// left a scope.
    pub fn look_for_scopes(&mut self, pids: &[u32]) -> Result<Changes, LiveError> {
        let mut changes = self.look_again(pids)?;
        self.assign_foreign_groups(true, &mut changes);
        for pid in pids {
            if let Some(known) = self.known.get_mut(pid) {
                known.is_leaving = false;
            }
        }
        Ok(changes)
    }

    /// Records that systemd refused a scope for these processes. They may now be moved into the unit's own
    /// group.
    pub fn refuse_scopes(&mut self, keys: &[ProcessKey]) -> Changes {
        let mut changes = Changes::default();
        for key in keys {
            if let Some(known) = self.known.get_mut(&key.pid).filter(|known| known.member.key == *key) {
                known.is_refused = true;
                self.update_stays(key.pid, true, &mut changes);
            }
        }
        changes
    }

    /// Whether a process is in the scope of a unit that it has left, and no scope will be made for it.
    pub fn is_in_wrong_scope(&self, pid: u32) -> bool {
        let known = self.known.get(&pid).filter(|known| !known.ended);
        known.is_some_and(|known| self.is_in_others_scope(known) && !self.needs_scope(known))
    }

    /// Whether a process is in the scope of a unit that is neither its own nor encloses its own.
    pub(super) fn is_in_others_scope(&self, known: &Known) -> bool {
        let Some(scope) = &known.scope else { return false };
        let slice = scope
            .split('/')
            .take_while(|name| name.is_empty() || name.strip_suffix(".slice").is_some())
            .last();
        let has_this_slice = |unit: UnitId| slice_for(&self.contract.unit(unit).path).as_deref() == slice;
        !lineage(&self.contract, known.member.placement.unit).any(has_this_slice)
    }

    /// Whether systemd would be asked for a scope for this process if it were in a mixed group.
    pub(super) fn may_have_scope(&self, known: &Known) -> bool {
        self.scopes.are_made && !known.is_refused && !known.is_moved && !known.ended
    }

    /// Whether a process is in a mixed group and needs a scope, and a scope may be made for it.
    fn needs_scope(&self, known: &Known) -> bool {
        known.member.stays == Some(Stays::Mixed)
            && self.is_in_place()
            && self.may_have_scope(known)
            && inhabited(known).named
            && !is_kept_by_manager(known)
    }
}
