//! A curve: how much memory could be called back from a unit, as a function of the time for it.
//!
//! The kinds of pages are reclaimed in the order of their rates, the fastest first: clean file pages, then
//! dirty file pages or anonymous pages, whichever are faster, then the other kind. So the curve has one
//! straight segment per kind of page, and each segment is less steep than the one before.

use crate::time::{MS, Time};

const SECOND: Time = 1_000 * MS;
/// Loans rely on 3/4 of the first second for reclaim; the rest is a margin for stalls of a device.
const RELIABLE_QUARTERS: Time = 3;
/// Loans rely on 9/10 of the time after the first second: there the margin is smaller, since short stalls
/// average out.
const RELIABLE_TENTHS: Time = 9;
/// The most kinds of pages that a unit has; anonymous pages may be of two.
const PARTS: usize = 4;

/// The amounts that could be called back from a unit, in parts that are reclaimed one after the other.
/// Amounts are in bytes; in frames after `in_frames`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReclaimCurve {
    parts: [Part; PARTS],
    /// How many of `parts` are in use.
    used: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Part {
    amount: u64,
    /// The time that reclaiming all of it takes.
    ns: Time,
}

impl ReclaimCurve {
    /// Appends a part by which `amount` comes free, and which takes as long as `bytes` at `per_s` bytes per
    /// second. The two differ where a swapped byte still occupies some memory. A curve whose parts are all in
    /// use stays unchanged.
    #[must_use]
    pub fn with_part(mut self, amount: u64, bytes: u64, per_s: u64) -> ReclaimCurve {
        if let Some(part) = self.parts.get_mut(self.used).filter(|_| amount > 0) {
            let ns = u128::from(bytes) * u128::from(SECOND) / u128::from(per_s.max(1));
            *part = Part { amount, ns: u64::try_from(ns).unwrap_or(u64::MAX) };
            self.used += 1;
        }
        self
    }

    /// The curve with its amounts in frames, rounded down.
    pub(super) fn in_frames(mut self, frame_bytes: u64) -> ReclaimCurve {
        for part in &mut self.parts {
            part.amount /= frame_bytes.max(1);
        }
        self
    }

    /// How much could be reclaimed within `time`, in nanoseconds.
    pub fn within(&self, time: Time) -> u64 {
        let (mut reclaimed, mut remaining_ns) = (0u64, time);
        for part in &self.parts[..self.used] {
            if part.ns > remaining_ns {
                let partial = u128::from(part.amount) * u128::from(remaining_ns) / u128::from(part.ns);
                return reclaimed.saturating_add(u64::try_from(partial).unwrap_or(u64::MAX));
            }
            reclaimed = reclaimed.saturating_add(part.amount);
            remaining_ns -= part.ns;
        }
        reclaimed
    }
}

/// The part of `time` on which loans may rely for reclaim; the rest is a margin.
pub(super) fn reliable(time: Time) -> Time {
    let first_second = time.min(SECOND);
    first_second / 4 * RELIABLE_QUARTERS + (time - first_second) / 10 * RELIABLE_TENTHS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 300 that are dropped at 1,000 a second, then 50 dirty ones at 100, then 400 that cost 500 of swapping
    /// at 100.
    #[test]
    fn the_fastest_pages_are_reclaimed_first() {
        let curve = ReclaimCurve::default()
            .with_part(300, 300, 1_000)
            .with_part(0, 9, 1)
            .with_part(50, 50, 100)
            .with_part(400, 500, 100);
        let within = |ms: u64| curve.within(ms * MS);
        assert_eq!(
            [0, 100, 300, 550, 800, 1_800, 5_800, 9_999].map(within),
            [0, 100, 300, 325, 350, 430, 750, 750]
        );
        assert_eq!(curve.in_frames(100).within(9_999 * MS), 3 + 4);
        let full = curve.with_part(1, 1, 1);
        assert_eq!(full.with_part(1, 1, 1), full, "there is no further kind of page");
        assert_eq!(ReclaimCurve::default().with_part(7, 7, u64::MAX).within(0), 7, "free pages come at once");
    }

    #[test]
    fn a_larger_part_of_a_long_time_is_reliable() {
        assert_eq!([400, 1_000, 2_000, 11_000].map(|ms| reliable(ms * MS) / MS), [300, 750, 1_650, 9_750]);
    }
}
