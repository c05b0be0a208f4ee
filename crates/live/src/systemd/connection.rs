//! A D-Bus connection over the bus, or over systemd's private socket: authenticate, then synchronous
//! request/reply.

use std::io;
use std::path::Path;
use std::time::Instant;

use super::Error;
use super::message::{Call, Kind, Message, length};
use crate::host::stream::Stream;

/// The longest line accepted during authentication.
const LINE_MAX: usize = 16 << 10;

/// systemd's name on a bus.
const SYSTEMD: &str = "org.freedesktop.systemd1";

/// An open connection to one systemd instance.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// Whether the socket is that of a bus. If not, it is systemd's private socket.
    by_bus: bool,
    /// The serial number of the last call.
    serial: u32,
    /// Bytes received and not parsed yet.
    received: Vec<u8>,
}

impl Connection {
    /// Connects to the socket at `path`, and authenticates, before the deadline `until`. `by_bus`: the socket
    /// is that of a bus, and not systemd's private one.
    pub(super) fn open(path: &Path, by_bus: bool, until: Instant) -> Result<Connection, Error> {
        let stream = Stream::connect(path, until).map_err(|source| {
            let remedy = match source.kind() {
                io::ErrorKind::NotFound => "this machine, or this user, has no systemd",
                io::ErrorKind::PermissionDenied => {
                    "run commonhold as root, or as the user whose systemd it is"
                }
                _ => "see whether it runs: systemctl status",
            };
            Error::Unreachable { path: path.to_owned(), source, remedy: remedy.to_owned() }
        })?;
        let mut connection = Connection { stream, by_bus, serial: 0, received: Vec::new() };
        connection.authenticate(until).map_err(|source| {
            let remedy = "it does not accept this user's identity, or is being replaced".to_owned();
            Error::Unreachable { path: path.to_owned(), source, remedy }
        })?;
        if by_bus {
            let bus = "org.freedesktop.DBus";
            let mut hello = new_call("/org/freedesktop/DBus", bus, "Hello", &())?;
            hello.to = Some(bus);
            connection.send_and_wait(&hello, until)?;
        }
        Ok(connection)
    }

    /// Whether the connection goes over a bus.
    pub(super) fn is_by_bus(&self) -> bool {
        self.by_bus
    }

    /// Authenticates by user number, which the kernel confirms. All lines are sent at once, as systemd's own
    /// programs do, and the answer is awaited before any call is sent: systemd would ignore a call that it
    /// reads together with the last line, until another call arrives.
    fn authenticate(&mut self, until: Instant) -> io::Result<()> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        // The protocol wants the ASCII digits in hexadecimal: 30 to 39.
        let hex: String = uid.chars().flat_map(|digit| ['3', digit]).collect();
        self.stream.send(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes(), until)?;
        let line = self.receive_line(until)?;
        if !line.starts_with("OK ") {
            let why = format!("it answered `{}`", line.trim_end());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(())
    }

    /// Receives a line, and returns it without its line break.
    fn receive_line(&mut self, until: Instant) -> io::Result<String> {
        loop {
            if let Some(end) = self.received.windows(2).position(|bytes| bytes == b"\r\n") {
                let line = self.received.drain(..end + 2).collect::<Vec<u8>>();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.received.len() > LINE_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it sent an endless line"));
            }
            self.receive(until)?;
        }
    }

    /// Waits for bytes, and appends them to those received. The end of the stream is an error.
    fn receive(&mut self, until: Instant) -> io::Result<()> {
        match self.stream.receive(&mut self.received, until)? {
            0 => Err(io::Error::new(io::ErrorKind::ConnectionReset, "the connection has ended")),
            _ => Ok(()),
        }
    }

    /// Calls a method of systemd, and waits for the reply. An error reply is an [`Error::Refused`].
    pub(super) fn call(&mut self, call: &Call, until: Instant) -> Result<Message, Error> {
        if !self.by_bus {
            return self.send_and_wait(call, until);
        }
        let mut call = call.clone();
        call.to = Some(SYSTEMD);
        self.send_and_wait(&call, until)
    }

    /// Sends a call to its destination, and waits for the reply.
    fn send_and_wait(&mut self, call: &Call, until: Instant) -> Result<Message, Error> {
        let silent = |source| Error::Silent { call: call.method.to_owned(), source };
        self.serial = self.serial.wrapping_add(1).max(1);
        let bytes = call.bytes(self.serial).map_err(|error| unexpected(call.method, &error))?;
        self.stream.send(&bytes, until).map_err(silent)?;
        loop {
            let message = self.receive_message(until).map_err(silent)?;
            if message.reply_to != Some(self.serial) {
                // A signal, or a late reply to an earlier call.
                continue;
            }
            match message.kind {
                Kind::Return => return Ok(message),
                Kind::Error => {
                    let text = message.error_text();
                    let name = message.error.unwrap_or_default();
                    return Err(Error::Refused { call: call.method.to_owned(), name, message: text });
                }
                Kind::Call | Kind::Signal => {}
            }
        }
    }

    fn receive_message(&mut self, until: Instant) -> io::Result<Message> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        loop {
            if let Some(length) = length(&self.received).map_err(invalid)?
                && length <= self.received.len()
            {
                let message = Message::parse(&self.received[..length]).map_err(invalid)?;
                self.received.drain(..length);
                return Ok(message);
            }
            self.receive(until)?;
        }
    }

    /// The socket's path.
    pub(super) fn path(&self) -> &Path {
        self.stream.path()
    }
}

/// Builds a call of a method with these values. Values that D-Bus cannot encode are an error and not a panic,
/// because names of systemd units come from outside this program.
pub(super) fn new_call<T: serde::Serialize + zvariant::DynamicType>(
    path: &str,
    interface: &'static str,
    method: &'static str,
    values: &T,
) -> Result<Call, Error> {
    Call::new(path, interface, method, values).map_err(|error| unexpected(method, &error))
}

fn unexpected(call: &str, error: &impl ToString) -> Error {
    Error::Unexpected { call: call.to_owned(), what: error.to_string() }
}
