//! How much units transfer and want, and to what rate each is held so that all get their parts.

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

/// How long a count of transfers remembers (seed 000, section 3.3).
const HALF_LIFE_NS: Time = 500 * MS;
/// The measure of the counts, as in the source.
const SECTOR_BYTES: u64 = 512;
/// Rates are averaged over about this long.
const AVERAGE_NS: Time = 300 * MS;
/// A unit that used the disk so lately still counts: longer than most pauses in which a job computes, so that what it
/// finds in the device when it comes back is little.
const CROWD_NS: Time = 5_000 * MS;
/// A unit that takes less than half of its part for so long is not held any more.
const LIGHT_NS: Time = 1_000 * MS;
/// How long what is queued in the device may take to go, beside what comes.
const DRAIN_NS: Time = 300 * MS;
/// The longest for which the units that had the disk to themselves are kept from it, until what they have there is
/// done.
const CLEAR_NS_MAX: Time = 2_000 * MS;

/// What a unit does, one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rate {
    /// Bytes per second, averaged.
    pub(super) read: u64,
    /// The same, written.
    pub(super) write: u64,
}

impl Rate {
    pub(super) fn total(self) -> u64 {
        self.read.saturating_add(self.write)
    }
}

/// Why a unit is held at the moment: the unit that waits, and since when it did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// Bytes per second, both ways.
    pub(super) rate: u64,
    pub(super) because: Reason,
}

/// What is known of one disk's use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rates {
    at: Time,
    seen: BTreeMap<UnitId, DiskUse>,
    rates: BTreeMap<UnitId, Rate>,
    /// What each unit transferred since the last look, in bytes per second.
    latest: BTreeMap<UnitId, u64>,
    shares: BTreeMap<UnitId, u64>,
    criterion: Option<Criterion>,
    active: BTreeSet<UnitId>,
    waiting: BTreeSet<UnitId>,
    /// Those of them that waited for seven eighths of the time.
    only_waiting: BTreeSet<UnitId>,
    /// When each unit was active last.
    used_at: BTreeMap<UnitId, Time>,
    /// The units that used the disk lately, and the sum of their shares.
    crowd: BTreeSet<UnitId>,
    crowd_share: u64,
    /// Units that the criterion denies.
    ahead: BTreeSet<UnitId>,
    /// What no unit may exceed, by its own limit or those around it.
    limits: BTreeMap<UnitId, u64>,
    /// Units that do not lend what they do not use, or only so much of their part, while they hold a share.
    reserving: BTreeMap<UnitId, Permission>,
    /// The last look at which each unit did not wait, or had its part.
    content: BTreeMap<UnitId, Time>,
    /// The last look at which each unit took half of its part.
    heavy_at: BTreeMap<UnitId, Time>,
    held: BTreeMap<UnitId, Held>,
    /// The most that each unit transferred lately, in bytes per second.
    usual: BTreeMap<UnitId, u64>,
    /// What all may transfer together, the units that are held what the others leave of it; and what that was when the
    /// queue was long last, in bytes per second.
    together: u64,
    brink: u64,
    /// Until when the units that are held transfer next to nothing.
    clear_until: Time,
    queue: Queue,
    /// What the disk carries with the present mix of requests, and the most it ever carried, in bytes per second.
    capacity: u64,
    peak: u64,
    /// How long the last interval was; 0 at a look at facts that are not new.
    elapsed: Time,
    /// What units left of their parts to others, less what they had of others', in bytes.
    credits: Credits,
    /// How long that is remembered.
    half_life_ns: Time,
}

impl Rates {
    /// Forgets the units that the contract has no more.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        let gone = |unit: &UnitId| !contract.has(*unit);
        self.seen.retain(|unit, _| !gone(unit));
        self.rates.retain(|unit, _| !gone(unit));
        self.latest.retain(|unit, _| !gone(unit));
        self.used_at.retain(|unit, _| !gone(unit));
        self.content.retain(|unit, _| !gone(unit));
        self.heavy_at.retain(|unit, _| !gone(unit));
        self.held.retain(|unit, _| !gone(unit));
        self.usual.retain(|unit, _| !gone(unit));
        self.credits.forget_gone(contract);
        self.ahead.retain(|unit| !gone(unit));
        if let Some(criterion) = &mut self.criterion {
            contract.vacant.iter().for_each(|unit| criterion.forget(*unit));
        }
    }

    /// Whether a unit used the disk lately.
    pub(super) fn is_busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// Whether a unit used the disk lately.
    pub(super) fn was_used_by(&self, unit: UnitId) -> bool {
        self.used_at.contains_key(&unit)
    }

    /// What a unit's own processes transfer.
    pub(super) fn rate(&self, unit: UnitId) -> Rate {
        self.rates.get(&unit).copied().unwrap_or_default()
    }

    /// What a unit's own processes transferred so far, in bytes.
    pub(super) fn transferred(&self, unit: UnitId) -> u64 {
        self.seen.get(&unit).map_or(0, |used| used.bytes())
    }

    /// Whether a unit did nothing since the last look but wait for a disk: more is what it would take, and not only sooner.
    pub(super) fn only_waits(&self, unit: UnitId) -> bool {
        self.only_waiting.contains(&unit)
    }

    /// The most that the disk is known to carry.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Takes in what happened since the last look.
    pub(super) fn observe(
        &mut self,
        now: Time,
        input: Input<'_>,
        facts: &DiskFacts,
        entitlement: &Entitlement,
    ) {
        self.elapsed = if self.at == 0 { 0 } else { facts.at.saturating_sub(self.at) };
        if self.at != 0 && self.elapsed == 0 {
            return;
        }
        self.at = facts.at;
        self.queue.observe(self.elapsed, facts.device, self.capacity);
        let mut shares: Vec<u64> = input.contract.ids().map(|id| entitlement.own(id)).collect();
        shares[..2].fill(0);
        self.shares = input.contract.held().map(|unit| (unit, shares[unit.index()])).collect();
        let criterion = self.criterion.get_or_insert_with(|| Criterion::new(&shares, HALF_LIFE_NS, 0));
        criterion.meter.set_shares(&shares);
        let whole = facts.bytes_per_s.unwrap_or(self.peak);
        let limit =
            |unit: UnitId| Some((unit, limits::tightest(input.contract, Resource::Disk, unit, whole)?));
        self.limits = input.contract.held().filter_map(limit).collect();
        self.active.clear();
        self.waiting.clear();
        self.only_waiting.clear();
        let before = self.seen.clone();
        for unit in input.contract.held() {
            self.take_in(now, unit, facts.unit(unit));
        }
        self.charge(input, &before);
        let lately = |at: &Time| now.saturating_sub(*at) < CROWD_NS;
        self.used_at.retain(|_, at| lately(at));
        self.follow_capacity();
        let users: BTreeSet<UnitId> = self.used_at.keys().copied().collect();
        let lend = |unit: UnitId| (unit, input.contract.unit(unit).lend.disk);
        let keeps = |(unit, lend): &(UnitId, Permission)| {
            shares[unit.index()] > 0 && (lend.amount().is_some() || !lend.allows())
        };
        self.reserving = input.contract.held().map(lend).filter(keeps).collect();
        self.gather(&users);
        // An amount that is all of a unit's part reserves nothing of it. Without these units, the parts of the others
        // are no smaller.
        let keeps =
            |unit: UnitId, lend: Permission| !lend.allows() || self.part(unit) > lend.most(self.part(unit));
        let reserving = self.reserving.iter().filter(|(unit, lend)| keeps(**unit, **lend));
        self.reserving = reserving.map(|(unit, lend)| (*unit, *lend)).collect();
        self.gather(&users);
        // No room is kept for who has no process to come back.
        let comes_back = |unit: UnitId| input.snapshot.unit(unit).processes > 0;
        self.usual.retain(|unit, _| self.crowd.contains(unit) && comes_back(*unit));
        self.evaluate(now);
    }

    /// What was transferred since the last look is charged: of its part of it, a unit lent what others had, and was lent what
    /// it had beyond.
    fn charge(&mut self, input: Input<'_>, before: &BTreeMap<UnitId, DiskUse>) {
        self.half_life_ns = input.contract.machine.loans_remembered_ns;
        self.credits.charge(self.at, self.half_life_ns, |_| 0);
        if self.half_life_ns == 0 {
            return;
        }
        let moved = |unit: UnitId| {
            let used = self.seen.get(&unit).zip(before.get(&unit)).map(|(now, before)| now.since(*before));
            used.map_or(0, DiskUse::bytes)
        };
        let units: Vec<UnitId> = input.contract.held().collect();
        let used: Vec<u64> = units.iter().map(|unit| moved(*unit)).collect();
        let shares: Vec<u64> = units.iter().map(|unit| self.shares.get(unit).copied().unwrap_or(0)).collect();
        let due = split(used.iter().sum(), &shares);
        for ((unit, due), used) in units.into_iter().zip(due).zip(used) {
            self.credits.enter(unit, i128::from(due) - i128::from(used));
        }
    }

    /// What each unit lent beyond what it was lent, in bytes.
    pub(super) fn credits(&self) -> Vec<i64> {
        self.credits.listed(1)
    }

    /// What a unit may transfer beyond its part before others, in bytes per second, since it lent before.
    fn first(&self, unit: UnitId) -> u64 {
        pays_for(self.credits.of(unit).saturating_mul(1_000 * i128::from(MS)), self.half_life_ns)
    }

    /// Deals what units may transfer by their shares. Where one lent before, each has its own part first. Of the rest, those
    /// that lent have what their credits pay for before others.
    fn deal(&self, allowed: u64, units: &[UnitId], wants: &[u64]) -> Vec<u64> {
        let of =
            |figure: &dyn Fn(UnitId) -> u64| units.iter().map(|unit| figure(*unit)).collect::<Vec<u64>>();
        let (shares, first) = (of(&|unit| self.share(unit)), of(&|unit| self.first(unit)));
        if first.iter().all(|first| *first == 0) {
            return split_capped(allowed, &shares, wants).0;
        }
        let (parts, mut gets, mut left) = (of(&|unit| self.due(unit)), vec![0; units.len()], allowed);
        let all = vec![u64::MAX; units.len()];
        for (weights, most) in [(&shares, &parts), (&first, &first), (&shares, &all)] {
            let room = |(n, want): (usize, &u64)| (want - gets[n]).min(most[n]);
            let rooms: Vec<u64> = wants.iter().enumerate().map(room).collect();
            let (more, rest) = split_capped(left, weights, &rooms);
            gets.iter_mut().zip(more).for_each(|(gets, more)| *gets += more);
            left = rest;
        }
        gets
    }

    /// The crowd are those units, and those that reserve their parts.
    fn gather(&mut self, users: &BTreeSet<UnitId>) {
        self.crowd = users.iter().chain(self.reserving.keys()).copied().collect();
        self.crowd_share = self.crowd.iter().map(|unit| self.share(*unit)).sum();
    }

    /// One unit's transfers since the last look.
    fn take_in(&mut self, now: Time, unit: UnitId, now_used: DiskUse) {
        let Some(before) = self.seen.insert(unit, now_used) else { return };
        let used = now_used.since(before);
        if self.elapsed == 0 {
            return;
        }
        if let Some(criterion) = &mut self.criterion {
            criterion.meter.charge(self.at, unit, used.bytes().div_ceil(SECTOR_BYTES));
        }
        let rate = self.rates.entry(unit).or_default();
        rate.read = averaged(rate.read, per_second(used.read_bytes, self.elapsed), self.elapsed);
        rate.write = averaged(rate.write, per_second(used.written_bytes, self.elapsed), self.elapsed);
        let total = rate.total();
        self.latest.insert(unit, per_second(used.bytes(), self.elapsed));
        let usual = self.usual.entry(unit).or_default();
        *usual = total.max(*usual - *usual / 64);
        // Without the kernel's account of stalls, a unit that transfers is taken to wait.
        let stalled = used.stalled_ns.map_or(used.bytes() > 0, |ns| ns >= self.elapsed / 4);
        // A stall does not say for which disk; one that this unit has not used for a while is not meant.
        if used.bytes() > 0 || (stalled && total > 0) {
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
        self.content.insert(unit, now);
    }

    /// With a queue in the device that is never empty, what is transferred now is what it carries, unless all that use
    /// it are held and take what they may; otherwise it carries that at least. (Units that are held send what they may
    /// in bursts, which wait for each other in a device that idles between them.)
    fn follow_capacity(&mut self) {
        let total = self.total();
        self.peak = self.peak.max(total);
        let kept = |unit: &UnitId| self.held.contains_key(unit) && self.takes_all(*unit);
        let full = self.queue.is_full() && !self.active.iter().all(kept);
        let carried = if full { total } else { total.max(self.capacity) };
        // One interval may show more than the disk carries for long: a device that bursts, requests that end together.
        let elapsed = self.elapsed.min(HALF_LIFE_NS);
        let step = part_of(carried.abs_diff(self.capacity), elapsed, HALF_LIFE_NS);
        self.capacity = match self.capacity {
            0 => carried,
            capacity if carried > capacity => capacity + step,
            capacity => capacity - step,
        };
    }

    /// Which units are ahead of their parts of the counts of the active ones. The threshold is a 64th of what the disk
    /// carries in a half-life; the counts together come to one or two of these.
    fn evaluate(&mut self, now: Time) {
        let threshold = part_of(self.capacity, HALF_LIFE_NS, 1_000 * MS) / SECTOR_BYTES / 64;
        self.ahead.clear();
        let Some(criterion) = &mut self.criterion else { return };
        criterion.set_threshold(threshold);
        let total = criterion.meter.total(self.at, self.crowd.iter().copied());
        for unit in &self.active {
            criterion.check(self.at, *unit, total);
            if !criterion.passes(self.at, *unit, total) {
                self.ahead.insert(*unit);
            }
        }
        for unit in &self.active {
            let (rate, part) = (self.rate(*unit).total(), self.due(*unit));
            if rate >= part / 4 * 3 {
                self.content.insert(*unit, now);
            }
            // A unit that is held to less takes little, and would not.
            if rate >= part / 2 || (self.held.contains_key(unit) && self.wants_all(*unit)) {
                self.heavy_at.insert(*unit, now);
            }
        }
    }

    /// What all transfer: what the device does, or else what units send there.
    fn total(&self) -> u64 {
        self.queue.carried().unwrap_or_else(|| self.rates.values().map(|rate| rate.total()).sum())
    }

    /// A unit's part of the capacity among the units that used the disk lately.
    fn part(&self, unit: UnitId) -> u64 {
        part_of(self.capacity, self.share(unit), self.crowd_share.max(1))
    }

    /// What a unit that waits should come to have, as far as the contract lets it.
    fn due(&self, unit: UnitId) -> u64 {
        self.part(unit).min(self.limit(unit))
    }

    fn limit(&self, unit: UnitId) -> u64 {
        self.limits.get(&unit).copied().unwrap_or(u64::MAX)
    }

    /// A unit's share; a unit that holds none has next to nothing.
    fn share(&self, unit: UnitId) -> u64 {
        self.shares.get(&unit).copied().unwrap_or(0).max(1)
    }

    /// Which unit is held to what rate from now on. As before at facts that are not new: looks are more frequent than these, and
    /// what was done for them is not done again.
    pub(super) fn hold(&mut self, now: Time) -> BTreeMap<UnitId, Held> {
        if self.elapsed == 0 {
            return self.held.clone();
        }
        if self.crowd.len() < 2 && self.reserving.is_empty() {
            self.held.clear();
            return BTreeMap::new();
        }
        self.choose_held(now);
        let allowed = self.allow();
        let units: Vec<UnitId> = self.held.keys().copied().collect();
        let wants: Vec<u64> = units.iter().map(|unit| self.wanted(*unit)).collect();
        let clears = now < self.clear_until;
        let allowed = if clears { self.capacity / 64 } else { allowed };
        let gets = self.deal(allowed, &units, &wants);
        for (unit, gets) in units.iter().zip(gets) {
            let least = if clears { RATE_MIN } else { RATE_MIN.max(self.capacity / 256) };
            self.held.entry(*unit).and_modify(|held| held.rate = gets.max(least));
        }
        self.held.clone()
    }

    /// A unit that is ahead is held, until it takes much less than its part, or all others have left. What is allowed
    /// together comes and goes with it.
    fn choose_held(&mut self, now: Time) {
        let (at, begins) = (self.at, self.held.is_empty());
        let whole = self.crowd_share;
        let is_light =
            |unit: &UnitId| self.heavy_at.get(unit).is_none_or(|since| at.saturating_sub(*since) >= LIGHT_NS);
        let light: Vec<UnitId> = self.held.keys().filter(|unit| is_light(unit)).copied().collect();
        for unit in light {
            self.held.remove(&unit);
        }
        let keeps_free = |unit: &UnitId| !self.reserving.is_empty() && !self.reserving.contains_key(unit);
        // Beside one that is held, so is a unit that has its part: what all have together is then known, and leaves no
        // queue.
        let has_part = |unit: &UnitId| !begins && self.rate(*unit).total() >= self.part(*unit) / 8 * 7;
        // Beside the units that pause, and the units that are kept from it, a unit that moves anything is ahead.
        let is_ahead =
            |unit: &UnitId| self.ahead.contains(unit) && self.rate(*unit).total() >= self.part(*unit) / 8 * 7;
        let clears = now < self.clear_until;
        let heavy = |unit: &UnitId| !clears && (is_ahead(unit) || keeps_free(unit) || has_part(unit));
        let new = self.active.iter().filter(|unit| heavy(unit) && !self.held.contains_key(unit));
        let new: Vec<UnitId> = new.copied().collect();
        if new.is_empty() {
            return;
        }
        for unit in new {
            let part = part_of(self.share(unit), MILLIONTH, whole);
            self.held.insert(unit, Held { rate: 0, because: self.because(now, unit, part) });
        }
        if begins {
            self.together = 0;
            self.brink = if self.queue.excess_ns() > 0 { self.capacity } else { 0 };
            self.clear_until = now.saturating_add(self.queue.backlog_ns().min(CLEAR_NS_MAX));
        }
    }

    /// What the units that are held may transfer together: what the others leave of what leaves the queue in the device
    /// short, and seven eighths of their parts at least. What one does not take, another one has.
    fn allow(&mut self) -> u64 {
        let parts: u64 = self.held.keys().map(|unit| self.due(*unit)).sum();
        let got: u64 = self.held.keys().map(|unit| self.rate(*unit).total()).sum();
        let is_free = |unit: &&UnitId| !self.held.contains_key(unit);
        // A unit that pauses comes back, and is to find room for what it does then.
        let usual = |unit: &UnitId| self.usual.get(unit).copied().unwrap_or(0).min(self.due(*unit));
        let others: u64 = self.crowd.iter().filter(is_free).map(usual).sum();
        let keeps = |(unit, lend): (&UnitId, &Permission)| {
            let part = self.part(*unit);
            if is_free(&unit) { part.saturating_sub(lend.most(part)) } else { 0 }
        };
        let kept: u64 = self.reserving.iter().map(keeps).sum();
        // A queue among the units that are held harms no unit's part; beside them it does.
        let alone = self.active.iter().all(|unit| self.held.contains_key(unit));
        let least = (parts / 8 * if alone { 7 } else { 5 }).saturating_add(others);
        if self.queue.excess_ns() > 0 && (!alone || self.queue.is_crowded()) {
            if self.together <= least {
                self.queue.relent();
            }
            self.brink = self.together.min(got.saturating_add(others)).max(least);
            self.together =
                self.queue.drained(self.brink, DRAIN_NS, self.brink / if alone { 64 } else { 16 });
        } else {
            self.grow(others);
        }
        let most = if self.reserving.is_empty() { u64::MAX } else { self.capacity.saturating_sub(kept) };
        self.together = self.together.max(least);
        self.together.saturating_sub(others).min(most)
    }

    /// More for all together while the units that want it take what they may: near what was too much the last time
    /// slowly, and the more so beside others, which would be delayed.
    fn grow(&mut self, others: u64) {
        let hungry: Vec<UnitId> = self.held.keys().copied().filter(|unit| self.wants_all(*unit)).collect();
        let may: u64 = hungry.iter().map(|unit| self.held[unit].rate).sum();
        let got: u64 = hungry.iter().map(|unit| self.rate(*unit).total()).sum();
        let latest: u64 = hungry.iter().filter_map(|unit| self.latest.get(unit)).sum();
        if may == 0 {
            return;
        }
        let distance = self.together.abs_diff(self.brink);
        let is_near = self.brink > 0 && distance < self.capacity / 8;
        let (least, slack) = match (is_near, others) {
            (false, _) => ((self.capacity / 16).max(may / 8), 16),
            (true, 0) => (self.capacity / 128, 64),
            (true, _) => (self.capacity / 256, 32),
        };
        let step = least.max(distance.min(self.capacity / 8) / 8);
        if got.max(latest) >= may - may / slack {
            self.together = self.together.saturating_add(step);
            return;
        }
        // What no unit takes would be too much if a unit did.
        let idle = self.together.saturating_sub(self.capacity.saturating_add(self.capacity / 64));
        if idle > 0 {
            self.together -= idle / 8;
            self.brink = self.capacity;
        }
    }

    /// Whether a unit takes what it may.
    fn takes_all(&self, unit: UnitId) -> bool {
        let had = self.held.get(&unit).map_or(0, |held| held.rate);
        self.rate(unit).total() >= had / 4 * 3
    }

    /// Whether a unit that is held would take more.
    fn wants_all(&self, unit: UnitId) -> bool {
        self.waiting.contains(&unit) && self.takes_all(unit)
    }

    /// What a unit that is held could take: all, unless it left some of what it had.
    fn wanted(&self, unit: UnitId) -> u64 {
        let rate = self.rate(unit).total();
        let more = rate.saturating_add(rate / 4).saturating_add(self.capacity / 16);
        self.limit(unit).min(if self.wants_all(unit) { u64::MAX } else { more.max(self.due(unit)) })
    }

    /// A unit is ahead of the units that wait; the one that has waited longest is named.
    fn because(&self, now: Time, unit: UnitId, part: u64) -> Reason {
        let others = self.waiting.iter().filter(|other| **other != unit && !self.ahead.contains(*other));
        let since = |other: &UnitId| self.content.get(other).copied().unwrap_or(now);
        match others.min_by_key(|other| since(other)) {
            Some(of) => Reason::DiskWanted { part, by: *of, since: since(of) },
            None => Reason::DiskPart { part },
        }
    }
}

/// The average after one more sample; the first one counts as it is.
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
