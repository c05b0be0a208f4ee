//! The memory bus: what units hold of it, and who waits so that all get that.
//!
//! Problem. Threads of one unit that stream slow down the threads of another, though each has its own CPUs. No processor divides
//! its bus by shares: all that can be done is that some threads do not run for a while, or that the processor slows them down.
//!
//! Terms, for an outermost unit, in a quantum:
//! - It is *entitled* to a part of what the bus carries.
//! - It is *due* what its gangs would have transferred on a bus of their own of that size, less [`TOLERATED_PERCENT`]: to have
//!   the last percent, others would have to leave most of the bus idle. The queueing law tells it, from their demands
//!   ([`queue`]). A demand that is estimated through a full bus is too low beside threads that have several transactions under
//!   way: there, what was seen before counts, and fades ([`FADES`]). A unit without gangs is due what it is entitled to if the
//!   bus was full, and what it had if it was not.
//! - It is *owed* what it was due and did not get, summed over quanta, up to [`KEPT_QUANTA`] of them; below 0, it is *ahead*.
//! - Its *most* is what the contract lets it transfer: its limit, or, without borrowing, what it is entitled to; never what
//!   others do not lend.
//!
//! Algorithm, at each quantum's end:
//! 1. What a unit transferred and was due is entered. One that waited in that quantum was due what it was before.
//! 2. A unit is *to yield* if it transferred more than it is entitled to when it ran last, and another one did not, and is owed
//!    more than a part of a quantum's due ([`PATIENCE_PART`]). Not if it waited for [`KEPT_QUANTA`] quanta in a row. The unit
//!    that is furthest ahead yields alone, or, for one that is owed a whole quantum's due, all of them.
//!    So it is, too, for one quantum in [`LOOK_QUANTA`], for a unit that transferred no more than it is entitled to and whose
//!    demands were not seen since but through a full bus: they may be larger than they look.
//! 3. A unit with a most has tokens for it, as a bucket has them that holds one quantum's: with fewer than none, it is to yield,
//!    too. This holds for every unit with a limit of its own, sub-units among them.
//! 4. Where the processor slows outermost units down, one that is to yield is given fewer percent, by what it transferred and
//!    should have, and others a step more. Where it does not, or that is not enough, the unit's gangs wait for the next quantum.
//!
//! Properties. A unit that transfers no more than it is entitled to waits for nobody. No unit waits more than [`KEPT_QUANTA`]
//! quanta in a row for others. A unit with a most m that transfers r in a quantum waits for r / m quanta. If nobody is owed,
//! nobody yields, but for such a look: what is idle is lent without asking, and called back at the end of a quantum.
//!
//! Limits. A gang runs as a whole or not: where one that streams waits, a part of the bus may be idle, and its unit has that
//! much less than it is due. What transfers without being measured is not seen, and what it takes is shared by all. What a
//! processor tells of a unit has in it what is written back, and what is counted of gangs has not: what gangs are due is
//! compared with the latter, and a most with whatever is more. A quantum of a unit that is far beyond its most is as long as
//! others', so a most holds on average alone. A sub-unit's limit is held by its gangs alone. Where nobody knows what the bus
//! carries, it is taken as [`BUS_OF_A_CPU`] for each CPU; if that is too much, units are owed too little.
//!
//! Source: what is due is seed 000's measure of isolation (as fast as alone on a machine of that size) for the resource of
//! seed 003. The accounts are ours, as lags are in fair queueing.

pub(crate) mod queue;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, Resource, Scheme, UnitId};
use commonhold_machine::Machine;

use crate::input::Input;
use crate::plan::{BusOrder, BusPart, BusPlan, Reason, Step};
use crate::rights::Rights;
use crate::rights::entitlement::{Capacity, capacity};
use crate::rights::limits;
use crate::rights::share::part_of;
use crate::snapshot::{BusUse, JobId, Throttle};
use crate::time::{MS, Time};
use crate::tree::{lineage, outermost};

use queue::{Alike, WHOLE};

/// Where nobody knows what the bus carries, each CPU is taken to want no more than this: 10 GB/s, a core's worth.
const BUS_OF_A_CPU: u64 = 10_000_000_000;

/// What a unit is owed or ahead counts up to so many quanta of what it is due.
const KEPT_QUANTA: i64 = 2;

/// What a unit may have less than on a bus of its own.
const TOLERATED_PERCENT: u64 = 5;

/// What was seen of a demand when the bus was not full loses this part in each quantum in which it is full: half in 4 s.
const FADES: u64 = 32;

/// Demands that were not seen but through a full bus for so many quanta are looked at without those who fill it: 10 s, for a
/// fiftieth of what these transfer.
const LOOK_QUANTA: u32 = 50;

/// A unit that transfers less than this part of what it is entitled to is not looked at so.
const LOOK_PART: u64 = 32;

/// Others yield to a unit that is owed more than this part of a quantum's due: less is no more than what measures are off by.
const PATIENCE_PART: i64 = 8;

/// A bus that carries so many percent of what it can is full.
const FULL_PERCENT: u64 = 90;

/// A quantum's end is not later than a look may be late.
const LATE_NS: Time = MS;

/// What the bus carries, in bytes per second.
pub(crate) fn carries(machine: &Machine) -> u64 {
    let cpus = (machine.cpus.len() as u64).max(1);
    machine.bus_bytes_per_s.unwrap_or(cpus * BUS_OF_A_CPU).max(1)
}

/// What a unit is entitled to, in bytes per second.
pub(crate) fn entitled(input: Input<'_>, rights: &Rights, unit: UnitId) -> u64 {
    let value = rights.value(unit, Resource::Bus);
    match capacity(input.contract, input.machine, Resource::Bus) {
        Capacity::Parts => part_of(carries(input.machine), value, MILLIONTH),
        Capacity::Known(_) | Capacity::Pieces { .. } => value,
    }
}

fn is_full(rate: u64, carries: u64) -> bool {
    rate >= carries / 100 * FULL_PERCENT
}

/// What is transferred at a rate in a time.
fn bytes(rate: u64, span: Time) -> i64 {
    i64::try_from(part_of(rate, span, 1_000_000_000)).unwrap_or(i64::MAX / 4)
}

/// What a gang transferred in the quantum that has ended, for as long as it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) job: JobId,
    pub(crate) unit: UnitId,
    pub(crate) bytes: u64,
    pub(crate) span_ns: Time,
    /// Its threads, and what each would transfer if the bus were its own.
    pub(crate) wants: Alike,
}

/// What is remembered between steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// When the quantum ends, and when it began.
    until: Time,
    began: Time,
    /// What units had transferred when it began, where the machine tells that.
    marks: BTreeMap<UnitId, BusUse>,
    accounts: BTreeMap<UnitId, Account>,
    demands: BTreeMap<JobId, Demand>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Demand {
    unit: UnitId,
    /// What each thread of the job would transfer if the bus were its own, of [`WHOLE`].
    part: u64,
    /// Quanta since that was seen without a full bus.
    hidden: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    /// In bytes.
    owed: i64,
    /// Tokens that are left for its most, in bytes.
    tokens: i64,
    /// Bytes per second: what it was due last, and transferred when it ran last.
    due: u64,
    used: u64,
    /// What the processor gives it.
    percent: u32,
    /// Whether its gangs wait in this quantum, for how many quanta by now, and why.
    waits: bool,
    in_a_row: i64,
    why: Reason,
}

impl Account {
    const NEW: Account = Account {
        owed: 0,
        tokens: 0,
        due: 0,
        used: 0,
        percent: 100,
        waits: false,
        in_a_row: 0,
        why: Reason::BusIsLeft,
    };
}

/// A unit in the quantum that has ended, in bytes per second.
#[derive(Debug, Clone, Copy, Default)]
struct Stood {
    /// What is known of all that it transferred.
    used: u64,
    /// What it got of what it was due: as that is measured.
    got: u64,
    due: u64,
}

/// What there is to know of the quantum that has ended.
pub(crate) struct Ended<'a> {
    /// Gangs that ran.
    pub(crate) ran: &'a [Ran],
    /// Whether gangs are stopped and let run.
    pub(crate) gangs: bool,
    /// Whether it ended now, as far as gangs are there to tell.
    pub(crate) now: bool,
}

impl State {
    /// Whether nothing is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.began == 0
    }

    /// Why the unit's gangs wait in this quantum; `None`: they do not.
    pub(crate) fn waits(&self, contract: &Contract, unit: UnitId) -> Option<Reason> {
        lineage(contract, unit)
            .find_map(|unit| self.accounts.get(&unit).filter(|account| account.waits))
            .map(|account| account.why)
    }
}

/// Enters what units did in a quantum that has ended, and decides who yields in the next; when it is to look again, if that is
/// for the bus alone.
pub(crate) fn step(
    state: &mut State,
    now: Time,
    input: Input<'_>,
    rights: &Rights,
    ended: &Ended<'_>,
    orders: &mut Vec<Step<BusOrder>>,
) -> (Option<BusPlan>, Option<Time>) {
    let throttle = input.means.throttle;
    let scheme = input.contract.machine.scheme;
    if throttle.is_none() && !ended.gangs || scheme == Scheme::Smp {
        for (unit, account) in core::mem::take(state).accounts {
            if account.percent < 100 && input.contract.has(unit) {
                let action = BusOrder::Throttle { unit, percent: 100 };
                orders.push(Step { action, reason: Reason::Scheme(scheme) });
            }
        }
        return (None, None);
    }
    let quantum = input.contract.machine.gangs.quantum_ns;
    let ends = if ended.gangs { ended.now } else { now.saturating_add(LATE_NS) >= state.until };
    if !ends {
        return (None, Some(state.until));
    }
    let span = now.saturating_sub(state.began);
    let is_first = state.began == 0;
    let held = Held { input, rights, carries: carries(input.machine) };
    state.accounts.retain(|unit, _| input.contract.has(*unit));
    let ran = state.see_demands(held, ended.ran, span.max(1));
    let stood = state.stood(held, &ran, span.max(1));
    (state.began, state.until) = (now, now.saturating_add(quantum));
    if is_first {
        return (None, Some(state.until));
    }
    for (unit, stood) in &stood {
        state.enter(held, *unit, *stood, span);
    }
    state.judge(held, throttle, ended.gangs, orders);
    let part = |(unit, stood): (&UnitId, &Stood)| {
        let account = state.accounts.get(unit)?;
        Some(BusPart {
            unit: *unit,
            entitled: entitled(input, rights, *unit),
            most: held.most(*unit),
            used: stood.used,
            due: stood.due,
            owed: account.owed,
            waits: account.waits,
        })
    };
    let units: Vec<BusPart> = stood.iter().filter_map(part).collect();
    let plan = BusPlan { quantum_ns: span, carries: held.carries, units };
    ((!plan.units.is_empty()).then_some(plan), Some(state.until))
}

/// What units hold.
#[derive(Clone, Copy)]
struct Held<'a> {
    input: Input<'a>,
    rights: &'a Rights,
    carries: u64,
}

impl Held<'_> {
    fn entitled(&self, unit: UnitId) -> u64 {
        entitled(self.input, self.rights, unit)
    }

    /// The most that a unit may transfer; `None`: what there is.
    fn most(&self, unit: UnitId) -> Option<u64> {
        let contract = self.input.contract;
        let limit = limits::tightest(contract, Resource::Bus, unit, self.carries);
        if contract.unit(unit).parent.is_some() {
            // What it borrows is its outermost unit's affair.
            return limit;
        }
        let own = self.entitled(unit);
        let borrows = &contract.unit(unit).borrow[Resource::Bus];
        let loan = if contract.machine.scheme == Scheme::Quota || !borrows.allows() {
            0
        } else {
            limits::borrows(contract, Resource::Bus, unit, self.carries).unwrap_or(u64::MAX)
        };
        let lent = |other: UnitId| {
            let has = self.entitled(other);
            contract.unit(other).lend[Resource::Bus].most(has).min(has)
        };
        let kept: u64 = outermost_units(contract)
            .filter(|other| *other != unit)
            .map(|other| self.entitled(other) - lent(other))
            .sum();
        let most = own.saturating_add(loan).min(self.carries.saturating_sub(kept));
        let most = limit.map_or(most, |limit| limit.min(most));
        (most < self.carries).then_some(most)
    }
}

fn outermost_units(contract: &Contract) -> impl Iterator<Item = UnitId> + '_ {
    contract.held().filter(|unit| contract.unit(*unit).parent.is_none())
}

impl State {
    /// The same gangs, each with the demand that is to be believed.
    fn see_demands(&mut self, held: Held<'_>, ran: &[Ran], span: Time) -> Vec<Ran> {
        let jobs = &held.input.snapshot.jobs;
        self.demands.retain(|job, demand| {
            held.input.contract.has(demand.unit) && jobs.binary_search_by_key(job, |facts| facts.job).is_ok()
        });
        let all: u64 = ran.iter().map(|ran| ran.bytes).sum();
        let is_full = is_full(part_of(all, 1_000_000_000, span), held.carries);
        let seen = |ran: &Ran| {
            let seen = Demand { unit: ran.unit, part: ran.wants.part, hidden: 0 };
            let demand = match self.demands.get(&ran.job) {
                Some(before) if is_full => Demand {
                    part: seen.part.max(before.part - before.part / FADES),
                    hidden: before.hidden + 1,
                    ..seen
                },
                _ => Demand { hidden: u32::from(is_full), ..seen },
            };
            self.demands.insert(ran.job, demand);
            Ran { wants: Alike { part: demand.part, ..ran.wants }, ..*ran }
        };
        ran.iter().map(seen).collect()
    }

    /// How outermost units stood, and others that have a limit, in the last `span`; nothing of a unit of which nothing is known.
    fn stood(&mut self, held: Held<'_>, ran: &[Ran], span: Time) -> BTreeMap<UnitId, Stood> {
        let contract = held.input.contract;
        let rate = |bytes: u64, span: Time| part_of(bytes, 1_000_000_000, span);
        let mut told: BTreeMap<UnitId, u64> = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for unit in contract.held() {
            let Some(bus) = held.input.snapshot.unit(unit).bus else { continue };
            if let Some(mark) = self.marks.get(&unit) {
                let rate = rate(bus.bytes.saturating_sub(mark.bytes), bus.at.saturating_sub(mark.at).max(1));
                // Where the same word is read twice, nothing new is known.
                let is_new = bus.at > mark.at;
                lineage(contract, unit)
                    .filter(|_| is_new)
                    .for_each(|unit| *told.entry(unit).or_default() += rate);
            }
            marks.insert(unit, bus);
        }
        self.marks = marks;
        let mut of_gangs: BTreeMap<UnitId, (u64, Vec<&Ran>)> = BTreeMap::new();
        for ran in ran {
            for around in lineage(contract, ran.unit) {
                let of = of_gangs.entry(around).or_default();
                of.0 = of.0.saturating_add(ran.bytes);
                of.1.push(ran);
            }
        }
        let all: u64 = told
            .iter()
            .filter(|(unit, _)| contract.unit(**unit).parent.is_none())
            .map(|(_, rate)| rate)
            .sum();
        let is_full = is_full(all, held.carries);
        let mut stood = BTreeMap::new();
        for unit in contract.held() {
            let outermost = contract.unit(unit).parent.is_none();
            if !outermost && contract.unit(unit).limit[Resource::Bus].is_none() {
                continue;
            }
            let gangs = of_gangs.get(&unit);
            let waits = self.accounts.get(&unit).is_some_and(|account| account.waits);
            let counted = gangs.map(|(bytes, _)| rate(*bytes, span));
            let (used, got) = match (told.get(&unit), counted) {
                (Some(told), Some(counted)) => (counted.max(*told), counted),
                (Some(known), None) => (*known, *known),
                (None, Some(known)) => (known, known),
                (None, None) if waits => (0, 0),
                (None, None) => {
                    // It sleeps, or nobody knows.
                    if self.accounts.contains_key(&unit) {
                        stood.insert(unit, Stood::default());
                    }
                    continue;
                }
            };
            let own = held.entitled(unit).min(held.most(unit).unwrap_or(u64::MAX));
            let due = match gangs {
                // What its own most keeps from it, others do not owe it.
                _ if waits => match self.accounts.get(&unit) {
                    Some(Account { why: Reason::YieldsTheBus { .. }, due, .. }) => *due,
                    _ => 0,
                },
                Some((_, gangs)) => {
                    let wants: Vec<Alike> = gangs.iter().map(|ran| ran.wants).collect();
                    let part = part_of(WHOLE, own, held.carries);
                    let on_own = queue::on_own_bus(&wants, part);
                    let bytes = on_own.iter().zip(gangs).map(|(own, ran)| {
                        part_of(part_of(held.carries, *own, WHOLE), ran.span_ns, 1_000_000_000)
                    });
                    part_of(rate(bytes.sum(), span), 100 - TOLERATED_PERCENT, 100)
                }
                None if is_full && used < own => part_of(own, 100 - TOLERATED_PERCENT, 100),
                None => used,
            };
            stood.insert(unit, Stood { used, got, due: due.min(own) });
        }
        stood
    }

    /// Enters a quantum of a unit.
    fn enter(&mut self, held: Held<'_>, unit: UnitId, stood: Stood, span: Time) {
        let bytes = |rate: u64| bytes(rate, span);
        let account = self.accounts.entry(unit).or_insert(Account::NEW);
        if stood.due > 0 {
            account.due = stood.due;
        }
        if stood.used > 0 && !account.waits {
            account.used = stood.used;
        }
        if stood.due == 0 && stood.used == 0 {
            // What a unit was owed before it slept is nothing that it still misses.
            account.owed /= 2;
        } else {
            let kept = bytes(account.due).saturating_mul(KEPT_QUANTA);
            let change = bytes(stood.due).saturating_sub(bytes(stood.got));
            account.owed = account.owed.saturating_add(change).clamp(-kept, kept);
        }
        account.tokens = match held.most(unit) {
            Some(most) => {
                let most = bytes(most);
                account.tokens.saturating_add(most).saturating_sub(bytes(stood.used)).min(most)
            }
            None => 0,
        };
    }

    /// A unit whose demands are to be looked at without those who fill the bus.
    fn hidden(&mut self, held: Held<'_>) -> Option<UnitId> {
        let contract = held.input.contract;
        let is_due = |demand: &Demand| {
            let to = outermost(contract, demand.unit);
            let (own, used) = (held.entitled(to), self.accounts.get(&to).map_or(0, |account| account.used));
            demand.hidden >= LOOK_QUANTA && used <= own && used >= own / LOOK_PART
        };
        let to = outermost(contract, self.demands.values().find(|demand| is_due(demand))?.unit);
        // Others of the unit are seen in the same quantum, if they run in it.
        let of_it = |demand: &&mut Demand| outermost(contract, demand.unit) == to;
        self.demands.values_mut().filter(of_it).for_each(|demand| demand.hidden = 0);
        Some(to)
    }

    /// Units that yield, each with the one that it yields to.
    fn yields(&mut self, held: Held<'_>, gangs: bool) -> BTreeMap<UnitId, UnitId> {
        let contract = held.input.contract;
        let is_outermost = |unit: UnitId| contract.unit(unit).parent.is_none();
        let due = |account: &Account| bytes(account.due, contract.machine.gangs.quantum_ns);
        let can_yield = |(unit, account): &(&UnitId, &Account)| {
            let takes = account.used > held.entitled(**unit);
            is_outermost(**unit) && takes && account.in_a_row < KEPT_QUANTA
        };
        let needy = |(unit, account): (&UnitId, &Account)| {
            let is_modest = is_outermost(*unit) && account.used <= held.entitled(*unit);
            let is_needy = account.owed > due(account) / PATIENCE_PART && account.due > 0;
            (is_modest && is_needy).then_some((account.owed, *unit, account.owed >= due(account)))
        };
        let neediest = self.accounts.iter().filter_map(needy).max();
        if let Some((_, to, waits_long)) = neediest {
            let others = self.accounts.iter().filter(can_yield);
            let mut ahead: Vec<(i64, UnitId)> = others
                .map(|(unit, account)| (account.owed.saturating_mul(100) / due(account).max(1), *unit))
                .collect();
            ahead.sort_unstable();
            ahead.truncate(if waits_long { ahead.len() } else { 1 });
            if !ahead.is_empty() {
                return ahead.into_iter().map(|(_, unit)| (unit, to)).collect();
            }
        }
        let Some(to) = gangs.then(|| self.hidden(held)).flatten() else { return BTreeMap::new() };
        self.accounts.iter().filter(can_yield).map(|(unit, _)| (*unit, to)).collect()
    }

    /// Who is slowed down, and who waits.
    fn judge(
        &mut self,
        held: Held<'_>,
        throttle: Option<Throttle>,
        gangs: bool,
        orders: &mut Vec<Step<BusOrder>>,
    ) {
        let contract = held.input.contract;
        let is_outermost = |unit: UnitId| contract.unit(unit).parent.is_none();
        let to_yield = self.yields(held, gangs);
        for (unit, account) in &mut self.accounts {
            let own = held.entitled(*unit);
            let yields_to = to_yield.get(unit).copied();
            let most = held.most(*unit).filter(|_| account.tokens < 0);
            let yields = match (most, yields_to) {
                (Some(most), to) => {
                    Some((most.min(to.map_or(u64::MAX, |_| own)), Reason::MostOfTheBus { most }))
                }
                (None, Some(to)) => Some((own, Reason::YieldsTheBus { to })),
                (None, None) => None,
            };
            let before = account.percent;
            account.waits = match (throttle.filter(|_| is_outermost(*unit)), yields) {
                (None, yields) => gangs && yields.is_some(),
                (Some(throttle), None) => {
                    account.percent = account.percent.saturating_add(throttle.step.max(1)).min(100);
                    false
                }
                (Some(throttle), Some((should, _))) => {
                    let by_use = part_of(before.into(), should, account.used.max(1));
                    let step = throttle.step.max(1);
                    // A step at least: its percentages are known to mislead.
                    let next = u32::try_from(by_use).unwrap_or(100).min(before.saturating_sub(step));
                    account.percent = (next / step * step).max(throttle.least).min(before);
                    gangs && account.percent == before && account.used > should
                }
            };
            account.in_a_row = if account.waits { account.in_a_row + 1 } else { 0 };
            account.why = yields.map_or(Reason::BusIsLeft, |(_, why)| why);
            if account.percent != before {
                let action = BusOrder::Throttle { unit: *unit, percent: account.percent };
                orders.push(Step { action, reason: account.why });
            }
        }
    }
}

#[cfg(test)]
mod tests;
