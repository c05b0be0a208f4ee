//! Page placement: in which nodes a job's pages should be.
//!
//! Problem: the kernel places a page on first touch, in the node of the thread that touches it. So the pages
//! of a job's first process are all in one node, and pages of threads that moved to another node stay behind.
//!
//! Terms: a job's *parent* is its earliest thread with a seat. A job's *due* in a node is the number of its
//! pages that should be in the node. If a node has more pages of the job than the due, the excess pages are
//! *misplaced*.
//!
//! Algorithm:
//! 1. If a job's seats are all in one pool, its pages may be in any node of that pool. Pages in other nodes
//!    are misplaced. They are divided among the pool's nodes in proportion to the number of the pool's CPUs
//!    in each node.
//! 2. If a job has seats in several pools, its pages are interleaved over the nodes of all these pools, in
//!    proportion to the number of its seated threads in each node. All threads of the job then have the same
//!    mean latency, and no single node's memory serves them all. For example, with 3 threads in node 0 and 1
//!    in node 1, 3/4 of all pages are due in node 0, and 1/4 in node 1.
//! 3. A job's pages move if more than one page in [`MISPLACED_PART`] is misplaced and if the gain exceeds the
//!    cost by the measure of [`super`], at most once in [`MOVE_PAUSE_NS`]. The nodes of the parent are filled
//!    first, and get the rounding remainder.
//!
//! Properties: nothing is ordered for a job without misplaced pages. A job's dues sum to the number of its
//! pages.
//!
//! Limits: a node's spare bandwidth is unknown, both live and in simulation; the number of seated threads is
//! used in its stead. A job's pages are divided as a whole: even a process whose threads are all in one pool
//! has its pages interleaved over all pools of its job.
//!
//! Source: D. Gureya and others, Bandwidth-Aware Page Placement in NUMA, IPDPS 2020 (interleaving in
//! proportion, over the nodes of all workers). Seed 001, sections 5 and 6.1: children mostly need their
//! parent's memory.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_machine::Machine;
use commonhold_machine::pools::Pools;

use super::board::PoolAt;
use super::{GAIN_PART, Job};
use crate::plan::NodePart;
use crate::rights::share::split;
use crate::time::{MS, Time};

/// Migration speed: one gigabyte per second, as measured for `migrate_pages(2)`.
const BYTES_PER_NS: u64 = 1;

/// A job's pages move when more than one in this many is misplaced, and then not again for [`MOVE_PAUSE_NS`].
const MISPLACED_PART: u64 = 20;
const MOVE_PAUSE_NS: Time = 10_000 * MS;

/// Weight of one thread. A weight above 1 can be divided among several nodes.
const THREAD_WEIGHT: u64 = 1_000;

/// The nodes for a job's pages with their weights, and the number of misplaced bytes; `None` if the pages may
/// stay. `memory` has the job's bytes in each node.
pub(super) fn wanted_nodes(
    job: &Job,
    memory: &[(u32, u64)],
    now: Time,
    machine: &Machine,
    pools: &Pools,
) -> Option<(Vec<NodePart>, u64)> {
    if job.pages_moved_at.is_some_and(|at| now.saturating_sub(at) < MOVE_PAUSE_NS) {
        return None;
    }
    let spread = job.spread();
    let nodes = node_weights(&spread, parent_pool(job)?, machine, pools);
    let misplaced = match spread.len() {
        1 => bytes_elsewhere(&nodes, memory),
        _ => bytes_beyond_due(&nodes, memory),
    };
    let total: u64 = memory.iter().map(|(_, bytes)| bytes).sum();
    // The gain is a tenth of the job's expected CPU time, times the part of its pages that are misplaced now.
    let cpu_time_ns = u128::from(now.saturating_sub(job.settled_since)) * job.threads.len() as u128;
    let gain_ns = cpu_time_ns * u128::from(misplaced) / u128::from(total.max(1) * GAIN_PART);
    let cost_ns = u128::from(misplaced / BYTES_PER_NS);
    let pays = misplaced > total / MISPLACED_PART && gain_ns >= cost_ns;
    pays.then_some((nodes, misplaced))
}

/// The pool of a job's parent; `None` if no thread has a seat.
fn parent_pool(job: &Job) -> Option<PoolAt> {
    job.threads.values().find_map(|thread| thread.seat)
}

/// The weights of the nodes of a job's pools by the job's threads there, the nodes of the parent's pool
/// first. The threads of a pool that covers several nodes are divided among these by the number of the pool's
/// CPUs in each.
fn node_weights(spread: &[(PoolAt, u32)], parent: PoolAt, machine: &Machine, pools: &Pools) -> Vec<NodePart> {
    // By node: whether it is a node of the parent's pool, and its weight.
    let mut by_node: BTreeMap<u32, (bool, u64)> = BTreeMap::new();
    for (pool, threads) in spread {
        let mut cpus_by_node: BTreeMap<u32, u64> = BTreeMap::new();
        let pool_cpus = pools.pools.get(*pool).into_iter().flat_map(|pool| &pool.cpus);
        for cpu in pool_cpus.filter_map(|cpu| machine.cpu(*cpu)) {
            *cpus_by_node.entry(cpu.node).or_default() += 1;
        }
        let cpus: Vec<u64> = cpus_by_node.values().copied().collect();
        for (node, weight) in cpus_by_node.keys().zip(split(u64::from(*threads) * THREAD_WEIGHT, &cpus)) {
            let entry = by_node.entry(*node).or_default();
            entry.0 |= *pool == parent;
            entry.1 += weight;
        }
    }
    let mut nodes: Vec<(bool, NodePart)> = by_node
        .into_iter()
        .filter(|(_, (_, weight))| *weight > 0)
        .map(|(node, (is_parents, weight))| (is_parents, NodePart { node, part: weight }))
        .collect();
    nodes.sort_by_key(|(is_parents, part)| (!is_parents, part.node));
    nodes.into_iter().map(|(_, part)| part).collect()
}

/// A job's bytes in other nodes than these.
fn bytes_elsewhere(nodes: &[NodePart], memory: &[(u32, u64)]) -> u64 {
    let elsewhere = memory.iter().filter(|(node, _)| nodes.iter().all(|part| part.node != *node));
    elsewhere.map(|(_, bytes)| bytes).sum()
}

/// A job's bytes beyond the due of the node that they are in.
fn bytes_beyond_due(nodes: &[NodePart], memory: &[(u32, u64)]) -> u64 {
    let total = memory.iter().map(|(_, bytes)| bytes).sum();
    let due: BTreeMap<u32, u64> = NodePart::due(nodes, total).into_iter().collect();
    memory.iter().map(|(node, bytes)| bytes.saturating_sub(due.get(node).copied().unwrap_or(0))).sum()
}
