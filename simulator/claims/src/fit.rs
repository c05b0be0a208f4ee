//! Fits the unknowns of a document to one half of its rows, and predicts the other half.
//!
//! Problem: a model needs values that its document leaves unsaid. Guessed once, they make a row hold or fail
//! by accident. Fitted to all rows, they prove nothing.
//!
//! Terms: a *setting* has a value for each unknown of a document. A row is *fitted* or *held out* ([`part`]).
//!
//! Algorithm, after the history matching of computer experiments:
//! 1. Draw settings ([`settings`] has their number) by a Latin hypercube: each unknown's range is divided
//!    into as many parts as there are settings, and each part is used once. The first setting is the guess.
//! 2. Run the experiments of the document's rows under each setting, with [`SEEDS`]. Rows whose experiments
//!    no unknown concerns have the table's figures, with all of its seeds, under every setting.
//! 3. A setting meets a fitted row if the mean over the seeds lies within the row's tolerance. The rows of
//!    each scenario form a [`Group`]: other scenarios' rows say little about its unknowns. In each group,
//!    *keep* the settings that meet the most fitted rows, and those that meet at most [`SLACK`] fewer. All
//!    kept settings count alike; the held-out rows have no part in the choice.
//! 4. A held-out row's *interval* spans the central [`CENTRAL`] of its figures under all kept settings and
//!    seeds. The row is met if the whole interval lies within the row's tolerance, missed if no part of it
//!    does, and undecided otherwise.
//!
//! Properties: the design, the split and the seeds are fixed, so the result is the same in every run. More
//! kept settings make intervals wider, and never turn a missed row into a met one.
//!
//! Limits: a few dozen settings sample the ranges thinly. A row that is met only in a small corner of the
//! ranges is reported as undecided or missed.
//!
//! Source: Beckman, Conover et al. 1979 (Latin hypercubes); Craig, Goldstein, Seheult and Smith 1997 (history
//! matching).

use commonhold_sim::chance::Chance;
use commonhold_sim_report::claims::{Basis, Tolerance};

use crate::measure::real;
use crate::rows::{Row, rows};
use crate::run::{self, Progress, Runs, Subject};
use crate::unknowns::{Document, Range, Setting, Unknown, unknowns};
use crate::verdict::summarise;

/// The random seeds of each run.
pub const SEEDS: [u64; 2] = [1, 2];

/// The number of settings of a document, the guess among them: as many as take about a minute on two cores.
pub const fn settings(document: Document) -> usize {
    match document {
        Document::Isolation => 96,
        Document::Bus => 48,
        Document::Pools => 32,
        Document::Scalability | Document::Tickets => 24,
    }
}
/// How many fewer fitted rows than the best setting a kept setting may meet, of twenty.
pub const SLACK: usize = 1;
/// The fraction of the figures that an interval spans.
pub const CENTRAL: f64 = 0.9;

/// The role of a row in the fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It chooses the settings.
    Fitted,
    /// It is predicted.
    HeldOut,
}

/// Rows whose part is set by hand, since the two belong together: the value of one determines an unknown on
/// which the other depends.
const PAIRS: &[(&str, Part)] = &[
    // Memory of the four-way machine.
    ("PI-F2-MP6", Part::Fitted),
    ("PI-F10-2", Part::HeldOut),
    // How often a process comes back to its pages.
    ("PI-F9-5", Part::Fitted),
    ("PI-F9-3", Part::HeldOut),
    // Outstanding requests of a copy, and where files lie.
    ("PI-T4-I1f", Part::Fitted),
    ("PI-T4", Part::HeldOut),
    // How far apart the two copies lie.
    ("PI-T5-Q1b", Part::Fitted),
    ("PI-T5", Part::HeldOut),
];

/// The part of a row; `None` if the row has no part: it is not of a document, not measured, or has no
/// tolerance; or it is measured with one seed only, since its runs take too long to be repeated.
///
/// Calibrated rows are fitted. Predicted rows are halved: the rows of each figure, table or section are
/// ordered by a hash of their names, and every other one is held out. Which one is first depends on a hash of
/// the place. The pairs above are set by hand.
pub fn part(row: &Row) -> Option<Part> {
    let document = document(row)?;
    match row.basis {
        _ if row.measure.is_none() || row.tolerance == Tolerance::None || row.seeds == 1 => return None,
        Basis::Calibrated => return Some(Part::Fitted),
        Basis::Predicted => {}
        _ => return None,
    }
    if let Some((_, part)) = PAIRS.iter().find(|(name, _)| begins_with(row.id, name)) {
        return Some(*part);
    }
    let mut beside: Vec<&str> = rows()
        .into_iter()
        .filter(|other| other.place == row.place && crate::fit::document(other) == Some(document))
        .filter(|other| other.basis == Basis::Predicted && other.measure.is_some())
        .filter(|other| other.tolerance != Tolerance::None && other.seeds != 1)
        .map(|other| other.id)
        .filter(|id| !PAIRS.iter().any(|(name, _)| begins_with(id, name)))
        .collect();
    beside.sort_by_key(|id| hash(id));
    let index = beside.iter().position(|id| *id == row.id)?;
    let is_fitted = (index as u64 + hash(row.place)).is_multiple_of(2);
    Some(if is_fitted { Part::Fitted } else { Part::HeldOut })
}

/// The document of a row; `None` for rows of this project's own.
pub fn document(row: &Row) -> Option<Document> {
    Document::ALL.into_iter().find(|document| row.id.starts_with(document.prefix()))
}

/// Whether `id` is the row `name`, or one of the rows of the claim `name`, whose names have further letters.
fn begins_with(id: &str, name: &str) -> bool {
    id.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The settings of a document: the guess, and a Latin hypercube.
pub fn design(document: Document) -> Vec<Setting> {
    let drawn = settings(document) - 1;
    let mut chance = Chance::from_state(hash(document.prefix()));
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for unknown in unknowns(document) {
        let mut strata: Vec<usize> = (0..drawn).collect();
        for at in (1..drawn).rev() {
            strata.swap(at, usize::try_from(chance.bits() % (at as u64 + 1)).unwrap_or(0));
        }
        let mut value = |stratum: usize| {
            let within = real(chance.bits() >> 11) / real(1 << 53);
            unknown.range.at((real(stratum as u64) + within) / real(drawn as u64))
        };
        columns.push(strata.into_iter().map(&mut value).collect());
    }
    let row = |at: usize| -> Vec<f64> { columns.iter().map(|column| column[at]).collect() };
    let settings = (0..drawn).map(|at| Setting::new(document, &row(at)));
    std::iter::once(Setting::GUESS).chain(settings).collect()
}

/// A row under all settings of its document.
#[derive(Debug, Clone, PartialEq)]
pub struct Studied {
    /// The row.
    pub id: &'static str,
    /// Its part.
    pub part: Part,
    /// Its group, an index; `None` if no unknown concerns its experiments.
    pub group: Option<usize>,
    /// Its figures, by setting and seed; empty for a setting under which a figure is missing or a run is not
    /// valid.
    pub figures: Vec<Vec<f64>>,
    /// The interval of its figures under the kept settings; `None` if a figure is missing.
    pub interval: Option<(f64, f64)>,
    /// Whether the interval is within the tolerance; `None`: undecided.
    pub is_met: Option<bool>,
}

/// The rows whose experiments are variations of one scenario, and the settings that fit them.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The folder in `scenarios/`.
    pub folder: &'static str,
    /// The number of fitted rows.
    pub fitted: usize,
    /// The most fitted rows that a setting meets.
    pub best: usize,
    /// The indices of the kept settings; all, if there is no fitted row.
    pub kept: Vec<usize>,
}

/// The outcome of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// The document.
    pub document: Document,
    /// The settings.
    pub settings: Vec<Setting>,
    /// The groups of rows, in the order of the rows.
    pub groups: Vec<Group>,
    /// The rows with a part.
    pub rows: Vec<Studied>,
}

/// The rows of a document that have a part.
fn rows_of(document: Document) -> Vec<(&'static Row, Part)> {
    let of_document = rows().into_iter().filter(|row| crate::fit::document(row) == Some(document));
    of_document.filter_map(|row| Some((row, part(row)?))).collect()
}

/// The rows of a document that have a part, which a table needs for its [`study`].
pub fn needed(document: Document) -> impl Iterator<Item = &'static Row> {
    rows_of(document).into_iter().map(|(row, _)| row)
}

/// The number of runs that [`study`] makes for a document.
pub fn count(document: Document) -> usize {
    let touched: Vec<&Row> = needed(document).filter(|row| is_touched(document, row)).collect();
    run::count(&touched, SEEDS.len())
        + (settings(document) - 1) * run::count_of(&touched, SEEDS.len(), &|run| run.is_touched_by(document))
}

/// The folder of a row's first experiment that an unknown concerns.
fn folder(document: Document, row: &Row) -> Option<&'static str> {
    let experiment = row.needs.iter().find(|experiment| experiment.is_touched_by(document))?;
    Some(experiment.files.folder())
}

fn is_touched(document: Document, row: &Row) -> bool {
    folder(document, row).is_some()
}

/// Fits a document's unknowns, and predicts its held-out rows. `table` has the runs of the [`needed`] rows as
/// the scenario's files are.
pub fn study(document: Document, table: &Runs, progress: &(dyn Fn(Progress) + Sync)) -> Study {
    let chosen = rows_of(document);
    let all: Vec<&Row> = chosen.iter().map(|(row, _)| *row).collect();
    let touched: Vec<&Row> = all.iter().copied().filter(|row| is_touched(document, row)).collect();
    let settings = design(document);
    let guess = Subject { document, setting: &Setting::GUESS };
    let guess = run::run_under(&touched, &SEEDS, guess, None, progress);
    let by_guess = |row: &&Row| {
        let runs = if is_touched(document, row) { &guess } else { table };
        vec![figures_of(row, runs)]
    };
    let mut figures: Vec<Vec<Vec<f64>>> = all.iter().map(by_guess).collect();
    for setting in &settings[1..] {
        let subject = Subject { document, setting };
        let runs = run::run_under(&touched, &SEEDS, subject, Some(&guess), progress);
        for (row, figures) in all.iter().zip(&mut figures) {
            let now = if is_touched(document, row) { figures_of(row, &runs) } else { figures[0].clone() };
            figures.push(now);
        }
    }
    let mut folders: Vec<&str> = Vec::new();
    for folder in all.iter().filter_map(|row| folder(document, row)) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    let of_group = |name: &'static str| -> Vec<_> {
        let rows = chosen.iter().zip(&figures);
        rows.filter(|((row, part), _)| *part == Part::Fitted && folder(document, row) == Some(name))
            .map(|((row, _), figures)| (*row, figures.as_slice()))
            .collect()
    };
    let groups: Vec<Group> =
        folders.iter().map(|folder| keep(folder, &of_group(folder), settings.len())).collect();
    let studied = |((row, part), figures): (&(&'static Row, Part), Vec<Vec<f64>>)| {
        let group = folder(document, row).and_then(|name| folders.iter().position(|folder| *folder == name));
        // Without unknowns, all settings have the same figures.
        let interval = interval(group.map_or(&[0], |group| &groups[group].kept), &figures);
        let is_met = interval.and_then(|interval| is_met(&row.tolerance, interval));
        Studied { id: row.id, part: *part, group, figures, interval, is_met }
    };
    let rows = chosen.iter().zip(figures).map(studied).collect();
    Study { document, settings, groups, rows }
}

/// A row's figures, one for each seed; empty if one is missing or a run is not valid.
fn figures_of(row: &Row, runs: &Runs) -> Vec<f64> {
    if row.needs.iter().any(|experiment| runs.flaw(*experiment).is_some()) {
        return Vec::new();
    }
    let Some(measure) = row.measure else { return Vec::new() };
    let seeds = runs.seeds().len().min(row.seeds);
    let figures: Option<Vec<f64>> =
        (0..seeds).map(|index| measure(crate::measure::Seed::new(runs, index))).collect();
    figures.unwrap_or_default()
}

/// The settings that fit a group, by its fitted rows' figures.
fn keep(folder: &'static str, fitted: &[(&Row, &[Vec<f64>])], settings: usize) -> Group {
    let is_fit = |row: &Row, figures: &[f64]| {
        let mean = summarise(figures).map(|measured| measured.mean);
        mean.is_some_and(|mean| is_met(&row.tolerance, (mean, mean)) == Some(true))
    };
    let fits: Vec<usize> = (0..settings)
        .map(|setting| fitted.iter().filter(|(row, figures)| is_fit(row, &figures[setting])).count())
        .collect();
    let best = fits.iter().copied().max().unwrap_or(0);
    // Rounded: a group of few rows has none to spare.
    let slack = (fitted.len() * SLACK + 10) / 20;
    let kept = (0..settings).filter(|setting| fits[*setting] + slack >= best).collect();
    Group { folder, fitted: fitted.len(), best, kept }
}

/// The central part of the figures under the kept settings; `None` if a figure is missing.
fn interval(kept: &[usize], figures: &[Vec<f64>]) -> Option<(f64, f64)> {
    let mut all = Vec::new();
    for setting in kept {
        if figures[*setting].is_empty() {
            return None;
        }
        all.extend(&figures[*setting]);
    }
    all.sort_by(f64::total_cmp);
    let last = all.len().checked_sub(1)?;
    let at = |fraction: f64| {
        let place = fraction * real(last as u64);
        let below = (0..last).take_while(|index| real(*index as u64 + 1) <= place).count();
        let above = (below + 1).min(last);
        all[below] + (all[above] - all[below]) * (place - real(below as u64))
    };
    let tail = (1.0 - CENTRAL) / 2.0;
    Some((at(tail), at(1.0 - tail)))
}

/// Whether an interval lies within a tolerance; `None` if only a part of it does.
fn is_met(tolerance: &Tolerance, (low, high): (f64, f64)) -> Option<bool> {
    let is_within = |value: f64| match *tolerance {
        Tolerance::None => false,
        Tolerance::Between { low, high } => low <= value && value <= high,
        Tolerance::AtLeast { low } => low <= value,
        Tolerance::AtMost { high } | Tolerance::AlwaysAtMost { high } => value <= high,
        Tolerance::Above { bound } => value > bound,
        Tolerance::Below { bound } => value < bound,
    };
    let spans =
        matches!(*tolerance, Tolerance::Between { low: least, high: most } if low < least && most < high);
    match (is_within(low), is_within(high)) {
        (true, true) => Some(true),
        (false, false) if !spans => Some(false),
        _ => None,
    }
}

/// How strongly an unknown moves a row.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    /// The unknown.
    pub unknown: &'static Unknown,
    /// The fraction of the variance of the row's means over the settings that a curve of the unknown
    /// explains: the means of four classes of its range, or of its variants.
    pub explains: f64,
}

impl Study {
    /// The effects of the document's unknowns on a row, the largest first.
    pub fn effects(&self, row: &Studied) -> Vec<Effect> {
        let effect = |(index, unknown): (usize, &'static Unknown)| Effect {
            unknown,
            explains: self.explained(row, index, unknown),
        };
        let mut effects: Vec<Effect> = unknowns(self.document).enumerate().map(effect).collect();
        effects.sort_by(|a, b| b.explains.total_cmp(&a.explains));
        effects
    }

    /// A row's mean under each setting, with the value of an unknown there; settings with missing figures are
    /// left out.
    pub fn points(&self, row: &Studied, unknown: usize) -> Vec<(f64, f64, bool)> {
        let guess: Vec<f64> = unknowns(self.document).map(|unknown| unknown.guess).collect();
        let kept = row.group.map(|group| &self.groups[group].kept);
        let point = |(index, figures): (usize, &Vec<f64>)| {
            let mean = summarise(figures)?.mean;
            let value = self.settings[index].values().nth(unknown).unwrap_or(guess[unknown]);
            Some((value, mean, kept.is_none_or(|kept| kept.contains(&index))))
        };
        row.figures.iter().enumerate().filter_map(point).collect()
    }

    /// The values of an unknown at which a row's value crosses a bound of its tolerance, by straight lines
    /// through the means of four classes of the unknown's range. None for a structural unknown.
    pub fn thresholds(&self, row: &Studied, unknown: usize, tolerance: &Tolerance) -> Vec<f64> {
        let Some(range) = unknowns(self.document).nth(unknown).map(|unknown| unknown.range) else {
            return Vec::new();
        };
        if let Range::OneOf(_) = range {
            return Vec::new();
        }
        let bounds = match *tolerance {
            Tolerance::None => Vec::new(),
            Tolerance::Between { low, high } => vec![low, high],
            Tolerance::AtLeast { low: bound }
            | Tolerance::AtMost { high: bound }
            | Tolerance::AlwaysAtMost { high: bound }
            | Tolerance::Above { bound }
            | Tolerance::Below { bound } => vec![bound],
        };
        let mut classes = vec![(0.0, 0.0, 0.0); 4];
        for (value, figure, _) in self.points(row, unknown) {
            let fraction = range.fraction(value).clamp(0.0, 1.0);
            let class = &mut classes[(1..4).take_while(|class| f64::from(*class) <= fraction * 4.0).count()];
            *class = (class.0 + 1.0, class.1 + fraction, class.2 + figure);
        }
        let means: Vec<(f64, f64)> = classes
            .into_iter()
            .filter(|(count, _, _)| *count > 0.0)
            .map(|(count, fractions, figures)| (fractions / count, figures / count))
            .collect();
        let crossing = |pair: &[(f64, f64)], bound: f64| {
            let [(x0, y0), (x1, y1)] = *pair else { return None };
            let at = (bound - y0) / (y1 - y0);
            (0.0..1.0).contains(&at).then(|| range.at(x0 + (x1 - x0) * at))
        };
        bounds
            .into_iter()
            .flat_map(|bound| means.windows(2).filter_map(move |pair| crossing(pair, bound)))
            .collect()
    }

    fn explained(&self, row: &Studied, index: usize, unknown: &Unknown) -> f64 {
        let classes = match unknown.range {
            Range::OneOf(variants) => variants.len(),
            Range::Even { .. } | Range::Log { .. } => 4,
        };
        let mut sums = vec![(0.0, 0.0); classes];
        let points = self.points(row, index);
        let mean = points.iter().map(|(_, value, _)| value).sum::<f64>() / real(points.len().max(1) as u64);
        let mut total = 0.0;
        for (value, figure, _) in points {
            let fraction = unknown.range.fraction(value).clamp(0.0, 1.0);
            let class = (1..classes)
                .take_while(|class| real(*class as u64) <= fraction * real(classes as u64))
                .count();
            sums[class].0 += 1.0;
            sums[class].1 += figure - mean;
            total += (figure - mean) * (figure - mean);
        }
        let between: f64 =
            sums.iter().filter(|(count, _)| *count > 0.0).map(|(count, sum)| sum * sum / count).sum();
        // Rounding alone is no effect.
        if total > 1e-18 * mean * mean { between / total } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn half_of_each_place_is_held_out() {
        let mut by_place: BTreeMap<(Document, &str), (usize, usize)> = BTreeMap::new();
        for document in Document::ALL {
            for (row, part) in rows_of(document) {
                let is_by_hash = !PAIRS.iter().any(|(name, _)| begins_with(row.id, name));
                if row.basis == Basis::Predicted && is_by_hash {
                    let counts = by_place.entry((document, row.place)).or_default();
                    match part {
                        Part::Fitted => counts.0 += 1,
                        Part::HeldOut => counts.1 += 1,
                    }
                }
            }
        }
        for (place, (fitted, held_out)) in &by_place {
            assert!(fitted.abs_diff(*held_out) <= 1, "{place:?}: {fitted} and {held_out}");
        }
    }

    #[test]
    fn pairs_are_rows() {
        for (name, part) in PAIRS {
            let named: Vec<&Row> = rows().into_iter().filter(|row| begins_with(row.id, name)).collect();
            assert!(!named.is_empty(), "{name}");
            let is_ours = |row: &&Row| super::part(row).is_some_and(|it| it == *part);
            assert!(named.iter().any(is_ours), "no row of {name} is {part:?}");
        }
        assert!(begins_with("PI-F9-3a", "PI-F9-3") && !begins_with("PI-F9-31", "PI-F9-3"));
    }

    #[test]
    fn a_design_uses_each_part_of_a_range_once() {
        for document in Document::ALL {
            let settings = design(document);
            assert_eq!((settings.len(), &settings[0]), (super::settings(document), &Setting::GUESS));
            for (index, unknown) in unknowns(document).enumerate() {
                if matches!(unknown.range, Range::OneOf(_)) {
                    continue;
                }
                let mut fractions: Vec<f64> = settings[1..]
                    .iter()
                    .map(|setting| unknown.range.fraction(setting.values().nth(index).unwrap()))
                    .collect();
                fractions.sort_by(f64::total_cmp);
                for (stratum, fraction) in (0u64..).zip(fractions) {
                    let drawn = real((super::settings(document) - 1) as u64);
                    let part = real(stratum) / drawn;
                    assert!(
                        (part - 1e-9..part + 1.0 / drawn + 1e-9).contains(&fraction),
                        "{}: {fraction}",
                        unknown.name
                    );
                }
            }
        }
    }

    #[test]
    fn intervals_decide() {
        let between = Tolerance::Between { low: 1.0, high: 2.0 };
        for (interval, expected) in [
            ((1.0, 2.0), Some(true)),
            ((2.1, 3.0), Some(false)),
            ((0.0, 0.9), Some(false)),
            ((0.9, 1.5), None),
            ((0.0, 3.0), None),
        ] {
            assert_eq!(is_met(&between, interval), expected, "{interval:?}");
        }
        assert_eq!(is_met(&Tolerance::Above { bound: 0.0 }, (0.1, 9.0)), Some(true));
        assert_eq!(is_met(&Tolerance::Above { bound: 0.0 }, (-0.1, 9.0)), None);
    }

    /// 0 to 20 in equal steps: the central 90 % are 1 to 19.
    #[test]
    fn an_interval_spans_the_central_figures_of_the_kept_settings() {
        let figures: Vec<Vec<f64>> = vec![(0..=20).map(f64::from).collect(), vec![1000.0]];
        let (low, high) = interval(&[0], &figures).unwrap();
        assert!((low - 1.0).abs() < 1e-9 && (high - 19.0).abs() < 1e-9, "{low} to {high}");
        assert!(interval(&[0, 1], &figures).unwrap().1 > 19.0);
        assert_eq!(interval(&[0], &[Vec::new()]), None);
    }
}
