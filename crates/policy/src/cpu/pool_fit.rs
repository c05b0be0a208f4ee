//! Pool placement for units: the choice of the pool in which a unit takes its next CPUs.
//!
//! Problem: each unit should have its CPUs in as few pools as possible, and share these pools with no other
//! unit. Besides, whole pools should stay free for units that come later.
//!
//! Terms: a unit's *need* is the number of CPUs that the unit still lacks. A pool is *unused* while no unit
//! has home CPUs in it. A need *spans* K pools if the K pools with the most free CPUs together have enough
//! free CPUs for the need, and no K - 1 pools have. A pool's *surroundings* are its node or, where each node
//! is one pool, its socket. The *gap* of a node or socket is the number of free CPUs in its unused pools. The
//! best-fitting surroundings of a need are those with the smallest gap that covers the need or, if no gap
//! does, those with the largest gap.
//!
//! Algorithm: best fit, so that large gaps stay whole. In the table, a *large enough* pool has at least as
//! many free CPUs as the need. A *useful* pool has enough free CPUs that, once they are taken, the remaining
//! need spans one pool fewer. The last column lists the criteria of the choice; each criterion decides only
//! between pools that are equal by the criteria before it.
//!
//! | the need spans | the unit | candidates | criteria |
//! | --- | --- | --- | --- |
//! | one pool | has no CPUs | large enough pools | fewest units, fewest free CPUs, best-fitting surroundings |
//! | one pool | has CPUs | large enough pools | nearest, no unused pool is split, fewest free CPUs, fewest units |
//! | K pools | has no CPUs | useful pools | best-fitting surroundings, fewest units, most free CPUs |
//! | K pools | has CPUs | useful pools | unused, nearest, fewest units, most free CPUs |
//!
//! Pools that are equal by all criteria: the first is chosen. The unit takes all free CPUs of the chosen
//! pool, but no more than it needs. If it needs more, the next choice is made for the remainder.
//!
//! Example: unused pools of 8, 8 and 4 CPUs, and four units that need 3, 6, 6 and 1 CPUs, in this order. The
//! first unit starts in the pool of 4, the second in the first pool of 8, the third in the second pool of 8.
//! By then each pool has one unit, and the pool of 4 has the fewest free CPUs, namely 1: the fourth unit
//! starts there.
//!
//! Properties: a need that spans K pools is met with CPUs of K pools. If any pool has a free CPU, a pool is
//! chosen. A choice costs O(pools + CPUs of the largest pool).
//!
//! Limits: if a pool covers several nodes, its nearness is that of its first CPU.
//!
//! Source: seed 001, sections 2 (isolation, localization) and 6.2 (fragments; fewest jobs). Best fit is ours:
//! unlike a job's, a unit's need is known when it starts.

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
    /// Pools without units. For each pool, `free` has its number of free CPUs, `surroundings` its node or
    /// socket.
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

    /// Chooses the pool for a unit's next CPUs; `None` if no CPU is free. `near` maps a pool to its nearness
    /// to the unit's CPUs: larger is nearer. Without CPUs yet, the unit passes `None`.
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

    /// How many pools K a need spans, and how many free CPUs a pool must have so that, once these are taken,
    /// the remaining need spans K - 1 pools.
    ///
    /// For example, with 8, 4 and 2 free CPUs in three pools, a need of 10 spans two pools. The pool of 8 may
    /// be the second of these; then the pool chosen first must have at least 2 free CPUs. The result is `(2,
    /// 2)`.
    ///
    /// A need that exceeds all free CPUs spans every pool with a free CPU; any of these may be chosen first.
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

    /// A function that maps a pool to a sort key: the smaller the key, the better the pool's surroundings fit
    /// the need. Surroundings whose unused pools have enough free CPUs come first, in ascending order of
    /// these free CPUs. The other surroundings follow, in descending order.
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

/// The surroundings of each pool, from the node and the socket of each pool. If any node has several pools,
/// the surroundings are the nodes, else the sockets.
pub(super) fn surroundings(nodes: Vec<usize>, sockets: Vec<usize>) -> Vec<usize> {
    let mut distinct = nodes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < nodes.len() { nodes } else { sockets }
}
