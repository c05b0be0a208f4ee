//! The meter of locks, on a program that knows how often it takes each (`metered/known.c`).
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests make what the code is to find")]

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use commonhold_machine::CpuSet;
use commonhold_measure::program::{self, Done, Ended, MeterOptions, RunCache, RunRequest};
use commonhold_scale::locks::{Kind, Lock};

/// The program, compiled once.
fn known() -> OsString {
    static KNOWN: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = KNOWN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metered/known.c");
        let flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"];
        let status = Command::new("cc").args(flags).arg(source).arg("-o").arg(&path).status().unwrap();
        assert!(status.success());
        (folder, path)
    });
    path.clone().into_os_string()
}

fn run(case: &str, options: MeterOptions) -> Done {
    // A run ends whatever descends from this process and is new: one at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let machine = commonhold_live::observe::topology::read("/".as_ref()).unwrap();
    let cpus: CpuSet = machine.cpu_set();
    let command = [known(), case.into()];
    let (never, _kept) = rustix::pipe::pipe().unwrap();
    let request = RunRequest {
        command: &command,
        cpus: &cpus,
        keep_output: false,
        watch: false,
        meter: Some(options),
        cap: None,
    };
    let ran = program::run(&request, &cpus, never.as_fd(), &mut RunCache::default()).unwrap();
    let Ended::Done(done) = ran else { panic!("stopped") };
    assert!(done.status.success(), "{case}: {:?} {}", done.status, String::from_utf8_lossy(&done.errors));
    *done
}

/// The locks of a case.
fn locks(case: &str) -> Vec<Lock> {
    run(case, MeterOptions::default()).locks.unwrap().locks
}

/// The only lock of a case.
fn the_lock(case: &str) -> Lock {
    let mut locks = locks(case);
    assert_eq!(locks.len(), 1, "{locks:#?}");
    locks.remove(0)
}

#[test]
fn every_taking_is_counted_and_named() {
    let lock = the_lock("count");
    assert_eq!(
        (lock.name.as_str(), lock.is_variable, lock.kind, lock.locks),
        ("counter_lock", true, Kind::Mutex, 1)
    );
    let counts = lock.counts;
    assert_eq!((counts.total, counts.rejected, counts.retaken, counts.shared), (4_000, 0, 0, 0));
    assert!(
        counts.hold_ns > 0 && counts.hold_max_ns <= counts.hold_ns && lock.utilisation <= 1.0,
        "{lock:?}"
    );
    assert_eq!(lock.sites.len(), 1);
    assert!(lock.sites[0].name.starts_with("count (known.c:"), "{lock:?}");
    assert_eq!(lock.sites[0].counts, counts);
}

#[test]
fn what_is_not_taken_is_rejected_and_what_waits_knows_for_whom() {
    let lock = the_lock("tries");
    let counts = lock.counts;
    assert_eq!((counts.total, counts.waited, counts.rejected), (3, 1, 2));
    // The holder sleeps for 30 ms, and the other begins to wait at some time within.
    assert!(counts.hold_max_ns >= 30_000_000 && counts.wait_ns == counts.wait_max_ns, "{counts:?}");
    let waits = lock.sites.iter().find(|site| site.counts.waited == 1).unwrap();
    assert!(waits.name.starts_with("tries (known.c:"), "{waits:?}");
    assert_eq!(waits.held_by.len(), 1);
    assert!(
        waits.held_by[0].0.starts_with("hold (known.c:") && waits.held_by[0].1 == counts.wait_ns,
        "{waits:?}"
    );
}

#[test]
fn a_lock_that_is_taken_again_by_its_holder_is_held_once() {
    let mut locks = locks("recursive");
    // Both are at one address, but the second is another lock of the same place.
    assert_eq!(locks.len(), 1, "{locks:#?}");
    let lock = locks.remove(0);
    assert_eq!((lock.counts.total, lock.is_variable), (11, false));
    assert!(lock.name.starts_with("recursive (known.c:"), "{lock:?}");
}

#[test]
fn a_wait_for_a_condition_releases_the_lock_and_takes_it_again() {
    let lock = the_lock("condition");
    let counts = lock.counts;
    assert_eq!(counts.total, 2 + counts.retaken);
    assert!((2..=50).contains(&counts.retaken), "{counts:?}");
}

#[test]
fn rwlocks_and_spinlocks_are_of_their_kinds() {
    let locks = locks("others");
    let of = |name: &str| locks.iter().find(|lock| lock.name == name).unwrap();
    let (table, spin) = (of("table_lock"), of("spinlock"));
    assert_eq!((table.kind, table.counts.total, table.counts.shared), (Kind::Rwlock, 11, 7));
    assert_eq!((spin.kind, spin.counts.total), (Kind::Spin, 7));
}

#[test]
fn children_and_killed_children_are_counted_as_processes_of_their_own() {
    for case in ["fork", "killed"] {
        let lock = the_lock(case);
        // Three times in the parent, five times in the child.
        assert_eq!((lock.locks, lock.counts.total, lock.name.as_str()), (2, 8, "counter_lock"), "{case}");
    }
}

#[test]
fn more_threads_than_there_is_room_for_take_turns_in_it() {
    let done = run("threads", MeterOptions::default()).locks.unwrap();
    assert_eq!((done.locks[0].counts.total, done.overflowed), (3_000, 0));
}

#[test]
fn delays_are_made_where_they_were_asked_for() {
    let class = the_lock("count").class;
    let cycle = |inside_ns, outside_ns| {
        let lock = run("count", MeterOptions { class, inside_ns, outside_ns }).locks.unwrap().locks.remove(0);
        assert_eq!((lock.class, lock.counts.total), (class, 4_000));
        (lock.counts.hold_ns, lock.cycle.unwrap())
    };
    let (_, without) = cycle(0, 0);
    assert_eq!((without.injected_s, without.taken), (0.0, 4_000));
    let (hold_ns, inside) = cycle(20_000, 0);
    // Each of 4,000 holds is at least 20 us longer.
    assert!(hold_ns >= 4_000 * 20_000 && inside.injected_s >= 20e-6, "{hold_ns} {inside:?}");
    // Outside, the holds are no longer.
    let (outside_ns, outside) = cycle(0, 20_000);
    assert!(outside_ns < hold_ns, "{outside_ns} {hold_ns}");
    assert!(outside.injected_s >= 20e-6, "{outside:?}");
    // A class that no lock is of.
    let other =
        run("count", MeterOptions { class: class ^ 2, inside_ns: 20_000, outside_ns: 0 }).locks.unwrap();
    assert_eq!(other.locks[0].cycle, None);
}
