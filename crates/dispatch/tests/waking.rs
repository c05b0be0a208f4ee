//! Tasks that wake where another unit's task runs: which goes first, and which unit is next among many.

use commonhold_dispatch::{BORROWS, KERNEL, Kernel, Kick, LENDS, NOBODY, Settings, UnitRules};

const MS: u64 = 1_000_000;
const SLICE: u64 = 20 * MS;
/// Units beside the built-in ones.
const A: u32 = 2;
const B: u32 = 3;
const C: u32 = 4;

/// One time-shared CPU, and `units` units of equal weight.
fn kernel(units: u32) -> Kernel {
    kernel_of(1, units)
}

fn kernel_of(cpus: u32, units: u32) -> Kernel {
    let preempt_ns = Settings::preempt_ns(SLICE);
    let mut kernel = Kernel::new(&Settings { preempt_ns, ..Settings::of(cpus, units, SLICE) });
    for unit in A..units {
        outermost(&mut kernel, unit, 100);
    }
    kernel
}

fn outermost(kernel: &mut Kernel, unit: u32, weight: u32) {
    assert!(kernel.set_unit(
        0,
        unit,
        UnitRules { parent: NOBODY, weight, flags: LENDS | BORROWS, ..UnitRules::USUAL }
    ));
}

/// A new task wakes; whether it preempts the CPU's task.
fn interrupts(kernel: &mut Kernel, now: u64, id: u32, unit: u32) -> bool {
    kernel.start(now, id, unit);
    wakes(kernel, now, id)
}

fn wakes(kernel: &mut Kernel, now: u64, id: u32) -> bool {
    kernel.wake(now, id);
    has_to_go(kernel)
}

fn has_to_go(kernel: &mut Kernel) -> bool {
    let mut kicks: Vec<Kick> = Vec::new();
    kernel.kicks(&mut kicks);
    kicks.iter().any(|kick| kick.preempt)
}

/// Task 0, of unit `A`, runs from the start.
fn busy(units: u32) -> Kernel {
    let mut kernel = kernel(units);
    assert!(!interrupts(&mut kernel, 0, 0, A));
    assert_eq!(kernel.schedule(0, 0, false), Some(0));
    kernel
}

#[test]
fn a_unit_that_had_less_by_more_than_a_quarter_of_a_slice_interrupts() {
    // No unit ran before the start, so there is no credit: B lags by the time that A ran.
    let mut kernel = busy(5);
    assert!(!interrupts(&mut kernel, 4 * MS, 1, B));
    assert!(interrupts(&mut kernel, 6 * MS, 2, C));
    assert_eq!(kernel.schedule(6 * MS, 0, true), Some(1));
}

#[test]
fn a_unit_that_slept_long_interrupts_at_once_but_has_saved_up_no_more_than_a_slice() {
    let mut kernel = busy(4);
    for turn in 1..=50 {
        assert_eq!(kernel.schedule(turn * SLICE, 0, true), Some(0));
    }
    let now = 50 * SLICE + MS / 10;
    assert!(interrupts(&mut kernel, now, 1, B));
    assert_eq!(kernel.schedule(now, 0, true), Some(1));
    // One slice of credit, and then the two take turns: after 60 slices B has had 30, or one more.
    for turn in 1..=60 {
        kernel.schedule(now + turn * SLICE, 0, true);
    }
    let had = kernel.account(B).shared_ns;
    assert!((30 * SLICE..=31 * SLICE).contains(&had), "{had}");
}

#[test]
fn a_message_preempts_no_task_of_its_unit_before_a_millisecond() {
    // Task 1 slept for long: it has a slice of credit when it wakes.
    let mut kernel = busy(4);
    interrupts(&mut kernel, 0, 1, A);
    kernel.schedule(SLICE, 0, true);
    assert_eq!(kernel.schedule(SLICE + MS, 0, false), Some(0));
    let begins = 20 * SLICE;
    for turn in 2..=20 {
        assert_eq!(kernel.schedule(turn * SLICE, 0, true), Some(0));
    }
    kernel.wake_by_message(begins + MS / 4, 1);
    assert!(!has_to_go(&mut kernel), "the task there has just begun");
    assert!(!kernel.tick(begins + MS / 2, 0));
    assert!(kernel.tick(begins + MS, 0), "it has run for a millisecond");
    assert_eq!(kernel.schedule(begins + MS, 0, true), Some(1));
    assert!(!kernel.tick(begins + 15 * MS, 0), "nobody woke since");
    // A task that has run for that long is preempted at once; so is any by a wake-up that is no message, or
    // of another unit.
    assert_eq!(kernel.schedule(begins + 16 * MS, 0, false), Some(0));
    kernel.wake_by_message(begins + 18 * MS, 1);
    assert!(has_to_go(&mut kernel));
    assert_eq!(kernel.schedule(begins + 18 * MS, 0, true), Some(1));
    assert_eq!(kernel.schedule(begins + 19 * MS, 0, false), Some(0));
    assert!(wakes(&mut kernel, begins + 19 * MS + MS / 4, 1));
    assert_eq!(kernel.schedule(begins + 20 * MS, 0, true), Some(1));
    kernel.start(begins + 20 * MS, 2, B);
    kernel.wake_by_message(begins + 20 * MS, 2);
    assert!(has_to_go(&mut kernel));
}

#[test]
fn a_waking_unit_loses_nothing_to_tasks_that_run_out_of_turn() {
    // Kernel threads go first, whatever CPU time they had, which says nothing about the clocks of the others.
    let mut kernel = kernel(4);
    for unit in [A, B] {
        outermost(&mut kernel, unit, 5_000);
    }
    for (id, unit) in [(0, A), (1, B), (2, B), (3, KERNEL)] {
        kernel.start(0, id, unit);
        kernel.wake(0, id);
    }
    let (mut now, mut asleep) = (0, Vec::new());
    let mut runs = kernel.schedule(now, 0, false);
    while now < 100 * SLICE {
        // Tasks 0 and 1 run on; 2 and 3 sleep after a millisecond, and wake at the end of a slice of the
        // others'.
        let sleeps = runs >= Some(2);
        now += if sleeps { MS } else { SLICE };
        if sleeps {
            asleep.extend(runs);
        } else {
            asleep.drain(..).for_each(|id| kernel.wake(now, id));
        }
        runs = kernel.schedule(now, 0, !sleeps);
    }
    let (a, b) = (kernel.account(A).shared_ns, kernel.account(B).shared_ns);
    assert!(a.abs_diff(b) <= 3 * SLICE, "{a} {b}");
}

#[test]
fn a_unit_that_had_more_does_not_interrupt() {
    let mut kernel = busy(4);
    assert!(interrupts(&mut kernel, SLICE / 2, 1, B));
    assert_eq!(kernel.schedule(SLICE / 2, 0, true), Some(1));
    // B runs for three slices while A sleeps: A was runnable, so it goes first; it is stopped for that.
    assert_eq!(kernel.schedule(SLICE * 3 / 2, 0, true), Some(0));
    assert_eq!(kernel.schedule(SLICE * 2, 0, false), Some(1));
    for turn in 3..8 {
        assert_eq!(kernel.schedule(turn * SLICE, 0, true), Some(1));
    }
    // A comes back, and B's task sleeps and wakes: what it had counts.
    assert!(wakes(&mut kernel, 8 * SLICE, 0));
    assert_eq!(kernel.schedule(8 * SLICE, 0, false), Some(0));
    assert!(!wakes(&mut kernel, 8 * SLICE + MS, 1));
}

#[test]
fn sub_units_of_an_owner_are_compared_on_its_cpus_and_guests_are_not() {
    let mut kernel = kernel(6);
    let within = UnitRules { parent: A, weight: 100, flags: 0, ..UnitRules::USUAL };
    assert!(kernel.set_unit(0, C, within) && kernel.set_unit(0, 5, within));
    kernel.own(0, 0, A);
    kernel.kicks(&mut Vec::new());
    kernel.schedule(0, 0, false);
    assert!(!interrupts(&mut kernel, 0, 0, C));
    assert_eq!(kernel.schedule(0, 0, false), Some(0));
    assert!(!interrupts(&mut kernel, 10 * MS, 1, B), "whoever has no right to the CPU");
    assert!(interrupts(&mut kernel, 10 * MS, 2, 5), "a sub-unit of the owner's");
}

#[test]
fn a_cpu_that_is_called_back_at_the_beginning_of_time_is_called_back() {
    let mut kernel = kernel(4);
    kernel.own(0, 0, A);
    kernel.schedule(0, 0, false);
    interrupts(&mut kernel, 0, 0, B);
    assert_eq!(kernel.schedule(0, 0, false), Some(0));
    assert!(kernel.can_come_back(0));
    assert!(interrupts(&mut kernel, 0, 1, A));
    assert!(kernel.can_come_back(0), "it was called, at 0 ns");
    assert_eq!(kernel.schedule(MS, 0, true), Some(1));
    assert_eq!((kernel.unit(A).recalls, kernel.unit(A).recall_ns > 0), (1, true));
}

#[test]
fn the_smallest_pass_is_next_in_whatever_block_of_units_it_lies() {
    // Three blocks of 32 units; every unit has a task, and had a different time before.
    let units = 90;
    let mut kernel = kernel(units);
    for unit in A..units {
        // A weight that is different for each: all run for a slice, so the heaviest has the smallest pass.
        outermost(&mut kernel, unit, 1 + unit * 37 % 89);
        interrupts(&mut kernel, 0, unit - A, unit);
    }
    let mut now = 0;
    let mut ran = Vec::new();
    for _ in A..units {
        ran.push(kernel.schedule(now, 0, true).map(|id| id + A));
        now += SLICE;
    }
    // The first round: each once, since all began with nothing.
    let mut sorted = ran.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (A..units).map(Some).collect::<Vec<_>>());
    // Then the heaviest, of which there is one.
    let heaviest = (A..units).max_by_key(|unit| unit * 37 % 89);
    assert_eq!(kernel.schedule(now, 0, true).map(|id| id + A), heaviest);
}

/// Tasks 1 and 2, of `A`, slept on its only CPU, the first of two, which `B`'s task 3 borrows by now. Its
/// task 0 has the other.
fn lent() -> Kernel {
    let mut kernel = kernel_of(2, 4);
    kernel.own(0, 0, A);
    kernel.own(0, 1, B);
    for (at, cpu, id, unit) in [(0, 1, 0, B), (0, 0, 1, A), (MS, 0, 2, A), (2 * MS, 0, 3, B)] {
        kernel.start(at, id, unit);
        kernel.wake(at, id);
        assert_eq!(kernel.schedule(at, cpu, false), Some(id));
    }
    has_to_go(&mut kernel);
    assert!(kernel.can_come_back(0));
    kernel
}

#[test]
fn who_is_woken_by_its_timer_has_its_lent_cpu_back_without_a_queue() {
    let mut kernel = lent();
    kernel.wake_by_timer(3 * MS, 1);
    assert!(has_to_go(&mut kernel));
    assert_eq!(kernel.waiting(), 0, "it is on its way to the CPU");
    assert_eq!(kernel.schedule(3 * MS, 0, true), Some(1));
    assert_eq!((kernel.unit(A).recalls, kernel.waiting_in(B)), (1, 1));
    assert_eq!(kernel.account(A).lent_ns, MS);
    // Once it sleeps, the CPU is lent again.
    assert_eq!(kernel.schedule(4 * MS, 0, false), Some(3));
    assert!(kernel.can_come_back(0));
}

#[test]
fn who_is_woken_by_its_timer_does_not_go_before_its_units_others() {
    let mut kernel = lent();
    kernel.wake(3 * MS, 2);
    assert!(has_to_go(&mut kernel));
    kernel.wake_by_timer(3 * MS, 1);
    assert_eq!(kernel.waiting_in(A), 2);
    // Both had a millisecond: first come, first served.
    assert_eq!(kernel.schedule(3 * MS, 0, true), Some(2));
    assert_eq!(kernel.unit(A).recalls, 1);
}

/// A unit's task that woke goes onto a time-shared CPU in the same way, unless a third unit's, which waits,
/// should be next.
#[test]
fn who_is_woken_by_its_timer_has_a_time_shared_cpu_if_it_is_next() {
    for third in [false, true] {
        let mut kernel = kernel_of(2, 5);
        for (cpu, id, unit) in [(0, 0, A), (1, 1, A)] {
            kernel.start(0, id, unit);
            kernel.wake(0, id);
            assert_eq!(kernel.schedule(0, cpu, false), Some(id));
        }
        // B's task has two milliseconds of the first CPU; what A has had since is more.
        kernel.start(0, 2, B);
        kernel.wake(0, 2);
        assert_eq!(kernel.schedule(20 * MS, 0, true), Some(2));
        assert_eq!(kernel.schedule(22 * MS, 0, false), Some(0));
        if third {
            kernel.start(22 * MS, 3, C);
            kernel.wake(22 * MS, 3);
        }
        has_to_go(&mut kernel);
        kernel.wake_by_timer(34 * MS, 2);
        assert!(has_to_go(&mut kernel));
        assert_eq!(kernel.waiting_in(B), u32::from(third), "C waits: {third}");
        assert_eq!(kernel.schedule(34 * MS, 0, true), Some(if third { 3 } else { 2 }));
    }
}
