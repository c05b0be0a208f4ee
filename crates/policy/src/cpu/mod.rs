//! CPU ownership, loans, call-backs, and the orders that enforce them.
//!
//! Order of decisions: sample each competing unit's demand; choose partition or proportional mode; assign owners
//! ([`partition`]); lend and call back idle CPUs ([`lend`]). The orders follow as differences from those in force ([`orders`]).

mod free;
pub(crate) mod lend;
mod orders;
pub mod partition;
mod pool_fit;
pub(crate) mod seats;
mod tally;
mod turns;
mod waiting;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use commonhold_contract::{Contract, DEFAULT_TICKETS, MILLIONTH, PoolForm, Resource, Scheme, UnitId};
use commonhold_machine::CpuSet;

use crate::credits::Credits;
use crate::input::Input;
use crate::plan::{CpuDecision, CpuOrder, CpuPlan, Reason, Step};
use crate::rights::{Entitlement, Rights, limits};
use crate::snapshot::{Means, SwitchLoans, UnitFacts};
use crate::time::{MS, Time};
use crate::tree::outermost;

use lend::{Counts, Loan, Market, Want};
pub use lend::{NotHeld, SETTLE_NS, Side, WhyNot, borrows, lends, not_held};
pub use orders::first_weight;
use orders::{CpuOrders, WEIGHT_USUAL};
pub use partition::partitions;
use partition::{Claim, Owners};
use tally::Tally;
use turns::Turns;

/// Sampling interval while a unit runs and nothing is urgent.
pub(crate) const BUSY_NS: Time = 100 * MS;
/// Sampling interval while no unit runs.
pub(crate) const REST_NS: Time = 250 * MS;
/// Sampling overhead is held to one part in this many of a CPU. The interval is stretched for that up to [`REST_NS`], or up to
/// [`REST_NS_MAX`] where only newly started processes wait for the next sample.
const LOOKS_PART: u64 = 50;
const REST_NS_MAX: Time = 1_000 * MS;
/// Longest turn when there are more units than CPUs: a unit then runs only in its turns, and the paper's 250 ms would be too
/// coarse.
const TURN_NS_MANY: Time = 100 * MS;

/// Upper bound on the wait for a turn of a unit that holds a fraction of a CPU, as long as [`TURN_NS_MIN`] permits: the kernel
/// ejects a `sched_ext` scheduler under which a task waits for 30 s.
const TURN_WAIT_NS: Time = 5_000 * MS;
const TURN_NS_MIN: Time = 10 * MS;
/// Smallest weight, for the same reason: with 1,000 competitors, a task's 5 ms slice still comes within 30 s.
const WEIGHT_MIN: u128 = 10;

/// Smallest cap that the kernel accepts: 1 ms per second.
const CAP_MICRO_MIN: u64 = MILLIONTH / 1_000;

/// CPU ownership, demand and loans, carried from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CpuState {
    /// Home CPUs as last assigned; shared with the previous state until they are assigned again.
    homes: Arc<Owners>,
    turns: Arc<Turns>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) loans: BTreeMap<u32, Loan>,
    pub(crate) wants: BTreeMap<UnitId, Want>,
    /// Facts of the last fresh sample, by unit.
    seen: BTreeMap<UnitId, UnitFacts>,
    pub(crate) orders: BTreeMap<UnitId, CpuOrders>,
    /// Net lending of each unit, in CPUs times nanoseconds.
    pub(crate) credits: Credits,
    /// Cumulative lending and borrowing at switches, as of the last sample, by unit.
    switched: Vec<SwitchLoans>,
    /// When loans were last redistributed.
    passed_on_at: Time,
    /// The form of the pools for which home CPUs were assigned; `None` while no CPU is owned.
    dealt_in: Option<PoolForm>,
    /// The machine's pools, and the seats of jobs in them.
    pools: seats::PoolCache,
    seating: Arc<seats::Seating>,
}

/// When the next snapshot is due, and which units' facts must be fresh in it.
pub(crate) struct Attention {
    pub(crate) next: Time,
    pub(crate) watch: Vec<UnitId>,
}

/// Decides ownership, loans and orders for this step.
pub(crate) fn step(
    state: &mut CpuState,
    now: Time,
    input: Input<'_>,
    rights: &Rights,
    orders: &mut Vec<Step<CpuOrder>>,
) -> (CpuPlan, Attention) {
    let entitlement = rights.entitlement(Resource::Cpu);
    charge(state, now, input);
    let facts = facts(input);
    let claims = claims(input, &entitlement, &facts);
    let mut plan = CpuPlan { entitled: entitled(&entitlement), ..CpuPlan::default() };
    let held = input.contract.machine.scheme != Scheme::Smp;
    let competing = claims.iter().filter(|claim| !claim.unit.is_common()).count();
    let partitioned = held && partitions(input.contract, input.means, competing, input.machine.cpus.len());
    sample(state, now, &facts, &claims);
    if partitioned {
        let rotated = deal(state, now, input, &claims, &mut plan.steps);
        trade(state, now, input, rotated, &mut plan.steps);
    } else {
        release(state, input, &mut plan.steps);
    }
    let wanted = if held { wanted(state, input, &entitlement, partitioned) } else { BTreeMap::new() };
    let gone =
        if held { Reason::NobodyThere } else { Reason::Scheme { scheme: input.contract.machine.scheme } };
    // Orders on removed units vanished with the units.
    state.orders.retain(|unit, _| input.contract.has(*unit));
    orders.extend(orders::differences(&state.orders, &wanted, gone));
    state.orders = wanted;
    plan.credits = state.credits.listed(1);
    (plan, attention(state, now, input))
}

/// Charges the time since the previous step: loans made by plans, and loans that a scheduler made at switches.
fn charge(state: &mut CpuState, now: Time, input: Input<'_>) {
    let (loans, credits) = (&state.loans, &mut state.credits);
    credits.forget_gone(input.contract);
    let lent: Tally = loans.values().map(|loan| loan.lender).collect();
    let borrowed: Tally = loans.values().map(|loan| loan.borrower).collect();
    if !loans.is_empty() {
        credits.resize(input.contract.units.len());
    }
    let on_loan = |unit| lent.get(unit) as i128 - borrowed.get(unit) as i128;
    credits.charge(now, input.contract.machine.loans_remembered_ns, on_loan);
    if input.means.switches && input.contract.machine.loans_remembered_ns > 0 {
        charge_switches(state, input);
    }
}

/// Credits each outermost unit, sub-units included, with what a scheduler lent and borrowed since the previous sample.
fn charge_switches(state: &mut CpuState, input: Input<'_>) {
    state.switched.resize(input.contract.units.len(), SwitchLoans::default());
    for unit in input.contract.held() {
        let now = input.snapshot.unit(unit).loans;
        let before = core::mem::replace(&mut state.switched[unit.index()], now);
        let lent = now.lent_ns.saturating_sub(before.lent_ns);
        let borrowed = now.borrowed_ns.saturating_sub(before.borrowed_ns);
        if lent != borrowed {
            state.credits.enter(outermost(input.contract, unit), i128::from(lent) - i128::from(borrowed));
        }
    }
}

fn entitled(entitlement: &Entitlement) -> Vec<u64> {
    let mut values = entitlement.value.clone();
    values[UnitId::SHARED.index()] = entitlement.unheld;
    values
}

/// The units that compete for CPUs, with their entitlements. Where weights are available, only top-level units compete, and
/// divide internally by weight; otherwise every unit competes with the entitlement of its own processes. A unit with processes
/// but no entitlement competes for idle CPUs. CPUs that no unit is entitled to go to `shared`, which lends them.
fn claims(input: Input<'_>, entitlement: &Entitlement, facts: &[UnitFacts]) -> Vec<Claim> {
    let claim = |unit: UnitId| {
        let micro = if input.means.weights { entitlement.value(unit) } else { entitlement.own(unit) };
        Claim { unit, micro }
    };
    let competes = |unit: &UnitId| !input.means.weights || input.contract.unit(*unit).parent.is_none();
    let there = |claim: &Claim| claim.micro > 0 || facts[claim.unit.index()].processes > 0;
    let mut claims: Vec<Claim> = input.contract.held().filter(competes).map(claim).filter(there).collect();
    if entitlement.unheld > 0 {
        claims.insert(0, Claim { unit: UnitId::SHARED, micro: entitlement.unheld });
    }
    claims
}

/// The facts of every unit. Where weights are available, a unit's facts include its sub-units'.
fn facts(input: Input<'_>) -> Vec<UnitFacts> {
    let mut facts: Vec<UnitFacts> = input.contract.ids().map(|id| input.snapshot.unit(id)).collect();
    if input.means.weights {
        // Parents precede their children, so one reverse pass accumulates whole subtrees.
        for id in input.contract.held().rev() {
            if let Some(parent) = input.contract.unit(id).parent {
                let sub_unit = facts[id.index()];
                let sum = &mut facts[parent.index()];
                sum.at = sum.at.max(sub_unit.at);
                sum.processes += sub_unit.processes;
                sum.runnable += sub_unit.runnable;
                sum.used_ns += sub_unit.used_ns;
                sum.waited_ns += sub_unit.waited_ns;
            }
        }
    }
    facts
}

/// Updates every competing unit's demand from the snapshot.
fn sample(state: &mut CpuState, now: Time, facts: &[UnitFacts], claims: &[Claim]) {
    let competing: Tally = claims.iter().map(|claim| claim.unit).collect();
    state.wants.retain(|unit, _| competing.has(*unit));
    state.seen.retain(|unit, _| competing.has(*unit));
    for unit in claims.iter().map(|claim| claim.unit) {
        let facts = if unit.is_common() { UnitFacts::default() } else { facts[unit.index()] };
        let before = state.seen.get(&unit).copied();
        // The common parts never call back CPUs that no unit is entitled to.
        let newcomer = || if unit.is_common() { Want::of_common_part(now) } else { Want::of_newcomer(now) };
        let want = state.wants.entry(unit).or_insert_with(newcomer);
        // Stale facts (no newer than the previous ones) carry no information: keep the old demand.
        let wants = match before {
            Some(before) if facts.at <= before.at => want.now,
            _ => facts.runnable.max(used_cpus(before, facts)),
        };
        want.sample(now, wants);
        state.seen.insert(unit, facts);
    }
}

/// CPUs used between two samples. A tenth of a CPU rounds up to one, so that short bursts between samples count.
fn used_cpus(before: Option<UnitFacts>, now: UnitFacts) -> u32 {
    let Some(before) = before else { return 0 };
    let elapsed = now.at.saturating_sub(before.at);
    let used = now.used_ns.saturating_sub(before.used_ns);
    u32::try_from((used + elapsed / 10 * 9).checked_div(elapsed).unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Reassigns CPUs if claims or CPUs changed or a turn ended; returns whether it did.
fn deal(
    state: &mut CpuState,
    now: Time,
    input: Input<'_>,
    claims: &[Claim],
    steps: &mut Vec<Step<CpuDecision>>,
) -> bool {
    let period = turn_ns(input, claims);
    // Both sides ascend.
    let same_cpus = state.owners.keys().eq(input.machine.cpus.iter().map(|cpu| &cpu.id));
    let form = input.contract.machine.pools;
    let reformed = state.dealt_in.is_some_and(|was| was != form);
    let changed = !same_cpus || reformed || !shape(claims).eq(shape(&state.claims));
    let wanted =
        |claim: &Claim| claim.part() > 0 && state.wants.get(&claim.unit).is_some_and(|want| want.settled > 0);
    let over = now.saturating_sub(state.turns.since) >= period && claims.iter().any(wanted);
    if !changed && !over {
        state.claims = claims.to_vec();
        return false;
    }
    let pools = state.pools.get(input.machine, form);
    if changed {
        let mut homes = partition::homes(input.machine, &pools, claims, &state.homes);
        if reformed {
            homes = partition::gathered(input.machine, &pools, claims, homes);
        }
        (state.homes, state.dealt_in) = (Arc::new(homes), Some(form));
    }
    Arc::make_mut(&mut state.turns).rotate(input.machine, &pools, claims, &state.homes, now, period);
    let owners: Owners =
        state.homes.iter().chain(&state.turns.owners).map(|(cpu, unit)| (*cpu, *unit)).collect();
    let before = core::mem::replace(&mut state.owners, Arc::new(owners));
    announce(&before, state, input, claims, reformed, steps);
    state.claims = claims.to_vec();
    true
}

/// Homes are reassigned only when this changes: the competing units and their numbers of whole CPUs.
fn shape(claims: &[Claim]) -> impl Iterator<Item = (UnitId, u64)> {
    claims.iter().map(|claim| (claim.unit, claim.micro / MILLIONTH))
}

fn turn_ns(input: Input<'_>, claims: &[Claim]) -> Time {
    let period = input.contract.machine.rotation_ns;
    let usual = if claims.len() > input.machine.cpus.len() { period.min(TURN_NS_MANY) } else { period };
    // Only schedulers have the 30 s limit, and only there a turn costs no more than a map update.
    let smallest = claims.iter().map(Claim::part).filter(|part| *part > 0 && input.means.switches).min();
    let in_time = |part: u64| (TURN_WAIT_NS / MILLIONTH).saturating_mul(part).max(TURN_NS_MIN);
    usual.min(smallest.map_or(usual, in_time))
}

/// Emits the steps from the old owners to the new ones. `reformed`: the pools took another form.
fn announce(
    before: &Owners,
    state: &CpuState,
    input: Input<'_>,
    claims: &[Claim],
    reformed: bool,
    steps: &mut Vec<Step<CpuDecision>>,
) {
    let micro = |claims: &[Claim]| -> BTreeMap<UnitId, u64> {
        claims.iter().map(|claim| (claim.unit, claim.micro)).collect()
    };
    let (old, new) = (micro(&state.claims), micro(claims));
    let claim = |claims: &BTreeMap<UnitId, u64>, unit: UnitId| claims.get(&unit).copied().unwrap_or(0);
    for (cpu, unit) in before.iter().filter(|(cpu, unit)| state.owners.get(cpu) != Some(unit)) {
        let (from, to) = (claim(&old, *unit), claim(&new, *unit));
        let reason = match input.machine.cpu(*cpu) {
            None => Reason::CpuGone,
            Some(_) if from != to => Reason::EntitlementChanged { from, to },
            Some(_) if reformed && to >= MILLIONTH => Reason::PoolsChanged,
            Some(_) => Reason::TurnOver,
        };
        steps.push(Step { action: CpuDecision::Disown { cpu: *cpu, unit: *unit }, reason });
    }
    for (cpu, unit) in state.owners.iter().filter(|(cpu, unit)| before.get(cpu) != Some(unit)) {
        let micro = claim(&new, *unit);
        let reason = match state.turns.owners.contains_key(cpu) {
            true => Reason::Turn { part: micro % MILLIONTH },
            false => Reason::Entitled { micro_cpus: micro },
        };
        steps.push(Step { action: CpuDecision::Own { cpu: *cpu, unit: *unit }, reason });
    }
}

/// Makes and ends loans; closes all of them where the scheme has no loans.
fn trade(
    state: &mut CpuState,
    now: Time,
    input: Input<'_>,
    rotated: bool,
    steps: &mut Vec<Step<CpuDecision>>,
) {
    let plans_loans = input.contract.machine.scheme == Scheme::Isolate && !input.means.switches;
    if !plans_loans && state.loans.is_empty() {
        return;
    }
    let limits = state
        .claims
        .iter()
        .filter(|claim| !claim.unit.is_common())
        .filter_map(|claim| Some((claim.unit, cpu_limit(input, claim.unit)?)))
        .map(|(unit, micro)| (unit, usize::try_from(micro / MILLIONTH).unwrap_or(usize::MAX)))
        .collect();
    let claims = state.claims.iter().map(|claim| (claim.unit, claim.micro)).collect();
    let counts = Counts::of(&state.owners, &state.loans);
    // Loans are redistributed at rotations of CPUs. Without rotations, time does it, provided that loans are remembered.
    let period_over = now.saturating_sub(state.passed_on_at) >= input.contract.machine.rotation_ns;
    let passes_on = rotated || (input.contract.machine.loans_remembered_ns > 0 && period_over);
    if passes_on {
        state.passed_on_at = now;
    }
    let mut market = Market {
        contract: input.contract,
        now,
        owners: &state.owners,
        claims: &claims,
        limits: &limits,
        wants: &mut state.wants,
        loans: &mut state.loans,
        steps,
        counts,
        credits: &state.credits,
    };
    match plans_loans {
        true => market.settle(passes_on),
        false => market.close(Reason::Scheme { scheme: input.contract.machine.scheme }),
    }
}

/// The tightest limit on a unit, in millionths of a CPU; `None`: unlimited.
fn cpu_limit(input: Input<'_>, unit: UnitId) -> Option<u64> {
    let whole = input.machine.cpus.len() as u64 * MILLIONTH;
    limits::tightest(input.contract, Resource::Cpu, unit, whole)
}

/// Releases every CPU: leaves partition mode.
fn release(state: &mut CpuState, input: Input<'_>, steps: &mut Vec<Step<CpuDecision>>) {
    let reason = Reason::Scheme { scheme: input.contract.machine.scheme };
    for (cpu, loan) in core::mem::take(&mut state.loans) {
        let action = CpuDecision::Return { cpu, lender: loan.lender, borrower: loan.borrower };
        steps.push(Step { action, reason });
    }
    for (cpu, unit) in state.owners.iter().map(|(cpu, unit)| (*cpu, *unit)) {
        steps.push(Step { action: CpuDecision::Disown { cpu, unit }, reason });
    }
    (state.owners, state.homes, state.turns) = (Arc::default(), Arc::default(), Arc::default());
    state.dealt_in = None;
    state.claims.clear();
}

/// The orders that follow from what each unit holds.
fn wanted(
    state: &CpuState,
    input: Input<'_>,
    entitlement: &Entitlement,
    partitioned: bool,
) -> BTreeMap<UnitId, CpuOrders> {
    let mut wanted: BTreeMap<UnitId, CpuOrders> = BTreeMap::new();
    let active = |id: &UnitId| entitlement.value(*id) > 0 || input.snapshot.unit(*id).processes > 0;
    if input.means.weights {
        let levels = levels(input, entitlement);
        for unit in input.contract.held().filter(active) {
            let micro_cpus = entitlement.value(unit);
            let mut orders = CpuOrders::none(Reason::Proportion { micro_cpus });
            orders.weight = weight(input, entitlement, &levels, unit);
            (orders.cap, orders.cap_because) = cap(input, unit, micro_cpus, partitioned);
            if input.means.switches && input.contract.unit(unit).parent.is_none() {
                orders.credit_ms = credit_ms(state.credits.of(unit), input.contract.machine.rotation_ns);
            }
            wanted.insert(unit, orders);
        }
    }
    // A scheduler keeps units to their CPUs itself. A CPU set would only narrow the affinity of their threads, so that they
    // could not run on borrowed CPUs.
    if partitioned && !input.means.switches {
        confine(&mut wanted, state, input);
    }
    wanted
}

/// A credit as reported to a scheduler: a multiple of a rotation of one CPU, rounded to three significant bits. Between two
/// samples the scheduler itself balances competing borrowers; a finer credit would make them alternate from sample to sample.
fn credit_ms(credit: i128, rotation_ns: Time) -> i32 {
    let size = credit.unsigned_abs();
    let grain = u128::from(rotation_ns.max(MS))
        .max(size.checked_ilog2().map_or(1, |bits| 1 << bits.saturating_sub(2)));
    let ms = i32::try_from(size / grain * grain / u128::from(MS)).unwrap_or(i32::MAX);
    if credit < 0 { -ms } else { ms }
}

/// Confines each competing unit to the CPUs that it holds.
fn confine(wanted: &mut BTreeMap<UnitId, CpuOrders>, state: &CpuState, input: Input<'_>) {
    let mut holds = holds(state);
    for claim in state.claims.iter().filter(|claim| !claim.unit.is_common()) {
        let cpus = holds.remove(&claim.unit).unwrap_or_default();
        let none = CpuOrders::none(Reason::Entitled { micro_cpus: claim.micro });
        let orders = wanted.entry(claim.unit).or_insert(none);
        orders.cpus_because = Reason::HoldsChanged;
        // Only a unit with demand is stopped: a stopped process never shows new demand. A unit that sleeps between two turns
        // stays confined to its previous CPUs, and is noticed when it wakes.
        let sleeps = state.wants.get(&claim.unit).is_none_or(|want| want.settled == 0);
        orders.open = !cpus.is_empty() || sleeps || !input.means.gates;
        orders.cpus = match cpus.is_empty() {
            true => state.orders.get(&claim.unit).and_then(|orders| orders.cpus.clone()),
            false => Some(cpus),
        };
    }
}

/// The CPUs on which each unit may run: those that it owns, lent or not, and those that it borrows. Units without CPUs are
/// absent.
pub(crate) fn holds(state: &CpuState) -> BTreeMap<UnitId, CpuSet> {
    let mut holds: BTreeMap<UnitId, CpuSet> = BTreeMap::new();
    let borrowed = state.loans.iter().map(|(cpu, loan)| (*cpu, loan.borrower));
    for (cpu, unit) in state.owners.iter().map(|(cpu, unit)| (*cpu, *unit)).chain(borrowed) {
        holds.entry(unit).or_default().insert(cpu);
    }
    holds
}

/// Seats the threads of jobs, once CPU ownership is decided.
pub(crate) fn seat_jobs(state: &mut CpuState, now: Time, input: Input<'_>, orders: &mut seats::SeatPlan<'_>) {
    if input.snapshot.jobs.is_empty() && state.seating.is_empty() {
        return;
    }
    let held = held_cpus(state);
    seats::step(Arc::make_mut(&mut state.seating), &mut state.pools, now, input, &held, orders);
}

/// The CPUs that each unit may use for its jobs.
pub(crate) fn held_cpus(state: &CpuState) -> seats::HeldCpus {
    if state.owners.is_empty() {
        return seats::HeldCpus::Shared;
    }
    // A CPU that changes hands with every turn is unsuitable for a seat.
    let mut held: BTreeMap<UnitId, CpuSet> = BTreeMap::new();
    let homes = state.homes.iter().map(|(cpu, unit)| (*cpu, *unit));
    let borrowed = state.loans.iter().map(|(cpu, loan)| (*cpu, loan.borrower));
    for (cpu, unit) in homes.chain(borrowed) {
        held.entry(unit).or_default().insert(cpu);
    }
    seats::HeldCpus::By(held)
}

/// The summed entitlements of each level of the tree, by enclosing unit.
fn levels(input: Input<'_>, entitlement: &Entitlement) -> BTreeMap<Option<UnitId>, u128> {
    let mut levels: BTreeMap<Option<UnitId>, u128> = BTreeMap::new();
    for unit in input.contract.held() {
        *levels.entry(input.contract.unit(unit).parent).or_default() += u128::from(entitlement.value(unit));
    }
    levels
}

/// A unit's weight among its siblings. If the enclosing unit has processes of its own, they have the default weight, and the
/// unit's is relative to theirs; otherwise siblings divide 10,000.
fn weight(
    input: Input<'_>,
    entitlement: &Entitlement,
    levels: &BTreeMap<Option<UnitId>, u128>,
    unit: UnitId,
) -> u32 {
    let value = u128::from(entitlement.value(unit));
    let parent = input.contract.unit(unit).parent;
    let own = parent.filter(|id| input.snapshot.unit(*id).processes > 0).map_or(0, |id| entitlement.own(id));
    let weight = if own > 0 {
        value * u128::from(DEFAULT_TICKETS) / u128::from(own)
    } else {
        let siblings = levels.get(&parent).copied().unwrap_or(0);
        (value * 10_000)
            .checked_div(siblings)
            .map_or(u128::from(WEIGHT_USUAL), |weight| weight.max(WEIGHT_MIN))
    };
    u32::try_from(weight.clamp(1, 10_000)).unwrap_or(WEIGHT_USUAL)
}

/// Why a unit's CPU time is capped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ceiling {
    /// It may not borrow, so its entitlement is its maximum.
    Own,
    /// The contract limits it.
    Limit,
    /// The contract limits how much it may borrow.
    Loan,
}

/// Why a unit must be capped; `None` if no cap is needed or a CPU set suffices.
fn ceiling(contract: &Contract, unit: UnitId, partitioned: bool) -> Option<Ceiling> {
    let own = contract.unit(unit);
    // In a partition the CPU set already confines a top-level unit.
    let alone = own.parent.is_none() && partitioned;
    if !alone && (contract.machine.scheme == Scheme::Quota || !own.borrow.cpu.allows()) {
        Some(Ceiling::Own)
    } else if !alone && own.borrow.cpu.amount().is_some() {
        Some(Ceiling::Loan)
    } else {
        own.limit.cpu.map(|_| Ceiling::Limit)
    }
}

/// The first unit that this contract requires to be capped on a machine of `cpus` CPUs. A backend without caps cannot enforce
/// such a contract, except by chance while fewer units are active.
pub fn needs_cap(contract: &Contract, means: Means, cpus: usize) -> Option<UnitId> {
    let partitioned = partitions(contract, means, contract.children(None).count(), cpus);
    let held = contract.machine.scheme != Scheme::Smp;
    // A scheduler treats an amount to borrow as a plain permission; `not_held` reports that.
    let needs = |unit: &UnitId| {
        let own = contract.unit(*unit);
        // Sub-units made by `each` come and go, and may borrow no more than this unit: whether the contract can be enforced
        // must not depend on them.
        let may_borrow = contract.machine.scheme != Scheme::Quota && own.borrow.cpu.allows();
        let makes_such = own.each.is_some() && !may_borrow;
        own.limit.cpu.is_some() || makes_such || ceiling(contract, *unit, partitioned) == Some(Ceiling::Own)
    };
    contract.held().find(|unit| held && needs(unit))
}

/// A unit's cap and the reason: its limit, or its entitlement plus what it may borrow.
fn cap(input: Input<'_>, unit: UnitId, micro_cpus: u64, partitioned: bool) -> (Option<u64>, Reason) {
    let ceiling = ceiling(input.contract, unit, partitioned).filter(|_| input.means.caps);
    match (ceiling, cpu_limit(input, unit)) {
        // Without entitlement and loans, the cap is the smallest that the kernel accepts.
        (Some(Ceiling::Own), _) => (Some(micro_cpus.max(CAP_MICRO_MIN)), Reason::MayNotBorrow),
        (Some(Ceiling::Loan), limit) => {
            let whole = input.machine.cpus.len() as u64 * MILLIONTH;
            let loan = limits::borrows(input.contract, Resource::Cpu, unit, whole).unwrap_or(u64::MAX);
            let most = micro_cpus.saturating_add(loan).max(CAP_MICRO_MIN);
            match (limit.filter(|limit| *limit <= most), input.contract.unit(unit).limit.cpu) {
                (Some(limit), Some(_)) => (Some(limit), Reason::Limit { micro_cpus: limit }),
                // The limits of the enclosing units, or the machine, are as tight: no cap of its own is needed.
                (Some(_), None) => (None, Reason::Proportion { micro_cpus }),
                (None, _) if most >= whole => (None, Reason::Proportion { micro_cpus }),
                (None, _) => (Some(most), Reason::LoanLimit),
            }
        }
        (Some(Ceiling::Limit), Some(limit)) => (Some(limit), Reason::Limit { micro_cpus: limit }),
        _ => (None, Reason::Proportion { micro_cpus }),
    }
}

/// When to sample next, and which units must be fresh then.
fn attention(state: &CpuState, now: Time, input: Input<'_>) -> Attention {
    let wants_any = state.wants.values().any(|want| want.settled > 0);
    // Where a scheduler lends and calls back at every switch, only turns and memory, which ask for samples themselves, would
    // benefit from earlier ones.
    let eager = wants_any && !input.means.switches;
    let pays = input.snapshot.look_ns.saturating_mul(LOOKS_PART);
    let pause = match eager {
        true => pays.clamp(BUSY_NS, REST_NS),
        false if input.means.switches => pays.clamp(REST_NS, REST_NS_MAX),
        false => REST_NS,
    };
    let mut next = now + pause;
    let mut watch: Vec<UnitId> =
        state.loans.values().map(|loan| loan.lender).filter(|id| !id.is_common()).collect();
    if !watch.is_empty() {
        // Leave a fifth of the promised call-back time for carrying out the call-back.
        next = next.min(now + input.contract.machine.call_back_ns / 5 * 4);
    }
    let owned: Tally = state.owners.values().copied().collect();
    let settling =
        |unit: UnitId, want: &Want| (want.now as usize) < owned.get(unit) && want.settled != want.now;
    let settling: Vec<UnitId> =
        state.wants.iter().filter(|(unit, want)| settling(**unit, want)).map(|(unit, _)| *unit).collect();
    let crowded = state.wants.iter().any(|(unit, want)| want.settled as usize > owned.get(*unit));
    if eager && crowded && !settling.is_empty() {
        next = next.min(now + SETTLE_NS / 2);
        watch.extend(settling);
    }
    if !state.turns.owners.is_empty() && wants_any {
        next = next.min((state.turns.since + turn_ns(input, &state.claims)).max(now + MS));
    }
    watch.sort_unstable();
    watch.dedup();
    Attention { next, watch }
}
