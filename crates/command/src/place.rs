//! The daemon's directory, with its socket, lock and journal: how a daemon makes the directory, and how a
//! client finds it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use commonhold_live::host::trust;
use commonhold_live::undo::journal::FILE_NAME;

use crate::exit::{Exit, Failure};
use crate::output;

// The comments of the fields are the help that users read; clap would show one on the struct in their place.
#[allow(missing_docs)]
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// The daemon's directory [default for root: /run/commonhold; for others: `$XDG_RUNTIME_DIR/commonhold`,
    /// or /tmp/commonhold-UID if that is missing; client commands then try root's]
    #[arg(long, value_name = "DIR", env = "COMMONHOLD_DIR", hide_env_values = true)]
    pub directory: Option<PathBuf>,
}

/// The directory of root's daemon. Clients of other users try the directory of the user's own daemon before
/// it.
const SYSTEM: &str = "/run/commonhold";

/// The socket in a daemon's directory.
pub fn socket(directory: &Path) -> PathBuf {
    directory.join("socket")
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The default directory of this user's daemon.
fn default_directory() -> PathBuf {
    if uid() == 0 {
        return PathBuf::from(SYSTEM);
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    // Outside a systemd session the variable is unset, and the directory is in /tmp. Another user could have
    // made it there, so its owner is checked before use.
    runtime
        .map_or_else(|| PathBuf::from(format!("/tmp/commonhold-{}", uid())), |path| path.join("commonhold"))
}

/// Makes the daemon's directory, if it does not exist; returns its absolute path. Fails if another user owns
/// the directory, or could write to it or replace it.
pub fn make(place: &Place) -> Result<PathBuf, Failure> {
    let directory = place.directory.clone().unwrap_or_else(default_directory);
    // Root's daemon serves every user; an ordinary user's daemon serves that user.
    let mode = if uid() == 0 { 0o755 } else { 0o700 };
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(&directory);
    let problem = |what: String| {
        Failure::new(
            Exit::System,
            format!("{}: {what}; choose another place with --directory", directory.display()),
        )
    };
    made.map_err(|e| problem(format!("cannot make the daemon's directory: {e}")))?;
    let facts = fs::symlink_metadata(&directory).map_err(|e| problem(e.to_string()))?;
    if !facts.is_dir() || facts.uid() != uid() {
        return Err(problem(format!("this must be a directory of user {}, and is not", uid())));
    }
    if facts.mode() & 0o022 != 0 {
        return Err(problem("others may write there".to_owned()));
    }
    // A user who may rename a directory on the path could put another directory in its place.
    if let Some(why) = trust::who_else_may_replace(&directory).map_err(|e| problem(e.to_string()))? {
        return Err(problem(why));
    }
    // The path must be absolute, since the caretaker has another working directory than the daemon.
    fs::canonicalize(&directory).map_err(|e| problem(e.to_string()))
}

/// The folder of root's history.
const SYSTEM_HISTORY: &str = "/var/lib/commonhold/history";

/// The folder in which this user's daemon keeps its history: `history` in the directory that the command line
/// names. Without one, root's daemon keeps it in /var/lib/commonhold, and another user's where programs keep
/// their state; `None` if that user has no home.
pub fn own_history(place: &Place) -> Option<PathBuf> {
    if let Some(directory) = &place.directory {
        return Some(directory.join("history"));
    }
    if uid() == 0 {
        return Some(PathBuf::from(SYSTEM_HISTORY));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("commonhold/history"))
}

/// The folders in which a client looks for a history: that of this user's daemon, then root's, unless the
/// command line names a directory.
pub fn histories(place: &Place) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = own_history(place).into_iter().collect();
    if place.directory.is_none() {
        folders.push(PathBuf::from(SYSTEM_HISTORY));
    }
    folders.dedup();
    folders
}

/// Connects to the daemon in the directory that the command line names. Without one, tries this user's
/// daemon, then root's.
pub fn connect(place: &Place) -> Result<UnixStream, Failure> {
    let places = match &place.directory {
        Some(directory) => vec![directory.clone()],
        None => vec![default_directory(), PathBuf::from(SYSTEM)],
    };
    let (mut tried, mut with_journal) = (Vec::new(), Vec::new());
    for directory in places {
        if place.directory.is_none() && is_of_another_user(&directory) {
            tried.push(format!("{} belongs to another user", directory.display()));
            continue;
        }
        match UnixStream::connect(socket(&directory)) {
            Ok(stream) => return Ok(stream),
            Err(e) => tried.push(format!("{}: {e}", socket(&directory).display())),
        }
        // A journal without a daemon shows that the daemon and its caretaker were killed before they undid
        // the changes.
        if directory.join(FILE_NAME).exists() {
            with_journal.push(directory);
        }
    }
    tried.dedup();
    let mut why = format!(
        "no daemon runs here ({}); start one with `commonhold run CONTRACT`, or name its folder with --directory",
        tried.join("; ")
    );
    with_journal.dedup();
    for directory in with_journal {
        let _ = write!(
            why,
            "; if one was killed with its caretaker, the next one in {} undoes what it has left, such as stopped processes",
            directory.display()
        );
    }
    Err(Failure::new(Exit::Unavailable, why))
}

/// Warns if a daemon runs in a default directory other than `directory`.
pub fn warn_of_others(directory: &Path) {
    let mut places = vec![default_directory(), PathBuf::from(SYSTEM)];
    places.dedup();
    for other in places.iter().filter(|other| *other != directory && !is_of_another_user(other)) {
        if UnixStream::connect(socket(other)).is_ok() {
            output::warn(&format!(
                "warning: another daemon runs in {}; two that hold the same processes undo each other's work",
                other.display()
            ));
        }
    }
}

/// Whether the directory belongs to neither this user nor root. Such a directory in /tmp could be a trap.
fn is_of_another_user(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|facts| facts.uid() != 0 && facts.uid() != uid())
}
