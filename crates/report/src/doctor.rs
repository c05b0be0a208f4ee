//! The report of `doctor`: what this machine can do to hold a contract. For everything that it cannot do, the
//! report gives the reason and a remedy.
//!
//! Paths and commands are never cut, since readers copy them. A long one exceeds the terminal's width.

use std::collections::BTreeMap;

use commonhold_machine::capability::{Area, Enforcer, Findings, Row, State};
use commonhold_machine::pools::{Form, Pools};
use unicode_width::UnicodeWidthStr;

use crate::table::{Paint, Style, clean};

/// The width of the column of states, the gap after it included. The longest state is `partly`.
const STATE_COLUMNS: usize = 8;

/// The indent of everything below a heading.
const INDENT: usize = 2;

/// The least width of the column of reasons, however narrow the terminal is.
const REASON_COLUMNS_MIN: usize = 30;

/// A remedy of at most this width is printed in full each time, since a reference to the first time would be
/// no shorter.
const REMEDY_COLUMNS_REPEATED: usize = 30;

/// The findings as text: the machine, what holds each resource, and every finding by area.
pub fn text(findings: &Findings, style: Style) -> String {
    let machine = findings.machine.as_ref().map(|machine| format!("This machine: {}", machine.summary()));
    let mut lines = machine.map(|machine| flow(&machine, style.width, 0)).unwrap_or_default();
    let pools = findings.machine.as_ref().map(|machine| {
        let (pools, why) = (Pools::form(machine, Form::Auto), Pools::why(machine));
        format!("Its CPUs lie in {}: {why}", pools.summary())
    });
    lines.extend(pools.map(|pools| flow(&pools, style.width, 0)).unwrap_or_default());
    lines.extend(enforcers(&findings.enforcers, style));
    let mut remedies = BTreeMap::new();
    let names = widest(findings.rows.iter().map(|row| row.name.as_str()));
    for area in Area::ALL {
        let rows: Vec<&Row> = findings.rows.iter().filter(|row| row.area == area).collect();
        if rows.is_empty() {
            continue;
        }
        lines.extend([String::new(), style.paint(Paint::Strong, heading(area))]);
        for finding in rows {
            lines.extend(row(finding, names, style));
            lines.extend(remedy(finding, &mut remedies, style));
        }
    }
    lines.push(String::new());
    lines.push(tally(findings));
    lines.join("\n") + "\n"
}

/// The findings as JSON, under the schema `commonhold.doctor`: `machine`, `enforcers` and `rows`.
pub fn json(findings: &Findings) -> String {
    crate::json("commonhold.doctor", findings)
}

const fn heading(area: Area) -> &'static str {
    match area {
        Area::Cgroup => "Control groups",
        Area::Cpu => "CPU",
        Area::Memory => "Memory",
        Area::Disk => "Disk",
        Area::Bus => "Memory bus",
        Area::Privileges => "Privileges",
        Area::Surroundings => "Surroundings",
    }
}

/// A line for each resource: the enforcer that holds it, or why there is none.
fn enforcers(enforcers: &[Enforcer], style: Style) -> Vec<String> {
    if enforcers.is_empty() {
        return Vec::new();
    }
    let name = |enforcer: &Enforcer| clean(enforcer.name.as_deref().unwrap_or("nothing"));
    let resources = widest(enforcers.iter().map(|enforcer| enforcer.resource.name()));
    let names = enforcers.iter().map(|enforcer| name(enforcer).width()).max().unwrap_or(0);
    let column = INDENT + resources + 2 + names + 2;
    let mut lines = vec![String::new(), style.paint(Paint::Strong, "What holds a contract here")];
    for enforcer in enforcers {
        let paint = if enforcer.name.is_some() { Paint::Good } else { Paint::Faint };
        let name = style.paint(paint, &format!("{:<names$}", name(enforcer)));
        let head = format!("{:INDENT$}{:<resources$}  {name}  ", "", enforcer.resource);
        lines.extend(beside(&head, column, &enforcer.why, style));
    }
    lines
}

/// One finding: state, name and reason.
fn row(row: &Row, names: usize, style: Style) -> Vec<String> {
    let paint = match row.state {
        State::Yes => Paint::Good,
        State::Partly => Paint::Strong,
        State::No => Paint::Bad,
    };
    let state = style.paint(paint, &row.state.to_string());
    let gap = STATE_COLUMNS - row.state.to_string().width();
    let name = clean(&row.name);
    let fill = names + 2 - name.width().min(names);
    let head = format!("{:INDENT$}{state}{:gap$}{name}{:fill$}", "", "", "");
    beside(&head, INDENT + STATE_COLUMNS + names + 2, &row.reason, style)
}

/// The lines of a finding's remedy. If a long remedy was printed before, the line only refers to the finding
/// where it is. `shown` maps each remedy printed so far to the name of that finding.
fn remedy<'a>(row: &'a Row, shown: &mut BTreeMap<&'a str, &'a str>, style: Style) -> Vec<String> {
    let Some(remedy) = row.remedy.as_deref() else { return Vec::new() };
    let head = format!("{:1$}-> ", "", INDENT + STATE_COLUMNS);
    match shown.get(remedy) {
        Some(name) if remedy.width() > REMEDY_COLUMNS_REPEATED => {
            beside(&head, head.width(), &format!("as for `{name}`"), style)
        }
        _ => {
            shown.entry(remedy).or_insert(&row.name);
            beside(&head, head.width(), remedy, style)
        }
    }
}

/// Lines that begin with `head` and go on with `text` from the column `column`. Further lines begin at that
/// column, too.
fn beside(head: &str, column: usize, text: &str, style: Style) -> Vec<String> {
    let width = style.width.saturating_sub(column).max(REASON_COLUMNS_MIN);
    let mut lines = flow(&clean(text), width, column);
    if let Some(first) = lines.first_mut() {
        first.replace_range(..column, head);
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// The words of a text in indented lines of at most `width` columns. A longer word has a line of its own, and
/// is not cut.
fn flow(text: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line =
            lines.last_mut().filter(|line| line.is_empty() || line.width() + 1 + word.width() <= width);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => line.extend([" ", word]),
            None => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| format!("{:indent$}{line}", "")).collect()
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| clean(text).width()).max().unwrap_or(0)
}

/// The number of findings in each state, in words.
fn tally(findings: &Findings) -> String {
    let count = |state| findings.rows.iter().filter(|row| row.state == state).count();
    let (yes, partly, no) = (count(State::Yes), count(State::Partly), count(State::No));
    format!("{yes} yes, {partly} partly, {no} no; `->` marks a remedy")
}
