//! Sums of counters over units and CPUs, and statistics of these.

use super::{Account, Cause, Had, Holder, LATENCIES, Unit};

impl Unit {
    /// Counts and latencies of the unit's call-backs since the start.
    pub fn call_backs(&self) -> CallBacks {
        let classes = self.recall_classes.map(u64::from);
        CallBacks { count: self.recalls, sum_ns: self.recall_ns, max_ns: self.recall_ns_max, classes }
    }
}

/// A unit's call-backs of lent CPUs. The latency of a call-back lasts until the unit's first task runs on the
/// CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallBacks {
    /// The number of call-backs.
    pub count: u64,
    /// The sum of their latencies, in ns.
    pub sum_ns: u64,
    /// The longest latency, in ns.
    pub max_ns: u64,
    /// The histogram of latencies: below 1.024 us, below 2.048 us, and so on, doubling; the last class is
    /// unbounded.
    pub classes: [u64; LATENCIES],
}

impl CallBacks {
    /// The histogram of latencies. Of each class: the lower bound in ns, inclusive; the upper bound,
    /// exclusive, or `None` for the unbounded class; and the number of call-backs.
    pub fn classes(&self) -> impl Iterator<Item = (u64, Option<u64>, u64)> + '_ {
        self.classes.iter().enumerate().map(|(class, count)| {
            let lower_bound = if class == 0 { 0 } else { 512 << class };
            (lower_bound, (class + 1 < LATENCIES).then_some(1024 << class), *count)
        })
    }

    /// The number of latencies in the classes that lie above a bound, in ns. Latencies in the bound's own
    /// class do not count, though they may exceed it.
    pub fn longer_than(&self, ns: u64) -> u64 {
        self.classes().filter(|(lower_bound, _, _)| *lower_bound >= ns).map(|(_, _, count)| count).sum()
    }

    /// An upper bound of a quantile of the latency, in ns; the quantile is in millionths. The bound is the
    /// upper end of the quantile's class, or the longest latency if that is less. `None` without call-backs.
    pub fn within_ns(&self, millionths: u64) -> Option<u64> {
        let count: u64 = self.classes.iter().sum();
        let rank = (count * millionths).div_ceil(1_000_000).max(1);
        let mut cumulative = 0;
        let class = self.classes.iter().position(|count| {
            cumulative += count;
            cumulative >= rank
        })?;
        Some(if class + 1 < LATENCIES { self.max_ns.min(1024 << class) } else { self.max_ns })
    }
}

impl std::ops::AddAssign for CallBacks {
    fn add_assign(&mut self, other: CallBacks) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        for (class, count) in self.classes.iter_mut().zip(other.classes) {
            *class += count;
        }
    }
}

impl std::ops::AddAssign for Had {
    fn add_assign(&mut self, other: Had) {
        self.met += other.met;
        self.missed += other.missed;
        self.violated += other.violated;
    }
}

impl Account {
    /// CPU time of the unit's tasks on all CPUs.
    pub fn used_ns(&self) -> u64 {
        self.home_ns + self.borrowed_ns + self.visiting_ns + self.shared_ns
    }

    /// How long the unit's tasks waited for one cause before they were dispatched, in ns.
    pub fn waited_ns(&self, cause: Cause) -> u64 {
        self.waited_ns[cause as usize]
    }

    /// How long the unit's tasks waited while `holder` had the CPU that they got, in ns.
    pub fn waited_for_ns(&self, holder: Holder) -> u64 {
        self.waited_for_ns[holder as usize]
    }
}

impl std::ops::AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.home_ns += other.home_ns;
        self.borrowed_ns += other.borrowed_ns;
        self.visiting_ns += other.visiting_ns;
        self.shared_ns += other.shared_ns;
        self.lent_ns += other.lent_ns;
        self.visited_ns += other.visited_ns;
        for (waited, more) in self.waited_ns.iter_mut().zip(other.waited_ns) {
            *waited += more;
        }
        for (waited, more) in self.waited_for_ns.iter_mut().zip(other.waited_for_ns) {
            *waited += more;
        }
        self.moved_cache += other.moved_cache;
        self.moved_node += other.moved_node;
        self.moved_far += other.moved_far;
        self.strays += other.strays;
        self.switches += other.switches;
        self.rescues += other.rescues;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_the_end_of_its_class_and_the_longest_latency() {
        let mut some = CallBacks { count: 100, sum_ns: 0, max_ns: 5_000_000, classes: [0; LATENCIES] };
        assert_eq!(some.within_ns(500_000), None);
        (some.classes[3], some.classes[10], some.classes[LATENCIES - 1]) = (50, 49, 1);
        assert_eq!(some.within_ns(500_000), Some(8_192));
        assert_eq!(some.within_ns(990_000), Some(1_048_576));
        assert_eq!(some.within_ns(1_000_000), Some(5_000_000));
        let classes: Vec<_> = some.classes().filter(|(_, _, count)| *count > 0).collect();
        assert_eq!(
            classes,
            [(4_096, Some(8_192), 50), (524_288, Some(1_048_576), 49), (4_294_967_296, None, 1)]
        );
        assert_eq!(some.classes().next(), Some((0, Some(1_024), 0)));
        assert_eq!([0, 4_096, 4_097, 524_288, 600_000].map(|ns| some.longer_than(ns)), [100, 100, 50, 50, 1]);
        // No class reaches beyond the longest.
        some.max_ns = 1_000_000;
        assert_eq!(some.within_ns(990_000), Some(1_000_000));
    }
}
