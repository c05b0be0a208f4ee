//! Which processes are in which unit at a moment, for `run --dry-run`; and which are never in one.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use serde::Serialize;

use crate::figures::count;
use crate::plan::path;
use crate::table::{Paint, Style, clean, wrap};

/// The processes in no unit, whatever a contract's rules match.
pub const EXEMPT: &str = "kernel threads, process 1 and Commonhold itself";

/// The processes in a unit, or in none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// The unit; [`UnitId::SHARED`] for those that match none.
    pub unit: UnitId,
    /// How many processes each user has there.
    pub users: Vec<(String, usize)>,
    /// The same by the kernel's name of their program.
    pub programs: Vec<(String, usize)>,
    /// Processes among them that cannot be held, since they are other users'.
    pub beyond_us: usize,
}

impl Present {
    fn processes(&self) -> usize {
        self.users.iter().map(|(_, count)| count).sum()
    }

    /// `3 processes of ana 2, root 1: make, sh`
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

/// Users and programs of a unit that are named.
const NAMED_MAX: usize = 8;

/// The most frequent, and how many others there are.
fn most(all: &[(String, usize)], word: impl Fn(&(String, usize)) -> String) -> String {
    let mut sorted: Vec<&(String, usize)> = all.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named: Vec<String> = sorted.iter().take(NAMED_MAX).map(|one| word(one)).collect();
    match sorted.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {}", named.join(", "), count(more, "other")),
    }
}

/// The processes in each unit now, units without any included; and those that are not held.
pub fn text(contract: &Contract, present: &[Present], style: Style) -> String {
    let mut text = style.paint(Paint::Strong, "Processes that would be held now") + "\n";
    let rest = " ".repeat(4);
    for unit in present.iter().filter(|unit| !unit.unit.is_common()) {
        let line = format!("{}: {}", clean(path(contract, unit.unit)), unit.words());
        text.extend(wrap(&line, style.width, "  ", &rest).into_iter().map(|line| line + "\n"));
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
}

/// The same for a JSON document.
pub(crate) fn json<'a>(contract: &'a Contract, present: &'a [Present]) -> Vec<PresentJson<'a>> {
    let counts = |counts: &'a [(String, usize)]| counts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let unit = |present: &'a Present| PresentJson {
        unit: path(contract, present.unit),
        processes: present.processes(),
        users: counts(&present.users),
        programs: counts(&present.programs),
        beyond_us: present.beyond_us,
    };
    present.iter().map(unit).collect()
}
