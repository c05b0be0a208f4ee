//! Autogroups: groups of the processes of a session, among which the kernel divides CPU time.
//!
//! Each call of `setsid(2)` makes an autogroup with nice value 0, to which the process's children belong,
//! too. If autogroups are enabled (`kernel.sched_autogroup_enabled`), the kernel divides CPU time among
//! autogroups by their nice values, and a process's own nice value counts only against others in its
//! autogroup. Autogroups matter only for tasks in the root control group of the cpu controller. In other
//! control groups, `cpu.weight` counts instead.
//!
//! An autogroup's number is never reused. So the number identifies the autogroup even after the session's
//! leader has ended.
//!
//! Source: `sched(7)`; kernel/sched/autogroup.c.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::File;

/// This process's autogroup.
pub(crate) const OWN: &str = "/proc/self/autogroup";

/// The kernel's rate limit: one write in 100 ms from all writers without `CAP_SYS_ADMIN` together. Other
/// writes fail with EAGAIN, and are tried again after a pause.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The content of /proc/PID/autogroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Autogroup {
    /// Its number.
    pub(crate) number: u64,
    /// Its nice value.
    pub(crate) nice: i32,
}

impl Autogroup {
    /// Parses `/autogroup-9 nice 0`. `None` if the file is empty, since the process's session is older than
    /// the first `setsid`.
    pub(crate) fn parse(text: &[u8]) -> Option<Autogroup> {
        let text = std::str::from_utf8(text).ok()?.trim().strip_prefix("/autogroup-")?;
        let (number, nice) = text.split_once(" nice ")?;
        Some(Autogroup { number: number.parse().ok()?, nice: nice.parse().ok()? })
    }
}

/// The open autogroup file of a process. An open file continues to refer to its process: a later process with
/// the same pid is neither read nor written.
#[derive(Debug)]
pub(crate) struct AutogroupFile(File);

impl AutogroupFile {
    /// Errors are the kernel's: `NotFound` if the process has ended, or the kernel has no autogroups.
    pub(crate) fn open(path: &Path) -> io::Result<AutogroupFile> {
        File::open_with(path, OpenOptions::new().read(true).write(true)).map(AutogroupFile)
    }

    pub(crate) fn get(&self) -> io::Result<Option<Autogroup>> {
        let mut bytes = [0; 64];
        let length = self.0.read_at(&mut bytes, 0)?;
        Ok(Autogroup::parse(&bytes[..length]))
    }

    /// Sets the nice value, which may take a second because of the kernel's rate limit. Uses write(2), since
    /// the kernel refuses pwrite(2) on this file (ESPIPE). Errors are the kernel's: `PermissionDenied` for a
    /// value below 0 without `CAP_SYS_NICE`.
    pub(crate) fn set(&mut self, nice: i32) -> io::Result<()> {
        let text = nice.to_string();
        let mut written = self.0.write_all(text.as_bytes());
        for _ in 1..TRIES {
            match &written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
                _ => break,
            }
            written = self.0.write_all(text.as_bytes());
        }
        written
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::{Answer, Kind, tamper};

    #[test]
    fn the_kernels_format_is_parsed() {
        let parse = |text: &str| Autogroup::parse(text.as_bytes());
        assert_eq!(parse("/autogroup-91 nice -15\n"), Some(Autogroup { number: 91, nice: -15 }));
        for text in ["", "\n", "/autogroup-91", "/autogroup-x nice 0\n", "/autogroup-1 nice high\n"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    /// Fails without the repetition.
    #[test]
    fn a_write_beyond_the_kernels_rate_limit_is_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("autogroup");
        std::fs::write(&path, "?").unwrap();
        let mut file = AutogroupFile::open(&path).unwrap();
        let mut refused = 0;
        let hook = tamper(move |access| match access.kind {
            Kind::Write if refused < 3 => {
                refused += 1;
                Answer::Refuse(libc::EAGAIN)
            }
            _ => Answer::GoOn,
        });
        file.set(-7).unwrap();
        drop(hook);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "-7");
    }
}
