//! Doubt whether a unit's cold pages are really unneeded.
//!
//! Lending cold pages was wrong if the lender soon needs these pages again. There are two signs: the lender
//! is short while it lends, and has refaults; or it has room, but refaults so fast that its whole loan would
//! be read back within [`BACK_NS`]. The unit's cold pages then count as warm for [`DOUBT_NS`], with
//! exponential back-off up to [`DOUBT_NS_MAX`].

use crate::memory::UnitRecord;
use crate::snapshot::UnitMemory;
use crate::time::{MS, Time};

/// For how long a unit's cold pages count as warm after the first wrong loan.
pub(in crate::memory) const DOUBT_NS: Time = 10_000 * MS;
/// The longest such period. A unit whose last doubt ended longer ago than this starts at [`DOUBT_NS`] again.
pub(in crate::memory) const DOUBT_NS_MAX: Time = 640_000 * MS;
/// Pages that are wanted every five minutes are worth their memory (Gray and Putzolu, 1987).
const BACK_NS: Time = 300_000 * MS;
/// The interval over which refaults are measured.
const BACK_INTERVAL_NS: Time = 2_000 * MS;

impl UnitRecord {
    /// Begins a period of doubt if the unit needs the pages that it lent.
    pub(in crate::memory) fn update_doubt(
        &mut self,
        now: Time,
        short: bool,
        memory: UnitMemory,
        frame_bytes: u64,
    ) {
        let is_short_lender = short && self.share.lent > 0 && memory.refaulted > self.facts.refaulted;
        if self.refaults_too_fast(now, memory, frame_bytes) || is_short_lender {
            let is_first = now > self.doubted_until.saturating_add(DOUBT_NS_MAX);
            self.doubt_ns =
                if is_first { DOUBT_NS } else { (self.doubt_ns * 2).clamp(DOUBT_NS, DOUBT_NS_MAX) };
            self.doubted_until = now + self.doubt_ns;
        }
    }

    /// Whether the unit lately refaulted so fast that its whole loan would be read back within [`BACK_NS`].
    /// Refaults during a period of doubt do not count, since their pages were reclaimed before the doubt
    /// began. Measures at most once per [`BACK_INTERVAL_NS`], and returns `false` in between.
    fn refaults_too_fast(&mut self, now: Time, memory: UnitMemory, frame_bytes: u64) -> bool {
        let elapsed = now.saturating_sub(self.read_back_at);
        let counts = self.known && now >= self.doubted_until && self.share.lent > 0;
        if counts && elapsed < BACK_INTERVAL_NS {
            return false;
        }
        let read_back = memory.refaulted.saturating_sub(self.read_back);
        (self.read_back_at, self.read_back) = (now, memory.refaulted);
        let limit = u128::from(self.share.lent) * u128::from(elapsed) / u128::from(BACK_NS);
        counts && read_back >= 2 * frame_bytes && u128::from(read_back) >= limit
    }
}
