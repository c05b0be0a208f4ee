//! Synthetic machines: a line of text such as `nodes:4 cpus:2 memory:512MiB` describes a machine that is not
//! at hand, for `check` and for simulations.
//!
//! | word | meaning | default |
//! | --- | --- | --- |
//! | `nodes:4` | NUMA nodes | as many as a list has values, or 1 |
//! | `cpus:2` | logical CPUs per node | 1 |
//! | `memory:512MiB` | memory per node | 1GiB |
//! | `threads:2` | hardware threads per core; divides `cpus` | 1 |
//! | `caches:2` | last-level caches per node; divides the cores of a node | 1 |
//! | `cache:32MiB` | the size of each last-level cache | unknown |
//! | `sockets:2` | sockets; divides `nodes` | as many as nodes |
//! | `disks:1` | disks, of 1 TiB each | 0, or 1 if `disk` is given |
//! | `disk:100MB/s` | the bandwidth of each disk | unknown |
//! | `swap:1GiB` | swap space | none |
//! | `bus:20GB/s` | the bandwidth of the memory bus | unknown |
//!
//! Where nodes differ, `cpus`, `memory` and `caches` have a list with a value for each node:
//! `cpus:8,8,4 memory:32GiB,32GiB,16GiB`. In a list, 0 is a value: `cpus:8,0 memory:16GiB,64GiB` has a node
//! with memory and no CPUs, such as CXL memory; `cpus:8,8 memory:64GiB,0B` has one with CPUs and no memory. A
//! node without CPUs has no caches.
//!
//! CPUs are numbered in topological order: socket by socket, then node by node, cache by cache, and core by
//! core. A machine has at most 65,536 CPUs.

use std::collections::BTreeSet;

use crate::quantity::{self, BYTES_MAX, Wrong};
use crate::{CAPACITY_MAX, Cache, Cpu, Disk, MAX_CPUS, Machine, Node};

/// The size of each synthetic disk: a round figure on which nothing depends.
const DISK_BYTES: u64 = 1 << 40;

/// The most disks. No machine has as many; without a limit, a typing error could fill the memory.
const DISKS_MAX: u32 = 4096;

/// A malformed text of a synthetic machine: the word, its position, the problem and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("synthetic machine, column {column}: `{word}`: {what}; {remedy}")]
pub struct SyntheticError {
    /// The position of the word's first character, from 1.
    pub column: usize,
    /// The word.
    pub word: String,
    /// The problem.
    pub what: String,
    /// What to write instead.
    pub remedy: String,
}

impl Machine {
    /// A machine from a line such as `nodes:4 cpus:2 memory:512MiB`.
    ///
    /// Words, in any order: `nodes:N`, `cpus:N` and `memory:SIZE` (both per node), `threads:N` (per core),
    /// `caches:N` (per node), `cache:SIZE` (of each), `sockets:N`, `disks:N`, `disk:RATE`, `swap:SIZE`,
    /// `bus:RATE`. `cpus`, `memory` and `caches` may list a value for each node: `cpus:8,8,4`. Sizes are like
    /// `512MiB` or `8GB`, rates like `100MB/s`. The empty text is the smallest machine: one CPU and 1 GiB.
    pub fn synthetic(text: &str) -> Result<Machine, SyntheticError> {
        let words = Words::split(text)?;
        let shape = Shape::read(&words)?;
        Ok(Machine {
            cpus: shape.all_cpus(),
            nodes: (0..)
                .zip(&shape.memory_bytes)
                .map(|(id, bytes)| Node { id, memory_bytes: *bytes })
                .collect(),
            swap_bytes: words.amount("swap", quantity::bytes)?.unwrap_or(0),
            disks: words.disks()?,
            bus_bytes_per_s: words.rate("bus")?,
            caches: words.caches(shape.caches.iter().sum())?,
        })
    }

    /// The words of this machine, of which [`Machine::synthetic`] makes an equal machine. `None` if words
    /// cannot say what the machine is: it has disks with other names, isolated or slower CPUs, or another
    /// numbering.
    pub fn to_words(&self) -> Option<String> {
        let cpus_of = |node: u32| self.cpus.iter().filter(move |cpu| cpu.node == node);
        let caches_of = |node| cpus_of(node).map(|cpu| cpu.cache).collect::<BTreeSet<u32>>().len();
        let by_node = |text: &dyn Fn(&Node) -> String| {
            let mut values: Vec<String> = self.nodes.iter().map(text).collect();
            if values.iter().all(|value| *value == values[0] && value != "0" && value != "0B") {
                values.truncate(1);
            }
            values.join(",")
        };
        let used_nodes: BTreeSet<u32> = self.cpus.iter().map(|cpu| cpu.node).collect();
        let sockets: BTreeSet<u32> = self.cpus.iter().map(|cpu| cpu.socket).collect();
        let mut words = vec![
            format!("nodes:{}", self.nodes.len()),
            format!("cpus:{}", by_node(&|node| cpus_of(node.id).count().to_string())),
            format!("memory:{}", by_node(&|node| exact_bytes(node.memory_bytes))),
            format!("threads:{}", self.cpus.len() / self.cores().max(1)),
            format!("caches:{}", by_node(&|node| caches_of(node.id).to_string())),
            format!("disks:{}", self.disks.len()),
            format!("swap:{}", exact_bytes(self.swap_bytes)),
        ];
        if sockets.len() < used_nodes.len() {
            words.push(format!("sockets:{}", sockets.len()));
        }
        words.extend(self.caches.first().map(|cache| format!("cache:{}", exact_bytes(cache.bytes))));
        let rate = |word: &str, rate: Option<u64>| rate.map(|rate| format!("{word}:{rate}B/s"));
        words.extend(rate("disk", self.disks.first().and_then(|disk| disk.bytes_per_s)));
        words.extend(rate("bus", self.bus_bytes_per_s));
        let text = words.join(" ");
        Machine::synthetic(&text).is_ok_and(|machine| machine == *self).then_some(text)
    }
}

/// An amount in the largest unit of which it is a whole multiple: `1536MiB`.
fn exact_bytes(bytes: u64) -> String {
    let units = ["PiB", "TiB", "GiB", "MiB", "KiB"];
    let unit = units
        .iter()
        .zip([50, 40, 30, 20, 10])
        .find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes}B"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

/// The numbers that describe a synthetic machine, as in the table above. It is checked that `threads` divides
/// `cpus`, that `caches` divides `cpus / threads`, and that `sockets` divides `nodes`.
struct Shape {
    nodes: u32,
    /// By node.
    cpus: Vec<u32>,
    threads: u32,
    /// By node; 0 for a node without CPUs.
    caches: Vec<u32>,
    sockets: u32,
    /// By node.
    memory_bytes: Vec<u64>,
}

impl Shape {
    fn read(words: &Words<'_>) -> Result<Shape, SyntheticError> {
        let nodes = words.nodes()?;
        let cpus = words.by_node("cpus", "numbers of CPUs", nodes, 1, |key, text, min| {
            whole_number(key, text, min, MAX_CPUS)
        })?;
        let memory = |_: &str, text: &str, _| quantity::bytes(text);
        let mut caches = words.by_node("caches", "numbers of caches", nodes, 1, |key, text, min| {
            whole_number(key, text, min, MAX_CPUS)
        })?;
        if !words.is_list("caches") {
            for (caches, cpus) in caches.iter_mut().zip(&cpus) {
                *caches *= u32::from(*cpus > 0);
            }
        }
        let shape = Shape {
            nodes,
            sockets: words.count("sockets", 1, MAX_CPUS)?.unwrap_or(nodes),
            cpus,
            threads: words.count("threads", 1, MAX_CPUS)?.unwrap_or(1),
            caches,
            memory_bytes: words.by_node("memory", "sizes of memory", nodes, 1 << 30, memory)?,
        };
        shape.check(words)?;
        Ok(shape)
    }

    fn check(&self, words: &Words<'_>) -> Result<(), SyntheticError> {
        let Shape { nodes, threads, sockets, .. } = *self;
        let all: u64 = self.cpus.iter().map(|cpus| u64::from(*cpus)).sum();
        if all > u64::from(MAX_CPUS) {
            let what = match self.cpus.iter().all(|cpus| *cpus == self.cpus[0]) {
                true => format!("{nodes} nodes of {} CPUs are more than {MAX_CPUS} CPUs", self.cpus[0]),
                false => format!("{all} CPUs are more than {MAX_CPUS}"),
            };
            return Err(words.wrong("nodes", what, "write fewer nodes, or fewer CPUs per node"));
        }
        if all == 0 {
            return Err(words.wrong("cpus", "no node has CPUs".to_owned(), "give one of them CPUs"));
        }
        for (cpus, caches) in self.cpus.iter().zip(&self.caches) {
            if cpus % threads != 0 {
                let what =
                    format!("the {cpus} CPUs of a node are not whole cores of {threads} hardware threads");
                let remedy = "`cpus` counts hardware threads: make it a multiple";
                return Err(words.wrong("threads", what, remedy));
            }
            let cores = cpus / threads;
            if cores == 0 && *caches > 0 {
                let what = "a node without CPUs has no caches".to_owned();
                return Err(words.wrong("caches", what, "write 0 for that node"));
            }
            if cores > 0 && cores.checked_rem(*caches) != Some(0) {
                let what = format!("the {cores} cores of a node do not divide evenly among {caches} caches");
                return Err(words.wrong("caches", what, &format!("write {}", divisors(cores))));
            }
        }
        if nodes % sockets != 0 {
            let what = format!("the {nodes} nodes do not divide evenly among {sockets} sockets");
            return Err(words.wrong("sockets", what, &format!("write {}", divisors(nodes))));
        }
        if self.memory_bytes.iter().all(|bytes| *bytes == 0) {
            let what = if words.is_list("memory") { "no node has memory" } else { "a node without memory" };
            return Err(words.wrong("memory", what.to_owned(), "write `memory:1GiB`"));
        }
        if self.memory_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)) > BYTES_MAX {
            let what = "all nodes together have more than 1 EiB".to_owned();
            return Err(words.wrong("memory", what, "write less memory per node"));
        }
        Ok(())
    }

    /// The CPUs, in topological order.
    fn all_cpus(&self) -> Vec<Cpu> {
        let (mut all, mut first_cache) = (Vec::new(), 0);
        for ((node, cpus), caches) in (0u32..).zip(&self.cpus).zip(&self.caches) {
            let first = u32::try_from(all.len()).unwrap_or(MAX_CPUS);
            let cpu = |index| Cpu {
                id: first + index,
                node,
                cache: first_cache + index / (cpus / caches),
                // Every node has whole cores.
                core: (first + index) / self.threads,
                socket: node / (self.nodes / self.sockets),
                isolated: false,
                capacity: CAPACITY_MAX,
            };
            all.extend((0..*cpus).map(cpu));
            first_cache += caches;
        }
        all
    }
}

/// A whole number from `min` to `max`, as a value of the word `key`.
fn whole_number(key: &str, text: &str, min: u32, max: u32) -> Result<u32, Wrong> {
    text.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| Wrong {
        what: format!("`{text}` is not a whole number from {min} to {max}"),
        remedy: format!("write `{key}:2`"),
    })
}

/// The divisors of a number as text: `1, 2 or 4`. If there are many, the text has only the smallest ones and
/// the number itself.
fn divisors(number: u32) -> String {
    const SHOWN: usize = 8;
    let divisors: Vec<u32> = (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect();
    let (last, others) = divisors.split_last().map_or((number, &[][..]), |(last, others)| (*last, others));
    if others.is_empty() {
        return last.to_string();
    }
    let listed: Vec<String> = others.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if others.len() > SHOWN { ", and so on to" } else { " or" };
    format!("{}{more} {last}", listed.join(", "))
}

/// One word of the text.
struct Word<'a> {
    column: usize,
    key: &'a str,
    value: &'a str,
}

impl Word<'_> {
    fn wrong(&self, wrong: Wrong) -> SyntheticError {
        let word = format!("{}:{}", self.key, self.value);
        SyntheticError { column: self.column, word, what: wrong.what, remedy: wrong.remedy }
    }
}

/// The words of the text. Each key occurs at most once.
struct Words<'a>(Vec<Word<'a>>);

impl<'a> Words<'a> {
    const KEYS: [&'static str; 11] =
        ["nodes", "cpus", "memory", "threads", "caches", "cache", "sockets", "disks", "disk", "swap", "bus"];

    fn split(text: &'a str) -> Result<Words<'a>, SyntheticError> {
        let mut words = Words(Vec::new());
        for word in text.split_whitespace() {
            // `split_whitespace` yields slices of `text`, so the difference of their addresses is the offset.
            let offset = word.as_ptr() as usize - text.as_ptr() as usize;
            let column = text[..offset].chars().count() + 1;
            let wrong = |what: &str, remedy: String| {
                Err(SyntheticError { column, word: word.to_owned(), what: what.to_owned(), remedy })
            };
            let Some((key, value)) = word.split_once(':') else {
                return wrong("it has no `:`", "write `WORD:VALUE`, such as `cpus:2`".to_owned());
            };
            if !Self::KEYS.contains(&key) {
                return wrong("the word is unknown", format!("the words are {}", Self::KEYS.join(", ")));
            }
            if words.find(key).is_some() {
                return wrong("the word is listed twice", "leave one of them out".to_owned());
            }
            words.0.push(Word { column, key, value });
        }
        Ok(words)
    }

    fn find(&self, key: &str) -> Option<&Word<'a>> {
        self.0.iter().find(|word| word.key == key)
    }

    /// An error at the word with this key; if the text has no such word, so that its default is invalid, at
    /// the last word.
    fn wrong(&self, key: &str, what: String, remedy: &str) -> SyntheticError {
        let wrong = Wrong { what, remedy: remedy.to_owned() };
        let word = self.find(key).or(self.0.last());
        word.unwrap_or(&Word { column: 1, key, value: "" }).wrong(wrong)
    }

    /// The value of a word that is a number from `min` to `max`; `None` if the text has no such word.
    fn count(&self, key: &str, min: u32, max: u32) -> Result<Option<u32>, SyntheticError> {
        let Some(word) = self.find(key) else { return Ok(None) };
        whole_number(key, word.value, min, max).map(Some).map_err(|wrong| word.wrong(wrong))
    }

    /// Whether a word has a value for each node.
    fn is_list(&self, key: &str) -> bool {
        self.find(key).is_some_and(|word| word.value.contains(','))
    }

    /// The number of nodes: that of `nodes`, else of the first list, else 1.
    fn nodes(&self) -> Result<u32, SyntheticError> {
        let lists = ["cpus", "memory", "caches"].into_iter().filter_map(|key| self.find(key));
        let mut lengths = lists.map(|word| word.value.split(',').count()).filter(|length| *length > 1);
        let listed = lengths.next().map(|length| u32::try_from(length).unwrap_or(MAX_CPUS).min(MAX_CPUS));
        Ok(self.count("nodes", 1, MAX_CPUS)?.or(listed).unwrap_or(1))
    }

    /// The values of a word by node: one value for all nodes, or a list. `parse` gets the key, a value and
    /// the smallest number: 0 in a list, else 1. `noun`: what the values are.
    fn by_node<T: Copy>(
        &self,
        key: &str,
        noun: &str,
        nodes: u32,
        default: T,
        parse: impl Fn(&str, &str, u32) -> Result<T, Wrong>,
    ) -> Result<Vec<T>, SyntheticError> {
        let Some(word) = self.find(key) else { return Ok(vec![default; nodes as usize]) };
        let values: Vec<&str> = word.value.split(',').collect();
        if let [value] = values[..] {
            let value = parse(key, value, 1).map_err(|wrong| word.wrong(wrong))?;
            return Ok(vec![value; nodes as usize]);
        }
        if values.len() != nodes as usize {
            let what = format!("{} {noun}, for {nodes} nodes", values.len());
            let remedy = "write one value for all nodes, or one for each".to_owned();
            return Err(word.wrong(Wrong { what, remedy }));
        }
        values.into_iter().map(|value| parse(key, value, 0).map_err(|wrong| word.wrong(wrong))).collect()
    }

    fn amount(
        &self,
        key: &str,
        parse: fn(&str) -> Result<u64, Wrong>,
    ) -> Result<Option<u64>, SyntheticError> {
        let Some(word) = self.find(key) else { return Ok(None) };
        parse(word.value).map(Some).map_err(|wrong| word.wrong(wrong))
    }

    /// The value of a word that is a rate; `None` if the text has no such word. 0 is rejected, since then
    /// nothing could ever be transferred.
    fn rate(&self, key: &str) -> Result<Option<u64>, SyntheticError> {
        match self.amount(key, quantity::bytes_per_s)? {
            Some(0) => Err(self.wrong(key, "nothing can be transferred".to_owned(), "write `100MB/s`")),
            rate => Ok(rate),
        }
    }

    /// `count` caches of the size that the text gives; empty if it gives no size.
    fn caches(&self, count: u32) -> Result<Vec<Cache>, SyntheticError> {
        match self.amount("cache", quantity::bytes)? {
            None => Ok(Vec::new()),
            Some(0) => {
                Err(self.wrong("cache", "a cache that holds nothing".to_owned(), "write `cache:32MiB`"))
            }
            Some(bytes) if u64::from(count).checked_mul(bytes).is_none_or(|all| all > BYTES_MAX) => {
                let what = "all caches together have more than 1 EiB".to_owned();
                Err(self.wrong("cache", what, "write `cache:32MiB`"))
            }
            Some(bytes) => Ok((0..count).map(|id| Cache { id, bytes }).collect()),
        }
    }

    fn disks(&self) -> Result<Vec<Disk>, SyntheticError> {
        let bytes_per_s = self.rate("disk")?;
        let disks = self.count("disks", 0, DISKS_MAX)?.unwrap_or(u32::from(bytes_per_s.is_some()));
        let disk = |i| Disk { name: format!("disk{i}"), bytes: DISK_BYTES, bytes_per_s };
        Ok((0..disks).map(disk).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_lab_in_one_line() {
        let machine = Machine::synthetic("nodes:4 cpus:2 memory:512MiB").unwrap();
        assert_eq!(machine.cpu_set().to_string(), "0-7");
        assert_eq!(machine.memory_bytes(), 2 << 30);
        assert_eq!(machine.cpus.iter().map(|cpu| cpu.node).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!((machine.swap_bytes, machine.disks.len(), machine.bus_bytes_per_s), (0, 0, None));
    }

    #[test]
    fn threads_and_caches() {
        // 8 CPUs per node are 4 cores of 2 threads, 2 cores to a cache: CPUs 0-3 share a cache, 0 and 1 a
        // core.
        let machine = Machine::synthetic("cpus:8 threads:2 caches:2 nodes:2").unwrap();
        let distances = [0, 1, 2, 4, 8].map(|cpu| machine.distance(0, cpu));
        assert_eq!(distances, [0, 1, 2, 3, 4]);
        assert_eq!((machine.cpus[15].core, machine.cpus[15].cache), (7, 3));
        assert_eq!((machine.cores(), machine.cache_bytes()), (8, None));
        let machine = Machine::synthetic("cpus:8 threads:2 caches:2 nodes:2 cache:8MiB").unwrap();
        assert_eq!(
            (machine.cache(3), machine.cache(4), machine.cache_bytes()),
            (Some(8 << 20), None, Some(32 << 20))
        );
    }

    #[test]
    fn disks_swap_and_bus() {
        let machine = Machine::synthetic("disk:100MB/s swap:1GiB bus:20GB/s").unwrap();
        assert_eq!(machine.disks[0].bytes_per_s, Some(100_000_000));
        assert_eq!((machine.disks.len(), machine.swap_bytes), (1, 1 << 30));
        assert_eq!(machine.bus_bytes_per_s, Some(20_000_000_000));
        assert_eq!(Machine::synthetic("disks:3").unwrap().disks[2].name, "disk2");
        assert_eq!(Machine::synthetic("").unwrap().cpus.len(), 1);
    }

    #[test]
    fn errors_name_the_word_the_place_and_the_remedy() {
        let is = |text: &str, expected: &str| {
            assert_eq!(Machine::synthetic(text).unwrap_err().to_string(), expected, "{text}");
        };
        is(
            "cpus:2 memory:8G",
            "synthetic machine, column 8: `memory:8G`: the unit `G` is ambiguous; write `8GiB` (1024^3) or `8GB` (1000^3)",
        );
        is(
            "cores:4",
            "synthetic machine, column 1: `cores:4`: the word is unknown; the words are nodes, cpus, memory, \
             threads, caches, cache, sockets, disks, disk, swap, bus",
        );
        is(
            "cpus",
            "synthetic machine, column 1: `cpus`: it has no `:`; write `WORD:VALUE`, such as `cpus:2`",
        );
        is(
            "cpus:1  cpus:2",
            "synthetic machine, column 9: `cpus:2`: the word is listed twice; leave one of them out",
        );
        is(
            "cpus:0",
            "synthetic machine, column 1: `cpus:0`: `0` is not a whole number from 1 to 65536; write `cpus:2`",
        );
        is(
            "nodes:256 cpus:257",
            "synthetic machine, column 1: `nodes:256`: 256 nodes of 257 CPUs are more than 65536 CPUs; \
             write fewer nodes, or fewer CPUs per node",
        );
        is(
            "cpus:3 threads:2",
            "synthetic machine, column 8: `threads:2`: the 3 CPUs of a node are not whole cores of 2 \
             hardware threads; `cpus` counts hardware threads: make it a multiple",
        );
        is(
            "cpus:2 caches:3",
            "synthetic machine, column 8: `caches:3`: the 2 cores of a node do not divide evenly among 3 caches; write 1 or 2",
        );
    }

    #[test]
    fn nodes_of_different_sizes() {
        let machine = Machine::synthetic("cpus:5,7,4").unwrap();
        let of_node = |node| machine.cpus.iter().filter(|cpu| cpu.node == node).count();
        assert_eq!((machine.nodes.len(), [0, 1, 2].map(of_node)), (3, [5, 7, 4]));
        let caches: Vec<u32> = machine.cpus.iter().map(|cpu| cpu.cache).collect();
        assert_eq!(caches, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
        assert!(machine.cpus.iter().zip(0..).all(|(cpu, id)| cpu.id == id && cpu.core == id));
        assert_eq!(
            Machine::synthetic("nodes:2 cpus:5,7,4").unwrap_err().to_string(),
            "synthetic machine, column 9: `cpus:5,7,4`: 3 numbers of CPUs, for 2 nodes; write one value for all \
             nodes, or one for each"
        );
    }

    #[test]
    fn nodes_without_cpus_or_without_memory() {
        let machine = Machine::synthetic("cpus:8,0,4 memory:32GiB,64GiB,0B caches:2,0,1 cache:4MiB").unwrap();
        let memory: Vec<u64> = machine.nodes.iter().map(|node| node.memory_bytes >> 30).collect();
        assert_eq!((machine.cpus.len(), memory), (12, vec![32, 64, 0]));
        let places = [0, 3, 4, 7, 8, 11].map(|cpu: usize| (machine.cpus[cpu].node, machine.cpus[cpu].cache));
        assert_eq!(places, [(0, 0), (0, 0), (0, 1), (0, 1), (2, 2), (2, 2)]);
        assert_eq!((machine.caches.len(), machine.cache_bytes()), (3, Some(12 << 20)));
        // One number of caches is that of every node that has CPUs.
        assert_eq!(Machine::synthetic("cpus:8,0,4 caches:2 cache:4MiB").unwrap().caches.len(), 4);
        assert_eq!(Machine::synthetic("memory:1GiB,2GiB").unwrap().cpus.len(), 2);
    }

    #[test]
    fn mistakes_in_lists_have_a_remedy() {
        let is = |text: &str, expected: &str| {
            let error = Machine::synthetic(text).unwrap_err().to_string();
            assert_eq!(error, format!("synthetic machine, column {expected}"), "{text}");
        };
        is("cpus:0,0", "1: `cpus:0,0`: no node has CPUs; give one of them CPUs");
        is("cpus:2,2 memory:0B,0B", "10: `memory:0B,0B`: no node has memory; write `memory:1GiB`");
        is(
            "cpus:8,8 memory:32GiB,32GiB,16GiB",
            "10: `memory:32GiB,32GiB,16GiB`: 3 sizes of memory, for 2 nodes; write one value for all nodes, or one \
             for each",
        );
        is(
            "cpus:8,0 caches:2,1",
            "10: `caches:2,1`: a node without CPUs has no caches; write 0 for that node",
        );
        is(
            "cpus:8,4 caches:2,0",
            "10: `caches:2,0`: the 4 cores of a node do not divide evenly among 0 caches; write 1, 2 or 4",
        );
        is("cpus:8,x", "1: `cpus:8,x`: `x` is not a whole number from 0 to 65536; write `cpus:2`");
        is("cpus:8,4 memory:32GiB,16", "10: `memory:32GiB,16`: it has no unit; write `16MiB` or `16GiB`");
        is(
            "cpus:8,3 threads:2",
            "10: `threads:2`: the 3 CPUs of a node are not whole cores of 2 hardware threads; `cpus` counts \
             hardware threads: make it a multiple",
        );
    }

    #[test]
    fn words_cannot_say_everything() {
        let mut machine = Machine::synthetic("cpus:2").unwrap();
        assert_eq!(
            machine.to_words().unwrap(),
            "nodes:1 cpus:2 memory:1GiB threads:1 caches:1 disks:0 swap:0B"
        );
        machine.cpus[1].isolated = true;
        assert_eq!(machine.to_words(), None);
    }

    #[test]
    fn bounds() {
        assert_eq!(Machine::synthetic("nodes:256 cpus:256").unwrap().cpus.len(), 65_536);
        assert!(Machine::synthetic("cpus:65536,1").is_err() && Machine::synthetic("cpus:4,").is_err());
        for bad in [
            "memory:0B",
            "nodes:2 memory:1024PiB",
            "disk:0B/s",
            "bus:1GB",
            "cache:0B",
            "nodes:2 cache:1024PiB",
            "disks:5000",
            "cpus:-1",
            ":",
            "é:1",
        ] {
            assert!(Machine::synthetic(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn uneven_nodes_survive_words_and_toml(
            nodes in proptest::collection::vec((0u32..5, 0u64..5, 1u32..3), 1..5),
            (threads, cache, swap) in (1u32..3, 0u64..3, 0u64..3),
        ) {
            let list = |value: &dyn Fn(&(u32, u64, u32)) -> String| {
                nodes.iter().map(value).collect::<Vec<_>>().join(",")
            };
            let cpus = list(&|(cores, _, caches)| (cores * caches * threads).to_string());
            let caches = list(&|(cores, _, caches)| (caches * u32::from(*cores > 0)).to_string());
            let memory = list(&|(_, gib, _)| format!("{gib}GiB"));
            let size = if cache > 0 { format!(" cache:{cache}MiB") } else { String::new() };
            let text =
                format!("cpus:{cpus} memory:{memory} caches:{caches} threads:{threads} swap:{swap}MiB{size}");
            let has_both = nodes.iter().any(|(cores, ..)| *cores > 0) && nodes.iter().any(|(_, gib, _)| *gib > 0);
            let machine = Machine::synthetic(&text);
            prop_assert_eq!(machine.is_ok(), has_both, "{}", text);
            if let Ok(machine) = machine {
                prop_assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine.clone()));
                let words = machine.to_words().unwrap();
                prop_assert_eq!(Machine::synthetic(&words), Ok(machine), "{}", words);
            }
        }

        #[test]
        fn any_text_is_a_machine_or_an_error_and_never_a_panic(text in "[a-z:0-9GMiB/s, ]{0,40}|\\PC{0,20}") {
            if let Ok(machine) = Machine::synthetic(&text) {
                prop_assert!(!machine.cpus.is_empty());
            }
        }
    }
}
