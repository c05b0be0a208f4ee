//! The second question in words: where does the time go?

use commonhold_report::figures::{NOTHING, seconds};
use commonhold_report::table::{Paint, Table};
use commonhold_scale::growth::{Cause, Growth};
use commonhold_scale::states::{State, Times};
use commonhold_scale::study::{Size, Sizes, Study};

use crate::{Answered, Finding, Work, size};

/// Causes shown at most, and the least part of the growth.
const CAUSES_MAX: usize = 5;
const CAUSE_MIN: f64 = 0.02;

/// Thread names shown at most.
const NAMES_MAX: usize = 6;

/// An explanation of the table.
pub(super) fn lead(_: &Study) -> String {
    "Lives of all threads of a run, and what part of them was in which state:".to_owned()
}

/// The states that occur at any size, in order.
pub(super) fn states(study: &Study) -> Vec<State> {
    let has = |state: &State| study.measured().any(|size| share(size.times().0, *state) >= 0.000_5);
    State::ALL.into_iter().filter(has).collect()
}

/// A state's part of all time.
pub(super) fn share(times: Times, state: State) -> f64 {
    if times.sum() == 0 { 0.0 } else { seconds_of(times.of(state)) / seconds_of(times.sum()) }
}

/// Exact below a hundred days.
#[allow(clippy::cast_precision_loss)]
pub(super) fn seconds_of(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Every size, and below it the names of the largest size's threads.
pub(super) fn table(answered: &Answered) -> Table {
    let study = answered.study;
    let states = states(study);
    let mut heads = vec!["size", "threads", "lives"];
    heads.extend(states.iter().map(|state| state.name()));
    let mut table = Table::new(&heads);
    for one in study.measured() {
        let (times, runs) = one.times();
        let threads =
            one.runs.iter().filter_map(|run| run.watched.as_ref()).map(|w| w.threads).max().unwrap_or(0);
        if let Some(mean_ns) = times.sum().checked_div(runs) {
            let lives = seconds(seconds_of(mean_ns));
            table.row(Paint::Plain, cells(one.n.to_string(), threads, lives, &states, times));
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

/// `12.3%`; `-` if the whole is 0.
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

/// The sentences.
pub(super) fn findings(answered: &Answered) -> Vec<Finding> {
    if !answered.is_watched() {
        return vec![("states", "Threads were not sampled.".to_owned())];
    }
    let mut findings = Vec::new();
    match &answered.growth {
        None => findings.push(("growth", "With one size, nothing grew.".to_owned())),
        Some(growth) => findings.extend(said_of_growth(answered, growth)),
    }
    findings.push(("sum", sum(answered.study)));
    findings
}

fn said_of_growth(answered: &Answered, growth: &Growth) -> Vec<Finding> {
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
    let grew: f64 = growth.parts.iter().map(|part| part.more_s.max(0.0)).sum();
    let mut findings = vec![("growth", format!("{costs} Of what it costs more:"))];
    let causes = growth.parts.iter().filter(|part| part.more_s >= grew * CAUSE_MIN).take(CAUSES_MAX);
    findings.extend(
        causes.map(|part| ("", format!("{:.0} %: {}", part.more_s / grew * 100.0, words(part.cause)))),
    );
    let sank = grew - growth.more_s();
    if sank >= grew * CAUSE_MIN {
        findings.push(("", format!("Against that, {} of other time is saved.", work.seconds(sank))));
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

/// Whether the states add up.
fn sum(study: &Study) -> String {
    let (mut all, mut samples) = (Times::default(), 0);
    for run in study.measured().flat_map(|size| &size.runs) {
        if let Some(watched) = &run.watched {
            all.add_all(&watched.times);
            samples += watched.samples;
        }
    }
    let lived = all.sum().saturating_sub(all.excess_ns).max(1);
    let apart = seconds_of(all.excess_ns) / seconds_of(lived) * 100.0;
    format!(
        "The states add up to the threads' lives within {apart:.2} %. What they waited for is from {samples} samples."
    )
}
