//! A histogram of latencies.

use std::collections::BTreeMap;

use crate::Time;

/// A histogram of latencies, each rounded down by less than one part in 64.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Latencies {
    by_length: BTreeMap<Time, u64>,
    count: u64,
    sum_ns: Time,
    longest_ns: Time,
}

impl Latencies {
    /// Adds a latency, rounded to its seven highest bits.
    pub fn add(&mut self, span: Time) {
        let dropped_bits = span.checked_ilog2().unwrap_or(0).saturating_sub(6);
        *self.by_length.entry(span >> dropped_bits << dropped_bits).or_default() += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(span);
        self.longest_ns = self.longest_ns.max(span);
    }

    /// Adds all latencies of another histogram.
    pub fn merge(&mut self, other: &Latencies) {
        for (span, count) in &other.by_length {
            *self.by_length.entry(*span).or_default() += count;
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum, in ns.
    pub fn sum_ns(&self) -> Time {
        self.sum_ns
    }

    /// The longest, in ns.
    pub fn longest_ns(&self) -> Time {
        self.longest_ns
    }

    /// The quantile at `thousandths`, in ns; 0 without latencies.
    pub fn quantile_ns(&self, thousandths: u64) -> Time {
        let rank = (self.count * thousandths).div_ceil(1_000).max(1);
        let mut cumulative = 0;
        let reaches_rank = |(_, count): &(&Time, &u64)| {
            cumulative += **count;
            cumulative >= rank
        };
        self.by_length.iter().find(reaches_rank).map_or(0, |(span, _)| *span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_hand() {
        let (mut low, mut high) = (Latencies::default(), Latencies::default());
        for span in 1..=100 {
            let half = if span <= 50 { &mut low } else { &mut high };
            half.add(span * 1_000);
        }
        low.merge(&high);
        // The 50th and the 99th of a hundred. 50,000 is below 2^16, so it is rounded to a multiple of 2^9;
        // 99,000 to one of 2^10.
        assert_eq!((low.quantile_ns(500), low.quantile_ns(990)), (50_000 >> 9 << 9, 99_000 >> 10 << 10));
        assert_eq!((low.count(), low.sum_ns(), low.longest_ns()), (100, 5_050_000, 100_000));
        assert_eq!(Latencies::default().quantile_ns(500), 0);
    }
}
