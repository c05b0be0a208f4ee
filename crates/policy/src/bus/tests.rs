//! The bus in a small simulation of whole quanta: running threads transfer what the queueing model says.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::snapshot::{JobFacts, Means, Snapshot, UnitFacts};
use commonhold_contract::{Amount, Permission};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const QUANTUM: Time = 200 * MS;
const BUS: u64 = 10 * SECOND;
const A: UnitId = UnitId(2);
const B: UnitId = UnitId(3);

/// Threads of a unit, and what each would transfer alone, in percent of the bus.
type Unit = (u32, u64);

struct World {
    contract: Contract,
    machine: Machine,
    means: Means,
    gangs: bool,
    /// What the processor reports for units, in percent of what their gangs transfer; `None`: nothing.
    tells: Option<u64>,
    /// Demands seem a third as large while others transfer.
    hides: bool,
    rights: Rights,
    state: BusAccounts,
    now: Time,
    units: BTreeMap<UnitId, Unit>,
    bytes: BTreeMap<UnitId, u64>,
    due: BTreeMap<UnitId, u64>,
    most_due: BTreeMap<UnitId, u64>,
    waited: BTreeMap<UnitId, u64>,
    in_a_row: BTreeMap<UnitId, u64>,
    longest: u64,
    percent: BTreeMap<UnitId, u32>,
    quanta: u64,
    plan: Option<BusPlan>,
}

impl World {
    fn new(units: &[Unit]) -> World {
        let mut contract = Contract::default();
        for at in 0..units.len() {
            contract.add(None, &format!("u{at}"));
        }
        World::of(contract, units)
    }

    /// Units in the contract's order.
    fn of(contract: Contract, units: &[Unit]) -> World {
        let machine = Machine::synthetic("nodes:1 cpus:16 bus:10GB/s").unwrap();
        let mut rights = Rights::new(&contract);
        rights.set_capacity(Resource::Bus, capacity(&contract, &machine, Resource::Bus));
        for unit in contract.held() {
            rights.set_present(unit, true).unwrap();
        }
        World {
            units: contract.held().zip(units.iter().copied()).collect(),
            contract,
            machine,
            means: Means { gangs: true, ..Means::NONE },
            gangs: true,
            tells: None,
            hides: false,
            rights,
            state: BusAccounts::default(),
            now: SECOND,
            bytes: BTreeMap::new(),
            due: BTreeMap::new(),
            most_due: BTreeMap::new(),
            waited: BTreeMap::new(),
            in_a_row: BTreeMap::new(),
            longest: 0,
            percent: BTreeMap::new(),
            quanta: 0,
            plan: None,
        }
    }

    /// The transfers of each unit's threads in this quantum.
    fn ran(&self) -> Vec<GangUse> {
        let waits = |unit: UnitId| self.gangs && self.state.waits(&self.contract, unit).is_some();
        let runs: Vec<(UnitId, ThreadSet)> = (self.units.iter())
            .filter(|(unit, (threads, _))| *threads > 0 && !waits(**unit))
            .map(|(unit, (threads, percent))| {
                (*unit, ThreadSet { threads: *threads, part: WHOLE * percent / 100 })
            })
            .collect();
        let sets: Vec<ThreadSet> = runs.iter().map(|(_, set)| *set).collect();
        let parts = queue::private_bus_rates(&sets, WHOLE);
        let ran = |((unit, wants), part): (&(UnitId, ThreadSet), u64)| {
            // The processor's throttle lets through twice its percentage.
            let percent = u64::from(*self.percent.get(unit).unwrap_or(&100) * 2).min(100);
            let bytes = part_of(part_of(BUS, part, WHOLE), QUANTUM, SECOND) * percent / 100;
            let seen = if self.hides && runs.len() > 1 { wants.part / 3 } else { wants.part };
            let wants = ThreadSet { part: seen, ..*wants };
            GangUse { job: JobId(unit.0), unit: *unit, bytes, span_ns: QUANTUM, wants }
        };
        runs.iter().zip(parts).map(ran).collect()
    }

    fn quantum(&mut self) {
        let ran = self.ran();
        for ran in &ran {
            *self.bytes.entry(ran.unit).or_default() += ran.bytes;
        }
        self.now += QUANTUM;
        let facts = |unit: UnitId| UnitFacts {
            bus: self.tells.map(|percent| {
                let bytes = self.bytes.get(&unit).copied().unwrap_or(0) * percent / 100;
                BusUse { at: self.now, bytes }
            }),
            ..UnitFacts::default()
        };
        let job = |unit: &UnitId| JobFacts {
            job: JobId(unit.0),
            name: alloc::string::String::new(),
            unit: *unit,
            threads: Vec::new(),
            memory: None,
            shared: None,
        };
        let snapshot = Snapshot {
            at: self.now,
            units: self.contract.ids().map(facts).collect(),
            jobs: self.units.keys().map(job).collect(),
            ..Snapshot::default()
        };
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: self.means,
            snapshot: &snapshot,
            changes: &[],
        };
        let ended = QuantumEnd { ran: if self.gangs { &ran } else { &[] }, gangs: self.gangs, now: true };
        let mut orders = Vec::new();
        self.plan = step(&mut self.state, self.now, input, &self.rights, &ended, &mut orders).0;
        for order in &orders {
            let BusOrder::Throttle { unit, percent } = order.action;
            assert!(self.percent.insert(unit, percent) != Some(percent), "an order that changes nothing");
        }
        self.quanta += 1;
        for part in self.plan.iter().flat_map(|plan| &plan.units) {
            *self.due.entry(part.unit).or_default() += part_of(part.due, QUANTUM, SECOND);
            *self.waited.entry(part.unit).or_default() += u64::from(part.waits);
            let row = self.in_a_row.entry(part.unit).or_default();
            *row = if part.waits { *row + 1 } else { 0 };
            self.longest = self.longest.max(*row);
            assert!(part.most.is_none_or(|most| part.due <= most), "{part:?}");
            let most = self.most_due.entry(part.unit).or_default();
            *most = part.due.max(*most);
            assert!(part.owed.abs() <= bytes(*most, QUANTUM) * KEPT_QUANTA, "{part:?}");
        }
    }

    fn quanta(&mut self, quanta: u64) -> &mut World {
        // The first quantum only begins.
        self.state.began = self.now;
        (0..quanta).for_each(|_| self.quantum());
        self
    }

    /// Mean transfers, in bytes per second.
    fn rate(&self, unit: UnitId) -> u64 {
        part_of(self.bytes.get(&unit).copied().unwrap_or(0), SECOND, self.quanta * QUANTUM)
    }

    /// Mean due, in bytes per second.
    fn due(&self, unit: UnitId) -> u64 {
        part_of(self.due.get(&unit).copied().unwrap_or(0), SECOND, self.quanta * QUANTUM)
    }
}

/// A wants 5 GB/s with two threads, and B streams with six. Without accounts, A would have 2.9.
#[test]
fn a_unit_above_its_entitlement_yields() {
    let mut world = World::new(&[(2, 25), (6, 95)]);
    let before = world.ran()[0].bytes * 5;
    world.quanta(100);
    let (had, due) = (world.rate(A), world.due(A));
    assert!(before < due * 8 / 10, "there is something to be held: {before} of {due}");
    assert!(had >= due * 97 / 100, "{had} of {due}");
    assert!(world.rate(B) >= world.due(B) * 75 / 100, "{} of {}", world.rate(B), world.due(B));
    assert!(world.waited[&B] > 10 && world.waited[&A] == 0, "{:?}", world.waited);
    assert!(world.longest <= KEPT_QUANTA as u64, "{}", world.longest);
    assert!(world.due(B) > BUS * 45 / 100, "while it waits, it is due what it was: {}", world.due(B));
}

/// Both stream, and one is entitled to three quarters. The other waits for it.
#[test]
fn two_that_stream_are_divided_by_their_parts() {
    let mut contract = Contract::default();
    let large = contract.add(None, "large");
    let small = contract.add(None, "small");
    contract.units[large.index()].tickets = commonhold_contract::PerResource::all(300);
    let mut world = World::of(contract, &[(4, 95), (4, 95)]);
    world.quanta(200);
    for unit in [large, small] {
        let (had, due) = (world.rate(unit), world.due(unit));
        assert!(had >= due * 88 / 100, "{had} of {due} for {unit:?}");
    }
    assert!(world.rate(large) > world.rate(small) * 2, "{} {}", world.rate(large), world.rate(small));
}

#[test]
fn no_unit_yields_to_one_without_demand() {
    let mut world = World::new(&[(4, 0), (4, 95)]);
    world.quanta(50);
    assert_eq!((world.waited.get(&A), world.waited.get(&B)), (Some(&0), Some(&0)));
    assert!(world.rate(B) > BUS * 95 / 100, "all that is idle is lent: {}", world.rate(B));
}

#[test]
fn a_limit_is_held_on_average() {
    let mut world = World::new(&[(2, 10), (4, 95)]);
    world.contract.units[B.index()].limit.bus = Some(Amount::Absolute(SECOND));
    world.quanta(200);
    let rate = world.rate(B);
    assert!(rate <= SECOND * 105 / 100, "{rate}");
    assert!(rate >= SECOND * 90 / 100, "{rate}");
    assert_eq!(world.plan.as_ref().unwrap().units[1].most, Some(SECOND));
}

/// Debt to a sleeping unit decays. What it does not transfer while it sleeps accumulates for no more than one
/// quantum.
#[test]
fn a_sleeping_unit_accumulates_no_debt() {
    let mut world = World::new(&[(2, 25), (6, 95)]);
    world.contract.units[B.index()].limit.bus = Some(Amount::Absolute(SECOND));
    world.quanta(20);
    for unit in [A, B] {
        world.units.insert(unit, (0, 0));
    }
    world.quanta(50);
    let account = |world: &World, unit| {
        *world.plan.as_ref().unwrap().units.iter().find(|part| part.unit == unit).unwrap()
    };
    assert_eq!((account(&world, A).owed, account(&world, B).owed), (0, 0));
    world.units.insert(B, (1, 12));
    let before = world.bytes[&B];
    world.quanta(20);
    // 1.2 GB/s alone: one quantum's tokens, and the refill.
    let (had, may) = (world.bytes[&B] - before, SECOND * 20 / 5);
    assert!(had <= may * 115 / 100, "{had} of {may}");
}

/// A demand that a full bus hides is remembered. When it falls, that shows as soon as the bus is not full.
#[test]
fn a_demand_hidden_by_a_full_bus_is_remembered() {
    let mut hidden = World::new(&[(2, 25), (6, 95)]);
    hidden.hides = true;
    // It was never measured without a full bus: it is probed after fifty quanta.
    hidden.quanta(60);
    let before = hidden.bytes[&A];
    hidden.quanta(40);
    let rate = part_of(hidden.bytes[&A] - before, SECOND, 40 * QUANTUM);
    let mut plain = World::new(&[(2, 25), (6, 95)]);
    plain.quanta(100);
    assert!(rate >= plain.rate(A) * 90 / 100, "{rate} of {}", plain.rate(A));
    hidden.units.insert(B, (0, 0));
    hidden.units.insert(A, (2, 2));
    hidden.quanta(2);
    let due = hidden.plan.as_ref().unwrap().units[0].due;
    assert!(due <= BUS * 4 / 100, "{due}");
}

/// A sub-unit's limit binds it, and not the units around it.
#[test]
fn a_sub_units_limit() {
    let mut contract = Contract::default();
    let outer = contract.add(None, "outer");
    let inner = contract.add(Some(outer), "inner");
    contract.units[inner.index()].limit.bus = Some(Amount::Part(100_000));
    let mut world = World::of(contract, &[(2, 20), (2, 80)]);
    world.quanta(100);
    assert!(world.rate(inner) <= SECOND * 105 / 100, "{}", world.rate(inner));
    assert_eq!(world.waited.get(&outer), Some(&0));
}

#[test]
fn bandwidth_that_is_not_lent_or_not_borrowed_stays_unused() {
    for change in [
        |contract: &mut Contract| contract.units[A.index()].lend.bus = Permission::No,
        |contract: &mut Contract| contract.units[B.index()].borrow.bus = Permission::No,
        |contract: &mut Contract| contract.machine.scheme = Scheme::Quota,
    ] {
        let mut world = World::new(&[(4, 0), (4, 95)]);
        change(&mut world.contract);
        world.quanta(100);
        let rate = world.rate(B);
        assert!((BUS * 45 / 100..=BUS * 52 / 100).contains(&rate), "{rate}");
    }
    let mut world = World::new(&[(4, 0), (4, 95)]);
    world.contract.units[A.index()].lend.bus = Permission::AtMost(Amount::Part(500_000));
    world.quanta(100);
    assert!((BUS * 68 / 100..=BUS * 78 / 100).contains(&world.rate(B)), "{}", world.rate(B));
}

/// The processor's throttle lets through twice its percentage, in steps of ten. No gang waits.
#[test]
fn throttling_is_controlled_by_its_effect() {
    for gangs in [true, false] {
        let mut world = World::new(&[(2, 10), (4, 95)]);
        world.gangs = gangs;
        world.tells = Some(100);
        world.means.throttle = Some(Throttle { least: 10, step: 10 });
        world.contract.units[B.index()].limit.bus = Some(Amount::Absolute(3 * SECOND));
        world.quanta(200);
        let rate = world.rate(B);
        assert!((SECOND * 24 / 10..=SECOND * 32 / 10).contains(&rate), "{rate}");
        assert_eq!(world.waited.get(&B), Some(&0));
        // No unit is throttled any more.
        world.contract.machine.scheme = Scheme::Smp;
        world.quantum();
        assert_eq!(world.percent.get(&B), Some(&100));
        assert!(world.state.is_empty());
    }
}

/// Without demands: on a full bus, a unit above its entitlement is throttled for one below.
#[test]
fn without_demands_the_bus_is_kept_below_full() {
    let mut world = World::new(&[(2, 25), (6, 95)]);
    world.gangs = false;
    world.tells = Some(100);
    world.means.throttle = Some(Throttle { least: 10, step: 10 });
    world.quanta(200);
    assert!(world.percent.contains_key(&B) && !world.percent.contains_key(&A), "{:?}", world.percent);
}

/// The processor also counts write-backs: half as much again. No unit gets less than its due for that.
#[test]
fn write_backs_count_against_no_unit() {
    let mut world = World::new(&[(2, 25), (6, 95)]);
    world.tells = Some(150);
    world.quanta(100);
    let (had, due) = (world.rate(A), world.due(A));
    assert!(had >= due * 97 / 100, "{had} of {due}");
    world.contract.units[B.index()].limit.bus = Some(Amount::Absolute(3 * SECOND));
    let before = world.bytes[&B];
    world.quanta(100);
    let reported = part_of(world.bytes[&B] - before, SECOND, 100 * QUANTUM) * 150 / 100;
    assert!(reported <= SECOND * 32 / 10, "a most counts all known transfers: {reported}");
}

/// The processor distinguishes outermost units only: a sub-unit's gangs wait instead. Without gangs, no unit
/// waits.
#[test]
fn the_processor_throttles_outermost_units_only() {
    for gangs in [true, false] {
        let mut contract = Contract::default();
        let outer = contract.add(None, "outer");
        let inner = contract.add(Some(outer), "inner");
        contract.units[inner.index()].limit.bus = Some(Amount::Part(100_000));
        let mut world = World::of(contract, &[(2, 20), (2, 80)]);
        world.contract.units[outer.index()].limit.bus = Some(Amount::Part(300_000));
        (world.gangs, world.tells) = (gangs, Some(100));
        world.means.throttle = Some(Throttle { least: 50, step: 10 });
        world.quanta(50);
        assert_eq!(world.percent.get(&inner), None);
        let waited = world.waited.values().any(|waited| *waited > 0);
        assert_eq!((world.waited[&inner] > 0, waited), (gangs, gangs), "{:?}", world.waited);
    }
}

#[test]
fn without_measurements_nothing_is_decided() {
    let mut world = World::new(&[(0, 0), (0, 0)]);
    world.quanta(10);
    assert_eq!(world.plan, None);
}

proptest! {
    /// For any units: those that want no more than their entitlement get it, and never wait; the others get
    /// at least 65 % of their due, and wait for at most [`KEPT_QUANTA`] quanta in a row.
    #[test]
    fn every_unit_gets_its_due(units in proptest::collection::vec((1u32..5, 1u64..=100), 2..5)) {
        let mut world = World::new(&units);
        world.quanta(200);
        prop_assert!(world.longest <= KEPT_QUANTA as u64, "{}", world.longest);
        let plan = world.plan.clone().unwrap();
        prop_assert!(plan.units.iter().map(|part| part.entitled).sum::<u64>() <= BUS);
        for unit in world.contract.held() {
            let (had, due) = (world.rate(unit), world.due(unit));
            let entitled = plan.units.iter().find(|part| part.unit == unit).unwrap().entitled;
            // A unit that transfers no more than its entitlement even when alone takes precedence.
            let (threads, percent) = world.units[&unit];
            let modest = u64::from(threads) * percent * BUS / 100 <= entitled;
            let least = if modest { 95 } else { 65 };
            prop_assert!(had >= due * least / 100, "{had} of {due} for {unit:?}, {:?}", world.waited);
            prop_assert!(!modest || world.waited[&unit] == 0, "{:?}", world.waited);
        }
    }
}
