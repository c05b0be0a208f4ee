//! What units lent and borrowed before, and how long that counts.
//!
//! Problem: who is lent to next should not depend on wants alone. A unit that lent for long, and is short now, should
//! come before one that only ever borrowed.
//!
//! Terms: a unit's *credit* is what it lent, less what it was lent, of one resource, in amount times time. What is lent
//! counts for as long as it is lent, used or not. A credit *decays*: after a half-life, half of it counts. Credits
//! below 0 do as well.
//!
//! Algorithm: a credit goes on by what is on loan. At the end of each *grain*, a 64th of a half-life on the backend's
//! clock, all credits are multiplied by the 64th root of a half. What the rounding takes, and what no unit holds and is
//! lent, is on the account of the `shared` unit, which is never lent anything.
//!
//! Properties (tested):
//! - Credits sum to 0 at every moment.
//! - An interval is charged once. Two looks at the same time charge nothing.
//! - How often it is looked does not matter at all: grains end when they end.
//! - Entitlements never depend on a credit.
//!
//! Limits:
//! - A scheduler that lends at every switch tells what was used of loans, and is told credits in steps, at the next look
//!   (`dispatch/src/choice.h`). So an idle CPU that nobody borrows earns nothing there.
//! - A daemon that starts anew remembers nothing.
//! - A gap of more than [`HALF_LIVES_MAX`] half-lives counts as so many.
//!
//! Source: Vuppalapati and others: Karma, OSDI 2023 (credits for what is donated, the pool to those with most). The
//! decay is ours. There, a user's credits last for ever.

use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use crate::time::{MS, Time};

/// Grains of a half-life.
const GRAINS: u64 = 64;
/// No grain is shorter: a half-life of less than 64 ms is no memory worth its time.
const GRAIN_NS_MIN: Time = MS;
/// After so many half-lives nothing is left of any credit.
pub const HALF_LIVES_MAX: u64 = 32;
/// The 64th root of a half, times 2^32.
const KEEPS: i128 = 4_248_701_965;

/// The credits of all units of one resource, in amount times nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credits {
    /// Up to when was charged.
    at: Option<Time>,
    /// By the unit's index; none where nothing was lent yet.
    of: Vec<i128>,
}

impl Credits {
    /// What a unit lent beyond what it was lent; below 0: the other way.
    pub fn of(&self, unit: UnitId) -> i128 {
        self.of.get(unit.index()).copied().unwrap_or(0)
    }

    /// All of them, by the unit's index: in amount times seconds for a resource that is held, rounded to 0.
    pub fn listed(&self, per: i128) -> Vec<i64> {
        let clamp = |credit: i128| {
            i64::try_from(credit / per).unwrap_or(if credit < 0 { i64::MIN } else { i64::MAX })
        };
        self.of.iter().map(|credit| clamp(*credit)).collect()
    }

    /// Charges what is on loan since the last charge: of each unit, what it lends less what it borrows. A half-life of 0
    /// remembers nothing.
    pub fn charge(&mut self, now: Time, half_life_ns: Time, on_loan: impl Fn(UnitId) -> i128) {
        let Some(from) = self.begin(now, half_life_ns) else { return };
        let grain = grain(half_life_ns);
        let earliest = now.saturating_sub(grain.saturating_mul(GRAINS * HALF_LIVES_MAX));
        if from < earliest {
            self.of.fill(0);
        }
        let mut at = from.max(earliest);
        while let Some(end) = (at / grain + 1).checked_mul(grain).filter(|end| *end <= now) {
            self.add(end - at, &on_loan);
            self.decay();
            at = end;
        }
        self.add(now - at, &on_loan);
    }

    /// Forgets the unit of a number that the contract has no more. Its credit is the common parts' from then on.
    pub fn forget_gone(&mut self, contract: &Contract) {
        for unit in &contract.vacant {
            let left = self.of.get_mut(unit.index()).map_or(0, core::mem::take);
            if left != 0 {
                self.of[UnitId::SHARED.index()] += left;
            }
        }
    }

    /// Enters what a unit lent, less what it borrowed, where that is known as a sum only: at the moment of the last charge.
    pub fn enter(&mut self, unit: UnitId, amount: i128) {
        if amount == 0 || unit == UnitId::SHARED {
            return;
        }
        self.have(unit);
        self.of[unit.index()] += amount;
        self.of[UnitId::SHARED.index()] -= amount;
    }

    /// Units that may have a credit: as many as this.
    pub fn resize(&mut self, units: usize) {
        if self.of.len() < units {
            self.of.resize(units, 0);
        }
    }

    /// From when on is to be charged, if anything is.
    fn begin(&mut self, now: Time, half_life_ns: Time) -> Option<Time> {
        if half_life_ns == 0 {
            *self = Credits::default();
            return None;
        }
        let from = *self.at.get_or_insert(now);
        self.at = Some(from.max(now));
        (now > from).then_some(from)
    }

    fn have(&mut self, unit: UnitId) {
        self.resize(unit.index().max(UnitId::SHARED.index()) + 1);
    }

    fn add(&mut self, ns: Time, on_loan: &impl Fn(UnitId) -> i128) {
        let mut sum = 0;
        for (n, credit) in (0u32..).zip(&mut self.of) {
            let more = if UnitId(n) == UnitId::SHARED { 0 } else { on_loan(UnitId(n)) * i128::from(ns) };
            *credit += more;
            sum += more;
        }
        if sum != 0 {
            self.of[UnitId::SHARED.index()] -= sum;
        }
    }

    fn decay(&mut self) {
        let mut sum = 0;
        for (n, credit) in (0u32..).zip(&mut self.of) {
            if UnitId(n) != UnitId::SHARED {
                *credit = (*credit * KEEPS) / (1 << 32);
                sum += *credit;
            }
        }
        if let Some(shared) = self.of.get_mut(UnitId::SHARED.index()) {
            *shared = -sum;
        }
    }
}

fn grain(half_life_ns: Time) -> Time {
    (half_life_ns / GRAINS).max(GRAIN_NS_MIN)
}

/// How much of a resource a credit pays for: a unit that is lent so much has spent most of its credit after a sixteenth
/// of a half-life. So what it may have before others shrinks with its credit, and never ends at once.
pub fn pays_for(credit: i128, half_life_ns: Time) -> u64 {
    let time = i128::from((half_life_ns / 16).max(1));
    u64::try_from(credit.max(0) / time).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
