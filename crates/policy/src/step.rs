//! One step of the slow path: turns a snapshot into a plan. (The fast path is the scheduler that decides at
//! every switch.)
//!
//! A step first updates the rights: it makes requested changes, enters units that came or went, and
//! negotiates exchanges. By these rights it then divides the resources in this order: CPUs, the seats of
//! jobs, the memory bus and gangs, memory, disks. The orders for other programs' control groups come last,
//! since they follow from the other orders of the plan.

use alloc::sync::Arc;

use commonhold_contract::{Resource, UnitId};

use crate::input::Input;
use crate::plan::{Decisions, Plan, RightsChange};
use crate::rights::entitlement::capacity;
use crate::rights::{Change, InUse, Rights};
use crate::time::{MS, Time};
use crate::{bus, cpu, disk, foreign_groups, gangs, memory, negotiate};

/// The state that the policy carries from step to step. Cheap to clone: copies share the parts that a step
/// does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyState {
    rights: Arc<Rights>,
    /// Memory in use at the last sample of memory; `None` before the first.
    in_use: Option<Arc<InUse>>,
    pub(crate) cpu: cpu::CpuState,
    gangs: Arc<gangs::GangQueue>,
    bus: Arc<bus::BusAccounts>,
    memory: Arc<memory::MemoryState>,
    pub(crate) disks: disk::DiskState,
    negotiator: Arc<negotiate::Negotiator>,
    group_parts: Arc<foreign_groups::GroupParts>,
}

impl PolicyState {
    /// The rights after the last step.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }
}

/// Makes the plan for the time `now`. Returns it with the state for the next step.
pub fn step(mut state: PolicyState, now: Time, input: Input<'_>) -> (PolicyState, Plan) {
    let mut plan = Plan { at: now, ..Plan::default() };
    sample_memory_in_use(&mut state.in_use, input);
    let rights = &mut state.rights;
    update_rights(rights, now, input, state.in_use.as_deref(), &mut plan.decisions);
    let negotiated = negotiate::step(&mut state.negotiator, now, input, rights);
    plan.decisions.negotiated = negotiated.moves;
    plan.decisions.trade.extend(negotiated.traded);
    let exchanges_end = rights.next();
    let (cpu, attention) = cpu::step(&mut state.cpu, now, input, rights, &mut plan.orders.cpu);
    plan.decisions.cpu = cpu;
    (plan.next, plan.watch) = (attention.next, attention.watch);
    let mut seats = cpu::seats::SeatPlan { seats: &mut plan.decisions.seats, orders: &mut plan.orders.seats };
    cpu::seat_jobs(&mut state.cpu, now, input, &mut seats);
    let next_gangs = gangs::step(&mut state.gangs, &mut state.bus, &state.cpu, now, input, rights, &mut plan);
    plan.decisions.memory = memory::step(&mut state.memory, now, input, rights, &mut plan.orders.memory);
    // If memory facts are overdue and this snapshot lacks them, sample again in 10 ms rather than at once.
    let earliest = if input.snapshot.memory.is_some() { now } else { now + 10 * MS };
    plan.next = state.memory.next().map_or(plan.next, |at| plan.next.min(at.max(earliest)));
    let (disks, next_disks) = disk::step(&mut state.disks, now, input, rights, &mut plan.orders.disk);
    plan.decisions.disk = disks;
    if input.means.foreign_groups || !state.group_parts.is_empty() {
        foreign_groups::step(Arc::make_mut(&mut state.group_parts), now, input, &mut plan);
    }
    let deadlines = [next_disks, exchanges_end, negotiated.next, next_gangs];
    plan.next = deadlines.into_iter().flatten().fold(plan.next, Time::min);
    (state, plan)
}

/// Keeps the memory in use of the last snapshot that had it, without units that left the contract.
fn sample_memory_in_use(in_use: &mut Option<Arc<InUse>>, input: Input<'_>) {
    if let Some(facts) = &input.snapshot.memory {
        *in_use = Some(Arc::new(InUse::new(input.contract, facts)));
    } else if !input.contract.vacant.is_empty() {
        *in_use =
            in_use.take().map(|known| Arc::new(Arc::unwrap_or_clone(known).without_gone(input.contract)));
    }
}

/// Applies all changes since the previous step to the rights: of the contract, of capacities, of units'
/// presence, and those requested. Without changes the `Arc` stays the same, so that values derived from it,
/// which are cached by the `Arc`, stay valid.
fn update_rights(
    rights: &mut Arc<Rights>,
    now: Time,
    input: Input<'_>,
    in_use: Option<&InUse>,
    decisions: &mut Decisions,
) {
    let capacities =
        Resource::ALL.map(|resource| (resource, capacity(input.contract, input.machine, resource)));
    let is_present = |unit: UnitId| input.snapshot.unit(unit).processes > 0;
    // Memory in use differs in every sample, so the rights take it in only while there are offers.
    let is_offer = |change: &Change| matches!(change, Change::Offer { .. } | Change::Resume { .. });
    let in_use = in_use.filter(|_| rights.asks_for_use() || input.changes.iter().any(is_offer));
    let is_unchanged = rights.are_of(input.contract)
        && input.changes.is_empty()
        && rights.is_settled(now)
        && in_use.is_none_or(|in_use| rights.knows_in_use(in_use))
        && capacities.iter().all(|(resource, capacity)| rights.capacity(*resource) == *capacity)
        && input.contract.held().all(|unit| rights.is_present(unit, is_present(unit)));
    if is_unchanged {
        return;
    }
    let rights = Arc::make_mut(rights);
    rights.follow(input.contract);
    // Capacities come before the changes, since offers are valued by capacity.
    for (resource, capacity) in capacities {
        rights.set_capacity(resource, capacity);
    }
    if let Some(in_use) = in_use {
        rights.set_in_use(in_use);
    }
    for change in input.changes {
        let refused = rights.apply(*change).err();
        decisions.rights.push(RightsChange { change: *change, refused });
    }
    for unit in input.contract.held() {
        // Cannot fail: every unit of the contract is known by now.
        let _ = rights.set_present(unit, is_present(unit));
    }
    decisions.trade = rights.settle(now);
}

#[cfg(test)]
mod tests;
