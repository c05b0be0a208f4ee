//! The directory where a daemon and its clients meet: socket, lock and journal.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use commonhold_live::host::trust;
use commonhold_live::undo::journal::FILE_NAME;

use crate::cli::Place;
use crate::exit::{Exit, Failure};
use crate::output;

/// Root's directory, which every user's clients try.
const SYSTEM: &str = "/run/commonhold";

/// The socket in a daemon's directory.
pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("socket")
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The default directory of this user's daemon.
fn own() -> PathBuf {
    if uid() == 0 {
        return PathBuf::from(SYSTEM);
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    // Outside a systemd session the variable is unset; the owner of the fallback in /tmp is checked before use.
    runtime
        .map_or_else(|| PathBuf::from(format!("/tmp/commonhold-{}", uid())), |path| path.join("commonhold"))
}

/// Makes the daemon's directory, or checks an existing one, which another user could have planted.
pub(crate) fn make(place: &Place) -> Result<PathBuf, Failure> {
    let directory = place.directory.clone().unwrap_or_else(own);
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
    // A user who may rename a parent directory could replace it.
    if let Some(why) = trust::who_else_may_replace(&directory).map_err(|e| problem(e.to_string()))? {
        return Err(problem(why));
    }
    // Absolute, because the caretaker leaves the daemon's working directory.
    fs::canonicalize(&directory).map_err(|e| problem(e.to_string()))
}

/// Connects to the daemon in the given directory, else to the user's own, else to root's.
pub(crate) fn connect(place: &Place) -> Result<UnixStream, Failure> {
    let places = match &place.directory {
        Some(directory) => vec![directory.clone()],
        None => vec![own(), PathBuf::from(SYSTEM)],
    };
    let (mut tried, mut left) = (Vec::new(), Vec::new());
    for directory in places {
        if place.directory.is_none() && is_trap(&directory) {
            tried.push(format!("{} belongs to another user", directory.display()));
            continue;
        }
        match UnixStream::connect(socket(&directory)) {
            Ok(stream) => return Ok(stream),
            Err(e) => tried.push(format!("{}: {e}", socket(&directory).display())),
        }
        if directory.join(FILE_NAME).exists() {
            left.push(directory);
        }
    }
    tried.dedup();
    let mut why = format!(
        "no daemon runs here ({}); start one with `commonhold run CONTRACT`, or name its folder with --directory",
        tried.join("; ")
    );
    left.dedup();
    for directory in left {
        let _ = write!(
            why,
            "; if one was killed with its caretaker, the next one in {} undoes what it has left, such as stopped processes",
            directory.display()
        );
    }
    Err(Failure::new(Exit::Unavailable, why))
}

/// Warns if another daemon than the one in `directory` runs in a default directory.
pub(crate) fn warn_of_others(directory: &Path) {
    let mut places = vec![own(), PathBuf::from(SYSTEM)];
    places.dedup();
    for other in places.iter().filter(|other| *other != directory && !is_trap(other)) {
        if UnixStream::connect(socket(other)).is_ok() {
            output::warn(&format!(
                "warning: another daemon runs in {}; two that hold the same processes undo each other's work",
                other.display()
            ));
        }
    }
}

/// Whether another user except root owns this directory, as any user can make one in /tmp.
fn is_trap(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|facts| facts.uid() != 0 && facts.uid() != uid())
}
