//! The daemon's side of the socket: its connections, their requests, and the answers that they have yet to read.
//!
//! No client can hold the daemon up. Nothing here blocks. A client that sends too much is dropped. A client that
//! leaves its answer unread is not listened to until it reads.
//!
//! No client keeps others out. There is room for [`CLIENTS_MAX`]. A *kept* client holds an offer or waits for one, which may
//! last as long as its program; there is room for [`KEPT_MAX`] of these. When all room is taken, the connection that was used
//! least lately, of a client that is not kept, is closed for the one that comes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use commonhold_live::MORE_FILES;
use commonhold_live::journal::ProcessKey;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::exit::{Exit, Failure};

/// Clients at one time, so that descriptors never run out (`BESIDE` has room for them).
pub(super) const CLIENTS_MAX: usize = 256;
/// Clients of one ordinary user, so that no user locks the others out.
const CLIENTS_OF_USER_MAX: usize = 64;
/// Kept clients at one time. The others' room is for those that ask and go.
const KEPT_MAX: usize = 192;
/// Kept clients of one ordinary user.
const KEPT_OF_USER_MAX: usize = 48;
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
    /// Goes with the first byte of that.
    passed: Option<OwnedFd>,
    /// It said all it wanted to say; it may still listen.
    ended: bool,
    /// It waits for an answer that is not known yet.
    waits: bool,
    /// When it was used last, among all clients.
    used: u64,
}

/// The socket and all clients connected to it.
pub(super) struct Clients {
    listener: UnixListener,
    path: PathBuf,
    connected: BTreeMap<u64, Client>,
    next: u64,
    /// Counts the uses of all clients.
    uses: u64,
    /// Clients whose connections were closed since they were last asked for.
    gone: Vec<u64>,
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
        Ok(Clients {
            listener,
            path: path.to_owned(),
            connected: BTreeMap::new(),
            next: 0,
            uses: 0,
            gone: Vec::new(),
        })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts one client; `key` finds out which process a number stands for, and `kept` which clients are kept. `None`: no
    /// client waits, or there is no room for it.
    pub(super) fn accept(
        &mut self,
        mut key: impl FnMut(u32) -> Option<ProcessKey>,
        kept: impl FnOnce() -> BTreeSet<u64>,
    ) -> Option<u64> {
        let (stream, _) = self.listener.accept().ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        let uid = peer.uid.as_raw();
        if !self.make_room(uid, kept) || stream.set_nonblocking(true).is_err() {
            return None;
        }
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
        let gids = std::iter::once(peer.gid.as_raw()).chain(peer_groups(&stream)).collect();
        let caller = Caller { uid, gids, pid, key: key(pid) };
        self.next += 1;
        self.uses += 1;
        let (input, output) = (Vec::new(), Vec::new());
        let client = Client {
            stream,
            caller,
            input,
            output,
            passed: None,
            ended: false,
            waits: false,
            used: self.uses,
        };
        self.connected.insert(self.next, client);
        Some(self.next)
    }

    /// Whether there is room for one more client of a user. The client that was used least lately goes for it: one of the same
    /// user where that one has its part, and none that is kept.
    fn make_room(&mut self, uid: u32, kept: impl FnOnce() -> BTreeSet<u64>) -> bool {
        let of_user = self.connected.values().filter(|client| client.caller.uid == uid).count();
        let has_its_part = uid != 0 && of_user >= CLIENTS_OF_USER_MAX;
        if !has_its_part && self.connected.len() < CLIENTS_MAX {
            return true;
        }
        let kept = kept();
        let may_go = |(id, client): &(&u64, &Client)| {
            !kept.contains(id) && (!has_its_part || client.caller.uid == uid)
        };
        let goes = self.connected.iter().filter(may_go).min_by_key(|(_, client)| client.used);
        let Some(id) = goes.map(|(id, _)| *id) else { return false };
        self.drop_client(id);
        true
    }

    /// Whether a client may be kept, beside those that are.
    pub(super) fn may_be_kept(&self, id: u64, kept: &BTreeSet<u64>) -> bool {
        let Some(client) = self.connected.get(&id) else { return false };
        let uid = client.caller.uid;
        let of_user = |id: &&u64| self.connected.get(id).is_some_and(|other| other.caller.uid == uid);
        let of_user = kept.iter().filter(of_user).count();
        kept.contains(&id) || (kept.len() < KEPT_MAX && (uid == 0 || of_user < KEPT_OF_USER_MAX))
    }

    fn drop_client(&mut self, id: u64) {
        self.connected.remove(&id);
        self.gone.push(id);
    }

    /// The clients whose connections were closed since this was last called.
    pub(super) fn take_gone(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.gone)
    }

    pub(super) fn stream(&self, id: u64) -> Option<BorrowedFd<'_>> {
        self.connected.get(&id).map(|client| client.stream.as_fd())
    }

    /// Reads what a client sent; one that sends what is too long for a request is dropped.
    pub(super) fn read(&mut self, id: u64) {
        if self.connected.get_mut(&id).is_some_and(|client| client.read().is_err()) {
            self.drop_client(id);
        }
    }

    /// The next complete request of a client, once it took the answer to the one before: a client that asks and asks
    /// and never reads makes only itself wait.
    pub(super) fn next_request(&mut self, id: u64) -> Option<(Caller, Vec<u8>)> {
        let client = self.connected.get_mut(&id).filter(|it| it.output.is_empty() && !it.waits)?;
        let end = client.input.iter().position(|byte| *byte == 0)?;
        self.uses += 1;
        client.used = self.uses;
        let mut request: Vec<u8> = client.input.drain(..=end).collect();
        request.pop();
        Some((client.caller.clone(), request))
    }

    /// The answer to a client's last request is not known yet: it makes no other one until then.
    pub(super) fn wait(&mut self, id: u64) {
        if let Some(client) = self.connected.get_mut(&id) {
            client.waits = true;
        }
    }

    /// Queues an answer, with a descriptor if one goes with it, and sends what the client takes now.
    pub(super) fn answer(&mut self, id: u64, message: &[u8], passed: Option<OwnedFd>) {
        if let Some(client) = self.connected.get_mut(&id) {
            client.waits = false;
            client.passed = passed;
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
            self.drop_client(id);
        }
    }

    /// Whether a client said all that it wanted to say. That is to be listened to no more: only that it is gone, which the
    /// kernel always tells.
    pub(super) fn has_ended(&self, id: u64) -> bool {
        self.connected.get(&id).is_some_and(|client| client.ended)
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
            match self.send() {
                Ok(n) => {
                    drop(self.output.drain(..n));
                    self.passed = None;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends what it takes of the answer, and before its first byte the descriptor. A client that never takes it is none the
    /// richer: the kernel closes what nobody receives.
    fn send(&mut self) -> io::Result<usize> {
        let Some(passed) = &self.passed else { return self.stream.write(&self.output) };
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut room);
        let descriptors = [passed.as_fd()];
        if !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let what = [IoSlice::new(&self.output)];
        Ok(sendmsg(&self.stream, &what, &mut beside, SendFlags::NOSIGNAL)?)
    }

    /// Whether it will ask no more and took every answer; or waits for one, and is gone.
    fn is_done(&self) -> bool {
        let awaits = self.waits && !self.is_gone();
        self.ended && self.output.is_empty() && !awaits && (self.waits || !self.input.contains(&0))
    }

    /// Whether nobody is at the other end any more.
    fn is_gone(&self) -> bool {
        let mut ends = [PollFd::new(&self.stream, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = poll(&mut ends, Some(&at_once));
        found.is_ok() && ends[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
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
        let id = clients.accept(|_| None, BTreeSet::new).unwrap();
        let gids = &clients.connected[&id].caller.gids;
        assert_eq!((gids[0], &gids[1..]), (rustix::process::getegid().as_raw(), had.as_slice()));
    }
}
