//! Names of locks and call sites that do not come from the program's own symbols alone.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use commonhold_live::observe::topology;
use commonhold_measure::program::{self, Done, Ended, RunCache, RunRequest, Unnamed};
use commonhold_scale::blame::{Kind, Lock};

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

use skipped::skipped;

fn example(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{}: build it: cargo build -p commonhold-measure --examples", path.display());
    path
}

/// One run at a time: this process adopts orphans of a program, and samples all that it adopted.
static ONE: Mutex<()> = Mutex::new(());

fn run(program: &Path, words: &[&str]) -> Done {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let command: Vec<OsString> =
        std::iter::once(program.into()).chain(words.iter().map(Into::into)).collect();
    let cpus = topology::read(Path::new("/")).unwrap().cpu_set();
    let request =
        RunRequest { command: &command, cpus: &cpus, keep_output: true, watch: true, meter: None, cap: None };
    let (stop, _never) = std::io::pipe().unwrap();
    match program::run(&request, &cpus, stop.as_fd(), &mut RunCache::default()).unwrap() {
        Ended::Done(done) => {
            assert!(done.status.success(), "{done:?}");
            *done
        }
        Ended::Stopped => panic!("it was stopped"),
    }
}

fn locks(done: &Done) -> &[Lock] {
    &done.watched.as_ref().unwrap().observed.locks
}

/// The place where was waited longest, and the lock: the program's own, since on a busy machine its threads
/// may wait for the kernel's longer.
fn worst(done: &Done) -> (&str, &Lock) {
    let own = locks(done).iter().filter(|lock| !lock.kind.is_kernels());
    let lock = own.max_by_key(|lock| lock.waited_ns()).unwrap();
    let (site, _) = lock.waits.iter().max_by_key(|(_, ns)| *ns).unwrap();
    (&site.function, lock)
}

/// Stacks cannot be followed: no test has a sense.
fn cannot_follow(done: &Done) -> bool {
    if cfg!(target_arch = "x86_64") && done.no_stacks.is_none() {
        return false;
    }
    skipped("stacks of other processes cannot be read here");
    true
}

#[test]
fn one_lock_of_two_processes_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    let done = run(&example("shared"), &[path.to_str().unwrap(), "1000"]);
    if cannot_follow(&done) {
        return;
    }
    let takes =
        |lock: &Lock, site: &str| lock.waits.iter().any(|(its, ns)| its.function.contains(site) && *ns > 0);
    let of = |site: &str| locks(&done).iter().filter(|lock| takes(lock, site)).collect::<Vec<_>>();
    let (first, second) = (of("take_in_first"), of("take_in_second"));
    assert_eq!((first.len(), second.len()), (1, 1), "{:#?}", locks(&done));
    assert_eq!(first, second);
    assert_eq!(first[0].kind, Kind::Mutex);
    assert_eq!(first[0].name, Some(format!("{}+0x40", path.display())));
    // The mutex has its holder's number, whichever process that is of.
    let holder = first[0].holds.iter().filter_map(|hold| hold.site.as_ref());
    assert!(holder.into_iter().any(|site| site.function.contains("take_in_")), "{:#?}", first[0]);
}

#[test]
fn jit_code_has_the_names_of_its_perf_map_or_it_is_said_why_not() {
    let of = |how: &str| {
        let done = run(&example("jit"), &["800", how]);
        let path = String::from_utf8(done.output.clone()).unwrap();
        let _ = fs::remove_file(path.trim());
        done
    };
    let done = of("map");
    if cannot_follow(&done) {
        return;
    }
    assert_eq!(worst(&done).0, "take_in_made code", "{:#?}", locks(&done));
    assert_eq!(worst(&done).1.name.as_deref().map(|name| name.contains("MUTEX")), Some(true));
    // A stack that changed while it was copied is unread: that happens, and is not about names.
    let unnamed = |done: &Done| -> BTreeSet<Unnamed> {
        done.unnamed.iter().filter(|it| **it != Unnamed::Unread).cloned().collect()
    };
    assert_eq!(unnamed(&done), BTreeSet::new());
    for (how, words) in [
        ("none", "it wrote no /tmp/perf-PID.map"),
        ("fifo", "its /tmp/perf-PID.map cannot be used: it is a FIFO or pipe, not a regular file"),
    ] {
        let done = of(how);
        assert_eq!(worst(&done).0, "JIT code of jit", "{how}: {:#?}", locks(&done));
        assert_eq!(unnamed(&done), [Unnamed::Jit("jit".to_owned(), words.to_owned())].into(), "{how}");
    }
}

#[test]
fn a_stripped_program_is_told_by_file_and_offset_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bare");
    let stripped = Command::new("strip").arg("-o").arg(&path).arg(example("planted")).status();
    if !stripped.is_ok_and(|status| status.success()) {
        return skipped("there is no strip here: install binutils");
    }
    let done = run(&path, &["3", "6", "400"]);
    if cannot_follow(&done) {
        return;
    }
    assert!(worst(&done).0.starts_with("bare+0x"), "{:#?}", locks(&done));
    assert!(done.unnamed.contains(&Unnamed::Stripped("bare".to_owned())), "{:?}", done.unnamed);
    let sites = locks(&done).iter().flat_map(|lock| &lock.waits);
    assert!(sites.into_iter().all(|(site, _)| site.function != "?"));
}

/// Goroutines that wait for a mutex are on no thread. The program's two CPUs are one too many for it.
#[test]
fn locks_of_gos_are_named_by_the_function_that_takes_them() {
    const SOURCE: &str = r#"
package main

import (
	"sync"
	"time"
)

var mutex sync.Mutex
var sum int

//go:noinline
func takeHot() {
	mutex.Lock()
	for begun := time.Now(); time.Since(begun) < 200*time.Microsecond; {
		sum++
	}
	mutex.Unlock()
}

func main() {
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for begun := time.Now(); time.Since(begun) < 700*time.Millisecond; {
				takeHot()
			}
		}()
	}
	all.Wait()
}
"#;
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("hot.go"), dir.path().join("hot"));
    fs::write(&source, SOURCE).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).current_dir(dir.path());
    // Nothing is to be downloaded.
    build.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").env("GOPROXY", "off");
    if !build.output().is_ok_and(|output| output.status.success()) {
        return skipped("there is no Go here that builds a program");
    }
    if topology::read(Path::new("/")).unwrap().cpu_set().len() < 2 {
        return skipped("on one CPU, no thread of Go's is idle while goroutines wait for a lock");
    }
    let mut done = run(&program, &[]);
    if cannot_follow(&done) {
        return;
    }
    // On busy CPUs, threads of Go's are idle for other reasons, too: one try or another is spoilt.
    for _ in 0..9 {
        if worst(&done).0 == "main.takeHot" {
            break;
        }
        done = run(&program, &[]);
    }
    let (site, lock) = worst(&done);
    assert_eq!((site, lock.kind), ("main.takeHot", Kind::Mutex), "{:#?}", locks(&done));
    assert!(lock.waits[0].0.place.as_ref().is_some_and(|place| place.starts_with("hot.go:")), "{lock:?}");
}
