//! How much CPU time a unit's sleeping processes may use out of turn before they are noticed.
//!
//! The CPU clock of a long sleeper is read rarely, so it can run unnoticed for a while. The CPU time it used is then taken from
//! its unit's token bucket. While the bucket is overdrawn, the unit's sleepers are treated like all other processes: so a user
//! whose many processes sleep and wake by turns gains no more than the bucket's rate.

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_policy::{MS, Time};

/// The bucket's fill rate: one `RATE`th of a CPU.
pub(super) const RATE: u64 = 100;
/// The bucket's size, in nanoseconds.
const BURST_NS: i64 = 20_000_000;
/// The largest debt: it limits to a minute how long a unit whose processes sleep again is still distrusted.
const DEBT_NS: i64 = -400_000_000;

/// The buckets of all units.
#[derive(Debug, Default)]
pub(super) struct Allowance(BTreeMap<UnitId, Bucket>);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    level_ns: i64,
    filled_at: Time,
    /// Set when overdrawn, cleared when full again.
    is_overdrawn: bool,
}

impl Allowance {
    /// Takes CPU time that a process of the unit used out of turn.
    pub(super) fn take(&mut self, unit: UnitId, ns: u64, now: Time) {
        let bucket = self.bucket(unit, now);
        bucket.level_ns = bucket.level_ns.saturating_sub(i64::try_from(ns).unwrap_or(i64::MAX)).max(DEBT_NS);
        bucket.is_overdrawn |= bucket.level_ns < 0;
    }

    /// Whether the unit's sleepers must be treated like all other processes.
    pub(super) fn is_overdrawn(&mut self, unit: UnitId, now: Time) -> bool {
        self.bucket(unit, now).is_overdrawn
    }

    fn bucket(&mut self, unit: UnitId, now: Time) -> &mut Bucket {
        let full = Bucket { level_ns: BURST_NS, filled_at: now, is_overdrawn: false };
        let bucket = self.0.entry(unit).or_insert(full);
        let filled = now.saturating_sub(bucket.filled_at) / RATE;
        // Leave the rounded-off rest for the next refill.
        if filled > 0 {
            bucket.filled_at = now;
        }
        bucket.level_ns =
            bucket.level_ns.saturating_add(i64::try_from(filled).unwrap_or(i64::MAX)).min(BURST_NS);
        // Hysteresis: treating sleepers like all others is expensive, and must not switch on and off with each scan.
        bucket.is_overdrawn &= bucket.level_ns < BURST_NS;
        bucket
    }
}

/// The longest time that a bucket stays overdrawn.
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
