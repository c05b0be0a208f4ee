//! Changes of the machine, of the clock and of the contract.

use commonhold_contract::PoolForm;

use super::*;

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

/// Pools of five that cross a node cannot hold three units of four CPUs in one each. Pools by node can, and
/// homes move at once.
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
