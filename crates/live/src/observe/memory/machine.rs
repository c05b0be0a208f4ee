//! What the kernel tells about the memory of the machine.
//!
//! Problem: what is in no unit must be known to divide the rest. The kernel counts it nowhere: it is what is neither
//! free nor charged to a unit. But `MemFree` leaves out free pages on the lists that every CPU keeps for itself. Since
//! Linux 6.7 these may be an eighth of the machine, and they stay there as long as the CPU is idle. A process that
//! ends on such a CPU would seem to hold its memory still. /proc/zoneinfo has them.
//!
//! Algorithm: pages on the lists are free, with one exception. Where memory is short, the kernel takes pages from all,
//! and kills where there are none to take, before it takes those of an idle CPU. It lets lists have as much as a
//! zone's low watermark in any case. That much always counts as kept: a unit that fills the memory within a moment
//! meets what is on the lists by then. When the machine has no more than is kept, the rest of the lists counts as kept
//! too, little by little ([`SETTLE_NS`]): lists change by themselves within milliseconds, and what is divided
//! should not.
//!
//! Cost: /proc/zoneinfo has some six lines per CPU and zone, which the kernel writes with the zone locked. It is read
//! for a hundredth of the time at most. Where CPUs are so many that this is not at every look, lists are taken to be
//! as they were.
//!
//! Source: proc.rst, "meminfo", "zoneinfo"; `mm/page_alloc.c` (`zone_set_pageset_high_and_batch`, `decay_pcp_high`).

use std::path::Path;

use commonhold_policy::Time;

use super::facts::Charged;
use super::source::{Buffer, Source, page_bytes};
use crate::LiveError;
use crate::host::clock;

/// After a read of /proc/zoneinfo there is none for so many times as long as it took.
const REST_TIMES: Time = 100;
/// Where so many times what is free beyond what the kernel keeps is less than the lists hold, the rest cannot be had.
const FREE_TIMES: u64 = 4;
/// The time in which what cannot be had of the lists follows what they are.
const SETTLE_NS: Time = 5_000_000_000;

/// The files of the machine's memory.
#[derive(Debug)]
pub(crate) struct Machine {
    meminfo: Source,
    /// `None` where it may not be read: what is on the lists counts as used then.
    zoneinfo: Option<Source>,
    min_free: Option<Source>,
    /// Bytes on the lists when they were read.
    listed: u64,
    rest_until: Time,
    /// Bytes on the lists that cannot be had, of what is there beyond the usual, and when that was reckoned.
    stuck: u64,
    reckoned: Time,
}

/// What /proc/zoneinfo tells, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Zones {
    total: u64,
    /// Not on any list.
    free: u64,
    listed: u64,
}

impl Machine {
    /// The files below `proc`, which is /proc on a machine.
    pub(crate) fn open(proc: &Path) -> Result<Machine, LiveError> {
        Ok(Machine {
            meminfo: Source::open(&proc.join("meminfo"))?,
            zoneinfo: Source::optional(&proc.join("zoneinfo")),
            min_free: Source::optional(&proc.join("sys/vm/min_free_kbytes")),
            listed: 0,
            rest_until: 0,
            stuck: 0,
            reckoned: 0,
        })
    }

    pub(crate) fn read(&mut self, buffer: &mut Buffer) -> Result<MachineMemory, LiveError> {
        let seen = MachineMemory::parse(self.meminfo.read(buffer)?);
        let begun = clock::now();
        let zones = if begun < self.rest_until { None } else { self.zones(seen.total, buffer) };
        let now = clock::now();
        if zones.is_some() {
            self.rest_until = now + REST_TIMES * (now - begun);
        }
        let least = self.min_free.as_ref().and_then(|file| file.read(buffer).ok()?.trim().parse().ok());
        Ok(self.reckon(now, seen, zones, least.unwrap_or(0)))
    }

    /// `None` if it cannot be told, or of another machine: in a container, /proc/meminfo may be made up (lxcfs).
    fn zones(&self, total: u64, buffer: &mut Buffer) -> Option<Zones> {
        let mut zones = Zones::default();
        self.zoneinfo.as_ref()?.lines(buffer, |line| zones.take(line)).ok()?;
        (zones.total.abs_diff(total) <= total / 100).then_some(zones)
    }

    /// What is free, and what of it is kept, from all files; `least` is `vm.min_free_kbytes`. Where lists and what is free
    /// without them are known of one moment, both are taken from there.
    fn reckon(&mut self, now: Time, seen: MachineMemory, zones: Option<Zones>, least: u64) -> MachineMemory {
        let (free, listed) = zones.map_or((seen.free, self.listed), |zones| (zones.free, zones.listed));
        let least = least.saturating_mul(1_024);
        let (kept, on_lists) = (kept_free(seen.total, least), kept_on_lists(least));
        let stuck = listed
            .saturating_sub(on_lists)
            .saturating_sub(FREE_TIMES.saturating_mul(free.saturating_sub(kept)));
        let passed = u128::from(now.saturating_sub(self.reckoned).min(SETTLE_NS));
        let part =
            |bytes: u64| u64::try_from(u128::from(bytes) * passed / u128::from(SETTLE_NS)).unwrap_or(bytes);
        self.stuck =
            self.stuck - part(self.stuck.saturating_sub(stuck)) + part(stuck.saturating_sub(self.stuck));
        (self.listed, self.reckoned) = (listed, now);
        MachineMemory {
            free: free.saturating_add(listed).min(seen.total),
            kept_free: kept + on_lists + self.stuck,
            ..seen
        }
    }
}

impl Zones {
    /// One line: `pages free 123` and `managed 456` of a zone, or `count: 7` below the number of a CPU.
    fn take(&mut self, line: &str) {
        let sums =
            [("pages free", &mut self.free), ("managed", &mut self.total), ("count:", &mut self.listed)];
        for (key, sum) in sums {
            let rest = line.trim_start().strip_prefix(key);
            if let Some(pages) = rest.and_then(|rest| rest.trim().parse::<u64>().ok()) {
                *sum = sum.saturating_add(pages.saturating_mul(page_bytes()));
            }
        }
    }
}

/// The machine's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MachineMemory {
    pub(crate) total: u64,
    /// With what lies on the lists of CPUs.
    pub(crate) free: u64,
    /// What the kernel does not let become less, with what cannot be had of those lists.
    pub(crate) kept_free: u64,
    pub(crate) swap_free: u64,
    /// Pages that zswap holds, and what they take.
    pub(crate) zswapped: u64,
    pub(crate) zswap: u64,
    /// Pages of files, and what the kernel caches beside them and gives up when asked.
    pub(crate) cached: u64,
    /// What the kernel keeps for itself and for all control groups.
    pub(crate) kernel: u64,
}

impl MachineMemory {
    /// What those hold who are in no unit, and what the kernel keeps for itself; `ours` is what all units are charged.
    /// `MemAvailable` would say nearly this; but it sinks by hundreds of megabytes while the kernel keeps more free for a while
    /// (`watermark_boost_factor`), and entitlements would with it.
    pub(crate) fn common(&self, ours: &Charged) -> (u64, u64) {
        let others = self.total.saturating_sub(self.free).saturating_sub(ours.current);
        let cached = self.cached.saturating_sub(ours.cached);
        // They need some of their cache, as the kernel itself has it in MemAvailable.
        let needed = others.saturating_sub(cached) + self.kept_free.min(cached / 2);
        let kernel = self.kernel.saturating_sub(ours.kernel).min(needed);
        (kernel + self.kept_free, needed - kernel)
    }

    /// From the text of /proc/meminfo, without the lists of CPUs and what is kept free; what a line does not say is 0.
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

/// What the kernel keeps free of `total`, in bytes: it begins to take pages from everybody at 1.25 times
/// `vm.min_free_kbytes`, and stops at 1.5 times, or a little above where memory is large (`watermark_scale_factor`).
fn kept_free(total: u64, least: u64) -> u64 {
    least.saturating_add(least / 2).max(least.saturating_add(total / 500))
}

/// What the kernel lets CPUs keep on their lists in any case, in bytes: together as much as is left when it begins to take pages
/// (`pcp->high_min`). It stays there where memory runs out: the lab's machine had 99 of 2,048 MiB there when it killed.
fn kept_on_lists(least: u64) -> u64 {
    least.saturating_add(least / 4)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ZONES: &str = "Node 0, zone      DMA\n  pages free     3840\n        boost    0\n        managed  4000\n  pagesets\n    \
                         cpu: 0\n              count:    7\n              high:     9\n              batch:    1\n    cpu: 1\n              \
                         count:    20\n              high:     0\nNode 1, zone   Normal\n  pages free     160\n        managed  4192\n";

    /// A machine of 8,192 pages whose files are in `dir`, of which so many are free.
    fn write(dir: &Path, free: u64, zones: &str) {
        let [total, free] = [8_192, free].map(|pages| pages * page_bytes() / 1024);
        std::fs::write(dir.join("meminfo"), format!("MemTotal: {total} kB\nMemFree: {free} kB\n")).unwrap();
        std::fs::write(dir.join("zoneinfo"), zones).unwrap();
    }

    /// What is on the lists of CPUs is free; while they are not looked up again, they are as they were.
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

    /// On lists the kernel keeps 10 MiB in any case. Of 27 MiB more all can be had while 7 MiB beyond what is kept are free
    /// besides; none while nothing is, but that is reckoned with only after five seconds, and half of it after 2.5.
    #[test]
    fn where_memory_is_short_lists_cannot_be_had() {
        const MIB: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "");
        let mut machine = Machine::open(dir.path()).unwrap();
        let seen = MachineMemory { total: 1_000 * MIB, ..MachineMemory::default() };
        let kept = kept_free(seen.total, 8 * MIB);
        assert_eq!((kept, kept_on_lists(8 * MIB)), (12 * MIB, 10 * MIB));
        let mut looks = |now, free| {
            let zones = Zones { total: seen.total, free, listed: 37 * MIB };
            let told = machine.reckon(now, seen, Some(zones), 8 << 10);
            assert_eq!(told.free, free + 37 * MIB);
            told.kept_free - kept - 10 * MIB
        };
        assert_eq!(looks(SETTLE_NS, kept + 7 * MIB), 0);
        assert_eq!(looks(SETTLE_NS, 0), 0, "at once, nothing changes");
        assert_eq!(looks(SETTLE_NS * 3 / 2, kept), 27 * MIB / 2);
        assert_eq!(looks(SETTLE_NS * 5 / 2, 0), 27 * MIB);
        assert_eq!(looks(SETTLE_NS * 7 / 2, kept + 5 * MIB), 7 * MIB);
        assert_eq!(looks(SETTLE_NS * 9, kept + 70 * MIB), 0);
    }

    /// Without the file, or where it tells of another machine, what `MemFree` tells.
    #[test]
    fn zones_of_another_machine() {
        let dir = tempfile::tempdir().unwrap();
        for zones in ["", &ZONES.replace("4192", "41920")] {
            write(dir.path(), 3_000, zones);
            let seen = Machine::open(dir.path()).unwrap().read(&mut Buffer::default()).unwrap();
            assert_eq!(seen.free, 3_000 * page_bytes());
        }
    }

    /// A file that is larger than the buffer is read to its end, and its lines are whole.
    #[test]
    fn many_cpus() {
        let dir = tempfile::tempdir().unwrap();
        let cpus = "    cpu: 1\n              count:    1\n".repeat(3_000);
        write(dir.path(), 0, &format!("{cpus}  managed 8192\n"));
        let machine = Machine::open(dir.path()).unwrap();
        let zones = machine.zones(8_192 * page_bytes(), &mut Buffer::default());
        assert_eq!(zones.unwrap().listed, 3_000 * page_bytes());
    }

    #[test]
    fn the_machine() {
        let text = "MemTotal:  2048 kB\nMemFree: 1024 kB\nActive(file): 5 kB\nInactive(file): 2 kB\nSwapFree: 8 kB\nZswap: 2 kB\nZswapped: 6 kB\nSUnreclaim: 3 kB\nPercpu: 1 kB\n";
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

    /// Of 1,000: 100 free; units have 500, 300 of it cached; others 400, of which the kernel has 50 and the cache 150, and of
    /// that they need 20, as much as the kernel keeps free.
    #[test]
    fn what_others_would_give_up_is_not_theirs() {
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
