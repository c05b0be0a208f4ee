//! The page frames of the simulated machine: how many each unit uses, which must give some up, and which pages go.
//!
//! Problem: memory must behave as it does in a kernel that charges each frame to a unit and refuses what is beyond the
//! unit's allowance. The time for that must not grow with the size of the memory.
//!
//! Terms:
//! - A *space* is the anonymous memory of one process. Its pages are resident and clean (an up-to-date copy is in
//!   swap), resident and dirty, on their way out, or in swap.
//! - The *cache* holds pages of files: clean, dirty, being written.
//! - A *page-out* is one disk write that memory needs. A page that it writes either leaves (its frame is free when it
//!   is done) or stays (it is clean then).
//! - A unit is *short* once a request of it was refused, or its pages were taken on its behalf.
//! - A unit that uses more than it is allowed, because its allowance sank, is a *debtor*.
//!
//! Algorithm: pages are counted, not told apart. A request is granted if the unit stays within its allowance and
//! enough frames are free. Else it is refused, and [`Memory::reclaim`] takes pages on behalf of that unit; see there
//! which unit gives, and which pages. How many frames each unit may use is not decided here. [`Memory::facts`] goes to
//! `commonhold_policy::memory::frames`, and its answer comes back through [`Memory::allow`]. A page that a second unit uses
//! becomes `shared`'s.
//!
//! All this is the published kernel's way (`enforces = "irix"`). What differs on a machine that enforces as Linux does
//! is in `linux`: orders, the choice of pages, the facts reported, and the caller's further duties.
//!
//! The caller has four duties:
//! - to call [`Memory::at`] when time has passed;
//! - on [`Grant::Short`], to call `reclaim`;
//! - to try again, at once if frames were freed or a grant was forced, and else after the next [`Memory::written`] or
//!   `close`;
//! - to call `reclaim` by itself for a unit that is low ([`Memory::low_unit`]): that is the pager.
//!
//! Properties: used frames and free ones sum to the machine's ([`Memory::check`]). While units are held to allowances,
//! an operation of one unit takes nothing from another, except in two cases: the other is a debtor, or no frame is
//! free and the unit itself has nothing to give. The second is counted as `seized`.
//!
//! Progress: no request of at most [`Memory::request_pages_max`] pages is refused for ever. `reclaim` frees something,
//! has a page-out under way, or finds that the unit has nothing left to give: every space of it is down to the floor,
//! two clusters. Then one request is granted beyond the allowance, and counted as `forced`. So a unit whose allowance
//! is at least two clusters per space and one request never needs force.
//!
//! Limits:
//! - What a page holds is not known, so a hit on a file falls on its pages in proportion.
//! - A page overwritten or used while it is being written is not written again, nor kept.
//! - Pages that were read ahead may go before they are used: their reader counts as served when the read is done.
//! - Swap is as large as need be.
//! - `nodes` tells in which node a page lies; that decides nothing here.
//!
//! Source: seed 000, sections 2.2 (`kernel` and `shared`) and 3.2 (limits, refusal, per-unit paging, first touch).

use commonhold_contract::{Contract, MILLIONTH, UnitId};
use commonhold_policy::memory::frames::Facts;
use commonhold_policy::share::part_of;

use crate::Time;
use crate::scenario::model::Hardware;

mod cache;
mod check;
mod linux;
mod nodes;
mod reclaim;
mod space;
#[cfg(test)]
mod tests;
mod writeback;

use cache::CachedFile;
use linux::Linux;
use nodes::Nodes;
use space::Space;

pub use reclaim::{Giveable, Reclaimed};
pub use space::MODIFIED;
pub use writeback::{PageOut, Source};

/// Bytes of a disk sector.
const SECTOR_BYTES: u64 = 512;

/// Clusters that a space keeps while there is anything else to take: the one that its process faults on, and one more.
const FLOOR_CLUSTERS: u64 = 2;

/// A space; numbers of closed ones are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

/// A file's place in the cache; numbers of closed ones are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Whether frames were given.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// They are the unit's now.
    Granted,
    /// The request is beyond the unit's allowance, or that many frames are not free: reclaim, and try again.
    Short,
}

/// What happened to a unit's memory since the beginning, in pages, refusals in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests refused.
    pub refused: u64,
    /// Anonymous pages touched for the first time.
    pub grown: u64,
    /// Anonymous pages that came back from swap.
    pub swapped_in: u64,
    /// Pages of files that came into the cache.
    pub cached: u64,
    /// Pages taken from it whose contents were on a disk already.
    pub dropped: u64,
    /// Pages taken from it that had to be written first.
    pub paged_out: u64,
    /// Pages granted beyond its allowance, because it had nothing left to give.
    pub forced: u64,
    /// Pages taken from all units on its behalf, although units are held to allowances.
    pub seized: u64,
    /// Requests that found nothing to take in the whole machine: a Linux machine would have killed a process.
    pub ooms: u64,
}

/// The machine has too little memory for its kernel and one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the machine has {frames} page frames; its kernel takes {kernel} of them, and one process needs {needed} more: \
     give the machine more memory, or its kernel less"
)]
pub struct TooSmall {
    /// Frames of the machine.
    pub frames: u64,
    /// Frames of the kernel.
    pub kernel: u64,
    /// Frames that there must be besides.
    pub needed: u64,
}

/// One unit's part of the memory.
#[derive(Debug, Clone, Default)]
struct UnitPages {
    used: u64,
    /// The most that it used at once; and used frames times ns, summed up to `counted_at`.
    used_max: u64,
    used_ns: u128,
    counted_at: Time,
    allowed: u64,
    short: bool,
    /// Open spaces.
    spaces: u64,
    /// Pages on their way out; part of `used`.
    leaving: u64,
    /// Pages of files being written that stay; part of `used`.
    writing: u64,
    /// A request of at most this many pages is granted once beyond the allowance.
    pass: u64,
    counts: Counts,
}

impl UnitPages {
    fn take(&mut self, now: Time, pages: u64) {
        self.count(now);
        self.used += pages;
        self.used_max = self.used_max.max(self.used);
    }

    fn give(&mut self, now: Time, pages: u64) {
        self.count(now);
        self.used -= pages;
    }

    /// Takes what it used up to now into its sum.
    fn count(&mut self, now: Time) {
        self.used_ns += u128::from(self.used) * u128::from(now - self.counted_at);
        self.counted_at = now;
    }
}

/// The memory of a simulated machine.
#[derive(Debug, Clone)]
pub struct Memory {
    now: Time,
    frames: u64,
    free: u64,
    /// Frames that the kernel took for itself at the beginning.
    kernel: u64,
    reserve: u64,
    cluster: u64,
    request: u64,
    dirty_limit: u64,
    dirty_age_ns: Time,
    nodes: Option<Nodes>,
    /// Whether anybody is allowed less than everything.
    holds: bool,
    /// Pages that were taken so far.
    evicted: u64,
    /// What a kernel has that enforces as Linux does.
    linux: Option<Linux>,
    units: Vec<UnitPages>,
    spaces: Vec<Space>,
    vacant_spaces: Vec<SpaceId>,
    files: Vec<CachedFile>,
    vacant_files: Vec<FileId>,
}

impl Memory {
    /// The memory of that machine, with nothing in it but the kernel. Every unit is allowed everything, until
    /// [`allow`](Self::allow) says otherwise.
    pub fn new(hardware: &Hardware, contract: &Contract) -> Result<Memory, TooSmall> {
        let costs = &hardware.kernel;
        let frame_bytes = costs.frame_bytes.max(1);
        let frames = hardware.machine.memory_bytes() / frame_bytes;
        let kernel = costs.memory_bytes.div_ceil(frame_bytes);
        let cluster = u64::from(costs.cluster_pages).max(1);
        let request = (u64::from(costs.request_sectors) * SECTOR_BYTES / frame_bytes).max(1);
        let linux = Linux::new(hardware, contract, frames.saturating_sub(kernel));
        let kept = linux.as_ref().map_or(0, Linux::kept);
        let needed = FLOOR_CLUSTERS * cluster + request.max(cluster) + kept;
        if frames < kernel.saturating_add(needed) {
            return Err(TooSmall { frames, kernel, needed });
        }
        let mut units = vec![UnitPages { allowed: frames, ..UnitPages::default() }; contract.units.len()];
        units[UnitId::KERNEL.index()].take(0, kernel);
        Ok(Memory {
            now: 0,
            frames,
            free: frames - kernel,
            kernel,
            reserve: contract.machine.reserve.of(hardware.machine.memory_bytes()) / frame_bytes,
            cluster,
            request,
            dirty_limit: part_of(frames, costs.dirty_limit, MILLIONTH),
            dirty_age_ns: costs.dirty_age_ns,
            nodes: Nodes::new(hardware, frames, kernel),
            holds: false,
            evicted: 0,
            linux,
            units,
            spaces: Vec::new(),
            vacant_spaces: Vec::new(),
            files: Vec::new(),
            vacant_files: Vec::new(),
        })
    }

    /// It is `now`; what is done from here on happens then.
    pub fn at(&mut self, now: Time) {
        debug_assert!(now >= self.now, "time does not go back");
        self.now = now;
    }

    /// A new process's memory, with nothing in it. The process comes back to each page once in `reuse_ns` of its time.
    pub fn open_space(&mut self, unit: UnitId, reuse_ns: Time) -> SpaceId {
        self.units[unit.index()].spaces += 1;
        let space = Space::new(unit, reuse_ns, self.now);
        if let Some(id) = self.vacant_spaces.pop() {
            self.spaces[id.0 as usize] = space;
            return id;
        }
        self.spaces.push(space);
        SpaceId(number(self.spaces.len()))
    }

    /// The process has ended: its frames are free, those on their way out when they are written.
    pub fn close_space(&mut self, id: SpaceId) {
        let space = &mut self.spaces[id.0 as usize];
        debug_assert!(space.open, "a space is closed once");
        let (unit, resident) = (space.unit, space.resident());
        (space.open, space.clean, space.dirty, space.swapped) = (false, 0, 0, 0);
        self.units[unit.index()].spaces -= 1;
        self.vacate(id, resident);
        self.uncharge(unit, resident);
        self.retire_space(id);
    }

    /// A file of that size, with nothing of it in the cache.
    pub fn open_file(&mut self, pages: u64) -> FileId {
        let file = CachedFile::new(pages);
        if let Some(id) = self.vacant_files.pop() {
            self.files[id.0 as usize] = file;
            return id;
        }
        self.files.push(file);
        FileId(number(self.files.len()))
    }

    /// The file is removed, and its pages with it, those that are being written when they are written.
    pub fn close_file(&mut self, id: FileId) {
        let file = &mut self.files[id.0 as usize];
        debug_assert!(file.open, "a file is closed once");
        file.open = false;
        let freed: Vec<(UnitId, u64)> =
            file.owned.iter().map(|owned| (owned.unit, owned.clean + owned.dirty)).collect();
        for owned in &mut file.owned {
            (owned.clean, owned.dirty) = (0, 0);
        }
        for (unit, pages) in freed {
            self.uncharge(unit, pages);
        }
        self.retire_file(id);
    }

    /// The process touches pages for the first time: they are filled with zeros, and dirty.
    pub fn grow(&mut self, id: SpaceId, pages: u32) -> Grant {
        let (pages, unit) = (u64::from(pages), self.spaces[id.0 as usize].unit);
        let grant = self.charge(unit, pages);
        if grant == Grant::Granted {
            self.spaces[id.0 as usize].dirty += pages;
            self.place(id, pages);
            self.units[unit.index()].counts.grown += pages;
            self.ran(id);
        }
        grant
    }

    /// Pages come back that were paged out: no more than are missing. The disk read is the caller's.
    pub fn swap_in(&mut self, id: SpaceId, pages: u32) -> Grant {
        let space = &self.spaces[id.0 as usize];
        let (pages, unit) = (u64::from(pages).min(space.swapped), space.unit);
        let grant = self.charge(unit, pages);
        if grant == Grant::Granted {
            self.spaces[id.0 as usize].come_back(pages);
            self.place(id, pages);
            self.units[unit.index()].counts.swapped_in += pages;
            self.refaulted(unit, pages);
            self.ran(id);
        }
        grant
    }

    /// The process runs now, or has run until now.
    pub fn ran(&mut self, id: SpaceId) {
        self.spaces[id.0 as usize].ran_at = self.now;
    }

    /// Pages of a file that are not there enter the cache, on behalf of `unit`: clean if they are read from the disk, dirty
    /// if they are written. No more than the file has besides those that are there.
    pub fn cache(&mut self, id: FileId, unit: UnitId, pages: u32, dirty: bool) -> Grant {
        self.bring_in(id, unit, pages, dirty, false)
    }

    /// The same for pages that are read from anywhere in the file.
    pub fn cache_anywhere(&mut self, id: FileId, unit: UnitId, pages: u32) -> Grant {
        self.bring_in(id, unit, pages, false, true)
    }

    fn bring_in(&mut self, id: FileId, unit: UnitId, pages: u32, dirty: bool, anywhere: bool) -> Grant {
        let file = &self.files[id.0 as usize];
        let pages = u64::from(pages).min(file.pages.saturating_sub(file.cached()));
        let grant = self.charge(unit, pages);
        if grant == Grant::Granted && pages > 0 {
            let file = &mut self.files[id.0 as usize];
            let back = file.come_back(pages, self.evicted, self.frames, anywhere);
            file.enter(unit, pages, dirty, self.now);
            self.refaulted(unit, back);
            self.units[unit.index()].counts.cached += pages;
        }
        grant
    }

    /// A process of `unit` uses pages of the file that are in the cache. To be called for every page that is read or
    /// written, whether it was there or had to be brought in: a file whose pages are used no more often than they came in is
    /// one that is read once.
    pub fn reference(&mut self, id: FileId, unit: UnitId, pages: u32) {
        if self.linux.is_some() {
            // There, a page stays charged to the unit that brought it in.
            self.files[id.0 as usize].touch(u64::from(pages), self.now);
            return;
        }
        for (owner, pages) in self.files[id.0 as usize].reference(unit, u64::from(pages), self.now) {
            self.units[owner.index()].give(self.now, pages);
            self.units[UnitId::SHARED.index()].take(self.now, pages);
        }
    }

    /// A process of `unit` overwrites pages that are in the cache: they are used, and dirty.
    pub fn dirty(&mut self, id: FileId, unit: UnitId, pages: u32) {
        self.reference(id, unit, pages);
        self.files[id.0 as usize].overwrite(u64::from(pages), self.now);
    }

    /// Pages of the file that are in the cache.
    pub fn cached(&self, id: FileId) -> u64 {
        self.files[id.0 as usize].cached()
    }

    /// Pages of a process that are in swap alone.
    pub fn missing(&self, id: SpaceId) -> u64 {
        self.spaces[id.0 as usize].swapped
    }

    /// Pages that a process can use without a fault.
    pub fn resident(&self, id: SpaceId) -> u64 {
        self.spaces[id.0 as usize].resident()
    }

    /// Frames that are charged to a unit.
    pub fn used(&self, unit: UnitId) -> u64 {
        self.units[unit.index()].used
    }

    /// Frames that were charged to a unit in the mean from the beginning on, rounded down, and at most.
    pub fn used_mean_and_max(&self, unit: UnitId) -> (u64, u64) {
        let mut unit = self.units[unit.index()].clone();
        unit.count(self.now);
        let mean = unit.used_ns.checked_div(u128::from(self.now)).unwrap_or(0);
        (u64::try_from(mean).unwrap_or(u64::MAX), unit.used_max)
    }

    /// Whether a request of `pages` pages would be granted.
    pub fn has_room(&self, unit: UnitId, pages: u64) -> bool {
        let own = &self.units[unit.index()];
        pages + self.kept() <= self.free && own.used + pages <= own.allowed
    }

    /// Whether all that the unit is allowed is its own or free.
    pub fn is_whole(&self, unit: UnitId) -> bool {
        let own = &self.units[unit.index()];
        own.allowed.saturating_sub(own.used) <= self.free
    }

    /// Pages of processes that have a place in swap: those that are there alone, and those on their way.
    pub fn swapped(&self) -> u64 {
        self.spaces.iter().map(|space| space.swapped + space.leaving).sum()
    }

    /// Frames that no unit has.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Frames of the machine.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// What happened to a unit's memory.
    pub fn counts(&self, unit: UnitId) -> Counts {
        self.units[unit.index()].counts
    }

    /// The largest request for which progress is guaranteed, in pages: a cluster, or a disk request if that is larger.
    pub fn request_pages_max(&self) -> u64 {
        self.request.max(self.cluster)
    }

    /// Fewer frames are free than the reserve: without allowances, this is when the pager begins (seed 000, section 3.2).
    pub fn low(&self) -> bool {
        self.linux.as_ref().map_or(self.free < self.reserve, |linux| linux.is_low(self.free))
    }

    /// The unit's pager should run: it is a debtor, or nearer to its allowance than its part of the reserve, as a machine of
    /// that size would be low. Without allowances: the machine is low. The common parts, which have none, are low when half
    /// of the reserve is gone: not while every unit keeps its part.
    pub fn low_unit(&self, unit: UnitId) -> bool {
        if self.linux.is_some() {
            return false;
        }
        if !self.holds {
            return self.low();
        }
        if unit.is_common() {
            return self.free < self.reserve / 2;
        }
        let UnitPages { used, allowed, .. } = self.units[unit.index()];
        let kept = u128::from(self.reserve) * u128::from(allowed) / u128::from(self.frames);
        used > allowed || u128::from(allowed - used) < kept
    }

    /// How many frames each unit may use from now on; units that the list has not may use none.
    pub fn allow(&mut self, allowed: &[u64]) {
        for (i, unit) in self.units.iter_mut().enumerate() {
            unit.allowed = allowed.get(i).copied().unwrap_or(0).min(self.frames);
            unit.pass = 0;
        }
        self.holds = self.units.iter().any(|unit| unit.allowed < self.frames);
    }

    /// Starts a new sample of all units: one-time grants beyond allowances expire.
    pub fn begin_look(&mut self) {
        for unit in &mut self.units {
            unit.pass = 0;
        }
    }

    /// How many frames a unit may use from now on; `None`: every frame.
    pub fn allow_unit(&mut self, unit: UnitId, frames: Option<u64>) {
        self.units[unit.index()].allowed = frames.unwrap_or(self.frames).min(self.frames);
        self.holds = self.units.iter().any(|unit| unit.allowed < self.frames);
    }

    /// What the policy wants to know, one per unit. Marks of shortness begin anew.
    pub fn facts(&mut self) -> Vec<Facts> {
        let facts = |unit: &mut UnitPages| {
            let short = std::mem::take(&mut unit.short);
            Facts { present: unit.spaces > 0, used: unit.used, short, ..Facts::default() }
        };
        self.units.iter_mut().map(facts).collect()
    }

    /// Gives frames to a unit if it may have them.
    fn charge(&mut self, unit: UnitId, pages: u64) -> Grant {
        if self.linux.is_some() {
            return self.charge_as_linux(unit, pages);
        }
        let own = &mut self.units[unit.index()];
        let within = own.used + pages <= own.allowed;
        if pages > self.free || !(within || pages <= own.pass) {
            own.short = true;
            own.counts.refused += 1;
            return Grant::Short;
        }
        if !within {
            own.pass = 0;
            own.counts.forced += pages;
        }
        own.take(self.now, pages);
        self.free -= pages;
        Grant::Granted
    }

    fn uncharge(&mut self, unit: UnitId, pages: u64) {
        self.units[unit.index()].give(self.now, pages);
        self.free += pages;
    }

    /// A closed space's number is free when nothing of it is on its way out.
    fn retire_space(&mut self, id: SpaceId) {
        let space = &self.spaces[id.0 as usize];
        if !space.open && space.leaving == 0 {
            self.vacant_spaces.push(id);
        }
    }

    /// The same for a file.
    fn retire_file(&mut self, id: FileId) {
        let file = &self.files[id.0 as usize];
        if !file.open && file.in_flight() == 0 {
            self.vacant_files.push(id);
        }
    }
}

/// The number of the last of `len` elements.
fn number(len: usize) -> u32 {
    u32::try_from(len - 1).unwrap_or(u32::MAX)
}
