//! Lock statistics from the meter, and the experiment with one lock.

/// The kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One thread at a time; others sleep.
    Mutex,
    /// One writer, or several readers; others sleep.
    Rwlock,
    /// One thread at a time; others spin.
    Spin,
}

impl Kind {
    /// Its name in reports.
    pub fn noun(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Rwlock => "rwlock",
            Kind::Spin => "spinlock",
        }
    }
}

/// Counters of a lock, in total or at one call site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Counts {
    /// The number of acquisitions.
    pub total: u64,
    /// The number of acquisitions by readers.
    pub shared: u64,
    /// The number of acquisitions after a wait.
    pub waited: u64,
    /// Total wait time.
    pub wait_ns: u64,
    /// The longest wait.
    pub wait_max_ns: u64,
    /// Total hold time.
    pub hold_ns: u64,
    /// The longest hold.
    pub hold_max_ns: u64,
    /// How often a trylock or a timed lock failed.
    pub rejected: u64,
    /// The number of acquisitions at the end of a wait on a condition variable. Whether these waited for the
    /// lock is unknown.
    pub retaken: u64,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, other: &Counts) {
        self.total += other.total;
        self.shared += other.shared;
        self.waited += other.waited;
        self.wait_ns += other.wait_ns;
        self.wait_max_ns = self.wait_max_ns.max(other.wait_max_ns);
        self.hold_ns += other.hold_ns;
        self.hold_max_ns = self.hold_max_ns.max(other.hold_max_ns);
        self.rejected += other.rejected;
        self.retaken += other.retaken;
    }
}

/// A call site that takes a lock.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Site {
    /// The function and place, as in `push (queue.c:41)`.
    pub name: String,
    /// The counters of this call site.
    pub counts: Counts,
    /// Call sites at which holders had taken the lock while threads waited here, with the wait time in ns,
    /// descending.
    pub held_by: Vec<(String, u64)>,
}

/// A lock, or a class of locks: those on the heap that were first taken at the same call site.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Lock {
    /// Identifies the class; the same in every run.
    pub class: u64,
    /// Its kind.
    pub kind: Kind,
    /// The variable, or the call site that took it first.
    pub name: String,
    /// Whether `name` is a variable.
    pub is_variable: bool,
    /// How many locks of this class there are.
    pub locks: u64,
    /// The sum of the counters of all locks of the class.
    pub counts: Counts,
    /// Utilisation of the class's busiest lock: its hold time over the time from its first request to its
    /// last release.
    pub utilisation: f64,
    /// The busiest lock's fraction of all acquisitions of the class, from 0 to 1.
    pub busiest: f64,
    /// Call sites, by wait time, descending.
    pub sites: Vec<Site>,
    /// The mean cycle from request to request of the busiest lock, if cycles were sampled.
    pub cycle: Option<Cycle>,
}

/// Means over the cycles of threads from one request of a lock to the next.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Cycle {
    /// Mean number of threads that use the lock during `span_s`.
    pub threads: f64,
    /// The time from the first request of the lock to the last release.
    pub span_s: f64,
    /// The number of acquisitions in that time.
    pub taken: u64,
    /// CPU time under the lock, injected delays included.
    pub hold_cpu_s: f64,
    /// Time asleep under the lock.
    pub hold_sleep_s: f64,
    /// CPU time outside of the lock, injected delays included.
    pub gap_cpu_s: f64,
    /// Time asleep outside of the lock.
    pub gap_sleep_s: f64,
    /// Time runnable without a CPU, under the lock and outside.
    pub queue_s: f64,
    /// Injected delay per acquisition.
    pub injected_s: f64,
    /// The number of sampled cycles.
    pub samples: u64,
}

/// Where a delay is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delay {
    /// No delay.
    No,
    /// Under the lock.
    Inside,
    /// Right after the lock was released.
    Outside,
}

/// One run of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Trial {
    /// Where the delay was injected.
    pub delay: Delay,
    /// The requested delay, in ns.
    pub delay_ns: u64,
    /// Wall-clock time.
    pub wall_s: f64,
    /// Work per second.
    pub throughput: f64,
    /// The mean cycle that the meter measured in this run.
    pub cycle: Cycle,
}

/// Lock statistics and the experiment of a study.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Locks {
    /// The size at which the runs were made.
    pub size: u32,
    /// The CPUs of that size.
    pub cpus: u32,
    /// Throughput of runs without the meter, which alternate with the metered runs.
    pub plain: Vec<f64>,
    /// Throughput of runs with the meter, but without a delay.
    pub metered: Vec<f64>,
    /// The locks of the metered run, by wait time, descending.
    pub locks: Vec<Lock>,
    /// The sum of the lives of all threads of that run, in ns.
    pub lives_ns: u64,
    /// The sampled time in [`State::Lock`](crate::states::State::Lock) of all threads of that run, in ns.
    pub lock_ns: u64,
    /// Locks not counted because the meter's tables were full.
    pub overflowed: u64,
    /// Why the experiment stopped, if a run failed.
    pub failed: Option<String>,
    /// The class of the lock that the experiment delayed.
    pub tried: Option<u64>,
    /// The runs of the experiment.
    pub trials: Vec<Trial>,
}

impl Locks {
    /// The lock to experiment with: the one with most wait time, or with the highest utilisation if there are
    /// no waits.
    pub fn suspect(&self) -> Option<&Lock> {
        let used = || self.locks.iter().filter(|lock| lock.counts.total > 0);
        let longest = used().max_by_key(|lock| lock.counts.wait_ns).filter(|lock| lock.counts.wait_ns > 0);
        longest.or_else(|| used().max_by(|a, b| a.utilisation.total_cmp(&b.utilisation)))
    }

    /// The lock that the experiment delayed.
    pub fn tried(&self) -> Option<&Lock> {
        self.locks.iter().find(|lock| Some(lock.class) == self.tried)
    }
}
