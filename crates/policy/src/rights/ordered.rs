//! Order-statistic trees of units: for a given unit, how many units precede it, and how many tickets these
//! have together.
//!
//! Problem: the value of a unit's tickets depends on its siblings' tickets. Summing the siblings' tickets for
//! each change would take time linear in the number of siblings.
//!
//! Terms: a *tree* has its units ordered by number, or by tickets and then number. A *forest* stores the
//! nodes of many trees, so that inserting a unit rarely allocates.
//!
//! Algorithm: weight-balanced binary search trees. Each node stores the sums over its subtree. If one side of
//! a node weighs more than three times as much as the other, the node is rotated: twice if the heavy side's
//! inner half weighs at least twice as much as its outer half, else once.
//!
//! Properties (tested): every operation takes time logarithmic in the units of the tree. Sums equal those of
//! a sorted list.
//!
//! Source, also of the factors 3 and 2: Y. Hirai, K. Yamamoto: Balancing weight-balanced trees (2011).

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// The largest allowed ratio of the weights of a node's two sides. A side's weight is its number of nodes
/// plus one.
const WEIGHT_RATIO_MAX: u64 = 3;

/// If the inner half of a heavy side weighs at least this many times its outer half, a double rotation is
/// needed.
const DOUBLE_ROTATION_RATIO: u64 = 2;

/// The index of the sentinel node that stands for an empty tree; its sums are 0.
const NIL: u32 = 0;

/// A count of units and the sum of their tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sums {
    /// The number of units.
    pub(super) units: u64,
    /// The sum of their tickets.
    pub(super) tickets: u64,
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.units += other.units;
        self.tickets += other.tickets;
    }

    /// These sums less the sums of a subset.
    pub(super) fn less(self, subset: Sums) -> Sums {
        Sums { units: self.units - subset.units, tickets: self.tickets - subset.tickets }
    }
}

/// A unit in a tree, or a lot ([`super::lots`]).
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// The unit's number, or that of a lot.
    pub(super) id: u64,
    /// The unit's effective tickets, or the tickets in the lot.
    pub(super) tickets: u64,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    entry: Entry,
    left: u32,
    right: u32,
    /// Sums over the node's subtree.
    sums: Sums,
}

const EMPTY: Node =
    Node { entry: Entry { id: 0, tickets: 0 }, left: NIL, right: NIL, sums: Sums { units: 0, tickets: 0 } };

/// One tree of a forest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tree {
    root: u32,
    by_tickets: bool,
}

impl Tree {
    /// An empty tree, ordered by tickets or by number.
    pub(super) fn new(by_tickets: bool) -> Tree {
        Tree { root: NIL, by_tickets }
    }

    fn order(self, a: Entry, b: Entry) -> Ordering {
        let tickets = |entry: Entry| if self.by_tickets { entry.tickets } else { 0 };
        (tickets(a), a.id).cmp(&(tickets(b), b.id))
    }
}

/// The nodes of many trees.
#[derive(Debug, Clone)]
pub(super) struct Forest {
    nodes: Vec<Node>,
    /// Indices of free nodes.
    free: Vec<u32>,
}

impl Default for Forest {
    fn default() -> Self {
        Forest { nodes: vec![EMPTY], free: Vec::new() }
    }
}

impl Forest {
    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// Sums over a tree.
    pub(super) fn total(&self, tree: Tree) -> Sums {
        self.node(tree.root).sums
    }

    /// Sums over the units before `entry`, which need not be in the tree.
    pub(super) fn before(&self, tree: Tree, entry: Entry) -> Sums {
        self.sum_while(tree, |other| tree.order(other, entry) == Ordering::Less)
    }

    /// Sums over the units with at most `tickets`, in a tree ordered by tickets.
    pub(super) fn up_to(&self, tree: Tree, tickets: u128) -> Sums {
        debug_assert!(tree.by_tickets, "the tree is ordered by number");
        self.sum_while(tree, |other| u128::from(other.tickets) <= tickets)
    }

    /// Sums over the first units in the tree's order, up to the first for which `holds` is false. `holds`
    /// must be false for all units after that one as well.
    fn sum_while(&self, tree: Tree, holds: impl Fn(Entry) -> bool) -> Sums {
        let (mut sums, mut at) = (Sums::default(), tree.root);
        while at != NIL {
            let node = self.node(at);
            if holds(node.entry) {
                sums.add(self.node(node.left).sums);
                sums.add(Sums { units: 1, tickets: node.entry.tickets });
                at = node.right;
            } else {
                at = node.left;
            }
        }
        sums
    }

    /// Calls `visit` with every unit in the tree's order.
    pub(super) fn for_each(&self, tree: Tree, visit: &mut dyn FnMut(Entry)) {
        self.for_each_below(tree.root, visit);
    }

    fn for_each_below(&self, at: u32, visit: &mut dyn FnMut(Entry)) {
        if at != NIL {
            let node = self.node(at);
            self.for_each_below(node.left, visit);
            visit(node.entry);
            self.for_each_below(node.right, visit);
        }
    }

    /// Inserts a unit that is not in the tree.
    pub(super) fn insert(&mut self, tree: &mut Tree, entry: Entry) {
        let node = Node { entry, sums: Sums { units: 1, tickets: entry.tickets }, ..EMPTY };
        let at = if let Some(at) = self.free.pop() {
            *self.node_mut(at) = node;
            at
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
        };
        tree.root = self.insert_below(*tree, tree.root, at);
    }

    /// Inserts the node `new` into the subtree at `at`. Returns the subtree's new root.
    fn insert_below(&mut self, tree: Tree, at: u32, new: u32) -> u32 {
        if at == NIL {
            return new;
        }
        let node = *self.node(at);
        if tree.order(self.node(new).entry, node.entry) == Ordering::Less {
            self.node_mut(at).left = self.insert_below(tree, node.left, new);
        } else {
            self.node_mut(at).right = self.insert_below(tree, node.right, new);
        }
        self.rebalance(at)
    }

    /// Removes a unit; no effect if the unit is not in the tree.
    pub(super) fn remove(&mut self, tree: &mut Tree, entry: Entry) {
        tree.root = self.remove_below(*tree, tree.root, entry);
    }

    /// Removes a unit from the subtree at `at`. Returns the subtree's new root.
    fn remove_below(&mut self, tree: Tree, at: u32, entry: Entry) -> u32 {
        if at == NIL {
            debug_assert!(false, "unit {} is not there", entry.id);
            return NIL;
        }
        let node = *self.node(at);
        match tree.order(entry, node.entry) {
            Ordering::Less => self.node_mut(at).left = self.remove_below(tree, node.left, entry),
            Ordering::Greater => self.node_mut(at).right = self.remove_below(tree, node.right, entry),
            Ordering::Equal => {
                self.free.push(at);
                if node.right == NIL {
                    return node.left;
                }
                // The unit's successor takes its place.
                let (successor, rest) = self.split_first(node.right);
                let successor_node = self.node_mut(successor);
                (successor_node.left, successor_node.right) = (node.left, rest);
                return self.rebalance(successor);
            }
        }
        self.rebalance(at)
    }

    /// Splits off the first node of the subtree at `at`. Returns that node, and the root of the remaining
    /// subtree.
    fn split_first(&mut self, at: u32) -> (u32, u32) {
        let node = *self.node(at);
        if node.left == NIL {
            return (at, node.right);
        }
        let (first, left) = self.split_first(node.left);
        self.node_mut(at).left = left;
        (first, self.rebalance(at))
    }

    fn weight(&self, at: u32) -> u64 {
        self.node(at).sums.units + 1
    }

    /// Recomputes the sums of a node from its children's sums.
    fn update_sums(&mut self, at: u32) {
        let node = *self.node(at);
        let mut sums = Sums { units: 1, tickets: node.entry.tickets };
        sums.add(self.node(node.left).sums);
        sums.add(self.node(node.right).sums);
        self.node_mut(at).sums = sums;
    }

    /// Restores balance and sums of the subtree at `at`, one side of which gained or lost a node. Returns the
    /// subtree's new root.
    fn rebalance(&mut self, at: u32) -> u32 {
        let node = *self.node(at);
        let (left, right) = (self.weight(node.left), self.weight(node.right));
        if right > WEIGHT_RATIO_MAX * left {
            let heavy = *self.node(node.right);
            if self.weight(heavy.left) >= DOUBLE_ROTATION_RATIO * self.weight(heavy.right) {
                self.node_mut(at).right = self.rotate_right(node.right);
            }
            return self.rotate_left(at);
        }
        if left > WEIGHT_RATIO_MAX * right {
            let heavy = *self.node(node.left);
            if self.weight(heavy.right) >= DOUBLE_ROTATION_RATIO * self.weight(heavy.left) {
                self.node_mut(at).left = self.rotate_left(node.left);
            }
            return self.rotate_right(at);
        }
        self.update_sums(at);
        at
    }

    /// Left rotation: the right child becomes the subtree's root, which is returned.
    fn rotate_left(&mut self, at: u32) -> u32 {
        let root = self.node(at).right;
        self.node_mut(at).right = self.node(root).left;
        self.node_mut(root).left = at;
        self.update_sums(at);
        self.update_sums(root);
        root
    }

    /// Right rotation: the left child becomes the subtree's root, which is returned.
    fn rotate_right(&mut self, at: u32) -> u32 {
        let root = self.node(at).left;
        self.node_mut(at).left = self.node(root).right;
        self.node_mut(root).right = at;
        self.update_sums(at);
        self.update_sums(root);
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl Forest {
        /// The depth of a tree; checks every node's sums and balance.
        fn depth(&self, at: u32) -> u32 {
            if at == NIL {
                return 0;
            }
            let here = self.node(at);
            let (left, right) = (self.node(here.left).sums, self.node(here.right).sums);
            assert_eq!(here.sums.units, left.units + right.units + 1);
            assert_eq!(here.sums.tickets, left.tickets + right.tickets + here.entry.tickets);
            assert!(
                left.units < WEIGHT_RATIO_MAX * (right.units + 1)
                    && right.units < WEIGHT_RATIO_MAX * (left.units + 1)
            );
            1 + self.depth(here.left).max(self.depth(here.right))
        }
    }

    #[test]
    fn a_thousand_in_order_are_no_deeper_than_twice_the_logarithm() {
        let (mut forest, mut tree) = (Forest::default(), Tree::new(false));
        for id in 0..1000 {
            forest.insert(&mut tree, Entry { id, tickets: 2 });
        }
        assert!(forest.depth(tree.root) <= 20, "{}", forest.depth(tree.root));
        assert_eq!(forest.before(tree, Entry { id: 300, tickets: 2 }), Sums { units: 300, tickets: 600 });
        for id in 0..1000 {
            forest.remove(&mut tree, Entry { id, tickets: 2 });
        }
        assert_eq!((forest.total(tree), forest.free.len()), (Sums::default(), 1000));
    }

    proptest! {
        /// Compares two trees in one forest with sorted sets.
        #[test]
        fn any_history_has_the_sums_of_a_sorted_list(
            history in proptest::collection::vec((0usize..2, 0u64..60, 0u64..12), 1..300),
        ) {
            let mut forest = Forest::default();
            let mut trees = [Tree::new(false), Tree::new(true)];
            let mut lists: [BTreeSet<(u64, u64)>; 2] = Default::default();
            for (which, id, tickets) in history {
                let (tree, list) = (&mut trees[which], &mut lists[which]);
                // The key under which the list has it: tickets may differ from those of this operation.
                let there = list.iter().copied().find(|(_, other)| *other == id);
                if let Some((tickets, id)) = there {
                    forest.remove(tree, Entry { id, tickets });
                    list.remove(&(tickets, id));
                } else {
                    forest.insert(tree, Entry { id, tickets });
                    list.insert((tickets, id));
                }
                for (tree, list) in trees.iter().zip(&lists) {
                    forest.depth(tree.root);
                    let sums = |entries: &mut dyn Iterator<Item = &(u64, u64)>| {
                        let mut sums = Sums::default();
                        entries.for_each(|(tickets, _)| sums.add(Sums { units: 1, tickets: *tickets }));
                        sums
                    };
                    let entry = Entry { id, tickets };
                    let before = |(t, i): &(u64, u64)| tree.order(Entry { id: *i, tickets: *t }, entry).is_lt();
                    prop_assert_eq!(forest.total(*tree), sums(&mut list.iter()));
                    prop_assert_eq!(forest.before(*tree, entry), sums(&mut list.iter().filter(|e| before(e))));
                    if tree.by_tickets {
                        let few = sums(&mut list.iter().filter(|(t, _)| *t <= tickets));
                        prop_assert_eq!(forest.up_to(*tree, tickets.into()), few);
                    }
                    let mut seen = Vec::new();
                    forest.for_each(*tree, &mut |entry| seen.push((entry.tickets, entry.id)));
                    let mut due: Vec<(u64, u64)> = list.iter().copied().collect();
                    if !tree.by_tickets {
                        due.sort_by_key(|(_, id)| *id);
                    }
                    prop_assert_eq!(seen, due);
                }
            }
        }
    }
}
