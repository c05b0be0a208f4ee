//! Reads an entry of `members`, such as `user:ana`, `group:physics`, `cgroup:/lab`, `command:simulate*` or
//! `pid:4711`, and the value of `owner`.
//!
//! If an entry cannot be read, the remedy is a guess at its meaning. For example, it may have another tool's
//! word for a kind of member.

use std::ops::Range;

use crate::diagnostic::Problem;
use crate::keys::PID_MAX;
use crate::model::{MemberKind, Principal, Whose};
use crate::nearest::nearest;

/// A kind of member.
#[derive(Debug, Clone, Copy)]
pub struct MemberForm {
    /// The word before the colon.
    pub kind: &'static str,
    /// The forms of an entry of this kind, with placeholders in capitals.
    pub forms: &'static [&'static str],
    /// Which processes match, as a relative clause.
    pub who: &'static str,
}

/// The kinds of members, described for people; the most specific last.
pub const MEMBER_FORMS: [MemberForm; 5] = [
    MemberForm {
        kind: "group",
        forms: &["group:NAME", "group:NUMBER"],
        who: "that have this group as their primary group, or as a supplementary group",
    },
    MemberForm {
        kind: "user",
        forms: &["user:NAME", "user:NUMBER", "user:FIRST-LAST"],
        who: "that have this effective user, or one whose number is in this range",
    },
    MemberForm {
        kind: "command",
        forms: &["command:PATTERN", "command:PATTERN@user:NAME", "command:PATTERN@group:NAME"],
        who: "whose program's name matches the whole pattern, with `*` and `?`, and the processes that they start; the name \
              is that of the file that runs, or that by which it was executed, as of a script or a symbolic link; with \
              `@user:` or `@group:`, only processes of that user or group match",
    },
    MemberForm {
        kind: "cgroup",
        forms: &["cgroup:/PATH"],
        who: "that are in this control group or below it, as /proc/PID/cgroup shows it",
    },
    MemberForm {
        kind: "pid",
        forms: &["pid:NUMBER"],
        who: "with this number, and the processes that it starts",
    },
];

/// The rules by which a process belongs to one of several units, in paragraphs, for people.
pub const MEMBER_RULES: [&str; 2] = [
    "Where several rules match a process, the most specific wins, in this order: entered by `commonhold exec`, `pid`, \
     `cgroup`, `command`, `user`, `group`, a range of users. Of two cgroup paths the longer wins, of two patterns the \
     more specific one, of two ranges the narrower. Else the unit that comes first in the contract wins.",
    "A sub-unit's rules select among the members of the unit around it. A process that matches no rule is in the unit that \
     `[machine] default` names. Without such a name, it is in `shared`, which is not restricted.",
];

/// The kinds of members: the words before the colon.
pub(crate) const KINDS: [&str; 5] = {
    let [a, b, c, d, e] = MEMBER_FORMS;
    [a.kind, b.kind, c.kind, d.kind, e.kind]
};

/// The part of a message that says that a member has a control character.
pub(crate) const CONTROL: &str = "holds a control character";

/// Other words for kinds of members, in groups, each with the kind that it means.
const KIND_SYNONYMS: [(&[&str], &str); 5] = [
    (&["grp", "gid", "groups", "gr", "unixgroup"], "group"),
    (&["uid", "login", "users", "username", "account", "u"], "user"),
    (
        &["cmd", "comm", "program", "prog", "exe", "binary", "name", "commands", "executable", "app"],
        "command",
    ),
    (&["slice", "service", "scope", "cg", "control-group", "controlgroup", "container"], "cgroup"),
    (&["process", "proc", "ps", "task"], "pid"),
];

/// The name of the folder with the cgroups that the program itself creates.
const OWN_SUBTREE: &str = "commonhold";

/// Reads an entry of `members`.
pub(crate) fn parse(text: &str) -> Result<MemberKind, Problem> {
    if text.chars().any(char::is_control) {
        let message = format!("a member {CONTROL}");
        return problem(0..text.len(), message, "remove it: names and paths are plain text");
    }
    let Some((kind, value)) = text.split_once(':') else {
        return no_kind(text);
    };
    let at = kind.len() + 1..text.len();
    if KINDS.contains(&kind) {
        if value.is_empty() {
            return problem(
                0..text.len(),
                format!("`{kind}:` names nothing"),
                &format!("write {}", example(kind)),
            );
        }
        if value.trim() != value {
            let message = format!("`{text}` has a space where its name begins or ends");
            return problem(at, message, &format!("write {kind}:{}", value.trim()));
        }
    }
    match kind {
        "user" => match range(value, &at) {
            Some(range) => range,
            None => principal(value, at).map(MemberKind::User),
        },
        "group" => principal(value, at).map(MemberKind::Group),
        "cgroup" => cgroup(value, at).map(MemberKind::Cgroup),
        "command" => command_rule(value, at),
        "pid" => pid(value, at).map(MemberKind::Pid),
        _ => unknown_kind(kind),
    }
}

/// Reads an `owner`: a user or a group.
pub(crate) fn owner(text: &str) -> Result<MemberKind, Problem> {
    let whole = 0..text.len();
    let remedy = "write user:NAME or group:NAME, or a number instead of the name";
    let Some((kind, _)) = text.split_once(':') else {
        if text.trim().is_empty() {
            return problem(whole, "the owner is empty".to_owned(), remedy);
        }
        let message =
            format!("`{}` does not say whether the owner is a user or a group", text.escape_debug());
        return problem(whole, message, &format!("write user:{0} or group:{0}", text.trim().escape_debug()));
    };
    match kind {
        "user" | "group" => match parse(text) {
            Ok(MemberKind::Users(..)) => {
                problem(whole, format!("`{text}` is a range, and an owner is one user or group"), remedy)
            }
            Err(wrong) => {
                Err(Problem { message: wrong.message.replacen("a member", "an owner", 1), ..wrong })
            }
            owner => owner,
        },
        _ => {
            let message =
                format!("`{}` cannot own a unit: an owner is a user or a group", kind.escape_debug());
            let help = match nearest(kind, ["user", "group"]) {
                Some(known) => format!("did you mean `{known}`? {remedy}"),
                None => remedy.to_owned(),
            };
            problem(0..kind.len(), message, &help)
        }
    }
}

fn problem<T>(span: Range<usize>, message: String, help: &str) -> Result<T, Problem> {
    Err(Problem { span, message, help: help.to_owned() })
}

fn example(kind: &str) -> &'static str {
    match kind {
        "user" => "user:ana or user:1000",
        "group" => "group:physics or group:500",
        "cgroup" => "cgroup:/user.slice",
        "command" => "command:simulate*",
        _ => "pid:4711",
    }
}

/// The problem with a member that has no colon.
fn no_kind(text: &str) -> Result<MemberKind, Problem> {
    if text.trim().is_empty() {
        let help = "write one of user:NAME, group:NAME, cgroup:/PATH, command:GLOB, pid:NUMBER";
        return problem(0..text.len(), "a member is empty".to_owned(), help);
    }
    let help = if matches_everything(text) {
        DEFAULT_UNIT_REMEDY.to_owned()
    } else if let Some(group) = text.strip_prefix(['@', '%']).filter(|group| !group.is_empty()) {
        format!("write group:{group}")
    } else {
        format!("write user:{text} or group:{text}; the others are cgroup:/PATH, command:GLOB and pid:NUMBER")
    };
    problem(0..text.len(), format!("`{text}` does not say what kind of member it is"), &help)
}

/// The problem with a member whose word before the colon is unknown.
fn unknown_kind(kind: &str) -> Result<MemberKind, Problem> {
    let message = format!("`{kind}` is not a kind of member");
    let synonym = KIND_SYNONYMS.iter().find(|(words, _)| words.contains(&kind.to_lowercase().as_str()));
    let known = synonym.map(|(_, known)| *known).or_else(|| nearest(kind, KINDS));
    let help = match (kind, known) {
        ("unit", _) => "units are nested as [unit.a.unit.b], not listed as members".to_owned(),
        ("process" | "proc", _) => "write command:NAME, or pid:NUMBER".to_owned(),
        ("slice" | "service" | "scope", _) => {
            "write cgroup:/PATH, the whole path that /proc/PID/cgroup shows".to_owned()
        }
        (_, Some(known)) => format!("did you mean `{known}`? the kinds are {}", KINDS.join(", ")),
        (_, None) => format!("the kinds are {}", KINDS.join(", ")),
    };
    problem(0..kind.len(), message, &help)
}

/// The remedy for a member that should match every process.
const DEFAULT_UNIT_REMEDY: &str =
    "processes that no rule matches are in the unit that `[machine] default = \"NAME\"` names";

/// Whether every name matches a pattern.
fn matches_everything(pattern: &str) -> bool {
    !pattern.is_empty() && pattern.chars().all(|c| matches!(c, '*' | '?')) && pattern.contains('*')
}

/// Reads a range of users' numbers; `None` if the text is no range: two numbers with a `-` between them.
fn range(value: &str, at: &Range<usize>) -> Option<Result<MemberKind, Problem>> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (first, last) = value.split_once('-').filter(|(first, last)| is_number(first) && is_number(last))?;
    let last_at = at.end - last.len()..at.end;
    let read = || {
        let principals = (principal(first, at.start..at.start + first.len())?, principal(last, last_at)?);
        match principals {
            (Principal::Id(first), Principal::Id(last)) if first <= last => {
                Ok(MemberKind::Users(first, last))
            }
            _ => problem(
                at.clone(),
                format!("the range `{value}` is empty: its last number is below the first"),
                &format!("write user:{last}-{first}"),
            ),
        }
    };
    Some(read())
}

/// Reads the name or number of a user or a group.
fn principal(value: &str, at: Range<usize>) -> Result<Principal, Problem> {
    if value.contains(['*', '?']) {
        let message = format!("`{value}` is a pattern, and users and groups have none");
        let help = if matches_everything(value) {
            DEFAULT_UNIT_REMEDY
        } else {
            "write one entry for each, or name a group that they are in"
        };
        return problem(at, message, help);
    }
    if value.contains(',') {
        let message = format!("`{value}` is a list, and an entry names one user or group");
        return problem(at, message, "write one entry for each: [\"user:ana\", \"user:bo\"]");
    }
    if !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Principal::Name(value.to_owned()));
    }
    // The largest number is excluded: to the kernel it is -1, which means "no user" or "no group".
    match value.parse() {
        Ok(id) if id != u32::MAX => Ok(Principal::Id(id)),
        _ => problem(
            at,
            format!("`{value}` is too large for the number of a user or a group"),
            "at most 4294967294",
        ),
    }
}

/// Reads a pattern for programs, which may be followed by `@user:NAME` or `@group:NAME`. The text is split at
/// the last such suffix, since a program's name may itself contain an `@`, as in `agetty@tty1`.
fn command_rule(value: &str, at: Range<usize>) -> Result<MemberKind, Problem> {
    let signs = ["@user:", "@group:"].iter();
    let last_sign = signs.filter_map(|sign| Some((value.rfind(sign)?, *sign))).max();
    let Some((split, sign)) = last_sign else { return command(value, at).map(MemberKind::Command) };
    let (glob, name) = (&value[..split], &value[split + sign.len()..]);
    let (glob_span, name_span) = (at.start..at.start + split, at.end - name.len()..at.end);
    if glob.is_empty() || name.trim().is_empty() || name.trim() != name {
        let message = format!("`command:{value}` lacks a pattern before `{sign}`, or a plain name after it");
        return problem(at, message, &format!("write command:make{sign}NAME"));
    }
    let whose = if sign == "@user:" { Whose::User } else { Whose::Group };
    let principal = principal(name, name_span)?;
    Ok(MemberKind::CommandOf(command(glob, glob_span)?, whose(principal)))
}

/// Checks a pattern for programs. A path is refused, since programs are matched by their base names.
fn command(value: &str, at: Range<usize>) -> Result<String, Problem> {
    let program = without_arguments(value);
    let Some((_, base)) = program.rsplit_once('/') else {
        return Ok(value.to_owned());
    };
    let message = format!("`{value}` is a path, and commands are matched by their base name");
    // The base name of `/usr/bin/*` would match every program, so it is not suggested.
    let is_any_name = base.chars().all(|c| matches!(c, '*' | '?'));
    let help = if is_any_name { "write command:NAME".to_owned() } else { format!("write command:{base}") };
    problem(at, message, &help)
}

/// A pattern without arguments: the words before the first one that looks like an argument. A blank alone
/// does not end the program's name, since names such as `tmux: server` contain blanks.
fn without_arguments(pattern: &str) -> &str {
    let mut end = 0;
    for word in pattern.split(' ') {
        if end > 0 && (word.starts_with('-') || word.contains(['/', '.', '='])) {
            return pattern[..end - 1].trim_end();
        }
        end += word.len() + 1;
    }
    pattern
}

/// The problem with a member that is valid but probably a mistake: a command with arguments.
pub(crate) fn likely_mistake(kind: &MemberKind) -> Option<Problem> {
    let MemberKind::Command(pattern) = kind else { return None };
    let program = without_arguments(pattern);
    (program != pattern && !program.is_empty()).then(|| Problem {
        span: 0..pattern.len(),
        message: format!(
            "`command:{pattern}` has arguments, and commands are matched by the program's name alone"
        ),
        help: format!("write command:{program}, or start the program by `commonhold exec`"),
    })
}

/// Reads a process number.
fn pid(value: &str, at: Range<usize>) -> Result<u32, Problem> {
    match value.parse() {
        Ok(pid) if (1..=PID_MAX).contains(&pid) && !value.starts_with('+') => Ok(pid),
        _ => problem(
            at,
            format!("`{value}` is not a process number"),
            &format!("write a number from 1 to {PID_MAX}"),
        ),
    }
}

/// The part of a remedy that says which control-group path counts if a process has several, as under cgroup
/// v1.
const HIERARCHY: &str = "the path is that of cgroup v2 (the line `0::` of /proc/PID/cgroup), or of systemd's own v1 hierarchy \
                         (`name=systemd`)";

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The names of folders below [`MOUNT`] where hierarchies of cgroup v1 are mounted.
const HIERARCHIES: [&str; 16] = [
    "unified",
    "systemd",
    "cpu",
    "cpuacct",
    "cpu,cpuacct",
    "cpuacct,cpu",
    "cpuset",
    "memory",
    "blkio",
    "devices",
    "freezer",
    "net_cls",
    "net_prio",
    "net_cls,net_prio",
    "perf_event",
    "pids",
];

/// If `path` is the path of a cgroup's folder below [`MOUNT`], returns the v1 hierarchy that the cgroup
/// belongs to, if any, and the path of the cgroup itself. Otherwise returns `None`.
fn below_mount(path: &str) -> Option<(Option<&str>, String)> {
    let below = path.strip_prefix(MOUNT).filter(|below| below.is_empty() || below.starts_with('/'))?;
    let first = below.get(1..).unwrap_or_default().split('/').next().unwrap_or_default();
    let controller = HIERARCHIES.iter().find(|known| **known == first);
    let rest = controller.map_or(below, |controller| &below[controller.len() + 1..]);
    let rest = if rest.is_empty() { "/" } else { rest };
    Some((controller.copied(), rest.to_owned()))
}

/// Checks the path of a cgroup, and returns it without a slash at its end.
fn cgroup(value: &str, at: Range<usize>) -> Result<String, Problem> {
    if !value.starts_with('/') {
        let help = match value.find(":/") {
            Some(colon) => format!("write cgroup:{}: {HIERARCHY}", &value[colon + 1..]),
            None => format!("write cgroup:/{value}: paths start at the root, as /proc/PID/cgroup shows them"),
        };
        return problem(at, format!("the cgroup path `{value}` is not absolute"), &help);
    }
    let path = value.trim_end_matches('/');
    if let Some((controller, rest)) = below_mount(path) {
        let message = format!("`{value}` is where the cgroup is mounted, and not its path");
        let help = match controller {
            None => format!("write cgroup:{rest}"),
            Some(controller) => {
                format!("write cgroup:{rest}, without the hierarchy `{controller}`: {HIERARCHY}")
            }
        };
        return problem(at, message, &help);
    }
    for name in path.split('/').skip(1) {
        match name {
            ".." if path.starts_with("/..") => {
                let message = format!("the cgroup path `{value}` leads out of a cgroup namespace");
                let help = "it was read inside a container: write the path that /proc/PID/cgroup shows outside of it";
                return problem(at, message, help);
            }
            "" | "." | ".." => {
                let message = format!("the cgroup path `{value}` is not a plain path");
                return problem(
                    at,
                    message,
                    "write it without `//`, `.` and `..`, as /proc/PID/cgroup shows it",
                );
            }
            OWN_SUBTREE => {
                let message =
                    format!("`{value}` lies in the cgroups that Commonhold itself makes: a membership cycle");
                let help =
                    "name what the other unit has as members; its processes cannot be named by its cgroup";
                return problem(at, message, help);
            }
            _ => {}
        }
    }
    Ok(if path.is_empty() { "/".to_owned() } else { path.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read() {
        let name = |name: &str| Principal::Name(name.to_owned());
        for (text, kind) in [
            ("user:ana", MemberKind::User(name("ana"))),
            ("user:1000", MemberKind::User(Principal::Id(1000))),
            ("user:DOMAIN\\ana b", MemberKind::User(name("DOMAIN\\ana b"))),
            ("user:1000-60000", MemberKind::Users(1000, 60_000)),
            ("user:7-7", MemberKind::Users(7, 7)),
            ("user:7-a", MemberKind::User(name("7-a"))),
            ("group:0", MemberKind::Group(Principal::Id(0))),
            ("cgroup:/", MemberKind::Cgroup("/".to_owned())),
            ("cgroup:/a/b/", MemberKind::Cgroup("/a/b".to_owned())),
            ("cgroup:/commonhold-old", MemberKind::Cgroup("/commonhold-old".to_owned())),
            ("command:sim*:x", MemberKind::Command("sim*:x".to_owned())),
            ("command:a@b", MemberKind::Command("a@b".to_owned())),
            (
                "command:make@group:students",
                MemberKind::CommandOf("make".to_owned(), Whose::Group(name("students"))),
            ),
            (
                "command:a@b@user:1000",
                MemberKind::CommandOf("a@b".to_owned(), Whose::User(Principal::Id(1000))),
            ),
            ("pid:4194304", MemberKind::Pid(4_194_304)),
        ] {
            assert_eq!(parse(text), Ok(kind), "{text}");
        }
    }

    /// The part that the problem points at, what is wrong, and the remedy.
    #[track_caller]
    fn check(text: &str, at: &str, message: &str, help: &str) {
        let problem = parse(text).unwrap_err();
        assert_eq!(&text[problem.span.clone()], at, "{problem:?}");
        assert!(problem.message.contains(message), "{problem:?}");
        assert!(problem.help.contains(help), "{problem:?}");
    }

    #[test]
    fn an_owner_is_a_user_or_a_group() {
        assert_eq!(owner("user:ana"), Ok(MemberKind::User(Principal::Name("ana".to_owned()))));
        assert_eq!(owner("group:500"), Ok(MemberKind::Group(Principal::Id(500))));
        for (text, at, message, help) in [
            ("", "", "the owner is empty", "write user:NAME or group:NAME"),
            ("ana", "ana", "`ana` does not say whether", "write user:ana or group:ana"),
            ("usr:ana", "usr", "`usr` cannot own a unit", "did you mean `user`?"),
            ("command:make", "command", "`command` cannot own a unit", "write user:NAME or group:NAME"),
            ("pid:7", "pid", "an owner is a user or a group", "write user:NAME"),
            ("user:", "user:", "names nothing", "write user:ana or user:1000"),
            ("group: x", " x", "has a space", "write group:x"),
            ("user:4294967295", "4294967295", "too large", "4294967294"),
            ("user:a\u{1b}", "user:a\u{1b}", "an owner holds a control character", "remove"),
        ] {
            let problem = owner(text).unwrap_err();
            assert_eq!(&text[problem.span.clone()], at, "{problem:?}");
            assert!(problem.message.contains(message) && problem.help.contains(help), "{problem:?}");
        }
    }

    #[test]
    fn invalid_members_get_a_message_and_a_remedy() {
        check("", "", "empty", "user:NAME");
        check("ana", "ana", "what kind", "user:ana or group:ana");
        check("user:", "user:", "names nothing", "user:ana");
        check("user: ana", " ana", "space", "write user:ana");
        check("usr:ana", "usr", "not a kind", "did you mean `user`");
        check("unit:physics", "unit", "not a kind", "[unit.a.unit.b]");
        check("slice:x", "slice", "not a kind", "write cgroup:/PATH");
        check("herd:x", "herd", "not a kind", "the kinds are group, user");
        check("user:a,b", "a,b", "is a list", "one entry for each");
        check("user:a*", "a*", "is a pattern", "name a group");
        check("command:/bin/make -j8", "/bin/make -j8", "base name", "write command:make");
        check("group:4294967295", "4294967295", "too large", "4294967294");
        check("command:/usr/bin/make", "/usr/bin/make", "base name", "write command:make");
        check("command:/", "/", "base name", "command:NAME");
        check("command:/usr/bin/*", "/usr/bin/*", "base name", "command:NAME");
        check("command:@user:ana", "@user:ana", "lacks a pattern", "command:make@user:NAME");
        check("command:make@group:", "make@group:", "plain name", "command:make@group:NAME");
        check("command:make@user: x", "make@user: x", "plain name", "command:make@user:NAME");
        check("command:/bin/make@user:x", "/bin/make", "base name", "write command:make");
        check("command:make@user:4294967295", "4294967295", "too large", "4294967294");
        check("pid:0", "0", "not a process", "from 1");
        check("pid:4194305", "4194305", "not a process", "4194304");
        check("pid:+5", "+5", "not a process", "from 1");
        check("pid:x", "x", "not a process", "from 1");
        check("cgroup:lab", "lab", "not absolute", "cgroup:/lab");
        check("cgroup:/a/../b", "/a/../b", "plain path", "..");
        check("cgroup:/a//b", "/a//b", "plain path", "//");
        check("cgroup:/x/commonhold/y", "/x/commonhold/y", "membership cycle", "unit");
        check("user:a\u{1b}", "user:a\u{1b}", "control character", "remove");
    }
}
