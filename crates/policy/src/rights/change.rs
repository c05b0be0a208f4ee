//! The changes of rights that may be made while a contract is in force, and the reasons for refusing a
//! change.
//!
//! The path of a change, from a client to the plan that makes it:
//!
//! 1. The daemon reads a request (`Call::Change`) from the socket: `commonhold/src/daemon/mod.rs`,
//!    `Daemon::change_rights`.
//! 2. `tickets::queue` (`daemon/tickets.rs`) resolves unit names and checks whether the caller may make the
//!    change.
//! 3. `Session::queue_change` (`daemon/session.rs`) appends the change to the queue by
//!    `Steward::queue_change`, and writes the rights as they will be to the daemon's directory. If the write
//!    fails, the change leaves the queue, and the request fails.
//! 4. The daemon forces a turn of the loop. `Steward::turn` passes the queue to the policy as
//!    [`Input::changes`](crate::Input::changes).
//! 5. `policy::step` calls [`Rights::apply`](super::Rights::apply) for each change, in order, and records the
//!    change in `plan.decisions.rights`, with the reason if it is refused. If the checker rejects the plan,
//!    the queue stays as it was.
//! 6. `tickets::outcome` finds the change in the last turn's decisions and answers the client.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use commonhold_contract::quantity::{amount, amount_text};
use commonhold_contract::{Amount, MILLIONTH, PerResource, Resource, UnitId};

use super::trade::{OFFERS_MAX, OFFERS_OF_UNIT_MAX};
use super::{Bid, Resumed, TICKETS_MAX};
use crate::time::Time;

/// A change of rights. Unless a variant says otherwise, the tickets that it changes are soft tickets of one
/// resource, in the currency of the unit's encloser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Set the number of tickets that a unit has: 1 to [`TICKETS_MAX`].
    Set {
        /// The unit.
        unit: UnitId,
        /// The resource.
        resource: Resource,
        /// The new number.
        tickets: u64,
    },
    /// The encloser issues more tickets to a unit, which devalues the tickets of the unit's siblings
    /// (inflation).
    Issue {
        /// The unit.
        unit: UnitId,
        /// The resource.
        resource: Resource,
        /// How many more.
        tickets: u64,
    },
    /// The encloser revokes some of a unit's tickets (deflation).
    TakeBack {
        /// The unit.
        unit: UnitId,
        /// The resource.
        resource: Resource,
        /// How many fewer.
        tickets: u64,
    },
    /// Change a unit's tickets of several resources atomically.
    Several {
        /// The unit.
        unit: UnitId,
        /// How the numbers are meant.
        how: How,
        /// The numbers; `None` for a resource that does not change.
        tickets: PerResource<Option<u64>>,
    },
    /// A unit gives tickets to a sibling.
    Transfer {
        /// The unit that gives.
        from: UnitId,
        /// The unit that receives the tickets.
        to: UnitId,
        /// The resource.
        resource: Resource,
        /// How many.
        tickets: u64,
    },
    /// Two siblings give each other tickets, usually of different resources, atomically and for good (seed
    /// 004, section 5.5). The temporary exchanges come from [`Change::Offer`].
    Exchange {
        /// One of the two units.
        one: UnitId,
        /// The other unit.
        other: UnitId,
        /// The amount that `one` gives.
        gives: Offer,
        /// The amount that `other` gives in return.
        gets: Offer,
    },
    /// Set how many tickets of a foreign currency (not its encloser's) a unit holds beside its own tickets: 0
    /// to [`TICKETS_MAX`] for each resource named, atomically. The tickets are newly issued, which devalues
    /// the currency's other tickets. No unit outside the currency is affected, except the holder. If `of` is
    /// the unit's encloser, the change equals [`Change::Several`] with [`How::Set`].
    Fund {
        /// The unit.
        unit: UnitId,
        /// The unit that issues the tickets; `None`: the base currency.
        of: Option<UnitId>,
        /// The number that the unit holds by changes of this kind from now on. Tickets borrowed in exchanges
        /// come on top.
        tickets: PerResource<Option<u64>>,
    },
    /// A unit offers an exchange. The offer is served as soon as offers of other units match
    /// ([`super::Trade`]).
    Offer {
        /// The offer.
        bid: Bid,
    },
    /// Withdraw an offer, or end an exchange.
    Cancel {
        /// The number of the offer or exchange.
        number: u64,
    },
    /// Restore an offer or an exchange of an earlier daemon.
    Resume {
        /// The number that it had under the earlier daemon.
        number: u64,
        /// The offer or exchange.
        what: Resumed,
        /// The time now.
        at: Time,
    },
}

impl Change {
    /// The units and resources whose tickets the change affects, without duplicates, in the order in which
    /// the change names them. Empty for changes of offers and exchanges.
    pub fn about(&self) -> Vec<(UnitId, Resource)> {
        match *self {
            Change::Set { unit, resource, .. }
            | Change::Issue { unit, resource, .. }
            | Change::TakeBack { unit, resource, .. } => vec![(unit, resource)],
            Change::Several { unit, tickets, .. } | Change::Fund { unit, tickets, .. } => {
                let named = Resource::ALL.into_iter().filter(|resource| tickets[*resource].is_some());
                named.map(|resource| (unit, resource)).collect()
            }
            Change::Transfer { from, to, resource, .. } => vec![(from, resource), (to, resource)],
            Change::Exchange { one, other, gives, gets } => {
                let mut resources = vec![gives.resource, gets.resource];
                resources.dedup();
                let all_of = |unit| resources.iter().map(move |resource| (unit, *resource));
                all_of(one).chain(all_of(other)).collect()
            }
            Change::Offer { .. } | Change::Cancel { .. } | Change::Resume { .. } => Vec::new(),
        }
    }
}

/// How the numbers of a [`Change::Several`] are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// The new number, as in [`Change::Set`].
    Set,
    /// Tickets to add, as in [`Change::Issue`].
    Issue,
    /// Tickets to remove, as in [`Change::TakeBack`].
    TakeBack,
}

/// An amount of a resource that a unit gives or wants: one side of an offer of an exchange ([`Bid`]). In text
/// and in JSON, `disk:300` means 300 soft tickets; `memory:2GiB`, `cpu:25%` and `cpu:1.5cpus` are parts of a
/// reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Offer {
    /// The resource.
    pub resource: Resource,
    /// The amount.
    pub stake: Stake,
}

/// Soft tickets, or a part of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stake {
    /// A number of soft tickets, in the currency of the unit's encloser.
    Tickets(u64),
    /// A part of a hard reservation, stated in the resource's own measure or as a fraction of the encloser's
    /// value.
    Hard(Amount),
}

impl Offer {
    /// Whether the amount is zero.
    pub const fn is_nothing(self) -> bool {
        matches!(self.stake, Stake::Tickets(0) | Stake::Hard(Amount::Part(0) | Amount::Absolute(0)))
    }

    /// A number of soft tickets.
    pub const fn tickets(resource: Resource, tickets: u64) -> Offer {
        Offer { resource, stake: Stake::Tickets(tickets) }
    }

    /// A part of a reservation.
    pub const fn hard(resource: Resource, amount: Amount) -> Offer {
        Offer { resource, stake: Stake::Hard(amount) }
    }
}

/// A text does not parse as an [`Offer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "write cpu, memory, disk or bus, a colon, and 1 to {TICKETS_MAX} tickets, such as disk:300, or a part of a \
     reservation, such as memory:2GiB, cpu:1.5cpus or disk:10%"
)]
pub struct NoOffer;

/// The suffix of an amount of CPUs. In an offer, a bare number means tickets; in a contract it means CPUs.
const CPUS: &str = "cpus";

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.resource.name())?;
        match self.stake {
            Stake::Tickets(tickets) => write!(f, "{tickets}"),
            Stake::Hard(amount) => {
                f.write_str(&amount_text(self.resource, amount))?;
                let is_cpus = self.resource == Resource::Cpu && matches!(amount, Amount::Absolute(_));
                f.write_str(if is_cpus { CPUS } else { "" })
            }
        }
    }
}

impl FromStr for Offer {
    type Err = NoOffer;

    fn from_str(text: &str) -> Result<Offer, NoOffer> {
        let (word, quantity) = text.split_once(':').ok_or(NoOffer)?;
        let resource = Resource::ALL.into_iter().find(|resource| resource.name() == word).ok_or(NoOffer)?;
        if !quantity.is_empty() && quantity.bytes().all(|byte| byte.is_ascii_digit()) {
            let tickets = quantity.parse().ok().filter(|tickets| (1..=TICKETS_MAX).contains(tickets));
            return Ok(Offer::tickets(resource, tickets.ok_or(NoOffer)?));
        }
        let cpus = quantity.strip_suffix(CPUS).or_else(|| quantity.strip_suffix("cpu"));
        let number = match (resource, cpus) {
            (Resource::Cpu, Some(cpus)) => cpus,
            (Resource::Cpu, None) if !quantity.ends_with('%') => return Err(NoOffer),
            _ => quantity,
        };
        match amount(number, resource) {
            Ok(amount) if amount.of(MILLIONTH) > 0 => Ok(Offer::hard(resource, amount)),
            _ => Err(NoOffer),
        }
    }
}

impl TryFrom<String> for Offer {
    type Error = NoOffer;

    fn try_from(text: String) -> Result<Offer, NoOffer> {
        text.parse()
    }
}

impl From<Offer> for String {
    fn from(offer: Offer) -> String {
        offer.to_string()
    }
}

/// Why a change was refused. A refused change has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refused {
    /// The contract has no such unit, or the unit holds no tickets (`kernel` and `shared`).
    #[error("unit {} holds no tickets", .unit.0)]
    Unknown {
        /// The unit.
        unit: UnitId,
    },
    /// A unit must keep at least one ticket.
    #[error("unit {} has {has} {resource} tickets: {fewer} fewer would leave it none", .unit.0)]
    TooFew {
        /// The unit.
        unit: UnitId,
        /// The resource.
        resource: Resource,
        /// The tickets that it has.
        has: u64,
        /// The number to be removed.
        fewer: u64,
    },
    /// A unit would have more than [`TICKETS_MAX`] tickets.
    #[error("unit {} has {has} {resource} tickets: {more} more would exceed {TICKETS_MAX}", .unit.0)]
    TooMany {
        /// The unit.
        unit: UnitId,
        /// The resource.
        resource: Resource,
        /// The tickets that it has.
        has: u64,
        /// The number to be added.
        more: u64,
    },
    /// The units are in different enclosers. Their tickets are of different currencies, with no fixed
    /// exchange rate: a transfer would change the value of every unit on the way between the two.
    #[error("units {} and {} are in different enclosers, whose tickets are not comparable", .from.0, .to.0)]
    Enclosers {
        /// The giver.
        from: UnitId,
        /// The receiver.
        to: UnitId,
    },
    /// The unit must keep more tickets than it has lent in exchanges.
    #[error(
        "unit {} has {has} {resource} tickets, {lent} of them lent in exchanges: it must keep one more than it lent",
        .unit.0
    )]
    Lent {
        /// The unit.
        unit: UnitId,
        /// The resource.
        resource: Resource,
        /// The tickets that it has.
        has: u64,
        /// The part of these tickets that it lends.
        lent: u64,
    },
    /// An invalid offer: it must give and want positive amounts of different resources, and its minimum must
    /// be of the wanted resource and at most the wanted amount.
    #[error(
        "unit {} makes an invalid offer: it must give and want at least one ticket each of different resources, and its \
         minimum must be of the wanted resource and no more than wanted", .unit.0
    )]
    NoExchange {
        /// The unit.
        unit: UnitId,
    },
    /// The unit would lend more than it has reserved.
    #[error("unit {} has less of {resource} reserved than it would lend", .unit.0)]
    NotReserved {
        /// The unit.
        unit: UnitId,
        /// The resource.
        resource: Resource,
        /// The part of its reservation that it does not lend yet; `None` if it lends all, or has no
        /// reservation.
        left: Option<Offer>,
    },
    /// Giving away this reserved memory would leave the unit, or a unit around it, with less reserved memory
    /// than it uses.
    #[error("unit {} uses {used} bytes of memory, and {reserved} are reserved for it: it can give {most} at most", .unit.0)]
    InUse {
        /// The unit.
        unit: UnitId,
        /// Memory in use by the unit and its sub-units that cannot be dropped at once, in bytes.
        used: u64,
        /// Bytes reserved for it now.
        reserved: u64,
        /// Bytes that it can give now.
        most: u64,
    },
    /// Currencies would form a cycle: the unit would hold tickets of its own currency, or of one whose value
    /// depends on the unit's tickets.
    #[error("the value of unit {} would depend on its own tickets", .unit.0)]
    Loop {
        /// The unit.
        unit: UnitId,
    },
    /// The limit on open offers is reached.
    #[error("the limit of {OFFERS_MAX} open offers is reached")]
    TooManyOffers,
    /// The limit on a unit's open offers is reached.
    #[error("unit {} has the maximum of {OFFERS_OF_UNIT_MAX} open offers", .unit.0)]
    TooManyOffersOfUnit {
        /// The unit.
        unit: UnitId,
    },
    /// No open offer and no exchange in force has this number.
    #[error("no offer or exchange has number {number}")]
    NoOffer {
        /// The number.
        number: u64,
    },
    /// Another offer or exchange has this number.
    #[error("number {number} is taken")]
    NumberTaken {
        /// The number.
        number: u64,
    },
    /// Giver and receiver are the same unit.
    #[error("unit {} cannot give tickets to itself", .unit.0)]
    Itself {
        /// The unit.
        unit: UnitId,
    },
}
