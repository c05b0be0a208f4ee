//! The outcome of a run: when each job ended, what each unit got, and whether all checks held.

use serde::Serialize;

pub use crate::engine::Spent;
pub use commonhold_ledger::{Exchange, Statement};

use crate::Time;

/// The outcome of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The run's seed.
    pub seed: u64,
    /// When it ended, in ns of virtual time.
    pub ended_ns: Time,
    /// Whether it ended at its horizon, with jobs unfinished.
    pub cut_off: bool,
    /// Jobs whose processes waited for each other at the end, and would have for ever.
    pub stuck: Vec<Stuck>,
    /// The most by which what was swapped out exceeded the swap areas of all disks, at the looks of the memory policy, in
    /// bytes. Where it is not 0, a live machine would have run out of memory.
    pub swap_short_bytes: u64,
    /// Jobs, one entry per copy, in the order in which they came.
    pub jobs: Vec<JobOutcome>,
    /// How often jobs with loops went round, over time; in the order of the workload.
    pub rounds: Vec<RoundsOutcome>,
    /// How long tasks that woke waited for a CPU, by job; in the order of the workload.
    pub wakes: Vec<WakesOutcome>,
    /// The length of the windows of time that units are accounted by, in ns: a second, or more where the horizon is far.
    pub window_ns: Time,
    /// Units of the contract that had processes, in the contract's order.
    pub units: Vec<UnitOutcome>,
    /// Memory of the common parts: the kernel's, and what is shared.
    pub common: Vec<CommonMemory>,
    /// Disks, in the machine's order.
    pub disks: Vec<DiskOutcome>,
    /// Time that CPUs were busy, and idle, summed over all, in ns.
    pub busy_ns: u64,
    /// See `busy_ns`.
    pub idle_ns: u64,
    /// Switches to another task.
    pub switches: u64,
    /// Locks, in the workload's order.
    pub locks: Vec<LockOutcome>,
    /// The ledger's accounts, from the same plans and snapshots as a daemon's.
    pub ledger: Statement,
    /// Which job had which CPU, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupancy: Option<Occupancy>,
    /// Plans that the policy made.
    pub plans: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Checks made while it ran.
    pub checks: u64,
    /// Checks that did not hold.
    pub broken: u64,
    /// The first of those, in words.
    pub notes: Vec<String>,
}

/// Processes of a job, of all its copies, that wait for others that wait for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stuck {
    /// The job's name in the workload.
    pub job: String,
    /// Since when the first of them waits, in ns.
    pub since_ns: Time,
    /// How many wait for locks, and for which.
    pub for_locks: usize,
    /// See `for_locks`.
    pub locks: Vec<String>,
    /// How many wait at barriers for siblings that never come.
    pub at_barriers: usize,
    /// How many wait for children that never end.
    pub for_children: usize,
}

/// Which job had which CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Occupancy {
    /// Time between two moments, in ns; the first is at 0.
    pub every_ns: Time,
    /// The CPUs of each pool.
    pub pools: Vec<Vec<u32>>,
    /// The jobs, as places in `jobs` of the outcome, in the order in which they were seen first.
    pub jobs: Vec<u32>,
    /// For each moment and CPU: a place in the list of jobs; nothing where no job had it.
    pub moments: Vec<Vec<Option<usize>>>,
}

/// One copy of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its name in the workload.
    pub name: String,
    /// The path of its unit.
    pub unit: String,
    /// When it came, in ns.
    pub started_ns: Time,
    /// When it ended, in ns; nothing if the run ended first.
    pub ended_ns: Option<Time>,
    /// Where its tasks' time went.
    pub spent: Spent,
}

impl JobOutcome {
    /// How long it took, in ns.
    pub fn response_ns(&self) -> Option<Time> {
        self.ended_ns.map(|ended| ended - self.started_ns)
    }
}

/// How often a job went through the outermost loops of its program, all its copies together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoundsOutcome {
    /// The job's name in the workload.
    pub job: String,
    /// The whole rounds, to the end.
    pub rounds: u64,
    /// The time between two entries of `by_then`, in ns: a second, or more where the horizon is far.
    pub every_ns: Time,
    /// The rounds that were over by each of these times, from 0 on; up to the last round.
    pub by_then: Vec<u64>,
}

impl RoundsOutcome {
    /// Rounds that were over by a time, rounded down; those between two entries are taken to have come evenly.
    pub fn by(&self, at: Time) -> u64 {
        let entry = |place: Time| {
            let place = usize::try_from(place).unwrap_or(usize::MAX);
            self.by_then.get(place).copied().unwrap_or(self.rounds)
        };
        let (place, rest) = (at / self.every_ns, at % self.every_ns);
        let between =
            u128::from(entry(place + 1) - entry(place)) * u128::from(rest) / u128::from(self.every_ns);
        entry(place) + u64::try_from(between).unwrap_or(0)
    }
}

/// From waking to running: of a job's tasks, all copies together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WakesOutcome {
    /// The job's name in the workload.
    pub job: String,
    /// How often one woke that blocked, and had a CPU then.
    pub count: u64,
    /// Half of these waited no longer, in ns, rounded down by less than a sixty-fourth.
    pub median_ns: Time,
    /// 99 of a hundred waited no longer; rounded likewise.
    pub p99_ns: Time,
    /// The longest, in ns.
    pub max_ns: Time,
    /// Of a job with a `deadline`: how often a task slept again, or ended, within it, after a sleep.
    pub met: u64,
    /// How often it did not.
    pub missed: u64,
}

/// What a unit had.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnitOutcome {
    /// Its path.
    pub name: String,
    /// What it was entitled to in the mean, in millionths of a CPU.
    pub entitled_micro_cpus: u64,
    /// CPU time of its tasks, in ns.
    pub used_ns: u64,
    /// CPU time of others on its home CPUs, in ns.
    pub lent_ns: u64,
    /// CPU time of its tasks on others' home CPUs, in ns.
    pub borrowed_ns: u64,
    /// CPUs that it called back.
    pub called_back: u64,
    /// The mean time from a call to the first task of its own there, in ns.
    pub call_back_mean_ns: u64,
    /// The longest.
    pub call_back_max_ns: u64,
    /// The longest that one of its tasks waited for a CPU, in ns.
    pub waited_max_ns: Time,
    /// Page frames that it had at the end.
    pub frames: u64,
    /// Page frames that it had in the mean over the run, rounded down.
    pub frames_mean: u64,
    /// The most that it had at once.
    pub frames_max: u64,
    /// How long its tasks waited for frames, summed over them, in ns: for others' pages to be written, or its own.
    pub memory_waited_ns: Time,
    /// Its call-backs of memory that it had lent.
    pub memory_call_backs: MemoryCallBacks,
    /// CPU time of its own tasks in each whole window of the run, in ns.
    pub used_by_window_ns: Vec<Time>,
    /// What these were entitled to there, without its sub-units, in ns.
    pub entitled_by_window_ns: Vec<Time>,
}

/// What a unit's call-backs of lent memory came to: from the moment at which it was short until all that it was allowed was
/// its own or free, or it asked for nothing more that it did not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryCallBacks {
    /// How many there were.
    pub count: u64,
    /// Half of them took no longer, in ns.
    pub median_ns: Time,
    /// The longest, in ns; one in progress at the end of the run counts with its length so far.
    pub max_ns: Time,
    /// The longest time within which one was to be over.
    pub promised_max_ns: Time,
    /// Those that took longer than what was promised when they began: the contract's `call-back-memory`, or more where the
    /// memory had been idle for long.
    pub late: u64,
}

/// What a part of memory had that is no unit's: the kernel's own, and what several units use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommonMemory {
    /// `kernel` or `shared`.
    pub name: String,
    /// Page frames that it had at the end.
    pub frames: u64,
    /// In the mean over the run, rounded down.
    pub frames_mean: u64,
    /// The most that it had at once.
    pub frames_max: u64,
}

/// What a disk did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiskOutcome {
    /// Its name.
    pub name: String,
    /// Time that it was busy, in ns.
    pub busy_ns: u64,
    /// Requests that it served.
    pub requests: u64,
    /// Mean time of a request in service, in ms.
    pub latency_ms: f64,
    /// Mean number of requests that waited or were served, over time.
    pub queue: f64,
    /// Mean number that an arriving request found.
    pub queue_at_arrival: f64,
    /// What each unit had of it.
    pub units: Vec<DiskUse>,
}

/// What a unit had of a disk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiskUse {
    /// The unit's path.
    pub unit: String,
    /// Requests made in its name.
    pub requests: u64,
    /// Sectors transferred in its name.
    pub sectors: u64,
    /// Mean wait of a request in the queue, in ms.
    pub wait_ms: f64,
    /// Mean time of a request in service, in ms.
    pub service_ms: f64,
}

/// What a lock cost, as lock metering tells it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockOutcome {
    /// Its name.
    pub name: String,
    /// How often it was taken.
    pub taken: u64,
    /// How often a task waited for it.
    pub waits: u64,
    /// How long, summed, in ns.
    pub waited_ns: Time,
    /// The longest wait.
    pub waited_max_ns: Time,
    /// How long tasks had it, in ns; summed over those that read side by side.
    pub held_ns: Time,
    /// The longest that one had it.
    pub held_max_ns: Time,
}
