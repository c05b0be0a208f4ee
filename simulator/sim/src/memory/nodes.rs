//! In which node the pages of processes lie.
//!
//! Problem: where memory comes in nodes, how fast a process computes depends on where its pages are (see
//! `crate::contention`).
//!
//! Terms: a *node* has a number of frames. A process's *home* is the node of the CPU that it runs on now.
//!
//! Algorithm: first touch. A page that a process touches for the first time, or gets back from swap, comes into the
//! node in which the process runs. If that one is full, it comes into the nearest one that is not. Pages that are
//! taken from a process are taken from all nodes alike, in proportion to what it has there.
//!
//! Properties: a process's pages by node sum to the frames that it takes up, those on their way out included. No node
//! holds more than it has ([`Memory::check`]). A machine of one node, or one whose latencies are not said, keeps no
//! such books.
//!
//! Limits: the kernel's own frames are spread over the nodes by their size. Pages of files are not placed. They take
//! the frames that processes leave, wherever these are, and make room where a process wants to be. Pages move where
//! somebody orders it, and by themselves never.
//!
//! Source: seed 001, section 4 (data goes to the local processor's memory, and to a remote one's where it does not
//! fit) and section 3 (no migration, no replication). First touch is what Linux does by default.

use commonhold_policy::share::split;

use super::{Memory, SpaceId};
use crate::scenario::model::Hardware;

/// The frames of each node that processes may use.
#[derive(Debug, Clone)]
pub(super) struct Nodes {
    frames: Vec<u64>,
    free: Vec<u64>,
    /// By node: all nodes, the nearest first, which is itself.
    nearest: Vec<Vec<usize>>,
}

impl Nodes {
    /// `None` if it does not matter in which node a page lies. The kernel has taken its frames.
    pub(super) fn new(hardware: &Hardware, frames: u64, kernel: u64) -> Option<Nodes> {
        let bytes: Vec<u64> = hardware.machine.nodes.iter().map(|node| node.memory_bytes).collect();
        let between_ns = &hardware.latency.as_ref().filter(|_| bytes.len() > 1)?.between_ns;
        let whole = split(frames, &bytes);
        let frames: Vec<u64> =
            whole.iter().zip(split(kernel, &whole)).map(|(frames, kernel)| frames - kernel).collect();
        let nearest = |(here, row): (usize, &Vec<u64>)| {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by_key(|node| (*node != here, row[*node], *node));
            order
        };
        let nearest = between_ns.iter().enumerate().map(nearest).collect();
        Some(Nodes { free: frames.clone(), frames, nearest })
    }

    /// Places `pages` pages in the node `home`, or the nearest with free frames; the machine has enough. `lies` counts the
    /// process's pages by node.
    fn place(&mut self, lies: &mut Vec<u64>, home: usize, pages: u64) {
        lies.resize(self.free.len(), 0);
        let mut left = pages;
        for node in &self.nearest[home] {
            let here = left.min(self.free[*node]);
            lies[*node] += here;
            self.free[*node] -= here;
            left -= here;
        }
        debug_assert_eq!(left, 0, "what is granted has frames");
    }

    /// Moves pages of processes that share their memory to the nodes where they are due and where frames are free: from all
    /// nodes with an excess, to the first node of `due` with a deficit, then to the next. Takes the same part of each process.
    fn divide(&mut self, all: &mut [&mut Vec<u64>], due: &[(usize, u64)]) {
        let nodes = self.free.len();
        let mut has = vec![0; nodes];
        for lies in &mut *all {
            lies.resize(nodes, 0);
            has.iter_mut().zip(lies.iter()).for_each(|(sum, lies)| *sum += lies);
        }
        let due_of = |node: usize| due.iter().find(|(at, _)| *at == node).map_or(0, |(_, due)| *due);
        let lack = |(node, due): &(usize, u64)| (*node, due.saturating_sub(has[*node]).min(self.free[*node]));
        let mut lacks: Vec<(usize, u64)> = due.iter().map(lack).collect();
        for from in 0..nodes {
            let excess = has[from].saturating_sub(due_of(from));
            let weights: Vec<u64> = all.iter().map(|lies| lies[from]).collect();
            for (lies, pages) in all.iter_mut().zip(split(excess, &weights)) {
                let mut left = pages;
                for (to, lack) in &mut lacks {
                    let come = left.min(*lack);
                    left -= come;
                    *lack -= come;
                    lies[from] -= come;
                    lies[*to] += come;
                    self.free[from] += come;
                    self.free[*to] -= come;
                }
            }
        }
    }

    /// Frees `pages` of a process's pages, at most all.
    fn vacate(&mut self, lies: &mut [u64], pages: u64) {
        let parts = split(pages, lies);
        for ((lies, free), pages) in lies.iter_mut().zip(&mut self.free).zip(parts) {
            *lies -= pages;
            *free += pages;
        }
    }
}

impl Memory {
    /// The process runs in that node from now on, by its place among the machine's nodes.
    pub fn runs_in(&mut self, id: SpaceId, node: usize) {
        self.spaces[id.0 as usize].home = node;
    }

    /// The pages of processes that have their memory together come to nodes, which are places among the machine's: so that each
    /// has its part, or only what lies in none of them.
    pub fn bring(&mut self, ids: &[SpaceId], parts: &[(usize, u64)], divided: bool) {
        let Some(nodes) = &mut self.nodes else { return };
        let mut all: Vec<&mut Vec<u64>> = Vec::new();
        for (at, space) in self.spaces.iter_mut().enumerate() {
            if ids.iter().any(|id| id.0 as usize == at) {
                all.push(&mut space.lies);
            }
        }
        let has = |node: usize| all.iter().filter_map(|lies| lies.get(node)).sum::<u64>();
        let there: Vec<u64> = parts.iter().map(|(node, _)| has(*node)).collect();
        let whole: u64 = all.iter().map(|lies| lies.iter().sum::<u64>()).sum();
        let stay = if divided { 0 } else { there.iter().sum() };
        let weights: Vec<u64> = parts.iter().map(|(_, part)| *part).collect();
        let come = split(whole - stay, &weights);
        let due = parts
            .iter()
            .zip(come)
            .zip(there)
            .map(|(((node, _), come), there)| (*node, if divided { come } else { there + come }));
        let due: Vec<(usize, u64)> = due.collect();
        nodes.divide(&mut all, &due);
    }

    /// How many of the process's pages lie in each node, those on their way out included. A list that ends early, or is
    /// empty because these books are not kept, goes on with none.
    pub fn pages_by_node(&self, id: SpaceId) -> &[u64] {
        &self.spaces[id.0 as usize].lies
    }

    /// Pages that a process has just been granted.
    pub(super) fn place(&mut self, id: SpaceId, pages: u64) {
        let space = &mut self.spaces[id.0 as usize];
        if let Some(nodes) = &mut self.nodes {
            nodes.place(&mut space.lies, space.home, pages);
        }
    }

    /// Frames that a process no longer takes up.
    pub(super) fn vacate(&mut self, id: SpaceId, pages: u64) {
        let space = &mut self.spaces[id.0 as usize];
        if let Some(nodes) = &mut self.nodes {
            nodes.vacate(&mut space.lies, pages);
        }
    }

    /// Whether each node's frames are conserved, and the pages by node are all pages.
    pub(super) fn check_nodes(&self) -> Result<(), String> {
        let Some(nodes) = &self.nodes else { return Ok(()) };
        for (i, space) in self.spaces.iter().enumerate() {
            let lies: u64 = space.lies.iter().sum();
            if lies != space.charged() {
                return Err(format!("space {i} has {} frames, and {lies} in all nodes", space.charged()));
            }
        }
        for (node, (frames, free)) in nodes.frames.iter().zip(&nodes.free).enumerate() {
            let lies: u64 = self.spaces.iter().filter_map(|space| space.lies.get(node)).sum();
            if lies + free != *frames {
                return Err(format!("node {node}: {lies} frames used and {free} free are not {frames}"));
            }
        }
        Ok(())
    }
}
