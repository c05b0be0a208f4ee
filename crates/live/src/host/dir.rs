//! A folder that is kept open, such as /proc, relative to which files are opened.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::files::File;
use super::tamper::{About, Answer, Kind, ask};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// A folder that is kept open.
#[derive(Debug)]
pub(crate) struct Dir {
    dir: OwnedFd,
    path: PathBuf,
}

/// Identifies a file: device and inode.
type FileId = (u64, u64);

impl Dir {
    /// Opens a folder.
    pub(crate) fn open(path: &Path) -> Result<Dir, Errno> {
        pass(Kind::Open, About::Path(path))?;
        Ok(Dir { dir: rustix::fs::open(path, FOLDER, Mode::empty())?, path: path.to_owned() })
    }

    /// Its path when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `visit` with the number and the inode of every entry whose name is a number, as `parse` decides.
    pub(crate) fn numbers<N>(
        &self,
        parse: impl Fn(&[u8]) -> Option<N>,
        visit: impl FnMut(N, u64),
    ) -> Result<(), Errno> {
        let limit = entry_limit(&ask(Kind::List, About::Path(&self.path), []))?;
        rustix::fs::seek(&self.dir, SeekFrom::Start(0))?;
        each_number(&self.dir, parse, limit, visit)
    }

    /// Like [`Dir::numbers`], for a folder in this folder.
    pub(crate) fn numbers_in<N>(
        &self,
        name: &str,
        parse: impl Fn(&[u8]) -> Option<N>,
        visit: impl FnMut(N, u64),
    ) -> Result<(), Errno> {
        let limit = entry_limit(&ask(Kind::List, About::In(&self.path, name), []))?;
        let folder = rustix::fs::openat(&self.dir, name, FOLDER, Mode::empty())?;
        each_number(&folder, parse, limit, visit)
    }

    /// Identifies the file to which a name leads, after following links.
    pub(crate) fn id(&self, name: &str) -> Result<FileId, Errno> {
        pass(Kind::Look, About::In(&self.path, name))?;
        let stat = rustix::fs::statat(&self.dir, name, AtFlags::empty())?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The target of a symbolic link in the folder.
    pub(crate) fn link(&self, name: &str) -> Result<Vec<u8>, Errno> {
        pass(Kind::Look, About::In(&self.path, name))?;
        Ok(rustix::fs::readlinkat(&self.dir, name, Vec::new())?.into_bytes())
    }

    /// Opens a file in the folder for reading.
    pub(crate) fn file(&self, name: &str) -> Result<File, Errno> {
        pass(Kind::Open, About::In(&self.path, name))?;
        let file = rustix::fs::openat(&self.dir, name, FILE, Mode::empty())?;
        Ok(File::of(file, self.path.join(name)))
    }

    /// Reads a file in the folder into a buffer, which grows until the file fits or `bytes_max` bytes are
    /// read. Returns the length read. A read that does not fill the buffer counts as the last one, since the
    /// kernel returns most files of a process in one read.
    pub(crate) fn read(&self, name: &str, buffer: &mut Vec<u8>, bytes_max: usize) -> Result<usize, Errno> {
        self.read_until(name, buffer, bytes_max, |read, room| read < room)
    }

    /// Like [`Dir::read`], for files with many lines, such as `maps`, of which the kernel returns at most a
    /// page per read.
    pub(crate) fn read_lines(
        &self,
        name: &str,
        buffer: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<usize, Errno> {
        self.read_until(name, buffer, bytes_max, |_, _| false)
    }

    /// Reads until the file ends, `bytes_max` bytes are read, or `is_last` is true of the length of a read
    /// and the room that it had.
    fn read_until(
        &self,
        name: &str,
        buffer: &mut Vec<u8>,
        bytes_max: usize,
        is_last: impl Fn(usize, usize) -> bool,
    ) -> Result<usize, Errno> {
        let answer = ask(Kind::Read, About::In(&self.path, name), []);
        match answer {
            Answer::Refuse(errno) => return Err(Errno::from_raw_os_error(errno)),
            Answer::Falsify(bytes) => {
                buffer.resize(buffer.len().max(bytes.len() + 1), 0);
                buffer[..bytes.len()].copy_from_slice(&bytes);
                return Ok(bytes.len());
            }
            Answer::GoOn | Answer::Shorten(_) => {}
        }
        let file = rustix::fs::openat(&self.dir, name, FILE, Mode::empty())?;
        let mut len = 0;
        while len < bytes_max {
            let room = buffer.len() - len;
            match rustix::io::read(&file, &mut buffer[len..]) {
                Ok(0) => break,
                Ok(n) if is_last(n, room) => {
                    len += n;
                    break;
                }
                Ok(n) => len += n,
                Err(Errno::INTR) => {}
                Err(err) => return Err(err),
            }
            if len == buffer.len() {
                buffer.resize(len * 2, 0);
            }
        }
        Ok(if let Answer::Shorten(limit) = answer { len.min(limit) } else { len })
    }
}

/// Asks the hook about a call without bytes. The error is the hook's refusal.
fn pass(kind: Kind, about: About<'_>) -> Result<(), Errno> {
    entry_limit(&ask(kind, about, [])).map(|_| ())
}

/// The hook's limit on the entries of a list.
fn entry_limit(answer: &Answer) -> Result<usize, Errno> {
    match answer {
        Answer::Refuse(errno) => Err(Errno::from_raw_os_error(*errno)),
        Answer::Shorten(limit) => Ok(*limit),
        _ => Ok(usize::MAX),
    }
}

/// Calls `visit` with the number and the inode of the first `limit` entries whose names `parse` accepts.
fn each_number<N>(
    dir: &OwnedFd,
    parse: impl Fn(&[u8]) -> Option<N>,
    limit: usize,
    mut visit: impl FnMut(N, u64),
) -> Result<(), Errno> {
    let mut buffer = [const { MaybeUninit::<u8>::uninit() }; 4096];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut remaining = limit;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if let Some(number) = parse(entry.file_name().to_bytes()).filter(|_| remaining > 0) {
            remaining -= 1;
            visit(number, entry.ino());
        }
    }
    Ok(())
}
