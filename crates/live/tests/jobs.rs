//! Jobs in pools of real processes, under the `user` backend: seats of threads, and undoing.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::time::Duration;

use commonhold_contract::{Contract, JobKind, PoolForm};
use commonhold_live::LiveBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::topology;
use commonhold_live::undo::Undone;
use commonhold_machine::CpuSet;
use commonhold_policy::JobFacts;
use support::jobs::Loop;
use support::{Job, churn, descendants, eventually, masks, one_cpu, start};

/// The daemon's loop with a pool for each CPU.
struct Pools(Loop);

impl Pools {
    fn new(jobs: &[&Job], kind: JobKind) -> Pools {
        let mut contract = Contract::default();
        contract.machine.pools = PoolForm::Size(1);
        Pools(Loop::over(jobs, kind, contract, topology::read("/".as_ref()).unwrap()))
    }

    /// A turn, and the wait until the next.
    fn turn(&mut self) -> Vec<JobFacts> {
        let (snapshot, _, wait) = self.0.step();
        std::thread::sleep(wait);
        snapshot.jobs
    }

    /// Turns until there are jobs with these numbers of threads.
    #[track_caller]
    fn has_jobs_of(&mut self, sizes: &[usize]) {
        let mut before = Vec::new();
        eventually(&format!("jobs of {sizes:?} threads"), || {
            let mut found: Vec<usize> = self.turn().iter().map(|facts| facts.threads.len()).collect();
            found.sort_unstable();
            let is_so = found == sizes;
            if found != before {
                println!("jobs of {found:?} threads");
                before = found;
            }
            is_so
        });
    }

    /// A reload that changes what a job is.
    fn change_kind(&mut self, kind: Option<JobKind>) {
        let mut contract = self.0.steward.contract().clone();
        let unit = contract.held().next().unwrap();
        contract.units[unit.index()].job = kind;
        self.0.steward.reload(contract, topology::read("/".as_ref()).unwrap());
        self.0.backend.set_contract(self.0.steward.contract());
    }

    /// Turns for this long.
    fn go_on(&mut self, length: Duration) {
        let end = clock::now() + u64::try_from(length.as_nanos()).unwrap();
        while clock::now() < end {
            self.turn();
        }
    }

    fn undo(self) -> Undone {
        self.0.undo()
    }
}

const SPIN: &str = "while :; do :; done";

/// The CPU of a job whose threads are all tied to the same one.
fn cpu(job: &Job) -> Option<u32> {
    match masks(job.pid()).as_slice() {
        [mask] if mask.len() == 1 => mask.iter().next(),
        _ => None,
    }
}

#[test]
fn two_jobs_are_seated_apart_and_released() {
    let Some((_, all)) = one_cpu() else { return };
    let jobs = [start("sh", &["-c", SPIN]), start("sh", &["-c", SPIN])];
    let mut held = Pools::new(&[&jobs[0], &jobs[1]], JobKind::Process);
    eventually("each has a pool of its own", || {
        held.turn();
        let cpus = jobs.each_ref().map(cpu);
        cpus[0].is_some() && cpus[1].is_some() && cpus[0] != cpus[1]
    });
    let undone = held.undo();
    assert!(undone.problems.is_empty() && undone.threads >= 2, "{undone:?}");
    for job in &jobs {
        assert_eq!(masks(job.pid()), std::slice::from_ref(&all));
    }
}

#[test]
fn a_mask_that_its_owner_chose_is_kept() {
    let Some((_, all)) = one_cpu() else { return };
    let job = start("sh", &["-c", SPIN]);
    let mut held = Pools::new(&[&job], JobKind::Process);
    eventually("it has a seat", || {
        held.turn();
        cpu(&job).is_some()
    });
    let seat = cpu(&job).unwrap();
    let other: CpuSet = all.iter().filter(|cpu| *cpu != seat).take(1).collect();
    affinity::set(job.pid(), &other).unwrap();
    held.go_on(Duration::from_millis(2_500));
    assert_eq!(masks(job.pid()), std::slice::from_ref(&other));
    // Nor is its earlier mask restored.
    held.undo();
    assert_eq!(masks(job.pid()), [other]);
}

/// A child of a seated thread is born on its CPU. It stays there only with its own seat.
#[test]
fn a_child_that_sleeps_may_run_anywhere() {
    let Some((_, all)) = one_cpu() else { return };
    let job = start("sh", &["-c", "read line; sleep 1000 & while :; do :; done"]);
    eventually("asleep", || support::state(job.pid()) == 'S');
    let mut held = Pools::new(&[&job], JobKind::Tree);
    held.turn();
    // It gets a seat once it runs; the child is made by a seated thread.
    let set = affinity::get(job.pid()).unwrap();
    assert_eq!(set, all);
    job.say("go\n");
    eventually("the shell has a seat, and its child has all CPUs", || {
        held.turn();
        let children = descendants(job.pid());
        let masks: Vec<usize> =
            children.iter().map(|pid| affinity::get(*pid).map_or(0, |mask| mask.len())).collect();
        children.len() == 2 && masks.contains(&1) && masks.contains(&all.len())
    });
    held.undo();
    for pid in descendants(job.pid()) {
        assert_eq!(masks(pid), std::slice::from_ref(&all));
    }
}

/// Threads that come and go faster than they are seen: none stays on one CPU in the end, and there is no
/// error meanwhile.
#[test]
fn a_storm_of_threads_leaves_none_stranded() {
    let Some((_, all)) = one_cpu() else { return };
    let job = start(churn(), &["threads", "8"]);
    eventually("threads", || support::threads(job.pid()).len() > 4);
    let mut held = Pools::new(&[&job], JobKind::Process);
    held.go_on(Duration::from_millis(1_500));
    let undone = held.undo();
    assert!(undone.problems.is_empty(), "{undone:?}");
    assert_eq!(masks(job.pid()), [all]);
}

/// A reload without the key removes all seats.
#[test]
fn a_contract_without_jobs_removes_the_seats() {
    let Some((_, all)) = one_cpu() else { return };
    let job = start("sh", &["-c", SPIN]);
    let mut held = Pools::new(&[&job], JobKind::Unit);
    eventually("it has a seat", || {
        held.turn();
        cpu(&job).is_some()
    });
    held.change_kind(None);
    eventually("it may run anywhere", || {
        held.turn();
        masks(job.pid()) == [all.clone()]
    });
}

/// Each program that a shell starts is a job, with its descendants; what a program starts is part of its job.
#[test]
fn a_shell_starts_jobs_and_a_program_starts_processes() {
    // A shell that leads a session, as a terminal's does.
    let script = "sh -c 'sleep 1000 & sleep 1000; :' & sh -c 'sleep 1000; :' & wait";
    let job = start("setsid", &["--fork", "--wait", "sh", "-c", script]);
    let mut held = Pools::new(&[&job], JobKind::Tree);
    // Three processes, two, the shell and setsid.
    held.has_jobs_of(&[1, 1, 2, 3]);
    held.change_kind(Some(JobKind::Process));
    held.has_jobs_of(&[1; 7]);
}

/// A process that begins a session leaves its job.
#[test]
fn a_process_that_begins_a_session_begins_a_job() {
    let script = "exec 3<&0; sh -c 'read line; exec setsid sleep 1000' <&3 & wait";
    let job = start("sh", &["-c", script]);
    let mut held = Pools::new(&[&job], JobKind::Session);
    held.has_jobs_of(&[2]);
    job.say("now\n");
    held.has_jobs_of(&[1, 1]);
}

/// A thread that its owner tied to a CPU is recognised, and its seat is there.
#[test]
fn a_tied_thread_sits_where_it_is_tied() {
    let Some((one, all)) = one_cpu() else { return };
    let jobs = [start("sh", &["-c", SPIN]), start("sh", &["-c", SPIN])];
    affinity::set(jobs[1].pid(), &one).unwrap();
    let mut held = Pools::new(&[&jobs[0], &jobs[1]], JobKind::Process);
    let mut tied = Vec::new();
    held.go_on(Duration::from_millis(500));
    for facts in held.turn() {
        tied.extend(facts.threads.into_iter().filter_map(|thread| thread.tied));
    }
    assert_eq!(tied, std::slice::from_ref(&one));
    assert_eq!(masks(jobs[1].pid()), std::slice::from_ref(&one));
    held.undo();
    assert_eq!(masks(jobs[0].pid()), [all]);
    assert_eq!(masks(jobs[1].pid()), [one]);
}
