//! Placement of jobs: the pool in which each thread runs.
//!
//! Problem. The threads of a job share memory. They should run near each other, and apart from the threads of
//! other jobs. A job's final number of threads is unknown when a thread is placed, since threads come one at
//! a time.
//!
//! Terms: a *seat* is room for one thread in a pool, and a *board* keeps account of the seats ([`board`]). A
//! thread is *awake* while it wants a CPU and for [`REST_NS`] afterwards. A job's *cohesion* is a sum over
//! all pools: in each pool, the number of the job's threads there, squared. A job with 4 threads in one pool
//! has cohesion 16; with 3 threads in one pool and 1 in another, it has 9 + 1 = 10.
//!
//! Algorithm:
//! 0. If the pools took another form, a seat moves to the pool that now has the first CPU of the seat's old
//!    pool (the first that still exists).
//! 1. Threads that ended, fell asleep, or sit where their unit has no CPU any more give up their seats.
//! 2. Awake threads without a seat are placed within their affinity, job by job in the order of arrival, by
//!    the contract's placement ([`board::Board::choose`]). Exception under worst fit: if a job's first thread
//!    already runs, it stays in its present pool if three quarters of the pool's seats are free. Its pages
//!    are there, and few other threads disturb it. If no pool has a free seat, a thread runs anywhere in its
//!    unit.
//! 3. Repartitioning, if the contract asks for it. The job's main pool is the pool where most of its threads
//!    are. A thread of the job in another pool moves to the main pool: to a free seat, or it swaps seats with
//!    a thread of another job there. A thread moves if the total cohesion of the jobs concerned grows, and if
//!    the gain exceeds the cost. The gain is the CPU time that the job is expected to save. It is a tenth
//!    ([`GAIN_PART`]) of the job's CPU time since its last move, times the growth of its cohesion over the
//!    largest possible cohesion (n² for n threads). This assumes that a job will run for as long as it has
//!    run. The cost is [`MOVE_NS`] for each moved thread.
//! 4. A job's pages move to the nodes of its threads, if the gain exceeds the cost by the same measure
//!    ([`pages`]).
//!
//! Properties: no pool has more seated threads than CPUs that the threads' unit may use. A thread lacks a
//! seat only while every seat that it may use is occupied. Without repartitioning, an awake thread keeps its
//! seat as long as its unit keeps its CPUs. Each move increases total cohesion, so repartitioning terminates.
//! Seats are a deterministic function of the facts.
//!
//! Limits: threads pinned to the same CPU of a pool occupy one seat each. A job that sleeps for longer than
//! [`REST_NS`] may find its old pool occupied. The kernel, not this module, chooses the CPU within a pool.
//! The gain is assumed to be the same for all programs.
//!
//! Source: seed 001, section 6, which leaves repartitioning open (sections 2 and 6). That a process is
//! expected to run for as long as it has run: M. Harchol-Balter and A. Downey, Exploiting Process Lifetime
//! Distributions for Dynamic Load Balancing, 1997.

pub(crate) mod board;
mod pages;
mod repartition;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use commonhold_contract::{Placement, PoolForm, UnitId};
use commonhold_machine::pools::{Form, Pools};
use commonhold_machine::{Cpu, CpuSet, Machine};

use crate::input::Input;
use crate::plan::{Reason, Seat, SeatOrder, Step};
use crate::snapshot::{JobFacts, JobId, Seats, ThreadId};
use crate::time::{MS, Time};
use crate::tree::outermost;

use board::{Board, PoolAt};

/// A thread that has wanted no CPU for this long gives up its seat.
pub(crate) const REST_NS: Time = 1_000 * MS;

/// Cost of moving a thread to another pool: about a megabyte to bring into another cache.
pub(crate) const MOVE_NS: u64 = MS;

/// By running in one pool, a job is assumed to save one part in this many of its CPU time: a tenth. Seed 001
/// measured more, with slower memory.
pub(crate) const GAIN_PART: u64 = 10;

/// The pools of a machine in the form that a contract asks for.
pub fn pools(machine: &Machine, form: PoolForm) -> Pools {
    let by = match form {
        PoolForm::Auto => Form::Auto,
        PoolForm::Cache => Form::Cache,
        PoolForm::Node => Form::Node,
        PoolForm::Socket => Form::Socket,
        PoolForm::Machine => Form::One,
        PoolForm::Size(size) => Form::Size(size),
    };
    Pools::form(machine, by)
}

/// The machine's pools, cached while machine and form stay the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PoolCache {
    formed_for: Option<(PoolForm, Vec<Cpu>)>,
    pools: Arc<Pools>,
}

impl PoolCache {
    /// The pools of a machine, formed again only if the machine or the form changed.
    pub(crate) fn get(&mut self, machine: &Machine, form: PoolForm) -> Arc<Pools> {
        let is_current = self
            .formed_for
            .as_ref()
            .is_some_and(|(old_form, cpus)| *old_form == form && *cpus == machine.cpus);
        if !is_current {
            self.pools = Arc::new(pools(machine, form));
            self.formed_for = Some((form, machine.cpus.clone()));
        }
        Arc::clone(&self.pools)
    }
}

/// All jobs and their seats, carried from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seating {
    jobs: BTreeMap<JobId, Job>,
    /// The pools that seats index.
    pools: Arc<Pools>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    unit: UnitId,
    /// When the job came, or when one of its threads last moved to another pool.
    settled_since: Time,
    /// When its pages were last moved.
    pages_moved_at: Option<Time>,
    threads: BTreeMap<ThreadId, Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    /// When it last wanted a CPU.
    wanted_at: Option<Time>,
    /// The pool in which it was first seen.
    first_pool: Option<PoolAt>,
    /// The CPU affinity that the program gave it; `None`: all CPUs.
    affinity: Option<CpuSet>,
    /// The pool in which it has a seat.
    seat: Option<PoolAt>,
    /// Why it has that seat, or no seat.
    because: Reason,
    /// The seat that was last reported and ordered; `None`: nothing yet.
    reported: Option<Reported>,
}

/// A thread's seat as of the last decision and order about it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reported {
    /// The pool of the seat; `None`: no seat.
    pool: Option<PoolAt>,
    /// The CPUs to which the thread is restricted; `None`: not restricted.
    cpus: Option<CpuSet>,
}

/// The CPUs that each unit may use for its jobs.
pub(crate) enum HeldCpus {
    /// All units share all CPUs.
    Shared,
    /// The CPUs that each outermost unit holds.
    By(BTreeMap<UnitId, CpuSet>),
}

/// The decisions and orders about seats in the plan under construction.
pub(crate) struct SeatPlan<'a> {
    pub(crate) seats: &'a mut Vec<Step<Seat>>,
    pub(crate) orders: &'a mut Vec<Step<SeatOrder>>,
}

/// Places the threads of all jobs, on the CPUs `held` by their units, and adds the decisions and orders to
/// `orders`.
pub(crate) fn step(
    state: &mut Seating,
    pool_cache: &mut PoolCache,
    now: Time,
    input: Input<'_>,
    held: &HeldCpus,
    orders: &mut SeatPlan<'_>,
) {
    let facts = &input.snapshot.jobs;
    if input.means.seats == Seats::None || facts.is_empty() {
        for (id, job) in core::mem::take(&mut state.jobs) {
            job.threads.iter().for_each(|(number, thread)| release(id, job.unit, *number, thread, orders));
        }
        return;
    }
    let pools = pool_cache.get(input.machine, input.contract.machine.pools);
    state.renumber_pools(&pools);
    state.update(now, facts, &pools, orders);
    let mut boards = Boards::new(&pools, input, held);
    state.vacate(now, input, &mut boards);
    state.place(now, input, &mut boards);
    if input.contract.machine.repartition {
        repartition::step(state, now, &mut boards);
    }
    state.report(input, &boards, orders);
    if input.contract.machine.repartition {
        state.move_pages(now, input, &pools, orders);
    }
}

/// The boards of a step, each made when it is first used.
struct Boards<'a> {
    pools: &'a Pools,
    contract: &'a commonhold_contract::Contract,
    held: &'a HeldCpus,
    /// Whether a scheduler decides at every switch and keeps threads on the CPUs of their seats.
    switches: bool,
    /// One board for each outermost unit; or a single one (`None`) if all units share all CPUs.
    boards: BTreeMap<Option<UnitId>, Board>,
}

impl<'a> Boards<'a> {
    fn new(pools: &'a Pools, input: Input<'a>, held: &'a HeldCpus) -> Boards<'a> {
        Boards {
            pools,
            contract: input.contract,
            held,
            switches: input.means.switches && input.means.seats == Seats::Cpus,
            boards: BTreeMap::new(),
        }
    }

    /// The key of a unit's board.
    fn key(&self, unit: UnitId) -> Option<UnitId> {
        match self.held {
            HeldCpus::Shared => None,
            HeldCpus::By(_) => Some(outermost(self.contract, unit)),
        }
    }

    /// The CPUs of a pool that a unit holds.
    fn held_in_pool(&self, unit: UnitId, pool: PoolAt) -> CpuSet {
        let pool = self.pools.pools.get(pool).map(|pool| pool.cpus.iter().copied().collect::<CpuSet>());
        let pool_cpus = pool.unwrap_or_default();
        match (self.held, self.key(unit)) {
            (HeldCpus::By(held), Some(unit)) => {
                held.get(&unit).map_or_else(CpuSet::new, |own| pool_cpus.intersection(own))
            }
            _ => pool_cpus,
        }
    }

    /// The CPUs on which a thread with a seat in a pool may run: those that its unit holds there. A scheduler
    /// that decides at every switch keeps units on their CPUs by itself and may lend them any other, so that
    /// all CPUs of the pool are allowed then.
    fn seat_cpus(&self, unit: UnitId, pool: PoolAt) -> CpuSet {
        match self.pools.pools.get(pool) {
            Some(pool) if self.switches => pool.cpus.iter().copied().collect(),
            _ => self.held_in_pool(unit, pool),
        }
    }

    /// Whether a thread's affinity includes a CPU that its unit holds in a pool.
    fn may_use(&self, unit: UnitId, thread: &Thread, pool: PoolAt) -> bool {
        let affinity = thread.affinity.as_ref();
        affinity.is_none_or(|affinity| !self.held_in_pool(unit, pool).intersection(affinity).is_empty())
    }

    /// The board of a unit, if it was made before.
    fn existing(&self, unit: UnitId) -> Option<&Board> {
        self.boards.get(&self.key(unit))
    }

    /// The board of a unit; an empty one if it was not used before.
    fn board(&mut self, unit: UnitId) -> &mut Board {
        let key = self.key(unit);
        let (pools, held) = (self.pools, self.held);
        self.boards.entry(key).or_insert_with(|| {
            let room = pools.pools.iter().map(|pool| match (held, key) {
                (HeldCpus::By(held), Some(unit)) => {
                    let cpus = held.get(&unit);
                    pool.cpus.iter().filter(|cpu| cpus.is_some_and(|cpus| cpus.contains(**cpu))).count()
                }
                _ => pool.cpus.len(),
            });
            let room = room.map(|room| u32::try_from(room).unwrap_or(u32::MAX)).collect();
            Board::new(pools, room)
        })
    }
}

impl Job {
    /// The numbers of its seated threads by pool, for pools that have any.
    fn spread(&self) -> Vec<(PoolAt, u32)> {
        let mut spread: BTreeMap<PoolAt, u32> = BTreeMap::new();
        for pool in self.threads.values().filter_map(|thread| thread.seat) {
            *spread.entry(pool).or_default() += 1;
        }
        spread.into_iter().collect()
    }
}

/// The number of a job's threads in a pool.
fn in_pool(spread: &[(PoolAt, u32)], pool: PoolAt) -> u32 {
    spread.iter().find(|(at, _)| *at == pool).map_or(0, |(_, count)| *count)
}

/// Changes the number of a job's threads in a pool by `by`: 1 for a thread that comes, -1 for one that goes.
fn count(spread: &mut Vec<(PoolAt, u32)>, pool: PoolAt, by: i32) {
    match spread.iter_mut().find(|(at, _)| *at == pool) {
        Some((_, count)) => *count = count.saturating_add_signed(by),
        None if by > 0 => spread.push((pool, 1)),
        None => {}
    }
    spread.retain(|(_, count)| *count > 0);
}

impl Seating {
    /// Whether no job is known.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Renumbers seats after the pools took another form, or after CPUs came or went: a seat moves to the
    /// pool that contains the first remaining CPU of the old pool.
    fn renumber_pools(&mut self, pools: &Arc<Pools>) {
        let before = core::mem::replace(&mut self.pools, Arc::clone(pools));
        if Arc::ptr_eq(&before, pools) || before == *pools {
            return;
        }
        let by_cpu = pools.by_cpu();
        let new_pools: Vec<Option<PoolAt>> = before
            .pools
            .iter()
            .map(|pool| pool.cpus.iter().find_map(|cpu| by_cpu.get(cpu)).copied())
            .collect();
        let renumber = |pool: PoolAt| new_pools.get(pool).copied().flatten();
        for thread in self.jobs.values_mut().flat_map(|job| job.threads.values_mut()) {
            thread.first_pool = thread.first_pool.and_then(renumber);
            thread.seat = thread.seat.and_then(renumber);
            thread.because = Reason::PoolsChanged;
        }
    }

    /// Adds new jobs and threads, drops those that ended, and notes which threads want a CPU.
    fn update(&mut self, now: Time, facts: &[JobFacts], pools: &Pools, orders: &mut SeatPlan<'_>) {
        let present: BTreeSet<JobId> = facts.iter().map(|facts| facts.job).collect();
        self.jobs.retain(|id, job| {
            let stays = present.contains(id);
            if !stays {
                let threads = job.threads.iter();
                threads.for_each(|(number, thread)| release(*id, job.unit, *number, thread, orders));
            }
            stays
        });
        // New threads are few: a search costs less than an index of all CPUs.
        let pool_of = |cpu: u32| pools.pools.iter().position(|pool| pool.cpus.binary_search(&cpu).is_ok());
        for facts in facts {
            let job = self.jobs.entry(facts.job).or_insert_with(|| Job {
                unit: facts.unit,
                settled_since: now,
                pages_moved_at: None,
                threads: BTreeMap::new(),
            });
            job.unit = facts.unit;
            // Drop the threads that ended. Both lists ascend by thread, so that one pass over both suffices.
            let mut present = facts.threads.iter().map(|facts| facts.thread).peekable();
            let unit = job.unit;
            job.threads.retain(|number, thread| {
                while present.next_if(|present| present < number).is_some() {}
                let stays = present.peek() == Some(number);
                if !stays {
                    release(facts.job, unit, *number, thread, orders);
                }
                stays
            });
            for facts in &facts.threads {
                let thread = job.threads.entry(facts.thread).or_insert_with(|| Thread {
                    wanted_at: None,
                    first_pool: facts.cpu.and_then(pool_of),
                    affinity: None,
                    seat: None,
                    because: Reason::NoSeatFree,
                    reported: None,
                });
                if facts.wants {
                    thread.wanted_at = Some(now);
                }
                thread.affinity.clone_from(&facts.tied);
            }
        }
    }

    /// Enters the seats in the boards of this step. A thread gives up its seat if it sleeps, or if its seat
    /// does not exist any more.
    fn vacate(&mut self, now: Time, input: Input<'_>, boards: &mut Boards<'_>) {
        let fixed = input.means.seats == Seats::Fixed;
        for job in self.jobs.values_mut() {
            let mut spread = Vec::new();
            for thread in job.threads.values_mut() {
                let Some(pool) = thread.seat.take() else { continue };
                let may_use = boards.may_use(job.unit, thread, pool);
                let board = boards.board(job.unit);
                thread.because = if needs_seat(thread, now, fixed) { thread.because } else { Reason::Rests };
                if thread.because != Reason::Rests && may_use && board.has_seat(pool) {
                    board.occupy(pool, in_pool(&spread, pool) == 0);
                    count(&mut spread, pool, 1);
                    thread.seat = Some(pool);
                }
            }
        }
    }

    /// Places each awake thread without a seat in a pool, if one has a seat for it.
    fn place(&mut self, now: Time, input: Input<'_>, boards: &mut Boards<'_>) {
        let placement = input.contract.machine.placement;
        let fixed = input.means.seats == Seats::Fixed;
        for job in self.jobs.values_mut() {
            let lacks_seat = |thread: &Thread| thread.seat.is_none() && needs_seat(thread, now, fixed);
            if !job.threads.values().any(lacks_seat) {
                continue;
            }
            let mut spread = job.spread();
            for thread in job.threads.values_mut().filter(|thread| lacks_seat(thread)) {
                // Make the board now: the closures below borrow all boards.
                boards.board(job.unit);
                let may_use = |pool| boards.may_use(job.unit, thread, pool);
                // Under worst fit, a job's first thread stays where it is, since the memory that it touched
                // so far is local there.
                let first_pool = thread
                    .first_pool
                    .filter(|pool| placement == Placement::WorstFit && !fixed && may_use(*pool));
                let pool_to_stay_in = |board: &Board| {
                    first_pool.filter(|pool| spread.is_empty() && board.is_mostly_free(*pool))
                };
                let chosen = boards.existing(job.unit).and_then(|board| {
                    pool_to_stay_in(board)
                        .or_else(|| board.choose(placement, &spread, thread.first_pool, &may_use))
                });
                let stayed = boards.existing(job.unit).and_then(pool_to_stay_in).is_some();
                let placement = if stayed { Placement::Near } else { placement };
                let board = boards.board(job.unit);
                let Some(pool) = chosen else {
                    thread.because = Reason::NoSeatFree;
                    continue;
                };
                let beside = in_pool(&spread, pool);
                thread.because = match (beside, spread.is_empty()) {
                    (1.., _) => Reason::BesideItsJob { threads: beside },
                    (_, true) => Reason::FirstOfItsJob { placement, free: board.free(pool) },
                    (_, false) => Reason::PoolsOfItsJobFull { placement, free: board.free(pool) },
                };
                board.occupy(pool, beside == 0);
                count(&mut spread, pool, 1);
                thread.seat = Some(pool);
            }
        }
    }

    /// Adds a decision for each thread whose seat is in another pool than last reported, and an order for
    /// each thread whose CPUs differ from those last ordered.
    fn report(&mut self, input: Input<'_>, boards: &Boards<'_>, orders: &mut SeatPlan<'_>) {
        let fixed = input.means.seats == Seats::Fixed;
        for (id, job) in &mut self.jobs {
            for (number, thread) in &mut job.threads {
                let restricting_seat =
                    thread.seat.filter(|pool| fixed || restricts(input, boards.pools, *pool));
                let cpus = restricting_seat.map(|pool| boards.seat_cpus(job.unit, pool));
                let current = Reported { pool: thread.seat, cpus };
                let unrestricted = Reported { pool: None, cpus: None };
                let changed = match &thread.reported {
                    Some(reported) => *reported != current,
                    None => current != unrestricted || fixed,
                };
                if !changed {
                    continue;
                }
                let (thread_id, job_id, unit, reason) = (*number, *id, job.unit, thread.because);
                if thread.reported.as_ref().map(|reported| reported.pool) != Some(current.pool) {
                    let pool = current.pool.and_then(|pool| u32::try_from(pool).ok());
                    let action = Seat { thread: thread_id, job: job_id, unit, pool };
                    orders.seats.push(Step { action, reason });
                }
                let before = thread.reported.as_ref().and_then(|reported| reported.cpus.as_ref());
                if before != current.cpus.as_ref() || (fixed && thread.reported.is_none()) {
                    let cpus = current.cpus.clone();
                    let action = SeatOrder::Seat { thread: thread_id, job: job_id, unit, cpus };
                    orders.orders.push(Step { action, reason });
                }
                thread.reported = Some(current);
            }
        }
    }

    /// Orders the pages of jobs to be moved to their threads, where that pays.
    fn move_pages(&mut self, now: Time, input: Input<'_>, pools: &Pools, orders: &mut SeatPlan<'_>) {
        if !input.means.brings {
            return;
        }
        for facts in &input.snapshot.jobs {
            let (Some(memory), Some(job)) = (&facts.memory, self.jobs.get_mut(&facts.job)) else { continue };
            let Some((nodes, misplaced)) = pages::wanted_nodes(job, memory, now, input.machine, pools) else {
                continue;
            };
            let divided = job.spread().len() > 1;
            job.pages_moved_at = Some(now);
            let action = SeatOrder::Bring { job: facts.job, unit: job.unit, nodes, divided };
            orders.orders.push(Step { action, reason: Reason::PagesApart { bytes: misplaced } });
        }
    }
}

/// Whether a seat restricts a thread without a dedicated CPU to the pool. It does not if the machine has one
/// pool. Neither does it in a pool of one CPU, unless the contract asks for such pools: the thread would wait
/// whenever that CPU is busy, most often with the thread's own children.
fn restricts(input: Input<'_>, pools: &Pools, pool: PoolAt) -> bool {
    let wants_single_cpus = input.contract.machine.pools == PoolForm::Size(1);
    pools.pools.len() > 1
        && pools.pools.get(pool).is_some_and(|pool| wants_single_cpus || pool.cpus.len() > 1)
}

/// Lifts the restrictions on a thread that ended or left its job. `last` is what was known of the thread. If
/// it lives on, it may run anywhere in its unit.
fn release(job: JobId, unit: UnitId, thread: ThreadId, last: &Thread, orders: &mut SeatPlan<'_>) {
    let Some(reported) = &last.reported else { return };
    let reason = Reason::ThreadGone;
    if reported.pool.is_some() {
        orders.seats.push(Step { action: Seat { thread, job, unit, pool: None }, reason });
    }
    if reported.cpus.is_some() {
        orders.orders.push(Step { action: SeatOrder::Seat { thread, job, unit, cpus: None }, reason });
    }
}

/// Whether a thread needs a seat: always if it has a dedicated CPU (`fixed`), else while it is awake.
fn needs_seat(thread: &Thread, now: Time, fixed: bool) -> bool {
    fixed || thread.wanted_at.is_some_and(|wanted_at| now.saturating_sub(wanted_at) < REST_NS)
}

#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod staying_tests;
#[cfg(test)]
mod tests;
