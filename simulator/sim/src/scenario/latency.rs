//! Reads `[latency]`: how far the memory of a machine's nodes is.

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

/// What a load from local memory takes where a machine does not say, in ns.
const LOCAL_NS: Time = 80;

/// How far remote memory is where a machine does not say: Linux's `REMOTE_DISTANCE`.
const DISTANCE_REMOTE: u64 = 20;

/// How far remote memory is, as the text has it.
enum Far<'e, 'a> {
    Ns(Time, &'e Entry<'a>),
    Distances(Vec<Vec<u64>>),
    Unsaid,
}

/// Reads the table for a machine; `None` if the machine's shape is wrong, so that the number of nodes is unknown.
pub(crate) fn read(document: &mut Document, entry: &Entry, machine: Option<&Machine>) -> Option<Latency> {
    let nodes = machine.map(|machine| machine.nodes.len());
    let table = document.table(entry)?;
    let entries = document.entries(&LATENCY, table);
    let find = |name: &str| entries.iter().find(|entry| entry.key.name == name);
    let local_ns = find("local").and_then(|entry| number(document, entry)).unwrap_or(LOCAL_NS);
    let far = match (find("remote"), find("distances")) {
        (Some(_), Some(distances)) => {
            let message = "`remote` and `distances` both say how far memory is".to_owned();
            wrong(document, distances, message, "remove one of them");
            Far::Unsaid
        }
        (Some(entry), None) => number(document, entry).map_or(Far::Unsaid, |ns| Far::Ns(ns, entry)),
        (None, Some(entry)) => distances(document, entry, nodes).map_or(Far::Unsaid, Far::Distances),
        (None, None) => Far::Unsaid,
    };
    let nodes = nodes?;
    if nodes == 1 {
        let message = "the machine has one node: no memory is remote";
        let help = "remove the table, or give the machine several `nodes` in its `shape`";
        document.report(Diagnostic::warning("unused", entry.at.clone(), message).help(help));
    }
    let mut between_ns = between(document, local_ns, &far, nodes);
    if let (Some(entry), Some(machine)) = (find("near"), machine) {
        if let Far::Distances(_) = far {
            let message = "`near` and `distances` both say how far memory is".to_owned();
            wrong(document, entry, message, "remove one of them");
        }
        let near_ns = number(document, entry).unwrap_or(local_ns);
        let remote_ns = between_ns.iter().flatten().copied().max().unwrap_or(local_ns);
        if !(local_ns..=remote_ns).contains(&near_ns) {
            let [local, near, remote] = [local_ns, near_ns, remote_ns].map(quantity::duration_text);
            let message =
                format!("near memory takes {near}, local memory {local} and remote memory {remote}");
            wrong(document, entry, message, &format!("write {local} to {remote}"));
        }
        bring_near(&mut between_ns, machine, near_ns);
    }
    let mut time = |name: &str| find(name).and_then(|entry| number(document, entry)).unwrap_or(0);
    let service = Service { module_ns: time("module"), bus_ns: time("bus"), ring_ns: time("ring") };
    let service = Some(service).filter(|service| *service != Service::default());
    Some(Latency { local_ns, between_ns, service })
}

/// Nodes of one socket are nearer to each other.
fn bring_near(between_ns: &mut [Vec<Time>], machine: &Machine, near_ns: Time) {
    let socket = |node: u32| machine.cpus.iter().find(|cpu| cpu.node == node).map(|cpu| cpu.socket);
    let sockets: Vec<Option<u32>> = machine.nodes.iter().map(|node| socket(node.id)).collect();
    for (here, row) in between_ns.iter_mut().enumerate() {
        for (there, ns) in row.iter_mut().enumerate() {
            if here != there && sockets[here].is_some() && sockets[here] == sockets[there] {
                *ns = near_ns;
            }
        }
    }
}

/// The latencies by the CPU's node and the memory's.
fn between(document: &mut Document, local_ns: Time, far: &Far, nodes: usize) -> Vec<Vec<Time>> {
    let times = |distance: u64| (local_ns * distance).div_ceil(DISTANCE_LOCAL);
    let remote_ns = match far {
        Far::Distances(rows) => {
            return rows.iter().map(|row| row.iter().map(|distance| times(*distance)).collect()).collect();
        }
        Far::Ns(ns, entry) => within(document, local_ns, *ns, times(DISTANCE_MAX), entry),
        Far::Unsaid => times(DISTANCE_REMOTE),
    };
    let from =
        |here: usize| (0..nodes).map(move |there| if there == here { local_ns } else { remote_ns }).collect();
    (0..nodes).map(from).collect()
}

/// A remote latency that is neither below the local one nor above what is simulated.
fn within(document: &mut Document, local_ns: Time, remote_ns: Time, max_ns: Time, entry: &Entry) -> Time {
    if !(local_ns..=max_ns).contains(&remote_ns) {
        let [local, remote, max] = [local_ns, remote_ns, max_ns].map(quantity::duration_text);
        let message = format!("remote memory cannot take {remote} where local memory takes {local}");
        wrong(document, entry, message, &format!("write {local} to {max}, or another `local`"));
    }
    remote_ns.max(local_ns)
}

/// A row of distances for each node, each with one per node.
fn distances(document: &mut Document, entry: &Entry, nodes: Option<usize>) -> Option<Vec<Vec<u64>>> {
    let Some(list) = entry.value.get_ref().as_array() else {
        document.wrong_type(entry, "a list of lists of distances");
        return None;
    };
    // Report one mistake, not one per number: a matrix is mostly pasted.
    let rows: Option<Vec<Vec<u64>>> =
        list.iter().enumerate().map(|(here, row)| distance_row(document, row, here)).collect();
    let (rows, nodes) = (rows?, nodes?);
    if rows.len() != nodes || rows.iter().any(|row| row.len() != nodes) {
        let message = format!("the distances of {nodes} nodes are {nodes} lists of {nodes} numbers");
        wrong(document, entry, message, "write a list for each node, with a number for each node");
        return None;
    }
    Some(rows)
}

/// The distances of one node from all.
fn distance_row(document: &mut Document, row: &Spanned<DeValue>, here: usize) -> Option<Vec<u64>> {
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
    for (there, value) in list.iter().enumerate() {
        let distance = match value.get_ref() {
            DeValue::Integer(number) => integer(number),
            _ => None,
        };
        let range =
            if there == here { DISTANCE_LOCAL..=DISTANCE_LOCAL } else { DISTANCE_LOCAL..=DISTANCE_MAX };
        let Some(distance) = distance.filter(|distance| range.contains(distance)) else {
            let message = format!("that cannot be the distance of node {there} from node {here}");
            let help = format!(
                "write a whole number from {DISTANCE_LOCAL} to {DISTANCE_MAX}; a node is {DISTANCE_LOCAL} from itself"
            );
            return report(value, "out-of-range", message, &help);
        };
        distances.push(distance);
    }
    Some(distances)
}

fn wrong(document: &mut Document, entry: &Entry, message: String, help: &str) {
    let span = document.span(entry.value);
    document.report(Diagnostic::error("impossible-machine", span, message).help(help));
}
