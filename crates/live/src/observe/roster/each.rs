//! The users and control groups that get a sub-unit by `each`, and the sub-units that end because their
//! control group is empty.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_contract::{Each, Given, MemberKind, Newcomer, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::Time;
use commonhold_policy::membership::Placement;

use super::{Known, Roster, SECOND};
use crate::observe::knob::read;

/// How long a control group must be empty before its sub-unit ends. The group may be empty for a moment
/// between two steps of a job.
const EMPTY_NS: Time = 10 * SECOND;

/// What a scan saw of units with `each`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Users or control groups without a sub-unit, directly in a unit with `each`. The caller gives a
    /// sub-unit to each, and scans again.
    pub newcomers: Vec<Newcomer>,
    /// Sub-units whose control groups have been empty for ten seconds.
    pub gone: Vec<UnitId>,
    /// Sub-units whose control group has CPUs set by its manager, and the number of these CPUs.
    pub cpus: Vec<(UnitId, u32)>,
}

impl Seen {
    /// Adds the findings of a later scan.
    pub fn extend(&mut self, later: Seen) {
        self.newcomers.extend(later.newcomers);
        self.gone.extend(later.gone);
        self.cpus.extend(later.cpus);
    }
}

impl Roster {
    /// Whether the contract makes sub-units of control groups.
    pub(super) fn divides_groups(&self) -> bool {
        self.contract.present().any(|unit| self.contract.unit(unit).each == Some(Each::Cgroup))
    }

    /// Users and control groups directly in a unit with `each`, which do not have a sub-unit yet.
    pub(super) fn find_newcomers(&self) -> Vec<Newcomer> {
        let alive = self.known.values().filter(|known| !known.ended);
        let (mut users, mut groups) = (BTreeSet::new(), BTreeSet::new());
        for known in alive {
            let unit = known.member.placement.unit;
            match self.contract.unit(unit).each {
                Some(Each::User) => drop(users.insert((unit, self.user_of(&known.facts)))),
                Some(Each::Cgroup) => groups.extend(self.group_of(known).map(|group| (unit, group))),
                None => {}
            }
        }
        let user = |(unit, uid): (UnitId, u32)| {
            let name = self.names.user_name(uid).unwrap_or_else(|| uid.to_string());
            Newcomer::user(unit, uid, &name)
        };
        let group = |(unit, path): (UnitId, &str)| {
            let settings = self.mount.as_deref().map(|mount| manager_settings(mount, path));
            Newcomer::group(unit, path, settings.unwrap_or_default())
        };
        users.into_iter().map(user).chain(groups.into_iter().map(group)).collect()
    }

    /// The child of a rule's control group that contains a process, at any depth. `None` if the process is
    /// directly in the rule's group, or if no `cgroup` rule placed it.
    fn group_of<'a>(&self, known: &'a Known) -> Option<&'a str> {
        let Placement { member: Some((unit, position)), .. } = known.member.placement else { return None };
        let rule = self.contract.unit(unit).members.get(usize::from(position))?;
        let MemberKind::Cgroup(rule_group) = &rule.kind else { return None };
        let group = known.facts.cgroup.as_str();
        let parent_len = rule_group.trim_end_matches('/').len();
        let below = group.get(parent_len + 1..)?;
        let child_len = below.find('/').unwrap_or(below.len());
        (child_len > 0).then(|| &group[..parent_len + 1 + child_len])
    }

    /// Sub-units whose control groups have been empty for [`EMPTY_NS`]. Called once a second.
    pub(super) fn find_gone(&mut self, now: Time) -> Vec<UnitId> {
        let inhabited: BTreeSet<UnitId> = self
            .known
            .values()
            .filter(|known| !known.ended)
            .map(|known| known.member.placement.unit)
            .collect();
        let empty: Vec<UnitId> = self
            .contract
            .held()
            .filter(|unit| !inhabited.contains(unit) && self.contract.group_of(*unit).is_some())
            .collect();
        // Units that are inhabited again lose their entry, so that their time begins anew.
        let empty_since: BTreeMap<UnitId, Time> = empty
            .into_iter()
            .map(|unit| (unit, self.empty_since.get(&unit).copied().unwrap_or(now)))
            .collect();
        self.empty_since = empty_since;
        let expired =
            |(unit, since): (&UnitId, &Time)| (now >= since.saturating_add(EMPTY_NS)).then_some(*unit);
        self.empty_since.iter().filter_map(expired).collect()
    }
}

/// The CPUs and the weight that a control group's manager has set in it; fields that are unset or cannot be
/// read are `None`.
fn manager_settings(mount: &Path, group: &str) -> Given {
    let dir = mount.join(group.trim_start_matches('/'));
    let text = |file: &str| read(&dir.join(file)).ok().filter(|text| !text.is_empty());
    let cpus = text("cpuset.cpus").and_then(|text| text.parse::<CpuSet>().ok());
    Given {
        cpus: cpus.and_then(|cpus| u32::try_from(cpus.len()).ok()),
        weight: text("cpu.weight").and_then(|text| text.parse().ok()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_groups_manager_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("jobs/job_1/cpuset.cpus", "0,2-3\n");
        write("jobs/job_1/cpu.weight", "39\n");
        write("jobs/job_2/cpuset.cpus", "\n");
        let settings = |path: &str| manager_settings(folder.path(), path);
        assert_eq!(settings("/jobs/job_1"), Given { cpus: Some(3), weight: Some(39) });
        assert_eq!(settings("/jobs/job_2"), Given::default());
        assert_eq!(settings("/jobs/gone"), Given::default());
    }
}
