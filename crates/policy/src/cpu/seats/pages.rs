//! Where the pages of a job come to lie.
//!
//! Problem: the kernel puts a page where the thread runs that touches it first. So all that a job's first process made lies in
//! one node, and what threads left behind that moved lies in others.
//!
//! Terms: the *parent* of a job is the thread with a seat that came first. A job's *due* in a node is the part of all its pages that should lie
//! there. Pages *lie apart* that are beyond the due of their node.
//!
//! Algorithm:
//! 1. A job that sits in one pool: its pages are due in the nodes of that pool, in whichever of them they are; what comes
//!    from other nodes is divided by the pool's CPUs there.
//! 2. A job that sits in several: its pages are due in all of their nodes, in proportion to its threads that sit there. All of
//!    its threads then wait for memory alike, and no node's memory serves them all.
//! 3. Pages come when more than one in [`APART_PART`] lies apart, and that pays by the measure of [`super`], and not again
//!    for [`BRING_PAUSE_NS`]. The parent's nodes are named first: they are filled first, and have what is left by rounding.
//!
//! Properties: nothing is ordered for a job whose pages lie as they are due. Dues sum to the whole.
//!
//! Limits: how much bandwidth a node has to spare is not known, neither live nor simulated; a thread with a seat stands for its part of it. A
//! process that has threads in one pool alone has its pages in all of the job's pools, like the others.
//!
//! Source: D. Gureya and others, Bandwidth-Aware Page Placement in NUMA, IPDPS 2020 (in proportion, over all nodes of those
//! who use them). Seed 001, sections 5 and 6.1: the parent's memory is what its children need most.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_machine::Machine;
use commonhold_machine::pools::Pools;

use super::board::PoolAt;
use super::{GAIN_PART, Job};
use crate::plan::NodePart;
use crate::rights::share::split;
use crate::time::{MS, Time};

/// Moving so many bytes takes a nanosecond: a gigabyte a second, as `migrate_pages(2)` does.
const BYTES_PER_NS: u64 = 1;

/// Pages that lie apart are brought when they are more than this part of a job's, and not again for [`BRING_PAUSE_NS`].
const APART_PART: u64 = 20;
const BRING_PAUSE_NS: Time = 10_000 * MS;

/// A thread, where it counts for several nodes.
const THREAD: u64 = 1_000;

/// Where a job's pages are to come, and how many bytes lie apart; `None` where they may stay.
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

/// The pool of the thread with a seat that came first.
fn parent(job: &Job) -> Option<PoolAt> {
    job.threads.values().find_map(|thread| thread.seat)
}

/// A job's part of each node: its threads there, the parent's nodes first. Of a pool in several nodes, each has as much of
/// them as of the pool's CPUs.
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

/// Bytes in none of the nodes.
fn apart_from(parts: &[NodePart], memory: &[(u32, u64)]) -> u64 {
    let elsewhere = memory.iter().filter(|(node, _)| parts.iter().all(|part| part.node != *node));
    elsewhere.map(|(_, bytes)| bytes).sum()
}

/// Bytes beyond the due of their node.
fn beyond_due(parts: &[NodePart], memory: &[(u32, u64)]) -> u64 {
    let all = memory.iter().map(|(_, bytes)| bytes).sum();
    let due: BTreeMap<u32, u64> = NodePart::due(parts, all).into_iter().collect();
    memory.iter().map(|(node, bytes)| bytes.saturating_sub(due.get(node).copied().unwrap_or(0))).sum()
}
