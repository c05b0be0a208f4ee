//! Whether requests queue in a device, judged by how long they take there.
//!
//! Problem: a unit with one request at a time waits for all requests that other units have in the device. No
//! count of bytes shows how long that takes. A device that can serve all its requests has a short queue. At a
//! slightly higher load, its queue soon has as many requests as its users may have in flight.
//!
//! Terms: a request's *need* is the time that it takes in the device if it does not wait for others. The rest
//! of its time in the device is waiting time.
//!
//! Algorithm:
//! - The kernel counts the requests that a device completed and their total time in the device. This gives
//!   the mean time of a request since the last sample, and, by Little's law, the mean number of requests in
//!   flight: total time over elapsed time.
//! - The need is estimated as the shortest mean time seen. The estimate grows by 1/512 at each sample, since
//!   later requests may need more time. The estimate is at least a quarter of the time that the transfer
//!   takes at the device's capacity: delays shorter than that harm no unit.
//! - A queue is *long* if, on average, at least a quarter of a request is waiting. To compute this, take for
//!   each request the time in the device beyond five quarters of the need. The queue is long if the sum of
//!   these times is a quarter of the elapsed time or more. A device may serve many requests in parallel:
//!   while each takes no longer for that, the queue is not long.
//!
//! Example: requests need 4 ms. In 100 ms, 5 requests of 12 ms each complete. Each takes 7 ms more than five
//! quarters of its need, 35 ms together. This is more than a quarter of 100 ms, so the queue is long.
//!
//! Why the number of requests in flight is not the measure: if one job sends its requests in bursts, another
//! job with one request at a time may wait behind a burst, although the device has hardly one request on
//! average.
//!
//! Limits: the measure is a mean over all requests of all units. So small requests of one unit are assumed to
//! need as long as large requests of another.

use super::rates::{averaged, per_second};
use crate::rights::share::part_of;
use crate::snapshot::DeviceUse;
use crate::time::{MS, Time};

/// The shortest meaningful mean time of a request: shorter times are within the clock's resolution.
const TIME_RESOLUTION_NS: Time = MS / 20;

/// How long requests take in one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Queue {
    /// The device's counters at the last sample.
    last: Option<DeviceUse>,
    /// The time that a request needs, and the mean time that one took in the last interval.
    needed_ns: Time,
    took_ns: Time,
    /// A lower bound on the need: a quarter of the time that the transfer of a mean request takes.
    needed_ns_min: Time,
    /// Whether more than 1.25 requests were in flight on average.
    is_crowded: bool,
    is_long: bool,
    /// Whether the device was hardly ever idle in the last interval.
    is_busy: bool,
    /// The device's average rate, in bytes per second.
    device_rate: Option<u64>,
}

impl Queue {
    /// Enters the device's counters after an interval of `elapsed` nanoseconds; `device` is `None` if the
    /// backend cannot read them. `capacity` is in bytes per second; 0 if it is not known.
    pub(super) fn observe(&mut self, elapsed: Time, device: Option<DeviceUse>, capacity: u64) {
        let before = core::mem::replace(&mut self.last, device);
        let (Some(now), Some(before)) = (device, before) else { return };
        if elapsed == 0 {
            return;
        }
        let requests = now.requests.saturating_sub(before.requests);
        let taken_ns = now.taken_ns.saturating_sub(before.taken_ns);
        let bytes = now.bytes.saturating_sub(before.bytes);
        let bytes_per_s = per_second(bytes, elapsed);
        self.is_busy = now.busy_ns.saturating_sub(before.busy_ns) >= elapsed - elapsed / 16;
        self.device_rate = Some(averaged(self.device_rate.unwrap_or(0), bytes_per_s, elapsed));
        if requests == 0 {
            // No request completed. Those in flight have taken this interval in addition.
            self.took_ns = if now.under_way > 0 { self.took_ns.saturating_add(elapsed) } else { 0 };
            self.is_long = now.under_way > 1 && self.excess_of(self.took_ns) > 0;
            return;
        }
        self.took_ns = taken_ns / requests;
        self.needed_ns_min = match capacity {
            0 => TIME_RESOLUTION_NS,
            capacity => part_of(bytes / requests, 1_000 * MS, capacity) / 4,
        };
        // Requests that queued in the device took more time than they need, so the estimate must not grow
        // then.
        let growth = if self.is_crowded { 0 } else { self.needed_ns / 512 };
        self.needed_ns = match self.needed_ns {
            // The first estimate assumes that the device serves one request at a time.
            0 => (elapsed / requests).min(self.took_ns),
            needed => needed.saturating_add(growth).min(self.took_ns),
        }
        .max(TIME_RESOLUTION_NS);
        self.is_crowded = taken_ns > elapsed.saturating_add(elapsed / 4);
        let waited_ns = requests.saturating_mul(self.excess_of(self.took_ns));
        self.is_long = waited_ns > elapsed / 4;
    }

    /// By how much requests take longer than five quarters of their need; 0 if the queue is short or not
    /// known.
    pub(super) fn excess_ns(&self) -> Time {
        if self.is_long { self.excess_of(self.took_ns) } else { 0 }
    }

    /// Whether the queue is long and never empty: the device then transfers at its capacity.
    pub(super) fn is_full(&self) -> bool {
        self.is_busy && self.excess_ns() > 0
    }

    /// Whether more than 1.25 requests were in flight on average.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// The device's average rate, in bytes per second, by completed requests; `None` if it is not known.
    pub(super) fn device_rate(&self) -> Option<u64> {
        self.device_rate
    }

    /// How long the requests in the device will take to complete, judged by those that completed last; 0 if
    /// there is hardly more than one request in the device.
    pub(super) fn backlog_ns(&self) -> Time {
        if self.is_crowded { self.took_ns } else { 0 }
    }

    /// Raises the time that requests are assumed to need. For use when the queue is long although rates
    /// cannot be reduced further.
    pub(super) fn relent(&mut self) {
        self.needed_ns = self.needed_ns.saturating_add(self.needed_ns / 32);
    }

    /// The rate `rate`, reduced so that a long queue drains within `within_ns`: by at least `cut_min`, and by
    /// at most a half. It is unchanged if the queue is short. For example, with requests that wait for 60 ms,
    /// a rate of 1,000 becomes 800 for a queue that is to drain within 300 ms.
    pub(super) fn drained(&self, rate: u64, within_ns: Time, cut_min: u64) -> u64 {
        match self.excess_ns() {
            0 => rate,
            excess => {
                let cut = part_of(rate, excess.min(within_ns), within_ns);
                rate - cut.clamp(cut_min.min(rate / 2), rate / 2)
            }
        }
    }

    /// By how much a time in the device exceeds five quarters of a request's need.
    fn excess_of(&self, took_ns: Time) -> Time {
        let needed = self.needed_ns.max(self.needed_ns_min);
        took_ns.saturating_sub(needed.saturating_add(needed / 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue after samples every 100 ms, each with the requests that completed and the microseconds that
    /// each took.
    fn after(samples: &[(u64, u64)]) -> Queue {
        let (mut queue, mut device) = (Queue::default(), DeviceUse::default());
        queue.observe(0, Some(device), 0);
        for (requests, took_us) in samples {
            device.requests += requests;
            device.taken_ns += requests * took_us * 1_000;
            device.under_way = 2;
            queue.observe(100 * MS, Some(device), 0);
        }
        queue
    }

    #[test]
    fn a_queue_is_long_when_requests_wait_for_each_other() {
        assert_eq!(after(&[(10, 4_000)]).excess_ns(), 0, "there is nothing to compare with");
        // 10 of 4 ms each in 100 ms: one is in flight for 40 % of the time. Then 25 of 40 ms: ten are in
        // flight.
        let long = after(&[(10, 4_000), (25, 40_000)]).excess_ns();
        assert!((34 * MS..=35 * MS).contains(&long), "{long}");
        assert_eq!(after(&[(10, 4_000), (1, 20_000)]).excess_ns(), 0, "slow, but alone");
        // Five of 12 ms each: 7 ms of each are more than five quarters of its need, 35 ms of 100 together.
        assert!(
            after(&[(10, 4_000), (5, 12_000)]).excess_ns() > 0,
            "a request waits, though hardly one is in flight"
        );
        assert_eq!(after(&[(1_000, 100), (20_000, 120)]).excess_ns(), 0, "twenty at once, as fast as one");
        assert!(
            after(&[(10, 4_000), (25, 20_000), (0, 0), (0, 0)]).excess_ns() > 200 * MS,
            "nothing completes"
        );
        // 25 of 40 ms at the first sample: one at a time, they would take 4 ms each.
        assert_eq!(after(&[(25, 40_000)]).excess_ns(), 35 * MS);
    }

    #[test]
    fn the_need_of_requests_is_forgotten_slowly() {
        // One at a time: they first need four milliseconds, then ten.
        let large = alloc::vec![(9, 10_000); 2_000];
        let samples: alloc::vec::Vec<_> =
            [(10, 4_000)].into_iter().chain(large).chain([(20, 10_000)]).collect();
        assert_eq!(after(&samples).excess_ns(), 0, "larger requests need longer");
        assert!(after(&[samples[0], samples[1], (20, 10_000)]).excess_ns() > 0);
        let mut stubborn = after(&[(10, 4_000), (25, 40_000)]);
        let before = stubborn.excess_ns();
        (0..100).for_each(|_| stubborn.relent());
        assert!(before > 0 && stubborn.excess_ns() == 0, "nothing more can be done");
    }

    #[test]
    fn a_queue_is_drained_in_time() {
        let long = after(&[(10, 4_000), (25, 65_000)]);
        assert!((798..=802).contains(&long.drained(1_000, 300 * MS, 10)), "60 ms of 300 are a fifth");
        assert_eq!(after(&[(10, 4_000), (25, 900_000)]).drained(1_000, 300 * MS, 10), 500);
        assert_eq!(after(&[]).drained(1_000, 300 * MS, 10), 1_000);
    }
}
