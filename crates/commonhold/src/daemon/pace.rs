//! How evenly the control loop turns, and what it costs.

use commonhold_policy::Time;

use crate::protocol::PaceReply;

/// Turns since the daemon began.
#[derive(Debug, Default)]
pub(super) struct Pace {
    turns: u64,
    /// When the last turn began.
    last: Time,
    /// The longest time from the beginning of a turn to that of the next.
    longest_gap_ns: u64,
}

impl Pace {
    /// A turn begins.
    pub(super) fn turn(&mut self, now: Time) {
        // The first turn takes long, since every process is new to it: the gap after it says nothing.
        if self.turns > 1 {
            self.longest_gap_ns = self.longest_gap_ns.max(now.saturating_sub(self.last));
        }
        self.turns += 1;
        self.last = now;
    }

    pub(super) fn now(&self) -> PaceReply {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu_ns = u64::try_from(used.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(used.tv_nsec).unwrap_or(0);
        PaceReply { turns: self.turns, longest_gap_ns: self.longest_gap_ns, cpu_ns }
    }
}
