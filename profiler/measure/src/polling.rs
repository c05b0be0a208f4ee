//! Detects threads that poll for a file lock.
//!
//! Problem: databases such as `SQLite` lock their file with `fcntl(F_SETLK)`, which does not block. If the
//! lock is taken, they sleep for some milliseconds and retry. The kernel sees only that such a thread sleeps.
//!
//! Algorithm: a thread that sleeps for at most a second while its process has a file open that another
//! process has locked (/proc/locks) counts as waiting for that lock.
//!
//! Limits: a thread that has such a file open, but sleeps for another reason, is counted, too. Locks of open
//! file descriptions (OFD) have no process in /proc/locks and are ignored. A sample examines at most
//! [`EXAMINED_MAX`] threads, and [`FILES_MAX`] files of each.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use commonhold_live::host::clock;
use commonhold_scale::states::{Activity, State};

use crate::remote_memory;
use crate::thread_sample::{Blocked, ThreadSample};

const EXAMINED_MAX: usize = 16;
const FILES_MAX: usize = 256;
/// The longest sleep that counts as polling.
const SLEEP_MAX_S: i64 = 1;

/// A lock on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lock {
    pid: u32,
    /// Major and minor number of the file system's device, and the file's inode number.
    file: (u32, u32, u64),
}

/// State of one sample: `/proc/locks`, read on demand, and how many threads were examined.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    locks: Option<Vec<Lock>>,
    examined: usize,
}

impl Polls {
    /// Starts a sample.
    pub(crate) fn begin(&mut self) {
        *self = Polls::default();
    }

    /// The file whose lock a thread polls for, if it does.
    pub(crate) fn of(&mut self, pid: u32, sample: &ThreadSample) -> Option<String> {
        let blocked =
            sample.blocked.filter(|_| sample.reading.activity == Activity::Waiting(State::Sleep))?;
        let at = request(blocked)?;
        if self.examined >= EXAMINED_MAX {
            return None;
        }
        self.examined += 1;
        let read = || fs::read_to_string("/proc/locks").unwrap_or_default();
        let locks = self.locks.get_or_insert_with(|| read().lines().filter_map(parse).collect());
        if !locks.iter().any(|lock| lock.pid != pid) || !is_short(pid, at) {
            return None;
        }
        let is_locked = |path: &Path| {
            let Ok(metadata) = fs::metadata(path) else { return false };
            let device = metadata.dev();
            let file = (libc::major(device), libc::minor(device), metadata.ino());
            metadata.is_file() && locks.iter().any(|lock| lock.pid != pid && lock.file == file)
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let found = files.take(FILES_MAX).map(|entry| entry.path()).find(|path| is_locked(path))?;
        fs::canonicalize(found).ok().map(|path| path.display().to_string())
    }
}

/// The `timespec` of a sleep: its address, and the time in seconds that it counts from (0 if it is relative).
fn request(blocked: Blocked) -> Option<(u64, i64)> {
    const TIMER_ABSTIME: u64 = 1;
    let [first, second, third] = blocked.arguments;
    let seconds = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    match (blocked.call, i32::try_from(first)) {
        (libc::SYS_nanosleep, _) => Some((first, 0)),
        (libc::SYS_clock_nanosleep, _) if second & TIMER_ABSTIME == 0 => Some((third, 0)),
        // Until an absolute time: Python sleeps in this way.
        (libc::SYS_clock_nanosleep, Ok(libc::CLOCK_MONOTONIC)) => {
            Some((third, seconds(clock::now() / 1_000_000_000)))
        }
        (libc::SYS_clock_nanosleep, Ok(libc::CLOCK_REALTIME)) => {
            Some((third, seconds(clock::wall_ms() / 1_000)))
        }
        _ => None,
    }
}

/// Whether a sleep with this `timespec` ends within [`SLEEP_MAX_S`].
fn is_short(pid: u32, (at, from_s): (u64, i64)) -> bool {
    let mut seconds = [0; 8];
    let copied = remote_memory::copy(pid, at, &mut seconds);
    let remaining_s = i64::from_ne_bytes(seconds).saturating_sub(from_s);
    copied.is_ok_and(|bytes| bytes == seconds.len()) && (-SLEEP_MAX_S..=SLEEP_MAX_S).contains(&remaining_s)
}

/// Parses a line such as `1: POSIX  ADVISORY  WRITE 1234 fd:01:131 0 EOF`. `None` for a waiting request, which has an arrow after
/// the number.
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
    use crate::thread_sample::sample;
    use commonhold_live::observe::process::ProcFs;

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
        let blocked = |call, arguments| Blocked { call, arguments, stack: 0, at: 0 };
        assert_eq!(request(blocked(libc::SYS_nanosleep, [7, 8, 9])), Some((7, 0)));
        assert_eq!(request(blocked(libc::SYS_clock_nanosleep, [1, 0, 9])), Some((9, 0)));
        let (at, from_s) = request(blocked(libc::SYS_clock_nanosleep, [1, 1, 9])).unwrap();
        assert!(at == 9 && from_s > 0);
        assert_eq!(request(blocked(libc::SYS_clock_nanosleep, [2, 1, 9])), None);
        assert_eq!(request(blocked(libc::SYS_futex, [1, 1, 9])), None);
    }

    #[test]
    fn a_short_sleep_with_a_file_open_that_another_process_has_locked_is_a_wait_for_it() {
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
                let found = sample(&mut procfs, pid, pid).unwrap().unwrap();
                if found.blocked.and_then(request).is_some() {
                    break Polls::default().of(pid, &found);
                }
                assert!(!found.ended && begun.elapsed() < std::time::Duration::from_secs(20), "it sleeps");
            };
            let _ = child.kill();
            child.wait().unwrap();
            found
        };
        assert_eq!(polled("1.9"), None, "nobody has locked it");
        // Not `fcntl`: that lock would go when the descriptor for the other process is closed here.
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(polled("1.9"), Some(path.canonicalize().unwrap().display().to_string()));
        assert_eq!(polled("60"), None, "it does not try again soon");
    }
}
