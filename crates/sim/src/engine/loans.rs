//! Memory on loan: how much of it could be called back in time, and how long call-backs took.
//!
//! Problem: a lent page that has no copy must be written before its frame is free. So a loan of memory takes as long
//! to end as the borrower's pages take to reach a disk.
//!
//! Algorithm, where the machine bounds its loans ([`MemoryLoans::InTime`]): the live policy's [`Rates`] say how large
//! a loan may be. They learn from every page-out how fast a unit's pages are written, over the time in which at least
//! one such write was under way. Clean pages are dropped in no time here. A loan is what that pace brings back within
//! the contract's `call-back-memory`. All of that time is there for writing: the simulated machine sees at once that a
//! lender is short. Then the pager writes what the borrower owes without being asked for each page.
//!
//! Measured, on every machine: a call-back begins at the moment at which a lender is short. It lasts until all that
//! the lender is allowed is its own or free, until a period passed in which it got everything it asked for, or until
//! the lender has ended. A call-back that goes on when the run ends counts as far as it got.
//!
//! Checked, where loans are bounded:
//! - No loan grows beyond what would be back within the promise, if all are called back at once.
//! - While something is called back, a unit that owes frames has some on their way as long as it has any to give. So a
//!   call-back takes what disks need for it and no more.
//!
//! Whether this keeps the promise is a figure (`late`): a disk may have other work then than when its pace was learnt.

use commonhold_contract::{Scheme, UnitId};
use commonhold_policy::frames::{Allowance, Because, Facts, Look};
use commonhold_policy::memory::{MemoryFacts, Rates, Taken, UnitMemory};

use super::Engine;
use crate::Time;
use crate::memory::{Giveable, PageOut};
use crate::outcome::MemoryCallBacks;
use crate::scenario::{MemoryLoans, Scenario};

/// What is known of loans of memory.
#[derive(Debug)]
pub(super) struct Loans {
    /// Within what a call-back should be over, in ns.
    promise: Time,
    /// Whether loans are bounded by that.
    bounded: bool,
    rates: Rates,
    units: Vec<Unit>,
    /// The most by which what was swapped out exceeded the swap areas, in bytes.
    swap_short: u64,
}

/// What is known of one unit.
#[derive(Debug, Default)]
struct Unit {
    /// Writes of its pages that are under way, and since when there is at least one.
    writes: u32,
    since: Time,
    /// What was written, and how long that took; and what of it the rates have learnt from.
    written: Taken,
    learnt: Taken,
    /// Whether it lent at the last look, and how many frames it was allowed.
    lent: bool,
    allowed: u64,
    /// Since when it calls back what it lent; and when it called last.
    call: Option<Time>,
    called_at: Option<Time>,
    /// How long its call-backs took.
    spans: Vec<Time>,
    /// How long its tasks waited for frames, summed.
    waited_ns: Time,
}

impl Unit {
    fn written_by(&self, now: Time) -> Taken {
        let under_way = if self.writes > 0 { now - self.since } else { 0 };
        Taken { ns: self.written.ns + under_way, ..self.written }
    }

    fn over(&mut self, now: Time) {
        if let Some(since) = self.call.take() {
            self.spans.push(now - since);
        }
    }
}

impl Loans {
    pub(super) fn new(scenario: &Scenario) -> Loans {
        let machine = &scenario.contract.machine;
        let in_time = scenario.hardware.kernel.memory_loans == MemoryLoans::InTime;
        Loans {
            promise: machine.call_back_memory_ns,
            bounded: in_time && machine.scheme == Scheme::Isolate,
            rates: Rates::free_to_drop(),
            units: scenario.contract.units.iter().map(|_| Unit::default()).collect(),
            swap_short: 0,
        }
    }

    /// A write begins that a unit's frames are free after.
    fn begins(&mut self, out: &PageOut, now: Time) {
        for (unit, _) in out.charges() {
            let unit = &mut self.units[unit.index()];
            if unit.writes == 0 {
                unit.since = now;
            }
            unit.writes += 1;
        }
    }

    /// It is done.
    fn ends(&mut self, out: &PageOut, now: Time, frame_bytes: u64) {
        for (unit, pages) in out.charges() {
            let unit = &mut self.units[unit.index()];
            unit.written = unit.written_by(now);
            (unit.since, unit.writes) = (now, unit.writes - 1);
            unit.written.bytes += pages * frame_bytes;
        }
    }

    /// How many bytes could be called back in time from a unit that has these.
    fn callable(&mut self, id: UnitId, has: UnitMemory, facts: &MemoryFacts, now: Time) -> u64 {
        let unit = &mut self.units[id.index()];
        let written = unit.written_by(now);
        self.rates.learn_written(&mut unit.learnt, written, unit.writes > 0);
        self.rates.callable(has, facts, self.promise)
    }

    /// A task of a unit has waited so long for a frame.
    pub(super) fn waited(&mut self, unit: u32, span: Time) {
        self.units[unit as usize].waited_ns += span;
    }

    /// What a unit's call-backs of memory came to.
    pub(super) fn call_backs(&self, id: UnitId, now: Time) -> MemoryCallBacks {
        let unit = &self.units[id.index()];
        let mut spans: Vec<Time> = unit.spans.iter().copied().chain(unit.call.map(|at| now - at)).collect();
        spans.sort_unstable();
        MemoryCallBacks {
            count: spans.len() as u64,
            median_ns: spans.get(spans.len().saturating_sub(1) / 2).copied().unwrap_or(0),
            max_ns: spans.last().copied().unwrap_or(0),
            late: spans.iter().filter(|span| **span > self.promise).count() as u64,
        }
    }
}

impl Engine<'_> {
    /// Tells the policy how much could be called back from each unit.
    pub(super) fn bound_loans(&mut self, facts: &mut [Facts]) {
        if !self.loans.bounded {
            return;
        }
        let frame = self.frame_bytes();
        let machine = MemoryFacts { swap_free: self.swap_free(), ..MemoryFacts::default() };
        for (id, has) in self.scenario.contract.ids().zip(self.memory.giveable()) {
            let has = unit_memory(has, frame);
            facts[id.index()].callable = Some(self.loans.callable(id, has, &machine, self.now) / frame);
        }
    }

    /// The swap areas, and what is in them, in bytes.
    fn swap(&self) -> (u64, u64) {
        let all = (0..self.drives.len()).map(|drive| self.swap_bytes(drive)).sum();
        (all, self.memory.swapped().saturating_mul(self.frame_bytes()))
    }

    /// Free swap, in bytes.
    fn swap_free(&self) -> u64 {
        let (all, taken) = self.swap();
        all.saturating_sub(taken)
    }

    /// Swap areas do not fill up here, as those of a live machine do: by how much they would have had to be larger.
    pub(super) fn swap_short(&self) -> u64 {
        self.loans.swap_short
    }

    /// Memory was divided: which units call back what they lent, and which are done.
    pub(super) fn note_loans(&mut self, look: Look, facts: &[Facts], allowances: &[Allowance]) {
        if look == Look::Period {
            let (all, taken) = self.swap();
            self.loans.swap_short = self.loans.swap_short.max(taken.saturating_sub(all));
        }
        self.expect_time_for_all(facts, allowances);
        for (i, (facts, allowance)) in facts.iter().zip(allowances).enumerate() {
            let waits = facts.short || !self.starved[i].is_empty();
            let unit = &mut self.loans.units[i];
            let calls = unit.lent && matches!(allowance.because, Because::CalledBack { .. });
            // A loan is made, or grows, only to where it could be called back in time. (What a unit had before others came
            // becomes a loan when they come, without growing.)
            let callable = facts.callable.filter(|_| allowance.because != Because::Common);
            let callable = callable.map_or(u64::MAX, |callable| allowance.entitled.saturating_add(callable));
            let (allowed, most) = (allowance.allowed, callable.max(unit.allowed));
            self.audit.expect(self.now, allowed <= most, || {
                let (name, promise) = (&self.scenario.contract.units[i].path, self.loans.promise);
                format!("{name}: is allowed {allowed} frames, and beyond {most} none would be back within {promise} ns")
            });
            (unit.lent, unit.allowed) = (allowance.lent > 0, allowed);
            if calls && unit.call.is_none() {
                (unit.call, unit.called_at) = (Some(self.now), Some(self.now));
            } else if look == Look::Period && !waits || !facts.present {
                unit.over(self.now);
            }
        }
        self.end_call_backs();
    }

    /// Loans that together could not be called back in time do not grow.
    fn expect_time_for_all(&mut self, facts: &[Facts], allowances: &[Allowance]) {
        if !self.loans.bounded {
            return;
        }
        let promise = self.loans.promise;
        let part = |(facts, allowance): (&Facts, &Allowance)| {
            let callable = facts.callable.filter(|_| allowance.borrowed > 0)?;
            Some(u128::from(allowance.borrowed) * 1_000_000 / u128::from(callable.max(1)))
        };
        let time: u128 = facts.iter().zip(allowances).filter_map(part).sum();
        let grew = allowances.iter().zip(&self.loans.units).any(|(allowance, unit)| {
            allowance.because != Because::Common && allowance.allowed > unit.allowed.max(allowance.entitled)
        });
        self.audit.expect(self.now, time <= 1_000_000 || !grew, || {
            format!(
                "a loan grows, though all of them would take {time} millionths of {promise} ns to come back"
            )
        });
    }

    /// Call-backs are over that brought everything back.
    fn end_call_backs(&mut self) {
        for id in self.scenario.contract.ids() {
            if self.loans.units[id.index()].call.is_some() && self.memory.is_whole(id) {
                self.loans.units[id.index()].over(self.now);
            }
        }
    }

    /// What units owe is written, without waiting for the unit that needs it.
    pub(super) fn collect_debts(&mut self) {
        if !self.loans.bounded {
            return;
        }
        for id in self.scenario.contract.held() {
            for out in self.memory.collect(id).writes {
                self.write_out(out, false);
            }
        }
        self.end_call_backs();
    }

    /// While a unit calls back what it lent, a unit that owes pages has some on their way, as long as it has any to
    /// give: what a call-back takes is what disks need for them. (Pages that come to be given later are taken at the
    /// next look, or before, when a write ends or more are asked for.)
    pub(super) fn expect_no_rest(&mut self) {
        let called = self.scenario.contract.held().any(|id| self.loans.units[id.index()].call.is_some());
        if !self.loans.bounded || !called {
            return;
        }
        for id in self.scenario.contract.held() {
            self.audit.expect(self.now, !self.memory.rests(id), || {
                let name = &self.scenario.contract.unit(id).path;
                format!("{name}: owes frames that were called back, and gives none")
            });
        }
    }

    /// How long a unit's tasks waited for frames, in all.
    pub(super) fn waited_for_frames(&self, id: UnitId) -> Time {
        self.loans.units[id.index()].waited_ns
    }

    /// Whether so many frames are there again for a unit that called them back: it need give none of its own.
    pub(super) fn came_back(&self, id: UnitId, pages: u64) -> bool {
        let unit = &self.loans.units[id.index()];
        let calls = unit.call.is_some() || unit.called_at == Some(self.now);
        self.loans.bounded && calls && self.memory.has_room(id, pages)
    }

    pub(super) fn page_out_begins(&mut self, out: &PageOut) {
        if out.leaves() {
            self.loans.begins(out, self.now);
        }
    }

    /// Pages are written that memory needed the frames of.
    pub(super) fn page_out_ends(&mut self, out: PageOut) {
        if out.leaves() {
            self.loans.ends(&out, self.now, self.frame_bytes());
        }
        let _ = self.memory.written(out);
        self.end_call_backs();
        self.collect_debts();
        self.expect_no_rest();
    }
}

/// A unit's memory as the live policy has it.
fn unit_memory(has: Giveable, frame: u64) -> UnitMemory {
    UnitMemory {
        used: (has.clean + has.dirty + has.anonymous) * frame,
        anonymous: has.anonymous * frame,
        dirty: has.dirty * frame,
        ..UnitMemory::default()
    }
}
