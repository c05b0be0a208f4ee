//! Pools: groups of CPUs that placement treats as equivalent.
//!
//! Problem: on a machine with many nodes, the threads of a job should run near each other, and different jobs
//! should run apart. A search through all CPUs for each thread does not scale. So CPUs are grouped into
//! pools, and placement chooses a pool for each thread.
//!
//! Terms:
//! - A *pool* is a set of CPUs. Every CPU is in exactly one pool.
//! - A *district* is a set of pools that are near each other: a pool of pools.
//! - A *level* of a machine divides its CPUs into parts: by last-level cache, by node, by socket. Levels
//!   nest.
//!
//! Algorithm for pools: each part of one level is a pool. The contract may choose the level. By default it is
//! the coarsest level whose parts have at most [`POOL_MAX`] CPUs each or, if there is no such level, the
//! finest level. For experiments, pools may have a given size instead: then the CPUs, in the order of nodes,
//! caches and cores, are cut into pools of that size.
//!
//! Algorithm for districts: up to [`DISTRICT_MAX`] pools form a single district. If there are more pools, the
//! pools in each part of a coarser level form a district, where the level is the finest one that has several
//! pools in a part. If there is no such level, consecutive pools form districts.
//!
//! Properties: every CPU is in one pool, and every pool is in one district. No pool and no district is empty.
//! All CPUs of a pool are in the same part of each coarser level, unless pools have a given size. The same
//! machine always gives the same pools.
//!
//! Source: seed 001, section 2 (pools match the clusters of the architecture; pools of pools from 100 CPUs
//! on) and section 5.1 (pool sizes that do not match). The two limits below are this project's own. The
//! largest cluster that the seed names, a KSR1's RING:0, has 32 CPUs.

use std::collections::BTreeMap;

use crate::{Cpu, Machine};

/// A level is fine enough for pools if no part of it has more CPUs than this.
pub const POOL_MAX: usize = 32;

/// The most pools among which placement searches directly. If there are more, it chooses a district first.
pub const DISTRICT_MAX: usize = 16;

/// How pools are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// The parts of the level that suits the machine.
    #[default]
    Auto,
    /// A pool for each last-level cache.
    Cache,
    /// A pool for each NUMA node.
    Node,
    /// A pool for each socket.
    Socket,
    /// One pool for the whole machine, as if there were no pools.
    One,
    /// Pools of this many CPUs, at least 1; the last pool has the remainder.
    Size(u32),
}

/// A level of a machine; the variants are in ascending order of the size of their parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Last-level caches.
    Cache,
    /// NUMA nodes.
    Node,
    /// Sockets.
    Socket,
    /// The whole machine.
    #[default]
    Machine,
    /// No level: pools of a given size.
    Size(u32),
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its CPUs, by ascending number. Never empty.
    pub cpus: Vec<u32>,
    /// The index of its district in [`Pools::districts`].
    pub district: usize,
}

/// The pools of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pools {
    /// The level whose parts the pools are.
    pub level: Level,
    /// The pools, in topological order of their CPUs.
    pub pools: Vec<Pool>,
    /// The pools of each district, as a range of indices of `pools`.
    pub districts: Vec<std::ops::Range<usize>>,
}

impl Pools {
    /// Forms the pools of a machine.
    pub fn form(machine: &Machine, form: Form) -> Pools {
        let level = match form {
            Form::Auto => auto_level(machine),
            Form::Cache => Level::Cache,
            Form::Node => Level::Node,
            Form::Socket => Level::Socket,
            Form::One => Level::Machine,
            Form::Size(size) => Level::Size(size.max(1)),
        };
        let order = topological_order(machine);
        let parts = match level {
            Level::Size(size) => {
                order.chunks(usize::try_from(size).unwrap_or(usize::MAX)).map(<[&Cpu]>::to_vec).collect()
            }
            level => parts(&order, level),
        };
        let districts = districts(&parts, level);
        let district = |pool: usize| districts.iter().position(|run| run.contains(&pool)).unwrap_or(0);
        let pool = |(index, cpus): (usize, &Vec<&Cpu>)| {
            let mut cpus: Vec<u32> = cpus.iter().map(|cpu| cpu.id).collect();
            cpus.sort_unstable();
            Pool { cpus, district: district(index) }
        };
        Pools { level, pools: parts.iter().enumerate().map(pool).collect(), districts }
    }

    /// The index of the pool of each CPU.
    pub fn by_cpu(&self) -> BTreeMap<u32, usize> {
        let pools = self.pools.iter().enumerate();
        pools.flat_map(|(index, pool)| pool.cpus.iter().map(move |cpu| (*cpu, index))).collect()
    }

    /// Why [`Form::Auto`] chooses its level, to be shown after the [`summary`](Self::summary).
    pub fn why(machine: &Machine) -> String {
        let order = topological_order(machine);
        let has_several_parts = |level: &Level| parts(&order, *level).len() > 1;
        let level = auto_level(machine);
        let cpus_max = parts(&order, level).iter().map(Vec::len).max().unwrap_or(0);
        let plural = |level: Level| match level {
            Level::Cache => "caches",
            Level::Node => "nodes",
            Level::Socket => "sockets",
            Level::Machine | Level::Size(_) => "CPUs",
        };
        // The next coarser level with fewer parts was rejected, since its parts are too large.
        let chosen_parts = parts(&order, level).len();
        let coarser = LEVELS.into_iter().filter(|coarser| *coarser > level && has_several_parts(coarser));
        let rejected = coarser
            .map(|coarser| (coarser, parts(&order, coarser)))
            .find(|(_, larger)| larger.len() < chosen_parts);
        match (level, rejected) {
            (Level::Machine, _) => "all its CPUs share one cache".to_owned(),
            _ if cpus_max > POOL_MAX => {
                format!("of at most {POOL_MAX} CPUs, as pools should be, the machine has no parts")
            }
            (_, Some((coarser, larger))) => {
                let cpus_max = larger.iter().map(Vec::len).max().unwrap_or(0);
                format!("{} have {cpus_max} CPUs, and pools at most {POOL_MAX}", plural(coarser))
            }
            (level, None) => format!("{} are the largest parts of the machine", plural(level)),
        }
    }

    /// The pools in a few words: `4 pools of 2 CPUs, by node`, `3 pools of 5 to 8 CPUs, by size, in 2
    /// districts`.
    pub fn summary(&self) -> String {
        let sizes = || self.pools.iter().map(|pool| pool.cpus.len());
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        let by = match self.level {
            Level::Cache => "cache",
            Level::Node => "node",
            Level::Socket => "socket",
            Level::Machine => "machine",
            Level::Size(_) => "size",
        };
        let range = if least == most { String::new() } else { format!("{least} to ") };
        let districts = match self.districts.len() {
            0 | 1 => String::new(),
            several => format!(", in {several} districts"),
        };
        let (pools, cpus) = (crate::count(self.pools.len(), "pool"), crate::count(most, "CPU"));
        format!("{pools} of {range}{cpus}, by {by}{districts}")
    }
}

/// The number of the part of a level that a CPU is in.
fn part_of(cpu: &Cpu, level: Level) -> u32 {
    match level {
        Level::Cache => cpu.cache,
        Level::Node => cpu.node,
        Level::Socket => cpu.socket,
        Level::Machine | Level::Size(_) => 0,
    }
}

/// All levels, from the finest to the coarsest.
const LEVELS: [Level; 4] = [Level::Cache, Level::Node, Level::Socket, Level::Machine];

/// The level for [`Form::Auto`]: the coarsest level whose parts are small enough; else the finest level.
fn auto_level(machine: &Machine) -> Level {
    let order = topological_order(machine);
    let is_small = |level: &Level| parts(&order, *level).iter().all(|part| part.len() <= POOL_MAX);
    // Levels with a single part are not considered. So even on a small machine, the pools are its clusters
    // and not the machine.
    let clusters = LEVELS.into_iter().rev().filter(|level| parts(&order, *level).len() > 1);
    let level = clusters.clone().find(is_small).or(clusters.clone().next_back()).unwrap_or(Level::Machine);
    // If the nodes are the same sets of CPUs as the parts, as when each socket is one node, the level is
    // called node.
    let nodes = parts(&order, Level::Node).len();
    if nodes > 1 && parts(&order, level).len() == nodes { Level::Node } else { level }
}

/// CPUs in topological order: the CPUs of each part of each level are adjacent.
fn topological_order(machine: &Machine) -> Vec<&Cpu> {
    let mut order: Vec<&Cpu> = machine.cpus.iter().collect();
    order.sort_by_key(|cpu| (cpu.socket, cpu.node, cpu.cache, cpu.core, cpu.id));
    order
}

/// The CPUs of each part of a level; `order` is topological.
fn parts<'a>(order: &[&'a Cpu], level: Level) -> Vec<Vec<&'a Cpu>> {
    order.chunk_by(|one, next| part_of(one, level) == part_of(next, level)).map(<[&Cpu]>::to_vec).collect()
}

/// The districts, as ranges of pools. A district has the pools in one part of a coarser level. If no level
/// suits, a district has about as many consecutive pools as the square root of the number of all pools.
fn districts(pools: &[Vec<&Cpu>], level: Level) -> Vec<std::ops::Range<usize>> {
    if pools.len() <= DISTRICT_MAX {
        return std::iter::once(0..pools.len()).collect();
    }
    let first_cpu = |pool: usize| pools[pool][0];
    let runs_by = |coarser: Level| -> Vec<std::ops::Range<usize>> {
        let indices: Vec<usize> = (0..pools.len()).collect();
        let is_same_part = |one: &usize, next: &usize| {
            part_of(first_cpu(*one), coarser) == part_of(first_cpu(*next), coarser)
        };
        indices.chunk_by(is_same_part).map(|run| run[0]..run[0] + run.len()).collect()
    };
    let coarser = LEVELS.into_iter().filter(|coarser| *coarser > level && *coarser < Level::Machine);
    let suits = |runs: &Vec<std::ops::Range<usize>>| runs.len() > 1 && runs.len() < pools.len();
    coarser.map(runs_by).find(suits).unwrap_or_else(|| {
        let length = pools.len().isqrt().max(1);
        (0..pools.len()).step_by(length).map(|from| from..(from + length).min(pools.len())).collect()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn machine(text: &str) -> Machine {
        Machine::synthetic(text).unwrap()
    }

    fn cpus(pools: &Pools) -> Vec<Vec<u32>> {
        pools.pools.iter().map(|pool| pool.cpus.clone()).collect()
    }

    /// Seed 001, section 5.1: twelve processors in stations of four. Six by six, the second station is
    /// divided.
    #[test]
    fn sizes_that_the_seed_tries() {
        let hector = machine("nodes:3 cpus:4");
        let of = |size| cpus(&Pools::form(&hector, Form::Size(size)));
        assert_eq!(of(6), [vec![0, 1, 2, 3, 4, 5], vec![6, 7, 8, 9, 10, 11]]);
        assert_eq!(of(4), cpus(&Pools::form(&hector, Form::Node)));
        assert_eq!((of(12).len(), of(2).len(), of(1).len()), (1, 6, 12));
        assert_eq!(of(5).iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 2]);
        assert_eq!(Pools::form(&hector, Form::Auto).summary(), "3 pools of 4 CPUs, by node");
        assert_eq!(Pools::form(&hector, Form::Size(5)).summary(), "3 pools of 2 to 5 CPUs, by size");
    }

    #[test]
    fn pools_match_the_clusters_of_the_machine() {
        for (text, expected) in [
            ("", "1 pool of 1 CPU, by machine"),
            ("cpus:8", "1 pool of 8 CPUs, by machine"),
            ("cpus:64", "1 pool of 64 CPUs, by machine"),
            ("cpus:16 caches:4", "4 pools of 4 CPUs, by cache"),
            ("nodes:2 cpus:16 caches:4", "2 pools of 16 CPUs, by node"),
            // Nodes of 128 CPUs are too large for pools.
            ("nodes:2 cpus:128 caches:16", "32 pools of 8 CPUs, by cache, in 2 districts"),
            // And these have no part that is small enough.
            ("nodes:2 cpus:64", "2 pools of 64 CPUs, by node"),
            ("nodes:32 cpus:16", "32 pools of 16 CPUs, by node, in 7 districts"),
        ] {
            assert_eq!(Pools::form(&machine(text), Form::Auto).summary(), expected, "{text}");
        }
    }

    #[test]
    fn the_choice_of_a_level_has_a_reason() {
        let mut nodes_in_sockets = machine("nodes:4 cpus:32");
        nodes_in_sockets.cpus.iter_mut().for_each(|cpu| cpu.socket = cpu.node / 2);
        assert_eq!(Pools::why(&nodes_in_sockets), "sockets have 64 CPUs, and pools at most 32");
        for (text, expected) in [
            ("cpus:64", "all its CPUs share one cache"),
            ("cpus:16 caches:4", "caches are the largest parts of the machine"),
            ("nodes:2 cpus:16 caches:4", "nodes are the largest parts of the machine"),
            ("nodes:2 cpus:128 caches:16", "nodes have 128 CPUs, and pools at most 32"),
            ("nodes:2 cpus:64", "of at most 32 CPUs, as pools should be, the machine has no parts"),
        ] {
            assert_eq!(Pools::why(&machine(text)), expected, "{text}");
        }
    }

    /// Firmware often numbers CPUs across nodes: the even ones in one, the odd ones in the other.
    #[test]
    fn numbers_say_nothing_of_where_a_cpu_is() {
        let mut machine = machine("nodes:2 cpus:4");
        for cpu in &mut machine.cpus {
            (cpu.node, cpu.cache, cpu.socket) = (cpu.id % 2, cpu.id % 2, cpu.id % 2);
        }
        let pools = |form| cpus(&Pools::form(&machine, form));
        assert_eq!(pools(Form::Node), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(pools(Form::Size(6)), [vec![0, 1, 2, 3, 4, 6], vec![5, 7]]);
    }

    #[test]
    fn sockets_may_have_several_nodes() {
        let mut machine = machine("nodes:4 cpus:4");
        for cpu in &mut machine.cpus {
            cpu.socket = cpu.node / 2;
        }
        assert_eq!(Pools::form(&machine, Form::Socket).summary(), "2 pools of 8 CPUs, by socket");
        assert_eq!(Pools::form(&machine, Form::Auto).summary(), "2 pools of 8 CPUs, by socket");
    }

    proptest! {
        /// Every CPU is in one pool, every pool in one district, and no pool crosses a node.
        #[test]
        fn nothing_is_left_out_and_nothing_twice(
            nodes in 1u32..40, caches in 1u32..5, cores in 1u32..5, threads in 1u32..3, size in 1u32..50,
            kind in 0usize..6,
        ) {
            let machine = machine(&format!("nodes:{nodes} cpus:{} threads:{threads} caches:{caches}", caches * cores * threads));
            let form = [Form::Auto, Form::Cache, Form::Node, Form::Socket, Form::One, Form::Size(size)][kind];
            let pools = Pools::form(&machine, form);
            let by_cpu = pools.by_cpu();
            prop_assert_eq!(by_cpu.len(), machine.cpus.len());
            prop_assert_eq!(pools.pools.iter().map(|pool| pool.cpus.len()).sum::<usize>(), machine.cpus.len());
            prop_assert!(pools.pools.iter().all(|pool| !pool.cpus.is_empty()));
            let listed: Vec<usize> = pools.districts.iter().cloned().flatten().collect();
            prop_assert_eq!(listed, (0..pools.pools.len()).collect::<Vec<_>>());
            for (place, pool) in pools.pools.iter().enumerate() {
                prop_assert!(pools.districts[pool.district].contains(&place));
            }
            if matches!(form, Form::Cache | Form::Node) {
                for pool in &pools.pools {
                    let node = |cpu: &u32| machine.cpu(*cpu).map(|cpu| cpu.node);
                    prop_assert!(pool.cpus.iter().all(|cpu| node(cpu) == node(&pool.cpus[0])));
                }
            }
        }
    }
}
