//! Scheduling by bandwidth alone: equal or share-weighted bandwidth for units, regardless of seeks.
//!
//! Algorithm: the unit with the smallest count of sectors per share goes next, with its oldest request.
//! Counts decay (see [`commonhold_policy::disk::fairness`]). Of units with equal counts, the least recently
//! served goes next. The kernel goes before all units, and delayed writes after them, oldest first.
//!
//! Properties: units that always have waiting requests get sectors by share, to within a request each. A unit
//! that was idle goes first until its count has caught up. A unit's oldest request waits at most until the
//! unit's own count has decayed, one half-life per factor of two, and then for one request of each other
//! unit.
//!
//! Limits: most requests need a seek. Cost: O(units with waiting requests) and O(log n).
//!
//! Source: seed 000, section 4.5, the second of three policies ("ignores the disk-head position, and only
//! strives to provide equal disk bandwidth"). The source does not say how this policy chooses the next unit.
//! Here the counts of section 3.3 do that.

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::Meter;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::Queue;

/// The policy's state.
#[derive(Debug)]
pub(super) struct Isolation {
    meter: Meter,
    /// By unit: the number of its last request, counting all units' requests.
    turns: Vec<u64>,
    turn: u64,
}

impl Isolation {
    /// The policy with all counts at 0.
    pub(super) fn new(shares: &[u64], half_life_ns: Time) -> Isolation {
        Isolation { meter: Meter::new(shares, half_life_ns), turns: vec![0; shares.len()], turn: 0 }
    }

    /// The unit with the smallest count per share; of equals, the least recently served.
    fn lightest(&self, now: Time, queue: &Queue) -> Option<UnitId> {
        let last_turn = |unit: UnitId| self.turns.get(unit.index()).copied().unwrap_or(0);
        queue.units().filter(|unit| !unit.is_common()).min_by(|a, b| {
            let by_use = self.meter.standing(now, *a).compare(self.meter.standing(now, *b));
            by_use.then_with(|| last_turn(*a).cmp(&last_turn(*b)))
        })
    }
}

impl Order for Isolation {
    fn set_shares(&mut self, shares: &[u64]) {
        self.meter.set_shares(shares);
    }

    fn choose(&mut self, now: Time, _head: u64, queue: &Queue) -> Choice {
        let unit = match self.lightest(now, queue) {
            _ if queue.has(UnitId::KERNEL) => UnitId::KERNEL,
            Some(unit) => unit,
            None => UnitId::SHARED,
        };
        queue.oldest(unit).map(|place| (unit, place)).into()
    }

    fn began(&mut self, _now: Time, transfer: &Transfer) {
        let unit = transfer.scheduled_unit;
        self.meter.begin(unit, transfer.sectors);
        if unit.index() >= self.turns.len() {
            self.turns.resize(unit.index() + 1, 0);
        }
        self.turn += 1;
        self.turns[unit.index()] = self.turn;
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, _queue: &Queue) {
        self.meter.end(transfer.scheduled_unit, transfer.sectors);
        for (unit, sectors) in transfer.charged {
            self.meter.charge(now, *unit, *sectors);
        }
    }
}
