//! What a thread does at one moment, and what was counted for it until then.
//!
//! | seen | it is |
//! | --- | --- |
//! | state R | ready or running |
//! | T, t | stopped |
//! | in futex(2) | a lock; or a thread of the same process that is to end, if the value waited for is its number |
//! | in wait4(2), waitid(2), vfork(2) | a process that is to end |
//! | in flock(2), semop(2) and the like | a lock |
//! | state D, in a function of the kernel's that waits for a disk (`wchan`), in a system call | a disk |
//! | the same in no system call | a page that it touched |
//! | state D, in a function that waits for time, a grace period or the freezer | sleep |
//! | state D, in any other function of the kernel's | a lock of the kernel's |
//! | state D, and nothing tells where: in no system call; otherwise | a page; a disk |
//! | in fsync(2) and the like; in `io_getevents(2)` | a disk |
//! | anything else | sleep |
//!
//! The kernel leaves its scheduler and the slow paths of its locks out of `wchan` and of `stack`. Of a thread that waits for a
//! lock they show the function that takes it, such as `__vm_munmap`: so a lock is what no other wait is known by. Waits for
//! disks end in few functions, whatever the file system (`DISK_WAITS`).
//!
//! /proc/PID/task/TID/syscall and `wchan` can be read of one's own processes, setuid programs aside. Where they cannot, waits
//! of state D are for a disk, and all others sleep.

use commonhold_scale::states::{Counted, Look, Seen, State as Doing};

use super::super::machine_counts::parse_io;
use super::{ProcFs, parse_number};
use crate::LiveError;
use crate::host::clock;

/// A thread at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Its name.
    pub(crate) name: String,
    /// When it began, in clock ticks since boot.
    pub(crate) start: u64,
    /// What it does, and what was counted.
    pub(crate) look: Look,
    /// It has ended, and its counts are final.
    pub(crate) ended: bool,
    /// What it waits for could not be read.
    pub(crate) hidden: bool,
    /// Where it sleeps.
    pub(crate) spot: Option<Spot>,
}

/// What tells where a thread runs, and whether it wants to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnCpu {
    /// Running, or ready to.
    pub(crate) is_runnable: bool,
    /// CPU time so far, in clock ticks.
    pub(crate) ticks: u64,
    /// The CPU that it is on, or was on last.
    pub(crate) cpu: u32,
}

/// Where a thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The system call, or -1, and its first three arguments.
    pub(crate) call: i64,
    pub(crate) arguments: [u64; 3],
    /// Where its stack ends, and where it is in the program.
    pub(crate) stack: u64,
    pub(crate) at: u64,
}

impl ProcFs {
    /// Looks at a thread; `None` if it is gone.
    pub(crate) fn doing(&mut self, pid: u32, tid: u32) -> Result<Option<Moment>, LiveError> {
        let Some(short) = self.read(&format!("{pid}/task/{tid}/stat"))?.and_then(parse_short) else {
            return Ok(None);
        };
        let (mut seen, mut hidden, mut spot) = (Seen::Ready, false, None);
        match short.state {
            b'R' | b'Z' | b'X' => {}
            b'T' | b't' => seen = Seen::Waits(Doing::Stopped),
            state => {
                let text = self.read(&format!("{pid}/task/{tid}/syscall"))?;
                hidden = text.is_none();
                let call = text.map_or(Call::Unknown, parse_call);
                spot = text.and_then(parse_spot);
                if call != Call::Running {
                    let is_joined = matches!(call, Call::In(_, [_, _, number])
                        if u32::try_from(number).is_ok_and(|other| other != tid && self.has(pid, other)));
                    let place = if state == b'D' { self.place(pid, tid)? } else { Place::Unknown };
                    seen = waits_for(state, call, is_joined, place).map_or(Seen::Ready, Seen::Waits);
                }
            }
        }
        // The clock next to the counts: between the two, a thread may run on.
        let at_ns = clock::now();
        let Some(counts) = self.thread_schedstat(pid, tid)? else { return Ok(None) };
        let counted = Counted {
            ran_ns: counts.ran_ns,
            queued_ns: counts.waited_ns,
            user: short.user,
            system: short.system,
        };
        let ended = matches!(short.state, b'Z' | b'X');
        let Short { name, start, .. } = short;
        Ok(Some(Moment { name, start, look: Look { at_ns, counted, seen }, ended, hidden, spot }))
    }

    /// Whether a thread is runnable, its CPU time in the kernel's ticks, and the CPU that it ran on last; `None` if it is gone.
    pub(crate) fn on_cpu(&mut self, pid: u32, tid: u32) -> Result<Option<OnCpu>, LiveError> {
        Ok(self.read(&format!("{pid}/task/{tid}/stat"))?.and_then(parse_on_cpu))
    }

    /// Bytes of a process's memory by node number, as `/proc/PID/numa_maps` has them; `None` if it is gone, or the kernel
    /// does not tell.
    pub(crate) fn by_node(&mut self, pid: u32) -> Result<Option<Vec<(u32, u64)>>, LiveError> {
        Ok(self.read_lines(&format!("{pid}/numa_maps"))?.map(parse_by_node))
    }

    /// Where a thread sleeps; `None` if it does not, or is gone.
    pub(crate) fn spot(&mut self, pid: u32, tid: u32) -> Result<Option<Spot>, LiveError> {
        Ok(self.read(&format!("{pid}/task/{tid}/syscall"))?.and_then(parse_spot))
    }

    /// What is mapped in a process; `None` if it is gone.
    pub(crate) fn maps(&mut self, pid: u32) -> Result<Option<String>, LiveError> {
        let text = self.read_lines(&format!("{pid}/maps"))?;
        Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
    }

    /// Bytes that a process read from disks and wrote to them, and its children that it waited for; `None` if it is gone.
    pub(crate) fn io_bytes(&mut self, pid: u32) -> Result<Option<(u64, u64)>, LiveError> {
        let text = self.read(&format!("{pid}/io"))?;
        Ok(text.and_then(|text| parse_io(&String::from_utf8_lossy(text))))
    }

    /// The file behind a descriptor of a process's, as the kernel names it.
    pub(crate) fn open_file(&self, pid: u32, descriptor: u64) -> Option<String> {
        let link = crate::host::canonical(&self.dir.path().join(format!("{pid}/fd/{descriptor}")));
        link.ok().map(|path| path.display().to_string())
    }

    /// Whether a process has a thread of that number.
    fn has(&self, pid: u32, tid: u32) -> bool {
        tid != 0 && self.dir.id(&format!("{pid}/task/{tid}")).is_ok()
    }

    /// Where in the kernel a thread waits.
    fn place(&mut self, pid: u32, tid: u32) -> Result<Place, LiveError> {
        let text = self.read(&format!("{pid}/task/{tid}/wchan"))?;
        Ok(text.map_or(Place::Unknown, |text| Place::of(&String::from_utf8_lossy(text))))
    }
}

/// What a thread in state D waits for, by the function of the kernel's that it waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In none: it was woken meanwhile.
    Woken,
    /// A disk, or what a disk is to finish.
    Disk,
    /// Neither a disk nor a lock.
    Time,
    /// A lock: there is no other wait in that function.
    Lock,
    /// Nothing tells.
    Unknown,
}

/// Parts of names: waits for pages and buffers, for requests and room for them, for a journal, for pages to be written.
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
    /// Of what `wchan` says.
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

/// Threads that differ in a number at the end of their names are of one group: `worker-12` is `worker-*`.
pub(crate) fn group(name: &str) -> String {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == name.len() || stem.is_empty() { name.to_owned() } else { format!("{stem}*") }
}

/// What is read of `stat` here.
struct Short {
    name: String,
    state: u8,
    user: u64,
    system: u64,
    start: u64,
}

fn parse_short(text: &[u8]) -> Option<Short> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    let mut fields = text.get(close + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let (user, system) = (parse_number(fields.nth(10)?)?, parse_number(fields.next()?)?);
    Some(Short { name, state, user, system, start: parse_number(fields.nth(6)?)? })
}

/// Where /proc/PID/task/TID/syscall finds a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Running,
    /// Not in a system call: it touched a page.
    None,
    /// The call's number, and its first three arguments.
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

/// The same text: the last two words are the stack pointer and the place. A thread that runs has none.
fn parse_spot(text: &[u8]) -> Option<Spot> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split_whitespace();
    let call = words.next()?.parse().ok()?;
    let numbers: Vec<u64> =
        words.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()).collect::<Option<_>>()?;
    let (arguments, [stack, at]) = numbers.split_last_chunk()?;
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    Some(Spot { call, arguments: [argument(0), argument(1), argument(2)], stack: *stack, at: *at })
}

/// `linux/futex.h`: the operation is in the low bits; those that wait.
const FUTEX_OPERATION: u64 = 127;
const FUTEX_PRIVATE: u64 = 128;
const FUTEX_WAITS: [u64; 5] = [0, 6, 9, 11, 13];
/// `futex_waitv(2)` and `futex_wait(2)`, which have the same numbers everywhere.
const FUTEX_NEWER: [i64; 2] = [449, 455];

/// What it waits for; none if it does not any more.
fn waits_for(state: u8, call: Call, joins: bool, place: Place) -> Option<Doing> {
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
        // glibc joins a thread by its number, which the kernel clears when it ends, and wakes those who share the page.
        Call::In(libc::SYS_futex, [_, operation, _])
            if FUTEX_WAITS.contains(&(operation & FUTEX_OPERATION)) =>
        {
            if joins && operation & FUTEX_PRIVATE == 0 { Doing::Join } else { Doing::Lock }
        }
        Call::In(number, _) if FUTEX_NEWER.contains(&number) || LOCKS.contains(&number) => Doing::Lock,
        Call::In(libc::SYS_fcntl, [_, command, _])
            if [libc::F_SETLKW, libc::F_OFD_SETLKW].iter().any(|c| u64::try_from(*c) == Ok(command)) =>
        {
            Doing::Lock
        }
        Call::In(number, _) if JOINS.contains(&number) || number == VFORK => Doing::Join,
        // Of a thread that is not to be watched, nothing is told but a 0.
        _ if state == b'D' && place == Place::Woken && call != Call::Unknown => return None,
        // Whatever a file system waits for in these.
        Call::In(number, _) if DISK.contains(&number) => Doing::Io,
        _ if state == b'D' && place == Place::Lock => Doing::Lock,
        _ if state == b'D' && place == Place::Time => Doing::Sleep,
        Call::None if state == b'D' => Doing::Fault,
        _ if state == b'D' => Doing::Io,
        _ => Doing::Sleep,
    })
}

/// Fields 3, 14, 15 and 39 of /proc/PID/task/TID/stat; the name before them may hold anything.
fn parse_on_cpu(text: &[u8]) -> Option<OnCpu> {
    let after = text.iter().rposition(|byte| *byte == b')')? + 1;
    let fields: Vec<&[u8]> =
        text[after..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
    let number = |field: usize| std::str::from_utf8(fields.get(field - 3)?).ok()?.parse::<u64>().ok();
    Some(OnCpu {
        is_runnable: *fields.first()? == b"R",
        ticks: number(14)? + number(15)?,
        cpu: u32::try_from(number(39)?).ok()?,
    })
}

/// Lines like `7f00 default anon=300 dirty=300 N0=200 N2=100 kernelpagesize_kB=4`.
fn parse_by_node(text: &[u8]) -> Vec<(u32, u64)> {
    let mut nodes: std::collections::BTreeMap<u32, u64> = std::collections::BTreeMap::new();
    for line in String::from_utf8_lossy(text).lines() {
        let page_kib = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok())
            .unwrap_or(4);
        for word in line.split_whitespace() {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|word| word.split_once('=')) else {
                continue;
            };
            if let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>()) {
                *nodes.entry(node).or_default() += pages.saturating_mul(page_kib).saturating_mul(1024);
            }
        }
    }
    nodes.into_iter().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn where_a_thread_runs() {
        let text = b"12 (a) R b) R 1 2 3 0 -1 64 0 0 0 0 150 25 0 0 20 0 1 0 99 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 0\n";
        assert_eq!(parse_on_cpu(text), Some(OnCpu { is_runnable: true, ticks: 175, cpu: 5 }));
        assert_eq!(parse_on_cpu(b"12 (a) R 1 2"), None);
    }

    /// The kernel hands out such a file a page at a time. Each thread's stack has two lines.
    #[test]
    fn a_long_list_of_what_is_mapped_is_read_whole() {
        let (end, all) = (std::sync::Barrier::new(81), 80);
        let maps = std::thread::scope(|scope| {
            (0..all).for_each(|_| drop(scope.spawn(|| end.wait())));
            let mut procfs = ProcFs::open(std::path::Path::new("/proc")).ok();
            let maps = procfs.as_mut().and_then(|procfs| procfs.maps(std::process::id()).ok().flatten());
            end.wait();
            maps.unwrap_or_default()
        });
        assert!(maps.len() > 12_000 && maps.contains("[stack]") && maps.ends_with('\n'), "{maps}");
    }

    #[test]
    fn pages_by_node() {
        let text = b"7f00 default anon=300 N0=200 N2=100 kernelpagesize_kB=4\n7f01 default file=/N1=3 N2=1 kernelpagesize_kB=2048\n";
        assert_eq!(parse_by_node(text), [(0, 200 << 12), (2, (100 << 12) + (2 << 20))]);
    }

    #[test]
    fn what_a_wait_is_for() {
        let of = |state: u8, call: &str, joins: bool, place: &str| {
            waits_for(state, parse_call(call.as_bytes()), joins, Place::of(place))
        };
        let futex = libc::SYS_futex;
        // A lock of glibc's; a condition; a thread that is joined; the same number in a lock of one's own.
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x80 0x2 0x0"), false, ""), Some(Doing::Lock));
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x189 0x0 0x0"), false, ""), Some(Doing::Lock));
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x109 0x51 0x0"), true, ""), Some(Doing::Join));
        assert_eq!(of(b'S', &format!("{futex} 0x7f01 0x189 0x51 0x0"), true, ""), Some(Doing::Lock));
        assert_eq!(of(b'S', &format!("{} 0xffff", libc::SYS_wait4), false, ""), Some(Doing::Join));
        assert_eq!(of(b'S', &format!("{} 0x3", libc::SYS_flock), false, ""), Some(Doing::Lock));
        assert_eq!(of(b'S', &format!("{} 0x3 0x7 0x0", libc::SYS_fcntl), false, ""), Some(Doing::Lock));
        assert_eq!(of(b'S', &format!("{} 0x3 0x3 0x0", libc::SYS_fcntl), false, ""), Some(Doing::Sleep));
        // The same call waits for a disk or for a pipe, by the state.
        let read = format!("{} 0x3 0x7f01 0x1000", libc::SYS_read);
        assert_eq!(
            (of(b'D', &read, false, ""), of(b'S', &read, false, "")),
            (Some(Doing::Io), Some(Doing::Sleep))
        );
        let (mmap, fault) = (format!("{} 0x0", libc::SYS_mmap), "-1 0x7ffc 0x7f30");
        // Locks have no names here but those of the functions that take them.
        assert_eq!(of(b'D', &mmap, false, "vm_mmap_pgoff"), Some(Doing::Lock));
        assert_eq!(of(b'D', fault, false, "lock_mm_and_find_vma"), Some(Doing::Lock));
        assert_eq!(of(b'D', &read, false, "ext4_buffered_write_iter"), Some(Doing::Lock));
        assert_eq!(of(b'D', &read, false, "folio_wait_bit_common"), Some(Doing::Io));
        assert_eq!(of(b'D', fault, false, "folio_wait_bit_common"), Some(Doing::Fault));
        assert_eq!(of(b'D', fault, false, ""), Some(Doing::Fault));
        assert_eq!(of(b'D', &mmap, false, "__wait_rcu_gp"), Some(Doing::Sleep));
        // Woken between two readings; and of a program that hides all, a 0 says nothing.
        assert_eq!((of(b'D', &mmap, false, "0"), of(b'D', "", false, "0")), (None, Some(Doing::Io)));
        assert_eq!(of(b'S', "", false, ""), Some(Doing::Sleep));
        assert_eq!(parse_call(b"running\n"), Call::Running);
    }

    #[test]
    fn threads_are_grouped_by_what_their_names_have_in_common() {
        assert_eq!(group("worker-12"), "worker-*");
        assert_eq!((group("make").as_str(), group("42").as_str()), ("make", "42"));
    }

    #[test]
    fn where_a_thread_sleeps() {
        let spot = |text: &str| parse_spot(text.as_bytes());
        let asleep = Spot { call: 202, arguments: [0x7f01, 0x80, 2], stack: 0x7ffc, at: 0x7f30 };
        assert_eq!(spot("202 0x7f01 0x80 0x2 0x0 0x0 0x0 0x7ffc 0x7f30\n"), Some(asleep));
        let faults = Spot { call: -1, arguments: [0; 3], stack: 0x7ffc, at: 0x7f30 };
        assert_eq!(spot("-1 0x7ffc 0x7f30\n"), Some(faults));
        assert_eq!((spot("running\n"), spot(""), spot("202 0x1")), (None, None, None));
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
        let moment = procfs.doing(me, own).unwrap().unwrap();
        assert!(moment.look.seen == Seen::Ready && !moment.ended && !moment.hidden, "{moment:?}");
        let mut seen = Seen::Ready;
        for _ in 0..1_000 {
            seen = procfs.doing(me, tid).unwrap().unwrap().look.seen;
            if seen == Seen::Waits(Doing::Lock) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(seen, Seen::Waits(Doing::Lock));
        drop(held);
        waiting.join().unwrap();
        assert_eq!(procfs.doing(me, u32::MAX).unwrap(), None);
    }

    /// Threads of this process map memory, touch it and give it back, and so wait for its lock: for no disk, and for no page.
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
                    let Some(moment) = procfs.doing(pid, *tid).unwrap() else { continue };
                    match (moment.name.as_str(), moment.look.seen) {
                        ("churn", Seen::Waits(Doing::Lock)) => locks += 1,
                        ("churn", Seen::Waits(state)) => *others.entry(state).or_insert(0) += 1,
                        _ => {}
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(locks >= 20, "{locks}, and {others:?}");
        // The machine's own memory may be short for a moment.
        assert!(others.values().sum::<i32>() * 10 <= locks, "{locks}, and {others:?}");
    }
}
