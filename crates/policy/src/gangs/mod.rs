//! Gang scheduling: which jobs run together in a quantum, by what they use of a shared resource (the memory bus, caches, or
//! cores).
//!
//! Problem. Threads that share a bus slow each other down, up to three times, though each has a CPU to itself. The same goes
//! for threads that share a cache, or a core as hardware threads. Saturating the bus in one quantum and leaving it idle in the
//! next wastes it. And the threads of a job wait for each other: running only some of them gains nothing.
//!
//! Terms: a *gang* is a job whose threads either all run or all wait. It needs as many CPUs as its threads wanted at once, at
//! any sample of the last quantum in which it ran. The *shared resource* is the contract's `gangs-share`; the text below takes
//! the bus as the example. The *list* holds the gangs that want CPUs, longest wait first; its first is the *head*.
//!
//! Algorithm. At the end of each quantum:
//! 1. Divide what each gang transferred by its threads ([`rates`]). Estimate what it would have transferred on an idle bus
//!    ([`crate::bus::queue`]); there is no such estimate for caches or cores. The capacity of the shared resource comes from
//!    [`shared`]. Gangs that ran move to the end of the list.
//! 2. The head runs. While CPUs are left, add gangs that fit into them ([`fit`]): the fittest by rate, or those with the most
//!    progress.
//! 3. Stop all others.
//!
//! Within a quantum, a gang that comes or wakes runs at once if CPUs are left, else it waits for the next quantum. CPUs of a
//! gang that ends go to another.
//!
//! Units. Each outermost unit's gangs have a list of their own, on the CPUs that the unit holds. They may use as much of the
//! bus as the unit is entitled to, or as other units left over in the last quantum, if that is more; of caches and cores, the
//! same fraction as of the CPUs. Where units share CPUs by weight, CPUs are divided over time: in each quantum a unit earns its
//! fraction of the machine, and keeps what it cannot use because a gang needs more at once. A unit whose gangs took more of the
//! bus than its entitlement, at the cost of others, waits for a quantum (`crate::bus`).
//!
//! Properties. No starvation: the head always runs. When a gang moves to the end of its list, it waits for at most as many of
//! its unit's quanta as there are gangs before it. No more threads run than there are CPUs, except for one gang with more
//! threads than its unit has CPUs. A sleeping gang is not stopped. The choice is a deterministic function of the facts.
//!
//! Limits: a thread that starts between two samples runs until the next. A gang that waits for a disk keeps its CPUs until the
//! quantum ends; one that did so all quantum counts as asleep.
//!
//! Source: seed 003, section 4. The head, the fitness and the window are from there; the estimate of demand is ours.

mod fit;
mod measure;
mod rates;
mod shared;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use commonhold_contract::{Contract, GangRules, Gangs, GangsShare, Resource, Scheme, UnitId};
use commonhold_machine::CpuSet;

use crate::bus::{self, BusAccounts, GangUse};
use crate::cpu::seats::HeldCpus;
use crate::cpu::{self, CpuState};
use crate::input::Input;
use crate::plan::{Gang as Chosen, GangOrder, Plan, Quantum, Reason, SharedRate, Step};
use crate::rights::Rights;
use crate::snapshot::{JobFacts, JobId, SharedUse};
use crate::time::{MS, Time};
use crate::tree::outermost;

use fit::{Candidate, Left};
use rates::Rates;
use shared::CacheUse;

/// Tolerance for late samples at the end of a quantum.
const LATE_NS: Time = MS;

/// One CPU for one quantum, in the unit of account.
const CPU: i64 = 1_000_000;

/// Units accumulate credit or debt of at most this many quanta of the machine.
const KEPT_QUANTA: i64 = 2;

fn kept(cpus: u32) -> i64 {
    i64::from(cpus) * KEPT_QUANTA * CPU
}

/// The CPUs that outermost units have for their gangs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GangCpus {
    /// All units share all CPUs.
    Machine,
    /// Whole CPUs by unit.
    Cpus(BTreeMap<UnitId, u32>),
    /// Time-shared CPUs by unit, in millionths of a CPU.
    Parts(BTreeMap<UnitId, u64>),
}

impl GangCpus {
    /// The key of the board on which a unit's gangs compete for CPUs: its outermost unit, or `None` if all units share one.
    fn board(&self, contract: &Contract, unit: UnitId) -> Option<UnitId> {
        match self {
            GangCpus::Machine => None,
            GangCpus::Cpus(_) | GangCpus::Parts(_) => Some(outermost(contract, unit)),
        }
    }
}

/// The bus entitlement of an outermost unit, in bytes per second.
type BusOf<'a> = &'a dyn Fn(UnitId) -> u64;

/// Why a unit's gangs must wait even if CPUs are left; `None`: they need not.
type Waits<'a> = &'a dyn Fn(UnitId) -> Option<Reason>;

/// What a sample of the gangs showed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GangSample {
    /// Whether a quantum begins now.
    begins: bool,
    /// What gangs transferred in the previous quantum; empty unless the bus is the shared resource.
    ran: Vec<GangUse>,
}

/// All gangs and their places in the lists, carried from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GangQueue {
    /// By ascending job.
    gangs: Vec<Gang>,
    /// The last place that was given out.
    last_place: u64,
    /// When the quantum ends; 0 before the first.
    until: Time,
    /// Unused CPU credit of outermost units, in millionths of a CPU for a quantum; negative: debt.
    earned: BTreeMap<UnitId, i64>,
    /// What each board used of the shared resource in the last quantum.
    used: BTreeMap<Option<UnitId>, u64>,
    /// The shared resource that all measurements refer to, and the most of it that one thread was seen to use.
    share: GangsShare,
    most: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Gang {
    job: JobId,
    unit: UnitId,
    board: Option<UnitId>,
    /// Its place in the list: the lowest is the head.
    place: u64,
    /// CPUs that it needs.
    cpus: u32,
    /// The most threads that wanted a CPU at any sample of this quantum.
    wanted: u32,
    /// Whether it is in the list.
    awake: bool,
    runs: bool,
    /// The gate's state as last ordered.
    open: bool,
    /// Quanta since it last ran.
    waited: u32,
    /// Its cumulative use of the shared resource when it last started to run.
    mark: Option<SharedUse>,
    /// The latest sample of that.
    last: Option<SharedUse>,
    rates: Rates,
    /// For caches: what it held while they were not full.
    cache_use: CacheUse,
    because: Reason,
}

impl Gang {
    fn new(place: u64, facts: &JobFacts) -> Gang {
        Gang {
            job: facts.job,
            unit: facts.unit,
            board: None,
            place,
            cpus: 1,
            wanted: 0,
            awake: false,
            runs: true,
            open: true,
            waited: 0,
            mark: None,
            last: None,
            rates: Rates::default(),
            cache_use: CacheUse::default(),
            because: Reason::CpusLeft,
        }
    }

    fn sample(&mut self, facts: &JobFacts) {
        let wants = facts.threads.iter().filter(|thread| thread.wants).count();
        let wants = u32::try_from(wants).unwrap_or(u32::MAX);
        self.last = facts.shared.or(self.last);
        if self.mark.is_none() {
            self.mark = self.last;
        }
        // A stopped gang shows no demand.
        if self.runs {
            self.wanted = self.wanted.max(wants);
        }
    }
}

/// Settles the memory bus, and decides which gangs run on the CPUs that units hold; returns when to sample next on their
/// behalf.
pub(crate) fn step(
    queue: &mut Arc<GangQueue>,
    accounts: &mut Arc<BusAccounts>,
    cpu: &CpuState,
    now: Time,
    input: Input<'_>,
    rights: &Rights,
    plan: &mut Plan,
) -> Option<Time> {
    let no_gangs = input.snapshot.jobs.is_empty() && queue.is_empty();
    if no_gangs && input.means.throttle.is_none() && accounts.is_empty() {
        return None;
    }
    let cpus = gang_cpus(cpu, input, rights);
    let queue = Arc::make_mut(queue);
    let sampled = sample(queue, now, input, &cpus, &mut plan.orders.gangs);
    let ended = bus::QuantumEnd {
        ran: sampled.as_ref().map_or(&[], |sample| &sample.ran),
        gangs: sampled.is_some() && input.contract.machine.gangs.share == GangsShare::Bus,
        now: sampled.as_ref().is_some_and(|sample| sample.begins),
    };
    let accounts = Arc::make_mut(accounts);
    let (bus, next) = bus::step(accounts, now, input, rights, &ended, &mut plan.orders.bus);
    plan.decisions.bus = bus;
    let Some(sampled) = sampled else { return next };
    let bus_of = |unit| bus::entitled(input, rights, unit);
    let waits = |unit| accounts.waits(input.contract, unit);
    let choosing = Choosing { gang_cpus: &cpus, begins: sampled.begins, bus_of: &bus_of, waits: &waits };
    let (quantum, next) = choose(queue, now, input, &choosing, &mut plan.orders.gangs);
    plan.decisions.quantum = quantum;
    next
}

/// The CPUs that outermost units have for their gangs.
fn gang_cpus(cpu: &CpuState, input: Input<'_>, rights: &Rights) -> GangCpus {
    match cpu::held_cpus(cpu) {
        _ if input.contract.machine.scheme == Scheme::Smp => GangCpus::Machine,
        HeldCpus::Shared => {
            let entitled = rights.entitlement(Resource::Cpu);
            let outermost = input.contract.held().filter(|unit| input.contract.unit(*unit).parent.is_none());
            GangCpus::Parts(outermost.map(|unit| (unit, entitled.value(unit))).collect())
        }
        HeldCpus::By(held) => {
            let count = |cpus: CpuSet| u32::try_from(cpus.len()).unwrap_or(u32::MAX);
            GangCpus::Cpus(held.into_iter().map(|(unit, cpus)| (unit, count(cpus))).collect())
        }
    }
}

/// Samples the gangs, and starts a quantum when one is due; `None`: there are no gangs.
fn sample(
    state: &mut GangQueue,
    now: Time,
    input: Input<'_>,
    gang_cpus: &GangCpus,
    orders: &mut Vec<Step<GangOrder>>,
) -> Option<GangSample> {
    let rules = input.contract.machine.gangs;
    if rules.by == Gangs::Off || !input.means.gangs || input.snapshot.jobs.is_empty() {
        for gang in core::mem::take(state).gangs {
            gang.release(orders);
        }
        return None;
    }
    state.measure_by(rules.share);
    state.update(input, gang_cpus, orders);
    let begins = now.saturating_add(LATE_NS) >= state.until;
    let mut ran = Vec::new();
    if begins {
        ran = state.measure(input, rules);
        state.pass_on();
        state.until = now.saturating_add(rules.quantum_ns);
    } else {
        state.wake();
    }
    Some(GangSample { begins, ran })
}

/// The inputs of the choice of gangs.
struct Choosing<'a> {
    gang_cpus: &'a GangCpus,
    /// Whether a quantum begins.
    begins: bool,
    bus_of: BusOf<'a>,
    waits: Waits<'a>,
}

/// Choosing which gangs run after a sample; returns the choice, and when to sample next.
fn choose(
    state: &mut GangQueue,
    now: Time,
    input: Input<'_>,
    Choosing { gang_cpus, begins, bus_of, waits }: &Choosing<'_>,
    orders: &mut Vec<Step<GangOrder>>,
) -> (Option<Quantum>, Option<Time>) {
    let (begins, rules) = (*begins, input.contract.machine.gangs);
    let cpus = u32::try_from(input.machine.cpus.len()).unwrap_or(u32::MAX).max(1);
    let whole = shared::whole(input.machine, rules.share, state.most);
    let first_rate = rules.first_rate.of(whole / u64::from(cpus));
    let mut quantum =
        Quantum { until: state.until, begins, goes_on: state.running(), chosen: Vec::new(), waiting: 0 };
    let boards = state.boards(gang_cpus, cpus, begins);
    let part_of = |unit: UnitId| match rules.share {
        GangsShare::Bus => bus_of(unit),
        GangsShare::Cache | GangsShare::Cores => shared::part(gang_cpus, unit, whole, cpus),
    };
    let part_of_board = |state: &GangQueue, board: Option<UnitId>| match board {
        None => whole,
        Some(unit) => part_of(unit).max(whole.saturating_sub(state.used_by_others(board))),
    };
    let mut idle = cpus.saturating_sub(boards.iter().map(|board| board.taken).sum());
    // First each unit's own CPUs, then those that no unit could use.
    for spare in [false, true] {
        let parts = matches!(gang_cpus, GangCpus::Parts(_));
        if spare && !parts {
            break;
        }
        for board in &boards {
            let own = if spare { idle } else { board.left.min(idle) };
            let part = part_of_board(state, board.unit);
            let mut choice = Choice {
                state,
                rules,
                board: board.unit,
                cpus: own,
                most: board.most,
                head_first: begins && !spare,
                part,
                first_rate,
                waits,
                chosen: &mut quantum.chosen,
            };
            let used = choice.make();
            idle -= used;
            if let (true, Some(unit)) = (parts, board.unit) {
                state.pay(unit, used, cpus);
            }
        }
    }
    quantum.waiting = u32::try_from(state.gangs.iter().filter(|gang| !gang.runs).count()).unwrap_or(u32::MAX);
    state.order_gates(waits, orders);
    // Demand shows only in samples: take one in each half of a quantum.
    let next = state.until.min(now.saturating_add(rules.quantum_ns / 2));
    let changed = begins || !quantum.chosen.is_empty();
    (changed.then_some(quantum), Some(next))
}

impl Gang {
    fn release(&self, orders: &mut Vec<Step<GangOrder>>) {
        if !self.open {
            let action = GangOrder::Gate { job: self.job, unit: self.unit, open: true };
            orders.push(Step { action, reason: Reason::NoGang });
        }
    }
}

impl GangQueue {
    /// Whether no job is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.gangs.is_empty()
    }

    /// Adds and removes jobs, and samples their demand. Both lists ascend by job.
    fn update(&mut self, input: Input<'_>, gang_cpus: &GangCpus, orders: &mut Vec<Step<GangOrder>>) {
        let jobs = &input.snapshot.jobs;
        if !self.gangs.iter().map(|gang| gang.job).eq(jobs.iter().map(|facts| facts.job)) {
            self.come_and_go(jobs, orders);
        }
        for (gang, facts) in self.gangs.iter_mut().zip(jobs) {
            (gang.unit, gang.board) = (facts.unit, gang_cpus.board(input.contract, facts.unit));
            gang.sample(facts);
        }
    }

    /// Drops jobs that ended, and adds new ones.
    fn come_and_go(&mut self, jobs: &[JobFacts], orders: &mut Vec<Step<GangOrder>>) {
        self.gangs.retain(|gang| {
            let stays = jobs.binary_search_by_key(&gang.job, |facts| facts.job).is_ok();
            if !stays {
                gang.release(orders);
            }
            stays
        });
        let known = self.gangs.len();
        for facts in jobs {
            if self.gangs[..known].binary_search_by_key(&facts.job, |gang| gang.job).is_err() {
                self.last_place += 1;
                self.gangs.push(Gang::new(self.last_place, facts));
            }
        }
        self.gangs.sort_unstable_by_key(|gang| gang.job);
    }

    /// Ends the quantum: gangs that ran move to the end of the list, or leave it if they slept.
    fn pass_on(&mut self) {
        self.gangs.iter_mut().filter(|gang| !gang.runs).for_each(|gang| gang.waited += 1);
        let mut ran: Vec<usize> = (0..self.gangs.len()).filter(|at| self.gangs[*at].runs).collect();
        ran.sort_unstable_by_key(|at| self.gangs[*at].place);
        for at in ran {
            self.last_place += 1;
            let gang = &mut self.gangs[at];
            gang.place = self.last_place;
            gang.awake = gang.wanted > 0;
            if gang.awake {
                gang.cpus = gang.wanted;
            }
            gang.waited = 0;
            gang.runs = !gang.awake;
            (gang.wanted, gang.mark) = (0, gang.last);
        }
    }

    /// Puts gangs that woke, or just came, into the list, to wait until they are chosen.
    fn wake(&mut self) {
        for gang in self.gangs.iter_mut().filter(|gang| !gang.awake && gang.wanted > 0) {
            (gang.awake, gang.runs, gang.cpus) = (true, false, gang.wanted);
        }
    }

    /// The boards with gangs that want CPUs; where CPUs are time-shared, the unit with most credit first.
    fn boards(&mut self, gang_cpus: &GangCpus, cpus: u32, begins: bool) -> Vec<Board> {
        let mut boards: BTreeMap<Option<UnitId>, (u32, bool)> = BTreeMap::new();
        // A unit's jobs are often adjacent: enter a whole run with one lookup.
        for run in self.gangs.chunk_by(|one, next| one.board == next.board) {
            let awake = || run.iter().filter(|gang| gang.awake);
            if awake().next().is_none() {
                continue;
            }
            let (taken, waits) = boards.entry(run[0].board).or_default();
            *taken += awake().filter(|gang| gang.runs).map(|gang| gang.cpus).sum::<u32>();
            *waits |= awake().any(|gang| !gang.runs);
        }
        if let GangCpus::Parts(parts) = gang_cpus {
            self.earned.retain(|unit, _| boards.contains_key(&Some(*unit)));
            for unit in boards.iter().filter(|(_, (_, waits))| begins && *waits).filter_map(|(unit, _)| *unit)
            {
                let part = parts.get(&unit).copied().unwrap_or(0);
                let earned = self.earned.entry(unit).or_default();
                *earned = earned.saturating_add_unsigned(part).min(kept(cpus));
            }
        }
        let earned =
            |unit: Option<UnitId>| unit.and_then(|unit| self.earned.get(&unit).copied()).unwrap_or(0);
        let board = |(unit, (taken, _)): (Option<UnitId>, (u32, bool))| match gang_cpus {
            GangCpus::Machine => Board { unit, taken, left: cpus.saturating_sub(taken), most: cpus },
            GangCpus::Cpus(has) => {
                let most = unit.and_then(|unit| has.get(&unit).copied()).unwrap_or(0).max(1);
                Board { unit, taken, left: most.saturating_sub(taken), most }
            }
            GangCpus::Parts(_) => {
                let left = u32::try_from(earned(unit) / CPU).unwrap_or(0);
                Board { unit, taken, left, most: cpus }
            }
        };
        let mut boards: Vec<Board> = boards.into_iter().map(board).collect();
        boards.sort_by_key(|board| core::cmp::Reverse(earned(board.unit)));
        boards
    }

    /// Charges a unit for its gangs' CPUs in this quantum; `all` is the machine's CPUs.
    fn pay(&mut self, unit: UnitId, cpus: u32, all: u32) {
        if let Some(earned) = self.earned.get_mut(&unit) {
            *earned = (*earned - i64::from(cpus) * CPU).max(-kept(all));
        }
    }

    /// The gangs that run and are awake.
    fn running(&self) -> Vec<JobId> {
        self.gangs.iter().filter(|gang| gang.runs && gang.awake).map(|gang| gang.job).collect()
    }

    /// What all other boards used in the last quantum.
    fn used_by_others(&self, board: Option<UnitId>) -> u64 {
        self.used.iter().filter(|(other, _)| **other != board).map(|(_, used)| used).sum()
    }

    /// Orders changed gates.
    fn order_gates(&mut self, waits: Waits<'_>, orders: &mut Vec<Step<GangOrder>>) {
        for gang in self.gangs.iter_mut().filter(|gang| gang.open != gang.runs) {
            let waits = || waits(gang.unit).unwrap_or(Reason::NotThisQuantum);
            let reason = if gang.runs { gang.because } else { waits() };
            let action = GangOrder::Gate { job: gang.job, unit: gang.unit, open: gang.runs };
            gang.open = gang.runs;
            orders.push(Step { action, reason });
        }
        // Stop gangs before others start, so that these find free CPUs.
        orders.sort_by_key(|step| matches!(step.action, GangOrder::Gate { open: true, .. }));
    }
}

/// Gangs that compete for the same CPUs.
struct Board {
    /// The outermost unit; `None`: all units.
    unit: Option<UnitId>,
    /// CPUs in use by gangs.
    taken: u32,
    /// CPUs left.
    left: u32,
    /// The most CPUs that it could have.
    most: u32,
}

/// The choice of gangs on one board.
struct Choice<'a> {
    state: &'a mut GangQueue,
    rules: GangRules,
    board: Option<UnitId>,
    /// CPUs left, and the most that the board could have.
    cpus: u32,
    most: u32,
    /// Whether the head must be chosen first: if it does not fit, no gang is chosen.
    head_first: bool,
    /// The board's part of the shared resource.
    part: u64,
    /// The assumed rate of an unmeasured thread.
    first_rate: u64,
    /// Gangs of units that must wait are skipped.
    waits: Waits<'a>,
    chosen: &'a mut Vec<Step<Chosen>>,
}

impl Choice<'_> {
    /// Choosing gangs; returns the number of CPUs given to them.
    fn make(&mut self) -> u32 {
        if self.cpus == 0 {
            return 0;
        }
        let (mut waiting, mut running) = (Vec::new(), Vec::new());
        for (at, gang) in self.state.gangs.iter().enumerate() {
            if gang.board != self.board || !gang.awake || !gang.runs && (self.waits)(gang.unit).is_some() {
                continue;
            }
            let rate = gang.rates.by(self.rules.by, self.rules.window).unwrap_or(self.first_rate);
            // A gang with more threads than the board could ever have CPUs runs on all of them.
            let candidate = Candidate { at, place: gang.place, cpus: gang.cpus.min(self.most), rate };
            if gang.runs { running.push(candidate) } else { waiting.push(candidate) }
        }
        let mut left = Left { cpus: self.cpus, amount: i64::try_from(self.part).unwrap_or(i64::MAX) };
        for gang in &running {
            left.amount = left.amount.saturating_sub_unsigned(gang.rate.saturating_mul(gang.cpus.into()));
        }
        let head = (0..waiting.len()).min_by_key(|number| waiting[*number].place);
        match head {
            Some(head) if self.head_first && waiting[head].cpus > left.cpus => return 0,
            None => return 0,
            Some(_) => {}
        }
        match self.rules.by {
            Gangs::Demand if self.rules.share == GangsShare::Bus => {
                self.together(&mut waiting, running, &mut left);
            }
            _ => self.fittest(&mut waiting, head, &mut left),
        }
        self.cpus - left.cpus
    }

    fn fittest(&mut self, waiting: &mut Vec<Candidate>, head: Option<usize>, left: &mut Left) {
        if let Some(head) = head.filter(|_| self.head_first) {
            let head = waiting.swap_remove(head);
            left.take(&head);
            self.run(&head, true, Reason::CpusLeft);
        }
        while let Some(next) = fit::fittest(waiting, *left) {
            let next = waiting.swap_remove(next);
            let reason = Reason::Fittest { of: self.rules.share, left: left.each() };
            left.take(&next);
            self.run(&next, false, reason);
        }
    }

    fn together(&mut self, waiting: &mut Vec<Candidate>, mut beside: Vec<Candidate>, left: &mut Left) {
        let mut head = self.head_first;
        loop {
            let (chosen, permille) = fit::together(waiting, &beside, left.cpus, self.part);
            if chosen.is_empty() {
                return;
            }
            for number in &chosen {
                let next = waiting[*number];
                left.take(&next);
                beside.push(next);
                self.run(&next, head, Reason::GetsOnBeside { permille });
                head = false;
            }
            let mut number = 0;
            waiting.retain(|_| {
                number += 1;
                !chosen.contains(&(number - 1))
            });
        }
    }

    fn run(&mut self, candidate: &Candidate, is_head: bool, otherwise: Reason) {
        let gang = &mut self.state.gangs[candidate.at];
        let reason = if is_head { Reason::HeadOfList { waited: gang.waited } } else { otherwise };
        gang.runs = true;
        gang.because = reason;
        (gang.waited, gang.wanted) = (0, 0);
        gang.mark = gang.last;
        let rate = SharedRate::of(self.rules.share, candidate.rate);
        let chosen = Chosen { job: gang.job, unit: gang.unit, cpus: candidate.cpus, rate };
        self.chosen.push(Step { action: chosen, reason });
    }
}

#[cfg(test)]
mod tests;
