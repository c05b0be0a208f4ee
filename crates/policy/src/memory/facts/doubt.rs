//! Whether a unit's cold pages are believed to be cold.
//!
//! Lending cold pages was wrong if the lender misses them. There are two signs. The lender is short while it lends, and
//! reads pages back. Or, although it has room, it reads pages back so fast that all that it lends would be back within
//! [`BACK_NS`]. Its pages then count as warm for [`DOUBT_NS`], doubling each time up to [`DOUBT_NS_MAX`].

use crate::memory::UnitRecord;
use crate::snapshot::UnitMemory;
use crate::time::{MS, Time};

/// For how long a unit's pages count as warm after it missed what it lent: the first time, and at most.
pub(in crate::memory) const DOUBT_NS: Time = 10_000 * MS;
pub(in crate::memory) const DOUBT_NS_MAX: Time = 640_000 * MS;
/// Pages that are wanted every five minutes are worth their memory (Gray and Putzolu, 1987).
const BACK_NS: Time = 300_000 * MS;
/// The interval over which read-backs are measured.
const BACK_INTERVAL_NS: Time = 2_000 * MS;

impl UnitRecord {
    /// Begins a time of doubt if the unit misses what it lent.
    pub(in crate::memory) fn doubt(&mut self, now: Time, short: bool, memory: UnitMemory, frame_bytes: u64) {
        let missed = short && self.share.lent > 0 && memory.refaulted > self.facts.refaulted;
        if self.reads_back(now, memory, frame_bytes) || missed {
            let forgotten = now > self.doubted_until.saturating_add(DOUBT_NS_MAX);
            self.doubt_ns =
                if forgotten { DOUBT_NS } else { (self.doubt_ns * 2).clamp(DOUBT_NS, DOUBT_NS_MAX) };
            self.doubted_until = now + self.doubt_ns;
        }
    }

    /// Whether the unit lately read back so much that all it lends would be back within [`BACK_NS`]. Pages read back
    /// during a time of doubt do not count: they were taken before it.
    fn reads_back(&mut self, now: Time, memory: UnitMemory, frame_bytes: u64) -> bool {
        let elapsed = now.saturating_sub(self.read_back_at);
        let measured = self.known && now >= self.doubted_until && self.share.lent > 0;
        if measured && elapsed < BACK_INTERVAL_NS {
            return false;
        }
        let read_back = memory.refaulted.saturating_sub(self.read_back);
        (self.read_back_at, self.read_back) = (now, memory.refaulted);
        let limit = u128::from(self.share.lent) * u128::from(elapsed) / u128::from(BACK_NS);
        measured && read_back >= 2 * frame_bytes && u128::from(read_back) >= limit
    }
}
