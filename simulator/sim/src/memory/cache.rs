//! The page cache of one file, as counts of pages per owner.
//!
//! Pages of a file are counted, not simulated one by one. An operation that hits some of them hits each kind
//! (clean, dirty; owner) in proportion, and the remainder of each division is carried to the next operation.
//! So when a second unit reads the file, the first unit's pages become `shared` as fast as if the reads fell
//! on random pages; if the second unit reads the whole file at once, all pages do.

use commonhold_contract::{MILLIONTH, UnitId};
use commonhold_policy::share::split;

use crate::Time;

/// A file whose pages were used only once counts as this many times older, since a task that reads a file
/// from end to end usually does not read it again.
pub(super) const USED_ONCE: u64 = 4;

/// One unit's pages of a file.
#[derive(Debug, Clone)]
pub(super) struct Owned {
    pub(super) unit: UnitId,
    pub(super) clean: u64,
    pub(super) dirty: u64,
    /// Pages being written that stay in the cache.
    pub(super) writing: u64,
    /// Pages being written whose frames will be free.
    pub(super) leaving: u64,
    /// As in [`Space`](super::space::Space).
    pub(super) due: i64,
}

impl Owned {
    /// Pages that a process can read without the disk.
    pub(super) fn cached(&self) -> u64 {
        self.clean + self.dirty + self.writing
    }

    /// Pages that occupy frames.
    pub(super) fn charged(&self) -> u64 {
        self.cached() + self.leaving
    }
}

/// The cached pages of one file.
#[derive(Debug, Clone)]
pub(super) struct CachedFile {
    /// Whether the file still exists.
    pub(super) open: bool,
    /// The file's size.
    pub(super) pages: u64,
    pub(super) owned: Vec<Owned>,
    /// When a page of the file was last used.
    pub(super) used_at: Time,
    /// When the oldest cached pages entered the cache.
    since: Time,
    /// When the oldest dirty pages became dirty.
    pub(super) dirty_since: Time,
    /// How many pages have entered the cache since it last had none of the file.
    entered: u64,
    /// How often processes have used a page since then.
    referenced: u64,
    /// How many of the file's pages were ever in the cache.
    seen: u64,
    /// How many pages were evicted recently and are not back: a page that returns may be one of them, a
    /// refault.
    pub(super) evicted: u64,
    /// The machine's count of evictions at the file's latest.
    pub(super) evicted_at: u64,
    // Remainders of the divisions that count hits in proportion.
    shared_rest: u64,
    dirty_rest: u64,
    refault_rest: u64,
    first_rest: u64,
}

impl CachedFile {
    pub(super) fn new(pages: u64) -> Self {
        CachedFile {
            open: true,
            pages,
            owned: Vec::new(),
            used_at: 0,
            since: 0,
            dirty_since: 0,
            entered: 0,
            referenced: 0,
            seen: 0,
            evicted: 0,
            evicted_at: 0,
            shared_rest: 0,
            dirty_rest: 0,
            refault_rest: 0,
            first_rest: 0,
        }
    }

    pub(super) fn cached(&self) -> u64 {
        self.owned.iter().map(Owned::cached).sum()
    }

    pub(super) fn clean(&self) -> u64 {
        self.owned.iter().map(|owned| owned.clean).sum()
    }

    pub(super) fn dirty(&self) -> u64 {
        self.owned.iter().map(|owned| owned.dirty).sum()
    }

    /// Pages that are being written.
    pub(super) fn in_flight(&self) -> u64 {
        self.owned.iter().map(|owned| owned.writing + owned.leaving).sum()
    }

    /// The age by which clean pages are evicted: the time since the last use; for a file that was used only
    /// once, the time since its oldest page entered the cache, times [`USED_ONCE`].
    pub(super) fn clean_age(&self, now: Time) -> Time {
        if self.referenced > self.entered {
            now.saturating_sub(self.used_at)
        } else {
            now.saturating_sub(self.since).saturating_mul(USED_ONCE)
        }
    }

    /// The age by which dirty pages are evicted: the time since the oldest became dirty, longer if the file
    /// was used only once.
    pub(super) fn dirty_age(&self, now: Time) -> Time {
        let age = now.saturating_sub(self.dirty_since);
        if self.referenced > self.entered { age } else { age.saturating_mul(USED_ONCE) }
    }

    /// A unit's entry, inserted if absent.
    pub(super) fn owned_by(&mut self, unit: UnitId) -> &mut Owned {
        let index = self.owned.iter().position(|owned| owned.unit == unit).unwrap_or_else(|| {
            self.owned.push(Owned { unit, clean: 0, dirty: 0, writing: 0, leaving: 0, due: 0 });
            self.owned.len() - 1
        });
        &mut self.owned[index]
    }

    /// Adds pages to the cache, owned by `unit`.
    pub(super) fn add_pages(&mut self, unit: UnitId, pages: u64, dirty: bool, now: Time) {
        if self.cached() == 0 {
            (self.since, self.entered, self.referenced) = (now, 0, 0);
        }
        if dirty && self.dirty() == 0 {
            self.dirty_since = now;
        }
        self.entered += pages;
        self.used_at = now;
        let owned = self.owned_by(unit);
        if dirty {
            owned.dirty += pages;
        } else {
            owned.clean += pages;
        }
    }

    /// Records the eviction of pages. `evictions` is the machine's count of evicted pages, with these.
    pub(super) fn note_evicted(&mut self, pages: u64, evictions: u64) {
        self.evicted = (self.evicted + pages).min(self.seen.saturating_sub(self.cached()));
        self.evicted_at = evictions;
    }

    /// `pages` missing pages are about to enter the cache. Returns how many of them are refaults: pages that
    /// were evicted recently, that is, at most `frames` evictions ago; `evictions` is the machine's count. It
    /// is assumed that pages that were never cached come first, or, if the access is `anywhere` in the file,
    /// in proportion to their number.
    pub(super) fn count_refaults(&mut self, pages: u64, evictions: u64, frames: u64, anywhere: bool) -> u64 {
        if evictions - self.evicted_at > frames {
            self.evicted = 0;
        }
        let seen_missing = self.seen.saturating_sub(self.cached());
        let never_seen = self.pages.saturating_sub(self.seen);
        let first_seen = match anywhere {
            true => {
                let missing = never_seen + seen_missing;
                let hits = hits_in_proportion(pages, never_seen, missing, &mut self.first_rest);
                hits.max(pages.saturating_sub(seen_missing))
            }
            false => pages.min(never_seen),
        };
        self.seen += first_seen;
        let returning = (pages - first_seen).min(seen_missing);
        let refaults = hits_in_proportion(returning, self.evicted, seen_missing, &mut self.refault_rest);
        self.evicted -= refaults;
        refaults
    }

    /// Whether the counts of seen and evicted pages are consistent.
    pub(super) fn evictions_are_consistent(&self) -> bool {
        !self.open || (self.seen <= self.pages && self.evicted <= self.seen.saturating_sub(self.cached()))
    }

    /// The fraction of the cached pages that was not used since `before`, as numerator and denominator. For a
    /// file that was used only once, these are the pages that entered before, which are assumed to have
    /// entered evenly; for any other file, all pages or none.
    pub(super) fn unused_since(&self, before: Time) -> (u64, u64) {
        if self.used_at <= before {
            (1, 1)
        } else if self.referenced > self.entered || self.since >= before {
            (0, 1)
        } else {
            (before - self.since, self.used_at - self.since)
        }
    }

    /// Records that cached pages are used.
    pub(super) fn touch(&mut self, pages: u64, now: Time) {
        self.used_at = now;
        self.referenced += pages;
    }

    /// A process of `unit` uses cached pages. Pages that belong to another unit become `shared`'s. Returns
    /// how many, by former owner.
    pub(super) fn reference(&mut self, unit: UnitId, pages: u64, now: Time) -> Vec<(UnitId, u64)> {
        self.touch(pages, now);
        let is_foreign = |owned: &&mut Owned| owned.unit != unit && owned.unit != UnitId::SHARED;
        let cached = self.cached();
        let mut foreign: Vec<&mut Owned> = self.owned.iter_mut().filter(is_foreign).collect();
        let movable: Vec<u64> = foreign.iter().map(|owned| owned.clean + owned.dirty).collect();
        let hits = hits_in_proportion(pages.min(cached), movable.iter().sum(), cached, &mut self.shared_rest);
        let (mut clean, mut dirty, mut moved) = (0, 0, Vec::new());
        for (owned, pages) in foreign.iter_mut().zip(split(hits, &movable)) {
            let kinds = split(pages, &[owned.clean, owned.dirty]);
            owned.clean -= kinds[0];
            owned.dirty -= kinds[1];
            clean += kinds[0];
            dirty += kinds[1];
            moved.push((owned.unit, pages));
        }
        if clean + dirty > 0 {
            let shared = self.owned_by(UnitId::SHARED);
            shared.clean += clean;
            shared.dirty += dirty;
        }
        moved
    }

    /// Cached pages are overwritten: the clean ones among them become dirty.
    pub(super) fn overwrite(&mut self, pages: u64, now: Time) {
        if self.dirty() == 0 {
            self.dirty_since = now;
        }
        let cached = self.cached();
        let clean: Vec<u64> = self.owned.iter().map(|owned| owned.clean).collect();
        let hits = hits_in_proportion(pages.min(cached), clean.iter().sum(), cached, &mut self.dirty_rest);
        for (owned, pages) in self.owned.iter_mut().zip(split(hits, &clean)) {
            owned.clean -= pages;
            owned.dirty += pages;
        }
    }

    /// The oldest `pages` of `before` clean pages leave: updates the age of the rest, as if pages had entered
    /// evenly.
    pub(super) fn remove_oldest_clean(&mut self, pages: u64, before: u64) {
        self.since = interpolate(self.since, self.used_at, pages, before);
    }

    /// The oldest `pages` of `before` dirty pages are being written: updates the age of the rest.
    pub(super) fn remove_oldest_dirty(&mut self, pages: u64, before: u64) {
        self.dirty_since = interpolate(self.dirty_since, self.used_at, pages, before);
    }
}

/// How many of the `pages` that an operation hits among `total` belong to a group of `group` pages, in
/// proportion. The remainder of the division, in millionths of a page, is carried in `rest`.
fn hits_in_proportion(pages: u64, group: u64, total: u64, rest: &mut u64) -> u64 {
    if total == 0 || group == 0 {
        return 0;
    }
    let exact = u128::from(pages) * u128::from(group) * u128::from(MILLIONTH) / u128::from(total);
    let sum = exact + u128::from(*rest);
    let hits = u64::try_from(sum / u128::from(MILLIONTH)).unwrap_or(u64::MAX).min(group).min(pages);
    *rest = u64::try_from(sum - u128::from(hits) * u128::from(MILLIONTH)).unwrap_or(0).min(MILLIONTH);
    hits
}

/// The time at the fraction `numerator / denominator` of the span between two times.
fn interpolate(from: Time, to: Time, numerator: u64, denominator: u64) -> Time {
    let span = u128::from(to.saturating_sub(from));
    let offset = span * u128::from(numerator) / u128::from(denominator.max(1));
    from + u64::try_from(offset).unwrap_or(0)
}
