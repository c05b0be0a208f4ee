//! Machine files: the format of fixtures and of `--machine FILE`.
//!
//! The format is TOML, and its keys are the fields of [`Machine`]. A person may have written the file, so the
//! content is checked. There must be CPUs and memory, numbers must be unique, and every CPU must have a node.
//! The levels must nest: cores in caches, caches in nodes, and nodes in sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use crate::quantity::BYTES_MAX;
use crate::{CAPACITY_MAX, Cache, Cpu, Disk, MAX_CPUS, Machine, Node};

/// An invalid machine file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}{remedy}")]
pub struct MachineFileError {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters, from 1.
    pub column: usize,
    /// The problem.
    pub what: String,
    /// The remedy, which begins with `; `; empty if `what` includes it.
    pub remedy: String,
}

impl Machine {
    /// A machine from the text of a machine file. The file may list CPUs and nodes in any order.
    pub fn from_toml(text: &str) -> Result<Machine, MachineFileError> {
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let what = error.message().lines().collect::<Vec<_>>().join(", ");
            error_at(text, error.span().unwrap_or(0..0), what, "")
        })?;
        check(&raw).map_err(|wrong| error_at(text, wrong.span, wrong.what, wrong.remedy))?;
        Ok(raw.into_machine())
    }

    /// The machine as the text of a machine file, with one line per CPU, node and disk.
    /// [`Machine::from_toml`] is the inverse.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_toml(&mut text);
        text
    }

    fn write_toml(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "swap_bytes = {}", self.swap_bytes)?;
        if let Some(rate) = self.bus_bytes_per_s {
            writeln!(out, "bus_bytes_per_s = {rate}")?;
        }
        writeln!(out, "nodes = [")?;
        for Node { id, memory_bytes } in &self.nodes {
            writeln!(out, "  {{ id = {id}, memory_bytes = {memory_bytes} }},")?;
        }
        writeln!(out, "]\ncpus = [")?;
        for Cpu { id, node, cache, core, socket, isolated, capacity } in &self.cpus {
            write!(out, "  {{ id = {id}, node = {node}, cache = {cache}, core = {core}, socket = {socket}")?;
            if *isolated {
                write!(out, ", isolated = true")?;
            }
            if !is_full_capacity(capacity) {
                write!(out, ", capacity = {capacity}")?;
            }
            writeln!(out, " }},")?;
        }
        if !self.caches.is_empty() {
            writeln!(out, "]\ncaches = [")?;
        }
        for Cache { id, bytes } in &self.caches {
            writeln!(out, "  {{ id = {id}, bytes = {bytes} }},")?;
        }
        writeln!(out, "]\ndisks = [")?;
        for Disk { name, bytes, bytes_per_s } in &self.disks {
            let name = toml::Value::String(name.clone());
            let rate = bytes_per_s.map(|rate| format!(", bytes_per_s = {rate}")).unwrap_or_default();
            writeln!(out, "  {{ name = {name}, bytes = {bytes}{rate} }},")?;
        }
        writeln!(out, "]")
    }
}

/// The content of a machine file before it is checked, with the span of each part.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    cpus: Spanned<Vec<Spanned<Cpu>>>,
    nodes: Spanned<Vec<Spanned<Node>>>,
    #[serde(default)]
    swap_bytes: Option<Spanned<u64>>,
    #[serde(default)]
    disks: Vec<Spanned<Disk>>,
    #[serde(default)]
    bus_bytes_per_s: Option<Spanned<u64>>,
    #[serde(default)]
    caches: Vec<Spanned<Cache>>,
}

impl Raw {
    /// Converts the checked content to a machine. Sorts CPUs, nodes and caches by number, and fills in
    /// sockets that are left out.
    fn into_machine(self) -> Machine {
        let mut cpus: Vec<Cpu> = self.cpus.into_inner().into_iter().map(Spanned::into_inner).collect();
        let mut nodes: Vec<Node> = self.nodes.into_inner().into_iter().map(Spanned::into_inner).collect();
        cpus.sort_by_key(|cpu| cpu.id);
        for cpu in cpus.iter_mut().filter(|cpu| cpu.socket == socket_unset()) {
            cpu.socket = cpu.node;
        }
        nodes.sort_by_key(|node| node.id);
        let mut caches: Vec<Cache> = self.caches.into_iter().map(Spanned::into_inner).collect();
        caches.sort_by_key(|cache| cache.id);
        Machine {
            cpus,
            nodes,
            swap_bytes: self.swap_bytes.map_or(0, Spanned::into_inner),
            disks: self.disks.into_iter().map(Spanned::into_inner).collect(),
            bus_bytes_per_s: self.bus_bytes_per_s.map(Spanned::into_inner),
            caches,
        }
    }
}

/// The value of a CPU's socket if the file leaves it out. `into_machine` replaces it.
pub(crate) const fn socket_unset() -> u32 {
    u32::MAX
}

/// The capacity of a CPU if the file leaves it out.
pub(crate) const fn full_capacity() -> u32 {
    CAPACITY_MAX
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
pub(crate) const fn is_full_capacity(capacity: &u32) -> bool {
    *capacity == CAPACITY_MAX
}

/// A problem, its position in the text, and the remedy.
struct Wrong {
    span: Range<usize>,
    what: String,
    remedy: &'static str,
}

fn wrong(span: Range<usize>, what: impl Into<String>, remedy: &'static str) -> Result<(), Wrong> {
    Err(Wrong { span, what: what.into(), remedy })
}

fn check(raw: &Raw) -> Result<(), Wrong> {
    check_nodes(raw)?;
    check_cpus(raw)?;
    check_nesting(raw)?;
    check_caches(raw)?;
    check_disks(raw)?;
    if let Some(swap) = &raw.swap_bytes {
        check_bytes(swap.span(), *swap.get_ref())?;
    }
    raw.bus_bytes_per_s.as_ref().map_or(Ok(()), |bus| check_rate(bus.span(), *bus.get_ref()))
}

/// Checks that the numbers of nodes are unique, and that the machine has memory. A single node may have none,
/// as in Linux.
fn check_nodes(raw: &Raw) -> Result<(), Wrong> {
    let (mut seen, mut total) = (BTreeSet::new(), 0u64);
    for node in raw.nodes.get_ref() {
        let Node { id, memory_bytes } = node.get_ref();
        if !seen.insert(*id) {
            return wrong(
                node.span(),
                format!("node {id} is listed twice"),
                "give each node a number of its own",
            );
        }
        total = total.saturating_add(*memory_bytes);
        check_bytes(node.span(), total)?;
    }
    if total == 0 {
        return wrong(raw.nodes.span(), "no node has memory", "set `memory_bytes` to the node's bytes");
    }
    Ok(())
}

/// Checks that there are CPUs, and that they have unique numbers, valid capacities and known nodes.
fn check_cpus(raw: &Raw) -> Result<(), Wrong> {
    if raw.cpus.get_ref().is_empty() {
        return wrong(
            raw.cpus.span(),
            "the machine has no CPUs",
            "add `{ id = 0, node = 0, cache = 0, core = 0 }`",
        );
    }
    let nodes: BTreeSet<u32> = raw.nodes.get_ref().iter().map(|node| node.get_ref().id).collect();
    let mut seen = BTreeSet::new();
    for cpu in raw.cpus.get_ref() {
        let Cpu { id, node, capacity, .. } = cpu.get_ref();
        if *capacity == 0 || *capacity > CAPACITY_MAX {
            let what = format!("CPU {id} has a capacity of {capacity}");
            return wrong(cpu.span(), what, "write 1 to 1024, which the machine's largest CPUs have");
        }
        if *id >= MAX_CPUS {
            return wrong(cpu.span(), format!("CPU {id} is out of range"), "number CPUs from 0 to 65535");
        }
        if !seen.insert(*id) {
            return wrong(
                cpu.span(),
                format!("CPU {id} is listed twice"),
                "give each CPU a number of its own",
            );
        }
        if !nodes.contains(node) {
            let what = format!("CPU {id} is in node {node}, which is not in `nodes`");
            return wrong(cpu.span(), what, "add the node, or correct the CPU's `node`");
        }
    }
    Ok(())
}

/// Checks that cores nest in caches, caches in nodes, and nodes in sockets. Placement relies on this, since
/// it widens its search from one level to the next.
fn check_nesting(raw: &Raw) -> Result<(), Wrong> {
    let (mut nodes, mut caches, mut cores) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for cpu in raw.cpus.get_ref() {
        let Cpu { id, node, cache, core, socket, .. } = cpu.get_ref();
        let known_socket = nodes.entry(*node).or_insert(*socket);
        if known_socket != socket {
            let what =
                format!("CPU {id} in socket {socket} is in node {node} with CPUs in socket {known_socket}");
            return wrong(cpu.span(), what, "give each node one socket");
        }
        let known_node = caches.entry(*cache).or_insert(*node);
        if known_node != node {
            let what = format!("CPU {id} in node {node} shares cache {cache} with CPUs in node {known_node}");
            return wrong(cpu.span(), what, "give each cache to one node");
        }
        let known_cache = cores.entry(*core).or_insert(*cache);
        if known_cache != cache {
            let what = format!(
                "CPU {id} with cache {cache} shares core {core} with CPUs that have cache {known_cache}"
            );
            return wrong(cpu.span(), what, "give each core one cache");
        }
    }
    Ok(())
}

/// Checks that the numbers of caches are unique, that each cache belongs to a CPU, and that sizes are
/// positive.
fn check_caches(raw: &Raw) -> Result<(), Wrong> {
    let used: BTreeSet<u32> = raw.cpus.get_ref().iter().map(|cpu| cpu.get_ref().cache).collect();
    let (mut seen, mut total) = (BTreeSet::new(), 0u64);
    for cache in &raw.caches {
        let Cache { id, bytes } = cache.get_ref();
        if !seen.insert(*id) {
            return wrong(cache.span(), format!("cache {id} is listed twice"), "leave one of them out");
        }
        if !used.contains(id) {
            let what = format!("no CPU has cache {id}");
            return wrong(
                cache.span(),
                what,
                "write a number that a CPU has as its `cache`, or leave it out",
            );
        }
        if *bytes == 0 {
            return wrong(cache.span(), "a cache of 0 bytes", "leave it out where its size is not known");
        }
        total = total.saturating_add(*bytes);
        check_bytes(cache.span(), total)?;
    }
    Ok(())
}

/// Checks that the names of disks are unique and not empty, and that sizes and rates are valid.
fn check_disks(raw: &Raw) -> Result<(), Wrong> {
    let mut seen = BTreeSet::new();
    for disk in &raw.disks {
        let Disk { name, bytes, bytes_per_s } = disk.get_ref();
        if name.is_empty() || !seen.insert(name) {
            let what = format!("the disk name `{name}` is empty or there twice");
            return wrong(disk.span(), what, "give each disk a name of its own");
        }
        check_bytes(disk.span(), *bytes)?;
        bytes_per_s.map_or(Ok(()), |rate| check_rate(disk.span(), rate))?;
    }
    Ok(())
}

fn check_bytes(span: Range<usize>, bytes: u64) -> Result<(), Wrong> {
    if bytes <= BYTES_MAX {
        Ok(())
    } else {
        wrong(span, "more than 1 EiB", "write a smaller amount of bytes")
    }
}

fn check_rate(span: Range<usize>, rate: u64) -> Result<(), Wrong> {
    match rate {
        0 => wrong(span, "a rate of 0 bytes per second", "omit it if it is unknown"),
        _ => check_bytes(span, rate),
    }
}

/// The error at a span of the text, which gives its line and column.
fn error_at(text: &str, span: Range<usize>, what: String, remedy: &str) -> MachineFileError {
    let before = text.get(..span.start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    MachineFileError {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        what,
        remedy: if remedy.is_empty() { String::new() } else { format!("; {remedy}") },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const SMALL: &str = "\
nodes = [{ id = 0, memory_bytes = 1024 }]
cpus = [
  { id = 1, node = 0, cache = 0, core = 1 },
  { id = 0, node = 0, cache = 0, core = 0 },
]
";

    fn error(from: &str, to: &str) -> String {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "the change is in the text");
        Machine::from_toml(&text).unwrap_err().to_string()
    }

    #[test]
    fn a_hand_written_file_is_sorted_and_has_defaults() {
        let machine = Machine::from_toml(SMALL).unwrap();
        assert_eq!(machine.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((machine.swap_bytes, machine.disks.len(), machine.bus_bytes_per_s), (0, 0, None));
    }

    #[test]
    fn errors_name_the_line_what_is_wrong_and_the_remedy() {
        assert_eq!(
            error("id = 1", "id = 0"),
            "line 4, column 3: CPU 0 is listed twice; give each CPU a number of its own"
        );
        assert_eq!(
            error("node = 0", "node = 7"),
            "line 3, column 3: CPU 1 is in node 7, which is not in `nodes`; add the node, or correct the CPU's `node`"
        );
        assert_eq!(
            error("memory_bytes = 1024", "memory_bytes = 0"),
            "line 1, column 9: no node has memory; set `memory_bytes` to the node's bytes"
        );
        assert_eq!(
            error("}]", "}, { id = 0, memory_bytes = 5 }]"),
            "line 1, column 43: node 0 is listed twice; give each node a number of its own"
        );
    }

    #[test]
    fn isolation_and_capacity_are_read_and_written() {
        let text = SMALL.replace("core = 1 }", "core = 1, isolated = true, capacity = 512 }");
        let machine = Machine::from_toml(&text).unwrap();
        let said = |id: usize| (machine.cpus[id].isolated, machine.cpus[id].capacity);
        assert_eq!((said(0), said(1)), ((false, 1024), (true, 512)));
        assert!(machine.to_toml().contains("socket = 0, isolated = true, capacity = 512 },"));
        assert_eq!(machine.to_toml().matches("capacity").count(), 1);
        assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine.clone()));
        for capacity in ["0", "1025"] {
            let error = error("core = 1", &format!("core = 1, capacity = {capacity}"));
            assert!(error.starts_with("line 3, column 3: CPU 1 has a capacity of "), "{error}");
        }
    }

    #[test]
    fn caches_are_of_cpus_and_have_a_size() {
        let with = |caches: &str| Machine::from_toml(&format!("{SMALL}caches = [{caches}]"));
        assert_eq!(with("{ id = 0, bytes = 7 }").unwrap().cache_bytes(), Some(7));
        for (caches, wrong) in [
            ("{ id = 3, bytes = 7 }", "no CPU has cache 3"),
            ("{ id = 0, bytes = 0 }", "a cache of 0 bytes"),
            ("{ id = 0, bytes = 7 }, { id = 0, bytes = 7 }", "cache 0 is listed twice"),
        ] {
            let error = with(caches).unwrap_err().to_string();
            assert!(error.starts_with("line 6, column ") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn parts_that_do_not_nest_are_refused() {
        let two_nodes = "nodes = [{ id = 0, memory_bytes = 1024 }, { id = 1, memory_bytes = 0 }]";
        let cpus = "\ncpus = [{ id = 0, node = 0, cache = 0, core = 0 },\n{ id = 1, node = 1, cache = 0, core = 1 }]";
        let text = format!("{two_nodes}{cpus}");
        let error = Machine::from_toml(&text).unwrap_err().to_string();
        assert_eq!(
            error,
            "line 3, column 1: CPU 1 in node 1 shares cache 0 with CPUs in node 0; give each cache to one node"
        );
        let text = text.replace("cache = 0, core = 1", "cache = 1, core = 0");
        let error = Machine::from_toml(&text).unwrap_err().to_string();
        assert!(error.contains("shares core 0"), "{error}");
    }

    #[test]
    fn unknown_fields_and_invalid_values_are_refused() {
        assert!(
            error("cache", "cash").starts_with("line 3, column 23: unknown field `cash`"),
            "{}",
            error("cache", "cash")
        );
        assert!(error("nodes", "pods").contains("unknown field `pods`"));
        assert!(error("1024", "-1").starts_with("line 1, "));
        assert!(
            error("1024", "2000000000000000000")
                .ends_with("more than 1 EiB; write a smaller amount of bytes")
        );
        assert!(Machine::from_toml("nodes = [").unwrap_err().to_string().starts_with("line 1, "));
        let no_cpus = "nodes = [{ id = 0, memory_bytes = 1 }]\ncpus = []";
        assert!(Machine::from_toml(no_cpus).unwrap_err().what.contains("no CPUs"));
        assert!(Machine::from_toml("").unwrap_err().what.contains("missing field"));
    }

    #[test]
    fn a_name_that_needs_escaping_survives() {
        let mut machine = Machine::synthetic("disks:1").unwrap();
        machine.disks[0].name = "a\"b\\\n\u{1}é".to_owned();
        assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine));
    }

    proptest! {
        #[test]
        fn written_and_read_back(nodes in 1u32..5, cores in 1u32..5, threads in 1u32..3, disk in 1u64..1 << 60) {
            let cpus = cores * threads;
            let text = format!(
                "nodes:{nodes} cpus:{cpus} threads:{threads} disk:{disk}B/s swap:5MiB bus:{disk}B/s cache:{cores}MiB"
            );
            let machine = Machine::synthetic(&text).unwrap();
            prop_assert_eq!(Machine::from_toml(&machine.to_toml()), Ok(machine));
        }
    }
}
