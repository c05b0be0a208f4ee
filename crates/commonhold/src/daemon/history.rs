//! Writes the daemon's history: after a turn, at most once a second, the record of the time since the last
//! one.
//!
//! The history never keeps the daemon from its work. If it cannot be written, such as on a full disk, that is
//! a lasting problem, and writing is tried again every [`RETRY_NS`]; the first record then has the time since
//! the last one that was written.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use commonhold_command::place;
use commonhold_history::{Moment, Options, Sample, UsersCpu, Writer};
use commonhold_live::host::{clock, trust};
use commonhold_policy::Time;

use super::session::Session;
use crate::cli::Run;
use crate::output;

/// The least time between two records.
const RECORD_NS: Time = 1_000_000_000;
/// The time from a failure to the next attempt.
const RETRY_NS: Time = 10_000_000_000;

/// The history while the daemon runs.
pub(super) struct History {
    folder: PathBuf,
    options: Options,
    /// `None` while the history cannot be opened.
    writer: Option<Writer>,
    /// What the last record that was written ended with.
    last: Option<Sample>,
    /// When the next record is due, or the next attempt.
    due: Time,
    /// A part of the boot's identifier.
    boot: u64,
}

impl History {
    /// Opens the history; `private`: only the daemon's user may read it, as when /proc hides users' processes
    /// from each other. A failure is a problem, and no reason not to start.
    pub(super) fn open(args: &Run, directory: &Path, private: bool, session: &mut Session) -> History {
        // The directory's path is absolute; the command line's may not be.
        let of_directory = || directory.join("history");
        let folder = match args.place.directory {
            Some(_) => of_directory(),
            None => place::own_history(&args.place).unwrap_or_else(of_directory),
        };
        let options =
            Options { bytes_max: args.history_size.unwrap_or(commonhold_history::BYTES_DEFAULT), private };
        let mut history = History { folder, options, writer: None, last: None, due: 0, boot: clock::boot() };
        if history.reopen(session) {
            output::say(&format!("history in {}", history.folder.display()));
        }
        history
    }

    /// Sets whether only the daemon's user may read the history.
    pub(super) fn set_private(&mut self, private: bool, session: &mut Session) {
        if std::mem::replace(&mut self.options.private, private) != private {
            // Opening it sets the modes. The lock of the folder is released before.
            self.writer = None;
            self.reopen(session);
        }
    }

    /// Records the time since the last record if that is a second ago. Call this after a turn.
    pub(super) fn record(&mut self, session: &mut Session) {
        let now = clock::now();
        if now >= self.due {
            self.record_at(now, session);
        }
    }

    /// Records the rest of the time, at the end of the daemon.
    pub(super) fn record_rest(&mut self, session: &mut Session) {
        self.record_at(clock::now(), session);
    }

    fn record_at(&mut self, now: Time, session: &mut Session) {
        self.due = now.saturating_add(RECORD_NS);
        if self.writer.is_none() && !self.reopen(session) {
            return;
        }
        let sample = self.sample(session);
        let Some(last) = self.last.take() else {
            // The accounts begin here.
            self.last = Some(sample);
            return;
        };
        let Some(writer) = &mut self.writer else { return };
        match writer.append(Sample::between(&last, &sample)) {
            Ok(()) => {
                self.last = Some(sample);
                tell(session, None);
            }
            Err(error) => {
                self.last = Some(last);
                // Space comes back without our doing. Anything else, such as a folder that was removed, is
                // looked at anew.
                if !matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
                    self.writer = None;
                }
                self.fail(session, &format!("{}: {error}", self.folder.display()));
            }
        }
    }

    /// Opens the history; returns whether it is open.
    fn reopen(&mut self, session: &mut Session) -> bool {
        match make_trusted(&self.folder)
            .and_then(|()| Writer::open(&self.folder, &self.options).map_err(|error| error.to_string()))
        {
            Ok((writer, notes)) => {
                for note in notes {
                    output::warn(&format!("note: history: {note}"));
                }
                self.writer = Some(writer);
                tell(session, None);
                true
            }
            Err(why) => {
                self.fail(session, &why);
                false
            }
        }
    }

    fn fail(&mut self, session: &mut Session, why: &str) {
        self.due = clock::now().saturating_add(RETRY_NS);
        let remedy = "it is tried again every 10 s; `run --no-history` does without it";
        tell(session, Some(output::shown(&format!("history is not written: {why}; {remedy}"))));
    }

    fn sample(&self, session: &mut Session) -> Sample {
        let mut statement = session.statement();
        // Nothing of these is recorded.
        statement.exchanges = Vec::new();
        statement.jobs = Vec::new();
        let units = session.contract().listed();
        let paths: Vec<String> =
            units.iter().map(|unit| session.contract().unit(*unit).path.clone()).collect();
        let roster = session.backend().roster();
        let of = |(unit, path)| Some((path, roster.used_by_user(unit)?.clone()));
        let users: UsersCpu = units.into_iter().zip(paths).filter_map(of).collect();
        let at = Moment { wall_ms: clock::wall_ms(), boot: self.boot, boot_ns: clock::since_boot() };
        Sample { at, statement, users }
    }
}

/// Reports a problem when it begins and when it ends.
fn tell(session: &mut Session, problem: Option<String>) {
    match (session.note_history(problem.clone()), problem) {
        (None, Some(problem)) => output::complain(&format!("problem: {problem}")),
        (Some(problem), None) => output::say(&format!("problem ended: {problem}")),
        _ => {}
    }
}

/// Makes the folder and those around it if they do not exist. Fails if another user may replace one of them.
fn make_trusted(folder: &Path) -> Result<(), String> {
    let problem = |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}{error}", folder.display());
    let around = folder.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(around)
        .map_err(|e| problem("cannot make the folder around it: ", &e))?;
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(problem("cannot make it: ", &e)),
        _ => {}
    }
    match trust::who_else_may_replace(folder)
        .map_err(|e| problem("cannot look at the folders around it: ", &e))?
    {
        None => Ok(()),
        Some(why) => Err(problem("", &why)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_is_made_with_those_around_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state/commonhold/history");
        make_trusted(&folder).unwrap();
        make_trusted(&folder).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let why = make_trusted(&dir.path().join("file/history")).unwrap_err();
        assert!(why.contains("cannot make the folder around it"), "{why}");
    }
}
