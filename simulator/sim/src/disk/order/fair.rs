//! By head position among the units that pass the fairness criterion.
//!
//! Algorithm: C-SCAN over the requests of the units that pass (see [`commonhold_policy::disk::fairness`]), and of the
//! kernel. Where none of those waits, it goes over the requests of the denied units. Where no unit waits, it goes over
//! delayed writes. After a request the criterion is checked for the unit in whose turn it went. Delayed writes are
//! charged, when they are done, to the units that own the sectors.
//!
//! Properties:
//! - With threshold 0, units alternate.
//! - With threshold `u64::MAX`, the schedule is that of [`super::position`], request by request. For this, delayed
//!   writes are then not put last either.
//! - A denied unit passes at the latest when its count has faded to the threshold, one half-life per factor of two.
//! - A unit that passes waits at most until each other unit has gone beyond its part by the threshold and a request.
//!   Where the threshold is more than units transfer in a half-life, it waits as long as by position alone.
//!
//! Limits: a unit that holds nearly all shares hardly ever fails, and the others wait for the sweep. Sectors are
//! counted, so a unit with small scattered requests may use most of the disk's time. A light unit's request still
//! waits for the one in service. Cost: O(units waiting) and O(log n) for each.
//!
//! Source: seed 000, section 3.3.

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::{Criterion, Total};

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::Queue;

/// C-SCAN within the criterion.
#[derive(Debug)]
pub(super) struct Fair {
    criterion: Criterion,
    /// Whose transfers are under way, one entry each.
    in_service: Vec<UnitId>,
    defers: bool,
}

impl Fair {
    /// With nothing counted and no unit denied.
    pub(super) fn new(shares: &[u64], half_life_ns: Time, threshold_sectors: u64) -> Fair {
        Fair {
            criterion: Criterion::new(shares, half_life_ns, threshold_sectors),
            in_service: Vec::new(),
            defers: threshold_sectors < u64::MAX,
        }
    }

    /// What the active units used and hold: those with requests queued or in service.
    fn active(&self, now: Time, queue: &Queue) -> Total {
        let mut serving = self.in_service.clone();
        serving.sort_unstable();
        serving.dedup();
        serving.retain(|unit| !queue.has(*unit));
        self.criterion.meter.total(now, queue.units().chain(serving))
    }
}

impl Order for Fair {
    fn defers(&self) -> bool {
        self.defers
    }

    fn set_shares(&mut self, shares: &[u64]) {
        self.criterion.meter.set_shares(shares);
    }

    fn choose(&mut self, now: Time, head: u64, queue: &Queue) -> Choice {
        let active = self.active(now, queue);
        let mut candidates: Vec<UnitId> = queue.units().collect();
        if self.defers && candidates.iter().any(|unit| *unit != UnitId::SHARED) {
            candidates.retain(|unit| *unit != UnitId::SHARED);
        }
        let passing = candidates.iter().copied().filter(|unit| self.criterion.passes(now, *unit, active));
        let passing: Vec<UnitId> = passing.collect();
        let among = if passing.is_empty() { candidates } else { passing };
        queue.sweep(among.into_iter(), head).into()
    }

    fn began(&mut self, _now: Time, transfer: &Transfer) {
        self.criterion.meter.begin(transfer.turn_of, transfer.sectors);
        self.in_service.push(transfer.turn_of);
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, queue: &Queue) {
        self.criterion.meter.end(transfer.turn_of, transfer.sectors);
        for (unit, sectors) in transfer.charged {
            self.criterion.meter.charge(now, *unit, *sectors);
        }
        // The unit of the request that ended is still in `in_service`, and so counted among the active.
        let active = self.active(now, queue);
        self.criterion.check(now, transfer.turn_of, active);
        if let Some(at) = self.in_service.iter().position(|unit| *unit == transfer.turn_of) {
            self.in_service.swap_remove(at);
        }
    }
}
