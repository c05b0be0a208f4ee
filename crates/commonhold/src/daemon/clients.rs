//! The daemon's side of the socket: its connections, their requests, and the answers that they have yet to read.
//!
//! No client can hold the daemon up. Nothing here blocks. A client that sends too much is dropped. A client that
//! leaves its answer unread is not listened to until it reads.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
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

/// The caller, as the kernel says.
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
        let caller = Caller { uid, pid, key: key(pid) };
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
        Some((client.caller, request))
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
