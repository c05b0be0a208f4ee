//! Allocations of a step in steady state: at rest, and with every unit busy. Counted rather than timed, so
//! that the result is the same on any machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use commonhold_contract::Contract;
use commonhold_machine::Machine;
use commonhold_policy::{
    DiskMeans, Input, MS, Means, MemoryFacts, MemoryMeans, PolicyState, Snapshot, UnitFacts, UnitMemory, step,
};

#[path = "../../../bench/bounds.rs"]
mod bounds;

/// Counts per thread, since tests run in parallel.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Warm-up steps, and measured steps.
const WARM: u64 = 100;
const COUNTED: u64 = 100;

/// The means of the `user` backend, memory included.
const MEANS: Means = Means {
    cpu_sets: true,
    gates: true,
    disk: DiskMeans { caps: true, weights: true, shares: false, limits_only: true },
    memory: MemoryMeans {
        bounds: true,
        guarantees: false,
        reclaim: true,
        alarms: false,
        kill_order: false,
        frames: None,
    },
    ..Means::NONE
};

/// Mean allocations of a step, rounded up: eight CPUs, and units of four threads each that run, or sleep.
fn allocations(units: u32, runnable: u32) -> u64 {
    let mut contract = Contract::default();
    for unit in 0..units {
        contract.add(None, &format!("u{unit}"));
    }
    let machine = Machine::synthetic("nodes:2 cpus:4").unwrap_or_else(|problem| panic!("{problem}"));
    let facts = UnitFacts { processes: 1, runnable, ..UnitFacts::default() };
    let memory = UnitMemory { used: 4 << 20, anonymous: 1 << 20, ..UnitMemory::default() };
    let mut snapshot = Snapshot {
        units: vec![facts; contract.units.len()],
        memory: Some(MemoryFacts {
            total: 16 << 30,
            kernel: 1 << 30,
            shared: 1 << 30,
            units: vec![memory; contract.units.len()],
            ..MemoryFacts::default()
        }),
        ..Snapshot::default()
    };
    let mut state = PolicyState::default();
    let mut counted = 0;
    for number in 0..WARM + COUNTED {
        for facts in &mut snapshot.units {
            facts.at = snapshot.at;
            facts.used_ns += u64::from(facts.runnable) * MS;
        }
        let input =
            Input { contract: &contract, machine: &machine, means: MEANS, snapshot: &snapshot, changes: &[] };
        let before = COUNT.with(Cell::get);
        let (next, plan) = step(state, snapshot.at, input);
        if number >= WARM {
            counted += COUNT.with(Cell::get) - before;
        }
        (state, snapshot.at) = (next, plan.next);
    }
    counted.div_ceil(COUNTED)
}

#[test]
fn a_step_at_rest() {
    for (name, units) in [("policy-rest-4", 4), ("policy-rest-100", 100), ("policy-rest-1000", 1_000)] {
        bounds::hold(name, allocations(units, 0), file!());
    }
}

#[test]
fn a_step_with_every_unit_busy() {
    for (name, units) in [("policy-busy-4", 4), ("policy-busy-100", 100), ("policy-busy-1000", 1_000)] {
        bounds::hold(name, allocations(units, 4), file!());
    }
}
