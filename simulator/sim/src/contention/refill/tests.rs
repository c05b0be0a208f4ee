use proptest::prelude::*;

use super::*;

/// A megabyte of 128-byte lines, half a microsecond each: 8,192 lines, 4.096 ms for all.
const CACHE: Cache = Cache { bytes: 1 << 20, line_bytes: 128, miss_ns: 500 };
const KIB: u64 = 1 << 10;

/// The time to fetch `kib` KiB: 8 lines each, 500 ns per line.
fn fetch_kib(kib: u64) -> Time {
    kib * 8 * 500
}

#[test]
fn refill_is_by_whole_lines() {
    assert_eq!(refill_ns(&CACHE, 0), 0);
    assert_eq!(refill_ns(&CACHE, 1), 500);
    assert_eq!(refill_ns(&CACHE, 128), 500);
    assert_eq!(refill_ns(&CACHE, 129), 1_000);
    assert_eq!(refill_ns(&CACHE, 1 << 20), 4_096_000);
}

#[test]
fn a_new_task_and_one_from_another_cpu_miss_everything() {
    let mut caches = Caches::new(&CACHE, 2);
    assert_eq!(caches.arrive(0, 512 * KIB, None), fetch_kib(512));
    let left = caches.leave(0);
    assert_eq!(caches.arrive(1, 512 * KIB, Some(left)), fetch_kib(512));
}

#[test]
fn no_hot_set_is_larger_than_the_cache() {
    assert_eq!(Caches::new(&CACHE, 1).arrive(0, u64::MAX, None), fetch_kib(1024));
}

#[test]
fn with_nobody_in_between_nothing_is_lost() {
    let mut caches = Caches::new(&CACHE, 1);
    // Larger than half the cache: it must not be taken for another task's that leaves no room.
    let _ = caches.arrive(0, 768 * KIB, None);
    let left = caches.leave(0);
    assert_eq!(caches.arrive(0, 768 * KIB, Some(left)), 0);
}

// A and B, half the cache each. B brings in 512 KiB: half of A's lines are overwritten, 256 KiB. A's 256 KiB
// overwrite a quarter of B's, 128 KiB. And so on: both fit, so the payments halve.
#[test]
fn two_that_fit_soon_pay_nothing() {
    let paid = in_turn([512 * KIB, 512 * KIB], 6);
    assert_eq!(paid, [512, 512, 256, 128, 64, 32].map(fetch_kib));
}

// A and B, three quarters of the cache each: only a quarter of the one fits beside the other, so each pays
// for half a cache each time. (A's first return: 768 * 768/1024 = 576 KiB are overwritten, more than that.)
#[test]
fn two_that_do_not_fit_pay_each_time() {
    let paid = in_turn([768 * KIB, 768 * KIB], 6);
    assert_eq!(paid, [768, 768, 576, 512, 512, 512].map(fetch_kib));
}

// A tenth of the cache comes and goes nine times while A waits: it brings in 102.4 KiB once, and once only.
// Lost: 512 KiB * 0.1 = 51.2 KiB = 409.6 lines, a started one counts.
#[test]
fn many_short_stints_of_the_same_neighbour_count_once() {
    let mut caches = Caches::new(&CACHE, 1);
    let _ = caches.arrive(0, 512 * KIB, None);
    let ours = caches.leave(0);
    let mut theirs = None;
    for _ in 0..9 {
        let _ = caches.arrive(0, 1024 * KIB / 10, theirs);
        theirs = Some(caches.leave(0));
    }
    assert_eq!(caches.arrive(0, 512 * KIB, Some(ours)), 410 * 500);
}

// Two lines, and a byte more than half of the cache brought in: 256 * 524,289 / 1,048,576 is just above one
// line.
#[test]
fn a_line_that_was_touched_is_lost() {
    assert_eq!(in_turn([256, 512 * KIB + 1], 3)[2], 2 * 500);
}

#[test]
fn degenerate_caches_cost_nothing_or_a_byte_per_line() {
    let none = Cache { bytes: 0, ..CACHE };
    let mut caches = Caches::new(&none, 1);
    let _ = caches.arrive(0, 100, None);
    let left = caches.leave(0);
    let _ = caches.arrive(0, 100, None);
    assert_eq!(caches.arrive(0, 100, Some(left)), 0);
    assert_eq!(refill_ns(&Cache { line_bytes: 0, ..CACHE }, 3), 1_500);
}

/// What each of several tasks pays that run in turn on one CPU.
fn in_turn<const N: usize>(hot_bytes: [u64; N], stints: usize) -> Vec<Time> {
    let mut caches = Caches::new(&CACHE, 1);
    let mut left = [None; N];
    let mut stint = |i: usize| {
        let paid = caches.arrive(0, hot_bytes[i % N], left[i % N]);
        left[i % N] = Some(caches.leave(0));
        paid
    };
    (0..stints).map(&mut stint).collect()
}

proptest! {
    /// Over random sequences of tasks and CPUs, no task refills more than its hot set or the cache, and at
    /// least the lines that do not fit beside the latest task's are gone.
    #[test]
    fn payments_are_bounded(
        hot in prop::collection::vec(0u64..2 << 20, 1..6),
        stints in prop::collection::vec((0usize..3, 0usize..6), 1..60),
    ) {
        let mut caches = Caches::new(&CACHE, 3);
        let mut left = vec![None; hot.len()];
        let mut latest: [Option<usize>; 3] = [None; 3];
        for (cpu, who) in stints {
            let who = who % hot.len();
            let paid = caches.arrive(cpu, hot[who], left[who]);
            let own = hot[who].min(CACHE.bytes);
            prop_assert!(paid <= refill_ns(&CACHE, own));
            if let Some(other) = latest[cpu].filter(|other| *other != who) {
                let room = CACHE.bytes - hot[other].min(CACHE.bytes);
                prop_assert!(paid >= refill_ns(&CACHE, own.saturating_sub(room)));
            }
            left[who] = Some(caches.leave(cpu));
            latest[cpu] = Some(who);
        }
    }

    /// What more the others bring in, the more is lost.
    #[test]
    fn more_in_between_costs_no_less(hot in 0u64..2 << 20, other in 0u64..1 << 20, more in 0u64..1 << 20) {
        let returns = |between: u64| in_turn([hot, between], 3)[2];
        prop_assert!(returns(other + more) >= returns(other));
    }
}
