//! Fault injection for tests: a thread's hook that runs before each of its calls to the kernel.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Opening a file that is kept open, or a folder whose files are read. Opening a file for only one read
    /// or write is no call of its own, but part of [`Kind::Read`] or [`Kind::Write`].
    Open,
    /// Reading a file. `Shorten`: the file ends after this many bytes of this read. `Falsify`: these bytes
    /// are read.
    Read,
    /// Writing a file. `Shorten`: the kernel takes this many bytes. `Falsify`: these bytes are written,
    /// without an error.
    Write,
    /// Listing a folder. `Shorten`: the list ends after this many entries.
    List,
    /// Checking a file's existence, metadata, links or write permission.
    Look,
    /// Making a folder, such as a control group.
    MakeDir,
    /// Removing a folder, such as a control group.
    RemoveDir,
    /// Removing a file.
    RemoveFile,
    /// Renaming a file.
    Rename,
    /// Setting a file's length.
    Resize,
    /// Making a file or a folder durable.
    Sync,
    /// Locking a file.
    Lock,
    /// Reading or setting an extended attribute. `Falsify`: these bytes are read.
    Mark,
    /// Opening a pidfd.
    Pin,
    /// Sending a signal. The bytes are its number.
    Signal,
    /// Reading the CPUs of a thread. `Falsify`: this list of CPUs is read.
    Affinity,
    /// Setting the CPUs of a thread. The bytes are the list of CPUs. `Falsify`: this list is set, without an
    /// error.
    SetAffinity,
    /// Reading the I/O priority of a thread. `Falsify`: this number is read.
    IoPriority,
    /// Setting the I/O priority of a thread. The bytes are its number.
    SetIoPriority,
    /// Asking the kernel to page out a process's mappings.
    PageOut,
    /// Mounting a file system.
    Mount,
    /// Unmounting a file system.
    Unmount,
    /// Connecting to a socket.
    Connect,
    /// Sending to a socket. `Shorten`: the connection ends after this many bytes. `Falsify`: these bytes are
    /// sent, without an error.
    Send,
    /// Receiving from a socket. `Shorten`: at most this many bytes arrive; 0: the peer has closed the
    /// connection. `Falsify`: these bytes arrive.
    Receive,
}

/// One call, before it is made.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// Its kind.
    pub kind: Kind,
    /// The file; empty if the call is about a process.
    pub path: &'a Path,
    /// The process or thread; 0 if the call is about a file, or about the calling thread.
    pub pid: u32,
    /// The bytes to be written or set.
    pub bytes: &'a [u8],
}

impl Access<'_> {
    /// Whether this is a call of a kind, about a file whose path ends with these components (`cpu.max`,
    /// `a/cpu.max`).
    pub fn is(&self, kind: Kind, path_end: &str) -> bool {
        self.kind == kind && self.path.ends_with(path_end)
    }
}

/// The hook's decision. For kinds of calls without bytes, `Shorten` and `Falsify` are like `GoOn`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Make the call.
    GoOn,
    /// Do not make the call, but fail with this errno (`libc::EBUSY`).
    Refuse(i32),
    /// Make the call for this many bytes or list entries.
    Shorten(usize),
    /// Read or write these bytes instead.
    Falsify(Vec<u8>),
}

type Hook = Box<dyn FnMut(&Access<'_>) -> Answer>;

thread_local! {
    /// Whether the thread has a hook. Without one, checking this is a call's whole overhead.
    static HAS_HOOK: Cell<bool> = const { Cell::new(false) };
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Installs a hook that runs before every call of this thread through [`host`](crate::host), until the
/// returned value is dropped. It replaces an earlier hook. Calls made by the hook itself do not run it.
#[must_use = "the hook is removed when this is dropped"]
pub fn tamper(hook: impl FnMut(&Access<'_>) -> Answer + 'static) -> Tampering {
    HOOK.with(|slot| slot.replace(Some(Box::new(hook))));
    HAS_HOOK.set(true);
    Tampering(PhantomData)
}

/// An installed hook. It belongs to one thread.
#[derive(Debug)]
pub struct Tampering(PhantomData<*const ()>);

impl Drop for Tampering {
    fn drop(&mut self) {
        HAS_HOOK.set(false);
        HOOK.with(RefCell::take);
    }
}

/// The object of a call.
#[derive(Clone, Copy)]
pub(super) enum About<'a> {
    /// A file or folder.
    Path(&'a Path),
    /// A file in a folder: the folder, and the name in it.
    In(&'a Path, &'a str),
    /// A process or thread.
    Process(u32),
}

/// Whether this thread has a hook.
#[inline]
pub(super) fn has_hook() -> bool {
    HAS_HOOK.get()
}

/// Asks the hook about a call with these bytes; [`Answer::GoOn`] without a hook.
#[inline]
pub(super) fn ask(kind: Kind, about: About<'_>, bytes: impl AsRef<[u8]>) -> Answer {
    if has_hook() { ask_the_hook(kind, about, bytes.as_ref()) } else { Answer::GoOn }
}

/// Asks the hook about a call without bytes. The error is the hook's refusal.
#[inline]
pub(super) fn pass(kind: Kind, about: About<'_>) -> io::Result<()> {
    if has_hook() { ask_the_hook(kind, about, &[]).passed() } else { Ok(()) }
}

#[cold]
fn ask_the_hook(kind: Kind, about: About<'_>, bytes: &[u8]) -> Answer {
    // The hook is removed while it runs, so that it may itself make any call.
    let Some(mut hook) = HOOK.with(RefCell::take) else { return Answer::GoOn };
    HAS_HOOK.set(false);
    let (path, pid) = match about {
        About::Path(path) => (path.to_owned(), 0),
        About::In(folder, name) => (folder.join(name), 0),
        About::Process(pid) => (PathBuf::new(), pid),
    };
    let answer = hook(&Access { kind, path: &path, pid, bytes });
    HOOK.with(|slot| slot.replace(Some(hook)));
    HAS_HOOK.set(true);
    answer
}

impl Answer {
    /// An error if the answer is a refusal.
    pub(super) fn passed(self) -> io::Result<()> {
        match self {
            Answer::Refuse(errno) => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{File, list, read_to_string, remove_dir, write};
    use super::*;

    #[test]
    fn a_hook_refuses_shortens_and_falsifies_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        std::fs::write(&path, "12345").unwrap();
        let file = File::open(&path).unwrap();
        let read_at = |at: u64| {
            let mut room = [0; 4];
            file.read_at(&mut room, at).map(|n| String::from_utf8_lossy(&room[..n]).into_owned())
        };
        let all = || (read_to_string(&path).unwrap(), read_at(0).unwrap(), read_at(3).unwrap());
        let strings = |three: [&str; 3]| (three[0].to_owned(), three[1].to_owned(), three[2].to_owned());
        let hook = tamper(|_| Answer::GoOn);
        assert_eq!(all(), strings(["12345", "1234", "45"]));
        let hook = (hook, tamper(|_| Answer::Shorten(1)));
        assert_eq!(all(), strings(["1", "1", "4"]));
        let hook = (hook, tamper(|_| Answer::Falsify(b"abcd".to_vec())));
        assert_eq!(all(), strings(["abcd", "abcd", "d"]));
        let hook = (hook, tamper(|_| Answer::Refuse(libc::ENODEV)));
        assert_eq!(read_to_string(&path).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(read_at(0).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(remove_dir(dir.path()).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        drop(hook);
        assert_eq!(all(), strings(["12345", "1234", "45"]));
    }

    #[test]
    fn a_hook_sees_written_bytes_and_may_make_calls_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        std::fs::write(&path, "").unwrap();
        let _hook = tamper(move |access| {
            assert_eq!((access.kind, access.bytes, access.pid), (Kind::Write, b"7".as_slice(), 0));
            // This call does not run the hook.
            assert_eq!(list(access.path.parent().unwrap()).unwrap().len(), 1);
            std::fs::remove_file(access.path).unwrap();
            Answer::GoOn
        });
        assert_eq!(write(&path, "7").unwrap_err().kind(), io::ErrorKind::NotFound, "the hook removed it");
    }

    #[test]
    fn after_a_short_write_the_rest_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cgroup.procs");
        std::fs::write(&path, "").unwrap();
        let _hook = tamper(|_| Answer::Shorten(2));
        let error = write(&path, "1234").unwrap_err();
        assert_eq!(error.to_string(), "the kernel took 2 of 4 bytes");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "12");
    }
}
