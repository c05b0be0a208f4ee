//! Locks: which tasks wait, in which order they get the lock, and on which unit's CPUs a holder runs
//! meanwhile. All costs are zero on these machines.
#![allow(clippy::unwrap_used, reason = "texts of tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::{MS, contract, machine, outcome, response, unit, workload};

const SECOND: (&str, &str) = ("second", "{ cpu = \"1s\" }");

/// The time that `b` takes for a lock that a task of `a` holds, beside three other tasks of `a` on one CPU;
/// and the CPU time that `b` is charged.
fn contended(inherit: bool) -> (u64, u64) {
    let lock = format!("[lock.m]\ninherit = {inherit}\n");
    let steps = [
        ("holder", "{ lock = \"m\", do = [{ cpu = \"100ms\" }] }"),
        ("hog", "{ cpu = \"1s\" }"),
        ("waiter", "{ lock = \"m\", do = [{ cpu = \"1ms\" }] }"),
    ];
    let jobs = [
        ("h", "a", "holder", ""),
        ("hogs", "a", "hog", "count = 3"),
        ("w", "b", "waiter", "start = \"10ms\""),
    ];
    let work = workload(&steps, &jobs) + &lock;
    // `b` owns its CPU from the beginning, since a task of `b` sleeps there.
    let work = work
        + "[program.sleeper]\ndo = [{ sleep = \"1h\" }]\n[job.s]\nunit = \"b\"\nprogram = \"sleeper\"\nbackground = true\n";
    let end = outcome(&contract("quota", "", ""), &machine(2, ""), &work);
    (response(&end, "w"), unit(&end, "b").used_ns)
}

#[test]
fn who_waits_for_a_lock_lends_its_cpu_to_the_holder() {
    // With turns of 30 ms among four tasks, the holder runs at 0, 120, 240 and 360 ms: the lock is free at
    // 370 ms, and the waiter, which came at 10 ms, is done after 361 ms. With inheritance, the holder goes on
    // at once on the waiter's CPU: the waiter is done after 90 + 1 ms, all of which are charged to its unit.
    assert_eq!(contended(false), (361 * MS, MS));
    assert_eq!(contended(true), (91 * MS, 91 * MS));
}

/// A task of `b` holds the lock for 100 ms of work beside three other tasks. A task of `a` waits for the lock
/// from 10 ms on, and `a` lends its CPU. After the release, the former holder runs for `b` again: none of its
/// further second of work is charged to `a`.
#[test]
fn a_lent_cpu_is_the_waiters_again_after_the_release() {
    let steps = [
        ("holder", "{ lock = \"l\", do = [{ cpu = \"100ms\" }] }, { cpu = \"1s\" }"),
        ("light", "{ sleep = \"10ms\" }, { lock = \"l\", do = [{ cpu = \"1ms\" }] }, { sleep = \"5s\" }"),
        SECOND,
    ];
    let jobs =
        [("holder", "b", "holder", ""), ("light", "a", "light", ""), ("hogs", "b", "second", "count = 3")];
    let work = workload(&steps, &jobs) + "[lock.l]\ninherit = true\n";
    let end = outcome(&contract("quota", "", ""), &machine(2, ""), &work);
    let used = unit(&end, "a").used_ns;
    assert!((50 * MS..=101 * MS).contains(&used), "a was charged {} ms", used / MS);
}

#[test]
fn readers_share_a_lock() {
    let steps = [("reader", "{ lock = \"m\", read = true, do = [{ cpu = \"100ms\" }] }")];
    let jobs = [("r", "a", "reader", "count = 4")];
    let run = |lock: &str| {
        let work = workload(&steps, &jobs) + &format!("[lock.m]\n{lock}\n");
        let end = outcome(&contract("isolate", "", ""), &machine(4, ""), &work);
        (end.ended_ns, end.locks[0].waits, end.locks[0].waited_ns)
    };
    // Readers run in parallel. Exclusive holders run one after another: three wait, for 100, 200 and 300 ms.
    assert_eq!(run("readers = true"), (100 * MS, 0, 0));
    assert_eq!(run("readers = false"), (400 * MS, 3, 600 * MS));
}

#[test]
fn a_writer_waits_for_readers_and_readers_for_it() {
    // At 0 a reader, at 10 ms a writer, at 20 ms another reader, 100 ms each: the second reader does not
    // overtake.
    let steps = [
        ("reader", "{ lock = \"m\", read = true, do = [{ cpu = \"100ms\" }] }"),
        ("writer", "{ lock = \"m\", do = [{ cpu = \"100ms\" }] }"),
    ];
    let jobs =
        [("r", "a", "reader", "count = 2\nevery = \"20ms\""), ("w", "a", "writer", "start = \"10ms\"")];
    let work = workload(&steps, &jobs) + "[lock.m]\nreaders = true\n";
    let end = outcome(&contract("isolate", "", ""), &machine(4, ""), &work);
    assert_eq!((end.ended_ns, response(&end, "w")), (300 * MS, 190 * MS));
}

/// Units a, b and c with a CPU each. Unit c, and on request b, has three hogs beside the given jobs. Unit a
/// exists from the beginning.
fn chain(steps: &[(&str, &str)], hogs_of_b: bool) -> Outcome {
    let three = "version = 1\n[machine]\nscheme = \"quota\"\n[unit.a]\n[unit.b]\n[unit.c]\n";
    let mut programs = vec![SECOND, ("sleeper", "{ sleep = \"1h\" }")];
    programs.extend(steps);
    let mut jobs: Vec<_> = steps.iter().map(|(name, _)| (*name, *name, *name, "")).collect();
    jobs.push(("sleeper", "a", "sleeper", "background = true"));
    jobs.push(("hogs-c", "c", "second", "count = 3"));
    if hogs_of_b {
        jobs.push(("hogs-b", "b", "second", "count = 3"));
    }
    let locks = "[lock.one]\ninherit = true\n[lock.two]\ninherit = true\n";
    outcome(three, &machine(3, ""), &(workload(&programs, &jobs) + locks))
}

/// c's task holds lock two. b's task holds lock one, and waits for two from 5 ms on. a's task waits for one
/// from 10 ms on. At 5 ms c's task becomes b's, and so leaves c's CPU, while b's CPU is busy. From 10 ms on
/// it runs on a's CPU, for 95 ms. Then b's task runs there, and then a's.
#[test]
fn a_chain_of_waiters_runs_for_the_first_of_them() {
    let steps = [
        ("c", "{ lock = \"two\", do = [{ cpu = \"100ms\" }] }, { cpu = \"1s\" }"),
        (
            "b",
            "{ lock = \"one\", do = [{ cpu = \"5ms\" }, { lock = \"two\", do = [{ cpu = \"1ms\" }] }] }, { cpu = \"1s\" }",
        ),
        ("a", "{ sleep = \"10ms\" }, { lock = \"one\", do = [{ cpu = \"1ms\" }] }"),
    ];
    let end = chain(&steps, true);
    assert_eq!(response(&end, "a"), 107 * MS);
    // From 10 ms on, a is charged: for 95 ms of c's task, 1 ms of b's, and its own task; but not for these
    // tasks' work outside the locks.
    assert_eq!(unit(&end, "a").used_ns, 97 * MS);
}

/// c's task holds both locks, two for only 20 ms. a's task waits for one from 10 ms on, b's for two from 15
/// ms on. When b's task gets two, the CPU that a lent for one stays lent.
#[test]
fn a_release_gives_back_what_was_lent_for_that_lock() {
    let outer =
        "{ lock = \"one\", do = [{ lock = \"two\", do = [{ cpu = \"20ms\" }] }, { cpu = \"80ms\" }] }";
    let steps = [
        ("c", outer),
        ("b", "{ sleep = \"15ms\" }, { lock = \"two\", do = [{ cpu = \"1ms\" }] }"),
        ("a", "{ sleep = \"10ms\" }, { lock = \"one\", do = [{ cpu = \"1ms\" }] }"),
    ];
    let end = chain(&steps, false);
    assert_eq!((response(&end, "a"), response(&end, "b")), (101 * MS, 21 * MS));
    assert_eq!((unit(&end, "a").used_ns, unit(&end, "b").used_ns), (91 * MS, MS));
}

/// As above, but a waits only for the inner lock. After its release at 50 ms, c's task runs for c again,
/// beside three others.
#[test]
fn a_release_gives_back_everything_if_nobody_waits_for_another_lock() {
    let outer =
        "{ lock = \"one\", do = [{ lock = \"two\", do = [{ cpu = \"50ms\" }] }, { cpu = \"50ms\" }] }";
    let steps = [("c", outer), ("a", "{ sleep = \"10ms\" }, { lock = \"two\", do = [{ cpu = \"1ms\" }] }")];
    let end = chain(&steps, false);
    assert_eq!((response(&end, "a"), unit(&end, "a").used_ns), (51 * MS, 41 * MS));
    assert!(response(&end, "c") > 190 * MS, "{} ms", response(&end, "c") / MS);
}

/// c's second task waits first, from 30 ms on, when the holder's slice has expired; a's task waits from 40 ms
/// on. Unit a lends to each task before its own in the queue: 70 ms to the holder, 1 ms to c's second task.
#[test]
fn who_waits_in_the_holders_own_unit_lends_it_nothing() {
    let steps = [
        ("c", "{ lock = \"one\", do = [{ cpu = \"100ms\" }] }"),
        ("other", "{ lock = \"one\", do = [{ cpu = \"1ms\" }] }"),
        ("a", "{ sleep = \"40ms\" }, { lock = \"one\", do = [{ cpu = \"1ms\" }] }"),
        SECOND,
    ];
    let jobs = [
        ("c", "c", "c", ""),
        ("other", "c", "other", ""),
        ("a", "a", "a", ""),
        ("hogs", "c", "second", "count = 3"),
    ];
    let text = workload(&steps, &jobs) + "[lock.one]\ninherit = true\n";
    let units = "version = 1\n[machine]\nscheme = \"quota\"\n[unit.a]\n[unit.c]\n";
    let end = outcome(units, &machine(2, ""), &text);
    assert_eq!((response(&end, "a"), unit(&end, "a").used_ns), (112 * MS, 72 * MS));
}

/// Two tasks that take two locks in opposite order wait for each other forever. The run ends nevertheless.
#[test]
fn a_circle_of_waiters_ends_at_the_horizon() {
    let steps = [
        ("a", "{ lock = \"one\", do = [{ cpu = \"10ms\" }, { lock = \"two\", do = [{ cpu = \"1ms\" }] }] }"),
        ("b", "{ lock = \"two\", do = [{ cpu = \"10ms\" }, { lock = \"one\", do = [{ cpu = \"1ms\" }] }] }"),
        ("c", "{ sleep = \"20ms\" }, { lock = \"one\", do = [{ cpu = \"1ms\" }] }"),
    ];
    let end = chain(&steps, true);
    assert!(end.cut_off);
    let stuck: Vec<_> =
        end.stuck.iter().map(|it| (it.job.as_str(), it.for_locks, it.locks.join(" "))).collect();
    assert_eq!(stuck, [("a", 1, "two".to_owned()), ("b", 1, "one".to_owned()), ("c", 1, "one".to_owned())]);
    assert_eq!(unit(&end, "a").used_ns, 10 * MS);
    // A wait that has not ended counts with its length so far: the rest of the run.
    let waited = end.ended_ns - 10 * MS;
    let a = end.jobs.iter().find(|job| job.name == "a").expect("a job of that name");
    assert!(a.spent.blocked_ns >= waited - 20 * MS && a.spent.blocked_ns <= waited, "{:?}", a.spent);
    assert!(end.locks.iter().all(|lock| lock.waited_ns >= waited - 20 * MS), "{:?}", end.locks);
}

/// Two tasks that spin for each other's locks spin forever, and a third task that waits for them waits
/// forever.
#[test]
fn a_circle_that_spins_is_stuck() {
    let steps = [
        ("a", "{ lock = \"one\", do = [{ cpu = \"10ms\" }, { lock = \"two\", do = [{ cpu = \"1ms\" }] }] }"),
        ("b", "{ lock = \"two\", do = [{ cpu = \"10ms\" }, { lock = \"one\", do = [{ cpu = \"1ms\" }] }] }"),
        ("c", "{ sleep = \"20ms\" }, { lock = \"one\", do = [{ cpu = \"1ms\" }] }"),
    ];
    let jobs = [("a", "a", "a", ""), ("b", "a", "b", ""), ("c", "a", "c", "")];
    let locks = "[lock.one]\nspins = true\nline = \"1us\"\n[lock.two]\nspins = true\n";
    let text = (workload(&steps, &jobs) + locks).replace("horizon = \"1h\"", "horizon = \"1s\"");
    let end = outcome(&contract("isolate", "", ""), &machine(4, ""), &text);
    let stuck: Vec<_> = end.stuck.iter().map(|it| (it.job.as_str(), it.for_locks, it.at_barriers)).collect();
    assert_eq!(stuck, [("a", 1, 0), ("b", 1, 0), ("c", 1, 0)]);
}

/// Three tasks at a barrier for two: the third waits forever, and so does their parent. A task that still
/// computes is not stuck.
#[test]
fn who_waits_at_a_barrier_for_nobody_is_stuck() {
    let text = "version = 1\nhorizon = \"1s\"\n[program.meets]\ndo = [{ barrier = 2 }]\n\
                [program.starts]\ndo = [{ run = \"meets\", times = 3, at_once = 3 }]\n\
                [program.works]\ndo = [{ cpu = \"5s\" }]\n\
                [job.starts]\nunit = \"a\"\nprogram = \"starts\"\n[job.works]\nunit = \"b\"\nprogram = \"works\"\n";
    let end = outcome(&contract("isolate", "", ""), &machine(2, ""), text);
    let stuck: Vec<_> =
        end.stuck.iter().map(|it| (it.job.as_str(), it.for_locks, it.at_barriers, it.for_children)).collect();
    assert_eq!(stuck, [("starts", 0, 1, 1)]);
}

/// Processes that run these steps on four CPUs, with a spin lock.
fn spinning(steps: &str, count: u32, lock: &str) -> Outcome {
    let jobs = [("s", "a", "spinner", &*format!("count = {count}"))];
    let work = workload(&[("spinner", steps)], &jobs) + &format!("[lock.m]\nspins = true\n{lock}\n");
    outcome(&contract("isolate", "", ""), &machine(4, ""), &work)
}

#[test]
fn who_spins_is_busy() {
    let end = spinning("{ lock = \"m\", do = [{ cpu = \"100ms\" }] }", 2, "");
    let lock = &end.locks[0];
    assert_eq!((end.ended_ns, lock.taken, lock.waits), (200 * MS, 2, 1));
    assert_eq!((lock.waited_ns, lock.waited_max_ns), (100 * MS, 100 * MS));
    assert_eq!((lock.held_ns, lock.held_max_ns), (200 * MS, 100 * MS));
    // 200 ms of work, and 100 ms of spinning for the lock. No task is blocked.
    let spent: Vec<_> = end.jobs.iter().map(|job| (job.spent.spin_ns, job.spent.blocked_ns)).collect();
    assert_eq!((spent, end.busy_ns), (vec![(0, 0), (100 * MS, 0)], 300 * MS));
}

/// The cache line takes 1 ms to each CPU, and four tasks hold the lock for 10 ms each. The first has the lock
/// from 1 to 11 ms. Then the line goes to the three CPUs that spin, and the second has the lock from 14 to 24
/// ms; the third after 2 ms from 26 to 36, and the last from 37 to 47.
#[test]
fn the_line_goes_to_each_that_spins() {
    let end = spinning("{ lock = \"m\", do = [{ cpu = \"10ms\" }] }", 4, "line = \"1ms\"");
    let lock = &end.locks[0];
    assert_eq!((end.ended_ns, lock.taken, lock.waits), (47 * MS, 4, 3));
    assert_eq!((lock.waited_ns, lock.waited_max_ns, lock.held_ns), (77 * MS, 37 * MS, 40 * MS));
    let spun: u64 = end.jobs.iter().map(|job| job.spent.spin_ns).sum();
    assert_eq!(spun, 78 * MS);
}

/// Each reader takes the cache line from the reader before, which takes 1 ms: they begin at 1, 2, 3 and 4 ms.
#[test]
fn the_line_goes_from_reader_to_reader() {
    let steps = "{ lock = \"m\", read = true, do = [{ cpu = \"10ms\" }] }";
    let end = spinning(steps, 4, "readers = true\nline = \"1ms\"");
    let lock = &end.locks[0];
    assert_eq!((end.ended_ns, lock.taken, lock.waits, lock.held_ns), (14 * MS, 4, 0, 40 * MS));
    assert_eq!(
        end.jobs.iter().map(|job| job.spent.spin_ns).collect::<Vec<_>>(),
        [MS, 2 * MS, 3 * MS, 4 * MS]
    );
}

#[test]
fn the_line_stays_with_who_had_it_last() {
    let steps = "{ repeat = 3, do = [{ lock = \"m\", do = [{ cpu = \"10ms\" }] }] }";
    assert_eq!(spinning(steps, 1, "line = \"1ms\"").ended_ns, 31 * MS);
}

/// The holder keeps its CPU from 0 to 100 ms, though another task of a waits for that CPU and slices are 30
/// ms. Then b's task gets the lock, and a's other task its first slice.
#[test]
fn who_holds_a_lock_that_spins_keeps_its_cpu() {
    let steps = [
        ("holder", "{ lock = \"m\", do = [{ cpu = \"100ms\" }] }, { cpu = \"100ms\" }"),
        ("other", "{ cpu = \"30ms\" }"),
        ("waiter", "{ lock = \"m\", do = [{ cpu = \"1ms\" }] }"),
    ];
    let jobs = [("h", "a", "holder", ""), ("o", "a", "other", ""), ("w", "b", "waiter", "")];
    let work = workload(&steps, &jobs) + "[lock.m]\nspins = true\n";
    let end = outcome(&contract("quota", "", ""), &machine(2, ""), &work);
    assert_eq!((response(&end, "w"), response(&end, "o")), (101 * MS, 130 * MS));
}

/// Two tasks of b spin for a's lock on one CPU, in turns of 30 ms. The lock becomes free at 100 ms, in the
/// second task's turn from 90 to 120 ms. So the second task gets the lock first, and the first task gets it
/// at 101 ms.
#[test]
fn who_has_no_cpu_does_not_spin() {
    let steps = [
        ("holder", "{ lock = \"m\", do = [{ cpu = \"100ms\" }] }, { cpu = \"100ms\" }"),
        ("waiter", "{ lock = \"m\", do = [{ cpu = \"1ms\" }] }"),
    ];
    let jobs = [("h", "a", "holder", ""), ("w", "b", "waiter", "count = 2")];
    let work = workload(&steps, &jobs) + "[lock.m]\nspins = true\n";
    let end = outcome(&contract("quota", "", ""), &machine(2, ""), &work);
    let ended: Vec<_> = end.jobs.iter().filter(|job| job.name == "w").map(|job| job.ended_ns).collect();
    assert_eq!(ended, [Some(102 * MS), Some(101 * MS)]);
}

/// Waits and holds in progress at the end of a run count with their length so far: one task has the lock from
/// 1 ms on, two tasks wait from 0 on.
#[test]
fn a_run_that_is_cut_off_counts_waits_and_holds_so_far() {
    let steps = "{ lock = \"m\", do = [{ cpu = \"2h\" }] }";
    let end = spinning(steps, 3, "line = \"1ms\"");
    let (lock, at) = (&end.locks[0], end.ended_ns);
    assert!(end.cut_off && end.stuck.is_empty());
    assert_eq!((lock.held_ns, lock.waited_ns, lock.waited_max_ns), (at - MS, 2 * at, at));
}

/// The first task has the lock from 100 to 110 ms. At 200 ms the cache line is on its way to the second,
/// which gets the lock at 310 ms. Two tasks have waited from 0 on, and neither is stuck.
#[test]
fn a_lock_whose_line_is_on_its_way_is_waited_for() {
    let jobs = [("s", "a", "spinner", "count = 3")];
    let steps = [("spinner", "{ lock = \"m\", do = [{ cpu = \"10ms\" }] }")];
    let text = workload(&steps, &jobs) + "[lock.m]\nspins = true\nline = \"100ms\"\n";
    let text = text.replace("horizon = \"1h\"", "horizon = \"200ms\"");
    let end = outcome(&contract("isolate", "", ""), &machine(4, ""), &text);
    let lock = &end.locks[0];
    assert!(end.cut_off && end.stuck.is_empty(), "{:?}", end.stuck);
    assert_eq!((lock.held_ns, lock.waited_ns, lock.waited_max_ns), (10 * MS, 400 * MS, 200 * MS));
}
