//! A daemon or a caretaker that is killed leaves nothing behind.

use std::fs;
use std::time::Instant;

use crate::support::{Place, Process, eventually, has_cpus, is_there, kill, state};

/// The promise is one second; the margin is for a machine on which tests keep every CPU busy.
const UNDONE_MS: u128 = 1_000 + 1_000;

#[test]
fn a_killed_daemon_leaves_nobody_confined() {
    if !has_cpus() {
        return;
    }
    let members = [Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let mut daemon = place.run(&[]);
    eventually("both are confined", || members.iter().all(Process::is_confined));
    let caretaker = daemon.caretaker();
    let begin = Instant::now();
    daemon.kill();
    eventually("both are free", || members.iter().all(Process::is_free));
    assert!(begin.elapsed().as_millis() < UNDONE_MS, "{:?}", begin.elapsed());
    eventually("the caretaker ends", || !is_there(caretaker));
    assert!(!place.directory().join("journal").exists());
}

/// One more unit than CPUs, all busy: one always waits for its turn.
#[test]
fn a_killed_daemon_leaves_nobody_stopped() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let members: Vec<Process> = (0..=cpus).map(|_| Process::spinner()).collect();
    let place = Place::with_units(&members.iter().collect::<Vec<_>>());
    let mut daemon = place.run(&[]);
    eventually("one is stopped", || members.iter().any(Process::is_stopped));
    let begin = Instant::now();
    daemon.kill();
    eventually("all run", || members.iter().all(Process::is_free));
    assert!(begin.elapsed().as_millis() < UNDONE_MS, "{:?}", begin.elapsed());
}

/// The daemon is stopped while a unit waits for its turn; then, with a new caretaker, it is stopped again.
#[test]
fn a_stopped_daemon_leaves_nobody_stopped() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let members: Vec<Process> = (0..=cpus).map(|_| Process::spinner()).collect();
    let place = Place::with_units(&members.iter().collect::<Vec<_>>());
    let daemon = place.run(&[]);
    for said in 1..=2 {
        eventually("one is stopped", || members.iter().any(Process::is_stopped));
        daemon.signal(libc::SIGSTOP);
        eventually("the caretaker says so", || {
            daemon.err().matches("the daemon's loop is stalled").count() == said
        });
        eventually("all run", || !members.iter().any(Process::is_stopped));
        assert_eq!(state(daemon.pid()), 'T');
        daemon.signal(libc::SIGCONT);
        eventually("turns are taken again", || members.iter().any(Process::is_stopped));
        if said == 1 {
            kill(daemon.caretaker(), libc::SIGKILL);
            daemon.says("problem: the caretaker was killed; a new one has replaced it");
        }
    }
}

#[test]
fn the_next_daemon_undoes_what_two_killed_ones_left() {
    if !has_cpus() {
        return;
    }
    let members = [Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let mut daemon = place.run(&[]);
    eventually("both are confined", || members.iter().all(Process::is_confined));
    // A stopped daemon cannot start a new caretaker meanwhile.
    daemon.signal(libc::SIGSTOP);
    eventually("the daemon is stopped", || state(daemon.pid()) == 'T');
    kill(daemon.caretaker(), libc::SIGKILL);
    daemon.kill();
    assert!(members.iter().all(Process::is_confined), "nobody is there to undo it");
    place
        .call(&["status"])
        .refused(69, &["no daemon runs here", "the next one in", "undoes what it has left"]);

    place.write("version = 1\n[unit.other]\n");
    let next = place.run(&[]);
    next.says("an earlier daemon was killed with its caretaker; undone: 2 threads unpinned");
    assert!(members.iter().all(Process::is_free));
}

#[test]
fn a_killed_caretaker_is_replaced() {
    if !has_cpus() {
        return;
    }
    let members = [Process::sleeper(), Process::sleeper()];
    let place = Place::with_units(&[&members[0], &members[1]]);
    let mut daemon = place.run(&[]);
    let first = daemon.caretaker();
    assert_eq!(fs::read_to_string(format!("/proc/{first}/comm")).unwrap(), "commonhold\n", "as top shows it");
    kill(first, libc::SIGKILL);
    daemon.says("problem: the caretaker was killed; a new one has replaced it");
    assert_ne!(daemon.caretaker(), first);
    eventually("both are confined", || members.iter().all(Process::is_confined));
    // The new one takes over the old one's work, and can be replaced in turn.
    kill(daemon.caretaker(), libc::SIGKILL);
    eventually("it says so again", || daemon.err().matches("caretaker was killed").count() == 2);
    daemon.stop();
    assert!(members.iter().all(Process::is_free));
}

/// A killed daemon's socket is not taken for a daemon, and does not block the next one.
#[test]
fn a_socket_left_behind_is_replaced() {
    let place = Place::with("version = 1\n[unit.a]\n");
    place.run(&[]).kill();
    assert!(fs::symlink_metadata(place.socket()).is_ok());
    place.call(&["status"]).refused(69, &["no daemon runs here", "Connection refused"]);
    let _daemon = place.run(&[]);
    assert_eq!(place.units(), ["a"]);
}
