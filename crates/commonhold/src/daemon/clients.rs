//! The daemon's side of the socket: who is connected, what they asked, what they have yet to read.
//!
//! No client can hold the daemon up: nothing here blocks, and a client that sends or leaves unread too much is dropped.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use commonhold_live::journal::ProcessKey;

use crate::exit::{Exit, Failure};
use crate::protocol::MESSAGE_BYTES_MAX;

/// Clients at one time; more are turned away, so that descriptors never run out.
const CLIENTS_MAX: usize = 64;
/// The longest request: a unit's path and a few words around it.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Who is asking, as the kernel says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) pid: u32,
    /// The process as it was when it connected; none if it was gone by then.
    pub(super) key: Option<ProcessKey>,
}

struct Client {
    stream: UnixStream,
    caller: Caller,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// The socket and everybody connected to it.
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
            Failure::new(Exit::System, format!("{}: cannot {what}: {e}; choose another --directory", path.display()))
        };
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot("remove an old socket", e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(|e| cannot("open the socket", e))?;
        // Everybody may ask; what they may do is decided by who they are.
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(path, open).map_err(|e| cannot("open the socket to clients", e))?;
        listener.set_nonblocking(true).map_err(|e| cannot("set up the socket", e))?;
        Ok(Clients { listener, path: path.to_owned(), connected: BTreeMap::new(), next: 0 })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts one client; `key` finds out which process a number stands for. `None`: nobody waits, or too many came.
    pub(super) fn accept(&mut self, mut key: impl FnMut(u32) -> Option<ProcessKey>) -> Option<u64> {
        let (stream, _) = self.listener.accept().ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        if self.connected.len() >= CLIENTS_MAX || stream.set_nonblocking(true).is_err() {
            return None;
        }
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
        let caller = Caller { uid: peer.uid.as_raw(), pid, key: key(pid) };
        self.next += 1;
        self.connected.insert(self.next, Client { stream, caller, input: Vec::new(), output: Vec::new() });
        Some(self.next)
    }

    pub(super) fn stream(&self, id: u64) -> Option<BorrowedFd<'_>> {
        self.connected.get(&id).map(|client| client.stream.as_fd())
    }

    /// Reads what a client sent: complete requests, or `None` if the client is gone or to be dropped.
    pub(super) fn requests(&mut self, id: u64) -> Option<(Caller, Vec<Vec<u8>>)> {
        let client = self.connected.get_mut(&id)?;
        let mut chunk = [0; 4096];
        loop {
            match client.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => client.input.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
            if client.input.len() > REQUEST_BYTES_MAX {
                return None;
            }
        }
        let mut requests = Vec::new();
        while let Some(end) = client.input.iter().position(|byte| *byte == 0) {
            requests.push(client.input[..end].to_vec());
            client.input.drain(..=end);
        }
        Some((client.caller, requests))
    }

    /// Queues an answer and sends what the client takes now.
    pub(super) fn answer(&mut self, id: u64, message: &[u8]) {
        if let Some(client) = self.connected.get_mut(&id) {
            client.output.extend_from_slice(message);
            client.output.push(0);
        }
        self.flush(id);
    }

    /// Sends what a client takes now; whether some is left.
    pub(super) fn flush(&mut self, id: u64) -> bool {
        let Some(client) = self.connected.get_mut(&id) else { return false };
        while !client.output.is_empty() {
            match client.stream.write(&client.output) {
                Ok(n) => drop(client.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && client.output.len() <= MESSAGE_BYTES_MAX => {
                    return true;
                }
                Err(_) => {
                    self.drop_client(id);
                    return false;
                }
            }
        }
        false
    }

    pub(super) fn drop_client(&mut self, id: u64) {
        self.connected.remove(&id);
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // A socket left behind only says "connection refused"; the next daemon replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}
