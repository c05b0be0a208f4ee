//! Scheduling by head position among the units that pass the fairness criterion.
//!
//! Algorithm: C-SCAN over the requests of the kernel and of the units that pass (see
//! [`commonhold_policy::disk::fairness`]). If none of these waits, C-SCAN over the requests of the denied
//! units; if no unit waits, over delayed writes. After a request the criterion is checked for the unit as
//! whose request it was scheduled. Delayed writes are charged, when they complete, to the units that own the
//! sectors.
//!
//! Properties:
//! - With threshold 0, units alternate.
//! - With threshold `u64::MAX`, the schedule equals that of [`super::position`], request by request. For
//!   this, delayed writes do not come last then.
//! - A denied unit passes again at the latest when its count has decayed to the threshold, one half-life per
//!   factor of two.
//! - A unit that passes waits at most until each other unit has exceeded its share by the threshold and a
//!   request. If the threshold is more than units transfer in a half-life, the unit waits as long as by
//!   position alone.
//!
//! Limits: a unit that has nearly all shares is hardly ever denied, and the others wait for the sweep.
//! Sectors are counted, so a unit with small scattered requests may use most of the disk's time. A light
//! unit's request still waits for the request in service. Cost: O(log n) for each unit with waiting requests.
//!
//! Source: seed 000, section 3.3.

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::{Criterion, Total};

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::Queue;

/// The policy's state.
#[derive(Debug)]
pub(super) struct Fair {
    criterion: Criterion,
    /// The unit of each transfer in service.
    in_service: Vec<UnitId>,
    defers: bool,
}

impl Fair {
    /// The policy with all counts at 0 and no unit denied.
    pub(super) fn new(shares: &[u64], half_life_ns: Time, threshold_sectors: u64) -> Fair {
        Fair {
            criterion: Criterion::new(shares, half_life_ns, threshold_sectors),
            in_service: Vec::new(),
            defers: threshold_sectors < u64::MAX,
        }
    }

    /// The sum over the active units, which have requests queued or in service: what they used, and their
    /// shares.
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
        self.criterion.meter.begin(transfer.scheduled_unit, transfer.sectors);
        self.in_service.push(transfer.scheduled_unit);
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, queue: &Queue) {
        self.criterion.meter.end(transfer.scheduled_unit, transfer.sectors);
        for (unit, sectors) in transfer.charged {
            self.criterion.meter.charge(now, *unit, *sectors);
        }
        // The unit of the request that ended is still in `in_service`, and so counted among the active.
        let active = self.active(now, queue);
        self.criterion.check(now, transfer.scheduled_unit, active);
        if let Some(index) = self.in_service.iter().position(|unit| *unit == transfer.scheduled_unit) {
            self.in_service.swap_remove(index);
        }
    }
}
