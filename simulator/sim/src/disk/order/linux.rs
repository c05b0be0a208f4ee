//! As the block layer of Linux: by weight, as io.cost does, or by arrival.
//!
//! Problem: a program that holds shares on Linux cannot say which request goes next. It can give control groups
//! weights, and rates where weights are ignored (see `gates`). The effect of its orders depends on the kernel.
//!
//! Terms:
//! - A request's *cost* is the time that it is expected to take of the disk, by direction, by size, and by whether it
//!   is within 16 MiB of the end of its unit's last one. It is an estimate, as io.cost's is.
//! - A unit is *active* while it has requests here or in the device, and for a *period* after. The period is twice the
//!   time that a small request takes among 64 others, and between 10 and 500 ms.
//! - A unit's *part* is the product over the units from it to the top of each one's weight over the weights of its
//!   active siblings. The requests of a unit's own processes, beside its active sub-units, count as one more of 100.
//!   All units are in one control group. What is `shared` stands beside that, with 100 against 100 of all units
//!   together, whatever their weights.
//! - A unit's *tag* is the cost of its requests, each over the unit's part at that moment. *Virtual time* is the tag of
//!   the last unit that was chosen, before that request. It never goes back.
//!
//! Algorithm on a disk that honours weights: the unit with the smallest tag goes next; of equals, the one that was chosen
//! longest ago. Which of its requests goes is the sweep's to say on a disk with an arm, or else the oldest. A unit that
//! comes after it had none keeps its tag, but is at most half a period behind virtual time. The kernel's own requests
//! go first, at no cost. So do writes to swap, at their unit's cost.
//!
//! On a disk that ignores weights, requests go to the device in the order in which they came.
//!
//! Delayed writes are their main owner's requests from the start, as those of control groups are where file systems say
//! whose a write is.
//!
//! Properties (tested):
//! - Of units that always have requests waiting, each gets its part of the cost, to within a request each.
//! - The disk does not idle while a request waits here.
//! - What a unit leaves goes to the others: by part, not to its siblings first.
//!
//! Limits: io.cost keeps back what the disk could do at once, so that a tenth of it idles, and lowers the weights of
//! units that use little of their parts. Neither is so here. The estimate charges no unit for an arm that has to come
//! back to it, and units alternate on such a disk, with a seek each. Cost: O(active units) and O(log n) per request.
//!
//! Source: block/blk-iocost.c; start-time fair queueing (Goyal, Vin and Cheng 1996) for tags and virtual time.

use std::collections::BTreeSet;

use commonhold_contract::UnitId;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::Request;
use crate::disk::mechanics::{Costs, Mechanics};
use crate::disk::queue::Queue;

/// The weight of a unit without an order, of the requests of a unit's own processes, and the bounds of all weights.
const USUAL: u32 = 100;
const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1_000;
/// The whole, of which a unit's part is a part.
const WHOLE: u128 = 1 << 32;
/// A request so near to the one before it is in sequence.
const NEAR_SECTORS: u64 = (16 << 20) / 512;
/// A period is twice the time of [`CROWD`] reads of this size.
const SMALL_SECTORS: u64 = 8;
const CROWD: u64 = 64;
const PERIOD_NS: std::ops::RangeInclusive<Time> = 10_000_000..=500_000_000;

/// Weights, or arrival.
#[derive(Debug)]
pub(in crate::disk) struct Linux {
    parents: Vec<Option<UnitId>>,
    weighs: bool,
    sweeps: bool,
    costs: Costs,
    period_ns: Time,
    units: Vec<Unit>,
    active: BTreeSet<UnitId>,
    /// Those of them that have no request, by when the last one ended.
    resting: BTreeSet<(Time, UnitId)>,
    /// The weights that compete in a unit, and at the top, without what is shared; out of date where the active units
    /// changed.
    within: Vec<u64>,
    at_top: u64,
    is_stale: bool,
    virtual_time: u128,
    turn: u64,
}

#[derive(Debug, Clone, Copy)]
struct Unit {
    weight: u32,
    tag: u128,
    /// It has requests here or in the device.
    is_busy: bool,
    /// How many are in the device.
    in_device: u32,
    rested_at: Option<Time>,
    /// The end of its last request.
    cursor: Option<u64>,
    last_turn: u64,
}

const FRESH: Unit =
    Unit { weight: USUAL, tag: 0, is_busy: false, in_device: 0, rested_at: None, cursor: None, last_turn: 0 };

impl Linux {
    /// With all weights as usual and no unit active. `parents` are by [`UnitId::index`]; a unit beyond their end is at the
    /// top.
    pub(in crate::disk) fn new(parents: &[Option<UnitId>], weighs: bool, mechanics: &Mechanics) -> Linux {
        let costs = mechanics.costs();
        let latency_ns = costs.of(SMALL_SECTORS, false, false).saturating_mul(CROWD);
        Linux {
            parents: parents.to_vec(),
            weighs,
            sweeps: mechanics.has_arm(),
            costs,
            period_ns: latency_ns.saturating_mul(2).clamp(*PERIOD_NS.start(), *PERIOD_NS.end()),
            units: vec![FRESH; parents.len()],
            active: BTreeSet::new(),
            resting: BTreeSet::new(),
            within: Vec::new(),
            at_top: 0,
            is_stale: true,
            virtual_time: 0,
            turn: 0,
        }
    }

    fn entry(&mut self, unit: UnitId) -> &mut Unit {
        if unit.index() >= self.units.len() {
            self.units.resize(unit.index() + 1, FRESH);
        }
        &mut self.units[unit.index()]
    }

    fn parent(&self, unit: UnitId) -> Option<UnitId> {
        self.parents.get(unit.index()).copied().flatten()
    }

    /// Whatever weight is not there is the usual one.
    fn weight(&self, unit: UnitId) -> u64 {
        self.units.get(unit.index()).map_or(USUAL, |unit| unit.weight).into()
    }

    fn activate(&mut self, unit: UnitId) {
        let earliest = self.virtual_time.saturating_sub(u128::from(self.period_ns / 2));
        let entry = self.entry(unit);
        if entry.is_busy {
            return;
        }
        entry.is_busy = true;
        entry.tag = entry.tag.max(earliest);
        if let Some(at) = entry.rested_at.take() {
            self.resting.remove(&(at, unit));
        }
        self.is_stale |= self.active.insert(unit);
    }

    fn rest_if_idle(&mut self, now: Time, unit: UnitId, queue: &Queue) {
        let entry = self.entry(unit);
        if entry.in_device > 0 || queue.has(unit) {
            return;
        }
        entry.is_busy = false;
        entry.rested_at = Some(now);
        self.resting.insert((now, unit));
    }

    /// Units that rested for a period are not active any more.
    fn expire(&mut self, now: Time) {
        while let Some((at, unit)) = self.resting.first().copied()
            && now.saturating_sub(at) >= self.period_ns
        {
            self.resting.pop_first();
            self.entry(unit).rested_at = None;
            self.active.remove(&unit);
            self.is_stale = true;
        }
    }

    /// What competes at each place of the tree.
    fn recount(&mut self) {
        self.is_stale = false;
        let units = self.units.len().max(self.parents.len());
        self.within.clear();
        self.within.resize(units, 0);
        self.at_top = 0;
        let mut counted = vec![false; units];
        for own in self.active.iter().filter(|unit| !unit.is_common()) {
            self.within[own.index()] += u64::from(USUAL);
            let mut next = Some(*own);
            while let Some(unit) = next.filter(|unit| !counted[unit.index()]) {
                counted[unit.index()] = true;
                next = self.parent(unit);
                let weight = self.weight(unit);
                match next {
                    Some(parent) => self.within[parent.index()] += weight,
                    None => self.at_top += weight,
                }
            }
        }
    }

    /// The part of the disk that is an active unit's own, of [`WHOLE`]; at least 1.
    fn part(&mut self, unit: UnitId) -> u128 {
        if self.is_stale {
            self.recount();
        }
        let both = self.at_top > 0 && self.active.contains(&UnitId::SHARED);
        let whole = if both { WHOLE / 2 } else { WHOLE };
        if unit.is_common() {
            return whole;
        }
        let within = |unit: UnitId| self.within.get(unit.index()).copied().unwrap_or(0).max(1);
        let fraction = |part: u128, weight: u64, all: u64| part * u128::from(weight) / u128::from(all);
        let mut part = fraction(whole, USUAL.into(), within(unit));
        let mut next = Some(unit);
        while let Some(unit) = next {
            next = self.parent(unit);
            part = fraction(part, self.weight(unit), next.map_or(self.at_top.max(1), within));
        }
        part.max(1)
    }

    /// Advances an active unit's tag by the cost of a request.
    fn charge(&mut self, now: Time, unit: UnitId, request: &Request) {
        self.expire(now);
        let part = self.part(unit);
        let (costs, sectors) = (self.costs, u64::from(request.sectors));
        let entry = self.entry(unit);
        let near = entry.cursor.is_none_or(|cursor| cursor.abs_diff(request.lba) <= NEAR_SECTORS);
        let cost = u128::from(costs.of(sectors, request.write, near));
        // Rounded up, so that no unit gains by many small ones.
        entry.tag += (cost * WHOLE).div_ceil(part);
        entry.cursor = Some(request.lba + sectors);
    }

    /// The unit that goes next. The kernel comes before all: it is never charged, so that no tag is less than its.
    fn lightest(&self, queue: &Queue) -> Option<UnitId> {
        let key = |unit: &UnitId| {
            let unit = self.units.get(unit.index()).unwrap_or(&FRESH);
            (unit.tag, unit.last_turn)
        };
        queue.units().min_by_key(key)
    }
}

impl Order for Linux {
    fn defers(&self) -> bool {
        false
    }

    fn arrived(&mut self, _now: Time, unit: UnitId, _queue: &Queue) {
        if unit != UnitId::KERNEL {
            self.activate(unit);
        }
    }

    fn choose(&mut self, _now: Time, head: u64, queue: &Queue) -> Choice {
        if !self.weighs {
            return queue.first().into();
        }
        let Some(unit) = self.lightest(queue) else { return Choice::Nothing };
        if !self.sweeps {
            return queue.oldest(unit).map(|place| (unit, place)).into();
        }
        let overtaken = queue.overtaken(unit).map(|place| (unit, place));
        overtaken.or_else(|| queue.sweep([unit].into_iter(), head)).into()
    }

    fn handed(&mut self, now: Time, unit: UnitId, request: &Request) {
        if unit == UnitId::KERNEL {
            return;
        }
        self.turn += 1;
        let turn = self.turn;
        let entry = self.entry(unit);
        let start = entry.tag;
        entry.in_device += 1;
        entry.last_turn = turn;
        self.virtual_time = self.virtual_time.max(start);
        self.charge(now, unit, request);
    }

    fn owe(&mut self, now: Time, unit: UnitId, request: &Request, queue: &Queue) {
        if unit == UnitId::KERNEL {
            return;
        }
        self.activate(unit);
        self.charge(now, unit, request);
        self.rest_if_idle(now, unit, queue);
    }

    fn weigh(&mut self, unit: UnitId, weight: u32) {
        self.entry(unit).weight = weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        self.is_stale = true;
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, queue: &Queue) {
        let unit = transfer.turn_of;
        if unit == UnitId::KERNEL {
            return;
        }
        self.entry(unit).in_device -= 1;
        self.rest_if_idle(now, unit, queue);
    }
}
