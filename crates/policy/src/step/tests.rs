// Numbers of the first few units.
#![allow(clippy::cast_possible_truncation)]

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::*;
use crate::check::Books;
use crate::cpu::lend::Loan;
use crate::cpu::{BUSY_NS, NotHeld, REST_NS, Side, WhyNot, needs_cap, not_held};
use crate::plan::{CpuDecision, CpuOrder, DiskOrder, MemoryOrder, Orders, Reason, Step};
use crate::rights::{Bid, Change, Ending, Offer, Refused, Trade, Waits};
use crate::snapshot::{DiskFacts, DiskMeans, Means, MemoryFacts, Snapshot, UnitFacts, UnitMemory};
use commonhold_contract::{Amount, Contract, MILLIONTH, PerResource, Permission, PoolForm, Scheme, UnitId};
use commonhold_machine::{CpuSet, Machine};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const USER: Means =
    Means { cpu_sets: true, weights: false, caps: false, gates: true, switches: false, ..Means::NONE };
const CGROUP: Means =
    Means { cpu_sets: true, weights: true, caps: true, gates: true, switches: false, ..Means::NONE };
const SWITCHES: Means =
    Means { cpu_sets: true, weights: true, caps: false, gates: false, switches: true, ..Means::NONE };

/// A machine whose units behave as a test says, driven through the policy and the plan checker.
struct World {
    contract: Contract,
    machine: Machine,
    means: Means,
    now: Time,
    look_ns: u64,
    state: PolicyState,
    books: Books,
    facts: Vec<UnitFacts>,
    disks: Vec<DiskFacts>,
    changes: Vec<Change>,
    plan: Plan,
}

impl World {
    fn new(machine: &str, means: Means, tickets: &[u64]) -> World {
        let mut contract = Contract::default();
        for (i, tickets) in tickets.iter().enumerate() {
            let id = contract.add(None, &format!("u{i}"));
            contract.units[id.index()].tickets = PerResource::all(*tickets);
        }
        World::of(contract, machine, means)
    }

    fn of(contract: Contract, machine: &str, means: Means) -> World {
        World {
            facts: vec![UnitFacts::default(); contract.units.len()],
            contract,
            machine: Machine::synthetic(machine).unwrap(),
            means,
            now: 0,
            look_ns: 0,
            state: PolicyState::default(),
            books: Books::default(),
            disks: Vec::new(),
            changes: Vec::new(),
            plan: Plan::default(),
        }
    }

    /// Sets the number of runnable threads of the n-th unit; at 0, it still has processes.
    fn run(&mut self, n: usize, runnable: u32) {
        let facts = &mut self.facts[n + 2];
        (facts.processes, facts.runnable) = (1, runnable);
    }

    fn leave(&mut self, n: usize) {
        self.facts[n + 2] = UnitFacts { used_ns: self.facts[n + 2].used_ns, ..UnitFacts::default() };
    }

    /// One step, `ms` later.
    fn after(&mut self, ms: u64) -> &Plan {
        self.now += ms * MS;
        for facts in &mut self.facts {
            facts.at = self.now;
        }
        let snapshot = Snapshot {
            at: self.now,
            units: self.facts.clone(),
            disks: self.disks.clone(),
            look_ns: self.look_ns,
            ..Snapshot::default()
        };
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: self.means,
            snapshot: &snapshot,
            changes: &self.changes,
        };
        let (state, plan) = step(core::mem::take(&mut self.state), self.now, input);
        self.state = state;
        self.books = match self.books.replay(&self.contract, &self.machine, &plan) {
            Ok(books) => books,
            Err(wrong) => panic!("{wrong:#?}\n{plan:#?}"),
        };
        assert!(plan.next > self.now);
        self.plan = plan;
        &self.plan
    }

    /// Several steps of `ms` each.
    fn steps(&mut self, times: core::ops::Range<u32>, ms: u64) {
        for _ in times {
            self.after(ms);
        }
    }

    fn cpus(&self, n: u32) -> CpuSet {
        crate::cpu::holds(&self.state.cpu).remove(&UnitId(n + 2)).unwrap_or_default()
    }

    fn holds(&self, n: u32) -> String {
        self.cpus(n).to_string()
    }

    fn printed(&self) -> Vec<String> {
        let decided = self.plan.decisions.cpu.steps.iter().map(|step| words(&step.action, step.reason));
        let ordered = self.plan.orders.cpu.iter().map(|step| words(&step.action, step.reason));
        decided.chain(ordered).collect()
    }
}

fn words(action: &dyn core::fmt::Debug, reason: Reason) -> String {
    format!("{action:?}: {reason:?}").replace("UnitId", "")
}

#[test]
fn two_units_on_two_cpus_from_start_to_call_back() {
    let mut w = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
    w.run(1, 4);
    w.after(1);
    // Alone, the heavy unit is entitled to the whole machine.
    assert_eq!(w.holds(1), "0-1");
    w.run(0, 1);
    w.after(10);
    assert_eq!((w.holds(0), w.holds(1)), ("1".to_owned(), "0".to_owned()));
    assert_eq!(
        w.printed(),
        [
            "Disown { cpu: 1, unit: (3) }: EntitlementChanged { from: 2000000, to: 1000000 }",
            "Own { cpu: 1, unit: (2) }: Entitled { micro_cpus: 1000000 }",
            "Confine { unit: (2), cpus: Some({1}) }: HoldsChanged",
            "Confine { unit: (3), cpus: Some({0}) }: HoldsChanged",
        ]
    );
    // The light unit sleeps: within the settling time nothing is lent, then its CPU is.
    w.run(0, 0);
    w.after(20);
    assert_eq!(w.holds(1), "0");
    w.after(40);
    assert_eq!((w.holds(0), w.holds(1)), ("1".to_owned(), "0-1".to_owned()));
    assert_eq!(
        w.printed()[0],
        "Lend { cpu: 1, lender: (2), borrower: (3) }: OwnerIdle { idle_ns: 60000000 }"
    );
    assert_eq!(w.plan.watch, [UnitId(2)]);
    assert_eq!(w.plan.next, w.now + 8 * MS);
    // It wakes: the CPU is called back in the same step.
    w.after(8);
    w.run(0, 1);
    w.after(8);
    assert_eq!(w.holds(1), "0");
    let since = w.now - 8 * MS;
    let action = CpuDecision::CallBack { cpu: 1, lender: UnitId(2), borrower: UnitId(3), since };
    assert!(w.plan.decisions.cpu.steps.iter().any(|step| step.action == action), "{:?}", w.printed());
}

#[test]
fn quota_never_lends_and_smp_never_orders() {
    let mut w = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
    w.contract.machine.scheme = Scheme::Quota;
    w.run(0, 0);
    w.run(1, 4);
    w.steps(0..20, 50);
    assert_eq!(w.holds(1), "1");
    // Under `quota`, the light unit's half stays its own even without processes.
    w.leave(0);
    w.after(50);
    assert_eq!(w.holds(1), "1");
    w.contract.machine.scheme = Scheme::Smp;
    w.after(50);
    assert!(
        w.printed().contains(&"Confine { unit: (3), cpus: None }: Scheme { scheme: Smp }".to_owned()),
        "{:?}",
        w.printed()
    );
    w.after(50);
    assert_eq!(w.printed(), [""; 0]);
}

/// 1:2:3:2 on 8 CPUs; when the unit of three sleeps, its CPUs go to those that hold the least relative to their entitlement: 1
/// of 1, 2 of 2 and 2 of 2 tie, so each gets one.
#[test]
fn an_idle_units_cpus_are_lent_by_claim() {
    let mut w = World::new("nodes:4 cpus:2 memory:1GiB", CGROUP, &[100, 200, 300, 200]);
    (0..4).for_each(|n| w.run(n, 8));
    w.after(1);
    let count = |w: &World| [0, 1, 2, 3].map(|n| w.cpus(n).len());
    assert_eq!(count(&w), [1, 2, 3, 2]);
    w.run(2, 0);
    w.after(100);
    w.after(100);
    assert_eq!(count(&w), [2, 3, 3, 3]);
}

/// Three units on one CPU without weights: turns, and closed gates between a unit's turns.
#[test]
fn more_units_than_cpus_take_turns() {
    let mut w = World::new("cpus:1 memory:1GiB", USER, &[100, 100, 200]);
    (0..3).for_each(|n| w.run(n, 1));
    let mut had = [0, 0, 0];
    for _ in 0..400 {
        w.after(100);
        for (n, had) in had.iter_mut().enumerate() {
            *had += w.cpus(n as u32).len();
        }
    }
    assert_eq!(had, [100, 100, 200]);
    // One of them sleeps: a tenth of a second later, the others profit from its turns.
    w.run(2, 0);
    w.steps(0..3, 100);
    assert!(w.state.cpu.loans.len() == 1 || !w.state.cpu.owners.values().any(|owner| *owner == UnitId(4)));
}

/// A stopped process never shows new demand, so a sleeping unit is not stopped outside its turn.
#[test]
fn a_sleeping_unit_is_not_stopped() {
    let mut w = World::new("cpus:1 memory:1GiB", USER, &[100, 100]);
    w.run(0, 1);
    w.run(1, 0);
    w.steps(0..10, 100);
    assert!(w.state.cpu.orders.values().all(|orders| orders.open), "{:?}", w.state.cpu.orders);
    // The same when all sleep, except that a new unit counts as awake, and is stopped, until demand settles.
    w.run(0, 0);
    w.steps(0..10, 100);
    assert!(w.state.cpu.orders.values().all(|orders| orders.open), "{:?}", w.state.cpu.orders);
    // Both want the CPU: one of them is stopped until its turn.
    w.run(0, 1);
    w.run(1, 1);
    w.after(100);
    assert_eq!(w.state.cpu.orders.values().filter(|orders| !orders.open).count(), 1);
}

/// More units than CPUs, with weights: no CPU sets, weights as 10,000ths.
#[test]
fn proportional_mode_weighs() {
    let mut w = World::new("cpus:2 memory:1GiB", CGROUP, &[100, 200, 100]);
    (0..3).for_each(|n| w.run(n, 2));
    w.after(1);
    assert_eq!(
        w.printed(),
        [
            "Weigh { unit: (2), weight: 2500 }: Proportion { micro_cpus: 500000 }",
            "Weigh { unit: (3), weight: 5000 }: Proportion { micro_cpus: 1000000 }",
            "Weigh { unit: (4), weight: 2500 }: Proportion { micro_cpus: 500000 }",
        ]
    );
    w.contract.machine.scheme = Scheme::Quota;
    w.after(100);
    assert!(
        w.printed().contains(&"Cap { unit: (3), micro_cpus: Some(1000000) }: MayNotBorrow".to_owned()),
        "{:?}",
        w.printed()
    );
}

/// physics has two sub-units and lends to its own first; the other unit gets the rest.
#[test]
fn an_idle_share_stays_in_the_family() {
    let mut contract = Contract::default();
    let physics = contract.add(None, "physics");
    contract.add(Some(physics), "day");
    contract.add(Some(physics), "night");
    contract.add(None, "students");
    let mut w = World::of(contract, "cpus:4 memory:1GiB", USER);
    w.run(1, 0);
    w.run(2, 2);
    w.run(3, 4);
    w.after(1);
    w.after(100);
    // day 1 idle, night 1 busy with 2, students 2 busy with 4.
    let lent: Vec<UnitId> = w.state.cpu.loans.values().map(|loan| loan.borrower).collect();
    assert_eq!(lent, [UnitId(4)]);
}

/// Permissions to lend and borrow, and limits, are respected.
#[test]
fn switches_and_limits() {
    let mut w = World::new("cpus:4 memory:1GiB", USER, &[100, 100]);
    w.run(0, 0);
    w.run(1, 8);
    w.contract.units[2].lend.cpu = false.into();
    w.steps(0..5, 100);
    assert_eq!(w.state.cpu.loans.len(), 0);
    w.contract.units[2].lend.cpu = true.into();
    w.contract.units[3].borrow.cpu = false.into();
    w.steps(0..5, 100);
    assert_eq!(w.state.cpu.loans.len(), 0);
    w.contract.units[3].borrow.cpu = true.into();
    w.contract.units[3].limit.cpu = Some(commonhold_contract::Amount::Absolute(3 * MILLIONTH));
    w.steps(0..5, 100);
    assert_eq!(w.holds(1).parse::<CpuSet>().unwrap().len(), 3);
}

/// Of 8 CPUs, u0 and u1 own 4 each. u0 is idle and lends at most 2; u1 may borrow at most 3, then 1. Fractional amounts are
/// rounded down, and loans beyond a lowered amount end at the next step.
#[test]
fn no_more_is_lent_and_borrowed_than_the_amounts() {
    let cpus = |millionths| Permission::AtMost(Amount::Absolute(millionths));
    let mut w = World::new("cpus:8 memory:1GiB", USER, &[100, 100]);
    w.run(0, 0);
    w.run(1, 8);
    let mut lent = |lend: Permission, borrow: Permission| {
        (w.contract.units[2].lend.cpu, w.contract.units[3].borrow.cpu) = (lend, borrow);
        w.after(100);
        let at_once = w.state.cpu.loans.len();
        w.steps(0..3, 100);
        assert_eq!(w.cpus(1).len(), 4 + w.state.cpu.loans.len());
        (at_once, w.state.cpu.loans.len(), w.printed())
    };
    let loans = |(at_once, after, _): (usize, usize, Vec<String>)| (at_once, after);
    assert_eq!(loans(lent(Permission::Yes, Permission::Yes)).1, 4);
    assert_eq!(loans(lent(cpus(2_999_999), Permission::Yes)), (2, 2));
    assert_eq!(loans(lent(cpus(3_000_000), Permission::Yes)), (3, 3));
    assert_eq!(loans(lent(cpus(3_000_000), cpus(1_900_000))), (1, 1));
    // A quarter of the 4 CPUs that u0 owns; three eighths of the 8 of the machine.
    assert_eq!(loans(lent(Permission::AtMost(Amount::Part(250_000)), Permission::Yes)), (1, 1));
    assert_eq!(loans(lent(Permission::Yes, Permission::AtMost(Amount::Part(375_000)))), (3, 3));
    assert_eq!(loans(lent(cpus(0), Permission::Yes)), (0, 0));
    assert_eq!(loans(lent(Permission::Yes, cpus(999_999))), (0, 0));
}

#[test]
fn a_loan_beyond_an_amount_ends_with_a_reason() {
    let mut w = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
    w.run(0, 0);
    w.run(1, 8);
    w.steps(0..3, 100);
    w.contract.units[2].lend.cpu = Permission::No;
    w.after(1);
    let printed = w.printed();
    assert!(
        printed
            .iter()
            .any(|printed| printed.ends_with("Return { cpu: 0, lender: (2), borrower: (3) }: LoanLimit")),
        "{printed:?}"
    );
}

/// The checker counts on books of its own: it rejects three CPUs on loan where two are permitted.
#[test]
fn the_checker_counts_loans_by_itself() {
    let mut w = World::new("cpus:6 memory:1GiB", USER, &[100, 100]);
    w.run(0, 0);
    w.run(1, 8);
    w.steps(0..3, 100);
    let mut plan = Plan::default();
    plan.decisions.cpu.entitled.clone_from(&w.plan.decisions.cpu.entitled);
    let mut wrong = |lend: Permission, borrow: Permission| {
        (w.contract.units[2].lend.cpu, w.contract.units[3].borrow.cpu) = (lend, borrow);
        w.books.replay(&w.contract, &w.machine, &plan).err()
    };
    let cpus = |n: u64| Permission::AtMost(Amount::Absolute(n * MILLIONTH));
    assert_eq!(wrong(cpus(3), cpus(3)), None);
    let one = |text: &str| Some(vec![text.into()]);
    assert_eq!(wrong(cpus(2), cpus(3)), one("u0 lends 3 cpus of 2000000 millionths at most"));
    assert_eq!(wrong(cpus(3), cpus(2)), one("u1 borrows 3 cpus of 2000000 millionths at most"));
    let half = Permission::AtMost(Amount::Part(MILLIONTH / 2));
    assert_eq!(wrong(half, half), one("u0 lends 3 cpus of 1500000 millionths at most"));
}

/// A unit that the contract never had, and a removed one: the checker names both in every kind of step.
#[test]
fn the_checker_knows_which_units_exist() {
    let mut w = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
    let (gone, never) = (UnitId(3), UnitId(9));
    w.contract.vacant.insert(gone);
    let wrong = |change: &dyn Fn(&mut Plan)| {
        let mut plan = Plan::default();
        plan.decisions.cpu.entitled = vec![0, 2 * MILLIONTH];
        change(&mut plan);
        Books::default().replay(&w.contract, &w.machine, &plan).err().unwrap_or_default()
    };
    assert_eq!(wrong(&|_| {}), [""; 0]);
    for unit in [gone, never] {
        let name = format!("the contract has no unit {}", unit.0);
        let ordered = [
            wrong(&|plan| {
                plan.orders = Orders::of_cpus(Reason::TurnOver, [CpuOrder::Gate { unit, open: true }]);
            }),
            wrong(&|plan| {
                let order = MemoryOrder::Reclaim { unit, bytes: 1, files: false };
                plan.orders = Orders::of_memory(Reason::TurnOver, [order]);
            }),
            wrong(&|plan| {
                let order = DiskOrder::Weigh { unit, disk: "sda".into(), weight: 1 };
                plan.orders = Orders::of_disks(Reason::TurnOver, [order]);
            }),
        ];
        assert_eq!(ordered, [[name.as_str()]; 3]);
        let given = [
            CpuDecision::Own { cpu: 0, unit },
            CpuDecision::Lend { cpu: 0, lender: unit, borrower: UnitId(2) },
            CpuDecision::Lend { cpu: 0, lender: UnitId(2), borrower: unit },
        ];
        for action in given {
            let step = Step { action, reason: Reason::TurnOver };
            let wrong = wrong(&|plan| plan.decisions.cpu.steps = vec![step.clone()]);
            assert!(wrong.contains(&name), "{wrong:?}");
        }
    }
}

/// Where weights share CPUs, a cap leaves room for what may be borrowed, up to the limit.
#[test]
fn a_cap_leaves_room_for_what_may_be_borrowed() {
    let mut contract = Contract::default();
    let physics = contract.add(None, "physics");
    let night = contract.add(Some(physics), "night");
    contract.add(Some(physics), "day");
    let mut w = World::of(contract, "cpus:4 memory:1GiB", CGROUP);
    w.run(1, 8);
    w.run(2, 8);
    let mut cap = |borrow: Permission, limit: Option<Amount>| {
        let unit = &mut w.contract.units[night.index()];
        (unit.borrow.cpu, unit.limit.cpu) = (borrow, limit);
        w.after(100);
        w.state.cpu.orders[&night].cap
    };
    let at_most = |amount| Permission::AtMost(amount);
    assert_eq!(cap(Permission::Yes, None), None);
    // Entitled to 2 of 4.
    assert_eq!(cap(at_most(Amount::Absolute(500_000)), None), Some(2_500_000));
    assert_eq!(cap(at_most(Amount::Part(250_000)), None), Some(3 * MILLIONTH));
    assert_eq!(cap(at_most(Amount::Absolute(0)), None), Some(2 * MILLIONTH));
    let limit = Some(Amount::Absolute(3 * MILLIONTH));
    assert_eq!(cap(at_most(Amount::Absolute(500_000)), limit), Some(2_500_000));
    assert_eq!(cap(at_most(Amount::Absolute(5 * MILLIONTH)), limit), Some(3 * MILLIONTH));
    assert_eq!(cap(at_most(Amount::Absolute(5 * MILLIONTH)), None), None);
}

/// A scheduler that lends at every switch enforces no amount. With weights, amounts to lend are not enforced, and amounts to
/// borrow by caps. Plans lend no fractions of CPUs.
#[test]
fn unenforced_amounts_are_reported() {
    let mut contract = Contract::default();
    let physics = contract.add(None, "physics");
    let night = contract.add(Some(physics), "night");
    let students = contract.add(None, "students");
    let two = Permission::AtMost(Amount::Absolute(2 * MILLIONTH));
    for unit in [physics, night] {
        (contract.units[unit.index()].lend.cpu, contract.units[unit.index()].borrow.cpu) = (two, two);
    }
    contract.units[students.index()].lend.cpu = Permission::AtMost(Amount::Part(0));
    contract.units[students.index()].borrow.cpu = Permission::AtMost(Amount::Part(100_000));
    let lends = |unit, why| NotHeld { unit, side: Side::Lend, why };
    let borrows = |unit, why| NotHeld { unit, side: Side::Borrow, why };
    let every = WhyNot::EverySwitch;
    let all = [
        lends(physics, every),
        borrows(physics, every),
        lends(night, every),
        borrows(night, every),
        borrows(students, every),
    ];
    assert_eq!(not_held(&contract, SWITCHES, 8), all);
    let tenth = borrows(students, WhyNot::LessThanACpu);
    assert_eq!(not_held(&contract, CGROUP, 8), [lends(night, WhyNot::Shared), tenth]);
    assert_eq!(not_held(&contract, CGROUP, 10), [lends(night, WhyNot::Shared)]);
    assert_eq!(not_held(&contract, CGROUP, 1), [physics, night].map(|unit| lends(unit, WhyNot::Shared)));
    assert_eq!(not_held(&contract, USER, 8), [tenth]);
    assert_eq!(not_held(&contract, Means::NONE, 8), []);
    contract.machine.scheme = Scheme::Quota;
    assert_eq!(not_held(&contract, SWITCHES, 8), []);
}

/// A limit below one CPU: the unit runs only in its turns, even if CPUs are idle.
#[test]
fn a_limit_below_a_cpu_is_a_limit() {
    let mut w = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
    w.contract.units[2].limit.cpu = Some(commonhold_contract::Amount::Absolute(MILLIONTH / 2));
    w.run(0, 2);
    let mut held = 0;
    for _ in 0..80 {
        w.after(125);
        held += w.cpus(0).len();
    }
    // Half of a CPU over ten seconds: 40 of 80 samples, give or take a turn.
    assert!((38..=42).contains(&held), "{held}");
}

/// Two hard CPUs for one unit leave nothing for the other: it runs on idle CPUs, and is stopped when there are none.
#[test]
fn a_unit_without_entitlement_runs_on_idle_cpus() {
    for means in [USER, CGROUP] {
        let mut w = World::new("cpus:2 memory:1GiB", means, &[100, 100]);
        w.contract.units[2].hard.cpu = Some(commonhold_contract::Amount::Absolute(2 * MILLIONTH));
        w.run(0, 2);
        w.run(1, 4);
        w.steps(0..5, 100);
        assert_eq!(
            (w.holds(0), w.holds(1), w.state.cpu.orders[&UnitId(3)].open),
            ("0-1".to_owned(), String::new(), false)
        );
        w.run(0, 1);
        w.steps(0..3, 100);
        assert!(w.holds(1).len() == 1 && w.state.cpu.orders[&UnitId(3)].open);
    }
}

#[test]
fn with_switches_no_unit_waits_for_a_sample() {
    for (means, soon) in [(CGROUP, BUSY_NS), (SWITCHES, REST_NS)] {
        let mut w = World::new("cpus:2 memory:1GiB", means, &[100, 100]);
        w.run(0, 2);
        w.run(1, 2);
        w.steps(0..3, 100);
        assert_eq!(w.plan.next, w.now + soon);
        // A unit that may only be pausing, while another waits for its CPU.
        w.run(0, 0);
        w.after(10);
        assert_eq!(w.plan.next < w.now + REST_NS, means == CGROUP);
    }
}

/// With a scheduler, expensive samples are stretched to a fiftieth of a CPU; otherwise a unit may be waiting for the next one.
#[test]
fn with_switches_expensive_samples_are_rare() {
    for (look_ns, rest) in [(0, 250), (5 * MS, 250), (8 * MS, 400), (20 * MS, 1_000), (900 * MS, 1_000)] {
        for means in [SWITCHES, CGROUP] {
            let mut w = World::new("cpus:2 memory:1GiB", means, &[100, 100]);
            w.look_ns = look_ns;
            w.after(10);
            assert_eq!(w.plan.next - w.now, if means == SWITCHES { rest * MS } else { REST_NS });
        }
    }
}

/// Without one, the same applies to busy units, while no loan could be called back.
#[test]
fn expensive_samples_of_busy_units_are_rare() {
    for (look_ns, soon) in [(0, 100), (2 * MS, 100), (3 * MS, 150), (20 * MS, 250), (u64::MAX, 250)] {
        let mut w = World::new("cpus:2 memory:1GiB", CGROUP, &[100, 100]);
        w.look_ns = look_ns;
        w.run(0, 2);
        w.run(1, 2);
        w.steps(0..3, 100);
        assert_eq!(w.plan.next - w.now, soon * MS, "{look_ns}");
    }
}

/// The scheduler confines units itself: it needs owners and weights, but no CPU sets, loans, caps or gates.
#[test]
fn with_switches_the_plan_assigns_owners_and_confines_no_unit() {
    let mut w = World::new("cpus:4 memory:1GiB", SWITCHES, &[100, 300]);
    w.run(0, 0);
    w.run(1, 8);
    let mut owned = 0;
    for _ in 0..5 {
        let plan = w.after(100);
        for step in &plan.decisions.cpu.steps {
            assert!(matches!(step.action, CpuDecision::Own { .. }), "{step:?}");
            owned += 1;
        }
        assert!(plan.orders.cpu.iter().all(|step| matches!(step.action, CpuOrder::Weigh { .. })), "{plan:?}");
    }
    assert_eq!(owned, 4);
}

/// The kernel ejects a scheduler under which a task waits for 30 s: a unit's turns come within 5 s, however small its share,
/// which they do not increase; and no weight is below a thousandth.
#[test]
fn small_units_get_their_turns_in_time() {
    let mut w = World::new("cpus:8 memory:1GiB", SWITCHES, &[1, 2000]);
    (0..2).for_each(|n| w.run(n, 16));
    w.after(1);
    let (mut had_ns, mut waits_ns, mut waited_ns) = (0, 0, 0);
    while w.now < 60_000 * MS {
        let (owns, elapsed_ms) = (!w.cpus(0).is_empty(), (w.plan.next - w.now).div_ceil(MS));
        w.after(elapsed_ms);
        if owns {
            (had_ns, waits_ns) = (had_ns + elapsed_ms * MS, 0);
        } else {
            waits_ns += elapsed_ms * MS;
            waited_ns = waited_ns.max(waits_ns);
        }
    }
    assert!(waited_ns <= 5_100 * MS, "{} ms without a turn", waited_ns / MS);
    let due_ns = 60_000 * MS * 8 / 2001;
    assert!(had_ns.abs_diff(due_ns) <= due_ns / 5, "{} ms for {} ms", had_ns / MS, due_ns / MS);
    let mut w = World::new("cpus:1 memory:1GiB", SWITCHES, &[1, 5000, 4999]);
    (0..3).for_each(|n| w.run(n, 2));
    w.after(1);
    assert!(
        w.printed().iter().any(|printed| printed.starts_with("Weigh { unit: (2), weight: 10 }:")),
        "{:?}",
        w.printed()
    );
}

/// The scheduler ends, and comes back: the first plan after its end confines every unit and lends idle CPUs; the first after
/// its return lifts CPU sets, loans and caps. Home CPUs do not change.
#[test]
fn means_may_change_in_the_middle() {
    let mut contract = Contract::default();
    let physics = contract.add(None, "physics");
    let night = contract.add(Some(physics), "night");
    contract.add(None, "students");
    contract.units[night.index()].borrow.cpu = false.into();
    let mut w = World::of(contract, "cpus:4 memory:1GiB", SWITCHES);
    w.run(1, 8);
    w.run(2, 1);
    w.steps(0..3, 100);
    let owners = w.state.cpu.owners.clone();
    let confined = |plan: &Plan| -> Vec<bool> {
        let owned = |step: &Step<CpuDecision>| {
            matches!(step.action, CpuDecision::Own { .. } | CpuDecision::Disown { .. })
        };
        assert!(!plan.decisions.cpu.steps.iter().any(owned), "{plan:?}");
        let confine = |step: &Step<CpuOrder>| match &step.action {
            CpuOrder::Confine { cpus, .. } => Some(cpus.is_some()),
            _ => None,
        };
        plan.orders.cpu.iter().filter_map(confine).collect()
    };
    w.means = CGROUP;
    assert_eq!(confined(w.after(10)), [true, true]);
    assert!(w.state.cpu.loans.len() == 1 && w.state.cpu.orders[&night].cap.is_some(), "{:?}", w.printed());
    w.means = SWITCHES;
    assert_eq!(confined(w.after(10)), [false, false]);
    assert!(w.state.cpu.loans.is_empty() && w.state.cpu.orders[&night].cap.is_none(), "{:?}", w.printed());
    assert_eq!(w.state.cpu.owners, owners);
}

/// What a scheduler without caps cannot enforce: limits, and a ban on borrowing where CPUs are time-shared, among all units or
/// among one unit's sub-units.
#[test]
fn some_contracts_need_caps() {
    let mut contract = Contract::default();
    let physics = contract.add(None, "physics");
    let students = contract.add(None, "students");
    let needs = |contract: &Contract, cpus| needs_cap(contract, SWITCHES, cpus);
    assert_eq!(needs(&contract, 1), None);
    contract.machine.scheme = Scheme::Quota;
    assert_eq!((needs(&contract, 2), needs(&contract, 1)), (None, Some(physics)));
    let night = contract.add(Some(students), "night");
    assert_eq!(needs(&contract, 2), Some(night));
    contract.machine.scheme = Scheme::Isolate;
    assert_eq!(needs(&contract, 1), None);
    contract.units[students.index()].borrow.cpu = false.into();
    assert_eq!((needs(&contract, 2), needs(&contract, 1)), (None, Some(students)));
    // Its future sub-units may borrow no more than it.
    contract.units[students.index()].each = Some(commonhold_contract::Each::User);
    assert_eq!(needs(&contract, 2), Some(students));
    contract.units[students.index()].each = None;
    contract.units[physics.index()].limit.cpu = Some(commonhold_contract::Amount::Absolute(MILLIONTH));
    assert_eq!(needs(&contract, 2), Some(physics));
    contract.machine.scheme = Scheme::Smp;
    assert_eq!(needs(&contract, 2), None);
}

#[test]
fn a_cpu_goes_offline() {
    let mut w = World::new("cpus:4 memory:1GiB", USER, &[100, 100]);
    w.run(0, 0);
    w.run(1, 8);
    w.after(1);
    w.after(100);
    w.machine.cpus.pop();
    w.after(10);
    assert_eq!(w.state.cpu.owners.len(), 3);
    w.after(100);
}

#[test]
fn a_backward_clock_jump_changes_nothing() {
    let mut w = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
    w.now = 1_000_000 * MS;
    w.run(0, 1);
    w.run(1, 4);
    w.after(1);
    let held = (w.holds(0), w.holds(1));
    w.now = 5;
    w.after(1);
    assert_eq!((w.holds(0), w.holds(1)), held);
}

/// A reload removes the first unit: the second keeps its CPUs, and no order concerns the removed one.
#[test]
fn a_reload_keeps_what_the_units_that_stay_hold() {
    let mut w = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
    w.run(0, 1);
    w.run(1, 4);
    w.after(1);
    let mut contract = Contract::default();
    contract.add(None, "u1");
    contract.adopt(&w.contract, true);
    w.contract = contract;
    w.leave(0);
    w.run(1, 4);
    let orders = w.after(10).orders.clone();
    assert!(orders.cpu.iter().all(|step| step.action.unit() == UnitId(3)), "{orders:?}");
    assert_eq!(w.holds(1), "0-1");
}

/// Pools of five that cross a node cannot hold three units of four CPUs in one each. Pools by node can, and homes move at once.
#[test]
fn a_reload_of_pools_moves_homes_at_once() {
    let mut w = World::new("nodes:3 cpus:4", USER, &[100, 100, 100]);
    w.contract.machine.pools = PoolForm::Size(5);
    (0..3).for_each(|unit| w.run(unit, 4));
    w.after(1);
    let held: Vec<String> = (0..3).map(|unit| w.holds(unit)).collect();
    assert_eq!(held, ["0-3", "5-8", "4,9-11"]);
    w.after(10);
    w.contract.machine.pools = PoolForm::Node;
    let gone = w.after(10).decisions.cpu.steps.clone();
    let mut held: Vec<String> = (0..3).map(|unit| w.holds(unit)).collect();
    held.sort();
    assert_eq!(held, ["0-3", "4-7", "8-11"]);
    let disowned = gone.iter().filter(|step| matches!(step.action, CpuDecision::Disown { .. }));
    assert!(
        disowned.clone().count() > 0 && disowned.into_iter().all(|step| step.reason == Reason::PoolsChanged),
        "{gone:?}"
    );
    // Only once: the next step, and another form that suits them as well, move nothing.
    assert_eq!(w.after(10).decisions.cpu.steps, []);
    w.contract.machine.pools = PoolForm::Cache;
    assert_eq!(w.after(10).decisions.cpu.steps, []);
}

fn permissions() -> impl Strategy<Value = Permission> {
    prop_oneof![
        any::<bool>().prop_map(Permission::from),
        (0..6 * MILLIONTH).prop_map(|micro| Permission::AtMost(Amount::Absolute(micro))),
        (0..=MILLIONTH).prop_map(|part| Permission::AtMost(Amount::Part(part))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// For any demand and changes of amounts, no unit lends or borrows more; and amounts above the machine's size have no
    /// effect on plans.
    #[test]
    fn no_loan_is_beyond_an_amount(
        cpus in 1u64..9,
        amounts in proptest::collection::vec((permissions(), permissions()), 5),
        weights in any::<bool>(),
        nested in any::<bool>(),
        history in proptest::collection::vec((0usize..5, 0u32..10, 1u64..300, 0usize..12, permissions()), 1..40),
    ) {
        let world = |permission: &dyn Fn(usize) -> (Permission, Permission)| {
            let mut contract = Contract::default();
            for i in 0..5 {
                let parent = (nested && i % 3 == 2).then(|| UnitId(i as u32 + 1));
                let id = contract.add(parent, &format!("u{i}"));
                let unit = &mut contract.units[id.index()];
                (unit.lend.cpu, unit.borrow.cpu) = permission(i);
            }
            World::of(contract, &format!("cpus:{cpus} memory:1GiB"), if weights { CGROUP } else { USER })
        };
        let mut w = world(&|i| amounts[i]);
        let boundless = Permission::AtMost(Amount::Absolute(1_000 * MILLIONTH));
        let whole = Permission::AtMost(Amount::Part(MILLIONTH));
        let mut twins = [world(&|_| (Permission::Yes, Permission::Yes)), world(&|_| (boundless, boundless)), world(&|_| (whole, whole))];
        for (who, runnable, ms, which, permission) in history {
            if which < 5 {
                w.contract.units[which + 2].lend.cpu = permission;
            } else if which < 10 {
                w.contract.units[which - 3].borrow.cpu = permission;
            }
            for w in core::iter::once(&mut w).chain(&mut twins) {
                w.run(who, runnable);
                w.after(ms);
            }
            for claim in &w.state.cpu.claims {
                let unit = w.contract.unit(claim.unit);
                let owned = w.state.cpu.owners.values().filter(|owner| **owner == claim.unit).count() as u64;
                let count = |whose: fn(&Loan) -> UnitId| {
                    w.state.cpu.loans.values().filter(|loan| whose(loan) == claim.unit).count() as u64 * MILLIONTH
                };
                if !claim.unit.is_common() {
                    prop_assert!(count(|loan| loan.lender) <= unit.lend.cpu.most(owned * MILLIONTH));
                    prop_assert!(count(|loan| loan.borrower) <= unit.borrow.cpu.most(cpus * MILLIONTH));
                }
            }
            prop_assert_eq!(&twins[0].plan, &twins[1].plan);
            prop_assert_eq!(&twins[0].plan, &twins[2].plan);
        }
    }

    /// For any demand, every plan passes the checker (which `after` asks), and at every step an owner that wants its CPUs has
    /// all of them.
    #[test]
    fn any_history_is_conserved(
        cpus in 1u64..9,
        tickets in proptest::collection::vec(1u64..400, 1..6),
        weights in any::<bool>(),
        scheme in 0u8..3,
        nested in any::<bool>(),
        history in proptest::collection::vec((0usize..6, 0u32..10, 1u64..300, any::<bool>()), 1..60),
    ) {
        let mut contract = Contract::default();
        for (i, tickets) in tickets.iter().enumerate() {
            let parent = (nested && i % 3 == 2).then(|| UnitId(i as u32 + 1));
            let id = contract.add(parent, &format!("u{i}"));
            contract.units[id.index()].tickets = PerResource::all(*tickets);
        }
        contract.machine.scheme = [Scheme::Isolate, Scheme::Quota, Scheme::Smp][usize::from(scheme)];
        let mut w = World::of(contract, &format!("cpus:{cpus} memory:1GiB"), if weights { CGROUP } else { USER });
        for (who, runnable, ms, leaves) in history {
            let who = who % tickets.len();
            if leaves && runnable == 0 { w.leave(who) } else { w.run(who, runnable) }
            w.facts[who + 2].used_ns += ms * MS / 3;
            w.after(ms);
            for claim in w.state.cpu.claims.clone() {
                let (want, mine) = (w.state.cpu.wants[&claim.unit].now as usize, |loan: &&Loan| loan.lender == claim.unit);
                let owned = w.state.cpu.owners.values().filter(|owner| **owner == claim.unit).count();
                let lent = w.state.cpu.loans.values().filter(mine).count();
                prop_assert!(lent == 0 || owned - lent >= want, "{:?} wants {want}, owns {owned}, lends {lent}", claim.unit);
            }
        }
    }
}

/// Values derived from rights are cached until rights change: a disk that divides by shares gets new shares when tickets or its
/// capacity change, and not otherwise. Entitlements also follow which units are present.
#[test]
fn shares_of_a_disk_follow_rights_and_what_it_carries() {
    let disk = DiskMeans { shares: true, ..DiskMeans::NONE };
    let mut w = World::new("cpus:2 memory:1GiB disks:1", Means { disk, ..SWITCHES }, &[100, 300]);
    w.disks = vec![DiskFacts { name: "sda".into(), ..DiskFacts::default() }];
    (0..2).for_each(|n| w.run(n, 1));
    let look = |w: &mut World| {
        let plan = w.after(100);
        let share = |step: &Step<DiskOrder>| match step.action {
            DiskOrder::Share { unit, share, .. } => (unit.0, share),
            _ => panic!("{step:?}"),
        };
        let ordered: Vec<(u32, u64)> = plan.orders.disk.iter().map(share).collect();
        (ordered, [plan.decisions.disk.entitled[2], plan.decisions.disk.entitled[3]])
    };
    assert_eq!(look(&mut w), (vec![(2, 250_000), (3, 750_000)], [250_000, 750_000]));
    assert_eq!(look(&mut w), (vec![], [250_000, 750_000]));
    w.changes = vec![Change::Set { unit: UnitId(2), resource: Resource::Disk, tickets: 300 }];
    assert_eq!(look(&mut w), (vec![(2, 500_000), (3, 500_000)], [500_000, 500_000]));
    w.changes.clear();
    w.disks[0].bytes_per_s = Some(1_000);
    assert_eq!(look(&mut w), (vec![(2, 500), (3, 500)], [500_000, 500_000]));
    w.leave(0);
    assert_eq!(look(&mut w), (vec![], [0, 1_000_000]));
}

/// A step asks for the next one at the end of an exchange at the latest, and that one ends it; the checker replays both.
#[test]
fn a_step_comes_when_an_exchange_ends() {
    let mut contract = Contract::default();
    let (one, other) = (contract.add(None, "one"), contract.add(None, "other"));
    let machine = Machine::synthetic("cpus:1 memory:1GiB").unwrap();
    let [cpu, disk] = [Resource::Cpu, Resource::Disk].map(|resource| Offer::tickets(resource, 1));
    let changes = [
        Bid { by: one, gives: cpu, wants: disk, with: None, for_ns: None, at_least: None, bound: false },
        Bid {
            by: other,
            gives: disk,
            wants: cpu,
            with: None,
            for_ns: Some(500),
            at_least: None,
            bound: false,
        },
    ]
    .map(|bid| Change::Offer { bid });
    let snapshot = Snapshot::default();
    let input = |changes| Input {
        contract: &contract,
        machine: &machine,
        means: Means::NONE,
        snapshot: &snapshot,
        changes,
    };
    let (state, made) = step(PolicyState::default(), 7, input(&changes));
    assert_eq!((made.next, made.decisions.trade.len()), (507, 3));
    let (_, over) = step(state, 507, input(&[]));
    assert!(matches!(over.decisions.trade[..], [Trade::Undone { why: Ending::Over, .. }]));
    let books = Books::default();
    let after = books.replay(&contract, &machine, &made).unwrap();
    assert!(after.replay(&contract, &machine, &over).is_ok());
    let wrong = books.replay(&contract, &machine, &over).unwrap_err();
    assert!(wrong.iter().any(|error| error.contains("was not in force")), "{wrong:?}");
}

/// Memory is sampled less often than rights change: the last sample counts, without removed units.
#[test]
fn a_step_knows_the_memory_in_use_at_the_last_sample() {
    let mut contract = Contract::default();
    let ids = ["one", "other"].map(|name| contract.add(None, name));
    contract.units[ids[0].index()].hard.memory = Some(Amount::Absolute(100 << 20));
    let machine = Machine::synthetic("cpus:1 memory:1GiB").unwrap();
    let there = UnitFacts { processes: 1, ..UnitFacts::default() };
    let blind = Snapshot { units: vec![there; 4], ..Snapshot::default() };
    let mut used = vec![UnitMemory::default(); 4];
    (used[ids[0].index()].used, used[ids[0].index()].anonymous) = (70 << 20, 60 << 20);
    let facts = MemoryFacts { total: 1 << 30, units: used, ..MemoryFacts::default() };
    let sees = Snapshot { memory: Some(facts), ..blind.clone() };
    let offer = |mebibytes: u64| Change::Offer {
        bid: Bid {
            by: ids[0],
            gives: Offer::hard(Resource::Memory, Amount::Absolute(mebibytes << 20)),
            wants: Offer::tickets(Resource::Cpu, 1),
            with: None,
            for_ns: None,
            at_least: None,
            bound: false,
        },
    };
    let after = |state: PolicyState, contract: &Contract, snapshot: &Snapshot, changes: &[Change]| {
        let input = Input { contract, machine: &machine, means: Means::NONE, snapshot, changes };
        let (state, plan) = step(state, 0, input);
        (state, plan.decisions.rights.iter().filter_map(|change| change.refused).collect::<Vec<_>>())
    };
    let (state, _) = after(PolicyState::default(), &contract, &sees, &[]);
    let in_use = Refused::InUse { unit: ids[0], used: 60 << 20, reserved: 100 << 20, most: 40 << 20 };
    let (state, refused) = after(state, &contract, &blind, &[offer(41), offer(40)]);
    assert_eq!(refused, [in_use]);
    // The next sample: the standing offer waits.
    let mut more = sees.clone();
    more.memory.as_mut().unwrap().units[ids[0].index()].anonymous = 61 << 20;
    let (state, _) = after(state, &contract, &more, &[]);
    assert!(
        matches!(state.rights().waits(1), Some(Waits::Lacks(Refused::InUse { most, .. })) if most == 39 << 20)
    );
    // Another unit has the number, and uses nothing yet.
    contract.vacant.insert(ids[0]);
    let (state, _) = after(state, &contract, &blind, &[]);
    contract.vacant.clear();
    assert_eq!(after(state, &contract, &blind, &[offer(100)]).1, []);
}

/// What units get of what they could use, in CPUs for a quantum of 250 ms, for claimed demands.
fn useful_cpus(remembered_ns: Time, truth: &[[u32; 3]], claims: &[[u32; 3]]) -> [i64; 3] {
    let mut world = World::new("cpus:6 memory:1GiB", USER, &[100, 100, 100]);
    world.contract.machine.loans_remembered_ns = remembered_ns;
    let mut useful = [0; 3];
    for (truth, claims) in truth.iter().zip(claims) {
        for (n, wants) in claims.iter().enumerate() {
            world.run(n, *wants);
        }
        for _ in 0..2 {
            world.after(125);
        }
        for (n, could_use) in truth.iter().enumerate() {
            useful[n] += i64::from(held_by(&world, n).min(*could_use));
        }
    }
    useful
}

fn held_by(world: &World, n: usize) -> u32 {
    let unit = UnitId(n as u32 + 2);
    let owned = world.state.cpu.owners.iter().filter(|(_, owner)| **owner == unit).count();
    let loans = || world.state.cpu.loans.values();
    let lent = loans().filter(|loan| loan.lender == unit).count();
    (owned - lent + loans().filter(|loan| loan.borrower == unit).count()) as u32
}

/// How much more a unit gets of what it could use by overstating its demand in some quanta; one value per history.
fn gains_of_claiming(remembered_ns: Time, histories: usize) -> BTreeMap<i64, usize> {
    let wants = proptest::collection::vec(proptest::array::uniform3(0u32..8), 12);
    let lies = proptest::collection::vec(0u32..6, 12);
    let (strategy, mut runner) = ((wants, lies), TestRunner::deterministic());
    let mut gains = BTreeMap::new();
    for _ in 0..histories {
        let (truth, lies) = strategy.new_tree(&mut runner).unwrap().current();
        let mut claims = truth.clone();
        for (claims, lie) in claims.iter_mut().zip(lies) {
            claims[0] += if lie > 2 { lie } else { 0 };
        }
        let honest = useful_cpus(remembered_ns, &truth, &truth)[0];
        let gain = useful_cpus(remembered_ns, &truth, &claims)[0] - honest;
        *gains.entry(gain).or_default() += 1;
    }
    gains
}

/// Three units of two CPUs each want 0 to 7 of the six, anew in each of 12 quanta. One of them overstates its demand by 3 to 5
/// in half of these. In none of 10,000 histories does it get more than one CPU more for one quantum. It gets that much more in
/// 40, and less in 3,753. Redistributing loans in each quantum removes the gain: by that alone, it gets less in 360. Credits
/// make false claims expensive. The bound is empirical, not proved. The histories are the same in every run.
#[test]
fn overstating_demand_gains_at_most_one_cpu_for_a_quantum() {
    let gains = gains_of_claiming(600_000 * MS, 10_000);
    let count =
        |of: &dyn Fn(i64) -> bool| gains.iter().filter(|(gain, _)| of(**gain)).map(|(_, n)| n).sum::<usize>();
    let (more, less) = (count(&|gain| gain > 0), count(&|gain| gain < 0));
    assert!(gains.keys().all(|gain| *gain <= 1), "{gains:?}");
    assert!(more <= 100 && less >= 3_000, "{gains:?}");
    // Without credits and redistribution, overstating pays, and more than one CPU.
    let forgotten = gains_of_claiming(0, 1_000);
    assert!(
        forgotten.keys().any(|gain| *gain > 1) && !forgotten.keys().any(|gain| *gain < -1),
        "{forgotten:?}"
    );
}

/// How many CPUs each borrower gets when the third of three units lends its two, and both others want more. For two seconds
/// before that, the second lent what it did not want, and the first borrowed it.
fn borrowed_after_lending(remembered_ns: Time, lent: &[u32]) -> (World, [usize; 2]) {
    let mut world = World::new("cpus:6 memory:1GiB", USER, &[100, 100, 100]);
    world.contract.machine.loans_remembered_ns = remembered_ns;
    for keeps in lent {
        for (n, wants) in [8, *keeps, 2].into_iter().enumerate() {
            world.run(n, wants);
        }
        world.steps(0..4, 125);
    }
    for (n, wants) in [8, 8, 0].into_iter().enumerate() {
        world.run(n, wants);
    }
    world.steps(0..12, 125);
    let borrows = |n: u32| world.state.cpu.loans.values().filter(|loan| loan.borrower == UnitId(n)).count();
    let borrowed = [borrows(2), borrows(3)];
    (world, borrowed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    /// For any amount that the giver kept, as long as it lent at least one CPU most of the time.
    #[test]
    fn a_giver_is_first_when_it_is_short(keeps in proptest::collection::vec(0u32..2, 4..7)) {
        let (_, borrowed) = borrowed_after_lending(600_000 * MS, &keeps);
        prop_assert_eq!(borrowed, [0, 2]);
    }
}

#[test]
fn a_giver_is_first_with_memory_alone_and_the_plan_says_why() {
    let keeps = [0; 4];
    assert_eq!(borrowed_after_lending(0, &keeps).1, [1, 1]);
    let (world, borrowed) = borrowed_after_lending(600_000 * MS, &keeps);
    assert_eq!(borrowed, [0, 2]);
    let credits = &world.plan.decisions.cpu.credits;
    assert!(credits[3] > 0 && credits[2] < 0 && credits.iter().sum::<i64>() == 0, "{credits:?}");
    // A third of two CPUs falls idle again: the giver gets them, and that is the reported reason.
    let mut world = world;
    world.run(2, 2);
    world.steps(0..2, 125);
    world.run(2, 0);
    let mut lent = (0..4).flat_map(|_| world.after(125).decisions.cpu.steps.clone());
    let first = lent.find(|step| matches!(step.action, CpuDecision::Lend { .. })).unwrap();
    let to_giver = matches!(first.action, CpuDecision::Lend { borrower: UnitId(3), .. });
    assert!(to_giver && matches!(first.reason, Reason::OwnerIdleToGiver { .. }), "{first:?}");
}

/// One CPU of u1 is lent for a second. The charge does not depend on use, or on the sampling interval. A plan that is not
/// carried out is made again, and charged once. The owner calls it back once.
#[test]
fn a_loan_is_charged_once_and_called_back_once() {
    let credit = |looks: &[u64]| {
        let mut world = World::new("cpus:2 memory:1GiB", USER, &[100, 100]);
        world.run(0, 2);
        world.run(1, 0);
        world.steps(0..2, 100);
        assert_eq!(world.state.cpu.loans.len(), 1);
        let before = world.state.cpu.credits.of(UnitId(3));
        for ms in looks {
            let kept = world.state.clone();
            world.after(*ms);
            // As if the books had refused it.
            (world.state, world.now) = (kept, world.now - ms * MS);
            world.after(*ms);
        }
        let lent = world.state.cpu.credits.of(UnitId(3)) - before;
        world.run(1, 1);
        let calls: usize = (0..4)
            .map(|_| {
                let steps = &world.after(10).decisions.cpu.steps;
                steps.iter().filter(|step| matches!(step.action, CpuDecision::CallBack { .. })).count()
            })
            .sum();
        assert_eq!(calls, 1);
        let charged = world.state.cpu.credits.of(UnitId(3));
        world.after(10);
        assert_eq!(world.state.cpu.credits.of(UnitId(3)), charged, "nothing is on loan");
        lent
    };
    assert_eq!(credit(&[1_000]), 1_000 * i128::from(MS));
    assert_eq!(credit(&[1, 0, 0, 499, 0, 500]), 1_000 * i128::from(MS));
}
