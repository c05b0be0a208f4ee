//! The fits of the documents' unknowns, as text, JSON and HTML: for each row the frozen guess, the fitted and
//! the held-out half; the ranges of the unknowns; and plots of rows against the unknowns that move them.

use commonhold_report::figures::NOTHING;
use commonhold_report::svg::WIDTH;
use commonhold_report::table::{Paint, Style, Table, escape, html_cell};
use serde::Serialize;

use crate::claims::{Tolerance, Unit, digits};

/// The fit of a document's unknowns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Study {
    /// The document's number.
    pub seed: String,
    /// The number of settings that were tried, the guess among them.
    pub settings: usize,
    /// The groups of rows for which settings are kept.
    pub groups: Vec<Group>,
    /// The number of random seeds of each run.
    pub seeds: usize,
    /// The rows, in the order of the claims.
    pub rows: Vec<StudyRow>,
    /// The unknowns.
    pub unknowns: Vec<StudyUnknown>,
    /// Plots of rows that the frozen guess or the prediction misses.
    pub plots: Vec<Plot>,
}

/// The rows of a scenario, for which settings are kept by its fitted rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The scenario's folder.
    pub scenario: String,
    /// The number of its fitted rows.
    pub fitted: usize,
    /// The most of these that a setting meets.
    pub best: usize,
    /// The number of settings that were kept.
    pub kept: usize,
}

/// A row of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StudyRow {
    /// The claim's identifier.
    pub id: String,
    /// The value as printed; empty if the document prints none.
    pub expected: String,
    /// The accepted range.
    pub tolerance: Tolerance,
    /// The unit of the values.
    pub unit: Unit,
    /// The result of the frozen models; `None` if the row was added later.
    pub frozen: Option<Frozen>,
    /// Whether the row is held out; else it is fitted.
    pub is_held_out: bool,
    /// The central 90 % of the row's values under the kept settings; `None` if a value is missing.
    pub interval: Option<(f64, f64)>,
    /// Whether the interval is within the tolerance; `None`: only a part of it is, or a value is missing.
    pub is_met: Option<bool>,
    /// The unknown that moves the row most, and the fraction of the row's variance that it explains.
    pub moved_by: Option<(String, f64)>,
}

/// What a row's value was before any unknown was varied. It never changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Frozen {
    /// The mean; `None` if the row had no value.
    pub mean: Option<f64>,
    /// Whether the row was met; `None` if it had no verdict.
    pub met: Option<bool>,
}

/// An unknown, and the values that remain after the fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StudyUnknown {
    /// Its name.
    pub name: String,
    /// What it is.
    pub says: String,
    /// Its range, in words.
    pub range: String,
    /// The guess, in words.
    pub guess: String,
    /// Its values in the kept settings, in words.
    pub kept: String,
    /// Where the range comes from.
    pub source: String,
}

/// A row's value against an unknown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plot {
    /// The claim's identifier.
    pub id: String,
    /// The claim's statement.
    pub says: String,
    /// The unknown, with its unit.
    pub unknown: String,
    /// The names of the variants, if the unknown is structural.
    pub variants: Vec<String>,
    /// Whether the unknown's axis is logarithmic.
    pub is_log: bool,
    /// The accepted range.
    pub tolerance: Tolerance,
    /// For each setting: the unknown's value, the row's mean, and whether the setting was kept.
    pub points: Vec<(f64, f64, bool)>,
    /// The values of the unknown at which the row's value crosses the bound of its tolerance, by a line
    /// through the means of classes.
    pub thresholds: Vec<f64>,
}

/// Counts of held-out rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct HeldOut {
    /// Rows that are met.
    pub met: usize,
    /// Rows that are missed.
    pub missed: usize,
    /// Rows that are neither.
    pub undecided: usize,
}

impl Study {
    /// The counts of the held-out rows.
    pub fn held_out(&self) -> HeldOut {
        let mut counts = HeldOut::default();
        for row in self.rows.iter().filter(|row| row.is_held_out) {
            match row.is_met {
                Some(true) => counts.met += 1,
                Some(false) => counts.missed += 1,
                None => counts.undecided += 1,
            }
        }
        counts
    }

    /// `seed 000, 40 settings; held out: 20 met, 3 missed (87 % of the decided are met), 9 undecided`.
    fn heading(&self) -> String {
        format!("seed {}, {} settings; held out: {}", self.seed, self.settings, self.held_out().text())
    }
}

impl HeldOut {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: HeldOut) -> HeldOut {
        HeldOut {
            met: self.met + other.met,
            missed: self.missed + other.missed,
            undecided: self.undecided + other.undecided,
        }
    }

    fn text(self) -> String {
        let HeldOut { met, missed, undecided } = self;
        let part = match met + missed {
            0 => String::new(),
            decided => format!(" ({} % of the decided are met)", met * 100 / decided),
        };
        format!("{met} met, {missed} missed{part}, {undecided} undecided")
    }
}

const HEADS: [&str; 6] = ["claim", "printed", "tolerance", "frozen guess", "fitted", "held out"];

impl StudyRow {
    fn cells(&self) -> [String; 6] {
        let frozen = self.frozen.as_ref().map_or_else(
            || NOTHING.to_owned(),
            |frozen| {
                let mean = frozen.mean.map_or(NOTHING.to_owned(), digits);
                let met = frozen.met.map_or("", |met| if met { " hit" } else { " MISS" });
                format!("{mean}{met}")
            },
        );
        let interval = self.interval.map_or_else(
            || NOTHING.to_owned(),
            |(low, high)| {
                let verdict = match self.is_met {
                    Some(true) => "met",
                    Some(false) => "MISS",
                    None => "undecided",
                };
                format!("{}..{} {verdict}", digits(low), digits(high))
            },
        );
        let (fitted, held_out) =
            if self.is_held_out { (String::new(), interval) } else { (interval, String::new()) };
        let expected = if self.expected.is_empty() { NOTHING.to_owned() } else { self.expected.clone() };
        [self.id.clone(), expected, self.tolerance.text(), frozen, fitted, held_out]
    }

    /// Whether the prediction missed.
    fn is_miss(&self) -> bool {
        self.is_held_out && self.is_met == Some(false)
    }
}

/// The studies for a terminal.
pub fn text(studies: &[Study], style: Style) -> String {
    let mut text = String::new();
    for study in studies {
        text += &format!("\n{}\n", study.heading());
        let mut table = Table::new(&HEADS);
        for row in &study.rows {
            table.row(if row.is_miss() { Paint::Bad } else { Paint::Plain }, row.cells().to_vec());
        }
        text += &table.render(style);
        text += &groups_table(study).render(style);
        text += &unknowns_table(study).render(style);
    }
    let all = studies.iter().map(Study::held_out).fold(HeldOut::default(), HeldOut::plus);
    text + &format!("\nall held-out rows: {}\n", all.text())
}

const HEADS_OF_GROUPS: [&str; 4] = ["scenario", "fitted rows", "met by the best", "settings kept"];

impl Group {
    fn cells(&self) -> [String; 4] {
        let Group { scenario, fitted, best, kept } = self;
        [scenario.clone(), fitted.to_string(), best.to_string(), kept.to_string()]
    }
}

fn groups_table(study: &Study) -> Table {
    let mut table = Table::new(&HEADS_OF_GROUPS);
    for group in &study.groups {
        table.row(Paint::Plain, group.cells().to_vec());
    }
    table
}

fn unknowns_table(study: &Study) -> Table {
    let mut table = Table::new(&["unknown", "range", "guess", "kept"]);
    for unknown in &study.unknowns {
        let StudyUnknown { name, range, guess, kept, .. } = unknown;
        table.row(Paint::Plain, [name, range, guess, kept].map(Clone::clone).to_vec());
    }
    table
}

/// The studies as sections of a page.
pub(crate) fn html(studies: &[Study]) -> String {
    if studies.is_empty() {
        return String::new();
    }
    let all = studies.iter().map(Study::held_out).fold(HeldOut::default(), HeldOut::plus);
    let mut page =
        format!("<h2>Unknowns</h2>\n<p>Held-out rows of all documents: {}.</p>\n{HOW}", all.text());
    for study in studies {
        page += &format!("<h3>Seed {}</h3>\n<p>{}</p>\n", escape(&study.seed), escape(&study.heading()));
        page += &groups_html(study);
        page += &unknowns_html(study);
        page += &rows_html(study);
        for plot in &study.plots {
            page += &format!("<figure>\n{}</figure>\n", drawn(study, plot));
        }
    }
    page
}

const HOW: &str = "<p class=\"soft\">A parameter that a document does not state is an unknown. Settings are drawn from the \
                   unknowns' ranges. For each scenario, those that meet the most of its fitted rows are kept, and predict its \
                   held-out rows. A held-out row is met if the central 90 % of its values under the kept settings and seeds \
                   lie within its tolerance, missed if none of these do, and undecided otherwise. In the plots, filled points \
                   are kept settings, and the band is the tolerance. Dashed lines are thresholds: there, the means cross an \
                   end of the tolerance.</p>\n";

fn unknowns_html(study: &Study) -> String {
    let heads = ["unknown", "what it is", "range", "guess", "kept", "source of the range"];
    let mut table = table_head(&heads);
    for unknown in &study.unknowns {
        let StudyUnknown { name, says, range, guess, kept, source } = unknown;
        let cells: String = heads[1..]
            .iter()
            .zip([says, range, guess, kept, source])
            .map(|(head, cell)| html_cell(head, cell))
            .collect();
        table += &format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escape(name));
    }
    table + "</tbody>\n</table>\n</div>\n"
}

fn groups_html(study: &Study) -> String {
    table_html(&HEADS_OF_GROUPS, study.groups.iter().map(Group::cells))
}

fn rows_html(study: &Study) -> String {
    table_html(&HEADS, study.rows.iter().map(StudyRow::cells))
}

/// A table whose first column heads the rows.
fn table_html<const N: usize>(heads: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = table_head(heads);
    for cells in rows {
        let others: String =
            heads.iter().zip(&cells).skip(1).map(|(head, cell)| html_cell(head, cell)).collect();
        table += &format!("<tr><th scope=\"row\">{}</th>{others}</tr>\n", escape(&cells[0]));
    }
    table + "</tbody>\n</table>\n</div>\n"
}

fn table_head(heads: &[&str]) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    format!("<div class=\"wide\">\n<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n")
}

const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 46.0;
const HEIGHT: f64 = 180.0;

/// A plot of a row's value against an unknown.
fn drawn(study: &Study, plot: &Plot) -> String {
    use commonhold_report::svg::open;
    let title = format!("{}: {}", plot.id, plot.says);
    let description = format!("{} settings; value against {}", plot.points.len(), plot.unknown);
    let mut svg =
        open(&format!("plot-{}-{}", study.seed, plot.id), &title, &description, TOP + HEIGHT + 44.0);
    let scale_x = |value: f64| if plot.is_log { libm::log(value.max(f64::MIN_POSITIVE)) } else { value };
    let (band_low, band_high) = plot.tolerance.ends();
    let values = plot.points.iter().map(|(_, y, _)| *y).chain(band_low).chain(band_high);
    let (low, high) = span(values);
    let (left, right) = match plot.variants.len() {
        0 => span(plot.points.iter().map(|(x, _, _)| scale_x(*x))),
        #[expect(clippy::cast_precision_loss, reason = "a handful of variants")]
        variants => (-0.5, variants as f64 - 0.5),
    };
    let x = |value: f64| LEFT + (scale_x(value) - left) / (right - left) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + HEIGHT - (value - low) / (high - low) * HEIGHT;
    svg += &format!("<text x='0' y='14'>{}</text>\n", escape(&title_line(&title)));
    let (band_top, band_bottom) = (y(band_high.unwrap_or(high)), y(band_low.unwrap_or(low)));
    svg += &format!(
        "<rect class='band' x='{LEFT:.1}' y='{band_top:.1}' width='{:.1}' height='{:.1}'/>\n",
        WIDTH - LEFT - RIGHT,
        (band_bottom - band_top).max(1.0)
    );
    for at in [low, f64::midpoint(low, high), high] {
        svg += &format!(
            "<text class='small' x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>\n",
            LEFT - 6.0,
            y(at) + 4.0,
            digits(at)
        );
    }
    svg += &format!(
        "<path class='axis' d='M{LEFT:.1} {TOP:.1}V{:.1}H{:.1}' fill='none'/>\n",
        TOP + HEIGHT,
        WIDTH - RIGHT
    );
    for mark in marks(plot, left, right) {
        svg += &format!(
            "<text class='small' x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>\n",
            x(mark.0),
            TOP + HEIGHT + 18.0,
            escape(&mark.1)
        );
    }
    svg += &format!(
        "<text class='small' x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>\n",
        WIDTH - RIGHT,
        TOP + HEIGHT + 36.0,
        escape(&plot.unknown)
    );
    for threshold in &plot.thresholds {
        svg += &format!(
            "<line class='bound' x1='{0:.1}' y1='{TOP:.1}' x2='{0:.1}' y2='{1:.1}'/>\n\
             <text class='small' x='{0:.1}' y='{2:.1}' text-anchor='middle'>{3}</text>\n",
            x(*threshold),
            TOP + HEIGHT,
            TOP - 6.0,
            digits(*threshold)
        );
    }
    for (value, mean, is_kept) in &plot.points {
        let class = if *is_kept { "kept-point" } else { "point" };
        svg += &format!("<circle class='{class}' cx='{:.1}' cy='{:.1}' r='4'/>\n", x(*value), y(*mean));
    }
    svg + "</svg>\n"
}

/// A title that fits above a plot.
fn title_line(title: &str) -> String {
    commonhold_report::table::fit(title, 62)
}

/// The marks of a plot's lower axis: three values, or the variants.
fn marks(plot: &Plot, left: f64, right: f64) -> Vec<(f64, String)> {
    if plot.variants.is_empty() {
        let at = |value: f64| if plot.is_log { libm::exp(value) } else { value };
        return [left, f64::midpoint(left, right), right].map(|mark| (at(mark), digits(at(mark)))).to_vec();
    }
    (0u32..).zip(&plot.variants).map(|(index, name)| (f64::from(index), name.clone())).collect()
}

/// The smallest and the largest value, at least a little apart.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return (0.0, 1.0);
    }
    let margin = ((high - low) * 0.05).max(low.abs() * 0.01).max(1e-6);
    (low - margin, high + margin)
}
