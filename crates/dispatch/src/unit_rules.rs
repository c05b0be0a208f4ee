//! The rules of units: [`Setting`] is their form in the interface.

use crate::tables::{DISCIPLINES, Discipline, NOBODY, Setting};

impl Discipline {
    /// All of them, by their numbers.
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
    /// The unit around it, or [`NOBODY`].
    pub parent: u32,
    /// Its part among its siblings, 1 to 10,000; the parent's own tasks together have 100.
    pub weight: u32,
    /// [`LENDS`](crate::LENDS), [`BORROWS`](crate::BORROWS), [`ANYWHERE`](crate::ANYWHERE) and [`SEATS`](crate::SEATS).
    pub flags: u32,
    /// Of an outermost unit: its credit among borrowers, CPU time lent less borrowed within the period that counts, in ms;
    /// negative for a net borrower.
    pub credit_ms: i32,
    /// Orders its own tasks and its sub-units. Other than [`Discipline::Stride`] only if the scheduler was set up for that.
    pub discipline: Discipline,
    /// Its demand if [`Discipline::Dwcs`] orders it among its siblings.
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

/// CPU time wanted in each period; of any `of` consecutive deadlines, `misses` may be missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// In ns; 0: none.
    pub period_ns: u32,
    /// In ns, no more than the period.
    pub budget_ns: u32,
    /// No more than `of`.
    pub misses: u32,
    /// 1 to 1,000.
    pub of: u32,
}

impl Deadline {
    /// None.
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
