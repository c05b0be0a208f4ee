//! Scaling of a step and its check: eight times as many units cost about eight times as much, and not
//! sixty-four times, as a scan of all units for each unit would.
#![allow(clippy::disallowed_types, reason = "it measures time")]

use std::time::{Duration, Instant};

use commonhold_contract::{Amount, Contract, UnitId};
use commonhold_machine::Machine;
use commonhold_policy::check::Books;
use commonhold_policy::{
    DiskFacts, DiskMeans, DiskUse, Input, MS, Means, MemoryFacts, MemoryMeans, PolicyState, Snapshot,
    UnitFacts, UnitMemory, step,
};

/// Upper bound on the ratio, for eight times the work.
const RATIO_MAX: u32 = 24;

fn means(weighs: bool) -> Means {
    let memory = MemoryMeans { bounds: true, guarantees: true, reclaim: true, ..MemoryMeans::NONE };
    let disk = DiskMeans { caps: true, weights: weighs, shares: false, limits_only: !weighs };
    Means { cpu_sets: true, weights: true, caps: true, disk, memory, ..Means::NONE }
}

/// Ten units in each of the others, all with limits.
fn contract(units: u32) -> Contract {
    let mut contract = Contract::default();
    let mut encloser = UnitId::SHARED;
    for n in 0..units {
        let parent = (n % 10 != 0).then_some(encloser);
        let unit = contract.add(parent, &format!("u{n}"));
        encloser = parent.unwrap_or(unit);
        contract.units[unit.index()].limit.disk = Some(Amount::Absolute(100_000_000));
        contract.units[unit.index()].limit.memory = Some(Amount::Part(900_000));
    }
    contract
}

/// The shortest of several steps, and of several checks, with all units using all resources.
fn shortest(units: u32, weighs: bool) -> [Duration; 2] {
    let contract = contract(units);
    let machine = Machine::synthetic("cpus:8 memory:64GiB disks:1").unwrap_or_else(|wrong| panic!("{wrong}"));
    let (mut state, mut books) = (PolicyState::default(), Books::default());
    let mut shortest = [Duration::MAX; 2];
    for round in 1..=12 {
        let (at, n) = (round * 500 * MS, contract.units.len());
        let of_disk = DiskUse {
            read_bytes: round * 1_000_000,
            requests: round * 10,
            stalled_ns: Some(at / 100 * 99),
            ..DiskUse::default()
        };
        let of_memory = UnitMemory {
            used: 4 << 20,
            anonymous: 1 << 20,
            refused: round,
            refaulted: round << 27,
            ..UnitMemory::default()
        };
        let disk =
            DiskFacts { name: "sda".into(), at, weighs, units: vec![of_disk; n], ..DiskFacts::default() };
        let units = vec![of_memory; n];
        let memory = MemoryFacts { total: 64 << 30, kernel: 1 << 30, units, ..MemoryFacts::default() };
        let of_cpus = UnitFacts { at, processes: 1, runnable: 1, ..UnitFacts::default() };
        let units = vec![of_cpus; n];
        let snapshot = Snapshot { at, units, disks: vec![disk], memory: Some(memory), ..Snapshot::default() };
        let input = Input {
            contract: &contract,
            machine: &machine,
            means: means(weighs),
            snapshot: &snapshot,
            changes: &[],
        };
        let begun = Instant::now();
        let (next, plan) = step(state, at, input);
        let decided = begun.elapsed();
        let begun = Instant::now();
        books = books.replay(&contract, &machine, &plan).unwrap_or_else(|wrong| panic!("{wrong:?}"));
        let both = [decided, begun.elapsed()];
        state = next;
        shortest = [0, 1].map(|i| shortest[i].min(both[i]));
    }
    shortest
}

#[test]
fn eight_times_as_many_units() {
    for weighs in [false, true] {
        let (few, many) = (shortest(250, weighs), shortest(2_000, weighs));
        assert!((0..2).all(|i| many[i] < few[i] * RATIO_MAX), "step and check: {few:?}, then {many:?}");
    }
}

/// The shortest of several first steps, which assign all home CPUs: one unit for every two CPUs.
fn dealing(nodes: u32) -> Duration {
    let machine = Machine::synthetic(&format!("nodes:{nodes} cpus:32 memory:64GiB"))
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut contract = Contract::default();
    for n in 0..nodes * 16 {
        contract.add(None, &format!("u{n}"));
    }
    let of_cpus = UnitFacts { processes: 1, runnable: 1, ..UnitFacts::default() };
    let snapshot = Snapshot { units: vec![of_cpus; contract.units.len()], ..Snapshot::default() };
    let changes = &[];
    let input =
        Input { contract: &contract, machine: &machine, means: means(false), snapshot: &snapshot, changes };
    let deal = || {
        let begun = Instant::now();
        let (_, plan) = step(PolicyState::default(), 0, input);
        assert!(plan.decisions.cpu.steps.len() >= machine.cpus.len(), "every CPU has an owner");
        begun.elapsed()
    };
    (0..5).map(|_| deal()).min().unwrap_or(Duration::MAX)
}

#[test]
fn eight_times_as_many_cpus() {
    let (few, many) = (dealing(16), dealing(128));
    assert!(many < few * RATIO_MAX, "dealing out 512 CPUs: {few:?}, and 4,096: {many:?}");
}
