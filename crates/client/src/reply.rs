//! The daemon's replies. Unknown keys, which a later daemon may add, are ignored.

use serde::Deserialize;

use crate::wire::Resource;

/// A unit's tickets of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Tickets {
    /// The unit's path.
    pub unit: String,
    /// The resource.
    pub resource: Resource,
    /// The unit's tickets by the contract.
    pub contract: u64,
    /// The unit's tickets now.
    pub tickets: u64,
    /// The part of the unit's own tickets that it lends in exchanges.
    #[serde(default)]
    pub lent: u64,
    /// The number of tickets that the unit borrows in exchanges.
    #[serde(default)]
    pub got: u64,
    /// The worth of the unit's tickets: millionths of a CPU, bytes of memory, or millionths of each disk or
    /// of the bus.
    pub entitled: u64,
    /// Whether the unit's tickets count now: the unit has processes, or the scheme reserves its share.
    pub active: bool,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Changed {
    /// The number of the offer that was made, if any.
    #[serde(default)]
    pub(crate) offer: Option<u64>,
    /// The number of the exchange that served the offer at once, if any.
    #[serde(default)]
    pub(crate) exchange: Option<u64>,
    /// The present tickets of the units concerned.
    pub(crate) tickets: Vec<Tickets>,
}

/// An offer that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The offer's number.
    pub number: u64,
    /// The number of the exchange that served the offer at once; `None`: the offer is not served yet.
    pub exchange: Option<u64>,
}

/// Open offers, and exchanges: those in force, and the last ones that ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Offers {
    /// Open offers.
    pub offers: Vec<Standing>,
    /// Exchanges.
    pub exchanges: Vec<Exchange>,
    /// The present time on the clock of exchanges: ns since the accounts were opened.
    pub elapsed_ns: u64,
}

/// An open offer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Standing {
    /// The offer's number.
    pub number: u64,
    /// The path of the unit that makes the offer.
    pub unit: String,
    /// The tickets that the unit gives, such as `disk:300`.
    pub gives: String,
    /// The tickets that the unit wants in exchange.
    pub wants: String,
    /// The minimum that the unit accepts of `wants`.
    #[serde(default)]
    pub at_least: Option<String>,
    /// The path of the only unit that may serve the offer.
    #[serde(default)]
    pub with: Option<String>,
    /// The longest duration of an exchange, in ns.
    #[serde(default)]
    pub for_ns: Option<u64>,
    /// Why the offer is not served: the unit lacks something, or no other offer matches.
    #[serde(default)]
    pub waits: Option<String>,
}

/// An exchange. Times are in ns since the accounts were opened.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Exchange {
    /// The exchange's number.
    pub number: u64,
    /// The loans of the units that take part.
    pub lent: Vec<Lent>,
    /// When the exchange began.
    pub began_ns: u64,
    /// The time at which the exchange ends at the latest; `None`: no such time is set.
    #[serde(default)]
    pub until_ns: Option<u64>,
    /// When the exchange ended; `None`: it is in force.
    #[serde(default)]
    pub ended_ns: Option<u64>,
    /// Why the exchange ended: `over`, `ended`, `gone` or `too-few`.
    #[serde(default)]
    pub why: Option<String>,
}

/// A loan of tickets from one unit to another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lent {
    /// The path of the lender.
    pub from: String,
    /// The path of the borrower.
    pub to: String,
    /// The tickets lent, such as `disk:300`.
    pub what: String,
    /// The path of the unit whose currency issues the tickets; only given if the borrower is in another
    /// currency.
    #[serde(default)]
    pub of: Option<String>,
}

/// The outcome of waiting for an offer or an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Awaited {
    /// The number of the offer or exchange.
    pub number: u64,
    /// The state of the offer or exchange.
    pub state: State,
    /// The exchange that served an offer.
    #[serde(default)]
    pub exchange: Option<u64>,
    /// Why an exchange ended: `over`, `ended`, `gone` or `too-few`.
    #[serde(default)]
    pub why: Option<String>,
}

/// The state of an offer or an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The offer is open: it is not served yet.
    Stands,
    /// An exchange served the offer.
    Served,
    /// The offer was withdrawn, or its unit is gone.
    Withdrawn,
    /// The exchange is in force.
    InForce,
    /// The exchange has ended.
    Ended,
}
