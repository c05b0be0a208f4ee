//! Lets a program take part in gang scheduling, by reporting its memory-bus transfers to the daemon
//! (docs/gangs.md).
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
//! The *writer thread* of this module writes the sum of reported bytes, twice per quantum, into a [`Page`]
//! that the daemon reads. If the daemon exits and another daemon is running, the writer thread joins that
//! daemon.
//!
//! A forked process has not joined: its copy of a [`Gang`] has no effect, and it may join for itself.
//!
//! This module does not use hardware counters. Until a program calls [`Gang::transferred`], its transfers are
//! unknown, and the daemon treats it like a program that did not join. A program that cannot count its
//! transfers can instead be started with the library `clients/c/gang_shim.c` in `LD_PRELOAD`, which uses
//! hardware counters.

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

/// If the daemon has not polled the page for this time, it is assumed to have ended. A daemon polls several
/// times a second.
const GONE_NS: u64 = 10 * SECOND_NS;

/// The shortest and the longest interval between writes. An interval that the daemon requests is clamped to
/// these bounds.
const EVERY_NS: (u64, u64) = (SECOND_NS / 1_000, SECOND_NS);

const LENGTH: usize = 4096;
const _: () = assert!(LENGTH as u64 == PAGE_BYTES && size_of::<Page>() <= LENGTH);

/// The process that has joined, by its number; 0 if none has. A process may have only one page. In a forked
/// process, which has not joined, this is still the parent's number.
static JOINED: AtomicU32 = AtomicU32::new(0);

/// The process's membership, which ends when the value is dropped. All threads may use it.
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
    /// Whether the program has reported anything. A report of zero bytes counts.
    has_told: AtomicBool,
    state: Mutex<Membership>,
    wake: Condvar,
}

#[derive(Debug)]
struct Membership {
    page: Mapped,
    /// The part of [`Shared::told`] that was written to the page of an earlier daemon.
    before: u64,
    /// The bytes in the page.
    written: u64,
    /// When a daemon was last asked for a page, by `CLOCK_MONOTONIC`.
    asked_at: u64,
    /// Whether the writer thread should end.
    ends: bool,
}

impl Gang {
    /// Joins the daemon at a socket. If the process has joined already, the error is
    /// [`io::ErrorKind::AlreadyExists`].
    pub fn join(socket: impl AsRef<Path>) -> Result<Gang, Error> {
        let pid = std::process::id();
        if JOINED.swap(pid, Ordering::AcqRel) == pid {
            let message = "this process has joined already: share the `Gang` that it has";
            return Err(Error::Io(io::Error::new(io::ErrorKind::AlreadyExists, message)));
        }
        Gang::begin(socket.as_ref(), pid).inspect_err(|_| JOINED.store(0, Ordering::Release))
    }

    /// Gets a page from the daemon, and starts the writer thread.
    fn begin(socket: &Path, pid: u32) -> Result<Gang, Error> {
        let page = request_page(socket)?;
        let state = Membership { page, before: 0, written: 0, asked_at: now(), ends: false };
        let shared = Arc::new(Shared {
            pid,
            socket: socket.to_owned(),
            told: AtomicU64::new(0),
            has_told: AtomicBool::new(false),
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        let writers_shared = Arc::clone(&shared);
        // The writer thread inherits the mask, so it receives none of the program's signals.
        let previous_mask = block_signals();
        let writer = thread::Builder::new()
            .name("commonhold-gang".into())
            .spawn(move || writers_shared.write_until_end());
        set_signals(&previous_mask);
        Ok(Gang { shared, writer: Some(writer?) })
    }

    /// Reports that any thread of the process transferred `bytes` more over the memory bus. A program that
    /// leaves the bus alone calls this once with 0: without any call, its transfers are unknown.
    pub fn transferred(&self, bytes: u64) {
        self.shared.told.fetch_add(bytes, Ordering::Relaxed);
        self.shared.has_told.store(true, Ordering::Release);
    }

    /// Writes the bytes reported so far into the page at once, instead of when the writer thread next does.
    pub fn tell(&self) {
        if let Some(mut state) = self.shared.own() {
            self.shared.write_report(&mut state, now());
        }
    }

    /// Ends the membership, as dropping the value does.
    pub fn leave(self) {}
}

impl Drop for Gang {
    fn drop(&mut self) {
        let writer = self.writer.take();
        let Some(mut state) = self.shared.own() else {
            // This is a forked process, which has no writer thread: joining it would hang.
            std::mem::forget(writer);
            return;
        };
        state.ends = true;
        drop(state);
        self.shared.wake.notify_all();
        // The result is ignored: only a failed allocation can make the thread panic.
        let _ = writer.map(JoinHandle::join);
        if let Some(mut state) = self.shared.own() {
            self.shared.write_report(&mut state, LEFT);
        }
        JOINED.store(0, Ordering::Release);
    }
}

impl Shared {
    /// The locked state; `None` in a forked process, which must not wait for the lock: the thread that held
    /// the lock at the fork does not exist there.
    fn own(&self) -> Option<MutexGuard<'_, Membership>> {
        (std::process::id() == self.pid).then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Membership> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a report into the page. `at_ns` is the present time, or [`LEFT`].
    fn write_report(&self, state: &mut Membership, at_ns: u64) {
        let unmeasured = !self.has_told.load(Ordering::Acquire);
        let told = self.told.load(Ordering::Relaxed).saturating_sub(state.before);
        state.written = state.written.max(told);
        state.page.get().tell(Told { at_ns, bytes: state.written, unmeasured });
    }

    /// The writer thread: writes reports at the daemon's interval until the membership ends.
    fn write_until_end(&self) {
        let tid = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let mut next_write_at = now();
        let mut state = self.lock();
        while !state.ends {
            let began_at = now();
            let page = state.page.get();
            page.writer.store(tid, Ordering::Relaxed);
            let (polled_at, interval) =
                (page.looked_at_ns.load(Ordering::Relaxed), page.every_ns.load(Ordering::Relaxed));
            self.write_report(&mut state, began_at);
            let is_daemon_gone = began_at > polled_at.saturating_add(GONE_NS);
            if is_daemon_gone && began_at > state.asked_at.saturating_add(GONE_NS) {
                state = self.join_again(state, began_at);
            }
            let interval = interval.clamp(EVERY_NS.0, EVERY_NS.1);
            // If this thread is late by half an interval, the process was stopped and its quantum begins now.
            // The daemon polls in the middle and at the end of a quantum. So write half an interval later,
            // and then at whole intervals, just before each poll: the report is then fresh, and this thread
            // does not run at the poll, where it would count as a thread.
            let is_late = began_at > next_write_at + interval / 2;
            next_write_at = began_at + if is_late { interval / 2 } else { interval };
            while !state.ends
                && let remaining @ 1.. = next_write_at.saturating_sub(now())
            {
                let waited = self.wake.wait_timeout(state, Duration::from_nanos(remaining));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Joins another daemon, if one is running, since the previous one no longer polls. Bytes that were
    /// reported to the previous daemon are not reported again. The state is unlocked meanwhile, since the new
    /// daemon may take seconds to answer.
    fn join_again<'a>(
        &'a self,
        state: MutexGuard<'a, Membership>,
        asked_at: u64,
    ) -> MutexGuard<'a, Membership> {
        drop(state);
        let page = request_page(&self.socket);
        let mut state = self.lock();
        state.asked_at = asked_at;
        if let Ok(page) = page {
            state.page = page;
            state.before = self.told.load(Ordering::Relaxed);
            state.written = 0;
        }
        state
    }
}

/// Asks the daemon for a page, and maps it.
fn request_page(socket: &Path) -> Result<Mapped, Error> {
    let (joined, file) = Client::connect(socket)?.call_for_file::<Joined>(&Call::Join {})?;
    match file {
        Some(file) if joined.page_bytes >= PAGE_BYTES => Mapped::new(&file),
        _ => Err(Error::NotUnderstood("an answer without a page".to_owned())),
    }
}

/// The page in this process's memory. A forked process does not inherit the mapping.
#[derive(Debug)]
struct Mapped {
    at: NonNull<Page>,
    pid: u32,
}

// SAFETY: everything in a page is atomic, and the mapping is not bound to a thread.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps a page. An error if the file is shorter than a page or might become shorter, or if the page has
    /// another version.
    fn new(file: &OwnedFd) -> Result<Mapped, Error> {
        // Writing to a page that was truncated would kill this program (SIGBUS).
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
        // SAFETY: the range is the mapping just made, and the advice only affects forks.
        unsafe { madvise(at, LENGTH, Advice::LinuxDontFork) }.map_err(io::Error::from)?;
        match mapped.get().version.load(Ordering::Acquire) {
            VERSION => Ok(mapped),
            other => Err(Error::NotUnderstood(format!("a page of version {other}, not {VERSION}"))),
        }
    }

    /// The page. Must be called in the process that mapped it.
    fn get(&self) -> &Page {
        // SAFETY: the mapping is as long as a page, cannot shrink, and lives as long as `self` in the process
        // that made it. Only that process calls this: after `Shared::own`, in the writer thread, and in
        // `new`. Any bytes are a valid page, and are only accessed as atomics.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // A forked process has no such mapping, and may have mapped something else at the address.
        if std::process::id() == self.pid {
            // SAFETY: this value owns the mapping, and no borrow of it remains.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), LENGTH) };
        }
    }
}

/// A reader of a socket that keeps the file descriptor that came with the bytes.
pub(crate) struct WithFile<'a> {
    from: &'a UnixStream,
    /// The last descriptor received.
    pub(crate) file: Option<OwnedFd>,
}

impl<'a> WithFile<'a> {
    pub(crate) fn new(from: &'a UnixStream) -> WithFile<'a> {
        WithFile { from, file: None }
    }
}

impl Read for WithFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let read =
            recvmsg(self.from, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let files = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        self.file = files.flatten().last().or(self.file.take());
        Ok(read.bytes)
    }
}

/// The time by `CLOCK_MONOTONIC`, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    unsigned(time.tv_sec) * SECOND_NS + unsigned(time.tv_nsec)
}

/// Blocks all signals in this thread. Returns the previous mask.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut previous) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call initialises `all`, and the second one `previous`. Neither fails with these
    // arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), previous.as_mut_ptr());
        previous.assume_init()
    }
}

/// Sets this thread's signal mask.
fn set_signals(mask: &libc::sigset_t) {
    // SAFETY: `mask` is a valid set, and the null pointer says that the previous mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
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
    fn only_a_sealed_page_of_this_version_is_mapped() {
        let mapped = answered(Some(&page(&GOOD)), ANSWER, request_page).unwrap();
        let told = Told { at_ns: 3, bytes: 4, ..Told::default() };
        mapped.get().tell(told);
        assert_eq!(mapped.get().told(), Some(told));
        for (file, words) in [
            (None, "without a page"),
            (Some(Sends { bytes: 8, ..GOOD }), "too short"),
            (Some(Sends { sealed: false, ..GOOD }), "too short"),
            (Some(Sends { version: 999, ..GOOD }), "version 999"),
        ] {
            let refused =
                answered(file.as_ref().map(page).as_ref(), ANSWER, request_page).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let no = b"{\"error\":\"io.commonhold.NoGangs\",\"parameters\":{\"message\":\"no gangs here\"}}\0";
        assert_eq!(answered(None, no, request_page).unwrap_err().to_string(), "no gangs here");
        assert!(matches!(request_page(Path::new("/nowhere/socket")), Err(Error::Io(_))));
    }

    #[test]
    fn a_process_joins_once_and_a_forked_process_not_at_all() {
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
        // SAFETY: the child takes no lock that another thread may have had, but the allocator's, which the C
        // library opens.
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
