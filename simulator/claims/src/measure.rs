//! Figures of runs, for the rows' formulas. Nothing where a run is missing or a job has not ended.

use commonhold_sim::outcome::{DiskOutcome, JobOutcome, Outcome, Spent, UnitOutcome};

use crate::experiments::Experiment;
use crate::run::Runs;

/// 90 % of a normal distribution lie within this many standard deviations.
const QUANTILE_90: f64 = 1.645;

/// All runs with one seed.
#[derive(Clone, Copy)]
pub struct Seed<'a> {
    runs: &'a Runs,
    /// Which of the seeds.
    place: usize,
}

impl<'a> Seed<'a> {
    /// The runs with the seed at this place of the list of seeds.
    pub fn new(runs: &'a Runs, place: usize) -> Self {
        Seed { runs, place }
    }

    /// The outcome of an experiment.
    pub fn of(self, experiment: Experiment) -> Option<&'a Outcome> {
        self.runs.outcome(experiment, self.place)
    }

    /// The mean response time of the jobs with these names, all their copies, in seconds.
    pub fn response(self, experiment: Experiment, jobs: &[&str]) -> Option<f64> {
        let outcome = self.of(experiment)?;
        let times: Option<Vec<u64>> = outcome
            .jobs
            .iter()
            .filter(|job| jobs.contains(&&*job.name))
            .map(JobOutcome::response_ns)
            .collect();
        mean(&times?).map(|ns| ns / 1e9)
    }

    /// Half the width of the 90 % interval of that mean, in seconds. The jobs are many, so that it is the normal one.
    pub fn interval(self, experiment: Experiment, jobs: &[&str]) -> Option<f64> {
        let mean = self.response(experiment, jobs)?;
        let named = self.of(experiment)?.jobs.iter().filter(|job| jobs.contains(&&*job.name));
        let off: Option<Vec<f64>> = named.map(|job| Some(real(job.response_ns()?) / 1e9 - mean)).collect();
        let off = off?;
        let count = real(off.len() as u64);
        let variance = divide(off.iter().map(|off| off * off).sum(), count - 1.0)?;
        Some(QUANTILE_90 * (variance / count).sqrt())
    }

    /// The response time of these jobs by that of those.
    pub fn ratio(self, one: (Experiment, &[&str]), by: (Experiment, &[&str])) -> Option<f64> {
        divide(self.response(one.0, one.1)?, self.response(by.0, by.1)?)
    }

    /// The response time of the same jobs in one experiment by that in another.
    pub fn change(self, jobs: &[&str], one: Experiment, by: Experiment) -> Option<f64> {
        self.ratio((one, jobs), (by, jobs))
    }

    /// The mean, over the jobs with these names, of something that was spent on them, in ns or as a count.
    pub fn spent(self, experiment: Experiment, jobs: &[&str], what: fn(&Spent) -> u64) -> Option<f64> {
        let named = self.of(experiment)?.jobs.iter().filter(|job| jobs.contains(&&*job.name));
        mean(&named.map(|job| what(&job.spent)).collect::<Vec<_>>())
    }

    /// What a unit had.
    pub fn unit(self, experiment: Experiment, unit: &str) -> Option<&'a UnitOutcome> {
        self.of(experiment)?.units.iter().find(|outcome| outcome.name == unit)
    }

    /// The first disk.
    pub fn disk(self, experiment: Experiment) -> Option<&'a DiskOutcome> {
        self.of(experiment)?.disks.first()
    }

    /// What these units had of the first disk, together.
    pub fn use_of_disk(self, experiment: Experiment, units: &[&str]) -> Option<Use> {
        let uses = self.disk(experiment)?.units.iter().filter(|entry| units.contains(&&*entry.unit));
        let mut sum = Use { requests: 0.0, wait_ms: 0.0, service_ms: 0.0 };
        for entry in uses {
            let requests = real(entry.requests);
            sum.requests += requests;
            sum.wait_ms += requests * entry.wait_ms;
            sum.service_ms += requests * entry.service_ms;
        }
        let (wait_ms, service_ms) =
            (divide(sum.wait_ms, sum.requests)?, divide(sum.service_ms, sum.requests)?);
        Some(Use { wait_ms, service_ms, ..sum })
    }
}

/// Requests to a disk, with their means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    /// How many.
    pub requests: f64,
    /// How long one waited in the queue, in ms.
    pub wait_ms: f64,
    /// How long one was served, in ms.
    pub service_ms: f64,
}

/// CPU time of a job: all but waiting, in ns.
pub(crate) fn busy(spent: &Spent) -> u64 {
    spent.work_ns + overhead(spent)
}

/// What a job's work cost beyond what it costs alone, in ns.
pub(crate) fn overhead(spent: &Spent) -> u64 {
    spent.lock_ns + spent.stall_ns + spent.remote_ns + spent.spin_ns + spent.switch_ns
}

/// The smallest factor from one figure to the next: above 1 if they rise from each to the next.
pub(crate) fn smallest_step(figures: &[f64]) -> Option<f64> {
    figures
        .windows(2)
        .map(|pair| divide(pair[1], pair[0]))
        .try_fold(f64::MAX, |least, step| Some(least.min(step?)))
}

/// The largest factor from one figure to the next: below 1 if they fall from each to the next.
pub(crate) fn largest_step(figures: &[f64]) -> Option<f64> {
    figures
        .windows(2)
        .map(|pair| divide(pair[1], pair[0]))
        .try_fold(0.0, |most: f64, step| Some(most.max(step?)))
}

/// A quotient that is a number.
pub(crate) fn divide(a: f64, b: f64) -> Option<f64> {
    let quotient = a / b;
    quotient.is_finite().then_some(quotient)
}

/// As a float; sums of a run stay below 2^53.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn real(n: u64) -> f64 {
    n as f64
}

fn mean(figures: &[u64]) -> Option<f64> {
    let sum: u64 = figures.iter().sum();
    divide(real(sum), real(figures.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_by_hand() {
        // 1 to 2 is twice, 2 to 3 one and a half.
        assert_eq!((smallest_step(&[1.0, 2.0, 3.0]), largest_step(&[1.0, 2.0, 3.0])), (Some(1.5), Some(2.0)));
        assert_eq!(smallest_step(&[0.0, 1.0]), None);
    }

    #[test]
    fn quotients_are_numbers() {
        assert_eq!((divide(1.0, 0.0), divide(0.0, 0.0), divide(1.0, 4.0)), (None, None, Some(0.25)));
        assert_eq!((mean(&[]), mean(&[1, 2])), (None, Some(1.5)));
    }
}
