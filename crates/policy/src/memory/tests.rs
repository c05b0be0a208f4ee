use alloc::collections::BTreeSet;

use commonhold_contract::{Amount, Growth, MILLIONTH, Permission};
use commonhold_machine::Machine;
use proptest::prelude::*;

use super::*;
use crate::check::Books;
use crate::membership::is_within;
use crate::plan::{Beyond, CpuPlan, Decisions, Orders as PlanOrders, Plan};
use crate::snapshot::{Means, MemoryMeans, Snapshot, UnitFacts};

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

/// A machine of 2 GiB of which the kernel has 100 MiB and others 28: 1,920 MiB are divided.
struct World {
    contract: Contract,
    machine: Machine,
    means: MemoryMeans,
    state: Arc<State>,
    books: Books,
    now: Time,
    facts: MemoryFacts,
    present: Vec<bool>,
    in_force: BTreeMap<UnitId, Orders>,
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

    /// A look after so many milliseconds; the orders that it gave.
    fn look(&mut self, after_ms: u64) -> (Vec<Step<MemoryOrder>>, Option<MemoryPlan>) {
        let memory = Some(self.facts.clone());
        self.look_at(after_ms, memory)
    }

    fn look_at(
        &mut self,
        after_ms: u64,
        memory: Option<MemoryFacts>,
    ) -> (Vec<Step<MemoryOrder>>, Option<MemoryPlan>) {
        self.now += after_ms * MS;
        let units = self
            .present
            .iter()
            .map(|there| UnitFacts { processes: u32::from(*there), ..UnitFacts::default() });
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

    /// The plan checker agrees.
    fn check(&mut self, steps: &[Step<MemoryOrder>], memory: Option<&MemoryPlan>) {
        let entitled = vec![0, 2 * MILLIONTH];
        let plan = Plan {
            orders: PlanOrders { memory: steps.to_vec(), ..PlanOrders::default() },
            decisions: Decisions {
                cpu: CpuPlan { entitled, ..CpuPlan::default() },
                memory: memory.cloned(),
                ..Decisions::default()
            },
            ..Plan::default()
        };
        match self.books.replay(&self.contract, &self.machine, &plan) {
            Ok(books) => self.books = books,
            Err(wrong) => panic!("{wrong:?}: {steps:?}"),
        }
        self.in_force = self.state.orders.clone();
    }

    fn looks(&mut self, n: u32) -> Vec<Share> {
        (0..n).fold(Vec::new(), |_, _| self.look(250).1.map_or_else(Vec::new, |plan| plan.units))
    }

    /// What was decided last about a unit.
    fn share(&self, unit: UnitId) -> Share {
        self.state.units.get(unit.index()).map(|unit| unit.share).unwrap_or_default()
    }

    fn of(&mut self, unit: UnitId) -> &mut UnitMemory {
        &mut self.facts.units[unit.index()]
    }

    /// The unit has so many pages of clean files, and takes some back that it lost.
    fn thrash(&mut self, unit: UnitId, mib: u64) {
        let memory = self.of(unit);
        memory.used = mib * MIB;
        memory.refused += 10;
        memory.refaulted += 64 * MIB;
    }

    /// So much was taken from the unit by order, in so many milliseconds of work.
    fn took(&mut self, unit: UnitId, mib: u64, ms: u64) {
        let memory = self.of(unit);
        memory.taken += mib * MIB;
        memory.taking_ns += ms * MS;
    }
}

/// What is ordered for a unit: MiB.
fn bound(steps: &[Step<MemoryOrder>], unit: UnitId) -> Option<u64> {
    steps.iter().rev().find_map(|step| match step.action {
        MemoryOrder::Allow { unit: of, bytes } if of == unit => bytes.map(|bytes| bytes / MIB),
        _ => None,
    })
}

/// 1,920 MiB between two: 960 each, guaranteed and bounded, said once.
#[test]
fn everybody_has_its_own_and_no_more() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(320 * MIB));
    let mut world = World::new(contract);
    let (steps, plan) = world.look(0);
    // 320 hard, and halves of the 1,600 that are left.
    let order =
        |unit, min, low| MemoryOrder::Guarantee { unit, min: min * MIB, low: low * MIB, own: low * MIB };
    let actions: Vec<MemoryOrder> = steps.iter().map(|step| step.action.clone()).collect();
    let expected = [
        MemoryOrder::Allow { unit: units[0], bytes: Some(1_120 * MIB) },
        MemoryOrder::Allow { unit: units[1], bytes: Some(800 * MIB) },
        order(units[0], 320, 1_120),
        order(units[1], 0, 800),
    ];
    assert_eq!(actions, expected);
    assert_eq!(plan.map(|plan| (plan.divided, plan.watch)), Some((1_920 * MIB, units)));
    assert_eq!(world.look(250).0, []);
}

/// Of 1,920 MiB, u0 uses 60 of its 960; u1 thrashes with clean files. Less the reserve of 8 % of 2,048 there are 736 to lend,
/// 120 at a look. Then u0 wants more: it has its own at once, and u1 owes.
#[test]
fn a_loan_grows_and_is_called_back_at_once() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    world.thrash(units[1], 960);
    world.took(units[1], 64, 16);
    let mut shares = Vec::new();
    for _ in 0..20 {
        let allowed = shares.get(3).map_or(960, |share: &Share| share.allowed / MIB);
        world.thrash(units[1], allowed);
        shares = world.looks(1);
    }
    // What u0 uses is taken a little higher than it is.
    let (lent, borrowed) = (shares[2].lent / MIB, shares[3].borrowed / MIB);
    assert!(lent == borrowed && (728..=736).contains(&lent), "{lent} and {borrowed}");
    let (_, plan) = world.look(250);
    assert_eq!(plan.map(|plan| plan.watch), Some(vec![units[0]]));

    let all = shares[2].allowed;
    let memory = world.of(units[0]);
    (memory.used, memory.anonymous, memory.refused) = (all, all, 1);
    let (steps, plan) = world.look(10);
    assert_eq!((bound(&steps, units[0]), bound(&steps, units[1])), (Some(960), Some(960)));
    let reclaim = steps.iter().find(|step| matches!(step.action, MemoryOrder::Reclaim { .. }));
    let owed = lent - 8;
    assert!(
        matches!(reclaim, Some(Step { action: MemoryOrder::Reclaim { unit, bytes, .. }, reason: Reason::Owes { .. } })
            if *unit == units[1] && *bytes >= owed * MIB),
        "{steps:?}"
    );
    // It is looked at soon whether that is there.
    assert!(plan.is_some_and(|plan| plan.next == world.now + DEBT_LOOK_NS && plan.units[3].called_back));
    // It is told again if it has not given up all after a while, not at every look.
    let reclaims = |steps: &[Step<MemoryOrder>]| {
        steps.iter().filter(|s| matches!(s.action, MemoryOrder::Reclaim { .. })).count()
    };
    let (steps, plan) = world.look(20);
    assert_eq!((reclaims(&steps), plan.map(|plan| plan.next)), (0, Some(world.now + DEBT_LOOK_NS)));
    assert_eq!(reclaims(&world.look(240).0), 1);
    world.of(units[1]).used = 960 * MIB;
    let (steps, plan) = world.look(20);
    assert!(!steps.iter().any(|step| matches!(step.action, MemoryOrder::Reclaim { .. })), "{steps:?}");
    assert!(plan.is_some_and(|plan| !plan.units[3].called_back));
}

/// u0 may not borrow, and uses its 960 MiB of 1,920 when its tickets sink to half of u1's: it is entitled to 640, and its bound
/// follows. It wants no new page, at which a kernel would hold it to that: so what is beyond is taken. Where nothing comes of
/// it, it is told rarely, and nobody looks sooner for its sake. A unit that may borrow keeps what nobody wants.
#[test]
fn who_may_not_borrow_keeps_nothing_beyond_its_entitlement() {
    for (borrow, owes) in [(Permission::No, true), (Permission::Yes, false)] {
        let (mut contract, units) = equals(2);
        contract.units[units[0].index()].borrow.memory = borrow;
        let mut world = World::new(contract);
        (world.of(units[0]).used, world.of(units[1]).used) = (960 * MIB, 100 * MIB);
        let reclaimed = |steps: &[Step<MemoryOrder>]| {
            let bytes = |step: &Step<MemoryOrder>| match (&step.action, step.reason) {
                (MemoryOrder::Reclaim { unit, bytes, .. }, Reason::Owes { .. }) if *unit == units[0] => {
                    Some(bytes / MIB)
                }
                _ => None,
            };
            steps.iter().find_map(bytes)
        };
        assert_eq!(reclaimed(&world.look(250).0), None);
        world.contract.units[units[1].index()].tickets.memory = 200;
        let (steps, plan) = world.look(250);
        assert_eq!(bound(&steps, units[0]), Some(640));
        assert_eq!(reclaimed(&steps), owes.then_some(320));
        assert!(plan.is_some_and(|plan| plan.next > world.now + DEBT_LOOK_NS && !plan.units[2].called_back));
        assert_eq!(reclaimed(&world.look(250).0), None, "nothing came of it");
        world.of(units[0]).used = 800 * MIB;
        assert_eq!(reclaimed(&world.look(250).0), owes.then_some(160), "something did");
        assert_eq!(reclaimed(&world.look(9_000).0), None);
        assert_eq!(reclaimed(&world.look(1_000).0), owes.then_some(160), "after a while");
        world.of(units[0]).used = 640 * MIB;
        assert_eq!(reclaimed(&world.look(250).0), None);
    }
}

/// Without swap, nobody is lent memory for what only swap could take back; with it, as much as can be written in time.
#[test]
fn what_could_not_be_called_back_in_time_is_not_lent() {
    for (swap, at_most) in [(0, 0), (4_096, 32)] {
        let (contract, units) = equals(2);
        let mut world = World::new(contract);
        world.facts.swap_free = swap * MIB;
        for _ in 0..20 {
            world.thrash(units[1], 960);
            let memory = world.of(units[1]);
            memory.anonymous = memory.used;
            let shares = world.looks(1);
            assert!(shares[3].borrowed <= at_most * MIB, "{shares:?}");
        }
        assert_eq!(world.share(UnitId(3)).borrowed > 0, swap > 0);
    }
}

/// u0 has all its 960 MiB in use, and 500 of them cold: they are lent. It misses them, and is not believed to be cold for a
/// while.
#[test]
fn who_misses_what_was_cold_is_not_believed_for_a_while() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    (world.of(units[0]).used, world.of(units[0]).cold) = (960 * MIB, 500 * MIB);
    world.took(units[1], 64, 16);
    let lent = |world: &mut World| {
        let allowed = world.share(UnitId(3)).allowed.max(960 * MIB) / MIB;
        world.thrash(units[1], allowed);
        world.looks(1)[2].lent / MIB
    };
    let most = (0..20).map(|_| lent(&mut world)).last();
    assert!(most.is_some_and(|most| (320..=337).contains(&most)), "{most:?}");
    world.thrash(units[0], 640);
    assert_eq!(lent(&mut world), 0);
    (world.of(units[0]).used, world.of(units[0]).cold) = (960 * MIB, 500 * MIB);
    assert_eq!((0..20).map(|_| lent(&mut world)).max(), Some(0));
    world.now += DOUBT_NS;
    assert!((0..20).any(|_| lent(&mut world) > 0));
}

#[test]
fn who_is_short_presses_at_its_bound() {
    let at = |used: u64| UnitMemory { used: used * MIB, ..UnitMemory::default() };
    let share = Share { allowed: 960 * MIB, ..Share::default() };
    let before = Seen { facts: at(960), known: true, share, ..Seen::default() };
    let short = |now: UnitMemory| before.is_short(now, 1_000 * MS, 512 << 10);
    assert!(!short(at(960)));
    assert!(short(UnitMemory { refaulted: MIB, ..at(960) }));
    assert!(
        short(UnitMemory { stalled_ns: 51 * MS, ..at(960) })
            && !short(UnitMemory { stalled_ns: 50 * MS, ..at(960) })
    );
    assert!(short(UnitMemory { anonymous: MIB, ..at(960) }));
    // Away from it, only if it was held there since the last look.
    assert!(!short(UnitMemory { refaulted: MIB, ..at(900) }));
    assert!(short(UnitMemory { refaulted: MIB, refused: 1, ..at(900) }));
    assert!(!Seen { known: false, ..before }.is_short(
        UnitMemory { refaulted: MIB, ..at(960) },
        1,
        512 << 10
    ));
}

#[test]
fn doubt_lasts_twice_as_long_each_time_until_it_is_forgotten() {
    let share = Share { lent: MIB, ..Share::default() };
    let mut unit = Seen { share, ..Seen::default() };
    let missed = UnitMemory { refaulted: MIB, ..UnitMemory::default() };
    let mut doubted = |now: Time, short: bool| {
        unit.doubt(now, short, missed, 512 << 10);
        unit.doubted_until.saturating_sub(now)
    };
    assert_eq!(doubted(0, false), 0);
    assert_eq!(doubted(0, true), DOUBT_NS);
    assert_eq!(doubted(DOUBT_NS, true), 2 * DOUBT_NS);
    assert_eq!(doubted(4 * DOUBT_NS, true), 4 * DOUBT_NS);
    let most = (0..10).map(|_| doubted(8 * DOUBT_NS, true)).last();
    assert_eq!(most, Some(DOUBT_NS_MAX));
    assert_eq!(doubted(9 * DOUBT_NS + 2 * DOUBT_NS_MAX, true), DOUBT_NS);
}

/// What encloses a unit is guaranteed with it. Of 1,920 MiB, a has 200 hard and half of the rest, 1,060 in all; of these, its
/// sub-unit b has a tenth hard, and half of what is left beside a's own processes: 583.
#[test]
fn guarantees_enclose_those_of_sub_units() {
    let mut contract = Contract::default();
    let a = contract.add(None, "a");
    let b = contract.add(Some(a), "b");
    contract.add(None, "c");
    contract.units[a.index()].hard.memory = Some(Amount::Absolute(200 * MIB));
    contract.units[b.index()].hard.memory = Some(Amount::Part(MILLIONTH / 10));
    let mut world = World::new(contract);
    let (steps, _) = world.look(0);
    let guarantee = |unit, [min, low, own]: [u64; 3]| {
        steps.iter().any(|step| {
            step.action == MemoryOrder::Guarantee { unit, min: min * MIB, low: low * MIB, own: own * MIB }
        })
    };
    assert!(guarantee(a, [200, 1_060, 477]) && guarantee(b, [106, 583, 583]), "{steps:?}");
    // Where nothing can be guaranteed, bounds are all there is.
    world.means.guarantees = false;
    let (steps, _) = world.look(250);
    assert!(
        steps.iter().any(|step| step.action == MemoryOrder::Guarantee { unit: a, min: 0, low: 0, own: 0 }),
        "{steps:?}"
    );
    assert_eq!(world.share(a).allowed, 477 * MIB);
}

/// Nothing is reserved for a itself. What is for b and d, which are in it, and for e in d, is guaranteed all the way up: a kernel
/// keeps nothing for a unit that is not kept for the one around it. b and d share 480 MiB beside it: a has half of 1,920.
#[test]
fn what_is_reserved_in_a_unit_is_guaranteed_around_it() {
    let mut contract = Contract::default();
    let a = contract.add(None, "a");
    let (b, d) = (contract.add(Some(a), "b"), contract.add(Some(a), "d"));
    let inner = contract.add(Some(d), "e");
    let other = contract.add(None, "c");
    for (id, mib) in [(b, 300), (d, 50), (inner, 100), (other, 200)] {
        contract.units[id.index()].hard.memory = Some(Amount::Absolute(mib * MIB));
    }
    let mut world = World::new(contract);
    let min = |world: &World, id: UnitId| world.in_force.get(&id).map_or(0, |orders| orders.min / MIB);
    let all = |world: &World| [a, b, d, inner, other].map(|id| min(world, id));
    world.look(0);
    assert_eq!(all(&world), [400, 300, 100, 100, 200]);
    // Who is not there has nothing kept, and those around have so much less.
    world.present[b.index()] = false;
    world.look(250);
    assert_eq!(all(&world), [100, 0, 100, 100, 200]);
    // More than there is of a: what is in it shrinks alike, and a is guaranteed what it is entitled to, no more.
    for id in [d, inner] {
        world.contract.units[id.index()].hard.memory = Some(Amount::Absolute(1_900 * MIB));
    }
    world.look(250);
    let entitled: u64 = [a, b, d, inner].map(|id| world.share(id).entitled).iter().sum::<u64>() / MIB;
    let [of_a, .., of_other] = all(&world);
    assert_eq!((of_a, of_other), (entitled, 200));
    assert!(of_a + of_other <= 1_920);
}

/// Of 1,920 MiB, u0 has 600 reserved and 660 of the rest, and uses 700, 500 of them cold: what it does not use is lent, and 100
/// of what is cold, the rest being reserved. When it uses 300 only, what is guaranteed to it sinks with its bound, which never is
/// below; when it wants its own, both are whole again.
#[test]
fn of_a_reservation_only_what_is_not_used_is_lent() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(600 * MIB));
    contract.machine.reserve = Amount::Part(0);
    let mut world = World::new(contract);
    world.took(units[1], 64, 16);
    let kept = |world: &mut World, used: u64, cold: u64| {
        for _ in 0..25 {
            (world.of(units[0]).used, world.of(units[0]).cold) = (used * MIB, cold * MIB);
            let allowed = world.share(units[1]).allowed.max(660 * MIB) / MIB;
            world.thrash(units[1], allowed);
            world.look(250);
        }
        let orders = world.in_force[&units[0]];
        [orders.min, orders.high.unwrap_or(0), world.share(units[0]).lent].map(|bytes| bytes / MIB)
    };
    assert_eq!(kept(&mut world, 700, 500), [600, 600, 660]);
    // What it uses is taken 4 MiB higher than it is.
    assert_eq!(kept(&mut world, 300, 0), [304, 304, 956]);
    world.thrash(units[0], 304);
    world.look(20);
    assert_eq!(
        (world.in_force[&units[0]].min, world.in_force[&units[0]].high),
        (600 * MIB, Some(1_260 * MIB))
    );
}

/// A page more or less, or a little in what others hold, changes no order.
#[test]
fn small_movements_are_no_reason_for_orders() {
    let (contract, units) = equals(3);
    let mut world = World::new(contract);
    world.of(units[0]).used = 100 * MIB;
    world.took(units[1], 64, 16);
    for _ in 0..20 {
        let allowed = world.share(UnitId(3)).allowed.max(600 * MIB) / MIB;
        world.thrash(units[1], allowed);
        world.look(250);
    }
    for i in 0..20 {
        world.of(units[0]).used = 100 * MIB + (i % 3) * MIB;
        world.facts.kernel = 100 * MIB + (i % 4) * MIB;
        world.thrash(units[1], world.share(UnitId(3)).allowed / MIB);
        let steps = world.look(250).0;
        assert!(i < 2 || steps.is_empty(), "look {i}: {steps:?}");
    }
}

/// What is not observed stays as it is; what cannot be held any more, or must not be, is let go.
#[test]
fn nothing_is_held_that_should_not_be() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.look(0);
    assert_eq!(world.look_at(250, None), (vec![], None));
    assert_eq!(world.in_force.len(), 2);
    world.present[units[0].index()] = false;
    let (steps, _) = world.look(250);
    assert!(steps.contains(&Step {
        action: MemoryOrder::Allow { unit: units[0], bytes: None },
        reason: Reason::NobodyThere
    }));
    assert_eq!(world.share(units[1]).entitled, 1_920 * MIB, "who is away is entitled to nothing");
    world.means = MemoryMeans::NONE;
    world.look_at(250, None);
    assert!(world.in_force.is_empty());
    world.means = MEMORY;
    world.look(250);
    world.contract.machine.scheme = Scheme::Smp;
    world.look(250);
    assert!(world.in_force.is_empty());
}

/// A loan begins small: of a second, 208 ms pass until a look and 40 until the last, and three quarters of the rest at 128
/// MiB/s are 72 MiB. What is taken then, on trial, tells the rate, and the loan follows it: 64 MiB in 320 ms are 112 MiB.
#[test]
fn a_loan_waits_for_its_rate() {
    let (mut contract, units) = equals(2);
    contract.machine.call_back_memory_grows = Growth::default();
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    let trials = |world: &mut World, looks: u32| {
        let mut trials = Vec::new();
        for _ in 0..looks {
            world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
            for step in world.look(250).0 {
                if let (MemoryOrder::Reclaim { unit, bytes, .. }, Reason::OnTrial) =
                    (step.action, step.reason)
                {
                    assert_eq!(unit, units[1]);
                    trials.push(bytes / MIB);
                }
            }
        }
        trials
    };
    // Once a look, twice, four times as long after: within 20 looks of 250 ms at 0, 0.5, 1.5 and 3.5 s.
    assert_eq!(trials(&mut world, 20), [32; 4]);
    let borrowed = world.share(units[1]).borrowed / MIB;
    assert!((71..=72).contains(&borrowed), "{borrowed}");
    world.took(units[1], 64, 320);
    trials(&mut world, 5);
    let borrowed = world.share(units[1]).borrowed / MIB;
    assert!((111..=113).contains(&borrowed), "{borrowed}");
    // Who is short no more is left alone, however long ago the last trial was.
    world.now += 100_000 * MS;
    assert!(world.look(250).0.iter().all(|step| step.reason != Reason::OnTrial));
    world.took(units[1], 64, 3_200);
    trials(&mut world, 5);
    let borrowed = world.share(units[1]).borrowed / MIB;
    assert!((61..=63).contains(&borrowed), "a slower machine: {borrowed}");
}

#[test]
fn who_is_short_is_told_why_it_may_not_use_more() {
    let told =
        [Because::BorrowsInTime, Because::Borrows, Because::BorrowsFirst, Because::Limit, Because::Entitled];
    let (nothing, limit) = (Some(NoMore::NothingIdle), Some(NoMore::Limit));
    let in_time = Some(NoMore::InTime);
    assert_eq!(told.map(|because| no_more(because, true)), [in_time, nothing, nothing, limit, None]);
    // A loan that grows is no answer yet.
    assert_eq!(told.map(|because| no_more(because, false)), [in_time, None, None, limit, None]);
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    for _ in 0..20 {
        world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
        world.look(250);
    }
    assert_eq!((world.share(units[0]).no_more, world.share(units[1]).no_more), (None, in_time));
}

/// What is lent though it is used is taken from its owner, where that can be ordered; nothing is called back from it.
#[test]
fn what_is_cold_is_taken_to_be_lent() {
    for reclaim in [true, false] {
        let (contract, units) = equals(2);
        let mut world = World::new(contract);
        world.means.reclaim = reclaim;
        (world.of(units[0]).used, world.of(units[0]).cold) = (960 * MIB, 500 * MIB);
        world.took(units[1], 64, 16);
        let mut taken = false;
        for _ in 0..10 {
            world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
            taken |= world.look(250).0.iter().any(|step| {
                matches!(step.action, MemoryOrder::Reclaim { unit, .. } if unit == units[0])
                    && matches!(step.reason, Reason::Owes { .. })
            });
            assert!(!world.share(units[0]).called_back);
        }
        assert!(taken == reclaim && world.share(units[0]).lent > 0);
    }
}

/// Cold memory in no file is lent as far as swap has room for it, less what it takes there; of two lenders, once.
#[test]
fn what_only_swap_could_take_is_lent_as_far_as_it_has_room() {
    let most = |swap: u64, packed_permille: u64| {
        let (contract, units) = equals(3);
        let mut world = World::new(contract);
        (world.facts.swap_free, world.facts.packed_permille) = (swap * MIB, packed_permille);
        for owner in &units[..2] {
            let memory = world.of(*owner);
            (memory.used, memory.anonymous) = (640 * MIB, 640 * MIB);
            (memory.cold, memory.cold_anonymous) = (500 * MIB, 500 * MIB);
        }
        world.took(units[2], 64, 16);
        let shares = (0..30).map(|_| {
            world.thrash(units[2], world.share(units[2]).allowed.max(640 * MIB) / MIB);
            let shares = world.looks(1);
            (shares[2].lent + shares[3].lent) / MIB
        });
        shares.max().unwrap_or_default()
    };
    assert_eq!(most(0, 0), 0);
    // 300 MiB, less the reserve of 8 % of 2 GiB; 600 MiB of which a quarter stays.
    assert!((134..=137).contains(&most(300, 0)), "{}", most(300, 0));
    assert!((284..=287).contains(&most(600, 250)), "{}", most(600, 250));
}

/// What a unit has packed is used by it, and no bound and no guarantee of the kernel counts it: they are so much less.
#[test]
fn what_is_packed_comes_off_what_is_charged() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.of(units[0]).used = 500 * MIB;
    world.looks(2);
    let high = |world: &World| world.in_force[&units[0]].high.map(|bytes| bytes / MIB);
    assert_eq!(high(&world), Some(960));
    world.of(units[0]).packed = 100 * MIB - 1_000;
    let (steps, _) = world.look(250);
    assert_eq!((high(&world), world.share(units[0]).allowed / MIB), (Some(860), 960));
    assert!(
        steps.iter().any(|step| matches!(
            step.action,
            MemoryOrder::Guarantee { unit, low, .. } if unit == units[0] && low == 860 * MIB
        )),
        "{steps:?}"
    );
    // A few pages more change nothing.
    world.of(units[0]).packed = 103 * MIB;
    assert_eq!(world.look(250).0, []);
}

/// While a unit owes, nothing is taken on trial from another that borrows all that its rate permits.
#[test]
fn nothing_is_tried_while_somebody_owes() {
    let (mut contract, units) = equals(3);
    contract.machine.call_back_memory_grows = Growth::default();
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    // Both borrow all that their rate permits; the second may use more than that.
    let press = |world: &mut World, beyond: u64| {
        for (unit, more) in [(units[1], 0), (units[2], beyond)] {
            let allowed = world.share(unit).allowed.max(640 * MIB) / MIB;
            world.thrash(unit, allowed + more);
        }
        // A trial is due at every look, and reclaim is ordered anew.
        world.now += 64_000 * MS;
        let steps = world.look(250).0;
        let said = |reason: fn(&Reason) -> bool| steps.iter().any(|step| reason(&step.reason));
        let tried = said(|reason| *reason == Reason::OnTrial);
        (tried, said(|reason| matches!(reason, Reason::Owes { .. })))
    };
    assert!((0..10).any(|_| press(&mut world, 0) == (true, false)), "somebody is tried");
    // Its loan is ended by a limit, while the other's goes on at its rate.
    world.contract.units[units[2].index()].limit.memory = Some(Amount::Absolute(640 * MIB));
    world.contract.units[units[2].index()].borrow.memory = false.into();
    let seen: Vec<(bool, bool)> = (0..3).map(|_| press(&mut world, 300)).collect();
    assert_eq!(seen[0], (false, true), "{seen:?}");
    let borrowed = world.share(units[1]).borrowed;
    assert!(borrowed > 0, "the other could have been tried");
}

/// A lender that has room and reads again what was taken from it.
fn lender(lent: u64, back_mib: &[u64], every_ms: u64) -> Vec<bool> {
    lender_of(lent * MIB, MIB, back_mib, every_ms)
}

/// The same; `back` in units of so many bytes.
fn lender_of(lent: u64, grain: u64, back: &[u64], every_ms: u64) -> Vec<bool> {
    let share = Share { lent, allowed: 900 * MIB, ..Share::default() };
    let mut unit = Seen { share, known: true, ..Seen::default() };
    let mut now = 1_000_000 * MS;
    unit.doubt(now, false, unit.facts, 512 << 10);
    let looks = back.iter().map(|back| {
        now += every_ms * MS;
        unit.facts.refaulted += back * grain;
        unit.doubt(now, false, unit.facts, 512 << 10);
        now < unit.doubted_until
    });
    looks.collect()
}

/// 600 MiB are lent: 2 MiB a second would all be back within five minutes, a MiB in two seconds would not. What comes back
/// in the ten seconds of doubt was taken before; and what comes back slowly from then on is believed.
#[test]
fn what_comes_back_was_not_cold() {
    assert_eq!(lender(600, &[2, 2, 0], 1_000), [false, true, true]);
    assert_eq!(lender(600, &[1, 0, 1, 0, 1, 0], 1_000), [false; 6]);
    let back: Vec<u64> = [9; 11].into_iter().chain([0; 9]).collect();
    let doubted = lender(600, &back, 1_000);
    assert_eq!(doubted.iter().filter(|doubted| **doubted).count(), 10, "{doubted:?}");
    // A few pages are nothing, however little is lent; and who lends nothing has not lost it here.
    assert_eq!(lender(0, &[0], 2_000), [false]);
    assert_eq!(lender_of(MIB, 1_000_000, &[1, 0, 1], 2_000), [false; 3]);
    assert_eq!(lender_of(MIB, 1_000_000, &[2, 0, 0], 2_000), [true; 3]);
    assert_eq!(lender(0, &[90, 90, 90], 2_000), [false; 3]);
}

#[test]
fn a_reload_knows_what_is_in_force() {
    let (contract, _) = equals(2);
    let mut world = World::new(contract.clone());
    world.look(0);
    let mut again = contract.clone();
    again.adopt(&contract, true);
    world.contract = again;
    assert_eq!(world.look(250).0, []);
}

/// Loans grow once a period (208 ms here), or a little sooner ([`EARLY_NS`]), however often is looked in between.
#[test]
fn loans_grow_once_a_period() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    world.took(units[1], 64, 16);
    let borrowed = |world: &mut World, after_ms: u64| {
        world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
        world.look(after_ms);
        world.share(units[1]).borrowed / MIB
    };
    let first = (0..10).map(|_| borrowed(&mut world, 250)).find(|borrowed| *borrowed > 0);
    assert_eq!(first, Some(120));
    assert_eq!([20, 20, 142, 1].map(|ms| borrowed(&mut world, ms)), [120, 120, 120, 240]);
}

/// A reload drops a unit that borrows. At the next look, between two periods, what it had is nobody's loan, and the lender's
/// entitlement is whole.
#[test]
fn a_unit_that_a_reload_dropped_borrows_nothing() {
    let (contract, units) = equals(3);
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    world.took(units[1], 64, 16);
    for _ in 0..10 {
        world.thrash(units[1], world.share(units[1]).allowed.max(640 * MIB) / MIB);
        world.look(250);
    }
    assert!(world.share(units[1]).borrowed > 0);
    world.contract.vacant.insert(units[1]);
    world.present[units[1].index()] = false;
    *world.of(units[1]) = UnitMemory::default();
    world.look(20);
    let left = [0, 1].map(|n| (world.share(units[n]).lent, world.share(units[n]).borrowed));
    assert_eq!(left, [(0, 0); 2]);
}

/// While nobody is near a bound and nobody lends, a look a second does. Not where nothing tells that somebody meets its bound;
/// who is far from it is waited for, also while another one is near.
#[test]
fn where_nobody_is_near_a_bound_looks_are_few() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    let mut looks = |used: u64, alarms: bool| {
        world.of(units[1]).used = used * MIB;
        world.means.alarms = alarms;
        let plan = world.look(1_040).1;
        plan.map(|plan| ((plan.next - world.now) / MS, plan.watch.len()))
    };
    assert_eq!(looks(840, true), Some((1_040, 2)));
    assert_eq!(looks(840, false), Some((208, 2)));
    assert_eq!(looks(841, true), Some((208, 1)));
    assert_eq!(looks(100, true), Some((1_040, 2)));
}

/// What a unit's last process left behind keeps nobody from resting.
#[test]
fn who_is_gone_is_near_no_bound() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.of(units[0]).used = 100 * MIB;
    world.of(units[1]).used = MIB;
    let mut looks = |there: bool| {
        world.present[units[1].index()] = there;
        let plan = world.look(1_040).1;
        plan.map(|plan| ((plan.next - world.now) / MS, plan.watch.len()))
    };
    assert_eq!(looks(false), Some((1_040, 2)));
    for _ in 0..frames::CALM_LOOKS {
        assert_eq!(looks(true), Some((1_040, 2)));
    }
    // The other one is calm, and lends it what is left.
    for _ in 0..20 {
        assert_eq!(looks(false), Some((1_040, 2)));
    }
    assert_eq!(world.share(units[1]).borrowed, MIB);
}

/// A lender is looked at within a quarter of what was promised; otherwise a look is as long after the last as units make it.
#[test]
fn who_lends_is_looked_at_in_time() {
    let (mut contract, units) = equals(2);
    contract.machine.call_back_memory_ns = 200 * MS;
    let mut world = World::new(contract);
    world.of(units[0]).used = 60 * MIB;
    let next = |world: &mut World| {
        world.thrash(units[1], world.share(units[1]).allowed.max(960 * MIB) / MIB);
        world.look(250).1.map(|plan| plan.next - world.now)
    };
    assert_eq!(next(&mut world), Some(208 * MS));
    for _ in 0..10 {
        next(&mut world);
    }
    assert!(world.share(units[0]).lent > 0);
    assert_eq!(next(&mut world), Some(50 * MS));
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

/// Who is to be killed first, as the orders of a look change it.
fn exposed(steps: &[Step<MemoryOrder>], before: &mut BTreeSet<UnitId>) {
    for step in steps {
        match step.action {
            MemoryOrder::Expose { unit, exposed: true } => assert!(before.insert(unit), "ordered twice"),
            MemoryOrder::Expose { unit, exposed: false } => assert!(before.remove(&unit), "taken back twice"),
            _ => {}
        }
    }
}

/// So much of a unit is in no file.
fn fill(world: &mut World, unit: UnitId, mib: u64) {
    let memory = world.of(unit);
    (memory.used, memory.anonymous) = (mib * MIB, mib * MIB);
}

/// Of 1,920 MiB, u0 has no more than its 960, and u1 has more: it goes first from when less than 419 MiB are left (8 % of 2,048,
/// and an eighth that may lie on lists) until 501 are again, and nothing is ordered twice; it is reported from 163 to 245. What it
/// may drop is no reason, nor what swap takes.
#[test]
fn who_is_beyond_its_entitlement_goes_first_before_memory_is_short() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    let mut first = BTreeSet::new();
    let mut watched = vec![];
    let mut look = |world: &mut World, owner: u64, mib: u64| {
        fill(world, units[0], owner);
        fill(world, units[1], mib);
        let (steps, plan) = world.look(250);
        exposed(&steps, &mut first);
        let plan = plan.unwrap_or_default();
        watched = plan.watch;
        (first.iter().copied().collect::<Vec<_>>(), plan.beyond)
    };
    let beyond = |mib: u64| vec![Beyond { unit: units[1], bytes: mib * MIB }];
    assert_eq!(look(&mut world, 490, 1_000), (vec![], vec![]), "430 MiB are left");
    assert_eq!(look(&mut world, 510, 1_000), (vec![units[1]], vec![]), "410 are");
    assert_eq!(look(&mut world, 750, 1_000), (vec![units[1]], vec![]), "170 are");
    assert_eq!(look(&mut world, 800, 1_000), (vec![units[1]], beyond(40)), "120 are");
    assert_eq!(look(&mut world, 800, 1_050), (vec![units[1]], beyond(90)));
    assert_eq!(look(&mut world, 690, 1_000), (vec![units[1]], beyond(40)), "230 are: not yet enough");
    assert_eq!(look(&mut world, 670, 1_000), (vec![units[1]], vec![]), "250 are");
    assert_eq!(look(&mut world, 430, 1_000), (vec![units[1]], vec![]), "490 are: not yet enough");
    assert_eq!(look(&mut world, 410, 1_000), (vec![], vec![]), "510 are");
    assert_eq!(look(&mut world, 900, 1_000).0, [units[1]]);
    world.facts.swap_free = 1_024 * MIB;
    assert_eq!(look(&mut world, 900, 1_000), (vec![], vec![]), "there is swap");
    world.facts.swap_free = 0;
    assert_eq!(look(&mut world, 900, 1_000).0, [units[1]]);
    for _ in 0..39 {
        assert_eq!(
            look(&mut world, 900, 950).0,
            [units[1]],
            "it is within its own: for ten seconds it goes first still"
        );
    }
    assert_eq!(look(&mut world, 900, 950).0, []);

    assert_eq!(watched, [units[0], units[1]], "both are near");

    // 100 MiB are left; what is clean is not held.
    fill(&mut world, units[0], 900);
    fill(&mut world, units[1], 920);
    world.of(units[1]).used = 1_020 * MIB;
    assert!(!world.look(250).0.iter().any(|step| matches!(step.action, MemoryOrder::Expose { .. })));
}

/// Those who are in no unit take 900 MiB: units are entitled to half as much as before, and none of them is to blame.
#[test]
fn what_is_in_no_unit_exposes_nobody() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    fill(&mut world, units[0], 800);
    fill(&mut world, units[1], 100);
    world.looks(3);
    world.facts.shared = 900 * MIB;
    let (steps, plan) = world.look(250);
    assert!(plan.is_some_and(|plan| plan.units[units[0].index()].entitled < 600 * MIB));
    assert!(!steps.iter().any(|step| matches!(step.action, MemoryOrder::Expose { .. })), "{steps:?}");
    // Nor while it grows to what it was entitled to before; but beyond that, it is.
    let mut first = BTreeSet::new();
    for (mib, blamed) in [(950, false), (970, true)] {
        fill(&mut world, units[0], mib);
        exposed(&world.look(250).0, &mut first);
        assert_eq!(!first.is_empty(), blamed, "{mib} MiB");
    }
}

/// Those who are in no unit have had 900 MiB all the time: who takes more than its half of the rest is to blame, long before it
/// has what it would be entitled to without them, which is not there. And from the first look on, nobody knows who was first.
#[test]
fn what_was_in_no_unit_before_excuses_nobody() {
    let (contract, units) = equals(2);
    let mut world = World::new(contract);
    world.facts.shared = 900 * MIB;
    let mut first = BTreeSet::new();
    fill(&mut world, units[0], 500);
    fill(&mut world, units[1], 540);
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::new(), "it may have been there before them");
    for (mib, blamed) in [(100, false), (540, true)] {
        fill(&mut world, units[1], mib);
        exposed(&world.look(250).0, &mut first);
        assert_eq!(first.contains(&units[1]), blamed, "{mib} MiB");
        assert!(!first.contains(&units[0]));
    }
}

/// The same where entitlements do not sink alike: of 400 MiB less, who has 900 reserved loses half, and so does the other one,
/// which had much less.
#[test]
fn what_is_in_no_unit_exposes_nobody_beside_who_has_much_reserved() {
    let (mut contract, units) = equals(2);
    contract.units[units[0].index()].hard.memory = Some(Amount::Absolute(900 * MIB));
    let mut world = World::new(contract);
    fill(&mut world, units[0], 1_000);
    fill(&mut world, units[1], 400);
    world.looks(3);
    world.facts.shared += 400 * MIB;
    let mut first = BTreeSet::new();
    let (steps, plan) = world.look(250);
    assert!(plan.is_some_and(|plan| plan.units[units[1].index()].entitled < 330 * MIB));
    exposed(&steps, &mut first);
    assert_eq!(first, BTreeSet::new());
    fill(&mut world, units[1], 520);
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::from([units[1]]));
}

/// A unit that is within its entitlement is not exposed for what one of its sub-units takes of another; when it is beyond, that
/// sub-unit is, and nobody under `smp`.
#[test]
fn sub_units_are_exposed_when_what_is_around_them_is_beyond() {
    let (mut contract, units) = equals(2);
    let sub = contract.add(Some(units[0]), "sub");
    contract.add(Some(units[0]), "other");
    let mut world = World::new(contract);
    fill(&mut world, sub, 900);
    fill(&mut world, units[1], 940);
    let mut first = BTreeSet::new();
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::new(), "80 MiB are left");
    fill(&mut world, sub, 1_010);
    fill(&mut world, units[1], 850);
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::from([sub]));
    world.contract.machine.scheme = Scheme::Smp;
    exposed(&world.look(250).0, &mut first);
    assert_eq!(first, BTreeSet::new());
}

proptest! {
    /// Whatever a machine says, the checker agrees with every plan; who is short of its own has it; nobody who is away is held.
    #[test]
    fn promises_hold_whatever_a_machine_says(
        history in proptest::collection::vec((proptest::collection::vec(any_memory(), 5), proptest::collection::vec(any::<bool>(), 5), 1u64..600, 0u64..2_200, 0u64..4_096), 1..40),
        nested in any::<bool>(),
        no_loans in 0usize..5,
        amounts in proptest::collection::vec((0usize..5, any::<bool>(), proptest::option::of(0u64..1_500), 0u64..=MILLIONTH), 0..3),
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
        let (mut first, mut beyond_at) = (BTreeSet::new(), BTreeMap::new());
        for (units, present, after, kernel, swap) in history {
            let mut seen = vec![UnitMemory::default(); 2];
            seen.extend(units);
            seen.truncate(6);
            world.facts.units.clone_from(&seen);
            (world.facts.kernel, world.facts.swap_free) = (kernel * MIB, swap * MIB);
            world.present = [true, true].into_iter().chain(present).take(6).collect();
            let (steps, plan) = world.look(after);
            let plan = plan.unwrap_or_default();
            exposed(&steps, &mut first);
            let taken = |id: UnitId| {
                let seen = seen.get(id.index()).copied().unwrap_or_default();
                seen.used.min(seen.anonymous + seen.kernel + seen.packed)
            };
            let left = TOTAL.saturating_sub(
                world.facts.kernel + world.facts.shared + world.contract.held().map(taken).sum::<u64>(),
            );
            let beyond = world.contract.held().filter(|id| taken(*id) > plan.units[id.index()].entitled);
            beyond_at.extend(beyond.map(|id| (id, world.now)));
            for id in &first {
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

    /// Whoever wants what, whoever comes and goes, and whatever the common parts take: no bound is ever below what is
    /// guaranteed, at no step of a plan where a unit has no sub-units, and no page in use of a reservation is lent or called
    /// back. (Of what is packed no bound tells.)
    #[test]
    fn no_bound_is_below_a_guarantee(
        history in proptest::collection::vec((proptest::collection::vec(any_memory(), 5), proptest::collection::vec(prop::bool::weighted(0.9), 5), 1u64..600, 0u64..700, 0u64..4_096, 1u32..12), 1..8),
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
        let looks = history.into_iter().flat_map(|phase| core::iter::repeat_n(phase.clone(), phase.5 as usize));
        for (units, present, after, shared, swap, _) in looks {
            let borrows = *world.of(borrower);
            world.facts.units = [UnitMemory::default(); 2].into_iter().chain(units).collect();
            *world.of(borrower) = borrows;
            world.thrash(borrower, world.share(borrower).allowed.max(64 * MIB) / MIB);
            (world.facts.shared, world.facts.swap_free) = (shared * MIB, swap * MIB);
            world.present = [true, true].into_iter().chain(present).collect();
            let (steps, plan) = world.look(after);
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

    /// However often is looked: who has its pages back at less than the pace of five minutes is believed, and who has them
    /// at twice that pace is not.
    #[test]
    fn doubt_follows_the_pace_at_which_pages_come_back(lent in 300u64..100_000, every_ms in 100u64..3_000) {
        let paced = |percent: u64| {
            let per_look = |n: u64| lent * percent * n * every_ms / 100 / 300_000;
            let back: Vec<u64> = (0..100).map(|n| per_look(n + 1) - per_look(n)).collect();
            lender(lent, &back, every_ms)
        };
        prop_assert!(paced(200 + 30_000 / lent).contains(&true));
        prop_assert!(lent < 3_000 || !paced(50).contains(&true));
    }
}
