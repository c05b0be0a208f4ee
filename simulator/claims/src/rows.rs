//! The claims of the papers: one row per number or statement, in the order of the papers' sections.
//!
//! A claim that states several things has several rows; a letter at the end of the name tells them apart. The
//! tolerances are the closest that an independent re-implementation can be expected to meet:
//! - 10 % on response times, and on service times of a disk;
//! - 25 % on waits and queue lengths;
//! - 25 % on the ratios of table 5, whose absolute figures no disk of the stated kind can give.
//!
//! A statement without a number becomes a sign: a value must be above or below a bound.

pub(crate) mod beyond;
mod bus;
mod databases;
mod disciplines;
pub(crate) mod disk;
mod framework;
pub(crate) mod kernel;
pub(crate) mod machines;
pub(crate) mod pools;
mod scaling;
pub(crate) mod tickets;

use commonhold_sim_report::claims::{Basis, Tolerance, Unit, Verdict};

use crate::experiments::Experiment;
use crate::measure::Seed;

/// A number or statement of the paper.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub id: &'static str,
    /// The section, figure or table in the paper: in seed 000 unless it names another.
    pub place: &'static str,
    /// The statement, in this project's words.
    pub says: &'static str,
    /// The value as printed in the paper; empty if the paper prints no value.
    pub expected: &'static str,
    /// The values that count as met.
    pub tolerance: Tolerance,
    /// Whether the row is predicted, calibrated or a parameter.
    pub basis: Basis,
    /// The unit of the measured value.
    pub unit: Unit,
    /// All experiments that `measure` uses.
    pub needs: &'static [Experiment],
    /// Computes the measured value from the runs with one seed. `None` for a row that is not measured.
    pub measure: Option<fn(Seed) -> Option<f64>>,
    /// Tests that check a parameter, as `file: function`.
    pub held_by: &'static [&'static str],
    /// The number of seeds with which the row is measured: the first ones of the list.
    pub seeds: usize,
    /// The reason why nothing is measured, or a caveat about the measurement.
    pub note: &'static str,
}

impl Row {
    /// The verdict of a row without `measure`.
    pub(crate) fn unmeasured(&self) -> Verdict {
        self.held().unwrap_or_else(|| Verdict::NotMeasured { reason: self.note.to_owned() })
    }

    /// The verdict of a parameter, which tests check instead of runs. `None` for any other row.
    pub(crate) fn held(&self) -> Option<Verdict> {
        let held_by = self.held_by.iter().map(|test| (*test).to_owned()).collect();
        (self.basis == Basis::Parameter).then_some(Verdict::Parameter { held_by })
    }

    /// Adds a caveat for the reader.
    const fn note(mut self, note: &'static str) -> Row {
        self.note = note;
        self
    }

    /// Measures the row with the first seed only, since it needs many experiments.
    const fn once(mut self) -> Row {
        self.seeds = 1;
        self
    }

    /// Sets the unit of the measured value, which is a ratio by default.
    const fn unit(mut self, unit: Unit) -> Row {
        self.unit = unit;
        self
    }

    /// Sets the basis, which is predicted by default.
    const fn basis(mut self, basis: Basis) -> Row {
        self.basis = basis;
        self
    }

    /// Sets how the row is measured, and the experiments that this needs.
    const fn measured(mut self, needs: &'static [Experiment], measure: fn(Seed) -> Option<f64>) -> Row {
        self.needs = needs;
        self.measure = Some(measure);
        self
    }
}

/// A row's claim: its name, its place in the paper, the statement and the printed value.
type Says = (&'static str, &'static str, &'static str, &'static str);

/// A row for a parameter, which tests check.
const fn parameter(says: Says, held_by: &'static [&'static str]) -> Row {
    Row { basis: Basis::Parameter, held_by, ..unmeasured_row(says, Basis::Parameter, "") }
}

/// A row that is not measured, and why.
const fn unmeasured_row(says: Says, basis: Basis, why: &'static str) -> Row {
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

/// A predicted row whose measured value is a ratio.
const fn predicted(
    says: Says,
    tolerance: Tolerance,
    needs: &'static [Experiment],
    measure: fn(Seed) -> Option<f64>,
) -> Row {
    Row { tolerance, ..unmeasured_row(says, Basis::Predicted, "").measured(needs, measure) }
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
    let before_cells = [framework::ROWS, machines::ROWS, kernel::ROWS].into_iter().flatten();
    let after_cells = [
        disk::ROWS,
        tickets::ROWS,
        databases::ROWS,
        disciplines::ROWS,
        scaling::ROWS,
        pools::ROWS,
        bus::ROWS,
        beyond::ROWS,
    ];
    let after_cells = after_cells.into_iter().flatten();
    before_cells.chain(disk::CELLS.iter().flatten()).chain(after_cells).collect()
}

/// The error of a name with which no row's name begins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no claim is called `{name}`; `commonhold claims` without names runs all claims; the beginning of a name stands \
     for all claims that begin so, as in `PI-T4`"
)]
pub struct NoSuchClaim {
    /// The name.
    pub name: String,
}

/// The rows whose identifier begins with one of `names`, ignoring case; all rows if `names` is empty.
pub fn select(names: &[String]) -> Result<Vec<&'static Row>, NoSuchClaim> {
    let rows = rows();
    let begins_with = |row: &Row, name: &String| row.id.to_lowercase().starts_with(&name.to_lowercase());
    for name in names {
        if name.is_empty() || !rows.iter().any(|row| begins_with(row, name)) {
            return Err(NoSuchClaim { name: name.clone() });
        }
    }
    Ok(rows
        .into_iter()
        .filter(|row| names.is_empty() || names.iter().any(|name| begins_with(row, name)))
        .collect())
}
