//! Exchanges: units offer tickets of one resource for tickets of another, and offers that match are served.
//!
//! Example: `a` computes and hardly reads, `b` reads and hardly computes. `a` offers 300 disk tickets for 200
//! CPU tickets, `b` offers 200 CPU tickets for 300 disk tickets. Both offers are served at the same time, and
//! all rights of other units are unchanged.
//!
//! Terms:
//! - An *offer* (type [`Bid`]) states what a unit gives, what the unit wants in return, for how long, and
//!   optionally with which partner. Each of the two amounts (type [`Offer`]) is a number of soft tickets or a
//!   part of a reservation.
//! - A *deal* (type [`Deal`]) is an exchange in force. Each of its *legs* moves tickets or a part of a
//!   reservation from one unit to another.
//! - A leg is a *loan*: the lender still owns what it lends. A unit holds what it owns, less what it lends,
//!   plus what it borrows.
//!
//! Algorithm: serve the oldest offer that can be served. Offers are served in rings of two to [`RING_MAX`]
//! offers. In a ring, each offer gives what the next offer wants: an amount of the same resource, tickets for
//! tickets or reservation for reservation, and worth at least as much. The shortest ring is preferred, and
//! among rings of equal length the one with the oldest offers. Each unit gives only as much as the next unit
//! wants, so a unit may give less than it offered. If two units have the same encloser, their tickets are
//! compared by number. Otherwise the tickets are compared by their current value, and the borrower holds them
//! as a [lot](super::lots) of the lender's currency.
//!
//! An offer without a minimum is served in full or not at all. An offer with a minimum may be served in part:
//! the unit gets less, and gives less in the same ratio. The largest amounts with which a ring can be served
//! are a fixed point, approached from above. At first each unit gets all that it wants. Then, around the ring
//! again and again, the amount that a unit gets is reduced to what the unit before it gives for its own
//! amount, until no amount changes.
//!
//! A deal ends when the shortest duration of its offers has passed, or when one of its units ends the deal,
//! leaves the contract, moves to another encloser, or is given less by the contract than the unit lends.
//! Ending a deal reverses every leg.
//!
//! Properties (tested): tickets and reservations are conserved in any history. Ending a deal reverses it
//! exactly. Every unit keeps at least one ticket. A unit cannot lend what it borrows. Currencies form no
//! cycle.
//!
//! Limits: when an offer is served in part, its remainder is dropped.
//!
//! Cost: after a change of offers, deals, tickets or the set of active units, O(n^2) for n offers if no two
//! match. Without such a change, nothing is computed.
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
/// How many of the [`OFFERS_MAX`] offers only units without an open offer may make. Without this reserve,
/// twenty units could use up the maximum.
const OFFERS_FOR_NEWCOMERS: usize = 100;

/// An offer of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Bid {
    /// The unit that makes the offer.
    pub by: UnitId,
    /// The amount that the unit gives.
    pub gives: Offer,
    /// The amount that the unit wants in return.
    pub wants: Offer,
    /// The only unit that may be the partner; `None`: any.
    pub with: Option<UnitId>,
    /// Duration of the exchange in nanoseconds; `None`: until one of the units ends it.
    pub for_ns: Option<Time>,
    /// The least that the unit accepts of the wanted amount; it then gives proportionally less. `None`: the
    /// unit accepts only the full amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Offer>,
    /// Whether the offer ends with the program that makes it, so that a later daemon does not restore it.
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
    /// Whether the borrower holds the amount as a lot rather than among its own tickets.
    pub(super) fn is_lot(&self) -> bool {
        self.of != self.into || matches!(self.what.stake, Stake::Hard(_))
    }

    /// The lot in which the borrower holds the amount, if [`Leg::is_lot`].
    pub(super) fn lot(&self) -> Lot {
        Lot { holder: self.to, currency: self.of, kind: self.kind_and_quantity().0 }
    }

    pub(super) fn quantity(&self) -> u64 {
        self.kind_and_quantity().1
    }

    fn kind_and_quantity(&self) -> (Kind, u64) {
        kind_and_quantity(self.what)
    }
}

/// The kind of an offered amount, and its quantity.
fn kind_and_quantity(offer: Offer) -> (Kind, u64) {
    match offer.stake {
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
    /// An exchange with these legs, of which there are at most [`RING_MAX`].
    pub fn deal(legs: &[Leg], until: Option<Time>) -> Resumed {
        let mut slots = [None; RING_MAX];
        for (slot, leg) in slots.iter_mut().zip(legs) {
            *slot = Some(*leg);
        }
        Resumed::Deal { legs: slots, until }
    }

    /// The units that the offer or the exchange names; a unit may occur several times.
    pub fn units(&self) -> impl Iterator<Item = UnitId> {
        let (bid, legs) = match *self {
            Resumed::Offer { bid } => (Some(bid), [None; RING_MAX]),
            Resumed::Deal { legs, .. } => (None, legs),
        };
        let in_bid = bid.into_iter().flat_map(|bid| [Some(bid.by), bid.with]).flatten();
        in_bid.chain(legs.into_iter().flatten().flat_map(|leg| [leg.from, leg.to]))
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
    /// The contract gives a unit fewer tickets, or a smaller reservation, than the unit lends.
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
    /// An offer was removed unserved: it was withdrawn, or a unit that it names left the contract.
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
    /// Whether offers or rights changed since the last attempt to serve offers, so that another attempt may
    /// succeed.
    is_dirty: bool,
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

    /// Has the next [`Market::settle`] reconsider all offers, since tickets or the set of units changed.
    pub(super) fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// As [`Market::mark_dirty`], if there are offers at all. For frequent events that change only the values
    /// of currencies: units that become active or inactive.
    pub(super) fn mark_dirty_if_offered(&mut self) {
        self.is_dirty |= !self.offers.is_empty();
    }

    /// Whether [`Market::settle`] has nothing to do: nothing changed, and no deal has expired.
    pub(super) fn is_settled(&self, now: Time) -> bool {
        !self.is_dirty && self.next().is_none_or(|next| next > now)
    }

    /// When the next deal expires.
    pub(super) fn next(&self) -> Option<Time> {
        self.deals.values().filter_map(|deal| deal.until).min()
    }

    /// Puts an exchange of two new offers into force, without regard to the open offers.
    ///
    /// The exchange is refused, without effect, if [`Market::offer`] refuses one of the two offers, if the
    /// offers do not match, or if a unit would have too many tickets.
    pub(super) fn conclude(
        &mut self,
        rights: &mut Rights,
        now: Time,
        bids: [Bid; 2],
    ) -> Result<Trade, Refused> {
        let was_dirty = self.is_dirty;
        let mut ring = Vec::new();
        let mut refused = None;
        for bid in &bids {
            match self.offer(rights, *bid) {
                Ok(_) => ring.push(self.last),
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        let matches = fits(&bids[0], &bids[1], rights) && fits(&bids[1], &bids[0], rights);
        let legs = if matches { feasible_legs(&bids, rights) } else { None };
        match (refused, legs) {
            (None, Some(legs)) => Ok(self.serve(now, rights, ring, legs)),
            (refused, _) => {
                self.offers.retain(|number, _| !ring.contains(number));
                self.is_dirty = was_dirty;
                Err(refused.unwrap_or(Refused::NoExchange { unit: bids[0].by }))
            }
        }
    }

    /// Adds an offer.
    ///
    /// Refused if one of these holds:
    /// - a unit is unknown, or the unit offers to itself;
    /// - the offer gives nothing, more than the unit has, all of the unit's tickets, or reserved memory in
    ///   use;
    /// - the offer gives and wants the same resource, or its minimum is invalid ([`Refused::NoExchange`]);
    /// - an exchange with the named partner would close a cycle of currencies;
    /// - [`OFFERS_OF_UNIT_MAX`] offers of this unit are open;
    /// - [`OFFERS_MAX`] offers of all units are open. The last [`OFFERS_FOR_NEWCOMERS`] of these are only for
    ///   units without an open offer.
    pub(super) fn offer(&mut self, rights: &Rights, bid: Bid) -> Result<Trade, Refused> {
        let Bid { by, gives, wants, with, at_least, .. } = bid;
        rights.check_can_lend(by, gives)?;
        let is_valid_minimum = |minimum: Offer| {
            let (kind, quantity) = kind_and_quantity(minimum);
            let (wanted_kind, wanted) = kind_and_quantity(wants);
            minimum.resource == wants.resource && kind == wanted_kind && (1..=wanted).contains(&quantity)
        };
        let is_empty = gives.is_nothing() || wants.is_nothing();
        if gives.resource == wants.resource || is_empty || !at_least.is_none_or(is_valid_minimum) {
            return Err(Refused::NoExchange { unit: by });
        }
        if let Some(with) = with {
            let (own_encloser, partners_encloser) = (rights.unit(by)?.parent, rights.unit(with)?.parent);
            if by == with {
                return Err(Refused::Itself { unit: by });
            }
            for (resource, holder, currency, own_currency) in [
                (gives.resource, with, own_encloser, partners_encloser),
                (wants.resource, by, partners_encloser, own_encloser),
            ] {
                let is_lot = currency != own_currency;
                if is_lot && rights.would_form_cycle(resource, &[(holder, currency)]) {
                    return Err(Refused::Loop { unit: holder });
                }
            }
        }
        let offers_of_unit = self.offers.values().filter(|bid| bid.by == by).count();
        if offers_of_unit >= OFFERS_OF_UNIT_MAX {
            return Err(Refused::TooManyOffersOfUnit { unit: by });
        }
        let offers_max = if offers_of_unit == 0 { OFFERS_MAX } else { OFFERS_MAX - OFFERS_FOR_NEWCOMERS };
        if self.offers.len() >= offers_max {
            return Err(Refused::TooManyOffers);
        }
        self.last += 1;
        self.offers.insert(self.last, bid);
        self.is_dirty = true;
        Ok(Trade::Offered { offer: self.last, bid })
    }

    /// Restores an offer or an exchange of an earlier daemon under its former number.
    ///
    /// Refused, without effect, if the number is taken or a unit is unknown. An exchange is also refused if a
    /// unit moved to another encloser, no longer owns what it lends, would have too many tickets, or would
    /// close a cycle of currencies.
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
                    // Unlike for a new exchange, memory in use is not checked: the amount was lent before.
                    rights.check_owns(leg.from, leg.what)?;
                    if !rights.has_room(leg) {
                        let (unit, resource) = (leg.to, leg.what.resource);
                        return Err(Refused::TooMany {
                            unit,
                            resource,
                            has: TICKETS_MAX,
                            more: leg.quantity(),
                        });
                    }
                    if leg.is_lot() && rights.would_form_cycle(leg.what.resource, &[(leg.to, leg.of)]) {
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
        self.is_dirty = true;
        Ok(event)
    }

    /// Withdraws the offer, or ends the deal, of this number. Refused if no offer and no deal has the number.
    pub(super) fn cancel(&mut self, rights: &mut Rights, number: u64) -> Result<Trade, Refused> {
        if self.offers.remove(&number).is_some() {
            return Ok(Trade::Withdrawn { offer: number });
        }
        self.undo(rights, number, Ending::Ended).ok_or(Refused::NoOffer { number })
    }

    /// Ends a deal: every lender gets back what it lent. Returns the event; `None` if no deal has the number.
    pub(super) fn undo(&mut self, rights: &mut Rights, number: u64, why: Ending) -> Option<Trade> {
        let deal = self.deals.remove(&number)?;
        self.is_dirty = true;
        for leg in &deal.legs {
            rights.give_back(leg);
        }
        Some(Trade::Undone { deal: number, why, what: deal })
    }

    /// Ends the deals that have expired or become invalid, drops every offer that names a unit that left the
    /// contract, and serves offers until no more can be served.
    pub(super) fn settle(&mut self, now: Time, rights: &mut Rights) -> Vec<Trade> {
        let mut events = Vec::new();
        if self.is_settled(now) {
            return events;
        }
        let numbers: Vec<u64> = self.deals.keys().copied().collect();
        // The newest deal first: if a unit lends too much, its newer deals end, and its older deals continue.
        for number in numbers.into_iter().rev() {
            let deal = &self.deals[&number];
            // Every unit of a deal is the lender of a leg, so the borrowers need no check.
            let stays = |leg: &Leg| rights.unit(leg.from).is_ok_and(|unit| unit.parent == leg.of);
            let has_moved = !deal.legs.iter().all(stays);
            let why = match deal.until {
                _ if has_moved => Ending::Gone,
                Some(until) if until <= now => Ending::Over,
                _ if deal.legs.iter().any(|leg| rights.has_overlent(leg.from, leg.what)) => Ending::TooFew,
                _ => continue,
            };
            events.extend(self.undo(rights, number, why));
        }
        let has_left = |unit: UnitId| rights.unit(unit).is_err();
        let is_void = |bid: &Bid| has_left(bid.by) || bid.with.is_some_and(has_left);
        let withdrawn: Vec<u64> =
            self.offers.iter().filter(|(_, bid)| is_void(bid)).map(|(number, _)| *number).collect();
        for offer in withdrawn {
            self.offers.remove(&offer);
            events.push(Trade::Withdrawn { offer });
        }
        // An exchange changes rights, so another offer may become servable.
        while core::mem::take(&mut self.is_dirty) {
            if let Some((ring, legs)) = self.next_ring(rights) {
                events.push(self.serve(now, rights, ring, legs));
                self.is_dirty = true;
            }
        }
        events
    }

    /// The ring to serve next: the numbers of its offers, and its legs. `None` if no ring can be served. Each
    /// offer gives what the next offer wants, and the last offer gives what the first wants.
    fn next_ring(&self, rights: &Rights) -> Option<(Vec<u64>, Vec<Leg>)> {
        let candidates: Vec<(u64, Bid)> = self
            .offers
            .iter()
            .filter(|(_, bid)| rights.check_can_lend(bid.by, bid.gives).is_ok())
            .map(|(number, bid)| (*number, *bid))
            .collect();
        candidates.iter().find_map(|first| {
            (2..=RING_MAX).find_map(|length| {
                let mut ring = vec![*first];
                let legs = complete_ring(&candidates, &mut ring, length, rights)?;
                Some((ring.iter().map(|(number, _)| *number).collect(), legs))
            })
        })
    }

    /// Puts a ring of offers into force as a deal, and removes these offers from the open ones.
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

/// Extends `ring` by depth-first search to `length` offers, of which the last fits the first. Returns the
/// ring's legs; `None` if there is no such ring.
fn complete_ring(
    candidates: &[(u64, Bid)],
    ring: &mut Vec<(u64, Bid)>,
    length: usize,
    rights: &Rights,
) -> Option<Vec<Leg>> {
    let (first, last) = (ring.first()?.1, ring.last()?.1);
    if ring.len() == length {
        let bids: Vec<Bid> = ring.iter().map(|(_, bid)| *bid).collect();
        return if fits(&last, &first, rights) { feasible_legs(&bids, rights) } else { None };
    }
    for (number, bid) in candidates {
        let is_in_ring = ring.iter().any(|(_, other)| other.by == bid.by);
        if !is_in_ring && fits(&last, bid, rights) {
            ring.push((*number, *bid));
            if let Some(legs) = complete_ring(candidates, ring, length, rights) {
                return Some(legs);
            }
            ring.pop();
        }
    }
    None
}

/// The legs of a ring. `None` if the ring cannot be served: a unit would get less than its minimum, a
/// borrower would have too many tickets, currencies would form a cycle, or reserved memory in use would move.
fn feasible_legs(ring: &[Bid], rights: &Rights) -> Option<Vec<Leg>> {
    balanced_legs(ring, rights).filter(|legs| obstacle(legs, rights).is_none())
}

/// Why the legs of a ring cannot be carried out; `None` if they can.
fn obstacle(legs: &[Leg], rights: &Rights) -> Option<Refused> {
    if let Some(leg) = legs.iter().find(|leg| !rights.has_room(leg)) {
        let (unit, resource) = (leg.to, leg.what.resource);
        return Some(Refused::TooMany { unit, resource, has: TICKETS_MAX, more: leg.quantity() });
    }
    let holder_in_cycle = |resource: Resource| {
        let lots = legs.iter().filter(|leg| leg.what.resource == resource && leg.of != leg.into);
        let lots: Vec<(UnitId, Option<UnitId>)> = lots.map(|leg| (leg.to, leg.of)).collect();
        (!lots.is_empty() && rights.would_form_cycle(resource, &lots)).then(|| lots[0].0)
    };
    match Resource::ALL.into_iter().find_map(holder_in_cycle) {
        Some(unit) => Some(Refused::Loop { unit }),
        None => rights.check_can_move(legs).err(),
    }
}

/// The largest legs of a ring such that each unit, for what it gets, gives at most what the ratio of its
/// offer allows. `None` if a unit would get less than its minimum, or if amounts cannot be converted.
fn balanced_legs(ring: &[Bid], rights: &Rights) -> Option<Vec<Leg>> {
    let n = ring.len();
    // The amount that each unit gets, in the measure in which it wants the amount.
    let mut gets: Vec<u64> = ring.iter().map(|bid| kind_and_quantity(bid.wants).1).collect();
    // Each round but the last reduces an amount. Because of rounding this may take many rounds, so their
    // number is bounded: a ring that needs more rounds is not served.
    for round in 0.. {
        let mut has_changed = false;
        for giver in 0..n {
            let taker = (giver + 1) % n;
            let most = most_given(&ring[giver], gets[giver], rights)?;
            if cost(&ring[taker], gets[taker], &ring[giver], rights)? > most {
                let affordable = affords(&ring[giver], most, &ring[taker], rights)?;
                let reduced = affordable.min(gets[taker].saturating_sub(1));
                if reduced < minimum_wanted(&ring[taker]) {
                    return None;
                }
                gets[taker] = reduced;
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
        if round > 4 * RING_MAX {
            return None;
        }
    }
    let leg = |giver: usize| {
        let (giver, taker, taker_gets) = (&ring[giver], &ring[(giver + 1) % n], gets[(giver + 1) % n]);
        let quantity = cost(taker, taker_gets, giver, rights)?;
        let (kind, of) = lent_kind_and_currency(giver, rights)?;
        let stake = kind.amount(quantity).map_or(Stake::Tickets(quantity), Stake::Hard);
        let what = Offer { resource: giver.gives.resource, stake };
        let leg = Leg { from: giver.by, to: taker.by, what, of, into: rights.unit(taker.by).ok()?.parent };
        (quantity > 0).then_some(leg)
    };
    (0..n).map(leg).collect()
}

/// The kind of amount and the currency in which the maker of an offer lends. A part of a reservation is lent
/// in the kind (absolute, or a fraction) of the unit's reservation, even if the offer states the other kind.
/// `None` if the unit has no reservation.
fn lent_kind_and_currency(bid: &Bid, rights: &Rights) -> Option<(Kind, Option<UnitId>)> {
    let unit = rights.unit(bid.by).ok()?;
    let kind = match bid.gives.stake {
        Stake::Tickets(_) => Kind::Soft,
        Stake::Hard(_) => Kind::of(unit.terms[bid.gives.resource].hard()?).0,
    };
    Some((kind, unit.parent))
}

/// The least quantity of what an offer wants for which the offer may be served.
fn minimum_wanted(bid: &Bid) -> u64 {
    kind_and_quantity(bid.at_least.unwrap_or(bid.wants)).1
}

/// The most that the maker of an offer gives for an amount `gets`, at the offer's ratio. The result is in the
/// measure in which the maker lends.
fn most_given(bid: &Bid, gets: u64, rights: &Rights) -> Option<u64> {
    let offered = rights.in_own_measure(bid.by, bid.gives, false)?;
    let part = u128::from(offered) * u128::from(gets) / u128::from(kind_and_quantity(bid.wants).1.max(1));
    u64::try_from(part).ok()
}

/// What `quantity` of the amount that `taker` wants costs `giver`: converts it to the measure in which
/// `giver` lends, rounding up.
fn cost(taker: &Bid, quantity: u64, giver: &Bid, rights: &Rights) -> Option<u64> {
    let from = rights.kind_and_currency(taker.by, taker.wants)?;
    let to = lent_kind_and_currency(giver, rights)?;
    rights.convert(taker.wants.resource, quantity, from, to, true)
}

/// What `taker` gets for `quantity` that `giver` lends, the inverse of [`cost`]: converts it to the measure
/// in which `taker` wants it, rounding down.
fn affords(giver: &Bid, quantity: u64, taker: &Bid, rights: &Rights) -> Option<u64> {
    let from = lent_kind_and_currency(giver, rights)?;
    let to = rights.kind_and_currency(taker.by, taker.wants)?;
    rights.convert(taker.wants.resource, quantity, from, to, false)
}

/// Whether `giver` gives what `taker` wants, and at least `taker`'s minimum. An offer restricted to a partner
/// must have that partner before and after it in the ring, so the ring can only be a pair.
fn fits(giver: &Bid, taker: &Bid, rights: &Rights) -> bool {
    let admits = |bid: &Bid, partner: UnitId| bid.with.is_none_or(|only| only == partner);
    let is_soft = |offer: Offer| matches!(offer.stake, Stake::Tickets(_));
    let is_enough = || {
        let offered = rights.in_own_measure(giver.by, giver.gives, false)?;
        Some(cost(taker, minimum_wanted(taker), giver, rights)? <= offered)
    };
    giver.gives.resource == taker.wants.resource
        && is_soft(giver.gives) == is_soft(taker.wants)
        && admits(giver, taker.by)
        && admits(taker, giver.by)
        && is_enough() == Some(true)
}

#[cfg(test)]
mod tests;
