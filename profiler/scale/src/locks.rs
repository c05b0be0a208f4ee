//! What a meter in the program tells of its locks, and the experiments that were made with one of them.

/// What kind of lock it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One thread at a time; others sleep.
    Mutex,
    /// One writer, or several readers; others sleep.
    Rwlock,
    /// One thread at a time; others compute until it is free.
    Spin,
}

impl Kind {
    /// In one word.
    pub fn noun(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Rwlock => "rwlock",
            Kind::Spin => "spinlock",
        }
    }
}

/// Counts of a lock, or of a lock at one place that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Counts {
    /// How often it was taken.
    pub total: u64,
    /// Of these, by readers.
    pub shared: u64,
    /// Of these, after a wait.
    pub waited: u64,
    /// How long was waited.
    pub wait_ns: u64,
    /// The longest wait.
    pub wait_max_ns: u64,
    /// How long it was held.
    pub hold_ns: u64,
    /// The longest.
    pub hold_max_ns: u64,
    /// How often it was asked for and not taken.
    pub rejected: u64,
    /// Taken again by the end of a wait for a condition. Whether that had to wait is not known.
    pub retaken: u64,
}

impl Counts {
    /// Adds another's.
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

/// A place in the program that takes a lock.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Site {
    /// `push (queue.c:41)`.
    pub name: String,
    /// What was done there.
    pub counts: Counts,
    /// Where it was held while others waited here, and for how long, in ns; the longest first.
    pub held_by: Vec<(String, u64)>,
}

/// A lock, or locks of one class: those on the heap that were first taken at the same place.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Lock {
    /// The same in every run.
    pub class: u64,
    /// What kind of lock.
    pub kind: Kind,
    /// The variable, or where it was first taken.
    pub name: String,
    /// It is a variable of that name.
    pub is_variable: bool,
    /// How many locks of this class there are.
    pub locks: u64,
    /// All of them together.
    pub counts: Counts,
    /// Of the time from its first request to its last release, the part for which the busiest of them was held.
    pub utilisation: f64,
    /// What part of all that was taken of this class, the busiest was.
    pub busiest: f64,
    /// Where it is taken, the places with the longest waits first.
    pub sites: Vec<Site>,
    /// The threads' way from request to request of the busiest lock.
    pub cycle: Option<Cycle>,
}

/// What threads do from one request of a lock to the next: means.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Cycle {
    /// Threads that take it, in the mean over the time in which any does.
    pub threads: f64,
    /// From the first request to the last release.
    pub span_s: f64,
    /// How often it was taken in that time.
    pub taken: u64,
    /// CPU time under the lock, injected delays included.
    pub hold_cpu_s: f64,
    /// Time asleep under the lock.
    pub hold_sleep_s: f64,
    /// CPU time outside of it, injected delays included.
    pub gap_cpu_s: f64,
    /// Time asleep outside of it.
    pub gap_sleep_s: f64,
    /// Waits for a CPU, under the lock and outside of it.
    pub queue_s: f64,
    /// What was injected, for each time that it was taken.
    pub injected_s: f64,
    /// How many cycles were looked at closely.
    pub samples: u64,
}

/// Where a delay is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delay {
    /// Nowhere.
    No,
    /// Under the lock.
    Inside,
    /// Right after it was released.
    Outside,
}

/// One run of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Trial {
    /// Where was delayed.
    pub delay: Delay,
    /// For how long, in ns: what was asked for.
    pub delay_ns: u64,
    /// From its start to its end.
    pub wall_s: f64,
    /// Work per second.
    pub throughput: f64,
    /// What the meter told of the lock.
    pub cycle: Cycle,
}

/// What was found out about locks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Locks {
    /// The size at which the runs were made.
    pub size: u32,
    /// The CPUs of that size.
    pub cpus: u32,
    /// Throughput without the meter, in turns with the other runs.
    pub plain: Vec<f64>,
    /// Throughput with the meter.
    pub metered: Vec<f64>,
    /// The locks of the last metered run, those with the longest waits first.
    pub locks: Vec<Lock>,
    /// Lives of all threads of that run, and what of these was waited for locks, as looks tell it; in ns.
    pub lives_ns: u64,
    /// See there.
    pub lock_ns: u64,
    /// Locks that found no room in the meter's tables.
    pub overflowed: u64,
    /// Why there is no more, where a run failed.
    pub failed: Option<String>,
    /// The lock that was tried: its class.
    pub tried: Option<u64>,
    /// The runs of the experiment with it.
    pub trials: Vec<Trial>,
}

impl Locks {
    /// The lock that is worth an experiment: the one that is waited for longest; if none is, the one that is held most.
    pub fn suspect(&self) -> Option<&Lock> {
        let all = || self.locks.iter().filter(|lock| lock.counts.total > 0);
        let longest = all().max_by_key(|lock| lock.counts.wait_ns).filter(|lock| lock.counts.wait_ns > 0);
        longest.or_else(|| all().max_by(|a, b| a.utilisation.total_cmp(&b.utilisation)))
    }

    /// The lock that was tried.
    pub fn tried(&self) -> Option<&Lock> {
        self.locks.iter().find(|lock| Some(lock.class) == self.tried)
    }
}
