//! Disk writes that memory needs: page-outs, and the write-behind of dirty cache pages.
//!
//! Problem: dirty pages of files must reach the disk although no task waits for them.
//!
//! Algorithm: there may be more dirty pages than the dirty limit, or the oldest may be older than the dirty age. While
//! that is so, the file whose dirty pages are oldest is written, a request's worth at a time.
//!
//! Properties: pages being written are charged as before. Each owner's part of the write is returned, for charging the
//! bandwidth (seed 000, section 3.3: each page of a shared write to its unit).
//!
//! Limit: the pages of one write are taken as contiguous in the file.

use commonhold_contract::UnitId;
use commonhold_policy::share::split;

use super::{FileId, Memory, SpaceId};

/// Where the pages of a page-out are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A process's memory: they go to swap.
    Space(SpaceId),
    /// A file.
    File(FileId),
}

/// A disk write under way. Cannot be copied: it is given back to [`Memory::written`] once.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct PageOut {
    source: Source,
    /// Whether the frames are free afterwards.
    leaves: bool,
    /// Whether an order took the pages ([`Memory::take`]).
    ordered: bool,
    charges: Vec<(UnitId, u64)>,
}

impl PageOut {
    pub(super) fn leaving(source: Source, unit: UnitId, pages: u64) -> Self {
        PageOut { source, leaves: true, ordered: false, charges: vec![(unit, pages)] }
    }

    /// It writes what an order took.
    pub(super) fn mark_ordered(&mut self) {
        self.ordered = true;
    }

    /// Whether it is written to swap.
    pub fn is_to_swap(&self) -> bool {
        matches!(self.source, Source::Space(_))
    }

    /// Where the pages are from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether the frames are free when it is written: on behalf of a unit that is short.
    pub fn leaves(&self) -> bool {
        self.leaves
    }

    /// How many pages it writes.
    pub fn pages(&self) -> u64 {
        self.charges.iter().map(|(_, pages)| pages).sum()
    }

    /// Whose pages they are.
    pub fn charges(&self) -> &[(UnitId, u64)] {
        &self.charges
    }
}

impl Memory {
    /// Pages of files that the disk does not have yet, those being written included.
    pub fn dirty_pages(&self) -> u64 {
        self.files.iter().map(|file| file.dirty() + file.in_flight()).sum()
    }

    /// The next write-behind, if one is due. Call it until it returns `None`, or the limit of writes in flight is reached.
    pub fn flush(&mut self) -> Option<PageOut> {
        let dirty: u64 = self.files.iter().map(super::cache::CachedFile::dirty).sum();
        let number = |(i, _): &(usize, _)| FileId(u32::try_from(*i).unwrap_or(u32::MAX));
        let oldest = self.files.iter().enumerate().filter(|(_, file)| file.dirty() > 0);
        let (since, id) = oldest.map(|pair| (pair.1.dirty_since, number(&pair))).min()?;
        let due = dirty > self.dirty_limit || self.now.saturating_sub(since) >= self.dirty_age_ns;
        if due { self.write_out(id) } else { None }
    }

    /// Writes dirty pages of a file now, as many as one request takes: for a task that waits for them. `None` if the file
    /// has no dirty pages.
    pub fn write_out(&mut self, id: FileId) -> Option<PageOut> {
        let file = &mut self.files[id.0 as usize];
        let before = file.dirty();
        let pages = before.min(self.request);
        if pages == 0 {
            return None;
        }
        file.aged_dirty(pages, before);
        let dirty: Vec<u64> = file.owned.iter().map(|owned| owned.dirty).collect();
        let mut charges = Vec::new();
        for (owned, pages) in file.owned.iter_mut().zip(split(pages, &dirty)) {
            owned.dirty -= pages;
            owned.writing += pages;
            self.units[owned.unit.index()].writing += pages;
            if pages > 0 {
                charges.push((owned.unit, pages));
            }
        }
        Some(PageOut { source: Source::File(id), leaves: false, ordered: false, charges })
    }

    /// The disk write is done. Returns how many frames are free by it.
    pub fn written(&mut self, done: PageOut) -> u64 {
        let before = self.free;
        for (unit, pages) in done.charges {
            if done.ordered {
                self.order_written(unit, pages);
            }
            match done.source {
                Source::Space(id) => self.space_written(id, unit, pages),
                Source::File(id) if done.leaves => self.left_cache(id, unit, pages),
                Source::File(id) => self.cleaned(id, unit, pages),
            }
        }
        match done.source {
            Source::Space(id) => self.retire_space(id),
            Source::File(id) => self.retire_file(id),
        }
        self.free - before
    }

    fn space_written(&mut self, id: SpaceId, unit: UnitId, pages: u64) {
        self.evicted += pages;
        let space = &mut self.spaces[id.0 as usize];
        space.leaving -= pages;
        if space.open {
            space.swapped += pages;
        }
        self.units[unit.index()].leaving -= pages;
        self.vacate(id, pages);
        self.uncharge(unit, pages);
    }

    fn left_cache(&mut self, id: FileId, unit: UnitId, pages: u64) {
        self.evicted += pages;
        let file = &mut self.files[id.0 as usize];
        file.owned_by(unit).leaving -= pages;
        file.went(pages, self.evicted);
        self.units[unit.index()].leaving -= pages;
        self.uncharge(unit, pages);
    }

    fn cleaned(&mut self, id: FileId, unit: UnitId, pages: u64) {
        let file = &mut self.files[id.0 as usize];
        let open = file.open;
        let owned = file.owned_by(unit);
        owned.writing -= pages;
        self.units[unit.index()].writing -= pages;
        if open {
            owned.clean += pages;
        } else {
            self.uncharge(unit, pages);
        }
    }
}
