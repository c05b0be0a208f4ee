//! Runs the experiments that rows need: each experiment once per seed, in parallel. The results are in a
//! fixed order.

use std::sync::atomic::{AtomicUsize, Ordering};

use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::Scenario;
use rayon::prelude::*;

use crate::experiments::Experiment;
use crate::rows::Row;
use crate::unknowns::{Document, Setting, shorten};

/// The seeds of every published result.
pub const SEEDS: [u64; 7] = [1, 2, 3, 4, 5, 6, 7];

/// The progress of [`run`], after each run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The number of runs that have ended.
    pub done: usize,
    /// The number of all runs.
    pub total: usize,
    /// The experiment of the run that has just ended.
    pub name: String,
    /// The seed of that run.
    pub seed: u64,
}

/// Outcomes by experiment and seed. The error of a run that could not be made is a message.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    seeds: Vec<u64>,
    runs: Vec<(Experiment, Vec<Result<Outcome, String>>)>,
}

impl Runs {
    /// Results that were computed elsewhere: for each experiment, an outcome per seed in the order of
    /// `seeds`. An experiment that needs fewer seeds has only the first outcomes.
    pub fn new(seeds: Vec<u64>, runs: Vec<(Experiment, Vec<Result<Outcome, String>>)>) -> Self {
        debug_assert!(runs.iter().all(|(_, outcomes)| outcomes.len() <= seeds.len()));
        Runs { seeds, runs }
    }

    /// The seeds of the runs.
    pub fn seeds(&self) -> &[u64] {
        &self.seeds
    }

    /// Whether this experiment was run.
    pub fn has(&self, experiment: Experiment) -> bool {
        self.results(experiment).is_some()
    }

    /// Whether every run could be made, and every audit check of every run held.
    pub fn sound(&self) -> bool {
        self.runs.iter().all(|(experiment, _)| self.flaw(*experiment).is_none())
    }

    fn results(&self, experiment: Experiment) -> Option<&[Result<Outcome, String>]> {
        self.runs.iter().find(|(run, _)| *run == experiment).map(|(_, results)| results.as_slice())
    }

    /// The outcome of an experiment with the seed at this index.
    pub(crate) fn outcome(&self, experiment: Experiment, index: usize) -> Option<&Outcome> {
        self.results(experiment)?.get(index)?.as_ref().ok()
    }

    /// Why an experiment's results are not valid, as a message: the first run that could not be made, or in
    /// which an audit check failed. `None` if all runs are valid.
    pub(crate) fn flaw(&self, experiment: Experiment) -> Option<String> {
        let results = self.results(experiment)?;
        self.seeds.iter().zip(results).find_map(|(seed, result)| {
            let flaw = match result {
                Err(why) => why.clone(),
                Ok(outcome) if outcome.broken > 0 => {
                    let first = outcome.notes.first().map_or("no note", String::as_str);
                    format!("{} of {} checks did not hold: {first}", outcome.broken, outcome.checks)
                }
                Ok(_) => return None,
            };
            Some(format!("{}, seed {seed}: {flaw}", experiment.name()))
        })
    }
}

/// The number of runs that [`run`] makes for these rows with this number of seeds.
pub fn count(rows: &[&Row], seeds: usize) -> usize {
    count_of(rows, seeds, &|_| true)
}

/// [`count`] of the experiments that meet a condition.
pub(crate) fn count_of(rows: &[&Row], seeds: usize, is_counted: &dyn Fn(&Experiment) -> bool) -> usize {
    let counted = needed(rows).into_iter().filter(is_counted);
    counted.map(|experiment| seeds_needed(rows, experiment).min(seeds)).sum()
}

/// What is varied in runs: the unknowns of a document.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The document.
    pub document: Document,
    /// Its unknowns' values.
    pub setting: &'a Setting,
}

/// The number of seeds that an experiment needs: the maximum over the rows that use it.
fn seeds_needed(rows: &[&Row], experiment: Experiment) -> usize {
    let users = rows.iter().filter(|row| row.needs.contains(&experiment));
    users.map(|row| row.seeds).max().unwrap_or(0)
}

/// Runs the experiments that these rows need, each with the number of seeds that the rows need. The results
/// do not depend on the number of threads. The threads call `progress` in the order in which runs end.
pub fn run(rows: &[&Row], seeds: &[u64], progress: &(dyn Fn(Progress) + Sync)) -> Runs {
    let experiments = needed(rows);
    let scenarios: Vec<_> = experiments.iter().map(Experiment::scenario).collect();
    run_scenarios(rows, &experiments, &scenarios, seeds, progress)
}

/// [`run`] with a setting of unknowns, and with the shorter jobs of a fit. With the outcomes under the
/// `guess`, experiments that the unknowns do not concern are not repeated.
pub(crate) fn run_under(
    rows: &[&Row],
    seeds: &[u64],
    Subject { document, setting }: Subject,
    guess: Option<&Runs>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Runs {
    let (experiments, same): (Vec<_>, Vec<_>) = needed(rows)
        .into_iter()
        .partition(|experiment| guess.is_none() || experiment.is_touched_by(document));
    let scenario = |experiment: &Experiment| {
        let mut scenario = experiment.scenario()?;
        setting.apply(document, experiment, &mut scenario);
        shorten(document, &mut scenario);
        Ok(scenario)
    };
    let scenarios: Vec<_> = experiments.iter().map(scenario).collect();
    let mut runs = run_scenarios(rows, &experiments, &scenarios, seeds, progress);
    let of_guess =
        guess.iter().flat_map(|guess| &guess.runs).filter(|(experiment, _)| same.contains(experiment));
    runs.runs.extend(of_guess.cloned());
    runs
}

fn run_scenarios(
    rows: &[&Row],
    experiments: &[Experiment],
    scenarios: &[Result<Scenario, String>],
    seeds: &[u64],
    progress: &(dyn Fn(Progress) + Sync),
) -> Runs {
    let done = AtomicUsize::new(0);
    let seeds_by_experiment: Vec<&[u64]> =
        experiments.iter().map(|run| &seeds[..seeds_needed(rows, *run).min(seeds.len())]).collect();
    let pairs: Vec<(usize, u64)> = seeds_by_experiment
        .iter()
        .enumerate()
        .flat_map(|(index, seeds)| seeds.iter().map(move |seed| (index, *seed)))
        .collect();
    let total = pairs.len();
    let run_one = |(index, seed): (usize, u64)| {
        let result = match &scenarios[index] {
            Ok(scenario) => commonhold_sim::run(scenario, seed).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(Progress { done, total, name: experiments[index].name(), seed });
        result
    };
    let mut results: std::vec::IntoIter<_> =
        pairs.into_par_iter().map(run_one).collect::<Vec<Result<Outcome, String>>>().into_iter();
    let with_seeds = experiments.iter().zip(&seeds_by_experiment);
    let runs = with_seeds.map(|(run, seeds)| (*run, results.by_ref().take(seeds.len()).collect())).collect();
    Runs::new(seeds.to_vec(), runs)
}

/// The experiments that rows need, without duplicates, in the order of the rows.
pub fn needed(rows: &[&Row]) -> Vec<Experiment> {
    let mut needed = Vec::new();
    for experiment in rows.iter().flat_map(|row| row.needs) {
        if !needed.contains(experiment) {
            needed.push(*experiment);
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use commonhold_contract::Scheme;
    use commonhold_sim_report::claims::{Basis, Tolerance, Unit, Verdict};

    use super::*;
    use crate::experiments::{Files, on};
    use crate::verdict::judge;

    const TINY: Files = Files::of(
        "tiny",
        "version = 1\n[unit.a]\n[unit.b]\n",
        "version = 1\nshape = \"cpus:2 memory:64MiB\"\n[disk.d0]\n",
        "version = 1\nhorizon = \"10s\"\n[program.p]\ndo = [{ cpu = \"10ms\", spread = \"50%\" }]\n\
         [job.a]\nunit = \"a\"\nprogram = \"p\"\n[job.b]\nunit = \"b\"\nprogram = \"p\"\ncount = 3\n",
    );
    const BROKEN: Files = Files::of("broken", "version = 1\n", "version = 2\n", "");

    const fn row(needs: &'static [Experiment]) -> Row {
        Row {
            id: "T",
            place: "",
            says: "",
            expected: "",
            tolerance: Tolerance::Above { bound: 0.0 },
            basis: Basis::Predicted,
            unit: Unit::Ratio,
            needs,
            measure: Some(|at| at.response(on(TINY, Scheme::Isolate), &["a", "b"])),
            held_by: &[],
            seeds: usize::MAX,
            note: "",
        }
    }

    static GOOD: Row = row(&[on(TINY, Scheme::Isolate), on(TINY, Scheme::Smp)]);
    static SAME: Row = row(&[on(TINY, Scheme::Smp)]);
    static BAD: Row = row(&[on(BROKEN, Scheme::Smp), on(TINY, Scheme::Isolate)]);

    fn with_threads(threads: usize) -> Runs {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run(&[&GOOD, &SAME], &[3, 1, 2], &|_| ()))
    }

    #[test]
    fn the_number_of_threads_makes_no_difference() {
        let one = with_threads(1);
        assert_eq!(one, with_threads(4));
        // Each outcome stands with its own seed, and each experiment was run once.
        assert_eq!(one.runs.len(), 2);
        for (_, results) in &one.runs {
            let seeds: Vec<u64> = results.iter().map(|result| result.as_ref().unwrap().seed).collect();
            assert_eq!(seeds, [3, 1, 2]);
        }
    }

    #[test]
    fn progress_counts_up_to_all() {
        let seen = std::sync::Mutex::new(Vec::new());
        run(&[&GOOD], &[1, 2], &|progress| seen.lock().unwrap().push((progress.done, progress.total)));
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [(1, 4), (2, 4), (3, 4), (4, 4)]);
    }

    #[test]
    fn a_measured_row_has_a_figure_per_seed() {
        let (measured, verdict) = judge(&GOOD, &with_threads(2));
        assert_eq!(verdict, Verdict::SignHolds);
        let figures = measured.unwrap().by_seed;
        // Ten milliseconds, half more or less; b's third copy waits for another's end.
        assert!(figures.len() == 3 && figures.iter().all(|s| (0.005..0.03).contains(s)), "{figures:?}");
    }

    #[test]
    fn a_row_whose_run_broke_a_check_is_void() {
        let mut runs = with_threads(2);
        let outcome = runs.runs[1].1[2].as_mut().unwrap();
        outcome.broken = 1;
        outcome.notes = vec!["a frame was lost".to_owned()];
        let checks = outcome.checks;
        let (measured, verdict) = judge(&GOOD, &runs);
        let reason = format!(
            "tiny smp, scheduler irix-decay, seed 2: 1 of {checks} checks did not hold: a frame was lost"
        );
        assert_eq!((measured, verdict), (None, Verdict::Void { reason }));
    }

    #[test]
    fn what_cannot_be_run_is_void_and_says_why() {
        let runs = run(&[&BAD], &[1, 2], &|_| ());
        let (_, verdict) = judge(&BAD, &runs);
        assert!(
            matches!(
                &verdict,
                Verdict::Void { reason }
                    if reason.starts_with("broken smp, scheduler irix-decay, seed 1: broken is no scenario: ")
            ),
            "{verdict:?}"
        );
    }

    #[test]
    fn what_was_not_run_or_has_not_ended_has_no_figure() {
        let runs = run(&[&SAME], &[1, 2], &|_| ());
        assert!(matches!(judge(&GOOD, &runs), (None, Verdict::NotMeasured { .. })));
        let mut runs = with_threads(2);
        runs.runs[0].1[1].as_mut().unwrap().jobs[1].ended_ns = None;
        let (measured, verdict) = judge(&GOOD, &runs);
        assert!(measured.is_none() && matches!(verdict, Verdict::NotMeasured { .. }), "{verdict:?}");
    }
}
