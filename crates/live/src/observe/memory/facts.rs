//! The memory of one control group: its charge, its bounds, and its stalls.
//!
//! Source: cgroup-v2.rst, "Memory Interface Files".

use std::io;
use std::path::Path;

use commonhold_policy::UnitMemory;

use super::source::{Buffer, Source, page_bytes};
use crate::LiveError;
use crate::host;
use crate::observe::knob::value_of;

/// How swap uses memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Packing {
    /// Bytes in all swap areas.
    pub(super) swapped: u64,
    /// Bytes of memory that the compressed pages on zram take.
    pub(super) pool: u64,
    /// A hash of the name of the swap area that the kernel fills next; 0 if there is none.
    pub(crate) next: u64,
    /// The part of the memory swapped out next, in thousandths, that remains occupied because the swap area
    /// compresses in memory; 0 for an area on a drive.
    pub(crate) permille: u64,
}

impl Packing {
    #[cfg(test)]
    pub(crate) fn of_all(swapped: u64, pool: u64) -> Packing {
        Packing { swapped, pool, next: 0, permille: 0 }
    }

    /// The memory that a unit's pages on zram take if the unit has `swapped` bytes in swap. The unit's share
    /// of zram's memory is assumed to be its share of all swapped bytes.
    pub(crate) fn of(&self, swapped: u64) -> u64 {
        let bytes = u128::from(self.pool) * u128::from(swapped) / u128::from(self.swapped.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX).min(self.pool)
    }
}

/// The open files with the charge of one control group.
#[derive(Debug)]
pub(crate) struct Group {
    current: Source,
    stat: Source,
    /// `None` if the kernel has no swap support.
    swapped: Option<Source>,
}

/// The charge of a control group with its descendants, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Charged {
    /// All memory charged to the group, plus `packed`.
    pub(crate) current: u64,
    /// The memory that the group's pages on zram take: see [`super::swap`].
    pub(crate) packed: u64,
    /// The group's pages in swap, at full size.
    pub(crate) swapped: u64,
    pub(crate) anonymous: u64,
    /// The part of `anonymous` that is in swap as well, except for pages that are being written to swap.
    pub(crate) swap_cached: u64,
    /// File pages that are not written to disk yet.
    pub(crate) dirty: u64,
    /// Kernel memory that cannot be reclaimed.
    pub(crate) kernel: u64,
    pub(crate) inactive_file: u64,
    /// File pages, and reclaimable kernel caches.
    pub(crate) cached: u64,
    /// Bytes read back soon after they were reclaimed, since the group was made.
    pub(crate) refaulted: u64,
    /// Bytes reclaimed, since the group was made.
    pub(crate) reclaimed: u64,
}

impl Group {
    pub(crate) fn open(dir: &Path) -> Result<Group, LiveError> {
        Ok(Group {
            current: Source::open(&dir.join("memory.current"))?,
            stat: Source::open(&dir.join("memory.stat"))?,
            swapped: Source::optional(&dir.join("memory.swap.current")),
        })
    }

    pub(crate) fn read(&self, buffer: &mut Buffer) -> Result<Charged, LiveError> {
        let current = self.current.read(buffer)?.trim().parse().unwrap_or(0);
        let swapped = match &self.swapped {
            Some(file) => file.read(buffer)?.trim().parse().unwrap_or(0),
            None => 0,
        };
        Ok(Charged { current, swapped, ..Charged::parse(self.stat.read(buffer)?, page_bytes()) })
    }
}

impl Charged {
    /// Parses memory.stat, where sizes are in bytes and events in pages of `page` bytes. Fields from other
    /// files stay 0.
    fn parse(text: &str, page: u64) -> Charged {
        let value = |key: &str| value_of(text, key).unwrap_or(0);
        let kernel = value("kernel").saturating_sub(value("slab_reclaimable"));
        // `anon` counts only mapped pages. Pages read ahead from swap, or being written to swap, are
        // anonymous but not mapped.
        let (mapped, swap_cached) = (value("anon") + value("shmem"), value("swapcached"));
        let anonymous = mapped.max(value("active_anon") + value("inactive_anon"));
        // Pages being written to swap count both as swap cache and as write-back, so their number is
        // subtracted from both.
        let to_swap = value("file_writeback").min(swap_cached).min(anonymous - mapped);
        let refaults = value("workingset_refault_anon") + value("workingset_refault_file");
        Charged {
            current: 0,
            packed: 0,
            swapped: 0,
            anonymous,
            swap_cached: swap_cached - to_swap,
            dirty: value("file_dirty") + value("file_writeback") - to_swap,
            kernel,
            inactive_file: value("inactive_file"),
            cached: value("inactive_file") + value("active_file") + value("slab_reclaimable"),
            refaulted: refaults.saturating_mul(page),
            reclaimed: value("pgsteal").saturating_mul(page),
        }
    }

    /// Adds the memory that the group's pages on zram take, which the kernel charges to no group.
    pub(crate) fn packed(self, packing: &Packing) -> Charged {
        let packed = packing.of(self.swapped);
        Charged { current: self.current.saturating_add(packed), packed, ..self }
    }

    /// The sum of the charges of two groups.
    pub(crate) fn with(self, other: &Charged) -> Charged {
        Charged {
            current: self.current + other.current,
            packed: self.packed + other.packed,
            swapped: self.swapped + other.swapped,
            anonymous: self.anonymous + other.anonymous,
            swap_cached: self.swap_cached + other.swap_cached,
            dirty: self.dirty + other.dirty,
            kernel: self.kernel + other.kernel,
            inactive_file: self.inactive_file + other.inactive_file,
            cached: self.cached + other.cached,
            refaulted: self.refaulted + other.refaulted,
            reclaimed: self.reclaimed + other.reclaimed,
        }
    }

    /// The charge of a group without the charges of `inner` groups in it.
    pub(crate) fn without(self, inner: &[Charged]) -> Charged {
        let rest = |own: u64, field: fn(&Charged) -> u64| own.saturating_sub(inner.iter().map(field).sum());
        Charged {
            current: rest(self.current, |c| c.current),
            packed: rest(self.packed, |c| c.packed),
            swapped: rest(self.swapped, |c| c.swapped),
            anonymous: rest(self.anonymous, |c| c.anonymous),
            swap_cached: rest(self.swap_cached, |c| c.swap_cached),
            dirty: rest(self.dirty, |c| c.dirty),
            kernel: rest(self.kernel, |c| c.kernel),
            inactive_file: rest(self.inactive_file, |c| c.inactive_file),
            cached: rest(self.cached, |c| c.cached),
            refaulted: rest(self.refaulted, |c| c.refaulted),
            reclaimed: rest(self.reclaimed, |c| c.reclaimed),
        }
    }

    /// The charge in the form that the policy takes. Fields of [`UnitMemory`] from other files keep their
    /// defaults.
    pub(crate) fn unit(self) -> UnitMemory {
        // On a busy machine with Linux 7.3, memory.stat was seen to lag by a second, and memory.current does
        // not. The difference is reported as uncounted.
        let counted = self
            .packed
            .saturating_add(self.anonymous)
            .saturating_add(self.cached)
            .saturating_add(self.kernel);
        UnitMemory {
            used: self.current,
            packed: self.packed,
            anonymous: self.anonymous,
            swap_cached: self.swap_cached,
            swapped: self.swapped,
            dirty: self.dirty,
            kernel: self.kernel,
            uncounted: self.current.saturating_sub(counted),
            refaulted: self.refaulted,
            reclaimed: self.reclaimed,
            ..UnitMemory::default()
        }
    }
}

/// The time during which some task was stalled on memory, in nanoseconds, from the text of memory.pressure.
pub(crate) fn stalled_ns(text: &str) -> u64 {
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let total = some.and_then(|line| line.split_whitespace().find_map(|word| word.strip_prefix("total=")));
    total.and_then(|us| us.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1_000)
}

/// The tightest bound of a control group and its ancestors up to the mount, in bytes; `None` if there is no
/// bound.
pub(crate) fn tightest_bound(dir: &Path, mount: &Path) -> Option<u64> {
    dir.ancestors().take_while(|dir| dir.starts_with(mount)).filter_map(bound_of).min()
}

/// A control group's own bound, in bytes; `None` if it is unbounded.
pub(crate) fn bound_of(dir: &Path) -> Option<u64> {
    let bound = |file: &str| host::read_to_string(&dir.join(file)).ok()?.trim().parse::<u64>().ok();
    ["memory.max", "memory.high"].into_iter().filter_map(bound).min()
}

/// Bytes that a control group may still swap out, by its own swap bound and its ancestors' bounds; `None` if
/// unlimited.
pub(crate) fn swap_room(dir: &Path, mount: &Path) -> Option<u64> {
    let number = |dir: &Path, file: &str| -> Option<u64> {
        host::read_to_string(&dir.join(file)).ok()?.trim().parse().ok()
    };
    let room = |dir: &Path| {
        let bound = number(dir, "memory.swap.max")?;
        Some(bound.saturating_sub(number(dir, "memory.swap.current").unwrap_or(0)))
    };
    dir.ancestors().take_while(|dir| dir.starts_with(mount)).filter_map(room).min()
}

/// Whether memory.low takes effect below `dir`: `dir` and each of its ancestors must have a memory.low above
/// 0, except for the hierarchy's root, which has no such file.
pub(crate) fn is_protected(dir: &Path, mount: &Path) -> bool {
    let mut chain = dir.ancestors().take_while(|dir| dir.starts_with(mount));
    let is_unprotected = |dir: &Path| match host::read_to_string(&dir.join("memory.low")) {
        Ok(text) => text.trim() == "0",
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    !chain.any(is_unprotected)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_charged_what_memory_stat_says() {
        let text = "anon 1000\nfile 9000\nkernel 300\nshmem 50\nfile_dirty 7\nfile_writeback 3\nswapcached 23\n\
                    inactive_anon 800\nactive_anon 275\ninactive_file 4000\n\
                    active_file 600\nslab_reclaimable 100\nworkingset_refault_anon 2\nworkingset_refault_file 3\npgsteal 6\n";
        let seen = Charged::parse(text, 4_096);
        let expected = Charged {
            current: 0,
            packed: 0,
            swapped: 0,
            anonymous: 1_075,
            swap_cached: 20,
            dirty: 7,
            kernel: 200,
            inactive_file: 4_000,
            cached: 4_700,
            refaulted: 5 * 4_096,
            reclaimed: 6 * 4_096,
        };
        assert_eq!(seen, expected);
        // 4,700 are cached, 200 are the kernel's, 1,075 are anonymous.
        let uncounted = |current| Charged { current, ..seen }.unit().uncounted;
        assert_eq!([4_000, 5_975, 6_900].map(uncounted), [0, 0, 925]);
        let own = Charged { current: 10, ..expected }.without(&[Charged {
            current: 4,
            anonymous: 2_000,
            ..Charged::default()
        }]);
        assert_eq!((own.current, own.anonymous, own.dirty), (6, 0, 7));
    }

    /// A unit's memory on zram counts as used by it, without its sub-units' part.
    #[test]
    fn packed_memory_counts_as_used() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("current", "1000\n"), ("stat", "anon 900\n"), ("swap.current", "400\n")] {
            std::fs::write(dir.path().join(format!("memory.{file}")), text).unwrap();
        }
        let seen = Group::open(dir.path()).unwrap().read(&mut Buffer::default()).unwrap();
        assert_eq!((seen.current, seen.swapped), (1_000, 400));
        let whole = seen.packed(&Packing::of_all(800, 300));
        assert_eq!((whole.current, whole.packed), (1_150, 150));
        let own = whole.without(&[Charged { current: 200, packed: 50, ..Charged::default() }]).unit();
        assert_eq!((own.used, own.packed, own.anonymous), (950, 100, 900));
        assert_eq!(whole.with(&whole).packed, 300);
    }

    #[test]
    fn pressure() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!((stalled_ns(text), stalled_ns("")), (1_234_000, 0));
    }

    /// A container of 1 MiB in a slice with 512 KiB; protection takes effect only while all ancestors have
    /// it.
    #[test]
    fn bounds_and_protection_of_ancestors_count() {
        let mount = tempfile::tempdir().unwrap();
        let dir = mount.path().join("slice/container");
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(tightest_bound(&dir, mount.path()), None);
        assert!(is_protected(&dir, mount.path()));
        for (file, text) in [
            ("slice/memory.high", "524288\n"),
            ("slice/memory.max", "max\n"),
            ("slice/container/memory.max", "1048576\n"),
        ] {
            std::fs::write(mount.path().join(file), text).unwrap();
        }
        assert_eq!(tightest_bound(&dir, mount.path()), Some(512 << 10));
        // Swap: 100 of 300 are used in the container; later, its parent allows none.
        assert_eq!(swap_room(&dir, mount.path()), None);
        for (file, text) in [("max", "300\n"), ("current", "100\n")] {
            std::fs::write(dir.join(format!("memory.swap.{file}")), text).unwrap();
        }
        assert_eq!(swap_room(&dir, mount.path()), Some(200));
        std::fs::write(mount.path().join("slice/memory.swap.max"), "0\n").unwrap();
        assert_eq!(swap_room(&dir, mount.path()), Some(0));
        std::fs::write(dir.join("memory.low"), "1000\n").unwrap();
        assert!(is_protected(&dir, mount.path()));
        std::fs::write(mount.path().join("slice/memory.low"), "0\n").unwrap();
        assert!(!is_protected(&dir, mount.path()));
    }
}
