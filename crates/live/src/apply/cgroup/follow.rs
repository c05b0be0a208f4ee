//! Follows the roster: moves a process into the control group of its unit if the process has just arrived,
//! has changed its unit, or was moved away by another program.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::UnitId;

use super::members::Arrival;
use super::scopes::ScopeReplies;
use super::{CgroupBackend, Memory, claim};
use crate::LiveError;
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Changes, Member};

impl CgroupBackend {
    /// Asks systemd for the scopes that are due, and takes in the processes that arrived in one.
    pub(super) fn follow_scopes(&mut self) {
        let CgroupBackend { scopes, contract, roster, members, journal, now, groups, .. } = self;
        let Some(scopes) = scopes else { return };
        let ScopeReplies { arrived, refused, problems } =
            scopes.poll(*now, contract, roster, (members, &groups.tree().top), journal);
        self.problems.extend(problems);
        if !arrived.is_empty() {
            match self.roster.look_for_scopes(&arrived) {
                Ok(changes) => self.follow(&changes),
                Err(error) => self.problems.push(error),
            }
        }
        if !refused.is_empty() {
            let changes = self.roster.refuse_scopes(&refused);
            self.follow(&changes);
        }
    }

    /// Polls foreign groups, and follows which of them hold units.
    pub(super) fn follow_foreign_groups(&mut self) {
        let CgroupBackend { foreign, contract, roster, disks, journal, memory, problems, now, .. } = self;
        problems.extend(foreign.poll(*now, memory.as_mut().map(Memory::pager), journal));
        if !foreign.follow(contract, roster.foreign_groups(), disks, journal, problems) {
            return;
        }
        self.changed += 1;
        if let Some(memory) = &mut self.memory {
            memory.follow_foreign_groups(self.foreign.all());
        }
    }

    /// Moves processes that came or changed their unit, and forgets those that exited.
    pub(super) fn follow(&mut self, changes: &Changes) {
        self.changed += u64::from(!changes.is_empty());
        for (process, _) in &changes.left {
            self.members.forget(*process);
            self.confinement.forget(*process);
            self.stops.forget(*process);
            self.scopes.iter_mut().for_each(|scopes| scopes.forget(*process));
            self.seat_problems.reported.retain(|(reported, _)| reported != process);
        }
        let joined = changes.joined.iter().copied();
        let moved = changes.moved.iter().map(|moved| (moved.key, moved.to));
        let regrouped = changes.regrouped.iter().copied();
        let (mut arrivals, mut in_wrong_scope) = (Vec::new(), Vec::new());
        for (process, unit) in
            joined.chain(moved).chain(regrouped).filter(|(_, unit)| *unit != UnitId::KERNEL)
        {
            let name = self.name(process);
            let stays = self.roster.member(process.pid).is_some_and(|member| member.stays.is_some());
            if let Some(to) = self.groups.leaf(unit).filter(|_| !stays) {
                self.groups.note_arrival(unit);
                // If the cgroup could not be made yet, `find_displaced` moves the process once the cgroup is
                // made.
                if self.groups.is_made(unit) {
                    arrivals.push(Arrival { process, name, to });
                }
            } else if self.roster.is_in_wrong_scope(process.pid) {
                self.problems.extend(self.members.send_out_of_scope(process, &name));
                in_wrong_scope.push(process.pid);
            } else {
                self.problems.extend(self.members.send_home(process, &name, self.groups.tree()));
            }
        }
        self.problems.extend(self.members.bring(&arrivals, self.groups.tree(), &mut self.journal));
        if !in_wrong_scope.is_empty() {
            // The roster rereads sleepers only on request.
            match self.roster.look_for_scopes(&in_wrong_scope) {
                Ok(changes) => self.follow(&changes),
                Err(error) => self.problems.push(error),
            }
        }
    }

    /// Moves back members that another program moved away, unless they may not be moved from where they are
    /// now.
    pub(super) fn find_displaced(&mut self) -> Result<(), LiveError> {
        let mut by_unit: BTreeMap<UnitId, Vec<(ProcessKey, String)>> = BTreeMap::new();
        let held = |member: &&Member| !member.placement.unit.is_common() && member.stays.is_none();
        for member in self.roster.members().filter(held) {
            by_unit.entry(member.placement.unit).or_default().push((member.key, member.comm.clone()));
        }
        let mut displaced = Vec::new();
        for (unit, members) in by_unit {
            let Some(leaf) = self.groups.leaf(unit).filter(|_| self.groups.is_made(unit)) else { continue };
            match claim::processes(&leaf) {
                Ok(pids) => {
                    let present: BTreeSet<u32> = pids.into_iter().collect();
                    let away = members.into_iter().filter(|(process, _)| !present.contains(&process.pid));
                    displaced.extend(away.map(|(process, name)| Arrival { process, name, to: leaf.clone() }));
                }
                Err(error) => self.problems.push(error),
            }
        }
        if displaced.is_empty() {
            return Ok(());
        }
        // The roster rereads sleepers only on request.
        let pids: Vec<u32> = displaced.iter().map(|arrival| arrival.process.pid).collect();
        let changes = self.roster.look_again(&pids)?;
        self.follow(&changes);
        displaced.retain(|arrival| {
            self.roster
                .member(arrival.process.pid)
                .is_some_and(|member| held(&member) && member.key == arrival.process)
        });
        self.problems.extend(self.members.bring_back(&displaced, self.groups.tree(), &mut self.journal));
        Ok(())
    }

    /// Removes the cgroups of units that left the contract. Their processes go back to where they were found.
    pub(super) fn remove_leaving(&mut self) {
        let members = &mut self.members;
        let problems = self.groups.remove_leaving(|pid, tree| {
            members.identify(pid).and_then(|(process, name)| members.send_home(process, &name, tree))
        });
        self.problems.extend(problems);
    }

    /// The program of a process, for messages; `?` if it has exited.
    fn name(&self, process: ProcessKey) -> String {
        self.roster.member(process.pid).map_or_else(|| "?".to_owned(), |member| member.comm.clone())
    }
}
