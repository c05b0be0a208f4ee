//! The second question in words: where does the time go?

use commonhold_report::figures::{NOTHING, seconds};
use commonhold_report::table::{Paint, Table};
use commonhold_scale::growth::{Cause, Growth};
use commonhold_scale::states::{State, Times};
use commonhold_scale::study::{Size, Sizes, Study};

use crate::{Answered, Finding, Work, size};

/// The maximum number of causes shown.
const CAUSES_MAX: usize = 5;
/// Causes below this fraction of the growth are not shown.
const CAUSE_MIN: f64 = 0.02;

/// The maximum number of thread names shown.
const NAMES_MAX: usize = 6;

/// The sentence before the table.
pub(super) fn lead(_: &Study) -> String {
    "Lives of all threads of a run, and what part of them was in which state:".to_owned()
}

/// The states that occur at any size, in the order of [`State::ALL`].
pub(super) fn states(study: &Study) -> Vec<State> {
    let has = |state: &State| study.measured().any(|size| share(size.times().0, *state) >= 0.000_5);
    State::ALL.into_iter().filter(has).collect()
}

/// The fraction of all time that was spent in a state.
pub(super) fn share(times: Times, state: State) -> f64 {
    if times.sum() == 0 { 0.0 } else { seconds_of(times.of(state)) / seconds_of(times.sum()) }
}

/// Nanoseconds as seconds. Exact below a hundred days.
#[allow(clippy::cast_precision_loss)]
pub(super) fn seconds_of(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A row for each size, and below these a row for each thread name of the largest size.
pub(super) fn table(answered: &Answered) -> Table {
    let study = answered.study;
    let states = states(study);
    let mut heads = vec!["size", "threads", "lives"];
    heads.extend(states.iter().map(|state| state.name()));
    let mut table = Table::new(&heads);
    for size in study.measured() {
        let (times, runs) = size.times();
        let watched = size.runs.iter().filter_map(|run| run.watched.as_ref());
        let threads = watched.map(|watched| watched.threads).max().unwrap_or(0);
        if let Some(mean_ns) = times.sum().checked_div(runs) {
            let lives = seconds(seconds_of(mean_ns));
            table.row(Paint::Plain, cells(size.n.to_string(), threads, lives, &states, times));
        }
    }
    if let Some(largest) = study.measured().rfind(|size| size.times().1 > 0) {
        add_names(&mut table, largest, study.sizes_are, &states);
    }
    table
}

fn cells(name: String, threads: u64, lives: String, states: &[State], times: Times) -> Vec<String> {
    let mut cells = vec![name, threads.to_string(), lives];
    cells.extend(states.iter().map(|state| percent(share(times, *state))));
    cells
}

/// A fraction as `12.3%`; `-` if it is negligible.
fn percent(part: f64) -> String {
    if part < 0.000_5 { NOTHING.to_owned() } else { format!("{:.1}%", part * 100.0) }
}

fn add_names(table: &mut Table, largest: &Size, sizes_are: Sizes, states: &[State]) {
    let Some(watched) = largest.runs.iter().rev().find_map(|run| run.watched.as_ref()) else { return };
    if watched.by_name.len() < 2 {
        return;
    }
    table.line(
        Paint::Faint,
        format!("the last run at {}, by the threads' names:", size(sizes_are, largest.n)),
    );
    for named in watched.by_name.iter().take(NAMES_MAX) {
        let lives = seconds(seconds_of(named.times.sum()));
        let name = commonhold_report::table::clean(&named.name);
        table.row(Paint::Faint, cells(format!("  {name}"), named.threads, lives, states, named.times));
    }
    if let Some(more) = watched.by_name.len().checked_sub(NAMES_MAX).filter(|n| *n > 0) {
        table.line(Paint::Faint, format!("  and {}", commonhold_report::figures::count(more, "more name")));
    }
}

/// The findings on where the time goes.
pub(super) fn findings(answered: &Answered) -> Vec<Finding> {
    if !answered.is_watched() {
        return vec![("states", "Threads were not sampled.".to_owned())];
    }
    let mut findings = Vec::new();
    match &answered.growth {
        None => findings.push(("growth", "With one size, nothing grew.".to_owned())),
        Some(growth) => findings.extend(of_growth(answered, growth)),
    }
    findings.push(("sum", sum(answered.study)));
    findings
}

/// The findings on the growth of the cost of a piece of work, by cause.
fn of_growth(answered: &Answered, growth: &Growth) -> Vec<Finding> {
    let kind = answered.study.sizes_are;
    let (from, to) = (size(kind, growth.from), size(kind, growth.to));
    let work = Work::of(growth.after_s);
    let unit = if kind == Sizes::Number { "thread" } else { "CPU" };
    let costs = format!(
        "{} {} of {unit} time at {to}, idle time included, and {} at {from}.",
        work.verb("cost"),
        work.seconds(growth.after_s),
        work.seconds(growth.before_s)
    );
    if !is_worth_a_name(growth) {
        return vec![("growth", format!("{costs} Nothing grew that is worth a name."))];
    }
    // Relative to the sum of what grew, without what shrank, so that no part exceeds the whole.
    let growing_s: f64 = growth.parts.iter().map(|part| part.more_s.max(0.0)).sum();
    let mut findings = vec![("growth", format!("{costs} Of what it costs more:"))];
    let causes = growth.parts.iter().filter(|part| part.more_s >= growing_s * CAUSE_MIN).take(CAUSES_MAX);
    findings.extend(
        causes.map(|part| ("", format!("{:.0} %: {}", part.more_s / growing_s * 100.0, words(part.cause)))),
    );
    let shrinking_s = growing_s - growth.more_s();
    if shrinking_s >= growing_s * CAUSE_MIN {
        findings.push(("", format!("Against that, {} of other time is saved.", work.seconds(shrinking_s))));
    }
    findings
}

/// Whether the cost of a piece of work grew significantly.
pub(super) fn is_worth_a_name(growth: &Growth) -> bool {
    growth.more_s() > growth.before_s * CAUSE_MIN
}

/// What a cause means, and what to look for.
pub(super) fn words(cause: Cause) -> &'static str {
    match cause {
        Cause::Used(State::User) => {
            "the same work takes more CPU time in the program itself. Caches and memory are shared, or it spins for a lock"
        }
        Cause::Used(State::Memory) => "CPUs wait longer for memory",
        Cause::Used(_) => {
            "the same work takes more CPU time in the kernel: locks that spin there, or page faults"
        }
        Cause::Idle(State::Lock) => "threads wait for a lock, a condition variable or a barrier",
        Cause::Idle(State::Io) => "threads wait for a disk",
        Cause::Idle(State::Fault) => "threads wait for a page that they touched",
        Cause::Idle(State::Queue) => {
            "threads wait for a CPU: there are more threads than CPUs, or others use these"
        }
        Cause::Idle(State::Stopped) => "threads are stopped",
        Cause::Idle(State::Unseen) => "threads were not sampled then",
        Cause::Idle(_) => "threads sleep: they wait for time, a pipe, the network, or work to do",
        Cause::NoThread => {
            "no thread is there to use a CPU: the program has too few for that size, or does a part with fewer"
        }
    }
}

/// The sentence on how exactly the states add up to the threads' lives.
fn sum(study: &Study) -> String {
    let (mut all, mut samples) = (Times::default(), 0);
    for run in study.measured().flat_map(|size| &size.runs) {
        if let Some(watched) = &run.watched {
            all.add_all(&watched.times);
            samples += watched.samples;
        }
    }
    let lived = all.sum().saturating_sub(all.excess_ns).max(1);
    let deviation = seconds_of(all.excess_ns) / seconds_of(lived) * 100.0;
    format!(
        "The states add up to the threads' lives within {deviation:.2} %. What they waited for is from {samples} samples."
    )
}
