//! Whose pages are taken when a unit is short, and which.
//!
//! Whose, in this order:
//! 1. A unit that asks for more than it is allowed gives its own.
//! 2. If it is within its allowance, or has nothing to give, and no frame is free: the unit that owes most (uses most
//!    beyond its allowance) gives what it owes, to the last page. Then the unit itself gives, if it is within its
//!    allowance. Then all units give.
//!
//! Where no unit is held to an allowance, all give: this is the global clock of a kernel without isolation. What is on
//! its way out already is not taken twice.
//!
//! On a machine that enforces as Linux does, [`linux`](super::linux) says whose. Which pages is the same
//! there, but for one thing: of a space's pages the oldest go, clean or not.
//!
//! Which, in this order:
//! 1. Clean pages of the cache, which are free at once. They are of the file whose pages were not used for longest. A
//!    file that was used only once counts as [`USED_ONCE`](super::cache::USED_ONCE) times older.
//! 2. Dirty pages of the cache and anonymous pages together, a cluster at a time. Each file and space gives in
//!    proportion to its pages times the time since they were used. Its part of the sum adds up as its *due*, and the
//!    one that owes most gives.
//!
//! No space gives its last [`FLOOR_CLUSTERS`] clusters, except in two cases: no frame is free and its unit uses more
//! than it is allowed, or nothing else is left in the machine.
//!
//! Properties: over many page-outs each gives its part to within a cluster or so. All is integer arithmetic; ties go
//! to the lower number. Cost: one pass over files and spaces per cluster.
//!
//! Source: seed 000, section 3.2.

use std::cmp::Reverse;

use commonhold_contract::{MILLIONTH, UnitId};

use super::space::Space;
use super::writeback::{PageOut, Source};
use super::{FLOOR_CLUSTERS, FileId, Memory, SpaceId};
use crate::Time;

/// A debt is paid in pieces of at most this many clusters, so that one refusal does not fill the disk's queue.
pub(super) const CLUSTERS_AT_ONCE: u64 = 16;

/// What reclaiming came to.
#[must_use]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Frames that are free by it now.
    pub freed: u64,
    /// What must be written first: give each to [`Memory::written`] when it is.
    pub writes: Vec<PageOut>,
    /// Pages that are needed are being written: now, or since before.
    pub waits: bool,
    /// There is nothing to give: the next request is granted beyond the allowance.
    pub forced: bool,
}

/// What a unit could give up, in pages; what is on its way out already is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Giveable {
    /// Whose contents are on a disk: free at once.
    pub clean: u64,
    /// Of files, that must be written before.
    pub dirty: u64,
    /// Of processes, that must be written to swap before.
    pub anonymous: u64,
}

/// Which unit gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    One(UnitId),
    Everybody,
}

impl Scope {
    fn has(self, unit: UnitId) -> bool {
        self == Scope::Everybody || self == Scope::One(unit)
    }
}

/// Which units may give pages that are not clean pages of the cache.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    giver: Giver,
    pages: u64,
    weight: u128,
    due: i64,
}

#[derive(Debug, Clone, Copy)]
enum Giver {
    /// By number.
    Space(usize),
    /// By number, and place among the owners.
    File(usize, usize),
}

impl Memory {
    /// One step of paging on behalf of `unit`, which was refused `pages` frames, or whose pager wants to free that many.
    /// Takes `pages` pages, or more if the unit owes more.
    pub fn reclaim(&mut self, unit: UnitId, pages: u32) -> Reclaimed {
        if self.linux.is_some() {
            return self.reclaim_as_linux(unit, u64::from(pages));
        }
        let (pages, own) = (u64::from(pages), &mut self.units[unit.index()]);
        let over = (own.used + pages).saturating_sub(own.allowed);
        // A debtor pays what it owes; that alone does not say that it wants more.
        own.short |= own.used <= own.allowed;
        let scarce = self.free < pages;
        let mut out = Reclaimed::default();
        if !self.holds {
            self.take_from_everybody(unit, pages, scarce, &mut out);
            return out;
        }
        if over > 0 || !scarce {
            let want = over.min(CLUSTERS_AT_ONCE * self.cluster).max(pages);
            if self.take_in(unit, Scope::One(unit), want, true, &mut out) {
                return out;
            }
        }
        if scarce {
            self.find_frames(unit, pages, over == 0, &mut out);
        } else if over > 0 {
            let own = &mut self.units[unit.index()];
            own.pass = own.pass.max(pages);
            out.forced = true;
        }
        out
    }

    /// Takes what a unit owes: what only has to be dropped at once, the rest a part after the other, the next when some of
    /// that is written. No task waits for it, so a unit that has nothing left to give goes on owing.
    pub fn collect(&mut self, unit: UnitId) -> Reclaimed {
        let (scope, mut out) = (Scope::One(unit), Reclaimed::default());
        let owed = self.owed(unit);
        out.freed += self.drop_clean(scope, owed);
        loop {
            let (owed, freed) = (self.owed(unit), out.freed);
            let under_way = self.units[unit.index()].leaving;
            let want = owed.min((CLUSTERS_AT_ONCE * self.cluster).saturating_sub(under_way));
            self.page_out(scope, want, true, &mut out.freed, &mut out.writes);
            // Clean pages of processes are free at once: more can be taken then.
            if out.freed == freed || !out.writes.is_empty() {
                return out;
            }
        }
    }

    /// Whether a unit owes pages and could give some, and yet none of its pages is on its way out.
    pub fn rests(&self, unit: UnitId) -> bool {
        let scope = Scope::One(unit);
        self.owed(unit) > 0
            && self.units[unit.index()].leaving == 0
            && (self.oldest_clean(scope).is_some()
                || !self.candidates(scope, FLOOR_CLUSTERS * self.cluster).is_empty())
    }

    /// What a unit uses beyond its allowance, less what is on its way out.
    fn owed(&self, unit: UnitId) -> u64 {
        let own = &self.units[unit.index()];
        own.used.saturating_sub(own.allowed).saturating_sub(own.leaving)
    }

    /// What each unit could give.
    pub fn giveable(&self) -> Vec<Giveable> {
        let mut units = vec![Giveable::default(); self.units.len()];
        for space in &self.spaces {
            let unit = &mut units[space.unit.index()];
            unit.clean += space.clean;
            unit.anonymous += space.dirty;
        }
        for owned in self.files.iter().flat_map(|file| &file.owned) {
            let unit = &mut units[owned.unit.index()];
            unit.clean += owned.clean;
            unit.dirty += owned.dirty + owned.writing;
        }
        units
    }

    /// No frame is free and the unit could not help itself, or need not: `within` its allowance.
    fn find_frames(&mut self, unit: UnitId, pages: u64, within: bool, out: &mut Reclaimed) {
        // A unit in debt gives even its last pages, so that others do not lack their own.
        let found = self.debtor().is_some_and(|(debtor, debt)| {
            let (scope, debt) = (Scope::One(debtor), pages.min(debt));
            self.take_in(unit, scope, debt, true, out) || self.take_in(unit, scope, debt, false, out)
        });
        let found = found || (within && self.take_in(unit, Scope::One(unit), pages, true, out));
        if !found {
            self.take_from_everybody(unit, pages, true, out);
        }
    }

    /// `last`: even what is below the floors, if there is nothing else.
    fn take_from_everybody(&mut self, by: UnitId, pages: u64, last: bool, out: &mut Reclaimed) {
        if !self.take_in(by, Scope::Everybody, pages, true, out) && last {
            self.take_in(by, Scope::Everybody, pages, false, out);
        }
    }

    /// The unit that uses most beyond what it is allowed, and how much that is.
    fn debtor(&self) -> Option<(UnitId, u64)> {
        let debts =
            self.units.iter().zip(0..).map(|(unit, i)| (UnitId(i), unit.used.saturating_sub(unit.allowed)));
        debts.filter(|(_, debt)| *debt > 0).max_by_key(|(unit, debt)| (*debt, Reverse(*unit)))
    }

    /// Takes pages within a scope. Whether something was taken or is on its way.
    pub(super) fn take_in(
        &mut self,
        by: UnitId,
        scope: Scope,
        want: u64,
        floor: bool,
        out: &mut Reclaimed,
    ) -> bool {
        let sum = |part: fn(&super::UnitPages) -> u64| -> u64 {
            let units = self.units.iter().zip(0..).filter(|(_, i)| scope.has(UnitId(*i)));
            units.map(|(unit, _)| part(unit)).sum()
        };
        let (coming, writing) = (sum(|unit| unit.leaving), sum(|unit| unit.writing));
        let want = want.saturating_sub(coming);
        let freed = self.drop_clean(scope, want);
        let written = self.page_out(scope, want - freed, floor, &mut out.freed, &mut out.writes);
        out.freed += freed;
        out.waits = coming + writing + written > 0;
        if scope == Scope::Everybody && self.holds {
            self.units[by.index()].counts.seized += out.freed + written;
        }
        out.freed > 0 || out.waits
    }

    /// Drops clean pages of the cache, the oldest first. How many.
    pub(super) fn drop_clean(&mut self, scope: Scope, want: u64) -> u64 {
        let mut dropped = 0;
        while dropped < want {
            let Some((file, owner)) = self.oldest_clean(scope) else { break };
            let file = &mut self.files[file];
            let before = file.clean();
            let owned = &mut file.owned[owner];
            let (unit, pages) = (owned.unit, owned.clean.min(want - dropped));
            owned.clean -= pages;
            file.aged_clean(pages, before);
            self.evicted += pages;
            file.went(pages, self.evicted);
            self.units[unit.index()].counts.dropped += pages;
            self.uncharge(unit, pages);
            dropped += pages;
        }
        dropped
    }

    /// Where the clean page is that was not used for longest: file and place among its owners.
    fn oldest_clean(&self, scope: Scope) -> Option<(usize, usize)> {
        let mut best: Option<((Time, u64), (usize, usize))> = None;
        for (i, file) in self.files.iter().enumerate() {
            let age = file.clean_age(self.now);
            for (j, owned) in file.owned.iter().enumerate() {
                let key = (age, owned.clean);
                if owned.clean > 0 && scope.has(owned.unit) && best.is_none_or(|(most, _)| key > most) {
                    best = Some((key, (i, j)));
                }
            }
        }
        best.map(|(_, place)| place)
    }

    /// Takes anonymous pages and dirty pages of the cache, a cluster at a time. How many are being written.
    pub(super) fn page_out(
        &mut self,
        scope: Scope,
        want: u64,
        floor: bool,
        freed: &mut u64,
        writes: &mut Vec<PageOut>,
    ) -> u64 {
        let (mut taken, mut written) = (0, 0);
        while taken < want {
            let mut candidates =
                self.candidates(scope, if floor { FLOOR_CLUSTERS * self.cluster } else { 0 });
            let pages = self.cluster.min(want - taken);
            let Some((giver, pages)) = most_due(&mut candidates, pages) else { break };
            for candidate in &candidates {
                *self.due(candidate.giver) = candidate.due;
            }
            let (now_free, write) = self.give(giver, pages);
            written += write.as_ref().map_or(0, PageOut::pages);
            *freed += now_free;
            writes.extend(write);
            taken += pages;
        }
        written
    }

    fn candidates(&self, scope: Scope, floor: u64) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (i, space) in self.spaces.iter().enumerate().filter(|(_, space)| scope.has(space.unit)) {
            let pages = space.resident().saturating_sub(floor);
            candidates.push(candidate(Giver::Space(i), pages, space.age(self.now), space.due));
        }
        for (i, file) in self.files.iter().enumerate() {
            let age = file.dirty_age(self.now);
            for (j, owned) in file.owned.iter().enumerate().filter(|(_, owned)| scope.has(owned.unit)) {
                candidates.push(candidate(Giver::File(i, j), owned.dirty, age, owned.due));
            }
        }
        candidates.retain(|candidate| candidate.pages > 0);
        candidates
    }

    fn due(&mut self, giver: Giver) -> &mut i64 {
        match giver {
            Giver::Space(i) => &mut self.spaces[i].due,
            Giver::File(i, j) => &mut self.files[i].owned[j].due,
        }
    }

    /// Takes pages from one: how many are free at once, and the write of the others.
    fn give(&mut self, giver: Giver, pages: u64) -> (u64, Option<PageOut>) {
        let number = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
        let (unit, source, freed, leaving) = match giver {
            Giver::Space(i) => {
                let (id, space) = (SpaceId(number(i)), &mut self.spaces[i]);
                let gives = if self.linux.is_some() { Space::give_oldest } else { Space::give };
                let (freed, leaving) = gives(space, pages);
                self.vacate(id, freed);
                (self.spaces[i].unit, Source::Space(id), freed, leaving)
            }
            Giver::File(i, j) => {
                let before = self.files[i].dirty();
                self.files[i].aged_dirty(pages, before);
                let owned = &mut self.files[i].owned[j];
                owned.dirty -= pages;
                owned.leaving += pages;
                (owned.unit, Source::File(FileId(number(i))), 0, pages)
            }
        };
        self.uncharge(unit, freed);
        self.evicted += freed;
        let own = &mut self.units[unit.index()];
        own.leaving += leaving;
        own.counts.dropped += freed;
        own.counts.paged_out += leaving;
        (freed, (leaving > 0).then(|| PageOut::leaving(source, unit, leaving)))
    }
}

fn candidate(giver: Giver, pages: u64, age: Time, due: i64) -> Candidate {
    // In microseconds, and never nothing: of pages that were all just used, each is as good as any other.
    let age_us = age / 1_000 + 1;
    Candidate { giver, pages, weight: u128::from(pages) * u128::from(age_us), due }
}

/// Adds to each due its part of `pages`, and charges the one that owes most with what it can give of them.
fn most_due(candidates: &mut [Candidate], pages: u64) -> Option<(Giver, u64)> {
    let sum: u128 = candidates.iter().map(|candidate| candidate.weight).sum();
    for candidate in candidates.iter_mut() {
        // Both factors fit: a cluster in millionths of a page is below 2^52, and the quotient of weights at most 1.
        let part = candidate.weight.saturating_mul(u128::from(pages * MILLIONTH)) / sum;
        candidate.due = candidate.due.saturating_add(i64::try_from(part).unwrap_or(i64::MAX));
    }
    let first = (0..candidates.len()).max_by_key(|i| (candidates[*i].due, Reverse(*i)))?;
    let giver = &mut candidates[first];
    let pages = pages.min(giver.pages);
    giver.due = giver.due.saturating_sub(i64::try_from(pages * MILLIONTH).unwrap_or(i64::MAX));
    Some((giver.giver, pages))
}
