//! Properties of any history of demand.

use commonhold_contract::{Amount, Permission};
use proptest::prelude::*;

use super::*;
use crate::cpu::lend::Loan;

fn permissions() -> impl Strategy<Value = Permission> {
    prop_oneof![
        any::<bool>().prop_map(Permission::from),
        (0..6 * MILLIONTH).prop_map(|micro| Permission::AtMost(Amount::Absolute(micro))),
        (0..=MILLIONTH).prop_map(|part| Permission::AtMost(Amount::Part(part))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// For any demand and changes of amounts, no unit lends or borrows more; and amounts above the machine's
    /// size have no effect on plans.
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
        let mut unbounded =
            [Permission::Yes, boundless, whole].map(|permission| world(&|_| (permission, permission)));
        for (unit, runnable, ms, changed, permission) in history {
            if changed < 5 {
                w.contract.units[changed + 2].lend.cpu = permission;
            } else if changed < 10 {
                w.contract.units[changed - 3].borrow.cpu = permission;
            }
            for w in core::iter::once(&mut w).chain(&mut unbounded) {
                w.run(unit, runnable);
                w.after(ms);
            }
            for claim in &w.state.cpu.claims {
                let unit = w.contract.unit(claim.unit);
                let owned = w.state.cpu.owners.values().filter(|owner| **owner == claim.unit).count() as u64;
                let count = |side: fn(&Loan) -> UnitId| {
                    w.state.cpu.loans.values().filter(|loan| side(loan) == claim.unit).count() as u64 * MILLIONTH
                };
                if !claim.unit.is_common() {
                    prop_assert!(count(|loan| loan.lender) <= unit.lend.cpu.most(owned * MILLIONTH));
                    prop_assert!(count(|loan| loan.borrower) <= unit.borrow.cpu.most(cpus * MILLIONTH));
                }
            }
            prop_assert_eq!(&unbounded[0].plan, &unbounded[1].plan);
            prop_assert_eq!(&unbounded[0].plan, &unbounded[2].plan);
        }
    }

    /// For any demand, every plan passes the checker, which `World::after` calls, and at every step an owner
    /// that wants its CPUs has all of them.
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
        for (unit, runnable, ms, leaves) in history {
            let unit = unit % tickets.len();
            if leaves && runnable == 0 { w.leave(unit) } else { w.run(unit, runnable) }
            w.facts[unit + 2].used_ns += ms * MS / 3;
            w.after(ms);
            for claim in w.state.cpu.claims.clone() {
                let want = w.state.cpu.wants[&claim.unit].now as usize;
                let is_lender = |loan: &&Loan| loan.lender == claim.unit;
                let owned = w.state.cpu.owners.values().filter(|owner| **owner == claim.unit).count();
                let lent = w.state.cpu.loans.values().filter(is_lender).count();
                prop_assert!(lent == 0 || owned - lent >= want, "{:?} wants {want}, owns {owned}, lends {lent}", claim.unit);
            }
        }
    }
}
