//! What gangs share, and how much of it there is.
//!
//! Terms: the *whole* is what the memory bus carries, what all last-level caches hold, or what all cores do if each runs one
//! thread. The last is not written down anywhere. It is the cores times the most that one thread was seen to do.
//!
//! Algorithm, the most of a thread: at each quantum's end it loses a [`FADES`]th, and is then at least what each thread did in
//! that quantum. So a machine that became slower is known after some minutes.
//!
//! Properties: nothing is ever measured above the most. What all do, in parts of the whole, depends on no clock of the
//! processor's.
//!
//! Limits: a thread that never had a core to itself does not show what a core can do. The whole is too small then, for all
//! alike, and who does more than another is still seen. Caches are added up, and so are cores: which threads share one of
//! several is for those who place threads.

use commonhold_contract::{GangsShare, MILLIONTH, UnitId};
use commonhold_machine::Machine;

use super::Room;
use crate::bus;

/// Of a last-level cache of unknown size, each CPU is taken to have so much: two MiB, as on many servers.
const CACHE_OF_A_CPU: u64 = 2 << 20;

/// The most that a thread was seen to do loses this part in each quantum: half in two minutes.
const FADES: u64 = 1024;

/// Of the memory bus, bytes per second; of the caches, bytes; of the cores, instructions per second, where one thread does
/// `most` at most.
pub(super) fn whole(machine: &Machine, share: GangsShare, most: u64) -> u64 {
    match share {
        GangsShare::Bus => bus::carries(machine),
        GangsShare::Cache => {
            let cpus = machine.cpus.len() as u64;
            machine.cache_bytes().unwrap_or(cpus.saturating_mul(CACHE_OF_A_CPU)).max(1)
        }
        GangsShare::Cores => (machine.cores() as u64).saturating_mul(most).max(1),
    }
}

/// The most of a thread, after a quantum in which threads had these rates.
pub(super) fn most_seen(before: u64, rates: impl Iterator<Item = u64>) -> u64 {
    rates.fold(before - before.div_ceil(FADES), u64::max)
}

/// A unit's part of the whole, by the CPUs that it has for its gangs.
pub(super) fn part(room: &Room, unit: UnitId, whole: u64, cpus: u32) -> u64 {
    let has = match room {
        Room::Machine => return whole,
        Room::Cpus(has) => has.get(&unit).map_or(0, |has| u64::from(*has) * MILLIONTH),
        Room::Parts(parts) => parts.get(&unit).copied().unwrap_or(0),
    };
    let all = u128::from(cpus.max(1)) * u128::from(MILLIONTH);
    u64::try_from(u128::from(whole) * u128::from(has) / all).unwrap_or(whole)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn how_much_there_is() {
        let machine = Machine::synthetic("cpus:8 threads:2 caches:2 cache:6MiB bus:10GB/s").unwrap();
        let of = |share| whole(&machine, share, 7);
        assert_eq!(GangsShare::ALL.map(of), [10_000_000_000, 12 << 20, 28]);
        let unknown = Machine::synthetic("cpus:8").unwrap();
        assert_eq!(whole(&unknown, GangsShare::Cache, 0), 16 << 20);
        assert_eq!(whole(&unknown, GangsShare::Cores, 0), 1, "nothing was seen yet");
    }

    /// 0.999 ^ 709 is a half.
    #[test]
    fn the_most_fades_and_comes_back_at_once() {
        let mut most = most_seen(0, [5, 9_000_000, 3].into_iter());
        assert_eq!(most, 9_000_000);
        for _ in 0..709 {
            most = most_seen(most, [1_000_000].into_iter());
        }
        assert!(most.abs_diff(4_500_000) < 20_000, "{most}");
        assert_eq!(most_seen(most, [8_000_000].into_iter()), 8_000_000);
        assert_eq!((0..9_000).fold(1, |most, _| most_seen(most, core::iter::empty())), 0);
    }

    #[test]
    fn a_unit_has_as_much_of_it_as_of_the_cpus() {
        let (a, b) = (UnitId(2), UnitId(3));
        let cpus = Room::Cpus(BTreeMap::from([(a, 3)]));
        assert_eq!((part(&cpus, a, 800, 4), part(&cpus, b, 800, 4)), (600, 0));
        let parts = Room::Parts(BTreeMap::from([(a, MILLIONTH / 2)]));
        assert_eq!((part(&parts, a, 800, 4), part(&Room::Machine, b, 800, 4)), (100, 800));
    }
}
