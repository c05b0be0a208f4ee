//! Memory on loan: how much of it could be called back in time, and how long call-backs took.
//!
//! Problem: a lent page that has no copy must be written before its frame is free. So a loan of memory takes
//! as long to end as the borrower's pages take to reach a disk.
//!
//! Where the machine bounds its loans ([`MemoryLoans::InTime`]), the policy learns from every page-out the
//! rate at which a unit's pages are written, over the time in which at least one such write was in flight. A
//! loan is at most what this rate brings back within the time that its owner was promised: the contract's
//! `call-back-memory`, or longer if the owner left the memory idle for long. When the loan is called back,
//! the pager writes all that the borrower owes, without waiting for a request for each page.
//!
//! Measured, on every machine: a call-back begins when a lender is short. It lasts until all that the lender
//! is allowed is its own or free, until a period has passed in which all its requests were granted, or until
//! the lender has ended. A call-back in progress when the run ends counts with its length so far.
//!
//! Checked, where loans are bounded:
//! - No loan grows beyond what would be back within the promise, if all loans are called back at once.
//! - During a call-back, a unit that owes frames has writes in flight as long as it has frames to give. So a
//!   call-back lasts no longer than its disk requests need.
//!
//! How often a promise was missed is reported (`late`): the disk may be busier at the call-back than when its
//! rate was learnt.

use commonhold_contract::{Scheme, UnitId};
use commonhold_policy::memory::Taken;
use commonhold_policy::plan::{MemoryOrder, MemoryPlan};
use commonhold_policy::{MemoryFacts, Reason, Step};

use super::Engine;
use crate::Time;
use crate::memory::PageOut;
use crate::outcome::MemoryCallBacks;
use crate::scenario::{Enforces, MemoryLoans, Scenario};

/// Measurements of memory loans.
#[derive(Debug)]
pub(super) struct Loans {
    /// Whether the machine bounds its loans.
    bounded: bool,
    units: Vec<Unit>,
    /// The largest excess of swapped-out memory over the size of the swap areas, in bytes.
    swap_short: u64,
}

/// Measurements of one unit's loans.
#[derive(Debug, Default)]
struct Unit {
    /// The number of writes of its pages in flight, and since when there has been at least one.
    writes: u32,
    since: Time,
    /// The bytes written, and the time during which writes were in flight.
    written: Taken,
    /// At the last sample: the promised call-back time, if the unit lent memory; and the bytes that it was
    /// allowed.
    within: Option<Time>,
    allowed: u64,
    /// The call-back in progress: its start and the promised time.
    call: Option<(Time, Time)>,
    /// When the latest call-back began.
    called_at: Option<Time>,
    /// Of each ended call-back: how long it took, and the promised time.
    spans: Vec<(Time, Time)>,
    /// The sum of the waits of the unit's tasks for frames.
    waited_ns: Time,
}

impl Unit {
    /// The bytes written up to now, and the time that this took, with the writes in flight.
    fn written_by(&self, now: Time) -> Taken {
        let in_flight_ns = if self.writes > 0 { now - self.since } else { 0 };
        Taken { ns: self.written.ns + in_flight_ns, ..self.written }
    }

    /// Ends the call-back in progress, if there is one.
    fn end_call_back(&mut self, now: Time) {
        if let Some((since, within)) = self.call.take() {
            self.spans.push((now - since, within));
        }
    }
}

impl Loans {
    pub(super) fn new(scenario: &Scenario) -> Loans {
        let machine = &scenario.contract.machine;
        let in_time = scenario.hardware.kernel.memory_loans == MemoryLoans::InTime;
        Loans {
            bounded: in_time
                && machine.scheme == Scheme::Isolate
                && scenario.hardware.enforces == Enforces::Irix,
            units: scenario.contract.units.iter().map(|_| Unit::default()).collect(),
            swap_short: 0,
        }
    }

    /// Counts the start of a page-out that frees units' frames.
    fn begin_write(&mut self, out: &PageOut, now: Time) {
        for (unit, _) in out.charges() {
            let unit = &mut self.units[unit.index()];
            if unit.writes == 0 {
                unit.since = now;
            }
            unit.writes += 1;
        }
    }

    /// Counts the end of a page-out that frees units' frames.
    fn end_write(&mut self, out: &PageOut, now: Time, frame_bytes: u64) {
        for (unit, pages) in out.charges() {
            let unit = &mut self.units[unit.index()];
            unit.written = unit.written_by(now);
            (unit.since, unit.writes) = (now, unit.writes - 1);
            unit.written.bytes += pages * frame_bytes;
        }
    }

    /// The bytes of a unit that were written up to now with the time that this took, and whether more writes
    /// are in flight.
    pub(super) fn written(&self, id: UnitId, now: Time) -> (Taken, bool) {
        let unit = &self.units[id.index()];
        (unit.written_by(now), unit.writes > 0)
    }

    /// Adds a task's wait for a frame.
    pub(super) fn waited(&mut self, unit: u32, span: Time) {
        self.units[unit as usize].waited_ns += span;
    }

    /// Summarises a unit's call-backs of memory.
    pub(super) fn call_backs(&self, id: UnitId, now: Time) -> MemoryCallBacks {
        let unit = &self.units[id.index()];
        let in_progress = unit.call.map(|(since, within)| (now - since, within));
        let mut spans: Vec<(Time, Time)> = unit.spans.iter().copied().chain(in_progress).collect();
        spans.sort_unstable();
        let took = |span: Option<&(Time, Time)>| span.map_or(0, |(took, _)| *took);
        MemoryCallBacks {
            count: spans.len() as u64,
            median_ns: took(spans.get(spans.len().saturating_sub(1) / 2)),
            max_ns: took(spans.last()),
            promised_max_ns: spans.iter().map(|(_, within)| *within).max().unwrap_or(0),
            late: spans.iter().filter(|(took, within)| took > within).count() as u64,
        }
    }
}

impl Engine<'_> {
    /// The size of all swap areas, and the size of all swapped-out memory, in bytes.
    fn swap(&self) -> (u64, u64) {
        let total = (0..self.drives.len()).map(|drive| self.swap_bytes(drive)).sum();
        (total, self.memory.swapped().saturating_mul(self.frame_bytes()))
    }

    /// Free swap, in bytes.
    pub(super) fn swap_free(&self) -> u64 {
        let (total, used) = self.swap();
        total.saturating_sub(used)
    }

    /// By how many bytes the swap areas were too small. In a simulation they never fill up, unlike on a live
    /// machine.
    pub(super) fn swap_short(&self) -> u64 {
        self.loans.swap_short
    }

    /// Updates the high-water mark of the swap shortage.
    pub(super) fn note_swap(&mut self) {
        let (total, used) = self.swap();
        self.loans.swap_short = self.loans.swap_short.max(used.saturating_sub(total));
    }

    /// After a plan for memory: begins and ends units' call-backs, and checks that loans grow only to where
    /// they could be called back in time.
    pub(super) fn note_loans(
        &mut self,
        facts: &MemoryFacts,
        plan: &MemoryPlan,
        orders: &[Step<MemoryOrder>],
    ) {
        let period = self.is_memory_period();
        self.expect_time_for_all(plan);
        let calls_back = |id: UnitId| {
            let is_of_unit = |step: &&Step<MemoryOrder>| step.action.unit() == id;
            orders.iter().filter(is_of_unit).any(|step| matches!(step.reason, Reason::CallsBack { .. }))
        };
        for (id, share) in self.scenario.contract.ids().zip(&plan.units) {
            let short = self.is_short(id, facts);
            let waits = short || !self.starved[id.index()].is_empty();
            let present = self.units.present[id.index()] > 0;
            let unit = &mut self.loans.units[id.index()];
            let calls = unit.within.filter(|_| calls_back(id));
            // A loan is made, or grows, only to where it could be called back in time. (Memory that a unit
            // had before other units got processes becomes a loan when they do, without growing.)
            let callable = share.callable.filter(|_| self.loans.bounded && !id.is_common());
            let callable = callable.map_or(u64::MAX, |callable| share.entitled.saturating_add(callable));
            let (allowed, most) = (share.allowed, callable.max(unit.allowed));
            self.audit.expect(self.now, allowed <= most, || {
                let name = &self.scenario.contract.unit(id).path;
                format!("{name}: is allowed {allowed} bytes, and beyond {most} none would be back in time")
            });
            (unit.within, unit.allowed) = (share.within_ns, allowed);
            if let (Some(within), None) = (calls, unit.call) {
                (unit.call, unit.called_at) = (Some((self.now, within)), Some(self.now));
            } else if period && !waits || !present {
                unit.end_call_back(self.now);
            }
        }
        self.end_call_backs();
    }

    /// Checks that loans that together could not be called back in time do not grow.
    fn expect_time_for_all(&mut self, plan: &MemoryPlan) {
        if !self.loans.bounded {
            return;
        }
        let mut due = 0u64;
        // By promised time, shortest first: all that is lent for at most that time has to be back by then.
        let late = plan.terms.iter().find(|term| {
            due = due.saturating_add(term.lent);
            term.callable.is_some_and(|callable| due > callable)
        });
        let units = plan.units.iter().zip(&self.loans.units).skip(2);
        let grew = units.into_iter().any(|(share, unit)| share.allowed > unit.allowed.max(share.entitled));
        self.audit.expect(self.now, late.is_none() || !grew, || {
            format!("a loan grows, though of {:?} more is lent than could be back by then", plan.terms)
        });
    }

    /// Ends the call-backs of lenders that have all their memory back, or could have it at once.
    fn end_call_backs(&mut self) {
        for id in self.scenario.contract.ids() {
            if self.loans.units[id.index()].call.is_some() && self.memory.has_allowance_available(id) {
                self.loans.units[id.index()].end_call_back(self.now);
            }
        }
    }

    /// Starts to write the pages that units owe, without waiting for a request of the lender.
    pub(super) fn collect_debts(&mut self) {
        if !self.loans.bounded {
            return;
        }
        for id in self.scenario.contract.held() {
            for out in self.memory.collect_debt(id).writes {
                self.write_out(out, false);
            }
        }
        self.end_call_backs();
    }

    /// Checks that, during a call-back, a unit that owes pages has writes in flight as long as it has pages
    /// to give: a call-back takes only the time that disks need. (Pages that can be given only later are
    /// taken at the next sample, or before it, when a write ends or more are requested.)
    pub(super) fn expect_no_rest(&mut self) {
        let called = self.scenario.contract.held().any(|id| self.loans.units[id.index()].call.is_some());
        if !self.loans.bounded || !called {
            return;
        }
        for id in self.scenario.contract.held() {
            self.audit.expect(self.now, !self.memory.is_debtor_idle(id), || {
                let name = &self.scenario.contract.unit(id).path;
                format!("{name}: owes frames that were called back, and gives none")
            });
        }
    }

    /// The sum of a unit's tasks' waits for frames.
    pub(super) fn waited_for_frames(&self, id: UnitId) -> Time {
        self.loans.units[id.index()].waited_ns
    }

    /// Whether a call-back has made room for `pages` frames of the unit, so that the unit need not give up
    /// frames of its own.
    pub(super) fn came_back(&self, id: UnitId, pages: u64) -> bool {
        let unit = &self.loans.units[id.index()];
        let calls = unit.call.is_some() || unit.called_at == Some(self.now);
        self.loans.bounded && calls && self.memory.has_room(id, pages)
    }

    /// Counts the start of a write of pages, if memory needs the frames.
    pub(super) fn page_out_begins(&mut self, out: &PageOut) {
        if out.leaves() {
            self.loans.begin_write(out, self.now);
        }
    }

    /// Completes a page-out: frees its frames, and continues call-backs and ordered reclaims.
    pub(super) fn page_out_ends(&mut self, out: PageOut) {
        if out.leaves() {
            self.loans.end_write(&out, self.now, self.frame_bytes());
        }
        let _ = self.memory.written(out);
        self.end_call_backs();
        self.collect_debts();
        self.expect_no_rest();
        if self.enforces() == Enforces::Linux {
            self.continue_ordered_reclaims();
        }
    }
}
