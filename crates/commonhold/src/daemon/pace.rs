//! Statistics on how regularly the control loop turns, and how much CPU time it uses.

use commonhold_policy::Time;

use crate::protocol::PaceReply;

/// Statistics of the turns since the daemon started.
#[derive(Debug, Default)]
pub(super) struct Pace {
    turns: u64,
    /// The start of the last turn.
    last: Time,
    /// The longest time between the starts of two turns.
    longest_gap_ns: u64,
}

impl Pace {
    /// Records the start of a turn.
    pub(super) fn turn(&mut self, now: Time) {
        // The first turn takes long, since every process is new. So the time from the first turn to the
        // second is not counted.
        if self.turns > 1 {
            self.longest_gap_ns = self.longest_gap_ns.max(now.saturating_sub(self.last));
        }
        self.turns += 1;
        self.last = now;
    }

    /// The statistics so far. The CPU time is that of all threads of the process.
    pub(super) fn now(&self) -> PaceReply {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu_ns = u64::try_from(used.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(used.tv_nsec).unwrap_or(0);
        PaceReply { turns: self.turns, longest_gap_ns: self.longest_gap_ns, cpu_ns }
    }
}
