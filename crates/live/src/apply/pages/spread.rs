//! Which pages of a job go to which node, block by block.
//!
//! Problem: a job's pages must be divided among several nodes by given parts. Pages that are already where they should be must
//! stay.
//!
//! Terms: a node's *excess* is the number of its pages beyond its due; its *lack* is the number of missing pages. A *block* is
//! a set of pages that move together.
//!
//! Algorithm: the fraction of a node's examined pages that moves is its excess over all its pages. A block moves if the node
//! then exceeds that by at most half a block. It goes to the node that has received the smallest fraction of its lack; ties go
//! to the first one named.
//!
//! Properties: a node gives its excess to within half a block, if all its blocks are examined. At any time, all nodes have
//! received the same fraction of their lack, to within a block. So neighbouring pages are spread over all of them.

use std::collections::BTreeMap;

use commonhold_policy::plan::NodePart;

/// A node with an excess, in pages.
#[derive(Debug, Clone, Copy)]
struct Over {
    has: u64,
    excess: u64,
    seen: u64,
    given: u64,
}

/// A node with a lack, in pages.
#[derive(Debug, Clone, Copy)]
struct Lack {
    node: u32,
    whole: u64,
    received: u64,
}

/// The remaining excesses and lacks.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    over: BTreeMap<u32, Over>,
    lacks: Vec<Lack>,
}

impl Spread {
    /// For pages distributed over nodes as in `has`.
    pub(super) fn new(has: &BTreeMap<u32, u64>, parts: &[NodePart]) -> Spread {
        let due = NodePart::due(parts, has.values().sum());
        let due_of = |node: u32| due.iter().find(|(at, _)| *at == node).map_or(0, |(_, due)| *due);
        let over = |(node, has): (&u32, &u64)| {
            let excess = has.saturating_sub(due_of(*node));
            (excess > 0).then_some((*node, Over { has: *has, excess, seen: 0, given: 0 }))
        };
        let lack = |(node, due): &(u32, u64)| {
            let whole = due.saturating_sub(has.get(node).copied().unwrap_or(0));
            (whole > 0).then_some(Lack { node: *node, whole, received: 0 })
        };
        Spread { over: has.iter().filter_map(over).collect(), lacks: due.iter().filter_map(lack).collect() }
    }

    /// Whether pages of a node may move.
    pub(super) fn gives(&self, node: u32) -> bool {
        self.over.get(&node).is_some_and(|over| over.given < over.excess)
    }

    /// The node to which this many pages of a node move; `None`: they stay.
    pub(super) fn goes(&mut self, node: u32, pages: u64) -> Option<u32> {
        let over = self.over.get_mut(&node)?;
        over.seen += pages;
        let due = u128::from(over.excess) * u128::from(over.seen.min(over.has)) / u128::from(over.has.max(1));
        if u128::from(over.given) + u128::from(pages / 2) > due {
            return None;
        }
        let fraction_received = |lack: &Lack| u128::from(lack.received) * (1 << 32) / u128::from(lack.whole);
        let at = (0..self.lacks.len()).min_by_key(|at| (fraction_received(&self.lacks[*at]), *at))?;
        over.given += pages;
        self.lacks[at].received += pages;
        Some(self.lacks[at].node)
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

    /// 4 to 2: of six blocks in the first node, every third moves to the second.
    #[test]
    fn every_third_block_goes() {
        let mut spread = Spread::new(&[(0, 6 * BLOCK)].into(), &parts(&[4, 2]));
        let went: Vec<Option<u32>> = (0..6).map(|_| spread.goes(0, BLOCK)).collect();
        assert_eq!(went, [None, Some(1), None, None, Some(1), None]);
        assert_eq!(spread.goes(1, BLOCK), None);
        assert!(!spread.gives(0));
    }

    proptest! {
        /// Each node ends with its due, to within a block for each node that gave; and nothing leaves a node without an excess.
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
                if let Some(to) = spread.goes(node, BLOCK) {
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
