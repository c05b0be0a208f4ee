//! Tasks that may run on some CPUs only: wherever they are when that is said, they run there alone from then
//! on.

use commonhold_dispatch::{BORROWS, Kernel, LENDS, NOBODY, Near, Settings, TaskId, UnitRules};
use commonhold_machine::CpuSet;

const MS: u64 = 1_000_000;
/// Two units beside the built-in ones.
const A: u32 = 2;
const B: u32 = 3;

/// Four CPUs in two nodes, time-shared by tasks of one unit, slices of 30 ms.
fn kernel() -> Kernel {
    let near = (0..4).map(|cpu| Near { cache: NOBODY, node: cpu / 2, socket: NOBODY }).collect();
    let mut kernel = Kernel::new(&Settings { near, ..Settings::of(4, 4, 30 * MS) });
    for unit in [A, B] {
        let rules = UnitRules { parent: NOBODY, weight: 100, flags: LENDS | BORROWS, ..UnitRules::USUAL };
        assert!(kernel.set_unit(0, unit, rules));
    }
    kernel
}

fn cpus(cpus: &[u32]) -> CpuSet {
    cpus.iter().copied().collect()
}

/// The tasks come, and every CPU looks for one.
fn begin(kernel: &mut Kernel, tasks: u32, unit: u32) {
    for id in 0..tasks {
        kernel.start(0, id, unit);
        kernel.wake(0, id);
    }
    look(kernel, 0);
}

/// Lets every kicked CPU choose a task, until no CPU is kicked.
fn look(kernel: &mut Kernel, now: u64) {
    let mut kicks = Vec::new();
    loop {
        kernel.kicks(&mut kicks);
        if kicks.is_empty() {
            return;
        }
        for kick in kicks.drain(..) {
            kernel.schedule(now, kick.cpu, true);
        }
    }
}

fn on(kernel: &mut Kernel, now: u64) -> Vec<Option<TaskId>> {
    (0..4).map(|cpu| kernel.schedule(now, cpu, true)).collect()
}

#[test]
fn a_task_that_runs_outside_of_its_affinity_moves_at_once() {
    let mut kernel = kernel();
    begin(&mut kernel, 1, A);
    assert_eq!(on(&mut kernel, 0), [Some(0), None, None, None]);
    kernel.allow(MS, 0, Some(&cpus(&[2, 3])));
    look(&mut kernel, MS);
    assert_eq!(on(&mut kernel, MS), [None, None, Some(0), None]);
    assert_eq!((kernel.cpu_of(0), kernel.runnable()), (2, 1));
    // It stays, also at the end of its slice, and may return once its affinity allows it.
    assert_eq!(kernel.schedule(40 * MS, 2, true), Some(0));
    kernel.allow(40 * MS, 0, Some(&cpus(&[0])));
    look(&mut kernel, 40 * MS);
    assert_eq!(on(&mut kernel, 40 * MS), [Some(0), None, None, None]);
    assert_eq!(kernel.account(A).strays, 0);
}

#[test]
fn a_sleeping_task_wakes_within_its_affinity() {
    for allowed in [&[3][..], &[2, 3]] {
        let mut kernel = kernel();
        begin(&mut kernel, 1, A);
        assert_eq!(kernel.schedule(MS, 0, false), None);
        kernel.allow(2 * MS, 0, Some(&cpus(allowed)));
        kernel.wake(3 * MS, 0);
        look(&mut kernel, 3 * MS);
        let runs = on(&mut kernel, 3 * MS);
        assert!(allowed.iter().any(|cpu| runs[*cpu as usize] == Some(0)), "{runs:?}");
    }
}

/// Five tasks on four CPUs: the fifth waits, and is let run on one where it is not first. Others go before
/// it, but not for long; and the CPUs that it may not use never have it.
#[test]
fn a_waiting_task_is_queued_for_its_affinity() {
    let mut kernel = kernel();
    begin(&mut kernel, 5, A);
    assert_eq!(kernel.waiting(), 1);
    kernel.allow(0, 4, Some(&cpus(&[1])));
    assert!(kernel.waits_for(1, A) && !kernel.waits_for(0, A));
    for round in 1..=4 {
        let now = round * 31 * MS;
        for cpu in [0, 2, 3] {
            assert_ne!(kernel.schedule(now, cpu, true), Some(4));
        }
        if kernel.schedule(now, 1, true) == Some(4) {
            return;
        }
    }
    panic!("it never ran");
}

/// A task in flight to an idle CPU gets another affinity: it goes there, and the first CPU stays idle.
#[test]
fn a_dispatched_task_is_queued_again_within_its_affinity() {
    let mut kernel = kernel();
    kernel.start(0, 0, A);
    kernel.wake(0, 0);
    kernel.allow(0, 0, Some(&cpus(&[3])));
    look(&mut kernel, 0);
    assert_eq!(on(&mut kernel, 0), [None, None, None, Some(0)]);
}

/// Its unit owns none of the CPUs that it may use: it has turns there, and is counted as a stray. When it may
/// run anywhere again, it goes home.
#[test]
fn a_task_that_may_not_run_at_home_is_a_stray() {
    let mut kernel = kernel();
    for cpu in 0..4 {
        kernel.own(0, cpu, if cpu < 2 { A } else { B });
    }
    look(&mut kernel, 0);
    kernel.start(0, 0, A);
    kernel.allow(0, 0, Some(&cpus(&[2])));
    kernel.start(0, 1, B);
    kernel.allow(0, 1, Some(&cpus(&[2])));
    for id in [0, 1] {
        kernel.wake(0, id);
    }
    look(&mut kernel, 0);
    // Both have turns.
    let turns = [31, 62, 93].map(|at| kernel.schedule(at * MS, 2, true));
    assert!(turns == [Some(0), Some(1), Some(0)] || turns == [Some(1), Some(0), Some(1)], "{turns:?}");
    assert!(kernel.account(A).strays > 0);
    kernel.allow(94 * MS, 0, None);
    kernel.schedule(124 * MS, 2, true);
    look(&mut kernel, 124 * MS);
    let runs = on(&mut kernel, 124 * MS);
    assert!(runs[0] == Some(0) || runs[1] == Some(0), "{runs:?}");
}

/// None of the machine's CPUs is among them: nothing changes. All are: it is as free as before.
#[test]
fn affinities_without_effect() {
    let mut kernel = kernel();
    begin(&mut kernel, 1, A);
    kernel.allow(0, 0, Some(&cpus(&[64, 65])));
    kernel.allow(0, 0, Some(&cpus(&[0, 1, 2, 3])));
    look(&mut kernel, 0);
    assert_eq!(on(&mut kernel, 0), [Some(0), None, None, None]);
}

/// A owns two CPUs, and both of its tasks may run on one of them only. The other one is lent. It is called
/// back for the task that waits, in vain, and not again at each switch among the guests.
#[test]
fn a_cpu_is_not_called_back_in_vain_at_every_switch() {
    let mut kernel = kernel();
    for (cpu, unit) in [(0, A), (1, A), (2, B), (3, B)] {
        kernel.own(0, cpu, unit);
    }
    for id in 0..8 {
        kernel.start(0, id, if id < 2 { A } else { B });
        if id < 2 {
            kernel.allow(0, id, Some(&cpus(&[0])));
        }
        kernel.wake(0, id);
    }
    let (mut kicks, mut looks) = (Vec::new(), 0);
    for round in 0..10 {
        loop {
            kernel.kicks(&mut kicks);
            if kicks.is_empty() {
                break;
            }
            for kick in kicks.drain(..) {
                kernel.schedule(round * MS, kick.cpu, true);
                looks += 1;
            }
            assert!(looks < 100, "{looks} looks in {round} ms");
        }
    }
    let runs = on(&mut kernel, 10 * MS);
    assert!(runs[0].is_some_and(|task| task < 2) && runs[1].is_some_and(|task| task >= 2), "{runs:?}");
}
