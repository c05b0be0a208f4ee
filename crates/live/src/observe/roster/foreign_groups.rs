//! The control groups of other programs in which units are held, and the processes in these groups.
//!
//! The policy assigns groups to units ([`foreign_groups`]). It does so once a second, and at once when a
//! process of a unit appears in a group that had no process of that unit. A process that enters an assigned
//! group in between is held there at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_contract::UnitId;
use commonhold_policy::foreign_groups::{self, Inhabited};
use commonhold_policy::membership::{ProcessFacts, Rule, Stays, stays};

use super::{Changes, Known, Roster};
use crate::observe::capability::{CgroupBase, systemd_runs};

/// The policy's last assignment of groups to units.
#[derive(Debug, Default)]
pub(super) struct ForeignGroups {
    /// By control group, the unit that is held in it.
    pub(super) unit_by_group: BTreeMap<String, UnitId>,
    /// The facts on which the policy decided.
    inhabited: BTreeSet<Inhabited>,
}

/// A process's control group and unit, in the form that the policy takes.
pub(super) fn inhabited(known: &Known) -> Inhabited {
    let named = matches!(known.member.placement.rule, Rule::Exec | Rule::Pid | Rule::Command);
    Inhabited { group: known.group().to_owned(), unit: known.member.placement.unit, named }
}

/// Whether a process counts when groups are assigned to units. Kernel threads do not count, nor do processes
/// that this program has moved out of their groups.
fn is_counted(known: &Known) -> bool {
    !known.ended && !known.facts.kernel_thread && !known.is_moved && known.group().len() > 1
}

/// Whether a user's service manager keeps a process in its control group.
pub(super) fn is_kept_by_manager(known: &Known) -> bool {
    stays(&known.facts, &known.member.placement, None) == Some(Stays::UserManager)
}

impl Roster {
    /// Declares that control groups below this mount hold members. If systemd manages the machine, members
    /// are held in the groups where they are; otherwise, in the groups of their units.
    pub fn held_at(&mut self, base: &CgroupBase) {
        self.mount = Some(base.mount.clone());
        match base.delegated_path() {
            None if systemd_runs(Path::new("/")) => self.holds_in_place(),
            delegated => self.moves_members(delegated),
        }
    }

    /// The user that a process counts for: its effective user, except where units are held in place. There, a
    /// user's slice decides ([`foreign_groups::user_of`]).
    pub(super) fn user_of(&self, facts: &ProcessFacts) -> u32 {
        if self.is_in_place() { foreign_groups::user_of(&facts.cgroup, facts.uid) } else { facts.uid }
    }

    /// Why a process is not moved while units are held in place; `None` if it may be moved.
    pub(super) fn stays_in_place(&self, known: &Known) -> Option<Stays> {
        let Inhabited { group, unit, named } = inhabited(known);
        if named && known.is_moved {
            return None;
        }
        let is_held =
            foreign_groups::held_in(&self.contract, &self.foreign_groups.unit_by_group, &group, unit)
                .is_some();
        if is_held && !self.is_in_others_scope(known) {
            return Some(Stays::InPlace);
        }
        // A named process in a mixed group stays there until systemd has made a scope for it.
        (!named || is_kept_by_manager(known) || self.may_have_scope(known)).then_some(Stays::Mixed)
    }

    /// The control group of another program that holds a process, and the unit to which it is assigned.
    pub fn foreign_group_of(&self, pid: u32) -> Option<(&str, UnitId)> {
        let known = self.known.get(&pid).filter(|known| known.member.stays == Some(Stays::InPlace))?;
        let group = foreign_groups::held_in(
            &self.contract,
            &self.foreign_groups.unit_by_group,
            known.group(),
            known.member.placement.unit,
        )?;
        Some((group, *self.foreign_groups.unit_by_group.get(group)?))
    }

    /// Assigns groups to units again, by the policy, if `always` is true or a process of a unit has appeared
    /// in a group that had no process of that unit.
    pub(super) fn assign_foreign_groups(&mut self, always: bool, changes: &mut Changes) {
        if !self.is_in_place() {
            return;
        }
        let is_new = |known: &Known| !self.foreign_groups.inhabited.contains(&inhabited(known));
        let newcomers = changes
            .joined
            .iter()
            .map(|(key, _)| key.pid)
            .chain(changes.moved.iter().map(|moved| moved.key.pid));
        let mut newcomers = newcomers.filter_map(|pid| self.known.get(&pid));
        if !always && !newcomers.any(|known| is_counted(known) && is_new(known)) {
            return;
        }
        let inhabited: BTreeSet<Inhabited> =
            self.known.values().filter(|known| is_counted(known)).map(inhabited).collect();
        if inhabited == self.foreign_groups.inhabited {
            return;
        }
        let list: Vec<Inhabited> = inhabited.iter().cloned().collect();
        let unit_by_group = foreign_groups::find(&self.contract, &list);
        self.foreign_groups = ForeignGroups { unit_by_group, inhabited };
        let all: Vec<u32> = self.known.keys().copied().collect();
        for pid in all {
            self.update_stays(pid, true, changes);
        }
    }
}
