//! How fast memory comes back from a borrower.
//!
//! Problem: a loan that could not be ended within the promised time must not be made, and nobody knows how long ending it
//! will take: clean pages of files are dropped, dirty ones are written, anonymous ones go to swap, each at the pace of
//! devices and of other load. Algorithm: two rates, of pages that only have to be dropped and of those that have to be
//! written, start from what slow machines do and follow what call-backs took: half way down at once, a quarter of the way up.
//! A call-back counts for the rate of what it had to take mostly. Limits: a unit's pages are not known to be of one kind or
//! the other when a loan is made, only what it has by now; without swap, what it has without a file is never lent for.

use alloc::collections::BTreeMap;

use commonhold_contract::UnitId;

use super::UnitMemory;
use crate::Time;

/// Bytes per second until something was measured.
const DROPPED_PER_S: u64 = 2 << 30;
const WRITTEN_PER_S: u64 = 32 << 20;
/// No rate sinks below, so that small loans are tried, and measured.
const PER_S_MIN: u64 = 1 << 20;
/// What comes back within a look or two says nothing about a rate.
const BYTES_MIN: u64 = 8 << 20;

const SECOND: u128 = 1_000_000_000;

/// What is known about the pace of call-backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rates {
    dropped_per_s: u64,
    written_per_s: u64,
    debts: BTreeMap<UnitId, Debt>,
}

/// A call-back that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Debt {
    since: Time,
    bytes: u64,
    clean: bool,
}

impl Default for Rates {
    fn default() -> Self {
        Rates { dropped_per_s: DROPPED_PER_S, written_per_s: WRITTEN_PER_S, debts: BTreeMap::new() }
    }
}

impl Rates {
    /// The same rates, without the call-backs that go on.
    pub(super) fn forgetful(self) -> Rates {
        Rates { debts: BTreeMap::new(), ..self }
    }

    /// How many bytes a unit with these could give back within a time, of which a fifth is for seeing and telling.
    pub(super) fn callable(&self, unit: UnitMemory, swap_free: u64, time: Time) -> u64 {
        let time = u128::from(time / 5 * 4);
        let clean = u128::from(clean(unit));
        let dropped = u128::from(self.dropped_per_s);
        let in_time = clean.min(dropped * time / SECOND);
        let left = time - in_time * SECOND / dropped;
        let written = (u128::from(self.written_per_s) * left / SECOND)
            .min(u128::from(unit.dirty) + u128::from(swap_free));
        u64::try_from(in_time + written).unwrap_or(u64::MAX)
    }

    /// Takes note of what a unit owes now, and learns when it owes no more.
    pub(super) fn watch(&mut self, id: UnitId, now: Time, owed: u64, unit: UnitMemory, swap_free: u64) {
        if owed == 0 {
            if let Some(debt) = self.debts.remove(&id) {
                self.learn(debt, now);
            }
            return;
        }
        let clean = clean(unit) >= owed || unit.dirty + swap_free == 0;
        let debt = self.debts.entry(id).or_insert(Debt { since: now, bytes: owed, clean });
        // It is called on for more, or had to write after all.
        debt.bytes = debt.bytes.max(owed);
        debt.clean &= clean;
    }

    fn learn(&mut self, debt: Debt, now: Time) {
        if debt.bytes < BYTES_MIN {
            return;
        }
        let took = u128::from(now.saturating_sub(debt.since).max(1));
        let seen = u64::try_from(u128::from(debt.bytes) * SECOND / took).unwrap_or(u64::MAX);
        let rate = if debt.clean { &mut self.dropped_per_s } else { &mut self.written_per_s };
        *rate = if seen < *rate { rate.midpoint(seen) } else { *rate + (seen - *rate) / 4 };
        *rate = (*rate).max(PER_S_MIN);
    }
}

/// What only has to be dropped.
fn clean(unit: UnitMemory) -> u64 {
    unit.used.saturating_sub(unit.anonymous).saturating_sub(unit.dirty).saturating_sub(unit.kernel)
}
