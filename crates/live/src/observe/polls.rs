//! Threads that poll for a file lock: they sleep between two attempts to take it.
//!
//! Problem: a database that several processes use is locked with `fcntl(F_SETLK)`, which does not wait. A program that does not
//! get the lock sleeps for some milliseconds and tries again, as `SQLite` does. To the kernel, this is a sleep and not a wait
//! for a lock.
//!
//! Algorithm: a thread that sleeps for at most a second, while its process has a file open that another process has locked
//! according to /proc/locks, waits for that lock.
//!
//! Limits: a thread that sleeps for another reason while such a file is open counts, too. Locks of open file descriptions
//! (OFD) have no process there, and are left out. A sample examines at most [`ASKED_MAX`] threads, and [`FILES_MAX`] files of
//! each.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use commonhold_scale::states::{Seen, State};

use super::process::{Moment, Spot};
use crate::host::{clock, copy, list, look, read_to_string};

const ASKED_MAX: usize = 16;
const FILES_MAX: usize = 256;
/// The longest sleep between two tries.
const SLEEP_MAX_S: i64 = 1;

/// A lock on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lock {
    pid: u32,
    /// Major and minor number of the file system's device, and the file there.
    file: (u32, u32, u64),
}

/// The state of one sample.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    locks: Option<Vec<Lock>>,
    asked: usize,
}

impl Polls {
    /// Begins a sample.
    pub(crate) fn begin(&mut self) {
        *self = Polls::default();
    }

    /// The file for whose lock a thread polls.
    pub(crate) fn of(&mut self, pid: u32, moment: &Moment) -> Option<String> {
        let spot = moment.spot.filter(|_| moment.look.seen == Seen::Waits(State::Sleep))?;
        let sleep = request(spot)?;
        if self.asked >= ASKED_MAX {
            return None;
        }
        self.asked += 1;
        let read = || read_to_string(Path::new("/proc/locks")).unwrap_or_default();
        let locks = self.locks.get_or_insert_with(|| read().lines().filter_map(parse).collect());
        if !locks.iter().any(|lock| lock.pid != pid) || !is_short(pid, sleep) {
            return None;
        }
        let is_locked = |path: &Path| {
            let Ok(metadata) = look(path) else { return false };
            let device = metadata.dev();
            let file = (libc::major(device), libc::minor(device), metadata.ino());
            metadata.is_file() && locks.iter().any(|lock| lock.pid != pid && lock.file == file)
        };
        // Descriptors may be closed meanwhile.
        let files = list(Path::new(&format!("/proc/{pid}/fd"))).unwrap_or_default();
        let found = files.iter().take(FILES_MAX).find(|entry| is_locked(&entry.path))?;
        crate::host::canonical(&found.path).ok().map(|path| path.display().to_string())
    }
}

/// A sleeping thread's request: the address of its `timespec`, and the time in seconds from which that counts (0 if it is
/// relative).
fn request(spot: Spot) -> Option<(u64, i64)> {
    const TIMER_ABSTIME: u64 = 1;
    let [first, second, third] = spot.arguments;
    let seconds = |s: u64| i64::try_from(s).unwrap_or(i64::MAX);
    match (spot.call, i32::try_from(first)) {
        (libc::SYS_nanosleep, _) => Some((first, 0)),
        (libc::SYS_clock_nanosleep, _) if second & TIMER_ABSTIME == 0 => Some((third, 0)),
        // An absolute time, as Python uses.
        (libc::SYS_clock_nanosleep, Ok(libc::CLOCK_MONOTONIC)) => {
            Some((third, seconds(clock::now() / 1_000_000_000)))
        }
        (libc::SYS_clock_nanosleep, Ok(libc::CLOCK_REALTIME)) => {
            Some((third, seconds(clock::wall_ms() / 1_000)))
        }
        _ => None,
    }
}

fn is_short(pid: u32, (at, from_s): (u64, i64)) -> bool {
    let mut seconds = [0; 8];
    let copied = copy::memory(pid, at, &mut seconds);
    let left_s = i64::from_ne_bytes(seconds).saturating_sub(from_s);
    copied.is_ok_and(|bytes| bytes == seconds.len()) && (-SLEEP_MAX_S..=SLEEP_MAX_S).contains(&left_s)
}

/// `1: POSIX  ADVISORY  WRITE 1234 fd:01:131 0 EOF`. Waiters have an arrow behind the first number, and are left out.
fn parse(line: &str) -> Option<Lock> {
    let mut words = line.split_whitespace().skip(1);
    let kind = words.next().filter(|kind| *kind != "->")?;
    let _ = (kind, words.next()?, words.next()?);
    let pid = words.next()?.parse().ok()?;
    let mut file = words.next()?.split(':');
    let mut number = || u32::from_str_radix(file.next()?, 16).ok();
    let (major, minor) = (number()?, number()?);
    Some(Lock { pid, file: (major, minor, file.next()?.parse().ok()?) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::process::ProcFs;

    #[test]
    fn lines_of_locks() {
        let lock = Lock { pid: 1234, file: (0xfd, 1, 131) };
        assert_eq!(parse("1: POSIX  ADVISORY  WRITE 1234 fd:01:131 0 EOF"), Some(lock));
        assert_eq!(parse("1: -> POSIX  ADVISORY  WRITE 99 fd:01:131 0 EOF"), None);
        assert_eq!(parse("2: OFDLCK ADVISORY  READ -1 fd:01:131 0 EOF"), None);
        assert_eq!(parse("short"), None);
    }

    #[test]
    fn sleeps_for_a_time_and_until_a_time() {
        let spot = |call, arguments| Spot { call, arguments, stack: 0, at: 0 };
        assert_eq!(request(spot(libc::SYS_nanosleep, [7, 8, 9])), Some((7, 0)));
        assert_eq!(request(spot(libc::SYS_clock_nanosleep, [1, 0, 9])), Some((9, 0)));
        let (at, from_s) = request(spot(libc::SYS_clock_nanosleep, [1, 1, 9])).unwrap();
        assert!(at == 9 && from_s > 0);
        assert_eq!(request(spot(libc::SYS_clock_nanosleep, [2, 1, 9])), None);
        assert_eq!(request(spot(libc::SYS_futex, [1, 1, 9])), None);
    }

    #[test]
    fn who_sleeps_with_a_file_open_that_another_has_locked_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let file = std::fs::File::create(&path).unwrap();
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut polled = |seconds: &str| {
            let open = std::fs::File::open(&path).unwrap();
            let mut child = std::process::Command::new("sleep").arg(seconds).stdin(open).spawn().unwrap();
            let pid = child.id();
            let begun = std::time::Instant::now();
            let found = loop {
                let moment = procfs.doing(pid, pid).unwrap().unwrap();
                if moment.spot.and_then(request).is_some() {
                    break Polls::default().of(pid, &moment);
                }
                assert!(!moment.ended && begun.elapsed() < std::time::Duration::from_secs(20), "it sleeps");
            };
            let _ = child.kill();
            child.wait().unwrap();
            found
        };
        assert_eq!(polled("1.9"), None, "no process has locked it");
        // Not `fcntl`: that lock would go when the descriptor for the other process is closed here.
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(polled("1.9"), Some(path.canonicalize().unwrap().display().to_string()));
        assert_eq!(polled("60"), None, "it does not try again soon");
    }
}
