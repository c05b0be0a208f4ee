//! Seed 001's streams of jobs on larger machines than Hector, and under other placements.
//!
//! usage: `streams gap|placements SEEDS [CPUS]...`. It prints one of two tables:
//!
//! - *gap*: the mean response time in pools of four by that without pools, for 12 to 60 CPUs and several
//!   delays (PP-8-GAP);
//! - *placements*: the mean response time by that under worst fit: of each placement, and of worst fit with
//!   repartitioning. The streams are those of section 5.2, of four processes each; and uneven ones, of six,
//!   four and two processes, with jobs as long as there and ten times as long.
//!
//! The CPUs form stations of four, with three streams of jobs for each three stations. Its ring has one
//! station more, and carries a line for each: as Hector's, it is not slower for being longer.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::format_push_string,
    clippy::format_collect,
    reason = "an example reads files, writes texts, and means are for readers"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use commonhold_contract::{Placement, PoolForm};
use commonhold_sim::scenario::{Scenario, read};

const CYCLE_NS: u64 = 60;
const DELAYS: [u64; 5] = [0, 8, 16, 32, 64];
/// How often a stream goes through its programs.
const ROUNDS: usize = 5;
const PROGRAMS: [&str; 6] = ["fft", "hough", "mm", "neural", "pde", "simplex"];

fn text(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/pools");
    std::fs::read_to_string(folder.join(file)).expect("scenarios/pools is there")
}

/// `stations` stations as Hector's, with a delay for accesses that leave one.
fn machine(stations: u64, delay: u64) -> String {
    let shape = format!("sockets:{stations} nodes:{} cpus:1 memory:4MiB", stations * 4);
    let remote = (37 + 3 * delay) * CYCLE_NS;
    let ring = 8 * CYCLE_NS / (stations + 1);
    text("machine.toml")
        .replace("sockets:3 nodes:12 cpus:1 memory:4MiB", &shape)
        .replace("\"2220ns\"", &format!("\"{remote}ns\""))
        .replace("\"120ns\"", &format!("\"{ring}ns\""))
}

/// The programs of one of the workloads, with the number of their processes after their names.
fn programs(file: &str, processes: u32) -> String {
    let text = text(file);
    let from = text.find("[program.").expect("programs");
    let until = text.find("[program.stream-1]").expect("streams");
    PROGRAMS.iter().fold(text[from..until].to_owned(), |text, name| {
        text.replace(&format!("[program.{name}]"), &format!("[program.{name}-{processes}]"))
            .replace(&format!("{name}-process\""), &format!("{name}-process-{processes}\""))
            .replace(&format!("[program.{name}-process]"), &format!("[program.{name}-process-{processes}]"))
    })
}

/// Streams of jobs: the names of each one's programs, in turns that begin at another one in each.
fn streams(each: &[&[String]]) -> String {
    let mut text = String::new();
    for (stream, programs) in each.iter().enumerate() {
        let turn = |at: usize| &programs[(at + stream) % programs.len()];
        let steps: Vec<String> = (0..programs.len())
            .map(|at| {
                format!("{{ run = \"{}\" }}, {{ sleep = \"20ms\", spread = \"exponential\" }}", turn(at))
            })
            .collect();
        text += &format!(
            "[program.stream-{stream}]\ndo = [{{ repeat = {ROUNDS}, do = [{}] }}]\n[job.stream-{stream}]\nunit = \"jobs\"\n\
             program = \"stream-{stream}\"\n",
            steps.join(", ")
        );
    }
    text
}

fn named(names: &[&str], processes: u32) -> Vec<String> {
    names.iter().map(|name| format!("{name}-{processes}")).collect()
}

/// A stream of jobs of four processes for each station.
fn even(stations: usize) -> String {
    let five = named(&PROGRAMS[..5], 4);
    format!(
        "version = 1\nhorizon = \"5h\"\n{}{}",
        programs("workload.toml", 4),
        streams(&vec![&five[..]; stations])
    )
}

/// Streams of six, four and two processes for each three stations.
fn uneven(stations: usize) -> String {
    let (six, four, two) = (named(&["hough", "mm"], 6), named(&PROGRAMS[..5], 4), named(&PROGRAMS[..5], 2));
    let three: Vec<&[String]> = [&six[..], &four[..], &two[..]].repeat(stations / 3);
    let files = [("six.toml", 6), ("workload.toml", 4), ("two.toml", 2)];
    let programs: String = files.iter().map(|(file, processes)| programs(file, *processes)).collect();
    format!("version = 1\nhorizon = \"50h\"\n{programs}{}", streams(&three))
}

/// The scenario with all computing `times` times as long.
fn longer(mut scenario: Scenario, times: u64) -> Scenario {
    use commonhold_sim::scenario::Op;
    for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
        if let Op::Cpu { work, .. } = op {
            work.mean *= times;
        }
    }
    scenario
}

fn scenario(stations: usize, delay: u64, work: &str) -> Scenario {
    let read = read(&text("contract.toml"), &machine(stations as u64, delay), work);
    read.scenario.unwrap_or_else(|| panic!("{:#?}", read.findings))
}

/// The mean response time of all jobs, by program, in ns.
fn responses(scenario: &Scenario, seed: u64) -> BTreeMap<String, (u64, u64)> {
    let outcome = commonhold_sim::run(scenario, seed).expect("it fits");
    assert_eq!(outcome.broken, 0, "{:?}", outcome.notes);
    let mut by_program: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for job in outcome.jobs.iter().filter(|job| !job.name.starts_with("stream")) {
        let (count, sum) = by_program.entry(job.name.clone()).or_default();
        *count += 1;
        *sum += job.response_ns().expect("it ended before the horizon");
    }
    by_program
}

#[allow(clippy::cast_precision_loss, reason = "means")]
fn mean(responses: &BTreeMap<String, (u64, u64)>) -> f64 {
    let (count, sum) = responses.values().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    sum as f64 / count as f64
}

/// Mean response times of all scenarios, each over all seeds.
fn run(scenarios: &[Scenario], seeds: u64) -> Vec<f64> {
    let (next, means) = (Mutex::new(0), Mutex::new(vec![0.0; scenarios.len()]));
    let work = || {
        loop {
            let at = {
                let mut next = next.lock().expect("no thread ended");
                *next += 1;
                *next - 1
            };
            let Some(scenario) = scenarios.get(at) else { return };
            let all = (1..=seeds).map(|seed| mean(&responses(scenario, seed))).sum::<f64>();
            means.lock().expect("no thread ended")[at] = all;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    means.into_inner().expect("no thread ended")
}

fn with(scenario: &Scenario, pools: PoolForm, placement: Placement, repartition: bool) -> Scenario {
    let mut scenario = scenario.clone();
    let machine = &mut scenario.contract.machine;
    (machine.pools, machine.placement, machine.repartition) = (pools, placement, repartition);
    scenario
}

fn gap(seeds: u64, stations: &[usize]) {
    let heads = DELAYS.map(|delay| format!("{:>9}", format!("delay {delay}")));
    println!("pools of four by none\n{:>4} {}", "cpus", heads.join(""));
    for stations in stations {
        let work = even(*stations);
        let all: Vec<Scenario> = DELAYS
            .iter()
            .flat_map(|delay| {
                let scenario = scenario(*stations, *delay, &work);
                [PoolForm::Size(4), PoolForm::Machine]
                    .map(|form| with(&scenario, form, Placement::WorstFit, false))
            })
            .collect();
        let cells: String =
            run(&all, seeds).chunks(2).map(|pair| format!("{:>9.3}", pair[0] / pair[1])).collect();
        println!("{:>4} {cells}", stations * 4);
    }
}

fn placements(seeds: u64, stations: &[usize]) {
    let others = [Placement::FirstFit, Placement::BestFit, Placement::FewestJobs, Placement::Near];
    let heads = others.map(|placement| format!("{:>13}", placement.to_string())).join("");
    println!("by worst fit, delay 16\n{:>14} {:>4}{heads}  repartitioned", "streams", "cpus");
    for stations in stations {
        let kinds = [
            ("four", scenario(*stations, 16, &even(*stations))),
            ("uneven", scenario(*stations, 16, &uneven(*stations))),
            ("uneven, long", longer(scenario(*stations, 16, &uneven(*stations)), 10)),
        ];
        for (name, scenario) in kinds {
            let in_fours =
                |placement, repartition| with(&scenario, PoolForm::Size(4), placement, repartition);
            let mut all = vec![in_fours(Placement::WorstFit, false)];
            all.extend(others.map(|placement| in_fours(placement, false)));
            all.push(in_fours(Placement::WorstFit, true));
            let times = run(&all, seeds);
            let cells: String = times[1..].iter().map(|time| format!("{:>13.3}", time / times[0])).collect();
            println!("{name:>14} {:>4}{cells}", stations * 4);
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let table = arguments.next();
    let seeds = arguments.next().and_then(|text| text.parse().ok()).filter(|seeds| *seeds > 0);
    let cpus: Vec<usize> = arguments.filter_map(|text| text.parse().ok()).collect();
    let stations = |usual: &[usize]| -> Vec<usize> {
        let cpus = if cpus.is_empty() { usual } else { &cpus };
        cpus.iter().map(|cpus| cpus.div_ceil(12) * 3).collect()
    };
    match (table.as_deref(), seeds) {
        (Some("gap"), Some(seeds)) => gap(seeds, &stations(&[12, 24, 36, 48, 60])),
        (Some("placements"), Some(seeds)) => placements(seeds, &stations(&[12, 24])),
        _ => eprintln!("usage: streams gap|placements SEEDS [CPUS]..."),
    }
}
