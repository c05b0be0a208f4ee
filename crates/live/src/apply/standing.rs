//! Raises the daemon's own CPU priority relative to other sessions.

use std::path::Path;

use crate::LiveError;
use crate::host::autogroup::{AutogroupFile, OWN};
use crate::undo::journal::{Entry, Journal, record};

/// Sets the nice value of the daemon's session autogroup to at most `nice`, until the daemon ends.
///
/// With autogroups, a process's own nice value counts only within its session; between sessions, the
/// autogroup's counts. Does nothing without the privilege, or if the kernel has no autogroups.
///
/// The value is set even while autogroups are switched off, because they may be switched on at any time.
/// Other processes of the session, for example a shell's, gain priority, too: a daemon that waits for a CPU
/// harms every unit, and the user who starts the daemon from a shell decides what else runs in that session.
/// If two daemons share a session, the first one sets the value, and reverts it when it ends.
///
/// Errors: the journal cannot record the change.
pub fn raise_session(nice: i32, journal: &mut Journal) -> Result<(), LiveError> {
    let Ok(mut file) = AutogroupFile::open(Path::new(OWN)) else { return Ok(()) };
    let read = file.get().ok().flatten();
    let Some(original) = read.filter(|autogroup| autogroup.nice > nice) else { return Ok(()) };
    record(journal, &[Entry::Autogroup { number: original.number, nice: original.nice, given: nice }])?;
    let _ = file.set(nice);
    Ok(())
}
