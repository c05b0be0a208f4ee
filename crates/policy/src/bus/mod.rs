//! The memory bus: accounts of units' transfers, and the choice of the units that yield so that other units
//! get their due.
//!
//! Problem. Threads that stream through memory slow down other units' threads, though each unit has its own
//! CPUs. No processor divides its bus by shares: the only means are to stop some threads for a while, or to
//! have the processor throttle their transfers.
//!
//! Terms, for an outermost unit in a quantum:
//! - The unit is *entitled* to a fraction of the bus's capacity.
//! - The unit's *due* is the amount that its gangs would have transferred on a private bus with that fraction
//!   of the capacity, less [`TOLERATED_PERCENT`] percent: granting the last few percent would leave most of
//!   the bus idle. The queueing model computes the due from the gangs' demands ([`queue`]). If a gang was
//!   measured on a full bus while other threads had several transactions in flight, the measured demand is
//!   too low. In that case an earlier measurement counts, with decay ([`FADES`]). The due of a unit without
//!   gangs is its entitlement if the bus was full, otherwise the amount that the unit transferred.
//! - The unit is *owed* its due minus its transfers, summed over quanta. The sum is limited to
//!   [`KEPT_QUANTA`] quanta's due, also where it is negative. A unit whose sum is negative is *ahead*.
//! - The unit's *most* is the rate up to which the contract lets the unit transfer. It is the entitlement
//!   plus the amount that the unit may borrow, but no more than the unit's limit, and no more than the
//!   capacity that other units do not keep for themselves.
//!
//! Algorithm, at each quantum's end:
//! 1. Enter the transfers and the due of each unit. A unit that waited in that quantum keeps its previous
//!    due.
//! 2. Choose the units that *yield*. Units yield if some unit that stayed within its entitlement is owed more
//!    than an eighth ([`PATIENCE_PART`]) of a quantum's due. Only units that transferred more than their
//!    entitlement when they last ran can yield. Of these, the unit furthest ahead yields alone; if a whole
//!    quantum's due is owed, all of them yield. No unit yields for more than [`KEPT_QUANTA`] quanta in a row.
//! 3. For one quantum in [`PROBE_QUANTA`], units above their entitlement also yield as a *probe*: to a unit
//!    within its entitlement whose demands were measured only on a full bus. Such demands may be larger than
//!    measured.
//! 4. A unit with a most has a token bucket that is refilled at the rate of the most and holds one quantum's
//!    tokens. While the balance is negative, the unit yields. This applies to every unit with a limit of its
//!    own, sub-units included.
//! 5. Where the processor can throttle outermost units, the throttle percentage of a yielding unit is lowered
//!    in proportion to the rate that the unit should have, and the percentages of other units are raised by
//!    one step. Where it cannot, or the percentage is the processor's lowest already, the yielding unit's
//!    gangs do not run in the next quantum.
//!
//! Properties. A unit that transfers no more than its entitlement never waits. No unit waits for other units
//! for more than [`KEPT_QUANTA`] quanta in a row. A unit with a most m that transfers at rate r in a quantum
//! waits for r / m quanta. If no unit is owed anything, no unit yields except for a probe. So lending is
//! work-conserving, and a loan is called back at the end of a quantum.
//!
//! Limits. A gang runs as a whole or not at all. So while a gang that streams waits, part of the bus may be
//! idle, and the gang's unit gets less than its due by that part. Unmeasured transfers are invisible, and
//! slow down all units. The processor's count of a unit's transfers includes write-backs, while gangs' own
//! counts do not. A due is compared with the gangs' own counts, a most with the larger of the two counts. A
//! unit far beyond its most still runs for whole quanta, so it keeps to its most on average only. A
//! sub-unit's limit is enforced only on its gangs. If the bus's capacity is unknown, [`BUS_OF_A_CPU`] per CPU
//! is assumed; if that is too much, units are owed too little.
//!
//! Source: the due applies seed 000's measure of isolation (as fast as alone on a machine of that size) to
//! the resource of seed 003, the memory bus. The accounts are ours, similar to lag in fair queueing.

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

/// A demand measured on a bus that was not full loses one part in this many with each later quantum of a full
/// bus: half in 4 s.
const FADES: u64 = 32;

/// After this many quanta in which a job's demand was measured on a full bus only, its unit is probed: every
/// 10 s, at the cost of a fiftieth of the transfers of the units that yield.
const PROBE_QUANTA: u32 = 50;

/// A unit that transfers less than one part in this many of its entitlement is not probed.
const PROBE_PART: u64 = 32;

/// Units yield to a unit that is owed more than one part in this many of a quantum's due; less is within
/// measurement error.
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

/// Whether the bus is full at this rate; `carries` is its capacity.
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
    /// Each unit's counter at the beginning of the quantum, if the machine reports transfers by unit.
    marks: BTreeMap<UnitId, BusUse>,
    accounts: BTreeMap<UnitId, Account>,
    demands: BTreeMap<JobId, Demand>,
}

/// A job's demand for the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Demand {
    unit: UnitId,
    /// The rate that each thread of the job would have on an idle bus, as a part of [`WHOLE`].
    part: u64,
    /// The number of quanta, all with a full bus, since the demand was measured on a bus that was not full.
    full_quanta: u32,
}

/// A unit's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    /// In bytes; negative: ahead.
    owed: i64,
    /// The balance of the token bucket for its most, in bytes.
    tokens: i64,
    /// Bytes per second: its last due, and its rate when it last ran.
    due: u64,
    used: u64,
    /// The processor's throttle setting.
    percent: u32,
    /// Whether its gangs wait in this quantum, and for how many quanta in a row they have.
    waits: bool,
    quanta_waited: i64,
    /// Why it yields; [`Reason::BusIsLeft`]: it does not.
    because: Reason,
}

impl Account {
    const NEW: Account = Account {
        owed: 0,
        tokens: 0,
        due: 0,
        used: 0,
        percent: 100,
        waits: false,
        quanta_waited: 0,
        because: Reason::BusIsLeft,
    };
}

/// A unit's rates in the quantum that ended, in bytes per second.
#[derive(Debug, Clone, Copy, Default)]
struct QuantumUse {
    /// All its known transfers: the larger of the processor's count and its gangs' own count.
    used: u64,
    /// The transfers to compare with its due: by its gangs' own count, if it has gangs.
    counted: u64,
    due: u64,
}

/// What is known from the gangs about the present quantum.
pub(crate) struct QuantumEnd<'a> {
    /// Gangs that ran in it.
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

    /// Why a unit's gangs wait in this quantum, because of the unit itself or an enclosing unit; `None`: they
    /// do not wait.
    pub(crate) fn waits(&self, contract: &Contract, unit: UnitId) -> Option<Reason> {
        lineage(contract, unit)
            .find_map(|unit| self.accounts.get(&unit).filter(|account| account.waits))
            .map(|account| account.because)
    }
}

/// At the end of a quantum, enters units' transfers, and decides which units yield in the next quantum.
/// Returns the accounts to report, and when to sample next on behalf of the bus.
pub(crate) fn step(
    state: &mut BusAccounts,
    now: Time,
    input: Input<'_>,
    rights: &Rights,
    ended: &QuantumEnd<'_>,
    orders: &mut Vec<Step<BusOrder>>,
) -> (Option<BusPlan>, Option<Time>) {
    // Without any means to make a unit yield, or under `smp`, the accounts end and all throttling is lifted.
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
    let ran = state.update_demands(bus_rights, ended.ran, span.max(1));
    let uses = state.measure(bus_rights, &ran, span.max(1));
    (state.began, state.until) = (now, now.saturating_add(quantum));
    if is_first {
        return (None, Some(state.until));
    }
    for (unit, used) in &uses {
        state.enter_quantum(bus_rights, *unit, *used, span);
    }
    state.decide(bus_rights, throttle, ended.gangs, orders);
    let reported = |(unit, used): (&UnitId, &QuantumUse)| {
        let account = state.accounts.get(unit)?;
        Some(BusPart {
            unit: *unit,
            entitled: entitled(input, rights, *unit),
            most: bus_rights.most(*unit),
            used: used.used,
            due: used.due,
            owed: account.owed,
            waits: account.waits,
        })
    };
    let units: Vec<BusPart> = uses.iter().filter_map(reported).collect();
    let plan = BusPlan { quantum_ns: span, carries: bus_rights.carries, units };
    ((!plan.units.is_empty()).then_some(plan), Some(state.until))
}

/// The entitlements to the bus, and the bounds that the contract sets. `carries` is the capacity in bytes per
/// second.
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

    /// The highest rate that the contract lets a unit have, in bytes per second; `None`: it may use the whole
    /// bus. For a sub-unit, this is its limit alone, since loans are made between outermost units.
    fn most(&self, unit: UnitId) -> Option<u64> {
        let contract = self.input.contract;
        let limit = limits::tightest(contract, Resource::Bus, unit, self.carries);
        if contract.unit(unit).parent.is_some() {
            return limit;
        }
        let own = self.entitled(unit);
        let borrows = &contract.unit(unit).borrow[Resource::Bus];
        let loan = if contract.machine.scheme == Scheme::Quota || !borrows.allows() {
            0
        } else {
            limits::borrows(contract, Resource::Bus, unit, self.carries).unwrap_or(u64::MAX)
        };
        let kept_by = |other: UnitId| {
            let entitled = self.entitled(other);
            entitled - contract.unit(other).lend[Resource::Bus].most(entitled).min(entitled)
        };
        let kept: u64 = outermost_units(contract).filter(|other| *other != unit).map(kept_by).sum();
        let most = own.saturating_add(loan).min(self.carries.saturating_sub(kept));
        let most = limit.map_or(most, |limit| limit.min(most));
        (most < self.carries).then_some(most)
    }
}

fn outermost_units(contract: &Contract) -> impl Iterator<Item = UnitId> + '_ {
    contract.held().filter(|unit| contract.unit(*unit).parent.is_none())
}

impl BusAccounts {
    /// Updates the demands of jobs by the gangs that ran. Returns these gangs with the demands to count: on a
    /// full bus, an earlier measurement with decay, if that is larger.
    fn update_demands(&mut self, bus_rights: BusRights<'_>, ran: &[GangUse], span: Time) -> Vec<GangUse> {
        let jobs = &bus_rights.input.snapshot.jobs;
        self.demands.retain(|job, demand| {
            bus_rights.input.contract.has(demand.unit)
                && jobs.binary_search_by_key(job, |facts| facts.job).is_ok()
        });
        let total_bytes: u64 = ran.iter().map(|ran| ran.bytes).sum();
        let is_full = is_full(part_of(total_bytes, 1_000_000_000, span), bus_rights.carries);
        let with_demand = |ran: &GangUse| {
            let measured = Demand { unit: ran.unit, part: ran.wants.part, full_quanta: 0 };
            let demand = match self.demands.get(&ran.job) {
                Some(before) if is_full => Demand {
                    part: measured.part.max(before.part - before.part / FADES),
                    full_quanta: before.full_quanta + 1,
                    ..measured
                },
                _ => Demand { full_quanta: u32::from(is_full), ..measured },
            };
            self.demands.insert(ran.job, demand);
            GangUse { wants: ThreadSet { part: demand.part, ..ran.wants }, ..*ran }
        };
        ran.iter().map(with_demand).collect()
    }

    /// The rates and dues in the quantum of length `span` that ended: of outermost units, and of sub-units
    /// with a limit. Units without measurements are absent.
    fn measure(
        &mut self,
        bus_rights: BusRights<'_>,
        ran: &[GangUse],
        span: Time,
    ) -> BTreeMap<UnitId, QuantumUse> {
        let contract = bus_rights.input.contract;
        let rate = |bytes: u64, span: Time| part_of(bytes, 1_000_000_000, span);
        // The rates that the processor reports, each entered for the unit and all units around it.
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
        // The gangs' own counts, entered in the same way.
        let mut gangs_of: BTreeMap<UnitId, (u64, Vec<&GangUse>)> = BTreeMap::new();
        for ran in ran {
            for payer in lineage(contract, ran.unit) {
                let (bytes, gangs) = gangs_of.entry(payer).or_default();
                *bytes = bytes.saturating_add(ran.bytes);
                gangs.push(ran);
            }
        }
        let total_rate: u64 = reported
            .iter()
            .filter(|(unit, _)| contract.unit(**unit).parent.is_none())
            .map(|(_, rate)| rate)
            .sum();
        let is_full = is_full(total_rate, bus_rights.carries);
        let mut uses = BTreeMap::new();
        for unit in contract.held() {
            let outermost = contract.unit(unit).parent.is_none();
            if !outermost && contract.unit(unit).limit[Resource::Bus].is_none() {
                continue;
            }
            let gangs = gangs_of.get(&unit);
            let waits = self.accounts.get(&unit).is_some_and(|account| account.waits);
            let gangs_rate = gangs.map(|(bytes, _)| rate(*bytes, span));
            let (used, counted) = match (reported.get(&unit), gangs_rate) {
                (Some(reported), Some(gangs_rate)) => (gangs_rate.max(*reported), gangs_rate),
                (Some(reported), None) => (*reported, *reported),
                (None, Some(gangs_rate)) => (gangs_rate, gangs_rate),
                (None, None) if waits => (0, 0),
                (None, None) => {
                    // The unit sleeps, or is not measured.
                    if self.accounts.contains_key(&unit) {
                        uses.insert(unit, QuantumUse::default());
                    }
                    continue;
                }
            };
            let own = bus_rights.entitled(unit).min(bus_rights.most(unit).unwrap_or(u64::MAX));
            let due = match gangs {
                // A unit that waits for others keeps its due. A unit that waits because of its own most is
                // owed nothing for it.
                _ if waits => match self.accounts.get(&unit) {
                    Some(Account { because: Reason::YieldsTheBus { .. }, due, .. }) => *due,
                    _ => 0,
                },
                Some((_, gangs)) => {
                    let wants: Vec<ThreadSet> = gangs.iter().map(|ran| ran.wants).collect();
                    // What they would have transferred on a private bus, each in the time for which it ran.
                    let private_part = part_of(WHOLE, own, bus_rights.carries);
                    let private_rates = queue::private_bus_rates(&wants, private_part);
                    let bytes = private_rates.iter().zip(gangs).map(|(rate, ran)| {
                        part_of(part_of(bus_rights.carries, *rate, WHOLE), ran.span_ns, 1_000_000_000)
                    });
                    part_of(rate(bytes.sum(), span), 100 - TOLERATED_PERCENT, 100)
                }
                None if is_full && used < own => part_of(own, 100 - TOLERATED_PERCENT, 100),
                None => used,
            };
            uses.insert(unit, QuantumUse { used, counted, due: due.min(own) });
        }
        uses
    }

    /// Enters a quantum in a unit's account: the amount that it is owed, and its tokens.
    fn enter_quantum(&mut self, bus_rights: BusRights<'_>, unit: UnitId, quantum: QuantumUse, span: Time) {
        let bytes = |rate: u64| bytes(rate, span);
        let account = self.accounts.entry(unit).or_insert(Account::NEW);
        if quantum.due > 0 {
            account.due = quantum.due;
        }
        if quantum.used > 0 && !account.waits {
            account.used = quantum.used;
        }
        if quantum.due == 0 && quantum.used == 0 {
            // What is owed to a sleeping unit decays, since a unit without demand misses nothing.
            account.owed /= 2;
        } else {
            let kept = bytes(account.due).saturating_mul(KEPT_QUANTA);
            let change = bytes(quantum.due).saturating_sub(bytes(quantum.counted));
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

    /// The outermost unit to probe, if one is due: its demands are then measured while the units that fill
    /// the bus yield to it.
    fn unit_to_probe(&mut self, bus_rights: BusRights<'_>) -> Option<UnitId> {
        let contract = bus_rights.input.contract;
        let is_due = |demand: &Demand| {
            let unit = outermost(contract, demand.unit);
            let (own, used) =
                (bus_rights.entitled(unit), self.accounts.get(&unit).map_or(0, |account| account.used));
            demand.full_quanta >= PROBE_QUANTA && used <= own && used >= own / PROBE_PART
        };
        let unit = outermost(contract, self.demands.values().find(|demand| is_due(demand))?.unit);
        // The unit's other gangs are measured in the same quantum, if they run.
        let is_same_unit = |demand: &&mut Demand| outermost(contract, demand.unit) == unit;
        self.demands.values_mut().filter(is_same_unit).for_each(|demand| demand.full_quanta = 0);
        Some(unit)
    }

    /// The units that yield in the next quantum, each with the unit that it yields to. `gangs`: gangs can be
    /// stopped.
    fn choose_yielding(&mut self, bus_rights: BusRights<'_>, gangs: bool) -> BTreeMap<UnitId, UnitId> {
        let contract = bus_rights.input.contract;
        let is_outermost = |unit: UnitId| contract.unit(unit).parent.is_none();
        let due = |account: &Account| bytes(account.due, contract.machine.gangs.quantum_ns);
        let can_yield = |(unit, account): &(&UnitId, &Account)| {
            let exceeds_entitlement = account.used > bus_rights.entitled(**unit);
            is_outermost(**unit) && exceeds_entitlement && account.quanta_waited < KEPT_QUANTA
        };
        // Units within their entitlement that are owed too much: the amount, the unit, and whether it is a
        // whole quantum's due.
        let creditor = |(unit, account): (&UnitId, &Account)| {
            let is_within_entitlement = is_outermost(*unit) && account.used <= bus_rights.entitled(*unit);
            let is_owed = account.owed > due(account) / PATIENCE_PART && account.due > 0;
            let is_owed_quantum = account.owed >= due(account);
            (is_within_entitlement && is_owed).then_some((account.owed, *unit, is_owed_quantum))
        };
        let largest_creditor = self.accounts.iter().filter_map(creditor).max();
        if let Some((_, to, is_owed_quantum)) = largest_creditor {
            // The unit furthest ahead comes first: the one that is owed the least, relative to its due.
            let candidates = self.accounts.iter().filter(can_yield);
            let mut yielding: Vec<(i64, UnitId)> = candidates
                .map(|(unit, account)| (account.owed.saturating_mul(100) / due(account).max(1), *unit))
                .collect();
            yielding.sort_unstable();
            yielding.truncate(if is_owed_quantum { yielding.len() } else { 1 });
            if !yielding.is_empty() {
                return yielding.into_iter().map(|(_, unit)| (unit, to)).collect();
            }
        }
        let to_probe = gangs.then(|| self.unit_to_probe(bus_rights)).flatten();
        let Some(to) = to_probe else { return BTreeMap::new() };
        self.accounts.iter().filter(can_yield).map(|(unit, _)| (*unit, to)).collect()
    }

    /// Decides which units yield, and how: by throttling in the processor, or by letting their gangs wait.
    /// `gangs`: gangs can be stopped.
    fn decide(
        &mut self,
        bus_rights: BusRights<'_>,
        throttle: Option<Throttle>,
        gangs: bool,
        orders: &mut Vec<Step<BusOrder>>,
    ) {
        let contract = bus_rights.input.contract;
        let is_outermost = |unit: UnitId| contract.unit(unit).parent.is_none();
        let yielding = self.choose_yielding(bus_rights, gangs);
        for (unit, account) in &mut self.accounts {
            let own = bus_rights.entitled(*unit);
            let yields_to = yielding.get(unit).copied();
            let exceeded_most = bus_rights.most(*unit).filter(|_| account.tokens < 0);
            // The rate to which the unit must fall, and the reason; `None`: it does not yield.
            let target = match (exceeded_most, yields_to) {
                (Some(most), to) => {
                    Some((most.min(to.map_or(u64::MAX, |_| own)), Reason::MostOfTheBus { most }))
                }
                (None, Some(to)) => Some((own, Reason::YieldsTheBus { to })),
                (None, None) => None,
            };
            let before = account.percent;
            account.waits = match (throttle.filter(|_| is_outermost(*unit)), target) {
                (None, target) => gangs && target.is_some(),
                (Some(throttle), None) => {
                    account.percent = account.percent.saturating_add(throttle.step.max(1)).min(100);
                    false
                }
                (Some(throttle), Some((target_rate, _))) => {
                    let in_proportion = part_of(before.into(), target_rate, account.used.max(1));
                    let step = throttle.step.max(1);
                    // Lower it by at least one step: throttle percentages are known to be inaccurate.
                    let next = u32::try_from(in_proportion).unwrap_or(100).min(before.saturating_sub(step));
                    account.percent = (next / step * step).max(throttle.least).min(before);
                    gangs && account.percent == before && account.used > target_rate
                }
            };
            account.quanta_waited = if account.waits { account.quanta_waited + 1 } else { 0 };
            account.because = target.map_or(Reason::BusIsLeft, |(_, because)| because);
            if account.percent != before {
                let action = BusOrder::Throttle { unit: *unit, percent: account.percent };
                orders.push(Step { action, reason: account.because });
            }
        }
    }
}

#[cfg(test)]
mod tests;
