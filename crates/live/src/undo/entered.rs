//! Records the processes that entered units by `commonhold exec`, for the next daemon.
//!
//! Problem: no rule of the contract matches such a process, so a restarted daemon would not know its unit.
//!
//! Algorithm: a file beside the tickets has a line for each process: number, start time, user, the unit's
//! path. A line is appended before the process enters the unit. When most lines belong to ended processes,
//! the file is rewritten under another name and renamed over the old one. The first line names the boot that
//! start times count from.
//!
//! Properties (tested): what is written reads back. An incomplete last line is ignored. Any content is read,
//! or refused, safely. No symbolic link is followed, and only a regular file of this user is read.
//!
//! Limits: the file is not synced, since no process survives a loss of power. A descendant inherits its unit
//! from the entered process, so it loses the unit if the entered process ends before the next daemon starts.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::LiveError;
use crate::host::{self, File};
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Entered, KeepsEntered};

/// The file's name in the daemon's directory.
pub const FILE_NAME: &str = "entered";
/// The beginning of the first line; the boot's ID follows.
const HEADER: &str = "commonhold-entered 1 ";
/// The largest file that is read, in bytes: it has room for a line for each process of the largest kernel
/// configuration. A longer file was not written by a daemon.
const BYTES_MAX: u64 = 256 << 20;
/// The file is rewritten when it has more than twice as many lines as there are living entered processes,
/// plus this number.
const SLACK: usize = 64;

/// The record of entered processes of one daemon.
#[derive(Debug)]
pub struct EnteredFile {
    path: PathBuf,
    boot: String,
    /// The number of lines in the file; `None` until this daemon has rewritten the file, and after a failed
    /// write.
    lines: Option<usize>,
}

impl EnteredFile {
    /// Opens the record in a daemon's directory. Also returns the processes that an earlier daemon of this
    /// boot recorded; some of them may have ended.
    ///
    /// The inner error says that the file cannot be read; such a file is replaced when the next process
    /// enters a unit. The outer error says that the boot's ID cannot be read.
    pub fn open(directory: &Path) -> Result<(EnteredFile, Result<Vec<Entered>, LiveError>), LiveError> {
        let boot_id_file = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = host::read_to_string(boot_id_file).map_err(|source| LiveError::File {
            path: boot_id_file.to_owned(),
            what: "read".to_owned(),
            source,
            remedy: "; mount /proc".to_owned(),
        })?;
        let file = EnteredFile { path: directory.join(FILE_NAME), boot: boot.trim().to_owned(), lines: None };
        let kept = file.read();
        Ok((file, kept))
    }

    /// Reads the file. The result is empty if there is no file, or if the file is from another boot.
    fn read(&self) -> Result<Vec<Entered>, LiveError> {
        let mut options = OpenOptions::new();
        // Opening a FIFO would wait for a writer.
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match File::open_with(&self.path, &options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.map_err(|error| self.failed("open", error))?,
        };
        let metadata = file.look().map_err(|error| self.failed("examine", error))?;
        let owner = rustix::process::geteuid().as_raw();
        if !metadata.is_file() || metadata.uid() != owner || metadata.len() > BYTES_MAX {
            let what = format!("not a regular file of user {owner} with {BYTES_MAX} bytes at most");
            return Err(self.failed("use", io::Error::new(io::ErrorKind::InvalidData, what)));
        }
        let bytes = host::read_at_most(&self.path, BYTES_MAX).map_err(|error| self.failed("read", error))?;
        self.parse(&bytes)
    }

    fn parse(&self, bytes: &[u8]) -> Result<Vec<Entered>, LiveError> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let Some(boot) = lines.next() else { return Ok(Vec::new()) };
        let Some(boot) = boot.strip_prefix(HEADER) else {
            let what = format!("line 1 does not begin with `{HEADER}`");
            return Err(self.failed("understand", io::Error::new(io::ErrorKind::InvalidData, what)));
        };
        if boot != self.boot {
            return Ok(Vec::new());
        }
        let entered = (2..).zip(lines).map(|(number, line)| {
            parse_line(line).ok_or_else(|| {
                let quoted: String =
                    line.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
                let what = format!("line {number}, `{quoted}`, is not PID START UID UNIT");
                self.failed("understand", io::Error::new(io::ErrorKind::InvalidData, what))
            })
        });
        entered.collect()
    }

    fn append(&self, new: &Entered) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(libc::O_NOFOLLOW);
        File::open_with(&self.path, &options)?.write_all(to_line(new).as_bytes())
    }

    /// Rewrites the whole file, under another name that is then renamed over it.
    fn replace(&self, all: &[&Entered]) -> io::Result<()> {
        let text: String = all.iter().map(|entered| to_line(entered)).collect();
        let temporary = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = File::open_with(&temporary, &options)?;
        file.set_len(0)?;
        file.write_all(format!("{HEADER}{}\n{text}", self.boot).as_bytes())?;
        host::rename(&temporary, &self.path)
    }

    fn failed(&self, what: &str, source: io::Error) -> LiveError {
        let remedy = match source.kind() {
            io::ErrorKind::StorageFull => "; free some space there",
            _ => "; it must be a file of the daemon's user; remove it if it is not",
        };
        LiveError::File {
            path: self.path.clone(),
            what: format!("{what} the record of processes that entered units"),
            source,
            remedy: remedy.to_owned(),
        }
    }
}

impl KeepsEntered for EnteredFile {
    fn keep(&mut self, new: &Entered, others: &[Entered]) -> Result<(), LiveError> {
        let count = others.len() + 1;
        let written = match self.lines {
            Some(lines) if lines < 2 * count + SLACK => self.append(new).map(|()| lines + 1),
            _ => self.replace(&others.iter().chain([new]).collect::<Vec<_>>()).map(|()| count),
        };
        // After an error the last line may be incomplete: `None` makes the next call rewrite the file.
        self.lines = written.as_ref().ok().copied();
        written.map(drop).map_err(|error| self.failed("write", error))
    }
}

fn to_line(Entered { process, uid, unit }: &Entered) -> String {
    format!("{} {} {uid} {unit}\n", process.pid, process.start)
}

/// Parses a line that [`to_line`] wrote; `None` if it is malformed.
fn parse_line(line: &str) -> Option<Entered> {
    let mut words = line.splitn(4, ' ');
    let pid = words.next()?.parse().ok().filter(|pid| *pid != 0)?;
    let (start, uid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let unit = words.next()?.to_owned();
    Some(Entered { process: ProcessKey { pid, start }, uid, unit })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::{Answer, Kind, tamper};

    fn entered_process(pid: u32) -> Entered {
        Entered { process: ProcessKey { pid, start: 7 }, uid: 1000, unit: "physics/night batch".to_owned() }
    }

    fn read(directory: &Path) -> Result<Vec<Entered>, LiveError> {
        EnteredFile::open(directory).unwrap().1
    }

    #[test]
    fn entries_read_back_and_the_file_does_not_grow_without_bound() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
        let (mut file, _) = EnteredFile::open(dir.path()).unwrap();
        file.keep(&entered_process(2), &[entered_process(1)]).unwrap();
        file.keep(&entered_process(3), &[entered_process(1), entered_process(2)]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [entered_process(1), entered_process(2), entered_process(3)]);
        // One process after another enters, and ends at once.
        for pid in 4..2_000 {
            file.keep(&entered_process(pid), &[]).unwrap();
        }
        let kept = read(dir.path()).unwrap();
        assert!(kept.len() < 2 * SLACK && kept.last() == Some(&entered_process(1_999)), "{}", kept.len());
    }

    #[test]
    fn an_incomplete_line_is_ignored_and_the_next_write_rewrites_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = EnteredFile::open(dir.path()).unwrap();
        file.keep(&entered_process(1), &[]).unwrap();
        let mut cut = false;
        let hook = tamper(move |access| match access.kind {
            Kind::Write if std::mem::replace(&mut cut, true) => Answer::Refuse(libc::ENOSPC),
            Kind::Write => Answer::Shorten(3),
            _ => Answer::GoOn,
        });
        let refused = file.keep(&entered_process(22), &[entered_process(1)]).unwrap_err().to_string();
        drop(hook);
        assert!(refused.contains("free some space"), "{refused}");
        assert_eq!(read(dir.path()).unwrap(), [entered_process(1)]);
        file.keep(&entered_process(3), &[entered_process(1)]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [entered_process(1), entered_process(3)]);
    }

    #[test]
    fn a_foreign_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        for (text, is_read) in [
            (String::new(), true),
            (format!("{HEADER}another\n1 2 3 a\n"), true),
            (format!("{HEADER}{boot}1 2 3 a"), true),
            ("commonhold-entered 2 x\n".to_owned(), false),
            ("\0\0\0\0\n".to_owned(), false),
            (format!("{HEADER}{boot}1 2 a\n"), false),
            (format!("{HEADER}{boot}0 2 3 a\n"), false),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(read(dir.path()).is_ok_and(|kept| kept.is_empty()), is_read, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(read(dir.path()).is_err());
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("regular file"));
    }
}
