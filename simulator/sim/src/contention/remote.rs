//! The slowdown of a task by memory of other nodes (NUMA).
//!
//! Problem: on a machine with several nodes, a CPU accesses its own node's memory faster than other nodes'
//! memory. How much longer does a task take on a CPU of one node if its pages lie in other nodes?
//!
//! Terms: the *latency* λ(n, j) is the time of a load from memory of node j on a CPU of node n. λ(n, n) = ℓ
//! is *local*, the others are *remote*. p(j) is the fraction of a task's pages in node j (placed by
//! `crate::memory`). A task is *stalled* while it waits for memory: m is the fraction of its CPU time that it
//! is stalled if all its pages are local.
//!
//! Algorithm: the task accesses all its pages equally often. So the mean latency of its loads, and its
//! slowdown, are
//!
//! ```text
//! L(n) = Σ p(j) λ(n, j) / Σ p(j),        ν(n) = 1 + m (L(n) / ℓ - 1)
//! ```
//!
//! where ν(n), in millionths rounded to the nearest, is the task's time per unit of work on node n. The
//! refill of a cache consists of loads only. So it takes L(n) / ℓ times as long, which is ν(n) for m = 1.
//!
//! ν is computed when a task gets a CPU, and when a running task gets pages. This is exact: pages that the
//! task loses meanwhile are taken from all nodes in proportion, which leaves L unchanged except for rounding.
//!
//! Properties: ν is 1 if all pages are local, or as near as local ones, and for a task without pages. It is
//! never below 1. It grows with each latency, with m, and with each page that moves farther away. It is at
//! most the ratio of the largest latency to the local latency. Each computation takes constant work per node.
//!
//! Limits:
//! - The path between two nodes carries any number of loads at once. Seed 001, section 8, could not observe
//!   contention there on Hector either.
//! - A task's cache hit rate does not depend on the node that has its data.
//! - Only a process's own memory has a node: not the kernel's, not pages of files, not memory that processes
//!   share.
//! - Pages stay where they are, except those of jobs that a plan moves. On Hurricane's machine all stay, as
//!   in seed 001, section 3, where migration and replication were switched off.
//!
//! Source: seed 001, section 3 and table 1.

use commonhold_contract::MILLIONTH;
use commonhold_machine::Machine;

use crate::scenario::Latency;

/// The latency of each node's memory from each CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    latency: Latency,
    /// The node of each CPU, as an index into the machine's nodes.
    node_of: Vec<usize>,
}

impl Remote {
    /// `None` if the machine has one node, so that no memory is remote.
    pub fn new(latency: &Latency, machine: &Machine) -> Option<Self> {
        let index_of = |id: u32| machine.nodes.iter().position(|node| node.id == id);
        let node_of = machine.cpus.iter().map(|cpu| index_of(cpu.node).unwrap_or(0)).collect();
        (machine.nodes.len() > 1).then(|| Remote { latency: latency.clone(), node_of })
    }

    /// The node of a CPU, as an index into the machine's nodes.
    #[must_use]
    pub fn node(&self, cpu: usize) -> usize {
        self.node_of[cpu]
    }

    /// The time per unit of work, in millionths, of a task on a CPU of `node`. It is stalled for
    /// `stalled_millionths` of its time; `pages` counts its pages by node, with zeros for missing nodes.
    #[must_use]
    pub fn slowdown(&self, stalled_millionths: u32, node: usize, pages: &[u64]) -> u64 {
        let by_node = self.latency.between_ns[node].iter().zip(pages);
        // Sums over pages: the number of pages, and the excess of each page's latency over the local latency.
        let (mut page_count, mut excess_ns) = (0u128, 0u128);
        for (latency_ns, pages) in by_node {
            page_count += u128::from(*pages);
            excess_ns += u128::from(*pages) * u128::from(latency_ns.saturating_sub(self.latency.local_ns));
        }
        let local_ns = page_count * u128::from(self.latency.local_ns);
        if excess_ns == 0 || local_ns == 0 {
            return MILLIONTH;
        }
        let excess = (excess_ns * u128::from(stalled_millionths) + local_ns / 2) / local_ns;
        MILLIONTH + u64::try_from(excess).unwrap_or(u64::MAX - MILLIONTH)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Four nodes of two CPUs, these latencies.
    fn remote(between_ns: [[u64; 4]; 4]) -> Remote {
        let latency =
            Latency { local_ns: 100, between_ns: between_ns.map(Vec::from).to_vec(), service: None };
        Remote::new(&latency, &Machine::synthetic("nodes:4 cpus:2").unwrap()).unwrap()
    }

    /// 100 ns at home, 150 ns and 250 ns elsewhere.
    fn ring() -> Remote {
        remote([[100, 150, 250, 150], [150, 100, 150, 250], [250, 150, 100, 150], [150, 250, 150, 100]])
    }

    #[test]
    fn a_machine_of_one_node_has_no_remote_memory() {
        let latency = Latency { local_ns: 100, between_ns: vec![vec![100]], service: None };
        assert_eq!(Remote::new(&latency, &Machine::synthetic("nodes:1 cpus:8").unwrap()), None);
    }

    #[test]
    fn cpus_are_in_their_nodes() {
        assert_eq!((0..8).map(|cpu| ring().node(cpu)).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn by_hand() {
        // 30 pages at 100 ns, 10 at 250 ns: 137.5 ns in the mean. Stalled for 40 % of the time: 1 + 0.4 x
        // 0.375.
        assert_eq!(ring().slowdown(400_000, 2, &[10, 0, 30]), 1_150_000);
        // One page in three at 150 ns, always stalled: 1.1666..
        assert_eq!(ring().slowdown(1_000_000, 1, &[1, 2, 0, 0]), 1_166_667);
    }

    #[test]
    fn who_has_no_pages_or_never_stalls_is_not_slowed() {
        assert_eq!(ring().slowdown(1_000_000, 3, &[]), MILLIONTH);
        assert_eq!(ring().slowdown(0, 3, &[7, 7, 7, 7]), MILLIONTH);
    }

    fn pages() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(0u64..1 << 41, 4)
    }

    proptest! {
        #[test]
        fn slower_by_no_more_than_the_farthest_memory(pages in pages(), node in 0usize..4, stalled in 0u32..=1_000_000) {
            let slow = ring().slowdown(stalled, node, &pages);
            prop_assert!((MILLIONTH..=MILLIONTH + u64::from(stalled) * 3 / 2).contains(&slow));
            prop_assert!(slow <= ring().slowdown(1_000_000, node, &pages));
        }

        #[test]
        fn memory_as_far_as_local_memory_slows_nobody(pages in pages(), node in 0usize..4, stalled in 0u32..=1_000_000) {
            prop_assert_eq!(remote([[100; 4]; 4]).slowdown(stalled, node, &pages), MILLIONTH);
        }

        #[test]
        fn a_page_that_moves_away_makes_nobody_faster(pages in pages(), node in 0usize..4, to in 0usize..4) {
            let mut moved = pages.clone();
            let from = (0..4).find(|from| moved[*from] > 0);
            let Some(from) = from else { return Ok(()) };
            moved[from] -= 1;
            moved[to] += 1;
            let row = &ring().latency.between_ns[node];
            let (before, after) = (ring().slowdown(500_000, node, &pages), ring().slowdown(500_000, node, &moved));
            let holds = if row[to] >= row[from] { after >= before } else { after <= before };
            prop_assert!(holds, "{} before, {} after", before, after);
        }
    }
}
