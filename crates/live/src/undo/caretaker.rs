//! The caretaker: a process that waits for the daemon to end and then undoes what the daemon did.
//!
//! The caretaker holds the read end of a pipe whose write end the daemon alone holds: when the daemon ends,
//! for any reason, the caretaker reads end of file. The caretaker runs in its own session, ignores the
//! signals by which a terminal or a service manager ends a program, keeps no other file open, and is never a
//! member of a unit. A regular shutdown takes the same path, so undoing is exercised every time.
//!
//! While processes are stopped, the daemon sends heartbeats over the pipe ([`lifeline`](super::lifeline)). If
//! one is overdue, the daemon is itself stopped, or hangs. The caretaker then continues the processes that
//! the journal lists as stopped, and leaves everything else, and the daemon, alone. A daemon that recovers
//! stops them again as needed.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::LiveError;
use crate::host;
use crate::host::Pinned;
use crate::host::autogroup::{self, AutogroupFile};
use crate::undo::journal::{self, Journal};
use crate::undo::lifeline::{Beats, Lifeline};
use crate::undo::watch::Watch;
use crate::undo::{Undone, undo_with_progress};

/// The line that the caretaker prints when it is ready.
const READY: &str = "ready";

/// How long the daemon waits for a caretaker to start, or for a sign of progress. Undoing usually takes less
/// than a second; the additional time is for a machine on which CPU time, memory and disks are all scarce. A
/// thousand control groups take longer, so the limit restarts with each sign of progress.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The interval at which the caretaker reports progress.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// The program to run as the caretaker. Its last two arguments are the journal's path and the pipe's
/// descriptor, with which the program calls [`main`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// The arguments before the path and the descriptor.
    pub arguments: Vec<OsString>,
}

impl Default for Launch {
    /// The running program itself, even if its file was replaced or removed, with the command `caretaker`.
    fn default() -> Self {
        Launch { program: PathBuf::from("/proc/self/exe"), arguments: vec!["caretaker".into()] }
    }
}

/// The daemon's handle on a running caretaker. If it is dropped without [`Caretaker::finish`], the caretaker
/// still undoes everything, once the journal is closed.
#[derive(Debug)]
pub struct Caretaker {
    child: Child,
    /// The daemon's end of the pipe. When it is dropped, the caretaker begins to undo.
    lifeline: Option<Lifeline>,
    report: BufReader<ChildStdout>,
    alive: Pinned,
    launch: Launch,
    journal: PathBuf,
}

impl Caretaker {
    /// Starts a caretaker for a journal, and waits until it is ready.
    pub fn spawn(journal: &Path, launch: &Launch) -> Result<Caretaker, LiveError> {
        Self::start(journal, launch).map_err(|source| LiveError::File {
            path: launch.program.clone(),
            what: "start the caretaker".to_owned(),
            source,
            remedy: "; without it, changes to processes would not be undone if this program is killed"
                .to_owned(),
        })
    }

    fn start(journal: &Path, launch: &Launch) -> io::Result<Caretaker> {
        let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        // The child inherits the daemon's blocked signals. `withdraw` ignores these signals before it
        // unblocks them: unblocked from the start, Ctrl-C could end the caretaker first.
        #[allow(
            clippy::disallowed_methods,
            reason = "the signals of `host::child::command` come too early here"
        )]
        let mut child = Command::new(&launch.program)
            // The name that `ps` shows: `/proc/self/exe` would not say which program it is.
            .arg0("commonhold")
            .args(&launch.arguments)
            // Absolute, because the caretaker changes its directory.
            .arg(std::path::absolute(journal)?)
            // The descriptor: the pipe is the caretaker's standard input, so that both sides know its number.
            .arg("0")
            .stdin(theirs)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
        let alive = Pinned::of(child.id())?;
        let caretaker = Caretaker {
            child,
            lifeline: Some(Lifeline::new(ours)),
            report: BufReader::new(stdout),
            alive,
            launch: launch.clone(),
            journal: journal.to_owned(),
        };
        caretaker.await_ready()
    }

    /// Waits for the line [`READY`]. If the caretaker prints another line, or no line in time, kills the
    /// caretaker.
    fn await_ready(mut self) -> io::Result<Caretaker> {
        if !self.await_readable()? {
            self.kill();
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not become ready"));
        }
        let mut line = String::new();
        self.report.read_line(&mut line)?;
        if line.trim_end() == READY {
            return Ok(self);
        }
        self.kill();
        Err(io::Error::other(format!("it prints `{}` instead of `{READY}`", line.trim_end())))
    }

    /// The caretaker's process number, so that no unit takes the caretaker as a member.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The heartbeats to give the journal ([`Journal::beat_with`]), so that a stalled daemon leaves nothing
    /// stopped. They remain valid when [`Caretaker::keep`] replaces the caretaker.
    pub fn beats(&self) -> Beats {
        self.lifeline.as_ref().map(Lifeline::beats).unwrap_or_default()
    }

    /// A descriptor that becomes readable when the caretaker ends: for the daemon's event loop.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.alive.descriptor().as_fd()
    }

    /// Starts another caretaker if this one has ended. Returns whether it did, and so whether
    /// [`Caretaker::pid`] changed.
    pub fn keep(&mut self) -> Result<bool, LiveError> {
        if matches!(self.child.try_wait(), Ok(None)) {
            return Ok(false);
        }
        let launch = self.launch.clone();
        let mut next = Caretaker::spawn(&self.journal.clone(), &launch)?;
        if let Some(lifeline) = self.lifeline.take() {
            if let Some(other) = next.lifeline.take() {
                lifeline.move_to(other);
            }
            next.lifeline = Some(lifeline);
        }
        *self = next;
        Ok(true)
    }

    /// The regular shutdown: closes the journal, lets the caretaker undo everything, and returns the
    /// caretaker's report.
    pub fn finish(mut self, journal: Journal) -> Result<Undone, LiveError> {
        // The caretaker needs the journal's lock.
        drop(journal);
        self.lifeline = None;
        self.read_report().map_err(|source| LiveError::File {
            path: self.journal.clone(),
            what: "read the caretaker's report".to_owned(),
            source,
            remedy: "; if the file is still there, run commonhold again: it undoes the rest first".to_owned(),
        })
    }

    /// Reads the report to its end, and reaps the caretaker. The time limit [`PATIENCE`] restarts with each
    /// byte received.
    fn read_report(&mut self) -> io::Result<Undone> {
        let mut report = Vec::new();
        loop {
            if self.report.buffer().is_empty() && !self.await_readable()? {
                let why = format!("it has undone nothing for {} s", PATIENCE.tv_sec);
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            let received = self.report.fill_buf()?;
            if received.is_empty() {
                break;
            }
            report.extend_from_slice(received);
            let length = received.len();
            self.report.consume(length);
        }
        self.child.wait()?;
        // Signs of progress are line breaks, which JSON may begin with.
        if report.trim_ascii().is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without a report"));
        }
        Ok(serde_json::from_slice(&report)?)
    }

    /// Waits for the report to become readable, or to end. False after [`PATIENCE`].
    fn await_readable(&self) -> io::Result<bool> {
        let mut report = [PollFd::new(self.report.get_ref(), PollFlags::IN)];
        loop {
            match poll(&mut report, Some(&PATIENCE)) {
                Err(Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }

    fn kill(&mut self) {
        let _ = self.alive.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The caretaker's main function: waits for the pipe's end, undoes the journal and removes it. Returns the
/// report, and prints it to standard output as one line of JSON if the daemon still reads.
pub fn main(journal: &Path, pipe: OwnedFd) -> Undone {
    withdraw();
    say(READY);
    await_daemons_end(&pipe, journal);
    drop(pipe);
    let mut reported_at = Instant::now();
    let undone = undo_journal(journal, &mut || {
        if reported_at.elapsed() >= SIGN_OF_LIFE {
            reported_at = Instant::now();
            say("");
        }
    });
    if !say(&serde_json::to_string(&undone).unwrap_or_default()) {
        report_to_stderr(&undone);
    }
    undone
}

/// Reports to standard error, because the daemon was killed or gave up waiting.
fn report_to_stderr(undone: &Undone) {
    let mut to = io::stderr().lock();
    let _ = writeln!(to, "commonhold: the daemon ended, and its caretaker undid its changes: {undone}");
    let kinds = [("note", &undone.notices), ("problem", &undone.problems)];
    for (kind, messages) in kinds {
        for message in messages {
            // Errors are ignored: the terminal may be gone, too.
            let _ = writeln!(to, "commonhold: {kind}: {message}");
        }
    }
}

/// Detaches this process from the daemon's terminal, session and directory, and ignores signals that could
/// end it.
fn withdraw() {
    // Refused only to a session leader, which a child of the daemon is not.
    if rustix::process::setsid().is_ok() {
        adopt_nice_value();
    }
    let _ = rustix::process::chdir("/");
    // The kernel named the process `exe`, after the link by which it was executed.
    let _ = rustix::thread::set_name(c"commonhold");
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // The signal mask is the daemon's. Ignored signals stay ignored either way, so a failure here is
    // harmless.
    let _ = host::child::unblock_signals();
    // Be among the last that the kernel kills when memory runs out: the caretaker is small, and stopped
    // processes depend on it. Without privileges this fails, which is harmless.
    let _ = host::write("/proc/self/oom_score_adj".as_ref(), "-900");
}

/// Returns when the daemon has ended. If the daemon's heartbeats stop before that, continues the processes
/// that the daemon stopped.
fn await_daemons_end(pipe: &OwnedFd, journal: &Path) {
    close_others(pipe.as_raw_fd());
    let mut watch = Watch::over(std::os::unix::process::parent_id());
    let mut bytes = [0u8; 64];
    loop {
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], watch.time_left(Instant::now()).as_ref()) {
            // No heartbeat in time.
            Ok(0) => {
                continue_all(journal);
                watch.missed(Instant::now());
                continue;
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Waiting is impossible: return, because undoing too early does less harm than never undoing.
            Err(_) => return,
        }
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => return,
            Ok(length) => watch.receive(&bytes[..length], Instant::now()),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Continues the processes that a stalled daemon stopped, and reports that to standard error.
fn continue_all(journal: &Path) {
    match Journal::read(journal) {
        Ok(entries) => super::continue_all(&entries, Path::new("/proc"), &mut report_continued),
        Err(err) => {
            let why =
                format!("{}: cannot read: {err}; continue stopped processes by hand", journal.display());
            report_continued(&Undone { problems: vec![why], ..Undone::default() });
        }
    }
}

fn report_continued(undone: &Undone) {
    if undone.is_empty() {
        return;
    }
    let mut to = io::stderr().lock();
    let _ = writeln!(
        to,
        "commonhold: problem: the daemon's loop is stalled, so the processes that it stopped continue; {undone}"
    );
    for problem in &undone.problems {
        let _ = writeln!(to, "commonhold: problem: {problem}");
    }
}

/// Gives the autogroup of the new session this process's own nice value, as the daemon's autogroup has; a new
/// autogroup starts with 0. The autogroup ends with this process, so nothing needs undoing.
fn adopt_nice_value() {
    let (Ok(nice), Ok(mut file)) =
        (rustix::process::getpriority_process(None), AutogroupFile::open(Path::new(autogroup::OWN)))
    else {
        return;
    };
    // This fails without privileges, which is harmless: the value is then 0.
    if nice < 0 {
        let _ = file.set(nice);
    }
}

/// Closes inherited descriptors except for `pipe` and the standard three. A descriptor that the daemon did
/// not mark close-on-exec would keep a lock or a pipe open.
fn close_others(pipe: i32) {
    let Ok(open) = host::list("/proc/self/fd".as_ref()) else { return };
    let numbers = open.iter().filter_map(|entry| entry.name().parse::<i32>().ok());
    for number in numbers.filter(|number| *number > 2 && *number != pipe).collect::<Vec<_>>() {
        // SAFETY: nothing uses these descriptors: the process has just begun, and owns only the pipe and the
        // standard three.
        unsafe { libc::close(number) };
    }
}

/// Undoes a journal's entries and removes the file. The report is empty if there is no journal, or another
/// process undoes it.
fn undo_journal(path: &Path, progress: &mut dyn FnMut()) -> Undone {
    match journal::take_over(path) {
        Ok(None) => Undone::default(),
        Ok(Some((entries, taken))) => {
            let mut undone = undo_with_progress(&entries, Path::new("/proc"), progress);
            if let Err(err) = taken.remove() {
                undone.problems.push(format!("{}: cannot remove: {err}; remove it by hand", path.display()));
            }
            undone
        }
        Err(err) => Undone { problems: vec![format!("nothing was undone: {err}")], ..Undone::default() },
    }
}

/// Prints a line to the daemon. False if the daemon no longer reads.
fn say(line: &str) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A caretaker simulated by a shell script.
    fn simulated(script: &str) -> io::Result<Undone> {
        let dir = tempfile::tempdir().unwrap();
        let launch = Launch {
            program: PathBuf::from("/bin/sh"),
            arguments: ["-c", script].map(OsString::from).to_vec(),
        };
        let mut caretaker = Caretaker::spawn(&dir.path().join("journal"), &launch).unwrap();
        caretaker.lifeline = None;
        caretaker.read_report()
    }

    #[test]
    fn progress_restarts_the_time_limit() {
        let report = serde_json::to_string(&Undone { removed: 1_000, ..Undone::default() }).unwrap();
        let wait = format!("echo {READY}; cat > /dev/null; for i in 1 2 3; do sleep 2; echo; done");
        assert_eq!(simulated(&format!("{wait}; echo '{report}'")).unwrap().removed, 1_000);
    }

    #[test]
    fn without_progress_the_daemon_stops_waiting() {
        let why = |script: &str| simulated(&format!("echo {READY}; {script}")).unwrap_err().to_string();
        assert_eq!(why("exec sleep 7"), "it has undone nothing for 5 s");
        assert_eq!(why("echo"), "it ended without a report");
    }
}
