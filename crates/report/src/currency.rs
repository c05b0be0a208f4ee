//! `commonhold tickets UNIT`: shows a unit as a currency. The report has the tickets that fund the unit, the
//! tickets that the unit has issued, the present worth of both, the unit's exchanges, and the limits that
//! currencies impose.
//!
//! There are two limits (seed 004, section 2). *Upper*: a unit never holds more than the currency that funds
//! it is worth, however many tickets the other units in that currency give up. *Lower*: if a unit has fewer
//! tickets of a currency, its share goes to the other units in that currency, and no unit outside gains.

use commonhold_contract::{PerResource, Resource};
use commonhold_ledger::Exchange;
use serde::{Deserialize, Serialize};

use crate::figures::NOTHING;
use crate::holdings::Holding;
use crate::table::{Paint, Style, Table, clean, wrap};
use crate::tickets::{Beside, Lot, Tickets, cell, worth};
use crate::words::Much;

/// A unit as a currency. *The unit* below is this unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Currency {
    /// The unit's path.
    pub unit: String,
    /// The path of the unit whose currency funds this one; `None` for the machine's own currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encloser: Option<String>,
    /// The users who may change the tickets of the sub-units, in words.
    pub governors: String,
    /// The unit's own tickets of each resource.
    pub funding: Vec<Tickets>,
    /// The number of tickets that count in the funding currency: those of units that have processes.
    pub issued_around: PerResource<u64>,
    /// The worth of the funding currency, in the measures of [`Tickets::entitled`].
    pub worth_around: PerResource<u64>,
    /// The tickets of each direct sub-unit, for each resource.
    pub issued: Vec<Tickets>,
    /// The tickets of the unit's own processes, which are in no sub-unit.
    pub own: PerResource<u64>,
    /// The worth of the tickets in `own`.
    pub own_worth: PerResource<u64>,
    /// The lots that the unit holds of foreign currencies, and those that units outside hold of its currency.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lots: Vec<Lot>,
    /// The exchanges in force in which the unit takes part.
    pub exchanges: Vec<Exchange>,
    /// The resources that are not held, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_held: Vec<Holding>,
}

impl Currency {
    fn held(&self) -> Option<PerResource<u64>> {
        let mut held = PerResource::default();
        for row in &self.funding {
            held[row.resource] = row.entitled;
        }
        self.funding.iter().any(|row| row.active).then_some(held)
    }

    /// The name of the funding currency: its unit's path, or `the machine`.
    fn around(&self) -> String {
        self.encloser.as_deref().map_or_else(|| "the machine".to_owned(), clean)
    }
}

/// The report for a terminal.
pub fn text(currency: &Currency, style: Style) -> String {
    let mut text = funding(currency, style);
    text.push('\n');
    text += &issued(currency, style);
    text.push('\n');
    let beside = Beside { expected: &[], lots: &[], not_held: &currency.not_held };
    let lots = currency.lots.iter().map(Lot::line);
    let lines = lots.chain(exchanges(currency)).chain(limits(currency)).chain(beside.lines(|_| true));
    for line in lines.flat_map(|line| wrap(&line, style.width, "", "  ")) {
        text += &line;
        text.push('\n');
    }
    text
}

/// The report as JSON.
pub fn json(currency: &Currency) -> String {
    crate::json("commonhold.currency", currency)
}

const HEADS: [&str; 5] = ["", "cpu", "memory", "disk", "bus"];

fn row(table: &mut Table, head: String, cells: impl IntoIterator<Item = String>) {
    table.row(Paint::Plain, std::iter::once(head).chain(cells).collect());
}

fn funding(currency: &Currency, style: Style) -> String {
    let mut table = Table::new(&HEADS);
    row(&mut table, "tickets".to_owned(), currency.funding.iter().map(cell));
    let all = Resource::ALL.map(|resource| currency.issued_around[resource].to_string());
    row(&mut table, "of all that count there".to_owned(), all);
    row(&mut table, "worth now".to_owned(), currency.funding.iter().map(Tickets::worth));
    let head = format!("{} is funded in the currency of {}:", clean(&currency.unit), currency.around());
    format!("{head}\n{}", table.render(style))
}

fn issued(currency: &Currency, style: Style) -> String {
    let unit = clean(&currency.unit);
    if currency.issued.is_empty() {
        return format!(
            "{unit} has issued nothing: no unit is in it. Its processes hold all that it holds.\n"
        );
    }
    let mut table = Table::new(&HEADS);
    for rows in currency.issued.chunk_by(|one, next| one.unit == next.unit) {
        let name = rows[0].unit.rsplit('/').next().unwrap_or_default();
        row(&mut table, clean(name), rows.iter().map(cell));
        row(&mut table, "  worth now".to_owned(), rows.iter().map(Tickets::worth));
    }
    let tickets_and_worth = |resource: Resource| match currency.own[resource] {
        0 => [NOTHING.to_owned(), NOTHING.to_owned()],
        own => [own.to_string(), worth(resource, currency.own_worth[resource])],
    };
    let own = Resource::ALL.map(tickets_and_worth);
    row(&mut table, "its own processes".to_owned(), own.iter().map(|[tickets, _]| tickets.clone()));
    row(&mut table, "  worth now".to_owned(), own.iter().map(|[_, worth]| worth.clone()));
    format!(
        "{unit} has issued, in its own currency, in which {} may change tickets:\n{}",
        clean(currency.governors.trim_end_matches(',')),
        table.render(style)
    )
}

/// A line for each exchange: what the unit lends, and what it borrows.
fn exchanges(currency: &Currency) -> Vec<String> {
    let line = |exchange: &Exchange| {
        let legs = exchange.lent.iter().filter_map(|leg| {
            let tickets = Much(leg.what);
            match (leg.from == currency.unit, leg.to == currency.unit) {
                (true, _) => Some(format!("lends {tickets} to {}", clean(&leg.to))),
                (_, true) => Some(format!("got {tickets} of {}", clean(&leg.from))),
                _ => None,
            }
        });
        format!(
            "exchange {}: {} {}",
            exchange.number,
            clean(&currency.unit),
            legs.collect::<Vec<_>>().join(", ")
        )
    };
    currency.exchanges.iter().map(line).collect()
}

/// The limits that currencies impose on the unit, in words, with the ways around them.
fn limits(currency: &Currency) -> Vec<String> {
    let unit = clean(&currency.unit);
    let around = currency.around();
    let mut lines = Vec::new();
    let here = if currency.encloser.is_some() { format!("in {around}") } else { "at the top".to_owned() };
    let holds = if currency.encloser.is_some() { "holds" } else { "has" };
    lines.push(format!(
        "{unit} at most: what {around} {holds}, {}. It never holds more, whatever the others {here} give up; loans, \
         and what it holds of other currencies, come on top",
        amounts(currency.worth_around, currency.encloser.is_some() && currency.held().is_none()),
    ));
    if currency.encloser.is_some() {
        lines.push(format!(
            "{unit} with fewer tickets: its part goes to the others {here}. Nobody outside {around} gains by it"
        ));
        lines.push(format!(
            "the way out: an exchange of {around}. It holds more of one resource for less of another, with \
             `commonhold offer --unit {around} --give disk:30 --want cpu:20`, or of {unit} with a unit elsewhere; \
             and others gain where it has fewer tickets itself, by `commonhold fund {around}`"
        ));
    }
    if !currency.issued.is_empty() {
        lines.push(format!(
            "each unit in {unit} at most: what {unit} holds, {}; with fewer tickets its part goes to the others in {unit}, and \
             nobody outside gains. The way out: an exchange, `commonhold offer --unit {unit} --give disk:30 --want cpu:20`",
            amounts(currency.held().unwrap_or_default(), currency.held().is_none()),
        ));
    }
    lines
}

/// The worth of each resource in words: `4 CPUs, 8.0 GiB, 50% of each disk, 50% of the bus`.
fn amounts(worths: PerResource<u64>, is_nothing: bool) -> String {
    if is_nothing {
        return "nothing while it has no processes".to_owned();
    }
    let [cpu, memory, disk, bus] = Resource::ALL.map(|resource| worth(resource, worths[resource]));
    format!("{cpu}, {memory}, {disk} of each disk, {bus} of the bus")
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_ledger::Lent;
    use commonhold_policy::rights::Offer;

    const CPU: u64 = 1_000_000;

    fn rows(unit: &str, tickets: u64, contract: u64, cpus: u64) -> [Tickets; 4] {
        Resource::ALL.map(|resource| Tickets {
            unit: unit.to_owned(),
            resource,
            contract,
            tickets,
            lent: 0,
            got: 0,
            entitled: if resource == Resource::Memory {
                cpus << 30
            } else {
                cpus * CPU / 8 * if resource == Resource::Cpu { 8 } else { 1 }
            },
            active: cpus > 0,
        })
    }

    /// `lab` has 4 of 8 CPUs: `ana` 3, and its own processes 1; `bo` is not there.
    fn lab() -> Currency {
        let leg = |from: &str, to: &str, resource| Lent {
            from: from.to_owned(),
            to: to.to_owned(),
            what: Offer::tickets(resource, 5),
            of: None,
        };
        let exchange = Exchange {
            number: 3,
            lent: vec![leg("lab", "other", Resource::Disk), leg("other", "lab", Resource::Cpu)],
            began_ns: 0,
            until_ns: None,
            ended_ns: None,
            why: None,
            trial: None,
        };
        Currency {
            unit: "lab".to_owned(),
            encloser: None,
            governors: "root and the owner of `lab`, user:ana,".to_owned(),
            funding: rows("lab", 200, 100, 4).to_vec(),
            issued_around: PerResource::all(400),
            worth_around: PerResource { memory: 8 << 30, cpu: 8 * CPU, ..PerResource::all(CPU) },
            issued: [rows("lab/ana", 300, 300, 3), rows("lab/bo", 100, 100, 0)].concat(),
            own: PerResource { cpu: 100, ..PerResource::default() },
            own_worth: PerResource { cpu: CPU, ..PerResource::default() },
            lots: Vec::new(),
            exchanges: vec![exchange],
            not_held: Vec::new(),
        }
    }

    #[test]
    fn a_currency_says_what_funds_it_what_it_issued_and_what_it_does_not_allow() {
        let expected = "\
lab is funded in the currency of the machine:
                               cpu     memory       disk        bus
tickets                  200 (100)  200 (100)  200 (100)  200 (100)
of all that count there        400        400        400        400
worth now                   4 CPUs      4 GiB        50%        50%

lab has issued, in its own currency, in which root and the owner of `lab`, user:ana may change tickets:
                      cpu  memory   disk    bus
ana                   300     300    300    300
  worth now        3 CPUs   3 GiB  37.5%  37.5%
bo                    100     100    100    100
  worth now             -       -      -      -
its own processes     100       -      -      -
  worth now         1 CPU       -      -      -

exchange 3: lab lends 5 disk tickets to other, got 5 cpu tickets of other
lab at most: what the machine has, 8 CPUs, 8 GiB, 100% of each disk, 100% of the
  bus. It never holds more, whatever the others at the top give up; loans, and
  what it holds of other currencies, come on top
each unit in lab at most: what lab holds, 4 CPUs, 4 GiB, 50% of each disk, 50%
  of the bus; with fewer tickets its part goes to the others in lab, and nobody
  outside gains. The way out: an exchange, `commonhold offer --unit lab --give
  disk:30 --want cpu:20`
";
        assert_eq!(text(&lab(), Style { colour: false, width: 80 }), expected);
    }

    #[test]
    fn a_unit_in_a_currency_is_told_both_limits_and_the_way_out() {
        let ana = Currency {
            unit: "lab/ana".to_owned(),
            encloser: Some("lab".to_owned()),
            issued: Vec::new(),
            exchanges: Vec::new(),
            worth_around: PerResource { memory: 4 << 30, cpu: 4 * CPU, ..PerResource::all(CPU / 2) },
            ..lab()
        };
        let found = text(&ana, Style { colour: false, width: 400 });
        for words in [
            "lab/ana is funded in the currency of lab:",
            "lab/ana has issued nothing: no unit is in it. Its processes hold all that it holds.",
            "lab/ana at most: what lab holds, 4 CPUs, 4 GiB, 50% of each disk, 50% of the bus.",
            "lab/ana with fewer tickets: its part goes to the others in lab. Nobody outside lab gains by it",
            "the way out: an exchange of lab.",
            "`commonhold offer --unit lab --give disk:30 --want cpu:20`",
        ] {
            assert!(found.contains(words), "{words}: {found}");
        }
        let away = Currency { funding: rows("lab/ana", 200, 100, 0).to_vec(), ..ana };
        let found = text(&away, Style { colour: false, width: 400 });
        assert!(
            found.contains("lab/ana at most: what lab holds, nothing while it has no processes."),
            "{found}"
        );
    }

    #[test]
    fn json_says_what_it_is() {
        let json: serde_json::Value = serde_json::from_str(&json(&lab())).unwrap_or_default();
        assert_eq!((&json["schema"], &json["unit"]), (&"commonhold.currency".into(), &"lab".into()));
        assert_eq!((&json["own"]["cpu"], &json["issued"][0]["unit"]), (&100.into(), &"lab/ana".into()));
    }
}
