//! Reports how a program scales and where its time goes: for a terminal, as JSON, and as a page with plots.
//!
//! A report answers these questions, in this order: how does the program scale (`scaling`), where does the
//! time go (`time`), who is to blame (`blame`), and, with --locks, would mending a lock help (`mend`). Each
//! module makes one table and labelled sentences, its findings. The terminal and the page show the same
//! tables and findings.
// Text is concatenated: `write!` to a `String` would return results that are always `Ok`.
#![allow(clippy::format_push_string, clippy::format_collect)]

mod blame;
mod mend;
mod page;
mod plot;
mod scaling;
mod time;
mod verdict;

use commonhold_report::table::{Paint, wrap};
use commonhold_report::{Style, json as document};
use commonhold_scale::blame::{Blame, blame};
use commonhold_scale::growth::{Growth, growth};
use commonhold_scale::scaling::{Scaling, scaling};
use commonhold_scale::states::State;
use commonhold_scale::study::{Limit, Measure, Quota, Size, Sizes, Study};
use commonhold_scale::verdict::{Outside, outside};
use serde::Serialize;

pub use page::html;

/// A labelled sentence.
pub(crate) type Finding = (&'static str, String);

/// The width of the labels, in characters.
const LABEL: usize = 15;

/// A study with its answers.
pub(crate) struct Answered<'a> {
    pub(crate) study: &'a Study,
    pub(crate) scaling: Scaling,
    pub(crate) growth: Option<Growth>,
    pub(crate) blame: Option<Blame>,
    pub(crate) mend: Option<mend::Experiment<'a>>,
    /// External load or a quota that bounds the program.
    pub(crate) outside: Option<Outside>,
}

impl Answered<'_> {
    fn of(study: &Study) -> Answered<'_> {
        let mend = mend::Experiment::of(study);
        Answered {
            study,
            scaling: scaling(study),
            growth: growth(study),
            blame: blame(study),
            mend,
            outside: outside(study),
        }
    }

    /// Whether a program was run at all.
    fn was_run(&self) -> bool {
        !matches!(self.study.measure, Measure::Points(_))
    }

    /// Whether external load makes the study inconclusive.
    fn is_inconclusive(&self) -> bool {
        matches!(self.outside, Some(Outside::Others { .. }))
    }

    /// Whether threads were sampled.
    fn is_watched(&self) -> bool {
        self.study.measured().any(|size| size.times().1 > 0)
    }
}

/// The report for a terminal.
pub fn text(study: &Study, style: Style) -> String {
    let answered = Answered::of(study);
    let mut text =
        format!("{}\n\n", style.paint(Paint::Strong, &commonhold_report::table::clean(&study.command)));
    text += &wrapped(&verdict::verdict(&answered), style);
    text.push('\n');
    text += &wrapped(&about(study).join("; "), style);
    text += &heading("1. How does it scale?", style);
    text += &scaling::table(&answered).render(style);
    text.push('\n');
    text += &sentences(&scaling::findings(&answered), style);
    if !answered.was_run() {
        return text;
    }
    text += &heading("2. Where does the time go?", style);
    if answered.is_watched() {
        text += &wrapped(&time::lead(study), style);
        text += &time::table(&answered).render(style);
        text.push('\n');
    }
    text += &sentences(&time::findings(&answered), style);
    text += &heading("3. Who is to blame?", style);
    text += &sentences(&blame::findings(&answered), style);
    if let Some(table) = blame::table(&answered) {
        text.push('\n');
        text += &wrapped(&blame::lead(&answered), style);
        text += &table.render(style);
    }
    if let Some(experiment) = &answered.mend {
        text += &heading("4. Would mending it help?", style);
        if !experiment.locks.locks.is_empty() {
            text += &mend::table(experiment.locks).render(style);
            text.push('\n');
        }
        text += &sentences(&mend::findings(&answered), style);
    }
    let limits = limits(study);
    if !limits.is_empty() {
        text += &heading("What was not measured", style);
        for limit in limits {
            let lines = wrap(&format!("{}; {}", limit.what, limit.remedy), style.width, "- ", "  ");
            text += &(lines.join("\n") + "\n");
        }
    }
    text
}

fn heading(text: &str, style: Style) -> String {
    format!("\n{}\n\n", style.paint(Paint::Strong, text))
}

fn wrapped(text: &str, style: Style) -> String {
    wrap(&commonhold_report::table::clean(text), style.width, "", "").join("\n") + "\n"
}

fn sentences(findings: &[Finding], style: Style) -> String {
    let rest = " ".repeat(LABEL + 1);
    let lines = findings
        .iter()
        .flat_map(|(label, sentence)| wrap(sentence, style.width, &format!("{label:LABEL$} "), &rest));
    lines.map(|line| line + "\n").collect()
}

/// The machine and the set-up of the study.
fn about(study: &Study) -> Vec<String> {
    let runs = study.measured().map(|size| size.runs.len()).max().unwrap_or(0);
    let warm_up = match study.warm_up {
        0 => String::new(),
        n => format!(", {n} before these to warm up"),
    };
    let throughput = match &study.measure {
        Measure::Runs => "throughput is runs per second: every run does the same work".to_owned(),
        Measure::Printed(pattern) => format!("throughput is what the program prints: `{pattern}`"),
        Measure::Points(_) => "throughput is the second field of a row".to_owned(),
    };
    let sizes = match study.sizes_are {
        _ if matches!(study.measure, Measure::Points(_)) => "the size, {n}, is the first field of a row",
        Sizes::Cpus => "the size is the number of CPUs that it may use",
        Sizes::Number => "the size is {n} in its command line, and it may use all CPUs",
        Sizes::Both => "the size is {n} in its command line, and the number of CPUs that it may use",
    };
    vec![
        study.machine.clone(),
        sizes.to_owned(),
        throughput,
        format!("{} of each size{warm_up}", commonhold_report::figures::count(runs, "run")),
    ]
}

/// What could not be measured, including sizes that failed.
fn limits(study: &Study) -> Vec<Limit> {
    let failed = |size: &Size| {
        size.failed.as_ref().map(|why| Limit {
            what: format!("size {}: {why}", size.n),
            remedy: "the other sizes are answered for".to_owned(),
        })
    };
    study.sizes.iter().filter_map(failed).chain(study.limits.iter().cloned()).collect()
}

/// The amount of work that reported times refer to: 1, 1000 or more pieces, so that the times are at least a
/// millisecond. The time of a single piece may be too short to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pieces: f64,
    words: &'static str,
}

impl Work {
    /// Chooses the amount such that the longest time of a piece, `longest_s`, becomes a millisecond or more.
    pub(crate) fn of(longest_s: f64) -> Work {
        let amounts =
            [(1.0, "A piece of work"), (1e3, "A thousand pieces of work"), (1e6, "A million pieces of work")];
        let (pieces, words) = amounts
            .into_iter()
            .find(|(pieces, _)| longest_s * pieces >= 1e-3 || longest_s <= 0.0)
            .unwrap_or((1e9, "A billion pieces of work"));
        Work { pieces, words }
    }

    /// Subject and verb: `A piece of work waits`, `A million pieces of work wait`.
    pub(crate) fn verb(self, verb: &str) -> String {
        let end = if self.pieces > 1.0 { "" } else { "s" };
        format!("{} {verb}{end}", self.words)
    }

    /// Formats the time of a piece, scaled to this amount of work.
    pub(crate) fn seconds(self, of_piece: f64) -> String {
        if of_piece > 0.0 {
            commonhold_report::figures::seconds(of_piece * self.pieces)
        } else {
            "nothing".to_owned()
        }
    }
}

/// A number with three significant digits: `0.0512`, `3.25`, `1240`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        commonhold_report::figures::NOTHING.to_owned()
    } else if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.999_5 || size == 0.0 {
        format!("{value:.2}")
    } else if size >= 0.099_95 {
        format!("{value:.3}")
    } else if size >= 0.009_995 {
        format!("{value:.4}")
    } else if size >= 0.000_1 {
        format!("{value:.5}")
    } else {
        format!("{value:.1e}")
    }
}

/// A size in words: `8 CPUs`, or `{n} = 8`.
pub(crate) fn size(sizes_are: Sizes, n: u32) -> String {
    match sizes_are {
        Sizes::Number => format!("{{n}} = {n}"),
        _ => format!("{n} {}", sizes_are.noun(n)),
    }
}

/// The study and its answers as JSON.
pub fn json(study: &Study) -> String {
    let answered = Answered::of(study);
    document(
        "commonhold.scale",
        Shown {
            command: &study.command,
            machine: &study.machine,
            sizes_are: study.sizes_are,
            throughput: &study.measure,
            warm_up: study.warm_up,
            verdict: verdict::verdict(&answered),
            outside: answered.outside,
            quota: study.quota.as_ref(),
            sizes: study.sizes.iter().map(|size| ShownSize::of(study, size)).collect(),
            scaling: scaling::Shown::of(&answered.scaling),
            growth: answered.growth.as_ref(),
            blame: answered.blame.as_ref(),
            locks: answered.mend.as_ref().map(mend::Shown::of),
            limits: limits(study),
        },
    )
}

#[derive(Serialize)]
struct Shown<'a> {
    command: &'a str,
    machine: &'a str,
    sizes_are: Sizes,
    throughput: &'a Measure,
    warm_up: u32,
    /// The answer in words.
    verdict: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    outside: Option<Outside>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<&'a Quota>,
    sizes: Vec<ShownSize>,
    scaling: scaling::Shown,
    growth: Option<&'a Growth>,
    blame: Option<&'a Blame>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locks: Option<mend::Shown<'a>>,
    limits: Vec<Limit>,
}

#[derive(Serialize)]
struct ShownSize {
    size: u32,
    cpus: String,
    /// Whether a size needs more CPUs than the program may use, so that the law is not fitted to this size.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    beyond: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    runs: Vec<ShownRun>,
}

#[derive(Serialize)]
struct ShownRun {
    wall_ns: u64,
    throughput: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<commonhold_scale::study::Load>,
    #[serde(skip_serializing_if = "Option::is_none")]
    states: Option<ShownTimes>,
}

#[derive(Serialize)]
struct ShownTimes {
    threads: u64,
    looks: u64,
    /// The sum of the threads' lives.
    lived_ns: u64,
    /// By how much the sum of the states exceeds `lived_ns`.
    excess_ns: u64,
    by_state: std::collections::BTreeMap<&'static str, u64>,
    by_name: Vec<ShownNamed>,
}

#[derive(Serialize)]
struct ShownNamed {
    name: String,
    threads: u64,
    by_state: std::collections::BTreeMap<&'static str, u64>,
}

fn by_state(times: &commonhold_scale::states::Times) -> std::collections::BTreeMap<&'static str, u64> {
    let shown = |state: State| (times.of(state) > 0).then(|| (state.name(), times.of(state)));
    State::ALL.into_iter().filter_map(shown).collect()
}

impl ShownSize {
    fn of(study: &Study, size: &Size) -> ShownSize {
        let runs = size.runs.iter().map(|run| ShownRun {
            wall_ns: run.wall_ns,
            throughput: run.throughput,
            load: (run.load.whole_ns > 0).then_some(run.load),
            states: run.watched.as_ref().map(|watched| ShownTimes {
                threads: watched.threads,
                looks: watched.samples,
                // The states' sum, less by how much it exceeds the threads' lives.
                lived_ns: watched.times.sum() - watched.times.excess_ns.min(watched.times.sum()),
                excess_ns: watched.times.excess_ns,
                by_state: by_state(&watched.times),
                by_name: watched
                    .by_name
                    .iter()
                    .map(|named| ShownNamed {
                        name: named.name.clone(),
                        threads: named.threads,
                        by_state: by_state(&named.times),
                    })
                    .collect(),
            }),
        });
        ShownSize {
            size: size.n,
            cpus: size.cpus.to_string(),
            beyond: study.is_beyond(size),
            failed: size.failed.clone(),
            runs: runs.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.000_02, "2.0e-5"),
            (0.051_23, "0.0512"),
            (0.099_99, "0.100"),
            (0.999_9, "1.00"),
            (12.34, "12.3"),
            (99.96, "100"),
            (-0.25, "-0.250"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
