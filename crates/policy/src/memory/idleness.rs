//! What a unit leaves idle, and for how long it has done so.
//!
//! Problem: an owner may be held up in proportion to the time for which it left memory idle. A unit that needs 100 MiB
//! every second and 1 GiB once a day left most of that idle for hours, and 100 MiB for no second. So every piece of
//! its memory has its own idle time.
//!
//! What is idle: the part of a calm unit's entitlement that it does not use, or that is cold and not reserved, if the
//! unit may lend. A unit may exceed its entitlement by no more than its cold frames. While other units are short or
//! borrow, it then counts as using exactly its entitlement, with the rest of its cold frames inside. So it gives up
//! what is beyond its entitlement before it lends what is cold.
//!
//! For how long: what a unit needed within a time is the maximum over the samples in that time. Only the *peaks* are
//! kept: samples after which the unit never needed as much again. From one peak to the next the unit needed less, so
//! what lies between the two has been idle since the earlier one.
//!
//! Example: a unit of 100 frames needed 80 until 10 s, 30 until 40 s, and 10 since. At 60 s, 20 of its frames have
//! been idle for as long as it has been sampled, 50 for 50 s, and 20 for 20 s.
//!
//! Properties (tested):
//! - No piece counts as idle for longer than the unit did without it.
//! - Pieces add up to what the unit does not need now, rounded.
//! - There are at most [`GRAINS`] + 2 peaks.

use alloc::vec::Vec;

use commonhold_contract::{Permission, UnitId};

use super::frames::{CALM_SAMPLES, Division, in_whole_frames};
use crate::time::Time;
use crate::tree::lineage;

/// Needs are rounded up to multiples of 1/256 of the divided memory.
const GRAINS: u64 = 256;

/// What a unit needed, and when it last needed that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Peak {
    needed: u64,
    at: Time,
}

/// The peaks of a unit's needs. Without samples there are no peaks, and nothing counts as idle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Idleness {
    /// Each later, and lower, than the one before.
    peaks: Vec<Peak>,
}

/// Frames with the same idle time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) frames: u64,
    pub(super) idle_ns: Time,
}

impl Division<'_> {
    /// The frames that may be lent: all that is idle and unowned, less the reserve threshold.
    pub(super) fn excess(&self, idle: &[u64]) -> u64 {
        let lendable = idle.iter().sum::<u64>() + self.entitlement.unheld;
        let reserve = Some(self.input.contract.machine.reserve);
        let reserve = self.capacity.weigh_up(reserve, self.input.frames).unwrap_or(0);
        lendable.saturating_sub(reserve)
    }

    /// What a unit may lend. A unit that needs more than its entitlement lends nothing, even if the rest is cold. What
    /// is reserved and in use is not lent, cold or not.
    pub(super) fn idle(&self, unit: UnitId) -> u64 {
        self.left_of_own(unit, self.needed(unit))
    }

    /// The part of [`idle`](Self::idle) that is unused, not merely cold.
    pub(super) fn unused(&self, unit: UnitId) -> u64 {
        self.left_of_own(unit, self.facts[unit.index()].used)
    }

    /// What a unit may lend if it needs `needed` frames.
    fn left_of_own(&self, unit: UnitId, needed: u64) -> u64 {
        let own = self.entitlement.own(unit);
        let most = self.lend_permission(unit).most(own);
        if self.may_lend(unit) { own.saturating_sub(needed).min(most) } else { 0 }
    }

    fn may_lend(&self, unit: UnitId) -> bool {
        self.calm[unit.index()] >= CALM_SAMPLES && self.lend_permission(unit).allows()
    }

    /// What a unit may lend, by the contract.
    fn lend_permission(&self, unit: UnitId) -> Permission {
        in_whole_frames(self.input.contract.unit(unit).lend.memory, self.input.frame_bytes)
    }

    /// The part of its entitlement that a unit needs.
    fn needed(&self, unit: UnitId) -> u64 {
        let facts = self.facts[unit.index()];
        let cold = if self.beyond(unit) > 0 { 0 } else { facts.cold };
        facts.used.saturating_sub(cold).max(facts.used.min(self.reserved(unit)))
    }

    /// The hard part of the entitlement of a unit's own processes, by its own reservation or one around it.
    fn reserved(&self, unit: UnitId) -> u64 {
        let hard_part = |id: UnitId| {
            let (value, hard) = (self.entitlement.value(id), self.entitlement.hard(id));
            let part = u128::from(self.entitlement.own(unit)) * u128::from(hard);
            u64::try_from(part.div_ceil(u128::from(value.max(1)))).unwrap_or(u64::MAX)
        };
        lineage(self.input.contract, unit).map(hard_part).max().unwrap_or(0)
    }

    /// While other units are short or borrow, a unit that could lend and exceeds its entitlement gives up the excess,
    /// if that much of its memory is cold.
    pub(super) fn give_up_cold(&mut self) {
        let contract = self.input.contract;
        let takes = |id: UnitId| {
            let borrows = self.before[id.index()] > self.entitlement.own(id);
            self.borrow_permission(id).allows() && (self.facts[id.index()].short || borrows)
        };
        let takers: Vec<bool> = contract.ids().map(|id| !id.is_common() && takes(id)).collect();
        let count = takers.iter().filter(|takes| **takes).count();
        for id in contract.held() {
            let (beyond, other_takers) = (self.beyond(id), count - usize::from(takers[id.index()]));
            let gives_up = other_takers > 0 && self.may_lend(id);
            let facts = &mut self.facts[id.index()];
            if gives_up && beyond > 0 && facts.cold >= beyond {
                facts.used -= beyond;
                facts.cold -= beyond;
            }
        }
    }

    /// Notes what each unit needs. A lender that is short may need all that it lent. An absent unit leaves nothing idle,
    /// so that it begins anew when it comes.
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
    /// Notes that the unit needs `needed` of `divided` frames.
    pub(super) fn note(&mut self, now: Time, needed: u64, divided: u64) {
        if self.peaks.is_empty() {
            // What it needed before is unknown.
            self.peaks.push(Peak { needed: u64::MAX, at: now });
        }
        let grain = (divided / GRAINS).max(1);
        let needed = needed.div_ceil(grain).saturating_mul(grain);
        while self.peaks.last().is_some_and(|last| last.needed <= needed) {
            self.peaks.pop();
        }
        self.peaks.push(Peak { needed, at: now });
    }

    /// Counts nothing as idle: the unit may need all that it has.
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
        // What was rounded up, and what turned out idle only now.
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
