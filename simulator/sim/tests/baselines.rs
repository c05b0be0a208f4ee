//! The baselines of the published experiments, in whole runs. The tests check how much each job gets, how
//! long each waits, and that baselines are refused where they cannot hold the scheme. Switches, interrupts
//! and faults cost nothing here.
#![allow(clippy::unwrap_used)]

mod scene;

use commonhold_contract::{Scheme, render};
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::{Overrides, Part, Scheduler, read, read_with};
use scene::{MS, S, jobs, near, outcome, response, unit};

const BASELINES: [&str; 2] = ["irix-decay", "linux-2.4"];

const CONTRACT: &str = "version = 1\n[machine]\nscheme = \"smp\"\n[unit.a]\n[unit.b]\n";

/// A machine of `cpus` CPUs, with slices of 60 ms as in Linux 2.4.
fn machine(scheduler: &str, cpus: u32) -> String {
    format!(
        "version = 1\nshape = \"cpus:{cpus} memory:64MiB\"\n[kernel]\nscheduler = \"{scheduler}\"\ntick = \"10ms\"\n\
         slice = \"60ms\"\nswitch = \"0s\"\nipi = \"0s\"\nfault = \"0s\"\nrequest = \"0s\"\nfork = \"0s\"\n"
    )
}

const PROGRAMS: &str = "version = 1\nhorizon = \"40s\"\n\
    [program.hog]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"7ms\" }] }]\n\
    [program.light]\ndo = [{ repeat = 200, do = [{ sleep = \"95ms\" }, { cpu = \"5ms\" }] }]\n\
    [program.leaf]\ndo = [{ cpu = \"10ms\" }]\n\
    [program.make]\ndo = [{ run = \"leaf\", times = 100, at_once = 2 }]\n";

/// Jobs by name, unit, program and number; only hogs never end.
fn run(scheduler: &str, cpus: u32, work: &[(&str, &str, &str, u32)]) -> Outcome {
    let job = |(name, unit, program, count): &(&str, &str, &str, u32)| {
        let background = *program == "hog";
        format!(
            "[job.{name}]\nunit = \"{unit}\"\nprogram = \"{program}\"\ncount = {count}\nbackground = {background}\n"
        )
    };
    let work: String = work.iter().map(job).collect();
    outcome(CONTRACT, &machine(scheduler, cpus), &(PROGRAMS.to_owned() + &work))
}

#[test]
fn tasks_that_compute_get_equal_parts() {
    for scheduler in BASELINES {
        for (cpus, tasks) in [(1, 2), (1, 5), (2, 3), (4, 7)] {
            let end = run(scheduler, cpus, &[("a", "a", "hog", tasks - 1), ("b", "b", "hog", 1)]);
            let part = u64::from(cpus) * 40 * S / u64::from(tasks);
            let worked: Vec<u64> =
                ["a", "b"].iter().flat_map(|name| jobs(&end, name)).map(|job| job.spent.work_ns).collect();
            for worked in &worked {
                near(*worked, part, 60);
            }
            assert_eq!(
                (worked.iter().sum::<u64>(), end.idle_ns),
                (u64::from(cpus) * 40 * S, 0),
                "{scheduler}"
            );
            // The tasks of a second unit b too: baselines know no units, so b's task counts like the others.
            near(unit(&end, "b").used_ns, part, 60);
            // Equal, except for the running tasks' part of their current slices.
            let used = unit(&end, "a").used_ns + unit(&end, "b").used_ns;
            assert!((end.busy_ns - u64::from(cpus) * 60 * MS..=end.busy_ns).contains(&used), "{used}");
            assert_eq!((unit(&end, "a").lent_ns, unit(&end, "a").borrowed_ns), (0, 0));
        }
    }
}

/// A task that sleeps most of the time waits for 2 ms in the mean beside one or eight tasks that compute,
/// though slices are 60 ms: the task has little usage, and a large counter.
#[test]
fn who_sleeps_runs_soon_after_waking() {
    for scheduler in BASELINES {
        for hogs in [1, 8] {
            let end = run(scheduler, 1, &[("light", "a", "light", 1), ("hog", "b", "hog", hogs)]);
            let light = jobs(&end, "light")[0];
            assert_eq!(light.spent.work_ns, S);
            assert!(light.spent.waited_ns <= 400 * MS, "{scheduler}, {hogs}: {} ns", light.spent.waited_ns);
            near(response(&end, "light"), 20 * S, 21);
        }
    }
}

/// No task waits for longer than one turn of each other task: with nine tasks on a CPU, eight turns of at
/// most two slices.
#[test]
fn nobody_starves() {
    for scheduler in BASELINES {
        let end = run(scheduler, 1, &[("light", "a", "light", 3), ("hog", "b", "hog", 6)]);
        let waited = ["a", "b"].map(|name| unit(&end, name).waited_max_ns);
        assert!(waited.iter().all(|waited| *waited <= 8 * 120 * MS), "{scheduler}: {waited:?}");
    }
}

/// A make of short processes beside two tasks that compute. Under IRIX's rule each child is new and so goes
/// first: the make has the CPU nearly as if it were alone. Under Linux's rule a child lives on its parent's
/// counter. The parent and two children at a time have three of five counters, so the make takes 5/3 of its
/// time alone.
#[test]
fn short_processes_are_new_each_time_or_live_on_their_parent() {
    let [irix, linux] = BASELINES.map(|scheduler| {
        response(&run(scheduler, 1, &[("make", "a", "make", 1), ("hog", "b", "hog", 2)]), "make")
    });
    near(irix, S, 200);
    near(linux, 5 * S / 3, 150);
}

/// Two CPUs, three tasks that compute. Under Linux a task stays on its CPU until its counter is used up,
/// since a counter of 6 ticks does not outweigh the bonus of 15 for the last CPU. So each switch is the end
/// of a slice.
#[test]
fn switches_are_ends_of_slices() {
    for scheduler in BASELINES {
        let end = run(scheduler, 2, &[("a", "a", "hog", 3)]);
        let slices = 2 * 40 * S / (60 * MS);
        assert!(end.switches <= slices + 3, "{scheduler}: {} switches", end.switches);
        assert!(end.switches >= slices / 3, "{scheduler}: {} switches", end.switches);
    }
}

const ISOLATED: &str = "version = 1\n[machine]\nscheme = \"isolate\"\n[unit.a]\n[unit.b]\n";
const WORK: &str = "version = 1\nhorizon = \"1s\"\n[program.p]\ndo = [{ cpu = \"1ms\" }]\n[job.j]\nunit = \"a\"\nprogram = \
 \"p\"\n";

#[test]
fn a_baseline_is_refused_where_units_are_held() {
    let machine = "version = 1\nshape = \"cpus:2\"\n\n[kernel]\nscheduler = \"irix-decay\"\n";
    let read = read(ISOLATED, machine, WORK);
    assert!(read.scenario.is_none());
    let [finding] = read.findings.as_slice() else { panic!("one finding: {:?}", read.findings) };
    assert_eq!(finding.part, Part::Machine);
    insta::assert_snapshot!(render(&finding.diagnostics, machine, "machine.toml", false), @r#"
    error[unheld-scheme]: the scheduler irix-decay knows no units, and cannot hold the contract's scheme isolate
     --> machine.toml:5:13
      |
    5 | scheduler = "irix-decay"
      |             ^^^^^^^^^^^^ knows no units
      |
      = help: write `scheme = "smp"` in the contract's [machine], or leave `scheduler` out
    "#);
    // Under another scheme, or with another scheduler, the scenario is valid.
    let smp = Overrides { scheme: Some(Scheme::Smp), ..Overrides::default() };
    assert!(read_with(ISOLATED, machine, WORK, smp).scenario.is_some());
    // A scheduler from the command line is no mistake of the file; the run refuses it (below).
    let other = Overrides { scheduler: Some(Scheduler::Linux24), ..Overrides::default() };
    assert!(read_with(ISOLATED, machine, WORK, other).findings.is_empty());
    let own = Overrides { scheduler: Some(Scheduler::Commonhold), ..Overrides::default() };
    assert!(read_with(ISOLATED, machine, WORK, own).scenario.is_some());
}

#[test]
fn a_run_refuses_it_too() {
    let instead = Overrides { scheduler: Some(Scheduler::Linux24), ..Overrides::default() };
    let read = read_with(ISOLATED, "version = 1\nshape = \"cpus:2\"\n", WORK, instead);
    let error = commonhold_sim::run(&read.scenario.unwrap(), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the scheduler linux-2.4 knows no units, and cannot hold the scheme isolate: take the scheme smp, or the \
         scheduler commonhold"
    );
}
