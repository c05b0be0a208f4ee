//! Which memory of a unit is cold.
//!
//! Problem: a page in use, and a page that was used an hour ago, are charged alike.
//!
//! Algorithm: this works where the kernel has its multi-generation LRU and lets us read it (debugfs). Every control
//! group of ours, and every one in a place that a unit is held in, is made to begin a generation every [`AGE`]. Pages found touched since the last time move to the
//! generation that was the youngest until then. Pages that stay behind were not touched between the two. Pages touched
//! since the youngest began are not known yet. So cold pages are those that stayed behind for [`COLD`] before that.
//!
//! Walking page tables takes time. A kernel that takes pages from a control group begins a generation by itself, and
//! is then not asked for another. A thread of its own does the work, for no more than a small part of the machine's
//! time ([`rest_after`]).
//!
//! There may be no such LRU, or the kernel's generations may be switched off (it then shows those that were). There
//! the files on the kernel's inactive list count as cold, and anonymous memory is never called cold.
//!
//! Limits: memory that a program reads only by system calls, again and again, may look colder than it is. The policy
//! stops believing it when the unit misses what it lent.
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
const AGE: Duration = Duration::from_secs(5);
/// One that began by itself less than this ago will do.
const YOUNG: Duration = Duration::from_secs(4);
/// What was not touched for so long is cold: two generations, of the four that there are at most.
const COLD: Duration = Duration::from_secs(10);
/// Where the kernel shows generations, and whether it makes any: a mask of what is switched on, in hexadecimal digits.
const LRU_GEN: &str = "/sys/kernel/debug/lru_gen";
const ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";
const MAIN_SWITCH: u64 = 1;

/// Cold memory of a control group, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cold {
    pub(crate) anonymous: u64,
    pub(crate) file: u64,
}

/// What is known of cold memory, by control group as the kernel names it; `None` while there are no generations.
type Known = Arc<Mutex<Option<BTreeMap<String, Cold>>>>;

/// The control groups that are looked at, as the kernel names them: these, and all that are in them.
type Tops = Arc<Mutex<Vec<String>>>;

/// The thread that knows.
#[derive(Debug)]
pub(crate) struct Ages {
    known: Known,
    tops: Tops,
    /// That of our own groups.
    top: String,
    ended: Arc<AtomicBool>,
}

/// Whether the kernel makes generations.
pub(crate) fn are_made(enabled: &str) -> bool {
    let digits = enabled.trim().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).is_ok_and(|mask| mask & MAIN_SWITCH != 0)
}

/// Whether this kernel shows generations to us.
fn are_shown(file: &Path) -> bool {
    read(file).is_ok_and(|text| text.starts_with("memcg"))
}

impl Ages {
    /// Begins to age the control groups below `top`, a path as /proc/PID/cgroup has it; `None` where generations are not
    /// shown.
    pub(crate) fn begin(top: String) -> Option<Ages> {
        if !are_shown(Path::new(LRU_GEN)) {
            return None;
        }
        let known = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let tops = Arc::new(Mutex::new(vec![top.clone()]));
        let ages = Ages { known, tops, top, ended: Arc::default() };
        let (known, ended) = (Arc::clone(&ages.known), Arc::clone(&ages.ended));
        let tops = Arc::clone(&ages.tops);
        let live = move || {
            while !ended.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let made = read(Path::new(ENABLED)).is_ok_and(|text| are_made(&text));
                let tops = tops.lock().unwrap_or_else(PoisonError::into_inner).clone();
                look(made.then_some(Path::new(LRU_GEN)), &tops, &known);
                thread::sleep(AGE.max(rest_after(begun.elapsed())));
            }
        };
        thread::Builder::new().name("ages".to_owned()).spawn(live).ok()?;
        Some(ages)
    }

    /// Looks at these control groups as well, from the next time on.
    pub(crate) fn follow(&self, places: impl Iterator<Item = String>) {
        let tops = std::iter::once(self.top.clone()).chain(places).collect();
        *self.tops.lock().unwrap_or_else(PoisonError::into_inner) = tops;
    }

    /// Cold memory of a control group with all that are in it; `None` where the kernel makes no generations.
    pub(crate) fn of_all(&self, path: &str) -> Option<Cold> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let all = known.as_ref()?.range(path.to_owned()..).take_while(|(group, _)| group.starts_with(path));
        let inside = all.filter(|(group, _)| is_within(group, path));
        Some(inside.fold(Cold::default(), |sum, (_, cold)| sum.with(*cold)))
    }

    /// Cold memory of a control group; `None` where the kernel makes no generations.
    pub(crate) fn of(&self, path: &str) -> Option<Cold> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Some(known.as_ref()?.get(path).copied().unwrap_or_default())
    }
}

impl Drop for Ages {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Reads the generations, takes note of what is cold, and begins the next ones; without a `file` there are none.
fn look(file: Option<&Path>, tops: &[String], known: &Known) {
    let Some(file) = file else {
        *known.lock().unwrap_or_else(PoisonError::into_inner) = None;
        return;
    };
    let Ok(text) = read(file) else { return };
    let groups = parse(&text, page_bytes());
    let ours = |group: &&Group| tops.iter().any(|top| is_within(&group.path, top));
    let cold = groups.iter().filter(ours).map(|group| (group.path.clone(), group.cold())).collect();
    *known.lock().unwrap_or_else(PoisonError::into_inner) = Some(cold);
    let youngest = groups.iter().filter(ours).flat_map(|group| group.due().map(move |of| (group.id, of)));
    for (group, (node, generation)) in youngest {
        // The last two: anonymous memory too, and even if there are as many generations as there can be. Refused when the
        // generation is not the youngest any more: then another one has begun already.
        let _ = write(file, &format!("+ {group} {node} {generation} 1 1"));
    }
}

/// Whether a control group is another, or in it.
fn is_within(group: &str, around: &str) -> bool {
    Path::new(group).starts_with(around)
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

    /// Nodes in which another generation is to begin, and the youngest of each.
    fn due(&self) -> impl Iterator<Item = (u32, u64)> {
        let youngest = self.nodes.iter().filter_map(|node| Some((node.id, node.generations.last()?)));
        youngest.filter(|(_, last)| last.age >= YOUNG).map(|(node, last)| (node, last.number))
    }
}

/// Of one node's generations: the ages are those of the beginning, youngest last.
#[derive(Debug, Clone, Default)]
struct Node {
    id: u32,
    generations: Vec<Generation>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Generation {
    number: u64,
    age: Duration,
    pages: Cold,
}

impl Node {
    /// What was not touched from when the next generation began until the youngest did, where that is long enough.
    fn cold(&self) -> Cold {
        let Some(youngest) = self.generations.last() else { return Cold::default() };
        let stayed = |next: &Generation| next.age.saturating_sub(youngest.age) >= COLD;
        let pairs = self.generations.windows(2).filter(|pair| stayed(&pair[1]));
        pairs.fold(Cold::default(), |sum, pair| sum.with(pair[0].pages))
    }
}

impl Cold {
    pub(crate) fn with(self, other: Cold) -> Cold {
        Cold { anonymous: self.anonymous + other.anonymous, file: self.file + other.file }
    }
}

/// From the text of `lru_gen`: `memcg ID PATH`, below it `node ID`, below that `GENERATION AGE-IN-MS ANON FILE` in pages, the
/// oldest first.
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
                let pages = Cold { anonymous: number(anonymous) * page, file: number(file) * page };
                let age = Duration::from_millis(number(age_ms));
                if let Some(node) = groups.last_mut().and_then(|group| group.nodes.last_mut()) {
                    node.generations.push(Generation { number: number(generation), age, pages });
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

    /// The kernel goes on showing generations when they are switched off: nothing is known from then on, until they are on
    /// again.
    #[test]
    fn generations_that_are_switched_off_tell_nothing() {
        assert!(are_made("0x0007\n") && are_made("0x0005") && are_made("1"));
        assert!(!are_made("0x0000\n") && !are_made("0x0006") && !are_made(""));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lru_gen");
        let text = "memcg     2 /top/a\n node     0\n          0      21000        300         40 \n          1      11000          0          0 \n          2          0          0          0 \n";
        std::fs::write(&file, text).unwrap();
        let tops = ["/top".to_owned()];
        let ages = Ages {
            known: Known::default(),
            tops: Tops::default(),
            top: String::new(),
            ended: Arc::default(),
        };
        look(Some(&file), &tops, &ages.known);
        assert!(ages.of("/top/a").is_some_and(|cold| cold.anonymous == 300 * page_bytes()));
        assert_eq!(ages.of("/top/b"), Some(Cold::default()));
        look(None, &tops, &ages.known);
        assert_eq!(ages.of("/top/a"), None);
    }

    /// A user's slice has groups of its own in it; one whose name begins alike is another's.
    #[test]
    fn a_place_is_aged_with_all_that_is_in_it() {
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
            top: "/top".to_owned(),
            ended: Arc::default(),
        };
        ages.follow(["/user/1".to_owned()].into_iter());
        look(Some(&file), &ages.tops.lock().unwrap(), &ages.known);
        let pages = |path: &str| {
            ages.of_all(path).map(|cold| (cold.anonymous / page_bytes(), cold.file / page_bytes()))
        };
        assert_eq!(
            (pages("/user/1"), pages("/user/10"), pages("/other")),
            (Some((120, 8)), Some((0, 0)), Some((0, 0)))
        );
    }

    /// Of /commonhold/a, 13 began 5 s ago. Generation 10 was not touched from when 11 began, 16 s ago, until then: 300 + 40
    /// pages; 11 from 12 on, 14.9 s ago: too young by a little. On the other node, 1 was not for 12 s. On the last the
    /// kernel began one by itself: another would tell nothing.
    #[test]
    fn cold_is_what_stayed_behind_for_long_enough() {
        let text = "memcg     1 /\n node     0\n          0     999999          5          6 \nmemcg    44 /commonhold/a\n \
                    node     0\n         10      21000        300         40 \n         11      16000         20         10 \n         \
                    12      14900          7          0 \n         13       5000          1          2 \n node     1\n          \
                    1      30000          3          3 \n          2      17000          1          1 \n          3       5000          0          0 \n node     2\n          \
                    7       3900          0          0 \n";
        let groups = parse(text, 1);
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].cold(), Cold::default(), "nothing is known without a next one");
        let a = &groups[1];
        assert_eq!((a.id, a.path.as_str()), (44, "/commonhold/a"));
        assert_eq!(a.cold(), Cold { anonymous: 303, file: 43 });
        assert_eq!(a.due().collect::<Vec<_>>(), [(0, 13), (1, 3)]);
    }
}
