//! How many page frames each unit may use: the division of memory, as a pure function.
//!
//! Problem: frames that a unit leaves idle should serve a unit that is short of them, and be there again when their
//! owner wants them. A frame that is called back may first have to be written to a disk, so ending a loan of memory
//! costs more than ending a loan of a CPU.
//!
//! Terms:
//! - A unit's *entitlement* is what its tickets are worth of the frames that neither `kernel` nor `shared` uses.
//! - Its *allowance* is what it may use: entitlement - lent + borrowed.
//! - It is *short* if one of its requests was refused, or frames were taken from it, since the last sample.
//! - It is *calm* after [`CALM_SAMPLES`] samples in a row at which it was present and not short. A unit that waits for
//!   memory that others owe does not become calm.
//! - *Cold* frames are in use but were not touched for long, on machines that can tell.
//! - The *reserve threshold* is the number of idle frames that all lenders together keep.
//! - The *excess* is what may be lent: idle frames of calm units, and frames to which no unit may be entitled, less
//!   the reserve threshold.
//!
//! Algorithm, under `isolate`, at each sample:
//! 1. What each unit leaves idle is worked out, and for how long it has been idle ([`idleness`](super::idleness)).
//! 2. Each borrower gets a target, and its loan moves towards that ([`lend`](super::lend)). No more is lent than could
//!    be called back in time ([`terms`](super::terms)).
//! 3. If loans then exceed the excess or a limit, the difference is called back at once
//!    ([`call_back`](super::call_back)).
//! 4. Lenders are chosen: unused frames before cold ones, and of each, those idle longest first.
//!
//! Under `smp`, every unit is allowed everything. Under `quota`, it is allowed its entitlement.
//!
//! Properties:
//! - Allowances of the units sum to no more than what `kernel` and `shared` leave.
//! - A unit that is short is allowed at least its entitlement from the next sample on. Any other unit is allowed at
//!   least what it uses of its entitlement, less what is cold, and at least what it uses of its reservation.
//! - A unit that may not borrow is never allowed more than its entitlement. Limits hold, also those of enclosing units.
//! - No unit lends or borrows more than the amount that its contract names, in whole frames. A percentage that
//!   limits lending refers to its own entitlement; one that limits borrowing refers to the entitlement of its parent, or
//!   to all that is divided.
//! - With constant demands the allowances come to rest. The excess does not depend on what borrowers do with their
//!   loans, so a loan is no reason to end itself.
//!
//! Limits:
//! - A unit whose allowance sank exceeds it until its frames are paged out. The lender lives on the reserve meanwhile.
//! - Siblings have no right of first refusal.
//! - An absent unit's frames (its page cache) stay as a loan until another unit is short.
//!
//! Source: seed 000, section 3.2 (limits, redistribution of idle less reserve), 2.2 (`kernel` and `shared` first), 2.3
//! (giving up a fraction of the idle memory after certain periods).

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

/// A unit lends nothing before it was present and not short at this many samples in a row: a unit that has just come,
/// or just called its frames back, will want more.
pub const CALM_SAMPLES: u32 = 5;

/// What a sample shows of one unit. The frames of `kernel` and `shared` are the facts of those units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Whether it has processes, sub-units left out.
    pub present: bool,
    /// Frames charged to it.
    pub used: u64,
    /// Of `used`, the frames that were not touched for long: they may be lent as if they were unused. 0 on a machine
    /// that cannot tell.
    pub cold: u64,
    /// Whether one of its requests was refused, or frames were taken from it, since the last sample for either
    /// [`Trigger`].
    pub short: bool,
    /// Whether it waits for memory while others owe some that was called back.
    pub waits: bool,
    /// While it is on trial: the most frames that it may borrow.
    pub on_trial: Option<u64>,
    /// How many frames could be called back from it within a time, if from no other unit; `None`: any number at once.
    pub callable: Option<ReclaimCurve>,
}

/// Why memory is divided now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A period ended: loans may grow.
    Period,
    /// A unit needs frames before the period ends: loans are only called back.
    CallBack,
}

/// Everything that a step reads.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The contract. Its absolute amounts of memory are converted to frames: reservations and the reserve rounded up,
    /// limits and amounts of loans down.
    pub contract: &'a Contract,
    /// What units hold of memory. They consider the same units present as `units`.
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
    /// The part of a promised call-back time that passes before the call-back begins and before its end is seen.
    pub delay_ns: Time,
    /// Frames that each unit may borrow before others, by its credit ([`crate::credits`]); missing units have none.
    pub first: &'a [u64],
}

/// What is remembered between samples: who was allowed what, and what decides whether a unit may lend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoanBook {
    /// What each unit was allowed.
    allowed: Vec<u64>,
    /// At how many samples in a row each unit was present and not short.
    calm: Vec<u32>,
    /// For how long each unit has left frames idle.
    idleness: Vec<Idleness>,
    /// Units that were short at a sample between two periods: that counts at the period's end too.
    short: Vec<bool>,
}

impl LoanBook {
    /// Forgets the units that the contract no longer has: an old allowance is no loan of the next unit with that number.
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
    /// What its own processes are entitled to.
    pub entitled: u64,
    /// What is reserved of the entitlement of the unit and its sub-units.
    pub reserved: u64,
    /// What it lends.
    pub lent: u64,
    /// What it borrows.
    pub borrowed: u64,
    /// What it may use: entitled - lent + borrowed, or every frame of the machine if it is unrestricted.
    pub allowed: u64,
    /// The time within which all that it lends is to be back, in nanoseconds; `None`: it lends nothing.
    pub within_ns: Option<Time>,
    /// The most that it could be lent, given the time that call-backs take, if no other unit borrowed; `None`: any
    /// amount.
    pub callable: Option<u64>,
    /// Why.
    pub because: Because,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// One per unit of the contract.
    pub allowances: Vec<Allowance>,
    /// What is lent, by the time within which it is to be back, the shortest first.
    pub terms: Vec<Term>,
    /// Whether loans are as large as could be called back in time.
    pub full: bool,
    /// Whether the whole excess is lent.
    pub spent: bool,
}

/// Why a unit is allowed what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// A common part: never restricted.
    Common,
    /// The scheme restricts no unit, or lends nothing.
    Scheme(Scheme),
    /// It uses its entitlement, or is not calm yet.
    Entitled,
    /// Others use what it leaves idle.
    Lends,
    /// It was short while it lent, and has its whole entitlement again.
    CalledBack {
        /// Frames that it has again.
        frames: u64,
    },
    /// It borrows.
    Borrows,
    /// It borrows before others, since it lent before.
    BorrowsFirst,
    /// It borrows as much as could be called back in time.
    BorrowsInTime,
    /// It gave back a part of its loan, on trial.
    OnTrial,
    /// It gave back a part of its loan: the owner or other units needed it, or it did not use it.
    GaveBack {
        /// Frames that it gave back.
        frames: u64,
    },
    /// It is short, but may not borrow.
    MayNotBorrow,
    /// It is short, but at a limit: its own or an enclosing unit's.
    Limit,
    /// It is short, and no unit has anything to lend.
    NothingIdle,
}

/// Decides what every unit is allowed from now on.
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
    /// What each unit was allowed before; the entitlement of a unit that has come since.
    pub(super) before: Vec<u64>,
    pub(super) calm: Vec<u32>,
    pub(super) idleness: Vec<Idleness>,
    /// When what is lent is to be back.
    pub(super) terms: Terms,
    /// Frames that neither `kernel` nor `shared` uses.
    pub(super) divided: u64,
    /// The same, as the capacity to which amounts of the contract refer.
    pub(super) capacity: Capacity,
    pub(super) levels: Levels,
    /// What each unit may borrow before others, sub-units included.
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
        let entitlement = input.rights.to_part(Resource::Memory, capacity).all();
        let mut before = loans.allowed;
        before.truncate(facts.len());
        before.extend_from_slice(&entitlement.own[before.len()..]);
        let calm_before = |id: UnitId| loans.calm.get(id.index()).copied().unwrap_or_default();
        let calm = contract.ids().map(|id| calm(facts[id.index()], calm_before(id), input.trigger)).collect();
        let levels = Levels::of(contract);
        let first = tree::sums(contract, |id| input.first.get(id.index()).copied().unwrap_or(0));
        let (idleness, terms) = (loans.idleness, Terms::default());
        let mut division = Division {
            input,
            facts,
            entitlement,
            before,
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

    pub(super) fn nothing(&self) -> Vec<u64> {
        vec![0; self.facts.len()]
    }

    /// A value for each unit, 0 for the common parts.
    pub(super) fn per_unit(&self, value: impl Fn(UnitId) -> u64) -> Vec<u64> {
        let value = |id: UnitId| if id.is_common() { 0 } else { value(id) };
        self.input.contract.ids().map(value).collect()
    }

    fn unrestricted(&self) -> Vec<Allowance> {
        let mut allowances = self.entitlements(|_| Because::Scheme(Scheme::Smp));
        for allowance in &mut allowances {
            allowance.allowed = self.input.frames;
        }
        allowances
    }

    /// The allowances without loans.
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

    /// The allowances with loans: what is idle is lent, and called back when its owner is short.
    fn with_loans(&mut self) -> Shares {
        let idle = self.per_unit(|id| self.idle(id));
        self.terms = self.loan_terms(&idle);
        let excess = self.excess(&idle);

        let rooms = self.rooms();
        let targets = self.targets(excess, &rooms);
        let current = self.per_unit(|id| self.current_loan(id));
        let mut loans = self.next_loans(&current, &targets);

        self.call_back(&mut loans, &targets, excess);

        let lent = self.lenders(&loans, &idle);
        debug_assert!(
            lent.frames.iter().zip(&idle).all(|(lent, idle)| lent <= idle),
            "only idle frames are lent"
        );
        let spent = loans.iter().sum::<u64>() + 2 > excess;
        let full = !spent && self.terms.are_full(&loans, 2);
        let outcome = Outcome { current: &current, loans: &loans, lent: &lent.frames, rooms: &rooms, full };
        let mut allowances = self.entitlements(|id| self.because(id, outcome));
        for id in self.input.contract.held() {
            let (i, allowance) = (id.index(), &mut allowances[id.index()]);
            (allowance.lent, allowance.within_ns) = (lent.frames[i], lent.within_ns[i]);
            (allowance.borrowed, allowance.callable) = (loans[i], self.terms.loan_max(id));
            allowance.allowed = allowance.entitled - allowance.lent + allowance.borrowed;
        }
        Shares { allowances, terms: lent.terms, full, spent }
    }

    /// The amount to which a percentage in a unit's table refers.
    pub(super) fn parent_value(&self, unit: UnitId) -> u64 {
        let parent = self.input.contract.unit(unit).parent;
        parent.map_or(self.divided, |id| self.entitlement.value(id))
    }

    /// What a unit uses beyond its entitlement.
    pub(super) fn beyond(&self, unit: UnitId) -> u64 {
        self.facts[unit.index()].used.saturating_sub(self.entitlement.own(unit))
    }

    fn because(&self, unit: UnitId, outcome: Outcome<'_>) -> Because {
        let Outcome { current, loans, lent, rooms, full } = outcome;
        let i = unit.index();
        let (facts, own) = (self.facts[i], self.entitlement.own(unit));
        if lent[i] > 0 {
            return Because::Lends;
        }
        if facts.short && self.before[i] < own {
            return Because::CalledBack { frames: own - self.before[i] };
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
            true if self.may_borrow(unit) == 0 => Because::MayNotBorrow,
            true if self.is_limited(unit, rooms) => Because::Limit,
            true => Because::NothingIdle,
        }
    }

    /// Whether a unit or one that encloses it has no room for a loan.
    fn is_limited(&self, unit: UnitId, rooms: &[u64]) -> bool {
        lineage(self.input.contract, unit).any(|id| rooms[id.index()] == 0)
    }
}

/// What was decided about loans, by unit.
#[derive(Clone, Copy)]
struct Outcome<'a> {
    /// Loans before this division, and from now on.
    current: &'a [u64],
    loans: &'a [u64],
    lent: &'a [u64],
    rooms: &'a [u64],
    full: bool,
}

/// At how many samples in a row a unit was present and not short, this one included.
fn calm(facts: Facts, before: u32, trigger: Trigger) -> u32 {
    match trigger {
        _ if facts.short || !facts.present => 0,
        // What it called back is not there yet. It may be far from its bound, and will want all of that.
        _ if facts.waits && before < CALM_SAMPLES => 0,
        Trigger::Period => before.saturating_add(1),
        Trigger::CallBack => before,
    }
}

/// A permission with its amount in frames, rounded down to nothing if less than a frame.
pub(super) fn in_whole_frames(permission: Permission, frame_bytes: u64) -> Permission {
    permission.map(|amount| match amount {
        Amount::Absolute(bytes) => Amount::Absolute(bytes / frame_bytes.max(1)),
        part @ Amount::Part(_) => part,
    })
}

#[cfg(test)]
mod tests;
