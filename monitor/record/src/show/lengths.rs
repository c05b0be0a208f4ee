//! A histogram of lengths of time.

use std::collections::BTreeMap;

/// Lengths in ns, each counted at the lower end of its class. A class is narrower than one part in 64.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    classes: BTreeMap<u64, u64>,
    count: u64,
    sum_ns: u64,
}

impl Lengths {
    /// Adds a length.
    pub(super) fn add(&mut self, ns: u64) {
        let dropped_bits = ns.checked_ilog2().unwrap_or(0).saturating_sub(6);
        *self.classes.entry(ns >> dropped_bits << dropped_bits).or_default() += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Adds lengths of which only number and sum are known.
    pub(super) fn add_sum(&mut self, count: u64, sum_ns: u64) {
        self.count = self.count.saturating_add(count);
        self.sum_ns = self.sum_ns.saturating_add(sum_ns);
    }

    /// Adds all lengths of another histogram.
    pub(super) fn merge(&mut self, other: &Lengths) {
        for (ns, count) in &other.classes {
            *self.classes.entry(*ns).or_default() += count;
        }
        self.add_sum(other.count, other.sum_ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The mean; `None` without lengths.
    pub(super) fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// The 99th percentile; `None` without lengths, or if only sums are known.
    pub(super) fn p99_ns(&self) -> Option<u64> {
        p99(self.classes.iter().map(|(ns, count)| (*ns, *count)), self.count)
    }
}

/// The class of the 99th percentile of `count` lengths, given the classes in ascending order. `None` if these
/// have fewer lengths.
pub(super) fn p99(classes: impl Iterator<Item = (u64, u64)>, count: u64) -> Option<u64> {
    let rank = (u128::from(count) * 99).div_ceil(100).max(1);
    let mut counted = 0;
    classes.into_iter().find_map(|(class, n)| {
        counted += u128::from(n);
        (counted >= rank).then_some(class)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_by_hand() {
        let mut lengths = Lengths::default();
        (1..=100).for_each(|ns| lengths.add(ns * 1_000));
        // The 99th of a hundred: 99,000 is below 2^17, so it is rounded down to a multiple of 2^10.
        assert_eq!(lengths.p99_ns(), Some(99_000 >> 10 << 10));
        assert_eq!((lengths.count(), lengths.mean_ns()), (100, Some(50_500)));
        // Of most lengths only the sum is known.
        lengths.add_sum(100, 0);
        assert_eq!(lengths.p99_ns(), None);
        assert_eq!((Lengths::default().mean_ns(), Lengths::default().p99_ns()), (None, None));
    }
}
