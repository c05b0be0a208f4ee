//! Collects rows, verdicts, charts and studies as the data of a report.

use commonhold_sim_report::claims::{Claim, Claims};
use commonhold_sim_report::studies::{self, Plot, StudyRow, StudyUnknown};

use crate::figures::charts;
use crate::fit::{Part, Studied, Study};
use crate::frozen::frozen;
use crate::rows::{Row, rows};
use crate::run::Runs;
use crate::unknowns::{Document, Range, unknowns};
use crate::verdict::judge;

/// The assessed rows, and the charts. `command` is the command line that repeats the runs.
pub fn assess(rows: &[&Row], runs: &Runs, studies: &[Study], command: &str) -> Claims {
    Claims {
        seeds: runs.seeds().to_vec(),
        rows: rows.iter().map(|row| claim(row, runs)).collect(),
        charts: charts(runs),
        studies: studies.iter().map(study).collect(),
        command: command.to_owned(),
    }
}

fn claim(row: &Row, runs: &Runs) -> Claim {
    let (measured, verdict) = judge(row, runs);
    Claim {
        id: row.id.to_owned(),
        seed: crate::fit::document(row).map_or("", Document::seed).to_owned(),
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

fn group(group: &crate::fit::Group) -> studies::Group {
    studies::Group {
        scenario: group.folder.to_owned(),
        fitted: group.fitted,
        best: group.best,
        kept: group.kept.len(),
    }
}

/// The most plots of a document.
const PLOTS_MAX: usize = 12;

fn study(study: &Study) -> studies::Study {
    let unknown = |(index, unknown): (usize, &crate::unknowns::Unknown)| {
        // The values that some scenario keeps, of those that the unknown concerns.
        let concerned = study.groups.iter().filter(|group| unknown.concerns(group.folder));
        let value_of = |kept: &usize| study.settings[*kept].values().nth(index).unwrap_or(unknown.guess);
        let values: Vec<f64> = concerned.flat_map(|group| group.kept.iter().map(value_of)).collect();
        let low = values.iter().copied().fold(f64::MAX, f64::min);
        let high = values.iter().copied().fold(f64::MIN, f64::max);
        let words = |value| unknown.value(value);
        let (range, kept) = match unknown.range {
            Range::OneOf(variants) => {
                let kept: Vec<&str> = (0u32..)
                    .zip(variants)
                    .filter(|(at, _)| values.iter().any(|value| value.total_cmp(&f64::from(*at)).is_eq()))
                    .map(|(_, name)| *name)
                    .collect();
                (variants.join(" | "), kept.join(" | "))
            }
            Range::Even { low: least, high: most } | Range::Log { low: least, high: most } => {
                (format!("{}..{}", words(least), words(most)), format!("{}..{}", words(low), words(high)))
            }
        };
        StudyUnknown {
            name: unknown.name.to_owned(),
            says: unknown.says.to_owned(),
            range,
            guess: words(unknown.guess),
            kept,
            source: unknown.source.to_owned(),
        }
    };
    let all = rows();
    let of = |studied: &Studied| all.iter().copied().find(|row| row.id == studied.id);
    let study_row = |studied: &Studied| {
        let row = of(studied)?;
        Some(StudyRow {
            id: row.id.to_owned(),
            expected: row.expected.to_owned(),
            tolerance: row.tolerance,
            unit: row.unit,
            frozen: frozen(row.id),
            is_held_out: studied.part == Part::HeldOut,
            interval: studied.interval,
            is_met: studied.is_met,
            moved_by: study.effects(studied).first().map(|it| (it.unknown.name.to_owned(), it.explains)),
        })
    };
    let is_plotted = |studied: &&Studied| {
        let is_missed = frozen(studied.id).is_some_and(|frozen| frozen.met == Some(false));
        is_missed || studied.part == Part::HeldOut && studied.is_met != Some(true)
    };
    let plots = study.rows.iter().filter(is_plotted).filter_map(|studied| plot(study, studied, of(studied)?));
    studies::Study {
        seed: study.document.seed().to_owned(),
        settings: study.settings.len(),
        groups: study.groups.iter().map(group).collect(),
        seeds: crate::fit::SEEDS.len(),
        rows: study.rows.iter().filter_map(study_row).collect(),
        unknowns: unknowns(study.document).enumerate().map(unknown).collect(),
        plots: plots.take(PLOTS_MAX).collect(),
    }
}

/// The plot of a row against the unknown that moves it most; `None` if no unknown moves it.
fn plot(study: &Study, studied: &Studied, row: &Row) -> Option<Plot> {
    let effect = study.effects(studied).into_iter().next().filter(|effect| effect.explains > 0.0)?;
    let index = unknowns(study.document).position(|unknown| std::ptr::eq(unknown, effect.unknown))?;
    let variants = match effect.unknown.range {
        Range::OneOf(variants) => variants.iter().map(|name| (*name).to_owned()).collect(),
        Range::Even { .. } | Range::Log { .. } => Vec::new(),
    };
    let unit =
        if effect.unknown.unit.is_empty() { String::new() } else { format!(", {}", effect.unknown.unit) };
    Some(Plot {
        id: row.id.to_owned(),
        says: row.says.to_owned(),
        unknown: format!("{}{unit}", effect.unknown.name),
        variants,
        is_log: matches!(effect.unknown.range, Range::Log { .. }),
        tolerance: row.tolerance,
        points: study.points(studied, index),
        thresholds: study.thresholds(studied, index, &row.tolerance),
    })
}
