//! Turns on shared CPUs: round robin by credit, with cache and node affinity.
//!
//! Problem: a unit that is entitled to a fraction of a CPU gets a whole CPU for part of the time. From turn
//! to turn it should return to the caches and the node's memory that its threads used before.
//!
//! Terms: a CPU is *shared* if it is no unit's home CPU. A unit's *part* is the fraction of a CPU to which it
//! is entitled beyond its home CPUs. A unit's *own pools* are those pools of its home CPUs that also have
//! shared CPUs. If there is no such pool, the unit's own pool is the pool of its last turn.
//!
//! Algorithm, which units get a turn: at each rotation, a unit's credit grows by its part times the elapsed
//! time, and shrinks by the time for which the unit owned a shared CPU. To this credit add what the unit will
//! earn during the coming turn. The units with the largest sums get the shared CPUs, one each.
//!
//! Example: units with parts of 0.7 and 0.3 share one CPU. The first unit gets turn 1. After turn 1 the
//! credits are 0.7 - 1 = -0.3 turns for the first and 0.3 turns for the second. With what they will earn, the
//! sums for turn 2 are -0.3 + 0.7 = 0.4 and 0.3 + 0.3 = 0.6. So the second unit gets turn 2.
//!
//! Algorithm, which CPU a unit gets:
//! 1. A unit whose turn continues keeps its CPU.
//! 2. The other units follow, the largest credit first. Each gets the CPU of its last turn if that CPU is
//!    free and in one of the unit's own pools; else it gets the nearest free CPU in its own pools.
//! 3. A unit whose own pools have no free CPU gets the nearest free CPU elsewhere.
//! 4. A unit without previous turns and home CPUs starts in the pool in which the fewest units per shared CPU
//!    have turns.
//!
//! Properties: every shared CPU has an owner if at least as many units have parts. A unit gets a turn outside
//! its own pools only if rules 1 and 2 gave all shared CPUs in its own pools to units. Turns are a
//! deterministic function of the facts.
//!
//! Limits: turns change at the actual rotations. A late rotation makes a turn long, which the credits then
//! compensate. A unit in a crowded pool moves only when no CPU is free there.
//!
//! Source: seed 000, section 3.1; that turns stay in pools: seed 001, section 6.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use commonhold_contract::{MILLIONTH, UnitId};
use commonhold_machine::Machine;
use commonhold_machine::pools::Pools;

use super::free::FreeCpus;
use super::partition::{Claim, Owners, by_owner};
use super::tally::Tally;
use crate::time::Time;

/// Turns, and the credits of units that hold fractions, in millionths of a CPU times nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Turns {
    /// The owner of each shared CPU in this turn.
    pub(crate) owners: Owners,
    /// The turns that a unit is still due; negative if it had more than its part.
    pub(super) credit: BTreeMap<UnitId, i128>,
    /// The CPU of each unit's last turn.
    last: BTreeMap<UnitId, u32>,
    /// When the turn began.
    pub(crate) since: Time,
}

impl Turns {
    /// Charges the turn that ends, and assigns the CPUs that are in no unit's home for the next one. `period`
    /// is its expected length.
    pub(crate) fn rotate(
        &mut self,
        machine: &Machine,
        pools: &Pools,
        claims: &[Claim],
        homes: &Owners,
        now: Time,
        period: Time,
    ) {
        // If the clock jumped, or the daemon was stopped, hours may have passed: a unit that owned a shared
        // CPU would then be in debt, and have no turn, for hours.
        let elapsed = now.saturating_sub(self.since).min(period * 2);
        self.charge(claims, elapsed);
        let shared: Vec<u32> =
            machine.cpus.iter().map(|cpu| cpu.id).filter(|cpu| !homes.contains_key(cpu)).collect();
        // The credit that a unit would have at the end of the next turn without owning a CPU in it.
        let due = |unit: UnitId, part: u64| {
            self.credit.get(&unit).copied().unwrap_or(0) + i128::from(part) * i128::from(period)
        };
        let mut candidates: Vec<(i128, UnitId)> = claims
            .iter()
            .filter(|claim| claim.part() > 0)
            .map(|claim| (due(claim.unit, claim.part()), claim.unit))
            .collect();
        candidates.sort_by_key(|(due, unit)| (Reverse(*due), *unit));
        let winners: Vec<UnitId> = candidates.into_iter().take(shared.len()).map(|(_, unit)| unit).collect();
        self.assign(machine, pools, &shared, &winners, homes);
        self.since = now;
    }

    /// Credits each unit with its part of the elapsed time, and charges it for the shared CPUs that it owned.
    /// Forgets units without a part.
    fn charge(&mut self, claims: &[Claim], elapsed: Time) {
        let with_part: Tally =
            claims.iter().filter(|claim| claim.part() > 0).map(|claim| claim.unit).collect();
        let owned: Tally = self.owners.values().copied().collect();
        self.credit.retain(|unit, _| with_part.has(*unit));
        self.last.retain(|unit, _| with_part.has(*unit));
        for claim in claims.iter().filter(|claim| claim.part() > 0) {
            let cpus = owned.get(claim.unit);
            let earned = i128::from(claim.part()) * i128::from(elapsed);
            let spent = i128::from(MILLIONTH) * i128::from(elapsed) * cpus as i128;
            *self.credit.entry(claim.unit).or_insert(0) += earned - spent;
        }
    }

    /// Assigns the shared CPUs to the winners of this turn, which come in order of credit.
    fn assign(
        &mut self,
        machine: &Machine,
        pools: &Pools,
        shared: &[u32],
        winners: &[UnitId],
        homes: &Owners,
    ) {
        // Rule 1: a unit whose turn continues keeps its CPU.
        let before = core::mem::take(&mut self.owners);
        let mut without_cpu: BTreeSet<UnitId> = winners.iter().copied().collect();
        for cpu in shared {
            if let Some(unit) = before.get(cpu)
                && without_cpu.remove(unit)
            {
                self.owners.insert(*cpu, *unit);
            }
        }
        if without_cpu.is_empty() {
            return;
        }
        let pool_of = pools.by_cpu();
        let mut crowds: BTreeMap<usize, Crowd> = BTreeMap::new();
        for cpu in shared {
            crowds.entry(pool_of[cpu]).or_default().cpus += 1;
        }
        let homes_of = by_owner(homes);
        // Rule 2: the CPU of the last turn. Units that cannot have it are left for the next rules, each with
        // the CPUs near which it should run: its home CPUs in pools with shared CPUs, else the CPU of its
        // last turn, else all its home CPUs.
        let mut unassigned: Vec<(UnitId, Vec<u32>)> = Vec::new();
        for unit in winners.iter().copied().filter(|unit| without_cpu.contains(unit)) {
            let has_shared_cpus = |cpu: &u32| pool_of.get(cpu).is_some_and(|pool| crowds.contains_key(pool));
            let mut near = homes_of.get(&unit).cloned().unwrap_or_default();
            near.retain(has_shared_cpus);
            let last = self.last.get(&unit).copied().filter(|cpu| pool_of.contains_key(cpu));
            let in_own_pools =
                |cpu: &u32| near.is_empty() || near.iter().any(|own| pool_of[own] == pool_of[cpu]);
            let last_to_reuse = last.filter(in_own_pools).filter(|cpu| shared.binary_search(cpu).is_ok());
            match last_to_reuse {
                Some(cpu) if !self.owners.contains_key(&cpu) => drop(self.owners.insert(cpu, unit)),
                _ => {
                    if near.is_empty() {
                        near = last.map_or_else(
                            || homes_of.get(&unit).cloned().unwrap_or_default(),
                            |cpu| [cpu].into(),
                        );
                    }
                    unassigned.push((unit, near));
                }
            }
        }
        // Rule 2, second half: the nearest free CPU in the unit's own pools.
        let mut free = FreeCpus::in_pools(machine, pools, |cpu| {
            !homes.contains_key(&cpu) && !self.owners.contains_key(&cpu)
        });
        unassigned.retain(|(unit, near)| {
            let taken = free.take_in_own_pools(near, 1);
            self.owners.extend(taken.iter().map(|cpu| (*cpu, *unit)));
            taken.is_empty()
        });
        // Rule 3: the nearest free CPU elsewhere.
        for (unit, near) in unassigned.iter().filter(|(_, near)| !near.is_empty()) {
            self.owners.extend(free.take_nearest(near).map(|cpu| (cpu, *unit)));
        }
        // Rule 4: units that never ran, in the least crowded pool.
        self.last.extend(self.owners.iter().map(|(cpu, unit)| (*unit, *cpu)));
        for pool in self.last.values().filter_map(|cpu| pool_of.get(cpu)) {
            crowds.entry(*pool).or_default().units += 1;
        }
        for (unit, _) in unassigned.iter().filter(|(_, near)| near.is_empty()) {
            let free = shared.iter().filter(|cpu| !self.owners.contains_key(cpu));
            let least_crowded = free.min_by_key(|cpu| (crowds[&pool_of[cpu]].per_cpu(), **cpu));
            let Some(cpu) = least_crowded.copied() else { continue };
            crowds.entry(pool_of[&cpu]).or_default().units += 1;
            self.owners.insert(cpu, *unit);
            self.last.insert(*unit, cpu);
        }
    }
}

/// How many units had their last turn in a pool, and how many shared CPUs the pool has.
#[derive(Debug, Clone, Copy, Default)]
struct Crowd {
    units: u64,
    cpus: u64,
}

impl Crowd {
    /// Units per shared CPU, in fixed point.
    fn per_cpu(self) -> u64 {
        self.units * (1 << 20) / self.cpus.max(1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cpu::partition::homes;
    use crate::time::MS;
    use commonhold_contract::PoolForm;
    use proptest::prelude::*;

    fn machine(text: &str) -> Machine {
        Machine::synthetic(text).unwrap()
    }

    fn claims(cpus: u64, weights: &[u64]) -> Vec<Claim> {
        let micro = crate::rights::share::split(cpus * MILLIONTH, weights);
        micro.iter().zip(2u32..).map(|(micro, unit)| Claim { unit: UnitId(unit), micro: *micro }).collect()
    }

    /// The pools in which each unit had turns, not counting the first `after` turns.
    fn pools_of_turns(
        machine: &Machine,
        weights: &[u64],
        after: u64,
        turns: u64,
    ) -> BTreeMap<UnitId, BTreeSet<usize>> {
        let pools = crate::pools(machine, PoolForm::Auto);
        let claims = claims(machine.cpus.len() as u64, weights);
        let homes = homes(machine, &pools, &claims, &Owners::new());
        let (mut state, pool_of) = (Turns::default(), pools.by_cpu());
        let mut seen: BTreeMap<UnitId, BTreeSet<usize>> = BTreeMap::new();
        for n in 0..turns {
            state.rotate(machine, &pools, &claims, &homes, n * 250 * MS, 250 * MS);
            if n >= after {
                for (cpu, unit) in &state.owners {
                    seen.entry(*unit).or_default().insert(pool_of[cpu]);
                }
            }
        }
        seen
    }

    /// Sixteen units on eight CPUs in four nodes: each has its turns in one node, and each node has four
    /// units.
    #[test]
    fn equal_units_stay_in_a_pool_each() {
        let seen = pools_of_turns(&machine("nodes:4 cpus:2"), &[1; 16], 0, 40);
        assert!(seen.len() == 16 && seen.values().all(|pools| pools.len() == 1), "{seen:?}");
        let mut crowd: BTreeMap<usize, usize> = BTreeMap::new();
        seen.values().flatten().for_each(|pool| *crowd.entry(*pool).or_default() += 1);
        assert_eq!(crowd, (0..4).map(|pool| (pool, 4)).collect());
    }

    /// Twelve units of unequal parts: most turns of each are in one pool.
    #[test]
    fn unequal_units_seldom_change_pools() {
        let weights: Vec<u64> = (1..=12).collect();
        let pools = crate::pools(&machine("nodes:4 cpus:2"), PoolForm::Auto);
        let (machine, claims) = (machine("nodes:4 cpus:2"), claims(8, &weights));
        let homes = homes(&machine, &pools, &claims, &Owners::new());
        let (mut state, pool_of) = (Turns::default(), pools.by_cpu());
        let mut turns: BTreeMap<UnitId, BTreeMap<usize, u64>> = BTreeMap::new();
        for n in 0..400 {
            state.rotate(&machine, &pools, &claims, &homes, n * 250 * MS, 250 * MS);
            for (cpu, unit) in &state.owners {
                *turns.entry(*unit).or_default().entry(pool_of[cpu]).or_default() += 1;
            }
        }
        let most: u64 = turns.values().filter_map(|pools| pools.values().max()).sum();
        let all: u64 = turns.values().flat_map(BTreeMap::values).sum();
        assert!(most * 10 >= all * 7, "{most} of {all}");
    }

    proptest! {
        /// A unit whose turn is outside its own pools found no CPU there: all of them went to units with
        /// affinity to the pool, or to units that kept their CPU.
        #[test]
        fn turns_stay_in_own_pools_while_a_cpu_is_free(
            nodes in 1u32..5, cpus in 1u32..4, weights in proptest::collection::vec(1u64..50, 1..30), turns in 1u64..60,
        ) {
            let machine = machine(&alloc::format!("nodes:{nodes} cpus:{cpus}"));
            let pools = crate::pools(&machine, PoolForm::Node);
            let claims = claims(u64::from(nodes * cpus), &weights);
            let homes = homes(&machine, &pools, &claims, &Owners::new());
            let (mut state, pool_of) = (Turns::default(), pools.by_cpu());
            for n in 0..turns {
                let (before, last) = (state.owners.clone(), state.last.clone());
                state.rotate(&machine, &pools, &claims, &homes, n * 250 * MS, 250 * MS);
                let shared: Vec<u32> = pool_of.keys().copied().filter(|cpu| !homes.contains_key(cpu)).collect();
                let parts = claims.iter().filter(|claim| claim.part() > 0).count();
                prop_assert_eq!(state.owners.len(), shared.len().min(parts));
                let drawn = |unit: &UnitId| -> Vec<usize> {
                    let own = homes.iter().filter(|(_, owner)| *owner == unit).map(|(cpu, _)| pool_of[cpu]);
                    let own: Vec<usize> =
                        own.filter(|pool| shared.iter().any(|cpu| pool_of[cpu] == *pool)).collect();
                    if own.is_empty() { last.get(unit).map(|cpu| pool_of[cpu]).into_iter().collect() } else { own }
                };
                for (cpu, unit) in &state.owners {
                    let pools = drawn(unit);
                    if pools.is_empty() || pools.contains(&pool_of[cpu]) || before.get(cpu) == Some(unit) {
                        continue;
                    }
                    for other in shared.iter().filter(|cpu| pools.contains(&pool_of[cpu])) {
                        let by = state.owners.get(other);
                        let entitled = by.is_some_and(|by| drawn(by).contains(&pool_of[other]) || before.get(other) == Some(by));
                        prop_assert!(entitled, "{unit:?} is on {cpu}, and {other} is {by:?}'s");
                    }
                }
            }
        }
    }
}
