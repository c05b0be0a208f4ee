//! What gangs share, and how much of it there is.
//!
//! Terms: the *whole* is what the memory bus carries, what all last-level caches hold, or what all cores do if each runs one
//! thread. The last is not written down anywhere. It is the cores times the most that one thread was seen to do.
//!
//! Algorithm, the most of a thread: at each quantum's end it loses a [`FADES`]th, and is then at least what each thread did in
//! that quantum. So a machine that became slower is known after some minutes.
//!
//! Algorithm, what a full cache hides: threads that share one that is full hold just all of it, whatever they need. By what each
//! held, they would fit each other perfectly, and stay together for ever. So in a quantum in which caches were full
//! ([`FULL_PERCENT`]), what a gang held is no measure. It counts with what it held last while there was room; if that was never
//! seen, or not in the last [`HIDDEN_QUANTA`] quanta in which it ran, with all that there is. So it does if it holds more than that by now. So it runs beside those that hold
//! least, and is seen. A full core hides nothing: the whole is what one thread does on each.
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

/// Caches of which gangs hold so many percent are full: a part of them has what nobody counts, and gangs begin with nothing.
const FULL_PERCENT: u64 = 85;

/// What a gang held while there was room is known for so many quanta in which there was none: 10 s.
const HIDDEN_QUANTA: u32 = 50;

/// What a gang held while there was room is believed as long as it does not hold more by this part without.
const GREW_PART: u64 = 8;

/// Whether gangs that hold so much together fill the caches.
pub(super) fn is_full(held: u64, whole: u64) -> bool {
    held >= whole / 100 * FULL_PERCENT
}

/// What a gang's threads held while there was room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    with_room: Option<u64>,
    /// Quanta in which it ran since, without room.
    hidden: u32,
}

impl Seen {
    /// What each of its threads is taken to have held in a quantum in which it held `rate`, and `most` is all that it could.
    pub(super) fn taken(&mut self, rate: u64, is_full: bool, most: u64) -> u64 {
        if !is_full {
            *self = Seen { with_room: Some(rate), hidden: 0 };
            return rate;
        }
        self.hidden += 1;
        // It was filling the cache yet, or has another phase now, if it holds more where it has less room.
        let grew = |room: u64| rate > room + room / GREW_PART;
        if self.with_room.is_some_and(grew) || self.hidden > HIDDEN_QUANTA {
            self.with_room = None;
        }
        self.with_room.unwrap_or(most).max(rate)
    }
}

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
    fn a_full_cache_hides_what_a_gang_would_hold() {
        assert!(is_full(85, 100) && !is_full(84, 100));
        let mut seen = Seen::default();
        assert_eq!(seen.taken(4, true, 8), 8, "it was never seen with room");
        assert_eq!((seen.taken(6, false, 8), seen.taken(4, true, 8)), (6, 6));
        let last = (0..HIDDEN_QUANTA).map(|_| seen.taken(4, true, 8)).collect::<Vec<_>>();
        assert_eq!((last[HIDDEN_QUANTA as usize - 2], last.last()), (6, Some(&8)), "it is looked at anew");
        assert_eq!((seen.taken(5, false, 8), seen.taken(4, true, 8)), (5, 5));
        assert_eq!(seen.taken(6, true, 8), 8, "it grew since");
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
