//! The roster on fake trees. Their pids are beyond any `pid_max`, so that no real process has them.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use commonhold_contract::{Contract, Each, Given, Member, MemberKind, Newcomer, Principal, UnitId};
use commonhold_policy::Time;
use commonhold_policy::membership::{Rule, Stays};

use super::{Changes, Entered, KeepsEntered, MARKER, Moved, Roster, Scan, Seen, marker};
use crate::LiveError;
use crate::host::{Answer, Kind, tamper};
use crate::observe::names::tests::{PAUSE_NS, Scripted};
use crate::observe::names::{Book, SystemNames};
use crate::observe::process::ProcessKey;

const BASE: u32 = 90_000_000;

struct Fake {
    root: tempfile::TempDir,
    roster: Roster,
    contract: Contract,
    now: Time,
}

impl Fake {
    fn new(contract: Contract) -> Fake {
        let root = tempfile::tempdir().unwrap();
        let roster = Roster::new(root.path(), &[BASE + 9]).unwrap();
        Fake { root, roster, contract, now: 0 }
    }

    /// Adds a process: pid, parent and session counted from `BASE` (0: none), user, name.
    fn put(&self, pid: u32, parent: u32, session: u32, uid: u32, comm: &str) {
        let at = |n: u32| if n == 0 { 0 } else { BASE + n };
        let dir = self.root.path().join(at(pid).to_string());
        fs::create_dir_all(&dir).unwrap();
        let (parent, session, start) = (at(parent), at(session), 100 + pid);
        let stat = format!(
            "{} ({comm}) S {parent} 1 {session} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0\n",
            at(pid)
        );
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("status"), format!("Uid:\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\nGroups:\t\n"))
            .unwrap();
        fs::write(dir.join("cmdline"), format!("/bin/{comm}\0")).unwrap();
        fs::write(dir.join("cgroup"), "0::/\n").unwrap();
    }

    /// Moves a process into a control group.
    fn stand(&self, pid: u32, cgroup: &str) {
        let file = self.root.path().join((BASE + pid).to_string()).join("cgroup");
        fs::write(file, format!("0::{cgroup}\n")).unwrap();
    }

    fn environ(&self, pid: u32, text: &str) {
        fs::write(self.root.path().join((BASE + pid).to_string()).join("environ"), text).unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.root.path().join((BASE + pid).to_string())).unwrap();
    }

    fn look(&mut self, how: Scan) -> Changes {
        self.now += super::SECOND;
        self.roster.refresh(&self.contract, self.now, how).unwrap()
    }

    /// A scan that fails at reading one file, after others were read.
    fn fail(&mut self, how: Scan, pid: u32, file: &str) {
        let file = format!("{}/{file}", BASE + pid);
        let hook = tamper(move |access| match access.is(Kind::Read, &file) {
            true => Answer::Refuse(libc::EIO),
            false => Answer::GoOn,
        });
        self.now += super::SECOND;
        assert!(self.roster.refresh(&self.contract, self.now, how).is_err());
        drop(hook);
    }

    #[track_caller]
    fn check(&self, pid: u32, path: &str, rule: Rule) {
        let placement = self.roster.member(BASE + pid).unwrap().placement;
        assert_eq!((self.contract.unit(placement.unit).path.as_str(), placement.rule), (path, rule));
    }
}

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid: BASE + pid, start: u64::from(100 + pid) }
}

/// build: command make. ana: user 1000.
fn contract() -> (Contract, UnitId, UnitId) {
    let mut contract = Contract::default();
    let (build, ana) = (contract.add(None, "build"), contract.add(None, "ana"));
    let mut member =
        |unit: UnitId, kind| contract.units[unit.index()].members.push(Member { kind, span: 0..0 });
    member(build, MemberKind::Command("make".to_owned()));
    member(ana, MemberKind::User(Principal::Id(1000)));
    (contract, build, ana)
}

#[test]
fn children_stay_with_a_parent_that_ends() {
    let (contract, build, ana) = contract();
    let mut fake = Fake::new(contract);
    // The child has the lower pid, but is placed after its parent nevertheless.
    fake.put(5, 0, 5, 1000, "make");
    fake.put(3, 5, 5, 1000, "cc");
    fake.put(4, 0, 4, 1000, "sh");
    fake.put(9, 0, 9, 1000, "make");
    let mut joined = fake.look(Scan::Quick).joined;
    joined.sort_unstable();
    // Pid 9 is left out.
    assert_eq!(joined, [(key(3), build), (key(4), ana), (key(5), build)]);
    fake.end(5);
    fake.put(3, 1, 5, 1000, "cc");
    assert_eq!(fake.look(Scan::Quick).left, [(key(5), Some(build))]);
    assert!(fake.look(Scan::Full).is_empty());
    fake.check(3, "build", Rule::Command);
    // The contract lacks that rule now, so nothing is inherited.
    fake.contract.units[build.index()].members.clear();
    assert_eq!(fake.look(Scan::Full).moved, [Moved { key: key(3), from: Some(build), to: ana }]);
}

/// A user whose account is created after the start: from then on the rule applies, also to processes that
/// already exist.
#[test]
fn a_user_that_appears_is_a_member_within_a_minute() {
    let (mut contract, build, ana) = contract();
    let ana_members = &mut contract.units[ana.index()].members;
    ana_members[0].kind = MemberKind::User(Principal::Name("ana".to_owned()));
    let mut fake = Fake::new(contract);
    let service = Arc::new(Scripted::default());
    fake.roster.set_names(SystemNames::with_service(service.clone()));
    fake.put(2, 0, 2, 1000, "sh");
    fake.put(3, 0, 3, 1000, "make");
    let mut joined = fake.look(Scan::Quick).joined;
    joined.sort_unstable();
    assert_eq!(joined, [(key(2), UnitId::SHARED), (key(3), build)]);
    service.learn(Book::Passwd, "ana", 1000);
    assert!(fake.look(Scan::Quick).is_empty(), "a minute has not passed");
    fake.now += PAUSE_NS;
    let begun = Instant::now();
    let moved = loop {
        assert!(begun.elapsed() < Duration::from_mins(1), "nobody moved");
        let moved = fake.look(Scan::Quick).moved;
        if !moved.is_empty() {
            break moved;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(moved, [Moved { key: key(2), from: Some(UnitId::SHARED), to: ana }]);
    assert_eq!(fake.roster.names().take_news().news.len(), 1);
}

/// The findings of a failed scan are reported by the next one: processes that joined, left and moved.
#[test]
fn a_scan_that_fails_midway_loses_no_process() {
    let (contract, build, ana) = contract();
    let mut fake = Fake::new(contract);
    fake.put(2, 0, 2, 1000, "sh");
    fake.put(7, 0, 7, 1000, "sh");
    fake.look(Scan::Quick);
    fake.put(3, 0, 3, 1000, "make");
    fake.put(4, 0, 4, 1000, "make");
    fake.end(2);
    // New processes are read first, then the files of all others.
    fake.fail(Scan::Full, 7, "stat");
    fake.end(4);
    fake.put(5, 0, 5, 1000, "make");
    fake.put(7, 0, 7, 1001, "sh");
    fake.fail(Scan::Full, 7, "stat");
    let changes = fake.look(Scan::Full);
    assert_eq!(
        changes.joined,
        [(key(3), build), (key(5), build)],
        "process 4 joined and left before a report"
    );
    assert_eq!(changes.left, [(key(2), Some(ana))]);
    let moved = Moved { key: key(7), from: Some(ana), to: UnitId::SHARED };
    assert_eq!(changes.moved, [moved]);
    assert!(fake.look(Scan::Full).is_empty(), "everything is reported once");
    // The same applies to a scan of given processes.
    fake.put(6, 0, 6, 1000, "make");
    fake.fail(Scan::Full, 7, "stat");
    assert_eq!(fake.roster.look_again(&[]).unwrap().joined, [(key(6), build)]);
}

/// A process that joined before a reload and was not reported yet is reported with its unit under the new
/// contract.
#[test]
fn findings_of_a_failed_scan_are_reported_under_the_new_contract() {
    let (contract, _, ana) = contract();
    let mut fake = Fake::new(contract);
    fake.put(7, 0, 7, 1000, "sh");
    fake.look(Scan::Quick);
    fake.put(3, 0, 3, 1000, "make");
    fake.fail(Scan::Full, 7, "stat");
    let mut next = Contract::default();
    next.add(None, "ana");
    next.units[2].members = fake.contract.units[ana.index()].members.clone();
    next.adopt(&fake.contract, true);
    fake.contract = next;
    fake.fail(Scan::Full, 7, "stat");
    assert_eq!(fake.look(Scan::Quick).joined, [(key(3), ana)]);
}

/// A user seen by a failed scan has a sub-unit after the next one.
#[test]
fn new_users_are_found_after_a_failed_scan() {
    let (mut contract, _, ana) = contract();
    let mut fake = Fake::new(contract.clone());
    fake.put(2, 0, 2, 1000, "sh");
    fake.look(Scan::Quick);
    contract.units[ana.index()].each = Some(Each::User);
    contract.add(None, "new");
    fake.contract = contract;
    fake.fail(Scan::Quick, 2, "stat");
    let users = fake.look(Scan::Quick).seen.newcomers;
    assert_eq!(
        users.iter().map(|user| (user.unit, user.whose.clone())).collect::<Vec<_>>(),
        [(ana, MemberKind::User(Principal::Id(1000)))]
    );
}

/// A process whose file was truncated is read by the next scan, although no process started or ended since.
#[test]
fn a_process_that_could_not_be_read_is_found_by_the_next_scan() {
    let (contract, build, _) = contract();
    let mut fake = Fake::new(contract);
    fs::write(fake.root.path().join("loadavg"), "0.00 0.00 0.00 1/5 77\n").unwrap();
    fake.look(Scan::Quick);
    fake.put(3, 0, 3, 1000, "make");
    fs::write(fake.root.path().join("loadavg"), "0.00 0.00 0.00 1/6 78\n").unwrap();
    let file = format!("{}/stat", BASE + 3);
    let hook = tamper(move |access| match access.is(Kind::Read, &file) {
        true => Answer::Shorten(9),
        false => Answer::GoOn,
    });
    let look = |fake: &mut Fake| {
        fake.now += 1;
        fake.roster.refresh(&fake.contract, fake.now, Scan::Quick).unwrap()
    };
    assert!(look(&mut fake).is_empty());
    drop(hook);
    assert_eq!(look(&mut fake).joined, [(key(3), build)]);
}

#[test]
fn an_orphan_is_placed_by_its_sessions_leader() {
    let (contract, ..) = contract();
    let mut fake = Fake::new(contract);
    fake.put(5, 0, 5, 1000, "make");
    fake.look(Scan::Quick);
    fake.put(6, 0, 5, 1000, "cc");
    fake.put(7, 0, 7, 1000, "cc");
    fake.look(Scan::Quick);
    fake.check(6, "build", Rule::Command);
    fake.check(7, "ana", Rule::User);
}

#[test]
fn a_number_used_again_is_another_process() {
    let (contract, build, ana) = contract();
    let mut fake = Fake::new(contract);
    fake.put(5, 0, 5, 1000, "make");
    fake.look(Scan::Quick);
    fake.end(5);
    fake.put(5, 0, 5, 1000, "sh");
    let path = fake.root.path().join((BASE + 5).to_string()).join("stat");
    let text = fs::read_to_string(&path).unwrap().replace(" 105 ", " 999 ");
    fs::write(&path, text).unwrap();
    let mut changes = fake.look(Scan::Quick);
    if changes.is_empty() {
        // The file system gave the new directory the old one's inode, which procfs does not do.
        fake.look(Scan::Full);
        changes = fake.look(Scan::Quick);
    }
    let new = ProcessKey { pid: BASE + 5, start: 999 };
    assert_eq!((changes.left, changes.joined), (vec![(key(5), Some(build))], vec![(new, ana)]));
}

#[test]
fn the_mark_is_believed_of_those_who_entered_only() {
    let (contract, build, _) = contract();
    let mut fake = Fake::new(contract);
    fake.put(2, 0, 2, 1000, "sh");
    fake.look(Scan::Quick);
    fake.put(3, 0, 3, 2000, "sh");
    let marked = format!("{MARKER}={}\0", marker(std::process::id(), "build"));
    fake.environ(3, &marked);
    fake.look(Scan::Quick);
    fake.check(3, "shared", Rule::Default);
    assert!(fake.roster.enter(&fake.contract, key(2), build).unwrap());
    assert!(!fake.roster.enter(&fake.contract, ProcessKey { start: 1, ..key(2) }, build).unwrap());
    for (pid, uid) in [(4, 1000), (5, 2000), (6, 0)] {
        fake.put(pid, 0, pid, uid, "sh");
        fake.environ(pid, &marked);
    }
    // Another daemon's members are not members here.
    fake.put(7, 0, 7, 1000, "sh");
    fake.environ(7, &format!("{MARKER}={}\0", marker(1, "build")));
    fake.look(Scan::Quick);
    fake.check(2, "build", Rule::Exec);
    fake.check(4, "build", Rule::Exec);
    fake.check(5, "shared", Rule::Default);
    fake.check(6, "build", Rule::Exec);
    fake.check(7, "ana", Rule::User);
}

/// A keeper in memory, which may have no room.
#[derive(Debug)]
struct Record {
    kept: Rc<RefCell<Vec<Entered>>>,
    has_room: bool,
}

impl KeepsEntered for Record {
    fn keep(&mut self, new: &Entered, others: &[Entered]) -> Result<(), LiveError> {
        if !self.has_room {
            return Err(LiveError::Unavailable { what: "no room".to_owned(), remedy: String::new() });
        }
        *self.kept.borrow_mut() = others.iter().chain([new]).cloned().collect();
        Ok(())
    }
}

/// Fails if entered processes are not kept: under the next daemon's roster, a rule or the default would
/// decide.
#[test]
fn a_process_that_entered_keeps_its_unit_under_the_next_daemon() {
    let record = Rc::new(RefCell::new(Vec::new()));
    let (contract, build, _) = contract();
    let mut fake = Fake::new(contract);
    for (pid, parent) in [(2, 0), (3, 2), (4, 0)] {
        fake.put(pid, parent, pid, 1000, "sh");
    }
    fake.look(Scan::Full);
    fake.roster.keep_entered(Box::new(Record { kept: Rc::clone(&record), has_room: true }));
    for pid in [2, 4] {
        assert!(fake.roster.enter(&fake.contract, key(pid), build).unwrap());
    }
    // Its pid is another process's when the next daemon starts.
    let stat = fake.root.path().join(format!("{}/stat", BASE + 4));
    fs::write(&stat, fs::read_to_string(&stat).unwrap().replace(" 104 0", " 999 0")).unwrap();
    fake.roster = Roster::new(fake.root.path(), &[]).unwrap();
    let mut kept = record.take();
    assert_eq!(kept.iter().map(|entered| entered.process).collect::<Vec<_>>(), [key(2), key(4)]);
    kept.push(Entered { process: key(3), uid: 1000, unit: "gone".to_owned() });
    let notes = fake.roster.restore_entered(&fake.contract, kept).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("entered unit `gone`"), "{notes:?}");
    fake.look(Scan::Full);
    fake.check(2, "build", Rule::Exec);
    fake.check(3, "build", Rule::Exec);
    fake.check(4, "ana", Rule::User);
}

/// A process that the next daemon would lose does not enter.
#[test]
fn a_process_that_cannot_be_recorded_does_not_enter() {
    let (contract, build, _) = contract();
    let mut fake = Fake::new(contract);
    fake.put(2, 0, 2, 1000, "sh");
    fake.look(Scan::Full);
    fake.roster.keep_entered(Box::new(Record { kept: Rc::default(), has_room: false }));
    let refused = fake.roster.enter(&fake.contract, key(2), build).unwrap_err().to_string();
    assert!(refused.contains("no room"), "{refused}");
    fake.look(Scan::Quick);
    fake.check(2, "ana", Rule::User);
}

#[test]
fn users_get_sub_units() {
    let (mut contract, _, ana) = contract();
    contract.units[ana.index()].each = Some(Each::User);
    let mut fake = Fake::new(contract);
    fake.put(2, 0, 2, 1000, "sh");
    fake.put(3, 0, 3, 1000, "sh");
    let users = fake.look(Scan::Quick).seen.newcomers;
    assert_eq!(
        users.iter().map(|user| (user.unit, user.whose.clone())).collect::<Vec<_>>(),
        [(ana, MemberKind::User(Principal::Id(1000)))]
    );
    let own = fake.contract.add(Some(ana), "u1000");
    let kind = MemberKind::User(Principal::Id(1000));
    fake.contract.units[own.index()].members.push(Member { kind, span: 0..0 });
    let changes = fake.look(Scan::Quick);
    assert_eq!((changes.moved.len(), changes.seen), (2, Seen::default()));
    fake.check(2, "ana/u1000", Rule::User);
}

#[test]
fn a_process_that_changes_its_user_changes_its_unit() {
    let (contract, _, ana) = contract();
    let mut fake = Fake::new(contract);
    fake.put(2, 0, 2, 0, "login");
    fake.look(Scan::Quick);
    fake.put(2, 0, 2, 1000, "sh");
    assert_eq!(fake.look(Scan::Full).moved, [Moved { key: key(2), from: Some(UnitId::SHARED), to: ana }]);
    assert_eq!(fake.roster.unit_facts()[ana.index()].processes, 1);
}

/// A service manager stays in any group. A name alone does not make a service manager.
#[test]
fn a_service_manager_is_recognised_by_its_program() {
    let (contract, ..) = contract();
    let mut fake = Fake::new(contract);
    fake.roster.moves_members(None);
    let programs = tempfile::tempdir().unwrap();
    let [systemd, hog] = ["systemd", "hog"].map(|name| programs.path().join(name));
    fs::write(&systemd, "").unwrap();
    fs::write(&hog, "").unwrap();
    // As in /proc, a link to the executed file.
    let execute = |pid: u32, program| {
        let dir = fake.root.path().join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        symlink(program, dir.join("exe")).unwrap();
    };
    execute(1, &systemd);
    for (pid, comm, program) in
        [(1, "systemd", &systemd), (2, "(sd-pam)", &systemd), (3, "systemd", &hog), (4, "worker", &systemd)]
    {
        fake.put(pid, 0, pid, 1000, comm);
        fake.stand(pid, "/user.slice/user-1000.slice/session-3.scope");
        execute(BASE + pid, program);
    }
    fake.look(Scan::Full);
    let stays = [1, 2, 3, 4].map(|pid| fake.roster.member(BASE + pid).unwrap().stays);
    assert_eq!(stays, [Some(Stays::UserManager), Some(Stays::UserManager), None, None]);
}

/// physics: users 1000 and 1001, each with a sub-unit. tools: command make.
fn contract_of_users() -> (Contract, [UnitId; 4]) {
    let mut contract = Contract::default();
    let (physics, tools) = (contract.add(None, "physics"), contract.add(None, "tools"));
    let users = [1000, 1001].map(|uid| {
        let unit = contract.add(Some(physics), &format!("u{uid}"));
        for unit in [physics, unit] {
            let kind = MemberKind::User(Principal::Id(uid));
            contract.units[unit.index()].members.push(Member { kind, span: 0..0 });
        }
        unit
    });
    let make = MemberKind::Command("make".to_owned());
    contract.units[tools.index()].members.push(Member { kind: make, span: 0..0 });
    (contract, [physics, tools, users[0], users[1]])
}

const SHELL: &str = "/user.slice/user-1000.slice/session-3.scope";

fn places(fake: &Fake) -> Vec<(&str, UnitId)> {
    fake.roster.foreign_groups().iter().map(|(group, unit)| (group.as_str(), *unit)).collect()
}

fn stays(fake: &Fake, pids: &[u32]) -> Vec<Option<Stays>> {
    pids.iter().map(|pid| fake.roster.member(BASE + pid).unwrap().stays).collect()
}

/// Root's shell, and a program that root runs as ana from it by `su` or `sudo -u`, are in root's slice. The
/// program belongs to ana's unit, and no process is moved for it.
#[test]
fn processes_that_root_runs_as_another_user_count_for_that_user() {
    let (contract, [_, _, ana, _]) = contract_of_users();
    let mut fake = Fake::new(contract);
    fake.roster.holds_in_place();
    let session = "/user.slice/user-0.slice/session-9.scope";
    for (pid, parent, uid, group) in [(1, 0, 0, session), (2, 1, 1000, session), (3, 0, 1000, SHELL)] {
        fake.put(pid, parent, pid, uid, "sh");
        fake.stand(pid, group);
    }
    fake.look(Scan::Full);
    let unit = |pid: u32| fake.roster.member(BASE + pid).unwrap().placement.unit;
    assert_eq!([1, 2, 3].map(unit), [UnitId::SHARED, ana, ana]);
    assert_eq!(stays(&fake, &[1, 2, 3]), [None, Some(Stays::Mixed), Some(Stays::InPlace)]);
    assert_eq!(places(&fake), [("/user.slice/user-1000.slice", ana)], "root's slice is no place of hers");
    assert!(fake.roster.due_for_scopes(fake.now + super::SECOND).is_empty(), "no scope is asked for");
}

/// Ana's shell, what she runs as root, and her service manager are in her slice. A job of hers is in cron's
/// group.
#[test]
fn a_user_is_held_in_the_users_slice() {
    let (contract, [_, _, ana, bob]) = contract_of_users();
    let mut fake = Fake::new(contract);
    fake.roster.holds_in_place();
    let cron = "/system.slice/cron.service";
    for (pid, parent, uid, group) in [
        (1, 0, 1000, SHELL),
        (2, 1, 0, SHELL),
        (3, 0, 1000, "/user.slice/user-1000.slice/user@1000.service/init.scope"),
        (4, 0, 0, cron),
        (5, 4, 1000, cron),
        (6, 0, 1001, "/user.slice/user-1001.slice/session-4.scope"),
    ] {
        fake.put(pid, parent, pid, uid, "sh");
        fake.stand(pid, group);
    }
    fake.look(Scan::Full);
    assert_eq!(places(&fake), [("/user.slice/user-1000.slice", ana), ("/user.slice/user-1001.slice", bob)]);
    let unit = |pid: u32| fake.roster.member(BASE + pid).unwrap().placement.unit;
    assert_eq!([1, 2, 3, 5].map(unit), [ana; 4], "root's process in ana's slice is ana's");
    assert_eq!(unit(4), UnitId::SHARED);
    let in_place = Some(Stays::InPlace);
    assert_eq!(
        stays(&fake, &[1, 2, 3, 4, 5, 6]),
        [in_place, in_place, in_place, None, Some(Stays::Mixed), in_place]
    );
    fake.roster.account(fake.now, &[]).unwrap();
    assert_eq!(fake.roster.unit_facts()[ana.index()].outside, 1);
    // A process that enters a slice in between is held there at once.
    fake.put(7, 1, 1, 1000, "cc");
    fake.stand(7, SHELL);
    fake.look(Scan::Quick);
    assert_eq!(stays(&fake, &[7]), [in_place]);
    // An empty slice is no longer assigned.
    fake.end(6);
    fake.look(Scan::Quick);
    assert_eq!(places(&fake), [("/user.slice/user-1000.slice", ana)]);
}

/// A build in a session is moved, and the rest of the session is not. A build alone in its group stays.
#[test]
fn a_named_process_is_moved_only_out_of_a_mixed_group() {
    let (contract, [_, tools, ana, _]) = contract_of_users();
    let mut fake = Fake::new(contract);
    fake.roster.holds_in_place();
    fake.roster.see_through("/commonhold");
    for (pid, comm, group) in [(1, "sh", SHELL), (2, "make", SHELL), (3, "make", "/system.slice/run-7.scope")]
    {
        fake.put(pid, 0, pid, 1000, comm);
        fake.stand(pid, group);
    }
    fake.look(Scan::Full);
    assert_eq!(places(&fake), [("/system.slice/run-7.scope", tools), ("/user.slice/user-1000.slice", ana)]);
    assert_eq!(stays(&fake, &[1, 2, 3]), [Some(Stays::InPlace), None, Some(Stays::InPlace)]);
    // It stays in its new group, even after the shell has ended.
    fake.stand(2, "/commonhold/tools");
    fake.look(Scan::Full);
    assert_eq!(stays(&fake, &[2]), [None]);
    fake.end(1);
    fake.look(Scan::Full);
    assert_eq!((stays(&fake, &[2]), places(&fake)), (vec![None], vec![("/system.slice/run-7.scope", tools)]));
}

/// Slurm's jobs: each has a separate group, and a manager is in the parent group.
#[test]
fn groups_get_sub_units_and_lose_them_when_empty() {
    const SLURM: &str = "/system.slice/slurmstepd.scope";
    let mut contract = Contract::default();
    let jobs = contract.add(None, "jobs");
    let kind = MemberKind::Cgroup(format!("{SLURM}/"));
    contract.units[jobs.index()].members.push(Member { kind, span: 0..0 });
    contract.units[jobs.index()].each = Some(Each::Cgroup);
    let mut fake = Fake::new(contract);
    let job = |number: u32| format!("{SLURM}/job_{number}");
    for (pid, group) in [
        (1, SLURM.to_owned()),
        (2, job(1)),
        (3, format!("{}/step_0/user/task_0", job(1))),
        (4, format!("{}/step_0", job(2))),
        (5, "/system.slice/slurmstepd.scope2/x".to_owned()),
    ] {
        fake.put(pid, 0, pid, 0, "sh");
        fake.stand(pid, &group);
    }
    let seen = fake.look(Scan::Quick).seen;
    let each = |number: u32| Newcomer::group(jobs, &job(number), Given::default());
    assert_eq!(seen, Seen { newcomers: vec![each(1), each(2)], ..Seen::default() });
    assert!(fake.contract.welcome(&seen.newcomers, &BTreeSet::new()));
    let changes = fake.look(Scan::Full);
    assert_eq!((changes.moved.len(), changes.seen), (3, Seen::default()));
    for (pid, path) in [(1, "jobs"), (2, "jobs/job_1"), (3, "jobs/job_1"), (4, "jobs/job_2")] {
        fake.check(pid, path, Rule::Cgroup);
    }
    fake.check(5, "shared", Rule::Default);
    // A job has ended. Another's process returns within ten seconds.
    fake.end(4);
    for second in 0..9 {
        if second == 5 {
            fake.end(2);
            fake.end(3);
        }
        if second == 8 {
            fake.put(6, 0, 6, 0, "sh");
            fake.stand(6, &job(1));
        }
        assert_eq!(fake.look(Scan::Quick).seen, Seen::default(), "second {second}");
    }
    fake.look(Scan::Quick);
    let gone = fake.look(Scan::Quick).seen.gone;
    let second = fake.contract.find("jobs/job_2").unwrap();
    assert_eq!(gone, [second]);
    assert!(fake.contract.dismiss(&gone));
    for _ in 0..12 {
        assert_eq!(fake.look(Scan::Full).seen, Seen::default());
    }
}

/// systemd makes scopes: a build in a session is due after a second, a process that entered by `exec` at
/// once. They are then held in the unit's slice. A process that `exec` started in cron's group is refused a
/// scope.
#[test]
fn a_named_process_in_a_mixed_group_is_due_for_a_scope() {
    let (contract, [_, tools, ana, bob]) = contract_of_users();
    let mut fake = Fake::new(contract);
    fake.roster.holds_in_place();
    fake.roster.see_through("/commonhold");
    fake.roster.makes_scopes();
    for (pid, comm) in [(1, "sh"), (9, "x")] {
        fake.put(pid, 0, pid, 1000, comm);
        fake.stand(pid, SHELL);
    }
    fake.look(Scan::Full);
    let due = |fake: &mut Fake, later: Time| -> Vec<(u32, UnitId, bool)> {
        let due = fake.roster.due_for_scopes(fake.now + later);
        due.into_iter().map(|due| (due.key.pid - BASE, due.unit, due.enters)).collect()
    };
    for (pid, comm) in [(2, "make"), (3, "hog")] {
        fake.put(pid, 1, 1, 1000, comm);
        fake.stand(pid, SHELL);
    }
    fake.look(Scan::Quick);
    let key = |pid: u32| ProcessKey { pid: BASE + pid, start: 100 + u64::from(pid) };
    assert!(fake.roster.enter(&fake.contract, key(3), bob).unwrap());
    fake.now -= super::SECOND;
    fake.look(Scan::Quick);
    let (mixed, in_place) = (Some(Stays::Mixed), Some(Stays::InPlace));
    assert_eq!(stays(&fake, &[1, 2, 3]), [in_place, mixed, mixed]);
    assert!(fake.roster.is_entering(key(3)) && !fake.roster.is_entering(key(2)));
    assert_eq!(due(&mut fake, 0), [(3, bob, true)]);
    assert_eq!(due(&mut fake, super::SECOND), [(2, tools, false), (3, bob, true)]);
    // systemd has made them.
    let scope = |slice: &str| format!("/commonhold.slice/commonhold-{slice}.slice/commonhold-1-2.scope");
    fake.stand(2, &scope("tools"));
    fake.stand(3, &scope("physics.slice/commonhold-physics-u1001"));
    fake.roster.look_for_scopes(&[BASE + 2, BASE + 3]).unwrap();
    assert_eq!(stays(&fake, &[1, 2, 3]), [in_place, in_place, in_place]);
    assert!(!fake.roster.is_entering(key(3)));
    let of_bob = "/commonhold.slice/commonhold-physics.slice/commonhold-physics-u1001.slice";
    let slices = ["/commonhold.slice/commonhold-tools.slice", "/user.slice/user-1000.slice"];
    assert_eq!(places(&fake), [(of_bob, bob), (slices[0], tools), (slices[1], ana)]);
    assert_eq!(fake.roster.foreign_group_of(BASE + 3), Some((of_bob, bob)));
    assert_eq!(due(&mut fake, super::SECOND), []);
    assert_eq!(fake.roster.user_of(&fake.roster.known[&(BASE + 3)].facts), 1000, "it is ana's still");
    // Processes that a build starts begin there.
    fake.put(4, 2, 1, 1000, "cc");
    fake.stand(4, &scope("tools"));
    fake.look(Scan::Quick);
    assert_eq!(stays(&fake, &[4]), [in_place]);
    fake.check(4, "tools", Rule::Command);

    // The contract no longer has the unit tools: the build is ana's, but not in one of her scopes.
    let (reduced, [.., ana, _]) = {
        let (mut contract, ids) = contract_of_users();
        contract.units[tools.index()].members.clear();
        (contract, ids)
    };
    fake.contract = reduced;
    fake.look(Scan::Full);
    assert_eq!(fake.roster.member(BASE + 2).unwrap().placement.unit, ana);
    assert_eq!([2, 3, 4].map(|pid| fake.roster.is_in_wrong_scope(BASE + pid)), [true, false, true]);
    assert_eq!(stays(&fake, &[2, 4]), [mixed, mixed]);
    assert_eq!(due(&mut fake, super::SECOND), [], "they go back");
    for pid in [2, 4] {
        fake.stand(pid, SHELL);
    }
    fake.roster.look_for_scopes(&[BASE + 2, BASE + 4]).unwrap();
    assert_eq!(stays(&fake, &[2, 4]), [in_place, in_place]);

    // systemd refuses: the process is moved.
    fake.put(5, 1, 1, 1000, "hog");
    fake.stand(5, SHELL);
    fake.look(Scan::Quick);
    fake.roster.enter(&fake.contract, key(5), tools).unwrap();
    fake.look(Scan::Quick);
    assert_eq!(due(&mut fake, 0), [(5, tools, true)]);
    let changes = fake.roster.refuse_scopes(&[key(5)]);
    assert_eq!((changes.regrouped, stays(&fake, &[5])), (vec![(key(5), tools)], vec![None]));
    assert!(!fake.roster.is_entering(key(5)));
    assert_eq!(due(&mut fake, 0), []);
}

/// Neither `exec` nor a rule moves a process from a user's service manager.
#[test]
fn a_process_kept_by_its_manager_is_due_for_no_scope() {
    let (contract, [_, tools, ..]) = contract_of_users();
    let mut fake = Fake::new(contract);
    fake.roster.holds_in_place();
    fake.roster.makes_scopes();
    let app = "/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope";
    for (pid, comm) in [(1, "sh"), (2, "make")] {
        fake.put(pid, 0, pid, 1000, comm);
        fake.stand(pid, app);
    }
    fake.look(Scan::Full);
    fake.roster.enter(&fake.contract, ProcessKey { pid: BASE + 1, start: 101 }, tools).unwrap();
    fake.put(3, 0, 3, 1000, "x");
    fake.stand(3, app);
    fake.look(Scan::Full);
    assert_eq!(stays(&fake, &[1, 2]), [Some(Stays::Mixed); 2]);
    assert_eq!(fake.roster.due_for_scopes(fake.now + super::SECOND), []);
}
