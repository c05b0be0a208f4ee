//! The figures of a run that comparisons and sweeps keep: per unit and per job. They are small, so that
//! thousands of runs fit in memory and in result files.

use commonhold_report::figures::{NOTHING, bytes, duration, seconds};
use commonhold_sim::outcome::{JobOutcome, Outcome, UnitOutcome, Verdict};
use serde::{Deserialize, Serialize};

use crate::estimate::summarise;

/// Size of a disk's sector, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The figures of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFigures {
    /// The run's seed.
    pub seed: u64,
    /// When it ended, in ns of virtual time.
    pub ended_ns: u64,
    /// Whether it ended at its horizon, with jobs unfinished.
    pub cut_off: bool,
    /// The jobs whose processes wait for each other for ever.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<String>,
    /// The number of events.
    pub events: u64,
    /// The number of checks made during the run.
    pub checks: u64,
    /// The number of checks that failed.
    pub broken: u64,
    /// The units that had jobs, in the contract's order.
    pub units: Vec<UnitFigures>,
    /// The jobs, in the order of their first arrival.
    pub jobs: Vec<JobFigures>,
}

/// A unit's figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFigures {
    /// The unit's path.
    pub unit: String,
    /// CPU time, in millionths of the machine's over the run.
    pub share_millionths: u64,
    /// CPU time of others on the unit's home CPUs, in ns.
    pub lent_ns: u64,
    /// CPU time on the home CPUs of others, in ns.
    pub borrowed_ns: u64,
    /// The number of CPUs that it called back.
    pub called_back: u64,
    /// The longest call-back, in ns.
    pub call_back_max_ns: u64,
    /// The most memory at any time, in bytes.
    pub memory_bytes_max: u64,
    /// Transfers of all disks, in bytes.
    pub disk_bytes: u64,
    /// Whether the contract was kept for it, in every ten seconds of the run.
    pub verdict: Verdict,
}

/// A job's figures, over its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFigures {
    /// The job's name.
    pub job: String,
    /// The path of its unit.
    pub unit: String,
    /// The number of copies that started.
    pub copies: u64,
    /// The number of copies that ended.
    pub ended: u64,
    /// The mean response time of the copies, in ns; `None` if one did not end.
    pub response_ns: Option<u64>,
}

impl RunFigures {
    /// The figures of an outcome.
    pub fn of(outcome: &Outcome, frame_bytes: u64) -> RunFigures {
        RunFigures {
            seed: outcome.seed,
            ended_ns: outcome.ended_ns,
            cut_off: outcome.cut_off,
            stuck: outcome.stuck.iter().map(|stuck| stuck.job.clone()).collect(),
            events: outcome.events,
            checks: outcome.checks,
            broken: outcome.broken,
            units: outcome.units.iter().map(|unit| UnitFigures::of(outcome, unit, frame_bytes)).collect(),
            jobs: JobFigures::all(&outcome.jobs),
        }
    }

    /// The figures of a unit, if it had jobs.
    pub fn unit(&self, path: &str) -> Option<&UnitFigures> {
        self.units.iter().find(|unit| unit.unit == path)
    }

    /// The figures of a unit's job.
    pub fn job(&self, unit: &str, job: &str) -> Option<&JobFigures> {
        self.jobs.iter().find(|other| other.unit == unit && other.job == job)
    }
}

impl UnitFigures {
    fn of(outcome: &Outcome, unit: &UnitOutcome, frame_bytes: u64) -> UnitFigures {
        let whole_ns = u128::from(outcome.busy_ns) + u128::from(outcome.idle_ns);
        let share = (u128::from(unit.used_ns) * 1_000_000 + whole_ns / 2).checked_div(whole_ns).unwrap_or(0);
        let used = outcome.disks.iter().flat_map(|disk| &disk.units).filter(|used| used.unit == unit.name);
        UnitFigures {
            unit: unit.name.clone(),
            share_millionths: u64::try_from(share).unwrap_or(u64::MAX),
            lent_ns: unit.lent_ns,
            borrowed_ns: unit.borrowed_ns,
            called_back: unit.called_back,
            call_back_max_ns: unit.call_back_max_ns,
            memory_bytes_max: unit.frames_max.saturating_mul(frame_bytes),
            disk_bytes: used.map(|used| used.sectors.saturating_mul(SECTOR_BYTES)).sum(),
            verdict: unit.verdict,
        }
    }
}

impl JobFigures {
    fn all(jobs: &[JobOutcome]) -> Vec<JobFigures> {
        let mut all: Vec<JobFigures> = Vec::new();
        for job in jobs {
            if !all.iter().any(|other| other.job == job.name && other.unit == job.unit) {
                all.push(JobFigures::of(jobs, job));
            }
        }
        all
    }

    fn of(jobs: &[JobOutcome], first: &JobOutcome) -> JobFigures {
        let copies = || jobs.iter().filter(|job| job.name == first.name && job.unit == first.unit);
        let times: Vec<u64> = copies().filter_map(JobOutcome::response_ns).collect();
        let (started, ended) = (copies().count() as u64, times.len() as u64);
        let sum: u128 = times.iter().copied().map(u128::from).sum();
        let mean = (sum + u128::from(ended) / 2).checked_div(u128::from(ended));
        JobFigures {
            job: first.name.clone(),
            unit: first.unit.clone(),
            copies: started,
            ended,
            response_ns: mean.and_then(|mean| u64::try_from(mean).ok()).filter(|_| ended == started),
        }
    }
}

/// One figure of a unit or a job: its names, its value in a run, and its text.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    /// The heading of its column, and its name in JSON and CSV, with its unit of measure.
    pub(crate) head: &'static str,
    pub(crate) name: &'static str,
    /// What a plot calls it.
    pub(crate) title: &'static str,
    pub(crate) show: fn(f64) -> String,
    /// The value that tells nothing if all runs have it.
    trivial: f64,
    interval: Interval,
    value: Value,
}

/// The kind of a figure's confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interval {
    /// Of a mean, by Student's distribution.
    Mean,
    /// Of the part of runs for which something holds, by Wilson's score.
    Part,
    /// No interval.
    None,
}

/// A mean with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) mean: f64,
    pub(crate) interval: Option<(f64, f64)>,
}

#[derive(Clone, Copy)]
enum Value {
    Unit(fn(&UnitFigures) -> Option<u64>),
    Job(fn(&JobFigures) -> Option<u64>),
}

/// What a figure is about: a unit, or one of its jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) unit: String,
    pub(crate) job: Option<String>,
}

impl Subject {
    /// The units and jobs of all runs: each unit before its jobs, in the order of their first occurrence.
    pub(crate) fn all<'a>(runs: impl Iterator<Item = &'a RunFigures>) -> Vec<Subject> {
        let mut all: Vec<Subject> = Vec::new();
        for run in runs {
            for unit in &run.units {
                let subject = Subject { unit: unit.unit.clone(), job: None };
                if !all.contains(&subject) {
                    all.push(subject);
                }
            }
            for job in &run.jobs {
                let subject = Subject { unit: job.unit.clone(), job: Some(job.job.clone()) };
                if !all.contains(&subject) {
                    let last = all.iter().rposition(|other| other.unit == job.unit);
                    all.insert(last.map_or(all.len(), |last| last + 1), subject);
                }
            }
        }
        all
    }

    /// The figures of such a subject.
    pub(crate) fn figures(&self) -> &'static [Figure] {
        if self.job.is_some() { &JOB_FIGURES } else { &UNIT_FIGURES }
    }

    /// `physics`, or `analysis of physics`.
    pub(crate) fn title(&self) -> String {
        match &self.job {
            Some(job) => format!("{job} of {}", self.unit),
            None => self.unit.clone(),
        }
    }
}

impl Figure {
    /// The figure's value in a run; `None` if the run does not have it.
    pub(crate) fn of(self, subject: &Subject, run: &RunFigures) -> Option<f64> {
        let value = match (self.value, &subject.job) {
            (Value::Unit(figure), _) => figure(run.unit(&subject.unit)?),
            (Value::Job(figure), Some(job)) => figure(run.job(&subject.unit, job)?),
            (Value::Job(_), None) => None,
        };
        #[expect(clippy::cast_precision_loss, reason = "a figure for people; below 2^53 in practice")]
        value.map(|value| value as f64)
    }

    /// The figure's values over some runs, in their order. A job that did not end in one of them has no
    /// response time: the mean of the others would be too short.
    pub(crate) fn values(self, subject: &Subject, runs: &[RunFigures]) -> Vec<f64> {
        let values = || runs.iter().map(|run| self.of(subject, run));
        match self.value {
            Value::Unit(_) => values().flatten().collect(),
            Value::Job(_) => values().collect::<Option<Vec<f64>>>().unwrap_or_default(),
        }
    }

    /// The figures of a subject that tell something about these runs: a response time if a job ended in any,
    /// and other figures if they are not the trivial value in all.
    pub(crate) fn telling(subject: &Subject, runs: &[&[RunFigures]]) -> Vec<Figure> {
        let all = || runs.iter().copied().flatten();
        let is_cut_off = all().any(|run| run.cut_off);
        let tells = |figure: &&Figure| {
            let differs = |run: &RunFigures| {
                figure.of(subject, run).is_some_and(|value| value.total_cmp(&figure.trivial).is_ne())
            };
            all().any(differs)
                && (subject.job.is_none() || is_cut_off || all().any(|run| ended(subject, run)))
        };
        subject.figures().iter().filter(tells).copied().collect()
    }

    /// Whether its unit of measure is bytes.
    pub(crate) fn is_bytes(self) -> bool {
        self.name.contains("bytes")
    }

    /// The mean of values with its 95 % confidence interval; `None` without values. One value has no
    /// interval.
    pub(crate) fn estimate(self, values: &[f64]) -> Option<Estimate> {
        let measured = summarise(values)?;
        let mean = measured.mean;
        let interval = match self.interval {
            Interval::Mean => measured.half_95.map(|half| (mean - half, mean + half)),
            Interval::Part => Some(wilson(mean / WHOLE, values.len())),
            Interval::None => None,
        };
        Some(Estimate { mean, interval })
    }

    /// A mean with its confidence interval, which is left out if all values are equal: `3.1 s ±0.2 s`, and
    /// `80% (49..94%)` of a part.
    pub(crate) fn text(self, values: &[f64]) -> String {
        let Some(Estimate { mean, interval }) = self.estimate(values) else { return NOTHING.to_owned() };
        let text = (self.show)(mean);
        match interval.filter(|_| !all_equal(values)) {
            Some((low, high)) if self.interval == Interval::Part => {
                format!("{text} ({:.0}..{})", low / (WHOLE / 100.0), (self.show)(high))
            }
            Some((_, high)) => format!("{text} ±{}", (self.show)(high - mean)),
            None => text,
        }
    }

    /// A mean difference with half of its confidence interval: `+1.2 s ±0.1 s`; `=` if no values differ.
    pub(crate) fn difference_text(self, differences: &[f64]) -> String {
        let Some(measured) = summarise(differences) else { return NOTHING.to_owned() };
        if differences.iter().all(|difference| *difference == 0.0) {
            return "=".to_owned();
        }
        let has_half = self.interval == Interval::Mean && !all_equal(differences);
        let half = measured.half_95.filter(|_| has_half).map(|half| format!(" ±{}", (self.show)(half)));
        let size = (self.show)(measured.mean.abs());
        let sign = match measured.mean {
            _ if size == (self.show)(0.0) => "",
            mean if mean < 0.0 => "-",
            _ => "+",
        };
        format!("{sign}{size}{}", half.unwrap_or_default())
    }
}

/// A whole, in millionths.
const WHOLE: f64 = 1e6;

fn all_equal(values: &[f64]) -> bool {
    values.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq())
}

/// The 95 % confidence interval of a part of `n` runs, in millionths, by Wilson's score.
fn wilson(part: f64, n: usize) -> (f64, f64) {
    const Z: f64 = 1.959_964;
    #[expect(clippy::cast_precision_loss, reason = "a count of seeds")]
    let n = n as f64;
    let scale = 1.0 + Z * Z / n;
    let centre = part + Z * Z / (2.0 * n);
    let half = Z * libm::sqrt(part * (1.0 - part) / n + Z * Z / (4.0 * n * n));
    ((centre - half).max(0.0) / scale * WHOLE, ((centre + half) / scale).min(1.0) * WHOLE)
}

const fn of_unit(
    head: &'static str,
    name: &'static str,
    title: &'static str,
    show: fn(f64) -> String,
    value: fn(&UnitFigures) -> Option<u64>,
) -> Figure {
    Figure { head, name, title, show, trivial: 0.0, interval: Interval::Mean, value: Value::Unit(value) }
}

/// The figures of a unit, in the order of the columns.
pub(crate) static UNIT_FIGURES: [Figure; 8] = [
    of_unit("share", "share_millionths", "share of the CPU time", share, |unit| Some(unit.share_millionths)),
    of_unit("lent", "lent_ns", "CPU time lent", time, |unit| Some(unit.lent_ns)),
    of_unit("borrowed", "borrowed_ns", "CPU time borrowed", time, |unit| Some(unit.borrowed_ns)),
    of_unit("calls", "called_back", "CPUs called back", number, |unit| Some(unit.called_back)),
    of_unit("longest", "call_back_max_ns", "longest call-back", time, |unit| Some(unit.call_back_max_ns)),
    of_unit("memory", "memory_bytes_max", "memory at most", amount, |unit| Some(unit.memory_bytes_max)),
    of_unit("disk", "disk_bytes", "transfers of disks", amount, |unit| Some(unit.disk_bytes)),
    Figure {
        interval: Interval::Part,
        ..of_unit("kept", "kept_millionths", "runs whose contract was kept", whole_percent, kept)
    },
];

/// The figures of a job.
pub(crate) static JOB_FIGURES: [Figure; 2] = [
    Figure {
        head: "response",
        name: "response_ns",
        title: "response time",
        show: time,
        trivial: 0.0,
        interval: Interval::Mean,
        value: Value::Job(|job| job.response_ns),
    },
    Figure {
        head: "ended",
        name: "ended_millionths",
        title: "copies that ended",
        show: whole_percent,
        trivial: 1e6,
        interval: Interval::None,
        value: Value::Job(|job| (job.ended.saturating_mul(1_000_000)).checked_div(job.copies)),
    },
];

/// Whether all copies of the job ended in the run.
fn ended(subject: &Subject, run: &RunFigures) -> bool {
    let job = subject.job.as_ref().and_then(|job| run.job(&subject.unit, job));
    job.is_some_and(|job| job.response_ns.is_some())
}

fn whole_percent(millionths: f64) -> String {
    format!("{:.0}%", millionths / 1e4)
}

fn kept(unit: &UnitFigures) -> Option<u64> {
    match unit.verdict {
        Verdict::Kept => Some(1_000_000),
        Verdict::Broken => Some(0),
        Verdict::CannotTell => None,
    }
}

fn share(millionths: f64) -> String {
    format!("{:.1}%", millionths / 1e4)
}

fn time(ns: f64) -> String {
    if ns == 0.0 { duration(0) } else { seconds(ns / 1e9) }
}

fn number(n: f64) -> String {
    if n < 9.95 && n > 0.0 { format!("{n:.1}") } else { format!("{n:.0}") }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn amount(n: f64) -> String {
    bytes(n as u64)
}
