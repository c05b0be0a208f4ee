//! Sub-units that `each` creates. A unit with `each` gets a sub-unit for each user among its members, or for
//! each control group below a group that the unit names. The sub-unit is created when the user or the control
//! group appears. A control group's sub-unit is removed after the group has disappeared; a user's sub-unit
//! stays.

use std::collections::BTreeSet;

use crate::name::{NAME_CHARS_MAX, check_name};
use crate::{Contract, Each, Given, Member, MemberKind, PerResource, Principal, Unit, UnitId, Weighed};

/// A user or a control group that needs a sub-unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newcomer {
    /// The unit with `each`.
    pub unit: UnitId,
    /// The only member of the sub-unit: a user, by number, or a control group.
    pub whose: MemberKind,
    /// The user's name, or the last part of the control group's path.
    pub name: String,
    /// The settings that the group's manager made.
    pub given: Given,
}

impl Newcomer {
    /// A user.
    pub fn user(unit: UnitId, uid: u32, name: &str) -> Newcomer {
        let whose = MemberKind::User(Principal::Id(uid));
        Newcomer { unit, whose, name: name.to_owned(), given: Given::default() }
    }

    /// A control group, by its path as /proc shows it.
    pub fn group(unit: UnitId, path: &str, given: Given) -> Newcomer {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        Newcomer { unit, whose: MemberKind::Cgroup(path.to_owned()), name, given }
    }
}

impl Contract {
    /// Creates a sub-unit for each newcomer that has none; returns whether any was created. `free` are the
    /// numbers of removed units that new units may have.
    pub fn welcome(&mut self, newcomers: &[Newcomer], free: &BTreeSet<UnitId>) -> bool {
        let mut any_created = false;
        for newcomer in newcomers {
            any_created |= self.welcome_one(newcomer, free);
        }
        any_created
    }

    /// Under `each-by = "cpus"`, updates the number of CPUs of control groups that have sub-units, and with
    /// it the sub-units' tickets. Returns whether anything changed. (A manager may set a group's CPUs after
    /// the group's first process has started.)
    pub fn give_cpus(&mut self, group_cpus: &[(UnitId, u32)]) -> bool {
        let mut any_changed = false;
        for (unit, cpus) in group_cpus {
            let encloser = self.group_of(*unit).and_then(|_| self.unit(*unit).parent);
            let each_by = encloser.map(|encloser| self.unit(encloser).each_by);
            if each_by != Some(Weighed::Cpus) || self.unit(*unit).given.cpus == Some(*cpus) {
                continue;
            }
            let sub_unit = &mut self.units[unit.index()];
            sub_unit.given.cpus = Some(*cpus);
            sub_unit.tickets = PerResource::all(sub_unit.given.tickets(Weighed::Cpus));
            any_changed = true;
        }
        any_changed
    }

    /// Removes each of the given units that `each` created for a control group; returns whether any unit was
    /// removed.
    pub fn dismiss(&mut self, units: &[UnitId]) -> bool {
        let mut any_removed = false;
        for unit in units {
            if self.group_of(*unit).is_some() {
                self.remove(*unit);
                any_removed = true;
            }
        }
        any_removed
    }

    /// The path of the control group for which `each` created this unit; `None` for other units.
    pub fn group_of(&self, unit: UnitId) -> Option<&str> {
        let sub_unit = Some(unit).filter(|unit| self.has(*unit)).map(|unit| self.unit(unit))?;
        match (self.unit(sub_unit.parent?).each?, sub_unit.members.as_slice()) {
            (Each::Cgroup, [Member { kind: MemberKind::Cgroup(path), .. }]) => Some(path),
            _ => None,
        }
    }

    /// Copies the sub-units that `each` created in `old` to this contract, which replaces it. A sub-unit is
    /// copied if its enclosing unit still has the same `each`.
    pub fn carry_over(&mut self, old: &Contract) {
        for unit in old.held().map(|id| old.unit(id)) {
            let ([Member { kind, .. }], Some(parent)) = (unit.members.as_slice(), unit.parent) else {
                continue;
            };
            let each = old.unit(parent).each;
            let Some(encloser) = self.find(&old.unit(parent).path) else { continue };
            if each.is_some() && self.unit(encloser).each == each {
                let name = unit.name.clone();
                self.welcome_one(
                    &Newcomer { unit: encloser, whose: kind.clone(), name, given: unit.given },
                    &BTreeSet::new(),
                );
            }
        }
    }

    /// Creates a newcomer's sub-unit, unless it has one; returns whether it was created.
    fn welcome_one(&mut self, newcomer: &Newcomer, free: &BTreeSet<UnitId>) -> bool {
        let Newcomer { unit, whose, name, given } = newcomer;
        // The newcomer may have appeared under a contract that was replaced meanwhile.
        let creates_such = |unit: &Unit| match whose {
            MemberKind::User(_) => unit.each == Some(Each::User),
            _ => unit.each == Some(Each::Cgroup),
        };
        if !self.has(*unit) || !creates_such(self.unit(*unit)) {
            return false;
        }
        let is_its_sub_unit = |id: UnitId| self.unit(id).members.iter().any(|member| member.kind == *whose);
        if self.children(Some(*unit)).any(is_its_sub_unit) {
            return false;
        }
        let name = self.free_name(*unit, &valid_name(whose, name));
        let id = self.add_reusing(*unit, &name, free);
        // A created sub-unit has no table in the contract, so it inherits these settings from the unit around
        // it.
        let encloser = self.unit(*unit);
        let (negotiate, discipline, job) = (encloser.negotiate, encloser.discipline, encloser.job);
        let (lend, borrow) = (encloser.lend, encloser.borrow);
        let tickets = given.tickets(encloser.each_by);
        let sub_unit = &mut self.units[id.index()];
        (sub_unit.negotiate, sub_unit.discipline, sub_unit.job) = (negotiate, discipline, job);
        (sub_unit.lend, sub_unit.borrow) = (lend, borrow);
        (sub_unit.tickets, sub_unit.given) = (PerResource::all(tickets), *given);
        sub_unit.members.push(Member { kind: whose.clone(), span: 0..0 });
        true
    }

    /// `name`, or `name` with a number if a sub-unit has that name already. Two groups may get the same name
    /// when invalid characters are replaced.
    fn free_name(&self, unit: UnitId, name: &str) -> String {
        let is_free = |name: &str| self.find(&format!("{}/{name}", self.unit(unit).path)).is_none();
        if is_free(name) {
            return name.to_owned();
        }
        let shortened: String = name.chars().take(NAME_CHARS_MAX - 6).collect();
        (2..10_000)
            .map(|number| format!("{shortened}-{number}"))
            .find(|name| is_free(name))
            .unwrap_or(shortened)
    }
}

/// A valid unit name for a user or a control group. If a user's name has characters that a unit's name may
/// not have, the user's number replaces it. In a group's name, such characters are replaced by `_`.
///
/// A user's name that consists of digits is replaced by the user's number, too, since it may equal another
/// user's number. Otherwise the path of a sub-unit, and with it the tickets that were persisted for that
/// path, would go to the user who appears first.
fn valid_name(whose: &MemberKind, name: &str) -> String {
    if let MemberKind::User(Principal::Id(uid)) = whose
        && (check_name(name).is_err() || name.bytes().all(|b| b.is_ascii_digit()))
    {
        return uid.to_string();
    }
    if check_name(name).is_ok() {
        return name.to_owned();
    }
    let valid_char = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let trimmed = name.trim_start_matches(['-', '.']);
    let replaced: String = trimmed.chars().map(valid_char).take(NAME_CHARS_MAX).collect();
    if check_name(&replaced).is_ok() { replaced } else { format!("group-{}", replaced.replace('.', "-")) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with(each: Each) -> (Contract, UnitId) {
        let mut contract = Contract::default();
        let unit = contract.add(None, "all");
        contract.units[unit.index()].each = Some(each);
        (contract, unit)
    }

    fn paths(contract: &Contract) -> Vec<&str> {
        contract.held().map(|id| contract.unit(id).path.as_str()).collect()
    }

    #[test]
    fn every_user_gets_one_sub_unit() {
        let (mut contract, students) = with(Each::User);
        for (uid, name) in [(1000, "ana"), (1001, "bo"), (1000, "ana"), (1002, "a/b"), (1003, "own")] {
            contract.welcome(&[Newcomer::user(students, uid, name)], &BTreeSet::new());
        }
        assert_eq!(paths(&contract), ["all", "all/ana", "all/bo", "all/1002", "all/1003"]);
    }

    /// User 2000 is called `1001`. User 1001 has a name, none, or one that no unit may have.
    #[test]
    fn a_login_name_of_digits_does_not_collide_with_a_users_number() {
        for other in ["bo", "1001", "CORP\\bo"] {
            let both = [(2000, "1001"), (1001, other)];
            let path_of = |order: [(u32, &str); 2]| {
                let (mut contract, students) = with(Each::User);
                for (uid, name) in order {
                    contract.welcome(&[Newcomer::user(students, uid, name)], &BTreeSet::new());
                }
                let path = |uid: u32| {
                    let whose = MemberKind::User(Principal::Id(uid));
                    let is_whose = |id: &UnitId| contract.unit(*id).members.iter().any(|m| m.kind == whose);
                    let units: Vec<UnitId> = contract.held().filter(is_whose).collect();
                    assert_eq!(units.len(), 1, "one sub-unit of {uid}");
                    contract.unit(units[0]).path.clone()
                };
                [path(2000), path(1001)]
            };
            let paths = path_of(both);
            assert_eq!(paths, path_of([both[1], both[0]]), "whoever comes first");
            assert_eq!(paths[0], "all/2000");
        }
    }

    #[test]
    fn a_users_sub_unit_lends_and_borrows_as_the_unit_around_it() {
        let parsed = crate::parse(
            "version = 1\n[unit.all]\nmembers = [\"group:all\"]\neach = \"user\"\n\
             lend = { memory = \"2GiB\", cpu = false }\nborrow = { disk = \"10%\" }\n",
        );
        let mut contract = parsed.contract.unwrap();
        let all = contract.find("all").unwrap();
        contract.welcome(&[Newcomer::user(all, 1000, "ana")], &BTreeSet::new());
        let [all, ana] = ["all", "all/ana"].map(|path| contract.unit(contract.find(path).unwrap()));
        assert_eq!((ana.lend, ana.borrow), (all.lend, all.borrow));
        assert_ne!((ana.lend, ana.borrow), Default::default());
    }

    #[test]
    fn every_group_gets_one_sub_unit_with_its_tickets_and_a_valid_name() {
        let (mut contract, jobs) = with(Each::Cgroup);
        contract.units[jobs.index()].each_by = Weighed::Cpus;
        let four = Given { cpus: Some(4), weight: Some(39) };
        let names =
            ["job_1", "job_2", "job_1", "a@b.service", "a:b.service", "-.mount", "kernel", "cpu.max", ""];
        for name in names {
            contract.welcome(&[Newcomer::group(jobs, &format!("/x/{name}"), four)], &BTreeSet::new());
            let again = Newcomer::group(jobs, &format!("/x/{name}"), Given::default());
            assert!(!contract.welcome(&[again], &BTreeSet::new()), "{name} has one");
        }
        assert_eq!(
            paths(&contract),
            [
                "all",
                "all/job_1",
                "all/job_2",
                "all/a_b.service",
                "all/a_b.service-2",
                "all/mount",
                "all/group-kernel",
                "all/group-cpu-max",
                "all/group-"
            ]
        );
        let one = contract.find("all/job_1").unwrap();
        assert_eq!(contract.unit(one).tickets.single(), Some(&400));
        assert_eq!((contract.group_of(one), contract.group_of(jobs)), (Some("/x/job_1"), None));
        let long = "a".repeat(100);
        contract.welcome(&[Newcomer::group(jobs, &format!("/x/{long}1"), four)], &BTreeSet::new());
        contract.welcome(&[Newcomer::group(jobs, &format!("/x/{long}2"), four)], &BTreeSet::new());
        for id in contract.held().collect::<Vec<_>>() {
            assert_eq!(check_name(&contract.unit(id).name), Ok(()), "{}", contract.unit(id).name);
        }
        assert_eq!(contract.held().count(), 11);
    }

    /// Jobs come and go for years: their places are used again, and lists stay in the order in which units
    /// came.
    #[test]
    fn the_place_of_a_removed_group_is_reused() {
        let (mut contract, jobs) = with(Each::Cgroup);
        let job = |number: u32| {
            Newcomer::group(jobs, &format!("/x/job_{number}"), Given { cpus: Some(number), weight: Some(7) })
        };
        contract.welcome(&[job(1), job(2), job(3)], &BTreeSet::new());
        let [first, second] = ["all/job_1", "all/job_2"].map(|path| contract.find(path).unwrap());
        assert!(!contract.dismiss(&[jobs]), "the contract has it");
        assert!(contract.dismiss(&[first, first]));
        assert!(!contract.has(first) && contract.find("all/job_1").is_none());
        assert!(contract.welcome(&[job(4)], &BTreeSet::new()));
        assert!(!contract.has(first), "its place is not free for reuse yet");
        let vacant = contract.vacant.clone();
        assert!(contract.welcome(&[job(5)], &vacant));
        assert_eq!(contract.find("all/job_5"), Some(first));
        assert!(contract.vacant.is_empty());
        let listed: Vec<&str> = contract.listed().iter().map(|id| contract.unit(*id).name.as_str()).collect();
        assert_eq!(listed, ["all", "job_2", "job_3", "job_4", "job_5"]);
        // Another contract has them where it still makes such.
        let (mut next, _) = with(Each::Cgroup);
        next.carry_over(&contract);
        assert_eq!(paths(&next).len(), 5);
        next.adopt(&contract, true);
        assert_eq!(next.find("all/job_2"), Some(second));
        let (mut others, _) = with(Each::User);
        others.carry_over(&contract);
        assert_eq!(paths(&others), ["all"]);
    }

    #[test]
    fn cpus_that_a_manager_sets_later_change_the_tickets() {
        let (mut contract, jobs) = with(Each::Cgroup);
        contract.units[jobs.index()].each_by = Weighed::Cpus;
        contract.welcome(&[Newcomer::group(jobs, "/x/job", Given::default())], &BTreeSet::new());
        let job = contract.find("all/job").unwrap();
        assert_eq!(contract.unit(job).tickets.single(), Some(&100));
        assert!(contract.give_cpus(&[(job, 2), (jobs, 7)]));
        assert_eq!(contract.unit(job).tickets.single(), Some(&200));
        assert!(!contract.give_cpus(&[(job, 2), (jobs, 7), (UnitId(99), 3)]), "nothing is new");
        contract.units[jobs.index()].each_by = Weighed::Weight;
        assert!(!contract.give_cpus(&[(job, 5)]));
    }

    #[test]
    fn tickets_follow_the_managers_settings_after_a_reload() {
        let (mut contract, jobs) = with(Each::Cgroup);
        let given = [
            Given { cpus: Some(3), weight: Some(39) },
            Given { cpus: Some(0), weight: Some(0) },
            Given::default(),
        ];
        for (number, given) in given.into_iter().enumerate() {
            contract.welcome(&[Newcomer::group(jobs, &format!("/x/{number}"), given)], &BTreeSet::new());
        }
        for (by, tickets) in [
            (Weighed::Cpus, [300, 1, 100]),
            (Weighed::Weight, [39, 1, 100]),
            (Weighed::Equally, [100, 100, 100]),
        ] {
            let (mut next, jobs) = with(Each::Cgroup);
            next.units[jobs.index()].each_by = by;
            next.carry_over(&contract);
            let tickets_of =
                |number| next.unit(next.find(&format!("all/{number}")).unwrap()).tickets.single().copied();
            assert_eq!([0, 1, 2].map(tickets_of), tickets.map(Some), "{by:?}");
            contract = next;
        }
    }
}
