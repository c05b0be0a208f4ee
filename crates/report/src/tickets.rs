//! The tickets of units, with the changes made while the contract is in force: tables for `tickets`, lines
//! for `status`, and JSON.

use std::fmt::Write as _;

use commonhold_contract::Resource;
use commonhold_contract::measure::CpuCount;
use commonhold_policy::rights::Offer;
use serde::{Deserialize, Serialize};

use crate::figures::{NOTHING, bytes, part};
use crate::holdings::Holding;
use crate::table::{Paint, Style, Table, clean, indented, wrap};
use crate::words::Much;

/// A unit's tickets of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tickets {
    /// The unit's path.
    pub unit: String,
    /// Of what.
    pub resource: Resource,
    /// The number of tickets that the contract gives the unit.
    pub contract: u64,
    /// The unit's present tickets: its own, less those lent in exchanges, plus those borrowed.
    pub tickets: u64,
    /// The number of its own tickets that the unit lends in exchanges.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lent: u64,
    /// The number of other units' tickets that it borrows in exchanges.
    #[serde(default, skip_serializing_if = "is_none")]
    pub got: u64,
    /// The unit's entitlement by its present tickets and its reservation, with that of its sub-units: the
    /// amount that it gets while every unit with processes wants the resource. It is in millionths of a CPU,
    /// bytes of memory, or millionths of each disk or of the memory bus. It is 0 for a unit without
    /// processes, unless the scheme reserves the unit's share.
    pub entitled: u64,
    /// Whether the tickets count now: the unit or a sub-unit has processes, or the scheme reserves the unit's
    /// share.
    pub active: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_none(tickets: &u64) -> bool {
    *tickets == 0
}

/// Tickets that a unit does not have yet, but will have later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// The unit's path.
    pub unit: String,
    /// Of what.
    pub resource: Resource,
    /// The number of tickets.
    pub tickets: u64,
    /// When the unit will have them: the words after `n tickets`.
    pub when: String,
}

impl Expected {
    /// The expected tickets as one line.
    pub fn line(&self) -> String {
        let Expected { unit, resource, tickets, when } = self;
        format!("{}: {} {when}", clean(unit), number(*tickets, *resource))
    }
}

/// A number of tickets in words: `1 cpu ticket`, `7 disk tickets`.
fn number(tickets: u64, resource: Resource) -> String {
    format!("{tickets} {resource} {}", if tickets == 1 { "ticket" } else { "tickets" })
}

impl Tickets {
    /// Whether the present number differs from the contract's.
    pub fn is_changed(&self) -> bool {
        self.tickets != self.contract
    }

    /// The present worth of the tickets in words, that of sub-units included; `-` if the tickets do not count
    /// now.
    pub(crate) fn worth(&self) -> String {
        if self.active { worth(self.resource, self.entitled) } else { NOTHING.to_owned() }
    }

    /// The change as one line: `a: 150 cpu tickets instead of 100; entitled to 2.4 CPUs`.
    pub fn line(&self) -> String {
        let Tickets { unit, resource, contract, tickets, lent, got, entitled, active } = self;
        let mut instead = if self.is_changed() { format!(" instead of {contract}") } else { String::new() };
        for (tickets, how) in [(lent, "lent"), (got, "got")] {
            if *tickets > 0 {
                let _ = write!(instead, ", {tickets} {how} in exchanges");
            }
        }
        let of = match resource {
            Resource::Cpu | Resource::Memory => "",
            Resource::Disk => " of each disk",
            Resource::Bus => " of the bus",
        };
        let entitled = match active {
            true => format!("entitled to {}{of}", worth(*resource, *entitled)),
            false => "no processes now".to_owned(),
        };
        format!("{}: {}{instead}; {entitled}", clean(unit), number(*tickets, *resource))
    }
}

/// An amount of a resource: `4 CPUs`, `8.0 GiB`, or a part of each disk or of the bus.
pub(crate) fn worth(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Cpu => CpuCount(amount.min(u64::MAX - 1_000)).to_string(),
        Resource::Memory => bytes(amount),
        Resource::Disk | Resource::Bus => part(amount),
    }
}

/// A unit's number of tickets as a cell; if the contract's number differs, that number follows.
pub(crate) fn cell(row: &Tickets) -> String {
    match row.is_changed() {
        true => format!("{} ({})", row.tickets, row.contract),
        false => row.tickets.to_string(),
    }
}

/// A lot: tickets of a foreign currency, or a borrowed reservation, that a unit holds beside its own tickets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lot {
    /// The path of the unit that holds it.
    pub unit: String,
    /// The path of the unit whose currency the lot is of; `None` for the machine's own currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The amount: `cpu:30`, `memory:2GiB`.
    pub what: Offer,
}

impl Lot {
    /// The lot as one line.
    pub fn line(&self) -> String {
        let of = self.of.as_deref().map_or_else(|| "the machine".to_owned(), clean);
        format!("{} holds {} of {of} beside its own", clean(&self.unit), Much(self.what))
    }
}

/// Information that is shown with tickets, mostly as notes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Beside<'a> {
    /// Tickets that units will have later.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub expected: &'a [Expected],
    /// The lots of units.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub lots: &'a [Lot],
    /// The resources that are not held, with the reasons. Their tickets are recorded, but have no effect.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub not_held: &'a [Holding],
}

impl Beside<'_> {
    /// Lines about expected tickets, about lots, and about resources that are not held. `of` says which of
    /// these resources the report is about.
    pub(crate) fn lines(&self, of: impl Fn(&str) -> bool) -> Vec<String> {
        let not_held = self.not_held.iter().filter(|holding| of(&holding.resource));
        let not_held = not_held.map(|it| format!("{} tickets have no effect now: {}", it.resource, it.how));
        self.expected
            .iter()
            .map(Expected::line)
            .chain(self.lots.iter().map(Lot::line))
            .chain(not_held)
            .collect()
    }
}

/// The result of a change: a line for each number, and notes.
pub fn outcome(tickets: &[Tickets], beside: Beside<'_>) -> String {
    let of = |name: &str| tickets.iter().any(|it| it.resource.name() == name);
    let lines = tickets.iter().map(Tickets::line).chain(beside.lines(of));
    lines.map(|line| line + "\n").collect()
}

/// Tickets for a terminal. A first table has a row for each unit, with the currency of its tickets and their
/// number for each resource. A second table has their present worth. Then come a line for each changed
/// number, and notes.
pub fn text(tickets: &[Tickets], beside: Beside<'_>, style: Style) -> String {
    if tickets.is_empty() {
        return "No unit holds tickets: all is shared.\n".to_owned();
    }
    let mut table = Table::new(&["unit", "currency", "cpu", "memory", "disk", "bus"]);
    let mut worths = Table::new(&["worth now", "cpu", "memory", "disk", "bus"]);
    for of_unit in tickets.chunk_by(|one, next| one.unit == next.unit) {
        let unit = &of_unit[0].unit;
        let currency = unit.rsplit_once('/').map_or("the machine", |(currency, _)| currency);
        let currency = currency.rsplit('/').next().unwrap_or(currency);
        let name = indented(unit);
        let of = |resource: Resource| of_unit.iter().find(|it| it.resource == resource);
        let cells = Resource::ALL.map(|resource| of(resource).map_or_else(String::new, cell));
        table.row(Paint::Plain, [name.clone(), clean(currency)].into_iter().chain(cells).collect());
        let cells = Resource::ALL.map(|resource| of(resource).map_or_else(String::new, Tickets::worth));
        worths.row(Paint::Plain, std::iter::once(name).chain(cells).collect());
    }
    let mut text = format!("{}\n{}\n", table.render(style), worths.render(style));
    let changed: Vec<&Tickets> = tickets.iter().filter(|it| it.is_changed()).collect();
    text += match changed.is_empty() {
        true => "All are those of the contract.\n",
        false => "In parentheses: what the contract gives, where it was changed.\n",
    };
    let of = |name: &str| changed.iter().any(|it| it.resource.name() == name);
    let lines = changed.iter().map(|it| it.line()).chain(beside.lines(of));
    for line in lines.flat_map(|line| wrap(&line, style.width, "", "  ")) {
        text += &line;
        text.push('\n');
    }
    text
}

/// Tickets as JSON.
pub fn json(tickets: &[Tickets], beside: Beside<'_>) -> String {
    #[derive(Serialize)]
    struct All<'a> {
        tickets: &'a [Tickets],
        #[serde(flatten)]
        beside: Beside<'a>,
    }
    crate::json("commonhold.tickets", All { tickets, beside })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(unit: &str, changed: &[(Resource, u64, u64)]) -> [Tickets; 4] {
        Resource::ALL.map(|resource| {
            let found = changed.iter().find(|(of, ..)| *of == resource);
            let (tickets, entitled) = found.map_or((100, 0), |(_, tickets, entitled)| (*tickets, *entitled));
            Tickets {
                unit: unit.to_owned(),
                resource,
                contract: 100,
                tickets,
                lent: 0,
                got: 0,
                entitled,
                active: entitled > 0,
            }
        })
    }

    const NOTHING: Beside<'_> = Beside { expected: &[], lots: &[], not_held: &[] };

    #[test]
    fn what_was_changed_stands_beside_what_the_contract_gives() {
        let style = Style { colour: false, width: 80 };
        let all = [
            of("physics", &[(Resource::Cpu, 150, 2_400_000), (Resource::Disk, 1, 250_000)]),
            of("physics/night", &[(Resource::Memory, 1_000, 3 << 29)]),
        ]
        .concat();
        let expected = "\
unit        currency        cpu      memory     disk  bus
physics  the machine  150 (100)         100  1 (100)  100
  night      physics        100  1000 (100)      100  100

worth now       cpu   memory  disk  bus
physics    2.4 CPUs        -   25%    -
  night           -  1.5 GiB     -    -

In parentheses: what the contract gives, where it was changed.
physics: 150 cpu tickets instead of 100; entitled to 2.4 CPUs
physics: 1 disk ticket instead of 100; entitled to 25% of each disk
physics/night: 1000 memory tickets instead of 100; entitled to 1.5 GiB
";
        assert_eq!(text(&all, NOTHING, style), expected);
        let plain = of("a", &[]);
        assert!(text(&plain, NOTHING, style).ends_with("All are those of the contract.\n"));
        assert_eq!(plain[0].line(), "a: 100 cpu tickets; no processes now");
        assert_eq!(text(&[], NOTHING, style), "No unit holds tickets: all is shared.\n");
    }

    /// Reservations of siblings leave it nothing, which is not the same as having no processes.
    #[test]
    fn a_unit_that_is_entitled_to_nothing_has_processes() {
        let mut row = of("a", &[]).into_iter().next().unwrap();
        row.active = true;
        assert_eq!(row.line(), "a: 100 cpu tickets; entitled to 0 CPUs");
    }

    /// What has no effect, or not yet, is said beside what was changed, and only there.
    #[test]
    fn what_has_no_effect_is_said() {
        let style = Style { colour: false, width: 80 };
        let not_held = [Resource::Memory, Resource::Bus].map(|it| Holding::not_held(it, " by this version"));
        let when = "once it has processes".to_owned();
        let expected = [Expected { unit: "all/ana".to_owned(), resource: Resource::Disk, tickets: 1, when }];
        let beside = Beside { expected: &expected, lots: &[], not_held: &not_held };
        let rows = of("a", &[(Resource::Bus, 150, 0)]);
        let bus = "bus tickets have no effect now: not held by this version\n";
        let ana = "all/ana: 1 disk ticket once it has processes\n";
        let changed = "a: 150 bus tickets instead of 100; no processes now\n";
        let found = text(&rows, beside, style);
        assert!(found.ends_with(&[changed, ana, bus].concat()), "{found}");
        let found = text(&of("a", &[]), beside, style);
        assert!(found.ends_with(&format!("All are those of the contract.\n{ana}")), "{found}");
        assert_eq!(outcome(&rows[3..], Beside { expected: &[], ..beside }), [changed, bus].concat());
        assert_eq!(
            outcome(&rows[..1], Beside { expected: &[], ..beside }),
            "a: 100 cpu tickets; no processes now\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&rows, beside)).unwrap();
        assert_eq!(
            (&json["expected"][0]["unit"], &json["not_held"][1]["resource"]),
            (&"all/ana".into(), &"bus".into())
        );
    }

    #[test]
    fn json_says_what_it_is_and_names_resources() {
        let json: serde_json::Value = serde_json::from_str(&json(&of("a", &[]), NOTHING)).unwrap();
        assert_eq!((&json["schema"], &json["version"]), (&"commonhold.tickets".into(), &1.into()));
        let first = serde_json::json!(
            {"unit": "a", "resource": "cpu", "contract": 100, "tickets": 100, "entitled": 0, "active": false}
        );
        assert_eq!(json["tickets"][0], first);
    }
}
