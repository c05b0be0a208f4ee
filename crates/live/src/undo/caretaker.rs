//! The caretaker: a process that waits for the daemon's end and undoes what the daemon did.
//!
//! It depends on nothing but a pipe whose other end only the daemon has. When the daemon is gone, for whatever reason,
//! the pipe ends. The caretaker has a session of its own, ignores the signals by which a terminal or a service manager
//! ends a program, keeps no other file open, and is never a member of a unit. A regular end goes the same way: there
//! is one way of undoing.
//!
//! While somebody is stopped, the daemon beats over the pipe ([`lifeline`](super::lifeline)). If no beat comes in time, the
//! daemon is stopped itself, or hangs: then the caretaker continues what the journal has as stopped, and leaves the rest and
//! the daemon alone. A daemon that turns again stops anew what is to be stopped.

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
use crate::undo::{Undone, undo_visibly};

/// What the caretaker says when it is ready.
const READY: &str = "ready";

/// How long the daemon waits for a caretaker to start, or to say that it is at work. It undoes what is usual within one
/// second; the rest is for a machine that is short of everything. A thousand control groups take their time, so what
/// counts is that something is being undone.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// How often the caretaker says that it is at work.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// The program that is to become the caretaker: it calls [`main`] with the journal's path and the descriptor, which it
/// gets as its last two arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Arguments before the two.
    pub arguments: Vec<OsString>,
}

impl Default for Launch {
    /// This very program, even if its file was replaced or removed meanwhile, with the command `caretaker`.
    fn default() -> Self {
        Launch { program: PathBuf::from("/proc/self/exe"), arguments: vec!["caretaker".into()] }
    }
}

/// The daemon's end of a running caretaker. Dropping it without [`Caretaker::finish`] makes the caretaker undo
/// everything as well, once the journal is closed.
#[derive(Debug)]
pub struct Caretaker {
    child: Child,
    /// Its end is the caretaker's signal.
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
            remedy: "; without it, what is done to processes would not be undone if this program is killed"
                .to_owned(),
        })
    }

    fn start(journal: &Path, launch: &Launch) -> io::Result<Caretaker> {
        let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        // It keeps the daemon's blocked signals until it ignores them (`withdraw`): Ctrl-C would end it before that.
        #[allow(
            clippy::disallowed_methods,
            reason = "the signals of `host::child::command` come too early here"
        )]
        let mut child = Command::new(&launch.program)
            // As `ps` shows it: by its path it would be anybody.
            .arg0("commonhold")
            .args(&launch.arguments)
            // It leaves this directory, where a relative path begins.
            .arg(std::path::absolute(journal)?)
            // Its standard input, which needs no agreement on a number.
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

    fn await_ready(mut self) -> io::Result<Caretaker> {
        if !self.readable()? {
            self.kill();
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not become ready"));
        }
        let mut line = String::new();
        self.report.read_line(&mut line)?;
        if line.trim_end() == READY {
            return Ok(self);
        }
        self.kill();
        Err(io::Error::other(format!("it says `{}` and not `{READY}`", line.trim_end())))
    }

    /// Its number: no unit's member.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What a journal is to beat with ([`Journal::beat_with`]), so that a daemon that makes no turn leaves nobody stopped. It goes
    /// on with the caretaker that takes this one's place.
    pub fn beats(&self) -> Beats {
        self.lifeline.as_ref().map(Lifeline::beats).unwrap_or_default()
    }

    /// A descriptor that becomes readable when the caretaker ends: for the daemon's event loop.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.alive.descriptor().as_fd()
    }

    /// Starts another caretaker if this one is gone. Whether that was so: then the number changed.
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

    /// The regular end: closes the journal, lets the caretaker undo everything, and returns its report.
    pub fn finish(mut self, journal: Journal) -> Result<Undone, LiveError> {
        // The journal's lock must be free before the caretaker looks for it.
        drop(journal);
        self.lifeline = None;
        self.collect().map_err(|source| LiveError::File {
            path: self.journal.clone(),
            what: "learn from the caretaker what it undid".to_owned(),
            source,
            remedy: "; if the file is still there, run commonhold again: it undoes the rest first".to_owned(),
        })
    }

    fn collect(&mut self) -> io::Result<Undone> {
        let mut report = Vec::new();
        loop {
            if self.report.buffer().is_empty() && !self.readable()? {
                let why = format!("it has undone nothing for {} s", PATIENCE.tv_sec);
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            let said = self.report.fill_buf()?;
            if said.is_empty() {
                break;
            }
            report.extend_from_slice(said);
            let length = said.len();
            self.report.consume(length);
        }
        self.child.wait()?;
        // Signs of life are line breaks, which JSON may begin with.
        if report.trim_ascii().is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without a report"));
        }
        Ok(serde_json::from_slice(&report)?)
    }

    /// Whether its report has something to read, or ended, within the time that the caretaker is given.
    fn readable(&self) -> io::Result<bool> {
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

/// The caretaker's life: waits for the pipe's end, undoes the journal and removes it. The report goes to standard output
/// as one line of JSON, if anybody still listens, and is returned.
pub fn main(journal: &Path, pipe: OwnedFd) -> Undone {
    withdraw();
    say(READY);
    await_end(&pipe, journal);
    drop(pipe);
    let mut said = Instant::now();
    let undone = take_care(journal, &mut || {
        if said.elapsed() >= SIGN_OF_LIFE {
            said = Instant::now();
            say("");
        }
    });
    if !say(&serde_json::to_string(&undone).unwrap_or_default()) {
        complain(&undone);
    }
    undone
}

/// The daemon was killed, or gave up: where it complained, this is told instead.
fn complain(undone: &Undone) {
    let mut to = io::stderr().lock();
    let _ = writeln!(to, "commonhold: the daemon ended and left this to its caretaker: {undone}");
    let kinds = [("note", &undone.notices), ("problem", &undone.problems)];
    for (kind, what) in kinds.iter().flat_map(|(kind, all)| all.iter().map(move |what| (kind, what))) {
        // Its terminal may be gone as well.
        let _ = writeln!(to, "commonhold: {kind}: {what}");
    }
}

/// Leaves the daemon's terminal, session and directory, and everything that could end it or that it could keep open.
fn withdraw() {
    // Refused only to the leader of a session, which a child of the daemon is not.
    if rustix::process::setsid().is_ok() {
        stand_as_before();
    }
    let _ = rustix::process::chdir("/");
    // The kernel has named it after the link that it was started by, `exe`.
    let _ = rustix::thread::set_name(c"commonhold");
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // The daemon's mask came with it. Blocked or not, what is ignored is ignored: nothing is lost if this fails.
    let _ = host::child::unblock_signals();
    // Among the last to be killed when memory is short: it is small, and others depend on it. Needs privileges.
    let _ = host::write("/proc/self/oom_score_adj".as_ref(), "-900");
}

fn await_end(pipe: &OwnedFd, journal: &Path) {
    close_others(pipe.as_raw_fd());
    let mut watch = Watch::of(std::os::unix::process::parent_id());
    let mut bytes = [0u8; 64];
    loop {
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], watch.time_left(Instant::now()).as_ref()) {
            Ok(0) => {
                let_go(journal);
                watch.opened(Instant::now());
                continue;
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Nothing can be waited for any more: undoing too early harms less than never.
            Err(_) => return,
        }
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => return,
            Ok(length) => watch.hear(&bytes[..length], Instant::now()),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The daemon makes no turn: whom it has stopped goes on.
fn let_go(journal: &Path) {
    match Journal::read(journal) {
        Ok(entries) => super::let_go(&entries, Path::new("/proc"), &mut tell_of_letting_go),
        Err(err) => {
            let why = format!("{}: cannot read: {err}; continue by hand what is stopped", journal.display());
            tell_of_letting_go(&Undone { problems: vec![why], ..Undone::default() });
        }
    }
}

fn tell_of_letting_go(undone: &Undone) {
    if undone.is_empty() {
        return;
    }
    let mut to = io::stderr().lock();
    let _ = writeln!(
        to,
        "commonhold: problem: the daemon makes no turn, so what it has stopped goes on; {undone}"
    );
    for problem in &undone.problems {
        let _ = writeln!(to, "commonhold: problem: {problem}");
    }
}

/// The new session's autogroup has nice value 0. It gets this process's own, as the daemon's has it, and ends with this process.
fn stand_as_before() {
    let (Ok(nice), Ok(mut file)) =
        (rustix::process::getpriority_process(None), AutogroupFile::open(Path::new(autogroup::OWN)))
    else {
        return;
    };
    // Needs the privilege that the daemon had, or had not.
    if nice < 0 {
        let _ = file.set(nice);
    }
}

/// Whatever the daemon had open without marking it: a descriptor kept here would keep a lock or a pipe alive.
fn close_others(keep: i32) {
    let Ok(open) = host::list("/proc/self/fd".as_ref()) else { return };
    let numbers = open.iter().filter_map(|entry| entry.name().parse::<i32>().ok());
    for number in numbers.filter(|number| *number > 2 && *number != keep).collect::<Vec<_>>() {
        // SAFETY: nothing in this process uses these: it has just begun, and owns only the pipe and the standard three.
        unsafe { libc::close(number) };
    }
}

fn take_care(path: &Path, progress: &mut dyn FnMut()) -> Undone {
    let problem = |what: String| Undone { problems: vec![what], ..Undone::default() };
    match journal::take_over(path) {
        Ok(None) => Undone::default(),
        Ok(Some((entries, taken))) => {
            let mut undone = undo_visibly(&entries, Path::new("/proc"), progress);
            if let Err(err) = taken.remove() {
                undone.problems.push(format!("{}: cannot remove: {err}; remove it by hand", path.display()));
            }
            undone
        }
        Err(err) => problem(format!("nothing was undone: {err}")),
    }
}

/// Says a line to the daemon. False if that does not listen any more.
fn say(line: &str) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A caretaker whose part is played by a shell.
    fn played(script: &str) -> io::Result<Undone> {
        let dir = tempfile::tempdir().unwrap();
        let launch = Launch {
            program: PathBuf::from("/bin/sh"),
            arguments: ["-c", script].map(OsString::from).to_vec(),
        };
        let mut caretaker = Caretaker::spawn(&dir.path().join("journal"), &launch).unwrap();
        caretaker.lifeline = None;
        caretaker.collect()
    }

    #[test]
    fn who_gives_signs_of_life_is_waited_for() {
        let report = serde_json::to_string(&Undone { removed: 1_000, ..Undone::default() }).unwrap();
        let wait = format!("echo {READY}; cat > /dev/null; for i in 1 2 3; do sleep 2; echo; done");
        assert_eq!(played(&format!("{wait}; echo '{report}'")).unwrap().removed, 1_000);
    }

    #[test]
    fn who_gives_none_is_not() {
        let why = |script: &str| played(&format!("echo {READY}; {script}")).unwrap_err().to_string();
        assert_eq!(why("exec sleep 7"), "it has undone nothing for 5 s");
        assert_eq!(why("echo"), "it ended without a report");
    }
}
