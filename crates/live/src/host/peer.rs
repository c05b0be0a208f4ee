//! The kernel's facts about the process at the other end of a UNIX socket.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::UnixStream;

/// Since Linux 6.5; `libc` does not define it on every target.
const SO_PEERPIDFD: libc::c_int = 77;
/// `NS_GET_PARENT` and `NS_GET_OWNER_UID` of `linux/nsfs.h`.
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
/// The deepest nesting of user namespaces (`user_namespaces(7)`).
const NESTED_MAX: usize = 33;

/// User, effective group and pid of the peer when it connected. The pid is 0 if the peer is not visible in
/// this pid namespace.
pub(crate) fn credentials(stream: &UnixStream) -> io::Result<(u32, u32, u32)> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
    Ok((peer.uid.as_raw(), peer.gid.as_raw(), pid))
}

/// The supplementary groups of the peer when it connected. Empty if this kernel does not support the lookup,
/// which is safe: a peer without known groups has no rights by them.
pub(crate) fn groups(stream: &UnixStream) -> Vec<u32> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(groups.as_slice())).unwrap_or(0);
        let room = groups.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most `bytes` bytes into `groups`, which is that long, and then the
        // needed length to `bytes`; every bit pattern is a number.
        let answer = unsafe {
            libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, room, &raw mut bytes)
        };
        let count = usize::try_from(bytes).unwrap_or(0) / size_of::<u32>();
        if answer == 0 {
            groups.truncate(count);
            return groups;
        }
        // With ERANGE, `count` is the length that is needed.
        if io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Vec::new();
        }
        groups.resize(count, 0);
    }
}

/// A pidfd of the process that connected; `None` before Linux 6.5. An error if the process has ended.
pub(crate) fn pidfd(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut fd: RawFd = -1;
    let mut bytes = libc::socklen_t::try_from(size_of::<RawFd>()).unwrap_or(4);
    // SAFETY: the kernel writes one descriptor of `bytes` bytes.
    let answer = unsafe {
        let room = (&raw mut fd).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, room, &raw mut bytes)
    };
    if answer == 0 {
        // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        e => Err(e),
    }
}

/// The user that created the user namespace of a process, or of nested namespaces the outermost one that is
/// not this program's own. `None` for a process in this program's own namespace, or if unknown.
///
/// A user with subordinate ids may appear under thousands of user ids. For all of them, the creator is the
/// same user.
pub(crate) fn namespace_owner(pid: u32) -> Option<u32> {
    let identity = |file: &File| file.metadata().ok().map(|facts| (facts.st_dev(), facts.st_ino()));
    let own = identity(&File::open("/proc/self/ns/user").ok()?)?;
    let mut namespace = File::open(format!("/proc/{pid}/ns/user")).ok()?;
    if identity(&namespace)? == own {
        return None;
    }
    for _ in 0..NESTED_MAX {
        // SAFETY: the call takes no argument, and returns a descriptor or fails.
        let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows it.
        let parent = unsafe { File::from_raw_fd(fd) };
        if identity(&parent)? == own {
            return owner(&namespace);
        }
        namespace = parent;
    }
    None
}

/// The user that created a user namespace.
fn owner(namespace: &impl AsFd) -> Option<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the kernel writes one user id.
    let answer = unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    (answer == 0).then_some(uid)
}
