//! Decides when memory is sampled next, and for which units the backend should raise an alarm earlier if the
//! unit reaches its bound.
//!
//! - Loans grow once a *period*. A sample between two periods, taken because a unit is short, only calls
//!   loans back.
//! - While a unit lends, samples come often enough to call back within the promised time.
//! - While a unit owes memory to a lender, samples come every [`DEBT_SAMPLE_NS`].
//! - While the machine rests, samples come every [`REST_PERIODS`] periods. The machine rests while no present
//!   unit borrows or is near its bound, provided that the backend can raise an alarm when a unit reaches its
//!   bound.

use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};

use super::frames::{Facts, Trigger};
use super::thresholds::NEAR_PART;
use super::{MemoryState, Sample, UnitRecord};
use crate::time::{MS, Time};

/// The part of the period that does not depend on the number of units.
const PERIOD_NS: Time = 200 * MS;
/// The period becomes longer by this for each unit, since sampling a unit costs time.
const PERIOD_PER_UNIT_NS: Time = 2 * MS;
/// A sample that is taken at most this long before the end of the period ends the period: a second sample so
/// soon after it would cost as much and show little.
pub const EARLY_NS: Time = 25 * MS;
/// Periods from one sample to the next while the machine rests.
const REST_PERIODS: Time = 5;
/// While a unit lends, samples are at most 1/4 of the promised call-back time apart.
const LOAN_SAMPLE_PART: u64 = 4;
/// The interval between samples while a unit owes.
pub(super) const DEBT_SAMPLE_NS: Time = 20 * MS;

/// The interval at which loans may grow.
fn period_ns(contract: &Contract) -> Time {
    PERIOD_NS + PERIOD_PER_UNIT_NS * contract.units.len() as Time
}

/// The longest interval between samples while a unit lends.
fn loan_sample_ns(contract: &Contract) -> Time {
    period_ns(contract).min(contract.machine.call_back_memory_ns / LOAN_SAMPLE_PART)
}

/// The part of the promised call-back time that is not available for reclaim. One interval of loan samples
/// may pass until a sample finds the lender short, one [`DEBT_SAMPLE_NS`] until a sample finds all memory
/// back, and another one is allowed for taking these two samples.
pub(super) fn detection_ns(contract: &Contract) -> Time {
    loan_sample_ns(contract) + 2 * DEBT_SAMPLE_NS
}

impl MemoryState {
    /// Whether memory is divided at the end of a period, or between two periods. Begins a new period if one
    /// is due.
    pub(super) fn trigger(&mut self, sample: Sample<'_>) -> Trigger {
        let Sample { now, input, .. } = sample;
        let due = if let Some(frames) = input.means.memory.frames {
            now >= self.period_at + frames.period_ns
        } else {
            let passed = now.saturating_sub(self.period_at).saturating_add(EARLY_NS);
            passed >= period_ns(input.contract)
        };
        if !due && self.sampled_at.is_some() {
            return Trigger::CallBack;
        }
        self.period_at = now;
        Trigger::Period
    }

    /// When to sample next at the latest, and the units whose alarms are wanted until then: lenders, units
    /// far from their bounds, and units that the OOM order may soon expose. `lender_waits` says whether a
    /// unit owes memory to a lender.
    pub(super) fn next_sample(
        &self,
        sample: Sample<'_>,
        units: &[Facts],
        lender_waits: bool,
    ) -> (Time, Vec<UnitId>) {
        let Sample { now, input, .. } = sample;
        let contract = input.contract;
        if let Some(frames) = input.means.memory.frames {
            let lends = contract.machine.scheme == Scheme::Isolate;
            let watch = if lends { contract.held().collect() } else { Vec::new() };
            return (self.period_at + frames.period_ns, watch);
        }
        let lends = |id: &UnitId| self.units[id.index()].share.lent > 0;
        // The memory of a unit without processes (its page cache) does not grow, so the unit meets no bound.
        let is_far =
            |id: &UnitId| !units[id.index()].present || self.units[id.index()].is_far_from_its_bound();
        // Nor does a loan to a unit without processes grow. Its lenders raise alarms at their own bounds.
        let borrows = |id: &UnitId| units[id.index()].present && self.units[id.index()].share.borrowed > 0;
        let at_rest = input.means.memory.alarms
            && !lender_waits
            && contract.held().all(|id| is_far(&id) && !borrows(&id));
        let next = if at_rest {
            self.period_at + REST_PERIODS * period_ns(contract)
        } else {
            self.next_while_active(now, contract, lender_waits, contract.held().any(|id| lends(&id)))
        };
        let is_watched = |id: &UnitId| lends(id) || is_far(id) || self.oom_order.is_near(*id);
        (next, contract.held().filter(is_watched).collect())
    }

    /// The next sample while the machine does not rest. While a lender waits, the sample is soon. While a
    /// unit lends, it is early enough for a call-back in time. Otherwise it is when loans may grow again.
    fn next_while_active(&self, now: Time, contract: &Contract, lender_waits: bool, has_loans: bool) -> Time {
        if lender_waits {
            return now + DEBT_SAMPLE_NS;
        }
        let period_end = (self.period_at + period_ns(contract)).max(now + DEBT_SAMPLE_NS);
        if has_loans { period_end.min(now + loan_sample_ns(contract)) } else { period_end }
    }
}

impl UnitRecord {
    /// Whether the unit could use much more before it meets its bound.
    fn is_far_from_its_bound(&self) -> bool {
        self.facts.used <= self.share.allowed - self.share.allowed / NEAR_PART
    }
}
