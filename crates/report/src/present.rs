//! The present processes of each unit, for `run --dry-run`, with a note on processes that are never in a
//! unit.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::GroupBounds;
use commonhold_policy::membership::Stays;
use serde::Serialize;

use crate::figures::count;
use crate::places::set;
use crate::table::{Paint, Style, clean, wrap};
use crate::words::path;

/// The processes that are in no unit even if a contract's rules match them.
pub const EXEMPT: &str = "kernel threads, process 1 and Commonhold itself";

/// How units are held on a machine with systemd.
pub const IN_PLACE: &str = "systemd runs here. Units are held in the control groups that it gave to users, sessions \
    and services. Nobody is moved out of these but processes that `exec`, a `pid:` or a `command:` rule puts into a \
    unit while others are in their group: systemd makes a scope for such a process, in a slice of the unit's. A \
    process in a group with processes of several units is a member of its unit; its CPU time is held by the `kernel` \
    backend, and nothing else of it. While any group has a `CPUQuota=`, the scheduler of the `kernel` backend rests, \
    and control groups hold CPU.";

/// A summary of the processes in a unit, or of those in no unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// The unit; [`UnitId::SHARED`] for processes that no rule matches.
    pub unit: UnitId,
    /// The users with processes in the unit, and the number of processes of each.
    pub users: Vec<(String, usize)>,
    /// The programs in the unit, by the kernel's name (`comm`), and the number of processes of each.
    pub programs: Vec<(String, usize)>,
    /// The number of the unit's processes that cannot be held, since they belong to other users than the
    /// caller.
    pub beyond_us: usize,
    /// The number of the unit's processes that would be moved into its control group; `None` if processes are
    /// not moved.
    pub moved: Option<usize>,
    /// The number of the unit's processes for which systemd would create a scope; `None` if scopes are not
    /// used.
    pub scoped: Option<usize>,
    /// The reasons for which processes of the unit would stay in their present control group, with the number
    /// of each.
    pub staying: Vec<(Stays, usize)>,
    /// The places in which the unit would be held, with the settings that the other programs made there.
    pub places: Vec<(String, GroupBounds)>,
}

impl Present {
    fn processes(&self) -> usize {
        self.users.iter().map(|(_, count)| count).sum()
    }

    /// Which processes would be moved:
    /// `11 would be moved into the unit's control group; 1 stays (kept by a user's service manager)`.
    fn moves(&self) -> Option<String> {
        let (count, what) = match (self.moved, self.scoped) {
            (_, Some(scoped)) => (scoped, "would get a scope of systemd's"),
            (Some(moved), None) => (moved, "would be moved into the unit's control group"),
            (None, None) => return None,
        };
        if self.processes() == 0 {
            return None;
        }
        if count == 0 && matches!(self.staying.as_slice(), [(Stays::InPlace, _)]) {
            return Some("all would be held where they are".to_owned());
        }
        let stay = |count: usize| if count == 1 { "stays" } else { "stay" };
        let staying = self.staying.iter().map(|(why, count)| format!("; {count} {} ({why})", stay(*count)));
        Some(format!("{count} {what}{}", staying.collect::<String>()))
    }

    /// The processes in words: `3 processes of ana 2, root 1: make, sh`.
    fn words(&self) -> String {
        let users = match self.users.as_slice() {
            [] => return "no process now".to_owned(),
            [(user, _)] => clean(user),
            users => most(users, |(user, count)| format!("{} {count}", clean(user))),
        };
        format!(
            "{} of {users}: {}",
            processes(self.processes()),
            most(&self.programs, |(program, _)| clean(program))
        )
    }
}

fn processes(n: usize) -> String {
    if n == 1 { "1 process".to_owned() } else { format!("{n} processes") }
}

/// The most users, and the most programs, of a unit that are named.
const NAMED_MAX: usize = 8;

/// Names the most frequent items, and gives the number of the others.
fn most(all: &[(String, usize)], word: impl Fn(&(String, usize)) -> String) -> String {
    let mut sorted: Vec<&(String, usize)> = all.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named: Vec<String> = sorted.iter().take(NAMED_MAX).map(|one| word(one)).collect();
    match sorted.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {}", named.join(", "), count(more, "other")),
    }
}

/// A line for each unit with its present processes, also for units without processes; and notes on processes
/// that are not held.
pub fn text(contract: &Contract, present: &[Present], style: Style) -> String {
    let mut text = style.paint(Paint::Strong, "Processes that would be held now") + "\n";
    let rest = " ".repeat(4);
    for unit in present.iter().filter(|unit| !unit.unit.is_common()) {
        let line = format!("{}: {}", clean(path(contract, unit.unit)), unit.words());
        text.extend(wrap(&line, style.width, "  ", &rest).into_iter().map(|line| line + "\n"));
        let moves = unit.moves().into_iter().flat_map(|moves| wrap(&moves, style.width, &rest, &rest));
        text.extend(moves.map(|line| line + "\n"));
        for (group, bounds) in unit.places.iter().take(NAMED_MAX) {
            let set =
                if bounds.is_none() { String::new() } else { format!(" (set by others: {})", set(bounds)) };
            let line = format!("in {}{set}", clean(group));
            text.extend(wrap(&line, style.width, &rest, &rest).into_iter().map(|line| line + "\n"));
        }
        if let more @ 1.. = unit.places.len().saturating_sub(NAMED_MAX) {
            text += &format!("{rest}and in {}\n", count(more, "other"));
        }
    }
    let unmatched: usize = present.iter().filter(|unit| unit.unit.is_common()).map(Present::processes).sum();
    let unmatched = match unmatched {
        0 => String::new(),
        some => format!("; and {} that no unit's rule matches", processes(some)),
    };
    let beyond: usize = present.iter().filter(|unit| !unit.unit.is_common()).map(|unit| unit.beyond_us).sum();
    let beyond = match beyond {
        0 => String::new(),
        some => format!(
            " Counted here and in the plan, but this user may not change them: {}. A daemon of root's holds every \
             user's.",
            processes(some)
        ),
    };
    let line = format!("Not held: {EXEMPT}{unmatched}.{beyond}");
    text.extend(wrap(&line, style.width, "", "").into_iter().map(|line| line + "\n"));
    text
}

#[derive(Serialize)]
pub(crate) struct PresentJson<'a> {
    unit: &'a str,
    processes: usize,
    users: BTreeMap<&'a str, usize>,
    programs: BTreeMap<&'a str, usize>,
    beyond_us: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scoped: Option<usize>,
    staying: BTreeMap<&'static str, usize>,
    /// The settings of each control group's manager, by the group's path.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    places: BTreeMap<&'a str, &'a GroupBounds>,
}

const fn key(why: Stays) -> &'static str {
    match why {
        Stays::UserManager => "user_manager",
        Stays::Service => "service",
        Stays::InPlace => "in_place",
        Stays::Mixed => "mixed",
    }
}

/// The present processes for a JSON document.
pub(crate) fn json<'a>(contract: &'a Contract, present: &'a [Present]) -> Vec<PresentJson<'a>> {
    let counts = |counts: &'a [(String, usize)]| counts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let unit = |present: &'a Present| PresentJson {
        unit: path(contract, present.unit),
        processes: present.processes(),
        users: counts(&present.users),
        programs: counts(&present.programs),
        beyond_us: present.beyond_us,
        moved: present.moved,
        scoped: present.scoped,
        staying: present.staying.iter().map(|(why, count)| (key(*why), *count)).collect(),
        places: present.places.iter().map(|(group, bounds)| (group.as_str(), bounds)).collect(),
    };
    present.iter().map(unit).collect()
}
