//! The outcome of a run: when each job ended, which resources each unit got, and whether all checks held.

use serde::Serialize;

pub use crate::engine::Spent;
pub use commonhold_ledger::{Exchange, Statement, Verdict};
use commonhold_machine::CpuSet;

use crate::Time;
use commonhold_ledger::latencies::Latencies;

/// The outcome of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The run's seed.
    pub seed: u64,
    /// When it ended, in ns of virtual time.
    pub ended_ns: Time,
    /// Whether it ended at its horizon, with jobs unfinished.
    pub cut_off: bool,
    /// Jobs with processes that were deadlocked at the end: they waited for each other.
    pub stuck: Vec<Stuck>,
    /// The largest excess of swapped-out memory over the swap areas of all disks, sampled periodically, in
    /// bytes. If it is not 0, a live machine would have run out of memory.
    pub swap_short_bytes: u64,
    /// Jobs, one entry per copy, in the order of their arrival.
    pub jobs: Vec<JobOutcome>,
    /// The rounds of jobs with loops, over time; in the order of the workload.
    pub rounds: Vec<RoundsOutcome>,
    /// By job: how long tasks that woke up waited for a CPU; in the order of the workload.
    pub wakes: Vec<WakesOutcome>,
    /// The length of the windows in which units' CPU time is reported, in ns: a second, or more if the
    /// horizon is far.
    pub window_ns: Time,
    /// Units of the contract that had jobs, in the contract's order.
    pub units: Vec<UnitOutcome>,
    /// Memory of the built-in units `kernel` and `shared`.
    pub common: Vec<CommonMemory>,
    /// Disks, in the machine's order.
    pub disks: Vec<DiskOutcome>,
    /// The busy time of all CPUs, in ns.
    pub busy_ns: u64,
    /// The idle time of all CPUs, in ns.
    pub idle_ns: u64,
    /// Which CPUs were online from when on; empty if all were online all the time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub online: Vec<OnlineCpus>,
    /// The number of switches to another task.
    pub switches: u64,
    /// Locks, in the workload's order.
    pub locks: Vec<LockOutcome>,
    /// The ledger's accounts, from the same plans and snapshots as a daemon's.
    pub ledger: Statement,
    /// Which job had which CPU over time, if the workload requests this trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupancy: Option<Occupancy>,
    /// The number of plans that the policy made.
    pub plans: u64,
    /// The number of events of the simulation.
    pub events: u64,
    /// The number of checks made during the run.
    pub checks: u64,
    /// The number of checks that failed.
    pub broken: u64,
    /// The first failed checks, in words.
    pub notes: Vec<String>,
}

/// The deadlocked processes of a job, of all its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stuck {
    /// The job's name in the workload.
    pub job: String,
    /// Since when the first of them has waited, in ns.
    pub since_ns: Time,
    /// The number of processes that wait for locks.
    pub for_locks: usize,
    /// The locks for which they wait.
    pub locks: Vec<String>,
    /// The number of processes that wait at barriers for others that never arrive.
    pub at_barriers: usize,
    /// The number of processes that wait for events that no process signals.
    #[serde(skip_serializing_if = "is_none")]
    pub for_events: usize,
    /// The events for which they wait, and those at whose barriers they wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// The number of processes that wait for children that never end.
    pub for_children: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands in a reference")]
fn is_none(count: &usize) -> bool {
    *count == 0
}

/// The CPUs that were online in a period of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OnlineCpus {
    /// When the period began, in ns.
    pub at_ns: Time,
    /// The number of CPUs.
    pub count: usize,
    /// The CPUs, such as `0-3,8`.
    pub cpus: CpuSet,
    /// When the daemon noticed, in ns; `None` if the next period or the end of the run came first.
    pub noticed_ns: Option<Time>,
}

/// Which job had which CPU, sampled over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Occupancy {
    /// The time between two samples, in ns; the first sample is at 0.
    pub every_ns: Time,
    /// The CPUs of each pool.
    pub pools: Vec<Vec<u32>>,
    /// The jobs, as indices into the outcome's `jobs`, in the order of their first sample.
    pub jobs: Vec<u32>,
    /// By sample and CPU: an index into `jobs` of this trace; `None` if no job had the CPU.
    pub moments: Vec<Vec<Option<usize>>>,
}

/// One copy of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// The job's name in the workload.
    pub name: String,
    /// The path of the job's unit.
    pub unit: String,
    /// When it started, in ns.
    pub started_ns: Time,
    /// When it ended, in ns; `None` if the run ended first.
    pub ended_ns: Option<Time>,
    /// How its tasks spent their time.
    pub spent: Spent,
}

impl JobOutcome {
    /// The job's response time, in ns; `None` if it did not end.
    pub fn response_ns(&self) -> Option<Time> {
        self.ended_ns.map(|ended| ended - self.started_ns)
    }
}

/// How often a job went through the outermost loops of its program, summed over its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoundsOutcome {
    /// The job's name in the workload.
    pub job: String,
    /// The number of completed rounds.
    pub rounds: u64,
    /// The time between two samples in `by_then`, in ns: a second, or more if the horizon is far.
    pub every_ns: Time,
    /// The samples: the completed rounds at each multiple of `every_ns`, from 0 on, up to the last round.
    pub by_then: Vec<u64>,
}

impl RoundsOutcome {
    /// The rounds completed by a time, interpolated linearly between two samples and rounded down.
    pub fn by(&self, at: Time) -> u64 {
        let sample = |index: Time| {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            self.by_then.get(index).copied().unwrap_or(self.rounds)
        };
        let (index, rest) = (at / self.every_ns, at % self.every_ns);
        let since_sample =
            u128::from(sample(index + 1) - sample(index)) * u128::from(rest) / u128::from(self.every_ns);
        sample(index) + u64::try_from(since_sample).unwrap_or(0)
    }
}

/// The waits of a job's tasks for a CPU after waking up, over all its copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WakesOutcome {
    /// The job's name in the workload.
    pub job: String,
    /// The number of waits: how often a blocked task woke up and then got a CPU.
    pub count: u64,
    /// The median wait, in ns, rounded down by less than one part in 64.
    pub median_ns: Time,
    /// The 99th percentile of waits, in ns, rounded like the median.
    pub p99_ns: Time,
    /// The longest wait, in ns.
    pub max_ns: Time,
    /// For a job with a `deadline`: how often a task that woke up slept again, or ended, within the deadline.
    pub met: u64,
    /// How often such a task exceeded the deadline.
    pub missed: u64,
}

/// A unit's entitlement and use of resources.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnitOutcome {
    /// The unit's path.
    pub name: String,
    /// The mean entitlement over the run, in millionths of a CPU.
    pub entitled_micro_cpus: u64,
    /// CPU time of the unit's tasks, in ns.
    pub used_ns: u64,
    /// CPU time of other units' tasks on the unit's home CPUs, in ns.
    pub lent_ns: u64,
    /// CPU time of the unit's tasks on other units' home CPUs, in ns.
    pub borrowed_ns: u64,
    /// The number of CPUs that it called back.
    pub called_back: u64,
    /// The mean time from a call-back until a task of the unit runs on the CPU, in ns.
    pub call_back_mean_ns: u64,
    /// The longest such time, in ns.
    pub call_back_max_ns: u64,
    /// The histogram of call-backs: upper bounds in ns, ascending, each with the number of call-backs below
    /// it and not below the previous class. Classes without call-backs, and the unbounded one, are left out.
    #[serde(skip)]
    pub call_backs: Vec<(Time, u64)>,
    /// How long its tasks waited for a CPU after they woke up.
    #[serde(skip)]
    pub wakes: Latencies,
    /// How long its tasks took from a wake-up until they blocked again or ended.
    #[serde(skip)]
    pub responses: Latencies,
    /// The longest wait of one of its tasks for a CPU, in ns.
    pub waited_max_ns: Time,
    /// The unit's page frames at the end.
    pub frames: u64,
    /// The mean of the unit's page frames over the run, rounded down.
    pub frames_mean: u64,
    /// The maximum of the unit's page frames.
    pub frames_max: u64,
    /// How long its tasks waited for frames, summed over tasks, in ns. They waited for other units' pages or
    /// their own unit's to be written.
    pub memory_waited_ns: Time,
    /// The call-backs of memory that the unit had lent.
    pub memory_call_backs: MemoryCallBacks,
    /// CPU time of the unit's own tasks in each whole window of the run, in ns.
    pub used_by_window_ns: Vec<Time>,
    /// The entitlement of the unit's own tasks in each window, without its sub-units, in ns of CPU time.
    pub entitled_by_window_ns: Vec<Time>,
    /// Whether the contract was kept, by the ledger's verdicts on the last ten seconds at each second of the
    /// run. One broken verdict breaks it.
    pub verdict: Verdict,
}

/// A unit's call-backs of lent memory. A call-back lasts from the moment when the unit was short until all
/// that the unit was allowed was its own or free, or all its requests were granted for a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryCallBacks {
    /// The number of call-backs.
    pub count: u64,
    /// The median length, in ns.
    pub median_ns: Time,
    /// The maximum length, in ns; a call-back in progress at the end of the run counts with its length so
    /// far.
    pub max_ns: Time,
    /// The longest promised time, in ns.
    pub promised_max_ns: Time,
    /// The number of call-backs that took longer than promised when they began: longer than the contract's
    /// `call-back-memory`, or than a longer time if the memory had been idle for long.
    pub late: u64,
}

/// The memory of a built-in unit: `kernel`, or `shared` for memory that several units use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommonMemory {
    /// `kernel` or `shared`.
    pub name: String,
    /// Page frames at the end.
    pub frames: u64,
    /// The mean over the run, rounded down.
    pub frames_mean: u64,
    /// The maximum.
    pub frames_max: u64,
}

/// A disk's figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiskOutcome {
    /// The disk's name.
    pub name: String,
    /// The time that it was busy, in ns.
    pub busy_ns: u64,
    /// The number of requests that it served.
    pub requests: u64,
    /// Mean time of a request in service, in ms.
    pub latency_ms: f64,
    /// Mean number of requests that waited or were served, over time.
    pub queue: f64,
    /// Mean number of requests that an arriving request found waiting or in service.
    pub queue_at_arrival: f64,
    /// Each unit's use of the disk.
    pub units: Vec<DiskUse>,
}

/// A unit's use of a disk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiskUse {
    /// The unit's path.
    pub unit: String,
    /// The unit's requests.
    pub requests: u64,
    /// The sectors that these transferred.
    pub sectors: u64,
    /// Mean wait of a request in the queue, in ms.
    pub wait_ms: f64,
    /// Mean time of a request in service, in ms.
    pub service_ms: f64,
}

/// A lock's figures, as lock metering reports them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockOutcome {
    /// The lock's name.
    pub name: String,
    /// How often it was taken.
    pub taken: u64,
    /// How often a task waited for the lock.
    pub waits: u64,
    /// The sum of these waits, in ns.
    pub waited_ns: Time,
    /// The longest wait, in ns.
    pub waited_max_ns: Time,
    /// How long tasks held the lock, in ns. Readers that hold it at the same time count separately.
    pub held_ns: Time,
    /// The longest hold, in ns.
    pub held_max_ns: Time,
}
