//! A queueing model of the memory bus, in integers. It is solved in three directions: from rates to demands,
//! from demands to rates, and from demands to rates on a smaller private bus.
//!
//! Problem. A full bus limits the rate of each thread, so that a thread's rate says nothing about its demand.
//! For example, four threads that each want most of the bus get a quarter each, and so do four threads that
//! each want a third.
//!
//! Terms: the bus serves one transaction in a time s, the unit of time here. A thread computes for a time z,
//! then issues a transaction and waits until it completes (a closed network). A thread's *rate* is the number
//! of transactions that it completes in s. Its *demand* is its rate when it runs alone, d = 1 / (z + 1). Both
//! are fractions of the bus, in units of 1 / [`WHOLE`]. A *stream* is a part of a thread with one transaction
//! in flight at a time.
//!
//! Algorithm. By Schweitzer's approximation of mean value analysis, an arriving transaction finds the other
//! threads' mean queue. Let L be the mean number of all threads' transactions at the bus, and q the mean
//! number of the thread's own. Then a transaction takes 1 + L - q, of which w = L - q is waiting. By Little's
//! law, q = r (1 + L - q) for a thread of rate r.
//! 1. *Demands from rates* ([`demand`]): solved for q, q = r (1 + L) / (1 + r). The sum over all threads is
//!    L, so that with A = Σ r / (1 + r), L = A / (1 - A). That gives w, and d = 1 / (1/r - w).
//! 2. *Rates from demands* ([`progress`]): a thread that streams has several transactions in flight, one per
//!    whole quarter of the bus that it wants, as the slowdowns beside such threads show (seed 003, section
//!    3). All N streams are assumed to wait equally long, w = L (N - 1) / N. A stream of load u, its rate
//!    when alone, has u (1 + w) / (1 + w u) transactions queued. L is the sum of these. Starting from the
//!    longest wait, [`ROUNDS`] iterations are accurate enough to tell which threads should run together. A
//!    thread's progress is (1 + w' u) / (1 + w u), where w' is the wait caused by its own other streams.
//! 3. *Rates on a private bus* with a fraction e of the capacity ([`private_bus_rates`]): transactions take
//!    1/e there, so demands are d' = 1 / (z e + 1) of the private bus. With the waits of direction 1, a
//!    thread's rate x is the root of z' x² + (z' + L) x = 1, with z' = z e. Σ x / (1 + x) falls as L grows,
//!    and L / (1 + L) rises: bisection finds the L at which they meet.
//!
//! Example of direction 1: four threads with r = 1/4 each. A = 4 * (1/4) / (5/4) = 4/5, L = 4, q = 1, w = 3,
//! and d = 1 / (4 - 3) = 1: each thread alone would use the whole bus.
//!
//! Properties: demands are between rates and the whole bus, and equal to rates on an almost idle bus. A
//! thread's demand grows with its own rate and with the rates of others.
//!
//! Limits: direction 1 treats a thread with several transactions in flight as one with a large demand.
//! Transfers outside jobs are unknown here.
//!
//! Source: P. Schweitzer, Approximate analysis of multiclass closed networks of queues, 1979. The simulator's
//! own bus is another, exact model (`sim/contention/bus.rs`).

use alloc::vec::Vec;

/// The whole bus.
pub(crate) const WHOLE: u64 = 1 << 20;

/// Iterations of direction 2.
const ROUNDS: u32 = 4;

/// How many streams a thread has that wants the whole bus: one per quarter.
const STREAMS_OF_ALL: u64 = 4;

/// Identical threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadSet {
    /// How many.
    pub(crate) threads: u32,
    /// The rate or demand of each, as a part of [`WHOLE`].
    pub(crate) part: u64,
}

/// The demand of a thread with a rate of `rate`, from the rates of all threads that ran together with it,
/// itself included.
pub(crate) fn demand(all_threads: &[ThreadSet], rate: u64) -> u64 {
    let rate = rate.min(WHOLE);
    if rate == 0 {
        return 0;
    }
    // r / (1 + r)
    let term = |rate: u64| rate * WHOLE / (WHOLE + rate);
    let sum: u64 = all_threads.iter().map(|set| u64::from(set.threads) * term(set.part.min(WHOLE))).sum();
    // The queue holds at most one transaction per thread.
    let queue_max = u64::from(count_threads(all_threads)) * WHOLE;
    let queue = if sum >= WHOLE { queue_max } else { (sum * WHOLE / (WHOLE - sum)).min(queue_max) };
    let wait = queue.saturating_sub(term(rate) * (WHOLE + queue) / WHOLE);
    // The time from one transaction to the next when alone: at least a transaction's service time.
    let interval_alone = (WHOLE * WHOLE / rate).saturating_sub(wait).max(WHOLE);
    (WHOLE * WHOLE / interval_alone).max(rate)
}

/// The rates that threads with these demands would have on a private bus with a capacity of `part` of
/// [`WHOLE`]: for each set, the sum over its threads.
pub(crate) fn private_bus_rates(sets: &[ThreadSet], part: u64) -> Vec<u64> {
    let part = part.min(WHOLE);
    // z' of a set, the time for which its threads compute. A thread without demand computes forever.
    let compute_time = |set: &ThreadSet| (WHOLE * WHOLE / set.part.clamp(1, WHOLE) - WHOLE) * part / WHOLE;
    // x of a set, for a queue of length L.
    let rate = |set: &ThreadSet, length: u64| {
        if set.part == 0 || part == 0 {
            return 0;
        }
        let z = u128::from(compute_time(set));
        let (whole, b) = (u128::from(WHOLE), z + u128::from(length));
        // The root in a form without cancellation: x = 2 / (b + √(b² + 4 z)), with b = z + L.
        let root = (b * b + 4 * z * whole).isqrt();
        u64::try_from((2 * whole * whole).checked_div(b + root).unwrap_or(whole))
            .map_or(WHOLE, |x| x.min(WHOLE))
    };
    // Bisection: the sum of x / (1 + x) exceeds L / (1 + L) while L is too small.
    let threads = u64::from(count_threads(sets));
    let (mut low, mut high) = (0, threads * WHOLE);
    while high - low > 1 {
        let length = low + (high - low) / 2;
        let term = |x: u64| x * WHOLE / (WHOLE + x);
        let sum: u64 = sets.iter().map(|set| u64::from(set.threads) * term(rate(set, length))).sum();
        if sum > term(length) { low = length } else { high = length }
    }
    sets.iter().map(|set| u64::from(set.threads) * (rate(set, high) * part / WHOLE)).collect()
}

/// Identical threads with a demand, as streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams {
    /// How many threads.
    pub(crate) threads: u32,
    /// Streams per thread, which is the number of its transactions in flight.
    streams: u64,
    /// The part of the bus that one stream would use if it were alone.
    load: u64,
    /// The slowdown of a stream by the same thread's other streams, 1 + w' u; [`WHOLE`] is no slowdown.
    own_slowdown: u64,
}

impl Streams {
    /// Threads that want `part` of the bus each.
    pub(crate) fn new(threads: u32, part: u64) -> Streams {
        let part = part.min(WHOLE);
        let streams = (part * STREAMS_OF_ALL / WHOLE).max(1);
        let (mut load, mut own_slowdown) = (part, WHOLE);
        if streams > 1 {
            // Alone, the thread has the rate `part`, although its streams slow each other down. Iterate to
            // the load of a stream for which this holds.
            load = part / streams;
            for _ in 0..ROUNDS {
                let one_thread = Streams { threads: 1, streams, load, own_slowdown: WHOLE };
                own_slowdown = WHOLE + wait(&[one_thread]) * load / WHOLE;
                load = (part * own_slowdown / WHOLE / streams).min(WHOLE);
            }
        }
        Streams { threads, streams, load, own_slowdown }
    }

    /// The number of streams of all threads.
    fn stream_count(&self) -> u64 {
        u64::from(self.threads) * self.streams
    }
}

/// How long a transaction waits for others when these sets run together: w, in units of 1 / [`WHOLE`] of its
/// service time.
fn wait(sets: &[Streams]) -> u64 {
    let streams: u64 = sets.iter().map(Streams::stream_count).sum();
    let queued = |wait: u64, set: &Streams| {
        set.stream_count() * (set.load * (WHOLE + wait) / (WHOLE + wait * set.load / WHOLE))
    };
    let mut wait = streams.saturating_sub(1) * WHOLE;
    for _ in 0..ROUNDS {
        let queue: u64 = sets.iter().map(|set| queued(wait, set)).sum();
        wait = queue * (streams - 1) / streams;
    }
    wait
}

/// The progress of sets that run together, summed over all threads: [`WHOLE`] for a thread that runs as fast
/// as if it were alone.
pub(crate) fn progress(sets: &[Streams]) -> u64 {
    if sets.iter().all(|set| set.threads == 0) {
        return 0;
    }
    let wait = wait(sets);
    let set_progress = |set: &Streams| {
        let slowdown = (WHOLE + wait * set.load / WHOLE).max(set.own_slowdown);
        u64::from(set.threads) * (set.own_slowdown * WHOLE / slowdown)
    };
    sets.iter().map(set_progress).sum()
}

fn count_threads(sets: &[ThreadSet]) -> u32 {
    sets.iter().map(|set| set.threads).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wants(threads: u32, percent: u64) -> Streams {
        Streams::new(threads, WHOLE * percent / 100)
    }

    fn alike(threads: u32, percent: u64) -> ThreadSet {
        ThreadSet { threads, part: WHOLE * percent / 100 }
    }

    #[test]
    fn four_that_share_a_full_bus_equally_may_want_all_of_it() {
        let four = alike(4, 25);
        assert!(demand(&[four], four.part).abs_diff(WHOLE) < 64);
    }

    #[test]
    fn the_demand_of_a_thread_alone_is_its_rate() {
        for percent in [1, 30, 80, 100] {
            let one = alike(1, percent);
            let found = demand(&[one], one.part);
            assert!(found.abs_diff(one.part) <= 8, "{percent} %: {found} for {}", one.part);
        }
    }

    #[test]
    fn four_that_want_half_of_the_bus_each_progress_by_half() {
        // Exactly: 4 / 4.07 of the bus, so 2.005 threads' worth of work at 0.49 each.
        let progress = progress(&[wants(4, 49)]);
        assert!(progress > WHOLE * 18 / 10 && progress < WHOLE * 21 / 10, "{progress}");
    }

    /// Two that want half of the bus each progress less beside two that stream than beside two of their own
    /// kind: streaming threads have more transactions in flight.
    #[test]
    fn streaming_threads_slow_others_more() {
        let (half, streams) = (progress(&[wants(4, 49)]), progress(&[wants(4, 80)]));
        let mixed = progress(&[wants(2, 49), wants(2, 80)]);
        assert!(2 * mixed < half + streams, "{mixed} twice, or {half} and {streams}");
    }

    /// Two that want 60 % of the bus each get nearly all of half a bus, and one that wants a tenth gets
    /// slightly less than that.
    #[test]
    fn rates_on_a_private_bus() {
        let percent = |sets: &[ThreadSet], part: u64| -> Vec<u64> {
            private_bus_rates(sets, WHOLE * part / 100).iter().map(|rate| rate * 1_000 / WHOLE).collect()
        };
        let two = percent(&[alike(2, 60)], 50)[0];
        assert!((430..=500).contains(&two), "{two}");
        let one = percent(&[alike(1, 10)], 50)[0];
        assert!((85..=100).contains(&one), "{one}");
        assert_eq!(percent(&[alike(1, 0), alike(2, 60)], 0), [0, 0]);
        assert_eq!(percent(&[alike(1, 100)], 100), [1_000], "all of it");
    }

    #[test]
    fn a_thread_alone_is_not_slowed() {
        for percent in [0, 10, 40, 80, 100] {
            let alone = progress(&[wants(1, percent)]);
            assert!(alone > WHOLE * 9 / 10, "within the accuracy of few iterations: {percent} %, {alone}");
        }
    }

    proptest! {
        #[test]
        fn a_demand_is_between_the_rate_and_the_bus(
            sets in proptest::collection::vec((1u32..5, 0u64..=WHOLE), 1..6),
            more in 0u64..=WHOLE,
        ) {
            let set = |(threads, part): &(u32, u64)| ThreadSet { threads: *threads, part: *part };
            let mut sets: Vec<ThreadSet> = sets.iter().map(set).collect();
            let before: Vec<u64> = sets.iter().map(|set| demand(&sets, set.part)).collect();
            sets.push(ThreadSet { threads: 1, part: more });
            for (set, before) in sets.iter().zip(before) {
                let after = demand(&sets, set.part);
                prop_assert!((set.part..=WHOLE).contains(&before));
                prop_assert!(after >= before, "more beside it: {after}, was {before}");
            }
        }

        #[test]
        fn another_thread_speeds_up_no_set(
            sets in proptest::collection::vec((1u32..5, 0u64..=WHOLE), 1..6),
            more in 0u64..=WHOLE,
        ) {
            let mut sets: Vec<Streams> = sets.iter().map(|(threads, part)| Streams::new(*threads, *part)).collect();
            let before = progress(&sets);
            sets.push(Streams::new(1, more));
            let after = progress(&sets);
            // Within the accuracy of few iterations.
            prop_assert!(after <= before + WHOLE * 102 / 100, "{before} {after}");
        }

        /// On the whole bus, direction 1 inverts direction 3, within a thousandth of the bus.
        #[test]
        fn demands_are_recovered_from_the_rates_that_they_cause(percents in proptest::collection::vec(1u64..=100, 1..8)) {
            let wants: Vec<ThreadSet> = percents.iter().map(|percent| alike(1, *percent)).collect();
            let rates: Vec<ThreadSet> =
                private_bus_rates(&wants, WHOLE).into_iter().map(|part| ThreadSet { threads: 1, part }).collect();
            // Up to rounding.
            prop_assert!(rates.iter().map(|rate| rate.part).sum::<u64>() <= WHOLE + 64);
            for (want, rate) in wants.iter().zip(&rates) {
                let found = demand(&rates, rate.part);
                // On a full bus, a small error in a rate is a large one in a demand: compare rates alone.
                let again = private_bus_rates(&[ThreadSet { threads: 1, part: found }], WHOLE)[0];
                let alone = private_bus_rates(&[*want], WHOLE)[0];
                prop_assert!(again.abs_diff(alone) <= alone / 20 + WHOLE / 1_000, "{found} for {want:?} at {rate:?}");
            }
        }

        /// A smaller bus gives no set more, and no bus gives more than its capacity.
        #[test]
        fn a_larger_bus_is_no_worse(
            sets in proptest::collection::vec((1u32..5, 0u64..=100), 1..6),
            parts in (0u64..=100, 0u64..=100),
        ) {
            let sets: Vec<ThreadSet> = sets.iter().map(|(threads, percent)| alike(*threads, *percent)).collect();
            let (small, large) = (parts.0.min(parts.1) * WHOLE / 100, parts.0.max(parts.1) * WHOLE / 100);
            let (on_small, on_large) = (private_bus_rates(&sets, small), private_bus_rates(&sets, large));
            prop_assert!(on_small.iter().sum::<u64>() <= small + 64);
            for (on_small, on_large) in on_small.iter().zip(&on_large) {
                prop_assert!(on_small <= &(on_large + WHOLE / 500), "{on_small} {on_large}");
            }
        }

        /// Direction 1 inverts direction 2, within a third, where no thread wants more than half. The error
        /// is largest (30 %) for three that want next to nothing beside four that want half of the bus each:
        /// all streams are taken to wait equally long, and streaming threads wait for fewer of their own
        /// kind.
        #[test]
        fn demands_from_rates_invert_rates_from_demands(percents in proptest::collection::vec(1u64..50, 1..8)) {
            let sets: Vec<ThreadSet> = percents.iter().map(|percent| alike(1, *percent)).collect();
            // Rates by direction 2, iterated to convergence.
            let threads = sets.len() as u64;
            let mut wait = 0;
            for _ in 0..200 {
                let at_bus = |set: &ThreadSet| set.part * (WHOLE + wait) / (WHOLE + wait * set.part / WHOLE);
                wait = sets.iter().map(at_bus).sum::<u64>() * (threads - 1) / threads;
            }
            let rates: Vec<ThreadSet> = sets
                .iter()
                .map(|set| ThreadSet { threads: 1, part: set.part * WHOLE / (WHOLE + wait * set.part / WHOLE) })
                .collect();
            for (set, rate) in sets.iter().zip(&rates) {
                let found = demand(&rates, rate.part);
                prop_assert!(found.abs_diff(set.part) <= set.part / 3 + 16, "{found} for {} at {}", set.part, rate.part);
            }
        }
    }
}
