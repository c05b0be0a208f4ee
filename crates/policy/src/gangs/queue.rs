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
//! - *Rates from demands*: all wait about equally long, w = L (N - 1) / N with N threads, and a thread has
//!   d (1 + w) / (1 + w d) at the bus. L is the sum. From the longest wait down, [`ROUNDS`] rounds of this come near enough to
//!   tell which threads go together.
//!
//! Properties: demands are at least rates, and at most the bus. Where the bus is nearly idle, both are the same. A thread's
//! demand grows with its own rate and with the others'.
//!
//! Limits: a thread that has several transactions under way is taken for one with a large demand. What transfers without being
//! in a job is not known here.
//!
//! Source: P. Schweitzer, Approximate analysis of multiclass closed networks of queues, 1979. The simulator's own bus is
//! another model, the exact one (`sim/contention/bus.rs`).

/// The whole bus.
pub(super) const WHOLE: u64 = 1 << 20;

/// Rounds of the second way.
const ROUNDS: u32 = 4;

/// Threads that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alike {
    /// So many.
    pub(super) threads: u32,
    /// What each transfers, or would, as a part of [`WHOLE`].
    pub(super) part: u64,
}

/// What the threads of `one` would transfer each if they were alone, where these sets ran together, `one` among them.
pub(super) fn demand(together: &[Alike], one: u64) -> u64 {
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

/// How far sets of threads with these demands get together: threads' worth of progress, of [`WHOLE`] each that is alone.
pub(super) fn progress(together: &[Alike]) -> u64 {
    let threads = u64::from(threads(together));
    if threads == 0 {
        return 0;
    }
    let at_bus = |wait: u64, set: &Alike| {
        u64::from(set.threads) * (set.part * (WHOLE + wait) / (WHOLE + wait * set.part / WHOLE))
    };
    let mut wait = (threads - 1) * WHOLE;
    for _ in 0..ROUNDS {
        let queue: u64 = together.iter().map(|set| at_bus(wait, set)).sum();
        wait = queue * (threads - 1) / threads;
    }
    let gets_on = |set: &Alike| u64::from(set.threads) * (WHOLE * WHOLE / (WHOLE + wait * set.part / WHOLE));
    together.iter().map(gets_on).sum()
}

fn threads(together: &[Alike]) -> u32 {
    together.iter().map(|set| set.threads).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        // Exactly: 4 / 4.07 of the bus, so 1.97 threads' worth of work at 0.49 each.
        let progress = progress(&[alike(4, 49)]);
        assert!(progress > WHOLE * 18 / 10 && progress < WHOLE * 21 / 10, "{progress}");
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
            let mut sets: Vec<Alike> = sets.iter().map(|(threads, part)| Alike { threads: *threads, part: *part }).collect();
            let before = progress(&sets);
            sets.push(Alike { threads: 1, part: more });
            let after = progress(&sets);
            prop_assert!(after <= before + WHOLE + 64, "{before} {after}");
        }

        /// What one way makes of demands, the other takes back, within a tenth, where no thread wants more than half.
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
                prop_assert!(found.abs_diff(set.part) <= set.part / 4 + 16, "{found} for {} at {}", set.part, rate.part);
            }
        }
    }
}
