//! How fast memory is reclaimed from borrowers, learnt from earlier reclaim.
//!
//! Problem: a loan that could not be ended within the promised time must not be made. How long it takes to
//! end a loan depends on the borrower's pages, on CPUs, on devices and on other load. Clean file pages are
//! dropped, dirty file pages are written, and anonymous pages go to swap.
//!
//! Algorithm:
//! - There is one rate for pages that only have to be dropped, one for pages that are written to files, and
//!   one for each swap area. A measurement of swapping counts for the area that the kernel fills next.
//! - Each rate begins with that of a slow machine, so that the first loans are small. The first measurement
//!   replaces this assumption. Each later measurement enters a moving average. A measurement faster than the
//!   average has weight 1/4. A slower measurement has weight 1/2 if it took a second or more, and
//!   proportionally less if it took less time.
//! - Only the time in which pages were being reclaimed counts. So a lender that grows slowly does not make
//!   the rates look slow.
//! - A unit that exceeds its bound by much is also slowed by the bound, and reclaims its own pages. So there
//!   are two measures, and the faster one counts. The first is the amount reclaimed by order, over the time
//!   of that reclaim. The second is how much the unit shrank from when it began to owe until it owed nothing,
//!   but at most the amount that was reclaimed or swapped. The second is taken only when the unit owes
//!   nothing any more, since the pages that are reclaimed first are those that are reclaimed fastest.
//! - A measurement counts for the kind of page that was plentiful when the measurement began: pages that only
//!   have to be dropped or, without enough of these, dirty or anonymous pages, whichever were more. The pages
//!   at the end of a measurement do not show which kind was reclaimed, since a unit that reads files soon has
//!   new clean pages. The kernel takes the oldest anonymous pages; the fraction of these that was already in
//!   swap only had to be dropped. Dropping is never slower than swapping out.
//! - The simulated kernel knows which pages it wrote, and reports them ([`ReclaimRates::learn_written`]). It
//!   drops pages in no time ([`ReclaimRates::free_to_drop`]).
//!
//! Limits:
//! - When a loan is made, the kinds of pages that the borrower will have are unknown. They are assumed to be
//!   the kinds that the borrower has now.
//! - Without swap, a unit's anonymous pages permit no loan.
//! - If memory is called back from several borrowers at the same time, they are assumed to give it back one
//!   after another ([`terms`](super::terms)), even if their pages could be reclaimed in parallel.

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
/// The time from the first trial to the second. It doubles after each trial (exponential back-off).
const TRIAL_REST_NS: Time = 500 * MS;
/// The longest time from one trial to the next.
const TRIAL_REST_NS_MAX: Time = 64_000 * MS;
/// How much a trial reclaims: 1/64 of the machine, within bounds.
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
    /// No trial begins before this time.
    next_trial_at: Time,
    /// How long the next trial delays the one after it.
    trial_rest_ns: Time,
}

/// The measurement of a unit's reclaim, carried from sample to sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reclaiming {
    /// The part of the reclaim by order that the rates have already learnt from.
    pub(super) counted: Taken,
    /// When the unit began to owe memory, and its memory at that time; `None` while it owes nothing.
    owes_since: Option<(Time, UnitMemory)>,
    /// All reclaim by order up to the last sample.
    last: Taken,
    /// The unit's memory when the reclaim that the rates have not yet learnt from began.
    memory_at_start: UnitMemory,
    /// When a trial last reclaimed memory from the unit without a smaller loan; see [`trial`](super::trial).
    pub(super) tried_at: Option<Time>,
}

/// Reclaim from a unit by order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Bytes reclaimed.
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
        self.per_s = if self.measured { self.averaged(measured) } else { measured.per_s() }.max(PER_S_MIN);
        self.measured = true;
    }

    /// The moving average with a new measurement. A short slow measurement has little weight, since a device
    /// may be slow for a moment.
    fn averaged(self, measured: Taken) -> u64 {
        let per_s = measured.per_s();
        if per_s >= self.per_s {
            return self.per_s + (per_s - self.per_s) / 4;
        }
        let decrease = u128::from(self.per_s - per_s) * u128::from(measured.ns).min(SECOND) / SECOND / 2;
        self.per_s - u64::try_from(decrease).unwrap_or(0)
    }
}

impl Reclaiming {
    /// How much the unit shrank by reclaim since it began to owe, and the time since then. Zero if it owed
    /// nothing.
    fn paid_back(&self, now: Time, memory: UnitMemory) -> Taken {
        let Some((owes_since, at_start)) = self.owes_since else { return Taken::default() };
        let shrunk = at_start.used.saturating_sub(memory.used);
        // The count of reclaimed bytes may lag; the count of swapped bytes does not.
        let reclaimed = memory.reclaimed.saturating_sub(at_start.reclaimed);
        let swapped = memory.swapped.saturating_sub(at_start.swapped);
        Taken { bytes: shrunk.min(reclaimed.max(swapped)), ns: now.saturating_sub(owes_since) }
    }
}

impl Taken {
    /// All reclaim from a unit by order since its creation.
    fn by_order(memory: UnitMemory) -> Taken {
        Taken { bytes: memory.taken, ns: memory.taking_ns }
    }

    /// The increase since an earlier value of the counters; zero if the unit's counters restarted.
    fn since(self, before: Taken) -> Taken {
        match (self.bytes.checked_sub(before.bytes), self.ns.checked_sub(before.ns)) {
            (Some(bytes), Some(ns)) => Taken { bytes, ns },
            _ => Taken::default(),
        }
    }

    /// Whether this is enough for a measurement: a second of reclaim or, once reclaim has stopped (not
    /// `busy`), [`BYTES_MIN`].
    fn suffices(self, busy: bool) -> bool {
        let (is_long, is_large) = (u128::from(self.ns) >= SECOND, self.bytes >= BYTES_MIN);
        self.ns > 0 && (is_long || is_large && !busy)
    }

    /// The remainder without `bytes` that were reclaimed at `per_s` bytes per second. The remainder's rate is
    /// at most the rate of all.
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

    /// The curve of how many bytes could be called back from a unit with this memory. Anonymous pages count
    /// up to the free swap space in `facts`. Of dirty and anonymous pages, the kind that comes free faster is
    /// first: a kernel does not wait for dirty pages while it has other pages that are written faster.
    pub fn curve(&self, unit: UnitMemory, facts: &MemoryFacts) -> ReclaimCurve {
        let (swap_per_s, drop_per_s) = (self.swap_rate(facts.swap_next).per_s, self.drop_per_s(facts));
        let cached = unit.swap_cached.min(unit.anonymous);
        let not_cached = unit.anonymous - cached;
        let to_swap = not_cached.min(facts.swap_free);
        // Once swap is full, the kernel reclaims no anonymous pages, not even those with a copy in swap.
        let cached = match (facts.swap_free, not_cached) {
            (0, _) => 0,
            (_, 0) => cached,
            _ => part_of(cached, to_swap, not_cached),
        };
        // Pages with a copy in swap lie among the other anonymous pages. Each counts as the bytes that could
        // be swapped out in the time that dropping it takes.
        let as_swapped = to_swap.saturating_add(part_of(cached, swap_per_s, drop_per_s));
        let anonymous = (cached.saturating_add(freed(to_swap, facts)), as_swapped, swap_per_s);
        let written = (unit.dirty, unit.dirty, self.written.per_s);
        let swap_is_faster = part_of(swap_per_s, anonymous.0, as_swapped) > self.written.per_s;
        let [first, second] = if swap_is_faster { [anonymous, written] } else { [written, anonymous] };
        // The unit has no further pages now. Pages that it gets by a loan may be anonymous, and go to the
        // rest of swap.
        let further_swap = facts.swap_free - to_swap;
        ReclaimCurve::default()
            .with_part(unit.clean(), unit.clean(), drop_per_s)
            .with_part(first.0, first.1, first.2)
            .with_part(second.0, second.1, second.2)
            .with_part(freed(further_swap, facts), further_swap, swap_per_s)
    }

    /// The rate of dropping pages, in bytes per second: at least the rate of swapping out, even if few pages
    /// were dropped so far.
    fn drop_per_s(&self, facts: &MemoryFacts) -> u64 {
        self.dropped.per_s.max(self.swap_rate(facts.swap_next).per_s)
    }

    /// The rate of swapping out to this swap area.
    fn swap_rate(&self, area: u64) -> Rate {
        self.swapped.get(&area).copied().unwrap_or(Rate::assumed(WRITTEN_PER_S))
    }

    /// Adds a sample of a unit to its measurement, and learns from the measurement once it is large enough.
    /// `owes` says whether the unit owes memory now.
    pub(super) fn observe(
        &mut self,
        now: Time,
        reclaiming: &mut Reclaiming,
        memory: UnitMemory,
        facts: &MemoryFacts,
        owes: bool,
    ) {
        let total = Taken::by_order(memory);
        // A unit's memory before its first sample is unknown.
        if reclaiming.memory_at_start.used == 0 {
            reclaiming.memory_at_start = memory;
        }
        let on_trial = reclaiming.tried_at.is_some_and(|at| now.saturating_sub(at) < TRIAL_NS_MAX);
        let busy = owes || on_trial;
        // Learn from the faster of the two measures.
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
        // Reclaim may have stopped after too little for a measurement. The next reclaim may take any page
        // that the unit has by then, including new pages that only have to be dropped.
        let stopped = reclaiming.last == total && reclaiming.owes_since.is_none();
        if all_counted || stopped && memory.droppable() > reclaiming.memory_at_start.droppable() {
            reclaiming.memory_at_start = memory;
        }
        reclaiming.last = total;
    }

    /// Learns from a measurement. `at_start` is the unit's memory when the measurement began: by now the unit
    /// may have read the reclaimed pages again.
    fn learn(&mut self, measured: Taken, at_start: UnitMemory, facts: &MemoryFacts) {
        let swappable = at_start.anonymous.min(facts.swap_free);
        let files = at_start.clean().min(measured.bytes);
        let dropped = files + in_swap_already(measured.bytes - files, at_start);
        if dropped == measured.bytes || at_start.dirty.saturating_add(facts.swap_free) == 0 {
            self.dropped.learn(measured);
            return;
        }
        // The pages that were not dropped were written or swapped out. If they are too few for a measurement,
        // they are ignored, unless they are the larger part.
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

    /// Learns on a machine that reports only reclaim by writing, to files or to the swap area `area`. `total`
    /// is all reclaim of a unit so far, and `counted` the part that was already learnt from. `busy` says
    /// whether reclaim goes on.
    pub fn learn_written(&mut self, counted: &mut Taken, total: Taken, busy: bool, area: u64) {
        let taken = total.since(*counted);
        if taken.suffices(busy) {
            self.written.learn(taken);
            self.learn_swap(area, taken);
        }
        if taken.suffices(busy) || taken == Taken::default() {
            *counted = total;
        }
    }

    fn learn_swap(&mut self, area: u64, measured: Taken) {
        let mut rate = self.swap_rate(area);
        rate.learn(measured);
        if self.swapped.len() >= AREAS_MAX && !self.swapped.contains_key(&area) {
            self.swapped.pop_first();
        }
        self.swapped.insert(area, rate);
    }

    /// How many bytes to reclaim now on trial, enough for a measurement. The loan of the unit has reached
    /// `callable`, the bytes that could be called back from it in time. Returns `None` if the last trial was
    /// too recent, or if neither the unit's pages that only have to be dropped nor its pages that can go to
    /// swap are four times as many bytes.
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

/// How many of `bytes` reclaimed anonymous bytes only had to be dropped, since they had a copy in swap. The
/// kernel takes the oldest pages, with or without a copy, so the fraction is the same as in all anonymous
/// memory.
fn in_swap_already(bytes: u64, memory: UnitMemory) -> u64 {
    let bytes = bytes.min(memory.anonymous);
    let cached = memory.swap_cached.min(memory.anonymous);
    if memory.anonymous - cached <= memory.anonymous / NEARLY_ALL_PART {
        return bytes;
    }
    part_of(bytes, cached, memory.anonymous)
}

/// Bytes that come free when `swapped` bytes are swapped out: fewer where swap is compressed memory.
pub(super) fn freed(swapped: u64, facts: &MemoryFacts) -> u64 {
    let freed_permille = 1_000 - facts.packed_permille.min(1_000);
    part_of(swapped, freed_permille, 1_000)
}

#[cfg(test)]
mod tests;
