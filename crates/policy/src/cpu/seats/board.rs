//! Pools with what is free in them, and the choice among them.
//!
//! Terms: a *board* is the pools as one set of units sees them: a unit that has CPUs of its own, or all units that share
//! them. A pool's *room* is how many CPUs of it that set may use. A *seat* is one of these CPUs, for one thread; a board
//! has no more seats taken than room.
//!
//! Algorithm, first placement ([`Placement`]): of the pools with a free seat, the first; the fullest; the emptiest; the one
//! with the fewest jobs; the nearest. With several districts, the district is chosen first, by the same rule, and then a
//! pool of it. Of equals the first is taken.
//!
//! Algorithm, expansion: a pool with a free seat in which the job is, the one with the fewest threads; else as at first, in
//! the districts where the job is before all others.
//!
//! Properties: a pool is chosen if and only if one has a free seat that the thread may have. A choice costs a look at each pool of the districts, a
//! number in a row of numbers.
//!
//! Source: seed 001, sections 6.1 and 6.2.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

use commonhold_contract::Placement;
use commonhold_machine::pools::Pools;

/// A pool, by its place in [`Pools::pools`].
pub(crate) type PoolAt = usize;

/// What is free where.
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
    /// A board where nobody sits.
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

    /// Whether three quarters of a pool's seats are free.
    pub(crate) fn is_quiet(&self, pool: PoolAt) -> bool {
        self.has_seat(pool) && self.taken[pool] * 4 <= self.room[pool]
    }

    /// A thread sits down, where a seat is free; whether it is the first of its job there.
    pub(crate) fn sit(&mut self, pool: PoolAt, is_first: bool) {
        self.taken[pool] += 1;
        self.free[self.district_of[pool]] -= 1;
        self.jobs[pool] += u32::from(is_first);
    }

    /// A thread gets up; whether it was the last of its job there.
    pub(crate) fn rise(&mut self, pool: PoolAt, was_last: bool) {
        self.taken[pool] -= 1;
        self.free[self.district_of[pool]] += 1;
        self.jobs[pool] -= u32::from(was_last);
    }

    /// Whether a pool of that place is there, with a free seat.
    pub(crate) fn has_seat(&self, pool: PoolAt) -> bool {
        pool < self.room.len() && self.free(pool) > 0
    }

    /// The pool for one more thread of a job that has so many threads in each pool, and which is at a pool now. It may sit in
    /// those pools alone.
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
        // As near to what the job has as there is room.
        let near = job.iter().map(|(pool, _)| self.district_of[*pool]).filter(|near| self.free[*near] > 0);
        let district = near.min().or_else(|| self.district(placement, at))?;
        let in_district = self.among(placement, self.districts[district].clone(), at, may);
        // The district has a free seat, and one that is tied to CPUs may not have it.
        in_district.or_else(|| self.among(placement, 0..self.room.len(), at, may))
    }

    /// The district that a job begins in.
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
                let here = at.map_or(0, |pool| self.district_of[pool]);
                open.min_by_key(|district| (district.abs_diff(here), *district))
            }
        }
    }

    /// The pool of some of them.
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
