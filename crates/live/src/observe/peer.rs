//! The process at the other end of the daemon's socket: its credentials and its identity.

use std::io;
use std::os::unix::net::UnixStream;

use super::process::{ProcFs, ProcessKey, identify};
use crate::host::peer;

/// A client of a UNIX socket, as the kernel recorded it when it connected, regardless of what it executes
/// later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub uid: u32,
    /// Its groups, the effective one first.
    pub gids: Vec<u32>,
    /// Its pid; 0 if it is not visible in this program's pid namespace.
    pub pid: u32,
    /// The process that connected. `None` if it has exited, or belongs to another user by now. If so, nothing
    /// may be done to a process with this pid.
    pub key: Option<ProcessKey>,
    /// The user that created its user namespace; `None` if it is in this program's user namespace.
    pub namespace_owner: Option<u32>,
}

/// The peer's effective user, which is enough to refuse a connection.
pub fn uid(stream: &UnixStream) -> io::Result<u32> {
    Ok(peer::credentials(stream)?.0)
}

impl Peer {
    /// Identifies the peer of a connection.
    ///
    /// The process is pinned: with `SO_PEERPIDFD` (Linux 6.5) the kernel gives a pidfd of the very process
    /// that connected. After reading /proc, this function checks that the pidfd's process still runs, so
    /// /proc cannot have shown a later process with the same pid. On an older kernel, a process that took
    /// over the pid before this call is mistaken for the peer. But only a process of the peer's user is
    /// accepted, so no user can pass off another user's process as its own.
    pub fn of(stream: &UnixStream, procfs: &mut ProcFs) -> io::Result<Peer> {
        let (uid, gid, pid) = peer::credentials(stream)?;
        let gids = std::iter::once(gid).chain(peer::groups(stream)).collect();
        let mut peer = Peer { uid, gids, pid, key: None, namespace_owner: None };
        // On an error, the process has ended.
        let Ok(pidfd) = peer::pidfd(stream) else { return Ok(peer) };
        let (pinned, key) = match pidfd {
            Some(pidfd) => match identify(procfs, pidfd) {
                Ok(Some((pinned, key))) => (Some(pinned), Some(key)),
                _ => return Ok(peer),
            },
            None => (None, procfs.stat(pid).ok().flatten().map(|stat| stat.key)),
        };
        let has_peers_user = procfs.identity(pid).ok().flatten().is_some_and(|identity| identity.uid == uid);
        let namespace_owner = peer::namespace_owner(pid);
        // Checked last: if the process still runs, /proc showed no other process with its pid.
        let is_running = pinned.is_none_or(|pinned| pinned.is_running().unwrap_or(false));
        if has_peers_user && is_running {
            (peer.key, peer.namespace_owner) = (key, namespace_owner);
        }
        Ok(peer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// A process that connects; with an argument, it leaves its connection to a child and exits.
    const CONNECTS: &str = "
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
if len(sys.argv) > 2:
    client.connect(sys.argv[1])
    if os.fork():
        os._exit(0)
else:
    client.connect(sys.argv[1])
client.recv(1)
";

    fn connect(extra: &[&str]) -> (std::process::Child, UnixStream, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut command = Command::new("python3");
        command.arg("-c").arg(CONNECTS).arg(&path).args(extra).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        (child, listener.accept().unwrap().0, dir)
    }

    #[test]
    fn the_process_that_connected_is_identified() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let (mut child, stream, _dir) = connect(&[]);
        let peer = Peer::of(&stream, &mut procfs).unwrap();
        assert_eq!(peer.pid, child.id());
        assert_eq!(peer.key, procfs.stat(child.id()).unwrap().map(|stat| stat.key));
        assert!(peer.key.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The connection is still open, held by a child of the process that made it.
    #[test]
    fn a_process_that_exited_after_connecting_has_no_key() {
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let (mut child, stream, _dir) = connect(&["and exit"]);
        // It is a zombie before this, and has no number after it.
        child.wait().unwrap();
        let peer = Peer::of(&stream, &mut procfs).unwrap();
        assert_eq!((peer.pid, peer.key), (child.id(), None));
    }
}
