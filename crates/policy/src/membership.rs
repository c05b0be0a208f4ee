//! Which unit a process belongs to, and by which rule.
//!
//! Problem: several rules of a contract may match one process.
//!
//! Terms: a rule's *specificity* is, from most to least: entered by `exec`, `pid`, `cgroup`, `command`, `user`,
//! `group`, default.
//!
//! Algorithm: among the units of the top level, the most specific match wins. Then the same is done among that unit's
//! sub-units, and so on down. So a sub-unit selects among its encloser's members, never from outside. Of two `cgroup`
//! rules the longest path wins. Of two `command` rules, the one with more literal characters wins, then the one that is
//! restricted to a user or a group. Otherwise the unit that stands first wins. What a process matched by `exec`, `pid` or `command` starts belongs where its parent does,
//! unless a rule at least as specific says otherwise: a build's compilers belong to the build.
//!
//! Properties: total (every process is in exactly one unit), deterministic, and local: a rule inside one unit never
//! moves a process out of another.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use commonhold_contract::{Contract, Member, MemberKind, Principal, UnitId, Whose};

/// What membership is decided on. Names of users and groups are numbers here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessFacts {
    /// The process.
    pub pid: u32,
    /// A thread of the kernel's own.
    pub kernel_thread: bool,
    /// Effective user.
    pub uid: u32,
    /// Primary and supplementary groups.
    pub gids: Vec<u32>,
    /// The base name by which it was executed: of a script, or of a symbolic link to its program. Cut to 15 bytes where the
    /// rest is unknown.
    pub comm: String,
    /// Base name of the file that it executes: of a script, the interpreter's. Empty if unknown.
    pub program: String,
    /// Its cgroup v2 path (`/user.slice/...`), or the v1 systemd hierarchy's; empty if unknown.
    pub cgroup: String,
    /// A service manager of systemd's (`systemd --user`) or its helper `(sd-pam)`, whatever control group it is in.
    pub manager: bool,
    /// The unit it entered by `exec`.
    pub entered: Option<UnitId>,
    /// Where its parent process was placed.
    pub parent: Option<Placement>,
}

/// The rule that put a process into its unit, least specific first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Nothing matched.
    Default,
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
    /// Entered by `commonhold exec`.
    Exec,
    /// The kernel's own thread.
    Kernel,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::Default => "default",
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

/// Where a process belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The unit.
    pub unit: UnitId,
    /// What put it there.
    pub rule: Rule,
    /// Whether the rule matched an ancestor of the process rather than the process itself.
    pub inherited: bool,
    /// Where `members` says so: unit and position in its list. None for default, exec and kernel.
    pub member: Option<(UnitId, u16)>,
    /// Whether a rule that names the process itself led to the unit or to one around it: `exec`, `pid`, `cgroup`, `command`.
    pub named: bool,
}

impl Placement {
    /// In a unit that no rule of the contract led to.
    pub fn by_default(unit: UnitId) -> Placement {
        Placement { unit, rule: Rule::Default, inherited: false, member: None, named: false }
    }
}

/// Why a member stays in the control group that another program put it into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stays {
    /// A user's service manager, or a process below `user@UID.service`, which that manager keeps.
    UserManager,
    /// A process of a system service, or in a container, that no rule names.
    Service,
    /// Its unit is held in this control group: see [`crate::foreign_groups`].
    InPlace,
    /// Its control group has processes of other units, too, so that no unit can be held there.
    Mixed,
}

impl Stays {
    /// Whether nothing of the unit's control groups holds such a process.
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

/// Numbers behind the names of users and groups that a contract uses, as the machine at hand knows them.
pub trait Names {
    /// The number of a user.
    fn uid(&self, name: &str) -> Option<u32>;
    /// The number of a group.
    fn gid(&self, name: &str) -> Option<u32>;
}

/// Decides where a process belongs.
pub fn place(contract: &Contract, names: &impl Names, process: &ProcessFacts) -> Placement {
    if process.kernel_thread {
        return Placement { rule: Rule::Kernel, ..Placement::by_default(UnitId::KERNEL) };
    }
    let default = Placement::by_default(contract.default_unit);
    let mut found = descend(contract, names, process, None).unwrap_or(default);
    // Even the default unit may have sub-units that select among what fell into it.
    while let Some(deeper) = descend(contract, names, process, Some(found.unit)) {
        found = Placement { named: found.named || deeper.named, ..deeper };
    }
    found
}

/// Whether a process may not be moved out of the control group that it is in, and why. systemd loses a service, a session's
/// user manager loses its right to start anything, when a process is moved out of the group that it was given.
///
/// A user's manager and everything below `user@UID.service` stay. A process of a system service stays unless a rule names
/// it. `delegated` is the control group that was given to this program, if one was: what is in it may be moved; and for a
/// daemon that a user started below `user@UID.service`, that user's other processes count as those of a system do.
pub fn stays(process: &ProcessFacts, placement: &Placement, delegated: Option<&str>) -> Option<Stays> {
    if process.manager {
        return Some(Stays::UserManager);
    }
    let group = process.cgroup.as_str();
    if delegated.is_some_and(|ours| is_below(group, ours)) {
        return None;
    }
    let group = match below_user_manager(group) {
        None => group,
        Some((manager, rest)) => {
            let same_users = delegated.is_some_and(|ours| is_below(ours, manager));
            if !same_users || is_below(rest, "/init.scope") {
                return Some(Stays::UserManager);
            }
            rest
        }
    };
    let of_service = ["/system.slice", "/machine.slice"].iter().any(|slice| is_below(group, slice))
        || group.split('/').any(|name| {
            name.ends_with(".service") || CONTAINERS.iter().any(|runtime| name.starts_with(runtime))
        });
    (of_service && !placement.named).then_some(Stays::Service)
}

/// What the names of control groups begin with that runtimes make for containers.
const CONTAINERS: [&str; 7] = ["docker", "kubepods", "libpod", "crio", "cri-containerd", "containerd", "lxc"];

/// A path up to the first `user@UID.service` in it, and what comes after it.
fn below_user_manager(group: &str) -> Option<(&str, &str)> {
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

/// Whether a control group is another one, or below it.
fn is_below(group: &str, other: &str) -> bool {
    group
        .strip_prefix(other.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The best match among the units directly below `level`.
fn descend(
    contract: &Contract,
    names: &impl Names,
    process: &ProcessFacts,
    level: Option<UnitId>,
) -> Option<Placement> {
    let mut best: Option<(Rule, bool, usize, Placement)> = None;
    for unit in contract.children(level) {
        for (rank, placement) in matches(contract, names, process, unit) {
            // A process's own match beats an inherited one of the same specificity; the first in the file wins ties.
            let key = (placement.rule, !placement.inherited, rank);
            if best.as_ref().is_none_or(|(rule, own, rank, _)| key > (*rule, *own, *rank)) {
                best = Some((key.0, key.1, key.2, placement));
            }
        }
    }
    best.map(|(_, _, _, placement)| placement)
}

/// Every way in which a process belongs to a unit or to one of its sub-units by `exec`, with a rank among equal rules.
fn matches(
    contract: &Contract,
    names: &impl Names,
    process: &ProcessFacts,
    unit: UnitId,
) -> Vec<(usize, Placement)> {
    let mut found = Vec::new();
    if process.entered.is_some_and(|entered| is_within(contract, entered, unit)) {
        found.push((0, Placement { rule: Rule::Exec, named: true, ..Placement::by_default(unit) }));
    }
    if let Some(parent) = process.parent
        && matches!(parent.rule, Rule::Exec | Rule::Pid | Rule::Command)
        && is_within(contract, parent.unit, unit)
    {
        found.push((0, Placement { unit, inherited: true, ..parent }));
    }
    for (member, position) in contract.unit(unit).members.iter().zip(0u16..) {
        if let Some((rule, rank)) = matches_member(names, process, member) {
            let member = Some((unit, position));
            let named = rule >= Rule::Command;
            found.push((rank, Placement { unit, rule, inherited: false, member, named }));
        }
    }
    found
}

/// What can be tested of a process at the moment when it executes a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// A `command:` pattern.
    Command(String),
    /// A `command:` pattern, of an effective user's processes.
    CommandOfUser(String, u32),
    /// A `command:` pattern, of the processes in a group.
    CommandOfGroup(String, u32),
    /// Whether a `command:` rule put its parent into the unit, or into one below it.
    Inherited,
    /// Effective user.
    User(u32),
    /// One of its groups.
    Group(u32),
    /// Processes that nothing else matched.
    Otherwise,
}

/// A test, and the unit of a process that passes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// The test.
    pub test: Test,
    /// The unit; of [`Test::Inherited`] any of the level's.
    pub unit: Option<UnitId>,
}

/// The decision of [`place`] as lists, for code that decides without this function: the test that is passed first among
/// the units directly below `level` says the unit, and that unit's list goes on; a process that passes none stays. It
/// decides for processes that no `cgroup` and no `pid` rule matches, and neither they nor their parents entered by
/// `exec`.
pub fn selectors(contract: &Contract, names: &impl Names, level: Option<UnitId>) -> Vec<Selector> {
    let mut ranked: Vec<(Rule, usize, Selector)> = Vec::new();
    for unit in contract.children(level) {
        for member in &contract.unit(unit).members {
            let (rule, test) = match &member.kind {
                MemberKind::Command(glob) => (Rule::Command, Some(Test::Command(glob.clone()))),
                MemberKind::CommandOf(glob, whose) => (Rule::Command, command_of(names, glob, whose)),
                MemberKind::User(user) => (Rule::User, uid_of(names, user).map(Test::User)),
                MemberKind::Group(group) => (Rule::Group, gid_of(names, group).map(Test::Group)),
                MemberKind::Cgroup(_) | MemberKind::Pid(_) => continue,
            };
            let rank = match &member.kind {
                MemberKind::Command(glob) => command_rank(glob, false),
                MemberKind::CommandOf(glob, _) => command_rank(glob, true),
                _ => 0,
            };
            ranked.extend(test.map(|test| (rule, rank, Selector { test, unit: Some(unit) })));
        }
    }
    // Stable: of equal ones the first in the file stays first.
    ranked.sort_by_key(|(rule, rank, _)| core::cmp::Reverse((*rule, *rank)));
    let commands = ranked.iter().take_while(|(rule, _, _)| *rule == Rule::Command).count();
    let mut selectors: Vec<Selector> = ranked.into_iter().map(|(_, _, selector)| selector).collect();
    if contract.children(level).next().is_some() {
        selectors.insert(commands, Selector { test: Test::Inherited, unit: None });
    }
    if level.is_none() {
        selectors.push(Selector { test: Test::Otherwise, unit: Some(contract.default_unit) });
    }
    selectors
}

/// Whether `unit` is `encloser` or lies somewhere below it.
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

/// Whether a process may enter a unit by `exec`: whether every unit from the top level down to it either names its user
/// or one of its groups among its members, or, below the top level, names no user and no group at all. The user that
/// runs the daemon, and root, need not ask.
pub fn may_enter(contract: &Contract, names: &impl Names, process: &ProcessFacts, unit: UnitId) -> bool {
    let principal = |member: &&Member| matches!(member.kind, MemberKind::User(_) | MemberKind::Group(_));
    let mut level = Some(unit).filter(|unit| !unit.is_common());
    let mut allowed = level.is_some();
    while let Some(id) = level {
        let unit = contract.unit(id);
        let named =
            unit.members.iter().filter(principal).any(|m| matches_member(names, process, m).is_some());
        let open = unit.parent.is_some() && !unit.members.iter().any(|m| principal(&m));
        allowed &= named || open;
        level = unit.parent;
    }
    allowed
}

/// The owner of a unit's currency: the unit's own `owner`; where it names none, that of the nearest unit around it that names
/// one. So a unit in another inherits an owner, unless it has its own.
pub fn owner_of(contract: &Contract, unit: UnitId) -> Option<&Member> {
    let mut level = Some(unit).filter(|unit| contract.has(*unit));
    while let Some(id) = level {
        let unit = contract.unit(id);
        if unit.owner.is_some() {
            return unit.owner.as_ref();
        }
        level = unit.parent;
    }
    None
}

/// Whether a process is one of an owner's: of that user, or of a user of that group.
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

fn command_of(names: &impl Names, glob: &str, whose: &Whose) -> Option<Test> {
    Some(match whose {
        Whose::User(user) => Test::CommandOfUser(glob.into(), uid_of(names, user)?),
        Whose::Group(group) => Test::CommandOfGroup(glob.into(), gid_of(names, group)?),
    })
}

/// Among `command` rules: literal characters first, then a restriction.
fn command_rank(glob: &str, restricted: bool) -> usize {
    literal(glob) * 2 + usize::from(restricted)
}

fn executes(process: &ProcessFacts, glob: &str) -> bool {
    glob_matches(glob, &process.program) || glob_matches(glob, &process.comm)
}

/// The characters of a pattern that stand for themselves.
fn literal(glob: &str) -> usize {
    glob.chars().filter(|c| !matches!(c, '*' | '?')).count()
}

fn matches_member(names: &impl Names, process: &ProcessFacts, member: &Member) -> Option<(Rule, usize)> {
    match &member.kind {
        MemberKind::Group(group) => process.gids.contains(&gid_of(names, group)?).then_some((Rule::Group, 0)),
        MemberKind::User(user) => (uid_of(names, user)? == process.uid).then_some((Rule::User, 0)),
        MemberKind::Command(glob) => {
            executes(process, glob).then(|| (Rule::Command, command_rank(glob, false)))
        }
        MemberKind::CommandOf(glob, whose) => {
            let is_theirs = match whose {
                Whose::User(user) => uid_of(names, user)? == process.uid,
                Whose::Group(group) => process.gids.contains(&gid_of(names, group)?),
            };
            (is_theirs && executes(process, glob)).then(|| (Rule::Command, command_rank(glob, true)))
        }
        MemberKind::Cgroup(path) => {
            let path = path.trim_end_matches('/');
            is_below(&process.cgroup, path).then_some((Rule::Cgroup, path.len()))
        }
        MemberKind::Pid(pid) => (*pid == process.pid).then_some((Rule::Pid, 0)),
    }
}

/// Whether a shell-like pattern (`*` any run, `?` any one character) matches the whole text.
pub fn glob_matches(glob: &str, text: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut g, mut t) = (0, 0);
    // The last `*` seen and how much text it has swallowed: on a mismatch it swallows one more.
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

    /// physics: group physics, user ana; below it night-batch: command simulate*. students: group students, cgroup
    /// /lab. solo: pid 77, command make.
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
    fn a_levels_tests_stand_in_the_order_of_their_rules() {
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
        // ana is in both groups; her user rule is more specific than the students' group rule.
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
        // A group rule is not inherited: a daemon that a student starts for bo by su is bo's.
        let student = place(&contract, &Book, &process(5, &[501], "bash"));
        check(&ProcessFacts { parent: Some(student), ..process(9, &[9], "sh") }, "shared", Rule::Default);
    }

    #[test]
    fn who_entered_by_exec_stays_there() {
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

    /// A unit without an owner inherits that of the nearest unit around it; one with its own is that one's alone.
    #[test]
    fn an_owner_owns_what_is_in_its_unit_and_has_no_owner() {
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
        // A name that this machine does not know is nobody's, and what is no user and no group owns nothing.
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
        // Of the physics group: physics, and night-batch, which names nobody of its own. Not the students'.
        let physicist = process(9, &[500], "sh");
        assert!(may(&physicist, "physics") && may(&physicist, "physics/night-batch"));
        assert!(!may(&physicist, "students"));
        // solo names no user and no group: only root and whoever runs the daemon enter it. The common parts: nobody.
        assert!(!may(&physicist, "solo") && !may(&physicist, "kernel") && !may(&physicist, "shared"));
    }

    /// Where a process of user 1000 that this rule put into a unit stays.
    fn stay(cgroup: &str, named: bool, delegated: Option<&str>) -> Option<Stays> {
        let process = ProcessFacts { cgroup: cgroup.to_owned(), ..process(1000, &[], "sleep") };
        stays(&process, &Placement { named, ..Placement::by_default(UnitId(2)) }, delegated)
    }

    #[test]
    fn what_a_users_manager_keeps_stays_whatever_names_it() {
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
    fn a_users_own_daemon_moves_what_was_given_to_it() {
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

    /// A rule around the unit counts as well: of each user of a service, all are named who are.
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
