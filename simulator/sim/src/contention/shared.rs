//! The slowdown of a job's tasks by accesses to data of the job's other tasks in other nodes.
//!
//! Problem: processes of a parallel program work on each other's data. On a NUMA machine, some of that data
//! is in other nodes. And a node's memory, and the path to it, serves one load at a time. How much longer
//! does each running task take?
//!
//! Terms: m is the fraction of a task's CPU time that it would wait for other tasks' data if all of that data
//! were in its own node; the task *shares* this fraction. Its *targets* are the nodes of the data, with
//! weights w that sum to 1. λ(n, j) is the time of a load from node j on node n, and ℓ that of a local load.
//!
//! Algorithm, without queues: a unit of work has m / ℓ loads, and takes
//!
//! ```text
//! R = 1 + m (Σ w(j) λ(n, j) / ℓ - 1)
//! ```
//!
//! Algorithm, with queues: tasks are the customers of a closed queueing network. A load from node j visits
//! the memory of j. If j is another node, the load also visits the bus of the task's socket; if j is in
//! another socket, also that socket's bus and the ring. Each visit occupies the station for its configured
//! service time (`Service`), which is part of λ. A task that arrives at a station waits for the tasks that
//! are there. In a network with one customer per class, these are the tasks that would be there if the
//! arriving task did not exist. Schweitzer's approximation takes the other tasks that are there while it
//! exists:
//!
//! ```text
//! W(i, k) = s(k) Σ over others o of X(o) V(o, k) (s(k) + W(o, k)),    X(i) = 1 / (R(i) + Σ V(i, k) W(i, k))
//! ```
//!
//! with V visits for a unit of work, and X units of work per unit of time. The equations are iterated from no
//! waits, each time by half the distance to the new value, until nothing changes by [`SETTLED`], and at most
//! [`ROUNDS`] times. Below saturation, the remaining error is far less than a millionth.
//!
//! Properties: no task is faster than alone. Equal tasks on equal nodes are slowed equally. A task that
//! shares nothing is not slowed. A longer latency or service time makes no task faster. The result is a
//! function of the tasks and their nodes, in the order of CPUs.
//!
//! Limits: only loads of shared data queue at stations, not loads of a task's own. Loads are spread evenly in
//! time.
//!
//! Source: seed 001, sections 3 and 5.4 (the parent's memory), table 1; P. Schweitzer 1979, approximate
//! analysis of multiclass closed networks of queues.

use commonhold_contract::MILLIONTH;
use commonhold_machine::Machine;

use super::{millionths, real};
use crate::scenario::Latency;

/// The most iterations towards the fixed point.
const ROUNDS: u32 = 60;
/// The change of a task's extra time per unit of work below which the iteration ends: far less than the
/// millionth to which the result is rounded.
const SETTLED: f64 = 1e-10;

/// A running task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharer {
    /// The node of its CPU, as an index.
    pub node: usize,
    /// The fraction of its time that it shares, in millionths.
    pub shares: u32,
    /// Its target nodes, as indices, with weights. Empty if it has no task to share with.
    pub targets: Vec<(usize, u64)>,
}

/// The machine's memories, buses and ring.
#[derive(Debug, Clone)]
pub struct Shared {
    latency: Latency,
    /// The socket of each node, numbered from 0.
    socket: Vec<usize>,
    sockets: usize,
}

impl Shared {
    /// `None` if the machine has one node.
    pub fn new(latency: &Latency, machine: &Machine) -> Option<Shared> {
        let socket_of = |node: u32| machine.cpus.iter().find(|cpu| cpu.node == node).map(|cpu| cpu.socket);
        let names: Vec<Option<u32>> = machine.nodes.iter().map(|node| socket_of(node.id)).collect();
        let mut known: Vec<Option<u32>> = Vec::new();
        let socket = names.iter().map(|name| {
            known.iter().position(|other| other == name).unwrap_or_else(|| {
                known.push(*name);
                known.len() - 1
            })
        });
        let socket: Vec<usize> = socket.collect();
        let sockets = socket.iter().max().map_or(0, |last| last + 1);
        (machine.nodes.len() > 1).then(|| Shared { latency: latency.clone(), socket, sockets })
    }

    /// The extra time per unit of work of each task, in millionths: 0 if the task is not slowed.
    pub fn slowdowns(&self, sharers: &[Sharer]) -> Vec<u64> {
        let without_queues: Vec<f64> = sharers.iter().map(|sharer| self.extra_alone(sharer)).collect();
        let extra = if self.latency.service.is_some() {
            let waits = self.waits(sharers, &without_queues);
            without_queues.iter().zip(waits).map(|(alone, wait)| alone + wait).collect()
        } else {
            without_queues
        };
        extra.into_iter().map(|extra| millionths(extra.max(0.0))).collect()
    }

    /// The extra time per unit of work of a task without queues: the latency of other nodes alone.
    fn extra_alone(&self, sharer: &Sharer) -> f64 {
        let local = real(self.latency.local_ns);
        let sum: f64 = self
            .loads(sharer)
            .map(|(node, loads)| loads * (real(self.latency.between_ns[sharer.node][node]) - local))
            .sum();
        sum
    }

    /// The number of loads of shared data in a unit of work (a nanosecond), by node.
    fn loads<'a>(&'a self, sharer: &'a Sharer) -> impl Iterator<Item = (usize, f64)> + 'a {
        let weight_sum: u64 = sharer.targets.iter().map(|(_, weight)| weight).sum();
        let loads = real(u64::from(sharer.shares)) / real(MILLIONTH) / real(self.latency.local_ns);
        let per_node =
            move |(node, weight): &(usize, u64)| (*node, loads * real(*weight) / real(weight_sum.max(1)));
        sharer.targets.iter().map(per_node)
    }

    /// The extra time per unit of work of each task by queues, iterated to a fixed point. `alone` is the
    /// extra time without queues.
    fn waits(&self, sharers: &[Sharer], alone: &[f64]) -> Vec<f64> {
        let nodes = self.socket.len();
        let service = self.latency.service.unwrap_or_default();
        let stations = nodes + self.sockets + 1;
        let service_ns = |station: usize| match station {
            station if station < nodes => real(service.module_ns),
            station if station < nodes + self.sockets => real(service.bus_ns),
            _ => real(service.ring_ns),
        };
        let visits: Vec<Vec<f64>> = sharers.iter().map(|sharer| self.visits(sharer, stations)).collect();
        let visitors_of = |station: usize| -> Vec<Visitor> {
            let visitor =
                |(task, visits): (usize, &Vec<f64>)| Visitor { task, visits: visits[station], wait: 0.0 };
            visits.iter().enumerate().map(visitor).filter(|visitor| visitor.visits > 0.0).collect()
        };
        // Nobody waits at a station that only one task visits.
        let mut queues: Vec<(f64, Vec<Visitor>)> = (0..stations)
            .map(|station| (service_ns(station), visitors_of(station)))
            .filter(|(service_ns, visitors)| *service_ns > 0.0 && visitors.len() > 1)
            .collect();
        let mut extra = vec![0.0; sharers.len()];
        let mut rate = extra.clone();
        for _ in 0..ROUNDS {
            for (rate, (alone, extra)) in rate.iter_mut().zip(alone.iter().zip(&extra)) {
                *rate = 1.0 / (1.0 + alone + extra);
            }
            extra.fill(0.0);
            let mut largest_change = 0.0_f64;
            for (service_ns, visitors) in &mut queues {
                // The mean number of visits of a task that are at the station, by Little's law.
                let present =
                    |visitor: &Visitor| rate[visitor.task] * visitor.visits * (*service_ns + visitor.wait);
                let all_present: f64 = visitors.iter().map(present).sum();
                for visitor in visitors {
                    let next = *service_ns * (all_present - present(visitor));
                    let change = (next - visitor.wait) / 2.0;
                    visitor.wait += change;
                    extra[visitor.task] += visitor.visits * visitor.wait;
                    largest_change = largest_change.max(change.abs() * visitor.visits);
                }
            }
            if largest_change < SETTLED {
                break;
            }
        }
        extra
    }

    /// A task's visits to each station in a unit of work. Stations are numbered: memories, buses, the ring.
    fn visits(&self, sharer: &Sharer, stations: usize) -> Vec<f64> {
        let nodes = self.socket.len();
        let mut visits = vec![0.0; stations];
        for (node, loads) in self.loads(sharer) {
            visits[node] += loads;
            if node == sharer.node {
                continue;
            }
            let (own_socket, target_socket) = (self.socket[sharer.node], self.socket[node]);
            visits[nodes + own_socket] += loads;
            if own_socket != target_socket {
                visits[nodes + target_socket] += loads;
                visits[stations - 1] += loads;
            }
        }
        visits
    }
}

/// A task that visits a station.
struct Visitor {
    task: usize,
    /// Visits in a unit of work.
    visits: f64,
    /// The wait of a visit, in ns.
    wait: f64,
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

    /// Two tasks that do nothing but load from one memory, which is busy all of the time: each takes twice as
    /// long.
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
            tasks in prop::collection::vec(
                (0usize..4, 0u32..=1_000_000, prop::collection::vec((0usize..4, 1u64..9), 0..4)), 1..9),
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
