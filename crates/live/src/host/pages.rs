//! Moving a process's pages from node to node: `migrate_pages(2)`.

use std::io;

use super::tamper::{About, Kind, pass};

/// Bits of a mask of nodes: more than any kernel has (`CONFIG_NODES_SHIFT` is 10 at most).
const NODES_MAX: usize = 1024;
const WORD: usize = u64::BITS as usize;

/// Moves the pages of a process from nodes to nodes; process 0 is the calling one. Pages that are shared stay. Errors are the kernel's: `ESRCH`, `EPERM`, and `EINVAL` for nodes that are not there.
pub(crate) fn migrate(pid: u32, from: &[u32], to: &[u32]) -> io::Result<()> {
    pass(Kind::Open, About::Process(pid))?;
    let (from, to) = (mask(from), mask(to));
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // The kernel takes one bit less than it is told.
    let bits = libc::c_ulong::try_from(NODES_MAX + 1).unwrap_or(0);
    // SAFETY: the kernel reads as many bits from both masks, which are that long, and keeps no reference to them.
    let left = unsafe { libc::syscall(libc::SYS_migrate_pages, pid, bits, from.as_ptr(), to.as_ptr()) };
    // Pages that could not be moved are told by their number: they are shared, or locked.
    if left < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn mask(nodes: &[u32]) -> Vec<u64> {
    let mut words = vec![0u64; NODES_MAX / WORD + 1];
    for node in nodes.iter().map(|node| *node as usize).filter(|node| *node < NODES_MAX) {
        words[node / WORD] |= 1 << (node % WORD);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_a_bit_for_each_node() {
        let words = mask(&[0, 63, 64, 1023, 5_000]);
        assert_eq!((words[0], words[1], words[15]), (1 | 1 << 63, 1, 1 << 63));
    }

    /// Every kernel has node 0, or no nodes at all.
    #[test]
    fn pages_of_this_process_stay_where_they_are() {
        if let Err(error) = migrate(0, &[0], &[0]) {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
        }
    }
}
