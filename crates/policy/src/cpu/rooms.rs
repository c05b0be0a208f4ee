//! Which pool a unit takes CPUs in.
//!
//! Problem: units should be isolated from each other as jobs are, each in pools of its own, and the CPUs of one unit should
//! lie in as few pools as can be. Both should hold when CPUs are dealt out, and leave whole pools for units that come later.
//!
//! Terms: a pool's *room* is how many CPUs of it are free. Its *units* are those that have home CPUs in it. A pool is
//! *nobody's* while it has none. What a unit needs *takes* K pools where the K roomiest hold it, and no K - 1.
//!
//! Example: pools of 8, 8 and 4 CPUs, all nobody's. A unit of 3 begins in the pool of 4. One of 6 begins in the first pool
//! of 8, the next of 6 in the second. One more of 1 begins in the pool of 4, where 1 CPU is left for it.
//!
//! Algorithm:
//! 1. What takes one pool, for a unit without CPUs: of the pools with room enough the one with the fewest units; of these
//!    the one with the least room; of these the one whose node or socket has the least room in nobody's pools that is
//!    enough.
//! 2. What takes one pool, for a unit that has some: of the pools with room enough the nearest. Of these one that is
//!    nobody's last, unless it is filled; of these the one with the least room, and of these the one with the fewest units.
//! 3. What takes several: only pools which leave a rest that takes one pool less. For a unit without CPUs, of these the ones
//!    in the node or socket that fits best, as in 1; for a unit that has some, nobody's before others, and of these the
//!    nearest. Of these the one with the fewest units, and of these the roomiest. All of its room is taken, and the rest is
//!    the next need.
//!
//! Of equals, the first is taken.
//!
//! Properties: what takes K pools is taken in K. A pool is chosen if and only if one has room. A choice costs one look at
//! each pool, and one at each number of CPUs that a pool can have.
//!
//! Limits: of a pool that lies in several nodes, the first CPU says how near it is.
//!
//! Source: seed 001, sections 2 (isolation, localization) and 6.2 (fragments; fewest jobs). That a unit's need is known when
//! it begins, and so the smallest pool that holds it will do, is ours.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Room and units by pool.
#[derive(Debug)]
pub(super) struct Rooms {
    room: Vec<usize>,
    units: Vec<u32>,
    /// How many pools have so much room.
    having: Vec<usize>,
    /// The node or socket of each pool, from 0 on without gaps: what holds several pools.
    around: Vec<usize>,
}

impl Rooms {
    /// Pools in which nobody has anything, as many as `around` has, with room for so many CPUs each.
    pub(super) fn new(room: Vec<usize>, around: Vec<usize>) -> Rooms {
        let mut having = vec![0; room.iter().max().map_or(0, |max| max + 1)];
        for room in &room {
            having[*room] += 1;
        }
        Rooms { units: vec![0; room.len()], room, having, around }
    }

    /// A CPU of a pool is taken.
    pub(super) fn take(&mut self, pool: usize) {
        self.having[self.room[pool]] -= 1;
        self.room[pool] -= 1;
        self.having[self.room[pool]] += 1;
    }

    /// One more unit has CPUs in a pool.
    pub(super) fn enter(&mut self, pool: usize) {
        self.units[pool] += 1;
    }

    pub(super) fn room(&self, pool: usize) -> usize {
        self.room[pool]
    }

    /// The pool for a unit's next CPUs. `near` says how near a pool is to what the unit has; `None`: it has nothing.
    pub(super) fn choose(&self, need: usize, near: Option<impl Fn(usize) -> u32>) -> Option<usize> {
        let (takes, least) = self.takes(need);
        let enough = (0..self.room.len()).filter(|pool| self.room[*pool] >= least.max(1));
        let (room, units) = (|pool: usize| self.room[pool], |pool: usize| self.units[pool]);
        match (takes, near) {
            (1, None) => {
                let fit = self.fit(need);
                enough.min_by_key(|pool| (units(*pool), room(*pool), fit(*pool)))
            }
            (1, Some(near)) => enough.min_by_key(|pool| {
                let breaks = units(*pool) == 0 && room(*pool) > need;
                (Reverse(near(*pool)), breaks, room(*pool), units(*pool))
            }),
            (_, None) => {
                let fit = self.fit(need);
                enough.min_by_key(|pool| (fit(*pool), units(*pool), Reverse(room(*pool))))
            }
            (_, Some(near)) => enough.min_by_key(|pool| {
                (units(*pool) > 0, Reverse(near(*pool)), units(*pool), Reverse(room(*pool)))
            }),
        }
    }

    /// How many pools a need takes, and how much room the first one must have so that the rest takes one less: all that
    /// the others of the roomiest do not hold. More than all room takes every pool that has some.
    fn takes(&self, need: usize) -> (usize, usize) {
        let (mut takes, mut rest) = (0, need);
        for (room, having) in self.having.iter().enumerate().skip(1).rev().filter(|(_, having)| **having > 0)
        {
            // Pools of this room, until one of them holds the rest.
            let before = (rest.div_ceil(room).saturating_sub(1)).min(*having);
            takes += before;
            rest -= before * room;
            if before < *having {
                return (takes + 1, rest);
            }
        }
        (takes, 1)
    }

    /// How well the surroundings of each pool fit a need: those with the least room in nobody's pools that is enough, or
    /// else with the most.
    fn fit(&self, need: usize) -> impl Fn(usize) -> (bool, usize) + '_ {
        let mut around = vec![0; self.around.iter().max().map_or(0, |max| max + 1)];
        for pool in (0..self.room.len()).filter(|pool| self.units[*pool] == 0) {
            around[self.around[pool]] += self.room[pool];
        }
        move |pool| {
            let room = around[self.around[pool]];
            (room < need, if room < need { usize::MAX - room } else { room })
        }
    }
}

/// What lies around pools, of the nodes and sockets that each is in: nodes, where one has several pools, or else sockets.
pub(super) fn around(nodes: Vec<usize>, sockets: Vec<usize>) -> Vec<usize> {
    let mut distinct = nodes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < nodes.len() { nodes } else { sockets }
}
