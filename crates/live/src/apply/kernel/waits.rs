//! What had the CPU while units' tasks waited for it, as the scheduler counts it.
//!
//! Problem: the snapshot needs sums that only grow, by unit; the scheduler counts by slot, restarts at 0
//! when it is loaded, and another unit may take a slot.
//!
//! Algorithm: once a second, the growth of the scheduler's pairs of slots is added to sums. The other
//! parts of a unit's waits are in its account, whose sums [`PastCounts`](super::switched::PastCounts)
//! keeps. When a slot is freed, its pairs are removed; what other units waited for it is unknown from then
//! on.
//!
//! Properties (tested): for each waiter, the sum over all occupants never decreases, whatever happens to
//! other units.

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_dispatch::{Account, Holder};
use commonhold_policy::{Occupant, Time, WaitedFor};

/// How often the scheduler's pairs are read, in nanoseconds.
const SAMPLE_NS: Time = 1_000_000_000;

/// The sums over all schedulers so far.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By the slot of the unit that waited, and the slot of the one that had the CPU, in nanoseconds.
    pairs: BTreeMap<(u32, u32), u64>,
    /// The times for which a slot's unit waited for units whose slots were freed, in nanoseconds.
    forgotten: BTreeMap<u32, u64>,
    next_sample: Time,
}

impl Waits {
    /// Whether the next sample is due. If so, the following one is due in a second.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let due = now >= self.next_sample;
        if due {
            self.next_sample = now + SAMPLE_NS;
        }
        due
    }

    /// Adds the growth of a pair.
    pub(super) fn add(&mut self, waiter: u32, runner: u32, ns: u64) {
        *self.pairs.entry((waiter, runner)).or_default() += ns;
    }

    /// Frees a slot: another unit may take it.
    pub(super) fn forget(&mut self, slot: u32) {
        self.forgotten.remove(&slot);
        let of_slot = |(waiter, runner): &(u32, u32)| *waiter == slot || *runner == slot;
        let freed: Vec<(u32, u32)> = self.pairs.keys().copied().filter(of_slot).collect();
        for pair in freed {
            let ns = self.pairs.remove(&pair).unwrap_or_default();
            if pair.0 != slot {
                *self.forgotten.entry(pair.0).or_default() += ns;
            }
        }
    }

    /// A unit's waits by occupant, in ascending order, without those of 0. `account` is the unit's, summed
    /// over all schedulers. `unit_of` returns the unit of a slot; times of slots without a unit are
    /// unknown.
    pub(super) fn of(
        &self,
        waiter: UnitId,
        slot: u32,
        account: &Account,
        unit_of: impl Fn(u32) -> Option<UnitId>,
    ) -> Vec<WaitedFor> {
        let held = |holder| account.waited_for_ns(holder);
        let mut by_occupant = BTreeMap::from([
            (Occupant::Unit(waiter), held(Holder::Own)),
            (Occupant::HigherClass, held(Holder::Higher)),
            (Occupant::Idle, held(Holder::Idle)),
            (
                Occupant::Unknown,
                held(Holder::Unknown) + self.forgotten.get(&slot).copied().unwrap_or_default(),
            ),
        ]);
        for ((_, runner), ns) in self.pairs.range((slot, 0)..=(slot, u32::MAX)) {
            let occupant = unit_of(*runner).map_or(Occupant::Unknown, Occupant::Unit);
            *by_occupant.entry(occupant).or_default() += ns;
        }
        let nonzero = by_occupant.into_iter().filter(|(_, ns)| *ns > 0);
        nonzero.map(|(occupant, ns)| WaitedFor { waiter, occupant, ns }).collect()
    }
}

/// A unit's waiting time: the scheduler's count while it is attached, and the kernel's otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waited {
    total_ns: u64,
    /// Both counts at the last snapshot.
    kernel_ns: u64,
    scheduler_ns: u64,
}

impl Waited {
    /// The waiting time so far. `scheduler_ns` is the scheduler's count, if the scheduler is attached.
    pub(super) fn now(&mut self, kernel_ns: u64, scheduler_ns: Option<u64>) -> u64 {
        self.total_ns += match scheduler_ns {
            Some(ns) => ns.saturating_sub(self.scheduler_ns),
            None => kernel_ns.saturating_sub(self.kernel_ns),
        };
        self.kernel_ns = kernel_ns;
        self.scheduler_ns = scheduler_ns.unwrap_or(self.scheduler_ns);
        self.total_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_counts_twice_when_the_scheduler_goes_and_comes() {
        let mut waited = Waited::default();
        assert_eq!(waited.now(7, None), 7);
        assert_eq!(waited.now(9, Some(3)), 10);
        assert_eq!(waited.now(12, Some(5)), 12);
        assert_eq!(waited.now(16, None), 16);
        assert_eq!(waited.now(20, Some(6)), 17);
    }

    #[test]
    fn a_freed_slot_is_unknown_and_its_successor_begins_at_zero() {
        let mut waits = Waits::default();
        let account = Account { waited_for_ns: [5, 1, 2, 3], ..Account::default() };
        waits.add(2, 3, 10);
        waits.add(2, 4, 20);
        waits.add(3, 2, 30);
        let a = UnitId(7);
        let unit_of = |slot| [(2, a), (3, UnitId(8))].into_iter().find(|of| of.0 == slot).map(|of| of.1);
        let wait = |occupant, ns| WaitedFor { waiter: a, occupant, ns };
        assert_eq!(
            waits.of(a, 2, &account, unit_of),
            [
                wait(Occupant::Unit(a), 5),
                wait(Occupant::Unit(UnitId(8)), 10),
                wait(Occupant::HigherClass, 1),
                wait(Occupant::Idle, 2),
                wait(Occupant::Unknown, 23), // slot 4 has no unit
            ]
        );
        waits.forget(3);
        waits.add(2, 3, 4);
        let listed = waits.of(a, 2, &account, unit_of);
        assert_eq!(listed[1], wait(Occupant::Unit(UnitId(8)), 4));
        assert_eq!(listed.iter().map(|wait| wait.ns).sum::<u64>(), 5 + 1 + 2 + 3 + 10 + 20 + 4);
        assert_eq!(waits.of(UnitId(8), 3, &Account::default(), unit_of), []);
        waits.forget(2);
        assert_eq!(waits.of(a, 2, &Account::default(), unit_of), []);
    }

    #[test]
    fn samples_are_a_second_apart() {
        let mut waits = Waits::default();
        let due: Vec<bool> =
            [0, 1, SAMPLE_NS - 1, SAMPLE_NS, SAMPLE_NS + 1].map(|at| waits.is_due(at)).into();
        assert_eq!(due, [true, false, false, true, false]);
    }
}
