//! YFQ: fair queueing by virtual finish times, in batches that are served by head position.
//!
//! Problem: each unit should get its share of the sectors, but a disk that alternates between units seeks for
//! each request.
//!
//! Terms:
//! - A unit's *head* is the oldest of its waiting requests that were not chosen yet.
//! - The *start tag* of a head is the finish tag of the unit's request before it, or virtual time if that is
//!   later.
//! - Its *finish tag* is its start tag plus its sectors divided by the unit's share.
//! - *Virtual time* is the smallest start tag among heads and among chosen requests that have not completed.
//!   When the disk has nothing to do, all tags are reset.
//!
//! Algorithm: a batch is filled up to its size; each time, the head with the smallest finish tag is chosen.
//! The batch is served in the order of the sweep. The next batch is chosen when all requests of this batch
//! have completed, or [`RESUBMISSION_NS`] later unless the unit whose request was the last has another by
//! then ([`BatchChosen`]). On a disk that serves several requests at once, a batch has at least as many. The
//! kernel's requests go first, and delayed writes when no unit waits.
//!
//! Properties: units that always have waiting requests get sectors by share, to within a batch and a request.
//! A unit that was idle has no claim to the share that it did not use. A request waits for its batch, and for
//! the heads with smaller tags.
//!
//! Limits: a unit that has one request at a time gets at most one request in each batch, even if its share of
//! a batch is larger; and none in the batch after one in which its request was the last, if batches are
//! chosen at completion. After resubmission, the disk is idle before each batch, for as long as a process
//! takes to send a request. The larger the batches, the fewer seeks, and the coarser the shares. Sectors are
//! counted, not seeks. Cost: O(units with waiting requests) and O(log n) for each request.
//!
//! Source: seed 004, section 5.4, which takes it from Bruno, Brustoloni, Gabber, Ozden and Silberschatz
//! (1999).

use commonhold_contract::UnitId;
use commonhold_policy::disk::fairness::weights;

use super::{Choice, Order, Transfer};
use crate::Time;
use crate::disk::queue::{Place, Queue};
use crate::scenario::BatchChosen;

/// The time within which a process that is woken, and runs at once, sends its next request: three times our
/// estimate of the CPU time for a page fault that reads (`scenarios/tickets-disk`).
const RESUBMISSION_NS: Time = 1_000_000;

/// Sectors divided by a share, in units of 2^-64.
type Tag = u128;

/// The policy's state.
#[derive(Debug)]
pub(super) struct Yfq {
    /// The size of a batch, in requests.
    size: usize,
    units: Vec<Unit>,
    /// The requests of the batch that have not been started.
    batch: Vec<(UnitId, Place)>,
    /// The units and start tags of the requests of the batch that have not completed.
    chosen: Vec<(UnitId, Tag)>,
    virtual_time: Tag,
    chosen_when: BatchChosen,
    /// The unit whose request was the last of its batch, and until when its next request is awaited.
    awaited: Option<(UnitId, Time)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    weight: u64,
    /// The start tag of the head, if the unit has one.
    start: Tag,
    /// The finish tag of the head; without a head, of the last chosen request.
    finish: Tag,
    /// Whether the unit has a head.
    waits: bool,
}

impl Yfq {
    /// The policy for an idle disk, with batches of `size` requests.
    pub(super) fn new(shares: &[u64], size: usize, chosen_when: BatchChosen) -> Yfq {
        let mut yfq = Yfq {
            size,
            units: Vec::new(),
            batch: Vec::new(),
            chosen: Vec::new(),
            virtual_time: 0,
            chosen_when,
            awaited: None,
        };
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

    /// Makes the oldest request of a unit that was not chosen its head, and computes the tags.
    fn update_head(&mut self, unit: UnitId, queue: &Queue) {
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

    /// Until when the next batch is put off, if a unit's next request is awaited and others wait.
    fn put_off_until(&self, now: Time, queue: &Queue) -> Option<Time> {
        let (unit, until) = self.awaited?;
        let others_wait = queue.units().any(|unit| !unit.is_common());
        (others_wait && !queue.has(unit) && now < until).then_some(until)
    }

    /// Fills the batch with heads, in the order of their finish tags.
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
            self.update_head(unit, queue);
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
            self.update_head(unit, queue);
        }
    }

    fn choose(&mut self, now: Time, head: u64, queue: &Queue) -> Choice {
        if queue.has(UnitId::KERNEL) {
            return queue.sweep([UnitId::KERNEL].into_iter(), head).into();
        }
        if self.chosen.is_empty() {
            if let Some(until) = self.put_off_until(now, queue) {
                return Choice::WaitUntil(until);
            }
            self.fill(queue);
        }
        let sweep_order = |place: &Place| (place.lba < head, *place);
        let next = (0..self.batch.len()).min_by_key(|index| sweep_order(&self.batch[*index].1));
        match next.map(|index| self.batch.swap_remove(index)) {
            Some((unit, place)) => Choice::Serve(unit, place),
            // The whole batch has been started, and some of it has not completed.
            None if !self.chosen.is_empty() => Choice::Nothing,
            None => queue.sweep([UnitId::SHARED].into_iter().filter(|unit| queue.has(*unit)), head).into(),
        }
    }

    fn ended(&mut self, now: Time, transfer: &Transfer, queue: &Queue) {
        let served = transfer.scheduled_unit;
        if let Some(index) = self.chosen.iter().position(|(unit, _)| *unit == served) {
            self.chosen.swap_remove(index);
            if self.chosen.is_empty() && self.chosen_when == BatchChosen::AfterResubmission {
                self.awaited = Some((served, now + RESUBMISSION_NS));
            }
        }
        self.advance_virtual_time(queue);
    }
}
