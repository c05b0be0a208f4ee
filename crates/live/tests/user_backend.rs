//! The `user` backend on real processes. The user that runs the tests owns the processes, root or not.
// `[mask.clone()]` shows the expected value; a slice made from a reference would show how it was made.
#![allow(clippy::unwrap_used, clippy::cloned_ref_to_slice_refs, clippy::disallowed_methods)]

mod support;

use std::process::Command;

use commonhold_contract::{Amount, Contract, Member, MemberKind, UnitId};
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::roster::Roster;
use commonhold_live::observe::topology;
use commonhold_live::undo::journal::Journal;
use commonhold_live::undo::{Undone, undo};
use commonhold_live::{Backend, LiveBackend, LiveError};
use commonhold_machine::CpuSet;
use commonhold_policy::plan::{CpuOrder, DiskOrder, Orders};
use commonhold_policy::{Plan, Reason, Snapshot};
use commonhold_steward::Steward;
use support::skipped::skipped;
use support::{Job, churn, descendants, eventually, masks, one_cpu, start, start_marked, state, states};

/// A backend that holds some jobs, one unit each.
struct Rig {
    backend: UserBackend,
    units: Vec<UnitId>,
    journal: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

/// A unit for each job.
fn contract_of(jobs: &[&Job]) -> Contract {
    let mut contract = Contract::default();
    for (n, job) in jobs.iter().enumerate() {
        let unit = contract.add(None, &format!("unit{n}"));
        let member = Member { kind: MemberKind::Pid(job.pid()), span: 0..0 };
        contract.units[unit.index()].members.push(member);
    }
    contract
}

fn backend_of(contract: Contract, directory: &std::path::Path) -> UserBackend {
    let (journal, _) = Journal::create(directory).unwrap();
    let roster = Roster::new("/proc".as_ref(), &[]).unwrap();
    UserBackend::new(contract, affinity::get(0).unwrap(), roster, journal)
}

impl Rig {
    fn new(jobs: &[&Job]) -> Rig {
        let contract = contract_of(jobs);
        let units: Vec<UnitId> = contract.held().collect();
        let directory = tempfile::tempdir().unwrap();
        let mut backend = backend_of(contract, directory.path());
        backend.settle(clock::now()).unwrap();
        backend.observe(clock::now(), &[]).unwrap();
        Rig { backend, units, journal: directory.path().join("journal"), _directory: directory }
    }

    fn observe(&mut self) -> Snapshot {
        self.backend.settle(clock::now()).unwrap();
        self.backend.observe(clock::now(), &self.units.clone()).unwrap()
    }

    fn apply(&mut self, action: CpuOrder) -> Vec<LiveError> {
        self.order(Orders::of_cpus(Reason::HoldsChanged, [action]))
    }

    fn order(&mut self, orders: Orders) -> Vec<LiveError> {
        let plan = Plan { at: clock::now(), orders, ..Plan::default() };
        self.backend.apply(&plan)
    }

    #[track_caller]
    fn confine(&mut self, unit: usize, cpus: Option<&CpuSet>) {
        let problems = self.apply(CpuOrder::Confine { unit: self.units[unit], cpus: cpus.cloned() });
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[track_caller]
    fn gate(&mut self, unit: usize, open: bool) {
        let problems = self.apply(CpuOrder::Gate { unit: self.units[unit], open });
        assert!(problems.is_empty(), "{problems:?}");
    }

    /// Undoes the journal, as a caretaker would.
    fn undo(self) -> Undone {
        drop(self.backend);
        undo(&Journal::read(&self.journal).unwrap(), "/proc".as_ref())
    }
}

#[test]
fn every_process_of_a_job_is_confined_and_restored() {
    let Some((one, all)) = one_cpu() else { return };
    let job = start("sh", &["-c", "sleep 1000 & sleep 1000 & wait"]);
    eventually("two children", || descendants(job.pid()).len() == 3);
    let mut rig = Rig::new(&[&job]);
    rig.confine(0, Some(&one));
    assert_eq!(masks(job.pid()), [one.clone()]);
    assert_eq!(rig.observe().unit(rig.units[0]).processes, 3);
    rig.confine(0, None);
    assert_eq!(masks(job.pid()), [all]);
}

#[test]
fn children_of_a_job_that_began_before_its_order_are_confined() {
    let Some((one, _)) = one_cpu() else { return };
    let job = start("sh", &["-c", "read line; sleep 1000 & sleep 1000 & wait"]);
    let mut rig = Rig::new(&[&job]);
    rig.confine(0, Some(&one));
    job.say("go\n");
    eventually("two children", || descendants(job.pid()).len() == 3);
    assert_eq!(rig.observe().unit(rig.units[0]).processes, 3);
    assert_eq!(masks(job.pid()), [one]);
}

#[test]
fn a_fork_storm_is_confined_and_released() {
    let Some((one, all)) = one_cpu() else { return };
    let job = start(churn(), &["forks", "3"]);
    let mut rig = Rig::new(&[&job]);
    for _ in 0..5 {
        rig.confine(0, Some(&one));
        // A child forked by a process that was not confined yet is found by the next scans.
        eventually("all on one CPU", || {
            rig.observe();
            support::session_masks(job.pid()) == [one.clone()]
        });
        rig.confine(0, None);
        eventually("all on every CPU", || {
            rig.observe();
            support::session_masks(job.pid()) == [all.clone()]
        });
    }
}

#[test]
fn a_storm_of_threads_is_confined_at_once() {
    let Some((one, all)) = one_cpu() else { return };
    let job = start(churn(), &["threads", "8"]);
    eventually("threads", || support::threads(job.pid()).len() > 4);
    let mut rig = Rig::new(&[&job]);
    for _ in 0..20 {
        rig.confine(0, Some(&one));
        assert_eq!(masks(job.pid()), [one.clone()]);
        rig.confine(0, None);
        assert_eq!(masks(job.pid()), [all.clone()]);
    }
}

#[test]
fn undoing_unconfines_every_process_of_a_storm() {
    let Some((one, all)) = one_cpu() else { return };
    let jobs = [start(churn(), &["forks", "3"]), start(churn(), &["threads", "8"])];
    let mut rig = Rig::new(&[&jobs[0], &jobs[1]]);
    rig.confine(0, Some(&one));
    rig.confine(1, Some(&one));
    std::thread::sleep(std::time::Duration::from_millis(50));
    let undone = rig.undo();
    assert!(undone.problems.is_empty(), "{undone:?}");
    for job in &jobs {
        assert_eq!(support::session_masks(job.pid()), [all.clone()]);
    }
}

#[test]
fn threads_that_share_a_cpu_wait_for_it() {
    let Some((one, _)) = one_cpu() else { return };
    let jobs = [start("sh", &["-c", "while :; do :; done"]), start("sh", &["-c", "while :; do :; done"])];
    let mut rig = Rig::new(&[&jobs[0], &jobs[1]]);
    rig.confine(0, Some(&one));
    rig.confine(1, Some(&one));
    if !std::path::Path::new("/proc/self/schedstat").exists() {
        skipped("this kernel does not count waiting (CONFIG_SCHED_INFO)");
        return;
    }
    let before = rig.observe();
    eventually("both ran and both waited", || {
        let now = rig.observe();
        let grew = |unit: &UnitId| {
            let (then, now) = (before.unit(*unit), now.unit(*unit));
            now.used_ns > then.used_ns && now.waited_ns > then.waited_ns
        };
        rig.units.iter().all(grew)
    });
}

#[test]
fn a_closed_gate_stops_the_unit_and_remembers_its_demand() {
    let (busy, other) = (start("sh", &["-c", "while :; do :; done"]), start("sleep", &["1000"]));
    let mut rig = Rig::new(&[&busy, &other]);
    eventually("the busy unit runs", || rig.observe().unit(rig.units[0]).runnable == 1);
    eventually("the other sleeps", || state(other.pid()) == 'S');
    rig.gate(0, false);
    eventually("stopped", || state(busy.pid()) == 'T');
    assert_eq!(state(other.pid()), 'S');
    let snapshot = rig.observe();
    assert_eq!((snapshot.unit(rig.units[0]).runnable, snapshot.unit(rig.units[1]).runnable), (1, 0));
    let used = snapshot.unit(rig.units[0]).used_ns;
    assert_eq!(rig.observe().unit(rig.units[0]).used_ns, used);
    rig.gate(0, true);
    assert_ne!(state(busy.pid()), 'T');
    eventually("it runs again", || rig.observe().unit(rig.units[0]).used_ns > used);
}

/// Two turns of other units: in the first, all processes are stopped, in the second only running ones.
fn close_twice(rig: &mut Rig, job: &Job) {
    let all = descendants(job.pid()).len();
    let asleep = || states(job.pid()).iter().filter(|state| **state == 'S').count();
    let asleep_before = asleep();
    rig.gate(0, false);
    eventually("all stopped", || states(job.pid()) == vec!['T'; all]);
    rig.gate(0, true);
    // A continued sleeper runs for a moment. On a busy machine it would otherwise do so after the sample, and
    // count as awake.
    eventually("all go on", || !states(job.pid()).contains(&'T') && asleep() >= asleep_before);
    rig.observe();
    rig.gate(0, false);
}

#[test]
fn a_sleeper_is_left_asleep_and_stopped_when_it_wakes() {
    let job = start("sh", &["-c", "read line; while :; do :; done"]);
    eventually("asleep", || state(job.pid()) == 'S');
    let mut rig = Rig::new(&[&job]);
    close_twice(&mut rig, &job);
    rig.observe();
    assert_eq!(state(job.pid()), 'S');
    job.say("go\n");
    eventually("stopped", || {
        rig.observe();
        state(job.pid()) == 'T'
    });
    assert_eq!(rig.undo().continued, 1);
}

/// A shell that saw its job stopped would take the terminal back.
#[test]
fn a_parent_that_waits_for_a_stopped_process_is_stopped_as_well() {
    let job = start("sh", &["-c", "(while :; do :; done) & sleep 1000 & wait"]);
    let is_shell = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sh\n";
    // Its CPU clock is first read now: a program that still starts would count as awake.
    eventually("a sleeper", || {
        let all = descendants(job.pid());
        all.len() == 3 && all.iter().any(|pid| !is_shell(pid) && state(*pid) == 'S')
    });
    let mut rig = Rig::new(&[&job]);
    close_twice(&mut rig, &job);
    let (shells, others): (Vec<u32>, Vec<u32>) = descendants(job.pid()).into_iter().partition(is_shell);
    eventually("both shells are stopped", || shells.iter().all(|pid| state(*pid) == 'T'));
    assert_eq!((shells.len(), state(others[0])), (2, 'S'));
}

#[test]
fn a_storm_of_forks_stops_at_a_closed_gate() {
    let job = start(churn(), &["forks", "3"]);
    let mut rig = Rig::new(&[&job]);
    for _ in 0..5 {
        rig.gate(0, false);
        // A parent whose child is stopped before its exec waits for it in the kernel (vfork), which is as
        // good.
        eventually("all stopped", || {
            rig.observe();
            states(job.pid()).iter().all(|state| matches!(state, 'T' | 'D'))
        });
        rig.gate(0, true);
        assert!(!states(job.pid()).contains(&'T'));
    }
}

#[test]
fn a_process_that_its_user_stopped_is_not_continued() {
    let (job, running) = (start("sleep", &["1000"]), start("sleep", &["1000"]));
    job.signal(libc::SIGSTOP);
    eventually("stopped", || state(job.pid()) == 'T');
    let mut rig = Rig::new(&[&job, &running]);
    rig.gate(0, false);
    rig.gate(1, false);
    eventually("stopped", || state(running.pid()) == 'T');
    rig.gate(0, true);
    assert_eq!(state(job.pid()), 'T');
    let undone = rig.undo();
    assert_eq!((state(job.pid()), undone.continued), ('T', 1));
    eventually("continued", || state(running.pid()) == 'S');
}

#[test]
fn continuing_a_process_of_a_closed_unit_does_not_open_it() {
    let job = start("sleep", &["1000"]);
    let mut rig = Rig::new(&[&job]);
    rig.gate(0, false);
    job.signal(libc::SIGCONT);
    eventually("stopped again", || {
        rig.observe();
        state(job.pid()) == 'T'
    });
}

#[test]
fn the_owners_choice_is_kept_and_restored() {
    let Some((one, all)) = one_cpu() else { return };
    let other: CpuSet = all.difference(&one).iter().take(1).collect();
    let job = start("sleep", &["1000"]);
    affinity::set(job.pid(), &other).unwrap();
    let mut rig = Rig::new(&[&job]);
    rig.confine(0, Some(&all));
    assert_eq!(masks(job.pid()), [other.clone()]);
    // Contradicted: the order wins, which is reported once.
    let problems = rig.apply(CpuOrder::Confine { unit: rig.units[0], cpus: Some(one.clone()) });
    assert_eq!((problems.len(), rig.backend.overridden()), (1, 1));
    assert!(problems[0].to_string().contains("its unit holds none of these CPUs"), "{}", problems[0]);
    assert_eq!(masks(job.pid()), [one.clone()]);
    rig.confine(0, Some(&all));
    rig.confine(0, Some(&one));
    // The owner chooses another mask while the order holds: that one is restored in the end.
    affinity::set(job.pid(), &all).unwrap();
    rig.confine(0, Some(&one));
    assert_eq!(rig.undo().threads, 1);
    assert_eq!(masks(job.pid()), [all]);
}

#[test]
fn a_choice_made_between_two_orders_is_seen_within_a_second() {
    let Some((one, all)) = one_cpu() else { return };
    let job = start("sleep", &["1000"]);
    let mut rig = Rig::new(&[&job]);
    rig.confine(0, Some(&one));
    affinity::set(job.pid(), &all).unwrap();
    rig.backend.settle(clock::now() + 2_000_000_000).unwrap();
    rig.backend.observe(clock::now() + 2_000_000_000, &[]).unwrap();
    assert_eq!(masks(job.pid()), [one]);
}

#[test]
fn a_process_that_leaves_the_unit_gets_its_cpus_back() {
    let Some((one, all)) = one_cpu() else { return };
    let (job, other) = (start("sleep", &["1000"]), start("sleep", &["1000"]));
    let mut rig = Rig::new(&[&job, &other]);
    rig.confine(0, Some(&one));
    rig.gate(0, false);
    eventually("stopped", || state(job.pid()) == 'T');
    // A contract without that unit; the other one keeps its orders.
    rig.confine(1, Some(&one));
    let mut contract = Contract::default();
    let unit = contract.add(None, "unit1");
    contract.units[unit.index()].members.push(Member { kind: MemberKind::Pid(other.pid()), span: 0..0 });
    let mut before = Contract::default();
    before.add(None, "unit0");
    before.add(None, "unit1");
    contract.adopt(&before, true);
    rig.backend.set_contract(&contract);
    rig.backend.settle(clock::now()).unwrap();
    rig.backend.observe(clock::now(), &[]).unwrap();
    assert_eq!(masks(job.pid()), [all]);
    assert_ne!(state(job.pid()), 'T');
    assert_eq!(masks(other.pid()), [one]);
}

#[test]
fn descendants_follow_a_process_that_entered_by_exec() {
    let Some((one, _)) = one_cpu() else { return };
    let member = start("sleep", &["1000"]);
    let mut rig = Rig::new(&[&member]);
    rig.confine(0, Some(&one));
    // A length that no other process here sleeps for.
    let nap = (10_000_000 + std::process::id()).to_string();
    let script = format!("read line; (setsid sleep {nap} &) ; exec sleep 1000");
    let job = start_marked("sh", &["-c", &script], "unit0");
    let key = support::key(job.pid());
    assert!(rig.backend.enter(key, rig.units[0]).unwrap());
    rig.observe();
    assert_eq!(masks(job.pid()), [one.clone()]);
    job.say("go\n");
    // Daemonised: another session, its parent gone. Its environment identifies it, and the process that
    // entered has the same user.
    let grandchild = || support::find(&["sleep", &nap]);
    eventually("the daemonised process", || grandchild().is_some());
    eventually("it is a member", || {
        rig.observe();
        grandchild().is_some_and(|pid| {
            rig.backend.roster().member(pid).is_some_and(|member| member.placement.unit == rig.units[0])
        })
    });
    support::kill(grandchild().unwrap(), libc::SIGKILL);
}

#[test]
fn unsupported_orders_are_refused() {
    let job = start("sleep", &["1000"]);
    let mut rig = Rig::new(&[&job]);
    let problems = rig.apply(CpuOrder::Weigh { unit: rig.units[0], weight: 5 });
    assert!(problems[0].to_string().contains("use the cgroup backend"), "{}", problems[0]);
    let problems = rig.apply(CpuOrder::Gate { unit: UnitId::SHARED, open: false });
    assert!(problems[0].to_string().contains("never restricted"), "{}", problems[0]);
    let problems = rig.apply(CpuOrder::Gate { unit: UnitId(77), open: false });
    assert!(problems[0].to_string().contains("unit number 77"), "{}", problems[0]);
}

#[test]
fn an_error_names_a_cpu_that_does_not_exist() {
    let job = start("sleep", &["1000"]);
    let mut rig = Rig::new(&[&job]);
    let cpus: CpuSet = "4000".parse().unwrap();
    let problems = rig.apply(CpuOrder::Confine { unit: rig.units[0], cpus: Some(cpus) });
    assert!(
        problems.iter().any(|problem| problem.to_string().contains("confine to CPUs 4000")),
        "{problems:?}"
    );
    assert_eq!(masks(job.pid()), [affinity::get(0).unwrap()]);
}

#[test]
fn another_users_process_is_reported_once_and_left_alone() {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can start another user's process to be refused");
        return;
    }
    let (theirs, directory) = (start("sleep", &["1000"]), tempfile::tempdir().unwrap());
    std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(support::example("hold"))
        .arg(directory.path().join("journal"))
        .args([&theirs.pid().to_string(), "0", "closed"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("it is another user's: run commonhold as root").count(), 2, "{errors}");
    eventually("it is asleep, and not stopped", || state(theirs.pid()) == 'S');
}

/// A unit is stopped for its disk use, and a reload drops it: its process continues at the next scan, without
/// an order. Another unit that replaces it is not stopped.
#[test]
fn a_unit_dropped_while_stopped_leaves_no_process_stopped() {
    let (job, other) = (start("sleep", &["1000"]), start("sleep", &["1000"]));
    let mut rig = Rig::new(&[&job]);
    let before = contract_of(&[&job]);
    let stop = |unit, stopped| DiskOrder::Stop { unit, disk: "all".to_owned(), stopped };
    let problems = rig.order(Orders::of_disks(Reason::DiskFree, [stop(rig.units[0], true)]));
    assert!(problems.is_empty(), "{problems:?}");
    eventually("stopped", || state(job.pid()) == 'T');
    rig.observe();
    assert_eq!(state(job.pid()), 'T');
    let mut without = Contract::default();
    without.adopt(&before, true);
    rig.backend.set_contract(&without);
    rig.backend.settle(clock::now()).unwrap();
    rig.backend.observe(clock::now(), &[]).unwrap();
    eventually("it continues", || state(job.pid()) == 'S');
    let mut with = contract_of(&[&other]);
    with.units[2].path = "other".to_owned();
    with.adopt(&without, true);
    assert_eq!(with.find("other"), Some(rig.units[0]));
    rig.backend.set_contract(&with);
    for _ in 0..3 {
        rig.observe();
        assert_eq!((state(job.pid()), state(other.pid())), ('S', 'S'));
    }
}

/// A unit that writes as fast as it can is stopped in between, to keep to its rate; without a rate it
/// continues. The policy decides when, turn by turn.
#[test]
fn a_unit_is_held_to_its_rate_on_disks() {
    if std::fs::read_dir("/sys/block").is_ok_and(|mut disks| disks.next().is_none()) {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = directory.path().join("written");
    let script = "while :; do dd if=/dev/zero of=\"$0\" bs=256k count=4 conv=fsync; done";
    let job = start("sh", &["-c", script, file.to_str().unwrap()]);
    let free = contract_of(&[&job]);
    let mut limited = free.clone();
    let mib = 1 << 20;
    limited.units[2].limit.disk = Some(Amount::Absolute(2 * mib));
    let mut backend = backend_of(limited.clone(), directory.path());
    let machine = topology::read("/".as_ref()).unwrap();
    let mut steward = Steward::new(limited, machine.clone());
    let mut written = 0;
    let mut turn = |steward: &mut Steward, backend: &mut UserBackend| {
        let turn = steward.turn(backend, 0).unwrap();
        let wrong: Vec<String> = turn.wrong.iter().map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        written = turn.snapshot.disks.first().map_or(0, |disk| disk.unit(UnitId(2)).written_bytes);
        let wait = turn.next(clock::now()).saturating_sub(clock::now()).min(50_000_000);
        std::thread::sleep(std::time::Duration::from_nanos(wait));
        written
    };
    eventually("it is seen to write", || turn(&mut steward, &mut backend) > 0);
    let (begun, before, mut stopped) = (clock::now(), turn(&mut steward, &mut backend), 0);
    let mut held = 0;
    while clock::now() - begun < 3_000_000_000 {
        held = turn(&mut steward, &mut backend) - before;
        stopped += u32::from(states(job.pid()).contains(&'T'));
    }
    // The amount is not tested: late scans let it write more in between.
    assert!(stopped > 0 || held < 4 * mib, "it was never stopped and wrote {held} bytes");
    steward.reload(free, machine);
    backend.set_contract(steward.contract());
    eventually("it continues", || {
        turn(&mut steward, &mut backend);
        !states(job.pid()).contains(&'T')
    });
}
