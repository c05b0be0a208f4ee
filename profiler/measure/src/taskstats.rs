//! The kernel's records of ended threads: taskstats over generic netlink
//! (Documentation/accounting/taskstats.rst, `include/uapi/linux/taskstats.h`).
//!
//! A listener gets a record of every thread of the machine that ends. The kernel allows that only to root
//! outside of containers. If the socket's buffer is full, records are dropped and the next read returns
//! `ENOBUFS`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use commonhold_machine::CpuSet;

/// The kernel's record of an ended thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The thread.
    pub(crate) tid: u32,
    /// Its process; 0 on kernels older than version 12 of the record.
    pub(crate) pid: u32,
    /// The process's parent.
    pub(crate) parent: u32,
    /// Its name.
    pub(crate) name: String,
    /// Wall-clock time from its start to its end.
    pub(crate) lived_ns: u64,
    /// Time on a CPU.
    pub(crate) ran_ns: u64,
    /// Time runnable without a CPU.
    pub(crate) queued_ns: u64,
    /// CPU time in user mode, in microseconds, sampled by ticks.
    pub(crate) user_us: u64,
    /// CPU time in kernel mode, likewise.
    pub(crate) system_us: u64,
    /// Time blocked on disks; 0 without delay accounting.
    pub(crate) io_ns: u64,
    /// The part of `io_ns` that was for pages that had been in memory before.
    pub(crate) fault_ns: u64,
}

/// Numbers of the protocol: `linux/netlink.h`, `linux/genetlink.h`, `linux/taskstats.h`.
mod number {
    pub(super) const CONTROL: u16 = 16;
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
    pub(super) const GET: u8 = 1;
    pub(super) const NEW: u8 = 2;
    pub(super) const REGISTER: u16 = 3;
    pub(super) const OF_THREAD: u16 = 4;
    pub(super) const STATS: u16 = 3;
    pub(super) const ERROR: u16 = 2;
    pub(super) const WANT: u16 = 1 | 4; // NLM_F_REQUEST, NLM_F_ACK
}

/// The first versions of the record with the thread's IDs and times, and with its process.
const VERSION_MIN: u16 = 8;
const VERSION_WITH_PROCESS: u16 = 12;

/// Socket buffer for records between two reads; a record takes less than 1 KiB.
const ROOM_BYTES: libc::c_int = 8 << 20;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Exits {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Whether records were dropped.
    pub(crate) lost: bool,
}

impl Exits {
    /// Subscribes to the records of threads that end on these CPUs. Errors are the kernel's: `EPERM` without
    /// root, `EINVAL` in a container, `ENOENT` if the kernel was built without taskstats.
    pub(crate) fn listen(cpus: &CpuSet) -> io::Result<Exits> {
        // SAFETY: plain system calls; the descriptor is ours alone, and options are passed with their size.
        let socket = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let socket = OwnedFd::from_raw_fd(fd);
            let room = ROOM_BYTES;
            let size = libc::socklen_t::try_from(size_of_val(&room)).unwrap_or(4);
            // Root may exceed the limit of `net.core.rmem_max`. If this fails, the buffer is smaller.
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const room).cast(), size);
            socket
        };
        let mut exits = Exits { socket, buffer: vec![0; 64 << 10], lost: false };
        let family = exits.family()?;
        exits.ask(family, number::GET, number::REGISTER, cpus.to_string().as_bytes())?;
        exits.answer()?;
        Ok(exits)
    }

    /// The netlink family ID of taskstats.
    fn family(&mut self) -> io::Result<u16> {
        self.ask(number::CONTROL, number::GET_FAMILY, number::FAMILY_NAME, b"TASKSTATS")?;
        let found = self.answer()?;
        let family = attributes(found.get(4..).unwrap_or_default())
            .find(|(kind, _)| *kind == number::FAMILY_ID)
            .and_then(|(_, bytes)| u16_at(bytes, 0));
        self.answer()?;
        family.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Sends a request with one string attribute.
    fn ask(&self, family: u16, command: u8, attribute: u16, text: &[u8]) -> io::Result<()> {
        let attribute_len = 4 + text.len() + 1;
        let len = 16 + 4 + attribute_len.next_multiple_of(4);
        let mut message = Vec::with_capacity(len);
        message.extend(u32::try_from(len).unwrap_or(0).to_ne_bytes());
        message.extend(family.to_ne_bytes());
        message.extend(number::WANT.to_ne_bytes());
        message.extend([0; 8]); // sequence and sender, unused
        message.extend([command, 1, 0, 0]);
        message.extend(u16::try_from(attribute_len).unwrap_or(0).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(text);
        message.resize(len, 0);
        // SAFETY: the kernel reads the message during the call only.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), len, 0) };
        if usize::try_from(sent) == Ok(len) { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The payload of the next message, or the error that it reports.
    fn answer(&mut self) -> io::Result<Vec<u8>> {
        let read = self.receive(0)?;
        let message = messages(&self.buffer[..read]).next();
        let (kind, content) = message.ok_or(io::ErrorKind::InvalidData)?;
        if kind == number::ERROR {
            let error =
                content.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(-error));
            }
        }
        Ok(content.to_vec())
    }

    /// Receives a datagram into the buffer. Returns its length.
    fn receive(&mut self, flags: libc::c_int) -> io::Result<usize> {
        // SAFETY: the kernel writes at most as many bytes as the buffer has.
        let read = unsafe {
            let buffer = self.buffer.as_mut_ptr().cast();
            libc::recv(self.socket.as_raw_fd(), buffer, self.buffer.len(), flags)
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Takes the records that arrived since the last call.
    pub(crate) fn take(&mut self, into: &mut Vec<Exit>) {
        loop {
            match self.receive(libc::MSG_DONTWAIT) {
                Ok(read) => {
                    let found = messages(&self.buffer[..read]).filter(|(kind, _)| *kind != number::ERROR);
                    into.extend(found.flat_map(|(_, content)| records(content)));
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.lost = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// The messages in a datagram: type and payload.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let message = bytes.get(16..len)?;
        let kind = u16_at(bytes, 4)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, message))
    })
}

/// Attributes: type and payload.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let content = bytes.get(4..len)?;
        // The two upper bits are flags: nested, network byte order.
        let kind = u16_at(bytes, 2)? & 0x3fff;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

/// The records in a message's payload.
fn records(content: &[u8]) -> Vec<Exit> {
    if content.first() != Some(&number::NEW) {
        return Vec::new();
    }
    let threads =
        attributes(content.get(4..).unwrap_or_default()).filter(|(kind, _)| *kind == number::OF_THREAD);
    let stats = threads.flat_map(|(_, nested)| attributes(nested)).filter(|(kind, _)| *kind == number::STATS);
    stats.filter_map(|(_, record)| parse(record)).collect()
}

/// Offsets in `struct taskstats`. New versions only append fields.
fn parse(record: &[u8]) -> Option<Exit> {
    let (int, long) = (|at| u32_at(record, at), |at| u64_at(record, at));
    let version = u16_at(record, 0).filter(|version| *version >= VERSION_MIN)?;
    let name = record.get(80..112)?;
    let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(name.len())];
    let io_ns = long(40)?;
    Some(Exit {
        tid: int(128)?,
        pid: if version >= VERSION_WITH_PROCESS { int(368)? } else { 0 },
        parent: int(132)?,
        name: String::from_utf8_lossy(name).into_owned(),
        lived_ns: long(144)?.saturating_mul(1_000),
        ran_ns: long(72)?,
        queued_ns: long(24)?,
        user_us: long(152)?,
        system_us: long(160)?,
        io_ns,
        fault_ns: long(56)?.saturating_add(long(336)?).min(io_ns),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_thread_leaves_a_record() {
        let cpus = commonhold_live::host::affinity::get(0).unwrap();
        let mut exits = match Exits::listen(&cpus) {
            Ok(exits) => exits,
            Err(error) => {
                // Without root the kernel says so; the test is of the rest.
                assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL)), "{error}");
                return;
            }
        };
        let name = "ends-soon";
        let work = std::thread::Builder::new().name(name.to_owned()).spawn(|| {
            let sum: u64 = (0..3_000_000).fold(0, |sum, n| std::hint::black_box(sum ^ n));
            std::hint::black_box(sum);
            std::thread::sleep(std::time::Duration::from_millis(20));
        });
        work.unwrap().join().unwrap();
        let mut found = Vec::new();
        for _ in 0..200 {
            exits.take(&mut found);
            if let Some(exit) = found.iter().find(|exit| exit.name == name) {
                assert_eq!(exit.pid, std::process::id());
                assert!(exit.ran_ns > 0 && exit.lived_ns > 20_000_000 + exit.ran_ns / 2, "{exit:?}");
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("no record of the thread among {} others", found.len());
    }

    #[test]
    fn truncated_records_are_ignored() {
        let mut record = vec![0u8; 416];
        record[0] = 13;
        assert!(parse(&record).is_some() && parse(&record[..360]).is_none());
        record[0] = 7;
        assert!(parse(&record).is_none());
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0);
        assert_eq!(messages(&[8; 15]).count(), 0);
    }
}
