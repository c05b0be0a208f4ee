//! The plan checker replays plans on books of its own, and rejects those that break a rule.

use commonhold_contract::{Amount, Permission};

use super::*;
use crate::plan::{CpuOrder, DiskOrder, MemoryOrder, Orders, Step};

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
