//! The names of a process's JIT code: its perf map.
//!
//! Problem: no file has JIT code. A program that is asked to writes the names to `/tmp/perf-PID.map`: Java's machine, node and
//! Python have flags for it. Some write it when they end. The file lies where everybody may write, under a name that another
//! process may have had.
//!
//! Algorithm: the root of the process's tree of files, where its /tmp is, is kept open while the process runs, and the map is
//! read when it has ended. The map must belong to the process's user or to root, and be no older than the program.
//!
//! Source: tools/perf/Documentation/jit-interface.txt of Linux.

use std::io;
use std::path::Path;

use super::process::ProcFs;
use crate::LiveError;
use crate::host::{Dir, trust};

/// More than a large server's has.
const BYTES_MAX: u64 = 64 << 20;

/// Where a process's perf map is to be.
#[derive(Debug)]
pub(crate) struct PerfMap {
    root: Dir,
    name: String,
    owner: u32,
    since_s: i64,
}

impl PerfMap {
    /// Of a process of a program that was started at that time; `None` if it is gone, or hides its tree of files.
    pub(crate) fn of(procfs: &mut ProcFs, pid: u32, since_ms: u64) -> Result<Option<PerfMap>, LiveError> {
        let (Some(identity), Some(number)) = (procfs.identity(pid)?, procfs.innermost_number(pid)?) else {
            return Ok(None);
        };
        let root = Dir::open(&Path::new("/proc").join(format!("{pid}/root"))).ok();
        let since_s = i64::try_from(since_ms / 1000).unwrap_or(0);
        let name = format!("tmp/perf-{number}.map");
        Ok(root.map(|root| PerfMap { root, name, owner: identity.uid, since_s }))
    }

    /// Reads it. Errors: those of [`trust::read_left`].
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        trust::read_left(&self.root, &self.name, &[self.owner, 0], self.since_s, BYTES_MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::host::clock;

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
