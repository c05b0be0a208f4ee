//! The lock of a daemon's directory. Two daemons with the same directory would undo each other's changes.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::LiveError;
use crate::host::{File, trust};

/// The lock file's name in the daemon's directory.
pub const FILE_NAME: &str = "lock";

/// A lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Locks a daemon's directory; `None` if another daemon holds the lock.
///
/// Errors: the lock file cannot be opened or locked, or another user could have made the file.
pub fn take(directory: &Path) -> Result<Option<Lock>, LiveError> {
    let path = directory.join(FILE_NAME);
    let mut options = OpenOptions::new();
    // `u64::MAX`: the content is never read, so a file of any size will do.
    let opened = trust::open_own(&path, options.read(true).append(true).create(true).mode(0o600), u64::MAX);
    let failed = |what: &str, source: io::Error| LiveError::File {
        path: path.clone(),
        what: what.to_owned(),
        source,
        remedy: "; remove it if no daemon runs there, or give another --directory".to_owned(),
    };
    let file = opened.map_err(|error| failed("open the daemon's lock", error))?;
    match file.lock() {
        Ok(()) => Ok(Some(Lock { _file: file })),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(failed("lock the daemon's directory", error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = take(dir.path()).unwrap();
        assert!(lock.is_some());
        assert!(take(dir.path()).unwrap().is_none());
        drop(lock);
        assert!(take(dir.path()).unwrap().is_some());
    }

    #[test]
    fn a_foreign_file_is_refused() {
        trust::tests::each_impostor(|path, words| {
            let directory = path.parent().unwrap();
            std::fs::rename(path, directory.join(FILE_NAME)).unwrap();
            let error = take(directory).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        });
    }
}
