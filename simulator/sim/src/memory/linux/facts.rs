//! Facts about memory that a simulated Linux machine reports to the policy.
//!
//! Problem: the policy reads figures that a kernel keeps and a simulation does not need.
//!
//! Algorithm, each figure as the live machine reports it (`commonhold_live::observe::memory`):
//! - The kernel's memory is its own frames, and those up to the high watermark.
//! - Shared is the memory charged to `shared` that can only be paged out: its pages of files are left out, except for as many
//!   as the kernel keeps free, at most half of them.
//! - Memory is cold that was not touched for [`COLD_NS`]. A process comes back to each page once in its reuse time,
//!   evenly. So those are cold whose turn did not come while it ran in that time. A file that was used once has its
//!   pages from evenly over the time since the first came; any other was used as a whole when it was used last.
//! - A page that comes back from swap was taken, and so it counts as refaulted. Of the pages of a file that come in,
//!   those count that were taken lately: before no more others were taken than the machine has frames. (Linux
//!   remembers about as many.) Which come is not known. Where a file is read here and there, they
//!   fall evenly on the missing ones. Else those that were never in the cache come first, and the rest likewise.
//! - A page that came back from swap and was not changed since is in swap still: it only has to be dropped.
//! - A unit stalls while at least one of its tasks waits for memory.
//! - What an order took counts when its frames are free. It is at work from the order until all of it is written;
//!   dropping a page takes [`DROP_NS`].
//!
//! Properties (tested): a unit's reported figures are within its use.
//!
//! Limits:
//! - A process is taken to have run all the time until it ran last, and a live machine sees up to five seconds later
//!   what is cold.
//! - No memory of the kernel's is charged to a unit, swap is a disk, and nobody is killed.

use commonhold_contract::UnitId;
use commonhold_policy::{MemoryFacts, UnitMemory};

use super::super::Memory;
use super::super::space::Space;
use super::DROP_NS;
use crate::Time;

/// What was not touched for so long is cold, as on the live machine.
const COLD_NS: Time = 10_000_000_000;

impl Memory {
    /// A task of the unit begins to wait for memory.
    pub fn wait_begins(&mut self, unit: UnitId, now: Time) {
        let Some(cgroup) = self.cgroup_mut(unit) else { return };
        if cgroup.waiting == 0 {
            cgroup.waiting_since = now;
        }
        cgroup.waiting += 1;
    }

    /// A task of the unit that waited for memory does not any more.
    pub fn wait_ends(&mut self, unit: UnitId, now: Time) {
        let Some(cgroup) = self.cgroup_mut(unit) else { return };
        debug_assert!(cgroup.waiting > 0, "a wait that ends has begun");
        cgroup.waiting -= 1;
        if cgroup.waiting == 0 {
            cgroup.stalled_ns += now - cgroup.waiting_since;
        }
    }

    /// The machine's memory as the live policy wants it, in bytes; `swap_free` is the free swap, in bytes.
    /// Nothing on a machine that does not enforce as Linux does.
    pub fn live_facts(&self, now: Time, swap_free: u64) -> MemoryFacts {
        let Some(linux) = &self.linux else { return MemoryFacts::default() };
        let mut units = vec![UnitMemory::default(); self.units.len()];
        for space in &self.spaces {
            let unit = &mut units[space.unit.index()];
            unit.anonymous += space.charged();
            unit.cold_anonymous += cold(space, now);
            unit.swap_cached += space.clean;
            unit.swapped += space.clean + space.swapped;
        }
        let mut cached = 0;
        for file in &self.files {
            let (part, of) = now.checked_sub(COLD_NS).map_or((0, 1), |before| file.unused_since(before));
            for owned in &file.owned {
                let unit = &mut units[owned.unit.index()];
                unit.dirty += owned.dirty + owned.writing + owned.leaving;
                unit.cold += scaled(owned.there(), part, of);
                cached += if owned.unit == UnitId::SHARED { owned.there() } else { 0 };
            }
        }
        let bytes = |frames: u64| frames.saturating_mul(linux.frame_bytes);
        let common = |i: usize| i == UnitId::KERNEL.index() || i == UnitId::SHARED.index();
        let whole = |(i, unit): (usize, UnitMemory)| {
            let (cgroup, used, counts) = (&linux.units[i], self.units[i].used, self.units[i].counts);
            let stalled = if cgroup.waiting > 0 { now - cgroup.waiting_since } else { 0 };
            let taking = if cgroup.ordered > 0 { now - cgroup.ordered_since } else { 0 };
            let told = UnitMemory {
                used: bytes(used),
                anonymous: bytes(unit.anonymous),
                swap_cached: bytes(unit.swap_cached),
                swapped: bytes(unit.swapped),
                dirty: bytes(unit.dirty),
                cold: bytes(unit.cold + unit.cold_anonymous),
                cold_anonymous: bytes(unit.cold_anonymous),
                refused: cgroup.met_bound,
                refaulted: bytes(cgroup.refaulted),
                stalled_ns: cgroup.stalled_ns + stalled,
                reclaimed: bytes(counts.dropped + counts.paged_out),
                taken: bytes(cgroup.taken),
                taking_ns: cgroup.taking_ns + taking,
                ..UnitMemory::default()
            };
            if common(i) { UnitMemory::default() } else { told }
        };
        let shared = self.units[UnitId::SHARED.index()].used - cached + linux.marks.high.min(cached / 2);
        MemoryFacts {
            total: bytes(self.frames),
            kernel: bytes(self.kernel + linux.marks.high),
            shared: bytes(shared),
            swap_free,
            swap_next: 0,
            packed_permille: 0,
            units: units.into_iter().enumerate().map(whole).collect(),
        }
    }

    /// Counts pages that came back after they had been taken.
    pub(in super::super) fn refaulted(&mut self, unit: UnitId, pages: u64) {
        if let Some(cgroup) = self.cgroup_mut(unit) {
            cgroup.refaulted += pages;
        }
    }

    /// An order took `freed` pages that are free now, and `written` pages that are being written.
    pub(super) fn took(&mut self, unit: UnitId, freed: u64, written: u64) {
        let now = self.now;
        let Some(cgroup) = self.cgroup_mut(unit) else { return };
        if cgroup.ordered == 0 {
            cgroup.ordered_since = now;
        }
        cgroup.ordered += written;
        cgroup.wanted -= freed + written;
        cgroup.taken += freed;
        cgroup.taking_ns += freed * DROP_NS;
    }

    /// Pages are written that an order took.
    pub(in super::super) fn order_written(&mut self, unit: UnitId, pages: u64) {
        let now = self.now;
        let Some(cgroup) = self.cgroup_mut(unit) else { return };
        cgroup.ordered -= pages;
        cgroup.taken += pages;
        if cgroup.ordered == 0 {
            cgroup.taking_ns += now - cgroup.ordered_since;
        }
    }

    /// Whether the books on orders are right.
    pub(in super::super) fn check_orders(&self) -> Result<(), String> {
        let Some(linux) = &self.linux else { return Ok(()) };
        for (i, (cgroup, unit)) in linux.units.iter().zip(&self.units).enumerate() {
            if cgroup.ordered > unit.leaving {
                let (ordered, leaving) = (cgroup.ordered, unit.leaving);
                return Err(format!("unit {i}: {ordered} pages leave by order, and {leaving} in all"));
            }
        }
        for (i, told) in self.live_facts(self.now, 0).units.iter().enumerate() {
            if told.cold > told.used || told.cold_anonymous > told.anonymous || told.anonymous > told.used {
                return Err(format!("unit {i}: what is told of it is more than it uses: {told:?}"));
            }
        }
        Ok(())
    }
}

/// Pages of a process that were not touched lately.
fn cold(space: &Space, now: Time) -> u64 {
    let Some(before) = now.checked_sub(COLD_NS).filter(|before| space.born <= *before) else { return 0 };
    let ran = space.ran_at.saturating_sub(before);
    match space.reuse_ns.checked_sub(ran) {
        // It did not run, or only a part of its pages had their turn.
        Some(rest) if ran == 0 || rest > 0 => scaled(space.resident(), rest, space.reuse_ns),
        _ => 0,
    }
}

/// `whole * part / of`; all of it where `of` is nothing.
fn scaled(whole: u64, part: u64, of: u64) -> u64 {
    let scaled = (u128::from(whole) * u128::from(part)).checked_div(u128::from(of));
    scaled.and_then(|scaled| u64::try_from(scaled).ok()).unwrap_or(whole)
}
