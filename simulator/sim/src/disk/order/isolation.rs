//! By bandwidth alone: equal or share-weighted bandwidth for units, whatever the seeks cost.
//!
//! Algorithm: the unit whose count of sectors per share is least goes next, with its oldest request. Counts fade (see
//! [`commonhold_policy::disk::fairness`]). Of units with equal counts, the one that was served least recently goes next.
//! The kernel goes before them, delayed writes after them, oldest first.
//!
//! Properties: units that always have requests waiting get sectors by share, within a request each. A unit that was
//! idle goes first until its count has caught up. A unit's oldest request waits at most until the unit's own count has
//! faded, one half-life per factor of two, and once round the other units after that.
//!
//! Limits: a seek per request, mostly. Cost: O(units waiting), plus O(log n).
//!
//! Source: seed 000, section 4.5, the second of three policies ("ignores the disk-head position, and only strives to
//! provide equal disk bandwidth"). The source does not say how this policy chooses the next unit. Here the counts of
//! section 3.3 do that.

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::Meter;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::Queue;

/// The lightest unit first.
#[derive(Debug)]
pub(super) struct Isolation {
    meter: Meter,
    /// By unit: the number of its last turn.
    turns: Vec<u64>,
    turn: u64,
}

impl Isolation {
    /// With nothing counted.
    pub(super) fn new(shares: &[u64], half_life_ns: Time) -> Isolation {
        Isolation { meter: Meter::new(shares, half_life_ns), turns: vec![0; shares.len()], turn: 0 }
    }

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
        let unit = transfer.turn_of;
        self.meter.begin(unit, transfer.sectors);
        if unit.index() >= self.turns.len() {
            self.turns.resize(unit.index() + 1, 0);
        }
        self.turn += 1;
        self.turns[unit.index()] = self.turn;
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, _queue: &Queue) {
        self.meter.end(transfer.turn_of, transfer.sectors);
        for (unit, sectors) in transfer.charged {
            self.meter.charge(now, *unit, *sectors);
        }
    }
}
