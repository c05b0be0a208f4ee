//! The waiting requests, by unit, ordered by sector and by age.
//!
//! Every unit has its own queue with two orders: by sector, for sweeps of the head, and by arrival. A query
//! takes O(log n) per unit with waiting requests, for n requests in that unit's queue.
//!
//! Delayed writes wait as [`UnitId::SHARED`]. A policy may put them last; then [`Queue::promote`] bounds
//! their wait: a write that has waited too long becomes a request of the unit that owns most of its sectors,
//! which is scheduled and charged for it. So old writes of a heavy unit do not delay a light unit. A write
//! without an owner becomes the kernel's, which is not restricted.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::UnitId;

use super::Request;
use crate::Time;

/// A request's position in the sweep, ordered by sector and then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) lba: u64,
    seq: u64,
}

/// A waiting request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) arrived: Time,
    /// How many requests of its unit had been served when it arrived.
    taken_before: u64,
}

#[derive(Debug, Clone, Default)]
struct UnitQueue {
    by_place: BTreeMap<Place, Waiting>,
    /// The arrival number and sector of each request.
    by_age: BTreeSet<(u64, u64)>,
    /// How many requests were taken from the queue so far.
    taken: u64,
}

/// All units' queues.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    units: Vec<UnitQueue>,
    /// The units with waiting requests.
    waiting: BTreeSet<UnitId>,
    len: u64,
    arrivals: u64,
}

impl Queue {
    /// The number of waiting requests.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Adds a request that arrived at this time, to be scheduled as one of `unit`, which may differ from the
    /// request's unit.
    pub(super) fn push(&mut self, unit: UnitId, arrived: Time, request: Request) {
        let place = Place { lba: request.lba, seq: self.arrivals };
        self.arrivals += 1;
        self.len += 1;
        self.insert(unit, place, Waiting { request, arrived, taken_before: 0 });
    }

    /// Removes a request; `place` is a result of one of this queue's queries.
    pub(super) fn take(&mut self, unit: UnitId, place: Place) -> Option<Waiting> {
        let queue = self.units.get_mut(unit.index())?;
        let waiting = queue.by_place.remove(&place)?;
        queue.by_age.remove(&(place.seq, place.lba));
        queue.taken += 1;
        if queue.by_place.is_empty() {
            self.waiting.remove(&unit);
        }
        self.len -= 1;
        Some(waiting)
    }

    /// The sectors of all waiting requests. O(n).
    pub(super) fn sectors(&self) -> u64 {
        let all = self.units.iter().flat_map(|queue| queue.by_place.values());
        all.map(|waiting| u64::from(waiting.request.sectors)).sum()
    }

    /// The units with waiting requests, by index.
    pub(super) fn units(&self) -> impl Iterator<Item = UnitId> + Clone {
        self.waiting.iter().copied()
    }

    /// Whether `unit` has a waiting request.
    pub(super) fn has(&self, unit: UnitId) -> bool {
        self.waiting.contains(&unit)
    }

    /// The oldest request of `unit`.
    pub(super) fn oldest(&self, unit: UnitId) -> Option<Place> {
        let (seq, lba) = *self.units.get(unit.index())?.by_age.first()?;
        Some(Place { lba, seq })
    }

    /// The requests of `unit`, oldest first.
    pub(super) fn by_age(&self, unit: UnitId) -> impl Iterator<Item = (Place, &Request)> {
        let queue = self.units.get(unit.index());
        let aged = move |(seq, lba): &(u64, u64)| {
            let place = Place { lba: *lba, seq: *seq };
            queue?.by_place.get(&place).map(|waiting| (place, &waiting.request))
        };
        queue.into_iter().flat_map(|queue| &queue.by_age).filter_map(aged)
    }

    /// The oldest request of all units.
    pub(super) fn first(&self) -> Option<(UnitId, Place)> {
        let oldest = self.units().filter_map(|unit| self.oldest(unit).map(|place| (unit, place)));
        oldest.min_by_key(|(_, place)| place.seq)
    }

    /// The next request in the sweep among those of `units`: the closest at or ahead of `head`; if no request
    /// is ahead, the first on the disk.
    pub(super) fn sweep(
        &self,
        units: impl Iterator<Item = UnitId> + Clone,
        head: u64,
    ) -> Option<(UnitId, Place)> {
        let from = Place { lba: head, seq: 0 };
        let closest = |unit: UnitId| self.units[unit.index()].by_place.range(from..).next();
        let first = |unit: UnitId| self.units[unit.index()].by_place.first_key_value();
        let ahead = units.clone().filter_map(|unit| closest(unit).map(|(place, _)| (*place, unit))).min();
        ahead
            .or_else(|| units.filter_map(|unit| first(unit).map(|(place, _)| (*place, unit))).min())
            .map(|(place, unit)| (unit, place))
    }

    /// The oldest request of `unit`, if too many of the unit's requests have overtaken it: more than 16 plus
    /// four times the number that wait now. In a sweep over a queue of constant length, about twice that
    /// number overtake the longest wait.
    pub(super) fn overtaken(&self, unit: UnitId) -> Option<Place> {
        let queue = self.units.get(unit.index())?;
        let oldest = self.oldest(unit)?;
        let since = queue.taken - queue.by_place.get(&oldest)?.taken_before;
        (since > 4 * queue.by_place.len() as u64 + 16).then_some(oldest)
    }

    /// Moves delayed writes that have waited for `limit_ns` to their main owners' queues. Returns these
    /// owners.
    pub(super) fn promote(&mut self, now: Time, limit_ns: Time) -> Vec<UnitId> {
        let mut owners = Vec::new();
        while let Some(place) = self.oldest(UnitId::SHARED) {
            let queue = &mut self.units[UnitId::SHARED.index()];
            if queue.by_place.get(&place).is_none_or(|w| now.saturating_sub(w.arrived) < limit_ns) {
                break;
            }
            queue.by_age.remove(&(place.seq, place.lba));
            let Some(waiting) = queue.by_place.remove(&place) else { break };
            if queue.by_place.is_empty() {
                self.waiting.remove(&UnitId::SHARED);
            }
            let owner = main_owner(&waiting.request).unwrap_or(UnitId::KERNEL);
            self.insert(owner, place, waiting);
            owners.push(owner);
        }
        owners
    }

    fn insert(&mut self, unit: UnitId, place: Place, waiting: Waiting) {
        if unit.index() >= self.units.len() {
            self.units.resize(unit.index() + 1, UnitQueue::default());
        }
        let queue = &mut self.units[unit.index()];
        queue.by_age.insert((place.seq, place.lba));
        queue.by_place.insert(place, Waiting { taken_before: queue.taken, ..waiting });
        self.waiting.insert(unit);
    }
}

/// The unit that owns most sectors of a delayed write; of equals, the first. `None` if only the built-in
/// units own it.
pub(super) fn main_owner(request: &Request) -> Option<UnitId> {
    let owners = request.owners.iter().filter(|(unit, _)| !unit.is_common());
    owners.min_by_key(|(unit, sectors)| (std::cmp::Reverse(*sectors), *unit)).map(|(unit, _)| *unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);

    fn request(unit: UnitId, lba: u64) -> Request {
        Request { id: 0, unit, lba, sectors: 8, write: false, owners: Vec::new() }
    }

    fn queue(of: &[(UnitId, u64)]) -> Queue {
        let mut queue = Queue::default();
        for (unit, lba) in of {
            queue.push(*unit, 0, request(*unit, *lba));
        }
        queue
    }

    /// Takes all in the order of the sweep.
    fn swept(queue: &mut Queue, mut head: u64) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some((unit, place)) = queue.sweep(queue.units(), head) {
            queue.take(unit, place);
            head = place.lba + 8;
            order.push(place.lba);
        }
        order
    }

    #[test]
    fn a_sweep_goes_up_and_starts_over() {
        // From 50: 50 is at the head, then 90, 100; then from the first on: 10, 49. 90 and 94 overlap: 94
        // waits for 98.
        let mut queue = queue(&[(A, 100), (B, 50), (A, 10), (A, 90), (B, 49), (B, 94)]);
        assert_eq!(swept(&mut queue, 50), [50, 90, 100, 10, 49, 94]);
        assert_eq!((queue.len(), queue.units().count()), (0, 0));
    }

    #[test]
    fn the_same_sector_goes_by_arrival() {
        let mut queue = queue(&[(B, 7), (A, 7)]);
        let (unit, place) = queue.sweep(queue.units(), 0).unwrap();
        assert_eq!(unit, B);
        queue.take(unit, place);
        assert_eq!(queue.sweep(queue.units(), 8).unwrap().0, A);
    }

    #[test]
    fn nobody_is_overtaken_for_ever() {
        // One at 900 waits while others come at 100: with it and one more waiting, 4 * 2 + 16 = 24 may go
        // before.
        let mut queue = queue(&[(A, 900)]);
        let mut overtakers = 0;
        loop {
            queue.push(A, 0, request(A, 100));
            if let Some(place) = queue.overtaken(A) {
                assert_eq!(place.lba, 900);
                break;
            }
            let (unit, place) = queue.sweep([A].into_iter(), 0).unwrap();
            assert_eq!(place.lba, 100);
            queue.take(unit, place);
            overtakers += 1;
        }
        assert_eq!(overtakers, 25);
    }

    #[test]
    fn old_delayed_writes_go_to_their_main_owner() {
        let mut queue = Queue::default();
        let owned =
            |owners: &[(UnitId, u32)]| Request { owners: owners.to_vec(), ..request(UnitId::SHARED, 5) };
        queue.push(UnitId::SHARED, 0, owned(&[(A, 3), (B, 5)]));
        queue.push(UnitId::SHARED, 10, owned(&[(UnitId::SHARED, 8)]));
        queue.push(UnitId::SHARED, 11, owned(&[(A, 4), (B, 4)]));
        assert_eq!(queue.promote(99, 100), []);
        assert_eq!(queue.promote(110, 100), [B, UnitId::KERNEL]);
        assert!(queue.has(B) && queue.has(UnitId::KERNEL) && queue.has(UnitId::SHARED));
        assert_eq!(queue.promote(111, 100), [A]);
        assert!(!queue.has(UnitId::SHARED));
        assert_eq!(queue.len(), 3);
    }
}
