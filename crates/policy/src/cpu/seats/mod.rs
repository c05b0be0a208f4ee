//! Placement of jobs: the pool in which each thread runs.
//!
//! Problem. Threads of a job share memory, and should run near each other; other jobs should run elsewhere. A job's final
//! number of threads is unknown: they come one at a time.
//!
//! Terms: those of [`board`]. A thread is *awake* while it wants a CPU and for [`REST_NS`] afterwards. A job's *cohesion* is Σ
//! c², for c of its threads in each pool.
//!
//! Algorithm:
//! 0. If the pools took another form, a seat moves to the pool that contains the first remaining CPU of the old pool.
//! 1. Threads that ended, fell asleep, or sit where their unit has no CPU any more give up their seats.
//! 2. Awake threads without a seat are placed within their affinity, job by job in the order of arrival, by the contract's
//!    placement ([`board::Board::choose`]). Under worst fit, a job's first thread that already runs stays in its present pool
//!    if three quarters of that are free: its pages are there, and others hardly disturb it. If no pool has a free seat, the
//!    thread runs anywhere in its unit.
//! 3. Repartitioning, if the contract has it. A thread apart from most of its job moves to the job's main pool: onto a free
//!    seat, or in exchange with a thread of another job there. It moves if the total cohesion of both jobs grows, and the gain
//!    exceeds the cost. The gain is [`GAIN_PART`] of the job's CPU time since its last move, times the relative growth: the
//!    expected remaining run time of a job is as long as its age. The cost is [`MOVE_NS`] for each moved thread.
//! 4. A job's pages follow its threads, if that pays by the same measure ([`pages`]).
//!
//! Properties: no pool has more seated threads than CPUs that their unit may use. A thread lacks a seat only while every seat
//! that it may use is occupied. Without repartitioning, an awake thread never moves while its unit keeps its CPUs. Each move
//! increases total cohesion, so repartitioning terminates. Seats are a deterministic function of the facts.
//!
//! Limits: threads pinned to the same CPU of a pool occupy one seat each. A job that sleeps for longer than [`REST_NS`] may
//! find its pool occupied. The kernel chooses the CPU within a pool. The gain is assumed to be the same for all programs.
//!
//! Source: seed 001, section 6; repartitioning is left open there (sections 2 and 6). That what has run long will run long: M.
//! Harchol-Balter and A. Downey, Exploiting Process Lifetime Distributions for Dynamic Load Balancing, 1997.

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

/// Part of the CPU time that a job saves by running in one pool: a tenth. Seed 001 measured more, with slower memory.
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
        let same = self.formed_for.as_ref().is_some_and(|(was, cpus)| *was == form && *cpus == machine.cpus);
        if !same {
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
    /// When it came, or when a thread of it last moved.
    since: Time,
    /// When its pages were last moved.
    brought: Option<Time>,
    threads: BTreeMap<ThreadId, Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    /// When it last wanted a CPU.
    wanted: Option<Time>,
    /// The pool in which it was first seen.
    at: Option<PoolAt>,
    /// Its own CPU affinity.
    tied: Option<CpuSet>,
    seat: Option<PoolAt>,
    /// Why it has that seat, or none.
    because: Reason,
    /// The seat that was last reported and ordered; `None`: nothing yet.
    reported: Option<Reported>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reported {
    pool: Option<PoolAt>,
    cpus: Option<CpuSet>,
}

/// The CPUs that units may use for their jobs.
pub(crate) enum HeldCpus {
    /// All units share all CPUs.
    Shared,
    /// Each outermost unit uses the CPUs that it holds.
    By(BTreeMap<UnitId, CpuSet>),
}

/// The decisions and orders about seats in the plan under construction.
pub(crate) struct SeatPlan<'a> {
    pub(crate) seats: &'a mut Vec<Step<Seat>>,
    pub(crate) orders: &'a mut Vec<Step<SeatOrder>>,
}

/// Places the threads of all jobs.
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
            job.threads.iter().for_each(|(thread, was)| release(id, job.unit, *thread, was, orders));
        }
        return;
    }
    let pools = pool_cache.get(input.machine, input.contract.machine.pools);
    state.reform(&pools);
    state.update(now, facts, &pools, orders);
    let mut boards = Boards::new(&pools, input, held);
    state.vacate(now, input, &mut boards);
    state.place(now, input, &mut boards);
    if input.contract.machine.repartition {
        repartition::step(state, now, &mut boards);
    }
    state.report(input, &boards, orders);
    if input.contract.machine.repartition {
        state.bring(now, input, &pools, orders);
    }
}

/// The boards of all sets of units, each made on first use.
struct Boards<'a> {
    pools: &'a Pools,
    contract: &'a commonhold_contract::Contract,
    held: &'a HeldCpus,
    switches: bool,
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

    /// The CPUs of a pool that a unit may use.
    fn cpus(&self, unit: UnitId, pool: PoolAt) -> CpuSet {
        let all = self.pools.pools.get(pool).map(|pool| pool.cpus.iter().copied().collect::<CpuSet>());
        let all = all.unwrap_or_default();
        match (self.held, self.key(unit)) {
            (HeldCpus::By(held), Some(unit)) => {
                held.get(&unit).map_or_else(CpuSet::new, |own| all.intersection(own))
            }
            _ => all,
        }
    }

    /// The CPUs on which a thread with a seat in a pool may run. A scheduler that decides at every switch confines units
    /// itself, and may lend them any CPU of the pool.
    fn reach(&self, unit: UnitId, pool: PoolAt) -> CpuSet {
        match self.pools.pools.get(pool) {
            Some(pool) if self.switches => pool.cpus.iter().copied().collect(),
            _ => self.cpus(unit, pool),
        }
    }

    /// Whether a thread's affinity includes a CPU that its unit may use in a pool.
    fn may_use(&self, unit: UnitId, thread: &Thread, pool: PoolAt) -> bool {
        thread.tied.as_ref().is_none_or(|tied| !self.cpus(unit, pool).intersection(tied).is_empty())
    }

    /// The board of a unit, if it was made before.
    fn made(&self, unit: UnitId) -> Option<&Board> {
        self.boards.get(&self.key(unit))
    }

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
    /// Its seated threads by pool.
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

/// Counts a thread that comes (1) or goes (-1).
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

    /// Renumbers seats after the pools took another form, or after CPUs came or went: a seat moves to the pool that contains
    /// the first remaining CPU of the old pool.
    fn reform(&mut self, pools: &Arc<Pools>) {
        let before = core::mem::replace(&mut self.pools, Arc::clone(pools));
        if Arc::ptr_eq(&before, pools) || before == *pools {
            return;
        }
        let by_cpu = pools.by_cpu();
        let now: Vec<Option<PoolAt>> = before
            .pools
            .iter()
            .map(|pool| pool.cpus.iter().find_map(|cpu| by_cpu.get(cpu)).copied())
            .collect();
        let follow = |pool: PoolAt| now.get(pool).copied().flatten();
        for thread in self.jobs.values_mut().flat_map(|job| job.threads.values_mut()) {
            thread.at = thread.at.and_then(follow);
            thread.seat = thread.seat.and_then(follow);
            thread.because = Reason::PoolsChanged;
        }
    }

    /// Adds new jobs and threads, and drops those that ended.
    fn update(&mut self, now: Time, facts: &[JobFacts], pools: &Pools, orders: &mut SeatPlan<'_>) {
        let there: BTreeSet<JobId> = facts.iter().map(|facts| facts.job).collect();
        self.jobs.retain(|id, job| {
            let stays = there.contains(id);
            if !stays {
                job.threads.iter().for_each(|(thread, was)| release(*id, job.unit, *thread, was, orders));
            }
            stays
        });
        // New threads are few: a search costs less than an index of all CPUs.
        let pool_of = |cpu: u32| pools.pools.iter().position(|pool| pool.cpus.binary_search(&cpu).is_ok());
        for facts in facts {
            let job = self.jobs.entry(facts.job).or_insert_with(|| Job {
                unit: facts.unit,
                since: now,
                brought: None,
                threads: BTreeMap::new(),
            });
            job.unit = facts.unit;
            // Both sides ascend.
            let mut still = facts.threads.iter().map(|facts| facts.thread).peekable();
            let unit = job.unit;
            job.threads.retain(|thread, was| {
                while still.next_if(|there| there < thread).is_some() {}
                let stays = still.peek() == Some(thread);
                if !stays {
                    release(facts.job, unit, *thread, was, orders);
                }
                stays
            });
            for facts in &facts.threads {
                let thread = job.threads.entry(facts.thread).or_insert_with(|| Thread {
                    wanted: None,
                    at: facts.cpu.and_then(pool_of),
                    tied: None,
                    seat: None,
                    because: Reason::NoSeatFree,
                    reported: None,
                });
                if facts.wants {
                    thread.wanted = Some(now);
                }
                thread.tied.clone_from(&facts.tied);
            }
        }
    }

    /// Awake threads keep their seats if those still exist; others give them up.
    fn vacate(&mut self, now: Time, input: Input<'_>, boards: &mut Boards<'_>) {
        let fixed = input.means.seats == Seats::Fixed;
        for job in self.jobs.values_mut() {
            let mut spread = Vec::new();
            for thread in job.threads.values_mut() {
                let Some(pool) = thread.seat.take() else { continue };
                let may = boards.may_use(job.unit, thread, pool);
                let board = boards.board(job.unit);
                thread.because = if needs_seat(thread, now, fixed) { thread.because } else { Reason::Rests };
                if thread.because != Reason::Rests && may && board.has_seat(pool) {
                    board.occupy(pool, in_pool(&spread, pool) == 0);
                    count(&mut spread, pool, 1);
                    thread.seat = Some(pool);
                }
            }
        }
    }

    /// Places awake threads without a seat.
    fn place(&mut self, now: Time, input: Input<'_>, boards: &mut Boards<'_>) {
        let placement = input.contract.machine.placement;
        let fixed = input.means.seats == Seats::Fixed;
        for job in self.jobs.values_mut() {
            let waits = |thread: &Thread| thread.seat.is_none() && needs_seat(thread, now, fixed);
            if !job.threads.values().any(waits) {
                continue;
            }
            let mut spread = job.spread();
            for thread in job.threads.values_mut().filter(|thread| waits(thread)) {
                boards.board(job.unit);
                let may = |pool| boards.may_use(job.unit, thread, pool);
                // The memory that it touched so far is local there.
                let current =
                    thread.at.filter(|pool| placement == Placement::WorstFit && !fixed && may(*pool));
                let stays =
                    |board: &Board| current.filter(|pool| spread.is_empty() && board.is_mostly_free(*pool));
                let found = boards.made(job.unit).and_then(|board| {
                    stays(board).or_else(|| board.choose(placement, &spread, thread.at, &may))
                });
                let stayed = boards.made(job.unit).and_then(stays).is_some();
                let placement = if stayed { Placement::Near } else { placement };
                let board = boards.board(job.unit);
                let Some(pool) = found else {
                    thread.because = Reason::NoSeatFree;
                    continue;
                };
                let own = in_pool(&spread, pool);
                thread.because = match (own, spread.is_empty()) {
                    (1.., _) => Reason::BesideItsJob { threads: own },
                    (_, true) => Reason::FirstOfItsJob { placement, free: board.free(pool) },
                    (_, false) => Reason::PoolsOfItsJobFull { placement, free: board.free(pool) },
                };
                board.occupy(pool, own == 0);
                count(&mut spread, pool, 1);
                thread.seat = Some(pool);
            }
        }
    }

    /// Reports and orders changed seats.
    fn report(&mut self, input: Input<'_>, boards: &Boards<'_>, orders: &mut SeatPlan<'_>) {
        let fixed = input.means.seats == Seats::Fixed;
        for (id, job) in &mut self.jobs {
            for (number, thread) in &mut job.threads {
                let cpus = thread.seat.map(|pool| boards.reach(job.unit, pool));
                let cpus = cpus.filter(|_| {
                    fixed || thread.seat.is_some_and(|pool| restricts(input, boards.pools, pool))
                });
                let now = Reported { pool: thread.seat, cpus };
                let silent = Reported { pool: None, cpus: None };
                let new = match &thread.reported {
                    Some(reported) => *reported != now,
                    None => now != silent || fixed,
                };
                if !new {
                    continue;
                }
                let (thread_id, job_id, unit, reason) = (*number, *id, job.unit, thread.because);
                if thread.reported.as_ref().map(|reported| reported.pool) != Some(now.pool) {
                    let pool = now.pool.and_then(|pool| u32::try_from(pool).ok());
                    let action = Seat { thread: thread_id, job: job_id, unit, pool };
                    orders.seats.push(Step { action, reason });
                }
                let before = thread.reported.as_ref().and_then(|reported| reported.cpus.as_ref());
                if before != now.cpus.as_ref() || (fixed && thread.reported.is_none()) {
                    let cpus = now.cpus.clone();
                    let action = SeatOrder::Seat { thread: thread_id, job: job_id, unit, cpus };
                    orders.orders.push(Step { action, reason });
                }
                thread.reported = Some(now);
            }
        }
    }

    /// Orders pages to follow threads, where that pays.
    fn bring(&mut self, now: Time, input: Input<'_>, pools: &Pools, orders: &mut SeatPlan<'_>) {
        if !input.means.brings {
            return;
        }
        for facts in &input.snapshot.jobs {
            let (Some(memory), Some(job)) = (&facts.memory, self.jobs.get_mut(&facts.job)) else { continue };
            let Some((nodes, apart)) = pages::bring(job, memory, now, input.machine, pools) else { continue };
            let divided = job.spread().len() > 1;
            job.brought = Some(now);
            let action = SeatOrder::Bring { job: facts.job, unit: job.unit, nodes, divided };
            orders.orders.push(Step { action, reason: Reason::PagesApart { bytes: apart } });
        }
    }
}

/// Whether a thread without a dedicated CPU is restricted to its pool. A machine of one pool needs no restriction. In a pool
/// of one CPU the thread would wait whenever that CPU is busy, most often with its own children.
fn restricts(input: Input<'_>, pools: &Pools, pool: PoolAt) -> bool {
    let asked = input.contract.machine.pools == PoolForm::Size(1);
    pools.pools.len() > 1 && pools.pools.get(pool).is_some_and(|pool| asked || pool.cpus.len() > 1)
}

/// Releases a thread that ended or left its job: if it lives on, it may run anywhere in its unit.
fn release(job: JobId, unit: UnitId, thread: ThreadId, was: &Thread, orders: &mut SeatPlan<'_>) {
    let Some(reported) = &was.reported else { return };
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
    fixed || thread.wanted.is_some_and(|wanted| now.saturating_sub(wanted) < REST_NS)
}

#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod staying_tests;
#[cfg(test)]
mod tests;
