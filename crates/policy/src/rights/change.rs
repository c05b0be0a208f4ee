//! What may be changed while a contract is in force, and why a change is refused.

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
    /// A unit holds so many tickets of another currency than its encloser's, beside its own: 0 to [`TICKETS_MAX`], for each
    /// resource that is named; all are changed or none. The currency issues them, so all others of it are worth less; nothing
    /// outside it changes but what the unit has. Of its encloser's currency: as [`Change::Several`] with [`How::Set`].
    Fund {
        /// The unit.
        unit: UnitId,
        /// The unit whose currency it is; `None`: the base currency.
        of: Option<UnitId>,
        /// All that it has of it then by this.
        tickets: PerResource<Option<u64>>,
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
    /// An offer stands again, or an exchange is in force again, that an earlier daemon had.
    Resume {
        /// The number that it had.
        number: u64,
        /// What it is.
        what: Resumed,
        /// When.
        at: Time,
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
            Change::Several { unit, tickets, .. } | Change::Fund { unit, tickets, .. } => {
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
            Change::Offer { .. } | Change::Cancel { .. } | Change::Resume { .. } => Vec::new(),
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

/// So much of a resource. As text, in messages too: `disk:300` is 300 soft tickets, `memory:2GiB` and `cpu:25%` are of a
/// reservation, and so is `cpu:1.5cpus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Offer {
    /// Of what.
    pub resource: Resource,
    /// How much.
    pub stake: Stake,
}

/// What is given or wanted of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stake {
    /// So many soft tickets, in the currency of the unit's encloser.
    Tickets(u64),
    /// So much of what is reserved (hard): in the resource's own measure, or a part of what the unit's encloser is worth.
    Hard(Amount),
}

impl Offer {
    /// Whether it is nothing.
    pub const fn is_nothing(self) -> bool {
        matches!(self.stake, Stake::Tickets(0) | Stake::Hard(Amount::Part(0) | Amount::Absolute(0)))
    }

    /// So many soft tickets.
    pub const fn tickets(resource: Resource, tickets: u64) -> Offer {
        Offer { resource, stake: Stake::Tickets(tickets) }
    }

    /// So much of a reservation.
    pub const fn hard(resource: Resource, amount: Amount) -> Offer {
        Offer { resource, stake: Stake::Hard(amount) }
    }
}

/// A text is no amount of a resource that can be offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "write cpu, memory, disk or bus, a colon, and 1 to {TICKETS_MAX} tickets, such as disk:300, or an amount of what is \
     reserved, such as memory:2GiB, cpu:1.5cpus or disk:10%"
)]
pub struct NoOffer;

/// The word that tells CPUs from tickets: in a contract a number without a unit is CPUs.
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
        let (word, much) = text.split_once(':').ok_or(NoOffer)?;
        let resource = Resource::ALL.into_iter().find(|resource| resource.name() == word).ok_or(NoOffer)?;
        if !much.is_empty() && much.bytes().all(|byte| byte.is_ascii_digit()) {
            let tickets = much.parse().ok().filter(|tickets| (1..=TICKETS_MAX).contains(tickets));
            return Ok(Offer::tickets(resource, tickets.ok_or(NoOffer)?));
        }
        let cpus = much.strip_suffix(CPUS).or_else(|| much.strip_suffix("cpu"));
        let much = match (resource, cpus) {
            (Resource::Cpu, Some(cpus)) => cpus,
            (Resource::Cpu, None) if !much.ends_with('%') => return Err(NoOffer),
            _ => much,
        };
        match amount(much, resource) {
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
    /// An offer gives and wants tickets of different resources, one of each at least. The least that it takes is of what it
    /// wants, and no more.
    #[error(
        "unit {} offers no exchange: it gives and wants tickets of different resources, one of each at least, and the least \
         that it takes is of what it wants, and no more", .unit.0
    )]
    NoExchange {
        /// The unit.
        unit: UnitId,
    },
    /// A unit lends no more of a reservation than it has.
    #[error("unit {} has less of {resource} reserved than it would lend", .unit.0)]
    NotReserved {
        /// The unit.
        unit: UnitId,
        /// Of what.
        resource: Resource,
        /// What it could lend, by the contract and what it lent before.
        left: Option<Offer>,
    },
    /// A unit gives no reserved memory away that it uses, and none that is used in a unit around it.
    #[error("unit {} uses {used} bytes of memory, and {reserved} are reserved for it: it can give {most} at most", .unit.0)]
    InUse {
        /// The unit.
        unit: UnitId,
        /// What it uses with its sub-units and cannot drop at once, in bytes.
        used: u64,
        /// What is reserved for it now.
        reserved: u64,
        /// What of that it can give now.
        most: u64,
    },
    /// What a unit is worth would follow from itself: it would hold tickets of its own currency, or of one that is worth
    /// something by its tickets.
    #[error("unit {} would be worth something by its own tickets", .unit.0)]
    Loop {
        /// The unit.
        unit: UnitId,
    },
    /// As many offers stand as may at one time.
    #[error("{OFFERS_MAX} offers stand already")]
    TooManyOffers,
    /// As many offers of a unit stand as may at one time.
    #[error("{OFFERS_OF_UNIT_MAX} offers of unit {} stand already", .unit.0)]
    TooManyOffersOfUnit {
        /// The unit.
        unit: UnitId,
    },
    /// No offer that stands has that number, and no exchange in force.
    #[error("there is no offer and no exchange of number {number}")]
    NoOffer {
        /// The number.
        number: u64,
    },
    /// An offer or an exchange has that number already.
    #[error("number {number} is taken")]
    NumberTaken {
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
