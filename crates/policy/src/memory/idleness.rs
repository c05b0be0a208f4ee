//! Finds how much memory a unit leaves idle, and for how long it has been idle.
//!
//! Problem: the longer an owner left memory idle, the longer it may have to wait when it wants that memory
//! back. A unit that needs 100 MiB every second and 1 GiB once a day leaves most of the 1 GiB idle for hours,
//! but never leaves the 100 MiB idle for a second. So every piece of a unit's memory has an idle time of its
//! own.
//!
//! Idle frames: only a calm unit that may lend has any. They are the frames of its entitlement that the unit
//! does not use, or that are cold and not reserved. A special rule holds for a unit that exceeds its
//! entitlement by no more than the number of its cold frames. While other units are short or borrow, such a
//! unit counts as using exactly its entitlement: the frames beyond it are taken to be cold frames, and the
//! other cold frames remain inside. So the unit gives up its frames beyond the entitlement before it lends
//! cold frames.
//!
//! Idle time: a unit's need in an interval is the maximum over the samples in that interval. Only the *peaks*
//! are kept: samples after which the unit never needed as much again. After a peak, the unit needed at most
//! as much as at the next peak. So the difference between the two peaks has been idle since the earlier one.
//!
//! Example: a unit is entitled to 100 frames. It needed 80 frames until 10 s, 30 until 40 s, and 10 since. At
//! 60 s, 20 of its frames have been idle since the first sample, 50 frames for 50 s, and 20 frames for 20 s.
//!
//! Properties (tested):
//! - No piece counts as idle for longer than the unit did without it.
//! - Pieces sum to the frames that the unit does not need now, rounded.
//! - There are at most [`GRAINS`] + 2 peaks.

use alloc::vec::Vec;

use commonhold_contract::{Permission, UnitId};

use super::frames::{CALM_SAMPLES, Division, in_whole_frames};
use crate::time::Time;
use crate::tree::lineage;

/// Needs are rounded up to multiples of 1/256 of the divided memory.
const GRAINS: u64 = 256;

/// A number of frames that a unit needed, and when it last needed that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Peak {
    needed: u64,
    at: Time,
}

/// The peaks of a unit's needs. Without samples there are no peaks, and all memory has an idle time of 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Idleness {
    /// In order of time: each peak is later and lower than the previous one.
    peaks: Vec<Peak>,
}

/// Frames with the same idle time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) frames: u64,
    pub(super) idle_ns: Time,
}

impl Division<'_> {
    /// How many frames may be lent in all: the units' idle frames and those that no unit is entitled to, less
    /// the reserve threshold.
    pub(super) fn excess(&self, idle: &[u64]) -> u64 {
        let lendable = idle.iter().sum::<u64>() + self.entitlement.unheld;
        let reserve = Some(self.input.contract.machine.reserve);
        let reserve = self.capacity.weigh_up(reserve, self.input.frames).unwrap_or(0);
        lendable.saturating_sub(reserve)
    }

    /// The frames that a unit may lend. A unit that needs more than its entitlement lends nothing, even if
    /// some of its memory is cold. Reserved frames that are in use are not lent, cold or not.
    pub(super) fn idle(&self, unit: UnitId) -> u64 {
        self.lendable(unit, self.needed(unit))
    }

    /// The part of [`idle`](Self::idle) that is unused, not merely cold.
    pub(super) fn unused(&self, unit: UnitId) -> u64 {
        self.lendable(unit, self.facts[unit.index()].used)
    }

    /// The frames that a unit may lend if it needs `needed` frames.
    fn lendable(&self, unit: UnitId, needed: u64) -> u64 {
        let own = self.entitlement.own(unit);
        let most = self.lend_permission(unit).most(own);
        if self.may_lend(unit) { own.saturating_sub(needed).min(most) } else { 0 }
    }

    fn may_lend(&self, unit: UnitId) -> bool {
        self.calm[unit.index()] >= CALM_SAMPLES && self.lend_permission(unit).allows()
    }

    /// The contract's permission for a unit to lend, in frames.
    fn lend_permission(&self, unit: UnitId) -> Permission {
        in_whole_frames(self.input.contract.unit(unit).lend.memory, self.input.frame_bytes)
    }

    /// The frames that a unit needs: those in use that are not cold, and at least the used part of its
    /// reservation. Cold frames count as needed in a unit that exceeds its entitlement.
    fn needed(&self, unit: UnitId) -> u64 {
        let facts = self.facts[unit.index()];
        let cold = if self.use_beyond_entitlement(unit) > 0 { 0 } else { facts.cold };
        facts.used.saturating_sub(cold).max(facts.used.min(self.reserved(unit)))
    }

    /// The reserved part of the entitlement of a unit's own processes: by the unit's own reservation or by an
    /// enclosing unit's, whichever gives more.
    fn reserved(&self, unit: UnitId) -> u64 {
        let hard_part = |id: UnitId| {
            let (value, hard) = (self.entitlement.value(id), self.entitlement.hard(id));
            let part = u128::from(self.entitlement.own(unit)) * u128::from(hard);
            u64::try_from(part.div_ceil(u128::from(value.max(1)))).unwrap_or(u64::MAX)
        };
        lineage(self.input.contract, unit).map(hard_part).max().unwrap_or(0)
    }

    /// Cold frames beyond a unit's entitlement count as unused if the unit may lend and other units are short
    /// or borrow. So the unit's next allowance does not include those frames.
    pub(super) fn give_up_cold(&mut self) {
        let contract = self.input.contract;
        let is_borrower = |id: UnitId| {
            let borrows = self.previously_allowed[id.index()] > self.entitlement.own(id);
            self.borrow_permission(id).allows() && (self.facts[id.index()].short || borrows)
        };
        let borrowers: Vec<bool> = contract.ids().map(|id| !id.is_common() && is_borrower(id)).collect();
        let count = borrowers.iter().filter(|borrows| **borrows).count();
        for id in contract.held() {
            let other_borrowers = count - usize::from(borrowers[id.index()]);
            let gives_up = other_borrowers > 0 && self.may_lend(id);
            let excess_use = self.use_beyond_entitlement(id);
            let facts = &mut self.facts[id.index()];
            if gives_up && excess_use > 0 && facts.cold >= excess_use {
                facts.used -= excess_use;
                facts.cold -= excess_use;
            }
        }
    }

    /// Records how many frames each unit needs. A lender that is short may need its whole entitlement. The
    /// history of an absent unit is forgotten, so that no memory counts as long idle when the unit appears
    /// again.
    pub(super) fn note_needs(&mut self) {
        self.idleness.resize_with(self.facts.len(), Idleness::default);
        for id in self.input.contract.held() {
            let (facts, own) = (self.facts[id.index()], self.entitlement.own(id));
            let needed = if facts.short { self.needed(id).max(own) } else { self.needed(id) };
            let idleness = &mut self.idleness[id.index()];
            if facts.present {
                idleness.note(self.input.now, needed, self.divided);
            } else {
                idleness.forget();
            }
        }
    }
}

impl Idleness {
    /// Records that the unit needs `needed` of `divided` frames.
    pub(super) fn note(&mut self, now: Time, needed: u64, divided: u64) {
        if self.peaks.is_empty() {
            // The unit's need before the first sample is unknown.
            self.peaks.push(Peak { needed: u64::MAX, at: now });
        }
        let grain = (divided / GRAINS).max(1);
        let needed = needed.div_ceil(grain).saturating_mul(grain);
        while self.peaks.last().is_some_and(|last| last.needed <= needed) {
            self.peaks.pop();
        }
        self.peaks.push(Peak { needed, at: now });
    }

    /// Forgets all peaks, so that the unit's memory has an idle time of 0.
    pub(super) fn forget(&mut self) {
        self.peaks.clear();
    }

    /// The pieces of `own` frames that are idle while `needed` frames are not, longest idle first.
    pub(super) fn pieces(&self, now: Time, own: u64, needed: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut above = own;
        for pair in self.peaks.windows(2) {
            let below = pair[1].needed.max(needed).min(above);
            if below < above {
                pieces.push(Piece { frames: above - below, idle_ns: now.saturating_sub(pair[0].at) });
                above = below;
            }
        }
        // Frames that rounding counted as needed, and frames that have become idle only now.
        if needed < above {
            pieces.push(Piece { frames: above - needed, idle_ns: 0 });
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Time = 1_000_000_000;

    #[test]
    fn every_piece_has_its_own_idle_time() {
        let mut idleness = Idleness::default();
        assert_eq!(idleness.pieces(0, 100, 0), [Piece { frames: 100, idle_ns: 0 }]);
        for (at, needed) in [(0, 60), (10, 80), (20, 30), (40, 30), (50, 10), (60, 10)] {
            idleness.note(at * SECOND, needed, 100);
        }
        let piece = |frames, seconds| Piece { frames, idle_ns: seconds * SECOND };
        assert_eq!(idleness.pieces(60 * SECOND, 100, 10), [piece(20, 60), piece(50, 50), piece(20, 20)]);
        // It has less by now, or needs more than at the last sample.
        assert_eq!(idleness.pieces(60 * SECOND, 70, 40), [piece(30, 50)]);
        idleness.forget();
        assert_eq!(idleness.pieces(60 * SECOND, 100, 10), [piece(90, 0)]);
    }

    proptest! {
        /// Checked against the list of needs at every sample.
        #[test]
        fn no_piece_was_needed_since(
            samples in proptest::collection::vec((1u64..5, 0u64..2_000), 1..60),
            own in 0u64..2_500,
            divided in prop_oneof![Just(100u64), Just(2_000), Just(100_000)],
        ) {
            let mut idleness = Idleness::default();
            let (mut now, mut seen) = (0, Vec::new());
            for (step, needed) in samples {
                now += step;
                idleness.note(now, needed, divided);
                seen.push((now, needed));
            }
            let needed = seen.last().map_or(0, |(_, needed)| *needed);
            let pieces = idleness.pieces(now, own, needed);
            prop_assert_eq!(pieces.iter().map(|piece| piece.frames).sum::<u64>(), own.saturating_sub(needed));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].idle_ns >= pair[1].idle_ns));
            let mut above = own;
            let grain = (divided / GRAINS).max(1);
            for piece in pieces {
                let low = above - piece.frames;
                let since = |at: Time| at > now - piece.idle_ns;
                let most = seen.iter().filter(|(at, _)| since(*at)).map(|(_, needed)| *needed).max();
                prop_assert!(most.unwrap_or(0) <= low, "{piece:?} above {low}, and {most:?} were needed");
                // Nor does it count as idle for much less than it was.
                let before = seen.iter().rev().find(|(_, needed)| needed.div_ceil(grain) * grain > low);
                let idle = now - before.map_or(seen[0].0, |(at, _)| *at);
                prop_assert!(piece.idle_ns >= idle || piece.idle_ns == 0, "{piece:?}: {idle}");
                above = low;
            }
            prop_assert!(idleness.peaks.len() as u64 <= 2_000 / grain + 3);
        }
    }
}
