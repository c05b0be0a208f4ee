//! A program that takes a mutex in code that it made itself while it ran (x86-64), to see whether `commonhold
//! scale` names it.
//!
//! usage: jit MS HOW
//!
//! Three threads take the mutex for MS milliseconds. HOW is what the program leaves at /tmp/perf-PID.map,
//! whose path it prints: `none`: nothing. `map`: the names of its code, as compilers at run time do. `fifo`:
//! a FIFO without a writer.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, unsafe_code, reason = "a program to be looked at")]

use std::cell::UnsafeCell;
use std::time::{Duration, Instant};

/// A mutex of the C library's.
struct Foreign(UnsafeCell<libc::pthread_mutex_t>);
// SAFETY: the C library's functions are called on it from any thread, which it is for.
unsafe impl Sync for Foreign {}

static MUTEX: Foreign = Foreign(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

type Take = extern "C" fn(*mut libc::pthread_mutex_t) -> i32;

/// Makes a function that calls `pthread_mutex_lock`; where it is, and how long.
fn make() -> (Take, usize, usize) {
    let lock = libc::pthread_mutex_lock as *const () as u64;
    // push %rbp; mov %rsp,%rbp; movabs $lock,%rax; call *%rax; pop %rbp; ret
    let code =
        [&[0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8][..], &lock.to_le_bytes(), &[0xff, 0xd0, 0x5d, 0xc3]].concat();
    // SAFETY: a new mapping, large enough for the code, which keeps to the calling convention of its type.
    unsafe {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let at = libc::mmap(std::ptr::null_mut(), 4096, all, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(code.as_ptr(), at.cast::<u8>(), code.len());
        (std::mem::transmute::<*mut libc::c_void, Take>(at), at as usize, code.len())
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [ms, how] = &words[..] else {
        eprintln!("usage: jit MS none|map|fifo");
        std::process::exit(2);
    };
    let ms = Duration::from_millis(ms.parse().unwrap());
    let (take, at, length) = make();
    let path = format!("/tmp/perf-{}.map", std::process::id());
    println!("{path}");
    match how.as_str() {
        "map" => std::fs::write(&path, format!("1000 10 elsewhere\n{at:x} {length:x} take_in_made code\n"))
            .unwrap(),
        "fifo" => {
            let path = std::ffi::CString::new(path).unwrap();
            // SAFETY: the path ends with a zero.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        }
        _ => {}
    }
    let work = move || {
        let begun = Instant::now();
        while begun.elapsed() < ms {
            take(MUTEX.0.get());
            std::thread::sleep(Duration::from_millis(3));
            // SAFETY: this thread took it.
            unsafe { libc::pthread_mutex_unlock(MUTEX.0.get()) };
        }
    };
    let threads = [(); 3].map(|()| std::thread::spawn(work));
    for thread in threads {
        thread.join().unwrap();
    }
}
