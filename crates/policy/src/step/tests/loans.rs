//! Amounts to lend and borrow, and the caps by which they are enforced where CPUs are time-shared.

use commonhold_contract::{Amount, Permission};

use super::*;
use crate::cpu::{NotHeld, Side, WhyNot, not_held};

/// Of 8 CPUs, u0 and u1 own 4 each. u0 is idle and lends at most 2; u1 may borrow at most 3, then 1.
/// Fractional amounts are rounded down, and loans beyond a lowered amount end at the next step.
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

/// A scheduler that lends at every switch enforces no amount. With weights, amounts to lend are not enforced,
/// and amounts to borrow by caps. Plans lend no fractions of CPUs.
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
