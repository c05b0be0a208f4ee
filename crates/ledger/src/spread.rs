//! A log-linear histogram of times in constant space: each bucket is at most an eighth wider than the one
//! before.

/// Buckets per power of two.
const PARTS: u64 = 8;
const PARTS_BITS: u32 = PARTS.ilog2();

/// Counts by bucket, and the longest time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Spread {
    counts: Vec<u64>,
    longest: u64,
}

/// The bucket of a time.
fn bucket(time: u64) -> usize {
    let doublings = u64::from((time | 1).ilog2().saturating_sub(PARTS_BITS));
    usize::try_from(doublings * PARTS + (time >> doublings)).unwrap_or(usize::MAX)
}

/// The longest time in a bucket.
fn end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let doublings = (bucket / PARTS).saturating_sub(1);
    let part = u128::from(bucket - doublings * PARTS);
    u64::try_from(((part + 1) << doublings) - 1).unwrap_or(u64::MAX)
}

impl Spread {
    pub(crate) fn add(&mut self, time: u64) {
        let bucket = bucket(time);
        self.counts.resize(self.counts.len().max(bucket + 1), 0);
        self.counts[bucket] += 1;
        self.longest = self.longest.max(time);
    }

    pub(crate) fn merge(&mut self, other: &Spread) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (own, count) in self.counts.iter_mut().zip(&other.counts) {
            *own += count;
        }
        self.longest = self.longest.max(other.longest);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The quantile at `millionths`, overestimated by at most an eighth. 0 without any times.
    pub(crate) fn within(&self, millionths: u64) -> u64 {
        let rank = (u128::from(self.count()) * u128::from(millionths)).div_ceil(1_000_000);
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += u128::from(*count);
            below >= rank
        });
        found.filter(|_| rank > 0).map_or(0, |bucket| end(bucket).min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other() {
        for time in (0..5_000).chain([1 << 40, u64::MAX - 1, u64::MAX]) {
            assert!(end(bucket(time)) >= time, "{time}");
            assert!(bucket(time) == 0 || end(bucket(time) - 1) < time, "{time}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_within_an_eighth(times in proptest::collection::vec(0u64..1_000_000_000, 1..200), part in 1u64..=1_000_000) {
            let mut spread = Spread::default();
            for time in &times {
                spread.add(*time);
            }
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let rank = (times.len() as u64 * part).div_ceil(1_000_000);
            let exact = sorted[usize::try_from(rank).unwrap_or(1) - 1];
            let found = spread.within(part);
            prop_assert!(found >= exact && found <= exact + exact / PARTS + 1, "{} for {}", found, exact);
        }
    }
}
