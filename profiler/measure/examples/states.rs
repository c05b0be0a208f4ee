//! A program that knows what its threads do, to hold what `commonhold scale` says of it to that.
//!
//! usage: states THREADS MS [lock|read|none]
//!
//! Each thread computes, sleeps, and takes a lock in which it computes, in turns, until its share of the work
//! is done: MS milliseconds of CPU time for all of them together. `read` takes a lock that readers share;
//! `none` takes no lock and does not sleep. At the end one line per state is printed: the threads' lives, CPU
//! time, time asleep, and time in calls for the lock, in nanoseconds, all threads together and without the
//! first.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a program to be looked at")]

use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

/// What a thread did.
#[derive(Default)]
struct Sums {
    lived: u64,
    ran: u64,
    slept: u64,
    locked: u64,
}

fn ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap()
}

/// Computes for so much CPU time.
fn compute(ns: u64) {
    let begun = commonhold_live::host::clock::thread_cpu_ns();
    let mut sum = begun;
    while commonhold_live::host::clock::thread_cpu_ns() - begun < ns {
        sum = (0..200).fold(sum, |sum, n| std::hint::black_box(sum.rotate_left(7) ^ n));
    }
    std::hint::black_box(sum);
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let (Some(threads), Some(ms)) = (number(1), number(2)) else {
        eprintln!("usage: states THREADS MS [lock|read|none]");
        std::process::exit(2);
    };
    let kind = words.get(3).map_or("lock", String::as_str);
    let (lock, shared) = (Mutex::new(()), RwLock::new(()));
    let share = ms * 1_000_000 / threads;
    let work = || {
        let (begun, mut sums) = (Instant::now(), Sums::default());
        while commonhold_live::host::clock::thread_cpu_ns() < share {
            compute(2_000_000);
            if kind == "none" {
                continue;
            }
            let before = Instant::now();
            std::thread::sleep(Duration::from_millis(3));
            sums.slept += ns(before);
            let before = Instant::now();
            if kind == "read" {
                let held = shared.read().unwrap();
                sums.locked += ns(before);
                compute(2_000_000);
                drop(held);
            } else {
                let held = lock.lock().unwrap();
                sums.locked += ns(before);
                compute(2_000_000);
                drop(held);
            }
        }
        sums.ran = commonhold_live::host::clock::thread_cpu_ns();
        sums.lived = ns(begun);
        sums
    };
    let all: Vec<Sums> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: fn(&Sums) -> u64| all.iter().map(of).sum::<u64>();
    println!("lived {}", sum(|s| s.lived));
    println!("ran {}", sum(|s| s.ran));
    println!("slept {}", sum(|s| s.slept));
    println!("locked {}", sum(|s| s.locked));
}
