//! Translates what a live kernel reports into the facts that the division of memory needs.
//!
//! Problem: [`frames`](super::frames) needs to know how much memory a unit uses, how much of that is cold,
//! whether the unit is short of memory, and how much could be called back from the unit in time. A kernel
//! reports many figures, but none of these.
//!
//! Algorithm, at each sample:
//! - The memory to divide is the machine's memory, less what the kernel uses and what the processes outside
//!   all units use. Each of these two amounts counts as unchanged until it has changed by more than
//!   1/[`COMMON_PART`] of the machine's memory.
//! - A unit is *short* if it is at its bound and under pressure. Signs of pressure are refaults (reads of
//!   pages that were reclaimed before), memory stalls for more than 1/[`STALL_PART`] of the time, and growth
//!   of anonymous memory.
//! - Cold pages count as unneeded, unless the unit lately needed pages again that it had lent as cold
//!   ([`doubt`]).
//! - How much could be called back in time follows from the kinds of pages that the unit has, and from how
//!   fast such pages were reclaimed before ([`reclaim_rates`]).
//! - Small changes are ignored, so that a few pages more or less change no order.
//!
//! The simulated machine hands out frames itself, and reports all these facts directly ([`exact`]).

use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::UnitId;

use super::frames::Facts;
use super::reclaim_curve::reliable;
use super::sampling::detection_ns;
use super::thresholds::SLACK_PART;
use super::{MemoryState, Sample, UnitRecord, reclaim_rates};
use crate::snapshot::{MemoryFacts, UnitMemory};
use crate::time::Time;

mod doubt;
mod exact;

#[cfg(test)]
pub(super) use doubt::{DOUBT_NS, DOUBT_NS_MAX};

/// Memory outside all units counts as unchanged until it changes by more than 1/256 of the machine.
const COMMON_PART: u64 = 256;
/// A unit that stalled on memory for more than 1/20 of the time is under pressure.
const STALL_PART: u64 = 20;

impl MemoryState {
    /// The facts of all units, in frames, by the unit's index. Remembers the sample, for comparison at the
    /// next one.
    pub(super) fn observe(&mut self, sample: Sample<'_>) -> Vec<Facts> {
        match sample.input.means.memory.frames {
            Some(frames) => self.observe_exact(sample, frames),
            None => self.observe_live(sample),
        }
    }

    fn observe_live(&mut self, sample: Sample<'_>) -> Vec<Facts> {
        let Sample { now, input, facts, frame_bytes, .. } = sample;
        // Small changes of the common parts are ignored: they would change every unit's entitlement.
        for (counted, reported) in [(&mut self.kernel, facts.kernel), (&mut self.shared, facts.shared)] {
            if counted.abs_diff(reported) > facts.total / COMMON_PART {
                *counted = reported;
            }
        }
        let elapsed = self.sampled_at.map_or(0, |at| now.saturating_sub(at));
        self.sampled_at = Some(now);
        let promised_ns = input.contract.machine.call_back_memory_ns;
        let reclaim_ns = reliable(promised_ns.saturating_sub(detection_ns(input.contract)));
        let memory_is_owed = self.units.iter().any(|unit| unit.share.called_back);
        // Each byte of free swap space counts for one unit only.
        let mut swap_left = facts.swap_free;
        let mut in_frames = vec![Facts::default(); self.units.len()];
        for (id, common) in [(UnitId::KERNEL, self.kernel), (UnitId::SHARED, self.shared)] {
            in_frames[id.index()].used = common.div_ceil(frame_bytes);
        }
        for id in input.contract.held() {
            let unit = &mut self.units[id.index()];
            let memory = facts.units.get(id.index()).copied().unwrap_or_default();
            let short = unit.is_short(memory, elapsed, frame_bytes);
            let waits = memory_is_owed && unit.known && unit.stalled(memory, elapsed);
            unit.update_doubt(now, short, memory, frame_bytes);
            unit.damp(memory, facts.total, frame_bytes);
            let cold = if now < unit.doubted_until { 0 } else { cold(memory, facts, &mut swap_left) };
            unit.update_trial(now, short, memory, facts.total);
            let reclaimable = self.reclaim_rates.curve(memory, facts);
            unit.callable = reclaimable.within(reclaim_ns);
            (unit.facts, unit.known, unit.short) = (memory, true, short);
            in_frames[id.index()] = Facts {
                present: input.snapshot.unit(id).processes > 0,
                used: unit.used.div_ceil(frame_bytes),
                cold: (cold / frame_bytes).min(unit.used / frame_bytes),
                short,
                waits,
                on_trial: unit.trial.map(|trial| trial.loan_max / frame_bytes),
                callable: Some(reclaimable.in_frames(frame_bytes)),
            };
        }
        in_frames
    }
}

impl UnitRecord {
    /// Whether the unit has too little memory: it is at its bound, and under pressure.
    pub(super) fn is_short(&self, memory: UnitMemory, elapsed: Time, frame_bytes: u64) -> bool {
        let before = self.facts;
        let refused = memory.refused > before.refused;
        let at_bound = refused || memory.used.saturating_add(2 * frame_bytes) >= self.share.allowed;
        let refaulted = memory.refaulted.saturating_sub(before.refaulted) >= frame_bytes;
        let stalled = self.stalled(memory, elapsed);
        let grew = memory.anonymous >= before.anonymous.saturating_add(frame_bytes);
        self.known && self.share.allowed > 0 && at_bound && (refaulted || stalled || grew)
    }

    /// Whether the unit stalled on memory for more than 1/[`STALL_PART`] of the time since the last sample.
    fn stalled(&self, memory: UnitMemory, elapsed: Time) -> bool {
        memory.stalled_ns.saturating_sub(self.facts.stalled_ns) > elapsed / STALL_PART
    }

    /// Updates the damped amounts of memory that the unit uses and that it has packed in zram. Small changes
    /// are ignored.
    fn damp(&mut self, memory: UnitMemory, total: u64, frame_bytes: u64) {
        let tolerance = total / SLACK_PART;
        self.used = damped(self.used, memory.used, self.share.entitled, tolerance);
        if self.share.packed.abs_diff(memory.packed) > tolerance {
            // In whole frames, like every amount from which a bound is computed: a kernel would round other
            // bounds.
            self.share.packed = memory.packed.div_ceil(frame_bytes) * frame_bytes;
        }
    }
}

/// How many bytes would come free if all cold pages of a unit were reclaimed. Cold anonymous pages count only
/// up to the free swap space `swap_left`, which is reduced by them. Where swap is compressed memory, the
/// bytes that they would occupy there are subtracted.
fn cold(memory: UnitMemory, facts: &MemoryFacts, swap_left: &mut u64) -> u64 {
    let anonymous = memory.cold_anonymous.min(*swap_left);
    *swap_left -= anonymous;
    let in_files = memory.cold.saturating_sub(memory.cold_anonymous);
    in_files.saturating_add(reclaim_rates::freed(anonymous, facts))
}

/// A unit's damped memory use, from the damped use at the last sample and the real use now. The damped use
/// stays as it was while it exceeds the real use by at most twice the tolerance. It does not exceed the
/// entitlement unless the real use does.
fn damped(previous: u64, used: u64, entitled: u64, tolerance: u64) -> u64 {
    let still_fits = previous >= used && previous <= used.saturating_add(2 * tolerance);
    if used > entitled {
        if still_fits { previous } else { used }
    } else if still_fits && previous <= entitled {
        previous
    } else {
        used.saturating_add(tolerance).min(entitled)
    }
}
