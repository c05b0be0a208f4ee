//! How readily the kernel kills a process when it is out of memory: its `oom_score_adj`.
//!
//! The kernel kills the process with the most points. Points are its pages, in memory and in swap, and for each of the
//! value's thousandths as many pages as a thousandth of memory and swap. At 1000 the smallest process has more points
//! than the largest at 0. A process at -1000 is never killed. Processes are born with the value of the process that
//! made them.
//!
//! A writer that may lower the value (`CAP_SYS_RESOURCE`) also sets, by each write, below what its owner may not go
//! from then on. So the value is written without that capability: it is not needed for raising a value and back again.
//!
//! Source: fs/proc/base.c (`__set_oom_adj`), `mm/oom_kill.c`.

use std::fs::OpenOptions;
use std::io;

use rustix::thread::CapabilitySet;

use super::{File, Pinned};

/// The kernel's bounds.
const NEVER: i16 = -1_000;
const FIRST: i16 = 1_000;

/// What a process is to have that goes before those within their entitlement, and whose owner chose `own`: a whole memory's
/// points more, so that among those that were told from each other below 0 the order stays. Who is never killed stays so.
pub fn raised(own: i16) -> i16 {
    if own <= NEVER { own } else { own.saturating_add(FIRST).min(FIRST) }
}

/// The value of one process. Opened once, it is that process's for good: of a later one with its number nothing is read or
/// written.
#[derive(Debug)]
pub(crate) struct OomScore(File);

impl OomScore {
    /// Errors are the kernel's: `NotFound` or `ESRCH` when the process is gone.
    pub(crate) fn open(pid: u32) -> io::Result<OomScore> {
        let path = format!("/proc/{pid}/oom_score_adj");
        File::open_with(path.as_ref(), OpenOptions::new().read(true).write(true)).map(OomScore)
    }

    pub(crate) fn get(&self) -> io::Result<i16> {
        let mut bytes = [0; 16];
        let length = self.0.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        text.trim().parse().map_err(io::Error::other)
    }

    pub(crate) fn set(&self, value: i16) -> io::Result<()> {
        let text = value.to_string();
        let before = rustix::thread::capabilities(None)?;
        let mut less = before;
        less.effective.remove(CapabilitySet::SYS_RESOURCE);
        if less == before {
            return self.0.write_all_at(text.as_bytes(), 0);
        }
        rustix::thread::set_capabilities(None, less)?;
        let written = self.0.write_all_at(text.as_bytes(), 0);
        rustix::thread::set_capabilities(None, before)?;
        written
    }
}

/// The value of a process, or of a thread's process.
pub fn get(pid: u32) -> io::Result<i16> {
    OomScore::open(pid)?.get()
}

/// Gives a value to the process of a pinned process's thread. `ESRCH` if it has ended.
///
/// The file is opened before the thread is looked up, and stays that process's: no other one is ever written to.
pub fn set(process: &Pinned, tid: u32, value: i16) -> io::Result<()> {
    let score = OomScore::open(tid)?;
    if !process.has_thread(tid)? {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    score.set(value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Nobody's is lowered, the order is kept, and a small process of those raised goes before the largest at 0.
        #[test]
        fn raised_goes_first(a in -1_000i16..=1_000, b in -1_000i16..=1_000) {
            prop_assert!(raised(a) >= a && raised(a) <= 1_000);
            prop_assert!(a > b || raised(a) <= raised(b));
            prop_assert!(a < 0 || raised(a) == 1_000);
        }
    }

    #[test]
    fn who_is_never_killed_stays_so() {
        assert_eq!([-1_000, -999, -500, 0, 200, 1_000].map(raised), [-1_000, 1, 500, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn up_and_back() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = get(child.id()).unwrap();
        let pinned = Pinned::of(child.id()).unwrap();
        set(&pinned, child.id(), 1_000).unwrap();
        assert_eq!(get(child.id()).unwrap(), 1_000);
        set(&pinned, child.id(), own).unwrap();
        let other = Pinned::of(std::process::id()).unwrap();
        assert_eq!(set(&other, child.id(), 1_000).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(get(child.id()).unwrap(), own);
        let opened = OomScore::open(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(opened.set(1_000).is_err(), "its number may be another's by now");
    }
}
