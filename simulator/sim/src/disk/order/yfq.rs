//! YFQ: by virtual finish times, in batches that are served by head position.
//!
//! Problem: each unit is to have its share of the sectors, and a disk that goes from unit to unit seeks for each.
//!
//! Terms:
//! - A unit's *head* is the oldest of its requests that wait.
//! - The *start tag* of a head is the finish tag of the unit's request before it. If the unit was idle, it is virtual time,
//!   where that is later.
//! - Its *finish tag* is that plus its sectors, divided by the unit's share.
//! - *Virtual time* is the least start tag among heads, and among requests that were chosen and are not done. When the disk
//!   has nothing to do, all tags are forgotten.
//!
//! Algorithm: a batch takes requests up to its size, each time the head with the least finish tag. They are served in the
//! order of the sweep. The next batch is chosen when all of them are done. On a disk that serves several
//! side by side, a batch has at least as many. The kernel's requests go before all, and delayed writes when no unit waits.
//!
//! Properties: units that always have requests waiting get sectors by share, within a batch and a request. A unit that was idle
//! has no claim to what it did not use. A request waits for its batch, and for the heads that come before it.
//!
//! Limits: a unit that has one request at a time is in each batch once, at most. It may have a larger share than a part of
//! a batch; it does not get it. The larger the batches, the fewer seeks, and the coarser the shares. Sectors are counted,
//! not seeks. Cost: O(units waiting) and O(log n) for each request.
//!
//! Source: seed 004, section 5.4, which takes it from Bruno, Brustoloni, Gabber, Ozden and Silberschatz (1999).

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::weights;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::{Place, Queue};

/// Sectors by share, in 2^-64 of a sector.
type Tag = u128;

/// Tags, and the batch.
#[derive(Debug)]
pub(super) struct Yfq {
    size: usize,
    units: Vec<Unit>,
    /// Chosen, not begun.
    batch: Vec<(UnitId, Place)>,
    /// Units and start tags of what was chosen and is not done.
    chosen: Vec<(UnitId, Tag)>,
    virtual_time: Tag,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    weight: u64,
    /// The head's, where the unit waits.
    start: Tag,
    /// The head's; the last chosen request's where the unit does not wait.
    finish: Tag,
    waits: bool,
}

impl Yfq {
    /// For a disk on which all units are idle, with batches of `size` requests.
    pub(super) fn new(shares: &[u64], size: usize) -> Yfq {
        let mut yfq = Yfq { size, units: Vec::new(), batch: Vec::new(), chosen: Vec::new(), virtual_time: 0 };
        yfq.set_shares(shares);
        yfq
    }

    fn entry(&mut self, unit: UnitId) -> &mut Unit {
        if unit.index() >= self.units.len() {
            self.units.resize(unit.index() + 1, Unit { weight: 1, ..Unit::default() });
        }
        &mut self.units[unit.index()]
    }

    fn advance_virtual_time(&mut self, queue: &Queue) {
        let heads = queue.units().filter_map(|unit| self.units.get(unit.index()));
        let starts = heads.filter(|unit| unit.waits).map(|unit| unit.start);
        if let Some(least) = starts.chain(self.chosen.iter().map(|(_, start)| *start)).min() {
            self.virtual_time = self.virtual_time.max(least);
        } else {
            self.virtual_time = 0;
            self.units.iter_mut().for_each(|unit| (unit.start, unit.finish) = (0, 0));
        }
    }

    /// The unit's oldest that was not chosen becomes its head.
    fn tag(&mut self, unit: UnitId, queue: &Queue) {
        let head = queue.by_age(unit).find(|(place, _)| !self.batch.contains(&(unit, *place)));
        let sectors = head.map(|(_, request)| request.sectors);
        let virtual_time = self.virtual_time;
        let entry = self.entry(unit);
        entry.waits = sectors.is_some();
        if let Some(sectors) = sectors {
            entry.start = entry.finish.max(virtual_time);
            entry.finish = entry.start + (Tag::from(sectors) << 64) / Tag::from(entry.weight.max(1));
        }
    }

    /// Chooses a batch among the heads.
    fn fill(&mut self, queue: &Queue) {
        while self.batch.len() < self.size {
            let heads = queue.units().filter(|unit| !unit.is_common() && self.units[unit.index()].waits);
            let Some(unit) = heads.min_by_key(|unit| (self.units[unit.index()].finish, *unit)) else {
                return;
            };
            let head = queue.by_age(unit).find(|(place, _)| !self.batch.contains(&(unit, *place)));
            let Some((place, _)) = head else { return };
            self.batch.push((unit, place));
            self.chosen.push((unit, self.units[unit.index()].start));
            self.advance_virtual_time(queue);
            self.tag(unit, queue);
        }
    }
}

impl Order for Yfq {
    fn set_shares(&mut self, shares: &[u64]) {
        let weights = weights(shares);
        self.units.resize(self.units.len().max(weights.len()), Unit::default());
        for (unit, weight) in self.units.iter_mut().zip(weights) {
            unit.weight = weight;
        }
    }

    fn arrived(&mut self, _now: Time, unit: UnitId, queue: &Queue) {
        if !unit.is_common() && !self.entry(unit).waits {
            self.advance_virtual_time(queue);
            self.tag(unit, queue);
        }
    }

    fn choose(&mut self, _now: Time, head: u64, queue: &Queue) -> Choice {
        if queue.has(UnitId::KERNEL) {
            return queue.sweep([UnitId::KERNEL].into_iter(), head).into();
        }
        if self.chosen.is_empty() {
            self.fill(queue);
        }
        let ahead = |place: &Place| (place.lba < head, *place);
        let next = (0..self.batch.len()).min_by_key(|at| ahead(&self.batch[*at].1));
        match next.map(|at| self.batch.swap_remove(at)) {
            Some((unit, place)) => Choice::Serve(unit, place),
            // The rest of the batch is in the device.
            None if !self.chosen.is_empty() => Choice::Nothing,
            None => queue.sweep([UnitId::SHARED].into_iter().filter(|unit| queue.has(*unit)), head).into(),
        }
    }

    fn ended(&mut self, _now: Time, transfer: &Transfer, queue: &Queue) {
        if let Some(at) = self.chosen.iter().position(|(unit, _)| *unit == transfer.turn_of) {
            self.chosen.swap_remove(at);
        }
        self.advance_virtual_time(queue);
    }
}
