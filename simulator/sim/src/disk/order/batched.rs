//! By turns: units get disk time by share, in batches, and a light unit goes between the batches of a heavy one.
//!
//! Problem: a light unit reads small pieces one after the other, thinking in between. A heavy one copies a large file.
//! By head position, the heavy one keeps the head. By the criterion of [`super::fair`], the light one waits for one of
//! the heavy one's requests each time, because the disk turns away in every pause for thought. The heavy one pays two
//! seeks each time. And two heavy units should not be alternated request by request.
//!
//! Terms: a unit's *tag* is the disk time that it was served, weighted by share. It advances by service time, times
//! the mean share over the unit's own. *Virtual time* is the least tag of the active units, and never goes back. The
//! *holder* is the unit whose turn it is.
//!
//! Algorithm:
//!
//! 1. A unit that becomes active starts with its own tag, or with virtual time less `credit`, whichever is more. So it
//!    has a claim to what it did not use, up to the credit.
//! 2. The holder is served as long as its tag is at most `turn` ahead of the least tag that waits. Within the turn it
//!    is served by C-SCAN, but a request that too many went before goes next. So two heavy units change over every two
//!    turns' worth. A light unit, with the credit of more than a turn, is next as soon as the request in service is
//!    done.
//! 3. The holder may have nothing waiting while its next request usually comes quickly: at least 4 of its last 8
//!    pauses were shorter than `pause`. Then the disk waits for it for `pause`. The holder's tag advances by the time
//!    that the disk stood idle for it while others waited. A pause is measured whether or not the disk waited.
//! 4. The kernel goes before all. Delayed writes go when no unit waits and the last unit's request is `pause` ago.
//!    When they are too old, they become requests of their owners. Their time is on their owners' tags, up to `credit`
//!    ahead of virtual time. So writes that used an idle disk do not shut their owner out later.
//!
//! `pause` is the time that turning elsewhere takes this disk (seek and half a revolution, 10 ms at scale 2). So the
//! disk waits for at most half of what leaving and coming back costs. `turn` is four times that, so that two units
//! that always have requests lose about an eighth to changing over. Both are 0 on a disk without an arm.
//!
//! Properties: of units that always have requests waiting, each gets its share of the disk's time, within a turn and a
//! request.
//!
//! Bound on the wait of a unit's first request. Let M be the longest service, and weights w(i) = mean share over the
//! unit's. A tag is never more than D = max(credit, turn + w * (M + pause)) ahead of virtual time, nor, when active,
//! more than `credit` behind. Each other unit B is served until its tag is `turn` ahead of the one that waits. That is
//! for at most (D + credit + turn) / w(B) + M + pause. So the wait is at most the sum of that over the others, and 2
//! M. Further requests of the same unit wait for those of their own that go before: 4 n + 16 at most.
//!
//! Limits: the bound is a turn longer per unit than strict alternation's, and does not hold while the kernel keeps the
//! disk busy. With all requests random, turns save nothing. Cost: O(units waiting), plus O(log n).
//!
//! Source: this project. Start-time fair queueing (Goyal, Vin and Cheng 1996) for tags and virtual time; anticipation
//! (Iyer and Druschel 2001) for the pause.

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::weights;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::Queue;

/// How far a unit's claim to time that it did not use goes beyond a turn, in ns: enough for a burst of ten small reads.
const CREDIT_NS: Time = 100_000_000;

/// Turns, credit and pauses.
#[derive(Debug)]
pub(super) struct Batched {
    turn_ns: Time,
    pause_ns: Time,
    credit_ns: Time,
    /// Mean of all weights.
    mean: u128,
    units: Vec<Unit>,
    /// Units with requests queued or in service.
    active: Vec<UnitId>,
    virtual_time: u64,
    holder: Option<UnitId>,
    awaited: Option<Awaited>,
    /// When a unit's request last ended.
    last_end: Option<Time>,
    turn: u64,
}

/// The holder has nothing waiting, and the disk may wait for it.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    until: Time,
    /// Since when the disk stands idle while others wait.
    idle_from: Option<Time>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    weight: u64,
    tag: u64,
    in_service: u32,
    /// When it had nothing queued or in service any more.
    paused_at: Option<Time>,
    /// A bit for each of its last pauses: whether it was short.
    short_pauses: u8,
    last_turn: u64,
}

impl Batched {
    /// For a disk with all units idle.
    pub(super) fn new(shares: &[u64], reposition_ns: Time) -> Batched {
        let turn_ns = 4 * reposition_ns;
        let mut batched = Batched {
            turn_ns,
            pause_ns: reposition_ns,
            credit_ns: turn_ns + CREDIT_NS,
            mean: 1,
            units: Vec::new(),
            active: Vec::new(),
            virtual_time: 0,
            holder: None,
            awaited: None,
            last_end: None,
            turn: 0,
        };
        batched.weigh(shares);
        batched
    }

    fn weigh(&mut self, shares: &[u64]) {
        let weights = weights(shares);
        let holders = shares.iter().filter(|share| **share > 0).count().max(1) as u128;
        let sum: u128 =
            weights.iter().zip(shares).filter(|(_, s)| **s > 0).map(|(w, _)| u128::from(*w)).sum();
        self.mean = (sum / holders).max(1);
        self.units.resize(self.units.len().max(weights.len()), Unit::default());
        for (unit, weight) in self.units.iter_mut().zip(weights) {
            unit.weight = weight;
        }
    }

    fn entry(&mut self, unit: UnitId) -> &mut Unit {
        if unit.index() >= self.units.len() {
            self.units.resize(unit.index() + 1, Unit { weight: 1, ..Unit::default() });
        }
        &mut self.units[unit.index()]
    }

    /// Advances a unit's tag by disk time that it had.
    fn charge(&mut self, unit: UnitId, time_ns: Time) {
        let mean = self.mean;
        let entry = self.entry(unit);
        let weighted = u128::from(time_ns) * mean / u128::from(entry.weight.max(1));
        entry.tag = entry.tag.saturating_add(u64::try_from(weighted).unwrap_or(u64::MAX));
    }

    /// Charges the owner of delayed writes, but moves its tag at most `credit` ahead of virtual time: what is beyond is forgiven.
    fn charge_owner(&mut self, unit: UnitId, time_ns: Time) {
        let (least, most) = (
            self.virtual_time.saturating_sub(self.credit_ns),
            self.virtual_time.saturating_add(self.credit_ns),
        );
        let before = self.entry(unit).tag.max(least);
        self.entry(unit).tag = before;
        self.charge(unit, time_ns);
        let entry = self.entry(unit);
        entry.tag = entry.tag.min(before.max(most));
    }

    fn advance_virtual_time(&mut self) {
        let least = self.active.iter().map(|unit| self.units[unit.index()].tag).min();
        self.virtual_time = self.virtual_time.max(least.unwrap_or(0));
    }

    fn activate(&mut self, now: Time, unit: UnitId) {
        if self.active.contains(&unit) {
            return;
        }
        self.advance_virtual_time();
        let earliest = self.virtual_time.saturating_sub(self.credit_ns);
        let pause_ns = self.pause_ns;
        let entry = self.entry(unit);
        entry.tag = entry.tag.max(earliest);
        if let Some(paused_at) = entry.paused_at.take() {
            entry.short_pauses = entry.short_pauses << 1 | u8::from(now - paused_at <= pause_ns);
        }
        self.active.push(unit);
    }

    /// After a request of `unit` ended: it may have nothing left to do.
    fn rest(&mut self, now: Time, unit: UnitId, queue: &Queue) {
        if queue.has(unit) || self.units[unit.index()].in_service > 0 {
            return;
        }
        self.advance_virtual_time();
        self.active.retain(|active| *active != unit);
        let pause_ns = self.pause_ns;
        let entry = self.entry(unit);
        entry.paused_at = Some(now);
        let quick = pause_ns > 0 && entry.short_pauses.count_ones() >= 4;
        if quick && self.holder == Some(unit) {
            self.awaited = Some(Awaited { until: now + pause_ns, idle_from: None });
        }
    }

    /// The waiting unit with the least tag; of equals, the one whose turn is longest ago.
    fn lightest(&self, queue: &Queue) -> Option<UnitId> {
        let key = |unit: &UnitId| (self.units[unit.index()].tag, self.units[unit.index()].last_turn);
        queue.units().filter(|unit| !unit.is_common()).min_by_key(key)
    }

    /// Ends a wait for the holder; the time that the disk stood idle for it is on its tag.
    fn stop_waiting(&mut self, now: Time) {
        if let (Some(Awaited { idle_from: Some(from), .. }), Some(holder)) =
            (self.awaited.take(), self.holder)
        {
            self.charge(holder, now - from);
        }
    }

    /// Whose turn it is, with `lightest` the lightest that waits; or until when to wait for the holder.
    fn decide(&mut self, now: Time, lightest: UnitId, queue: &Queue) -> Result<UnitId, Time> {
        let Some(holder) = self.holder else { return Ok(lightest) };
        let ahead = self.units[holder.index()].tag.saturating_sub(self.units[lightest.index()].tag);
        if ahead > self.turn_ns {
            return Ok(lightest);
        }
        if queue.has(holder) {
            return Ok(holder);
        }
        match &mut self.awaited {
            Some(awaited) if now < awaited.until => {
                awaited.idle_from.get_or_insert(now);
                Err(awaited.until)
            }
            _ => Ok(lightest),
        }
    }

    fn delayed(&self, now: Time, head: u64, queue: &Queue) -> Choice {
        match self.last_end.map(|end| end + self.pause_ns) {
            Some(quiet) if now < quiet && queue.has(UnitId::SHARED) => Choice::WaitUntil(quiet),
            _ => queue.sweep([UnitId::SHARED].into_iter().filter(|unit| queue.has(*unit)), head).into(),
        }
    }
}

impl Order for Batched {
    fn set_shares(&mut self, shares: &[u64]) {
        self.weigh(shares);
    }

    fn arrived(&mut self, now: Time, unit: UnitId, _queue: &Queue) {
        if !unit.is_common() {
            self.activate(now, unit);
        }
    }

    fn choose(&mut self, now: Time, head: u64, queue: &Queue) -> Choice {
        if queue.has(UnitId::KERNEL) {
            return queue.sweep([UnitId::KERNEL].into_iter(), head).into();
        }
        let Some(lightest) = self.lightest(queue) else { return self.delayed(now, head, queue) };
        let unit = match self.decide(now, lightest, queue) {
            Ok(unit) => unit,
            Err(until) => return Choice::WaitUntil(until),
        };
        self.stop_waiting(now);
        if self.holder != Some(unit) {
            self.turn += 1;
            self.units[unit.index()].last_turn = self.turn;
            self.holder = Some(unit);
        }
        let overtaken = queue.overtaken(unit).map(|place| (unit, place));
        overtaken.or_else(|| queue.sweep([unit].into_iter(), head)).into()
    }

    fn began(&mut self, _now: Time, transfer: &Transfer) {
        let unit = transfer.turn_of;
        self.entry(unit).in_service += 1;
        // On one channel nothing is decided before the end, so it does not matter that this is early.
        if !unit.is_common() {
            self.charge(unit, transfer.service_ns);
        }
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, queue: &Queue) {
        let unit = transfer.turn_of;
        self.entry(unit).in_service -= 1;
        if unit == UnitId::SHARED {
            for (owner, sectors) in transfer.charged.iter().filter(|(owner, _)| !owner.is_common()) {
                let part = u128::from(transfer.service_ns) * u128::from(*sectors)
                    / u128::from(transfer.sectors.max(1));
                self.charge_owner(*owner, u64::try_from(part).unwrap_or(u64::MAX));
            }
            return;
        }
        self.last_end = Some(now);
        if !unit.is_common() {
            self.rest(now, unit, queue);
        }
    }
}
