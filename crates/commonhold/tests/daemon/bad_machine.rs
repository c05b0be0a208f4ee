//! Insufficient machines and privileges: each with its message and its remedy; the daemon holds what it can.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::skipped::skipped;
use crate::support::{Daemon, Place, Process, STRANGER, eventually, has_cpus, is_root, is_there, kill, said};

const ONE: &str = "version = 1\n[unit.a]\nmembers = []\n";

#[test]
fn the_cgroup_backend_where_there_is_none() {
    let place = Place::with(ONE);
    let doctor = place.call(&["doctor", "--json"]);
    let said = place.call(&["run", "contract.toml", "--backend", "cgroup", "--dry-run"]);
    if said.code == Some(0) {
        skipped("this machine has the cgroup backend");
        return;
    }
    said.refused(69, &["error: no cgroup backend here: ", "; "]);
    // The reason is that of `doctor`.
    let reason = said.err.trim_start_matches("error: no cgroup backend here: ").split(';').next().unwrap();
    assert!(doctor.out.contains(reason), "{reason}");
    // Unless it is requested explicitly, the other one is used, and the reason is printed.
    let auto = place.call(&["run", "contract.toml", "--dry-run"]);
    assert!(auto.out.contains("the user backend would hold this (no cgroup backend here: "), "{auto:?}");
}

#[test]
fn the_kernel_backend_where_there_is_none() {
    let place = Place::with(ONE);
    let doctor = place.call(&["doctor", "--json"]);
    let said = place.call(&["run", "contract.toml", "--backend", "kernel", "--dry-run"]);
    if said.code == Some(0) {
        skipped("this machine has the kernel backend");
        return;
    }
    said.refused(69, &["error: no kernel backend here: ", "; "]);
    let reason = said.err.trim_start_matches("error: no kernel backend here: ").split(';').next().unwrap();
    assert!(doctor.out.contains(reason), "{reason}");
}

#[test]
fn a_dry_run_says_whom_its_user_cannot_hold() {
    if !is_root() {
        return;
    }
    let (roots, own) = (Process::sleeper(), Process::sleeper_of(STRANGER, STRANGER));
    let place = Place::with_units(&[&roots, &own]);
    let arguments = ["run", "contract.toml", "--backend", "user", "--dry-run"];
    let reach = "this user may not change them: 1 process. A daemon of root's holds every user's.";
    let of = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let dry = said(&mut place.command_of(STRANGER, &arguments));
    assert!(of(&dry.out).contains(reach), "{dry:?}");
    let dry = place.call(&arguments);
    assert!(!of(&dry.out).contains("reach"), "{dry:?}");
}

#[test]
fn processes_that_one_may_not_touch_are_reported_and_the_others_held() {
    if !is_root() || !has_cpus() {
        return;
    }
    // Its name would clear the reader's screen.
    let names = Place::new();
    let program = names.path().join("\u{1b}[2J");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let roots = Process::start(Command::new(&program).arg("60"));
    let own = Process::sleeper_of(STRANGER, STRANGER);
    let place = Place::with_units(&[&roots, &own]);
    place.make_directory_of(STRANGER);
    let mut daemon = place.run_as(STRANGER);
    eventually("its own process is confined", || own.is_confined());
    daemon.says(&format!("problem: process {} (\u{fffd}[2J): cannot", roots.pid()));
    assert!(daemon.err().contains("; "), "with a remedy: {}", daemon.err());
    assert!(roots.is_free());
    assert_eq!(daemon.err().matches("problem:").count(), 1, "said once: {}", daemon.err());
    let status = said(&mut place.command_of(STRANGER, &["status"]));
    assert!(status.out.contains("problem: process"), "{status:?}");
    daemon.stop();
    assert!(own.is_free());
}

/// Commonhold never kills: a process that ignores the daemon's end lives on, unconfined.
#[test]
fn a_member_that_refuses_to_die() {
    if !has_cpus() {
        return;
    }
    let stubborn = Process::shell("trap '' TERM HUP INT; sleep 60 & while :; do wait; done");
    let other = Process::sleeper();
    let place = Place::with_units(&[&stubborn, &other]);
    let mut daemon = place.run(&[]);
    eventually("it is confined", || stubborn.is_confined());
    kill(stubborn.pid(), libc::SIGTERM);
    daemon.stop();
    assert!(is_there(stubborn.pid()) && stubborn.is_free());
}

#[test]
fn a_directory_that_others_may_write() {
    let place = Place::with(ONE);
    fs::create_dir(place.directory()).unwrap();
    fs::set_permissions(place.directory(), fs::Permissions::from_mode(0o777)).unwrap();
    let arguments = ["run", "contract.toml", "--backend", "user", "--for", "1s"];
    place.call(&arguments).refused(71, &["others may write there; choose another place with --directory"]);
}

#[test]
fn a_directory_that_others_may_replace() {
    let place = Place::with(ONE);
    let around = place.path().join("around");
    fs::create_dir(&around).unwrap();
    fs::set_permissions(&around, fs::Permissions::from_mode(0o757)).unwrap();
    let arguments =
        ["run", "contract.toml", "--backend", "user", "--for", "1s", "--directory", "around/daemon"];
    place.call(&arguments).refused(71, &["of the directory", "the mode 0757 lets others write; choose"]);
}

/// State that an earlier daemon cannot have left is neither undone, waited for, nor removed.
#[test]
fn a_journal_or_a_lock_that_is_none() {
    let place = Place::with(ONE);
    let arguments = ["run", "contract.toml", "--backend", "user", "--for", "1s"];
    fs::create_dir(place.directory()).unwrap();
    let journal = place.directory().join("journal");
    let foreign = |content: &[u8], words: &str| {
        fs::write(&journal, content).unwrap();
        fs::set_permissions(&journal, fs::Permissions::from_mode(0o600)).unwrap();
        place
            .call(&arguments)
            .refused(66, &["daemon/journal: cannot undo what it lists", words, "kill -CONT PID"]);
        assert_eq!(fs::read(&journal).unwrap(), content, "it is kept");
    };
    foreign(b"commonhold journal 7\nS 1-2\n", "it is of version 7, and this program reads version 1");
    foreign(&[0; 4096], "is not the header of a journal");
    for name in ["journal", "lock"] {
        let path = place.directory().join(name);
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        place.call(&arguments).refused(66, &[name, "it is a FIFO or pipe, not a regular file"]);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(place.call(&arguments).code, Some(0));
}

#[test]
fn a_directory_of_somebody_else() {
    if !is_root() {
        return;
    }
    let place = Place::with(ONE);
    place.make_directory_of(STRANGER);
    let arguments = ["run", "contract.toml", "--backend", "user", "--for", "1s"];
    place.call(&arguments).refused(71, &["this must be a directory of user 0, and is not", "--directory"]);
}

#[test]
fn a_directory_that_is_a_link_or_a_file() {
    let place = Place::with(ONE);
    let arguments = ["run", "contract.toml", "--backend", "user", "--for", "1s"];
    fs::write(place.directory(), "").unwrap();
    place.call(&arguments).refused(71, &["cannot make the daemon's directory", "--directory"]);
    fs::remove_file(place.directory()).unwrap();
    std::os::unix::fs::symlink("/tmp", place.directory()).unwrap();
    place.call(&arguments).refused(71, &["this must be a directory of user", "--directory"]);
}

/// Outside a systemd session `XDG_RUNTIME_DIR` is unset: a user's daemon and clients still find each other.
#[test]
fn an_ordinary_user_without_a_runtime_directory() {
    if !is_root() {
        return;
    }
    let user = STRANGER + 1;
    let place = Place::with(ONE);
    let directory = format!("/tmp/commonhold-{user}");
    let mut run = place.command_of(user, &["run", "contract.toml", "--backend", "user", "--for", "60s"]);
    let mut status = place.command_of(user, &["status"]);
    let daemon = Daemon::start(run.env_remove("COMMONHOLD_DIR"));
    let found = said(status.env_remove("COMMONHOLD_DIR"));
    assert!(found.out.contains("held by the user backend"), "{found:?}");
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    drop(daemon);
    fs::remove_dir_all(&directory).unwrap();
}

/// Another user's directory of that name is not used: its socket could be anybody's.
#[test]
fn a_client_does_not_ask_somebody_else() {
    if !is_root() {
        return;
    }
    let user = STRANGER + 2;
    let place = Place::with(ONE);
    let directory = format!("/tmp/commonhold-{user}");
    let arguments = ["run", "contract.toml", "--backend", "user", "--for", "60s", "--directory", &directory];
    let trap = Daemon::start(place.command_of(STRANGER, &arguments));
    let asked = said(place.command_of(user, &["status"]).env_remove("COMMONHOLD_DIR"));
    drop(trap);
    fs::remove_dir_all(&directory).unwrap();
    asked.refused(69, &["no daemon runs here", "belongs to another user"]);
}
