//! Memory as a Linux kernel with control groups holds it: bounds, protection, and one reclaim for the whole machine.
//!
//! Problem: the live policy orders what Linux can do, and looks at what Linux tells. So a simulated machine must be
//! able to do and to tell the same.
//!
//! Terms:
//! - A unit's *bound* is its memory.high, on its own processes. Its *protection* is its memory.min and memory.low.
//! - What is in force of a unit's protection, given what encloses it, is its *effective* protection ([`protection`]).
//! - The *watermarks* are numbers of free frames: below *low*, frames are taken in the background until *high* are
//!   free. Below *min*, a request takes them itself, and waits.
//!
//! Algorithm, on a request ([`Memory::reclaim`] after a refusal):
//! 1. A unit that would be beyond its bound gives its own pages, and waits for what must be written. Where it has
//!    nothing to give, it is let through, and that is counted as `forced`.
//! 2. Where less than the min watermark would be left, all units give, each in proportion to what it has beyond its
//!    effective protection: beyond the larger of memory.min and memory.low at first, and beyond memory.min where
//!    nothing is left beyond that. Within each of these steps, the floors of spaces go last.
//! 3. Where all is within memory.min, Linux kills a process. Here that is counted (`ooms`), and one request is let
//!    through to what the min watermark keeps (`forced`). If not even that is free, the unit that uses most gives
//!    pages in spite of its protection. That stands for the memory that a killed process leaves.
//!
//! Algorithm, in the background ([`Memory::background`]): the same as 2 with the floors kept, and never within
//! memory.low. [`Memory::take`] takes from one unit by order, whatever its protection.
//!
//! The watermarks are Linux's. min is 4 * sqrt(n) KiB, where n is the KiB that the kernel does not keep for itself:
//! the square root of 16 n, from 128 KiB to 256 MiB (`vm.min_free_kbytes`). low and high are each a quarter of that,
//! or 1/1000 of the machine if that is more, above the one before (`watermark_scale_factor`).
//!
//! Which pages a unit gives is as everywhere in [`Memory`] (see [`super::reclaim`]), but for one thing: of a space's pages the
//! oldest go, clean or not.
//!
//! The caller has these duties beside those of [`Memory`]:
//! - to call [`Memory::background`] after requests were granted, and whenever a page-out is done;
//! - to call [`Memory::take_on`] for units from which memory is being taken, whenever a page-out is done;
//! - to tell of tasks that wait for memory, with [`Memory::wait_begins`] and [`Memory::wait_ends`].
//!
//! Properties (tested):
//! - Frames are conserved, whatever is ordered.
//! - Nothing but its own bound, an order to take, and a kill that is counted takes a unit's pages within its
//!   memory.min.
//! - memory.low is not taken from while a unit has anything beyond its own.
//! - No request is refused for ever.
//! - A page stays charged to the unit that brought it in.
//!
//! Limits:
//! - Linux's lists of active and inactive pages, its generations and `vm.swappiness` are not modelled. Clean pages of
//!   files go before all others.
//! - A unit beyond its bound is slowed by the work of taking its pages alone, not by the sleeps of up to two seconds
//!   that Linux adds. A bound that sinks takes nothing by itself, as with Linux 6.16 if the live machine writes it.
//! - A space keeps its floor when its unit meets its bound. Linux has no floors.
//! - Linux may take up to 32 pages more than what is beyond a protection. Here it is never more.
//!
//! Source: cgroup-v2.rst, "Memory Interface Files"; Linux 6.12, `mm/page_alloc.c` (`__setup_per_zone_wmarks`),
//! `mm/vmscan.c` (`shrink_node_memcgs`, `get_scan_count`), `mm/memcontrol.c` (`mem_cgroup_handle_over_high`).

use std::cmp::Reverse;

use commonhold_contract::{Contract, MILLIONTH, UnitId};

use super::reclaim::{CLUSTERS_AT_ONCE, Scope};
use super::{Grant, Memory, Reclaimed, UnitPages};
use crate::Time;
use crate::scenario::model::{Enforces, Hardware};

mod facts;
mod protection;
#[cfg(test)]
mod tests;

use protection::{Place, Setting};

/// The least and the most that the min watermark is, in KiB.
const MIN_FREE_KIB: (u64, u64) = (128, 256 << 10);
/// Low and high are above the watermark before by at least this part of the machine (`watermark_scale_factor`, 10
/// of 10,000).
const SCALE_PART: u64 = 1_000;
/// What taking a page costs that only has to be dropped, in ns: what a CPU of an instruction each ns takes
/// (docs/memory.md, "Measured": 3,600 MiB/s).
const DROP_NS: Time = 1_000;

/// What such a kernel has besides.
#[derive(Debug, Clone)]
pub(super) struct Linux {
    frame_bytes: u64,
    marks: Marks,
    /// The background is at work.
    awake: bool,
    /// Where each unit is, and what is known of it.
    places: Vec<Place>,
    units: Vec<Cgroup>,
}

/// Watermarks, in free frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marks {
    min: u64,
    low: u64,
    high: u64,
}

/// A unit's control group: orders for its memory, and the events that it counts. In frames unless noted.
#[derive(Debug, Clone, Copy, Default)]
struct Cgroup {
    min: u64,
    low: u64,
    /// Of `low`, its own processes'.
    own: u64,
    /// A request of at most this size may once use frames below the min watermark.
    pass: u64,
    /// What it is behind others with giving, in millionths of a frame.
    due: i64,
    /// Requests that would have been beyond its bound.
    met_bound: u64,
    refaulted: u64,
    /// Tasks that wait for memory, since when there is one, and the time in which there was one before.
    waiting: u32,
    waiting_since: Time,
    stalled_ns: Time,
    /// What is still to be taken by order, no more than leaves it with `down_to`.
    wanted: u64,
    down_to: u64,
    /// What an order took and is being written, since when there is any.
    ordered: u64,
    ordered_since: Time,
    /// What was taken by order, and the time in which that was at work.
    taken: u64,
    taking_ns: Time,
}

/// What a unit keeps when all give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Low,
    Min,
}

impl Marks {
    /// The watermarks of a machine whose kernel hands out `frames` frames.
    fn of(frames: u64, frame_bytes: u64) -> Marks {
        let kib = u128::from(frames) * u128::from(frame_bytes) / 1_024;
        let root = u64::try_from((kib * 16).isqrt()).unwrap_or(u64::MAX);
        let min = root.clamp(MIN_FREE_KIB.0, MIN_FREE_KIB.1) * 1_024 / frame_bytes;
        let step = (min / 4).max(frames / SCALE_PART);
        Marks { min, low: min + step, high: min + 2 * step }
    }
}

impl Linux {
    /// `None` where the machine enforces otherwise. `frames` are those that its kernel does not keep for itself.
    pub(super) fn new(hardware: &Hardware, contract: &Contract, frames: u64) -> Option<Linux> {
        if hardware.enforces != Enforces::Linux {
            return None;
        }
        let frame_bytes = hardware.kernel.frame_bytes.max(1);
        Some(Linux {
            frame_bytes,
            marks: Marks::of(frames, frame_bytes),
            awake: false,
            places: protection::places(contract),
            units: vec![Cgroup::default(); contract.units.len()],
        })
    }

    /// Frames that no request may have without force.
    pub(super) fn kept(&self) -> u64 {
        self.marks.min
    }

    /// Whether background reclaim should run with `free` free frames.
    pub(super) fn is_low(&self, free: u64) -> bool {
        self.awake || free < self.marks.low
    }
}

impl Memory {
    /// Bounds the memory of a unit's own processes, in bytes; in whole frames, rounded down. `None`: no bound.
    /// Beyond it the unit's requests take its own pages first. What it has beyond a bound that sank stays until
    /// then. A bound that does not sink ends what was being taken by order. (memory.high)
    pub fn bound(&mut self, unit: UnitId, bytes: Option<u64>) {
        let allowed = bytes.map_or(self.frames, |bytes| self.in_frames(bytes).min(self.frames));
        let own = &mut self.units[unit.index()];
        let sinks = allowed < own.allowed;
        (own.allowed, own.pass) = (allowed, 0);
        if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| !sinks) {
            cgroup.wanted = 0;
        }
    }

    /// Whether `pages` pages more would exceed a unit's bound. (`high` of memory.events)
    pub fn meets_bound(&self, unit: UnitId, pages: u64) -> bool {
        let own = &self.units[unit.index()];
        own.used + pages > own.allowed
    }

    /// Protects the memory of a unit with its sub-units, in bytes: `min` is never taken, `low` not while another
    /// unit has anything beyond its own. `own` is the part of `low` that is its own processes'. (memory.min,
    /// memory.low)
    pub fn protect(&mut self, unit: UnitId, min: u64, low: u64, own: u64) {
        let [min, low, own] = [min, low, own].map(|bytes| self.in_frames(bytes));
        if let Some(cgroup) = self.cgroup_mut(unit) {
            (cgroup.min, cgroup.low, cgroup.own) = (min, low, own);
        }
    }

    /// Orders `bytes` bytes to be taken from a unit's own processes, whatever its protection, in whole frames, rounded
    /// down. The order replaces the rest of an earlier one. A unit above its bound is taken down to the bound and no
    /// further. Clean pages go at once, dirty ones as they are written, in parts: see [`take_on`](Self::take_on).
    /// (memory.reclaim, as the live machine's pager uses it)
    pub fn take(&mut self, unit: UnitId, bytes: u64) -> Reclaimed {
        let wanted = self.in_frames(bytes);
        let UnitPages { used, allowed, .. } = self.units[unit.index()];
        if let Some(cgroup) = self.cgroup_mut(unit) {
            cgroup.wanted = wanted;
            cgroup.down_to = if used > allowed { allowed } else { 0 };
        }
        self.take_on(unit)
    }

    /// Goes on with what is to be taken from a unit by order. Ends when the unit has nothing to give: every space
    /// is down to its floor, and what else there is of files is being written behind. `waits`: something that the
    /// order took is being written.
    pub fn take_on(&mut self, unit: UnitId) -> Reclaimed {
        let mut out = Reclaimed::default();
        loop {
            let UnitPages { used, leaving, .. } = self.units[unit.index()];
            let Some(cgroup) = self.cgroup_mut(unit) else { return out };
            cgroup.wanted = cgroup.wanted.min((used - leaving).saturating_sub(cgroup.down_to));
            let (want, under_way) = (cgroup.wanted, cgroup.ordered);
            let most = (CLUSTERS_AT_ONCE * self.cluster).saturating_sub(under_way);
            let mut freed = self.drop_clean(Scope::One(unit), want);
            let mut writes = Vec::new();
            let some = (want - freed).min(most);
            let written = self.page_out(Scope::One(unit), some, true, &mut freed, &mut writes);
            self.took(unit, freed, written);
            writes.iter_mut().for_each(super::PageOut::mark_ordered);
            out.freed += freed;
            out.writes.append(&mut writes);
            if freed + written == 0 {
                out.waits = under_way > 0;
                if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| some > 0) {
                    cgroup.wanted = 0;
                }
                return out;
            }
        }
    }

    /// Whether something is still to be taken from a unit by order, or is being written.
    pub fn takes(&self, unit: UnitId) -> bool {
        self.cgroup(unit).is_some_and(|cgroup| cgroup.wanted > 0 || cgroup.ordered > 0)
    }

    /// Takes frames from all while few are free: from when fewer are than the low watermark, until as many are as
    /// the high one. Nothing that is protected. No task waits for it. (kswapd)
    pub fn background(&mut self) -> Reclaimed {
        let mut out = Reclaimed::default();
        loop {
            let (free, coming) = (self.free, self.leaving());
            let Some(linux) = &mut self.linux else { return out };
            linux.awake = linux.is_low(free) && free < linux.marks.high;
            let short = if linux.awake { linux.marks.high - free } else { 0 };
            let most = (CLUSTERS_AT_ONCE * self.cluster).saturating_sub(coming);
            let want = short.saturating_sub(coming).min(most);
            let before = out.freed;
            self.take_from_all(want, Keeps::Low, true, &mut out);
            if out.freed == before {
                out.waits = self.leaving() > 0;
                return out;
            }
        }
    }

    /// [`Memory::charge`] on such a machine.
    pub(super) fn charge_as_linux(&mut self, unit: UnitId, pages: u64) -> Grant {
        let (kept, own) = (self.kept(), &self.units[unit.index()]);
        let (used, allowed, pass) = (own.used, own.allowed, own.pass);
        let spare = self.cgroup(unit).map_or(0, |cgroup| cgroup.pass);
        let (within, room) = (used + pages <= allowed, pages + kept <= self.free);
        let passes = (within || pages <= pass) && (room || pages <= spare);
        if pages > self.free || !passes {
            self.units[unit.index()].counts.refused += 1;
            if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| !within && pages > pass) {
                cgroup.met_bound += 1;
            }
            return Grant::Short;
        }
        let own = &mut self.units[unit.index()];
        if !within {
            own.pass = 0;
        }
        if !(within && room) {
            own.counts.forced += pages;
        }
        own.take(self.now, pages);
        self.free -= pages;
        let free = self.free;
        if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| !room) {
            cgroup.pass = 0;
        }
        if let Some(linux) = &mut self.linux {
            linux.awake |= linux.is_low(free);
        }
        Grant::Granted
    }

    /// [`Memory::reclaim`] on such a machine.
    pub(super) fn reclaim_as_linux(&mut self, unit: UnitId, pages: u64) -> Reclaimed {
        let mut out = Reclaimed::default();
        let UnitPages { used, allowed, .. } = self.units[unit.index()];
        let over = (used + pages).saturating_sub(allowed);
        if over > 0 {
            let want = over.min(CLUSTERS_AT_ONCE * self.cluster).max(pages);
            if self.take_in(unit, Scope::One(unit), want, true, &mut out) {
                return out;
            }
            self.units[unit.index()].pass = pages;
        }
        if pages + self.kept() <= self.free {
            out.forced = over > 0;
            return out;
        }
        self.find_frames_for(unit, pages, &mut out);
        out
    }

    /// Frames that requests leave free.
    pub(super) fn kept(&self) -> u64 {
        self.linux.as_ref().map_or(0, Linux::kept)
    }

    /// Fewer frames are free than a request may have: all give.
    fn find_frames_for(&mut self, unit: UnitId, pages: u64, out: &mut Reclaimed) {
        let short = (pages + self.kept()).saturating_sub(self.free);
        let most = pages.max(CLUSTERS_AT_ONCE * self.cluster);
        let coming = self.leaving();
        let mut want = short.saturating_sub(coming).min(most);
        for keeps in [Keeps::Low, Keeps::Min] {
            for floor in [true, false] {
                want -= self.take_from_all(want, keeps, floor, out);
            }
            // What is being written and stays can be dropped then: it is waited for before more is taken.
            let beyond = self.beyond(keeps);
            let clean_soon =
                self.units.iter().zip(&beyond).any(|(unit, beyond)| *beyond > 0 && unit.writing > 0);
            out.waits = coming > 0 || !out.writes.is_empty() || out.freed == 0 && clean_soon;
            if out.freed > 0 || out.waits {
                return;
            }
        }
        self.units[unit.index()].counts.ooms += 1;
        if pages <= self.free {
            if let Some(cgroup) = self.cgroup_mut(unit) {
                cgroup.pass = pages;
            }
            out.forced = true;
            return;
        }
        let uses = |(i, unit): &(usize, &UnitPages)| (unit.used, Reverse(*i));
        let common = UnitId::KERNEL.index();
        let most = self.units.iter().enumerate().filter(|(i, _)| *i != common).max_by_key(uses);
        if let Some(most) = most.and_then(|(i, _)| u32::try_from(i).ok()) {
            self.take_in(unit, Scope::One(UnitId(most)), short, false, out);
        }
    }

    /// Takes up to `want` pages from all units, in proportion to each unit's excess over what it keeps. Returns the number
    /// taken.
    fn take_from_all(&mut self, want: u64, keeps: Keeps, floor: bool, out: &mut Reclaimed) -> u64 {
        if want == 0 {
            return 0;
        }
        let mut beyond = self.beyond(keeps);
        let sum: u128 = beyond.iter().map(|pages| u128::from(*pages)).sum();
        let Some(linux) = &mut self.linux else { return 0 };
        for (cgroup, beyond) in linux.units.iter_mut().zip(&beyond) {
            let part = u128::from(want) * u128::from(MILLIONTH) * u128::from(*beyond) / sum.max(1);
            let part = i64::try_from(part).unwrap_or(i64::MAX);
            cgroup.due = if *beyond > 0 { cgroup.due.saturating_add(part) } else { 0 };
        }
        let mut left = want;
        while left > 0 {
            let due = |i: &usize| (self.linux.as_ref().map_or(0, |linux| linux.units[*i].due), Reverse(*i));
            let Some(most) = (0..beyond.len()).filter(|i| beyond[*i] > 0).max_by_key(due) else { break };
            let taken = self.take_some(most, left.min(self.cluster).min(beyond[most]), floor, out);
            left -= taken;
            // A unit that has nothing to take now is not asked again, and owes nothing for it.
            beyond[most] = if taken == 0 { 0 } else { beyond[most] - taken };
            if let Some(linux) = &mut self.linux {
                let due = &mut linux.units[most].due;
                let paid = i64::try_from(taken * MILLIONTH).unwrap_or(i64::MAX);
                *due = if taken == 0 { 0 } else { due.saturating_sub(paid) };
            }
        }
        want - left
    }

    /// Takes up to `pages` pages from the unit of that number. Returns the number taken.
    fn take_some(&mut self, unit: usize, pages: u64, floor: bool, out: &mut Reclaimed) -> u64 {
        let scope = Scope::One(UnitId(u32::try_from(unit).unwrap_or(u32::MAX)));
        let mut freed = self.drop_clean(scope, pages);
        let written = self.page_out(scope, pages - freed, floor, &mut freed, &mut out.writes);
        out.freed += freed;
        freed + written
    }

    /// What each unit has beyond what it keeps, less what is on its way out.
    fn beyond(&self, keeps: Keeps) -> Vec<u64> {
        let kept = self.protected(keeps);
        let beyond = |(unit, kept): (&UnitPages, &u64)| (unit.used - unit.leaving).saturating_sub(*kept);
        self.units.iter().zip(&kept).map(beyond).collect()
    }

    /// What each unit's own processes keep, by effective protection. The kernel gives nothing.
    fn protected(&self, keeps: Keeps) -> Vec<u64> {
        let Some(linux) = &self.linux else { return vec![0; self.units.len()] };
        let used: Vec<u64> = self.units.iter().map(|unit| unit.used).collect();
        let min: Vec<Setting> = linux.units.iter().map(|unit| Setting { whole: unit.min, own: 0 }).collect();
        let mut kept = protection::effective(&linux.places, &used, &min);
        if keeps == Keeps::Low {
            let low = linux.units.iter().map(|unit| Setting { whole: unit.low, own: unit.own });
            let low = protection::effective(&linux.places, &used, &low.collect::<Vec<_>>());
            kept.iter_mut().zip(low).for_each(|(kept, low)| *kept = low.max(*kept));
        }
        kept[UnitId::KERNEL.index()] = u64::MAX;
        kept
    }

    /// Pages that are on their way out, of all units.
    fn leaving(&self) -> u64 {
        self.units.iter().map(|unit| unit.leaving).sum()
    }

    fn in_frames(&self, bytes: u64) -> u64 {
        self.linux.as_ref().map_or(0, |linux| bytes / linux.frame_bytes)
    }

    fn cgroup(&self, unit: UnitId) -> Option<&Cgroup> {
        self.linux.as_ref().map(|linux| &linux.units[unit.index()])
    }

    fn cgroup_mut(&mut self, unit: UnitId) -> Option<&mut Cgroup> {
        self.linux.as_mut().map(|linux| &mut linux.units[unit.index()])
    }
}
