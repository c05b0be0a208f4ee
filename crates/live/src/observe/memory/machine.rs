//! The memory of the machine: how much is free, and how much belongs to no unit.
//!
//! Problem: units divide the memory that remains after the memory of no unit is subtracted: the kernel's, and
//! that of processes in no unit. The kernel does not count this memory; it is the memory that is neither free
//! nor charged to a unit. But `MemFree` leaves out the free pages on per-CPU lists. Since Linux 6.7 these
//! lists may have an eighth of the machine's memory, and their pages stay there while the CPU is idle. A
//! process that ended on such a CPU would still seem to hold its memory. So the pages on the lists are read
//! from /proc/zoneinfo.
//!
//! Algorithm: pages on the lists count as free, but some of the free memory counts as *kept* by the kernel,
//! so that no unit is promised it. When memory is short, the kernel reclaims pages everywhere, and even kills
//! processes, before it drains the lists of an idle CPU, and it always leaves as much as a zone's low
//! watermark on the lists. That much always counts as kept, since a unit that fills the memory within a
//! moment cannot get it. When the other free memory sinks to the amount that the kernel keeps there, the
//! remaining pages on the lists count as kept, too (*stuck*). This happens gradually ([`SETTLE_NS`]): lists
//! change within milliseconds, and the amount to be divided should not.
//!
//! Cost: /proc/zoneinfo has about six lines per CPU and zone, which the kernel writes with the zone locked.
//! At most a hundredth of the time is spent reading it. On machines with too many CPUs to read it at every
//! sample, the last value is used.
//!
//! Source: proc.rst, "meminfo", "zoneinfo"; `mm/page_alloc.c` (`zone_set_pageset_high_and_batch`,
//! `decay_pcp_high`).

use std::path::Path;

use commonhold_policy::Time;

use super::facts::Charged;
use super::source::{Buffer, Source, page_bytes};
use crate::LiveError;
use crate::host::clock;

/// After a read of /proc/zoneinfo, the next one waits for this many times its duration.
const REST_TIMES: Time = 100;
/// Of the pages on the lists, only this many times the free memory that exceeds the kept amount is available;
/// the other pages are stuck.
const FREE_TIMES: u64 = 4;
/// The time within which the stuck part of the lists follows their state.
const SETTLE_NS: Time = 5_000_000_000;

/// The files of the machine's memory.
#[derive(Debug)]
pub(crate) struct Machine {
    meminfo: Source,
    /// `None` if it may not be read. Pages on the lists then count as used.
    zoneinfo: Option<Source>,
    min_free: Option<Source>,
    /// Bytes on per-CPU lists when last read.
    on_lists: u64,
    /// When /proc/zoneinfo may be read again.
    rest_until: Time,
    /// Bytes stuck on the lists, beyond those that are always kept there, and when that was calculated.
    stuck: u64,
    updated_at: Time,
}

/// The sums of /proc/zoneinfo, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Zones {
    total: u64,
    /// Free pages that are on no per-CPU list.
    free: u64,
    /// Pages on per-CPU lists.
    on_lists: u64,
}

impl Machine {
    /// The files below `proc`, which is /proc on a machine.
    pub(crate) fn open(proc: &Path) -> Result<Machine, LiveError> {
        Ok(Machine {
            meminfo: Source::open(&proc.join("meminfo"))?,
            zoneinfo: Source::optional(&proc.join("zoneinfo")),
            min_free: Source::optional(&proc.join("sys/vm/min_free_kbytes")),
            on_lists: 0,
            rest_until: 0,
            stuck: 0,
            updated_at: 0,
        })
    }

    /// Reads the machine's memory now, and /proc/zoneinfo if the pause since its last read is long enough.
    pub(crate) fn read(&mut self, buffer: &mut Buffer) -> Result<MachineMemory, LiveError> {
        let meminfo = MachineMemory::parse(self.meminfo.read(buffer)?);
        let begun = clock::now();
        let zones = if begun < self.rest_until { None } else { self.zones(meminfo.total, buffer) };
        let now = clock::now();
        if zones.is_some() {
            self.rest_until = now + REST_TIMES * (now - begun);
        }
        let min_free = self.min_free.as_ref().and_then(|file| file.read(buffer).ok()?.trim().parse().ok());
        Ok(self.update(now, meminfo, zones, min_free.unwrap_or(0)))
    }

    /// The sums of /proc/zoneinfo. `None` if it cannot be read, or disagrees with /proc/meminfo about the
    /// `total` memory: in a container, meminfo may be synthetic (lxcfs).
    fn zones(&self, total: u64, buffer: &mut Buffer) -> Option<Zones> {
        let mut zones = Zones::default();
        self.zoneinfo.as_ref()?.lines(buffer, |line| zones.add_line(line)).ok()?;
        (zones.total.abs_diff(total) <= total / 100).then_some(zones)
    }

    /// Completes `meminfo`, the content of /proc/meminfo, by the free and the kept memory. `min_free_kib` is
    /// `vm.min_free_kbytes`. If `zones` were read, the pages on lists and other free pages are both taken
    /// from `zones`, so that both are of the same moment.
    fn update(
        &mut self,
        now: Time,
        meminfo: MachineMemory,
        zones: Option<Zones>,
        min_free_kib: u64,
    ) -> MachineMemory {
        let (free, on_lists) =
            zones.map_or((meminfo.free, self.on_lists), |zones| (zones.free, zones.on_lists));
        let min_free = min_free_kib.saturating_mul(1_024);
        let (kept, kept_on_lists) = (kept_free(meminfo.total, min_free), kept_on_lists(min_free));
        let stuck = on_lists
            .saturating_sub(kept_on_lists)
            .saturating_sub(FREE_TIMES.saturating_mul(free.saturating_sub(kept)));
        // Exponential smoothing: move `self.stuck` towards the present value by the fraction `elapsed time /
        // SETTLE_NS` of the difference.
        let elapsed = u128::from(now.saturating_sub(self.updated_at).min(SETTLE_NS));
        let fraction_of =
            |bytes: u64| u64::try_from(u128::from(bytes) * elapsed / u128::from(SETTLE_NS)).unwrap_or(bytes);
        self.stuck = self.stuck - fraction_of(self.stuck.saturating_sub(stuck))
            + fraction_of(stuck.saturating_sub(self.stuck));
        (self.on_lists, self.updated_at) = (on_lists, now);
        MachineMemory {
            free: free.saturating_add(on_lists).min(meminfo.total),
            kept_free: kept + kept_on_lists + self.stuck,
            ..meminfo
        }
    }
}

impl Zones {
    /// Adds the number in a line of /proc/zoneinfo to a sum: `pages free 123` and `managed 456` of a zone, or
    /// `count: 7` of a CPU's list. Other lines are ignored.
    fn add_line(&mut self, line: &str) {
        let sums =
            [("pages free", &mut self.free), ("managed", &mut self.total), ("count:", &mut self.on_lists)];
        for (key, sum) in sums {
            let rest = line.trim_start().strip_prefix(key);
            if let Some(pages) = rest.and_then(|rest| rest.trim().parse::<u64>().ok()) {
                *sum = sum.saturating_add(pages.saturating_mul(page_bytes()));
            }
        }
    }
}

/// The memory of the machine, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MachineMemory {
    pub(crate) total: u64,
    /// Free memory, including pages on per-CPU lists.
    pub(crate) free: u64,
    /// The part of `free` that no unit can get, since the kernel keeps it, including pages stuck on per-CPU
    /// lists.
    pub(crate) kept_free: u64,
    pub(crate) swap_free: u64,
    /// Pages in zswap at full size, and the memory that they take.
    pub(crate) zswapped: u64,
    pub(crate) zswap: u64,
    /// File pages, and reclaimable kernel caches.
    pub(crate) cached: u64,
    /// Kernel memory that cannot be reclaimed, including that charged to control groups.
    pub(crate) kernel: u64,
}

impl MachineMemory {
    /// The memory that no unit can have, as two numbers: the kernel's, and that of processes in no unit.
    /// `units` is the charge of all units. `MemAvailable` would be similar, but it drops by hundreds of
    /// megabytes while the kernel temporarily keeps more memory free (`watermark_boost_factor`), and
    /// entitlements would drop with it.
    pub(crate) fn common(&self, units: &Charged) -> (u64, u64) {
        let of_others = self.total.saturating_sub(self.free).saturating_sub(units.current);
        let cached_by_others = self.cached.saturating_sub(units.cached);
        // Processes in no unit need some of their cached pages. That part is estimated by the rule by which
        // the kernel computes MemAvailable.
        let needed = of_others.saturating_sub(cached_by_others) + self.kept_free.min(cached_by_others / 2);
        let kernel = self.kernel.saturating_sub(units.kernel).min(needed);
        (kernel + self.kept_free, needed - kernel)
    }

    /// Parses /proc/meminfo, which lacks per-CPU lists and kept memory. Missing lines count as 0.
    fn parse(text: &str) -> MachineMemory {
        let bytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0).saturating_mul(1024)
        };
        MachineMemory {
            total: bytes("MemTotal"),
            free: bytes("MemFree"),
            kept_free: 0,
            swap_free: bytes("SwapFree"),
            zswapped: bytes("Zswapped"),
            zswap: bytes("Zswap"),
            cached: ["Active(file)", "Inactive(file)", "SReclaimable"].into_iter().map(bytes).sum(),
            kernel: ["SUnreclaim", "KernelStack", "PageTables", "Percpu"].into_iter().map(bytes).sum(),
        }
    }
}

/// The free bytes that the kernel keeps besides the per-CPU lists, of `total` bytes of memory; `min_free` is
/// `vm.min_free_kbytes` in bytes. The kernel begins to reclaim at 1.25 times that, and stops at 1.5 times, or
/// slightly above if memory is large (`watermark_scale_factor`).
fn kept_free(total: u64, min_free: u64) -> u64 {
    min_free.saturating_add(min_free / 2).max(min_free.saturating_add(total / 500))
}

/// Bytes that the kernel always leaves on per-CPU lists (`pcp->high_min`), in sum the low watermark at which
/// it begins to reclaim. They stay on the lists when memory runs out: the lab's machine had 99 of 2,048 MiB
/// there when the OOM killer ran.
fn kept_on_lists(min_free: u64) -> u64 {
    min_free.saturating_add(min_free / 4)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ZONES: &str = concat!(
        "Node 0, zone      DMA\n  pages free     3840\n        boost    0\n        managed  4000\n  pagesets\n",
        "    cpu: 0\n              count:    7\n              high:     9\n              batch:    1\n",
        "    cpu: 1\n              count:    20\n              high:     0\n",
        "Node 1, zone   Normal\n  pages free     160\n        managed  4192\n",
    );

    /// Writes the files of a machine of 8,192 pages, of which `free` are free.
    fn write(dir: &Path, free: u64, zones: &str) {
        let [total, free] = [8_192, free].map(|pages| pages * page_bytes() / 1024);
        std::fs::write(dir.join("meminfo"), format!("MemTotal: {total} kB\nMemFree: {free} kB\n")).unwrap();
        std::fs::write(dir.join("zoneinfo"), zones).unwrap();
    }

    /// Pages on per-CPU lists are free. Between two reads of the lists, the last value counts.
    #[test]
    fn pages_on_the_lists_of_cpus_are_free() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 3_990, ZONES);
        let (mut machine, mut buffer) = (Machine::open(dir.path()).unwrap(), Buffer::default());
        let mut free = |machine: &mut Machine| machine.read(&mut buffer).unwrap().free / page_bytes();
        assert_eq!(free(&mut machine), 4_000 + 27);
        assert!(machine.rest_until > clock::now());
        machine.rest_until = Time::MAX;
        write(dir.path(), 3_000, "");
        assert_eq!(free(&mut machine), 3_000 + 27);
        write(dir.path(), 8_190, ZONES);
        assert_eq!(free(&mut machine), 8_192, "no more than there is");
    }

    /// The kernel always keeps 10 MiB on the lists. Another 27 MiB there are available while 7 MiB beyond
    /// what is kept are free elsewhere, and stuck while nothing is. That takes effect within five seconds,
    /// half of it after 2.5.
    #[test]
    fn pages_on_lists_are_stuck_while_memory_is_short() {
        const MIB: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "");
        let mut machine = Machine::open(dir.path()).unwrap();
        let seen = MachineMemory { total: 1_000 * MIB, ..MachineMemory::default() };
        let kept = kept_free(seen.total, 8 * MIB);
        assert_eq!((kept, kept_on_lists(8 * MIB)), (12 * MIB, 10 * MIB));
        let mut stuck = |now, free| {
            let zones = Zones { total: seen.total, free, on_lists: 37 * MIB };
            let memory = machine.update(now, seen, Some(zones), 8 << 10);
            assert_eq!(memory.free, free + 37 * MIB);
            memory.kept_free - kept - 10 * MIB
        };
        assert_eq!(stuck(SETTLE_NS, kept + 7 * MIB), 0);
        assert_eq!(stuck(SETTLE_NS, 0), 0, "at once, nothing changes");
        assert_eq!(stuck(SETTLE_NS * 3 / 2, kept), 27 * MIB / 2);
        assert_eq!(stuck(SETTLE_NS * 5 / 2, 0), 27 * MIB);
        assert_eq!(stuck(SETTLE_NS * 7 / 2, kept + 5 * MIB), 7 * MIB);
        assert_eq!(stuck(SETTLE_NS * 9, kept + 70 * MIB), 0);
    }

    /// Without the file, or if it describes another machine, `MemFree` counts.
    #[test]
    fn zones_that_disagree_with_meminfo_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        for zones in ["", &ZONES.replace("4192", "41920")] {
            write(dir.path(), 3_000, zones);
            let seen = Machine::open(dir.path()).unwrap().read(&mut Buffer::default()).unwrap();
            assert_eq!(seen.free, 3_000 * page_bytes());
        }
    }

    /// A file that is larger than the buffer is read to its end, and its lines are whole.
    #[test]
    fn a_file_larger_than_the_buffer_is_summed_completely() {
        let dir = tempfile::tempdir().unwrap();
        let cpus = "    cpu: 1\n              count:    1\n".repeat(3_000);
        write(dir.path(), 0, &format!("{cpus}  managed 8192\n"));
        let machine = Machine::open(dir.path()).unwrap();
        let zones = machine.zones(8_192 * page_bytes(), &mut Buffer::default());
        assert_eq!(zones.unwrap().on_lists, 3_000 * page_bytes());
    }

    #[test]
    fn meminfo_is_parsed() {
        let text = "MemTotal:  2048 kB\nMemFree: 1024 kB\nActive(file): 5 kB\nInactive(file): 2 kB\nSwapFree: 8 kB\n\
                    Zswap: 2 kB\nZswapped: 6 kB\nSUnreclaim: 3 kB\nPercpu: 1 kB\n";
        let seen = MachineMemory::parse(text);
        let expected = MachineMemory {
            total: 2 << 20,
            free: 1 << 20,
            kept_free: 0,
            swap_free: 8 << 10,
            zswapped: 6 << 10,
            zswap: 2 << 10,
            cached: 7 << 10,
            kernel: 4 << 10,
        };
        assert_eq!(seen, expected);
    }

    /// Of 1,000, 100 are free. Units have 500, of which 300 are cached. Others have 400, of which the kernel
    /// has 50 and the cache
    /// 150. They need 20 of that cache, as much as the kernel keeps free.
    #[test]
    fn reclaimable_cache_of_others_does_not_count_as_theirs() {
        let machine = MachineMemory {
            total: 1_000,
            free: 100,
            kept_free: 20,
            cached: 450,
            kernel: 60,
            ..MachineMemory::default()
        };
        let ours = Charged { current: 500, cached: 300, kernel: 10, ..Charged::default() };
        assert_eq!(machine.common(&ours), (50 + 20, 400 - 150 + 20 - 50));
    }
}
