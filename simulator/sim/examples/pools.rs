//! What pools are worth: every scenario of `scenarios/` with its jobs placed in pools, against one pool for
//! all CPUs.
//!
//! usage: `pools SEEDS [SCENARIO]...`. It prints a line for each scenario and way to see its machine, and the
//! jobs of those that are named:
//!
//! - *as it is*: pools as `doctor` would say, if there are several, or else of half of its CPUs, which is all
//!   alike to the tasks: what placing costs where it gains nothing;
//! - *two nodes*: a machine of one node, with its CPUs and memory in two, as far from each other as in
//!   `scenarios/machines/server.toml`. Programs wait for memory in 30 % of their time.
//!
//! A job's time is its response time, the mean of its copies. Where a copy has not ended, it is the CPU time
//! for a unit of work in it: the time of the run by the work done. `all` is the geometric mean of the jobs'
//! times with pools by those without, and `worst` that of the job for which it is largest: less than 1 is a
//! gain. `work` is what all jobs together did in so much time, with pools by without: more than 1 is a gain.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "an example reads files, and means are for readers"
)]

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use commonhold_contract::{JobKind, PoolForm};
use commonhold_machine::Machine;
use commonhold_policy::pools;
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::{Latency, Scenario, Scheduler, read};

/// Scenarios on other machines than their own, and with other workloads.
const VARIANTS: [(&str, &str, &str); 5] = [
    ("cpu-isolation", "numa.toml", "workload.toml"),
    ("pools", "../machines/server.toml", "workload.toml"),
    ("pools", "../machines/server.toml", "two.toml"),
    ("pools", "../machines/server.toml", "eight.toml"),
    ("lab-server", "../machines/server.toml", "workload.toml"),
];

/// Part of the time that is for loads, in millionths, and how long these take in two nodes, in ns.
const STALLED: u32 = 300_000;
const LOCAL_NS: u64 = 80;
const REMOTE_NS: u64 = 140;

/// One line of the table.
struct Case {
    name: String,
    way: &'static str,
    pools: usize,
    placed: Scenario,
    loose: Scenario,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

/// All that can be placed: the files of a folder, by name, and its variants.
fn scenarios(wanted: &[String]) -> Vec<(String, Scenario)> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("scenarios/ is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| folder().join(name).join("workload.toml").exists())
        .collect();
    names.sort();
    let own = |name: String| (name, "machine.toml".to_owned(), "workload.toml".to_owned());
    let mut all: Vec<(String, String, String)> = names.into_iter().map(own).collect();
    all.extend(VARIANTS.map(|(name, machine, workload)| (name.into(), machine.into(), workload.into())));
    all.retain(|(name, ..)| wanted.is_empty() || wanted.contains(name));
    let load = |(name, machine, workload): (String, String, String)| {
        let text = |file: &str| std::fs::read_to_string(folder().join(&name).join(file)).expect("a file");
        let found = read(&text("contract.toml"), &text(&machine), &text(&workload));
        let stem = |file: &str| Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let other = [(&machine, "machine.toml"), (&workload, "workload.toml")];
        let other = other.iter().filter(|(file, usual)| *file != usual).filter_map(|(file, _)| stem(file));
        let title = [vec![name.clone()], other.collect()].concat().join(", ");
        found.scenario.map(|scenario| (title, scenario))
    };
    all.into_iter().filter_map(load).collect()
}

/// With jobs, in pools of this form.
fn with(scenario: &Scenario, form: PoolForm) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.contract.machine.pools = form;
    for id in scenario.contract.held().collect::<Vec<_>>() {
        scenario.contract.units[id.index()].job.get_or_insert(JobKind::Tree);
    }
    scenario
}

/// The same CPUs and memory in two nodes.
fn in_two_nodes(scenario: &Scenario) -> Option<Scenario> {
    let mut scenario = scenario.clone();
    let old = scenario.hardware.machine.clone();
    let (cpus, memory) = (old.cpus.len(), old.nodes.iter().map(|node| node.memory_bytes).sum::<u64>());
    if !cpus.is_multiple_of(2) || old.nodes.len() > 1 {
        return None;
    }
    let shape = format!("nodes:2 cpus:{} memory:{}KiB", cpus / 2, memory / 2048);
    scenario.hardware.machine =
        Machine { disks: old.disks, swap_bytes: old.swap_bytes, ..Machine::synthetic(&shape).ok()? };
    let between_ns = vec![vec![LOCAL_NS, REMOTE_NS], vec![REMOTE_NS, LOCAL_NS]];
    scenario.hardware.latency = Some(Latency { local_ns: LOCAL_NS, between_ns, service: None });
    for program in scenario.workload.programs.iter_mut().filter(|program| program.stalled == 0) {
        program.stalled = STALLED;
    }
    Some(scenario)
}

fn cases(name: &str, scenario: &Scenario) -> Vec<Case> {
    let kernel = scenario.hardware.kernel.scheduler;
    if scenario.hardware.machine.cpus.len() < 2
        || !matches!(kernel, Scheduler::Commonhold | Scheduler::Hurricane)
    {
        return Vec::new();
    }
    let case = |way, scenario: &Scenario, form| Case {
        name: name.to_owned(),
        way,
        pools: pools(&scenario.hardware.machine, form).pools.len(),
        placed: with(scenario, form),
        loose: with(scenario, PoolForm::Machine),
    };
    // On another machine than Hector, pools are what they would be there.
    let own = match (kernel, scenario.contract.machine.pools) {
        (Scheduler::Commonhold, PoolForm::Size(_)) => PoolForm::Auto,
        (_, form) => form,
    };
    let half = u32::try_from(scenario.hardware.machine.cpus.len().div_ceil(2)).unwrap_or(1);
    let form =
        if pools(&scenario.hardware.machine, own).pools.len() > 1 { own } else { PoolForm::Size(half) };
    let mut cases = vec![case("as it is", scenario, form)];
    cases.extend(in_two_nodes(scenario).map(|apart| case("two nodes", &apart, PoolForm::Node)));
    cases
}

#[allow(clippy::cast_precision_loss, reason = "ratios of times")]
fn real(value: u64) -> f64 {
    value as f64
}

/// What a job's work took in these runs.
fn time(runs: &[Outcome], name: &str, ended: bool) -> f64 {
    let copies = |run: &Outcome| run.jobs.iter().filter(|job| job.name == name).cloned().collect::<Vec<_>>();
    if ended {
        let all: Vec<f64> =
            runs.iter().flat_map(copies).filter_map(|job| job.response_ns()).map(real).collect();
        return all.iter().sum::<f64>() / real(all.len() as u64);
    }
    let work: u64 = runs.iter().flat_map(copies).map(|job| job.spent.work_ns).sum();
    real(runs.iter().map(|run| run.ended_ns).sum()) / real(work.max(1))
}

/// The jobs' times with pools, by those without.
fn compare(placed: &[Outcome], loose: &[Outcome]) -> Vec<(String, f64)> {
    let mut names: Vec<&String> = placed[0].jobs.iter().map(|job| &job.name).collect();
    names.sort();
    names.dedup();
    let both = || placed.iter().chain(loose);
    let ended =
        |name: &str| both().all(|run| run.jobs.iter().all(|job| job.name != name || job.ended_ns.is_some()));
    let ratio =
        |name: &String| (name.clone(), time(placed, name, ended(name)) / time(loose, name, ended(name)));
    names.into_iter().map(ratio).filter(|(_, ratio)| ratio.is_finite()).collect()
}

fn line(case: &Case, seeds: u64, named: bool) -> String {
    let runs = |scenario: &Scenario| -> Vec<Outcome> {
        (1..=seeds).filter_map(|seed| commonhold_sim::run(scenario, seed).ok()).collect()
    };
    let (placed, loose) = (runs(&case.placed), runs(&case.loose));
    let broken = placed.iter().chain(&loose).map(|run| run.broken).sum::<u64>();
    let ratios = if placed.is_empty() || loose.is_empty() { Vec::new() } else { compare(&placed, &loose) };
    let title = format!("{:32} {:9} {:>5}", case.name, case.way, case.pools);
    let Some((worst, most)) = ratios.iter().max_by(|(_, one), (_, other)| one.total_cmp(other)) else {
        return format!("{title}  nothing ended, or its memory is too small");
    };
    let all = (ratios.iter().map(|(_, ratio)| ratio.ln()).sum::<f64>() / real(ratios.len() as u64)).exp();
    let notes = if broken > 0 { format!("  {broken} checks did not hold") } else { String::new() };
    let each = |(name, ratio): &(String, f64)| format!("\n    {name} {ratio:.3}");
    let each: String = if named { ratios.iter().map(each).collect() } else { String::new() };
    let pace = |runs: &[Outcome]| {
        let work = runs.iter().flat_map(|run| &run.jobs).map(|job| job.spent.work_ns).sum::<u64>();
        real(work) / real(runs.iter().map(|run| run.ended_ns).sum())
    };
    let cpus = pace(&placed) / pace(&loose);
    format!("{title}  {all:.3}  {cpus:.3}  {most:.3} {worst}{notes}{each}")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds =
        arguments.next().and_then(|text| text.parse().ok()).filter(|seeds| *seeds > 0).expect("SEEDS");
    let wanted: Vec<String> = arguments.collect();
    let cases: Vec<Case> =
        scenarios(&wanted).iter().flat_map(|(name, scenario)| cases(name, scenario)).collect();
    println!("{:32} {:9} {:>5}  {:5}  {:5}  worst", "scenario", "machine", "pools", "all", "work");
    let (next, lines) = (Mutex::new(0), Mutex::new(vec![String::new(); cases.len()]));
    let work = || {
        loop {
            let at = {
                let mut next = next.lock().expect("no thread ended");
                *next += 1;
                *next - 1
            };
            let Some(case) = cases.get(at) else { return };
            let line = line(case, seeds, !wanted.is_empty());
            lines.lock().expect("no thread ended")[at] = line;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    lines.into_inner().expect("no thread ended").iter().for_each(|line| println!("{line}"));
}
