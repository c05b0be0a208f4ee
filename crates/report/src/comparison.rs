//! The demo's end result: the time of a light unit's job and of a heavy unit's job under each scheme.
//!
//! The comparison is that of seed 000's figure 2 (section 1.1). That figure shows the response time of a job with constant
//! needs, while the load of other jobs on the machine rises. Times are relative to the job alone. In the demo, the load is one
//! heavy unit, and the scheme varies.

use commonhold_contract::Scheme;
use commonhold_ledger::Statement;
use serde::Serialize;

use crate::figures::{NOTHING, seconds};
use crate::table::{Paint, Style, clean, fit, pad, wrap};

/// The promised bound: the largest ratio of a response time to its reference.
pub const BOUND: f64 = 1.10;

/// The comparison: the machine, the two jobs, and their runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The machine in a few words: `2 CPUs, 1 node`.
    pub machine: String,
    /// The backend that held the contract: `user`, `cgroup`.
    pub backend: String,
    /// The light unit's job, in words.
    pub light: String,
    /// The heavy unit's job, in words.
    pub heavy: String,
    /// The commands that repeat the comparison, one per line of a shell.
    pub commands: Vec<String>,
    /// One per scheme, in the order of the report.
    pub rows: Vec<Run>,
}

/// The jobs under one scheme.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The scheme; `None`: the light unit's job alone on the machine, without a contract in force.
    pub scheme: Option<Scheme>,
    /// Response times of the light unit's job, in seconds, one per repeat.
    pub light_s: Vec<f64>,
    /// Response time of the heavy unit's job, in seconds, if it was measured.
    pub heavy_s: Option<f64>,
    /// The ledger's statement at the end of the run, if a contract was in force.
    pub statement: Option<Statement>,
    /// Samples of each unit's use, in order of time.
    pub samples: Vec<Sample>,
}

/// Each unit's use since the sample before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Seconds since the run began.
    pub at_s: f64,
    /// Each unit with the CPUs that it used.
    pub using: Vec<(String, f64)>,
}

impl Run {
    /// The scheme's name, or `alone`.
    pub fn name(&self) -> &'static str {
        self.scheme.map_or("alone", Scheme::name)
    }

    /// The median of the light job's response times, in seconds, without impossible values.
    pub fn light_median_s(&self) -> Option<f64> {
        let sorted = self.light_sorted_s();
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            n if n % 2 == 1 => Some(sorted[middle]),
            _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        }
    }

    fn light_sorted_s(&self) -> Vec<f64> {
        let mut sorted: Vec<f64> = self.light_s.iter().copied().filter(|s| is_time(*s)).collect();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// Whether a job can have taken this time: between a nanosecond and thirty years.
fn is_time(s: f64) -> bool {
    (1e-9..1e9).contains(&s)
}

/// One of the two compared jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// The job that needs little: isolation protects this job.
    Light,
    /// The job that takes all it can get: sharing benefits this job.
    Heavy,
}

impl Job {
    /// The name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Job::Light => "light",
            Job::Heavy => "heavy",
        }
    }

    /// The reference for the job's response time: `alone` for the light job, `smp` for the heavy job, which never runs alone.
    pub(crate) fn reference(self) -> &'static str {
        match self {
            Job::Light => "alone",
            Job::Heavy => "smp",
        }
    }
}

/// The result of one job under one scheme.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) scheme: &'static str,
    /// The median response time.
    pub(crate) time_s: Option<f64>,
    /// Shortest and longest of the repeats, in seconds, if there are several.
    pub(crate) range_s: Option<(f64, f64)>,
    /// The ratio of the response time to the reference.
    pub(crate) ratio: Option<f64>,
}

impl Bar {
    /// The ratio in per cent, rounded: the reference is 100.
    pub(crate) fn index(&self) -> String {
        self.ratio.map_or_else(|| NOTHING.to_owned(), |ratio| format!("{:.0}", ratio * 100.0))
    }

    /// `12.3 s`.
    pub(crate) fn time(&self) -> String {
        self.time_s.map_or_else(|| NOTHING.to_owned(), seconds)
    }

    /// `12.1 s to 12.9 s`, or nothing.
    pub(crate) fn range(&self) -> String {
        self.range_s.map_or_else(String::new, |(low, high)| format!("{} to {}", seconds(low), seconds(high)))
    }
}

/// A job's result under each scheme under which it ran.
pub(crate) fn bars(comparison: &Comparison, job: Job) -> Vec<Bar> {
    let time = |run: &Run| match job {
        Job::Light => run.light_median_s(),
        Job::Heavy => run.heavy_s.filter(|s| is_time(*s)),
    };
    let reference = comparison.rows.iter().find(|run| run.name() == job.reference()).and_then(time);
    let ran = |run: &&Run| job == Job::Light || run.scheme.is_some();
    let bar = |run: &Run| {
        let time_s = time(run);
        let sorted = if job == Job::Light { run.light_sorted_s() } else { Vec::new() };
        let range_s = (sorted.len() > 1).then(|| (sorted[0], sorted[sorted.len() - 1]));
        let ratio = time_s.zip(reference).map(|(time, reference)| time / reference);
        Bar { scheme: run.name(), time_s, range_s, ratio }
    };
    comparison.rows.iter().filter(ran).map(bar).collect()
}

/// A promise about a job's response time, and the measured ratio.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The job.
    pub job: Job,
    /// The scheme under which the job ran.
    pub scheme: Scheme,
    /// The reference: `alone` or `smp`.
    pub against: &'static str,
    /// The promised bound of the ratio.
    pub bound: f64,
    /// The measured ratio of the response time to the reference; `None` if one of the two was not measured.
    pub ratio: Option<f64>,
}

impl Verdict {
    /// Whether the promise was kept; `None` if the ratio was not measured.
    pub fn kept(&self) -> Option<bool> {
        self.ratio.map(|ratio| ratio <= self.bound)
    }

    /// `kept`, `broken` or `not measured`.
    pub(crate) fn word(&self) -> &'static str {
        match self.kept() {
            Some(true) => "kept",
            Some(false) => "broken",
            None => "not measured",
        }
    }

    /// The promise in words.
    pub(crate) fn promise(&self) -> String {
        let Verdict { job, scheme, against, bound, .. } = self;
        format!(
            "the {} job under {scheme} takes at most {bound:.2} times what it takes {}",
            job.name(),
            circumstance(against)
        )
    }

    /// The measured ratio in words.
    pub(crate) fn measured(&self) -> String {
        self.ratio.map_or_else(|| "a time is missing".to_owned(), |ratio| format!("{ratio:.2} times"))
    }
}

/// `alone`, or `under smp`.
fn circumstance(reference: &str) -> String {
    if reference == "alone" { reference.to_owned() } else { format!("under {reference}") }
}

/// The two promises that the demo shows, with what was measured: isolation for the light job, sharing for the heavy one.
pub fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    [Job::Light, Job::Heavy]
        .map(|job| {
            let scheme = Scheme::Isolate;
            let ratio = bars(comparison, job)
                .iter()
                .find(|bar| bar.scheme == scheme.name())
                .and_then(|bar| bar.ratio);
            Verdict { job, scheme, against: job.reference(), bound: BOUND, ratio }
        })
        .into()
}

/// A conclusion from the figures, if the figures support one.
pub(crate) fn lessons(comparison: &Comparison) -> Vec<String> {
    let ratio = |job, scheme: Scheme| {
        bars(comparison, job).iter().find(|bar| bar.scheme == scheme.name()).and_then(|bar| bar.ratio)
    };
    let mut lessons = Vec::new();
    if let Some(smp) = ratio(Job::Light, Scheme::Smp) {
        lessons
            .push(format!("Without isolation (smp) the light job takes {smp:.2} times what it takes alone."));
    }
    if let Some(quota) = ratio(Job::Heavy, Scheme::Quota) {
        lessons.push(format!(
            "Without sharing (quota) the heavy job takes {quota:.2} times what it takes under smp."
        ));
    }
    lessons
}

/// Columns of the longest text bar.
const BAR_COLUMNS_MAX: usize = 44;

/// The comparison for a terminal.
pub fn text(comparison: &Comparison, style: Style) -> String {
    let mut lines =
        vec![style.paint(
            Paint::Strong,
            "What the light unit's job takes beside a heavy unit, and the heavy one's",
        )];
    let Comparison { machine, backend, light, heavy, .. } = comparison;
    for (label, value) in [("machine", machine), ("backend", backend), ("light", light), ("heavy", heavy)] {
        lines.extend(wrap(&clean(value), style.width, &format!("  {label:<9}"), &" ".repeat(11)));
    }
    for job in [Job::Light, Job::Heavy] {
        lines.push(String::new());
        let title =
            format!("Response time of the {} job, {} = 100", job.name(), circumstance(job.reference()));
        lines.push(style.paint(Paint::Strong, &title));
        lines.extend(text_bars(&bars(comparison, job), style.width));
    }
    lines.push(String::new());
    lines.extend(lessons(comparison).iter().flat_map(|lesson| wrap(lesson, style.width, "", "  ")));
    for verdict in verdicts(comparison) {
        lines.extend(text_verdict(&verdict, style));
    }
    lines.join("\n") + "\n"
}

fn text_bars(bars: &[Bar], width: usize) -> Vec<String> {
    if bars.iter().all(|bar| bar.time_s.is_none()) {
        return vec!["  not measured".to_owned()];
    }
    let longest = bars.iter().filter_map(|bar| bar.ratio).fold(1.0, f64::max);
    let columns = width.saturating_sub(32).clamp(8, BAR_COLUMNS_MAX);
    let line = |bar: &Bar| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let cells = bar.ratio.map_or(0, |ratio| (ratio / longest * columns as f64).round().max(1.0) as usize);
        let line =
            format!("  {} {:>10} {:>6}  {}", pad(bar.scheme, 8), bar.time(), bar.index(), "█".repeat(cells));
        line.trim_end().to_owned()
    };
    let mut lines: Vec<String> = bars.iter().map(line).collect();
    let ranges: Vec<String> = bars
        .iter()
        .filter(|bar| bar.range_s.is_some())
        .map(|bar| format!("{} {}", bar.scheme, bar.range()))
        .collect();
    if !ranges.is_empty() {
        lines.extend(wrap(&format!("medians; {}", ranges.join(", ")), width, "  ", "  "));
    }
    lines.iter().map(|line| fit(line, width)).collect()
}

fn text_verdict(verdict: &Verdict, style: Style) -> Vec<String> {
    let paint = match verdict.kept() {
        Some(true) => Paint::Good,
        Some(false) => Paint::Bad,
        None => Paint::Strong,
    };
    let first = format!("{:<13}", verdict.word());
    let sentence = format!("{}: {}", verdict.promise(), verdict.measured());
    let mut lines = wrap(&sentence, style.width, &first, &" ".repeat(13));
    // Painted after wrapping: escape sequences have no width.
    lines[0] = style.paint(paint, &first) + &lines[0][first.len()..];
    lines
}

#[derive(Serialize)]
struct ComparisonJson<'a> {
    machine: &'a str,
    backend: &'a str,
    light: &'a str,
    heavy: &'a str,
    commands: &'a [String],
    promises: Vec<VerdictJson>,
    runs: Vec<RunJson<'a>>,
}

#[derive(Serialize)]
struct VerdictJson {
    #[serde(flatten)]
    verdict: Verdict,
    kept: Option<bool>,
}

#[derive(Serialize)]
struct RunJson<'a> {
    scheme: &'a str,
    light_s: &'a [f64],
    light_median_s: Option<f64>,
    light_against_alone: Option<f64>,
    heavy_s: Option<f64>,
    heavy_against_smp: Option<f64>,
    statement: Option<&'a Statement>,
    samples: &'a [Sample],
}

/// The comparison as JSON. Times are in seconds, `…_against_…` are ratios; what was not measured is null.
pub fn json(comparison: &Comparison) -> String {
    let Comparison { machine, backend, light, heavy, commands, rows } = comparison;
    let ratio = |job, run: &Run| {
        bars(comparison, job).iter().find(|bar| bar.scheme == run.name()).and_then(|b| b.ratio)
    };
    let run = |run| RunJson {
        scheme: Run::name(run),
        light_s: &run.light_s,
        light_median_s: run.light_median_s(),
        light_against_alone: ratio(Job::Light, run),
        heavy_s: run.heavy_s,
        heavy_against_smp: ratio(Job::Heavy, run),
        statement: run.statement.as_ref(),
        samples: &run.samples,
    };
    let promises =
        verdicts(comparison).into_iter().map(|v| VerdictJson { kept: v.kept(), verdict: v }).collect();
    let content = ComparisonJson {
        machine,
        backend,
        light,
        heavy,
        commands,
        promises,
        runs: rows.iter().map(run).collect(),
    };
    crate::json("commonhold.comparison", content)
}
