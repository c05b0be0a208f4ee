//! Locks: which tasks wait, which goes first, and on which unit's CPUs a holder runs meanwhile. Nothing costs anything
//! on these machines.
#![allow(clippy::unwrap_used, reason = "texts of tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::{MS, contract, machine, outcome, response, unit, workload};

const SECOND: (&str, &str) = ("second", "{ cpu = \"1s\" }");

/// How long `b` takes for a lock that a task of `a` holds, beside three others of `a` on one CPU, and what `b` is charged.
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
    // `b` owns its CPU from the beginning: somebody of it sleeps there.
    let work = work
        + "[program.sleeper]\ndo = [{ sleep = \"1h\" }]\n[job.s]\nunit = \"b\"\nprogram = \"sleeper\"\nbackground = true\n";
    let end = outcome(&contract("quota", "", ""), &machine(2, ""), &work);
    (response(&end, "w"), unit(&end, "b").used_ns)
}

#[test]
fn who_waits_for_a_lock_lends_its_cpu_to_the_holder() {
    // By turns of 30 ms among four, the holder runs at 0, 120, 240 and 360 ms: the lock is free at 370 ms, and the waiter,
    // which came at 10 ms, is done after 361 ms. On the waiter's CPU the holder goes on at once: after 90 + 1 ms, all of
    // which the waiter's unit is charged.
    assert_eq!(contended(false), (361 * MS, MS));
    assert_eq!(contended(true), (91 * MS, 91 * MS));
}

/// `b`'s holder keeps the lock for 100 ms of work beside three others; `a` comes for it after 10 ms and lends its CPU. From
/// the release on the holder is `b`'s again: of its further second nothing is charged to `a`, which had the hold alone.
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
    // Side by side; else one after the other: three wait, for 100, 200 and 300 ms.
    assert_eq!(run("readers = true"), (100 * MS, 0, 0));
    assert_eq!(run("readers = false"), (400 * MS, 3, 600 * MS));
}

#[test]
fn a_writer_waits_for_readers_and_readers_for_it() {
    // At 0 a reader, at 10 ms a writer, at 20 ms another reader, 100 ms each: the second reader does not overtake.
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

/// Units a, b and c with a CPU each, of which c's, and b's if so wished, has three hogs beside what is said. a is there from
/// the beginning.
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

/// c's task holds two; b's holds one, and waits for two from 5 ms on; a's comes for one at 10 ms. c's is
/// put off its own CPU at 5 ms, as b's guest, and b's is busy; from 10 ms on it goes on on a's, for 95 ms. Then it is the
/// turn of b's, there too, and then that of a's.
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
    // From 10 ms on all of it is a's: 95 ms of c's, 1 ms of b's, and its own. Nothing of what the two do without locks.
    assert_eq!(unit(&end, "a").used_ns, 97 * MS);
}

/// c's task holds both, two for 20 ms only. a's waits for one from 10 ms on, b's for two from 15 ms on: when two is given to
/// b's, what a lent for one stays.
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

/// The same with a at the inner lock alone: from its release on, at 50 ms, c's task runs for c again, beside three others.
#[test]
fn a_release_gives_back_everything_if_nobody_waits_for_another_lock() {
    let outer =
        "{ lock = \"one\", do = [{ lock = \"two\", do = [{ cpu = \"50ms\" }] }, { cpu = \"50ms\" }] }";
    let steps = [("c", outer), ("a", "{ sleep = \"10ms\" }, { lock = \"two\", do = [{ cpu = \"1ms\" }] }")];
    let end = chain(&steps, false);
    assert_eq!((response(&end, "a"), unit(&end, "a").used_ns), (51 * MS, 41 * MS));
    assert!(response(&end, "c") > 190 * MS, "{} ms", response(&end, "c") / MS);
}

/// c's other task waits first, from 30 ms on, when the holder's slice is over; a's comes at 40 ms. It is a's unit that lends,
/// and to each that stands before it: 70 ms to the holder, 1 ms to the other.
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

/// Two that take two locks in a circle wait for each other for ever: the run comes to its end all the same.
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
    // Waits that have not ended are counted so far: all the rest of the run.
    let waited = end.ended_ns - 10 * MS;
    let a = end.jobs.iter().find(|job| job.name == "a").expect("a job of that name");
    assert!(a.spent.blocked_ns >= waited - 20 * MS && a.spent.blocked_ns <= waited, "{:?}", a.spent);
    assert!(end.locks.iter().all(|lock| lock.waited_ns >= waited - 20 * MS), "{:?}", end.locks);
}

/// Three at a barrier for two: the third waits for ever, and so does who started them; one that still computes does not.
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
