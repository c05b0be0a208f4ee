//! The event queue: one timer for each source of events, such as a CPU, a sleeping task or a disk.
//!
//! Setting a timer again moves it. So the queue has no stale entries, and at most one entry per source. The
//! queue is a four-ary heap ordered by (time, number), with an index of each timer's position in the heap.
//! Setting, moving and removing the first timer are O(log n). Timers of the same time expire in the order of
//! their numbers, whatever the order in which they were set. An expired timer stays in the heap until the
//! next call of [`Timers::pop`]: usually it has been set again by then, and a move is cheaper than a removal
//! and an insertion.

use crate::Time;

/// A timer's number: an index.
pub type TimerId = u32;

/// The position of a timer that is not in the heap.
const NOWHERE: u32 = u32::MAX;
/// The number of children of each node of the heap.
const WAYS: usize = 4;

/// A timer's expiry time and number as one integer, so that two timers are compared without a branch.
type Key = u128;

fn key(at: Time, id: TimerId) -> Key {
    u128::from(at) << 32 | u128::from(id)
}

/// The expiry time and number of a key: the number is in the lowest 32 bits, the time above them.
#[expect(clippy::cast_possible_truncation, reason = "that is what the key is made of")]
fn parts(key: Key) -> (Time, TimerId) {
    ((key >> 32) as Time, key as TimerId)
}

/// Timers by time.
#[derive(Debug, Default)]
pub struct Timers {
    heap: Vec<Key>,
    /// By timer: its position in the heap, or [`NOWHERE`].
    places: Vec<u32>,
    /// The timer that expired last, if it was not set again since. It is still in the heap.
    expired: Option<TimerId>,
}

impl Timers {
    /// Sets a timer, or moves it.
    pub fn set(&mut self, id: TimerId, at: Time) {
        if self.expired == Some(id) {
            self.expired = None;
        }
        if id as usize >= self.places.len() {
            self.places.resize(id as usize + 1, NOWHERE);
        }
        let place = self.places[id as usize] as usize;
        let new = key(at, id);
        match self.heap.get(place).copied() {
            None => {
                self.heap.push(new);
                self.rise(self.heap.len() - 1, new);
            }
            Some(old) if new < old => self.rise(place, new),
            Some(_) => self.sink(place, new),
        }
    }

    /// Cancels a timer.
    pub fn clear(&mut self, id: TimerId) {
        if self.expired == Some(id) {
            self.expired = None;
        }
        if let Some(place) = self.places.get(id as usize)
            && *place != NOWHERE
        {
            self.remove(*place as usize);
        }
    }

    /// When a timer expires; `None` if it is not set.
    #[cfg(test)]
    pub(crate) fn at(&self, id: TimerId) -> Option<Time> {
        let place = *self.places.get(id as usize)?;
        (place != NOWHERE && self.expired != Some(id)).then(|| parts(self.heap[place as usize]).0)
    }

    /// Expires the first timer. Returns its time and number; `None` if no timer is set.
    pub fn pop(&mut self) -> Option<(Time, TimerId)> {
        if let Some(id) = self.expired.take() {
            self.remove(self.places[id as usize] as usize);
        }
        let first = parts(*self.heap.first()?);
        self.expired = Some(first.1);
        Some(first)
    }

    fn remove(&mut self, place: usize) {
        let old = self.heap[place];
        self.places[parts(old).1 as usize] = NOWHERE;
        if let Some(last) = self.heap.pop()
            && place < self.heap.len()
        {
            if last < old { self.rise(place, last) } else { self.sink(place, last) }
        }
    }

    /// Puts a key at this place of the heap, or moves it up past larger keys.
    fn rise(&mut self, mut place: usize, key: Key) {
        while place > 0 {
            let parent = (place - 1) / WAYS;
            if self.heap[parent] <= key {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, key);
    }

    /// Puts a key at this place of the heap, or moves it down past smaller keys.
    fn sink(&mut self, mut place: usize, key: Key) {
        loop {
            let first = place * WAYS + 1;
            // Usually the node has all four children, and one bounds check suffices for them.
            let (least, at) = match self.heap.get(first..first + WAYS) {
                Some(&[a, b, c, d]) => {
                    let (left, at_left) = if b < a { (b, first + 1) } else { (a, first) };
                    let (right, at_right) = if d < c { (d, first + 3) } else { (c, first + 2) };
                    if right < left { (right, at_right) } else { (left, at_left) }
                }
                _ => match (first..self.heap.len()).map(|at| (self.heap[at], at)).min() {
                    Some(least) => least,
                    None => break,
                },
            };
            if key <= least {
                break;
            }
            self.put(place, least);
            place = at;
        }
        self.put(place, key);
    }

    fn put(&mut self, place: usize, key: Key) {
        self.heap[place] = key;
        self.places[parts(key).1 as usize] = u32::try_from(place).unwrap_or(NOWHERE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Random sequences of set, clear and pop give the same results as a sorted map.
        #[test]
        fn the_first_goes_off_first(acts in proptest::collection::vec((0u32..40, 0u64..100, 0u8..4), 1..300)) {
            let (mut timers, mut model) = (Timers::default(), BTreeMap::new());
            for (id, at, act) in acts {
                match act {
                    0 | 1 => {
                        timers.set(id, at);
                        model.insert(id, at);
                    }
                    2 => {
                        timers.clear(id);
                        model.remove(&id);
                    }
                    _ => {
                        let first = model.iter().map(|(id, at)| (*at, *id)).min();
                        prop_assert_eq!(timers.pop(), first);
                        if let Some((_, id)) = first {
                            model.remove(&id);
                        }
                    }
                }
                prop_assert_eq!(timers.at(id), model.get(&id).copied());
            }
        }
    }
}
