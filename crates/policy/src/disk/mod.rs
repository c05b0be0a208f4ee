//! Decides how much of a disk each unit may use: turns the disk's counters into orders on control groups.
//!
//! Problem: the more requests a unit has in flight, the more of a disk it gets, and the longer other units
//! wait behind these requests. A program cannot plug a disk scheduler into Linux. Linux offers weights, where
//! the device has a scheduler that honours them, and caps (io.max) everywhere. A fixed cap would keep a unit
//! from bandwidth that other units leave unused, so caps follow demand.
//!
//! Terms:
//! - A unit is *active* if it transferred or waited since the last sample. It *waits* if some of its tasks
//!   were stalled on a disk for at least a quarter of the time since the last sample.
//! - The *crowd* is the units that were active in the last five seconds.
//! - A disk's *capacity* is the rate at which it can transfer with the present mix of requests, in bytes per
//!   second.
//! - A unit's *part* is its fraction of the capacity if the capacity is divided among the crowd by
//!   entitlement.
//! - A unit is *ahead* if it transferred more than its part by more than a threshold ([`fairness`]).
//! - A unit is *throttled* if its rate is limited; otherwise it is *free*.
//! - The *queue* is the requests in the device. It is *long* when requests take longer in the device than
//!   they would alone ([`queue`]).
//!
//! Why the queue is controlled: a unit with one request at a time is delayed by the requests that are in the
//! device before its own, and not by the rate of other units. Nor does a unit's rate show its demand: if a
//! unit always waits and transfers little, it may want no more, or the other units may keep it from its part.
//! So other units may use the bandwidth that a unit leaves unused, but only up to the point at which a queue
//! builds up.
//!
//! Algorithm ([`rates`]), for each disk at each sample, where weights are not honoured:
//! 1. The [`fairness`] criterion counts what units transferred, and finds the units that are ahead.
//! 2. The estimate of the capacity follows the transfer rate of the disk: it equals that rate while the queue
//!    is never empty, and is at least that rate otherwise.
//! 3. A unit that is ahead is throttled if it transfers at seven eighths of its part or more. As soon as one
//!    unit is throttled, every other unit that transfers at seven eighths of its part is throttled, too. A
//!    unit becomes free again when it is alone in the crowd, or when for a second it transfers at less than
//!    half of its part although it may transfer more.
//! 4. The *total rate*, that of all units together, is controlled.
//!    - The total rate grows while there is no queue and the throttled units use up their rates: near the
//!      rate of the last congestion by as little as a 256th of the capacity at each sample, elsewhere by at
//!      least a sixteenth.
//!    - While there is a queue, the total rate is reduced so that the queue drains within 300 ms.
//!    - The throttled units may transfer what the free units leave of the total rate. A free unit counts with
//!      the highest rate that it had lately, since a unit that pauses comes back.
//!    - Even if a queue remains, the throttled units keep at least five eighths of their parts, or seven
//!      eighths if no active unit is free. The isolation of free units goes no further.
//!    - The throttled units divide their rate by entitlement. What one of them does not take, the others get.
//!      A unit with credit ([`crate::credits`]) gets more than its part before other units do.
//! 5. A unit that had the disk to itself has a backlog in the device when another unit comes. The unit with
//!    the backlog may transfer next to nothing until the backlog has drained.
//!
//! Where a backend enforces rates by stopping units, rates enforce only the contract's limits, and steps 2 to
//! 5 order nothing. [`debt`] decides when a unit is stopped.
//!
//! Where weights are honoured, units get weights by entitlement, corrected by the bandwidth that they
//! actually get ([`weights`]). With weights or without, caps enforce the contract's limits, and the ceilings
//! of units that may not borrow ([`caps`]).
//!
//! Properties (tested):
//! - No unit is throttled while the crowd is one unit, or while no unit is ahead.
//! - A unit that waits may transfer its part from the sample on that finds the unit waiting.
//! - A unit within its part is delayed at most by the requests that other units may send at once.
//! - Every throttled unit may transfer something.
//!
//! Limits:
//! - The measure is bytes, so no unit is charged for seeks.
//! - The kernel enforces a cap in slices of 100 ms: at the start of a slice it admits all that may pass in
//!   the slice. A device without a cache then has a queue, whatever is ordered. So while a unit is free, the
//!   other units are throttled to their parts, although the device could serve more.
//! - Requests that are already in the device complete first. So a call-back takes at least as long as these
//!   requests.
//! - Where weights are honoured, they alone divide the bandwidth that units leave unused. Credits are
//!   counted, but have no effect.
//! - A unit's own processes share one cap with its sub-units.
//! - The capacity is learnt from use. So on a disk that was never busy, reservations and ceilings begin too
//!   low, unless the disk was measured.
//!
//! Source: seed 000, section 3.3 (counts, threshold, half-life); seed 004, sections 3.3 and 5.4 (hard and
//! soft shares).

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
/// The sampling interval while a unit uses a disk with weights. It is longer, since the disk's scheduler acts
/// in between. Four samples fit into a second, which are enough to see whether a unit did nothing but wait in
/// it ([`weights`]).
const WEIGHTED_NS: Time = 250 * MS;

/// Facts of disks are read again once they are this old; an earlier sample, taken for another reason, repeats
/// the last facts. Rates over a few milliseconds would be noise.
pub const FRESH_NS: Time = 80 * MS;

/// The state of one disk: its measurements and the orders in force, as of the last sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct DiskRecord {
    control: RateControl,
    weights: Weights,
    caps: BTreeMap<UnitId, Order<DiskCap>>,
    /// Shares in force, if the disk schedules by shares itself, and the rights and capacity that they follow
    /// from.
    shares: BTreeMap<UnitId, u64>,
    shares_from: Option<(Arc<Rights>, Capacity)>,
}

/// The state of all disks, carried from step to step. Copies share the disks that a step does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskState {
    disks: BTreeMap<String, Arc<DiskRecord>>,
    debts: Debts,
    /// Each unit's entitlement to a disk, and the rights that it follows from.
    entitled: Arc<(Arc<Rights>, Vec<u64>)>,
}

impl DiskState {
    /// The state of the disk with this name; a new one if the disk was not seen before.
    fn disk(&mut self, facts: &DiskFacts) -> &mut Arc<DiskRecord> {
        self.disks.entry(facts.name.clone()).or_default()
    }

    /// Each unit's entitlement to a disk, in millionths, by unit index.
    fn entitled(&mut self, rights: &Arc<Rights>) -> Vec<u64> {
        if !Arc::ptr_eq(&self.entitled.0, rights) {
            let parts = rights.at_capacity(Resource::Disk, Capacity::Parts).all();
            let mut entitled = parts.own;
            entitled[UnitId::SHARED.index()] = parts.unheld;
            self.entitled = Arc::new((rights.clone(), entitled));
        }
        self.entitled.1.clone()
    }

    /// Marks units as present in the rights to disks: units with processes, and units that lately used a
    /// disk. The last process of such a unit may have ended, but its write-back goes on, or the unit's next
    /// job will soon start. A unit that is not present has no tickets, and would be throttled to next to
    /// nothing.
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
    /// Forgets the units that the contract no longer has. Orders on a unit ended when the backend removed the
    /// unit.
    fn forget_gone(&mut self, contract: &Contract) {
        self.control.forget_gone(contract);
        self.weights.forget_gone(contract);
        self.caps.retain(|unit, _| contract.has(*unit));
        self.shares.retain(|unit, _| contract.has(*unit));
    }
}

/// Decides the orders for all disks; also returns when to sample next, which is `None` while no disk is busy.
/// Costs nothing if no disk was observed.
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
    // The rights as if all units were present are needed for weights only, and so only if a disk honours
    // weights.
    let any_weighted = input.means.disk.weights && input.snapshot.disks.iter().any(|facts| facts.weighs);
    let rights_if_all_present = any_weighted.then(|| with_all_present(input, rights));
    let if_all_present =
        rights_if_all_present.as_ref().unwrap_or(rights).at_capacity(Resource::Disk, Capacity::Parts).all();
    for facts in &input.snapshot.disks {
        let disk = Arc::make_mut(state.disk(facts));
        let entitlement = rights.at_capacity(Resource::Disk, capacity_of(facts)).all();
        let weighted = decide(disk, now, input, facts, (&entitlement, &if_all_present), orders);
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

/// The capacity by which entitlements to a disk are valued: its measured rate, or parts of an unknown rate.
fn capacity_of(facts: &DiskFacts) -> Capacity {
    facts.bytes_per_s.map_or(Capacity::Parts, Capacity::Known)
}

/// The rights as if every unit without sub-units were present. A unit with sub-units stays present only if it
/// has processes of its own.
fn with_all_present(input: Input<'_>, rights: &Rights) -> Rights {
    let mut if_all_present = rights.clone();
    let mut encloses: Vec<bool> = input.contract.ids().map(|_| false).collect();
    for parent in input.contract.held().filter_map(|id| input.contract.unit(id).parent) {
        encloses[parent.index()] = true;
    }
    for unit in input.contract.held().filter(|unit| !encloses[unit.index()]) {
        let _ = if_all_present.set_present_for(unit, Resource::Disk, true);
    }
    if_all_present
}

/// Orders the shares of all units on a disk that schedules by shares itself. Units that are not present get
/// shares as well: such a disk divides its bandwidth among the units that have requests.
fn order_shares(
    disk: &mut Arc<DiskRecord>,
    input: Input<'_>,
    facts: &DiskFacts,
    rights: &Arc<Rights>,
    orders: &mut Vec<Step<DiskOrder>>,
) {
    let capacity = capacity_of(facts);
    let is_current =
        |(source, valued_at): &(Arc<Rights>, Capacity)| Arc::ptr_eq(source, rights) && *valued_at == capacity;
    if disk.shares_from.as_ref().is_some_and(is_current) {
        return;
    }
    let disk = Arc::make_mut(disk);
    disk.shares_from = Some((rights.clone(), capacity));
    let entitlement = with_all_present(input, rights).at_capacity(Resource::Disk, capacity).all();
    for unit in input.contract.held() {
        let share = entitlement.own(unit);
        if disk.shares.insert(unit, share).unwrap_or(0) != share {
            let part = share.saturating_mul(MILLIONTH).checked_div(capacity.total()).unwrap_or(0);
            let action = DiskOrder::Share { unit, disk: facts.name.clone(), share };
            orders.push(Step { action, reason: Reason::DiskPart { part } });
        }
    }
}

/// Enters one disk's sample, and orders the weights and caps that differ from those in force there.
/// `entitlement` holds for the units present now, `if_all_present` if all units were present. Returns whether
/// the disk is controlled by weights.
fn decide(
    disk: &mut DiskRecord,
    now: Time,
    input: Input<'_>,
    facts: &DiskFacts,
    (entitlement, if_all_present): (&Entitlement, &Entitlement),
    steps: &mut Vec<Step<DiskOrder>>,
) -> bool {
    let restricts = input.contract.machine.scheme != Scheme::Smp;
    disk.control.observe(now, input, facts, entitlement);
    let weighted = restricts && facts.weighs && input.means.disk.weights && disk.weights.are_honoured(now);
    let weights = if weighted {
        disk.weights.wanted(now, input, entitlement, if_all_present, &disk.control)
    } else {
        BTreeMap::new()
    };
    for (unit, order) in disk.weights.replace(weights) {
        let action = DiskOrder::Weigh { unit, disk: facts.name.clone(), weight: order.value };
        steps.push(Step { action, reason: order.because });
    }
    let mut caps = BTreeMap::new();
    if restricts && input.means.disk.caps {
        let by_rates = !weighted && !input.means.disk.limits_only;
        let rates = if by_rates { disk.control.decide(now) } else { BTreeMap::new() };
        caps = caps::wanted(input, entitlement, facts, &disk.control, &rates);
    }
    replace_caps(disk, caps, facts, steps);
    weighted
}

/// Orders the caps that differ from those in force. A change of at most 1/64 is not ordered, since the kernel
/// takes a while to follow a change. The exception is a cap in force that is above the unit's limit, because
/// the limit was lowered.
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
        let must_change = |old: u64, new: u64| old.abs_diff(new) > old / 64 || old > limit;
        let old = disk.caps.get(&unit).map(|order| order.value);
        if old.is_none_or(|old| {
            must_change(old.read, new.value.read) || must_change(old.write, new.value.write)
        }) {
            order(unit, Some(new.value), new.because);
            disk.caps.insert(unit, new);
        }
    }
}

#[cfg(test)]
mod tests;
