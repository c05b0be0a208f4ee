//! Cycles of a directed graph: programs that run themselves, locks that are taken in circles.
//!
//! Problem: find a topological order in which each node comes after all nodes that its edges lead to, or show
//! the cycles that make such an order impossible.
//!
//! Algorithm: depth-first search from each node in turn. An edge to a node that is still open (on the current
//! path) closes a cycle: the edges of the path from that node on.
//!
//! Properties: without a cycle, the order is complete. If there are cycles, at least one is found. Each edge
//! closes at most one cycle. The cost is linear in nodes and edges, plus the length of the cycles found. The
//! search does not recurse.
//!
//! Limits: of several cycles that share an edge, some may be found only after the first is removed.
//!
//! Source: depth-first search (Tarjan 1972).

/// An edge to the node `to`.
pub(crate) struct Edge<T> {
    pub(crate) to: usize,
    /// The caller's record of what made the edge, such as a program's step.
    pub(crate) origin: T,
}

/// The result of a search.
pub(crate) struct Walk<T> {
    /// Each node after the nodes that its edges lead to, edges that close a cycle excepted.
    pub(crate) order: Vec<usize>,
    /// The origins of the edges of each cycle, from the node that the search reached first.
    pub(crate) cycles: Vec<Vec<T>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Visit {
    New,
    /// On the current path.
    Open,
    /// All edges were followed.
    Done,
}

/// Searches a graph; `graph` has the edges that leave each node.
pub(crate) fn walk<T: Clone>(graph: &[Vec<Edge<T>>]) -> Walk<T> {
    let mut state = vec![Visit::New; graph.len()];
    let mut walk = Walk { order: Vec::with_capacity(graph.len()), cycles: Vec::new() };
    // The current path: the open nodes, each with the number of its edges that were followed.
    let mut path: Vec<(usize, usize)> = Vec::new();
    for start in 0..graph.len() {
        if state[start] == Visit::New {
            state[start] = Visit::Open;
            path.push((start, 0));
        }
        while let Some((node, followed)) = path.last_mut() {
            let Some(edge) = graph[*node].get(*followed) else {
                state[*node] = Visit::Done;
                walk.order.push(*node);
                path.pop();
                continue;
            };
            *followed += 1;
            match state[edge.to] {
                Visit::New => {
                    state[edge.to] = Visit::Open;
                    path.push((edge.to, 0));
                }
                Visit::Open => walk.cycles.push(cycle(graph, &path, edge.to)),
                Visit::Done => {}
            }
        }
    }
    walk
}

/// The origins of the edges that were followed last, from this node of the path to the path's end.
fn cycle<T: Clone>(graph: &[Vec<Edge<T>>], path: &[(usize, usize)], from: usize) -> Vec<T> {
    let nodes = path.iter().skip_while(|(node, _)| *node != from);
    nodes.map(|(node, followed)| graph[*node][followed - 1].origin.clone()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A graph from pairs of nodes; an edge's origin is the pair.
    fn graph(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<Edge<(usize, usize)>>> {
        let edges_of = |node: usize| edges.iter().filter(move |(from, _)| *from == node);
        let edge = |pair: &(usize, usize)| Edge { to: pair.1, origin: *pair };
        (0..nodes).map(|node| edges_of(node).map(edge).collect()).collect()
    }

    #[test]
    fn cycles_are_shown_edge_by_edge() {
        // 0 -> 1 -> 2 -> 1, and 3 -> 3.
        let walk = walk(&graph(4, &[(0, 1), (1, 2), (2, 1), (3, 3)]));
        assert_eq!(walk.cycles, [vec![(1, 2), (2, 1)], vec![(3, 3)]]);
    }

    #[test]
    fn a_diamond_is_no_cycle() {
        let walk = walk(&graph(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]));
        assert!(walk.cycles.is_empty());
        assert_eq!(walk.order, [3, 1, 2, 0]);
    }

    #[test]
    fn a_long_chain_does_not_exhaust_the_stack() {
        let edges: Vec<_> = (0..200_000).map(|node| (node, node + 1)).collect();
        let mut chain: Vec<Vec<Edge<()>>> =
            edges.iter().map(|(_, to)| vec![Edge { to: *to, origin: () }]).collect();
        chain.push(Vec::new());
        assert_eq!(walk(&chain).order.len(), 200_001);
    }

    proptest! {
        #[test]
        fn either_there_is_an_order_or_a_cycle(edges in prop::collection::vec((0usize..8, 0usize..8), 0..20)) {
            let walk = walk(&graph(8, &edges));
            let place = |node: usize| walk.order.iter().position(|other| *other == node);
            let ordered = edges.iter().all(|(from, to)| place(*from) > place(*to));
            prop_assert_eq!(walk.order.len(), 8);
            prop_assert_eq!(walk.cycles.is_empty(), ordered);
            for cycle in &walk.cycles {
                for (edge, next) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
                    prop_assert_eq!(edge.1, next.0);
                }
            }
        }
    }
}
