//! Signals to processes that are certainly the intended ones.

use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::journal::ProcessKey;
use crate::observe::process::{ProcFs, Stat};

/// Sends a signal to a process if `wanted` holds for what it does now. Whether it was sent.
///
/// The process is pinned by a descriptor before its start time and state are read, so that the signal cannot hit a later
/// process with the same number. A process that is gone is not an error.
pub(crate) fn send(
    procfs: &mut ProcFs,
    key: ProcessKey,
    signal: Signal,
    wanted: impl FnOnce(&Stat) -> bool,
) -> io::Result<bool> {
    let Some(pid) = i32::try_from(key.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    let sent = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).and_then(|pinned| match procfs
        .stat(key.pid)
        .map_err(io::Error::other)?
    {
        Some(stat) if stat.key == key && wanted(&stat) => {
            Ok(pidfd_send_signal(&pinned, signal).map(|()| true)?)
        }
        _ => Ok(false),
    });
    match sent {
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        sent => sent,
    }
}
