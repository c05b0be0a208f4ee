//! Pages of memory that another process shares with this program, to report in (`memfd_create(2)`).

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use commonhold_client::arena::{PAGE_BYTES, Page, Told, VERSION};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::tamper::{About, Kind, pass};

const LENGTH: usize = 4096;
const _: () = assert!(LENGTH as u64 == PAGE_BYTES && size_of::<Page>() <= LENGTH);

/// A page shared with another process. The page exists until this value is dropped and the process has
/// unmapped it.
#[derive(Debug)]
pub(crate) struct Shared(NonNull<Page>);

// SAFETY: only this value uses the mapping, and everything in it is atomic.
unsafe impl Send for Shared {}
// SAFETY: likewise.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes a page for the process with this pid. Returns the page, and the descriptor to send to the
    /// process.
    pub(crate) fn new(pid: u32) -> io::Result<(Shared, OwnedFd)> {
        pass(Kind::Open, About::Process(pid))?;
        let file = memfd_create("commonhold-gang", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE_BYTES)?;
        // If the file could be truncated, reading the page would kill this program (SIGBUS).
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice, aliases no other memory.
        let address = unsafe { mmap(std::ptr::null_mut(), LENGTH, access, shared, &file, 0) }?;
        let page = NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let shared = Shared(page);
        shared.page().version.store(VERSION, Ordering::Release);
        Ok((shared, file))
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is long enough and lives as long as `self`. It cannot shrink, since it was
        // sealed before it was shared. Any content is a valid `Page`, the initial zeros included. Others
        // write there, but all fields are atomics.
        unsafe { self.0.as_ref() }
    }

    /// Writes to the page that it was polled now, and how often its process is to report.
    pub(crate) fn set_polled(&self, now_ns: u64, every_ns: u64) {
        self.page().looked_at_ns.store(now_ns, Ordering::Relaxed);
        self.page().every_ns.store(every_ns, Ordering::Relaxed);
    }

    /// The thread that writes the reports, as the process states it; `None` if it states none.
    pub(crate) fn writer(&self) -> Option<u32> {
        u32::try_from(self.page().writer.load(Ordering::Relaxed)).ok().filter(|tid| *tid != 0)
    }

    /// The process's last report; `None` if the process is writing a report, or ended while it was writing.
    pub(crate) fn told(&self) -> Option<Told> {
        self.page().told()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: only this value uses the mapping, and nothing borrows it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LENGTH) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A process with the descriptor can write to the page, but not truncate it.
    #[test]
    fn a_page_can_be_written_by_others_and_not_truncated() {
        let (shared, file) = Shared::new(1).unwrap();
        shared.set_polled(7, 9);
        assert!(ftruncate(&file, 0).is_err() && ftruncate(&file, 1 << 20).is_err());
        assert_eq!(shared.told(), Some(Told::default()));
        let told = Told { at_ns: 5, bytes: 6, ..Told::default() };
        let mut bytes = [0; 24];
        bytes[0..8].copy_from_slice(&2u64.to_ne_bytes());
        bytes[8..16].copy_from_slice(&told.at_ns.to_ne_bytes());
        bytes[16..24].copy_from_slice(&told.bytes.to_ne_bytes());
        rustix::io::pwrite(&file, &bytes, std::mem::offset_of!(Page, sequence) as u64).unwrap();
        assert_eq!(shared.told(), Some(told));
        let mut began = [0; 24];
        rustix::io::pread(&file, &mut began, 0).unwrap();
        assert_eq!([1u64, 9, 7].map(u64::to_ne_bytes).concat(), began);
    }
}
