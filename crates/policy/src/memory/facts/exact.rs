//! The facts of a machine that hands out memory itself, frame by frame.
//!
//! Such a machine, the simulated one, knows how many frames each unit uses, and whether a request of the unit
//! was refused. It also knows which pages were written, and it drops clean pages in no time. So loans are
//! limited by nothing but the rate of writes, and only if the machine wants them limited
//! ([`Frames::in_time`]). The whole call-back time can be used for writing, since the machine notices at once
//! that a lender is short.

use alloc::vec::Vec;

use crate::memory::frames::Facts;
use crate::memory::reclaim_rates::{ReclaimRates, Taken};
use crate::memory::{MemoryState, Sample};
use crate::snapshot::Frames;

impl MemoryState {
    /// The facts of all units, in frames, by the unit's index.
    pub(super) fn observe_exact(&mut self, sample: Sample<'_>, frames: Frames) -> Vec<Facts> {
        let Sample { now, input, facts, .. } = sample;
        (self.kernel, self.shared) = (facts.kernel, facts.shared);
        self.sampled_at = Some(now);
        if self.units.iter().all(|unit| !unit.known) {
            self.reclaim_rates = ReclaimRates::free_to_drop();
        }
        let mut in_frames = Vec::with_capacity(self.units.len());
        for id in input.contract.ids() {
            let memory = facts.units.get(id.index()).copied().unwrap_or_default();
            let unit = &mut self.units[id.index()];
            let callable = frames.in_time.then(|| {
                let written = Taken { bytes: memory.taken, ns: memory.taking_ns };
                let already_learnt = &mut unit.reclaiming.counted;
                self.reclaim_rates.learn_written(already_learnt, written, memory.taking, facts.swap_next);
                self.reclaim_rates.curve(memory, facts).in_frames(frames.bytes)
            });
            let short = memory.refused > unit.facts.refused;
            (unit.facts, unit.known, unit.short) = (memory, true, short);
            let present = input.snapshot.unit(id).processes > 0;
            let used = memory.used / frames.bytes;
            in_frames.push(Facts { present, used, short, callable, ..Facts::default() });
        }
        in_frames
    }
}
