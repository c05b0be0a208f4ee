//! A connection to a UNIX socket in the file system. Each call has a deadline.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::tamper::{About, Answer, Kind, ask, pass};

/// The pause between two attempts to connect to a program whose queue of connections is full.
const PAUSE: Duration = Duration::from_millis(10);

/// An open connection.
#[derive(Debug)]
pub(crate) struct Stream {
    stream: UnixStream,
    path: PathBuf,
}

impl Stream {
    /// Connects to the program that listens at `path`. `TimedOut` if the program's queue of connections is
    /// still full at `until`.
    pub(crate) fn connect(path: &Path, until: Instant) -> io::Result<Stream> {
        pass(Kind::Connect, About::Path(path))?;
        // A blocking call could wait for ever for a program that does not accept connections.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket: OwnedFd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(path)?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() + PAUSE < until => std::thread::sleep(PAUSE),
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Stream { stream: UnixStream::from(socket), path: path.to_owned() })
    }

    /// The path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let answer = ask(Kind::Send, About::Path(&self.path), bytes);
            let to_send: &[u8] = match &answer {
                Answer::GoOn => bytes,
                Answer::Refuse(errno) => return Err(io::Error::from_raw_os_error(*errno)),
                // The connection ends after these bytes.
                Answer::Shorten(limit) => &bytes[..bytes.len().min(*limit)],
                Answer::Falsify(others) => others,
            };
            let sent = self.call_when_ready(PollFlags::OUT, until, |mut stream| stream.write(to_send))?;
            bytes = match answer {
                Answer::GoOn => &bytes[sent..],
                Answer::Shorten(_) => {
                    self.stream.shutdown(Shutdown::Both)?;
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                _ => &[],
            };
        }
        Ok(())
    }

    /// Appends received bytes to a buffer. Returns their number; 0 if the peer has closed the connection.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>, until: Instant) -> io::Result<usize> {
        let mut room = [0; 4096];
        let limit = match ask(Kind::Receive, About::Path(&self.path), []) {
            Answer::GoOn => room.len(),
            Answer::Refuse(errno) => return Err(io::Error::from_raw_os_error(errno)),
            Answer::Shorten(0) => return Ok(0),
            Answer::Shorten(limit) => limit.min(room.len()),
            Answer::Falsify(bytes) => {
                into.extend_from_slice(&bytes);
                return Ok(bytes.len());
            }
        };
        let received =
            self.call_when_ready(PollFlags::IN, until, |mut stream| stream.read(&mut room[..limit]))?;
        into.extend_from_slice(&room[..received]);
        Ok(received)
    }

    /// Makes a call, and repeats it each time the connection becomes ready until it succeeds. `TimedOut`
    /// after `until`.
    fn call_when_ready(
        &self,
        ready: PollFlags,
        until: Instant,
        mut call: impl FnMut(&UnixStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match call(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let remaining = until.saturating_duration_since(Instant::now());
                    let timeout = Timespec::try_from(remaining).map_err(io::Error::other)?;
                    match poll(&mut [PollFd::new(&self.stream, ready)], Some(&timeout)) {
                        Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::tamper;
    use super::*;

    #[test]
    fn calls_time_out_and_a_closed_connection_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let soon = || Instant::now() + Duration::from_millis(20);
        let mut stream = Stream::connect(&path, soon()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        assert_eq!(stream.receive(&mut received, soon()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        // More than fits into the socket's buffer.
        let error = stream.send(&vec![7; 64 << 20], soon()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        peer.write_all(b"abc").unwrap();
        assert_eq!(
            (stream.receive(&mut received, soon()).unwrap(), received.as_slice()),
            (3, b"abc".as_slice())
        );
        drop(peer);
        assert!(matches!(stream.receive(&mut received, soon()), Ok(0) | Err(_)));
    }

    #[test]
    fn a_hook_ends_a_connection() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let later = Instant::now() + Duration::from_secs(20);
        let mut stream = Stream::connect(&path, later).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let hook = tamper(|access| match access.kind {
            Kind::Send => Answer::Shorten(2),
            Kind::Receive => Answer::Shorten(0),
            _ => Answer::Refuse(libc::ECONNREFUSED),
        });
        assert_eq!(stream.receive(&mut Vec::new(), later).unwrap(), 0);
        stream.send(b"hello", later).unwrap_err();
        assert_eq!(Stream::connect(&path, later).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        drop(hook);
        let mut sent = Vec::new();
        peer.read_to_end(&mut sent).unwrap();
        assert_eq!(sent, b"he");
    }
}
