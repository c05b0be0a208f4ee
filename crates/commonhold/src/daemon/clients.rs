//! The daemon's side of the socket: the connected clients, their requests, and the answers that are not sent
//! yet.
//!
//! Nothing here blocks, and each call does a bounded amount of work for one client: it reads at most
//! [`REQUEST_BYTES_MAX`], takes one request, or sends at most [`SEND_BYTES_MAX`].
//! [`FairQueue`](super::fair_queue::FairQueue) decides which client comes next. A client that sends too long
//! a request is disconnected. Back-pressure: while a client leaves an answer unread, the daemon reads no
//! further request of that client.
//!
//! No client locks others out. At most [`CLIENTS_MAX`] clients are connected. A *kept* client holds an offer,
//! waits for an outcome or subscribes to the state of all units, which may last as long as its program; at
//! most [`KEPT_MAX`] clients are kept.
//! When all connections are in use, a new connection replaces an old one that is not kept: the least recently
//! used one of the user with the most connections.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use commonhold_live::MORE_FILES;
use commonhold_live::observe::peer::{self, Peer};
use commonhold_live::observe::process::{ProcFs, ProcessKey};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::fair_queue::Party;
use crate::exit::{Exit, Failure};

/// The most clients at one time. The limit on open files provides for this number (`OTHER_FILES` in
/// `descriptors`).
pub(super) const CLIENTS_MAX: usize = 256;
/// The most clients of one ordinary user, so that no user locks the others out.
const CLIENTS_OF_USER_MAX: usize = 64;
/// The most kept clients at one time. The remaining connections are for short requests.
const KEPT_MAX: usize = 192;
/// The most kept clients of one ordinary user.
const KEPT_OF_USER_MAX: usize = 48;
/// The longest request, in bytes: a unit's path and a few fields.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The most bytes that one call sends to a client. A socket buffers fewer bytes than this, so only a client
/// that reads while the daemon sends can reach the limit. Such a client gets the rest when it is next served.
const SEND_BYTES_MAX: usize = 512 << 10;
/// The listen backlog: the most connections that wait to be accepted. They are accepted first come, first
/// served, so a longer backlog would let one user's connections delay those of all others. When the backlog
/// is full, connect(2) blocks.
const BACKLOG: i32 = 256;

/// A caller's credentials at the time of connect(2), as the kernel reports them (`SO_PEERCRED`). If the
/// caller changes its user or executes another program later, these credentials stay the same.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) uid: u32,
    /// The caller's groups, the effective one first.
    pub(super) gids: Vec<u32>,
    pub(super) pid: u32,
    /// The process that connected; `None` if it has exited.
    pub(super) key: Option<ProcessKey>,
    /// The party charged for the caller's requests.
    pub(super) party: Party,
}

impl Caller {
    fn of(peer: Peer) -> Caller {
        let Peer { uid, gids, pid, key, namespace_owner } = peer;
        let party = match (party_of(uid), key) {
            (Party::Privileged, _) => Party::Privileged,
            (_, Some(_)) => Party::User(namespace_owner.unwrap_or(uid)),
            (_, None) => Party::Exited,
        };
        Caller { uid, gids, pid, key, party }
    }
}

/// The party to which a user number is charged, outside user namespaces.
fn party_of(uid: u32) -> Party {
    let is_privileged = uid == 0 || uid == rustix::process::geteuid().as_raw();
    if is_privileged { Party::Privileged } else { Party::User(uid) }
}

/// The outcome of accepting a connection.
pub(super) enum Arrival {
    Accepted(u64),
    /// The connection was closed at once, since this party connected too often, or may not have another
    /// connection.
    TurnedAway(Party),
    /// No connection is pending.
    None,
}

struct Client {
    stream: UnixStream,
    caller: Rc<Caller>,
    /// The bytes that were read from the client and are still kept.
    input: Vec<u8>,
    /// The number of bytes at the start of `input` that belong to requests already taken.
    taken: usize,
    /// The answer that is being sent. Clients that get the same answer share one allocation.
    output: Rc<[u8]>,
    /// How many bytes of `output` are sent.
    sent: usize,
    /// A descriptor to send with the first byte of the answer.
    passed: Option<OwnedFd>,
    /// Whether the client has shut down its writing side; it may still read.
    ended: bool,
    /// Whether the client waits for an answer that is not known yet, or for the next reply to a subscription.
    waits: bool,
    /// Whether the client wants no answer to the request that was taken last.
    oneway: bool,
    /// The value of [`Clients::uses`] when the client was last used.
    used: u64,
}

/// The socket and all clients connected to it.
pub(super) struct Clients {
    listener: UnixListener,
    path: PathBuf,
    connected: BTreeMap<u64, Client>,
    next: u64,
    /// Counts uses of all clients, for the order of least recent use.
    uses: u64,
    /// Clients closed since the last [`Clients::take_closed`], with the parties charged for them.
    closed: Vec<(u64, Party)>,
    nothing: Rc<[u8]>,
}

fn cannot(path: &Path, what: &str, e: &io::Error) -> Failure {
    let no_descriptor = e.raw_os_error() == Some(libc::EMFILE);
    let remedy = if no_descriptor { MORE_FILES } else { "; choose another --directory" };
    Failure::new(Exit::System, format!("{}: cannot {what}: {e}{remedy}", path.display()))
}

impl Clients {
    /// Removes the socket of an earlier daemon. The caller must hold the lock of the directory. Fails if no
    /// socket can be opened at this path, so that the daemon finds this out before it changes the machine.
    pub(super) fn remove_old_socket(path: &Path) -> Result<(), Failure> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(cannot(path, "remove an old socket", &e));
            }
            _ => {}
        }
        SocketAddr::from_pathname(path).map(drop).map_err(|e| cannot(path, "open a socket", &e))
    }

    /// Opens the socket.
    pub(super) fn listen(path: &Path) -> Result<Clients, Failure> {
        let cannot = |what: &str, e: io::Error| cannot(path, what, &e);
        let listener = UnixListener::bind(path).map_err(|e| cannot("open the socket", e))?;
        rustix::net::listen(&listener, BACKLOG).map_err(|e| cannot("open the socket", e.into()))?;
        // Every user may connect; the caller's identity determines its permissions.
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(path, open).map_err(|e| cannot("open the socket to clients", e))?;
        listener.set_nonblocking(true).map_err(|e| cannot("set up the socket", e))?;
        Ok(Clients {
            listener,
            path: path.to_owned(),
            connected: BTreeMap::new(),
            next: 0,
            uses: 0,
            closed: Vec::new(),
            nothing: Rc::new([]),
        })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts one connection. `kept` returns the kept clients. If `may_connect` denies the caller's party
    /// another connection, the connection is closed before anything else about the caller is looked up.
    pub(super) fn accept(
        &mut self,
        procfs: &mut ProcFs,
        kept: impl FnOnce() -> BTreeSet<u64>,
        may_connect: impl Fn(Party) -> bool,
    ) -> Arrival {
        let Ok((stream, _)) = self.listener.accept() else { return Arrival::None };
        let Ok(uid) = peer::uid(&stream) else { return Arrival::TurnedAway(Party::Exited) };
        if !may_connect(party_of(uid)) {
            return Arrival::TurnedAway(party_of(uid));
        }
        let Ok(peer) = Peer::of(&stream, procfs) else { return Arrival::TurnedAway(party_of(uid)) };
        let caller = Caller::of(peer);
        let party = caller.party;
        if !may_connect(party) || !self.make_room(party, kept) || stream.set_nonblocking(true).is_err() {
            return Arrival::TurnedAway(party);
        }
        self.next += 1;
        self.uses += 1;
        let client = Client {
            stream,
            caller: Rc::new(caller),
            input: Vec::new(),
            taken: 0,
            output: self.nothing.clone(),
            sent: 0,
            passed: None,
            ended: false,
            waits: false,
            oneway: false,
            used: self.uses,
        };
        self.connected.insert(self.next, client);
        Arrival::Accepted(self.next)
    }

    /// Makes room for one more client of a party; returns whether there is room. If necessary, closes a
    /// connection of a client that is not kept. If the party has reached its own limit, this is the party's
    /// least recently used client. Otherwise it is the least recently used client of the party with the
    /// most clients.
    fn make_room(&mut self, party: Party, kept: impl FnOnce() -> BTreeSet<u64>) -> bool {
        let mut counts: BTreeMap<Party, usize> = BTreeMap::new();
        for client in self.connected.values() {
            *counts.entry(client.caller.party).or_default() += 1;
        }
        let count = counts.get(&party).copied().unwrap_or(0);
        let is_at_limit = party != Party::Privileged && count >= CLIENTS_OF_USER_MAX;
        if !is_at_limit && self.connected.len() < CLIENTS_MAX {
            return true;
        }
        let kept = kept();
        let may_be_closed = |(id, client): &(&u64, &Client)| {
            !kept.contains(id) && (!is_at_limit || client.caller.party == party)
        };
        let (counts, least_used) = (&counts, |client: &Client| std::cmp::Reverse(client.used));
        let victim = self
            .connected
            .iter()
            .filter(may_be_closed)
            .max_by_key(|(_, client)| (counts.get(&client.caller.party), least_used(client)));
        let Some(id) = victim.map(|(id, _)| *id) else { return false };
        self.drop_client(id);
        true
    }

    /// Whether a client is among the kept clients `kept`, or may be added to them without exceeding a limit.
    pub(super) fn may_be_kept(&self, id: u64, kept: &BTreeSet<u64>) -> bool {
        let Some(party) = self.party(id) else { return false };
        let kept_of_party = kept.iter().filter(|id| self.party(**id) == Some(party)).count();
        let is_at_limit = party != Party::Privileged && kept_of_party >= KEPT_OF_USER_MAX;
        kept.contains(&id) || (kept.len() < KEPT_MAX && !is_at_limit)
    }

    /// The party charged for a client; `None` if the client is no longer connected.
    pub(super) fn party(&self, id: u64) -> Option<Party> {
        self.connected.get(&id).map(|client| client.caller.party)
    }

    /// The credentials of a client; `None` if the client is no longer connected.
    pub(super) fn caller(&self, id: u64) -> Option<&Caller> {
        self.connected.get(&id).map(|client| &*client.caller)
    }

    fn drop_client(&mut self, id: u64) {
        if let Some(client) = self.connected.remove(&id) {
            self.closed.push((id, client.caller.party));
        }
    }

    /// The clients closed since the last call, with the parties charged for them.
    pub(super) fn take_closed(&mut self) -> Vec<(u64, Party)> {
        std::mem::take(&mut self.closed)
    }

    pub(super) fn stream(&self, id: u64) -> Option<BorrowedFd<'_>> {
        self.connected.get(&id).map(|client| client.stream.as_fd())
    }

    /// Reads from a client; drops it if its request is too long.
    pub(super) fn read(&mut self, id: u64) {
        if self.connected.get_mut(&id).is_some_and(|client| client.read().is_err()) {
            self.drop_client(id);
        }
    }

    /// Takes the next complete request of a client. Returns `None` if there is no such request, or while the
    /// answer to the previous one is not known or not completely sent.
    pub(super) fn next_request(&mut self, id: u64) -> Option<(Rc<Caller>, Vec<u8>)> {
        let client = self.connected.get_mut(&id)?;
        let end = client.request_end()?;
        self.uses += 1;
        client.used = self.uses;
        let request = client.input[client.taken..end].to_vec();
        client.taken = end + 1;
        Some((client.caller.clone(), request))
    }

    /// Whether a client has a complete request that may be answered now.
    pub(super) fn has_request(&self, id: u64) -> bool {
        self.connected.get(&id).is_some_and(|client| client.request_end().is_some())
    }

    /// Has a client wait: no further request of the client is taken until [`Clients::answer`].
    pub(super) fn wait(&mut self, id: u64) {
        if let Some(client) = self.connected.get_mut(&id) {
            client.waits = true;
        }
    }

    /// Drops the next answer to a client, which wants none.
    pub(super) fn drop_answer(&mut self, id: u64) {
        if let Some(client) = self.connected.get_mut(&id) {
            client.oneway = true;
        }
    }

    /// Queues an answer, whose last byte is a NUL, with a file descriptor to pass along. Sends as much as the
    /// socket takes.
    pub(super) fn answer(&mut self, id: u64, message: Rc<[u8]>, passed: Option<OwnedFd>) {
        if let Some(client) = self.connected.get_mut(&id) {
            client.waits = false;
            if !std::mem::take(&mut client.oneway) {
                client.passed = passed;
                (client.output, client.sent) = (message, 0);
            }
        }
        self.flush(id);
    }

    /// Queues one of several replies to a client that goes on waiting for further ones, and sends as much as
    /// the socket takes. The previous reply must be sent ([`Clients::has_unsent_output`]).
    pub(super) fn reply_and_continue(&mut self, id: u64, message: Rc<[u8]>) {
        if let Some(client) = self.connected.get_mut(&id) {
            (client.output, client.sent) = (message, 0);
        }
        self.flush(id);
    }

    /// Sends as much as a client's socket takes. Drops the client if it has hung up or is finished.
    pub(super) fn flush(&mut self, id: u64) {
        let Some(client) = self.connected.get_mut(&id) else { return };
        let flushed = client.flush();
        if !client.has_output() {
            // Releases the shared answer once it is sent.
            (client.output, client.sent) = (self.nothing.clone(), 0);
        }
        if flushed.is_err() || client.is_done() {
            self.drop_client(id);
        }
    }

    /// Whether a client has shut down its writing side. Such a client is polled only for hang-up, which epoll
    /// always reports.
    pub(super) fn has_ended(&self, id: u64) -> bool {
        self.connected.get(&id).is_some_and(|client| client.ended)
    }

    /// Whether a part of the answer is not sent yet. Nothing is read from the client until then.
    pub(super) fn has_unsent_output(&self, id: u64) -> bool {
        self.connected.get(&id).is_some_and(Client::has_output)
    }
}

impl Client {
    /// The index in `input` of the NUL that ends the next request; `None` if no request is complete or may be
    /// answered now.
    fn request_end(&self) -> Option<usize> {
        if self.has_output() || self.waits {
            return None;
        }
        let length = self.input[self.taken..].iter().position(|byte| *byte == 0)?;
        Some(self.taken + length)
    }

    fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        // While a complete request is unanswered, nothing more is read, so that input does not pile up.
        while !self.ended && !self.has_output() && self.request_end().is_none() {
            drop(self.input.drain(..self.taken));
            self.taken = 0;
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
        let until = self.output.len().min(self.sent + SEND_BYTES_MAX);
        while self.sent < until {
            match self.send(until) {
                Ok(n) => {
                    self.sent += n;
                    self.passed = None;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends the answer up to byte `until`, or as much as the socket takes; returns the number of bytes sent.
    /// A descriptor is sent with the first byte. The kernel closes a descriptor that is never received.
    fn send(&mut self, until: usize) -> io::Result<usize> {
        let rest = &self.output[self.sent..until];
        let Some(passed) = &self.passed else { return self.stream.write(rest) };
        let mut buffer = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut buffer);
        let descriptors = [passed.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(sendmsg(&self.stream, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL)?)
    }

    /// Whether the client can be dropped: it has shut down its writing side, and either every request is
    /// answered or the client hung up while it waited for an answer.
    fn is_done(&self) -> bool {
        let still_waits = self.waits && !self.has_hung_up();
        self.ended && !self.has_output() && !still_waits && (self.waits || self.request_end().is_none())
    }

    fn has_hung_up(&self) -> bool {
        let mut ends = [PollFd::new(&self.stream, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = poll(&mut ends, Some(&at_once));
        found.is_ok() && ends[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // A failure does no harm: on a socket without a daemon, connect(2) fails, and the next daemon
        // replaces the socket.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Sets this thread's groups; false without the permission.
    fn have_groups(groups: &[u32]) -> bool {
        // SAFETY: the kernel reads `len` numbers. Unlike the C library's function, the system call affects
        // only this thread.
        unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0 }
    }

    /// More groups than the first buffer holds, and unchanged by a later change of the process.
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
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let Arrival::Accepted(id) = clients.accept(&mut procfs, BTreeSet::new, |_| true) else { panic!() };
        let gids = &clients.connected[&id].caller.gids;
        assert_eq!((gids[0], &gids[1..]), (rustix::process::getegid().as_raw(), had.as_slice()));
    }
}
