//! The daemon's own standing among processes.

use std::path::Path;

use crate::LiveError;
use crate::host::autogroup::{AutogroupFile, OWN};
use crate::undo::journal::{Entry, Journal, record};

/// Has the daemon's nice value count beyond its session: its session's autogroup gets it, too, until the daemon's end. Without the
/// privilege, or without autogroups in the kernel, nothing changes.
///
/// Also where autogroup is switched off at the moment: it may be switched on at any time. And where the session has other
/// processes, as a shell's has: these go first as well. A daemon that waits harms every unit, and whoever starts one from a
/// shell decides what else runs there. Of two daemons in one session, the first sets the value and takes it back at its own end.
///
/// Errors: the journal cannot take how to undo it.
pub fn raise_session(nice: i32, journal: &mut Journal) -> Result<(), LiveError> {
    let Ok(mut file) = AutogroupFile::open(Path::new(OWN)) else { return Ok(()) };
    let Some(found) = file.get().ok().flatten().filter(|found| found.nice > nice) else { return Ok(()) };
    record(journal, &[Entry::Autogroup { number: found.number, nice: found.nice, given: nice }])?;
    let _ = file.set(nice);
    Ok(())
}
