//! What the daemon answers. Keys that a later daemon adds are passed over.

use serde::Deserialize;

use crate::wire::Resource;

/// A unit's tickets of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Tickets {
    /// The unit's path.
    pub unit: String,
    /// Of what.
    pub resource: Resource,
    /// What the contract gives it.
    pub contract: u64,
    /// What it has now.
    pub tickets: u64,
    /// Of its own, what it lends in exchanges.
    #[serde(default)]
    pub lent: u64,
    /// What it has of others by exchanges.
    #[serde(default)]
    pub got: u64,
    /// What they are worth: millionths of a CPU, bytes of memory, or millionths of each disk or of the bus.
    pub entitled: u64,
    /// Whether they count now: the unit has processes, or the scheme keeps its part for it.
    pub active: bool,
}

/// What became of a change.
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

/// Offers that stand, and exchanges: those in force, and the last ones that ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Offers {
    /// Offers that stand.
    pub offers: Vec<Standing>,
    /// Exchanges.
    pub exchanges: Vec<Exchange>,
    /// How long the accounts have been open: the times of exchanges count from their beginning.
    pub elapsed_ns: u64,
}

/// An offer that stands.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Standing {
    /// Its number.
    pub number: u64,
    /// The path of the unit that makes it.
    pub unit: String,
    /// What it gives, such as `disk:300`.
    pub gives: String,
    /// What it wants for that.
    pub wants: String,
    /// The least of that which it takes.
    #[serde(default)]
    pub at_least: Option<String>,
    /// The path of the unit that alone may serve it.
    #[serde(default)]
    pub with: Option<String>,
    /// How long an exchange lasts at most, in ns.
    #[serde(default)]
    pub for_ns: Option<u64>,
    /// Why it waits: what its unit lacks, or what no other offer does.
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
    /// When it ended; nothing: it is in force.
    #[serde(default)]
    pub ended_ns: Option<u64>,
    /// Why it ended: `over`, `ended`, `gone` or `too-few`.
    #[serde(default)]
    pub why: Option<String>,
}

/// What a unit lends to another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lent {
    /// Whose it is.
    pub from: String,
    /// The unit that has it meanwhile.
    pub to: String,
    /// What it lends, such as `disk:300`.
    pub what: String,
    /// The path of the unit whose currency that is, where the other unit is in another one.
    #[serde(default)]
    pub of: Option<String>,
}

/// What became of an offer or an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Awaited {
    /// Its number.
    pub number: u64,
    /// What became of it.
    pub state: State,
    /// Of an offer that was served: the exchange that served it.
    #[serde(default)]
    pub exchange: Option<u64>,
    /// Of an exchange that ended: why. `over`, `ended`, `gone` or `too-few`.
    #[serde(default)]
    pub why: Option<String>,
}

/// Where an offer or an exchange is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The offer waits to be served.
    Stands,
    /// An exchange served the offer.
    Served,
    /// The offer was taken back, or its unit is gone.
    Withdrawn,
    /// The exchange goes on.
    InForce,
    /// The exchange is over.
    Ended,
}
