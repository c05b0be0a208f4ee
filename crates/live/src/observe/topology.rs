//! The machine's facts from /sys and /proc: CPUs, cores, caches, NUMA nodes, memory, swap, disks.
//!
//! | fact | read from | if missing |
//! | --- | --- | --- |
//! | CPUs | the affinity of the calling thread; /sys/devices/system/cpu/online is compared with it | an error |
//! | core | `cpuN/topology/thread_siblings_list` | each CPU is a separate core |
//! | isolated, capacity | see [`super::cpu_kinds`] | no CPU is isolated, and all are equal |
//! | socket | `cpuN/topology/physical_package_id` | each node is a socket |
//! | last-level cache | `cpuN/cache/indexI/shared_cpu_list` of the highest level | the CPUs of a node share one |
//! | size of that cache | `cpuN/cache/indexI/size` | unknown |
//! | node | /sys/devices/system/node/nodeN/cpulist | one node |
//! | memory | nodeN/meminfo; for one node /proc/meminfo | an error |
//! | swap | /proc/meminfo | none |
//! | disks | /sys/block | none |
//!
//! The affinity decides which CPUs exist: `sched_getaffinity(2)` returns only online CPUs, under the kernel's
//! own numbers. If files of /sys are replaced, as lxcfs does in a container, `online` may list other numbers.
//! Every call that confines a thread takes the kernel's numbers. So if both disagree, the affinity is used,
//! and the difference is reported ([`renumbered`]). A CPU without a folder in /sys counts as a separate core
//! in the first node.
//!
//! Cores and caches are numbered in the order of their first CPU, so that the facts of a machine are the same
//! at every start. Cores, caches, nodes and sockets must nest. So a cache that spans nodes (sub-NUMA
//! clusters) counts as one cache per node, each with an equal part of the bytes, and a node that spans
//! sockets (NUMA disabled) counts as one socket. A CPU that goes offline between two reads is left out.
//!
//! A disk is a device at the bottom of its stack. `disk::not_a_disk` excludes layers on other devices, areas
//! and paths of a disk that is itself listed, devices backed by memory or files, and devices of other
//! machines. An exception: arrays whose own threads write to their drives are disks, and replace drives that
//! have no other use (`disk::arrays`).
//!
//! The throughput of a disk (`disk::model`) and of the memory bus (`bus::capacity`) is known only if it was
//! measured.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use commonhold_machine::{CAPACITY_MAX, Cache, Cpu, CpuSet, Machine, Node};

use super::bus::{Cache as LastCache, capacity, last_cache};
use super::cpu_kinds::{Isolation, capacities};
use super::disk;
use super::files::Tree;
use crate::LiveError;
use crate::host::affinity;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// The number of times that the affinity and the file are read before a difference between the two is
/// believed. A CPU that goes offline or comes online between the two reads causes a difference that the next
/// attempt no longer sees.
const TRIES: u32 = 3;

/// The machine as the calling thread may use it. `root` is `/`, or a folder that imitates it.
pub fn read(root: &Path) -> Result<Machine, LiveError> {
    let tree = Tree::new(root);
    read_usable(&tree, &usable(&tree, own_affinity)?)
}

/// The CPUs that the calling thread may use.
fn own_affinity() -> Result<CpuSet, LiveError> {
    affinity::get(0).map_err(|source| LiveError::Process {
        pid: std::process::id(),
        name: "commonhold".to_owned(),
        what: "read its own CPU affinity".to_owned(),
        source,
        remedy: "; allow sched_getaffinity in the sandbox's system call filter".to_owned(),
    })
}

/// A disagreement between the calling thread's affinity and /sys/devices/system/cpu/online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renumbered {
    /// The CPUs that the calling thread may use, by the kernel's numbers. These numbers are used.
    pub affinity: CpuSet,
    /// The CPUs that the file lists.
    pub listed: CpuSet,
}

impl fmt::Display for Renumbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Renumbered { affinity, listed } = self;
        write!(
            f,
            "this process may use CPUs {affinity}, but {CPUS}/online lists {listed}, as in a container where lxcfs replaces that \
             file: the affinity decides, so the machine's CPUs are taken to be {affinity}"
        )
    }
}

/// The disagreement if the calling thread may use CPUs that /sys does not list. `None` if /sys lists all of
/// them, or if affinity or list cannot be read, which [`read`] reports.
pub fn renumbered(root: &Path) -> Option<Renumbered> {
    renumbered_in(&Tree::new(root))
}

pub(crate) fn renumbered_in(tree: &Tree) -> Option<Renumbered> {
    usable(tree, own_affinity).ok()?.renumbered()
}

/// The CPUs that a thread may use, and the CPUs that the kernel's file lists as online.
struct Usable {
    affinity: CpuSet,
    listed: CpuSet,
}

impl Usable {
    fn renumbered(self) -> Option<Renumbered> {
        let Usable { affinity, listed } = self;
        (!affinity.difference(&listed).is_empty()).then_some(Renumbered { affinity, listed })
    }
}

/// Reads the affinity and the file. While the two differ, reads them again, up to [`TRIES`] times.
fn usable(tree: &Tree, affinity: impl Fn() -> Result<CpuSet, LiveError>) -> Result<Usable, LiveError> {
    let sample = || affinity().and_then(|affinity| Ok(Usable { affinity, listed: online_in(tree)? }));
    let mut usable = sample()?;
    for _ in 1..TRIES {
        if usable.affinity.difference(&usable.listed).is_empty() {
            break;
        }
        usable = sample()?;
    }
    Ok(usable)
}

/// The CPUs that are online, from one small file: a change means that the machine must be read again.
pub fn online(root: &Path) -> Result<CpuSet, LiveError> {
    online_in(&Tree::new(root))
}

/// The numbers of the nodes that are online; only 0 if the kernel has no NUMA support.
pub(crate) fn node_numbers() -> Vec<u32> {
    let online = cpu_list(&Tree::new(Path::new("/")), &format!("{NODES}/online"));
    online.ok().flatten().map_or_else(|| vec![0], |nodes| nodes.iter().collect())
}

/// All CPU numbers that may come into use before the next boot, including CPUs that are offline or can be
/// hot-plugged.
pub fn possible(root: &Path) -> Result<CpuSet, LiveError> {
    let path = format!("{CPUS}/possible");
    let tree = Tree::new(root);
    parse_list(&tree, &path, &tree.required(&path)?)
}

/// Reads the facts of a machine of whose CPUs these are usable.
fn read_usable(tree: &Tree, usable: &Usable) -> Result<Machine, LiveError> {
    let nodes = NodeFacts::read(tree)?;
    let mut cpus = read_cpus(tree, usable, &nodes)?;
    mark_kinds(tree, &mut cpus);
    let is_used = |node: &Node| node.memory_bytes > 0 || cpus.iter().any(|cpu| cpu.node == node.id);
    let mut machine = Machine {
        nodes: nodes.nodes.into_iter().filter(is_used).collect(),
        swap_bytes: meminfo(tree, "/proc/meminfo", "SwapTotal:")?.unwrap_or(0),
        disks: disk::list(tree)?,
        bus_bytes_per_s: None,
        caches: cache_sizes(tree, &cpus),
        cpus,
    };
    machine.bus_bytes_per_s = capacity::known(tree, &machine).map(|capacity| capacity.all_bytes_per_s);
    Ok(machine)
}

/// The isolated CPUs of the whole machine, and what isolates them.
pub fn isolation(root: &Path) -> Isolation {
    Isolation::read(&Tree::new(root))
}

/// Sets which CPUs are isolated, and the capacity of each.
fn mark_kinds(tree: &Tree, cpus: &mut [Cpu]) {
    let isolated = Isolation::read(tree).all();
    let ids: Vec<u32> = cpus.iter().map(|cpu| cpu.id).collect();
    let capacities = capacities(tree, &ids);
    for cpu in cpus {
        cpu.isolated = isolated.contains(cpu.id);
        cpu.capacity = capacities.get(&cpu.id).copied().unwrap_or(CAPACITY_MAX);
    }
}

/// The machine's nodes, and the CPUs of each node by the node's number.
struct NodeFacts {
    nodes: Vec<Node>,
    cpus: Vec<(u32, CpuSet)>,
}

impl NodeFacts {
    fn read(tree: &Tree) -> Result<NodeFacts, LiveError> {
        let mut facts = NodeFacts { nodes: Vec::new(), cpus: Vec::new() };
        let Some(online) = cpu_list(tree, &format!("{NODES}/online"))? else {
            return Ok(NodeFacts::single(total_memory(tree)?));
        };
        for id in online.iter() {
            let Some(cpus) = cpu_list(tree, &format!("{NODES}/node{id}/cpulist"))? else { continue };
            let memory = meminfo(tree, &format!("{NODES}/node{id}/meminfo"), "MemTotal:")?;
            facts.nodes.push(Node { id, memory_bytes: memory.unwrap_or(0) });
            facts.cpus.push((id, cpus));
        }
        facts.prefer_total(tree)?;
        Ok(facts)
    }

    /// Gives the machine's total memory to the node if there is only one, or to the first if no node shows
    /// any. In a virtual machine whose memory is hot-plugged step by step, a node shows only the memory that
    /// was plugged in so far.
    fn prefer_total(&mut self, tree: &Tree) -> Result<(), LiveError> {
        let with_memory = self.nodes.iter().filter(|node| node.memory_bytes > 0).count();
        match self.nodes.as_mut_slice() {
            [] => *self = NodeFacts::single(total_memory(tree)?),
            [node] => node.memory_bytes = total_memory(tree)?,
            [first, ..] if with_memory == 0 => first.memory_bytes = total_memory(tree)?,
            _ => {}
        }
        Ok(())
    }

    /// The facts of a machine that counts as one node, with this memory.
    fn single(memory_bytes: u64) -> NodeFacts {
        NodeFacts { nodes: vec![Node { id: 0, memory_bytes }], cpus: Vec::new() }
    }

    /// The node of a CPU. A CPU that no node lists, since it came online meanwhile, counts in the first node.
    fn node_of(&self, cpu: u32) -> u32 {
        let listed = self.cpus.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(id, _)| *id);
        listed.or(self.nodes.first().map(|node| node.id)).unwrap_or(0)
    }
}

fn online_in(tree: &Tree) -> Result<CpuSet, LiveError> {
    let path = format!("{CPUS}/online");
    parse_list(tree, &path, &tree.required(&path)?)
}

/// The CPUs of the affinity, each with its node, socket, last-level cache and core.
fn read_cpus(tree: &Tree, usable: &Usable, nodes: &NodeFacts) -> Result<Vec<Cpu>, LiveError> {
    let Usable { affinity, listed } = usable;
    let (mut cores, mut caches) = (Numbering::default(), Numbering::default());
    let mut sockets = BTreeMap::new();
    let mut cpus = Vec::new();
    // A CPU that is listed and has no folder went offline meanwhile.
    let is_online = |id: &u32| !listed.contains(*id) || tree.exists(format!("{CPUS}/cpu{id}"));
    for id in affinity.iter().filter(is_online) {
        let node = nodes.node_of(id);
        // A cache is identified within its node, and a core within its cache, so that they nest.
        let cache = cache_group(tree, id)?.map_or(Group::Node(node), |first| Group::Cpus(node, first));
        let siblings = cpu_list(tree, &format!("{CPUS}/cpu{id}/topology/thread_siblings_list"))?;
        let first_sibling = siblings.and_then(|cpus| cpus.iter().next()).unwrap_or(id);
        let cache_number = caches.number(cache);
        let core = cores.number(Group::Cpus(cache_number, first_sibling));
        let socket = match sockets.get(&node) {
            Some(socket) => *socket,
            None => *sockets.entry(node).or_insert(socket_of(tree, id)?.unwrap_or(node)),
        };
        let (isolated, capacity) = (false, CAPACITY_MAX);
        cpus.push(Cpu { id, node, cache: cache_number, core, socket, isolated, capacity });
    }
    if cpus.is_empty() {
        return Err(LiveError::Unavailable {
            what: format!("the CPUs that this process may use ({affinity}) went offline"),
            remedy: "widen its affinity with `taskset -cp LIST PID`, or the cpuset of its cgroup".to_owned(),
        });
    }
    Ok(cpus)
}

/// The kernel's number of a CPU's socket; `None` if unknown.
fn socket_of(tree: &Tree, cpu: u32) -> Result<Option<u32>, LiveError> {
    let path = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
    let Some(text) = tree.optional(&path)? else { return Ok(None) };
    let number = text.parse::<i64>().map_err(|_| tree.malformed(&path, "a number", &text))?;
    Ok(u32::try_from(number).ok()) // -1 means unknown.
}

/// Identifies a core or cache by the CPUs that share it, before it gets a number.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Shared by all CPUs of the node with this number.
    Node(u32),
    /// The number of the enclosing node or cache, and the lowest of the CPUs that share the cache or core.
    Cpus(u32, u32),
}

/// Numbers groups in the order of their first lookup.
#[derive(Default)]
struct Numbering(BTreeMap<Group, u32>);

impl Numbering {
    fn number(&mut self, group: Group) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        *self.0.entry(group).or_insert(next)
    }
}

/// The sizes of these CPUs' last-level caches. The size of a cache that counts as several is divided evenly
/// among these.
fn cache_sizes(tree: &Tree, cpus: &[Cpu]) -> Vec<Cache> {
    let mut by_number: BTreeMap<u32, Option<LastCache>> = BTreeMap::new();
    for cpu in cpus {
        by_number.entry(cpu.cache).or_insert_with(|| last_cache(tree, cpu.id));
    }
    let parts_of = |cache: &LastCache| {
        by_number.values().flatten().filter(|other| other.first_cpu == cache.first_cpu).count()
    };
    let known = by_number.iter().filter_map(|(id, cache)| Some((*id, (*cache)?)));
    known.map(|(id, cache)| Cache { id, bytes: cache.bytes / parts_of(&cache).max(1) as u64 }).collect()
}

/// The lowest CPU that shares a CPU's last-level cache; `None` if the kernel does not describe caches.
fn cache_group(tree: &Tree, cpu: u32) -> Result<Option<u32>, LiveError> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let mut last_level: Option<(u32, u32)> = None;
    for index in tree.names(&folder).iter().filter(|name| name.starts_with("index")) {
        let level_file = format!("{folder}/{index}/level");
        let Some(level) = tree.optional(&level_file)? else { continue };
        let level = level.parse().map_err(|_| tree.malformed(&level_file, "a cache level", &level))?;
        let shared = cpu_list(tree, &format!("{folder}/{index}/shared_cpu_list"))?;
        let first = shared.and_then(|cpus| cpus.iter().next());
        last_level = last_level.max(first.map(|first| (level, first)));
    }
    Ok(last_level.map(|(_, first)| first))
}

fn total_memory(tree: &Tree) -> Result<u64, LiveError> {
    let total = meminfo(tree, "/proc/meminfo", "MemTotal:")?.filter(|bytes| *bytes > 0);
    let text = tree.required("/proc/meminfo")?;
    total.ok_or_else(|| tree.malformed("/proc/meminfo", "a table with MemTotal", &text))
}

/// The value of a row of a meminfo table (`MemTotal:   24684084 kB`, in a node's table after `Node 0`), in bytes; `None` if the
/// file or the row does not exist.
pub(crate) fn meminfo(tree: &Tree, path: &str, row: &str) -> Result<Option<u64>, LiveError> {
    let Some(text) = tree.optional(path)? else { return Ok(None) };
    let Some(line) = text.lines().find(|line| line.split_whitespace().any(|word| word == row)) else {
        return Ok(None);
    };
    let kib = line.split_whitespace().skip_while(|word| *word != row).nth(1);
    let bytes = kib.and_then(|kib| kib.parse::<u64>().ok()).and_then(|kib| kib.checked_mul(1024));
    bytes.map(Some).ok_or_else(|| tree.malformed(path, &format!("a {row} row in kB"), line))
}

/// The list of CPUs or nodes in a file; `None` if the file does not exist.
fn cpu_list(tree: &Tree, path: &str) -> Result<Option<CpuSet>, LiveError> {
    tree.optional(path)?.map(|text| parse_list(tree, path, &text)).transpose()
}

fn parse_list(tree: &Tree, path: &str, text: &str) -> Result<CpuSet, LiveError> {
    text.parse().map_err(|_| tree.malformed(path, "a list of numbers such as `0-3,8`", text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::files::fake;
    use super::*;

    const ALL: &str = "0-7";

    fn usable_fake(dir: &tempfile::TempDir, affinity: &str) -> Result<Usable, LiveError> {
        usable(&Tree::new(dir.path()), || Ok(affinity.parse().unwrap()))
    }

    fn read_fake(dir: &tempfile::TempDir, affinity: &str) -> Result<Machine, String> {
        let usable = usable_fake(dir, affinity);
        let machine = usable.and_then(|usable| read_usable(&Tree::new(dir.path()), &usable));
        machine.map_err(|error| error.to_string())
    }

    /// Two nodes, two cores of two threads in each (siblings numbered far apart, as on x86), one L3 per node.
    fn two_nodes() -> tempfile::TempDir {
        let dir = fake::tree(&[
            ("/proc/meminfo", "MemTotal: 3072 kB\nMemFree: 9 kB\nSwapTotal:  1024 kB\n"),
            ("/sys/devices/system/cpu/online", "0-7\n"),
            ("/sys/devices/system/node/online", "0-1\n"),
            ("/sys/devices/system/node/node0/cpulist", "0-1,4-5\n"),
            ("/sys/devices/system/node/node1/cpulist", "2-3,6-7\n"),
            ("/sys/devices/system/node/node0/meminfo", "\nNode 0 MemTotal:  2048 kB\nNode 0 MemFree: 1 kB\n"),
            ("/sys/devices/system/node/node1/meminfo", "\nNode 1 MemTotal:  1024 kB\n"),
            ("/sys/block/sda/size", "2000\n"),
            ("/sys/block/md0/size", "2000\n"),
            ("/sys/block/md0/md/level", "raid1\n"),
            ("/sys/block/dm-0/size", "2000\n"),
            ("/sys/block/loop0/size", "2000\n"),
            ("/sys/block/zram0/size", "2000\n"),
            ("/sys/block/sr0/size", "2000\n"),
            ("/sys/block/sdb/size", "0\n"),
            ("/sys/block/nvme0c0n1/size", "2000\n"),
            ("/sys/block/nvme0c0n1/hidden", "1\n"),
            ("/sys/block/nvme0n1/size", "4000\n"),
            ("/sys/block/nvme0n1/hidden", "0\n"),
        ]);
        for cpu in 0..8 {
            let core = cpu % 4;
            let shared = if core < 2 { "0-1,4-5" } else { "2-3,6-7" };
            let file = |name: &str| format!("/sys/devices/system/cpu/cpu{cpu}/{name}");
            fake::add(
                &dir,
                &[
                    (&file("topology/thread_siblings_list"), &format!("{core},{}\n", core + 4)),
                    (&file("cache/index0/level"), "1\n"),
                    (&file("cache/index0/shared_cpu_list"), &format!("{core},{}\n", core + 4)),
                    (&file("cache/index3/level"), "3\n"),
                    (&file("cache/index3/shared_cpu_list"), &format!("{shared}\n")),
                    (&file("cache/index3/size"), if core < 2 { "8192K\n" } else { "32M\n" }),
                ],
            );
        }
        dir
    }

    fn column(machine: &Machine, field: fn(&Cpu) -> u32) -> Vec<u32> {
        machine.cpus.iter().map(field).collect()
    }

    #[test]
    fn cores_caches_nodes_memory_and_disks_are_read() {
        let dir = two_nodes();
        let machine = read_fake(&dir, ALL).unwrap();
        assert_eq!(column(&machine, |cpu| cpu.id), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(column(&machine, |cpu| cpu.node), [0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(column(&machine, |cpu| cpu.cache), [0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(column(&machine, |cpu| cpu.core), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!((machine.cache(0), machine.cache(1)), (Some(8 << 20), Some(32 << 20)));
        assert_eq!(
            machine.nodes.iter().map(|node| node.memory_bytes).collect::<Vec<_>>(),
            [2 << 20, 1 << 20]
        );
        assert_eq!(machine.swap_bytes, 1 << 20);
        let disks: Vec<_> = machine.disks.iter().map(|disk| (disk.name.as_str(), disk.bytes)).collect();
        assert_eq!(disks, [("nvme0n1", 4000 * 512), ("sda", 2000 * 512)]);
        // Measurements of a disk are found by its identity.
        let way = r#"{"bytes_per_s":7000000,"sequential_per_s":2,"random_per_s":1,"latency_us":3}"#;
        let model = format!(r#"{{"read":{way},"write":{way}}}"#);
        fake::add(&dir, &[("/var/lib/commonhold/disks/__2048000.json", &model)]);
        let capacity = r#"{"one_bytes_per_s":5,"all_bytes_per_s":9,"cpus":8,"others_percent":0}"#;
        fake::add(&dir, &[("/var/lib/commonhold/bus/_8_2_1.json", capacity)]);
        let again = read_fake(&dir, ALL).unwrap();
        assert_eq!((machine.bus_bytes_per_s, again.bus_bytes_per_s), (None, Some(9)));
        let rates: Vec<_> = again.disks.iter().map(|disk| disk.bytes_per_s).collect();
        assert_eq!(rates, [Some(7_000_000), None]);
        assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine));
    }

    #[test]
    fn a_self_writing_array_is_a_disk_in_place_of_its_drives() {
        let dir = two_nodes();
        let array = [
            ("/sys/block/md_home/size", "4000\n"),
            ("/sys/block/md_home/md/level", "raid6\n"),
            ("/sys/block/sda/sda1/holders/md_home/x", ""),
            ("/sys/block/nvme0n1/holders/md0/x", ""),
        ];
        fake::add(&dir, &array);
        let names = |all: fn(&Tree) -> Vec<String>| all(&Tree::new(dir.path()));
        assert_eq!(names(disk::disk_names), ["md_home", "nvme0n1"]);
        assert_eq!(names(disk::all_disk_names), ["md_home", "nvme0n1", "sda"]);
    }

    #[test]
    fn only_cpus_that_may_be_used_are_listed() {
        let machine = read_fake(&two_nodes(), "3,6-7").unwrap();
        assert_eq!(column(&machine, |cpu| cpu.id), [3, 6, 7]);
        assert_eq!(column(&machine, |cpu| cpu.core), [0, 1, 0], "3 and 7 are threads of one core");
        assert_eq!(machine.nodes.len(), 2, "the other node's memory is still there");
        let dir = two_nodes();
        std::fs::remove_dir_all(dir.path().join("sys/devices/system/cpu/cpu5")).unwrap();
        let error = read_fake(&dir, "5").unwrap_err();
        assert!(error.starts_with("the CPUs that this process may use (5) went offline"), "{error}");
    }

    /// A container that may use CPUs 2 and 6, whose lxcfs counts from 0, with and without folders of the
    /// machine's CPUs.
    #[test]
    fn the_affinity_decides_if_files_number_cpus_differently() {
        let dir = two_nodes();
        fake::add(&dir, &[("/sys/devices/system/cpu/online", "0-1\n")]);
        let machine = read_fake(&dir, "2,6").unwrap();
        assert_eq!(column(&machine, |cpu| cpu.id), [2, 6]);
        assert_eq!(
            (column(&machine, |cpu| cpu.core), column(&machine, |cpu| cpu.node)),
            (vec![0, 0], vec![1, 1])
        );
        let message = usable_fake(&dir, "2,6").unwrap().renumbered().unwrap().to_string();
        assert!(
            message.contains("may use CPUs 2,6, but /sys/devices/system/cpu/online lists 0-1"),
            "{message}"
        );
        assert_eq!(
            usable_fake(&dir, "0").unwrap().renumbered(),
            None,
            "a smaller affinity is no disagreement"
        );
        for cpu in [2, 6] {
            std::fs::remove_dir_all(dir.path().join(format!("sys/devices/system/cpu/cpu{cpu}"))).unwrap();
        }
        let machine = read_fake(&dir, "2,6").unwrap();
        assert_eq!(
            (column(&machine, |cpu| cpu.id), column(&machine, |cpu| cpu.core)),
            (vec![2, 6], vec![0, 1])
        );
        assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine));
    }

    #[test]
    fn isolated_cpus_and_small_ones_are_marked() {
        let dir = two_nodes();
        fake::add(&dir, &[("/sys/devices/system/cpu/isolated", "2-3,9\n")]);
        for cpu in 0..8 {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
            fake::add(&dir, &[(&path, if cpu < 6 { "1024" } else { "512" })]);
        }
        let machine = read_fake(&dir, ALL).unwrap();
        assert_eq!(machine.isolated().to_string(), "2-3");
        assert_eq!(machine.divided(false).cpu_set().to_string(), "0-1,4-7");
        assert_eq!(column(&machine, |cpu| cpu.capacity), [1024, 1024, 1024, 1024, 1024, 1024, 512, 512]);
        assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine));
    }

    #[test]
    fn a_cpu_that_goes_offline_between_the_two_reads_is_no_disagreement() {
        let dir = two_nodes();
        fake::add(&dir, &[("/sys/devices/system/cpu/online", "0-6\n")]);
        let reads = std::cell::Cell::new(0);
        let affinity = || {
            reads.set(reads.get() + 1);
            Ok(if reads.get() == 1 { "0-7" } else { "0-6" }.parse().unwrap())
        };
        assert_eq!(usable(&Tree::new(dir.path()), affinity).unwrap().renumbered(), None);
        assert_eq!(reads.get(), 2);
    }

    #[test]
    fn a_machine_that_describes_little_is_one_node_with_one_cache() {
        let dir = fake::tree(&[
            ("/proc/meminfo", "MemTotal: 4 kB\n"),
            ("/sys/devices/system/cpu/online", "0,2\n"),
            ("/sys/devices/system/cpu/cpu0/uevent", ""),
            ("/sys/devices/system/cpu/cpu2/uevent", ""),
        ]);
        let machine = read_fake(&dir, "0,2").unwrap();
        assert_eq!(machine.summary(), "2 CPUs, 1 node, 1 cache, 4 KiB memory, no swap, no disks");
        assert_eq!(column(&machine, |cpu| cpu.core), [0, 1]);
    }

    #[test]
    fn the_cache_of_the_highest_level_counts() {
        let dir = two_nodes();
        for cpu in [0, 1, 4, 5] {
            let file = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list");
            fake::add(&dir, &[(&file, &format!("{},{}\n", cpu % 4, cpu % 4 + 4))]);
        }
        // Node 0 has a cache per core now, node 1 one for all; level 1 is per core everywhere.
        let machine = read_fake(&dir, ALL).unwrap();
        assert_eq!(machine.cache_bytes(), Some((8 + 8 + 32) << 20));
        assert_eq!(column(&machine, |cpu| cpu.cache), [0, 1, 2, 2, 0, 1, 2, 2]);
    }

    #[test]
    fn a_cache_that_spans_nodes_counts_once_per_node() {
        let dir = two_nodes();
        for cpu in 0..8 {
            let file = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list");
            fake::add(&dir, &[(&file, "0-7\n"), (&file.replace("shared_cpu_list", "size"), "12M\n")]);
        }
        let machine = read_fake(&dir, ALL).unwrap();
        assert_eq!((machine.cache(0), machine.cache_bytes()), (Some(6 << 20), Some(12 << 20)));
        assert_eq!(column(&machine, |cpu| cpu.cache), [0, 0, 1, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn cpus_disks_and_nodes_that_vanish_are_left_out() {
        let dir = two_nodes();
        std::fs::remove_dir_all(dir.path().join("sys/devices/system/cpu/cpu5")).unwrap();
        std::fs::remove_file(dir.path().join("sys/devices/system/cpu/cpu6/topology/thread_siblings_list"))
            .unwrap();
        std::fs::remove_file(dir.path().join("sys/block/sda/size")).unwrap();
        let machine = read_fake(&dir, ALL).unwrap();
        assert_eq!(column(&machine, |cpu| cpu.id), [0, 1, 2, 3, 4, 6, 7]);
        assert_eq!(machine.disks.len(), 1);
        std::fs::remove_dir_all(dir.path().join("sys/devices/system/node/node0")).unwrap();
        assert_eq!(read_fake(&dir, ALL).unwrap().nodes.len(), 1);
        std::fs::remove_file(dir.path().join("sys/devices/system/cpu/online")).unwrap();
        let error = read_fake(&dir, ALL).unwrap_err();
        assert!(
            error.contains("cpu/online: cannot read it") && error.contains("is /proc or /sys mounted?"),
            "{error}"
        );
    }

    #[test]
    fn malformed_files_are_named_with_their_text() {
        let fails = |file: &str, text: &str, expected: &str| {
            let dir = two_nodes();
            fake::add(&dir, &[(file, text)]);
            let error = read_fake(&dir, ALL).unwrap_err();
            assert!(error.contains(file) && error.contains(expected), "{error}");
        };
        fails("/sys/devices/system/cpu/online", "0-x", "`0-x` is not a list of numbers");
        fails("/sys/devices/system/node/node1/cpulist", "2-1", "`2-1` is not a list");
        fails(
            "/sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal: much kB",
            "is not a MemTotal: row in kB",
        );
        fails("/sys/devices/system/cpu/cpu3/cache/index3/level", "L3", "`L3` is not a cache level");
        fails("/sys/block/sda/size", "-1", "`-1` is not a number of sectors");
        fails("/sys/block/sda/size", "99999999999999999999", "is not a number of sectors");
    }

    #[test]
    fn this_machine_can_be_read_and_written_as_toml() {
        let machine = read(Path::new("/")).unwrap();
        assert_eq!(machine.cpu_set(), affinity::get(0).unwrap());
        assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine));
    }
}
