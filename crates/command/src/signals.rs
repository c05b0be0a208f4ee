//! Signals as events: the requested signals are blocked, and read from a signalfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exit::{Exit, Failure};

/// The signals that end a program: Ctrl-C, a request to terminate, and hang-up of the terminal.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    /// The signal's number.
    pub signal: i32,
    /// Whether the kernel sent it, as for a terminal key. The whole foreground process group then has the
    /// signal, too.
    pub by_kernel: bool,
}

/// A signalfd.
#[derive(Debug)]
pub struct Signals {
    file: OwnedFd,
}

impl Signals {
    /// Blocks the signals for this thread, and opens a signalfd for them. Child processes inherit the mask
    /// unless they are started by [`commonhold_live::host::child::command`].
    pub fn open(signals: &[i32]) -> io::Result<Signals> {
        // SAFETY: the system calls use a set that lives on this stack, and only this function owns the new
        // descriptor.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, *signal);
            }
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Signals { file: OwnedFd::from_raw_fd(fd) }),
            }
        }
    }

    /// Opens the signals that end a program. A signal that is ignored, as under `nohup`, stays ignored.
    pub fn of_an_end() -> Result<Signals, Failure> {
        let heeded: Vec<i32> = ENDING.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        Signals::open(&heeded)
            .map_err(|e| Failure::new(Exit::System, format!("cannot wait for signals: {e}")))
    }

    /// Waits for a signal for at most `time`; returns whether one is pending. The signal stays pending.
    pub fn came_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).ok();
        let mut files = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut files, time.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// The next pending signal, if any.
    pub fn next(&self) -> Option<Came> {
        // SAFETY: the kernel fills the whole structure or nothing.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: the buffer is `info`, and the length is the size of `info`.
        let n = unsafe { libc::read(self.file.as_raw_fd(), (&raw mut info).cast(), size) };
        if usize::try_from(n) != Ok(size) {
            return None;
        }
        let signal = i32::try_from(info.ssi_signo).ok()?;
        Some(Came { signal, by_kernel: info.ssi_code == libc::SI_KERNEL })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: without a new action, sigaction(2) only fills the structure, or fails.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Ends this process by a signal that it blocked, so that its parent sees the signal in the wait status.
pub fn end_by(signal: i32) -> ! {
    // SAFETY: the system calls use a set that lives on this stack, and the default action runs no code of
    // this process.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
    std::process::exit(128 + signal)
}
