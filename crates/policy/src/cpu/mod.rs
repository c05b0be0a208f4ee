//! CPU ownership, loans, call-backs, and the orders that enforce them.
//!
//! A step decides in this order:
//! 1. Sample the demand of each unit that competes for CPUs.
//! 2. Choose partition mode (each CPU has one owner) or proportional mode (units share all CPUs by weight).
//! 3. In partition mode, assign owners ([`partition`]) and the turns on shared CPUs ([`turns`]); then lend
//!    idle CPUs and call back lent ones ([`lend`]).
//! 4. Derive each unit's CPU set, weight and cap, and order their differences from those in force
//!    ([`orders`]).
//!
//! The threads of jobs are placed afterwards, on the CPUs that their units hold ([`seats`]).
//!
//! Source: seed 000, section 3.1.

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
/// The sampling interval is at least this many times the CPU time of a sample, so that sampling takes at most
/// 1/50 of a CPU. The interval is stretched for that up to [`REST_NS`], or up to [`REST_NS_MAX`] where only
/// newly started processes wait for the next sample.
const INTERVAL_PER_SAMPLE_COST: u64 = 50;
const REST_NS_MAX: Time = 1_000 * MS;
/// The longest turn on a shared CPU if more units compete than there are CPUs. Some units then own no CPU
/// between their turns. With the turns of 250 ms of seed 000 they would wait too long.
const TURN_NS_MANY: Time = 100 * MS;

/// The longest time that a unit with a fraction of a CPU should wait for its turn. The kernel ejects a
/// `sched_ext` scheduler as soon as a task has waited for 30 s. Turns are shortened to keep the wait within
/// this time, but not below [`TURN_NS_MIN`].
const TURN_WAIT_NS: Time = 5_000 * MS;
const TURN_NS_MIN: Time = 10 * MS;
/// The smallest weight of a unit among its siblings. It also keeps each task's wait below the 30 s after
/// which the kernel ejects a scheduler: even with 1,000 competitors, a task's next slice of 5 ms comes in
/// time.
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
    /// Facts of the last sample, by unit.
    sampled: BTreeMap<UnitId, UnitFacts>,
    pub(crate) orders: BTreeMap<UnitId, CpuOrders>,
    /// Net lending of each unit, in CPUs times nanoseconds.
    pub(crate) credits: Credits,
    /// Each unit's cumulative lending and borrowing by the scheduler at switches, as of the last sample.
    switch_loans: Vec<SwitchLoans>,
    /// When a loan was last moved to a unit that holds less.
    redistributed_at: Time,
    /// The form of the pools for which home CPUs were assigned; `None` while no CPU is owned.
    homes_form: Option<PoolForm>,
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
    let restricts = input.contract.machine.scheme != Scheme::Smp;
    let competing = claims.iter().filter(|claim| !claim.unit.is_common()).count();
    let partitioned =
        restricts && partitions(input.contract, input.means, competing, input.machine.cpus.len());
    sample(state, now, &facts, &claims);
    if partitioned {
        let reassigned = assign_owners(state, now, input, &claims, &mut plan.steps);
        update_loans(state, now, input, reassigned, &mut plan.steps);
    } else {
        end_partition(state, input, &mut plan.steps);
    }
    let wanted =
        if restricts { wanted_orders(state, input, &entitlement, partitioned) } else { BTreeMap::new() };
    let lifted_because = if restricts {
        Reason::NobodyThere
    } else {
        Reason::Scheme { scheme: input.contract.machine.scheme }
    };
    // Orders on a unit that left the contract ended when the backend removed the unit.
    state.orders.retain(|unit, _| input.contract.has(*unit));
    orders.extend(orders::differences(&state.orders, &wanted, lifted_because));
    state.orders = wanted;
    plan.credits = state.credits.listed(1);
    (plan, attention(state, now, input))
}

/// Updates the units' credits for the time since the previous step. Counted are the loans that plans made,
/// and the loans that a scheduler made at switches.
fn charge(state: &mut CpuState, now: Time, input: Input<'_>) {
    let (loans, credits) = (&state.loans, &mut state.credits);
    credits.forget_gone(input.contract);
    let lent: Tally = loans.values().map(|loan| loan.lender).collect();
    let borrowed: Tally = loans.values().map(|loan| loan.borrower).collect();
    if !loans.is_empty() {
        credits.resize(input.contract.units.len());
    }
    let net_lent = |unit| lent.get(unit) as i128 - borrowed.get(unit) as i128;
    credits.charge(now, input.contract.machine.loans_remembered_ns, net_lent);
    if input.means.switches && input.contract.machine.loans_remembered_ns > 0 {
        charge_switches(state, input);
    }
}

/// Credits each outermost unit with the CPU time that a scheduler lent from it at switches since the previous
/// sample, less the time that it borrowed. Loans of sub-units count for the outermost unit around them.
fn charge_switches(state: &mut CpuState, input: Input<'_>) {
    state.switch_loans.resize(input.contract.units.len(), SwitchLoans::default());
    for unit in input.contract.held() {
        let total = input.snapshot.unit(unit).loans;
        let before = core::mem::replace(&mut state.switch_loans[unit.index()], total);
        let lent = total.lent_ns.saturating_sub(before.lent_ns);
        let borrowed = total.borrowed_ns.saturating_sub(before.borrowed_ns);
        if lent != borrowed {
            state.credits.enter(outermost(input.contract, unit), i128::from(lent) - i128::from(borrowed));
        }
    }
}

/// The entitlement to report for each unit, by unit index, in millionths of a CPU. CPUs that no unit is
/// entitled to are reported for `shared`.
fn entitled(entitlement: &Entitlement) -> Vec<u64> {
    let mut values = entitlement.value.clone();
    values[UnitId::SHARED.index()] = entitlement.unheld;
    values
}

/// The units that compete for CPUs, with their entitlements. Where weights are available, only top-level
/// units compete, since weights divide a unit's CPUs among its sub-units. Otherwise every unit competes, with
/// the entitlement of its own processes. A unit with processes but without entitlement competes for idle
/// CPUs. CPUs that no unit is entitled to belong to `shared`, which lends them.
fn claims(input: Input<'_>, entitlement: &Entitlement, facts: &[UnitFacts]) -> Vec<Claim> {
    let claim = |unit: UnitId| {
        let micro = if input.means.weights { entitlement.value(unit) } else { entitlement.own(unit) };
        Claim { unit, micro }
    };
    let may_compete = |unit: &UnitId| !input.means.weights || input.contract.unit(*unit).parent.is_none();
    let competes = |claim: &Claim| claim.micro > 0 || facts[claim.unit.index()].processes > 0;
    let mut claims: Vec<Claim> =
        input.contract.held().filter(may_compete).map(claim).filter(competes).collect();
    if entitlement.unheld > 0 {
        claims.insert(0, Claim { unit: UnitId::SHARED, micro: entitlement.unheld });
    }
    claims
}

/// The facts of every unit, by unit index. Where weights are available, a unit's facts include those of its
/// sub-units.
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
    state.sampled.retain(|unit, _| competing.has(*unit));
    for unit in claims.iter().map(|claim| claim.unit) {
        let facts = if unit.is_common() { UnitFacts::default() } else { facts[unit.index()] };
        let before = state.sampled.get(&unit).copied();
        // `shared` owns the CPUs that no unit is entitled to, and never wants them back.
        let newcomer = || if unit.is_common() { Want::of_common_part(now) } else { Want::of_newcomer(now) };
        let want = state.wants.entry(unit).or_insert_with(newcomer);
        // Stale facts (no newer than the previous ones) carry no information: keep the old demand.
        let wanted_cpus = match before {
            Some(before) if facts.at <= before.at => want.now,
            _ => facts.runnable.max(used_cpus(before, facts)),
        };
        want.sample(now, wanted_cpus);
        state.sampled.insert(unit, facts);
    }
}

/// The CPUs that a unit used between two samples, on average. A remainder of a tenth of a CPU or more rounds
/// up, so that a short burst between samples counts: 0.1 CPUs are 1, and 1.05 CPUs are 1.
fn used_cpus(before: Option<UnitFacts>, latest: UnitFacts) -> u32 {
    let Some(before) = before else { return 0 };
    let elapsed = latest.at.saturating_sub(before.at);
    let used = latest.used_ns.saturating_sub(before.used_ns);
    u32::try_from((used + elapsed / 10 * 9).checked_div(elapsed).unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Reassigns CPUs if the units' whole CPUs, the machine's CPUs or the form of the pools changed, or if a turn
/// ended. Returns whether CPUs were reassigned.
fn assign_owners(
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
    let reformed = state.homes_form.is_some_and(|homes_form| homes_form != form);
    let changed = !same_cpus || reformed || !whole_cpus(claims).eq(whole_cpus(&state.claims));
    let wants_turn =
        |claim: &Claim| claim.part() > 0 && state.wants.get(&claim.unit).is_some_and(|want| want.settled > 0);
    let turn_ended = now.saturating_sub(state.turns.since) >= period && claims.iter().any(wants_turn);
    if !changed && !turn_ended {
        state.claims = claims.to_vec();
        return false;
    }
    let pools = state.pools.get(input.machine, form);
    if changed {
        let mut homes = partition::homes(input.machine, &pools, claims, &state.homes);
        if reformed {
            homes = partition::gathered(input.machine, &pools, claims, homes);
        }
        (state.homes, state.homes_form) = (Arc::new(homes), Some(form));
    }
    Arc::make_mut(&mut state.turns).rotate(input.machine, &pools, claims, &state.homes, now, period);
    let owners: Owners =
        state.homes.iter().chain(&state.turns.owners).map(|(cpu, unit)| (*cpu, *unit)).collect();
    let before = core::mem::replace(&mut state.owners, Arc::new(owners));
    report_owners(&before, state, input, claims, reformed, steps);
    state.claims = claims.to_vec();
    true
}

/// The competing units with their numbers of whole CPUs. While these stay the same, home CPUs are not
/// reassigned: a change of a fraction of a CPU only changes how turns are distributed.
fn whole_cpus(claims: &[Claim]) -> impl Iterator<Item = (UnitId, u64)> {
    claims.iter().map(|claim| (claim.unit, claim.micro / MILLIONTH))
}

/// The length of a turn on a shared CPU. Under a scheduler of our own, turns are so short that the unit with
/// the smallest fraction has one every [`TURN_WAIT_NS`], if [`TURN_NS_MIN`] permits: with 0.01 CPUs, it has
/// one turn in 100, so that a turn lasts 5 s / 100 = 50 ms.
fn turn_ns(input: Input<'_>, claims: &[Claim]) -> Time {
    let period = input.contract.machine.rotation_ns;
    let usual = if claims.len() > input.machine.cpus.len() { period.min(TURN_NS_MANY) } else { period };
    // Only a scheduler is ejected for long waits, and only there a turn costs no more than a map update.
    let smallest = claims.iter().map(Claim::part).filter(|part| *part > 0 && input.means.switches).min();
    let turn_for_part = |part: u64| (TURN_WAIT_NS / MILLIONTH).saturating_mul(part).max(TURN_NS_MIN);
    usual.min(smallest.map_or(usual, turn_for_part))
}

/// Adds the decisions that change the owners from `before` to the present ones: first those that take CPUs
/// away from units, then those that give CPUs to units. `reformed` says whether the pools took another form.
fn report_owners(
    before: &Owners,
    state: &CpuState,
    input: Input<'_>,
    claims: &[Claim],
    reformed: bool,
    steps: &mut Vec<Step<CpuDecision>>,
) {
    let by_unit = |claims: &[Claim]| -> BTreeMap<UnitId, u64> {
        claims.iter().map(|claim| (claim.unit, claim.micro)).collect()
    };
    let (old_claims, new_claims) = (by_unit(&state.claims), by_unit(claims));
    let claim_of = |claims: &BTreeMap<UnitId, u64>, unit: UnitId| claims.get(&unit).copied().unwrap_or(0);
    for (cpu, unit) in before.iter().filter(|(cpu, unit)| state.owners.get(cpu) != Some(unit)) {
        let (from, to) = (claim_of(&old_claims, *unit), claim_of(&new_claims, *unit));
        let reason = match input.machine.cpu(*cpu) {
            None => Reason::CpuGone,
            Some(_) if from != to => Reason::EntitlementChanged { from, to },
            Some(_) if reformed && to >= MILLIONTH => Reason::PoolsChanged,
            Some(_) => Reason::TurnOver,
        };
        steps.push(Step { action: CpuDecision::Disown { cpu: *cpu, unit: *unit }, reason });
    }
    for (cpu, unit) in state.owners.iter().filter(|(cpu, unit)| before.get(cpu) != Some(unit)) {
        let micro = claim_of(&new_claims, *unit);
        let reason = match state.turns.owners.contains_key(cpu) {
            true => Reason::Turn { part: micro % MILLIONTH },
            false => Reason::Entitled { micro_cpus: micro },
        };
        steps.push(Step { action: CpuDecision::Own { cpu: *cpu, unit: *unit }, reason });
    }
}

/// Makes, moves and ends loans. Ends all loans if the scheme has no loans, or if a scheduler makes loans at
/// switches. `reassigned` says whether CPUs were reassigned in this step.
fn update_loans(
    state: &mut CpuState,
    now: Time,
    input: Input<'_>,
    reassigned: bool,
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
    // Loans are redistributed when CPUs are reassigned. If credits are kept, they are also redistributed once
    // in a rotation period, since a machine without shared CPUs has no rotations.
    let is_due = now.saturating_sub(state.redistributed_at) >= input.contract.machine.rotation_ns;
    let redistributes = reassigned || (input.contract.machine.loans_remembered_ns > 0 && is_due);
    if redistributes {
        state.redistributed_at = now;
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
        true => market.settle(redistributes),
        false => market.close(Reason::Scheme { scheme: input.contract.machine.scheme }),
    }
}

/// The tightest limit on a unit, in millionths of a CPU; `None`: unlimited.
fn cpu_limit(input: Input<'_>, unit: UnitId) -> Option<u64> {
    let whole = input.machine.cpus.len() as u64 * MILLIONTH;
    limits::tightest(input.contract, Resource::Cpu, unit, whole)
}

/// Leaves partition mode: ends all loans, and then the ownership of every CPU.
fn end_partition(state: &mut CpuState, input: Input<'_>, steps: &mut Vec<Step<CpuDecision>>) {
    let reason = Reason::Scheme { scheme: input.contract.machine.scheme };
    for (cpu, loan) in core::mem::take(&mut state.loans) {
        let action = CpuDecision::Return { cpu, lender: loan.lender, borrower: loan.borrower };
        steps.push(Step { action, reason });
    }
    for (cpu, unit) in state.owners.iter().map(|(cpu, unit)| (*cpu, *unit)) {
        steps.push(Step { action: CpuDecision::Disown { cpu, unit }, reason });
    }
    (state.owners, state.homes, state.turns) = (Arc::default(), Arc::default(), Arc::default());
    state.homes_form = None;
    state.claims.clear();
}

/// The orders that each unit should have in force: its weight and cap, if CPUs can be weighted, and its CPU
/// set, if they are partitioned.
fn wanted_orders(
    state: &CpuState,
    input: Input<'_>,
    entitlement: &Entitlement,
    partitioned: bool,
) -> BTreeMap<UnitId, CpuOrders> {
    let mut wanted: BTreeMap<UnitId, CpuOrders> = BTreeMap::new();
    let is_active = |id: &UnitId| entitlement.value(*id) > 0 || input.snapshot.unit(*id).processes > 0;
    if input.means.weights {
        let sums = sibling_sums(input, entitlement);
        for unit in input.contract.held().filter(is_active) {
            let micro_cpus = entitlement.value(unit);
            let mut orders = CpuOrders::none(Reason::Proportion { micro_cpus });
            orders.weight = weight(input, entitlement, &sums, unit);
            (orders.cap, orders.cap_because) = cap(input, unit, micro_cpus, partitioned);
            if input.means.switches && input.contract.unit(unit).parent.is_none() {
                orders.credit_ms = credit_ms(state.credits.of(unit), input.contract.machine.rotation_ns);
            }
            wanted.insert(unit, orders);
        }
    }
    // A scheduler of our own keeps units on their CPUs. A CPU set would only narrow the affinity of the
    // unit's threads, so that they could not run on borrowed CPUs.
    if partitioned && !input.means.switches {
        confine(&mut wanted, state, input);
    }
    wanted
}

/// A credit as reported to a scheduler, in milliseconds. It is rounded towards 0 to a multiple of one CPU for
/// a rotation, or to three significant bits if that is coarser: with a rotation of 250 ms, 900 ms become 750
/// ms, and 200 ms become 0. Between two samples the scheduler itself balances competing borrowers; a finer
/// credit would make them alternate from sample to sample.
fn credit_ms(credit: i128, rotation_ns: Time) -> i32 {
    let magnitude = credit.unsigned_abs();
    let third_bit = magnitude.checked_ilog2().map_or(1, |top_bit| 1 << top_bit.saturating_sub(2));
    let grain = u128::from(rotation_ns.max(MS)).max(third_bit);
    let ms = i32::try_from(magnitude / grain * grain / u128::from(MS)).unwrap_or(i32::MAX);
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
        // A unit without CPUs is stopped only if it has demand: a stopped unit that slept could not show that
        // it woke. A unit that sleeps between two turns stays confined to its previous CPUs, where a sample
        // sees its demand.
        let sleeps = state.wants.get(&claim.unit).is_none_or(|want| want.settled == 0);
        orders.open = !cpus.is_empty() || sleeps || !input.means.gates;
        orders.cpus = match cpus.is_empty() {
            true => state.orders.get(&claim.unit).and_then(|orders| orders.cpus.clone()),
            false => Some(cpus),
        };
    }
}

/// The CPUs on which each unit may run: those that it owns, lent or not, and those that it borrows. Units
/// without CPUs are absent.
pub(crate) fn holds(state: &CpuState) -> BTreeMap<UnitId, CpuSet> {
    let mut holds: BTreeMap<UnitId, CpuSet> = BTreeMap::new();
    let borrowed = state.loans.iter().map(|(cpu, loan)| (*cpu, loan.borrower));
    for (cpu, unit) in state.owners.iter().map(|(cpu, unit)| (*cpu, *unit)).chain(borrowed) {
        holds.entry(unit).or_default().insert(cpu);
    }
    holds
}

/// Places the threads of jobs in pools, after the owners and loans of this step are decided.
pub(crate) fn seat_jobs(state: &mut CpuState, now: Time, input: Input<'_>, orders: &mut seats::SeatPlan<'_>) {
    if input.snapshot.jobs.is_empty() && state.seating.is_empty() {
        return;
    }
    let held = held_cpus(state);
    seats::step(Arc::make_mut(&mut state.seating), &mut state.pools, now, input, &held, orders);
}

/// The CPUs that each unit may use for its jobs: its home CPUs, lent or not, and those that it borrows. CPUs
/// shared by turns are left out.
pub(crate) fn held_cpus(state: &CpuState) -> seats::HeldCpus {
    if state.owners.is_empty() {
        return seats::HeldCpus::Shared;
    }
    // A shared CPU gets another owner at every rotation, so that a thread with a seat there would have to
    // move.
    let mut held: BTreeMap<UnitId, CpuSet> = BTreeMap::new();
    let homes = state.homes.iter().map(|(cpu, unit)| (*cpu, *unit));
    let borrowed = state.loans.iter().map(|(cpu, loan)| (*cpu, loan.borrower));
    for (cpu, unit) in homes.chain(borrowed) {
        held.entry(unit).or_default().insert(cpu);
    }
    seats::HeldCpus::By(held)
}

/// For each enclosing unit (`None`: the machine), the sum of the entitlements of the units directly inside
/// it.
fn sibling_sums(input: Input<'_>, entitlement: &Entitlement) -> BTreeMap<Option<UnitId>, u128> {
    let mut sums: BTreeMap<Option<UnitId>, u128> = BTreeMap::new();
    for unit in input.contract.held() {
        *sums.entry(input.contract.unit(unit).parent).or_default() += u128::from(entitlement.value(unit));
    }
    sums
}

/// A unit's weight among its siblings, in proportion to entitlements. If the enclosing unit has processes of
/// its own, these compete with the default weight, which stands for their entitlement; otherwise the siblings
/// divide a weight of 10,000. For example, a unit with 3 CPUs beside own processes with 2 has 3/2 of the
/// default weight.
fn weight(
    input: Input<'_>,
    entitlement: &Entitlement,
    sibling_sums: &BTreeMap<Option<UnitId>, u128>,
    unit: UnitId,
) -> u32 {
    let value = u128::from(entitlement.value(unit));
    let parent = input.contract.unit(unit).parent;
    let own = parent.filter(|id| input.snapshot.unit(*id).processes > 0).map_or(0, |id| entitlement.own(id));
    let weight = if own > 0 {
        value * u128::from(DEFAULT_TICKETS) / u128::from(own)
    } else {
        let siblings = sibling_sums.get(&parent).copied().unwrap_or(0);
        (value * 10_000)
            .checked_div(siblings)
            .map_or(u128::from(WEIGHT_USUAL), |weight| weight.max(WEIGHT_MIN))
    };
    u32::try_from(weight.clamp(1, 10_000)).unwrap_or(WEIGHT_USUAL)
}

/// Why a unit's CPU time must be capped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ceiling {
    /// The unit may not borrow: the cap is its entitlement.
    Own,
    /// The contract sets a limit: the cap is that limit.
    Limit,
    /// The contract limits how much the unit may borrow: the cap is its entitlement plus that amount.
    Loan,
}

/// Why a unit must be capped; `None` if it needs no cap. In partition mode, the CPU set of a top-level unit
/// already bounds what it borrows, so that only a limit needs a cap.
fn ceiling(contract: &Contract, unit: UnitId, partitioned: bool) -> Option<Ceiling> {
    let settings = contract.unit(unit);
    let confined_by_set = settings.parent.is_none() && partitioned;
    if !confined_by_set && (contract.machine.scheme == Scheme::Quota || !settings.borrow.cpu.allows()) {
        Some(Ceiling::Own)
    } else if !confined_by_set && settings.borrow.cpu.amount().is_some() {
        Some(Ceiling::Loan)
    } else {
        settings.limit.cpu.map(|_| Ceiling::Limit)
    }
}

/// The first unit that this contract requires to be capped on a machine of `cpus` CPUs. A backend without
/// caps cannot enforce such a contract, except by chance while fewer units are active.
pub fn needs_cap(contract: &Contract, means: Means, cpus: usize) -> Option<UnitId> {
    let partitioned = partitions(contract, means, contract.children(None).count(), cpus);
    let restricts = contract.machine.scheme != Scheme::Smp;
    // An amount to borrow requires no cap here: a scheduler treats it as a plain permission, which `not_held`
    // reports.
    let needs_cap = |unit: &UnitId| {
        let settings = contract.unit(*unit);
        // Sub-units made by `each` come and go. If this unit may not borrow, neither may they, and they need
        // caps. So the unit counts as one that needs a cap even while it has no sub-units.
        let may_borrow = contract.machine.scheme != Scheme::Quota && settings.borrow.cpu.allows();
        let makes_capped_units = settings.each.is_some() && !may_borrow;
        settings.limit.cpu.is_some()
            || makes_capped_units
            || ceiling(contract, *unit, partitioned) == Some(Ceiling::Own)
    };
    contract.held().find(|unit| restricts && needs_cap(unit))
}

/// A unit's cap in millionths of a CPU (`None`: uncapped), and the reason. `micro_cpus` is its entitlement.
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
                // An enclosing unit's limit is at least as tight, and its cap covers this unit.
                (Some(_), None) => (None, Reason::Proportion { micro_cpus }),
                // More than the machine: a cap would have no effect.
                (None, _) if most >= whole => (None, Reason::Proportion { micro_cpus }),
                (None, _) => (Some(most), Reason::LoanLimit),
            }
        }
        (Some(Ceiling::Limit), Some(limit)) => (Some(limit), Reason::Limit { micro_cpus: limit }),
        _ => (None, Reason::Proportion { micro_cpus }),
    }
}

/// When to sample next, and which units' facts must be fresh then: lenders, whose demand ends loans, and
/// units whose idle CPUs could soon be lent to a unit that is short of CPUs.
fn attention(state: &CpuState, now: Time, input: Input<'_>) -> Attention {
    let wants_any = state.wants.values().any(|want| want.settled > 0);
    // A scheduler that lends and calls back at every switch does not depend on samples. Turns and memory do,
    // but they ask for samples themselves.
    let eager = wants_any && !input.means.switches;
    let affordable = input.snapshot.look_ns.saturating_mul(INTERVAL_PER_SAMPLE_COST);
    let interval = match eager {
        true => affordable.clamp(BUSY_NS, REST_NS),
        false if input.means.switches => affordable.clamp(REST_NS, REST_NS_MAX),
        false => REST_NS,
    };
    let mut next = now + interval;
    let mut watch: Vec<UnitId> =
        state.loans.values().map(|loan| loan.lender).filter(|id| !id.is_common()).collect();
    if !watch.is_empty() {
        // Leave a fifth of the promised call-back time for carrying out the call-back.
        next = next.min(now + input.contract.machine.call_back_ns / 5 * 4);
    }
    let owned: Tally = state.owners.values().copied().collect();
    // A unit whose demand has fallen lends nothing until the fall has lasted for `SETTLE_NS`. If another unit
    // is short of CPUs, sample soon after that.
    let is_settling =
        |unit: UnitId, want: &Want| (want.now as usize) < owned.get(unit) && want.settled != want.now;
    let future_lenders: Vec<UnitId> =
        state.wants.iter().filter(|(unit, want)| is_settling(**unit, want)).map(|(unit, _)| *unit).collect();
    let any_short = state.wants.iter().any(|(unit, want)| want.settled as usize > owned.get(*unit));
    if eager && any_short && !future_lenders.is_empty() {
        next = next.min(now + SETTLE_NS / 2);
        watch.extend(future_lenders);
    }
    if !state.turns.owners.is_empty() && wants_any {
        next = next.min((state.turns.since + turn_ns(input, &state.claims)).max(now + MS));
    }
    watch.sort_unstable();
    watch.dedup();
    Attention { next, watch }
}
