//! Reads the small text files of a cgroup.

use std::io;
use std::path::Path;

use crate::host::{self, File};
use crate::{LiveError, MORE_FILES};

/// The number behind `key` in a file of `key number` lines, such as cpu.stat and cgroup.events.
pub(crate) fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A file's text, without white space at either end.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    Ok(host::read_to_string(path)?.trim().to_owned())
}

/// The processes directly in a cgroup. Processes of other pid namespaces, which the kernel shows as 0, are
/// left out: the kernel takes a written 0 for the writer. A last line without a newline is left out, too: the
/// pid in it may be truncated, and then names another process.
pub(crate) fn processes(dir: &Path) -> io::Result<Vec<u32>> {
    let text = host::read_to_string(&dir.join("cgroup.procs"))?;
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    Ok(lines.filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect())
}

/// The error for a failed access to a cgroup file, with a remedy by error code. `what` completes "cannot
/// ...".
pub(crate) fn failed(path: &Path, what: String, source: io::Error) -> LiveError {
    let remedy = match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            "; run as root, or below a delegated cgroup: systemd-run --user --scope -p Delegate=yes commonhold run ..."
        }
        Some(libc::ENOENT | libc::ENODEV) => {
            "; the cgroup was removed, or lost this controller: a service manager removes a cgroup with its last process, and a \
             controller that none of its settings needs; if this persists, see which controllers the parent cgroup has in \
             cgroup.subtree_control"
        }
        Some(libc::EBUSY) => {
            "; the cgroup still holds processes or cgroups of another program: move them out of it"
        }
        Some(libc::EMFILE) => MORE_FILES,
        _ => "",
    };
    LiveError::File { path: path.to_owned(), what, source, remedy: remedy.to_owned() }
}

/// A small kernel file that is read often, and opened once.
#[derive(Debug)]
pub(crate) struct Gauge(File);

impl Gauge {
    /// Opens it.
    pub(crate) fn open(path: &Path) -> Result<Gauge, LiveError> {
        match File::open(path) {
            Ok(file) => Ok(Gauge(file)),
            Err(source) => Err(failed(path, "open it".to_owned(), source)),
        }
    }

    /// The present number behind `key` in a file of `key number` lines; 0 if the file has no such key.
    pub(crate) fn value(&self, key: &str) -> Result<u64, LiveError> {
        self.values([key]).map(|[value]| value)
    }

    /// As [`Gauge::value`], for several keys, in one read.
    pub(crate) fn values<const N: usize>(&self, keys: [&str; N]) -> Result<[u64; N], LiveError> {
        let mut buffer = [0; 1024];
        let read = self.0.read_at(&mut buffer, 0);
        let n = read.map_err(|source| failed(self.0.path(), "read it".to_owned(), source))?;
        let text = std::str::from_utf8(&buffer[..n]).unwrap_or_default();
        Ok(keys.map(|key| value_of(text, key).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_key() {
        let text = "usage_usec 1234\nuser_usec 1000\nsystem_usec x\n";
        assert_eq!(value_of(text, "usage_usec"), Some(1234));
        assert_eq!(value_of(text, "user_usec"), Some(1000));
        assert_eq!(value_of(text, "system_usec"), None);
        assert_eq!(value_of(text, "usage"), None);
    }

    #[test]
    fn a_lack_of_descriptors_names_the_limit_to_raise() {
        let error =
            failed(Path::new("cpu.stat"), "open it".to_owned(), io::Error::from_raw_os_error(libc::EMFILE));
        assert!(error.to_string().contains("LimitNOFILE="), "{error}");
    }
}
