//! Reads small files of the kernel below a root, which a test can replace by a folder that imitates a
//! machine.
//!
//! Files of /proc and /sys appear and vanish: a CPU goes offline, a module is unloaded. So a missing file is
//! an answer (`None`) and not a failure, unless the caller requires the file.

use std::io;
use std::path::{Path, PathBuf};

use crate::LiveError;
use crate::host;

/// The most that is read of a file: more than any kernel file has, so that a fake or broken file cannot
/// exhaust memory.
const BYTES_MAX: u64 = 1 << 20;

/// A tree of kernel files: `/`, or a folder that imitates it.
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Tree {
        Tree { root: root.to_owned() }
    }

    /// Where a file of the real machine (`/proc/...`) lies in this tree.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text, trimmed. At most 1 MiB of it; bytes that are not UTF-8 are replaced.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let bytes = host::read_at_most(&self.path(path), BYTES_MAX)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file's text; `None` if it cannot be read for any reason.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.read(path).ok()
    }

    /// The text of a file that a program of this project keeps; `None` if it is missing, or if others may
    /// have written it.
    pub(crate) fn kept(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = host::trust::read_kept(&self.path(path), BYTES_MAX).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// A file's text; `None` if it does not exist, or no longer does.
    pub(crate) fn optional(&self, path: &str) -> Result<Option<String>, LiveError> {
        match self.read(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(self.failed(path, error)),
        }
    }

    /// A file's text. A missing file is an error.
    pub(crate) fn required(&self, path: &str) -> Result<String, LiveError> {
        self.read(path).map_err(|error| self.failed(path, error))
    }

    /// A folder's names, sorted; empty if the folder cannot be read.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = host::list(&self.path(path)) else { return Vec::new() };
        let name_of = |entry: host::Entry| Some(entry.path.file_name()?.to_str()?.to_owned());
        let mut names: Vec<String> = entries.into_iter().filter_map(name_of).collect();
        names.sort();
        names
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        host::exists(&self.path(path))
    }

    /// Whether this process, with its effective user, may write to a file or folder. False on a read-only
    /// file system.
    pub(crate) fn may_write(&self, path: impl AsRef<Path>) -> bool {
        host::may_write(&self.path(path))
    }

    /// The error for a file whose text is not in the expected format; `expected` names the format, such as "a
    /// number".
    pub(crate) fn malformed(&self, path: &str, expected: &str, text: &str) -> LiveError {
        let text: String = text.chars().take(60).collect();
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("`{text}` is not {expected}"));
        self.failed(path, source)
    }

    /// The error for a file that cannot be read, with a remedy by the kind of error.
    fn failed(&self, path: &str, source: io::Error) -> LiveError {
        let remedy = match source.kind() {
            io::ErrorKind::NotFound => "; is /proc or /sys mounted?",
            io::ErrorKind::PermissionDenied => "; run as root, or make the file readable",
            _ => "; this kernel's format is not known: please report it with the file's text",
        };
        LiveError::File {
            path: self.path(path),
            what: "read it".to_owned(),
            source,
            remedy: remedy.to_owned(),
        }
    }
}

/// Makes a text safe to use within a file name: an underscore replaces every character that could be special
/// to a file system or a terminal.
pub(crate) fn plain(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    text.chars().map(safe).take(80).collect()
}

/// Whether an error says that a file, or the object it describes, does not exist.
fn is_gone(error: &io::Error) -> bool {
    let missing = [libc::ENOENT, libc::ENODEV, libc::ENXIO, libc::ESRCH, libc::ENOTDIR];
    error.raw_os_error().is_some_and(|code| missing.contains(&code))
}

#[cfg(test)]
pub(crate) mod fake {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    /// A folder with these files in it, by their path on a real machine.
    pub(crate) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        add(&dir, files);
        dir
    }

    /// Adds files, or replaces them.
    pub(crate) fn add(dir: &tempfile::TempDir, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }
}
