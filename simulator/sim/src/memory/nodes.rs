//! The NUMA placement of processes' pages: how many lie in each node.
//!
//! Problem: on a NUMA machine, the speed of a process depends on the nodes that have its pages (see
//! `crate::contention`).
//!
//! Terms: a *node* has a number of frames. A process's *home* is the node of the CPU that it runs on now.
//!
//! Algorithm: first touch. A page that a process touches for the first time, or gets back from swap, is
//! placed in the home node, or in the nearest node with free frames if the home node is full. Pages are taken
//! from a process in proportion to its pages in each node.
//!
//! Properties: the pages of a process by node, with pages that are being written out, sum to the frames that
//! the process occupies. No node has more pages than frames ([`Memory::check`]). Nothing is counted on a
//! machine with one node, or without configured latencies.
//!
//! Limits: the kernel's own frames are spread over the nodes by their size. Pages of files have no node. They
//! occupy frames that processes do not use, in any node, and never displace a process's pages from its home.
//! Pages move only by an order, never by themselves.
//!
//! Source: seed 001, section 4 (data goes to the local processor's memory, and to a remote one's where it
//! does not fit) and section 3 (no migration, no replication). First touch is what Linux does by default.

use commonhold_policy::share::split;

use super::{Memory, SpaceId};
use crate::scenario::model::Hardware;

/// The frames of each node that processes may use.
#[derive(Debug, Clone)]
pub(super) struct Nodes {
    /// By node: all frames, and the frames that no process uses.
    frames: Vec<u64>,
    free: Vec<u64>,
    /// By node: all nodes by distance, beginning with the node itself.
    nearest: Vec<Vec<usize>>,
}

impl Nodes {
    /// The nodes of a machine with `frames` frames, of which the kernel keeps `kernel`. `None` if pages have
    /// no node: the machine has one node, or no configured latencies.
    pub(super) fn new(hardware: &Hardware, frames: u64, kernel: u64) -> Option<Nodes> {
        let bytes: Vec<u64> = hardware.machine.nodes.iter().map(|node| node.memory_bytes).collect();
        let between_ns = &hardware.latency.as_ref().filter(|_| bytes.len() > 1)?.between_ns;
        let all_frames = split(frames, &bytes);
        let kernel_frames = split(kernel, &all_frames);
        let frames: Vec<u64> =
            all_frames.iter().zip(kernel_frames).map(|(frames, kernel)| frames - kernel).collect();
        let by_distance = |(from, latencies): (usize, &Vec<u64>)| {
            let mut order: Vec<usize> = (0..latencies.len()).collect();
            order.sort_by_key(|node| (*node != from, latencies[*node], *node));
            order
        };
        let nearest = between_ns.iter().enumerate().map(by_distance).collect();
        Some(Nodes { free: frames.clone(), frames, nearest })
    }

    /// Places `pages` pages in the node `home`, or the nearest nodes with free frames; the machine has
    /// enough. `by_node` has the process's pages in each node.
    fn place(&mut self, by_node: &mut Vec<u64>, home: usize, pages: u64) {
        by_node.resize(self.free.len(), 0);
        let mut remaining = pages;
        for node in &self.nearest[home] {
            let placed = remaining.min(self.free[*node]);
            by_node[*node] += placed;
            self.free[*node] -= placed;
            remaining -= placed;
        }
        debug_assert_eq!(remaining, 0, "granted pages have frames");
    }

    /// Moves pages of processes that share their memory. `targets` are nodes, each with a number of pages; no
    /// node gets more than that, or than its free frames. Pages move from every node with an excess to the
    /// first target with a deficit, then to the next. The pages are taken from the processes in proportion.
    fn divide(&mut self, processes: &mut [&mut Vec<u64>], targets: &[(usize, u64)]) {
        let nodes = self.free.len();
        let mut present = vec![0; nodes];
        for by_node in &mut *processes {
            by_node.resize(nodes, 0);
            present.iter_mut().zip(by_node.iter()).for_each(|(sum, pages)| *sum += pages);
        }
        let target_of =
            |node: usize| targets.iter().find(|(target, _)| *target == node).map_or(0, |(_, pages)| *pages);
        let deficit = |(node, target): &(usize, u64)| {
            (*node, target.saturating_sub(present[*node]).min(self.free[*node]))
        };
        let mut deficits: Vec<(usize, u64)> = targets.iter().map(deficit).collect();
        for from in 0..nodes {
            let excess = present[from].saturating_sub(target_of(from));
            let weights: Vec<u64> = processes.iter().map(|by_node| by_node[from]).collect();
            for (by_node, pages) in processes.iter_mut().zip(split(excess, &weights)) {
                let mut remaining = pages;
                for (to, deficit) in &mut deficits {
                    let moved = remaining.min(*deficit);
                    remaining -= moved;
                    *deficit -= moved;
                    by_node[from] -= moved;
                    by_node[*to] += moved;
                    self.free[from] += moved;
                    self.free[*to] -= moved;
                }
            }
        }
    }

    /// Frees `pages` of a process's pages, in proportion to its pages in each node.
    fn vacate(&mut self, by_node: &mut [u64], pages: u64) {
        let freed = split(pages, by_node);
        for ((in_node, free), pages) in by_node.iter_mut().zip(&mut self.free).zip(freed) {
            *in_node -= pages;
            *free += pages;
        }
    }
}

impl Memory {
    /// Sets the node in which a process runs from now on, as an index into the machine's nodes.
    pub fn set_home(&mut self, id: SpaceId, node: usize) {
        self.spaces[id.0 as usize].home = node;
    }

    /// Migrates the pages of processes that share their memory to nodes, given as indices into the machine's
    /// nodes with weights. `divided`: all pages are divided among these nodes by weight. Otherwise only the
    /// pages that lie outside these nodes move.
    pub fn migrate(&mut self, ids: &[SpaceId], parts: &[(usize, u64)], divided: bool) {
        let Some(nodes) = &mut self.nodes else { return };
        let mut processes: Vec<&mut Vec<u64>> = Vec::new();
        for (index, space) in self.spaces.iter_mut().enumerate() {
            if ids.iter().any(|id| id.0 as usize == index) {
                processes.push(&mut space.by_node);
            }
        }
        let pages_in = |node: usize| processes.iter().filter_map(|by_node| by_node.get(node)).sum::<u64>();
        let present: Vec<u64> = parts.iter().map(|(node, _)| pages_in(*node)).collect();
        let total: u64 = processes.iter().map(|by_node| by_node.iter().sum::<u64>()).sum();
        let staying = if divided { 0 } else { present.iter().sum() };
        let weights: Vec<u64> = parts.iter().map(|(_, part)| *part).collect();
        let distributed = split(total - staying, &weights);
        let targets =
            parts.iter().zip(distributed).zip(present).map(|(((node, _), distributed), present)| {
                (*node, if divided { distributed } else { present + distributed })
            });
        let targets: Vec<(usize, u64)> = targets.collect();
        nodes.divide(&mut processes, &targets);
    }

    /// How many of a process's pages lie in each node, including pages that are being written out. Nodes
    /// beyond the end of the list have none; the list is empty if pages have no nodes.
    pub fn pages_by_node(&self, id: SpaceId) -> &[u64] {
        &self.spaces[id.0 as usize].by_node
    }

    /// Places pages that a process has just been granted.
    pub(super) fn place(&mut self, id: SpaceId, pages: u64) {
        let space = &mut self.spaces[id.0 as usize];
        if let Some(nodes) = &mut self.nodes {
            nodes.place(&mut space.by_node, space.home, pages);
        }
    }

    /// Frees frames that a process no longer occupies.
    pub(super) fn vacate(&mut self, id: SpaceId, pages: u64) {
        let space = &mut self.spaces[id.0 as usize];
        if let Some(nodes) = &mut self.nodes {
            nodes.vacate(&mut space.by_node, pages);
        }
    }

    /// Checks that each node's frames are conserved, and that each process's pages by node sum to its frames.
    pub(super) fn check_nodes(&self) -> Result<(), String> {
        let Some(nodes) = &self.nodes else { return Ok(()) };
        for (i, space) in self.spaces.iter().enumerate() {
            let in_nodes: u64 = space.by_node.iter().sum();
            if in_nodes != space.charged() {
                return Err(format!("space {i} has {} frames, and {in_nodes} in all nodes", space.charged()));
            }
        }
        for (node, (frames, free)) in nodes.frames.iter().zip(&nodes.free).enumerate() {
            let used: u64 = self.spaces.iter().filter_map(|space| space.by_node.get(node)).sum();
            if used + free != *frames {
                return Err(format!("node {node}: {used} frames used and {free} free are not {frames}"));
            }
        }
        Ok(())
    }
}
