//! A program that saturates the memory bus, and reports its transfers: it sums up numbers that exceed every
//! cache.
//!
//! usage: gang [SOCKET [SECONDS [THREADS [MIB]]]]     seconds 0: until it is ended; MIB: of numbers, for each thread

use std::hint::black_box;
use std::time::{Duration, Instant};

use commonhold_client::gang::Gang;

/// For each thread, in MiB: more than caches hold.
const MUCH: u64 = 128;

/// How many of them are summed up between two reports.
const PART: usize = 1 << 20;

fn sum_up(gang: Option<&Gang>, until: Option<Instant>, mib: u64) -> u64 {
    let numbers: Vec<u64> = (0..mib.max(1) << 17).collect();
    let mut sum: u64 = 0;
    loop {
        for part in numbers.chunks(PART) {
            sum = black_box(part.iter().fold(sum, |sum, number| sum.wrapping_add(*number)));
            if let Some(gang) = gang {
                gang.transferred(size_of_val(part) as u64);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return sum;
            }
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().unwrap_or_else(|| "/run/commonhold/socket".to_owned());
    let mut number = |otherwise| arguments.next().and_then(|word| word.parse().ok()).unwrap_or(otherwise);
    let (seconds, threads, mib) = (number(5), number(2), number(MUCH));
    let until = (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds));
    let gang = Gang::join(socket).inspect_err(|alone| eprintln!("gang: alone: {alone}")).ok();
    let gang = gang.as_ref();
    let sums: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(move || sum_up(gang, until, mib))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    println!("the sums are {sums:?}");
}
