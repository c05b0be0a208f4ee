//! What units transfer, what they want, and to what rate each is held so that all get their parts.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::{MILLIONTH, UnitId};

use super::capacity::limit_of_all;
use super::{BELIEF_NS, DiskFacts, DiskUse, HALF_LIFE_NS, RATE_MIN};
use crate::bandwidth::Criterion;
use crate::entitlement::Entitlement;
use crate::plan::Reason;
use crate::share::split_capped;
use crate::step::Input;
use crate::{MS, Time};

/// The measure of the counts, as in the source.
const SECTOR_BYTES: u64 = 512;
/// Rates are averaged over about this long.
const AVERAGE_NS: Time = 300 * MS;
/// A capacity that is too high for what is transferred now comes down over about this long.
const SETTLE_NS: Time = 2_000 * MS;
/// How long a unit stays held when nobody else wants the disk any more: longer than a pause between two requests.
const RELEASE_NS: Time = 500 * MS;

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

/// What an active unit wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Want {
    /// Bytes per second; `u64::MAX` while it is believed.
    rate: u64,
    /// What it transferred when the others were held and it could have had more; `None` if that was not tried.
    had: Option<u64>,
    /// Since when.
    since: Time,
}

/// Somebody waits and lacks its part: the others are held to theirs, to see whether it takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trial {
    /// What the disk was thought to carry when it began, and what the others transferred.
    capacity: u64,
    others: u64,
}

/// Why a unit is held at the moment: who waits, and since when it did not.
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
    shares: BTreeMap<UnitId, u64>,
    criterion: Option<Criterion>,
    active: BTreeSet<UnitId>,
    waiting: BTreeSet<UnitId>,
    /// Units that the criterion denies.
    ahead: BTreeSet<UnitId>,
    wants: BTreeMap<UnitId, Want>,
    trial: Option<Trial>,
    /// When the capacity was last believed to be what it was before a trial.
    restored_at: Option<Time>,
    /// What no unit may exceed, by its own limit or those around it.
    limits: BTreeMap<UnitId, u64>,
    /// Units that do not lend what they do not use, while they hold a share.
    reserving: BTreeSet<UnitId>,
    /// The last look at which each unit did not wait, or had its part.
    content: BTreeMap<UnitId, Time>,
    held: BTreeMap<UnitId, Held>,
    contended_at: Time,
    /// What the disk carries with the present mix of requests, and the most it ever carried, in bytes per second.
    capacity: u64,
    peak: u64,
    /// How long the last interval was.
    elapsed: Time,
}

impl Rates {
    /// With counts that begin anew, and the same capacity.
    pub(super) fn forgotten(self) -> Rates {
        Rates { capacity: self.capacity, peak: self.peak, ..Rates::default() }
    }

    /// Whether somebody used the disk lately.
    pub(super) fn is_busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// What a unit's own processes transfer.
    pub(super) fn rate(&self, unit: UnitId) -> Rate {
        self.rates.get(&unit).copied().unwrap_or_default()
    }

    /// What a unit's own processes transferred so far, in bytes.
    pub(super) fn transferred(&self, unit: UnitId) -> u64 {
        self.seen.get(&unit).map_or(0, |used| used.bytes())
    }

    /// Whether a unit waited for a disk lately.
    pub(super) fn waits(&self, unit: UnitId) -> bool {
        self.waiting.contains(&unit)
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
        let mut shares: Vec<u64> = input.contract.ids().map(|id| entitlement.own(id)).collect();
        shares[..2].fill(0);
        self.shares = input.contract.held().map(|unit| (unit, shares[unit.index()])).collect();
        let criterion = self.criterion.get_or_insert_with(|| Criterion::new(&shares, HALF_LIFE_NS, 0));
        criterion.meter.set_shares(&shares);
        let whole = facts.bytes_per_s.unwrap_or(self.peak);
        let limit = |unit: UnitId| Some((unit, limit_of_all(input.contract, unit, whole)?));
        self.limits = input.contract.held().filter_map(limit).collect();
        let keeps = |unit: &UnitId| !input.contract.unit(*unit).lend.disk && shares[unit.index()] > 0;
        self.reserving = input.contract.held().filter(keeps).collect();
        self.active.clear();
        self.waiting.clear();
        for unit in input.contract.held() {
            self.take_in(now, unit, facts.unit(unit));
        }
        self.follow_capacity();
        self.evaluate(now);
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
        // Without the kernel's account of stalls, whoever transfers is taken to wait.
        let stalled = used.stalled_ns.map_or(used.bytes() > 0, |ns| ns >= self.elapsed / 4);
        // A stall does not say for which disk; one that this unit has not used for a while is not meant.
        if used.bytes() > 0 || (stalled && rate.total() > 0) {
            self.active.insert(unit);
            if stalled {
                self.waiting.insert(unit);
                return;
            }
        }
        self.content.insert(unit, now);
    }

    /// What is transferred now, and what those leave who could have had more, is what the disk carries.
    fn follow_capacity(&mut self) {
        let total: u64 = self.rates.values().map(|rate| rate.total()).sum();
        self.peak = self.peak.max(total);
        let reserved = |unit: &UnitId| {
            let room = match self.wants.get(unit) {
                _ if self.reserving.contains(unit) => self.part(*unit),
                Some(want) if want.rate != u64::MAX => want.rate,
                _ => 0,
            };
            room.max(self.rate(*unit).total())
        };
        // What is kept free for somebody shows nothing; it only is no reason to believe in less.
        let kept: u64 = self.active.union(&self.reserving).map(reserved).sum();
        let carried = total.max(kept.min(self.capacity));
        // One interval may show more than the disk carries for long: a device that bursts, requests that end together.
        let settle = match (carried > self.capacity, self.trial) {
            (true, _) => HALF_LIFE_NS,
            // Whoever lacks its part waits for this.
            (false, Some(_)) => AVERAGE_NS,
            (false, None) => SETTLE_NS,
        };
        let step = mul_div(carried.abs_diff(self.capacity), self.elapsed.min(settle), settle);
        self.capacity = match self.capacity {
            0 => carried,
            capacity if carried > capacity => capacity + step,
            capacity => capacity - step,
        };
    }

    /// Who is ahead of its part of the counts of those who are active. The threshold is a 64th of what the disk carries in a
    /// half-life; the counts together come to one or two of these.
    fn evaluate(&mut self, now: Time) {
        let threshold = mul_div(self.capacity, HALF_LIFE_NS, 1_000 * MS) / SECTOR_BYTES / 64;
        self.ahead.clear();
        let Some(criterion) = &mut self.criterion else { return };
        criterion.set_threshold(threshold);
        let total = criterion.meter.total(self.at, self.active.iter().copied());
        for unit in &self.active {
            criterion.check(self.at, *unit, total);
            if !criterion.passes(self.at, *unit, total) {
                self.ahead.insert(*unit);
            }
        }
        self.believe(now);
    }

    /// What every active unit wants.
    fn believe(&mut self, now: Time) {
        self.wants.retain(|unit, _| self.active.contains(unit));
        let tried = self.is_tried();
        for unit in &self.active {
            let (rate, waits) = (self.rate(*unit).total(), self.waiting.contains(unit));
            let measured = rate.saturating_add(rate / 4).saturating_add(self.capacity / 8);
            let all = Want { rate: u64::MAX, had: None, since: now };
            let content = Want { rate: measured, had: None, since: now };
            let part = self.due(*unit);
            if rate >= part / 4 * 3 {
                self.content.insert(*unit, now);
            }
            let want = self.wants.entry(*unit).or_insert(if waits { all } else { content });
            *want = match (want.rate, waits) {
                (_, false) => content,
                // Who has its part, or was kept from it until now, has not been tried.
                (u64::MAX, true) if rate >= part / 4 * 3 || !tried => Want { since: now, ..all },
                (u64::MAX, true) if now.saturating_sub(want.since) < BELIEF_NS => *want,
                (u64::MAX, true) => Want { rate: measured, had: Some(rate), since: now },
                // It comes near what it was left, or has less than it had then: it is called back.
                (kept, true) if rate >= kept / 8 * 7 || want.had.is_none_or(|had| rate < had / 4 * 3) => all,
                (kept, true) => Want { rate: kept.min(measured), ..*want },
            };
        }
        self.follow_trial();
    }

    /// Units that are believed and have not got their parts.
    fn lacking(&self) -> impl Iterator<Item = UnitId> + '_ {
        let lacks = |unit: &UnitId| {
            self.waiting.contains(unit)
                && self.wants.get(unit).is_some_and(|want| want.rate == u64::MAX)
                && self.rate(*unit).total() < self.due(*unit) / 4 * 3
        };
        self.active.iter().copied().filter(lacks)
    }

    /// What all but those who lack something transfer.
    fn others(&self) -> u64 {
        let lacking: BTreeSet<UnitId> = self.lacking().collect();
        self.active.difference(&lacking).map(|unit| self.rate(*unit).total()).sum()
    }

    /// Whether those who are believed could have had their parts by now: the others transfer much less than they did.
    fn is_tried(&self) -> bool {
        self.trial.is_some_and(|trial| self.others() <= trial.others / 4 * 3)
    }

    /// A trial lasts as long as somebody lacks its part. Who could not take it is known not to be held back by the others,
    /// and the disk to carry what it did before; unless that has just been tried, and hurt.
    fn follow_trial(&mut self) {
        let lacks = self.lacking().next().is_some();
        let total: u64 = self.rates.values().map(|rate| rate.total()).sum();
        match (self.trial, lacks) {
            (None, true) => {
                let hurt = self.restored_at.is_some_and(|at| self.at.saturating_sub(at) < 4 * BELIEF_NS);
                let capacity = if hurt { total } else { self.capacity };
                self.trial = Some(Trial { capacity, others: self.others() });
            }
            (Some(trial), false) => {
                if self.wants.values().any(|want| want.had.is_some()) {
                    self.capacity = self.capacity.max(trial.capacity);
                    self.restored_at = Some(self.at);
                }
                self.trial = None;
            }
            _ => {}
        }
    }

    /// A unit's part of the capacity among those who are active.
    fn part(&self, unit: UnitId) -> u64 {
        let sum: u64 = self.active.union(&self.reserving).map(|unit| self.share(*unit)).sum();
        mul_div(self.capacity, self.share(unit), sum.max(1))
    }

    /// What a unit that waits should come to have, as far as the contract lets it.
    fn due(&self, unit: UnitId) -> u64 {
        self.part(unit).min(self.limit(unit))
    }

    fn limit(&self, unit: UnitId) -> u64 {
        self.limits.get(&unit).copied().unwrap_or(u64::MAX)
    }

    /// A unit's share; who holds none has next to nothing.
    fn share(&self, unit: UnitId) -> u64 {
        self.shares.get(&unit).copied().unwrap_or(0).max(1)
    }

    /// Who is held to what rate from now on.
    pub(super) fn hold(&mut self, now: Time) -> BTreeMap<UnitId, Held> {
        if self.active.len() > 1 && !self.waiting.is_empty() || !self.reserving.is_empty() {
            self.contended_at = now;
        }
        if now.saturating_sub(self.contended_at) >= RELEASE_NS {
            self.held.clear();
        }
        let contenders: Vec<UnitId> = self.active.union(&self.reserving).copied().collect();
        let shares: Vec<u64> = contenders.iter().map(|unit| self.share(*unit)).collect();
        let want = |unit: &UnitId| match self.wants.get(unit) {
            Some(want) if !self.reserving.contains(unit) => want.rate.min(self.limit(*unit)),
            _ => self.limit(*unit),
        };
        let wants: Vec<u64> = contenders.iter().map(want).collect();
        let (gets, left) = split_capped(self.capacity, &shares, &wants);
        let whole: u64 = shares.iter().sum();
        let believed = |unit: &UnitId| self.wants.get(unit).is_none_or(|want| want.rate == u64::MAX);
        let nobody_lends = contenders.iter().all(|unit| self.reserving.contains(unit) || believed(unit));
        for ((unit, gets), share) in contenders.iter().zip(gets).zip(&shares) {
            let lacks = !self.reserving.is_empty() && !self.reserving.contains(unit);
            let fair = if nobody_lends { self.corrected(*unit, gets) } else { gets };
            let rate = fair.saturating_add(left).max(self.capacity / 256).max(RATE_MIN);
            if let Some(held) = self.held.get_mut(unit) {
                held.rate = rate;
            } else if (self.ahead.contains(unit) || lacks) && now == self.contended_at {
                let because = self.because(now, *unit, mul_div(*share, MILLIONTH, whole));
                self.held.insert(*unit, Held { rate, because });
            }
        }
        self.free_one();
        // Who pauses is not active and keeps its rate until the disk is free.
        self.held.clone()
    }

    /// A rate, less as much as what came out was more than the unit's part of the counts; at least three quarters of it.
    fn corrected(&self, unit: UnitId, rate: u64) -> u64 {
        let Some(criterion) = &self.criterion else { return rate };
        let used = |unit: &UnitId| criterion.meter.standing(self.at, *unit).used;
        let whole: u64 = self.active.iter().map(|unit| self.share(*unit)).sum();
        let due = mul_div(self.active.iter().map(used).sum(), self.share(unit), whole);
        mul_div(rate, due, used(&unit)).clamp(rate / 4 * 3, rate)
    }

    /// One of those who wait is free, the one that had least for its share: with everybody held, what one leaves would be
    /// nobody's, and what the disk carries could not be seen. Where some do not lend, it is one of them.
    fn free_one(&mut self) {
        let Some(criterion) = &self.criterion else { return };
        // Who is at its limit takes nothing of it.
        let room = |unit: &UnitId| self.rate(*unit).total() < self.limit(*unit) / 8 * 7;
        let may =
            |unit: &&UnitId| room(unit) && (self.reserving.is_empty() || self.reserving.contains(*unit));
        if self.waiting.iter().filter(may).any(|unit| !self.held.contains_key(unit)) {
            return;
        }
        let standing = |unit: &UnitId| criterion.meter.standing(self.at, *unit);
        let lightest = self.waiting.iter().filter(may).min_by(|a, b| standing(a).compare(standing(b)));
        if let Some(unit) = lightest.copied() {
            self.held.remove(&unit);
        }
    }

    /// Who is ahead is so of those who wait; the one that has waited longest is named.
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
fn averaged(average: u64, sample: u64, elapsed: Time) -> u64 {
    if average == 0 {
        return sample;
    }
    let whole = elapsed.saturating_add(AVERAGE_NS);
    mul_div(average, AVERAGE_NS, whole).saturating_add(mul_div(sample, elapsed, whole))
}

fn per_second(bytes: u64, elapsed: Time) -> u64 {
    mul_div(bytes, 1_000 * MS, elapsed.max(1))
}

/// a * b / c, without overflow in between.
pub(super) fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c.max(1))).unwrap_or(u64::MAX)
}
