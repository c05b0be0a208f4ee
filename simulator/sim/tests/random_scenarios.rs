//! Random scenarios with all features. Each ends, or is cut off at its horizon; every audit check holds; and
//! the same seed gives the same outcome.
//!
//! `COMMONHOLD_SCENARIOS=20000 cargo test --release -p commonhold-sim --test random_scenarios` tries more of
//! them. `COMMONHOLD_SCENARIO=123` shows and tries that one. `COMMONHOLD_NESTED=123` does the same with a
//! scenario of nested disciplines: each discipline is nested in each other once in 144 of these.
//! `COMMONHOLD_HOTPLUG=123` is one on a machine of uneven nodes, whose CPUs go offline and come online.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used)]

mod generator;
mod scene;

use std::collections::BTreeSet;
use std::env;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use commonhold_contract::Discipline;
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::Scenario;

use generator::Texts;

/// Scenarios that a plain `cargo test` tries.
const SCENARIOS: u64 = 200;
/// The same of nested disciplines; with `COMMONHOLD_SCENARIOS`, a tenth of those.
const NESTED: u64 = 36;
/// The same on uneven machines whose CPUs go offline and come online; with `COMMONHOLD_SCENARIOS`, as many as
/// that.
const HOTPLUG: u64 = 200;
/// If no run has ended for this time, a run hangs: nearly all runs take a few ms, and one of 20,000 took 10
/// s.
const PATIENCE: Duration = Duration::from_secs(300);

fn wish(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs the scenario of a seed twice. The error says what failed; else the result is whether all awaited jobs
/// ended.
fn attempt(texts: fn(u64) -> Texts, seed: u64) -> Result<bool, String> {
    let Texts { contract, machine, workload } = texts(seed);
    let scenario: Scenario = scene::scenario(&contract, &machine, &workload);
    let first = commonhold_sim::run(&scenario, seed).map_err(|error| error.to_string())?;
    if first.broken > 0 {
        return Err(format!("{} checks did not hold: {:#?}", first.broken, first.notes));
    }
    if first.cut_off != (first.ended_ns == scenario.workload.horizon_ns && unfinished(&scenario, &first)) {
        return Err(format!("it ended at {} ns, cut off: {}", first.ended_ns, first.cut_off));
    }
    waits_are_parts(&first)?;
    let again = commonhold_sim::run(&scenario, seed).map_err(|error| error.to_string())?;
    match format!("{first:?}") == format!("{again:?}") {
        true => Ok(!first.cut_off),
        false => Err("the same seed gave two outcomes".to_owned()),
    }
}

/// An error if a unit waited for memory for longer than its jobs were blocked: the waits are part of that
/// time.
fn waits_are_parts(outcome: &Outcome) -> Result<(), String> {
    for unit in &outcome.units {
        let blocked = outcome.jobs.iter().filter(|job| job.unit == unit.name).map(|job| job.spent.blocked_ns);
        let blocked: u64 = blocked.sum();
        if unit.memory_waited_ns > blocked {
            return Err(format!(
                "{} waited {} ns for memory, of {blocked} ns",
                unit.name, unit.memory_waited_ns
            ));
        }
    }
    Ok(())
}

/// Whether a job that is waited for has not ended.
fn unfinished(scenario: &Scenario, outcome: &Outcome) -> bool {
    let waited_for =
        |name: &str| scenario.workload.jobs.iter().any(|job| job.name == name && !job.background);
    let expected: u64 =
        scenario.workload.jobs.iter().filter(|job| !job.background).map(|job| u64::from(job.count)).sum();
    let ended =
        outcome.jobs.iter().filter(|job| waited_for(&job.name) && job.ended_ns.is_some()).count() as u64;
    ended < expected
}

fn attempt_caught(texts: fn(u64) -> Texts, seed: u64) -> Result<bool, String> {
    catch_unwind(AssertUnwindSafe(|| attempt(texts, seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("it panicked: {}", text.unwrap_or_default()))
    })
}

/// Tries scenarios on all CPUs. Returns the number of scenarios whose awaited jobs ended, and the failures.
fn attempt_all(kind: &Kind, seeds: RangeInclusive<u64>) -> (u64, Vec<u64>) {
    let (next, end) = (&AtomicU64::new(*seeds.start()), *seeds.end());
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let Kind { texts, variable } = *kind;
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        for _ in 0..threads {
            let send = send.clone();
            scope.spawn(move || {
                let seeds = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed <= end);
                for seed in std::iter::from_fn(seeds) {
                    let _ = send.send((seed, attempt_caught(texts, seed)));
                }
            });
        }
        collect(variable, &receive, seeds.collect())
    })
}

/// Waits for the results of these scenarios.
fn collect(
    variable: &str,
    receive: &Receiver<(u64, Result<bool, String>)>,
    mut missing: BTreeSet<u64>,
) -> (u64, Vec<u64>) {
    let (mut ended, mut wrong) = (0, Vec::new());
    while let Some(first) = missing.first() {
        let Ok((seed, result)) = receive.recv_timeout(PATIENCE) else {
            // Not `eprintln!`: the test harness captures its output, which is lost at this exit.
            let _ = writeln!(std::io::stderr(), "{variable}={first}: it does not end");
            std::process::exit(1); // a thread that does not come back cannot be joined
        };
        missing.remove(&seed);
        match result {
            Ok(all) => ended += u64::from(all),
            Err(what) => {
                eprintln!("{variable}={seed}: {what}");
                wrong.push(seed);
            }
        }
    }
    (ended, wrong)
}

/// Scenarios of one kind: the function that makes one from a seed, and the environment variable that names a
/// seed to show.
struct Kind {
    texts: fn(u64) -> Texts,
    variable: &'static str,
}

const ANY: Kind = Kind { texts: generator::texts, variable: "COMMONHOLD_SCENARIO" };
const NESTS: Kind = Kind { texts: nested, variable: "COMMONHOLD_NESTED" };

const HOTPLUGS: Kind = Kind { texts: generator::hotplugged, variable: "COMMONHOLD_HOTPLUG" };

/// Every pair of disciplines comes once in 144 seeds, and each is the outer and the inner one once in twelve.
fn nested(seed: u64) -> Texts {
    let all = Discipline::ALL;
    let (count, round) = (all.len() as u64, seed / all.len() as u64);
    let discipline = |number: u64| all[usize::try_from(number % count).unwrap()];
    generator::nested(discipline(seed), discipline(seed + round), seed)
}

/// Shows and tries the one scenario that the environment names, if it names any.
fn try_named(kind: &Kind) -> bool {
    let Some(seed) = wish(kind.variable) else { return false };
    let Texts { contract, machine, workload } = (kind.texts)(seed);
    println!("# contract.toml\n{contract}\n# machine.toml\n{machine}\n# workload.toml\n{workload}");
    println!("{:?}", attempt_caught(kind.texts, seed));
    true
}

/// Tries this number of scenarios of a kind. Returns the number of scenarios whose awaited jobs ended.
fn try_many(kind: &Kind, count: u64) -> u64 {
    let (ended, wrong) = attempt_all(kind, 1..=count);
    assert!(wrong.is_empty(), "replay with {}=SEED: {wrong:?}", kind.variable);
    ended
}

#[test]
fn random_scenarios_are_sound() {
    if try_named(&ANY) {
        return;
    }
    let tried = wish("COMMONHOLD_SCENARIOS").unwrap_or(SCENARIOS);
    let ended = try_many(&ANY, tried);
    // The generator sets horizons at which most have got everything done, and some have not.
    assert!(ended * 2 > tried, "{ended} of {tried} ended");
}

/// Every discipline is nested in every other: no task waits for longer than rescues permit.
#[test]
fn nested_disciplines_are_sound() {
    if !try_named(&NESTS) {
        try_many(&NESTS, wish("COMMONHOLD_SCENARIOS").map_or(NESTED, |count| count / 10));
    }
}

/// CPUs go offline and come online at random, on machines whose nodes differ, may have no CPUs, or no memory.
#[test]
fn scenarios_in_which_cpus_go_and_come_are_sound() {
    if !try_named(&HOTPLUGS) {
        try_many(&HOTPLUGS, wish("COMMONHOLD_SCENARIOS").unwrap_or(HOTPLUG));
    }
}
