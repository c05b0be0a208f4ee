//! Pool placement for units: the choice of the pool in which a unit takes its next CPUs.
//!
//! Problem: each unit should have pools of its own, and as few as possible. Besides, whole pools should be left for units that
//! come later.
//!
//! Terms: a unit's *need* is the number of CPUs that it still lacks. A pool is *unused* while no unit has home CPUs in it. A
//! need *spans* K pools if the K pools with the most free CPUs can hold it, and no K - 1 pools can. A pool's *surroundings* are
//! its node or, where each node is one pool, its socket. Surroundings *fit* a need best if their unused pools have the fewest
//! free CPUs that suffice; if none suffice, those with the most fit best.
//!
//! Algorithm: best fit, so that large gaps stay whole. Each choice lists its criteria in order of precedence:
//!
//! | the need spans | the unit | candidates | choice |
//! | --- | --- | --- | --- |
//! | one pool | has no CPUs | pools that hold it | fewest units, fewest free CPUs, best-fitting surroundings |
//! | one pool | has CPUs | pools that hold it | nearest, does not split an unused pool, fewest free CPUs, fewest units |
//! | K pools | has no CPUs | pools after which the rest spans K - 1 | best-fitting surroundings, fewest units, most free CPUs |
//! | K pools | has CPUs | pools after which the rest spans K - 1 | unused, nearest, fewest units, most free CPUs |
//!
//! Ties go to the first pool. The unit takes all free CPUs of the chosen pool, up to its need, and the remainder is its next
//! need.
//!
//! Example: unused pools of 8, 8 and 4 CPUs, and units that need 3, 6, 6 and 1 CPUs. The first starts in the pool of 4, the
//! second in the first pool of 8, the third in the second pool of 8. The last starts in the pool of 4, where 1 CPU is left: all
//! pools have one unit, and this one has the fewest free CPUs.
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

/// The number of free CPUs and of units in each pool.
#[derive(Debug)]
pub(super) struct PoolFit {
    free: Vec<usize>,
    units: Vec<u32>,
    /// `pools_with[n]`: how many pools have exactly n free CPUs.
    pools_with: Vec<usize>,
    /// The surroundings of each pool: a node or a socket, densely numbered from 0.
    surroundings: Vec<usize>,
}

impl PoolFit {
    /// Pools without units. `free` has the number of free CPUs of each, `surroundings` its node or socket.
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

    /// The number of free CPUs in a pool.
    pub(super) fn free(&self, pool: usize) -> usize {
        self.free[pool]
    }

    /// The pool for a unit's next CPUs; `None` if no CPU is free. `near` gives the nearness of a pool to the CPUs that the unit
    /// has; it is `None` if the unit has no CPUs yet.
    pub(super) fn choose(&self, need: usize, near: Option<impl Fn(usize) -> u32>) -> Option<usize> {
        let (span, free_min) = self.span(need);
        let candidates = (0..self.free.len()).filter(|pool| self.free[*pool] >= free_min.max(1));
        let (free, units) = (|pool: usize| self.free[pool], |pool: usize| self.units[pool]);
        match (span, near) {
            (1, None) => {
                let surroundings_fit = self.surroundings_fit(need);
                candidates.min_by_key(|pool| (units(*pool), free(*pool), surroundings_fit(*pool)))
            }
            (1, Some(near)) => candidates.min_by_key(|pool| {
                let splits_unused = units(*pool) == 0 && free(*pool) > need;
                (Reverse(near(*pool)), splits_unused, free(*pool), units(*pool))
            }),
            (_, None) => {
                let surroundings_fit = self.surroundings_fit(need);
                candidates.min_by_key(|pool| (surroundings_fit(*pool), units(*pool), Reverse(free(*pool))))
            }
            (_, Some(near)) => candidates.min_by_key(|pool| {
                (units(*pool) > 0, Reverse(near(*pool)), units(*pool), Reverse(free(*pool)))
            }),
        }
    }

    /// How many pools a need spans, and how many free CPUs the first of these pools must have at least, so that the remainder
    /// spans one pool less. A need larger than all free CPUs spans every pool that has any, and each of these may come first.
    ///
    /// For example, a need of 10 with free pools of 8, 4 and 2 spans two pools: 8 and at least 2. So the first must have 2.
    fn span(&self, need: usize) -> (usize, usize) {
        let (mut span, mut remaining) = (0, need);
        let largest_first = self.pools_with.iter().enumerate().skip(1).rev();
        for (free, pools_with) in largest_first.filter(|(_, pools_with)| **pools_with > 0) {
            // How many pools of this size are filled before the pool that holds the remainder.
            let filled = (remaining.div_ceil(free).saturating_sub(1)).min(*pools_with);
            span += filled;
            remaining -= filled * free;
            if filled < *pools_with {
                return (span + 1, remaining);
            }
        }
        (span, 1)
    }

    /// The sort key of a pool by how well its surroundings fit a need: among surroundings whose unused pools can hold the need,
    /// those with the fewest free CPUs come first; then the others, those with the most free CPUs first.
    fn surroundings_fit(&self, need: usize) -> impl Fn(usize) -> (bool, usize) + '_ {
        let mut free_in_unused = vec![0; self.surroundings.iter().max().map_or(0, |max| max + 1)];
        for pool in (0..self.free.len()).filter(|pool| self.units[*pool] == 0) {
            free_in_unused[self.surroundings[pool]] += self.free[pool];
        }
        move |pool| {
            let free = free_in_unused[self.surroundings[pool]];
            (free < need, if free < need { usize::MAX - free } else { free })
        }
    }
}

/// The surroundings of pools, from the node and the socket of each: nodes if any node has several pools, else sockets.
pub(super) fn surroundings(nodes: Vec<usize>, sockets: Vec<usize>) -> Vec<usize> {
    let mut distinct = nodes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < nodes.len() { nodes } else { sockets }
}
