//! How much could be called back from a unit within a time.
//!
//! What goes fast goes first: clean pages of files, then those that must be written and those in no file, the faster of these
//! before the others. So the longer there is time, the slower more of it comes.

use crate::time::{MS, Time};

const SECOND: Time = 1_000 * MS;
/// Of the time that there is for taking, so many quarters of the first second are relied on.
const RELIED_QUARTERS: Time = 3;
/// Of what is beyond the first second, so many tenths: what a device is short of for a moment evens out.
const RELIED_TENTHS: Time = 9;
/// Kinds of pages that a unit has, at most; those in no file may be in two parts.
const PARTS: usize = 4;

/// What could be called back, in parts that are taken one after another. Amounts are bytes, or frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    parts: [Part; PARTS],
    used: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Part {
    amount: u64,
    /// What taking all of it takes.
    ns: Time,
}

impl Pace {
    /// The same, and behind that so much more, which `bytes` at so many a second make free. With more parts than there are
    /// kinds of pages, nothing more.
    #[must_use]
    pub fn then(mut self, amount: u64, bytes: u64, per_s: u64) -> Pace {
        if let Some(part) = self.parts.get_mut(self.used).filter(|_| amount > 0) {
            let ns = u128::from(bytes) * u128::from(SECOND) / u128::from(per_s.max(1));
            *part = Part { amount, ns: u64::try_from(ns).unwrap_or(u64::MAX) };
            self.used += 1;
        }
        self
    }

    /// The same in frames of so many bytes, rounded down.
    pub(super) fn in_frames(mut self, bytes: u64) -> Pace {
        for part in &mut self.parts {
            part.amount /= bytes.max(1);
        }
        self
    }

    /// What could be taken in so much time.
    pub fn within(&self, time: Time) -> u64 {
        let (mut all, mut left) = (0u64, time);
        for part in &self.parts[..self.used] {
            if part.ns > left {
                let some = u128::from(part.amount) * u128::from(left) / u128::from(part.ns);
                return all.saturating_add(u64::try_from(some).unwrap_or(u64::MAX));
            }
            all = all.saturating_add(part.amount);
            left -= part.ns;
        }
        all
    }
}

/// What is relied on of the time that there is for taking.
pub(super) fn relied(time: Time) -> Time {
    let first = time.min(SECOND);
    first / 4 * RELIED_QUARTERS + (time - first) / 10 * RELIED_TENTHS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 300 that are dropped at 1,000 a second, then 50 dirty ones at 100, then 400 that take 500 to be swapped out at 100.
    #[test]
    fn what_goes_fast_goes_first() {
        let pace = Pace::default().then(300, 300, 1_000).then(0, 9, 1).then(50, 50, 100).then(400, 500, 100);
        let within = |ms: u64| pace.within(ms * MS);
        assert_eq!(
            [0, 100, 300, 550, 800, 1_800, 5_800, 9_999].map(within),
            [0, 100, 300, 325, 350, 430, 750, 750]
        );
        assert_eq!(pace.in_frames(100).within(9_999 * MS), 3 + 4);
        let full = pace.then(1, 1, 1);
        assert_eq!(full.then(1, 1, 1), full, "no kind of pages is left");
        assert_eq!(Pace::default().then(7, 7, u64::MAX).within(0), 7, "what costs no time is there at once");
    }

    #[test]
    fn more_of_a_long_time_is_relied_on() {
        assert_eq!([400, 1_000, 2_000, 11_000].map(|ms| relied(ms * MS) / MS), [300, 750, 1_650, 9_750]);
    }
}
