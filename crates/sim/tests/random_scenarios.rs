//! Random scenarios, with everything that a scenario can say. Each ends or is cut off at its horizon, everything that
//! must hold in every run holds, and the same seed gives the same outcome.
//!
//! `COMMONHOLD_SCENARIOS=20000 cargo test --release -p commonhold-sim --test random_scenarios` tries more of them.
//! `COMMONHOLD_SCENARIO=123` shows and tries that one.
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

use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::Scenario;

use generator::Texts;

/// Scenarios that a plain `cargo test` tries.
const SCENARIOS: u64 = 200;
/// If no run has ended for so long, on any machine, one does not get on: nearly all take a few ms, one of 20,000 took 10 s.
const PATIENCE: Duration = Duration::from_secs(300);

fn wish(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs one twice. What went wrong, if anything; else whether everything got done.
fn attempt(seed: u64) -> Result<bool, String> {
    let Texts { contract, machine, workload } = generator::texts(seed);
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

/// Waits for memory are waits: those of a unit are a part of the time for which its jobs were blocked.
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

fn attempt_caught(seed: u64) -> Result<bool, String> {
    catch_unwind(AssertUnwindSafe(|| attempt(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("it panicked: {}", text.unwrap_or_default()))
    })
}

/// Tries scenarios on all CPUs. How many got everything done, and which went wrong.
fn attempt_all(seeds: RangeInclusive<u64>) -> (u64, Vec<u64>) {
    let (next, end) = (&AtomicU64::new(*seeds.start()), *seeds.end());
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        for _ in 0..threads {
            let send = send.clone();
            scope.spawn(move || {
                let seeds = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed <= end);
                for seed in std::iter::from_fn(seeds) {
                    let _ = send.send((seed, attempt_caught(seed)));
                }
            });
        }
        collect(&receive, seeds.collect())
    })
}

/// Waits for what became of these scenarios.
fn collect(receive: &Receiver<(u64, Result<bool, String>)>, mut missing: BTreeSet<u64>) -> (u64, Vec<u64>) {
    let (mut ended, mut wrong) = (0, Vec::new());
    while let Some(first) = missing.first() {
        let Ok((seed, result)) = receive.recv_timeout(PATIENCE) else {
            // Not eprintln: what that prints is lost at this exit.
            let _ = writeln!(std::io::stderr(), "COMMONHOLD_SCENARIO={first}: it does not end");
            std::process::exit(1); // a thread that does not come back cannot be joined
        };
        missing.remove(&seed);
        match result {
            Ok(all) => ended += u64::from(all),
            Err(what) => {
                eprintln!("COMMONHOLD_SCENARIO={seed}: {what}");
                wrong.push(seed);
            }
        }
    }
    (ended, wrong)
}

#[test]
fn random_scenarios_are_sound() {
    if let Some(seed) = wish("COMMONHOLD_SCENARIO") {
        let Texts { contract, machine, workload } = generator::texts(seed);
        println!("# contract.toml\n{contract}\n# machine.toml\n{machine}\n# workload.toml\n{workload}");
        println!("{:?}", attempt_caught(seed));
        return;
    }
    let tried = wish("COMMONHOLD_SCENARIOS").unwrap_or(SCENARIOS);
    let (ended, wrong) = attempt_all(1..=tried);
    assert!(wrong.is_empty(), "replay with COMMONHOLD_SCENARIO=SEED: {wrong:?}");
    // The generator sets horizons at which most have got everything done, and some have not.
    assert!(ended * 2 > tried, "{ended} of {tried} ended");
}
