//! Signals to processes that are certainly the intended ones.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::tamper::{About, Kind, ask, is_on, pass};
use crate::LiveError;

/// A process by a descriptor: no later one with its number is meant.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(super) process: OwnedFd,
    pub(super) pid: u32,
}

impl Pinned {
    /// The process that has this number now. Errors are the kernel's: `ESRCH` when there is none.
    pub(crate) fn of(pid: u32) -> io::Result<Pinned> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        pass(Kind::Pin, About::Process(pid))?;
        Ok(Pinned { process: pidfd_open(number, PidfdFlags::empty())?, pid })
    }

    /// Sends it a signal. Errors are the kernel's: `ESRCH` when it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        if is_on() {
            ask(Kind::Signal, About::Process(self.pid), signal.as_raw().to_string()).passed()?;
        }
        Ok(pidfd_send_signal(&self.process, signal)?)
    }

    /// Becomes readable when it ends.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.process
    }
}

/// Sends a signal to the process of that number, if `is_wanted` says then that it is the intended one. Whether it was sent.
///
/// The process is pinned before `is_wanted` looks at it, so that the signal cannot hit a later process with the same number.
/// A process that is gone is not an error.
pub(crate) fn send(
    pid: u32,
    signal: Signal,
    is_wanted: impl FnOnce() -> Result<bool, LiveError>,
) -> io::Result<bool> {
    let sent = Pinned::of(pid).and_then(|pinned| {
        if !is_wanted().map_err(io::Error::other)? {
            return Ok(false);
        }
        pinned.signal(signal).map(|()| true)
    });
    match sent {
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        sent => sent,
    }
}
