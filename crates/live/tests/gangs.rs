//! Gangs of real processes, under the `user` backend: which jobs are stopped in a quantum, what their
//! processes report of the memory bus, and undoing.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use commonhold_contract::{Contract, Gangs, JobKind};
use commonhold_live::LiveBackend;
use commonhold_live::host::clock;
use commonhold_live::observe::arena::NotJoined;
use commonhold_live::observe::topology;
use commonhold_policy::plan::{CpuOrder, GangOrder, Orders};
use commonhold_policy::{JobId, Plan, Reason, Snapshot};
use commonhold_steward::Backend;
use support::jobs::Loop;
use support::{Job, descendants, eventually, key, kill, start, state};

const QUANTUM_NS: u64 = 50_000_000;

/// Two processes that compute.
const TWO: &str = "(while :; do :; done) & while :; do :; done";

/// The daemon's loop over jobs that are gangs.
fn gangs(jobs: &[&Job]) -> Loop {
    let mut contract = Contract::default();
    contract.machine.gangs.by = Gangs::LatestQuantum;
    contract.machine.gangs.quantum_ns = QUANTUM_NS;
    let mut machine = topology::read("/".as_ref()).unwrap();
    // As many CPUs as one of them needs, whatever this machine has.
    machine.cpus.truncate(2);
    Loop::over(jobs, JobKind::Session, contract, machine)
}

/// Two jobs of two processes each, which compute.
fn two_jobs() -> [Job; 2] {
    let jobs = [start("sh", &["-c", TWO]), start("sh", &["-c", TWO])];
    eventually("two processes each", || jobs.iter().all(|job| descendants(job.pid()).len() == 2));
    jobs
}

/// Whether all of a job's processes are stopped; `None` if only some are.
fn is_stopped(job: &Job) -> Option<bool> {
    let stopped: Vec<bool> = descendants(job.pid()).iter().map(|pid| state(*pid) == 'T').collect();
    if stopped.iter().all(|it| *it) { Some(true) } else { stopped.iter().all(|it| !it).then_some(false) }
}

fn cpu_ns(job: &Job) -> u64 {
    let cpu_of = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        stat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    descendants(job.pid()).iter().map(cpu_of).sum()
}

/// At any scan at most one job's processes run, each job's all together, and both jobs make progress.
#[test]
fn gangs_take_turns() {
    let jobs = two_jobs();
    let before = jobs.each_ref().map(cpu_ns);
    let mut held = gangs(&[&jobs[0], &jobs[1]]);
    let mut open: BTreeMap<JobId, bool> = BTreeMap::new();
    let mut chosen: BTreeMap<JobId, u32> = BTreeMap::new();
    while chosen.len() < 2 || chosen.values().any(|quanta| *quanta < 4) {
        let (snapshot, plan, wait) = held.step();
        for step in &plan.orders.gangs {
            let GangOrder::Gate { job, open: is_open, .. } = step.action;
            open.insert(job, is_open);
        }
        for gang in plan.decisions.quantum.iter().flat_map(|quantum| &quantum.chosen) {
            *chosen.entry(gang.action.job).or_default() += 1;
            assert_eq!(gang.action.cpus, 2, "both of its processes want one");
        }
        let shut: Vec<JobId> = open.iter().filter(|(_, open)| !**open).map(|(job, _)| *job).collect();
        let facts = |job: &JobId| snapshot.jobs.iter().find(|facts| facts.job == *job).unwrap();
        let pid_of = |job: &JobId| -> u32 {
            let name = &facts(job).name;
            name[name.find('(').unwrap() + 1..name.len() - 1].parse().unwrap()
        };
        let shut: Vec<u32> = shut.iter().map(pid_of).collect();
        // On a machine shared with others, a signal also takes effect only when the process next enters the
        // kernel.
        eventually("each is as ordered", || {
            jobs.iter().all(|job| is_stopped(job) == Some(shut.contains(&job.pid())))
        });
        let running = jobs.iter().filter(|job| is_stopped(job) == Some(false)).count();
        assert!(running <= 1 || chosen.is_empty(), "{running} jobs run");
        std::thread::sleep(wait);
    }
    let after = jobs.each_ref().map(cpu_ns);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    // Stopped processes continue.
    let undone = held.undo();
    assert!(undone.problems.is_empty() && undone.continued == 2, "{undone:?}");
    eventually("all run", || jobs.iter().all(|job| is_stopped(job) == Some(false)));
}

/// A backend without a policy, after its first scan at the jobs; and the jobs' numbers.
fn seen(jobs: &[&Job]) -> (Loop, Vec<JobId>) {
    let mut held = gangs(jobs);
    held.backend.settle(clock::now()).unwrap();
    let snapshot = held.backend.observe(clock::now(), &[]).unwrap();
    let numbers = snapshot.jobs.iter().map(|facts| facts.job).collect();
    (held, numbers)
}

impl Loop {
    #[track_caller]
    fn gate(&mut self, job: JobId, open: bool) {
        let unit = self.steward.contract().held().next().unwrap();
        let mut plan = Plan { at: clock::now(), ..Plan::default() };
        let action = GangOrder::Gate { job, unit, open };
        plan.orders.gangs.push(commonhold_policy::Step { action, reason: Reason::NotThisQuantum });
        let problems = self.backend.apply(&plan);
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[track_caller]
    fn gate_of_unit(&mut self, open: bool) {
        let unit = self.steward.contract().held().next().unwrap();
        let orders = Orders::of_cpus(Reason::HoldsChanged, [CpuOrder::Gate { unit, open }]);
        let problems = self.backend.apply(&Plan { at: clock::now(), orders, ..Plan::default() });
        assert!(problems.is_empty(), "{problems:?}");
    }

    fn look(&mut self) -> Snapshot {
        let unit = self.steward.contract().held().next().unwrap();
        self.backend.settle(clock::now()).unwrap();
        self.backend.observe(clock::now(), &[unit]).unwrap()
    }
}

#[test]
fn a_gang_runs_only_if_its_gate_and_its_units_are_open() {
    let job = start("sh", &["-c", TWO]);
    eventually("two processes", || descendants(job.pid()).len() == 2);
    let (mut held, numbers) = seen(&[&job]);
    let is = |stopped: bool| eventually("it is as ordered", || is_stopped(&job) == Some(stopped));
    held.gate(numbers[0], false);
    is(true);
    held.gate_of_unit(false);
    held.gate(numbers[0], true);
    is(true);
    held.gate_of_unit(true);
    is(false);
    held.gate_of_unit(false);
    held.gate(numbers[0], false);
    held.gate_of_unit(true);
    is(true);
    held.gate(numbers[0], true);
    is(false);
    assert_eq!(held.undo().continued, 0);
}

/// However fast signals follow each other, the last one counts.
#[test]
fn the_last_of_many_orders_is_in_force() {
    let job = start("sh", &["-c", TWO]);
    eventually("two processes", || descendants(job.pid()).len() == 2);
    let (mut held, numbers) = seen(&[&job]);
    for n in 1..=100 {
        for order in 0..n % 7 {
            held.gate(numbers[0], order % 2 == 0);
        }
        held.gate(numbers[0], n % 2 == 0);
        eventually("it is as ordered", || is_stopped(&job) == Some(n % 2 != 0));
    }
}

#[test]
fn a_stopped_process_has_no_demand_but_its_unit_has() {
    let job = start("sh", &["-c", TWO]);
    eventually("two processes", || descendants(job.pid()).len() == 2);
    let (mut held, numbers) = seen(&[&job]);
    let unit = held.steward.contract().held().next().unwrap();
    let wants = |snapshot: &Snapshot| {
        let threads = snapshot.jobs[0].threads.iter().filter(|thread| thread.wants).count();
        (threads, snapshot.unit(unit).runnable)
    };
    eventually("both want a CPU", || wants(&held.look()) == (2, 2));
    held.gate(numbers[0], false);
    for _ in 0..10 {
        assert_eq!(wants(&held.look()), (0, 2));
    }
    held.gate(numbers[0], true);
    eventually("both want a CPU again", || wants(&held.look()) == (2, 2));
}

#[test]
fn new_processes_of_a_shut_gang_are_stopped_and_a_users_stop_stays() {
    // The child is started by a process that is no member: its session puts it into the gang.
    let job = start("sh", &["-c", "sleep 1000 & while :; do :; done"]);
    eventually("two processes", || descendants(job.pid()).len() == 2);
    let children = descendants(job.pid());
    let sleeper = children[1];
    job_stops(sleeper);
    let (mut held, numbers) = seen(&[&job]);
    held.gate(numbers[0], false);
    eventually("the shell is stopped", || state(job.pid()) == 'T');
    // A process continued by others is stopped again.
    kill(job.pid(), libc::SIGCONT);
    eventually("it is stopped again", || {
        held.look();
        state(job.pid()) == 'T'
    });
    held.gate(numbers[0], true);
    eventually("the shell runs", || state(job.pid()) == 'R');
    held.look();
    assert_eq!(state(sleeper), 'T', "its owner stopped it");
    held.gate(numbers[0], false);
    eventually("the shell is stopped", || state(job.pid()) == 'T');
    let undone = held.undo();
    assert!(undone.problems.is_empty() && undone.continued == 1, "{undone:?}");
    assert_eq!(state(sleeper), 'T', "and it stays stopped");
    kill(sleeper, libc::SIGCONT);
}

fn job_stops(pid: u32) {
    kill(pid, libc::SIGSTOP);
    eventually("it is stopped", || state(pid) == 'T');
}

/// Processes born while the gang is being shut are stopped, without another scan.
#[test]
fn a_fork_storm_is_stopped_while_its_gang_is_shut() {
    let job = start("sh", &["-c", "read line; while :; do sleep 1000 & done"]);
    let (mut held, numbers) = seen(&[&job]);
    job.say("go\n");
    eventually("some are born", || support::states(job.pid()).len() > 5);
    held.gate(numbers[0], false);
    eventually("all are stopped", || support::states(job.pid()).iter().all(|state| *state == 'T'));
    held.gate(numbers[0], true);
    eventually("all run", || support::states(job.pid()).iter().all(|state| *state != 'T'));
}

#[test]
fn pages_are_given_only_under_a_contract_with_gangs() {
    let job = start("sh", &["-c", TWO]);
    eventually("both are there", || descendants(job.pid()).len() > 1);
    let (mut held, _) = seen(&[&job]);
    let (page, every_ns) = held.backend.join(key(job.pid()), 0).unwrap().unwrap();
    assert_eq!(every_ns, QUANTUM_NS / 2);
    assert_eq!(held.look().jobs[0].shared, None, "it reported nothing");
    // What the process would write.
    let now = clock::now();
    let words = [2u64, now, 4096].map(u64::to_ne_bytes).concat();
    rustix::io::pwrite(&page, &words, 64).unwrap();
    let shared = held.look().jobs[0].shared.unwrap();
    assert_eq!((shared.at, shared.amount), (now, 4096));
    // A working thread counts as working, whatever its process reports.
    for writer in [u64::from(job.pid()), u64::from(descendants(job.pid())[1])] {
        rustix::io::pwrite(&page, &writer.to_ne_bytes(), 88).unwrap();
        eventually("both want a CPU", || {
            std::thread::sleep(Duration::from_millis(50));
            held.look().jobs[0].threads.iter().filter(|thread| thread.wants).count() == 2
        });
    }
    let mut contract = held.steward.contract().clone();
    contract.machine.gangs.by = Gangs::Off;
    held.backend.set_contract(&contract);
    assert_eq!(held.look().jobs[0].shared, None);
    let refused: Option<Result<_, NotJoined>> = held.backend.join(key(job.pid()), 0);
    assert!(refused.is_none());
}
