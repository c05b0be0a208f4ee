//! The baselines by themselves, without an engine. The expected schedules are computed by hand.

use super::*;

const MS: Time = 1_000_000;
const S: Time = 1_000 * MS;

/// Starts a task that is runnable at once.
fn arrives<R: Rule>(baseline: &mut Baseline<R>, now: Time, id: TaskId) {
    baseline.start(now, id, 0, None);
    baseline.wake(now, id);
}

/// Lets kicked CPUs choose a task, until no CPU is kicked any more.
fn settle<R: Rule>(baseline: &mut Baseline<R>, now: Time) {
    let mut kicks = Vec::new();
    for _ in 0..100 {
        baseline.kicks(&mut kicks);
        if kicks.is_empty() {
            return;
        }
        for kick in kicks.drain(..) {
            baseline.schedule(now, kick.cpu, true);
        }
    }
    panic!("CPUs kick each other for ever");
}

fn on<R: Rule>(baseline: &Baseline<R>, cpu: u32) -> Option<TaskId> {
    baseline.table.current(cpu).0
}

/// The tasks that run on the only CPU up to a time, each with the time from which it runs. No task starts,
/// wakes or blocks.
fn trace<R: Rule>(baseline: &mut Baseline<R>, until: Time) -> Vec<(Time, TaskId)> {
    let (mut now, mut seen) = (0, Vec::new());
    settle(baseline, now);
    while now < until {
        let id = on(baseline, 0).expect("somebody is runnable");
        if seen.last().is_none_or(|(_, last)| *last != id) {
            seen.push((now, id));
        }
        now += baseline.slice_left(now, 0);
        baseline.schedule(now, 0, true);
    }
    seen
}

/// The CPU time of each task in a trace, by task number.
fn parts(trace: &[(Time, TaskId)], end: Time) -> Vec<Time> {
    let mut parts = vec![0; trace.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0)];
    for (at, (since, id)) in trace.iter().enumerate() {
        parts[*id as usize] += trace.get(at + 1).map_or(end, |(next, _)| *next) - since;
    }
    parts
}

fn decay(slice_ns: Time, cpus: u32) -> Baseline<Decay> {
    Baseline::new(Decay::new(slice_ns, cpus), cpus, 1)
}

fn epochs(slice_ns: Time, cpus: u32) -> Baseline<Epochs> {
    Baseline::new(Epochs::new(slice_ns), cpus, 1)
}

/// Bach's example (section 8.1, figure 8.4): three processes that only compute, slices of a second. His clock
/// ticks 60 times a second, IRIX's 100 times:
///
/// | s | number of A, usage | of B | of C | runs |
/// | --- | --- | --- | --- | --- |
/// | 0 | 60, 0 | 60, 0 | 60, 0 | A |
/// | 1 | 85, 50 | 60, 0 | 60, 0 | B |
/// | 2 | 72, 25 | 85, 50 | 60, 0 | C |
/// | 3 | 66, 12 | 72, 25 | 85, 50 | A |
/// | 4 | 88, 56 | 66, 12 | 72, 25 | B |
/// | 5 | 74, 28 | 88, 56 | 66, 12 | C |
#[test]
fn the_example_of_the_design_of_the_unix_operating_system() {
    let mut irix = decay(S, 1);
    (0..3).for_each(|id| arrives(&mut irix, 0, id));
    assert_eq!(trace(&mut irix, 6 * S), [(0, 0), (S, 1), (2 * S, 2), (3 * S, 0), (4 * S, 1), (5 * S, 2)]);
    let usage_ms: Vec<Time> = irix.rule.usage.iter().map(|usage| usage.ns / MS).collect();
    // A, 5 and 6 s: 280 and 140 ms of 562.5; B: 562.5 / 2; C: (125 + 1000) / 2.
    assert_eq!(usage_ms, [140, 281, 562]);
}

/// Slices of 30 ms, two tasks: their numbers follow their usage, so no task is ever ahead by more than a
/// slice and a tick's rounding on each side.
#[test]
fn two_tasks_that_compute_get_equal_parts() {
    let mut irix = decay(30 * MS, 1);
    (0..2).for_each(|id| arrives(&mut irix, 0, id));
    let seen = trace(&mut irix, 10 * S);
    let longest = seen.windows(2).map(|pair| pair[1].0 - pair[0].0).max();
    assert!(parts(&seen, 10 * S).iter().all(|part| part.abs_diff(5 * S) <= 60 * MS), "{seen:?}");
    assert!(longest <= Some(60 * MS), "{longest:?}");
}

/// A task computes for a second, beside a task that sleeps. Its number is 60 + 100 / 2 before the second's
/// end, and 85 after. A task that wakes with number 60 preempts it.
#[test]
fn who_slept_puts_off_who_computed() {
    let mut irix = decay(30 * MS, 1);
    arrives(&mut irix, 0, 0);
    irix.start(0, 1, 0, None);
    settle(&mut irix, 0);
    irix.wake(S + MS, 1);
    settle(&mut irix, S + MS);
    assert_eq!(on(&irix, 0), Some(1));
    // But not who has computed as little: 19 ms of usage are one tick, which is no number yet.
    let mut irix = decay(30 * MS, 1);
    arrives(&mut irix, 0, 0);
    irix.start(0, 1, 0, None);
    settle(&mut irix, 0);
    irix.wake(19 * MS, 1);
    assert!(!irix.has_kicks());
    // From the second tick on.
    irix.start(20 * MS, 2, 0, None);
    irix.wake(20 * MS, 2);
    settle(&mut irix, 20 * MS);
    assert_eq!(on(&irix, 0), Some(1), "who came first of the two");
}

/// Of two running tasks, the one with the larger number is preempted: task 0 has computed for 500 ms, task 1
/// for 100 ms.
#[test]
fn the_worst_is_put_off() {
    let mut irix = decay(30 * MS, 2);
    arrives(&mut irix, 0, 0);
    settle(&mut irix, 0);
    arrives(&mut irix, 400 * MS, 1);
    settle(&mut irix, 400 * MS);
    assert_eq!([on(&irix, 0), on(&irix, 1)], [Some(0), Some(1)]);
    arrives(&mut irix, 500 * MS, 2);
    settle(&mut irix, 500 * MS);
    assert_eq!([on(&irix, 0), on(&irix, 1)], [Some(2), Some(1)]);
}

#[test]
fn usage_is_halved_at_each_second() {
    let mut usage = decay::Usage::default();
    usage.add(500 * MS, 2500 * MS);
    // 500 / 4 + 1000 / 2 + 500.
    assert_eq!((usage.ns, usage.priority()), (1125 * MS, 60 + 56));
    usage.halve(5 * S);
    assert_eq!((usage.ns / MS, usage.priority()), (140, 60 + 7));
    usage.halve(500 * S);
    assert_eq!(usage.priority(), 60);
    // Who runs for ever: 2 s, a number of 160, which a byte does not hold.
    usage.add(500 * S, 600 * S - 1);
    assert_eq!(usage.priority(), 127);
    // The halvings that the bound for starvation counts on.
    usage.add(600 * S - 1, 600 * S);
    usage.halve((600 + decay::HALVINGS - 1) * S);
    assert!(usage.priority() == 60, "{usage:?}");
}

/// Two tasks, slices of 60 ms: 6 ticks each at first.
///
/// | ms | counter of 0 | of 1 | what |
/// | --- | --- | --- | --- |
/// | 0 | 60 | 60 | both wake; the CPU was kicked for 0, but 1 woke last and is first in the queue: 1 runs |
/// | 20 | 60 | 40 | 1 blocks: 0 runs |
/// | 80 | 0 | 40 | no runnable task has a counter: the epoch ends; 0 goes on |
/// | 80 | 60 | 80 | 40 / 2 + 60 |
/// | 90 | 50 | 80 | 1 wakes: 8 + 20 + 15 beside 5 + 20 + 15 + 1: 1 runs |
/// | 170 | 50 | 0 | 0 runs |
/// | 220 | 0 | 0 | the epoch ends: 60 each; 0 was here last, so was 1; 0 has the address space: 0 runs |
/// | 280 | 0 | 60 | 1 runs |
#[test]
fn a_tiny_case_by_hand() {
    let mut linux = epochs(60 * MS, 1);
    let counters = |linux: &Baseline<Epochs>| [0, 1].map(|id: usize| linux.rule.counters[id] / MS);
    let who = |linux: &mut Baseline<Epochs>, ms: Time, runnable: bool| {
        linux.schedule(ms * MS, 0, runnable);
        (on(linux, 0), linux.slice_left(ms * MS, 0) / MS)
    };
    arrives(&mut linux, 0, 0);
    arrives(&mut linux, 0, 1);
    settle(&mut linux, 0);
    assert_eq!((on(&linux, 0), linux.slice_left(0, 0)), (Some(1), 60 * MS));
    assert_eq!(who(&mut linux, 20, false), (Some(0), 60));
    assert_eq!((who(&mut linux, 80, true), counters(&linux)), ((Some(0), 60), [60, 80]));
    linux.wake(90 * MS, 1);
    settle(&mut linux, 90 * MS);
    assert_eq!((on(&linux, 0), counters(&linux)), (Some(1), [50, 80]));
    assert_eq!(who(&mut linux, 170, true), (Some(0), 50));
    assert_eq!((who(&mut linux, 220, true), counters(&linux)), ((Some(0), 60), [60, 60]));
    assert_eq!(who(&mut linux, 280, true), (Some(1), 60));
    assert_eq!(linux.rule.ended, 2);
}

/// Each of n tasks that compute has a slice per epoch, so an epoch takes n slices.
#[test]
fn an_epoch_is_a_slice_for_each() {
    for tasks in 1..=7 {
        let mut linux = epochs(60 * MS, 1);
        (0..tasks).for_each(|id| arrives(&mut linux, 0, id));
        let end = 10 * u64::from(tasks) * 60 * MS;
        let parts = parts(&trace(&mut linux, end), end);
        assert_eq!((linux.rule.ended, parts), (10, vec![600 * MS; tasks as usize]));
        assert_eq!(linux.table.account(0).used_ns(), end);
    }
}

/// One task computes, one sleeps: epochs end every 60 ms, after which the sleeper has 60, 90, 105, 112.5, ...
/// ms.
#[test]
fn a_sleeper_saves_up_to_two_slices() {
    let mut linux = epochs(60 * MS, 1);
    arrives(&mut linux, 0, 0);
    linux.start(0, 1, 0, None);
    linux.rule.counters[1] = 0;
    let saved = [60, 120, 180, 240].map(|ms| {
        trace(&mut linux, 0);
        linux.schedule(ms * MS, 0, true);
        linux.rule.counters[1]
    });
    assert_eq!(saved, [60_000_000, 90_000_000, 105_000_000, 112_500_000]);
    (5..200).for_each(|epoch| {
        linux.schedule(epoch * 60 * MS, 0, true);
    });
    assert!((119 * MS..=120 * MS).contains(&linux.rule.counters[1]));
}

/// A CPU's preferences at equal counters and at different counters.
#[test]
fn goodness_prefers_the_last_cpu_and_who_ran() {
    let mut linux = epochs(60 * MS, 2);
    (0..3).for_each(|id| arrives(&mut linux, 0, id));
    settle(&mut linux, 0);
    let on_cpus = [on(&linux, 0), on(&linux, 1)];
    assert_eq!(on_cpus, [Some(2), Some(1)], "who came last stands first");
    let goodness = |id, cpu, ran| linux.rule.goodness(&linux.table, id, cpu, ran);
    // 6 ticks, 20 for nice 0, 15 for the last CPU, 1 for the address space.
    assert_eq!(goodness(2, 0, Some(2)), 6 + 20 + 15 + 1);
    assert_eq!(goodness(2, 0, None), 6 + 20 + 15);
    assert_eq!(goodness(2, 1, Some(1)), 6 + 20);
    // A new one begins on CPU 0, where it has run as little as on the other.
    assert_eq!([goodness(0, 0, Some(2)), goodness(0, 1, Some(1))], [41, 26]);
    // A task with a smaller counter goes before one with a larger, where it was last: 1 ms is a tick.
    linux.rule.counters = vec![120 * MS, 0, MS];
    let goodness = |id, cpu, ran| linux.rule.goodness(&linux.table, id, cpu, ran);
    assert_eq!([goodness(0, 1, None), goodness(2, 0, None), goodness(1, 1, Some(1))], [32, 36, 0]);
}

/// A task that wakes goes to its last CPU if that idles, else to the CPU that has been idle longest, else to
/// the CPU where its goodness gains most.
#[test]
fn who_wakes_looks_for_a_cpu() {
    let mut linux = epochs(60 * MS, 3);
    arrives(&mut linux, 0, 0);
    settle(&mut linux, 0);
    assert_eq!(on(&linux, 0), Some(0));
    linux.schedule(5 * MS, 0, false);
    linux.wake(6 * MS, 0);
    settle(&mut linux, 6 * MS);
    assert_eq!(on(&linux, 0), Some(0), "its last CPU, though the others idle longer");
    // CPU 1 looks in vain, so that CPU 2 idles longest.
    linux.schedule(7 * MS, 1, true);
    arrives(&mut linux, 8 * MS, 1);
    settle(&mut linux, 8 * MS);
    assert_eq!(on(&linux, 2), Some(1));
    arrives(&mut linux, 9 * MS, 2);
    settle(&mut linux, 9 * MS);
    assert_eq!(on(&linux, 1), Some(2));
    // All are busy, with 5, 3 and 2 ticks left: 41, 39 and 38. Who has 12 is worth 47 where it was last, and
    // 32 elsewhere.
    linux.start(9 * MS, 3, 0, None);
    linux.rule.counters = vec![50 * MS, 20 * MS, 30 * MS, 120 * MS];
    for (there, cpu) in [(0, 0), (2, 1), (1, 2)] {
        linux.table.start(3, 0, Some(there));
        assert_eq!(looks_for(&mut linux, 9 * MS, 3), [cpu]);
    }
    // Who would gain nothing puts nobody off: 6 ticks and the last CPU are worth 41 too, 7 are worth 42.
    for (counter, kicked) in [(60, vec![]), (70, vec![0])] {
        linux.rule.counters = vec![50 * MS, 20 * MS, 30 * MS, counter * MS];
        linux.table.start(3, 0, Some(0));
        assert_eq!(looks_for(&mut linux, 9 * MS, 3), kicked);
    }
    // Without that advantage it has to wait, unless it saved enough: 20 ticks are worth 40, more than 3 and
    // 2, and by most more than 2.
    linux.rule.counters = vec![150 * MS, 20 * MS, 30 * MS, 10 * MS];
    linux.table.start(3, 0, Some(0));
    assert!(looks_for(&mut linux, 9 * MS, 3).is_empty());
    linux.rule.counters[3] = 200 * MS;
    linux.rule.counters[0] = 250 * MS;
    assert_eq!(looks_for(&mut linux, 9 * MS, 3), [2]);
}

/// The CPUs that are kicked when a task wakes. The task blocks again before they choose, so that nothing else
/// changes.
fn looks_for(linux: &mut Baseline<Epochs>, now: Time, id: TaskId) -> Vec<u32> {
    linux.rule.wake(&mut linux.table, now, id);
    linux.rule.block(id);
    let mut kicks = Vec::new();
    linux.kicks(&mut kicks);
    for kick in &kicks {
        linux.schedule(now, kick.cpu, true);
    }
    kicks.iter().map(|kick| kick.cpu).collect()
}

/// A parent with a counter of 60 ms forks at 10 ms: parent and child have 25 ms each. The child ends with 5
/// ms left, which the parent gets back.
#[test]
fn a_child_lives_on_its_parents_counter() {
    let mut linux = epochs(60 * MS, 1);
    arrives(&mut linux, 0, 0);
    settle(&mut linux, 0);
    linux.start(10 * MS, 1, 0, Some(0));
    linux.wake(10 * MS, 1);
    assert_eq!(linux.rule.counters, [25 * MS, 25 * MS]);
    assert_eq!(linux.schedule(10 * MS, 0, false), Some(1));
    linux.end(30 * MS, 1, Some(0));
    assert_eq!(linux.rule.counters, [30 * MS, 0]);
    assert_eq!(linux.schedule(30 * MS, 0, false), None);
    assert_eq!(linux.table.account(0).used_ns(), 30 * MS);
}
