//! The same scenario and seed give the same outcome on any thread, even while other threads simulate. That
//! needs a test, since the scheduler of the fast path is C code with a pointer per thread to the machine for
//! which it is called.
#![allow(clippy::unwrap_used)]

mod generator;
mod scene;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use commonhold_sim::scenario::Scenario;

/// The outcomes of these seeds' scenarios, as text.
fn outcomes(scenarios: &[(u64, Scenario)]) -> Vec<String> {
    scenarios.iter().map(|(seed, scenario)| format!("{:?}", commonhold_sim::run(scenario, *seed))).collect()
}

#[test]
fn one_thread_and_eight_give_the_same() {
    let scenarios: Vec<(u64, Scenario)> = (1..=24)
        .map(|seed| {
            let texts = generator::texts(seed);
            (seed, scene::scenario(&texts.contract, &texts.machine, &texts.workload))
        })
        .collect();
    let alone = outcomes(&scenarios);
    let beside: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = scenarios.chunks(3).map(|part| scope.spawn(|| outcomes(part))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, beside);
    assert!(alone.iter().all(|outcome| outcome.starts_with("Ok")));
}

#[test]
fn another_seed_gives_another_outcome() {
    let texts = generator::texts(2);
    let scenario = scene::scenario(&texts.contract, &texts.machine, &texts.workload);
    let ends = |seed| commonhold_sim::run(&scenario, seed).unwrap().jobs;
    assert_eq!(ends(1), ends(1));
    assert_ne!(ends(1), ends(2));
}

#[test]
fn who_looks_on_sees_the_time_and_changes_nothing() {
    let texts = generator::texts(2);
    let scenario = scene::scenario(&texts.contract, &texts.machine, &texts.workload);
    let clock = AtomicU64::new(0);
    let watched = commonhold_sim::run_watched(&scenario, 1, &clock).unwrap();
    assert_eq!(watched, commonhold_sim::run(&scenario, 1).unwrap());
    let behind = watched.ended_ns - clock.load(Ordering::Relaxed);
    assert!(watched.ended_ns > 0 && behind <= 250 * scene::MS, "{behind} ns of {}", watched.ended_ns);
}
