//! Which of several CPUs is taken. A task that wakes goes to the nearest idle CPU of its own unit's, before
//! any that others lend. A unit calls back the nearest of its lent CPUs. How far tasks moved is counted
//! accordingly.

use commonhold_dispatch::{BORROWS, Kernel, Kick, LENDS, NOBODY, Recall, Settings, TaskId, UnitRules, near};
use commonhold_machine::Machine;

const MS: u64 = 1_000_000;
const SLICE: u64 = 20 * MS;
const CPUS: u32 = 8;
/// Units beside the built-in ones.
const A: u32 = 2;
const B: u32 = 3;

/// Two nodes of four CPUs, two to a cache: 0 1 | 2 3 || 4 5 | 6 7. All are idle, and owned as said.
fn kernel(owner: impl Fn(u32) -> u32) -> Kernel {
    kernel_of("nodes:2 cpus:4 caches:2", owner)
}

/// A machine of eight CPUs that all idle, owned as said.
fn kernel_of(machine: &str, owner: impl Fn(u32) -> u32) -> Kernel {
    let machine = Machine::synthetic(machine).expect("a machine's shape");
    let (near, recall) = (near(&machine, CPUS), Recall::Now);
    let mut kernel = Kernel::new(&Settings { near, recall, ..Settings::of(CPUS, 4, SLICE) });
    for unit in [A, B] {
        assert!(kernel.set_unit(
            0,
            unit,
            UnitRules { parent: NOBODY, weight: 100, flags: LENDS | BORROWS, ..UnitRules::USUAL }
        ));
    }
    for cpu in 0..CPUS {
        kernel.own(0, cpu, owner(cpu));
        kernel.schedule(0, cpu, false);
    }
    kernel.kicks(&mut Vec::new());
    kernel
}

/// The CPU that a task takes on waking, which runs it from now on.
fn takes(kernel: &mut Kernel, now: u64, id: TaskId) -> u32 {
    kernel.wake(now, id);
    let kick = kicks(kernel)[0];
    assert!(!kick.preempt, "{kick:?}");
    assert_eq!(kernel.schedule(now, kick.cpu, false), Some(id));
    kick.cpu
}

fn comes(kernel: &mut Kernel, now: u64, id: TaskId, unit: u32) -> u32 {
    kernel.start(now, id, unit);
    takes(kernel, now, id)
}

/// The tasks of these CPUs go to sleep, and no other task waits for the CPUs.
fn sleep(kernel: &mut Kernel, now: u64, cpus: impl IntoIterator<Item = u32>) {
    for cpu in cpus {
        assert_eq!(kernel.schedule(now, cpu, false), None);
    }
}

fn kicks(kernel: &mut Kernel) -> Vec<Kick> {
    let mut kicks = Vec::new();
    kernel.kicks(&mut kicks);
    kicks
}

/// Moves within a cache, within a node, and farther.
fn moves(kernel: &Kernel, unit: u32) -> (u64, u64, u64) {
    let account = kernel.account(unit);
    (account.moved_cache, account.moved_node, account.moved_far)
}

/// Eight tasks of `A` on its eight CPUs, each on that of its number.
fn full() -> Kernel {
    let mut kernel = kernel(|_| A);
    for id in 0..CPUS {
        assert_eq!(comes(&mut kernel, 0, id, A), id);
    }
    assert_eq!(moves(&kernel, A), (0, 0, 0), "new tasks come from nowhere");
    kernel
}

#[test]
fn who_wakes_takes_its_last_cpu_then_the_same_cache_then_the_same_node_then_another() {
    let mut kernel = full();
    // A ninth task has taken the place of the fifth, which sleeps; so do a near, a less near and a far one.
    sleep(&mut kernel, MS, [5]);
    assert_eq!(comes(&mut kernel, MS, 8, A), 5);
    sleep(&mut kernel, MS, [0, 4, 6]);
    assert_eq!(takes(&mut kernel, 2 * MS, 5), 4, "the same cache");
    assert_eq!(moves(&kernel, A), (1, 0, 0));
    // Its last CPU is 4 now: somebody else has that, too.
    sleep(&mut kernel, 3 * MS, [4]);
    assert_eq!(takes(&mut kernel, 3 * MS, 4), 4, "its last CPU");
    assert_eq!(takes(&mut kernel, 4 * MS, 5), 6, "the same node");
    assert_eq!(moves(&kernel, A), (1, 1, 0));
    sleep(&mut kernel, 5 * MS, [6]);
    assert_eq!(takes(&mut kernel, 5 * MS, 6), 6);
    assert_eq!(takes(&mut kernel, 6 * MS, 5), 0, "all that is left");
    assert_eq!(moves(&kernel, A), (1, 1, 1));
}

/// Four nodes of two CPUs, two to a socket: 0 1 | 2 3 || 4 5 | 6 7.
#[test]
fn a_woken_task_takes_a_cpu_of_its_socket_before_another() {
    let mut kernel = kernel_of("nodes:4 sockets:2 cpus:2", |_| A);
    for id in 0..CPUS {
        assert_eq!(comes(&mut kernel, 0, id, A), id);
    }
    sleep(&mut kernel, MS, [7]);
    assert_eq!(comes(&mut kernel, MS, 8, A), 7);
    // All of these are beyond its node, 0 to 3 also beyond its socket.
    sleep(&mut kernel, MS, [0, 2, 5]);
    assert_eq!(takes(&mut kernel, 2 * MS, 7), 5, "the same socket");
    assert_eq!(takes(&mut kernel, 3 * MS, 5), 0, "nothing of its socket is left");
    assert_eq!(moves(&kernel, A), (0, 0, 2), "a socket is no measure of how far a task moved");
}

#[test]
fn a_units_own_cpus_come_before_nearer_ones_that_others_lend() {
    // A has the last CPU of each node.
    let mut kernel = kernel(|cpu| if cpu % 4 == 3 { A } else { B });
    assert_eq!(comes(&mut kernel, 0, 0, A), 3);
    assert_eq!(comes(&mut kernel, 0, 1, A), 7, "its own, although the third shares a cache with CPU 7");
    sleep(&mut kernel, MS, [7]);
    assert_eq!(comes(&mut kernel, MS, 2, A), 7);
    // Task 1 ran on 7, where another one runs; its only other CPU is taken, too.
    assert_eq!(takes(&mut kernel, 2 * MS, 1), 6, "the nearest of those that are lent");
    assert_eq!((kernel.runs(6), moves(&kernel, A)), (A, (1, 0, 0)));
}

#[test]
fn the_nearest_lent_cpu_is_called_back_first() {
    let mut kernel = full();
    // Tasks 5, 8, 9, 10 and 11 all ran on CPU 5 last.
    sleep(&mut kernel, MS, [5]);
    for id in 8..12 {
        assert_eq!(comes(&mut kernel, MS, id, A), 5);
        sleep(&mut kernel, MS, [5]);
    }
    sleep(&mut kernel, MS, (0..CPUS).filter(|cpu| *cpu != 5));
    for id in 12..12 + CPUS {
        comes(&mut kernel, 2 * MS, id, B);
    }
    assert!((0..CPUS).all(|cpu| kernel.runs(cpu) == B && kernel.can_come_back(cpu)));
    for (id, cpu) in [5, 8, 9, 10, 11].into_iter().zip([5, 4, 6, 7, 0]) {
        kernel.wake(3 * MS, id);
        assert_eq!(kicks(&mut kernel), [Kick { cpu, preempt: true }], "task {id}");
    }
    for cpu in [5, 4, 6, 7, 0] {
        assert!(kernel.schedule(4 * MS, cpu, true).is_some_and(|id| id < 12), "CPU {cpu} is back");
    }
    // Whichever of the five tasks is on which CPU: one stayed, one shares the cache, two the node, and one is
    // elsewhere.
    assert_eq!(moves(&kernel, A), (1, 2, 1));
    assert_eq!(kernel.unit(A).recalls, 5);
}
