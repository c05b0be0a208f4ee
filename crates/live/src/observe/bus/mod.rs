//! The memory bus: its measured bandwidth, and the transfers of units and jobs.

pub mod capacity;
pub(crate) mod counters;
pub(crate) mod resctrl;

use super::files::Tree;

const CPUS: &str = "/sys/devices/system/cpu";

/// The assumed size of a cache line if the kernel does not show it.
const LINE_BYTES: u64 = 64;

/// A last-level cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cache {
    /// The lowest CPU that shares the cache, which identifies it.
    pub(crate) first_cpu: u32,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// The size of a line in bytes.
    pub(crate) line_bytes: u64,
}

/// A CPU's last-level cache; `None` if the kernel does not describe it.
pub(crate) fn last_cache(tree: &Tree, cpu: u32) -> Option<Cache> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let number = |path: String| tree.text(path)?.parse::<u64>().ok();
    // A folder `index0`, `index1`, ... describes one cache of the CPU, of some level.
    let indexes = tree.names(&folder).into_iter().filter(|name| name.starts_with("index"));
    let read_cache = |index: String| {
        let level = number(format!("{folder}/{index}/level"))?;
        let bytes = size(&tree.text(format!("{folder}/{index}/size"))?)?;
        let shared = tree.text(format!("{folder}/{index}/shared_cpu_list"));
        let first = shared.and_then(|list| list.parse::<commonhold_machine::CpuSet>().ok()?.iter().next());
        let line = number(format!("{folder}/{index}/coherency_line_size")).filter(|bytes| *bytes > 0);
        let line_bytes = line.unwrap_or(LINE_BYTES);
        Some((level, Cache { first_cpu: first.unwrap_or(cpu), bytes, line_bytes }))
    };
    indexes.filter_map(read_cache).max().map(|(_, cache)| cache)
}

/// The line size of these CPUs' last-level caches, in bytes; the smallest if they differ.
pub(crate) fn line_bytes(tree: &Tree, cpus: impl Iterator<Item = u32>) -> u64 {
    let lines = cpus.filter_map(|cpu| last_cache(tree, cpu)).map(|cache| cache.line_bytes);
    lines.min().unwrap_or(LINE_BYTES)
}

/// Parses a size as /sys writes it, such as `32768K`, to bytes.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    #[test]
    fn the_last_level_cache_has_the_highest_level() {
        let file = |index: &str, name: &str| format!("/sys/devices/system/cpu/cpu5/cache/{index}/{name}");
        let dir = fake::tree(&[
            (&file("index0", "level"), "1\n"),
            (&file("index0", "size"), "48K\n"),
            (&file("index0", "shared_cpu_list"), "5\n"),
            (&file("index3", "level"), "3\n"),
            (&file("index3", "size"), "32M\n"),
            (&file("index3", "shared_cpu_list"), "4-7\n"),
            (&file("index3", "coherency_line_size"), "128\n"),
        ]);
        let tree = Tree::new(dir.path());
        let cache = Cache { first_cpu: 4, bytes: 32 << 20, line_bytes: 128 };
        assert_eq!(last_cache(&tree, 5), Some(cache));
        assert_eq!((last_cache(&tree, 0), line_bytes(&tree, 0..4), line_bytes(&tree, 0..8)), (None, 64, 128));
        assert_eq!(
            ["7K", "7", "0K", "K", "7 GB", ""].map(size),
            [Some(7168), Some(7), None, None, None, None]
        );
    }
}
