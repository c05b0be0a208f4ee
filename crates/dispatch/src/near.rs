//! Which CPUs are near each other, in the form of the scheduler's tables.
//!
//! Problem: a waking task should take the idle CPU nearest to its last one. The scheduler cannot compare
//! distances at a switch.
//!
//! Algorithm: [`Pools`] divides the machine into groups of CPUs: by last-level cache, by node, by socket. The
//! scheduler searches the groups of a task's last CPU, the smallest first, and then all CPUs.
//!
//! Properties: each group of a CPU is larger than the previous one, and smaller than the machine. So no set
//! of CPUs is searched twice, and where each socket is one node, sockets are not groups. Groups are numbered
//! without gaps. There are fewer than two groups per CPU.

use commonhold_machine::Machine;
use commonhold_machine::pools::{Form, Pools};

use crate::tables::{NOBODY, Near};

/// The groups of near CPUs of a machine with CPU numbers below `cpus`. Redundant groups are left out: a node
/// that is the whole machine, a cache shared by a whole node, a socket that is one node.
pub fn near(machine: &Machine, cpus: u32) -> Vec<Near> {
    let no_groups = Near { cache: NOBODY, node: NOBODY, socket: NOBODY };
    let mut near = vec![no_groups; usize::try_from(cpus).unwrap_or(0)];
    let machine_size = machine.cpus.len();
    let nodes = Pools::form(machine, Form::Node);
    let node_of_cpu = nodes.by_cpu();
    // Groups nest, so two groups of the same size that overlap are equal: comparing sizes is enough.
    let node_size =
        |group: &[u32]| node_of_cpu.get(&group[0]).map_or(0, |node| nodes.pools[*node].cpus.len());
    let mut next_number = 0;
    let mut number_groups = |form, is_needed: &dyn Fn(&[u32]) -> bool, field: fn(&mut Near) -> &mut u32| {
        for group in Pools::form(machine, form).pools.iter().filter(|group| is_needed(&group.cpus)) {
            for cpu in &group.cpus {
                if let Some(near) = usize::try_from(*cpu).ok().and_then(|cpu| near.get_mut(cpu)) {
                    *field(near) = next_number;
                }
            }
            next_number += 1;
        }
    };
    number_groups(Form::Node, &|node| node.len() < machine_size, |near| &mut near.node);
    number_groups(Form::Cache, &|cache| cache.len() < node_size(cache), |near| &mut near.cache);
    number_groups(
        Form::Socket,
        &|socket| node_size(socket) < socket.len() && socket.len() < machine_size,
        |near| &mut near.socket,
    );
    near
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn caches_and_nodes(machine: &str) -> Vec<(u32, u32)> {
        let machine = Machine::synthetic(machine).unwrap();
        let cpus = u32::try_from(machine.cpus.len()).unwrap();
        near(&machine, cpus).into_iter().map(|near| (near.cache, near.node)).collect()
    }

    #[test]
    fn redundant_caches_and_nodes_are_left_out() {
        assert_eq!(caches_and_nodes("nodes:1 cpus:2"), [(NOBODY, NOBODY); 2]);
        assert_eq!(caches_and_nodes("nodes:2 cpus:2"), [(NOBODY, 0), (NOBODY, 0), (NOBODY, 1), (NOBODY, 1)]);
    }

    #[test]
    fn caches_within_nodes_are_groups_of_their_own() {
        let mut machine = Machine::synthetic("nodes:2 cpus:4").unwrap();
        for cpu in &mut machine.cpus {
            cpu.cache = cpu.id / 2;
        }
        let groups = near(&machine, 9);
        assert_eq!(groups[1], Near { cache: 2, node: 0, socket: NOBODY });
        assert_eq!(groups[7], Near { cache: 5, node: 1, socket: NOBODY });
        assert_eq!(
            groups[8],
            Near { cache: NOBODY, node: NOBODY, socket: NOBODY },
            "a CPU that is not there"
        );
    }

    /// Only sockets of several nodes, on machines of several sockets, are groups.
    #[test]
    fn redundant_sockets_are_left_out() {
        let sockets = |machine: &str| -> Vec<u32> {
            let machine = Machine::synthetic(machine).unwrap();
            let cpus = u32::try_from(machine.cpus.len()).unwrap();
            near(&machine, cpus).into_iter().map(|near| near.socket).collect()
        };
        assert_eq!(sockets("nodes:2 cpus:2"), [NOBODY; 4]);
        assert_eq!(sockets("nodes:2 sockets:1 cpus:2"), [NOBODY; 4]);
        assert_eq!(sockets("nodes:4 sockets:2 cpus:2"), [4, 4, 4, 4, 5, 5, 5, 5]);
    }
}
