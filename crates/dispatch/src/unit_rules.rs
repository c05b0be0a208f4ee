//! What is said of units: [`Setting`] is that as the scheduler takes it.

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

/// What a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitRules {
    /// The unit around it, or [`NOBODY`].
    pub parent: u32,
    /// Its part among its siblings, 1 to 10,000; the parent's own tasks together have 100.
    pub weight: u32,
    /// [`LENDS`](crate::LENDS), [`BORROWS`](crate::BORROWS), [`ANYWHERE`](crate::ANYWHERE) and [`SEATS`](crate::SEATS).
    pub flags: u32,
    /// Of an outermost unit: the CPU time, in ms, that it lent beyond what it was lent, as far as that counts in who borrows
    /// next; below 0: the other way.
    pub credit_ms: i32,
    /// That of its own tasks and its sub-units. Another than [`Discipline::Stride`] only where the scheduler was set up for that.
    pub discipline: Discipline,
    /// What it wants where [`Discipline::Dwcs`] orders it among its siblings.
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

/// So much CPU time in each period; of any `of` deadlines in a row, `misses` may be missed.
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
