//! For how long a unit has left memory idle.
//!
//! Problem: an owner may be held up for a part of the time for which it left memory idle. A unit that needs 100 MiB
//! every second, and 1 GiB once a day, left the most of it idle for hours, and 100 MiB of it for no second. So every
//! piece has a time of its own.
//!
//! Algorithm: what a unit needed within a time is the most that it needed at any look in that time. The looks are kept
//! that this may depend on, its *peaks*: each look after which it never needed as much again. From one peak to the next
//! it needed less. What lies between the two has been idle since the earlier.
//!
//! Example: a unit of 100 frames needed 80 until 10 s, 30 until 40 s, and 10 since. At 60 s, 20 of its frames have been
//! idle for as long as it is looked at, 50 for 50 s, and 20 for 20 s.
//!
//! Properties (tested):
//! - No piece is said to be idle for longer than the unit did without it.
//! - Pieces add up to what the unit does not need now, rounded.
//! - There are no more peaks than [`GRAINS`] and two.

use alloc::vec::Vec;

use crate::time::Time;

/// Needs are kept in this part of what is divided.
const GRAINS: u64 = 256;

/// What a unit needed, and when it needed that last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Peak {
    needed: u64,
    at: Time,
}

/// What is remembered of what a unit needed. Of one that was never looked at: nothing, so that nothing is idle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Idleness {
    /// Each later, and lower, than the one before.
    peaks: Vec<Peak>,
}

/// Memory that has been idle for a time, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) frames: u64,
    pub(super) idle_ns: Time,
}

impl Idleness {
    /// The unit needs so many frames, of so many that are divided.
    pub(super) fn note(&mut self, now: Time, needed: u64, divided: u64) {
        if self.peaks.is_empty() {
            // Nobody knows what it needed before.
            self.peaks.push(Peak { needed: u64::MAX, at: now });
        }
        let grain = (divided / GRAINS).max(1);
        let needed = needed.div_ceil(grain).saturating_mul(grain);
        while self.peaks.last().is_some_and(|last| last.needed <= needed) {
            self.peaks.pop();
        }
        self.peaks.push(Peak { needed, at: now });
    }

    /// The unit may need all that it has: nothing has been idle.
    pub(super) fn forget(&mut self) {
        self.peaks.clear();
    }

    /// What of `own` frames is idle while `needed` are not, in pieces, what was idle longest first.
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
        // What was rounded up, and what it was found not to need only now.
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
    fn every_piece_has_a_time_of_its_own() {
        let mut idleness = Idleness::default();
        assert_eq!(idleness.pieces(0, 100, 0), [Piece { frames: 100, idle_ns: 0 }]);
        for (at, needed) in [(0, 60), (10, 80), (20, 30), (40, 30), (50, 10), (60, 10)] {
            idleness.note(at * SECOND, needed, 100);
        }
        let piece = |frames, seconds| Piece { frames, idle_ns: seconds * SECOND };
        assert_eq!(idleness.pieces(60 * SECOND, 100, 10), [piece(20, 60), piece(50, 50), piece(20, 20)]);
        // It has less by now, or needs more than it did at the last look.
        assert_eq!(idleness.pieces(60 * SECOND, 70, 40), [piece(30, 50)]);
        idleness.forget();
        assert_eq!(idleness.pieces(60 * SECOND, 100, 10), [piece(90, 0)]);
    }

    proptest! {
        /// Against what was written down at every look.
        #[test]
        fn no_piece_was_needed_since(
            looks in proptest::collection::vec((1u64..5, 0u64..2_000), 1..60),
            own in 0u64..2_500,
            divided in prop_oneof![Just(100u64), Just(2_000), Just(100_000)],
        ) {
            let mut idleness = Idleness::default();
            let (mut now, mut seen) = (0, Vec::new());
            for (step, needed) in looks {
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
                // And it is not said to be idle for much less than it was.
                let before = seen.iter().rev().find(|(_, needed)| needed.div_ceil(grain) * grain > low);
                let idle = now - before.map_or(seen[0].0, |(at, _)| *at);
                prop_assert!(piece.idle_ns >= idle || piece.idle_ns == 0, "{piece:?}: {idle}");
                above = low;
            }
            prop_assert!(idleness.peaks.len() as u64 <= 2_000 / grain + 3);
        }
    }
}
