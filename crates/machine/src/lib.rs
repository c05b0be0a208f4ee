//! The machine: the hardware facts on which the policies base their decisions.
//!
//! The facts come from one of three sources:
//! - Linux, read by the live crate;
//! - a TOML file, such as a captured fixture, whose keys are the fields of [`Machine`]
//!   ([`Machine::from_toml`]);
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

use std::collections::{BTreeMap, BTreeSet};

/// One logical CPU.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// The kernel's number of the CPU. Numbers need not be contiguous.
    pub id: u32,
    /// The number of the CPU's NUMA node.
    pub node: u32,
    /// The number of the CPU's last-level cache. CPUs with the same number share the cache.
    pub cache: u32,
    /// The number of the CPU's physical core. CPUs with the same number are hardware threads of one core.
    pub core: u32,
    /// The number of the CPU's socket. A machine file may leave it out: then each node is a socket.
    #[serde(default = "file::socket_unset")]
    pub socket: u32,
    /// Whether the CPU is isolated: by `isolcpus`, `nohz_full`, or an isolated partition of cpusets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub isolated: bool,
    /// The CPU's compute capacity, relative to that of the machine's fastest CPU, which has [`CAPACITY_MAX`].
    #[serde(default = "file::full_capacity", skip_serializing_if = "file::is_full_capacity")]
    pub capacity: u32,
}

/// The capacity of a machine's fastest CPU: the kernel's `SCHED_CAPACITY_SCALE`.
pub const CAPACITY_MAX: u32 = 1024;

/// One last-level cache.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// The cache's number, as in [`Cpu::cache`].
    pub id: u32,
    /// The cache's size in bytes.
    pub bytes: u64,
}

/// One NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The kernel's number of the node.
    pub id: u32,
    /// The node's memory, in bytes.
    pub memory_bytes: u64,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The kernel's name of the disk: `sda`.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The disk's bandwidth, in bytes per second; `None` if unknown.
    pub bytes_per_s: Option<u64>,
}

/// The facts about a machine. Only the CPUs that this process may use are listed.
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
    /// The bandwidth of the memory bus, in bytes per second, if known.
    #[serde(default)]
    pub bus_bytes_per_s: Option<u64>,
    /// Last-level caches with a known size, by ascending number.
    #[serde(default)]
    pub caches: Vec<Cache>,
}

impl Machine {
    /// All usable CPUs.
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// The isolated CPUs.
    pub fn isolated(&self) -> CpuSet {
        self.cpus.iter().filter(|cpu| cpu.isolated).map(|cpu| cpu.id).collect()
    }

    /// The part of the machine that a contract divides. Isolated CPUs are left out, since they are meant for
    /// processes that were put there on purpose. They are included if `isolated` is set, or if there are no
    /// other usable CPUs.
    #[must_use]
    pub fn divided(&self, isolated: bool) -> Machine {
        if !isolated && self.cpus.iter().any(|cpu| !cpu.isolated) {
            return self.with_cpus(&self.cpu_set().difference(&self.isolated()));
        }
        self.clone()
    }

    /// The machine with these of its CPUs only, such as those that are online. All nodes keep their memory.
    #[must_use]
    pub fn with_cpus(&self, cpus: &CpuSet) -> Machine {
        let mut machine = self.clone();
        machine.cpus.retain(|cpu| cpus.contains(cpu.id));
        machine.caches.retain(|cache| machine.cpus.iter().any(|cpu| cpu.cache == cache.id));
        machine
    }

    /// The CPUs by capacity, the largest capacity first. One entry means that all CPUs are equal.
    pub fn by_capacity(&self) -> Vec<(u32, CpuSet)> {
        let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in &self.cpus {
            groups.entry(cpu.capacity).or_default().insert(cpu.id);
        }
        groups.into_iter().rev().collect()
    }

    /// A warning if CPUs differ in capacity; `None` if they are equal.
    pub fn unequal_capacity(&self) -> Option<String> {
        let groups = self.by_capacity();
        let (_, others) = groups.split_first().filter(|(_, others)| !others.is_empty())?;
        let percent = |capacity: u32| (capacity * 100).div_ceil(CAPACITY_MAX);
        let describe = |(capacity, cpus): &(u32, CpuSet)| {
            format!("CPUs {cpus} have {} % of the largest CPU's capacity", percent(*capacity))
        };
        let slower: Vec<String> = others.iter().map(describe).collect();
        Some(format!("{}; a unit's part of CPU is counted in CPUs, whichever these are", slower.join(", ")))
    }

    /// Memory of all nodes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory_bytes).sum()
    }

    /// The CPU with this number.
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok().map(|i| &self.cpus[i])
    }

    /// The total size of all last-level caches, in bytes; `None` if the size of any of them is unknown.
    pub fn cache_bytes(&self) -> Option<u64> {
        let used: BTreeSet<u32> = self.cpus.iter().map(|cpu| cpu.cache).collect();
        used.into_iter().map(|id| self.cache(id)).sum()
    }

    /// The size of a last-level cache, in bytes; `None` if unknown.
    pub fn cache(&self, id: u32) -> Option<u64> {
        let index = self.caches.binary_search_by_key(&id, |cache| cache.id).ok()?;
        Some(self.caches[index].bytes)
    }

    /// The number of physical cores.
    pub fn cores(&self) -> usize {
        self.distinct(|cpu| cpu.core)
    }

    /// The distance between two CPUs: 0 for a CPU and itself, 1 if the CPUs share a core, 2 if they share
    /// only a cache, 3 if only a node, and 4 otherwise.
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

    /// The number of different values of `group` among the CPUs.
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
    fn isolated_cpus_are_divided_only_on_request_or_if_alone() {
        let mut machine = Machine::synthetic("nodes:2 cpus:2 cache:8MiB").unwrap();
        assert_eq!(machine.divided(false), machine);
        for cpu in &mut machine.cpus[2..] {
            cpu.isolated = true;
        }
        assert_eq!(machine.isolated().to_string(), "2-3");
        let divided = machine.divided(false);
        assert_eq!((divided.cpu_set().to_string().as_str(), divided.caches.len()), ("0-1", 1));
        assert_eq!(Machine::from_toml(&divided.to_toml()), Ok(divided));
        assert_eq!(machine.divided(true), machine);
        machine.cpus.drain(..2);
        assert_eq!(machine.divided(false).cpu_set().to_string(), "2-3");
    }

    #[test]
    fn cpus_of_unequal_capacity_are_named() {
        let mut machine = Machine::synthetic("cpus:4").unwrap();
        assert_eq!(machine.unequal_capacity(), None);
        machine.cpus[1].capacity = 446;
        machine.cpus[2].capacity = 446;
        let said = machine.unequal_capacity().unwrap();
        assert!(said.starts_with("CPUs 1-2 have 44 % of the largest CPU's capacity; "), "{said}");
        assert_eq!(machine.by_capacity().len(), 2);
        assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine));
    }

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
