//! The facts of a machine that hands out memory itself, frame by frame.
//!
//! Such a machine knows what [`frames`](super::frames) asks for: what each unit has, and whether a request of it was
//! refused. It tells of each page whether it was written, and drops clean ones in no time. So loans are bounded by the
//! pace of its writes alone, where they are bounded at all. All of the promised time is there for writing, since a
//! lender is seen to be short at once.

use alloc::vec::Vec;

use super::State;
use super::frames::Facts;
use super::rates::{Rates, Taken};
use crate::input::Input;
use crate::snapshot::{Frames, MemoryFacts};

impl State {
    pub(super) fn exact_frames(
        &mut self,
        input: Input<'_>,
        facts: &MemoryFacts,
        frames: Frames,
    ) -> Vec<Facts> {
        if self.units.iter().all(|unit| !unit.known) {
            self.rates = Rates::free_to_drop();
        }
        let mut all = Vec::with_capacity(self.units.len());
        for id in input.contract.ids() {
            let seen = facts.units.get(id.index()).copied().unwrap_or_default();
            let unit = &mut self.units[id.index()];
            let callable = frames.in_time.then(|| {
                let written = Taken { bytes: seen.taken, ns: seen.taking_ns };
                self.rates.learn_written(&mut unit.taking.counted, written, seen.taking, facts.swap_next);
                self.rates.pace(seen, facts).in_frames(frames.bytes)
            });
            let short = seen.refused > unit.facts.refused;
            (unit.facts, unit.known, unit.short) = (seen, true, short);
            let present = input.snapshot.unit(id).processes > 0;
            all.push(Facts { present, used: seen.used / frames.bytes, short, callable, ..Facts::default() });
        }
        all
    }
}
