//! Who is to get a scope of systemd's, where units are held in place.
//!
//! A process that entered by `exec`, or that a `pid:` or `command:` rule names, may stand in a group with processes of other
//! units. No group of its unit's holds it there. So systemd is to make a scope for it, in its unit's slice. One that entered by
//! `exec` is due at once. Any other is due in its second second: many live for less.

use std::collections::BTreeSet;

use commonhold_contract::UnitId;
use commonhold_policy::Time;
use commonhold_policy::membership::Stays;
use commonhold_policy::tree::lineage;

use super::place::{inhabited, is_kept_by_manager};
use super::{Changes, Known, Roster, SECOND};
use crate::LiveError;
use crate::observe::process::ProcessKey;
use crate::systemd::slice_for;

/// The slice that the slices of units are in.
pub(super) const SLICE: &str = "/commonhold.slice";

/// What is known of scopes.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Whether systemd is asked for them.
    are_made: bool,
    /// Processes that entered by `exec`, and have not begun their program.
    pub(super) entering: BTreeSet<ProcessKey>,
}

/// A process that is to get a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The process.
    pub key: ProcessKey,
    /// Its unit.
    pub unit: UnitId,
    /// Whether it enters by `exec`, and waits.
    pub enters: bool,
}

impl Roster {
    /// Tells that systemd is asked for scopes.
    pub fn makes_scopes(&mut self) {
        self.scopes.are_made = true;
    }

    /// Who is to get a scope now.
    pub fn due_for_scopes(&mut self, now: Time) -> Vec<Due> {
        let mut beside = std::mem::take(&mut self.beside);
        beside.retain(|pid| self.known.get(pid).is_some_and(|known| self.wants_scope(known)));
        let due = beside.iter().filter_map(|pid| {
            let known = self.known.get(pid)?;
            let key = known.member.key;
            let enters = self.scopes.entering.contains(&key);
            let is_due = enters || now >= known.seen_at.saturating_add(SECOND);
            is_due.then_some(Due { key, unit: known.member.placement.unit, enters })
        });
        let due = due.collect();
        self.scopes.entering.retain(|key| beside.contains(&key.pid));
        self.beside = beside;
        due
    }

    /// Whether a process that enters by `exec` waits for its scope.
    pub fn is_entering(&self, key: ProcessKey) -> bool {
        let known = self.known.get(&key.pid).filter(|known| known.member.key == key);
        self.scopes.entering.contains(&key) && known.is_some_and(|known| self.wants_scope(known))
    }

    /// systemd is asked for a scope for these.
    pub fn leave_for_scope(&mut self, keys: &[ProcessKey]) {
        for key in keys {
            self.settle(key.pid);
            if let Some(known) = self.known.get_mut(&key.pid) {
                known.is_leaving = true;
            }
        }
    }

    /// systemd has answered about these, or they left a scope: where are they?
    pub fn look_for_scopes(&mut self, pids: &[u32]) -> Result<Changes, LiveError> {
        let mut changes = self.look_again(pids)?;
        self.find_places(true, &mut changes);
        for pid in pids {
            if let Some(known) = self.known.get_mut(pid) {
                known.is_leaving = false;
            }
        }
        Ok(changes)
    }

    /// systemd makes no scope for these: they may be moved into the unit's own group.
    pub fn refuse_scopes(&mut self, keys: &[ProcessKey]) -> Changes {
        let mut changes = Changes::default();
        for key in keys {
            if let Some(known) = self.known.get_mut(&key.pid).filter(|known| known.member.key == *key) {
                known.is_refused = true;
                self.regroup(key.pid, true, &mut changes);
            }
        }
        changes
    }

    /// Whether a process is in the scope of a unit that it is not in any more, and is to get no other.
    pub fn is_astray(&self, pid: u32) -> bool {
        let known = self.known.get(&pid).filter(|known| !known.ended);
        known.is_some_and(|known| self.is_in_others_scope(known) && !self.wants_scope(known))
    }

    /// Whether it is in a scope of another unit than its own.
    pub(super) fn is_in_others_scope(&self, known: &Known) -> bool {
        let Some(scope) = &known.scope else { return false };
        let slice = scope
            .split('/')
            .take_while(|name| name.is_empty() || name.strip_suffix(".slice").is_some())
            .last();
        let is_units = |unit: UnitId| slice_for(&self.contract.unit(unit).path).as_deref() == slice;
        !lineage(&self.contract, known.member.placement.unit).any(is_units)
    }

    /// Whether systemd is asked for a scope for such a process, where it is beside others.
    pub(super) fn may_have_scope(&self, known: &Known) -> bool {
        self.scopes.are_made && !known.is_refused && !known.is_moved && !known.ended
    }

    fn wants_scope(&self, known: &Known) -> bool {
        known.member.stays == Some(Stays::Mixed)
            && self.is_in_place()
            && self.may_have_scope(known)
            && inhabited(known).named
            && !is_kept_by_manager(known)
    }
}
