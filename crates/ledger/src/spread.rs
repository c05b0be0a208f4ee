//! A log-linear histogram of times. It takes constant space, and its quantiles are off by an eighth at most.
//!
//! Each interval from one power of two to the next is divided into eight buckets of equal width. So the width
//! of a bucket is at most an eighth of the shortest time in it. Each time below 16 has a bucket of its own.

/// Buckets per power of two.
const BUCKETS_PER_DOUBLING: u64 = 8;
const DOUBLING_BITS: u32 = BUCKETS_PER_DOUBLING.ilog2();

/// Counts by bucket, and the longest time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    longest: u64,
}

/// The index of a time's bucket.
fn bucket(time: u64) -> usize {
    let doublings = u64::from((time | 1).ilog2().saturating_sub(DOUBLING_BITS));
    usize::try_from(doublings * BUCKETS_PER_DOUBLING + (time >> doublings)).unwrap_or(usize::MAX)
}

/// The longest time of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let doublings = (bucket / BUCKETS_PER_DOUBLING).saturating_sub(1);
    let mantissa = u128::from(bucket - doublings * BUCKETS_PER_DOUBLING);
    u64::try_from(((mantissa + 1) << doublings) - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    pub(crate) fn add(&mut self, time: u64) {
        let bucket = bucket(time);
        self.counts.resize(self.counts.len().max(bucket + 1), 0);
        self.counts[bucket] += 1;
        self.longest = self.longest.max(time);
    }

    /// Adds all times of another histogram.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, other_count) in self.counts.iter_mut().zip(&other.counts) {
            *count += other_count;
        }
        self.longest = self.longest.max(other.longest);
    }

    /// The number of times added.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The quantile at `millionths`: 500,000 is the median, 1,000,000 the maximum. Overestimated by at most
    /// an eighth; 0 without any times.
    pub(crate) fn quantile(&self, millionths: u64) -> u64 {
        let rank = (u128::from(self.count()) * u128::from(millionths)).div_ceil(1_000_000);
        let mut cumulative = 0;
        let bucket = self.counts.iter().position(|count| {
            cumulative += u128::from(*count);
            cumulative >= rank
        });
        bucket.filter(|_| rank > 0).map_or(0, |bucket| upper_bound(bucket).min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other() {
        for time in (0..5_000).chain([1 << 40, u64::MAX - 1, u64::MAX]) {
            assert!(upper_bound(bucket(time)) >= time, "{time}");
            assert!(bucket(time) == 0 || upper_bound(bucket(time) - 1) < time, "{time}");
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_within_an_eighth(
            times in proptest::collection::vec(0u64..1_000_000_000, 1..200), part in 1u64..=1_000_000,
        ) {
            let mut histogram = Histogram::default();
            for time in &times {
                histogram.add(*time);
            }
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let rank = (times.len() as u64 * part).div_ceil(1_000_000);
            let exact = sorted[usize::try_from(rank).unwrap_or(1) - 1];
            let found = histogram.quantile(part);
            let bound = exact + exact / BUCKETS_PER_DOUBLING + 1;
            prop_assert!(found >= exact && found <= bound, "{} for {}", found, exact);
        }
    }
}
