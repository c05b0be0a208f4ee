//! Running what rows need: each experiment once per seed, side by side, results in order.

use std::sync::atomic::{AtomicUsize, Ordering};

use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::Scenario;
use rayon::prelude::*;

use crate::experiments::Experiment;
use crate::rows::Row;

/// The seeds of every published result.
pub const SEEDS: [u64; 7] = [1, 2, 3, 4, 5, 6, 7];

/// How far the runs are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Runs that are done.
    pub done: usize,
    /// All runs.
    pub total: usize,
    /// What has just been run.
    pub name: String,
    /// With which seed.
    pub seed: u64,
}

/// Outcomes by experiment and seed. An error is in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    seeds: Vec<u64>,
    runs: Vec<(Experiment, Vec<Result<Outcome, String>>)>,
}

impl Runs {
    /// Runs that were made elsewhere: an outcome for each experiment and seed, in the order of the seeds; of an experiment
    /// that needs fewer seeds, with the first ones.
    pub fn new(seeds: Vec<u64>, runs: Vec<(Experiment, Vec<Result<Outcome, String>>)>) -> Self {
        debug_assert!(runs.iter().all(|(_, outcomes)| outcomes.len() <= seeds.len()));
        Runs { seeds, runs }
    }

    /// With which seeds.
    pub fn seeds(&self) -> &[u64] {
        &self.seeds
    }

    /// Whether this experiment was run.
    pub fn has(&self, experiment: Experiment) -> bool {
        self.results(experiment).is_some()
    }

    /// Whether every check of every run held, and every run was possible.
    pub fn sound(&self) -> bool {
        self.runs.iter().all(|(experiment, _)| self.flaw(*experiment).is_none())
    }

    fn results(&self, experiment: Experiment) -> Option<&[Result<Outcome, String>]> {
        self.runs.iter().find(|(run, _)| *run == experiment).map(|(_, results)| results.as_slice())
    }

    /// The outcome of an experiment with the seed at a place of the list.
    pub(crate) fn outcome(&self, experiment: Experiment, place: usize) -> Option<&Outcome> {
        self.results(experiment)?.get(place)?.as_ref().ok()
    }

    /// What keeps anything from being concluded from an experiment: the first run that was not possible or in which
    /// something did not hold that must.
    pub(crate) fn flaw(&self, experiment: Experiment) -> Option<String> {
        let results = self.results(experiment)?;
        self.seeds.iter().zip(results).find_map(|(seed, result)| {
            let what = match result {
                Err(why) => why.clone(),
                Ok(outcome) if outcome.broken > 0 => {
                    let first = outcome.notes.first().map_or("no note", String::as_str);
                    format!("{} of {} checks did not hold: {first}", outcome.broken, outcome.checks)
                }
                Ok(_) => return None,
            };
            Some(format!("{}, seed {seed}: {what}", experiment.name()))
        })
    }
}

/// How many runs [`run`] makes.
pub fn count(rows: &[&Row], seeds: usize) -> usize {
    needed(rows).iter().map(|experiment| seeds_of(rows, *experiment).min(seeds)).sum()
}

/// With how many seeds the rows want an experiment.
fn seeds_of(rows: &[&Row], experiment: Experiment) -> usize {
    let wanting = rows.iter().filter(|row| row.needs.contains(&experiment));
    wanting.map(|row| row.seeds).max().unwrap_or(0)
}

/// Runs what these rows need, each with as many of the seeds as they want. The results do not depend on the number of threads;
/// `progress` is called from them, in the order in which runs end.
pub fn run(rows: &[&Row], seeds: &[u64], progress: &(dyn Fn(Progress) + Sync)) -> Runs {
    let experiments = needed(rows);
    let scenarios: Vec<Result<Scenario, String>> = experiments.iter().map(Experiment::scenario).collect();
    let done = AtomicUsize::new(0);
    let seeds_of: Vec<&[u64]> =
        experiments.iter().map(|run| &seeds[..seeds_of(rows, *run).min(seeds.len())]).collect();
    let all: Vec<(usize, u64)> = seeds_of
        .iter()
        .enumerate()
        .flat_map(|(at, seeds)| seeds.iter().map(move |seed| (at, *seed)))
        .collect();
    let total = all.len();
    let one = |(at, seed): (usize, u64)| {
        let result = match &scenarios[at] {
            Ok(scenario) => commonhold_sim::run(scenario, seed).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(Progress { done, total, name: experiments[at].name(), seed });
        result
    };
    let mut results: std::vec::IntoIter<_> =
        all.into_par_iter().map(one).collect::<Vec<Result<Outcome, String>>>().into_iter();
    let each = experiments.iter().zip(&seeds_of);
    let runs = each.map(|(run, seeds)| (*run, results.by_ref().take(seeds.len()).collect())).collect();
    Runs::new(seeds.to_vec(), runs)
}

/// Experiments that rows need: each once, in the order of the rows.
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
            matches!(&verdict, Verdict::Void { reason } if reason.starts_with("broken smp, scheduler irix-decay, seed 1: broken is no scenario: ")),
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
