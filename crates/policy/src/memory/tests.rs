use commonhold_contract::{Amount, MILLIONTH};
use commonhold_machine::Machine;
use proptest::prelude::*;

use super::*;
use crate::check::Books;
use crate::plan::Plan;
use crate::snapshot::{Means, Snapshot, UnitFacts};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 2_048 * MIB;
const MEMORY: MemoryMeans = MemoryMeans { bounds: true, guarantees: true, reclaim: true };

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
    state: State,
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
            state: State::default(),
            books: Books::default(),
            now: 0,
            facts: MemoryFacts {
                total: TOTAL,
                kernel: 100 * MIB,
                shared: 28 * MIB,
                swap_free: 0,
                units: vec![UnitMemory::default(); units],
            },
            present: vec![true; units],
            in_force: BTreeMap::new(),
        }
    }

    /// A look after so many milliseconds; the orders that it gave.
    fn look(&mut self, after_ms: u64) -> (Vec<Step>, Option<MemoryPlan>) {
        let memory = Some(self.facts.clone());
        self.look_at(after_ms, memory)
    }

    fn look_at(&mut self, after_ms: u64, memory: Option<MemoryFacts>) -> (Vec<Step>, Option<MemoryPlan>) {
        self.now += after_ms * MS;
        let units = self
            .present
            .iter()
            .map(|there| UnitFacts { processes: u32::from(*there), ..UnitFacts::default() });
        let snapshot = Snapshot { at: self.now, units: units.collect(), memory, ..Snapshot::default() };
        let means = Means { memory: self.means, ..Means::NONE };
        let input = Input { contract: &self.contract, machine: &self.machine, means, snapshot: &snapshot };
        let mut steps = Vec::new();
        let plan = step(&mut self.state, self.now, input, &mut steps);
        self.check(&steps, plan.as_ref());
        (steps, plan)
    }

    /// The plan checker agrees.
    fn check(&mut self, steps: &[Step], memory: Option<&MemoryPlan>) {
        let entitled = vec![0, 2 * MILLIONTH];
        let plan = Plan { steps: steps.to_vec(), entitled, memory: memory.cloned(), ..Plan::default() };
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
}

/// What is ordered for a unit: MiB.
fn bound(steps: &[Step], unit: UnitId) -> Option<u64> {
    steps.iter().rev().find_map(|step| match step.action {
        Action::Allow { unit: of, bytes } if of == unit => bytes.map(|bytes| bytes / MIB),
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
    let order = |unit, min, low| Action::Guarantee { unit, min: min * MIB, low: low * MIB, own: low * MIB };
    let actions: Vec<Action> = steps.iter().map(|step| step.action.clone()).collect();
    let expected = [
        Action::Allow { unit: units[0], bytes: Some(1_120 * MIB) },
        Action::Allow { unit: units[1], bytes: Some(800 * MIB) },
        order(units[0], 320, 1_120),
        order(units[1], 0, 800),
    ];
    assert_eq!(actions, expected);
    assert_eq!(plan.map(|plan| (plan.divided, plan.watch)), Some((1_920 * MIB, vec![])));
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
    let reclaim = steps.iter().find(|step| matches!(step.action, Action::Reclaim { .. }));
    let owed = lent - 8;
    assert!(
        matches!(reclaim, Some(Step { action: Action::Reclaim { unit, bytes }, reason: Reason::Owes { .. } })
            if *unit == units[1] && *bytes >= owed * MIB),
        "{steps:?}"
    );
    // It is looked at soon whether that is there.
    assert!(plan.is_some_and(|plan| plan.next == world.now + DEBT_LOOK_NS && plan.units[3].called_back));
    world.of(units[1]).used = 960 * MIB;
    let (steps, plan) = world.look(20);
    assert!(!steps.iter().any(|step| matches!(step.action, Action::Reclaim { .. })), "{steps:?}");
    assert!(plan.is_some_and(|plan| !plan.units[3].called_back));
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

/// A page more or less, or a little in what others hold, changes no order.
#[test]
fn small_movements_are_no_reason_for_orders() {
    let (contract, units) = equals(3);
    let mut world = World::new(contract);
    world.of(units[0]).used = 100 * MIB;
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
        action: Action::Allow { unit: units[0], bytes: None },
        reason: Reason::NobodyThere
    }));
    world.means = MemoryMeans::NONE;
    world.look_at(250, None);
    assert!(world.in_force.is_empty());
    world.means = MEMORY;
    world.look(250);
    world.contract.machine.scheme = Scheme::Smp;
    world.look(250);
    assert!(world.in_force.is_empty());
}

#[test]
fn rates_follow_what_call_backs_took() {
    let mut rates = Rates::default();
    let clean = UnitMemory { used: 600 * MIB, ..UnitMemory::default() };
    let second = 1_000 * MS;
    // Of a quarter of a second, 200 ms at 2 GiB/s.
    assert_eq!(rates.callable(clean, 0, second / 4) / MIB, 409);
    // 100 MiB in 2 s: half way down from 2,048 to 50 MiB/s.
    rates.watch(UnitId(2), 0, 100 * MIB, clean, 0);
    rates.watch(UnitId(2), 2 * second, 0, clean, 0);
    assert_eq!(rates.callable(clean, 0, second / 4) / MIB, 1_049 / 5);
    // Anonymous memory, with swap: 25 MiB in 800 ms at first; then 16 MiB came back in a tenth of a second.
    let anonymous = UnitMemory { used: 600 * MIB, anonymous: 600 * MIB, ..UnitMemory::default() };
    assert_eq!(rates.callable(anonymous, 1_000 * MIB, second) / MIB, 25);
    rates.watch(UnitId(3), 0, 16 * MIB, anonymous, 1_000 * MIB);
    rates.watch(UnitId(3), 100 * MS, 0, anonymous, 1_000 * MIB);
    assert_eq!(rates.callable(anonymous, 1_000 * MIB, second) / MIB, 64 * 8 / 10);
    assert_eq!(rates.callable(anonymous, 10 * MIB, second) / MIB, 10, "no more than swap has room for");
}

fn any_memory() -> impl Strategy<Value = UnitMemory> {
    (0u64..3_000, 0u64..3_000, 0u64..500, 0u64..3_000, 0u64..3, 0u64..50).prop_map(
        |(used, anonymous, dirty, cold, refused, refaulted)| UnitMemory {
            used: used * MIB,
            anonymous: anonymous.min(used) * MIB,
            dirty: dirty * MIB,
            cold: cold * MIB,
            refused,
            refaulted: refaulted * MIB,
            ..UnitMemory::default()
        },
    )
}

proptest! {
    /// Whatever a machine says, the checker agrees with every plan; who is short of its own has it; nobody who is away is held.
    #[test]
    fn promises_hold_whatever_a_machine_says(
        history in proptest::collection::vec((proptest::collection::vec(any_memory(), 5), proptest::collection::vec(any::<bool>(), 5), 1u64..600, 0u64..2_200, 0u64..4_096), 1..40),
        nested in any::<bool>(),
        no_loans in 0usize..5,
    ) {
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        contract.add(nested.then_some(a), "b");
        contract.add(nested.then_some(a), "c");
        contract.add(None, "d");
        contract.units[2].hard.memory = Some(Amount::Absolute(200 * MIB));
        if let Some(unit) = contract.units.get_mut(2 + no_loans) {
            (unit.lend.memory, unit.borrow.memory) = (false, false);
        }
        let mut world = World::new(contract);
        for (units, present, after, kernel, swap) in history {
            let mut seen = vec![UnitMemory::default(); 2];
            seen.extend(units);
            seen.truncate(6);
            world.facts.units.clone_from(&seen);
            (world.facts.kernel, world.facts.swap_free) = (kernel * MIB, swap * MIB);
            world.present = [true, true].into_iter().chain(present).take(6).collect();
            let (_, plan) = world.look(after);
            let plan = plan.unwrap_or_default();
            for id in world.contract.held() {
                let share = plan.units[id.index()];
                let orders = world.in_force.get(&id).copied().unwrap_or_default();
                prop_assert_eq!(orders.high.is_some(), world.present[id.index()]);
                prop_assert!(share.lent == 0 || share.borrowed == 0);
            }
        }
    }
}
