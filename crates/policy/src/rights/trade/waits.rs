//! Why an open offer is not served: the first reason that applies.
//!
//! Example: `ana` offers 30 disk tickets for 20 CPU tickets. If no other unit offers CPU tickets, that is the
//! reason, whatever else is offered. If the only offer of CPU tickets is of 15, the reason is that 15 are too
//! few.
//!
//! Algorithm: in a ring, an offer stands between a *giver* and a *taker*. A giver is an offer that gives what
//! this offer wants; a taker is an offer that wants what this offer gives. The reason is the first of these
//! that holds:
//! 1. The offer's own unit no longer has the amount that the offer gives, or uses it.
//! 2. There is no giver, or this offer may be matched with none of the givers: this offer or the giver is
//!    restricted to another partner, or the giver's own unit no longer has the amount that the giver gives.
//! 3. The giver's amount and the wanted amount are not comparable now, or the giver's amount is worth less.
//! 4. The same as 2 or 3 holds for takers.
//! 5. Some offer is both giver and taker. But at the ratio of this offer or of that offer, the other one gets
//!    less than its minimum; or the transfer is not possible.
//! 6. No ring connects a taker to a giver.
//!
//! Cost: O(n) to explain one of n offers. Explaining all of them costs O(n^2), as much as the search for a
//! ring.

use alloc::vec::Vec;

use commonhold_contract::{Amount, UnitId};

use super::{Bid, balanced_legs, cost, kind_and_quantity, lent_kind_and_currency, minimum_wanted, obstacle};
use crate::rights::lots::Kind;
use crate::rights::{Capacity, Offer, Refused, Rights, Stake};

/// Why an offer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Its unit no longer has what the offer gives, or uses it.
    Lacks(Refused),
    /// No offer of another unit gives this.
    NobodyGives(Offer),
    /// No offer of another unit wants this.
    NobodyWants(Offer),
    /// Every possible giver, or taker, is restricted to another partner, or excluded by this offer's own
    /// restriction.
    ForOthers {
        /// The number of the oldest such offer.
        offer: u64,
    },
    /// A possible giver or taker waits itself, since its unit no longer has the amount that the offer gives.
    WaitsToo {
        /// The number of that offer.
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
    /// The other offer gives less than this offer wants.
    GivesLess {
        /// The other offer.
        offer: u64,
        /// The amount that the other offer gives.
        gives: Offer,
        /// The amount that the other offer would have to give; `None`: more than can be represented.
        needs: Option<Offer>,
    },
    /// The other offer wants more than this offer gives.
    WantsMore {
        /// The other offer.
        offer: u64,
        /// The minimum that the other offer wants.
        wants: Offer,
        /// The amount that this offer would have to give for that minimum; `None`: more than can be
        /// represented.
        needs: Option<Offer>,
    },
    /// The two offers match, but at the ratio of one, the other falls below its minimum.
    Ratio {
        /// The other offer.
        offer: u64,
    },
    /// The two offers match, but the transfer is not possible.
    Moves {
        /// The other offer.
        offer: u64,
        /// The reason.
        why: Refused,
    },
    /// The offer has givers and takers, but no ring connects them.
    NoRing,
}

/// Whether another offer can be this offer's neighbour in a ring, amounts aside.
enum Neighbour {
    /// The other offer is of other resources, or of the same unit.
    Unrelated,
    /// One of the two offers is restricted to another partner.
    ForOthers,
    /// The other offer's unit no longer has what that offer gives.
    WaitsToo,
    /// The other offer can be the neighbour if the amounts suffice.
    Possible,
}

impl Rights {
    /// Why an offer is not served. `None` if the offer is not open, or [`Rights::settle`] will serve it.
    pub fn waits(&self, number: u64) -> Option<Waits> {
        let bid = self.offers().get(&number)?;
        if let Err(why) = self.check_can_lend(bid.by, bid.gives) {
            return Some(Waits::Lacks(why));
        }
        let can_give = |other: &Bid| is_same_kind(other.gives, bid.wants);
        let givers = match self.neighbours(bid, can_give, |other| self.check_enough(other, bid)) {
            Ok(givers) => givers,
            Err(why) => return Some(why.unwrap_or(Waits::NobodyGives(bid.wants))),
        };
        let can_take = |other: &Bid| is_same_kind(bid.gives, other.wants);
        let takers = match self.neighbours(bid, can_take, |other| self.check_enough(bid, other)) {
            Ok(takers) => takers,
            Err(why) => return Some(why.unwrap_or(Waits::NobodyWants(bid.gives))),
        };
        let mut first_reason = None;
        for offer in givers.into_iter().filter(|offer| takers.contains(offer)) {
            let ring = [*bid, self.offers()[&offer]];
            let why = match balanced_legs(&ring, self) {
                None => Waits::Ratio { offer },
                Some(legs) => Waits::Moves { offer, why: obstacle(&legs, self)? },
            };
            first_reason = first_reason.or(Some(why));
        }
        first_reason.or(Some(Waits::NoRing))
    }

    /// The offers that can be an offer's neighbour on one side of a ring, or why there is no such offer.
    /// `Err` of `None`: no other offer is of the right kind.
    fn neighbours(
        &self,
        bid: &Bid,
        is_kind: impl Fn(&Bid) -> bool,
        check_enough: impl Fn(&Bid) -> Result<(), Short>,
    ) -> Result<Vec<u64>, Option<Waits>> {
        let relation = |other: &Bid| match () {
            () if other.by == bid.by || !is_kind(other) => Neighbour::Unrelated,
            () if !admits(bid, other) || !admits(other, bid) => Neighbour::ForOthers,
            () if self.check_can_lend(other.by, other.gives).is_err() => Neighbour::WaitsToo,
            () => Neighbour::Possible,
        };
        // Each reason has a rank: the larger, the closer the two offers are to a match. Of several reasons,
        // report that of the largest rank; ties go to the oldest offer.
        let (mut neighbours, mut best_reason) = (Vec::new(), (0, None));
        for (number, other) in self.offers() {
            let offer = *number;
            let (rank, reason) = match relation(other) {
                Neighbour::Unrelated => continue,
                Neighbour::ForOthers => (1, Waits::ForOthers { offer }),
                Neighbour::WaitsToo => (2, Waits::WaitsToo { offer }),
                Neighbour::Possible => match check_enough(other) {
                    Ok(()) => {
                        neighbours.push(offer);
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
            if rank > best_reason.0 {
                best_reason = (rank, Some(reason));
            }
        }
        if neighbours.is_empty() { Err(best_reason.1) } else { Ok(neighbours) }
    }

    /// Whether `giver` gives at least the minimum of `taker`; if not, why.
    fn check_enough(&self, giver: &Bid, taker: &Bid) -> Result<(), Short> {
        let needs = cost(taker, minimum_wanted(taker), giver, self);
        let gives = self.in_own_measure(giver.by, giver.gives, false);
        let (Some(needs), Some(gives)) = (needs, gives) else {
            return Err(self.why_not_comparable(giver, taker));
        };
        if needs <= gives {
            return Ok(());
        }
        let stake = lent_kind_and_currency(giver, self)
            .map(|(kind, _)| kind.amount(needs).map_or(Stake::Tickets(needs), Stake::Hard));
        let needs = stake.map(|stake| Offer { resource: giver.gives.resource, stake });
        Err(Short::Less { giver: giver.by, needs })
    }

    /// Why the amount that `giver` gives cannot be compared with the amount that `taker` wants.
    fn why_not_comparable(&self, giver: &Bid, taker: &Bid) -> Short {
        let resource = giver.gives.resource;
        let currencies = [taker, giver].map(|bid| self.unit(bid.by).ok().and_then(|unit| unit.parent));
        let is_soft = matches!(taker.wants.stake, Stake::Tickets(_));
        let is_known = self.capacity(resource) != Capacity::Parts;
        let is_absolute = |offer: Offer| matches!(offer.stake, Stake::Hard(Amount::Absolute(_)));
        if !is_soft && !is_known && (is_absolute(taker.wants) || is_absolute(giver.gives)) {
            let what = if is_absolute(taker.wants) { taker.wants } else { giver.gives };
            return Short::NotWeighed { what };
        }
        // Tickets need a value per ticket; reservations in percent need a currency of any value.
        let has_no_value = |currency: Option<UnitId>| match kind_and_quantity(taker.wants).0 {
            Kind::Soft => self.is_worth_nothing(resource, currency),
            _ => currency.is_some_and(|unit| self.value(unit, resource) == 0),
        };
        let within = currencies.into_iter().find(|currency| has_no_value(*currency));
        Short::NobodyActive { within: within.unwrap_or(currencies[0]) }
    }
}

/// Why one offer's amount does not suffice for the next offer in a ring.
enum Short {
    /// The amounts cannot be compared, since the currency `within` has no value.
    NobodyActive { within: Option<UnitId> },
    /// The absolute amount `what` cannot be compared, since the capacity is unknown.
    NotWeighed { what: Offer },
    /// The amount is less than needed; `None`: more is needed than can be represented.
    Less { giver: UnitId, needs: Option<Offer> },
}

/// Whether two amounts are of the same resource, and both soft or both reserved.
fn is_same_kind(gives: Offer, wants: Offer) -> bool {
    let is_soft = |offer: Offer| matches!(offer.stake, Stake::Tickets(_));
    gives.resource == wants.resource && is_soft(gives) == is_soft(wants)
}

/// Whether an offer admits the unit of another offer as partner.
fn admits(bid: &Bid, other: &Bid) -> bool {
    bid.with.is_none_or(|only| only == other.by)
}

#[cfg(test)]
mod tests;
