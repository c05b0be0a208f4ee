//! A sweep: one scenario with several values of some of its keys, each with the same seeds. For each unit and
//! job, a table of means with confidence intervals, and plots.

use commonhold_report::figures::{count, duration};
use commonhold_report::html;
use commonhold_report::table::{Paint, Style, Table, escape, escape_lines, wrap};
use commonhold_sim::scenario::range;
use serde::{Deserialize, Serialize};

use crate::figures::{Estimate, Figure, RunFigures, Subject};
use crate::lines::{self, LINES_MAX, Line, Plot};

/// A swept key and its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The key with its file, such as `contract:unit.physics.tickets`.
    pub key: String,
    /// The values, as in the file but without quotes, in the order of the points.
    pub values: Vec<String>,
}

/// The space of a sweep: its points are all combinations of the keys' values. The last key varies fastest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Space {
    /// The swept keys.
    pub keys: Vec<Axis>,
}

impl Space {
    /// The number of points; `None` if it exceeds 64 bits.
    pub fn points(&self) -> Option<u64> {
        self.keys.iter().try_fold(1u64, |points, axis| points.checked_mul(axis.values.len() as u64))
    }

    /// The keys' values at a point.
    pub fn values(&self, point: u64) -> Vec<&str> {
        let mut rest = point;
        let mut values: Vec<&str> = Vec::new();
        for axis in self.keys.iter().rev() {
            let count = axis.values.len().max(1) as u64;
            let index = usize::try_from(rest % count).unwrap_or(0);
            values.push(axis.values.get(index).map_or("", String::as_str));
            rest /= count;
        }
        values.reverse();
        values
    }

    /// A point in words: `contract:unit.physics.tickets=50`.
    pub fn point_text(&self, point: u64) -> String {
        let pairs = self.keys.iter().zip(self.values(point));
        pairs.map(|(axis, value)| format!("{}={value}", axis.key)).collect::<Vec<_>>().join(" ")
    }

    fn names(&self) -> String {
        self.keys.iter().map(|axis| axis.key.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// The runs of a sweep.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// The scenario's name.
    pub scenario: String,
    /// The title of the simulated machine; may be empty.
    pub machine: String,
    /// The swept keys and values.
    pub space: Space,
    /// The first seed.
    pub seed: u64,
    /// The number of seeds of each point.
    pub seeds: u64,
    /// By point: the runs, in the order of their seeds.
    pub runs: Vec<Vec<RunFigures>>,
    /// What is missing, a line each; empty if the sweep is complete.
    pub missing: Vec<String>,
}

impl Sweep {
    /// Whether no run broke a check.
    pub fn sound(&self) -> bool {
        self.all().all(|run| run.broken == 0)
    }

    fn all(&self) -> impl Iterator<Item = &RunFigures> {
        self.runs.iter().flatten()
    }

    fn subjects(&self) -> Vec<Subject> {
        // Units and jobs hardly differ within a point.
        Subject::all(self.runs.iter().filter_map(|runs| runs.first()))
    }

    /// The subjects that have a figure to show, with these figures.
    fn shown(&self) -> Vec<(Subject, Vec<Figure>)> {
        let runs: Vec<&[RunFigures]> = self.runs.iter().map(Vec::as_slice).collect();
        let figures = |subject: Subject| {
            let figures = Figure::telling(&subject, &runs);
            (subject, figures)
        };
        self.subjects().into_iter().map(figures).filter(|(_, figures)| !figures.is_empty()).collect()
    }
}

/// The sweep for a terminal: a table per unit and per job.
pub fn text(sweep: &Sweep, style: Style) -> String {
    let mut out = heading(sweep) + "\n";
    for (subject, figures) in sweep.shown() {
        out += &style.paint(Paint::Strong, &title_of(sweep, &subject));
        out += "\n";
        out += &table(sweep, &subject, &figures).render_in_blocks(style);
        out += "\n";
    }
    for line in notes(sweep) {
        out += &wrap(&line, style.width, "", "").join("\n");
        out += "\n";
    }
    out
}

fn heading(sweep: &Sweep) -> String {
    let machine = if sweep.machine.is_empty() { String::new() } else { format!("{}, ", sweep.machine) };
    let points = count(sweep.runs.len(), "point");
    let incomplete = if sweep.missing.is_empty() { "" } else { ", incomplete" };
    format!("{}: {machine}{points}, {}{incomplete}\n", sweep.scenario, seeds(sweep.seed, sweep.seeds))
}

fn seeds(first: u64, seeds: u64) -> String {
    match seeds {
        1 => format!("seed {first}"),
        _ => format!("seeds {first} to {}", first.saturating_add(seeds - 1)),
    }
}

/// `analysis of physics, by contract:unit.physics.tickets`.
fn title_of(sweep: &Sweep, subject: &Subject) -> String {
    format!("{}, by {}", subject.title(), sweep.space.names())
}

fn table(sweep: &Sweep, subject: &Subject, figures: &[Figure]) -> Table {
    let heads: Vec<&'static str> =
        std::iter::once("point").chain(figures.iter().map(|figure| figure.head)).collect();
    let mut table = Table::new(&heads);
    for (runs, point) in sweep.runs.iter().zip(0..) {
        let mut cells = vec![sweep.space.values(point).join(", ")];
        cells.extend(figures.iter().map(|figure| figure.text(&figure.values(subject, runs))));
        table.row(Paint::Plain, cells);
    }
    table
}

const HOW_TO_READ: &str = "Means over the seeds. ±: half of the 95 % confidence interval, left out where all seeds agree. \
                           kept: the part of the runs in which the contract was kept for the unit at all times, of those for \
                           which this can be told. A job has a response time if all its copies ended in all runs.";

/// The lines below the tables.
fn notes(sweep: &Sweep) -> Vec<String> {
    let sum = |figure: fn(&RunFigures) -> u64| sweep.all().map(figure).sum::<u64>();
    let mut notes = vec![
        HOW_TO_READ.to_owned(),
        format!(
            "{}, {} events; {} checks, {} broken",
            count(sweep.all().count(), "run"),
            sum(|run| run.events),
            sum(|run| run.checks),
            sum(|run| run.broken)
        ),
    ];
    let cut_off: Vec<&RunFigures> = sweep.all().filter(|run| run.cut_off).collect();
    if let Some(latest) = cut_off.iter().map(|run| run.ended_ns).max() {
        let runs = count(cut_off.len(), "run");
        notes.push(format!("cut off at the horizon, {}: {runs}; jobs were not finished", duration(latest)));
    }
    for (runs, point) in sweep.runs.iter().zip(0..) {
        for run in runs.iter().filter(|run| run.broken > 0 || !run.stuck.is_empty()).take(1) {
            let what = if run.broken > 0 { "broke a check" } else { "is stuck" };
            notes.push(format!("a run {what}: {}, seed {}", sweep.space.point_text(point), run.seed));
        }
    }
    notes.extend(sweep.missing.iter().cloned());
    notes
}

#[derive(Serialize)]
struct SweepJson<'a> {
    scenario: &'a str,
    machine: &'a str,
    keys: &'a [Axis],
    seed: u64,
    seeds: u64,
    missing: &'a [String],
    points: Vec<PointJson<'a>>,
}

#[derive(Serialize)]
struct PointJson<'a> {
    values: Vec<&'a str>,
    runs: usize,
    figures: Vec<FigureJson>,
}

/// A figure of a unit or job over some runs.
#[derive(Serialize)]
pub(crate) struct FigureJson {
    unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    figure: &'static str,
    /// The runs that have it.
    runs: usize,
    mean: Option<f64>,
    /// The ends of the mean's 95 % confidence interval.
    low_95: Option<f64>,
    high_95: Option<f64>,
}

impl FigureJson {
    pub(crate) fn of(figure: Figure, subject: &Subject, values: &[f64]) -> FigureJson {
        let estimate = figure.estimate(values);
        let (low_95, high_95) = estimate.and_then(|estimate| estimate.interval).unzip();
        FigureJson {
            unit: subject.unit.clone(),
            job: subject.job.clone(),
            figure: figure.name,
            runs: values.len(),
            mean: estimate.map(|estimate| estimate.mean),
            low_95,
            high_95,
        }
    }

    /// The values of CSV, from the unit on.
    pub(crate) fn csv(&self) -> String {
        let numbers = [self.mean, self.low_95, self.high_95].map(csv_number).join(",");
        let job = self.job.as_deref().unwrap_or_default();
        format!("{},{job},{},{},{numbers}", self.unit, self.figure, self.runs)
    }
}

/// A number as a cell of CSV, empty if there is none.
pub(crate) fn csv_number(number: Option<f64>) -> String {
    number.map(|number| format!("{number:.3}")).unwrap_or_default()
}

fn figures_at<'a>(subjects: &'a [Subject], runs: &'a [RunFigures]) -> impl Iterator<Item = FigureJson> + 'a {
    subjects.iter().flat_map(move |subject| {
        subject.figures().iter().map(|figure| FigureJson::of(*figure, subject, &figure.values(subject, runs)))
    })
}

/// The sweep as JSON: the means of every point, with 95 % confidence intervals.
pub fn json(sweep: &Sweep) -> String {
    let subjects = sweep.subjects();
    let point = |(runs, point): (&Vec<RunFigures>, u64)| PointJson {
        values: sweep.space.values(point),
        runs: runs.len(),
        figures: figures_at(&subjects, runs).collect(),
    };
    let points = sweep.runs.iter().zip(0..).map(point);
    commonhold_report::json(
        "commonhold.sweep",
        SweepJson {
            scenario: &sweep.scenario,
            machine: &sweep.machine,
            keys: &sweep.space.keys,
            seed: sweep.seed,
            seeds: sweep.seeds,
            missing: &sweep.missing,
            points: points.collect(),
        },
    )
}

/// A line per point, unit or job, and figure, under a line of names: first the point's value of each key.
pub fn csv(sweep: &Sweep) -> String {
    let keys: String = sweep.space.keys.iter().map(|axis| csv_cell(&axis.key) + ",").collect();
    let mut out = format!("{keys}unit,job,figure,runs,mean,low_95,high_95\n");
    let subjects = sweep.subjects();
    for (runs, point) in sweep.runs.iter().zip(0..) {
        let values: String = sweep.space.values(point).iter().map(|value| csv_cell(value) + ",").collect();
        for figure in figures_at(&subjects, runs) {
            out += &format!("{values}{}\n", figure.csv());
        }
    }
    out
}

/// A text as a cell of CSV, in quotes if it needs them.
pub(crate) fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// The sweep as a page: plots and tables.
pub fn html(sweep: &Sweep) -> String {
    let mut page = html::open(&format!("{} by {}", sweep.scenario, sweep.space.names()), lines::STYLE);
    page += &format!("<p>{}</p>\n", escape_lines(&heading(sweep)));
    for (subject, figures) in sweep.shown() {
        page += &format!("<h2>{}</h2>\n", escape(&subject.title()));
        for (figure, number) in figures.iter().copied().zip(0usize..) {
            page += &plot(sweep, &subject, figure, number);
        }
        page += &format!("<p class=\"soft\">By {}:</p>\n", escape(&sweep.space.names()));
        page += &table(sweep, &subject, &figures).html();
    }
    page += &format!("<p>{}</p>\n", escape_lines(&notes(sweep).join("\n")));
    page + html::CLOSE
}

fn plot(sweep: &Sweep, subject: &Subject, figure: Figure, number: usize) -> String {
    let Some((across, others)) = sweep.space.keys.split_first() else { return String::new() };
    let numbers: Option<Vec<u64>> = across.values.iter().map(|value| range::number(value)).collect();
    #[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
    let place = |index: usize| numbers.as_ref().map_or(index as f64, |numbers| numbers[index] as f64);
    let ticks = across.values.iter().enumerate().map(|(index, value)| (place(index), value.clone()));
    let combinations = Space { keys: others.to_vec() };
    let all = usize::try_from(combinations.points().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let line = |combination: usize| {
        let points = (0..across.values.len()).filter_map(|index| {
            let runs = sweep.runs.get(index * all + combination)?;
            let estimate = figure.estimate(&figure.values(subject, runs))?;
            Some((place(index), estimate))
        });
        let mut points: Vec<(f64, Estimate)> = points.collect();
        points.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        Line { label: combinations.point_text(combination as u64), points }
    };
    let title = format!("{}: {}", subject.title(), figure.title);
    let drawn = lines::draw(&Plot {
        id: &format!("plot-{}-{number}", subject.title().replace(' ', "-")),
        title: &title,
        across: &across.key,
        ticks: ticks.collect(),
        lines: (0..all.min(LINES_MAX)).map(line).collect(),
        show: figure.show,
        is_bytes: figure.is_bytes(),
    });
    let more = match all.saturating_sub(LINES_MAX) {
        0 => String::new(),
        more => format!(" {more} more combinations are in the table alone."),
    };
    format!(
        "<h3>{}</h3>\n<figure>\n{drawn}<figcaption>Means over the seeds, with 95 % confidence intervals.{more}</figcaption>\n\
         </figure>\n",
        escape(&title)
    )
}
