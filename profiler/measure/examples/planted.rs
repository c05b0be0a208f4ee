//! A program with one lock among eight that is to blame, to see whether `commonhold scale` finds it.
//!
//! usage: planted SEED THREADS MS
//!        planted SEED              only says which lock it is: `find_3 rebuild_3`
//!
//! The seed chooses the hot lock, what kind of lock all are, whether they are variables or lie on the heap,
//! and whether a holder computes or sleeps. Each lock is taken in three functions, in one of which it is held
//! for long if it is the hot one. Threads also wait on a condition variable, which is no contention. Each
//! thread works for MS milliseconds.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, unsafe_code, reason = "a program to be looked at")]

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::{Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

/// Numbers that a seed gives.
struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        // xorshift64*: each of its bits is as good as another.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % below
    }
}

/// A mutex of the C library's.
struct Foreign(UnsafeCell<libc::pthread_mutex_t>);
// SAFETY: the C library's functions are called on it from any thread, which it is for.
unsafe impl Sync for Foreign {}

enum Lock {
    Std(Mutex<u64>),
    Shared(RwLock<u64>),
    Foreign(Foreign),
}

impl Lock {
    const fn new(kind: u64) -> Lock {
        match kind {
            0 => Lock::Std(Mutex::new(0)),
            1 => Lock::Shared(RwLock::new(0)),
            _ => Lock::Foreign(Foreign(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))),
        }
    }
}

static STD: [Lock; 8] = [const { Lock::new(0) }; 8];
static SHARED: [Lock; 8] = [const { Lock::new(1) }; 8];
static FOREIGN: [Lock; 8] = [const { Lock::new(2) }; 8];

/// How long a lock is held, and whether its holder sleeps meanwhile.
#[derive(Clone, Copy)]
struct Hold {
    us: u64,
    sleeps: bool,
}

#[inline(never)]
fn spend(hold: Hold) {
    if hold.sleeps {
        std::thread::sleep(Duration::from_micros(hold.us));
        return;
    }
    let (begun, mut sum) = (commonhold_live::host::clock::thread_cpu_ns(), 1u64);
    while commonhold_live::host::clock::thread_cpu_ns() - begun < hold.us * 1000 {
        sum = (0..100).fold(sum, |sum, n| black_box(sum.rotate_left(5) ^ n));
    }
    black_box(sum);
}

/// Three functions that take the lock of that number.
macro_rules! takers {
    ($($find:ident $insert:ident $rebuild:ident)*) => {
        $(takers!(@ $find); takers!(@ $insert); takers!(@ $rebuild);)*
        const TAKERS: [[(fn(&Lock, Hold), &str); 3]; 8] =
            [$([($find, stringify!($find)), ($insert, stringify!($insert)), ($rebuild, stringify!($rebuild))]),*];
    };
    (@ $name:ident) => {
        #[inline(never)]
        fn $name(lock: &Lock, hold: Hold) {
            match lock {
                Lock::Std(lock) => {
                    let mut held = lock.lock().unwrap();
                    spend(hold);
                    *held += black_box(1);
                }
                Lock::Shared(lock) => {
                    let mut held = lock.write().unwrap();
                    spend(hold);
                    *held += black_box(1);
                }
                // SAFETY: the mutex was made as the C library says, stays where it is, and is given back by
                // who took it.
                Lock::Foreign(lock) => unsafe {
                    libc::pthread_mutex_lock(lock.0.get());
                    spend(hold);
                    libc::pthread_mutex_unlock(lock.0.get());
                },
            }
        }
    };
}

takers! {
    find_0 insert_0 rebuild_0
    find_1 insert_1 rebuild_1
    find_2 insert_2 rebuild_2
    find_3 insert_3 rebuild_3
    find_4 insert_4 rebuild_4
    find_5 insert_5 rebuild_5
    find_6 insert_6 rebuild_6
    find_7 insert_7 rebuild_7
}

fn choose(chance: &mut Chance, len: usize) -> usize {
    usize::try_from(chance.next(len as u64)).unwrap()
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let Some(seed) = numbers.first() else {
        eprintln!("usage: planted SEED [THREADS MS]");
        std::process::exit(2);
    };
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        chance.next(2);
    }
    let (hot, held_in, kind) = (choose(&mut chance, 8), choose(&mut chance, 3), chance.next(3));
    let (on_heap, sleeps) = (chance.next(2) == 1, chance.next(2) == 1);
    let long = Hold { us: 1_500 + chance.next(2_000), sleeps };
    let short = Hold { us: 40 + chance.next(60), sleeps: false };
    let Some([threads, ms]) = numbers.get(1..3) else {
        println!("{} {}", TAKERS[hot][(held_in + 1) % 3].1, TAKERS[hot][held_in].1);
        return;
    };
    let heap: Vec<Lock> = (0..8).map(|_| Lock::new(kind)).collect();
    let locks = match (on_heap, kind) {
        (true, _) => heap.as_slice(),
        (false, 0) => &STD,
        (false, 1) => &SHARED,
        (false, _) => &FOREIGN,
    };
    let (ended, changed) = (Mutex::new(false), Condvar::new());
    let idle = chance.next(4);
    let work = |number: u64| {
        let mut chance = Chance((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number << 17 | 1));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(*ms) {
            spend(Hold { us: 150, sleeps: false });
            // Two of three times it is another lock.
            let lock = if chance.next(3) == 0 { hot } else { choose(&mut chance, 8) };
            let taker = choose(&mut chance, 3);
            let hold = if lock == hot && taker == held_in { long } else { short };
            TAKERS[lock][taker].0(&locks[lock], hold);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..idle {
            scope.spawn(|| {
                let mut end = ended.lock().unwrap();
                while !*end {
                    end = changed.wait(end).unwrap();
                }
            });
        }
        let running: Vec<_> = (0..*threads).map(|number| scope.spawn(move || work(number))).collect();
        for thread in running {
            thread.join().unwrap();
        }
        *ended.lock().unwrap() = true;
        changed.notify_all();
    });
}
