//! Pool occupancy, and the placement of a thread in a pool.
//!
//! Terms: a *board* is the pools as one set of units sees them: a unit with CPUs of its own, or all units that share CPUs. A
//! pool's *room* is the number of its CPUs that the set may use. A *seat* is one of these CPUs, occupied by one thread.
//!
//! Algorithm, a job's first thread ([`Placement`]): among the pools with a free seat, first fit; best fit (fewest free seats);
//! worst fit (most free seats); fewest jobs; or nearest. With several districts, the same rule first chooses the district and
//! then the pool in it. Ties go to the first.
//!
//! Algorithm, further threads: the pool of the job with a free seat and the fewest threads. If the job's pools are full, as for
//! the first thread, but in the districts that the job already uses before others.
//!
//! Properties: a pool is chosen if and only if one has a free seat that the thread may use. No pool ever has more occupied
//! seats than room. A choice scans the districts and the pools of one district; if affinity rules those out, all pools.
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

/// Room and occupancy by pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Board {
    room: Vec<u32>,
    taken: Vec<u32>,
    jobs: Vec<u32>,
    districts: Vec<Range<usize>>,
    /// Free seats of each district.
    free: Vec<u32>,
    district_of: Vec<usize>,
}

impl Board {
    /// An empty board.
    pub(crate) fn new(pools: &Pools, room: Vec<u32>) -> Board {
        let free = pools.districts.iter().map(|run| room[run.clone()].iter().sum()).collect();
        Board {
            taken: vec![0; room.len()],
            jobs: vec![0; room.len()],
            room,
            districts: pools.districts.clone(),
            free,
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
        self.free[self.district_of[pool]] -= 1;
        self.jobs[pool] += u32::from(is_first);
    }

    /// Frees a seat. `was_last`: the thread was the last of its job in this pool.
    pub(crate) fn vacate(&mut self, pool: PoolAt, was_last: bool) {
        self.taken[pool] -= 1;
        self.free[self.district_of[pool]] += 1;
        self.jobs[pool] -= u32::from(was_last);
    }

    /// Whether the pool exists and has a free seat.
    pub(crate) fn has_seat(&self, pool: PoolAt) -> bool {
        pool < self.room.len() && self.free(pool) > 0
    }

    /// The pool for another thread of a job. `job` lists the threads of the job by pool, `at` is the pool where the thread runs
    /// now, and `may` tells in which pools it may have a seat.
    pub(crate) fn choose(
        &self,
        placement: Placement,
        job: &[(PoolAt, u32)],
        at: Option<PoolAt>,
        may: &dyn Fn(PoolAt) -> bool,
    ) -> Option<PoolAt> {
        let own = job.iter().filter(|(pool, _)| self.free(*pool) > 0 && may(*pool));
        if let Some((pool, _)) = own.min_by_key(|(pool, _)| (self.taken[*pool], *pool)) {
            return Some(*pool);
        }
        // As near to the job's pools as there are free seats.
        let near = job.iter().map(|(pool, _)| self.district_of[*pool]).filter(|near| self.free[*near] > 0);
        let district = near.min().or_else(|| self.district(placement, at))?;
        let in_district = self.among(placement, self.districts[district].clone(), at, may);
        // The thread's affinity may rule out every free seat of the district.
        in_district.or_else(|| self.among(placement, 0..self.room.len(), at, may))
    }

    /// The district for a job's first thread.
    fn district(&self, placement: Placement, at: Option<PoolAt>) -> Option<usize> {
        let open = (0..self.districts.len()).filter(|district| self.free[*district] > 0);
        match placement {
            Placement::FirstFit => open.min(),
            Placement::BestFit => open.min_by_key(|district| (self.free[*district], *district)),
            Placement::WorstFit => open.min_by_key(|district| (Reverse(self.free[*district]), *district)),
            Placement::FewestJobs => open.min_by_key(|district| {
                (self.jobs[self.districts[*district].clone()].iter().sum::<u32>(), *district)
            }),
            Placement::Near => {
                let current = at.map_or(0, |pool| self.district_of[pool]);
                open.min_by_key(|district| (district.abs_diff(current), *district))
            }
        }
    }

    /// The pool among `pools`.
    fn among(
        &self,
        placement: Placement,
        pools: Range<usize>,
        at: Option<PoolAt>,
        may: &dyn Fn(PoolAt) -> bool,
    ) -> Option<PoolAt> {
        let open = pools.filter(|pool| self.free(*pool) > 0 && may(*pool));
        match placement {
            Placement::FirstFit => open.min(),
            Placement::BestFit => open.min_by_key(|pool| (self.free(*pool), *pool)),
            Placement::WorstFit => open.min_by_key(|pool| (Reverse(self.free(*pool)), *pool)),
            Placement::FewestJobs => open.min_by_key(|pool| (self.jobs[*pool], *pool)),
            Placement::Near => open.min_by_key(|pool| (pool.abs_diff(at.unwrap_or(0)), *pool)),
        }
    }
}
