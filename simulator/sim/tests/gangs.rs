//! Gangs on simulated machines: under Linux 2.4 with the manager of seed 003, and under the project's
//! scheduler.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "seconds of a test")]

mod scene;

use std::fmt::Write;

use commonhold_policy::plan::SharedRate;
use commonhold_sim::outcome::{JobOutcome, Outcome};

const LINUX: &str = "version = 1\nshape = \"cpus:4\"\n[kernel]\nscheduler = \"linux-2.4\"\ntick = \"10ms\"\nslice = \"60ms\"\n\
                     [bus]\ntransactions = 30000\n";
const OURS: &str = "version = 1\nshape = \"cpus:4\"\n[bus]\ntransactions = 30000\n";

fn contract(scheme: &str, gangs: &str) -> String {
    format!(
        "version = 1\n[machine]\nscheme = \"{scheme}\"\ngangs = \"{gangs}\"\n[unit.jobs]\nmembers = []\njob = \"tree\"\n"
    )
}

fn run(contract: &str, machine: &str, workload: &str) -> Outcome {
    let mut scenario = scene::scenario(contract, machine, workload);
    scenario.workload.trace_ns = Some(50_000_000);
    scene::run(&scenario)
}

fn seconds(outcome: &Outcome, name: &str) -> Vec<f64> {
    let named = outcome.jobs.iter().filter(|job| job.name == name);
    named.map(|job: &JobOutcome| job.response_ns().unwrap() as f64 / 1e9).collect()
}

/// Programs of 4 s each whose threads meet at barriers: name, copies, threads and bus transactions.
fn workload(programs: &[(&str, u32, u32, f64)]) -> String {
    let mut text = "version = 1\nhorizon = \"2min\"\n".to_owned();
    for (name, copies, threads, bus) in programs {
        let _ = write!(
            text,
            "[program.{name}]\ndo = [{{ run = \"{name}-thread\", times = {threads}, at_once = {threads} }}]\n\
             [program.{name}-thread]\n\
             do = [{{ repeat = 200, do = [{{ cpu = \"20ms\", bus = {bus} }}, {{ barrier = {threads} }}] }}]\n\
             [job.{name}]\nunit = \"jobs\"\nprogram = \"{name}\"\ncount = {copies}\n"
        );
    }
    text
}

/// The fraction of samples in which every job that has a CPU has one for each of its threads.
fn whole_gangs(outcome: &Outcome, threads: usize) -> f64 {
    let moments = &outcome.occupancy.as_ref().unwrap().moments;
    let whole = |moment: &&Vec<Option<usize>>| {
        let there: Vec<usize> = moment.iter().flatten().copied().collect();
        there.iter().all(|job| there.iter().filter(|other| *other == job).count() == threads)
    };
    moments.iter().filter(whole).count() as f64 / moments.len() as f64
}

#[test]
fn all_threads_of_a_job_run_or_none() {
    for (machine, scheme) in [(LINUX, "smp"), (OURS, "smp"), (OURS, "isolate")] {
        for gangs in ["latest-quantum", "quanta-window", "demand"] {
            let outcome = run(&contract(scheme, gangs), machine, &workload(&[("a", 4, 2, 1.0)]));
            let times = seconds(&outcome, "a");
            assert!(times.iter().all(|time| (4.0..9.0).contains(time)), "{scheme} {gangs}: {times:?}");
            let whole = whole_gangs(&outcome, 2);
            assert!(whole > 0.95, "{scheme} {gangs}: whole in {whole} of the moments");
        }
    }
}

/// Without gangs, Linux 2.4 runs the threads of a program at different times, so that they wait for each
/// other at barriers.
#[test]
fn without_gangs_they_are_torn_apart() {
    let outcome = run(&contract("smp", "off"), LINUX, &workload(&[("a", 4, 2, 1.0)]));
    assert!(whole_gangs(&outcome, 2) < 0.9, "{}", whole_gangs(&outcome, 2));
}

/// Four threads that each want two fifths of the bus start first; four other threads transfer nothing. If the
/// first four share a full bus, each transfers a quarter, which seems to fit perfectly. So by transfers,
/// these four run together forever. By demand, two of each kind run together.
#[test]
fn demand_finds_what_a_full_bus_hides() {
    let seconds = |gangs: &str| {
        let programs = [("greedy", 4, 1, 12.0), ("modest", 4, 1, 0.0)];
        let outcome = run(&contract("smp", gangs), LINUX, &workload(&programs));
        outcome.ended_ns as f64 / 1e9
    };
    let (torn, latest, demand) = (seconds("off"), seconds("latest-quantum"), seconds("demand"));
    assert!(demand < latest && demand < torn, "off {torn}, latest quantum {latest}, demand {demand}");
}

/// A job's transfers are counted up to its end.
#[test]
fn transactions_are_counted() {
    let outcome = run(&contract("smp", "demand"), LINUX, &workload(&[("a", 1, 2, 3.5)]));
    // Two threads of 4 s each, with 3.5 transactions per microsecond.
    let whole = outcome.jobs[0].spent.transferred / 1_000_000;
    assert!(whole.abs_diff(28_000_000) < 28_000, "{whole}");
}

/// Units' entitlements take precedence over gangs: a unit with three quarters of the machine has three
/// quarters of the CPU time.
#[test]
fn gangs_stay_within_their_units_parts() {
    let contract = "version = 1\n[machine]\ngangs = \"demand\"\ncpu = \"proportional\"\n\
                    [unit.a]\ntickets = 300\nmembers = []\njob = \"tree\"\n[unit.b]\ntickets = 100\nmembers = []\n\
                        job = \"tree\"\n";
    let mut text = "version = 1\nhorizon = \"20s\"\n".to_owned();
    for unit in ["a", "b"] {
        let _ = write!(
            text,
            "[program.{unit}]\ndo = [{{ run = \"{unit}-thread\", times = 2, at_once = 2 }}]\n[program.{unit}-thread]\n\
             do = [{{ repeat = \"forever\", do = [{{ cpu = \"20ms\", bus = 4 }}, {{ barrier = 2 }}] }}]\n\
             [job.{unit}]\nunit = \"{unit}\"\nprogram = \"{unit}\"\ncount = 4\nbackground = true\n"
        );
    }
    let outcome = run(contract, OURS, &text);
    let used = |name: &str| {
        outcome.jobs.iter().filter(|job| job.unit == name).map(|job| job.spent.on_cpus_ns()).sum::<u64>()
            as f64
    };
    let part = used("a") / (used("a") + used("b"));
    assert!((0.70..0.80).contains(&part), "{part}");
}

/// The time of the solver of `scenarios/bus-shares` in seconds, and the mean transfers of the other programs
/// in GB/s.
fn bus_shares(change: impl Fn(&mut String, &mut String, &mut String)) -> (f64, f64) {
    let mut contract = include_str!("../../../scenarios/bus-shares/contract.toml").to_owned();
    let mut machine = include_str!("../../../scenarios/bus-shares/machine.toml").to_owned();
    let mut workload = include_str!("../../../scenarios/bus-shares/workload.toml").to_owned();
    change(&mut contract, &mut machine, &mut workload);
    let outcome = scene::outcome(&contract, &machine, &workload);
    let streams = outcome.jobs.iter().filter(|job| job.name == "stream").map(|job| job.spent.transferred);
    let gigabytes = streams.sum::<u64>() as f64 * 64.0 / 1e6 / 1e9;
    let took = scene::response(&outcome, "solver") as f64 / 1e9;
    (took, gigabytes / (outcome.ended_ns as f64 / 1e9))
}

/// A unit that is entitled to half of the bus, beside programs that saturate the bus, is within a tenth as
/// fast as on a machine of half the size.
#[test]
fn a_unit_has_its_part_of_the_bus() {
    let (alone, _) = bus_shares(|_, machine, workload| {
        *machine = machine.replace("cpus:8", "cpus:4").replace("312500", "156250");
        // No stream runs, so that no other program competes for the bus.
        workload.truncate(workload.find("[job.stream]").unwrap());
        *workload = workload.replace("280", "140");
        // Per transaction, a thread computes for 9.6 ns, and waits 3.2 ns on the whole bus, or 6.4 ns on half
        // of the bus.
        *workload = workload.replace(
            "cpu = \"20ms\", spread = \"10%\", bus = 78",
            "cpu = \"25ms\", spread = \"10%\", bus = 62.4",
        );
    });
    let (held, streams) = bus_shares(|_, _, _| {});
    let (unheld, _) = bus_shares(|contract, _, _| *contract = contract.replace("\"demand\"", "\"off\""));
    assert!(unheld > alone * 1.25, "alone {alone} s, unheld {unheld} s");
    assert!(held < alone * 1.10, "alone {alone} s, held {held} s");
    assert!(streams > 6.0, "what the solver leaves is used: {streams} GB/s");
}

#[test]
fn a_limit_of_the_bus_is_held() {
    let (_, streams) = bus_shares(|contract, _, _| contract.push_str("limit = { bus = \"4GB/s\" }\n"));
    assert!((3.5..4.3).contains(&streams), "{streams} GB/s");
}

/// Two gangs of four threads take turns of a quantum. If the policy reads counts that are half a quantum old,
/// it misses half of what a gang transferred in its quantum.
#[test]
fn old_counters_miss_the_end_of_a_quantum() {
    let rate = |age: &str| {
        let machine = LINUX.replace("slice = ", &format!("counter_age = \"{age}\"\nslice = "));
        let work = workload(&[("a", 2, 4, 1.0)]);
        let outcome = run(&contract("smp", "latest-quantum"), &machine, &work.replace("2min", "3s"));
        most_transferred(&outcome)
    };
    let (at_once, late) = (rate("0s"), rate("100ms"));
    assert!((0.9..1.05).contains(&at_once), "{at_once}");
    assert!((0.4..0.6).contains(&(late / at_once)), "{late} of {at_once}");
}

/// The estimated rate of each of a program's two threads, in transactions per microsecond, at the first
/// choice after this time. The program changes its rate after a second of work. It runs in every quantum,
/// beside a program that transfers nothing.
fn taken_at(gangs: &str, first: f64, then: f64, at: &str) -> f64 {
    let text = format!(
        "version = 1\nhorizon = \"{at}\"\n[program.p]\ndo = [{{ run = \"thread\", times = 2, at_once = 2 }}]\n[program.thread]\n\
         do = [{{ repeat = 100, do = [{{ cpu = \"10ms\", bus = {first} }}] }}, {{ repeat = \"forever\", do = [{{ cpu = \
         \"10ms\", bus = {then} }}] }}]\n\
         [program.still]\ndo = [{{ repeat = \"forever\", do = [{{ cpu = \"10ms\" }}] }}]\n\
         [job.p]\nunit = \"jobs\"\nprogram = \"p\"\nbackground = true\n[job.still]\nunit = \"jobs\"\nprogram = \"still\"\n\
             background = true\n"
    );
    most_transferred(&run(&contract("smp", gangs), LINUX, &text))
}

/// The largest estimated rate of a gang's thread, in transactions per microsecond.
fn most_transferred(outcome: &Outcome) -> f64 {
    let gangs = outcome.ledger.jobs.iter().filter_map(|job| job.gang.as_ref());
    let most = gangs.filter_map(|gang| match gang.rate {
        Some(SharedRate::BytesPerS(rate)) => Some(rate),
        _ => None,
    });
    let most = most.max().unwrap();
    // A transaction has 64 bytes.
    most as f64 / 64e6
}

/// A program changes its rate in the quantum from 1.0 s to 1.2 s. By 1.6 s it has run for two whole quanta at
/// the new rate, so the estimate by demand has the new rate. A window of five quanta still contains the old
/// rate.
#[test]
fn a_new_phase_is_known_within_two_quanta() {
    for (first, then) in [(1.0, 6.0), (6.0, 1.0)] {
        for gangs in ["latest-quantum", "demand"] {
            let (before, after) =
                (taken_at(gangs, first, then, "950ms"), taken_at(gangs, first, then, "1650ms"));
            let near = |is: f64, to: f64| (is / to - 1.0).abs() < 0.1;
            assert!(
                near(before, first) && near(after, then),
                "{gangs}, {first} to {then}: {before}, {after}"
            );
        }
        let window = taken_at("quanta-window", first, then, "1650ms");
        assert!((window / then - 1.0).abs() > 0.2, "quanta-window, {first} to {then}: {window}");
    }
}

/// Seconds until all programs of a scenario have ended: with gangs chosen by the shared resource, with gangs
/// in round robin, and without gangs.
fn finished([contract, machine, workload]: [&str; 3]) -> [f64; 3] {
    let line = contract.lines().find(|line| line.starts_with("gangs-share")).unwrap();
    let rounds = contract.replace(line, "");
    let none = rounds.replace("\"quanta-window\"", "\"off\"");
    [contract, &rounds, &none]
        .map(|contract| scene::outcome(contract, machine, workload).ended_ns as f64 / 1e9)
}

/// In round robin, the four programs that need much of the cache run together, and each misses a part of its
/// working set. If gangs are chosen by cache occupancy, only programs whose working sets fit run together.
#[test]
fn gangs_by_the_cache_finish_sooner() {
    let [by_cache, rounds, none] = finished([
        include_str!("../../../scenarios/gangs-cache/contract.toml"),
        include_str!("../../../scenarios/gangs-cache/machine.toml"),
        include_str!("../../../scenarios/gangs-cache/workload.toml"),
    ]);
    assert!(
        by_cache < rounds * 0.80 && by_cache < none * 0.90,
        "{by_cache} s, rounds {rounds} s, none {none} s"
    );
}
