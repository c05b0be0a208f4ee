//! However the daemon ends, nothing stays stopped or pinned: its caretaker undoes everything.
// `[mask.clone()]` shows the expected value; a slice made from a reference would show how it was made.
#![allow(clippy::unwrap_used, clippy::cloned_ref_to_slice_refs, clippy::disallowed_methods)]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use commonhold_live::host::affinity;
use support::{Job, churn, descendants, eventually, masks, one_cpu, session_masks, start, state, states};

/// A small daemon that holds a job.
struct Daemon {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Daemon {
    /// Starts it and waits until it holds the job.
    fn start(directory: &Path, job: &Job, more: &[&str]) -> Daemon {
        let first = affinity::get(0).unwrap().iter().next().unwrap();
        let mut child = Command::new(support::example("hold"))
            .arg(directory)
            .args([job.pid().to_string(), first.to_string()])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(directory.join("errors")).unwrap())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line != "holding\n" {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the daemon ended");
        }
        Daemon { child, output }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A regular shutdown; returns the last output.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap();
        rest
    }
}

fn journal_is_gone(directory: &Path) -> bool {
    !directory.join("journal").exists()
}

#[test]
fn a_killed_daemon_leaves_nothing_pinned_or_stopped() {
    let Some((_, all)) = one_cpu() else { return };
    let directory = tempfile::tempdir().unwrap();
    let job = start("sh", &["-c", "sleep 1000 & sleep 1000 & wait"]);
    eventually("two children", || descendants(job.pid()).len() == 3);
    let daemon = Daemon::start(directory.path(), &job, &["closed"]);
    eventually("all stopped", || states(job.pid()) == ['T'; 3]);
    assert_ne!(masks(job.pid()), [all.clone()]);
    daemon.kill();
    eventually("undone", || masks(job.pid()) == [all.clone()] && !states(job.pid()).contains(&'T'));
    eventually("the journal is removed", || journal_is_gone(directory.path()));
}

/// A daemon that is stopped itself is stalled: the caretaker continues the processes that it stopped, but
/// does not unpin them. When the daemon continues, it stops them again.
#[test]
fn a_stopped_daemon_leaves_nothing_stopped() {
    let Some((one, all)) = one_cpu() else { return };
    let directory = tempfile::tempdir().unwrap();
    let job = start("sh", &["-c", "sleep 1000 & while :; do :; done"]);
    eventually("a child", || descendants(job.pid()).len() == 2);
    let daemon = Daemon::start(directory.path(), &job, &["closed"]);
    for _ in 0..2 {
        eventually("all stopped", || states(job.pid()) == ['T'; 2]);
        support::kill(daemon.child.id(), libc::SIGSTOP);
        eventually("all go on", || !states(job.pid()).contains(&'T'));
        assert_eq!(state(daemon.child.id()), 'T');
        assert_eq!(masks(job.pid()), [one.clone()]);
        support::kill(daemon.child.id(), libc::SIGCONT);
    }
    eventually("all stopped", || states(job.pid()) == ['T'; 2]);
    let errors = std::fs::read_to_string(directory.path().join("errors")).unwrap();
    assert_eq!(errors.matches("problem: the daemon's loop is stalled").count(), 2, "{errors}");
    assert_eq!(daemon.end(), "undone: 2 threads unpinned, 2 processes continued\n");
    assert_eq!(masks(job.pid()), [all]);
}

/// A daemon that is not stalled is left alone, and a caretaker with nothing to continue does not wake up.
#[test]
fn the_caretaker_of_a_running_daemon_does_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let job = start("sleep", &["1000"]);
    let daemon = Daemon::start(directory.path(), &job, &["closed"]);
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(state(job.pid()), 'T');
    assert_eq!(std::fs::read_to_string(directory.path().join("errors")).unwrap(), "");
    daemon.end();
    let daemon = Daemon::start(directory.path(), &job, &[]);
    let caretaker = descendants(daemon.child.id()).into_iter().find(|pid| *pid != daemon.child.id()).unwrap();
    let woken = || {
        let status = std::fs::read_to_string(format!("/proc/{caretaker}/status")).unwrap();
        status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap().to_owned()
    };
    let before = woken();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(woken(), before);
    daemon.end();
}

#[test]
fn a_regular_shutdown_undoes_the_same_and_reports_it() {
    let Some((_, all)) = one_cpu() else { return };
    let directory = tempfile::tempdir().unwrap();
    let job = start("sleep", &["1000"]);
    let daemon = Daemon::start(directory.path(), &job, &["closed"]);
    eventually("stopped", || state(job.pid()) == 'T');
    assert_eq!(daemon.end(), "undone: 1 thread unpinned, 1 process continued\n");
    assert_eq!(masks(job.pid()), [all]);
    assert!(journal_is_gone(directory.path()));
}

#[test]
fn a_process_that_its_user_stopped_stays_stopped_when_the_daemon_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let job = start("sleep", &["1000"]);
    job.signal(libc::SIGSTOP);
    eventually("stopped", || state(job.pid()) == 'T');
    Daemon::start(directory.path(), &job, &["closed"]).kill();
    eventually("the journal is removed", || journal_is_gone(directory.path()));
    assert_eq!(state(job.pid()), 'T');
}

#[test]
fn a_storm_that_the_killed_daemon_knew_only_in_part_is_unpinned() {
    let Some((_, all)) = one_cpu() else { return };
    let directory = tempfile::tempdir().unwrap();
    let job = start(churn(), &["forks", "3"]);
    Daemon::start(directory.path(), &job, &[]).kill();
    eventually("the journal is removed", || journal_is_gone(directory.path()));
    assert_eq!(session_masks(job.pid()), [all]);
}

#[test]
fn the_next_daemon_undoes_what_a_killed_caretaker_could_not() {
    let Some((one, all)) = one_cpu() else { return };
    let directory = tempfile::tempdir().unwrap();
    let job = start("sleep", &["1000"]);
    let daemon = Daemon::start(directory.path(), &job, &[]);
    let caretaker = descendants(daemon.child.id()).into_iter().find(|pid| *pid != daemon.child.id()).unwrap();
    support::kill(caretaker, libc::SIGKILL);
    daemon.kill();
    assert_eq!(masks(job.pid()), [one]);
    let other = start("sleep", &["1000"]);
    let next = Daemon::start(directory.path(), &other, &[]);
    assert_eq!(masks(job.pid()), [all]);
    next.end();
}

#[test]
fn the_caretaker_ignores_terminating_signals() {
    let Some((_, all)) = one_cpu() else { return };
    let directory = tempfile::tempdir().unwrap();
    let job = start("sleep", &["1000"]);
    let daemon = Daemon::start(directory.path(), &job, &[]);
    let caretaker = descendants(daemon.child.id()).into_iter().find(|pid| *pid != daemon.child.id()).unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        support::kill(caretaker, signal);
    }
    daemon.kill();
    eventually("undone", || masks(job.pid()) == [all.clone()]);
}
