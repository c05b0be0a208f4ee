//! The OOM killer's preference for a process: its `oom_score_adj`.
//!
//! When memory runs out, the kernel kills the process with the highest score: its pages in memory and in
//! swap, plus `oom_score_adj` in thousandths of all memory and swap. At 1000, the smallest process has a
//! higher score than the largest process at 0. A process at -1000 is never killed. Processes inherit the
//! value of their parent.
//!
//! Each write with `CAP_SYS_RESOURCE` also sets the minimum to which the process's owner may lower the value
//! from then on. So the value is written without that capability, which is not needed to raise a value and
//! lower it back.
//!
//! Source: fs/proc/base.c (`__set_oom_adj`), `mm/oom_kill.c`.

use std::fs::OpenOptions;
use std::io;

use rustix::thread::CapabilitySet;

use super::{File, Pinned};

/// The kernel's bounds: a process that is never killed, and one that is killed first.
const NEVER: i16 = -1_000;
const FIRST: i16 = 1_000;

/// The value for a process of a unit that exceeds its entitlement, and so is to be killed before processes of
/// other units. `own` is the value that the process's owner chose. The result is higher by 1000, so that
/// processes with values below 0 keep their order. A process that is never killed stays exempt.
pub fn raised(own: i16) -> i16 {
    if own <= NEVER { own } else { own.saturating_add(FIRST).min(FIRST) }
}

/// The open file with the value of one process. An open file continues to refer to its process: a later
/// process with the same pid is neither read nor written.
#[derive(Debug)]
pub(crate) struct OomScore(File);

impl OomScore {
    /// Errors are the kernel's: `NotFound` or `ESRCH` if the process has ended.
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

    /// Writes the value, without `CAP_SYS_RESOURCE` for the duration of the call.
    pub(crate) fn set(&self, value: i16) -> io::Result<()> {
        let text = value.to_string();
        let original = rustix::thread::capabilities(None)?;
        let mut reduced = original;
        reduced.effective.remove(CapabilitySet::SYS_RESOURCE);
        if reduced == original {
            return self.0.write_all_at(text.as_bytes(), 0);
        }
        rustix::thread::set_capabilities(None, reduced)?;
        let written = self.0.write_all_at(text.as_bytes(), 0);
        rustix::thread::set_capabilities(None, original)?;
        written
    }
}

/// The value of a process, or of a thread's process.
pub fn get(pid: u32) -> io::Result<i16> {
    OomScore::open(pid)?.get()
}

/// Sets the value of a pinned process through one of its threads. `ESRCH` if the thread has ended.
///
/// The file is opened before the thread is checked, and then continues to refer to the checked process: no
/// other process is ever written.
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
        /// No value is lowered, the order is kept, and the smallest raised process is killed before the
        /// largest at 0.
        #[test]
        fn a_raised_process_is_killed_first(a in -1_000i16..=1_000, b in -1_000i16..=1_000) {
            prop_assert!(raised(a) >= a && raised(a) <= 1_000);
            prop_assert!(a > b || raised(a) <= raised(b));
            prop_assert!(a < 0 || raised(a) == 1_000);
        }
    }

    #[test]
    fn a_process_that_is_never_killed_stays_exempt() {
        assert_eq!([-1_000, -999, -500, 0, 200, 1_000].map(raised), [-1_000, 1, 500, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn a_value_is_raised_and_restored() {
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
        assert!(opened.set(1_000).is_err(), "its pid may be another's by now");
    }
}
