//! Home CPUs: the assignment of whole CPUs to the units that own them. Fractions of CPUs are served in turns
//! ([`turns`](super::turns)).
//!
//! Terms: a unit's *claim* is its entitlement to CPU, for example 2.5 CPUs. The whole CPUs in the claim, here
//! 2, are the unit's *home CPUs*; the remaining fraction, here 0.5, is the unit's *part*. A *turn* is the
//! ownership of a shared CPU from one rotation to the next. The *common unit* is `shared`, which owns the
//! CPUs that no unit is entitled to.
//!
//! Algorithm: units are separated by pools, as jobs are ([`seats`](super::seats)).
//! 1. Each unit keeps as many of its CPUs as it is still entitled to. CPUs in pools where the unit has most
//!    of its CPUs are kept first.
//! 2. A unit that needs more CPUs takes free CPUs in the pools that it already uses. The unit that needs most
//!    comes first.
//! 3. A unit that still needs CPUs takes them in other pools ([`pool_fit`](super::pool_fit)), again the unit
//!    that needs most first. A unit that fits into an unused pool starts there. If no unused pool is large
//!    enough, the unit shares a pool with as few units as possible. A unit larger than a pool takes whole
//!    pools. Within a pool, a unit takes CPUs near each other ([`free`](super::free)).
//! 4. The common unit takes the remaining CPUs, the CPUs that it had before first. It comes last because it
//!    loses nothing by a move: it has no processes of its own on these CPUs.
//!
//! Properties:
//! - Every CPU has exactly one owner.
//! - A unit's long-run share differs from its claim by less than one turn per shared CPU.
//! - While a unit's number of home CPUs stays the same, its home CPUs stay the same. When the number falls,
//!   the unit only gives up CPUs, and takes no new ones. A change of the pools' form is the exception to both
//!   ([`gathered`]).
//! - A unit whose pools are full gets CPUs in other pools.
//! - A new unit's home spans as few pools as the free CPUs allow.
//!
//! Limits: a unit whose entitlement grew while its pools were full has taken CPUs in other pools. It stays
//! spread over them, even when its first pools have free CPUs again. The common unit moves whenever the
//! number of its CPUs changes.
//!
//! Source: seed 000, section 3.1; by pool: seed 001, sections 2 and 6.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use commonhold_contract::{Contract, CpuMode, MILLIONTH, UnitId};
use commonhold_machine::Machine;
use commonhold_machine::pools::Pools;

use super::free::FreeCpus;
use crate::snapshot::Means;

/// A unit's entitlement to CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The unit.
    pub unit: UnitId,
    /// Millionths of a CPU.
    pub micro: u64,
}

impl Claim {
    /// The number of whole CPUs.
    pub(super) fn whole(&self) -> usize {
        usize::try_from(self.micro / MILLIONTH).unwrap_or(usize::MAX)
    }

    /// The fraction of a CPU beyond the whole ones, in millionths.
    pub(crate) fn part(&self) -> u64 {
        self.micro % MILLIONTH
    }
}

/// Whether CPUs are partitioned (each has one owner at a time) rather than time-shared by weight. `units` is
/// the number of competing units; with [`CpuMode::Auto`], CPUs are partitioned while there are no more units
/// than CPUs.
pub fn partitions(contract: &Contract, means: Means, units: usize, cpus: usize) -> bool {
    match contract.machine.cpu {
        CpuMode::Partition => means.cpu_sets,
        CpuMode::Proportional => !means.weights && means.cpu_sets,
        // Without weights, a fraction of a CPU can only be served in turns, which requires partitioning.
        CpuMode::Auto => means.cpu_sets && (units <= cpus || !means.weights),
    }
}

/// The owner of each CPU, by CPU number.
pub(crate) type Owners = BTreeMap<u32, UnitId>;

/// The CPUs of each owner, ascending.
pub(super) fn by_owner(owners: &Owners) -> BTreeMap<UnitId, Vec<u32>> {
    let mut cpus: BTreeMap<UnitId, Vec<u32>> = BTreeMap::new();
    for (cpu, unit) in owners {
        cpus.entry(*unit).or_default().push(*cpu);
    }
    cpus
}

/// Assigns home CPUs for every claim, moving as few CPUs as possible relative to `before`.
pub(crate) fn homes(machine: &Machine, pools: &Pools, claims: &[Claim], before: &Owners) -> Owners {
    let mut previous_homes = by_owner(before);
    let pool_of = pools.by_cpu();
    let mut owners = Owners::new();
    let mut needs = Vec::new();
    for claim in claims {
        let previous = previous_homes.remove(&claim.unit).unwrap_or_default();
        // If the common unit's number of CPUs changed, it keeps none for now, so that units may take its
        // previous CPUs.
        if !claim.unit.is_common() || previous.len() == claim.whole() {
            let kept = keep(machine, &pool_of, claim.whole(), previous);
            owners.extend(kept.iter().map(|cpu| (*cpu, claim.unit)));
            needs.push(Need { unit: claim.unit, count: claim.whole() - kept.len(), own: kept });
        }
    }
    needs.retain(|need| !need.unit.is_common());
    fill(machine, pools, &mut needs, &mut owners);
    // The common unit comes last: it keeps the previous CPUs that no unit took, and takes others for the
    // rest.
    for claim in claims.iter().filter(|claim| claim.unit.is_common()) {
        let previous = before.iter().filter(|(_, unit)| **unit == claim.unit).map(|(cpu, _)| *cpu);
        let untaken = previous.filter(|cpu| owners.get(cpu).is_none_or(|unit| *unit == claim.unit)).collect();
        let kept = keep(machine, &pool_of, claim.whole(), untaken);
        owners.extend(kept.iter().map(|cpu| (*cpu, claim.unit)));
        let need = Need { unit: claim.unit, count: claim.whole() - kept.len(), own: kept };
        if need.count > 0 {
            fill(machine, pools, &mut [need], &mut owners);
        }
    }
    owners
}

/// The home CPUs to use after the pools took another form. They stay as they are, unless a fresh assignment
/// would isolate units better: if it would spread units over fewer pools, or have fewer units in a pool.
pub(crate) fn gathered(machine: &Machine, pools: &Pools, claims: &[Claim], present: Owners) -> Owners {
    let fresh = homes(machine, pools, claims, &Owners::new());
    let pool_of = pools.by_cpu();
    // The number of (pool, unit) pairs: 3 for one unit in two pools and another in a third. Ties go to the
    // assignment that uses more pools, since fewer units are then in each.
    let spread = |owners: &Owners| {
        let of_units = owners.iter().filter(|(_, unit)| !unit.is_common());
        let pairs: BTreeSet<(usize, UnitId)> =
            of_units.filter_map(|(cpu, unit)| Some((*pool_of.get(cpu)?, *unit))).collect();
        let used_pools: BTreeSet<usize> = pairs.iter().map(|(pool, _)| *pool).collect();
        (pairs.len(), Reverse(used_pools.len()))
    };
    if spread(&fresh) < spread(&present) { fresh } else { present }
}

/// The CPUs that a unit still needs.
struct Need {
    unit: UnitId,
    /// How many CPUs it lacks.
    count: usize,
    /// The CPUs that it has so far.
    own: Vec<u32>,
}

/// Meets all needs, the largest first: first in the pools that the units already use, and then in other
/// pools. So a unit that comes into a new pool takes no CPUs that the units already there need.
fn fill(machine: &Machine, pools: &Pools, needs: &mut [Need], owners: &mut Owners) {
    let mut free = FreeCpus::in_pools(machine, pools, |cpu| !owners.contains_key(&cpu));
    needs.sort_by_key(|need| (Reverse(need.count), need.unit));
    for need in &mut *needs {
        free.enter(&need.own);
        need.take(free.take_in_own_pools(&need.own, need.count), owners);
    }
    needs.sort_by_key(|need| (Reverse(need.count), need.unit));
    for need in needs {
        need.take(free.take_in_pools(&need.own, need.count), owners);
    }
}

impl Need {
    /// Assigns these CPUs to the unit.
    fn take(&mut self, cpus: Vec<u32>, owners: &mut Owners) {
        owners.extend(cpus.iter().map(|cpu| (*cpu, self.unit)));
        self.count -= cpus.len();
        self.own.extend(cpus);
    }
}

/// The CPUs that a unit keeps: at most `count` of those that it has. If it has more, it keeps the CPUs in the
/// pools where it has the most, and within a pool those in the nodes where it has the most. CPUs that the
/// machine no longer has are dropped.
fn keep(machine: &Machine, pool_of: &BTreeMap<u32, usize>, count: usize, mut cpus: Vec<u32>) -> Vec<u32> {
    cpus.retain(|cpu| machine.cpu(*cpu).is_some());
    if cpus.len() > count {
        let pool = |cpu: u32| pool_of.get(&cpu).copied();
        let node = |cpu: u32| (pool(cpu), machine.cpu(cpu).map(|cpu| cpu.node));
        let (in_pool, in_node) = (count_by(&cpus, pool), count_by(&cpus, node));
        cpus.sort_by_cached_key(|cpu| {
            let (pool, node) = (pool(*cpu), node(*cpu));
            // Among pools or nodes with equal counts, keep all CPUs of the first: half of each would leave
            // the unit in both.
            (
                in_pool.get(&pool).copied().map(Reverse),
                pool,
                in_node.get(&node).copied().map(Reverse),
                node,
                *cpu,
            )
        });
        cpus.truncate(count);
    }
    cpus
}

/// Counts the CPUs with the same key, such as a pool.
fn count_by<K: Ord>(cpus: &[u32], key: impl Fn(u32) -> K) -> BTreeMap<K, usize> {
    let mut counts = BTreeMap::new();
    for cpu in cpus {
        *counts.entry(key(*cpu)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod homes_by_pool_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::turns::Turns;
    use crate::time::MS;
    use commonhold_contract::PoolForm;
    use proptest::prelude::*;

    fn machine(text: &str) -> Machine {
        Machine::synthetic(text).unwrap()
    }

    fn claims(micro: &[u64]) -> Vec<Claim> {
        micro.iter().zip(2u32..).map(|(micro, unit)| Claim { unit: UnitId(unit), micro: *micro }).collect()
    }

    fn pools(machine: &Machine) -> Pools {
        crate::pools(machine, PoolForm::Auto)
    }

    fn count(owners: &Owners, unit: u32) -> usize {
        owners.values().filter(|owner| **owner == UnitId(unit)).count()
    }

    /// 1, 2, 3 and 2 CPUs on four nodes of two: the twos get a node each, the three the third node and half
    /// of the fourth, the one the other half.
    #[test]
    fn whole_cpus_lie_together() {
        let machine = machine("nodes:4 cpus:2 memory:1GiB");
        let owners = homes(
            &machine,
            &pools(&machine),
            &claims(&[1_000_000, 2_000_000, 3_000_000, 2_000_000]),
            &Owners::new(),
        );
        let by_cpu: Vec<u32> = owners.values().map(|unit| unit.0).collect();
        assert_eq!(by_cpu, [4, 4, 4, 2, 3, 3, 5, 5]);
    }

    /// Growing from 1 to 2 CPUs keeps the one it has; the unit that shrinks gives up the one that lies apart.
    #[test]
    fn homes_move_as_little_as_possible() {
        let machine = machine("nodes:2 cpus:4 memory:1GiB");
        let before = homes(&machine, &pools(&machine), &claims(&[3_000_000, 5_000_000]), &Owners::new());
        let after = homes(&machine, &pools(&machine), &claims(&[4_000_000, 4_000_000]), &before);
        let moved = after.iter().filter(|(cpu, unit)| before.get(cpu) != Some(unit)).count();
        assert_eq!(moved, 1, "{before:?} {after:?}");
        assert_eq!(after.values().map(|unit| unit.0).collect::<Vec<_>>(), [3, 3, 3, 3, 2, 2, 2, 2]);
    }

    /// A unit of 1.5 CPUs and one of 0.5 on two CPUs: one home, and the other CPU in turns, A B A B.
    #[test]
    fn halves_take_turns() {
        let machine = machine("cpus:2 memory:1GiB");
        let claims = claims(&[1_500_000, 500_000]);
        let homes = homes(&machine, &pools(&machine), &claims, &Owners::new());
        let mut turns = Turns::default();
        let mut seen = Vec::new();
        for n in 0..6u64 {
            turns.rotate(&machine, &pools(&machine), &claims, &homes, n * 250 * MS, 250 * MS);
            seen.push(turns.owners.values().map(|unit| unit.0).collect::<Vec<_>>());
        }
        assert_eq!(seen, [[2], [3], [2], [3], [2], [3]]);
    }

    /// A clock jump of a day is settled as at most two turns.
    #[test]
    fn a_jumping_clock_makes_no_debt() {
        let machine = machine("cpus:1 memory:1GiB");
        let claims = claims(&[500_000, 500_000]);
        let (homes, mut turns) = (Owners::new(), Turns::default());
        turns.rotate(&machine, &pools(&machine), &claims, &homes, 0, 250 * MS);
        turns.rotate(&machine, &pools(&machine), &claims, &homes, 86_400_000 * MS, 250 * MS);
        let mut seconds = 0;
        for n in 1..=8u64 {
            turns.rotate(
                &machine,
                &pools(&machine),
                &claims,
                &homes,
                86_400_000 * MS + n * 250 * MS,
                250 * MS,
            );
            seconds += count(&turns.owners, 3);
        }
        assert!((3..=5).contains(&seconds), "{seconds} of 8");
        // A backward jump: no time elapses, and nothing is lost.
        turns.rotate(&machine, &pools(&machine), &claims, &homes, 5, 250 * MS);
        assert_eq!(turns.owners.len(), 1);
    }

    proptest! {
        /// Credits stay below H(m) - 1 turns, and above -H(m), for m claims on any number of shared CPUs. The
        /// bound on the wait for a turn depends on it.
        #[test]
        fn credits_stay_within_a_logarithm(
            cpus in 1u64..8, weights in proptest::collection::vec(1u64..100, 2..30), turns_dealt in 1u64..300,
        ) {
            let machine = machine(&format!("cpus:{cpus} memory:1GiB"));
            let claims = claims(&crate::rights::share::split(cpus * MILLIONTH, &weights));
            let homes = homes(&machine, &pools(&machine), &claims, &Owners::new());
            let mut turns = Turns::default();
            for n in 0..turns_dealt {
                turns.rotate(&machine, &pools(&machine), &claims, &homes, n * 250 * MS, 250 * MS);
            }
            let turn = i128::from(MILLIONTH) * i128::from(250 * MS);
            let harmonic: i128 = (1..=weights.len() as i128).map(|i| turn / i + 1).sum();
            for (unit, credit) in &turns.credit {
                prop_assert!((-harmonic..harmonic - turn + 1).contains(credit), "{unit:?}: {credit} of {turn}");
            }
        }

        /// Every CPU has one owner, whole CPUs are exact at all times, and over 100 rotations of uneven
        /// length each unit is within one turn of its claim.
        #[test]
        fn long_run_shares(
            cpus in 1u64..12,
            weights in proptest::collection::vec(1u64..100, 1..20),
            late in proptest::collection::vec(0u64..120, 100),
        ) {
            let machine = machine(&format!("cpus:{cpus} memory:1GiB"));
            let claims = claims(&crate::rights::share::split(cpus * MILLIONTH, &weights));
            let homes = homes(&machine, &pools(&machine), &claims, &Owners::new());
            let mut turns = Turns::default();
            let mut now = 0;
            let mut held: BTreeMap<UnitId, u64> = BTreeMap::new();
            turns.rotate(&machine, &pools(&machine), &claims, &homes, now, 250 * MS);
            for late in late {
                let length = (250 + late) * MS;
                prop_assert_eq!(homes.len() + turns.owners.len(), machine.cpus.len());
                for claim in &claims {
                    prop_assert_eq!(count(&homes, claim.unit.0), claim.whole());
                    let n = count(&homes, claim.unit.0) + count(&turns.owners, claim.unit.0);
                    *held.entry(claim.unit).or_insert(0) += n as u64 * length;
                }
                now += length;
                turns.rotate(&machine, &pools(&machine), &claims, &homes, now, 250 * MS);
            }
            for claim in &claims {
                let due = u128::from(claim.micro) * u128::from(now) / u128::from(MILLIONTH);
                let off = due.abs_diff(u128::from(held[&claim.unit]));
                prop_assert!(off <= u128::from(2 * 370 * MS), "unit {:?} is off by {} ms", claim.unit, off / u128::from(MS));
            }
        }
    }
}
