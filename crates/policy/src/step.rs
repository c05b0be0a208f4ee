//! One step of the slow path: from the facts of this moment to a plan.
//!
//! Order of decisions: rights first (what changed of them, which units are active, what the negotiator exchanges), then each
//! resource.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use commonhold_contract::{GangsShare, Resource, Scheme, UnitId};

use crate::input::Input;
use crate::plan::{Decisions, Plan, RightsChange};
use crate::rights::entitlement::capacity;
use crate::rights::{Change, InUse, Rights};
use crate::time::{MS, Time};
use crate::{bus, cpu, disk, foreign_groups, gangs, memory, negotiate};

/// What a policy remembers between steps. A copy shares what a step does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    rights: Arc<Rights>,
    /// Memory in use, as of the last look at memory; nothing before the first.
    in_use: Option<Arc<InUse>>,
    pub(crate) cpu: cpu::State,
    gangs: Arc<gangs::State>,
    bus: Arc<bus::State>,
    memory: Arc<memory::MemoryState>,
    pub(crate) disks: disk::DiskState,
    negotiator: Arc<negotiate::Negotiator>,
    places: Arc<foreign_groups::State>,
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
    look_at_use(&mut state.in_use, input);
    let rights = &mut state.rights;
    update_rights(rights, now, input, state.in_use.as_deref(), &mut plan.decisions);
    let looked = negotiate::step(&mut state.negotiator, now, input, rights);
    plan.decisions.negotiated = looked.moves;
    plan.decisions.trade.extend(looked.traded);
    let ends = rights.next();
    let (cpu, attention) = cpu::step(&mut state.cpu, now, input, rights, &mut plan.orders.cpu);
    plan.decisions.cpu = cpu;
    (plan.next, plan.watch) = (attention.next, attention.watch);
    let mut places = cpu::seats::Orders { seats: &mut plan.decisions.seats, orders: &mut plan.orders.seats };
    cpu::place(&mut state.cpu, now, input, &mut places);
    let look_at_gangs = gang(&mut state, now, input, &mut plan);
    let rights = &mut state.rights;
    plan.decisions.memory = memory::step(&mut state.memory, now, input, rights, &mut plan.orders.memory);
    // Facts that are due and were not there will be at the next look, whenever that is.
    let earliest = if input.snapshot.memory.is_some() { now } else { now + 10 * MS };
    plan.next = state.memory.next().map_or(plan.next, |at| plan.next.min(at.max(earliest)));
    let (disks, next) = disk::step(&mut state.disks, now, input, rights, &mut plan.orders.disk);
    plan.decisions.disk = disks;
    if input.means.places || !state.places.is_empty() {
        foreign_groups::step(Arc::make_mut(&mut state.places), now, input, &mut plan);
    }
    plan.next = [next, ends, looked.next, look_at_gangs].into_iter().flatten().fold(plan.next, Time::min);
    (state, plan)
}

/// Decides which gangs run, on the CPUs that units hold by now; when to look again for that.
fn gang(state: &mut State, now: Time, input: Input<'_>, plan: &mut Plan) -> Option<Time> {
    let no_gangs = input.snapshot.jobs.is_empty() && state.gangs.is_empty();
    if no_gangs && input.means.throttle.is_none() && state.bus.is_empty() {
        return None;
    }
    let room = match cpu::held(&state.cpu) {
        _ if input.contract.machine.scheme == Scheme::Smp => gangs::Room::Machine,
        cpu::seats::Held::Shared => {
            let entitled = state.rights.entitlement(Resource::Cpu);
            let outermost = input.contract.held().filter(|unit| input.contract.unit(*unit).parent.is_none());
            gangs::Room::Parts(outermost.map(|unit| (unit, entitled.value(unit))).collect())
        }
        cpu::seats::Held::By(held) => {
            let cpus = |cpus: &commonhold_machine::CpuSet| u32::try_from(cpus.len()).unwrap_or(u32::MAX);
            let cpus = held.iter().map(|(unit, held)| (*unit, cpus(held))).collect::<BTreeMap<_, _>>();
            gangs::Room::Cpus(cpus)
        }
    };
    let rights = &state.rights;
    let gangs = Arc::make_mut(&mut state.gangs);
    let turn = gangs::look(gangs, now, input, &room, &mut plan.orders.gangs);
    let ended = bus::Ended {
        ran: turn.as_ref().map_or(&[], |turn| &turn.ran),
        gangs: turn.is_some() && input.contract.machine.gangs.share == GangsShare::Bus,
        now: turn.as_ref().is_some_and(|turn| turn.begins),
    };
    let held = Arc::make_mut(&mut state.bus);
    let (bus, next) = bus::step(held, now, input, rights, &ended, &mut plan.orders.bus);
    plan.decisions.bus = bus;
    let Some(turn) = turn else { return next };
    let bus_of = |unit| bus::entitled(input, rights, unit);
    let waits = |unit| held.waits(input.contract, unit);
    let choice = gangs::Chooses { room: &room, begins: turn.begins, bus_of: &bus_of, waits: &waits };
    let (quantum, next) = gangs::choose(gangs, now, input, &choice, &mut plan.orders.gangs);
    plan.decisions.quantum = quantum;
    next
}

/// Takes note of what is in use of memory, where it was observed.
fn look_at_use(in_use: &mut Option<Arc<InUse>>, input: Input<'_>) {
    if let Some(facts) = &input.snapshot.memory {
        *in_use = Some(Arc::new(InUse::new(input.contract, facts)));
    } else if !input.contract.vacant.is_empty() {
        *in_use =
            in_use.take().map(|known| Arc::new(Arc::unwrap_or_clone(known).without_gone(input.contract)));
    }
}

/// Applies to the rights everything that changed since the previous step: queued changes, presence,
/// capacities and the contract. If nothing did, the same `Arc` stays, which identifies values derived from it
/// as current.
fn update_rights(
    rights: &mut Arc<Rights>,
    now: Time,
    input: Input<'_>,
    in_use: Option<&InUse>,
    made: &mut Decisions,
) {
    let capacities =
        Resource::ALL.map(|resource| (resource, capacity(input.contract, input.machine, resource)));
    let there = |unit: UnitId| input.snapshot.unit(unit).processes > 0;
    // It changes at every look, so that the rights know of it only while somebody offers something.
    let offers = |change: &Change| matches!(change, Change::Offer { .. } | Change::Resume { .. });
    let in_use = in_use.filter(|_| rights.asks_for_use() || input.changes.iter().any(offers));
    let same = rights.are_of(input.contract)
        && input.changes.is_empty()
        && rights.is_settled(now)
        && in_use.is_none_or(|in_use| rights.knows_in_use(in_use))
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
    if let Some(in_use) = in_use {
        rights.set_in_use(in_use);
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
