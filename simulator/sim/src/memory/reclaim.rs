//! Reclaim: from which unit pages are taken when a unit is short of frames, and which pages.
//!
//! The unit, in this order:
//! 1. If the request exceeds the unit's allowance, pages of the unit itself are taken.
//! 2. If no frame is free, and the unit is within its allowance or has nothing to give: the largest debtor
//!    (the unit that exceeds its allowance most) gives pages until its debt is paid, even its last ones. Then
//!    the unit itself gives, if it is within its allowance. Then all units give.
//!
//! If no unit is held to an allowance, all units give: this is the global clock of a kernel without
//! isolation. Pages under write-out count towards the demand from the start, so that they are not taken
//! twice.
//!
//! On a machine that enforces as Linux does, [`linux`](super::linux) chooses the unit. The choice of pages is
//! the same except that a space's oldest pages go first, clean or dirty.
//!
//! The pages, in this order:
//! 1. Clean pages of the cache, which are free at once, from the file whose pages were unused for longest. A
//!    file that was used only once counts as [`USED_ONCE`](super::cache::USED_ONCE) times older.
//! 2. Dirty pages of the cache and anonymous pages together, a cluster at a time. Each file and space gives
//!    in proportion to its pages times the time since their use. For each cluster, every file and space is
//!    credited with its part (its *due*); the one with the largest due gives the cluster.
//!
//! No space gives its last [`FLOOR_CLUSTERS`] clusters, except in two cases: no frame is free and its unit
//! uses more than it is allowed, or nothing else is left in the machine.
//!
//! Properties: over many page-outs, each file and space gives its part to within about a cluster. All
//! arithmetic is in integers; ties go to the lower number. Cost: one pass over files and spaces per cluster.
//!
//! Source: seed 000, section 3.2.

use std::cmp::Reverse;

use commonhold_contract::{MILLIONTH, UnitId};

use super::space::Space;
use super::writeback::{PageOut, Source};
use super::{FLOOR_CLUSTERS, FileId, Memory, SpaceId};
use crate::Time;

/// A debt is paid in pieces of at most this many clusters, so that one refusal does not fill the disk's
/// queue.
pub(super) const CLUSTERS_AT_ONCE: u64 = 16;

/// The result of a reclaim.
#[must_use]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// The number of frames that it freed.
    pub freed: u64,
    /// Disk writes that must be performed first: hand each to [`Memory::written`] when it ends.
    pub writes: Vec<PageOut>,
    /// Whether pages that are needed are being written, since now or since before.
    pub waits: bool,
    /// Whether the unit had nothing to give, so that its next request is granted beyond the allowance.
    pub forced: bool,
}

/// How many pages a unit could give up; pages that are leaving already are excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Giveable {
    /// Pages whose contents are on a disk, which are free at once.
    pub clean: u64,
    /// Dirty pages of files, which must be written first.
    pub dirty: u64,
    /// Pages of processes that must be written to swap first.
    pub anonymous: u64,
}

/// The units whose pages may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    One(UnitId),
    All,
}

impl Scope {
    fn has(self, unit: UnitId) -> bool {
        self == Scope::All || self == Scope::One(unit)
    }
}

/// A space, or a unit's dirty pages of a file, from which pages may be taken.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    giver: Giver,
    /// How many pages it can give.
    pages: u64,
    /// Its pages times the time since their use.
    weight: u128,
    /// Its accumulated part of what was taken so far, less what it gave, in millionths of a page.
    due: i64,
}

#[derive(Debug, Clone, Copy)]
enum Giver {
    /// The space of this index.
    Space(usize),
    /// The dirty pages of the file of the first index that belong to its owner of the second index.
    File(usize, usize),
}

impl Memory {
    /// Reclaims on behalf of `unit`, which was refused `pages` frames, or from which the pager wants that
    /// many. Takes `pages` pages, or more if the unit exceeds its allowance by more.
    pub fn reclaim(&mut self, unit: UnitId, pages: u32) -> Reclaimed {
        if self.linux.is_some() {
            return self.reclaim_as_linux(unit, u64::from(pages));
        }
        let (pages, own) = (u64::from(pages), &mut self.units[unit.index()]);
        let over = (own.used + pages).saturating_sub(own.allowed);
        // A debtor that pays its debt does not count as short: it does not necessarily want more memory.
        own.short |= own.used <= own.allowed;
        let scarce = self.free < pages;
        let mut out = Reclaimed::default();
        if !self.has_allowances {
            self.take_from_all_units(unit, pages, scarce, &mut out);
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

    /// Collects a unit's debt: drops clean pages of the cache at once, and writes the rest in batches; call
    /// again when a write ends. No task waits for this, so there is no forced grant: a unit that has nothing
    /// left to give remains a debtor.
    pub fn collect_debt(&mut self, unit: UnitId) -> Reclaimed {
        let (scope, mut out) = (Scope::One(unit), Reclaimed::default());
        let owed = self.owed(unit);
        out.freed += self.drop_clean(scope, owed);
        loop {
            let (owed, freed) = (self.owed(unit), out.freed);
            let in_flight = self.units[unit.index()].leaving;
            let want = owed.min((CLUSTERS_AT_ONCE * self.cluster).saturating_sub(in_flight));
            self.page_out(scope, want, true, &mut out.freed, &mut out.writes);
            // Clean pages of processes are free at once, without a write: then more can be taken now.
            if out.freed == freed || !out.writes.is_empty() {
                return out;
            }
        }
    }

    /// Whether a unit owes pages and could give some, but none of its pages is being written. For the
    /// engine's audit.
    pub fn is_debtor_idle(&self, unit: UnitId) -> bool {
        let scope = Scope::One(unit);
        self.owed(unit) > 0
            && self.units[unit.index()].leaving == 0
            && (self.oldest_clean(scope).is_some()
                || !self.candidates(scope, FLOOR_CLUSTERS * self.cluster).is_empty())
    }

    /// A unit's use beyond its allowance, less the pages that are leaving already.
    fn owed(&self, unit: UnitId) -> u64 {
        let own = &self.units[unit.index()];
        own.used.saturating_sub(own.allowed).saturating_sub(own.leaving)
    }

    /// How many pages each unit could give.
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

    /// Takes pages when no frame is free: from the largest debtor, else from the unit itself if it is
    /// `within` its allowance, else from all units.
    fn find_frames(&mut self, unit: UnitId, pages: u64, within: bool, out: &mut Reclaimed) {
        // A debtor gives even its last pages, so that other units get the frames that they are allowed.
        let debtor_gave = self.debtor().is_some_and(|(debtor, debt)| {
            let (scope, debt) = (Scope::One(debtor), pages.min(debt));
            self.take_in(unit, scope, debt, true, out) || self.take_in(unit, scope, debt, false, out)
        });
        let found = debtor_gave || (within && self.take_in(unit, Scope::One(unit), pages, true, out));
        if !found {
            self.take_from_all_units(unit, pages, true, out);
        }
    }

    /// Takes pages from all units on behalf of one. `below_floors`: if nothing else is left, takes the
    /// spaces' floors too.
    fn take_from_all_units(&mut self, by: UnitId, pages: u64, below_floors: bool, out: &mut Reclaimed) {
        if !self.take_in(by, Scope::All, pages, true, out) && below_floors {
            self.take_in(by, Scope::All, pages, false, out);
        }
    }

    /// The unit that exceeds its allowance most, and by how much; `None` if no unit does.
    fn debtor(&self) -> Option<(UnitId, u64)> {
        let debts =
            self.units.iter().zip(0..).map(|(unit, i)| (UnitId(i), unit.used.saturating_sub(unit.allowed)));
        debts.filter(|(_, debt)| *debt > 0).max_by_key(|(unit, debt)| (*debt, Reverse(*unit)))
    }

    /// Takes `want` pages within a scope, on behalf of `by`; pages that are leaving already count. `floor`:
    /// spaces keep their floors. Returns whether frames were freed or pages are being written.
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
        let (leaving, writing) = (sum(|unit| unit.leaving), sum(|unit| unit.writing));
        let want = want.saturating_sub(leaving);
        let freed = self.drop_clean(scope, want);
        let written = self.page_out(scope, want - freed, floor, &mut out.freed, &mut out.writes);
        out.freed += freed;
        out.waits = leaving + writing + written > 0;
        if scope == Scope::All && self.has_allowances {
            self.units[by.index()].counts.seized += out.freed + written;
        }
        out.freed > 0 || out.waits
    }

    /// Drops up to `want` clean pages of the cache, the oldest first. Returns how many.
    pub(super) fn drop_clean(&mut self, scope: Scope, want: u64) -> u64 {
        let mut dropped = 0;
        while dropped < want {
            let Some((file, owner)) = self.oldest_clean(scope) else { break };
            let file = &mut self.files[file];
            let before = file.clean();
            let owned = &mut file.owned[owner];
            let (unit, pages) = (owned.unit, owned.clean.min(want - dropped));
            owned.clean -= pages;
            file.remove_oldest_clean(pages, before);
            self.evicted += pages;
            file.note_evicted(pages, self.evicted);
            self.units[unit.index()].counts.dropped += pages;
            self.uncharge(unit, pages);
            dropped += pages;
        }
        dropped
    }

    /// The clean pages that were unused for longest, as indices of the file and of its owner; of equally old
    /// ones, the largest group.
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
        best.map(|(_, indices)| indices)
    }

    /// Takes anonymous pages and dirty pages of the cache, a cluster at a time. Adds pages that are free at
    /// once to `freed`. Returns how many pages are being written.
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

    /// The spaces and files that have pages to give beyond `floor` pages per space.
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

    /// Takes pages from a giver. Returns how many are free at once, and the write of the others.
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
                self.files[i].remove_oldest_dirty(pages, before);
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
    // In microseconds, and at least 1: if all pages were used just now, each counts the same.
    let age_us = age / 1_000 + 1;
    Candidate { giver, pages, weight: u128::from(pages) * u128::from(age_us), due }
}

/// Adds to each candidate's due its part of `pages`, by weight. Then chooses the candidate with the largest
/// due, and deducts what it gives. Returns the giver and the number of pages; `None` if there are no
/// candidates.
fn most_due(candidates: &mut [Candidate], pages: u64) -> Option<(Giver, u64)> {
    let sum: u128 = candidates.iter().map(|candidate| candidate.weight).sum();
    for candidate in candidates.iter_mut() {
        // Both factors fit: a cluster in millionths of a page is below 2^52, and the quotient of weights at
        // most 1.
        let part = candidate.weight.saturating_mul(u128::from(pages * MILLIONTH)) / sum;
        candidate.due = candidate.due.saturating_add(i64::try_from(part).unwrap_or(i64::MAX));
    }
    let largest = (0..candidates.len()).max_by_key(|i| (candidates[*i].due, Reverse(*i)))?;
    let chosen = &mut candidates[largest];
    let pages = pages.min(chosen.pages);
    chosen.due = chosen.due.saturating_sub(i64::try_from(pages * MILLIONTH).unwrap_or(i64::MAX));
    Some((chosen.giver, pages))
}
