//! Benchmark of the choice of gangs.
//!
//! ```text
//! cargo run --release -p commonhold-policy --example gangs [-- JOBS ...]
//! ```
//!
//! JOBS jobs of two threads each, all of which want CPUs, on eight CPUs. Transfers differ between jobs and
//! between quanta. For each number of jobs, and each rule, it prints medians in nanoseconds:
//! - *step*: a step within a quantum, minus one without gangs;
//! - *quantum*: a step that ends a quantum, minus one without gangs.
#![allow(clippy::disallowed_types, reason = "it measures time")]

use std::time::Instant;

use commonhold_contract::{Contract, Gangs, JobKind};
use commonhold_machine::Machine;
use commonhold_policy::plan::GangOrder;
use commonhold_policy::{
    Input, JobFacts, JobId, MS, Means, Plan, PolicyState, SharedUse, Snapshot, ThreadFacts, ThreadId,
    UnitFacts, step,
};

const JOBS: [u32; 3] = [10, 100, 1_000];
const WAYS: [Gangs; 3] = [Gangs::LatestQuantum, Gangs::QuantaWindow, Gangs::Demand];
const QUANTA: u32 = 201;
const THREADS: u64 = 2;
const QUANTUM: u64 = 200 * MS;

struct World {
    contract: Contract,
    machine: Machine,
    snapshot: Snapshot,
    state: PolicyState,
    stopped: Vec<bool>,
}

impl World {
    fn new(jobs: u32, by: Gangs) -> World {
        let mut contract = Contract::default();
        let unit = contract.add(None, "u");
        contract.units[unit.index()].job = Some(JobKind::Tree);
        contract.machine.gangs.by = by;
        let mut units = vec![UnitFacts::default(); contract.units.len()];
        (units[unit.index()].processes, units[unit.index()].runnable) = (jobs, jobs);
        let thread = |job: u32, at: u64| ThreadFacts {
            thread: ThreadId(u64::from(job) * THREADS + at),
            wants: true,
            cpu: None,
            tied: None,
        };
        let facts = |job| JobFacts {
            job: JobId(job),
            name: String::new(),
            unit,
            threads: (0..THREADS).map(|at| thread(job, at)).collect(),
            memory: None,
            shared: Some(SharedUse::default()),
        };
        World {
            machine: Machine::synthetic("cpus:8 memory:1GiB bus:10GB/s")
                .unwrap_or_else(|err| panic!("the machine: {err}")),
            snapshot: Snapshot { units, jobs: (0..jobs).map(facts).collect(), ..Snapshot::default() },
            contract,
            state: PolicyState::default(),
            stopped: vec![false; jobs as usize],
        }
    }

    /// Advances the time, and the transfers of running jobs.
    fn work(&mut self, time: u64, quantum: u32) {
        self.snapshot.at += time;
        let now = self.snapshot.at;
        self.snapshot.units.iter_mut().for_each(|facts| facts.at = now);
        for (facts, stopped) in self.snapshot.jobs.iter_mut().zip(&self.stopped) {
            facts.threads.iter_mut().for_each(|thread| thread.wants = !stopped);
            let Some(shared) = &mut facts.shared else { continue };
            shared.at = now;
            if !stopped {
                // Up to 2.4 GB/s, pseudo-random.
                shared.amount += u64::from((facts.job.0 * 7_919 + quantum * 104_729) % 241) * time / 100;
            }
        }
    }

    /// One step; its duration in nanoseconds.
    fn step(&mut self) -> (u64, Plan) {
        let now = self.snapshot.at;
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: Means { cpu_sets: true, weights: true, gangs: true, ..Means::NONE },
            snapshot: &self.snapshot,
            changes: &[],
        };
        let state = core::mem::take(&mut self.state);
        let begun = Instant::now();
        let (state, plan) = step(state, now, input);
        let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.state = state;
        for order in &plan.orders.gangs {
            let GangOrder::Gate { job, open, .. } = order.action;
            self.stopped[job.0 as usize] = !open;
        }
        (ns, plan)
    }
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// The median durations of steps within quanta, and at their ends.
fn measure(jobs: u32, by: Gangs) -> [u64; 2] {
    let mut world = World::new(jobs, by);
    let (mut within, mut ends) = (Vec::new(), Vec::new());
    world.work(QUANTUM, 0);
    world.step();
    for quantum in 1..=QUANTA {
        world.work(QUANTUM / 2, quantum);
        let (ns, plan) = world.step();
        assert!(by == Gangs::Off || plan.decisions.quantum.is_none_or(|quantum| !quantum.begins));
        within.push(ns);
        world.work(QUANTUM / 2, quantum);
        let (ns, plan) = world.step();
        assert!(by == Gangs::Off || plan.decisions.quantum.is_some_and(|quantum| quantum.begins));
        ends.push(ns);
    }
    assert_eq!(by == Gangs::Off, world.stopped.iter().all(|stopped| !stopped), "without gangs, no job waits");
    [median(within), median(ends)]
}

fn main() {
    let mut sizes: Vec<u32> = std::env::args().skip(1).filter_map(|jobs| jobs.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = JOBS.to_vec();
    }
    println!("{:>6} {:>16} {:>10} {:>10}", "jobs", "gangs", "step", "quantum");
    for jobs in sizes {
        let without = measure(jobs, Gangs::Off);
        for by in WAYS {
            let with = measure(jobs, by);
            let [step, quantum] = [0, 1].map(|at: usize| with[at].saturating_sub(without[at]));
            println!("{jobs:>6} {:>16} {step:>10} {quantum:>10}", by.name());
        }
    }
}
