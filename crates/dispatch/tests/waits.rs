//! What had the CPU while tasks waited for it: which unit, or none.
#![allow(clippy::cast_possible_truncation, reason = "numbers of CPUs are small")]

use commonhold_dispatch::{
    BORROWS, Cause, Discipline, Holder, Kernel, LENDS, NOBODY, Settings, TaskId, UnitRules,
};

const MS: u64 = 1_000_000;
const SLICE: u64 = 5 * MS;
const A: u32 = 2;
const B: u32 = 3;

fn rules(flags: u32) -> UnitRules {
    UnitRules { parent: NOBODY, weight: 100, flags, ..UnitRules::USUAL }
}

/// A machine with the two units.
fn machine(cpus: u32) -> Kernel {
    let mut kernel = Kernel::new(&Settings::of(cpus, 4, SLICE));
    for unit in [A, B] {
        assert!(kernel.set_unit(0, unit, rules(LENDS | BORROWS)));
    }
    for cpu in 0..cpus {
        kernel.schedule(0, cpu, false);
    }
    kernel
}

fn begin(kernel: &mut Kernel, now: u64, id: TaskId, unit: u32) {
    kernel.start(now, id, unit);
    kernel.wake(now, id);
    kernel.kicks(&mut Vec::new());
}

fn held_by(kernel: &Kernel, unit: u32, holder: Holder) -> u64 {
    kernel.account(unit).waited_for_ns(holder)
}

/// A unit's whole waiting time, by cause; and by what had the CPU.
fn sums(kernel: &mut Kernel, unit: u32) -> (u64, u64) {
    let causes = [Cause::Own, Cause::Loan, Cause::Higher];
    let by_cause = causes.iter().map(|cause| kernel.account(unit).waited_ns(*cause)).sum();
    let holders = [Holder::Own, Holder::Higher, Holder::Idle, Holder::Unknown];
    let by_holder: u64 = holders.iter().map(|holder| held_by(kernel, unit, *holder)).sum();
    let others: u64 =
        kernel.waits_for_others().iter().filter(|((waiter, _), _)| *waiter == unit).map(|(_, ns)| ns).sum();
    (by_cause, by_holder + others)
}

#[test]
fn a_task_waits_for_exactly_the_slice_of_the_other_unit() {
    let mut kernel = machine(1);
    begin(&mut kernel, MS, 0, A);
    assert_eq!(kernel.schedule(MS, 0, false), Some(0));
    begin(&mut kernel, 2 * MS, 1, B);
    // A's turn ends, then B's, then A's.
    for (now, runs) in [(MS + SLICE, 1), (MS + 2 * SLICE, 0), (MS + 3 * SLICE, 1)] {
        assert_eq!(kernel.schedule(now, 0, true), Some(runs));
    }
    let others = kernel.waits_for_others().clone();
    assert_eq!(others.into_iter().collect::<Vec<_>>(), [((A, B), SLICE), ((B, A), SLICE - MS + SLICE)]);
    for unit in [A, B] {
        let (by_cause, by_holder) = sums(&mut kernel, unit);
        assert_eq!(by_cause, by_holder);
    }
}

#[test]
fn a_unit_waits_for_its_own_tasks() {
    let mut kernel = machine(1);
    begin(&mut kernel, MS, 0, A);
    kernel.schedule(MS, 0, false);
    begin(&mut kernel, MS, 1, A);
    kernel.schedule(MS + SLICE, 0, true);
    assert!(kernel.waits_for_others().is_empty());
    assert_eq!(held_by(&kernel, A, Holder::Own), SLICE);
    assert_eq!(sums(&mut kernel, A), (SLICE, SLICE));
}

#[test]
fn an_idle_cpu_is_waited_for_as_long_as_it_takes_to_answer() {
    let mut kernel = machine(1);
    begin(&mut kernel, MS, 0, A);
    assert_eq!(kernel.schedule(MS + 700, 0, false), Some(0));
    assert_eq!(held_by(&kernel, A, Holder::Idle), 700);
    assert_eq!(sums(&mut kernel, A), (700, 700));
}

/// Two units and sub-units of one of them, on owned, lent and time-shared CPUs, where tasks sleep and wake at
/// odd times: whatever a unit waited is attributed.
#[test]
fn the_parts_add_up_to_the_whole() {
    for discipline in [Discipline::Stride, Discipline::Smp, Discipline::Rr] {
        let mut kernel = Kernel::new(&Settings {
            preempt_ns: Settings::preempt_ns(SLICE),
            disciplined: true,
            ..Settings::of(4, 6, SLICE)
        });
        assert!(kernel.set_unit(0, A, UnitRules { discipline, ..rules(LENDS | BORROWS) }));
        assert!(kernel.set_unit(0, B, rules(LENDS | BORROWS)));
        for sub in [4, 5] {
            assert!(kernel.set_unit(0, sub, UnitRules { parent: A, ..rules(LENDS | BORROWS) }));
        }
        for (cpu, owner) in [(0, A), (1, B), (2, NOBODY), (3, A)] {
            kernel.own(0, cpu, owner);
            kernel.schedule(0, cpu, false);
        }
        let (mut now, mut random, mut sleeping) = (0, 1_u64, Vec::new());
        let mut runs = [None; 4];
        for id in 0..16 {
            kernel.start(0, id, [A, B, 4, 5][id as usize % 4]);
            sleeping.push(id);
        }
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = random >> 33;
            now += pick % 400_000;
            let cpu = (pick >> 5) as usize % 4;
            if pick.is_multiple_of(3) && !sleeping.is_empty() {
                kernel.wake(now, sleeping.swap_remove((pick >> 9) as usize % sleeping.len()));
            } else if pick % 3 == 1
                && let Some(id) = runs[cpu]
            {
                sleeping.push(id);
                runs[cpu] = kernel.schedule(now, cpu as u32, false);
            } else {
                runs[cpu] = kernel.schedule(now, cpu as u32, runs[cpu].is_some());
            }
            let mut kicks = Vec::new();
            kernel.kicks(&mut kicks);
            for kick in kicks {
                let at = kick.cpu as usize;
                if kick.preempt || runs[at].is_none() {
                    runs[at] = kernel.schedule(now, kick.cpu, runs[at].is_some());
                }
            }
        }
        let mut total = 0;
        for unit in [A, B, 4, 5] {
            let (by_cause, by_holder) = sums(&mut kernel, unit);
            assert_eq!(by_cause, by_holder, "{discipline:?}, unit {unit}");
            total += by_cause;
        }
        assert!(total > 1_000 * MS, "{discipline:?}: {total}");
        assert_eq!(held_by(&kernel, A, Holder::Unknown), 0);
        assert!(kernel.waits_for_others().contains_key(&(A, B)), "{discipline:?}");
    }
}
