//! The rules of units, as callers state them. [`Setting`] is their form in the scheduler's interface.

use crate::tables::{DISCIPLINES, Discipline, NOBODY, Setting};

impl Discipline {
    /// All disciplines, in the order of their numbers.
    pub const ALL: [Discipline; DISCIPLINES] = [
        Discipline::Stride,
        Discipline::Lottery,
        Discipline::Entitlement,
        Discipline::Decay,
        Discipline::Fifo,
        Discipline::Rr,
        Discipline::Batch,
        Discipline::Job,
        Discipline::Gang,
        Discipline::Dwcs,
        Discipline::Smp,
        Discipline::Classes,
    ];
}

/// The rules of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitRules {
    /// The unit that directly encloses it, or [`NOBODY`] for an outermost unit.
    pub parent: u32,
    /// Its share among its siblings, 1 to 10,000. The parent's own tasks together have 100.
    pub weight: u32,
    /// [`LENDS`](crate::LENDS), [`BORROWS`](crate::BORROWS), [`ANYWHERE`](crate::ANYWHERE) and
    /// [`SEATS`](crate::SEATS).
    pub flags: u32,
    /// Outermost units only: the credit among borrowers, which is CPU time lent less CPU time borrowed within
    /// the period that the policy remembers, in ms. Negative for a net borrower.
    pub credit_ms: i32,
    /// The discipline that orders its own tasks and its sub-units. A discipline other than
    /// [`Discipline::Stride`] requires [`Settings::disciplined`](crate::Settings::disciplined).
    pub discipline: Discipline,
    /// Its demand, used if its parent has [`Discipline::Dwcs`].
    pub deadline: Deadline,
}

impl UnitRules {
    /// An outermost unit with a weight of 100.
    pub const USUAL: UnitRules = UnitRules {
        parent: NOBODY,
        weight: 100,
        flags: 0,
        credit_ms: 0,
        discipline: Discipline::Stride,
        deadline: Deadline::NONE,
    };
}

/// A demand for CPU time in each period, by the period's end. Of any `of` consecutive deadlines, `misses` may
/// be missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// The length of a period, in ns; 0: no deadlines.
    pub period_ns: u32,
    /// The CPU time wanted in each period, in ns; at most the period.
    pub budget_ns: u32,
    /// The deadlines of a window that may be missed; at most `of`.
    pub misses: u32,
    /// The number of deadlines in a window, 1 to 1,000.
    pub of: u32,
}

impl Deadline {
    /// No deadlines.
    pub const NONE: Deadline = Deadline { period_ns: 0, budget_ns: 0, misses: 0, of: 0 };
}

impl Setting {
    pub(crate) fn new(unit: u32, rules: UnitRules) -> Setting {
        let UnitRules { parent, weight, flags, credit_ms, discipline, deadline } = rules;
        let Deadline { period_ns: period, budget_ns: budget, misses, of } = deadline;
        Setting {
            unit,
            parent,
            weight,
            flags,
            credit_ms,
            discipline: discipline as u32,
            period,
            budget,
            misses,
            of,
        }
    }
}
