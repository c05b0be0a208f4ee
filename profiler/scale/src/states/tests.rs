#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn reading(at_ms: u64, ran_ms: u64, queued_ms: u64, activity: Activity) -> Reading {
    let counters = Counters { ran_ns: ran_ms * MS, queued_ns: queued_ms * MS, user: 3, system: 1 };
    Reading { at_ns: at_ms * MS, counters, activity }
}

fn ms(times: &Times) -> Vec<(&'static str, u64)> {
    State::ALL.into_iter().filter(|s| times.of(*s) > 0).map(|s| (s.name(), times.of(s) / MS)).collect()
}

#[test]
fn a_life_in_states() {
    let mut thread = Thread::begin(0);
    // 10 ms: ran 6, queued 2, waited 2 for a lock. Then 10 more, half for the lock and half for a disk.
    thread.read(reading(10, 6, 2, Activity::Waiting(State::Lock)));
    thread.read(reading(20, 6, 2, Activity::Waiting(State::Io)));
    // Waited 4 between two readings that found it runnable: divided as the others, 7 to 5.
    thread.read(reading(22, 8, 2, Activity::Runnable));
    thread.read(reading(32, 14, 2, Activity::Runnable));
    let counters = Counters { ran_ns: 16 * MS, queued_ns: 2 * MS, user: 3, system: 1 };
    let times = thread.end(34 * MS, counters, None);
    assert_eq!(ms(&times), [("user", 12), ("system", 4), ("queue", 2), ("lock", 9), ("I/O", 6)]);
    assert_eq!((times.sum(), times.excess_ns), (34 * MS, 0));
}

#[test]
fn what_the_kernel_counted_for_disks_is_taken_for_what_it_is() {
    let mut thread = Thread::begin(0);
    thread.read(reading(10, 0, 0, Activity::Waiting(State::Lock)));
    thread.read(reading(30, 0, 0, Activity::Waiting(State::Io)));
    let delays = Some(Delays { io_ns: 12 * MS, fault_ns: 2 * MS });
    let times = thread.end(30 * MS, Counters::default(), delays);
    assert_eq!(ms(&times), [("lock", 18), ("I/O", 10), ("fault", 2)]);
}

#[test]
fn counts_that_lag_by_a_tick_are_made_up_for_in_the_next_span() {
    let mut thread = Thread::begin(0);
    // It ran all the time; the kernel's count is up to 4 ms late.
    thread.read(reading(10, 8, 0, Activity::Runnable));
    thread.read(reading(20, 20, 0, Activity::Runnable));
    let times = thread.clone().end(30 * MS, Counters { ran_ns: 30 * MS, ..Counters::default() }, None);
    assert_eq!((times.ran(), times.sum(), times.excess_ns), (30 * MS, 30 * MS, 0));
    let times = thread.end(30 * MS, Counters { ran_ns: 33 * MS, ..Counters::default() }, None);
    assert_eq!(times.excess_ns, 3 * MS, "states that do not add up are not made to");
}

#[test]
fn a_thread_that_vanished_has_unseen_time() {
    let mut thread = Thread::begin(5 * MS);
    thread.read(reading(10, 5, 0, Activity::Runnable));
    let times = thread.vanish(20 * MS);
    assert_eq!(ms(&times), [("user", 3), ("system", 1), ("unseen", 5)]);
}

#[test]
fn a_beginning_that_was_thought_to_be_earlier_or_later() {
    for (first, thought_ms) in [
        (Activity::Waiting(State::Sleep), 0),
        (Activity::Waiting(State::Sleep), 9),
        (Activity::Runnable, 0),
        (Activity::Runnable, 9),
    ] {
        let mut thread = Thread::begin(thought_ms * MS);
        thread.read(reading(20, 2, 1, first));
        thread.read(reading(30, 2, 1, Activity::Waiting(State::Sleep)));
        thread.correct(5 * MS);
        let times = thread.end(30 * MS, Counters { ran_ns: 2 * MS, queued_ns: MS, user: 1, system: 0 }, None);
        assert_eq!(
            (ms(&times), times.excess_ns),
            (vec![("user", 2), ("queue", 1), ("sleep", 22)], 0),
            "{first:?} {thought_ms}"
        );
    }
}

#[test]
fn what_cpus_waited_for_memory_comes_out_of_user_time() {
    let mut times = Times::default();
    times.add(State::User, 90);
    times.split_memory(1, 3);
    assert_eq!((times.of(State::User), times.of(State::Memory), times.ran()), (60, 30, 90));
    times.split_memory(5, 3);
    assert_eq!((times.of(State::User), times.of(State::Memory)), (0, 90), "a counter that counts too much");
    times.split_memory(0, 0);
    assert_eq!(times.sum(), 90);
}

#[test]
fn an_end_that_was_recorded_before_the_last_look() {
    let mut thread = Thread::begin(0);
    thread.read(reading(10, 9, 0, Activity::Waiting(State::Sleep)));
    let times = thread.end(9 * MS, Counters { ran_ns: 9 * MS, ..Counters::default() }, None);
    assert!(times.sum() <= 10 * MS, "{times:?}");
}

/// A thread's life: states that take turns, each for some time.
fn lives() -> impl Strategy<Value = Vec<(State, u64)>> {
    let state = prop::sample::select(vec![
        State::User,
        State::Queue,
        State::Lock,
        State::Io,
        State::Sleep,
        State::Join,
    ]);
    prop::collection::vec((state, 1..30u64), 1..400)
}

/// A life at a moment: counters and the state.
fn at(life: &[(State, u64)], at: u64) -> (Counters, Option<State>) {
    let (mut counters, mut now) = (Counters { user: 1, ..Counters::default() }, 0);
    for (state, ms) in life {
        let inside = at.saturating_sub(now).min(*ms) * MS;
        match state {
            State::User => counters.ran_ns += inside,
            State::Queue => counters.queued_ns += inside,
            _ => {}
        }
        now += ms;
        if at < now {
            return (counters, Some(*state));
        }
    }
    (counters, None)
}

proptest! {
    /// Whatever it does and whenever it is read, the states add up to its life within 0.5 %.
    #[test]
    fn states_add_up_to_the_life(life in lives(), period in 1..60u64, lag in 0..4u64) {
        let whole: u64 = life.iter().map(|(_, ms)| ms).sum();
        let mut thread = Thread::begin(0);
        for now in (period..whole).step_by(usize::try_from(period).unwrap()) {
            // Run time is counted with the last tick.
            let (mut counters, state) = at(&life, now);
            if state == Some(State::User) {
                counters.ran_ns = at(&life, now / (lag + 1) * (lag + 1)).0.ran_ns;
            }
            let activity = match state {
                Some(State::User | State::Queue) | None => Activity::Runnable,
                Some(state) => Activity::Waiting(state),
            };
            thread.read(Reading { at_ns: now * MS, counters, activity });
        }
        let times = thread.end(whole * MS, at(&life, whole).0, None);
        let apart = times.sum().abs_diff(whole * MS);
        // A lagging counter shows up as waiting, by at most a tick for the whole life.
        prop_assert!(apart <= whole * MS / 200 + lag * MS, "{times:?} of {whole} ms");
        prop_assert_eq!(times.ran(), at(&life, whole).0.ran_ns);
        prop_assert_eq!(times.of(State::Queue), at(&life, whole).0.queued_ns);
    }
}
