//! Faults under the `user` backend, with real processes: system calls that fail when they should not, and
//! processes that end between a scan and an order.
//!
//! For each fault: the error names process, value and remedy, nothing is lost or half in force, and the next
//! step recovers.
// `[mask.clone()]` shows the expected value; a slice made from a reference would show how it was made.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::cloned_ref_to_slice_refs)]

mod support;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use commonhold_contract::{Contract, Member, MemberKind, UnitId};
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::{Access, Answer, Kind, affinity, tamper};
use commonhold_live::observe::roster::Roster;
use commonhold_live::undo::journal::{Entry, Journal};
use commonhold_live::undo::{Undone, undo};
use commonhold_live::{Backend, LiveBackend};
use commonhold_machine::CpuSet;
use commonhold_policy::plan::{CpuOrder, Orders};
use commonhold_policy::{Plan, Reason};
use support::{Job, eventually, kill, masks, one_cpu, start, state};

const SECOND: u64 = 1_000_000_000;

/// A backend with a job in a unit.
struct Rig {
    backend: UserBackend,
    unit: UnitId,
    job: Job,
    journal: PathBuf,
    now: u64,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let job = start("sleep", &["1000"]);
        let mut contract = Contract::default();
        let unit = contract.add(None, "u");
        contract.units[unit.index()].members.push(Member { kind: MemberKind::Pid(job.pid()), span: 0..0 });
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(dir.path()).unwrap();
        let path = journal.path().to_owned();
        let roster = Roster::new(Path::new("/proc"), &[]).unwrap();
        let backend = UserBackend::new(contract, affinity::get(0).unwrap(), roster, journal);
        let mut rig = Rig { backend, unit, job, journal: path, now: SECOND, dir };
        rig.look_well();
        rig
    }

    /// A scan, a second after the previous one; returns the problems.
    fn look(&mut self) -> Vec<String> {
        self.now += SECOND;
        if let Err(error) =
            self.backend.settle(self.now).and_then(|_| self.backend.observe(self.now, &[self.unit]))
        {
            return vec![error.to_string()];
        }
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

    fn confine(&mut self, cpus: Option<&CpuSet>) -> Vec<String> {
        self.order(CpuOrder::Confine { unit: self.unit, cpus: cpus.cloned() })
    }

    fn gate(&mut self, open: bool) -> Vec<String> {
        self.order(CpuOrder::Gate { unit: self.unit, open })
    }

    fn masks(&self) -> Vec<CpuSet> {
        masks(self.job.pid())
    }

    fn journal(&self) -> Vec<Entry> {
        Journal::read(&self.journal).unwrap()
    }

    fn undo(&self) -> Undone {
        undo(&self.journal(), Path::new("/proc"))
    }
}

/// Gives the first `times` calls of a kind this answer.
fn first(mut times: u32, kind: Kind, answer: Answer) -> impl FnMut(&Access<'_>) -> Answer + 'static {
    move |access| {
        if access.kind != kind || times == 0 {
            return Answer::GoOn;
        }
        times -= 1;
        answer.clone()
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
fn a_process_that_ends_between_scan_and_order_is_no_problem() {
    let Some((one, _)) = one_cpu() else { return };
    let mut rig = Rig::new();
    let pid = rig.job.pid();
    let hook = tamper(move |access| {
        if access.kind == Kind::SetAffinity {
            kill(pid, libc::SIGKILL);
            eventually("its end", || state(pid) == 'Z');
            return Answer::Refuse(libc::ESRCH);
        }
        Answer::GoOn
    });
    assert_eq!(rig.confine(Some(&one)), Vec::<String>::new());
    rig.look_well();
    drop(hook);
    assert_eq!(rig.undo().problems, Vec::<String>::new());
}

/// Between the listing of processes and the order, it ended, and its number was reused: the new process is
/// not touched.
#[test]
fn a_process_that_ends_before_its_signal_is_no_problem() {
    let mut rig = Rig::new();
    let pid = rig.job.pid();
    let hook = tamper(move |access| {
        if access.kind == Kind::Signal {
            kill(pid, libc::SIGKILL);
            eventually("its end", || state(pid) == 'Z');
        }
        Answer::GoOn
    });
    assert_eq!(rig.gate(false), Vec::<String>::new());
    drop(hook);
    rig.look_well();
    assert!(rig.undo().is_empty());
}

#[test]
fn the_next_scan_gives_cpus_that_were_refused() {
    let Some((one, all)) = one_cpu() else { return };
    let mut rig = Rig::new();
    let hook = tamper(first(1, Kind::SetAffinity, Answer::Refuse(libc::EINVAL)));
    let pid = rig.job.pid();
    says(
        &rig.confine(Some(&one)),
        &[&format!("process {pid} (sleep): cannot confine to CPUs {one}"), "cpuset"],
    );
    assert_eq!(rig.masks(), [all.clone()]);
    rig.look_well();
    assert_eq!(rig.masks(), [one]);
    drop(hook);
    rig.undo();
    assert_eq!(rig.masks(), [all]);
}

/// An order is lifted, and the kernel refuses: the thread and its given CPUs are not forgotten.
#[test]
fn the_next_scan_restores_cpus_that_could_not_be_restored() {
    let Some((one, all)) = one_cpu() else { return };
    let mut rig = Rig::new();
    rig.confine(Some(&one));
    let hook = tamper(first(1, Kind::SetAffinity, Answer::Refuse(libc::EINVAL)));
    says(&rig.confine(None), &[&format!("cannot confine to CPUs {all}")]);
    assert_eq!(rig.masks(), [one]);
    rig.look_well();
    assert_eq!(rig.masks(), [all]);
    drop(hook);
}

/// A cpuset removes some of the CPUs: the mask in force is reported, and recognised as ours when it is
/// undone.
#[test]
fn cpus_that_read_back_differently_are_reported_and_undone() {
    let Some((one, all)) = one_cpu() else { return };
    let mut rig = Rig::new();
    let two: CpuSet = all.iter().take(2).collect();
    let list = one.to_string().into_bytes();
    let hook = tamper(first(1, Kind::SetAffinity, Answer::Falsify(list)));
    if two == all {
        // An order of all CPUs is no order.
        drop(hook);
        let second: CpuSet = all.iter().skip(1).take(1).collect();
        let hook = tamper(first(1, Kind::SetAffinity, Answer::Falsify(one.to_string().into_bytes())));
        says(
            &rig.confine(Some(&second)),
            &[&format!("wrote `{second}` but reads back `{one}`"), "control group"],
        );
        drop(hook);
    } else {
        says(&rig.confine(Some(&two)), &[&format!("wrote `{two}` but reads back `{one}`"), "control group"]);
        drop(hook);
    }
    assert_eq!(rig.masks(), [one]);
    assert_eq!(rig.undo().threads, 1);
    assert_eq!(rig.masks(), [all]);
}

/// Without an entry, no change; and the order is not forgotten.
#[test]
fn without_an_entry_no_process_is_confined_until_there_is_room_again() {
    let Some((one, all)) = one_cpu() else { return };
    let mut rig = Rig::new();
    let hook = tamper(|access| match access.is(Kind::Write, "journal") {
        true => Answer::Refuse(libc::ENOSPC),
        false => Answer::GoOn,
    });
    says(&rig.confine(Some(&one)), &["journal: cannot write", "free some space"]);
    assert_eq!(rig.masks(), [all.clone()], "no change without an entry");
    drop(hook);
    rig.look_well();
    assert_eq!(rig.masks(), [one]);
    assert_eq!(rig.undo().threads, 1);
    assert_eq!(rig.masks(), [all]);
}

#[test]
fn the_next_scan_stops_a_process_that_could_not_be_stopped() {
    let mut rig = Rig::new();
    let hook = tamper(first(1, Kind::Signal, Answer::Refuse(libc::EPERM)));
    let pid = rig.job.pid();
    let problems = rig.gate(false);
    says(&problems, &[&format!("process {pid} (sleep): cannot stop"), "run commonhold as root"]);
    rig.look_well();
    eventually("its stop", || state(pid) == 'T');
    drop(hook);
    assert_eq!(rig.undo().continued, 1);
}

/// The worst case: a process stays stopped, with a journal that says it runs.
#[test]
fn the_next_scan_continues_a_process_that_could_not_be_continued() {
    let mut rig = Rig::new();
    let pid = rig.job.pid();
    assert_eq!(rig.gate(false), Vec::<String>::new());
    eventually("its stop", || state(pid) == 'T');
    let hook = tamper(first(1, Kind::Signal, Answer::Refuse(libc::EPERM)));
    says(&rig.gate(true), &[&format!("process {pid} (sleep): cannot continue"), "run commonhold as root"]);
    assert_eq!(state(pid), 'T');
    let stopped = rig.journal().iter().rev().find_map(|entry| match entry {
        Entry::Stopped { .. } => Some(true),
        Entry::Continued { .. } => Some(false),
        _ => None,
    });
    assert_eq!(stopped, Some(true), "if the daemon ended now, it would be continued");
    rig.look_well();
    eventually("its continuation", || state(pid) == 'S');
    drop(hook);
    assert!(rig.undo().is_empty());
}

/// If the caretaker cannot undo something, it says how to do it by hand; everything else is undone.
#[test]
fn undoing_reports_failures_and_undoes_the_rest() {
    let Some((one, all)) = one_cpu() else { return };
    let mut rig = Rig::new();
    let pid = rig.job.pid();
    rig.confine(Some(&one));
    rig.gate(false);
    eventually("its stop", || state(pid) == 'T');
    let hook = tamper(first(1, Kind::Signal, Answer::Refuse(libc::EPERM)));
    let undone = rig.undo();
    assert_eq!((undone.threads, undone.continued), (1, 0));
    says(&undone.problems, &[&format!("process {pid}: cannot continue"), &format!("kill -CONT {pid}")]);
    assert_eq!(rig.masks(), [all.clone()]);
    drop(hook);
    let hook = tamper(|access| match access.kind {
        Kind::SetAffinity => Answer::Refuse(libc::EPERM),
        _ => Answer::GoOn,
    });
    affinity::set(pid, &one).unwrap_err();
    drop(hook);
    assert_eq!(rig.undo().continued, 1);
}

/// If /proc cannot be listed, that is an error, and no process is taken for gone.
#[test]
fn a_refused_listing_is_an_error_and_loses_no_process() {
    let Some((one, all)) = one_cpu() else { return };
    let mut rig = Rig::new();
    rig.confine(Some(&one));
    let hook = tamper(|access| match access.kind == Kind::List && access.path == Path::new("/proc") {
        true => Answer::Refuse(libc::EMFILE),
        false => Answer::GoOn,
    });
    // Births make the next scan list /proc.
    let other = start("sleep", &["1000"]);
    says(&rig.look(), &["/proc", "cannot list", "raise the limit on open files"]);
    drop(hook);
    rig.look_well();
    assert_eq!(rig.masks(), [one]);
    drop(other);
    rig.confine(None);
    assert_eq!(rig.masks(), [all]);
}

/// A process whose threads cannot be listed does not delay the others, and gets its unit's CPUs at the next
/// scan.
#[test]
fn a_process_whose_threads_cannot_be_listed_does_not_delay_others() {
    let Some((one, _)) = one_cpu() else { return };
    let mut rig = Rig::new();
    let other = start("sleep", &["1000"]);
    let mut contract = Contract::default();
    let unit = contract.add(None, "u");
    let members = [rig.job.pid(), other.pid()].map(|pid| Member { kind: MemberKind::Pid(pid), span: 0..0 });
    contract.units[unit.index()].members.extend(members);
    rig.backend.set_contract(&contract);
    rig.look_well();
    let (first, last) = (rig.job.pid().min(other.pid()), rig.job.pid().max(other.pid()));
    let list = format!("/proc/{first}/task");
    let hook = tamper(move |access| match access.kind == Kind::List && access.path == Path::new(&list) {
        true => Answer::Refuse(libc::EIO),
        false => Answer::GoOn,
    });
    says(&rig.confine(Some(&one)), &["cannot list", "/task"]);
    assert_eq!(masks(last), [one.clone()]);
    assert_ne!(masks(first), [one.clone()]);
    drop(hook);
    rig.look_well();
    assert_eq!(masks(first), [one]);
}

/// A truncated file of /proc tells nothing of the process. It keeps its unit, and its original state.
#[test]
fn a_truncated_stat_loses_no_process() {
    let Some((one, all)) = one_cpu() else { return };
    let mut rig = Rig::new();
    rig.confine(Some(&one));
    let (pid, cuts) = (rig.job.pid(), Rc::new(Cell::new(0)));
    let counted = Rc::clone(&cuts);
    let hook = tamper(move |access| {
        if access.kind == Kind::Read && access.path == Path::new(&format!("/proc/{pid}/stat")) {
            counted.set(counted.get() + 1);
            return Answer::Shorten(12);
        }
        Answer::GoOn
    });
    let other = start("sleep", &["1000"]);
    rig.look();
    rig.look();
    drop((hook, other));
    rig.look();
    rig.look_well();
    assert_eq!(rig.backend.roster().member(pid).map(|member| member.placement.unit), Some(rig.unit));
    rig.confine(None);
    assert_eq!(rig.masks(), [all], "after {} cuts", cuts.get());
}

/// Runs a daemon's life in which the `nth` call fails. Then nothing fails any more: some scans later
/// everything is as ordered, and is then undone. Returns whether there were that many calls.
fn life(nth: usize, answer: &Answer, one: &CpuSet, all: &CpuSet) -> bool {
    let mut rig = Rig::new();
    let (pid, dir, wrong) = (rig.job.pid(), rig.dir.path().to_owned(), answer.clone());
    let what = Rc::<RefCell<String>>::default();
    let (mut calls, failed_call) = (0, Rc::clone(&what));
    let hook = tamper(move |access| {
        let is_ours = access.path.starts_with(&dir)
            || access.path.starts_with(format!("/proc/{pid}"))
            || access.pid == pid;
        calls += usize::from(is_ours);
        if !is_ours || calls != nth + 1 {
            return Answer::GoOn;
        }
        *failed_call.borrow_mut() = format!("call {nth} {wrong:?}: {access:?}");
        wrong.clone()
    });
    rig.look();
    rig.confine(Some(one));
    rig.gate(false);
    rig.look();
    rig.gate(true);
    rig.look();
    rig.confine(None);
    rig.gate(false);
    rig.confine(Some(one));
    rig.gate(true);
    rig.look();
    drop(hook);
    let went_wrong = what.borrow().clone();
    for _ in 0..3 {
        rig.look();
    }
    rig.confine(Some(one));
    rig.gate(true);
    assert_eq!(rig.masks(), [one.clone()], "{went_wrong}");
    eventually(&went_wrong, || state(pid) == 'S');
    assert_eq!(rig.undo().problems, Vec::<String>::new(), "{went_wrong}");
    assert_eq!(rig.masks(), [all.clone()], "{went_wrong}");
    !went_wrong.is_empty()
}

#[test]
fn after_any_failed_call_everything_recovers_and_is_undone() {
    let Some((one, all)) = one_cpu() else { return };
    for answer in [Answer::Refuse(libc::EIO), Answer::Refuse(libc::EAGAIN), Answer::Shorten(3)] {
        let calls = (0..10_000).take_while(|nth| life(*nth, &answer, &one, &all)).count();
        assert!(calls > 20, "{calls}");
    }
}
