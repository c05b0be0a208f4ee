//! Credits: a decaying record of the amounts that units lent and borrowed.
//!
//! Problem: the choice of the next borrower should not depend on current wants alone. A unit that lent for a
//! long time and is short now should come before a unit that only ever borrowed.
//!
//! Terms: a unit's *credit* for a resource is the integral over time of the amount that the unit lends, less
//! the amount that it borrows. A loan counts while it lasts, whether the borrower uses it or not. A credit,
//! positive or negative, *decays* exponentially with a half-life.
//!
//! Algorithm: integrate each unit's loans over time. At the end of each *grain*, a 64th of a half-life on the
//! backend's clock, multiply all credits by the 64th root of a half. The `shared` unit keeps the sum of all
//! credits at 0: it is charged with rounding errors, and stands in for the lender or borrower of a loan if
//! that unit is not known. It never borrows.
//!
//! Properties (tested):
//! - Credits sum to 0 at all times.
//! - Each interval is charged once. Two samples at the same time charge nothing.
//! - The result does not depend on the sampling rate, since grains end at fixed times.
//! - Entitlements do not depend on credits.
//!
//! Limits:
//! - A scheduler that lends at every switch reports only loans that are used. So with such a scheduler, an
//!   idle CPU that no unit borrows earns its owner nothing. The scheduler gets new credits only at the next
//!   sample (`dispatch/src/choice.h`).
//! - Credits do not survive a restart of the daemon.
//! - If more than [`HALF_LIVES_MAX`] half-lives pass between two samples, credits decay by that many
//!   half-lives only.
//!
//! Source: Vuppalapati and others: Karma, OSDI 2023 (donors earn credits; the pool goes to the users with the
//! most credits). Decay is our addition: Karma's credits last for ever.

use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use crate::time::{MS, Time};

/// Grains per half-life.
const GRAINS: u64 = 64;
/// The shortest grain. So a half-life below 64 ms has the effect of 64 ms.
const GRAIN_NS_MIN: Time = MS;
/// After this many half-lives a credit is negligible.
pub const HALF_LIVES_MAX: u64 = 32;
/// The fraction of a credit that remains after a grain, the 64th root of a half, times 2^32.
const DECAY_PER_GRAIN: i128 = 4_248_701_965;

/// The credits of all units of one resource, in amount times nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credits {
    /// The end of the last charged interval.
    at: Option<Time>,
    /// Indexed by unit; units beyond the end of the vector have credit 0.
    by_unit: Vec<i128>,
}

impl Credits {
    /// A unit's credit; negative for a net borrower.
    pub fn of(&self, unit: UnitId) -> i128 {
        self.by_unit.get(unit.index()).copied().unwrap_or(0)
    }

    /// All credits by unit index, each divided by `per` to express it in a coarser measure. Quotients are
    /// rounded towards 0 and saturate.
    pub fn listed(&self, per: i128) -> Vec<i64> {
        let clamp = |credit: i128| {
            i64::try_from(credit / per).unwrap_or(if credit < 0 { i64::MIN } else { i64::MAX })
        };
        self.by_unit.iter().map(|credit| clamp(*credit)).collect()
    }

    /// Charges the time since the last charge. `on_loan` is a unit's loan balance during that time: what it
    /// lent less what it borrowed. A half-life of 0 disables credits.
    pub fn charge(&mut self, now: Time, half_life_ns: Time, on_loan: impl Fn(UnitId) -> i128) {
        let Some(from) = self.begin(now, half_life_ns) else { return };
        let grain = grain(half_life_ns);
        // Whatever happened before `earliest` has decayed to nothing by now.
        let earliest = now.saturating_sub(grain.saturating_mul(GRAINS * HALF_LIVES_MAX));
        if from < earliest {
            self.by_unit.fill(0);
        }
        let mut at = from.max(earliest);
        while let Some(end) = (at / grain + 1).checked_mul(grain).filter(|end| *end <= now) {
            self.add(end - at, &on_loan);
            self.decay();
            at = end;
        }
        self.add(now - at, &on_loan);
    }

    /// Moves credits of units that left the contract to `shared`: their numbers may be reassigned.
    pub fn forget_gone(&mut self, contract: &Contract) {
        for unit in &contract.vacant {
            let credit = self.by_unit.get_mut(unit.index()).map_or(0, core::mem::take);
            if credit != 0 {
                self.by_unit[UnitId::SHARED.index()] += credit;
            }
        }
    }

    /// Adds to a unit's credit an integral over time that the caller computed, as if earned at the last
    /// charge.
    pub fn enter(&mut self, unit: UnitId, amount: i128) {
        if amount == 0 || unit == UnitId::SHARED {
            return;
        }
        self.resize_for(unit);
        self.by_unit[unit.index()] += amount;
        self.by_unit[UnitId::SHARED.index()] -= amount;
    }

    /// Ensures room for this many units; never shrinks.
    pub fn resize(&mut self, units: usize) {
        if self.by_unit.len() < units {
            self.by_unit.resize(units, 0);
        }
    }

    /// Opens the interval to charge, and returns its start. `None` if no time passed since the last charge,
    /// or credits are disabled.
    fn begin(&mut self, now: Time, half_life_ns: Time) -> Option<Time> {
        if half_life_ns == 0 {
            *self = Credits::default();
            return None;
        }
        let from = *self.at.get_or_insert(now);
        self.at = Some(from.max(now));
        (now > from).then_some(from)
    }

    /// Ensures room for `unit` and for `shared`, which balances each entry.
    fn resize_for(&mut self, unit: UnitId) {
        self.resize(unit.index().max(UnitId::SHARED.index()) + 1);
    }

    /// Adds `ns` of every unit's loan balance, and the opposite of their sum to `shared`.
    fn add(&mut self, ns: Time, on_loan: &impl Fn(UnitId) -> i128) {
        let mut sum = 0;
        for (n, credit) in (0u32..).zip(&mut self.by_unit) {
            let earned = if UnitId(n) == UnitId::SHARED { 0 } else { on_loan(UnitId(n)) * i128::from(ns) };
            *credit += earned;
            sum += earned;
        }
        if sum != 0 {
            self.by_unit[UnitId::SHARED.index()] -= sum;
        }
    }

    /// Decays every credit by one grain. `shared` is set to the opposite of their sum, rounding errors
    /// included.
    fn decay(&mut self) {
        let mut sum = 0;
        for (n, credit) in (0u32..).zip(&mut self.by_unit) {
            if UnitId(n) != UnitId::SHARED {
                *credit = (*credit * DECAY_PER_GRAIN) / (1 << 32);
                sum += *credit;
            }
        }
        if let Some(shared) = self.by_unit.get_mut(UnitId::SHARED.index()) {
            *shared = -sum;
        }
    }
}

/// The length of a grain, in nanoseconds.
fn grain(half_life_ns: Time) -> Time {
    (half_life_ns / GRAINS).max(GRAIN_NS_MIN)
}

/// How much of a resource a credit pays for: the amount that would use up the credit in a sixteenth of a
/// half-life. So a unit's priority fades out with its credit instead of ending at once.
pub fn pays_for(credit: i128, half_life_ns: Time) -> u64 {
    let time = i128::from((half_life_ns / 16).max(1));
    u64::try_from(credit.max(0) / time).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
