//! Copying memory of another process.
//!
//! The call takes a PID, which may have been reused. Callers check afterwards that the thread is still where
//! it was (`waits.rs`), and discard the copy if not.
//!
//! Source: `process_vm_readv(2)`.

use std::io;

const PAGE: usize = 4096;

/// Copies memory of a process from an address on, up to the first page that is not mapped. Returns the number
/// of bytes copied.
pub(crate) fn copy(pid: u32, at: u64, to: &mut [u8]) -> io::Result<usize> {
    let invalid = || io::Error::from_raw_os_error(libc::EFAULT);
    let process = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut from = usize::try_from(at).map_err(|_| invalid())?;
    // The kernel copies an entry wholly or not at all. One entry for each page lets the copy end where the
    // mapping does.
    let (mut pages, mut remaining) = (Vec::with_capacity(to.len() / PAGE + 2), to.len());
    while remaining > 0 {
        let length = (PAGE - from % PAGE).min(remaining);
        pages.push(libc::iovec { iov_base: from as *mut libc::c_void, iov_len: length });
        from = from.checked_add(length).ok_or_else(invalid)?;
        remaining -= length;
    }
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    // SAFETY: the kernel writes up to `to.len()` bytes at `to`, which is exclusively ours; the addresses in
    // `pages` are of another process, and are only read there.
    let copied = unsafe {
        libc::process_vm_readv(process, &raw const local, 1, pages.as_ptr(), pages.len() as libc::c_ulong, 0)
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_copied_up_to_the_end_of_the_mapping() {
        let there: Vec<u8> = (0..=255).cycle().take(3 * PAGE).collect();
        let mut copy = vec![0; there.len()];
        assert_eq!(super::copy(std::process::id(), there.as_ptr() as u64, &mut copy).unwrap(), copy.len());
        assert_eq!(copy, there);
        assert!(super::copy(std::process::id(), 8, &mut copy).is_err());
    }
}
