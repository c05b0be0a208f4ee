//! What processes of a unit may use out of turn, because they are looked at seldom while they sleep.
//!
//! A process that has slept for long runs unnoticed until its CPU clock is read. What it used by then is taken from a token bucket
//! of its unit. While the bucket is overdrawn, the unit's sleepers are treated like all others: a member that has many processes
//! sleep and wake by turns gains no more than the bucket's rate.

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_policy::{MS, Time};

/// A bucket fills at this fraction of a CPU, as its inverse,
pub(super) const RATE: u64 = 100;
/// and holds this. Nanoseconds.
const BURST_NS: i64 = 20_000_000;
/// The deepest overdraft, so that a unit that slept again is believed again within a minute.
const DEBT_NS: i64 = -400_000_000;

/// The buckets of all units.
#[derive(Debug, Default)]
pub(super) struct Allowance(BTreeMap<UnitId, Bucket>);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    level_ns: i64,
    filled_at: Time,
    /// It was overdrawn, and is not full again.
    is_overdrawn: bool,
}

impl Allowance {
    /// A process of the unit used this out of turn.
    pub(super) fn take(&mut self, unit: UnitId, ns: u64, now: Time) {
        let bucket = self.bucket(unit, now);
        bucket.level_ns = bucket.level_ns.saturating_sub(i64::try_from(ns).unwrap_or(i64::MAX)).max(DEBT_NS);
        bucket.is_overdrawn |= bucket.level_ns < 0;
    }

    /// Whether the unit's sleepers are to be treated like all others.
    pub(super) fn is_overdrawn(&mut self, unit: UnitId, now: Time) -> bool {
        self.bucket(unit, now).is_overdrawn
    }

    fn bucket(&mut self, unit: UnitId, now: Time) -> &mut Bucket {
        let full = Bucket { level_ns: BURST_NS, filled_at: now, is_overdrawn: false };
        let bucket = self.0.entry(unit).or_insert(full);
        let filled = now.saturating_sub(bucket.filled_at) / RATE;
        // What a filling rounds down is left for the next one.
        if filled > 0 {
            bucket.filled_at = now;
        }
        bucket.level_ns =
            bucket.level_ns.saturating_add(i64::try_from(filled).unwrap_or(i64::MAX)).min(BURST_NS);
        // Hysteresis: treating sleepers like all others costs much, and so must not come and go with each look.
        bucket.is_overdrawn &= bucket.level_ns < BURST_NS;
        bucket
    }
}

/// The longest overdraft in force.
const _: () = assert!((BURST_NS - DEBT_NS) as u64 * RATE <= 60_000 * MS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_that_was_overdrawn_is_drawn_from_again_when_it_is_full() {
        let (mut allowance, unit) = (Allowance::default(), UnitId(1));
        allowance.take(unit, 30 * MS, 0);
        assert!(allowance.is_overdrawn(unit, 0) && !allowance.is_overdrawn(UnitId(2), 0));
        // It lacks 30 ms, and has 10 ms of them after a second.
        assert!(allowance.is_overdrawn(unit, 2_000 * MS), "it holds something, and is not full");
        assert!(!allowance.is_overdrawn(unit, 3_000 * MS));
    }

    #[test]
    fn a_debt_is_forgiven_beyond_its_bound() {
        let (mut allowance, unit) = (Allowance::default(), UnitId(1));
        allowance.take(unit, u64::MAX, 0);
        assert!(allowance.is_overdrawn(unit, 41_000 * MS) && !allowance.is_overdrawn(unit, 42_000 * MS));
    }
}
