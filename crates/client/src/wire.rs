//! The messages between daemon and clients: JSON objects, each ended by a NUL, over a UNIX socket. This is
//! varlink's wire format, so that `varlinkctl call` and five lines of any language can speak it.
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
        /// Whether to include the per-CPU accounts of the scheduler in the kernel, which are large with many
        /// CPUs and units.
        #[serde(default)]
        by_cpu: bool,
    },
    /// The unit of a process, and the rule by which it is in that unit.
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

/// The parameters of a [`Refusal`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The reason and the remedy, for people.
    #[serde(default)]
    pub message: String,
}

/// Sends a message, with its NUL.
pub fn send(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(0);
    stream.write_all(&bytes)
}

/// Waits for a message, and returns it without its NUL; `None` if the other side closed the connection before
/// the message was complete. Nothing follows the NUL, since each side sends its next message only after the
/// other side's.
pub fn receive(mut stream: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = match stream.read(&mut chunk) {
            // A signal interrupts the call when the gate of a client's unit stops and continues the client.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            return Ok(None);
        }
        // Only the new bytes are searched: the earlier ones contain no NUL.
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
