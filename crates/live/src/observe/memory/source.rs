//! Kernel files that are read often: each is kept open, and all are read into one buffer.

use std::io;
use std::path::Path;

use crate::LiveError;
use crate::host::File;
use crate::observe::knob::failed;

/// The buffer's first size, larger than most files that are read: memory.stat has about sixty lines.
const BYTES: usize = 16 << 10;

/// Bytes of a page, the unit in which the kernel counts.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: asks for a constant.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4_096)
}

/// A kernel file that is read often.
#[derive(Debug)]
pub(crate) struct Source(File);

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source, LiveError> {
        match File::open(path) {
            Ok(file) => Ok(Source(file)),
            Err(source) => Err(failed(path, "open it".to_owned(), source)),
        }
    }

    /// Opens a file; `None` if it cannot be opened, as on a kernel that lacks it.
    pub(crate) fn optional(path: &Path) -> Option<Source> {
        Source::open(path).ok()
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// The file's text. It is read in one call, so that it is consistent; the buffer grows if necessary.
    pub(crate) fn read<'a>(&self, buffer: &'a mut Buffer) -> Result<&'a str, LiveError> {
        let n = self.fill(buffer)?;
        Ok(buffer.text(n))
    }

    /// Like [`Source::read`], but opens the path again if reading fails: a control group may have been
    /// removed and made anew.
    pub(crate) fn read_anew<'a>(&mut self, buffer: &'a mut Buffer) -> Result<&'a str, LiveError> {
        let n = if let Ok(n) = self.fill(buffer) {
            n
        } else {
            *self = Source::open(self.0.path())?;
            self.fill(buffer)?
        };
        Ok(buffer.text(n))
    }

    fn fill(&self, buffer: &mut Buffer) -> Result<usize, LiveError> {
        loop {
            let n = empty_if_disabled(self.0.read_at(&mut buffer.0, 0))
                .map_err(|source| failed(self.0.path(), "read it".to_owned(), source))?;
            if n < buffer.0.len() {
                return Ok(n);
            }
            buffer.0.resize(2 * n, 0);
        }
    }

    /// Passes every line of the file to `visit`, without growing the buffer. A line longer than the buffer is
    /// passed in pieces.
    pub(crate) fn lines(&self, buffer: &mut Buffer, mut visit: impl FnMut(&str)) -> io::Result<()> {
        // The buffer begins with `pending` bytes of a line whose end was not read yet.
        let (mut offset, mut pending) = (0, 0);
        loop {
            let n = self.0.read_at(&mut buffer.0[pending..], offset)?;
            offset += n as u64;
            let filled = pending + n;
            let complete = match buffer.0[..filled].iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if n == 0 || filled == buffer.0.len() => filled,
                None => 0,
            };
            std::str::from_utf8(&buffer.0[..complete]).unwrap_or_default().lines().for_each(&mut visit);
            if n == 0 {
                return Ok(());
            }
            buffer.0.copy_within(complete..filled, 0);
            pending = filled - complete;
        }
    }
}

/// Turns the error of a disabled feature into a length of 0: with `psi=0`, the kernel has pressure files, but
/// refuses to read them.
fn empty_if_disabled(read: io::Result<usize>) -> io::Result<usize> {
    match read {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
        read => read,
    }
}

/// A buffer for the text of one file at a time.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    fn text(&self, n: usize) -> &str {
        std::str::from_utf8(&self.0[..n]).unwrap_or_default()
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer(vec![0; BYTES])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::{self, Answer, Kind};

    /// With `psi=0` the file exists and cannot be read: it counts as empty. Any other refusal is an error.
    #[test]
    fn the_file_of_a_disabled_feature_counts_as_empty() {
        let refused = |errno| empty_if_disabled(Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(empty_if_disabled(Ok(3)).unwrap(), 3);
        assert_eq!(refused(libc::EOPNOTSUPP).unwrap(), 0);
        assert_eq!(refused(libc::EIO).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    /// Reading a removed file fails; a file made anew at its path is read, whatever its length.
    #[test]
    fn a_file_made_anew_is_read_from_its_path() {
        let (dir, mut buffer) = (tempfile::tempdir().unwrap(), Buffer::default());
        let path = dir.path().join("io.stat");
        let long = "8:0 rbytes=1\n".repeat(3_000);
        std::fs::write(&path, &long).unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.read(&mut buffer).unwrap(), long);
        std::fs::write(&path, "8:0 rbytes=2\n").unwrap();
        assert_eq!(source.read_anew(&mut buffer).unwrap(), "8:0 rbytes=2\n");
        // Reading fails, as for a file of a removed control group.
        let gone = || {
            let mut anew = false;
            host::tamper(move |access| {
                anew |= access.kind == Kind::Open && access.path.exists();
                if anew { Answer::GoOn } else { Answer::Refuse(libc::ENODEV) }
            })
        };
        let hook = gone();
        assert_eq!(source.read_anew(&mut buffer).unwrap(), "8:0 rbytes=2\n");
        drop(hook);
        std::fs::remove_file(&path).unwrap();
        let _hook = gone();
        assert!(source.read_anew(&mut buffer).is_err());
        std::fs::write(&path, "8:0 rbytes=3\n").unwrap();
        assert_eq!(source.read_anew(&mut buffer).unwrap(), "8:0 rbytes=3\n");
    }
}
