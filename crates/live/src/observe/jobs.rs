//! Which threads belong to one job, whether they want a CPU, and where they and their memory are.
//!
//! Problem: a contract says what of a unit is a job. The kernel knows processes, sessions and control groups; a *tree* is
//! ours.
//!
//! Algorithm, trees: a process belongs to the job of its parent. If its parent leads a session, as a shell does, or is in
//! another unit or in none, it is the first of a job of its own. A process stays in its job when its parent ends. Its own
//! session tells what its parent led when it began: the parent may have been read a moment earlier, as it was then.
//!
//! Algorithm, looks: a process that has no runnable thread, as far as the roster saw, is not looked at further: its threads
//! are taken to rest. Of the others, each thread's state, CPU time and last CPU are read. A thread wants a CPU if it is
//! runnable, or ran since the look before. Memory by node is read where a job has a seat to follow, one job at a look, and of
//! each no more often than every [`MEMORY_NS`].
//!
//! Properties: jobs and threads keep their numbers as long as they are there, and no number is given twice. A contract
//! without jobs costs nothing.
//!
//! Gangs: a job may be *shut*: its processes are stopped, and their threads want nothing meanwhile. What its processes tell of
//! the memory bus is read by [`arena`](super::arena); of the others, the processor's counters tell it ([`counters`](super::bus::counters)).
//!
//! Limits: a process that comes and goes between two looks is never seen. The kernel goes through a process's page tables to
//! tell its memory by node, some milliseconds for a gigabyte.

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

/// How often a job's memory is looked for, in nanoseconds.
const MEMORY_NS: Time = 2_000_000_000;

/// Clock ticks of CPU time between two looks that need no work to come together.
const WRITER_TICKS: u64 = 1;

/// The CPUs that its owner ties a thread to, which is of a unit; `None`: all, or nobody can tell.
pub(crate) type Tied<'a> = &'a dyn Fn(UnitId, ProcessKey, u32) -> Option<CpuSet>;

/// What makes processes one job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Bond {
    Unit,
    /// The first of a tree, or the one process.
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

#[derive(Debug)]
struct Thread {
    id: ThreadId,
    ticks: u64,
    cpu: Option<u32>,
    wants: bool,
    tied: Option<CpuSet>,
}

/// A job that is stopped.
#[derive(Debug)]
struct Shut {
    since: Time,
    unit: UnitId,
    /// Threads that wanted a CPU then.
    runnable: u32,
}

/// A process that is in a unit with jobs: its unit, what a job is there, its session and its parent.
type Candidate = (ProcessKey, UnitId, JobKind, u32, u32);

/// Whether any unit has jobs.
fn has_jobs(contract: &Contract) -> bool {
    contract.units.iter().any(|unit| unit.job.is_some())
}

/// Whether jobs are gangs.
pub(crate) fn has_gangs(contract: &Contract) -> bool {
    contract.machine.gangs.by != Gangs::Off && has_jobs(contract)
}

/// How often a process is to tell what it transferred: twice per quantum (seed 003, section 4).
pub(crate) fn told_every(contract: &Contract) -> u64 {
    contract.machine.gangs.quantum_ns / 2
}

/// The jobs that were seen.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    known: BTreeMap<ProcessKey, Known>,
    numbers: BTreeMap<(UnitId, Bond), JobId>,
    last_job: u32,
    last_thread: u64,
    by_thread: BTreeMap<ThreadId, (ProcessKey, u32)>,
    /// Those that are in no job any more, from this look to the next: they are let go, where they live on.
    retired: BTreeMap<ThreadId, (ProcessKey, u32)>,
    memory_at: BTreeMap<JobId, Time>,
    arena: Arena,
    /// Of the processes that are not in it.
    counters: Counters,
    /// What that is of.
    share: GangsShare,
    complaints: Vec<Complaint>,
    /// It was said that some process measures nothing.
    has_unmeasured: bool,
    shut: BTreeMap<JobId, Shut>,
    /// Whether the machine has several nodes; `None`: nobody asked yet.
    has_nodes: Option<bool>,
}

impl Jobs {
    /// Puts processes into their jobs, and forgets the threads that [`Jobs::thread`] kept for the last plan.
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
            self.look_at(key, roster, tied)?;
        }
        let mut facts = self.facts(roster);
        self.look_at_memory(now, &mut facts, roster)?;
        self.look_at_shared(now, contract, &mut facts, roster);
        Ok(facts)
    }

    /// Puts those who came since the last look into their jobs.
    pub(crate) fn catch_up(&mut self, contract: &Contract, roster: &mut Roster) -> Result<(), LiveError> {
        let members = candidates(contract, roster);
        self.follow(&members, roster)
    }

    /// Shuts a job, or opens it: whose processes are to be stopped, [`Jobs::is_shut`] says from now on.
    pub(crate) fn gate(&mut self, job: JobId, unit: UnitId, open: bool, now: Time, roster: &Roster) {
        if open {
            self.shut.remove(&job);
        } else if !self.shut.contains_key(&job) {
            let runnable = self.processes(job).iter().map(|key| roster.runnable(key.pid)).sum();
            self.shut.insert(job, Shut { since: now, unit, runnable });
        }
    }

    /// Whether a process is of a job that is shut.
    pub(crate) fn is_shut(&self, key: ProcessKey) -> bool {
        self.known.get(&key).is_some_and(|known| self.shut.contains_key(&known.job))
    }

    /// The units that are one job each which is shut.
    pub(crate) fn shut_units(&self, contract: &Contract) -> BTreeSet<UnitId> {
        let is_job = |unit: &UnitId| contract.has(*unit) && contract.unit(*unit).job == Some(JobKind::Unit);
        self.shut.values().map(|shut| shut.unit).filter(is_job).collect()
    }

    /// Whether any job is shut.
    pub(crate) fn any_shut(&self) -> bool {
        !self.shut.is_empty()
    }

    /// The processes of all jobs, and whether these are shut.
    pub(crate) fn members(&self) -> impl Iterator<Item = (ProcessKey, JobId, bool)> + '_ {
        self.known.iter().map(|(key, known)| (*key, known.job, self.shut.contains_key(&known.job)))
    }

    /// The unit of each job, once for each of its processes.
    pub(crate) fn units(&self) -> impl Iterator<Item = (JobId, UnitId)> + '_ {
        self.known.values().map(|known| (known.job, known.unit))
    }

    /// Has threads that are stopped count as they were when they were stopped, in what their units want.
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

    /// A page in which a process tells what it transfers: the descriptor to send it.
    pub(crate) fn join(
        &mut self,
        contract: &Contract,
        key: ProcessKey,
        user: u32,
        roster: &mut Roster,
    ) -> Result<OwnedFd, NotJoined> {
        self.arena.join(key, user, told_every(contract), roster.procfs())
    }

    /// What is not to be believed of what processes told.
    pub(crate) fn take_complaints(&mut self) -> Vec<Complaint> {
        std::mem::take(&mut self.complaints)
    }

    /// The process and the number of a thread that is there.
    pub(crate) fn thread(&self, thread: ThreadId) -> Option<(ProcessKey, u32)> {
        self.by_thread.get(&thread).or_else(|| self.retired.get(&thread)).copied()
    }

    /// The processes of a job.
    pub(crate) fn processes(&self, job: JobId) -> Vec<ProcessKey> {
        self.known.iter().filter(|(_, known)| known.job == job).map(|(key, _)| *key).collect()
    }

    /// Forgets who is gone, and puts those who came into their jobs.
    fn follow(&mut self, members: &[Candidate], roster: &mut Roster) -> Result<(), LiveError> {
        let there: BTreeMap<ProcessKey, (UnitId, JobKind, u32)> =
            members.iter().map(|(key, unit, kind, session, _)| (*key, (*unit, *kind, *session))).collect();
        let (by_thread, retired) = (&mut self.by_thread, &mut self.retired);
        self.known.retain(|key, known| {
            let stays = there.get(key).is_some_and(|(unit, kind, session)| {
                let left = matches!(known.bond, Bond::Session(joined) if joined != *session);
                (*unit, *kind) == (known.unit, known.kind) && !left
            });
            if !stays {
                for id in known.threads.values().map(|thread| thread.id) {
                    retired.extend(by_thread.remove(&id).map(|thread| (id, thread)));
                }
            }
            stays
        });
        let mut came: Vec<&Candidate> =
            members.iter().filter(|(key, ..)| !self.known.contains_key(key)).collect();
        // Parents before their children.
        came.sort_by_key(|(key, ..)| (key.start, key.pid));
        let leaders: BTreeSet<u32> = members
            .iter()
            .filter(|(key, _, _, session, _)| key.pid == *session)
            .map(|(key, ..)| key.pid)
            .collect();
        for (key, unit, kind, session, parent) in came {
            let bond = match kind {
                JobKind::Unit => Bond::Unit,
                JobKind::Process => Bond::Process(*key),
                JobKind::Session => Bond::Session(*session),
                JobKind::Cgroup => Bond::Cgroup(roster.procfs().cgroup(key.pid)?.unwrap_or_default()),
                JobKind::Tree => {
                    let of_shell = session == parent || leaders.contains(parent);
                    let joined = if of_shell { None } else { self.of_parent(*unit, *parent) };
                    joined.unwrap_or(Bond::Process(*key))
                }
            };
            let last = &mut self.last_job;
            let job = *self.numbers.entry((*unit, bond.clone())).or_insert_with(|| {
                *last += 1;
                JobId(*last)
            });
            self.known.insert(*key, Known { unit: *unit, kind: *kind, job, bond, threads: BTreeMap::new() });
        }
        let used: BTreeSet<JobId> = self.known.values().map(|known| known.job).collect();
        self.numbers.retain(|_, job| used.contains(job));
        self.memory_at.retain(|job, _| used.contains(job));
        self.shut.retain(|job, _| used.contains(job));
        self.arena.retain(|job| used.contains(job));
        Ok(())
    }

    /// What a process joins that its parent began, in the same unit.
    fn of_parent(&self, unit: UnitId, parent: u32) -> Option<Bond> {
        let first = ProcessKey { pid: parent, start: 0 };
        let known = self.known.range(first..).next().filter(|(key, _)| key.pid == parent);
        known.filter(|(_, known)| known.unit == unit).map(|(_, known)| known.bond.clone())
    }

    /// What the threads of a process do.
    fn look_at(&mut self, key: ProcessKey, roster: &mut Roster, tied: Tied<'_>) -> Result<(), LiveError> {
        let Some(known) = self.known.get_mut(&key) else { return Ok(()) };
        let at_rest = roster.runnable(key.pid) == 0 || self.shut.contains_key(&known.job);
        if at_rest && !known.threads.is_empty() {
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
                // Its number may be another thread's soon: nobody may give that one its seat.
                retired.extend(by_thread.remove(&thread.id).map(|gone| (thread.id, gone)));
            }
            stays
        });
        let writer = self.arena.writer(key);
        for tid in tids {
            let Some(now) = roster.procfs().on_cpu(key.pid, tid)? else { continue };
            let last = &mut self.last_thread;
            let thread = known.threads.entry(tid).or_insert_with(|| {
                *last += 1;
                by_thread.insert(ThreadId(*last), (key, tid));
                Thread { id: ThreadId(*last), ticks: now.ticks, cpu: None, wants: false, tied: None }
            });
            let grown = now.ticks.saturating_sub(thread.ticks);
            // Who tells what the others transfer is no part of the gang, unless it does more than that.
            thread.wants =
                if writer == Some(tid) { grown > WRITER_TICKS } else { now.is_runnable || grown > 0 };
            (thread.ticks, thread.cpu) = (now.ticks, Some(now.cpu));
            thread.tied = tied(known.unit, key, tid);
        }
        Ok(())
    }

    fn facts(&self, roster: &Roster) -> Vec<JobFacts> {
        let mut jobs: BTreeMap<JobId, JobFacts> = BTreeMap::new();
        for (key, known) in &self.known {
            let name = || {
                let first = roster.member(key.pid).map_or("?", |member| member.comm.as_str());
                format!("{first} ({})", key.pid)
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

    /// Reads what processes told, or are counted to do, of what gangs share.
    fn look_at_shared(
        &mut self,
        now: Time,
        contract: &Contract,
        facts: &mut [JobFacts],
        roster: &mut Roster,
    ) {
        let share = contract.machine.gangs.share;
        if !has_gangs(contract) {
            (self.arena, self.counters, self.share) =
                (Arena::default(), Counters::default(), GangsShare::Bus);
            return;
        }
        if self.share != share {
            (self.counters, self.share) = (Counters::for_share(share), share);
        }
        let (known, shut) = (&self.known, &self.shut);
        let job_of = |key: ProcessKey| {
            let job = known.get(&key)?.job;
            Some((job, shut.get(&job).map(|shut| shut.since)))
        };
        let every_ns = told_every(contract);
        let sums = self.arena.look(now, every_ns, &job_of, roster.procfs(), &mut self.complaints);
        // What programs tell is of the bus. They are read all the same, since they look whether somebody does.
        let told: BTreeMap<JobId, SharedUse> = match share {
            GangsShare::Bus => sums.clone(),
            GangsShare::Cores => BTreeMap::new(),
            // Of the cache, groups tell it: see `apply::bus::resctrl`.
            GangsShare::Cache => return,
        };
        let silent: BTreeMap<ProcessKey, JobId> = known
            .iter()
            .filter(|(key, _)| share == GangsShare::Cores || !self.arena.has(**key))
            .map(|(key, known)| (*key, known.job))
            .collect();
        let mut problems = Vec::new();
        let counted = self.counters.look(now, &silent, roster.procfs(), &mut problems);
        let about = |error| (ProcessKey { pid: 0, start: 0 }, "count what processes do", error);
        self.complaints.extend(problems.into_iter().map(about));
        if share == GangsShare::Bus {
            self.complain_of_unmeasured();
        }
        for facts in facts {
            facts.shared = together(told.get(&facts.job), counted.get(&facts.job));
        }
    }

    /// Says once that processes which joined measure nothing, and that this daemon cannot count them either.
    fn complain_of_unmeasured(&mut self) {
        if self.has_unmeasured {
            return;
        }
        let unknown = |key: &ProcessKey| self.arena.is_unmeasured(*key) && !self.counters.counts(*key);
        let Some(pid) = self.known.keys().find(|key| unknown(key)).map(|key| key.pid) else { return };
        self.has_unmeasured = true;
        let of_none = ProcessKey { pid: 0, start: 0 };
        self.complaints.push((of_none, "measure what processes transfer", unmeasured(pid)));
    }

    /// Looks where the memory of one job lies: that which waited longest for it.
    fn look_at_memory(
        &mut self,
        now: Time,
        facts: &mut [JobFacts],
        roster: &mut Roster,
    ) -> Result<(), LiveError> {
        if !*self.has_nodes.get_or_insert_with(|| topology::node_numbers().len() > 1) {
            return Ok(());
        }
        let at = |job: JobId| self.memory_at.get(&job).copied();
        let due = |facts: &&mut JobFacts| {
            let wants = facts.threads.iter().any(|thread| thread.wants);
            wants && at(facts.job).is_none_or(|at| now >= at.saturating_add(MEMORY_NS))
        };
        let Some(facts) = facts.iter_mut().filter(due).min_by_key(|facts| (at(facts.job), facts.job)) else {
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

/// A process joined without any means to measure itself.
fn unmeasured(pid: u32) -> LiveError {
    LiveError::Unavailable {
        what: format!(
            "nobody measures what process {pid} transfers over the memory bus, though it joined: neither it nor the daemon \
             has counters of the processor for it; its job, and others like it, are taken to transfer `first-rate`, unless \
             other processes of theirs tell"
        ),
        remedy: "have the program tell its own count, or set `first-rate` in [machine] (docs/gangs.md)"
            .to_owned(),
    }
}

/// What a job transferred of which some processes tell it and others are counted.
fn together(told: Option<&SharedUse>, counted: Option<&SharedUse>) -> Option<SharedUse> {
    let sum = |told: &SharedUse, counted: &SharedUse| SharedUse {
        at: told.at.min(counted.at),
        amount: told.amount.saturating_add(counted.amount),
    };
    match (told, counted) {
        (Some(told), Some(counted)) => Some(sum(told, counted)),
        (one, other) => one.or(other).copied(),
    }
}

/// The processes of units with jobs.
fn candidates(contract: &Contract, roster: &Roster) -> Vec<Candidate> {
    let kind = |unit: UnitId| contract.units.get(unit.index()).and_then(|unit| unit.job);
    let candidate = |member: &super::roster::Member| {
        let unit = member.placement.unit;
        Some((member.key, unit, kind(unit)?, member.session, member.parent))
    };
    roster.members().filter_map(candidate).collect()
}
