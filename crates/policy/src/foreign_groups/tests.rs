//! Units with foreign groups, and how their orders are spread.
#![allow(clippy::unwrap_used)]

use alloc::format;

use commonhold_machine::Machine;
use proptest::prelude::*;

use super::*;
use crate::plan::Decisions;
use crate::snapshot::{DiskUse, GroupBounds, Means, Snapshot, UnitFacts, UnitMemory};

proptest! {
    /// Parts sum to the total, unless caps prevent that, and none exceeds its cap.
    #[test]
    fn parts_sum_to_the_total(
        total in 0..10_000u64,
        of in proptest::collection::vec((0..5_000u64, 0..8_000u64), 1..6),
    ) {
        let (uses, caps): (Vec<u64>, Vec<u64>) = of.into_iter().unzip();
        let parts = spread(total, &uses, &caps);
        prop_assert!(parts.iter().zip(&caps).all(|(part, cap)| part <= cap));
        prop_assert_eq!(parts.iter().sum::<u64>(), total.min(caps.iter().sum()));
        // If the total suffices for all, no holder gets less than it uses.
        if uses.iter().sum::<u64>() <= total {
            prop_assert!(parts.iter().zip(uses.iter().zip(&caps)).all(|(part, (used, cap))| part >= used.min(cap)));
        }
    }
}

const MIB: u64 = 1 << 20;

struct World {
    contract: Contract,
    machine: Machine,
    snapshot: Snapshot,
    means: Means,
    state: GroupParts,
    books: crate::check::Books,
    /// The foreign groups in the last step's decisions, if they changed.
    decided: Option<Vec<crate::plan::ForeignGroup>>,
    now: Time,
}

impl World {
    fn new() -> World {
        let mut contract = Contract::default();
        let physics = contract.add(None, "physics");
        contract.add(Some(physics), "ana");
        let units = contract.units.len();
        let memory = MemoryFacts { units: vec![UnitMemory::default(); units], ..MemoryFacts::default() };
        let snapshot = Snapshot {
            units: vec![UnitFacts::default(); units],
            memory: Some(memory),
            ..Snapshot::default()
        };
        World {
            contract,
            machine: Machine::synthetic("nodes:1 cpus:4").unwrap(),
            snapshot,
            means: Means { foreign_groups: true, cpu_sets: true, weights: true, caps: true, ..Means::NONE },
            state: GroupParts::default(),
            books: crate::check::Books::default(),
            decided: None,
            now: 0,
        }
    }

    fn group(&mut self, group: u32, unit: UnitId, mib: u64) {
        let path = format!("/user.slice/user-{group}.slice");
        let most = GroupBounds::default();
        let facts = GroupFacts {
            id: GroupId(group),
            path,
            unit,
            used_ns: 0,
            memory: mib * MIB,
            disks: Vec::new(),
            most,
        };
        self.snapshot.foreign_groups.push(facts);
        self.used(unit, mib);
    }

    fn used(&mut self, unit: UnitId, mib: u64) {
        self.snapshot.memory.as_mut().unwrap().units[unit.index()].used += mib * MIB;
    }

    fn step(&mut self, orders: impl FnOnce(&mut Plan)) -> Vec<PartOrder> {
        let decisions = Decisions::default();
        let mut plan = Plan { decisions, ..Plan::default() };
        plan.decisions.disk.disks = vec![String::from("sda")];
        plan.decisions.cpu.entitled = vec![0, 0, 2_000_000, 2_000_000];
        orders(&mut plan);
        self.now += SECOND;
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: self.means,
            snapshot: &self.snapshot,
            changes: &[],
        };
        step(&mut self.state, self.now, input, &mut plan);
        let mut wrong = Vec::new();
        let books = self.books.parts_alone(&self.contract, &plan, &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
        self.books = books;
        self.decided = plan.decisions.foreign_groups;
        plan.orders.parts.into_iter().map(|step| step.action).collect()
    }
}

const SECOND: Time = 1_000_000_000;
const PHYSICS: UnitId = UnitId(2);
const ANA: UnitId = UnitId(3);

fn allow(plan: &mut Plan, unit: UnitId, mib: u64) {
    let action = MemoryOrder::Allow { unit, bytes: Some(mib * MIB) };
    plan.orders.memory.push(Step { action, reason: Reason::Rests });
}

fn allowed(orders: &[PartOrder]) -> Vec<(Option<u32>, Option<u64>)> {
    let selected = |order: &PartOrder| match order {
        PartOrder::Allow { at, bytes, .. } => Some((at.map(|at| at.0), bytes.map(|bytes| bytes / MIB))),
        _ => None,
    };
    orders.iter().filter_map(selected).collect()
}

/// A slice uses all of the unit's 250 MiB, and another one comes: a sixteenth of an even part is enough to
/// start.
#[test]
fn a_new_group_of_a_full_unit_can_start() {
    let mut world = World::new();
    world.group(1, ANA, 300);
    world.group(2, ANA, 0);
    let orders = world.step(|plan| allow(plan, ANA, 250));
    assert_eq!(allowed(&orders), [(None, Some(0)), (Some(1), Some(245)), (Some(2), Some(4))]);
}

/// systemd made no scope for a process of that unit, so it is in the unit's own group, and can grow there.
#[test]
fn the_own_group_of_a_full_unit_can_grow() {
    let mut world = World::new();
    world.group(1, ANA, 300);
    world.group(2, ANA, 0);
    world.used(ANA, 1);
    let orders = world.step(|plan| allow(plan, ANA, 250));
    assert_eq!(allowed(&orders), [(None, Some(4)), (Some(1), Some(241)), (Some(2), Some(4))]);
}

/// Two slices of a unit use 300 and 100 of its 600 MiB; its own group, without use, gets little of the
/// remaining 200.
#[test]
fn a_bound_follows_use_and_comes_back_whole() {
    let mut world = World::new();
    world.group(1, ANA, 300);
    world.group(2, ANA, 100);
    let orders = world.step(|plan| allow(plan, ANA, 600));
    assert_eq!(allowed(&orders), [(None, Some(37)), (Some(1), Some(381)), (Some(2), Some(181))]);
    assert_eq!(allowed(&world.step(|_| ())), [], "nothing changed");
    world.snapshot.foreign_groups[1].memory += 5 * MIB;
    world.used(ANA, 5);
    assert_eq!(allowed(&world.step(|_| ())), [], "nothing much changed");
    world.snapshot.foreign_groups[1].memory += 95 * MIB;
    world.used(ANA, 95);
    assert_eq!(allowed(&world.step(|_| ())), [(None, Some(33)), (Some(1), Some(333)), (Some(2), Some(233))]);
    // The unit's allowance sinks below its use: both give up memory in proportion.
    let orders = world.step(|plan| allow(plan, ANA, 250));
    assert_eq!(allowed(&orders), [(None, Some(0)), (Some(1), Some(150)), (Some(2), Some(100))]);
    // Parts are whole pages, as a kernel counts.
    world.snapshot.foreign_groups[0].memory += 12_345;
    let orders = world.step(|plan| allow(plan, ANA, 251));
    let is_whole = |order: &PartOrder| match order {
        PartOrder::Allow { bytes: Some(bytes), .. } => bytes % PAGE_MAX == 0,
        _ => true,
    };
    assert!(allowed(&orders).len() >= 2 && orders.iter().all(is_whole), "{orders:?}");
    world.snapshot.foreign_groups.clear();
    assert_eq!(allowed(&world.step(|_| ())), [(None, Some(251))]);
    assert_eq!(world.step(|_| ()), []);
}

/// The manager of a slice limits it to 50 MiB: the others get the rest.
#[test]
fn a_managers_limit_is_respected_and_the_rest_is_used() {
    let mut world = World::new();
    world.group(1, ANA, 40);
    world.group(2, ANA, 40);
    world.snapshot.foreign_groups[0].most.memory = Some(50 * MIB);
    world.snapshot.foreign_groups[0].most.cpus = "0-1".parse().ok();
    let confine = CpuOrder::Confine { unit: PHYSICS, cpus: "1-3".parse().ok() };
    let orders = world.step(|plan| {
        allow(plan, ANA, 250);
        plan.orders.cpu.push(Step { action: confine, reason: Reason::Rests });
    });
    assert_eq!(allowed(&orders), [(None, Some(15)), (Some(1), Some(50)), (Some(2), Some(184))]);
    let cpus: Vec<String> = orders
        .iter()
        .filter_map(|order| match order {
            PartOrder::Confine { at, cpus, .. } => Some(format!("{}: {}", at.0, cpus.as_ref().unwrap())),
            _ => None,
        })
        .collect();
    assert_eq!(cpus, ["1: 1", "2: 1-3"]);
}

/// An administrator lowers a slice's limit, and sets its weight: its parts are ordered again, and the weight
/// is left alone.
#[test]
fn a_managers_later_setting_stays() {
    let mut world = World::new();
    world.group(1, ANA, 100);
    let is_weight = |order: &PartOrder| matches!(order, PartOrder::Weigh { .. });
    let orders = world.step(|plan| allow(plan, ANA, 400));
    assert!(orders.iter().any(is_weight));
    assert_eq!(allowed(&orders), [(None, Some(25)), (Some(1), Some(375))]);
    world.snapshot.foreign_groups[0].most = GroupBounds {
        memory: Some(200 * MIB),
        weight: true,
        cap: true,
        kept: true,
        rates: true,
        ..GroupBounds::default()
    };
    let orders = world.step(|plan| {
        for action in [
            MemoryOrder::Guarantee { unit: ANA, min: 0, low: 50 * MIB, own: 50 * MIB },
            MemoryOrder::Allow { unit: ANA, bytes: Some(400 * MIB) },
        ] {
            plan.orders.memory.push(Step { action, reason: Reason::Rests });
        }
        let rate = DiskOrder::Cap { unit: ANA, disk: String::from("sda"), read: Some(MIB), write: None };
        plan.orders.disk.push(Step { action: rate, reason: Reason::Rests });
        let cap = CpuOrder::Cap { unit: ANA, micro_cpus: Some(1_000_000) };
        plan.orders.cpu.push(Step { action: cap, reason: Reason::Rests });
    });
    let of_place = orders.iter().filter(|order| order.at().is_some());
    let only: Vec<PartOrder> = of_place.cloned().collect();
    let bytes = Some(200 * MIB);
    assert_eq!(only, [PartOrder::Allow { unit: ANA, at: Some(GroupId(1)), bytes }]);
    // A higher limit overwrote the part: it is ordered again, though unchanged.
    world.snapshot.foreign_groups[0].most.memory = Some(1_000 * MIB);
    world.step(|plan| allow(plan, ANA, 400));
    world.snapshot.foreign_groups[0].most.memory = Some(2_000 * MIB);
    assert_eq!(allowed(&world.step(|_| ())), [(Some(1), Some(375))]);
    let decided = world.decided.take().unwrap_or_default();
    assert_eq!(decided[0].most.memory, Some(2_000 * MIB), "and reports know it");
    world.step(|_| ());
    assert_eq!(world.decided, None, "once");
}

/// The manager of a slice allows only CPUs that the unit does not have: its setting stays.
#[test]
fn cpus_that_the_manager_allows_are_narrowed_or_left_alone() {
    let mut world = World::new();
    world.group(1, ANA, 0);
    world.snapshot.foreign_groups[0].most.cpus = "0".parse().ok();
    let confine = |cpus: &str| {
        let action = CpuOrder::Confine { unit: ANA, cpus: cpus.parse().ok() };
        move |plan: &mut Plan| plan.orders.cpu.push(Step { action, reason: Reason::Rests })
    };
    let confined =
        |orders: &[PartOrder]| orders.iter().any(|order| matches!(order, PartOrder::Confine { .. }));
    assert!(!confined(&world.step(confine("1-3"))));
    assert!(confined(&world.step(confine("0-3"))));
}

/// A unit's protection covers its foreign groups and its own group, and what encloses them.
#[test]
fn guarantees_are_spread() {
    let mut world = World::new();
    world.group(1, ANA, 300);
    let keep =
        |unit, own: u64| MemoryOrder::Guarantee { unit, min: 100 * MIB, low: 400 * MIB, own: own * MIB };
    let orders = world.step(|plan| {
        for action in [keep(PHYSICS, 0), keep(ANA, 400)] {
            plan.orders.memory.push(Step { action, reason: Reason::Rests });
        }
    });
    let kept: Vec<(UnitId, Option<u32>, u64, u64)> = orders
        .iter()
        .filter_map(|order| match *order {
            PartOrder::Guarantee { unit, at, min, low, .. } => {
                Some((unit, at.map(|at| at.0), min / MIB, low / MIB))
            }
            _ => None,
        })
        .collect();
    assert_eq!(kept, [(ANA, None, 0, 25), (ANA, Some(1), 100, 375), (PHYSICS, None, 0, 25)]);
}

/// An enclosing unit's rate is divided among all foreign groups in it, by their transfers.
#[test]
fn rates_follow_what_is_transferred() {
    let mut world = World::new();
    world.group(1, ANA, 0);
    world.group(2, PHYSICS, 0);
    let disk = |read_bytes| vec![(String::from("sda"), DiskUse { read_bytes, ..DiskUse::default() })];
    world.snapshot.foreign_groups[0].disks = disk(0);
    world.step(|_| ());
    world.snapshot.foreign_groups[0].disks = disk(60 * MIB);
    let rate = DiskOrder::Cap { unit: PHYSICS, disk: String::from("sda"), read: Some(90 * MIB), write: None };
    let orders = world.step(|plan| plan.orders.disk.push(Step { action: rate, reason: Reason::Rests }));
    let rates: Vec<(Option<u32>, Option<u64>)> = orders
        .iter()
        .filter_map(|order| match order {
            PartOrder::Transfer { at, read, write: None, .. } => {
                Some((at.map(|at| at.0), read.map(|read| read / MIB)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(rates, [(None, Some(5)), (Some(2), Some(12)), (Some(1), Some(72))]);
}

/// A slice has a rate, and an administrator sets its memory limit. When the unit's rate is lifted, so is the
/// slice's.
#[test]
fn a_rate_is_lifted_after_an_unrelated_setting() {
    let mut world = World::new();
    world.group(1, ANA, 0);
    let rate = |read: Option<u64>| {
        let action = DiskOrder::Cap { unit: ANA, disk: String::from("sda"), read, write: None };
        move |plan: &mut Plan| plan.orders.disk.push(Step { action, reason: Reason::Rests })
    };
    let of_place = |orders: &[PartOrder]| {
        let is_rate = |order: &&PartOrder| matches!(order, PartOrder::Transfer { at: Some(_), .. });
        orders.iter().filter(is_rate).count()
    };
    assert_eq!(of_place(&world.step(rate(Some(MIB)))), 1);
    world.snapshot.foreign_groups[0].most.memory = Some(200 * MIB);
    assert_eq!(of_place(&world.step(|_| ())), 0, "it is in force");
    assert_eq!(of_place(&world.step(rate(None))), 1);
}

/// 3 : 1 of the CPUs among two slices, and a service elsewhere. Sibling weights average 100, so that a slice
/// of root's beside them with weight 100 gets a third while both are busy, as among unweighted groups.
#[test]
fn weights_follow_parts_and_average_the_default() {
    let mut world = World::new();
    let physics = UnitId(ANA.0 - 1);
    world.group(1, ANA, 0);
    world.group(2, physics, 0);
    world.group(3, ANA, 0);
    world.snapshot.foreign_groups[2].path = "/system.slice/batch.service".to_owned();
    let weights = |orders: &[PartOrder]| -> Vec<(u32, u32)> {
        let selected = |order: &PartOrder| match order {
            PartOrder::Weigh { at, weight, .. } => Some((at.0, *weight)),
            _ => None,
        };
        orders.iter().filter_map(selected).collect()
    };
    let entitled = |plan: &mut Plan| {
        plan.decisions.cpu.entitled = vec![0, 0, 1_000_000, 3_000_000];
    };
    // Each keeps a sixteenth for its own group. Ana's two groups share what is left of 3 CPUs: 1.4 of them
    // each.
    assert_eq!(weights(&world.step(entitled)), [(1, 120), (2, 80), (3, 100)]);
    world.means.switches = true;
    assert_eq!(weights(&world.step(entitled)), []);
}

/// For any parts, a sibling with the default weight gets at least an even share.
#[test]
fn the_mean_of_weights_is_the_default() {
    let mut world = World::new();
    for group in 1..=5 {
        world.group(group, ANA, 0);
    }
    let parts: BTreeMap<usize, u64> = [(0, 3_000_000), (1, 1_000_000), (2, 10), (3, 0), (4, 500_000)].into();
    let found = weights(&world.snapshot.foreign_groups, &parts);
    assert_eq!(found, [(0, 333), (1, 111), (2, 1), (3, 1), (4, 56)]);
    let none: BTreeMap<usize, u64> = [(0, 0)].into();
    assert_eq!(weights(&world.snapshot.foreign_groups, &none), [(0, 100)]);
}

/// Control groups enforced the CPUs while the scheduler rested. It is back: foreign groups are no longer
/// confined or capped.
#[test]
fn restrictions_from_before_the_schedulers_return_are_lifted() {
    let mut world = World::new();
    world.group(1, ANA, 0);
    world.group(2, ANA, 0);
    let confine = |cpus: &str| CpuOrder::Confine { unit: ANA, cpus: cpus.parse().ok() };
    let order = |actions: [CpuOrder; 2]| {
        move |plan: &mut Plan| {
            plan.orders.cpu.extend(actions.map(|action| Step { action, reason: Reason::Rests }));
        }
    };
    let bound = |orders: &[PartOrder]| -> Vec<(u32, bool)> {
        let selected = |order: &PartOrder| match order {
            PartOrder::Confine { at, cpus, .. } => Some((at.0, cpus.is_some())),
            PartOrder::Cap { at: Some(at), micro_cpus, .. } => Some((at.0, micro_cpus.is_some())),
            _ => None,
        };
        orders.iter().filter_map(selected).collect()
    };
    let caps = |micro_cpus| CpuOrder::Cap { unit: ANA, micro_cpus };
    let orders = world.step(order([confine("1-3"), caps(Some(1_000_000))]));
    assert_eq!(bound(&orders), [(1, true), (2, true), (1, true), (2, true)]);
    // The second slice disappears meanwhile: the backend resets it.
    world.snapshot.foreign_groups.pop();
    (world.means.switches, world.means.caps) = (true, false);
    let free = CpuOrder::Confine { unit: ANA, cpus: None };
    let orders = world.step(order([free, caps(None)]));
    let (unit, at) = (ANA, GroupId(1));
    let lifted = [
        PartOrder::Confine { unit, at, cpus: None },
        PartOrder::Cap { unit, at: Some(at), micro_cpus: None },
    ];
    assert_eq!(orders, lifted);
    assert_eq!(world.step(|_| ()), [], "once");
    (world.means.switches, world.means.caps) = (false, true);
    let orders = world.step(order([confine("1-3"), caps(Some(1_000_000))]));
    assert_eq!(bound(&orders), [(1, true), (1, true)], "it rests again");
}
