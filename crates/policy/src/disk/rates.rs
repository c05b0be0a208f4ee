//! A unit's disk rate: how much each unit transfers and wants, and the rates that keep all units at their parts.
//!
//! [`RateControl::observe`] takes in a sample: rates of transfer, the disk's capacity, which units wait, which are ahead.
//! [`RateControl::decide`] then decides which units are held to a rate, what all may transfer together, and how the
//! held units divide what is left to them. The algorithm is described in [`super`].

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
/// The measure of the counts, as in the source.
const SECTOR_BYTES: u64 = 512;
/// The time constant of the moving averages of rates.
const AVERAGE_NS: Time = 300 * MS;
/// A unit stays in the crowd for this time after it used the disk: longer than most pauses in which a job computes, so
/// that it finds little in the device when it comes back.
const CROWD_NS: Time = 5_000 * MS;
/// A held unit is released after it took less than half of its part for this time.
const LIGHT_NS: Time = 1_000 * MS;
/// The time within which the queue in the device is to drain while requests keep coming.
const DRAIN_NS: Time = 300 * MS;
/// The longest time for which units that had the disk to themselves are kept from it until their backlog is done.
const CLEAR_NS_MAX: Time = 2_000 * MS;

/// Bytes per second that a unit transfers each way, averaged.
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

/// The rate to which a unit is held, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RateInForce {
    /// Bytes per second, both ways together.
    pub(super) rate: u64,
    pub(super) because: Reason,
}

/// The rates of one disk, and what they are decided from. All rates are in bytes per second.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RateControl {
    /// When the facts of the last sample were read, and what units had transferred by then.
    facts_at: Time,
    used: BTreeMap<UnitId, DiskUse>,
    /// The time between the last two readings; 0 at a sample whose facts are not new.
    elapsed: Time,
    /// What each unit transfers, averaged; between the last two readings; and the most it lately transferred.
    averages: BTreeMap<UnitId, TransferRate>,
    latest: BTreeMap<UnitId, u64>,
    recent_peaks: BTreeMap<UnitId, u64>,
    shares: BTreeMap<UnitId, u64>,
    criterion: Option<Criterion>,
    /// Units that transferred or waited between the last two readings.
    active: BTreeSet<UnitId>,
    /// Units that waited for a quarter of that time, and those that waited for seven eighths of it.
    waiting: BTreeSet<UnitId>,
    only_waiting: BTreeSet<UnitId>,
    /// When each unit was last active.
    used_at: BTreeMap<UnitId, Time>,
    /// The units that used the disk lately, and the sum of their shares.
    crowd: BTreeSet<UnitId>,
    crowd_share: u64,
    /// Units that the fairness criterion denies.
    ahead: BTreeSet<UnitId>,
    /// The most that each unit may transfer, by its own limit and those around it.
    limits: BTreeMap<UnitId, u64>,
    /// Units that keep their part, or all of it but an amount, while they hold a share.
    reserving: BTreeMap<UnitId, Permission>,
    /// The last sample at which each unit did not wait, or had its part.
    content_at: BTreeMap<UnitId, Time>,
    /// The last sample at which each unit took half of its part.
    heavy_at: BTreeMap<UnitId, Time>,
    in_force: BTreeMap<UnitId, RateInForce>,
    /// What all units may transfer together: held units get what the others leave of it.
    allowed_together: u64,
    /// What that was when the queue was last long.
    congested_at: u64,
    /// Until then, held units transfer next to nothing, so that their backlog drains.
    clear_until: Time,
    queue: Queue,
    /// What the disk carries with the present mix of requests, and the most it ever carried.
    capacity: u64,
    peak: u64,
    /// What units left of their parts to others, less what they got of others' parts, in bytes.
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
        self.latest.retain(|unit, _| stays(unit));
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

    /// Whether a unit lately used the disk.
    pub(super) fn was_used_by(&self, unit: UnitId) -> bool {
        self.used_at.contains_key(&unit)
    }

    /// What a unit's own processes transfer.
    pub(super) fn rate(&self, unit: UnitId) -> TransferRate {
        self.averages.get(&unit).copied().unwrap_or_default()
    }

    /// Bytes that a unit's own processes have transferred so far.
    pub(super) fn transferred(&self, unit: UnitId) -> u64 {
        self.used.get(&unit).map_or(0, |used| used.bytes())
    }

    /// Whether a unit did nothing but wait for a disk since the last sample: then it would transfer more, not the same
    /// sooner.
    pub(super) fn only_waits(&self, unit: UnitId) -> bool {
        self.only_waiting.contains(&unit)
    }

    /// The most that the disk ever carried.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Takes in a sample.
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
        // No room is kept for a unit without processes: none of them will come back.
        let has_processes = |unit: UnitId| input.snapshot.unit(unit).processes > 0;
        self.recent_peaks.retain(|unit, _| self.crowd.contains(unit) && has_processes(*unit));
        self.evaluate_fairness(now);
    }

    /// Charges what was transferred since the last sample. Of its part of that, a unit lent what others transferred; what
    /// it transferred beyond its part it borrowed.
    fn charge_loans(&mut self, input: Input<'_>, before: &BTreeMap<UnitId, DiskUse>) {
        self.credit_half_life_ns = input.contract.machine.loans_remembered_ns;
        self.credits.charge(self.facts_at, self.credit_half_life_ns, |_| 0);
        if self.credit_half_life_ns == 0 {
            return;
        }
        let since_before = |unit: &UnitId| {
            let used = self.used.get(unit).zip(before.get(unit)).map(|(now, before)| now.since(*before));
            used.map_or(0, DiskUse::bytes)
        };
        let units: Vec<UnitId> = input.contract.held().collect();
        let transferred: Vec<u64> = units.iter().map(since_before).collect();
        let shares: Vec<u64> = units.iter().map(|unit| self.shares.get(unit).copied().unwrap_or(0)).collect();
        let parts = split(transferred.iter().sum(), &shares);
        for ((unit, part), transferred) in units.into_iter().zip(parts).zip(transferred) {
            self.credits.enter(unit, i128::from(part) - i128::from(transferred));
        }
    }

    /// What each unit lent less what it borrowed, in bytes.
    pub(super) fn credits(&self) -> Vec<i64> {
        self.credits.listed(1)
    }

    /// What a unit may transfer beyond its part before others, by its credit.
    fn first(&self, unit: UnitId) -> u64 {
        pays_for(self.credits.of(unit).saturating_mul(1_000 * i128::from(MS)), self.credit_half_life_ns)
    }

    /// Deals `allowed` among units by their shares, none more than it wants. If a unit has credit, each unit gets its own
    /// part first, then units with credit get what that pays for, then all divide the rest.
    fn deal(&self, allowed: u64, units: &[UnitId], wants: &[u64]) -> Vec<u64> {
        let per_unit =
            |figure: &dyn Fn(UnitId) -> u64| units.iter().map(|unit| figure(*unit)).collect::<Vec<u64>>();
        let (shares, first) = (per_unit(&|unit| self.share(unit)), per_unit(&|unit| self.first(unit)));
        if first.iter().all(|first| *first == 0) {
            return split_capped(allowed, &shares, wants).0;
        }
        let (parts, unlimited) =
            (per_unit(&|unit| self.part_within_limit(unit)), vec![u64::MAX; units.len()]);
        let (mut dealt, mut left) = (vec![0; units.len()], allowed);
        for (weights, caps) in [(&shares, &parts), (&first, &first), (&shares, &unlimited)] {
            let room = |(n, want): (usize, &u64)| (want - dealt[n]).min(caps[n]);
            let rooms: Vec<u64> = wants.iter().enumerate().map(room).collect();
            let (more, rest) = split_capped(left, weights, &rooms);
            dealt.iter_mut().zip(more).for_each(|(dealt, more)| *dealt += more);
            left = rest;
        }
        dealt
    }

    /// The units that lately used the disk, and those that reserve their parts.
    fn find_crowd(&mut self, input: Input<'_>) {
        let permission = |unit: UnitId| (unit, input.contract.unit(unit).lend.disk);
        let may_reserve = |(unit, lend): &(UnitId, Permission)| {
            let has_share = self.shares.get(unit).is_some_and(|share| *share > 0);
            has_share && (lend.amount().is_some() || !lend.allows())
        };
        self.reserving = input.contract.held().map(permission).filter(may_reserve).collect();
        self.gather();
        // A unit whose amount covers its whole part reserves nothing. Without these units, the other parts are no smaller.
        let reserves =
            |unit: UnitId, lend: Permission| !lend.allows() || self.part(unit) > lend.most(self.part(unit));
        let reserving = self.reserving.iter().filter(|(unit, lend)| reserves(**unit, **lend));
        self.reserving = reserving.map(|(unit, lend)| (*unit, *lend)).collect();
        self.gather();
    }

    fn gather(&mut self) {
        self.crowd = self.used_at.keys().chain(self.reserving.keys()).copied().collect();
        self.crowd_share = self.crowd.iter().map(|unit| self.share(*unit)).sum();
    }

    /// Takes in one unit's transfers since the last sample.
    fn observe_unit(&mut self, now: Time, unit: UnitId, total: DiskUse) {
        let Some(before) = self.used.insert(unit, total) else { return };
        let used = total.since(before);
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
        self.latest.insert(unit, per_second(used.bytes(), self.elapsed));
        let peak = self.recent_peaks.entry(unit).or_default();
        *peak = rate.max(*peak - *peak / 64);
        // If the kernel does not account stalls, a unit that transfers counts as waiting.
        let stalled = used.stalled_ns.map_or(used.bytes() > 0, |ns| ns >= self.elapsed / 4);
        // The kernel does not say for which disk a task stalled: not for this one if the unit has not used it for a while.
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

    /// Follows what the disk carries. While the queue in the device is long and never empty, that is what is transferred;
    /// otherwise it is at least that. If all active units are held and take what they may, a long queue proves nothing:
    /// held units send in bursts, whose requests wait for each other in a device that is otherwise idle.
    fn follow_capacity(&mut self) {
        let total = self.total();
        self.peak = self.peak.max(total);
        let is_kept_down = |unit: &UnitId| self.in_force.contains_key(unit) && self.takes_all(*unit);
        let saturated = self.queue.is_full() && !self.active.iter().all(is_kept_down);
        let carried = if saturated { total } else { total.max(self.capacity) };
        // One interval may show more than the disk carries for long, if a device bursts or requests end together.
        let elapsed = self.elapsed.min(HALF_LIFE_NS);
        let step = part_of(carried.abs_diff(self.capacity), elapsed, HALF_LIFE_NS);
        self.capacity = match self.capacity {
            0 => carried,
            capacity if carried > capacity => capacity + step,
            capacity => capacity - step,
        };
    }

    /// Which units are ahead of their parts of the active units' counts. The threshold is 1/64 of the disk's transfer in a
    /// half-life at capacity; the sum of the counts is one to two such transfers.
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
            // A unit that is held to less takes little against its will.
            if rate >= part / 2 || (self.in_force.contains_key(unit) && self.wants_more(*unit)) {
                self.heavy_at.insert(*unit, now);
            }
        }
    }

    /// What all units transfer: what the device did, or else what units sent to it.
    fn total(&self) -> u64 {
        let sent = || self.averages.values().map(|rate| rate.total()).sum();
        self.queue.carried().unwrap_or_else(sent)
    }

    /// A unit's part of the capacity, by share among the crowd.
    fn part(&self, unit: UnitId) -> u64 {
        part_of(self.capacity, self.share(unit), self.crowd_share.max(1))
    }

    /// What a unit that waits should come to have.
    fn part_within_limit(&self, unit: UnitId) -> u64 {
        self.part(unit).min(self.limit(unit))
    }

    fn limit(&self, unit: UnitId) -> u64 {
        self.limits.get(&unit).copied().unwrap_or(u64::MAX)
    }

    /// A unit's share; next to nothing for a unit that holds none.
    fn share(&self, unit: UnitId) -> u64 {
        self.shares.get(&unit).copied().unwrap_or(0).max(1)
    }

    /// Decides which units are held to what rates from now on. If the facts are not new, nothing changes: samples are
    /// more frequent than facts, and control must act once on each.
    pub(super) fn decide(&mut self, now: Time) -> BTreeMap<UnitId, RateInForce> {
        if self.elapsed == 0 {
            return self.in_force.clone();
        }
        if self.crowd.len() < 2 && self.reserving.is_empty() {
            self.in_force.clear();
            return BTreeMap::new();
        }
        self.choose_held_units(now);
        let allowed = self.allow();
        let units: Vec<UnitId> = self.in_force.keys().copied().collect();
        let wants: Vec<u64> = units.iter().map(|unit| self.want(*unit)).collect();
        let clearing = now < self.clear_until;
        let allowed = if clearing { self.capacity / 64 } else { allowed };
        let least = if clearing { RATE_MIN } else { RATE_MIN.max(self.capacity / 256) };
        for (unit, dealt) in units.iter().zip(self.deal(allowed, &units, &wants)) {
            self.in_force.entry(*unit).and_modify(|in_force| in_force.rate = dealt.max(least));
        }
        self.in_force.clone()
    }

    /// Holds units that are ahead and have seven eighths of their parts, and releases those that take much less than
    /// their parts. Control of the total begins with the first held unit.
    fn choose_held_units(&mut self, now: Time) {
        let (at, begins) = (self.facts_at, self.in_force.is_empty());
        let is_light =
            |unit: &UnitId| self.heavy_at.get(unit).is_none_or(|since| at.saturating_sub(*since) >= LIGHT_NS);
        self.in_force.retain(|unit, _| !is_light(unit));
        let keeps_reserved_free =
            |unit: &UnitId| !self.reserving.is_empty() && !self.reserving.contains_key(unit);
        let has_part = |unit: &UnitId| self.rate(*unit).total() >= self.part(*unit) / 8 * 7;
        // Beside a held unit, every unit that has its part is held: then what all transfer together is known, and leaves
        // no queue. Without the condition on its part, a unit beside others that pause or are kept down would be ahead as
        // soon as it transferred anything.
        let is_ahead = |unit: &UnitId| (self.ahead.contains(unit) || !begins) && has_part(unit);
        let clearing = now < self.clear_until;
        let is_heavy = |unit: &UnitId| !clearing && (is_ahead(unit) || keeps_reserved_free(unit));
        let new = self.active.iter().filter(|unit| is_heavy(unit) && !self.in_force.contains_key(unit));
        let new: Vec<UnitId> = new.copied().collect();
        if new.is_empty() {
            return;
        }
        for unit in new {
            let part = part_of(self.share(unit), MILLIONTH, self.crowd_share);
            let in_force = RateInForce { rate: 0, because: self.because(now, unit, part) };
            self.in_force.insert(unit, in_force);
        }
        if begins {
            self.allowed_together = 0;
            self.congested_at = if self.queue.excess_ns() > 0 { self.capacity } else { 0 };
            self.clear_until = now.saturating_add(self.queue.backlog_ns().min(CLEAR_NS_MAX));
        }
    }

    /// What the held units may transfer together: what the free units leave of a total that keeps the queue short, and at
    /// least five eighths of their parts, or seven eighths if no active unit is free.
    fn allow(&mut self) -> u64 {
        let parts: u64 = self.in_force.keys().map(|unit| self.part_within_limit(*unit)).sum();
        let transferred: u64 = self.in_force.keys().map(|unit| self.rate(*unit).total()).sum();
        let is_free = |unit: &&UnitId| !self.in_force.contains_key(unit);
        // A unit that pauses comes back, and is to find room for what it transfers then.
        let expected = |unit: &UnitId| {
            let peak = self.recent_peaks.get(unit).copied().unwrap_or(0);
            peak.min(self.part_within_limit(*unit))
        };
        let others: u64 = self.crowd.iter().filter(is_free).map(expected).sum();
        let kept_free = |(unit, lend): (&UnitId, &Permission)| {
            let part = self.part(*unit);
            if is_free(&unit) { part.saturating_sub(lend.most(part)) } else { 0 }
        };
        let reserved: u64 = self.reserving.iter().map(kept_free).sum();
        // A queue among held units keeps no unit from its part; beside free units it does.
        let all_held = self.active.iter().all(|unit| self.in_force.contains_key(unit));
        let least = (parts / 8 * if all_held { 7 } else { 5 }).saturating_add(others);
        if self.queue.excess_ns() > 0 && (!all_held || self.queue.is_crowded()) {
            if self.allowed_together <= least {
                self.queue.relent();
            }
            self.congested_at = self.allowed_together.min(transferred.saturating_add(others)).max(least);
            let cut_min = self.congested_at / if all_held { 64 } else { 16 };
            self.allowed_together = self.queue.drained(self.congested_at, DRAIN_NS, cut_min);
        } else {
            self.grow(others);
        }
        let most = if self.reserving.is_empty() { u64::MAX } else { self.capacity.saturating_sub(reserved) };
        self.allowed_together = self.allowed_together.max(least);
        self.allowed_together.saturating_sub(others).min(most)
    }

    /// Allows more together while the units that want more take what they may. Growth is slow near the last congestion,
    /// and slower beside free units, which a queue would delay.
    fn grow(&mut self, others: u64) {
        let hungry: Vec<UnitId> =
            self.in_force.keys().copied().filter(|unit| self.wants_more(*unit)).collect();
        let allowed: u64 = hungry.iter().map(|unit| self.in_force[unit].rate).sum();
        let transferred: u64 = hungry.iter().map(|unit| self.rate(*unit).total()).sum();
        let latest: u64 = hungry.iter().filter_map(|unit| self.latest.get(unit)).sum();
        if allowed == 0 {
            return;
        }
        let distance = self.allowed_together.abs_diff(self.congested_at);
        let is_near = self.congested_at > 0 && distance < self.capacity / 8;
        let (step_min, slack) = match (is_near, others) {
            (false, _) => ((self.capacity / 16).max(allowed / 8), 16),
            (true, 0) => (self.capacity / 128, 64),
            (true, _) => (self.capacity / 256, 32),
        };
        let step = step_min.max(distance.min(self.capacity / 8) / 8);
        if transferred.max(latest) >= allowed - allowed / slack {
            self.allowed_together = self.allowed_together.saturating_add(step);
            return;
        }
        // An unused allowance beyond the capacity would cause congestion as soon as a unit used it.
        let unused = self.allowed_together.saturating_sub(self.capacity.saturating_add(self.capacity / 64));
        if unused > 0 {
            self.allowed_together -= unused / 8;
            self.congested_at = self.capacity;
        }
    }

    /// Whether a unit takes what it may.
    fn takes_all(&self, unit: UnitId) -> bool {
        let allowed = self.in_force.get(&unit).map_or(0, |in_force| in_force.rate);
        self.rate(unit).total() >= allowed / 4 * 3
    }

    /// Whether a held unit would take more.
    fn wants_more(&self, unit: UnitId) -> bool {
        self.waiting.contains(&unit) && self.takes_all(unit)
    }

    /// What a held unit could take: any amount up to its limit, unless it left some of its rate unused.
    fn want(&self, unit: UnitId) -> u64 {
        let rate = self.rate(unit).total();
        let more = rate.saturating_add(rate / 4).saturating_add(self.capacity / 16);
        let want = if self.wants_more(unit) { u64::MAX } else { more.max(self.part_within_limit(unit)) };
        self.limit(unit).min(want)
    }

    /// Why a unit is held: it is ahead of units that wait. The reason names the one that has waited longest.
    fn because(&self, now: Time, unit: UnitId, part: u64) -> Reason {
        let others = self.waiting.iter().filter(|other| **other != unit && !self.ahead.contains(*other));
        let since = |other: &UnitId| self.content_at.get(other).copied().unwrap_or(now);
        match others.min_by_key(|other| since(other)) {
            Some(other) => Reason::DiskWanted { part, by: *other, since: since(other) },
            None => Reason::DiskPart { part },
        }
    }
}

/// The moving average after one more sample; the first sample counts unchanged.
pub(super) fn averaged(average: u64, sample: u64, elapsed: Time) -> u64 {
    if average == 0 {
        return sample;
    }
    let whole = elapsed.saturating_add(AVERAGE_NS);
    part_of(average, AVERAGE_NS, whole).saturating_add(part_of(sample, elapsed, whole))
}

pub(super) fn per_second(bytes: u64, elapsed: Time) -> u64 {
    part_of(bytes, 1_000 * MS, elapsed.max(1))
}
