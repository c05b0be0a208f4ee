//! The order in which a process's mappings are paged out.
//!
//! Rule: the mapping with the most unreferenced memory (resident less referenced, in whole MiB) comes first. Tie-break: the
//! mapping with the most memory that can be taken. Pages that cannot be taken are left out: pages mapped by several processes,
//! locked pages, reserved huge pages, devices, and without free swap all anonymous pages.
//!
//! Limits: the kernel clears reference bits only while it reclaims. So on a machine with enough memory, nearly every page
//! counts as referenced, and the largest mapping comes first.
//!
//! Source: proc.rst, "smaps".

/// Flags of mappings that cannot be paged out: locked, device memory, huge pages.
const REFUSING: [&str; 4] = ["lo", "pf", "io", "ht"];

/// One mapping of a process. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Mapping {
    /// Its first address, and the address behind its last.
    pub(crate) start: u64,
    pub(crate) end: u64,
    resident: u64,
    referenced: u64,
    /// Pages that only this process maps.
    private: u64,
    /// Anonymous pages.
    anonymous: u64,
    refuses: bool,
}

impl Mapping {
    /// The most that can be taken from it, in bytes. `swap`: whether there is free swap.
    pub(crate) fn takeable(&self, swap: bool) -> u64 {
        let in_files = self.private.saturating_sub(self.anonymous);
        match (self.refuses, swap) {
            (true, _) => 0,
            (false, true) => self.private,
            (false, false) => in_files,
        }
    }

    /// The sort key: the smallest comes first.
    pub(crate) fn rank(&self, swap: bool) -> impl Ord + use<> {
        let untouched = self.resident.saturating_sub(self.referenced) >> 20;
        (std::cmp::Reverse(untouched), std::cmp::Reverse(self.takeable(swap)), self.start)
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
        } else if let Some((start, end)) = range(key) {
            mappings.push(Mapping { start, end, ..Mapping::default() });
        }
    }
    mappings
}

fn range(text: &str) -> Option<(u64, u64)> {
    let (start, end) = text.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

fn set_field(mapping: &mut Mapping, key: &str, rest: &str) {
    if key == "VmFlags" {
        mapping.refuses = rest.split_whitespace().any(|flag| REFUSING.contains(&flag));
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

/// A page as /proc/PID/pagemap shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page(pub(crate) u64);

impl Page {
    const PRESENT: u64 = 1 << 63;
    const IN_FILE: u64 = 1 << 61;
    const EXCLUSIVE: u64 = 1 << 56;

    pub(crate) fn is_present(self) -> bool {
        self.0 & Page::PRESENT != 0
    }

    /// Whether it is resident, no other process maps it, and it has a file or free swap to go to.
    pub(crate) fn can_go(self, swap: bool) -> bool {
        self.is_present() && self.0 & Page::EXCLUSIVE != 0 && (swap || self.0 & Page::IN_FILE != 0)
    }
}

/// Runs of pages that can go, as first page and length; at most `pages_max` pages in total.
pub(crate) fn runs(pages: &[Page], swap: bool, pages_max: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let can_go = pages.iter().enumerate().filter(|(_, page)| page.can_go(swap));
    for (at, _) in can_go.take(pages_max) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == at => *count += 1,
            _ => runs.push((at, 1)),
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
    fn what_could_be_taken_of_mappings() {
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
    fn the_untouched_go_first_and_then_the_large() {
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
        /// Never more pages than asked for, each of them one that can go, and all of those if there is room.
        #[test]
        fn runs_hold_what_can_go(bits in proptest::collection::vec(0u8..8, 0..200), max in 0usize..100, swap: bool) {
            let page = |bits: &u8| {
                let bit = |n: u8, value: u64| if bits & n != 0 { value } else { 0 };
                Page(bit(1, Page::PRESENT) | bit(2, Page::IN_FILE) | bit(4, Page::EXCLUSIVE))
            };
            let pages: Vec<Page> = bits.iter().map(page).collect();
            let runs = runs(&pages, swap, max);
            let taken: Vec<usize> = runs.iter().flat_map(|(first, count)| *first..first + count).collect();
            let all: Vec<usize> = (0..pages.len()).filter(|at| pages[*at].can_go(swap)).collect();
            prop_assert_eq!(&taken[..], &all[..all.len().min(max)]);
            prop_assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
        }

        #[test]
        fn nonsense_is_no_mapping_to_panic_on(text in "[-0-9a-f: kBVmFlagsRs\n]{0,200}") {
            parse(&text);
        }
    }
}
