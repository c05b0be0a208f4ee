//! Sums over units and CPUs, and what is read from them.

use super::{Account, Cause, Had, LATENCIES, Unit};

impl Unit {
    /// Its call-backs since the start.
    pub fn call_backs(&self) -> CallBacks {
        let classes = self.recall_classes.map(u64::from);
        CallBacks { count: self.recalls, sum_ns: self.recall_ns, max_ns: self.recall_ns_max, classes }
    }
}

/// A unit's call-backs of lent CPUs: how many, and how long they took, from the call to the first task of its own that ran
/// there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallBacks {
    /// How many.
    pub count: u64,
    /// Their times summed, in ns.
    pub sum_ns: u64,
    /// The longest, in ns.
    pub max_ns: u64,
    /// How many took less than 1.024 us, 2.048 us, and so on, doubling; the last class has no end.
    pub classes: [u64; LATENCIES],
}

impl CallBacks {
    /// By how long they took: the least of the class in ns, what it is below (nothing: the class has no end), and how many.
    pub fn classes(&self) -> impl Iterator<Item = (u64, Option<u64>, u64)> + '_ {
        self.classes.iter().enumerate().map(|(class, count)| {
            let from = if class == 0 { 0 } else { 512 << class };
            (from, (class + 1 < LATENCIES).then_some(1024 << class), *count)
        })
    }

    /// A time that this part of them (in millionths) did not exceed, in ns: the upper end of its class, and no more than
    /// the longest. Nothing where none was called back.
    pub fn within_ns(&self, millionths: u64) -> Option<u64> {
        let all: u64 = self.classes.iter().sum();
        let wanted = (all * millionths).div_ceil(1_000_000).max(1);
        let mut sum = 0;
        let class = self.classes.iter().position(|count| {
            sum += count;
            sum >= wanted
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
    /// CPU time of its tasks, wherever.
    pub fn used_ns(&self) -> u64 {
        self.home_ns + self.borrowed_ns + self.visiting_ns + self.shared_ns
    }

    /// What its tasks waited for this, before they came to run.
    pub fn waited_ns(&self, cause: Cause) -> u64 {
        self.waited_ns[cause as usize]
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
    fn a_part_of_the_call_backs_took_no_longer_than_its_class_ends() {
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
        // No class reaches beyond the longest.
        some.max_ns = 1_000_000;
        assert_eq!(some.within_ns(990_000), Some(1_000_000));
    }
}
