//! The memory bus: accounts of what units transfer, and which units yield so that others get their due.
//!
//! Problem. Threads that stream slow down other units' threads, though each unit has its own CPUs. No processor divides its bus
//! by shares: all that can be done is to stop some threads for a while, or to have the processor slow them down.
//!
//! Terms, for an outermost unit in a quantum:
//! - It is *entitled* to a fraction of the bus's capacity.
//! - Its *due* is what its gangs would have transferred on a private bus of that capacity, minus [`TOLERATED_PERCENT`], since
//!   granting the last percents would leave most of the bus idle. The queueing model computes it from the gangs' demands
//!   ([`queue`]). A demand estimated through a full bus is too low beside threads with several transactions in flight: then an
//!   earlier measurement counts, with decay ([`FADES`]). The due of a unit without gangs is its entitlement if the bus was
//!   full, otherwise what it transferred.
//! - It is *owed* its due minus what it got, summed over quanta and clamped to [`KEPT_QUANTA`] of them; when negative, it is
//!   *ahead*.
//! - Its *most* is what the contract lets it transfer: its limit or, without borrowing, its entitlement; never what others do
//!   not lend.
//!
//! Algorithm, at each quantum's end:
//! 1. Enter what each unit transferred and was due. A unit that waited in that quantum keeps its previous due.
//! 2. Choose the units that *yield*: those that transferred more than their entitlement when they last ran, for the benefit of
//!    a unit that did not and is owed more than a part of a quantum's due ([`PATIENCE_PART`]). The unit furthest ahead yields
//!    alone; if a whole quantum's due is owed, all of them do. No unit yields for more than [`KEPT_QUANTA`] quanta in a row.
//!    Units also yield for one quantum in [`LOOK_QUANTA`], as a probe, to a unit that transferred no more than its entitlement
//!    and whose demands have been measured only through a full bus: they may be larger than they seem.
//! 3. A unit with a most has a token bucket that is refilled at that rate and holds one quantum's tokens. While the balance is
//!    negative, the unit yields. This applies to every unit with a limit of its own, sub-units included.
//! 4. If the processor can throttle outermost units, a yielding unit's percentage is lowered according to its use and its
//!    target, and the others' are raised by one step. If it cannot, or that is not enough, the unit's gangs wait for the next
//!    quantum.
//!
//! Properties. A unit that transfers no more than its entitlement never waits. No unit waits for others for more than
//! [`KEPT_QUANTA`] quanta in a row. A unit with a most m that transfers r in a quantum waits for r / m quanta. If no unit is
//! owed anything, none yields, except for a probe: lending is work-conserving, and the call-back comes at the end of a quantum.
//!
//! Limits. A gang runs as a whole or not at all: while one that streams waits, part of the bus may be idle, and its unit gets
//! that much less than its due. Unmeasured transfers are invisible, and their cost is shared by all. What a processor reports
//! for a unit includes write-backs, while gangs' own counts do not: a gang's due is compared with the latter, and a most with
//! the larger. A unit far beyond its most still runs for whole quanta, so a most holds on average only. A sub-unit's limit is
//! enforced by its gangs alone. If the bus's capacity is unknown, [`BUS_OF_A_CPU`] per CPU is assumed; if that is too high,
//! units are owed too little.
//!
//! Source: the due is seed 000's measure of isolation (as fast as alone on a machine of that size) for the resource of seed
//! 003. The accounts are ours, similar to lag in fair queueing.

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

use queue::{ThreadSet, WHOLE};

/// Assumed bus capacity per CPU if it is unknown: 10 GB/s, what one core can use.
const BUS_OF_A_CPU: u64 = 10_000_000_000;

/// Debt and credit are clamped to this many quanta of a unit's due.
const KEPT_QUANTA: i64 = 2;

/// Shortfall against a private bus that is tolerated.
const TOLERATED_PERCENT: u64 = 5;

/// A demand measured on a bus that was not full loses this part per quantum of a full bus: half in 4 s.
const FADES: u64 = 32;

/// Demands measured only through a full bus for this many quanta are probed while the units that fill it yield: every 10 s, at
/// the cost of a fiftieth of these units' transfers.
const LOOK_QUANTA: u32 = 50;

/// A unit that transfers less than this part of its entitlement is not probed.
const LOOK_PART: u64 = 32;

/// Units yield to one that is owed more than this part of a quantum's due; less is within measurement error.
const PATIENCE_PART: i64 = 8;

/// Utilisation from which the bus counts as full.
const FULL_PERCENT: u64 = 90;

/// Tolerance for late samples at the end of a quantum.
const LATE_NS: Time = MS;

/// The capacity of the bus, in bytes per second.
pub(crate) fn carries(machine: &Machine) -> u64 {
    let cpus = (machine.cpus.len() as u64).max(1);
    machine.bus_bytes_per_s.unwrap_or(cpus * BUS_OF_A_CPU).max(1)
}

/// A unit's entitlement, in bytes per second.
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

/// Bytes transferred at a rate over a time.
fn bytes(rate: u64, span: Time) -> i64 {
    i64::try_from(part_of(rate, span, 1_000_000_000)).unwrap_or(i64::MAX / 4)
}

/// A gang's transfers in the quantum that ended, over the time for which it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GangUse {
    pub(crate) job: JobId,
    pub(crate) unit: UnitId,
    pub(crate) bytes: u64,
    pub(crate) span_ns: Time,
    /// Its threads, and what each would transfer on an idle bus.
    pub(crate) wants: ThreadSet,
}

/// Accounts and measurements of the bus, carried from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct BusAccounts {
    /// When the quantum ends, and when it began.
    until: Time,
    began: Time,
    /// Cumulative transfers of units at its beginning, if the machine reports them.
    marks: BTreeMap<UnitId, BusUse>,
    accounts: BTreeMap<UnitId, Account>,
    demands: BTreeMap<JobId, Demand>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Demand {
    unit: UnitId,
    /// What each thread of the job would transfer on an idle bus, as a part of [`WHOLE`].
    part: u64,
    /// Quanta since that was measured without a full bus.
    hidden: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    /// In bytes; negative: ahead.
    owed: i64,
    /// Tokens left for its most, in bytes.
    tokens: i64,
    /// Bytes per second: its last due, and its transfers when it last ran.
    due: u64,
    used: u64,
    /// The processor's throttle setting.
    percent: u32,
    /// Whether its gangs wait in this quantum, for how many quanta in a row, and why.
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

/// A unit in the quantum that ended, in bytes per second.
#[derive(Debug, Clone, Copy, Default)]
struct QuantumUse {
    /// All its known transfers.
    used: u64,
    /// The transfers to compare with its due.
    got: u64,
    due: u64,
}

/// The quantum that ended.
pub(crate) struct QuantumEnd<'a> {
    /// Gangs that ran.
    pub(crate) ran: &'a [GangUse],
    /// Whether gangs can be stopped.
    pub(crate) gangs: bool,
    /// Whether the gangs' quantum ended now.
    pub(crate) now: bool,
}

impl BusAccounts {
    /// Whether nothing was measured yet.
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

/// At the end of a quantum, enters what units transferred, and decides which of them yield in the next. Returns the accounts,
/// and when to sample next on behalf of the bus.
pub(crate) fn step(
    state: &mut BusAccounts,
    now: Time,
    input: Input<'_>,
    rights: &Rights,
    ended: &QuantumEnd<'_>,
    orders: &mut Vec<Step<BusOrder>>,
) -> (Option<BusPlan>, Option<Time>) {
    let throttle = input.means.throttle;
    let scheme = input.contract.machine.scheme;
    if throttle.is_none() && !ended.gangs || scheme == Scheme::Smp {
        for (unit, account) in core::mem::take(state).accounts {
            if account.percent < 100 && input.contract.has(unit) {
                let action = BusOrder::Throttle { unit, percent: 100 };
                orders.push(Step { action, reason: Reason::Scheme { scheme } });
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
    let bus_rights = BusRights { input, rights, carries: carries(input.machine) };
    state.accounts.retain(|unit, _| input.contract.has(*unit));
    let ran = state.see_demands(bus_rights, ended.ran, span.max(1));
    let uses = state.measure(bus_rights, &ran, span.max(1));
    (state.began, state.until) = (now, now.saturating_add(quantum));
    if is_first {
        return (None, Some(state.until));
    }
    for (unit, used) in &uses {
        state.enter(bus_rights, *unit, *used, span);
    }
    state.decide(bus_rights, throttle, ended.gangs, orders);
    let account = |(unit, used): (&UnitId, &QuantumUse)| {
        let balance = state.accounts.get(unit)?;
        Some(BusPart {
            unit: *unit,
            entitled: entitled(input, rights, *unit),
            most: bus_rights.most(*unit),
            used: used.used,
            due: used.due,
            owed: balance.owed,
            waits: balance.waits,
        })
    };
    let units: Vec<BusPart> = uses.iter().filter_map(account).collect();
    let plan = BusPlan { quantum_ns: span, carries: bus_rights.carries, units };
    ((!plan.units.is_empty()).then_some(plan), Some(state.until))
}

/// Entitlements and limits of units.
#[derive(Clone, Copy)]
struct BusRights<'a> {
    input: Input<'a>,
    rights: &'a Rights,
    carries: u64,
}

impl BusRights<'_> {
    fn entitled(&self, unit: UnitId) -> u64 {
        entitled(self.input, self.rights, unit)
    }

    /// The most that a unit may transfer; `None`: unlimited.
    fn most(&self, unit: UnitId) -> Option<u64> {
        let contract = self.input.contract;
        let limit = limits::tightest(contract, Resource::Bus, unit, self.carries);
        if contract.unit(unit).parent.is_some() {
            // Borrowing is decided for its outermost unit.
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

impl BusAccounts {
    /// The gangs that ran, with corrected demands.
    fn see_demands(&mut self, bus_rights: BusRights<'_>, ran: &[GangUse], span: Time) -> Vec<GangUse> {
        let jobs = &bus_rights.input.snapshot.jobs;
        self.demands.retain(|job, demand| {
            bus_rights.input.contract.has(demand.unit)
                && jobs.binary_search_by_key(job, |facts| facts.job).is_ok()
        });
        let all: u64 = ran.iter().map(|ran| ran.bytes).sum();
        let is_full = is_full(part_of(all, 1_000_000_000, span), bus_rights.carries);
        let seen = |ran: &GangUse| {
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
            GangUse { wants: ThreadSet { part: demand.part, ..ran.wants }, ..*ran }
        };
        ran.iter().map(seen).collect()
    }

    /// The transfers and dues in the last `span` of outermost units, and of others with a limit. Units without measurements are
    /// absent.
    fn measure(
        &mut self,
        bus_rights: BusRights<'_>,
        ran: &[GangUse],
        span: Time,
    ) -> BTreeMap<UnitId, QuantumUse> {
        let contract = bus_rights.input.contract;
        let rate = |bytes: u64, span: Time| part_of(bytes, 1_000_000_000, span);
        let mut reported: BTreeMap<UnitId, u64> = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for unit in contract.held() {
            let Some(bus) = bus_rights.input.snapshot.unit(unit).bus else { continue };
            if let Some(mark) = self.marks.get(&unit) {
                let rate = rate(bus.bytes.saturating_sub(mark.bytes), bus.at.saturating_sub(mark.at).max(1));
                // An unchanged counter carries no information.
                let is_new = bus.at > mark.at;
                lineage(contract, unit)
                    .filter(|_| is_new)
                    .for_each(|unit| *reported.entry(unit).or_default() += rate);
            }
            marks.insert(unit, bus);
        }
        self.marks = marks;
        let mut of_gangs: BTreeMap<UnitId, (u64, Vec<&GangUse>)> = BTreeMap::new();
        for ran in ran {
            for around in lineage(contract, ran.unit) {
                let unit = of_gangs.entry(around).or_default();
                unit.0 = unit.0.saturating_add(ran.bytes);
                unit.1.push(ran);
            }
        }
        let all: u64 = reported
            .iter()
            .filter(|(unit, _)| contract.unit(**unit).parent.is_none())
            .map(|(_, rate)| rate)
            .sum();
        let is_full = is_full(all, bus_rights.carries);
        let mut uses = BTreeMap::new();
        for unit in contract.held() {
            let outermost = contract.unit(unit).parent.is_none();
            if !outermost && contract.unit(unit).limit[Resource::Bus].is_none() {
                continue;
            }
            let gangs = of_gangs.get(&unit);
            let waits = self.accounts.get(&unit).is_some_and(|account| account.waits);
            let counted = gangs.map(|(bytes, _)| rate(*bytes, span));
            let (used, got) = match (reported.get(&unit), counted) {
                (Some(reported), Some(counted)) => (counted.max(*reported), counted),
                (Some(known), None) => (*known, *known),
                (None, Some(known)) => (known, known),
                (None, None) if waits => (0, 0),
                (None, None) => {
                    // It sleeps, or is not measured.
                    if self.accounts.contains_key(&unit) {
                        uses.insert(unit, QuantumUse::default());
                    }
                    continue;
                }
            };
            let own = bus_rights.entitled(unit).min(bus_rights.most(unit).unwrap_or(u64::MAX));
            let due = match gangs {
                // Others do not owe it what its own most withholds.
                _ if waits => match self.accounts.get(&unit) {
                    Some(Account { why: Reason::YieldsTheBus { .. }, due, .. }) => *due,
                    _ => 0,
                },
                Some((_, gangs)) => {
                    let wants: Vec<ThreadSet> = gangs.iter().map(|ran| ran.wants).collect();
                    let part = part_of(WHOLE, own, bus_rights.carries);
                    let on_own = queue::on_own_bus(&wants, part);
                    let bytes = on_own.iter().zip(gangs).map(|(own, ran)| {
                        part_of(part_of(bus_rights.carries, *own, WHOLE), ran.span_ns, 1_000_000_000)
                    });
                    part_of(rate(bytes.sum(), span), 100 - TOLERATED_PERCENT, 100)
                }
                None if is_full && used < own => part_of(own, 100 - TOLERATED_PERCENT, 100),
                None => used,
            };
            uses.insert(unit, QuantumUse { used, got, due: due.min(own) });
        }
        uses
    }

    /// Enters a unit's quantum into its account.
    fn enter(&mut self, bus_rights: BusRights<'_>, unit: UnitId, quantum: QuantumUse, span: Time) {
        let bytes = |rate: u64| bytes(rate, span);
        let account = self.accounts.entry(unit).or_insert(Account::NEW);
        if quantum.due > 0 {
            account.due = quantum.due;
        }
        if quantum.used > 0 && !account.waits {
            account.used = quantum.used;
        }
        if quantum.due == 0 && quantum.used == 0 {
            // Debt to a sleeping unit decays: it no longer misses what it was owed before.
            account.owed /= 2;
        } else {
            let kept = bytes(account.due).saturating_mul(KEPT_QUANTA);
            let change = bytes(quantum.due).saturating_sub(bytes(quantum.got));
            account.owed = account.owed.saturating_add(change).clamp(-kept, kept);
        }
        account.tokens = match bus_rights.most(unit) {
            Some(most) => {
                let most = bytes(most);
                account.tokens.saturating_add(most).saturating_sub(bytes(quantum.used)).min(most)
            }
            None => 0,
        };
    }

    /// A unit whose demands need a probe without the units that fill the bus.
    fn probe(&mut self, bus_rights: BusRights<'_>) -> Option<UnitId> {
        let contract = bus_rights.input.contract;
        let is_due = |demand: &Demand| {
            let to = outermost(contract, demand.unit);
            let (own, used) =
                (bus_rights.entitled(to), self.accounts.get(&to).map_or(0, |account| account.used));
            demand.hidden >= LOOK_QUANTA && used <= own && used >= own / LOOK_PART
        };
        let to = outermost(contract, self.demands.values().find(|demand| is_due(demand))?.unit);
        // Its other gangs are measured in the same quantum, if they run.
        let same_unit = |demand: &&mut Demand| outermost(contract, demand.unit) == to;
        self.demands.values_mut().filter(same_unit).for_each(|demand| demand.hidden = 0);
        Some(to)
    }

    /// The units that yield, each with the unit that it yields to.
    fn yields(&mut self, bus_rights: BusRights<'_>, gangs: bool) -> BTreeMap<UnitId, UnitId> {
        let contract = bus_rights.input.contract;
        let is_outermost = |unit: UnitId| contract.unit(unit).parent.is_none();
        let due = |account: &Account| bytes(account.due, contract.machine.gangs.quantum_ns);
        let can_yield = |(unit, account): &(&UnitId, &Account)| {
            let takes = account.used > bus_rights.entitled(**unit);
            is_outermost(**unit) && takes && account.in_a_row < KEPT_QUANTA
        };
        let needy = |(unit, account): (&UnitId, &Account)| {
            let is_modest = is_outermost(*unit) && account.used <= bus_rights.entitled(*unit);
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
        let Some(to) = gangs.then(|| self.probe(bus_rights)).flatten() else { return BTreeMap::new() };
        self.accounts.iter().filter(can_yield).map(|(unit, _)| (*unit, to)).collect()
    }

    /// Decides which units are throttled, and which wait.
    fn decide(
        &mut self,
        bus_rights: BusRights<'_>,
        throttle: Option<Throttle>,
        gangs: bool,
        orders: &mut Vec<Step<BusOrder>>,
    ) {
        let contract = bus_rights.input.contract;
        let is_outermost = |unit: UnitId| contract.unit(unit).parent.is_none();
        let to_yield = self.yields(bus_rights, gangs);
        for (unit, account) in &mut self.accounts {
            let own = bus_rights.entitled(*unit);
            let yields_to = to_yield.get(unit).copied();
            let most = bus_rights.most(*unit).filter(|_| account.tokens < 0);
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
                    // Lower it by at least one step: throttle percentages are known to be inaccurate.
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
