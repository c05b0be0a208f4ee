//! What may be changed while a contract is in force, and why a change is refused.

use alloc::vec;
use alloc::vec::Vec;
use core::str::FromStr;

use commonhold_contract::{PerResource, Resource, UnitId};

use super::trade::OFFERS_MAX;
use super::{Bid, TICKETS_MAX};

/// A change of soft tickets. They are counted in the currency of the encloser, for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A unit has so many from now on: 1 to [`TICKETS_MAX`].
    Set {
        /// The unit.
        unit: UnitId,
        /// Of what.
        resource: Resource,
        /// All that it has then.
        tickets: u64,
    },
    /// The encloser issues more to a unit. Each of the siblings' tickets is worth less then.
    Issue {
        /// The unit.
        unit: UnitId,
        /// Of what.
        resource: Resource,
        /// How many more.
        tickets: u64,
    },
    /// The encloser takes some back from a unit.
    TakeBack {
        /// The unit.
        unit: UnitId,
        /// Of what.
        resource: Resource,
        /// How many fewer.
        tickets: u64,
    },
    /// A unit's tickets of several resources at once: all or none.
    Several {
        /// The unit.
        unit: UnitId,
        /// What the numbers mean.
        how: How,
        /// The numbers; nothing of a resource whose tickets stay what they are.
        tickets: PerResource<Option<u64>>,
    },
    /// A unit gives some to a sibling.
    Transfer {
        /// The unit that gives.
        from: UnitId,
        /// The unit that is given.
        to: UnitId,
        /// Of what.
        resource: Resource,
        /// How many.
        tickets: u64,
    },
    /// Two siblings give each other some, usually of different resources: both or neither (seed 004, section 5.5).
    Exchange {
        /// One of them.
        one: UnitId,
        /// The other.
        other: UnitId,
        /// What the one gives.
        gives: Offer,
        /// What the other gives for it.
        gets: Offer,
    },
    /// A unit offers tickets for those of others. It is served as soon as offers of others fit it ([`super::Trade`]).
    Offer {
        /// What it offers.
        bid: Bid,
    },
    /// An offer is taken back, or an exchange ended.
    Cancel {
        /// Its number.
        number: u64,
    },
}

impl Change {
    /// Whose tickets it changes, of what: each once, in the order in which it names them. None of an offer: it changes nothing
    /// until it is served.
    pub fn about(&self) -> Vec<(UnitId, Resource)> {
        match *self {
            Change::Set { unit, resource, .. }
            | Change::Issue { unit, resource, .. }
            | Change::TakeBack { unit, resource, .. } => vec![(unit, resource)],
            Change::Several { unit, tickets, .. } => {
                let named = Resource::ALL.into_iter().filter(|resource| tickets[*resource].is_some());
                named.map(|resource| (unit, resource)).collect()
            }
            Change::Transfer { from, to, resource, .. } => vec![(from, resource), (to, resource)],
            Change::Exchange { one, other, gives, gets } => {
                let mut resources = vec![gives.resource, gets.resource];
                resources.dedup();
                let of = |unit| resources.iter().map(move |resource| (unit, *resource));
                of(one).chain(of(other)).collect()
            }
            Change::Offer { .. } | Change::Cancel { .. } => Vec::new(),
        }
    }
}

/// What the numbers of a [`Change::Several`] mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// All that the unit has then, as in [`Change::Set`].
    Set,
    /// How many more, as in [`Change::Issue`].
    Issue,
    /// How many fewer, as in [`Change::TakeBack`].
    TakeBack,
}

/// So many tickets of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Offer {
    /// Of what.
    pub resource: Resource,
    /// How many tickets.
    pub tickets: u64,
}

/// A text is no resource with tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write cpu, memory, disk or bus, a colon, and 1 to {TICKETS_MAX}, such as disk:300")]
pub struct NoTickets;

/// Of `disk:300`: 1 to [`TICKETS_MAX`].
impl FromStr for Offer {
    type Err = NoTickets;

    fn from_str(text: &str) -> Result<Offer, NoTickets> {
        let (word, tickets) = text.split_once(':').ok_or(NoTickets)?;
        let resource = Resource::ALL.into_iter().find(|resource| resource.name() == word).ok_or(NoTickets)?;
        let tickets = tickets.parse().ok().filter(|tickets| (1..=TICKETS_MAX).contains(tickets));
        Ok(Offer { resource, tickets: tickets.ok_or(NoTickets)? })
    }
}

/// Why a change was refused. Nothing is changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refused {
    /// The contract has no unit of that number that holds tickets: `kernel` and `shared` hold none.
    #[error("unit {} holds no tickets", .unit.0)]
    Unknown {
        /// The unit that was named.
        unit: UnitId,
    },
    /// At least one ticket must be left.
    #[error("unit {} has {has} {resource} tickets: {fewer} fewer would leave it none", .unit.0)]
    TooFew {
        /// The unit that would have too few.
        unit: UnitId,
        /// Of what.
        resource: Resource,
        /// What it has.
        has: u64,
        /// How many fewer were asked for.
        fewer: u64,
    },
    /// No unit has more than [`TICKETS_MAX`].
    #[error("unit {} has {has} {resource} tickets: {more} more would exceed {TICKETS_MAX}", .unit.0)]
    TooMany {
        /// The unit that would have too many.
        unit: UnitId,
        /// Of what.
        resource: Resource,
        /// What it has.
        has: u64,
        /// How many more were asked for.
        more: u64,
    },
    /// Tickets of different currencies are worth different amounts. What one unit gave up could only be given to the
    /// other by a change in the value of all units on the way.
    #[error("units {} and {} have different enclosers, whose tickets are no common measure", .from.0, .to.0)]
    Enclosers {
        /// The unit that would give.
        from: UnitId,
        /// The unit that would be given.
        to: UnitId,
    },
    /// Of a unit's tickets so many are lent: it has to keep one more.
    #[error("unit {} has {has} {resource} tickets, of which {lent} are lent in exchanges: they cannot be fewer than one more", .unit.0)]
    Lent {
        /// The unit.
        unit: UnitId,
        /// Of what.
        resource: Resource,
        /// What it has.
        has: u64,
        /// What it lent.
        lent: u64,
    },
    /// An offer gives and wants tickets of different resources, one of each at least.
    #[error("unit {} offers no exchange: it gives and wants tickets of different resources, one of each at least", .unit.0)]
    NoExchange {
        /// The unit.
        unit: UnitId,
    },
    /// So many offers stand already.
    #[error("{OFFERS_MAX} offers stand already")]
    TooManyOffers,
    /// No offer that stands has that number, and no exchange in force.
    #[error("there is no offer and no exchange of number {number}")]
    NoOffer {
        /// The number.
        number: u64,
    },
    /// A unit cannot give to itself.
    #[error("unit {} cannot give tickets to itself", .unit.0)]
    Itself {
        /// The unit.
        unit: UnitId,
    },
}
