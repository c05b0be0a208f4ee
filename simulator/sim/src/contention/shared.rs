//! How much slower a job's tasks are because the data of its other tasks is far.
//!
//! Problem: processes of a parallel program work on each other's data. Where memory comes in nodes, some of that data is
//! far. And a node's memory, and the way to it, serves one load at a time. How much longer does each running task take?
//!
//! Terms: a task *shares* the part m of its CPU time: the part in which it waits for others' data when all of that is in its own
//! node. Its *targets* are nodes with weights w that sum to 1. λ(n, j) is the time of a load from node j on node n, ℓ from n.
//!
//! Algorithm, without queues: a unit of work has m / ℓ loads, and takes
//!
//! ```text
//! R = 1 + m (Σ w(j) λ(n, j) / ℓ - 1)
//! ```
//!
//! Algorithm, with queues: tasks are the customers of a closed queueing network. A load from node j visits the memory of j; if j
//! is another node, also the bus of the task's socket; if it is in another socket, that one's bus and the ring as well. Each
//! visit has the station to itself for the time that the machine says (`Service`), which is part of λ. A task that comes to a
//! station waits for the others that are there. In a network with one customer of each class, these are the others that would
//! be there without it. Schweitzer's approximation takes those that are there with it:
//!
//! ```text
//! W(i, k) = s(k) Σ over others o of X(o) V(o, k) (s(k) + W(o, k)),    X(i) = 1 / (R(i) + Σ V(i, k) W(i, k))
//! ```
//!
//! with V visits for a unit of work, and X units of work per unit of time. It is iterated [`ROUNDS`] times from no waits,
//! each time by half the distance, which converges to far less than a millionth for loads below saturation.
//!
//! Properties: no task is faster than alone. Equal tasks in equal places are slowed equally. A task that shares nothing
//! is not slowed. A longer latency or service time makes no task faster. The same tasks in the same places give the
//! same result, in the order of CPUs.
//!
//! Limits: only loads of shared data queue at stations, not loads of a task's own. Loads are spread evenly in time.
//!
//! Source: seed 001, sections 3 and 5.4 (the parent's memory), table 1; P. Schweitzer 1979, approximate analysis of
//! multiclass closed networks of queues.

use commonhold_contract::MILLIONTH;
use commonhold_machine::Machine;

use super::{millionths, real};
use crate::scenario::Latency;

/// Steps to the fixed point.
const ROUNDS: u32 = 60;

/// A task that runs now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharer {
    /// The node of its CPU, by place.
    pub node: usize,
    /// The part of its time in which it shares, in millionths.
    pub shares: u32,
    /// Its target nodes, by place, with weights. Empty if it has no task to share with.
    pub targets: Vec<(usize, u64)>,
}

/// Memories, and the buses and ring that lead to them.
#[derive(Debug, Clone)]
pub struct Shared {
    latency: Latency,
    /// The socket of each node, numbered from 0.
    socket: Vec<usize>,
    sockets: usize,
}

impl Shared {
    /// `None` if no memory of that machine is remote.
    pub fn new(latency: &Latency, machine: &Machine) -> Option<Shared> {
        let socket_of = |node: u32| machine.cpus.iter().find(|cpu| cpu.node == node).map(|cpu| cpu.socket);
        let names: Vec<Option<u32>> = machine.nodes.iter().map(|node| socket_of(node.id)).collect();
        let mut known: Vec<Option<u32>> = Vec::new();
        let socket = names.iter().map(|name| {
            known.iter().position(|one| one == name).unwrap_or_else(|| {
                known.push(*name);
                known.len() - 1
            })
        });
        let socket: Vec<usize> = socket.collect();
        let sockets = socket.iter().max().map_or(0, |last| last + 1);
        (machine.nodes.len() > 1).then(|| Shared { latency: latency.clone(), socket, sockets })
    }

    /// By how much the time of a unit of work grows for each task, in millionths.
    pub fn slowdowns(&self, sharers: &[Sharer]) -> Vec<u64> {
        let parts: Vec<f64> = sharers.iter().map(|sharer| self.alone(sharer)).collect();
        let extra = if self.latency.service.is_some() {
            let waits = self.waits(sharers, &parts);
            parts.iter().zip(waits).map(|(alone, wait)| alone + wait).collect()
        } else {
            parts
        };
        extra.into_iter().map(|extra| millionths(extra.max(0.0))).collect()
    }

    /// By how much the time of a unit of work grows without queues.
    fn alone(&self, sharer: &Sharer) -> f64 {
        let local = real(self.latency.local_ns);
        let sum: f64 = self
            .loads(sharer)
            .map(|(node, loads)| loads * (real(self.latency.between_ns[sharer.node][node]) - local))
            .sum();
        sum
    }

    /// Loads in a unit of work, by node.
    fn loads<'a>(&'a self, sharer: &'a Sharer) -> impl Iterator<Item = (usize, f64)> + 'a {
        let whole: u64 = sharer.targets.iter().map(|(_, weight)| weight).sum();
        let all = real(u64::from(sharer.shares)) / real(MILLIONTH) / real(self.latency.local_ns);
        sharer.targets.iter().map(move |(node, weight)| (*node, all * real(*weight) / real(whole.max(1))))
    }

    /// By how much the time of a unit of work grows because of the other tasks.
    fn waits(&self, sharers: &[Sharer], alone: &[f64]) -> Vec<f64> {
        let nodes = self.socket.len();
        let service = self.latency.service.unwrap_or_default();
        let stations = nodes + self.sockets + 1;
        let takes = |station: usize| match station {
            station if station < nodes => real(service.module_ns),
            station if station < nodes + self.sockets => real(service.bus_ns),
            _ => real(service.ring_ns),
        };
        let visits: Vec<Vec<f64>> = sharers.iter().map(|sharer| self.visits(sharer, stations)).collect();
        let mut waits = vec![vec![0.0; stations]; sharers.len()];
        let waited = |waits: &[Vec<f64>], at: usize| -> f64 {
            visits[at].iter().zip(&waits[at]).map(|(visits, wait)| visits * wait).sum()
        };
        for _ in 0..ROUNDS {
            let rate: Vec<f64> =
                (0..sharers.len()).map(|at| 1.0 / (1.0 + alone[at] + waited(&waits, at))).collect();
            for station in 0..stations {
                let one = takes(station);
                let there = |at: usize| rate[at] * visits[at][station] * (one + waits[at][station]);
                let all: f64 = (0..sharers.len()).map(there).sum();
                let next: Vec<f64> = (0..sharers.len()).map(|at| one * (all - there(at))).collect();
                for (at, next) in next.into_iter().enumerate() {
                    waits[at][station] = f64::midpoint(waits[at][station], next);
                }
            }
        }
        (0..sharers.len()).map(|at| waited(&waits, at)).collect()
    }

    /// Visits to each station in a unit of work: memories, buses, the ring.
    fn visits(&self, sharer: &Sharer, stations: usize) -> Vec<f64> {
        let nodes = self.socket.len();
        let mut visits = vec![0.0; stations];
        for (node, loads) in self.loads(sharer) {
            visits[node] += loads;
            if node == sharer.node {
                continue;
            }
            let (here, there) = (self.socket[sharer.node], self.socket[node]);
            visits[nodes + here] += loads;
            if here != there {
                visits[nodes + there] += loads;
                visits[stations - 1] += loads;
            }
        }
        visits
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scenario::Service;
    use proptest::prelude::*;

    /// Two sockets of two nodes: 100 ns at home, 150 ns in the socket, 300 ns beyond.
    fn shared(service: Option<Service>) -> Shared {
        let machine = Machine::synthetic("nodes:4 sockets:2 cpus:1").unwrap();
        let far = |here: usize, there: usize| match (here == there, here / 2 == there / 2) {
            (true, _) => 100,
            (_, true) => 150,
            _ => 300,
        };
        let between_ns = (0..4).map(|here| (0..4).map(|there| far(here, there)).collect()).collect();
        Shared::new(&Latency { local_ns: 100, between_ns, service }, &machine).unwrap()
    }

    fn sharer(node: usize, shares: u32, targets: &[(usize, u64)]) -> Sharer {
        Sharer { node, shares, targets: targets.to_vec() }
    }

    #[test]
    fn by_hand() {
        let tasks = [
            // Half of its time for data of which a part in four is beyond: 0.5 x (0.25 x 2).
            sharer(0, 500_000, &[(0, 3), (2, 1)]),
            sharer(1, 500_000, &[(0, 1)]),
            sharer(3, 0, &[(0, 1)]),
            sharer(2, 900_000, &[]),
        ];
        assert_eq!(shared(None).slowdowns(&tasks), [250_000, 250_000, 0, 0]);
    }

    /// Two tasks that do nothing but load from one memory, which is busy all of the time: each takes twice as long.
    #[test]
    fn a_memory_serves_one_at_a_time() {
        let service = Service { module_ns: 100, ..Service::default() };
        let tasks = [sharer(0, 1_000_000, &[(0, 1)]), sharer(0, 1_000_000, &[(0, 1)])];
        let slow = shared(Some(service)).slowdowns(&tasks);
        assert!((950_000..=1_000_000).contains(&slow[0]) && slow[0] == slow[1], "{slow:?}");
        // Alone, and with another memory, nobody waits.
        assert_eq!(shared(Some(service)).slowdowns(&tasks[..1]), [0]);
        let apart = [tasks[0].clone(), sharer(1, 1_000_000, &[(1, 1)])];
        assert_eq!(shared(Some(service)).slowdowns(&apart), [0, 0]);
    }

    #[test]
    fn ways_are_shared() {
        let service = Service { bus_ns: 50, ring_ns: 20, ..Service::default() };
        // One goes within its socket, one beyond: they meet on the bus.
        let tasks = [sharer(0, 800_000, &[(1, 1)]), sharer(1, 800_000, &[(2, 1)])];
        let (with, without) = (shared(Some(service)).slowdowns(&tasks), shared(None).slowdowns(&tasks));
        assert!(with[0] > without[0] && with[1] > without[1], "{with:?} {without:?}");
    }

    proptest! {
        /// A third may gain where one slows another down, so only what is alone is a bound.
        #[test]
        fn nobody_is_faster_than_alone(
            tasks in prop::collection::vec((0usize..4, 0u32..=1_000_000, prop::collection::vec((0usize..4, 1u64..9), 0..4)), 1..9),
            module_ns in 0u64..100, bus_ns in 0u64..50,
        ) {
            let shared = shared(Some(Service { module_ns, bus_ns, ring_ns: 10 }));
            let tasks: Vec<Sharer> =
                tasks.iter().map(|(node, shares, targets)| sharer(*node, *shares, targets)).collect();
            let all = shared.slowdowns(&tasks);
            for (task, among) in tasks.iter().zip(&all) {
                let alone = shared.slowdowns(std::slice::from_ref(task))[0];
                prop_assert!(*among >= alone, "{among} {alone}");
                prop_assert!(task.shares > 0 || *among == 0);
            }
            // The same tasks twice have the same neighbours.
            let twice: Vec<Sharer> = tasks.iter().chain(&tasks).cloned().collect();
            let slow = shared.slowdowns(&twice);
            // Sums in another order may round otherwise.
            for (one, other) in slow[..tasks.len()].iter().zip(&slow[tasks.len()..]) {
                prop_assert!(one.abs_diff(*other) <= 1, "{one} {other}");
            }
        }
    }
}
