//! What seeds 000, 001, 002 and 004 are held to: one row per number or statement, by the sections of the papers.
//!
//! A row that states several things has several rows here, its name with a letter. Tolerances are those that an
//! independent re-implementation can honestly be held to:
//! - 10 % on response times, and on service times of a disk;
//! - 25 % on waits and queue lengths;
//! - 25 % on the ratios of table 5, whose absolute figures no disk of the stated kind can give.
//!
//! A statement without a number is a sign.

pub(crate) mod beyond;
mod bus;
mod databases;
mod disciplines;
pub(crate) mod disk;
mod framework;
pub(crate) mod kernel;
pub(crate) mod machines;
mod pools;
mod scaling;
mod tickets;

use commonhold_sim_report::claims::{Basis, Tolerance, Unit, Verdict};

use crate::experiments::Experiment;
use crate::measure::Seed;

/// A number or statement of the paper.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub id: &'static str,
    /// Section, figure or table: of seed 000, if no other is named.
    pub place: &'static str,
    /// What it says, in our words.
    pub says: &'static str,
    /// The value as printed; empty where none is.
    pub expected: &'static str,
    /// How far off the measured value may be.
    pub tolerance: Tolerance,
    /// What the row is evidence of.
    pub basis: Basis,
    /// What the measured value is counted in.
    pub unit: Unit,
    /// The experiments that `measure` looks at, all of them.
    pub needs: &'static [Experiment],
    /// The measured value of one seed.
    pub measure: Option<fn(Seed) -> Option<f64>>,
    /// Tests that hold a parameter, `file: function`.
    pub held_by: &'static [&'static str],
    /// With how many of the seeds it is measured, the first ones.
    pub seeds: usize,
    /// Why nothing is measured, or a caveat about the measurement.
    pub note: &'static str,
}

impl Row {
    /// The verdict of a row that has no measure.
    pub(crate) fn unmeasured(&self) -> Verdict {
        self.held().unwrap_or_else(|| Verdict::NotMeasured { reason: self.note.to_owned() })
    }

    /// The verdict of a parameter, which does not depend on what is measured.
    pub(crate) fn held(&self) -> Option<Verdict> {
        let held_by = self.held_by.iter().map(|test| (*test).to_owned()).collect();
        (self.basis == Basis::Parameter).then_some(Verdict::Parameter { held_by })
    }

    /// With what a reader must know.
    const fn note(mut self, note: &'static str) -> Row {
        self.note = note;
        self
    }

    /// With the first seed alone: its experiments are many.
    const fn once(mut self) -> Row {
        self.seeds = 1;
        self
    }

    /// Counted in this unit and not as a ratio.
    const fn unit(mut self, unit: Unit) -> Row {
        self.unit = unit;
        self
    }

    /// On this basis and not predicted.
    const fn basis(mut self, basis: Basis) -> Row {
        self.basis = basis;
        self
    }

    /// Measured as well.
    const fn measured(mut self, needs: &'static [Experiment], measure: fn(Seed) -> Option<f64>) -> Row {
        self.needs = needs;
        self.measure = Some(measure);
        self
    }
}

/// What a row says: its name, its place, the statement and the printed value.
type Says = (&'static str, &'static str, &'static str, &'static str);

/// A parameter, held by tests.
const fn parameter(says: Says, held_by: &'static [&'static str]) -> Row {
    Row { basis: Basis::Parameter, held_by, ..unmeasured(says, Basis::Parameter, "") }
}

/// A row that nothing is measured of.
const fn unmeasured(says: Says, basis: Basis, why: &'static str) -> Row {
    let (id, place, says, expected) = says;
    Row {
        id,
        place,
        says,
        expected,
        tolerance: Tolerance::None,
        basis,
        unit: Unit::Ratio,
        needs: &[],
        measure: None,
        held_by: &[],
        seeds: usize::MAX,
        note: why,
    }
}

/// A row that is predicted, as a ratio.
const fn predicted(
    says: Says,
    tolerance: Tolerance,
    needs: &'static [Experiment],
    measure: fn(Seed) -> Option<f64>,
) -> Row {
    Row { tolerance, ..unmeasured(says, Basis::Predicted, "").measured(needs, measure) }
}

/// A number with a tolerance on both sides.
const fn between(low: f64, high: f64) -> Tolerance {
    Tolerance::Between { low, high }
}

/// A sign: above the bound with 90 % confidence.
const fn above(bound: f64) -> Tolerance {
    Tolerance::Above { bound }
}

/// A sign: below the bound with 90 % confidence.
const fn below(bound: f64) -> Tolerance {
    Tolerance::Below { bound }
}

/// All rows, in the order of the papers, those beyond them last.
pub fn rows() -> Vec<&'static Row> {
    let before = [framework::ROWS, machines::ROWS, kernel::ROWS].into_iter().flatten();
    let after = [
        disk::ROWS,
        tickets::ROWS,
        databases::ROWS,
        disciplines::ROWS,
        scaling::ROWS,
        pools::ROWS,
        bus::ROWS,
        beyond::ROWS,
    ];
    let after = after.into_iter().flatten();
    before.chain(disk::CELLS.iter().flatten()).chain(after).collect()
}

/// A name that no row has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no claim is called `{name}`; `commonhold claims` without names runs all claims; the beginning of a name stands \
     for all claims that begin so, as in `PI-T4`"
)]
pub struct Unknown {
    /// It.
    pub name: String,
}

/// The rows whose identifier begins with one of `names`, ignoring case; all rows if `names` is empty.
pub fn select(names: &[String]) -> Result<Vec<&'static Row>, Unknown> {
    let rows = rows();
    let named = |row: &Row, name: &String| row.id.to_lowercase().starts_with(&name.to_lowercase());
    for name in names {
        if name.is_empty() || !rows.iter().any(|row| named(row, name)) {
            return Err(Unknown { name: name.clone() });
        }
    }
    Ok(rows.into_iter().filter(|row| names.is_empty() || names.iter().any(|name| named(row, name))).collect())
}
