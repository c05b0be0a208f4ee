//! How much could be called back from a unit within a given time.
//!
//! Pages are reclaimed fastest first: clean file pages, then dirty file pages and anonymous pages, the faster of these
//! two before the other. So the curve rises ever more slowly.

use crate::time::{MS, Time};

const SECOND: Time = 1_000 * MS;
/// Quarters of the first second that are relied on.
const RELIABLE_QUARTERS: Time = 3;
/// Tenths of the time after the first second that are relied on; short stalls of a device average out.
const RELIABLE_TENTHS: Time = 9;
/// The most kinds of pages that a unit has; anonymous pages may be of two.
const PARTS: usize = 4;

/// What could be called back, in parts that are reclaimed one after the other. Amounts are bytes, or frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReclaimCurve {
    parts: [Part; PARTS],
    used: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Part {
    amount: u64,
    /// The time that reclaiming all of it takes.
    ns: Time,
}

impl ReclaimCurve {
    /// Appends a part of `amount`, which takes as long as writing `bytes` at `per_s` bytes per second. A curve with all
    /// its parts in use stays as it is.
    #[must_use]
    pub fn then(mut self, amount: u64, bytes: u64, per_s: u64) -> ReclaimCurve {
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

    /// How much could be reclaimed within `time`.
    pub fn within(&self, time: Time) -> u64 {
        let (mut reclaimed, mut left) = (0u64, time);
        for part in &self.parts[..self.used] {
            if part.ns > left {
                let partial = u128::from(part.amount) * u128::from(left) / u128::from(part.ns);
                return reclaimed.saturating_add(u64::try_from(partial).unwrap_or(u64::MAX));
            }
            reclaimed = reclaimed.saturating_add(part.amount);
            left -= part.ns;
        }
        reclaimed
    }
}

/// The part of the time for reclaim that is relied on.
pub(super) fn reliable(time: Time) -> Time {
    let first = time.min(SECOND);
    first / 4 * RELIABLE_QUARTERS + (time - first) / 10 * RELIABLE_TENTHS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 300 that are dropped at 1,000 a second, then 50 dirty ones at 100, then 400 that cost 500 of swapping at 100.
    #[test]
    fn the_fastest_pages_are_reclaimed_first() {
        let curve =
            ReclaimCurve::default().then(300, 300, 1_000).then(0, 9, 1).then(50, 50, 100).then(400, 500, 100);
        let within = |ms: u64| curve.within(ms * MS);
        assert_eq!(
            [0, 100, 300, 550, 800, 1_800, 5_800, 9_999].map(within),
            [0, 100, 300, 325, 350, 430, 750, 750]
        );
        assert_eq!(curve.in_frames(100).within(9_999 * MS), 3 + 4);
        let full = curve.then(1, 1, 1);
        assert_eq!(full.then(1, 1, 1), full, "there is no further kind of page");
        assert_eq!(ReclaimCurve::default().then(7, 7, u64::MAX).within(0), 7, "free pages come at once");
    }

    #[test]
    fn a_larger_part_of_a_long_time_is_reliable() {
        assert_eq!([400, 1_000, 2_000, 11_000].map(|ms| reliable(ms * MS) / MS), [300, 750, 1_650, 9_750]);
    }
}
