//! `status --pid`: which unit a process is in, and by which rule; sub-units for users.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{Place, Process, eventually, is_root, state};

/// Unused users and groups, different ones for each test, so that none sees another's processes.
const USER: u32 = 54_322;
const GROUP: u32 = 54_323;

/// A user that every machine has, with hardly any processes.
const NOBODY: u32 = 65_534;

/// Every rule, each named with its line of the contract.
#[test]
fn every_rule_is_named_with_its_line() {
    if !is_root() {
        return;
    }
    let by_pid = Process::shell("sleep 60; true");
    let by_user = Process::sleeper_of(USER, USER);
    let by_group = Process::sleeper_of(USER + 9, GROUP);
    let outside = Process::sleeper();
    let place = Place::with(&format!(
        "version = 1\n\
         [unit.numbers]\n\
         members = [\"pid:{}\"]\n\
         [unit.people]\n\
         members = [\n  \"user:{USER}\",\n  \"group:{GROUP}\",\n]\n\
         [unit.programs]\n\
         members = [\"command:ch-test-*\"]\n",
        by_pid.pid()
    ));
    let program = place.path().join("ch-test-nap");
    symlink("/bin/sleep", &program).unwrap();
    let by_command = Process::start(Command::new(&program).arg("60"));
    let _daemon = place.run(&[]);

    let check = |pid: u32, expected: &str| {
        assert_eq!(place.place_of(pid), format!("process {pid} is in unit {expected}"));
    };
    let pid = by_pid.pid();
    check(pid, &format!("numbers (matches \"pid:{pid}\" of numbers (contract.toml:3))"));
    let inherited = "inherited from its parent, which matches";
    check(by_pid.child(), &format!("numbers ({inherited} \"pid:{pid}\" of numbers (contract.toml:3))"));
    check(by_user.pid(), "people (matches \"user:54322\" of people (contract.toml:6))");
    check(by_group.pid(), "people (matches \"group:54323\" of people (contract.toml:7))");
    check(by_command.pid(), "programs (matches \"command:ch-test-*\" of programs (contract.toml:10))");
    check(outside.pid(), "shared (matches no rule of the contract: the default unit)");
    check(2, "kernel (a thread of the kernel's own)");
}

/// A process of a user that the contract names enters another unit by `exec`: that is more specific.
#[test]
fn exec_beats_user() {
    if !is_root() {
        return;
    }
    let user = USER + 1;
    let place = Place::with(&format!("version = 1\n[unit.a]\n[unit.b]\nmembers = [\"user:{user}\"]\n"));
    let _daemon = place.run(&[]);
    let script = format!("exec {}/commonhold status --pid $$", place.path().display());
    // Root enters, and then changes to the user.
    place.command_of(user, &["--version"]).output().unwrap();
    let become_user = ["setpriv", "--reuid", &user.to_string(), "--clear-groups", "sh", "-c", &script];
    let found = place.call(&[&["exec", "a", "--"], &become_user[..]].concat());
    assert!(found.out.ends_with("is in unit a (entered by `commonhold exec`)\n"), "{found:?}");
}

#[test]
fn who_is_in_no_unit_says_why() {
    let place = Place::with("version = 1\n[unit.a]\n");
    let daemon = place.run(&[]);
    let of = |pid: u32| place.call(&["status", "--pid", &pid.to_string()]);
    of(1).refused(69, &["process 1 is in no unit"]);
    of(daemon.pid()).refused(69, &["is in no unit", "the daemon's own"]);
    of(daemon.caretaker()).refused(69, &["is in no unit", "the daemon's own"]);
    of(4_194_303).refused(69, &["process 4194303 does not exist"]);
    let mut ended = Command::new("true").spawn().unwrap();
    eventually("it has ended", || state(ended.id()) == 'Z');
    of(ended.id()).refused(69, &["has ended, and its parent has not collected it yet"]);
    ended.wait().unwrap();
    let json = place.call(&["status", "--json", "--pid", &std::process::id().to_string()]);
    let found: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&found["pid"], &found["unit"]), (&std::process::id().into(), &"shared".into()));
}

const EACH: &str =
    "version = 1\n[unit.students]\nmembers = [\"user:nobody\"]\neach = \"user\"\n[unit.staff]\n";

#[test]
fn each_user_gets_a_sub_unit() {
    if !is_root() {
        return;
    }
    let place = Place::with(EACH);
    let daemon = place.run(&[]);
    let student = Process::start(Command::new("sleep").arg("60").uid(NOBODY).gid(NOBODY));
    eventually("the student's unit", || place.units().contains(&"students/nobody".to_owned()));
    let found = place.place_of(student.pid());
    assert!(found.ends_with("is in unit students/nobody (each user has a sub-unit: user:65534)"), "{found}");
    // It survives a reload although the user is gone.
    drop(student);
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded");
    assert!(place.units().contains(&"students/nobody".to_owned()));
}

/// A dry run gives users their sub-units as the daemon would.
#[test]
fn a_dry_run_knows_each_user() {
    if !is_root() {
        return;
    }
    let place = Place::with(EACH);
    let _student = Process::start(Command::new("sleep").arg("60").uid(NOBODY).gid(NOBODY));
    let plan = place.call(&["run", "contract.toml", "--backend", "user", "--dry-run"]);
    assert!(plan.out.contains("students/nobody"), "{plan:?}");
}
