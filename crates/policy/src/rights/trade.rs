//! Exchanges: offers of tickets of one resource for tickets of another, and what came of them.
//!
//! Example: `a` computes and hardly reads, `b` reads and hardly computes. `a` offers 300 disk tickets for 200 CPU tickets, `b`
//! offers 200 CPU tickets for 300 disk tickets. Both are served at one moment, and others' rights stay what they are.
//!
//! Terms:
//! - An *offer* names what a unit gives, what it wants for it, for how long, and with whom if that matters to it. It is of soft
//!   tickets or of a part of a reservation.
//! - A *deal* is an exchange in force. Each of its *legs* moves tickets or a reservation from one unit to another.
//! - What is moved is *lent*: each unit keeps its own. It has what it did not lend, and what it got.
//!
//! Algorithm: the oldest offer that can be served is served first. It is served by a ring of two to [`RING_MAX`] offers, each of
//! which gives what the next one wants: the same resource, soft or reserved as that, and worth no less. The shortest ring is
//! taken, and of these the one with the oldest offers. Each unit gives what is worth as much as the next one wants, so no unit
//! gives more than it said. Within one encloser tickets are compared by their number. Otherwise they are compared by what they
//! are worth now, and the unit that gets them holds them as a [lot](super::lots) of the other currency.
//!
//! An offer is served whole, unless it says the least that it takes. Then it may be served in part, in the same ratio. The most
//! is found from above: each wants all; then, around the ring, each gets what the one before it can give for what that one gets,
//! until nothing changes.
//!
//! A deal ends when the shortest time of its offers is over, when one of its units ends it, or when one of them leaves the
//! contract, moves to another encloser, or is given less by the contract than it lent. Every leg is undone then.
//!
//! Properties (tested): tickets and reservations are conserved, whatever happens. Ending a deal undoes it exactly. No unit is left
//! without a ticket. What was got is not lent on. No unit is worth something by its own tickets.
//!
//! Limits: what is left of an offer that was served in part stands no more. Cost: O(n^2) for n offers of which none fits
//! another, when an offer, a deal or tickets have changed, or which units are active; nothing at all other times.
//!
//! Source: seed 004, sections 5.5 and 5.6 (exchanges, `exch_offer()`, base values).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Resource, UnitId};

use super::lots::{Kind, Lot};
use super::{Offer, Refused, Rights, Stake, TICKETS_MAX};
use crate::time::Time;

mod waits;

pub use waits::Waits;

/// The most units in one exchange.
pub const RING_MAX: usize = 4;
/// The most offers that stand at one time.
pub(super) const OFFERS_MAX: usize = 1_000;
/// Offers of one unit that stand at one time, so that no unit takes the others' room.
pub(super) const OFFERS_OF_UNIT_MAX: usize = 50;
/// The part of [`OFFERS_MAX`] for units that have no offer yet: otherwise twenty units could keep all others out.
const OFFERS_FOR_NEWCOMERS: usize = 100;

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
    /// The least of what it wants that it takes, for as much less of what it gives; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Offer>,
    /// Whether it ends with the program that makes it, so that no later daemon is to know it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub bound: bool,
}

/// What a deal moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Leg {
    /// The unit that lends it.
    pub from: UnitId,
    /// The unit that has it meanwhile.
    pub to: UnitId,
    /// Of what, and how much, in the measure of the unit that lends it.
    pub what: Offer,
    /// The encloser of the unit that lends it, whose currency it is.
    pub of: Option<UnitId>,
    /// The encloser of the unit that has it.
    pub into: Option<UnitId>,
}

impl Leg {
    /// Whether the unit that has it holds it as a lot, and not among its own tickets.
    pub(super) fn is_lot(&self) -> bool {
        self.of != self.into || matches!(self.what.stake, Stake::Hard(_))
    }

    /// That lot.
    pub(super) fn lot(&self) -> Lot {
        Lot { holder: self.to, of: self.of, kind: self.measured().0 }
    }

    pub(super) fn much(&self) -> u64 {
        self.measured().1
    }

    fn measured(&self) -> (Kind, u64) {
        measured(self.what)
    }
}

fn measured(what: Offer) -> (Kind, u64) {
    match what.stake {
        Stake::Tickets(tickets) => (Kind::Soft, tickets),
        Stake::Hard(amount) => Kind::of(amount),
    }
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
    /// Whether one of its offers was bound to a program.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub bound: bool,
}

/// What an earlier daemon had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumed {
    /// An offer that stood.
    Offer {
        /// What it says.
        bid: Bid,
    },
    /// An exchange that was in force.
    Deal {
        /// What it moved.
        legs: [Option<Leg>; RING_MAX],
        /// When it ends by itself.
        until: Option<Time>,
    },
}

impl Resumed {
    /// Of a deal.
    pub fn deal(legs: &[Leg], until: Option<Time>) -> Resumed {
        let mut all = [None; RING_MAX];
        for (place, leg) in all.iter_mut().zip(legs) {
            *place = Some(*leg);
        }
        Resumed::Deal { legs: all, until }
    }

    /// The units that it is about.
    pub fn units(&self) -> impl Iterator<Item = UnitId> {
        let (bid, legs) = match *self {
            Resumed::Offer { bid } => (Some(bid), [None; RING_MAX]),
            Resumed::Deal { legs, .. } => (None, legs),
        };
        let of_bid = bid.into_iter().flat_map(|bid| [Some(bid.by), bid.with]).flatten();
        of_bid.chain(legs.into_iter().flatten().flat_map(|leg| [leg.from, leg.to]))
    }
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
    /// The contract gives a unit no more tickets than it lent, or reserves less for it.
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

    /// Units became active or inactive: what currencies are worth changed.
    pub(super) fn stir_if_offered(&mut self) {
        self.stirred |= !self.offers.is_empty();
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
    /// Refused: as for an offer; and where they do not fit, as where a unit would have too many tickets.
    pub(super) fn strike(
        &mut self,
        rights: &mut Rights,
        now: Time,
        bids: [Bid; 2],
    ) -> Result<Trade, Refused> {
        let stirred = self.stirred;
        let mut ring = Vec::new();
        let mut refused = None;
        for bid in &bids {
            match self.offer(rights, *bid) {
                Ok(_) => ring.push(self.last),
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        let fit = fits(&bids[0], &bids[1], rights) && fits(&bids[1], &bids[0], rights);
        let legs = if fit { legs(&bids, rights) } else { None };
        match (refused, legs) {
            (None, Some(legs)) => Ok(self.serve(now, rights, ring, legs)),
            (refused, _) => {
                self.offers.retain(|number, _| !ring.contains(number));
                self.stirred = stirred;
                Err(refused.unwrap_or(Refused::NoExchange { unit: bids[0].by }))
            }
        }
    }

    /// Adds an offer.
    ///
    /// Refused: of or with an unknown unit or itself; of no tickets, of all that the unit has or more, of more than is reserved for
    /// it, of memory that it uses, or of tickets for tickets of the same resource; where the least that it takes is not of what it wants, or more; with a
    /// unit that would then be worth something by its own tickets; where [`OFFERS_MAX`] stand already, or [`OFFERS_OF_UNIT_MAX`] of the unit; where only the room for units without an offer is
    /// left, and the unit has one.
    pub(super) fn offer(&mut self, rights: &Rights, bid: Bid) -> Result<Trade, Refused> {
        let Bid { by, gives, wants, with, at_least, .. } = bid;
        rights.may_lend(by, gives)?;
        let is_bound = |least: Offer| {
            let ((kind, least_of), (wanted_kind, all)) = (measured(least), measured(wants));
            least.resource == wants.resource && kind == wanted_kind && (1..=all).contains(&least_of)
        };
        let is_none = gives.is_nothing() || wants.is_nothing();
        if gives.resource == wants.resource || is_none || !at_least.is_none_or(is_bound) {
            return Err(Refused::NoExchange { unit: by });
        }
        if let Some(with) = with {
            let (here, there) = (rights.unit(by)?.parent, rights.unit(with)?.parent);
            if by == with {
                return Err(Refused::Itself { unit: by });
            }
            for (resource, holder, of, own) in
                [(gives.resource, with, here, there), (wants.resource, by, there, here)]
            {
                if of != own && rights.would_loop(resource, &[(holder, of)]) {
                    return Err(Refused::Loop { unit: holder });
                }
            }
        }
        let of_unit = self.offers.values().filter(|bid| bid.by == by).count();
        if of_unit >= OFFERS_OF_UNIT_MAX {
            return Err(Refused::TooManyOffersOfUnit { unit: by });
        }
        let room = if of_unit == 0 { OFFERS_MAX } else { OFFERS_MAX - OFFERS_FOR_NEWCOMERS };
        if self.offers.len() >= room {
            return Err(Refused::TooManyOffers);
        }
        self.last += 1;
        self.offers.insert(self.last, bid);
        self.stirred = true;
        Ok(Trade::Offered { offer: self.last, bid })
    }

    /// Has an offer stand again, or an exchange in force, under the number that it had.
    ///
    /// Refused: the number is taken; a unit is unknown, has another encloser by now, or has not got what it lends.
    pub(super) fn resume(
        &mut self,
        rights: &mut Rights,
        now: Time,
        number: u64,
        what: Resumed,
    ) -> Result<Trade, Refused> {
        if self.offers.contains_key(&number) || self.deals.contains_key(&number) {
            return Err(Refused::NumberTaken { number });
        }
        let came = match what {
            Resumed::Offer { bid } => {
                for unit in what.units() {
                    rights.unit(unit)?;
                }
                self.offers.insert(number, bid);
                Trade::Offered { offer: number, bid }
            }
            Resumed::Deal { legs, until } => {
                let legs: Vec<Leg> = legs.into_iter().flatten().collect();
                for leg in &legs {
                    if (rights.unit(leg.from)?.parent, rights.unit(leg.to)?.parent) != (leg.of, leg.into) {
                        return Err(Refused::Enclosers { from: leg.from, to: leg.to });
                    }
                    // It was lent before: what is in use by now is not asked.
                    rights.has(leg.from, leg.what)?;
                    if !rights.has_room(leg) {
                        let (unit, resource) = (leg.to, leg.what.resource);
                        return Err(Refused::TooMany { unit, resource, has: TICKETS_MAX, more: leg.much() });
                    }
                    if leg.is_lot() && rights.would_loop(leg.what.resource, &[(leg.to, leg.of)]) {
                        return Err(Refused::Loop { unit: leg.to });
                    }
                }
                for leg in &legs {
                    rights.lend(leg);
                }
                let deal = Deal { legs, since: now, until, bound: false };
                self.deals.insert(number, deal.clone());
                Trade::Made { deal: number, offers: Vec::new(), what: deal }
            }
        };
        self.last = self.last.max(number);
        self.stirred = true;
        Ok(came)
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
            rights.give_back(leg);
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
            // Each of its units lends.
            let stays = |leg: &Leg| rights.unit(leg.from).is_ok_and(|unit| unit.parent == leg.of);
            let gone = !deal.legs.iter().all(stays);
            let why = match deal.until {
                _ if gone => Ending::Gone,
                Some(until) if until <= now => Ending::Over,
                _ if deal.legs.iter().any(|leg| rights.lent_too_many(leg.from, leg.what)) => Ending::TooFew,
                _ => continue,
            };
            came.extend(self.undo(rights, number, why));
        }
        let is_gone = |unit: UnitId| rights.unit(unit).is_err();
        let gone = |bid: &Bid| is_gone(bid.by) || bid.with.is_some_and(is_gone);
        let withdrawn: Vec<u64> =
            self.offers.iter().filter(|(_, bid)| gone(bid)).map(|(number, _)| *number).collect();
        for offer in withdrawn {
            self.offers.remove(&offer);
            came.push(Trade::Withdrawn { offer });
        }
        while core::mem::take(&mut self.stirred) {
            if let Some((ring, legs)) = self.ring(rights) {
                came.push(self.serve(now, rights, ring, legs));
                self.stirred = true;
            }
        }
        came
    }

    /// The ring that is served next: numbers of offers, each of which gives what the next one wants, and the last one what the
    /// first wants; and what is moved then.
    fn ring(&self, rights: &Rights) -> Option<(Vec<u64>, Vec<Leg>)> {
        let able: Vec<(u64, Bid)> = self
            .offers
            .iter()
            .filter(|(_, bid)| rights.may_lend(bid.by, bid.gives).is_ok())
            .map(|(number, bid)| (*number, *bid))
            .collect();
        able.iter().find_map(|first| {
            (2..=RING_MAX).find_map(|length| {
                let mut ring = vec![*first];
                let legs = close(&able, &mut ring, length, rights)?;
                Some((ring.iter().map(|(number, _)| *number).collect(), legs))
            })
        })
    }

    fn serve(&mut self, now: Time, rights: &mut Rights, ring: Vec<u64>, legs: Vec<Leg>) -> Trade {
        let served: Vec<Bid> = ring.iter().filter_map(|number| self.offers.remove(number)).collect();
        let shortest = served.iter().filter_map(|bid| bid.for_ns).min();
        let bound = served.iter().any(|bid| bid.bound);
        for leg in &legs {
            rights.lend(leg);
        }
        let deal = Deal { legs, since: now, until: shortest.map(|ns| now.saturating_add(ns)), bound };
        self.last += 1;
        self.deals.insert(self.last, deal.clone());
        Trade::Made { deal: self.last, offers: ring, what: deal }
    }
}

/// Closes the ring at that length, if that can be: what it moves then.
fn close(
    able: &[(u64, Bid)],
    ring: &mut Vec<(u64, Bid)>,
    length: usize,
    rights: &Rights,
) -> Option<Vec<Leg>> {
    let (first, last) = (ring.first()?.1, ring.last()?.1);
    if ring.len() == length {
        let bids: Vec<Bid> = ring.iter().map(|(_, bid)| *bid).collect();
        return if fits(&last, &first, rights) { legs(&bids, rights) } else { None };
    }
    for (number, bid) in able {
        let is_in = ring.iter().any(|(_, other)| other.by == bid.by);
        if !is_in && fits(&last, bid, rights) {
            ring.push((*number, *bid));
            if let Some(legs) = close(able, ring, length, rights) {
                return Some(legs);
            }
            ring.pop();
        }
    }
    None
}

/// What a ring moves. `None`: it cannot be: there is too little of something, or no room, or a unit would be worth something by
/// its own tickets, or memory would be moved that is in use.
fn legs(ring: &[Bid], rights: &Rights) -> Option<Vec<Leg>> {
    shares(ring, rights).filter(|legs| obstacle(legs, rights).is_none())
}

/// Why what a ring would move cannot be moved.
fn obstacle(legs: &[Leg], rights: &Rights) -> Option<Refused> {
    if let Some(leg) = legs.iter().find(|leg| !rights.has_room(leg)) {
        let (unit, resource) = (leg.to, leg.what.resource);
        return Some(Refused::TooMany { unit, resource, has: TICKETS_MAX, more: leg.much() });
    }
    let loops = |resource: Resource| {
        let lots = legs.iter().filter(|leg| leg.what.resource == resource && leg.of != leg.into);
        let lots: Vec<(UnitId, Option<UnitId>)> = lots.map(|leg| (leg.to, leg.of)).collect();
        (!lots.is_empty() && rights.would_loop(resource, &lots)).then(|| lots[0].0)
    };
    match Resource::ALL.into_iter().find_map(loops) {
        Some(unit) => Some(Refused::Loop { unit }),
        None => rights.can_move(legs).err(),
    }
}

/// What each gives in a ring, so that each gets what it gives for. `None`: one would get less than the least that it takes.
fn shares(ring: &[Bid], rights: &Rights) -> Option<Vec<Leg>> {
    let n = ring.len();
    let link = |at: usize| (&ring[at], &ring[(at + 1) % n]);
    let mut gets: Vec<u64> = ring.iter().map(|bid| measured(bid.wants).1).collect();
    // Each round but the last lets somebody have less: by rounding, too, so there may be many, and then it is not worth it.
    for round in 0.. {
        let mut changed = false;
        for at in 0..n {
            let (one, next) = link(at);
            let most = may_give(one, gets[at], rights)?;
            if cost(next, gets[(at + 1) % n], one, rights)? > most {
                let less = affords(one, most, next, rights)?.min(gets[(at + 1) % n].saturating_sub(1));
                if less < least(next) {
                    return None;
                }
                gets[(at + 1) % n] = less;
                changed = true;
            }
        }
        if !changed {
            break;
        }
        if round > 4 * RING_MAX {
            return None;
        }
    }
    let leg = |at: usize| {
        let (one, next) = link(at);
        let much = cost(next, gets[(at + 1) % n], one, rights)?;
        let (kind, of) = lends_in(one, rights)?;
        let stake = kind.amount(much).map_or(Stake::Tickets(much), Stake::Hard);
        let what = Offer { resource: one.gives.resource, stake };
        let leg = Leg { from: one.by, to: next.by, what, of, into: rights.unit(next.by).ok()?.parent };
        (much > 0).then_some(leg)
    };
    (0..n).map(leg).collect()
}

/// The measure in which a unit lends, and the currency that it is of.
fn lends_in(bid: &Bid, rights: &Rights) -> Option<(Kind, Option<UnitId>)> {
    let unit = rights.unit(bid.by).ok()?;
    let kind = match bid.gives.stake {
        Stake::Tickets(_) => Kind::Soft,
        Stake::Hard(_) => Kind::of(unit.terms[bid.gives.resource].hard()?).0,
    };
    Some((kind, unit.parent))
}

/// The least of what it wants that a unit takes.
fn least(bid: &Bid) -> u64 {
    measured(bid.at_least.unwrap_or(bid.wants)).1
}

/// The most that a unit gives for so much of what it wants, in the measure in which it lends.
fn may_give(bid: &Bid, gets: u64, rights: &Rights) -> Option<u64> {
    let all = rights.in_own_measure(bid.by, bid.gives, false)?;
    let part = u128::from(all) * u128::from(gets) / u128::from(measured(bid.wants).1.max(1));
    u64::try_from(part).ok()
}

/// What so much of what one wants is in the measure of the one that gives it.
fn cost(bid: &Bid, much: u64, giver: &Bid, rights: &Rights) -> Option<u64> {
    let (from, to) = (rights.measure(bid.by, bid.wants)?, lends_in(giver, rights)?);
    rights.convert(bid.wants.resource, much, from, to, true)
}

/// What so much of what is given is in the measure of the one that wants it.
fn affords(giver: &Bid, much: u64, bid: &Bid, rights: &Rights) -> Option<u64> {
    let (from, to) = (lends_in(giver, rights)?, rights.measure(bid.by, bid.wants)?);
    rights.convert(bid.wants.resource, much, from, to, false)
}

/// Whether the one gives what the next one in a ring wants. An offer to one unit has that unit on both sides: in a pair alone.
fn fits(one: &Bid, next: &Bid, rights: &Rights) -> bool {
    let agreed = |bid: &Bid, with: UnitId| bid.with.is_none_or(|only| only == with);
    let is_soft = |offer: Offer| matches!(offer.stake, Stake::Tickets(_));
    let is_enough = || {
        let all = rights.in_own_measure(one.by, one.gives, false)?;
        Some(cost(next, least(next), one, rights)? <= all)
    };
    one.gives.resource == next.wants.resource
        && is_soft(one.gives) == is_soft(next.wants)
        && agreed(one, next.by)
        && agreed(next, one.by)
        && is_enough() == Some(true)
}

#[cfg(test)]
mod tests;
