//! One step of the slow path: from the facts of this moment to a plan.
//!
//! Order of decisions: rights first (what changed of them, which units are active), then each resource.

use alloc::sync::Arc;

use commonhold_contract::{Resource, UnitId};

use crate::input::Input;
use crate::plan::{Decisions, Plan, RightsChange};
use crate::rights::Rights;
use crate::rights::entitlement::capacity;
use crate::time::{MS, Time};
use crate::{cpu, disk, memory};

/// What a policy remembers between steps. A copy shares what a step does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    rights: Arc<Rights>,
    pub(crate) cpu: cpu::State,
    memory: Arc<memory::State>,
    pub(crate) disks: disk::State,
}

impl State {
    /// The rights as the last step left them.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }
}

/// Decides what is to be done now.
pub fn step(mut state: State, now: Time, input: Input<'_>) -> (State, Plan) {
    let mut plan = Plan { at: now, ..Plan::default() };
    let rights = &mut state.rights;
    bring_up_to_date(rights, now, input, &mut plan.decisions);
    let ends = rights.next();
    let (cpu, attention) = cpu::step(&mut state.cpu, now, input, rights, &mut plan.orders.cpu);
    plan.decisions.cpu = cpu;
    (plan.next, plan.watch) = (attention.next, attention.watch);
    plan.decisions.memory = memory::step(&mut state.memory, now, input, rights, &mut plan.orders.memory);
    // Facts that are due and were not there will be at the next look, whenever that is.
    let earliest = if input.snapshot.memory.is_some() { now } else { now + 10 * MS };
    plan.next = state.memory.next().map_or(plan.next, |at| plan.next.min(at.max(earliest)));
    let (disks, next) = disk::step(&mut state.disks, now, input, rights, &mut plan.orders.disk);
    plan.decisions.disk = disks;
    plan.next = [next, ends].into_iter().flatten().fold(plan.next, Time::min);
    (state, plan)
}

/// Takes into the rights what changed since the step before. Where nothing did, they stay the same ones: what is worked out
/// from them is remembered by that.
fn bring_up_to_date(rights: &mut Arc<Rights>, now: Time, input: Input<'_>, made: &mut Decisions) {
    let capacities =
        Resource::ALL.map(|resource| (resource, capacity(input.contract, input.machine, resource)));
    let there = |unit: UnitId| input.snapshot.unit(unit).processes > 0;
    let same = rights.are_of(input.contract)
        && input.changes.is_empty()
        && rights.is_settled(now)
        && capacities.iter().all(|(resource, capacity)| rights.capacity(*resource) == *capacity)
        && input.contract.held().all(|unit| rights.is_present(unit, there(unit)));
    if same {
        return;
    }
    let rights = Arc::make_mut(rights);
    rights.follow(input.contract);
    // What offers are worth is weighed by it.
    for (resource, capacity) in capacities {
        rights.set_capacity(resource, capacity);
    }
    for change in input.changes {
        let refused = rights.apply(*change).err();
        made.rights.push(RightsChange { change: *change, refused });
    }
    for unit in input.contract.held() {
        // Every unit of the contract is known by now.
        let _ = rights.set_present(unit, there(unit));
    }
    made.trade = rights.settle(now);
}

#[cfg(test)]
mod tests;
