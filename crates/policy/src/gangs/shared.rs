//! The capacity of the shared resource, and an estimate of what gangs need of a full cache, which cannot be
//! measured.
//!
//! Terms: the *whole* is the capacity of the shared resource: bytes per second of the memory bus, or bytes of
//! all last-level caches.
//!
//! Algorithm: threads that share a full cache together hold exactly the size of the cache, whatever they
//! need. By these measurements they would be a perfect fit, and run together forever. So after a quantum in
//! which caches were full ([`FULL_PERCENT`]), a gang counts with the amount that it last held *without
//! pressure*, that is, while the caches were not full. The gang counts with the largest possible amount
//! instead in three cases: it was never measured without pressure; it was not measured so in the last
//! [`HIDDEN_QUANTA`] quanta in which it ran; or it holds more now. A gang that counts with the largest
//! possible amount is chosen to run beside gangs that hold least, and so gets measured.
//!
//! Properties: no measurement exceeds the whole divided by the gang's threads.
//!
//! Limits: caches are summed; thread placement decides which threads share a cache.

use commonhold_contract::{GangsShare, MILLIONTH, UnitId};
use commonhold_machine::Machine;

use super::GangCpus;
use crate::bus;

/// Assumed last-level cache per CPU if its size is unknown: 2 MiB, as on many servers.
const CACHE_OF_A_CPU: u64 = 2 << 20;

/// Caches count as full when gangs hold this percentage. The rest may hold data that belongs to no gang, and
/// gangs that have just started hold little yet.
const FULL_PERCENT: u64 = 85;

/// A measurement without cache pressure stays valid for this many quanta under pressure: 10 s.
const HIDDEN_QUANTA: u32 = 50;

/// It is also invalid once the gang holds more under pressure, by more than one part in this many.
const GREW_PART: u64 = 8;

/// Whether gangs that hold this much together fill the caches.
pub(super) fn is_full(held: u64, whole: u64) -> bool {
    held >= whole / 100 * FULL_PERCENT
}

/// The bytes that each thread of a gang held without cache pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CacheUse {
    without_pressure: Option<u64>,
    /// Quanta under pressure in which the gang ran since that measurement.
    quanta_under_pressure: u32,
}

impl CacheUse {
    /// The bytes that each thread of the gang is assumed to need, after a quantum in which each held `held`.
    /// `is_full`: the caches were full. `maximum` is assumed if the need is unknown.
    pub(super) fn assumed_need(&mut self, held: u64, is_full: bool, maximum: u64) -> u64 {
        if !is_full {
            *self = CacheUse { without_pressure: Some(held), quanta_under_pressure: 0 };
            return held;
        }
        self.quanta_under_pressure += 1;
        // A gang that holds more under pressure was still filling the cache when it was measured, or is in
        // another phase now.
        let grew = |before: u64| held > before + before / GREW_PART;
        if self.without_pressure.is_some_and(grew) || self.quanta_under_pressure > HIDDEN_QUANTA {
            self.without_pressure = None;
        }
        self.without_pressure.unwrap_or(maximum).max(held)
    }
}

/// The whole of the shared resource: bytes per second of the memory bus, or bytes of caches. At least 1.
pub(super) fn whole(machine: &Machine, share: GangsShare) -> u64 {
    match share {
        GangsShare::Bus => bus::carries(machine),
        GangsShare::Cache => {
            let cpus = machine.cpus.len() as u64;
            machine.cache_bytes().unwrap_or(cpus.saturating_mul(CACHE_OF_A_CPU)).max(1)
        }
    }
}

/// A unit's part of the whole, in proportion to the CPUs of its gangs among the machine's `cpus`.
pub(super) fn part(gang_cpus: &GangCpus, unit: UnitId, whole: u64, cpus: u32) -> u64 {
    let unit_micro = match gang_cpus {
        GangCpus::Machine => return whole,
        GangCpus::Cpus(unit_cpus) => unit_cpus.get(&unit).map_or(0, |cpus| u64::from(*cpus) * MILLIONTH),
        GangCpus::Parts(parts) => parts.get(&unit).copied().unwrap_or(0),
    };
    let machine_micro = u128::from(cpus.max(1)) * u128::from(MILLIONTH);
    u64::try_from(u128::from(whole) * u128::from(unit_micro) / machine_micro).unwrap_or(whole)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn capacities_of_shared_resources() {
        let machine = Machine::synthetic("cpus:8 threads:2 caches:2 cache:6MiB bus:10GB/s").unwrap();
        let whole_of = |share| whole(&machine, share);
        assert_eq!(GangsShare::ALL.map(whole_of), [10_000_000_000, 12 << 20]);
        let unknown = Machine::synthetic("cpus:8").unwrap();
        assert_eq!(whole(&unknown, GangsShare::Cache), 16 << 20);
    }

    #[test]
    fn a_full_cache_hides_what_a_gang_would_hold() {
        assert!(is_full(85, 100) && !is_full(84, 100));
        let mut cache_use = CacheUse::default();
        assert_eq!(cache_use.assumed_need(4, true, 8), 8, "it was never measured without pressure");
        assert_eq!((cache_use.assumed_need(6, false, 8), cache_use.assumed_need(4, true, 8)), (6, 6));
        let last = (0..HIDDEN_QUANTA).map(|_| cache_use.assumed_need(4, true, 8)).collect::<Vec<_>>();
        assert_eq!((last[HIDDEN_QUANTA as usize - 2], last.last()), (6, Some(&8)), "it is measured again");
        assert_eq!((cache_use.assumed_need(5, false, 8), cache_use.assumed_need(4, true, 8)), (5, 5));
        assert_eq!(cache_use.assumed_need(6, true, 8), 8, "it grew since");
    }

    #[test]
    fn a_units_part_is_in_proportion_to_its_cpus() {
        let (a, b) = (UnitId(2), UnitId(3));
        let cpus = GangCpus::Cpus(BTreeMap::from([(a, 3)]));
        assert_eq!((part(&cpus, a, 800, 4), part(&cpus, b, 800, 4)), (600, 0));
        let parts = GangCpus::Parts(BTreeMap::from([(a, MILLIONTH / 2)]));
        assert_eq!((part(&parts, a, 800, 4), part(&GangCpus::Machine, b, 800, 4)), (100, 800));
    }
}
