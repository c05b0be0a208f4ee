//! The report of `commonhold demo`: the response times of a light unit's job and of a heavy unit's job under
//! each scheme.
//!
//! The model is figure 2 of seed 000 (section 1.1). That figure shows how the response time of an unchanging
//! job grows with the load that others put on the machine, relative to the same job alone. In the demo, the
//! load is always one heavy unit, and the scheme varies.
//!
//! Each job has a *reference*: the run by whose time its other times are divided. The light job's reference
//! is its run alone on the machine. The heavy job's reference is its run under `smp`.
//!
//! A repeat is *disturbed* if processes in no unit used more of the machine than [`OTHERS_MAX`] meanwhile.
//! Disturbed repeats count only where there is no other, and then the verdict is that the measurement is
//! inconclusive. So it is if the median breaks the bound, and the best repeat beside the worst one of the
//! reference would not: then the machine's own speed varied, as that of a virtual machine does.

use commonhold_contract::Scheme;
use commonhold_ledger::Statement;
use serde::Serialize;

use crate::figures::{NOTHING, seconds};
use crate::table::{Paint, Style, clean, fit, pad, wrap};

/// The promise: a job takes at most this times as long as in its reference.
pub const BOUND: f64 = 1.10;

/// The largest part of the machine's CPU time that processes in no unit may use during a repeat. Each unit
/// has half of the machine: a job that loses this part takes a tenth longer, which is the whole [`BOUND`].
pub const OTHERS_MAX: f64 = 0.05;

/// The runs to compare, and the circumstances in which they were made.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The machine in a few words: `2 CPUs, 1 node`.
    pub machine: String,
    /// The backend that held the contract, such as `user` or `cgroup`.
    pub backend: String,
    /// What the light unit runs.
    pub light: String,
    /// What the heavy unit runs.
    pub heavy: String,
    /// The shell commands that repeat the comparison, one per line.
    pub commands: Vec<String>,
    /// The run alone, and one run under each scheme, in the order of the report.
    pub rows: Vec<Run>,
}

/// The measurements of both jobs under one scheme, or of the light job alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The scheme; `None` if the light unit's job ran alone on the machine, with no resource held.
    pub scheme: Option<Scheme>,
    /// All repeats, in the order of time.
    pub repeats: Vec<Repeat>,
    /// The ledger at the end of the first repeat; `None` if no accounts were kept.
    pub statement: Option<Statement>,
    /// The CPU use of each unit over time during the first repeat, in order of time.
    pub samples: Vec<Sample>,
}

/// One run of the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Repeat {
    /// The response time of the light unit's job, in seconds.
    pub light_s: f64,
    /// The response time of the heavy unit's job, in seconds; `None` if the job did not run.
    pub heavy_s: Option<f64>,
    /// The part of the machine's CPU time that processes in no unit used meanwhile, from 0 to 1.
    pub others: f64,
}

impl Repeat {
    /// Whether processes in no unit used too much of the machine.
    pub fn is_disturbed(&self) -> bool {
        self.others > OTHERS_MAX
    }
}

/// The CPU use of each unit since the previous sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Seconds since the run began.
    pub at_s: f64,
    /// Each unit's name, and the mean number of CPUs that it used.
    pub using: Vec<(String, f64)>,
}

impl Run {
    /// The scheme's name, or `alone`.
    pub fn name(&self) -> &'static str {
        self.scheme.map_or("alone", Scheme::name)
    }

    /// Whether there are repeats, and all were disturbed.
    pub fn is_disturbed(&self) -> bool {
        !self.repeats.is_empty() && self.repeats.iter().all(Repeat::is_disturbed)
    }

    /// The repeats that count: those that were not disturbed, if there are any.
    fn counted(&self) -> impl Iterator<Item = &Repeat> {
        let is_disturbed = self.is_disturbed();
        self.repeats.iter().filter(move |repeat| is_disturbed || !repeat.is_disturbed())
    }

    /// The largest part of the machine that processes in no unit used during a repeat that counts.
    fn others(&self) -> f64 {
        self.counted().map(|repeat| repeat.others).fold(0.0, f64::max)
    }

    /// A job's response times in the repeats that count, in seconds, in ascending order, without implausible
    /// ones.
    fn times_s(&self, job: Job) -> Vec<f64> {
        let time = |repeat: &Repeat| match job {
            Job::Light => Some(repeat.light_s),
            Job::Heavy => repeat.heavy_s,
        };
        let mut times: Vec<f64> = self.counted().filter_map(time).filter(|s| is_time(*s)).collect();
        times.sort_by(f64::total_cmp);
        times
    }
}

/// The median of ascending values.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Whether `s` seconds are a plausible response time: from a nanosecond to some thirty years.
fn is_time(s: f64) -> bool {
    (1e-9..1e9).contains(&s)
}

/// One of the two jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// The light unit's job, which needs little. It gains from isolation.
    Light,
    /// The heavy unit's job, which uses all CPUs that it can get. It gains from sharing.
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

    /// The name of the run that the job's times are divided by. The heavy job never runs alone, so its
    /// reference is `smp`.
    pub(crate) fn reference(self) -> &'static str {
        match self {
            Job::Light => "alone",
            Job::Heavy => "smp",
        }
    }
}

/// The response time of one job in one run, as a bar of the plot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) scheme: &'static str,
    /// The response time in seconds: the median of the repeats.
    pub(crate) time_s: Option<f64>,
    /// The shortest and the longest response time, in seconds; `None` if there is only one repeat.
    pub(crate) range_s: Option<(f64, f64)>,
    /// The response time divided by the reference's.
    pub(crate) ratio: Option<f64>,
}

impl Bar {
    /// The ratio in percent of the reference, rounded.
    pub(crate) fn index(&self) -> String {
        self.ratio.map_or_else(|| NOTHING.to_owned(), |ratio| format!("{:.0}", ratio * 100.0))
    }

    /// The response time in words: `12.3 s`.
    pub(crate) fn time(&self) -> String {
        self.time_s.map_or_else(|| NOTHING.to_owned(), seconds)
    }

    /// The range of the repeats in words, `12.1 s to 12.9 s`; empty if there is only one repeat.
    pub(crate) fn range(&self) -> String {
        self.range_s.map_or_else(String::new, |(low, high)| format!("{} to {}", seconds(low), seconds(high)))
    }
}

/// The bars of a job: one for each run in which the job took part.
pub(crate) fn bars(comparison: &Comparison, job: Job) -> Vec<Bar> {
    let time = |run: &Run| median(&run.times_s(job));
    let reference = comparison.rows.iter().find(|run| run.name() == job.reference()).and_then(time);
    let ran = |run: &&Run| job == Job::Light || run.scheme.is_some();
    let bar = |run: &Run| {
        let time_s = time(run);
        let sorted = run.times_s(job);
        let range_s = (sorted.len() > 1).then(|| (sorted[0], sorted[sorted.len() - 1]));
        let ratio = time_s.zip(reference).map(|(time, reference)| time / reference);
        Bar { scheme: run.name(), time_s, range_s, ratio }
    };
    comparison.rows.iter().filter(ran).map(bar).collect()
}

/// A promise, that a job's time is at most `bound` times its reference, and the measured ratio.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The job whose response time is limited.
    pub job: Job,
    /// The scheme under which the promise holds.
    pub scheme: Scheme,
    /// The reference: `alone` or `smp`.
    pub against: &'static str,
    /// The largest ratio that keeps the promise.
    pub bound: f64,
    /// The job's time divided by the reference's time; `None` if one of the two times is missing.
    pub ratio: Option<f64>,
    /// What made the measurement inconclusive: the more disturbed one of the two runs.
    pub disturbed: Option<Disturbed>,
    /// The ratio of the shortest time to the longest one of the reference, if the repeats vary so much that
    /// it is within the bound, and the ratio of the medians is not.
    pub at_best: Option<f64>,
}

/// A run all of whose repeats were disturbed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disturbed {
    /// The name of the run: a scheme's, or `alone`.
    pub run: &'static str,
    /// The largest part of the machine's CPU time that processes in no unit used during a repeat.
    pub others: f64,
}

impl Verdict {
    /// Whether the promise was kept; `None` if it was not measured, or the measurement is inconclusive.
    pub fn kept(&self) -> Option<bool> {
        let is_conclusive = self.disturbed.is_none() && self.at_best.is_none();
        self.ratio.filter(|_| is_conclusive).map(|ratio| ratio <= self.bound)
    }

    /// `kept`, `broken`, `inconclusive` or `not measured`.
    pub(crate) fn word(&self) -> &'static str {
        match (self.kept(), self.ratio) {
            (Some(true), _) => "kept",
            (Some(false), _) => "broken",
            (None, Some(_)) => "inconclusive",
            (None, None) => "not measured",
        }
    }

    /// The promise in words.
    pub(crate) fn promise(&self) -> String {
        let Verdict { job, scheme, against, bound, .. } = self;
        format!(
            "the {} job under {scheme} takes at most {bound:.2} times what it takes {}",
            job.name(),
            reference_phrase(against)
        )
    }

    /// What was measured, in words.
    pub(crate) fn measured(&self) -> String {
        let Some(ratio) = self.ratio else { return "a time is missing".to_owned() };
        let Some(Disturbed { run, others }) = &self.disturbed else {
            return match self.at_best {
                Some(best) => format!("{ratio:.2} times, but the repeats vary: {best:.2} times at best"),
                None => format!("{ratio:.2} times"),
            };
        };
        let when = if *run == "alone" { "the run alone".to_owned() } else { (*run).to_owned() };
        format!(
            "{ratio:.2} times, but other processes used {:.0} % of the machine during {when}",
            others * 100.0
        )
    }
}

/// The end of a sentence about a reference: `alone`, or `under smp`.
fn reference_phrase(reference: &str) -> String {
    if reference == "alone" { reference.to_owned() } else { format!("under {reference}") }
}

/// The two promises that the demo tests, both of scheme `isolate`. The light job is hardly slower than alone
/// (isolation), and the heavy job is hardly slower than under `smp` (sharing).
pub fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    [Job::Light, Job::Heavy]
        .map(|job| {
            let (scheme, against) = (Scheme::Isolate, job.reference());
            let ratio = bars(comparison, job)
                .iter()
                .find(|bar| bar.scheme == scheme.name())
                .and_then(|bar| bar.ratio);
            let runs = comparison.rows.iter().filter(|run| [against, scheme.name()].contains(&run.name()));
            let most = runs.filter(|run| run.is_disturbed()).max_by(|a, b| a.others().total_cmp(&b.others()));
            let disturbed = most.map(|run| Disturbed { run: run.name(), others: run.others() });
            let times =
                |name| comparison.rows.iter().find(|run| run.name() == name).map(|run| run.times_s(job));
            let at_best = || Some(times(scheme.name())?.first()? / times(against)?.last()?);
            let at_best = ratio.filter(|ratio| *ratio > BOUND).and_then(|_| at_best());
            let at_best = at_best.filter(|best| *best <= BOUND);
            Verdict { job, scheme, against, bound: BOUND, ratio, disturbed, at_best }
        })
        .into()
}

/// Sentences on what the other schemes cost: the light job's slowdown under `smp`, and the heavy job's under
/// `quota`. A sentence is left out if its ratio was not measured.
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

/// The width of the longest bar in text, in columns.
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
            format!("Response time of the {} job, {} = 100", job.name(), reference_phrase(job.reference()));
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
    let first = format!("{:<14}", verdict.word());
    let sentence = format!("{}: {}", verdict.promise(), verdict.measured());
    let mut lines = wrap(&sentence, style.width, &first, &" ".repeat(14));
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
    repeats: &'a [Repeat],
    light_s: Option<f64>,
    light_against_alone: Option<f64>,
    heavy_s: Option<f64>,
    heavy_against_smp: Option<f64>,
    statement: Option<&'a Statement>,
    samples: &'a [Sample],
}

/// The comparison as JSON. Times are in seconds; those of a run are medians of the repeats that count.
/// `…_against_…` are ratios; what was not measured is null.
pub fn json(comparison: &Comparison) -> String {
    let Comparison { machine, backend, light, heavy, commands, rows } = comparison;
    let ratio = |job, run: &Run| {
        bars(comparison, job).iter().find(|bar| bar.scheme == run.name()).and_then(|b| b.ratio)
    };
    let run = |run| RunJson {
        scheme: Run::name(run),
        repeats: &run.repeats,
        light_s: median(&run.times_s(Job::Light)),
        light_against_alone: ratio(Job::Light, run),
        heavy_s: median(&run.times_s(Job::Heavy)),
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
