//! The messages between daemon and clients: JSON objects, each ended by a NUL, over a UNIX socket. This is varlink's
//! wire format, so that `varlinkctl call` and five lines of any language can speak it.
//!
//! The caller's identity comes from the socket's peer credentials, never from a message.

use std::fmt;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// The longest message either side takes, in bytes: what a status of 100,000 units needs, and no more.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "method", content = "parameters")]
pub enum Call {
    /// All accounts.
    #[serde(rename = "io.commonhold.Status")]
    Status {
        /// Those of the scheduler in the kernel by CPU, too: where there are many CPUs and units, that is much.
        #[serde(default)]
        by_cpu: bool,
    },
    /// Which unit a process is in, and why.
    #[serde(rename = "io.commonhold.Where")]
    Where {
        /// The process.
        pid: u32,
    },
    /// Takes the calling process into a unit.
    #[serde(rename = "io.commonhold.Enter")]
    Enter {
        /// The unit's path.
        unit: String,
    },
    /// Every unit's tickets of every resource.
    #[serde(rename = "io.commonhold.Tickets")]
    Tickets {},
    /// A unit as a currency: what funds it, what it issued.
    #[serde(rename = "io.commonhold.Currency")]
    Currency {
        /// The unit's path.
        unit: String,
    },
    /// What is in force, as a contract.
    #[serde(rename = "io.commonhold.AsContract")]
    AsContract {},
    /// Offers that stand, and exchanges of tickets.
    #[serde(rename = "io.commonhold.Offers")]
    Offers {},
    /// A change of tickets. It is answered after the turn that made it or refused it.
    #[serde(rename = "io.commonhold.Change")]
    Change(Asked),
    /// Has the calling process tell what it transfers over the memory bus. A descriptor of its page, an
    /// [`arena::Page`](crate::arena::Page), comes with the answer, [`Joined`].
    #[serde(rename = "io.commonhold.Join")]
    Join {},
    /// What becomes of an offer or an exchange. It is answered when the offer stands no more, when the exchange is over, or
    /// when the time is.
    #[serde(rename = "io.commonhold.Await")]
    Await {
        /// Its number.
        number: u64,
        /// How long the answer may take, in ns; 0: what is known now; nothing: as long as it takes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most_ns: Option<u64>,
    },
}

/// A change of rights; units by their paths, and what is exchanged as `disk:300`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "docs/protocol.md says what the fields are")]
pub enum Asked {
    /// A unit has so many from now on.
    Set { unit: String, resource: Resource, tickets: u64 },
    /// The encloser issues more to a unit.
    Issue { unit: String, resource: Resource, tickets: u64 },
    /// The encloser takes some back from a unit.
    TakeBack { unit: String, resource: Resource, tickets: u64 },
    /// A unit gives some to a sibling.
    Transfer { from: String, to: String, resource: Resource, tickets: u64 },
    /// Two siblings give each other some: both or neither.
    Exchange { one: String, other: String, gives: String, gets: String },
    /// A unit offers tickets for those of others.
    Offer {
        unit: String,
        gives: String,
        wants: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ns: Option<u64>,
        /// The least of what it wants that it takes, for as much less of what it gives.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<String>,
        /// The offer, and the exchange that serves it, end with the connection that made it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        while_connected: bool,
    },
    /// A unit's tickets of several resources: all are changed or none.
    Several { unit: String, how: How, tickets: Numbers },
    /// A unit holds so many tickets of another currency beside its own; of no unit: of the base currency.
    Fund {
        unit: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<String>,
        tickets: Numbers,
    },
    /// An offer is taken back, or an exchange ended.
    Cancel { number: u64 },
}

/// What numbers of tickets mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// All that the unit has then.
    Set,
    /// How many more.
    Issue,
    /// How many fewer.
    TakeBack,
}

/// Numbers of tickets by resource; nothing of those that are not named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Of time on CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Of page frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Of each disk's bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
    /// Of the memory bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<u64>,
}

/// What tickets are of.
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
    /// All of them, in the order in which they are listed.
    pub const ALL: [Resource; 4] = [Resource::Cpu, Resource::Memory, Resource::Disk, Resource::Bus];

    /// As messages have it.
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
    /// How long the page is.
    pub page_bytes: u64,
    /// How often the process is to write there, in nanoseconds. The page has that too: it may change.
    pub every_ns: u64,
}

/// An answer that is no error.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply<T> {
    /// What was asked for.
    pub parameters: T,
}

/// An answer that is one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Its name: [`Why::name`](crate::Why::name).
    pub error: String,
    /// Why, in words.
    #[serde(default)]
    pub parameters: Explanation,
}

/// Words for a person.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The words.
    #[serde(default)]
    pub message: String,
}

/// Sends a message.
pub fn send(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(0);
    stream.write_all(&bytes)
}

/// Waits for a message; `None` if the other side hung up before one was complete.
pub fn receive(mut stream: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = match stream.read(&mut chunk) {
            // A client in a unit whose turn it is not is stopped and continued while it waits.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            return Ok(None);
        }
        // What was looked through before has no end in it.
        let end = chunk[..n].iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&chunk[..end.unwrap_or(n)]);
        if end.is_some() {
            return Ok(Some(bytes));
        }
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end"));
        }
    }
}
