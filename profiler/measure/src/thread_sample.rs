//! One sample of a thread: what it does, and the kernel's counters for it.
//!
//! | the thread is in | it counts as |
//! | --- | --- |
//! | state R | running or runnable |
//! | state T or t | stopped |
//! | futex(2) | waiting for a lock; for a thread to end if the expected value is the TID of a thread of the process |
//! | wait4(2), waitid(2), vfork(2) | waiting for a process to end |
//! | flock(2), semop(2) and the like | waiting for a lock |
//! | state D, `wchan` is a function that waits for I/O, in a system call | waiting for a disk |
//! | state D, such a `wchan`, outside of system calls | waiting for a page that it touched (fault) |
//! | state D, `wchan` is a function that waits for time, a grace period or the freezer | sleeping |
//! | state D, any other `wchan` | waiting for a lock in the kernel |
//! | state D, `wchan` unknown | waiting for a page outside of system calls, else for a disk |
//! | fsync(2) and the like, `io_getevents(2)` | waiting for a disk |
//! | anything else | sleeping |
//!
//! The kernel omits its scheduler and the slow paths of its locks from `wchan` and `stack`. For a thread that
//! waits for a lock in the kernel, `wchan` is the function that takes the lock, such as `__vm_munmap`. So a
//! wait in a function that is in neither list below is for a lock. Waits for disks end in few functions on
//! all file systems (`DISK_WAITS`).
//!
//! /proc/PID/task/TID/syscall and `wchan` are readable for processes of the same user, except setuid
//! programs. If these files are not readable, state D counts as waiting for a disk and all other waits as
//! sleeping.

use commonhold_live::LiveError;
use commonhold_live::host::clock;
use commonhold_live::observe::process::ProcFs;
use commonhold_scale::states::{Activity, Counters, Reading, State};

use crate::machine_counters::parse_io;

/// One sample of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThreadSample {
    /// Its name.
    pub(crate) name: String,
    /// Start time, in clock ticks since boot.
    pub(crate) start: u64,
    /// Its activity, and the kernel's counters.
    pub(crate) reading: Reading,
    /// Whether it is a zombie: then its counters are final.
    pub(crate) ended: bool,
    /// Whether its `syscall` file could not be read.
    pub(crate) hidden: bool,
    /// Where it is blocked; `None` if it is not.
    pub(crate) blocked: Option<Blocked>,
}

/// Where a thread is blocked, from `/proc/PID/task/TID/syscall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// The system call, or -1, and its first three arguments.
    pub(crate) call: i64,
    pub(crate) arguments: [u64; 3],
    /// Stack pointer and instruction pointer in user mode.
    pub(crate) stack: u64,
    pub(crate) at: u64,
}

/// Samples a thread; `None` if it is gone.
pub(crate) fn sample(procfs: &mut ProcFs, pid: u32, tid: u32) -> Result<Option<ThreadSample>, LiveError> {
    let Some(stat) = procfs.read(&format!("{pid}/task/{tid}/stat"))?.and_then(parse_stat) else {
        return Ok(None);
    };
    let (mut activity, mut hidden, mut blocked) = (Activity::Runnable, false, None);
    match stat.state {
        b'R' | b'Z' | b'X' => {}
        b'T' | b't' => activity = Activity::Waiting(State::Stopped),
        state => {
            let text = procfs.read(&format!("{pid}/task/{tid}/syscall"))?;
            hidden = text.is_none();
            let call = text.map_or(Call::Unknown, parse_call);
            blocked = text.and_then(parse_blocked);
            if call != Call::Running {
                let is_joined = matches!(call, Call::In(_, [_, _, number])
                    if u32::try_from(number).is_ok_and(|other| other != tid && has_thread(procfs, pid, other)));
                let place = if state == b'D' { place(procfs, pid, tid)? } else { Place::Unknown };
                activity =
                    waits_for(state, call, is_joined, place).map_or(Activity::Runnable, Activity::Waiting);
            }
        }
    }
    // Read the clock right before the counters: the thread may run on between the two.
    let at_ns = clock::now();
    let Some(counts) = procfs.thread_schedstat(pid, tid)? else { return Ok(None) };
    let counters =
        Counters { ran_ns: counts.ran_ns, queued_ns: counts.waited_ns, user: stat.user, system: stat.system };
    let ended = matches!(stat.state, b'Z' | b'X');
    let Stat { name, start, .. } = stat;
    Ok(Some(ThreadSample {
        name,
        start,
        reading: Reading { at_ns, counters, activity },
        ended,
        hidden,
        blocked,
    }))
}

/// Where a thread is blocked now; `None` if it runs or is gone.
pub(crate) fn blocked(procfs: &mut ProcFs, pid: u32, tid: u32) -> Result<Option<Blocked>, LiveError> {
    Ok(procfs.read(&format!("{pid}/task/{tid}/syscall"))?.and_then(parse_blocked))
}

/// The memory mappings of a process, as `/proc/PID/maps` has them; `None` if it is gone.
pub(crate) fn maps(procfs: &mut ProcFs, pid: u32) -> Result<Option<String>, LiveError> {
    let text = procfs.read_lines(&format!("{pid}/maps"))?;
    Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
}

/// Bytes that a process and its reaped children read from disks, and wrote to disks; `None` if the process is
/// gone.
pub(crate) fn io_bytes(procfs: &mut ProcFs, pid: u32) -> Result<Option<(u64, u64)>, LiveError> {
    let text = procfs.read(&format!("{pid}/io"))?;
    Ok(text.and_then(|text| parse_io(&String::from_utf8_lossy(text))))
}

/// The path of the file behind a descriptor of a process.
pub(crate) fn open_file(procfs: &ProcFs, pid: u32, descriptor: u64) -> Option<String> {
    let link = std::fs::canonicalize(procfs.path().join(format!("{pid}/fd/{descriptor}")));
    link.ok().map(|path| path.display().to_string())
}

/// Whether `tid` is a thread of the process.
fn has_thread(procfs: &ProcFs, pid: u32, tid: u32) -> bool {
    tid != 0 && procfs.path().join(format!("{pid}/task/{tid}")).exists()
}

/// Classifies a thread in state D by its `wchan`.
fn place(procfs: &mut ProcFs, pid: u32, tid: u32) -> Result<Place, LiveError> {
    let text = procfs.read(&format!("{pid}/task/{tid}/wchan"))?;
    Ok(text.map_or(Place::Unknown, |text| Place::of(&String::from_utf8_lossy(text))))
}

/// What a thread in state D waits for, according to `wchan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing: the thread was woken before `wchan` was read.
    Woken,
    /// I/O, or a step that depends on I/O.
    Disk,
    /// Neither I/O nor a lock.
    Time,
    /// A lock in the kernel.
    Lock,
    /// `wchan` is empty or unreadable.
    Unknown,
}

/// Substrings of functions that wait for pages and buffers, requests, a journal, or writeback.
const DISK_WAITS: [&str; 37] = [
    "folio_wait",
    "wait_on_page",
    "wait_on_buffer",
    "lock_buffer",
    "folio_lock",
    "lock_page",
    "io_schedule",
    "blk_",
    "blkdev",
    "submit_bio",
    "bio_await",
    "dio_",
    "rq_qos",
    "wbt_wait",
    "ioc_rqos",
    "get_request",
    "balance_dirty",
    "jbd2",
    "wait_transaction",
    "start_this_handle",
    "get_write_access",
    "xfs_buf",
    "xlog_",
    "btrfs_wait",
    "nfs_wait",
    "rpc_wait",
    "request_wait_answer",
    "fuse_",
    "p9_client",
    "wait_for_response",
    "ceph_",
    "f2fs_wait",
    "wait_log_commit",
    "wait_on_inode",
    "inode_wait",
    "d_alloc_parallel",
    "d_wait_lookup",
];
/// Substrings of functions that wait for time, grace periods, work queues, the freezer, or memory reclaim.
const TIME_WAITS: [&str; 14] = [
    "wait_rcu_gp",
    "synchronize_",
    "rcu_barrier",
    "flush_work",
    "__flush",
    "wait_for_completion",
    "msleep",
    "usleep",
    "schedule_timeout",
    "refrigerator",
    "coredump",
    "do_exit",
    "kernel_clone",
    "reclaim",
];

impl Place {
    fn of(text: &str) -> Place {
        let name = text.trim();
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        match name {
            "" => Place::Unknown,
            "0" => Place::Woken,
            _ if has(&DISK_WAITS) => Place::Disk,
            _ if has(&TIME_WAITS) => Place::Time,
            _ => Place::Lock,
        }
    }
}

/// The group of a thread: its name with a trailing number replaced, so `worker-12` is in `worker-*`.
pub(crate) fn group(name: &str) -> String {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == name.len() || stem.is_empty() { name.to_owned() } else { format!("{stem}*") }
}

/// The fields of the `stat` file that are used here.
struct Stat {
    name: String,
    state: u8,
    user: u64,
    system: u64,
    start: u64,
}

/// A decimal number.
fn parse_number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses a `stat` file. The name is in parentheses, and may contain parentheses and blanks.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    let mut fields = text.get(close + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let (user, system) = (parse_number(fields.nth(10)?)?, parse_number(fields.next()?)?);
    Some(Stat { name, state, user, system, start: parse_number(fields.nth(6)?)? })
}

/// Where a thread is, according to `/proc/PID/task/TID/syscall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Running,
    /// Blocked outside of system calls: a page fault.
    None,
    /// In a system call: its number and first three arguments.
    In(i64, [u64; 3]),
    Unknown,
}

/// `running`, `-1 0x7ffc 0x7f30`, or `202 0x7f30 0x80 0x2 ...`.
fn parse_call(text: &[u8]) -> Call {
    let text = String::from_utf8_lossy(text);
    let mut words = text.split_whitespace();
    match words.next() {
        Some("running") => Call::Running,
        Some("-1") => Call::None,
        Some(number) => {
            let mut argument = || {
                let word = words.next().and_then(|word| word.strip_prefix("0x"));
                word.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
            };
            let arguments = [argument(), argument(), argument()];
            number.parse().map_or(Call::Unknown, |number| Call::In(number, arguments))
        }
        None => Call::Unknown,
    }
}

/// The system call and its arguments, and the last two words of that text: stack pointer and instruction
/// pointer. `None` for a running thread, whose text has no such words.
fn parse_blocked(text: &[u8]) -> Option<Blocked> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split_whitespace();
    let call = words.next()?.parse().ok()?;
    let numbers: Vec<u64> =
        words.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()).collect::<Option<_>>()?;
    let (arguments, [stack, at]) = numbers.split_last_chunk()?;
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    Some(Blocked { call, arguments: [argument(0), argument(1), argument(2)], stack: *stack, at: *at })
}

/// `linux/futex.h`: the operation is in the low bits. `FUTEX_WAITS` are the operations that wait.
const FUTEX_OPERATION: u64 = 127;
const FUTEX_PRIVATE: u64 = 128;
const FUTEX_WAITS: [u64; 5] = [0, 6, 9, 11, 13];
/// `futex_waitv(2)` and `futex_wait(2)`, whose numbers are the same on all architectures.
const FUTEX_NEWER: [i64; 2] = [449, 455];

/// The state of a waiting thread; `None` if it was woken during the sample. `joins`: the futex's value is the
/// TID of a thread of the process.
fn waits_for(state: u8, call: Call, joins: bool, place: Place) -> Option<State> {
    const JOINS: [i64; 4] = [libc::SYS_wait4, libc::SYS_waitid, libc::SYS_clone, libc::SYS_clone3];
    const LOCKS: [i64; 3] = [libc::SYS_flock, libc::SYS_semop, libc::SYS_semtimedop];
    const DISK: [i64; 5] = [
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_sync_file_range,
        libc::SYS_syncfs,
        libc::SYS_io_getevents,
    ];
    #[cfg(target_arch = "x86_64")]
    const VFORK: i64 = libc::SYS_vfork;
    #[cfg(not(target_arch = "x86_64"))]
    const VFORK: i64 = libc::SYS_clone;
    Some(match call {
        // glibc joins a thread by a non-private futex on the thread's TID, which the kernel clears when the
        // thread ends.
        Call::In(libc::SYS_futex, [_, operation, _])
            if FUTEX_WAITS.contains(&(operation & FUTEX_OPERATION)) =>
        {
            if joins && operation & FUTEX_PRIVATE == 0 { State::Join } else { State::Lock }
        }
        Call::In(number, _) if FUTEX_NEWER.contains(&number) || LOCKS.contains(&number) => State::Lock,
        Call::In(libc::SYS_fcntl, [_, command, _])
            if [libc::F_SETLKW, libc::F_OFD_SETLKW].iter().any(|c| u64::try_from(*c) == Ok(command)) =>
        {
            State::Lock
        }
        Call::In(number, _) if JOINS.contains(&number) || number == VFORK => State::Join,
        // For a process that may not be traced, `wchan` is always 0: trust it only if `syscall` was readable.
        _ if state == b'D' && place == Place::Woken && call != Call::Unknown => return None,
        // In these calls every wait counts as a wait for the disk, even one for a lock of the file system.
        Call::In(number, _) if DISK.contains(&number) => State::Io,
        _ if state == b'D' && place == Place::Lock => State::Lock,
        _ if state == b'D' && place == Place::Time => State::Sleep,
        Call::None if state == b'D' => State::Fault,
        _ if state == b'D' => State::Io,
        _ => State::Sleep,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A read returns at most a page of `maps`. The stack of each thread has two lines.
    #[test]
    fn a_long_list_of_mappings_is_read_completely() {
        let (end, all) = (std::sync::Barrier::new(81), 80);
        let maps = std::thread::scope(|scope| {
            (0..all).for_each(|_| drop(scope.spawn(|| end.wait())));
            let mut procfs = ProcFs::open(std::path::Path::new("/proc")).ok();
            let maps =
                procfs.as_mut().and_then(|procfs| super::maps(procfs, std::process::id()).ok().flatten());
            end.wait();
            maps.unwrap_or_default()
        });
        assert!(maps.len() > 8_192 && maps.contains("[stack]") && maps.ends_with('\n'), "{maps}");
    }

    #[test]
    fn what_a_wait_is_for() {
        let of = |state: u8, call: &str, joins: bool, place: &str| {
            waits_for(state, parse_call(call.as_bytes()), joins, Place::of(place))
        };
        let futex = libc::SYS_futex;
        // A glibc mutex; a condition variable; a joined thread; the same value in a private futex.
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x80 0x2 0x0"), false, ""), Some(State::Lock));
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x189 0x0 0x0"), false, ""), Some(State::Lock));
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x109 0x51 0x0"), true, ""), Some(State::Join));
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x189 0x51 0x0"), true, ""), Some(State::Lock));
        assert_eq!(of(b'S', &format!("{} 0xffff", libc::SYS_wait4), false, ""), Some(State::Join));
        assert_eq!(of(b'S', &format!("{} 0x3", libc::SYS_flock), false, ""), Some(State::Lock));
        assert_eq!(of(b'S', &format!("{} 0x3 0x7 0x0", libc::SYS_fcntl), false, ""), Some(State::Lock));
        assert_eq!(of(b'S', &format!("{} 0x3 0x3 0x0", libc::SYS_fcntl), false, ""), Some(State::Sleep));
        // The state tells whether a read waits for a disk or for a pipe.
        let read = format!("{} 0x3 0x7f01 0x1000", libc::SYS_read);
        assert_eq!(
            (of(b'D', &read, false, ""), of(b'S', &read, false, "")),
            (Some(State::Io), Some(State::Sleep))
        );
        let (mmap, fault) = (format!("{} 0x0", libc::SYS_mmap), "-1 0x7ffc 0x7f30");
        // A kernel lock is recognised by the function that takes it.
        assert_eq!(of(b'D', &mmap, false, "vm_mmap_pgoff"), Some(State::Lock));
        assert_eq!(of(b'D', fault, false, "lock_mm_and_find_vma"), Some(State::Lock));
        assert_eq!(of(b'D', &read, false, "ext4_buffered_write_iter"), Some(State::Lock));
        assert_eq!(of(b'D', &read, false, "folio_wait_bit_common"), Some(State::Io));
        assert_eq!(of(b'D', fault, false, "folio_wait_bit_common"), Some(State::Fault));
        assert_eq!(of(b'D', fault, false, ""), Some(State::Fault));
        assert_eq!(of(b'D', &mmap, false, "__wait_rcu_gp"), Some(State::Sleep));
        // Woken between two reads; without `syscall`, a 0 means nothing.
        assert_eq!((of(b'D', &mmap, false, "0"), of(b'D', "", false, "0")), (None, Some(State::Io)));
        assert_eq!(of(b'S', "", false, ""), Some(State::Sleep));
        assert_eq!(parse_call(b"running\n"), Call::Running);
    }

    #[test]
    fn threads_that_differ_in_a_trailing_number_are_one_group() {
        assert_eq!(group("worker-12"), "worker-*");
        assert_eq!((group("make").as_str(), group("42").as_str()), ("make", "42"));
    }

    #[test]
    fn where_a_thread_is_blocked() {
        let blocked = |text: &str| parse_blocked(text.as_bytes());
        let asleep = Blocked { call: 202, arguments: [0x7f01, 0x80, 2], stack: 0x7ffc, at: 0x7f30 };
        assert_eq!(blocked("202 0x7f01 0x80 0x2 0x0 0x0 0x0 0x7ffc 0x7f30\n"), Some(asleep));
        let faults = Blocked { call: -1, arguments: [0; 3], stack: 0x7ffc, at: 0x7f30 };
        assert_eq!(blocked("-1 0x7ffc 0x7f30\n"), Some(faults));
        assert_eq!((blocked("running\n"), blocked(""), blocked("202 0x1")), (None, None, None));
    }

    #[test]
    fn this_thread_runs_and_one_that_waits_for_it_joins_or_locks() {
        use std::sync::{Arc, Mutex};
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&lock);
        let waiting = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            drop(theirs.lock());
        });
        let me = std::process::id();
        let tid = u32::try_from(told.recv().unwrap()).unwrap();
        let mut procfs = ProcFs::open(std::path::Path::new("/proc")).unwrap();
        let own = u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap();
        let moment = sample(&mut procfs, me, own).unwrap().unwrap();
        assert!(
            moment.reading.activity == Activity::Runnable && !moment.ended && !moment.hidden,
            "{moment:?}"
        );
        let mut activity = Activity::Runnable;
        for _ in 0..1_000 {
            activity = sample(&mut procfs, me, tid).unwrap().unwrap().reading.activity;
            if activity == Activity::Waiting(State::Lock) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(activity, Activity::Waiting(State::Lock));
        drop(held);
        waiting.join().unwrap();
        assert_eq!(sample(&mut procfs, me, u32::MAX).unwrap(), None);
    }

    /// Threads that map, touch and unmap memory contend for `mmap_lock`; this must count as lock, not as disk
    /// or fault.
    #[test]
    fn waits_for_the_lock_of_a_processs_memory_are_waits_for_a_lock() {
        use std::sync::atomic::{AtomicBool, Ordering};
        const BYTES: usize = 1 << 20;
        let stop = AtomicBool::new(false);
        let churn = || {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: a new mapping, at an address of the kernel's choice, that nothing else refers to.
                unsafe {
                    let (rights, kind) = (
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                    );
                    let at = libc::mmap(std::ptr::null_mut(), BYTES, rights, kind, -1, 0);
                    if at != libc::MAP_FAILED {
                        libc::munmap(at, BYTES);
                    }
                }
            }
        };
        let mut procfs = ProcFs::open(std::path::Path::new("/proc")).unwrap();
        let (pid, mut tids) = (std::process::id(), Vec::new());
        let (mut locks, mut others) = (0, std::collections::BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..6 {
                std::thread::Builder::new().name("churn".to_owned()).spawn_scoped(scope, churn).unwrap();
            }
            let begun = std::time::Instant::now();
            while locks < 20 && begun.elapsed() < std::time::Duration::from_secs(60) {
                assert!(procfs.threads(pid, &mut tids).unwrap());
                for tid in &tids {
                    let Some(moment) = sample(&mut procfs, pid, *tid).unwrap() else { continue };
                    match (moment.name.as_str(), moment.reading.activity) {
                        ("churn", Activity::Waiting(State::Lock)) => locks += 1,
                        ("churn", Activity::Waiting(state)) => *others.entry(state).or_insert(0) += 1,
                        _ => {}
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(locks >= 20, "{locks}, and {others:?}");
        // Memory pressure may cause a few other waits.
        assert!(others.values().sum::<i32>() * 10 <= locks, "{locks}, and {others:?}");
    }
}
