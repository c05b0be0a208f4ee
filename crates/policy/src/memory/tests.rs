use alloc::collections::BTreeSet;

use commonhold_contract::{Amount, Growth, MILLIONTH, Permission};
use commonhold_machine::Machine;
use proptest::prelude::*;

use super::facts::{DOUBT_NS, DOUBT_NS_MAX};
use super::frames::Because;
use super::orders::no_more;
use super::sampling::DEBT_SAMPLE_NS;
use super::*;
use crate::check::Books;
use crate::membership::is_within;
use crate::plan::{CpuPlan, Decisions, NoMore, Orders, Plan};
use crate::snapshot::{Means, MemoryMeans, Snapshot, UnitFacts};

mod guarantees;
mod loans;
mod oom_order;
mod sampling;

use loans::lender;
use oom_order::exposed;

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 2_048 * MIB;
const MEMORY: MemoryMeans = MemoryMeans {
    bounds: true,
    guarantees: true,
    reclaim: true,
    alarms: true,
    kill_order: true,
    frames: None,
};

/// Equal top-level units.
fn equals(n: usize) -> (Contract, Vec<UnitId>) {
    let mut contract = Contract::default();
    let ids = (0..n).map(|i| contract.add(None, &format!("u{i}"))).collect();
    (contract, ids)
}

/// A machine of 2 GiB. The kernel holds 100 MiB, and processes outside all units hold 28, so 1,920 MiB are
/// divided.
struct World {
    contract: Contract,
    machine: Machine,
    means: MemoryMeans,
    state: Arc<MemoryState>,
    books: Books,
    now: Time,
    facts: MemoryFacts,
    present: Vec<bool>,
    in_force: BTreeMap<UnitId, BoundAndGuarantees>,
}

impl World {
    fn new(contract: Contract) -> World {
        let units = contract.units.len();
        World {
            contract,
            machine: Machine::synthetic("cpus:2 memory:2GiB").unwrap_or_else(|err| panic!("{err}")),
            means: MEMORY,
            state: Arc::default(),
            books: Books::default(),
            now: 0,
            facts: MemoryFacts {
                total: TOTAL,
                kernel: 100 * MIB,
                shared: 28 * MIB,
                swap_free: 0,
                swap_next: 0,
                packed_permille: 0,
                units: vec![UnitMemory::default(); units],
            },
            present: vec![true; units],
            in_force: BTreeMap::new(),
        }
    }

    /// Samples after `after_ms`. Returns the orders and the plan.
    fn sample(&mut self, after_ms: u64) -> (Vec<Step<MemoryOrder>>, Option<MemoryPlan>) {
        let memory = Some(self.facts.clone());
        self.sample_with(after_ms, memory)
    }

    fn sample_with(
        &mut self,
        after_ms: u64,
        memory: Option<MemoryFacts>,
    ) -> (Vec<Step<MemoryOrder>>, Option<MemoryPlan>) {
        self.now += after_ms * MS;
        let units = self
            .present
            .iter()
            .map(|present| UnitFacts { processes: u32::from(*present), ..UnitFacts::default() });
        let snapshot = Snapshot { at: self.now, units: units.collect(), memory, ..Snapshot::default() };
        let means = Means { memory: self.means, ..Means::NONE };
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means,
            snapshot: &snapshot,
            changes: &[],
        };
        let mut steps = Vec::new();
        let mut rights = Rights::new(&self.contract);
        for unit in self.contract.held() {
            rights.set_present(unit, snapshot.unit(unit).processes > 0).unwrap();
        }
        let plan = step(&mut self.state, self.now, input, &rights, &mut steps);
        self.check(&steps, plan.as_ref());
        (steps, plan)
    }

    /// Fails unless the plan checker accepts the plan.
    fn check(&mut self, steps: &[Step<MemoryOrder>], memory: Option<&MemoryPlan>) {
        let entitled = vec![0, 2 * MILLIONTH];
        let plan = Plan {
            orders: Orders { memory: steps.to_vec(), ..Orders::default() },
            decisions: Decisions {
                cpu: CpuPlan { entitled, ..CpuPlan::default() },
                memory: memory.cloned(),
                ..Decisions::default()
            },
            ..Plan::default()
        };
        match self.books.replay(&self.contract, &self.machine, &plan) {
            Ok(books) => self.books = books,
            Err(problems) => panic!("{problems:?}: {steps:?}"),
        }
        self.in_force = self.state.in_force.clone();
    }

    fn samples(&mut self, n: u32) -> Vec<Share> {
        (0..n).fold(Vec::new(), |_, _| self.sample(250).1.map_or_else(Vec::new, |plan| plan.units))
    }

    /// What was last decided about a unit.
    fn share(&self, unit: UnitId) -> Share {
        self.state.units.get(unit.index()).map(|unit| unit.share).unwrap_or_default()
    }

    fn memory(&mut self, unit: UnitId) -> &mut UnitMemory {
        &mut self.facts.units[unit.index()]
    }

    /// The unit has `mib` of clean file pages, is at its bound, and reads pages back.
    fn thrash(&mut self, unit: UnitId, mib: u64) {
        let memory = self.memory(unit);
        memory.used = mib * MIB;
        memory.refused += 10;
        memory.refaulted += 64 * MIB;
    }

    /// `mib` were reclaimed from the unit by order, in `ms` of work.
    fn took(&mut self, unit: UnitId, mib: u64, ms: u64) {
        let memory = self.memory(unit);
        memory.taken += mib * MIB;
        memory.taking_ns += ms * MS;
    }
}

/// The bound that is ordered for a unit, in MiB.
fn bound(steps: &[Step<MemoryOrder>], unit: UnitId) -> Option<u64> {
    steps.iter().rev().find_map(|step| match step.action {
        MemoryOrder::Allow { unit: bounded, bytes } if bounded == unit => bytes.map(|bytes| bytes / MIB),
        _ => None,
    })
}

fn any_memory() -> impl Strategy<Value = UnitMemory> {
    (0u64..3_000, 0u64..3_000, 0u64..500, 0u64..3_000, 0u64..3, 0u64..50, 0u64..100, 0u64..2_000).prop_map(
        |(used, anonymous, dirty, cold, refused, refaulted, taken, taking_ms)| UnitMemory {
            used: used * MIB,
            packed: dirty.min(used) * MIB / 2,
            cold_anonymous: cold.min(anonymous) * MIB,
            anonymous: anonymous.min(used) * MIB,
            dirty: dirty * MIB,
            cold: cold * MIB,
            refused,
            refaulted: refaulted * MIB,
            taken: taken * MIB,
            taking_ns: taking_ms * MS,
            ..UnitMemory::default()
        },
    )
}

proptest! {
    /// Whatever a machine reports, the checker accepts every plan, no unit lends and borrows, and exactly the
    /// units with processes have a bound. Units are exposed only while memory is tight, and soon after they
    /// were beyond.
    #[test]
    fn promises_hold_whatever_a_machine_reports(
        history in proptest::collection::vec(
            (
                proptest::collection::vec(any_memory(), 5),
                proptest::collection::vec(any::<bool>(), 5),
                1u64..600,
                0u64..2_200,
                0u64..4_096,
            ),
            1..40,
        ),
        nested in any::<bool>(),
        no_loans in 0usize..5,
        amounts in proptest::collection::vec(
            (0usize..5, any::<bool>(), proptest::option::of(0u64..1_500), 0u64..=MILLIONTH),
            0..3,
        ),
    ) {
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        contract.add(nested.then_some(a), "b");
        contract.add(nested.then_some(a), "c");
        contract.add(None, "d");
        for (unit, lends, mib, part) in amounts {
            let amount = mib.map_or(Amount::Part(part), |mib| Amount::Absolute(mib * MIB + part));
            let Some(unit) = contract.units.get_mut(2 + unit) else { continue };
            let permission = if lends { &mut unit.lend.memory } else { &mut unit.borrow.memory };
            *permission = Permission::AtMost(amount);
        }
        contract.units[2].hard.memory = Some(Amount::Absolute(200 * MIB));
        if let Some(unit) = contract.units.get_mut(2 + no_loans) {
            (unit.lend.memory, unit.borrow.memory) = (false.into(), false.into());
        }
        let mut world = World::new(contract);
        let (mut exposed_units, mut beyond_at) = (BTreeSet::new(), BTreeMap::new());
        for (units, present, after, kernel, swap) in history {
            let mut reported = vec![UnitMemory::default(); 2];
            reported.extend(units);
            reported.truncate(6);
            world.facts.units.clone_from(&reported);
            (world.facts.kernel, world.facts.swap_free) = (kernel * MIB, swap * MIB);
            world.present = [true, true].into_iter().chain(present).take(6).collect();
            let (steps, plan) = world.sample(after);
            let plan = plan.unwrap_or_default();
            exposed(&steps, &mut exposed_units);
            let held = |id: UnitId| {
                let memory = reported.get(id.index()).copied().unwrap_or_default();
                memory.used.min(memory.anonymous + memory.kernel + memory.packed)
            };
            let left = TOTAL.saturating_sub(
                world.facts.kernel + world.facts.shared + world.contract.held().map(held).sum::<u64>(),
            );
            let beyond = world.contract.held().filter(|id| held(*id) > plan.units[id.index()].entitled);
            beyond_at.extend(beyond.map(|id| (id, world.now)));
            for id in &exposed_units {
                let at = beyond_at.get(id).copied();
                prop_assert!(at.is_some_and(|at| world.now - at < 10_000 * MS), "within its entitlement for long");
                prop_assert!(left + world.facts.swap_free <= TOTAL * 245 / 1_000, "memory is not tight");
            }
            for id in world.contract.held() {
                let share = plan.units[id.index()];
                let orders = world.in_force.get(&id).copied().unwrap_or_default();
                prop_assert_eq!(orders.high.is_some(), world.present[id.index()]);
                prop_assert!(share.lent == 0 || share.borrowed == 0);
            }
        }
    }

    /// Whatever units demand, come and go, and whatever the common parts take: at no step of a plan is a
    /// bound below a guarantee, for units without sub-units, and no page in use of a reservation is lent or
    /// called back. (Bounds do not count packed memory.)
    #[test]
    fn no_bound_is_below_a_guarantee(
        history in proptest::collection::vec(
            (
                proptest::collection::vec(any_memory(), 5),
                proptest::collection::vec(prop::bool::weighted(0.9), 5),
                1u64..600,
                0u64..700,
                0u64..4_096,
                1u32..12,
            ),
            1..8,
        ),
        hard in proptest::collection::vec(0u64..450_000, 5),
    ) {
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        let d = contract.add(None, "d");
        let (b, c) = (contract.add(Some(a), "b"), contract.add(Some(a), "c"));
        let borrower = contract.add(None, "borrower");
        for (id, part) in [a, d, b, c].into_iter().zip(hard) {
            contract.units[id.index()].hard.memory = Some(Amount::Part(part));
        }
        let mut world = World::new(contract);
        world.took(borrower, 64, 16);
        let mut in_force = BTreeMap::new();
        let samples = history.into_iter().flat_map(|phase| core::iter::repeat_n(phase.clone(), phase.5 as usize));
        for (units, present, after, shared, swap, _) in samples {
            let borrows = *world.memory(borrower);
            world.facts.units = [UnitMemory::default(); 2].into_iter().chain(units).collect();
            *world.memory(borrower) = borrows;
            world.thrash(borrower, world.share(borrower).allowed.max(64 * MIB) / MIB);
            (world.facts.shared, world.facts.swap_free) = (shared * MIB, swap * MIB);
            world.present = [true, true].into_iter().chain(present).collect();
            let (steps, plan) = world.sample(after);
            let plan = plan.unwrap_or_default();
            for step in &steps {
                let (MemoryOrder::Guarantee { unit, .. } | MemoryOrder::Allow { unit, .. }) = step.action else { continue };
                let (min, high) = in_force.entry(unit).or_insert((0, None));
                match step.action {
                    MemoryOrder::Allow { bytes, .. } => *high = bytes,
                    MemoryOrder::Guarantee { min: kept, .. } => *min = kept,
                    _ => {}
                }
                prop_assert!(unit == a || high.is_none_or(|high| high >= *min), "{:?} of {:?}", step, steps);
            }
            let share = |id: UnitId| plan.units[id.index()];
            let value = |id: UnitId| {
                let inside = world.contract.held().filter(|sub| is_within(&world.contract, *sub, id));
                inside.map(|sub| share(sub).entitled).sum::<u64>()
            };
            for (id, whole) in [(d, plan.divided), (b, value(a)), (c, value(a))] {
                let hard = world.contract.unit(id).hard.memory.map_or(0, |hard| hard.of(whole)).min(value(id));
                let used = world.facts.units[id.index()].used;
                prop_assert!(share(id).allowed >= hard.min(used), "{}: {:?}", hard, share(id));
            }
        }
    }

    /// At any sampling interval: a unit that would read all it lends back in ten minutes is believed, and one
    /// that would in two and a half is not.
    #[test]
    fn doubt_follows_the_rate_of_read_backs(lent in 300u64..100_000, every_ms in 100u64..3_000) {
        let doubted_at = |percent: u64| {
            let by_sample = |n: u64| lent * percent * n * every_ms / 100 / 300_000;
            let back: Vec<u64> = (0..100).map(|n| by_sample(n + 1) - by_sample(n)).collect();
            lender(lent, &back, every_ms)
        };
        prop_assert!(doubted_at(200 + 30_000 / lent).contains(&true));
        prop_assert!(lent < 3_000 || !doubted_at(50).contains(&true));
    }
}
