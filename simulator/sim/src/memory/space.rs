//! A process's anonymous memory, as counts of pages.

use commonhold_contract::{MILLIONTH, UnitId};

use crate::Time;

/// Part of the pages that come back from swap and are modified before they are paged out again, in millionths. An
/// assumption: half of what a program comes back to it also writes.
pub const MODIFIED: u64 = 500_000;

/// The pages of one process that belong to no file.
#[derive(Debug, Clone)]
pub(super) struct Space {
    pub(super) unit: UnitId,
    /// Its process still exists.
    pub(super) open: bool,
    /// It comes back to each of its pages once in so much of its time.
    pub(super) reuse_ns: Time,
    /// When it was opened, and when it last ran.
    pub(super) born: Time,
    pub(super) ran_at: Time,
    /// Resident, with an up-to-date copy in swap.
    pub(super) clean: u64,
    /// Resident, without one.
    pub(super) dirty: u64,
    /// On their way to swap; their frames are still taken.
    pub(super) leaving: u64,
    /// In swap alone.
    pub(super) swapped: u64,
    /// The node that its process runs in, and how many of its frames lie in each: see [`super::nodes`].
    pub(super) home: usize,
    pub(super) lies: Vec<u64>,
    /// Pages that it owes the pager, in millionths; below 0: that it gave in advance.
    pub(super) due: i64,
    /// Rest of the division that decides how many of the pages that came back are modified.
    modified_rest: u64,
    /// The same of that which decides how many of the oldest pages are clean.
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
            lies: Vec::new(),
            due: 0,
            modified_rest: 0,
            oldest_rest: 0,
        }
    }

    /// Pages that it can use.
    pub(super) fn resident(&self) -> u64 {
        self.clean + self.dirty
    }

    /// Pages that take up frames.
    pub(super) fn charged(&self) -> u64 {
        self.resident() + self.leaving
    }

    /// Time since a typical page of it was used: while it runs, its reuse time.
    pub(super) fn age(&self, now: Time) -> Time {
        self.reuse_ns.saturating_add(now.saturating_sub(self.ran_at))
    }

    /// Pages come back from swap.
    pub(super) fn come_back(&mut self, pages: u64) {
        let modified = pages * MODIFIED + self.modified_rest;
        self.modified_rest = modified % MILLIONTH;
        self.dirty += modified / MILLIONTH;
        self.clean += pages - modified / MILLIONTH;
        self.swapped -= pages;
    }

    /// Gives up to `pages` of its resident pages: those freed at once, and those to be written first. Clean ones go first,
    /// because they cost nothing.
    pub(super) fn give(&mut self, pages: u64) -> (u64, u64) {
        self.leave(pages.min(self.clean), pages)
    }

    /// The same as Linux does it: the oldest go first, clean or not. So clean ones are their part of what goes.
    pub(super) fn give_oldest(&mut self, pages: u64) -> (u64, u64) {
        let resident = self.resident();
        let pages = pages.min(resident);
        // Clusters are small: without what was left over of those before, none would have a whole clean page.
        let part =
            u128::from(pages) * u128::from(MILLIONTH) * u128::from(self.clean) / u128::from(resident.max(1));
        let freed = u64::try_from(part).unwrap_or(u64::MAX).saturating_add(self.oldest_rest);
        self.oldest_rest = freed % MILLIONTH;
        let no_fewer = pages.saturating_sub(self.dirty);
        self.leave((freed / MILLIONTH).clamp(no_fewer, pages.min(self.clean).max(no_fewer)), pages)
    }

    fn leave(&mut self, freed: u64, pages: u64) -> (u64, u64) {
        self.clean -= freed;
        self.swapped += freed;
        let leaving = (pages - freed).min(self.dirty);
        self.dirty -= leaving;
        self.leaving += leaving;
        (freed, leaving)
    }
}
