//! The fairness criterion: which unit has used more of a disk's bandwidth than its share.
//!
//! Problem: a disk that serves requests by head position lets a unit that transfers a large contiguous file
//! keep the head to itself. So a disk may prefer nearby requests only while no unit has used much more than
//! its share.
//!
//! Terms:
//! - A unit's *count* is the number of sectors that it transferred, halved at every multiple of the
//!   half-life. The count stands for the unit's rate, since bandwidth at an instant cannot be measured.
//! - A unit is *active* if it has a request queued or in service.
//! - The *threshold* is the number of sectors by which a unit's count may exceed its part.
//!
//! Algorithm: divide the sum of the active units' counts among these units by share; with equal shares, each
//! unit's part is the average. A unit fails if its count exceeds its part by more than the threshold. In
//! integers: let s(i) be the share of unit i and c(i) its count, and let S and C be the sums of the active
//! units' shares and counts. Unit i fails if c(i) * S > C * s(i) + threshold * S. The criterion is evaluated
//! for a unit after each of its own requests. A unit that failed is *denied*, and evaluated again at every
//! decision until it passes.
//!
//! Example: two active units with equal shares have counts of 100 and 40. The average is 70. With a threshold
//! of 29 the first unit fails, since 100 > 70 + 29; with a threshold of 30 it passes.
//!
//! Why the average covers active units only: the source says "the average bandwidth usage" and speaks of
//! units "with active disk requests". An average over all units would include the zeros of idle units: if
//! only two units used a disk, both would be above the average, and both would be denied. High counts of
//! units that used the disk in the past would let every unit pass. With an average over the active units, at
//! least one of them always passes, so the disk never idles.
//!
//! Properties:
//! - The parts sum to the counts, so not all active units fail.
//! - A threshold of 0 alternates units as round robin does. One of `u64::MAX` denies no unit.
//! - Counts are halved when they are read, which equals halving on a timer exactly: rounding down twice by
//!   half is rounding down once by a quarter.
//!
//! Unequal shares: in the source, a unit's count decays the faster the larger its share s is. With a constant
//! transfer rate r, that count converges to a value proportional to r / s. Here the count converges to
//! `2 * r * half-life` for any share, and is divided by s when it is compared. Both methods order the units
//! by r / s in the steady state. But here the counts of all units cover the same time.
//!
//! Limits: at a constant rate, a count just before a halving is up to 2 sectors below twice the transfer per
//! half-life, because of rounding. The measure is sectors, so no unit is charged for seeks.
//!
//! Source: seed 000, section 3.3.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

use commonhold_contract::UnitId;

use crate::time::Time;

/// A count that is halved at every multiple of a half-life. The half-life is an argument of each call; with
/// 0, the count never decays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecayingCount {
    count: u64,
    /// Half-lives that had passed when `count` was updated.
    period: u64,
}

impl DecayingCount {
    /// The count at `now`.
    pub fn at(self, now: Time, half_life_ns: Time) -> u64 {
        let halvings = period(now, half_life_ns).saturating_sub(self.period);
        if halvings < u64::from(u64::BITS) { self.count >> halvings } else { 0 }
    }

    /// Adds to the count at `now`.
    pub fn add(&mut self, now: Time, half_life_ns: Time, amount: u64) {
        self.count = self.at(now, half_life_ns).saturating_add(amount);
        self.period = self.period.max(period(now, half_life_ns));
    }
}

/// The number of half-lives from time 0 to `now`; 0 if counts never decay.
fn period(now: Time, half_life_ns: Time) -> u64 {
    now.checked_div(half_life_ns).unwrap_or(0)
}

/// A unit's use of a disk, and its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The amount that it used, in sectors or any other measure that all units have in common.
    pub used: u64,
    /// Its relative share; only ratios matter.
    pub share: u64,
}

impl Standing {
    /// Orders by use per share: the unit that used the least for its share comes first. A unit without a
    /// share comes last.
    pub fn compare(self, other: Standing) -> Ordering {
        if self.share == 0 || other.share == 0 {
            return (self.share == 0).cmp(&(other.share == 0));
        }
        let scaled = |used: u64, share: u64| u128::from(used) * u128::from(share);
        scaled(self.used, other.share).cmp(&scaled(other.used, self.share))
    }
}

/// The sums of use and shares over all active units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Total {
    used: u128,
    share: u128,
}

impl Total {
    /// The total with one more unit.
    #[must_use]
    pub fn and(self, unit: Standing) -> Total {
        Total { used: self.used + u128::from(unit.used), share: self.share + u128::from(unit.share) }
    }

    /// Whether a unit, which is included in this total, exceeds its part by more than the threshold. Products
    /// that are too large saturate on both sides of the comparison, so that no unit exceeds its part then.
    pub fn is_exceeded_by(self, unit: Standing, threshold: u64) -> bool {
        let part = self.used.saturating_mul(u128::from(unit.share));
        let margin = u128::from(threshold).saturating_mul(self.share);
        u128::from(unit.used).saturating_mul(self.share) > part.saturating_add(margin)
    }
}

/// The shares by which counts are compared, from the contract's shares, where 0 means no share. A unit
/// without a share competes with a thousandth of the smallest share, so that it is not starved: shares of 0,
/// 3 and 1 become 1, 3,000 and 1,000.
pub fn weights(shares: &[u64]) -> Vec<u64> {
    let least = shares.iter().copied().filter(|s| *s > 0).min().unwrap_or(1);
    shares.iter().map(|s| if *s > 0 { s.saturating_mul(1_000) } else { least }).collect()
}

/// The counts and shares of all units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meter {
    half_life_ns: Time,
    units: Vec<UnitCount>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct UnitCount {
    weight: u64,
    transferred: DecayingCount,
    /// Sectors of transfers in flight. They count from their start; otherwise a device with many channels
    /// would give all channels to one unit.
    in_flight: u64,
}

impl Meter {
    /// A meter with all counts at 0. Shares are by [`UnitId::index`]; 0 is no share.
    pub fn new(shares: &[u64], half_life_ns: Time) -> Meter {
        let units =
            weights(shares).into_iter().map(|weight| UnitCount { weight, ..UnitCount::default() }).collect();
        Meter { half_life_ns, units }
    }

    /// Changes the shares; counts stay. Units beyond the end of `shares` keep their shares.
    pub fn set_shares(&mut self, shares: &[u64]) {
        for (index, weight) in weights(shares).into_iter().enumerate() {
            self.entry_at(index).weight = weight;
        }
    }

    /// Notes that a transfer for `unit` has begun.
    pub fn begin(&mut self, unit: UnitId, sectors: u64) {
        self.entry(unit).in_flight += sectors;
    }

    /// Notes that a transfer that began for `unit` has ended. The caller then charges it by
    /// [`Meter::charge`], perhaps to another unit.
    pub fn end(&mut self, unit: UnitId, sectors: u64) {
        let entry = self.entry(unit);
        entry.in_flight = entry.in_flight.saturating_sub(sectors);
    }

    /// Counts sectors that were transferred for `unit`.
    pub fn charge(&mut self, now: Time, unit: UnitId, sectors: u64) {
        let half_life_ns = self.half_life_ns;
        self.entry(unit).transferred.add(now, half_life_ns, sectors);
    }

    /// The use and share of `unit` at `now`, transfers in flight included.
    pub fn standing(&self, now: Time, unit: UnitId) -> Standing {
        self.units.get(unit.index()).map_or(Standing { used: 0, share: 1 }, |entry| Standing {
            used: entry.transferred.at(now, self.half_life_ns).saturating_add(entry.in_flight),
            share: entry.weight,
        })
    }

    /// The sums over the `active` units. The common parts, `kernel` and `shared`, have no share and are left
    /// out.
    pub fn total(&self, now: Time, active: impl Iterator<Item = UnitId>) -> Total {
        active
            .filter(|unit| !unit.is_common())
            .fold(Total::default(), |total, unit| total.and(self.standing(now, unit)))
    }

    fn entry(&mut self, unit: UnitId) -> &mut UnitCount {
        self.entry_at(unit.index())
    }

    fn entry_at(&mut self, index: usize) -> &mut UnitCount {
        if index >= self.units.len() {
            self.units.resize(index + 1, UnitCount { weight: 1, ..UnitCount::default() });
        }
        &mut self.units[index]
    }
}

/// The fairness criterion, and the units that are denied now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Criterion {
    /// The counts.
    pub meter: Meter,
    threshold: u64,
    denied: Vec<bool>,
}

impl Criterion {
    /// A criterion that denies no unit yet. `threshold` is in sectors.
    pub fn new(shares: &[u64], half_life_ns: Time, threshold: u64) -> Criterion {
        Criterion { meter: Meter::new(shares, half_life_ns), threshold, denied: vec![false; shares.len()] }
    }

    /// Changes the threshold, in sectors: on a live machine it follows the disk's capacity.
    pub fn set_threshold(&mut self, threshold: u64) {
        self.threshold = threshold;
    }

    /// Clears the count of a unit that left the contract, since a new unit may get its number.
    pub(super) fn forget(&mut self, unit: UnitId) {
        if let Some(count) = self.meter.units.get_mut(unit.index()) {
            *count = UnitCount { weight: 1, ..UnitCount::default() };
        }
        if let Some(denied) = self.denied.get_mut(unit.index()) {
            *denied = false;
        }
    }

    /// Evaluates the criterion for the unit whose request has just ended. `active` includes that unit.
    pub fn check(&mut self, now: Time, unit: UnitId, active: Total) {
        if unit.index() >= self.denied.len() {
            self.denied.resize(unit.index() + 1, false);
        }
        self.denied[unit.index()] = self.fails(now, unit, active);
    }

    /// Whether `unit` may use the disk while others wait: it is not denied, or passes now. In the latter
    /// case, it is no longer denied.
    pub fn passes(&mut self, now: Time, unit: UnitId, active: Total) -> bool {
        let denied =
            self.denied.get(unit.index()).is_some_and(|denied| *denied) && self.fails(now, unit, active);
        if let Some(entry) = self.denied.get_mut(unit.index()) {
            *entry = denied;
        }
        !denied
    }

    /// Whether a unit exceeds its part by more than the threshold. The common parts never fail: the kernel is
    /// not restricted (seed 000, section 2.2), and `shared` comes last anyway.
    fn fails(&self, now: Time, unit: UnitId, active: Total) -> bool {
        !unit.is_common() && active.is_exceeded_by(self.meter.standing(now, unit), self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Time = 1_000_000;
    const HALF_LIFE: Time = 500 * MS;
    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);
    const C: UnitId = UnitId(4);

    fn standing(used: u64, share: u64) -> Standing {
        Standing { used, share }
    }

    #[test]
    fn a_steady_rate_settles_at_twice_the_transfer_per_half_life() {
        // 1,024 sectors in each period. Just before each halving: 1024, 512 + 1024 = 1536, 1792, 1920,
        // ... 2047.
        let mut count = DecayingCount::default();
        let mut seen = Vec::new();
        for period in 0..20 {
            count.add(period * HALF_LIFE, HALF_LIFE, 1_024);
            seen.push(count.at((period + 1) * HALF_LIFE - 1, HALF_LIFE));
        }
        assert_eq!(seen[..4], [1_024, 1_536, 1_792, 1_920]);
        assert_eq!(seen[19], 2_047);
        // The halving itself falls on the multiple of the half-life.
        assert_eq!(count.at(20 * HALF_LIFE, HALF_LIFE), 1_023);
        assert_eq!(count.at(u64::MAX, HALF_LIFE), 0);
        // Without a half-life nothing is lost.
        let mut kept = DecayingCount::default();
        kept.add(0, 0, 5);
        assert_eq!(kept.at(u64::MAX, 0), 5);
    }

    #[test]
    fn fails_by_hand() {
        // Equal shares, counts 100 and 40: the average is 70, the first is 30 above it.
        let both = Total::default().and(standing(100, 5)).and(standing(40, 5));
        assert!(both.is_exceeded_by(standing(100, 5), 29));
        assert!(!both.is_exceeded_by(standing(100, 5), 30));
        assert!(!both.is_exceeded_by(standing(40, 5), 0));
        // Shares 3:1, counts 90 and 30: each has its part. One sector more for the second: 121 / 4 = 30.25
        // < 31.
        let both = Total::default().and(standing(90, 3)).and(standing(30, 1));
        assert!(!both.is_exceeded_by(standing(90, 3), 0) && !both.is_exceeded_by(standing(30, 1), 0));
        let both = Total::default().and(standing(90, 3)).and(standing(31, 1));
        assert!(both.is_exceeded_by(standing(31, 1), 0) && !both.is_exceeded_by(standing(90, 3), 0));
    }

    #[test]
    fn the_lightest_user_by_share_comes_first() {
        // 90/3 = 30 is lighter than 31/1; 30/1 is as heavy as 90/3; a unit without a share comes last.
        assert_eq!(standing(90, 3).compare(standing(31, 1)), Ordering::Less);
        assert_eq!(standing(90, 3).compare(standing(30, 1)), Ordering::Equal);
        assert_eq!(standing(u64::MAX, 1).compare(standing(0, 0)), Ordering::Less);
        assert_eq!(weights(&[0, 0, 3, 1]), [1, 1, 3_000, 1_000]);
        assert_eq!(weights(&[0, 0]), [1, 1]);
    }

    #[test]
    fn denied_after_its_own_request_and_until_it_passes_again() {
        let mut criterion = Criterion::new(&[0, 0, 1, 1, 1, 1], HALF_LIFE, 10);
        let total =
            |criterion: &Criterion, now, units: &[UnitId]| criterion.meter.total(now, units.iter().copied());
        criterion.meter.charge(0, A, 64);
        criterion.meter.charge(0, B, 200);
        // With B active, the average is 132: A is below it. Then B leaves and C comes: the average is 32, and
        // A would fail at 64 > 42, but no request of A's has ended since.
        let active = total(&criterion, 0, &[A, B]);
        criterion.check(0, A, active);
        let active = total(&criterion, 0, &[A, C]);
        assert!(criterion.passes(0, A, active));
        criterion.check(0, A, active);
        assert!(!criterion.passes(0, A, active));
        // C transfers 44: the average is 54, and 64 is no more than 10 above it.
        criterion.meter.charge(0, C, 44);
        let active = total(&criterion, 0, &[A, C]);
        assert!(criterion.passes(0, A, active));
        // From now on it is not denied, though beside an idle newcomer it would fail, until one of its
        // requests ends.
        let active = total(&criterion, 0, &[A, UnitId(5)]);
        assert!(criterion.passes(0, A, active));
        criterion.check(0, A, active);
        assert!(!criterion.passes(0, A, active));
    }

    #[test]
    fn a_forgotten_unit_leaves_no_count() {
        let mut criterion = Criterion::new(&[0, 0, 1, 1], HALF_LIFE, 10);
        criterion.meter.charge(0, A, 64);
        let active = criterion.meter.total(0, [A, B].into_iter());
        criterion.check(0, A, active);
        assert!(!criterion.passes(0, A, active));
        criterion.forget(A);
        criterion.forget(UnitId(9));
        assert_eq!((criterion.meter.standing(0, A).used, criterion.denied), (0, vec![false; 4]));
    }

    #[test]
    fn transfers_in_flight_count_and_are_not_counted_twice() {
        let mut meter = Meter::new(&[0, 0, 1], HALF_LIFE);
        meter.begin(A, 8);
        assert_eq!(meter.standing(0, A).used, 8);
        meter.end(A, 8);
        meter.charge(0, A, 8);
        assert_eq!(meter.standing(0, A).used, 8);
        // A unit without a known share is metered, too.
        meter.charge(0, UnitId(9), 3);
        assert_eq!(meter.standing(0, UnitId(9)).used, 3);
    }

    #[test]
    fn the_kernel_is_not_restricted_and_not_averaged() {
        let mut criterion = Criterion::new(&[0, 0, 1, 1], HALF_LIFE, 0);
        criterion.meter.charge(0, UnitId::KERNEL, 1_000);
        criterion.meter.charge(0, A, 10);
        let active = criterion.meter.total(0, [UnitId::KERNEL, A, B].into_iter());
        criterion.check(0, UnitId::KERNEL, active);
        criterion.check(0, A, active);
        assert!(criterion.passes(0, UnitId::KERNEL, active));
        // With the kernel's 1,000 in the average, 10 would pass.
        assert!(!criterion.passes(0, A, active));
    }

    proptest! {
        #[test]
        fn at_least_one_unit_passes(units in proptest::collection::vec((0u64.., 0u64..), 1..20), threshold in 0u64..1_000) {
            let units: Vec<Standing> = units.into_iter().map(|(used, share)| standing(used, share)).collect();
            let total = units.iter().fold(Total::default(), |total, unit| total.and(*unit));
            prop_assert!(units.iter().any(|unit| !total.is_exceeded_by(*unit, threshold)));
            prop_assert!(units.iter().all(|unit| !total.is_exceeded_by(*unit, u64::MAX)));
        }

        #[test]
        fn lazy_halving_is_halving_on_a_timer(adds in proptest::collection::vec((0u64..3_000, 0u64..1 << 40), 1..60)) {
            let mut lazy = DecayingCount::default();
            let (mut now, mut timer, mut ticks) = (0, 0u64, 0);
            for (gap_ms, amount) in adds {
                now += gap_ms * MS;
                while (ticks + 1) * HALF_LIFE <= now {
                    ticks += 1;
                    timer /= 2;
                }
                timer += amount;
                lazy.add(now, HALF_LIFE, amount);
                prop_assert_eq!(lazy.at(now, HALF_LIFE), timer);
            }
        }
    }
}
