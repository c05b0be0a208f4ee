//! Checks of a contract's members on this machine: users, groups, cgroups and processes that are missing or
//! hidden, and rules that probably match more than intended.

use std::collections::BTreeSet;
use std::path::Path;

use commonhold_contract::{Contract, Diagnostic, Member, MemberKind, Principal, UnitId, Whose, nearest};
use commonhold_live::observe::capability;
use commonhold_live::observe::names::{Book, SystemNames, local_names};
use commonhold_machine::capability::Row;
use commonhold_policy::membership::{Names, is_within};
use commonhold_report::present::EXEMPT;

/// All diagnostics of a contract's members on this machine.
pub(crate) fn diagnose(contract: &Contract, names: &SystemNames) -> Vec<Diagnostic> {
    let mut found = unknown_names(contract, names);
    found.extend(hidden_processes(contract, capability::hidden_processes(Path::new("/"))));
    found.extend(absent_cgroups(contract));
    found.extend(members(contract).filter_map(absent_process));
    found.extend(without_members(contract));
    let top = contract.children(None).flat_map(|id| contract.unit(id).members.iter().map(move |m| (id, m)));
    found.extend(top.filter_map(|(id, member)| takes_roots(contract, names, id, member)));
    if rustix::process::geteuid().is_root() {
        found.extend(open_commands(contract));
    }
    found
}

/// The most warnings of `command:` rules that any user can match.
const OPEN_COMMANDS_MAX: usize = 5;

/// Warns of `command:` rules that the processes of any user can match: it suffices that the program's file
/// has that name. Only root is warned, since another user's daemon holds only that user's processes.
fn open_commands(contract: &Contract) -> Vec<Diagnostic> {
    // A process can be in a sub-unit only if it is in the parent: by a rule, by `exec`, or by default.
    let is_closed = |id: &UnitId| {
        let is_open = |member: &Member| matches!(member.kind, MemberKind::Command(_));
        !contract.unit(*id).members.iter().any(is_open) && !is_within(contract, contract.default_unit, *id)
    };
    let around = |id: UnitId| std::iter::successors(contract.unit(id).parent, |id| contract.unit(*id).parent);
    let open = contract.held().filter(|id| !around(*id).any(|id| is_closed(&id)));
    let rules = open.flat_map(|id| contract.unit(id).members.iter().map(move |member| (id, member)));
    let warning = |(id, member): (UnitId, &Member)| {
        let MemberKind::Command(glob) = &member.kind else { return None };
        let path = &contract.unit(id).path;
        let message = format!("every user can get into unit `{path}` by `{}`", member.kind);
        let help =
            format!("say whose programs are meant: command:{glob}@group:NAME, or command:{glob}@user:NAME");
        let label = "a program is known by its file's name, and anybody can give a file any name";
        Some(Diagnostic::warning("open-command", member.span.clone(), message).label(label).help(help))
    };
    rules.filter_map(warning).take(OPEN_COMMANDS_MAX).collect()
}

fn members(contract: &Contract) -> impl Iterator<Item = &Member> {
    contract.units.iter().flat_map(|unit| &unit.members)
}

/// Reports users and groups that are unknown on this machine or cannot be looked up. These are no reason to
/// refuse the contract: the name may become known later, with a new account or once a directory server
/// answers.
pub(crate) fn unknown_names(contract: &Contract, names: &SystemNames) -> Vec<Diagnostic> {
    let mut similar = Similar::default();
    let owners = contract.units.iter().flat_map(|unit| &unit.owner).map(|owner| (owner, "owns the unit"));
    let members = members(contract).map(|member| (member, "is a member by this rule"));
    members.chain(owners).filter_map(|(member, is)| unknown_name(member, is, names, &mut similar)).collect()
}

fn unknown_name(member: &Member, is: &str, names: &SystemNames, similar: &mut Similar) -> Option<Diagnostic> {
    let (book, principal, tool) = match &member.kind {
        MemberKind::User(user) | MemberKind::CommandOf(_, Whose::User(user)) => {
            (Book::Passwd, user, "useradd")
        }
        MemberKind::Group(group) | MemberKind::CommandOf(_, Whose::Group(group)) => {
            (Book::Group, group, "groupadd")
        }
        _ => return None,
    };
    let name = match principal {
        Principal::Name(name) => name,
        Principal::Id(number) => return name_of_digits(member, book, *number, names),
    };
    let warn = |code, message: String| Diagnostic::warning(code, member.span.clone(), message);
    match names.number(book, name) {
        Ok(Some(_)) => None,
        Ok(None) => {
            let help = match similar.to(book, name) {
                Some(known) => format!("did you mean `{book}:{known}`?"),
                None => format!(
                    "correct the name, create it with `{tool}`, or check for another machine with --machine;"
                ),
            };
            let help = format!("{help} a running daemon looks the name up again every minute");
            let message = format!("this machine knows no {book} `{name}`");
            Some(
                warn("unknown-name", message)
                    .label(format!("nobody {is} until the {book} exists"))
                    .help(help),
            )
        }
        Err(e) => {
            let help = format!(
                "see what `getent {} {name}` says; a running daemon looks the name up again every minute",
                book.name()
            );
            let label = format!("nobody {is} until the lookup succeeds");
            Some(
                warn("failed-look-up", format!("cannot look up {book} `{name}`: {e}"))
                    .label(label)
                    .help(help),
            )
        }
    }
}

/// A warning for a rule with a number if a user or group has that number as its name. The rule means the
/// number.
fn name_of_digits(member: &Member, book: Book, number: u32, names: &SystemNames) -> Option<Diagnostic> {
    let other = names.number(book, &number.to_string()).ok().flatten().filter(|other| *other != number)?;
    let message =
        format!("`{book}:{number}` means the {book} with the number {number}, not the one with that name");
    let label = format!("a {book} called `{number}` has the number {other}");
    let help = format!("if that one is meant, write `{book}:{other}`");
    Some(Diagnostic::warning("name-of-digits", member.span.clone(), message).label(label).help(help))
}

/// The names in this machine's own user and group files, to suggest corrections. They are read once, at the
/// first unknown name.
#[derive(Default)]
struct Similar {
    users: Option<Vec<String>>,
    groups: Option<Vec<String>>,
}

impl Similar {
    fn to(&mut self, book: Book, name: &str) -> Option<&str> {
        let known = match book {
            Book::Passwd => &mut self.users,
            Book::Group => &mut self.groups,
        };
        let known = known.get_or_insert_with(|| local_names(Path::new("/"), book));
        nearest(name, known.iter().map(String::as_str))
    }
}

/// A warning if /proc hides other users' processes, so that rules match only this user's. It is reported
/// once, at the first rule.
fn hidden_processes(contract: &Contract, hidden: Option<Row>) -> Option<Diagnostic> {
    let (hidden, first) = (hidden?, members(contract).next()?);
    let message = format!("other users' processes are not seen: {}", hidden.reason);
    let diagnostic = Diagnostic::warning("hidden-processes", first.span.clone(), message);
    let label = "this rule, and every other, selects among this user's own processes";
    Some(diagnostic.label(label).help(hidden.remedy.unwrap_or_default()))
}

/// Warns of rules that name a control group that does not exist. The group may appear later, when its service
/// starts, or its name may be mistyped.
fn absent_cgroups(contract: &Contract) -> Vec<Diagnostic> {
    let path = |member: &Member| match &member.kind {
        MemberKind::Cgroup(path) => Some(path.clone()),
        _ => None,
    };
    let paths: Vec<(String, &Member)> =
        members(contract).filter_map(|member| Some((path(member)?, member))).collect();
    let named: BTreeSet<&str> = paths.iter().map(|(path, _)| path.as_str()).collect();
    let missing = capability::missing_cgroups(Path::new("/"), &named);
    let absent = paths.iter().filter(|(path, _)| missing.contains(path.as_str()));
    let warning = |(path, member): &(String, &Member)| {
        Diagnostic::warning(
            "absent-cgroup",
            member.span.clone(),
            format!("this machine has no cgroup `{path}` now"),
        )
        .label("no process is a member by this rule until the cgroup exists")
        .help(if path.contains(['*', '?']) {
            "write the path as it is: no pattern is looked for in it"
        } else {
            "write the path that /proc/PID/cgroup shows for a process that should be a member; if its manager has \
             yet to make it, all is well"
        })
    };
    absent.map(warning).collect()
}

fn absent_process(member: &Member) -> Option<Diagnostic> {
    let MemberKind::Pid(pid) = member.kind else { return None };
    if Path::new("/proc").join(pid.to_string()).exists() {
        return None;
    }
    let message = format!("there is no process {pid} now");
    let diagnostic = Diagnostic::warning("absent-process", member.span.clone(), message);
    let help =
        "write the number of a running process, or a rule that lasts longer: `command:NAME`, `user:NAME`";
    Some(diagnostic.label("the next process with this number would be a member").help(help))
}

/// The most units without members that are warned of one by one: a generated contract may have a hundred
/// thousand.
const WITHOUT_MEMBERS_MAX: usize = 5;

/// Warns of units without a list of members, which was usually forgotten. An empty list, `members = []`,
/// shows intention.
fn without_members(contract: &Contract) -> Vec<Diagnostic> {
    // `each` without a user or a group has its own warning.
    let forgotten = |id: &UnitId| {
        let unit = contract.unit(*id);
        unit.places.members.is_none()
            && unit.each.is_none()
            && !is_within(contract, contract.default_unit, *id)
    };
    let enclosers: BTreeSet<UnitId> = contract.held().filter_map(|id| contract.unit(id).parent).collect();
    let units: Vec<UnitId> = contract.held().filter(forgotten).collect();
    let more = units.len().saturating_sub(WITHOUT_MEMBERS_MAX);
    let warning = |(n, id): (usize, &UnitId)| {
        let unit = contract.unit(*id);
        let others = if n + 1 == WITHOUT_MEMBERS_MAX && more > 0 {
            format!(", and so with {more} more")
        } else {
            String::new()
        };
        let label = match enclosers.contains(id) {
            false => "processes enter it by `commonhold exec` alone",
            true => "processes enter it and its sub-units by `commonhold exec` alone",
        };
        let message = format!("unit `{}` names no members{others}", unit.path);
        let help = "write `members = [...]`; or `members = []`, if this is intended";
        Diagnostic::warning("no-members", unit.span.clone(), message).label(label).help(help)
    };
    units.iter().take(WITHOUT_MEMBERS_MAX).enumerate().map(warning).collect()
}

/// Warns of a rule that also matches processes of the system. Such processes are then held, too, and even
/// stopped where units take turns.
fn takes_roots(contract: &Contract, names: &SystemNames, id: UnitId, member: &Member) -> Option<Diagnostic> {
    let is_root = match &member.kind {
        MemberKind::User(Principal::Id(id)) | MemberKind::Group(Principal::Id(id)) => *id == 0,
        MemberKind::Users(first, _) => *first == 0,
        MemberKind::User(Principal::Name(name)) => names.uid(name) == Some(0),
        MemberKind::Group(Principal::Name(name)) => names.gid(name) == Some(0),
        MemberKind::Command(glob) => glob.chars().all(|c| c == '*'),
        MemberKind::CommandOf(glob, whose) => {
            let is_roots = match whose {
                Whose::User(Principal::Id(id)) | Whose::Group(Principal::Id(id)) => *id == 0,
                Whose::User(Principal::Name(name)) => names.uid(name) == Some(0),
                Whose::Group(Principal::Name(name)) => names.gid(name) == Some(0),
            };
            is_roots && glob.chars().all(|c| c == '*')
        }
        MemberKind::Cgroup(path) => path == "/",
        MemberKind::Pid(_) => false,
    };
    let path = &contract.unit(id).path;
    let message = format!("`{}` puts the system's own services into unit `{path}`", member.kind);
    let label = format!("logins among them; all but {EXEMPT}");
    let help = "name the processes that are meant by `command:NAME`, `cgroup:/PATH` or another user; `commonhold run \
                --dry-run` shows which processes that would be";
    is_root.then(|| Diagnostic::warning("takes-roots", member.span.clone(), message).label(label).help(help))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// By unit: an open rule at the top level, restricted ones, and open ones within closed and open units.
    #[test]
    fn rules_that_any_user_can_meet_are_found() {
        let text = r#"
            version = 1
            [machine]
            default = "rest"
            [unit.a]
            members = ["command:make", "command:cc@group:0", "user:1000"]
            [unit.b]
            members = ["group:7"]
            [unit.b.unit.closed]
            members = ["command:make"]
            [unit.by-exec-alone.unit.closed]
            members = ["command:make"]
            [unit.rest.unit.open]
            members = ["command:vi"]
            [unit.c]
            members = ["command:x*"]
            [unit.c.unit.open]
            members = ["command:xy"]
        "#;
        let parsed = commonhold_contract::parse(text);
        let contract = parsed.contract.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics));
        let found = open_commands(&contract);
        let rules: Vec<&str> = found.iter().map(|diagnostic| &text[diagnostic.span.clone()]).collect();
        assert_eq!(rules, ["\"command:make\"", "\"command:vi\"", "\"command:x*\"", "\"command:xy\""]);
    }
}
