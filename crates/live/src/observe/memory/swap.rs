//! Swap in memory: zram and zswap.
//!
//! Problem: a page that goes to zram or zswap is compressed and kept in memory. The kernel charges zram's
//! memory to no group. So a unit could exceed its part of the machine by swapping out. And swapping out a
//! page frees less than its size.
//!
//! Algorithm: a unit's *packed* memory is its part of zram's memory, in proportion to its part of all swapped
//! memory (memory.swap.current). The next page swapped out is expected to compress as well as the pages
//! already swapped out, but to half its size while less than [`ENOUGH`] is swapped out. The kernel fills swap
//! areas in the order of their priority, the highest first.
//!
//! Limits: the kernel does not show which area has a unit's pages, nor how well they compress. All units are
//! assumed to be alike. zswap charges its memory to the unit itself, so only the compression of the next page
//! is needed from it.
//!
//! Source: zram.rst (`mm_stat`), cgroup-v2.rst (`memory.swap.current`, `memory.zswap.current`), proc.rst
//! (`Zswap`, `Zswapped`).

use super::facts::Packing;
use super::machine::MachineMemory;
use super::source::{Buffer, Source};
use crate::LiveError;
use crate::observe::knob::read;

/// The smallest amount of swapped memory from which a compression ratio is calculated, in bytes.
const ENOUGH: u64 = 4 << 20;
/// The compression ratio that is assumed for smaller amounts, in thousandths.
const ASSUMED_PERMILLE: u64 = 500;

const SWAPS: &str = "/proc/swaps";
const ZSWAP_ENABLED: &str = "/sys/module/zswap/parameters/enabled";

/// The kernel's list of swap areas; `None` if the kernel has no swap support.
#[derive(Debug)]
pub(crate) struct Swaps(Option<Source>);

impl Swaps {
    pub(crate) fn open() -> Swaps {
        Swaps(Source::optional(SWAPS.as_ref()))
    }

    /// How swap uses memory now.
    pub(crate) fn read(&self, machine: MachineMemory, buffer: &mut Buffer) -> Result<Packing, LiveError> {
        let Some(swaps) = &self.0 else { return Ok(Packing::default()) };
        let areas = areas(swaps.read(buffer)?);
        let zswap = !areas.is_empty() && read(ZSWAP_ENABLED.as_ref()).is_ok_and(|text| text == "Y");
        let sizes = |name: &str| sizes(&read(format!("/sys/block/{name}/mm_stat").as_ref()).ok()?);
        Ok(packing(&areas, sizes, zswap.then_some((machine.zswapped, machine.zswap))))
    }
}

/// One swap area.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Area {
    name: String,
    /// The device, such as `zram0`, if the area is on zram.
    zram: Option<String>,
    used: u64,
    is_full: bool,
    priority: i64,
}

/// Parses /proc/swaps: `NAME TYPE SIZE USED PRIORITY`, in KiB, below a header.
fn areas(text: &str) -> Vec<Area> {
    let area = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Blanks in a name are written as \040, so every line has five words.
        let [name, _, size, used, priority] = words.as_slice() else { return None };
        let (size, used): (u64, u64) = (size.parse().ok()?, used.parse().ok()?);
        let zram = name.strip_prefix("/dev/").filter(|name| name.starts_with("zram"));
        Some(Area {
            name: (*name).to_owned(),
            zram: zram.map(str::to_owned),
            used: used.saturating_mul(1_024),
            is_full: used >= size,
            priority: priority.parse().ok()?,
        })
    };
    text.lines().skip(1).filter_map(area).collect()
}

/// Parses a zram device's `mm_stat` to the size of its pages before compression, and the memory that they
/// take, in bytes.
fn sizes(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_whitespace().map(str::parse);
    let (uncompressed, _compressed, taken) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
    Some((uncompressed, taken))
}

/// Combines the facts about swap areas. `sizes` returns the size of a zram device's pages and the memory that
/// they take, as [`sizes`] does; `zswap` has these two of zswap, if it is enabled.
fn packing(areas: &[Area], sizes: impl Fn(&str) -> Option<(u64, u64)>, zswap: Option<(u64, u64)>) -> Packing {
    let on_zram = |area: &Area| area.zram.as_deref().and_then(&sizes);
    let next = areas.iter().filter(|area| !area.is_full).max_by_key(|area| area.priority);
    // zswap takes pages before any area does.
    let next_sizes = zswap.or_else(|| next.and_then(on_zram));
    Packing {
        swapped: areas.iter().map(|area| area.used).sum(),
        pool: areas.iter().filter_map(on_zram).map(|(_, taken)| taken).sum(),
        next: next.map_or(0, |area| hash(&area.name)),
        permille: next_sizes.map_or(0, |(uncompressed, taken)| permille(uncompressed, taken)),
    }
}

/// A hash of a name (FNV-1a).
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The compression ratio of pages of this size that take `taken` bytes of memory, in thousandths.
fn permille(uncompressed: u64, taken: u64) -> u64 {
    if uncompressed < ENOUGH {
        ASSUMED_PERMILLE
    } else {
        (taken.saturating_mul(1_000) / uncompressed).min(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TEXT: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                        /dev/zram0                              partition\t524284\t\t102400\t\t100\n\
                        /dev/nvme0n1                            partition\t786428\t\t102400\t\t-2\n";

    /// 100 MiB on zram take 25 MiB, and 100 MiB are on a drive: a unit with 40 of the 200 has a fifth of
    /// the 25.
    #[test]
    fn zrams_memory_is_divided_in_proportion_to_swapped_bytes() {
        let areas = areas(TEXT);
        let zram = |name: &str| {
            assert_eq!(name, "zram0");
            sizes("104857600 20000000 26214400 0 30000000 12 0 3 3\n")
        };
        let found = packing(&areas, zram, None);
        assert_eq!(
            found,
            Packing { swapped: 200 * MIB, pool: 25 * MIB, next: hash("/dev/zram0"), permille: 250 }
        );
        assert_eq!(found.of(40 * MIB), 5 * MIB);
        assert_eq!(Packing::default().of(MIB), 0);
    }

    /// The area of the highest priority that is not full counts. A small amount in it gives no ratio.
    #[test]
    fn the_next_pages_ratio_is_that_of_the_area_filled_next() {
        let full = TEXT.replace("524284\t\t102400", "102400\t\t102400");
        let zram = |_: &str| Some((100 * MIB, 25 * MIB));
        assert_eq!(packing(&areas(&full), zram, None).permille, 0);
        let next = |text: &str| packing(&areas(text), zram, None).next;
        assert_eq!((next(TEXT), next(&full)), (hash("/dev/zram0"), hash("/dev/nvme0n1")));
        assert_ne!(next(TEXT), next(&full), "each has a separate rate");
        assert_eq!(packing(&areas(TEXT), |_| Some((MIB, 0)), None).permille, 500);
        assert_eq!(packing(&areas(TEXT), |_| Some((8 * MIB, 9 * MIB)), None).permille, 1_000);
        // zswap takes pages before all areas; its memory is charged to the units themselves.
        let drive = areas(&TEXT.replace("zram0", "sda1"));
        assert_eq!(
            packing(&drive, |_| None, Some((8 * MIB, 2 * MIB))),
            Packing { swapped: 200 * MIB, pool: 0, next: hash("/dev/sda1"), permille: 250 }
        );
        assert_eq!(packing(&drive, |_| None, None).permille, 0);
    }
}
