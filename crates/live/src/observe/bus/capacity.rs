//! The measured bandwidth of the memory bus, kept across runs of the program and reboots.
//!
//! A result is found by what determines it: the processors' model, the numbers of CPUs and nodes, and the
//! memory. Memory is rounded up to GiB, since the part that the kernel keeps for itself differs from boot to
//! boot. Each such machine has a JSON file below [`FOLDER`], which may be removed at any time.

use std::path::{Path, PathBuf};

use commonhold_machine::{CpuSet, Machine};
use serde::{Deserialize, Serialize};

use crate::observe::files::{Tree, plain};

/// The folder with the results.
pub const FOLDER: &str = "/var/lib/commonhold/bus";

/// Bandwidth of the memory bus. Only lines that caches fetch count; lines that they write back do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Bytes per second of one CPU, while all others are idle.
    pub one_bytes_per_s: u64,
    /// Bytes per second of all CPUs together.
    pub all_bytes_per_s: u64,
    /// The number of CPUs that were measured.
    pub cpus: u32,
    /// The percentage of the CPUs' time that other programs used during the measurement. The larger this
    /// percentage, the more the true bandwidth may exceed the measured one.
    pub others_percent: u64,
}

/// Identifies a machine across reboots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The processors' model, as the kernel names it.
    pub model: String,
    /// CPUs that are present, used or not.
    pub cpus: u32,
    /// Nodes that have memory.
    pub nodes: u32,
    /// Their memory, in GiB.
    pub memory_gib: u64,
}

impl Identity {
    /// The identity of a machine.
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

    /// The file with the result of this machine's measurement.
    pub(crate) fn path(&self) -> PathBuf {
        let Identity { model, cpus, nodes, memory_gib } = self;
        Path::new(FOLDER).join(format!("{}_{cpus}_{nodes}_{memory_gib}.json", plain(model)))
    }
}

/// The model of the first processor in /proc/cpuinfo. On Arm, the kernel shows numbers instead of a name.
fn model(cpuinfo: &str) -> String {
    let numbers = || {
        let found = ["CPU implementer", "CPU part", "CPU variant"].map(|name| value(cpuinfo, name));
        found.into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    value(cpuinfo, "model name").map_or_else(numbers, str::to_owned)
}

/// The value of the first line `NAME : VALUE` with this name in /proc/cpuinfo; `None` if there is no such
/// line, or if the value is empty.
fn value<'t>(cpuinfo: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find(|(key, _)| key.trim() == name)?.1.trim();
    (!value.is_empty()).then_some(value)
}

/// The measured bandwidth of a machine's bus; `None` if it was not measured.
pub(crate) fn known(tree: &Tree, machine: &Machine) -> Option<Capacity> {
    let text = tree.kept(Identity::read(tree, machine).path())?;
    let capacity: Capacity = serde_json::from_str(&text).ok()?;
    // With a bandwidth of 0, only one job at a time would run.
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
    fn a_measurement_is_found_by_the_machines_identity() {
        let kept = "/var/lib/commonhold/bus/Some_CPU___2_GHz_8_2_1.json";
        let dir = fake::tree(&[
            ("/proc/cpuinfo", "processor\t: 0\nmodel\t\t: 7\nmodel name\t: Some CPU @ 2 GHz\n"),
            ("/sys/devices/system/cpu/present", "0-7\n"),
            (kept, KEPT),
        ]);
        let tree = Tree::new(dir.path());
        // The same machine, of whose CPUs half may be used.
        let machine = Machine::synthetic("nodes:2 cpus:2 memory:500MiB").unwrap();
        assert_eq!(known(&tree, &machine).unwrap().all_bytes_per_s, 40_000_000_000);
        let larger = Machine::synthetic("nodes:2 cpus:2 memory:1500MiB").unwrap();
        assert_eq!(known(&tree, &larger), None, "more memory: other modules");
        assert_eq!(known(&tree, &Machine::synthetic("cpus:4 memory:1000MiB").unwrap()), None, "one node");
        fake::add(&dir, &[(kept, &KEPT.replace("40000000000", "0"))]);
        assert_eq!(known(&tree, &machine), None, "a bandwidth of 0 was not measured");
        fake::add(&dir, &[(kept, "{")]);
        assert_eq!(known(&tree, &machine), None);
    }

    #[test]
    fn processors_without_a_model_name_are_identified_by_numbers() {
        assert_eq!(
            model("processor : 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n"),
            "0x41 0xd0c 0x3"
        );
        assert_eq!(model("model name :\n"), "");
    }
}
