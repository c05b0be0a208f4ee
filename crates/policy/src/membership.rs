//! Finds the unit that a process belongs to, and the rule that put it there.
//!
//! Problem: several rules of a contract may match one process.
//!
//! Terms: the kinds of rule, from the most *specific* to the least specific: started by the command
//! `commonhold exec`, `pid`, `cgroup`, `command`, `user`, `group`, the default unit.
//!
//! Algorithm: among the units of the top level, the most specific match wins. The search repeats among the
//! winning unit's sub-units, and so on down. So a sub-unit selects among its encloser's members only.
//!
//! Tie-breaks between matching rules of one kind: of two `cgroup` rules, the rule with the longer path wins.
//! Of two `command` rules, the rule with more literal characters wins; if these are equally many, the rule
//! that is restricted to a user or group wins. In all other cases, the unit that comes first in the contract
//! wins.
//!
//! Inheritance: a child of a process matched by `exec`, `pid` or `command` inherits its parent's unit, unless
//! a rule at least as specific matches the child. For example, a build's compilers belong to the build.
//!
//! Properties: every process is in exactly one unit. Equal inputs give equal units. A rule of a sub-unit
//! never moves a process out of another unit than the sub-unit's encloser.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use commonhold_contract::{Contract, Member, MemberKind, Principal, UnitId, Whose};

/// The facts about a process that decide its unit. Users and groups are numeric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessFacts {
    /// Process ID.
    pub pid: u32,
    /// Whether it is a kernel thread.
    pub kernel_thread: bool,
    /// Effective user.
    pub uid: u32,
    /// Primary and supplementary groups.
    pub gids: Vec<u32>,
    /// The base name under which it was executed, which may be that of a script or of a symbolic link to its
    /// program. Truncated to 15 bytes if the kernel reports no more.
    pub comm: String,
    /// Base name of its executable (a script's interpreter). Empty if unknown.
    pub program: String,
    /// Its cgroup v2 path (`/user.slice/...`), or the v1 systemd hierarchy's; empty if unknown.
    pub cgroup: String,
    /// Whether it is a systemd user manager (`systemd --user`) or the manager's helper `(sd-pam)`.
    /// Independent of its control group.
    pub manager: bool,
    /// The unit that it entered by `exec`.
    pub entered: Option<UnitId>,
    /// Its parent's placement.
    pub parent: Option<Placement>,
}

/// The kind of rule that put a process into its unit, the least specific first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Nothing matched.
    Default,
    /// `user:FIRST-LAST`
    Users,
    /// `group:`
    Group,
    /// `user:`
    User,
    /// `command:`
    Command,
    /// `cgroup:`
    Cgroup,
    /// `pid:`
    Pid,
    /// The process entered the unit by `commonhold exec`.
    Exec,
    /// The kernel's own thread.
    Kernel,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::Default => "default",
            Rule::Users => "users",
            Rule::Group => "group",
            Rule::User => "user",
            Rule::Command => "command",
            Rule::Cgroup => "cgroup",
            Rule::Pid => "pid",
            Rule::Exec => "exec",
            Rule::Kernel => "kernel",
        })
    }
}

/// The unit of a process, and the rule that decided it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The unit.
    pub unit: UnitId,
    /// The rule.
    pub rule: Rule,
    /// Whether the rule matched an ancestor of the process rather than the process itself.
    pub inherited: bool,
    /// The rule itself: the unit that has it, and its index in that unit's `members`. `None` for default,
    /// exec and kernel.
    pub member: Option<(UnitId, u16)>,
    /// Whether a rule that names the process itself (`exec`, `pid`, `cgroup`, `command`) selected the unit or
    /// a unit around it.
    pub named: bool,
}

impl Placement {
    /// A placement in a unit although no rule of the contract matched.
    pub fn by_default(unit: UnitId) -> Placement {
        Placement { unit, rule: Rule::Default, inherited: false, member: None, named: false }
    }
}

/// Why a member stays in another program's control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stays {
    /// A systemd user manager, or a process below `user@UID.service`, which it manages.
    UserManager,
    /// A process of a system service or a container that no rule names.
    Service,
    /// The unit's limits are applied in that control group: see [`crate::foreign_groups`].
    InPlace,
    /// That control group also has processes of other units, so no unit's limits can be applied there.
    Mixed,
}

impl Stays {
    /// Whether the unit's limits do not reach the process.
    pub fn is_outside(self) -> bool {
        self != Stays::InPlace
    }
}

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stays::UserManager => "kept by a user's service manager",
            Stays::Service => {
                "part of a system service or container that no `cgroup:`, `command:` or `pid:` rule names"
            }
            Stays::InPlace => "held where they are",
            Stays::Mixed => "in a control group with processes of other units",
        })
    }
}

/// Resolves the users and groups that a contract names, on this machine.
pub trait Names {
    /// The ID of a user.
    fn uid(&self, name: &str) -> Option<u32>;
    /// The ID of a group.
    fn gid(&self, name: &str) -> Option<u32>;
}

/// Decides the unit of a process.
pub fn place(contract: &Contract, names: &impl Names, process: &ProcessFacts) -> Placement {
    if process.kernel_thread {
        return Placement { rule: Rule::Kernel, ..Placement::by_default(UnitId::KERNEL) };
    }
    let default = Placement::by_default(contract.default_unit);
    let mut placement = best_match(contract, names, process, None).unwrap_or(default);
    // Even the default unit may have sub-units that select among its members.
    while let Some(deeper) = best_match(contract, names, process, Some(placement.unit)) {
        placement = Placement { named: placement.named || deeper.named, ..deeper };
    }
    placement
}

/// Why a process must stay in its present control group; `None` if it may be moved. If a process leaves the
/// control group in which systemd started it, systemd loses track of the service, and a user manager loses
/// its right to start anything.
///
/// User managers and all processes below `user@UID.service` stay. A process of a system service stays unless
/// a rule names the process. `delegated` is the control group delegated to this program, if any: its
/// processes may be moved. If a user started this program below `user@UID.service`, that user's other
/// processes follow the rules for system services.
pub fn stays(process: &ProcessFacts, placement: &Placement, delegated: Option<&str>) -> Option<Stays> {
    if process.manager {
        return Some(Stays::UserManager);
    }
    let group = process.cgroup.as_str();
    if delegated.is_some_and(|delegated| is_below(group, delegated)) {
        return None;
    }
    let group = match split_at_user_manager(group) {
        None => group,
        Some((manager, rest)) => {
            let is_our_manager = delegated.is_some_and(|delegated| is_below(delegated, manager));
            if !is_our_manager || is_below(rest, "/init.scope") {
                return Some(Stays::UserManager);
            }
            rest
        }
    };
    let is_service = ["/system.slice", "/machine.slice"].iter().any(|slice| is_below(group, slice))
        || group.split('/').any(|name| {
            name.ends_with(".service") || CONTAINERS.iter().any(|runtime| name.starts_with(runtime))
        });
    (is_service && !placement.named).then_some(Stays::Service)
}

/// Prefixes of the control groups that container runtimes create.
const CONTAINERS: [&str; 7] = ["docker", "kubepods", "libpod", "crio", "cri-containerd", "containerd", "lxc"];

/// Splits a path after its first `user@UID.service`: the user manager's group, and the rest, which is empty
/// or begins with `/`. `None` if the path has no such name.
fn split_at_user_manager(group: &str) -> Option<(&str, &str)> {
    let is_manager = |name: &str| name.starts_with("user@") && name.ends_with(".service");
    let mut end = 0;
    for name in group.split('/') {
        end += name.len();
        if is_manager(name) {
            return Some(group.split_at(end));
        }
        end += 1;
    }
    None
}

/// Whether `group` equals `ancestor` or is below it.
fn is_below(group: &str, ancestor: &str) -> bool {
    group
        .strip_prefix(ancestor.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The best match among the units directly in `level` (`None`: at the top level); `None` if no unit matches.
fn best_match(
    contract: &Contract,
    names: &impl Names,
    process: &ProcessFacts,
    level: Option<UnitId>,
) -> Option<Placement> {
    let mut best: Option<(Rule, bool, usize, Placement)> = None;
    for unit in contract.children(level) {
        for (rank, placement) in matches(contract, names, process, unit) {
            // Among equally specific matches, a process's own beats an inherited one; ties go to the first in
            // the contract.
            let key = (placement.rule, !placement.inherited, rank);
            if best.as_ref().is_none_or(|(rule, own, rank, _)| key > (*rule, *own, *rank)) {
                best = Some((key.0, key.1, key.2, placement));
            }
        }
    }
    best.map(|(_, _, _, placement)| placement)
}

/// All ways in which a process matches a unit, each with its rank among matches by the same kind of rule. A
/// process that entered one of its sub-units by `exec`, or whose parent is in one, matches as well.
fn matches(
    contract: &Contract,
    names: &impl Names,
    process: &ProcessFacts,
    unit: UnitId,
) -> Vec<(usize, Placement)> {
    let mut matches = Vec::new();
    if process.entered.is_some_and(|entered| is_within(contract, entered, unit)) {
        matches.push((0, Placement { rule: Rule::Exec, named: true, ..Placement::by_default(unit) }));
    }
    if let Some(parent) = process.parent
        && matches!(parent.rule, Rule::Exec | Rule::Pid | Rule::Command)
        && is_within(contract, parent.unit, unit)
    {
        matches.push((0, Placement { unit, inherited: true, ..parent }));
    }
    for (member, position) in contract.unit(unit).members.iter().zip(0u16..) {
        if let Some((rule, rank)) = matches_member(names, process, member) {
            let member = Some((unit, position));
            let named = rule >= Rule::Command;
            matches.push((rank, Placement { unit, rule, inherited: false, member, named }));
        }
    }
    matches
}

/// A test of a process that the scheduler can make when the process executes a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// A `command:` pattern.
    Command(String),
    /// A `command:` pattern restricted to an effective user.
    CommandOfUser(String, u32),
    /// A `command:` pattern restricted to a group.
    CommandOfGroup(String, u32),
    /// A `command:` rule put its parent into a unit of this level, or into a unit inside one.
    Inherited,
    /// Effective user.
    User(u32),
    /// Effective user, by the first and the last number of a range.
    Users(u32, u32),
    /// One of its groups.
    Group(u32),
    /// Matches every remaining process.
    Otherwise,
}

/// A test, and the unit of the processes that pass the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// The test.
    pub test: Test,
    /// The unit; `None` for [`Test::Inherited`], which may mean any unit of the level.
    pub unit: Option<UnitId>,
}

/// The decision of [`place`] as lists of tests, one list per level, for the scheduler, which cannot call
/// `place`. Begin with the list of the top level (`None`). The first test that the process passes selects a
/// unit of that level; continue with that unit's list. If the process passes no test, it belongs to the unit
/// reached so far.
///
/// The lists are valid for processes that no `cgroup` or `pid` rule matches, and that neither entered by
/// `exec` nor have a parent that did.
pub fn selectors(contract: &Contract, names: &impl Names, level: Option<UnitId>) -> Vec<Selector> {
    let mut ranked: Vec<(Rule, usize, Selector)> = Vec::new();
    for unit in contract.children(level) {
        for member in &contract.unit(unit).members {
            let (rule, test) = match &member.kind {
                MemberKind::Command(glob) => (Rule::Command, Some(Test::Command(glob.clone()))),
                MemberKind::CommandOf(glob, whose) => {
                    (Rule::Command, restricted_command_test(names, glob, whose))
                }
                MemberKind::User(user) => (Rule::User, uid_of(names, user).map(Test::User)),
                MemberKind::Users(first, last) => (Rule::Users, Some(Test::Users(*first, *last))),
                MemberKind::Group(group) => (Rule::Group, gid_of(names, group).map(Test::Group)),
                MemberKind::Cgroup(_) | MemberKind::Pid(_) => continue,
            };
            let rank = match &member.kind {
                MemberKind::Command(glob) => command_rank(glob, false),
                MemberKind::CommandOf(glob, _) => command_rank(glob, true),
                MemberKind::Users(first, last) => range_rank(*first, *last),
                _ => 0,
            };
            ranked.extend(test.map(|test| (rule, rank, Selector { test, unit: Some(unit) })));
        }
    }
    // Stable: ties keep the order of the contract.
    ranked.sort_by_key(|(rule, rank, _)| core::cmp::Reverse((*rule, *rank)));
    // A process's own `command` rule beats an inherited one, and an inherited one beats `user` and `group`.
    let command_rules = ranked.iter().take_while(|(rule, _, _)| *rule == Rule::Command).count();
    let mut selectors: Vec<Selector> = ranked.into_iter().map(|(_, _, selector)| selector).collect();
    if contract.children(level).next().is_some() {
        selectors.insert(command_rules, Selector { test: Test::Inherited, unit: None });
    }
    if level.is_none() {
        selectors.push(Selector { test: Test::Otherwise, unit: Some(contract.default_unit) });
    }
    selectors
}

/// Whether `unit` is `encloser` or inside it.
pub fn is_within(contract: &Contract, mut unit: UnitId, encloser: UnitId) -> bool {
    loop {
        if unit == encloser {
            return true;
        }
        match contract.unit(unit).parent {
            Some(parent) => unit = parent,
            None => return false,
        }
    }
}

/// Whether a process may enter a unit by `exec`. The unit, and each unit around it, must name the process's
/// user or one of the process's groups as a member. A unit below the top level that names no user and no
/// group is open to all. The common units are closed. Root and the daemon's own user are exempt; callers
/// check that.
pub fn may_enter(contract: &Contract, names: &impl Names, process: &ProcessFacts, unit: UnitId) -> bool {
    let is_principal = |member: &&Member| {
        matches!(member.kind, MemberKind::User(_) | MemberKind::Users(..) | MemberKind::Group(_))
    };
    let mut next = Some(unit).filter(|unit| !unit.is_common());
    let mut is_allowed = next.is_some();
    while let Some(id) = next {
        let unit = contract.unit(id);
        let mut principals = unit.members.iter().filter(is_principal);
        let is_named = principals.any(|member| matches_member(names, process, member).is_some());
        let is_open = unit.parent.is_some() && !unit.members.iter().any(|member| is_principal(&member));
        is_allowed &= is_named || is_open;
        next = unit.parent;
    }
    is_allowed
}

/// The owner of a unit's currency: the unit's own `owner`, else that of the nearest unit around it with an
/// `owner`.
pub fn owner_of(contract: &Contract, unit: UnitId) -> Option<&Member> {
    let mut next = Some(unit).filter(|unit| contract.has(*unit));
    while let Some(id) = next {
        let unit = contract.unit(id);
        if unit.owner.is_some() {
            return unit.owner.as_ref();
        }
        next = unit.parent;
    }
    None
}

/// Whether a process acts for an owner: runs as the owning user, or has the owning group.
pub fn is_owners(names: &impl Names, process: &ProcessFacts, owner: &Member) -> bool {
    let is_principal = matches!(owner.kind, MemberKind::User(_) | MemberKind::Group(_));
    is_principal && matches_member(names, process, owner).is_some()
}

fn uid_of(names: &impl Names, user: &Principal) -> Option<u32> {
    match user {
        Principal::Id(uid) => Some(*uid),
        Principal::Name(name) => names.uid(name),
    }
}

fn gid_of(names: &impl Names, group: &Principal) -> Option<u32> {
    match group {
        Principal::Id(gid) => Some(*gid),
        Principal::Name(name) => names.gid(name),
    }
}

/// The test for a `command` rule restricted to a user or group; `None` if this machine does not know that
/// user or group.
fn restricted_command_test(names: &impl Names, glob: &str, whose: &Whose) -> Option<Test> {
    Some(match whose {
        Whose::User(user) => Test::CommandOfUser(glob.into(), uid_of(names, user)?),
        Whose::Group(group) => Test::CommandOfGroup(glob.into(), gid_of(names, group)?),
    })
}

/// The rank of a `command` rule among such rules: first by literal characters, then by whether the rule is
/// restricted to a user or group.
fn command_rank(glob: &str, is_restricted: bool) -> usize {
    literal_chars(glob) * 2 + usize::from(is_restricted)
}

/// The rank of a range of users among ranges: the narrower wins.
fn range_rank(first: u32, last: u32) -> usize {
    usize::try_from(u32::MAX - last.saturating_sub(first)).unwrap_or(usize::MAX)
}

/// Whether a process's program, or the name under which it was executed, matches a pattern.
fn executes(process: &ProcessFacts, glob: &str) -> bool {
    glob_matches(glob, &process.program) || glob_matches(glob, &process.comm)
}

/// The number of characters of a pattern that are not wildcards.
fn literal_chars(glob: &str) -> usize {
    glob.chars().filter(|c| !matches!(c, '*' | '?')).count()
}

/// The kind and rank of a rule if the rule matches a process; `None` if not, or if this machine does not know
/// the rule's user or group.
fn matches_member(names: &impl Names, process: &ProcessFacts, member: &Member) -> Option<(Rule, usize)> {
    match &member.kind {
        MemberKind::Group(group) => process.gids.contains(&gid_of(names, group)?).then_some((Rule::Group, 0)),
        MemberKind::User(user) => (uid_of(names, user)? == process.uid).then_some((Rule::User, 0)),
        MemberKind::Users(first, last) => {
            (*first..=*last).contains(&process.uid).then(|| (Rule::Users, range_rank(*first, *last)))
        }
        MemberKind::Command(glob) => {
            executes(process, glob).then(|| (Rule::Command, command_rank(glob, false)))
        }
        MemberKind::CommandOf(glob, whose) => {
            let is_of_principal = match whose {
                Whose::User(user) => uid_of(names, user)? == process.uid,
                Whose::Group(group) => process.gids.contains(&gid_of(names, group)?),
            };
            (is_of_principal && executes(process, glob)).then(|| (Rule::Command, command_rank(glob, true)))
        }
        MemberKind::Cgroup(path) => {
            let path = path.trim_end_matches('/');
            is_below(&process.cgroup, path).then_some((Rule::Cgroup, path.len()))
        }
        MemberKind::Pid(pid) => (*pid == process.pid).then_some((Rule::Pid, 0)),
    }
}

/// Whether a glob (`*` any sequence, `?` any one character) matches the whole text. Empty text never matches.
pub fn glob_matches(glob: &str, text: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut g, mut t) = (0, 0);
    // The index of the last `*`, and the end of the text that this `*` matched so far. On a mismatch,
    // backtrack: let the `*` match one more character.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, t));
                g += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (g, t) = (g + 1, t + 1),
            _ => match star {
                Some((at, swallowed)) => {
                    star = Some((at, swallowed + 1));
                    (g, t) = (at + 1, swallowed + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_contract::MemberKind as K;

    struct Book;
    impl Names for Book {
        fn uid(&self, name: &str) -> Option<u32> {
            [("ana", 1000), ("bo", 1001)].iter().find(|(n, _)| *n == name).map(|(_, id)| *id)
        }
        fn gid(&self, name: &str) -> Option<u32> {
            [("physics", 500), ("students", 501)].iter().find(|(n, _)| *n == name).map(|(_, id)| *id)
        }
    }

    fn named(name: &str) -> Principal {
        Principal::Name(name.to_owned())
    }

    /// physics: group physics, user ana; below it night-batch: command simulate*. students: group students,
    /// cgroup /lab. solo: pid 77, command make.
    fn contract() -> Contract {
        let mut c = Contract::default();
        let physics = c.add(None, "physics");
        let batch = c.add(Some(physics), "night-batch");
        let students = c.add(None, "students");
        let solo = c.add(None, "solo");
        let mut member = |unit: UnitId, kind| c.units[unit.index()].members.push(Member { kind, span: 0..0 });
        member(physics, K::Group(named("physics")));
        member(physics, K::User(named("ana")));
        member(batch, K::Command("simulate*".to_owned()));
        member(students, K::Group(named("students")));
        member(students, K::Cgroup("/lab".to_owned()));
        member(solo, K::Pid(77));
        member(solo, K::Command("make".to_owned()));
        c
    }

    #[track_caller]
    fn check(process: &ProcessFacts, path: &str, rule: Rule) {
        let contract = contract();
        let placement = place(&contract, &Book, process);
        assert_eq!((contract.unit(placement.unit).path.as_str(), placement.rule), (path, rule));
    }

    fn process(uid: u32, gids: &[u32], comm: &str) -> ProcessFacts {
        ProcessFacts { pid: 10, uid, gids: gids.to_vec(), comm: comm.to_owned(), ..ProcessFacts::default() }
    }

    #[test]
    fn the_tests_of_a_level_are_in_the_order_of_their_rules() {
        let contract = contract();
        let unit = |path: &str| contract.find(path);
        let list = |level| -> Vec<(Test, Option<UnitId>)> {
            selectors(&contract, &Book, level).into_iter().map(|found| (found.test, found.unit)).collect()
        };
        let top = [
            (Test::Command("make".to_owned()), unit("solo")),
            (Test::Inherited, None),
            (Test::User(1000), unit("physics")),
            (Test::Group(500), unit("physics")),
            (Test::Group(501), unit("students")),
            (Test::Otherwise, Some(UnitId::SHARED)),
        ];
        assert_eq!(list(None), top);
        let night =
            [(Test::Command("simulate*".to_owned()), unit("physics/night-batch")), (Test::Inherited, None)];
        assert_eq!(list(unit("physics")), night);
        assert_eq!(list(unit("students")), []);
    }

    #[test]
    fn the_most_specific_rule_wins() {
        check(&process(5, &[501], "bash"), "students", Rule::Group);
        // Ana is in both groups; her user rule is more specific than the students' group rule.
        check(&process(1000, &[500, 501], "bash"), "physics", Rule::User);
        check(&process(1000, &[500], "make"), "solo", Rule::Command);
        check(
            &ProcessFacts { cgroup: "/lab/x".to_owned(), ..process(1000, &[], "make") },
            "students",
            Rule::Cgroup,
        );
        check(
            &ProcessFacts { cgroup: "/laboratory".to_owned(), ..process(1000, &[], "sh") },
            "physics",
            Rule::User,
        );
        check(
            &ProcessFacts { pid: 77, cgroup: "/lab".to_owned(), ..process(1000, &[], "make") },
            "solo",
            Rule::Pid,
        );
        check(&process(5, &[5], "bash"), "shared", Rule::Default);
        check(&ProcessFacts { kernel_thread: true, ..process(0, &[0], "kswapd0") }, "kernel", Rule::Kernel);
    }

    #[test]
    fn a_sub_unit_selects_among_its_enclosers_members_only() {
        check(&process(1000, &[], "simulate-42"), "physics/night-batch", Rule::Command);
        check(&process(5, &[501], "simulate-42"), "students", Rule::Group);
    }

    #[test]
    fn children_of_a_command_stay_with_it_unless_something_as_specific_says_otherwise() {
        let contract = contract();
        let make = place(&contract, &Book, &process(1001, &[501], "make"));
        let child = ProcessFacts { parent: Some(make), ..process(1001, &[501], "cc1") };
        let placed = place(&contract, &Book, &child);
        assert_eq!((placed.unit, placed.rule, placed.inherited), (make.unit, Rule::Command, true));
        let own =
            ProcessFacts { parent: Some(make), cgroup: "/lab".to_owned(), ..process(1001, &[501], "cc1") };
        check(&own, "students", Rule::Cgroup);
        // A group rule is not inherited: a daemon that a student starts for another user by `su` belongs to
        // that user.
        let student = place(&contract, &Book, &process(5, &[501], "bash"));
        check(&ProcessFacts { parent: Some(student), ..process(9, &[9], "sh") }, "shared", Rule::Default);
    }

    #[test]
    fn a_process_that_entered_by_exec_stays_in_the_unit() {
        let batch = contract().find("physics/night-batch").unwrap();
        let entered = ProcessFacts { entered: Some(batch), ..process(5, &[501], "make") };
        check(&entered, "physics/night-batch", Rule::Exec);
        let placed = place(&contract(), &Book, &entered);
        check(
            &ProcessFacts { parent: Some(placed), ..process(5, &[501], "make") },
            "physics/night-batch",
            Rule::Exec,
        );
    }

    /// A unit inherits the owner of the nearest unit around it, unless it has its own.
    #[test]
    fn an_owner_owns_sub_units_without_an_owner() {
        let mut contract = contract();
        let [physics, batch, students] =
            ["physics", "physics/night-batch", "students"].map(|path| contract.find(path).unwrap());
        let inner = contract.add(Some(batch), "inner");
        let mut own =
            |unit: UnitId, kind| contract.units[unit.index()].owner = Some(Member { kind, span: 0..0 });
        own(physics, K::Group(named("physics")));
        own(inner, K::User(named("bo")));
        let ana = ProcessFacts { uid: 1000, gids: vec![500], ..ProcessFacts::default() };
        let bo = ProcessFacts { uid: 1001, gids: vec![501], ..ProcessFacts::default() };
        let owns = |process: &ProcessFacts| {
            [physics, batch, inner, students, UnitId::SHARED]
                .map(|unit| owner_of(&contract, unit).is_some_and(|owner| is_owners(&Book, process, owner)))
        };
        assert_eq!(owns(&ana), [true, true, false, false, false]);
        assert_eq!(owns(&bo), [false, false, true, false, false]);
        // An unknown name matches no process, and a rule that is no user or group owns nothing.
        let nobody = Member { kind: K::User(named("nobody")), span: 0..0 };
        let command = Member { kind: K::Command("*".to_owned()), span: 0..0 };
        assert!(![nobody, command].iter().any(|owner| is_owners(&Book, &ana, owner)));
    }

    #[test]
    fn only_members_may_enter() {
        let contract = contract();
        let may = |process: &ProcessFacts, path: &str| {
            may_enter(&contract, &Book, process, contract.find(path).unwrap())
        };
        // A physicist may enter physics and night-batch, which names no users; not students.
        let physicist = process(9, &[500], "sh");
        assert!(may(&physicist, "physics") && may(&physicist, "physics/night-batch"));
        assert!(!may(&physicist, "students"));
        // Solo names no user and no group: only root and the daemon's user may enter. The common parts are
        // closed to all.
        assert!(!may(&physicist, "solo") && !may(&physicist, "kernel") && !may(&physicist, "shared"));
    }

    /// Whether a process of user 1000 stays, if placed by a rule that names it or not.
    fn stay(cgroup: &str, named: bool, delegated: Option<&str>) -> Option<Stays> {
        let process = ProcessFacts { cgroup: cgroup.to_owned(), ..process(1000, &[], "sleep") };
        stays(&process, &Placement { named, ..Placement::by_default(UnitId(2)) }, delegated)
    }

    #[test]
    fn processes_of_a_user_manager_always_stay() {
        for group in [
            "/user.slice/user-1000.slice/user@1000.service/app.slice/a.service",
            "/user@1000.service",
            "/x/user@7.service/init.scope",
        ] {
            for named in [false, true] {
                assert_eq!(stay(group, named, None), Some(Stays::UserManager), "{group}");
            }
        }
        let manager = ProcessFacts { manager: true, ..process(1000, &[], "systemd") };
        assert_eq!(stays(&manager, &Placement::by_default(UnitId(2)), None), Some(Stays::UserManager));
        for group in
            ["", "/", "/user.slice/user-1000.slice/session-3.scope", "/lab/user@x", "/lab/myuser@1.service.d"]
        {
            assert_eq!(stay(group, false, None), None, "{group}");
        }
    }

    #[test]
    fn a_services_processes_stay_unless_a_rule_names_them() {
        for group in [
            "/system.slice/cron.service",
            "/system.slice/docker-1.scope",
            "/machine.slice/a.scope",
            "/kubepods.slice/kubepods-pod1.slice/x",
            "/docker/1",
            "/lab/x.service/y",
        ] {
            assert_eq!(
                (stay(group, false, None), stay(group, true, None)),
                (Some(Stays::Service), None),
                "{group}"
            );
        }
        assert_eq!(stay("/systemd.slice", false, None), None);
    }

    #[test]
    fn a_users_daemon_moves_processes_of_its_delegated_group() {
        let ours = Some("/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope");
        let below = |rest: &str| format!("/user.slice/user-1000.slice/user@1000.service{rest}");
        assert_eq!(stay(&below("/app.slice/run-1.scope/x"), false, ours), None);
        assert_eq!(stay(&below("/app.slice/terminal.scope"), false, ours), None);
        assert_eq!(stay(&below("/app.slice/mail.service"), false, ours), Some(Stays::Service));
        assert_eq!(stay(&below("/app.slice/mail.service"), true, ours), None);
        assert_eq!(stay(&below("/init.scope"), true, ours), Some(Stays::UserManager));
        assert_eq!(
            stay("/user.slice/user-7.slice/user@7.service/a.scope", true, ours),
            Some(Stays::UserManager)
        );
    }

    /// A rule of an enclosing unit counts: if it names a service's processes, so are those in its users'
    /// sub-units.
    #[test]
    fn a_process_is_named_by_the_rules_of_every_level() {
        let mut contract = contract();
        let students = contract.find("students").unwrap();
        let ana = contract.add(Some(students), "ana");
        contract.units[ana.index()].members.push(Member { kind: K::User(named("ana")), span: 0..0 });
        let in_lab = ProcessFacts { cgroup: "/lab".to_owned(), ..process(1000, &[], "sh") };
        let placed = place(&contract, &Book, &in_lab);
        assert_eq!((placed.unit, placed.rule, placed.named), (ana, Rule::User, true));
        assert!(!place(&contract, &Book, &process(1000, &[501], "sh")).named);
        assert!(place(&contract, &Book, &process(5, &[], "make")).named);
    }

    #[test]
    fn globs() {
        for (glob, text, hit) in [
            ("make", "make", true),
            ("make", "cmake", false),
            ("*make", "cmake", true),
            ("sim*late", "simulate", true),
            ("sim*late", "simulated", false),
            ("?c", "cc", true),
            ("*", "", false),
            ("a*b*c", "aXbYbZc", true),
            ("**", "x", true),
        ] {
            assert_eq!(glob_matches(glob, text), hit, "{glob} against {text}");
        }
    }
}
