//! Whether requests queue in a device, by how long they take there.
//!
//! Problem: a unit that has one request at a time waits for all that others have in the device. No count of bytes tells
//! how long that is. A device that carries all that is asked of it answers at once. A device that is asked for a little
//! more has, after a while, all that its users may have under way.
//!
//! Algorithm:
//! - The kernel tells how many requests a device ended, and how long these took in all. This gives the mean time of a
//!   request since the last look. It also gives how many were in the device on the mean: their time over the time that
//!   passed.
//! - The least mean time seen is what requests *need*. It is forgotten by a part in 512 at a look, since other requests
//!   need another time. Requests count as needing at least a quarter of what their transfer takes at what the device
//!   carries: so little harms no unit.
//! - A queue is *long* when a quarter of a request waits on the mean. The time beyond five quarters of what requests
//!   need then comes to a quarter of the time that passed. A device that does many requests at once is not full as long
//!   as they take no longer.
//!
//! Why the number of requests is not the measure: take a job with one request at a time, beside another whose requests
//! come in bursts. Hardly one request is there on the mean, and it may be one that waits.
//!
//! Limits: it is the mean of all requests. So large requests of one unit are the measure for small ones of another.

use super::rates::{averaged, per_second};
use crate::rights::share::part_of;
use crate::snapshot::DeviceUse;
use crate::time::{MS, Time};

/// How long a mean time must take at least to say something: less is the clock's grain.
const GRAIN_NS: Time = MS / 20;

/// How long requests take in one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Queue {
    seen: Option<DeviceUse>,
    /// What a request needs, and took on the mean in the last interval.
    needed_ns: Time,
    took_ns: Time,
    /// A quarter of what the transfer of a mean request takes.
    grain_ns: Time,
    is_crowded: bool,
    is_long: bool,
    is_busy: bool,
    /// What the device did, in bytes per second, averaged.
    carried: Option<u64>,
}

impl Queue {
    /// Takes in what the device did in the last `elapsed` nanoseconds, which carries so many bytes per second as far as is
    /// known.
    pub(super) fn observe(&mut self, elapsed: Time, device: Option<DeviceUse>, capacity: u64) {
        let before = core::mem::replace(&mut self.seen, device);
        let (Some(now), Some(before)) = (device, before) else { return };
        if elapsed == 0 {
            return;
        }
        let requests = now.requests.saturating_sub(before.requests);
        let taken_ns = now.taken_ns.saturating_sub(before.taken_ns);
        let bytes = now.bytes.saturating_sub(before.bytes);
        let bytes_per_s = per_second(bytes, elapsed);
        self.is_busy = now.busy_ns.saturating_sub(before.busy_ns) >= elapsed - elapsed / 16;
        self.carried = Some(averaged(self.carried.unwrap_or(0), bytes_per_s, elapsed));
        if requests == 0 {
            // Nothing ends, and something is there: it takes longer all the time.
            self.took_ns = if now.under_way > 0 { self.took_ns.saturating_add(elapsed) } else { 0 };
            self.is_long = now.under_way > 1 && self.excess_of(self.took_ns) > 0;
            return;
        }
        self.took_ns = taken_ns / requests;
        self.grain_ns = match capacity {
            0 => GRAIN_NS,
            capacity => part_of(bytes / requests, 1_000 * MS, capacity) / 4,
        };
        // What waits tells nothing of what it needs.
        let forgotten = if self.is_crowded { 0 } else { self.needed_ns / 512 };
        self.needed_ns = match self.needed_ns {
            // At first, as if the device did one at a time.
            0 => (elapsed / requests).min(self.took_ns),
            needed => needed.saturating_add(forgotten).min(self.took_ns),
        }
        .max(GRAIN_NS);
        self.is_crowded = taken_ns > elapsed.saturating_add(elapsed / 4);
        let waited_ns = requests.saturating_mul(self.excess_of(self.took_ns));
        self.is_long = waited_ns > elapsed / 4;
    }

    /// By how much requests take longer than five quarters of what they need; 0 where the queue is short, or not known.
    pub(super) fn excess_ns(&self) -> Time {
        if self.is_long { self.excess_of(self.took_ns) } else { 0 }
    }

    /// Whether the queue is long and never empty: what the device does then is what it carries.
    pub(super) fn is_full(&self) -> bool {
        self.is_busy && self.excess_ns() > 0
    }

    /// Whether more than one request and a quarter were there on the mean.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// What the device did, in bytes per second, averaged; what was sent to it and waits there is not in that.
    pub(super) fn carried(&self) -> Option<u64> {
        self.carried
    }

    /// How long what is in the device takes until it is done, where that is more than one request: as long as the last ones
    /// took.
    pub(super) fn backlog_ns(&self) -> Time {
        if self.is_crowded { self.took_ns } else { 0 }
    }

    /// Nothing more can be done about a queue that is long: perhaps requests need more than was thought.
    pub(super) fn relent(&mut self) {
        self.needed_ns = self.needed_ns.saturating_add(self.needed_ns / 32);
    }

    /// What is left of `rate` if what is queued is to go within that time, where a queue is long: at least so much less, and
    /// at most by half.
    pub(super) fn drained(&self, rate: u64, within_ns: Time, least: u64) -> u64 {
        match self.excess_ns() {
            0 => rate,
            excess => {
                rate - part_of(rate, excess.min(within_ns), within_ns).clamp(least.min(rate / 2), rate / 2)
            }
        }
    }

    fn excess_of(&self, took_ns: Time) -> Time {
        let needed = self.needed_ns.max(self.grain_ns);
        took_ns.saturating_sub(needed.saturating_add(needed / 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue after looks every 100 ms, of each of which: requests that ended, what each took in microseconds.
    fn seen(looks: &[(u64, u64)]) -> Queue {
        let (mut queue, mut device) = (Queue::default(), DeviceUse::default());
        queue.observe(0, Some(device), 0);
        for (requests, took_us) in looks {
            device.requests += requests;
            device.taken_ns += requests * took_us * 1_000;
            device.under_way = 2;
            queue.observe(100 * MS, Some(device), 0);
        }
        queue
    }

    #[test]
    fn a_queue_is_long_when_requests_wait_for_each_other() {
        assert_eq!(seen(&[(10, 4_000)]).excess_ns(), 0, "nothing to compare with");
        // 10 of 4 ms each in 100 ms: one is there for 40 % of the time. Then 25 of 40 ms: ten are there.
        let long = seen(&[(10, 4_000), (25, 40_000)]).excess_ns();
        assert!((34 * MS..=35 * MS).contains(&long), "{long}");
        assert_eq!(seen(&[(10, 4_000), (1, 20_000)]).excess_ns(), 0, "slow, and nothing else is there");
        // Five of 12 ms each: 7 ms of each are more than five quarters of what it needs, 35 ms of 100 together.
        assert!(
            seen(&[(10, 4_000), (5, 12_000)]).excess_ns() > 0,
            "somebody waits, though hardly one is there"
        );
        assert_eq!(seen(&[(1_000, 100), (20_000, 120)]).excess_ns(), 0, "twenty at once, as quick as one");
        assert!(seen(&[(10, 4_000), (25, 20_000), (0, 0), (0, 0)]).excess_ns() > 200 * MS, "nothing ends");
        // 25 of 40 ms, first of all: one at a time would be 4 ms each.
        assert_eq!(seen(&[(25, 40_000)]).excess_ns(), 35 * MS);
    }

    #[test]
    fn what_requests_need_is_forgotten_slowly() {
        // One at a time, which need four milliseconds, and then ten.
        let large = alloc::vec![(9, 10_000); 2_000];
        let looks: alloc::vec::Vec<_> =
            [(10, 4_000)].into_iter().chain(large).chain([(20, 10_000)]).collect();
        assert_eq!(seen(&looks).excess_ns(), 0, "larger requests need longer");
        assert!(seen(&[looks[0], looks[1], (20, 10_000)]).excess_ns() > 0);
        let mut stubborn = seen(&[(10, 4_000), (25, 40_000)]);
        let before = stubborn.excess_ns();
        (0..100).for_each(|_| stubborn.relent());
        assert!(before > 0 && stubborn.excess_ns() == 0, "nothing can be done about it");
    }

    #[test]
    fn what_is_queued_is_drained_in_time() {
        let long = seen(&[(10, 4_000), (25, 65_000)]);
        assert!((798..=802).contains(&long.drained(1_000, 300 * MS, 10)), "60 ms of 300 are a fifth");
        assert_eq!(seen(&[(10, 4_000), (25, 900_000)]).drained(1_000, 300 * MS, 10), 500);
        assert_eq!(seen(&[]).drained(1_000, 300 * MS, 10), 1_000);
    }
}
