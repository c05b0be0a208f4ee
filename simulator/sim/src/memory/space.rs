//! A process's anonymous memory, as counts of pages.

use commonhold_contract::{MILLIONTH, UnitId};

use crate::Time;

/// The fraction of pages swapped in that are modified before they are paged out again, in millionths. An
/// assumption: a program also writes half of the pages that it accesses again.
pub const MODIFIED: u64 = 500_000;

/// The pages of one process that belong to no file.
#[derive(Debug, Clone)]
pub(super) struct Space {
    pub(super) unit: UnitId,
    /// Whether the process still exists.
    pub(super) open: bool,
    /// The process accesses each of its pages once per this much of its CPU time.
    pub(super) reuse_ns: Time,
    /// When the space was opened, and when its process last ran.
    pub(super) born: Time,
    pub(super) ran_at: Time,
    /// Resident pages with an up-to-date copy in swap.
    pub(super) clean: u64,
    /// Resident pages without an up-to-date copy.
    pub(super) dirty: u64,
    /// Pages being written to swap, which still occupy frames.
    pub(super) leaving: u64,
    /// Pages in swap alone.
    pub(super) swapped: u64,
    /// The node in which the process runs, and the number of the space's frames in each node: see
    /// [`super::nodes`].
    pub(super) home: usize,
    pub(super) by_node: Vec<u64>,
    /// The space's part of what the pager took so far, less what it gave, in millionths of a page.
    pub(super) due: i64,
    /// The remainder of the division that decides how many of the pages swapped in are modified.
    modified_rest: u64,
    /// The remainder of the division that decides how many of the oldest pages are clean.
    oldest_rest: u64,
}

impl Space {
    pub(super) fn new(unit: UnitId, reuse_ns: Time, now: Time) -> Self {
        Space {
            unit,
            open: true,
            reuse_ns,
            born: now,
            ran_at: now,
            clean: 0,
            dirty: 0,
            leaving: 0,
            swapped: 0,
            home: 0,
            by_node: Vec::new(),
            due: 0,
            modified_rest: 0,
            oldest_rest: 0,
        }
    }

    /// Pages that the process can use without a fault.
    pub(super) fn resident(&self) -> u64 {
        self.clean + self.dirty
    }

    /// Pages that occupy frames.
    pub(super) fn charged(&self) -> u64 {
        self.resident() + self.leaving
    }

    /// The time since a typical page was used: the reuse time while the process runs, and longer the longer
    /// it does not run.
    pub(super) fn age(&self, now: Time) -> Time {
        self.reuse_ns.saturating_add(now.saturating_sub(self.ran_at))
    }

    /// Pages are swapped in.
    pub(super) fn swap_in(&mut self, pages: u64) {
        let modified = pages * MODIFIED + self.modified_rest;
        self.modified_rest = modified % MILLIONTH;
        self.dirty += modified / MILLIONTH;
        self.clean += pages - modified / MILLIONTH;
        self.swapped -= pages;
    }

    /// Gives up to `pages` resident pages, clean ones first, because they need no write. Returns how many
    /// frames are free at once, and how many pages must be written first.
    pub(super) fn give(&mut self, pages: u64) -> (u64, u64) {
        self.leave(pages.min(self.clean), pages)
    }

    /// Gives pages like [`Space::give`], but as Linux does: the oldest go first, clean or dirty. So the clean
    /// pages among them are in proportion.
    pub(super) fn give_oldest(&mut self, pages: u64) -> (u64, u64) {
        let resident = self.resident();
        let pages = pages.min(resident);
        // The remainder is carried on: a cluster is so small that it might never have a whole clean page
        // otherwise.
        let clean_part =
            u128::from(pages) * u128::from(MILLIONTH) * u128::from(self.clean) / u128::from(resident.max(1));
        let freed = u64::try_from(clean_part).unwrap_or(u64::MAX).saturating_add(self.oldest_rest);
        self.oldest_rest = freed % MILLIONTH;
        let no_fewer = pages.saturating_sub(self.dirty);
        self.leave((freed / MILLIONTH).clamp(no_fewer, pages.min(self.clean).max(no_fewer)), pages)
    }

    /// Takes `freed` clean pages, and dirty pages for the rest of `pages`.
    fn leave(&mut self, freed: u64, pages: u64) -> (u64, u64) {
        self.clean -= freed;
        self.swapped += freed;
        let leaving = (pages - freed).min(self.dirty);
        self.dirty -= leaving;
        self.leaving += leaving;
        (freed, leaving)
    }
}
