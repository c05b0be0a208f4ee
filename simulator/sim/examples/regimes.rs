//! The regimes of set A of seed 003: which jobs the published policies run together, from which starts, and
//! whether a policy leaves a regime by itself.
//!
//! usage: `regimes [PROGRAM]...`, by default all eleven programs of the paper.
//!
//! Two copies of a program run beside four BBMA, which saturate the bus. A quantum is *bad* if all four BBMA
//! run together: each then gets a quarter of the bus, and is measured to need a quarter, so that the other
//! three always seem to be the fittest beside the first. For each policy and each start, a line has the part
//! of bad quanta in the first 20 s and afterwards, how often in a minute the policy left the bad regime, the
//! longest stay in it, and the improvement over Linux 2.4 from the same start; all are means over the
//! programs.
//!
//! Threads wait at barriers by the kind of their program (OpenMP's spin, others sleep), or all spin. The
//! starts: the rate that is assumed of a job before its first measurement (nothing, a CPU's part of the bus,
//! or twice that), and whether all jobs start at once, or one after another.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "an example reads files, and means are for readers"
)]

use std::path::Path;

use commonhold_contract::{Amount, Gangs};
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::{Job, Op, Scenario, read};

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
    let template = scenario.workload.jobs.remove(0);
    let job = |(name, count): (&str, u32)| {
        let number = scenario.workload.programs.iter().position(|program| program.name == name);
        let number = number.and_then(|number| u32::try_from(number).ok());
        let number = number.unwrap_or_else(|| panic!("scenarios/bus has no program {name}"));
        Job { name: name.to_owned(), program: number, count, background: name == "bbma", ..template.clone() }
    };
    let jobs = [(program, 2), ("bbma", 4)].map(job);
    scenario.workload.jobs = jobs.to_vec();
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
    let Some(occupancy) = &end.occupancy else { return Vec::new() };
    let is_bbma = |job: &&usize| end.jobs[occupancy.jobs[**job] as usize].name == "bbma";
    occupancy.moments.iter().map(|moment| moment.iter().flatten().filter(is_bbma).count() == 4).collect()
}

/// The part of bad samples, in per cent.
fn part(bad: &[bool]) -> f64 {
    bad.iter().filter(|bad| **bad).count() as f64 / bad.len().max(1) as f64 * 100.0
}

/// One way to start a set, and to wait at barriers.
#[derive(Clone, Copy)]
struct Way {
    by: Gangs,
    first_rate: u64,
    starts_ns: u64,
    all_spin: bool,
}

impl Way {
    fn apply(self, scenario: &mut Scenario) {
        scenario.contract.machine.gangs.by = self.by;
        scenario.contract.machine.gangs.first_rate = Amount::Part(self.first_rate);
        if let Some(disturbance) = &mut scenario.hardware.disturbance {
            disturbance.starts_ns = self.starts_ns;
        }
        for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
            if let (Op::Barrier { spin_ns, .. }, true) = (op, self.all_spin) {
                *spin_ns = u64::MAX;
            }
        }
    }
}

/// What a way comes to: bad samples early and later in per cent, times that the regime was left in a minute,
/// the longest stay in s, and the improvement over Linux in per cent.
fn measured(way: Way, program: &str) -> [f64; 5] {
    let with = |by: Gangs| {
        let mut scenario = set_a(program);
        Way { by, ..way }.apply(&mut scenario);
        run(&scenario)
    };
    let (end, by_linux) = (with(way.by), seconds(&with(Gangs::Off), program));
    let bad = bad(&end);
    let left = bad.windows(2).filter(|pair| pair[0] && !pair[1]).count() as f64;
    let minutes = bad.len() as f64 * SAMPLE_NS as f64 / 6e10;
    let stays = bad.split(|bad| !bad).map(<[bool]>::len);
    let longest_s = stays.max().unwrap_or(0) as f64 * SAMPLE_NS as f64 / 1e9;
    let (early, later) = bad.split_at(EARLY.min(bad.len()));
    [part(early), part(later), left / minutes, longest_s, (1.0 - seconds(&end, program) / by_linux) * 100.0]
}

fn main() {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let programs: Vec<&str> = match named.is_empty() {
        true => PROGRAMS.to_vec(),
        false => named.iter().map(String::as_str).collect(),
    };
    println!("waits   policy         assumed  starts  bad early  later  left a minute  longest  improvement");
    for all_spin in [false, true] {
        for by in [Gangs::LatestQuantum, Gangs::QuantaWindow] {
            for first_rate in FIRST_RATES {
                for starts_ns in STARTS_NS {
                    let way = Way { by, first_rate, starts_ns, all_spin };
                    let mut sums = [0.0; 5];
                    for program in &programs {
                        for (sum, value) in sums.iter_mut().zip(measured(way, program)) {
                            *sum += value;
                        }
                    }
                    let [early, later, left, longest, gain] = sums.map(|sum| sum / programs.len() as f64);
                    println!(
                        "{:7} {:14} {:5} %  {:4.2} s {early:8.0} % {later:4.0} % {left:14.1} {longest:6.1} s {gain:10.0} %",
                        if all_spin { "spin" } else { "by kind" },
                        format!("{by:?}"),
                        first_rate / 10_000,
                        starts_ns as f64 / 1e9,
                    );
                }
            }
        }
    }
}
