//! A process's mappings with the nodes of their pages, joined from `maps` and `numa_maps`.
//!
//! Limit: mappings of reserved huge pages (`hugetlbfs`) are left out.
//!
//! Source: numa(7), `proc_pid_numa_maps(5)`.

use std::collections::BTreeMap;
use std::path::Path;

use super::files::Tree;

/// A mapping that has pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// The address of its first byte, and the address after its last byte.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Number of pages by node.
    pub(crate) pages: BTreeMap<u32, u64>,
}

/// The mappings of a process that have pages; empty if the process has ended or the kernel lacks `numa_maps`.
pub(crate) fn mapped(pid: u32) -> Vec<Mapped> {
    let tree = Tree::new(Path::new("/proc"));
    let text = |file: &str| tree.text(format!("/{pid}/{file}"));
    match (text("maps"), text("numa_maps")) {
        (Some(maps), Some(nodes)) => parse(&maps, &nodes),
        _ => Vec::new(),
    }
}

/// Joins lines `55d0-55d9 rw-p ...` of `maps` with lines `55d0 default anon=3 N0=2 N1=1 kernelpagesize_kB=4`
/// of `numa_maps` by the start address, which both have; only `maps` has the end.
fn parse(maps: &str, nodes: &str) -> Vec<Mapped> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let ends: BTreeMap<u64, u64> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.split_once('-'))
        .filter_map(|(from, to)| Some((number(from)?, number(to)?)))
        .collect();
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let from = number(words.next()?)?;
        let mut pages = BTreeMap::new();
        for word in words {
            if word == "huge" {
                return None;
            }
            let Some((node, count)) = word.strip_prefix('N').and_then(|word| word.split_once('=')) else {
                continue;
            };
            if let (Ok(node), Ok(count)) = (node.parse::<u32>(), count.parse::<u64>()) {
                pages.insert(node, count);
            }
        }
        let to = *ends.get(&from)?;
        (!pages.is_empty()).then_some(Mapped { from, to, pages })
    };
    nodes.lines().filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_numa_maps_are_joined() {
        let maps =
            "1000-5000 rw-p 0 00:00 0\n8000-9000 r--p 0 08:01 7 /bin/x\na000-c000 rw-p 0 0:0 0\nnoise\n";
        let nodes = "1000 default anon=3 dirty=3 N0=2 N1=1 kernelpagesize_kB=4\n8000 default file=/bin/x\n\
                     a000 default huge anon=1 N0=1 kernelpagesize_kB=2048\nf000 default N0=1\n";
        let expected = Mapped { from: 0x1000, to: 0x5000, pages: [(0, 2), (1, 1)].into() };
        assert_eq!(parse(maps, nodes), [expected]);
    }

    #[test]
    fn this_process_has_pages() {
        let mapped = mapped(std::process::id());
        // A kernel without nodes has no such file.
        if Path::new("/proc/self/numa_maps").exists() {
            assert!(mapped.iter().any(|mapping| mapping.from < mapping.to && mapping.pages.contains_key(&0)));
        }
    }
}
