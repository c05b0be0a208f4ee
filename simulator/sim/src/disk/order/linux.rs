//! The scheduling of Linux's block layer: by weight, as io.cost does it, or by arrival.
//!
//! Problem: a program that enforces shares on Linux cannot choose the next request. It can give control
//! groups weights, or rate limits if weights are ignored (see `gates`). The effect of its orders depends on
//! the kernel.
//!
//! Terms:
//! - A request's *cost* is the disk time that it is expected to take, by direction, size, and whether it
//!   begins within 16 MiB of the end of its unit's last request. The cost is an estimate, as io.cost's is.
//! - A unit is *active* while it has requests here or in the device, and for a *period* after. The period is
//!   twice the time that a small request takes among 64 others, and between 10 and 500 ms.
//! - A unit's *part* of the disk is a product over the units from it up to the top: each one's weight over
//!   the sum of the weights of its active siblings. A unit's own processes count as one more sibling of its
//!   sub-units, with weight 100. All units are in one control group. `shared` is beside that group, with
//!   weight 100 against the group's 100, whatever the units' weights.
//! - A unit's *tag* is the sum of the costs of its requests, each divided by the unit's part at that moment.
//!   *Virtual time* is the tag of the unit that was chosen last, before that request. It never decreases.
//!
//! Algorithm on a disk that honours weights: the unit with the smallest tag goes next; of equals, the least
//! recently chosen. On a disk with an arm, the sweep chooses among the unit's requests; otherwise the oldest
//! goes. A unit that gets a request after it had none keeps its tag, but is at most half a period behind
//! virtual time. The kernel's own requests go first, without a charge. Writes to swap go first too, charged
//! to their units.
//!
//! On a disk that ignores weights, requests go to the device in order of arrival.
//!
//! Delayed writes are their main owner's requests from the start, as on file systems that support write-back
//! by control group.
//!
//! Properties (tested):
//! - Of units that always have waiting requests, each gets its part of the cost, to within a request each.
//! - The disk does not idle while a request waits here.
//! - The share that a unit does not use is divided among all others by part, not among its siblings first.
//!
//! Limits: io.cost limits the disk's load, so that a tenth of it idles, and lowers the weights of units that
//! use little of their parts. Neither is modelled. The estimate does not charge a unit for the arm's return
//! from another unit's requests; on a disk with an arm, units alternate with a seek each. Cost: O(active
//! units) and O(log n) per request.
//!
//! Source: block/blk-iocost.c; start-time fair queueing (Goyal, Vin and Cheng 1996) for tags and virtual
//! time.

use std::collections::BTreeSet;

use commonhold_contract::UnitId;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::Request;
use crate::disk::mechanics::{Costs, Mechanics};
use crate::disk::queue::Queue;

/// The default weight, also that of a unit's own processes among its sub-units; and the bounds of all
/// weights.
const USUAL: u32 = 100;
const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1_000;
/// The whole disk, as the unit of parts.
const WHOLE: u128 = 1 << 32;
/// A request within this distance of the end of the unit's last request counts as sequential.
const NEAR_SECTORS: u64 = (16 << 20) / 512;
/// A period is twice the time of [`CROWD`] reads of this size, within [`PERIOD_NS`].
const SMALL_SECTORS: u64 = 8;
const CROWD: u64 = 64;
const PERIOD_NS: std::ops::RangeInclusive<Time> = 10_000_000..=500_000_000;

/// The scheduler's state.
#[derive(Debug)]
pub(in crate::disk) struct Linux {
    parents: Vec<Option<UnitId>>,
    /// Whether the disk honours weights, and whether it has an arm.
    weighs: bool,
    sweeps: bool,
    costs: Costs,
    period_ns: Time,
    units: Vec<Unit>,
    active: BTreeSet<UnitId>,
    /// The active units without requests, by the time when their last request ended.
    resting: BTreeSet<(Time, UnitId)>,
    /// The sum of the weights of active siblings: by unit around them, and at the top, without `shared`.
    within: Vec<u64>,
    at_top: u64,
    /// The sums are out of date, because the active units or their weights have changed.
    is_stale: bool,
    virtual_time: u128,
    turn: u64,
}

#[derive(Debug, Clone, Copy)]
struct Unit {
    weight: u32,
    tag: u128,
    /// Whether it has requests here or in the device.
    is_busy: bool,
    /// The number of its requests in the device.
    in_device: u32,
    /// When its last request ended, while it is active without requests.
    rested_at: Option<Time>,
    /// The sector at the end of its last request.
    cursor: Option<u64>,
    last_turn: u64,
}

const FRESH: Unit =
    Unit { weight: USUAL, tag: 0, is_busy: false, in_device: 0, rested_at: None, cursor: None, last_turn: 0 };

impl Linux {
    /// A scheduler with default weights and no active unit. `parents` are by [`UnitId::index`]; a unit beyond
    /// the end of the list is at the top.
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

    /// A unit's weight; the default weight if it was not set.
    fn weight(&self, unit: UnitId) -> u64 {
        self.units.get(unit.index()).map_or(USUAL, |unit| unit.weight).into()
    }

    /// A unit has a request: makes it active, and limits how far its tag is behind virtual time.
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

    /// Begins a unit's rest if it has no request here or in the device.
    fn rest_if_idle(&mut self, now: Time, unit: UnitId, queue: &Queue) {
        let entry = self.entry(unit);
        if entry.in_device > 0 || queue.has(unit) {
            return;
        }
        entry.is_busy = false;
        entry.rested_at = Some(now);
        self.resting.insert((now, unit));
    }

    /// Ends the activity of units that have rested for a period.
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

    /// Recomputes the sums of active siblings' weights.
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

    /// The part of the disk of an active unit's own processes, in units of 1 / [`WHOLE`]; at least 1.
    fn part(&mut self, unit: UnitId) -> u128 {
        if self.is_stale {
            self.recount();
        }
        let both_active = self.at_top > 0 && self.active.contains(&UnitId::SHARED);
        let top_part = if both_active { WHOLE / 2 } else { WHOLE };
        if unit.is_common() {
            return top_part;
        }
        let weights_within = |unit: UnitId| self.within.get(unit.index()).copied().unwrap_or(0).max(1);
        let fraction = |part: u128, weight: u64, sum: u64| part * u128::from(weight) / u128::from(sum);
        let mut part = fraction(top_part, USUAL.into(), weights_within(unit));
        let mut next = Some(unit);
        while let Some(unit) = next {
            next = self.parent(unit);
            part = fraction(part, self.weight(unit), next.map_or(self.at_top.max(1), weights_within));
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
        // Rounded up, so that no unit gains by sending many small requests.
        entry.tag += (cost * WHOLE).div_ceil(part);
        entry.cursor = Some(request.lba + sectors);
    }

    /// The waiting unit with the smallest tag; of equals, the least recently chosen. The kernel goes first:
    /// it is never charged, so its tag stays 0.
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

    fn charge_urgent(&mut self, now: Time, unit: UnitId, request: &Request, queue: &Queue) {
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
        let unit = transfer.scheduled_unit;
        if unit == UnitId::KERNEL {
            return;
        }
        self.entry(unit).in_device -= 1;
        self.rest_if_idle(now, unit, queue);
    }
}
