//! Benchmark of changes of rights, including a lookup of the resulting values. See bench/rights.
//!
//! usage: `rights [ROUNDS]`. For each shape of a tree of 10,000 units it prints a line per round: nanoseconds
//! of an activation, of a transfer, and of an exchange from its two offers to its end, each the mean of a
//! thousand.
//! - *flat*: all at the top level;
//! - *nested*: a hundred units of a hundred sub-units each;
//! - *limited*: flat, with a hundred different limits, each for a hundred units; most of these are reached.
#![allow(clippy::disallowed_types, reason = "it measures time")]

use std::hint::black_box;
use std::time::Instant;

use commonhold_contract::{Amount, Contract, MILLIONTH, Resource, UnitId};
use commonhold_policy::entitlement::Capacity;
use commonhold_policy::rights::{Bid, Change, Offer, Rights, Trade};

const UNITS: u32 = 10_000;
const CHANGES: u32 = 1_000;
const CPUS: u64 = 4_096;

fn contract(shape: &str) -> Contract {
    let mut contract = Contract::default();
    let enclosers = if shape == "nested" { 100 } else { 0 };
    let enclosers: Vec<UnitId> = (0..enclosers).map(|n| contract.add(None, &format!("e{n}"))).collect();
    for n in 0..UNITS {
        let encloser = enclosers.get(n as usize % enclosers.len().max(1)).copied();
        let unit = contract.add(encloser, &format!("u{n}"));
        let unit = &mut contract.units[unit.index()];
        if shape == "limited" {
            // Around the 0.4 CPUs that each would have by equal tickets.
            unit.limit.cpu = Some(Amount::Absolute(u64::from(n % 100 + 1) * MILLIONTH / 200));
        }
    }
    contract
}

/// Leaf units in pseudo-random order.
struct Dice {
    first: u32,
    state: u64,
}

impl Dice {
    fn unit(&mut self) -> UnitId {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (self.state >> 33) % u64::from(UNITS);
        UnitId(self.first + u32::try_from(number).expect("it is below 10,000"))
    }
}

/// Mean nanoseconds of a change by `make`, which is given the number of the change.
fn measure(mut make: impl FnMut(usize)) -> u128 {
    let begun = Instant::now();
    for n in 0..CHANGES as usize {
        make(n);
    }
    begun.elapsed().as_nanos() / u128::from(CHANGES)
}

fn round(rights: &mut Rights, dice: &mut Dice, step: u32) -> [u128; 4] {
    let units: Vec<UnitId> = (0..CHANGES).map(|_| dice.unit()).collect();
    for unit in &units {
        rights.set_present(*unit, false).expect("the unit exists");
    }
    let activation = measure(|n| {
        rights.set_present(units[n], true).expect("the unit exists");
        black_box(rights.value(units[n], Resource::Cpu));
    });
    let last = dice.first + UNITS;
    let pairs = |step: u32| -> Vec<(UnitId, UnitId)> {
        let next = |unit: UnitId| if unit.0 + step < last { unit.0 + step } else { unit.0 - step };
        units.iter().map(|unit| (*unit, UnitId(next(*unit)))).collect()
    };
    // The next sibling, and the next unit in another encloser, if there are several.
    let (pairs, apart) = (pairs(step), pairs(1));
    let transfer = measure(|n| {
        let (from, to) = pairs[n];
        rights.transfer(from, to, Resource::Cpu, 1).expect("it has a thousand");
        black_box((rights.value(from, Resource::Cpu), rights.value(to, Resource::Cpu)));
    });
    for (from, to) in &pairs {
        rights.transfer(*to, *from, Resource::Cpu, 1).expect("it has what it was given");
    }
    let near = measure(|n| exchange(rights, pairs[n]));
    let far = measure(|n| exchange(rights, apart[n]));
    [activation, transfer, near, far]
}

/// Two units offer each other a ticket; once both values are looked up, the exchange ends.
fn exchange(rights: &mut Rights, (one, other): (UnitId, UnitId)) {
    let [cpu, disk] = [Resource::Cpu, Resource::Disk].map(|resource| Offer::tickets(resource, 1));
    for (by, gives, wants) in [(one, cpu, disk), (other, disk, cpu)] {
        let bid = Bid { by, gives, wants, with: None, for_ns: None, at_least: None, bound: false };
        rights.apply(Change::Offer { bid }).expect("it has a hundred");
    }
    let Some(Trade::Made { deal, .. }) = rights.settle(0).pop() else { panic!("the offers fit") };
    black_box((rights.value(one, Resource::Cpu), rights.value(other, Resource::Cpu)));
    rights.apply(Change::Cancel { number: deal }).expect("it is in force");
    black_box(rights.settle(0));
}

fn main() {
    let rounds: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    for shape in ["flat", "nested", "limited"] {
        let contract = contract(shape);
        let mut rights = Rights::new(&contract);
        rights.set_capacity(Resource::Cpu, Capacity::Known(CPUS * MILLIONTH));
        let first = u32::try_from(contract.units.len()).expect("there are few") - UNITS;
        for unit in (first..first + UNITS).map(UnitId) {
            rights.set_present(unit, true).expect("the unit exists");
            rights.set_tickets(unit, Resource::Cpu, 10_000).expect("the number of tickets is valid");
        }
        let mut dice = Dice { first, state: 1 };
        for _ in 0..rounds {
            let step = if shape == "nested" { 100 } else { 1 };
            let [activation, transfer, exchange, apart] = round(&mut rights, &mut dice, step);
            println!(
                "{shape}: activation {activation} ns, transfer {transfer} ns, exchange {exchange} ns, apart {apart} ns"
            );
        }
        let all = rights.entitlement(Resource::Cpu);
        assert_eq!(all.own.iter().sum::<u64>() + all.unheld, CPUS * MILLIONTH, "rights are conserved");
    }
}
