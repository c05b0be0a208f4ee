//! The regimes of set A of seed 003: which jobs the published policies run together, from which starts, and
//! whether a policy leaves a regime by itself.
//!
//! usage: `regimes [PROGRAM]...`, by default all eleven programs of the paper.
//!
//! Two copies of a program run beside four BBMA, which saturate the bus. A quantum is *bad* if all four BBMA
//! run together: each then gets a quarter of the bus, and is measured to need a quarter, so that the other
//! three always seem to be the fittest beside the first. For each policy, and for each start, a line has the
//! part of bad quanta in the first 20 s and afterwards, the number of times that the policy left the bad
//! regime, the longest stay in it, and the improvement over Linux 2.4.
//!
//! The starts: the rate that is assumed of a job before its first measurement (nothing, a CPU's part of the
//! bus, or twice that), and whether all jobs start at once, or one after another.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "an example reads files, and means are for readers"
)]

use std::path::Path;

use commonhold_contract::{Amount, Gangs};
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::{Scenario, read};

const PROGRAMS: [&str; 11] =
    ["radiosity", "water-nsqr", "volrend", "barnes", "fmm", "lu-cb", "bt", "sp", "mg", "raytrace", "cg"];
/// The time between two samples of which job is on which CPU: a fourth of a quantum.
const SAMPLE_NS: u64 = 50_000_000;
/// The samples of the first 20 s.
const EARLY: usize = 400;
/// Assumed rates, in millionths of a CPU's part of the bus.
const FIRST_RATES: [u64; 3] = [0, 1_000_000, 2_000_000];
/// The times within which jobs start, in ns.
const STARTS_NS: [u64; 2] = [20_000_000, 5_000_000_000];

fn text(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/bus");
    std::fs::read_to_string(folder.join(file)).expect("scenarios/bus is there")
}

/// Two copies of a program beside four BBMA.
fn set_a(program: &str) -> Scenario {
    let scenario = read(&text("contract.toml"), &text("machine.toml"), &text("workload.toml")).scenario;
    let mut scenario = scenario.expect("scenarios/bus is valid");
    let count = |name: &str| match name {
        "bbma" => 4,
        name if name == program => 2,
        _ => 0,
    };
    for job in &mut scenario.workload.jobs {
        job.count = count(&job.name);
    }
    scenario.workload.jobs.retain(|job| job.count > 0);
    scenario.workload.trace_ns = Some(SAMPLE_NS);
    scenario
}

fn run(scenario: &Scenario) -> Outcome {
    commonhold_sim::run(scenario, 1).unwrap_or_else(|error| panic!("{error}"))
}

/// The mean time of the program's two copies, in s.
fn seconds(end: &Outcome, program: &str) -> f64 {
    let copies = end.jobs.iter().filter(|job| job.name == program);
    let times: Vec<f64> = copies.filter_map(|job| Some(job.response_ns()? as f64 / 1e9)).collect();
    times.iter().sum::<f64>() / times.len() as f64
}

/// For each sample, whether all four BBMA run.
fn bad(end: &Outcome) -> Vec<bool> {
    let moments = end.occupancy.as_ref().map(|it| it.moments.as_slice()).unwrap_or_default();
    let is_bbma = |job: &&usize| end.jobs[**job].name == "bbma";
    moments.iter().map(|moment| moment.iter().flatten().filter(is_bbma).count() == 4).collect()
}

fn part(bad: &[bool]) -> f64 {
    bad.iter().filter(|bad| **bad).count() as f64 / bad.len().max(1) as f64 * 100.0
}

fn main() {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let programs: Vec<&str> = match named.is_empty() {
        true => PROGRAMS.to_vec(),
        false => named.iter().map(String::as_str).collect(),
    };
    println!("program      policy          assumed  starts   bad early   later  left  longest  improvement");
    for program in programs {
        let plain = set_a(program);
        let mut linux = plain.clone();
        linux.contract.machine.gangs.by = Gangs::Off;
        let by_linux = seconds(&run(&linux), program);
        for by in [Gangs::LatestQuantum, Gangs::QuantaWindow] {
            for first_rate in FIRST_RATES {
                for starts_ns in STARTS_NS {
                    let mut scenario = plain.clone();
                    scenario.contract.machine.gangs.by = by;
                    scenario.contract.machine.gangs.first_rate = Amount::Part(first_rate);
                    if let Some(disturbance) = &mut scenario.hardware.disturbance {
                        disturbance.starts_ns = starts_ns;
                    }
                    let end = run(&scenario);
                    let bad = bad(&end);
                    let left = bad.windows(2).filter(|pair| pair[0] && !pair[1]).count();
                    let stays = bad.split(|bad| !bad).map(<[bool]>::len);
                    let longest_s = stays.max().unwrap_or(0) as f64 * SAMPLE_NS as f64 / 1e9;
                    let (early, later) = bad.split_at(EARLY.min(bad.len()));
                    let gain = (1.0 - seconds(&end, program) / by_linux) * 100.0;
                    println!(
                        "{program:12} {:14} {:6} % {:5.2} s {:9.0} % {:5.0} % {left:5} {longest_s:6.1} s {gain:10.0} %",
                        format!("{by:?}"),
                        first_rate / 10_000,
                        starts_ns as f64 / 1e9,
                        part(early),
                        part(later),
                    );
                }
            }
        }
    }
}
