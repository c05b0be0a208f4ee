//! Figures of runs, for the rows' formulas. A figure is `None` if a run is missing or a job has not ended.

use commonhold_sim::outcome::{DiskOutcome, JobOutcome, Outcome, Spent, UnitOutcome};

use crate::experiments::Experiment;
use crate::run::Runs;

/// Normal quantile: 90 % of a normal distribution lie within this number of standard deviations of the mean.
const QUANTILE_90: f64 = 1.645;

/// All runs with one random seed.
#[derive(Clone, Copy)]
pub struct Seed<'a> {
    runs: &'a Runs,
    /// The index of the seed in the list of seeds.
    index: usize,
}

impl<'a> Seed<'a> {
    /// The runs with the seed at this index of the list of seeds.
    pub fn new(runs: &'a Runs, index: usize) -> Self {
        Seed { runs, index }
    }

    /// The outcome of an experiment with this seed.
    pub fn of(self, experiment: Experiment) -> Option<&'a Outcome> {
        self.runs.outcome(experiment, self.index)
    }

    /// The mean response time of all copies of the jobs with these names, in seconds.
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

    /// Half-width of the 90 % confidence interval of the mean response time, in seconds. It uses the normal
    /// distribution, since the jobs are many.
    pub fn interval(self, experiment: Experiment, jobs: &[&str]) -> Option<f64> {
        let mean = self.response(experiment, jobs)?;
        let named = self.of(experiment)?.jobs.iter().filter(|job| jobs.contains(&&*job.name));
        let deviations: Option<Vec<f64>> =
            named.map(|job| Some(real(job.response_ns()?) / 1e9 - mean)).collect();
        let deviations = deviations?;
        let count = real(deviations.len() as u64);
        let variance = divide(deviations.iter().map(|deviation| deviation * deviation).sum(), count - 1.0)?;
        Some(QUANTILE_90 * (variance / count).sqrt())
    }

    /// The mean response time of some jobs divided by that of the jobs `by`.
    pub fn ratio(self, of: (Experiment, &[&str]), by: (Experiment, &[&str])) -> Option<f64> {
        divide(self.response(of.0, of.1)?, self.response(by.0, by.1)?)
    }

    /// The mean response time of jobs in one experiment divided by that of the same jobs in the experiment
    /// `by`.
    pub fn change(self, jobs: &[&str], of: Experiment, by: Experiment) -> Option<f64> {
        self.ratio((of, jobs), (by, jobs))
    }

    /// The mean of an amount that was spent on the jobs with these names, in ns or as a count.
    pub fn spent(self, experiment: Experiment, jobs: &[&str], amount: fn(&Spent) -> u64) -> Option<f64> {
        let named = self.of(experiment)?.jobs.iter().filter(|job| jobs.contains(&&*job.name));
        mean(&named.map(|job| amount(&job.spent)).collect::<Vec<_>>())
    }

    /// A unit's outcome.
    pub fn unit(self, experiment: Experiment, unit: &str) -> Option<&'a UnitOutcome> {
        self.of(experiment)?.units.iter().find(|outcome| outcome.name == unit)
    }

    /// The outcome of the first disk.
    pub fn disk(self, experiment: Experiment) -> Option<&'a DiskOutcome> {
        self.of(experiment)?.disks.first()
    }

    /// The use of the first disk by these units together.
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

/// Requests to a disk, with their mean times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    /// The number of requests.
    pub requests: f64,
    /// The mean time of a request in the queue, in ms.
    pub wait_ms: f64,
    /// The mean service time of a request, in ms.
    pub service_ms: f64,
}

/// CPU time of a job: its work and overhead, without waits, in ns.
pub(crate) fn busy(spent: &Spent) -> u64 {
    spent.work_ns + overhead(spent)
}

/// CPU time of a job beyond the work alone on the machine: locks, stalls, remote memory, spinning and
/// switches, in ns.
pub(crate) fn overhead(spent: &Spent) -> u64 {
    spent.lock_ns + spent.stall_ns + spent.remote_ns + spent.spin_ns + spent.switch_ns
}

/// The smallest ratio of a figure to the one before it: above 1 if every figure is larger than the one
/// before.
pub(crate) fn smallest_step(figures: &[f64]) -> Option<f64> {
    figures
        .windows(2)
        .map(|pair| divide(pair[1], pair[0]))
        .try_fold(f64::MAX, |least, step| Some(least.min(step?)))
}

/// The largest ratio of a figure to the one before it: below 1 if every figure is smaller than the one
/// before.
pub(crate) fn largest_step(figures: &[f64]) -> Option<f64> {
    figures
        .windows(2)
        .map(|pair| divide(pair[1], pair[0]))
        .try_fold(0.0, |most: f64, step| Some(most.max(step?)))
}

/// The quotient; `None` if it is not finite.
pub(crate) fn divide(a: f64, b: f64) -> Option<f64> {
    let quotient = a / b;
    quotient.is_finite().then_some(quotient)
}

/// An integer as a float. Sums of a run stay below 2^53, so the conversion is exact.
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
