//! The ledger's statement in three forms: a table for `status`, a table that is redrawn in place, and JSON.

use commonhold_contract::MILLIONTH;
use commonhold_ledger::{Account, Credits, Statement};

use crate::bus;
use crate::disks;
use crate::exchanges::{self, When};
use crate::figures::{bytes, count, cpus, duration, percent_text, rate};
use crate::gangs;
use crate::holdings::Holding;
use crate::switches::UnitSwitches;
use crate::table::{Paint, Style, Table, clean, depth, fit, indented, pad, wrap};
use crate::tickets::{Expected, Lot, Tickets};

/// The headings of the columns that [`cells`] fills.
pub(crate) const HEADS: [&str; 9] =
    ["unit", "entitled", "using", "used %", "lent", "borrowed", "called\nback", "longest", "waited"];

/// A unit's account as cells in the order of [`HEADS`]. Entitlement and present use are numbers of CPUs.
/// `used %` is the CPU time used since the ledger was opened, in percent of the entitlement. The other
/// figures are CPU time, except the count of call-backs.
pub(crate) fn cells(account: &Account) -> [String; 9] {
    [
        clean(leaf(&account.unit)),
        cpus(account.entitled_micro_cpus),
        cpus(rounded(account.using_micro_cpus)),
        percent_text(account.used_ns, account.entitled_ns),
        duration(account.lent_ns),
        duration(account.borrowed_ns),
        account.called_back.to_string(),
        if account.called_back == 0 { String::new() } else { duration(account.call_back_max_ns) },
        duration(account.waited_ns),
    ]
}

/// Rounds to hundredths of a CPU. Further digits would only flicker in a table that is redrawn.
fn rounded(micro: u64) -> u64 {
    micro.saturating_add(5_000) / 10_000 * 10_000
}

/// The last part of a unit's path.
fn leaf(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The statement for a terminal: a row for each unit, indented by nesting, and below the table what the
/// machine's CPU time was used for.
pub fn text(statement: &Statement, style: Style) -> String {
    let mut text = style.paint(Paint::Strong, &headline(statement)) + "\n\n";
    if statement.accounts.is_empty() {
        text += "No unit holds tickets: all is shared.\n";
    } else {
        let mut table = Table::new(&HEADS);
        for account in &statement.accounts {
            add_account(&mut table, account, style);
        }
        text += &table.render(style);
    }
    text.push('\n');
    for line in wrap(&totals(statement), style.width, "", "  ") {
        text += &line;
        text.push('\n');
    }
    text += &disks::table(statement, style);
    if let Some(bus) = bus::table(statement, style) {
        text.push('\n');
        text += &bus.render(style);
    }
    text += &crate::places::table(statement, style);
    text += &crate::jobs::table(statement, style);
    text += &gangs::text(statement, style);
    if let Some(exchanges) = exchanges::table(&statement.exchanges, When::Ago(statement.elapsed_ns)) {
        text.push('\n');
        text += &exchanges.render(style);
    }
    // Even without any exchange this text may be there: it names units that negotiate before their first
    // trial.
    if let Some(trials) = exchanges::trials(&statement.exchanges, &statement.negotiated, style) {
        if statement.exchanges.is_empty() {
            text.push('\n');
        }
        text += &trials;
    }
    text
}

fn headline(statement: &Statement) -> String {
    let machine = count(statement.cpus as usize, "CPU");
    let gangs = gangs::now(statement).map_or_else(String::new, |now| format!("; {now}"));
    format!("scheme {}, {machine}, {}{gangs}", statement.scheme, duration(statement.elapsed_ns))
}

fn add_account(table: &mut Table, account: &Account, style: Style) {
    let indent = "  ".repeat(depth(&account.unit));
    let mut cells = cells(account);
    cells[0].insert_str(0, &indent);
    table.row(Paint::Plain, cells.into());
    for line in waits(account)
        .into_iter()
        .chain(outside(account))
        .chain(credits(account))
        .flat_map(|remark| wrap(&remark, style.width, &format!("{indent}  "), &format!("{indent}    ")))
    {
        table.line(Paint::Faint, line);
    }
}

/// A remark on the unit's processes that are outside of its control group; `None` if there are none.
fn outside(account: &Account) -> Option<String> {
    let Account { processes, outside, .. } = account;
    (*outside > 0).then(|| {
        format!(
            "{outside} of its {processes} processes stay with the service manager that started them: the unit's control \
             group does not hold them"
        )
    })
}

/// A unit's credits from past loans: `remembered: lent 3.2 s of CPU more than it was lent`.
fn credits(account: &Account) -> Option<String> {
    let Credits { cpu_ns, memory_byte_s, disk_bytes } = account.credits?;
    let side = |credit: i64, what: String| match credit.signum() {
        0 => None,
        1 => Some(format!("lent {what} more than it was lent")),
        _ => Some(format!("was lent {what} more than it lent")),
    };
    let sides = [
        side(cpu_ns, format!("{} of CPU", duration(cpu_ns.unsigned_abs()))),
        side(memory_byte_s, format!("{} of memory for a second", bytes(memory_byte_s.unsigned_abs()))),
        side(disk_bytes, format!("{} of disk transfers", bytes(disk_bytes.unsigned_abs()))),
    ];
    let sides: Vec<String> = sides.into_iter().flatten().collect();
    (!sides.is_empty()).then(|| format!("remembered: {}", sides.join(", ")))
}

/// The units because of which a unit waited, in words, the longest wait first.
pub(crate) fn waits(account: &Account) -> Option<String> {
    let mut waits: Vec<(&str, u64)> = account
        .waited_on_ns
        .iter()
        .map(|(unit, ns)| (unit.as_str(), *ns))
        .filter(|(_, ns)| *ns > 0)
        .collect();
    waits.sort_by_key(|(unit, ns)| (std::cmp::Reverse(*ns), *unit));
    let waits: Vec<String> =
        waits.iter().map(|(unit, ns)| format!("{} {}", clean(unit), duration(*ns))).collect();
    (!waits.is_empty()).then(|| format!("waited for CPUs of its own, lent to {}", waits.join(", ")))
}

/// What the machine's CPU time was used for, as a sum: `used 10.0 s (50 %) + common ... = capacity 20.0 s`.
pub(crate) fn totals(statement: &Statement) -> String {
    let used = used_ns(statement);
    let share = |ns| match percent_text(ns, statement.capacity_ns).as_str() {
        "-" => duration(ns),
        percent => format!("{} ({percent} %)", duration(ns)),
    };
    let sum = u128::from(used) + u128::from(statement.common_ns) + u128::from(statement.idle_ns);
    // The ledger checks that the two are equal. In a statement from another source they may differ, and that
    // must show.
    let sign = if sum == u128::from(statement.capacity_ns) { "=" } else { "≠" };
    format!(
        "used {} + common {} + idle {} {sign} capacity {}",
        share(used),
        share(statement.common_ns),
        share(statement.idle_ns),
        duration(statement.capacity_ns)
    )
}

/// The CPU time that all units used. Only outermost units are added up, since their figures include their
/// sub-units.
fn used_ns(statement: &Statement) -> u64 {
    statement
        .accounts
        .iter()
        .filter(|account| depth(&account.unit) == 0)
        .map(|a| a.used_ns)
        .fold(0, u64::saturating_add)
}

/// The state of a daemon, which is reported with its statement.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Holder<'a> {
    /// The file from which the contract in force was read.
    pub contract: &'a str,
    /// The active backend: `kernel`, `cgroup` or `user`.
    pub backend: &'a str,
    /// The preferred backend, if the active one is a fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead: Option<Instead<'a>>,
    /// The holding of each resource.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub holdings: &'a [Holding],
    /// The counters of the project's scheduler in the kernel; empty if another scheduler is in use.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub switches: &'a [UnitSwitches],
    /// Tickets whose number differs from the contract's.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tickets: &'a [Tickets],
    /// Tickets that units will have later.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub expected_tickets: &'a [Expected],
    /// The lots of units: tickets of foreign currencies, and borrowed reservations.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub lots: &'a [Lot],
    /// The problems so far, the latest last.
    pub problems: &'a [String],
}

/// A preferred backend that does not hold the contract at present.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Instead<'a> {
    /// The preferred backend's name.
    pub of: &'a str,
    /// How long a fallback has been active in its place, in nanoseconds.
    pub for_ns: u64,
    /// Why it is not active.
    pub why: &'a str,
}

/// The state of the daemon, below the statement: the active backend, then how each resource is held.
pub fn holder(holder: Holder<'_>) -> String {
    let Holder {
        contract,
        backend,
        instead,
        holdings,
        switches: _,
        tickets,
        expected_tickets,
        lots,
        problems,
    } = holder;
    let mut text = format!("Contract {contract}, held by the {backend} backend.\n");
    if let Some(Instead { of, for_ns, why }) = instead {
        text += &format!("The {of} backend has not held it for {}: {why}.\n", duration(for_ns));
    }
    text.extend(holdings.iter().map(|holding| holding.line() + "\n"));
    text.extend(tickets.iter().map(|changed| format!("tickets {}\n", changed.line())));
    text.extend(expected_tickets.iter().map(|expected| format!("tickets {}\n", expected.line())));
    text.extend(lots.iter().map(|lot| format!("tickets {}\n", lot.line())));
    text.extend(problems.iter().map(|problem| format!("problem: {problem}\n")));
    text
}

/// The statement as JSON: first the fields of the daemon's state, then the ledger's own fields.
pub fn json(holder: Holder<'_>, statement: &Statement) -> String {
    #[derive(serde::Serialize)]
    struct StatusJson<'a> {
        #[serde(flatten)]
        holder: Holder<'a>,
        #[serde(flatten)]
        statement: &'a Statement,
    }
    crate::json("commonhold.status", StatusJson { holder, statement })
}

/// The number of lines of [`live`] that are no unit's: the headline, the headings and the totals.
const LIVE_LINES: usize = 3;

/// The statement in exactly `height` lines (at least 4) of at most `style.width` columns, for redrawing in
/// place. Each unit has a bar: `█` is the used part of its entitlement, `░` the unused part, and `▒` its use
/// beyond the entitlement.
pub fn live(statement: &Statement, style: Style, height: usize) -> String {
    let room = height.max(LIVE_LINES + 1) - LIVE_LINES;
    let names = (style.width / 4).clamp(8, 24);
    let has_bus = statement.accounts.iter().any(|account| account.bus.is_some());
    let figures = LIVE_FIGURES + if has_bus { LIVE_BUS } else { 0 };
    let bar = style.width.saturating_sub(names + 1 + figures).clamp(4, 40);
    let bus = has_bus.then(|| "bus".to_owned());
    let heads = live_line("unit", names, LIVE_LEGEND, bar, LIVE_HEADS, bus);
    let mut lines = vec![
        style.paint(Paint::Strong, &fit(&headline(statement), style.width)),
        style.paint(Paint::Faint, &fit(&heads, style.width)),
    ];
    let accounts = &statement.accounts;
    let shown = if accounts.len() <= room { accounts.len() } else { room - 1 };
    for account in &accounts[..shown] {
        let bus =
            has_bus.then(|| account.bus.as_ref().map(|bus| rate(bus.using_bytes_per_s)).unwrap_or_default());
        lines.push(fit(&live_account(statement, account, names, bar, bus), style.width));
    }
    if shown < accounts.len() {
        let more = format!("… and {}", count(accounts.len() - shown, "more unit"));
        lines.push(fit(&more, style.width));
    }
    lines.resize(LIVE_LINES - 1 + room, String::new());
    lines.push(fit(&totals(statement), style.width));
    lines.join("\n") + "\n"
}

/// The heading of the bars.
const LIVE_LEGEND: &str = "█ own ░ idle ▒ beyond";

/// The width of the figures in a [`live_line`], in columns.
const LIVE_FIGURES: usize = 7 + 9 + 10 + 10;

/// The further width if the unit's transfers over the memory bus are known.
const LIVE_BUS: usize = 12;

const LIVE_HEADS: [&str; 4] = ["using", "entitled", "lent", "waited"];

fn live_line(
    name: &str,
    names: usize,
    bar: &str,
    columns: usize,
    figures: [&str; 4],
    bus: Option<String>,
) -> String {
    let [using, entitled, lent, waited] = figures;
    let bus = bus.map_or_else(String::new, |bus| format!(" {bus:>11}"));
    let (name, bar) = (pad(name, names), pad(bar, columns));
    format!("{name} {bar} {using:>6} {entitled:>8} {lent:>9} {waited:>9}{bus}").trim_end().to_owned()
}

fn live_account(
    statement: &Statement,
    account: &Account,
    names: usize,
    columns: usize,
    bus: Option<String>,
) -> String {
    let whole = u64::from(statement.cpus) * MILLIONTH;
    let bar = bar(account.using_micro_cpus, account.entitled_micro_cpus, whole, columns);
    let name = indented(&account.unit);
    let using = cpus(rounded(account.using_micro_cpus));
    let entitled = cpus(account.entitled_micro_cpus);
    let figures = [using.as_str(), &entitled, &duration(account.lent_ns), &duration(account.waited_ns)];
    live_line(&name, names, &bar, columns, figures, bus)
}

/// A unit's bar. The machine's capacity, `whole`, would take `columns` columns.
fn bar(using: u64, entitled: u64, whole: u64, columns: usize) -> String {
    let cell = |amount: u64| {
        let cells = (u128::from(amount.min(whole)) * columns as u128 * 2 + u128::from(whole))
            .checked_div(u128::from(whole) * 2)
            .unwrap_or(0);
        usize::try_from(cells).unwrap_or(columns)
    };
    let (using, entitled) = (cell(using), cell(entitled));
    let within = using.min(entitled);
    "█".repeat(within) + &"░".repeat(entitled - within) + &"▒".repeat(using - within)
}
