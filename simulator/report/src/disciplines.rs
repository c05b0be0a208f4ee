//! One scenario under several disciplines of time-sharing, side by side: CPU time of each unit against its
//! entitlement, latency from wake-up to running, and total throughput.

use commonhold_contract::Discipline;
use commonhold_report::figures::{NOTHING, duration, seconds};
use commonhold_report::html;
use commonhold_report::svg::{self, BarChart, ChartBar, Panel, TimeChart};
use commonhold_report::table::{Paint, Style, Table, escape, escape_lines};
use commonhold_sim::outcome::{Outcome, UnitOutcome, WakesOutcome};
use serde::Serialize;

use crate::simulation::{JobRow, Study, closing, jobs_of, seeds};

/// A scenario under several disciplines, with the same seeds.
#[derive(Debug, Clone)]
pub struct Disciplines {
    /// The runs under each discipline, in the order of the report's columns.
    pub under: Vec<Under>,
}

/// The scenario under one discipline.
#[derive(Debug, Clone)]
pub struct Under {
    /// The discipline of every unit for which the contract names none.
    pub discipline: Discipline,
    /// The runs under this discipline.
    pub study: Study,
}

/// A unit's CPU time as a fraction of its entitlement: 1.0 is all of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Share {
    /// CPU time over all windows.
    had: f64,
    /// Mean absolute deviation of a window's CPU time from the entitlement.
    off_mean: f64,
    /// Largest shortfall of a window's CPU time below the entitlement.
    short_max: f64,
}

impl Share {
    /// `None` if no window is complete, or if the unit was entitled to nothing.
    fn of(runs: &[Outcome], unit: &str) -> Option<Share> {
        let (mut used_sum, mut entitled_sum, mut deviation_sum, mut short_max) = (0.0, 0.0, 0.0, 0.0_f64);
        for (used, entitled) in windows(runs, unit) {
            used_sum += used;
            entitled_sum += entitled;
            deviation_sum += (used - entitled).abs();
            short_max = short_max.max((entitled - used) / entitled);
        }
        (entitled_sum > 0.0).then(|| Share {
            had: used_sum / entitled_sum,
            off_mean: deviation_sum / entitled_sum,
            short_max,
        })
    }
}

/// CPU time and entitlement, in ns, of each window in which the unit was entitled to CPU time.
fn windows<'a>(runs: &'a [Outcome], unit: &'a str) -> impl Iterator<Item = (f64, f64)> + 'a {
    let units = runs.iter().flat_map(|run| &run.units).filter(move |other| other.name == unit);
    let pairs = |unit: &'a UnitOutcome| unit.used_by_window_ns.iter().zip(&unit.entitled_by_window_ns);
    units
        .flat_map(pairs)
        .map(|(used, entitled)| (real(*used), real(*entitled)))
        .filter(|(_, entitled)| *entitled > 0.0)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people; sums stay below 2^53")]
fn real(n: u64) -> f64 {
    n as f64
}

/// Latency from wake-up to running of a job's tasks: means of the runs' figures, and the longest of all runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Wakes {
    count: u64,
    median_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    met: u64,
    missed: u64,
}

impl Wakes {
    fn of(runs: &[Outcome], job: &str) -> Option<Wakes> {
        let all: Vec<_> = runs.iter().flat_map(|run| &run.wakes).filter(|wakes| wakes.job == job).collect();
        let mean = |figure: fn(&WakesOutcome) -> u64| {
            all.iter().map(|wakes| figure(wakes)).sum::<u64>().checked_div(all.len() as u64)
        };
        Some(Wakes {
            count: mean(|wakes| wakes.count)?,
            median_ns: mean(|wakes| wakes.median_ns)?,
            p99_ns: mean(|wakes| wakes.p99_ns)?,
            max_ns: all.iter().map(|wakes| wakes.max_ns).max()?,
            met: mean(|wakes| wakes.met)?,
            missed: mean(|wakes| wakes.missed)?,
        })
    }

    fn has_deadline(&self) -> bool {
        self.met + self.missed > 0
    }
}

/// Throughput of the whole machine: means of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Whole {
    /// The number of jobs that ended.
    jobs_ended: u64,
    /// Work done, in ns of a task that runs alone.
    work_ns: u64,
    switches: u64,
}

impl Whole {
    fn of(runs: &[Outcome]) -> Whole {
        let mean = |figure: fn(&Outcome) -> u64| {
            runs.iter().map(figure).sum::<u64>().checked_div(runs.len() as u64).unwrap_or(0)
        };
        Whole {
            jobs_ended: mean(|run| run.jobs.iter().filter(|job| job.ended_ns.is_some()).count() as u64),
            work_ns: mean(|run| run.jobs.iter().map(|job| job.spent.work_ns).sum()),
            switches: mean(|run| run.switches),
        }
    }
}

/// One job of a unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Job {
    job: String,
    /// Mean response time over copies and seeds, in s; `None` if a copy did not end.
    response_s: Option<f64>,
    /// Mean CPU time of a copy, in ns.
    cpu_ns: u64,
    wakes: Option<Wakes>,
}

impl Disciplines {
    /// Whether no run broke a check (`Outcome::broken`).
    pub fn sound(&self) -> bool {
        self.runs().all(|run| run.broken == 0)
    }

    fn runs(&self) -> impl Iterator<Item = &Outcome> {
        self.under.iter().flat_map(|under| &under.study.runs)
    }

    /// Paths of the units that had processes, in the contract's order.
    fn units(&self) -> Vec<&str> {
        let first = self.runs().max_by_key(|run| run.units.len());
        first.map(|run| run.units.iter().map(|unit| unit.name.as_str()).collect()).unwrap_or_default()
    }

    /// Names of a unit's jobs, in order of first appearance.
    fn jobs(&self, unit: &str) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for job in self.runs().flat_map(|run| &run.jobs).filter(|job| job.unit == unit) {
            if !names.contains(&job.name.as_str()) {
                names.push(&job.name);
            }
        }
        names
    }
}

fn job_of(runs: &[Outcome], unit: &str, job: &str) -> Option<Job> {
    let row = jobs_of(runs, unit).into_iter().find(|row| row.name == job)?;
    Some(Job {
        job: job.to_owned(),
        response_s: Some(&row).filter(|row| row.all_ended()).and_then(JobRow::mean),
        cpu_ns: row.cpu_ns(),
        wakes: Wakes::of(runs, job),
    })
}

const HOW_TO_READ: &str = "had: CPU time, as a part of what the unit was entitled to. off: by how much a window's was \
                           more or less, in the mean. short: by how much the worst window fell short. wake: from waking to \
                           running.";

/// The comparison for a terminal: one table, split into blocks of the disciplines that fit side by side.
pub fn text(disciplines: &Disciplines, style: Style) -> String {
    let mut out = heading(disciplines) + "\n";
    out += &table(disciplines).render_in_blocks(style);
    out + "\n" + HOW_TO_READ + "\n" + &closing_of(disciplines)
}

fn heading(disciplines: &Disciplines) -> String {
    let Some(Under { study, .. }) = disciplines.under.first() else { return String::new() };
    let machine = if study.machine.is_empty() { String::new() } else { format!("{}, ", study.machine) };
    let window = study.runs.first().map_or(0, |run| run.window_ns);
    format!(
        "{}: {machine}scheme {}, windows of {}, {}\n",
        study.scenario,
        study.scheme,
        duration(window),
        seeds(&study.runs)
    )
}

fn closing_of(disciplines: &Disciplines) -> String {
    let horizon_ns = disciplines.under.first().map_or(0, |under| under.study.horizon_ns);
    closing(&disciplines.runs().collect::<Vec<_>>(), horizon_ns)
}

/// A fraction as a percentage with one decimal.
fn percentage(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// Adds a row with a figure per discipline, unless all figures are missing.
fn add(table: &mut Table, paint: Paint, name: &str, cells: Vec<Option<String>>) {
    if cells.iter().any(Option::is_some) {
        let cells = cells.into_iter().map(|cell| cell.unwrap_or(NOTHING.to_owned()));
        table.row(paint, std::iter::once(name.to_owned()).chain(cells).collect());
    }
}

fn table(disciplines: &Disciplines) -> Table {
    let under = &disciplines.under;
    let heads: Vec<&str> =
        std::iter::once("").chain(under.iter().map(|under| under.discipline.name())).collect();
    let mut table = Table::new(&heads);
    let title = |table: &mut Table, name: &str| {
        let mut cells = vec![name.to_owned()];
        cells.resize_with(1 + under.len(), String::new);
        table.row(Paint::Strong, cells);
    };
    for unit in disciplines.units() {
        title(&mut table, unit);
        let shares: Vec<Option<Share>> =
            under.iter().map(|under| Share::of(&under.study.runs, unit)).collect();
        let mut row = |name, figure: fn(&Share) -> f64| {
            let cells = shares.iter().map(|share| share.as_ref().map(|share| percentage(figure(share))));
            add(&mut table, Paint::Plain, name, cells.collect());
        };
        row("  had", |share| share.had);
        row("  off", |share| share.off_mean);
        row("  short", |share| share.short_max);
        for job in disciplines.jobs(unit) {
            add_job(&mut table, disciplines, unit, job);
        }
    }
    title(&mut table, "in all");
    let wholes: Vec<Whole> = under.iter().map(|under| Whole::of(&under.study.runs)).collect();
    let mut row = |name, figure: fn(&Whole) -> String| {
        add(&mut table, Paint::Plain, name, wholes.iter().map(|whole| Some(figure(whole))).collect());
    };
    row("  jobs ended", |whole| whole.jobs_ended.to_string());
    row("  work", |whole| duration(whole.work_ns));
    row("  switches", |whole| whole.switches.to_string());
    table
}

fn add_job(table: &mut Table, disciplines: &Disciplines, unit: &str, job: &str) {
    let under = disciplines.under.iter();
    let jobs: Vec<Option<Job>> = under.map(|under| job_of(&under.study.runs, unit, job)).collect();
    let each = |figure: fn(&Job) -> Option<String>| {
        jobs.iter().map(|job| job.as_ref().and_then(figure)).collect::<Vec<_>>()
    };
    add(table, Paint::Plain, &format!("  {job}, CPU"), each(|job| Some(duration(job.cpu_ns))));
    add(table, Paint::Plain, &format!("  {job}, time"), each(|job| job.response_s.map(seconds)));
    add(table, Paint::Faint, "    wake, half", each(|job| Some(duration(job.wakes?.median_ns))));
    add(table, Paint::Faint, "    wake, 99%", each(|job| Some(duration(job.wakes?.p99_ns))));
    let missed = |job: &Job| {
        let wakes = job.wakes.filter(Wakes::has_deadline)?;
        Some(percentage(real(wakes.missed) / real(wakes.met + wakes.missed)))
    };
    add(table, Paint::Faint, "    too late", each(missed));
}

#[derive(Serialize)]
struct DisciplinesJson<'a> {
    disciplines: Vec<UnderJson<'a>>,
}

#[derive(Serialize)]
struct UnderJson<'a> {
    discipline: &'static str,
    units: Vec<UnitJson<'a>>,
    #[serde(flatten)]
    whole: Whole,
    study: &'a Study,
}

#[derive(Serialize)]
struct UnitJson<'a> {
    unit: &'a str,
    share: Option<Share>,
    jobs: Vec<Job>,
}

/// The comparison as JSON: its table, and every run in full.
pub fn json(disciplines: &Disciplines) -> String {
    let units = |under: &'_ Under| {
        let runs = &under.study.runs;
        let jobs =
            |unit| disciplines.jobs(unit).into_iter().filter_map(|job| job_of(runs, unit, job)).collect();
        disciplines
            .units()
            .into_iter()
            .map(|unit| UnitJson { unit, share: Share::of(runs, unit), jobs: jobs(unit) })
            .collect::<Vec<_>>()
    };
    let all = disciplines.under.iter().map(|under| UnderJson {
        discipline: under.discipline.name(),
        units: units(under),
        whole: Whole::of(&under.study.runs),
        study: &under.study,
    });
    commonhold_report::json("commonhold.disciplines", DisciplinesJson { disciplines: all.collect() })
}

/// A line per figure of a unit, of a job, or of the machine (which leaves both columns empty). Shares are
/// fractions of the entitlement.
pub fn csv(disciplines: &Disciplines) -> String {
    let mut out = "discipline,unit,job,figure,value\n".to_owned();
    for under in &disciplines.under {
        let (name, runs) = (under.discipline.name(), &under.study.runs);
        let mut line = |unit: &str, job: &str, figure: &str, value: String| {
            out += &format!("{name},{unit},{job},{figure},{value}\n");
        };
        for unit in disciplines.units() {
            if let Some(share) = Share::of(runs, unit) {
                line(unit, "", "had", format!("{:.6}", share.had));
                line(unit, "", "off_mean", format!("{:.6}", share.off_mean));
                line(unit, "", "short_max", format!("{:.6}", share.short_max));
            }
            for job in disciplines.jobs(unit).into_iter().filter_map(|job| job_of(runs, unit, job)) {
                line(unit, &job.job, "cpu_ns", job.cpu_ns.to_string());
                if let Some(response_s) = job.response_s {
                    line(unit, &job.job, "response_s", format!("{response_s:.9}"));
                }
                let Some(wakes) = job.wakes else { continue };
                line(unit, &job.job, "wakes", wakes.count.to_string());
                line(unit, &job.job, "wake_median_ns", wakes.median_ns.to_string());
                line(unit, &job.job, "wake_p99_ns", wakes.p99_ns.to_string());
                line(unit, &job.job, "wake_max_ns", wakes.max_ns.to_string());
                if wakes.has_deadline() {
                    line(unit, &job.job, "deadlines_met", wakes.met.to_string());
                    line(unit, &job.job, "deadlines_missed", wakes.missed.to_string());
                }
            }
        }
        let Whole { jobs_ended, work_ns, switches } = Whole::of(runs);
        line("", "", "jobs_ended", jobs_ended.to_string());
        line("", "", "work_ns", work_ns.to_string());
        line("", "", "switches", switches.to_string());
    }
    out
}

/// The comparison as a page: the table, deviation from the entitlement, wake-up latency, and CPU time over
/// time.
pub fn html(disciplines: &Disciplines) -> String {
    let scenario = disciplines.under.first().map_or("", |under| under.study.scenario.as_str());
    let mut page = html::open(&format!("{scenario} under each discipline"), "");
    page += &format!("<p>{}</p>\n", escape_lines(&heading(disciplines)));
    page += &format!("<h2>Figures</h2>\n{}<p>{}</p>\n", table(disciplines).html(), escape(HOW_TO_READ));
    page += "<h2>Off the entitlement</h2>\n";
    for unit in disciplines.units() {
        page += &off_chart(disciplines, unit);
    }
    let woke: Vec<(&str, &str)> = disciplines
        .units()
        .into_iter()
        .flat_map(|unit| disciplines.jobs(unit).into_iter().map(move |job| (unit, job)))
        .filter(|(_, job)| disciplines.runs().any(|run| run.wakes.iter().any(|wakes| wakes.job == *job)))
        .collect();
    if !woke.is_empty() {
        page += "<h2>From waking to running</h2>\n";
        for (unit, job) in woke {
            page += &wake_chart(disciplines, unit, job);
        }
    }
    page += "<h2>CPU time over time</h2>\n";
    for under in &disciplines.under {
        page += &time_chart(under);
    }
    page += &format!("<p>{}</p>\n", escape_lines(&closing_of(disciplines)));
    page + html::CLOSE
}

/// Bars of one figure under each discipline; the dashed line is at 1.
fn chart(
    disciplines: &Disciplines,
    (id, title, unit, bound): (&str, &str, &str, &str),
    figure: impl Fn(&Under) -> Option<(f64, String)>,
) -> String {
    let figures: Vec<(&'static str, Option<(f64, String)>)> =
        disciplines.under.iter().map(|under| (under.discipline.name(), figure(under))).collect();
    let text =
        |figure: &Option<(f64, String)>| figure.as_ref().map_or(NOTHING.to_owned(), |(_, text)| text.clone());
    let bars = figures.iter().map(|(name, figure)| ChartBar {
        label: name,
        class: "use",
        value: figure.as_ref().map(|(value, _)| *value),
        range: None,
        figure: text(figure),
    });
    let described: Vec<String> =
        figures.iter().map(|(name, figure)| format!("{name}: {}", text(figure))).collect();
    let drawn = svg::bars(&BarChart {
        id,
        title,
        description: &described.join("; "),
        bars: bars.collect(),
        bound: (1.0, bound.to_owned()),
        unit,
    });
    format!("<h3>{}</h3>\n<figure>\n{drawn}</figure>\n", escape(title))
}

fn off_chart(disciplines: &Disciplines, unit: &str) -> String {
    let head =
        (&*format!("off-{unit}"), unit, "by how much windows are off, in per cent of the entitlement", "all");
    chart(disciplines, head, |under| {
        let share = Share::of(&under.study.runs, unit)?;
        Some((share.off_mean, percentage(share.off_mean)))
    })
}

fn wake_chart(disciplines: &Disciplines, unit: &str, job: &str) -> String {
    let p99 = |under: &Under| Some(Wakes::of(&under.study.runs, job)?.p99_ns).filter(|ns| *ns > 0);
    let Some((first, least)) =
        disciplines.under.iter().find_map(|under| Some((under.discipline.name(), p99(under)?)))
    else {
        return format!("<h3>{} of {}</h3>\n<p>It always ran at once.</p>\n", escape(job), escape(unit));
    };
    let head = (
        &*format!("wake-{unit}-{job}"),
        &*format!("{job} of {unit}"),
        &*format!("99 of a hundred waited no longer; under {first}: 100"),
        first,
    );
    chart(disciplines, head, |under| {
        let p99 = Wakes::of(&under.study.runs, job)?.p99_ns;
        Some((real(p99) / real(least), duration(p99)))
    })
}

/// A chart of the CPU time of each unit, against its entitlement, in each window of the first run.
fn time_chart(under: &Under) -> String {
    let name = under.discipline.name();
    let Some(run) = under.study.runs.first() else { return String::new() };
    let window_s = real(run.window_ns) / 1e9;
    let panels: Vec<Panel> = run
        .units
        .iter()
        .map(|unit| Panel {
            unit: &unit.name,
            entitled: Some(real(unit.entitled_micro_cpus) / 1e6),
            samples: (1u64..)
                .zip(&unit.used_by_window_ns)
                .map(|(n, used)| (real(n) * window_s, real(*used) / real(run.window_ns)))
                .collect(),
        })
        .collect();
    let most =
        panels.iter().flat_map(|panel| panel.samples.iter().map(|(_, cpus)| *cpus)).fold(1.0, f64::max);
    let drawn = svg::steps(&TimeChart {
        id: &format!("time-{name}"),
        title: &format!("CPU time by unit under {name}"),
        description: "What each unit used in each window, against its entitlement",
        until_s: real(run.ended_ns) / 1e9,
        cpus: most.ceil(),
        panels,
    });
    format!("<h3>{name}</h3>\n<figure>\n{drawn}</figure>\n")
}
