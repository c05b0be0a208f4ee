//! Gang scheduling: the choice of the jobs that run together in a quantum, by their use of a shared resource
//! (the memory bus or the last-level caches).
//!
//! Problem. Threads that share a bus may make each other run up to three times slower, though each has a CPU
//! to itself. The same goes for threads that share a cache. If the bus is saturated in one quantum and idle
//! in the next, some of its capacity is wasted. Besides, the threads of a job wait for each other: running
//! only some of them gains nothing.
//!
//! Terms: a *gang* is a job whose threads either all run or all wait. A gang needs as many CPUs as its
//! threads wanted at the same time, at most, in the samples of the last quantum in which it ran. The *shared
//! resource* is the contract's `gangs-share`; the text below takes the bus as the example. The *list*
//! contains the gangs that want CPUs; the gang that has waited longest is the first, the *head*. Gangs that
//! compete for the same CPUs are on one *board*, which has a list of its own. A board has the gangs of one
//! outermost unit or, if units share all CPUs, all gangs.
//!
//! Algorithm. At the end of each quantum:
//! 1. Divide each gang's transfers by its number of threads, which gives its rate ([`rates`]). Estimate its
//!    demand, the rate that it would have on an idle bus ([`crate::bus::queue`]); there is no such estimate
//!    for caches. [`shared`] gives the capacity of the shared resource. Gangs that ran move to the end of the
//!    list.
//! 2. The head runs. While CPUs are free, add gangs that need no more than the free CPUs ([`fit`]): the
//!    fittest gang by rate, or those gangs that together make the most progress.
//! 3. Stop all other gangs.
//!
//! Within a quantum, a gang that comes or wakes runs at once if enough CPUs are free; else it waits for the
//! next quantum. When a gang ends, its CPUs go to another gang.
//!
//! Units. Each outermost unit's gangs run on the CPUs that the unit holds. Together they may use as much of
//! the bus as the unit is entitled to, or as much as other units left over in the last quantum, whichever is
//! more. Of the caches they may use the same fraction as of the CPUs. Where units share CPUs by weight, CPUs
//! are divided over time: in each quantum a unit earns its fraction of the machine as credit. It saves credit
//! that it cannot use yet, when a gang needs more CPUs at once than the credit pays for. If a unit's gangs
//! transferred more than the unit's entitlement to the bus, at the cost of other units, the unit waits for a
//! quantum (`crate::bus`).
//!
//! Properties. No starvation: the head always runs. When a gang moves to the end of its list, it waits for at
//! most as many of its unit's quanta as there are gangs before it. No more threads run than there are CPUs,
//! except for one gang with more threads than its unit has CPUs. A sleeping gang is not stopped. The choice
//! is a deterministic function of the facts.
//!
//! Limits: a thread that starts between two samples runs until the next sample. A gang that waits for a disk
//! keeps its CPUs until the quantum ends; if its threads wait at every sample of a quantum, the gang counts
//! as asleep.
//!
//! Source: seed 003, section 4. The head, the fitness and the window are from there; the estimate of demand
//! is ours.

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

use fit::{Candidate, Remaining};
use rates::Rates;
use shared::CacheUse;

/// Tolerance for late samples at the end of a quantum.
const LATE_NS: Time = MS;

/// One CPU for one quantum, in the unit of account of credits.
const CPU: i64 = 1_000_000;

/// The most credit that a unit saves, and the most debt that it runs into: all CPUs of the machine for this
/// many quanta.
const CREDIT_QUANTA_MAX: i64 = 2;

/// The largest credit or debt of a unit on a machine with this many CPUs.
fn credit_max(cpus: u32) -> i64 {
    i64::from(cpus) * CREDIT_QUANTA_MAX * CPU
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
    /// The key of the board on which a unit's gangs compete for CPUs: its outermost unit, or `None` if all
    /// units share one.
    fn board(&self, contract: &Contract, unit: UnitId) -> Option<UnitId> {
        match self {
            GangCpus::Machine => None,
            GangCpus::Cpus(_) | GangCpus::Parts(_) => Some(outermost(contract, unit)),
        }
    }
}

/// The bus entitlement of an outermost unit, in bytes per second.
type BusEntitlement<'a> = &'a dyn Fn(UnitId) -> u64;

/// The reason for which a unit's gangs must wait even if CPUs are free; `None`: they need not wait.
type WhyUnitWaits<'a> = &'a dyn Fn(UnitId) -> Option<Reason>;

/// The result of sampling the gangs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GangSample {
    /// Whether a quantum begins now.
    begins: bool,
    /// The gangs that ran in the previous quantum, with their transfers; empty unless the bus is the shared
    /// resource.
    ran: Vec<GangUse>,
}

/// All gangs and their places in the lists, carried from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GangQueue {
    /// By ascending job.
    gangs: Vec<Gang>,
    /// The number of the last position in a list that was given to a gang; positions only grow.
    last_place: u64,
    /// When the quantum ends; 0 before the first.
    until: Time,
    /// The CPU credit of outermost units, where CPUs are time-shared, in millionths of a CPU for a quantum;
    /// negative: debt.
    credits: BTreeMap<UnitId, i64>,
    /// The amount of the shared resource that each board used in the last quantum.
    used: BTreeMap<Option<UnitId>, u64>,
    /// The shared resource that all measurements refer to.
    share: GangsShare,
}

/// A gang, with its place in the list and its measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Gang {
    job: JobId,
    unit: UnitId,
    /// The board on which it competes for CPUs.
    board: Option<UnitId>,
    /// Its position in the list: the gang with the lowest is the head.
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
    /// Its counter of the shared resource when it last started to run.
    mark: Option<SharedUse>,
    /// The latest sample of that counter.
    last: Option<SharedUse>,
    rates: Rates,
    /// For caches: the amount that it held while the caches were not full.
    cache_use: CacheUse,
    /// Why it was last chosen to run.
    because: Reason,
}

impl Gang {
    /// A gang that was not sampled yet. It may run until a sample shows that it wants CPUs.
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

    /// Enters the number of threads that want CPUs, and the counter of the shared resource.
    fn sample(&mut self, facts: &JobFacts) {
        let wanted_cpus = facts.threads.iter().filter(|thread| thread.wants).count();
        let wanted_cpus = u32::try_from(wanted_cpus).unwrap_or(u32::MAX);
        self.last = facts.shared.or(self.last);
        if self.mark.is_none() {
            self.mark = self.last;
        }
        // A stopped gang shows no demand.
        if self.runs {
            self.wanted = self.wanted.max(wanted_cpus);
        }
    }
}

/// Decides about the memory bus ([`bus`]), and which gangs run on the CPUs that units hold. Returns when to
/// sample next on behalf of the bus and the gangs.
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
    let bus_entitlement = |unit| bus::entitled(input, rights, unit);
    let why_unit_waits = |unit| accounts.waits(input.contract, unit);
    let inputs = ChoiceInputs {
        gang_cpus: &cpus,
        begins: sampled.begins,
        bus_entitlement: &bus_entitlement,
        why_unit_waits: &why_unit_waits,
    };
    let (quantum, next) = choose(queue, now, input, &inputs, &mut plan.orders.gangs);
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
        state.end_quantum();
        state.until = now.saturating_add(rules.quantum_ns);
    } else {
        state.wake();
    }
    Some(GangSample { begins, ran })
}

/// The inputs of the choice of gangs.
struct ChoiceInputs<'a> {
    gang_cpus: &'a GangCpus,
    /// Whether a quantum begins.
    begins: bool,
    bus_entitlement: BusEntitlement<'a>,
    why_unit_waits: WhyUnitWaits<'a>,
}

/// Chooses the gangs that run after a sample. Returns the choice, if it changed, and when to sample next.
fn choose(
    state: &mut GangQueue,
    now: Time,
    input: Input<'_>,
    ChoiceInputs { gang_cpus, begins, bus_entitlement, why_unit_waits }: &ChoiceInputs<'_>,
    orders: &mut Vec<Step<GangOrder>>,
) -> (Option<Quantum>, Option<Time>) {
    let (begins, rules) = (*begins, input.contract.machine.gangs);
    let cpus = u32::try_from(input.machine.cpus.len()).unwrap_or(u32::MAX).max(1);
    let whole = shared::whole(input.machine, rules.share);
    let first_rate = rules.first_rate.of(whole / u64::from(cpus));
    let mut quantum =
        Quantum { until: state.until, begins, goes_on: state.running(), chosen: Vec::new(), waiting: 0 };
    let boards = state.boards(gang_cpus, cpus, begins);
    let unit_part = |unit: UnitId| match rules.share {
        GangsShare::Bus => bus_entitlement(unit),
        GangsShare::Cache => shared::part(gang_cpus, unit, whole, cpus),
    };
    // A board may use its unit's part of the shared resource, or the amount that other boards left over, if
    // that is more.
    let board_part = |state: &GangQueue, board: Option<UnitId>| match board {
        None => whole,
        Some(unit) => unit_part(unit).max(whole.saturating_sub(state.used_by_others(board))),
    };
    let mut idle = cpus.saturating_sub(boards.iter().map(|board| board.taken).sum());
    // The first round gives each board its own CPUs. Where CPUs are time-shared, a second round gives boards
    // the CPUs that no board could use in the first.
    for is_second_round in [false, true] {
        let are_time_shared = matches!(gang_cpus, GangCpus::Parts(_));
        if is_second_round && !are_time_shared {
            break;
        }
        for board in &boards {
            let available = if is_second_round { idle } else { board.free.min(idle) };
            let part = board_part(state, board.unit);
            let mut choice = Choice {
                state,
                rules,
                board: board.unit,
                cpus: available,
                cpus_max: board.cpus_max,
                head_first: begins && !is_second_round,
                part,
                first_rate,
                why_unit_waits,
                chosen: &mut quantum.chosen,
            };
            let used = choice.choose();
            idle -= used;
            if let (true, Some(unit)) = (are_time_shared, board.unit) {
                state.pay(unit, used, cpus);
            }
        }
    }
    quantum.waiting = u32::try_from(state.gangs.iter().filter(|gang| !gang.runs).count()).unwrap_or(u32::MAX);
    state.order_gates(why_unit_waits, orders);
    // A gang's demand is known from samples only: take one in each half of a quantum.
    let next = state.until.min(now.saturating_add(rules.quantum_ns / 2));
    let changed = begins || !quantum.chosen.is_empty();
    (changed.then_some(quantum), Some(next))
}

impl Gang {
    /// Lets a stopped gang run, and stops it no more, since its job is no longer scheduled as a gang.
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
            self.update_jobs(jobs, orders);
        }
        for (gang, facts) in self.gangs.iter_mut().zip(jobs) {
            (gang.unit, gang.board) = (facts.unit, gang_cpus.board(input.contract, facts.unit));
            gang.sample(facts);
        }
    }

    /// Drops jobs that ended, and adds new ones.
    fn update_jobs(&mut self, jobs: &[JobFacts], orders: &mut Vec<Step<GangOrder>>) {
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
    fn end_quantum(&mut self) {
        self.gangs.iter_mut().filter(|gang| !gang.runs).for_each(|gang| gang.waited += 1);
        let mut ran: Vec<usize> = (0..self.gangs.len()).filter(|index| self.gangs[*index].runs).collect();
        ran.sort_unstable_by_key(|index| self.gangs[*index].place);
        for index in ran {
            self.last_place += 1;
            let gang = &mut self.gangs[index];
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

    /// Puts gangs that woke or just came into the list, where they wait until they are chosen.
    fn wake(&mut self) {
        for gang in self.gangs.iter_mut().filter(|gang| !gang.awake && gang.wanted > 0) {
            (gang.awake, gang.runs, gang.cpus) = (true, false, gang.wanted);
        }
    }

    /// The boards with gangs that want CPUs. Where CPUs are time-shared, units with waiting gangs earn credit
    /// when a quantum begins, and the board of the unit with the most credit comes first.
    fn boards(&mut self, gang_cpus: &GangCpus, cpus: u32, begins: bool) -> Vec<Board> {
        let mut boards: BTreeMap<Option<UnitId>, (u32, bool)> = BTreeMap::new();
        // By board: the CPUs of its running gangs, and whether a gang waits. A unit's jobs are often
        // adjacent, so that one lookup suffices for a run of them.
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
            self.credits.retain(|unit, _| boards.contains_key(&Some(*unit)));
            for unit in boards.iter().filter(|(_, (_, waits))| begins && *waits).filter_map(|(unit, _)| *unit)
            {
                let part = parts.get(&unit).copied().unwrap_or(0);
                let credit = self.credits.entry(unit).or_default();
                *credit = credit.saturating_add_unsigned(part).min(credit_max(cpus));
            }
        }
        let credit =
            |unit: Option<UnitId>| unit.and_then(|unit| self.credits.get(&unit).copied()).unwrap_or(0);
        let board = |(unit, (taken, _)): (Option<UnitId>, (u32, bool))| match gang_cpus {
            GangCpus::Machine => Board { unit, taken, free: cpus.saturating_sub(taken), cpus_max: cpus },
            GangCpus::Cpus(unit_cpus) => {
                let cpus_max = unit.and_then(|unit| unit_cpus.get(&unit).copied()).unwrap_or(0).max(1);
                Board { unit, taken, free: cpus_max.saturating_sub(taken), cpus_max }
            }
            GangCpus::Parts(_) => {
                let free = u32::try_from(credit(unit) / CPU).unwrap_or(0);
                Board { unit, taken, free, cpus_max: cpus }
            }
        };
        let mut boards: Vec<Board> = boards.into_iter().map(board).collect();
        boards.sort_by_key(|board| core::cmp::Reverse(credit(board.unit)));
        boards
    }

    /// Charges a unit's credit for the `cpus` that its gangs use in this quantum.
    fn pay(&mut self, unit: UnitId, cpus: u32, machine_cpus: u32) {
        if let Some(credit) = self.credits.get_mut(&unit) {
            *credit = (*credit - i64::from(cpus) * CPU).max(-credit_max(machine_cpus));
        }
    }

    /// The gangs that run and are awake.
    fn running(&self) -> Vec<JobId> {
        self.gangs.iter().filter(|gang| gang.runs && gang.awake).map(|gang| gang.job).collect()
    }

    /// The amount of the shared resource that all boards except this one used in the last quantum.
    fn used_by_others(&self, board: Option<UnitId>) -> u64 {
        self.used.iter().filter(|(other, _)| **other != board).map(|(_, used)| used).sum()
    }

    /// Orders the gates of gangs that start or stop.
    fn order_gates(&mut self, why_unit_waits: WhyUnitWaits<'_>, orders: &mut Vec<Step<GangOrder>>) {
        for gang in self.gangs.iter_mut().filter(|gang| gang.open != gang.runs) {
            let why_it_waits = || why_unit_waits(gang.unit).unwrap_or(Reason::NotThisQuantum);
            let reason = if gang.runs { gang.because } else { why_it_waits() };
            let action = GangOrder::Gate { job: gang.job, unit: gang.unit, open: gang.runs };
            gang.open = gang.runs;
            orders.push(Step { action, reason });
        }
        // Stop gangs before others start, so that the starting gangs find free CPUs.
        orders.sort_by_key(|step| matches!(step.action, GangOrder::Gate { open: true, .. }));
    }
}

/// Gangs that compete for the same CPUs.
struct Board {
    /// The outermost unit; `None`: all units.
    unit: Option<UnitId>,
    /// CPUs in use by gangs.
    taken: u32,
    /// CPUs free for more gangs; where CPUs are time-shared, as many as the unit's credit pays for.
    free: u32,
    /// The number of CPUs that the board has if all are free.
    cpus_max: u32,
}

/// The choice of gangs on one board.
struct Choice<'a> {
    state: &'a mut GangQueue,
    rules: GangRules,
    board: Option<UnitId>,
    /// CPUs that are free, and the number that the board has if all are free.
    cpus: u32,
    cpus_max: u32,
    /// Whether the head must be chosen first: if it does not fit, no gang is chosen.
    head_first: bool,
    /// The board's part of the shared resource.
    part: u64,
    /// The assumed rate of an unmeasured thread.
    first_rate: u64,
    /// Gangs of units that must wait are skipped.
    why_unit_waits: WhyUnitWaits<'a>,
    chosen: &'a mut Vec<Step<Chosen>>,
}

impl Choice<'_> {
    /// Chooses gangs and marks them as running; returns the number of CPUs that they use.
    fn choose(&mut self) -> u32 {
        if self.cpus == 0 {
            return 0;
        }
        let (mut waiting, mut running) = (Vec::new(), Vec::new());
        for (index, gang) in self.state.gangs.iter().enumerate() {
            if gang.board != self.board || !gang.awake {
                continue;
            }
            if !gang.runs && (self.why_unit_waits)(gang.unit).is_some() {
                continue;
            }
            let rate = gang.rates.by(self.rules.by, self.rules.window).unwrap_or(self.first_rate);
            // A gang with more threads than the board has CPUs runs on all of them.
            let cpus = gang.cpus.min(self.cpus_max);
            let candidate = Candidate { index, place: gang.place, cpus, rate };
            if gang.runs { running.push(candidate) } else { waiting.push(candidate) }
        }
        let mut remaining =
            Remaining { cpus: self.cpus, amount: i64::try_from(self.part).unwrap_or(i64::MAX) };
        for gang in &running {
            let used = gang.rate.saturating_mul(gang.cpus.into());
            remaining.amount = remaining.amount.saturating_sub_unsigned(used);
        }
        let head = (0..waiting.len()).min_by_key(|number| waiting[*number].place);
        match head {
            Some(head) if self.head_first && waiting[head].cpus > remaining.cpus => return 0,
            None => return 0,
            Some(_) => {}
        }
        match self.rules.by {
            Gangs::Demand if self.rules.share == GangsShare::Bus => {
                self.choose_by_progress(&mut waiting, running, &mut remaining);
            }
            _ => self.choose_fittest(&mut waiting, head, &mut remaining),
        }
        self.cpus - remaining.cpus
    }

    /// Chooses the head, if it comes first, and then the fittest gangs while any fits.
    fn choose_fittest(
        &mut self,
        waiting: &mut Vec<Candidate>,
        head: Option<usize>,
        remaining: &mut Remaining,
    ) {
        if let Some(head) = head.filter(|_| self.head_first) {
            let head = waiting.swap_remove(head);
            remaining.take(&head);
            self.run(&head, true, Reason::CpusLeft);
        }
        while let Some(next) = fit::fittest(waiting, *remaining) {
            let next = waiting.swap_remove(next);
            let reason = Reason::Fittest { of: self.rules.share, left: remaining.per_cpu() };
            remaining.take(&next);
            self.run(&next, false, reason);
        }
    }

    /// Chooses the gangs that make the most progress beside the running ones, while any fits.
    fn choose_by_progress(
        &mut self,
        waiting: &mut Vec<Candidate>,
        mut beside: Vec<Candidate>,
        remaining: &mut Remaining,
    ) {
        let mut is_head = self.head_first;
        loop {
            let (chosen, permille) = fit::together(waiting, &beside, remaining.cpus, self.part);
            if chosen.is_empty() {
                return;
            }
            // The first of the chosen gangs is the head.
            for number in &chosen {
                let next = waiting[*number];
                remaining.take(&next);
                beside.push(next);
                self.run(&next, is_head, Reason::GetsOnBeside { permille });
                is_head = false;
            }
            let mut number = 0;
            waiting.retain(|_| {
                number += 1;
                !chosen.contains(&(number - 1))
            });
        }
    }

    /// Marks a gang as running, and adds it to the chosen ones. `reason` applies unless the gang was chosen
    /// as the head.
    fn run(&mut self, candidate: &Candidate, is_head: bool, reason: Reason) {
        let gang = &mut self.state.gangs[candidate.index];
        let reason = if is_head { Reason::HeadOfList { waited: gang.waited } } else { reason };
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
