//! The accounts of the memory bus: a table for `status` and for simulated runs.

use commonhold_ledger::{Account, BusAccount, Statement};

use crate::figures::{bytes, duration, percent_text, rate};
use crate::table::{Paint, Style, Table, indented, wrap};

const HEADS: [&str; 9] = [
    "bus",
    "entitled",
    "using",
    "owed",
    "used %",
    "lent",
    "borrowed",
    "called back\n(99 % within)",
    "waited",
];

/// A table with one row for each outermost unit whose transfers are known; `None` if there is no such unit.
pub fn table(statement: &Statement, style: Style) -> Option<Table> {
    let mut table = Table::new(&HEADS);
    let mut any = false;
    for account in &statement.accounts {
        let Some(bus) = &account.bus else { continue };
        table.row(Paint::Plain, cells(account, bus).into());
        for line in restrictions(bus).iter().flat_map(|remark| wrap(remark, style.width, "  ", "    ")) {
            table.line(Paint::Faint, line);
        }
        any = true;
    }
    any.then_some(table)
}

/// The restrictions that are in force on a unit's transfers now, in words.
fn restrictions(bus: &BusAccount) -> Vec<String> {
    let most = bus.most_bytes_per_s.map(|most| format!("may transfer {} at most", rate(most)));
    let waits = bus.waits.then(|| {
        let until = "waits until others have what they are owed";
        match bus.most_bytes_per_s {
            None => until.to_owned(),
            Some(_) => format!("{until}, or until it is back at that"),
        }
    });
    most.into_iter().chain(waits).collect()
}

/// A signed number of bytes in words. What a unit is owed is negative if the unit had more than its share.
fn signed(bytes_owed: i64) -> String {
    let sign = if bytes_owed < 0 { "-" } else { "" };
    sign.to_owned() + &bytes(bytes_owed.unsigned_abs())
}

fn cells(account: &Account, bus: &BusAccount) -> [String; 9] {
    let called_back = match bus.called_back {
        0 => "0".to_owned(),
        // No call-back has ended yet, so there is no time to show.
        count if bus.call_back_max_ns == 0 => count.to_string(),
        count => format!("{count} ({})", duration(bus.call_back_p99_ns)),
    };
    [
        indented(&account.unit),
        rate(bus.entitled_bytes_per_s),
        rate(bus.using_bytes_per_s),
        signed(bus.owed_bytes),
        percent_text(bus.used_bytes, bus.entitled_bytes),
        bytes(bus.lent_bytes),
        bytes(bus.borrowed_bytes),
        called_back,
        duration(bus.waited_ns),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_per_unit_of_which_something_is_known() {
        let account = |unit: &str, bus: Option<BusAccount>| Account {
            unit: unit.to_owned(),
            bus,
            ..Account::default()
        };
        let style = Style { colour: false, width: 100 };
        let mut statement = Statement { accounts: vec![account("a", None)], ..Statement::default() };
        assert!(table(&statement, style).is_none());
        let bus = BusAccount {
            entitled_bytes_per_s: 5_000_000_000,
            using_bytes_per_s: 2_500_000_000,
            owed_bytes: -(3 << 29),
            entitled_bytes: 8 << 30,
            used_bytes: 6 << 30,
            lent_bytes: 2 << 30,
            called_back: 4,
            waited_ns: 1_200_000_000,
            ..BusAccount::default()
        };
        statement.accounts = vec![account("a", None), account("b", Some(bus.clone()))];
        let text = |statement: &Statement| table(statement, style).unwrap().render(style);
        let words = |statement: &Statement| text(statement).split_whitespace().collect::<Vec<_>>().join(" ");
        let said = words(&statement);
        assert!(said.ends_with("waited b 5 GB/s 2.5 GB/s -1.5 GiB 75 2 GiB 0 B 4 1.2 s"), "{said}");
        let bus = BusAccount {
            owed_bytes: 1 << 20,
            waits: true,
            most_bytes_per_s: Some(3_000_000_000),
            call_back_p99_ns: 400_000_000,
            call_back_max_ns: 400_000_000,
            ..bus
        };
        statement.accounts = vec![account("b", Some(bus))];
        let said = words(&statement);
        assert!(
            said.contains("2.5 GB/s 1 MiB 75 2 GiB 0 B 4 (400.0 ms) 1.2 s may transfer 3 GB/s at most"),
            "{said}"
        );
        assert!(
            said.ends_with("waits until others have what they are owed, or until it is back at that"),
            "{said}"
        );
    }
}
