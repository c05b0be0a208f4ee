//! How much slower threads get that share the memory bus, and what each of them would transfer if it were alone: a queueing
//! law, in whole numbers, solved both ways.
//!
//! Problem. A bus that is full carries for each thread what it has room for. So what a thread transfers there is no measure of
//! what it wants: four threads that want most of the bus each, and four that want a third, all get a quarter.
//!
//! Terms: the bus carries one transaction in a time s, the unit of time here. A thread computes for a time z, and then has a
//! transaction carried, for which it waits. Its *rate* is what it gets carried in s, its *demand* what it would get if it were
//! alone, d = 1 / (z + 1). Both are parts of the bus, of [`WHOLE`].
//!
//! Algorithm. By Schweitzer's approximation, a transaction finds on its arrival what the others have at the bus: with q of a
//! thread's own there in the mean, and L of all threads', it takes 1 + L - q, of which it waits w = L - q. With Little's law,
//! q = r (1 + L - q) for a thread of rate r.
//! - *Demands from rates*: q = r (1 + L) / (1 + r) for each thread. Summed, with A = Σ r / (1 + r), L = A / (1 - A). So w is
//!   known, and d = 1 / (1/r - w).
//! - *Rates from demands*: a thread that streams has several transactions under way at once, one for each whole quarter of the
//!   bus that it wants, as the slowdowns beside such threads show (seed 003, section 3). All streams wait about equally long,
//!   w = L (N - 1) / N with N of them, and one of load u has u (1 + w) / (1 + w u) at the bus. L is the sum. From the longest
//!   wait down, [`ROUNDS`] rounds of this come near enough to tell which threads go together. A thread gets on by
//!   (1 + w' u) / (1 + w u), where w' is what its own streams cost each other.
//!
//! - *Rates on a bus of one's own*, which carries a part e of the whole: transactions take 1/e there, so demands are
//!   d' = 1 / (z e + 1) of it. With the waits of the first way, a thread's rate x is the root of z' x² + (z' + L) x = 1, with
//!   z' = z e. Σ x / (1 + x) falls as L grows, and L / (1 + L) grows: where they meet is found by halving.
//!
//! Properties: demands are at least rates, and at most the bus. Where the bus is nearly idle, both are the same. A thread's
//! demand grows with its own rate and with the others'.
//!
//! Limits: for the first way, a thread that has several transactions under way is one with a large demand. What transfers
//! without being in a job is not known here.
//!
//! Source: P. Schweitzer, Approximate analysis of multiclass closed networks of queues, 1979. The simulator's own bus is
//! another model, the exact one (`sim/contention/bus.rs`).

use alloc::vec::Vec;

/// The whole bus.
pub(crate) const WHOLE: u64 = 1 << 20;

/// Rounds of the second way.
const ROUNDS: u32 = 4;

/// A thread has a stream for each whole one of so many parts of the bus.
const STREAMS_OF_ALL: u64 = 4;

/// Threads that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alike {
    /// So many.
    pub(crate) threads: u32,
    /// What each transfers, or would, as a part of [`WHOLE`].
    pub(crate) part: u64,
}

/// What the threads of `one` would transfer each if they were alone, where these sets ran together, `one` among them.
pub(crate) fn demand(together: &[Alike], one: u64) -> u64 {
    let one = one.min(WHOLE);
    if one == 0 {
        return 0;
    }
    let share = |rate: u64| rate * WHOLE / (WHOLE + rate);
    let sum: u64 = together.iter().map(|set| u64::from(set.threads) * share(set.part.min(WHOLE))).sum();
    // No more can be at the bus than there are threads.
    let most = u64::from(threads(together)) * WHOLE;
    let queue = if sum >= WHOLE { most } else { (sum * WHOLE / (WHOLE - sum)).min(most) };
    let wait = queue.saturating_sub(share(one) * (WHOLE + queue) / WHOLE);
    // Alone, a transaction takes at least as long as it is carried.
    let alone = (WHOLE * WHOLE / one).saturating_sub(wait).max(WHOLE);
    (WHOLE * WHOLE / alone).max(one)
}

/// What threads with these demands would transfer together if they had a bus of their own that carries `part` of [`WHOLE`]: for
/// all threads of a set, in the order of the sets.
pub(crate) fn on_own_bus(sets: &[Alike], part: u64) -> Vec<u64> {
    let part = part.min(WHOLE);
    // z' of a set; one without a demand computes for ever.
    let computes = |set: &Alike| (WHOLE * WHOLE / set.part.clamp(1, WHOLE) - WHOLE) * part / WHOLE;
    let rate = |set: &Alike, length: u64| {
        if set.part == 0 || part == 0 {
            return 0;
        }
        let z = u128::from(computes(set));
        let (whole, b) = (u128::from(WHOLE), z + u128::from(length));
        // 2 / (b + √(b² + 4 z)), the root without a difference of what is nearly equal.
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

/// What threads want that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wants {
    /// So many.
    pub(crate) threads: u32,
    /// Transactions that each has under way at once, and the part of the bus that one of these would take alone.
    streams: u64,
    load: u64,
    /// How much longer a stream takes for the thread's other ones.
    alone: u64,
}

impl Wants {
    /// Threads that want this part of the bus each.
    pub(crate) fn new(threads: u32, part: u64) -> Wants {
        let part = part.min(WHOLE);
        let streams = (part * STREAMS_OF_ALL / WHOLE).max(1);
        let (mut load, mut alone) = (part, WHOLE);
        if streams > 1 {
            load = part / streams;
            for _ in 0..ROUNDS {
                let one = Wants { threads: 1, streams, load, alone: WHOLE };
                alone = WHOLE + wait(&[one]) * load / WHOLE;
                load = (part * alone / WHOLE / streams).min(WHOLE);
            }
        }
        Wants { threads, streams, load, alone }
    }

    fn all_streams(&self) -> u64 {
        u64::from(self.threads) * self.streams
    }
}

/// How long a transaction waits for others, where these run together.
fn wait(sets: &[Wants]) -> u64 {
    let streams: u64 = sets.iter().map(Wants::all_streams).sum();
    let at_bus = |wait: u64, set: &Wants| {
        set.all_streams() * (set.load * (WHOLE + wait) / (WHOLE + wait * set.load / WHOLE))
    };
    let mut wait = streams.saturating_sub(1) * WHOLE;
    for _ in 0..ROUNDS {
        let queue: u64 = sets.iter().map(|set| at_bus(wait, set)).sum();
        wait = queue * (streams - 1) / streams;
    }
    wait
}

/// How far sets of threads with these demands get together: threads' worth of progress, of [`WHOLE`] each that is alone.
pub(crate) fn progress(sets: &[Wants]) -> u64 {
    if sets.iter().all(|set| set.threads == 0) {
        return 0;
    }
    let wait = wait(sets);
    let gets_on = |set: &Wants| {
        let slower = (WHOLE + wait * set.load / WHOLE).max(set.alone);
        u64::from(set.threads) * (set.alone * WHOLE / slower)
    };
    sets.iter().map(gets_on).sum()
}

fn threads(together: &[Alike]) -> u32 {
    together.iter().map(|set| set.threads).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wants(threads: u32, percent: u64) -> Wants {
        Wants::new(threads, WHOLE * percent / 100)
    }

    fn alike(threads: u32, percent: u64) -> Alike {
        Alike { threads, part: WHOLE * percent / 100 }
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

    /// Two that want half of the bus each get on worse beside two that stream than beside two of their own kind: those that
    /// stream have more under way.
    #[test]
    fn who_streams_slows_others_more() {
        let (half, streams) = (progress(&[wants(4, 49)]), progress(&[wants(4, 80)]));
        let mixed = progress(&[wants(2, 49), wants(2, 80)]);
        assert!(2 * mixed < half + streams, "{mixed} twice, or {half} and {streams}");
    }

    /// Two that want 60 % of the bus each have nearly all of half a bus, and one that wants a tenth has a little less than that.
    #[test]
    fn a_bus_of_ones_own() {
        let percent = |sets: &[Alike], part: u64| -> Vec<u64> {
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
            assert!(alone > WHOLE * 9 / 10, "as far as few rounds tell: {percent} %, {alone}");
        }
    }

    proptest! {
        #[test]
        fn a_demand_is_between_the_rate_and_the_bus(
            sets in proptest::collection::vec((1u32..5, 0u64..=WHOLE), 1..6),
            more in 0u64..=WHOLE,
        ) {
            let mut sets: Vec<Alike> = sets.iter().map(|(threads, part)| Alike { threads: *threads, part: *part }).collect();
            let before: Vec<u64> = sets.iter().map(|set| demand(&sets, set.part)).collect();
            sets.push(Alike { threads: 1, part: more });
            for (set, before) in sets.iter().zip(before) {
                let after = demand(&sets, set.part);
                prop_assert!((set.part..=WHOLE).contains(&before));
                prop_assert!(after >= before, "more beside it: {after}, was {before}");
            }
        }

        #[test]
        fn nobody_gets_on_better_with_one_more_beside(
            sets in proptest::collection::vec((1u32..5, 0u64..=WHOLE), 1..6),
            more in 0u64..=WHOLE,
        ) {
            let mut sets: Vec<Wants> = sets.iter().map(|(threads, part)| Wants::new(*threads, *part)).collect();
            let before = progress(&sets);
            sets.push(Wants::new(1, more));
            let after = progress(&sets);
            // As far as so few rounds tell.
            prop_assert!(after <= before + WHOLE * 102 / 100, "{before} {after}");
        }

        /// On the whole bus, it is the first way backwards: within a thousandth of the bus.
        #[test]
        fn demands_come_from_what_they_give(percents in proptest::collection::vec(1u64..=100, 1..8)) {
            let wants: Vec<Alike> = percents.iter().map(|percent| alike(1, *percent)).collect();
            let rates: Vec<Alike> =
                on_own_bus(&wants, WHOLE).into_iter().map(|part| Alike { threads: 1, part }).collect();
            // As it is rounded.
            prop_assert!(rates.iter().map(|rate| rate.part).sum::<u64>() <= WHOLE + 64);
            for (want, rate) in wants.iter().zip(&rates) {
                let found = demand(&rates, rate.part);
                // Where the bus is full, a little more or less of a rate is much of a demand.
                let again = on_own_bus(&[Alike { threads: 1, part: found }], WHOLE)[0];
                let alone = on_own_bus(&[*want], WHOLE)[0];
                prop_assert!(again.abs_diff(alone) <= alone / 20 + WHOLE / 1_000, "{found} for {want:?} at {rate:?}");
            }
        }

        /// Nobody has more of a smaller bus, nor more than it carries.
        #[test]
        fn a_larger_bus_is_no_worse(
            sets in proptest::collection::vec((1u32..5, 0u64..=100), 1..6),
            parts in (0u64..=100, 0u64..=100),
        ) {
            let sets: Vec<Alike> = sets.iter().map(|(threads, percent)| alike(*threads, *percent)).collect();
            let (small, large) = (parts.0.min(parts.1) * WHOLE / 100, parts.0.max(parts.1) * WHOLE / 100);
            let (on_small, on_large) = (on_own_bus(&sets, small), on_own_bus(&sets, large));
            prop_assert!(on_small.iter().sum::<u64>() <= small + 64);
            for (on_small, on_large) in on_small.iter().zip(&on_large) {
                prop_assert!(on_small <= &(on_large + WHOLE / 500), "{on_small} {on_large}");
            }
        }

        /// What one way makes of demands, the other takes back, within a third, where no thread wants more than half. It is
        /// off most (by 30 %) for three that want next to nothing beside four that want half of the bus each: all streams are
        /// taken to wait equally long, and those that stream wait for fewer of their own kind.
        #[test]
        fn both_ways_agree(percents in proptest::collection::vec(1u64..50, 1..8)) {
            let sets: Vec<Alike> = percents.iter().map(|percent| alike(1, *percent)).collect();
            // Rates, by the second way, to the end.
            let threads = sets.len() as u64;
            let mut wait = 0;
            for _ in 0..200 {
                let at_bus = |set: &Alike| set.part * (WHOLE + wait) / (WHOLE + wait * set.part / WHOLE);
                wait = sets.iter().map(at_bus).sum::<u64>() * (threads - 1) / threads;
            }
            let rates: Vec<Alike> = sets
                .iter()
                .map(|set| Alike { threads: 1, part: set.part * WHOLE / (WHOLE + wait * set.part / WHOLE) })
                .collect();
            for (set, rate) in sets.iter().zip(&rates) {
                let found = demand(&rates, rate.part);
                prop_assert!(found.abs_diff(set.part) <= set.part / 3 + 16, "{found} for {} at {}", set.part, rate.part);
            }
        }
    }
}
