//! How fast memory is reclaimed from borrowers, learnt from earlier reclaim.
//!
//! Problem: a loan that could not be ended within the promised time must not be made. But how long ending it takes
//! depends on its pages, on CPUs, on devices and on other load. Clean file pages are dropped, dirty ones are written,
//! and anonymous ones go to swap.
//!
//! Algorithm:
//! - There is a rate for pages that only have to be dropped, one for pages that are written to files, and one for each
//!   swap area, by the area that the kernel fills next.
//! - Each begins as a slow machine's, so that first loans are small. The first measurement replaces that. Later
//!   ones move it: a quarter of the way up, or half of the way down for a slow second, and less for a shorter time.
//! - Only time in which reclaim was at work counts. So a lender that grows slowly does not make the rates look slow.
//! - A unit that owes much is also slowed by its own bound, and reclaims its own pages. So the faster of two measures
//!   counts: what was reclaimed by order, over the time that took; and how much the unit shrank from when it came to
//!   owe until it owed nothing, if that was reclaimed or is in swap. The second counts only at the end, since the
//!   fastest pages go first.
//! - A measurement counts for the kind of page that was plentiful when it began: pages to drop; without enough of
//!   these, the more plentiful of dirty and anonymous pages. A unit that reads files soon has new clean pages, which
//!   say nothing about what was reclaimed. The kernel takes the oldest anonymous pages, so the fraction of them that
//!   was already in swap only had to be dropped. Dropping is never slower than swapping out.
//! - The simulator knows of each page whether it was written, and reports that ([`ReclaimRates::learn_written`]). It
//!   drops pages in no time ([`ReclaimRates::free_to_drop`]).
//!
//! Limits:
//! - When a loan is made, the kinds of pages that it will hold are unknown. Those that the unit has now stand in.
//! - Without swap, nothing is lent against a unit's anonymous pages.
//! - Borrowers that are called on at once are assumed to share the time ([`terms`](super::terms)), even if their pages
//!   could be reclaimed in parallel.

use alloc::collections::BTreeMap;

use super::reclaim_curve::ReclaimCurve;
use super::trial::TRIAL_NS_MAX;
use crate::rights::share::part_of;
use crate::snapshot::{MemoryFacts, UnitMemory};
use crate::time::{MS, Time};

/// Rates before the first measurement, in bytes per second: half of those of a machine emulated in software.
const DROPPED_PER_S: u64 = 128 << 20;
const WRITTEN_PER_S: u64 = 32 << 20;
/// The lowest rate, so that small loans are still tried and measured.
const PER_S_MIN: u64 = 1 << 20;
/// Less than this, reclaimed in less than a second, is too little for a measurement.
const BYTES_MIN: u64 = 8 << 20;
/// The time from one trial to the next: after the first trial, and at most.
const TRIAL_REST_NS: Time = 500 * MS;
const TRIAL_REST_NS_MAX: Time = 64_000 * MS;
/// What a trial reclaims: 1/64 of the machine, within bounds.
const TRIAL_PART: u64 = 64;
const TRIAL_BYTES_MAX: u64 = 64 << 20;
/// If all but 1/16 of the anonymous pages are in swap already, all count as in swap.
const NEARLY_ALL_PART: u64 = 16;
/// Swap areas whose rates are kept: as many as a kernel can use at once.
const AREAS_MAX: usize = 32;

const SECOND: u128 = 1_000_000_000;

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    per_s: u64,
    measured: bool,
}

/// How fast each kind of page is reclaimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimRates {
    dropped: Rate,
    /// Dirty file pages.
    written: Rate,
    /// Anonymous pages, by swap area.
    swapped: BTreeMap<u64, Rate>,
    /// No trial begins before this time, and the rest after the next one.
    next_trial_at: Time,
    trial_rest_ns: Time,
}

/// A unit's reclaim, as it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reclaiming {
    /// What was reclaimed by order and already counted in the rates.
    pub(super) counted: Taken,
    /// When the unit came to owe something, and its memory then.
    owes_since: Option<(Time, UnitMemory)>,
    /// What had been reclaimed by order at the last sample.
    last: Taken,
    /// Its memory when the reclaim that is not yet counted began.
    memory_at_start: UnitMemory,
    /// When memory was last reclaimed from it on trial while its loan stayed.
    pub(super) tried_at: Option<Time>,
}

/// What was reclaimed from a unit by order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Bytes.
    pub bytes: u64,
    /// The time in which reclaim was at work, in nanoseconds.
    pub ns: Time,
}

impl Default for ReclaimRates {
    fn default() -> Self {
        ReclaimRates {
            dropped: Rate::assumed(DROPPED_PER_S),
            written: Rate::assumed(WRITTEN_PER_S),
            swapped: BTreeMap::new(),
            next_trial_at: 0,
            trial_rest_ns: TRIAL_REST_NS,
        }
    }
}

impl Rate {
    fn assumed(per_s: u64) -> Rate {
        Rate { per_s, measured: false }
    }

    fn learn(&mut self, measured: Taken) {
        self.per_s = if self.measured { self.towards(measured) } else { measured.per_s() }.max(PER_S_MIN);
        self.measured = true;
    }

    /// Half of the way down for a second or more, and less for a shorter time, since a device may be slow for a moment.
    fn towards(self, measured: Taken) -> u64 {
        let per_s = measured.per_s();
        if per_s >= self.per_s {
            return self.per_s + (per_s - self.per_s) / 4;
        }
        let less = u128::from(self.per_s - per_s) * u128::from(measured.ns).min(SECOND) / SECOND / 2;
        self.per_s - u64::try_from(less).unwrap_or(0)
    }
}

impl Reclaiming {
    /// How much the unit shrank since it came to owe, if that was reclaimed from it, and in what time.
    fn paid_back(&self, now: Time, memory: UnitMemory) -> Taken {
        let Some((at, then)) = self.owes_since else { return Taken::default() };
        let shrunk = then.used.saturating_sub(memory.used);
        // The count of reclaimed bytes may lag; the count of swapped bytes does not.
        let reclaimed = memory.reclaimed.saturating_sub(then.reclaimed);
        let swapped = memory.swapped.saturating_sub(then.swapped);
        Taken { bytes: shrunk.min(reclaimed.max(swapped)), ns: now.saturating_sub(at) }
    }
}

impl Taken {
    /// What was reclaimed from a unit by order so far.
    fn from(memory: UnitMemory) -> Taken {
        Taken { bytes: memory.taken, ns: memory.taking_ns }
    }

    /// What was reclaimed since `before`; nothing if the unit's counters began anew.
    fn since(self, before: Taken) -> Taken {
        match (self.bytes.checked_sub(before.bytes), self.ns.checked_sub(before.ns)) {
            (Some(bytes), Some(ns)) => Taken { bytes, ns },
            _ => Taken::default(),
        }
    }

    /// Whether this is enough for a measurement. `busy` while reclaim goes on.
    fn suffices(self, busy: bool) -> bool {
        let (long, much) = (u128::from(self.ns) >= SECOND, self.bytes >= BYTES_MIN);
        self.ns > 0 && (long || much && !busy)
    }

    /// The remainder without `bytes` that were reclaimed at `per_s`. It is no faster than the whole.
    fn without(self, bytes: u64, per_s: u64) -> Taken {
        let rest = self.bytes.saturating_sub(bytes);
        let removed_ns = u128::from(bytes) * SECOND / u128::from(per_s.max(1));
        let ns_min = u128::from(self.ns) * u128::from(rest) / u128::from(self.bytes.max(1));
        let ns = u128::from(self.ns).saturating_sub(removed_ns).max(ns_min);
        Taken { bytes: rest, ns: u64::try_from(ns).unwrap_or(self.ns) }
    }

    fn per_s(self) -> u64 {
        u64::try_from(u128::from(self.bytes) * SECOND / u128::from(self.ns.max(1))).unwrap_or(u64::MAX)
    }
}

impl ReclaimRates {
    /// The rates of a machine that drops clean pages in no time.
    #[must_use]
    pub fn free_to_drop() -> Self {
        ReclaimRates { dropped: Rate { per_s: u64::MAX, measured: true }, ..ReclaimRates::default() }
    }

    /// How much a unit with this memory could give back, in bytes. Only the swap space of the facts counts. A kernel
    /// does not wait for dirty pages while it has others that are written faster.
    pub fn curve(&self, unit: UnitMemory, facts: &MemoryFacts) -> ReclaimCurve {
        let (swap_per_s, drop_per_s) = (self.swap(facts.swap_next).per_s, self.drop_per_s(facts));
        let cached = unit.swap_cached.min(unit.anonymous);
        let not_cached = unit.anonymous - cached;
        let to_swap = not_cached.min(facts.swap_free);
        // Once swap is full, the kernel reclaims no anonymous pages.
        let cached = match (facts.swap_free, not_cached) {
            (0, _) => 0,
            (_, 0) => cached,
            _ => part_of(cached, to_swap, not_cached),
        };
        // Pages that are in swap already lie among the others. Each counts as the bytes that could be swapped out in the
        // time that dropping it takes.
        let as_swapped = to_swap.saturating_add(part_of(cached, swap_per_s, drop_per_s));
        let anonymous = (cached.saturating_add(freed(to_swap, facts)), as_swapped, swap_per_s);
        let written = (unit.dirty, unit.dirty, self.written.per_s);
        let swap_is_faster = part_of(swap_per_s, anonymous.0, as_swapped) > self.written.per_s;
        let [first, second] = if swap_is_faster { [anonymous, written] } else { [written, anonymous] };
        // Whatever else the unit will have may be anonymous, too.
        let rest = facts.swap_free - to_swap;
        ReclaimCurve::default()
            .then(unit.clean(), unit.clean(), drop_per_s)
            .then(first.0, first.1, first.2)
            .then(second.0, second.1, second.2)
            .then(freed(rest, facts), rest, swap_per_s)
    }

    /// The rate of dropping pages: at least that of swapping out, even if few pages were dropped so far.
    fn drop_per_s(&self, facts: &MemoryFacts) -> u64 {
        self.dropped.per_s.max(self.swap(facts.swap_next).per_s)
    }

    fn swap(&self, area: u64) -> Rate {
        self.swapped.get(&area).copied().unwrap_or(Rate::assumed(WRITTEN_PER_S))
    }

    /// Takes in a sample of a unit, and learns from its reclaim once there was enough. `owes` says whether the unit
    /// owes memory now.
    pub(super) fn observe(
        &mut self,
        now: Time,
        reclaiming: &mut Reclaiming,
        memory: UnitMemory,
        facts: &MemoryFacts,
        owes: bool,
    ) {
        let total = Taken::from(memory);
        // Nothing is known of a unit's memory before its first sample.
        if reclaiming.memory_at_start.used == 0 {
            reclaiming.memory_at_start = memory;
        }
        let on_trial = reclaiming.tried_at.is_some_and(|at| now.saturating_sub(at) < TRIAL_NS_MAX);
        let busy = owes || on_trial;
        let paid_back = if owes { Taken::default() } else { reclaiming.paid_back(now, memory) };
        let by_order = total.since(reclaiming.counted);
        let measured = [by_order, paid_back].into_iter().filter(|taken| taken.suffices(busy));
        let measured = measured.max_by_key(|taken| taken.per_s());
        if let Some(measured) = measured {
            self.learn(measured, reclaiming.memory_at_start, facts);
        }
        let restarted = total.bytes < reclaiming.counted.bytes || total.ns < reclaiming.counted.ns;
        if measured.is_some() || restarted {
            reclaiming.counted = total;
        }
        if owes {
            reclaiming.owes_since.get_or_insert((now, memory));
        } else {
            reclaiming.owes_since = None;
        }
        let all_counted =
            reclaiming.counted == total && reclaiming.owes_since.is_none_or(|(at, _)| at == now);
        // Reclaim stopped after too little for a measurement. What is reclaimed next may be any page that the unit has
        // by then, also one that only has to be dropped and was not there before.
        let stopped = reclaiming.last == total && reclaiming.owes_since.is_none();
        if all_counted || stopped && memory.droppable() > reclaiming.memory_at_start.droppable() {
            reclaiming.memory_at_start = memory;
        }
        reclaiming.last = total;
    }

    /// Learns from a measurement. `at_start` is the unit's memory when it began: by now the unit may have read as many
    /// pages again.
    fn learn(&mut self, measured: Taken, at_start: UnitMemory, facts: &MemoryFacts) {
        let swappable = at_start.anonymous.min(facts.swap_free);
        let files = at_start.clean().min(measured.bytes);
        let dropped = files + in_swap_already(measured.bytes - files, at_start);
        if dropped == measured.bytes || at_start.dirty.saturating_add(facts.swap_free) == 0 {
            self.dropped.learn(measured);
            return;
        }
        // Dropped pages say nothing about the rest. A small rest teaches nothing, unless it is the larger part.
        let rest = measured.without(dropped, self.drop_per_s(facts));
        if !rest.suffices(false) && rest.bytes < measured.bytes / 2 {
            return;
        }
        if at_start.dirty > swappable {
            self.written.learn(rest);
        } else {
            self.learn_swap(facts.swap_next, rest);
        }
    }

    /// Learns where all that was reclaimed is known to have been written, to files or to swap. `counted` is what was
    /// learnt from so far, `now` the total, and `busy` whether reclaim goes on.
    pub fn learn_written(&mut self, counted: &mut Taken, now: Taken, busy: bool, area: u64) {
        let taken = now.since(*counted);
        if taken.suffices(busy) {
            self.written.learn(taken);
            self.learn_swap(area, taken);
        }
        if taken.suffices(busy) || taken == Taken::default() {
            *counted = now;
        }
    }

    fn learn_swap(&mut self, area: u64, measured: Taken) {
        let mut rate = self.swap(area);
        rate.learn(measured);
        if self.swapped.len() >= AREAS_MAX && !self.swapped.contains_key(&area) {
            self.swapped.pop_first();
        }
        self.swapped.insert(area, rate);
    }

    /// How many bytes to reclaim now on trial from a unit whose loan has reached `callable`: enough for a measurement.
    /// `None` if the last trial was too recent, or if the unit has too little of one kind: pages that only have to be
    /// dropped, or pages that can go to swap.
    pub(super) fn bytes_to_try(
        &mut self,
        now: Time,
        unit: UnitMemory,
        callable: u64,
        facts: &MemoryFacts,
    ) -> Option<u64> {
        let bytes = (facts.total / TRIAL_PART).clamp(BYTES_MIN, TRIAL_BYTES_MAX).min(callable.max(BYTES_MIN));
        let enough = unit.droppable().max(unit.anonymous.min(facts.swap_free)) / 4 >= bytes;
        if now < self.next_trial_at || bytes == 0 || !enough {
            return None;
        }
        self.next_trial_at = now.saturating_add(self.trial_rest_ns);
        self.trial_rest_ns = self.trial_rest_ns.saturating_mul(2).min(TRIAL_REST_NS_MAX);
        Some(bytes)
    }
}

/// How many of these anonymous bytes only had to be dropped. The kernel takes the oldest, in swap already or not.
fn in_swap_already(bytes: u64, memory: UnitMemory) -> u64 {
    let bytes = bytes.min(memory.anonymous);
    let cached = memory.swap_cached.min(memory.anonymous);
    if memory.anonymous - cached <= memory.anonymous / NEARLY_ALL_PART {
        return bytes;
    }
    part_of(bytes, cached, memory.anonymous)
}

/// Bytes that come free when `swapped` bytes are swapped out: fewer where swap is memory itself.
pub(super) fn freed(swapped: u64, facts: &MemoryFacts) -> u64 {
    let left = 1_000 - facts.packed_permille.min(1_000);
    part_of(swapped, left, 1_000)
}

#[cfg(test)]
mod tests;
