//! The machine: what a shared machine has, as facts that policies decide on.
//!
//! A machine comes from one of three places:
//! - Linux, read by the live crate;
//! - a captured fixture: TOML, of which [`Machine`] is the format;
//! - words such as `nodes:4 cpus:2 memory:512MiB` ([`Machine::synthetic`]).

pub mod capability;
mod cpuset;
mod file;
pub mod pools;
mod quantity;
mod synthetic;

pub(crate) use cpuset::MAX_CPUS;
pub use cpuset::{CpuListError, CpuSet};
pub use file::MachineFileError;
pub use synthetic::SyntheticError;

use std::collections::BTreeSet;

/// One logical CPU.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// The kernel's number for it. Need not be contiguous.
    pub id: u32,
    /// The NUMA node it belongs to.
    pub node: u32,
    /// The last-level cache it shares: CPUs with the same number share one.
    pub cache: u32,
    /// The physical core: CPUs with the same number are hardware threads of one core.
    pub core: u32,
    /// The socket that it sits in. Where a file does not say, each node is one.
    #[serde(default = "file::unsaid")]
    pub socket: u32,
}

/// One last-level cache.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Its number, as CPUs have it.
    pub id: u32,
    /// Its size in bytes.
    pub bytes: u64,
}

/// One NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The kernel's number for it.
    pub id: u32,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The kernel's name for it: `sda`.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it can transfer, in bytes per second, where that is known.
    pub bytes_per_s: Option<u64>,
}

/// A machine's facts. CPUs and nodes are sorted by number; only CPUs that may be used are listed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    /// Usable logical CPUs, by ascending number. Never empty.
    pub cpus: Vec<Cpu>,
    /// NUMA nodes, by ascending number.
    pub nodes: Vec<Node>,
    /// Swap space, in bytes.
    #[serde(default)]
    pub swap_bytes: u64,
    /// Whole disks.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// What the memory bus carries, in bytes per second, where that is known.
    #[serde(default)]
    pub bus_bytes_per_s: Option<u64>,
    /// Last-level caches of which the size is known, by ascending number.
    #[serde(default)]
    pub caches: Vec<Cache>,
}

impl Machine {
    /// All usable CPUs.
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// Memory of all nodes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory_bytes).sum()
    }

    /// The CPU with that number.
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok().map(|i| &self.cpus[i])
    }

    /// What the last-level caches of all CPUs hold together, in bytes; `None` where the size of one is not known.
    pub fn cache_bytes(&self) -> Option<u64> {
        let used: BTreeSet<u32> = self.cpus.iter().map(|cpu| cpu.cache).collect();
        used.into_iter().map(|id| self.cache(id)).sum()
    }

    /// The size of a last-level cache, in bytes, where it is known.
    pub fn cache(&self, id: u32) -> Option<u64> {
        let found = self.caches.binary_search_by_key(&id, |cache| cache.id).ok()?;
        Some(self.caches[found].bytes)
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.distinct(|cpu| cpu.core)
    }

    /// How far two CPUs are apart: 0 the same, 1 one core, 2 one cache, 3 one node, 4 across nodes.
    pub fn distance(&self, a: u32, b: u32) -> u32 {
        if a == b {
            return 0;
        }
        let (Some(a), Some(b)) = (self.cpu(a), self.cpu(b)) else { return 4 };
        if a.core == b.core {
            1
        } else if a.cache == b.cache {
            2
        } else if a.node == b.node {
            3
        } else {
            4
        }
    }

    /// The machine in a few words: `8 CPUs (4 cores), 4 nodes, 4 caches, 2 GiB memory, no swap, 1 disk`.
    pub fn summary(&self) -> String {
        let (cpus, caches) = (self.cpus.len(), self.distinct(|cpu| cpu.cache));
        let cores = match self.cores() {
            cores if cores == cpus => String::new(),
            cores => format!(" ({})", count(cores, "core")),
        };
        let swap = match self.swap_bytes {
            0 => "no swap".to_owned(),
            bytes => format!("{} swap", quantity::show_bytes(bytes)),
        };
        [
            count(cpus, "CPU") + &cores,
            count(self.nodes.len(), "node"),
            count(caches, "cache"),
            format!("{} memory", quantity::show_bytes(self.memory_bytes())),
            swap,
            if self.disks.is_empty() { "no disks".to_owned() } else { count(self.disks.len(), "disk") },
        ]
        .join(", ")
    }

    fn distinct(&self, group: fn(&Cpu) -> u32) -> usize {
        self.cpus.iter().map(group).collect::<BTreeSet<u32>>().len()
    }
}

/// A number with its noun: `1 disk`, `2 disks`.
pub fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("{n} {noun}") } else { format!("{n} {noun}s") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_machine_in_a_few_words() {
        let summary = |text| Machine::synthetic(text).unwrap().summary();
        assert_eq!(summary(""), "1 CPU, 1 node, 1 cache, 1 GiB memory, no swap, no disks");
        assert_eq!(
            summary("nodes:4 cpus:2 threads:2 memory:512MiB swap:1GiB disks:1"),
            "8 CPUs (4 cores), 4 nodes, 4 caches, 2 GiB memory, 1 GiB swap, 1 disk"
        );
    }
}
