//! Copies memory of another process.
//!
//! The call takes a pid and only reads. The caller checks afterwards that the thread is still at the same place
//! (`observe/waits.rs`), and discards what may have been read from a later process.
//!
//! Source: `process_vm_readv(2)`.

use std::io;

use super::tamper::{About, Kind, pass};

const PAGE: usize = 4096;

/// Copies memory of a process from an address on, up to the first page that is not mapped. Returns the number of bytes copied.
pub(crate) fn memory(pid: u32, at: u64, to: &mut [u8]) -> io::Result<usize> {
    pass(Kind::Read, About::Process(pid))?;
    let invalid = || io::Error::from_raw_os_error(libc::EFAULT);
    let process = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut from = usize::try_from(at).map_err(|_| invalid())?;
    // The kernel copies only whole entries. With one entry for each page, the copy ends where mapped memory ends.
    let (mut pages, mut left) = (Vec::with_capacity(to.len() / PAGE + 2), to.len());
    while left > 0 {
        let length = (PAGE - from % PAGE).min(left);
        pages.push(libc::iovec { iov_base: from as *mut libc::c_void, iov_len: length });
        from = from.checked_add(length).ok_or_else(invalid)?;
        left -= length;
    }
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    // SAFETY: the kernel writes up to `to.len()` bytes at `to`, which is borrowed exclusively; the addresses in `pages` are
    // another process's, and are only read source.
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
    fn mapped_memory_is_copied() {
        let source: Vec<u8> = (0..=255).cycle().take(3 * PAGE).collect();
        let mut copy = vec![0; source.len()];
        assert_eq!(memory(std::process::id(), source.as_ptr() as u64, &mut copy).unwrap(), copy.len());
        assert_eq!(copy, source);
        assert!(memory(std::process::id(), 8, &mut copy).is_err());
    }
}
