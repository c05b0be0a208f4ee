//! Steps of the policy on small machines, each checked by the plan checker.

// Numbers of the first few units.
#![allow(clippy::cast_possible_truncation)]

mod changes;
mod checker;
mod credits;
mod histories;
mod loans;
mod means;
mod rights;

use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, PerResource, Scheme};
use commonhold_machine::{CpuSet, Machine};

use super::*;
use crate::check::Books;
use crate::plan::{CpuDecision, Reason};
use crate::rights::Change;
use crate::snapshot::{DiskFacts, Means, Snapshot, UnitFacts};

const USER: Means =
    Means { cpu_sets: true, weights: false, caps: false, gates: true, switches: false, ..Means::NONE };

const CGROUP: Means =
    Means { cpu_sets: true, weights: true, caps: true, gates: true, switches: false, ..Means::NONE };

const SWITCHES: Means =
    Means { cpu_sets: true, weights: true, caps: false, gates: false, switches: true, ..Means::NONE };

/// A machine with units whose demand a test sets, driven through the policy and the plan checker.
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

/// 1:2:3:2 on 8 CPUs; when the unit of three sleeps, its CPUs go to those that hold the least relative to
/// their entitlement: 1 of 1, 2 of 2 and 2 of 2 tie, so each gets one.
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

/// Two hard CPUs for one unit leave nothing for the other: it runs on idle CPUs, and is stopped when no CPU
/// is idle.
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
