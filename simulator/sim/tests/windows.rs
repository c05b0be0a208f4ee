//! The CPU time of units in each window, the latency of wake-ups, and deadlines, in workloads with known
//! figures.
#![allow(clippy::unwrap_used)]

mod scene;

use scene::{MS, S, machine, near, outcome, unit};

const CONTRACT: &str = "version = 1\n[unit.a]\n[unit.b]\n";

/// At first both units compute on one CPU each. After 2.5 s b is done, and a goes on with one CPU.
#[test]
fn windows_have_what_was_used_in_them() {
    let workload = "version = 1\nhorizon = \"5500ms\"\n\
        [program.on]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"700ms\" }] }]\n\
        [program.short]\ndo = [{ cpu = \"2500ms\" }]\n\
        [job.a]\nunit = \"a\"\nprogram = \"on\"\nbackground = true\n[job.b]\nunit = \"b\"\nprogram = \"short\"\n\
            background = true\n";
    let outcome = outcome(CONTRACT, &machine(2, ""), workload);
    assert_eq!(outcome.window_ns, S);
    let (a, b) = (unit(&outcome, "a"), unit(&outcome, "b"));
    for used in &a.used_by_window_ns {
        near(*used, S, 5);
    }
    // Only complete windows count: the last half second belongs to no window.
    assert_eq!((a.used_by_window_ns.len(), b.used_by_window_ns.len()), (5, 5));
    for (used, should) in b.used_by_window_ns.iter().zip([S, S, S / 2]) {
        near(*used, should, 5);
    }
    assert_eq!(b.used_by_window_ns[3..], [0, 0]);
    assert_eq!(b.used_by_window_ns.iter().sum::<u64>(), b.used_ns);
    // Each unit is entitled to one of two CPUs, and a to both after b has ended.
    near(a.entitled_by_window_ns[0], S, 5);
    near(a.entitled_by_window_ns[4], 2 * S, 5);
    assert_eq!(b.entitled_by_window_ns[4], 0);
}

/// A unit's windows count its own tasks only: CPU time and entitlement of its sub-unit are left out.
#[test]
fn a_sub_units_part_is_not_its_own() {
    let contract = "version = 1\n[unit.a]\n[unit.a.unit.c]\ntickets = 300\n";
    let workload = "version = 1\nhorizon = \"4s\"\n\
        [program.on]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"700ms\" }] }]\n\
        [job.a]\nunit = \"a\"\nprogram = \"on\"\nbackground = true\n[job.c]\nunit = \"a/c\"\nprogram = \"on\"\n\
            background = true\n";
    let outcome = outcome(contract, &machine(1, ""), workload);
    for (name, part) in [("a", S / 4), ("a/c", 3 * S / 4)] {
        let unit = unit(&outcome, name);
        near(unit.entitled_by_window_ns[2], part, 5);
        near(unit.used_by_window_ns[1..].iter().sum(), 3 * part, 50);
    }
}

/// A task works for 10 ms after each sleep. Alone it always meets a deadline of 15 ms. Beside a task that
/// computes under `batch`, whose turns are 120 ms (four slices), it never does: when it wakes, 30 ms of the
/// other task's turn remain.
#[test]
fn deadlines_and_waits_are_counted() {
    let run = |discipline: &str, deadline_ms: u64| {
        let contract = format!("version = 1\n[unit.a]\ndiscipline = \"{discipline}\"\n");
        let workload = format!(
            "version = 1\nhorizon = \"60s\"\n\
             [program.on]\ndo = [{{ repeat = \"forever\", do = [{{ cpu = \"1s\" }}] }}]\n\
             [program.periodic]\ndo = [{{ repeat = 20, do = [{{ sleep = \"90ms\" }}, {{ cpu = \"10ms\" }}] }}]\n\
             [job.on]\nunit = \"a\"\nprogram = \"on\"\nbackground = true\n\
             [job.periodic]\nunit = \"a\"\nprogram = \"periodic\"\ndeadline = \"{deadline_ms}ms\"\n"
        );
        let outcome = outcome(&contract, &machine(1, ""), &workload);
        outcome.wakes.iter().find(|wakes| wakes.job == "periodic").unwrap().clone()
    };
    let late = run("batch", 15);
    assert_eq!((late.count, late.met, late.missed), (20, 0, 20));
    assert!(late.median_ns > 29 * MS && late.max_ns >= late.p99_ns, "{late:?}");
    let early = run("entitlement", 15);
    assert_eq!((early.count, early.met, early.missed), (20, 20, 0), "{early:?}");
    let just = run("entitlement", 9);
    assert_eq!((just.met, just.missed), (0, 20));
}
