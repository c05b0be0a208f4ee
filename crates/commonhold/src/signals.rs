//! Signals as a file. Those that are asked for are blocked, and read like anything else that is waited for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) signal: i32,
    /// The kernel sent it, as it does for a key of the terminal: to all processes in the foreground.
    pub(crate) by_kernel: bool,
}

/// The open signal file.
#[derive(Debug)]
pub(crate) struct Signals {
    file: OwnedFd,
}

impl Signals {
    /// Blocks the signals for this process, and opens the file. What is started would inherit that: see
    /// [`commonhold_live::command`].
    pub(crate) fn open(signals: &[i32]) -> io::Result<Signals> {
        // SAFETY: plain system calls on sets that live on this stack; the descriptor is ours alone.
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

    /// The next signal that came, if any.
    pub(crate) fn next(&self) -> Option<Came> {
        // SAFETY: the kernel fills the whole structure or nothing.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: the buffer is that structure, and as long as said.
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
