//! When memory is sampled next, and which units' alarms are wanted until then.
//!
//! - Loans grow once a *period*. A sample between two periods, taken because a unit is short, only calls back.
//! - While a unit lends, samples come often enough to call back within the promised time.
//! - While a unit owes memory to a lender, samples come every [`DEBT_SAMPLE_NS`].
//! - While the machine rests, samples come every [`REST_PERIODS`] periods. It rests while no unit that is present
//!   borrows or is near its bound, provided that a unit that meets its bound raises an alarm.

use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};

use super::frames::{Facts, Trigger};
use super::thresholds::NEAR_PART;
use super::{MemoryState, Sample, UnitRecord};
use crate::time::{MS, Time};

/// How often loans may grow. More units make the period longer, since sampling each of them costs time.
const PERIOD_NS: Time = 200 * MS;
const PERIOD_PER_UNIT_NS: Time = 2 * MS;
/// A sample at most this long before the periodic one replaces it: two in a row would cost twice.
pub const EARLY_NS: Time = 25 * MS;
/// Periods between two samples at rest.
const REST_PERIODS: Time = 5;
/// While a unit lends, samples are at most 1/4 of the promised call-back time apart.
const LOAN_SAMPLE_PART: u64 = 4;
/// The interval between samples while a unit owes.
pub(super) const DEBT_SAMPLE_NS: Time = 20 * MS;

fn period_ns(contract: &Contract) -> Time {
    PERIOD_NS + PERIOD_PER_UNIT_NS * contract.units.len() as Time
}

/// The longest interval between samples while a unit lends.
fn loan_sample_ns(contract: &Contract) -> Time {
    period_ns(contract).min(contract.machine.call_back_memory_ns / LOAN_SAMPLE_PART)
}

/// The part of the promised call-back time that is not left for reclaim. One interval of loan samples until the lender
/// is found short, one [`DEBT_SAMPLE_NS`] until everything is found back, and one for the two samples themselves.
pub(super) fn detection_ns(contract: &Contract) -> Time {
    loan_sample_ns(contract) + 2 * DEBT_SAMPLE_NS
}

impl MemoryState {
    /// Why memory is divided now. Begins a new period if one is due.
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

    /// When to sample next, and the units whose alarms are wanted: lenders, units far from their bounds, and units
    /// near being first in the OOM order. `owing` says whether a unit owes memory to a lender.
    pub(super) fn next_sample(
        &self,
        sample: Sample<'_>,
        units: &[Facts],
        owing: bool,
    ) -> (Time, Vec<UnitId>) {
        let Sample { now, input, .. } = sample;
        let contract = input.contract;
        if let Some(frames) = input.means.memory.frames {
            let lends = contract.machine.scheme == Scheme::Isolate;
            let watch = if lends { contract.held().collect() } else { Vec::new() };
            return (self.period_at + frames.period_ns, watch);
        }
        let lends = |id: &UnitId| self.units[id.index()].share.lent > 0;
        // What a unit's last process left behind does not grow, so it meets no bound.
        let is_far =
            |id: &UnitId| !units[id.index()].present || self.units[id.index()].is_far_from_its_bound();
        // A loan to a unit without processes does not grow either. Its lenders raise alarms at their own bounds.
        let borrows = |id: &UnitId| units[id.index()].present && self.units[id.index()].share.borrowed > 0;
        let at_rest =
            input.means.memory.alarms && !owing && contract.held().all(|id| is_far(&id) && !borrows(&id));
        let next = if at_rest {
            self.period_at + REST_PERIODS * period_ns(contract)
        } else {
            self.next_while_active(now, contract, owing, contract.held().any(|id| lends(&id)))
        };
        let watched = |id: &UnitId| lends(id) || is_far(id) || self.oom_order.is_near(*id);
        (next, contract.held().filter(watched).collect())
    }

    /// While a unit owes, soon; while a unit lends, in time to call back; otherwise when loans may grow again.
    fn next_while_active(&self, now: Time, contract: &Contract, owing: bool, lending: bool) -> Time {
        if owing {
            return now + DEBT_SAMPLE_NS;
        }
        let period_end = (self.period_at + period_ns(contract)).max(now + DEBT_SAMPLE_NS);
        if lending { period_end.min(now + loan_sample_ns(contract)) } else { period_end }
    }
}

impl UnitRecord {
    /// Whether the unit could use much more before it meets its bound.
    fn is_far_from_its_bound(&self) -> bool {
        self.facts.used <= self.share.allowed - self.share.allowed / NEAR_PART
    }
}
