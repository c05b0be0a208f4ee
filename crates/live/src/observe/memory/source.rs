//! Files of the kernel that are read again and again: kept open, read into one buffer.

use std::io;
use std::path::Path;

use crate::LiveError;
use crate::host::File;
use crate::observe::knob::failed;

/// Larger than most files that are read here: memory.stat has some sixty lines.
const BYTES: usize = 16 << 10;

/// Bytes of a page; what the kernel counts in pages is of this size on every machine that the program is built for.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: asks for a constant.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4_096)
}

/// A file of the kernel that is read again and again.
#[derive(Debug)]
pub(crate) struct Source(File);

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source, LiveError> {
        match File::open(path) {
            Ok(file) => Ok(Source(file)),
            Err(source) => Err(failed(path, "open it".to_owned(), source)),
        }
    }

    /// The same file, or nothing if this kernel does not have it.
    pub(crate) fn optional(path: &Path) -> Option<Source> {
        Source::open(path).ok()
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// The text, in one read: that of a file which the kernel writes at once, however long it is.
    pub(crate) fn read<'a>(&self, buffer: &'a mut Buffer) -> Result<&'a str, LiveError> {
        let n = self.fill(buffer)?;
        Ok(buffer.text(n))
    }

    /// The same, of whatever is at that path now: a control group may have gone, and another one come.
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
            let n = told(self.0.read_at(&mut buffer.0, 0))
                .map_err(|source| failed(self.0.path(), "read it".to_owned(), source))?;
            if n < buffer.0.len() {
                return Ok(n);
            }
            buffer.0.resize(2 * n, 0);
        }
    }

    /// Shows every line of a file that may be larger than the buffer; of a line that is, nothing.
    pub(crate) fn lines(&self, buffer: &mut Buffer, mut see: impl FnMut(&str)) -> io::Result<()> {
        let (mut at, mut kept) = (0, 0);
        loop {
            let n = self.0.read_at(&mut buffer.0[kept..], at)?;
            at += n as u64;
            let filled = kept + n;
            let whole = match buffer.0[..filled].iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if n == 0 || filled == buffer.0.len() => filled,
                None => 0,
            };
            std::str::from_utf8(&buffer.0[..whole]).unwrap_or_default().lines().for_each(&mut see);
            if n == 0 {
                return Ok(());
            }
            buffer.0.copy_within(whole..filled, 0);
            kept = filled - whole;
        }
    }
}

/// What was read, which is nothing where a kernel has the file but not the feature: pressure with `psi=0`.
fn told(read: io::Result<usize>) -> io::Result<usize> {
    match read {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
        read => read,
    }
}

/// Room for a file's text, which grows with it.
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

    /// `psi=0` leaves the file and refuses to read it: nothing is told. Any other refusal is said.
    #[test]
    fn a_feature_that_is_off_tells_nothing() {
        let refused = |errno| told(Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(told(Ok(3)).unwrap(), 3);
        assert_eq!(refused(libc::EOPNOTSUPP).unwrap(), 0);
        assert_eq!(refused(libc::EIO).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    /// A file that was removed is gone; what came in its place is read, of whatever length.
    #[test]
    fn a_file_is_read_as_it_is_now() {
        let (dir, mut buffer) = (tempfile::tempdir().unwrap(), Buffer::default());
        let path = dir.path().join("io.stat");
        let long = "8:0 rbytes=1\n".repeat(3_000);
        std::fs::write(&path, &long).unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.read(&mut buffer).unwrap(), long);
        std::fs::write(&path, "8:0 rbytes=2\n").unwrap();
        assert_eq!(source.read_anew(&mut buffer).unwrap(), "8:0 rbytes=2\n");
        // As a control group's file is once that has gone: it cannot be read.
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
