//! Where the threads of a job run: the pool of each.
//!
//! Problem. Threads of a job share memory, and should run near each other; other jobs should run elsewhere. How many
//! threads a job will have is not known: they come one at a time.
//!
//! Terms: [`board`] has those of pools. A thread *counts* while it wants a CPU, and for [`REST_NS`] after. A job's
//! *togetherness* is Σ c², for c of its threads in each pool.
//!
//! Algorithm:
//! 0. Where pools took another form, a seat is in the pool that has the first CPU of the old one that is there still.
//! 1. Threads that are gone, rest, or sit where their unit has no CPU any more get up.
//! 2. Threads that count and have no seat are placed where their owners let them run, job by job in the order in which jobs came, by the contract's
//!    placement ([`board::Board::choose`]). The first one of a job that has run already stays where it is, if the contract has
//!    worst fit, and three quarters of that pool are free: its pages are there, and others hardly disturb it. Where no pool has a free seat a thread has none, and runs where its unit may.
//! 3. Repartitioning, if the contract has it. A thread that sits apart from most of its job moves to the pool where these
//!    are: onto a free seat, or in exchange with a thread of another job there. It moves if the togetherness of both jobs
//!    grows by that in sum, and the gain pays for the move. The gain is [`GAIN_PART`] of the job's CPU time for as long as
//!    it has gone on since its last move, times the growth: a job that has run so long will run as long again, in the mean.
//!    The cost is [`MOVE_NS`] for each thread that moves.
//! 4. Pages of a job come after its threads, where that pays by the same measure ([`pages`]).
//!
//! Properties: no pool has more threads with a seat than CPUs that their unit may use. A thread is without a seat only while
//! all seats are taken that it may have. Without repartitioning, a thread that counts and keeps its unit's CPUs never moves. Each move makes the
//! sum of togetherness grow, so moves end. The same facts give the same seats.
//!
//! Limits: threads that are tied to the same CPU of a pool take a seat each. A job that sleeps for longer than [`REST_NS`] may find its pool taken. Which CPU of a pool a thread has is the
//! kernel's choice. The gain is taken to be the same for all programs.
//!
//! Source: seed 001, section 6; repartitioning is left open there (sections 2 and 6). That what has run long will run long:
//! M. Harchol-Balter and A. Downey, Exploiting Process Lifetime Distributions for Dynamic Load Balancing, 1997.

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

/// A thread that has not wanted a CPU for so long gives up its seat.
pub(crate) const REST_NS: Time = 1_000 * MS;

/// What moving a thread to another pool costs: bringing a megabyte or so into another cache.
pub(crate) const MOVE_NS: u64 = MS;

/// What running in one pool instead of apart saves: a tenth of the CPU time. Seed 001 measured more, with slower memory.
pub(crate) const GAIN_PART: u64 = 10;

/// The pools of a machine, as a contract has them formed.
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

/// The machine's pools, as long as it stays the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Formed {
    of: Option<(PoolForm, Vec<Cpu>)>,
    pools: Arc<Pools>,
}

impl Formed {
    /// The pools of a machine, formed anew where it or the form is another.
    pub(crate) fn of(&mut self, machine: &Machine, form: PoolForm) -> Arc<Pools> {
        let same = self.of.as_ref().is_some_and(|(was, cpus)| *was == form && *cpus == machine.cpus);
        if !same {
            self.pools = Arc::new(pools(machine, form));
            self.of = Some((form, machine.cpus.clone()));
        }
        Arc::clone(&self.pools)
    }
}

/// What is remembered of jobs between steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    jobs: BTreeMap<JobId, Job>,
    /// The pools that seats are numbers of.
    pools: Arc<Pools>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    unit: UnitId,
    /// When it came, or moved last.
    since: Time,
    /// When its pages were brought last.
    brought: Option<Time>,
    threads: BTreeMap<ThreadId, Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    /// When it wanted a CPU last.
    wanted: Option<Time>,
    /// Where it was seen first.
    at: Option<PoolAt>,
    /// The CPUs that its owner ties it to.
    tied: Option<CpuSet>,
    seat: Option<PoolAt>,
    /// Why it has that seat, or none.
    because: Reason,
    /// What was said of it last; `None`: nothing yet.
    said: Option<Said>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    pool: Option<PoolAt>,
    cpus: Option<CpuSet>,
}

/// Which CPUs units may use for their jobs.
pub(crate) enum Held {
    /// All of them, all units alike.
    Shared,
    /// Each outermost unit those that it holds.
    By(BTreeMap<UnitId, CpuSet>),
}

/// What is decided and ordered of jobs.
pub(crate) struct Orders<'a> {
    pub(crate) seats: &'a mut Vec<Step<Seat>>,
    pub(crate) orders: &'a mut Vec<Step<SeatOrder>>,
}

/// Decides where the threads of all jobs run.
pub(crate) fn step(
    state: &mut State,
    formed: &mut Formed,
    now: Time,
    input: Input<'_>,
    held: &Held,
    orders: &mut Orders<'_>,
) {
    let facts = &input.snapshot.jobs;
    if input.means.seats == Seats::None || facts.is_empty() {
        for (id, job) in core::mem::take(&mut state.jobs) {
            job.threads.iter().for_each(|(thread, was)| let_go(id, job.unit, *thread, was, orders));
        }
        return;
    }
    let pools = formed.of(input.machine, input.contract.machine.pools);
    state.reform(&pools);
    state.take_in(now, facts, &pools, orders);
    let mut hall = Hall::new(&pools, input, held);
    state.rise(now, input, &mut hall);
    state.place(now, input, &mut hall);
    if input.contract.machine.repartition {
        repartition::step(state, now, &mut hall);
    }
    state.say(input, &hall, orders);
    if input.contract.machine.repartition {
        state.bring(now, input, &pools, orders);
    }
}

/// The boards of all sets of units, each made when it is asked for first.
struct Hall<'a> {
    pools: &'a Pools,
    contract: &'a commonhold_contract::Contract,
    held: &'a Held,
    switches: bool,
    boards: BTreeMap<Option<UnitId>, Board>,
}

impl<'a> Hall<'a> {
    fn new(pools: &'a Pools, input: Input<'a>, held: &'a Held) -> Hall<'a> {
        Hall {
            pools,
            contract: input.contract,
            held,
            switches: input.means.switches && input.means.seats == Seats::Cpus,
            boards: BTreeMap::new(),
        }
    }

    /// Which board a unit's jobs are on.
    fn key(&self, unit: UnitId) -> Option<UnitId> {
        match self.held {
            Held::Shared => None,
            Held::By(_) => Some(outermost(self.contract, unit)),
        }
    }

    /// The CPUs of a pool that a unit may use.
    fn cpus(&self, unit: UnitId, pool: PoolAt) -> CpuSet {
        let all = self.pools.pools.get(pool).map(|pool| pool.cpus.iter().copied().collect::<CpuSet>());
        let all = all.unwrap_or_default();
        match (self.held, self.key(unit)) {
            (Held::By(held), Some(unit)) => {
                held.get(&unit).map_or_else(CpuSet::new, |own| all.intersection(own))
            }
            _ => all,
        }
    }

    /// The CPUs that a thread with a seat in a pool runs on. Where a scheduler decides at every switch, it keeps units to their
    /// CPUs, and lends them others: those of the pool among them.
    fn reach(&self, unit: UnitId, pool: PoolAt) -> CpuSet {
        match self.pools.pools.get(pool) {
            Some(pool) if self.switches => pool.cpus.iter().copied().collect(),
            _ => self.cpus(unit, pool),
        }
    }

    /// Whether its owner lets a thread run on any CPU that it would have in a pool.
    fn may_sit(&self, unit: UnitId, thread: &Thread, pool: PoolAt) -> bool {
        thread.tied.as_ref().is_none_or(|tied| !self.cpus(unit, pool).intersection(tied).is_empty())
    }

    /// The board of a unit, if it was asked for before.
    fn made(&self, unit: UnitId) -> Option<&Board> {
        self.boards.get(&self.key(unit))
    }

    fn board(&mut self, unit: UnitId) -> &mut Board {
        let key = self.key(unit);
        let (pools, held) = (self.pools, self.held);
        self.boards.entry(key).or_insert_with(|| {
            let room = pools.pools.iter().map(|pool| match (held, key) {
                (Held::By(held), Some(unit)) => {
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
    /// How many of its threads sit in each pool.
    fn spread(&self) -> Vec<(PoolAt, u32)> {
        let mut spread: BTreeMap<PoolAt, u32> = BTreeMap::new();
        for pool in self.threads.values().filter_map(|thread| thread.seat) {
            *spread.entry(pool).or_default() += 1;
        }
        spread.into_iter().collect()
    }
}

/// How many of a job's threads are in a pool.
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

impl State {
    /// Whether no job is known.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The pools took another form, or have other numbers, since CPUs went or came: a seat is in the pool that has the first CPU
    /// of the old one that is there still.
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

    /// Takes note of which jobs and threads are there.
    fn take_in(&mut self, now: Time, facts: &[JobFacts], pools: &Pools, orders: &mut Orders<'_>) {
        let there: BTreeSet<JobId> = facts.iter().map(|facts| facts.job).collect();
        self.jobs.retain(|id, job| {
            let stays = there.contains(id);
            if !stays {
                job.threads.iter().for_each(|(thread, was)| let_go(*id, job.unit, *thread, was, orders));
            }
            stays
        });
        // Few threads come anew: the pool of a CPU is looked for, not listed.
        let pool_of = |cpu: u32| pools.pools.iter().position(|pool| pool.cpus.binary_search(&cpu).is_ok());
        for facts in facts {
            let job = self.jobs.entry(facts.job).or_insert_with(|| Job {
                unit: facts.unit,
                since: now,
                brought: None,
                threads: BTreeMap::new(),
            });
            job.unit = facts.unit;
            // Both are in ascending order.
            let mut still = facts.threads.iter().map(|facts| facts.thread).peekable();
            let unit = job.unit;
            job.threads.retain(|thread, was| {
                while still.next_if(|there| there < thread).is_some() {}
                let stays = still.peek() == Some(thread);
                if !stays {
                    let_go(facts.job, unit, *thread, was, orders);
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
                    said: None,
                });
                if facts.wants {
                    thread.wanted = Some(now);
                }
                thread.tied.clone_from(&facts.tied);
            }
        }
    }

    /// Threads keep their seats, but for those that rest, and those whose seats are not there any more.
    fn rise(&mut self, now: Time, input: Input<'_>, hall: &mut Hall<'_>) {
        let fixed = input.means.seats == Seats::Fixed;
        for job in self.jobs.values_mut() {
            let mut spread = Vec::new();
            for thread in job.threads.values_mut() {
                let Some(pool) = thread.seat.take() else { continue };
                let may = hall.may_sit(job.unit, thread, pool);
                let board = hall.board(job.unit);
                thread.because = if counts(thread, now, fixed) { thread.because } else { Reason::Rests };
                if thread.because != Reason::Rests && may && board.has_seat(pool) {
                    board.sit(pool, in_pool(&spread, pool) == 0);
                    count(&mut spread, pool, 1);
                    thread.seat = Some(pool);
                }
            }
        }
    }

    /// Threads that count and have no seat get one.
    fn place(&mut self, now: Time, input: Input<'_>, hall: &mut Hall<'_>) {
        let placement = input.contract.machine.placement;
        let fixed = input.means.seats == Seats::Fixed;
        for job in self.jobs.values_mut() {
            let waits = |thread: &Thread| thread.seat.is_none() && counts(thread, now, fixed);
            if !job.threads.values().any(waits) {
                continue;
            }
            let mut spread = job.spread();
            for thread in job.threads.values_mut().filter(|thread| waits(thread)) {
                hall.board(job.unit);
                let may = |pool| hall.may_sit(job.unit, thread, pool);
                // What it touched so far lies where it is.
                let here = thread.at.filter(|pool| placement == Placement::WorstFit && !fixed && may(*pool));
                let stays = |board: &Board| here.filter(|pool| spread.is_empty() && board.is_quiet(*pool));
                let found = hall.made(job.unit).and_then(|board| {
                    stays(board).or_else(|| board.choose(placement, &spread, thread.at, &may))
                });
                let stayed = hall.made(job.unit).and_then(stays).is_some();
                let placement = if stayed { Placement::Near } else { placement };
                let board = hall.board(job.unit);
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
                board.sit(pool, own == 0);
                count(&mut spread, pool, 1);
                thread.seat = Some(pool);
            }
        }
    }

    /// What is new of threads' seats.
    fn say(&mut self, input: Input<'_>, hall: &Hall<'_>, orders: &mut Orders<'_>) {
        let fixed = input.means.seats == Seats::Fixed;
        for (id, job) in &mut self.jobs {
            for (number, thread) in &mut job.threads {
                let cpus = thread.seat.map(|pool| hall.reach(job.unit, pool));
                let cpus =
                    cpus.filter(|_| fixed || thread.seat.is_some_and(|pool| ties(input, hall.pools, pool)));
                let now = Said { pool: thread.seat, cpus };
                let silent = Said { pool: None, cpus: None };
                let new = match &thread.said {
                    Some(said) => *said != now,
                    None => now != silent || fixed,
                };
                if !new {
                    continue;
                }
                let (thread_id, job_id, unit, reason) = (*number, *id, job.unit, thread.because);
                if thread.said.as_ref().map(|said| said.pool) != Some(now.pool) {
                    let pool = now.pool.and_then(|pool| u32::try_from(pool).ok());
                    let action = Seat { thread: thread_id, job: job_id, unit, pool };
                    orders.seats.push(Step { action, reason });
                }
                let before = thread.said.as_ref().and_then(|said| said.cpus.as_ref());
                if before != now.cpus.as_ref() || (fixed && thread.said.is_none()) {
                    let cpus = now.cpus.clone();
                    let action = SeatOrder::Seat { thread: thread_id, job: job_id, unit, cpus };
                    orders.orders.push(Step { action, reason });
                }
                thread.said = Some(now);
            }
        }
    }

    /// Pages come after threads, where that pays.
    fn bring(&mut self, now: Time, input: Input<'_>, pools: &Pools, orders: &mut Orders<'_>) {
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

/// Whether a thread with a seat in a pool is told so, where it has no CPU of its own. On a machine of one pool there is nothing
/// to say. In a pool that is one CPU, since a cache or a node has no more, it would wait whenever that is taken, by its own
/// children first.
fn ties(input: Input<'_>, pools: &Pools, pool: PoolAt) -> bool {
    let asked = input.contract.machine.pools == PoolForm::Size(1);
    pools.pools.len() > 1 && pools.pools.get(pool).is_some_and(|pool| asked || pool.cpus.len() > 1)
}

/// A thread is not there any more, or is in no job: one that lives on may run where its unit may.
fn let_go(job: JobId, unit: UnitId, thread: ThreadId, was: &Thread, orders: &mut Orders<'_>) {
    let Some(said) = &was.said else { return };
    let reason = Reason::ThreadGone;
    if said.pool.is_some() {
        orders.seats.push(Step { action: Seat { thread, job, unit, pool: None }, reason });
    }
    if said.cpus.is_some() {
        orders.orders.push(Step { action: SeatOrder::Seat { thread, job, unit, cpus: None }, reason });
    }
}

/// Whether a thread needs a seat. One that has a CPU of its own does while it is there.
fn counts(thread: &Thread, now: Time, fixed: bool) -> bool {
    fixed || thread.wanted.is_some_and(|wanted| now.saturating_sub(wanted) < REST_NS)
}

#[cfg(test)]
mod large;
#[cfg(test)]
mod staying;
#[cfg(test)]
mod tests;
