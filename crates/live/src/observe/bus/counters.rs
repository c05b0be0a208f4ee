//! What jobs transfer over the memory bus, by the processor's counters: for those of which no process tells it itself. Or the
//! instructions that jobs execute, of all their processes.
//!
//! Algorithm: each thread of a process gets a counter of misses when the process is seen first. Threads that start later are
//! counted with those that start them. At each look, what the counters have grown by is added to the sum of the process's job,
//! times the line of the cache. Of instructions, each counts as one.
//!
//! Properties: a job's sum never goes back. A process that tells what it transfers has no counters here, so nothing counts
//! twice. There are [`COUNTERS_MAX`] at most, each an open file.
//!
//! Limits: a thread that starts while its process is seen first may be missed. What the kernel fetches for a process is not
//! counted, nor what the processor fetches ahead where its counters leave that out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_contract::GangsShare;
use commonhold_policy::{JobId, SharedUse, Time};

use super::line_bytes;
use crate::LiveError;
use crate::host::perf::{Event, OfThread};
use crate::observe::files::Tree;
use crate::observe::process::{Pins, ProcFs, ProcessKey};

/// Counters at one time.
pub(crate) const COUNTERS_MAX: usize = 512;

/// CPUs whose caches are looked at for the length of a line.
const LOOKED_AT: u32 = 8;

/// The counters of jobs' processes.
#[derive(Debug)]
pub(crate) struct Counters {
    event: Event,
    what: &'static str,
    most: usize,
    /// How much each that is counted stands for; `None`: a line, and nobody looked yet how long one is.
    each: Option<u64>,
    /// `None`: this machine has no such counters, or this user may not have them.
    processes: Option<BTreeMap<ProcessKey, Counted>>,
    sums: BTreeMap<JobId, u64>,
    has_said: bool,
}

#[derive(Debug, Default)]
struct Counted {
    /// With what each had counted when it was read last. None of a process that cannot be counted.
    threads: Vec<(OfThread, u64)>,
    /// One of them ran. Until then nothing is known of the process, and its job must not seem to transfer nothing.
    ran: bool,
}

impl Default for Counters {
    fn default() -> Self {
        Counters::for_share(GangsShare::Bus)
    }
}

impl Counters {
    /// Those of what gangs share, as far as threads are counted for it.
    pub(crate) fn for_share(share: GangsShare) -> Counters {
        match share {
            GangsShare::Bus | GangsShare::Cache => {
                Counters::of(Event::MISSES, "on the memory bus", COUNTERS_MAX)
            }
            GangsShare::Cores => {
                Counters { each: Some(1), ..Counters::of(Event::INSTRUCTIONS, "on the cores", COUNTERS_MAX) }
            }
        }
    }

    fn of(event: Event, what: &'static str, most: usize) -> Counters {
        let processes = Some(BTreeMap::new());
        Counters { event, what, most, each: None, processes, sums: BTreeMap::new(), has_said: false }
    }

    /// What the jobs of these processes transferred. What is to be said of it is put to `problems`, once.
    pub(crate) fn look(
        &mut self,
        now: Time,
        jobs: &BTreeMap<ProcessKey, JobId>,
        procfs: &mut ProcFs,
        problems: &mut Vec<LiveError>,
    ) -> BTreeMap<JobId, SharedUse> {
        let each = *self.each.get_or_insert_with(|| line_bytes(&Tree::new(Path::new("/")), 0..LOOKED_AT));
        let there: BTreeSet<JobId> = jobs.values().copied().collect();
        self.sums.retain(|job, _| there.contains(job));
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
            if open + tids.len() > self.most {
                if !std::mem::replace(&mut self.has_said, true) {
                    problems.push(too_many(key.pid, self.what, self.most));
                }
                continue;
            }
            let mut counted = Counted::default();
            for tid in tids {
                // `perf_event_open(2)` takes a number. A counter that belongs to another process's thread by then is closed
                // before it is ever read.
                let counter = OfThread::open(self.event, tid)
                    .and_then(|counter| Ok(pins.pin(procfs, *key)?.has_thread(tid)?.then_some(counter)));
                match counter {
                    Ok(counter) => counted.threads.extend(counter.map(|counter| (counter, 0))),
                    // For good: there are none here.
                    Err(error) if is_for_good(error.raw_os_error()) => {
                        self.processes = None;
                        return BTreeMap::new();
                    }
                    // Another user's, or one that ended.
                    Err(_) => {}
                }
            }
            open += counted.threads.len();
            processes.insert(*key, counted);
        }
        for (key, process) in processes {
            let Some(job) = jobs.get(key) else { continue };
            let grown = process.grown();
            if process.ran {
                let sum = self.sums.entry(*job).or_default();
                *sum = sum.saturating_add(grown.saturating_mul(each));
            }
        }
        self.sums.iter().map(|(job, bytes)| (*job, SharedUse { at: now, amount: *bytes })).collect()
    }

    /// Whether a thread of this process is counted, as of the last look.
    pub(crate) fn counts(&self, key: ProcessKey) -> bool {
        self.processes.as_ref().and_then(|processes| processes.get(&key)).is_some_and(|process| process.ran)
    }
}

impl Counted {
    /// What its threads did since the last call.
    fn grown(&mut self) -> u64 {
        let mut sum = 0u64;
        for (counter, before) in &mut self.threads {
            let Ok(Some(count)) = counter.read() else { continue };
            self.ran = true;
            let count = count.max(*before);
            sum = sum.saturating_add(count - *before);
            *before = count;
        }
        sum
    }
}

/// Whether an error says that no process will ever be counted.
fn is_for_good(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOENT | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV))
}

fn too_many(pid: u32, what: &str, most: usize) -> LiveError {
    LiveError::Unavailable {
        what: format!(
            "process {pid} and others are not counted {what}: {most} threads are counted already, no more are"
        ),
        remedy: match what {
            "on the cores" => "their jobs are taken to do what `first-rate` says".to_owned(),
            _ => "have them tell it themselves (docs/gangs.md)".to_owned(),
        },
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
    fn what_threads_do_is_their_jobs_and_never_goes_back() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut counters = Counters::of(Event::FAULTS, "in a test", 10_000);
        counters.each = Some(64);
        let mut look = |now: Time, jobs: &BTreeMap<ProcessKey, JobId>| {
            let found = counters.look(now, jobs, &mut procfs, &mut Vec::new());
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
        // By a thread that starts after the first look. So much memory is always new: smaller pieces may be ones that a thread
        // touched before.
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
        let gone = counters.look(3, &BTreeMap::new(), &mut procfs, &mut Vec::new());
        assert_eq!(gone.get(&JobId(1)), None, "its job is gone");
    }

    #[test]
    fn instructions_count_as_they_are() {
        let cores = Counters::for_share(GangsShare::Cores);
        assert_eq!((cores.event, cores.each), (Event::INSTRUCTIONS, Some(1)));
        assert_eq!(Counters::for_share(GangsShare::Bus).event, Event::MISSES);
        let said = too_many(7, cores.what, 512).to_string();
        assert!(said.contains("on the cores") && said.contains("first-rate"), "{said}");
    }

    /// Red if a number is counted without a look at whose it is.
    #[test]
    fn a_reused_number_is_not_counted() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut counters = Counters::of(Event::FAULTS, "in a test", 10_000);
        let earlier = ProcessKey { start: 1, ..this_process() };
        counters.look(1, &BTreeMap::from([(earlier, JobId(1))]), &mut procfs, &mut Vec::new());
        let counted = counters.processes.iter().flat_map(BTreeMap::values).map(|it| it.threads.len());
        assert_eq!(counted.sum::<usize>(), 0);
    }

    #[test]
    fn counters_are_bounded_and_that_is_said_once() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut counters = Counters::of(Event::FAULTS, "in a test", 0);
        let mut problems = Vec::new();
        for now in 1..3 {
            assert!(counters.look(now, &jobs(), &mut procfs, &mut problems).is_empty());
        }
        assert_eq!(problems.len(), 1);
        assert!(problems[0].to_string().contains("0 threads are counted already"), "{}", problems[0]);
    }

    #[test]
    fn a_machine_without_counters_is_asked_once() {
        assert!(is_for_good(Some(libc::ENOENT)) && is_for_good(Some(libc::EINVAL)));
        assert!(!is_for_good(Some(libc::EACCES)) && !is_for_good(Some(libc::ESRCH)), "others may be counted");
    }
}
