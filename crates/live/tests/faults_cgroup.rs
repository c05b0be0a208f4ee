//! Faults under the `cgroup` backend: system calls that fail when they should not. The processes are real;
//! the control groups are a simulated folder (`support/groups.rs`), so this needs no privileges.
//!
//! For each fault: the error names file, value and remedy, nothing is lost or half in force, and the next
//! step recovers.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/groups.rs"]
mod groups;
mod support;

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use commonhold_contract::{Contract, Member, MemberKind, UnitId};
use commonhold_live::apply::cgroup::CgroupBackend;
use commonhold_live::host::{Access, Answer, Kind};
use commonhold_live::observe::roster::Roster;
use commonhold_live::undo::journal::{Entry, Journal};
use commonhold_live::undo::{Undone, undo};
use commonhold_live::{Backend, LiveBackend};
use commonhold_policy::plan::{CpuOrder, Orders};
use commonhold_policy::{Plan, Reason};
use groups::{Tree, always, once};
use support::{Job, kill, start};

const SECOND: u64 = 1_000_000_000;

/// A backend with jobs, one unit each: `u0`, `u1`.
struct Rig {
    tree: Tree,
    backend: CgroupBackend,
    contract: Contract,
    units: Vec<UnitId>,
    jobs: Vec<Job>,
    now: u64,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new(jobs: usize) -> Rig {
        Rig::with(jobs, |_| None)
    }

    /// The same, with a fault from the beginning.
    fn with(jobs: usize, fault: impl FnMut(&Access<'_>) -> Option<Answer> + 'static) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let jobs: Vec<Job> = (0..jobs).map(|_| start("sleep", &["1000"])).collect();
        let mut contract = Contract::default();
        let unit = |(n, job): (usize, &Job)| {
            let unit = contract.add(None, &format!("u{n}"));
            let member = Member { kind: MemberKind::Pid(job.pid()), span: 0..0 };
            contract.units[unit.index()].members.push(member);
            unit
        };
        let units = jobs.iter().enumerate().map(unit).collect();
        let tree = Tree::new(&dir.path().join("cgroup"));
        tree.fault(fault);
        let (journal, _) = Journal::create(&dir.path().join("run")).unwrap();
        let roster = Roster::new(Path::new("/proc"), &[]).unwrap();
        let backend = CgroupBackend::new(&tree.place(), &contract, roster, journal).unwrap();
        Rig { tree, backend, contract, units, jobs, now: SECOND, dir }
    }

    /// A scan, a second after the previous one; returns the problems.
    fn look(&mut self) -> Vec<String> {
        self.now += SECOND;
        self.backend.settle(self.now).unwrap();
        self.backend.observe(self.now, &self.units).unwrap();
        self.backend.take_problems().iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn look_well(&mut self) {
        assert_eq!(self.look(), Vec::<String>::new());
    }

    fn order(&mut self, action: CpuOrder) -> Vec<String> {
        let orders = Orders::of_cpus(Reason::HoldsChanged, [action]);
        let problems = self.backend.apply(&Plan { orders, ..Plan::default() });
        problems.iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn order_well(&mut self, action: CpuOrder) {
        assert_eq!(self.order(action), Vec::<String>::new());
    }

    fn cap(&self, micro_cpus: Option<u64>) -> CpuOrder {
        CpuOrder::Cap { unit: self.units[0], micro_cpus }
    }

    fn weigh(&self, weight: u32) -> CpuOrder {
        CpuOrder::Weigh { unit: self.units[0], weight }
    }

    fn confine(&self, unit: usize, cpus: Option<&str>) -> CpuOrder {
        CpuOrder::Confine { unit: self.units[unit], cpus: cpus.map(|cpus| cpus.parse().unwrap()) }
    }

    fn file(&self, path: &str) -> String {
        self.tree.file(&format!("commonhold/{path}"))
    }

    fn procs(&self, unit: &str) -> Vec<u32> {
        self.tree.procs(&format!("commonhold/{unit}"))
    }

    fn exists(&self, path: &str) -> bool {
        self.tree.root.join("commonhold").join(path).exists()
    }

    fn journal(&self) -> Vec<Entry> {
        Journal::read(&self.dir.path().join("run/journal")).unwrap()
    }

    fn undo(&self) -> Undone {
        undo(&self.journal(), Path::new("/proc"))
    }
}

/// Asserts that this is the only problem, and contains all these words.
#[track_caller]
fn says(problems: &[String], words: &[&str]) {
    assert_eq!(problems.len(), 1, "{problems:?}");
    for word in words {
        assert!(problems[0].contains(word), "`{word}` is not in {problems:?}");
    }
}

#[test]
fn nothing_goes_wrong() {
    let mut rig = Rig::new(2);
    rig.look_well();
    let pids: Vec<u32> = rig.jobs.iter().map(Job::pid).collect();
    assert_eq!((rig.procs("u0"), rig.procs("u1")), (vec![pids[0]], vec![pids[1]]));
    for action in [rig.weigh(250), rig.cap(Some(500_000)), rig.confine(0, Some("0-1"))] {
        rig.order_well(action);
    }
    let held = [rig.file("u0/cpu.weight"), rig.file("u0/cpu.max"), rig.file("u0/cpuset.cpus")];
    assert_eq!(held, ["250", "50000 100000", "0-1"]);
    let undone = rig.undo();
    assert_eq!((undone.removed, undone.moved, undone.problems), (3, 2, vec![]));
    assert_eq!((rig.exists(""), rig.tree.procs("").len()), (false, 2), "all are where they came from");
}

#[test]
fn a_weight_that_is_refused_is_written_when_it_is_ordered_again() {
    let mut rig = Rig::new(1);
    rig.look_well();
    for (errno, remedy) in
        [(libc::EACCES, "run as root"), (libc::ENODEV, "the cgroup was removed"), (libc::EBUSY, "")]
    {
        rig.tree.fault(always(Kind::Write, "u0/cpu.weight", Answer::Refuse(errno)));
        let weigh = rig.weigh(300);
        says(&rig.order(weigh), &["u0/cpu.weight: cannot write `300`", remedy]);
        assert_eq!(rig.file("u0/cpu.weight"), "100");
        rig.tree.heal();
        rig.order_well(rig.weigh(300));
        assert_eq!(rig.file("u0/cpu.weight"), "300");
        rig.order_well(rig.weigh(100));
    }
}

#[test]
fn a_value_that_reads_back_differently_is_not_in_force() {
    let mut rig = Rig::new(1);
    rig.look_well();
    rig.tree.fault(once(Kind::Write, "u0/cpu.weight", Answer::Falsify(b"1".to_vec())));
    let weigh = rig.weigh(300);
    says(
        &rig.order(weigh),
        &["cpu.weight: wrote `300` but reads back `1", "not in force", "another program"],
    );
    rig.order_well(rig.weigh(300));
    assert_eq!(rig.file("u0/cpu.weight"), "300");
}

/// The kernel takes the first digits, and would take the rest for another value.
#[test]
fn a_short_write_is_an_error_and_not_another_value() {
    let mut rig = Rig::new(1);
    rig.look_well();
    rig.tree.fault(once(Kind::Write, "u0/cpu.weight", Answer::Shorten(1)));
    let weigh = rig.weigh(350);
    says(&rig.order(weigh), &["cpu.weight: cannot write `350`", "took 1 of 3 bytes"]);
    rig.order_well(rig.weigh(350));
    assert_eq!(rig.file("u0/cpu.weight"), "350");
}

/// The write succeeds and the read-back fails: the cap may be in force, and must be lifted when that is
/// ordered.
#[test]
fn a_cap_that_may_be_in_force_is_lifted() {
    let mut rig = Rig::new(1);
    rig.look_well();
    rig.tree.fault(once(Kind::Read, "u0/cpu.max", Answer::Refuse(libc::EIO)));
    let cap = rig.cap(Some(500_000));
    says(&rig.order(cap), &["cpu.max: cannot read it back"]);
    assert_eq!(rig.file("u0/cpu.max"), "50000 100000");
    rig.order_well(rig.cap(None));
    assert_eq!(rig.file("u0/cpu.max"), "max 100000");
}

/// A truncated read shows half of the value.
#[test]
fn a_cap_that_is_read_in_part_is_written_again() {
    let mut rig = Rig::new(1);
    rig.look_well();
    rig.tree.fault(once(Kind::Read, "u0/cpu.max", Answer::Shorten(3)));
    let cap = rig.cap(Some(500_000));
    says(&rig.order(cap), &["wrote `50000 100000` but reads back `500`"]);
    rig.order_well(rig.cap(Some(500_000)));
    assert_eq!(rig.file("u0/cpu.max"), "50000 100000");
}

#[test]
fn a_refused_cpu_set_is_written_later_and_does_not_delay_others() {
    let mut rig = Rig::new(2);
    rig.look_well();
    rig.tree.fault(always(Kind::Write, "u0/cpuset.cpus", Answer::Refuse(libc::EBUSY)));
    let confine = rig.confine(0, Some("0-1"));
    says(&rig.order(confine), &["u0/cpuset.cpus: cannot write `0-1`"]);
    rig.order_well(rig.confine(1, Some("2-3")));
    assert_eq!((rig.file("u0/cpuset.cpus"), rig.file("u1/cpuset.cpus")), (String::new(), "2-3".to_owned()));
    rig.tree.heal();
    rig.order_well(rig.confine(0, Some("0-1")));
    assert_eq!(rig.file("u0/cpuset.cpus"), "0-1");
}

/// Written, but not readable afterwards: the CPUs may be in force, and must be withdrawn when that is
/// ordered.
#[test]
fn cpus_that_may_be_in_force_are_withdrawn() {
    let mut rig = Rig::new(1);
    rig.look_well();
    rig.tree.fault(always(Kind::Read, "u0/cpuset.cpus", Answer::Refuse(libc::EIO)));
    let confine = rig.confine(0, Some("0-1"));
    says(&rig.order(confine), &["u0/cpuset.cpus: cannot read it back"]);
    rig.tree.heal();
    rig.order_well(rig.confine(0, None));
    assert_eq!(rig.file("u0/cpuset.cpus"), "");
}

/// Another program's value is found, and ours is written when it is ordered again.
#[test]
fn cpus_that_read_back_differently_are_written_again() {
    let mut rig = Rig::new(1);
    rig.look_well();
    rig.tree.fault(once(Kind::Write, "u0/cpuset.cpus", Answer::Falsify(b"5".to_vec())));
    let confine = rig.confine(0, Some("0-1"));
    says(&rig.order(confine), &["cpuset.cpus: wrote `0-1` but reads back `5`", "another program"]);
    rig.order_well(rig.confine(0, Some("0-1")));
    assert_eq!(rig.file("u0/cpuset.cpus"), "0-1");
}

/// A unit gets its first sub-unit, and its processes cannot enter their leaf yet.
#[test]
fn a_unit_that_could_not_be_split_is_split_later() {
    for (kind, end) in [
        (Kind::MakeDir, "u0/own"),
        (Kind::Write, "u0/own/cgroup.procs"),
        (Kind::Write, "u0/cgroup.subtree_control"),
        (Kind::Open, "u0/own/cpu.stat"),
    ] {
        let mut rig = Rig::new(1);
        rig.look_well();
        let pid = rig.jobs[0].pid();
        rig.tree.fault(always(kind, end, Answer::Refuse(libc::EBUSY)));
        let inner = rig.contract.add(Some(rig.units[0]), "inner");
        let guest = start("sleep", &["1000"]);
        let member = Member { kind: MemberKind::Pid(guest.pid()), span: 0..0 };
        // A sub-unit's rules select among its encloser's members.
        rig.contract.units[rig.units[0].index()].members.push(member.clone());
        rig.contract.units[inner.index()].members.push(member);
        rig.backend.set_contract(&rig.contract);
        let problems = rig.look();
        assert!(problems.iter().any(|problem| problem.contains(end)), "{end}: {problems:?}");
        assert!(rig.tree.procs("").is_empty(), "no process is moved out");
        rig.tree.heal();
        for _ in 0..4 {
            rig.look();
        }
        rig.look_well();
        assert_eq!(rig.file("u0/cgroup.subtree_control"), "cpu cpuset", "{end}");
        assert_eq!((rig.procs("u0/own"), rig.procs("u0/inner")), (vec![pid], vec![guest.pid()]), "{end}");
        assert!(rig.procs("u0").is_empty(), "{end}");
        assert_eq!(rig.undo().problems, Vec::<String>::new());
    }
}

/// Kernels such as 6.1 refuse an empty set where there are processes: the encloser's CPUs are used instead.
#[test]
fn an_empty_cpu_set_that_the_kernel_refuses_is_replaced_by_the_parents() {
    let mut rig = Rig::new(1);
    rig.look_well();
    rig.order_well(rig.confine(0, Some("0-1")));
    rig.tree.fault(|access| {
        let empty = access.is(Kind::Write, "u0/cpuset.cpus") && access.bytes == b"\n";
        empty.then_some(Answer::Refuse(libc::ENOSPC))
    });
    rig.order_well(rig.confine(0, None));
    assert_eq!(rig.file("u0/cpuset.cpus"), "0-7");
}

#[test]
fn a_process_that_ends_before_it_is_moved_is_no_problem() {
    let mut rig = Rig::new(2);
    let pid = rig.jobs[0].pid();
    rig.tree.fault(move |access| {
        if access.is(Kind::Write, "u0/cgroup.procs") {
            kill(pid, libc::SIGKILL);
            support::eventually("its end", || support::state(pid) == 'Z');
        }
        None
    });
    rig.look_well();
    assert_eq!((rig.procs("u0"), rig.procs("u1")), (vec![], vec![rig.jobs[1].pid()]));
    rig.look_well();
    assert_eq!(rig.undo().problems, Vec::<String>::new());
}

/// Its files become unreadable between the listing of processes and the scan at it.
#[test]
fn a_process_whose_files_vanish_between_listing_and_scan_is_gone_and_comes_back() {
    let mut rig = Rig::new(1);
    let pid = rig.jobs[0].pid();
    rig.tree.fault(move |access| {
        (access.kind == Kind::Read && access.path.starts_with(format!("/proc/{pid}")))
            .then_some(Answer::Refuse(libc::ESRCH))
    });
    rig.look_well();
    assert_eq!(rig.procs("u0"), Vec::<u32>::new());
    rig.tree.heal();
    rig.look_well();
    rig.look_well();
    assert_eq!(rig.procs("u0"), [pid]);
}

#[test]
fn a_move_that_was_refused_is_made_later() {
    let mut rig = Rig::with(1, always(Kind::Write, "u0/cgroup.procs", Answer::Refuse(libc::EBUSY)));
    let pid = rig.jobs[0].pid();
    says(
        &rig.look(),
        &[&format!("process {pid} (sleep): cannot move it to"), "commonhold/u0", "another program"],
    );
    rig.look_well();
    assert_eq!(rig.procs("u0"), Vec::<u32>::new());
    rig.tree.heal();
    for _ in 0..4 {
        rig.look_well();
    }
    assert_eq!(rig.procs("u0"), [pid]);
    let undone = rig.undo();
    assert_eq!((undone.moved, undone.problems), (1, vec![]));
}

/// It has left all units, and cannot be moved back for a while: it must not stay in the unit's group for
/// ever.
#[test]
fn a_process_that_could_not_be_sent_home_is_sent_later() {
    let mut rig = Rig::new(2);
    rig.look_well();
    let pid = rig.jobs[0].pid();
    rig.tree.fault(always(Kind::Write, "cgroup/cgroup.procs", Answer::Refuse(libc::ENOMEM)));
    rig.contract.units[rig.units[0].index()].members.clear();
    rig.backend.set_contract(&rig.contract);
    says(&rig.look(), &[&format!("process {pid} (sleep): cannot move it out of this program's groups")]);
    rig.look_well();
    assert_eq!(rig.procs("u0"), [pid]);
    rig.tree.heal();
    rig.look_well();
    rig.look_well();
    assert_eq!((rig.procs("u0"), rig.tree.procs("")), (vec![], vec![pid]));
}

#[test]
fn a_group_that_could_not_be_made_is_made_later_and_its_members_come() {
    for fault in [
        always(Kind::MakeDir, "commonhold/u0", Answer::Refuse(libc::EAGAIN)),
        always(Kind::Open, "commonhold/u0/cpu.stat", Answer::Refuse(libc::EMFILE)),
    ] {
        let mut rig = Rig::with(2, fault);
        let pids = [rig.jobs[0].pid(), rig.jobs[1].pid()];
        let problems = rig.look();
        assert!(problems.iter().any(|problem| problem.contains("commonhold/u0")), "{problems:?}");
        assert_eq!(rig.procs("u1"), [pids[1]], "the other unit is held");
        rig.tree.heal();
        for _ in 0..4 {
            rig.look();
        }
        rig.look_well();
        assert_eq!((rig.procs("u0"), rig.procs("u1")), (vec![pids[0]], vec![pids[1]]));
        rig.order_well(rig.weigh(300));
        assert_eq!(rig.file("u0/cpu.weight"), "300");
        assert_eq!(rig.undo().problems, Vec::<String>::new());
        assert!(!rig.exists(""));
    }
}

#[test]
fn a_group_that_cannot_be_removed_is_removed_later() {
    let mut rig = Rig::new(2);
    rig.look_well();
    rig.tree.fault(always(Kind::RemoveDir, "commonhold/u1", Answer::Refuse(libc::EBUSY)));
    let whole = rig.contract.clone();
    let mut less = Contract::default();
    let unit = less.add(None, "u0");
    less.units[unit.index()].members.clone_from(&whole.units[rig.units[0].index()].members);
    rig.backend.set_contract(&less);
    rig.units.truncate(1);
    says(&rig.look(), &["commonhold/u1: cannot remove this cgroup", "still holds processes or cgroups"]);
    assert_eq!(rig.tree.procs(""), [rig.jobs[1].pid()], "its process is where it came from");
    rig.look_well();
    assert!(rig.exists("u1"));
    rig.tree.heal();
    rig.look_well();
    assert!(!rig.exists("u1"));
}

/// The unit returns before its group could be removed: the same group is kept.
#[test]
fn a_unit_that_comes_back_has_its_group_again() {
    let mut rig = Rig::new(2);
    rig.look_well();
    rig.order_well(rig.confine(1, Some("2-3")));
    rig.tree.fault(always(Kind::RemoveDir, "commonhold/u1", Answer::Refuse(libc::EBUSY)));
    let whole = rig.contract.clone();
    let mut less = Contract::default();
    let unit = less.add(None, "u0");
    less.units[unit.index()].members.clone_from(&whole.units[rig.units[0].index()].members);
    rig.backend.set_contract(&less);
    let units = rig.units.clone();
    rig.units.truncate(1);
    assert_eq!(rig.look().len(), 1);
    rig.tree.heal();
    rig.backend.set_contract(&whole);
    rig.units = units;
    rig.look_well();
    rig.look_well();
    assert_eq!(rig.procs("u1"), [rig.jobs[1].pid()]);
    assert_eq!(rig.file("u1/cpuset.cpus"), "", "nothing that was ordered before");
}

#[test]
fn a_group_that_vanishes_while_it_is_removed_is_removed() {
    let mut rig = Rig::new(2);
    rig.look_well();
    rig.tree.fault(|access| {
        if access.is(Kind::RemoveDir, "commonhold/u1") {
            fs::remove_dir_all(access.path).unwrap();
        }
        None
    });
    let mut less = Contract::default();
    let unit = less.add(None, "u0");
    less.units[unit.index()].members.clone_from(&rig.contract.units[rig.units[0].index()].members);
    rig.backend.set_contract(&less);
    rig.units.truncate(1);
    rig.look_well();
    assert!(!rig.exists("u1"));
}

#[test]
fn a_gate_that_is_refused_is_shut_when_it_is_ordered_again() {
    let mut rig = Rig::new(1);
    rig.look_well();
    let unit = rig.units[0];
    rig.tree.fault(always(Kind::Write, "u0/cgroup.freeze", Answer::Refuse(libc::EACCES)));
    says(
        &rig.order(CpuOrder::Gate { unit, open: false }),
        &["u0/cgroup.freeze: cannot write `1`", "run as root"],
    );
    rig.tree.heal();
    rig.order_well(CpuOrder::Gate { unit, open: false });
    assert_eq!(rig.file("u0/cgroup.freeze"), "1");
    rig.order_well(CpuOrder::Gate { unit, open: true });
    assert_eq!(rig.file("u0/cgroup.freeze"), "0");
}

/// The gate was written, but whether the unit has stopped cannot be read: it may be stopped, and must be
/// continued.
#[test]
fn a_gate_that_may_be_shut_is_opened() {
    let mut rig = Rig::new(1);
    rig.look_well();
    let unit = rig.units[0];
    rig.tree.fault(always(Kind::Read, "u0/cgroup.events", Answer::Refuse(libc::EIO)));
    says(&rig.order(CpuOrder::Gate { unit, open: false }), &["u0/cgroup.events: cannot read it"]);
    assert_eq!(rig.file("u0/cgroup.freeze"), "1");
    rig.tree.heal();
    rig.order_well(CpuOrder::Gate { unit, open: true });
    assert_eq!(rig.file("u0/cgroup.freeze"), "0");
}

/// Without an entry, no change.
#[test]
fn nothing_is_moved_that_the_journal_does_not_have() {
    let mut rig = Rig::new(1);
    rig.tree.fault(always(Kind::Write, "run/journal", Answer::Refuse(libc::ENOSPC)));
    let mut problems = rig.look();
    // A newcomer, and then one that has to be moved back.
    problems.dedup();
    says(&problems, &["cannot record how to undo the next change, which is therefore not made", "make room"]);
    assert_eq!(rig.procs("u0"), Vec::<u32>::new());
    rig.tree.heal();
    for _ in 0..2 {
        rig.look_well();
    }
    assert_eq!(rig.procs("u0"), [rig.jobs[0].pid()]);
    assert!(rig.journal().iter().any(|entry| matches!(entry, Entry::Moved { .. })));
}

#[test]
fn undoing_waits_for_a_busy_group_and_reports_one_that_stays() {
    let mut rig = Rig::new(2);
    rig.look_well();
    let mut tries = 0;
    rig.tree.fault(move |access| {
        let busy = access.is(Kind::RemoveDir, "commonhold/u0");
        tries += u32::from(busy);
        (busy && tries <= 3).then_some(Answer::Refuse(libc::EBUSY))
    });
    let undone = rig.undo();
    assert_eq!((undone.removed, undone.moved, undone.problems), (3, 2, vec![]));
    assert!(!rig.exists(""));

    let mut rig = Rig::new(2);
    rig.look_well();
    rig.tree.fault(always(Kind::RemoveDir, "commonhold/u0", Answer::Refuse(libc::EPERM)));
    let undone = rig.undo();
    assert_eq!((undone.removed, undone.moved), (1, 2), "everything else is undone: {undone:?}");
    assert!(
        undone.problems.iter().any(|problem| problem.contains("commonhold/u0") && problem.contains("rmdir")),
        "{undone:?}"
    );
    rig.tree.heal();
    let again = rig.undo();
    assert_eq!((again.removed, again.problems), (2, vec![]), "the next start undoes the rest");
}

/// A controller cannot be disabled, and a process ends while it is moved: everything else is undone, and this
/// is retried.
#[test]
fn undoing_continues_after_one_refused_file() {
    let mut rig = Rig::new(2);
    rig.look_well();
    let pid = rig.jobs[0].pid();
    rig.tree.fault(move |access| {
        if access.is(Kind::Write, "cgroup/cgroup.procs") && access.bytes == pid.to_string().as_bytes() {
            kill(pid, libc::SIGKILL);
            support::eventually("its end", || support::state(pid) == 'Z');
        }
        access.is(Kind::Write, "cgroup/cgroup.subtree_control").then_some(Answer::Refuse(libc::EBUSY))
    });
    let undone = rig.undo();
    assert_eq!((undone.removed, undone.moved), (3, 1), "{undone:?}");
    says(
        &undone.problems,
        &["cgroup.subtree_control", "cannot write", "EBUSY"].map(|word| match word {
            "EBUSY" => "busy",
            word => word,
        }),
    );
    rig.tree.heal();
    let again = rig.undo();
    assert_eq!((again.knobs, again.problems), (1, vec![]));
    assert_eq!(rig.tree.file("cgroup.subtree_control"), "");
}

/// Whether a call is about this test's files and processes, and not others on the machine.
fn is_ours(access: &Access<'_>, dir: &Path, pids: &[u32]) -> bool {
    let of_ours = |pid: &u32| access.path.starts_with(format!("/proc/{pid}")) || access.pid == *pid;
    access.path.starts_with(dir) || pids.iter().any(of_ours)
}

/// Runs a daemon's life in which the `nth` call fails. Then nothing fails any more: some scans later, with
/// orders repeated, everything is as ordered, and is then undone. Returns whether there were that many calls.
fn life(nth: usize, answer: &Answer) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::new(&dir.path().join("cgroup"));
    let jobs: Vec<Job> = (0..3).map(|_| start("sleep", &["1000"])).collect();
    let pids: Vec<u32> = jobs.iter().map(Job::pid).collect();
    let (at, ours, wrong) = (dir.path().to_owned(), pids.clone(), answer.clone());
    let what = Rc::<RefCell<String>>::default();
    let (mut calls, failed_call) = (0, Rc::clone(&what));
    tree.fault(move |access| {
        // The kernel takes or refuses a value as a whole.
        let no_part = matches!(wrong, Answer::Shorten(_))
            && access.kind == Kind::Write
            && !access.path.ends_with("journal");
        if no_part || !is_ours(access, &at, &ours) {
            return None;
        }
        calls += 1;
        (calls == nth + 1).then(|| {
            *failed_call.borrow_mut() = format!("call {nth} {wrong:?}: {access:?}");
            wrong.clone()
        })
    });
    let mut contract = Contract::default();
    let units: Vec<UnitId> = (0..2).map(|n| contract.add(None, &format!("u{n}"))).collect();
    let joins = |contract: &mut Contract, unit: UnitId, job: usize| {
        let member = Member { kind: MemberKind::Pid(pids[job]), span: 0..0 };
        contract.units[unit.index()].members.push(member);
    };
    joins(&mut contract, units[0], 0);
    joins(&mut contract, units[1], 1);
    // Later the second unit is removed, and the first gets a sub-unit.
    let mut later = Contract::default();
    let outer = later.add(None, "u0");
    let inner = later.add(Some(outer), "inner");
    joins(&mut later, outer, 0);
    joins(&mut later, outer, 2);
    joins(&mut later, inner, 2);

    let begin = || {
        let (journal, leftover) = Journal::create(&dir.path().join("run"))?;
        let undone = undo(&leftover, Path::new("/proc"));
        assert_eq!(undone.problems, Vec::<String>::new(), "{}", what.borrow());
        let mut journal = journal;
        journal.clear()?;
        let roster = Roster::new(Path::new("/proc"), &[])?;
        CgroupBackend::new(&tree.place(), &contract, roster, journal)
    };
    // A daemon that cannot start says why. The next one undoes what it left, and starts.
    let mut backend = begin().or_else(|_| begin()).unwrap();
    // If a controller is refused, it continues without it, and reports that. This lasts for its whole life.
    if backend.take_problems().iter().any(|problem| problem.to_string().contains("cgroup.subtree_control")) {
        drop(backend);
        backend = begin().unwrap();
    }
    let mut now = SECOND;
    let mut look = |backend: &mut CgroupBackend, times: u64| {
        for _ in 0..times {
            now += SECOND;
            // A look may fail. The next one is another.
            let _ = backend.settle(now);
            let _ = backend.observe(now, &units);
            for problem in backend.take_problems() {
                assert!(problem.to_string().len() > 20, "{problem}");
            }
        }
    };
    let order = |backend: &mut CgroupBackend, actions: &[CpuOrder]| {
        backend.apply(&Plan {
            orders: Orders::of_cpus(Reason::HoldsChanged, actions.to_vec()),
            ..Plan::default()
        });
    };
    let unit = units[0];
    look(&mut backend, 2);
    order(
        &mut backend,
        &[
            CpuOrder::Cap { unit, micro_cpus: Some(500_000) },
            CpuOrder::Weigh { unit, weight: 200 },
            CpuOrder::Confine { unit, cpus: Some("0-1".parse().unwrap()) },
            CpuOrder::Gate { unit, open: false },
        ],
    );
    look(&mut backend, 1);
    let lasting = [
        CpuOrder::Gate { unit, open: true },
        CpuOrder::Cap { unit, micro_cpus: None },
        CpuOrder::Weigh { unit, weight: 300 },
        CpuOrder::Confine { unit, cpus: Some("2".parse().unwrap()) },
    ];
    order(&mut backend, &lasting);
    backend.set_contract(&later);
    look(&mut backend, 2);
    let went_wrong = what.borrow().clone();
    tree.heal();
    look(&mut backend, 4);
    order(&mut backend, &lasting);
    look(&mut backend, 1);

    let file = |path: &str| tree.file(&format!("commonhold/u0/{path}"));
    let held = ["cpu.max", "cpu.weight", "cpuset.cpus", "own/cpuset.cpus", "inner/cpuset.cpus"].map(file);
    assert_eq!(held, ["max 100000", "300", "2", "2", "2"], "{went_wrong}");
    assert_eq!([file("own/cgroup.freeze"), file("inner/cgroup.freeze")], ["0", "0"], "{went_wrong}");
    // A process that could not be moved back is in the leaf of its original group.
    let home = || [tree.procs(""), tree.procs("commonhold.left")].concat();
    let there = [tree.procs("commonhold/u0/own"), tree.procs("commonhold/u0/inner"), home()];
    assert_eq!(there, [0, 2, 1].map(|job| vec![pids[job]]), "{went_wrong}");
    assert!(!tree.root.join("commonhold/u1").exists(), "{went_wrong}");
    let undone = undo(&Journal::read(&dir.path().join("run/journal")).unwrap(), Path::new("/proc"));
    assert_eq!(undone.problems, Vec::<String>::new(), "{went_wrong}");
    assert!(!tree.root.join("commonhold").exists(), "{went_wrong}");
    assert_eq!(home().len(), 3, "{went_wrong}");
    assert_eq!(tree.file("cgroup.subtree_control"), "", "{went_wrong}");
    !went_wrong.is_empty()
}

/// Runs a life for every k-th call; for every call with `COMMONHOLD_FAULTS=all` in the environment.
fn lives(from: usize, answer: &Answer) {
    let all = std::env::var("COMMONHOLD_FAULTS").is_ok_and(|which| which == "all");
    let (from, every) = if all { (0, 1) } else { (from, 6) };
    let count = (from..).step_by(every).take_while(|nth| life(*nth, answer)).count();
    assert!(count * every > 100, "{count}");
}

#[test]
fn after_any_refused_call_everything_recovers_and_is_undone() {
    lives(0, &Answer::Refuse(libc::EIO));
}

#[test]
fn after_any_busy_call_everything_recovers_and_is_undone() {
    lives(2, &Answer::Refuse(libc::EBUSY));
}

#[test]
fn after_any_short_call_everything_recovers_and_is_undone() {
    lives(4, &Answer::Shorten(2));
}
