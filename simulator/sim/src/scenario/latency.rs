//! Reads `[latency]`: how long a load takes from each node's memory to each node's CPUs.
//!
//! The text gives the latency of local memory, and that of remote memory in one of two ways: as a time
//! (`remote`, and `near` within a socket), or as a matrix of distances, in the unit of the firmware's tables
//! (10 is local).

use commonhold_contract::document::{Document, article, integer};
use commonhold_contract::{Diagnostic, quantity};
use toml::Spanned;
use toml::de::DeValue;

use super::keys::LATENCY;
use super::limits::{DISTANCE_LOCAL, DISTANCE_MAX};
use super::model::{Latency, Service};
use super::values::{Entry, number};
use crate::Time;
use commonhold_machine::Machine;

/// Default latency of local memory, in ns.
const LOCAL_NS: Time = 80;

/// Default distance of remote memory: Linux's `REMOTE_DISTANCE`.
const DISTANCE_REMOTE: u64 = 20;

/// How the text gives the latency of remote memory.
enum Remote<'e, 'a> {
    /// By `remote`: one time, and its entry for messages.
    Ns(Time, &'e Entry<'a>),
    /// By `distances`: a row for each node.
    Distances(Vec<Vec<u64>>),
    /// By no key that could be read.
    Unset,
}

/// Reads the table for a machine. `machine` is `None` if its shape is wrong; the result is then `None` too,
/// since the number of nodes is unknown.
pub(crate) fn read(document: &mut Document, entry: &Entry, machine: Option<&Machine>) -> Option<Latency> {
    let nodes = machine.map(|machine| machine.nodes.len());
    let table = document.table(entry)?;
    let entries = document.entries(&LATENCY, table);
    let find = |name: &str| entries.iter().find(|entry| entry.key.name == name);
    let local_ns = find("local").and_then(|entry| number(document, entry)).unwrap_or(LOCAL_NS);
    let remote = match (find("remote"), find("distances")) {
        (Some(_), Some(distances)) => {
            let message = "`remote` and `distances` both say how far memory is".to_owned();
            report_impossible(document, distances, message, "remove one of them");
            Remote::Unset
        }
        (Some(entry), None) => number(document, entry).map_or(Remote::Unset, |ns| Remote::Ns(ns, entry)),
        (None, Some(entry)) => distances(document, entry, nodes).map_or(Remote::Unset, Remote::Distances),
        (None, None) => Remote::Unset,
    };
    let nodes = nodes?;
    if nodes == 1 {
        let message = "the machine has one node: no memory is remote";
        let help = "remove the table, or give the machine several `nodes` in its `shape`";
        document.report(Diagnostic::warning("unused", entry.at.clone(), message).help(help));
    }
    let mut between_ns = latencies(document, local_ns, &remote, nodes);
    if let (Some(entry), Some(machine)) = (find("near"), machine) {
        if let Remote::Distances(_) = remote {
            let message = "`near` and `distances` both say how far memory is".to_owned();
            report_impossible(document, entry, message, "remove one of them");
        }
        let near_ns = number(document, entry).unwrap_or(local_ns);
        let remote_ns = between_ns.iter().flatten().copied().max().unwrap_or(local_ns);
        if !(local_ns..=remote_ns).contains(&near_ns) {
            let [local, near, remote] = [local_ns, near_ns, remote_ns].map(quantity::duration_text);
            let message =
                format!("near memory takes {near}, local memory {local} and remote memory {remote}");
            report_impossible(document, entry, message, &format!("write {local} to {remote}"));
        }
        set_within_sockets(&mut between_ns, machine, near_ns);
    }
    let mut time = |name: &str| find(name).and_then(|entry| number(document, entry)).unwrap_or(0);
    let service = Service { module_ns: time("module"), bus_ns: time("bus"), ring_ns: time("ring") };
    let service = Some(service).filter(|service| *service != Service::default());
    Some(Latency { local_ns, between_ns, service })
}

/// Sets the latency between different nodes of the same socket.
fn set_within_sockets(between_ns: &mut [Vec<Time>], machine: &Machine, near_ns: Time) {
    let socket = |node: u32| machine.cpus.iter().find(|cpu| cpu.node == node).map(|cpu| cpu.socket);
    let sockets: Vec<Option<u32>> = machine.nodes.iter().map(|node| socket(node.id)).collect();
    for (cpu_node, row) in between_ns.iter_mut().enumerate() {
        for (memory_node, ns) in row.iter_mut().enumerate() {
            let is_same_socket = sockets[cpu_node].is_some() && sockets[cpu_node] == sockets[memory_node];
            if cpu_node != memory_node && is_same_socket {
                *ns = near_ns;
            }
        }
    }
}

/// The latency of a load in ns, by the CPU's node and the memory's node.
fn latencies(document: &mut Document, local_ns: Time, remote: &Remote, nodes: usize) -> Vec<Vec<Time>> {
    let latency_ns = |distance: u64| (local_ns * distance).div_ceil(DISTANCE_LOCAL);
    let remote_ns = match remote {
        Remote::Distances(rows) => {
            return rows
                .iter()
                .map(|row| row.iter().map(|distance| latency_ns(*distance)).collect())
                .collect();
        }
        Remote::Ns(ns, entry) => checked_remote_ns(document, local_ns, *ns, latency_ns(DISTANCE_MAX), entry),
        Remote::Unset => latency_ns(DISTANCE_REMOTE),
    };
    let row = |cpu_node: usize| {
        let latency = move |memory_node: usize| if memory_node == cpu_node { local_ns } else { remote_ns };
        (0..nodes).map(latency).collect()
    };
    (0..nodes).map(row).collect()
}

/// Reports a remote latency below the local one or above `max_ns`. Returns the remote latency, raised to the
/// local one.
fn checked_remote_ns(
    document: &mut Document,
    local_ns: Time,
    remote_ns: Time,
    max_ns: Time,
    entry: &Entry,
) -> Time {
    if !(local_ns..=max_ns).contains(&remote_ns) {
        let [local, remote, max] = [local_ns, remote_ns, max_ns].map(quantity::duration_text);
        let message = format!("remote memory cannot take {remote} where local memory takes {local}");
        report_impossible(document, entry, message, &format!("write {local} to {max}, or another `local`"));
    }
    remote_ns.max(local_ns)
}

/// Reads the matrix of distances: a row for each node, with a distance for each node. `nodes` is `None` if
/// unknown.
fn distances(document: &mut Document, entry: &Entry, nodes: Option<usize>) -> Option<Vec<Vec<u64>>> {
    let Some(list) = entry.value.get_ref().as_array() else {
        document.wrong_type(entry, "a list of lists of distances");
        return None;
    };
    // Stop at the first mistake: a matrix is usually pasted, and one wrong number is often followed by more.
    let rows: Option<Vec<Vec<u64>>> =
        list.iter().enumerate().map(|(from, row)| distance_row(document, row, from)).collect();
    let (rows, nodes) = (rows?, nodes?);
    if rows.len() != nodes || rows.iter().any(|row| row.len() != nodes) {
        let message = format!("the distances of {nodes} nodes are {nodes} lists of {nodes} numbers");
        report_impossible(
            document,
            entry,
            message,
            "write a list for each node, with a number for each node",
        );
        return None;
    }
    Some(rows)
}

/// Reads the distances of one node from every node.
fn distance_row(document: &mut Document, row: &Spanned<DeValue>, from: usize) -> Option<Vec<u64>> {
    let mut report = |at: &Spanned<DeValue>, code: &'static str, message: String, help: &str| {
        let span = document.span(at);
        document.report(Diagnostic::error(code, span, message).help(help));
        None
    };
    let Some(list) = row.get_ref().as_array() else {
        let message = format!("a node's distances must be a list, not {}", article(row.get_ref()));
        return report(row, "wrong-type", message, "for example: distances = [[10, 20], [20, 10]]");
    };
    let mut distances = Vec::with_capacity(list.len());
    for (to, value) in list.iter().enumerate() {
        let distance = match value.get_ref() {
            DeValue::Integer(number) => integer(number),
            _ => None,
        };
        let range = if to == from { DISTANCE_LOCAL..=DISTANCE_LOCAL } else { DISTANCE_LOCAL..=DISTANCE_MAX };
        let Some(distance) = distance.filter(|distance| range.contains(distance)) else {
            let message = format!("that cannot be the distance of node {to} from node {from}");
            let help = format!(
                "write a whole number from {DISTANCE_LOCAL} to {DISTANCE_MAX}; a node is {DISTANCE_LOCAL} from itself"
            );
            return report(value, "out-of-range", message, &help);
        };
        distances.push(distance);
    }
    Some(distances)
}

fn report_impossible(document: &mut Document, entry: &Entry, message: String, help: &str) {
    let span = document.span(entry.value);
    document.report(Diagnostic::error("impossible-machine", span, message).help(help));
}
