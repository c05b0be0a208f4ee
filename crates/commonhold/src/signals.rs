//! Signals as a file. SIGINT, SIGTERM and SIGHUP are blocked, and read like anything else that is waited for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What this program is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Stop,
    Reload,
}

/// The open signal file.
#[derive(Debug)]
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals for this process, and for what it starts, and opens the file.
    pub(crate) fn open() -> io::Result<Signals> {
        // SAFETY: plain system calls on a set that lives on this stack; the descriptor is ours alone.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Signals(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// The next signal that came, if any.
    pub(crate) fn next(&self) -> Option<Told> {
        // SAFETY: the kernel fills the whole structure or nothing.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: the buffer is that structure, and as long as said.
        let n = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size) };
        if usize::try_from(n) != Ok(size) {
            return None;
        }
        Some(if i64::from(info.ssi_signo) == i64::from(libc::SIGHUP) { Told::Reload } else { Told::Stop })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
