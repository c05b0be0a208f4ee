//! `commonhold exec`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::support::{Place, Process, STRANGER, is_root, said};

const TWO: &str = "version = 1\n[unit.a]\n[unit.b]\n[unit.b.unit.inner]\n";

#[test]
fn it_passes_on_exit_codes_and_signals() {
    let place = Place::with(TWO);
    let _daemon = place.run(&[]);
    assert_eq!(place.call(&["exec", "a", "--", "true"]).code, Some(0));
    assert_eq!(place.call(&["exec", "a", "--", "sh", "-c", "exit 42"]).code, Some(42));
    let killed = place.call(&["exec", "a", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!((killed.code, killed.signal), (None, Some(libc::SIGTERM)));
}

#[test]
fn it_passes_on_input_output_and_arguments() {
    let place = Place::with(TWO);
    let _daemon = place.run(&[]);
    let mut command = place.command(&["exec", "b/inner", "cat", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
    let unit = place.call(&["exec", "b/inner", "--", "sh", "-c", "echo $COMMONHOLD_UNIT --flag"]);
    assert!(unit.out.ends_with(":b/inner --flag\n"), "{unit:?}");
}

#[test]
fn the_command_is_a_member_when_it_begins() {
    let place = Place::with(TWO);
    let _daemon = place.run(&[]);
    let script = format!("exec {} status --pid $$", env!("CARGO_BIN_EXE_commonhold"));
    let found = place.call(&["exec", "b/inner", "--", "sh", "-c", &script]);
    assert!(found.out.ends_with("is in unit b/inner (entered by `commonhold exec`)\n"), "{found:?}");
}

#[test]
fn what_cannot_be_entered_or_run_says_so() {
    let place = Place::with(TWO);
    place.call(&["exec", "a", "true"]).refused(69, &["no daemon runs here", "commonhold run CONTRACT"]);
    let _daemon = place.run(&[]);
    place.call(&["exec", "c", "true"]).refused(69, &["no unit `c`", "it has a, b, b/inner"]);
    place.call(&["exec", "kernel", "true"]).refused(69, &["unit `kernel` is built in"]);
    place.call(&["exec", "a", "no-such-command"]).refused(127, &["cannot run `no-such-command`"]);
    let plain = place.path().join("plain");
    fs::write(&plain, "text").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    place.call(&["exec", "a", "./plain"]).refused(126, &["cannot run `./plain`", "Permission denied"]);
}

#[test]
fn only_members_root_and_who_runs_the_daemon_may_enter() {
    if !is_root() {
        return;
    }
    let place = Place::with(&format!("version = 1\n[unit.a]\n[unit.b]\nmembers = [\"user:{STRANGER}\"]\n"));
    let _daemon = place.run(&[]);
    let marker = place.path().join("marker");
    let refused = said(&mut place.command_of(STRANGER, &["exec", "a", "touch", marker.to_str().unwrap()]));
    refused.refused(77, &["user 54321 may not enter unit `a`", "`members` lists these"]);
    assert!(!marker.exists(), "nothing was started");
    assert_eq!(said(&mut place.command_of(STRANGER, &["exec", "b", "sh", "-c", "exit 42"])).code, Some(42));
    assert!(said(&mut place.command_of(STRANGER, &["status"])).out.contains("scheme isolate"));
}

/// A command that is started in a unit stays there, with its descendants.
#[test]
fn what_the_command_starts_belongs_to_the_unit() {
    let place = Place::with(TWO);
    let _daemon = place.run(&[]);
    let process = Process::start(&mut place.command(&["exec", "a", "--", "sh", "-c", "sleep 60; true"]));
    let found = place.place_of(process.child());
    assert!(found.contains("is in unit a (inherited from its parent, which entered by"), "{found}");
}

/// No rule matches processes that entered by `exec`. The next daemon restores their units, whether the
/// previous one ended or was killed; if a unit is gone, that is reported.
#[test]
fn who_entered_is_in_its_unit_under_the_next_daemon_too() {
    let place = Place::with(TWO);
    let mut daemon = place.run(&[]);
    let process = Process::start(&mut place.command(&["exec", "a", "--", "sh", "-c", "sleep 60; true"]));
    let is_there = || {
        // It has entered once it has a child.
        let child = process.child();
        let (parent, child) = (place.place_of(process.pid()), place.place_of(child));
        assert!(parent.ends_with("is in unit a (entered by `commonhold exec`)"), "{parent}");
        assert!(child.contains("is in unit a (inherited from its parent, which entered by"), "{child}");
    };
    is_there();
    daemon.stop();
    let mut daemon = place.run(&[]);
    is_there();
    daemon.kill();
    let mut daemon = place.run(&[]);
    is_there();
    daemon.stop();
    place.write("version = 1\n[unit.b]\n");
    let daemon = place.run(&[]);
    daemon.says(&format!("process {} entered unit `a` by `commonhold exec` before", process.pid()));
    let found = place.place_of(process.pid());
    assert!(found.contains("is in unit shared"), "{found}");
}
