//! The tree of rights, updated incrementally: which units are active, how many tickets they have, and what
//! these are worth.
//!
//! Problem: the arrival or exit of a process, or a transfer of tickets, must not cost a recomputation of the
//! whole tree. It should cost time in proportion to the tree's depth, and little more for many siblings.
//!
//! Terms: a unit is *active*, for a resource, if it or one of its sub-units is *present*. A unit's *value* is
//! what it and its sub-units hold. Its *own part* is what its own processes hold, beside its sub-units. A
//! unit is a *currency*: its tickets divide its *worth*, and have no meaning outside it. Worth equals value
//! unless its sub-units hold tickets of other currencies, or units outside it hold tickets of its own
//! ([`lots`]).
//!
//! Algorithm, for each level of the tree, dividing the value V among the active units there:
//! 1. Each unit gets its reservation, capped at its limit. A percentage is of V. If the reservations exceed
//!    V, all are scaled down in proportion.
//! 2. The rest is divided by soft tickets. No unit exceeds its limit.
//!
//! A unit's own processes, those in none of its sub-units, count as one more sub-unit with
//! [`DEFAULT_TICKETS`] and no reservation. What limits leave over stays with the enclosing unit; at the top
//! level it is *unheld*. Under `quota`, every unit without sub-units counts as present, since a fixed quota
//! waits for its owner. An absolute amount is ignored if the capacity is unknown ([`Capacity::Parts`]).
//!
//! A unit that holds lots has a part at the level of each lot's currency and at its own level; its worth is
//! their sum. So currencies must not form a cycle: a change that would close one is refused.
//!
//! Values are not stored. Each level keeps sums over its active units (`worth` defines them), and a value is
//! computed on the way from the root down to the unit.
//!
//! Properties (tested):
//! - *Exact*: the own parts and the unheld part sum to the capacity. Each part is within 1 of its exact value
//!   at its level.
//! - *No history*: values equal those of a full recomputation, whatever happened before.
//! - *Local*: what happens inside a unit changes no value outside it, as long as the unit's activity does not
//!   change.
//! - *Monotone*: more tickets are never worth less. A unit that becomes active makes no active unit richer,
//!   whatever the limits and reservations. Both hold within 1 for siblings because of rounding; deeper,
//!   within 1 more for each level and each percentage.
//! - *Transfers* between two active siblings without limits change no other value at their level by more than
//!   1 (rounding), and nothing outside it. Two cases differ: a limited unit may give away tickets that its
//!   limit made worthless, and an inactive unit may give tickets to an active one. Such tickets become
//!   effective, so others have less than before, but never less than if all units were active and none
//!   limited (seed 004, section 5.5).
//!
//! Costs, for a tree of depth D and levels of S siblings with C distinct pairs of reservation and limit: a
//! change takes D log S. A value takes D C log S, times a few rounds if limits are met (bounded in `worth`).
//! All values together take one step per unit plus C log S per level. [`Rights::adopt`] takes N log N for N
//! units. With lots, a value takes C log S for each level on every path to its unit, and a change log S for
//! each lot of a unit whose activity changes.
//!
//! Limits: gifts pass between siblings only. The contract's limits apply to a unit's part at its own level,
//! not to its lots; the enforcing side caps both.
//!
//! Source: seed 004, sections 5.2 to 5.5 (currencies, hard and soft tickets, inactive tickets, exchanges);
//! seed 000, section 2.1 (only units with active processes need be allocated resources).

mod change;
pub mod entitlement;
mod in_use;
pub(crate) mod limits;
mod lots;
mod ordered;
pub mod share;
mod trade;
mod worth;

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, DEFAULT_TICKETS, MILLIONTH, PerResource, Resource, Scheme, UnitId};

pub use entitlement::{Capacity, Entitlement};
pub use in_use::InUse;
use lots::{Kind, Lot, Lots};
use ordered::{Entry, Forest, Tree};
use worth::{Division, Level, Part, Terms};

use crate::time::Time;

pub use change::{Change, How, NoOffer, Offer, Refused, Stake};
use trade::Market;
pub use trade::{Bid, Deal, Ending, Leg, RING_MAX, Resumed, Trade, Waits};

/// The most tickets of a resource that a unit may have, in a contract as well. The least is 1.
pub const TICKETS_MAX: u64 = 1_000_000;

/// The tickets that the contract gives a unit.
fn tickets_of(unit: &commonhold_contract::Unit, resource: Resource) -> u64 {
    unit.tickets[resource]
}

/// A unit that holds tickets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Unit {
    parent: Option<UnitId>,
    /// Whether the contract has units in it.
    encloses: bool,
    /// The tickets that the contract gives it.
    asked: PerResource<u64>,
    /// Its own tickets now, those included that it lent.
    tickets: PerResource<u64>,
    /// The part of `tickets` lent to others in exchanges.
    lent: PerResource<u64>,
    /// Tickets of siblings lent to it in exchanges.
    borrowed: PerResource<u64>,
    /// The part of its reservation lent in exchanges, in the measure used by the contract.
    hard_lent: PerResource<u64>,
    /// Set by [`Rights::set_present_for`].
    present: PerResource<bool>,
    active: PerResource<bool>,
    /// Its reservation and limit by the contract.
    terms: PerResource<Terms>,
    inside: Level,
}

impl Unit {
    /// Whether its own part counts, beside its sub-units.
    fn is_present(&self, resource: Resource, quota: bool) -> bool {
        self.present[resource] || quota && !self.encloses
    }

    /// The effective tickets. After a reload that gives it fewer than it lent, 1 until its exchanges are
    /// undone.
    fn counting(&self, resource: Resource) -> u64 {
        let (all, lent) = (self.tickets[resource] + self.borrowed[resource], self.lent[resource]);
        if lent == 0 { all } else { all.saturating_sub(lent).max(1) }
    }

    /// Its class and entry in its encloser's level.
    fn entry(&self, unit: UnitId, resource: Resource) -> (Terms, Entry) {
        let entry = Entry { id: unit.0.into(), tickets: self.counting(resource) };
        (self.terms[resource].less(self.hard_lent[resource]), entry)
    }
}

/// The rights of all units under one contract. See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct Rights {
    /// Indexed by unit; `None`: not in the contract, or a common part.
    units: Vec<Option<Unit>>,
    top: Level,
    forest: Forest,
    quota: bool,
    capacity: PerResource<Option<Capacity>>,
    /// Holdings in currencies other than by tickets issued in the holder's own name: from exchanges and
    /// [`Change::Fund`].
    lots: Lots,
    /// The part of `lots` that stems from [`Change::Fund`].
    funded: Lots,
    market: Market,
    /// Memory in use; `None` until an offer depends on it.
    in_use: Option<InUse>,
    /// Outcomes of offers since the last [`Rights::settle`].
    traded: Vec<Trade>,
}

/// Compares what determines values. The trees of equal rights may have been built in another order.
impl PartialEq for Rights {
    fn eq(&self, other: &Rights) -> bool {
        let capacities = |rights: &Rights| Resource::ALL.map(|resource| rights.capacity(resource));
        let lots = |rights: &Rights| (rights.lots.clone(), rights.funded.clone());
        (&self.units, &self.top, self.quota, capacities(self), &self.market, &self.traded)
            == (&other.units, &other.top, other.quota, capacities(other), &other.market, &other.traded)
            && lots(self) == lots(other)
    }
}

impl Eq for Rights {}

impl Rights {
    /// The rights of a contract, with no unit present and every capacity [`Capacity::Parts`].
    pub fn new(contract: &Contract) -> Rights {
        let mut rights = Rights::default();
        rights.adopt(contract);
        rights
    }

    /// Carries the rights over to another contract, after a reload. Units are identified by their numbers.
    ///
    /// - A unit that stays keeps its presence.
    /// - It keeps its tickets of a resource if the contract gives it the same number as before; otherwise the
    ///   contract's new number holds.
    /// - A sub-unit that `each` made of a control group has tickets derived from settings of the group's
    ///   manager, which knows nothing of changes. Its changed tickets stay; unchanged ones follow the
    ///   manager.
    /// - A unit that moved to another encloser has what the contract gives it.
    /// - What was given to a unit that left the contract is lost with it.
    /// - Exchanges of units that stay in place continue; [`Rights::settle`] undoes the others.
    pub fn adopt(&mut self, contract: &Contract) {
        let (mut market, traded) = (core::mem::take(&mut self.market), core::mem::take(&mut self.traded));
        let (lots, funded) = (core::mem::take(&mut self.lots), core::mem::take(&mut self.funded));
        let in_use = self.in_use.take();
        market.stir();
        let before = core::mem::replace(
            self,
            Rights {
                market,
                traded,
                lots,
                funded,
                in_use,
                quota: contract.machine.scheme == Scheme::Quota,
                units: vec![None; contract.units.len()],
                capacity: self.capacity,
                ..Rights::default()
            },
        );
        for id in contract.held() {
            let asked = contract.unit(id);
            let mut unit = Unit { parent: asked.parent, ..Unit::default() };
            let old = before.unit(id).ok();
            let is_made = contract.group_of(id).is_some();
            for resource in Resource::ALL {
                unit.asked[resource] = tickets_of(asked, resource);
                unit.terms[resource] = Terms::new(asked.hard[resource], asked.limit[resource]);
                unit.tickets[resource] = match old {
                    Some(old)
                        if old.parent == asked.parent
                            && (old.asked[resource] == unit.asked[resource]
                                || is_made && old.tickets[resource] != old.asked[resource]) =>
                    {
                        old.tickets[resource]
                    }
                    _ => unit.asked[resource],
                };
            }
            unit.present = old.map(|old| old.present).unwrap_or_default();
            if let Some(old) = old.filter(|old| old.parent == asked.parent) {
                (unit.lent, unit.borrowed, unit.hard_lent) = (old.lent, old.borrowed, old.hard_lent);
            }
            self.units[id.index()] = Some(unit);
        }
        for id in contract.held() {
            let encloser = contract.unit(id).parent;
            if let Some(unit) = encloser.and_then(|id| self.units.get_mut(id.index())?.as_mut()) {
                unit.encloses = true;
            }
        }
        let units = &self.units;
        let is_there = |id: UnitId| units.get(id.index()).is_some_and(Option::is_some);
        self.lots.retain(is_there);
        self.funded.retain(is_there);
        for id in contract.held() {
            for resource in Resource::ALL {
                self.refresh(id, resource);
            }
        }
    }

    /// As [`Rights::adopt`], unless the rights match the contract already.
    pub fn follow(&mut self, contract: &Contract) {
        if !self.are_of(contract) {
            self.adopt(contract);
        }
    }

    /// Whether the rights match the contract: same units, enclosers, tickets, reservations, limits and
    /// scheme.
    pub(crate) fn are_of(&self, contract: &Contract) -> bool {
        let same = |id: UnitId| {
            let asked = contract.unit(id);
            let (true, Ok(unit)) = (contract.has(id) && !id.is_common(), self.unit(id)) else {
                return self.unit(id).is_ok() == (contract.has(id) && !id.is_common());
            };
            unit.parent == asked.parent
                && Resource::ALL.into_iter().all(|resource| {
                    let terms = Terms::new(asked.hard[resource], asked.limit[resource]);
                    unit.asked[resource] == tickets_of(asked, resource) && unit.terms[resource] == terms
                })
        };
        self.quota == (contract.machine.scheme == Scheme::Quota)
            && self.units.len() == contract.units.len()
            && contract.ids().all(same)
    }

    fn unit(&self, unit: UnitId) -> Result<&Unit, Refused> {
        self.units.get(unit.index()).and_then(Option::as_ref).ok_or(Refused::Unknown { unit })
    }

    fn unit_mut(&mut self, unit: UnitId) -> Result<&mut Unit, Refused> {
        self.units.get_mut(unit.index()).and_then(Option::as_mut).ok_or(Refused::Unknown { unit })
    }

    fn level(&self, parent: Option<UnitId>) -> &Level {
        parent.and_then(|id| self.unit(id).ok()).map_or(&self.top, |unit| &unit.inside)
    }

    fn level_mut(&mut self, parent: Option<UnitId>) -> &mut Level {
        match parent.and_then(|id| self.units.get_mut(id.index())?.as_mut()) {
            Some(unit) => &mut unit.inside,
            None => &mut self.top,
        }
    }

    /// Recomputes whether a unit is active. On a change, propagates to its enclosers and to the units whose
    /// currency it holds.
    fn refresh(&mut self, unit: UnitId, resource: Resource) {
        let (quota, mut next, mut others) = (self.quota, Some(unit), Vec::new());
        while let Some(id) = next.take().or_else(|| others.pop()) {
            let Ok(unit) = self.unit_mut(id) else { continue };
            let active = unit.is_present(resource, quota) || unit.inside.active[resource] > 0;
            if unit.active[resource] == active {
                continue;
            }
            unit.active[resource] = active;
            let parent = unit.parent;
            let (terms, entry) = unit.entry(id, resource);
            self.enter(parent, resource, terms, entry, active);
            next = parent;
            if !self.lots.is_empty(resource) {
                let lots: Vec<(Lot, u64)> = self.lots.held_by(resource, id).collect();
                for (lot, quantity) in lots {
                    let (terms, entry) = lot.entry(quantity);
                    self.enter(lot.currency, resource, terms, entry, active);
                    others.extend(lot.currency);
                }
            }
            self.market.stir_if_offered();
        }
    }

    /// Inserts an entry into its class's tree, or removes it.
    fn enter(&mut self, level: Option<UnitId>, resource: Resource, terms: Terms, entry: Entry, is_in: bool) {
        let inside = self.level_mut(level);
        let count = &mut inside.active[resource];
        *count = if is_in { *count + 1 } else { count.saturating_sub(1) };
        let known = inside.classes[resource].get(&terms).copied();
        let mut tree = known.unwrap_or_else(|| Tree::new(terms.by_tickets()));
        match is_in {
            true => self.forest.insert(&mut tree, entry),
            false => self.forest.remove(&mut tree, entry),
        }
        let is_empty = self.forest.total(tree).units == 0;
        let classes = &mut self.level_mut(level).classes[resource];
        match is_empty {
            true => drop(classes.remove(&terms)),
            false => drop(classes.insert(terms, tree)),
        }
    }

    /// Sets whether a unit has processes of its own, for every resource. In a new contract no unit has.
    pub fn set_present(&mut self, unit: UnitId, present: bool) -> Result<(), Refused> {
        Resource::ALL.iter().try_for_each(|resource| self.set_present_for(unit, *resource, present))
    }

    /// Whether [`Rights::set_present`] has this value already.
    pub(crate) fn is_present(&self, unit: UnitId, present: bool) -> bool {
        let is_set = |unit: &Unit| Resource::ALL.iter().all(|resource| unit.present[*resource] == present);
        self.unit(unit).is_ok_and(is_set)
    }

    /// Whether [`Rights::set_present_for`] has this value already.
    pub(crate) fn is_present_for(&self, unit: UnitId, resource: Resource, present: bool) -> bool {
        self.unit(unit).is_ok_and(|unit| unit.present[resource] == present)
    }

    /// Sets whether a unit's own part counts for one resource: a unit without processes may still be using a
    /// disk.
    pub fn set_present_for(
        &mut self,
        unit: UnitId,
        resource: Resource,
        present: bool,
    ) -> Result<(), Refused> {
        self.unit_mut(unit)?.present[resource] = present;
        self.refresh(unit, resource);
        Ok(())
    }

    /// Whether a unit is active; `false` for an unknown one.
    pub fn is_active(&self, unit: UnitId, resource: Resource) -> bool {
        self.unit(unit).is_ok_and(|unit| unit.active[resource])
    }

    /// A unit's own tickets, those included that it lent; 0 for an unknown unit.
    pub fn tickets(&self, unit: UnitId, resource: Resource) -> u64 {
        self.unit(unit).map_or(0, |unit| unit.tickets[resource])
    }

    /// Tickets that a unit lent and that were lent to it in exchanges, as `(lent, borrowed)`.
    pub fn lent_and_borrowed(&self, unit: UnitId, resource: Resource) -> (u64, u64) {
        self.unit(unit).map_or((0, 0), |unit| (unit.lent[resource], unit.borrowed[resource]))
    }

    /// Open offers by number, the oldest first.
    pub fn offers(&self) -> &BTreeMap<u64, Bid> {
        self.market.offers()
    }

    /// Exchanges in force, by number.
    pub fn deals(&self) -> &BTreeMap<u64, Deal> {
        self.market.deals()
    }

    /// Ends expired and invalid exchanges and serves the offers that can be served. Returns all outcomes
    /// since the last call.
    pub fn settle(&mut self, now: Time) -> Vec<Trade> {
        let mut market = core::mem::take(&mut self.market);
        let events = market.settle(now, self);
        self.market = market;
        self.traded.extend(events);
        core::mem::take(&mut self.traded)
    }

    /// Whether [`Rights::settle`] would change and report nothing now.
    pub(crate) fn is_settled(&self, now: Time) -> bool {
        self.traded.is_empty() && self.market.is_settled(now)
    }

    /// When [`Rights::settle`] must be called next, if nothing else happens.
    pub fn next(&self) -> Option<Time> {
        self.market.next()
    }

    /// Tickets that an encloser has issued to the active units directly in it, its own processes' included;
    /// `None`: at the top level.
    pub fn issued(&self, encloser: Option<UnitId>, resource: Resource) -> u64 {
        let classes = &self.level(encloser).classes[resource];
        let units: u64 = classes.values().map(|tree| self.forest.total(*tree).tickets).sum();
        units + self.own_tickets(encloser, resource)
    }

    /// The tickets of an encloser's own processes, while it has any; 0 at the top level (`None`).
    pub fn own_tickets(&self, encloser: Option<UnitId>, resource: Resource) -> u64 {
        let unit = encloser.and_then(|id| self.unit(id).ok());
        match unit.is_some_and(|unit| unit.is_present(resource, self.quota)) {
            true => DEFAULT_TICKETS,
            false => 0,
        }
    }

    /// Makes a change: the last step described at the head of the module `change`. Callers queue changes and let
    /// `policy::step` call this.
    ///
    /// Refused, with no effect: unknown units; counts that are not 1 to [`TICKETS_MAX`], or not more than the
    /// unit lent; transfers to the unit itself, or to one that is not a sibling; cycles of currencies; invalid
    /// offers. See [`Refused`].
    pub fn apply(&mut self, change: Change) -> Result<(), Refused> {
        match change {
            Change::Offer { bid } => self.trade(|market, rights| market.offer(rights, bid)),
            Change::Cancel { number } => self.trade(|market, rights| market.cancel(rights, number)),
            Change::Resume { number, what, at } => {
                self.trade(|market, rights| market.resume(rights, at, number, what))
            }
            Change::Set { unit, resource, tickets } => self.set_tickets(unit, resource, tickets),
            Change::Issue { unit, resource, tickets } => self.issue(unit, resource, tickets),
            Change::TakeBack { unit, resource, tickets } => self.take_back(unit, resource, tickets),
            Change::Several { unit, how, tickets } => self.change_several(unit, how, tickets),
            Change::Transfer { from, to, resource, tickets } => self.transfer(from, to, resource, tickets),
            Change::Exchange { one, other, gives, gets } => self.exchange(one, other, gives, gets),
            Change::Fund { unit, of, tickets } => self.fund(unit, of, tickets),
        }
    }

    fn trade(
        &mut self,
        change: impl FnOnce(&mut Market, &mut Rights) -> Result<Trade, Refused>,
    ) -> Result<(), Refused> {
        let mut market = core::mem::take(&mut self.market);
        let event = change(&mut market, self);
        self.market = market;
        self.traded.push(event?);
        Ok(())
    }

    /// Concludes an exchange of two matching offers, whatever else is offered. Returns its number;
    /// [`Rights::settle`] reports it.
    ///
    /// Refused, with no effect: as for an offer, and if the two do not match.
    pub(crate) fn strike(&mut self, now: Time, bids: [Bid; 2]) -> Result<u64, Refused> {
        let mut market = core::mem::take(&mut self.market);
        let event = market.strike(self, now, bids);
        self.market = market;
        self.traded.push(event?);
        // The newest exchange has the largest number.
        Ok(self.market.deals().keys().next_back().copied().unwrap_or_default())
    }

    /// Ends an exchange made by [`Rights::strike`], if it is still in force.
    pub(crate) fn end(&mut self, number: u64) {
        let mut market = core::mem::take(&mut self.market);
        let event = market.undo(self, number, Ending::Negotiated);
        self.market = market;
        self.traded.extend(event);
    }

    /// As [`Change::Set`].
    pub fn set_tickets(&mut self, unit: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        let now = self.with_just(unit, resource, tickets)?;
        self.store_tickets(unit, resource, now)
    }

    /// As [`Change::Several`]. Validates all resources before it changes any: a change of one does not affect whether another
    /// is valid.
    fn change_several(
        &mut self,
        unit: UnitId,
        how: How,
        tickets: PerResource<Option<u64>>,
    ) -> Result<(), Refused> {
        self.unit(unit)?;
        let mut now = Vec::new();
        for resource in Resource::ALL {
            let Some(tickets) = tickets[resource] else { continue };
            let then = match how {
                How::Set => self.with_just(unit, resource, tickets)?,
                How::Issue => self.with_more(unit, resource, tickets)?,
                How::TakeBack => self.with_fewer(unit, resource, tickets)?,
            };
            now.push((resource, then));
        }
        now.into_iter().try_for_each(|(resource, tickets)| self.store_tickets(unit, resource, tickets))
    }

    /// As [`Change::Issue`].
    pub fn issue(&mut self, unit: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        let now = self.with_more(unit, resource, tickets)?;
        self.store_tickets(unit, resource, now)
    }

    /// As [`Change::TakeBack`].
    pub fn take_back(&mut self, unit: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        let now = self.with_fewer(unit, resource, tickets)?;
        self.store_tickets(unit, resource, now)
    }

    /// As [`Change::Transfer`].
    pub fn transfer(
        &mut self,
        from: UnitId,
        to: UnitId,
        resource: Resource,
        tickets: u64,
    ) -> Result<(), Refused> {
        self.refuse_unless_siblings(from, to)?;
        let (left, got) = (self.with_fewer(from, resource, tickets)?, self.with_more(to, resource, tickets)?);
        self.store_tickets(from, resource, left)?;
        self.store_tickets(to, resource, got)
    }

    /// As [`Change::Exchange`].
    pub fn exchange(&mut self, one: UnitId, other: UnitId, gives: Offer, gets: Offer) -> Result<(), Refused> {
        let (Stake::Tickets(given), Stake::Tickets(got)) = (gives.stake, gets.stake) else {
            return Err(Refused::NoExchange { unit: one });
        };
        self.transfer(one, other, gives.resource, given)?;
        let second = self.transfer(other, one, gets.resource, got);
        if second.is_err() {
            self.transfer(other, one, gives.resource, given)?;
        }
        second
    }

    /// As [`Change::Fund`].
    pub fn fund(
        &mut self,
        unit: UnitId,
        currency: Option<UnitId>,
        tickets: PerResource<Option<u64>>,
    ) -> Result<(), Refused> {
        let parent = self.unit(unit)?.parent;
        if let Some(issuer) = currency {
            self.unit(issuer)?;
        }
        if parent == currency {
            return self.change_several(unit, How::Set, tickets);
        }
        let named = || Resource::ALL.into_iter().filter_map(|resource| Some((resource, tickets[resource]?)));
        for (resource, tickets) in named() {
            if tickets > TICKETS_MAX {
                return Err(Refused::TooMany { unit, resource, has: 0, more: tickets });
            }
            if tickets > 0 && self.would_loop(resource, &[(unit, currency)]) {
                return Err(Refused::Loop { unit });
            }
        }
        for (resource, tickets) in named() {
            let lot = Lot { holder: unit, currency, kind: Kind::Soft };
            let (before, all) = (self.funded.quantity(resource, lot), self.lots.quantity(resource, lot));
            self.funded.set(resource, lot, tickets);
            self.set_lot(resource, lot, all.saturating_sub(before).saturating_add(tickets));
        }
        self.market.stir();
        Ok(())
    }

    /// Holdings from [`Change::Fund`]: the holder, the currency (`None`: the base currency), and the number
    /// of tickets.
    pub fn funded(&self, resource: Resource) -> impl Iterator<Item = (UnitId, Option<UnitId>, u64)> + '_ {
        self.funded.all(resource).map(|(lot, tickets)| (lot.holder, lot.currency, tickets))
    }

    /// All lots, from [`Change::Fund`] and exchanges: the holder, the currency (`None`: the base currency),
    /// and the amount.
    pub fn lots(&self, resource: Resource) -> impl Iterator<Item = (UnitId, Option<UnitId>, Offer)> + '_ {
        self.lots.all(resource).map(move |(lot, quantity)| {
            let stake = lot.kind.amount(quantity).map_or(Stake::Tickets(quantity), Stake::Hard);
            (lot.holder, lot.currency, Offer { resource, stake })
        })
    }

    fn would_loop(&self, resource: Resource, more: &[(UnitId, Option<UnitId>)]) -> bool {
        self.lots.would_loop(resource, more, |unit| self.unit(unit).ok().and_then(|unit| unit.parent))
    }

    fn set_lot(&mut self, resource: Resource, lot: Lot, quantity: u64) {
        let before = self.lots.quantity(resource, lot);
        self.lots.set(resource, lot, quantity);
        if !self.is_active(lot.holder, resource) {
            return;
        }
        for (quantity, is_in) in [(before, false), (quantity, true)] {
            if quantity > 0 {
                let (terms, entry) = lot.entry(quantity);
                self.enter(lot.currency, resource, terms, entry, is_in);
            }
        }
        if let Some(issuer) = lot.currency {
            self.refresh(issuer, resource);
        }
    }

    /// The unit's new number of tickets if it is set to `tickets`.
    fn with_just(&self, unit: UnitId, resource: Resource, tickets: u64) -> Result<u64, Refused> {
        let has = self.unit(unit)?.tickets[resource];
        match tickets.checked_sub(has) {
            Some(more) => self.with_more(unit, resource, more),
            None => self.with_fewer(unit, resource, has - tickets),
        }
    }

    /// The unit's new number of tickets if it gets `more`.
    fn with_more(&self, unit: UnitId, resource: Resource, more: u64) -> Result<u64, Refused> {
        let (known, has) = (self.unit(unit)?, self.tickets(unit, resource));
        let now =
            has.checked_add(more).filter(|now| now.saturating_add(known.borrowed[resource]) <= TICKETS_MAX);
        now.ok_or(Refused::TooMany { unit, resource, has, more })
    }

    /// The unit's new number of tickets if it gives up `fewer`. It must then still have more than it lent.
    fn with_fewer(&self, unit: UnitId, resource: Resource, fewer: u64) -> Result<u64, Refused> {
        let (lent, has) = (self.unit(unit)?.lent[resource], self.tickets(unit, resource));
        match has.checked_sub(fewer) {
            Some(now) if now > lent => Ok(now),
            Some(now) if now > 0 => Err(Refused::Lent { unit, resource, has, lent }),
            _ => Err(Refused::TooFew { unit, resource, has, fewer }),
        }
    }

    /// A unit and its enclosers, from the inside out.
    fn lineage(&self, unit: Option<UnitId>) -> impl Iterator<Item = UnitId> + '_ {
        core::iter::successors(unit, |unit| self.unit(*unit).ok().and_then(|unit| unit.parent))
    }

    /// Whether `inner` is strictly inside `outer`.
    fn encloses(&self, outer: UnitId, inner: UnitId) -> bool {
        self.lineage(Some(inner)).skip(1).any(|unit| unit == outer)
    }

    /// Whether `inner` is `unit` or inside it.
    fn is_in(&self, unit: UnitId, inner: Option<UnitId>) -> bool {
        self.lineage(inner).any(|around| around == unit)
    }

    /// Refuses unless the two units are distinct siblings.
    fn refuse_unless_siblings(&self, from: UnitId, to: UnitId) -> Result<(), Refused> {
        if self.unit(from)?.parent != self.unit(to)?.parent {
            return Err(Refused::Enclosers { from, to });
        }
        if from == to { Err(Refused::Itself { unit: from }) } else { Ok(()) }
    }

    /// Refuses unless a unit owns this amount and can do without it.
    fn may_lend(&self, unit: UnitId, what: Offer) -> Result<(), Refused> {
        self.has(unit, what)?;
        self.can_spare(unit, what)
    }

    /// Refuses unless a unit owns this amount; of tickets, one more.
    fn has(&self, unit: UnitId, what: Offer) -> Result<(), Refused> {
        let resource = what.resource;
        match what.stake {
            Stake::Tickets(tickets) => self.with_fewer(unit, resource, tickets).map(|_| ()),
            Stake::Hard(_) => {
                let known = self.unit(unit)?;
                let (has, lent) = (known.terms[resource].hard(), known.hard_lent[resource]);
                let left = has.map(Kind::of).map(|(kind, has)| (kind, has.saturating_sub(lent)));
                let asked = self.in_own_measure(unit, what, false).unwrap_or(0);
                if asked > 0 && left.is_some_and(|(_, left)| asked <= left) {
                    return Ok(());
                }
                let left = left.and_then(|(kind, left)| kind.amount(left));
                let left = left.map(|amount| Offer::hard(resource, amount)).filter(|left| !left.is_nothing());
                Err(Refused::NotReserved { unit, resource, left })
            }
        }
    }

    /// An amount that a unit offers, in the measure in which it lends: tickets, or the measure of its
    /// reservation. `None` if it has no reservation, or the amount cannot be converted.
    fn in_own_measure(&self, unit: UnitId, what: Offer, up: bool) -> Option<u64> {
        let known = self.unit(unit).ok()?;
        match what.stake {
            Stake::Tickets(tickets) => Some(tickets),
            Stake::Hard(amount) => {
                let (kind, quantity) = Kind::of(amount);
                let (own, _) = Kind::of(known.terms[what.resource].hard()?);
                self.convert(what.resource, quantity, (kind, known.parent), (own, known.parent), up)
            }
        }
    }

    /// The kind of an amount that a unit gives or wants, and its currency.
    fn measure(&self, unit: UnitId, what: Offer) -> Option<(Kind, Option<UnitId>)> {
        let kind = match what.stake {
            Stake::Tickets(_) => Kind::Soft,
            Stake::Hard(amount) => Kind::of(amount).0,
        };
        Some((kind, self.unit(unit).ok()?.parent))
    }

    /// Converts an amount between currencies and kinds at current values. Tickets are rounded to the nearest,
    /// since their value is rounded itself; reservations as `up` says. `None` if the two are not comparable
    /// now: no unit is active, or the capacity is unknown.
    fn convert(
        &self,
        resource: Resource,
        quantity: u64,
        (kind, from): (Kind, Option<UnitId>),
        (other_kind, to): (Kind, Option<UnitId>),
        up: bool,
    ) -> Option<u64> {
        if kind == other_kind && (from == to || kind == Kind::Absolute) {
            return Some(quantity);
        }
        let values = self.to(resource);
        let worth = |currency: Option<UnitId>| values.currency(currency);
        let divide = |product: Option<u128>, by: u128| {
            let product = product.filter(|_| by > 0)?;
            u64::try_from(if up { product.div_ceil(by) } else { product / by }).ok()
        };
        let times = |a: u128, b: u64| a.checked_mul(u128::from(b));
        if kind == Kind::Soft || other_kind == Kind::Soft {
            let per_ticket = |currency| values.division(currency, worth(currency)).per_ticket();
            let ((left, open), (other_left, other_open)) = (per_ticket(from)?, per_ticket(to)?);
            let product = times(times(quantity.into(), left)?, other_open)?;
            let by = u128::from(open).checked_mul(other_left.into()).filter(|by| *by > 0)?;
            let nearest = product.checked_add(by / 2)? / by;
            return u64::try_from(nearest.max(1)).ok().filter(|_| kind == other_kind);
        }
        let is_known = values.capacity != Capacity::Parts;
        if !is_known && (kind == Kind::Absolute || other_kind == Kind::Absolute) {
            return None;
        }
        let value = match kind {
            Kind::Part => divide(times(quantity.into(), worth(from)), MILLIONTH.into())?,
            _ => quantity,
        };
        match other_kind {
            Kind::Part => divide(times(value.into(), MILLIONTH), worth(to).into()),
            _ => Some(value),
        }
    }

    /// Whether a currency's tickets have no value to compare: none of its holders is active, or nothing is
    /// left for tickets.
    fn is_worth_nothing(&self, resource: Resource, currency: Option<UnitId>) -> bool {
        let values = self.to(resource);
        values.division(currency, values.currency(currency)).per_ticket().is_none_or(|(left, _)| left == 0)
    }

    /// Whether a unit has lent all that it has, or more, after a reload.
    fn lent_too_many(&self, unit: UnitId, what: Offer) -> bool {
        let (resource, Ok(unit)) = (what.resource, self.unit(unit)) else { return false };
        match what.stake {
            Stake::Tickets(_) => unit.lent[resource] >= unit.tickets[resource],
            Stake::Hard(amount) => {
                let (kind, _) = Kind::of(amount);
                let has = unit.terms[resource].hard().map(Kind::of).filter(|(own, _)| *own == kind);
                has.is_none_or(|(_, has)| unit.hard_lent[resource] > has)
            }
        }
    }

    /// Whether the receiver of a leg stays within [`TICKETS_MAX`].
    fn has_room(&self, leg: &Leg) -> bool {
        let resource = leg.what.resource;
        match leg.what.stake {
            Stake::Tickets(tickets) => {
                let all = |unit: &Unit| match leg.is_lot() {
                    true => self.lots.quantity(resource, leg.lot()).saturating_add(tickets),
                    false => (unit.tickets[resource] + unit.borrowed[resource]).saturating_add(tickets),
                };
                self.unit(leg.to).is_ok_and(|unit| all(unit) <= TICKETS_MAX)
            }
            Stake::Hard(_) => true,
        }
    }

    fn lend(&mut self, leg: &Leg) {
        self.move_leg(leg, u64::saturating_add);
    }

    /// Reverses [`Rights::lend`]. Units that left the contract are skipped.
    fn give_back(&mut self, leg: &Leg) {
        self.move_leg(leg, u64::saturating_sub);
    }

    fn move_leg(&mut self, leg: &Leg, change: impl Fn(u64, u64) -> u64) {
        let (resource, quantity) = (leg.what.resource, leg.quantity());
        self.count(leg.from, resource, |unit| {
            let lent = match leg.what.stake {
                Stake::Tickets(_) => &mut unit.lent,
                Stake::Hard(_) => &mut unit.hard_lent,
            };
            lent[resource] = change(lent[resource], quantity);
        });
        match leg.is_lot() {
            true => {
                let held = self.lots.quantity(resource, leg.lot());
                self.set_lot(resource, leg.lot(), change(held, quantity));
            }
            false => self.count(leg.to, resource, |unit| {
                unit.borrowed[resource] = change(unit.borrowed[resource], quantity);
            }),
        }
    }

    fn store_tickets(&mut self, id: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        self.unit(id)?;
        self.count(id, resource, |unit| unit.tickets[resource] = tickets);
        self.market.stir();
        Ok(())
    }

    /// Applies `change` to a unit's tickets or loans, and updates its entry in its encloser's level.
    fn count(&mut self, id: UnitId, resource: Resource, change: impl FnOnce(&mut Unit)) {
        let Ok(unit) = self.unit_mut(id) else { return };
        let (active, parent, before) = (unit.active[resource], unit.parent, unit.entry(id, resource));
        change(unit);
        let after = unit.entry(id, resource);
        if active {
            self.enter(parent, resource, before.0, before.1, false);
            self.enter(parent, resource, after.0, after.1, true);
        }
    }

    /// Sets the capacity of a resource: CPUs came or went, memory was added.
    pub fn set_capacity(&mut self, resource: Resource, capacity: Capacity) {
        self.capacity[resource] = Some(capacity);
    }

    /// The capacity of a resource.
    pub fn capacity(&self, resource: Resource) -> Capacity {
        self.capacity[resource].unwrap_or(Capacity::Parts)
    }

    /// The rights to a resource at its capacity.
    pub fn to(&self, resource: Resource) -> Values<'_> {
        self.to_part(resource, self.capacity(resource))
    }

    /// The rights to a resource at another capacity, such as that of one of several disks.
    pub fn to_part(&self, resource: Resource, capacity: Capacity) -> Values<'_> {
        Values { rights: self, resource, capacity }
    }

    /// As [`Values::value`], at the resource's capacity.
    pub fn value(&self, unit: UnitId, resource: Resource) -> u64 {
        self.to(resource).value(unit)
    }

    /// As [`Values::own`], at the resource's capacity.
    pub fn own(&self, unit: UnitId, resource: Resource) -> u64 {
        self.to(resource).own(unit)
    }

    /// As [`Values::unheld`], at the resource's capacity.
    pub fn unheld(&self, resource: Resource) -> u64 {
        self.to(resource).unheld()
    }

    /// As [`Values::all`], at the resource's capacity.
    pub fn entitlement(&self, resource: Resource) -> Entitlement {
        self.to(resource).all()
    }
}

/// What the rights to one resource are worth at a given capacity. Amounts are in that capacity's measure.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    rights: &'a Rights,
    resource: Resource,
    capacity: Capacity,
}

impl<'a> Values<'a> {
    fn division(self, level: Option<UnitId>, value: u64) -> Division<'a> {
        let rights = self.rights;
        let classes = &rights.level(level).classes[self.resource];
        Division::new(&rights.forest, classes, self.capacity, value, rights.own_tickets(level, self.resource))
    }

    /// What a unit and its sub-units hold; 0 for an inactive or unknown one.
    pub fn value(self, unit: UnitId) -> u64 {
        let (rights, resource) = (self.rights, self.resource);
        let mut value = self.worth(unit);
        for (lot, quantity) in rights.lots.all(resource) {
            let (in_it, of_it) = (rights.encloses(unit, lot.holder), rights.is_in(unit, lot.currency));
            if in_it != of_it && rights.is_active(lot.holder, resource) {
                let part = self.part_of(lot, quantity, &mut BTreeMap::new()).all;
                // The total is never negative, but a partial sum may be.
                value = if in_it { value.wrapping_add(part) } else { value.wrapping_sub(part) };
            }
        }
        value
    }

    /// The reserved part of [`Values::value`], as in [`Values::all`].
    pub fn hard(self, unit: UnitId) -> u64 {
        let (rights, resource) = (self.rights, self.resource);
        let Ok(known) = rights.unit(unit) else { return 0 };
        if !known.active[resource] {
            return 0;
        }
        let (terms, entry) = known.entry(unit, resource);
        let whole = self.currency(known.parent);
        let mut hard = self.division(known.parent, whole).part(terms, entry).hard;
        let mut lent = 0u64;
        for (lot, quantity) in rights.lots.all(resource) {
            let (in_it, of_it) = (rights.is_in(unit, Some(lot.holder)), rights.is_in(unit, lot.currency));
            if rights.is_active(lot.holder, resource) && (in_it || of_it) {
                let part = self.part_of(lot, quantity, &mut BTreeMap::new()).hard;
                hard = hard.saturating_add(if in_it { part } else { 0 });
                lent = lent.saturating_add(if of_it { part } else { 0 });
            }
        }
        hard.saturating_sub(lent).min(self.value(unit))
    }

    /// The worth of a currency; `None`: the base currency, which is worth the capacity.
    fn currency(self, unit: Option<UnitId>) -> u64 {
        unit.map_or(self.capacity.total(), |unit| self.worth(unit))
    }

    /// The worth of a unit as a currency: the amount divided among its own processes, its sub-units, and
    /// holders of its lots.
    fn worth(self, unit: UnitId) -> u64 {
        self.worth_knowing(unit, &mut BTreeMap::new())
    }

    /// As [`Values::worth`], memoised in `known`. Without lots no unit is visited twice, so nothing is
    /// stored.
    fn worth_knowing(self, id: UnitId, known: &mut BTreeMap<UnitId, u64>) -> u64 {
        let (rights, resource) = (self.rights, self.resource);
        let Ok(unit) = rights.unit(id) else { return 0 };
        if !unit.active[resource] {
            return 0;
        }
        if let Some(worth) = known.get(&id) {
            return *worth;
        }
        let whole = unit.parent.map_or(self.capacity.total(), |encloser| self.worth_knowing(encloser, known));
        let (terms, entry) = unit.entry(id, resource);
        let mut worth = self.division(unit.parent, whole).part(terms, entry).all;
        if !rights.lots.is_empty(resource) {
            for (lot, quantity) in rights.lots.held_by(resource, id) {
                worth = worth.saturating_add(self.part_of(lot, quantity, known).all);
            }
            known.insert(id, worth);
        }
        worth
    }

    fn part_of(self, lot: Lot, quantity: u64, known: &mut BTreeMap<UnitId, u64>) -> Part {
        let whole = lot.currency.map_or(self.capacity.total(), |unit| self.worth_knowing(unit, known));
        let (terms, entry) = lot.entry(quantity);
        self.division(lot.currency, whole).part(terms, entry)
    }

    /// What a unit's own processes hold, with what limits deny its sub-units; 0 for an inactive or unknown
    /// one.
    pub fn own(self, unit: UnitId) -> u64 {
        match self.rights.is_active(unit, self.resource) {
            true => self.division(Some(unit), self.worth(unit)).own(),
            false => 0,
        }
    }

    /// What no top-level unit may take because of limits.
    pub fn unheld(self) -> u64 {
        self.division(None, self.capacity.total()).own()
    }

    /// All units' values at once.
    pub fn all(self) -> Entitlement {
        let (rights, resource) = (self.rights, self.resource);
        let n = rights.units.len();
        let top = self.division(None, self.capacity.total());
        let mut all = Entitlement { value: vec![0; n], own: vec![0; n], hard: vec![0; n], unheld: top.own() };
        // How many parts of each unit that holds lots are still missing: one for its own tickets and one for
        // each lot.
        let mut missing: BTreeMap<UnitId, usize> = BTreeMap::new();
        for (lot, _) in rights.lots.all(resource) {
            *missing.entry(lot.holder).or_insert(1) += 1;
        }
        let mut lots: Vec<(Lot, Part)> = Vec::new();
        let mut divisions = vec![(None, top)];
        while let Some((level, division)) = divisions.pop() {
            division.each(&mut |id, part| {
                let unit = Lot::holder(id);
                all.value[unit.index()] += part.all;
                all.hard[unit.index()] += part.hard;
                if let Some(kind) = Lot::kind(id) {
                    lots.push((Lot { holder: unit, currency: level, kind }, part));
                }
                if let Some(left) = missing.get_mut(&unit) {
                    *left -= 1;
                    if *left > 0 {
                        return;
                    }
                }
                let worth = all.value[unit.index()];
                // With no active sub-unit, all of its worth is its own.
                all.own[unit.index()] = worth;
                if rights.level(Some(unit)).active[resource] > 0 {
                    let inside = self.division(Some(unit), worth);
                    all.own[unit.index()] = inside.own();
                    divisions.push((Some(unit), inside));
                }
            });
        }
        // A lot counts in the value of its holder's enclosers, not of its currency's.
        for (lot, part) in &lots {
            for unit in rights.lineage(rights.unit(lot.holder).ok().and_then(|unit| unit.parent)) {
                all.value[unit.index()] += part.all;
                all.hard[unit.index()] += part.hard;
            }
        }
        for (lot, part) in &lots {
            for unit in rights.lineage(lot.currency) {
                all.value[unit.index()] -= part.all;
                all.hard[unit.index()] = all.hard[unit.index()].saturating_sub(part.hard);
            }
        }
        for (hard, value) in all.hard.iter_mut().zip(&all.value) {
            *hard = (*hard).min(*value);
        }
        debug_assert_eq!(
            all.own.iter().sum::<u64>() + all.unheld,
            self.capacity.total(),
            "rights are conserved"
        );
        all
    }
}

#[cfg(test)]
mod tests;
