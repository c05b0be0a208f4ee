//! Disk writes that memory needs: page-outs, and the write-behind of dirty cache pages.
//!
//! Problem: dirty pages of files must reach the disk although no task waits for them.
//!
//! Algorithm: while there are more dirty pages than the dirty limit, or the oldest dirty page is older than
//! the dirty age, the file whose dirty pages are oldest is written, one disk request at a time.
//!
//! Properties: pages stay charged to their units while they are written. Each owner's part of a write is
//! returned, for charging the bandwidth (seed 000, section 3.3: each page of a shared write to its unit).
//!
//! Limit: the pages of one write count as contiguous in the file.

use commonhold_contract::UnitId;
use commonhold_policy::share::split;

use super::{FileId, Memory, SpaceId};

/// The owner of the pages of a page-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A process's memory, which is written to swap.
    Space(SpaceId),
    /// A file, which is written to its place on disk.
    File(FileId),
}

/// A disk write in flight. It cannot be copied, so that it is handed to [`Memory::written`] only once.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct PageOut {
    source: Source,
    /// Whether the write frees the frames.
    leaves: bool,
    /// Whether an order took the pages ([`Memory::order_reclaim`]).
    ordered: bool,
    /// The pages, by unit that is charged for them.
    charges: Vec<(UnitId, u64)>,
}

impl PageOut {
    /// A write of one unit's pages that frees their frames.
    pub(super) fn leaving(source: Source, unit: UnitId, pages: u64) -> Self {
        PageOut { source, leaves: true, ordered: false, charges: vec![(unit, pages)] }
    }

    /// Marks a write of pages that an order took.
    pub(super) fn mark_ordered(&mut self) {
        self.ordered = true;
    }

    /// Whether the write goes to swap.
    pub fn is_to_swap(&self) -> bool {
        matches!(self.source, Source::Space(_))
    }

    /// The owner of the pages.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether the write frees its frames, because memory needs them.
    pub fn leaves(&self) -> bool {
        self.leaves
    }

    /// How many pages it writes.
    pub fn pages(&self) -> u64 {
        self.charges.iter().map(|(_, pages)| pages).sum()
    }

    /// How many pages each unit is charged for.
    pub fn charges(&self) -> &[(UnitId, u64)] {
        &self.charges
    }
}

impl Memory {
    /// The number of pages of files that are not on disk yet, including those being written.
    pub fn dirty_pages(&self) -> u64 {
        self.files.iter().map(|file| file.dirty() + file.in_flight()).sum()
    }

    /// The next write-behind, if one is due. Call it until it returns `None`, or the limit of writes in
    /// flight is reached.
    pub fn flush(&mut self) -> Option<PageOut> {
        let dirty: u64 = self.files.iter().map(super::cache::CachedFile::dirty).sum();
        let number = |(i, _): &(usize, _)| FileId(u32::try_from(*i).unwrap_or(u32::MAX));
        let oldest = self.files.iter().enumerate().filter(|(_, file)| file.dirty() > 0);
        let (since, id) = oldest.map(|pair| (pair.1.dirty_since, number(&pair))).min()?;
        let due = dirty > self.dirty_limit || self.now.saturating_sub(since) >= self.dirty_age_ns;
        if due { self.write_out(id) } else { None }
    }

    /// Writes dirty pages of a file now, as many as one request takes: for a task that waits for them. `None`
    /// if the file has no dirty pages.
    pub fn write_out(&mut self, id: FileId) -> Option<PageOut> {
        let file = &mut self.files[id.0 as usize];
        let before = file.dirty();
        let pages = before.min(self.request);
        if pages == 0 {
            return None;
        }
        file.remove_oldest_dirty(pages, before);
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

    /// Completes a disk write. Returns how many frames it freed.
    pub fn written(&mut self, done: PageOut) -> u64 {
        let before = self.free;
        for (unit, pages) in done.charges {
            if done.ordered {
                self.order_written(unit, pages);
            }
            match done.source {
                Source::Space(id) => self.space_written(id, unit, pages),
                Source::File(id) if done.leaves => self.cache_written_and_freed(id, unit, pages),
                Source::File(id) => self.cache_written(id, unit, pages),
            }
        }
        match done.source {
            Source::Space(id) => self.retire_space(id),
            Source::File(id) => self.retire_file(id),
        }
        self.free - before
    }

    /// A process's pages are in swap: frees their frames.
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

    /// A file's pages were written to free their frames.
    fn cache_written_and_freed(&mut self, id: FileId, unit: UnitId, pages: u64) {
        self.evicted += pages;
        let file = &mut self.files[id.0 as usize];
        file.owned_by(unit).leaving -= pages;
        file.note_evicted(pages, self.evicted);
        self.units[unit.index()].leaving -= pages;
        self.uncharge(unit, pages);
    }

    /// A file's pages were written and stay in the cache, clean; if the file was removed meanwhile, frees
    /// their frames.
    fn cache_written(&mut self, id: FileId, unit: UnitId, pages: u64) {
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
