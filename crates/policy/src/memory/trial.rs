//! Trials: a borrower's loan shrinks a little for a moment, to measure how fast memory comes back.
//!
//! The rate at which memory could be called back limits how much is lent, and this rate must be measured
//! before larger loans rely on it. So when a loan has reached that limit, the borrower is put *on trial*: its
//! loan is a little smaller for at most [`TRIAL_NS_MAX`]. As in a call-back, the borrower's bound sinks with
//! the loan. This slows the borrower, so that its own paging does not keep the device busy. If the loan is no
//! larger than the bytes to try, the loan stays, and the bytes are reclaimed by order instead.
//! [`ReclaimRates::bytes_to_try`](super::reclaim_rates::ReclaimRates::bytes_to_try) limits how often trials
//! happen, and how many bytes they reclaim.

use super::thresholds::SLACK_PART;
use super::{MemoryState, Sample, UnitRecord};
use crate::plan::{MemoryOrder, Reason, Step};
use crate::snapshot::UnitMemory;
use crate::time::{MS, Time};

/// The longest duration of a trial. Memory that is reclaimed within this time after a trial began counts for
/// the trial.
pub(super) const TRIAL_NS_MAX: Time = 1_000 * MS;

/// A trial in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trial {
    /// When the trial's first sample was; `None` until then.
    since: Option<Time>,
    /// The most that the unit may borrow during the trial, in bytes.
    pub(super) loan_max: u64,
}

impl UnitRecord {
    /// Ends the unit's trial if the unit has come down to its smaller loan, or if the trial took too long. A
    /// trial that was decided at the last sample begins now, unless the unit is no longer short. `total` is
    /// the machine's memory in bytes.
    pub(super) fn update_trial(&mut self, now: Time, short: bool, memory: UnitMemory, total: u64) {
        let exceeds_allowance = memory.used > self.share.allowed.saturating_add(total / SLACK_PART);
        self.trial = self.trial.filter(|trial| {
            let goes_on = |since| exceeds_allowance && now.saturating_sub(since) < TRIAL_NS_MAX;
            trial.since.map_or(short, goes_on)
        });
        if let Some(trial) = &mut self.trial {
            trial.since.get_or_insert(now);
        }
    }
}

impl MemoryState {
    /// Puts one borrower that is short on trial, if a trial is due. Returns an order only if the loan is too
    /// small to shrink; otherwise the next division of memory lowers the loan.
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
