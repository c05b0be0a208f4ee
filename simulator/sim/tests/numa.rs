//! Remote memory: its cost, computed by hand, and relations between runs that differ only in its latency.
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "texts of tests")]

mod generator;
mod scene;

use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::{Latency, Scenario};
use scene::{MS, S, jobs, near, outcome, run, run_with, scenario};

const CONTRACT: &str = "version = 1\n[machine]\nscheme = \"smp\"\n[unit.a]\n[unit.b]\n";

/// Two nodes of 16 MiB with `cpus` CPUs each; the kernel keeps almost no memory. All other costs are zero.
fn machine(cpus: u64, more: &str) -> String {
    let mut text = format!(
        "version = 1\nshape = \"nodes:2 cpus:{cpus} memory:16MiB\"\nenforces = \"irix\"\n[kernel]\nmemory = \"8KiB\"\n"
    );
    for key in ["switch", "ipi", "fault", "request", "fork"] {
        text += &format!("{key} = \"0s\"\n");
    }
    text + more + "\n[disk.d0]\nsize = \"1GiB\"\n"
}

/// A program that computes, and has this amount of memory from its first ms on, with these keys; and a job of
/// it in `a`.
fn workload(memory: &str, keys: &str, steps: &str) -> String {
    format!(
        "version = 1\nhorizon = \"1h\"\n[program.p]\nmemory = \"{memory}\"\nreuse = \"1ms\"\n{keys}\ndo = [{steps}]\n\
         [job.p]\nunit = \"a\"\nprogram = \"p\"\n"
    )
}

/// The response time of the only job, with this amount of memory and these latencies.
fn alone(memory: &str, latency: &str) -> Outcome {
    outcome(CONTRACT, &machine(1, latency), &workload(memory, "stalled = \"60%\"", "{ cpu = \"10s\" }"))
}

#[test]
fn memory_of_the_own_node_costs_nothing() {
    let end = alone("8MiB", "[latency]\nlocal = \"100ns\"\nremote = \"200ns\"");
    assert_eq!((end.ended_ns, jobs(&end, "p")[0].spent.remote_ns), (10 * S, 0));
    // Two jobs cost no more: each has a CPU and the memory of its own node.
    let work = workload("8MiB", "stalled = \"60%\"", "{ cpu = \"10s\" }") + "count = 2\n";
    let end = outcome(CONTRACT, &machine(1, "[latency]"), &work);
    assert_eq!(end.ended_ns, 10 * S);
}

#[test]
fn what_does_not_fit_into_the_own_node_is_remote() {
    // 16 of 24 MiB are in the task's own node; the rest takes twice as long: 1 + 0.6 x 1/3 is 1.2.
    let end = alone("24MiB", "[latency]\nlocal = \"100ns\"\nremote = \"200ns\"");
    near(end.ended_ns, 12 * S, 1);
    let spent = jobs(&end, "p")[0].spent;
    near(spent.remote_ns, 2 * S, 1);
    assert_eq!((spent.work_ns, spent.work_ns + spent.remote_ns), (10 * S, end.ended_ns));
    // Linux's distances give the same, and are the default.
    assert_eq!(alone("24MiB", "[latency]\ndistances = [[10, 20], [20, 10]]").ended_ns, end.ended_ns);
    assert_eq!(alone("24MiB", "[latency]").ended_ns, end.ended_ns);
    // On a machine where loads may queue, the result is the same for a job alone.
    let crowd = "[bus]\ntransactions = 1000\n[contention]\nlock = \"10%\"\n[latency]";
    assert_eq!(alone("24MiB", crowd).ended_ns, end.ended_ns);
}

#[test]
fn without_latencies_all_memory_is_equally_far() {
    assert_eq!(alone("24MiB", "").ended_ns, 10 * S);
}

#[test]
fn a_cache_is_refilled_from_where_the_memory_lies() {
    // At each switch, a task refills the cache of the only CPU: 1000 lines of 1 us, since the other task has
    // evicted them. `b` has no memory that could be remote. A third of `a`'s lines takes twice as long,
    // except in the first refill, when `a` has no memory yet.
    let costs = "[cache]\nbytes = \"64000B\"\nline = \"64B\"\nmiss = \"1us\"\n[latency]\nlocal = \"1us\"\nremote = \"2us\"";
    let work = workload("24MiB", "hot = \"64000B\"", "{ cpu = \"1s\" }")
        + "[program.q]\nhot = \"64000B\"\ndo = [{ cpu = \"1s\" }]\n[job.q]\nunit = \"b\"\nprogram = \"q\"\n";
    let mut scenario = scenario(CONTRACT, &machine(1, costs), &work);
    scenario.hardware.machine.cpus.truncate(1);
    let end = run(&scenario);
    let refills = |name: &str| jobs(&end, name)[0].spent.switch_ns;
    let switches = refills("q") / MS;
    assert!(switches > 10 && refills("q").is_multiple_of(MS), "{switches}");
    // The task that runs first may have one switch more than the other.
    let by_hand = |switches: u64| MS + (switches - 1) * MS * 4 / 3;
    near(refills("p"), by_hand(switches), 30);
}

/// Six tasks that the scheduler migrates among four CPUs.
fn wanderers(remote_ns: u64) -> Scenario {
    let costs = format!("[latency]\nlocal = \"100ns\"\nremote = \"{remote_ns}ns\"");
    let steps = "{ repeat = 50, do = [{ cpu = \"15ms\", spread = \"30%\" }, { sleep = \"5ms\" }] }";
    let work = workload("2MiB", "stalled = \"50%\"", steps) + "count = 6\n";
    scenario(CONTRACT, &machine(2, &costs), &work)
}

#[test]
fn farther_memory_takes_longer() {
    let overflow =
        |ns| alone("24MiB", &format!("[latency]\nlocal = \"100ns\"\nremote = \"{ns}ns\"")).ended_ns;
    let ends: Vec<u64> = [100, 101, 150, 300, 2000].map(overflow).to_vec();
    assert!(ends.is_sorted_by(|near, far| near < far), "{ends:?}");
    // A different latency changes the migrations, so only the mean over several seeds must grow.
    let lost = |ns| {
        let ends = (1..=5).map(|seed| run_with(&wanderers(ns), seed));
        ends.map(|end| jobs(&end, "p").iter().map(|job| job.spent.remote_ns).sum::<u64>()).sum::<u64>()
    };
    let lost: Vec<u64> = [100, 120, 170, 300].map(lost).to_vec();
    assert!(lost[0] == 0 && lost.is_sorted_by(|near, far| near < far), "{lost:?}");
}

#[test]
fn memory_that_is_no_farther_than_local_memory_changes_nothing() {
    let mut of_two_nodes = 0;
    for seed in 1..=100 {
        let texts = generator::texts(seed);
        let mut scenario = scene::scenario(&texts.contract, &texts.machine, &texts.workload);
        let nodes = scenario.hardware.machine.nodes.len();
        of_two_nodes += u32::from(nodes == 2);
        for program in &mut scenario.workload.programs {
            program.stalled = 700_000;
        }
        // The nodes of jobs' pages are reported if the machine knows them, as here.
        scenario.contract.units.iter_mut().for_each(|unit| unit.job = None);
        scenario.hardware.latency = None;
        let without = format!("{:?}", run_with(&scenario, seed));
        scenario.hardware.latency =
            Some(Latency { local_ns: 90, between_ns: vec![vec![90; nodes]; nodes], service: None });
        assert_eq!(without, format!("{:?}", run_with(&scenario, seed)), "seed {seed}");
    }
    assert!(of_two_nodes > 10, "{of_two_nodes} of the machines have two nodes");
}

#[test]
fn what_a_cpu_did_adds_up() {
    // All its time is work or a reported loss.
    for seed in 1..=5 {
        let end = run_with(&wanderers(300), seed);
        let told =
            jobs(&end, "p").iter().map(|job| job.spent.computing_ns() + job.spent.switch_ns).sum::<u64>();
        assert_eq!(told, end.busy_ns, "seed {seed}");
    }
}

const FAR_MEMORY: [&str; 3] = [
    include_str!("../../../scenarios/far-memory/contract.toml"),
    include_str!("../../../scenarios/far-memory/machine.toml"),
    include_str!("../../../scenarios/far-memory/workload.toml"),
];

#[test]
fn who_stays_home_has_its_memory_there_and_who_moves_has_not() {
    let [contract, machine, workload] = FAR_MEMORY;
    let end = outcome(contract, machine, workload);
    let lost = |name: &str| jobs(&end, name).iter().map(|job| job.spent.remote_ns).sum::<u64>();
    assert_eq!(lost("home"), 0);
    assert!(lost("rover") > S, "{}", lost("rover"));
}
