//! Exchanges of tickets as a table: what each unit lends, since when, and until when.

use commonhold_ledger::Exchange;
use commonhold_policy::rights::Ending;

use crate::figures::{NOTHING, duration};
use crate::table::{Paint, Table};

/// A row for each unit of each exchange; `None` of none. Times are since the ledger was opened.
pub(crate) fn table(exchanges: &[Exchange]) -> Option<Table> {
    if exchanges.is_empty() {
        return None;
    }
    let mut table = Table::new(&["exchange", "lends", "to", "tickets", "since", "until"]);
    for exchange in exchanges {
        let until = match (exchange.ended_ns, exchange.why) {
            (Some(at), Some(why)) => format!("{}: {}", duration(at), words(why)),
            _ => exchange.until_ns.map_or(NOTHING.to_owned(), duration),
        };
        let paint = if exchange.ended_ns.is_some() { Paint::Faint } else { Paint::Plain };
        for (place, lent) in exchange.lent.iter().enumerate() {
            let once = |text: String| if place == 0 { text } else { String::new() };
            let cells = vec![
                once(exchange.number.to_string()),
                lent.from.clone(),
                lent.to.clone(),
                format!("{} {}", lent.tickets, lent.resource),
                once(duration(exchange.began_ns)),
                once(until.clone()),
            ];
            table.row(paint, cells);
        }
    }
    Some(table)
}

fn words(why: Ending) -> &'static str {
    match why {
        Ending::Over => "over",
        Ending::Ended => "ended by a unit",
        Ending::Gone => "a unit is gone",
        Ending::TooFew => "too few tickets left",
    }
}
