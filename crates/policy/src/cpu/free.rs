//! Free CPUs, and the search for the free CPU nearest to the CPUs that a unit already has.
//!
//! Problem: a unit takes free CPUs one at a time, each time the CPU with the smallest sum of distances to the
//! unit's CPUs so far. Summing distances over all pairs of free and own CPUs is too slow on thousands of
//! CPUs.
//!
//! Terms: the *distance* between two CPUs is [`Machine::distance`]: 1 in the same core, 2 in the same cache,
//! 3 in the same node, 4 otherwise. The *nearness* of a free CPU is the number of own CPUs in its core, plus
//! those in its cache, plus those in its node.
//!
//! Algorithm, in one pool: cores nest in caches, and caches in nodes. So the sum of a free CPU's distances to
//! N own CPUs is 4N minus its nearness, and the closest free CPU is that with the greatest nearness. The
//! nearness is the sum of three counters: the own CPUs in the free CPU's core, in its cache and in its node.
//! Free CPUs are listed by pool and node. A CPU's nearness is at most three times the number of own CPUs in
//! its node. So once a CPU is known that is nearer than that, the node need not be searched.
//!
//! Example: a unit has two CPUs in a node, one of them in the same core as free CPU 1. The other is in
//! another cache. CPU 1 has nearness 1 + 1 + 2 = 4, and the sum of its distances is 4 * 2 - 4 = 4: distance 1
//! to the CPU in its core, and 3 to the other.
//!
//! Algorithm, among pools: the unit first takes free CPUs in the pools that it already uses, then in one pool
//! after the other, as [`PoolFit::choose`] chooses them.
//!
//! Properties: of equally near CPUs, that with the lowest number is taken. A unit gets too few CPUs only if
//! no CPU is free in any pool. Taking one CPU scans at most the free CPUs of its pool, and usually only the
//! free CPUs of one node.
//!
//! Limit: if units take all CPUs of one very large pool, the cost is quadratic in the number of CPUs (8
//! million steps for 4,096 CPUs).
//!
//! Source: seed 000, section 3.1 (which unit owns which CPU), and seed 001, section 6 (pools); the rest is
//! ours.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

#[cfg(test)]
use commonhold_machine::pools::Form;
use commonhold_machine::pools::Pools;
use commonhold_machine::{Cpu, Machine};

use super::pool_fit::{PoolFit, surroundings};

/// A CPU with its position: dense numbers, from 0, of its socket, node, cache and core.
#[derive(Debug, Clone, Copy)]
struct Spot {
    cpu: u32,
    socket: usize,
    node: usize,
    cache: usize,
    core: usize,
    pool: usize,
    /// The index in [`FreeCpus::lists`] of the list for its pool and node.
    list: usize,
}

/// Nearness of a spot. Among equals, the lowest CPU number compares greatest.
type Nearness = (u32, Reverse<u32>);

/// Position of a free CPU: the index of a list, and the index in that list.
type Position = (usize, usize);

/// How many CPUs the unit that is being served has in each socket, node, cache and core.
#[derive(Debug)]
struct OwnCounts {
    sockets: Vec<u32>,
    nodes: Vec<u32>,
    caches: Vec<u32>,
    cores: Vec<u32>,
}

impl OwnCounts {
    fn none(spots: &[Spot]) -> OwnCounts {
        let zeros =
            |index: fn(&Spot) -> usize| vec![0; spots.iter().map(index).max().map_or(0, |max| max + 1)];
        OwnCounts {
            sockets: zeros(|spot| spot.socket),
            nodes: zeros(|spot| spot.node),
            caches: zeros(|spot| spot.cache),
            cores: zeros(|spot| spot.core),
        }
    }

    fn add(&mut self, spot: Spot) {
        self.sockets[spot.socket] += 1;
        self.nodes[spot.node] += 1;
        self.caches[spot.cache] += 1;
        self.cores[spot.core] += 1;
    }

    fn sub(&mut self, spot: Spot) {
        self.sockets[spot.socket] -= 1;
        self.nodes[spot.node] -= 1;
        self.caches[spot.cache] -= 1;
        self.cores[spot.core] -= 1;
    }

    /// The nearness of a pool, judged by its first CPU `spot`: own CPUs in that CPU's node, plus those in its
    /// socket.
    fn pool_nearness(&self, spot: &Spot) -> u32 {
        self.nodes[spot.node] + self.sockets[spot.socket]
    }

    fn nearness(&self, spot: &Spot) -> Nearness {
        (self.nodes[spot.node] + self.caches[spot.cache] + self.cores[spot.core], Reverse(spot.cpu))
    }
}

/// Free CPUs of one pool in one node.
#[derive(Debug)]
struct List {
    node: usize,
    /// Unordered.
    free: Vec<Spot>,
}

/// The free CPUs of a machine.
#[derive(Debug)]
pub(crate) struct FreeCpus {
    /// Every CPU of the machine, in ascending order.
    spots: Vec<Spot>,
    /// By pool, then by node.
    lists: Vec<List>,
    /// The range of lists of each pool.
    pools: Vec<Range<usize>>,
    /// The first CPU of each pool.
    first: Vec<Spot>,
    fit: PoolFit,
    own: OwnCounts,
}

impl FreeCpus {
    /// The free CPUs of a machine, treated as one pool.
    #[cfg(test)]
    pub(crate) fn of(machine: &Machine, is_free: impl Fn(u32) -> bool) -> FreeCpus {
        let one = Pools::form(machine, Form::One);
        FreeCpus::in_pools(machine, &one, is_free)
    }

    /// The free CPUs of a machine, by pool.
    pub(crate) fn in_pools(machine: &Machine, pools: &Pools, is_free: impl Fn(u32) -> bool) -> FreeCpus {
        let mut spots = spots(machine, pools);
        // One list for each pair of a pool and a node that have CPUs in common.
        let mut cells: Vec<(usize, usize)> = spots.iter().map(|spot| (spot.pool, spot.node)).collect();
        cells.sort_unstable();
        cells.dedup();
        let mut lists: Vec<List> =
            cells.iter().map(|(_, node)| List { node: *node, free: Vec::new() }).collect();
        let mut free_cpus = vec![0; pools.pools.len()];
        for spot in &mut spots {
            spot.list = cells.partition_point(|cell| *cell < (spot.pool, spot.node));
            if is_free(spot.cpu) {
                lists[spot.list].free.push(*spot);
                free_cpus[spot.pool] += 1;
            }
        }
        let first_list = |pool: usize| cells.partition_point(|cell| cell.0 < pool);
        let mut first: Vec<Spot> = spots.clone();
        first.sort_by_key(|spot| (spot.pool, spot.cpu));
        first.dedup_by_key(|spot| spot.pool);
        let nodes = first.iter().map(|spot| spot.node).collect();
        let sockets = first.iter().map(|spot| spot.socket).collect();
        FreeCpus {
            own: OwnCounts::none(&spots),
            pools: (0..free_cpus.len()).map(|pool| first_list(pool)..first_list(pool + 1)).collect(),
            fit: PoolFit::new(free_cpus, surroundings(nodes, sockets)),
            spots,
            lists,
            first,
        }
    }

    /// Records that a unit with these CPUs uses their pools.
    pub(crate) fn enter(&mut self, own: &[u32]) {
        for pool in self.pools_of(own) {
            self.fit.enter(pool);
        }
    }

    /// Takes up to `count` CPUs for a unit that has the CPUs `own`, in the pools of these CPUs, as close
    /// together as possible.
    pub(crate) fn take_in_own_pools(&mut self, own: &[u32], count: usize) -> Vec<u32> {
        let mut pools = self.pools_of(own);
        let mut own_spots = self.serve(own);
        let mut taken = Vec::new();
        while taken.len() < count {
            pools.retain(|pool| self.fit.free(*pool) > 0);
            let position = self.nearest(pools.iter().flat_map(|pool| self.pools[*pool].clone()));
            let Some(spot) = position.map(|position| self.take(position)) else { break };
            self.own.add(spot);
            own_spots.push(spot);
            taken.push(spot.cpu);
        }
        self.stop_serving(&own_spots);
        taken
    }

    /// Takes up to `count` CPUs for a unit that has the CPUs `own`, in pools chosen by [`PoolFit::choose`],
    /// and records that the unit uses these pools. Within a pool it takes CPUs as close together as possible.
    /// A unit without CPUs starts by best fit: in the node with the fewest free CPUs that suffice, else in
    /// the node with the most. Returns fewer CPUs if fewer are free.
    pub(crate) fn take_in_pools(&mut self, own: &[u32], count: usize) -> Vec<u32> {
        let mut own_spots = self.serve(own);
        let mut taken = Vec::new();
        while taken.len() < count {
            let need = count - taken.len();
            let near = |pool: usize| self.own.pool_nearness(&self.first[pool]);
            let Some(pool) = self.fit.choose(need, (!own_spots.is_empty()).then_some(near)) else { break };
            self.fit.enter(pool);
            let lists = self.pools[pool].clone();
            for _ in 0..need.min(self.fit.free(pool)) {
                let position = match own_spots.is_empty() {
                    true => self.best_fit(lists.clone(), need).and_then(|list| self.lowest_in(list)),
                    false => self.nearest(lists.clone()),
                };
                let Some(spot) = position.map(|position| self.take(position)) else { break };
                self.own.add(spot);
                own_spots.push(spot);
                taken.push(spot.cpu);
            }
        }
        self.stop_serving(&own_spots);
        taken
    }

    /// Takes the free CPU nearest to the CPUs `own`, in any pool; the lowest free CPU if `own` is empty.
    pub(crate) fn take_nearest(&mut self, own: &[u32]) -> Option<u32> {
        let own_spots = self.serve(own);
        let taken = self.nearest(0..self.lists.len()).map(|position| self.take(position).cpu);
        self.stop_serving(&own_spots);
        taken
    }

    /// Begins to serve a unit: enters its CPUs in the counters. Returns their spots, for
    /// [`FreeCpus::stop_serving`].
    fn serve(&mut self, own: &[u32]) -> Vec<Spot> {
        let own_spots: Vec<Spot> = own.iter().filter_map(|cpu| self.spot(*cpu)).collect();
        for spot in &own_spots {
            self.own.add(*spot);
        }
        own_spots
    }

    /// Removes the served unit's CPUs from the counters, those that it took included. This is cheaper than
    /// clearing the counters of thousands of cores for each unit.
    fn stop_serving(&mut self, own_spots: &[Spot]) {
        for spot in own_spots {
            self.own.sub(*spot);
        }
    }

    fn spot(&self, cpu: u32) -> Option<Spot> {
        self.spots.binary_search_by_key(&cpu, |spot| spot.cpu).ok().map(|at| self.spots[at])
    }

    /// The pools that contain these CPUs, ascending and without duplicates.
    fn pools_of(&self, cpus: &[u32]) -> Vec<usize> {
        let mut pools: Vec<usize> =
            cpus.iter().filter_map(|cpu| self.spot(*cpu)).map(|spot| spot.pool).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// Removes a CPU from its list of free CPUs.
    fn take(&mut self, (list, index): Position) -> Spot {
        let spot = self.lists[list].free.swap_remove(index);
        self.fit.take(spot.pool);
        spot
    }

    /// Of these lists, those with free CPUs.
    fn non_empty(&self, lists: impl Iterator<Item = usize> + Clone) -> impl Iterator<Item = usize> + Clone {
        lists.filter(|list| !self.lists[*list].free.is_empty())
    }

    /// The position of the nearest free CPU in these lists.
    fn nearest(&self, lists: impl Iterator<Item = usize> + Clone) -> Option<Position> {
        let own_in_node = |list: usize| self.own.nodes[self.lists[list].node];
        // Start in the node with the most own CPUs: the CPU found there rules out most other nodes.
        let first = self.non_empty(lists.clone()).max_by_key(|list| own_in_node(*list))?;
        let (mut best, mut best_position) = self.nearest_in(first)?;
        for list in self.non_empty(lists).filter(|list| *list != first) {
            let nearness_max = 3 * own_in_node(list);
            if nearness_max >= best.0
                && let Some((nearness, position)) = self.nearest_in(list)
                && nearness > best
            {
                (best, best_position) = (nearness, position);
            }
        }
        Some(best_position)
    }

    /// The nearest free CPU in one list; `None` if the list is empty.
    fn nearest_in(&self, list: usize) -> Option<(Nearness, Position)> {
        let ranked = self.lists[list].free.iter().enumerate();
        let ranked = ranked.map(|(index, spot)| (self.own.nearness(spot), (list, index)));
        ranked.max_by_key(|(nearness, _)| *nearness)
    }

    /// Best fit: the list in which a unit without CPUs starts. It is the list with the fewest free CPUs that
    /// suffice for `need`, or else the list with the most; ties go to the list with the lowest free CPU.
    fn best_fit(&self, lists: Range<usize>, need: usize) -> Option<usize> {
        let lowest = |list: usize| self.lists[list].free.iter().map(|spot| spot.cpu).min();
        self.non_empty(lists).min_by_key(|list| {
            let free_cpus = self.lists[*list].free.len();
            (
                free_cpus < need,
                if free_cpus < need { usize::MAX - free_cpus } else { free_cpus },
                lowest(*list),
            )
        })
    }

    /// The position of the lowest free CPU in a list; `None` if the list is empty.
    fn lowest_in(&self, list: usize) -> Option<Position> {
        let spots = self.lists[list].free.iter().enumerate();
        Some((list, spots.min_by_key(|(_, spot)| spot.cpu)?.0))
    }
}

/// The spot of every CPU of a machine, ascending by CPU; `list` is filled in later.
fn spots(machine: &Machine, pools: &Pools) -> Vec<Spot> {
    let (sockets, nodes) = (ranks(machine, |cpu| cpu.socket), ranks(machine, |cpu| cpu.node));
    let (caches, cores) = (ranks(machine, |cpu| cpu.cache), ranks(machine, |cpu| cpu.core));
    let pool = pools.by_cpu();
    let spot = |(index, cpu): (usize, &Cpu)| Spot {
        cpu: cpu.id,
        socket: sockets[index],
        node: nodes[index],
        cache: caches[index],
        core: cores[index],
        pool: pool.get(&cpu.id).copied().unwrap_or(0),
        list: 0,
    };
    machine.cpus.iter().enumerate().map(spot).collect()
}

/// For each CPU, the rank of its socket, node, cache or core (the `property`) among those of the machine:
/// dense numbers from 0, since the machine's own numbers may have gaps.
fn ranks(machine: &Machine, property: fn(&Cpu) -> u32) -> Vec<usize> {
    let mut known: Vec<u32> = machine.cpus.iter().map(property).collect();
    known.sort_unstable();
    known.dedup();
    machine.cpus.iter().map(|cpu| known.partition_point(|number| *number < property(cpu))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference: the free CPU with the smallest sum of distances to all own CPUs; ties go to the lowest
    /// number.
    fn nearest_by_definition(machine: &Machine, free: &[u32], own: &[u32]) -> Option<u32> {
        let far = |cpu: u32| own.iter().map(|own| machine.distance(cpu, *own)).sum::<u32>();
        free.iter().copied().min_by_key(|cpu| (far(*cpu), *cpu))
    }

    /// Reference, best fit: the lowest free CPU of the node with the fewest free CPUs that suffice, else of
    /// the node with the most.
    fn start_by_definition(machine: &Machine, free: &[u32], need: usize) -> Option<u32> {
        let free_cpus = |cpu: u32| free.iter().filter(|other| machine.distance(cpu, **other) < 4).count();
        free.iter().copied().min_by_key(|cpu| {
            let free_cpus = free_cpus(*cpu);
            (free_cpus < need, if free_cpus < need { usize::MAX - free_cpus } else { free_cpus }, *cpu)
        })
    }

    fn by_definition(machine: &Machine, free: &mut Vec<u32>, own: &[u32], count: usize) -> Vec<u32> {
        let (mut mine, mut taken) = (own.to_vec(), Vec::new());
        for _ in 0..count {
            let found = match mine.is_empty() {
                true => start_by_definition(machine, free, count),
                false => nearest_by_definition(machine, free, &mine),
            };
            let Some(cpu) = found else { break };
            free.retain(|other| *other != cpu);
            mine.push(cpu);
            taken.push(cpu);
        }
        taken
    }

    fn take_together(free: &mut FreeCpus, own: &[u32], count: usize) -> Vec<u32> {
        let mut mine = own.to_vec();
        mine.extend(free.take_in_own_pools(own, count));
        mine.extend(free.take_in_pools(&mine, count + own.len() - mine.len()));
        mine.split_off(own.len())
    }

    /// Two nodes of two caches of two cores of two threads; a unit has CPUs 0 and 6. Core + cache + node: CPU
    /// 1 has nearness 1+1+2 = 4, as has 7; 2 to 5 have 0+1+2 = 3; the other node's have 0. So it takes 1.
    /// Then 7 has 1+1+3 = 5, and so have 2 and 3 with 0+2+3: it takes 2.
    #[test]
    fn three_counts_are_the_sum_of_distances() {
        let machine = Machine::synthetic("nodes:2 cpus:8 threads:2 caches:2").unwrap();
        let mut free = FreeCpus::of(&machine, |cpu| cpu != 0 && cpu != 6);
        assert_eq!(take_together(&mut free, &[0, 6], 2), [1, 2]);
        // The previous unit's counts are cleared: a unit without CPUs gets the lowest.
        assert_eq!(free.take_nearest(&[]), Some(3));
        assert_eq!(free.take_nearest(&[15]), Some(14));
    }

    #[test]
    fn no_more_cpus_are_taken_than_are_free() {
        let machine = Machine::synthetic("cpus:4").unwrap();
        let mut free = FreeCpus::of(&machine, |cpu| cpu > 1);
        assert_eq!(take_together(&mut free, &[], 5), [2, 3]);
        assert_eq!(free.take_nearest(&[0]), None);
        assert!(take_together(&mut free, &[], 1).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// For any machine, numbering and owners, the CPUs taken are those of the reference.
        #[test]
        fn the_nearest_cpus_are_those_of_the_reference(
            shape in (1u32..5, 1u32..3, 1u32..4, 1u32..3),
            holders in proptest::collection::vec(0usize..5, 72),
            missing in proptest::collection::vec(0usize..72, 0..6),
            stretch in 1u32..1_000,
            needs in proptest::collection::vec(0usize..12, 4),
        ) {
            let (nodes, caches, cores, threads) = shape;
            let text = format!("nodes:{nodes} caches:{caches} threads:{threads} cpus:{}", caches * cores * threads);
            let mut machine = Machine::synthetic(&text).unwrap();
            for cpu in &mut machine.cpus {
                (cpu.core, cpu.cache, cpu.node) = (cpu.core * stretch, cpu.cache * 7, u32::MAX - cpu.node);
            }
            for at in missing {
                if at < machine.cpus.len() && machine.cpus.len() > 1 {
                    machine.cpus.remove(at);
                }
            }
            let held = |who: usize| -> Vec<u32> {
                machine.cpus.iter().map(|cpu| cpu.id).filter(|cpu| holders[*cpu as usize] == who).collect()
            };
            let mut expected = held(4);
            let mut free = FreeCpus::of(&machine, |cpu| holders[cpu as usize] == 4);
            for (who, need) in needs.into_iter().enumerate() {
                let own = held(who);
                prop_assert_eq!(
                    take_together(&mut free, &own, need),
                    by_definition(&machine, &mut expected, &own, need)
                );
                let nearest = nearest_by_definition(&machine, &expected, &own);
                expected.retain(|cpu| Some(*cpu) != nearest);
                prop_assert_eq!(free.take_nearest(&own), nearest);
            }
        }
    }
}
