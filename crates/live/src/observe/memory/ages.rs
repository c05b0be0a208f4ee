//! Finds the cold memory of units.
//!
//! Problem: a control group's charge does not distinguish pages in use from pages last used an hour ago.
//!
//! Algorithm: a kernel with a multi-generation LRU keeps the pages of a control group in numbered
//! generations, and shows them in debugfs. Every [`GENERATION_INTERVAL`], the kernel is made to begin a
//! generation in every control group of ours, and in every group inside a foreign group that holds a unit.
//! For this, it walks the page tables. Pages that were touched since the previous walk move to the generation
//! that was the youngest until then; pages that were not touched stay in theirs. With the last walk, the
//! youngest generation began. The kernel does not know yet which pages were touched since. So pages count as
//! cold if, at the last walk, they had not been touched for [`COLD_AFTER`].
//!
//! Walking page tables takes time. When the kernel reclaims pages from a control group, it begins a
//! generation by itself, and is not made to begin another. A separate thread does the work, for a small part
//! of the machine's time ([`rest_after`]).
//!
//! Fallback: if there is no such LRU, or generations are disabled (the kernel then still shows the last
//! generations), file pages on the kernel's inactive list count as cold, and anonymous memory never does.
//!
//! Limits: memory that a program reads only by system calls may look colder than it is. The policy stops
//! relying on the ages when the unit refaults memory that it lent.
//!
//! Source: `multigen_lru.rst`, "Working set estimation".

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::rest_after;
use super::source::page_bytes;
use crate::host::write;
use crate::observe::knob::read;

/// How often a generation begins.
const GENERATION_INTERVAL: Duration = Duration::from_secs(5);
/// No generation is begun if the youngest is younger than this, since the kernel began it by itself.
const GENERATION_AGE_MIN: Duration = Duration::from_secs(4);
/// Pages not touched for this long are cold: two generations, of the four that exist at most.
const COLD_AFTER: Duration = Duration::from_secs(10);
/// The file with the kernel's generations, and the file that says whether it makes any: a hexadecimal mask of
/// enabled features.
const LRU_GEN: &str = "/sys/kernel/debug/lru_gen";
const ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";
const MAIN_SWITCH: u64 = 1;

/// Cold memory of a control group, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cold {
    pub(crate) anonymous: u64,
    pub(crate) file: u64,
}

/// Cold memory by the path of a control group, as the kernel shows it; `None` while the kernel makes no
/// generations.
type Known = Arc<Mutex<Option<BTreeMap<String, Cold>>>>;

/// The control groups that are aged with all their descendants, by their paths as the kernel shows them.
type Tops = Arc<Mutex<Vec<String>>>;

/// The thread that ages control groups, and its results.
#[derive(Debug)]
pub(crate) struct Ages {
    known: Known,
    tops: Tops,
    /// The root of our own groups.
    own_top: String,
    has_ended: Arc<AtomicBool>,
}

/// Whether the kernel makes generations, by the text of [`ENABLED`].
pub(crate) fn are_made(enabled: &str) -> bool {
    let digits = enabled.trim().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).is_ok_and(|mask| mask & MAIN_SWITCH != 0)
}

/// Whether the kernel shows generations to us in this file.
fn are_shown(file: &Path) -> bool {
    read(file).is_ok_and(|text| text.starts_with("memcg"))
}

impl Ages {
    /// Starts a thread that ages the control groups below `own_top`, a path as in /proc/PID/cgroup; `None` if
    /// the kernel does not show generations.
    pub(crate) fn begin(own_top: String) -> Option<Ages> {
        if !are_shown(Path::new(LRU_GEN)) {
            return None;
        }
        let known = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let tops = Arc::new(Mutex::new(vec![own_top.clone()]));
        let ages = Ages { known, tops, own_top, has_ended: Arc::default() };
        let (known, has_ended) = (Arc::clone(&ages.known), Arc::clone(&ages.has_ended));
        let tops = Arc::clone(&ages.tops);
        let run = move || {
            while !has_ended.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let is_enabled = read(Path::new(ENABLED)).is_ok_and(|text| are_made(&text));
                let tops = tops.lock().unwrap_or_else(PoisonError::into_inner).clone();
                age(is_enabled.then_some(Path::new(LRU_GEN)), &tops, &known);
                thread::sleep(GENERATION_INTERVAL.max(rest_after(begun.elapsed())));
            }
        };
        thread::Builder::new().name("ages".to_owned()).spawn(run).ok()?;
        Some(ages)
    }

    /// Sets the foreign groups that are aged besides our own groups, from the next walk on.
    pub(crate) fn follow(&self, foreign_groups: impl Iterator<Item = String>) {
        let tops = std::iter::once(self.own_top.clone()).chain(foreign_groups).collect();
        *self.tops.lock().unwrap_or_else(PoisonError::into_inner) = tops;
    }

    /// Cold memory of a control group with its descendants; `None` if the kernel makes no generations.
    pub(crate) fn of_all(&self, path: &str) -> Option<Cold> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Paths with this prefix are contiguous in the map. Some are no descendants: `/user/10` begins like
        // `/user/1`.
        let with_prefix =
            known.as_ref()?.range(path.to_owned()..).take_while(|(group, _)| group.starts_with(path));
        let inside = with_prefix.filter(|(group, _)| is_within(group, path));
        Some(inside.fold(Cold::default(), |sum, (_, cold)| sum.with(*cold)))
    }

    /// Cold memory of a control group without its descendants; `None` if the kernel makes no generations.
    pub(crate) fn of(&self, path: &str) -> Option<Cold> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Some(known.as_ref()?.get(path).copied().unwrap_or_default())
    }
}

impl Drop for Ages {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Reads the generations in the file [`LRU_GEN`], records cold memory, and begins the next generations. With
/// `None`, since the kernel makes no generations, records that cold memory is unknown.
fn age(file: Option<&Path>, tops: &[String], known: &Known) {
    let Some(file) = file else {
        *known.lock().unwrap_or_else(PoisonError::into_inner) = None;
        return;
    };
    let Ok(text) = read(file) else { return };
    let groups = parse(&text, page_bytes());
    let is_aged = |group: &&Group| tops.iter().any(|top| is_within(&group.path, top));
    let cold = groups.iter().filter(is_aged).map(|group| (group.path.clone(), group.cold())).collect();
    *known.lock().unwrap_or_else(PoisonError::into_inner) = Some(cold);
    let youngest =
        groups.iter().filter(is_aged).flat_map(|group| group.due().map(move |due| (group.id, due)));
    for (group, (node, generation)) in youngest {
        // The two last numbers mean: age anonymous memory, too, and do so even if all generations are in use.
        // The kernel refuses if this generation is no longer the youngest; then another has already begun.
        let _ = write(file, &format!("+ {group} {node} {generation} 1 1"));
    }
}

/// Whether a control group is `top` or one of its descendants.
fn is_within(group: &str, top: &str) -> bool {
    Path::new(group).starts_with(top)
}

/// A control group's generations.
#[derive(Debug, Clone, Default)]
struct Group {
    id: u64,
    path: String,
    nodes: Vec<Node>,
}

impl Group {
    fn cold(&self) -> Cold {
        self.nodes.iter().fold(Cold::default(), |sum, node| sum.with(node.cold()))
    }

    /// The nodes in which another generation is due, each with the number of its youngest generation.
    fn due(&self) -> impl Iterator<Item = (u32, u64)> {
        let youngest = self.nodes.iter().filter_map(|node| Some((node.id, node.generations.last()?)));
        youngest.filter(|(_, last)| last.age >= GENERATION_AGE_MIN).map(|(node, last)| (node, last.number))
    }
}

/// One node's generations, youngest last.
#[derive(Debug, Clone, Default)]
struct Node {
    id: u32,
    generations: Vec<Generation>,
}

/// A generation: its age since it began, and the memory of its pages.
#[derive(Debug, Clone, Copy, Default)]
struct Generation {
    number: u64,
    age: Duration,
    memory: Cold,
}

impl Node {
    /// The memory of the generations whose pages were not touched for [`COLD_AFTER`], from the beginning of
    /// the next generation to the beginning of the youngest.
    fn cold(&self) -> Cold {
        let Some(youngest) = self.generations.last() else { return Cold::default() };
        let is_cold = |next: &Generation| next.age.saturating_sub(youngest.age) >= COLD_AFTER;
        let pairs = self.generations.windows(2).filter(|pair| is_cold(&pair[1]));
        pairs.fold(Cold::default(), |sum, pair| sum.with(pair[0].memory))
    }
}

impl Cold {
    /// The sum of two amounts.
    pub(crate) fn with(self, other: Cold) -> Cold {
        Cold { anonymous: self.anonymous + other.anonymous, file: self.file + other.file }
    }
}

/// Parses `lru_gen`: for each control group a line `memcg ID PATH`; for each of its nodes a line `node ID`;
/// for each generation there, the oldest first, a line `NUMBER AGE-IN-MS ANON FILE`, with sizes in pages of
/// `page` bytes.
fn parse(text: &str, page: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["memcg", id, rest @ ..] => {
                let path = rest.first().copied().unwrap_or("/").to_owned();
                groups.push(Group { id: id.parse().unwrap_or(0), path, nodes: Vec::new() });
            }
            ["node", node] => {
                if let (Some(group), Ok(id)) = (groups.last_mut(), node.parse()) {
                    group.nodes.push(Node { id, ..Node::default() });
                }
            }
            [generation, age_ms, anonymous, file, ..] => {
                let number = |word: &str| {
                    word.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap_or(0)
                };
                let memory = Cold { anonymous: number(anonymous) * page, file: number(file) * page };
                let age = Duration::from_millis(number(age_ms));
                if let Some(node) = groups.last_mut().and_then(|group| group.nodes.last_mut()) {
                    node.generations.push(Generation { number: number(generation), age, memory });
                }
            }
            _ => {}
        }
    }
    groups
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The kernel still shows generations when they are disabled: from then on nothing is known, until they
    /// are enabled again.
    #[test]
    fn disabled_generations_show_no_cold_memory() {
        assert!(are_made("0x0007\n") && are_made("0x0005") && are_made("1"));
        assert!(!are_made("0x0000\n") && !are_made("0x0006") && !are_made(""));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lru_gen");
        let text = concat!(
            "memcg     2 /top/a\n node     0\n          0      21000        300         40 \n",
            "          1      11000          0          0 \n          2          0          0          0 \n",
        );
        std::fs::write(&file, text).unwrap();
        let tops = ["/top".to_owned()];
        let ages = Ages {
            known: Known::default(),
            tops: Tops::default(),
            own_top: String::new(),
            has_ended: Arc::default(),
        };
        age(Some(&file), &tops, &ages.known);
        assert!(ages.of("/top/a").is_some_and(|cold| cold.anonymous == 300 * page_bytes()));
        assert_eq!(ages.of("/top/b"), Some(Cold::default()));
        age(None, &tops, &ages.known);
        assert_eq!(ages.of("/top/a"), None);
    }

    /// A user's slice has descendants. A group whose name begins alike is another user's.
    #[test]
    fn a_foreign_group_is_aged_with_its_descendants() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lru_gen");
        let group = |id: u32, path: &str, pages: u32| {
            format!("memcg {id} {path}\n node 0\n 0 21000 {pages} 4\n 1 11000 0 0\n 2 0 0 0\n")
        };
        let text = group(2, "/user/1", 100)
            + &group(3, "/user/1/a/b", 20)
            + &group(4, "/user/10", 7)
            + &group(5, "/other", 9);
        std::fs::write(&file, text).unwrap();
        let ages = Ages {
            known: Known::default(),
            tops: Tops::default(),
            own_top: "/top".to_owned(),
            has_ended: Arc::default(),
        };
        ages.follow(["/user/1".to_owned()].into_iter());
        age(Some(&file), &ages.tops.lock().unwrap(), &ages.known);
        let pages = |path: &str| {
            ages.of_all(path).map(|cold| (cold.anonymous / page_bytes(), cold.file / page_bytes()))
        };
        assert_eq!(
            (pages("/user/1"), pages("/user/10"), pages("/other")),
            (Some((120, 8)), Some((0, 0)), Some((0, 0)))
        );
    }

    /// On node 0 of /commonhold/a, generation 13 began 5 s ago. Pages of 10 were not touched from the
    /// beginning of 11, 16 s ago, until then: 300 + 40 pages are cold. Pages of 11 were not touched since
    /// 14.9 s ago, which is slightly too short. On node 1, those of 1 were not touched for 12 s. On node 2
    /// the kernel began a generation by itself, so another would be useless.
    #[test]
    fn pages_untouched_for_long_enough_are_cold() {
        let text = concat!(
            "memcg     1 /\n node     0\n          0     999999          5          6 \n",
            "memcg    44 /commonhold/a\n node     0\n         10      21000        300         40 \n",
            "         11      16000         20         10 \n         12      14900          7          0 \n",
            "         13       5000          1          2 \n node     1\n",
            "          1      30000          3          3 \n          2      17000          1          1 \n",
            "          3       5000          0          0 \n node     2\n          7       3900          0          0 \n",
        );
        let groups = parse(text, 1);
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].cold(), Cold::default(), "nothing is known without a next generation");
        let a = &groups[1];
        assert_eq!((a.id, a.path.as_str()), (44, "/commonhold/a"));
        assert_eq!(a.cold(), Cold { anonymous: 303, file: 43 });
        assert_eq!(a.due().collect::<Vec<_>>(), [(0, 13), (1, 3)]);
    }
}
