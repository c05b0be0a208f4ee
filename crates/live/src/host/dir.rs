//! A folder that is kept open, relative to which files are opened: /proc.

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

    /// Calls `found` for every entry whose name `number` parses, with the entry's inode.
    pub(crate) fn numbers<N>(
        &self,
        number: impl Fn(&[u8]) -> Option<N>,
        found: impl FnMut(N, u64),
    ) -> Result<(), Errno> {
        let limit = entry_limit(&ask(Kind::List, About::Path(&self.path), []))?;
        rustix::fs::seek(&self.dir, SeekFrom::Start(0))?;
        each_number(&self.dir, number, limit, found)
    }

    /// Like [`Dir::numbers`], for a folder in it.
    pub(crate) fn numbers_in<N>(
        &self,
        name: &str,
        number: impl Fn(&[u8]) -> Option<N>,
        found: impl FnMut(N, u64),
    ) -> Result<(), Errno> {
        let limit = entry_limit(&ask(Kind::List, About::In(&self.path, name), []))?;
        let folder = rustix::fs::openat(&self.dir, name, FOLDER, Mode::empty())?;
        each_number(&folder, number, limit, found)
    }

    /// The file that a name leads to, after following links.
    pub(crate) fn id(&self, name: &str) -> Result<FileId, Errno> {
        pass(Kind::Look, About::In(&self.path, name))?;
        let found = rustix::fs::statat(&self.dir, name, AtFlags::empty())?;
        Ok((found.st_dev, found.st_ino))
    }

    /// The target of a symbolic link in it.
    pub(crate) fn link(&self, name: &str) -> Result<Vec<u8>, Errno> {
        pass(Kind::Look, About::In(&self.path, name))?;
        Ok(rustix::fs::readlinkat(&self.dir, name, Vec::new())?.into_bytes())
    }

    /// Opens a file in it for reading.
    pub(crate) fn file(&self, name: &str) -> Result<File, Errno> {
        pass(Kind::Open, About::In(&self.path, name))?;
        let file = rustix::fs::openat(&self.dir, name, FILE, Mode::empty())?;
        Ok(File::of(file, self.path.join(name)))
    }

    /// Reads a file in it into a buffer, which grows up to `most` bytes. Returns the length read. A read that does not fill the
    /// buffer counts as the last one, since the kernel returns most files of a process in one read.
    pub(crate) fn read(&self, name: &str, buffer: &mut Vec<u8>, most: usize) -> Result<usize, Errno> {
        self.read_until(name, buffer, most, |read, room| read < room)
    }

    /// Like [`Dir::read`], for files with many lines, such as `maps`, of which the kernel returns at most a page per read.
    pub(crate) fn read_lines(&self, name: &str, buffer: &mut Vec<u8>, most: usize) -> Result<usize, Errno> {
        self.read_until(name, buffer, most, |_, _| false)
    }

    fn read_until(
        &self,
        name: &str,
        buffer: &mut Vec<u8>,
        most: usize,
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
        while len < most {
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
        Ok(if let Answer::Shorten(most) = answer { len.min(most) } else { len })
    }
}

fn pass(kind: Kind, about: About<'_>) -> Result<(), Errno> {
    entry_limit(&ask(kind, about, [])).map(|_| ())
}

/// The hook's limit on the entries of a list.
fn entry_limit(answer: &Answer) -> Result<usize, Errno> {
    match answer {
        Answer::Refuse(errno) => Err(Errno::from_raw_os_error(*errno)),
        Answer::Shorten(most) => Ok(*most),
        _ => Ok(usize::MAX),
    }
}

fn each_number<N>(
    dir: &OwnedFd,
    number: impl Fn(&[u8]) -> Option<N>,
    limit: usize,
    mut found: impl FnMut(N, u64),
) -> Result<(), Errno> {
    let mut room = [const { MaybeUninit::<u8>::uninit() }; 4096];
    let mut entries = RawDir::new(dir, &mut room);
    let mut left = limit;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if let Some(number) = number(entry.file_name().to_bytes()).filter(|_| left > 0) {
            left -= 1;
            found(number, entry.ino());
        }
    }
    Ok(())
}
