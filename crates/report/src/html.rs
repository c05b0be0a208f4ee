//! The comparison as an HTML page that loads nothing: style and charts are inline, and there are no scripts.
//! The page has a light and a dark colour scheme, and can be printed.

use commonhold_ledger::{Account, Statement};

use crate::comparison::{Bar, Comparison, Job, Run, Sample, bars, lessons, verdicts};
use crate::figures::{count, duration};
use crate::status::{cells, heads, totals, waits};
use crate::svg::{self, BarChart, ChartBar, Panel, TimeChart};
use crate::table::{depth, escape, html_cell};

/// The most units that a chart over time shows, since each takes a panel.
const PANELS_MAX: usize = 8;

/// The most rows of a table of accounts.
const ROWS_MAX: usize = 100;

/// The beginning of a page, up to its heading. `more_style` is style that only this page needs.
pub fn open(title: &str, more_style: &str) -> String {
    let title = escape(title);
    let head = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
                <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    let style = include_str!("page.css");
    // In the browser's title, the page's title follows the program's name, so it begins with a small letter.
    let (first, rest) = title.split_at(title.chars().next().map_or(0, char::len_utf8));
    format!(
        "{head}<title>Commonhold: \
         {}{rest}</title>\n<style>\n{style}{more_style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n",
        first.to_lowercase()
    )
}

/// The end of a page.
pub const CLOSE: &str = "</main>\n</body>\n</html>\n";

/// A comparison as an HTML page that loads nothing from the network and has no scripts.
pub fn page(comparison: &Comparison) -> String {
    let mut page = open("A light job beside a heavy one", "");
    page += &facts(comparison);
    page += &promises(comparison);
    page += "<h2>Response times</h2>\n";
    page += &response(comparison, Job::Light);
    page += &response(comparison, Job::Heavy);
    page += &over_time(comparison);
    page += &ledgers(comparison);
    page += HOW_TO_READ;
    page += &commands(comparison);
    page + CLOSE
}

fn facts(comparison: &Comparison) -> String {
    let Comparison { machine, backend, light, heavy, .. } = comparison;
    let mut list = String::from("<dl class=\"facts\">\n");
    let facts =
        [("Machine", machine), ("Backend", backend), ("Light unit runs", light), ("Heavy unit runs", heavy)];
    for (label, value) in facts {
        list += &format!("<dt>{label}</dt><dd>{}</dd>\n", escape(value));
    }
    list + "</dl>\n"
}

fn promises(comparison: &Comparison) -> String {
    let mut list = String::from("<ul class=\"promises\">\n");
    for verdict in verdicts(comparison) {
        let class = match verdict.kept() {
            Some(true) => "kept",
            Some(false) => "broken",
            None => "unknown",
        };
        let (promise, measured) = (capitalised(&verdict.promise()), verdict.measured());
        list += &format!(
            "<li class=\"{class}\"><strong>{}</strong> {}: {}.</li>\n",
            verdict.word(),
            escape(&promise),
            escape(&measured)
        );
    }
    list += "</ul>\n";
    for lesson in lessons(comparison) {
        list += &format!("<p>{}</p>\n", escape(&lesson));
    }
    list
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + chars.as_str())
}

fn response(comparison: &Comparison, job: Job) -> String {
    let bars = bars(comparison, job);
    let (name, reference) = (job.name(), job.reference());
    let title = match job {
        Job::Light => "The light job, alone = 100".to_owned(),
        Job::Heavy => format!("The heavy job, {reference} = 100"),
    };
    let mut section = format!("<h3>{title}</h3>\n");
    if bars.iter().all(|bar| bar.time_s.is_none()) {
        return section + "<p>Not measured.</p>\n";
    }
    let description =
        bars.iter().map(|bar| format!("{}: {}", bar.scheme, figure(bar))).collect::<Vec<_>>().join("; ");
    if bars.iter().all(|bar| bar.ratio.is_none()) {
        section += &format!("<p>Nothing to compare with: {reference} was not measured. {description}.</p>\n");
        return section;
    }
    let bound =
        verdicts(comparison).iter().find(|verdict| verdict.job == job).map_or(1.0, |verdict| verdict.bound);
    let chart = BarChart {
        id: &format!("response-{name}"),
        title: &title,
        description: &description,
        bars: bars.iter().map(chart_bar).collect(),
        bound: (bound, format!("promised for isolate: at most {:.0}", bound * 100.0)),
        unit: &format!("response time, {reference} = 100"),
    };
    let caption = if bars.iter().any(|bar| bar.range_s.is_some()) {
        "Response time; shorter is better. Medians, with the shortest and the longest run as a whisker."
    } else {
        "Response time; shorter is better."
    };
    section += &format!("<figure>\n{}<figcaption>{caption}</figcaption>\n</figure>\n", svg::bars(&chart));
    section
}

fn chart_bar(bar: &Bar) -> ChartBar<'_> {
    // The ends of the whisker are relative to the reference, as the bar itself is.
    let range = bar.range_s.zip(bar.time_s).zip(bar.ratio);
    let range = range.map(|(((low, high), time), ratio)| (low / time * ratio, high / time * ratio));
    ChartBar { label: bar.scheme, class: bar.scheme, value: bar.ratio, range, figure: figure(bar) }
}

/// The text beside a bar: the time in percent of the reference, and in seconds, `103 (10.3 s)`.
fn figure(bar: &Bar) -> String {
    match (bar.time_s, bar.ratio) {
        (None, _) => "not measured".to_owned(),
        (Some(_), None) => bar.time(),
        (Some(_), Some(_)) => format!("{} ({})", bar.index(), bar.time()),
    }
}

fn over_time(comparison: &Comparison) -> String {
    let runs: Vec<&Run> = comparison.rows.iter().filter(|run| !run.samples.is_empty()).collect();
    if runs.is_empty() {
        return String::new();
    }
    let mut section = String::from("<h2>CPU use over time</h2>\n");
    section += "<p class=\"soft\">Seconds from left to right; CPUs from bottom to top. The dashed line is what the unit is \
                entitled to; hatched is what it uses beyond it.</p>\n";
    // All charts have the same time axis, so that a longer run looks longer.
    let until_s = runs.iter().flat_map(|run| times(run)).map(|sample| sample.at_s).fold(0.0, f64::max);
    for run in runs {
        section += &run_over_time(comparison, run, until_s);
    }
    section
}

fn run_over_time(comparison: &Comparison, run: &Run, until_s: f64) -> String {
    let units = busiest(run);
    let panel = |unit| Panel {
        unit,
        entitled: run.statement.as_ref().and_then(|statement| statement.account(unit)).map(entitled),
        samples: times(run).map(|sample| (sample.at_s, using(sample, unit))).collect(),
    };
    let peak = run.samples.iter().flat_map(|sample| &sample.using).map(|(_, cpus)| *cpus).fold(1.0, f64::max);
    let statements = comparison.rows.iter().filter_map(|run| run.statement.as_ref());
    let cpus = statements.map(|statement| f64::from(statement.cpus)).fold(0.0, f64::max);
    let chart = TimeChart {
        id: &format!("over-time-{}", run.name()),
        title: &format!("CPU use over time, {}", run.name()),
        description: &describe(run, &units),
        until_s,
        cpus: if cpus > 0.0 { cpus } else { peak.ceil() },
        panels: units.iter().take(PANELS_MAX).copied().map(panel).collect(),
    };
    let left_out = match units.len().saturating_sub(PANELS_MAX) {
        0 => String::new(),
        n => format!("<figcaption>{} that used less are not shown.</figcaption>\n", count(n, "unit")),
    };
    format!("<h3>{}</h3>\n<figure>\n{}{left_out}</figure>\n", run.name(), svg::steps(&chart))
}

fn entitled(account: &Account) -> f64 {
    // Exact below 2^53 millionths, which is nine thousand million CPUs.
    #[allow(clippy::cast_precision_loss)]
    let micro = account.entitled_micro_cpus as f64;
    micro / 1e6
}

/// The samples whose time is a finite number.
fn times(run: &Run) -> impl Iterator<Item = &Sample> {
    run.samples.iter().filter(|sample| sample.at_s.is_finite())
}

/// The number of CPUs that the unit used in a sample; 0 if the value is negative or not finite, which no bar
/// can show.
fn using(sample: &Sample, unit: &str) -> f64 {
    let cpus = sample.using.iter().find(|(name, _)| name == unit).map_or(0.0, |(_, cpus)| *cpus);
    if cpus.is_finite() { cpus.max(0.0) } else { 0.0 }
}

/// All units of a run: in the order in which the samples first name them if the chart has room for all, else
/// by descending CPU use.
fn busiest(run: &Run) -> Vec<&str> {
    let mut sums: Vec<(&str, f64)> = Vec::new();
    let mut places = std::collections::BTreeMap::new();
    for (unit, cpus) in run.samples.iter().flat_map(|sample| &sample.using) {
        let place = *places.entry(unit.as_str()).or_insert_with(|| {
            sums.push((unit, 0.0));
            sums.len() - 1
        });
        sums[place].1 += cpus;
    }
    if sums.len() > PANELS_MAX {
        sums.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    }
    sums.into_iter().map(|(unit, _)| unit).collect()
}

fn describe(run: &Run, units: &[&str]) -> String {
    let mean = |unit: &str| {
        let (mut cpu_s, mut before_s) = (0.0, 0.0);
        for sample in times(run) {
            cpu_s += using(sample, unit) * (sample.at_s - before_s).max(0.0);
            before_s = sample.at_s;
        }
        if before_s > 0.0 { cpu_s / before_s } else { 0.0 }
    };
    let units: Vec<String> = units
        .iter()
        .take(PANELS_MAX)
        .map(|unit| format!("{unit} uses {:.2} CPUs in the mean", mean(unit)))
        .collect();
    units.join("; ")
}

fn ledgers(comparison: &Comparison) -> String {
    let mut section = String::new();
    for run in &comparison.rows {
        if let Some(statement) = &run.statement {
            section += &ledger(run, statement);
        }
    }
    if section.is_empty() { section } else { format!("<h2>The ledgers</h2>\n{section}") }
}

fn ledger(run: &Run, statement: &Statement) -> String {
    let mut table = format!(
        "<h3>{}, over {}</h3>\n<div class=\"wide\">\n<table>\n",
        run.name(),
        duration(statement.elapsed_ns)
    );
    table += &format!("<caption>{}</caption>\n", escape(&totals(statement)));
    let heads = heads("unit").map(|head| escape(&head.replace('\n', " ")));
    let headings: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    table += &format!("<thead><tr>{headings}</tr></thead>\n<tbody>\n");
    for account in statement.accounts.iter().take(ROWS_MAX) {
        let cells = cells(account);
        let figures: String =
            heads.iter().zip(&cells).skip(1).map(|(head, cell)| html_cell(head, cell)).collect();
        let indent = 0.55 + 1.2 * f64::from(u32::try_from(depth(&account.unit)).unwrap_or(0).min(16));
        table += &format!(
            "<tr><th scope=\"row\" style=\"padding-left:{indent:.2}rem\">{}</th>{figures}</tr>\n",
            escape(&cells[0])
        );
        if let Some(waits) = waits(account) {
            table += &format!(
                "<tr><td class=\"waits\" colspan=\"{}\">{}</td></tr>\n",
                heads.len(),
                escape(&waits)
            );
        }
    }
    table += "</tbody>\n</table>\n</div>\n";
    if let Some(n) = statement.accounts.len().checked_sub(ROWS_MAX).filter(|n| *n > 0) {
        table += &format!("<p class=\"soft\">{} not shown.</p>\n", count(n, "more unit"));
    }
    table
}

const HOW_TO_READ: &str = "<h2>How to read it</h2>
<p>Two units share one machine. The light unit's job needs no more than its unit holds, and never changes; the heavy unit \
takes all it can get. The light job is timed alone, then beside the heavy unit under each scheme:</p>
<dl class=\"facts\">
<dt>smp</dt><dd>No isolation: the kernel treats every thread alike, so a unit with more threads gets more of the machine.</dd>
<dt>quota</dt><dd>Isolation without sharing: each unit is confined to what it holds, and what one does not use is lost.</dd>
<dt>isolate</dt><dd>Isolation and sharing: what a unit does not use is lent, and called back as soon as it wants it.</dd>
</dl>
<p>Isolation is worth having if the light job's bar under isolate is as short as alone. Sharing is worth having if the \
heavy job's bar under isolate is as short as under smp. In the ledgers:</p>
<dl class=\"facts\">
<dt>entitled, using</dt><dd>CPUs at the end of the run.</dd>
<dt>used %</dt><dd>CPU time that the unit used, in percent of what it was entitled to.</dd>
<dt>lent, borrowed</dt><dd>CPU time of its own that others used, and of others that it used.</dd>
<dt>called back, longest</dt><dd>Loans that it ended as their owner, and the longest that this took.</dd>
<dt>waited</dt><dd>Time that its threads were ready to run and had no CPU.</dd>
</dl>
";

fn commands(comparison: &Comparison) -> String {
    if comparison.commands.is_empty() {
        return String::new();
    }
    format!(
        "<h2>Repeat it</h2>\n<pre>{}</pre>\n",
        comparison.commands.iter().map(|c| escape(c)).collect::<Vec<_>>().join("\n")
    )
}
