//! The scheduler's view of units that are held in foreign control groups.
//!
//! The scheduler maps these groups to units, so that a process that enters such a group is in the unit at
//! once. For two kinds of processes, the scheduler is sent the unit of each thread: processes that were in a
//! group before the scheduler knew the group, and processes in groups that several units share.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use commonhold_contract::UnitId;
use commonhold_policy::membership::Stays;

use super::supervisor::Supervisor;
use crate::apply::cgroup::CgroupBackend;
use crate::host;
use crate::live_backend::LiveBackend;
use crate::observe::process::ProcessKey;

/// The unit and the inode of each group, by path. The inode tells a group from a later group at the same
/// path.
type Groups = BTreeMap<String, (UnitId, Option<u64>)>;

/// The groups and processes that were sent to the scheduler.
#[derive(Debug, Default)]
pub(super) struct ForeignGroups {
    /// The number of loads and the version of membership at the last update.
    version: Option<(u64, u64)>,
    groups: Groups,
    processes: BTreeMap<ProcessKey, UnitId>,
}

impl ForeignGroups {
    /// Sends the scheduler what has changed; sends everything to a newly loaded scheduler.
    pub(super) fn update(&mut self, supervisor: &mut Supervisor, cgroup: &mut CgroupBackend) {
        let version = (supervisor.loads(), cgroup.changed());
        if !cgroup.roster().is_in_place() || self.version == Some(version) {
            return;
        }
        if self.version.is_none_or(|(loads, _)| loads != version.0) {
            *self = ForeignGroups::default();
        }
        self.version = Some(version);
        let inode = |dir: &Path| host::look(dir).ok().map(|metadata| metadata.ino());
        let inode_of_group = |group: &str| inode(&cgroup.mount().join(group.trim_start_matches('/')));
        let groups: Groups = cgroup
            .roster()
            .foreign_groups()
            .iter()
            .map(|(group, unit)| (group.clone(), (*unit, inode_of_group(group))))
            .collect();
        if groups != self.groups {
            supervisor.follow_foreign_groups(
                cgroup.foreign_groups().filter_map(|(unit, dir)| Some((inode(dir)?, unit))),
            );
        }
        let processes = self.processes(cgroup, &groups);
        let mut threads = Vec::new();
        let mut tids = Vec::new();
        let roster = cgroup.roster_mut();
        for (key, unit) in &processes {
            let was_sent = self.processes.get(key) == Some(unit);
            if !was_sent && roster.procfs().threads(key.pid, &mut tids).is_ok() {
                threads.extend(tids.iter().map(|tid| (*tid, *unit)));
            }
        }
        supervisor.put(&threads);
        (self.groups, self.processes) = (groups, processes);
    }

    /// The processes whose control groups do not identify their units to the scheduler, each with its unit. A
    /// process whose threads were sent before is among them, since the unit that was sent for a thread
    /// overrides the unit of the thread's group.
    fn processes(&self, cgroup: &CgroupBackend, groups: &Groups) -> BTreeMap<ProcessKey, UnitId> {
        let roster = cgroup.roster();
        let is_new = |group: &str| self.groups.get(group) != groups.get(group);
        let was_sent = |key: &ProcessKey| self.processes.contains_key(key);
        let members = roster.members().filter(|member| member.placement.unit != UnitId::KERNEL);
        let units = members.filter_map(|member| {
            let unit = member.placement.unit;
            let is_needed = match member.stays {
                Some(Stays::InPlace) => {
                    let (group, groups_unit) = roster.foreign_group_of(member.key.pid)?;
                    groups_unit != unit || is_new(group) || was_sent(&member.key)
                }
                Some(_) => true,
                None => was_sent(&member.key),
            };
            is_needed.then_some((member.key, unit))
        });
        units.collect()
    }
}
