//! Rounds of jobs: how often each went through the outermost loops of its program, over time; and changes of rights that
//! wait for that.
//!
//! A round is what work is counted in where a job does the same again and again: a query, an iteration. Processes that a
//! job runs have rounds of their own, which count for nothing.

use commonhold_policy::rights::Change;

use crate::Time;
use crate::outcome::RoundsOutcome;
use crate::scenario::{Job, Op, Workload};

/// The largest number of entries over time.
const ENTRIES_MAX: Time = 1_000;
/// The least time between two of them, in ns.
const EVERY_MIN_NS: Time = 1_000_000_000;

/// The rounds of all jobs.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) every_ns: Time,
    jobs: Vec<JobRounds>,
    /// Changes that are due since a job has come so far.
    pub(super) due: Vec<Change>,
}

#[derive(Debug, Default)]
struct JobRounds {
    loops: bool,
    done: u64,
    by_then: Vec<u64>,
}

impl JobRounds {
    /// Enters what was done before `now` at all times up to it.
    fn enter(&mut self, now: Time, every_ns: Time) {
        let entries = usize::try_from(now / every_ns).unwrap_or(0) + 1;
        while self.by_then.len() < entries {
            self.by_then.push(self.done);
        }
    }
}

impl Rounds {
    pub(super) fn new(workload: &Workload) -> Rounds {
        let loops = |program: u16| {
            let ops = &workload.programs[usize::from(program)].ops;
            ops.iter().any(|op| matches!(op, Op::Again { counter: 0, .. }))
        };
        let jobs = workload.jobs.iter();
        Rounds {
            every_ns: workload.horizon_ns.div_ceil(ENTRIES_MAX).max(EVERY_MIN_NS),
            jobs: jobs.map(|job| JobRounds { loops: loops(job.program), ..JobRounds::default() }).collect(),
            due: Vec::new(),
        }
    }

    /// A copy of a job has ended a round. Whether a change is due now.
    pub(super) fn ended(&mut self, now: Time, job: u32, workload: &Workload) -> bool {
        let rounds = &mut self.jobs[job as usize];
        rounds.enter(now, self.every_ns);
        rounds.done += 1;
        let done = rounds.done;
        let awaited = workload.awaited.iter().filter(|it| u32::from(it.job) == job && it.rounds == done);
        let before = self.due.len();
        self.due.extend(awaited.map(|it| it.change));
        self.due.len() > before
    }

    /// What came of it, at the end of the run.
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
