//! CPUs go offline and come online: the scheduler is loaded again, and no task or CPU time is lost.
#![allow(clippy::unwrap_used)]

use commonhold_dispatch::{BORROWS, Kernel, LENDS, NOBODY, Reload, Settings, TaskId, UnitRules};
use commonhold_machine::CpuSet;

const MS: u64 = 1_000_000;
/// Two units beside the built-in ones.
const A: u32 = 2;
const B: u32 = 3;

const RULES: UnitRules = UnitRules { weight: 100, flags: LENDS | BORROWS, ..UnitRules::USUAL };
const UNITS: [(u32, UnitRules); 2] = [(A, RULES), (B, RULES)];
/// Unit A has the first two of four CPUs.
const OWNERS: [(u32, u32); 4] = [(0, A), (1, A), (2, B), (3, B)];

fn kernel() -> Kernel {
    let mut kernel = Kernel::new(&Settings::of(4, 4, 30 * MS));
    assert!(UNITS.iter().all(|(unit, rules)| kernel.set_unit(0, *unit, *rules)));
    for (cpu, unit) in OWNERS {
        kernel.own(0, cpu, unit);
    }
    kernel
}

fn start(kernel: &mut Kernel, tasks: &[(TaskId, u32)]) {
    for (id, unit) in tasks {
        kernel.start(0, *id, *unit);
        kernel.wake(0, *id);
    }
}

fn set_online(kernel: &mut Kernel, now: u64, cpus: &[u32]) -> bool {
    let online: CpuSet = cpus.iter().copied().collect();
    kernel.set_online(now, &online, Reload { units: &UNITS, owners: &OWNERS, pools: &[] })
}

/// Lets every kicked CPU choose a task, until no CPU is kicked. Returns which CPUs were kicked.
fn look(kernel: &mut Kernel, now: u64) -> CpuSet {
    let (mut kicks, mut kicked) = (Vec::new(), CpuSet::new());
    loop {
        kernel.kicks(&mut kicks);
        if kicks.is_empty() {
            return kicked;
        }
        for kick in kicks.drain(..) {
            kicked.insert(kick.cpu);
            kernel.schedule(now, kick.cpu, true);
        }
    }
}

fn runs(kernel: &Kernel) -> [u32; 4] {
    [0, 1, 2, 3].map(|cpu| kernel.runs(cpu))
}

#[test]
fn the_tasks_of_an_offline_cpu_move_and_nothing_is_lost() {
    let mut kernel = kernel();
    start(&mut kernel, &[(0, A), (1, A), (2, A), (3, B), (4, B)]);
    look(&mut kernel, 0);
    assert_eq!((runs(&kernel), kernel.runnable()), ([A, A, B, B], 5));
    // 10 ms later, the CPUs of A go. Its three tasks wait: B wants its CPUs, and lends none.
    assert!(set_online(&mut kernel, 10 * MS, &[2, 3]));
    look(&mut kernel, 10 * MS);
    assert_eq!((runs(&kernel), kernel.runnable()), ([NOBODY, NOBODY, B, B], 5));
    assert_eq!((kernel.waiting_in(A), kernel.account(A).used_ns()), (3, 20 * MS));
    // Another 10 ms later, one of B's tasks sleeps: A borrows its CPU.
    kernel.schedule(20 * MS, 2, false);
    look(&mut kernel, 20 * MS);
    assert_eq!(runs(&kernel), [NOBODY, NOBODY, A, B]);
    // The CPUs come back: all of A's tasks run, and the CPU time until now is booked.
    assert!(set_online(&mut kernel, 30 * MS, &[0, 1, 2, 3]));
    look(&mut kernel, 30 * MS);
    assert_eq!((runs(&kernel), kernel.runnable()), ([A, A, A, B], 4));
    let account = kernel.account(A);
    assert_eq!(
        (account.home_ns, account.borrowed_ns, kernel.account(B).lent_ns),
        (20 * MS, 10 * MS, 10 * MS)
    );
    assert_eq!(kernel.account(B).used_ns() + kernel.uncharged(30 * MS), (10 + 10 + 10 + 10 + 10) * MS);
}

#[test]
fn a_call_back_in_flight_begins_anew() {
    let mut kernel = kernel();
    // B's tasks have all four CPUs.
    start(&mut kernel, &[(0, B), (1, B), (2, B), (3, B)]);
    look(&mut kernel, 0);
    assert_eq!(runs(&kernel), [B; 4]);
    // A wakes up and calls one CPU back; the interrupt has not arrived when the last CPU goes offline.
    kernel.start(MS, 4, A);
    kernel.wake(MS, 4);
    assert!(set_online(&mut kernel, 2 * MS, &[0, 1, 2]));
    look(&mut kernel, 3 * MS);
    assert_eq!((runs(&kernel)[3], kernel.runnable()), (NOBODY, 5));
    assert_eq!(runs(&kernel).iter().filter(|unit| **unit == A).count(), 1);
    assert_eq!((kernel.unit(A).recalls, kernel.unit(A).recall_ns_max), (1, MS));
}

#[test]
fn an_offline_cpu_gets_no_interrupt_and_no_task() {
    let mut kernel = kernel();
    assert!(set_online(&mut kernel, 0, &[1]));
    start(&mut kernel, &[(0, A), (1, A), (2, B)]);
    assert_eq!(look(&mut kernel, 0).to_string(), "1");
    assert_eq!((runs(&kernel), kernel.runnable()), ([NOBODY, A, NOBODY, NOBODY], 3));
    assert!(!set_online(&mut kernel, 0, &[]), "one CPU has to stay");
    assert!(!set_online(&mut kernel, 0, &[4]), "the machine lacks this CPU");
    assert_eq!(runs(&kernel), [NOBODY, A, NOBODY, NOBODY]);
}

#[test]
fn an_affinity_of_offline_cpus_is_lifted() {
    let mut kernel = kernel();
    start(&mut kernel, &[(0, A), (1, A)]);
    let first: CpuSet = [0].into_iter().collect();
    kernel.allow(0, 0, Some(&first));
    kernel.allow(0, 1, Some(&first));
    look(&mut kernel, 0);
    assert_eq!(runs(&kernel), [A, NOBODY, NOBODY, NOBODY]);
    assert!(set_online(&mut kernel, MS, &[1, 2, 3]));
    look(&mut kernel, MS);
    assert_eq!(runs(&kernel).iter().filter(|unit| **unit == A).count(), 2);
}
