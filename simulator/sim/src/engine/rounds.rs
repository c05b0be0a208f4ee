//! Rounds of jobs: how often each job has gone through an outermost loop of its program, sampled over time;
//! and changes of rights that wait for a number of rounds.
//!
//! A round is the unit of work of a job that repeats itself: a query, or an iteration. Only the job's first
//! process counts: loops of the processes that it starts are not rounds of the job.

use commonhold_policy::rights::Change;

use crate::Time;
use crate::outcome::RoundsOutcome;
use crate::scenario::{AwaitedChange, Job, Op, Workload};

/// The largest number of samples in a run.
const ENTRIES_MAX: Time = 1_000;
/// The least time between two samples, in ns.
const EVERY_MIN_NS: Time = 1_000_000_000;

/// The rounds of all jobs.
#[derive(Debug)]
pub(super) struct Rounds {
    /// The time between two samples.
    pub(super) every_ns: Time,
    jobs: Vec<JobRounds>,
    /// Changes whose job has reached the number of rounds, to be made by the next turn of the daemon's loop.
    pub(super) due: Vec<Change>,
}

#[derive(Debug, Default)]
struct JobRounds {
    /// Whether the job's program has an outermost loop, so that rounds are reported.
    loops: bool,
    /// Rounds so far.
    done: u64,
    /// The samples: how many rounds had been done at each multiple of `every_ns`.
    by_then: Vec<u64>,
}

impl JobRounds {
    /// Adds the samples up to `now`. No round has ended since the last sample, so they all have the present
    /// count.
    fn add_samples(&mut self, now: Time, every_ns: Time) {
        let entries = usize::try_from(now / every_ns).unwrap_or(0) + 1;
        while self.by_then.len() < entries {
            self.by_then.push(self.done);
        }
    }
}

impl Rounds {
    pub(super) fn new(workload: &Workload) -> Rounds {
        let loops = |program: u32| {
            let ops = &workload.programs[program as usize].ops;
            ops.iter().any(|op| matches!(op, Op::Again { counter: 0, .. }))
        };
        let jobs = workload.jobs.iter();
        Rounds {
            every_ns: workload.horizon_ns.div_ceil(ENTRIES_MAX).max(EVERY_MIN_NS),
            jobs: jobs.map(|job| JobRounds { loops: loops(job.program), ..JobRounds::default() }).collect(),
            due: Vec::new(),
        }
    }

    /// Counts a round that a copy of a job has ended. Returns whether a change of rights waited for it and is
    /// due now.
    pub(super) fn count_round(&mut self, now: Time, job: u32, workload: &Workload) -> bool {
        let rounds = &mut self.jobs[job as usize];
        rounds.add_samples(now, self.every_ns);
        rounds.done += 1;
        let done = rounds.done;
        let is_due = |awaited: &&AwaitedChange| u32::from(awaited.job) == job && awaited.rounds == done;
        let due_before = self.due.len();
        self.due.extend(workload.awaited.iter().filter(is_due).map(|awaited| awaited.change));
        self.due.len() > due_before
    }

    /// The rounds of each job that loops, for the outcome of the run.
    pub(super) fn outcome(&self, workload: &Workload) -> Vec<RoundsOutcome> {
        let jobs = workload.jobs.iter().zip(&self.jobs).filter(|(_, rounds)| rounds.loops);
        let outcome = |(job, rounds): (&Job, &JobRounds)| RoundsOutcome {
            job: job.name.clone(),
            rounds: rounds.done,
            every_ns: self.every_ns,
            by_then: rounds.by_then.clone(),
        };
        jobs.map(outcome).collect()
    }
}
