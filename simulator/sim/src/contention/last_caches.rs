//! The slowdown of tasks that share a last-level cache.
//!
//! Problem: a task that reuses a working set of w bytes is fast while all of it is in the last-level cache.
//! Tasks on other CPUs of the same cache bring in their own working sets. How much of w stays in the cache,
//! and how much slower is the task?
//!
//! Terms: the cache has C bytes. The working sets of all tasks that now run on its CPUs sum to W. `miss` is
//! the extra time per unit of work of a task with none of its working set in the cache.
//!
//! Algorithm: each task *holds* the fraction C / W of its own working set, or all of it if W is at most C. A
//! task that holds h bytes, and would hold a bytes alone, takes this time relative to the time alone:
//!
//! ```text
//! (1 + miss (w - h) / w) / (1 + miss (w - a) / w)        a = min(w, C)
//! ```
//!
//! Properties: a task is not slowed if it is alone, or if all working sets fit. Equal tasks are slowed
//! equally. One more task, or a larger working set of another, makes no task faster. Together, all tasks hold
//! at most C. The slowdown is at most 1 + `miss`. The result depends on the tasks that run now, not on those
//! that ran before.
//!
//! Limits: tasks of one job do not share working sets. A task that begins to run holds its part at once, and
//! a stopped task holds nothing. Cache misses do not load the bus. A streaming program is modelled by its
//! `bus`, and has no working set here.

use commonhold_contract::MILLIONTH;
use commonhold_machine::Machine;
use commonhold_policy::share::part_of;

use crate::scenario::Hardware;

/// The last-level caches of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCaches {
    /// The extra time per unit of work without cached data, in millionths.
    miss: u64,
    /// The cache of each CPU, as an index; and the size of each cache.
    cache_of: Vec<usize>,
    bytes: Vec<u64>,
}

/// A task's occupancy of its cache, and the task's slowdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The bytes of its working set in the cache.
    pub bytes: u64,
    /// The slowdown factor, in millionths.
    pub slowdown: u64,
}

impl LastCaches {
    /// `None` if the machine's description has no cache sizes.
    pub fn new(hardware: &Hardware) -> Option<LastCaches> {
        let machine: &Machine = &hardware.machine;
        machine.cache_bytes()?;
        let index_of = |id: u32| machine.caches.iter().position(|cache| cache.id == id);
        Some(LastCaches {
            miss: hardware.last_cache_miss,
            cache_of: machine.cpus.iter().map(|cpu| index_of(cpu.cache).unwrap_or(0)).collect(),
            bytes: machine.caches.iter().map(|cache| cache.bytes).collect(),
        })
    }

    /// Each task's holding, in the order of `tasks`: each task's CPU, as an index, and its working set in
    /// bytes.
    #[must_use]
    pub fn holdings(&self, tasks: &[(usize, u64)]) -> Vec<Holding> {
        let mut set_sums = vec![0u64; self.bytes.len()];
        for (cpu, set) in tasks {
            let sum = &mut set_sums[self.cache_of[*cpu]];
            *sum = sum.saturating_add(*set);
        }
        let holding = |(cpu, set): &(usize, u64)| {
            let cache = self.cache_of[*cpu];
            let size = self.bytes[cache];
            let bytes = if set_sums[cache] <= size { *set } else { part_of(*set, size, set_sums[cache]) };
            let (now, alone) = (self.work_time(*set, bytes), self.work_time(*set, (*set).min(size)));
            Holding { bytes, slowdown: part_of(now, MILLIONTH, alone).max(MILLIONTH) }
        };
        tasks.iter().map(holding).collect()
    }

    /// The time of a unit of work, in millionths, of a task that holds `held` bytes of its working set `set`.
    /// With all of the working set in the cache it is one million.
    fn work_time(&self, set: u64, held: u64) -> u64 {
        if set == 0 {
            return MILLIONTH;
        }
        MILLIONTH + part_of(self.miss, set - held.min(set), set)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scenario::parse_machine;
    use proptest::prelude::*;

    /// Two caches of 8 MiB, for two CPUs each; a task that misses all takes three times as long.
    fn caches() -> LastCaches {
        let text = "version = 1\nshape = \"cpus:4 caches:2 cache:8MiB\"\n[last_cache]\nmiss = 2\n";
        LastCaches::new(&parse_machine(text).value.unwrap()).unwrap()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn by_hand() {
        // 12 and 4 MiB share 8: 6 and 2, a half of each. Alone, the first has two thirds.
        let holdings = caches().holdings(&[(0, 12 * MIB), (1, 4 * MIB), (2, 8 * MIB), (3, 0)]);
        assert_eq!(holdings.iter().map(|holding| holding.bytes / MIB).collect::<Vec<_>>(), [6, 2, 8, 0]);
        // (1 + 2/2) / (1 + 2/3), 1 + 2/2, and all that it wants.
        assert_eq!(
            holdings.iter().map(|holding| holding.slowdown).collect::<Vec<_>>(),
            [1_200_000, 2_000_000, MILLIONTH, MILLIONTH]
        );
    }

    #[test]
    fn a_machine_that_does_not_say_it_has_no_such_cache() {
        assert_eq!(LastCaches::new(&parse_machine("version = 1\nshape = \"cpus:4\"").value.unwrap()), None);
    }

    fn tasks() -> impl Strategy<Value = Vec<(usize, u64)>> {
        prop::collection::vec((0usize..4, 0u64..32 * MIB), 1..5)
    }

    proptest! {
        #[test]
        fn nobody_gains_by_another(tasks in tasks(), cpu in 0usize..4, set in 0u64..32 * MIB) {
            let caches = caches();
            let before = caches.holdings(&tasks);
            for (task, is) in tasks.iter().zip(&before) {
                prop_assert!((MILLIONTH..=3 * MILLIONTH).contains(&is.slowdown));
                let alone = caches.holdings(std::slice::from_ref(task))[0];
                prop_assert_eq!(alone.slowdown, MILLIONTH);
                prop_assert!(is.bytes <= alone.bytes && is.bytes <= task.1);
            }
            for cache in 0..2 {
                let here = tasks.iter().zip(&before).filter(|(task, _)| task.0 / 2 == cache);
                prop_assert!(here.map(|(_, is)| is.bytes).sum::<u64>() <= 8 * MIB);
            }
            let mut more = tasks.clone();
            more.push((cpu, set));
            for (after, before) in caches.holdings(&more).iter().zip(&before) {
                prop_assert!(after.bytes <= before.bytes && after.slowdown >= before.slowdown);
            }
        }
    }
}
