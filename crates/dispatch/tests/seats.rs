//! Tasks with seats in pools. A task takes an idle CPU of its pool before any other, and any other before it
//! waits. A CPU takes those first that have their seats there. A task that is away returns to its pool when
//! its slice has expired.

use commonhold_dispatch::{Kernel, NOBODY, SEATS, Settings, TaskId, UnitRules, near};
use commonhold_machine::Machine;

const MS: u64 = 1_000_000;
const SLICE: u64 = 5 * MS;
const CPUS: u32 = 4;
const A: u32 = 2;
const B: u32 = 3;
/// A CPU of each pool.
const LEFT: u32 = 0;
const RIGHT: u32 = 2;

/// Two nodes of two CPUs, a pool each, all time-shared. Tasks of A and B may have seats.
fn kernel() -> Kernel {
    let machine = Machine::synthetic("nodes:2 cpus:2").expect("a machine's shape");
    let mut kernel =
        Kernel::new(&Settings { near: near(&machine, CPUS), seated: true, ..Settings::of(CPUS, 4, SLICE) });
    kernel.set_pools(&[0, 0, 1, 1]);
    for unit in [A, B] {
        let rules = UnitRules { parent: NOBODY, weight: 100, flags: SEATS, ..UnitRules::USUAL };
        assert!(kernel.set_unit(0, unit, rules));
    }
    for cpu in 0..CPUS {
        kernel.schedule(0, cpu, false);
    }
    settle(&mut kernel, 0);
    kernel
}

/// Lets every kicked CPU choose a task.
fn settle(kernel: &mut Kernel, now: u64) {
    let mut kicks = Vec::new();
    loop {
        kernel.kicks(&mut kicks);
        if kicks.is_empty() {
            break;
        }
        for kick in kicks.drain(..) {
            let runs = kernel.runs(kick.cpu) != NOBODY;
            kernel.schedule(now, kick.cpu, runs);
        }
    }
}

/// A task that computes, with a seat in the pool of a CPU.
fn comes(kernel: &mut Kernel, now: u64, id: TaskId, unit: u32, seat: u32) {
    kernel.start(now, id, unit);
    kernel.seat(id, seat);
    kernel.wake(now, id);
    settle(kernel, now);
}

/// Slices end, CPU after CPU, as long as that takes. The task that each CPU runs then.
fn run(kernel: &mut Kernel, now: &mut u64, slices: u64) -> [Option<TaskId>; 4] {
    let mut runs = [None; 4];
    for _ in 0..slices {
        for cpu in 0..CPUS {
            *now += SLICE / u64::from(CPUS);
            kernel.give_turn_up(cpu);
            let could = kernel.runs(cpu) != NOBODY;
            kernel.schedule(*now, cpu, could);
            settle(kernel, *now);
        }
    }
    for cpu in 0..CPUS {
        let could = kernel.runs(cpu) != NOBODY;
        runs[cpu as usize] = kernel.schedule(*now, cpu, could);
    }
    runs
}

fn in_pool(runs: &[Option<TaskId>; 4], id: TaskId) -> Option<usize> {
    runs.iter().position(|task| *task == Some(id)).map(|cpu| cpu / 2)
}

#[test]
fn a_woken_task_takes_an_idle_cpu_of_its_pool_or_else_any() {
    let mut kernel = kernel();
    // All of them ran on CPU 0 last.
    for id in 0..4 {
        comes(&mut kernel, 0, id, A, RIGHT);
    }
    let mut now = 0;
    let runs = run(&mut kernel, &mut now, 0);
    assert_eq!([0, 1].map(|id| in_pool(&runs, id)), [Some(1), Some(1)]);
    assert_eq!([2, 3].map(|id| in_pool(&runs, id)), [Some(0), Some(0)], "no CPU idles while they wait");
}

#[test]
fn a_task_that_is_away_returns_when_a_cpu_of_its_pool_idles() {
    let mut kernel = kernel();
    for id in 0..3 {
        comes(&mut kernel, 0, id, A, RIGHT);
    }
    let mut now = 0;
    let runs = run(&mut kernel, &mut now, 2);
    assert_eq!(in_pool(&runs, 2), Some(0), "its pool is full");
    let cpu = runs.iter().position(|task| *task == Some(0)).map(|cpu| u32::try_from(cpu).unwrap_or(NOBODY));
    // It is called back at once, and not when its slice has expired.
    kernel.schedule(now, cpu.expect("it runs"), false);
    settle(&mut kernel, now);
    let runs = run(&mut kernel, &mut now, 0);
    assert_eq!([0, 1, 2].map(|id| in_pool(&runs, id)), [None, Some(1), Some(1)]);
}

/// Jobs of two units that are in each other's pool, and all CPUs are busy.
#[test]
fn tasks_that_are_apart_change_places() {
    let mut kernel = kernel();
    for (id, unit, seat) in [(0, A, LEFT), (1, A, LEFT), (2, B, RIGHT), (3, B, RIGHT)] {
        comes(&mut kernel, 0, id, unit, seat);
    }
    let mut now = 0;
    let before = run(&mut kernel, &mut now, 2);
    assert_eq!([0, 1, 2, 3].map(|id| in_pool(&before, id)), [Some(0), Some(0), Some(1), Some(1)]);
    for (id, seat) in [(0, RIGHT), (1, RIGHT), (2, LEFT), (3, LEFT)] {
        kernel.seat(id, seat);
    }
    let after = run(&mut kernel, &mut now, 4);
    assert_eq!([0, 1, 2, 3].map(|id| in_pool(&after, id)), [Some(1), Some(1), Some(0), Some(0)]);
}

/// Five jobs for four CPUs: two tasks have no seat. Those that have one are mostly there, and no task
/// starves.
#[test]
fn more_tasks_than_seats_share_and_keep_their_pools() {
    let mut kernel = kernel();
    let seats = [LEFT, LEFT, RIGHT, RIGHT, NOBODY, NOBODY];
    for (id, seat) in (0..).zip(seats) {
        comes(&mut kernel, 0, id, A, seat);
    }
    let (mut now, mut had, mut home) = (0, [0_u32; 6], [0_u32; 6]);
    for _ in 0..300 {
        let runs = run(&mut kernel, &mut now, 1);
        assert!(runs.iter().all(Option::is_some), "a CPU idles: {runs:?}");
        for (id, seat) in (0..).zip(seats) {
            let Some(pool) = in_pool(&runs, id) else { continue };
            had[id as usize] += 1;
            home[id as usize] += u32::from(seat != NOBODY && pool == seat as usize / 2);
        }
    }
    for id in 0..4 {
        assert!(
            home[id] * 100 >= had[id] * 90,
            "task {id} was at its seat {} times of {}",
            home[id],
            had[id]
        );
    }
    assert!(had.iter().all(|had| (140..=260).contains(had)), "two thirds of 300 each: {had:?}");
}

/// Three tasks share the two CPUs of their pool. The other two CPUs have tasks that go on, and take none of
/// them.
#[test]
fn a_cpu_with_a_task_of_its_own_takes_none_from_another_pool() {
    let mut kernel = kernel();
    for (id, seat) in (0..).zip([LEFT, LEFT, RIGHT, RIGHT, RIGHT]) {
        comes(&mut kernel, 0, id, A, seat);
    }
    let (mut now, mut had) = (0, [0_u32; 5]);
    run(&mut kernel, &mut now, 4);
    for _ in 0..300 {
        let runs = run(&mut kernel, &mut now, 1);
        for id in 0..5 {
            let Some(pool) = in_pool(&runs, id) else { continue };
            had[id as usize] += 1;
            assert_eq!(pool, usize::from(id > 1), "task {id}: {runs:?}");
        }
    }
    assert!(had[..2] == [300; 2] && had[2..].iter().all(|had| (150..=250).contains(had)), "{had:?}");
}

/// At the end of its slice a task goes right to its pool, where one without a seat makes room. No CPU idles
/// meanwhile.
#[test]
fn a_task_that_is_away_displaces_one_without_a_seat() {
    let mut kernel = kernel();
    for (id, seat) in (0..).zip([NOBODY, NOBODY, LEFT, LEFT]) {
        comes(&mut kernel, 0, id, A, seat);
    }
    let mut now = 0;
    let runs = run(&mut kernel, &mut now, 3);
    let at =
        |runs: &[Option<TaskId>; 4], id| runs.iter().position(|task| *task == Some(id)).expect("it runs");
    assert_eq!([0, 1, 2, 3].map(|id| at(&runs, id) / 2), [1, 1, 0, 0]);
    kernel.seat(2, RIGHT);
    let cpu = u32::try_from(at(&runs, 2)).expect("a CPU");
    kernel.give_turn_up(cpu);
    kernel.schedule(now, cpu, true);
    settle(&mut kernel, now);
    let runs = run(&mut kernel, &mut now, 0);
    assert_eq!((at(&runs, 2) / 2, at(&runs, 3) / 2), (1, 0), "{runs:?}");
    assert!(runs.iter().all(Option::is_some), "{runs:?}");
}

/// Nobody waits for long for a pool of which another unit has the CPUs.
#[test]
fn a_task_that_waits_for_too_long_takes_any_cpu() {
    let mut kernel = kernel();
    for cpu in [2, 3] {
        kernel.own(0, cpu, B);
    }
    for (id, unit, seat) in [(0, A, LEFT), (1, A, LEFT), (2, A, RIGHT), (3, B, RIGHT), (4, B, RIGHT)] {
        comes(&mut kernel, 0, id, unit, seat);
    }
    let (mut now, mut waited, mut longest) = (0, 0, 0);
    for _ in 0..200 {
        let runs = run(&mut kernel, &mut now, 1);
        assert!(in_pool(&runs, 2) != Some(1), "those are B's");
        waited = if in_pool(&runs, 2).is_some() { 0 } else { waited + 1 };
        longest = longest.max(waited);
    }
    assert!((4..=12).contains(&longest), "it waited for {longest} slices, and its patience is eight");
}
