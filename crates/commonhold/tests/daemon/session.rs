//! The autogroup of the daemon's session, whose nice value determines the session's share of CPU time.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, getpriority_process, setsid};

use crate::skipped::skipped;
use crate::support::{Daemon, Place, children_of, eventually, is_root, is_there, kill, run_arguments};

/// The daemon's nice value.
const RAISED: &str = "-15";

/// A daemon that leads a new session, and another process in it.
struct Session {
    daemon: Daemon,
    witness: u32,
    place: Place,
}

impl Session {
    /// `None`, after printing the reason, if the nice value cannot be raised here.
    fn start() -> Option<Session> {
        if !is_root() {
            return None;
        }
        if !fs::read_to_string("/proc/self/autogroup").is_ok_and(|text| text.contains("nice")) {
            skipped("this kernel, or this container's first process, has no autogroup");
            return None;
        }
        let place = Place::with("version = 1\n[unit.a]\n");
        let script = "sleep 60 > /dev/null 2>&1 & exec \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(env!("CARGO_BIN_EXE_commonhold")).args(run_arguments(&[]));
        shell.current_dir(place.path()).stdin(Stdio::null());
        shell.env("COMMONHOLD_DIR", place.directory()).env_remove("XDG_RUNTIME_DIR");
        // SAFETY: one system call, which is safe between fork and exec.
        unsafe { shell.pre_exec(|| Ok(setsid().map(|_| ())?)) };
        let daemon = Daemon::start_in_place(&mut shell);
        let witness = children_of(daemon.pid())[0];
        let session = Session { daemon, witness, place };
        let own = getpriority_process(Pid::from_raw(session.daemon.pid().try_into().unwrap()));
        if own.unwrap().to_string() != RAISED {
            skipped("the daemon may not raise its nice value: root lacks CAP_SYS_NICE");
            return None;
        }
        Some(session)
    }

    fn nice(&self) -> String {
        nice_of(self.witness)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        kill(self.witness, libc::SIGKILL);
    }
}

/// The nice value of a process's autogroup.
fn nice_of(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/autogroup")).unwrap();
    text.trim().rsplit(' ').next().unwrap().to_owned()
}

/// The caretaker has its own session, whose priority is raised as well.
#[test]
fn the_session_goes_first_until_the_daemon_ends() {
    let Some(mut session) = Session::start() else { return };
    assert_eq!(session.nice(), RAISED);
    let caretaker = children_of(session.daemon.pid())[1];
    assert_eq!(nice_of(caretaker), RAISED);
    session.daemon.stop();
    assert_eq!(session.nice(), "0");
    assert!(session.daemon.out().contains("1 autogroup restored"), "{}", session.daemon.out());
}

#[test]
fn a_killed_daemon_leaves_its_session_as_it_was() {
    let Some(mut session) = Session::start() else { return };
    assert_eq!(session.nice(), RAISED);
    session.daemon.kill();
    eventually("it has its nice value again", || session.nice() == "0");
}

/// Daemon and caretaker are killed: the next daemon, in another session, restores the value.
#[test]
fn the_next_daemon_restores_a_session_that_two_killed_ones_left() {
    let Some(mut session) = Session::start() else { return };
    let caretaker = children_of(session.daemon.pid())[1];
    session.daemon.signal(libc::SIGSTOP);
    kill(caretaker, libc::SIGKILL);
    session.daemon.kill();
    eventually("the caretaker is dead", || !is_there(caretaker));
    assert_eq!(session.nice(), RAISED, "nobody is there to restore it");
    let next = session.place.run(&[]);
    next.says("1 autogroup restored");
    assert_eq!(session.nice(), "0");
}

#[test]
fn what_another_program_has_set_stays() {
    let Some(mut session) = Session::start() else { return };
    fs::write(format!("/proc/{}/autogroup", session.witness), "4").unwrap();
    session.daemon.stop();
    assert_eq!(session.nice(), "4");
    session.daemon.says("its nice value stays 4: another program has set it");
}
