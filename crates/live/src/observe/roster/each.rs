//! Who is to have a sub-unit by `each`, and whose is over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_contract::{DEFAULT_TICKETS, Each, MemberKind, Newcomer, UnitId, Weighed};
use commonhold_machine::CpuSet;
use commonhold_policy::Time;
use commonhold_policy::membership::Placement;

use super::{Known, Roster, SECOND};
use crate::host;

/// How long nobody is in a control group before its sub-unit goes. Its manager may be between two steps of a job.
const EMPTY_NS: Time = 10 * SECOND;

/// What was seen of units with `each`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Seen directly in such a unit. Give each a sub-unit, and look again.
    pub newcomers: Vec<Newcomer>,
    /// Sub-units of control groups in which nobody has been for ten seconds.
    pub gone: Vec<UnitId>,
}

impl Seen {
    /// Adds what a later look saw.
    pub fn extend(&mut self, later: Seen) {
        self.newcomers.extend(later.newcomers);
        self.gone.extend(later.gone);
    }
}

impl Roster {
    /// Whether the contract makes sub-units of control groups.
    pub(super) fn divides_groups(&self) -> bool {
        self.contract.present().any(|unit| self.contract.unit(unit).each == Some(Each::Cgroup))
    }

    pub(super) fn find_newcomers(&self) -> Vec<Newcomer> {
        let there = self.known.values().filter(|known| !known.ended);
        let (mut users, mut groups) = (BTreeSet::new(), BTreeSet::new());
        for known in there {
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
            let by = self.contract.unit(unit).each_by;
            let mount = self.mount.as_deref();
            Newcomer::group(unit, path, mount.map_or(DEFAULT_TICKETS, |mount| tickets(mount, path, by)))
        };
        users.into_iter().map(user).chain(groups.into_iter().map(group)).collect()
    }

    /// The control group that a process is in or below, directly in one that the rule names that placed it.
    fn group_of<'a>(&self, known: &'a Known) -> Option<&'a str> {
        let Placement { member: Some((unit, position)), .. } = known.member.placement else { return None };
        let rule = self.contract.unit(unit).members.get(usize::from(position))?;
        let MemberKind::Cgroup(around) = &rule.kind else { return None };
        let group = known.facts.cgroup.as_str();
        let around = around.trim_end_matches('/').len();
        let name = group.get(around + 1..)?;
        let end = name.find('/').unwrap_or(name.len());
        (end > 0).then(|| &group[..around + 1 + end])
    }

    /// Sub-units of control groups that are over; asked once a second.
    pub(super) fn find_gone(&mut self, now: Time) -> Vec<UnitId> {
        let there: BTreeSet<UnitId> = self
            .known
            .values()
            .filter(|known| !known.ended)
            .map(|known| known.member.placement.unit)
            .collect();
        let empty: Vec<UnitId> = self
            .contract
            .held()
            .filter(|unit| !there.contains(unit) && self.contract.group_of(*unit).is_some())
            .collect();
        let since: BTreeMap<UnitId, Time> = empty
            .into_iter()
            .map(|unit| (unit, self.empty_since.get(&unit).copied().unwrap_or(now)))
            .collect();
        self.empty_since = since;
        let over = |(unit, since): (&UnitId, &Time)| (now >= since.saturating_add(EMPTY_NS)).then_some(*unit);
        self.empty_since.iter().filter_map(over).collect()
    }
}

/// How many tickets a control group's manager gives it. Where it has set nothing, or that cannot be read, those that any unit
/// has.
fn tickets(mount: &Path, group: &str, by: Weighed) -> u64 {
    let group = mount.join(group.trim_start_matches('/'));
    let read = |file: &str| {
        let text = host::read_to_string(&group.join(file)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let found = match by {
        Weighed::Equally => None,
        Weighed::Cpus => read("cpuset.cpus")
            .and_then(|text| text.parse::<CpuSet>().ok())
            .map(|cpus| cpus.len() as u64 * DEFAULT_TICKETS),
        Weighed::Weight => read("cpu.weight").and_then(|text| text.parse().ok()),
    };
    found.unwrap_or(DEFAULT_TICKETS).max(1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_group_weighs_what_its_manager_says() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("jobs/job_1/cpuset.cpus", "0,2-3\n");
        write("jobs/job_1/cpu.weight", "39\n");
        write("jobs/job_2/cpuset.cpus", "\n");
        let of = |path: &str, by| tickets(folder.path(), path, by);
        let all = [Weighed::Equally, Weighed::Cpus, Weighed::Weight];
        assert_eq!(all.map(|by| of("/jobs/job_1", by)), [100, 300, 39]);
        assert_eq!(all.map(|by| of("/jobs/job_2", by)), [100, 100, 100]);
        assert_eq!(all.map(|by| of("/jobs/gone", by)), [100, 100, 100]);
    }
}
