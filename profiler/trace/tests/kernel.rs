//! The kernel's locks, on a kernel. Without root there is nothing to be tested but that this is said.
#![cfg(feature = "kernel")]
#![allow(clippy::unwrap_used)]

use std::process::Command;

use commonhold_trace::kernel::{Watcher, Who};

#[test]
fn a_program_that_renames_waits_for_a_lock_and_its_threads_are_woken() {
    let mut watcher = match Watcher::load() {
        Ok(watcher) => watcher,
        Err(error) => {
            eprintln!("nothing is tested: {error}");
            return;
        }
    };
    watcher.begin().unwrap();
    // Four shells move files within one folder, which has one lock, and the first waits for them through a
    // pipe.
    let folder = std::env::temp_dir().join(format!("commonhold-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let script = "for j in 1 2 3 4; do (i=0; while [ $i -lt 40 ]; do : > a$j; mv a$j b$j; i=$((i+1)); done) & done; wait";
    let status = Command::new("sh").args(["-c", script]).current_dir(&folder).status().unwrap();
    let watched = watcher.end().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(status.success());
    let by_thread = watched.woken.iter().filter(|woken| woken.who == Who::Thread);
    let waits = by_thread.filter(|woken| woken.waiter == "sh").map(|woken| woken.ns).sum::<u64>();
    assert!(waits > 1_000_000, "{watched:?}");
    let place = watched.woken.iter().find_map(|woken| woken.at.as_ref()).unwrap();
    assert!(!place.function.is_empty());
    // What was seen is forgotten at the next beginning, and nothing is seen of who is not made by this
    // process.
    watcher.begin().unwrap();
    let watched = watcher.end().unwrap();
    assert!(watched.contentions.is_empty() && watched.woken.is_empty(), "{watched:?}");
}
