//! A queueing model of the memory bus, in integers, solved in both directions: from rates to demands, and from demands to
//! rates.
//!
//! Problem. A full bus limits what each thread transfers, so that a thread's rate says nothing about its demand: four threads
//! that want most of the bus each, and four that want a third, all get a quarter.
//!
//! Terms: the bus serves one transaction in a time s, the unit of time here. A thread computes for a time z, then issues a
//! transaction and waits for it (a closed network). Its *rate* is the transactions it completes in s, its *demand* its rate
//! when alone, d = 1 / (z + 1). Both are fractions of the bus, in units of 1 / [`WHOLE`].
//!
//! Algorithm. By Schweitzer's approximation of mean value analysis, an arriving transaction finds the other threads' mean
//! queue. If q of the thread's own are queued on average, and L of all threads', it takes 1 + L - q, of which w = L - q is
//! waiting. By Little's law, q = r (1 + L - q) for a thread of rate r.
//! - *Demands from rates*: q = r (1 + L) / (1 + r) for each thread. Summed, with A = Σ r / (1 + r), L = A / (1 - A). That gives
//!   w, and d = 1 / (1/r - w).
//! - *Rates from demands*: a thread that streams has several transactions in flight, one per whole quarter of the bus that it
//!   wants, as the slowdowns beside such threads show (seed 003, section 3). All N streams are taken to wait equally long, w =
//!   L (N - 1) / N, and one of load u has u (1 + w) / (1 + w u) queued. L is the sum. Starting from the longest wait,
//!   [`ROUNDS`] iterations are accurate enough to tell which threads go together. A thread's progress is (1 + w' u) / (1 + w
//!   u), where w' is what its own streams cost each other.
//!
//! - *Rates on a private bus* with a fraction e of the capacity: transactions take 1/e there, so demands are d' = 1 / (z e + 1)
//!   of it. With the waits of the first direction, a thread's rate x is the root of z' x² + (z' + L) x = 1, with z' = z e. Σ x
//!   / (1 + x) falls as L grows, and L / (1 + L) rises: bisection finds the intersection.
//!
//! Properties: demands are between rates and the whole bus, and equal to rates on an almost idle one. A thread's demand grows
//! with its own rate and with the others'.
//!
//! Limits: the first direction treats a thread with several transactions in flight as one with a large demand. Transfers
//! outside jobs are unknown here.
//!
//! Source: P. Schweitzer, Approximate analysis of multiclass closed networks of queues, 1979. The simulator's own bus is
//! another, exact model (`sim/contention/bus.rs`).

use alloc::vec::Vec;

/// The whole bus.
pub(crate) const WHOLE: u64 = 1 << 20;

/// Iterations of the second direction.
const ROUNDS: u32 = 4;

/// A thread has one stream per whole fraction of this size that it wants of the bus.
const STREAMS_OF_ALL: u64 = 4;

/// Identical threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadSet {
    /// How many.
    pub(crate) threads: u32,
    /// The rate or demand of each, as a part of [`WHOLE`].
    pub(crate) part: u64,
}

/// The demand of a thread with rate `one`, where these sets ran together, `one` among them.
pub(crate) fn demand(together: &[ThreadSet], one: u64) -> u64 {
    let one = one.min(WHOLE);
    if one == 0 {
        return 0;
    }
    let share = |rate: u64| rate * WHOLE / (WHOLE + rate);
    let sum: u64 = together.iter().map(|set| u64::from(set.threads) * share(set.part.min(WHOLE))).sum();
    // The queue holds at most one transaction per thread.
    let most = u64::from(threads(together)) * WHOLE;
    let queue = if sum >= WHOLE { most } else { (sum * WHOLE / (WHOLE - sum)).min(most) };
    let wait = queue.saturating_sub(share(one) * (WHOLE + queue) / WHOLE);
    // Alone, a transaction takes at least its service time.
    let alone = (WHOLE * WHOLE / one).saturating_sub(wait).max(WHOLE);
    (WHOLE * WHOLE / alone).max(one)
}

/// The rates of threads with these demands on a private bus with a capacity of `part` of [`WHOLE`]: for all threads of each set
/// together.
pub(crate) fn on_own_bus(sets: &[ThreadSet], part: u64) -> Vec<u64> {
    let part = part.min(WHOLE);
    // z' of a set; a set without demand computes forever.
    let computes = |set: &ThreadSet| (WHOLE * WHOLE / set.part.clamp(1, WHOLE) - WHOLE) * part / WHOLE;
    let rate = |set: &ThreadSet, length: u64| {
        if set.part == 0 || part == 0 {
            return 0;
        }
        let z = u128::from(computes(set));
        let (whole, b) = (u128::from(WHOLE), z + u128::from(length));
        // 2 / (b + √(b² + 4 z)): the root in a form without cancellation.
        let root = (b * b + 4 * z * whole).isqrt();
        u64::try_from((2 * whole * whole).checked_div(b + root).unwrap_or(whole))
            .map_or(WHOLE, |x| x.min(WHOLE))
    };
    let threads = u64::from(threads(sets));
    let (mut low, mut high) = (0, threads * WHOLE);
    while high - low > 1 {
        let length = low + (high - low) / 2;
        let share = |x: u64| x * WHOLE / (WHOLE + x);
        let has: u64 = sets.iter().map(|set| u64::from(set.threads) * share(rate(set, length))).sum();
        if has > length * WHOLE / (WHOLE + length) { low = length } else { high = length }
    }
    sets.iter().map(|set| u64::from(set.threads) * (rate(set, high) * part / WHOLE)).collect()
}

/// Identical threads with a demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams {
    /// How many.
    pub(crate) threads: u32,
    /// Transactions in flight per thread, and the part of the bus that one stream would take alone.
    streams: u64,
    load: u64,
    /// The slowdown of a stream by the thread's other streams.
    alone: u64,
}

impl Streams {
    /// Threads that want `part` of the bus each.
    pub(crate) fn new(threads: u32, part: u64) -> Streams {
        let part = part.min(WHOLE);
        let streams = (part * STREAMS_OF_ALL / WHOLE).max(1);
        let (mut load, mut alone) = (part, WHOLE);
        if streams > 1 {
            load = part / streams;
            for _ in 0..ROUNDS {
                let one = Streams { threads: 1, streams, load, alone: WHOLE };
                alone = WHOLE + wait(&[one]) * load / WHOLE;
                load = (part * alone / WHOLE / streams).min(WHOLE);
            }
        }
        Streams { threads, streams, load, alone }
    }

    fn all_streams(&self) -> u64 {
        u64::from(self.threads) * self.streams
    }
}

/// How long a transaction waits for others when these sets run together.
fn wait(sets: &[Streams]) -> u64 {
    let streams: u64 = sets.iter().map(Streams::all_streams).sum();
    let at_bus = |wait: u64, set: &Streams| {
        set.all_streams() * (set.load * (WHOLE + wait) / (WHOLE + wait * set.load / WHOLE))
    };
    let mut wait = streams.saturating_sub(1) * WHOLE;
    for _ in 0..ROUNDS {
        let queue: u64 = sets.iter().map(|set| at_bus(wait, set)).sum();
        wait = queue * (streams - 1) / streams;
    }
    wait
}

/// The progress of sets that run together: [`WHOLE`] per thread that runs as if alone.
pub(crate) fn progress(sets: &[Streams]) -> u64 {
    if sets.iter().all(|set| set.threads == 0) {
        return 0;
    }
    let wait = wait(sets);
    let gets_on = |set: &Streams| {
        let slower = (WHOLE + wait * set.load / WHOLE).max(set.alone);
        u64::from(set.threads) * (set.alone * WHOLE / slower)
    };
    sets.iter().map(gets_on).sum()
}

fn threads(together: &[ThreadSet]) -> u32 {
    together.iter().map(|set| set.threads).sum()
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
    fn four_that_share_a_full_bus_want_all_of_it() {
        let four = alike(4, 25);
        assert!(demand(&[four], four.part).abs_diff(WHOLE) < 64);
    }

    #[test]
    fn one_alone_gets_what_it_wants() {
        for percent in [1, 30, 80, 100] {
            let one = alike(1, percent);
            let found = demand(&[one], one.part);
            assert!(found.abs_diff(one.part) <= 8, "{percent} %: {found} for {}", one.part);
        }
    }

    #[test]
    fn four_of_a_half_each_get_on_by_half() {
        // Exactly: 4 / 4.07 of the bus, so 2.005 threads' worth of work at 0.49 each.
        let progress = progress(&[wants(4, 49)]);
        assert!(progress > WHOLE * 18 / 10 && progress < WHOLE * 21 / 10, "{progress}");
    }

    /// Two that want half of the bus each progress less beside two that stream than beside two of their own kind: streaming
    /// threads have more transactions in flight.
    #[test]
    fn streaming_threads_slow_others_more() {
        let (half, streams) = (progress(&[wants(4, 49)]), progress(&[wants(4, 80)]));
        let mixed = progress(&[wants(2, 49), wants(2, 80)]);
        assert!(2 * mixed < half + streams, "{mixed} twice, or {half} and {streams}");
    }

    /// Two that want 60 % of the bus each get nearly all of half a bus, and one that wants a tenth gets slightly less than
    /// that.
    #[test]
    fn rates_on_a_private_bus() {
        let percent = |sets: &[ThreadSet], part: u64| -> Vec<u64> {
            on_own_bus(sets, WHOLE * part / 100).iter().map(|rate| rate * 1_000 / WHOLE).collect()
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

        /// On the whole bus, the first direction inverts the third, within a thousandth of the bus.
        #[test]
        fn demands_come_from_what_they_give(percents in proptest::collection::vec(1u64..=100, 1..8)) {
            let wants: Vec<ThreadSet> = percents.iter().map(|percent| alike(1, *percent)).collect();
            let rates: Vec<ThreadSet> =
                on_own_bus(&wants, WHOLE).into_iter().map(|part| ThreadSet { threads: 1, part }).collect();
            // Up to rounding.
            prop_assert!(rates.iter().map(|rate| rate.part).sum::<u64>() <= WHOLE + 64);
            for (want, rate) in wants.iter().zip(&rates) {
                let found = demand(&rates, rate.part);
                // On a full bus, a small error in a rate is a large one in a demand: compare rates alone.
                let again = on_own_bus(&[ThreadSet { threads: 1, part: found }], WHOLE)[0];
                let alone = on_own_bus(&[*want], WHOLE)[0];
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
            let (on_small, on_large) = (on_own_bus(&sets, small), on_own_bus(&sets, large));
            prop_assert!(on_small.iter().sum::<u64>() <= small + 64);
            for (on_small, on_large) in on_small.iter().zip(&on_large) {
                prop_assert!(on_small <= &(on_large + WHOLE / 500), "{on_small} {on_large}");
            }
        }

        /// The first direction inverts the second, within a third, where no thread wants more than half. The error is largest
        /// (30 %) for three that want next to nothing beside four that want half of the bus each: all streams are taken to wait
        /// equally long, and streaming threads wait for fewer of their own kind.
        #[test]
        fn both_ways_agree(percents in proptest::collection::vec(1u64..50, 1..8)) {
            let sets: Vec<ThreadSet> = percents.iter().map(|percent| alike(1, *percent)).collect();
            // Rates by the second direction, iterated to convergence.
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
