//! Free CPUs, and which of them lies nearest to what a unit has.
//!
//! Problem: a unit that is dealt CPUs takes, one after the other, the free CPU closest to all that it has so far. On
//! thousands of CPUs, it is too slow to sum, for each free CPU, the distances to each own one.
//!
//! Terms: the *distance* of two CPUs is [`Machine::distance`]: 1 in one core, 2 in one cache, 3 in one node, 4 beyond.
//! The *nearness* of a free CPU is how many own CPUs share its core, plus how many share its cache, plus how many its
//! node.
//!
//! Algorithm, in a pool: cores nest in caches, and caches in nodes. So the sum of the distances to N own CPUs is 4N less
//! the nearness. The closest CPU is the nearest one, and three counts give it. Free CPUs are listed by pool and node. A
//! CPU is at most three times as near as its node has own CPUs. So nodes that cannot have a nearer CPU are not looked at.
//!
//! Algorithm, among pools: what is free in the pools where the unit is, first; then pool by pool, as
//! [`Rooms::choose`] says.
//!
//! Properties: of equally near CPUs, the lowest number is taken. As many CPUs are taken as are free, in whatever pools. One
//! CPU costs at most one look at each free CPU of its pool, and mostly at those of one node.
//!
//! Limit: in one pool of very many CPUs, dealing out all is quadratic still (8 million looks for 4,096).
//!
//! Source: seed 000, section 3.1 (which unit owns which CPU), and seed 001, section 6 (pools); the rest is ours.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

#[cfg(test)]
use commonhold_machine::pools::Form;
use commonhold_machine::pools::Pools;
use commonhold_machine::{Cpu, Machine};

use super::rooms::{Rooms, around};

/// A CPU, and where it lies: numbers of its socket, node, cache and core from 0 on, without gaps.
#[derive(Debug, Clone, Copy)]
struct Spot {
    cpu: u32,
    socket: usize,
    node: usize,
    cache: usize,
    core: usize,
    pool: usize,
    /// Its list of free CPUs.
    list: usize,
}

/// How near a spot is; of equally near ones, the one with the lowest number is the greater.
type Nearness = (u32, Reverse<u32>);

/// Where a free CPU is listed: its list, and its place in that.
type Place = (usize, usize);

/// How many CPUs of the unit that is served lie in each socket, node, cache and core.
#[derive(Debug)]
struct Own {
    sockets: Vec<u32>,
    nodes: Vec<u32>,
    caches: Vec<u32>,
    cores: Vec<u32>,
}

impl Own {
    fn none(spots: &[Spot]) -> Own {
        let zeros = |of: fn(&Spot) -> usize| vec![0; spots.iter().map(of).max().map_or(0, |max| max + 1)];
        Own {
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

    /// How near a pool is, by its first CPU.
    fn near(&self, spot: &Spot) -> u32 {
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
    /// In no order.
    free: Vec<Spot>,
}

/// The free CPUs of a machine.
#[derive(Debug)]
pub(crate) struct FreeCpus {
    /// Every CPU of the machine, by ascending number.
    spots: Vec<Spot>,
    /// By pool, and in it by node.
    lists: Vec<List>,
    /// The lists of each pool.
    pools: Vec<Range<usize>>,
    /// The first CPU of each pool.
    first: Vec<Spot>,
    rooms: Rooms,
    own: Own,
}

impl FreeCpus {
    /// The CPUs of a machine that are free, as if in one pool.
    #[cfg(test)]
    pub(crate) fn of(machine: &Machine, is_free: impl Fn(u32) -> bool) -> FreeCpus {
        let one = Pools::form(machine, Form::One);
        FreeCpus::in_pools(machine, &one, is_free)
    }

    /// The CPUs of a machine that are free, in its pools.
    pub(crate) fn in_pools(machine: &Machine, pools: &Pools, is_free: impl Fn(u32) -> bool) -> FreeCpus {
        let mut spots = spots(machine, pools);
        let mut places: Vec<(usize, usize)> = spots.iter().map(|spot| (spot.pool, spot.node)).collect();
        places.sort_unstable();
        places.dedup();
        let mut lists: Vec<List> =
            places.iter().map(|(_, node)| List { node: *node, free: Vec::new() }).collect();
        let mut room = vec![0; pools.pools.len()];
        for spot in &mut spots {
            spot.list = places.partition_point(|place| *place < (spot.pool, spot.node));
            if is_free(spot.cpu) {
                lists[spot.list].free.push(*spot);
                room[spot.pool] += 1;
            }
        }
        let from = |pool: usize| places.partition_point(|place| place.0 < pool);
        let mut first: Vec<Spot> = spots.clone();
        first.sort_by_key(|spot| (spot.pool, spot.cpu));
        first.dedup_by_key(|spot| spot.pool);
        let nodes = first.iter().map(|spot| spot.node).collect();
        let sockets = first.iter().map(|spot| spot.socket).collect();
        FreeCpus {
            own: Own::none(&spots),
            pools: (0..room.len()).map(|pool| from(pool)..from(pool + 1)).collect(),
            rooms: Rooms::new(room, around(nodes, sockets)),
            spots,
            lists,
            first,
        }
    }

    /// Says that a unit has these CPUs: it is in their pools.
    pub(crate) fn enter(&mut self, own: &[u32]) {
        for pool in self.pools_of(own) {
            self.rooms.enter(pool);
        }
    }

    /// Takes as many CPUs for a unit that has `own` as it needs and its pools have, as close together as can be.
    pub(crate) fn take_in_own_pools(&mut self, own: &[u32], count: usize) -> Vec<u32> {
        let mut pools = self.pools_of(own);
        let mut mine = self.serve(own);
        let mut taken = Vec::new();
        while taken.len() < count {
            pools.retain(|pool| self.rooms.room(*pool) > 0);
            let found = self.nearest(pools.iter().flat_map(|pool| self.pools[*pool].clone()));
            let Some(spot) = found.map(|at| self.take(at)) else { break };
            self.own.add(spot);
            mine.push(spot);
            taken.push(spot.cpu);
        }
        self.leave(&mine);
        taken
    }

    /// Takes as many CPUs for a unit that has `own` as it needs, in pools where it has none before, and says that it is in
    /// these. In a pool it takes them as close together as can be. A unit that has none yet starts in the node with the
    /// fewest free CPUs among those that have enough for it, or in the one with the most. Fewer are taken where no more are
    /// free.
    pub(crate) fn take_in_pools(&mut self, own: &[u32], count: usize) -> Vec<u32> {
        let mut mine = self.serve(own);
        let mut taken = Vec::new();
        while taken.len() < count {
            let need = count - taken.len();
            let near = |pool: usize| self.own.near(&self.first[pool]);
            let Some(pool) = self.rooms.choose(need, (!mine.is_empty()).then_some(near)) else { break };
            self.rooms.enter(pool);
            let lists = self.pools[pool].clone();
            for _ in 0..need.min(self.rooms.room(pool)) {
                let found = match mine.is_empty() {
                    true => self.lowest_in(self.roomiest(lists.clone(), need)),
                    false => self.nearest(lists.clone()),
                };
                let Some(spot) = found.map(|at| self.take(at)) else { break };
                self.own.add(spot);
                mine.push(spot);
                taken.push(spot.cpu);
            }
        }
        self.leave(&mine);
        taken
    }

    /// Takes the CPU that lies nearest to what a unit has: the lowest one if it has none.
    pub(crate) fn take_nearest(&mut self, own: &[u32]) -> Option<u32> {
        let mine = self.serve(own);
        let taken = self.nearest(0..self.lists.len()).map(|at| self.take(at).cpu);
        self.leave(&mine);
        taken
    }

    /// Counts what the unit has that is served now.
    fn serve(&mut self, own: &[u32]) -> Vec<Spot> {
        let mine: Vec<Spot> = own.iter().filter_map(|cpu| self.spot(*cpu)).collect();
        for spot in &mine {
            self.own.add(*spot);
        }
        mine
    }

    /// Forgets it again: cheaper than to clear counts of thousands of cores for each unit.
    fn leave(&mut self, mine: &[Spot]) {
        for spot in mine {
            self.own.sub(*spot);
        }
    }

    fn spot(&self, cpu: u32) -> Option<Spot> {
        self.spots.binary_search_by_key(&cpu, |spot| spot.cpu).ok().map(|at| self.spots[at])
    }

    /// The pools that some CPUs are in.
    fn pools_of(&self, cpus: &[u32]) -> Vec<usize> {
        let mut pools: Vec<usize> =
            cpus.iter().filter_map(|cpu| self.spot(*cpu)).map(|spot| spot.pool).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    fn take(&mut self, (list, at): Place) -> Spot {
        let spot = self.lists[list].free.swap_remove(at);
        self.rooms.take(spot.pool);
        spot
    }

    /// Lists that have free CPUs.
    fn open(&self, lists: impl Iterator<Item = usize> + Clone) -> impl Iterator<Item = usize> + Clone {
        lists.filter(|list| !self.lists[*list].free.is_empty())
    }

    /// Where the nearest free CPU is listed, of some lists.
    fn nearest(&self, lists: impl Iterator<Item = usize> + Clone) -> Option<Place> {
        let own = |list: usize| self.own.nodes[self.lists[list].node];
        // The node with most own CPUs first: what it has leaves the others little to look for.
        let first = self.open(lists.clone()).max_by_key(|list| own(*list))?;
        let (mut best, mut at) = self.nearest_in(first)?;
        for list in self.open(lists).filter(|list| *list != first) {
            if 3 * own(list) >= best.0
                && let Some((nearness, place)) = self.nearest_in(list)
                && nearness > best
            {
                (best, at) = (nearness, place);
            }
        }
        Some(at)
    }

    fn nearest_in(&self, list: usize) -> Option<(Nearness, Place)> {
        let ranked = self.lists[list].free.iter().enumerate();
        let ranked = ranked.map(|(at, spot)| (self.own.nearness(spot), (list, at)));
        ranked.max_by_key(|(nearness, _)| *nearness)
    }

    /// The list where a unit without any CPU starts.
    fn roomiest(&self, lists: Range<usize>, need: usize) -> Option<usize> {
        let lowest = |list: usize| self.lists[list].free.iter().map(|spot| spot.cpu).min();
        self.open(lists).min_by_key(|list| {
            let room = self.lists[*list].free.len();
            (room < need, if room < need { usize::MAX - room } else { room }, lowest(*list))
        })
    }

    fn lowest_in(&self, list: Option<usize>) -> Option<Place> {
        let spots = self.lists[list?].free.iter().enumerate();
        Some((list?, spots.min_by_key(|(_, spot)| spot.cpu)?.0))
    }
}

/// Where every CPU of a machine lies; the lists are not known yet.
fn spots(machine: &Machine, pools: &Pools) -> Vec<Spot> {
    let (sockets, nodes) = (ranks(machine, |cpu| cpu.socket), ranks(machine, |cpu| cpu.node));
    let (caches, cores) = (ranks(machine, |cpu| cpu.cache), ranks(machine, |cpu| cpu.core));
    let pool = pools.by_cpu();
    let spot = |(at, cpu): (usize, &Cpu)| Spot {
        cpu: cpu.id,
        socket: sockets[at],
        node: nodes[at],
        cache: caches[at],
        core: cores[at],
        pool: pool.get(&cpu.id).copied().unwrap_or(0),
        list: 0,
    };
    machine.cpus.iter().enumerate().map(spot).collect()
}

/// A property of each CPU, numbered from 0 on without gaps: a machine's own numbers need not be dense.
fn ranks(machine: &Machine, of: fn(&Cpu) -> u32) -> Vec<usize> {
    let mut known: Vec<u32> = machine.cpus.iter().map(of).collect();
    known.sort_unstable();
    known.dedup();
    machine.cpus.iter().map(|cpu| known.partition_point(|number| *number < of(cpu))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: the free CPU with the smallest sum of distances to all own ones, the lowest of several.
    fn nearest_by_definition(machine: &Machine, free: &[u32], own: &[u32]) -> Option<u32> {
        let far = |cpu: u32| own.iter().map(|own| machine.distance(cpu, *own)).sum::<u32>();
        free.iter().copied().min_by_key(|cpu| (far(*cpu), *cpu))
    }

    /// The definition: the lowest free CPU of the node with the least room that is enough, or else with the most room.
    fn start_by_definition(machine: &Machine, free: &[u32], need: usize) -> Option<u32> {
        let room = |cpu: u32| free.iter().filter(|other| machine.distance(cpu, **other) < 4).count();
        free.iter().copied().min_by_key(|cpu| {
            let room = room(*cpu);
            (room < need, if room < need { usize::MAX - room } else { room }, *cpu)
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

    /// Two nodes of two caches of two cores of two threads; a unit has CPUs 0 and 6. Core + cache + node: CPU 1 is 1+1+2 = 4
    /// near, as is 7; 2 to 5 are 0+1+2 = 3; the other node's are 0. So it takes 1. Then 7 is 1+1+3 = 5 near, and so are 2 and
    /// 3 with 0+2+3: it takes 2.
    #[test]
    fn three_counts_are_the_sum_of_distances() {
        let machine = Machine::synthetic("nodes:2 cpus:8 threads:2 caches:2").unwrap();
        let mut free = FreeCpus::of(&machine, |cpu| cpu != 0 && cpu != 6);
        assert_eq!(take_together(&mut free, &[0, 6], 2), [1, 2]);
        // Nothing is left counted of the unit before: who has nothing gets the lowest.
        assert_eq!(free.take_nearest(&[]), Some(3));
        assert_eq!(free.take_nearest(&[15]), Some(14));
    }

    #[test]
    fn no_more_than_is_free() {
        let machine = Machine::synthetic("cpus:4").unwrap();
        let mut free = FreeCpus::of(&machine, |cpu| cpu > 1);
        assert_eq!(take_together(&mut free, &[], 5), [2, 3]);
        assert_eq!(free.take_nearest(&[0]), None);
        assert!(take_together(&mut free, &[], 1).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// Whatever the machine, its numbers, and who has what: what is taken is what the definition says.
        #[test]
        fn what_is_taken_is_what_the_definition_says(
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
