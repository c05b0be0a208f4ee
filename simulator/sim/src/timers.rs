//! What happens when: one timer per thing that can happen, such as a CPU's next moment, a task's wake-up, a disk's
//! next transfer.
//!
//! A timer that is set again moves. So nothing in the queue is ever out of date, and the queue never holds more
//! entries than there are things. It is a four-ary heap over (time, number), with each timer's place in it. Setting,
//! moving and taking the first are O(log n). Two timers of one moment go off in the order of their numbers, whatever
//! was done before. A timer that has gone off keeps its place until the next one is asked for: mostly it is set again
//! by then, and has only to sink.

use crate::Time;

/// A timer's number: an index.
pub(crate) type TimerId = u32;

const NOWHERE: u32 = u32::MAX;
const WAYS: usize = 4;

/// When a timer goes off, and its number: as one number, so that the order of two is one comparison without a branch.
type Key = u128;

fn key(at: Time, id: TimerId) -> Key {
    u128::from(at) << 32 | u128::from(id)
}

/// The lower half of a key is the number, and the time stands above it.
#[expect(clippy::cast_possible_truncation, reason = "that is what the key is made of")]
fn parts(key: Key) -> (Time, TimerId) {
    ((key >> 32) as Time, key as TimerId)
}

/// Timers by time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<Key>,
    /// Where in the heap a timer is.
    places: Vec<u32>,
    /// It has gone off, and was not set since: it is still in the heap.
    gone_off: Option<TimerId>,
}

impl Timers {
    /// Sets a timer, or moves it.
    pub(crate) fn set(&mut self, id: TimerId, at: Time) {
        if self.gone_off == Some(id) {
            self.gone_off = None;
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

    /// The timer goes off no more.
    pub(crate) fn clear(&mut self, id: TimerId) {
        if self.gone_off == Some(id) {
            self.gone_off = None;
        }
        if let Some(place) = self.places.get(id as usize)
            && *place != NOWHERE
        {
            self.remove(*place as usize);
        }
    }

    /// When a timer goes off.
    #[cfg(test)]
    pub(crate) fn at(&self, id: TimerId) -> Option<Time> {
        let place = *self.places.get(id as usize)?;
        (place != NOWHERE && self.gone_off != Some(id)).then(|| parts(self.heap[place as usize]).0)
    }

    /// The first timer, which goes off: it is not set any more.
    pub(crate) fn pop(&mut self) -> Option<(Time, TimerId)> {
        if let Some(id) = self.gone_off.take() {
            self.remove(self.places[id as usize] as usize);
        }
        let first = parts(*self.heap.first()?);
        self.gone_off = Some(first.1);
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

    /// Puts a timer at this place or above it, wherever it belongs.
    fn rise(&mut self, mut place: usize, key: Key) {
        while place > 0 {
            let above = (place - 1) / WAYS;
            if self.heap[above] <= key {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, key);
    }

    /// Puts a timer at this place or below it, wherever it belongs.
    fn sink(&mut self, mut place: usize, key: Key) {
        loop {
            let first = place * WAYS + 1;
            // Mostly all four are there, which is one check for all of them.
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
                prop_assert_eq!(timers.at(id), model.get(&id).copied());
            }
        }
    }
}
