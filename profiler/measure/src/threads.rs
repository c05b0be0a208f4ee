//! Samples the threads of a program while it runs, and adds up their microstates.
//!
//! Problem: threads and processes come and go, and their files in /proc go with them.
//!
//! Algorithm: each sample reads every thread of the program. New threads are searched for only if the kernel
//! has allocated a PID since the last sample (`births`). A process belongs to the program if it descends from
//! the program's first process. The measuring process is the subreaper: it becomes the parent of the
//! program's orphans, and recognises them by that. For root, taskstats records (`taskstats`) supply the
//! threads that lived between two samples, and the final counters of each thread.
//!
//! Limits: without records, a thread that starts and ends between two samples is missed, and so is the end of
//! every thread except the first. The missed CPU time is not lost: it is the difference to the rusage of the
//! whole program, and is added as user and system time. The rest of the missed lives counts as unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use commonhold_live::LiveError;
use commonhold_live::host::clock;
use commonhold_live::observe::process::{Listed, ProcFs};
use commonhold_scale::blame::Observed;
use commonhold_scale::states::{Activity, Counters, Delays, State, Thread, Times};
use commonhold_scale::study::{Named, Watched};

use crate::child::Used;
use crate::polling::Polls;
use crate::taskstats::{Exit, Exits};
use crate::thread_sample::{self, ThreadSample, group};
use crate::waits::{Ended, Files, Unnamed, Waits};

/// The threads of a program.
pub(crate) struct Threads {
    procfs: ProcFs,
    /// The program's first process.
    program: u32,
    begun_ns: u64,
    /// The PID of this process.
    me: u32,
    /// Processes that do not belong to the program, by PID and inode of their directory in /proc.
    others: BTreeSet<(u32, u64)>,
    /// The program's processes, likewise.
    processes: BTreeMap<u32, u64>,
    /// The program's threads, by TID.
    threads: BTreeMap<u32, Tracked>,
    /// The kernel's state of PID allocation at the last search for new threads.
    births: Option<(u32, u32)>,
    sampled_ns: u64,
    exits: Option<Exits>,
    records: Vec<Exit>,
    /// Threads whose record has arrived; they may still be listed as zombies.
    recorded: BTreeSet<u32>,
    done: Done,
    /// The `syscall` file of some waiting thread could not be read.
    pub(crate) hidden: bool,
    /// Whether delay accounting is enabled.
    counts_delays: bool,
    /// The locks that the threads wait for.
    waits: Waits,
    /// Finds sleeping threads that poll for a file lock.
    polls: Polls,
}

/// The result of sampling a program.
pub(crate) struct Sampled {
    /// What its threads did, and which locks they waited for.
    pub(crate) watched: Watched,
    /// Whether taskstats records were dropped.
    pub(crate) lost: bool,
    /// Why stacks of sleeping threads could not be copied.
    pub(crate) no_stacks: Option<String>,
    /// Why stacks of running threads could not be sampled.
    pub(crate) no_shots: Option<String>,
    /// Why some call sites have no name.
    pub(crate) unnamed: BTreeSet<Unnamed>,
    /// The parsed files of the program, for the next run.
    pub(crate) files: Files,
}

struct Tracked {
    pid: u32,
    name: String,
    thread: Thread,
    /// When a sample found the thread a zombie, if one did. From then on its counters are final.
    ended_ns: Option<u64>,
}

/// Sums over ended threads: their number and times by name, and the number of readings.
#[derive(Default)]
struct Done {
    by_name: BTreeMap<String, (u64, Times)>,
    readings: u64,
}

impl Done {
    fn add(&mut self, name: &str, readings: u64, times: &Times) {
        let entry = self.by_name.entry(group(name)).or_default();
        entry.0 += 1;
        entry.1.add_all(times);
        self.readings += readings;
    }
}

impl Threads {
    /// Prepares to sample a program that is about to be started.
    pub(crate) fn prepare(
        exits: Option<Exits>,
        counts_delays: bool,
        files: Files,
    ) -> Result<Threads, LiveError> {
        let mut procfs = ProcFs::open(Path::new("/proc"))?;
        let mut listed = Vec::new();
        procfs.processes(&mut listed)?;
        let others = listed.iter().map(|entry| (entry.pid, entry.inode)).collect();
        Ok(Threads {
            procfs,
            program: 0,
            begun_ns: 0,
            me: std::process::id(),
            others,
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            births: None,
            sampled_ns: 0,
            exits,
            records: Vec::new(),
            recorded: BTreeSet::new(),
            done: Done::default(),
            hidden: false,
            counts_delays,
            waits: Waits::with(files),
            polls: Polls::default(),
        })
    }

    /// Called when the program has started, at `at_ns` or later.
    pub(crate) fn begin(&mut self, program: u32, at_ns: u64) {
        (self.program, self.begun_ns, self.sampled_ns) = (program, at_ns, at_ns);
    }

    /// Samples every thread.
    pub(crate) fn sample(&mut self) -> Result<(), LiveError> {
        let births = self.procfs.births()?;
        if births.is_none() || births != self.births {
            self.find_new()?;
            self.births = births;
        }
        let before_ns = std::mem::replace(&mut self.sampled_ns, clock::now());
        let threads: Vec<(u32, u32)> =
            self.threads.iter().map(|(tid, tracked)| (*tid, tracked.pid)).collect();
        self.waits.begin(self.sampled_ns.saturating_sub(before_ns));
        self.polls.begin();
        for (tid, pid) in threads {
            if let Some(mut sample) = thread_sample::sample(&mut self.procfs, pid, tid)? {
                if !sample.ended {
                    let polled = self.polls.of(pid, &sample);
                    if polled.is_some() {
                        sample.reading.activity = Activity::Waiting(State::Lock);
                    }
                    self.waits.enter(&mut self.procfs, pid, tid, &sample, polled)?;
                }
                self.add_sample(tid, before_ns, sample);
            } else if self.exits.is_none() {
                self.end_without_record(tid);
            }
        }
        self.waits.end_of_sample(&mut self.procfs)?;
        if let Some(exits) = &mut self.exits {
            exits.take(&mut self.records);
            self.end_recorded();
        }
        Ok(())
    }

    /// Whether the last sample parsed files, which later samples need not parse again.
    pub(crate) fn learned(&self) -> bool {
        self.waits.learned
    }

    /// Adds a sample of a thread. `before_ns`: the time of the previous sample of all threads.
    fn add_sample(&mut self, tid: u32, before_ns: u64, sample: ThreadSample) {
        let Some(tracked) = self.threads.get_mut(&tid) else { return };
        self.hidden |= sample.hidden;
        if tracked.ended_ns.is_some() {
            return;
        }
        if tracked.thread.readings == 0 && tid != self.program {
            // The kernel's start time has a resolution of 10 ms. The thread started after the previous
            // sample, which did not find it, and at least as long ago as it ran or queued.
            let busy = sample.reading.counters.ran_ns + sample.reading.counters.queued_ns;
            let latest = sample.reading.at_ns.saturating_sub(busy);
            let began = clock::of_ticks(sample.start).max(before_ns).min(latest).max(self.begun_ns);
            tracked.thread = Thread::begin(began);
        }
        tracked.thread.read(sample.reading);
        tracked.name = sample.name;
        tracked.ended_ns = sample.ended.then_some(sample.reading.at_ns);
    }

    /// Finds new processes and threads.
    fn find_new(&mut self) -> Result<(), LiveError> {
        self.find_processes()?;
        let mut tids = Vec::new();
        for pid in self.processes.keys().copied().collect::<Vec<u32>>() {
            if !self.procfs.threads(pid, &mut tids)? {
                self.processes.remove(&pid);
                continue;
            }
            for tid in tids.iter().filter(|tid| !self.recorded.contains(tid)) {
                let begun_ns = if *tid == self.program { self.begun_ns } else { clock::now() };
                let tracked =
                    || Tracked { pid, name: String::new(), thread: Thread::begin(begun_ns), ended_ns: None };
                self.threads.entry(*tid).or_insert_with(tracked);
            }
        }
        Ok(())
    }

    fn find_processes(&mut self) -> Result<(), LiveError> {
        let mut listed = Vec::new();
        self.procfs.processes(&mut listed)?;
        let is_known = |threads: &Threads, entry: &Listed| {
            threads.processes.get(&entry.pid) == Some(&entry.inode)
                || threads.others.contains(&(entry.pid, entry.inode))
        };
        let mut new: Vec<Listed> = listed.into_iter().filter(|entry| !is_known(self, entry)).collect();
        // A child may be listed before its parent, so there is one pass for each generation.
        loop {
            let before = new.len();
            let mut unrelated = Vec::new();
            for entry in new {
                let parent = self.procfs.stat(entry.pid)?.map(|stat| stat.parent);
                match parent {
                    Some(parent) if self.is_ours(parent) => {
                        self.processes.insert(entry.pid, entry.inode);
                    }
                    Some(_) => unrelated.push(entry),
                    None => {}
                }
            }
            if unrelated.len() == before || unrelated.is_empty() {
                self.others.extend(unrelated.iter().map(|entry| (entry.pid, entry.inode)));
                return Ok(());
            }
            new = unrelated;
        }
    }

    /// Whether a process with this parent belongs to the program. Children that this process had before the
    /// run are in `others`, so a new one is an orphan of the program.
    fn is_ours(&self, parent: u32) -> bool {
        parent == self.me || self.processes.contains_key(&parent)
    }

    /// Ends a thread that is gone and has no record.
    fn end_without_record(&mut self, tid: u32) {
        let Some(tracked) = self.threads.remove(&tid) else { return };
        let readings = tracked.thread.readings;
        let times = match tracked.ended_ns {
            Some(at_ns) => {
                let counters = tracked.thread.counters();
                tracked.thread.end(at_ns, counters, None)
            }
            None => tracked.thread.vanish(clock::now()),
        };
        if readings > 0 {
            self.done.add(&tracked.name, readings, &times);
        }
    }

    /// Ends the known threads that have a record. Records of unknown threads are kept: their process may be
    /// found later.
    fn end_recorded(&mut self) {
        for record in std::mem::take(&mut self.records) {
            if self.threads.contains_key(&record.tid) {
                self.end_thread(&record);
            } else {
                self.records.push(record);
            }
        }
    }

    /// Ends a thread by its record, with exact times and final counters.
    fn end_thread(&mut self, record: &Exit) {
        let now = clock::now();
        self.recorded.insert(record.tid);
        let tracked = self.threads.remove(&record.tid);
        let (mut thread, ended_ns) = match tracked {
            Some(tracked) => {
                let latest = tracked.ended_ns.unwrap_or(now);
                (tracked.thread, latest)
            }
            None => (Thread::begin(now.saturating_sub(record.lived_ns)), now),
        };
        // The record has the thread's lifetime but not its start: the end is the best known start plus the
        // lifetime.
        let began = if record.tid == self.program { Some(self.begun_ns) } else { None };
        let end = began.or_else(|| thread.began()).map_or(ended_ns, |began| began + record.lived_ns);
        let end = end.clamp(thread.last_at_ns().min(ended_ns), ended_ns);
        thread.correct(end.saturating_sub(record.lived_ns));
        let counters = Counters {
            ran_ns: record.ran_ns,
            queued_ns: record.queued_ns,
            user: record.user_us,
            system: record.system_us,
        };
        let delays = Delays { io_ns: record.io_ns, fault_ns: record.fault_ns };
        let readings = thread.readings;
        let times = thread.end(end, counters, self.counts_delays.then_some(delays));
        self.done.add(&record.name, readings, &times);
    }

    /// Ends sampling. `used`: the rusage of the program. `stalls`: its stalled cycles, and all its cycles.
    /// `kernel_traced`: the kernel's locks are traced, so waits for them are left out here.
    pub(crate) fn end(mut self, used: Used, stalls: Option<(u64, u64)>, kernel_traced: bool) -> Sampled {
        let mut lost = false;
        let has_records = if let Some(exits) = &mut self.exits {
            exits.take(&mut self.records);
            lost = exits.lost;
            true
        } else {
            false
        };
        self.end_recorded();
        if has_records {
            for record in self.take_unsampled_records() {
                self.end_thread(&record);
            }
        }
        for tid in self.threads.keys().copied().collect::<Vec<u32>>() {
            self.end_without_record(tid);
        }
        let mut times = Times::default();
        self.done.by_name.values().for_each(|(_, of_name)| times.add_all(of_name));
        if !has_records || lost {
            add_missed_cpu_time(&mut times, used);
        }
        if let Some((stalled, cycles)) = stalls {
            times.split_memory(stalled, cycles);
            self.done.by_name.values_mut().for_each(|(_, of_name)| of_name.split_memory(stalled, cycles));
        }
        let mut by_name: Vec<Named> = self
            .done
            .by_name
            .into_iter()
            .map(|(name, (threads, times))| Named { name, threads, times })
            .collect();
        by_name.sort_by_key(|named| std::cmp::Reverse(named.times.ran()));
        let threads = by_name.iter().map(|named| named.threads).sum();
        let (no_stacks, no_shots) = (self.waits.no_stacks.take(), self.waits.no_shots.take());
        let Ended { locks, unnamed, files } = self.waits.end(times.of(State::Lock), kernel_traced);
        let observed = Observed { locks, ..Observed::default() };
        let watched = Watched { times, by_name, threads, samples: self.done.readings, observed };
        Sampled { watched, lost, no_stacks, no_shots, unnamed, files }
    }

    /// Removes and returns the records of the program's threads that no sample found.
    fn take_unsampled_records(&mut self) -> Vec<Exit> {
        let mut program_pids: BTreeSet<u32> = self.processes.keys().copied().collect();
        program_pids.extend([self.program, self.me]);
        let mut candidates = std::mem::take(&mut self.records);
        let mut of_program = Vec::new();
        // A record names the parent of its process, so each pass finds one more generation.
        loop {
            let is_of_program = |record: &Exit| {
                record.pid != self.me
                    && (program_pids.contains(&record.pid) || program_pids.contains(&record.parent))
            };
            let (more, others): (Vec<Exit>, Vec<Exit>) = candidates.into_iter().partition(is_of_program);
            if more.is_empty() {
                return of_program;
            }
            program_pids.extend(more.iter().map(|record| record.pid).filter(|pid| *pid != 0));
            (candidates, of_program) = (others, [of_program, more].concat());
        }
    }
}

/// Adds the CPU time that no sample found as user and system time, in the ratio of the rusage, and subtracts
/// it from the unseen time.
fn add_missed_cpu_time(times: &mut Times, used: Used) {
    let total = used.user_ns + used.system_ns;
    let missed = total.saturating_sub(times.ran());
    times.take(State::Unseen, missed);
    let system = u128::from(missed) * u128::from(used.system_ns) / u128::from(total.max(1));
    let system = u64::try_from(system).unwrap_or(0);
    times.add(State::System, system);
    times.add(State::User, missed - system);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_cpu_time_replaces_unseen_time() {
        let mut times = Times::default();
        times.add(State::User, 60);
        times.add(State::Unseen, 100);
        add_missed_cpu_time(&mut times, Used { user_ns: 75, system_ns: 25 });
        let of = |state| times.of(state);
        assert_eq!((of(State::User), of(State::System), of(State::Unseen)), (90, 10, 60));
        // Never reduces what was sampled.
        add_missed_cpu_time(&mut times, Used { user_ns: 10, system_ns: 0 });
        assert_eq!(times.ran(), 100);
    }
}
