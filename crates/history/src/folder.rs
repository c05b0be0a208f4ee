//! The folder of a history and its files. No symbolic link is followed, and only regular files are opened.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};

use crate::Resolution;
use crate::frame;

/// The largest segment that is read, in bytes.
const SEGMENT_MAX: u64 = 256 << 20;
/// The most segments of a folder that are listed.
const SEGMENTS_MAX: usize = 10_000;
/// The file whose lock keeps a second writer out.
const LOCK: &str = "lock";

/// A history that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}: {source}", path.display())]
pub struct OpenError {
    /// The folder, or the file in it.
    pub path: PathBuf,
    /// What failed: `cannot open the history's folder`.
    pub what: &'static str,
    /// Why.
    pub source: io::Error,
}

impl OpenError {
    /// Whether the folder does not exist: no history was written there.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// A segment's file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    pub(crate) resolution: Resolution,
    /// The number in the name, ascending.
    pub(crate) number: u64,
}

impl Segment {
    pub(crate) fn name(self) -> String {
        format!("{}-{:07}.history", self.resolution.name(), self.number)
    }

    fn of_name(name: &str) -> Option<Segment> {
        let (resolution, number) = name.strip_suffix(".history")?.split_once('-')?;
        let resolution = Resolution::ALL.into_iter().find(|known| known.name() == resolution)?;
        let segment = Segment { resolution, number: number.parse().ok()? };
        // No second spelling of the same number.
        (segment.name() == name).then_some(segment)
    }
}

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: OwnedFd,
    path: PathBuf,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Folder, OpenError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => Ok(Folder { dir, path: path.to_owned() }),
            Err(errno) => Err(OpenError {
                path: path.to_owned(),
                what: "cannot open the history's folder",
                source: errno.into(),
            }),
        }
    }

    /// Makes the folder if it does not exist; `mode` is the mode of the folder afterwards. Its parent must
    /// exist. The folder must belong to this user, and no other may write to it.
    pub(crate) fn make(path: &Path, mode: u32) -> Result<Folder, OpenError> {
        let failed = |what, source| OpenError { path: path.to_owned(), what, source };
        match rustix::fs::mkdir(path, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(failed("cannot make the history's folder", errno.into())),
        }
        let folder = Folder::open(path)?;
        let facts =
            rustix::fs::fstat(&folder.dir).map_err(|e| failed("cannot look at the folder", e.into()))?;
        own(facts.st_uid, facts.st_mode).map_err(|source| failed("cannot use this folder", source))?;
        // Also if the folder is older: other users may no longer read it, or may again.
        rustix::fs::fchmod(&folder.dir, Mode::from_raw_mode(mode))
            .map_err(|e| failed("cannot set the folder's mode", e.into()))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock of the folder's writer, held until the file is dropped; `WouldBlock` if another process
    /// holds it.
    pub(crate) fn lock(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = self.open_file(LOCK, flags, 0o600)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }

    /// The segments, in ascending order of resolution and number.
    pub(crate) fn segments(&self) -> io::Result<Vec<Segment>> {
        let mut segments = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            segments.extend(entry.file_name().to_str().ok().and_then(Segment::of_name));
            if segments.len() == SEGMENTS_MAX {
                break;
            }
        }
        segments.sort_unstable();
        Ok(segments)
    }

    /// Reads a segment.
    pub(crate) fn read(&self, segment: Segment) -> io::Result<Vec<u8>> {
        let file = self.open_file(&segment.name(), OFlags::RDONLY, 0)?;
        let mut bytes = Vec::new();
        file.take(SEGMENT_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The payload of a segment's first record; `None` unless the segment begins with a complete header and a
    /// record without damage.
    pub(crate) fn first_payload(&self, segment: Segment) -> Option<Vec<u8>> {
        let file = self.open_file(&segment.name(), OFlags::RDONLY, 0).ok()?;
        let mut bytes = vec![0; frame::HEADER + frame::FRAME];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let length = frame::length_at(&bytes, frame::HEADER)?;
        let begin = bytes.len();
        bytes.resize(begin + length, 0);
        file.read_exact_at(&mut bytes[begin..], begin as u64).ok()?;
        if frame::read_header(&bytes, segment.resolution) != frame::Header::Own {
            return None;
        }
        match frame::Walk::new().next(&bytes)? {
            frame::Found::Payload(payload) => Some(bytes[payload].to_vec()),
            _ => None,
        }
    }

    /// Makes the file of a new segment.
    pub(crate) fn create(&self, segment: Segment, mode: u32) -> io::Result<File> {
        let file = self.open_file(&segment.name(), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
        // Whatever the umask is.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file)
    }

    /// Opens the file of a segment of this user's, to which no other user may write, to append to it; `mode`
    /// is its mode afterwards.
    pub(crate) fn open_own(&self, segment: Segment, mode: u32) -> io::Result<File> {
        let file = self.open_file(&segment.name(), OFlags::RDWR, 0)?;
        let facts = file.metadata()?;
        own(facts.uid(), facts.mode())?;
        if facts.nlink() > 1 {
            return Err(refuse("it is a hard link: the same file has another name"));
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file)
    }

    /// Removes a segment. One that is gone already is no error.
    pub(crate) fn remove(&self, segment: Segment) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, segment.name(), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a regular file of the folder, without blocking on a FIFO.
    fn open_file(&self, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.dir, name, flags, Mode::from_raw_mode(mode))?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(refuse("it is no regular file")),
        }
    }
}

/// Refuses what does not belong to this user, or what others may write to.
fn own(uid: u32, mode: u32) -> io::Result<()> {
    if uid != rustix::process::geteuid().as_raw() {
        return Err(refuse(&format!("it belongs to another user (uid {uid})")));
    }
    match mode & 0o022 {
        0 => Ok(()),
        _ => Err(refuse(&format!("others may write to it (mode {:04o})", mode & 0o7777))),
    }
}

fn refuse(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_owned())
}
