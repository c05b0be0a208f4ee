//! The page cache of one file, as counts of pages per owner.
//!
//! Pages of a file are not told apart. An operation that hits some of them hits each kind in proportion, and the rest
//! of each division is carried to the next time. So the first unit's pages become `shared` as fast as if the second
//! unit's reads fell anywhere in the file. All of them become so if the second unit reads the whole file at once.

use commonhold_contract::{MILLIONTH, UnitId};
use commonhold_policy::share::split;

use crate::Time;

/// A file whose pages were used once counts as this many times older: a task that reads a file from end to end does not
/// come back.
pub(super) const USED_ONCE: u64 = 4;

/// One unit's pages of a file.
#[derive(Debug, Clone)]
pub(super) struct Owned {
    pub(super) unit: UnitId,
    pub(super) clean: u64,
    pub(super) dirty: u64,
    /// Being written; they stay.
    pub(super) writing: u64,
    /// Being written; their frames are free afterwards.
    pub(super) leaving: u64,
    /// As in [`Space`](super::space::Space).
    pub(super) due: i64,
}

impl Owned {
    /// Pages that a process would find.
    pub(super) fn there(&self) -> u64 {
        self.clean + self.dirty + self.writing
    }

    pub(super) fn charged(&self) -> u64 {
        self.there() + self.leaving
    }
}

/// The cached pages of one file.
#[derive(Debug, Clone)]
pub(super) struct CachedFile {
    /// The file still exists.
    pub(super) open: bool,
    /// Its size.
    pub(super) pages: u64,
    pub(super) owned: Vec<Owned>,
    /// When a page of it was last used.
    pub(super) used_at: Time,
    /// When the pages came that are there for longest.
    since: Time,
    /// When the dirty pages became dirty that are so for longest.
    pub(super) dirty_since: Time,
    /// Pages that came in.
    entered: u64,
    /// Pages that processes used.
    referenced: u64,
    /// Pages of it that were ever in the cache, and those of them that were taken lately and are not back.
    seen: u64,
    pub(super) gone: u64,
    /// How many pages had been taken in the whole machine when its latest were.
    pub(super) gone_at: u64,
    shared_rest: u64,
    dirty_rest: u64,
    back_rest: u64,
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
            gone: 0,
            gone_at: 0,
            shared_rest: 0,
            dirty_rest: 0,
            back_rest: 0,
            first_rest: 0,
        }
    }

    pub(super) fn cached(&self) -> u64 {
        self.owned.iter().map(Owned::there).sum()
    }

    pub(super) fn clean(&self) -> u64 {
        self.owned.iter().map(|owned| owned.clean).sum()
    }

    pub(super) fn dirty(&self) -> u64 {
        self.owned.iter().map(|owned| owned.dirty).sum()
    }

    /// Pages whose disk write is under way.
    pub(super) fn in_flight(&self) -> u64 {
        self.owned.iter().map(|owned| owned.writing + owned.leaving).sum()
    }

    /// Time since the page was used that may go first: of a file that was used once, the page that came first.
    pub(super) fn clean_age(&self, now: Time) -> Time {
        if self.referenced > self.entered {
            now.saturating_sub(self.used_at)
        } else {
            now.saturating_sub(self.since).saturating_mul(USED_ONCE)
        }
    }

    /// The same for dirty pages.
    pub(super) fn dirty_age(&self, now: Time) -> Time {
        let age = now.saturating_sub(self.dirty_since);
        if self.referenced > self.entered { age } else { age.saturating_mul(USED_ONCE) }
    }

    /// A unit's entry, inserted if absent.
    pub(super) fn owned_by(&mut self, unit: UnitId) -> &mut Owned {
        let at = self.owned.iter().position(|owned| owned.unit == unit).unwrap_or_else(|| {
            self.owned.push(Owned { unit, clean: 0, dirty: 0, writing: 0, leaving: 0, due: 0 });
            self.owned.len() - 1
        });
        &mut self.owned[at]
    }

    /// Pages of the file come into the cache, as `unit`'s.
    pub(super) fn enter(&mut self, unit: UnitId, pages: u64, dirty: bool, now: Time) {
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

    /// Pages of it were taken, when `taken` had been in the whole machine, these included.
    pub(super) fn went(&mut self, pages: u64, taken: u64) {
        self.gone = (self.gone + pages).min(self.seen.saturating_sub(self.cached()));
        self.gone_at = taken;
    }

    /// `pages` pages are about to come in, at most the missing ones. Returns how many of them were taken lately: before
    /// no more than `frames` others were; `taken` is as above. Pages that were never there are taken to come
    /// first, or, where they come from `anywhere` in the file, as often as any that are missing.
    pub(super) fn come_back(&mut self, pages: u64, taken: u64, frames: u64, anywhere: bool) -> u64 {
        if taken - self.gone_at > frames {
            self.gone = 0;
        }
        let away = self.seen.saturating_sub(self.cached());
        let never = self.pages.saturating_sub(self.seen);
        let first = match anywhere {
            true => part(pages, never, never + away, &mut self.first_rest).max(pages.saturating_sub(away)),
            false => pages.min(never),
        };
        self.seen += first;
        let back = part((pages - first).min(away), self.gone, away, &mut self.back_rest);
        self.gone -= back;
        back
    }

    /// Whether the books on pages that were taken are right.
    pub(super) fn gone_fits(&self) -> bool {
        !self.open || (self.seen <= self.pages && self.gone <= self.seen.saturating_sub(self.cached()))
    }

    /// Which part of its pages was not used since `before`: a numerator and a denominator. Of a file that was
    /// used once, those that came before, if they came evenly; of another one all or none.
    pub(super) fn unused_since(&self, before: Time) -> (u64, u64) {
        if self.used_at <= before {
            (1, 1)
        } else if self.referenced > self.entered || self.since >= before {
            (0, 1)
        } else {
            (before - self.since, self.used_at - self.since)
        }
    }

    /// Pages of it that are in the cache are used.
    pub(super) fn touch(&mut self, pages: u64, now: Time) {
        self.used_at = now;
        self.referenced += pages;
    }

    /// A process of `unit` uses cached pages. What it is the second unit to use becomes `shared`'s: by former owner.
    pub(super) fn reference(&mut self, unit: UnitId, pages: u64, now: Time) -> Vec<(UnitId, u64)> {
        self.touch(pages, now);
        let others = |owned: &&mut Owned| owned.unit != unit && owned.unit != UnitId::SHARED;
        let cached = self.cached();
        let mut foreign: Vec<&mut Owned> = self.owned.iter_mut().filter(others).collect();
        let most: Vec<u64> = foreign.iter().map(|owned| owned.clean + owned.dirty).collect();
        let hit = part(pages.min(cached), most.iter().sum(), cached, &mut self.shared_rest);
        let (mut clean, mut dirty, mut moved) = (0, 0, Vec::new());
        for (owned, pages) in foreign.iter_mut().zip(split(hit, &most)) {
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

    /// Cached pages are overwritten.
    pub(super) fn overwrite(&mut self, pages: u64, now: Time) {
        if self.dirty() == 0 {
            self.dirty_since = now;
        }
        let cached = self.cached();
        let most: Vec<u64> = self.owned.iter().map(|owned| owned.clean).collect();
        let hit = part(pages.min(cached), most.iter().sum(), cached, &mut self.dirty_rest);
        for (owned, pages) in self.owned.iter_mut().zip(split(hit, &most)) {
            owned.clean -= pages;
            owned.dirty += pages;
        }
    }

    /// `pages` clean ones of `before` in all go: those that came first, if they came evenly.
    pub(super) fn aged_clean(&mut self, pages: u64, before: u64) {
        self.since = later(self.since, self.used_at, pages, before);
    }

    /// `pages` dirty ones of `before` in all are being written.
    pub(super) fn aged_dirty(&mut self, pages: u64, before: u64) {
        self.dirty_since = later(self.dirty_since, self.used_at, pages, before);
    }
}

/// Of `pages` that an operation hits among `whole`, those of a kind of which there are `kind`.
fn part(pages: u64, kind: u64, whole: u64, rest: &mut u64) -> u64 {
    if whole == 0 || kind == 0 {
        return 0;
    }
    let exact = u128::from(pages) * u128::from(kind) * u128::from(MILLIONTH) / u128::from(whole);
    let sum = exact + u128::from(*rest);
    let hit = u64::try_from(sum / u128::from(MILLIONTH)).unwrap_or(u64::MAX).min(kind).min(pages);
    *rest = u64::try_from(sum - u128::from(hit) * u128::from(MILLIONTH)).unwrap_or(0).min(MILLIONTH);
    hit
}

/// The time that lies at `part / whole` of the way from `from` to `to`.
fn later(from: Time, to: Time, part: u64, whole: u64) -> Time {
    let way = u128::from(to.saturating_sub(from)) * u128::from(part) / u128::from(whole.max(1));
    from + u64::try_from(way).unwrap_or(0)
}
