//! The accounts of disk bandwidth: a table for `status`.

use commonhold_ledger::{Account, DiskAccount, Statement};

use crate::figures::{bytes, duration, part, percent_text, rate};
use crate::table::{Paint, Style, Table, indented};

const HEADS: [&str; 10] = [
    "disk",
    "entitled",
    "using",
    "read",
    "written",
    "used %",
    "lent",
    "borrowed",
    "called back\n(99 % within)",
    "waited",
];

/// A table with one row for each unit that has an account of disks; empty if no disk is held.
pub(crate) fn table(statement: &Statement, style: Style) -> String {
    let accounts = statement.accounts.iter().filter_map(|account| Some((account, account.disk.as_ref()?)));
    let mut table = Table::new(&HEADS);
    let mut any = false;
    for (account, disk) in accounts {
        table.row(Paint::Plain, cells(account, disk).into());
        any = true;
    }
    if any { "\n".to_owned() + &table.render(style) } else { String::new() }
}

fn cells(account: &Account, disk: &DiskAccount) -> [String; 10] {
    let called_back = match disk.called_back {
        0 => "0".to_owned(),
        count => format!("{count} ({})", duration(disk.call_back_p99_ns)),
    };
    [
        indented(&account.unit),
        part(disk.entitled_part),
        rate(disk.using_bytes_per_s),
        bytes(disk.read_bytes),
        bytes(disk.written_bytes),
        percent_text(disk.read_bytes.saturating_add(disk.written_bytes), disk.entitled_bytes),
        bytes(disk.lent_bytes),
        bytes(disk.borrowed_bytes),
        called_back,
        duration(disk.waited_ns),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_per_unit_where_disks_are_held() {
        let account = |unit: &str, disk: Option<DiskAccount>| Account {
            unit: unit.to_owned(),
            disk,
            ..Account::default()
        };
        let style = Style { colour: false, width: 120 };
        let mut statement = Statement { accounts: vec![account("a", None)], ..Statement::default() };
        assert_eq!(table(&statement, style), "");
        let disk = DiskAccount {
            entitled_part: 250_000,
            using_bytes_per_s: 1_500_000,
            read_bytes: 3 << 20,
            written_bytes: 1 << 20,
            entitled_bytes: 8 << 20,
            lent_bytes: 4 << 20,
            called_back: 2,
            call_back_p99_ns: 105_000_000,
            waited_ns: 2_000_000_000,
            ..DiskAccount::default()
        };
        statement.accounts = vec![account("a", None), account("a/b", Some(disk))];
        let text = table(&statement, style);
        let row = text.lines().last().unwrap_or_default();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words.join(" "), "b 25% 1.5 MB/s 3 MiB 1 MiB 50 4 MiB 0 B 2 (105.0 ms) 2.0 s", "{text}");
    }
}
