//! One scenario under each scheme: response times, CPU time, memory and disk of every unit, against the same
//! unit alone on its share.

use commonhold_report::figures::{NOTHING, bytes, duration, seconds};
use commonhold_report::html;
use commonhold_report::svg::{self, BarChart, ChartBar};
use commonhold_report::table::{Paint, Style, Table, escape, escape_lines};
use commonhold_sim::outcome::{Outcome, UnitOutcome};
use serde::Serialize;

use crate::simulation::{CSV_HEAD, JobRow, Study, closing, csv_lines, jobs_of, seeds};

/// A scenario under several schemes, with the same seeds.
#[derive(Debug, Clone)]
pub struct Schemes {
    /// One per scheme, in the order of the report's columns.
    pub studies: Vec<Study>,
    /// Each unit alone on its share: only the unit's jobs run, under `quota`, which withholds the others'
    /// shares. Units that have only background jobs, which never end, are left out.
    pub alone: Vec<Alone>,
}

/// The runs of one unit's jobs without those of others.
#[derive(Debug, Clone, Serialize)]
pub struct Alone {
    /// The unit's path.
    pub unit: String,
    /// One run per seed.
    pub runs: Vec<Outcome>,
}

/// Size of a disk's sector, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A unit's use of resources over some runs: means unless noted.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Usage {
    /// CPU time, in ns.
    used_ns: u64,
    /// Peak memory of all runs, in bytes: means over runs of different lengths would not compare.
    memory_bytes_max: u64,
    /// Transfers of all disks, in bytes.
    disk_bytes: u64,
}

impl Usage {
    /// `None` if the unit had no processes in these runs.
    fn of(runs: &[Outcome], unit: &str, frame_bytes: u64) -> Option<Usage> {
        let units = || runs.iter().flat_map(|run| &run.units).filter(|other| other.name == unit);
        let count = units().count() as u64;
        let mean = |figure: fn(&UnitOutcome) -> u64| units().map(figure).sum::<u64>().checked_div(count);
        let disks = runs.iter().flat_map(|run| &run.disks).flat_map(|disk| &disk.units);
        let sectors: u64 = disks.filter(|used| used.unit == unit).map(|used| used.sectors).sum();
        Some(Usage {
            used_ns: mean(|unit| unit.used_ns)?,
            memory_bytes_max: units().map(|unit| unit.frames_max).max()? * frame_bytes,
            disk_bytes: sectors * SECTOR_BYTES / count.max(1),
        })
    }
}

/// One column of the comparison: its name, `alone` or a scheme's, and its runs.
struct Kind<'a> {
    name: &'a str,
    runs: &'a [Outcome],
}

impl Schemes {
    /// Whether no run broke a check (`Outcome::broken`).
    pub fn sound(&self) -> bool {
        self.runs().all(|run| run.broken == 0)
    }

    fn runs(&self) -> impl Iterator<Item = &Outcome> {
        let alone = self.alone.iter().flat_map(|alone| &alone.runs);
        self.studies.iter().flat_map(|study| &study.runs).chain(alone)
    }

    fn frame_bytes(&self) -> u64 {
        self.studies.first().map_or(0, |study| study.frame_bytes)
    }

    /// Paths of the units that had processes under any scheme, in the contract's order.
    fn units(&self) -> Vec<&str> {
        let first =
            self.studies.iter().filter_map(|study| study.runs.first()).max_by_key(|run| run.units.len());
        first.map(|run| run.units.iter().map(|unit| unit.name.as_str()).collect()).unwrap_or_default()
    }

    /// The columns for a unit. The first is `alone`; it is without runs if the unit was not run alone.
    fn kinds<'a>(&'a self, unit: &str) -> Vec<Kind<'a>> {
        let alone = self.alone.iter().find(|alone| alone.unit == unit).map_or(&[][..], |alone| &alone.runs);
        let schemes = self.studies.iter().map(|study| Kind { name: study.scheme.name(), runs: &study.runs });
        std::iter::once(Kind { name: "alone", runs: alone }).chain(schemes).collect()
    }

    /// The jobs of a unit with their response times in each column.
    fn jobs(&self, unit: &str) -> Vec<Compared> {
        let kinds = self.kinds(unit);
        let tables: Vec<(&str, Vec<JobRow>)> =
            kinds.iter().map(|kind| (kind.name, jobs_of(kind.runs, unit))).collect();
        let mut names: Vec<&str> = Vec::new();
        for row in tables.iter().flat_map(|(_, rows)| rows) {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        names.iter().map(|name| Compared::of(name, &tables)).collect()
    }
}

/// A job's response times in all columns.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Compared {
    job: String,
    under: Vec<Response>,
}

/// A job's response time in one column.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Response {
    /// `alone`, or the scheme.
    under: String,
    /// Mean over copies and seeds, in s; `None` if a copy did not end.
    response_s: Option<f64>,
    /// The shortest and the longest response time, in s.
    #[serde(skip)]
    range_s: Option<(f64, f64)>,
    /// Ratio to the response time alone.
    against_alone: Option<f64>,
}

impl Compared {
    fn of(job: &str, tables: &[(&str, Vec<JobRow>)]) -> Compared {
        let mut alone = None;
        let mut under = Vec::new();
        for (kind, rows) in tables {
            let row = rows.iter().find(|row| row.name == job).filter(|row| row.all_ended());
            let response_s = row.and_then(JobRow::mean);
            if *kind == "alone" {
                alone = response_s;
            }
            under.push(Response {
                under: (*kind).to_owned(),
                response_s,
                range_s: row.and_then(JobRow::range),
                against_alone: response_s.zip(alone).map(|(time, alone)| time / alone),
            });
        }
        Compared { job: job.to_owned(), under }
    }
}

/// The comparison for a terminal: one table.
pub fn text(schemes: &Schemes, style: Style) -> String {
    let mut out = heading(schemes) + "\n";
    out += &table(schemes).render(style);
    out + "\n" + HOW_TO_READ + "\n" + &closing_of(schemes)
}

const HOW_TO_READ: &str = "alone: the unit's jobs without those of others, on its share. x: times the response alone. \
                           memory: at most.";

fn heading(schemes: &Schemes) -> String {
    let Some(study) = schemes.studies.first() else { return String::new() };
    let machine = if study.machine.is_empty() { String::new() } else { format!("{}, ", study.machine) };
    let names: Vec<&str> = schemes.studies.iter().map(|study| study.scheme.name()).collect();
    format!("{}: {machine}schemes {}, {}\n", study.scenario, names.join(", "), seeds(&study.runs))
}

fn closing_of(schemes: &Schemes) -> String {
    let horizon_ns = schemes.studies.first().map_or(0, |study| study.horizon_ns);
    closing(&schemes.runs().collect::<Vec<_>>(), horizon_ns)
}

fn table(schemes: &Schemes) -> Table {
    let mut table = Table::new(&["", "alone", "smp", "x", "quota", "x", "isolate", "x"]);
    for unit in schemes.units() {
        let blank = || String::new();
        let mut head = vec![unit.to_owned()];
        head.resize_with(8, blank);
        table.row(Paint::Strong, head);
        for job in schemes.jobs(unit) {
            table.row(Paint::Plain, job_row(&job));
        }
        let usages: Vec<Option<Usage>> = schemes
            .kinds(unit)
            .iter()
            .map(|kind| Usage::of(kind.runs, unit, schemes.frame_bytes()))
            .collect();
        for (name, figure) in FIGURES {
            let cell = |usage: &Option<Usage>| usage.as_ref().map_or(NOTHING.to_owned(), figure);
            let mut row = vec![format!("  {name}")];
            for (i, usage) in usages.iter().enumerate() {
                row.push(cell(usage));
                if i > 0 {
                    row.push(String::new());
                }
            }
            table.row(Paint::Faint, row);
        }
    }
    table
}

type Figure = fn(&Usage) -> String;

/// The rows below a unit's jobs: name and figure.
const FIGURES: [(&str, Figure); 3] = [
    ("CPU time", |usage| duration(usage.used_ns)),
    ("memory", |usage| bytes(usage.memory_bytes_max)),
    ("disk", |usage| bytes(usage.disk_bytes)),
];

fn job_row(job: &Compared) -> Vec<String> {
    let mut row = vec![format!("  {}", job.job)];
    for response in &job.under {
        row.push(response.response_s.map_or(NOTHING.to_owned(), seconds));
        if response.under != "alone" {
            row.push(response.against_alone.map_or(NOTHING.to_owned(), |ratio| format!("{ratio:.2}")));
        }
    }
    row
}

#[derive(Serialize)]
struct SchemesJson<'a> {
    units: Vec<UnitJson<'a>>,
    alone: &'a [Alone],
    schemes: &'a [Study],
}

#[derive(Serialize)]
struct UnitJson<'a> {
    unit: &'a str,
    jobs: Vec<Compared>,
    had: Vec<UsageJson<'a>>,
}

#[derive(Serialize)]
struct UsageJson<'a> {
    under: &'a str,
    #[serde(flatten)]
    had: Option<Usage>,
}

/// The comparison as JSON: its table, and every run in full.
pub fn json(schemes: &Schemes) -> String {
    let usage = |unit, kind: Kind<'_>| Usage::of(kind.runs, unit, schemes.frame_bytes());
    let unit = |unit| UnitJson {
        unit,
        jobs: schemes.jobs(unit),
        had: schemes
            .kinds(unit)
            .into_iter()
            .map(|kind| UsageJson { under: kind.name, had: usage(unit, kind) })
            .collect(),
    };
    let content = SchemesJson {
        units: schemes.units().into_iter().map(unit).collect(),
        alone: &schemes.alone,
        schemes: &schemes.studies,
    };
    commonhold_report::json("commonhold.schemes", content)
}

/// The lines of [`simulation::csv`](crate::simulation::csv) behind a column with the scheme, or `alone`.
pub fn csv(schemes: &Schemes) -> String {
    let alone = schemes.alone.iter().map(|alone| ("alone", &alone.runs));
    let studies = schemes.studies.iter().map(|study| (study.scheme.name(), &study.runs));
    let lines: String =
        alone.chain(studies).map(|(kind, runs)| csv_lines(&format!("{kind},"), runs)).collect();
    format!("scheme,{CSV_HEAD}{lines}")
}

/// The comparison as a page: a chart per job, and the table.
pub fn html(schemes: &Schemes) -> String {
    let scenario = schemes.studies.first().map_or("", |study| study.scenario.as_str());
    let mut page = html::open(&format!("{scenario} under each scheme"), "");
    page += &format!("<p>{}</p>\n<h2>Response times</h2>\n", escape_lines(&heading(schemes)));
    for unit in schemes.units() {
        for job in schemes.jobs(unit) {
            page += &chart(unit, &job);
        }
    }
    page += &format!("<h2>Figures</h2>\n{}<p>{}</p>\n", table(schemes).html(), escape(HOW_TO_READ));
    page += &format!("<p>{}</p>\n", escape_lines(&closing_of(schemes)));
    page + html::CLOSE
}

fn chart(unit: &str, job: &Compared) -> String {
    let title = format!("{} of {unit}", job.job);
    if job.under.iter().all(|response| response.against_alone.is_none()) {
        return format!(
            "<h3>{}</h3>\n<p>It did not end alone: there is nothing to compare with.</p>\n",
            escape(&title)
        );
    }
    let figure = |response: &Response| match (response.response_s, response.against_alone) {
        (Some(time), Some(ratio)) => format!("{:.0} ({})", ratio * 100.0, seconds(time)),
        (Some(time), None) => seconds(time),
        (None, _) => "not ended".to_owned(),
    };
    let bars = job.under.iter().map(|response| {
        let range = response.range_s.zip(response.response_s).zip(response.against_alone);
        ChartBar {
            label: &response.under,
            class: &response.under,
            value: response.against_alone,
            range: range.map(|(((low, high), time), ratio)| (low / time * ratio, high / time * ratio)),
            figure: figure(response),
        }
    });
    let described: Vec<String> =
        job.under.iter().map(|response| format!("{}: {}", response.under, figure(response))).collect();
    let drawn = svg::bars(&BarChart {
        id: &format!("response-{unit}-{}", job.job),
        title: &title,
        description: &described.join("; "),
        bars: bars.collect(),
        bound: (1.0, "alone on its share".to_owned()),
        unit: "response time, alone = 100",
    });
    format!(
        "<h3>{}</h3>\n<figure>\n{drawn}<figcaption>Response time, alone = 100; shorter is better. Means, with the \
         shortest and the longest as a whisker.</figcaption>\n</figure>\n",
        escape(&title)
    )
}
