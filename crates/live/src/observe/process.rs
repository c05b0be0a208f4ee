//! Processes and threads as /proc shows them.
//!
//! All reads go through one directory descriptor and one buffer. A process may end between any two calls.
//! Then its files are missing (`ENOENT`) or can no longer be read (`ESRCH`), and the answer is `None`, not an
//! error. A process that /proc hides from this user (mount option `hidepid`) also gives `None`. All other
//! failures are this program's own, such as too many open files. They are errors, so that no caller mistakes
//! them for an exit.

mod locality;
mod stopped;
mod usage;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use commonhold_policy::Time;
use rustix::io::Errno;

use crate::host::autogroup::Autogroup;
use crate::host::{Dir, File, Pinned, clock};
use crate::{LiveError, MORE_FILES};

pub use usage::{Resident, SchedStat, Transferred};

/// Identifies a process, and distinguishes it from any later process with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ProcessKey {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of /proc/PID/stat.
    pub start: u64,
}

impl ProcessKey {
    /// Whether the process may have started after this moment of the daemon's clock. "May", since its start
    /// is known only to a tick of 10 ms.
    pub fn may_be_younger_than(self, moment: Time) -> bool {
        const TICK_NS: Time = 10_000_000;
        clock::of_ticks(self.start).saturating_add(TICK_NS) >= moment
    }
}

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadState {
    /// Running or runnable: it wants a CPU (`R`).
    Runnable,
    /// Stopped by a signal (`T`).
    Stopped,
    /// Stopped by a debugger (`t`).
    Traced,
    /// Ended and not yet waited for (`Z`, `X`).
    Ended,
    /// In uninterruptible sleep, such as waiting for a disk (`D`).
    Blocked,
    /// Anything else: asleep.
    Asleep,
}

/// The contents of /proc/PID/stat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The process.
    pub key: ProcessKey,
    /// The kernel's name of the program, cut to 15 bytes.
    pub comm: String,
    /// State of its first thread.
    pub state: ThreadState,
    /// Its parent; 0 if it has none.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// Whether it is a kernel thread.
    pub kernel_thread: bool,
    /// Number of threads.
    pub threads: u32,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that had to read from a disk.
    pub major_faults: u64,
    /// CPU time of the ended children that it waited for, and of their descendants, in nanoseconds with a
    /// resolution of 10 ms.
    pub children_ns: u64,
    /// The signal that stopped the process, while the process is stopped. 0 if unknown: the parent has waited
    /// for the stop, the process is another user's, or Linux is older than 5.17.
    pub stop_signal: i32,
}

/// The user and groups of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Real user.
    pub uid_real: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective and supplementary groups.
    pub gids: Vec<u32>,
}

/// The names of a process's program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// Base name of the executed file; for a script, the interpreter's. Empty if unknown.
    pub file: String,
    /// Base name of the path that was executed, such as a script's or a symbolic link's.
    pub called: String,
}

/// An entry of /proc: a process, and the inode number of its directory, which distinguishes the process from
/// a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The process.
    pub pid: u32,
    /// Its directory's inode.
    pub inode: u64,
}

/// The buffer's first size: enough for `cgroup`, `status` and a usual command line in one read. It grows for
/// larger files.
const BUFFER_BYTES: usize = 8 * 1024;

/// The most that is read of a file: a larger environment is truncated.
const FILE_BYTES_MAX: usize = 4 << 20;

/// A procfs, or a folder that imitates one.
#[derive(Debug)]
pub struct ProcFs {
    dir: Dir,
    buffer: Vec<u8>,
    /// Machine-wide files, kept open: opening one costs ten times as much as reading it.
    kept: Vec<(&'static str, File)>,
}

impl ProcFs {
    /// Opens a procfs: `/proc`, or a fake tree in tests.
    pub fn open(path: &Path) -> Result<Self, LiveError> {
        let dir = Dir::open(path).map_err(|err| LiveError::File {
            path: path.to_owned(),
            what: "open".to_owned(),
            source: err.into(),
            remedy: "; mount it: mount -t proc proc /proc".to_owned(),
        })?;
        Ok(ProcFs { dir, buffer: vec![0; BUFFER_BYTES], kept: Vec::new() })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces `into` with all processes, in no particular order.
    pub fn processes(&mut self, into: &mut Vec<Listed>) -> Result<(), LiveError> {
        into.clear();
        let listed = self.dir.numbers(parse_number, |pid, inode| into.push(Listed { pid, inode }));
        listed.map_err(|err| self.failed("", "list", err))
    }

    /// Replaces `into` with all threads of a process, ascending. False if the process has ended.
    pub fn threads(&mut self, pid: u32, into: &mut Vec<u32>) -> Result<bool, LiveError> {
        into.clear();
        let name = format!("{pid}/task");
        let listed = self.dir.numbers_in(&name, parse_number, |tid, _| into.push(tid));
        into.sort_unstable();
        match listed {
            Ok(()) => Ok(!into.is_empty()),
            Err(err) if is_gone(err) => Ok(false),
            Err(err) => Err(self.failed(&name, "list", err)),
        }
    }

    /// The contents of /proc/PID/stat; `None` if the process has ended.
    pub fn stat(&mut self, pid: u32) -> Result<Option<Stat>, LiveError> {
        self.parsed(&format!("{pid}/stat"), |text| parse_stat(pid, text))
    }

    /// The user and groups of a process; `None` if it has ended.
    pub fn identity(&mut self, pid: u32) -> Result<Option<Identity>, LiveError> {
        self.parsed(&format!("{pid}/status"), parse_identity)
    }

    /// The names of a process's program, where `comm` is from its `stat`; `None` if it has ended.
    ///
    /// The file is the target of /proc/PID/exe, which the kernel shows only to a reader that may trace the
    /// process. The executed name is `comm`. The kernel cuts `comm` to 15 bytes, so a name of that length is
    /// completed from the arguments. A process can change its arguments at will, so an argument counts only
    /// if it begins with `comm`.
    pub fn program(&mut self, pid: u32, comm: &str) -> Result<Option<Program>, LiveError> {
        let file = match self.dir.link(&format!("{pid}/exe")) {
            Ok(path) => base_name(path.strip_suffix(DELETED).unwrap_or(&path)),
            // The link is also missing for a process without memory, such as one that is exiting.
            Err(err) if is_gone(err) => String::new(),
            Err(err) => return Err(self.failed(&format!("{pid}/exe"), "read", err)),
        };
        if comm.len() < COMM_BYTES {
            return Ok(Some(Program { file, called: comm.to_owned() }));
        }
        let arguments = self.read(&format!("{pid}/cmdline"))?;
        Ok(arguments.map(|text| Program { file, called: complete(comm, text) }))
    }

    /// A process's path in the cgroup v2 hierarchy, else in systemd's v1 hierarchy; empty if it is in
    /// neither; `None` if it has ended.
    pub fn cgroup(&mut self, pid: u32) -> Result<Option<String>, LiveError> {
        Ok(self.read(&format!("{pid}/cgroup"))?.map(parse_cgroup))
    }

    /// A process's autogroup; `None` if it has ended, or has none.
    pub(crate) fn autogroup(&mut self, pid: u32) -> Result<Option<Autogroup>, LiveError> {
        Ok(self.read(&format!("{pid}/autogroup"))?.and_then(Autogroup::parse))
    }

    /// Whether a process is a systemd service manager, or the helper that closes the manager's session. Since
    /// a process can give itself any name, the name counts only if the process executes the same file as
    /// process 1.
    pub fn is_service_manager(&mut self, pid: u32, comm: &str) -> bool {
        let program = |pid: u32| self.dir.id(&format!("{pid}/exe"));
        matches!(comm, "systemd" | "(sd-pam)")
            && matches!((program(pid), program(1)), (Ok(executed), Ok(systemd)) if executed == systemd)
    }

    /// The value of a variable in a process's initial environment; `None` if it is unset, or may not be read.
    pub fn variable(&mut self, pid: u32, name: &str) -> Result<Option<String>, LiveError> {
        let environ = self.read(&format!("{pid}/environ"))?;
        Ok(environ.and_then(|text| find_variable(text, name)))
    }

    /// The state of a thread; `None` if it has ended.
    pub fn thread_state(&mut self, pid: u32, tid: u32) -> Result<Option<ThreadState>, LiveError> {
        let text = self.read(&format!("{pid}/task/{tid}/stat"))?;
        Ok(text.and_then(|text| parse_stat(tid, text)).map(|stat| stat.state))
    }

    /// The machine's number of threads, and the pid given out last: while both are unchanged, no process or
    /// thread started or ended. `None` if /proc/loadavg lacks them.
    pub fn births(&mut self) -> Result<Option<(u32, u32)>, LiveError> {
        Ok(self.read_kept("loadavg")?.and_then(parse_births))
    }

    /// A file's parsed content; `None` if its process has ended. A text that cannot be parsed is read once
    /// more, since `None` has grave effects: a caller that takes a process for ended forgets what it has to
    /// undo there.
    fn parsed<T>(&mut self, name: &str, parse: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, LiveError> {
        let Some(text) = self.read(name)? else { return Ok(None) };
        match parse(text) {
            Some(parsed) => Ok(Some(parsed)),
            None if text.is_empty() => Ok(None),
            None => Ok(self.read(name)?.and_then(parse)),
        }
    }

    /// The content of a file below /proc; `None` if its process has ended.
    pub fn read(&mut self, name: &str) -> Result<Option<&[u8]>, LiveError> {
        match self.fill(name) {
            Ok(len) => Ok(Some(&self.buffer[..len])),
            Err(err) if is_gone(err) => Ok(None),
            Err(err) => Err(self.failed(name, "read", err)),
        }
    }

    /// The content of a file that may have many lines, such as one for each mapping; `None` if its process
    /// has ended.
    pub fn read_lines(&mut self, name: &str) -> Result<Option<&[u8]>, LiveError> {
        match self.dir.read_lines(name, &mut self.buffer, FILE_BYTES_MAX) {
            Ok(len) => Ok(Some(&self.buffer[..len])),
            Err(err) if is_gone(err) => Ok(None),
            Err(err) => Err(self.failed(name, "read", err)),
        }
    }

    /// The present content of a machine-wide file, whose descriptor stays open for later calls; `None` if the
    /// file does not exist.
    pub(crate) fn read_kept(&mut self, name: &'static str) -> Result<Option<&[u8]>, LiveError> {
        match self.fill_kept(name) {
            Ok(len) => Ok(Some(&self.buffer[..len])),
            Err(err) if is_gone(err) => Ok(None),
            Err(err) => Err(self.failed(name, "read", err)),
        }
    }

    /// Reads a kept file into the buffer, and returns its length. The buffer grows until one read gets the
    /// whole file.
    fn fill_kept(&mut self, name: &'static str) -> Result<usize, Errno> {
        let index = if let Some(index) = self.kept.iter().position(|(kept, _)| *kept == name) {
            index
        } else {
            self.kept.push((name, self.dir.file(name)?));
            self.kept.len() - 1
        };
        loop {
            let read = self.kept[index].1.read_at(&mut self.buffer[..], 0);
            let len = read.map_err(|err| Errno::from_io_error(&err).unwrap_or(Errno::IO))?;
            if len < self.buffer.len() || len >= FILE_BYTES_MAX {
                return Ok(len);
            }
            self.buffer.resize(len * 2, 0);
        }
    }

    fn fill(&mut self, name: &str) -> Result<usize, Errno> {
        self.dir.read(name, &mut self.buffer, FILE_BYTES_MAX)
    }

    fn failed(&self, name: &str, what: &str, err: Errno) -> LiveError {
        let remedy = match err {
            Errno::MFILE | Errno::NFILE => {
                "; raise the limit on open files (ulimit -n, or LimitNOFILE= of the service)"
            }
            _ => "",
        };
        LiveError::File {
            path: self.dir.path().join(name),
            what: what.to_owned(),
            source: err.into(),
            remedy: remedy.to_owned(),
        }
    }
}

/// Pins a process that was identified earlier; `None` if it has ended, even if another process has its pid
/// now.
///
/// The pidfd is opened first, and the start time is read afterwards. If the pid was reused before the pidfd
/// was opened, the start time differs. If the pid is reused later, the pidfd still refers to the right
/// process.
pub fn pin(procfs: &mut ProcFs, key: ProcessKey) -> Result<Option<Pinned>, LiveError> {
    match Pinned::of(key.pid) {
        Ok(pinned) => Ok(is_alive(procfs, key)?.then_some(pinned)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(source) => Err(could_not_pin(key.pid, source)),
    }
}

/// The process pinned last. One pidfd at a time is enough, since calls about threads come process by process.
#[derive(Debug, Default)]
pub(crate) struct Pins(Option<(ProcessKey, Pinned)>);

impl Pins {
    /// Like [`pin`], with the kernel's error: `ESRCH` if the process has ended.
    pub(crate) fn pin(&mut self, procfs: &mut ProcFs, key: ProcessKey) -> io::Result<&Pinned> {
        let no_such_process = || io::Error::from_raw_os_error(libc::ESRCH);
        if self.0.as_ref().is_none_or(|(known, _)| *known != key) {
            self.0 = None;
            let pinned = Pinned::of(key.pid)?;
            if !is_alive(procfs, key).map_err(io::Error::other)? {
                return Err(no_such_process());
            }
            self.0 = Some((key, pinned));
        }
        self.0.as_ref().map(|(_, pinned)| pinned).ok_or_else(no_such_process)
    }
}

/// Identifies the process of a pidfd that came from elsewhere, such as a socket's `SO_PEERPIDFD`; `None` if
/// it has ended.
///
/// The start time is read by pid. Afterwards, the process of the pidfd is checked to be still running. So
/// this process had the pid while the start time was read, and the key belongs to this process.
pub fn identify(procfs: &mut ProcFs, pidfd: OwnedFd) -> Result<Option<(Pinned, ProcessKey)>, LiveError> {
    let pinned = match Pinned::from_pidfd(pidfd) {
        Ok(pinned) => pinned,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(source) => return Err(could_not_pin(0, source)),
    };
    let stat = procfs.stat(pinned.pid())?;
    let is_running = pinned.is_running().map_err(|source| could_not_pin(pinned.pid(), source))?;
    Ok(stat.filter(|_| is_running).map(|stat| (pinned, stat.key)))
}

fn could_not_pin(pid: u32, source: io::Error) -> LiveError {
    let remedy = match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => MORE_FILES.to_owned(),
        Some(libc::ENOSYS) => "; boot Linux 5.3 or later, or allow pidfd_open in the container".to_owned(),
        _ => String::new(),
    };
    LiveError::Process { pid, name: String::new(), what: "pin it by a pidfd".to_owned(), source, remedy }
}

/// Whether the process exists now.
pub fn is_alive(procfs: &mut ProcFs, key: ProcessKey) -> Result<bool, LiveError> {
    is_now(procfs, key, |_| true)
}

/// Whether the process exists and `holds` is true of its present state.
pub(crate) fn is_now(
    procfs: &mut ProcFs,
    key: ProcessKey,
    holds: impl FnOnce(&Stat) -> bool,
) -> Result<bool, LiveError> {
    Ok(procfs.stat(key.pid)?.is_some_and(|stat| stat.key == key && holds(&stat)))
}

/// Whether an error on a process's file means that the process has ended, or is hidden from this user.
fn is_gone(err: Errno) -> bool {
    matches!(err, Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM)
}

/// A decimal number; `None` for anything else, `+1` included.
fn parse_number<T: TryFrom<u64>>(digits: &[u8]) -> Option<T> {
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0u64, |value, digit| {
        digit.is_ascii_digit().then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    T::try_from(value).ok()
}

/// The unit of times in /proc/PID/stat: `USER_HZ` is 100 on every architecture that Linux still supports.
const TICK_NS: u64 = 10_000_000;

/// Parses `pid (comm) state ppid pgrp session tty tpgid flags ... threads(20) itrealvalue start(22) ...`: see
/// proc(5). The name may contain anything, `)` and line breaks included: the last `)` ends it.
fn parse_stat(pid: u32, text: &[u8]) -> Option<Stat> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    let mut fields = text.get(close + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = match fields.next()?.first()? {
        b'R' => ThreadState::Runnable,
        b'T' => ThreadState::Stopped,
        b't' => ThreadState::Traced,
        b'Z' | b'X' | b'x' => ThreadState::Ended,
        b'D' => ThreadState::Blocked,
        _ => ThreadState::Asleep,
    };
    let parent = parse_number(fields.next()?)?;
    let group = parse_number(fields.next()?)?;
    let session = parse_number(fields.next()?)?;
    let flags: u64 = parse_number(fields.nth(2)?)?;
    let minor_faults = parse_number(fields.next()?)?;
    let major_faults = parse_number(fields.nth(1)?)?;
    let (user, system): (u64, u64) = (parse_number(fields.nth(3)?)?, parse_number(fields.next()?)?);
    let children_ns = (user + system).saturating_mul(TICK_NS);
    let threads = parse_number(fields.nth(2)?)?;
    let start = parse_number(fields.nth(1)?)?;
    // Another field must follow the start; otherwise the text, and so the number, may be truncated.
    fields.next()?;
    // Field 52 is `exit_code`: for a stopped process, the signal that stopped it.
    let stop_signal = fields.nth(28).and_then(parse_number::<u8>).map_or(0, i32::from);
    let kernel_thread = flags & PF_KTHREAD != 0;
    Some(Stat {
        key: ProcessKey { pid, start },
        comm,
        state,
        parent,
        group,
        session,
        kernel_thread,
        threads,
        minor_faults,
        major_faults,
        children_ns,
        stop_signal,
    })
}

/// Parses the lines `Uid:` and `Gid:` (real, effective, saved, file system) and `Groups:` of
/// /proc/PID/status.
fn parse_identity(text: &[u8]) -> Option<Identity> {
    let numbers = |line: &'_ [u8]| -> Vec<u32> {
        line.split(u8::is_ascii_whitespace).filter_map(parse_number).collect()
    };
    let (mut uids, mut gid, mut groups) = (None, None, Vec::new());
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(rest) = line.strip_prefix(b"Uid:") {
            uids = Some(numbers(rest));
        } else if let Some(rest) = line.strip_prefix(b"Gid:") {
            gid = numbers(rest).get(1).copied();
        } else if let Some(rest) = line.strip_prefix(b"Groups:") {
            groups = numbers(rest);
            break;
        }
    }
    let (uids, gid) = (uids?, gid?);
    if !groups.contains(&gid) {
        groups.insert(0, gid);
    }
    Some(Identity { uid_real: *uids.first()?, uid: *uids.get(1)?, gids: groups })
}

/// Bytes of a task's name that the kernel keeps (`TASK_COMM_LEN` without the NUL byte).
const COMM_BYTES: usize = 15;
/// The kernel appends this to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";

fn base_name(path: &[u8]) -> String {
    String::from_utf8_lossy(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()).into_owned()
}

/// Completes a truncated name from the arguments. A program's name is its first argument. A script's name is
/// the second or, after an option of its interpreter, the third.
fn complete(comm: &str, arguments: &[u8]) -> String {
    // The last character may have been cut in the middle.
    let prefix = comm.trim_end_matches(char::REPLACEMENT_CHARACTER);
    let mut names = arguments.split(|byte| *byte == 0).take(3).map(base_name);
    names.find(|name| name.starts_with(prefix)).unwrap_or_else(|| comm.to_owned())
}

/// Parses /proc/PID/cgroup. A line `0::/path` has the path in version 2. If that hierarchy is unused, every
/// process is at `/` in it, and the path in systemd's version 1 hierarchy (`1:name=systemd:/path`) is more
/// specific.
fn parse_cgroup(text: &[u8]) -> String {
    let (mut v2, mut systemd) = (None, None);
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(path) = line.strip_prefix(b"0::") {
            v2 = Some(path);
        } else if let Some(start) = line.windows(14).position(|window| window == b":name=systemd:") {
            systemd = Some(&line[start + 14..]);
        }
    }
    let path = match (v2, systemd) {
        (Some(b"/") | None, Some(systemd)) => systemd,
        (Some(v2), _) => v2,
        (None, None) => b"",
    };
    String::from_utf8_lossy(path).into_owned()
}

/// Parses `0.00 0.01 0.05 1/123 4567` to the number of all threads (123) and the pid given out last (4567).
fn parse_births(text: &[u8]) -> Option<(u32, u32)> {
    let mut fields = text.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).skip(3);
    let threads = fields.next()?.split(|byte| *byte == b'/').nth(1).and_then(parse_number)?;
    Some((threads, parse_number(fields.next()?)?))
}

/// The value of a variable in the text of /proc/PID/environ.
fn find_variable(environ: &[u8], name: &str) -> Option<String> {
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_name_may_hold_anything() {
        for comm in ["sh", "a) R 1 1 1", "x y", "new\nline", "(((", ")", ""] {
            let text = format!(
                "42 ({comm}) S 7 42 41 0 -1 4194304 98 0 0 0 0 0 0 0 20 0 3 0 117460 3133440 380 1 2 3\n"
            );
            let stat = parse_stat(42, text.as_bytes()).unwrap();
            assert_eq!(stat.comm, comm);
            assert_eq!((stat.parent, stat.group, stat.session, stat.threads), (7, 42, 41, 3));
            assert_eq!(
                (stat.key.start, stat.state, stat.kernel_thread),
                (117_460, ThreadState::Asleep, false)
            );
        }
    }

    #[test]
    fn kernel_threads_are_recognised_by_their_flag() {
        let text = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 2 0 0 18446744073709551615";
        assert!(parse_stat(2, text).unwrap().kernel_thread);
    }

    #[test]
    fn users_and_groups_of_a_process_are_parsed() {
        let text = b"Name:\tUid: 1 2\nUid:\t1000\t1001\t1000\t1000\nGid:\t5\t6\t5\t5\nFDSize:\t64\nGroups:\t6 27 100 \n";
        let identity = Identity { uid_real: 1000, uid: 1001, gids: vec![6, 27, 100] };
        assert_eq!(parse_identity(text), Some(identity));
        let none = b"Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t\n";
        assert_eq!(parse_identity(none).unwrap().gids, [0]);
    }

    #[test]
    fn the_cgroup_path_of_either_version_is_parsed() {
        let hybrid = b"9:name=systemd:/user.slice\n3:cpuset:/x\n0::/\n";
        for (text, path) in [
            (b"0::/user.slice/a:b\n".as_slice(), "/user.slice/a:b"),
            (hybrid, "/user.slice"),
            (b"1:name=systemd:/a\n0::/b\n", "/b"),
            (b"3:cpuset:/x\n", ""),
        ] {
            assert_eq!(parse_cgroup(text), path);
        }
    }

    #[test]
    fn names_births_variables_and_numbers_are_parsed() {
        let cut = "a-long-program-";
        assert_eq!(complete(cut, b"/usr/bin/a-long-program-name\0-j\0"), "a-long-program-name");
        assert_eq!(complete(cut, b"/bin/sh\0-e\0/x/a-long-program-name\0"), "a-long-program-name");
        assert_eq!(complete(cut, b"make\0make\0make\0a-long-program-name\0"), cut);
        assert_eq!(complete(cut, b""), cut);
        assert_eq!(parse_births(b"0.00 0.01 0.05 1/123 4567\n"), Some((123, 4567)));
        assert_eq!(parse_births(b"0.00\n"), None);
        let environ = b"A=1\0COMMONHOLD_UNIT=physics/x\0COMMONHOLD_UNITS=no\0";
        assert_eq!(find_variable(environ, "COMMONHOLD_UNIT").as_deref(), Some("physics/x"));
        assert_eq!(find_variable(environ, "COMMONHOLD"), None);
        assert_eq!(parse_number::<u32>(b"4294967296"), None);
        assert_eq!(parse_number::<u32>(b"+1"), None);
    }

    #[test]
    fn a_process_that_vanishes_between_two_reads_has_ended() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("31/task/31")).unwrap();
        fs::create_dir_all(root.path().join("self")).unwrap();
        let mut procfs = ProcFs::open(root.path()).unwrap();
        let mut listed = Vec::new();
        procfs.processes(&mut listed).unwrap();
        assert_eq!(listed.iter().map(|entry| entry.pid).collect::<Vec<_>>(), [31]);
        assert_eq!(procfs.stat(31).unwrap(), None);
        assert_eq!(procfs.identity(31).unwrap(), None);
        assert_eq!(procfs.thread_schedstat(31, 31).unwrap(), None);
        let mut threads = vec![1, 2, 3];
        assert!(procfs.threads(31, &mut threads).unwrap());
        fs::remove_dir_all(root.path().join("31")).unwrap();
        assert!(!procfs.threads(31, &mut threads).unwrap());
    }

    #[test]
    fn a_file_larger_than_the_buffer_is_read_whole() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("5")).unwrap();
        let long = format!("{}\0X=end\0", "y".repeat(100_000));
        fs::write(root.path().join("5/environ"), long).unwrap();
        let mut procfs = ProcFs::open(root.path()).unwrap();
        assert_eq!(procfs.variable(5, "X").unwrap().as_deref(), Some("end"));
    }

    /// Fails if arguments count: each of the first three shows `make` in its first argument, or in its title.
    #[test]
    fn a_program_is_named_by_its_file_and_path_not_its_arguments() {
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::process::CommandExt;
        use std::process::Command;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let sleep = fs::canonicalize(String::from_utf8(which("sleep")).unwrap().trim()).unwrap();
        let file = sleep.file_name().unwrap().to_string_lossy().into_owned();
        std::os::unix::fs::symlink(&sleep, path("linked")).unwrap();
        fs::copy(&sleep, path("copied")).unwrap();
        let script = "simulate-the-whole-reactor.sh";
        fs::write(path(script), "#!/bin/sh -e\nwhile :; do read line || exit; done\n").unwrap();
        fs::set_permissions(path(script), fs::Permissions::from_mode(0o755)).unwrap();
        let shell = fs::canonicalize("/bin/sh").unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        for (program, shown, expected) in [
            (sleep.clone(), "make", (file.as_str(), file.as_str())),
            (sleep.clone(), "worker: job /home/x/make", (file.as_str(), file.as_str())),
            (path("linked"), "make", (file.as_str(), "linked")),
            (path("copied"), "copied", ("copied", "copied")),
            (path(script), "make", (shell.as_str(), script)),
        ] {
            let mut child = Command::new(&program)
                .arg0(shown)
                .arg("60")
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            // For a moment during execve(2) a process shows its new name without its new arguments.
            let mut found = None;
            for _ in 0..500 {
                let stat = procfs.stat(child.id()).unwrap().unwrap();
                found = procfs.program(child.id(), &stat.comm).unwrap();
                if found
                    .as_ref()
                    .is_some_and(|found| (found.file.as_str(), found.called.as_str()) == expected)
                {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let found = found.unwrap();
            child.kill().and_then(|()| child.wait()).unwrap();
            assert_eq!((found.file.as_str(), found.called.as_str()), expected, "{program:?} as {shown}");
        }
    }

    fn which(program: &str) -> Vec<u8> {
        let found = std::process::Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        found.unwrap().stdout
    }

    /// Fails if the pidfd's process is not checked again after its start time was read: the hook ends it in
    /// between, so that the start time may be a later process's.
    #[test]
    fn a_pidfd_is_identified_only_while_its_process_runs() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let copy = Pinned::of(pid).unwrap().descriptor().try_clone().unwrap();
        let again = copy.try_clone().unwrap();
        let (pinned, key) = identify(&mut procfs, copy).unwrap().unwrap();
        assert_eq!((pinned.pid(), Some(key)), (pid, procfs.stat(pid).unwrap().map(|stat| stat.key)));
        assert!(pin(&mut procfs, key).unwrap().is_some());
        assert!(pin(&mut procfs, ProcessKey { start: key.start + 1, ..key }).unwrap().is_none());
        let later = format!("{pid} (later) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99999 0 0\n");
        let hook = crate::host::tamper(move |access| {
            if !access.is(crate::host::Kind::Read, &format!("{pid}/stat")) {
                return crate::host::Answer::GoOn;
            }
            child.kill().and_then(|()| child.wait()).unwrap();
            crate::host::Answer::Falsify(later.clone().into_bytes())
        });
        assert!(identify(&mut procfs, again).unwrap().is_none());
        drop(hook);
        assert!(pin(&mut procfs, key).unwrap().is_none());
    }

    #[test]
    fn this_process_is_read_correctly() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let me = std::process::id();
        let stat = procfs.stat(me).unwrap().unwrap();
        assert_eq!(stat.parent, std::os::unix::process::parent_id());
        assert!(!stat.kernel_thread && is_alive(&mut procfs, stat.key).unwrap());
        let later = ProcessKey { start: stat.key.start + 1, ..stat.key };
        assert!(!is_alive(&mut procfs, later).unwrap());
        let identity = procfs.identity(me).unwrap().unwrap();
        assert_eq!(identity.uid, rustix::process::geteuid().as_raw());
        let before = procfs.births().unwrap();
        std::thread::spawn(|| {}).join().unwrap();
        assert_ne!(before, procfs.births().unwrap());
    }
}
