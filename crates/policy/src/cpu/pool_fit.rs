//! Pool placement for units: in which pool a unit takes its next CPUs.
//!
//! Problem: each unit should have pools of its own, and as few as possible. Both should hold when CPUs are assigned, and whole
//! pools should be left for units that come later.
//!
//! Terms: a pool is *unused* while no unit has home CPUs in it. A need *spans* K pools if the K pools with the most free CPUs
//! can hold it, and no K - 1 can. A pool's *surroundings* are its node or, where each node is one pool, its socket; they *fit*
//! a need best if their unused pools have the fewest free CPUs that suffice, or else the most.
//!
//! Algorithm, in order of precedence (best fit, so that large gaps stay whole):
//!
//! | the need spans | the unit | candidates | choice |
//! | --- | --- | --- | --- |
//! | one pool | has no CPUs | pools that hold it | fewest units, fewest free CPUs, best-fitting surroundings |
//! | one pool | has CPUs | pools that hold it | nearest, does not break up an unused pool, fewest free CPUs, fewest units |
//! | K pools | has no CPUs | pools after which the rest spans K - 1 | best-fitting surroundings, fewest units, most free CPUs |
//! | K pools | has CPUs | pools after which the rest spans K - 1 | unused, nearest, fewest units, most free CPUs |
//!
//! Ties go to the first pool. All free CPUs of the chosen pool are taken, up to the need, and the rest is the next need.
//!
//! Example: unused pools of 8, 8 and 4 CPUs. A unit of 3 starts in the pool of 4. One of 6 starts in the first pool of 8, the
//! next of 6 in the second. Another of 1 starts in the pool of 4, where 1 CPU is left.
//!
//! Properties: a need that spans K pools is met in K. A pool is chosen if and only if one has a free CPU. A choice costs
//! O(pools + CPUs of the largest pool).
//!
//! Limits: the nearness of a pool that covers several nodes is judged by its first CPU.
//!
//! Source: seed 001, sections 2 (isolation, localization) and 6.2 (fragments; fewest jobs). Best fit is ours: unlike a job's, a
//! unit's need is known when it starts.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Free CPUs and units by pool.
#[derive(Debug)]
pub(super) struct PoolFit {
    free: Vec<usize>,
    units: Vec<u32>,
    /// The number of pools with exactly this many free CPUs.
    pools_with: Vec<usize>,
    /// The surroundings of each pool: a node or a socket, densely numbered from 0.
    surroundings: Vec<usize>,
}

impl PoolFit {
    /// Unused pools with this many free CPUs each, and their surroundings.
    pub(super) fn new(free: Vec<usize>, surroundings: Vec<usize>) -> PoolFit {
        let mut pools_with = vec![0; free.iter().max().map_or(0, |max| max + 1)];
        for free in &free {
            pools_with[*free] += 1;
        }
        PoolFit { units: vec![0; free.len()], free, pools_with, surroundings }
    }

    /// Takes a CPU of a pool.
    pub(super) fn take(&mut self, pool: usize) {
        self.pools_with[self.free[pool]] -= 1;
        self.free[pool] -= 1;
        self.pools_with[self.free[pool]] += 1;
    }

    /// Counts one more unit in a pool.
    pub(super) fn enter(&mut self, pool: usize) {
        self.units[pool] += 1;
    }

    pub(super) fn free(&self, pool: usize) -> usize {
        self.free[pool]
    }

    /// The pool for a unit's next CPUs; `None` if no CPU is free. `near` gives the nearness of a pool to the unit's CPUs;
    /// `None`: the unit has no CPUs.
    pub(super) fn choose(&self, need: usize, near: Option<impl Fn(usize) -> u32>) -> Option<usize> {
        let (span, least) = self.span(need);
        let candidates = (0..self.free.len()).filter(|pool| self.free[*pool] >= least.max(1));
        let (free, units) = (|pool: usize| self.free[pool], |pool: usize| self.units[pool]);
        match (span, near) {
            (1, None) => {
                let fit = self.fit(need);
                candidates.min_by_key(|pool| (units(*pool), free(*pool), fit(*pool)))
            }
            (1, Some(near)) => candidates.min_by_key(|pool| {
                let breaks = units(*pool) == 0 && free(*pool) > need;
                (Reverse(near(*pool)), breaks, free(*pool), units(*pool))
            }),
            (_, None) => {
                let fit = self.fit(need);
                candidates.min_by_key(|pool| (fit(*pool), units(*pool), Reverse(free(*pool))))
            }
            (_, Some(near)) => candidates.min_by_key(|pool| {
                (units(*pool) > 0, Reverse(near(*pool)), units(*pool), Reverse(free(*pool)))
            }),
        }
    }

    /// How many pools a need spans, and how many free CPUs the first of them must have, so that the rest spans one pool less. A
    /// need larger than all free CPUs spans every pool that has any.
    fn span(&self, need: usize) -> (usize, usize) {
        let (mut span, mut rest) = (0, need);
        for (free, pools_with) in
            self.pools_with.iter().enumerate().skip(1).rev().filter(|(_, pools_with)| **pools_with > 0)
        {
            // Pools of this size, up to the one that holds the rest.
            let before = (rest.div_ceil(free).saturating_sub(1)).min(*pools_with);
            span += before;
            rest -= before * free;
            if before < *pools_with {
                return (span + 1, rest);
            }
        }
        (span, 1)
    }

    /// Sort key of a pool by its surroundings' fit: fewest free CPUs that suffice, else most.
    fn fit(&self, need: usize) -> impl Fn(usize) -> (bool, usize) + '_ {
        let mut unused = vec![0; self.surroundings.iter().max().map_or(0, |max| max + 1)];
        for pool in (0..self.free.len()).filter(|pool| self.units[*pool] == 0) {
            unused[self.surroundings[pool]] += self.free[pool];
        }
        move |pool| {
            let free = unused[self.surroundings[pool]];
            (free < need, if free < need { usize::MAX - free } else { free })
        }
    }
}

/// The surroundings of pools: nodes if a node has several pools, else sockets.
pub(super) fn surroundings(nodes: Vec<usize>, sockets: Vec<usize>) -> Vec<usize> {
    let mut distinct = nodes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < nodes.len() { nodes } else { sockets }
}
