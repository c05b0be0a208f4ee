//! The accounts of disk bandwidth: a table for `status`.

use commonhold_ledger::{Account, DiskAccount, Statement};

use crate::figures::{bytes, duration, part, percent_text, rate};
use crate::status::{call_backs, heads};
use crate::table::{Paint, Style, Table, depth, indented, wrap};

/// A table with one row for each unit that has an account of disks; empty if no disk is held.
pub(crate) fn table(statement: &Statement, style: Style) -> String {
    let accounts = statement.accounts.iter().filter_map(|account| Some((account, account.disk.as_ref()?)));
    let mut table = Table::new(&heads("disk"));
    let mut any = false;
    for (account, disk) in accounts {
        table.row(Paint::Plain, cells(account, disk).into());
        let indent = "  ".repeat(depth(&account.unit) + 1);
        for line in remark(disk).iter().flat_map(|remark| wrap(remark, style.width, &indent, &indent)) {
            table.line(Paint::Faint, line);
        }
        any = true;
    }
    if any { "\n".to_owned() + &table.render(style) } else { String::new() }
}

/// What the unit transferred, and how long its call-backs took; `None` if it transferred nothing.
fn remark(disk: &DiskAccount) -> Option<String> {
    let within = format!("; 99 of 100 call-backs took {} at most", duration(disk.call_back_p99_ns));
    let within = if disk.called_back == 0 { "" } else { &within };
    let transferred = disk.read_bytes > 0 || disk.written_bytes > 0 || disk.called_back > 0;
    transferred
        .then(|| format!("read {}, wrote {}{within}", bytes(disk.read_bytes), bytes(disk.written_bytes)))
}

fn cells(account: &Account, disk: &DiskAccount) -> [String; 9] {
    let [called_back, longest] = call_backs(disk.called_back, disk.call_back_max_ns);
    [
        indented(&account.unit),
        part(disk.entitled_part),
        rate(disk.using_bytes_per_s),
        percent_text(disk.read_bytes.saturating_add(disk.written_bytes), disk.entitled_bytes),
        bytes(disk.lent_bytes),
        bytes(disk.borrowed_bytes),
        called_back,
        longest,
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
            call_back_max_ns: 110_000_000,
            waited_ns: 2_000_000_000,
            ..DiskAccount::default()
        };
        statement.accounts = vec![account("a", None), account("a/b", Some(disk))];
        let text = table(&statement, style);
        let words: Vec<&str> = text.split_whitespace().collect();
        let said = "waited b 25% 1.5 MB/s 50 4 MiB 0 B 2 110.0 ms 2.0 s read 3 MiB, wrote 1 MiB; 99 of 100 call-backs took \
                    105.0 ms at most";
        assert!(words.join(" ").ends_with(said), "{text}");
    }
}
