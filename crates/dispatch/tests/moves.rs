//! Tasks that change their unit while they run: from then on, the scheduler knows the new unit of the task on
//! the CPU.

use commonhold_dispatch::{ANYWHERE, BORROWS, COMMON, Kernel, LENDS, NOBODY, Recall, Settings, UnitRules};

const MS: u64 = 1_000_000;
/// Two units beside the built-in ones.
const A: u32 = 2;
const B: u32 = 3;

/// A kernel with slices of 30 ms.
fn kernel(cpus: u32) -> Kernel {
    let (slice_ns, near, recall) = (30 * MS, Vec::new(), Recall::Now);
    Kernel::new(&Settings { near, recall, ..Settings::of(cpus, 4, slice_ns) })
}

/// CPUs of `A`, all of which lend, with one task of `A` that runs on CPU 0, and an idle rest.
fn running(cpus: u32) -> Kernel {
    let mut kernel = kernel(cpus);
    for unit in [A, B] {
        assert!(kernel.set_unit(
            0,
            unit,
            UnitRules { parent: NOBODY, weight: 100, flags: LENDS | BORROWS, ..UnitRules::USUAL }
        ));
    }
    for cpu in 0..cpus {
        kernel.own(0, cpu, A);
        kernel.schedule(0, cpu, false);
    }
    kernel.start(0, 0, A);
    kernel.wake(0, 0);
    assert_eq!(kernel.schedule(0, 0, false), Some(0));
    kernel.kicks(&mut Vec::new());
    kernel
}

#[test]
fn each_unit_is_charged_for_its_own_part() {
    let mut kernel = running(1);
    kernel.move_to_unit(10 * MS, 0, B);
    assert_eq!(kernel.runs(0), B);
    assert_eq!(kernel.uncharged(15 * MS), 5 * MS);
    assert_eq!(kernel.schedule(17 * MS, 0, false), None);
    assert_eq!((kernel.account(A).used_ns(), kernel.account(B).used_ns()), (10 * MS, 7 * MS));
    // From the move on it was a guest on a CPU of `A`'s.
    assert_eq!((kernel.account(A).lent_ns, kernel.account(B).borrowed_ns), (7 * MS, 7 * MS));
    assert_eq!(kernel.runs(0), NOBODY);
}

/// A task that runs anywhere visits an owner's CPU: a visit is no loan, and cannot be called back.
#[test]
fn visits_are_no_loans() {
    let mut kernel = running(1);
    assert!(kernel.set_unit(
        0,
        COMMON,
        UnitRules { parent: NOBODY, weight: 100, flags: ANYWHERE, ..UnitRules::USUAL }
    ));
    kernel.start(0, 1, COMMON);
    kernel.wake(0, 1);
    assert_eq!(kernel.schedule(30 * MS, 0, true), Some(0), "it is the owner's turn");
    assert_eq!(kernel.schedule(60 * MS, 0, true), Some(1));
    assert!(!kernel.can_come_back(0));
    assert_eq!(kernel.schedule(90 * MS, 0, true), Some(0));
    let (owner, visitor) = (kernel.account(A), kernel.account(COMMON));
    assert_eq!((owner.lent_ns, owner.visited_ns), (0, 30 * MS));
    assert_eq!((visitor.borrowed_ns, visitor.visiting_ns, visitor.used_ns()), (0, 30 * MS, 30 * MS));
}

#[test]
fn a_running_task_that_becomes_a_guest_can_be_called_back() {
    let mut kernel = running(1);
    kernel.move_to_unit(10 * MS, 0, B);
    assert!(kernel.can_come_back(0));
    kernel.start(20 * MS, 1, A);
    kernel.wake(20 * MS, 1);
    let mut kicks = Vec::new();
    kernel.kicks(&mut kicks);
    assert!(kicks.iter().any(|kick| kick.cpu == 0 && kick.preempt), "{kicks:?}");
    // The interrupt takes 1 ms to arrive.
    assert_eq!(kernel.schedule(21 * MS, 0, true), Some(1));
    assert_eq!((kernel.unit(A).recalls, kernel.unit(A).recall_ns_max), (1, MS));
}

#[test]
fn a_guest_that_comes_home_is_not_called_back() {
    let mut kernel = running(1);
    kernel.move_to_unit(10 * MS, 0, B);
    kernel.move_to_unit(12 * MS, 0, A);
    assert_eq!((kernel.runs(0), kernel.account(B).used_ns()), (A, 2 * MS));
    kernel.start(20 * MS, 1, A);
    kernel.wake(20 * MS, 1);
    assert!(!kernel.has_kicks(), "there is no loan to call back");
}

/// A waking task is a slice behind its unit's clock; moved to a unit with a clock near 0, its virtual time
/// wraps below 0. That is the head of the queue, not its end.
#[test]
fn a_task_moved_to_a_young_unit_does_not_come_last() {
    let mut kernel = kernel(2);
    for (cpu, unit) in [(0, A), (1, B)] {
        kernel.own(0, cpu, unit);
        kernel.schedule(0, cpu, false);
    }
    // In B a task has run for two slices; another one sleeps.
    for (task, unit) in [(0, B), (1, B), (2, A), (3, A)] {
        kernel.start(0, task, unit);
    }
    kernel.wake(0, 0);
    for now in [0, 30 * MS, 60 * MS] {
        assert_eq!(kernel.schedule(now, 1, now > 0), Some(0));
    }
    // In A the first one begins.
    kernel.wake(60 * MS, 2);
    assert_eq!(kernel.schedule(60 * MS, 0, false), Some(2));
    // B's sleeper wakes, waits, and is moved; then another of A's wakes.
    kernel.wake(61 * MS, 1);
    kernel.move_to_unit(61 * MS, 1, A);
    kernel.wake(62 * MS, 3);
    assert_eq!(kernel.schedule(90 * MS, 0, true), Some(1));
}

/// Both CPUs of A's are lent. A's task calls one of them back, and the other is free first. What runs on the
/// called one then, a task that runs anywhere, ends no call-back, and the owner's next task there does not
/// either.
#[test]
fn a_call_that_was_answered_elsewhere_is_over() {
    let mut kernel = kernel(2);
    for unit in [A, B] {
        assert!(kernel.set_unit(
            0,
            unit,
            UnitRules { parent: NOBODY, weight: 100, flags: LENDS | BORROWS, ..UnitRules::USUAL }
        ));
    }
    assert!(kernel.set_unit(
        0,
        COMMON,
        UnitRules { parent: NOBODY, weight: 100, flags: ANYWHERE, ..UnitRules::USUAL }
    ));
    for cpu in 0..2 {
        kernel.own(0, cpu, A);
        kernel.schedule(0, cpu, false);
    }
    for (task, unit) in [(0, B), (1, B), (2, A), (3, COMMON), (4, A)] {
        kernel.start(0, task, unit);
    }
    for cpu in 0..2 {
        kernel.wake(0, cpu);
        assert_eq!(kernel.schedule(0, cpu, false), Some(cpu));
    }
    kernel.kicks(&mut Vec::new());
    kernel.wake(10 * MS, 2);
    let mut kicks = Vec::new();
    kernel.kicks(&mut kicks);
    let called = kicks.iter().find(|kick| kick.preempt).map(|kick| kick.cpu).unwrap();
    let other = 1 - called;
    assert_eq!(kernel.schedule(10 * MS, other, false), Some(2), "the guest there sleeps");
    kernel.wake(10 * MS, 3);
    assert_eq!(kernel.schedule(11 * MS, called, true), Some(3));
    kernel.wake(12 * MS, 4);
    assert_eq!(kernel.schedule(21 * MS, called, false), Some(4));
    assert_eq!((kernel.unit(A).recalls, kernel.unit(A).recall_ns), (0, 0));
}
