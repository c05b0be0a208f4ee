//! Sends signals only to processes whose identity was checked.

use std::io;

use rustix::process::Signal;

use super::Pinned;
use crate::LiveError;

/// Sends a signal to the process with this pid, if `is_wanted` confirms that it is the intended process.
/// Returns whether the signal was sent.
///
/// The process is pinned before `is_wanted` is called, so that the signal cannot hit a later process with the
/// same pid. A process that has ended is not an error.
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
