//! A tree like systemd's, on a real kernel: user managers and services stay where they are, sessions'
//! processes are moved, and none is undone into the root while there is a better place.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use commonhold_contract::{Member, MemberKind, Principal, UnitId};
use commonhold_live::LiveBackend;
use commonhold_live::apply::cgroup::CgroupBackend;
use commonhold_live::undo::journal::Journal;
use commonhold_live::undo::{Undone, undo};
use commonhold_policy::membership::Stays;

use crate::skipped::skipped;

use super::{Bench, SECOND, cgroup_of, observe, wait_for};

/// Users that no machine has, one for each test: the numbers above this process's.
static USERS: AtomicU32 = AtomicU32::new(1);

/// Control groups; `UID` is replaced by the user.
const SLICE: &str = "user.slice/user-UID.slice";
const SESSION: &str = "user.slice/user-UID.slice/session-3.scope";
const MANAGER: &str = "user.slice/user-UID.slice/user@UID.service/init.scope";
const APP: &str = "user.slice/user-UID.slice/user@UID.service/app.slice/mail.service";
const CRON: &str = "system.slice/cron.service";

/// A tree like systemd's below the test's control group, and a unit with one user.
struct Beside {
    bench: Bench,
    user: u32,
    unit: UnitId,
}

impl Beside {
    fn new(name: &str) -> Option<Beside> {
        if !rustix::process::geteuid().is_root() {
            skipped("needs root, to start processes of another user");
            return None;
        }
        let mut bench = Bench::new(name, &[])?;
        let user = 100_000_000 + std::process::id() * 10 + USERS.fetch_add(1, Ordering::Relaxed);
        let unit = bench.contract.add(None, "u");
        let member = Member { kind: MemberKind::User(Principal::Id(user)), span: 0..0 };
        bench.contract.units[unit.index()].members.push(member);
        // All controllers must be enabled, as in the hierarchy's root.
        bench.place.delegated = false;
        let beside = Beside { bench, user, unit };
        for group in [SESSION, MANAGER, APP, CRON] {
            fs::create_dir_all(beside.at(group)).unwrap();
        }
        Some(beside)
    }

    /// The directory of a control group.
    fn at(&self, group: &str) -> PathBuf {
        self.bench.place.base.join(group.replace("UID", &self.user.to_string()))
    }

    /// A process of the user, which continues with a shell script once it is in that control group.
    fn spawn_in(&mut self, group: &str, script: &str) -> u32 {
        let mut shell = Command::new("sh");
        let script = format!("read go; {script}");
        shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = shell.process_group(0).uid(self.user).gid(self.user).spawn().unwrap();
        let pid = child.id();
        self.put(pid, group);
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        self.bench.children.push(child);
        pid
    }

    fn put(&self, pid: u32, group: &str) {
        fs::write(self.at(group).join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Asserts that a process is in that control group.
    #[track_caller]
    fn is_in(&self, pid: u32, group: &str) {
        assert_eq!(self.bench.place.mount.join(cgroup_of(pid).trim_start_matches('/')), self.at(group));
    }
}

/// Ends the backend, and returns the outcome of undoing.
fn undone(backend: CgroupBackend) -> Undone {
    let journal = backend.close();
    undo(&Journal::read(journal.path()).unwrap(), "/proc".as_ref())
}

fn stays(backend: &CgroupBackend, pid: u32) -> Option<Stays> {
    backend.roster().member(pid).unwrap().stays
}

#[test]
fn managers_and_services_stay_and_sessions_are_moved() {
    let Some(mut beside) = Beside::new("managers") else { return };
    let busy = "while :; do :; done";
    let [session, manager, app, job] =
        [(SESSION, "exec sleep 1000"), (MANAGER, "exec sleep 1000"), (APP, busy), (CRON, "exec sleep 1000")]
            .map(|(group, script)| beside.spawn_in(group, script));
    let named = beside.spawn_in(CRON, "exec sleep 1000");
    beside.bench.contract.units[beside.unit.index()]
        .members
        .push(Member { kind: MemberKind::Pid(named), span: 0..0 });
    let mut backend = beside.bench.backend();
    let first = observe(&mut backend, SECOND).unit(beside.unit);
    assert_eq!((first.processes, first.outside), (5, 3));
    beside.is_in(session, "commonhold/u");
    beside.is_in(named, "commonhold/u");
    for (pid, group, why) in
        [(manager, MANAGER, Stays::UserManager), (app, APP, Stays::UserManager), (job, CRON, Stays::Service)]
    {
        beside.is_in(pid, group);
        assert_eq!(stays(&backend, pid), Some(why));
    }
    // Processes that stay are counted all the same.
    let mut later = first;
    let mut now = SECOND;
    wait_for("CPU time of a process that stays", || {
        now += SECOND;
        later = observe(&mut backend, now).unit(beside.unit);
        later.used_ns > first.used_ns + 20_000_000
    });
    assert_eq!(later.runnable, 1);
    assert_eq!(beside.bench.procs("u").len(), 2);
}

#[test]
fn a_process_that_enters_by_exec_below_a_users_manager_stays_there() {
    let Some(mut beside) = Beside::new("exec") else { return };
    let pid = beside.spawn_in(APP, "exec sleep 1000");
    let mut backend = beside.bench.backend();
    observe(&mut backend, SECOND);
    let key = backend.roster().member(pid).unwrap().key;
    let contract = beside.bench.contract.clone();
    assert!(backend.roster_mut().enter(&contract, key, beside.unit).unwrap());
    assert_eq!(observe(&mut backend, 2 * SECOND).unit(beside.unit).outside, 1);
    beside.is_in(pid, APP);
}

/// systemd itself moves a member to a service, where it belongs from then on.
#[test]
fn a_member_that_its_manager_moves_to_a_service_is_not_fetched_back() {
    let Some(mut beside) = Beside::new("taken") else { return };
    let pid = beside.spawn_in(SESSION, "exec sleep 1000");
    let mut backend = beside.bench.backend();
    observe(&mut backend, SECOND);
    beside.is_in(pid, "commonhold/u");
    beside.put(pid, APP);
    for n in 2..6 {
        assert_eq!(observe(&mut backend, n * SECOND).unit(beside.unit).processes, 1);
        beside.is_in(pid, APP);
    }
    // Back in its session, it may be moved again.
    beside.put(pid, SESSION);
    beside.bench.contract.add(None, "another");
    backend.set_contract(&beside.bench.contract);
    observe(&mut backend, 7 * SECOND);
    beside.is_in(pid, "commonhold/u");
}

#[test]
fn processes_of_an_ended_session_go_to_the_slice_which_is_reported() {
    let Some(mut beside) = Beside::new("over") else { return };
    let pid = beside.spawn_in(SESSION, "sleep 1000 & wait");
    wait_for("its child", || super::children(pid).len() == 1);
    let mut backend = beside.bench.backend();
    observe(&mut backend, SECOND);
    beside.is_in(pid, "commonhold/u");
    fs::remove_dir(beside.at(SESSION)).unwrap();
    let undone = undone(backend);
    assert_eq!(undone.problems, [] as [String; 0]);
    beside.is_in(pid, &format!("{SLICE}/commonhold.left"));
    assert_eq!(undone.notices.len(), 1, "{undone:?}");
    let notice = &undone.notices[0];
    assert!(notice.contains("/session-3.scope, where they came from, is gone"), "{notice}");
    assert!(notice.contains(&format!("{pid} (sh)")) && notice.contains("(sleep)"), "{notice}");
}

/// A slice with controllers takes no process itself.
#[test]
fn a_slice_that_takes_no_process_gets_a_leaf_which_the_next_start_removes() {
    let Some(mut beside) = Beside::new("leaf") else { return };
    if !beside.bench.place.controllers.contains("cpu") {
        skipped("the cpu controller is not enabled here");
        return;
    }
    let pid = beside.spawn_in(SESSION, "exec sleep 1000");
    let mut backend = beside.bench.backend();
    observe(&mut backend, SECOND);
    // Meanwhile, another program sets weights in the slice.
    for group in ["user.slice", SLICE] {
        fs::write(beside.at(group).join("cgroup.subtree_control"), "+cpu").unwrap();
    }
    fs::remove_dir(beside.at(SESSION)).unwrap();
    let undone = undone(backend);
    assert_eq!((undone.problems.len(), undone.notices.len()), (0, 2), "{undone:?}");
    let leaf = format!("{SLICE}/commonhold.left");
    beside.is_in(pid, &leaf);
    // The other notice: the controllers that the slices use stay enabled.
    assert!(
        undone.notices.iter().any(|notice| notice.contains("the cpu controller stays enabled")),
        "{undone:?}"
    );
    beside.bench.kill_all();
    fs::remove_file(beside.bench.run.path().join("journal")).unwrap();
    drop(beside.bench.backend());
    assert!(!beside.at(&leaf).exists());
}

/// Another program divides the group that a process came from, so that it takes no process any more: none is
/// left in ours. Threaded controllers, such as cpu, do not keep processes out.
#[test]
fn a_group_that_was_divided_meanwhile_gets_a_leaf_too() {
    let Some(mut beside) = Beside::new("divided") else { return };
    if !beside.bench.place.controllers.contains("memory") {
        skipped("the memory controller is not enabled here");
        return;
    }
    fs::create_dir_all(beside.at("lab/part")).unwrap();
    let pid = beside.spawn_in("lab", "exec sleep 1000");
    let mut backend = beside.bench.backend();
    observe(&mut backend, SECOND);
    beside.is_in(pid, "commonhold/u");
    fs::write(beside.at("lab").join("cgroup.subtree_control"), "+memory").unwrap();
    let undone = undone(backend);
    assert_eq!(undone.problems, [] as [String; 0]);
    beside.is_in(pid, "lab/commonhold.left");
    assert!(
        undone
            .notices
            .iter()
            .any(|notice| notice.contains("/lab, where they came from, takes no processes any more")),
        "{undone:?}"
    );
    assert!(!beside.at("commonhold").exists());
}
