//! Hardware counters of jobs: cache misses of processes that do not report their memory bus transfers.
//!
//! Algorithm: each thread of a process gets a counter when the process is first seen. The kernel counts a
//! thread that starts later with the thread that started it. Each sample adds the growth of the counters to
//! the sum of the process's job. A cache miss counts as the bytes of a cache line.
//!
//! Properties: a job's sum never decreases. A process that reports its transfers has no counters here, so
//! nothing counts twice. There are at most [`COUNTERS_MAX`] counters, each an open file.
//!
//! Limits: a thread that starts while its process is first seen may be missed. Misses in the kernel are not
//! counted, nor are prefetches on processors whose counters leave them out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_policy::{JobId, SharedUse, Time};

use super::line_bytes;
use crate::LiveError;
use crate::host::perf::{Event, OfThread};
use crate::observe::files::Tree;
use crate::observe::process::{Pins, ProcFs, ProcessKey};

/// The most counters at one time.
pub(crate) const COUNTERS_MAX: usize = 512;

/// The line size is read from the caches of this number of CPUs, from CPU 0 on.
const LINE_SIZE_CPUS: u32 = 8;

/// The counters of jobs' processes.
#[derive(Debug)]
pub(crate) struct Counters {
    event: Event,
    limit: usize,
    /// The bytes of a cache line; `None` before the first sample.
    line_bytes: Option<u64>,
    /// `None`: this machine has no such counters.
    processes: Option<BTreeMap<ProcessKey, Counted>>,
    sums: BTreeMap<JobId, u64>,
    /// Whether a lack of counters was already reported.
    has_complained: bool,
}

/// The counters of one process.
#[derive(Debug, Default)]
struct Counted {
    /// A counter for each thread, with its last value. Empty for a process that cannot be counted.
    threads: Vec<(OfThread, u64)>,
    /// Whether any counter ever ran. Until then the use of the process is unknown, and must not count as 0.
    has_run: bool,
}

impl Default for Counters {
    fn default() -> Self {
        Counters::new(Event::MISSES, COUNTERS_MAX)
    }
}

impl Counters {
    fn new(event: Event, limit: usize) -> Counters {
        let processes = Some(BTreeMap::new());
        let sums = BTreeMap::new();
        Counters { event, limit, line_bytes: None, processes, sums, has_complained: false }
    }

    /// Reads the counters of these processes, opening counters for processes that are new, and returns the
    /// sums of their jobs. If more counters are needed than the limit allows, adds a problem to `problems`,
    /// once.
    pub(crate) fn sample(
        &mut self,
        now: Time,
        jobs: &BTreeMap<ProcessKey, JobId>,
        procfs: &mut ProcFs,
        problems: &mut Vec<LiveError>,
    ) -> BTreeMap<JobId, SharedUse> {
        let line_bytes =
            *self.line_bytes.get_or_insert_with(|| line_bytes(&Tree::new(Path::new("/")), 0..LINE_SIZE_CPUS));
        let present: BTreeSet<JobId> = jobs.values().copied().collect();
        self.sums.retain(|job, _| present.contains(job));
        let Some(processes) = &mut self.processes else { return BTreeMap::new() };
        processes.retain(|key, _| jobs.contains_key(key));
        let mut open: usize = processes.values().map(|process| process.threads.len()).sum();
        let mut pins = Pins::default();
        for key in jobs.keys() {
            if processes.contains_key(key) {
                continue;
            }
            let mut tids = Vec::new();
            if procfs.threads(key.pid, &mut tids).is_err() {
                continue;
            }
            if open + tids.len() > self.limit {
                if !std::mem::replace(&mut self.has_complained, true) {
                    problems.push(too_many(key.pid, self.limit));
                }
                continue;
            }
            let mut counted = Counted::default();
            for tid in tids {
                // `perf_event_open(2)` takes a thread id, which another process's thread may have by now.
                // Then the counter is closed before it is ever read.
                let counter = OfThread::open(self.event, tid)
                    .and_then(|counter| Ok(pins.pin(procfs, *key)?.has_thread(tid)?.then_some(counter)));
                match counter {
                    Ok(counter) => counted.threads.extend(counter.map(|counter| (counter, 0))),
                    Err(error) if is_permanent(error.raw_os_error()) => {
                        self.processes = None;
                        return BTreeMap::new();
                    }
                    // The thread is another user's, or has ended.
                    Err(_) => {}
                }
            }
            open += counted.threads.len();
            processes.insert(*key, counted);
        }
        for (key, process) in processes {
            let Some(job) = jobs.get(key) else { continue };
            let new_events = process.read_new_events();
            if process.has_run {
                let sum = self.sums.entry(*job).or_default();
                *sum = sum.saturating_add(new_events.saturating_mul(line_bytes));
            }
        }
        self.sums.iter().map(|(job, bytes)| (*job, SharedUse { at: now, amount: *bytes })).collect()
    }

    /// Whether events of this process were counted, as of the last sample.
    pub(crate) fn counts(&self, key: ProcessKey) -> bool {
        let counted = self.processes.as_ref().and_then(|processes| processes.get(&key));
        counted.is_some_and(|process| process.has_run)
    }
}

impl Counted {
    /// Reads the counters of its threads, and returns the number of events since the last call.
    fn read_new_events(&mut self) -> u64 {
        let mut sum = 0u64;
        for (counter, previous) in &mut self.threads {
            let Ok(Some(count)) = counter.read() else { continue };
            self.has_run = true;
            // Counts are scaled estimates, which may decrease slightly.
            let count = count.max(*previous);
            sum = sum.saturating_add(count - *previous);
            *previous = count;
        }
        sum
    }
}

/// Whether an error means that this machine cannot count any process.
fn is_permanent(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOENT | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV))
}

/// The problem to report when processes are not counted because the limit is reached.
fn too_many(pid: u32, limit: usize) -> LiveError {
    LiveError::Unavailable {
        what: format!(
            "process {pid} and others are not counted on the memory bus: the limit of {limit} counted threads is reached"
        ),
        remedy: "have them report their transfers (docs/gangs.md)".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn this_process() -> ProcessKey {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        procfs.stat(std::process::id()).unwrap().unwrap().key
    }

    fn jobs() -> BTreeMap<ProcessKey, JobId> {
        BTreeMap::from([(this_process(), JobId(1))])
    }

    #[test]
    fn events_of_threads_add_to_their_jobs_sum() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut counters = Counters::new(Event::FAULTS, 10_000);
        counters.line_bytes = Some(64);
        let mut look = |now: Time, jobs: &BTreeMap<ProcessKey, JobId>| {
            let found = counters.sample(now, jobs, &mut procfs, &mut Vec::new());
            found.get(&JobId(1)).copied()
        };
        let Some(first) = look(1, &jobs()) else {
            // A sandbox may forbid them all.
            let refused = OfThread::open(Event::FAULTS, 0).unwrap_err();
            assert!(
                matches!(refused.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)),
                "{refused}"
            );
            return;
        };
        // In a thread that starts after the first sample. The allocation is so large that its pages are
        // always new: a smaller one may reuse pages touched before.
        let touch = || std::hint::black_box(vec![1u8; 64 << 20]).len();
        assert_eq!(std::thread::spawn(touch).join().unwrap(), 64 << 20);
        let second = look(2, &jobs()).unwrap();
        assert!(
            second.amount > first.amount && second.amount % 64 == 0 && second.at == 2,
            "{first:?} {second:?}"
        );
        let read: u64 = counters
            .processes
            .iter()
            .flatten()
            .flat_map(|(_, process)| &process.threads)
            .map(|(_, n)| n)
            .sum();
        assert_eq!(second.amount, 64 * read, "nothing counts twice");
        let gone = counters.sample(3, &BTreeMap::new(), &mut procfs, &mut Vec::new());
        assert_eq!(gone.get(&JobId(1)), None, "its job is gone");
    }

    /// Fails if a thread is counted without checking its process's start time.
    #[test]
    fn a_reused_pid_is_not_counted() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut counters = Counters::new(Event::FAULTS, 10_000);
        let earlier = ProcessKey { start: 1, ..this_process() };
        counters.sample(1, &BTreeMap::from([(earlier, JobId(1))]), &mut procfs, &mut Vec::new());
        let counted =
            counters.processes.iter().flat_map(BTreeMap::values).map(|process| process.threads.len());
        assert_eq!(counted.sum::<usize>(), 0);
    }

    #[test]
    fn the_limit_of_counters_is_reported_once() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut counters = Counters::new(Event::FAULTS, 0);
        let mut problems = Vec::new();
        for now in 1..3 {
            assert!(counters.sample(now, &jobs(), &mut procfs, &mut problems).is_empty());
        }
        assert_eq!(problems.len(), 1);
        assert!(problems[0].to_string().contains("the limit of 0 counted threads"), "{}", problems[0]);
    }

    #[test]
    fn a_machine_without_counters_is_tried_once() {
        assert!(is_permanent(Some(libc::ENOENT)) && is_permanent(Some(libc::EINVAL)));
        assert!(
            !is_permanent(Some(libc::EACCES)) && !is_permanent(Some(libc::ESRCH)),
            "others may be counted"
        );
    }
}
