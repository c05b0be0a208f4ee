//! Benchmark of thread placement, and of assigning home CPUs to a new unit, on machines of several sizes.
//!
//! ```text
//! cargo run --release -p commonhold-policy --example placement [-- SHAPE ...]
//! ```
//!
//! Half of the CPUs are filled with threads, in jobs of eight, of two units that own their CPUs. For each
//! machine it prints medians of several rounds, in nanoseconds:
//! - *come*: a step in which all of these threads come and get seats, per thread;
//! - *one*: a step in which one more thread comes, minus a quiet one;
//! - *quiet*: a step in which nothing changes, per thread;
//! - *unit*: a step in which one more unit comes and gets home CPUs, minus a quiet one.
#![allow(clippy::disallowed_types, reason = "it measures time")]

use std::time::Instant;

use commonhold_contract::{Contract, JobKind, UnitId};
use commonhold_machine::Machine;
use commonhold_policy::{
    Input, JobFacts, JobId, MS, Means, Plan, PolicyState, Seats, Snapshot, ThreadFacts, ThreadId, UnitFacts,
    step,
};

/// 512 CPUs in 64 pools, and 4,096 in 512.
const SHAPES: [&str; 2] =
    ["sockets:4 nodes:16 cpus:32 caches:4 memory:1GiB", "sockets:8 nodes:64 cpus:64 caches:8 memory:1GiB"];
const ROUNDS: usize = 9;
const JOB: usize = 8;

/// A machine with units, and the policy's state.
struct World {
    contract: Contract,
    machine: Machine,
    snapshot: Snapshot,
    state: PolicyState,
}

impl World {
    fn new(shape: &str, units: u32) -> World {
        let mut contract = Contract::default();
        for unit in 0..units {
            let id = contract.add(None, &format!("u{unit}"));
            contract.units[id.index()].job = Some(JobKind::Tree);
        }
        let mut world = World {
            machine: Machine::synthetic(shape).unwrap_or_else(|err| panic!("{shape}: {err}")),
            snapshot: Snapshot {
                units: vec![UnitFacts::default(); contract.units.len()],
                ..Snapshot::default()
            },
            contract,
            state: PolicyState::default(),
        };
        world.there(units - 1);
        world
    }

    /// Sets how many units have processes.
    fn there(&mut self, units: u32) {
        for facts in self.snapshot.units.iter_mut().skip(2).take(units as usize) {
            (facts.processes, facts.runnable) = (1, 1);
        }
    }

    fn come(&mut self, job: u32, threads: usize) {
        let came = self.snapshot.jobs.iter().map(|job| job.threads.len() as u64).sum::<u64>();
        let thread = |n: u64| ThreadFacts { thread: ThreadId(came + n), wants: true, cpu: None, tied: None };
        self.snapshot.jobs.push(JobFacts {
            job: JobId(job),
            name: String::new(),
            unit: UnitId(2 + job % 2),
            threads: (0..threads as u64).map(thread).collect(),
            memory: None,
            shared: None,
        });
    }

    /// One step; its duration in nanoseconds.
    fn step(&mut self) -> (u64, Plan) {
        self.snapshot.at += 10 * MS;
        let now = self.snapshot.at;
        self.snapshot.units.iter_mut().for_each(|facts| facts.at = now);
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: Means { cpu_sets: true, weights: true, seats: Seats::Cpus, ..Means::NONE },
            snapshot: &self.snapshot,
            changes: &[],
        };
        let state = core::mem::take(&mut self.state);
        let begun = Instant::now();
        let (state, plan) = step(state, now, input);
        let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.state = state;
        (ns, plan)
    }
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

fn measure(shape: &str) -> [u64; 4] {
    let mut times: [Vec<u64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let mut world = World::new(shape, 3);
        let threads = world.machine.cpus.len() / 2;
        world.step();
        let before = world.step().0;
        let jobs = u32::try_from(threads / JOB).unwrap_or(u32::MAX);
        (0..jobs).for_each(|job| world.come(job, JOB));
        let (came, plan) = world.step();
        assert_eq!(plan.decisions.seats.iter().filter(|seat| seat.action.pool.is_some()).count(), threads);
        let quiet = (0..5).map(|_| world.step().0).min().unwrap_or(0);
        world.come(jobs, 1);
        let (one, plan) = world.step();
        assert_eq!(plan.decisions.seats.len(), 1);
        let mut alone = World::new(shape, 3);
        alone.step();
        let still = (0..5).map(|_| alone.step().0).min().unwrap_or(0);
        alone.there(3);
        let unit = alone.step().0;
        let each = |ns: u64| ns / threads as u64;
        let all = [
            each(came.saturating_sub(before)),
            one.saturating_sub(quiet),
            each(quiet.saturating_sub(before)),
            unit.saturating_sub(still),
        ];
        times.iter_mut().zip(all).for_each(|(times, ns)| times.push(ns));
    }
    times.map(median)
}

fn main() {
    let mut shapes: Vec<String> = std::env::args().skip(1).collect();
    if shapes.is_empty() {
        shapes = SHAPES.map(str::to_owned).to_vec();
    }
    println!("{:>6} {:>10} {:>10} {:>10} {:>10}", "cpus", "come", "one", "quiet", "unit");
    for shape in shapes {
        let cpus = Machine::synthetic(&shape).map_or(0, |machine| machine.cpus.len());
        let [come, one, quiet, unit] = measure(&shape);
        println!("{cpus:>6} {come:>10} {one:>10} {quiet:>10} {unit:>10}");
    }
}
