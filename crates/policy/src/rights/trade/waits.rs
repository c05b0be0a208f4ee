//! Why an offer waits: one reason, the first that is found.
//!
//! Example: `ana` gives 30 disk tickets for 20 CPU tickets. Nobody gives CPU tickets: that is the reason, whatever else there is.
//! Where somebody gives 15, that these are too few is.
//!
//! Algorithm: an offer is served in a ring, where one gives what it wants, and one wants what it gives. The reason is the first
//! of these that holds:
//! 1. Its own unit has not got what it gives, or uses it.
//! 2. No offer gives what it wants, or none that may be served by it: the one asks for another unit, or waits by its own fault.
//! 3. What that gives cannot be compared with what is wanted now, or is worth less.
//! 4. The same of what it gives, and who wants that.
//! 5. Two fit, and not as much of each: in the ratio of the one the other has too little. Or what they would move cannot be moved.
//! 6. Nobody closes the ring.
//!
//! Cost: O(n) for n offers. For all offers that is what looking for a ring costs.

use alloc::vec::Vec;

use commonhold_contract::{Amount, UnitId};

use super::{Bid, cost, least, lends_in, measured, obstacle, shares};
use crate::rights::lots::Kind;
use crate::rights::{Capacity, Offer, Refused, Rights, Stake};

/// Why an offer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Its unit has not got what it gives, or uses it.
    Lacks(Refused),
    /// No other unit's offer gives that.
    NobodyGives(Offer),
    /// No other unit's offer wants that.
    NobodyWants(Offer),
    /// Of the offers that give what it wants, or want what it gives, each is for another unit than its own, or of another than it
    /// is for: this one first.
    ForOthers {
        /// Its number.
        offer: u64,
    },
    /// An offer gives what it wants, or wants what it gives, and waits since its own unit has not got what it gives.
    WaitsToo {
        /// Its number.
        offer: u64,
    },
    /// Tickets have no measure in common with another offer's: nobody is active in this unit, so that they are worth nothing.
    NobodyActive {
        /// The other offer.
        offer: u64,
        /// The unit whose tickets they are; `None`: at the top level.
        within: Option<UnitId>,
    },
    /// An amount has no measure in common with another offer's: nobody knows how much there is.
    NotWeighed {
        /// The other offer.
        offer: u64,
        /// Of what.
        what: Offer,
    },
    /// The other offer gives less than it wants.
    GivesLess {
        /// The other offer.
        offer: u64,
        /// What that gives.
        gives: Offer,
        /// What of that it would have to give; `None`: more than there can be.
        needs: Option<Offer>,
    },
    /// The other offer wants more than it gives.
    WantsMore {
        /// The other offer.
        offer: u64,
        /// What that wants at least.
        wants: Offer,
        /// What it would have to give for that; `None`: more than there can be.
        needs: Option<Offer>,
    },
    /// They fit, but in the ratio of the one the other would have less than the least that it takes.
    Ratio {
        /// The other offer.
        offer: u64,
    },
    /// They fit, but what would be moved cannot be.
    Moves {
        /// The other offer.
        offer: u64,
        /// Why.
        why: Refused,
    },
    /// Some give what it wants, and some want what it gives. They are not the same, and no others close a ring with them.
    NoRing,
}

/// Whether an offer fits beside another, as far as kind and units go.
enum Beside {
    Not,
    ForOthers,
    WaitsToo,
    Able,
}

impl Rights {
    /// Why an offer is not served; `None`: none stands of that number, or it will be served when [`Rights::settle`] is called.
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

    /// The offers beside one in a ring, on one side of it, or why there are none.
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
        // Of several reasons the nearest to being served, and of these that of the oldest.
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

    /// Whether the one gives the least that the next one takes.
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

    /// Why what the one gives has no measure in common with what the next one wants.
    fn not_compared(&self, one: &Bid, next: &Bid) -> Short {
        let resource = one.gives.resource;
        let around = [next, one].map(|bid| self.unit(bid.by).ok().and_then(|unit| unit.parent));
        let is_soft = matches!(next.wants.stake, Stake::Tickets(_));
        let is_known = self.capacity(resource) != Capacity::Parts;
        let is_absolute = |offer: Offer| matches!(offer.stake, Stake::Hard(Amount::Absolute(_)));
        if !is_soft && !is_known && (is_absolute(next.wants) || is_absolute(one.gives)) {
            return Short::NotWeighed { what: if is_absolute(next.wants) { next.wants } else { one.gives } };
        }
        // What makes one ticket worth nothing; of reservations, what makes all worth nothing.
        let is_empty = |of: Option<UnitId>| match measured(next.wants).0 {
            Kind::Soft => self.is_worth_nothing(resource, of),
            _ => of.is_some_and(|of| self.value(of, resource) == 0),
        };
        let within = around.into_iter().find(|of| is_empty(*of)).unwrap_or(around[0]);
        Short::NobodyActive { within }
    }
}

/// Why what one gives is not enough for the next one.
enum Short {
    NobodyActive { within: Option<UnitId> },
    NotWeighed { what: Offer },
    Less { giver: UnitId, needs: Option<Offer> },
}

/// Whether both are of the same resource, and tickets or reserved.
fn is_alike(gives: Offer, wants: Offer) -> bool {
    let is_soft = |offer: Offer| matches!(offer.stake, Stake::Tickets(_));
    gives.resource == wants.resource && is_soft(gives) == is_soft(wants)
}

/// Whether an offer is for whoever makes the other, too.
fn agree(bid: &Bid, other: &Bid) -> bool {
    bid.with.is_none_or(|only| only == other.by)
}

#[cfg(test)]
mod tests;
