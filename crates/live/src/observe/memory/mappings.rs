//! The order in which a process's mappings are paged out.
//!
//! Rule: the mapping with the most unreferenced memory (resident less referenced, in whole MiB) comes first.
//! Tie-break: the mapping with the most memory that can be paged out. Some pages cannot be paged out: pages
//! mapped by several processes, locked pages, reserved huge pages, devices, and without free swap all
//! anonymous pages.
//!
//! Limits: the kernel clears reference bits only while it reclaims. So on a machine with enough memory,
//! nearly every page counts as referenced, and the largest mapping comes first.
//!
//! Source: proc.rst, "smaps".

/// Flags in `VmFlags` of mappings that cannot be paged out: locked, device memory, huge pages.
const UNPAGEABLE_FLAGS: [&str; 4] = ["lo", "pf", "io", "ht"];

/// One mapping of a process. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Mapping {
    /// The mapping's first address, and the address behind its last byte.
    pub(crate) start: u64,
    pub(crate) end: u64,
    resident: u64,
    referenced: u64,
    /// Pages that only this process maps.
    private: u64,
    /// Anonymous pages.
    anonymous: u64,
    is_unpageable: bool,
}

impl Mapping {
    /// The largest amount that can be paged out of the mapping, in bytes. `swap`: whether there is free swap.
    pub(crate) fn takeable(&self, swap: bool) -> u64 {
        let in_files = self.private.saturating_sub(self.anonymous);
        match (self.is_unpageable, swap) {
            (true, _) => 0,
            (false, true) => self.private,
            (false, false) => in_files,
        }
    }

    /// The sort key by which mappings are paged out, the smallest first.
    pub(crate) fn rank(&self, swap: bool) -> impl Ord + use<> {
        let unreferenced_mib = self.resident.saturating_sub(self.referenced) >> 20;
        (std::cmp::Reverse(unreferenced_mib), std::cmp::Reverse(self.takeable(swap)), self.start)
    }
}

/// Parses /proc/PID/smaps: a line `55d0-55d1 rw-p ...` for each mapping, followed by lines `Rss: 4 kB`.
pub(crate) fn parse(text: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let Some((key, rest)) = line.split_once(' ') else { continue };
        if let Some(key) = key.strip_suffix(':') {
            if let Some(mapping) = mappings.last_mut() {
                set_field(mapping, key, rest);
            }
        } else if let Some((start, end)) = parse_range(key) {
            mappings.push(Mapping { start, end, ..Mapping::default() });
        }
    }
    mappings
}

/// Parses an address range `55d0-55d1`.
fn parse_range(text: &str) -> Option<(u64, u64)> {
    let (start, end) = text.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Adds a line `KEY: REST` of smaps to the mapping that it describes.
fn set_field(mapping: &mut Mapping, key: &str, rest: &str) {
    if key == "VmFlags" {
        mapping.is_unpageable = rest.split_whitespace().any(|flag| UNPAGEABLE_FLAGS.contains(&flag));
        return;
    }
    let kib = rest.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    let bytes = kib.saturating_mul(1_024);
    match key {
        "Rss" => mapping.resident = bytes,
        "Referenced" => mapping.referenced = bytes,
        "Private_Clean" | "Private_Dirty" => mapping.private += bytes,
        "Anonymous" => mapping.anonymous = bytes,
        _ => {}
    }
}

/// A page's entry in /proc/PID/pagemap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page(pub(crate) u64);

impl Page {
    const PRESENT: u64 = 1 << 63;
    const IN_FILE: u64 = 1 << 61;
    const EXCLUSIVE: u64 = 1 << 56;

    pub(crate) fn is_present(self) -> bool {
        self.0 & Page::PRESENT != 0
    }

    /// Whether it can be paged out: it is resident, no other process maps it, and a file or free swap can
    /// take it.
    pub(crate) fn is_pageable(self, swap: bool) -> bool {
        self.is_present() && self.0 & Page::EXCLUSIVE != 0 && (swap || self.0 & Page::IN_FILE != 0)
    }
}

/// The first `pages_max` pages that can be paged out, as runs of consecutive pages: the index of the first
/// page, and the length.
pub(crate) fn runs(pages: &[Page], swap: bool, pages_max: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let pageable = pages.iter().enumerate().filter(|(_, page)| page.is_pageable(swap));
    for (index, _) in pageable.take(pages_max) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => runs.push((index, 1)),
        }
    }
    runs
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMAPS: &str = "\
00400000-00500000 r-xp 00000000 fe:00 17   /usr/bin/a b: c
Size:               1024 kB
Rss:                1000 kB
Shared_Clean:        600 kB
Private_Clean:       400 kB
Private_Dirty:         0 kB
Referenced:         1000 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0010000000 rw-p 00000000 00:00 0
Rss:              262144 kB
Private_Clean:         0 kB
Private_Dirty:    262144 kB
Referenced:       200704 kB
Anonymous:        262144 kB
VmFlags: rd wr mr mw me ac
7f1000000000-7f1010000000 rw-p 00000000 00:00 0    [locked]
Rss:              262144 kB
Private_Dirty:    262144 kB
Referenced:            0 kB
Anonymous:        262144 kB
VmFlags: rd wr lo
";

    #[test]
    fn locked_and_shared_pages_cannot_be_paged_out() {
        let mappings = parse(SMAPS);
        let shown: Vec<_> = mappings.iter().map(|m| (m.start, m.takeable(true), m.takeable(false))).collect();
        let mib = 1 << 20;
        assert_eq!(
            shown,
            [(0x40_0000, 400 << 10, 400 << 10), (0x7f00_0000_0000, 256 * mib, 0), (0x7f10_0000_0000, 0, 0)]
        );
    }

    /// 10 MiB untouched, of 20; 10 untouched, of 90; 300 touched.
    #[test]
    fn unreferenced_mappings_come_first_then_large_ones() {
        let mapping = |start, resident: u64, untouched: u64| Mapping {
            start,
            resident: resident << 20,
            referenced: (resident - untouched) << 20,
            private: resident << 20,
            ..Mapping::default()
        };
        let mut all = [mapping(1, 300, 0), mapping(2, 20, 10), mapping(3, 90, 10)];
        all.sort_by_key(|mapping| mapping.rank(true));
        assert_eq!(all.map(|mapping| mapping.start), [3, 2, 1]);
    }

    proptest! {
        /// Never more pages than asked for; only pages that can be paged out, and all of these unless the
        /// limit is reached.
        #[test]
        fn runs_have_the_first_pageable_pages(
            bits in proptest::collection::vec(0u8..8, 0..200),
            max in 0usize..100,
            swap: bool,
        ) {
            let page = |bits: &u8| {
                let bit = |n: u8, value: u64| if bits & n != 0 { value } else { 0 };
                Page(bit(1, Page::PRESENT) | bit(2, Page::IN_FILE) | bit(4, Page::EXCLUSIVE))
            };
            let pages: Vec<Page> = bits.iter().map(page).collect();
            let runs = runs(&pages, swap, max);
            let taken: Vec<usize> = runs.iter().flat_map(|(first, count)| *first..first + count).collect();
            let all: Vec<usize> = (0..pages.len()).filter(|at| pages[*at].is_pageable(swap)).collect();
            prop_assert_eq!(&taken[..], &all[..all.len().min(max)]);
            prop_assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
        }

        #[test]
        fn malformed_text_does_not_panic(text in "[-0-9a-f: kBVmFlagsRs\n]{0,200}") {
            parse(&text);
        }
    }
}
