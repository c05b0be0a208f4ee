//! Collects rows, verdicts and charts as the data of a report.

use commonhold_sim_report::claims::{Claim, Claims};

use crate::figures::charts;
use crate::rows::Row;
use crate::run::Runs;
use crate::verdict::judge;

/// The assessed rows, and the charts. `command` is the command line that repeats the runs.
pub fn assess(rows: &[&Row], runs: &Runs, command: &str) -> Claims {
    Claims {
        seeds: runs.seeds().to_vec(),
        rows: rows.iter().map(|row| claim(row, runs)).collect(),
        charts: charts(runs),
        command: command.to_owned(),
    }
}

fn claim(row: &Row, runs: &Runs) -> Claim {
    let (measured, verdict) = judge(row, runs);
    Claim {
        id: row.id.to_owned(),
        place: row.place.to_owned(),
        says: row.says.to_owned(),
        expected: row.expected.to_owned(),
        tolerance: row.tolerance,
        basis: row.basis,
        unit: row.unit,
        note: row.note.to_owned(),
        runs: row.needs.iter().map(crate::experiments::Experiment::name).collect(),
        measured,
        verdict,
    }
}
