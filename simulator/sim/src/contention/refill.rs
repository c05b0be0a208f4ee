//! What a task pays for cold caches when it comes back to a CPU, or comes to another one.
//!
//! Problem: a task runs fast while the lines it uses are in its CPU's cache. After others ran there, some of these
//! lines are gone; on another CPU all are. How long does it take to fetch them again?
//!
//! Terms: a task's *hot set* is the data that it keeps in the cache, at most the whole cache (C bytes). A *stint* is one task's
//! time on a CPU, from a switch to the next.
//!
//! Algorithm: each CPU counts the bytes that its tasks had to bring in, and knows the hot set of the latest. A task
//! remembers the count when it leaves. Say that others have brought in X bytes when it returns. Then the part X/C of
//! its hot set has been overwritten (all from X = C on). The hot set of the latest task is all there, so what does not
//! fit beside it is missing too: the larger of the two amounts counts. What is missing is fetched line by line, and
//! counts as brought in. A new task, and one from another CPU, miss all.
//!
//! Properties: constant work per switch, whatever ran in between. A task that returns with no other in between pays
//! nothing. No task pays for more than its hot set or the cache. Two tasks that fit the cache together soon pay
//! nothing; two that do not pay, every time, for what does not fit.
//!
//! Limits: of three or more tasks that overflow the cache only together, the payments fade away. A stint too short to
//! fetch the hot set counts as if it had fetched it. A program that streams through memory should be given a hot set
//! as large as the cache. The fetches do not load the bus.
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

/// A CPU's cache as a task left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    cpu: usize,
    stint: u64,
    brought_in_bytes: u64,
}

/// What is known of a CPU's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Contents {
    /// How many stints there were, with this one.
    stint: u64,
    /// All that they had to bring in, since the beginning.
    brought_in_bytes: u64,
    /// The hot set of this one.
    latest_hot_bytes: u64,
}

impl Caches {
    /// Empty caches for `cpus` CPUs.
    pub fn new(cache: &Cache, cpus: usize) -> Self {
        Caches { cache: *cache, cpus: vec![Contents::default(); cpus] }
    }

    /// A task begins to run on a CPU; where it ran before, if anywhere, is in `left`. How long it fetches what is missing
    /// of its hot set, in ns.
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

    /// The task that runs on a CPU ends its stint: what to remember until it arrives somewhere again.
    #[must_use]
    pub fn leave(&self, cpu: usize) -> Left {
        let contents = &self.cpus[cpu];
        Left { cpu, stint: contents.stint, brought_in_bytes: contents.brought_in_bytes }
    }
}

impl Contents {
    /// How much of its hot set a task has lost since it left, in bytes; the hot set is no larger than the cache.
    fn lost(&self, left: &Left, hot: u64, cache_bytes: u64) -> u64 {
        if left.stint == self.stint {
            return 0;
        }
        let brought_in = (self.brought_in_bytes - left.brought_in_bytes).min(cache_bytes);
        let overwritten = share_of(hot, brought_in, cache_bytes);
        let crowded_out = hot.saturating_add(self.latest_hot_bytes).saturating_sub(cache_bytes);
        overwritten.max(crowded_out)
    }
}

/// `amount` times `part` / `whole`, rounded up; `part` is no larger than `whole`.
fn share_of(amount: u64, part: u64, whole: u64) -> u64 {
    let exact = u128::from(amount) * u128::from(part);
    u64::try_from(exact.div_ceil(u128::from(whole.max(1)))).unwrap_or(amount)
}

#[cfg(test)]
mod tests;
