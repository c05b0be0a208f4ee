//! The messages between daemon and clients: JSON objects, each ended by a NUL, over a UNIX socket. This is
//! [varlink](https://varlink.org), so that `varlinkctl` and five lines of any language can speak it. The
//! daemon describes its interface (`varlinkctl introspect`).
//!
//! The caller's identity comes from the socket's peer credentials, never from a message.

use std::fmt;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// The longest message that either side accepts, in bytes: the size of a status of 100,000 units.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The varlink interface of every varlink service, which describes the service.
pub const SERVICE: &str = "org.varlink.service";

/// The daemon's varlink interface.
pub const INTERFACE: &str = "io.commonhold";

/// The names of all methods: one for each kind of [`Call`].
pub const METHODS: [&str; 14] = [
    "io.commonhold.Status",
    "io.commonhold.Monitor",
    "io.commonhold.Where",
    "io.commonhold.Members",
    "io.commonhold.Enter",
    "io.commonhold.Tickets",
    "io.commonhold.Currency",
    "io.commonhold.AsContract",
    "io.commonhold.Offers",
    "io.commonhold.Change",
    "io.commonhold.Join",
    "io.commonhold.Await",
    "org.varlink.service.GetInfo",
    "org.varlink.service.GetInterfaceDescription",
];

/// A request's method and parameters.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "method", content = "parameters")]
pub enum Call {
    /// All accounts.
    #[serde(rename = "io.commonhold.Status")]
    Status {
        /// Whether to include the per-CPU accounts of the scheduler in the kernel, which are large with many
        /// CPUs and units.
        #[serde(default)]
        by_cpu: bool,
    },
    /// The present state of all units. In a request with [`Flags::more`], the daemon goes on to reply with
    /// the differences, until the client disconnects.
    #[serde(rename = "io.commonhold.Monitor")]
    Monitor {
        /// The interval between two replies in milliseconds, at least 250; `None`: 1,000.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every_ms: Option<u64>,
    },
    /// The unit of a process, and the rule by which it is in that unit.
    #[serde(rename = "io.commonhold.Where")]
    Where {
        /// The process.
        pid: u32,
    },
    /// The processes in a unit, without those of its sub-units.
    #[serde(rename = "io.commonhold.Members")]
    Members {
        /// The unit's path.
        unit: String,
        /// The most processes to list, at most 2,000; `None`: 2,000.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most: Option<u32>,
    },
    /// Moves the calling process into a unit.
    #[serde(rename = "io.commonhold.Enter")]
    Enter {
        /// The unit's path.
        unit: String,
    },
    /// Every unit's tickets of every resource.
    #[serde(rename = "io.commonhold.Tickets")]
    Tickets {},
    /// A unit as a currency: its funding, and the tickets that it issued.
    #[serde(rename = "io.commonhold.Currency")]
    Currency {
        /// The unit's path.
        unit: String,
    },
    /// The rights in force, as a contract.
    #[serde(rename = "io.commonhold.AsContract")]
    AsContract {},
    /// Open offers, and exchanges of tickets.
    #[serde(rename = "io.commonhold.Offers")]
    Offers {},
    /// A change of tickets. The daemon answers after the turn of its control loop that made or refused the
    /// change.
    #[serde(rename = "io.commonhold.Change")]
    Change(Asked),
    /// Joins the calling process to the gangs, so that it can report its memory-bus transfers. The answer is
    /// a [`Joined`]. A file descriptor for the process's page, an [`arena::Page`](crate::arena::Page), comes
    /// with it.
    #[serde(rename = "io.commonhold.Join")]
    Join {},
    /// The outcome of an offer or an exchange. The daemon answers when the offer is served or withdrawn, when
    /// the exchange ends, or when the time has expired.
    #[serde(rename = "io.commonhold.Await")]
    Await {
        /// The number of the offer or exchange.
        number: u64,
        /// The time after which the daemon answers in any case, in ns. 0: at once. `None`: there is no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most_ns: Option<u64>,
    },
    /// The name and the version of the daemon, and its interfaces.
    #[serde(rename = "org.varlink.service.GetInfo")]
    GetInfo {},
    /// The description of one of the daemon's interfaces.
    #[serde(rename = "org.varlink.service.GetInterfaceDescription")]
    GetInterfaceDescription {
        /// The interface's name.
        interface: String,
    },
}

/// How a request is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Flags {
    /// The client accepts more than one reply. Each of them but the last has [`Reply::continues`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The client wants no reply, not even an error.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub oneway: bool,
    /// The client would speak another protocol after the reply. The daemon refuses such a request.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub upgrade: bool,
}

/// A request.
#[derive(Debug, Serialize)]
pub struct Request<C> {
    /// The method and its parameters.
    #[serde(flatten)]
    pub call: C,
    /// How to answer it.
    #[serde(flatten)]
    pub flags: Flags,
}

/// A change of rights. Units are given by path, and amounts in exchanges as `disk:300`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "docs/protocol.md says what the fields are")]
pub enum Asked {
    /// Sets a unit's tickets.
    Set { unit: String, resource: Resource, tickets: u64 },
    /// The enclosing unit issues further tickets to a unit.
    Issue { unit: String, resource: Resource, tickets: u64 },
    /// The enclosing unit revokes tickets of a unit.
    TakeBack { unit: String, resource: Resource, tickets: u64 },
    /// A unit transfers tickets to a sibling.
    Transfer { from: String, to: String, resource: Resource, tickets: u64 },
    /// Two siblings transfer tickets to each other, atomically.
    Exchange { one: String, other: String, gives: String, gets: String },
    /// A unit offers tickets in exchange for other units' tickets.
    Offer {
        unit: String,
        gives: String,
        wants: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ns: Option<u64>,
        /// The minimum that the unit accepts of `wants`, for a proportional part of `gives`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<String>,
        /// The offer, and the exchange that serves it, end with the connection that made it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        while_connected: bool,
    },
    /// Changes a unit's tickets of several resources, atomically.
    Several { unit: String, how: How, tickets: Numbers },
    /// Sets how many tickets of a foreign currency a unit has besides its own tickets. The currency is that
    /// of the unit `of`; with `None`, the machine's own.
    Fund {
        unit: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<String>,
        tickets: Numbers,
    },
    /// Withdraws an offer, or ends an exchange.
    Cancel { number: u64 },
}

/// How numbers of tickets change a unit's tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// The numbers replace the unit's tickets.
    Set,
    /// The numbers are added to the unit's tickets.
    Issue,
    /// The numbers are subtracted from the unit's tickets.
    TakeBack,
}

/// Numbers of tickets by resource; `None` for resources that are not named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Tickets of time on CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Tickets of page frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Tickets of each disk's bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
    /// Tickets of the memory bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<u64>,
}

/// A resource with tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Time on CPUs.
    Cpu,
    /// Page frames.
    Memory,
    /// Each disk's bandwidth.
    Disk,
    /// The memory bus.
    Bus,
}

impl Resource {
    /// All resources, in the order in which reports list them.
    pub const ALL: [Resource; 4] = [Resource::Cpu, Resource::Memory, Resource::Disk, Resource::Bus];

    /// The resource's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::Disk => "disk",
            Resource::Bus => "bus",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The answer to [`Call::Join`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The length of the page, in bytes.
    pub page_bytes: u64,
    /// The initial interval at which the process should write into the page, in nanoseconds. The page has the
    /// current interval.
    pub every_ns: u64,
}

/// The answer to a request that succeeded.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply<T> {
    /// The result.
    pub parameters: T,
    /// Whether further replies to the same request follow. Only a request with [`Flags::more`] has several.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

/// The answer to a request that failed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The error's name: [`Why::name`](crate::Why::name).
    pub error: String,
    /// The reason in words.
    #[serde(default)]
    pub parameters: Explanation,
}

/// The parameters of a [`Refusal`]. The errors of `io.commonhold` have a `message`. The standard errors of
/// `org.varlink.service` have at most one of the other parameters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The reason and the remedy, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The parameter that is invalid, or in which respect the request is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The full name of the method that does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The name of the interface that does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// Sends a message, with its NUL.
pub fn send(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(0);
    stream.write_all(&bytes)
}

/// Waits for a message, and returns it without its NUL; `None` if the other side closed the connection before
/// the message was complete. Nothing may follow the NUL: to receive the replies to a request with
/// [`Flags::more`], use a [`Receiver`].
pub fn receive(stream: impl Read) -> io::Result<Option<Vec<u8>>> {
    Receiver::default().receive(stream)
}

/// Receives messages that may follow each other at once.
#[derive(Debug, Default)]
pub struct Receiver {
    /// The bytes that were read and not yet returned.
    pending: Vec<u8>,
    /// The number of bytes at the start of `pending` that contain no NUL.
    searched: usize,
}

impl Receiver {
    /// Waits for a message, and returns it without its NUL; `None` if the other side closed the connection
    /// before the message was complete. After a timeout, the part that was received is kept, and the next
    /// call continues with it.
    pub fn receive(&mut self, mut stream: impl Read) -> io::Result<Option<Vec<u8>>> {
        let mut chunk = [0; 4096];
        loop {
            let end = self.pending[self.searched..].iter().position(|byte| *byte == 0);
            if let Some(length) = end.map(|end| self.searched + end) {
                let rest = self.pending.split_off(length + 1);
                let mut message = std::mem::replace(&mut self.pending, rest);
                message.truncate(length);
                self.searched = 0;
                return Ok(Some(message));
            }
            self.searched = self.pending.len();
            if self.pending.len() > MESSAGE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end"));
            }
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(n) => self.pending.extend_from_slice(&chunk[..n]),
                // A signal interrupts the call when the gate of a client's unit stops and continues the
                // client.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// serde lists all kinds of call when it refuses one.
    #[test]
    fn all_methods_are_listed() {
        let unknown = serde_json::from_str::<Call>("{\"method\":\"?\",\"parameters\":{}}").unwrap_err();
        let unknown = unknown.to_string();
        let listed: Vec<&str> = unknown.split('`').skip(3).step_by(2).collect();
        assert_eq!(listed, METHODS, "{unknown}");
    }

    #[test]
    fn flags_are_left_out_unless_they_are_set() {
        let text = |flags| serde_json::to_string(&Request { call: &Call::Offers {}, flags }).unwrap();
        let offers = "{\"method\":\"io.commonhold.Offers\",\"parameters\":{}";
        assert_eq!(text(Flags::default()), format!("{offers}}}"));
        assert_eq!(text(Flags { more: true, ..Flags::default() }), format!("{offers},\"more\":true}}"));
    }

    /// A stream that returns these chunks, and then a timeout each time.
    struct Chunks(Vec<&'static [u8]>);

    impl Read for Chunks {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let chunk = self.0.remove(0);
            into[..chunk.len()].copy_from_slice(chunk);
            Ok(chunk.len())
        }
    }

    #[test]
    fn messages_may_be_divided_and_joined_at_will() {
        let mut receiver = Receiver::default();
        let mut stream = Chunks(vec![b"a", b"b\0c\0\0d"]);
        let mut next = |stream: &mut Chunks| receiver.receive(stream);
        for expected in ["ab", "c", ""] {
            assert_eq!(next(&mut stream).unwrap().as_deref(), Some(expected.as_bytes()));
        }
        assert_eq!(next(&mut stream).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        stream.0 = vec![b"e\0f", b""];
        assert_eq!(next(&mut stream).unwrap().as_deref(), Some(&b"de"[..]), "continued after the timeout");
        assert_eq!(next(&mut stream).unwrap(), None, "the end, in the middle of a message");
    }
}
