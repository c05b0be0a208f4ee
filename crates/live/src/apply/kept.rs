//! Keeping what was measured between runs of the program and of the machine.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;

use crate::LiveError;
use crate::host::{self, trust};

/// Makes a folder for results, so that nothing is measured for naught.
pub(crate) fn make_folder(folder: &Path) -> Result<(), LiveError> {
    host::make_dirs(folder).map_err(|source| failed(folder, "make it", source))
}

/// Keeps a result, in place of what was known before.
pub(crate) fn keep(path: &Path, result: &impl Serialize) -> Result<(), LiveError> {
    let text =
        serde_json::to_string_pretty(result).map_err(|error| failed(path, "write it", error.into()))?;
    // Whoever reads it meanwhile finds the one or the other.
    let new = path.with_extension("new");
    write(&new, (text + "\n").as_bytes())
        .and_then(|()| host::rename(&new, path))
        .map_err(|source| failed(path, "write it", source))
}

/// Every user may read it, since `doctor` shows it.
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
