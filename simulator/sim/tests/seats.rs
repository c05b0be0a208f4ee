//! Jobs in pools on a machine with the project's scheduler: seats are preferences, as on a live machine.
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "texts of tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::{S, response, scenario};

/// Two nodes of two CPUs.
const MACHINE: &str = "version = 1\nshape = \"nodes:2 cpus:2 memory:64MiB\"\nenforces = \"irix\"\n[latency]\nlocal = \"100ns\"\n\
                       remote = \"200ns\"\n[kernel]\nfork = \"0s\"\nmemory = \"8KiB\"\n[disk.d0]\nsize = \"1GiB\"\n";

fn contract(machine: &str, unit: &str) -> String {
    format!("version = 1\n[machine]\n{machine}\n[unit.a]\n{unit}\n[unit.b]\n")
}

/// Two jobs of two processes each, with these shares of data and this memory.
fn two_jobs(shares: &str, memory: &str) -> String {
    let mut text = "version = 1\nhorizon = \"5min\"\n".to_owned();
    for program in ["child", "first"] {
        text += &format!("[program.{program}]\n{shares}\nmemory = \"{memory}\"\nreuse = \"1ms\"\n");
        let run = if program == "first" { "{ run = \"child\", beside = true }, " } else { "" };
        text += &format!("do = [{run}{{ cpu = \"20s\" }}]\n");
    }
    for job in ["x", "y"] {
        text += &format!("[job.{job}]\nunit = \"a\"\nprogram = \"first\"\n");
    }
    text
}

fn run(contract: &str, workload: &str) -> Outcome {
    let mut scenario = scenario(contract, MACHINE, workload);
    scenario.workload.trace_ns = Some(S);
    let outcome = commonhold_sim::run(&scenario, 1).unwrap();
    assert_eq!((outcome.broken, &outcome.notes), (0, &Vec::new()));
    outcome
}

/// The number of samples of the trace in which some pool has two jobs.
fn mixed(outcome: &Outcome) -> usize {
    let occupancy = outcome.occupancy.as_ref().unwrap();
    let two = |moment: &&Vec<Option<usize>>| {
        occupancy.pools.iter().any(|pool| {
            let mut jobs: Vec<usize> = pool.iter().filter_map(|cpu| moment[*cpu as usize]).collect();
            jobs.dedup();
            jobs.len() > 1
        })
    };
    occupancy.moments.iter().skip(1).filter(two).count()
}

/// Under both schemes, and in both CPU modes: units own their CPUs, or share them by weight.
#[test]
fn jobs_lie_apart() {
    let work = two_jobs("shares = \"50%\"", "1MiB");
    for scheme in ["smp", "isolate"] {
        for cpu in ["partition", "proportional"] {
            let machine = format!("scheme = \"{scheme}\"\ncpu = \"{cpu}\"");
            let placed = run(&contract(&format!("{machine}\npools = \"node\""), "job = \"tree\""), &work);
            assert_eq!(mixed(&placed), 0, "{machine}");
            // Without pools, processes run where they started: x's first, y's first, and their children on
            // any free CPU.
            let loose = run(&contract(&format!("{machine}\npools = \"machine\""), "job = \"tree\""), &work);
            assert!(mixed(&loose) > 0, "{machine}");
            let (placed, loose) = (response(&placed, "x"), response(&loose, "x"));
            assert!(placed < loose, "{machine}: {placed} {loose}");
        }
    }
}

/// Two jobs of one process each begin in the same node, and touch their memory there. Later each job moves to
/// a pool of its own, and its pages follow.
#[test]
fn pages_follow_threads() {
    let text = "version = 1\nhorizon = \"5min\"\n[program.p]\nstalled = \"50%\"\nmemory = \"16MiB\"\nreuse = \"1ms\"\n\
                do = [{ cpu = \"60s\" }]\n[job.x]\nunit = \"a\"\nprogram = \"p\"\n[job.y]\nunit = \"a\"\nprogram = \"p\"\n";
    let with = |repartition: bool| {
        let machine = format!("scheme = \"smp\"\npools = \"node\"\nrepartition = {repartition}");
        run(&contract(&machine, "job = \"tree\""), text)
    };
    let far = |outcome: &Outcome| outcome.jobs.iter().map(|job| job.spent.remote_ns).sum::<u64>();
    // Without migration of pages, one of the jobs would take half as long again.
    let (moved, stayed) = (far(&with(true)), far(&with(false)));
    assert!(moved < S && stayed > 25 * S, "{moved} {stayed}");
}

/// A child runs in its parent's pool until the loop has observed it. Eight children of a job in a node of two
/// CPUs soon use all four CPUs, even if each child ends before it gets a seat.
#[test]
fn no_cpu_idles_for_long_since_a_pool_is_full() {
    for (work, times) in [("4s", 1), ("30ms", 100)] {
        let text = format!(
            "version = 1\nhorizon = \"5min\"\n[program.child]\ndo = [{{ cpu = \"{work}\" }}]\n[program.first]\n\
             do = [{{ repeat = {times}, do = [{{ run = \"child\", times = 8 }}] }}]\n[job.x]\nunit = \"a\"\nprogram = \"first\"\n"
        );
        let end = |pools: &str| {
            let machine = format!("scheme = \"isolate\"\npools = {pools}");
            run(&contract(&machine, "job = \"tree\""), &text).ended_ns
        };
        let (one, two) = (end("\"machine\""), end("\"node\""));
        println!("{work}: {one} {two}");
        assert!(two <= one + one / 10, "{work}: {one} {two}");
    }
}
