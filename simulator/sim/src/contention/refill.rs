//! The cost of a cold cache: how long a task refills a CPU's cache when it returns to the CPU or migrates to
//! another.
//!
//! Problem: a task runs fast while the lines that it uses are in its CPU's cache. After other tasks ran
//! there, some of these lines have been evicted; on another CPU all are missing. How long does it take to
//! fetch them again?
//!
//! Terms: a task's *hot set* is the data that it keeps in the cache, at most the whole cache (C bytes). A
//! *stint* is one task's time on a CPU, from a switch to the next.
//!
//! Algorithm: each CPU counts the bytes that its tasks have brought in, and remembers the hot set of its
//! latest task. A task saves the count when it leaves. If other tasks have brought in X bytes when it
//! returns, the fraction X/C of its hot set has been overwritten (all of it if X >= C). The hot set of the
//! latest task is completely cached, so the part of the hot set that does not fit beside it is missing too:
//! the larger of the two amounts counts. Missing data is fetched line by line, and counts as brought in. A
//! new or migrated task misses its whole hot set.
//!
//! Properties: constant work per switch, whatever ran in between. A task that returns with no other task in
//! between pays nothing. No task pays for more than its hot set or the cache. Two tasks that fit the cache
//! together soon pay nothing; two tasks that do not fit pay at every switch for the part that does not fit.
//!
//! Limits: if three or more tasks overflow the cache only together, the computed cost decays to nothing. A
//! stint that is too short to fetch the hot set counts as if it had fetched all of it. For a program that
//! streams through memory, the scenario should give a hot set as large as the cache. The fetches do not load
//! the bus.
//!
//! Source: seed 003, section 3 (programs with a high hit ratio suffer most from migration).

use crate::Time;
use crate::scenario::Cache;

/// How long it takes to fetch `bytes` bytes into the cache, in ns.
#[must_use]
pub fn refill_ns(cache: &Cache, bytes: u64) -> Time {
    bytes.div_ceil(cache.line_bytes.max(1)).saturating_mul(cache.miss_ns)
}

/// The caches of a machine, one per CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caches {
    cache: Cache,
    cpus: Vec<Contents>,
}

/// The state of a CPU's cache when a task left the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    cpu: usize,
    stint: u64,
    brought_in_bytes: u64,
}

/// The model's state of a CPU's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Contents {
    /// The number of the present stint.
    stint: u64,
    /// All bytes that were brought in since the beginning.
    brought_in_bytes: u64,
    /// The hot set of the present or latest task.
    latest_hot_bytes: u64,
}

impl Caches {
    /// Empty caches for `cpus` CPUs.
    pub fn new(cache: &Cache, cpus: usize) -> Self {
        Caches { cache: *cache, cpus: vec![Contents::default(); cpus] }
    }

    /// Begins a task's stint on a CPU. `left` is the cache of the CPU where the task ran before, if any.
    /// Returns the time to fetch the missing part of the task's hot set, in ns.
    #[must_use]
    pub fn arrive(&mut self, cpu: usize, hot_bytes: u64, left: Option<Left>) -> Time {
        let hot = hot_bytes.min(self.cache.bytes);
        let contents = &mut self.cpus[cpu];
        let missing = match left {
            Some(left) if left.cpu == cpu => contents.lost(&left, hot, self.cache.bytes),
            _ => hot,
        };
        contents.stint += 1;
        contents.brought_in_bytes = contents.brought_in_bytes.saturating_add(missing);
        contents.latest_hot_bytes = hot;
        refill_ns(&self.cache, missing)
    }

    /// Ends the stint of a CPU's task. Returns the state to save for the task's next call of
    /// [`Caches::arrive`].
    #[must_use]
    pub fn leave(&self, cpu: usize) -> Left {
        let contents = &self.cpus[cpu];
        Left { cpu, stint: contents.stint, brought_in_bytes: contents.brought_in_bytes }
    }
}

impl Contents {
    /// How much of a task's hot set was evicted since the task left, in bytes. The hot set is at most as
    /// large as the cache.
    fn lost(&self, left: &Left, hot: u64, cache_bytes: u64) -> u64 {
        if left.stint == self.stint {
            return 0;
        }
        let brought_in = (self.brought_in_bytes - left.brought_in_bytes).min(cache_bytes);
        let overwritten = fraction_of(hot, brought_in, cache_bytes);
        let does_not_fit = hot.saturating_add(self.latest_hot_bytes).saturating_sub(cache_bytes);
        overwritten.max(does_not_fit)
    }
}

/// `amount * numerator / denominator`, rounded up. The numerator is at most the denominator.
fn fraction_of(amount: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(amount) * u128::from(numerator);
    u64::try_from(product.div_ceil(u128::from(denominator.max(1)))).unwrap_or(amount)
}

#[cfg(test)]
mod tests;
