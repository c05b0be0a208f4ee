//! Regression tests: random scenarios that once failed.
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "texts of tests")]

mod scene;

use scene::outcome;

/// A task that waited for a frame called lent frames back. That woke all other waiting tasks, each of which
/// called frames back in turn: a million events in a second of virtual time without progress.
#[test]
fn who_waits_for_frames_does_not_wake_the_others_who_wait() {
    let contract = "version = 1\n[machine]\nscheme = \"isolate\"\n[unit.a]\ntickets = 10\nlimit = { memory = \"20%\" }\n";
    let machine = "version = 1\nshape = \"cpus:12 memory:2MiB\"\nenforces = \"irix\"\n[kernel]\nipi = \"1us\"\ncluster = 1\n\
        memory_period = \"10ms\"\n\
                   [disk.d0]\nmodel = \"fixed\"\naccess = \"0us\"\nrate = \"1MiB/s\"\n";
    let workload = "version = 1\nhorizon = \"1s\"\n[program.p]\nmemory = \"256KiB\"\nreuse = \"1ms\"\n\
        do = [{ cpu = \"100ms\" }]\n\
                    [job.a]\nunit = \"a\"\nprogram = \"p\"\ncount = 12\n";
    let end = outcome(contract, machine, workload);
    assert!(end.cut_off && end.events < 100_000, "{} events", end.events);
}

/// Rescues of a sibling preempted the first task of a queue, which then went before the others again. The
/// unit counted as served, though another of its tasks never ran.
#[test]
fn a_task_behind_one_that_is_interrupted_is_rescued() {
    let mut contract = "version = 1\n[unit.a]\ndiscipline = \"fifo\"\n".to_owned();
    let mut workload =
        "version = 1\nhorizon = \"60s\"\n[program.busy]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"10s\" }] }]\n"
            .to_owned();
    for sub in ["v", "w"] {
        contract += &format!("[unit.a.unit.{sub}]\ndiscipline = \"fifo\"\n");
        workload +=
            &format!("[job.{sub}]\nunit = \"a/{sub}\"\nprogram = \"busy\"\ncount = 3\nbackground = true\n");
    }
    let end = outcome(&contract, &scene::machine(2, ""), &workload);
    let waited = end.units.iter().map(|unit| unit.waited_max_ns).max().unwrap();
    assert!(waited < 21 * scene::S, "{waited} ns");
}
