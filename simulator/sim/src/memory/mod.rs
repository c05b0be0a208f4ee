//! The page frames of the simulated machine: how many each unit uses, and which pages are reclaimed when
//! frames are short.
//!
//! Problem: memory must behave as in a kernel that charges each frame to a unit and refuses requests beyond
//! the unit's allowance. The cost of the simulation must not grow with the size of the memory.
//!
//! Terms:
//! - A *space* is the anonymous memory of one process. Its pages are resident and clean (an up-to-date copy
//!   is in swap), resident and dirty, being written to swap (*leaving*), or in swap alone.
//! - The *cache* holds pages of files: clean, dirty, or being written.
//! - A *page-out* is one disk write of pages. When the write ends, a page that *leaves* frees its frame, and
//!   a page that *stays* is clean.
//! - A unit is *short* if a request of the unit was refused, or pages were reclaimed on its behalf, since the
//!   last sample.
//! - A *debtor* is a unit that uses more than it is allowed, because its allowance was reduced.
//!
//! Algorithm: pages are counted, not simulated one by one. A request is granted if the unit stays within its
//! allowance and enough frames are free. Otherwise the request is refused, and [`Memory::reclaim`] takes
//! pages on behalf of that unit; the module `reclaim` says from which unit, and which pages. How many frames
//! each unit may use is decided elsewhere: [`Memory::facts`] is the input of
//! `commonhold_policy::memory::frames`, whose result is set by [`Memory::allow`]. A page that a second unit
//! uses is charged to `shared` from then on.
//!
//! All this describes the published kernel (`enforces = "irix"`). The module `linux` has what differs on a
//! machine that enforces as Linux does: orders, the choice of pages, the facts reported, and the caller's
//! further duties.
//!
//! The caller has four duties:
//! - to call [`Memory::at`] when time has passed;
//! - on [`Grant::Short`], to call `reclaim`;
//! - to retry: at once if frames were freed or a grant was forced, otherwise after the next
//!   [`Memory::written`] or `close`;
//! - to call `reclaim` without a refused request for a unit that is low ([`Memory::is_unit_low`]), as a pager
//!   does.
//!
//! Properties: used and free frames sum to the machine's ([`Memory::check`]). While units are held to
//! allowances, an operation of one unit takes no pages from another unit, except in two cases: the other unit
//! is a debtor, or no frame is free and the unit itself has nothing to give. The second case is counted as
//! `seized`.
//!
//! Progress: no request of at most [`Memory::request_pages_max`] pages is refused for ever. `reclaim` frees a
//! frame, has a page-out in flight, or finds that the unit has nothing left to give: every space of the unit
//! is down to its floor, two clusters. Then one request is granted beyond the allowance, and counted as
//! `forced`. So a unit whose allowance is at least two clusters per space and one request never needs a
//! forced grant.
//!
//! Limits:
//! - The contents of a page are not known, so an access to a file hits its pages in proportion to their
//!   kinds.
//! - A page that is overwritten or used while it is being written is neither written again nor kept.
//! - Pages that were read ahead may be reclaimed before they are used: their reader counts as served when the
//!   read is done.
//! - Swap is unlimited.
//! - The module `nodes` counts in which node pages lie; reclaim ignores nodes.
//!
//! Source: seed 000, sections 2.2 (`kernel` and `shared`) and 3.2 (limits, refusal, per-unit paging, first
//! touch).

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

/// Clusters that a space keeps as long as other pages can be taken: the cluster that its process faults on,
/// and one more.
const FLOOR_CLUSTERS: u64 = 2;

/// A space's number. Numbers of closed spaces are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

/// The number of a file in the cache. Numbers of closed files are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Whether a request for frames was granted.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The frames are charged to the unit now.
    Granted,
    /// The request exceeds the unit's allowance or the free frames: reclaim, and retry.
    Short,
}

/// Counts of what happened to a unit's memory since the beginning: in pages unless noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Refused requests, in requests.
    pub refused: u64,
    /// Anonymous pages touched for the first time.
    pub grown: u64,
    /// Anonymous pages that came back from swap.
    pub swapped_in: u64,
    /// Pages of files that entered the cache.
    pub cached: u64,
    /// Pages taken from the unit whose contents were on a disk already.
    pub dropped: u64,
    /// Pages taken from the unit that had to be written first.
    pub paged_out: u64,
    /// Pages granted beyond the unit's allowance, because the unit had nothing left to give.
    pub forced: u64,
    /// Pages taken from all units on the unit's behalf, although units are held to allowances.
    pub seized: u64,
    /// Requests for which nothing could be taken in the whole machine: Linux would have killed a process.
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
    /// Frames that are needed besides the kernel's.
    pub needed: u64,
}

/// One unit's memory, in frames unless noted.
#[derive(Debug, Clone, Default)]
struct UnitPages {
    used: u64,
    /// The high-water mark of `used`.
    used_max: u64,
    /// The integral of `used` over time, in frames times ns, up to `counted_at`.
    used_ns: u128,
    counted_at: Time,
    allowed: u64,
    /// Whether the unit was short since the last sample.
    short: bool,
    /// The number of open spaces.
    spaces: u64,
    /// Pages being written whose frames will be free; part of `used`.
    leaving: u64,
    /// Pages of files being written that stay in the cache; part of `used`.
    writing: u64,
    /// The size of a forced grant: one request of at most this many pages is granted beyond the allowance. 0
    /// for none.
    pass: u64,
    counts: Counts,
}

impl UnitPages {
    fn charge(&mut self, now: Time, pages: u64) {
        self.count(now);
        self.used += pages;
        self.used_max = self.used_max.max(self.used);
    }

    fn uncharge(&mut self, now: Time, pages: u64) {
        self.count(now);
        self.used -= pages;
    }

    /// Advances the integral of used frames to now.
    fn count(&mut self, now: Time) {
        self.used_ns += u128::from(self.used) * u128::from(now - self.counted_at);
        self.counted_at = now;
    }
}

/// The memory of a simulated machine.
#[derive(Debug, Clone)]
pub struct Memory {
    now: Time,
    /// The machine's frames, and the free ones.
    frames: u64,
    free: u64,
    /// Frames that the kernel keeps for itself.
    kernel: u64,
    /// The contract's reserve of free frames.
    reserve: u64,
    /// The number of pages that are paged out or in together.
    cluster: u64,
    /// The number of pages of one disk request.
    request: u64,
    /// The number of dirty pages of files above which write-behind starts, and the age at which it starts
    /// anyway.
    dirty_limit: u64,
    dirty_age_ns: Time,
    nodes: Option<Nodes>,
    /// Whether units are held to allowances: some unit is allowed less than the whole machine.
    has_allowances: bool,
    /// The number of pages reclaimed so far.
    evicted: u64,
    /// The further state of a kernel that enforces as Linux does.
    linux: Option<Linux>,
    units: Vec<UnitPages>,
    spaces: Vec<Space>,
    vacant_spaces: Vec<SpaceId>,
    files: Vec<CachedFile>,
    vacant_files: Vec<FileId>,
}

impl Memory {
    /// The memory of a machine, with only the kernel in it. Every unit may use all frames, until
    /// [`allow`](Self::allow) limits it.
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
        units[UnitId::KERNEL.index()].charge(0, kernel);
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
            has_allowances: false,
            evicted: 0,
            linux,
            units,
            spaces: Vec::new(),
            vacant_spaces: Vec::new(),
            files: Vec::new(),
            vacant_files: Vec::new(),
        })
    }

    /// Sets the time of the following calls.
    pub fn at(&mut self, now: Time) {
        debug_assert!(now >= self.now, "time does not go back");
        self.now = now;
    }

    /// Opens the memory of a new process, which has no pages yet. The process accesses each of its pages once
    /// per `reuse_ns` of its CPU time.
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

    /// Closes the memory of a process that has ended. Its frames are free at once, except those of pages that
    /// are being written, which are free afterwards.
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

    /// Opens a file of this size that has no cached pages.
    pub fn open_file(&mut self, pages: u64) -> FileId {
        let file = CachedFile::new(pages);
        if let Some(id) = self.vacant_files.pop() {
            self.files[id.0 as usize] = file;
            return id;
        }
        self.files.push(file);
        FileId(number(self.files.len()))
    }

    /// Removes a file and its cached pages. Pages that are being written are removed afterwards.
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

    /// A process touches new pages, which are filled with zeros and dirty.
    pub fn grow(&mut self, id: SpaceId, pages: u32) -> Grant {
        let (pages, unit) = (u64::from(pages), self.spaces[id.0 as usize].unit);
        let grant = self.charge(unit, pages);
        if grant == Grant::Granted {
            self.spaces[id.0 as usize].dirty += pages;
            self.place(id, pages);
            self.units[unit.index()].counts.grown += pages;
            self.note_run(id);
        }
        grant
    }

    /// Brings up to `pages` of a process's swapped-out pages back into frames. The caller performs the disk
    /// read.
    pub fn swap_in(&mut self, id: SpaceId, pages: u32) -> Grant {
        let space = &self.spaces[id.0 as usize];
        let (pages, unit) = (u64::from(pages).min(space.swapped), space.unit);
        let grant = self.charge(unit, pages);
        if grant == Grant::Granted {
            self.spaces[id.0 as usize].swap_in(pages);
            self.place(id, pages);
            self.units[unit.index()].counts.swapped_in += pages;
            self.count_refaults(unit, pages);
            self.note_run(id);
        }
        grant
    }

    /// Records that a process runs now, or has run until now.
    pub fn note_run(&mut self, id: SpaceId) {
        self.spaces[id.0 as usize].ran_at = self.now;
    }

    /// Adds missing pages of a file to the cache, charged to `unit`: clean if they are read from the disk,
    /// dirty if they are written. At most as many as the file has that are not cached.
    pub fn cache(&mut self, id: FileId, unit: UnitId, pages: u32, dirty: bool) -> Grant {
        self.bring_in(id, unit, pages, dirty, false)
    }

    /// Adds clean pages like [`Memory::cache`], for a read at a random place of the file.
    pub fn cache_anywhere(&mut self, id: FileId, unit: UnitId, pages: u32) -> Grant {
        self.bring_in(id, unit, pages, false, true)
    }

    fn bring_in(&mut self, id: FileId, unit: UnitId, pages: u32, dirty: bool, anywhere: bool) -> Grant {
        let file = &self.files[id.0 as usize];
        let pages = u64::from(pages).min(file.pages.saturating_sub(file.cached()));
        let grant = self.charge(unit, pages);
        if grant == Grant::Granted && pages > 0 {
            let file = &mut self.files[id.0 as usize];
            let refaulted = file.count_refaults(pages, self.evicted, self.frames, anywhere);
            file.add_pages(unit, pages, dirty, self.now);
            self.count_refaults(unit, refaulted);
            self.units[unit.index()].counts.cached += pages;
        }
        grant
    }

    /// A process of `unit` uses cached pages of a file. To be called for every page that is read or written,
    /// whether it was cached before or not: a file whose pages are used no more often than they entered the
    /// cache counts as read once.
    pub fn reference(&mut self, id: FileId, unit: UnitId, pages: u32) {
        if self.linux.is_some() {
            // On Linux, a page stays charged to the unit that brought it in.
            self.files[id.0 as usize].touch(u64::from(pages), self.now);
            return;
        }
        for (owner, pages) in self.files[id.0 as usize].reference(unit, u64::from(pages), self.now) {
            self.units[owner.index()].uncharge(self.now, pages);
            self.units[UnitId::SHARED.index()].charge(self.now, pages);
        }
    }

    /// A process of `unit` overwrites cached pages, which counts as a use and makes them dirty.
    pub fn dirty(&mut self, id: FileId, unit: UnitId, pages: u32) {
        self.reference(id, unit, pages);
        self.files[id.0 as usize].overwrite(u64::from(pages), self.now);
    }

    /// How many pages of a file are in the cache.
    pub fn cached(&self, id: FileId) -> u64 {
        self.files[id.0 as usize].cached()
    }

    /// How many pages of a process are in swap alone, so that a touch faults.
    pub fn missing(&self, id: SpaceId) -> u64 {
        self.spaces[id.0 as usize].swapped
    }

    /// How many pages a process can use without a fault.
    pub fn resident(&self, id: SpaceId) -> u64 {
        self.spaces[id.0 as usize].resident()
    }

    /// How many frames are charged to a unit.
    pub fn used(&self, unit: UnitId) -> u64 {
        self.units[unit.index()].used
    }

    /// The mean of the frames charged to a unit since the beginning, rounded down, and the maximum.
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

    /// Whether a unit could have its whole allowance now: the frames that it does not use yet are free.
    pub fn has_allowance_available(&self, unit: UnitId) -> bool {
        let own = &self.units[unit.index()];
        own.allowed.saturating_sub(own.used) <= self.free
    }

    /// How many pages of processes occupy swap: pages in swap alone, and pages being written to swap.
    pub fn swapped(&self) -> u64 {
        self.spaces.iter().map(|space| space.swapped + space.leaving).sum()
    }

    /// The number of free frames.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The number of the machine's frames.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The counts of a unit.
    pub fn counts(&self, unit: UnitId) -> Counts {
        self.units[unit.index()].counts
    }

    /// The largest request for which progress is guaranteed, in pages: a cluster, or a disk request if that
    /// is larger.
    pub fn request_pages_max(&self) -> u64 {
        self.request.max(self.cluster)
    }

    /// Whether fewer frames are free than the reserve (on Linux: than the low watermark). Without allowances,
    /// the pager begins then (seed 000, section 3.2).
    pub fn is_low(&self) -> bool {
        self.linux.as_ref().map_or(self.free < self.reserve, |linux| linux.is_low(self.free))
    }

    /// Whether the pager should take pages from a unit. With allowances: the unit is a debtor, or its
    /// headroom below the allowance is smaller than its proportional part of the reserve. Without allowances:
    /// the machine is low. The built-in units `kernel` and `shared`, which have no allowances, are low when
    /// less than half of the reserve is free; it is not while every unit keeps its part.
    pub fn is_unit_low(&self, unit: UnitId) -> bool {
        if self.linux.is_some() {
            return false;
        }
        if !self.has_allowances {
            return self.is_low();
        }
        if unit.is_common() {
            return self.free < self.reserve / 2;
        }
        let UnitPages { used, allowed, .. } = self.units[unit.index()];
        let part_of_reserve = u128::from(self.reserve) * u128::from(allowed) / u128::from(self.frames);
        used > allowed || u128::from(allowed - used) < part_of_reserve
    }

    /// Sets how many frames each unit may use from now on, by [`UnitId::index`]. Units beyond the end of the
    /// list may use none.
    pub fn allow(&mut self, allowed: &[u64]) {
        for (i, unit) in self.units.iter_mut().enumerate() {
            unit.allowed = allowed.get(i).copied().unwrap_or(0).min(self.frames);
            unit.pass = 0;
        }
        self.has_allowances = self.units.iter().any(|unit| unit.allowed < self.frames);
    }

    /// Starts a new sample of all units: forced grants that were not used expire.
    pub fn begin_sample(&mut self) {
        for unit in &mut self.units {
            unit.pass = 0;
        }
    }

    /// Sets how many frames a unit may use from now on; `None` for all frames.
    pub fn allow_unit(&mut self, unit: UnitId, frames: Option<u64>) {
        self.units[unit.index()].allowed = frames.unwrap_or(self.frames).min(self.frames);
        self.has_allowances = self.units.iter().any(|unit| unit.allowed < self.frames);
    }

    /// The facts about each unit's memory for the policy. Resets the marks of units that were short.
    pub fn facts(&mut self) -> Vec<Facts> {
        let facts = |unit: &mut UnitPages| {
            let short = std::mem::take(&mut unit.short);
            Facts { present: unit.spaces > 0, used: unit.used, short, ..Facts::default() }
        };
        self.units.iter_mut().map(facts).collect()
    }

    /// Charges free frames to a unit, if its allowance or a forced grant permits it.
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
        own.charge(self.now, pages);
        self.free -= pages;
        Grant::Granted
    }

    /// Frees frames of a unit.
    fn uncharge(&mut self, unit: UnitId, pages: u64) {
        self.units[unit.index()].uncharge(self.now, pages);
        self.free += pages;
    }

    /// Frees the number of a closed space once none of its pages is being written.
    fn retire_space(&mut self, id: SpaceId) {
        let space = &self.spaces[id.0 as usize];
        if !space.open && space.leaving == 0 {
            self.vacant_spaces.push(id);
        }
    }

    /// Frees the number of a removed file once none of its pages is being written.
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
