//! The occupied seats of pools, and the choice of a pool for a thread.
//!
//! Terms: a *board* is the account of the pools' seats for one unit with CPUs of its own, or for all units
//! together if they share CPUs. A pool's *room* is the number of its CPUs that the board's units may use: the
//! pool has as many *seats*, each for one thread. A *district* is a pool of neighbouring pools.
//!
//! Algorithm, a job's first thread: the contract's [`Placement`] names the rule by which to choose among the
//! pools with a free seat. The rules are first fit, best fit (fewest free seats), worst fit (most free
//! seats), fewest jobs, and nearest. With several districts, the same rule first chooses the district and
//! then the pool in it. Ties go to the first.
//!
//! Algorithm, a job's further threads: among the pools that the job already uses and that have a free seat,
//! choose the pool with the fewest seated threads. If all pools that the job uses are full, the rule for a
//! first thread applies, but the districts that the job already uses come before others.
//!
//! Properties: if any pool has a free seat that the thread may use, a pool is chosen. No pool ever has more
//! occupied seats than room. A choice scans the districts and the pools of one district. If the thread's
//! affinity excludes all of these pools, the choice scans all pools.
//!
//! Source: seed 001, sections 6.1 and 6.2.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

use commonhold_contract::Placement;
use commonhold_machine::pools::Pools;

/// Index of a pool in [`Pools::pools`].
pub(crate) type PoolAt = usize;

/// The seats of each pool and district. Vectors are indexed by pool, unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Board {
    room: Vec<u32>,
    /// Occupied seats.
    taken: Vec<u32>,
    /// Jobs with threads in the pool.
    jobs: Vec<u32>,
    /// The range of pools of each district.
    districts: Vec<Range<usize>>,
    /// Free seats of each district.
    district_free: Vec<u32>,
    district_of: Vec<usize>,
}

impl Board {
    /// An empty board of pools, each with `room` for this many threads.
    pub(crate) fn new(pools: &Pools, room: Vec<u32>) -> Board {
        let district_free = pools.districts.iter().map(|range| room[range.clone()].iter().sum()).collect();
        Board {
            taken: vec![0; room.len()],
            jobs: vec![0; room.len()],
            room,
            districts: pools.districts.clone(),
            district_free,
            district_of: pools.pools.iter().map(|pool| pool.district).collect(),
        }
    }

    /// Free seats of a pool.
    pub(crate) fn free(&self, pool: PoolAt) -> u32 {
        self.room[pool] - self.taken[pool]
    }

    /// Whether at least three quarters of a pool's seats are free.
    pub(crate) fn is_mostly_free(&self, pool: PoolAt) -> bool {
        self.has_seat(pool) && self.taken[pool] * 4 <= self.room[pool]
    }

    /// Occupies a free seat. `is_first`: the thread is the first of its job in this pool.
    pub(crate) fn occupy(&mut self, pool: PoolAt, is_first: bool) {
        self.taken[pool] += 1;
        self.district_free[self.district_of[pool]] -= 1;
        self.jobs[pool] += u32::from(is_first);
    }

    /// Frees a seat. `was_last`: the thread was the last of its job in this pool.
    pub(crate) fn vacate(&mut self, pool: PoolAt, was_last: bool) {
        self.taken[pool] -= 1;
        self.district_free[self.district_of[pool]] += 1;
        self.jobs[pool] -= u32::from(was_last);
    }

    /// Whether the pool exists and has a free seat.
    pub(crate) fn has_seat(&self, pool: PoolAt) -> bool {
        pool < self.room.len() && self.free(pool) > 0
    }

    /// The pool for another thread of a job; `None` if no pool has a free seat that the thread may use.
    /// `spread` has the number of the job's threads in each of its pools, `current` is the pool where the
    /// thread runs now, if known, and `may_use` says whether the thread's affinity permits a pool.
    pub(crate) fn choose(
        &self,
        placement: Placement,
        spread: &[(PoolAt, u32)],
        current: Option<PoolAt>,
        may_use: &dyn Fn(PoolAt) -> bool,
    ) -> Option<PoolAt> {
        let own_pools = spread.iter().filter(|(pool, _)| self.free(*pool) > 0 && may_use(*pool));
        if let Some((pool, _)) = own_pools.min_by_key(|(pool, _)| (self.taken[*pool], *pool)) {
            return Some(*pool);
        }
        let own_districts = spread.iter().map(|(pool, _)| self.district_of[*pool]);
        let own_district = own_districts.filter(|district| self.district_free[*district] > 0).min();
        let district = own_district.or_else(|| self.choose_district(placement, current))?;
        let in_district = self.choose_among(placement, self.districts[district].clone(), current, may_use);
        // The thread's affinity may rule out every free seat of the district.
        in_district.or_else(|| self.choose_among(placement, 0..self.room.len(), current, may_use))
    }

    /// The district for a job's first thread; `None` if no district has a free seat. `current` is the pool
    /// where the thread runs.
    fn choose_district(&self, placement: Placement, current: Option<PoolAt>) -> Option<usize> {
        let free = |district: usize| self.district_free[district];
        let candidates = (0..self.districts.len()).filter(|district| free(*district) > 0);
        match placement {
            Placement::FirstFit => candidates.min(),
            Placement::BestFit => candidates.min_by_key(|district| (free(*district), *district)),
            Placement::WorstFit => candidates.min_by_key(|district| (Reverse(free(*district)), *district)),
            Placement::FewestJobs => candidates.min_by_key(|district| {
                (self.jobs[self.districts[*district].clone()].iter().sum::<u32>(), *district)
            }),
            Placement::Near => {
                let current_district = current.map_or(0, |pool| self.district_of[pool]);
                candidates.min_by_key(|district| (district.abs_diff(current_district), *district))
            }
        }
    }

    /// The pool for a thread among `pools`; `None` if no pool has a free seat that the thread may use.
    fn choose_among(
        &self,
        placement: Placement,
        pools: Range<usize>,
        current: Option<PoolAt>,
        may_use: &dyn Fn(PoolAt) -> bool,
    ) -> Option<PoolAt> {
        let candidates = pools.filter(|pool| self.free(*pool) > 0 && may_use(*pool));
        match placement {
            Placement::FirstFit => candidates.min(),
            Placement::BestFit => candidates.min_by_key(|pool| (self.free(*pool), *pool)),
            Placement::WorstFit => candidates.min_by_key(|pool| (Reverse(self.free(*pool)), *pool)),
            Placement::FewestJobs => candidates.min_by_key(|pool| (self.jobs[*pool], *pool)),
            Placement::Near => candidates.min_by_key(|pool| (pool.abs_diff(current.unwrap_or(0)), *pool)),
        }
    }
}
