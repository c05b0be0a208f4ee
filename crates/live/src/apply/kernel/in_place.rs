//! What the scheduler is told of units that are held in control groups of other programs.
//!
//! It knows these groups, so that a process that comes to one is in the unit from its first step. It is told threads of processes
//! that were there before their group became known, and of those in groups with processes of several units.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use commonhold_contract::UnitId;
use commonhold_policy::membership::Stays;

use super::reign::Reign;
use crate::apply::cgroup::CgroupBackend;
use crate::host;
use crate::live_backend::LiveBackend;
use crate::observe::process::ProcessKey;

/// By path, a group's unit and its number in the file system: another may come to have its path.
type Groups = BTreeMap<String, (UnitId, Option<u64>)>;

/// What was told.
#[derive(Debug, Default)]
pub(super) struct InPlace {
    /// How many schedulers were loaded, and how often membership had changed.
    at: Option<(u64, u64)>,
    groups: Groups,
    processes: BTreeMap<ProcessKey, UnitId>,
}

impl InPlace {
    /// Tells what has changed. A scheduler that is new knows nothing.
    pub(super) fn tell(&mut self, reign: &mut Reign, cgroup: &mut CgroupBackend) {
        let at = (reign.loads(), cgroup.changed());
        if !cgroup.roster().is_in_place() || self.at == Some(at) {
            return;
        }
        if self.at.is_none_or(|before| before.0 != at.0) {
            *self = InPlace::default();
        }
        self.at = Some(at);
        let inode = |dir: &Path| host::look(dir).ok().map(|found| found.ino());
        let number = |group: &str| inode(&cgroup.mount().join(group.trim_start_matches('/')));
        let places = cgroup.roster().foreign_groups().iter();
        let groups: Groups = places.map(|(group, unit)| (group.clone(), (*unit, number(group)))).collect();
        if groups != self.groups {
            reign.hold(cgroup.held_in_place().filter_map(|(unit, dir)| Some((inode(dir)?, unit))));
        }
        let processes = self.processes(cgroup, &groups);
        let mut threads = Vec::new();
        let mut tids = Vec::new();
        let roster = cgroup.roster_mut();
        for (key, unit) in &processes {
            let is_told = self.processes.get(key) == Some(unit);
            if !is_told && roster.procfs().threads(key.pid, &mut tids).is_ok() {
                threads.extend(tids.iter().map(|tid| (*tid, *unit)));
            }
        }
        reign.put(&threads);
        (self.groups, self.processes) = (groups, processes);
    }

    /// The units of processes that the scheduler must be told.
    fn processes(&self, cgroup: &CgroupBackend, groups: &Groups) -> BTreeMap<ProcessKey, UnitId> {
        let roster = cgroup.roster();
        let is_new = |group: &str| self.groups.get(group) != groups.get(group);
        let told = |key: &ProcessKey| self.processes.contains_key(key);
        let members = roster.members().filter(|member| member.placement.unit != UnitId::KERNEL);
        let of = members.filter_map(|member| {
            let unit = member.placement.unit;
            let must = match member.stays {
                Some(Stays::InPlace) => {
                    let (group, of) = roster.foreign_group_of(member.key.pid)?;
                    of != unit || is_new(group) || told(&member.key)
                }
                Some(_) => true,
                None => told(&member.key),
            };
            must.then_some((member.key, unit))
        });
        of.collect()
    }
}
