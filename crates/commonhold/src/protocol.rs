//! What the daemon answers. The messages themselves, and how they are sent, are those of [`commonhold_client::wire`].

use commonhold_client::wire;
use commonhold_contract::{PerResource, Resource};
use commonhold_ledger::{Exchange, Negotiated, Statement};
use commonhold_policy::rights::{Ending, How};
use commonhold_report::exchanges::Standing;
use commonhold_report::holdings::Holding;
use commonhold_report::switches::UnitSwitches;
use commonhold_report::tickets::{Expected, Lot, Tickets};
use serde::{Deserialize, Serialize};

/// A resource as messages name it.
pub(crate) fn to_wire(resource: Resource) -> wire::Resource {
    match resource {
        Resource::Cpu => wire::Resource::Cpu,
        Resource::Memory => wire::Resource::Memory,
        Resource::Disk => wire::Resource::Disk,
        Resource::Bus => wire::Resource::Bus,
    }
}

/// The resource that a message names.
pub(crate) fn of_wire(resource: wire::Resource) -> Resource {
    match resource {
        wire::Resource::Cpu => Resource::Cpu,
        wire::Resource::Memory => Resource::Memory,
        wire::Resource::Disk => Resource::Disk,
        wire::Resource::Bus => Resource::Bus,
    }
}

/// Numbers by resource, as messages have them.
pub(crate) fn numbers_to_wire(numbers: PerResource<Option<u64>>) -> wire::Numbers {
    let PerResource { cpu, memory, disk, bus } = numbers;
    wire::Numbers { cpu, memory, disk, bus }
}

/// The numbers by resource that a message has.
pub(crate) fn numbers_of_wire(numbers: wire::Numbers) -> PerResource<Option<u64>> {
    let wire::Numbers { cpu, memory, disk, bus } = numbers;
    PerResource { cpu, memory, disk, bus }
}

/// What the numbers mean, as messages have it.
pub(crate) fn how_to_wire(how: How) -> wire::How {
    match how {
        How::Set => wire::How::Set,
        How::Issue => wire::How::Issue,
        How::TakeBack => wire::How::TakeBack,
    }
}

/// What the numbers of a message mean.
pub(crate) fn how_of_wire(how: wire::How) -> How {
    match how {
        wire::How::Set => How::Set,
        wire::How::Issue => How::Issue,
        wire::How::TakeBack => How::TakeBack,
    }
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
    /// The daemon's own loop.
    #[serde(default)]
    pub(crate) daemon: PaceReply,
    /// What the scheduler in the kernel counted; empty where it is not the project's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) switches: Vec<UnitSwitches>,
    /// Tickets that are not those of the contract.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tickets: Vec<Tickets>,
    /// Tickets that units will have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) expected_tickets: Vec<Expected>,
    /// What units hold of currencies beside what these issue in their own names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lots: Vec<Lot>,
    /// What could not be done so far, newest last.
    pub(crate) problems: Vec<String>,
}

/// How evenly the daemon's loop turns, and what it costs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PaceReply {
    /// Turns since it began.
    pub(crate) turns: u64,
    /// The longest time from the beginning of a turn to that of the next, without the first one.
    pub(crate) longest_gap_ns: u64,
    /// CPU time that it has used.
    pub(crate) cpu_ns: u64,
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
    /// What units hold of currencies beside what these issue in their own names; to `Change`: those that it names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lots: Vec<Lot>,
    /// Of the resources that nothing holds: why. Their tickets have no effect now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_held: Vec<Holding>,
}

/// The answer to `AsContract`: a contract's text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ContractReply {
    pub(crate) contract: String,
}

/// The answer to `Offers`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OffersReply {
    pub(crate) offers: Vec<Standing>,
    /// Those in force, and the last ones that ended.
    pub(crate) exchanges: Vec<Exchange>,
    /// What negotiating came to for each unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) negotiated: Vec<Negotiated>,
    /// How long the accounts have been open: the times of exchanges count from their beginning.
    pub(crate) elapsed_ns: u64,
}

/// The answer to `Await`.
#[derive(Debug, Serialize)]
pub(crate) struct AwaitReply {
    pub(crate) number: u64,
    #[serde(flatten)]
    pub(crate) state: Awaited,
}

/// What became of an offer or an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(crate) enum Awaited {
    /// The offer waits to be served.
    Stands,
    /// An exchange served it.
    Served { exchange: u64 },
    /// It was taken back, or its unit is gone.
    Withdrawn,
    /// The exchange goes on.
    InForce,
    /// It is over.
    Ended { why: Ending },
}
