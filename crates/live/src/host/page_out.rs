//! Asking the kernel to page out what a process has mapped.
//!
//! Source: `process_madvise(2)`, `MADV_PAGEOUT`.

use std::io;
use std::os::fd::AsRawFd;

use super::Pinned;
use super::tamper::{About, Kind, pass};

/// Whether this kernel has the call; what it answers for a process that there is not.
pub(crate) fn is_offered() -> bool {
    page_out_at(-1, &[]).err().is_none_or(|error| error.raw_os_error() != Some(libc::ENOSYS))
}

/// Asks the kernel to page out ranges (address and length) of a process. What it does not take it leaves.
pub(crate) fn page_out(process: &Pinned, ranges: &[(u64, u64)]) -> io::Result<()> {
    pass(Kind::PageOut, About::Process(process.pid))?;
    page_out_at(process.process.as_raw_fd(), ranges)
}

fn page_out_at(process: i32, ranges: &[(u64, u64)]) -> io::Result<()> {
    let size = |value: u64| usize::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let mut vector = Vec::with_capacity(ranges.len());
    for (start, length) in ranges {
        vector.push(libc::iovec { iov_base: size(*start)? as *mut libc::c_void, iov_len: size(*length)? });
    }
    // SAFETY: the kernel reads `vector.len()` entries of `vector`; the addresses in them are of another process, and nothing
    // is read or written there.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process,
            vector.as_ptr(),
            vector.len(),
            libc::MADV_PAGEOUT,
            0u32,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
