//! Memory as a Linux kernel with control groups holds it: bounds, protection, and one reclaim for the whole
//! machine.
//!
//! Problem: the live policy gives orders that Linux can carry out, and reads figures that Linux reports. So a
//! simulated machine must carry out the same orders and report the same figures.
//!
//! Terms:
//! - A unit's *bound* is its memory.high, on its own processes. Its *protection* is its memory.min and
//!   memory.low.
//! - The *effective* protection of a unit is the part of its protection that the groups around it let it have
//!   ([`protection`]).
//! - The *watermarks* are numbers of free frames: below *low*, frames are reclaimed in the background until
//!   *high* are free. Below *min*, a task that requests frames reclaims them itself, and waits.
//!
//! Algorithm, on a request ([`Memory::reclaim`] after a refusal):
//! 1. A unit that would exceed its bound gives its own pages, and waits for their writes. If it has nothing
//!    to give, the request is granted, and counted as `forced`.
//! 2. If fewer frames than the min watermark would be left, all units give, each in proportion to its use
//!    beyond its effective protection: at first beyond the larger of memory.min and memory.low, and if
//!    nothing is left there, beyond memory.min. Within each of these steps, the floors of spaces go last.
//! 3. If all memory is within memory.min, Linux kills a process. Here this is counted (`ooms`), and one
//!    request may use the frames below the min watermark (`forced`). If not even those suffice, the unit that
//!    uses most gives pages in spite of its protection, in place of the memory of a killed process.
//!
//! Algorithm, in the background ([`Memory::reclaim_in_background`]): as step 2, but spaces keep their floors,
//! and nothing within memory.low is taken. [`Memory::order_reclaim`] takes from one unit by order, whatever
//! its protection.
//!
//! The watermarks are Linux's. min is 4 * sqrt(n) KiB, where n is the KiB that the kernel does not keep for
//! itself: the square root of 16 n, from 128 KiB to 256 MiB (`vm.min_free_kbytes`). low and high are each a
//! quarter of that, or 1/1000 of the machine if that is more, above the one before
//! (`watermark_scale_factor`).
//!
//! The choice of a unit's pages is described in [`super::reclaim`], with one difference: a space's oldest
//! pages go first, clean or dirty.
//!
//! The caller has these duties in addition to those of [`Memory`]:
//! - to call [`Memory::reclaim_in_background`] after requests were granted, and whenever a page-out ends;
//! - to call [`Memory::continue_reclaim`] for units with an order to reclaim, whenever a page-out ends;
//! - to report tasks that wait for memory, with [`Memory::wait_begins`] and [`Memory::wait_ends`].
//!
//! Properties (tested):
//! - Frames are conserved, whatever is ordered.
//! - A unit's pages within its memory.min are taken only for the unit's own bound, by an order, or for a
//!   counted kill.
//! - Pages within memory.low are not taken while any unit has memory beyond its own memory.low.
//! - No request is refused for ever.
//! - A page stays charged to the unit that brought it in.
//!
//! Limits:
//! - Linux's lists of active and inactive pages, its generations and `vm.swappiness` are not modelled. Clean
//!   pages of files go before all others.
//! - A unit beyond its bound is slowed only by the reclaim of its pages, not by the sleeps of up to two
//!   seconds that Linux adds. A reduced bound reclaims nothing by itself, as on Linux 6.16 with the flag that
//!   the live backend sets.
//! - A space keeps its floor when its unit meets its bound. Linux has no floors.
//! - Linux may take up to 32 pages from within a protection. The simulation never does.
//!
//! Source: cgroup-v2.rst, "Memory Interface Files"; Linux 6.12, `mm/page_alloc.c`
//! (`__setup_per_zone_wmarks`), `mm/vmscan.c` (`shrink_node_memcgs`, `get_scan_count`), `mm/memcontrol.c`
//! (`mem_cgroup_handle_over_high`).

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

/// The bounds of the min watermark, in KiB.
const MIN_FREE_KIB: (u64, u64) = (128, 256 << 10);
/// The watermarks are at least the machine's frames divided by this apart (`watermark_scale_factor`, 10 of
/// 10,000).
const SCALE_PART: u64 = 1_000;
/// The time to reclaim a page that only has to be dropped, in ns, on a CPU that executes an instruction per
/// ns (docs/memory.md, "Measured": 3,600 MiB/s).
const DROP_NS: Time = 1_000;

/// The state of memory that only a kernel has that enforces as Linux does.
#[derive(Debug, Clone)]
pub(super) struct Linux {
    frame_bytes: u64,
    marks: Marks,
    /// Background reclaim is active.
    awake: bool,
    /// By unit: its place in the tree of control groups, and its control group.
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
    /// memory.min and memory.low, with sub-units.
    min: u64,
    low: u64,
    /// The part of `low` for the unit's own processes.
    own: u64,
    /// One request of at most this size may use frames below the min watermark. 0 for none.
    pass: u64,
    /// The group's accumulated part of what was taken from all groups, less what it gave, in millionths of a
    /// frame.
    due: i64,
    /// Requests that would have exceeded the bound.
    met_bound: u64,
    refaulted: u64,
    /// The number of tasks that wait for memory, since when there is at least one, and the time before with
    /// at least one.
    waiting: u32,
    waiting_since: Time,
    stalled_ns: Time,
    /// What an order still has to take, as long as the group keeps `down_to`.
    wanted: u64,
    down_to: u64,
    /// Frames taken by order that are being written, and since when there are any.
    ordered: u64,
    ordered_since: Time,
    /// Frames freed by order so far, and the time that this took.
    taken: u64,
    taking_ns: Time,
}

/// Which protection is respected when pages are taken from all units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Low,
    Min,
}

impl Marks {
    /// The watermarks of a machine with `frames` frames besides the kernel's own.
    fn of(frames: u64, frame_bytes: u64) -> Marks {
        let kib = u128::from(frames) * u128::from(frame_bytes) / 1_024;
        let root = u64::try_from((kib * 16).isqrt()).unwrap_or(u64::MAX);
        let min = root.clamp(MIN_FREE_KIB.0, MIN_FREE_KIB.1) * 1_024 / frame_bytes;
        let step = (min / 4).max(frames / SCALE_PART);
        Marks { min, low: min + step, high: min + 2 * step }
    }
}

impl Linux {
    /// `None` if the machine does not enforce as Linux does. `frames` excludes the kernel's own.
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

    /// The number of frames that only a forced grant may use: the min watermark.
    pub(super) fn kept(&self) -> u64 {
        self.marks.min
    }

    /// Whether background reclaim should run with `free` free frames.
    pub(super) fn is_low(&self, free: u64) -> bool {
        self.awake || free < self.marks.low
    }
}

impl Memory {
    /// Bounds the memory of a unit's own processes, in bytes, rounded down to whole frames; `None` for no
    /// bound. A request beyond the bound takes the unit's own pages first. A lower bound than before takes
    /// nothing by itself. A bound that is not lower ends an order to reclaim. (memory.high)
    pub fn set_bound(&mut self, unit: UnitId, bytes: Option<u64>) {
        let allowed = bytes.map_or(self.frames, |bytes| self.in_frames(bytes).min(self.frames));
        let own = &mut self.units[unit.index()];
        let sinks = allowed < own.allowed;
        (own.allowed, own.pass) = (allowed, 0);
        if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| !sinks) {
            cgroup.wanted = 0;
        }
    }

    /// Whether `pages` more pages would exceed a unit's bound. (`high` of memory.events)
    pub fn would_exceed_bound(&self, unit: UnitId, pages: u64) -> bool {
        let own = &self.units[unit.index()];
        own.used + pages > own.allowed
    }

    /// Protects the memory of a unit with its sub-units, in bytes: memory within `min` is never taken, memory
    /// within `low` not while another unit has memory beyond its own `low`. `own` is the part of `low` for
    /// the unit's own processes. (memory.min, memory.low)
    pub fn protect(&mut self, unit: UnitId, min: u64, low: u64, own: u64) {
        let [min, low, own] = [min, low, own].map(|bytes| self.in_frames(bytes));
        if let Some(cgroup) = self.cgroup_mut(unit) {
            (cgroup.min, cgroup.low, cgroup.own) = (min, low, own);
        }
    }

    /// Orders the reclaim of `bytes` bytes, rounded down to whole frames, from a unit's own processes,
    /// whatever their protection. The order replaces the rest of an earlier order. A unit above its bound is
    /// reduced to the bound at most. Clean pages are free at once, dirty ones are written in batches: see
    /// [`Memory::continue_reclaim`]. (memory.reclaim, as the live machine's pager uses it)
    pub fn order_reclaim(&mut self, unit: UnitId, bytes: u64) -> Reclaimed {
        let wanted = self.in_frames(bytes);
        let UnitPages { used, allowed, .. } = self.units[unit.index()];
        if let Some(cgroup) = self.cgroup_mut(unit) {
            cgroup.wanted = wanted;
            cgroup.down_to = if used > allowed { allowed } else { 0 };
        }
        self.continue_reclaim(unit)
    }

    /// Continues a unit's order to reclaim. The order ends when the unit has nothing to give: every space is
    /// down to its floor, and the rest of the files' pages is in write-behind. `waits` in the result: pages
    /// that the order took are being written.
    pub fn continue_reclaim(&mut self, unit: UnitId) -> Reclaimed {
        let mut out = Reclaimed::default();
        loop {
            let UnitPages { used, leaving, .. } = self.units[unit.index()];
            let Some(cgroup) = self.cgroup_mut(unit) else { return out };
            cgroup.wanted = cgroup.wanted.min((used - leaving).saturating_sub(cgroup.down_to));
            let (want, in_flight) = (cgroup.wanted, cgroup.ordered);
            let batch_max = (CLUSTERS_AT_ONCE * self.cluster).saturating_sub(in_flight);
            let mut freed = self.drop_clean(Scope::One(unit), want);
            let mut writes = Vec::new();
            let batch = (want - freed).min(batch_max);
            let written = self.page_out(Scope::One(unit), batch, true, &mut freed, &mut writes);
            self.count_ordered(unit, freed, written);
            writes.iter_mut().for_each(super::PageOut::mark_ordered);
            out.freed += freed;
            out.writes.append(&mut writes);
            if freed + written == 0 {
                out.waits = in_flight > 0;
                if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| batch > 0) {
                    cgroup.wanted = 0;
                }
                return out;
            }
        }
    }

    /// Whether an order to reclaim from a unit is unfinished, or its pages are being written.
    pub fn has_reclaim_order(&self, unit: UnitId) -> bool {
        self.cgroup(unit).is_some_and(|cgroup| cgroup.wanted > 0 || cgroup.ordered > 0)
    }

    /// Reclaims from all units in the background: starts when fewer frames are free than the low watermark,
    /// and ends at the high watermark. Takes nothing that is protected. No task waits for it. (kswapd)
    pub fn reclaim_in_background(&mut self) -> Reclaimed {
        let mut out = Reclaimed::default();
        loop {
            let (free, leaving) = (self.free, self.leaving());
            let Some(linux) = &mut self.linux else { return out };
            linux.awake = linux.is_low(free) && free < linux.marks.high;
            let short = if linux.awake { linux.marks.high - free } else { 0 };
            let batch_max = (CLUSTERS_AT_ONCE * self.cluster).saturating_sub(leaving);
            let want = short.saturating_sub(leaving).min(batch_max);
            let before = out.freed;
            self.take_from_all(want, Keeps::Low, true, &mut out);
            if out.freed == before {
                out.waits = self.leaving() > 0;
                return out;
            }
        }
    }

    /// [`Memory::charge`] as Linux does it: the unit's bound and the min watermark permit the request, or a
    /// forced grant does.
    pub(super) fn charge_as_linux(&mut self, unit: UnitId, pages: u64) -> Grant {
        let (kept, own) = (self.kept(), &self.units[unit.index()]);
        let (used, allowed, bound_pass) = (own.used, own.allowed, own.pass);
        let watermark_pass = self.cgroup(unit).map_or(0, |cgroup| cgroup.pass);
        let (within, has_room) = (used + pages <= allowed, pages + kept <= self.free);
        let is_permitted = (within || pages <= bound_pass) && (has_room || pages <= watermark_pass);
        if pages > self.free || !is_permitted {
            self.units[unit.index()].counts.refused += 1;
            if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| !within && pages > bound_pass) {
                cgroup.met_bound += 1;
            }
            return Grant::Short;
        }
        let own = &mut self.units[unit.index()];
        if !within {
            own.pass = 0;
        }
        if !(within && has_room) {
            own.counts.forced += pages;
        }
        own.charge(self.now, pages);
        self.free -= pages;
        let free = self.free;
        if let Some(cgroup) = self.cgroup_mut(unit).filter(|_| !has_room) {
            cgroup.pass = 0;
        }
        if let Some(linux) = &mut self.linux {
            linux.awake |= linux.is_low(free);
        }
        Grant::Granted
    }

    /// [`Memory::reclaim`] as Linux does it: steps 1 to 3 of the algorithm above.
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

    /// The number of frames that requests have to leave free: the min watermark, or 0 on a kernel without it.
    pub(super) fn kept(&self) -> u64 {
        self.linux.as_ref().map_or(0, Linux::kept)
    }

    /// Steps 2 and 3: a request would leave fewer frames than the min watermark, so all units give.
    fn find_frames_for(&mut self, unit: UnitId, pages: u64, out: &mut Reclaimed) {
        let short = (pages + self.kept()).saturating_sub(self.free);
        let batch_max = pages.max(CLUSTERS_AT_ONCE * self.cluster);
        let leaving = self.leaving();
        let mut want = short.saturating_sub(leaving).min(batch_max);
        for keeps in [Keeps::Low, Keeps::Min] {
            for floor in [true, false] {
                want -= self.take_from_all(want, keeps, floor, out);
            }
            // Pages in write-behind can be dropped once they are written, so the task waits for them before
            // protected pages are taken.
            let beyond = self.beyond(keeps);
            let clean_soon =
                self.units.iter().zip(&beyond).any(|(unit, beyond)| *beyond > 0 && unit.writing > 0);
            out.waits = leaving > 0 || !out.writes.is_empty() || out.freed == 0 && clean_soon;
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
        let use_of = |(i, unit): &(usize, &UnitPages)| (unit.used, Reverse(*i));
        let kernel = UnitId::KERNEL.index();
        let largest = self.units.iter().enumerate().filter(|(i, _)| *i != kernel).max_by_key(use_of);
        if let Some(largest) = largest.and_then(|(i, _)| u32::try_from(i).ok()) {
            self.take_in(unit, Scope::One(UnitId(largest)), short, false, out);
        }
    }

    /// Takes up to `want` pages from all units, in proportion to each unit's use beyond the protection that
    /// `keeps` names. Returns the number taken. As in [`super::reclaim`], each unit is credited with its part
    /// as its due, and the unit with the largest due gives the next cluster.
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
        let mut remaining = want;
        while remaining > 0 {
            let due = |i: &usize| (self.linux.as_ref().map_or(0, |linux| linux.units[*i].due), Reverse(*i));
            let Some(chosen) = (0..beyond.len()).filter(|i| beyond[*i] > 0).max_by_key(due) else { break };
            let batch = remaining.min(self.cluster).min(beyond[chosen]);
            let taken = self.take_from_unit(chosen, batch, floor, out);
            remaining -= taken;
            // A unit that has nothing to give now is not chosen again, and its due is forgiven.
            beyond[chosen] = if taken == 0 { 0 } else { beyond[chosen] - taken };
            if let Some(linux) = &mut self.linux {
                let due = &mut linux.units[chosen].due;
                let paid = i64::try_from(taken * MILLIONTH).unwrap_or(i64::MAX);
                *due = if taken == 0 { 0 } else { due.saturating_sub(paid) };
            }
        }
        want - remaining
    }

    /// Takes up to `pages` pages from the unit of this number. Returns the number taken.
    fn take_from_unit(&mut self, unit: usize, pages: u64, floor: bool, out: &mut Reclaimed) -> u64 {
        let scope = Scope::One(UnitId(u32::try_from(unit).unwrap_or(u32::MAX)));
        let mut freed = self.drop_clean(scope, pages);
        let written = self.page_out(scope, pages - freed, floor, &mut freed, &mut out.writes);
        out.freed += freed;
        freed + written
    }

    /// Each unit's use beyond its protection, less the pages that are leaving already.
    fn beyond(&self, keeps: Keeps) -> Vec<u64> {
        let kept = self.protected(keeps);
        let beyond = |(unit, kept): (&UnitPages, &u64)| (unit.used - unit.leaving).saturating_sub(*kept);
        self.units.iter().zip(&kept).map(beyond).collect()
    }

    /// The effective protection of each unit's own processes, in frames. The kernel's memory is protected
    /// altogether.
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

    /// The number of leaving pages of all units.
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
