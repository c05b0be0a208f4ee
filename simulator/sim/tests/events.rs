//! Events, timers, and loops that end after a time. All costs are zero on these machines.
#![allow(clippy::unwrap_used, reason = "texts of tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::{MS, contract, jobs, machine, outcome, response, workload};

/// Runs programs of the same names as their jobs, all in unit `a`, on this many CPUs.
fn run(cpus: u32, programs: &[(&str, &str)], more: &str) -> Outcome {
    let jobs: Vec<_> = programs.iter().map(|(name, _)| (*name, "a", *name, "")).collect();
    let text = workload(programs, &jobs) + more;
    outcome(&contract("isolate", "", ""), &machine(cpus, ""), &text.replace("\"1h\"", "\"1s\""))
}

/// The job, the number of its processes that wait for locks, at barriers and for events, and the events.
fn stuck(end: &Outcome) -> Vec<(&str, [usize; 3], String)> {
    let of = end.stuck.iter();
    of.map(|it| (it.job.as_str(), [it.for_locks, it.at_barriers, it.for_events], it.events.join(" ")))
        .collect()
}

#[test]
fn a_timer_keeps_its_period_and_a_sleep_does_not() {
    let timed = "{ repeat = 5, do = [{ cpu = \"3ms\" }, { timer = \"t\", period = \"10ms\" }] }";
    let sleeps = "{ repeat = 5, do = [{ cpu = \"3ms\" }, { sleep = \"10ms\" }] }";
    let end = run(2, &[("timed", timed), ("sleeps", sleeps)], "[timer.t]\n");
    assert_eq!((response(&end, "timed"), response(&end, "sleeps")), (50 * MS, 65 * MS));
}

/// Releases are at 10, 20, .. ms. The work takes 25 ms at first, then 3 ms.
#[test]
fn an_overrun_goes_on_at_once_and_shifts_later_releases_unless_it_catches_up() {
    let run = |catch_up: bool| {
        let timer = format!("{{ timer = \"t\", period = \"10ms\", catch_up = {catch_up} }}");
        let steps =
            format!("{{ cpu = \"25ms\" }}, {timer}, {{ repeat = 3, do = [{{ cpu = \"3ms\" }}, {timer}] }}");
        response(&run(1, &[("p", &steps)], "[timer.t]\n"), "p")
    };
    // The next release is at 35 ms, and then at 45 and 55 ms.
    assert_eq!(run(false), 55 * MS);
    // The releases at 10 and 20 ms were missed: work from 25 to 28 ms, and from 28 to 31 ms. The release at
    // 30 ms is missed too, by 1 ms; that at 40 ms is not.
    assert_eq!(run(true), 40 * MS);
}

/// Two processes that share a timer of 10 ms take its releases in turn; each alone has all of its own.
#[test]
fn processes_may_share_a_timer() {
    let steps = "{ repeat = 3, do = [{ timer = \"t\", period = \"10ms\" }] }";
    let run = |shared: bool| {
        run(2, &[("p", steps), ("q", steps)], &format!("[timer.t]\nshared = {shared}\n")).ended_ns
    };
    assert_eq!((run(false), run(true)), (30 * MS, 60 * MS));
}

/// A deadline of 5 ms after each release: the second round, of 25 ms, misses it.
#[test]
fn an_overrun_ends_a_response() {
    let rounds = "{ cpu = \"3ms\" }, { timer = \"t\", period = \"10ms\" }, { cpu = \"25ms\" }, \
                  { timer = \"t\", period = \"10ms\" }, { cpu = \"3ms\" }, { timer = \"t\", period = \"10ms\" }";
    let text = workload(&[("p", rounds)], &[("p", "a", "p", "deadline = \"5ms\"")]) + "[timer.t]\n";
    let end = outcome(&contract("isolate", "", ""), &machine(1, ""), &text);
    let wakes: Vec<_> = end.wakes.iter().map(|it| (it.met, it.missed)).collect();
    // The third round begins at the end of the overrun, and meets its deadline; so does the end of the
    // program, which takes no time.
    assert_eq!(wakes, [(2, 1)]);
}

/// On one CPU, beside a process that always computes: 100 ms of CPU time take 200 ms, 100 ms of time do not.
#[test]
fn busy_steps_end_by_the_clock() {
    let end = run(1, &[("busy", "{ busy = \"100ms\" }"), ("works", "{ cpu = \"100ms\" }")], "");
    let (busy, works) = (response(&end, "busy"), response(&end, "works"));
    assert!((100 * MS..=130 * MS).contains(&busy), "{busy}");
    assert!((130 * MS..=200 * MS).contains(&works), "{works}");
    let spent = jobs(&end, "busy")[0].spent;
    assert_eq!((spent.work_ns + spent.waited_ns, spent.spin_ns), (busy, 0), "{spent:?}");
}

#[test]
fn a_signal_wakes_the_first_that_waits_or_all() {
    let waits = "{ wait = \"e\" }";
    let run = |all: bool| {
        let signals =
            format!("{{ sleep = \"10ms\" }}, {{ signal = \"e\", all = {all} }}, {{ cpu = \"5ms\" }}");
        run(2, &[("first", waits), ("second", waits), ("signals", &signals)], "[event.e]\n")
    };
    assert_eq!((response(&run(true), "first"), response(&run(true), "second")), (10 * MS, 10 * MS));
    let end = run(false);
    assert_eq!(response(&end, "first"), 10 * MS);
    assert_eq!(stuck(&end), [("second", [0, 0, 1], "e".to_owned())]);
}

/// The signal comes 10 ms before the wait: a condition variable loses it, a semaphore keeps it.
#[test]
fn a_signal_before_the_wait_is_lost_unless_the_event_counts() {
    let steps = [("waits", "{ sleep = \"10ms\" }, { wait = \"e\" }"), ("signals", "{ signal = \"e\" }")];
    let run = |counts: bool| run(1, &steps, &format!("[event.e]\ncounts = {counts}\n"));
    assert_eq!(stuck(&run(false)), [("waits", [0, 0, 1], "e".to_owned())]);
    assert_eq!(response(&run(true), "waits"), 10 * MS);
}

/// The first process gives the lock up while it waits. The second computes 20 ms with the lock, and signals
/// after 10 ms of them: the first goes on when it has the lock again.
#[test]
fn a_wait_gives_its_lock_up_and_takes_it_again() {
    let waits = "{ lock = \"m\", do = [{ wait = \"e\", lock = \"m\" }, { cpu = \"5ms\" }] }";
    let signals = "{ sleep = \"1ms\" }, { lock = \"m\", do = [{ cpu = \"10ms\" }, { signal = \"e\" }, { cpu = \"10ms\" }] }";
    let end = run(2, &[("waits", waits), ("signals", signals)], "[event.e]\n[lock.m]\n");
    assert_eq!((response(&end, "signals"), response(&end, "waits")), (21 * MS, 26 * MS));
    assert_eq!((end.locks[0].taken, end.locks[0].waits), (3, 1));
}

/// Processes of two jobs meet; of three that a barrier waits for, one never comes, and it is named.
#[test]
fn jobs_meet_at_a_barrier_of_an_event() {
    let steps =
        |parties: u32, ms: u32| format!("{{ cpu = \"{ms}ms\" }}, {{ barrier = {parties}, at = \"e\" }}");
    let end = run(2, &[("a", &steps(2, 5)), ("b", &steps(2, 9))], "[event.e]\n");
    assert_eq!((response(&end, "a"), response(&end, "b")), (9 * MS, 9 * MS));
    let end = run(2, &[("a", &steps(3, 5)), ("b", &steps(3, 9)), ("c", "{ cpu = \"1ms\" }")], "[event.e]\n");
    let e = || "e".to_owned();
    assert_eq!(stuck(&end), [("a", [0, 1, 0], e()), ("b", [0, 1, 0], e())]);
}

/// `b` computes without end after the signal that nobody waited for: `a` is stuck. `c` may still signal.
#[test]
fn a_signal_that_lies_behind_wakes_nobody() {
    let a = "{ sleep = \"5ms\" }, { wait = \"e\" }";
    let b = "{ signal = \"e\" }, { cpu = \"1h\" }";
    let c = "{ repeat = 3, do = [{ signal = \"e\" }, { cpu = \"1h\" }] }";
    assert_eq!(stuck(&run(2, &[("a", a), ("b", b)], "[event.e]\n")), [("a", [0, 0, 1], "e".to_owned())]);
    assert_eq!(stuck(&run(2, &[("a", a), ("c", c)], "[event.e]\n")), []);
}

/// A circle through a lock and an event: who would signal needs the lock that the waiting process holds.
#[test]
fn a_circle_of_a_lock_and_an_event_is_stuck() {
    let waits = "{ lock = \"m\", do = [{ wait = \"e\" }] }";
    let signals = "{ sleep = \"1ms\" }, { lock = \"m\", do = [{ signal = \"e\" }] }";
    let end = run(2, &[("waits", waits), ("signals", signals)], "[event.e]\n[lock.m]\n");
    assert_eq!(stuck(&end), [("waits", [0, 0, 1], "e".to_owned()), ("signals", [1, 0, 0], String::new())]);
}

/// An iteration of 4 ms is under way when the 10 ms are over. The inner loop's time counts anew each time.
#[test]
fn a_loop_may_end_after_a_time() {
    let cpu = "{ cpu = \"4ms\" }";
    let steps = [
        ("endless", &*format!("{{ repeat = \"forever\", for = \"10ms\", do = [{cpu}] }}")),
        ("ends", &*format!("{{ repeat = 2, for = \"10ms\", do = [{cpu}] }}")),
        ("inner", &*format!("{{ repeat = 2, do = [{{ repeat = 9, for = \"10ms\", do = [{cpu}] }}] }}")),
    ];
    let end = run(3, &steps, "");
    let spans = ["endless", "ends", "inner"].map(|name| response(&end, name));
    assert_eq!(spans, [12 * MS, 8 * MS, 24 * MS]);
}
