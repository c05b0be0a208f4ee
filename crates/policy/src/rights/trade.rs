//! Exchanges: offers of tickets of one resource for tickets of another, and their outcomes.
//!
//! Example: `a` computes and hardly reads, `b` reads and hardly computes. `a` offers 300 disk tickets for 200
//! CPU tickets, `b` offers 200 CPU tickets for 300 disk tickets. Both are served at the same time, and all
//! other rights are unchanged.
//!
//! Terms:
//! - An *offer* names what a unit gives, what it wants in return, for how long, and optionally with whom. It
//!   is of soft tickets or of a part of a reservation.
//! - A *deal* is an exchange in force. Each of its *legs* moves tickets or a reservation from one unit to
//!   another.
//! - What is moved is *lent*: ownership does not change. A unit has what it did not lend, plus what was lent
//!   to it.
//!
//! Algorithm: serve the oldest offer that can be served. An offer is served by a ring of two to [`RING_MAX`]
//! offers, each of which gives what the next one wants: the same resource, both soft or both reserved, and
//! worth at least as much. Prefer the shortest ring; ties go to the one with the oldest offers. Each unit
//! gives what is worth as much as the next one wants, so none gives more than it offered. Within one encloser
//! tickets are compared by number. Otherwise they are compared by their current value, and the receiver holds
//! them as a [lot](super::lots) of the other currency.
//!
//! An offer is served in full unless it names a minimum. With one, it may be served in part, in the same
//! ratio. The largest part is a fixed point, found from above: each starts with all that it wants; then,
//! around the ring, each is reduced to what the one before it can give for what that one gets, until nothing
//! changes.
//!
//! A deal ends when the shortest duration of its offers has passed, when one of its units ends it, or when
//! one of them leaves the contract, moves to another encloser, or is given less by the contract than it lent.
//! Ending reverses every leg.
//!
//! Properties (tested): tickets and reservations are conserved in any history. Ending a deal reverses it
//! exactly. Every unit keeps at least one ticket. What was lent to a unit is not lent on. Currencies form no
//! cycle.
//!
//! Limits: the unserved rest of a partly served offer is dropped. Cost: O(n^2) for n offers of which no two
//! match, whenever an offer, a deal, tickets or the set of active units changed; nothing otherwise.
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
/// The most open offers.
pub(super) const OFFERS_MAX: usize = 1_000;
/// The most open offers of one unit, so that no unit crowds out the others.
pub(super) const OFFERS_OF_UNIT_MAX: usize = 50;
/// The part of [`OFFERS_MAX`] kept for units without an open offer. Otherwise twenty units could take all of
/// it.
const OFFERS_FOR_NEWCOMERS: usize = 100;

/// An offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Bid {
    /// The unit that makes it.
    pub by: UnitId,
    /// What it gives.
    pub gives: Offer,
    /// What it wants in return.
    pub wants: Offer,
    /// The only unit that may be the partner; `None`: any.
    pub with: Option<UnitId>,
    /// Duration of the exchange in nanoseconds; `None`: until one side ends it.
    pub for_ns: Option<Time>,
    /// The minimum of what it wants that it accepts, giving proportionally less; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Offer>,
    /// Whether it ends with the program that makes it, so that it is not kept for a later daemon.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub bound: bool,
}

/// One transfer of a deal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Leg {
    /// The lender.
    pub from: UnitId,
    /// The borrower.
    pub to: UnitId,
    /// The resource and amount, in the lender's measure.
    pub what: Offer,
    /// The lender's encloser, which issued the tickets.
    pub of: Option<UnitId>,
    /// The borrower's encloser.
    pub into: Option<UnitId>,
}

impl Leg {
    /// Whether the borrower holds it as a lot rather than among its own tickets.
    pub(super) fn is_lot(&self) -> bool {
        self.of != self.into || matches!(self.what.stake, Stake::Hard(_))
    }

    /// The lot in which the borrower holds it.
    pub(super) fn lot(&self) -> Lot {
        Lot { holder: self.to, currency: self.of, kind: self.measured().0 }
    }

    pub(super) fn quantity(&self) -> u64 {
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
    /// One leg from each unit.
    pub legs: Vec<Leg>,
    /// When it began.
    pub since: Time,
    /// When it expires; `None`: never.
    pub until: Option<Time>,
    /// Whether one of its offers was bound to a program.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub bound: bool,
}

/// An offer or exchange of an earlier daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumed {
    /// An open offer.
    Offer {
        /// The offer.
        bid: Bid,
    },
    /// An exchange that was in force.
    Deal {
        /// Its legs.
        legs: [Option<Leg>; RING_MAX],
        /// When it expires; `None`: never.
        until: Option<Time>,
    },
}

impl Resumed {
    /// Describes a deal.
    pub fn deal(legs: &[Leg], until: Option<Time>) -> Resumed {
        let mut all = [None; RING_MAX];
        for (place, leg) in all.iter_mut().zip(legs) {
            *place = Some(*leg);
        }
        Resumed::Deal { legs: all, until }
    }

    /// The units that it names.
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
    /// It expired.
    Over,
    /// One of its units ended it.
    Ended,
    /// A unit left the contract, or moved to another encloser.
    Gone,
    /// The contract gives a unit too few tickets, or too small a reservation, for what it lent.
    TooFew,
    /// The negotiator, which made it, ended it.
    Negotiated,
}

/// An event of the market in a step.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trade {
    /// An offer was accepted.
    Offered {
        /// Its number.
        offer: u64,
        /// The offer.
        bid: Bid,
    },
    /// An offer was removed without having been served: it was withdrawn, or its unit left the contract.
    Withdrawn {
        /// Its number.
        offer: u64,
    },
    /// An exchange came into force.
    Made {
        /// Its number.
        deal: u64,
        /// The offers that it serves, in the order of the legs.
        offers: Vec<u64>,
        /// The exchange.
        what: Deal,
    },
    /// An exchange ended.
    Undone {
        /// Its number.
        deal: u64,
        /// The reason.
        why: Ending,
        /// The exchange.
        what: Deal,
    },
}

/// Open offers, and deals in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Market {
    /// The last number given to an offer or a deal; they share one sequence.
    last: u64,
    offers: BTreeMap<u64, Bid>,
    deals: BTreeMap<u64, Deal>,
    /// Whether an offer may have become servable since the last attempt: an offer came, or rights changed.
    stirred: bool,
}

impl Market {
    /// Open offers by number, the oldest first.
    pub(super) fn offers(&self) -> &BTreeMap<u64, Bid> {
        &self.offers
    }

    /// Deals in force, by number.
    pub(super) fn deals(&self) -> &BTreeMap<u64, Deal> {
        &self.deals
    }

    /// Tickets or the set of units changed: reconsider all offers.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Units became active or inactive, so the values of currencies changed: reconsider offers if there are
    /// any.
    pub(super) fn stir_if_offered(&mut self) {
        self.stirred |= !self.offers.is_empty();
    }

    /// Whether nothing changed and no deal has expired.
    pub(super) fn is_settled(&self, now: Time) -> bool {
        !self.stirred && self.next().is_none_or(|next| next > now)
    }

    /// When the next deal expires.
    pub(super) fn next(&self) -> Option<Time> {
        self.deals.values().filter_map(|deal| deal.until).min()
    }

    /// Concludes an exchange of two matching offers, whatever else is offered, or does nothing.
    ///
    /// Refused: as for an offer; if the two do not match; if a unit would have too many tickets.
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
    /// Refused if one of these holds:
    /// - a unit is unknown, or the unit offers to itself;
    /// - it gives nothing, more than the unit has, all of its tickets, or reserved memory in use;
    /// - it gives and wants the same resource, or its minimum is invalid ([`Refused::NoExchange`]);
    /// - an exchange with the named partner would close a cycle of currencies;
    /// - [`OFFERS_MAX`] or, of this unit, [`OFFERS_OF_UNIT_MAX`] are open, or only the room for units without
    ///   an offer is left.
    pub(super) fn offer(&mut self, rights: &Rights, bid: Bid) -> Result<Trade, Refused> {
        let Bid { by, gives, wants, with, at_least, .. } = bid;
        rights.may_lend(by, gives)?;
        let is_minimum = |least: Offer| {
            let ((kind, least_quantity), (wanted_kind, all)) = (measured(least), measured(wants));
            least.resource == wants.resource && kind == wanted_kind && (1..=all).contains(&least_quantity)
        };
        let is_empty = gives.is_nothing() || wants.is_nothing();
        if gives.resource == wants.resource || is_empty || !at_least.is_none_or(is_minimum) {
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

    /// Restores an offer or an exchange under its former number.
    ///
    /// Refused: the number is taken; a unit is unknown, moved to another encloser, or no longer has what it
    /// lends.
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
        let event = match what {
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
                    // It was lent before, so memory in use is not checked.
                    rights.has(leg.from, leg.what)?;
                    if !rights.has_room(leg) {
                        let (unit, resource) = (leg.to, leg.what.resource);
                        return Err(Refused::TooMany {
                            unit,
                            resource,
                            has: TICKETS_MAX,
                            more: leg.quantity(),
                        });
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
        Ok(event)
    }

    /// Withdraws the offer, or ends the deal, of this number.
    ///
    /// Refused: there is no such number.
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

    /// Ends expired and invalid deals, drops offers of units that left, and serves offers.
    pub(super) fn settle(&mut self, now: Time, rights: &mut Rights) -> Vec<Trade> {
        let mut events = Vec::new();
        if self.is_settled(now) {
            return events;
        }
        let numbers: Vec<u64> = self.deals.keys().copied().collect();
        // The newest first: if a unit has lent too much, its older exchanges continue.
        for number in numbers.into_iter().rev() {
            let deal = &self.deals[&number];
            // Every unit of a deal is a lender, so the borrowers need no check.
            let stays = |leg: &Leg| rights.unit(leg.from).is_ok_and(|unit| unit.parent == leg.of);
            let gone = !deal.legs.iter().all(stays);
            let why = match deal.until {
                _ if gone => Ending::Gone,
                Some(until) if until <= now => Ending::Over,
                _ if deal.legs.iter().any(|leg| rights.lent_too_many(leg.from, leg.what)) => Ending::TooFew,
                _ => continue,
            };
            events.extend(self.undo(rights, number, why));
        }
        let is_gone = |unit: UnitId| rights.unit(unit).is_err();
        let gone = |bid: &Bid| is_gone(bid.by) || bid.with.is_some_and(is_gone);
        let withdrawn: Vec<u64> =
            self.offers.iter().filter(|(_, bid)| gone(bid)).map(|(number, _)| *number).collect();
        for offer in withdrawn {
            self.offers.remove(&offer);
            events.push(Trade::Withdrawn { offer });
        }
        while core::mem::take(&mut self.stirred) {
            if let Some((ring, legs)) = self.ring(rights) {
                events.push(self.serve(now, rights, ring, legs));
                self.stirred = true;
            }
        }
        events
    }

    /// The ring to serve next: the numbers of its offers, each of which gives what the next one wants (the
    /// last one gives what the first wants), and its legs.
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

/// Extends `ring` to `length` offers and closes it, by depth-first search. Returns its legs.
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

/// The legs of a ring. `None` if it cannot be served: an amount is too small, a receiver has no room,
/// currencies would form a cycle, or reserved memory in use would move.
fn legs(ring: &[Bid], rights: &Rights) -> Option<Vec<Leg>> {
    shares(ring, rights).filter(|legs| obstacle(legs, rights).is_none())
}

/// Why the legs of a ring cannot be carried out.
fn obstacle(legs: &[Leg], rights: &Rights) -> Option<Refused> {
    if let Some(leg) = legs.iter().find(|leg| !rights.has_room(leg)) {
        let (unit, resource) = (leg.to, leg.what.resource);
        return Some(Refused::TooMany { unit, resource, has: TICKETS_MAX, more: leg.quantity() });
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

/// What each unit gives so that each gets what it gives for. `None` if one would get less than its minimum.
fn shares(ring: &[Bid], rights: &Rights) -> Option<Vec<Leg>> {
    let n = ring.len();
    let link = |at: usize| (&ring[at], &ring[(at + 1) % n]);
    let mut gets: Vec<u64> = ring.iter().map(|bid| measured(bid.wants).1).collect();
    // Each round but the last reduces an amount. Rounding can make that slow, so the number of rounds is
    // bounded; a ring that exceeds it is not served.
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
        let quantity = cost(next, gets[(at + 1) % n], one, rights)?;
        let (kind, of) = lends_in(one, rights)?;
        let stake = kind.amount(quantity).map_or(Stake::Tickets(quantity), Stake::Hard);
        let what = Offer { resource: one.gives.resource, stake };
        let leg = Leg { from: one.by, to: next.by, what, of, into: rights.unit(next.by).ok()?.parent };
        (quantity > 0).then_some(leg)
    };
    (0..n).map(leg).collect()
}

/// The kind and currency in which the maker of an offer lends.
fn lends_in(bid: &Bid, rights: &Rights) -> Option<(Kind, Option<UnitId>)> {
    let unit = rights.unit(bid.by).ok()?;
    let kind = match bid.gives.stake {
        Stake::Tickets(_) => Kind::Soft,
        Stake::Hard(_) => Kind::of(unit.terms[bid.gives.resource].hard()?).0,
    };
    Some((kind, unit.parent))
}

/// The minimum of what it wants that an offer accepts.
fn least(bid: &Bid) -> u64 {
    measured(bid.at_least.unwrap_or(bid.wants)).1
}

/// The most that the maker of an offer gives for getting `gets`, in the measure in which it lends.
fn may_give(bid: &Bid, gets: u64, rights: &Rights) -> Option<u64> {
    let all = rights.in_own_measure(bid.by, bid.gives, false)?;
    let part = u128::from(all) * u128::from(gets) / u128::from(measured(bid.wants).1.max(1));
    u64::try_from(part).ok()
}

/// Converts `quantity` of what `bid` wants to the giver's measure, rounding up.
fn cost(bid: &Bid, quantity: u64, giver: &Bid, rights: &Rights) -> Option<u64> {
    let (from, to) = (rights.measure(bid.by, bid.wants)?, lends_in(giver, rights)?);
    rights.convert(bid.wants.resource, quantity, from, to, true)
}

/// Converts `quantity` of what `giver` gives to the measure in which `bid` wants it, rounding down.
fn affords(giver: &Bid, quantity: u64, bid: &Bid, rights: &Rights) -> Option<u64> {
    let (from, to) = (lends_in(giver, rights)?, rights.measure(bid.by, bid.wants)?);
    rights.convert(bid.wants.resource, quantity, from, to, false)
}

/// Whether `one` gives what `next` wants, at least its minimum. An offer restricted to a partner has that
/// partner on both sides, so it fits into pairs only.
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
