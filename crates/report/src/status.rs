//! The ledger's statement in three forms: verdicts and tables for `status`, a table that is redrawn in place,
//! and JSON.

use commonhold_contract::MILLIONTH;
use commonhold_ledger::{Account, Credits, Statement, Verdict};

use crate::bus;
use crate::disks;
use crate::exchanges::{self, When};
use crate::figures::{bytes, count, cpus, duration, percent_text, rate};
use crate::findings;
use crate::gangs;
use crate::holdings::{self, Holding};
use crate::memory;
use crate::switches::UnitSwitches;
use crate::table::{Paint, Style, Table, clean, depth, fit, indented, pad, wrap, wrap_whole};
use crate::tickets::{Expected, Lot, Tickets};

/// The headings of a resource's table. `first` is the heading of the units. All resources have the same
/// columns in the same order.
pub(crate) const fn heads(first: &'static str) -> [&'static str; 9] {
    [first, "entitled", "using", "used %", "lent", "borrowed", "called\nback", "longest", "waited"]
}

/// The cells of `called back` and `longest`. Without call-backs, or before the first has ended, there is no
/// longest one.
pub(crate) fn call_backs(count: u64, max_ns: u64) -> [String; 2] {
    let longest = if count == 0 || max_ns == 0 { String::new() } else { duration(max_ns) };
    [count.to_string(), longest]
}

/// A unit's account as cells in the order of [`heads`]. Entitlement and present use are numbers of CPUs.
/// `used %` is the CPU time used since the ledger was opened, in percent of the entitlement. The other
/// figures are CPU time, except the count of call-backs.
pub(crate) fn cells(account: &Account) -> [String; 9] {
    let [called_back, longest] = call_backs(account.called_back, account.call_back_max_ns);
    [
        clean(leaf(&account.unit)),
        cpus(account.entitled_micro_cpus),
        cpus(rounded(account.using_micro_cpus)),
        percent_text(account.used_ns, account.entitled_ns),
        duration(account.lent_ns),
        duration(account.borrowed_ns),
        called_back,
        longest,
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

/// The statement for a terminal. It begins with the verdicts. A table for each resource follows, with a row
/// for each unit, indented by nesting; then jobs, gangs and exchanges.
pub fn text(statement: &Statement, style: Style) -> String {
    let mut text = verdicts(statement, style);
    text += &style.paint(Paint::Strong, &headline(statement));
    text += "\n\n";
    if statement.accounts.is_empty() {
        text += "No unit holds tickets: all is shared.\n";
    } else {
        let mut table = Table::new(&heads("cpu"));
        for account in &statement.accounts {
            add_account(&mut table, account, style);
        }
        text += &table.render(style);
    }
    text.push('\n');
    text += &wrapped(&totals(statement), style);
    if statement.memory.is_some() {
        text.push('\n');
        text += &memory::text(statement, style);
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

fn wrapped(text: &str, style: Style) -> String {
    wrap(text, style.width, "", "  ").join("\n") + "\n"
}

/// The most broken verdicts that [`text`] shows with their sentences.
const BROKEN_SHOWN: usize = 20;

/// The verdict on the whole machine. Below it stand the broken verdicts, each with what to do.
fn verdicts(statement: &Statement, style: Style) -> String {
    let paint = match findings::overall(statement) {
        Verdict::Kept => Paint::Good,
        Verdict::CannotTell => Paint::Strong,
        Verdict::Broken => Paint::Bad,
    };
    let mut lines: Vec<String> = wrap(&findings::heading(statement), style.width, "", "  ")
        .iter()
        .map(|line| style.paint(paint, line))
        .collect();
    let broken = findings::not_kept(statement);
    let broken = broken.iter().filter(|(_, finding)| finding.verdict == Verdict::Broken);
    for (unit, finding) in broken.clone().take(BROKEN_SHOWN) {
        lines.extend(wrap(&findings::line(unit, finding), style.width, "  ", "    "));
        let remedy = Some(findings::remedy(finding)).filter(|remedy| !remedy.is_empty());
        lines.extend(remedy.iter().flat_map(|remedy| wrap(remedy, style.width, "    ", "    ")));
    }
    let more = broken.clone().count().saturating_sub(BROKEN_SHOWN);
    if more > 0 {
        lines.extend(wrap(&format!("and {more} more: see `status --check`"), style.width, "  ", "    "));
    }
    // One line needs no empty line after it.
    let end = if broken.count() > 0 { "\n\n" } else { "\n" };
    lines.join("\n") + end
}

/// The verdicts that are not *kept*, a line each for scripts; `kept` if all are kept.
pub fn check(statement: &Statement) -> String {
    let found = findings::not_kept(statement);
    match found.as_slice() {
        [] if findings::overall(statement) == Verdict::Kept => "kept\n".to_owned(),
        [] => format!("{}\n", findings::heading(statement)),
        found => found.iter().map(|(unit, finding)| findings::line(unit, finding) + "\n").collect(),
    }
}

/// Leaves only a unit and its sub-units in a statement; the machine's totals stay. Returns whether the
/// statement has that unit.
pub fn only(statement: &mut Statement, unit: &str) -> bool {
    let is_within = |path: &str| is_within(path, unit);
    let known = statement.accounts.iter().any(|account| account.unit == unit);
    statement.accounts.retain(|account| is_within(&account.unit));
    statement.jobs.retain(|job| is_within(&job.unit));
    statement.places.retain(|place| is_within(&place.unit));
    statement.negotiated.retain(|it| is_within(&it.unit));
    statement
        .exchanges
        .retain(|exchange| exchange.lent.iter().any(|lent| is_within(&lent.from) || is_within(&lent.to)));
    known
}

/// Whether the unit at `path` is `unit` or one of its sub-units, at any depth. Both are paths of units.
pub fn is_within(path: &str, unit: &str) -> bool {
    path.strip_prefix(unit).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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

/// The state of the daemon, below the statement: the active backend, how each resource is held, changed
/// tickets, and problems. Lines are wrapped at `width`, if there is one.
pub fn holder(holder: Holder<'_>, width: Option<usize>) -> String {
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
    let mut lines = vec![format!("Contract {contract}, held by the {backend} backend.")];
    if let Some(Instead { of, for_ns, why }) = instead {
        lines.push(format!("The {of} backend has not held it for {}: {why}.", duration(for_ns)));
    }
    let tickets = tickets
        .iter()
        .map(Tickets::line)
        .chain(expected_tickets.iter().map(Expected::line))
        .chain(lots.iter().map(Lot::line))
        .map(|line| format!("tickets {line}"));
    // Verdicts stand above the tables.
    let problems = problems.iter().filter(|problem| !problem.starts_with(findings::PROBLEM));
    let problems = problems.map(|problem| format!("problem: {problem}"));
    let below: Vec<String> = tickets.chain(problems).collect();
    lines.iter().map(|line| message(line, width)).collect::<String>()
        + &holdings::text(holdings, width)
        + &below.iter().map(|line| message(line, width)).collect::<String>()
}

/// A message of one line, with its newline. It is wrapped at `width`, if there is one; words are not cut.
pub(crate) fn message(text: &str, width: Option<usize>) -> String {
    width.map_or_else(|| text.to_owned(), |width| wrap_whole(text, width, "", "  ").join("\n")) + "\n"
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
