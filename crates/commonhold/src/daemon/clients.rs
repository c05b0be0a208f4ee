//! The daemon's side of the socket: its connections, their requests, and the answers that they have yet to read.
//!
//! No client can hold the daemon up. Nothing here blocks. A client that sends too much is dropped. A client that
//! leaves its answer unread is not listened to until it reads.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use commonhold_live::MORE_FILES;
use commonhold_live::journal::ProcessKey;

use crate::exit::{Exit, Failure};

/// Clients at one time; more are turned away, so that descriptors never run out.
const CLIENTS_MAX: usize = 64;
/// Clients of one ordinary user, so that no user locks the others out.
const CLIENTS_OF_USER_MAX: usize = 16;
/// The longest request: a unit's path and a few words around it.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The caller, as the kernel says: as it was when it connected, whatever it becomes by a program that it executes later.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) uid: u32,
    /// Its groups, the effective one first.
    pub(super) gids: Vec<u32>,
    pub(super) pid: u32,
    /// The process as it was when it connected; none if it was gone by then.
    pub(super) key: Option<ProcessKey>,
}

struct Client {
    stream: UnixStream,
    caller: Caller,
    input: Vec<u8>,
    output: Vec<u8>,
    /// It said all it wanted to say; it may still listen.
    ended: bool,
}

/// The socket and all clients connected to it.
pub(super) struct Clients {
    listener: UnixListener,
    path: PathBuf,
    connected: BTreeMap<u64, Client>,
    next: u64,
}

impl Clients {
    /// Opens the socket; what an earlier daemon left there is replaced (the caller holds the directory's lock).
    pub(super) fn listen(path: &Path) -> Result<Clients, Failure> {
        let cannot = |what: &str, e: io::Error| {
            let no_descriptor = e.raw_os_error() == Some(libc::EMFILE);
            let remedy = if no_descriptor { MORE_FILES } else { "; choose another --directory" };
            Failure::new(Exit::System, format!("{}: cannot {what}: {e}{remedy}", path.display()))
        };
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot("remove an old socket", e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(|e| cannot("open the socket", e))?;
        // Every user may ask; the caller's identity decides what it may do.
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(path, open).map_err(|e| cannot("open the socket to clients", e))?;
        listener.set_nonblocking(true).map_err(|e| cannot("set up the socket", e))?;
        Ok(Clients { listener, path: path.to_owned(), connected: BTreeMap::new(), next: 0 })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts one client; `key` finds out which process a number stands for. `None`: no client waits, or too many
    /// came.
    pub(super) fn accept(&mut self, mut key: impl FnMut(u32) -> Option<ProcessKey>) -> Option<u64> {
        let (stream, _) = self.listener.accept().ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        let uid = peer.uid.as_raw();
        if self.is_full(uid) || stream.set_nonblocking(true).is_err() {
            return None;
        }
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
        let gids = std::iter::once(peer.gid.as_raw()).chain(peer_groups(&stream)).collect();
        let caller = Caller { uid, gids, pid, key: key(pid) };
        self.next += 1;
        let client = Client { stream, caller, input: Vec::new(), output: Vec::new(), ended: false };
        self.connected.insert(self.next, client);
        Some(self.next)
    }

    fn is_full(&self, uid: u32) -> bool {
        let of_user = self.connected.values().filter(|client| client.caller.uid == uid).count();
        self.connected.len() >= CLIENTS_MAX || (uid != 0 && of_user >= CLIENTS_OF_USER_MAX)
    }

    pub(super) fn stream(&self, id: u64) -> Option<BorrowedFd<'_>> {
        self.connected.get(&id).map(|client| client.stream.as_fd())
    }

    /// Reads what a client sent; one that sends what is too long for a request is dropped.
    pub(super) fn read(&mut self, id: u64) {
        if self.connected.get_mut(&id).is_some_and(|client| client.read().is_err()) {
            self.connected.remove(&id);
        }
    }

    /// The next complete request of a client, once it took the answer to the one before: a client that asks and asks
    /// and never reads makes only itself wait.
    pub(super) fn next_request(&mut self, id: u64) -> Option<(Caller, Vec<u8>)> {
        let client = self.connected.get_mut(&id).filter(|client| client.output.is_empty())?;
        let end = client.input.iter().position(|byte| *byte == 0)?;
        let mut request: Vec<u8> = client.input.drain(..=end).collect();
        request.pop();
        Some((client.caller.clone(), request))
    }

    /// Queues an answer and sends what the client takes now.
    pub(super) fn answer(&mut self, id: u64, message: &[u8]) {
        if let Some(client) = self.connected.get_mut(&id) {
            client.output.extend_from_slice(message);
            client.output.push(0);
        }
        self.flush(id);
    }

    /// Sends what a client takes now; one that is gone, or asked all it wanted, is dropped.
    pub(super) fn flush(&mut self, id: u64) {
        if let Some(client) = self.connected.get_mut(&id)
            && (client.flush().is_err() || client.is_done())
        {
            self.connected.remove(&id);
        }
    }

    /// Whether answers wait until a client takes more; until then it is not listened to.
    pub(super) fn is_waited_for(&self, id: u64) -> bool {
        self.connected.get(&id).is_some_and(|client| !client.output.is_empty())
    }
}

/// The supplementary groups of the process at the other end when it connected. None where this kernel does not tell: who is
/// not known to be a member is none.
fn peer_groups(stream: &UnixStream) -> Vec<u32> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(groups.as_slice())).unwrap_or(0);
        let room = groups.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most `bytes` bytes into `groups`, which has as many, and then to `bytes` how many there
        // are; every bit pattern is a number.
        let answer = unsafe {
            libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, room, &raw mut bytes)
        };
        let found = usize::try_from(bytes).unwrap_or(0) / size_of::<u32>();
        if answer == 0 {
            groups.truncate(found);
            return groups;
        }
        // The kernel says how much room there must be.
        if io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || found <= groups.len() {
            return Vec::new();
        }
        groups.resize(found, 0);
    }
}

impl Client {
    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while !self.ended && self.output.is_empty() {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.ended = true,
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if self.input.len() > REQUEST_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether it will ask no more and took every answer.
    fn is_done(&self) -> bool {
        self.ended && self.output.is_empty() && !self.input.contains(&0)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // A socket left behind only says "connection refused"; the next daemon replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Gives this thread other groups; false where it may not.
    fn have_groups(groups: &[u32]) -> bool {
        // SAFETY: the kernel reads that many numbers. The call, unlike the C library's function, is about this thread alone.
        unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0 }
    }

    /// More of them than there was room for, and whatever the process becomes afterwards.
    #[test]
    fn a_caller_has_the_groups_that_it_had_when_it_connected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let mut clients = Clients::listen(&path).unwrap();
        let connected = std::thread::spawn(move || {
            let many: Vec<u32> = (70_000..70_100).collect();
            let privileged = have_groups(&many);
            let had: Vec<u32> =
                rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
            let stream = UnixStream::connect(&path).unwrap();
            assert!(!privileged || had == many && have_groups(&[7]));
            (stream, had)
        });
        let (_stream, had) = connected.join().unwrap();
        let id = clients.accept(|_| None).unwrap();
        let gids = &clients.connected[&id].caller.gids;
        assert_eq!((gids[0], &gids[1..]), (rustix::process::getegid().as_raw(), had.as_slice()));
    }
}
