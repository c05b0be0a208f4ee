//! A connection to the bus, or to systemd's own socket: who calls says who it is, and then calls and answers alternate.

use std::io;
use std::path::Path;
use std::time::Instant;

use super::Error;
use super::message::{Call, Kind, Message, length};
use crate::host::stream::Stream;

/// The longest line that is said before the first message.
const LINE_MAX: usize = 16 << 10;

/// Whose name systemd has on a bus.
const SYSTEMD: &str = "org.freedesktop.systemd1";

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// Whether a bus is between.
    by_bus: bool,
    /// The number of the last call.
    number: u32,
    /// What came and was not looked at.
    came: Vec<u8>,
}

impl Connection {
    /// Calls the bus or systemd itself.
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
        let mut connection = Connection { stream, by_bus, number: 0, came: Vec::new() };
        connection.introduce(until).map_err(|source| {
            let remedy = "it does not take this user for who it is, or is being replaced".to_owned();
            Error::Unreachable { path: path.to_owned(), source, remedy }
        })?;
        if by_bus {
            let bus = "org.freedesktop.DBus";
            let mut hello = new_call("/org/freedesktop/DBus", bus, "Hello", &())?;
            hello.to = Some(bus);
            connection.answer(&hello, until)?;
        }
        Ok(connection)
    }

    /// Whether a bus is between.
    pub(super) fn is_by_bus(&self) -> bool {
        self.by_bus
    }

    /// Says who this is: by its user's number, which the kernel confirms. All is said at once, as systemd's own programs do:
    /// systemd does not look at a call that it reads together with the end of the introduction, until another comes.
    fn introduce(&mut self, until: Instant) -> io::Result<()> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        // In hexadecimal, as all that is said of who somebody is: the digits of ASCII are 30 to 39.
        let hex: String = uid.chars().flat_map(|digit| ['3', digit]).collect();
        self.stream.send(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes(), until)?;
        let line = self.line(until)?;
        if !line.starts_with("OK ") {
            let why = format!("it says `{}`", line.trim_end());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(())
    }

    fn line(&mut self, until: Instant) -> io::Result<String> {
        loop {
            if let Some(end) = self.came.windows(2).position(|two| two == b"\r\n") {
                let line = self.came.drain(..end + 2).collect::<Vec<u8>>();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.came.len() > LINE_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it says a line without an end"));
            }
            self.receive(until)?;
        }
    }

    fn receive(&mut self, until: Instant) -> io::Result<()> {
        match self.stream.receive(&mut self.came, until)? {
            0 => Err(io::Error::new(io::ErrorKind::ConnectionReset, "the connection has ended")),
            _ => Ok(()),
        }
    }

    /// Asks, and waits for the answer.
    pub(super) fn call(&mut self, call: &Call, until: Instant) -> Result<Message, Error> {
        if !self.by_bus {
            return self.answer(call, until);
        }
        let mut call = call.clone();
        call.to = Some(SYSTEMD);
        self.answer(&call, until)
    }

    fn answer(&mut self, call: &Call, until: Instant) -> Result<Message, Error> {
        let silent = |source| Error::Silent { call: call.method.to_owned(), source };
        self.number = self.number.wrapping_add(1).max(1);
        let bytes = call.bytes(self.number).map_err(|error| unexpected(call.method, &error))?;
        self.stream.send(&bytes, until).map_err(silent)?;
        loop {
            let message = self.message(until).map_err(silent)?;
            if message.answers != Some(self.number) {
                // A signal, or an answer that nobody waits for any more.
                continue;
            }
            match message.kind {
                Kind::Return => return Ok(message),
                Kind::Error => {
                    let says = message.says();
                    let name = message.error.unwrap_or_default();
                    return Err(Error::Refused { call: call.method.to_owned(), name, message: says });
                }
                Kind::Call | Kind::Signal => {}
            }
        }
    }

    fn message(&mut self, until: Instant) -> io::Result<Message> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        loop {
            if let Some(length) = length(&self.came).map_err(invalid)?
                && length <= self.came.len()
            {
                let message = Message::parse(&self.came[..length]).map_err(invalid)?;
                self.came.drain(..length);
                return Ok(message);
            }
            self.receive(until)?;
        }
    }

    /// Where it is connected.
    pub(super) fn path(&self) -> &Path {
        self.stream.path()
    }
}

/// A call with these values. What cannot be sent is an error, and no panic: names come from elsewhere.
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
