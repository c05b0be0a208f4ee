//! Asks the kernel to page out a process's mappings.
//!
//! Source: `process_madvise(2)`, `MADV_PAGEOUT`.

use std::io;
use std::os::fd::AsRawFd;

use super::Pinned;
use super::tamper::{About, Kind, pass};

/// Whether this kernel has the system call, judging by its error for a process that does not exist.
pub(crate) fn is_offered() -> bool {
    page_out_by_pidfd(-1, &[]).err().is_none_or(|error| error.raw_os_error() != Some(libc::ENOSYS))
}

/// Asks the kernel to page out ranges (address and length) of a process's memory. The kernel does so on a
/// best-effort basis.
pub(crate) fn page_out(process: &Pinned, ranges: &[(u64, u64)]) -> io::Result<()> {
    pass(Kind::PageOut, About::Process(process.pid))?;
    page_out_by_pidfd(process.process.as_raw_fd(), ranges)
}

fn page_out_by_pidfd(pidfd: i32, ranges: &[(u64, u64)]) -> io::Result<()> {
    let size = |value: u64| usize::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let mut vector = Vec::with_capacity(ranges.len());
    for (start, length) in ranges {
        vector.push(libc::iovec { iov_base: size(*start)? as *mut libc::c_void, iov_len: size(*length)? });
    }
    // SAFETY: the kernel reads `vector.len()` entries of `vector`; the addresses in them are another
    // process's, and the memory there is neither read nor written.
    let status = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd,
            vector.as_ptr(),
            vector.len(),
            libc::MADV_PAGEOUT,
            0u32,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
