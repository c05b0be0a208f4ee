#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn look(at_ms: u64, ran_ms: u64, queued_ms: u64, seen: Seen) -> Look {
    let counted = Counted { ran_ns: ran_ms * MS, queued_ns: queued_ms * MS, user: 3, system: 1 };
    Look { at_ns: at_ms * MS, counted, seen }
}

fn ms(times: &Times) -> Vec<(&'static str, u64)> {
    State::ALL.into_iter().filter(|s| times.of(*s) > 0).map(|s| (s.name(), times.of(s) / MS)).collect()
}

#[test]
fn a_life_in_states() {
    let mut thread = Thread::begin(0);
    // 10 ms: ran 6, queued 2, waited 2 for a lock. Then 10 more, half for the lock and half for a disk.
    thread.look(look(10, 6, 2, Seen::Waits(State::Lock)));
    thread.look(look(20, 6, 2, Seen::Waits(State::Io)));
    // Waited 4 between two looks that saw it running: as the others, 7 to 5.
    thread.look(look(22, 8, 2, Seen::Ready));
    thread.look(look(32, 14, 2, Seen::Ready));
    let counted = Counted { ran_ns: 16 * MS, queued_ns: 2 * MS, user: 3, system: 1 };
    let times = thread.end(34 * MS, counted, None);
    assert_eq!(ms(&times), [("user", 12), ("system", 4), ("queue", 2), ("lock", 9), ("I/O", 6)]);
    assert_eq!((times.sum(), times.excess_ns), (34 * MS, 0));
}

#[test]
fn what_the_kernel_counted_for_disks_is_taken_for_what_it_is() {
    let mut thread = Thread::begin(0);
    thread.look(look(10, 0, 0, Seen::Waits(State::Lock)));
    thread.look(look(30, 0, 0, Seen::Waits(State::Io)));
    let delays = Some(Delays { io_ns: 12 * MS, fault_ns: 2 * MS });
    let times = thread.end(30 * MS, Counted::default(), delays);
    assert_eq!(ms(&times), [("lock", 18), ("I/O", 10), ("fault", 2)]);
}

#[test]
fn counts_that_lag_by_a_tick_are_made_up_for_in_the_next_span() {
    let mut thread = Thread::begin(0);
    // It ran all the time; the kernel's count is up to 4 ms late.
    thread.look(look(10, 8, 0, Seen::Ready));
    thread.look(look(20, 20, 0, Seen::Ready));
    let times = thread.clone().end(30 * MS, Counted { ran_ns: 30 * MS, ..Counted::default() }, None);
    assert_eq!((times.ran(), times.sum(), times.excess_ns), (30 * MS, 30 * MS, 0));
    let times = thread.end(30 * MS, Counted { ran_ns: 33 * MS, ..Counted::default() }, None);
    assert_eq!(times.excess_ns, 3 * MS, "states that do not add up are not made to");
}

#[test]
fn a_thread_that_vanished_has_a_part_that_nobody_saw() {
    let mut thread = Thread::begin(5 * MS);
    thread.look(look(10, 5, 0, Seen::Ready));
    let times = thread.vanish(20 * MS);
    assert_eq!(ms(&times), [("user", 3), ("system", 1), ("unseen", 5)]);
}

#[test]
fn a_beginning_that_was_thought_to_be_earlier_or_later() {
    for (first, thought_ms) in
        [(Seen::Waits(State::Sleep), 0), (Seen::Waits(State::Sleep), 9), (Seen::Ready, 0), (Seen::Ready, 9)]
    {
        let mut thread = Thread::begin(thought_ms * MS);
        thread.look(look(20, 2, 1, first));
        thread.look(look(30, 2, 1, Seen::Waits(State::Sleep)));
        thread.correct(5 * MS);
        let times = thread.end(30 * MS, Counted { ran_ns: 2 * MS, queued_ns: MS, user: 1, system: 0 }, None);
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
    thread.look(look(10, 9, 0, Seen::Waits(State::Sleep)));
    let times = thread.end(9 * MS, Counted { ran_ns: 9 * MS, ..Counted::default() }, None);
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

/// What a life is like at a moment: counts, and the state.
fn at(life: &[(State, u64)], at: u64) -> (Counted, Option<State>) {
    let (mut counted, mut now) = (Counted { user: 1, ..Counted::default() }, 0);
    for (state, ms) in life {
        let inside = at.saturating_sub(now).min(*ms) * MS;
        match state {
            State::User => counted.ran_ns += inside,
            State::Queue => counted.queued_ns += inside,
            _ => {}
        }
        now += ms;
        if at < now {
            return (counted, Some(*state));
        }
    }
    (counted, None)
}

proptest! {
    /// Whatever it does and whenever it is looked at, the states come to its life within 0.5 %.
    #[test]
    fn states_add_up_to_the_life(life in lives(), period in 1..60u64, lag in 0..4u64) {
        let whole: u64 = life.iter().map(|(_, ms)| ms).sum();
        let mut thread = Thread::begin(0);
        for now in (period..whole).step_by(usize::try_from(period).unwrap()) {
            // What runs is counted late, as of the last tick.
            let (mut counted, state) = at(&life, now);
            if state == Some(State::User) {
                counted.ran_ns = at(&life, now / (lag + 1) * (lag + 1)).0.ran_ns;
            }
            let seen = match state {
                Some(State::User | State::Queue) | None => Seen::Ready,
                Some(state) => Seen::Waits(state),
            };
            thread.look(Look { at_ns: now * MS, counted, seen });
        }
        let times = thread.end(whole * MS, at(&life, whole).0, None);
        let apart = times.sum().abs_diff(whole * MS);
        // A count that lags makes a span look waited in, by a tick at most for the whole life.
        prop_assert!(apart <= whole * MS / 200 + lag * MS, "{times:?} of {whole} ms");
        prop_assert_eq!(times.ran(), at(&life, whole).0.ran_ns);
        prop_assert_eq!(times.of(State::Queue), at(&life, whole).0.queued_ns);
    }
}
