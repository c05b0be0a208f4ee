//! Plans for backends with different means, above all a scheduler that decides at every switch.

use super::*;
use crate::cpu::{BUSY_NS, REST_NS, needs_cap};
use crate::plan::{CpuOrder, Step};

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

/// With a scheduler, expensive samples are stretched to a fiftieth of a CPU; otherwise a unit may be waiting
/// for the next one.
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

/// The kernel ejects a scheduler under which a task waits for 30 s: a unit's turns come within 5 s, however
/// small its share, which they do not increase; and no weight is below a thousandth.
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

/// The scheduler ends, and comes back: the first plan after its end confines every unit and lends idle CPUs;
/// the first after its return lifts CPU sets, loans and caps. Home CPUs do not change.
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

/// What a scheduler without caps cannot enforce: limits, and a ban on borrowing where CPUs are time-shared,
/// among all units or among one unit's sub-units.
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
