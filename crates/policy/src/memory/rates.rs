//! How fast memory comes back from a borrower.
//!
//! Problem: a loan that could not be ended within the promised time must not be made. But how long ending it will take
//! is not known. Clean pages of files are dropped, dirty ones are written, and anonymous ones go to swap. Each happens
//! at the pace of the CPUs, of devices and of other load.
//!
//! Algorithm: there are rates of pages that only have to be dropped, of pages that have to be written to files, and of
//! pages that go to swap: one for each swap area, by the area that the kernel fills next.
//! - All begin as a slow machine's, so that first loans are small. What a backend took, and the time that it worked
//!   at it, replaces that. From then on the rate follows: a quarter of the way up; half way down if it was slow for
//!   a second, and less far for less.
//! - Time without work does not count. So a lender that grows slowly does not make the rates look slow.
//! - A rate is to be known before it is relied on. So a borrower whose loan has come to where its rate ends is put *on trial*:
//!   its loan is a little smaller for a second at most. Its bound slows it then as in a call-back, and it does not keep the device
//!   busy with its own pages. From one with a small loan a little is taken. That is again after [`TRIAL_NS`], and each time after
//!   twice as long, up to [`TRIAL_NS_MAX`].
//! - A unit that owes much is also slowed by its own bound, and takes its own pages. So what counts is the faster of two: what
//!   was taken by order, in the time that this took; and, when it owes no more, what it has less since it came to owe, as far as
//!   that was reclaimed or is in swap. Not before: what goes fast goes first.
//! - What was taken counts for the rate of what there was enough of when that began: pages to drop, or else, without
//!   these, the more of dirty ones and those in no file. Of those in no file a part may be in swap already. The kernel takes the
//!   oldest: so the same part of what was taken only had to be dropped. Nothing is slower to drop than to swap out. A unit that reads files has new pages to drop soon after, which
//!   say nothing of what was taken. A simulated machine knows of each page whether it was written, and says so ([`Rates::learn_written`]). It drops pages in no time ([`Rates::free_to_drop`]).
//!
//! Limits:
//! - When a loan is made, the kind of its pages is not known, only what the unit has by now.
//! - Without swap, what a unit has without a file is never lent for.
//! - Several borrowers that are called on at once are taken to share the time ([`frames`](super::frames)), also where
//!   their pages could be taken side by side.

use alloc::collections::BTreeMap;

use super::pace::Pace;
use crate::rights::share::part_of;
use crate::snapshot::{MemoryFacts, UnitMemory};
use crate::time::{MS, Time};

/// Bytes per second until something was measured: half of what an emulated machine without hardware help reaches.
const DROPPED_PER_S: u64 = 128 << 20;
const WRITTEN_PER_S: u64 = 32 << 20;
/// No rate sinks below, so that small loans are tried, and measured.
const PER_S_MIN: u64 = 1 << 20;
/// Less than this, taken in less than a second, says nothing about a rate.
const BYTES_MIN: u64 = 8 << 20;
/// When something is taken on trial again: after the first time, and at most.
const TRIAL_NS: Time = 500 * MS;
const TRIAL_NS_MAX: Time = 64_000 * MS;
/// A trial ends after this. What is taken within this after one began counts for it.
pub(super) const TRIAL_LASTS_NS: Time = 1_000 * MS;
/// What is taken on trial: a part of the machine, within bounds.
const TRIAL_PART: u64 = 64;
const TRIAL_BYTES_MAX: u64 = 64 << 20;
/// What is left of nearly all.
const NEARLY_ALL_PART: u64 = 16;
/// Swap areas of which rates are known: as many as a kernel has at once.
const AREAS_MAX: usize = 32;

const SECOND: u128 = 1_000_000_000;

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    per_s: u64,
    measured: bool,
}

/// What is known about the pace of call-backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    dropped: Rate,
    /// Of dirty pages of files.
    written: Rate,
    /// Of pages in no file, by swap area.
    swapped: BTreeMap<u64, Rate>,
    trial_at: Time,
    trial_rest: Time,
}

/// What is being taken from a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taking {
    /// What was learnt from so far, of what was taken by order.
    pub(super) counted: Taken,
    /// When the unit came to owe something, and its facts then.
    owed: Option<(Time, UnitMemory)>,
    /// What had been taken from it at the last look.
    seen: Taken,
    /// What it had when what was taken since then began to be taken.
    had: UnitMemory,
    /// When something was taken from it on trial last, while its loan stayed.
    pub(super) tried: Option<Time>,
}

/// What was taken from a unit up to some moment, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Bytes.
    pub bytes: u64,
    /// The time in which that was at work, in nanoseconds.
    pub ns: Time,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            dropped: Rate::assumed(DROPPED_PER_S),
            written: Rate::assumed(WRITTEN_PER_S),
            swapped: BTreeMap::new(),
            trial_at: 0,
            trial_rest: TRIAL_NS,
        }
    }
}

impl Rate {
    fn assumed(per_s: u64) -> Rate {
        Rate { per_s, measured: false }
    }

    /// Learns from what was seen in so much time.
    fn learn(&mut self, seen: Taken) {
        self.per_s = if self.measured { self.towards(seen) } else { seen.per_s() }.max(PER_S_MIN);
        self.measured = true;
    }

    /// Half way down for a second or more, and less far for less: a device is slow for a moment.
    fn towards(self, seen: Taken) -> u64 {
        let per_s = seen.per_s();
        if per_s >= self.per_s {
            return self.per_s + (per_s - self.per_s) / 4;
        }
        let less = u128::from(self.per_s - per_s) * u128::from(seen.ns).min(SECOND) / SECOND / 2;
        self.per_s - u64::try_from(less).unwrap_or(0)
    }
}

impl Taking {
    /// What came back of what the unit owed, and in what time: what it has less, as far as that was taken from it.
    fn came_back(&self, now: Time, unit: UnitMemory) -> Taken {
        let Some((at, then)) = self.owed else { return Taken::default() };
        let less = then.used.saturating_sub(unit.used);
        // What was reclaimed may be told late. What is in swap is not.
        let reclaimed = unit.reclaimed.saturating_sub(then.reclaimed);
        let swapped = unit.swapped.saturating_sub(then.swapped);
        Taken { bytes: less.min(reclaimed.max(swapped)), ns: now.saturating_sub(at) }
    }
}

impl Taken {
    /// What was taken from a unit up to now.
    pub(super) fn of(unit: UnitMemory) -> Taken {
        Taken { bytes: unit.taken, ns: unit.taking_ns }
    }

    /// What was taken since then; nothing of a unit that was made anew since.
    fn since(self, before: Taken) -> Taken {
        match (self.bytes.checked_sub(before.bytes), self.ns.checked_sub(before.ns)) {
            (Some(bytes), Some(ns)) => Taken { bytes, ns },
            _ => Taken::default(),
        }
    }

    /// Whether it is enough to tell a rate; `busy` while more is being taken.
    fn tells(self, busy: bool) -> bool {
        let (long, much) = (u128::from(self.ns) >= SECOND, self.bytes >= BYTES_MIN);
        self.ns > 0 && (long || much && !busy)
    }

    /// What is left without so many bytes that were taken at that rate. The rest is no faster than all of it together.
    fn less(self, bytes: u64, per_s: u64) -> Taken {
        let rest = self.bytes.saturating_sub(bytes);
        let of_it = u128::from(bytes) * SECOND / u128::from(per_s.max(1));
        let least = u128::from(self.ns) * u128::from(rest) / u128::from(self.bytes.max(1));
        let ns = u128::from(self.ns).saturating_sub(of_it).max(least);
        Taken { bytes: rest, ns: u64::try_from(ns).unwrap_or(self.ns) }
    }

    fn per_s(self) -> u64 {
        u64::try_from(u128::from(self.bytes) * SECOND / u128::from(self.ns.max(1))).unwrap_or(u64::MAX)
    }
}

impl Rates {
    /// Those of a machine on which dropping clean pages takes no time.
    #[must_use]
    pub fn free_to_drop() -> Self {
        Rates { dropped: Rate { per_s: u64::MAX, measured: true }, ..Rates::default() }
    }

    /// How much a unit with these could give back, in bytes. Of the facts, swap counts. A kernel does not wait for dirty pages
    /// as long as it has others that are written faster.
    pub fn pace(&self, unit: UnitMemory, facts: &MemoryFacts) -> Pace {
        let (swapped, dropped) = (self.swapped(facts.swap_next).per_s, self.dropping(facts));
        // What is in no file now; whatever else the unit will have may be in no file, too.
        let cached = unit.swap_cached.min(unit.anonymous);
        let not_cached = unit.anonymous - cached;
        let to_swap = not_cached.min(facts.swap_free);
        // Once swap is full, the kernel takes nothing in no file.
        let cached = match (facts.swap_free, not_cached) {
            (0, _) => 0,
            (_, 0) => cached,
            _ => part_of(cached, to_swap, not_cached),
        };
        // Those in swap already go among the others: each as the so many bytes that are swapped out while it is dropped.
        let as_swapped = to_swap.saturating_add(part_of(cached, swapped, dropped));
        let anonymous = (cached.saturating_add(freed(to_swap, facts)), as_swapped, swapped);
        let written = (unit.dirty, unit.dirty, self.written.per_s);
        let faster = part_of(swapped, anonymous.0, as_swapped) > self.written.per_s;
        let [first, second] = if faster { [anonymous, written] } else { [written, anonymous] };
        let rest = facts.swap_free - to_swap;
        Pace::default()
            .then(unit.clean(), unit.clean(), dropped)
            .then(first.0, first.1, first.2)
            .then(second.0, second.1, second.2)
            .then(freed(rest, facts), rest, swapped)
    }

    /// Bytes per second that only have to be dropped: no fewer than can be written to swap, though few were dropped so far.
    fn dropping(&self, facts: &MemoryFacts) -> u64 {
        self.dropped.per_s.max(self.swapped(facts.swap_next).per_s)
    }

    fn swapped(&self, area: u64) -> Rate {
        self.swapped.get(&area).copied().unwrap_or(Rate::assumed(WRITTEN_PER_S))
    }

    /// Learns from what was taken from a unit that `owes` something now or does not, once that is enough to tell.
    pub(super) fn look(
        &mut self,
        now: Time,
        taking: &mut Taking,
        unit: UnitMemory,
        facts: &MemoryFacts,
        owes: bool,
    ) {
        let counted = Taken::of(unit);
        // Of a unit that was never looked at before, nothing better is known than what it has now.
        if taking.had.used == 0 {
            taking.had = unit;
        }
        let on_trial = taking.tried.is_some_and(|at| now.saturating_sub(at) < TRIAL_LASTS_NS);
        let busy = owes || on_trial;
        let back = if owes { Taken::default() } else { taking.came_back(now, unit) };
        let taken = counted.since(taking.counted);
        let told = [taken, back].into_iter().filter(|way| way.tells(busy)).max_by_key(|way| way.per_s());
        if let Some(all) = told {
            self.learn(all, taking.had, facts);
        }
        if told.is_some() || counted.bytes < taking.counted.bytes || counted.ns < taking.counted.ns {
            taking.counted = counted;
        }
        if owes {
            taking.owed.get_or_insert((now, unit));
        } else {
            taking.owed = None;
        }
        let all_is_told = taking.counted == counted && taking.owed.is_none_or(|(at, _)| at == now);
        // Too little to tell was taken, some time ago. What is taken next comes from what there is by then; if some of that can
        // be dropped, it may be that.
        let is_over = taking.seen == counted && taking.owed.is_none();
        if all_is_told || is_over && unit.droppable() > taking.had.droppable() {
            taking.had = unit;
        }
        taking.seen = counted;
    }

    /// Learns from what was taken. `had` is what the unit had when that began: by now it may have read as many pages anew.
    fn learn(&mut self, all: Taken, had: UnitMemory, facts: &MemoryFacts) {
        let swappable = had.anonymous.min(facts.swap_free);
        let files = had.clean().min(all.bytes);
        let dropped = files + in_swap_already(all.bytes - files, had);
        if dropped == all.bytes || had.dirty.saturating_add(facts.swap_free) == 0 {
            self.dropped.learn(all);
            return;
        }
        // What only has to be dropped says nothing about the rest. If that is little, nothing is learnt, unless it is the most.
        let rest = all.less(dropped, self.dropping(facts));
        if !rest.tells(false) && rest.bytes < all.bytes / 2 {
            return;
        }
        if had.dirty > swappable {
            self.written.learn(rest);
        } else {
            self.learn_swapped(facts.swap_next, rest);
        }
    }

    /// The same where all that was taken is known to have been written, to files or to swap: `now` has nothing else.
    pub fn learn_written(&mut self, before: &mut Taken, now: Taken, busy: bool, area: u64) {
        let taken = now.since(*before);
        if taken.tells(busy) {
            self.written.learn(taken);
            self.learn_swapped(area, taken);
        }
        if taken.tells(busy) || taken == Taken::default() {
            *before = now;
        }
    }

    fn learn_swapped(&mut self, area: u64, seen: Taken) {
        let mut rate = self.swapped(area);
        rate.learn(seen);
        if self.swapped.len() >= AREAS_MAX && !self.swapped.contains_key(&area) {
            self.swapped.pop_first();
        }
        self.swapped.insert(area, rate);
    }

    /// How much to take now on trial from a unit whose loan has come to `callable`: enough to tell. Nothing while it is too soon after the
    /// last time, or where the unit has little of one kind: what only had to be dropped, or what could go to swap.
    pub(super) fn trial(
        &mut self,
        now: Time,
        unit: UnitMemory,
        callable: u64,
        facts: &MemoryFacts,
    ) -> Option<u64> {
        let bytes = (facts.total / TRIAL_PART).clamp(BYTES_MIN, TRIAL_BYTES_MAX).min(callable.max(BYTES_MIN));
        let enough = unit.droppable().max(unit.anonymous.min(facts.swap_free)) / 4 >= bytes;
        if now < self.trial_at || bytes == 0 || !enough {
            return None;
        }
        self.trial_at = now.saturating_add(self.trial_rest);
        self.trial_rest = self.trial_rest.saturating_mul(2).min(TRIAL_NS_MAX);
        Some(bytes)
    }
}

/// How much of so many bytes only had to be dropped, of those in no file. The kernel takes the oldest, in swap already or not. Nearly
/// all is all.
fn in_swap_already(bytes: u64, had: UnitMemory) -> u64 {
    let bytes = bytes.min(had.anonymous);
    let cached = had.swap_cached.min(had.anonymous);
    if had.anonymous - cached <= had.anonymous / NEARLY_ALL_PART {
        return bytes;
    }
    part_of(bytes, cached, had.anonymous)
}

/// What comes free when so many bytes are swapped out: less where swap is memory itself.
pub(super) fn freed(swapped: u64, facts: &MemoryFacts) -> u64 {
    let left = 1_000 - facts.packed_permille.min(1_000);
    part_of(swapped, left, 1_000)
}

#[cfg(test)]
mod tests;
