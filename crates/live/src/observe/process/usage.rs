//! Resource use of one process: resident memory, disk transfers, and scheduler statistics of its threads.

use super::{ProcFs, parse_number};
use crate::LiveError;

/// Scheduler statistics of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedStat {
    /// Time on a CPU, in nanoseconds.
    pub ran_ns: u64,
    /// Time runnable without a CPU, in nanoseconds.
    pub waited_ns: u64,
    /// How often the thread got a CPU.
    pub turns: u64,
}

/// Resident memory of a process, in bytes. A page that several processes map counts in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resident {
    /// Memory that no file backs, so that it can only go to swap. Includes shared memory without a file.
    pub anonymous: u64,
    /// Pages of mapped files. The page cache of files that are read and written without mapping counts for no
    /// process.
    pub file: u64,
}

impl Resident {
    /// Anonymous and file pages together.
    pub(crate) fn bytes(self) -> u64 {
        self.anonymous.saturating_add(self.file)
    }

    /// The sum of the memory of two processes.
    pub(crate) fn with(self, other: Resident) -> Resident {
        Resident {
            anonymous: self.anonymous.saturating_add(other.anonymous),
            file: self.file.saturating_add(other.file),
        }
    }
}

/// Disk transfers of a process and of the ended children that it waited for, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transferred {
    /// Read from a disk.
    pub read: u64,
    /// Submitted for writing, also to the page cache.
    pub written: u64,
}

impl ProcFs {
    /// Scheduler statistics of a thread; `None` if it has ended or this kernel keeps none.
    pub fn thread_schedstat(&mut self, pid: u32, tid: u32) -> Result<Option<SchedStat>, LiveError> {
        Ok(self.read(&format!("{pid}/task/{tid}/schedstat"))?.and_then(parse_schedstat))
    }

    /// Resident memory of a process; `None` if it has ended, or is a kernel thread.
    pub fn resident(&mut self, pid: u32) -> Result<Option<Resident>, LiveError> {
        Ok(self.read(&format!("{pid}/status"))?.and_then(parse_resident))
    }

    /// Like [`ProcFs::resident`], with each page divided by the number of processes that map it (PSS).
    /// Expensive: the kernel walks all pages. `None` if the process has ended or may not be read, or if the
    /// kernel lacks `smaps_rollup`.
    pub(crate) fn proportional(&mut self, pid: u32) -> Result<Option<Resident>, LiveError> {
        Ok(self.read(&format!("{pid}/smaps_rollup"))?.and_then(parse_proportional))
    }

    /// Disk transfers of a process; `None` if it has ended, may not be read, or the kernel does not count
    /// them.
    pub fn transferred(&mut self, pid: u32) -> Result<Option<Transferred>, LiveError> {
        Ok(self.read(&format!("{pid}/io"))?.and_then(parse_transferred))
    }
}

fn parse_schedstat(text: &[u8]) -> Option<SchedStat> {
    let mut fields = text.split(u8::is_ascii_whitespace);
    let mut number = || fields.next().and_then(parse_number);
    Some(SchedStat { ran_ns: number()?, waited_ns: number()?, turns: number()? })
}

/// The number in the line `KEY: 12 kB` of a key, times `unit`.
fn value(text: &str, key: &str, unit: u64) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(unit)
}

fn parse_resident(text: &[u8]) -> Option<Resident> {
    let text = String::from_utf8_lossy(text);
    let kib = |key| value(&text, key, 1_024);
    Some(Resident { anonymous: kib("RssAnon")?.checked_add(kib("RssShmem")?)?, file: kib("RssFile")? })
}

fn parse_proportional(text: &[u8]) -> Option<Resident> {
    let text = String::from_utf8_lossy(text);
    let kib = |key| value(&text, key, 1_024);
    Some(Resident { anonymous: kib("Pss_Anon")?.checked_add(kib("Pss_Shmem")?)?, file: kib("Pss_File")? })
}

/// Data that was written to the page cache and discarded before it reached a disk is subtracted.
fn parse_transferred(text: &[u8]) -> Option<Transferred> {
    let text = String::from_utf8_lossy(text);
    let bytes = |key| value(&text, key, 1);
    let written = bytes("write_bytes")?.saturating_sub(bytes("cancelled_write_bytes").unwrap_or(0));
    Some(Transferred { read: bytes("read_bytes")?, written })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn memory_and_transfers_are_parsed() {
        let status = b"Name:\tRssAnon: 1 kB\nVmRSS:\t   60 kB\nRssAnon:\t   10 kB\nRssFile:\t  20 kB\nRssShmem:\t 30 kB\n";
        assert_eq!(parse_resident(status), Some(Resident { anonymous: 40 << 10, file: 20 << 10 }));
        assert_eq!(parse_resident(b"Name:\tkthreadd\n"), None);
        let rollup =
            b"00400000-7ff ---p 0 00:00 0 [rollup]\nRss: 90 kB\nPss: 8 kB\nPss_Anon: 1 kB\nPss_File: 5 kB\nPss_Shmem: 2 kB\n";
        assert_eq!(parse_proportional(rollup), Some(Resident { anonymous: 3 << 10, file: 5 << 10 }));
        let io = b"rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        assert_eq!(parse_transferred(io), Some(Transferred { read: 4096, written: 4096 }));
        assert_eq!(parse_transferred(b"rchar: 9\n"), None);
    }

    #[test]
    fn proportional_memory_does_not_exceed_resident_memory() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let me = std::process::id();
        let resident = procfs.resident(me).unwrap().unwrap();
        assert!(resident.anonymous > 0 && resident.file > 0, "{resident:?}");
        let proportional = procfs.proportional(me).unwrap();
        assert!(proportional.is_none_or(|pss| pss.bytes() > 0 && pss.file <= resident.file + (1 << 20)));
    }
}
