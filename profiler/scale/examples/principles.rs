//! Measures the effect of three principles of scalability on this machine (seed 002, general principles). See
//! bench/principles.
//!
//! usage: `principles [ROUNDS]`. For each principle and round, prints a line: the nanoseconds that two
//! threads take for the same work without the principle, and right afterwards with the principle.
//! - *apart*: each thread counts in its own number. The two numbers are in one cache line, or in separate
//!   lines.
//! - *readers*: both threads look a value up under a mutex, or under a lock of several readers.
//! - *atomic*: both threads count in one number, under a lock, or by one atomic operation.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "it measures time")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex, PoisonError, RwLock};
use std::time::Instant;

const THREADS: usize = 2;
/// Operations of each thread in a round. They take several milliseconds, so that both threads are likely to
/// run at the same time.
const COUNTS: u64 = 5_000_000;
const LOOK_UPS: u64 = 5_000;
/// The size of the table that is searched under the lock. A search takes several microseconds, so that the
/// cost of the lock itself is small.
const TABLE: u64 = 4_000;

/// Two cache lines apart on every machine, since some machines fetch pairs of lines.
#[repr(align(256))]
#[derive(Default)]
struct Apart(AtomicU64);

/// In one cache line on every machine.
#[repr(align(64))]
#[derive(Default)]
struct Together([AtomicU64; THREADS]);

/// Nanoseconds from the moment when the first thread begins its work to the moment when the last thread has
/// finished.
fn measure(work: impl Fn(usize) + Sync) -> u128 {
    let start = Barrier::new(THREADS);
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let run = |thread| {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                let began = Instant::now();
                work(thread);
                (began, Instant::now())
            })
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no work panics")).collect()
    });
    let (began, ended) = (times.iter().map(|time| time.0).min(), times.iter().map(|time| time.1).max());
    ended.zip(began).map_or(0, |(ended, began)| (ended - began).as_nanos())
}

/// Increments a counter that no other thread writes.
fn count(counter: &AtomicU64) {
    for _ in 0..COUNTS {
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }
}

fn apart() -> [u128; 2] {
    let Together(together) = &Together::default();
    let apart: [Apart; THREADS] = Default::default();
    let sides = [measure(|thread| count(&together[thread])), measure(|thread| count(&apart[thread].0))];
    assert!(together.iter().chain(apart.iter().map(|own| &own.0)).all(|own| own.load(Relaxed) == COUNTS));
    sides
}

fn look_up(table: &[u64]) {
    black_box(black_box(table).iter().fold(0u64, |sum, entry| sum ^ black_box(*entry)));
}

fn readers() -> [u128; 2] {
    let table: Vec<u64> = (0..TABLE).collect();
    let (one, several) = (Mutex::new(table.clone()), RwLock::new(table));
    let alone = measure(|_| {
        for _ in 0..LOOK_UPS {
            look_up(&one.lock().unwrap_or_else(PoisonError::into_inner));
        }
    });
    let side_by_side = measure(|_| {
        for _ in 0..LOOK_UPS {
            look_up(&several.read().unwrap_or_else(PoisonError::into_inner));
        }
    });
    [alone, side_by_side]
}

fn atomic() -> [u128; 2] {
    let (locked, free) = (Mutex::new(0), AtomicU64::new(0));
    let sides = [
        measure(|_| {
            for _ in 0..COUNTS {
                *locked.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            }
        }),
        measure(|_| {
            for _ in 0..COUNTS {
                free.fetch_add(1, Relaxed);
            }
        }),
    ];
    let both = COUNTS * THREADS as u64;
    assert_eq!((*locked.lock().unwrap_or_else(PoisonError::into_inner), free.load(Relaxed)), (both, both));
    sides
}

fn main() -> ExitCode {
    let rounds = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 1,
        Some(Ok(rounds)) => rounds,
        Some(Err(error)) => {
            eprintln!("the number of rounds: {error}; for example: principles 100");
            return ExitCode::from(2);
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < THREADS {
        eprintln!("it takes two CPUs, and this process may use {cpus}: give it more with taskset");
        return ExitCode::FAILURE;
    }
    for _ in 0..rounds {
        for (name, [without, with]) in [("apart", apart()), ("readers", readers()), ("atomic", atomic())] {
            println!("{name}: without {without} ns, with {with} ns");
        }
    }
    ExitCode::SUCCESS
}
