//! Benchmark of policy steps, on machines and contracts of several sizes.
//!
//! ```text
//! cargo run --release -p commonhold-policy --example steps [-- CPUS:UNITS[:THREADS] ...]
//! ```
//!
//! Every unit is a top-level one with as many tickets as its number, so that most units hold a fraction of a
//! CPU beside whole ones. For each size it prints medians of several runs, in nanoseconds:
//! - *first*: the step that assigns everything;
//! - *quiet*: a step in which nothing changes;
//! - *turn*: a step in which shared CPUs pass on;
//! - *wake*: a step in which the sleeping half calls its CPUs back, and the other half falls asleep;
//! - *check*: the plan checker on the quiet step's plan.
#![allow(clippy::disallowed_types, reason = "it measures time")]

use std::time::Instant;

use commonhold_contract::{Contract, PerResource};
use commonhold_machine::Machine;
use commonhold_policy::check::Books;
use commonhold_policy::{Input, MS, Means, Plan, PolicyState, Snapshot, UnitFacts, step};

/// The default sizes: CPUs, units and hardware threads per core.
const SIZES: [(u32, u32, u32); 6] =
    [(8, 4, 1), (64, 8, 2), (256, 1_000, 2), (1_024, 100, 2), (4_096, 8, 1), (4_096, 1_000, 1)];

/// CPUs per node on larger machines.
const NODE_CPUS: u32 = 512;

/// The means that make the policy decide the most: CPU sets without weights.
const MEANS: Means =
    Means { cpu_sets: true, weights: false, caps: false, gates: true, switches: false, ..Means::NONE };

/// A machine, the units on it, and the states of the policy and its checker.
struct World {
    contract: Contract,
    machine: Machine,
    snapshot: Snapshot,
    state: PolicyState,
    books: Books,
}

impl World {
    fn new(cpus: u32, units: u32, threads: u32) -> World {
        let nodes = cpus.div_ceil(NODE_CPUS);
        let text = format!("nodes:{nodes} cpus:{} threads:{threads} memory:1GiB", cpus / nodes);
        let mut contract = Contract::default();
        for n in 0..units {
            let unit = contract.add(None, &format!("u{n}"));
            contract.units[unit.index()].tickets = PerResource::all(u64::from(n) + 1);
        }
        World {
            machine: Machine::synthetic(&text).unwrap_or_else(|err| panic!("{text}: {err}")),
            snapshot: Snapshot {
                units: vec![UnitFacts::default(); contract.units.len()],
                ..Snapshot::default()
            },
            contract,
            state: PolicyState::default(),
            books: Books::default(),
        }
    }

    /// Units with this parity want eight CPUs more each than the machine has; the others sleep.
    fn wake(&mut self, parity: usize) {
        let many = u32::try_from(self.machine.cpus.len() / self.contract.units.len()).unwrap_or(0) + 8;
        for (n, facts) in self.snapshot.units.iter_mut().enumerate().skip(2) {
            (facts.processes, facts.runnable) = (1, if n % 2 == parity { many } else { 0 });
        }
    }

    /// One step, `ms` later; its duration in nanoseconds, and its plan.
    fn after(&mut self, ms: u64) -> (u128, Plan) {
        self.snapshot.at += ms * MS;
        let now = self.snapshot.at;
        self.snapshot.units.iter_mut().for_each(|facts| facts.at = now);
        let state = core::mem::take(&mut self.state);
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: MEANS,
            snapshot: &self.snapshot,
            changes: &[],
        };
        let begun = Instant::now();
        let (state, plan) = step(state, now, input);
        let ns = begun.elapsed().as_nanos();
        self.state = state;
        (ns, plan)
    }

    /// The duration of checking a plan, in nanoseconds.
    fn check(&mut self, plan: &Plan) -> u128 {
        let begun = Instant::now();
        let books = self.books.replay(&self.contract, &self.machine, plan);
        let ns = begun.elapsed().as_nanos();
        self.books = books.unwrap_or_else(|wrong| panic!("{}", wrong.join("\n")));
        ns
    }
}

/// The results for one size, in nanoseconds.
#[derive(Default)]
struct Times {
    first: Vec<u128>,
    quiet: Vec<u128>,
    turn: Vec<u128>,
    wake: Vec<u128>,
    check: Vec<u128>,
}

impl Times {
    fn measure(&mut self, (cpus, units, threads): (u32, u32, u32)) {
        let mut world = World::new(cpus, units, threads);
        world.wake(0);
        let (ns, plan) = world.after(1);
        self.first.push(ns);
        world.check(&plan);
        for round in 1..=4 {
            // Long enough for demand to settle and for a turn to end, so that the next step is quiet.
            for _ in 0..3 {
                let plan = world.after(300).1;
                world.check(&plan);
            }
            let (ns, plan) = world.after(1);
            self.quiet.push(ns);
            self.check.push(world.check(&plan));
            let (ns, plan) = world.after(300);
            self.turn.push(ns);
            world.check(&plan);
            world.wake(round % 2);
            let (ns, plan) = world.after(60);
            self.wake.push(ns);
            world.check(&plan);
        }
    }
}

fn median(times: &mut [u128]) -> u128 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// `CPUS:UNITS` or `CPUS:UNITS:THREADS`.
fn size(text: &str) -> (u32, u32, u32) {
    let numbers: Option<Vec<u32>> =
        text.split(':').map(|part| part.parse().ok().filter(|n| *n > 0)).collect();
    match numbers.as_deref() {
        Some([cpus, units]) => (*cpus, *units, 1),
        Some([cpus, units, threads]) => (*cpus, *units, *threads),
        _ => panic!("`{text}` is no size: write CPUS:UNITS or CPUS:UNITS:THREADS, such as 4096:8"),
    }
}

fn main() {
    let mut sizes: Vec<(u32, u32, u32)> = std::env::args().skip(1).map(|text| size(&text)).collect();
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    println!(
        "{:>6} {:>6} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "cpus", "units", "first", "quiet", "turn", "wake", "check"
    );
    for size in sizes {
        let mut times = Times::default();
        for _ in 0..5 {
            times.measure(size);
        }
        let Times { first, quiet, turn, wake, check } = &mut times;
        let [first, quiet, turn, wake, check] = [first, quiet, turn, wake, check].map(|times| median(times));
        println!("{:>6} {:>6} {first:>12} {quiet:>12} {turn:>12} {wake:>12} {check:>12}", size.0, size.1);
    }
}
