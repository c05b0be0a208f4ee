//! The messages between daemon and clients: JSON objects, each ended by a NUL, over a UNIX socket. This is varlink's
//! wire format, so that `varlinkctl call` and five lines of any language can speak it.
//!
//! The caller's identity comes from the socket's peer credentials, never from a message.

use std::fmt;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// The longest message that either side accepts, in bytes: the size of a status of 100,000 units.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "method", content = "parameters")]
pub enum Call {
    /// All accounts.
    #[serde(rename = "io.commonhold.Status")]
    Status {
        /// Includes the per-CPU accounts of the scheduler in the kernel: large with many CPUs and units.
        #[serde(default)]
        by_cpu: bool,
    },
    /// The unit of a process, and why.
    #[serde(rename = "io.commonhold.Where")]
    Where {
        /// The process.
        pid: u32,
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
    /// A change of tickets. It is answered after the step of the steward that applied or refused it.
    #[serde(rename = "io.commonhold.Change")]
    Change(Asked),
    /// The calling process joins, to report its memory-bus transfers. A descriptor of its page, an
    /// [`arena::Page`](crate::arena::Page), comes with the answer, [`Joined`].
    #[serde(rename = "io.commonhold.Join")]
    Join {},
    /// The outcome of an offer or an exchange. It is answered when the offer is served or withdrawn, when the exchange ends, or
    /// when the time has expired.
    #[serde(rename = "io.commonhold.Await")]
    Await {
        /// Its number.
        number: u64,
        /// The time limit of the answer, in ns; 0: answer at once; `None`: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most_ns: Option<u64>,
    },
}

/// A change of rights; units are paths, and exchanged amounts are written `disk:300`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "docs/protocol.md says what the fields are")]
pub enum Asked {
    /// Sets a unit's tickets.
    Set { unit: String, resource: Resource, tickets: u64 },
    /// The enclosing unit issues more tickets to a unit.
    Issue { unit: String, resource: Resource, tickets: u64 },
    /// The enclosing unit revokes tickets of a unit.
    TakeBack { unit: String, resource: Resource, tickets: u64 },
    /// A unit transfers tickets to a sibling.
    Transfer { from: String, to: String, resource: Resource, tickets: u64 },
    /// Two siblings transfer tickets to each other, atomically.
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
        /// The least that it accepts of `wants`, for a proportional part of `gives`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<String>,
        /// The offer, and the exchange that serves it, end with the connection that made it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        while_connected: bool,
    },
    /// Changes a unit's tickets of several resources, atomically.
    Several { unit: String, how: How, tickets: Numbers },
    /// Sets a unit's tickets of another currency, beside its own; without a unit, of the base currency.
    Fund {
        unit: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<String>,
        tickets: Numbers,
    },
    /// Withdraws an offer, or ends an exchange.
    Cancel { number: u64 },
}

/// How numbers of tickets are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// They replace the unit's tickets.
    Set,
    /// They are added.
    Issue,
    /// They are subtracted.
    TakeBack,
}

/// Numbers of tickets by resource; `None` for resources that are not named.
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
    /// The length of the page, in bytes.
    pub page_bytes: u64,
    /// The interval at which the process should write there, in nanoseconds. The page has the current value.
    pub every_ns: u64,
}

/// A successful answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply<T> {
    /// The result.
    pub parameters: T,
}

/// An error answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Its name: [`Why::name`](crate::Why::name).
    pub error: String,
    /// Why, in words.
    #[serde(default)]
    pub parameters: Explanation,
}

/// Human-readable parameters of an error.
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
            // A client is stopped and continued by signals while its unit waits for its turn.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            return Ok(None);
        }
        // Bytes searched before contain no NUL.
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
