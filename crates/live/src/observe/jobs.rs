//! Jobs: the threads that belong together, whether each wants a CPU, its last CPU, and the nodes with the
//! job's memory.
//!
//! Problem: a contract says what makes processes of a unit one job. The kernel knows processes, sessions and
//! control groups; a *tree* is this project's own concept.
//!
//! Algorithm, trees: a process belongs to its parent's job. If the parent leads a session, as a shell does,
//! or is in another unit or in none, the process starts a new job. A process stays in its job when its parent
//! ends. If the parent's pid is the process's own session, the parent also counts as leading a session: the
//! parent may have been read a moment before it became one.
//!
//! Algorithm, sampling: if the roster found no runnable thread in a process, all its threads are assumed to
//! sleep and are not read. In other processes, each thread's state, CPU time and last CPU are read. A thread
//! wants a CPU if it is runnable, or ran since the previous sample. Each sample reads the memory by node of
//! only one job that has a thread that wants a CPU, and that was not read within [`MEMORY_NS`].
//!
//! Properties: jobs and threads keep their numbers for life, and no number is reused. A contract without jobs
//! costs nothing.
//!
//! Gangs: a job may be *shut*: its processes are stopped, and their threads want no CPU meanwhile. A process
//! reports its use of the memory bus in its page of the [`arena`](super::arena). For processes without
//! reports, the processor's counters are read ([`counters`](super::bus::counters)).
//!
//! Limits: a process that starts and ends between two samples is never seen. To count memory by node, the
//! kernel walks the process's page tables, which takes some milliseconds for a gigabyte.

use std::collections::{BTreeMap, BTreeSet};

use std::os::fd::OwnedFd;

use commonhold_contract::{Contract, Gangs, GangsShare, JobKind, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::{JobFacts, JobId, SharedUse, ThreadFacts, ThreadId, Time, UnitFacts};

use super::arena::{Arena, Complaint, NotJoined};
use super::bus::counters::Counters;
use super::process::ProcessKey;
use super::roster::Roster;
use super::topology;
use crate::LiveError;

/// The shortest time between two readings of a job's memory by node, in nanoseconds.
const MEMORY_NS: Time = 2_000_000_000;

/// The clock ticks of CPU time that a thread may use between two samples just to write its process's reports.
const WRITER_TICKS: u64 = 1;

/// Returns the CPUs to which the owner of a thread, given by unit, process and thread id, has bound it;
/// `None`: all, or unknown.
pub(crate) type Tied<'a> = &'a dyn Fn(UnitId, ProcessKey, u32) -> Option<CpuSet>;

/// The *bond* of a process: processes of a unit with equal bonds are one job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Bond {
    Unit,
    /// The first process of a tree; for jobs of one process, that process.
    Process(ProcessKey),
    Session(u32),
    Cgroup(String),
}

/// A process of a job.
#[derive(Debug)]
struct Known {
    unit: UnitId,
    kind: JobKind,
    job: JobId,
    bond: Bond,
    threads: BTreeMap<u32, Thread>,
}

/// A thread of a job, as of the last sample.
#[derive(Debug)]
struct Thread {
    id: ThreadId,
    /// CPU time in clock ticks.
    ticks: u64,
    /// The CPU on which the thread ran last.
    cpu: Option<u32>,
    wants: bool,
    tied: Option<CpuSet>,
}

/// A job that is stopped.
#[derive(Debug)]
struct Shut {
    since: Time,
    unit: UnitId,
    /// The number of the job's threads that wanted a CPU when the job was stopped.
    runnable: u32,
}

/// A process in a unit with jobs: its unit, the unit's kind of jobs, its session and its parent.
type Candidate = (ProcessKey, UnitId, JobKind, u32, u32);

/// Whether any unit has jobs.
fn has_jobs(contract: &Contract) -> bool {
    contract.units.iter().any(|unit| unit.job.is_some())
}

/// Whether jobs are gangs.
pub(crate) fn has_gangs(contract: &Contract) -> bool {
    contract.machine.gangs.by != Gangs::Off && has_jobs(contract)
}

/// How often a process is to report its transfers, in nanoseconds: twice per quantum (seed 003, section 4).
pub(crate) fn report_interval_ns(contract: &Contract) -> u64 {
    contract.machine.gangs.quantum_ns / 2
}

/// All jobs, with their processes and threads.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    known: BTreeMap<ProcessKey, Known>,
    numbers: BTreeMap<(UnitId, Bond), JobId>,
    last_job: u32,
    last_thread: u64,
    by_thread: BTreeMap<ThreadId, (ProcessKey, u32)>,
    /// Threads that left their job in this sample. From those of them that still exist, the backend removes
    /// the CPU binding that it gave them.
    retired: BTreeMap<ThreadId, (ProcessKey, u32)>,
    /// When each job's memory by node was last read.
    memory_at: BTreeMap<JobId, Time>,
    arena: Arena,
    /// Hardware counters of the processes that do not report in the arena.
    counters: Counters,
    complaints: Vec<Complaint>,
    /// Whether a process that cannot be measured was already complained of.
    complained_of_unmeasured: bool,
    shut: BTreeMap<JobId, Shut>,
    /// Whether the machine has several nodes; `None`: not read yet.
    has_several_nodes: Option<bool>,
}

impl Jobs {
    /// Assigns processes to jobs. Forgets the threads that left their jobs in the last sample, which
    /// [`Jobs::thread`] still returned while the last plan was carried out.
    pub(crate) fn settle(&mut self, contract: &Contract, roster: &mut Roster) -> Result<(), LiveError> {
        if !has_jobs(contract) {
            let retired = std::mem::take(&mut self.by_thread);
            let (last_job, last_thread) = (self.last_job, self.last_thread);
            *self = Jobs { last_job, last_thread, retired, ..Jobs::default() };
            return Ok(());
        }
        self.retired.clear();
        self.catch_up(contract, roster)
    }

    /// The facts about jobs, by ascending number.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
        tied: Tied<'_>,
    ) -> Result<Vec<JobFacts>, LiveError> {
        if !has_jobs(contract) {
            return Ok(Vec::new());
        }
        let keys: Vec<ProcessKey> = self.known.keys().copied().collect();
        for key in keys {
            self.sample(key, roster, tied)?;
        }
        let mut facts = self.facts(roster);
        self.sample_memory(now, &mut facts, roster)?;
        self.sample_shared_use(now, contract, &mut facts, roster);
        Ok(facts)
    }

    /// Assigns processes that started since the last sample to their jobs.
    pub(crate) fn catch_up(&mut self, contract: &Contract, roster: &mut Roster) -> Result<(), LiveError> {
        let members = candidates(contract, roster);
        self.follow(&members, roster)
    }

    /// Marks a job as shut or open. The caller then stops the processes for which [`Jobs::is_shut`] is true,
    /// and continues others.
    pub(crate) fn gate(&mut self, job: JobId, unit: UnitId, open: bool, now: Time, roster: &Roster) {
        if open {
            self.shut.remove(&job);
        } else if !self.shut.contains_key(&job) {
            let runnable = self.processes(job).iter().map(|key| roster.runnable(key.pid)).sum();
            self.shut.insert(job, Shut { since: now, unit, runnable });
        }
    }

    /// Whether a process belongs to a job that is shut.
    pub(crate) fn is_shut(&self, key: ProcessKey) -> bool {
        self.known.get(&key).is_some_and(|known| self.shut.contains_key(&known.job))
    }

    /// The units that are one job as a whole, if that job is shut.
    pub(crate) fn shut_units(&self, contract: &Contract) -> BTreeSet<UnitId> {
        let is_one_job =
            |unit: &UnitId| contract.has(*unit) && contract.unit(*unit).job == Some(JobKind::Unit);
        self.shut.values().map(|shut| shut.unit).filter(is_one_job).collect()
    }

    /// Whether any job is shut.
    pub(crate) fn any_shut(&self) -> bool {
        !self.shut.is_empty()
    }

    /// The processes of all jobs, each with its job and whether the job is shut.
    pub(crate) fn members(&self) -> impl Iterator<Item = (ProcessKey, JobId, bool)> + '_ {
        self.known.iter().map(|(key, known)| (*key, known.job, self.shut.contains_key(&known.job)))
    }

    /// Each job with its unit; a job of several processes appears once for each process.
    pub(crate) fn units(&self) -> impl Iterator<Item = (JobId, UnitId)> + '_ {
        self.known.values().map(|known| (known.job, known.unit))
    }

    /// Adds the threads of shut jobs to the units' numbers of runnable threads. A shut job counts as many
    /// threads as were runnable when it was shut, since they would want CPUs if they were not stopped.
    pub(crate) fn count_shut(&self, roster: &Roster, units: &mut [UnitFacts]) {
        if self.shut.is_empty() {
            return;
        }
        for (key, known) in self.known.iter().filter(|(_, known)| self.shut.contains_key(&known.job)) {
            if let Some(facts) = units.get_mut(known.unit.index()) {
                facts.runnable = facts.runnable.saturating_sub(roster.runnable(key.pid));
            }
        }
        for shut in self.shut.values() {
            if let Some(facts) = units.get_mut(shut.unit.index()).filter(|facts| facts.processes > 0) {
                facts.runnable += shut.runnable;
            }
        }
    }

    /// Gives a process a page in which to report its transfers, and returns the page's descriptor, which is
    /// to be sent to the process.
    pub(crate) fn join(
        &mut self,
        contract: &Contract,
        key: ProcessKey,
        user: u32,
        roster: &mut Roster,
    ) -> Result<OwnedFd, NotJoined> {
        self.arena.join(key, user, report_interval_ns(contract), roster.procfs())
    }

    /// Takes the complaints about processes' reports since the last call.
    pub(crate) fn take_complaints(&mut self) -> Vec<Complaint> {
        std::mem::take(&mut self.complaints)
    }

    /// The process and the kernel's id of a thread; `None` if the thread is unknown. A thread that left its
    /// job in the last sample is still known.
    pub(crate) fn thread(&self, thread: ThreadId) -> Option<(ProcessKey, u32)> {
        self.by_thread.get(&thread).or_else(|| self.retired.get(&thread)).copied()
    }

    /// The processes of a job.
    pub(crate) fn processes(&self, job: JobId) -> Vec<ProcessKey> {
        self.known.iter().filter(|(_, known)| known.job == job).map(|(key, _)| *key).collect()
    }

    /// Removes processes that ended or left their unit or job, and assigns new processes to jobs.
    fn follow(&mut self, members: &[Candidate], roster: &mut Roster) -> Result<(), LiveError> {
        let present: BTreeMap<ProcessKey, (UnitId, JobKind, u32)> =
            members.iter().map(|(key, unit, kind, session, _)| (*key, (*unit, *kind, *session))).collect();
        let (by_thread, retired) = (&mut self.by_thread, &mut self.retired);
        // A process that changed its unit or session is removed, too, and then joins another job as if it
        // were new.
        self.known.retain(|key, known| {
            let stays = present.get(key).is_some_and(|(unit, kind, session)| {
                let left_session = matches!(known.bond, Bond::Session(joined) if joined != *session);
                (*unit, *kind) == (known.unit, known.kind) && !left_session
            });
            if !stays {
                for id in known.threads.values().map(|thread| thread.id) {
                    retired.extend(by_thread.remove(&id).map(|thread| (id, thread)));
                }
            }
            stays
        });
        let mut new: Vec<&Candidate> =
            members.iter().filter(|(key, ..)| !self.known.contains_key(key)).collect();
        // Parents come before their children, which may inherit their job.
        new.sort_by_key(|(key, ..)| (key.start, key.pid));
        let leaders: BTreeSet<u32> = members
            .iter()
            .filter(|(key, _, _, session, _)| key.pid == *session)
            .map(|(key, ..)| key.pid)
            .collect();
        for (key, unit, kind, session, parent) in new {
            let bond = match kind {
                JobKind::Unit => Bond::Unit,
                JobKind::Process => Bond::Process(*key),
                JobKind::Session => Bond::Session(*session),
                JobKind::Cgroup => Bond::Cgroup(roster.procfs().cgroup(key.pid)?.unwrap_or_default()),
                JobKind::Tree => {
                    let is_started_by_leader = session == parent || leaders.contains(parent);
                    let inherited =
                        if is_started_by_leader { None } else { self.bond_of_parent(*unit, *parent) };
                    inherited.unwrap_or(Bond::Process(*key))
                }
            };
            let last = &mut self.last_job;
            let job = *self.numbers.entry((*unit, bond.clone())).or_insert_with(|| {
                *last += 1;
                JobId(*last)
            });
            self.known.insert(*key, Known { unit: *unit, kind: *kind, job, bond, threads: BTreeMap::new() });
        }
        // Forget jobs without processes.
        let used: BTreeSet<JobId> = self.known.values().map(|known| known.job).collect();
        self.numbers.retain(|_, job| used.contains(job));
        self.memory_at.retain(|job, _| used.contains(job));
        self.shut.retain(|job, _| used.contains(job));
        self.arena.retain(|job| used.contains(job));
        Ok(())
    }

    /// The bond of the process with the pid `parent`, if that is known and in this unit.
    fn bond_of_parent(&self, unit: UnitId, parent: u32) -> Option<Bond> {
        let first = ProcessKey { pid: parent, start: 0 };
        let known = self.known.range(first..).next().filter(|(key, _)| key.pid == parent);
        known.filter(|(_, known)| known.unit == unit).map(|(_, known)| known.bond.clone())
    }

    /// Updates the threads of a process: which exist, which want a CPU, and the CPU of each.
    fn sample(&mut self, key: ProcessKey, roster: &mut Roster, tied: Tied<'_>) -> Result<(), LiveError> {
        let Some(known) = self.known.get_mut(&key) else { return Ok(()) };
        // The threads of a sleeping or stopped process are not read.
        let is_resting = roster.runnable(key.pid) == 0 || self.shut.contains_key(&known.job);
        if is_resting && !known.threads.is_empty() {
            known.threads.values_mut().for_each(|thread| thread.wants = false);
            return Ok(());
        }
        let mut tids = Vec::new();
        roster.procfs().threads(key.pid, &mut tids)?;
        tids.sort_unstable();
        let (by_thread, retired) = (&mut self.by_thread, &mut self.retired);
        known.threads.retain(|tid, thread| {
            let stays = tids.binary_search(tid).is_ok();
            if !stays {
                // The kernel may soon give the ended thread's id to another thread, which must not get the
                // ended thread's seat.
                retired.extend(by_thread.remove(&thread.id).map(|identity| (thread.id, identity)));
            }
            stays
        });
        let writer = self.arena.writer(key);
        for tid in tids {
            let Some(current) = roster.procfs().on_cpu(key.pid, tid)? else { continue };
            let last = &mut self.last_thread;
            let thread = known.threads.entry(tid).or_insert_with(|| {
                *last += 1;
                by_thread.insert(ThreadId(*last), (key, tid));
                Thread { id: ThreadId(*last), ticks: current.ticks, cpu: None, wants: false, tied: None }
            });
            let used_ticks = current.ticks.saturating_sub(thread.ticks);
            // The thread that writes the reports does not count as part of the gang, unless it does other
            // work as well.
            thread.wants = if writer == Some(tid) {
                used_ticks > WRITER_TICKS
            } else {
                current.is_runnable || used_ticks > 0
            };
            (thread.ticks, thread.cpu) = (current.ticks, Some(current.cpu));
            thread.tied = tied(known.unit, key, tid);
        }
        Ok(())
    }

    /// The jobs with their threads, in the form that the policy takes. Memory and use of the shared resource
    /// are left out.
    fn facts(&self, roster: &Roster) -> Vec<JobFacts> {
        let mut jobs: BTreeMap<JobId, JobFacts> = BTreeMap::new();
        for (key, known) in &self.known {
            let name = || {
                let comm = roster.member(key.pid).map_or("?", |member| member.comm.as_str());
                format!("{comm} ({})", key.pid)
            };
            let facts = jobs.entry(known.job).or_insert_with(|| JobFacts {
                job: known.job,
                name: name(),
                unit: known.unit,
                threads: Vec::new(),
                memory: None,
                shared: None,
            });
            facts.threads.extend(known.threads.values().map(|thread| ThreadFacts {
                thread: thread.id,
                wants: thread.wants,
                cpu: thread.cpu,
                tied: thread.tied.clone(),
            }));
        }
        for facts in jobs.values_mut() {
            facts.threads.sort_unstable_by_key(|facts| facts.thread);
        }
        jobs.into_values().collect()
    }

    /// Sets the jobs' use of the resource that gangs share in `facts`, from processes' reports and from
    /// hardware counters.
    fn sample_shared_use(
        &mut self,
        now: Time,
        contract: &Contract,
        facts: &mut [JobFacts],
        roster: &mut Roster,
    ) {
        if !has_gangs(contract) {
            (self.arena, self.counters) = (Arena::default(), Counters::default());
            return;
        }
        let (known, shut) = (&self.known, &self.shut);
        let job_of = |key: ProcessKey| {
            let job = known.get(&key)?.job;
            Some((job, shut.get(&job).map(|shut| shut.since)))
        };
        let every_ns = report_interval_ns(contract);
        let sums = self.arena.poll(now, every_ns, &job_of, roster.procfs(), &mut self.complaints).clone();
        // Reports are about the bus. The arena is polled in any case, since programs check that their pages
        // are read.
        if contract.machine.gangs.share == GangsShare::Cache {
            // Resource groups count it: see `apply::bus::resctrl`.
            self.counters = Counters::default();
            return;
        }
        let unreported: BTreeMap<ProcessKey, JobId> = known
            .iter()
            .filter(|(key, _)| !self.arena.has(**key))
            .map(|(key, known)| (*key, known.job))
            .collect();
        let mut problems = Vec::new();
        let counted = self.counters.sample(now, &unreported, roster.procfs(), &mut problems);
        let complaint = |error| (ProcessKey { pid: 0, start: 0 }, "count what processes do", error);
        self.complaints.extend(problems.into_iter().map(complaint));
        self.complain_of_unmeasured();
        for facts in facts {
            facts.shared = sum_of_uses(sums.get(&facts.job), counted.get(&facts.job));
        }
    }

    /// Adds a complaint, at most once for all processes: a process that joined cannot measure itself, and the
    /// daemon cannot count its transfers either.
    fn complain_of_unmeasured(&mut self) {
        if self.complained_of_unmeasured {
            return;
        }
        let has_no_measure = |key: &ProcessKey| self.arena.is_unmeasured(*key) && !self.counters.counts(*key);
        let Some(pid) = self.known.keys().find(|key| has_no_measure(key)).map(|key| key.pid) else { return };
        self.complained_of_unmeasured = true;
        let no_process = ProcessKey { pid: 0, start: 0 };
        self.complaints.push((no_process, "measure what processes transfer", unmeasured(pid)));
    }

    /// Reads the memory by node of one job: of the jobs that are due, the one that was read least recently.
    /// Does nothing on a machine with one node.
    fn sample_memory(
        &mut self,
        now: Time,
        facts: &mut [JobFacts],
        roster: &mut Roster,
    ) -> Result<(), LiveError> {
        if !*self.has_several_nodes.get_or_insert_with(|| topology::node_numbers().len() > 1) {
            return Ok(());
        }
        let read_at = |job: JobId| self.memory_at.get(&job).copied();
        let is_due = |facts: &&mut JobFacts| {
            let wants = facts.threads.iter().any(|thread| thread.wants);
            wants && read_at(facts.job).is_none_or(|at| now >= at.saturating_add(MEMORY_NS))
        };
        let Some(facts) = facts.iter_mut().filter(is_due).min_by_key(|facts| (read_at(facts.job), facts.job))
        else {
            return Ok(());
        };
        self.memory_at.insert(facts.job, now);
        let mut memory: BTreeMap<u32, u64> = BTreeMap::new();
        for key in self.processes(facts.job) {
            let Some(by_node) = roster.procfs().by_node(key.pid)? else { return Ok(()) };
            for (node, bytes) in by_node {
                *memory.entry(node).or_default() += bytes;
            }
        }
        facts.memory = Some(memory.into_iter().collect());
        Ok(())
    }
}

/// The complaint about a process that joined and that nothing measures.
fn unmeasured(pid: u32) -> LiveError {
    LiveError::Unavailable {
        what: format!(
            "nothing measures what process {pid} transfers over the memory bus, although it joined: neither it nor the daemon \
             has hardware counters for it; its job, and others like it, are assumed to transfer `first-rate`, unless other \
             processes of theirs report"
        ),
        remedy: "have the program report its own count, or set `first-rate` in [machine] (docs/gangs.md)"
            .to_owned(),
    }
}

/// A job's use of the shared resource: the use that some of its processes report, plus the use that is
/// counted for its other processes. The sum is as old as the older of both. `None` if neither is known.
fn sum_of_uses(reported: Option<&SharedUse>, counted: Option<&SharedUse>) -> Option<SharedUse> {
    let sum = |reported: &SharedUse, counted: &SharedUse| SharedUse {
        at: reported.at.min(counted.at),
        amount: reported.amount.saturating_add(counted.amount),
    };
    match (reported, counted) {
        (Some(reported), Some(counted)) => Some(sum(reported, counted)),
        (one, other) => one.or(other).copied(),
    }
}

/// All processes in units whose contract defines jobs.
fn candidates(contract: &Contract, roster: &Roster) -> Vec<Candidate> {
    let kind = |unit: UnitId| contract.units.get(unit.index()).and_then(|unit| unit.job);
    let candidate = |member: &super::roster::Member| {
        let unit = member.placement.unit;
        Some((member.key, unit, kind(unit)?, member.session, member.parent))
    };
    roster.members().filter_map(candidate).collect()
}
