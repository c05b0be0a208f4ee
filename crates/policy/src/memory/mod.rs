//! Memory: turns each sample of memory use into bounds, guarantees and reclaim orders for the units.
//!
//! One sample goes through these stages, in this order:
//! 1. [`facts`] translates the kernel's figures into what each unit uses, which part of its memory is cold,
//!    whether the unit is short, and how fast memory could be called back from it.
//! 2. [`frames`] divides the memory, as a pure function that the simulator uses too:
//!    - [`idleness`] finds how much each unit leaves idle, and since when;
//!    - [`lend`] decides which unit borrows how much idle memory: no more than could be called back in time
//!      ([`terms`]);
//!    - [`call_back`] shrinks loans at once when their owners are short.
//! 3. [`orders`] gives bounds and guarantees, as differences to those in force.
//! 4. [`oom_order`] makes the kernel kill processes of units beyond their entitlement first, while memory is
//!    tight.
//! 5. [`call_back`] orders reclaim from units that use more than they may. If no lender waits for memory, a
//!    [`trial`] may measure how fast memory comes back from a borrower.
//! 6. [`sampling`] decides when to sample next.
//!
//! [`reclaim_rates`] learns how fast each kind of page is reclaimed. [`reclaim_curve`] derives from these
//! rates how much could be called back from a unit in a given time.
//!
//! Properties (tested):
//! - Allowances of the units sum to no more than the machine has.
//! - A unit without processes has no bound, so that a process that joins it finds room.
//! - No bound is below a guarantee. The used part of a reservation is never lent, even if it is cold.
//! - Without an observation nothing is ordered, and earlier orders stay in force. While nothing changes,
//!   nothing is ordered.
//!
//! Limits: memory that a process used before it joined its unit is charged to the processes outside all
//! units.
//!
//! Source: seed 000, section 3.2; seed 004, sections 4 and 5.3.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};

use crate::credits::{Credits, pays_for};
use crate::input::Input;
use crate::plan::{Beyond, MemoryOrder, MemoryPlan, MemoryTerm, Reason, Share, Step};
use crate::rights::Rights;
use crate::snapshot::{MemoryFacts, UnitMemory};
use crate::time::{MS, Time};

mod call_back;
mod facts;
pub mod frames;
mod idleness;
mod lend;
mod oom_order;
mod orders;
mod reclaim_curve;
mod reclaim_rates;
mod sampling;
mod terms;
mod thresholds;
mod trial;

use frames::{LoanBook, Trigger};
use oom_order::OomOrder;
use orders::BoundAndGuarantees;
use reclaim_rates::Reclaiming;
use thresholds::SLACK_PART;
use trial::Trial;

pub use reclaim_curve::ReclaimCurve;
pub use reclaim_rates::{ReclaimRates, Taken};
pub use sampling::EARLY_NS;

/// The divisor from bytes times nanoseconds, in which credits are kept, to bytes times seconds, in which a
/// plan lists them.
const BYTE_SECOND: i128 = 1_000 * MS as i128;

/// What is remembered between samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryState {
    /// One per unit.
    units: Vec<UnitRecord>,
    /// Bytes used by the kernel. Damped: small changes are ignored, see [`facts`].
    kernel: u64,
    /// Bytes used by processes outside all units. Damped likewise.
    shared: u64,
    reclaim_rates: ReclaimRates,
    loans: LoanBook,
    /// Past lending less past borrowing by unit, in bytes times nanoseconds.
    credits: Credits,
    in_force: BTreeMap<UnitId, BoundAndGuarantees>,
    oom_order: OomOrder,
    sampled_at: Option<Time>,
    /// When the present period began.
    period_at: Time,
    next_sample_at: Option<Time>,
}

/// What is remembered of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct UnitRecord {
    /// The unit's memory at the last sample; meaningless unless `known`.
    facts: UnitMemory,
    known: bool,
    /// Bytes that count as used: damped, see [`facts`].
    used: u64,
    /// Whether the unit was short at the last sample.
    short: bool,
    share: Share,
    /// Until this time, the unit's cold pages count as warm, since lending cold pages turned out to be wrong.
    doubted_until: Time,
    /// The length of the last period of doubt, which ends or ended at `doubted_until`.
    doubt_ns: Time,
    /// When the unit's refaults were last measured.
    read_back_at: Time,
    /// The unit's counter of refaulted bytes at `read_back_at`.
    read_back: u64,
    /// When the unit was last ordered to reclaim its debt, and how many bytes it used at that time.
    reclaim_ordered: Option<(Time, u64)>,
    /// Bytes that could be called back from the unit within `call-back-memory`.
    callable: u64,
    reclaiming: Reclaiming,
    trial: Option<Trial>,
}

/// One sample of memory: the common input of all stages.
#[derive(Clone, Copy)]
struct Sample<'a> {
    now: Time,
    input: Input<'a>,
    rights: &'a Rights,
    facts: &'a MemoryFacts,
    /// The size of the frames in which memory is divided.
    frame_bytes: u64,
}

impl Sample<'_> {
    /// The tolerance in bytes: a unit that exceeds its allowance by no more than this owes nothing.
    fn slack(&self) -> u64 {
        self.facts.total / SLACK_PART
    }
}

/// Divides the memory among the units, and appends the orders to `steps`. Returns `None` if memory was not
/// observed, may not be restricted (scheme `smp`), or cannot be bounded on this machine.
pub(crate) fn step(
    state: &mut Arc<MemoryState>,
    now: Time,
    input: Input<'_>,
    rights: &Rights,
    steps: &mut Vec<Step<MemoryOrder>>,
) -> Option<MemoryPlan> {
    if !input.contract.vacant.is_empty() {
        Arc::make_mut(state).forget_gone(input.contract);
    }
    let scheme = input.contract.machine.scheme;
    if scheme == Scheme::Smp || !input.means.memory.bounds {
        // What earlier plans ordered stays in force until it is withdrawn.
        state.withdraw_bounds(Reason::Scheme { scheme }, steps);
        Arc::make_mut(state).oom_order.end(Reason::Scheme { scheme }, steps);
        *state = Arc::default();
        return None;
    }
    let facts = input.snapshot.memory.as_ref()?;
    let state = Arc::make_mut(state);
    let exact = input.means.memory.frames;
    let frame_bytes = exact.map_or_else(|| frame_bytes(facts.total), |frames| frames.bytes);
    let sample = Sample { now, input, rights, facts, frame_bytes };

    // Loans are charged before the new division replaces them.
    state.charge_loans(now, input.contract);
    state.units.resize(input.contract.units.len(), UnitRecord::default());
    let trigger = state.trigger(sample);
    let units = state.observe(sample);
    let shares = state.divide(sample, trigger, &units);
    state.record(sample, &shares);
    state.order_bounds(sample, &shares.allowances, steps);
    let beyond = state.order_kills(sample, steps);
    let mut lender_waits = false;
    // A kernel may leave pages beyond a bound that sank, so they are reclaimed by order. A machine that hands
    // out frames itself refuses every request beyond a bound, and needs no such orders.
    if exact.is_none() {
        lender_waits = state.reclaim_debts(sample, steps);
        if !lender_waits && shares.full && input.means.memory.reclaim {
            steps.extend(state.begin_trial(sample));
        }
    }
    let (next, watch) = state.next_sample(sample, &units, lender_waits);
    state.next_sample_at = Some(next);
    Some(MemoryPlan {
        next,
        divided: state.divided(facts.total),
        units: state.shares(),
        watch,
        beyond,
        terms: shares.terms.iter().map(|term| in_bytes(*term, frame_bytes)).collect(),
        credits: state.credits.listed(BYTE_SECOND),
    })
}

impl MemoryState {
    /// Forgets the units that the contract no longer has. Orders on a unit ended with the unit.
    fn forget_gone(&mut self, contract: &Contract) {
        for id in &contract.vacant {
            if let Some(unit) = self.units.get_mut(id.index()) {
                *unit = UnitRecord::default();
            }
        }
        self.loans.forget_gone(contract);
        self.in_force.retain(|unit, _| contract.has(*unit));
        self.oom_order.forget_gone(contract);
        self.credits.forget_gone(contract);
    }

    /// When memory is to be sampled next; `None` while memory is not bounded.
    pub(crate) fn next(&self) -> Option<Time> {
        self.next_sample_at
    }

    /// Books the loans that were in force since the last sample in the credits of lenders and borrowers.
    fn charge_loans(&mut self, now: Time, contract: &Contract) {
        let MemoryState { credits, units, .. } = self;
        if units.iter().any(|unit| unit.share.borrowed > 0) {
            credits.resize(units.len());
        }
        let share = |unit: UnitId| units.get(unit.index()).map(|unit| unit.share).unwrap_or_default();
        let net_lent = |unit| i128::from(share(unit).lent) - i128::from(share(unit).borrowed);
        credits.charge(now, contract.machine.loans_remembered_ns, net_lent);
    }

    /// Divides the frames among the units.
    fn divide(&mut self, sample: Sample<'_>, trigger: Trigger, units: &[frames::Facts]) -> frames::Shares {
        let Sample { now, input, rights, facts, frame_bytes } = sample;
        let contract = input.contract;
        let exact = input.means.memory.frames.is_some();
        let half_life_ns = contract.machine.loans_remembered_ns;
        // A unit with a credit borrows this many frames before units without one.
        let first_frames = |id| pays_for(self.credits.of(id), half_life_ns) / frame_bytes;
        let frames_input = frames::Input {
            contract,
            rights,
            frames: facts.total / frame_bytes,
            frame_bytes,
            units,
            now,
            trigger,
            delay_ns: if exact { 0 } else { sampling::detection_ns(contract) },
            first: &contract.ids().map(first_frames).collect::<Vec<u64>>(),
        };
        let (loans, shares) = frames::step(core::mem::take(&mut self.loans), frames_input);
        self.loans = loans;
        shares
    }

    /// Orders which units' processes the kernel kills first, if the backend can order that. Returns the units
    /// that are to be reported as beyond their allowance.
    fn order_kills(&mut self, sample: Sample<'_>, steps: &mut Vec<Step<MemoryOrder>>) -> Vec<Beyond> {
        if !sample.input.means.memory.kill_order {
            return Vec::new();
        }
        let (shares, divided) = (self.shares(), self.divided(sample.facts.total));
        self.oom_order.step(sample, &shares, divided, steps)
    }

    /// Bytes to divide among the units: all that neither the kernel nor processes outside all units use.
    fn divided(&self, total: u64) -> u64 {
        total.saturating_sub(self.kernel).saturating_sub(self.shared)
    }

    fn shares(&self) -> Vec<Share> {
        self.units.iter().map(|unit| unit.share).collect()
    }
}

/// The frame size for a live machine: 1/4096 of its memory, within 64 KiB and 64 MiB. Frames are much larger
/// than pages, so that a few pages more or less change no order.
fn frame_bytes(total: u64) -> u64 {
    (total / 4_096).next_power_of_two().clamp(64 << 10, 64 << 20)
}

fn in_bytes(term: frames::Term, frame_bytes: u64) -> MemoryTerm {
    MemoryTerm {
        within_ns: term.within_ns,
        lent: term.lent * frame_bytes,
        callable: term.callable.map(|frames| frames.saturating_mul(frame_bytes)),
    }
}

#[cfg(test)]
mod tests;
