//! Page placement: in which nodes a job's pages should be.
//!
//! Problem: the kernel places a page on first touch, in the node of the thread that touches it. So the pages of a job's first
//! process are all in one node, and pages of moved threads are left behind in others.
//!
//! Terms: a job's *parent* is its earliest thread with a seat. A job's *due* in a node is the part of its pages that should be
//! there. Pages beyond their node's due are *misplaced*.
//!
//! Algorithm:
//! 1. A job in one pool: its pages may be in any node of that pool; pages from other nodes are divided among these by the
//!    pool's CPUs there.
//! 2. A job in several pools: its pages are interleaved over the nodes of all of them, in proportion to its threads with a seat
//!    there. All its threads then have the same mean latency, and no single node's memory serves them all.
//! 3. Pages move if more than one in [`APART_PART`] is misplaced and that pays by the measure of [`super`], at most once in
//!    [`BRING_PAUSE_NS`]. The parent's nodes come first: they are filled first, and get the rounding remainder.
//!
//! Properties: nothing is ordered for a job without misplaced pages. Dues sum to the whole.
//!
//! Limits: a node's spare bandwidth is unknown, both live and in simulation; the number of seated threads stands in for it. A
//! process whose threads are all in one pool has its pages interleaved over the whole job's pools, as the others do.
//!
//! Source: D. Gureya and others, Bandwidth-Aware Page Placement in NUMA, IPDPS 2020 (interleaving in proportion, over the nodes
//! of all workers). Seed 001, sections 5 and 6.1: children mostly need their parent's memory.

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

/// Pages move when more than this part of a job's pages is misplaced, and not again for [`BRING_PAUSE_NS`].
const APART_PART: u64 = 20;
const BRING_PAUSE_NS: Time = 10_000 * MS;

/// Weight of one thread, to be divided among several nodes.
const THREAD: u64 = 1_000;

/// The nodes for a job's pages, and the misplaced bytes; `None` if the pages may stay.
pub(super) fn bring(
    job: &Job,
    memory: &[(u32, u64)],
    now: Time,
    machine: &Machine,
    pools: &Pools,
) -> Option<(Vec<NodePart>, u64)> {
    if job.brought.is_some_and(|at| now.saturating_sub(at) < BRING_PAUSE_NS) {
        return None;
    }
    let spread = job.spread();
    let parts = parts(&spread, parent(job)?, machine, pools);
    let apart = match spread.len() {
        1 => apart_from(&parts, memory),
        _ => beyond_due(&parts, memory),
    };
    let all: u64 = memory.iter().map(|(_, bytes)| bytes).sum();
    let cpu_time = u128::from(now.saturating_sub(job.since)) * job.threads.len() as u128;
    let gain = cpu_time * u128::from(apart) / u128::from(all.max(1) * GAIN_PART);
    let pays = apart > all / APART_PART && gain >= u128::from(apart / BYTES_PER_NS);
    pays.then_some((parts, apart))
}

/// The pool of the parent.
fn parent(job: &Job) -> Option<PoolAt> {
    job.threads.values().find_map(|thread| thread.seat)
}

/// The weights of nodes, the parent's first. The threads of a pool that covers several nodes are divided by its CPUs in each.
fn parts(spread: &[(PoolAt, u32)], parent: PoolAt, machine: &Machine, pools: &Pools) -> Vec<NodePart> {
    let mut parts: BTreeMap<u32, (bool, u64)> = BTreeMap::new();
    for (pool, threads) in spread {
        let mut cpus: BTreeMap<u32, u64> = BTreeMap::new();
        let there = pools.pools.get(*pool).into_iter().flat_map(|pool| &pool.cpus);
        for cpu in there.filter_map(|cpu| machine.cpu(*cpu)) {
            *cpus.entry(cpu.node).or_default() += 1;
        }
        let weights: Vec<u64> = cpus.values().copied().collect();
        for (node, part) in cpus.keys().zip(split(u64::from(*threads) * THREAD, &weights)) {
            let entry = parts.entry(*node).or_default();
            entry.0 |= *pool == parent;
            entry.1 += part;
        }
    }
    let mut parts: Vec<(bool, NodePart)> = parts
        .into_iter()
        .filter(|(_, (_, part))| *part > 0)
        .map(|(node, (of_parent, part))| (of_parent, NodePart { node, part }))
        .collect();
    parts.sort_by_key(|(of_parent, part)| (!of_parent, part.node));
    parts.into_iter().map(|(_, part)| part).collect()
}

/// Bytes outside the listed nodes.
fn apart_from(parts: &[NodePart], memory: &[(u32, u64)]) -> u64 {
    let elsewhere = memory.iter().filter(|(node, _)| parts.iter().all(|part| part.node != *node));
    elsewhere.map(|(_, bytes)| bytes).sum()
}

/// Bytes beyond their node's due.
fn beyond_due(parts: &[NodePart], memory: &[(u32, u64)]) -> u64 {
    let all = memory.iter().map(|(_, bytes)| bytes).sum();
    let due: BTreeMap<u32, u64> = NodePart::due(parts, all).into_iter().collect();
    memory.iter().map(|(node, bytes)| bytes.saturating_sub(due.get(node).copied().unwrap_or(0))).sum()
}
