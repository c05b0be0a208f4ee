//! The perf map of a process: names of its JIT code.
//!
//! Problem: JIT code is in no file. The JVM, node and Python have flags to write its names to
//! `/tmp/perf-PID.map`, some of them only at exit. Every user may write to that directory, and the name may
//! be left over from an earlier process.
//!
//! Algorithm: the root directory of the process, which contains its /tmp, is kept open while the process
//! runs. The map is read after the process has ended. The map must belong to the process's user or to root,
//! and must not be older than the program.
//!
//! Source: tools/perf/Documentation/jit-interface.txt of Linux.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use commonhold_live::LiveError;
use commonhold_live::host::trust;
use commonhold_live::observe::process::ProcFs;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

/// The maximum size of a map: more than that of a large server.
const BYTES_MAX: u64 = 64 << 20;

/// Where a process's perf map is expected.
#[derive(Debug)]
pub(crate) struct PerfMap {
    /// The root of the process's file system.
    root: OwnedFd,
    name: String,
    owner: u32,
    since_s: i64,
}

impl PerfMap {
    /// The map of a process of a program that was started at `since_ms` (Unix time); `None` if the process is
    /// gone, or its root directory cannot be opened.
    pub(crate) fn of(procfs: &mut ProcFs, pid: u32, since_ms: u64) -> Result<Option<PerfMap>, LiveError> {
        let (Some(identity), Some(number)) = (procfs.identity(pid)?, innermost_pid(procfs, pid)?) else {
            return Ok(None);
        };
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{pid}/root"), folder, Mode::empty()).ok();
        let since_s = i64::try_from(since_ms / 1000).unwrap_or(0);
        let name = format!("tmp/perf-{number}.map");
        Ok(root.map(|root| PerfMap { root, name, owner: identity.uid, since_s }))
    }

    /// Reads the map. Errors: those of [`read_within`].
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        read_within(&self.root, &self.name, &[self.owner, 0], self.since_s, BYTES_MAX)
    }
}

/// A process's number in its innermost PID namespace, such as a container's; `None` if it is gone.
fn innermost_pid(procfs: &mut ProcFs, pid: u32) -> Result<Option<u32>, LiveError> {
    let status = procfs.read(&format!("{pid}/status"))?.map(String::from_utf8_lossy);
    Ok(status.and_then(|text| {
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        numbers.split_whitespace().next_back()?.parse().ok()
    }))
}

/// Reads a file at a path below `root` that was last modified at `since_s` (Unix time) or later. Links do not
/// lead out of `root`, and nothing is opened before it was found to be a regular file: the process may have
/// put a FIFO or a device there.
///
/// Errors: `InvalidInput` if it is no regular file, belongs to none of these owners, or is older;
/// `FileTooLarge` above `bytes_max`; else the kernel's.
fn read_within(
    root: &OwnedFd,
    name: &str,
    owners: &[u32],
    since_s: i64,
    bytes_max: u64,
) -> io::Result<Vec<u8>> {
    let refuse = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let without_opening = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = File::from(openat2(root, name, without_opening, Mode::empty(), within)?);
    let facts = found.metadata()?;
    trust::regular(&facts)?;
    if !owners.contains(&facts.uid()) {
        return Err(refuse(format!("it belongs to another user (uid {})", facts.uid())));
    }
    if facts.mtime() < since_s {
        return Err(refuse("it is older than the program: another one left it there".to_owned()));
    }
    // By its descriptor, this is the file that was examined, even if its name leads to another file by now.
    trust::read_input(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd())), bytes_max)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;
    use commonhold_live::host::clock;
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::process::Command;

    fn folder(path: &Path) -> OwnedFd {
        open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn a_map_is_read_within_the_process_s_own_root() {
        let dir = tempfile::tempdir().unwrap();
        let owner = rustix::process::geteuid().as_raw();
        let root = folder(dir.path());
        let read = |name: &str, since_s| read_within(&root, name, &[owner], since_s, 7);
        fs::create_dir(dir.path().join("inner")).unwrap();
        fs::write(dir.path().join("inner/file"), "1234567").unwrap();
        // A link of a container leads within the container, and so does one that climbs.
        symlink("/inner", dir.path().join("link")).unwrap();
        symlink("../../../../etc", dir.path().join("out")).unwrap();
        assert_eq!(read("link/file", 0).unwrap(), b"1234567");
        assert_eq!(read("out/passwd", 0).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read("gone", 0).unwrap_err().kind(), io::ErrorKind::NotFound);
        let error = read("link/file", i64::MAX).unwrap_err();
        assert_eq!(error.to_string(), "it is older than the program: another one left it there");
        fs::write(dir.path().join("huge"), "12345678").unwrap();
        assert_eq!(read("huge", 0).unwrap_err().to_string(), "it has more than 7 bytes");
    }

    #[test]
    fn what_is_no_regular_file_of_the_process_s_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        fs::create_dir(path("folder")).unwrap();
        symlink("/dev/zero", path("link")).unwrap();
        fs::write(path("foreign"), "x").unwrap();
        let owner = rustix::process::geteuid().as_raw();
        let mut refused = vec![
            ("fifo", "it is a FIFO or pipe, not a regular file"),
            ("folder", "it is a directory, not a regular file"),
            ("link", "it is a symbolic link, not a regular file"),
        ];
        if owner == 0 {
            chown(path("foreign"), Some(54_321), None).unwrap();
            refused.push(("foreign", "it belongs to another user (uid 54321)"));
        }
        for (name, words) in refused {
            let read = read_within(&folder(dir.path()), name, &[0, owner], 0, 1 << 20);
            assert_eq!(read.unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn the_map_of_this_process() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let me = std::process::id();
        let map = PerfMap::of(&mut procfs, me, clock::wall_ms() - 5000).unwrap().unwrap();
        assert_eq!(map.read().unwrap_err().kind(), io::ErrorKind::NotFound);
        let path = format!("/tmp/perf-{me}.map");
        std::fs::write(&path, "7f00 10 work\n").unwrap();
        let read = map.read();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), b"7f00 10 work\n");
        assert!(PerfMap::of(&mut procfs, u32::MAX, 0).unwrap().is_none());
    }
}
