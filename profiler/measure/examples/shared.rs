//! Two processes that take one mutex in a file that both have mapped, at different addresses, to see whether
//! `commonhold scale` finds that it is one lock.
//!
//! usage: shared PATH MS
//!
//! Two threads of each process take the mutex for MS milliseconds, in `take_in_first` and in
//! `take_in_second`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, unsafe_code, reason = "a program to be looked at")]

use std::fs::OpenOptions;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

const BYTES: usize = 4096;
/// Where in the file the mutex is.
const AT: usize = 64;

/// A mutex of the C library's in shared memory.
#[derive(Clone, Copy)]
struct Mutex(*mut libc::pthread_mutex_t);
// SAFETY: the C library's functions are called on it from any thread of any process, which it is for.
unsafe impl Send for Mutex {}

impl Mutex {
    fn map(path: &str, init: bool) -> Mutex {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(BYTES as u64).unwrap();
        // Another mapping before it, so that the two processes do not have it at one address by chance.
        let pages = if init { 1 } else { 9 };
        // SAFETY: new mappings at addresses of the kernel's choice. The mutex is within the second, and made
        // before it is used.
        unsafe {
            let (read_write, no_file) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), pages * BYTES, libc::PROT_READ, no_file, -1, 0);
            let at =
                libc::mmap(std::ptr::null_mut(), BYTES, read_write, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            let mutex = at.byte_add(AT).cast::<libc::pthread_mutex_t>();
            if init {
                let mut attributes = std::mem::zeroed::<libc::pthread_mutexattr_t>();
                libc::pthread_mutexattr_init(&raw mut attributes);
                libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
                assert_eq!(libc::pthread_mutex_init(mutex, &raw const attributes), 0);
            }
            Mutex(mutex)
        }
    }
}

/// A function that takes it and holds it for a while.
macro_rules! taker {
    ($name:ident) => {
        #[inline(never)]
        fn $name(mutex: Mutex) {
            // SAFETY: the mutex was made as the C library says, stays where it is, and is given back by who
            // took it.
            unsafe {
                libc::pthread_mutex_lock(mutex.0);
                std::thread::sleep(Duration::from_millis(3));
                libc::pthread_mutex_unlock(mutex.0);
            }
        }
    };
}

taker!(take_in_first);
taker!(take_in_second);

fn work(take: fn(Mutex), mutex: Mutex, ms: u64) {
    let work = move || {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(ms) {
            black_box(take)(mutex);
            // Who gives a mutex back and takes it at once leaves no time for others.
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let threads = [std::thread::spawn(work), std::thread::spawn(work)];
    for thread in threads {
        thread.join().unwrap();
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<&str>>()[..] {
        [path, ms] => {
            let mutex = Mutex::map(path, true);
            let me = std::env::current_exe().unwrap();
            let mut second = Command::new(me).args([path, ms, "second"]).spawn().unwrap();
            work(take_in_first, mutex, ms.parse().unwrap());
            assert!(second.wait().unwrap().success());
        }
        [path, ms, "second"] => work(take_in_second, Mutex::map(path, false), ms.parse().unwrap()),
        _ => {
            eprintln!("usage: shared PATH MS");
            std::process::exit(2);
        }
    }
}
