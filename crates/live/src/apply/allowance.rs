//! Limits how much CPU time a unit's sleepers may use out of turn.
//!
//! To save work, a process that has slept for long is neither stopped nor confined when its unit's CPUs
//! change, and its CPU clock is read rarely. So when such a sleeper wakes, it can run unnoticed for a while.
//! When the use is noticed, the CPU time is taken from the unit's token bucket. While the bucket is
//! overdrawn, the unit's sleepers are treated like all other processes. So a user with many processes that
//! sleep and wake alternately gains CPU time no faster than the bucket fills.

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_policy::{MS, Time};

/// The bucket's fill rate: one `RATE`th of a CPU.
pub(super) const RATE: u64 = 100;
/// The bucket's size, in nanoseconds.
const BURST_NS: i64 = 20_000_000;
/// The largest debt, in nanoseconds, so that no bucket stays overdrawn for as long as a minute.
const DEBT_NS: i64 = -400_000_000;

/// The buckets of all units.
#[derive(Debug, Default)]
pub(super) struct Allowance(BTreeMap<UnitId, Bucket>);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    level_ns: i64,
    filled_at: Time,
    /// Set when the level falls below zero, cleared when the bucket is full again.
    is_overdrawn: bool,
}

impl Allowance {
    /// Takes CPU time that a process of the unit used out of turn from the unit's bucket.
    pub(super) fn take(&mut self, unit: UnitId, ns: u64, now: Time) {
        let bucket = self.bucket(unit, now);
        bucket.level_ns = bucket.level_ns.saturating_sub(i64::try_from(ns).unwrap_or(i64::MAX)).max(DEBT_NS);
        bucket.is_overdrawn |= bucket.level_ns < 0;
    }

    /// Whether the unit's sleepers must be treated like all other processes.
    pub(super) fn is_overdrawn(&mut self, unit: UnitId, now: Time) -> bool {
        self.bucket(unit, now).is_overdrawn
    }

    /// A unit's bucket, filled up to now.
    fn bucket(&mut self, unit: UnitId, now: Time) -> &mut Bucket {
        let full = Bucket { level_ns: BURST_NS, filled_at: now, is_overdrawn: false };
        let bucket = self.0.entry(unit).or_insert(full);
        let refill_ns = now.saturating_sub(bucket.filled_at) / RATE;
        // If nothing is added, the elapsed time still counts next time: otherwise, frequent calls would never
        // fill the bucket.
        if refill_ns > 0 {
            bucket.filled_at = now;
        }
        bucket.level_ns =
            bucket.level_ns.saturating_add(i64::try_from(refill_ns).unwrap_or(i64::MAX)).min(BURST_NS);
        // Hysteresis: treating sleepers like all others is expensive, and must not switch on and off with
        // each scan.
        bucket.is_overdrawn &= bucket.level_ns < BURST_NS;
        bucket
    }
}

// A bucket with the largest debt is full again within a minute.
const _: () = assert!((BURST_NS - DEBT_NS) as u64 * RATE <= 60_000 * MS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overdrawn_bucket_is_usable_again_when_full() {
        let (mut allowance, unit) = (Allowance::default(), UnitId(1));
        allowance.take(unit, 30 * MS, 0);
        assert!(allowance.is_overdrawn(unit, 0) && !allowance.is_overdrawn(UnitId(2), 0));
        // It lacks 30 ms, and gains 10 ms per second.
        assert!(allowance.is_overdrawn(unit, 2_000 * MS), "its level is positive, but it is not full");
        assert!(!allowance.is_overdrawn(unit, 3_000 * MS));
    }

    #[test]
    fn a_debt_is_bounded() {
        let (mut allowance, unit) = (Allowance::default(), UnitId(1));
        allowance.take(unit, u64::MAX, 0);
        assert!(allowance.is_overdrawn(unit, 41_000 * MS) && !allowance.is_overdrawn(unit, 42_000 * MS));
    }
}
