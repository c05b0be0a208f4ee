//! Text that is longer than a row: the details of a unit, the view of trades, and the help.

use commonhold_contract::Resource;
use commonhold_ledger::{CpuLoan, Finding, GangState, Job, Verdict};
use commonhold_policy::plan::SharedRate;
use commonhold_protocol::monitor::UnitView;
use commonhold_report::exchanges::{self, When};
use commonhold_report::figures::{NOTHING, bytes, duration, rate};
use commonhold_report::findings::{cause, remedy, sentence, word};
use commonhold_report::status::is_within;
use commonhold_report::table::{Paint, Style, Table, clean, wrap};

use crate::columns::gauge;
use crate::figures::{amount, cpus, share};
use crate::rows::Sight;

/// A line of text and how it stands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextLine {
    pub(crate) text: String,
    pub(crate) look: Look,
}

/// How a line stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    Strong,
    Dim,
    Broken,
    CannotTell,
}

fn line(text: impl Into<String>, look: Look) -> TextLine {
    TextLine { text: text.into(), look }
}

/// Adds a table; its first `heads` lines are headings.
fn add_table(lines: &mut Vec<TextLine>, text: &str, heads: usize) {
    let look = |index| if index < heads { Look::Strong } else { Look::Plain };
    lines.extend(text.lines().enumerate().map(|(index, text)| line(text, look(index))));
}

fn plain(width: u16) -> Style {
    Style { colour: false, width: usize::from(width) }
}

/// A finding in sentences, with the remedy: `cpu broken: It is entitled to 0.72 CPUs, ...`.
pub(crate) fn finding(finding: &Finding) -> String {
    let verdict = word(finding.verdict);
    let remedy = remedy(finding);
    let remedy = if remedy.is_empty() { remedy } else { format!(" {remedy}") };
    format!("{} {verdict}: {}{remedy}", finding.resource, sentence(finding))
}

/// The look of a verdict.
pub(crate) fn look(verdict: Verdict) -> Look {
    match verdict {
        Verdict::Kept => Look::Plain,
        Verdict::CannotTell => Look::CannotTell,
        Verdict::Broken => Look::Broken,
    }
}

/// The details of a unit: verdicts, what it has now, waits by cause, and call-backs.
pub(crate) fn details(sight: &Sight, index: usize, width: u16) -> Vec<TextLine> {
    let (Some(unit), Some(rates)) = (sight.frame.units.get(index), sight.rates.get(index)) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for finding in &unit.findings {
        let text = self::finding(finding);
        let wrapped = wrap(&clean(&text), usize::from(width), "", "  ");
        lines.extend(wrapped.into_iter().map(|text| line(text, look(finding.verdict))));
    }
    if !unit.gangs.is_empty() {
        lines.extend(
            wrap(&clean(&unit.gangs), usize::from(width), "gangs: ", "  ")
                .into_iter()
                .map(|text| line(text, Look::Plain)),
        );
    }
    section(&mut lines, &has(unit).render_in_blocks(plain(width)), 1);
    if let Some(table) = cpus_on_loan(&sight.frame.machine.loans, Some(&unit.unit)) {
        section(&mut lines, &table.render(plain(width)), 1);
    }
    if !rates.waits.is_empty() || !unit.waits.is_empty() {
        section(&mut lines, &waits(sight, index).render(plain(width)), 2);
    }
    if unit.call_backs.values().any(|calls| calls.count > 0) {
        section(&mut lines, &call_backs(unit).render(plain(width)), 1);
    }
    lines
}

/// Adds a table after an empty line.
fn section(lines: &mut Vec<TextLine>, text: &str, heads: usize) {
    if !lines.is_empty() {
        lines.push(line("", Look::Plain));
    }
    add_table(lines, text, heads);
}

/// Loans of CPUs under way by pairs of units: all, or those between a unit with its sub-units and others.
fn cpus_on_loan(loans: &[CpuLoan], of: Option<&str>) -> Option<Table> {
    let mut table = Table::new(&["CPUs on loan from", "to", "CPUs"]);
    let mut any = false;
    for loan in loans {
        let is_of = |path: &str| of.is_none_or(|root| is_within(path, root));
        if of.is_some() && is_of(&loan.lender) == is_of(&loan.borrower) {
            continue;
        }
        let cells = vec![clean(&loan.lender), clean(&loan.borrower), cpus(loan.micro_cpus)];
        table.row(Paint::Plain, cells);
        any = true;
    }
    any.then_some(table)
}

/// What the unit has of each resource now.
fn has(unit: &UnitView) -> Table {
    let mut table = Table::new(&["now", "entitled", "using", "lent", "borrowed", "of"]);
    for resource in Resource::ALL {
        let Some(gauge) = gauge(unit, resource) else { continue };
        let amounts = [gauge.entitled, gauge.using, gauge.lent, gauge.borrowed, gauge.whole];
        let cells = amounts.map(|n| amount(resource, n));
        table.row(Paint::Plain, [resource.name().to_owned()].into_iter().chain(cells).collect());
    }
    table
}

/// The waits by cause: those of the last seconds first, and then the others.
fn waits(sight: &Sight, index: usize) -> Table {
    let mut table = Table::new(&["waits for", "now", "beyond\nits part", "inferred", "in all"]);
    let (unit, rates) = (&sight.frame.units[index], &sight.rates[index]);
    let total = |resource, of: &commonhold_ledger::WaitCause| {
        unit.waits
            .iter()
            .find(|wait| wait.resource == resource && wait.cause == *of)
            .map_or(0, |wait| wait.ns)
    };
    let figure = |resource, n: u64| match (n, resource) {
        (0, _) => NOTHING.to_owned(),
        (n, Resource::Cpu) => cpus(n),
        (n, _) => share(n),
    };
    for wait in &rates.waits {
        let cells = vec![
            format!("{}: {}", wait.resource, clean(&cause(&wait.cause))),
            figure(wait.resource, wait.rate),
            figure(wait.resource, wait.beyond),
            figure(wait.resource, wait.inferred),
            duration(total(wait.resource, &wait.cause)),
        ];
        table.row(Paint::Plain, cells);
    }
    let is_past = |wait: &&commonhold_ledger::Wait| {
        wait.ns > 0 && !rates.waits.iter().any(|now| now.resource == wait.resource && now.cause == wait.cause)
    };
    let mut past: Vec<_> = unit.waits.iter().filter(is_past).collect();
    past.sort_by_key(|wait| (wait.resource, std::cmp::Reverse(wait.ns)));
    for wait in past {
        let nothing = || NOTHING.to_owned();
        let name = format!("{}: {}", wait.resource, clean(&cause(&wait.cause)));
        table.row(Paint::Faint, vec![name, nothing(), nothing(), nothing(), duration(wait.ns)]);
    }
    table
}

fn call_backs(unit: &UnitView) -> Table {
    let mut table = Table::new(&["call-backs", "number", "99 % within", "longest", "promised"]);
    for (resource, calls) in unit.call_backs.iter().filter(|(_, calls)| calls.count > 0) {
        let time = |ns: Option<u64>| ns.map_or_else(|| NOTHING.to_owned(), duration);
        let times = [calls.p99_ns, Some(calls.max_ns), calls.promised_ns].map(time);
        let cells = [resource.name().to_owned(), calls.count.to_string()].into_iter().chain(times);
        table.row(Paint::Plain, cells.collect());
    }
    table
}

/// Loans under way, exchanges, jobs and gangs.
pub(crate) fn trades(sight: &Sight, width: u16) -> Vec<TextLine> {
    let style = plain(width);
    let machine = &sight.frame.machine;
    let mut lines = Vec::new();
    match loans(sight) {
        Some(table) => add_table(&mut lines, &table.render(style), 1),
        None => lines.push(line("No unit lends or borrows now.", Look::Dim)),
    }
    if let Some(table) = cpus_on_loan(&machine.loans, None) {
        section(&mut lines, &table.render(style), 1);
    }
    match exchanges::table(&machine.exchanges, When::Ago(sight.frame.at_ns)) {
        Some(table) => section(&mut lines, &table.render_in_blocks(style), 1),
        None => lines.extend([line("", Look::Plain), line("No tickets are exchanged.", Look::Dim)]),
    }
    if machine.jobs.is_empty() {
        lines.extend([
            line("", Look::Plain),
            line("No jobs are placed, and no gangs are scheduled.", Look::Dim),
        ]);
    } else {
        section(&mut lines, &jobs(&machine.jobs).render_in_blocks(style), 1);
    }
    let gangs: Vec<TextLine> = sight
        .frame
        .units
        .iter()
        .filter(|unit| !unit.gangs.is_empty())
        .map(|unit| line(format!("gangs of {}: {}", clean(&unit.unit), clean(&unit.gangs)), Look::Plain))
        .collect();
    if !gangs.is_empty() {
        lines.push(line("", Look::Plain));
        lines.extend(gangs);
    }
    lines
}

/// A row for each unit that lends or borrows; a unit's figures include its sub-units.
fn loans(sight: &Sight) -> Option<Table> {
    let mut table = Table::new(&["loans", "resource", "lends", "borrows", "called back"]);
    let mut any = false;
    for unit in &sight.frame.units {
        for resource in Resource::ALL {
            let Some(gauge) = gauge(unit, resource) else { continue };
            if gauge.lent == 0 && gauge.borrowed == 0 {
                continue;
            }
            let figure = |n| if n == 0 { NOTHING.to_owned() } else { amount(resource, n) };
            let calls = unit.call_backs.get(&resource).map_or(0, |calls| calls.count);
            let cells = vec![
                clean(&unit.unit),
                resource.name().to_owned(),
                figure(gauge.lent),
                figure(gauge.borrowed),
                if calls == 0 { NOTHING.to_owned() } else { calls.to_string() },
            ];
            table.row(Paint::Plain, cells);
            any = true;
        }
    }
    any.then_some(table)
}

fn jobs(jobs: &[Job]) -> Table {
    let mut table =
        Table::new(&["job", "unit", "threads", "gang", "thread's use", "in pools", "memory in nodes"]);
    for job in jobs {
        let listed =
            |items: Vec<String>| if items.is_empty() { NOTHING.to_owned() } else { items.join(", ") };
        let gang = job.gang.as_ref().map_or_else(
            || NOTHING.to_owned(),
            |gang| match (gang.state, gang.waits) {
                (GangState::Runs, _) => format!("runs on {}", gang.cpus),
                (GangState::Sleeps, _) => "sleeps".to_owned(),
                (GangState::Waits, quanta) => format!("waits {quanta}"),
            },
        );
        let uses = job.gang.as_ref().and_then(|gang| gang.rate).map_or_else(
            || NOTHING.to_owned(),
            |used| match used {
                SharedRate::BytesPerS(transfers) => rate(transfers),
                SharedRate::CacheBytes(holds) => bytes(holds),
            },
        );
        let cells = vec![
            format!("{} {}", job.job, clean(&job.name)),
            clean(&job.unit),
            job.threads.to_string(),
            gang,
            uses,
            listed(job.pools.iter().map(|(pool, threads)| format!("{pool}: {threads}")).collect()),
            listed(job.memory.iter().map(|(node, held)| format!("{node}: {}", bytes(*held))).collect()),
        ];
        table.row(Paint::Plain, cells);
    }
    table
}

/// The signs, in one line.
pub(crate) const LEGEND: &str =
    "█ used of its own part, ▓ borrowed, ░ lent, │ entitlement; ✓ kept, ! broken, ? cannot tell";

/// The keys and the signs.
pub(crate) const HELP: &[(&str, &str)] = &[
    ("up down, j k", "select a unit or process; Page Up, Page Down, Home, End"),
    ("right, left", "unfold and fold: sub-units, then processes"),
    ("Enter, i", "details of the unit; again: the whole of them; Esc closes"),
    ("1 2 3 4 5", "overview, cpu, memory, disk, trades with jobs and gangs"),
    ("s", "sort: contract, cpu, waiting, memory, disk, name"),
    ("/", "show only units whose path contains a text; Esc ends it"),
    ("u", "show only the selected unit and its sub-units; again: all"),
    ("b", "bars of the unit's own part, or of the whole machine"),
    ("p, space", "pause; again: go on"),
    (", .", "step back and forward through the last ten minutes"),
    ("Page Up, Page Down", "while paused: ten steps"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("█ ▓ ░ │", "used of its own part; borrowed; lent; the entitlement"),
    ("✓ ! ?", "contract kept; broken; cannot tell"),
    ("waiting for", "threads without a CPU, on average, and what has most of it"),
    ("stalled for", "part of the time in which a process waited"),
    ("call-back", "99 % of them took at most this long, and what is promised"),
];
