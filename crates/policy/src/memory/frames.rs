//! The division of memory as a pure function: how many page frames each unit may use.
//!
//! Problem: frames that a unit leaves idle should serve another unit that is short of memory, and be
//! available again when the owner wants them. Before a frame is called back, its content may have to be
//! written to a disk. So ending a loan of memory costs more than ending a loan of a CPU.
//!
//! Terms:
//! - The frames to divide are those that neither `kernel` nor `shared` uses. A unit's *entitlement* is the
//!   number of these frames that its reservation and tickets are worth.
//! - A unit's *allowance* is the number of frames that it may use: entitlement - lent + borrowed.
//! - A unit is *short* if one of its requests was refused, or frames were reclaimed from it, since the last
//!   sample.
//! - A unit is *calm* after [`CALM_SAMPLES`] samples in a row at which it was present and not short. A unit
//!   that waits for memory that other units owe to it does not become calm.
//! - *Cold* frames are in use but were not touched for long. Not every machine can tell which frames are
//!   cold.
//! - The *reserve threshold* is the number of idle frames that all lenders together do not lend.
//! - The *excess* is the number of frames that may be lent: the idle frames of calm units, plus the frames to
//!   which limits let no unit be entitled, less the reserve threshold.
//!
//! Algorithm, under `isolate`, at each sample:
//! 1. Find how many frames each unit leaves idle, and for how long they have been idle
//!    ([`idleness`](super::idleness)).
//! 2. Give each borrower a target, and move its loan towards the target ([`lend`](super::lend)). Lend no more
//!    than could be called back in time ([`terms`](super::terms)).
//! 3. If loans then exceed the excess or a limit, call back the difference at once
//!    ([`call_back`](super::call_back)).
//! 4. Choose the lenders: unused frames are lent before cold frames. Among the unused frames, and among the
//!    cold ones, the frames that were idle longest are lent first.
//!
//! Under `smp`, every unit is allowed all frames. Under `quota`, every unit is allowed its entitlement.
//!
//! Properties:
//! - Allowances of the units sum to no more than what `kernel` and `shared` leave.
//! - A unit that is short is allowed at least its entitlement from the next sample on. Any other unit is
//!   allowed at least the part of its entitlement that it uses and that is not cold, and at least the used
//!   part of its reservation.
//! - A unit that may not borrow is never allowed more than its entitlement. No allowance exceeds the limit of
//!   the unit or of a unit around it.
//! - No unit lends or borrows more than the amount that its contract names, in whole frames. A percentage
//!   that limits lending refers to the unit's own entitlement. A percentage that limits borrowing refers to
//!   the entitlement of the unit's parent or, for an outermost unit, to all divided memory.
//! - With constant demands the allowances become constant. The excess does not depend on what borrowers do
//!   with their loans, so using a loan never causes the loan to end.
//!
//! Limits:
//! - When an allowance is reduced, the unit uses more than it may until its frames are paged out. Meanwhile
//!   the lender gets frames from the reserve.
//! - A unit's siblings have no prior claim to its idle frames.
//! - An absent unit's frames (its page cache) stay as a loan until another unit is short.
//!
//! Source: seed 000, section 3.2 (limits, redistribution of idle less reserve), 2.2 (`kernel` and `shared`
//! first), 2.3 (giving up a fraction of the idle memory after certain periods).

use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, Permission, Resource, Scheme, UnitId};

use super::idleness::Idleness;
use super::reclaim_curve::ReclaimCurve;
use super::terms::Terms;
use crate::rights::{Capacity, Entitlement, Rights};
use crate::time::Time;
use crate::tree::{self, Levels, lineage};

pub use super::terms::Term;

/// A unit lends only after it was present and not short at this number of samples in a row. Before that, it
/// may have just appeared or just called its frames back, and will soon use more.
pub const CALM_SAMPLES: u32 = 5;

/// The facts of one unit at a sample. For the common units `kernel` and `shared`, they are the frames that
/// these units use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Whether the unit has processes of its own, apart from those of its sub-units.
    pub present: bool,
    /// Frames charged to the unit.
    pub used: u64,
    /// The part of `used` that was not touched for long, and may be lent like unused frames. 0 on a machine
    /// that cannot tell.
    pub cold: u64,
    /// Whether a request of the unit was refused, or frames were reclaimed from the unit, since the last
    /// sample of either [`Trigger`].
    pub short: bool,
    /// Whether the unit stalls on memory while other units owe memory that was called back.
    pub waits: bool,
    /// The most frames that the unit may borrow during its trial; `None`: it is not on trial.
    pub on_trial: Option<u64>,
    /// How many frames could be called back from the unit, by time, if no other unit gave anything back;
    /// `None`: any number at once.
    pub callable: Option<ReclaimCurve>,
}

/// Why memory is divided now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A period ended: loans may grow.
    Period,
    /// A unit needs frames before the period ends: loans may only shrink.
    CallBack,
}

/// Everything that a step reads.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The contract. Its absolute amounts of memory are converted to frames: reservations and the reserve
    /// rounded up, limits and amounts of loans down.
    pub contract: &'a Contract,
    /// The units' shares of memory. The units that are active in `rights` are those that are present in
    /// `units`.
    pub rights: &'a Rights,
    /// Frames of the machine.
    pub frames: u64,
    /// The size of a frame, in bytes.
    pub frame_bytes: u64,
    /// One per unit of the contract; missing units count as empty.
    pub units: &'a [Facts],
    /// The time of the sample.
    pub now: Time,
    /// Why memory is divided now.
    pub trigger: Trigger,
    /// The part of a promised call-back time that is not available for reclaim: the delays until a shortage,
    /// and then its end, are noticed.
    pub delay_ns: Time,
    /// The frames that each unit may borrow before other units, by its credit ([`crate::credits`]); 0 for
    /// missing units.
    pub first: &'a [u64],
}

/// What is remembered between samples, by unit: the allowances, and what decides whether a unit may lend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoanBook {
    /// The allowances at the last sample.
    allowed: Vec<u64>,
    /// At how many samples in a row each unit was present and not short.
    calm: Vec<u32>,
    /// For how long each unit has left frames idle.
    idleness: Vec<Idleness>,
    /// Whether each unit was short at the last sample, if that was between two periods. The unit then counts
    /// as short at the next sample, too.
    short: Vec<bool>,
}

impl LoanBook {
    /// Forgets the units that the contract no longer has. Otherwise, when a new unit gets the number of one
    /// that left, the old allowance would count as a loan of the new unit.
    pub(super) fn forget_gone(&mut self, contract: &Contract) {
        for id in &contract.vacant {
            if let Some(allowed) = self.allowed.get_mut(id.index()) {
                *allowed = 0;
            }
            if let Some(short) = self.short.get_mut(id.index()) {
                *short = false;
            }
            if let Some(idleness) = self.idleness.get_mut(id.index()) {
                idleness.forget();
            }
        }
    }
}

/// How many frames a unit may use, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// The entitlement of the unit's own processes.
    pub entitled: u64,
    /// The reserved part of the entitlement of the unit, sub-units included.
    pub reserved: u64,
    /// Frames that the unit lends.
    pub lent: u64,
    /// Frames that the unit borrows.
    pub borrowed: u64,
    /// Frames that the unit may use: entitled - lent + borrowed, or every frame of the machine if the unit is
    /// unrestricted.
    pub allowed: u64,
    /// The time within which all that the unit lends must be back, in nanoseconds; `None`: the unit lends
    /// nothing.
    pub within_ns: Option<Time>,
    /// The largest loan that could be called back from the unit in time if no other unit borrowed; `None`:
    /// any amount.
    pub callable: Option<u64>,
    /// The reason for the allowance.
    pub because: Because,
}

/// The result of a division.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// One per unit of the contract.
    pub allowances: Vec<Allowance>,
    /// Loans by the time within which they must be back, the shortest first.
    pub terms: Vec<Term>,
    /// Whether loans are as large as could be called back in time.
    pub full: bool,
    /// Whether the whole excess is lent.
    pub spent: bool,
}

/// The reason for a unit's allowance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// The unit is a common part, which is never restricted.
    Common,
    /// The scheme restricts no unit, or lends nothing.
    Scheme(Scheme),
    /// The unit uses its entitlement, or is not calm yet.
    Entitled,
    /// Other units borrow idle frames of the unit.
    Lends,
    /// The unit was short while it lent, and has its whole entitlement again.
    CalledBack {
        /// Frames that the unit got back.
        frames: u64,
    },
    /// The unit borrows.
    Borrows,
    /// The unit borrows before other units, since it lent before.
    BorrowsFirst,
    /// The unit borrows as much as could be called back in time.
    BorrowsInTime,
    /// The unit's loan is smaller for a trial.
    OnTrial,
    /// The unit gave back a part of its loan, since the owner or other units needed that part, or the unit
    /// did not use it.
    GaveBack {
        /// Frames that the unit gave back.
        frames: u64,
    },
    /// The unit is short, but may not borrow.
    MayNotBorrow,
    /// The unit is short, but at a limit: its own or an enclosing unit's.
    Limit,
    /// The unit is short, and no unit has anything to lend.
    NothingIdle,
}

/// Divides the frames: decides the allowance of every unit from now on. Also returns the book, to be passed
/// to the next step.
#[must_use]
pub fn step(loans: LoanBook, input: Input<'_>) -> (LoanBook, Shares) {
    let mut division = Division::new(loans, input);
    let scheme = input.contract.machine.scheme;
    let shares = match scheme {
        Scheme::Smp => Shares::without_loans(division.unrestricted()),
        Scheme::Quota => Shares::without_loans(division.entitlements(|_| Because::Scheme(scheme))),
        Scheme::Isolate => division.with_loans(),
    };
    let allowed = shares.allowances.iter().map(|allowance| allowance.allowed).collect();
    let short = match input.trigger {
        Trigger::Period => Vec::new(),
        Trigger::CallBack => division.facts.iter().map(|facts| facts.short).collect(),
    };
    (LoanBook { allowed, calm: division.calm, idleness: division.idleness, short }, shares)
}

impl Shares {
    fn without_loans(allowances: Vec<Allowance>) -> Shares {
        Shares { allowances, terms: Vec::new(), full: false, spent: false }
    }
}

/// One division in progress. Vectors have one element per unit.
pub(super) struct Division<'a> {
    pub(super) input: Input<'a>,
    pub(super) facts: Vec<Facts>,
    pub(super) entitlement: Entitlement,
    /// The allowances at the last sample; for a unit that is new since then, its entitlement.
    pub(super) previously_allowed: Vec<u64>,
    pub(super) calm: Vec<u32>,
    pub(super) idleness: Vec<Idleness>,
    /// The classes of the idle frames by call-back time.
    pub(super) terms: Terms,
    /// Frames that neither `kernel` nor `shared` uses.
    pub(super) divided: u64,
    /// `divided` as the capacity to which amounts of the contract refer.
    pub(super) capacity: Capacity,
    pub(super) levels: Levels,
    /// Frames that each unit may borrow before other units, sub-units included.
    pub(super) first: Vec<u64>,
}

impl<'a> Division<'a> {
    fn new(loans: LoanBook, input: Input<'a>) -> Self {
        let contract = input.contract;
        let facts_of = |id: UnitId| {
            let mut facts = input.units.get(id.index()).copied().unwrap_or_default();
            facts.short |= loans.short.get(id.index()).copied().unwrap_or_default();
            facts
        };
        let facts: Vec<Facts> = contract.ids().map(facts_of).collect();
        let common = facts[UnitId::KERNEL.index()].used.saturating_add(facts[UnitId::SHARED.index()].used);
        let divided = input.frames.saturating_sub(common);
        let capacity = Capacity::Pieces { total: divided, bytes: input.frame_bytes };
        let entitlement = input.rights.at_capacity(Resource::Memory, capacity).all();
        let mut previously_allowed = loans.allowed;
        previously_allowed.truncate(facts.len());
        previously_allowed.extend_from_slice(&entitlement.own[previously_allowed.len()..]);
        let calm_before = |id: UnitId| loans.calm.get(id.index()).copied().unwrap_or_default();
        let calm = contract.ids().map(|id| calm(facts[id.index()], calm_before(id), input.trigger)).collect();
        let levels = Levels::of(contract);
        let first = tree::sums(contract, |id| input.first.get(id.index()).copied().unwrap_or(0));
        let (idleness, terms) = (loans.idleness, Terms::default());
        let mut division = Division {
            input,
            facts,
            entitlement,
            previously_allowed,
            calm,
            idleness,
            terms,
            divided,
            capacity,
            levels,
            first,
        };
        division.give_up_cold();
        division.note_needs();
        division
    }

    /// 0 for each unit.
    pub(super) fn zeros(&self) -> Vec<u64> {
        vec![0; self.facts.len()]
    }

    /// A value for each unit, 0 for the common parts.
    pub(super) fn per_unit(&self, value: impl Fn(UnitId) -> u64) -> Vec<u64> {
        let value = |id: UnitId| if id.is_common() { 0 } else { value(id) };
        self.input.contract.ids().map(value).collect()
    }

    /// The allowances under `smp`: every frame of the machine for each unit.
    fn unrestricted(&self) -> Vec<Allowance> {
        let mut allowances = self.entitlements(|_| Because::Scheme(Scheme::Smp));
        for allowance in &mut allowances {
            allowance.allowed = self.input.frames;
        }
        allowances
    }

    /// The allowances without loans: each unit's entitlement, and every frame of the machine for the common
    /// parts.
    fn entitlements(&self, because: impl Fn(UnitId) -> Because) -> Vec<Allowance> {
        let allowance = |id: UnitId| {
            let (lent, borrowed, within_ns, callable) = (0, 0, None, None);
            if id.is_common() {
                let (allowed, because) = (self.input.frames, Because::Common);
                return Allowance {
                    entitled: 0,
                    reserved: 0,
                    lent,
                    borrowed,
                    allowed,
                    within_ns,
                    callable,
                    because,
                };
            }
            let (entitled, reserved) = (self.entitlement.own(id), self.entitlement.hard(id));
            let (allowed, because) = (entitled, because(id));
            Allowance { entitled, reserved, lent, borrowed, allowed, within_ns, callable, because }
        };
        self.input.contract.ids().map(allowance).collect()
    }

    /// The division with loans: idle frames are lent, and called back when their owner is short.
    fn with_loans(&mut self) -> Shares {
        // How much may be lent, and to be back by when.
        let idle = self.per_unit(|id| self.idle(id));
        self.terms = self.loan_terms(&idle);
        let excess = self.excess(&idle);

        // Loans on the way to their targets. Called-back frames return at once, not step by step.
        let headroom = self.headroom();
        let targets = self.targets(excess, &headroom);
        let current = self.per_unit(|id| self.current_loan(id));
        let mut loans = self.next_loans(&current, &targets);
        self.call_back(&mut loans, &targets, excess);

        // The other side of the loans: which owners lend the frames.
        let lent = self.lenders(&loans, &idle);
        debug_assert!(
            lent.frames.iter().zip(&idle).all(|(lent, idle)| lent <= idle),
            "only idle frames are lent"
        );
        // Two frames more or less are rounding.
        let spent = loans.iter().sum::<u64>() + 2 > excess;
        let full = !spent && self.terms.are_full(&loans, 2);
        let outcome =
            Outcome { current: &current, loans: &loans, lent: &lent.frames, headroom: &headroom, full };
        let mut allowances = self.entitlements(|id| self.because(id, outcome));
        for id in self.input.contract.held() {
            let (i, allowance) = (id.index(), &mut allowances[id.index()]);
            (allowance.lent, allowance.within_ns) = (lent.frames[i], lent.within_ns[i]);
            (allowance.borrowed, allowance.callable) = (loans[i], self.terms.loan_max(id));
            allowance.allowed = allowance.entitled - allowance.lent + allowance.borrowed;
        }
        Shares { allowances, terms: lent.terms, full, spent }
    }

    /// The number of frames to which a percentage in the unit's table of the contract refers.
    pub(super) fn parent_value(&self, unit: UnitId) -> u64 {
        let parent = self.input.contract.unit(unit).parent;
        parent.map_or(self.divided, |id| self.entitlement.value(id))
    }

    /// Frames that a unit uses beyond its entitlement.
    pub(super) fn use_beyond_entitlement(&self, unit: UnitId) -> u64 {
        self.facts[unit.index()].used.saturating_sub(self.entitlement.own(unit))
    }

    /// The reason to report for a unit's allowance. The first reason that applies counts.
    fn because(&self, unit: UnitId, outcome: Outcome<'_>) -> Because {
        let Outcome { current, loans, lent, headroom, full } = outcome;
        let i = unit.index();
        let (facts, own) = (self.facts[i], self.entitlement.own(unit));
        if lent[i] > 0 {
            return Because::Lends;
        }
        if facts.short && self.previously_allowed[i] < own {
            return Because::CalledBack { frames: own - self.previously_allowed[i] };
        }
        if loans[i] < current[i] && facts.on_trial.is_some() {
            return Because::OnTrial;
        }
        if loans[i] < current[i] {
            return Because::GaveBack { frames: current[i] - loans[i] };
        }
        match facts.short {
            true if loans[i] > 0 && full => Because::BorrowsInTime,
            _ if loans[i] > 0 && self.own_first(unit) > 0 => Because::BorrowsFirst,
            _ if loans[i] > 0 => Because::Borrows,
            false => Because::Entitled,
            true if self.borrow_max(unit) == 0 => Because::MayNotBorrow,
            true if self.is_limited(unit, headroom) => Because::Limit,
            true => Because::NothingIdle,
        }
    }

    /// Whether a unit, or a unit that encloses it, has no headroom for a loan.
    fn is_limited(&self, unit: UnitId, headroom: &[u64]) -> bool {
        lineage(self.input.contract, unit).any(|id| headroom[id.index()] == 0)
    }
}

/// The decisions about loans, from which the reasons follow. Slices are by unit.
#[derive(Clone, Copy)]
struct Outcome<'a> {
    /// Loans before this division.
    current: &'a [u64],
    /// Loans from now on.
    loans: &'a [u64],
    lent: &'a [u64],
    headroom: &'a [u64],
    /// Whether loans are as large as could be called back in time.
    full: bool,
}

/// At how many samples in a row a unit was present and not short, from this sample and the count at the
/// previous one. Samples between periods leave the count as it is.
fn calm(facts: Facts, previous: u32, trigger: Trigger) -> u32 {
    match trigger {
        _ if facts.short || !facts.present => 0,
        // The unit still waits for memory that it called back. The memory that it has may look idle, but the
        // unit will use all of it.
        _ if facts.waits && previous < CALM_SAMPLES => 0,
        Trigger::Period => previous.saturating_add(1),
        Trigger::CallBack => previous,
    }
}

/// A permission with its amount in frames, rounded down.
pub(super) fn in_whole_frames(permission: Permission, frame_bytes: u64) -> Permission {
    permission.map(|amount| match amount {
        Amount::Absolute(bytes) => Amount::Absolute(bytes / frame_bytes.max(1)),
        part @ Amount::Part(_) => part,
    })
}

#[cfg(test)]
mod tests;
