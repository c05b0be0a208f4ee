//! What was measured that the memory bus carries, kept between runs of the program and of the machine.
//!
//! A machine is known again by its processors' model, how many CPUs and nodes it has, and its memory in whole GiB: what a
//! kernel takes for itself differs from boot to boot. Each has a file of its own below [`FOLDER`], JSON, which may be removed
//! at any time.

use std::path::{Path, PathBuf};

use commonhold_machine::{CpuSet, Machine};
use serde::{Deserialize, Serialize};

use crate::observe::files::{Tree, plain};

/// Where results are kept.
pub const FOLDER: &str = "/var/lib/commonhold/bus";

/// What the bus carries, in bytes per second. What counts are the lines that caches fetch; those that they write back do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// For one CPU, all others idle.
    pub one_bytes_per_s: u64,
    /// For all CPUs together.
    pub all_bytes_per_s: u64,
    /// So many CPUs.
    pub cpus: u32,
    /// The part of the CPUs' time that others had meanwhile, in percent: the more, the more may it carry.
    pub others_percent: u64,
}

/// What a machine is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The processors' model, as the kernel tells it.
    pub model: String,
    /// CPUs that are there, used or not.
    pub cpus: u32,
    /// Nodes that have memory.
    pub nodes: u32,
    /// Their memory, in GiB.
    pub memory_gib: u64,
}

impl Identity {
    /// That of a machine.
    pub(crate) fn read(tree: &Tree, machine: &Machine) -> Identity {
        let present =
            tree.text("/sys/devices/system/cpu/present").and_then(|list| list.parse::<CpuSet>().ok());
        let cpus = present.map_or(machine.cpus.len(), |cpus| cpus.iter().count());
        let nodes = machine.nodes.iter().filter(|node| node.memory_bytes > 0).count();
        let bytes: u64 = machine.nodes.iter().map(|node| node.memory_bytes).sum();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Identity {
            model: model(&tree.text("/proc/cpuinfo").unwrap_or_default()),
            cpus: number(cpus),
            nodes: number(nodes),
            memory_gib: bytes.div_ceil(1 << 30),
        }
    }

    /// Where its result is kept.
    pub(crate) fn path(&self) -> PathBuf {
        let Identity { model, cpus, nodes, memory_gib } = self;
        Path::new(FOLDER).join(format!("{}_{cpus}_{nodes}_{memory_gib}.json", plain(model)))
    }
}

/// The processors' model. Arm's kernels tell numbers instead of a name; models may differ, and the first counts.
fn model(cpuinfo: &str) -> String {
    let by_number = || {
        let all = ["CPU implementer", "CPU part", "CPU variant"].map(|name| value(cpuinfo, name));
        all.into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    value(cpuinfo, "model name").map_or_else(by_number, str::to_owned)
}

/// The first that /proc/cpuinfo says by this name.
fn value<'t>(cpuinfo: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == name)?.1.trim();
    (!found.is_empty()).then_some(found)
}

/// What a machine's bus carries, if it was measured.
pub(crate) fn known(tree: &Tree, machine: &Machine) -> Option<Capacity> {
    let text = tree.kept(Identity::read(tree, machine).path())?;
    let capacity: Capacity = serde_json::from_str(&text).ok()?;
    // A bus that carries nothing would let one job run at a time.
    (capacity.all_bytes_per_s > 0).then_some(capacity)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    const KEPT: &str =
        r#"{"one_bytes_per_s":12000000000,"all_bytes_per_s":40000000000,"cpus":8,"others_percent":0}"#;

    #[test]
    fn a_machine_is_known_by_what_it_is() {
        let kept = "/var/lib/commonhold/bus/Some_CPU___2_GHz_8_2_1.json";
        let dir = fake::tree(&[
            ("/proc/cpuinfo", "processor\t: 0\nmodel\t\t: 7\nmodel name\t: Some CPU @ 2 GHz\n"),
            ("/sys/devices/system/cpu/present", "0-7\n"),
            (kept, KEPT),
        ]);
        let tree = Tree::new(dir.path());
        // Half of its CPUs may be used: it is the same machine.
        let machine = Machine::synthetic("nodes:2 cpus:2 memory:500MiB").unwrap();
        assert_eq!(known(&tree, &machine).unwrap().all_bytes_per_s, 40_000_000_000);
        let larger = Machine::synthetic("nodes:2 cpus:2 memory:1500MiB").unwrap();
        assert_eq!(known(&tree, &larger), None, "more memory: other modules");
        assert_eq!(known(&tree, &Machine::synthetic("cpus:4 memory:1000MiB").unwrap()), None, "one node");
        fake::add(&dir, &[(kept, &KEPT.replace("40000000000", "0"))]);
        assert_eq!(known(&tree, &machine), None, "a bus that carries nothing was not measured");
        fake::add(&dir, &[(kept, "{")]);
        assert_eq!(known(&tree, &machine), None);
    }

    #[test]
    fn processors_without_a_name_have_numbers() {
        assert_eq!(
            model("processor : 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n"),
            "0x41 0xd0c 0x3"
        );
        assert_eq!(model("model name :\n"), "");
    }
}
