//! Jobs under Hurricane's scheduler, where each process has a CPU of its own: processes with seats, and
//! processes without.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "seconds of a test")]

mod scene;

use commonhold_sim::outcome::{JobOutcome, Outcome};

const CONTRACT: &str = "version = 1\n[machine]\nscheme = \"smp\"\npools = 2\nplacement = \"worst-fit\"\nrepartition = false\n\
                        [unit.jobs]\nmembers = []\njob = \"tree\"\n";
const MACHINE: &str = "version = 1\nshape = \"nodes:2 cpus:2\"\n[kernel]\nscheduler = \"hurricane\"\nfork = \"0s\"\n\
    switch = \"0s\"\n";

fn run(workload: &str) -> Outcome {
    let mut scenario = scene::scenario(CONTRACT, MACHINE, workload);
    scenario.workload.trace_ns = Some(100_000_000);
    scene::run(&scenario)
}

fn seconds(outcome: &Outcome, name: &str) -> Vec<f64> {
    let named = outcome.jobs.iter().filter(|job| job.name == name);
    named.map(|job: &JobOutcome| job.response_ns().unwrap() as f64 / 1e9).collect()
}

/// A job with `children` processes of a second of work each, beside the first; a shell runs it `times` times.
fn workload(children: u32, times: u32) -> String {
    format!(
        "version = 1\nhorizon = \"1min\"\n[program.child]\ndo = [{{ cpu = \"1s\" }}]\n[program.job]\njob = true\n\
         do = [{{ run = \"child\", times = {children}, beside = true }}, {{ cpu = \"500ms\" }}]\n\
         [program.shell]\ndo = [{{ run = \"job\", times = {times} }}]\n[job.a]\nunit = \"jobs\"\nprogram = \"shell\"\n"
    )
}

/// The first process works meanwhile, and ends after the others have ended.
#[test]
fn a_job_ends_with_its_last_process() {
    let outcome = run(&workload(3, 1));
    assert!((seconds(&outcome, "job")[0] - 1.0).abs() < 0.01, "{:?}", seconds(&outcome, "job"));
}

/// Four of six processes have a CPU. The other two never begin, and the others do not wait for them.
#[test]
fn who_has_no_cpu_never_begins() {
    let outcome = run(&workload(5, 1));
    let job = outcome.jobs.iter().find(|job| job.name == "job").unwrap();
    assert!((seconds(&outcome, "job")[0] - 1.0).abs() < 0.01);
    assert!((job.spent.work_ns as f64 / 1e9 - 3.5).abs() < 0.01, "{}", job.spent.work_ns);
}

/// Each run of the job has the CPUs of the previous run.
#[test]
fn cpus_are_given_back() {
    let outcome = run(&workload(3, 5));
    let times = seconds(&outcome, "job");
    assert!(times.len() == 5 && times.iter().all(|time| (time - 1.0).abs() < 0.01), "{times:?}");
    let occupancy = outcome.occupancy.as_ref().unwrap();
    assert_eq!(occupancy.pools, [[0, 1], [2, 3]]);
    assert!(occupancy.moments[3].iter().all(Option::is_some), "{:?}", occupancy.moments[3]);
}

/// Two jobs of two, from two shells: each in a pool of its own.
#[test]
fn jobs_lie_apart() {
    let mut text = workload(1, 1);
    text += "[job.b]\nunit = \"jobs\"\nprogram = \"shell\"\n";
    let outcome = run(&text);
    let moment = &outcome.occupancy.as_ref().unwrap().moments[3];
    assert!(
        moment[0].is_some() && moment[0] == moment[1] && moment[2] == moment[3] && moment[0] != moment[2],
        "{moment:?}"
    );
}
