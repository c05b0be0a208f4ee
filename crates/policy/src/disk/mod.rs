//! How much of a disk each unit may use: from the counts of this moment to orders on control groups.
//!
//! Problem: a unit with more requests under way gets more of a disk, and others wait behind them. Linux lets no program
//! plug in a scheduler. It offers weights, where the device has a scheduler that heeds them, and rates (io.max),
//! everywhere. A fixed rate wastes what the other units leave, so rates follow what is wanted.
//!
//! Terms:
//! - A unit is *active* if it transferred or waited since the last look. It *waits* if some task of it was stalled for
//!   a disk for a quarter of that time.
//! - The *crowd* are the units that were active in the last five seconds.
//! - A disk's *capacity* is what it carries at the moment with this mix of requests, in bytes per second.
//! - A unit's *part* is the capacity by share among the crowd.
//! - The *queue* is in the device. It is long when requests take longer there than they need ([`queue`]).
//!
//! Why the queue is controlled: think of a unit that has one request at a time. How much others transfer does not hold
//! it back; how much of theirs is in the device before its request does. How much the unit transfers does not tell what
//! it would transfer. A unit that always waits and moves little may want no more, or may be kept from its part. So
//! others are lent not what it leaves, but what leaves no queue.
//!
//! Algorithm, for each disk at each look, where weights are not heeded:
//! 1. What units transferred since is charged to [`bandwidth`]. Its criterion says which unit is too
//!    far ahead.
//! 2. The capacity follows what is transferred. With a queue that is never empty, it is that; otherwise it is at least
//!    that.
//! 3. A unit that is ahead and has seven eighths of its part is *held*. So is, beside it, every unit that has so much.
//!    It stays held until it takes less than half of its part for a second although it may more, or until it is alone
//!    in the crowd. All other units are free: they have not got their parts.
//! 4. What *all* transfer together is controlled. It grows as long as there is no queue and the held units take what
//!    they may. It grows by at least a sixteenth of the capacity at each look, and by as little as a 256th where a
//!    queue began the last time. With a queue it is reduced, by so much that the queue goes within 300 ms. The held
//!    units may transfer what the free ones leave of it, counted by the most that these did lately, since a unit that
//!    pauses comes back. The held units have at least five eighths of their parts, and seven eighths where no unit is
//!    free: fairness ends there, and isolation too. They divide it by share. What one does not take, the others have. What a unit lent before, less
//!    what it was lent ([`crate::credits`]), pays for more than its part before others have more than theirs.
//! 5. A unit that had the disk to itself has a queue there when another comes. It transfers next to nothing until that
//!    queue is done.
//!
//! Where a rate is held by stopping a unit, rates are for limits alone, and steps 2 to 5 order nothing. When a unit stands
//! still for its rate says [`debt`].
//!
//! Where weights are heeded, units get the weights of their entitlements, corrected by what came out (`weigh`). In both
//! cases, rates hold limits, and the ceilings of units that may not borrow.
//!
//! Properties (tested):
//! - No unit is held while only one unit is in the crowd, or none is ahead.
//! - A unit that waits is given its part at the look that sees it.
//! - A unit within its part is not delayed by more than what others may send at once.
//! - No unit is held to nothing.
//!
//! Limits:
//! - The measure is bytes, so no unit is charged for seeks.
//! - A rate is the kernel's. At the begin of each 100 ms, the kernel lets pass what may pass in them. A device without
//!   a cache has a queue then, whatever is ordered. So beside a unit in the crowd, others are held to their parts
//!   although they could have more.
//! - Requests that are with the disk already must end first. That is the price of a call-back.
//! - Where weights are heeded, what is lent is divided by these alone. Loans are remembered there, and nothing follows.
//! - Processes that stand in a unit beside its sub-units are held together with these.
//! - A capacity is learned from use. So reservations and ceilings of a disk that was never busy begin too low, unless
//!   it was measured.
//!
//! Source: seed 000, section 3.3 (counts, threshold, half-life); seed 004, sections 3.3 and 5.4 (hard and soft shares).

mod capacity;
mod debt;
pub mod fairness;
mod in_force;
mod queue;
mod rates;
mod weigh;

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
use rates::Rates;

/// How soon to look again while a unit uses a disk that rates hold.
const BUSY_NS: Time = 100 * MS;
/// The same where weights do: the disk's scheduler sees to what comes in between. A unit that only waited for a second
/// shows in four looks.
const WEIGHED_NS: Time = 250 * MS;

/// How old facts of disks may be: a look that is made sooner for other reasons has those of the look before. A few
/// milliseconds of a disk say little.
pub const FRESH_NS: Time = 80 * MS;

/// One disk, as it was at the last look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Disk {
    rates: Rates,
    weights: weigh::Weights,
    /// Shares in force, and the rights that they are worked out from, where the disk schedules by them.
    shares: BTreeMap<UnitId, u64>,
    shared_by: Option<(Arc<Rights>, Capacity)>,
    caps: BTreeMap<UnitId, Order<DiskCap>>,
}

/// What is remembered of disks between steps. Shared with the state before, as far as a step changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    disks: BTreeMap<String, Arc<Disk>>,
    debts: Debts,
    /// What each unit is entitled to of a disk, and the rights that this is worked out from.
    entitled: Arc<(Arc<Rights>, Vec<u64>)>,
}

impl State {
    fn disk(&mut self, facts: &DiskFacts) -> &mut Arc<Disk> {
        self.disks.entry(facts.name.clone()).or_default()
    }

    /// What each unit is entitled to of a disk, in millionths.
    fn entitled(&mut self, rights: &Arc<Rights>) -> Vec<u64> {
        if !Arc::ptr_eq(&self.entitled.0, rights) {
            let parts = rights.to_part(Resource::Disk, Capacity::Parts).all();
            let mut entitled = parts.own;
            entitled[UnitId::SHARED.index()] = parts.unheld;
            self.entitled = Arc::new((rights.clone(), entitled));
        }
        self.entitled.1.clone()
    }
}

impl Disk {
    /// Forgets the units that the contract has no more: what held them went with them.
    fn forget_gone(&mut self, contract: &Contract) {
        self.rates.forget_gone(contract);
        self.weights.forget_gone(contract);
        self.caps.retain(|unit, _| contract.has(*unit));
        self.shares.retain(|unit, _| contract.has(*unit));
    }
}

/// Decides what is to be done about disks now, and when to look again while one is busy. Costs nothing where no disk was observed.
pub(crate) fn step(
    state: &mut State,
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
    // A unit that used a disk lately counts too: its last process may be gone, and what that wrote, or its next job, is on
    // its way. Without tickets it would be ahead of nothing, and held to next to that.
    for unit in input.contract.held() {
        let used = state.disks.values().any(|disk| disk.rates.was_used_by(unit));
        let there = used || input.snapshot.unit(unit).processes > 0;
        if !rights.is_present_for(unit, Resource::Disk, there) {
            let _ = Arc::make_mut(rights).set_present_for(unit, Resource::Disk, there);
        }
    }
    let rights = &*rights;
    plan.entitled = state.entitled(rights);
    if !input.contract.vacant.is_empty() {
        state.disks.values_mut().for_each(|disk| Arc::make_mut(disk).forget_gone(input.contract));
    }
    state.disks.retain(|name, _| input.snapshot.disks.iter().any(|facts| facts.name == *name));
    if input.means.disk.shares {
        for facts in &input.snapshot.disks {
            share_out(state.disk(facts), input, facts, rights, orders);
        }
        return (plan, next);
    }
    // No unit is told a weight where none is heeded.
    let weighs = input.means.disk.weights && input.snapshot.disks.iter().any(|facts| facts.weighs);
    let everybodys_rights = weighs.then(|| with_everybody(input, rights));
    let everybodys =
        everybodys_rights.as_ref().unwrap_or(rights).to_part(Resource::Disk, Capacity::Parts).all();
    for facts in &input.snapshot.disks {
        let disk = Arc::make_mut(state.disk(facts));
        let entitlement = rights.to_part(Resource::Disk, capacity_of(facts)).all();
        let weighs = decide(disk, now, input, facts, (&entitlement, &everybodys), orders);
        sum_up(&mut plan.credits, disk.rates.credits());
        if disk.rates.is_busy() {
            let at = now + if weighs { WEIGHED_NS } else { BUSY_NS };
            next = Some(next.map_or(at, |next: Time| next.min(at)));
        }
    }
    let caps = |facts: &DiskFacts| state.disks.get(&facts.name).map(|disk| &disk.caps);
    let settled = state.debts.settle(now, input, caps, orders);
    (plan, [next, settled].into_iter().flatten().min())
}

/// Adds the credits of one disk to those of the others.
fn sum_up(sums: &mut Vec<i64>, credits: Vec<i64>) {
    sums.resize(sums.len().max(credits.len()), 0);
    sums.iter_mut().zip(credits).for_each(|(sum, credit)| *sum = sum.saturating_add(credit));
}

fn capacity_of(facts: &DiskFacts) -> Capacity {
    facts.bytes_per_s.map_or(Capacity::Parts, Capacity::Known)
}

/// The same rights if every unit had processes. Those that stand in a unit beside its sub-units count where they do.
fn with_everybody(input: Input<'_>, rights: &Rights) -> Rights {
    let mut everybodys = rights.clone();
    let mut encloses: Vec<bool> = input.contract.ids().map(|_| false).collect();
    for parent in input.contract.held().filter_map(|id| input.contract.unit(id).parent) {
        encloses[parent.index()] = true;
    }
    for unit in input.contract.held().filter(|unit| !encloses[unit.index()]) {
        let _ = everybodys.set_present_for(unit, Resource::Disk, true);
    }
    everybodys
}

/// A disk that schedules by shares itself has those of all units, there or not: it divides among those that have requests.
fn share_out(
    disk: &mut Arc<Disk>,
    input: Input<'_>,
    facts: &DiskFacts,
    rights: &Arc<Rights>,
    orders: &mut Vec<Step<DiskOrder>>,
) {
    let capacity = capacity_of(facts);
    let same = |(by, of): &(Arc<Rights>, Capacity)| Arc::ptr_eq(by, rights) && *of == capacity;
    if disk.shared_by.as_ref().is_some_and(same) {
        return;
    }
    let disk = Arc::make_mut(disk);
    disk.shared_by = Some((rights.clone(), capacity));
    let entitlement = with_everybody(input, rights).to_part(Resource::Disk, capacity).all();
    for unit in input.contract.held() {
        let share = entitlement.own(unit);
        if disk.shares.insert(unit, share).unwrap_or(0) != share {
            let part = share.saturating_mul(MILLIONTH).checked_div(capacity.total()).unwrap_or(0);
            let action = DiskOrder::Share { unit, disk: facts.name.clone(), share };
            orders.push(Step { action, reason: Reason::DiskPart { part } });
        }
    }
}

/// One disk: counts, then orders as differences to those in force, by what units are entitled to, and would be if all were there.
/// Returns whether weights hold it.
fn decide(
    disk: &mut Disk,
    now: Time,
    input: Input<'_>,
    facts: &DiskFacts,
    (entitlement, everybodys): (&Entitlement, &Entitlement),
    steps: &mut Vec<Step<DiskOrder>>,
) -> bool {
    let held = input.contract.machine.scheme != Scheme::Smp;
    disk.rates.observe(now, input, facts, entitlement);
    let weighs = held && facts.weighs && input.means.disk.weights && disk.weights.are_heeded(now);
    let weights = if weighs {
        disk.weights.wanted(now, input, entitlement, everybodys, &disk.rates)
    } else {
        BTreeMap::new()
    };
    for (unit, order) in disk.weights.replace(weights) {
        let action = DiskOrder::Weigh { unit, disk: facts.name.clone(), weight: order.value };
        steps.push(Step { action, reason: order.because });
    }
    let mut caps = BTreeMap::new();
    if held && input.means.disk.caps {
        let shares_by_rates = !weighs && !input.means.disk.limits_only;
        let shared = if shares_by_rates { disk.rates.hold(now) } else { BTreeMap::new() };
        caps = capacity::capped(input, entitlement, facts, &disk.rates, &shared);
    }
    replace_caps(disk, caps, facts, steps);
    weighs
}

/// Orders the differences to the rates in force. Less than a part in 64 is none, since the kernel takes a while to follow;
/// unless a rate in force is above the unit's limit, which sank.
fn replace_caps(
    disk: &mut Disk,
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
        let most = match new.because {
            Reason::DiskLimit { bytes_per_s } => bytes_per_s,
            _ => u64::MAX,
        };
        let changes = |old: u64, new: u64| differs(old, new) || old > most;
        let old = disk.caps.get(&unit).map(|order| order.value);
        if old.is_none_or(|old| changes(old.read, new.value.read) || changes(old.write, new.value.write)) {
            order(unit, Some(new.value), new.because);
            disk.caps.insert(unit, new);
        }
    }
}

fn differs(old: u64, new: u64) -> bool {
    old.abs_diff(new) > old / 64
}

#[cfg(test)]
mod tests;
