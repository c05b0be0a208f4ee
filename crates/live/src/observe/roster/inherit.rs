//! Assigns each process to a unit (its *placement*), parents before children, and carries placements over to
//! a new contract.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::membership::{Placement, Rule, Stays};

use crate::observe::process::ProcessKey;

use super::{Changes, Decisive, Known, MARKER, Moved, Roster, marker, placement_of, stays_of};

/// The unit of a process whose former unit is not in the new contract, until the process is placed again.
const NOWHERE: UnitId = UnitId(u32::MAX);

impl Roster {
    /// Switches to a new contract, and marks every process to be placed again under it. Units that are in
    /// both contracts keep their accounts. A process keeps an inherited placement if the rule of that
    /// placement is in the new contract, too. `unreported` has changes that were found under the previous
    /// contract; its unit ids are converted to the new contract's.
    pub(super) fn adopt(&mut self, contract: &Contract, unreported: &mut Changes) {
        let new_id = |unit: UnitId| contract.has(unit).then_some(unit);
        for (_, from) in &mut unreported.left {
            *from = from.and_then(new_id);
        }
        for moved in &mut unreported.moved {
            moved.from = moved.from.and_then(new_id);
        }
        for known in self.known.values_mut() {
            known.member.placement.unit = new_id(known.member.placement.unit).unwrap_or(NOWHERE);
            let orphaned = known.orphaned.take();
            known.orphaned =
                orphaned.and_then(|placement| carry_placement(placement, &self.contract, contract, &new_id));
        }
        self.carry_accounts(contract);
        self.stale = self.known.keys().copied().collect();
        self.contract = contract.clone();
        self.decisive = Decisive::under(contract);
    }

    /// Places new processes, each after its parent.
    pub(super) fn place_new(&mut self, mut new: BTreeMap<u32, Known>, changes: &mut Changes) {
        while let Some(pid) = new.keys().next().copied() {
            for pid in line_of_descent(pid, |pid| new.get(&pid).map(|known| known.member.parent)) {
                let Some(mut known) = new.remove(&pid) else { continue };
                self.set_origin(&mut known);
                self.restore_lost_placement(&mut known);
                known.member.placement = placement_of(self, &known);
                known.member.stays = stays_of(self, &known);
                if known.member.stays == Some(Stays::Mixed) {
                    self.in_mixed_groups.insert(pid);
                }
                if !known.ended {
                    changes.joined.push((known.member.key, known.member.placement.unit));
                }
                self.known.insert(pid, known);
            }
        }
    }

    /// Replaces the control group of a new process by the group in which `cgroup` rules see it: a process
    /// that started in a group into which the backend had moved its parent counts as being in the group that
    /// the parent came from.
    fn set_origin(&self, known: &mut Known) {
        let parent = self.known.get(&known.member.parent);
        let cgroup = std::mem::take(&mut known.facts.cgroup);
        known.is_moved = self.origins.is_own(&cgroup);
        known.scope = self.origins.is_scope(&cgroup).then(|| cgroup.clone());
        let parents_origin = parent.map(|parent| parent.facts.cgroup.as_str());
        known.facts.cgroup = self.origins.origin_of_new(cgroup, parents_origin);
    }

    /// Restores the placement that a process inherited from a parent that ended before the first scan. The
    /// kernel has given such a process another parent, from which nothing can be learnt. If a rule names the
    /// leader of the process's session, the leader is taken as an ancestor. Otherwise, the unit in the
    /// process's environment counts.
    fn restore_lost_placement(&mut self, known: &mut Known) {
        let (pid, session) = (known.member.key.pid, known.member.session);
        let parent = self.known.get(&known.member.parent);
        let is_named_by = |rule| matches!(rule, Rule::Exec | Rule::Pid | Rule::Command);
        if known.facts.kernel_thread || parent.is_some_and(|parent| is_named_by(parent.member.placement.rule))
        {
            return;
        }
        let is_reparented = parent.is_none_or(|parent| parent.member.session != session);
        let leader = self.known.get(&session).filter(|_| is_reparented && session != pid);
        if let Some(leader) = leader.filter(|leader| is_named_by(leader.member.placement.rule)) {
            known.orphan(Some(leader.member.placement));
        } else if let Some(path) = self.marked_unit(pid, known.member.uid) {
            self.entered.insert(known.member.key, (known.member.uid, path));
        }
    }

    /// The path of the unit that a process's environment names ([`MARKER`]), if the process's user is known
    /// to have entered that unit by `exec`. A process whose real and effective user are root is trusted if
    /// any user has entered that unit, since root may enter every unit.
    fn marked_unit(&mut self, pid: u32, uid: u32) -> Option<String> {
        if self.grants.is_empty() {
            return None;
        }
        let value = self.procfs.variable(pid, MARKER).ok()??;
        let path = value.strip_prefix(&marker(std::process::id(), ""))?.to_owned();
        let user_entered = self.grants.contains(&(uid, path.clone()));
        let mut is_root =
            || matches!(self.procfs.identity(pid), Ok(Some(id)) if id.uid == 0 && id.uid_real == 0);
        let any_user_entered = self.grants.iter().any(|(_, unit)| *unit == path);
        (user_entered || (any_user_entered && is_root())).then_some(path)
    }

    /// Places again the processes whose facts changed. Then, generation by generation, places again the
    /// children of processes whose placement changed.
    pub(super) fn place_again(&mut self, changes: &mut Changes) {
        let mut due: Vec<u32> = std::mem::take(&mut self.stale).into_iter().collect();
        // Each round is one generation; no line of descent is longer than the number of processes.
        for _ in 0..=self.known.len() {
            let moved: BTreeSet<u32> =
                due.into_iter().filter(|pid| self.place_one_again(*pid, changes)).collect();
            if moved.is_empty() {
                break;
            }
            let is_child = |(_, known): &(&u32, &Known)| moved.contains(&known.member.parent);
            due = self.known.iter().filter(is_child).map(|(pid, _)| *pid).collect();
        }
    }

    /// Places one process again. Returns whether its placement changed.
    fn place_one_again(&mut self, pid: u32, changes: &mut Changes) -> bool {
        let Some(known) = self.known.get(&pid) else { return false };
        let placement = placement_of(self, known);
        let (previous, key, ended) = (known.member.placement, known.member.key, known.ended);
        if placement.unit != previous.unit {
            self.charge_until_now(pid);
            if !ended {
                note_move(changes, key, unit_if_there(previous.unit), placement.unit);
            }
        }
        self.known.entry(pid).and_modify(|known| known.member.placement = placement);
        self.update_stays(pid, previous.unit == placement.unit, changes);
        placement != previous
    }

    /// Updates the reason why a process stays in its control group ([`Stays`]), if there is one. If the
    /// process may now be moved, or no longer may, reports that in `changes`, unless the process has changed
    /// its unit (`same_unit` is false), which is reported anyway.
    pub(super) fn update_stays(&mut self, pid: u32, same_unit: bool, changes: &mut Changes) {
        let Some(known) = self.known.get(&pid) else { return };
        let (stays, previous) = (stays_of(self, known), known.member.stays);
        if stays == Some(Stays::Mixed) {
            self.in_mixed_groups.insert(pid);
        }
        if stays == previous {
            return;
        }
        // Whether CPU time counts as used outside the unit's control group depends on `stays`.
        self.charge_until_now(pid);
        let Some(known) = self.known.get(&pid) else { return };
        if stays.is_some() != previous.is_some() && same_unit && !known.ended {
            note_regrouping(changes, known.member.key, known.member.placement.unit);
        }
        self.known.entry(pid).and_modify(|known| known.member.stays = stays);
    }
}

/// Records that a process may now be moved into its unit's control group, or no longer may.
fn note_regrouping(changes: &mut Changes, key: ProcessKey, unit: UnitId) {
    changes.regrouped.retain(|(regrouped, _)| *regrouped != key);
    changes.regrouped.push((key, unit));
}

/// Records a move between units. If the process already joined or moved since the last report, the two events
/// are merged into one.
fn note_move(changes: &mut Changes, key: ProcessKey, from: Option<UnitId>, to: UnitId) {
    if let Some(regrouped) = changes.regrouped.iter_mut().find(|(regrouped, _)| *regrouped == key) {
        regrouped.1 = to;
    }
    if let Some(joined) = changes.joined.iter_mut().find(|(joined, _)| *joined == key) {
        joined.1 = to;
    } else if let Some(moved) = changes.moved.iter_mut().find(|moved| moved.key == key) {
        moved.to = to;
    } else {
        changes.moved.push(Moved { key, from, to });
    }
    changes.moved.retain(|moved| moved.from != Some(moved.to));
}

/// The unit; `None` for [`NOWHERE`], which the contract does not have.
pub(super) fn unit_if_there(unit: UnitId) -> Option<UnitId> {
    (unit != NOWHERE).then_some(unit)
}

/// A process and those of its ancestors for which `parent_of` returns a parent, the eldest first.
fn line_of_descent(pid: u32, parent_of: impl Fn(u32) -> Option<u32>) -> Vec<u32> {
    let mut line = vec![pid];
    let mut ancestor = parent_of(pid);
    while let Some(pid) = ancestor {
        let parent = parent_of(pid);
        // Files read at different times may show a cycle.
        if parent.is_none() || line.contains(&pid) {
            break;
        }
        line.push(pid);
        ancestor = parent;
    }
    line.reverse();
    line
}

/// Converts an inherited placement to a new contract; `None` if the new contract lacks its unit, or the rule
/// that placed it.
fn carry_placement(
    placement: Placement,
    old: &Contract,
    new: &Contract,
    new_id: &dyn Fn(UnitId) -> Option<UnitId>,
) -> Option<Placement> {
    let unit = new_id(placement.unit)?;
    let Some((holder, position)) = placement.member else { return Some(Placement { unit, ..placement }) };
    let kind = &old.unit(holder).members.get(usize::from(position))?.kind;
    let holder = new_id(holder)?;
    let position = new.unit(holder).members.iter().position(|member| member.kind == *kind)?;
    let member = Some((holder, u16::try_from(position).ok()?));
    Some(Placement { unit, member, ..placement })
}
