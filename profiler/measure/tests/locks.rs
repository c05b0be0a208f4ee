//! Whether the lock that is to blame is found: `examples/planted.rs` has eight locks, of which a seed makes
//! one hot.
//!
//! How many seeds are tried is in `COMMONHOLD_SEEDS`; 6 unless set.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use commonhold_live::observe::topology;
use commonhold_measure::program::{self, Ended, RunCache, RunRequest};
use commonhold_scale::blame::{Lock, Observed};

const THREADS: &str = "6";
const MS: &str = "300";

fn planted() -> PathBuf {
    let path = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/planted");
    assert!(path.exists(), "{}: build it: cargo build -p commonhold-measure --examples", path.display());
    path
}

/// The functions that take the hot lock: what stands before the number differs, the number does not.
fn hot(seed: u64) -> String {
    let output = Command::new(planted()).arg(seed.to_string()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let number = said.trim().rsplit('_').next().unwrap();
    format!("_{number}")
}

fn run(seed: u64, cache: &mut RunCache) -> Observed {
    let words = [planted().into_os_string(), seed.to_string().into(), THREADS.into(), MS.into()];
    let command: Vec<OsString> = words.into();
    let cpus = topology::read(std::path::Path::new("/")).unwrap().cpu_set();
    let request = RunRequest {
        command: &command,
        cpus: &cpus,
        keep_output: false,
        watch: true,
        meter: None,
        cap: None,
    };
    let (stop, _never) = std::io::pipe().unwrap();
    match program::run(&request, &cpus, stop.as_fd(), cache).unwrap() {
        Ended::Done(done) => {
            assert!(done.status.success(), "{done:?}");
            done.watched.unwrap().observed
        }
        Ended::Stopped => panic!("it was stopped"),
    }
}

/// The lock of the program that was waited for longest.
fn worst(seen: &Observed) -> Option<&Lock> {
    let ours = seen.locks.iter().filter(|lock| lock.kind.has_holder() && !lock.kind.is_kernels());
    ours.max_by_key(|lock| lock.waited_ns())
}

#[test]
fn the_planted_lock_is_found_in_95_of_100_programs() {
    let seeds = std::env::var("COMMONHOLD_SEEDS").ok().map_or(6, |number| number.parse().unwrap());
    let (mut cache, mut missed, mut held) = (RunCache::default(), Vec::new(), 0);
    for seed in 1..=seeds {
        let (hot, seen) = (hot(seed), run(seed, &mut cache));
        let lock = worst(&seen);
        let is_hot = |function: &str| function.ends_with(&hot);
        let main = lock.and_then(|lock| lock.waits.iter().max_by_key(|(_, ns)| *ns));
        if !main.is_some_and(|(site, _)| is_hot(&site.function)) {
            missed.push((seed, hot.clone(), lock.cloned()));
        }
        let sites = lock.iter().flat_map(|lock| &lock.holds).filter_map(|hold| hold.site.as_ref());
        held += u64::from(sites.into_iter().any(|site| is_hot(&site.function)));
    }
    println!(
        "of {seeds} planted locks {} were found, and of {held} a holder's place",
        seeds - missed.len() as u64
    );
    // One of 20; of few, one.
    assert!(missed.len() as u64 <= (seeds / 20).max(1), "{missed:#?}");
}
