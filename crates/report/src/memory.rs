//! The accounts of memory: a table below that of CPUs.

use commonhold_ledger::{MemoryAccount, MemoryTotals, Statement};
use commonhold_policy::plan::NoMore;

use crate::figures::{bytes, duration, percent_text};
use crate::status::{call_backs, heads};
use crate::table::{Paint, Style, Table, clean, depth, indented, wrap};

/// A table of the memory that each unit holds, uses and lends; empty if memory is not held. (JSON also has
/// cold memory, and averages over time.)
pub(crate) fn text(statement: &Statement, style: Style) -> String {
    let Some(totals) = statement.memory else { return String::new() };
    let mut table = Table::new(&heads("memory"));
    for account in &statement.accounts {
        let Some(memory) = &account.memory else { continue };
        let indent = "  ".repeat(depth(&account.unit));
        table.row(Paint::Plain, cells(indented(&account.unit), memory));
        for line in remarks(memory)
            .iter()
            .flat_map(|remark| wrap(remark, style.width, &format!("{indent}  "), &format!("{indent}    ")))
        {
            table.line(Paint::Faint, line);
        }
    }
    let mut text = table.render(style);
    text.push('\n');
    for line in wrap(&sums(totals), style.width, "", "  ") {
        text += &line;
        text.push('\n');
    }
    text
}

fn cells(name: String, memory: &MemoryAccount) -> Vec<String> {
    let [called_back, longest] = call_backs(memory.called_back, memory.call_back_max_ns);
    vec![
        name,
        bytes(memory.entitled),
        bytes(memory.used),
        percent_text(memory.used, memory.entitled),
        bytes(memory.lent),
        bytes(memory.borrowed),
        called_back,
        longest,
        duration(memory.waited_ns),
    ]
}

/// Amounts of memory below this get no remark: a few pages of shared libraries are not worth one.
const SAID_MIN: u64 = 1 << 20;

/// Remarks on a unit's memory that the columns do not show, each a part of a sentence.
fn remarks(memory: &MemoryAccount) -> Vec<String> {
    let mut remarks = Vec::new();
    // Usually this can be read from the columns.
    let by_loans = memory.entitled.saturating_sub(memory.lent).saturating_add(memory.borrowed);
    if memory.allowed != by_loans {
        remarks.push(format!("may use {} now", bytes(memory.allowed)));
    }
    if let Some(within) = memory.within_ns {
        remarks.push(format!("has all that it lends back within {}, once it needs it", duration(within)));
    }
    remarks.extend(memory.no_more.map(no_more));
    remarks.extend(returns(memory));
    remarks.extend(promises(memory));
    if memory.killed > 0 {
        remarks.push(format!("the kernel killed {} of its processes for want of memory", memory.killed));
    }
    if memory.elsewhere > 0 {
        remarks.push(format!(
            "{} that its processes use are charged elsewhere: they had them before they entered the unit",
            bytes(memory.elsewhere)
        ));
    }
    if memory.for_others >= SAID_MIN {
        remarks.push(format!(
            "about {} of what is charged to it are other units' part of files that these map too",
            bytes(memory.for_others)
        ));
    }
    if memory.packed >= SAID_MIN {
        remarks.push(format!(
            "about {} of what it uses are pages in compressed swap; the kernel's bounds do not count these",
            bytes(memory.packed)
        ));
    }
    remarks
}

/// How long it took until the unit had lent memory back: for each borrower, the most frequent first, and then
/// for all loans.
fn returns(memory: &MemoryAccount) -> Vec<String> {
    let words = |what: String, p50_ns, p99_ns| {
        let (half, most) = (duration(p50_ns), duration(p99_ns));
        format!("{what} was back within {half} in half of the cases, within {most} in 99 of 100")
    };
    let mut loans: Vec<_> = memory.called_back_from.iter().collect();
    loans.sort_by_key(|(unit, calls)| (std::cmp::Reverse(calls.loans), *unit));
    let times = |n| if n == 1 { "once".to_owned() } else { format!("{n} times") };
    let of_each = loans.iter().map(|(unit, calls)| {
        let what = format!("what it lent to {} ({})", clean(unit), times(calls.loans));
        words(what, calls.p50_ns, calls.p99_ns)
    });
    let of_all = (memory.called_back > 0 && loans.len() != 1)
        .then(|| words("all that it lent".to_owned(), memory.call_back_p50_ns, memory.call_back_p99_ns));
    of_each.chain(of_all).collect()
}

/// Why the unit, which is short of memory, gets no more by loans.
fn no_more(why: NoMore) -> String {
    let why = match why {
        NoMore::InTime => "is lent no more: that could not be called back from it in time",
        NoMore::NothingIdle => "all that others leave idle beyond the reserve is lent",
        NoMore::Limit => "at a limit of the contract",
        NoMore::MayNotBorrow => "may not borrow",
    };
    format!("is short of memory, and {why}")
}

/// How many call-backs exceeded the promised time, and the latest call-back's duration beside the promised
/// one.
fn promises(memory: &MemoryAccount) -> Option<String> {
    let last = memory.last_call_backs.last()?;
    let [took, promised] = [last.took_ns, last.promised_ns].map(duration);
    let late = match memory.call_backs_late {
        0 => "none of its call-backs was late".to_owned(),
        late => format!("{late} of its {} call-backs were late", memory.called_back),
    };
    Some(format!("{late}; the last took {took}, of {promised} that were promised"))
}

/// The machine's memory as a sum of its uses: `memory 2.0 GiB = kernel ... + in no unit ... + divided ...`.
fn sums(totals: MemoryTotals) -> String {
    format!(
        "memory {} = kernel {} + in no unit {} + divided among units {}",
        bytes(totals.total),
        bytes(totals.kernel),
        bytes(totals.shared),
        bytes(totals.divided)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_ledger::{Account, CallBacks, Return};

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_figure_has_its_column() {
        let account = |unit: &str, memory| Account { unit: unit.to_owned(), memory, ..Account::default() };
        let owner = MemoryAccount {
            entitled: 960 * MIB,
            allowed: 480 * MIB,
            used: 300 * MIB,
            cold: 12 * MIB,
            lent: 480 * MIB,
            called_back: 3,
            call_back_p50_ns: 40_000_000,
            call_back_p99_ns: 80_000_000,
            call_back_max_ns: 81_500_000,
            call_backs_late: 1,
            last_call_backs: vec![Return {
                at_ns: 9_000_000_000,
                bytes: 480 * MIB,
                promised_ns: 12_000_000_000,
                took_ns: 81_500_000,
            }],
            within_ns: Some(12_000_000_000),
            called_back_from: [
                (
                    "lab/borrower".to_owned(),
                    CallBacks { loans: 1, p50_ns: 81_000_000, p99_ns: 81_500_000, max_ns: 81_500_000 },
                ),
                (
                    "guests".to_owned(),
                    CallBacks { loans: 3, p50_ns: 20_000_000, p99_ns: 40_000_000, max_ns: 41_000_000 },
                ),
            ]
            .into(),
            waited_ns: 12_000_000,
            killed: 1,
            elsewhere: 40 * MIB,
            for_others: 25 * MIB,
            packed: 30 * MIB,
            ..MemoryAccount::default()
        };
        let borrower = MemoryAccount {
            entitled: 960 * MIB,
            allowed: 1_440 * MIB,
            used: 1_440 * MIB,
            borrowed: 480 * MIB,
            no_more: Some(NoMore::InTime),
            ..owner.clone()
        };
        let borrower = MemoryAccount {
            lent: 0,
            called_back: 0,
            call_backs_late: 0,
            last_call_backs: Vec::new(),
            within_ns: None,
            called_back_from: std::collections::BTreeMap::new(),
            killed: 0,
            elsewhere: 0,
            for_others: 0,
            packed: 0,
            ..borrower
        };
        let totals =
            MemoryTotals { total: 2_048 * MIB, kernel: 100 * MIB, shared: 28 * MIB, divided: 1_920 * MIB };
        let accounts = vec![
            account("owner", Some(owner.clone())),
            account("lab/borrower", Some(borrower)),
            account("none", None),
        ];
        let statement = Statement { memory: Some(totals), accounts, ..Statement::default() };
        insta::assert_snapshot!(text(&statement, Style::PLAIN));
        insta::assert_snapshot!("an_account_in_json", crate::json("commonhold-memory/test", &owner));
        assert_eq!(text(&Statement::default(), Style::PLAIN), "");
    }

    /// One borrower is all there is; without names, as of a statement of an earlier version, the sum is.
    #[test]
    fn call_backs_are_said_once() {
        let calls = CallBacks { loans: 2, p50_ns: 20_000_000, p99_ns: 40_000_000, max_ns: 41_000_000 };
        let memory = MemoryAccount {
            called_back: 2,
            call_back_p50_ns: calls.p50_ns,
            call_back_p99_ns: calls.p99_ns,
            called_back_from: [("b".to_owned(), calls)].into(),
            ..MemoryAccount::default()
        };
        let back = "was back within 20.0 ms in half of the cases, within 40.0 ms in 99 of 100";
        assert_eq!(returns(&memory), [format!("what it lent to b (2 times) {back}")]);
        let unnamed = MemoryAccount { called_back_from: std::collections::BTreeMap::new(), ..memory };
        assert_eq!(returns(&unnamed), [format!("all that it lent {back}")]);
        assert_eq!(returns(&MemoryAccount::default()), Vec::<String>::new());
    }
}
