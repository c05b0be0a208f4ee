//! The fourth question in words: would mending it help?

use commonhold_report::figures::{self, NOTHING};
use commonhold_report::table::{Paint, Table};
use commonhold_scale::locks::{Counts, Delay, Lock, Locks};
use commonhold_scale::mend::{Effect, Gain, Mend, NoAnswer, Verdict, mend};
use commonhold_scale::study::Study;
use serde::Serialize;

use crate::{Answered, Finding, number, size};

/// The maximum number of locks shown.
const LOCKS_MAX: usize = 6;
/// The maximum number of call sites shown of a lock.
const SITES_MAX: usize = 4;
/// Waits that the meter does not see are reported if they are at least this fraction of all lock waits.
const UNSEEN_MIN: f64 = 0.2;
/// Lock waits below this fraction of the threads' lives are negligible.
const WAITS_MIN: f64 = 0.01;

/// The experiment with a lock, and its result.
pub(crate) struct Experiment<'a> {
    pub(super) locks: &'a Locks,
    pub(super) answer: Result<Mend, NoAnswer>,
}

impl Experiment<'_> {
    pub(super) fn of(study: &Study) -> Option<Experiment<'_>> {
        let locks = study.locks.as_ref()?;
        Some(Experiment { locks, answer: mend(locks, &study.measure) })
    }
}

/// The locks, as lockmeter shows them: utilisation, contention, hold times and wait times.
pub(super) fn table(locks: &Locks) -> Table {
    let heads = ["", "util", "con", "hold", "hold\nmax", "wait", "wait\nmax", "taken", "no wait", "rejected"];
    let mut table = Table::new(&heads);
    for lock in locks.locks.iter().take(LOCKS_MAX) {
        let util = format!("{:.1}%", lock.utilisation * 100.0);
        let only_site = lock.sites.first().filter(|_| lock.sites.len() == 1 && lock.is_variable);
        let place = only_site.map(|site| format!(", taken in {}", site.name)).unwrap_or_default();
        table.line(Paint::Plain, commonhold_report::table::clean(&(title(lock) + &place)));
        table.row(Paint::Plain, cells(util, &lock.counts));
        let sites = if lock.sites.len() == 1 { &[] } else { lock.sites.as_slice() };
        for site in sites.iter().take(SITES_MAX) {
            table.line(Paint::Faint, commonhold_report::table::clean(&format!("  in {}", site.name)));
            table.row(Paint::Faint, cells(NOTHING.to_owned(), &site.counts));
        }
        if let Some(more) = lock.sites.len().checked_sub(SITES_MAX).filter(|n| *n > 0) {
            table.line(Paint::Faint, format!("  and {}", figures::count(more, "more place")));
        }
    }
    if let Some(more) = locks.locks.len().checked_sub(LOCKS_MAX).filter(|n| *n > 0) {
        table.line(Paint::Faint, format!("and {}", figures::count(more, "more lock")));
    }
    table
}

fn title(lock: &Lock) -> String {
    let kind = lock.kind.noun();
    match (lock.is_variable, lock.locks) {
        (true, 1) => format!("{kind} {}", lock.name),
        (true, n) => format!("{kind} {}, in {n} processes", lock.name),
        (false, 1) => format!("{kind} of {}", lock.name),
        (false, n) => format!("{n} {} of {}", plural(kind), lock.name),
    }
}

fn plural(kind: &str) -> String {
    format!("{kind}{}", if kind.ends_with('x') { "es" } else { "s" })
}

/// The name of a lock within a sentence.
fn called(lock: &Lock) -> String {
    match lock.is_variable {
        true => format!("`{}`", lock.name),
        false => format!("the {} of {}", lock.kind.noun(), lock.name),
    }
}

/// The cells of a row of the table.
fn cells(util: String, counts: &Counts) -> Vec<String> {
    // Whether retaking a lock after a wait on a condition variable had to wait is unknown.
    let known = counts.total.saturating_sub(counts.retaken);
    let percent = |n: u64, total: u64| {
        if total == 0 { NOTHING.to_owned() } else { format!("{:.1}%", real(n) / real(total) * 100.0) }
    };
    let mean = |ns: u64, n: u64| if n == 0 { NOTHING.to_owned() } else { seconds(real(ns) / real(n) / 1e9) };
    let longest = |ns: u64| if ns == 0 { NOTHING.to_owned() } else { seconds(real(ns) / 1e9) };
    vec![
        String::new(),
        util,
        percent(counts.waited, known),
        mean(counts.hold_ns, counts.total),
        longest(counts.hold_max_ns),
        mean(counts.wait_ns, counts.waited),
        longest(counts.wait_max_ns),
        counts.total.to_string(),
        percent(known.saturating_sub(counts.waited), known),
        if counts.rejected == 0 { NOTHING.to_owned() } else { counts.rejected.to_string() },
    ]
}

/// `85 ns`, `12.3 us`; from 1 ms on as `figures::seconds`.
fn seconds(s: f64) -> String {
    if s >= 0.001 {
        figures::seconds(s)
    } else if s >= 0.999_5e-6 {
        format!("{} us", number(s * 1e6))
    } else {
        format!("{:.0} ns", s * 1e9)
    }
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
fn real(n: u64) -> f64 {
    n as f64
}

/// The findings on the experiment; none if there was no experiment.
pub(super) fn findings(answered: &Answered) -> Vec<Finding> {
    let Some(experiment) = &answered.mend else { return Vec::new() };
    let locks = experiment.locks;
    let mut findings = Vec::new();
    if let Some(why) = &locks.failed {
        findings.push(("failed", format!("A run with the meter of locks failed: {why}")));
    }
    match (locks.tried(), &experiment.answer) {
        (None, _) if locks.failed.is_some() => {}
        (None, _) => findings.push(("locks", no_locks_seen(locks))),
        (Some(lock), Ok(mend)) => findings.extend(of_result(answered, locks, lock, mend)),
        (Some(lock), Err(why)) => findings.push(("mend", no_answer(lock, *why))),
    }
    if locks.tried().is_some() {
        findings.extend(unseen_waits(locks));
        findings.extend(overhead(locks));
    }
    findings
}

fn no_locks_seen(locks: &Locks) -> String {
    let waited = match real(locks.lock_ns) > real(locks.lives_ns) * WAITS_MIN {
        true => format!(", although threads waited {} for locks", seconds(real(locks.lock_ns) / 1e9)),
        false => String::new(),
    };
    format!(
        "The program took no lock that the meter sees{waited}. The meter sees those of the C library (pthread_mutex, \
         pthread_rwlock, pthread_spin) in programs that are linked dynamically. It does not see those that a program makes \
         itself, as Go's and those of Rust's standard library, nor the kernel's."
    )
}

fn no_answer(lock: &Lock, why: NoAnswer) -> String {
    match why {
        NoAnswer::NotTried | NoAnswer::TooFew => format!(
            "There is no result for {}: it was taken too rarely. Give the program more work, so that a run takes a second, \
             or measure more runs with --repeat.",
            called(lock)
        ),
        NoAnswer::Several => format!(
            "{} locks are taken at the same place, {}, and none of them stands out. What mending them would gain cannot be \
             told from one.",
            lock.locks, lock.name
        ),
    }
}

/// The findings on the gain of mending a lock.
fn of_result(answered: &Answered, locks: &Locks, lock: &Lock, mend: &Mend) -> Vec<Finding> {
    let at = size(answered.study.sizes_are, locks.size);
    let name = called(lock);
    let place = lock.sites.first().filter(|_| lock.is_variable);
    let place = place.map(|site| format!(", taken in {},", site.name)).unwrap_or_default();
    let verdict = match mend.verdict {
        Verdict::Gain => format!(
            "If what is done under {name}{place} were done without it, {at} would do {} as much.",
            times(mend.apart)
        ),
        Verdict::None => format!(
            "Mending {name}{place} brings nothing that is worth the work: if what is done under it were done without it, {at} \
             would do {} as much.",
            times(mend.apart)
        ),
        Verdict::Unclear => format!(
            "The gain is unknown: if what is done under {name}{place} were done without it, {at} would do {} as much. Measure \
             more runs with --repeat, on a machine that does nothing else.",
            times(mend.apart)
        ),
    };
    let mut findings = vec![("mend", verdict)];
    if mend.verdict == Verdict::Gain {
        findings.push(("half", format!("If half of that were done without it: {}.", times(mend.half))));
        findings.push(("then", next_bottleneck(mend)));
    }
    findings.push(("tried", effects_of_delays(mend)));
    if mend.others > 0.2 {
        let threads = number(mend.others);
        findings.push(("others", format!(
            "Threads waited longer for CPUs than they would for those of this program alone: it is as if {threads} threads of \
             other programs computed meanwhile. The gain is for that."
        )));
    }
    if mend.misses > 0.1 {
        let by = mend.misses * 100.0;
        findings.push((
            "misfit",
            format!(
                "The model misses what a delay did by {by:.0} %. The program does something else than to wait for this lock, \
                 its CPUs and time; the band is wider for it."
            ),
        ));
    }
    if let Some(site) = lock.sites.first().filter(|site| !site.held_by.is_empty()) {
        let all: u64 = site.held_by.iter().map(|(_, ns)| ns).sum();
        let holders = site.held_by.iter().map(|(holder, ns)| {
            format!("{:.0} % of the time in {holder}", real(*ns) / real(all.max(1)) * 100.0)
        });
        findings.push((
            "held",
            format!(
                "While threads waited in {}, it was held: {}.",
                site.name,
                holders.collect::<Vec<_>>().join(", ")
            ),
        ));
    }
    findings
}

/// `2.3 times (1.9 to 2.6)`.
fn times(gain: Gain) -> String {
    format!("{} times ({} to {})", number(gain.times), number(gain.low), number(gain.high))
}

/// The sentence on what limits throughput after the lock was mended.
fn next_bottleneck(mend: &Mend) -> String {
    if mend.cpus_allow < mend.apart.times * 1.15 {
        return "Then the CPUs are what it waits for.".to_owned();
    }
    if mend.cpus_allow > 1e3 {
        return "The CPUs allow more than that by far.".to_owned();
    }
    format!("The CPUs would allow {} times.", number(mend.cpus_allow))
}

/// The sentence on the measured effects of the delays.
fn effects_of_delays(mend: &Mend) -> String {
    let words = |effect: &Effect| {
        let place = if effect.delay == Delay::Inside { "under the lock" } else { "right after it" };
        format!(
            "{} more {place} left {:.1} % of the throughput",
            seconds(effect.delay_s),
            effect.times * 100.0
        )
    };
    let effects: Vec<String> = mend.effects.iter().map(words).collect();
    format!("{}.", effects.join("; "))
}

/// The sentence on waits that the meter does not see, if there are many.
fn unseen_waits(locks: &Locks) -> Option<Finding> {
    let seen: u64 = locks.locks.iter().map(|lock| lock.counts.wait_ns).sum();
    let unseen = locks.lock_ns.saturating_sub(seen);
    let is_significant =
        real(unseen) > real(locks.lock_ns) * UNSEEN_MIN && real(unseen) > real(locks.lives_ns) * WAITS_MIN;
    is_significant.then(|| {
        (
            "unseen",
            format!(
                "Threads waited {} for locks, conditions and barriers; of that, the meter saw {} for locks.",
                seconds(real(locks.lock_ns) / 1e9),
                seconds(real(seen) / 1e9)
            ),
        )
    })
}

/// The sentence on the meter's overhead.
fn overhead(locks: &Locks) -> Option<Finding> {
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    let (plain, metered) = (median(&locks.plain)?, median(&locks.metered)?);
    let less = (1.0 - metered / plain) * 100.0;
    let overflow = match locks.overflowed {
        0 => String::new(),
        n => format!(" {n} times it had no room for a lock, and did not count it."),
    };
    Some(("meter", format!("The meter itself cost {less:.1} % of the throughput.{overflow}")))
}

/// The experiment and its result as JSON.
#[derive(Serialize)]
pub(super) struct Shown<'a> {
    size: u32,
    locks: &'a [Lock],
    tried: Option<u64>,
    mend: Option<&'a Mend>,
    untold: Option<NoAnswer>,
    trials: &'a [commonhold_scale::locks::Trial],
    throughput_plain: &'a [f64],
    throughput_metered: &'a [f64],
    lives_ns: u64,
    lock_ns: u64,
    overflowed: u64,
    failed: Option<&'a str>,
}

impl Shown<'_> {
    pub(super) fn of<'a>(experiment: &'a Experiment<'a>) -> Shown<'a> {
        let locks = experiment.locks;
        Shown {
            size: locks.size,
            locks: &locks.locks,
            tried: locks.tried,
            mend: experiment.answer.as_ref().ok(),
            untold: experiment.answer.as_ref().err().copied(),
            trials: &locks.trials,
            throughput_plain: &locks.plain,
            throughput_metered: &locks.metered,
            lives_ns: locks.lives_ns,
            lock_ns: locks.lock_ns,
            overflowed: locks.overflowed,
            failed: locks.failed.as_deref(),
        }
    }
}
