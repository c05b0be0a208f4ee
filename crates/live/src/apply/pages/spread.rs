//! Decides which pages of a job move to which node, block by block.
//!
//! Problem: a job's pages must be divided among several nodes in given proportions, with as few moves as
//! possible.
//!
//! Terms: a node is *due* its part of the job's pages. A node with more pages has an *excess*; a node with
//! fewer has a *lack*. A *block* is a set of pages of one node that move together.
//!
//! Algorithm: the pages of a node with an excess are examined block by block. At any point, the same fraction
//! of the pages examined so far has moved: excess / pages. A block moves if the node has then given at most
//! half a block more than this fraction of its examined pages. The block moves to the node that has received
//! the smallest fraction of its lack; ties go to the node that is listed first.
//!
//! Properties: if all blocks of a node are examined, the node gives its excess to within half a block. At any
//! time, all nodes with a lack have received the same fraction of it, to within a block. So neighbouring
//! pages are spread over all these nodes.

use std::collections::BTreeMap;

use commonhold_policy::plan::NodePart;

/// A node with an excess. All numbers are pages.
#[derive(Debug, Clone, Copy)]
struct Giver {
    pages: u64,
    excess: u64,
    examined: u64,
    given: u64,
}

/// A node with a lack. All numbers are pages.
#[derive(Debug, Clone, Copy)]
struct Taker {
    node: u32,
    lack: u64,
    received: u64,
}

/// The progress of the division: what each node has given or received so far.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    givers: BTreeMap<u32, Giver>,
    /// In the order in which the nodes are listed.
    takers: Vec<Taker>,
}

impl Spread {
    /// Begins to divide pages that are now distributed as in `pages_by_node`, so that each node has its part
    /// of their sum.
    pub(super) fn new(pages_by_node: &BTreeMap<u32, u64>, parts: &[NodePart]) -> Spread {
        let dues = NodePart::due(parts, pages_by_node.values().sum());
        let due_of = |node: u32| dues.iter().find(|(other, _)| *other == node).map_or(0, |(_, due)| *due);
        let giver = |(node, pages): (&u32, &u64)| {
            let excess = pages.saturating_sub(due_of(*node));
            (excess > 0).then_some((*node, Giver { pages: *pages, excess, examined: 0, given: 0 }))
        };
        let taker = |(node, due): &(u32, u64)| {
            let lack = due.saturating_sub(pages_by_node.get(node).copied().unwrap_or(0));
            (lack > 0).then_some(Taker { node: *node, lack, received: 0 })
        };
        Spread {
            givers: pages_by_node.iter().filter_map(giver).collect(),
            takers: dues.iter().filter_map(taker).collect(),
        }
    }

    /// Whether a node still has an excess.
    pub(super) fn has_excess(&self, node: u32) -> bool {
        self.givers.get(&node).is_some_and(|giver| giver.given < giver.excess)
    }

    /// Decides about the next block, `pages` pages of a node: the node to which the block moves, or `None` if
    /// it stays.
    pub(super) fn target(&mut self, node: u32, pages: u64) -> Option<u32> {
        let giver = self.givers.get_mut(&node)?;
        giver.examined += pages;
        let to_give = u128::from(giver.excess) * u128::from(giver.examined.min(giver.pages))
            / u128::from(giver.pages.max(1));
        if u128::from(giver.given) + u128::from(pages / 2) > to_give {
            return None;
        }
        let fraction_received =
            |taker: &Taker| u128::from(taker.received) * (1 << 32) / u128::from(taker.lack);
        let least = (0..self.takers.len()).min_by_key(|n| (fraction_received(&self.takers[*n]), *n))?;
        giver.given += pages;
        self.takers[least].received += pages;
        Some(self.takers[least].node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = 512;

    fn parts(parts: &[u64]) -> Vec<NodePart> {
        (0..)
            .zip(parts)
            .filter(|(_, part)| **part > 0)
            .map(|(node, part)| NodePart { node, part: *part })
            .collect()
    }

    /// The parts are 4 and 2, so of six blocks in node 0, every third one moves to node 1.
    #[test]
    fn every_third_block_moves() {
        let mut spread = Spread::new(&[(0, 6 * BLOCK)].into(), &parts(&[4, 2]));
        let targets: Vec<Option<u32>> = (0..6).map(|_| spread.target(0, BLOCK)).collect();
        assert_eq!(targets, [None, Some(1), None, None, Some(1), None]);
        assert_eq!(spread.target(1, BLOCK), None);
        assert!(!spread.has_excess(0));
    }

    proptest! {
        /// Each node ends with its due, to within a block for each giver; and no page leaves a node without
        /// an excess.
        #[test]
        fn nodes_end_with_their_dues(
            blocks in proptest::collection::vec(0u64..200, 4), wanted in proptest::collection::vec(0u64..10, 3),
        ) {
            prop_assume!(wanted.iter().any(|part| *part > 0));
            let parts = parts(&wanted);
            let mut has: BTreeMap<u32, u64> = (0..).zip(blocks.iter().map(|blocks| blocks * BLOCK)).collect();
            let all: u64 = has.values().sum();
            let due: BTreeMap<u32, u64> = NodePart::due(&parts, all).into_iter().collect();
            let before = has.clone();
            let mut spread = Spread::new(&has, &parts);
            let order = blocks.iter().zip(0u32..).flat_map(|(blocks, node)| (0..*blocks).map(move |n| (n, node)));
            let mut order: Vec<(u64, u32)> = order.collect();
            order.sort_unstable();
            for (_, node) in order {
                if let Some(to) = spread.target(node, BLOCK) {
                    prop_assert!(before[&node] > due.get(&node).copied().unwrap_or(0) && to != node);
                    *has.entry(node).or_default() -= BLOCK;
                    *has.entry(to).or_default() += BLOCK;
                }
            }
            for (node, has) in has {
                let due = due.get(&node).copied().unwrap_or(0);
                prop_assert!(has.abs_diff(due) <= 4 * BLOCK, "node {node}: {has} of {due}");
            }
        }
    }
}
