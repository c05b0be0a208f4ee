//! How much of a disk each unit may use: from its counters to orders on control groups.
//!
//! Problem: a unit with more requests in flight gets more of a disk, and others wait behind them. Linux lets no program
//! plug in a disk scheduler. It offers weights, if the device has a scheduler that honours them, and caps (io.max)
//! everywhere. A fixed cap wastes what other units leave, so caps follow demand.
//!
//! Terms:
//! - A unit is *active* if it transferred or waited since the last sample. It *waits* if some of its tasks stalled on a
//!   disk for a quarter of that time.
//! - The *crowd* is the units that were active in the last five seconds.
//! - A disk's *capacity* is what it carries with the present mix of requests, in bytes per second.
//! - A unit's *part* is its part of the capacity, by share among the crowd.
//! - The *queue* is the requests in the device. It is long when they take longer there than they need ([`queue`]).
//!
//! Why the queue is controlled: a unit with one request at a time is held up by the requests that are in the device
//! before its own, not by how much others transfer. And what a unit transfers does not show what it would transfer: a
//! unit that always waits and moves little may want no more, or may be kept from its part. So what is lent to others is
//! not what a unit leaves, but what leaves no queue.
//!
//! Algorithm ([`rates`]), for each disk at each sample, where weights are not honoured:
//! 1. What units transferred is charged to the [`fairness`] criterion, which finds the units that are too far ahead.
//! 2. The capacity follows what is transferred: it equals that while the queue is never empty, and is at least that
//!    otherwise.
//! 3. A unit that is ahead and has seven eighths of its part is *held* to a rate. Beside it, so is every unit that has
//!    that much. A unit is released when it takes less than half of its part for a second although it may take more, or
//!    when it is alone in the crowd. All other units are free: they do not have their parts.
//! 4. What *all* units transfer together is controlled.
//!    - It grows while there is no queue and the held units take what they may: by at least a sixteenth of the capacity
//!      at each sample, but by as little as a 256th near the last congestion.
//!    - With a queue, it is reduced so that the queue drains within 300 ms.
//!    - Held units may transfer what the free units leave of it. A free unit counts with the most that it lately
//!      transferred, since a unit that pauses comes back.
//!    - Held units keep at least five eighths of their parts, or seven eighths if no active unit is free. They keep that
//!      even if a queue remains, so fairness and isolation end there.
//!    - Held units divide this by share. What one does not take, the others get. A unit with credit
//!      ([`crate::credits`]) gets more than its part before others do.
//! 5. A unit that had the disk to itself has a backlog in the device when another unit comes. It transfers next to
//!    nothing until that is done.
//!
//! Where rates are enforced by stopping a unit, they serve limits alone, and steps 2 to 5 order nothing. [`debt`] decides
//! when a unit is stopped.
//!
//! Where weights are honoured, units get weights by entitlement, corrected by what they actually get ([`weights`]). In
//! both cases, caps enforce limits, and ceilings for units that may not borrow ([`caps`]).
//!
//! Properties (tested):
//! - No unit is held while the crowd is one unit, or no unit is ahead.
//! - A unit that waits is given its part at the sample that finds it waiting.
//! - A unit within its part is not delayed by more than what others may send at once.
//! - No unit is held to nothing.
//!
//! Limits:
//! - The measure is bytes, so no unit is charged for seeks.
//! - The kernel enforces a cap in slices: at the start of each 100 ms it admits all that may pass in them. A device
//!   without a cache then has a queue, whatever is ordered. So beside a free unit, others are held to their parts although
//!   they could have more.
//! - Requests that are in the device complete first. That is the price of a call-back.
//! - Where weights are honoured, they alone divide what is lent. Loans are remembered there, without effect.
//! - Processes beside a unit's sub-units share one cap with these.
//! - A capacity is learnt from use. So reservations and ceilings on a disk that was never busy begin too low, unless
//!   the disk was measured.
//!
//! Source: seed 000, section 3.3 (counts, threshold, half-life); seed 004, sections 3.3 and 5.4 (hard and soft shares).

mod caps;
mod debt;
pub mod fairness;
mod in_force;
mod queue;
mod rates;
mod weights;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, Resource, Scheme, UnitId};

use crate::input::Input;
use crate::plan::{DiskOrder, DiskPlan, Reason, Step};
use crate::rights::{Capacity, Entitlement, Rights};
use crate::snapshot::DiskFacts;
use crate::time::{MS, Time};

use debt::Debts;
use in_force::Order;
pub use in_force::{DiskCap, RATE_MIN};
use rates::RateControl;
use weights::Weights;

/// The sampling interval while a unit uses a disk that is controlled by rates.
const BUSY_NS: Time = 100 * MS;
/// The same with weights: the disk's scheduler acts in between. Whether a unit only waited for a second shows in four
/// samples.
const WEIGHTED_NS: Time = 250 * MS;

/// The oldest that facts of disks may be: a sample taken sooner for another reason repeats the last ones. A few
/// milliseconds of a disk say little.
pub const FRESH_NS: Time = 80 * MS;

/// One disk, as of the last sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct DiskRecord {
    control: RateControl,
    weights: Weights,
    caps: BTreeMap<UnitId, Order<DiskCap>>,
    /// Shares in force, if the disk schedules by shares itself, and the rights and capacity that they follow from.
    shares: BTreeMap<UnitId, u64>,
    shares_from: Option<(Arc<Rights>, Capacity)>,
}

/// What is remembered of disks between steps. What a step does not change is shared with the state before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskState {
    disks: BTreeMap<String, Arc<DiskRecord>>,
    debts: Debts,
    /// Each unit's entitlement to a disk, and the rights that it follows from.
    entitled: Arc<(Arc<Rights>, Vec<u64>)>,
}

impl DiskState {
    fn disk(&mut self, facts: &DiskFacts) -> &mut Arc<DiskRecord> {
        self.disks.entry(facts.name.clone()).or_default()
    }

    /// Each unit's entitlement to a disk, in millionths.
    fn entitled(&mut self, rights: &Arc<Rights>) -> Vec<u64> {
        if !Arc::ptr_eq(&self.entitled.0, rights) {
            let parts = rights.to_part(Resource::Disk, Capacity::Parts).all();
            let mut entitled = parts.own;
            entitled[UnitId::SHARED.index()] = parts.unheld;
            self.entitled = Arc::new((rights.clone(), entitled));
        }
        self.entitled.1.clone()
    }

    /// Counts the users of disks as present: units with processes, and units that lately used a disk. The last process of
    /// the latter may be gone, but its write-back or the unit's next job is on its way. Without tickets, it would be held
    /// to next to nothing.
    fn mark_present(&self, input: Input<'_>, rights: &mut Arc<Rights>) {
        for unit in input.contract.held() {
            let used = self.disks.values().any(|disk| disk.control.was_used_by(unit));
            let present = used || input.snapshot.unit(unit).processes > 0;
            if !rights.is_present_for(unit, Resource::Disk, present) {
                let _ = Arc::make_mut(rights).set_present_for(unit, Resource::Disk, present);
            }
        }
    }

    /// Forgets units that the contract no longer has, and disks that are gone.
    fn forget_gone(&mut self, input: Input<'_>) {
        if !input.contract.vacant.is_empty() {
            self.disks.values_mut().for_each(|disk| Arc::make_mut(disk).forget_gone(input.contract));
        }
        self.disks.retain(|name, _| input.snapshot.disks.iter().any(|facts| facts.name == *name));
    }
}

impl DiskRecord {
    /// Forgets the units that the contract no longer has. What was in force for them went with them.
    fn forget_gone(&mut self, contract: &Contract) {
        self.control.forget_gone(contract);
        self.weights.forget_gone(contract);
        self.caps.retain(|unit, _| contract.has(*unit));
        self.shares.retain(|unit, _| contract.has(*unit));
    }
}

/// Decides about disks now, and when to sample next while one is busy. Costs nothing if no disk was observed.
pub(crate) fn step(
    state: &mut DiskState,
    now: Time,
    input: Input<'_>,
    rights: &mut Arc<Rights>,
    orders: &mut Vec<Step<DiskOrder>>,
) -> (DiskPlan, Option<Time>) {
    let mut plan = DiskPlan::default();
    let mut next = None;
    if input.snapshot.disks.is_empty() {
        state.disks.clear();
        return (plan, state.debts.settle(now, input, |_| None, orders));
    }
    plan.disks = input.snapshot.disks.iter().map(|facts| facts.name.clone()).collect();
    state.mark_present(input, rights);
    let rights = &*rights;
    plan.entitled = state.entitled(rights);
    state.forget_gone(input);
    if input.means.disk.shares {
        for facts in &input.snapshot.disks {
            order_shares(state.disk(facts), input, facts, rights, orders);
        }
        return (plan, next);
    }
    // If no disk honours weights, none are ordered, and everyone's rights are not needed.
    let weighted = input.means.disk.weights && input.snapshot.disks.iter().any(|facts| facts.weighs);
    let everyones_rights = weighted.then(|| with_everyone(input, rights));
    let everyones =
        everyones_rights.as_ref().unwrap_or(rights).to_part(Resource::Disk, Capacity::Parts).all();
    for facts in &input.snapshot.disks {
        let disk = Arc::make_mut(state.disk(facts));
        let entitlement = rights.to_part(Resource::Disk, capacity_of(facts)).all();
        let weighted = decide(disk, now, input, facts, (&entitlement, &everyones), orders);
        add_credits(&mut plan.credits, disk.control.credits());
        if disk.control.is_busy() {
            let at = now + if weighted { WEIGHTED_NS } else { BUSY_NS };
            next = Some(next.map_or(at, |next: Time| next.min(at)));
        }
    }
    let caps = |facts: &DiskFacts| state.disks.get(&facts.name).map(|disk| &disk.caps);
    let settled = state.debts.settle(now, input, caps, orders);
    (plan, [next, settled].into_iter().flatten().min())
}

/// Adds the credits of one disk to those of the others.
fn add_credits(sums: &mut Vec<i64>, credits: Vec<i64>) {
    sums.resize(sums.len().max(credits.len()), 0);
    sums.iter_mut().zip(credits).for_each(|(sum, credit)| *sum = sum.saturating_add(credit));
}

fn capacity_of(facts: &DiskFacts) -> Capacity {
    facts.bytes_per_s.map_or(Capacity::Parts, Capacity::Known)
}

/// The rights as if every unit without sub-units had processes. A unit with sub-units is present only if processes stand
/// beside these.
fn with_everyone(input: Input<'_>, rights: &Rights) -> Rights {
    let mut everyones = rights.clone();
    let mut encloses: Vec<bool> = input.contract.ids().map(|_| false).collect();
    for parent in input.contract.held().filter_map(|id| input.contract.unit(id).parent) {
        encloses[parent.index()] = true;
    }
    for unit in input.contract.held().filter(|unit| !encloses[unit.index()]) {
        let _ = everyones.set_present_for(unit, Resource::Disk, true);
    }
    everyones
}

/// Orders the shares of all units, present or not, on a disk that schedules by shares itself: it divides among those that
/// have requests.
fn order_shares(
    disk: &mut Arc<DiskRecord>,
    input: Input<'_>,
    facts: &DiskFacts,
    rights: &Arc<Rights>,
    orders: &mut Vec<Step<DiskOrder>>,
) {
    let capacity = capacity_of(facts);
    let is_current = |(source, at): &(Arc<Rights>, Capacity)| Arc::ptr_eq(source, rights) && *at == capacity;
    if disk.shares_from.as_ref().is_some_and(is_current) {
        return;
    }
    let disk = Arc::make_mut(disk);
    disk.shares_from = Some((rights.clone(), capacity));
    let entitlement = with_everyone(input, rights).to_part(Resource::Disk, capacity).all();
    for unit in input.contract.held() {
        let share = entitlement.own(unit);
        if disk.shares.insert(unit, share).unwrap_or(0) != share {
            let part = share.saturating_mul(MILLIONTH).checked_div(capacity.total()).unwrap_or(0);
            let action = DiskOrder::Share { unit, disk: facts.name.clone(), share };
            orders.push(Step { action, reason: Reason::DiskPart { part } });
        }
    }
}

/// Takes in one disk's sample, and orders the differences to what is in force there. Entitlements are those now, and those
/// if all units were present. Returns whether the disk is controlled by weights.
fn decide(
    disk: &mut DiskRecord,
    now: Time,
    input: Input<'_>,
    facts: &DiskFacts,
    (entitlement, everyones): (&Entitlement, &Entitlement),
    steps: &mut Vec<Step<DiskOrder>>,
) -> bool {
    let isolates = input.contract.machine.scheme != Scheme::Smp;
    disk.control.observe(now, input, facts, entitlement);
    let weighted = isolates && facts.weighs && input.means.disk.weights && disk.weights.are_honoured(now);
    let weights = if weighted {
        disk.weights.wanted(now, input, entitlement, everyones, &disk.control)
    } else {
        BTreeMap::new()
    };
    for (unit, order) in disk.weights.replace(weights) {
        let action = DiskOrder::Weigh { unit, disk: facts.name.clone(), weight: order.value };
        steps.push(Step { action, reason: order.because });
    }
    let mut caps = BTreeMap::new();
    if isolates && input.means.disk.caps {
        let by_rates = !weighted && !input.means.disk.limits_only;
        let rates = if by_rates { disk.control.decide(now) } else { BTreeMap::new() };
        caps = caps::wanted(input, entitlement, facts, &disk.control, &rates);
    }
    replace_caps(disk, caps, facts, steps);
    weighted
}

/// Orders the differences to the caps in force. A change of at most 1/64 is not ordered, since the kernel takes a while to
/// follow; but a cap above the unit's limit, which sank, always is.
fn replace_caps(
    disk: &mut DiskRecord,
    wanted: BTreeMap<UnitId, Order<DiskCap>>,
    facts: &DiskFacts,
    steps: &mut Vec<Step<DiskOrder>>,
) {
    let mut order = |unit, cap: Option<DiskCap>, reason| {
        let (read, write) = (cap.map(|cap| cap.read), cap.map(|cap| cap.write));
        let action = DiskOrder::Cap { unit, disk: facts.name.clone(), read, write };
        steps.push(Step { action, reason });
    };
    for unit in disk.caps.keys().filter(|unit| !wanted.contains_key(unit)) {
        order(*unit, None, Reason::DiskFree);
    }
    disk.caps.retain(|unit, _| wanted.contains_key(unit));
    for (unit, new) in wanted {
        let limit = match new.because {
            Reason::DiskLimit { bytes_per_s } => bytes_per_s,
            _ => u64::MAX,
        };
        let changes = |old: u64, new: u64| old.abs_diff(new) > old / 64 || old > limit;
        let old = disk.caps.get(&unit).map(|order| order.value);
        if old.is_none_or(|old| changes(old.read, new.value.read) || changes(old.write, new.value.write)) {
            order(unit, Some(new.value), new.because);
            disk.caps.insert(unit, new);
        }
    }
}

#[cfg(test)]
mod tests;
