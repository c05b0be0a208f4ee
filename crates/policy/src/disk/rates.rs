//! The control of units' rates on one disk, so that no unit keeps another from its part.
//!
//! [`RateControl::observe`] enters a sample. It updates each unit's rate, the disk's capacity, and the sets
//! of units that wait or are ahead. [`RateControl::decide`] then decides which units are throttled, at what
//! rate all units together may transfer, and how the throttled units divide the remainder of that rate.
//! [`super`] describes the algorithm and its terms.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, Permission, Resource, UnitId};

use super::fairness::Criterion;
use super::in_force::RATE_MIN;
use super::queue::Queue;
use crate::credits::{Credits, pays_for};
use crate::input::Input;
use crate::plan::Reason;
use crate::rights::entitlement::Entitlement;
use crate::rights::limits;
use crate::rights::share::{part_of, split, split_capped};
use crate::snapshot::{DiskFacts, DiskUse};
use crate::time::{MS, Time};

/// The half-life of the counts of transferred sectors (seed 000, section 3.3).
const HALF_LIFE_NS: Time = 500 * MS;
/// The unit in which transfers are counted, as in the source.
const SECTOR_BYTES: u64 = 512;
/// The time constant of the moving averages of rates.
const AVERAGE_NS: Time = 300 * MS;
/// A unit stays in the crowd for this time after it used the disk. The time is longer than most pauses in
/// which a job computes. So the other units stay throttled during the pause, and the queue is short when the
/// job comes back.
const CROWD_NS: Time = 5_000 * MS;
/// A throttled unit becomes free after it used less than half of its part for this time.
const LIGHT_NS: Time = 1_000 * MS;
/// The time within which the queue in the device is to drain while requests keep coming.
const DRAIN_NS: Time = 300 * MS;
/// The longest time for which units that had the disk to themselves are throttled to next to nothing. During
/// this time their backlog in the device drains.
const CLEAR_NS_MAX: Time = 2_000 * MS;

/// A unit's average rates of reading and writing, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TransferRate {
    pub(super) read: u64,
    pub(super) write: u64,
}

impl TransferRate {
    pub(super) fn total(self) -> u64 {
        self.read.saturating_add(self.write)
    }
}

/// The rate to which a unit is throttled, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RateInForce {
    /// Bytes per second, reading and writing together.
    pub(super) rate: u64,
    pub(super) because: Reason,
}

/// The throttled units of one disk with their rates, and the measurements by which they are decided. All
/// rates are in bytes per second.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RateControl {
    /// When the facts of the last sample were read, and each unit's counters then.
    facts_at: Time,
    used: BTreeMap<UnitId, DiskUse>,
    /// The time between the last two readings; 0 at a sample whose facts are not new.
    elapsed: Time,
    /// Each unit's average rate, its rate between the last two readings, and its highest rate lately (with
    /// decay).
    averages: BTreeMap<UnitId, TransferRate>,
    latest_rates: BTreeMap<UnitId, u64>,
    recent_peaks: BTreeMap<UnitId, u64>,
    shares: BTreeMap<UnitId, u64>,
    criterion: Option<Criterion>,
    /// Units that transferred or waited between the last two readings.
    active: BTreeSet<UnitId>,
    /// Units that waited for at least a quarter of the time between the last two readings, and units that
    /// waited for at least seven eighths of it.
    waiting: BTreeSet<UnitId>,
    only_waiting: BTreeSet<UnitId>,
    /// When each unit was last active.
    used_at: BTreeMap<UnitId, Time>,
    /// The units that used the disk lately, and the sum of their shares.
    crowd: BTreeSet<UnitId>,
    crowd_share: u64,
    /// Units that the fairness criterion denies.
    ahead: BTreeSet<UnitId>,
    /// The highest rate that each unit may have, by its own limit and those of enclosing units. Other units
    /// are unlimited.
    limits: BTreeMap<UnitId, u64>,
    /// Units with a share that lend nothing of their part (they reserve it), or only up to an amount; with
    /// their permission to lend.
    reserving: BTreeMap<UnitId, Permission>,
    /// The last sample at which each unit did not wait, or had its part.
    content_at: BTreeMap<UnitId, Time>,
    /// The last sample at which each unit used half of its part.
    heavy_at: BTreeMap<UnitId, Time>,
    /// The throttled units.
    in_force: BTreeMap<UnitId, RateInForce>,
    /// The rate at which all units together may transfer. Throttled units get the remainder that free units
    /// leave.
    total_allowed: u64,
    /// The rate allowed in total when the queue was last long; 0: never.
    congested_at: u64,
    /// The time until which throttled units transfer next to nothing, so that their backlog drains.
    clear_until: Time,
    queue: Queue,
    /// The rate at which the disk can transfer with the present mix of requests, and its highest rate ever.
    capacity: u64,
    peak: u64,
    /// Bytes of their parts that units left to others, less bytes that they used beyond their parts.
    credits: Credits,
    /// The half-life of the credits.
    credit_half_life_ns: Time,
}

impl RateControl {
    /// Forgets the units that the contract no longer has.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        let stays = |unit: &UnitId| contract.has(*unit);
        self.used.retain(|unit, _| stays(unit));
        self.averages.retain(|unit, _| stays(unit));
        self.latest_rates.retain(|unit, _| stays(unit));
        self.used_at.retain(|unit, _| stays(unit));
        self.content_at.retain(|unit, _| stays(unit));
        self.heavy_at.retain(|unit, _| stays(unit));
        self.in_force.retain(|unit, _| stays(unit));
        self.recent_peaks.retain(|unit, _| stays(unit));
        self.credits.forget_gone(contract);
        self.ahead.retain(stays);
        if let Some(criterion) = &mut self.criterion {
            contract.vacant.iter().for_each(|unit| criterion.forget(*unit));
        }
    }

    /// Whether any unit used the disk between the last two readings.
    pub(super) fn is_busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// Whether a unit is in the crowd because it lately used the disk.
    pub(super) fn was_used_by(&self, unit: UnitId) -> bool {
        self.used_at.contains_key(&unit)
    }

    /// The average rates of a unit's own processes.
    pub(super) fn rate(&self, unit: UnitId) -> TransferRate {
        self.averages.get(&unit).copied().unwrap_or_default()
    }

    /// Bytes that a unit's own processes have transferred since the backend started.
    pub(super) fn transferred(&self, unit: UnitId) -> u64 {
        self.used.get(&unit).map_or(0, |used| used.bytes())
    }

    /// Whether a unit did nothing but wait for a disk since the last sample. Such a unit would transfer more
    /// on a faster disk, unlike one that computes in between.
    pub(super) fn only_waits(&self, unit: UnitId) -> bool {
        self.only_waiting.contains(&unit)
    }

    /// The highest rate that the disk ever had, in bytes per second.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Enters a sample, and updates everything that [`RateControl::decide`] depends on. Does nothing if the
    /// facts are not new.
    pub(super) fn observe(
        &mut self,
        now: Time,
        input: Input<'_>,
        facts: &DiskFacts,
        entitlement: &Entitlement,
    ) {
        self.elapsed = if self.facts_at == 0 { 0 } else { facts.at.saturating_sub(self.facts_at) };
        if self.facts_at != 0 && self.elapsed == 0 {
            return;
        }
        self.facts_at = facts.at;
        self.queue.observe(self.elapsed, facts.device, self.capacity);
        let mut shares: Vec<u64> = input.contract.ids().map(|id| entitlement.own(id)).collect();
        // The common parts, `kernel` and `shared`, have no share.
        shares[..2].fill(0);
        self.shares = input.contract.held().map(|unit| (unit, shares[unit.index()])).collect();
        let criterion = self.criterion.get_or_insert_with(|| Criterion::new(&shares, HALF_LIFE_NS, 0));
        criterion.meter.set_shares(&shares);
        let capacity = facts.bytes_per_s.unwrap_or(self.peak);
        let limit =
            |unit: UnitId| Some((unit, limits::tightest(input.contract, Resource::Disk, unit, capacity)?));
        self.limits = input.contract.held().filter_map(limit).collect();
        self.active.clear();
        self.waiting.clear();
        self.only_waiting.clear();
        let before = self.used.clone();
        for unit in input.contract.held() {
            self.observe_unit(now, unit, facts.unit(unit));
        }
        self.charge_loans(input, &before);
        self.used_at.retain(|_, at| now.saturating_sub(*at) < CROWD_NS);
        self.follow_capacity();
        self.find_crowd(input);
        // Bandwidth is kept for a free unit that pauses, as much as its recent peak rate, unless the unit has
        // no processes that could go on.
        let has_processes = |unit: UnitId| input.snapshot.unit(unit).processes > 0;
        self.recent_peaks.retain(|unit, _| self.crowd.contains(unit) && has_processes(*unit));
        self.evaluate_fairness(now);
    }

    /// Updates the credits by the transfers since the last sample. A unit's part is its share of all bytes
    /// transferred. A unit that transferred less than its part lent the difference; a unit that transferred
    /// more borrowed it. For example, two units with equal shares transferred 20 and 80 bytes: the first lent
    /// 30 to the second.
    fn charge_loans(&mut self, input: Input<'_>, before: &BTreeMap<UnitId, DiskUse>) {
        self.credit_half_life_ns = input.contract.machine.loans_remembered_ns;
        self.credits.charge(self.facts_at, self.credit_half_life_ns, |_| 0);
        if self.credit_half_life_ns == 0 {
            return;
        }
        let bytes_since_last = |unit: &UnitId| {
            let used = self.used.get(unit).zip(before.get(unit)).map(|(now, before)| now.since(*before));
            used.map_or(0, DiskUse::bytes)
        };
        let units: Vec<UnitId> = input.contract.held().collect();
        let transferred: Vec<u64> = units.iter().map(bytes_since_last).collect();
        let shares: Vec<u64> = units.iter().map(|unit| self.shares.get(unit).copied().unwrap_or(0)).collect();
        let parts = split(transferred.iter().sum(), &shares);
        for ((unit, part), transferred) in units.into_iter().zip(parts).zip(transferred) {
            self.credits.enter(unit, i128::from(part) - i128::from(transferred));
        }
    }

    /// Each unit's bytes lent less those borrowed, with decay, by unit index.
    pub(super) fn credits(&self) -> Vec<i64> {
        self.credits.listed(1)
    }

    /// The rate that a unit may have in addition to its part, before other units get more than theirs. Its
    /// credit pays for it.
    fn rate_paid_by_credit(&self, unit: UnitId) -> u64 {
        pays_for(self.credits.of(unit).saturating_mul(1_000 * i128::from(MS)), self.credit_half_life_ns)
    }

    /// Divides the rate `allowed` among units by their shares; no unit gets more than its demand. If a unit
    /// has credit, there are three rounds: each unit gets its own part; then units with credit get the rate
    /// that the credit pays for; then all divide the rest by share.
    fn divide(&self, allowed: u64, units: &[UnitId], demands: &[u64]) -> Vec<u64> {
        let per_unit =
            |value: &dyn Fn(UnitId) -> u64| units.iter().map(|unit| value(*unit)).collect::<Vec<u64>>();
        let shares = per_unit(&|unit| self.share(unit));
        let paid = per_unit(&|unit| self.rate_paid_by_credit(unit));
        if paid.iter().all(|paid| *paid == 0) {
            return split_capped(allowed, &shares, demands).0;
        }
        let (parts, unlimited) =
            (per_unit(&|unit| self.part_within_limit(unit)), vec![u64::MAX; units.len()]);
        let (mut rates, mut remaining) = (vec![0; units.len()], allowed);
        for (weights, caps) in [(&shares, &parts), (&paid, &paid), (&shares, &unlimited)] {
            let unmet = |(index, demand): (usize, &u64)| (demand - rates[index]).min(caps[index]);
            let unmet: Vec<u64> = demands.iter().enumerate().map(unmet).collect();
            let (added, rest) = split_capped(remaining, weights, &unmet);
            rates.iter_mut().zip(added).for_each(|(rate, added)| *rate += added);
            remaining = rest;
        }
        rates
    }

    /// Updates the crowd: the units that lately used the disk, and those that reserve their parts, idle or
    /// not.
    fn find_crowd(&mut self, input: Input<'_>) {
        let permission = |unit: UnitId| (unit, input.contract.unit(unit).lend.disk);
        let may_reserve = |(unit, lend): &(UnitId, Permission)| {
            let has_share = self.shares.get(unit).is_some_and(|share| *share > 0);
            has_share && (lend.amount().is_some() || !lend.allows())
        };
        self.reserving = input.contract.held().map(permission).filter(may_reserve).collect();
        self.update_crowd();
        // A unit that may lend an amount as large as its part reserves nothing, so it need not be in the
        // crowd. While it is not in the crowd, it does not reduce the parts of other units, nor what these
        // reserve.
        let reserves =
            |unit: UnitId, lend: Permission| !lend.allows() || self.part(unit) > lend.most(self.part(unit));
        let reserving = self.reserving.iter().filter(|(unit, lend)| reserves(**unit, **lend));
        self.reserving = reserving.map(|(unit, lend)| (*unit, *lend)).collect();
        self.update_crowd();
    }

    fn update_crowd(&mut self) {
        self.crowd = self.used_at.keys().chain(self.reserving.keys()).copied().collect();
        self.crowd_share = self.crowd.iter().map(|unit| self.share(*unit)).sum();
    }

    /// Enters one unit's counters: its rates, and whether it was active and waited. `counters` are totals
    /// since the backend started.
    fn observe_unit(&mut self, now: Time, unit: UnitId, counters: DiskUse) {
        let Some(before) = self.used.insert(unit, counters) else { return };
        let used = counters.since(before);
        if self.elapsed == 0 {
            return;
        }
        if let Some(criterion) = &mut self.criterion {
            criterion.meter.charge(self.facts_at, unit, used.bytes().div_ceil(SECTOR_BYTES));
        }
        let average = self.averages.entry(unit).or_default();
        average.read = averaged(average.read, per_second(used.read_bytes, self.elapsed), self.elapsed);
        average.write = averaged(average.write, per_second(used.written_bytes, self.elapsed), self.elapsed);
        let rate = average.total();
        self.latest_rates.insert(unit, per_second(used.bytes(), self.elapsed));
        let peak = self.recent_peaks.entry(unit).or_default();
        *peak = rate.max(*peak - *peak / 64);
        // If the kernel does not report stalls, a unit that transfers counts as waiting.
        let stalled = used.stalled_ns.map_or(used.bytes() > 0, |ns| ns >= self.elapsed / 4);
        // The kernel does not say for which disk a task stalled. If the unit has not used this disk for a
        // while, it was another.
        if used.bytes() > 0 || (stalled && rate > 0) {
            self.active.insert(unit);
            self.used_at.insert(unit, now);
            if stalled {
                self.waiting.insert(unit);
                if used.stalled_ns.is_none_or(|ns| ns >= self.elapsed / 8 * 7) {
                    self.only_waiting.insert(unit);
                }
                return;
            }
        }
        self.content_at.insert(unit, now);
    }

    /// Updates the estimate of the capacity. While the queue in the device is long and never empty, the
    /// capacity equals the present rate of the disk; otherwise it is at least the present rate. Exception: if
    /// all active units are throttled and use up their rates, a long queue proves nothing. Throttled units
    /// send in bursts, and the requests of a burst wait for each other in a device that is otherwise idle.
    fn follow_capacity(&mut self) {
        let total = self.total();
        self.peak = self.peak.max(total);
        let is_kept_down = |unit: &UnitId| self.in_force.contains_key(unit) && self.uses_its_rate(*unit);
        let is_saturated = self.queue.is_full() && !self.active.iter().all(is_kept_down);
        let target = if is_saturated { total } else { total.max(self.capacity) };
        // Approach the target gradually: in one interval a disk may transfer more than it can for long, for
        // example if requests end together.
        let elapsed = self.elapsed.min(HALF_LIFE_NS);
        let step = part_of(target.abs_diff(self.capacity), elapsed, HALF_LIFE_NS);
        self.capacity = match self.capacity {
            0 => target,
            capacity if target > capacity => capacity + step,
            capacity => capacity - step,
        };
    }

    /// Finds the units that are ahead, by the fairness criterion. Also notes which units have about their
    /// part, and which use half of it. The threshold is 1/64 of what the disk transfers in a half-life at
    /// capacity. For comparison, all counts together come to one to two times that transfer.
    fn evaluate_fairness(&mut self, now: Time) {
        let threshold = part_of(self.capacity, HALF_LIFE_NS, 1_000 * MS) / SECTOR_BYTES / 64;
        self.ahead.clear();
        let Some(criterion) = &mut self.criterion else { return };
        criterion.set_threshold(threshold);
        let total = criterion.meter.total(self.facts_at, self.crowd.iter().copied());
        for unit in &self.active {
            criterion.check(self.facts_at, *unit, total);
            if !criterion.passes(self.facts_at, *unit, total) {
                self.ahead.insert(*unit);
            }
        }
        for unit in &self.active {
            let (rate, part) = (self.rate(*unit).total(), self.part_within_limit(*unit));
            if rate >= part / 4 * 3 {
                self.content_at.insert(*unit, now);
            }
            // A unit that would take more, but is throttled to less than that, counts as heavy.
            if rate >= part / 2 || (self.in_force.contains_key(unit) && self.wants_more(*unit)) {
                self.heavy_at.insert(*unit, now);
            }
        }
    }

    /// The average rate of all units together: as the device reports it, or else the sum of units' rates.
    fn total(&self) -> u64 {
        let sum_of_units = || self.averages.values().map(|rate| rate.total()).sum();
        self.queue.device_rate().unwrap_or_else(sum_of_units)
    }

    /// A unit's part of the capacity, by share among the crowd.
    fn part(&self, unit: UnitId) -> u64 {
        part_of(self.capacity, self.share(unit), self.crowd_share.max(1))
    }

    /// The rate that a unit is to have if it wants that much: its part, or its limit if that is less.
    fn part_within_limit(&self, unit: UnitId) -> u64 {
        self.part(unit).min(self.limit(unit))
    }

    /// The highest rate that a unit may have; `u64::MAX`: unlimited.
    fn limit(&self, unit: UnitId) -> u64 {
        self.limits.get(&unit).copied().unwrap_or(u64::MAX)
    }

    /// A unit's share; 1, which is next to nothing, for a unit without a share.
    fn share(&self, unit: UnitId) -> u64 {
        self.shares.get(&unit).copied().unwrap_or(0).max(1)
    }

    /// Decides which units are throttled from now on, and to which rates. If the facts are not new, nothing
    /// changes: samples may be more frequent than facts, and the control must not react twice to one reading.
    pub(super) fn decide(&mut self, now: Time) -> BTreeMap<UnitId, RateInForce> {
        if self.elapsed == 0 {
            return self.in_force.clone();
        }
        if self.crowd.len() < 2 && self.reserving.is_empty() {
            self.in_force.clear();
            return BTreeMap::new();
        }
        self.choose_throttled_units(now);
        let allowed = self.allowed_for_throttled();
        let units: Vec<UnitId> = self.in_force.keys().copied().collect();
        let demands: Vec<u64> = units.iter().map(|unit| self.demand(*unit)).collect();
        // While the backlog of units that had the disk to themselves drains, all throttled units get next to
        // nothing.
        let is_clearing = now < self.clear_until;
        let allowed = if is_clearing { self.capacity / 64 } else { allowed };
        let rate_min = if is_clearing { RATE_MIN } else { RATE_MIN.max(self.capacity / 256) };
        for (unit, rate) in units.iter().zip(self.divide(allowed, &units, &demands)) {
            self.in_force.entry(*unit).and_modify(|in_force| in_force.rate = rate.max(rate_min));
        }
        self.in_force.clone()
    }

    /// Throttles units that are ahead and transfer at seven eighths of their parts, and frees units that use
    /// much less than their parts. The total rate is controlled from the first throttled unit on.
    fn choose_throttled_units(&mut self, now: Time) {
        let (facts_at, none_throttled) = (self.facts_at, self.in_force.is_empty());
        let is_light = |unit: &UnitId| {
            self.heavy_at.get(unit).is_none_or(|heavy_at| facts_at.saturating_sub(*heavy_at) >= LIGHT_NS)
        };
        self.in_force.retain(|unit, _| !is_light(unit));
        // If units reserve their parts, all other units are throttled, so that the reserved bandwidth stays
        // unused.
        let must_leave_reserved =
            |unit: &UnitId| !self.reserving.is_empty() && !self.reserving.contains_key(unit);
        let has_part = |unit: &UnitId| self.rate(*unit).total() >= self.part(*unit) / 8 * 7;
        // Beside a throttled unit, every unit that has its part is throttled: the total is then known, and
        // can be kept so low that there is no queue. The condition on the part is needed since, beside units
        // that pause or are throttled, a unit is ahead as soon as it transfers anything.
        let is_heavy = |unit: &UnitId| (self.ahead.contains(unit) || !none_throttled) && has_part(unit);
        let is_clearing = now < self.clear_until;
        let must_throttle = |unit: &UnitId| !is_clearing && (is_heavy(unit) || must_leave_reserved(unit));
        let new = self.active.iter().filter(|unit| must_throttle(unit) && !self.in_force.contains_key(unit));
        let new: Vec<UnitId> = new.copied().collect();
        if new.is_empty() {
            return;
        }
        for unit in new {
            let part = part_of(self.share(unit), MILLIONTH, self.crowd_share);
            let in_force = RateInForce { rate: 0, because: self.reason_to_throttle(now, unit, part) };
            self.in_force.insert(unit, in_force);
        }
        if none_throttled {
            self.total_allowed = 0;
            self.congested_at = if self.queue.excess_ns() > 0 { self.capacity } else { 0 };
            self.clear_until = now.saturating_add(self.queue.backlog_ns().min(CLEAR_NS_MAX));
        }
    }

    /// The rate that the throttled units may have together: the remainder that free units leave of a total
    /// that keeps the queue short. It is at least five eighths of the throttled units' parts, or seven
    /// eighths if no active unit is free.
    fn allowed_for_throttled(&mut self) -> u64 {
        let parts: u64 = self.in_force.keys().map(|unit| self.part_within_limit(*unit)).sum();
        let transferred: u64 = self.in_force.keys().map(|unit| self.rate(*unit).total()).sum();
        let is_free = |unit: &&UnitId| !self.in_force.contains_key(unit);
        // A free unit that pauses comes back, and must then find bandwidth for the rate that it had.
        let expected_rate = |unit: &UnitId| {
            let peak = self.recent_peaks.get(unit).copied().unwrap_or(0);
            peak.min(self.part_within_limit(*unit))
        };
        let free_units_rate: u64 = self.crowd.iter().filter(is_free).map(expected_rate).sum();
        let kept_unused = |(unit, lend): (&UnitId, &Permission)| {
            let part = self.part(*unit);
            if is_free(&unit) { part.saturating_sub(lend.most(part)) } else { 0 }
        };
        let reserved: u64 = self.reserving.iter().map(kept_unused).sum();
        // A queue delays free units, so that these may transfer less than their parts. If all active units
        // are throttled, a queue keeps no unit from its part.
        let all_throttled = self.active.iter().all(|unit| self.in_force.contains_key(unit));
        let total_min = (parts / 8 * if all_throttled { 7 } else { 5 }).saturating_add(free_units_rate);
        if self.queue.excess_ns() > 0 && (!all_throttled || self.queue.is_crowded()) {
            if self.total_allowed <= total_min {
                self.queue.relent();
            }
            self.congested_at =
                self.total_allowed.min(transferred.saturating_add(free_units_rate)).max(total_min);
            let cut_min = self.congested_at / if all_throttled { 64 } else { 16 };
            self.total_allowed = self.queue.drained(self.congested_at, DRAIN_NS, cut_min);
        } else {
            self.grow(free_units_rate);
        }
        let unreserved =
            if self.reserving.is_empty() { u64::MAX } else { self.capacity.saturating_sub(reserved) };
        self.total_allowed = self.total_allowed.max(total_min);
        self.total_allowed.saturating_sub(free_units_rate).min(unreserved)
    }

    /// Raises the total rate while the units that want more use up their rates. It grows slowly near the rate
    /// of the last congestion, and more slowly while there are free units, which a queue would delay.
    /// `free_units_rate` is the expected rate of the free units.
    fn grow(&mut self, free_units_rate: u64) {
        let wanting_more: Vec<UnitId> =
            self.in_force.keys().copied().filter(|unit| self.wants_more(*unit)).collect();
        let allowed: u64 = wanting_more.iter().map(|unit| self.in_force[unit].rate).sum();
        let transferred: u64 = wanting_more.iter().map(|unit| self.rate(*unit).total()).sum();
        let latest: u64 = wanting_more.iter().filter_map(|unit| self.latest_rates.get(unit)).sum();
        if allowed == 0 {
            return;
        }
        let distance = self.total_allowed.abs_diff(self.congested_at);
        let is_near = self.congested_at > 0 && distance < self.capacity / 8;
        // The smallest step, and the fraction of their rates that units may leave unused and still count as
        // using them up.
        let (step_min, slack) = match (is_near, free_units_rate) {
            (false, _) => ((self.capacity / 16).max(allowed / 8), 16),
            (true, 0) => (self.capacity / 128, 64),
            (true, _) => (self.capacity / 256, 32),
        };
        let step = step_min.max(distance.min(self.capacity / 8) / 8);
        if transferred.max(latest) >= allowed - allowed / slack {
            self.total_allowed = self.total_allowed.saturating_add(step);
            return;
        }
        // The rates are not used up. If the total rate exceeded the capacity, there would be congestion as
        // soon as a unit used its rate up.
        let excess = self.total_allowed.saturating_sub(self.capacity.saturating_add(self.capacity / 64));
        if excess > 0 {
            self.total_allowed -= excess / 8;
            self.congested_at = self.capacity;
        }
    }

    /// Whether a throttled unit uses its rate, or nearly: three quarters of it.
    fn uses_its_rate(&self, unit: UnitId) -> bool {
        let allowed = self.in_force.get(&unit).map_or(0, |in_force| in_force.rate);
        self.rate(unit).total() >= allowed / 4 * 3
    }

    /// Whether a throttled unit would take more: it uses its rate and waits.
    fn wants_more(&self, unit: UnitId) -> bool {
        self.waiting.contains(&unit) && self.uses_its_rate(unit)
    }

    /// The rate that a throttled unit could use. If the unit wants more than its present rate, the rate is
    /// unknown, and only the unit's limit bounds it. Otherwise it is somewhat more than the unit uses now,
    /// and at least the unit's part.
    fn demand(&self, unit: UnitId) -> u64 {
        let rate = self.rate(unit).total();
        let with_margin = rate.saturating_add(rate / 4).saturating_add(self.capacity / 16);
        let demand =
            if self.wants_more(unit) { u64::MAX } else { with_margin.max(self.part_within_limit(unit)) };
        self.limit(unit).min(demand)
    }

    /// Why a unit is throttled: it is ahead of units that wait. The reason names the unit that has waited
    /// longest.
    fn reason_to_throttle(&self, now: Time, unit: UnitId, part: u64) -> Reason {
        let others = self.waiting.iter().filter(|other| **other != unit && !self.ahead.contains(*other));
        let since = |other: &UnitId| self.content_at.get(other).copied().unwrap_or(now);
        match others.min_by_key(|other| since(other)) {
            Some(other) => Reason::DiskWanted { part, by: *other, since: since(other) },
            None => Reason::DiskPart { part },
        }
    }
}

/// The exponential moving average after a sample over the time `elapsed`. An average of 0 counts as no
/// average yet, so that the first sample becomes the average.
pub(super) fn averaged(average: u64, sample: u64, elapsed: Time) -> u64 {
    if average == 0 {
        return sample;
    }
    let weights = elapsed.saturating_add(AVERAGE_NS);
    part_of(average, AVERAGE_NS, weights).saturating_add(part_of(sample, elapsed, weights))
}

/// The rate in bytes per second of a transfer over the time `elapsed`.
pub(super) fn per_second(bytes: u64, elapsed: Time) -> u64 {
    part_of(bytes, 1_000 * MS, elapsed.max(1))
}
