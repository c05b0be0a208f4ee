//! The claims of the published papers against the simulator's results, as text, JSON and HTML.

use commonhold_report::figures::{NOTHING, count};
use commonhold_report::html;
use commonhold_report::svg::{self, BarChart, ChartBar};
use commonhold_report::table::{Paint, Style, Table, escape, html_cell, wrap};
use serde::Serialize;

use crate::intervals;
use crate::studies::{self, Study};

/// The selected claims with their results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Claims {
    /// The random seeds of the runs.
    pub seeds: Vec<u64>,
    /// The claims, in the order of the papers.
    pub rows: Vec<Claim>,
    /// The papers' figures, with measured values beside the published ones.
    pub charts: Vec<Chart>,
    /// The fits of the documents' unknowns; empty if they were not asked for.
    pub studies: Vec<Study>,
    /// The command line that repeats the measurement.
    pub command: String,
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Claim {
    /// Its identifier, such as `PI-F4-1`.
    pub id: String,
    /// The document's number; empty for a question of this project.
    pub seed: String,
    /// Section, figure or table of the paper.
    pub place: String,
    /// The statement, in this project's words.
    pub says: String,
    /// The value as printed; empty if the paper prints none.
    pub expected: String,
    /// The accepted range of the measured value.
    pub tolerance: Tolerance,
    /// The extent to which the result is evidence.
    pub basis: Basis,
    /// The unit of the measured value.
    pub unit: Unit,
    /// A caveat for the reader; may be empty.
    pub note: String,
    /// The experiments behind the value.
    pub runs: Vec<String>,
    /// The measured value, if the claim is measured.
    pub measured: Option<Measured>,
    /// Whether the value meets the tolerance.
    pub verdict: Verdict,
}

/// The extent to which a claim's result is evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// A definition or a setting, which a test checks.
    Parameter,
    /// A parameter of the model was fitted to the claim, so the result is no evidence.
    Calibrated,
    /// No parameter was fitted to the claim.
    Predicted,
    /// The claim follows from other claims by arithmetic.
    Derived,
    /// The paper's value is not known.
    Lost,
    /// The simulator does not model the subject of the claim.
    Outside,
    /// A question of this project, not of a paper.
    Beyond,
}

impl Basis {
    /// The name of the basis in reports.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Parameter => "parameter",
            Basis::Calibrated => "calibrated",
            Basis::Predicted => "predicted",
            Basis::Derived => "derived",
            Basis::Lost => "lost",
            Basis::Outside => "outside",
            Basis::Beyond => "beyond",
        }
    }
}

/// The unit of a measured value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// One figure divided by another.
    Ratio,
    /// Seconds.
    Seconds,
    /// Thousandths of a second.
    Milliseconds,
    /// Millionths of a second.
    Microseconds,
    /// Requests to a disk.
    Requests,
}

impl Unit {
    /// The text after the number: the unit's symbol.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Unit::Ratio | Unit::Requests => "",
            Unit::Seconds => " s",
            Unit::Milliseconds => " ms",
            Unit::Microseconds => " us",
        }
    }
}

/// A number with about three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The accepted range of a measured value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Tolerance {
    /// No range: the value is only reported.
    None,
    /// The mean must lie in this range, ends included.
    Between {
        /// The smallest accepted mean.
        low: f64,
        /// The largest accepted mean.
        high: f64,
    },
    /// The mean must be at least this.
    AtLeast {
        /// The smallest.
        low: f64,
    },
    /// The mean must be at most this.
    AtMost {
        /// The largest.
        high: f64,
    },
    /// Every seed's value must be at most this.
    AlwaysAtMost {
        /// The largest.
        high: f64,
    },
    /// A sign: the 90 % confidence interval must lie above the bound.
    Above {
        /// The bound.
        bound: f64,
    },
    /// A sign: the 90 % confidence interval must lie below the bound.
    Below {
        /// The bound.
        bound: f64,
    },
}

impl Tolerance {
    /// `1.48..1.64`, `>1.00 sure`.
    pub(crate) fn text(self) -> String {
        match self {
            Tolerance::None => NOTHING.to_owned(),
            Tolerance::Between { low, high } => format!("{}..{}", digits(low), digits(high)),
            Tolerance::AtLeast { low } => format!(">={}", digits(low)),
            Tolerance::AtMost { high } => format!("<={}", digits(high)),
            Tolerance::AlwaysAtMost { high } => format!("all <={}", digits(high)),
            Tolerance::Above { bound } => format!("sign >{}", digits(bound)),
            Tolerance::Below { bound } => format!("sign <{}", digits(bound)),
        }
    }
}

impl Tolerance {
    /// The lower and the upper end; `None` where there is none.
    pub(crate) fn ends(self) -> (Option<f64>, Option<f64>) {
        match self {
            Tolerance::None => (None, None),
            Tolerance::Between { low, high } => (Some(low), Some(high)),
            Tolerance::AtLeast { low } | Tolerance::Above { bound: low } => (Some(low), None),
            Tolerance::AtMost { high }
            | Tolerance::AlwaysAtMost { high }
            | Tolerance::Below { bound: high } => (None, Some(high)),
        }
    }
}

/// A value with its uncertainty over the seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The mean over the seeds.
    pub mean: f64,
    /// Half-width of the 95 % confidence interval; `None` with one seed.
    pub half_95: Option<f64>,
    /// Half-width of the 90 % confidence interval.
    pub half_90: Option<f64>,
    /// The value of each seed.
    pub by_seed: Vec<f64>,
}

impl Measured {
    /// Whether several seeds gave the same value.
    pub fn is_constant(&self) -> bool {
        self.by_seed.len() > 1 && self.by_seed.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq())
    }

    /// The mean with a half-width of its confidence interval: `1.53 ±0.02`; `1.53 const` if the value is the
    /// same with every seed, so that its confidence interval says nothing.
    pub(crate) fn text(&self, half: Option<f64>, unit: Unit) -> String {
        let half = match half {
            Some(_) if self.is_constant() => " const".to_owned(),
            Some(half) => format!(" ±{}", digits(half)),
            None => String::new(),
        };
        format!("{}{half}{}", digits(self.mean), unit.suffix())
    }
}

/// The result of testing a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "word", rename_all = "kebab-case")]
pub enum Verdict {
    /// A definition, checked by these tests, each as `file: function`.
    Parameter {
        /// The tests; empty if no test checks the definition yet.
        held_by: Vec<String>,
    },
    /// The value is within the tolerance.
    Hit,
    /// The whole 90 % confidence interval is on the right side of the bound.
    SignHolds,
    /// The value is outside the tolerance.
    Miss,
    /// The claim has no tolerance.
    Reported,
    /// The claim has no measured value.
    NotMeasured {
        /// The reason.
        reason: String,
    },
    /// A run behind the value broke a check of the simulator.
    Void {
        /// The run, and the check that it broke.
        reason: String,
    },
}

impl Verdict {
    /// Whether the claim is met. A void claim is not met; `None` if there is nothing to compare.
    pub fn met(&self) -> Option<bool> {
        match self {
            Verdict::Hit | Verdict::SignHolds => Some(true),
            Verdict::Miss | Verdict::Void { .. } => Some(false),
            Verdict::Parameter { .. } | Verdict::Reported | Verdict::NotMeasured { .. } => None,
        }
    }

    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Parameter { held_by } if held_by.is_empty() => "untested",
            Verdict::Parameter { .. } => "held",
            Verdict::Hit => "hit",
            Verdict::SignHolds => "sign holds",
            Verdict::Miss => "MISS",
            Verdict::Reported => "reported",
            Verdict::NotMeasured { .. } => "not measured",
            Verdict::Void { .. } => "VOID",
        }
    }
}

/// A figure of a paper.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// Unique: `figure-4`.
    pub id: String,
    /// The caption.
    pub title: String,
    /// The bar of height 1: `smp = 100`.
    pub reference: String,
    /// In the order of the paper's figure.
    pub bars: Vec<Bar>,
}

/// A bar of a figure, as a ratio to the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bar {
    /// Thirty characters at most.
    pub label: String,
    /// The scheme whose colour it has; `measured` if the figure does not compare schemes.
    pub class: String,
    /// The published value; `None` if it is not printed.
    pub paper: Option<f64>,
    /// The measured value.
    pub measured: Option<Measured>,
}

/// Counts of the claims of one basis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// The basis.
    pub basis: Basis,
    /// All claims on this basis.
    pub rows: usize,
    /// Claims with a verdict, met or not; see [`Verdict::met`].
    pub decided: usize,
    /// Claims that are met; for parameters, claims that a test checks.
    pub met: usize,
}

/// A tally for each basis that occurs.
pub fn tallies(claims: &Claims) -> Vec<Tally> {
    const ALL: [Basis; 7] = [
        Basis::Predicted,
        Basis::Calibrated,
        Basis::Derived,
        Basis::Beyond,
        Basis::Parameter,
        Basis::Lost,
        Basis::Outside,
    ];
    let tally = |basis| {
        let rows = || claims.rows.iter().filter(move |row| row.basis == basis);
        let held =
            |row: &&Claim| matches!(&row.verdict, Verdict::Parameter { held_by } if !held_by.is_empty());
        let met = rows().filter(|row| row.verdict.met() == Some(true)).count() + rows().filter(held).count();
        let decided = rows().filter(|row| row.verdict.met().is_some()).count();
        Tally { basis, rows: rows().count(), decided, met }
    };
    ALL.into_iter().map(tally).filter(|tally| tally.rows > 0).collect()
}

impl Tally {
    /// `predicted: 3 of 4 within tolerance, 1 without a verdict`.
    fn text(&self) -> String {
        let Tally { basis, rows, decided, met } = *self;
        let name = basis.name();
        match basis {
            Basis::Parameter => format!("{name}: {met} of {rows} held by tests"),
            Basis::Lost | Basis::Outside => format!("{name}: {rows}"),
            _ => {
                let open = if rows > decided {
                    format!(", {} without a verdict", rows - decided)
                } else {
                    String::new()
                };
                format!("{name}: {met} of {decided} within tolerance{open}")
            }
        }
    }
}

/// The line below a row: the statement that was missed or is untested, or why there is no value.
fn remark(claim: &Claim) -> Option<String> {
    match &claim.verdict {
        Verdict::Miss => Some(sentence(claim)),
        Verdict::NotMeasured { reason } => Some(reason.clone()),
        Verdict::Void { reason } => Some(format!("void: {reason}")),
        Verdict::Parameter { held_by } if held_by.is_empty() => {
            Some(format!("no test holds this: {}", claim.says))
        }
        _ => None,
    }
}

/// The statement with its note.
fn sentence(claim: &Claim) -> String {
    if claim.note.is_empty() { claim.says.clone() } else { format!("{} ({})", claim.says, claim.note) }
}

/// The column that narrow terminals leave out.
const PLACE: usize = 1;
const HEADS: [&str; 7] = ["claim", "place", "expected", "measured", "tolerance", "basis", "verdict"];

/// The cells of a row, in the order of [`HEADS`].
fn cells(claim: &Claim) -> [String; 7] {
    let or_nothing = |text: &str| if text.is_empty() { NOTHING.to_owned() } else { text.to_owned() };
    [
        claim.id.clone(),
        claim.place.clone(),
        or_nothing(&claim.expected),
        claim
            .measured
            .as_ref()
            .map_or_else(|| NOTHING.to_owned(), |measured| measured.text(measured.half_95, claim.unit)),
        claim.tolerance.text(),
        claim.basis.name().to_owned(),
        claim.verdict.name().to_owned(),
    ]
}

/// Width of the whole table, in characters. A narrower table leaves out the column of places in the papers.
pub const COLUMNS: usize = 108;

/// The claims for a terminal.
pub fn text(claims: &Claims, style: Style) -> String {
    let narrow = style.width < COLUMNS;
    let shown = |cells: [String; 7]| -> Vec<String> {
        let kept = cells.into_iter().enumerate().filter(|(column, _)| !(narrow && *column == PLACE));
        kept.map(|(_, cell)| cell).collect()
    };
    let heads: Vec<&'static str> = HEADS
        .iter()
        .enumerate()
        .filter(|(column, _)| !(narrow && *column == PLACE))
        .map(|(_, head)| *head)
        .collect();
    let mut table = Table::new(&heads);
    for claim in &claims.rows {
        let paint = match claim.verdict.met() {
            Some(false) => Paint::Bad,
            Some(true) | None => Paint::Plain,
        };
        table.row(paint, shown(cells(claim)));
        if let Some(remark) = remark(claim) {
            for line in wrap(&remark, style.width, "    ", "    ") {
                table.line(Paint::Faint, line);
            }
        }
    }
    let mut text = table.render(style);
    text.push('\n');
    for tally in tallies(claims) {
        text += &format!("{}\n", tally.text());
    }
    text += &format!(
        "{}; ± is half of the 95 % confidence interval; const: the same with every seed\n",
        count(claims.seeds.len(), "seed")
    );
    if claims.studies.is_empty() { text } else { text + &studies::text(&claims.studies, style) }
}

#[derive(Serialize)]
struct ClaimsJson<'a> {
    tallies: Vec<Tally>,
    #[serde(flatten)]
    claims: &'a Claims,
}

/// The claims as JSON. Values are in the row's unit; `half_…` are half-widths of confidence intervals; a
/// value that was not measured is null.
pub fn json(claims: &Claims) -> String {
    commonhold_report::json("commonhold.claims", ClaimsJson { tallies: tallies(claims), claims })
}

/// The claims as a self-contained HTML page, without scripts.
pub fn html(claims: &Claims) -> String {
    const STYLE: &str = "td.kept { color: var(--good); }\ntd.broken { color: var(--bad); font-weight: 600; }\n\
         svg .band { fill: var(--good); opacity: 0.15; }\nsvg .point { fill: none; stroke: var(--ink); }\n\
         svg .kept-point { fill: var(--ink); }\nsvg .measured { fill: var(--use); }\n";
    const TITLE: &str = "Published results and simulated results";
    let mut page = html::open(TITLE, &format!("{STYLE}{}", intervals::STYLE));
    page += "<ul class=\"promises\">\n";
    for tally in tallies(claims) {
        let class = match tally.basis {
            Basis::Predicted | Basis::Beyond if tally.met == tally.decided => "kept",
            Basis::Predicted | Basis::Beyond => "broken",
            _ => "unknown",
        };
        page += &format!("<li class=\"{class}\">{}</li>\n", escape(&tally.text()));
    }
    page += "</ul>\n";
    page += &intervals::html(claims);
    if !claims.charts.is_empty() {
        page += "<h2>Figures</h2>\n";
        page += "<p class=\"soft\">Grey bars are the paper's, where it prints their numbers; whiskers are 95 % confidence \
                 intervals. In the figures of seed 000, colours are schemes: orange smp, violet quota, blue isolate; in its \
                 tables 4 and 5, violet is isolation only, blue position and isolation.</p>\n";
    }
    for chart in &claims.charts {
        page += &figure(chart);
    }
    page += &claims_table(claims);
    page += &studies::html(&claims.studies);
    page += HOW_TO_READ;
    page += &format!("<h2>Repeat it</h2>\n<pre>{}</pre>\n", escape(&claims.command));
    page + html::CLOSE
}

fn figure(chart: &Chart) -> String {
    let bars: Vec<ChartBar> = chart.bars.iter().flat_map(chart_bars).collect();
    let description: Vec<String> = chart.bars.iter().map(describe).collect();
    let drawn = svg::bars(&BarChart {
        id: &chart.id,
        title: &chart.title,
        description: &description.join("; "),
        bars,
        bound: (1.0, chart.reference.clone()),
        unit: "in % of the dashed line",
    });
    format!("<h3>{}</h3>\n<figure>\n{drawn}</figure>\n", escape(&chart.title))
}

/// The published bar, if there is one, and the measured bar.
fn chart_bars(bar: &Bar) -> Vec<ChartBar<'_>> {
    let paper = bar.paper.map(|value| ChartBar {
        label: &bar.label,
        class: "alone",
        value: Some(value),
        range: None,
        figure: format!("paper {}", percent(value)),
    });
    let measured = bar.measured.as_ref();
    let ours = ChartBar {
        label: if paper.is_some() { "" } else { &bar.label },
        class: &bar.class,
        value: measured.map(|measured| measured.mean),
        range: measured.and_then(|measured| {
            measured.half_95.map(|half| ((measured.mean - half).max(0.0), measured.mean + half))
        }),
        figure: format!("{} {}", bar.class, measured.map_or(NOTHING.to_owned(), |m| percent(m.mean))),
    };
    paper.into_iter().chain([ours]).collect()
}

fn describe(bar: &Bar) -> String {
    let paper = bar.paper.map_or_else(String::new, |value| format!(", paper {}", percent(value)));
    let ours = bar.measured.as_ref().map_or_else(|| "not measured".to_owned(), |m| percent(m.mean));
    format!("{} {}: {ours}{paper}", bar.label, bar.class)
}

/// A ratio as per cent of the reference.
fn percent(ratio: f64) -> String {
    format!("{:.0}", ratio * 100.0)
}

fn claims_table(claims: &Claims) -> String {
    let mut table = String::from("<h2>The claims</h2>\n<div class=\"wide\">\n<table>\n");
    let heads: String = HEADS.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    table += &format!("<thead><tr>{heads}</tr></thead>\n<tbody>\n");
    for claim in &claims.rows {
        let cells = cells(claim);
        let class = match claim.verdict.met() {
            Some(true) => " class=\"kept\"",
            Some(false) => " class=\"broken\"",
            None => "",
        };
        let figures = HEADS.iter().zip(&cells).take(6).skip(1);
        let figures: String = figures.map(|(head, cell)| html_cell(head, cell)).collect();
        let verdict = format!("<td{class} data-head=\"{}\">{}</td>", HEADS[6], escape(&cells[6]));
        table += &format!("<tr><th scope=\"row\">{}</th>{figures}{verdict}</tr>\n", escape(&cells[0]));
        table += &format!("<tr><td class=\"waits\" colspan=\"7\">{}</td></tr>\n", escape(&explained(claim)));
    }
    table + "</tbody>\n</table>\n</div>\n"
}

/// The statement, and why there is no value or which tests hold it.
fn explained(claim: &Claim) -> String {
    let more = match &claim.verdict {
        Verdict::NotMeasured { reason } if *reason != claim.note => reason.clone(),
        Verdict::Void { reason } => format!("void: {reason}"),
        Verdict::Parameter { held_by } if held_by.is_empty() => "no test holds this".to_owned(),
        Verdict::Parameter { held_by } => held_by.join(", "),
        _ => return sentence(claim),
    };
    format!("{}. {more}", sentence(claim))
}

const HOW_TO_READ: &str = "<h2>How to read it</h2>
<p>A number is met (hit) where the mean over the seeds lies within its tolerance. A sign holds where the whole 90 % \
confidence interval lies on the right side of its bound; a value marked `const` is the same with every seed, so its sign \
is not a matter of confidence. A row is void if one of its runs failed a check. \
A ratio is taken within one seed, so that both runs have the same luck.</p>
<dl class=\"facts\">
<dt>predicted</dt><dd>No parameter was fitted to it. Its tolerance was fixed before the first run.</dd>
<dt>calibrated</dt><dd>A parameter of the model was fitted to it. It is shown, and is no evidence.</dd>
<dt>derived</dt><dd>It follows from printed numbers by arithmetic.</dd>
<dt>parameter</dt><dd>A definition or a setting; a test holds it.</dd>
<dt>lost</dt><dd>A figure whose numbers are not known.</dd>
<dt>outside</dt><dd>The simulator does not model it.</dd>
<dt>beyond</dt><dd>A question of this project, not of the paper.</dd>
</dl>
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        for (value, text) in
            [(0.649, "0.65"), (9.99, "9.99"), (9.995, "10.0"), (99.94, "99.9"), (1050.0, "1050")]
        {
            assert_eq!(digits(value), text);
        }
        let measured = Measured { mean: 23.44, half_95: Some(0.5), half_90: None, by_seed: Vec::new() };
        assert_eq!(measured.text(measured.half_95, Unit::Milliseconds), "23.4 ±0.50 ms");
    }

    #[test]
    fn a_void_claim_is_not_met() {
        assert_eq!(Verdict::Void { reason: String::new() }.met(), Some(false));
        assert_eq!(Verdict::NotMeasured { reason: String::new() }.met(), None);
    }
}
