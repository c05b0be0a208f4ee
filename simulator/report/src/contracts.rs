//! The same machine, workload and seeds under several contracts, side by side: each figure under each
//! contract, and its difference from the first.
//!
//! A difference is taken within each seed, so that both runs have the same luck; its confidence interval is
//! that of the mean difference.

use commonhold_report::figures::count;
use commonhold_report::html;
use commonhold_report::svg::{self, BarChart, ChartBar};
use commonhold_report::table::{Paint, Style, Table, escape, escape_lines, wrap};
use serde::Serialize;

use crate::estimate::summarise;
use crate::figures::{Figure, RunFigures, Subject};
use crate::sweep::{FigureJson, csv_cell, csv_number};

/// The most contracts of a comparison.
pub const CONTRACTS_MAX: usize = LETTERS.len();

const LETTERS: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];
/// The headings: the first contract's column, and two for each further contract.
const HEADS: [&str; 16] = [
    "", "A", "B", "B - A", "C", "C - A", "D", "D - A", "E", "E - A", "F", "F - A", "G", "G - A", "H", "H - A",
];

/// Runs under several contracts.
#[derive(Debug, Clone)]
pub struct Contracts {
    /// The scenario's name.
    pub scenario: String,
    /// The title of the machine; may be empty.
    pub machine: String,
    /// The contracts, from 2 to [`CONTRACTS_MAX`]; the first is the one that the others are compared with.
    pub contracts: Vec<UnderContract>,
}

/// The runs under one contract.
#[derive(Debug, Clone)]
pub struct UnderContract {
    /// The contract's name, such as the path of its file.
    pub name: String,
    /// One run per seed. Runs of different contracts with the same seed are compared.
    pub runs: Vec<RunFigures>,
}

impl Contracts {
    /// Whether no run broke a check.
    pub fn sound(&self) -> bool {
        self.all().all(|run| run.broken == 0)
    }

    fn all(&self) -> impl Iterator<Item = &RunFigures> {
        self.contracts.iter().flat_map(|under| &under.runs)
    }

    fn subjects(&self) -> Vec<Subject> {
        Subject::all(self.contracts.iter().filter_map(|under| under.runs.first()))
    }

    /// The subjects that have a figure to show, with these figures.
    fn shown(&self) -> Vec<(Subject, Vec<Figure>)> {
        let runs: Vec<&[RunFigures]> = self.contracts.iter().map(|under| under.runs.as_slice()).collect();
        let figures = |subject: Subject| {
            let figures = Figure::telling(&subject, &runs);
            (subject, figures)
        };
        self.subjects().into_iter().map(figures).filter(|(_, figures)| !figures.is_empty()).collect()
    }

    /// The differences of a figure from the first contract, one per seed that both have; empty if one of the
    /// contracts has no mean of the figure ([`Figure::values`]).
    fn differences(&self, figure: Figure, subject: &Subject, under: &UnderContract) -> Vec<f64> {
        let Some(first) = self.contracts.first() else { return Vec::new() };
        if [first, under].iter().any(|under| figure.values(subject, &under.runs).is_empty()) {
            return Vec::new();
        }
        let difference = |run: &RunFigures| {
            let other = first.runs.iter().find(|other| other.seed == run.seed)?;
            Some(figure.of(subject, run)? - figure.of(subject, other)?)
        };
        under.runs.iter().filter_map(difference).collect()
    }
}

/// The comparison for a terminal: one table.
pub fn text(contracts: &Contracts, style: Style) -> String {
    let mut out = heading(contracts) + "\n" + &table(contracts).render_in_blocks(style) + "\n";
    for line in notes(contracts) {
        out += &wrap(&line, style.width, "", "").join("\n");
        out += "\n";
    }
    out
}

fn heading(contracts: &Contracts) -> String {
    let machine =
        if contracts.machine.is_empty() { String::new() } else { format!("{}, ", contracts.machine) };
    let seeds: Vec<u64> =
        contracts.contracts.first().into_iter().flat_map(|first| &first.runs).map(|run| run.seed).collect();
    let seeds = match seeds.as_slice() {
        [] => "no runs".to_owned(),
        [one] => format!("seed {one}"),
        [first, .., last] => format!("seeds {first} to {last}"),
    };
    let mut heading = format!("{}: {machine}{seeds}\n", contracts.scenario);
    for (letter, under) in LETTERS.iter().zip(&contracts.contracts) {
        heading += &format!("{letter}: {}\n", under.name);
    }
    heading
}

fn table(contracts: &Contracts) -> Table {
    let columns = contracts.contracts.len().min(CONTRACTS_MAX) * 2;
    let mut table = Table::new(&HEADS[..columns]);
    for (subject, figures) in contracts.shown() {
        let mut head = vec![subject.title()];
        head.resize_with(columns, String::new);
        table.row(Paint::Strong, head);
        for figure in figures {
            let mut row = vec![format!("  {}", figure.head)];
            for (under, number) in contracts.contracts.iter().zip(0..CONTRACTS_MAX) {
                row.push(figure.text(&figure.values(&subject, &under.runs)));
                if number > 0 {
                    row.push(figure.difference_text(&contracts.differences(figure, &subject, under)));
                }
            }
            table.row(Paint::Plain, row);
        }
    }
    table
}

fn notes(contracts: &Contracts) -> Vec<String> {
    let sum = |figure: fn(&RunFigures) -> u64| contracts.all().map(figure).sum::<u64>();
    let mut notes = vec![
        HOW_TO_READ.to_owned(),
        format!(
            "{}, {} events; {} checks, {} broken",
            count(contracts.all().count(), "run"),
            sum(|run| run.events),
            sum(|run| run.checks),
            sum(|run| run.broken)
        ),
    ];
    for (letter, under) in LETTERS.iter().zip(&contracts.contracts) {
        let cut_off = under.runs.iter().filter(|run| run.cut_off).count();
        if cut_off > 0 {
            notes.push(format!(
                "cut off at the horizon under {letter}: {}; jobs were not finished",
                count(cut_off, "run")
            ));
        }
        for run in under.runs.iter().filter(|run| run.broken > 0).take(1) {
            notes.push(format!("a run broke a check: {letter}, seed {}", run.seed));
        }
    }
    notes
}

const HOW_TO_READ: &str = "±: half of the 95 % confidence interval over the seeds, left out where all seeds agree. =: no \
                           difference with any seed. kept: the part of the runs in which the contract was kept for the unit \
                           at all times, of those for which this can be told. A job has a response time if all its copies \
                           ended in all runs.";

#[derive(Serialize)]
struct ContractsJson<'a> {
    scenario: &'a str,
    machine: &'a str,
    contracts: Vec<ContractJson<'a>>,
}

#[derive(Serialize)]
struct ContractJson<'a> {
    contract: &'a str,
    figures: Vec<ComparedJson>,
    runs: &'a [RunFigures],
}

#[derive(Serialize)]
struct ComparedJson {
    #[serde(flatten)]
    figure: FigureJson,
    /// From the first contract; `None` for the first.
    difference: Option<f64>,
    difference_half_95: Option<f64>,
}

impl Contracts {
    /// All figures under the contract with that index.
    fn compared(&self, index: usize, under: &UnderContract) -> Vec<ComparedJson> {
        let mut all = Vec::new();
        for subject in self.subjects() {
            for figure in subject.figures() {
                let differences = self.differences(*figure, &subject, under);
                let measured = summarise(&differences).filter(|_| index > 0);
                all.push(ComparedJson {
                    figure: FigureJson::of(*figure, &subject, &figure.values(&subject, &under.runs)),
                    difference: measured.as_ref().map(|measured| measured.mean),
                    difference_half_95: measured.and_then(|measured| measured.half_95),
                });
            }
        }
        all
    }
}

/// The comparison as JSON: means and differences, with 95 % confidence intervals, and the figures of every
/// run.
pub fn json(contracts: &Contracts) -> String {
    let columns = contracts.contracts.iter().zip(0..).map(|(under, index)| ContractJson {
        contract: &under.name,
        figures: contracts.compared(index, under),
        runs: &under.runs,
    });
    let content = ContractsJson {
        scenario: &contracts.scenario,
        machine: &contracts.machine,
        contracts: columns.collect(),
    };
    commonhold_report::json("commonhold.contracts", content)
}

/// A line per contract, unit or job, and figure, under a line of names.
pub fn csv(contracts: &Contracts) -> String {
    let mut out =
        "contract,unit,job,figure,runs,mean,low_95,high_95,difference,difference_half_95\n".to_owned();
    for (index, under) in contracts.contracts.iter().enumerate() {
        for compared in contracts.compared(index, under) {
            let difference = [compared.difference, compared.difference_half_95].map(csv_number).join(",");
            out += &format!("{},{},{difference}\n", csv_cell(&under.name), compared.figure.csv());
        }
    }
    out
}

/// The comparison as a page: a chart of each job's response times, and the table.
pub fn html(contracts: &Contracts) -> String {
    let mut page = html::open(&format!("{} under several contracts", contracts.scenario), "");
    page += &format!("<p>{}</p>\n<h2>Response times</h2>\n", escape_lines(heading(contracts).trim_end()));
    for (subject, figures) in contracts.shown().iter().filter(|(subject, _)| subject.job.is_some()) {
        if let Some(response) = figures.first() {
            page += &chart(contracts, subject, *response);
        }
    }
    page += &format!("<h2>Figures</h2>\n{}", table(contracts).html());
    page += &format!("<p>{}</p>\n", escape_lines(&notes(contracts).join("\n")));
    page + html::CLOSE
}

/// A bar per contract, relative to the first.
fn chart(contracts: &Contracts, subject: &Subject, figure: Figure) -> String {
    let title = format!("{}, {}", subject.title(), figure.title);
    let estimate = |under: &UnderContract| figure.estimate(&figure.values(subject, &under.runs));
    let Some(first) = contracts.contracts.first().and_then(estimate).filter(|first| first.mean > 0.0) else {
        let nothing = "It did not end under A: there is nothing to compare with.";
        return format!("<h3>{}</h3>\n<p>{nothing}</p>\n", escape(&title));
    };
    let bars = contracts.contracts.iter().zip(LETTERS).map(|(under, letter)| {
        let estimate = estimate(under);
        let interval = estimate.and_then(|estimate| estimate.interval).filter(|(low, high)| low < high);
        let text = figure.text(&figure.values(subject, &under.runs));
        ChartBar {
            label: letter,
            class: if letter == "A" { "alone" } else { "isolate" },
            value: estimate.map(|estimate| estimate.mean / first.mean),
            range: interval.map(|(low, high)| (low.max(0.0) / first.mean, high / first.mean)),
            figure: if estimate.is_some() { text } else { "not ended".to_owned() },
        }
    });
    let bars: Vec<ChartBar<'_>> = bars.collect();
    let described: Vec<String> = bars.iter().map(|bar| format!("{}: {}", bar.label, bar.figure)).collect();
    let drawn = svg::bars(&BarChart {
        id: &format!("{}-{}", figure.head, subject.title().replace(' ', "-")),
        title: &title,
        description: &described.join("; "),
        bars,
        bound: (1.0, "A".to_owned()),
        unit: "A = 100",
    });
    format!(
        "<h3>{}</h3>\n<figure>\n{drawn}<figcaption>A = 100; shorter is better. Means, with 95 % confidence \
         intervals.</figcaption>\n</figure>\n",
        escape(&title)
    )
}
