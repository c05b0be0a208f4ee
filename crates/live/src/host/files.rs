//! Access to files and folders by path, and to files that are kept open.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, XattrFlags};

use super::tamper::{About, Answer, Kind, ask, has_hook, pass};

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_with_hook(path, || fs::read(path))
}

/// Reads the first `bytes_max` bytes of a file, or the whole file if it is smaller. Does not block on a FIFO
/// without a writer.
pub(crate) fn read_at_most(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_with_hook(path, || {
        let mut bytes = Vec::new();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Reads a whole text file.
pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    if !has_hook() {
        return fs::read_to_string(path);
    }
    let text = String::from_utf8(read(path)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a file by `read`, as the hook decides.
fn read_with_hook(path: &Path, read: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match ask(Kind::Read, About::Path(path), []) {
        Answer::GoOn => read(),
        Answer::Refuse(errno) => Err(io::Error::from_raw_os_error(errno)),
        Answer::Falsify(bytes) => Ok(bytes),
        Answer::Shorten(limit) => read().map(|mut bytes| {
            bytes.truncate(limit);
            bytes
        }),
    }
}

/// Writes a value to an existing kernel file, in one call, since the kernel takes the bytes of each call as a
/// value. A partial write is an error. An empty value is written as a line break, since an empty write would
/// have no effect.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    write_with(OpenOptions::new().write(true), path, value)
}

/// Like [`write`], but truncates the file first, which matters for ordinary files.
pub(crate) fn overwrite(path: &Path, value: &str) -> io::Result<()> {
    write_with(OpenOptions::new().write(true).truncate(true), path, value)
}

/// Empties a `cpuset.cpus`, so that its group has all CPUs of its parent. Returns the value written. Kernels
/// such as 6.1 refuse an empty list with ENOSPC if the group has processes (`validate_change()` in
/// kernel/cgroup/cpuset.c). Then the parent's effective CPUs are written instead.
pub(crate) fn empty_cpus(path: &Path) -> io::Result<String> {
    match write(path, "") {
        Ok(()) => return Ok(String::new()),
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {}
        Err(error) => return Err(error),
    }
    let effective = path.parent().map(|dir| dir.with_file_name("cpuset.cpus.effective")).unwrap_or_default();
    let cpus = read_to_string(&effective)?.trim().to_owned();
    write(path, &cpus).map(|()| cpus)
}

/// Like [`write`], with `O_NONBLOCK`: for files such as memory.high, where the write acts at once and can
/// take long. Kernels that support the flag then store the value and return without acting.
pub(crate) fn write_without_waiting(path: &Path, value: &str) -> io::Result<()> {
    write_with(OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK), path, value)
}

/// Writes a value to a file in one call, as the hook decides. A partial write is an error.
fn write_with(options: &OpenOptions, path: &Path, value: &str) -> io::Result<()> {
    let value = if value.is_empty() { "\n" } else { value }.as_bytes();
    let answer = ask(Kind::Write, About::Path(path), value);
    let bytes: &[u8] = match &answer {
        Answer::GoOn => value,
        Answer::Refuse(errno) => return Err(io::Error::from_raw_os_error(*errno)),
        Answer::Shorten(limit) => &value[..value.len().min(*limit)],
        Answer::Falsify(others) => others,
    };
    let mut file = options.open(path)?;
    let written = loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            written => break written?,
        }
    };
    // A shortened write must look like a partial one, and a falsified write like a complete one.
    let expected = if matches!(answer, Answer::Falsify(_)) { bytes.len() } else { value.len() };
    if written == expected {
        return Ok(());
    }
    let what = format!("the kernel took {written} of {expected} bytes");
    Err(io::Error::new(io::ErrorKind::WriteZero, what))
}

/// Makes a file of this program's own with these bytes, or replaces its content by them.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let options = || OpenOptions::new().write(true).create(true).truncate(true).open(path);
    write_all(path, bytes, |bytes| options()?.write_all(bytes))
}

/// Writes all bytes by calls of `write`. A hook may limit each call to some bytes, and then sees another call
/// for the others.
fn write_all(
    path: &Path,
    mut bytes: &[u8],
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        match ask(Kind::Write, About::Path(path), bytes) {
            Answer::GoOn => return write(bytes),
            Answer::Refuse(errno) => return Err(io::Error::from_raw_os_error(errno)),
            Answer::Falsify(others) => return write(&others),
            Answer::Shorten(0) => return Err(io::ErrorKind::WriteZero.into()),
            Answer::Shorten(limit) => {
                let (head, rest) = bytes.split_at(limit.min(bytes.len()));
                write(head)?;
                if rest.is_empty() {
                    return Ok(());
                }
                bytes = rest;
            }
        }
    }
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its path: the folder's path, and the entry's name.
    pub(crate) path: PathBuf,
    /// Whether it is a folder. False for a link to one.
    pub(crate) is_dir: bool,
}

impl Entry {
    /// Its name; empty if the name is not UTF-8.
    pub(crate) fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

/// The entries of a folder, in no particular order. Entries removed meanwhile may be missing.
pub(crate) fn list(path: &Path) -> io::Result<Vec<Entry>> {
    let limit = match ask(Kind::List, About::Path(path), []) {
        Answer::Refuse(errno) => return Err(io::Error::from_raw_os_error(errno)),
        Answer::Shorten(limit) => limit,
        _ => usize::MAX,
    };
    let entry = |entry: fs::DirEntry| Entry {
        path: entry.path(),
        is_dir: entry.file_type().is_ok_and(|kind| kind.is_dir()),
    };
    Ok(fs::read_dir(path)?.flatten().take(limit).map(entry).collect())
}

/// A file's metadata. Follows links.
pub(crate) fn look(path: &Path) -> io::Result<Metadata> {
    pass(Kind::Look, About::Path(path))?;
    fs::metadata(path)
}

/// Whether a file or folder exists. False on any error.
pub(crate) fn exists(path: &Path) -> bool {
    look(path).is_ok()
}

/// Whether a file or folder exists; an error if that is unknown.
pub(crate) fn is_there(path: &Path) -> io::Result<bool> {
    match look(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a folder exists. False on any error.
pub(crate) fn is_dir(path: &Path) -> bool {
    look(path).is_ok_and(|facts| facts.is_dir())
}

/// The absolute path with all links resolved.
pub(crate) fn canonical(path: &Path) -> io::Result<PathBuf> {
    pass(Kind::Look, About::Path(path))?;
    fs::canonicalize(path)
}

/// Whether this process, with its effective user, may write to a file or folder. False on any error.
pub(crate) fn may_write(path: &Path) -> bool {
    pass(Kind::Look, About::Path(path)).is_ok()
        && rustix::fs::accessat(CWD, path, rustix::fs::Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Bytes available to this user on a folder's file system.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    pass(Kind::Look, About::Path(path))?;
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes a folder. Errors are the kernel's, such as `AlreadyExists`.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    pass(Kind::MakeDir, About::Path(path))?;
    fs::create_dir(path)
}

/// Makes a folder and its missing parents.
pub(crate) fn make_dirs(path: &Path) -> io::Result<()> {
    pass(Kind::MakeDir, About::Path(path))?;
    fs::create_dir_all(path)
}

/// Removes an empty folder. A control group is empty if it has no processes and no child groups.
pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    pass(Kind::RemoveDir, About::Path(path))?;
    fs::remove_dir(path)
}

/// Removes a file.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    pass(Kind::RemoveFile, About::Path(path))?;
    fs::remove_file(path)
}

/// Renames a file, replacing the target.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    pass(Kind::Rename, About::Path(from))?;
    fs::rename(from, to)
}

/// Makes a folder's entries durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    pass(Kind::Sync, About::Path(path))?;
    fs::File::open(path)?.sync_all()
}

/// Reads a file's extended attribute into `buffer`, and returns its length.
pub(crate) fn marked(path: &Path, name: &str, buffer: &mut [u8]) -> io::Result<usize> {
    match ask(Kind::Mark, About::Path(path), []) {
        Answer::Refuse(errno) => Err(io::Error::from_raw_os_error(errno)),
        Answer::Falsify(bytes) => Ok(copy(&bytes, buffer)),
        _ => Ok(rustix::fs::getxattr(path, name, buffer)?),
    }
}

/// Sets an extended attribute of a file.
pub(crate) fn mark(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    ask(Kind::Mark, About::Path(path), value).passed()?;
    Ok(rustix::fs::setxattr(path, name, value, XattrFlags::empty())?)
}

/// Checks the size of a file. Errors: `FileTooLarge` if `bytes` exceeds `bytes_max`.
pub(super) fn check_size(bytes: u64, bytes_max: u64) -> io::Result<()> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let what = match bytes_max >> 20 {
        0 => format!("it has more than {bytes_max} bytes"),
        mib => format!("it has more than {mib} MiB"),
    };
    Err(io::Error::new(io::ErrorKind::FileTooLarge, what))
}

/// Copies as many bytes as fit into `to`, and returns their number.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let length = from.len().min(to.len());
    to[..length].copy_from_slice(&from[..length]);
    length
}

/// A file that is kept open.
#[derive(Debug)]
pub(crate) struct File {
    file: fs::File,
    path: PathBuf,
}

impl File {
    /// Opens a file for reading.
    pub(crate) fn open(path: &Path) -> io::Result<File> {
        File::open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a file with these options.
    pub(crate) fn open_with(path: &Path, options: &OpenOptions) -> io::Result<File> {
        pass(Kind::Open, About::Path(path))?;
        Ok(File { file: options.open(path)?, path: path.to_owned() })
    }

    /// Wraps a file that was opened relative to a folder.
    pub(super) fn of(file: OwnedFd, path: PathBuf) -> File {
        File { file: file.into(), path }
    }

    /// Its path when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads at an offset, in one call, and returns the number of bytes read.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match ask(Kind::Read, About::Path(&self.path), []) {
            Answer::GoOn => self.file.read_at(buffer, offset),
            Answer::Refuse(errno) => Err(io::Error::from_raw_os_error(errno)),
            Answer::Shorten(limit) => {
                let limit = limit.min(buffer.len());
                self.file.read_at(&mut buffer[..limit], offset)
            }
            Answer::Falsify(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                Ok(copy(&bytes[start..], buffer))
            }
        }
    }

    /// Fills the buffer from an offset on; `UnexpectedEof` if the file is too short.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if !has_hook() {
            return self.file.read_exact_at(buffer, offset);
        }
        let read = self.read_at(buffer, offset)?;
        if read == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads from the current position to the end. Errors: `FileTooLarge` if that is more than `bytes_max`
    /// bytes.
    pub(crate) fn read_at_most(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let File { file, path } = self;
        let bytes = read_with_hook(path, || {
            let mut bytes = Vec::new();
            file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(bytes)
        })?;
        check_size(bytes.len() as u64, bytes_max).map(|()| bytes)
    }

    /// Writes all bytes at the current position.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let File { file, path } = self;
        write_all(path, bytes, |bytes| file.write_all(bytes))
    }

    /// Writes all bytes at an offset.
    pub(crate) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut next_offset = offset;
        write_all(&self.path, bytes, |bytes| {
            self.file.write_all_at(bytes, next_offset)?;
            next_offset += bytes.len() as u64;
            Ok(())
        })
    }

    /// Sets the file's length.
    pub(crate) fn set_len(&self, bytes: u64) -> io::Result<()> {
        pass(Kind::Resize, About::Path(&self.path))?;
        self.file.set_len(bytes)
    }

    /// Makes the file's content durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        pass(Kind::Sync, About::Path(&self.path))?;
        self.file.sync_all()
    }

    /// Moves the current position to the beginning.
    pub(crate) fn rewind(&mut self) -> io::Result<()> {
        self.file.rewind()
    }

    /// The file's metadata.
    pub(crate) fn look(&self) -> io::Result<Metadata> {
        pass(Kind::Look, About::Path(&self.path))?;
        self.file.metadata()
    }

    /// Locks the file exclusively, until it is closed. Errors: `WouldBlock` if another process has locked it.
    pub(crate) fn lock(&self) -> io::Result<()> {
        pass(Kind::Lock, About::Path(&self.path))?;
        Ok(rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)?)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
