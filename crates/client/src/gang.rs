//! Joins the choice of gangs: a program reports its memory-bus transfers to the daemon (docs/gangs.md).
//!
//! ```no_run
//! use commonhold_client::gang::Gang;
//!
//! let gang = Gang::join("/run/commonhold/socket");
//! if let Err(alone) = &gang {
//!     eprintln!("alone: {alone}");
//! }
//! # let lines = 0;
//! // ... after each part of the work ...
//! if let Ok(gang) = &gang {
//!     gang.transferred(64 * lines);
//! }
//! ```
//!
//! A thread of this module writes the reported bytes, twice per quantum, into a [`Page`] that the daemon reads. If the daemon
//! exits, and another one is running, that thread joins the other one.
//!
//! A forked process is not joined: its copy of a [`Gang`] has no effect, and it may join for itself. Hardware counters are
//! not used. Until a program calls [`Gang::transferred`], its transfers are unknown, and the daemon treats it like one that
//! did not join. A program that cannot count its transfers can be started with `LD_PRELOAD` instead.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::time::{ClockId, clock_gettime};

use crate::arena::{LEFT, PAGE_BYTES, Page, Told, VERSION};
use crate::wire::{Call, Joined};
use crate::{Client, Error};

const SECOND_NS: u64 = 1_000_000_000;

/// A daemon polls the page several times a second. After this time without a poll, it is taken to be gone.
const GONE_NS: u64 = 10 * SECOND_NS;

/// Bounds on the interval between writes that the daemon may request.
const EVERY_NS: (u64, u64) = (SECOND_NS / 1_000, SECOND_NS);

const LENGTH: usize = 4096;
const _: () = assert!(LENGTH as u64 == PAGE_BYTES && size_of::<Page>() <= LENGTH);

/// The process that has joined: a process has one page.
static JOINED: AtomicU32 = AtomicU32::new(0);

/// A process that has joined, until this is dropped. All threads may use it.
#[derive(Debug)]
pub struct Gang {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pid: u32,
    socket: PathBuf,
    /// Bytes reported since the process joined.
    told: AtomicU64,
    /// Whether anything was reported, if only zero bytes.
    has_told: AtomicBool,
    state: Mutex<Membership>,
    wake: Condvar,
}

#[derive(Debug)]
struct Membership {
    page: Mapped,
    /// Bytes reported before this page existed.
    before: u64,
    /// The bytes in the page.
    written: u64,
    /// When the daemon was last asked to join, by `CLOCK_MONOTONIC`.
    asked_at: u64,
    ends: bool,
}

impl Gang {
    /// Joins. A process that has joined already is refused with [`io::ErrorKind::AlreadyExists`].
    pub fn join(socket: impl AsRef<Path>) -> Result<Gang, Error> {
        let pid = std::process::id();
        if JOINED.swap(pid, Ordering::AcqRel) == pid {
            let message = "this process has joined already: share the `Gang` that it has";
            return Err(Error::Io(io::Error::new(io::ErrorKind::AlreadyExists, message)));
        }
        Gang::begin(socket.as_ref(), pid).inspect_err(|_| JOINED.store(0, Ordering::Release))
    }

    fn begin(socket: &Path, pid: u32) -> Result<Gang, Error> {
        let page = ask(socket)?;
        let state = Membership { page, before: 0, written: 0, asked_at: now(), ends: false };
        let shared = Arc::new(Shared {
            pid,
            socket: socket.to_owned(),
            told: AtomicU64::new(0),
            has_told: AtomicBool::new(false),
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        let of_writer = Arc::clone(&shared);
        let before = block_signals();
        let begun = thread::Builder::new().name("commonhold-gang".into()).spawn(move || of_writer.write());
        set_signals(&before);
        Ok(Gang { shared, writer: Some(begun?) })
    }

    /// Reports that `bytes` more were transferred over the memory bus, by any thread. A program that leaves the bus alone calls
    /// this once with 0: without any call, its transfers are unknown.
    pub fn transferred(&self, bytes: u64) {
        self.shared.told.fetch_add(bytes, Ordering::Relaxed);
        self.shared.has_told.store(true, Ordering::Release);
    }

    /// Writes the bytes reported so far, without waiting for the writer thread.
    pub fn tell(&self) {
        if let Some(mut state) = self.shared.own() {
            self.shared.put(&mut state, now());
        }
    }

    /// Leaves, as dropping it does.
    pub fn leave(self) {}
}

impl Drop for Gang {
    fn drop(&mut self) {
        let writer = self.writer.take();
        let Some(mut state) = self.shared.own() else {
            // This is a forked process: the thread is not there.
            std::mem::forget(writer);
            return;
        };
        state.ends = true;
        drop(state);
        self.shared.wake.notify_all();
        // The thread cannot panic but in a failed allocation.
        let _ = writer.map(JoinHandle::join);
        if let Some(mut state) = self.shared.own() {
            self.shared.put(&mut state, LEFT);
        }
        JOINED.store(0, Ordering::Release);
    }
}

impl Shared {
    /// The state, for the process that joined. A forked process must not wait: the thread that held the lock at the fork does
    /// not exist there.
    fn own(&self) -> Option<MutexGuard<'_, Membership>> {
        (std::process::id() == self.pid).then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Membership> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, state: &mut Membership, at_ns: u64) {
        let unmeasured = !self.has_told.load(Ordering::Acquire);
        let told = self.told.load(Ordering::Relaxed).saturating_sub(state.before);
        state.written = state.written.max(told);
        state.page.get().tell(Told { at_ns, bytes: state.written, unmeasured });
    }

    /// The writer thread.
    fn write(&self) {
        let tid = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let mut until = now();
        let mut state = self.lock();
        while !state.ends {
            let at = now();
            let page = state.page.get();
            page.writer.store(tid, Ordering::Relaxed);
            let (looked, every) =
                (page.looked_at_ns.load(Ordering::Relaxed), page.every_ns.load(Ordering::Relaxed));
            self.put(&mut state, at);
            if at > looked.saturating_add(GONE_NS) && at > state.asked_at.saturating_add(GONE_NS) {
                state = self.join_again(state, at);
            }
            let every = every.clamp(EVERY_NS.0, EVERY_NS.1);
            // A thread this late was stopped, and a quantum begins now. The daemon polls in its middle and at its end: a report
            // just before is fresher than one just after, and this thread does not run, and count as a thread, at the poll.
            until = at + if at > until + every / 2 { every / 2 } else { every };
            while !state.ends
                && let left @ 1.. = until.saturating_sub(now())
            {
                let waited = self.wake.wait_timeout(state, Duration::from_nanos(left));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// The daemon no longer polls: joins another one, if it is running. Bytes reported to the previous one are not reported
    /// again.
    fn join_again<'a>(&'a self, state: MutexGuard<'a, Membership>, at: u64) -> MutexGuard<'a, Membership> {
        drop(state);
        let page = ask(&self.socket);
        let mut state = self.lock();
        state.asked_at = at;
        if let Ok(page) = page {
            state.page = page;
            state.before = self.told.load(Ordering::Relaxed);
            state.written = 0;
        }
        state
    }
}

/// Asks the daemon for a page.
fn ask(socket: &Path) -> Result<Mapped, Error> {
    let (joined, file) = Client::connect(socket)?.call_for_file::<Joined>(&Call::Join {})?;
    match file {
        Some(file) if joined.page_bytes >= PAGE_BYTES => Mapped::new(&file),
        _ => Err(Error::NotUnderstood("an answer without a page".to_owned())),
    }
}

/// The page in this process's memory. A forked process does not have it.
#[derive(Debug)]
struct Mapped {
    at: NonNull<Page>,
    pid: u32,
}

// SAFETY: everything in a page is atomic, and the mapping is not bound to a thread.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &OwnedFd) -> Result<Mapped, Error> {
        // Writing to a page that was truncated would kill this program.
        let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let length = fstat(file).map_err(io::Error::from)?.st_size;
        if !sealed || !u64::try_from(length).is_ok_and(|length| length >= PAGE_BYTES) {
            return Err(Error::NotUnderstood("a page that is too short, or may become so".to_owned()));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps no other.
        let at = unsafe { mmap(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED, file, 0) };
        let at = at.map_err(io::Error::from)?;
        let page = NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mapped = Mapped { at: page, pid: std::process::id() };
        // SAFETY: it is the mapping just made, and the advice only affects forks.
        unsafe { madvise(at, LENGTH, Advice::LinuxDontFork) }.map_err(io::Error::from)?;
        match mapped.get().version.load(Ordering::Acquire) {
            VERSION => Ok(mapped),
            other => Err(Error::NotUnderstood(format!("a page of version {other}, not {VERSION}"))),
        }
    }

    /// Only in the process that mapped it.
    fn get(&self) -> &Page {
        // SAFETY: the mapping is that long, cannot shrink, and lives as long as `self` in the process that made it; all callers
        // are `Shared::own`, its thread, and `new`. Any bytes are a valid page, and are only accessed as atomics.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // In a forked process, something else may be there by now.
        if std::process::id() == self.pid {
            // SAFETY: this value owns the mapping, and no borrow of it remains.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), LENGTH) };
        }
    }
}

/// Bytes from a socket, and the descriptor that came with them.
pub(crate) struct WithFile<'a> {
    from: &'a UnixStream,
    pub(crate) file: Option<OwnedFd>,
}

impl<'a> WithFile<'a> {
    pub(crate) fn new(from: &'a UnixStream) -> WithFile<'a> {
        WithFile { from, file: None }
    }
}

impl Read for WithFile<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut room);
        let read = recvmsg(self.from, &mut [IoSliceMut::new(into)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
        let files = beside.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        self.file = files.flatten().last().or(self.file.take());
        Ok(read.bytes)
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let unsigned = |part: i64| u64::try_from(part).unwrap_or(0);
    unsigned(time.tv_sec) * SECOND_NS + unsigned(time.tv_nsec)
}

/// Blocks all signals, so that a new thread receives none of the program's. Returns the previous mask.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call makes a set of `all`, and the second one of `before`. Neither fails with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn set_signals(to: &libc::sigset_t) {
    // SAFETY: a valid set; the previous one is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, to, std::ptr::null_mut()) };
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// What a simulated daemon sends with its answer: a page of this length and version.
    struct Sends {
        bytes: u64,
        version: u64,
        sealed: bool,
    }

    const GOOD: Sends = Sends { bytes: PAGE_BYTES, version: VERSION, sealed: true };
    const ANSWER: &[u8] = b"{\"parameters\":{\"page_bytes\":4096,\"every_ns\":1}}\0";

    fn page(sends: &Sends) -> OwnedFd {
        let file = memfd_create("page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, sends.bytes).unwrap();
        rustix::io::pwrite(&file, &sends.version.to_ne_bytes(), 0).unwrap();
        if sends.sealed {
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        }
        file
    }

    /// The result of joining a daemon that answers once, with these.
    fn answered<T>(file: Option<&OwnedFd>, answer: &'static [u8], asks: impl FnOnce(&Path) -> T) -> T {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let at = std::env::temp_dir().join(format!("gang-{}-{number}", std::process::id()));
        let _ = std::fs::remove_file(&at);
        let listener = UnixListener::bind(&at).unwrap();
        let file = file.map(|file| file.try_clone().unwrap());
        let daemon = thread::spawn(move || {
            let (mut to, _) = listener.accept().unwrap();
            let mut asked = [0; 256];
            assert!(to.read(&mut asked).unwrap() > 0);
            match &file {
                None => to.write_all(answer).unwrap(),
                Some(file) => {
                    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut beside = SendAncillaryBuffer::new(&mut room);
                    let files = [file.as_fd()];
                    assert!(beside.push(SendAncillaryMessage::ScmRights(&files)));
                    sendmsg(&to, &[IoSlice::new(answer)], &mut beside, SendFlags::empty()).unwrap();
                }
            }
        });
        let came = asks(&at);
        daemon.join().unwrap();
        std::fs::remove_file(&at).unwrap();
        came
    }

    #[test]
    fn a_page_is_taken_only_if_it_is_one() {
        let mapped = answered(Some(&page(&GOOD)), ANSWER, ask).unwrap();
        let told = Told { at_ns: 3, bytes: 4, ..Told::default() };
        mapped.get().tell(told);
        assert_eq!(mapped.get().told(), Some(told));
        for (file, words) in [
            (None, "without a page"),
            (Some(Sends { bytes: 8, ..GOOD }), "too short"),
            (Some(Sends { sealed: false, ..GOOD }), "too short"),
            (Some(Sends { version: 999, ..GOOD }), "version 999"),
        ] {
            let refused = answered(file.as_ref().map(page).as_ref(), ANSWER, ask).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let no = b"{\"error\":\"io.commonhold.NoGangs\",\"parameters\":{\"message\":\"no gangs here\"}}\0";
        assert_eq!(answered(None, no, ask).unwrap_err().to_string(), "no gangs here");
        assert!(matches!(ask(Path::new("/nowhere/socket")), Err(Error::Io(_))));
    }

    #[test]
    fn a_process_has_one_page_and_a_forked_one_has_none() {
        let file = page(&GOOD);
        let seen = Mapped::new(&file).unwrap();
        assert!(matches!(Gang::join("/nowhere/socket"), Err(Error::Io(_))));
        let gang = answered(Some(&file), ANSWER, |at| Gang::join(at)).unwrap();
        let again = Gang::join("/nowhere/socket").unwrap_err();
        assert!(matches!(again, Error::Io(e) if e.kind() == io::ErrorKind::AlreadyExists));
        gang.tell();
        assert!(seen.get().told().is_some_and(|told| told.unmeasured), "nothing was told yet");
        gang.transferred(40);
        while seen.get().told().is_none_or(|told| told.bytes < 40) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_ne!(seen.get().writer.load(Ordering::Relaxed), 0, "its thread writes, and says who it is");
        // SAFETY: the child takes no lock that another thread may have had, but the allocator's, which the C library opens.
        let child = unsafe { libc::fork() };
        if child == 0 {
            gang.transferred(1_000);
            gang.tell();
            drop(gang);
            let may_join = matches!(Gang::join("/nowhere/socket"), Err(Error::Io(e)) if e.kind() == io::ErrorKind::NotFound);
            // SAFETY: it ends this process, and runs nothing of the parent's at its end.
            unsafe { libc::_exit(if may_join { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}");
        gang.transferred(2);
        gang.tell();
        assert_eq!(seen.get().told().map(|told| told.bytes), Some(42), "nothing of the child's");
        gang.leave();
        assert_eq!(seen.get().told(), Some(Told { at_ns: LEFT, bytes: 42, unmeasured: false }));
        assert_eq!(JOINED.load(Ordering::Relaxed), 0, "it may join again");
    }
}
