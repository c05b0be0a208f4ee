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
    /// Its tickets in the contract.
    pub contract: u64,
    /// Its tickets now.
    pub tickets: u64,
    /// Its own tickets that it lends in exchanges.
    #[serde(default)]
    pub lent: u64,
    /// Tickets of others that it has by exchanges.
    #[serde(default)]
    pub got: u64,
    /// Their worth: millionths of a CPU, bytes of memory, or millionths of each disk or of the bus.
    pub entitled: u64,
    /// Whether they count now: the unit has processes, or the scheme reserves its share.
    pub active: bool,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Changed {
    #[serde(default)]
    pub(crate) offer: Option<u64>,
    #[serde(default)]
    pub(crate) exchange: Option<u64>,
    pub(crate) tickets: Vec<Tickets>,
}

/// An offer that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its number.
    pub number: u64,
    /// The exchange that served it at once.
    pub exchange: Option<u64>,
}

/// Open offers, and exchanges: those in force, and the last ones that ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Offers {
    /// Open offers.
    pub offers: Vec<Standing>,
    /// Exchanges.
    pub exchanges: Vec<Exchange>,
    /// The time since the accounts were opened, which is 0 for the times of exchanges.
    pub elapsed_ns: u64,
}

/// An open offer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Standing {
    /// Its number.
    pub number: u64,
    /// The path of the unit that makes it.
    pub unit: String,
    /// What it gives, such as `disk:300`.
    pub gives: String,
    /// What it wants in return.
    pub wants: String,
    /// The least that it accepts of `wants`.
    #[serde(default)]
    pub at_least: Option<String>,
    /// The path of the only unit that may serve it.
    #[serde(default)]
    pub with: Option<String>,
    /// The longest duration of an exchange, in ns.
    #[serde(default)]
    pub for_ns: Option<u64>,
    /// Why it is not served: its unit lacks something, or no other offer matches.
    #[serde(default)]
    pub waits: Option<String>,
}

/// An exchange. Times are in ns since the accounts were opened.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Exchange {
    /// Its number.
    pub number: u64,
    /// What each of its units lends.
    pub lent: Vec<Lent>,
    /// When it began.
    pub began_ns: u64,
    /// When it ends by itself, or would have.
    #[serde(default)]
    pub until_ns: Option<u64>,
    /// When it ended; `None`: it is in force.
    #[serde(default)]
    pub ended_ns: Option<u64>,
    /// Why it ended: `over`, `ended`, `gone` or `too-few`.
    #[serde(default)]
    pub why: Option<String>,
}

/// What a unit lends to another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lent {
    /// The lender.
    pub from: String,
    /// The borrower.
    pub to: String,
    /// What it lends, such as `disk:300`.
    pub what: String,
    /// The path of the unit with that currency, if the borrower is in another currency.
    #[serde(default)]
    pub of: Option<String>,
}

/// The outcome of waiting for an offer or an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Awaited {
    /// Its number.
    pub number: u64,
    /// Its state.
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
    /// The offer waits to be served.
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
