//! What happens when: one timer per thing that can happen (a CPU's next moment, a task's wake-up, a disk's next transfer).
//!
//! A timer that is set again moves; so nothing in the queue is ever out of date, and it never holds more than there are
//! things. A four-ary heap over (time, number), with each timer's place in it: setting, moving and taking the first are
//! O(log n), and two timers of one moment go off in the order of their numbers, whatever was done before.

use crate::Time;

/// A timer's number: an index.
pub(crate) type TimerId = u32;

const NOWHERE: u32 = u32::MAX;
const WAYS: usize = 4;

/// Timers by time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Time, TimerId)>,
    /// Where in the heap a timer is.
    places: Vec<u32>,
}

impl Timers {
    /// Sets a timer, or moves it.
    pub(crate) fn set(&mut self, id: TimerId, at: Time) {
        if id as usize >= self.places.len() {
            self.places.resize(id as usize + 1, NOWHERE);
        }
        let place = self.places[id as usize];
        if place == NOWHERE {
            self.heap.push((at, id));
            self.rise(self.heap.len() - 1);
        } else {
            let before = self.heap[place as usize].0;
            self.heap[place as usize].0 = at;
            if at < before { self.rise(place as usize) } else { self.sink(place as usize) }
        }
    }

    /// The timer goes off no more.
    pub(crate) fn clear(&mut self, id: TimerId) {
        let Some(place) = self.places.get(id as usize).copied().filter(|place| *place != NOWHERE) else {
            return;
        };
        self.remove(place as usize);
    }

    /// When a timer goes off.
    #[cfg(test)]
    pub(crate) fn at(&self, id: TimerId) -> Option<Time> {
        let place = *self.places.get(id as usize)?;
        (place != NOWHERE).then(|| self.heap[place as usize].0)
    }

    /// The first timer, taken out.
    pub(crate) fn pop(&mut self) -> Option<(Time, TimerId)> {
        let first = *self.heap.first()?;
        self.remove(0);
        Some(first)
    }

    /// The first timer's time.
    #[cfg(test)]
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|(at, _)| *at)
    }

    fn remove(&mut self, place: usize) {
        let (at, id) = self.heap[place];
        self.places[id as usize] = NOWHERE;
        let Some(last) = self.heap.pop() else { return };
        if place < self.heap.len() {
            self.heap[place] = last;
            if last < (at, id) { self.rise(place) } else { self.sink(place) }
        }
    }

    fn rise(&mut self, mut place: usize) {
        let item = self.heap[place];
        while place > 0 {
            let above = (place - 1) / WAYS;
            if self.heap[above] <= item {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, item);
    }

    fn sink(&mut self, mut place: usize) {
        let item = self.heap[place];
        loop {
            let first = place * WAYS + 1;
            let Some(least) =
                (first..(first + WAYS).min(self.heap.len())).min_by_key(|below| self.heap[*below])
            else {
                break;
            };
            if item <= self.heap[least] {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, item);
    }

    fn put(&mut self, place: usize, item: (Time, TimerId)) {
        self.heap[place] = item;
        self.places[item.1 as usize] = u32::try_from(place).unwrap_or(NOWHERE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a sorted list: whatever is set, moved and cleared, the first is the first.
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
                prop_assert_eq!(timers.first(), model.values().min().copied());
                prop_assert_eq!(timers.at(id), model.get(&id).copied());
            }
        }
    }
}
