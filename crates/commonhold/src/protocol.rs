//! The daemon's replies. Requests and framing are in [`commonhold_client::wire`].

use commonhold_client::wire;
use commonhold_contract::{PerResource, Resource};
use commonhold_ledger::{Exchange, Negotiated, Statement};
use commonhold_policy::rights::{Ending, How};
use commonhold_report::exchanges::Standing;
use commonhold_report::holdings::Holding;
use commonhold_report::switches::UnitSwitches;
use commonhold_report::tickets::{Expected, Lot, Tickets};
use serde::{Deserialize, Serialize};

/// Converts a resource for messages.
pub(crate) fn to_wire(resource: Resource) -> wire::Resource {
    match resource {
        Resource::Cpu => wire::Resource::Cpu,
        Resource::Memory => wire::Resource::Memory,
        Resource::Disk => wire::Resource::Disk,
        Resource::Bus => wire::Resource::Bus,
    }
}

/// Converts a resource from messages.
pub(crate) fn of_wire(resource: wire::Resource) -> Resource {
    match resource {
        wire::Resource::Cpu => Resource::Cpu,
        wire::Resource::Memory => Resource::Memory,
        wire::Resource::Disk => Resource::Disk,
        wire::Resource::Bus => Resource::Bus,
    }
}

/// Converts numbers by resource for messages.
pub(crate) fn numbers_to_wire(numbers: PerResource<Option<u64>>) -> wire::Numbers {
    let PerResource { cpu, memory, disk, bus } = numbers;
    wire::Numbers { cpu, memory, disk, bus }
}

/// Converts numbers by resource from messages.
pub(crate) fn numbers_of_wire(numbers: wire::Numbers) -> PerResource<Option<u64>> {
    let wire::Numbers { cpu, memory, disk, bus } = numbers;
    PerResource { cpu, memory, disk, bus }
}

/// Converts the kind of a change (see [`How`]) for messages.
pub(crate) fn how_to_wire(how: How) -> wire::How {
    match how {
        How::Set => wire::How::Set,
        How::Issue => wire::How::Issue,
        How::TakeBack => wire::How::TakeBack,
    }
}

/// Converts the kind of a change from messages.
pub(crate) fn how_of_wire(how: wire::How) -> How {
    match how {
        wire::How::Set => How::Set,
        wire::How::Issue => How::Issue,
        wire::How::TakeBack => How::TakeBack,
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StatusReply {
    /// The active backend.
    pub(crate) backend: String,
    /// The preferred backend, if `backend` is a fallback that is active in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instead: Option<Instead>,
    pub(crate) contract: String,
    /// The holding of each resource.
    #[serde(default)]
    pub(crate) holdings: Vec<Holding>,
    pub(crate) statement: Statement,
    /// Statistics of the daemon's loop.
    #[serde(default)]
    pub(crate) daemon: PaceReply,
    /// The kernel scheduler's counters; empty without the project's own scheduler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) switches: Vec<UnitSwitches>,
    /// The tickets of units whose number differs from the contract's, or who take part in an exchange.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tickets: Vec<Tickets>,
    /// Tickets that units will have once a queued or waiting change takes effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) expected_tickets: Vec<Expected>,
    /// The lots of units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lots: Vec<Lot>,
    /// Problems so far, newest last.
    pub(crate) problems: Vec<String>,
}

/// The regularity and the cost of the daemon's loop.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PaceReply {
    /// Turns since the daemon started.
    pub(crate) turns: u64,
    /// The longest time between the starts of two consecutive turns; the time after the first turn is not
    /// counted.
    pub(crate) longest_gap_ns: u64,
    /// CPU time that the daemon has used.
    pub(crate) cpu_ns: u64,
}

/// The preferred backend while a fallback is active in its place.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Instead {
    /// The preferred backend's name.
    pub(crate) of: String,
    /// How long the fallback has been active.
    pub(crate) for_ns: u64,
    /// Why the preferred backend is not active.
    pub(crate) why: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WhereReply {
    pub(crate) unit: String,
    pub(crate) rule: String,
    /// The reason why the unit's control group does not contain the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outside: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EnterReply {
    /// The reason why the unit's control group does not contain the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outside: Option<String>,
}

/// The reply to `Tickets` and to `Change`. The reply to `Tickets` lists the tickets of every unit and
/// resource, the reply to `Change` only the tickets that the change affected.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TicketsReply {
    /// In reply to an offer: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) offer: Option<u64>,
    /// In reply to an offer that was served at once: the number of the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exchange: Option<u64>,
    pub(crate) tickets: Vec<Tickets>,
    /// In reply to `Tickets`: tickets that units will have once a queued or waiting change takes effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) expected: Vec<Expected>,
    /// The lots of units; in the reply to `Change`: the lots of the affected units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lots: Vec<Lot>,
    /// The resources that are not held on this machine, with reasons. Their tickets have no effect now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_held: Vec<Holding>,
}

/// The reply to `AsContract`: a contract's text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ContractReply {
    pub(crate) contract: String,
}

/// The reply to `Offers`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OffersReply {
    pub(crate) offers: Vec<Standing>,
    /// The exchanges in force, and the hundred that ended last.
    pub(crate) exchanges: Vec<Exchange>,
    /// The results of negotiation by unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) negotiated: Vec<Negotiated>,
    /// The time since the accounts were opened, to which the times of exchanges refer.
    pub(crate) elapsed_ns: u64,
}

/// The reply to `Await`.
#[derive(Debug, Serialize)]
pub(crate) struct AwaitReply {
    pub(crate) number: u64,
    #[serde(flatten)]
    pub(crate) state: Awaited,
}

/// The state of an offer or an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(crate) enum Awaited {
    /// The offer is open: no exchange has served it yet.
    Stands,
    /// An exchange served the offer.
    Served { exchange: u64 },
    /// The offer was taken back, or the contract no longer has its unit.
    Withdrawn,
    /// The exchange is in force.
    InForce,
    /// The exchange has ended.
    Ended { why: Ending },
}
