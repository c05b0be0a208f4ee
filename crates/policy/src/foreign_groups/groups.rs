//! The choice of foreign groups: in which control groups of other programs a unit can be held.
//!
//! The enclosing module describes the algorithm. [`find`] chooses the foreign groups, from the processes of
//! all units and the control groups of these processes. [`held_in`] returns the foreign group in which a
//! process is held. [`user_of`] returns the user to whom a process is attributed.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use crate::tree::lineage;

/// A control group with processes of a unit. A group with processes of several units is listed once for each
/// of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inhabited {
    /// The group's path, as in /proc/PID/cgroup.
    pub group: String,
    /// The unit of these processes; may be a common part.
    pub unit: UnitId,
    /// Whether these processes are assigned to the unit by a rule of their own: `exec`, `pid` or `command`.
    pub named: bool,
}

/// The user of systemd's `user-UID.slice` that is or contains a control group; `None` outside users' slices.
fn owner_of(group: &str) -> Option<u32> {
    let slice = user_slice(group)?;
    slice.rsplit('/').next()?.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok()
}

/// The user to whom a process in this control group is attributed. In a user's slice that is the slice's
/// user, whatever the process's `uid`, so that a process started with `sudo` stays in the unit. Root's slice
/// is an exception: processes that root starts there as another user (`su - ana`, `sudo -u ana`) are that
/// user's work. Outside users' slices, the user is `uid`.
pub fn user_of(group: &str, uid: u32) -> u32 {
    owner_of(group).filter(|owner| *owner != 0).unwrap_or(uid)
}

/// The path prefix of all groups in this program's slice. In this slice, systemd makes slices for units, and
/// in the units' slices, scopes for processes.
const OWN_SLICE: &str = "/commonhold.slice/";

/// The paths of the units' slices that contain a group, the outermost first: that of `commonhold-a.slice`,
/// then that of `commonhold-a-b.slice` in it.
fn slices_of_units(group: &str) -> Vec<&str> {
    let Some(rest) = group.strip_prefix(OWN_SLICE) else { return Vec::new() };
    let mut end = OWN_SLICE.len();
    let names = rest
        .split('/')
        .take_while(|name| name.starts_with("commonhold-") && name.strip_suffix(".slice").is_some());
    let ends = names.map(|name| {
        end += name.len() + 1;
        end - 1
    });
    ends.map(|end| &group[..end]).collect()
}

/// The path of the user's slice that is or contains `group`: `user-UID.slice` in `user.slice`.
fn user_slice(group: &str) -> Option<&str> {
    let is_user_slice = |name: &str| {
        let uid = name.strip_prefix("user-").and_then(|rest| rest.strip_suffix(".slice"));
        uid.is_some_and(|uid| !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut parent = "";
    let mut end = 0;
    for name in group.split('/') {
        end += name.len();
        if parent == "user.slice" && is_user_slice(name) {
            return Some(&group[..end]);
        }
        parent = name;
        end += 1;
    }
    None
}

/// The ancestors of a group and the group itself, the outermost first.
fn ancestors_and_self(group: &str) -> impl Iterator<Item = &str> {
    let ends = group.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0).chain([group.len()]);
    ends.map(|end| &group[..end])
}

/// The groups in which the processes of `group` could be held, the outermost first. `unit_groups` are the
/// groups from which sub-units were made (`each = "cgroup"`).
fn candidates<'a>(unit_groups: &BTreeSet<&str>, group: &'a str) -> Vec<&'a str> {
    let unit_group = || ancestors_and_self(group).find(|group| unit_groups.contains(group));
    let unit_slice = || slices_of_units(group).pop();
    let outermost =
        user_slice(group).or_else(unit_group).or_else(unit_slice).or_else(|| service(group)).unwrap_or(group);
    ancestors_and_self(group).filter(|group| group.len() >= outermost.len()).collect()
}

/// The path of the outermost service or scope that is or contains `group`.
fn service(group: &str) -> Option<&str> {
    let mut end = 0;
    for name in group.split('/') {
        end += name.len();
        let has_ending = |ending: &str| name.strip_suffix(ending).is_some_and(|name| !name.is_empty());
        if has_ending(".service") || has_ending(".scope") {
            return Some(&group[..end]);
        }
        end += 1;
    }
    None
}

/// The units that a set of processes belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Occupants {
    /// The set is empty.
    #[default]
    None,
    /// All processes belong to this unit.
    One(UnitId),
    /// The processes belong to several units; this is the innermost unit that encloses these.
    Within(UnitId),
    /// The processes belong to several units without a common enclosing unit, or some to no unit.
    Mixed,
}

impl Occupants {
    /// The occupants with further processes, those of `unit`.
    fn with(self, contract: &Contract, unit: UnitId) -> Occupants {
        match self {
            _ if unit.is_common() => Occupants::Mixed,
            Occupants::None => Occupants::One(unit),
            Occupants::One(before) if before == unit => self,
            Occupants::One(before) | Occupants::Within(before) => {
                common_encloser(contract, before, unit).map_or(Occupants::Mixed, Occupants::Within)
            }
            Occupants::Mixed => Occupants::Mixed,
        }
    }
}

/// The processes in a group and in the groups below.
#[derive(Debug, Clone, Copy, Default)]
struct Occupancy {
    /// Processes that a rule of their own assigns.
    named: Occupants,
    /// All other processes.
    others: Occupants,
    /// Whether the group itself has processes, not only groups below.
    has_own_processes: bool,
    /// Whether the group is a unit's slice that contains another unit's slice with processes.
    contains_unit_slice: bool,
}

impl Occupancy {
    fn add(&mut self, contract: &Contract, processes: &Inhabited, are_own: bool) {
        let occupants = if processes.named { &mut self.named } else { &mut self.others };
        *occupants = occupants.with(contract, processes.unit);
        self.has_own_processes |= are_own;
    }

    /// The unit to hold in this group, if any. A group with processes of several units is held only if the
    /// group cannot be divided, since it has processes of its own.
    fn unit(self) -> Option<UnitId> {
        if self.contains_unit_slice {
            return None;
        }
        let decisive = if self.others == Occupants::None { self.named } else { self.others };
        match decisive {
            Occupants::One(unit) => Some(unit),
            Occupants::Within(unit) => self.has_own_processes.then_some(unit),
            Occupants::None | Occupants::Mixed => None,
        }
    }
}

/// The innermost unit that is or encloses each of two units; `None` if there is no such unit.
fn common_encloser(contract: &Contract, one: UnitId, other: UnitId) -> Option<UnitId> {
    let enclosers: BTreeSet<UnitId> = lineage(contract, one).collect();
    lineage(contract, other).find(|unit| enclosers.contains(unit))
}

/// Chooses the foreign groups, by path, each with its unit. No chosen group contains another.
pub fn find(contract: &Contract, inhabited: &[Inhabited]) -> BTreeMap<String, UnitId> {
    // Which units have processes in each group that could be chosen.
    let unit_groups: BTreeSet<&str> = contract.held().filter_map(|unit| contract.group_of(unit)).collect();
    let mut occupancy: BTreeMap<&str, Occupancy> = BTreeMap::new();
    for processes in inhabited {
        for group in candidates(&unit_groups, &processes.group) {
            occupancy.entry(group).or_default().add(contract, processes, group == processes.group);
        }
        let mut outer_slices = slices_of_units(&processes.group);
        outer_slices.pop();
        for slice in outer_slices {
            occupancy.entry(slice).or_default().contains_unit_slice = true;
        }
    }
    // For each group with processes of units, the outermost candidate in which one unit can be held.
    let mut chosen = BTreeMap::new();
    for processes in inhabited.iter().filter(|processes| !processes.unit.is_common()) {
        let mut candidates = candidates(&unit_groups, &processes.group).into_iter();
        let outermost = candidates.find_map(|group| Some((group, occupancy.get(group)?.unit()?)));
        if let Some((group, unit)) = outermost {
            chosen.insert(group.to_string(), unit);
        }
    }
    chosen
}

/// The foreign group in which a process of `unit` is held, if any. The process is in `group`, and `groups`
/// are the foreign groups with their units. The result is `group` or an ancestor that is held for `unit` or
/// for a unit that encloses it.
pub fn held_in<'a>(
    contract: &Contract,
    groups: &'a BTreeMap<String, UnitId>,
    group: &str,
    unit: UnitId,
) -> Option<&'a str> {
    let foreign_group = ancestors_and_self(group).find_map(|group| groups.get_key_value(group));
    foreign_group
        .filter(|(_, owner)| lineage(contract, unit).any(|unit| unit == **owner))
        .map(|(group, _)| group.as_str())
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
        find(contract, &groups.iter().map(one).collect::<Vec<_>>()).into_iter().collect()
    }

    const ANA: &str = "/user.slice/user-1001.slice";
    const SHELL: &str = "/user.slice/user-1001.slice/session-3.scope";
    const MANAGER: &str = "/user.slice/user-1001.slice/user@1001.service/init.scope";
    const CRON: &str = "/system.slice/cron.service";

    #[test]
    fn a_users_slice_holds_all_its_processes() {
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
            "no group around users is held"
        );
    }

    /// Ana's job runs in the group of cron, which belongs to no unit.
    #[test]
    fn a_group_with_processes_of_others_is_not_held() {
        let (contract, [physics, ana, bob, _]) = contract();
        assert_eq!(found(&contract, &[(CRON, UnitId::SHARED, false), (CRON, ana, false)]), []);
        assert_eq!(found(&contract, &[(CRON, ana, false)]), [(CRON.to_string(), ana)]);
        assert_eq!(
            found(&contract, &[(CRON, ana, false), (CRON, bob, false)]),
            [(CRON.to_string(), physics)]
        );
        // Of a divided slice, an undivided child is held.
        let deep = found(&contract, &[(SHELL, ana, false), (MANAGER, UnitId::SHARED, false)]);
        assert_eq!(deep, [(SHELL.to_string(), ana)]);
    }

    /// A process with a rule of its own is moved to a scope of its own.
    #[test]
    fn a_named_process_is_ignored_beside_others() {
        let (contract, [_, ana, bob, _]) = contract();
        assert_eq!(found(&contract, &[(SHELL, ana, false), (SHELL, bob, true)]), [(ANA.to_string(), ana)]);
        assert_eq!(found(&contract, &[(SHELL, UnitId::SHARED, false), (SHELL, bob, true)]), []);
        let scope = "/commonhold.slice/commonhold-7.scope";
        assert_eq!(found(&contract, &[(scope, bob, true)]), [(scope.to_string(), bob)]);
        let groups = find(&contract, &[Inhabited { group: SHELL.to_string(), unit: ana, named: false }]);
        assert_eq!(held_in(&contract, &groups, SHELL, ana), Some(ANA));
        assert_eq!(held_in(&contract, &groups, SHELL, bob), None);
        assert_eq!(held_in(&contract, &groups, CRON, ana), None);
    }

    /// The unit physics has a scope, and ana in it has two: each slice is held once, and none encloses
    /// another.
    #[test]
    fn a_units_slice_holds_its_scopes() {
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
        // Processes of others in one scope do not spoil the rest of the unit's slice.
        let mixed = found(&contract, &[(&first, ana, true), (&second, UnitId::SHARED, false)]);
        assert_eq!(mixed, [(first, ana)]);
    }

    /// Two jobs of one manager, each a separate unit.
    #[test]
    fn a_group_that_can_be_divided_is() {
        let (contract, [physics, ana, bob, _]) = contract();
        let jobs = ["/system.slice/slurmstepd.scope/job_1", "/system.slice/slurmstepd.scope/job_2"];
        let [one, two] = jobs.map(|job| format!("{job}/step_0/user/task_0"));
        let system = "/system.slice/slurmstepd.scope/system";
        let held = found(&contract, &[(&one, ana, false), (&two, bob, false), (system, physics, false)]);
        let [one, two] = jobs.map(ToString::to_string);
        assert_eq!(held, [(one, ana), (two, bob), (system.to_string(), physics)]);
    }

    /// A pod has a slice, and each of its containers a scope in it: the sub-unit was made from the pod.
    #[test]
    fn the_group_that_a_sub_unit_was_made_from_is_held() {
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
        let held = found(
            &contract,
            &[
                (&container(&pod(1), 1), one, false),
                (&container(&pod(1), 2), one, false),
                (&container(&pod(2), 3), two, false),
                ("/kubepods.slice/other.scope", pods, false),
            ],
        );
        let other = "/kubepods.slice/other.scope".to_string();
        assert_eq!(held, [(pod(1), one), (pod(2), two), (other, pods)]);
        let groups = held.into_iter().collect();
        assert_eq!(held_in(&contract, &groups, &container(&pod(1), 1), one), Some(pod(1).as_str()));
        assert_eq!(held_in(&contract, &groups, "/kubepods.slice", pods), None);
    }

    #[test]
    fn the_owner_of_a_slice() {
        let slices = [
            "/user.slice/user-1001.slice",
            SHELL,
            "/user.slice/user-x.slice",
            "/user.slice",
            "/x/user-7.slice",
            CRON,
        ];
        assert_eq!(slices.map(owner_of), [Some(1001), Some(1001), None, None, None, None]);
    }
}
