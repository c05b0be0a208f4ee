//! The messages between daemon and clients: JSON objects, each ended by a NUL, over a UNIX socket. This is varlink's
//! wire format, so that `varlinkctl call` and five lines of any language can speak it.
//!
//! The caller's identity comes from the socket's peer credentials, never from a message.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use commonhold_contract::Resource;
use commonhold_ledger::{Exchange, Statement};
use commonhold_policy::rights::Offer;
use commonhold_report::exchanges::Standing;
use commonhold_report::holdings::Holding;
use commonhold_report::switches::UnitSwitches;
use commonhold_report::tickets::{Expected, Tickets};
use serde::{Deserialize, Serialize};

/// The longest message either side takes, in bytes: what a status of 100,000 units needs, and no more.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "method", content = "parameters")]
pub(crate) enum Call {
    /// All accounts; those of the scheduler in the kernel by CPU, too, if asked for: where there are many CPUs and units, that
    /// is much.
    #[serde(rename = "io.commonhold.Status")]
    Status {
        #[serde(default)]
        by_cpu: bool,
    },
    /// Which unit a process is in, and why.
    #[serde(rename = "io.commonhold.Where")]
    Where { pid: u32 },
    /// Takes the calling process into a unit.
    #[serde(rename = "io.commonhold.Enter")]
    Enter { unit: String },
    /// Every unit's tickets of every resource.
    #[serde(rename = "io.commonhold.Tickets")]
    Tickets {},
    /// Offers that stand, and exchanges of tickets.
    #[serde(rename = "io.commonhold.Offers")]
    Offers {},
    /// A change of tickets. It is answered after the turn that made it or refused it.
    #[serde(rename = "io.commonhold.Change")]
    Change(Asked),
}

/// A change of rights; units by their paths. What each kind means: [`Change`](commonhold_policy::rights::Change).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Asked {
    Set {
        unit: String,
        resource: Resource,
        tickets: u64,
    },
    Issue {
        unit: String,
        resource: Resource,
        tickets: u64,
    },
    TakeBack {
        unit: String,
        resource: Resource,
        tickets: u64,
    },
    Transfer {
        from: String,
        to: String,
        resource: Resource,
        tickets: u64,
    },
    Exchange {
        one: String,
        other: String,
        gives: Offer,
        gets: Offer,
    },
    Offer {
        unit: String,
        gives: Offer,
        wants: Offer,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ns: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<Offer>,
    },
    Fund {
        unit: String,
        /// Whose currency; nothing: the base currency.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<String>,
        resource: Resource,
        tickets: u64,
    },
    Cancel {
        number: u64,
    },
}

/// An answer that is no error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reply<T> {
    pub(crate) parameters: T,
}

/// An answer that is one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) error: String,
    pub(crate) parameters: Explanation,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) message: String,
}

/// Names of errors.
pub(crate) mod refusal {
    pub(crate) const NOT_ALLOWED: &str = "io.commonhold.NotAllowed";
    pub(crate) const NO_SUCH_UNIT: &str = "io.commonhold.NoSuchUnit";
    pub(crate) const NO_SUCH_PROCESS: &str = "io.commonhold.NoSuchProcess";
    pub(crate) const TOO_FEW: &str = "io.commonhold.TooFewTickets";
    pub(crate) const TOO_MANY: &str = "io.commonhold.TooManyTickets";
    pub(crate) const NOT_SIBLINGS: &str = "io.commonhold.NotSiblings";
    pub(crate) const SAME_UNIT: &str = "io.commonhold.SameUnit";
    pub(crate) const LENT: &str = "io.commonhold.TicketsLent";
    pub(crate) const NOT_RESERVED: &str = "io.commonhold.NotReserved";
    pub(crate) const LOOP: &str = "io.commonhold.Loop";
    pub(crate) const NO_EXCHANGE: &str = "io.commonhold.NoExchange";
    pub(crate) const TOO_MANY_OFFERS: &str = "io.commonhold.TooManyOffers";
    pub(crate) const NO_OFFER: &str = "io.commonhold.NoSuchOffer";
    pub(crate) const INVALID: &str = "org.varlink.service.InvalidParameter";
    pub(crate) const NO_SUCH_METHOD: &str = "org.varlink.service.MethodNotFound";
    pub(crate) const FAILED: &str = "io.commonhold.Failed";
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StatusReply {
    /// What holds CPU now.
    pub(crate) backend: String,
    /// The backend that it stands in for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instead: Option<Instead>,
    pub(crate) contract: String,
    /// What holds each resource, or why nothing does.
    #[serde(default)]
    pub(crate) holdings: Vec<Holding>,
    pub(crate) statement: Statement,
    /// What the scheduler in the kernel counted; empty where it is not the project's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) switches: Vec<UnitSwitches>,
    /// Tickets that are not those of the contract.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tickets: Vec<Tickets>,
    /// Tickets that units will have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) expected_tickets: Vec<Expected>,
    /// What could not be done so far, newest last.
    pub(crate) problems: Vec<String>,
}

/// A backend that is to hold CPU and does not: which, how long it has not, and why.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Instead {
    pub(crate) of: String,
    pub(crate) for_ns: u64,
    pub(crate) why: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WhereReply {
    pub(crate) unit: String,
    pub(crate) rule: String,
    /// Why the unit's control group does not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outside: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EnterReply {
    /// Why the unit's control group does not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outside: Option<String>,
}

/// The answer to `Tickets`: of every unit, by resource. To `Change`: of each unit that was named, and each resource.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TicketsReply {
    /// To an offer: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) offer: Option<u64>,
    /// To an offer that was served at once: the number of the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exchange: Option<u64>,
    pub(crate) tickets: Vec<Tickets>,
    /// To `Tickets`: tickets that units will have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) expected: Vec<Expected>,
    /// Of the resources that nothing holds: why. Their tickets have no effect now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_held: Vec<Holding>,
}

/// The answer to `Offers`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OffersReply {
    pub(crate) offers: Vec<Standing>,
    /// Those in force, and the last ones that ended.
    pub(crate) exchanges: Vec<Exchange>,
    /// How long the accounts have been open: the times of exchanges count from their beginning.
    pub(crate) elapsed_ns: u64,
}

/// Sends a message.
pub(crate) fn send(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(0);
    stream.write_all(&bytes)
}

/// Waits for a message; `None` if the other side hung up before one was complete.
pub(crate) fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = match stream.read(&mut chunk) {
            // A client that enters a unit whose turn it is not is stopped and continued while it waits.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk[..n]);
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            bytes.truncate(end);
            return Ok(Some(bytes));
        }
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end"));
        }
    }
}
