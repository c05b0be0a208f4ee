//! Trials: a borrower's loan shrinks a little for a moment, to measure how fast memory comes back.
//!
//! A rate is measured before it is relied on. So a borrower whose loan has reached what its rate permits is put *on
//! trial*: its loan is a little smaller for at most [`TRIAL_NS_MAX`]. Its bound slows it meanwhile as in a call-back,
//! so that its own pages do not keep the device busy. If its whole loan is smaller than that, the bytes are reclaimed
//! from it instead. [`ReclaimRates::bytes_to_try`](super::reclaim_rates::ReclaimRates::bytes_to_try) limits how often
//! and how much.

use super::thresholds::SLACK_PART;
use super::{MemoryState, Sample, UnitRecord};
use crate::plan::{MemoryOrder, Reason, Step};
use crate::snapshot::UnitMemory;
use crate::time::{MS, Time};

/// A trial ends after this time. Memory taken within this time after it began counts for it.
pub(super) const TRIAL_NS_MAX: Time = 1_000 * MS;

/// A trial in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trial {
    /// `None` until the first sample after it was ordered.
    since: Option<Time>,
    /// The most that the unit may borrow meanwhile, in bytes.
    pub(super) loan_max: u64,
}

impl UnitRecord {
    /// Ends a trial whose unit has come down to its smaller loan, or that took too long.
    pub(super) fn follow_trial(&mut self, now: Time, short: bool, memory: UnitMemory, total: u64) {
        let beyond = memory.used > self.share.allowed.saturating_add(total / SLACK_PART);
        self.trial = self
            .trial
            .filter(|trial| trial.since.map_or(short, |at| beyond && now.saturating_sub(at) < TRIAL_NS_MAX));
        if let Some(trial) = &mut self.trial {
            trial.since.get_or_insert(now);
        }
    }
}

impl MemoryState {
    /// Puts one borrower that is short on trial, if a trial is due.
    pub(super) fn begin_trial(&mut self, sample: Sample<'_>) -> Option<Step<MemoryOrder>> {
        let Sample { now, input, facts, .. } = sample;
        let (id, bytes) = input.contract.held().find_map(|id| {
            let unit = &self.units[id.index()];
            if !unit.short || unit.share.borrowed == 0 {
                return None;
            }
            let bytes = self.reclaim_rates.bytes_to_try(now, unit.facts, unit.callable, facts)?;
            Some((id, bytes))
        })?;
        let unit = &mut self.units[id.index()];
        if unit.share.borrowed > bytes {
            unit.trial = Some(Trial { since: None, loan_max: unit.share.borrowed - bytes });
            return None;
        }
        unit.reclaiming.tried_at = Some(now);
        let files = unit.facts.has_to_drop(bytes);
        Some(Step { action: MemoryOrder::Reclaim { unit: id, bytes, files }, reason: Reason::OnTrial })
    }
}
