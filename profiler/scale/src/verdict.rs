//! Determines whether external load or a quota makes the study inconclusive. If so, this is reported before
//! any number.
//!
//! Problem: the law attributes every loss of throughput to the program. If other programs used the CPUs, or a
//! control group was throttled, a program without any lock appears to be serialised.
//!
//! Algorithm: external load is the machine's busy time less the program's, over all runs of a size. The study
//! is inconclusive if there was external load and the program's threads queued for CPUs: load on CPUs that
//! the program leaves idle does no harm. Steal time of a hypervisor always makes the study inconclusive.
//!
//! Limits: busy time is counted in ticks of 10 ms, so less than [`LEAST_NS`] for a size is within the error.

use crate::real;
use crate::states::State;
use crate::study::{Size, Study};

/// External load below this fraction of the CPU time is ignored: the confidence intervals of a fit are rarely
/// narrower.
const OTHERS_MIN: f64 = 0.05;
/// Queueing below this fraction of the CPU time that threads want is ignored.
const QUEUE_MIN: f64 = 0.02;
/// Smallest significant load: ten ticks.
const LEAST_NS: u64 = 100_000_000;

/// An external bound on the program.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "outside")]
pub enum Outside {
    /// Other programs used CPUs that the program's threads queued for.
    Others {
        /// The size with the largest such load.
        size: u32,
        /// The load as a fraction of the time of that size's CPUs, from 0 to 1.
        part: f64,
    },
    /// A CPU quota throttled the program.
    Quota {
        /// The quota, as a number of CPUs.
        cpus: f64,
        /// Throttled time divided by the wall-clock time of all runs: 0.5 is half a CPU.
        throttled: f64,
    },
}

/// The external bound on a study. Load takes precedence over a quota. `None` if there is neither.
pub fn outside(study: &Study) -> Option<Outside> {
    others(study).or_else(|| quota(study))
}

/// The largest external load on CPUs that the program's threads queued for.
fn others(study: &Study) -> Option<Outside> {
    let loads =
        study.within().filter(|size| is_kept_waiting(size)).map(|size| (size.n, part_of_others(size)));
    let (size, part) = loads.max_by(|a, b| a.1.total_cmp(&b.1))?;
    (part >= OTHERS_MIN).then_some(Outside::Others { size, part })
}

/// External load as a fraction of the time of a size's CPUs; 0 if the load is within the error.
fn part_of_others(size: &Size) -> f64 {
    let load = size.load();
    let external_ns = load.others_ns.saturating_add(load.stolen_ns);
    if load.whole_ns == 0 || external_ns < LEAST_NS {
        return 0.0;
    }
    (real(external_ns) / real(load.whole_ns)).min(1.0)
}

/// Whether external load may have kept the program's threads from running: threads queued, CPU time was
/// stolen, or threads were not sampled, so that nothing is known.
fn is_kept_waiting(size: &Size) -> bool {
    let (times, watched) = size.times();
    let load = size.load();
    let wanted = times.ran().saturating_add(times.of(State::Queue));
    watched == 0
        || real(load.stolen_ns) >= real(load.whole_ns) * OTHERS_MIN
        || real(times.of(State::Queue)) >= real(wanted) * QUEUE_MIN
}

/// The quota, if it throttled a run or a size exceeds it.
fn quota(study: &Study) -> Option<Outside> {
    let quota = study.quota.as_ref()?;
    let (mut throttled, mut wall) = (0.0, 0.0);
    for run in study.measured().flat_map(|size| &size.runs) {
        throttled += real(run.load.throttled_ns);
        wall += real(run.wall_ns);
    }
    let is_effective = throttled > 0.0 || study.measured().any(|size| f64::from(size.n) > quota.cpus);
    is_effective.then(|| Outside::Quota { cpus: quota.cpus, throttled: throttled / wall.max(1.0) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::states::Times;
    use crate::study::{Load, Measure, Quota, Run, Sizes, Watched};

    const S: u64 = 1_000_000_000;

    /// One run of a second on `n` CPUs, with a thread on each.
    fn size(n: u32, others_ns: u64, queue_ns: u64) -> Size {
        let mut times = Times::default();
        times.add(State::User, u64::from(n) * S - queue_ns);
        times.add(State::Queue, queue_ns);
        let load = Load { whole_ns: u64::from(n) * S, others_ns, ..Load::default() };
        let watched = Some(Watched { times, ..Watched::default() });
        let run = Run { wall_ns: S, throughput: f64::from(n), load, watched };
        Size { n, cpus: (0..n).collect(), step: None, runs: vec![run], failed: None }
    }

    fn study(sizes: Vec<Size>) -> Study {
        Study {
            command: "x".into(),
            machine: "y".into(),
            sizes_are: Sizes::Cpus,
            measure: Measure::Runs,
            warm_up: 0,
            sizes,
            quota: None,
            locks: None,
            limits: Vec::new(),
        }
    }

    #[test]
    fn external_load_matters_where_the_program_queues_for_cpus() {
        let quiet = study(vec![size(1, 0, 0), size(2, S / 50, S / 10)]);
        assert_eq!(outside(&quiet), None);
        let beside = study(vec![size(1, S / 2, 0), size(2, S, 0)]);
        assert_eq!(outside(&beside), None, "they had CPUs that the program left idle");
        let busy = study(vec![size(1, S / 10, S / 10), size(2, S, S)]);
        assert_eq!(outside(&busy), Some(Outside::Others { size: 2, part: 0.5 }));
        let mut unwatched = busy.clone();
        unwatched.sizes.iter_mut().flat_map(|size| &mut size.runs).for_each(|run| run.watched = None);
        assert_eq!(outside(&unwatched), outside(&busy));
        let mut stolen = beside;
        stolen.sizes[1].runs[0].load = Load { whole_ns: 2 * S, stolen_ns: S, ..Load::default() };
        assert_eq!(outside(&stolen), Some(Outside::Others { size: 2, part: 0.5 }));
    }

    #[test]
    fn a_quota_is_named_where_it_holds_a_size_back() {
        let mut study = study(vec![size(1, 0, 0), size(2, 0, 0), size(4, 0, 0)]);
        study.quota = Some(Quota { cpus: 4.0, file: "cpu.max".into() });
        assert_eq!(outside(&study), None);
        study.quota = Some(Quota { cpus: 1.5, file: "cpu.max".into() });
        study.sizes[2].runs[0].load.throttled_ns = 3 * S;
        assert_eq!(outside(&study), Some(Outside::Quota { cpus: 1.5, throttled: 1.0 }));
        // The law is not fitted to sizes beyond the quota.
        assert_eq!(study.points().iter().map(|point| point.size).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_law_is_not_fitted_to_more_threads_than_cpus() {
        let mut study = study(vec![size(1, 0, 0), size(2, 0, 0), size(8, 0, 0)]);
        study.sizes_are = Sizes::Number;
        study.sizes.iter_mut().for_each(|size| size.cpus = (0..2).collect());
        assert_eq!(study.points().iter().map(|point| point.size).collect::<Vec<_>>(), [1, 2]);
    }
}
