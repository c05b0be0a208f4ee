//! Moves a process's pages between nodes: all pages of a node by `migrate_pages(2)`, single pages by
//! `move_pages(2)`.

use std::io;

use super::tamper::{About, Kind, pass};

/// The number of bits of a node mask, enough for any kernel (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: usize = 1024;

/// `MPOL_MF_MOVE` of linux/mempolicy.h: moves only pages that no other process maps.
const MOVE_OWN: libc::c_int = 1 << 1;

const WORD: usize = u64::BITS as usize;

/// Moves the pages of a process from the nodes `from` to the nodes `to`; process 0 is the calling process.
/// Shared pages stay. Errors are the kernel's: `ESRCH`, `EPERM`, and `EINVAL` for nodes that do not exist.
pub(crate) fn migrate(pid: u32, from: &[u32], to: &[u32]) -> io::Result<()> {
    pass(Kind::Open, About::Process(pid))?;
    let (from, to) = (mask(from), mask(to));
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // The kernel uses one bit less than the given number.
    let bits = libc::c_ulong::try_from(NODES_MAX + 1).unwrap_or(0);
    // SAFETY: the kernel reads `bits` bits from both masks, which are that long, and keeps no reference to
    // them.
    let unmoved = unsafe { libc::syscall(libc::SYS_migrate_pages, pid, bits, from.as_ptr(), to.as_ptr()) };
    // A positive result is the number of pages that could not be moved, since they are shared or locked.
    if unmoved < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// For each address in `pages`, the node of that page of a process, or the kernel's error as a negative
/// number. `to` has a node for each page: with it, pages are first moved to these nodes, except for pages
/// that other processes map, too.
pub(crate) fn nodes_of(pid: u32, pages: &[u64], to: Option<&[i32]>) -> io::Result<Vec<i32>> {
    pass(Kind::Open, About::Process(pid))?;
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    if to.is_some_and(|to| to.len() != pages.len()) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let addresses: Vec<usize> =
        pages.iter().map(|page| usize::try_from(*page)).collect::<Result<_, _>>().map_err(invalid)?;
    let mut status = vec![-libc::ENOENT; pages.len()];
    let nodes = to.map_or(std::ptr::null(), <[i32]>::as_ptr);
    let count = libc::c_ulong::try_from(pages.len()).map_err(invalid)?;
    // SAFETY: the kernel reads `count` addresses and, if given, nodes, and writes as many states: all three
    // are that long. The addresses are another process's, and the memory there is neither read nor written.
    let unmoved = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            count,
            addresses.as_ptr(),
            nodes,
            status.as_mut_ptr(),
            MOVE_OWN,
        )
    };
    // A positive result is the number of pages that could not be moved, which their states show.
    if unmoved < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

/// A bit mask with these nodes, in the kernel's format.
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

    #[test]
    fn a_touched_page_has_a_node_and_an_unmapped_one_an_error() {
        let page = Box::new([1u8; 8_192]);
        let at = (std::ptr::from_ref(&*page) as u64).next_multiple_of(4_096);
        match nodes_of(0, &[at, 0], None) {
            Ok(states) => assert!(states[0] >= 0 && states[1] < 0, "{states:?}"),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
            }
        }
        assert!(nodes_of(0, &[at], Some(&[])).is_err());
    }

    /// Every kernel has node 0, or no nodes at all.
    #[test]
    fn pages_of_this_process_stay_where_they_are() {
        if let Err(error) = migrate(0, &[0], &[0]) {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
        }
    }
}
