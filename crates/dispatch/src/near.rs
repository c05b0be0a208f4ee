//! Which CPUs are near each other, in the form of the scheduler's tables.

use std::collections::BTreeMap;

use commonhold_machine::{Cpu, CpuSet, Machine};

use crate::tables::{NOBODY, Near};

/// The groups of near CPUs of a machine whose CPU numbers are below `cpus`. Groups that say nothing new are left out: a
/// node that is the whole machine, a cache that all of a node share.
pub fn near(machine: &Machine, cpus: u32) -> Vec<Near> {
    let whole = machine.cpu_set();
    let nodes = groups(machine, |cpu| cpu.node);
    let caches = groups(machine, |cpu| cpu.cache);
    let first_cache = number(nodes.len());
    let of = |id: u32| {
        let Some(cpu) = machine.cpu(id) else { return Near { cache: NOBODY, node: NOBODY } };
        let (node, cache) = (&nodes[&cpu.node], &caches[&cpu.cache]);
        Near {
            cache: if cache.1 == node.1 { NOBODY } else { first_cache + cache.0 },
            node: if node.1 == whole { NOBODY } else { node.0 },
        }
    };
    (0..cpus).map(of).collect()
}

/// CPUs by what they have in common, the groups numbered.
fn groups(machine: &Machine, by: fn(&Cpu) -> u32) -> BTreeMap<u32, (u32, CpuSet)> {
    let mut groups: BTreeMap<u32, (u32, CpuSet)> = BTreeMap::new();
    for cpu in &machine.cpus {
        groups.entry(by(cpu)).or_default().1.insert(cpu.id);
    }
    for (number, group) in (0..).zip(groups.values_mut()) {
        group.0 = number;
    }
    groups
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(machine: &str) -> Vec<(u32, u32)> {
        let machine = Machine::synthetic(machine).unwrap();
        let cpus = number(machine.cpus.len());
        near(&machine, cpus).into_iter().map(|near| (near.cache, near.node)).collect()
    }

    #[test]
    fn groups_that_say_nothing_new_are_left_out() {
        assert_eq!(of("nodes:1 cpus:2"), [(NOBODY, NOBODY); 2]);
        assert_eq!(of("nodes:2 cpus:2"), [(NOBODY, 0), (NOBODY, 0), (NOBODY, 1), (NOBODY, 1)]);
    }

    #[test]
    fn caches_within_nodes_are_groups_of_their_own() {
        let mut machine = Machine::synthetic("nodes:2 cpus:4").unwrap();
        for cpu in &mut machine.cpus {
            cpu.cache = cpu.id / 2;
        }
        let groups = near(&machine, 9);
        assert_eq!(groups[1], Near { cache: 2, node: 0 });
        assert_eq!(groups[7], Near { cache: 5, node: 1 });
        assert_eq!(groups[8], Near { cache: NOBODY, node: NOBODY }, "a CPU that is not there");
    }
}
