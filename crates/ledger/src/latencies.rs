//! A histogram of latencies that takes little space while few different lengths occur, and whose quantiles
//! are off by less than one part in 64.

use std::collections::BTreeMap;

/// Latencies in ns, each counted at the lower end of its class. A class is narrower than one part in 64.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Latencies {
    classes: BTreeMap<u64, u64>,
    count: u64,
    sum_ns: u64,
    longest_ns: u64,
}

impl Latencies {
    /// Adds a latency. Its class has its seven highest bits.
    pub fn add(&mut self, ns: u64) {
        let dropped_bits = ns.checked_ilog2().unwrap_or(0).saturating_sub(6);
        *self.classes.entry(ns >> dropped_bits << dropped_bits).or_default() += 1;
        self.add_sum(1, ns);
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds latencies of which only number and sum are known. They have no part in quantiles' order, so a
    /// quantile is known only if the others suffice.
    pub fn add_sum(&mut self, count: u64, sum_ns: u64) {
        self.count = self.count.saturating_add(count);
        self.sum_ns = self.sum_ns.saturating_add(sum_ns);
    }

    /// Adds all latencies of another histogram.
    pub fn merge(&mut self, other: &Latencies) {
        for (ns, count) in &other.classes {
            *self.classes.entry(*ns).or_default() += count;
        }
        self.add_sum(other.count, other.sum_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest of those that are known one by one.
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }

    /// Their mean; `None` without latencies.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// The quantile at `thousandths`; `None` without latencies, or if too few are known one by one.
    pub fn quantile_ns(&self, thousandths: u64) -> Option<u64> {
        quantile(self.classes.iter().map(|(ns, count)| (*ns, *count)), self.count, thousandths)
    }
}

/// The class of the quantile at `thousandths` of `count` values, from the classes in ascending order and
/// their numbers of values. `None` without values, or if the classes have fewer of them.
pub fn quantile(classes: impl IntoIterator<Item = (u64, u64)>, count: u64, thousandths: u64) -> Option<u64> {
    let rank = (u128::from(count) * u128::from(thousandths)).div_ceil(1_000).max(1);
    let mut cumulative = 0;
    classes.into_iter().find_map(|(class, number)| {
        cumulative += u128::from(number);
        (cumulative >= rank).then_some(class)
    })
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
        assert_eq!(low.quantile_ns(500), Some(50_000 >> 9 << 9));
        assert_eq!(low.quantile_ns(990), Some(99_000 >> 10 << 10));
        assert_eq!((low.count(), low.mean_ns(), low.longest_ns()), (100, Some(50_500), 100_000));
        let none = Latencies::default();
        assert_eq!((none.quantile_ns(500), none.mean_ns()), (None, None));
    }

    #[test]
    fn a_quantile_needs_enough_latencies_that_are_known() {
        let mut latencies = Latencies::default();
        (0..10).for_each(|_| latencies.add(64));
        latencies.add_sum(10, 100);
        assert_eq!((latencies.quantile_ns(500), latencies.quantile_ns(510)), (Some(64), None));
        assert_eq!((latencies.count(), latencies.sum_ns()), (20, 740));
    }
}
