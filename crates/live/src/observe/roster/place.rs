//! Which control groups of other programs units are held in, and who is held there.
//!
//! The decision is the policy's ([`places`]). It is made anew when a unit has a process in a group where it had none, and once
//! a second. Who comes to a place meanwhile is held there at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_contract::UnitId;
use commonhold_policy::foreign_groups::{self, Inhabited};
use commonhold_policy::membership::{ProcessFacts, Rule, Stays, stays};

use super::{Changes, Known, Roster};
use crate::observe::capability::{CgroupPlace, systemd_runs};

/// The places of units.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) held: BTreeMap<String, UnitId>,
    /// Whom they were decided by.
    inhabited: BTreeSet<Inhabited>,
}

/// Who is in a group as a process of its unit.
pub(super) fn inhabited(known: &Known) -> Inhabited {
    let named = matches!(known.member.placement.rule, Rule::Exec | Rule::Pid | Rule::Command);
    Inhabited { group: known.group().to_owned(), unit: known.member.placement.unit, named }
}

/// Whether a process counts in whose a group is. The kernel's own threads and those that were moved away do not.
fn counts(known: &Known) -> bool {
    !known.ended && !known.facts.kernel_thread && !known.is_moved && known.group().len() > 1
}

/// Whether a user's service manager keeps it.
pub(super) fn is_kept_by_manager(known: &Known) -> bool {
    stays(&known.facts, &known.member.placement, None) == Some(Stays::UserManager)
}

impl Roster {
    /// Tells that members are held in control groups at such a place: where they are if systemd manages the machine, else in
    /// groups of units.
    pub fn held_at(&mut self, place: &CgroupPlace) {
        self.mount = Some(place.mount.clone());
        match place.delegated_path() {
            None if systemd_runs(Path::new("/")) => self.holds_in_place(),
            delegated => self.moves_members(delegated),
        }
    }

    /// Whose a process is: where units are held in place, by the policy's [`foreign_groups::user_of`].
    pub(super) fn user_of(&self, facts: &ProcessFacts) -> u32 {
        if self.is_in_place() { foreign_groups::user_of(&facts.cgroup, facts.uid) } else { facts.uid }
    }

    /// Why a process is not moved, where units are held in place.
    pub(super) fn stays_in_place(&self, known: &Known) -> Option<Stays> {
        let Inhabited { group, unit, named } = inhabited(known);
        if named && known.is_moved {
            return None;
        }
        let held = foreign_groups::held_in(&self.contract, &self.places.held, &group, unit).is_some();
        if held && !self.is_in_others_scope(known) {
            return Some(Stays::InPlace);
        }
        // Until systemd has made a scope for it, it is where it is.
        (!named || is_kept_by_manager(known) || self.may_have_scope(known)).then_some(Stays::Mixed)
    }

    /// The control group of another program that a process's unit is held in, if it is held there.
    pub fn place_of(&self, pid: u32) -> Option<(&str, UnitId)> {
        let known = self.known.get(&pid).filter(|known| known.member.stays == Some(Stays::InPlace))?;
        let place = foreign_groups::held_in(
            &self.contract,
            &self.places.held,
            known.group(),
            known.member.placement.unit,
        )?;
        Some((place, *self.places.held.get(place)?))
    }

    /// Decides which places there are, where that may have changed.
    pub(super) fn find_places(&mut self, thorough: bool, changes: &mut Changes) {
        if !self.is_in_place() {
            return;
        }
        let is_new = |known: &Known| !self.places.inhabited.contains(&inhabited(known));
        let came = changes
            .joined
            .iter()
            .map(|(key, _)| key.pid)
            .chain(changes.moved.iter().map(|moved| moved.key.pid));
        let mut came = came.filter_map(|pid| self.known.get(&pid));
        if !thorough && !came.any(|known| counts(known) && is_new(known)) {
            return;
        }
        let inhabited: BTreeSet<Inhabited> =
            self.known.values().filter(|known| counts(known)).map(inhabited).collect();
        if inhabited == self.places.inhabited {
            return;
        }
        let list: Vec<Inhabited> = inhabited.iter().cloned().collect();
        self.places = Places { held: foreign_groups::find(&self.contract, &list), inhabited };
        let all: Vec<u32> = self.known.keys().copied().collect();
        for pid in all {
            self.regroup(pid, true, changes);
        }
    }
}
