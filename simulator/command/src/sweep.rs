//! `commonhold sim --sweep`: runs a scenario with several values of some of its keys.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output::{self, Page};
use commonhold_command::progress::Progress;
use commonhold_report::figures::count;
use commonhold_report::is_foul;
use commonhold_report::table::clean;
use commonhold_sim::scenario::edit::Key;
use commonhold_sim::scenario::range;
use commonhold_sim_command::cli::{Shard, Sim};
use commonhold_sim_report::figures::RunFigures;
use commonhold_sim_report::sweep::{Axis, Space};
use rayon::prelude::*;

use crate::merge;
use crate::run_files::{Header, RUNS_MAX, Runs, Writer};
use crate::sim::{self, Checked, Files};

/// The most points: each is checked before the first run.
const POINTS_MAX: u64 = 10_000;
/// The most different warnings that are printed.
const WARNINGS_MAX: usize = 5;

pub(crate) fn main(args: &Sim) -> Result<Exit, Failure> {
    let page = args.html.as_deref().map(Page::at).transpose()?;
    let points = Points::new(args)?;
    let first = points.check()?;
    let header = header(&points, &first.machine);
    let path = args.output.clone().or_else(|| args.shard.map(|shard| file_name(&header.scenario, shard)));
    let mut sink = Sink { writer: None, runs: Runs::new(), is_kept: args.shard.is_none() };
    let mut were_sound = true;
    let mut done = BTreeSet::new();
    if let Some(path) = &path {
        sink.writer = Some(Writer::open(path, &header, |point, figures| {
            done.insert((point, figures.seed));
            were_sound &= figures.broken == 0;
            if args.shard.is_none() {
                sink.runs.insert((point, figures.seed), figures);
            }
        })?);
    }
    let all: Vec<u64> = header.indices().collect();
    let left: Vec<u64> = all.iter().copied().filter(|index| !done.contains(&header.run(*index))).collect();
    if !done.is_empty() {
        output::warn(&format!(
            "note: {} of {} are in the file, and are not repeated",
            done.len(),
            count(all.len(), "run")
        ));
    }
    let ran = left.len();
    let sink = run_all(&points, &header, left, sink)?;
    if let Some(writer) = sink.writer {
        writer.finish()?;
    }
    match (args.shard, path) {
        (Some(Shard { number, of }), Some(path)) => {
            let (path, runs) = (path.display(), count(all.len(), "run"));
            output::print(&format!(
                "{path}: shard {number}/{of} is complete: {runs}, {ran} of them run now"
            ))?;
            Ok(if sink.is_sound && were_sound { Exit::Ok } else { Exit::CheckFailed })
        }
        _ => merge::report(&header, sink.runs, &[], (args.json, args.csv), page),
    }
}

/// The result file of a shard, if the user names no other.
fn file_name(scenario: &str, Shard { number, of }: Shard) -> PathBuf {
    PathBuf::from(format!("{scenario}-{number}-of-{of}.jsonl"))
}

/// The header of the sweep's files.
fn header(points: &Points<'_>, machine: &str) -> Header {
    let Points { args, files, space, .. } = points;
    let texts = &files.texts;
    let options = format!("{:?} {:?} {}", args.scheme, args.scheduler, args.negotiate);
    let inputs = [&texts.contract, &texts.machine, &texts.workload, &options].map(String::as_str);
    let mut header = Header::new(clean(&sim::name_of(args)), clean(machine), space.clone(), &inputs);
    (header.seed, header.seeds) = (args.seed, args.seeds);
    header.shard = args.shard.unwrap_or(Shard::WHOLE);
    header
}

/// The points of a sweep.
struct Points<'a> {
    args: &'a Sim,
    files: Files,
    keys: Vec<Key>,
    space: Space,
}

impl<'a> Points<'a> {
    /// Reads the command line and the scenario's files.
    fn new(args: &'a Sim) -> Result<Points<'a>, Failure> {
        let usage = |message: String| Failure::new(Exit::Usage, message);
        let files = sim::read_files(args, args.contract.first())?;
        let (mut keys, mut space) = (Vec::new(), Space::default());
        for sweep in &args.sweep {
            let wrong = |why: String| usage(format!("--sweep {sweep}: {why}"));
            let Some((written, values)) = sweep.split_once('=') else {
                return Err(wrong("write KEY=VALUES, such as tickets.physics=50..400:50".to_owned()));
            };
            let key = files.texts.find(written).map_err(wrong)?;
            if keys.contains(&key) {
                return Err(wrong(format!("`{key}` is swept twice; give all its values in one --sweep")));
            }
            let values = range::values(values).map_err(wrong)?;
            if sweep.chars().any(is_foul) {
                return Err(wrong("it has control characters; leave them out".to_owned()));
            }
            space.keys.push(Axis { key: key.to_string(), values });
            keys.push(key);
        }
        let count = space.points().unwrap_or(u64::MAX);
        let runs = count.saturating_mul(args.seeds);
        if count > POINTS_MAX || runs > RUNS_MAX {
            return Err(usage(format!(
                "the sweep has {count} points with {} seeds: at most {POINTS_MAX} points and {RUNS_MAX} runs are possible; \
                 give fewer values or --seeds",
                args.seeds
            )));
        }
        Ok(Points { args, files, keys, space })
    }

    /// The scenario at a point.
    fn at(&self, point: u64) -> Result<Checked, Failure> {
        let mut files = self.files.clone();
        for (key, value) in self.keys.iter().zip(self.space.values(point)) {
            let wrong = |why: String| Failure::new(Exit::Usage, format!("--sweep {key}={value}: {why}"));
            files.texts.set(key, value).map_err(wrong)?;
        }
        sim::check(self.args, &files).map_err(|failure| self.blame(point, failure))
    }

    /// A point's failure, with the keys and values at fault.
    fn blame(&self, point: u64, failure: Failure) -> Failure {
        let values = self.space.point_text(point);
        failure.within(&format!("--sweep: the scenario is invalid with {values}"))
    }

    /// Checks all points, prints what they are warned of, and returns the first.
    fn check(&self) -> Result<Checked, Failure> {
        let points = 0..self.space.points().unwrap_or(0);
        let checked = points.into_par_iter().map(|point| Ok(self.at(point)?.warnings));
        // Of several failures, that of the first point is returned, whichever thread was first.
        let checked: Vec<Result<String, Failure>> = checked.collect();
        let warnings = checked.into_iter().collect::<Result<Vec<String>, Failure>>()?;
        self.warn(&warnings);
        self.at(0)
    }

    /// Prints different warnings once each, with the first point that has them.
    fn warn(&self, warnings: &[String]) {
        let mut seen = BTreeSet::new();
        for (point, text) in (0..).zip(warnings).filter(|(_, text)| !text.is_empty()) {
            if !seen.insert(text) {
                continue;
            }
            if seen.len() > WARNINGS_MAX {
                output::warn("note: warnings of further points are left out");
                return;
            }
            if point > 0 {
                output::warn(&format!("with {}:", self.space.point_text(point)));
            }
            output::complain_of(text);
        }
    }
}

/// Where the runs go.
struct Sink {
    writer: Option<Writer>,
    /// The figures of all runs, if they are kept.
    runs: Runs,
    is_kept: bool,
}

/// What remains when all runs have ended.
struct Ended {
    writer: Option<Writer>,
    runs: Runs,
    /// Whether no run broke a check.
    is_sound: bool,
}

/// Runs what is left, on all CPUs. Each run is written as soon as it ends.
fn run_all(points: &Points<'_>, header: &Header, left: Vec<u64>, sink: Sink) -> Result<Ended, Failure> {
    let progress = Progress::new("runs", left.len());
    let sink = Mutex::new((sink, true));
    let run = |index: u64| -> Result<(), Failure> {
        let (point, seed) = header.run(index);
        // The scenario is read again for each run, so that memory does not grow with the points.
        let scenario = points.at(point)?.scenario;
        let outcome = commonhold_sim::run(&scenario, seed)
            .map_err(|error| points.blame(point, Failure::new(Exit::Invalid, error)))?;
        let figures = RunFigures::of(&outcome, scenario.hardware.kernel.frame_bytes);
        let (sink, is_sound) = &mut *sink.lock().unwrap_or_else(PoisonError::into_inner);
        *is_sound &= figures.broken == 0;
        if let Some(writer) = &mut sink.writer {
            writer.add(point, &figures)?;
        }
        if sink.is_kept {
            sink.runs.insert((point, seed), figures);
        }
        progress.step();
        Ok(())
    };
    left.into_par_iter().try_for_each(run)?;
    let (Sink { writer, runs, .. }, is_sound) = sink.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Ended { writer, runs, is_sound })
}
