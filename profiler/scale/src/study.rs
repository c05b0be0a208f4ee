//! A study: the runs of a program at growing sizes.

use commonhold_machine::CpuSet;

use crate::fit::Point;
use crate::locks::Locks;
use crate::observed::Observed;
use crate::real;
use crate::states::Times;

/// What grows from size to size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// The CPUs that the program may use.
    Cpus,
    /// A number in the program's command line. The program may use all CPUs.
    Number,
    /// Both the CPUs and the number in the command line.
    Both,
}

impl Sizes {
    /// The unit of a size in reports, singular or plural.
    pub fn noun(self, n: u32) -> &'static str {
        match (self, n) {
            (Sizes::Cpus | Sizes::Both, 1) => "CPU",
            (Sizes::Cpus | Sizes::Both, _) => "CPUs",
            (Sizes::Number, _) => "{n} =",
        }
    }
}

/// How throughput is measured.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Runs per second: every run does the same work, whatever the size.
    Runs,
    /// The number that the program prints, found by that pattern.
    Printed(String),
    /// By the rows of that file. No program was run.
    Points(String),
}

/// A CPU quota: the smallest one of the program's control group and that group's ancestors.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Quota {
    /// The quota as a number of CPUs, above 0.
    pub cpus: f64,
    /// The file that sets it.
    pub file: String,
}

/// Load on the CPUs of a run. The kernel counts load in ticks of 10 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Load {
    /// The run's length times its CPUs.
    pub whole_ns: u64,
    /// CPU time of other programs and of interrupts.
    pub others_ns: u64,
    /// Steal time: CPU time that the hypervisor gave to other virtual machines.
    pub stolen_ns: u64,
    /// Throttled time of the control group, summed over its CPUs.
    pub throttled_ns: u64,
}

impl Load {
    fn add(&mut self, other: &Load) {
        self.whole_ns += other.whole_ns;
        self.others_ns += other.others_ns;
        self.stolen_ns += other.stolen_ns;
        self.throttled_ns += other.throttled_ns;
    }
}

/// A program's runs at growing sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// The command line.
    pub command: String,
    /// The machine, in a few words.
    pub machine: String,
    /// What grows.
    pub sizes_are: Sizes,
    /// How throughput is measured.
    pub measure: Measure,
    /// The number of runs before the measured ones that were not counted.
    pub warm_up: u32,
    /// The runs of each size, by ascending size.
    pub sizes: Vec<Size>,
    /// The CPU quota of all runs.
    pub quota: Option<Quota>,
    /// The experiment with the program's locks, if there was one.
    pub locks: Option<Locks>,
    /// What could not be measured.
    pub limits: Vec<Limit>,
}

/// All runs of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Size {
    /// The size.
    pub n: u32,
    /// The CPUs that the program was allowed.
    pub cpus: CpuSet,
    /// What is new about these CPUs compared to smaller sizes, such as a second node.
    pub step: Option<&'static str>,
    /// The runs that were counted.
    pub runs: Vec<Run>,
    /// Why the size has no runs; `None` if it has.
    pub failed: Option<String>,
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Wall-clock time from its start to its end.
    pub wall_ns: u64,
    /// Work per second.
    pub throughput: f64,
    /// External load on its CPUs.
    pub load: Load,
    /// What its threads did, if they were sampled.
    pub watched: Option<Watched>,
}

/// What the threads of one run did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Watched {
    /// The time by state, summed over all threads.
    pub times: Times,
    /// The time by state of the threads of each name, those with most CPU time first.
    pub by_name: Vec<Named>,
    /// The number of threads.
    pub threads: u64,
    /// The number of samples of threads.
    pub samples: u64,
    /// What the threads waited for.
    pub observed: Observed,
}

/// Threads of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The number of these threads.
    pub threads: u64,
    /// The time by state, summed over these threads.
    pub times: Times,
}

/// Something that could not be measured, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Limit {
    /// What is missing.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Run {
    /// Wall-clock time in seconds.
    pub fn wall_s(&self) -> f64 {
        real(self.wall_ns) / 1e9
    }

    /// Work done, in the unit of throughput.
    pub fn work(&self) -> f64 {
        self.throughput * self.wall_s()
    }
}

impl Size {
    /// Median, lowest and highest throughput of the runs; `None` without runs.
    pub fn throughput(&self) -> Option<(f64, f64, f64)> {
        let mut sorted: Vec<f64> = self.runs.iter().map(|run| run.throughput).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Some((median(&sorted)?, *sorted.first()?, *sorted.last()?))
    }

    /// Median wall-clock time of the runs, in seconds; `None` without runs.
    pub fn wall_s(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.runs.iter().map(Run::wall_s).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        median(&sorted)
    }

    /// Sum of the load over all runs.
    pub fn load(&self) -> Load {
        let mut sum = Load::default();
        self.runs.iter().for_each(|run| sum.add(&run.load));
        sum
    }

    /// Time by state summed over all sampled runs, and the number of these runs.
    pub fn times(&self) -> (Times, u64) {
        let mut sum = Times::default();
        let watched = self.runs.iter().filter_map(|run| run.watched.as_ref());
        let count = watched.map(|watched| sum.add_all(&watched.times)).count();
        (sum, count as u64)
    }
}

/// The median of sorted numbers; `None` if there are no numbers.
fn median(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    let (a, b) = (sorted.get(n.checked_sub(1)? / 2)?, sorted.get(n / 2)?);
    Some(f64::midpoint(*a, *b))
}

impl Study {
    /// The sizes that were measured.
    pub fn measured(&self) -> impl DoubleEndedIterator<Item = &Size> {
        self.sizes.iter().filter(|size| !size.runs.is_empty())
    }

    /// Whether a size needs more CPUs than the program may use or its quota allows. At such a size, threads
    /// take turns on the CPUs, so the law is not fitted to it.
    pub fn is_beyond(&self, size: &Size) -> bool {
        let quota = self.quota.as_ref().map_or(f64::INFINITY, |quota| quota.cpus);
        let is_points = matches!(self.measure, Measure::Points(_));
        !is_points && f64::from(size.n) > quota.min(real(size.cpus.len() as u64))
    }

    /// The measured sizes that have as many CPUs as they need.
    pub fn within(&self) -> impl DoubleEndedIterator<Item = &Size> {
        self.measured().filter(|size| !self.is_beyond(size))
    }

    /// Every run that the law is fitted to, as a point.
    pub fn points(&self) -> Vec<Point> {
        let points_of_size = |size: &Size| -> Vec<Point> {
            let point = |run: &Run| Point { size: size.n, throughput: run.throughput };
            size.runs.iter().map(point).collect()
        };
        self.within().flat_map(points_of_size).collect()
    }
}
