//! Facts about memory that a simulated Linux machine reports to the policy.
//!
//! Problem: the policy reads figures that a kernel keeps anyway, but that a simulation has to compute only
//! for reporting.
//!
//! Algorithm, each figure as the live machine reports it (`commonhold_live::observe::memory`):
//! - Kernel memory is the kernel's own frames and the high watermark.
//! - Shared memory is the memory charged to `shared` that can only be paged out: its pages of files are
//!   excluded, except for the high watermark, at most half of them.
//! - Cold memory was not touched for [`COLD_NS`]. A process accesses its pages evenly, each once per reuse
//!   time. So a page is cold if the process did not run long enough in [`COLD_NS`] to reach it. For a file
//!   that was used only once, the ages of its pages are spread evenly over the time since the first entered
//!   the cache. All pages of any other file have the age of the file's last use.
//! - Refaults: every page that is swapped in counts. A page of a file counts if it was evicted at most as
//!   many evictions ago as the machine has frames (Linux remembers about as many). Which pages enter is not
//!   known: with random access, each missing page is equally likely; otherwise pages that were never cached
//!   come first, and among the rest each is equally likely.
//! - Swap cache: a page that was swapped in and not changed since is still in swap, so it only has to be
//!   dropped.
//! - A unit stalls while at least one of its tasks waits for memory.
//! - Memory taken by order counts once its frames are free. An order takes from its start until all its pages
//!   are written; dropping a page takes [`DROP_NS`].
//!
//! Properties (tested): a unit's reported figures are within its use.
//!
//! Limits:
//! - A process counts as having run without a break until its last run. A live machine detects cold memory up
//!   to five seconds later.
//! - No kernel memory is charged to units, swap is a disk, and no process is killed.

use commonhold_contract::UnitId;
use commonhold_policy::{MemoryFacts, UnitMemory};

use super::super::Memory;
use super::super::space::Space;
use super::DROP_NS;
use crate::Time;

/// Memory that was not touched for this time is cold, as on the live machine.
const COLD_NS: Time = 10_000_000_000;

impl Memory {
    /// A unit's task begins to wait for memory.
    pub fn wait_begins(&mut self, unit: UnitId, now: Time) {
        let Some(cgroup) = self.cgroup_mut(unit) else { return };
        if cgroup.waiting == 0 {
            cgroup.waiting_since = now;
        }
        cgroup.waiting += 1;
    }

    /// A unit's task ends its wait for memory.
    pub fn wait_ends(&mut self, unit: UnitId, now: Time) {
        let Some(cgroup) = self.cgroup_mut(unit) else { return };
        debug_assert!(cgroup.waiting > 0, "a wait that ends has begun");
        cgroup.waiting -= 1;
        if cgroup.waiting == 0 {
            cgroup.stalled_ns += now - cgroup.waiting_since;
        }
    }

    /// The facts about memory that a live Linux machine would report, in bytes; `swap_free` is the free swap,
    /// in bytes. Default values on a machine that does not enforce as Linux does.
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
        let mut shared_cache = 0;
        for file in &self.files {
            let (numerator, denominator) =
                now.checked_sub(COLD_NS).map_or((0, 1), |before| file.unused_since(before));
            for owned in &file.owned {
                let unit = &mut units[owned.unit.index()];
                unit.dirty += owned.dirty + owned.writing + owned.leaving;
                unit.cold += scaled(owned.cached(), numerator, denominator);
                shared_cache += if owned.unit == UnitId::SHARED { owned.cached() } else { 0 };
            }
        }
        let bytes = |frames: u64| frames.saturating_mul(linux.frame_bytes);
        let is_common = |i: usize| i == UnitId::KERNEL.index() || i == UnitId::SHARED.index();
        let unit_facts = |(i, unit): (usize, UnitMemory)| {
            let (cgroup, used, counts) = (&linux.units[i], self.units[i].used, self.units[i].counts);
            let stalled = if cgroup.waiting > 0 { now - cgroup.waiting_since } else { 0 };
            let taking = if cgroup.ordered > 0 { now - cgroup.ordered_since } else { 0 };
            let facts = UnitMemory {
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
            if is_common(i) { UnitMemory::default() } else { facts }
        };
        let kept_cache = linux.marks.high.min(shared_cache / 2);
        let shared = self.units[UnitId::SHARED.index()].used - shared_cache + kept_cache;
        MemoryFacts {
            total: bytes(self.frames),
            kernel: bytes(self.kernel + linux.marks.high),
            shared: bytes(shared),
            swap_free,
            swap_next: 0,
            packed_permille: 0,
            units: units.into_iter().enumerate().map(unit_facts).collect(),
        }
    }

    /// Counts a unit's refaults: pages that returned after they had been evicted.
    pub(in super::super) fn count_refaults(&mut self, unit: UnitId, pages: u64) {
        if let Some(cgroup) = self.cgroup_mut(unit) {
            cgroup.refaulted += pages;
        }
    }

    /// Counts pages that an order took: `freed` pages that are free now, and `written` pages that are being
    /// written.
    pub(super) fn count_ordered(&mut self, unit: UnitId, freed: u64, written: u64) {
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

    /// Counts the end of a write of pages that an order took.
    pub(in super::super) fn order_written(&mut self, unit: UnitId, pages: u64) {
        let now = self.now;
        let Some(cgroup) = self.cgroup_mut(unit) else { return };
        cgroup.ordered -= pages;
        cgroup.taken += pages;
        if cgroup.ordered == 0 {
            cgroup.taking_ns += now - cgroup.ordered_since;
        }
    }

    /// Checks the counts of ordered reclaims, and that reported figures are within the unit's use.
    pub(in super::super) fn check_orders(&self) -> Result<(), String> {
        let Some(linux) = &self.linux else { return Ok(()) };
        for (i, (cgroup, unit)) in linux.units.iter().zip(&self.units).enumerate() {
            if cgroup.ordered > unit.leaving {
                let (ordered, leaving) = (cgroup.ordered, unit.leaving);
                return Err(format!("unit {i}: {ordered} pages leave by order, and {leaving} in all"));
            }
        }
        for (i, facts) in self.live_facts(self.now, 0).units.iter().enumerate() {
            if facts.cold > facts.used
                || facts.cold_anonymous > facts.anonymous
                || facts.anonymous > facts.used
            {
                return Err(format!("unit {i}: what is told of it is more than it uses: {facts:?}"));
            }
        }
        Ok(())
    }
}

/// How many resident pages of a process are cold.
fn cold(space: &Space, now: Time) -> u64 {
    let Some(before) = now.checked_sub(COLD_NS).filter(|before| space.born <= *before) else { return 0 };
    let ran = space.ran_at.saturating_sub(before);
    match space.reuse_ns.checked_sub(ran) {
        // The process did not run, or ran for less than its reuse time: it did not reach a part of its pages.
        Some(unreached) if ran == 0 || unreached > 0 => scaled(space.resident(), unreached, space.reuse_ns),
        _ => 0,
    }
}

/// `amount * numerator / denominator`; the whole amount if the denominator is 0.
fn scaled(amount: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = (u128::from(amount) * u128::from(numerator)).checked_div(u128::from(denominator));
    scaled.and_then(|scaled| u64::try_from(scaled).ok()).unwrap_or(amount)
}
