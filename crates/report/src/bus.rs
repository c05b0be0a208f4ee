//! The accounts of the memory bus: a table for `status` and for simulated runs.

use commonhold_ledger::{Account, BusAccount, Statement};

use crate::figures::{bytes, duration, percent_text, rate};
use crate::status::{call_backs, heads};
use crate::table::{Paint, Style, Table, indented, wrap};

/// A table with one row for each outermost unit whose transfers are known; `None` if there is no such unit.
pub fn table(statement: &Statement, style: Style) -> Option<Table> {
    let mut table = Table::new(&heads("bus"));
    let mut any = false;
    for account in &statement.accounts {
        let Some(bus) = &account.bus else { continue };
        table.row(Paint::Plain, cells(account, bus).into());
        for line in remarks(bus).iter().flat_map(|remark| wrap(remark, style.width, "  ", "    ")) {
            table.line(Paint::Faint, line);
        }
        any = true;
    }
    any.then_some(table)
}

/// Remarks on a unit's transfers that the columns do not show: its backlog or surplus, the times of its
/// call-backs, and the restrictions that are in force now.
fn remarks(bus: &BusAccount) -> Vec<String> {
    let size = bytes(bus.owed_bytes.unsigned_abs());
    let owed = match bus.owed_bytes.signum() {
        0 => None,
        1 => Some(format!("is owed {size}")),
        _ => Some(format!("transferred {size} more than its share")),
    };
    let within = (bus.called_back > 0 && bus.call_back_p99_ns > 0)
        .then(|| format!("99 of 100 call-backs took {} at most", duration(bus.call_back_p99_ns)));
    let balance: Vec<String> = owed.into_iter().chain(within).collect();
    let balance = (!balance.is_empty()).then(|| balance.join("; "));
    let most = bus.most_bytes_per_s.map(|most| format!("may transfer {} at most", rate(most)));
    let waits = bus.waits.then(|| {
        let until = "waits until others have what they are owed";
        match bus.most_bytes_per_s {
            None => until.to_owned(),
            Some(_) => format!("{until}, or until it is back at that"),
        }
    });
    balance.into_iter().chain(most).chain(waits).collect()
}

fn cells(account: &Account, bus: &BusAccount) -> [String; 9] {
    let [called_back, longest] = call_backs(bus.called_back, bus.call_back_max_ns);
    [
        indented(&account.unit),
        rate(bus.entitled_bytes_per_s),
        rate(bus.using_bytes_per_s),
        percent_text(bus.used_bytes, bus.entitled_bytes),
        bytes(bus.lent_bytes),
        bytes(bus.borrowed_bytes),
        called_back,
        longest,
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
        assert!(
            said.ends_with(
                "waited b 5 GB/s 2.5 GB/s 75 2 GiB 0 B 4 1.2 s transferred 1.5 GiB more than its share"
            ),
            "{said}"
        );
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
            said.contains(
                "2.5 GB/s 75 2 GiB 0 B 4 400.0 ms 1.2 s is owed 1 MiB; 99 of 100 call-backs took 400.0 ms at most may transfer \
                 3 GB/s at most"
            ),
            "{said}"
        );
        assert!(
            said.ends_with("waits until others have what they are owed, or until it is back at that"),
            "{said}"
        );
    }
}
