//! Processes that entered units by `exec`, kept for the next daemon.
//!
//! Problem: no rule of the contract leads to such a process, so a daemon that starts anew would not know its unit.
//!
//! Algorithm: a file beside the tickets has a line for each: number, start time, user, unit's path. A line is appended before
//! the process is in the unit. When most lines are of processes that have ended, the file is written anew under another name,
//! which takes its place. The first line names the boot that start times count from.
//!
//! Properties (tested): what is kept is read. A line that was not written to its end is no line. Any bytes are read, or
//! refused, without harm; no link is followed, and nothing but a regular file of this user is opened for long.
//!
//! Limits: nothing is forced to a disk, since no process outlives a loss of power. What an entered process started inherits its
//! unit from it; if the entered process has ended before the next daemon looks, nothing tells that.

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
/// What the first line begins with; the boot follows.
const HEADER: &str = "commonhold-entered 1 ";
/// A line for every process that a kernel can have, and no more: no daemon wrote a longer file.
const BYTES_MAX: u64 = 256 << 20;
/// Lines of processes that have ended are left until there are this many more than others.
const SLACK: usize = 64;

/// The file of one daemon.
#[derive(Debug)]
pub struct EnteredFile {
    path: PathBuf,
    boot: String,
    /// Lines in it; `None` until this daemon has written it as a whole.
    lines: Option<usize>,
}

impl EnteredFile {
    /// The file of a daemon's directory, and what an earlier daemon of this boot kept in it: also processes that have ended.
    ///
    /// A file that cannot be read is an error beside it; it is replaced when the next process enters a unit.
    pub fn open(directory: &Path) -> Result<(EnteredFile, Result<Vec<Entered>, LiveError>), LiveError> {
        let of_boot = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = host::read_to_string(of_boot).map_err(|source| LiveError::File {
            path: of_boot.to_owned(),
            what: "read".to_owned(),
            source,
            remedy: "; mount /proc".to_owned(),
        })?;
        let file = EnteredFile { path: directory.join(FILE_NAME), boot: boot.trim().to_owned(), lines: None };
        let kept = file.read();
        Ok((file, kept))
    }

    fn read(&self) -> Result<Vec<Entered>, LiveError> {
        let mut options = OpenOptions::new();
        // Opening a FIFO would wait for a writer.
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match File::open_with(&self.path, &options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.map_err(|error| self.failed("open", error))?,
        };
        let found = file.look().map_err(|error| self.failed("examine", error))?;
        let owner = rustix::process::geteuid().as_raw();
        if !found.is_file() || found.uid() != owner || found.len() > BYTES_MAX {
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
            entered(line).ok_or_else(|| {
                let shown: String =
                    line.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
                let what = format!("line {number}, `{shown}`, is not PID START UID UNIT");
                self.failed("understand", io::Error::new(io::ErrorKind::InvalidData, what))
            })
        });
        entered.collect()
    }

    fn append(&self, new: &Entered) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(libc::O_NOFOLLOW);
        File::open_with(&self.path, &options)?.write_all(line(new).as_bytes())
    }

    /// Writes the whole file.
    fn replace(&self, all: &[&Entered]) -> io::Result<()> {
        let text: String = all.iter().map(|entered| line(entered)).collect();
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
        // After an error the last line may be a part of one: the next write is a whole file.
        self.lines = written.as_ref().ok().copied();
        written.map(drop).map_err(|error| self.failed("write", error))
    }
}

fn line(Entered { process, uid, unit }: &Entered) -> String {
    format!("{} {} {uid} {unit}\n", process.pid, process.start)
}

fn entered(line: &str) -> Option<Entered> {
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

    fn of(pid: u32) -> Entered {
        Entered { process: ProcessKey { pid, start: 7 }, uid: 1000, unit: "physics/night batch".to_owned() }
    }

    fn read(directory: &Path) -> Result<Vec<Entered>, LiveError> {
        EnteredFile::open(directory).unwrap().1
    }

    #[test]
    fn what_is_kept_is_read_and_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
        let (mut file, _) = EnteredFile::open(dir.path()).unwrap();
        file.keep(&of(2), &[of(1)]).unwrap();
        file.keep(&of(3), &[of(1), of(2)]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [of(1), of(2), of(3)]);
        // One enters after another, and each ends at once.
        for pid in 4..2_000 {
            file.keep(&of(pid), &[]).unwrap();
        }
        let kept = read(dir.path()).unwrap();
        assert!(kept.len() < 2 * SLACK && kept.last() == Some(&of(1_999)), "{}", kept.len());
    }

    #[test]
    fn a_line_that_was_cut_is_none_and_the_next_write_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = EnteredFile::open(dir.path()).unwrap();
        file.keep(&of(1), &[]).unwrap();
        let mut cut = false;
        let hook = tamper(move |access| match access.kind {
            Kind::Write if std::mem::replace(&mut cut, true) => Answer::Refuse(libc::ENOSPC),
            Kind::Write => Answer::Shorten(3),
            _ => Answer::GoOn,
        });
        let refused = file.keep(&of(22), &[of(1)]).unwrap_err().to_string();
        drop(hook);
        assert!(refused.contains("free some space"), "{refused}");
        assert_eq!(read(dir.path()).unwrap(), [of(1)]);
        file.keep(&of(3), &[of(1)]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [of(1), of(3)]);
    }

    #[test]
    fn what_is_none_of_ours_is_refused_at_once() {
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
