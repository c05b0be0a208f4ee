//! The daemon's own CPU priority among other sessions.

use std::path::Path;

use crate::LiveError;
use crate::host::autogroup::{AutogroupFile, OWN};
use crate::undo::journal::{Entry, Journal, record};

/// Extends the daemon's nice value to its session's autogroup, until the daemon's end, so that it also counts against other
/// sessions. Does nothing without the privilege, or without autogroups in the kernel.
///
/// Also sets it while autogroups are switched off, because they may be switched on at any time; and if the session has other
/// processes, as a shell's has, which then gain priority, too. A daemon that waits for a CPU harms every unit, and the user who
/// starts one from a shell decides what else runs there. Of two daemons in one session, the first sets the value and reverts it
/// at its own end.
///
/// Errors: the journal cannot record the change.
pub fn raise_session(nice: i32, journal: &mut Journal) -> Result<(), LiveError> {
    let Ok(mut file) = AutogroupFile::open(Path::new(OWN)) else { return Ok(()) };
    let Some(found) = file.get().ok().flatten().filter(|found| found.nice > nice) else { return Ok(()) };
    record(journal, &[Entry::Autogroup { number: found.number, nice: found.nice, given: nice }])?;
    let _ = file.set(nice);
    Ok(())
}
