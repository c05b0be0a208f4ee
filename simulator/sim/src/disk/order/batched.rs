//! Fair queueing in turns: units get disk time by share, in batches, and a light unit is served between a
//! heavy unit's batches.
//!
//! Problem: a light unit reads small pieces one after the other, with pauses for computation. A heavy unit
//! copies a large file. By head position, the heavy unit keeps the head. By the criterion of [`super::fair`],
//! each read of the light unit waits for a request of the heavy unit, because the disk seeks away in every
//! pause, and the heavy unit pays two seeks each time. And two heavy units should not alternate request by
//! request.
//!
//! Terms: a unit's *tag* is the disk time that it has had, weighted by share: it advances by the service
//! time, times the mean share divided by the unit's share. *Virtual time* is the smallest tag of the active
//! units, and never decreases. The *holder* is the unit whose turn it is.
//!
//! Algorithm:
//!
//! 1. A unit that becomes active keeps its tag, but starts at most `credit` behind virtual time. So it may
//!    claim time that it did not use, up to the credit.
//! 2. The holder is served as long as its tag is at most `turn` ahead of the smallest tag of a unit that
//!    waits. Within the turn its requests are served by C-SCAN, except that a request that too many others
//!    have overtaken goes next. So two heavy units alternate with batches of two turns. A light unit, whose
//!    credit exceeds a turn, is served as soon as the request in service ends.
//! 3. If the holder has no waiting request, but its next request usually arrives quickly (at least 4 of its
//!    last 8 pauses were shorter than `pause`), the disk waits for the holder, for `pause`. The holder's tag
//!    advances by the time that the disk was idle for it while others waited. Pauses are measured whether or
//!    not the disk waited.
//! 4. The kernel's requests go first. Delayed writes go when no unit waits and the last request of a unit
//!    ended `pause` ago. When they are too old, they become requests of their owners. Their time advances
//!    their owners' tags, up to `credit` ahead of virtual time. So writes that used an idle disk do not lock
//!    their owner out later.
//!
//! `pause` is the time for repositioning this disk (a seek and half a revolution, 10 ms at scale 2). So the
//! disk waits for at most half of the cost of seeking away and back. `turn` is four times that, so that two
//! units that always have requests lose about an eighth of the time to repositioning. Both are 0 on a disk
//! without an arm.
//!
//! Properties: of units that always have requests waiting, each gets its share of the disk's time, within a
//! turn and a request.
//!
//! Bound on the wait of a unit's first request. Let M be the longest service time, and w(i) the mean share
//! divided by the share of unit i. A tag is at most D = max(credit, turn + w * (M + pause)) ahead of virtual
//! time, and that of an active unit at most `credit` behind. Each other unit B is served until its tag is
//! `turn` ahead of the waiting unit's, which is for at most (D + credit + turn) / w(B) + M + pause. So the
//! wait is at most the sum of this over the other units, plus 2 M. Further requests of the same unit also
//! wait for the unit's requests that go first: at most 4 n + 16.
//!
//! Limits: the bound is a turn longer per unit than for strict alternation, and does not hold while the
//! kernel keeps the disk busy. If all requests are random, turns save nothing. Cost: O(units with waiting
//! requests) and O(log n).
//!
//! Source: this project. Start-time fair queueing (Goyal, Vin and Cheng 1996) for tags and virtual time;
//! anticipation (Iyer and Druschel 2001) for the pause.

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::weights;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::Queue;

/// The part of `credit` beyond a turn, in ns: enough for a burst of ten small reads.
const CREDIT_NS: Time = 100_000_000;

/// The policy's state.
#[derive(Debug)]
pub(super) struct Batched {
    turn_ns: Time,
    pause_ns: Time,
    credit_ns: Time,
    /// The mean of all weights.
    mean: u128,
    units: Vec<Unit>,
    /// Units with requests queued or in service.
    active: Vec<UnitId>,
    virtual_time: u64,
    holder: Option<UnitId>,
    awaited: Option<Awaited>,
    /// When the last request of a unit ended, except the built-in units.
    last_end: Option<Time>,
    /// The number of turns so far.
    turn: u64,
}

/// A wait for the next request of the holder, which has none now.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    until: Time,
    /// Since when the disk is idle for the holder while other units wait.
    idle_from: Option<Time>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    weight: u64,
    tag: u64,
    /// The number of its requests in service.
    in_service: u32,
    /// When its present pause began, with nothing queued or in service.
    paused_at: Option<Time>,
    /// A bit for each of its last 8 pauses: whether the pause was short.
    short_pauses: u8,
    /// The number of its last turn.
    last_turn: u64,
}

impl Batched {
    /// The policy for an idle disk whose arm takes `reposition_ns` to reposition.
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
        batched.set_weights(shares);
        batched
    }

    /// Sets the units' weights from their shares.
    fn set_weights(&mut self, shares: &[u64]) {
        let weights = weights(shares);
        let with_share = shares.iter().filter(|share| **share > 0).count().max(1) as u128;
        let sum: u128 =
            weights.iter().zip(shares).filter(|(_, s)| **s > 0).map(|(w, _)| u128::from(*w)).sum();
        self.mean = (sum / with_share).max(1);
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

    /// Charges the owner of delayed writes, but moves the owner's tag at most `credit` ahead of virtual time:
    /// the rest is forgiven.
    fn charge_owner(&mut self, unit: UnitId, time_ns: Time) {
        let (tag_min, tag_max) = (
            self.virtual_time.saturating_sub(self.credit_ns),
            self.virtual_time.saturating_add(self.credit_ns),
        );
        let before = self.entry(unit).tag.max(tag_min);
        self.entry(unit).tag = before;
        self.charge(unit, time_ns);
        let entry = self.entry(unit);
        entry.tag = entry.tag.min(before.max(tag_max));
    }

    fn advance_virtual_time(&mut self) {
        let least = self.active.iter().map(|unit| self.units[unit.index()].tag).min();
        self.virtual_time = self.virtual_time.max(least.unwrap_or(0));
    }

    /// A unit has a request: if its pause ends by that, records the pause's length and limits the unit's
    /// claim.
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

    /// After the end of a request of `unit`: if the unit has no other request, begins its pause, and a wait
    /// for it if it is the holder and its pauses are usually short.
    fn pause_if_idle(&mut self, now: Time, unit: UnitId, queue: &Queue) {
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

    /// The waiting unit with the smallest tag; of equals, the least recently served.
    fn lightest(&self, queue: &Queue) -> Option<UnitId> {
        let key = |unit: &UnitId| (self.units[unit.index()].tag, self.units[unit.index()].last_turn);
        queue.units().filter(|unit| !unit.is_common()).min_by_key(key)
    }

    /// Ends a wait for the holder, and charges the holder for the time that the disk was idle for it.
    fn stop_waiting(&mut self, now: Time) {
        if let (Some(Awaited { idle_from: Some(from), .. }), Some(holder)) =
            (self.awaited.take(), self.holder)
        {
            self.charge(holder, now - from);
        }
    }

    /// The unit whose turn it is: the holder or `lightest`, the waiting unit with the smallest tag. The error
    /// is the time until which to wait for the holder.
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

    /// The choice if no unit waits: delayed writes, once the last unit's request ended `pause` ago.
    fn choose_delayed(&self, now: Time, head: u64, queue: &Queue) -> Choice {
        match self.last_end.map(|end| end + self.pause_ns) {
            Some(quiet) if now < quiet && queue.has(UnitId::SHARED) => Choice::WaitUntil(quiet),
            _ => queue.sweep([UnitId::SHARED].into_iter().filter(|unit| queue.has(*unit)), head).into(),
        }
    }
}

impl Order for Batched {
    fn set_shares(&mut self, shares: &[u64]) {
        self.set_weights(shares);
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
        let Some(lightest) = self.lightest(queue) else {
            return self.choose_delayed(now, head, queue);
        };
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
        let unit = transfer.scheduled_unit;
        self.entry(unit).in_service += 1;
        // The time is charged at the start already. With one channel that makes no difference: nothing is
        // decided before the end.
        if !unit.is_common() {
            self.charge(unit, transfer.service_ns);
        }
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, queue: &Queue) {
        let unit = transfer.scheduled_unit;
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
            self.pause_if_idle(now, unit, queue);
        }
    }
}
