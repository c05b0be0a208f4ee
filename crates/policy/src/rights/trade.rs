//! Exchanges: offers of tickets of one resource for tickets of another, and what came of them.
//!
//! Example: `a` computes and hardly reads, `b` reads and hardly computes. `a` offers 300 disk tickets for 200 CPU tickets, `b`
//! offers 200 CPU tickets for 300 disk tickets. Both are served at one moment, and others' rights stay what they are.
//!
//! Terms:
//! - An *offer* names what a unit gives, what it wants for it, for how long, and with whom if that matters to it.
//! - A *deal* is an exchange in force. Each of its *legs* moves tickets from one unit to a sibling.
//! - What is moved is *lent*: each unit keeps its own tickets. It has those that it did not lend, and those that it got.
//!
//! Algorithm: the oldest offer that can be served is served first. It is served by a ring of two to [`RING_MAX`] offers, each of
//! which gives what the next one wants: the same resource, and no fewer tickets. The shortest ring is taken, and of these the
//! one with the oldest offers. Each unit gives as many as the next one wants, so no unit gives more than it said.
//!
//! A deal ends when the shortest time of its offers is over, when one of its units ends it, or when one of them leaves the
//! contract, moves to another encloser, or is given fewer tickets by the contract than it lent. Every leg is undone then.
//!
//! Properties (tested): tickets are conserved, whatever happens. Ending a deal undoes it exactly. No unit is left without
//! a ticket. Tickets that were got are not lent on.
//!
//! Limits: exchanges are between units in the same encloser, whose tickets have one measure. An offer is served whole or
//! not at all. Cost: O(n^2) for n offers of which none fits another, when an offer, a deal or tickets have
//! changed; nothing at all other times.
//!
//! Source: seed 004, sections 5.5 and 5.6 (exchanges, `exch_offer()`).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::UnitId;

use super::{Offer, Refused, Rights};
use crate::time::Time;

/// The most units in one exchange.
const RING_MAX: usize = 4;
/// The most offers that stand at one time.
pub(super) const OFFERS_MAX: usize = 1_000;

/// What a unit offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Bid {
    /// The unit.
    pub by: UnitId,
    /// What it gives.
    pub gives: Offer,
    /// What it wants for that.
    pub wants: Offer,
    /// Only with this unit.
    pub with: Option<UnitId>,
    /// How long an exchange lasts, in ns; `None`: until it is ended.
    pub for_ns: Option<Time>,
}

/// Tickets that a deal moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Leg {
    /// The unit that lends them.
    pub from: UnitId,
    /// The unit that has them meanwhile.
    pub to: UnitId,
    /// Of what, and how many.
    pub what: Offer,
}

/// An exchange in force.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Deal {
    /// What it moves: one leg from each unit.
    pub legs: Vec<Leg>,
    /// Since when.
    pub since: Time,
    /// When it ends by itself.
    pub until: Option<Time>,
}

/// Why a deal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Its time was over.
    Over,
    /// One of its units ended it.
    Ended,
    /// A unit left the contract, or has another encloser.
    Gone,
    /// The contract gives a unit no more tickets than it lent.
    TooFew,
    /// The negotiator made it, and ended it.
    Negotiated,
}

/// What came of offers in a step.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trade {
    /// An offer stands from now on.
    Offered {
        /// Its number.
        offer: u64,
        /// What it says.
        bid: Bid,
    },
    /// An offer stands no more, without having been served: it was taken back, or its unit is gone.
    Withdrawn {
        /// Its number.
        offer: u64,
    },
    /// An exchange is in force from now on.
    Made {
        /// Its number.
        deal: u64,
        /// The offers that it served, in the order of the legs.
        offers: Vec<u64>,
        /// What it is.
        what: Deal,
    },
    /// An exchange is in force no more.
    Undone {
        /// Its number.
        deal: u64,
        /// Why.
        why: Ending,
        /// What it moved.
        what: Deal,
    },
}

/// Offers that stand, and deals in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Market {
    /// The last number of an offer or a deal; they are numbered together.
    last: u64,
    offers: BTreeMap<u64, Bid>,
    deals: BTreeMap<u64, Deal>,
    /// Whether an offer may be served that could not be at the last look: an offer came, or tickets changed.
    stirred: bool,
}

impl Market {
    /// Offers that stand, by number, the oldest first.
    pub(super) fn offers(&self) -> &BTreeMap<u64, Bid> {
        &self.offers
    }

    /// Deals in force, by number.
    pub(super) fn deals(&self) -> &BTreeMap<u64, Deal> {
        &self.deals
    }

    /// Units' tickets changed, or which units there are.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether nothing came, and no deal is over.
    pub(super) fn is_settled(&self, now: Time) -> bool {
        !self.stirred && self.next().is_none_or(|next| next > now)
    }

    /// When a deal ends next by itself.
    pub(super) fn next(&self) -> Option<Time> {
        self.deals.values().filter_map(|deal| deal.until).min()
    }

    /// Makes an exchange of two offers that fit each other, whatever else is offered: both, or nothing.
    ///
    /// Refused: as for an offer; and where a unit would have too many tickets.
    pub(super) fn strike(
        &mut self,
        rights: &mut Rights,
        now: Time,
        bids: [Bid; 2],
    ) -> Result<Trade, Refused> {
        let stirred = self.stirred;
        let mut ring = Vec::new();
        for (bid, other) in bids.iter().zip(bids.iter().rev()) {
            let refused = if fits(bid, other) { None } else { Some(Refused::NoExchange { unit: bid.by }) };
            let Offer { resource, tickets } = bid.wants;
            let room = refused.map_or_else(|| rights.with_more(bid.by, resource, tickets), Err);
            match room.and_then(|_| self.offer(rights, *bid)) {
                Ok(_) => ring.push(self.last),
                Err(refused) => {
                    self.offers.retain(|number, _| !ring.contains(number));
                    self.stirred = stirred;
                    return Err(refused);
                }
            }
        }
        Ok(self.serve(now, rights, ring))
    }

    /// Adds an offer.
    ///
    /// Refused: of or with an unknown unit, or with one in another encloser or itself; of no tickets, of all that the unit has
    /// or more, or of tickets for tickets of the same resource; where [`OFFERS_MAX`] stand already.
    pub(super) fn offer(&mut self, rights: &Rights, bid: Bid) -> Result<Trade, Refused> {
        let Bid { by, gives, wants, with, .. } = bid;
        rights.may_lend(by, gives.resource, gives.tickets)?;
        if gives.resource == wants.resource || gives.tickets == 0 || wants.tickets == 0 {
            return Err(Refused::NoExchange { unit: by });
        }
        if let Some(with) = with {
            rights.siblings(by, with)?;
        }
        if self.offers.len() >= OFFERS_MAX {
            return Err(Refused::TooManyOffers);
        }
        self.last += 1;
        self.offers.insert(self.last, bid);
        self.stirred = true;
        Ok(Trade::Offered { offer: self.last, bid })
    }

    /// Takes an offer back, or ends a deal: whichever has this number.
    ///
    /// Refused: neither has it.
    pub(super) fn cancel(&mut self, rights: &mut Rights, number: u64) -> Result<Trade, Refused> {
        if self.offers.remove(&number).is_some() {
            return Ok(Trade::Withdrawn { offer: number });
        }
        self.undo(rights, number, Ending::Ended).ok_or(Refused::NoOffer { number })
    }

    pub(super) fn undo(&mut self, rights: &mut Rights, number: u64, why: Ending) -> Option<Trade> {
        let deal = self.deals.remove(&number)?;
        self.stirred = true;
        for leg in &deal.legs {
            rights.give_back(*leg);
        }
        Some(Trade::Undone { deal: number, why, what: deal })
    }

    /// What time and the contract bring: ends deals, forgets offers of units that are gone, and serves offers.
    pub(super) fn settle(&mut self, now: Time, rights: &mut Rights) -> Vec<Trade> {
        let mut came = Vec::new();
        if self.is_settled(now) {
            return came;
        }
        let numbers: Vec<u64> = self.deals.keys().copied().collect();
        // The newest first: where a unit has lent too many, the older exchanges go on.
        for number in numbers.into_iter().rev() {
            let deal = &self.deals[&number];
            let gone = deal.legs.iter().any(|leg| rights.siblings(leg.from, leg.to).is_err());
            let why = match deal.until {
                _ if gone => Ending::Gone,
                Some(until) if until <= now => Ending::Over,
                _ if deal.legs.iter().any(|leg| rights.lent_too_many(leg.from, leg.what.resource)) => {
                    Ending::TooFew
                }
                _ => continue,
            };
            came.extend(self.undo(rights, number, why));
        }
        let gone = |bid: &Bid| {
            !rights.knows(bid.by) || bid.with.is_some_and(|with| rights.siblings(bid.by, with).is_err())
        };
        let withdrawn: Vec<u64> =
            self.offers.iter().filter(|(_, bid)| gone(bid)).map(|(number, _)| *number).collect();
        for offer in withdrawn {
            self.offers.remove(&offer);
            came.push(Trade::Withdrawn { offer });
        }
        while core::mem::take(&mut self.stirred) {
            if let Some(ring) = self.ring(rights) {
                came.push(self.serve(now, rights, ring));
                self.stirred = true;
            }
        }
        came
    }

    /// The ring that is served next: numbers of offers, each of which gives what the next one wants, and the last one what the
    /// first wants.
    fn ring(&self, rights: &Rights) -> Option<Vec<u64>> {
        let able: Vec<(u64, Bid)> = self
            .offers
            .iter()
            .filter(|(_, bid)| rights.may_lend(bid.by, bid.gives.resource, bid.gives.tickets).is_ok())
            .map(|(number, bid)| (*number, *bid))
            .collect();
        able.iter().find_map(|first| {
            (2..=RING_MAX).find_map(|length| {
                let mut ring = vec![*first];
                close(&able, &mut ring, length, rights)
                    .then(|| ring.iter().map(|(number, _)| *number).collect())
            })
        })
    }

    fn serve(&mut self, now: Time, rights: &mut Rights, ring: Vec<u64>) -> Trade {
        let bids: Vec<(u64, Bid)> =
            ring.iter().filter_map(|number| self.offers.remove(number).map(|bid| (*number, bid))).collect();
        let legs = legs(&bids);
        for leg in &legs {
            rights.lend(*leg);
        }
        let shortest = bids.iter().filter_map(|(_, bid)| bid.for_ns).min();
        let deal = Deal { legs, since: now, until: shortest.map(|ns| now.saturating_add(ns)) };
        self.last += 1;
        self.deals.insert(self.last, deal.clone());
        Trade::Made { deal: self.last, offers: ring, what: deal }
    }
}

/// Whether the ring can be closed at that length; it is then.
fn close(able: &[(u64, Bid)], ring: &mut Vec<(u64, Bid)>, length: usize, rights: &Rights) -> bool {
    let (Some((_, first)), Some((_, last))) = (ring.first().copied(), ring.last().copied()) else {
        return false;
    };
    if ring.len() == length {
        return fits(&last, &first) && legs(ring).iter().all(|leg| rights.has_room(*leg));
    }
    for (number, bid) in able {
        let is_in = ring.iter().any(|(_, other)| other.by == bid.by);
        if !is_in && rights.siblings(first.by, bid.by).is_ok() && fits(&last, bid) {
            ring.push((*number, *bid));
            if close(able, ring, length, rights) {
                return true;
            }
            ring.pop();
        }
    }
    false
}

/// What a ring moves: each unit gives what the next one wants.
fn legs(ring: &[(u64, Bid)]) -> Vec<Leg> {
    let next = ring.iter().cycle().skip(1);
    ring.iter()
        .zip(next)
        .map(|((_, one), (_, next))| Leg { from: one.by, to: next.by, what: next.wants })
        .collect()
}

/// Whether the one gives what the next one in a ring wants. An offer to one unit has that unit on both sides: in a pair alone.
fn fits(one: &Bid, next: &Bid) -> bool {
    let agreed = |bid: &Bid, with: UnitId| bid.with.is_none_or(|only| only == with);
    one.gives.resource == next.wants.resource
        && one.gives.tickets >= next.wants.tickets
        && agreed(one, next.by)
        && agreed(next, one.by)
}

#[cfg(test)]
mod tests;
