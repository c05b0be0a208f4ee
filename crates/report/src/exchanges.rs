//! Reports of offers and exchanges: what is offered, what each unit lends in each exchange and for how long,
//! and what the negotiator's trials showed.

use commonhold_contract::amount_text;
use commonhold_ledger::{Cause, Done, Exchange, Lent, Negotiated, Side, Trial};
use commonhold_policy::rights::{Ending, Offer, Stake};
use serde::{Deserialize, Serialize};

use crate::figures::{NOTHING, duration};
use crate::table::{Paint, Style, Table, clean, wrap};
use crate::tickets::Tickets;

/// An open offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The offer's number, by which it can be withdrawn.
    pub number: u64,
    /// The path of the unit that makes the offer.
    pub unit: String,
    /// What the unit gives.
    pub gives: Offer,
    /// What the unit wants in return.
    pub wants: Offer,
    /// The path of the only unit that may serve the offer; `None`: any unit may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// The least amount of `wants` that the unit accepts, for a proportional part of `gives`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Offer>,
    /// The longest duration of an exchange, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Why the offer is not served: its unit lacks something, or no other offer matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

/// Open offers and exchanges for a terminal. `elapsed_ns` is the time since the accounts were opened.
pub fn text(
    offers: &[Standing],
    exchanges: &[Exchange],
    negotiated: &[Negotiated],
    elapsed_ns: u64,
    style: Style,
) -> String {
    let mut tables = Vec::new();
    if !offers.is_empty() {
        let mut table = Table::new(&["offer", "unit", "gives", "wants", "with", "for"]);
        for offer in offers {
            let cells = vec![
                offer.number.to_string(),
                clean(&offer.unit),
                much(offer.gives),
                wanted(offer),
                offer.with.as_deref().map_or(NOTHING.to_owned(), clean),
                offer.for_ns.map_or(NOTHING.to_owned(), duration),
            ];
            table.row(Paint::Plain, cells);
        }
        let mut text = table.render(style);
        for (offer, why) in offers.iter().filter_map(|offer| Some((offer.number, offer.waits.as_ref()?))) {
            for line in wrap(&format!("offer {offer} waits: {why}"), style.width, "", "  ") {
                text += &line;
                text.push('\n');
            }
        }
        tables.push(text);
    }
    tables.extend(table(exchanges, When::Ago(elapsed_ns)).map(|table| table.render(style)));
    if tables.is_empty() {
        tables.push("No offer stands, and no tickets are exchanged.\n".to_owned());
    }
    tables.extend(trials(exchanges, negotiated, style));
    tables.join("\n")
}

/// Open offers and exchanges as JSON.
pub fn json(
    offers: &[Standing],
    exchanges: &[Exchange],
    negotiated: &[Negotiated],
    elapsed_ns: u64,
) -> String {
    #[derive(Serialize)]
    struct All<'a> {
        offers: &'a [Standing],
        exchanges: &'a [Exchange],
        #[serde(skip_serializing_if = "<[Negotiated]>::is_empty")]
        negotiated: &'a [Negotiated],
        elapsed_ns: u64,
    }
    crate::json("commonhold.offers", All { offers, exchanges, negotiated, elapsed_ns })
}

/// How a point in time is shown.
#[derive(Debug, Clone, Copy)]
pub enum When {
    /// As the time since the accounts were opened.
    At,
    /// Relative to now, as in `3 s ago`. The value is now, in ns since the accounts were opened.
    Ago(u64),
}

impl When {
    fn words(self, at: u64) -> String {
        match self {
            When::At => duration(at),
            When::Ago(now) if at <= now => format!("{} ago", duration(now - at)),
            When::Ago(now) => format!("in {}", duration(at - now)),
        }
    }
}

/// The result of making an offer, as JSON: the offer's number, the number of the exchange if one served the
/// offer at once, and the tickets of the units in that exchange.
pub fn offered(offer: Option<u64>, exchange: Option<u64>, tickets: &[Tickets]) -> String {
    #[derive(Serialize)]
    struct All<'a> {
        offer: Option<u64>,
        exchange: Option<u64>,
        tickets: &'a [Tickets],
    }
    crate::json("commonhold.offer", All { offer, exchange, tickets })
}

/// An amount of tickets, `30 disk`, or of a reservation, `2GiB memory`.
pub(crate) fn much(offer: Offer) -> String {
    let Offer { resource, stake } = offer;
    match stake {
        Stake::Tickets(tickets) => format!("{tickets} {resource}"),
        Stake::Hard(amount) => format!("{} {resource}", amount_text(resource, amount)),
    }
}

/// What an offer wants. If the unit accepts less, the least amount follows.
fn wanted(offer: &Standing) -> String {
    let least = offer.at_least.map_or_else(String::new, |least| format!(", {} at least", much(least)));
    much(offer.wants) + &least
}

/// What one unit lends another in an exchange, `30 disk of physics`: tickets of the currency of `physics`.
pub fn lent_amount(lent: &Lent) -> String {
    much(lent.what) + &lent.of.as_deref().map_or_else(String::new, |of| format!(" of {}", clean(of)))
}

/// A table with a row for each loan of each exchange; `None` without exchanges.
pub fn table(exchanges: &[Exchange], when: When) -> Option<Table> {
    if exchanges.is_empty() {
        return None;
    }
    let mut table = Table::new(&["exchange", "lends", "to", "tickets", "began", "ends"]);
    for exchange in exchanges {
        let until = match (exchange.ended_ns, exchange.why) {
            (Some(at), Some(why)) => format!("{}: {}", when.words(at), words(why)),
            _ => exchange.until_ns.map_or(NOTHING.to_owned(), |at| when.words(at)),
        };
        let paint = if exchange.ended_ns.is_some() { Paint::Faint } else { Paint::Plain };
        for (index, lent) in exchange.lent.iter().enumerate() {
            let once = |text: String| if index == 0 { text } else { String::new() };
            let cells = vec![
                once(exchange.number.to_string()),
                clean(&lent.from),
                clean(&lent.to),
                lent_amount(lent),
                once(when.words(exchange.began_ns)),
                once(until.clone()),
            ];
            table.row(paint, cells);
        }
    }
    Some(table)
}

/// The most units without a trial that are named; the number of further units is given instead.
const UNTRIED_NAMED: usize = 8;

/// The negotiator's results: the outcome of each trial, what trials have cost and exchanges have brought to
/// each unit, and the units that negotiate without a trial so far. `None` if there was no trial and no unit
/// negotiates.
pub fn trials(exchanges: &[Exchange], negotiated: &[Negotiated], style: Style) -> Option<String> {
    let trials = exchanges.iter().filter_map(|exchange| Some((exchange.number, exchange.trial.as_ref()?)));
    let found =
        trials.map(|(number, trial)| format!("exchange {number}, trial {}: {}", trial.number, found(trial)));
    let (tried, untried): (Vec<&Negotiated>, Vec<&Negotiated>) =
        negotiated.iter().partition(|it| is_tried(it));
    let came = tried.into_iter().map(|came| {
        format!(
            "{}: trials cost at most {} of its CPU time, so far measured {}; exchanges brought {}",
            clean(&came.unit),
            duration(came.risked_ns),
            duration(came.lost_ns),
            duration(came.gained_ns)
        )
    });
    let all = found.chain(came).chain(without_trial(&untried));
    let lines: Vec<String> = all.flat_map(|line| wrap(&line, style.width, "", "  ")).collect();
    (!lines.is_empty()).then(|| lines.join("\n") + "\n")
}

/// Whether a unit had a trial. An older daemon does not count trials; then a cost or gain above 0 shows that
/// there was one.
fn is_tried(came: &Negotiated) -> bool {
    [came.trials, came.risked_ns, came.lost_ns, came.gained_ns].iter().any(|figure| *figure > 0)
}

/// A line about units without a trial: `units that negotiate: a, b; no trial yet`.
fn without_trial(units: &[&Negotiated]) -> Option<String> {
    let mut named: Vec<String> = units.iter().take(UNTRIED_NAMED).map(|it| clean(&it.unit)).collect();
    if units.len() > UNTRIED_NAMED {
        named.push(format!("{} more", units.len() - UNTRIED_NAMED));
    }
    (!named.is_empty()).then(|| format!("units that negotiate: {}; no trial yet", named.join(", ")))
}

/// The outcome of a trial in words:
/// `kept; a 0.612 CPUs instead of 0.490 (more), b 0.100 instead of 0.100 (the same)`.
fn found(trial: &Trial) -> String {
    let done = match trial.done {
        Done::Tried => "being measured",
        Done::Good => "good for both, and more was tried",
        Done::Left => "left for another amount",
        Done::Kept => "kept",
        Done::Suspended => "suspended, to see what both do without it",
        Done::Undone => "undone",
    };
    let why = match trial.why {
        Some(Cause::Lost) => {
            format!(", since {} lost", trial.lost.as_deref().map_or_else(|| "a unit".to_owned(), clean))
        }
        Some(Cause::NoGain) => ", since no gain of both could be told".to_owned(),
        Some(Cause::Changed) => ", since units came or went".to_owned(),
        Some(Cause::Refused) => ", since the tickets could not be exchanged".to_owned(),
        Some(Cause::Ended) => ", since somebody ended it".to_owned(),
        Some(Cause::Withdrawn) => ", since a unit negotiates no more".to_owned(),
        None => String::new(),
    };
    let sides: Vec<String> = trial.sides.iter().map(side).collect();
    format!("{done}{why}; {}", sides.join(", "))
}

fn side(side: &Side) -> String {
    let cpus = |micro: u64| format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
    let unit = clean(&side.unit);
    match side.with {
        Some(with) => {
            let than = match with {
                with if with > side.without.saturating_add(side.noise) => "more",
                with if with.saturating_add(side.noise) < side.without => "less",
                _ => "not to be told apart",
            };
            format!("{unit} used {} CPUs instead of {} ({than})", cpus(with), cpus(side.without))
        }
        None => format!("{unit} used {} CPUs without it", cpus(side.without)),
    }
}

fn words(why: Ending) -> &'static str {
    match why {
        Ending::Over => "over",
        Ending::Ended => "ended by a unit",
        Ending::Gone => "a unit is gone",
        Ending::TooFew => "too little left",
        Ending::Negotiated => "by the negotiator",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_contract::Resource::{Cpu, Disk};
    use commonhold_ledger::Lent;

    #[test]
    fn offers_and_exchanges_have_a_row_each() {
        let offer = Standing {
            number: 4,
            unit: "a".to_owned(),
            gives: Offer::tickets(Disk, 300),
            wants: Offer::tickets(Cpu, 200),
            at_least: None,
            with: None,
            for_ns: Some(600_000_000_000),
            waits: Some("it has 3".to_owned()),
        };
        let lent = |from: &str, to: &str, resource, tickets| Lent {
            from: from.to_owned(),
            to: to.to_owned(),
            what: Offer::tickets(resource, tickets),
            of: None,
        };
        let exchange = Exchange {
            number: 3,
            lent: vec![lent("a", "b", Disk, 30), lent("b", "a", Cpu, 20)],
            began_ns: 5_000_000_000,
            until_ns: None,
            ended_ns: None,
            why: None,
            trial: None,
        };
        let over = Exchange {
            number: 2,
            ended_ns: Some(6_000_000_000),
            why: Some(Ending::Gone),
            ..exchange.clone()
        };
        let text = text(core::slice::from_ref(&offer), &[over, exchange], &[], 9_000_000_000, Style::PLAIN);
        let expected = "\
offer  unit     gives    wants  with      for
4         a  300 disk  200 cpu     -  600.0 s
offer 4 waits: it has 3

exchange  lends  to  tickets      began                       ends
2             a   b  30 disk  4.0 s ago  3.0 s ago: a unit is gone
              b   a   20 cpu
3             a   b  30 disk  4.0 s ago                          -
              b   a   20 cpu
";
        assert_eq!(text, expected);
        let json = super::json(&[offer], &[], &[], 9);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["offers"][0]["waits"], "it has 3");
        assert_eq!(
            super::text(&[], &[], &[], 0, Style::PLAIN),
            "No offer stands, and no tickets are exchanged.\n"
        );
    }

    #[test]
    fn a_trial_is_told_with_what_it_found_and_what_it_may_have_cost() {
        let side = |unit: &str, without, with| Side { unit: unit.to_owned(), without, with, noise: 5_000 };
        let trial = |done, why, lost: Option<&str>| Trial {
            number: 1,
            level: 200,
            done,
            why,
            lost: lost.map(str::to_owned),
            sides: vec![side("a", 490_000, Some(612_000)), side("b", 100_000, Some(103_000))],
        };
        let exchange = |number, trial| Exchange {
            number,
            lent: Vec::new(),
            began_ns: 0,
            until_ns: None,
            ended_ns: None,
            why: None,
            trial: Some(trial),
        };
        let exchanges = [
            exchange(3, trial(Done::Kept, None, None)),
            exchange(6, trial(Done::Undone, Some(Cause::Lost), Some("b"))),
        ];
        let came = Negotiated {
            unit: "a".to_owned(),
            risked_ns: 2_000_000_000,
            lost_ns: 0,
            gained_ns: 9_000_000_000,
            trials: 2,
        };
        let wide = Style { width: 200, ..Style::PLAIN };
        let used = "a used 0.612000 CPUs instead of 0.490000 (more), b used 0.103000 CPUs instead of 0.100000 (not to be told \
         apart)";
        let expected = format!(
            "exchange 3, trial 1: kept; {used}\n\
             exchange 6, trial 1: undone, since b lost; {used}\n\
             a: trials cost at most 2.0 s of its CPU time, so far measured 0 s; exchanges brought 9.0 s\n"
        );
        assert_eq!(trials(&exchanges, &[came], wide).unwrap(), expected);
        assert_eq!(trials(&[], &[], wide), None);
    }

    #[test]
    fn units_that_negotiate_are_named_before_their_first_trial() {
        let units = |names: &[&str]| -> Vec<Negotiated> {
            names
                .iter()
                .map(|unit| Negotiated { unit: (*unit).to_owned(), ..Negotiated::default() })
                .collect()
        };
        let mut all = units(&["a", "b"]);
        let said = "units that negotiate: a, b; no trial yet\n";
        assert_eq!(trials(&[], &all, Style::PLAIN).as_deref(), Some(said));
        let none = "No offer stands, and no tickets are exchanged.\n";
        assert_eq!(text(&[], &[], &all, 0, Style::PLAIN), format!("{none}\n{said}"));
        all[0].trials = 1;
        let begun = trials(&[], &all, Style::PLAIN).unwrap();
        assert!(begun.starts_with("a: trials cost at most 0 s"), "{begun}");
        assert!(begun.ends_with("units that negotiate: b; no trial yet\n"), "{begun}");
        let many = units(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
        let said = "units that negotiate: a, b, c, d, e, f, g, h, 2 more; no trial yet\n";
        assert_eq!(trials(&[], &many, Style::PLAIN).as_deref(), Some(said));
    }
}
