//! The replies to single requests, and conversions between the wire's types and the product's.

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
pub fn to_wire(resource: Resource) -> wire::Resource {
    match resource {
        Resource::Cpu => wire::Resource::Cpu,
        Resource::Memory => wire::Resource::Memory,
        Resource::Disk => wire::Resource::Disk,
        Resource::Bus => wire::Resource::Bus,
    }
}

/// Converts a resource from messages.
pub fn of_wire(resource: wire::Resource) -> Resource {
    match resource {
        wire::Resource::Cpu => Resource::Cpu,
        wire::Resource::Memory => Resource::Memory,
        wire::Resource::Disk => Resource::Disk,
        wire::Resource::Bus => Resource::Bus,
    }
}

/// Converts numbers by resource for messages.
pub fn numbers_to_wire(numbers: PerResource<Option<u64>>) -> wire::Numbers {
    let PerResource { cpu, memory, disk, bus } = numbers;
    wire::Numbers { cpu, memory, disk, bus }
}

/// Converts numbers by resource from messages.
pub fn numbers_of_wire(numbers: wire::Numbers) -> PerResource<Option<u64>> {
    let wire::Numbers { cpu, memory, disk, bus } = numbers;
    PerResource { cpu, memory, disk, bus }
}

/// Converts the kind of a change (see [`How`]) for messages.
pub fn how_to_wire(how: How) -> wire::How {
    match how {
        How::Set => wire::How::Set,
        How::Issue => wire::How::Issue,
        How::TakeBack => wire::How::TakeBack,
    }
}

/// Converts the kind of a change from messages.
pub fn how_of_wire(how: wire::How) -> How {
    match how {
        wire::How::Set => How::Set,
        wire::How::Issue => How::Issue,
        wire::How::TakeBack => How::TakeBack,
    }
}

/// The reply to `Status`: all accounts.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatusReply {
    /// The active backend.
    pub backend: String,
    /// The preferred backend, if `backend` is a fallback that is active in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Instead>,
    /// The file from which the contract in force was read.
    pub contract: String,
    /// The holding of each resource.
    #[serde(default)]
    pub holdings: Vec<Holding>,
    /// The ledger's accounts.
    pub statement: Statement,
    /// Statistics of the daemon's loop.
    #[serde(default)]
    pub daemon: PaceReply,
    /// The kernel scheduler's counters; empty without the project's own scheduler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<UnitSwitches>,
    /// The tickets of units whose number differs from the contract's, or who take part in an exchange.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tickets: Vec<Tickets>,
    /// Tickets that units will have once a queued or waiting change takes effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected_tickets: Vec<Expected>,
    /// The lots of units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lots: Vec<Lot>,
    /// Problems so far, newest last.
    pub problems: Vec<String>,
}

/// The regularity and the cost of the daemon's loop.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PaceReply {
    /// Turns since the daemon started.
    pub turns: u64,
    /// The longest time between the starts of two consecutive turns; the time after the first turn is not
    /// counted.
    pub longest_gap_ns: u64,
    /// CPU time that the daemon has used.
    pub cpu_ns: u64,
}

/// The preferred backend while a fallback is active in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instead {
    /// The preferred backend's name.
    pub of: String,
    /// How long the fallback has been active.
    pub for_ns: u64,
    /// Why the preferred backend is not active.
    pub why: String,
}

/// The reply to `Where`: a process's unit.
#[derive(Debug, Serialize, Deserialize)]
pub struct WhereReply {
    /// The unit's path.
    pub unit: String,
    /// The rule by which the process is in the unit, in words.
    pub rule: String,
    /// The reason why the unit's control group does not contain the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
}

/// The reply to `Members`: the processes in a unit that the caller may see, without those of sub-units.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MembersReply {
    /// Their numbers in ascending order, at most as many as requested.
    pub pids: Vec<u32>,
    /// The number of all of them.
    pub count: u32,
}

/// The reply to `GetInfo` of `org.varlink.service`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfoReply {
    /// Who makes the program.
    pub vendor: String,
    /// The program's name.
    pub product: String,
    /// The program's version.
    pub version: String,
    /// Where the protocol is documented.
    pub url: String,
    /// The names of the interfaces.
    pub interfaces: Vec<String>,
}

/// The reply to `GetInterfaceDescription` of `org.varlink.service`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptionReply {
    /// The interface in varlink's description language.
    pub description: String,
}

/// The reply to `Enter`.
#[derive(Debug, Serialize, Deserialize)]
pub struct EnterReply {
    /// The reason why the unit's control group does not contain the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
}

/// The reply to `Tickets` and to `Change`. The reply to `Tickets` lists the tickets of every unit and
/// resource, the reply to `Change` only the tickets that the change affected.
#[derive(Debug, Serialize, Deserialize)]
pub struct TicketsReply {
    /// In reply to an offer: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<u64>,
    /// In reply to an offer that was served at once: the number of the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<u64>,
    /// The present tickets.
    pub tickets: Vec<Tickets>,
    /// In reply to `Tickets`: tickets that units will have once a queued or waiting change takes effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<Expected>,
    /// The lots of units; in the reply to `Change`: the lots of the affected units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lots: Vec<Lot>,
    /// The resources that are not held on this machine, with reasons. Their tickets have no effect now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_held: Vec<Holding>,
}

/// The reply to `AsContract`: a contract's text.
#[derive(Debug, Serialize, Deserialize)]
pub struct ContractReply {
    /// The text, in the format of contract files.
    pub contract: String,
}

/// The reply to `Offers`.
#[derive(Debug, Serialize, Deserialize)]
pub struct OffersReply {
    /// The open offers.
    pub offers: Vec<Standing>,
    /// The exchanges in force, and the hundred that ended last.
    pub exchanges: Vec<Exchange>,
    /// The results of negotiation by unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negotiated: Vec<Negotiated>,
    /// The time since the accounts were opened, to which the times of exchanges refer.
    pub elapsed_ns: u64,
}

/// The reply to `Await`.
#[derive(Debug, Serialize)]
pub struct AwaitReply {
    /// The number of the offer or exchange.
    pub number: u64,
    /// Its state now.
    #[serde(flatten)]
    pub state: Awaited,
}

/// The state of an offer or an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Awaited {
    /// The offer is open: no exchange has served it yet.
    Stands,
    /// An exchange served the offer.
    Served {
        /// The number of that exchange.
        exchange: u64,
    },
    /// The offer was taken back, or the contract no longer has its unit.
    Withdrawn,
    /// The exchange is in force.
    InForce,
    /// The exchange has ended.
    Ended {
        /// Why it ended.
        why: Ending,
    },
}
