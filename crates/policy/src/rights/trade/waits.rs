//! Why an offer waits: the first reason found.
//!
//! Example: `ana` gives 30 disk tickets for 20 CPU tickets. If no unit gives CPU tickets, that is the reason,
//! whatever else is offered. If one gives 15, the reason is that these are too few.
//!
//! Algorithm: an offer is served in a ring between an offer that gives what it wants and one that wants what
//! it gives. The reason is the first of these that holds:
//! 1. Its own unit no longer has what it gives, or uses it.
//! 2. No offer gives what it wants, or none that it may be matched with: one asks for another partner, or
//!    waits because of its own unit.
//! 3. What the other gives is not comparable with what is wanted now, or is worth less.
//! 4. The same for what it gives, and the offers that want that.
//! 5. Two offers match, but not in the amounts: at one's ratio the other falls below its minimum. Or the
//!    transfer itself is not possible.
//! 6. No offer closes the ring.
//!
//! Cost: O(n) for n offers, so O(n^2) for explaining all, as for finding a ring.

use alloc::vec::Vec;

use commonhold_contract::{Amount, UnitId};

use super::{Bid, cost, least, lends_in, measured, obstacle, shares};
use crate::rights::lots::Kind;
use crate::rights::{Capacity, Offer, Refused, Rights, Stake};

/// Why an offer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Its unit no longer has what it gives, or uses it.
    Lacks(Refused),
    /// No offer of another unit gives this.
    NobodyGives(Offer),
    /// No offer of another unit wants this.
    NobodyWants(Offer),
    /// Every offer that gives what it wants, or wants what it gives, is restricted to another partner, or
    /// excluded by this offer's own restriction. This is the first.
    ForOthers {
        /// Its number.
        offer: u64,
    },
    /// A candidate waits itself, since its unit no longer has what it gives.
    WaitsToo {
        /// Its number.
        offer: u64,
    },
    /// Tickets cannot be compared with another offer's: no unit is active in `within`, so its tickets have no
    /// value.
    NobodyActive {
        /// The other offer.
        offer: u64,
        /// The currency without value; `None`: the base currency.
        within: Option<UnitId>,
    },
    /// An absolute amount cannot be compared with another offer's: the capacity is unknown.
    NotWeighed {
        /// The other offer.
        offer: u64,
        /// The absolute amount.
        what: Offer,
    },
    /// The other offer gives less than this one wants.
    GivesLess {
        /// The other offer.
        offer: u64,
        /// What the other gives.
        gives: Offer,
        /// What the other would have to give; `None`: more than can be represented.
        needs: Option<Offer>,
    },
    /// The other offer wants more than this one gives.
    WantsMore {
        /// The other offer.
        offer: u64,
        /// The minimum that the other wants.
        wants: Offer,
        /// What this one would have to give for it; `None`: more than can be represented.
        needs: Option<Offer>,
    },
    /// The two match, but at one's ratio the other falls below its minimum.
    Ratio {
        /// The other offer.
        offer: u64,
    },
    /// The two match, but the transfer is not possible.
    Moves {
        /// The other offer.
        offer: u64,
        /// The reason.
        why: Refused,
    },
    /// Some offers give what it wants and others want what it gives, but no ring connects them.
    NoRing,
}

/// How an offer relates to a neighbour in a ring, by kind and partner.
enum Beside {
    Not,
    ForOthers,
    WaitsToo,
    Able,
}

impl Rights {
    /// Why an offer is not served. `None` if it is not open, or [`Rights::settle`] will serve it.
    pub fn waits(&self, number: u64) -> Option<Waits> {
        let bid = self.offers().get(&number)?;
        if let Err(why) = self.may_lend(bid.by, bid.gives) {
            return Some(Waits::Lacks(why));
        }
        let gives =
            match self.beside(bid, |other| is_alike(other.gives, bid.wants), |other| self.enough(other, bid))
            {
                Ok(gives) => gives,
                Err(why) => return Some(why.unwrap_or(Waits::NobodyGives(bid.wants))),
            };
        let wants =
            match self.beside(bid, |other| is_alike(bid.gives, other.wants), |other| self.enough(bid, other))
            {
                Ok(wants) => wants,
                Err(why) => return Some(why.unwrap_or(Waits::NobodyWants(bid.gives))),
            };
        let both = gives.into_iter().filter(|offer| wants.contains(offer));
        let mut found = None;
        for offer in both {
            let ring = [*bid, self.offers()[&offer]];
            let why = match shares(&ring, self) {
                None => Waits::Ratio { offer },
                Some(legs) => Waits::Moves { offer, why: obstacle(&legs, self)? },
            };
            found = found.or(Some(why));
        }
        found.or(Some(Waits::NoRing))
    }

    /// The possible neighbours of an offer on one side of a ring, or why there are none. The inner `None`
    /// means that no other offer is of the right kind.
    fn beside(
        &self,
        bid: &Bid,
        is_kind: impl Fn(&Bid) -> bool,
        is_enough: impl Fn(&Bid) -> Result<(), Short>,
    ) -> Result<Vec<u64>, Option<Waits>> {
        let stands = |other: &Bid| match () {
            () if other.by == bid.by || !is_kind(other) => Beside::Not,
            () if !agree(bid, other) || !agree(other, bid) => Beside::ForOthers,
            () if self.may_lend(other.by, other.gives).is_err() => Beside::WaitsToo,
            () => Beside::Able,
        };
        // Of several reasons, report the one closest to being served; ties go to the oldest offer.
        let (mut found, mut why) = (Vec::new(), (0, None));
        for (number, other) in self.offers() {
            let offer = *number;
            let this = match stands(other) {
                Beside::Not => continue,
                Beside::ForOthers => (1, Waits::ForOthers { offer }),
                Beside::WaitsToo => (2, Waits::WaitsToo { offer }),
                Beside::Able => match is_enough(other) {
                    Ok(()) => {
                        found.push(offer);
                        continue;
                    }
                    Err(Short::NobodyActive { within }) => (3, Waits::NobodyActive { offer, within }),
                    Err(Short::NotWeighed { what }) => (3, Waits::NotWeighed { offer, what }),
                    Err(Short::Less { giver, needs }) if giver == bid.by => {
                        (4, Waits::WantsMore { offer, wants: other.at_least.unwrap_or(other.wants), needs })
                    }
                    Err(Short::Less { needs, .. }) => {
                        (4, Waits::GivesLess { offer, gives: other.gives, needs })
                    }
                },
            };
            if this.0 > why.0 {
                why = (this.0, Some(this.1));
            }
        }
        if found.is_empty() { Err(why.1) } else { Ok(found) }
    }

    /// Whether `one` gives at least the minimum of `next`.
    fn enough(&self, one: &Bid, next: &Bid) -> Result<(), Short> {
        let needs = cost(next, least(next), one, self);
        let gives = self.in_own_measure(one.by, one.gives, false);
        let (Some(needs), Some(gives)) = (needs, gives) else { return Err(self.not_compared(one, next)) };
        if needs <= gives {
            return Ok(());
        }
        let stake = lends_in(one, self)
            .map(|(kind, _)| kind.amount(needs).map_or(Stake::Tickets(needs), Stake::Hard));
        let needs = stake.map(|stake| Offer { resource: one.gives.resource, stake });
        Err(Short::Less { giver: one.by, needs })
    }

    /// Why what `one` gives cannot be compared with what `next` wants.
    fn not_compared(&self, one: &Bid, next: &Bid) -> Short {
        let resource = one.gives.resource;
        let around = [next, one].map(|bid| self.unit(bid.by).ok().and_then(|unit| unit.parent));
        let is_soft = matches!(next.wants.stake, Stake::Tickets(_));
        let is_known = self.capacity(resource) != Capacity::Parts;
        let is_absolute = |offer: Offer| matches!(offer.stake, Stake::Hard(Amount::Absolute(_)));
        if !is_soft && !is_known && (is_absolute(next.wants) || is_absolute(one.gives)) {
            return Short::NotWeighed { what: if is_absolute(next.wants) { next.wants } else { one.gives } };
        }
        // For tickets, a currency without value per ticket; for reservations, one without any value.
        let is_empty = |currency: Option<UnitId>| match measured(next.wants).0 {
            Kind::Soft => self.is_worth_nothing(resource, currency),
            _ => currency.is_some_and(|unit| self.value(unit, resource) == 0),
        };
        let within = around.into_iter().find(|currency| is_empty(*currency)).unwrap_or(around[0]);
        Short::NobodyActive { within }
    }
}

/// Why one offer's amount does not suffice for the next.
enum Short {
    NobodyActive { within: Option<UnitId> },
    NotWeighed { what: Offer },
    Less { giver: UnitId, needs: Option<Offer> },
}

/// Whether both are of the same resource, and both soft or both reserved.
fn is_alike(gives: Offer, wants: Offer) -> bool {
    let is_soft = |offer: Offer| matches!(offer.stake, Stake::Tickets(_));
    gives.resource == wants.resource && is_soft(gives) == is_soft(wants)
}

/// Whether an offer admits the maker of the other as partner.
fn agree(bid: &Bid, other: &Bid) -> bool {
    bid.with.is_none_or(|only| only == other.by)
}

#[cfg(test)]
mod tests;
