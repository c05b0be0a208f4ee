//! Gangs: which jobs run in a quantum, by what they transfer over the memory bus, or have of what else they share.
//!
//! Problem. Threads that share a bus slow each other down, up to three times, though each has a CPU of its own. So do those that
//! share a cache, or the core that they are hardware threads of. A bus that is full beside one that is idle a quantum later is
//! waste. And the threads of one job wait for each other: a part of them that
//! runs gains nothing.
//!
//! Terms: a *gang* is a job whose threads all run, or none. It needs as many CPUs as threads of it wanted one at a look of the
//! last quantum in which it ran. What gangs *share* is the contract's `gangs-share`: below, the bus stands for it. The *list* has those that want CPUs, the one that waited longest first: its *head*.
//!
//! Algorithm. At the end of each quantum:
//! 1. What each gang that ran has transferred is divided by its threads ([`rates`]). What it would have transferred if the bus
//!    had been its own is estimated ([`crate::bus::queue`]); of a cache or of cores, it is not. How much there is of what they
//!    share, [`shared`] tells. Those that ran go to the end of the list.
//! 2. The head runs. As long as CPUs are left, another one is chosen that fits into them ([`fit`]): the fittest by the rates,
//!    or those that get on most.
//! 3. All others are stopped.
//!
//! Between, a gang that comes, or wakes, runs at once if CPUs are left, and waits for a quantum if not. CPUs of one that ends
//! are given to another.
//!
//! Units. Each outermost unit's gangs have a list of their own, on the CPUs that it holds, and as much of the bus as it is
//! entitled to, or as others left in the last quantum, if that is more. Of caches and cores it has as much as of the CPUs. Where units share CPUs by weight, each has CPUs by
//! quanta: it earns its part of the machine with each, and what it could not use, because a gang needs more at once, it keeps.
//! A unit whose gangs took more of the bus than it holds, to the cost of others, waits for a quantum (`crate::bus`).
//!
//! Properties. A gang that wants CPUs waits for no more quanta than there are gangs before it in its list when it goes to the
//! end of it, times the quanta until its unit has CPUs again: the head always runs. No more threads run than CPUs are there, but
//! for one gang that has more threads than its unit has CPUs. A gang that sleeps is not stopped. The same facts give the same
//! gangs.
//!
//! Limits: a thread that begins between two looks runs until the next. A gang that waits for a disk keeps its CPUs to the end of
//! the quantum, and one that did so all along is taken to sleep.
//!
//! Source: seed 003, section 4. The head, the fitness and the window are its own; the estimate of demand is ours.

mod fit;
mod measure;
mod rates;
mod shared;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, GangRules, Gangs, GangsShare, UnitId};

use crate::bus::Ran;
use crate::input::Input;
use crate::plan::{Gang as Chosen, GangOrder, Quantum, Reason, SharedRate, Step};
use crate::snapshot::{JobFacts, JobId, SharedUse};
use crate::time::{MS, Time};
use crate::tree::outermost;

use fit::{Candidate, Left};
use rates::Rates;
use shared::Seen;

/// A gang's share of a quantum is not shorter than a look may be late.
const LATE_NS: Time = MS;

/// A CPU for a quantum, as units earn it.
const CPU: i64 = 1_000_000;

/// Units keep what they earned up to so many quanta of the machine, and owe as much.
const KEPT_QUANTA: i64 = 2;

fn kept(cpus: u32) -> i64 {
    i64::from(cpus) * KEPT_QUANTA * CPU
}

/// What units hold for their gangs, by outermost unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Room {
    /// All the machine's CPUs, for all units together.
    Machine,
    /// So many CPUs each.
    Cpus(BTreeMap<UnitId, u32>),
    /// So many millionths of a CPU each, one after the other.
    Parts(BTreeMap<UnitId, u64>),
}

impl Room {
    /// With which gangs a unit's share CPUs: those of its outermost unit; `None`: with all.
    fn board(&self, contract: &Contract, unit: UnitId) -> Option<UnitId> {
        match self {
            Room::Machine => None,
            Room::Cpus(_) | Room::Parts(_) => Some(outermost(contract, unit)),
        }
    }
}

/// What each outermost unit is entitled to of the bus, in bytes per second.
pub(crate) type BusOf<'a> = &'a dyn Fn(UnitId) -> u64;

/// Why a unit's gangs wait whatever CPUs are left; `None`: they do not.
pub(crate) type Waits<'a> = &'a dyn Fn(UnitId) -> Option<Reason>;

/// A look at gangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Whether a quantum begins now.
    pub(crate) begins: bool,
    /// What gangs transferred in the one before; nothing where they are not chosen by that.
    pub(crate) ran: Vec<Ran>,
}

/// What is remembered between steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// By ascending job.
    gangs: Vec<Gang>,
    /// The last place in the list that was given.
    last_place: u64,
    /// When the quantum ends; 0 before the first.
    until: Time,
    /// What outermost units earned of CPUs and did not use, in millionths; below 0: what they used and did not earn yet.
    earned: BTreeMap<UnitId, i64>,
    /// What each board had of what they share in the last quantum.
    used: BTreeMap<Option<UnitId>, u64>,
    /// What all that is measured is of, and the most of it that one thread was seen to have.
    share: GangsShare,
    most: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Gang {
    job: JobId,
    unit: UnitId,
    board: Option<UnitId>,
    /// In the list; the lowest is the head.
    place: u64,
    /// CPUs that it needs.
    cpus: u32,
    /// The most threads that wanted one at a look of this quantum.
    wanted: u32,
    /// Whether it is in the list.
    awake: bool,
    runs: bool,
    /// What the backend was told last.
    open: bool,
    /// Quanta since it ran.
    waited: u32,
    /// What it had had of what they share when it began to run.
    mark: Option<SharedUse>,
    /// The latest that is known of that.
    last: Option<SharedUse>,
    rates: Rates,
    /// Of a cache: what it held while there was room.
    seen: Seen,
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
            seen: Seen::default(),
            because: Reason::CpusLeft,
        }
    }

    fn look(&mut self, facts: &JobFacts) {
        let wants = facts.threads.iter().filter(|thread| thread.wants).count();
        let wants = u32::try_from(wants).unwrap_or(u32::MAX);
        self.last = facts.shared.or(self.last);
        if self.mark.is_none() {
            self.mark = self.last;
        }
        // A gang that is stopped tells nothing of what it wants.
        if self.runs {
            self.wanted = self.wanted.max(wants);
        }
    }
}

/// Takes note of what gangs do, and of whether a quantum ends; `None`: there are no gangs.
pub(crate) fn look(
    state: &mut State,
    now: Time,
    input: Input<'_>,
    room: &Room,
    orders: &mut Vec<Step<GangOrder>>,
) -> Option<Turn> {
    let rules = input.contract.machine.gangs;
    if rules.by == Gangs::Off || !input.means.gangs || input.snapshot.jobs.is_empty() {
        for gang in core::mem::take(state).gangs {
            gang.let_go(orders);
        }
        return None;
    }
    state.measure_by(rules.share);
    state.take_in(input, room, orders);
    let begins = now.saturating_add(LATE_NS) >= state.until;
    let mut ran = Vec::new();
    if begins {
        ran = state.measure(input, rules);
        state.pass_on();
        state.until = now.saturating_add(rules.quantum_ns);
    } else {
        state.wake();
    }
    Some(Turn { begins, ran })
}

/// What gangs are chosen by.
pub(crate) struct Chooses<'a> {
    pub(crate) room: &'a Room,
    /// Whether a quantum begins.
    pub(crate) begins: bool,
    pub(crate) bus_of: BusOf<'a>,
    pub(crate) waits: Waits<'a>,
}

/// Decides which gangs run, after a look at them, and when that is to be decided again.
pub(crate) fn choose(
    state: &mut State,
    now: Time,
    input: Input<'_>,
    Chooses { room, begins, bus_of, waits }: &Chooses<'_>,
    orders: &mut Vec<Step<GangOrder>>,
) -> (Option<Quantum>, Option<Time>) {
    let (begins, rules) = (*begins, input.contract.machine.gangs);
    let cpus = u32::try_from(input.machine.cpus.len()).unwrap_or(u32::MAX).max(1);
    let whole = shared::whole(input.machine, rules.share, state.most);
    let first_rate = rules.first_rate.of(whole / u64::from(cpus));
    let mut quantum =
        Quantum { until: state.until, begins, goes_on: state.running(), chosen: Vec::new(), waiting: 0 };
    let boards = state.boards(room, cpus, begins);
    let part_of = |unit: UnitId| match rules.share {
        GangsShare::Bus => bus_of(unit),
        GangsShare::Cache | GangsShare::Cores => shared::part(room, unit, whole, cpus),
    };
    let part_of_board = |state: &State, board: Option<UnitId>| match board {
        None => whole,
        Some(unit) => part_of(unit).max(whole.saturating_sub(state.used_by_others(board))),
    };
    let mut idle = cpus.saturating_sub(boards.iter().map(|board| board.taken).sum());
    // What a unit has of its own, and then what no unit could use.
    for spare in [false, true] {
        let parts = matches!(room, Room::Parts(_));
        if spare && !parts {
            break;
        }
        for board in &boards {
            let own = if spare { idle } else { board.left.min(idle) };
            let part = part_of_board(state, board.of);
            let mut choice = Choice {
                state,
                rules,
                board: board.of,
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
            if let (true, Some(unit)) = (parts, board.of) {
                state.pay(unit, used, cpus);
            }
        }
    }
    quantum.waiting = u32::try_from(state.gangs.iter().filter(|gang| !gang.runs).count()).unwrap_or(u32::MAX);
    state.say(waits, orders);
    // What wants a CPU is seen at looks: there is one in each half of a quantum.
    let next = state.until.min(now.saturating_add(rules.quantum_ns / 2));
    let said = begins || !quantum.chosen.is_empty();
    (said.then_some(quantum), Some(next))
}

impl Gang {
    fn let_go(&self, orders: &mut Vec<Step<GangOrder>>) {
        if !self.open {
            let action = GangOrder::Gate { job: self.job, unit: self.unit, open: true };
            orders.push(Step { action, reason: Reason::NoGang });
        }
    }
}

impl State {
    /// Whether no job is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.gangs.is_empty()
    }

    /// Takes note of which jobs are there, and what they want. Both lists are in the order of their numbers.
    fn take_in(&mut self, input: Input<'_>, room: &Room, orders: &mut Vec<Step<GangOrder>>) {
        let jobs = &input.snapshot.jobs;
        if !self.gangs.iter().map(|gang| gang.job).eq(jobs.iter().map(|facts| facts.job)) {
            self.come_and_go(jobs, orders);
        }
        for (gang, facts) in self.gangs.iter_mut().zip(jobs) {
            (gang.unit, gang.board) = (facts.unit, room.board(input.contract, facts.unit));
            gang.look(facts);
        }
    }

    /// Lets go those that are there no more, and takes in those that are new.
    fn come_and_go(&mut self, jobs: &[JobFacts], orders: &mut Vec<Step<GangOrder>>) {
        self.gangs.retain(|gang| {
            let stays = jobs.binary_search_by_key(&gang.job, |facts| facts.job).is_ok();
            if !stays {
                gang.let_go(orders);
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

    /// The quantum is over: those that ran go to the end of the list, or out of it.
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

    /// Those that slept, or just came, and want a CPU now: they wait to be chosen.
    fn wake(&mut self) {
        for gang in self.gangs.iter_mut().filter(|gang| !gang.awake && gang.wanted > 0) {
            (gang.awake, gang.runs, gang.cpus) = (true, false, gang.wanted);
        }
    }

    /// The boards on which gangs want CPUs; where units earn their CPUs, the one that earned most first.
    fn boards(&mut self, room: &Room, cpus: u32, begins: bool) -> Vec<Board> {
        let mut boards: BTreeMap<Option<UnitId>, (u32, bool)> = BTreeMap::new();
        // A unit's jobs often follow each other: what these have is entered at once.
        for run in self.gangs.chunk_by(|one, next| one.board == next.board) {
            let awake = || run.iter().filter(|gang| gang.awake);
            if awake().next().is_none() {
                continue;
            }
            let (taken, waits) = boards.entry(run[0].board).or_default();
            *taken += awake().filter(|gang| gang.runs).map(|gang| gang.cpus).sum::<u32>();
            *waits |= awake().any(|gang| !gang.runs);
        }
        if let Room::Parts(parts) = room {
            self.earned.retain(|unit, _| boards.contains_key(&Some(*unit)));
            for unit in boards.iter().filter(|(_, (_, waits))| begins && *waits).filter_map(|(unit, _)| *unit)
            {
                let part = parts.get(&unit).copied().unwrap_or(0);
                let earned = self.earned.entry(unit).or_default();
                *earned = earned.saturating_add_unsigned(part).min(kept(cpus));
            }
        }
        let earned = |of: Option<UnitId>| of.and_then(|unit| self.earned.get(&unit).copied()).unwrap_or(0);
        let board = |(of, (taken, _)): (Option<UnitId>, (u32, bool))| match room {
            Room::Machine => Board { of, taken, left: cpus.saturating_sub(taken), most: cpus },
            Room::Cpus(has) => {
                let most = of.and_then(|unit| has.get(&unit).copied()).unwrap_or(0).max(1);
                Board { of, taken, left: most.saturating_sub(taken), most }
            }
            Room::Parts(_) => {
                let left = u32::try_from(earned(of) / CPU).unwrap_or(0);
                Board { of, taken, left, most: cpus }
            }
        };
        let mut boards: Vec<Board> = boards.into_iter().map(board).collect();
        boards.sort_by_key(|board| core::cmp::Reverse(earned(board.of)));
        boards
    }

    /// A unit's gangs have so many CPUs for this quantum, of `all`.
    fn pay(&mut self, unit: UnitId, cpus: u32, all: u32) {
        if let Some(earned) = self.earned.get_mut(&unit) {
            *earned = (*earned - i64::from(cpus) * CPU).max(-kept(all));
        }
    }

    /// Those that run, and have CPUs for that.
    fn running(&self) -> Vec<JobId> {
        self.gangs.iter().filter(|gang| gang.runs && gang.awake).map(|gang| gang.job).collect()
    }

    /// What all other boards had in the last quantum.
    fn used_by_others(&self, board: Option<UnitId>) -> u64 {
        self.used.iter().filter(|(other, _)| **other != board).map(|(_, used)| used).sum()
    }

    /// What is new.
    fn say(&mut self, waits: Waits<'_>, orders: &mut Vec<Step<GangOrder>>) {
        for gang in self.gangs.iter_mut().filter(|gang| gang.open != gang.runs) {
            let waits = || waits(gang.unit).unwrap_or(Reason::NotThisQuantum);
            let reason = if gang.runs { gang.because } else { waits() };
            let action = GangOrder::Gate { job: gang.job, unit: gang.unit, open: gang.runs };
            gang.open = gang.runs;
            orders.push(Step { action, reason });
        }
        // Those that go make room before the others come.
        orders.sort_by_key(|step| matches!(step.action, GangOrder::Gate { open: true, .. }));
    }
}

/// Gangs that share CPUs.
struct Board {
    /// Of which unit; `None`: of all.
    of: Option<UnitId>,
    /// CPUs that gangs run on.
    taken: u32,
    /// CPUs that are left.
    left: u32,
    /// The most that it could have.
    most: u32,
}

/// The choice of gangs on one board.
struct Choice<'a> {
    state: &'a mut State,
    rules: GangRules,
    board: Option<UnitId>,
    /// CPUs that are left, and the most that there could be.
    cpus: u32,
    most: u32,
    /// Whether the head comes first, and nobody if it has to wait for CPUs.
    head_first: bool,
    /// What it has of what they share.
    part: u64,
    /// Of a thread that was not measured yet.
    first_rate: u64,
    /// Those of units that wait are not chosen.
    waits: Waits<'a>,
    chosen: &'a mut Vec<Step<Chosen>>,
}

impl Choice<'_> {
    /// Chooses; how many CPUs those that were chosen have.
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
            // One that has more threads than there could ever be CPUs runs on all of them.
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
