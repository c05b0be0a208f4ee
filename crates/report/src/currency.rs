//! A unit as a currency: what funds it, what it issued, what each of these is worth now, its exchanges, and the limits that
//! currencies impose.
//!
//! Limits (seed 004, section 2): *upper*, a unit never holds more than its currency is worth, whatever the others in it give
//! up; *lower*, fewer tickets for one unit in a currency move its part to the others in it, and nobody outside gains.

use commonhold_contract::{PerResource, Resource};
use commonhold_ledger::Exchange;
use serde::{Deserialize, Serialize};

use crate::figures::NOTHING;
use crate::holdings::Holding;
use crate::table::{Paint, Style, Table, clean, wrap};
use crate::tickets::{Beside, Tickets, cell, worth};

/// A unit as a currency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Currency {
    /// The unit's path.
    pub unit: String,
    /// The currency that funds it, by its unit's path; nothing: the machine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encloser: Option<String>,
    /// Who may change the tickets of the units in it, in words.
    pub governors: String,
    /// Its own tickets of each resource.
    pub funding: Vec<Tickets>,
    /// All tickets that count in the currency that funds it: of the units there that have processes.
    pub issued_around: PerResource<u64>,
    /// What the currency that funds it is worth, in the measures of [`Tickets::entitled`].
    pub worth_around: PerResource<u64>,
    /// The tickets of each unit directly in it, of each resource.
    pub issued: Vec<Tickets>,
    /// Tickets of its own processes that are in none of these, and what they are worth.
    pub own: PerResource<u64>,
    /// What these are worth.
    pub own_worth: PerResource<u64>,
    /// Exchanges in force that it is in.
    pub exchanges: Vec<Exchange>,
    /// Of the resources that nothing holds: why.
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

    /// The currency that funds it, by its unit; that of the machine is nobody's.
    fn around(&self) -> String {
        self.encloser.as_deref().map_or_else(|| "the machine".to_owned(), clean)
    }
}

/// For a terminal.
pub fn text(currency: &Currency, style: Style) -> String {
    let mut text = funding(currency, style);
    text.push('\n');
    text += &issued(currency, style);
    text.push('\n');
    let beside = Beside { expected: &[], not_held: &currency.not_held };
    let lines = exchanges(currency).into_iter().chain(limits(currency)).chain(beside.lines(|_| true));
    for line in lines.flat_map(|line| wrap(&line, style.width, "", "  ")) {
        text += &line;
        text.push('\n');
    }
    text
}

/// As JSON.
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
    let of = |resource: Resource| match currency.own[resource] {
        0 => [NOTHING.to_owned(), NOTHING.to_owned()],
        own => [own.to_string(), worth(resource, currency.own_worth[resource])],
    };
    let own = Resource::ALL.map(of);
    row(&mut table, "its own processes".to_owned(), own.iter().map(|[tickets, _]| tickets.clone()));
    row(&mut table, "  worth now".to_owned(), own.iter().map(|[_, worth]| worth.clone()));
    format!(
        "{unit} has issued, in its own currency, in which {} may change tickets:\n{}",
        clean(currency.governors.trim_end_matches(',')),
        table.render(style)
    )
}

/// A line for each exchange: what the unit lends, and what it got.
fn exchanges(currency: &Currency) -> Vec<String> {
    let of = |exchange: &Exchange| {
        let legs = exchange.lent.iter().filter_map(|leg| {
            let tickets = format!("{} {} tickets", leg.tickets, leg.resource);
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
    currency.exchanges.iter().map(of).collect()
}

/// What currencies do not allow, and the way out.
fn limits(currency: &Currency) -> Vec<String> {
    let unit = clean(&currency.unit);
    let around = currency.around();
    let mut lines = Vec::new();
    let here = if currency.encloser.is_some() { format!("in {around}") } else { "at the top".to_owned() };
    let holds = if currency.encloser.is_some() { "holds" } else { "has" };
    lines.push(format!(
        "{unit} at most: what {around} {holds}, {}. It never holds more, whatever the others {here} give up; loans come on top",
        amounts(currency.worth_around, currency.encloser.is_some() && currency.held().is_none()),
    ));
    if currency.encloser.is_some() {
        lines.push(format!(
            "{unit} with fewer tickets: its part goes to the others {here}. Nobody outside {around} gains by it"
        ));
        lines.push(format!(
            "the way out: an exchange of {around}. It holds more of one resource for less of another, with `commonhold offer \
             --unit {around} --give disk:30 --want cpu:20`; and others gain where it has fewer tickets itself, by `commonhold \
             fund {around}`"
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

/// `4 CPUs, 8.0 GiB, 50% of each disk, 50% of the bus`.
fn amounts(of: PerResource<u64>, is_nothing: bool) -> String {
    if is_nothing {
        return "nothing while it has no processes".to_owned();
    }
    let [cpu, memory, disk, bus] = Resource::ALL.map(|resource| worth(resource, of[resource]));
    format!("{cpu}, {memory}, {disk} of each disk, {bus} of the bus")
}
