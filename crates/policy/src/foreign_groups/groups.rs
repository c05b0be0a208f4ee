//! Which control groups of other programs units are held in.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use crate::tree::lineage;

/// A group with processes of a unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inhabited {
    /// The control group, as /proc shows its path.
    pub group: String,
    /// A unit that processes in it are in; common parts, too.
    pub unit: UnitId,
    /// Whether these are processes that a rule names: `exec`, `pid` or `command`.
    pub named: bool,
}

/// The user whose slice a control group is, or is in: systemd's `user-UID.slice`.
fn owner_of(group: &str) -> Option<u32> {
    let slice = user_slice(group)?;
    slice.rsplit('/').next()?.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok()
}

/// The user whom a process counts for that runs as `uid` in this control group. In a user's slice it is that user, so that
/// nobody leaves a unit by `sudo`. Root's slice is no such claim: what root starts there as another user (`su - ana`,
/// `sudo -u ana`) is that user's work, and would count for nobody otherwise.
pub fn user_of(group: &str, uid: u32) -> u32 {
    owner_of(group).filter(|owner| *owner != 0).unwrap_or(uid)
}

/// The slice of this program's own, in which systemd makes slices for units, and in these scopes for processes.
const OWN: &str = "/commonhold.slice/";

/// The slices of units that a group is in, the outermost first: `commonhold-a.slice`, and in it `commonhold-a-b.slice`.
fn slices_of_units(group: &str) -> Vec<&str> {
    let Some(rest) = group.strip_prefix(OWN) else { return Vec::new() };
    let mut end = OWN.len();
    let names = rest
        .split('/')
        .take_while(|name| name.starts_with("commonhold-") && name.strip_suffix(".slice").is_some());
    let ends = names.map(|name| {
        end += name.len() + 1;
        end - 1
    });
    ends.map(|end| &group[..end]).collect()
}

/// A path up to the user's slice in it.
fn user_slice(group: &str) -> Option<&str> {
    let is_user = |name: &str| {
        let uid = name.strip_prefix("user-").and_then(|rest| rest.strip_suffix(".slice"));
        uid.is_some_and(|uid| !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut before = "";
    let mut end = 0;
    for name in group.split('/') {
        end += name.len();
        if before == "user.slice" && is_user(name) {
            return Some(&group[..end]);
        }
        before = name;
        end += 1;
    }
    None
}

/// A path and those of the groups around it, the outermost first.
fn around(group: &str) -> impl Iterator<Item = &str> {
    let ends = group.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0).chain([group.len()]);
    ends.map(|end| &group[..end])
}

/// The groups that could be a place for who is in a group, the outermost first. `made`: the groups that sub-units were made of.
fn candidates<'a>(made: &BTreeSet<&str>, group: &'a str) -> Vec<&'a str> {
    let made = || around(group).find(|group| made.contains(group));
    let of_unit = || slices_of_units(group).pop();
    let first = user_slice(group).or_else(made).or_else(of_unit).or_else(|| service(group)).unwrap_or(group);
    around(group).filter(|group| group.len() >= first.len()).collect()
}

/// A path up to the first service or scope in it.
fn service(group: &str) -> Option<&str> {
    let mut end = 0;
    for name in group.split('/') {
        end += name.len();
        let is_unit = |ending: &str| name.strip_suffix(ending).is_some_and(|name| !name.is_empty());
        if is_unit(".service") || is_unit(".scope") {
            return Some(&group[..end]);
        }
        end += 1;
    }
    None
}

/// Whose some processes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Whose {
    /// There are none.
    #[default]
    Nobodys,
    /// The unit's own.
    One(UnitId),
    /// Of several units: the innermost one that is around all.
    Within(UnitId),
    /// Of units that no unit is around, or in no unit.
    Several,
}

impl Whose {
    fn with(self, contract: &Contract, unit: UnitId) -> Whose {
        match self {
            _ if unit.is_common() => Whose::Several,
            Whose::Nobodys => Whose::One(unit),
            Whose::One(before) if before == unit => self,
            Whose::One(before) | Whose::Within(before) => {
                encloser_of(contract, before, unit).map_or(Whose::Several, Whose::Within)
            }
            Whose::Several => Whose::Several,
        }
    }
}

/// Whose the processes in a group and below it are.
#[derive(Debug, Clone, Copy, Default)]
struct There {
    named: Whose,
    others: Whose,
    /// Whether any is in the group itself.
    inhabited: bool,
    /// Whether it is a unit's slice, and another unit's in it has processes.
    is_around: bool,
}

impl There {
    fn add(&mut self, contract: &Contract, one: &Inhabited, itself: bool) {
        let of = if one.named { &mut self.named } else { &mut self.others };
        *of = of.with(contract, one.unit);
        self.inhabited |= itself;
    }

    /// The unit that is held here, if the group is a place. A group of several units is one only where it cannot be divided.
    fn unit(self) -> Option<UnitId> {
        if self.is_around {
            return None;
        }
        let counts = if self.others == Whose::Nobodys { self.named } else { self.others };
        match counts {
            Whose::One(unit) => Some(unit),
            Whose::Within(unit) => self.inhabited.then_some(unit),
            Whose::Nobodys | Whose::Several => None,
        }
    }
}

/// The innermost unit that has both in it.
fn encloser_of(contract: &Contract, one: UnitId, other: UnitId) -> Option<UnitId> {
    let all: BTreeSet<UnitId> = lineage(contract, one).collect();
    lineage(contract, other).find(|unit| all.contains(unit))
}

/// The places, each with its unit. No place is in another one.
pub fn of(contract: &Contract, inhabited: &[Inhabited]) -> BTreeMap<String, UnitId> {
    let made: BTreeSet<&str> = contract.held().filter_map(|unit| contract.group_of(unit)).collect();
    let mut whose: BTreeMap<&str, There> = BTreeMap::new();
    for one in inhabited {
        for group in candidates(&made, &one.group) {
            whose.entry(group).or_default().add(contract, one, group == one.group);
        }
        let mut around = slices_of_units(&one.group);
        around.pop();
        for slice in around {
            whose.entry(slice).or_default().is_around = true;
        }
    }
    let mut places = BTreeMap::new();
    for one in inhabited.iter().filter(|one| !one.unit.is_common()) {
        let mut all = candidates(&made, &one.group).into_iter();
        let found = all.find_map(|group| Some((group, whose.get(group)?.unit()?)));
        if let Some((group, unit)) = found {
            places.insert(group.to_string(), unit);
        }
    }
    places
}

/// The place that a process of a unit is held in, if any is: its group is that, or in it, and is that unit's.
pub fn held_in<'a>(
    contract: &Contract,
    places: &'a BTreeMap<String, UnitId>,
    group: &str,
    unit: UnitId,
) -> Option<&'a str> {
    let found = around(group).find_map(|group| places.get_key_value(group));
    found.filter(|(_, of)| lineage(contract, unit).any(|unit| unit == **of)).map(|(place, _)| place.as_str())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;
    use commonhold_contract::{Each, Given, Newcomer};

    fn contract() -> (Contract, [UnitId; 4]) {
        let mut contract = Contract::default();
        let physics = contract.add(None, "physics");
        let (ana, bob) = (contract.add(Some(physics), "ana"), contract.add(Some(physics), "bob"));
        let build = contract.add(Some(ana), "build");
        (contract, [physics, ana, bob, build])
    }

    fn found(contract: &Contract, groups: &[(&str, UnitId, bool)]) -> Vec<(String, UnitId)> {
        let one = |(group, unit, named): &(&str, UnitId, bool)| Inhabited {
            group: (*group).to_string(),
            unit: *unit,
            named: *named,
        };
        of(contract, &groups.iter().map(one).collect::<Vec<_>>()).into_iter().collect()
    }

    const ANA: &str = "/user.slice/user-1001.slice";
    const SHELL: &str = "/user.slice/user-1001.slice/session-3.scope";
    const MANAGER: &str = "/user.slice/user-1001.slice/user@1001.service/init.scope";
    const CRON: &str = "/system.slice/cron.service";

    #[test]
    fn a_users_slice_is_the_place_of_all_that_is_in_it() {
        let (contract, [_, ana, bob, build]) = contract();
        let slice = |unit| vec![(ANA.to_string(), unit)];
        assert_eq!(found(&contract, &[(SHELL, ana, false), (MANAGER, ana, false)]), slice(ana));
        let divided = found(&contract, &[(SHELL, ana, false), (SHELL, build, false), (MANAGER, ana, false)]);
        let manager = MANAGER.trim_end_matches("/init.scope").to_string();
        assert_eq!(divided, [(SHELL.to_string(), ana), (manager, ana)], "one is in the other");
        let bobs = "/user.slice/user-1002.slice/session-4.scope";
        assert_eq!(
            found(&contract, &[(SHELL, ana, false), (bobs, bob, false)]).len(),
            2,
            "no group around users is a place"
        );
    }

    /// Ana's job stands in the group of cron, which is nobody's.
    #[test]
    fn a_group_with_others_processes_is_no_place() {
        let (contract, [physics, ana, bob, _]) = contract();
        assert_eq!(found(&contract, &[(CRON, UnitId::SHARED, false), (CRON, ana, false)]), []);
        assert_eq!(found(&contract, &[(CRON, ana, false)]), [(CRON.to_string(), ana)]);
        assert_eq!(
            found(&contract, &[(CRON, ana, false), (CRON, bob, false)]),
            [(CRON.to_string(), physics)]
        );
        // Of a slice that is divided, what is whole is one.
        let deep = found(&contract, &[(SHELL, ana, false), (MANAGER, UnitId::SHARED, false)]);
        assert_eq!(deep, [(SHELL.to_string(), ana)]);
    }

    /// Whom a rule names is moved out, and has a scope of its own then.
    #[test]
    fn who_is_named_does_not_count_beside_others() {
        let (contract, [_, ana, bob, _]) = contract();
        assert_eq!(found(&contract, &[(SHELL, ana, false), (SHELL, bob, true)]), [(ANA.to_string(), ana)]);
        assert_eq!(found(&contract, &[(SHELL, UnitId::SHARED, false), (SHELL, bob, true)]), []);
        let scope = "/commonhold.slice/commonhold-7.scope";
        assert_eq!(found(&contract, &[(scope, bob, true)]), [(scope.to_string(), bob)]);
        let places = of(&contract, &[Inhabited { group: SHELL.to_string(), unit: ana, named: false }]);
        assert_eq!(held_in(&contract, &places, SHELL, ana), Some(ANA));
        assert_eq!(held_in(&contract, &places, SHELL, bob), None);
        assert_eq!(held_in(&contract, &places, CRON, ana), None);
    }

    /// The unit physics has a scope, and ana in it has two: each slice is one place, and none is in another.
    #[test]
    fn a_units_slice_is_the_place_of_its_scopes() {
        let (contract, [physics, ana, bob, _]) = contract();
        let slice = "/commonhold.slice/commonhold-physics.slice";
        let anas = format!("{slice}/commonhold-physics-ana.slice");
        let bobs = format!("{slice}/commonhold-physics-bob.slice");
        let [first, second] = ["1", "2"].map(|n| format!("{anas}/commonhold-{n}.scope"));
        let [own, of_bob] = [format!("{slice}/commonhold-3.scope"), format!("{bobs}/commonhold-4.scope")];
        let alone = found(&contract, &[(&first, ana, true), (&second, ana, true)]);
        assert_eq!(alone, [(anas.clone(), ana)], "bob may come");
        let both = found(&contract, &[(&first, ana, true), (&of_bob, bob, true)]);
        assert_eq!(both, [(anas.clone(), ana), (bobs, bob)]);
        let around = found(&contract, &[(&first, ana, true), (&own, physics, true)]);
        assert_eq!(around, [(own.clone(), physics), (anas, ana)]);
        assert_eq!(found(&contract, &[(&own, physics, true)]), [(slice.to_string(), physics)]);
        // Of a scope in which others are, too, the rest of the slice is still the unit's.
        let mixed = found(&contract, &[(&first, ana, true), (&second, UnitId::SHARED, false)]);
        assert_eq!(mixed, [(first, ana)]);
    }

    /// Two jobs of one manager, each a unit of its own.
    #[test]
    fn what_can_be_divided_is() {
        let (contract, [physics, ana, bob, _]) = contract();
        let jobs = ["/system.slice/slurmstepd.scope/job_1", "/system.slice/slurmstepd.scope/job_2"];
        let [one, two] = jobs.map(|job| format!("{job}/step_0/user/task_0"));
        let system = "/system.slice/slurmstepd.scope/system";
        let of = found(&contract, &[(&one, ana, false), (&two, bob, false), (system, physics, false)]);
        let [one, two] = jobs.map(ToString::to_string);
        assert_eq!(of, [(one, ana), (two, bob), (system.to_string(), physics)]);
    }

    /// A pod has a slice, and each of its containers a scope in it: the pod is what a sub-unit was made of.
    #[test]
    fn the_group_that_a_sub_unit_was_made_of_is_its_place() {
        let mut contract = Contract::default();
        let pods = contract.add(None, "pods");
        contract.units[pods.index()].each = Some(Each::Cgroup);
        let pod = |number: u32| format!("/kubepods.slice/kubepods-pod{number}.slice");
        contract.welcome(
            &[1, 2].map(|number| Newcomer::group(pods, &pod(number), Given::default())),
            &BTreeSet::new(),
        );
        let [one, two] =
            [1, 2].map(|number| contract.find(&format!("pods/kubepods-pod{number}.slice")).unwrap());
        let container = |pod: &str, number: u32| format!("{pod}/cri-containerd-{number}.scope/init");
        let of = found(
            &contract,
            &[
                (&container(&pod(1), 1), one, false),
                (&container(&pod(1), 2), one, false),
                (&container(&pod(2), 3), two, false),
                ("/kubepods.slice/other.scope", pods, false),
            ],
        );
        let other = "/kubepods.slice/other.scope".to_string();
        assert_eq!(of, [(pod(1), one), (pod(2), two), (other, pods)]);
        let places = of.into_iter().collect();
        assert_eq!(held_in(&contract, &places, &container(&pod(1), 1), one), Some(pod(1).as_str()));
        assert_eq!(held_in(&contract, &places, "/kubepods.slice", pods), None);
    }

    #[test]
    fn whose_a_slice_is() {
        let of = [
            "/user.slice/user-1001.slice",
            SHELL,
            "/user.slice/user-x.slice",
            "/user.slice",
            "/x/user-7.slice",
            CRON,
        ];
        assert_eq!(of.map(owner_of), [Some(1001), Some(1001), None, None, None, None]);
    }
}
