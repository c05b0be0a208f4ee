//! Keeps measurements between runs of the program and across reboots.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;

use crate::LiveError;
use crate::host::{self, trust};

/// Makes the folder for results. Call this before measuring, so that no measurement is wasted.
pub(crate) fn make_folder(folder: &Path) -> Result<(), LiveError> {
    host::make_dirs(folder).map_err(|source| failed(folder, "make it", source))
}

/// Writes a result to a file as JSON, and replaces an earlier result.
pub(crate) fn keep(path: &Path, result: &impl Serialize) -> Result<(), LiveError> {
    let text =
        serde_json::to_string_pretty(result).map_err(|error| failed(path, "write it", error.into()))?;
    // The replacement is atomic: a concurrent reader gets either the old or the new result.
    let new = path.with_extension("new");
    write(&new, (text + "\n").as_bytes())
        .and_then(|()| host::rename(&new, path))
        .map_err(|source| failed(path, "write it", source))
}

/// Replaces the content of a file that every user may read, because `doctor` shows it to any user.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = trust::open_own(path, options.append(true).create(true).mode(0o644), u64::MAX)?;
    file.set_len(0)?;
    file.write_all(bytes)
}

fn failed(path: &Path, what: &str, source: io::Error) -> LiveError {
    let remedy = match source.kind() {
        io::ErrorKind::PermissionDenied => "; run as root",
        _ => "",
    };
    LiveError::File { path: path.to_owned(), what: what.to_owned(), source, remedy: remedy.to_owned() }
}
