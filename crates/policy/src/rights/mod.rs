//! The tree of rights: which units are active, how many tickets each unit has, and what these tickets are
//! worth. The tree is updated incrementally.
//!
//! Problem: the arrival or exit of a process, or a transfer of tickets, must not cost a recomputation of the
//! whole tree. The cost should be proportional to the tree's depth, and grow slowly with the number of
//! siblings.
//!
//! Terms:
//! - A unit is *present* for a resource if the unit has processes of its own, and *active* if the unit or one
//!   of its sub-units is present.
//! - A unit's *value* is the amount of the resource that the unit and its sub-units hold. The unit's *own
//!   part* is what its own processes hold of this amount; the sub-units hold the rest.
//! - Each unit is a *currency*: a unit issues tickets to its sub-units, and these tickets divide the unit's
//!   *worth*. They have no meaning outside the unit. A unit's worth equals its value, except where tickets
//!   are held across units ([`lots`]): if a sub-unit holds tickets of another currency, or a unit outside
//!   holds tickets of this unit's currency.
//!
//! Algorithm: at each level of the tree, divide the value V of the enclosing unit (at the top level: the
//! capacity) among the active units of the level.
//! 1. Each unit gets its reservation, but no more than its limit. A reservation in percent is a percentage of
//!    V. If the reservations together exceed V, all are scaled down in proportion.
//! 2. What the reservations leave of V is divided in proportion to soft tickets. No unit gets more than its
//!    limit.
//!
//! A unit's own processes (the processes in no sub-unit) count as one more sub-unit with [`DEFAULT_TICKETS`]
//! and no reservation. If limits keep the units of a level from taking all of V, the remainder stays with the
//! enclosing unit; at the top level the remainder is *unheld*. Under `quota`, every unit without sub-units
//! counts as present, since its quota stays unused until its owner comes. A reservation or limit that is an
//! absolute amount is ignored if the capacity is unknown ([`Capacity::Parts`]).
//!
//! A *lot* is a number of tickets of another currency that a unit holds beside its own tickets, or a
//! reservation that it borrows. Such a unit takes part in several divisions: that of its own level, and that
//! of each lot's currency. Its worth is the sum of its parts. So currencies must not form a cycle: a change
//! that would close a cycle is refused.
//!
//! Values are not stored. Each level keeps sums over its active units (see `worth`), and a unit's value is
//! computed level by level, from the root down to the unit.
//!
//! Properties (tested):
//! - *Exact*: the own parts of all units and the unheld part sum to the capacity. Rounding at a level changes
//!   a unit's part by less than 1.
//! - *No history*: values equal those of a full recomputation, whatever changes came before.
//! - *Local*: a change inside a unit changes no value outside the unit, as long as the unit stays active or
//!   stays inactive.
//! - *Monotone*: more tickets are never worth less than fewer. When a unit becomes active, no unit that was
//!   active before gets a larger value, whatever the limits and reservations are. Because of rounding,
//!   siblings may miss these two rules by 1; deeper in the tree, each level and each percentage adds 1.
//! - *Transfers*: if two active siblings without limits transfer tickets, no other value at their level
//!   changes by more than 1 (rounding), and no value outside that level changes. Two kinds of transfer change
//!   more: a
//!   unit at its limit may give away tickets that its limit made worthless, and an inactive unit may give
//!   tickets to an active one. These tickets become effective, so other units have less than before. But no
//!   unit has less than it would have if all units were active and without limits (seed 004, section 5.5).
//!
//! Costs, for a tree of depth D and levels of S siblings with C distinct pairs of reservation and limit:
//! - a change: O(D log S). If it makes units active or inactive, each lot of these units adds O(log S);
//! - one value: O(D C log S), times a few rounds if units reach their limits (`worth` bounds the rounds).
//!   With lots, O(C log S) for each level on every path from the root to the unit, where a path may go
//!   through a lot's currency;
//! - all values together: one step per unit, and O(C log S) per level;
//! - [`Rights::adopt`]: O(N log N) for N units.
//!
//! Limits: tickets are transferred between siblings only. Here the contract's limit applies to a unit's part
//! at its own level, not to the unit's lots. The rooms that enforce limits cap the part and the lots
//! together.
//!
//! Source: seed 004, sections 5.2 to 5.5 (currencies, hard and soft tickets, inactive tickets, exchanges);
//! seed 000, section 2.1 (only units with active processes need be allocated resources).

mod change;
pub mod entitlement;
mod in_use;
pub mod limits;
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

/// The most tickets of a resource that a unit may have, in a contract and after changes. The least is 1.
pub const TICKETS_MAX: u64 = 1_000_000;

/// A unit that holds tickets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Unit {
    parent: Option<UnitId>,
    /// Whether the unit has sub-units in the contract.
    has_sub_units: bool,
    /// The tickets that the contract gives the unit.
    contract_tickets: PerResource<u64>,
    /// The unit's own tickets now, including those that it lent.
    tickets: PerResource<u64>,
    /// The part of `tickets` that the unit lends in exchanges.
    lent: PerResource<u64>,
    /// Tickets of siblings that the unit borrows in exchanges.
    borrowed: PerResource<u64>,
    /// The part of the unit's reservation that it lends in exchanges, in the measure used by the contract.
    hard_lent: PerResource<u64>,
    /// Whether the unit has processes of its own, as [`Rights::set_present_for`] reported last.
    present: PerResource<bool>,
    active: PerResource<bool>,
    /// The unit's reservation and limit by the contract.
    terms: PerResource<Terms>,
    /// Sums over the units that hold tickets of this unit's currency.
    inside: Level,
}

impl Unit {
    /// Whether the unit's own processes take part in the division of the unit's worth, beside its sub-units.
    fn is_present(&self, resource: Resource, is_quota: bool) -> bool {
        self.present[resource] || is_quota && !self.has_sub_units
    }

    /// The tickets by which the unit gets its part at its level: its own plus the borrowed, less the lent
    /// tickets. If a reload gives the unit fewer tickets than it lends, the result is 1 until the unit's
    /// exchanges are undone.
    fn effective_tickets(&self, resource: Resource) -> u64 {
        let (total, lent) = (self.tickets[resource] + self.borrowed[resource], self.lent[resource]);
        if lent == 0 { total } else { total.saturating_sub(lent).max(1) }
    }

    /// The unit's entry in the level of its encloser, and the class of units with equal reservation and limit
    /// in which the entry is.
    fn entry(&self, unit: UnitId, resource: Resource) -> (Terms, Entry) {
        let entry = Entry { id: unit.0.into(), tickets: self.effective_tickets(resource) };
        (self.terms[resource].less(self.hard_lent[resource]), entry)
    }
}

/// The rights of all units under one contract. See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct Rights {
    /// Indexed by unit; `None`: not in the contract, or a common unit (`shared`, `kernel`).
    units: Vec<Option<Unit>>,
    top: Level,
    /// The nodes of the trees in all levels.
    forest: Forest,
    is_quota: bool,
    capacity: PerResource<Option<Capacity>>,
    /// All lots, from exchanges and [`Change::Fund`].
    lots: Lots,
    /// The part of `lots` that stems from [`Change::Fund`].
    funded: Lots,
    market: Market,
    /// Memory in use by each unit; `None` until an offer of reserved memory needs it.
    in_use: Option<InUse>,
    /// Events of the market since the last [`Rights::settle`], which returns them.
    traded: Vec<Trade>,
}

/// Compares the facts that determine values. The forest is left out, since the shape of a tree depends on the
/// order of insertions.
impl PartialEq for Rights {
    fn eq(&self, other: &Rights) -> bool {
        let capacities = |rights: &Rights| Resource::ALL.map(|resource| rights.capacity(resource));
        let lots = |rights: &Rights| (rights.lots.clone(), rights.funded.clone());
        (&self.units, &self.top, self.is_quota, capacities(self), &self.market, &self.traded)
            == (&other.units, &other.top, other.is_quota, capacities(other), &other.market, &other.traded)
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
    /// - A unit that is in both contracts stays present or absent.
    /// - If the two contracts give such a unit the same number of tickets of a resource, the unit keeps the
    ///   number that it has now, changes included. Otherwise it gets the number of the new contract.
    /// - Exception: `each` can make a sub-unit of another manager's control group. The tickets of such a
    ///   sub-unit derive from the manager's settings. Once its tickets were changed here, they stay, whatever
    ///   the manager sets; until then they follow the manager.
    /// - A unit that moved to another encloser has the tickets that the contract gives it.
    /// - Tickets transferred to a unit that left the contract are lost.
    /// - An exchange continues if all its units keep their enclosers; otherwise [`Rights::settle`] undoes it.
    pub fn adopt(&mut self, contract: &Contract) {
        let (mut market, traded) = (core::mem::take(&mut self.market), core::mem::take(&mut self.traded));
        let (lots, funded) = (core::mem::take(&mut self.lots), core::mem::take(&mut self.funded));
        let in_use = self.in_use.take();
        market.mark_dirty();
        let before = core::mem::replace(
            self,
            Rights {
                market,
                traded,
                lots,
                funded,
                in_use,
                is_quota: contract.machine.scheme == Scheme::Quota,
                units: vec![None; contract.units.len()],
                capacity: self.capacity,
                ..Rights::default()
            },
        );
        for id in contract.held() {
            let by_contract = contract.unit(id);
            let mut unit = Unit { parent: by_contract.parent, ..Unit::default() };
            let old = before.unit(id).ok();
            let is_of_group = contract.group_of(id).is_some();
            for resource in Resource::ALL {
                unit.contract_tickets[resource] = by_contract.tickets[resource];
                unit.terms[resource] = Terms::new(by_contract.hard[resource], by_contract.limit[resource]);
                unit.tickets[resource] = match old {
                    Some(old)
                        if old.parent == by_contract.parent
                            && (old.contract_tickets[resource] == unit.contract_tickets[resource]
                                || is_of_group
                                    && old.tickets[resource] != old.contract_tickets[resource]) =>
                    {
                        old.tickets[resource]
                    }
                    _ => unit.contract_tickets[resource],
                };
            }
            unit.present = old.map(|old| old.present).unwrap_or_default();
            if let Some(old) = old.filter(|old| old.parent == by_contract.parent) {
                (unit.lent, unit.borrowed, unit.hard_lent) = (old.lent, old.borrowed, old.hard_lent);
            }
            self.units[id.index()] = Some(unit);
        }
        for id in contract.held() {
            let encloser = contract.unit(id).parent;
            if let Some(unit) = encloser.and_then(|id| self.units.get_mut(id.index())?.as_mut()) {
                unit.has_sub_units = true;
            }
        }
        let units = &self.units;
        let is_known = |id: UnitId| units.get(id.index()).is_some_and(Option::is_some);
        self.lots.retain(is_known);
        self.funded.retain(is_known);
        // The levels are empty so far: enter all active units, with their lots.
        for id in contract.held() {
            for resource in Resource::ALL {
                self.refresh_activity(id, resource);
            }
        }
    }

    /// Adopts the contract ([`Rights::adopt`]), unless the rights match it already.
    pub fn follow(&mut self, contract: &Contract) {
        if !self.are_of(contract) {
            self.adopt(contract);
        }
    }

    /// Whether the rights match the contract: the same scheme and the same units, each with the same
    /// encloser, contract tickets, reservation and limit. Changes of tickets made since do not matter.
    pub(crate) fn are_of(&self, contract: &Contract) -> bool {
        let matches = |id: UnitId| {
            let by_contract = contract.unit(id);
            let holds_tickets = contract.has(id) && !id.is_common();
            let (true, Ok(unit)) = (holds_tickets, self.unit(id)) else {
                return self.unit(id).is_ok() == holds_tickets;
            };
            unit.parent == by_contract.parent
                && Resource::ALL.into_iter().all(|resource| {
                    let terms = Terms::new(by_contract.hard[resource], by_contract.limit[resource]);
                    unit.contract_tickets[resource] == by_contract.tickets[resource]
                        && unit.terms[resource] == terms
                })
        };
        self.is_quota == (contract.machine.scheme == Scheme::Quota)
            && self.units.len() == contract.units.len()
            && contract.ids().all(matches)
    }

    fn unit(&self, unit: UnitId) -> Result<&Unit, Refused> {
        self.units.get(unit.index()).and_then(Option::as_ref).ok_or(Refused::Unknown { unit })
    }

    fn unit_mut(&mut self, unit: UnitId) -> Result<&mut Unit, Refused> {
        self.units.get_mut(unit.index()).and_then(Option::as_mut).ok_or(Refused::Unknown { unit })
    }

    /// The level inside `parent`; `None`: the top level.
    fn level(&self, parent: Option<UnitId>) -> &Level {
        parent.and_then(|id| self.unit(id).ok()).map_or(&self.top, |unit| &unit.inside)
    }

    fn level_mut(&mut self, parent: Option<UnitId>) -> &mut Level {
        match parent.and_then(|id| self.units.get_mut(id.index())?.as_mut()) {
            Some(unit) => &mut unit.inside,
            None => &mut self.top,
        }
    }

    /// Recomputes whether a unit is active. If the unit became active or inactive, inserts it and its lots
    /// into their levels, or removes them, and then does the same for the unit's encloser and for the issuers
    /// of its lots.
    fn refresh_activity(&mut self, unit: UnitId, resource: Resource) {
        let (is_quota, mut next, mut issuers) = (self.is_quota, Some(unit), Vec::new());
        while let Some(id) = next.take().or_else(|| issuers.pop()) {
            let Ok(unit) = self.unit_mut(id) else { continue };
            let is_active = unit.is_present(resource, is_quota) || unit.inside.active[resource] > 0;
            if unit.active[resource] == is_active {
                continue;
            }
            unit.active[resource] = is_active;
            let parent = unit.parent;
            let (terms, entry) = unit.entry(id, resource);
            self.update_entry(parent, resource, terms, entry, is_active);
            next = parent;
            if !self.lots.is_empty(resource) {
                let lots: Vec<(Lot, u64)> = self.lots.held_by(resource, id).collect();
                for (lot, quantity) in lots {
                    let (terms, entry) = lot.entry(quantity);
                    self.update_entry(lot.currency, resource, terms, entry, is_active);
                    issuers.extend(lot.currency);
                }
            }
            self.market.mark_dirty_if_offered();
        }
    }

    /// Inserts an entry into the level of a currency if `is_active`, else removes the entry. The first entry
    /// of a class creates the class's tree, and the removal of its last entry removes the tree.
    fn update_entry(
        &mut self,
        currency: Option<UnitId>,
        resource: Resource,
        terms: Terms,
        entry: Entry,
        is_active: bool,
    ) {
        let level = self.level_mut(currency);
        let count = &mut level.active[resource];
        *count = if is_active { *count + 1 } else { count.saturating_sub(1) };
        let existing = level.classes[resource].get(&terms).copied();
        let mut tree = existing.unwrap_or_else(|| Tree::new(terms.by_tickets()));
        match is_active {
            true => self.forest.insert(&mut tree, entry),
            false => self.forest.remove(&mut tree, entry),
        }
        let is_empty = self.forest.total(tree).units == 0;
        let classes = &mut self.level_mut(currency).classes[resource];
        match is_empty {
            true => drop(classes.remove(&terms)),
            false => drop(classes.insert(terms, tree)),
        }
    }

    /// Sets, for every resource, whether a unit has processes of its own. Initially no unit has.
    pub fn set_present(&mut self, unit: UnitId, present: bool) -> Result<(), Refused> {
        Resource::ALL.iter().try_for_each(|resource| self.set_present_for(unit, *resource, present))
    }

    /// Whether [`Rights::set_present`] with this value would change nothing.
    pub(crate) fn is_present(&self, unit: UnitId, present: bool) -> bool {
        let is_set = |unit: &Unit| Resource::ALL.iter().all(|resource| unit.present[*resource] == present);
        self.unit(unit).is_ok_and(is_set)
    }

    /// Whether [`Rights::set_present_for`] with this value would change nothing.
    pub(crate) fn is_present_for(&self, unit: UnitId, resource: Resource, present: bool) -> bool {
        self.unit(unit).is_ok_and(|unit| unit.present[resource] == present)
    }

    /// Sets for one resource whether a unit counts as having processes of its own. The resources may differ:
    /// a unit whose processes have ended may still be using a disk.
    pub fn set_present_for(
        &mut self,
        unit: UnitId,
        resource: Resource,
        present: bool,
    ) -> Result<(), Refused> {
        self.unit_mut(unit)?.present[resource] = present;
        self.refresh_activity(unit, resource);
        Ok(())
    }

    /// Whether a unit is active; `false` for an unknown one.
    pub fn is_active(&self, unit: UnitId, resource: Resource) -> bool {
        self.unit(unit).is_ok_and(|unit| unit.active[resource])
    }

    /// A unit's own tickets, including those that it lends; 0 for an unknown unit.
    pub fn tickets(&self, unit: UnitId, resource: Resource) -> u64 {
        self.unit(unit).map_or(0, |unit| unit.tickets[resource])
    }

    /// The tickets that a unit lends and borrows in exchanges, as `(lent, borrowed)`; `(0, 0)` for an unknown
    /// unit.
    pub fn lent_and_borrowed(&self, unit: UnitId, resource: Resource) -> (u64, u64) {
        self.unit(unit).map_or((0, 0), |unit| (unit.lent[resource], unit.borrowed[resource]))
    }

    /// The open offers of exchanges, by number, the oldest first. The type of an offer is [`Bid`]; an
    /// [`Offer`] is one of the two amounts in it.
    pub fn offers(&self) -> &BTreeMap<u64, Bid> {
        self.market.offers()
    }

    /// The exchanges in force ([`Deal`]), by number.
    pub fn deals(&self) -> &BTreeMap<u64, Deal> {
        self.market.deals()
    }

    /// Ends the exchanges that have expired or become invalid, and concludes exchanges of open offers that
    /// match. Returns all events of the market since the last call.
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

    /// The number of effective tickets in an encloser's currency (`None`: the base currency). Counted are the
    /// tickets of active units directly in the encloser, of lots that active units hold, and of the
    /// encloser's own processes.
    pub fn issued(&self, encloser: Option<UnitId>, resource: Resource) -> u64 {
        let classes = &self.level(encloser).classes[resource];
        let units: u64 = classes.values().map(|tree| self.forest.total(*tree).tickets).sum();
        units + self.own_tickets(encloser, resource)
    }

    /// The tickets of an encloser's own processes, while it has any; 0 at the top level (`None`).
    pub fn own_tickets(&self, encloser: Option<UnitId>, resource: Resource) -> u64 {
        let unit = encloser.and_then(|id| self.unit(id).ok());
        match unit.is_some_and(|unit| unit.is_present(resource, self.is_quota)) {
            true => DEFAULT_TICKETS,
            false => 0,
        }
    }

    /// Makes a change. Only `policy::step` calls this function; all others queue their changes (see the head
    /// of the module `change`).
    ///
    /// A change is refused, without effect, if one of these holds:
    /// - a unit is unknown;
    /// - a unit would have no tickets, more than [`TICKETS_MAX`], or no more than it lends;
    /// - the tickets would go from a unit to itself, or to a unit that is not a sibling;
    /// - currencies would form a cycle;
    /// - an offer is invalid.
    ///
    /// [`Refused`] has the reasons.
    pub fn apply(&mut self, change: Change) -> Result<(), Refused> {
        match change {
            Change::Offer { bid } => self.change_market(|market, rights| market.offer(rights, bid)),
            Change::Cancel { number } => self.change_market(|market, rights| market.cancel(rights, number)),
            Change::Resume { number, what, at } => {
                self.change_market(|market, rights| market.resume(rights, at, number, what))
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

    /// Runs `change` on the market, and records the resulting event for [`Rights::settle`] to return.
    fn change_market(
        &mut self,
        change: impl FnOnce(&mut Market, &mut Rights) -> Result<Trade, Refused>,
    ) -> Result<(), Refused> {
        let mut market = core::mem::take(&mut self.market);
        let event = change(&mut market, self);
        self.market = market;
        self.traded.push(event?);
        Ok(())
    }

    /// Puts an exchange of two new offers into force, without regard to the open offers. Returns the
    /// exchange's number; [`Rights::settle`] reports the event.
    ///
    /// The exchange is refused, without effect, if [`Market::offer`] refuses one of the two offers, if the
    /// offers do not match, or if a unit would have too many tickets.
    pub(crate) fn conclude(&mut self, now: Time, bids: [Bid; 2]) -> Result<u64, Refused> {
        let mut market = core::mem::take(&mut self.market);
        let event = market.conclude(self, now, bids);
        self.market = market;
        self.traded.push(event?);
        // The newest exchange has the largest number.
        Ok(self.market.deals().keys().next_back().copied().unwrap_or_default())
    }

    /// Ends an exchange made by [`Rights::conclude`], if it is still in force.
    pub(crate) fn end(&mut self, number: u64) {
        let mut market = core::mem::take(&mut self.market);
        let event = market.undo(self, number, Ending::Negotiated);
        self.market = market;
        self.traded.extend(event);
    }

    /// As [`Change::Set`].
    pub fn set_tickets(&mut self, unit: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        let new_tickets = self.tickets_if_set(unit, resource, tickets)?;
        self.store_tickets(unit, resource, new_tickets)
    }

    /// As [`Change::Several`]. Checks the changes of all resources before it makes any. Checking ahead is
    /// sound, since changing the tickets of one resource does not affect whether a change of another resource
    /// is valid.
    fn change_several(
        &mut self,
        unit: UnitId,
        how: How,
        tickets: PerResource<Option<u64>>,
    ) -> Result<(), Refused> {
        self.unit(unit)?;
        let mut new_tickets = Vec::new();
        for resource in Resource::ALL {
            let Some(tickets) = tickets[resource] else { continue };
            let total = match how {
                How::Set => self.tickets_if_set(unit, resource, tickets)?,
                How::Issue => self.tickets_if_issued(unit, resource, tickets)?,
                How::TakeBack => self.tickets_if_revoked(unit, resource, tickets)?,
            };
            new_tickets.push((resource, total));
        }
        new_tickets.into_iter().try_for_each(|(resource, total)| self.store_tickets(unit, resource, total))
    }

    /// As [`Change::Issue`].
    pub fn issue(&mut self, unit: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        let new_tickets = self.tickets_if_issued(unit, resource, tickets)?;
        self.store_tickets(unit, resource, new_tickets)
    }

    /// As [`Change::TakeBack`].
    pub fn take_back(&mut self, unit: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        let new_tickets = self.tickets_if_revoked(unit, resource, tickets)?;
        self.store_tickets(unit, resource, new_tickets)
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
        let tickets_from = self.tickets_if_revoked(from, resource, tickets)?;
        let tickets_to = self.tickets_if_issued(to, resource, tickets)?;
        self.store_tickets(from, resource, tickets_from)?;
        self.store_tickets(to, resource, tickets_to)
    }

    /// As [`Change::Exchange`]: a permanent swap of tickets, unlike the exchanges that come from open offers
    /// ([`Rights::deals`]). Refused if either amount is a part of a reservation.
    pub fn exchange(&mut self, one: UnitId, other: UnitId, gives: Offer, gets: Offer) -> Result<(), Refused> {
        let (Stake::Tickets(gives_tickets), Stake::Tickets(gets_tickets)) = (gives.stake, gets.stake) else {
            return Err(Refused::NoExchange { unit: one });
        };
        self.transfer(one, other, gives.resource, gives_tickets)?;
        let in_return = self.transfer(other, one, gets.resource, gets_tickets);
        if in_return.is_err() {
            // Roll back.
            self.transfer(other, one, gives.resource, gives_tickets)?;
        }
        in_return
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
        let requested =
            || Resource::ALL.into_iter().filter_map(|resource| Some((resource, tickets[resource]?)));
        // Check all resources before changing any.
        for (resource, tickets) in requested() {
            if tickets > TICKETS_MAX {
                return Err(Refused::TooMany { unit, resource, has: 0, more: tickets });
            }
            if tickets > 0 && self.would_form_cycle(resource, &[(unit, currency)]) {
                return Err(Refused::Loop { unit });
            }
        }
        for (resource, tickets) in requested() {
            let lot = Lot { holder: unit, currency, kind: Kind::Soft };
            // The lot may also contain tickets borrowed in exchanges; these are kept.
            let (funded, total) = (self.funded.quantity(resource, lot), self.lots.quantity(resource, lot));
            self.funded.set(resource, lot, tickets);
            self.set_lot(resource, lot, total.saturating_sub(funded).saturating_add(tickets));
        }
        self.market.mark_dirty();
        Ok(())
    }

    /// The tickets that units hold by [`Change::Fund`]: for each lot the holder, the currency (`None`: the
    /// base currency), and the number of tickets.
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

    /// Whether currencies would form a cycle if lots were added. Each element of `added` is the holder of a
    /// new lot and the lot's currency.
    fn would_form_cycle(&self, resource: Resource, added: &[(UnitId, Option<UnitId>)]) -> bool {
        self.lots.would_form_cycle(resource, added, |unit| self.unit(unit).ok().and_then(|unit| unit.parent))
    }

    /// Sets the amount in a lot. If the holder is active, also updates the lot's entry in the level of its
    /// currency, and recomputes whether the issuer is active.
    fn set_lot(&mut self, resource: Resource, lot: Lot, quantity: u64) {
        let before = self.lots.quantity(resource, lot);
        self.lots.set(resource, lot, quantity);
        if !self.is_active(lot.holder, resource) {
            return;
        }
        for (quantity, is_active) in [(before, false), (quantity, true)] {
            if quantity > 0 {
                let (terms, entry) = lot.entry(quantity);
                self.update_entry(lot.currency, resource, terms, entry, is_active);
            }
        }
        if let Some(issuer) = lot.currency {
            self.refresh_activity(issuer, resource);
        }
    }

    /// Checks whether a unit's number of tickets may be set to `tickets`. Returns the new number, or why it
    /// is refused.
    fn tickets_if_set(&self, unit: UnitId, resource: Resource, tickets: u64) -> Result<u64, Refused> {
        let has = self.unit(unit)?.tickets[resource];
        match tickets.checked_sub(has) {
            Some(more) => self.tickets_if_issued(unit, resource, more),
            None => self.tickets_if_revoked(unit, resource, has - tickets),
        }
    }

    /// A unit's number of tickets after the unit gets `more`. Refused if its own and borrowed tickets
    /// together would exceed [`TICKETS_MAX`].
    fn tickets_if_issued(&self, unit: UnitId, resource: Resource, more: u64) -> Result<u64, Refused> {
        let (borrowed, has) = (self.unit(unit)?.borrowed[resource], self.tickets(unit, resource));
        let total = has.checked_add(more).filter(|total| total.saturating_add(borrowed) <= TICKETS_MAX);
        total.ok_or(Refused::TooMany { unit, resource, has, more })
    }

    /// A unit's number of tickets after the unit loses `fewer`. Refused unless the unit keeps more tickets
    /// than it lends.
    fn tickets_if_revoked(&self, unit: UnitId, resource: Resource, fewer: u64) -> Result<u64, Refused> {
        let (lent, has) = (self.unit(unit)?.lent[resource], self.tickets(unit, resource));
        match has.checked_sub(fewer) {
            Some(total) if total > lent => Ok(total),
            Some(total) if total > 0 => Err(Refused::Lent { unit, resource, has, lent }),
            _ => Err(Refused::TooFew { unit, resource, has, fewer }),
        }
    }

    /// A unit and its enclosers, from the inside out.
    fn lineage(&self, unit: Option<UnitId>) -> impl Iterator<Item = UnitId> + '_ {
        core::iter::successors(unit, |unit| self.unit(*unit).ok().and_then(|unit| unit.parent))
    }

    /// Whether `inner` is inside `outer`, and not `outer` itself.
    fn encloses(&self, outer: UnitId, inner: UnitId) -> bool {
        self.lineage(Some(inner)).skip(1).any(|unit| unit == outer)
    }

    /// Whether `inner` is `outer` or inside it; `false` for `None`, the top level.
    fn is_in(&self, outer: UnitId, inner: Option<UnitId>) -> bool {
        self.lineage(inner).any(|unit| unit == outer)
    }

    /// Refuses unless the two units are distinct siblings.
    fn refuse_unless_siblings(&self, from: UnitId, to: UnitId) -> Result<(), Refused> {
        if self.unit(from)?.parent != self.unit(to)?.parent {
            return Err(Refused::Enclosers { from, to });
        }
        if from == to { Err(Refused::Itself { unit: from }) } else { Ok(()) }
    }

    /// Refuses unless a unit owns the offered amount and does not lend it already. If the amount is of
    /// reserved memory, also refuses if the unit uses that memory.
    fn check_can_lend(&self, unit: UnitId, offer: Offer) -> Result<(), Refused> {
        self.check_owns(unit, offer)?;
        self.check_can_spare(unit, offer)
    }

    /// Refuses unless a unit owns the offered amount and does not lend it already. Of tickets the unit must
    /// own one more than it offers and lends, since it may not lend its last ticket.
    fn check_owns(&self, unit: UnitId, offer: Offer) -> Result<(), Refused> {
        let resource = offer.resource;
        match offer.stake {
            Stake::Tickets(tickets) => self.tickets_if_revoked(unit, resource, tickets).map(|_| ()),
            Stake::Hard(_) => {
                let known = self.unit(unit)?;
                let (reserved, lent) = (known.terms[resource].hard(), known.hard_lent[resource]);
                let unlent =
                    reserved.map(Kind::of).map(|(kind, reserved)| (kind, reserved.saturating_sub(lent)));
                let offered = self.in_own_measure(unit, offer, false).unwrap_or(0);
                if offered > 0 && unlent.is_some_and(|(_, quantity)| offered <= quantity) {
                    return Ok(());
                }
                let unlent = unlent.and_then(|(kind, quantity)| kind.amount(quantity));
                let left =
                    unlent.map(|amount| Offer::hard(resource, amount)).filter(|left| !left.is_nothing());
                Err(Refused::NotReserved { unit, resource, left })
            }
        }
    }

    /// Converts an amount that a unit offers to the measure in which the unit lends. For tickets that is
    /// their number. For a part of a reservation it is the kind of amount (absolute, or a fraction) in which
    /// the contract states the unit's reservation. `None` if the unit has no reservation, or the amount
    /// cannot be converted.
    fn in_own_measure(&self, unit: UnitId, offer: Offer, round_up: bool) -> Option<u64> {
        let known = self.unit(unit).ok()?;
        match offer.stake {
            Stake::Tickets(tickets) => Some(tickets),
            Stake::Hard(amount) => {
                let (kind, quantity) = Kind::of(amount);
                let (own_kind, _) = Kind::of(known.terms[offer.resource].hard()?);
                let (from, to) = ((kind, known.parent), (own_kind, known.parent));
                self.convert(offer.resource, quantity, from, to, round_up)
            }
        }
    }

    /// The kind of an amount that a unit gives or wants, and the currency that the amount is in.
    fn kind_and_currency(&self, unit: UnitId, offer: Offer) -> Option<(Kind, Option<UnitId>)> {
        let kind = match offer.stake {
            Stake::Tickets(_) => Kind::Soft,
            Stake::Hard(amount) => Kind::of(amount).0,
        };
        Some((kind, self.unit(unit).ok()?.parent))
    }

    /// Converts an amount between currencies and kinds at current values. A number of tickets is rounded to
    /// the nearest number, since the value of a ticket is itself rounded. A part of a reservation is rounded
    /// up if `round_up`, else down. `None` if the two measures are not comparable now: if only one of them is
    /// tickets, if a currency has no value, or if an absolute amount would have to be compared while the
    /// capacity is unknown.
    fn convert(
        &self,
        resource: Resource,
        quantity: u64,
        (from_kind, from): (Kind, Option<UnitId>),
        (to_kind, to): (Kind, Option<UnitId>),
        round_up: bool,
    ) -> Option<u64> {
        if from_kind == to_kind && (from == to || from_kind == Kind::Absolute) {
            return Some(quantity);
        }
        let values = self.to(resource);
        let worth = |currency: Option<UnitId>| values.currency(currency);
        let divide = |dividend: Option<u128>, divisor: u128| {
            let dividend = dividend.filter(|_| divisor > 0)?;
            u64::try_from(if round_up { dividend.div_ceil(divisor) } else { dividend / divisor }).ok()
        };
        let times = |a: u128, b: u64| a.checked_mul(u128::from(b));
        // Tickets: by the ratio of the two prices of a ticket.
        if from_kind == Kind::Soft || to_kind == Kind::Soft {
            let per_ticket = |currency| values.division(currency, worth(currency)).per_ticket();
            let ((from_value, from_tickets), (to_value, to_tickets)) = (per_ticket(from)?, per_ticket(to)?);
            let dividend = times(times(quantity.into(), from_value)?, to_tickets)?;
            let divisor = u128::from(from_tickets).checked_mul(to_value.into()).filter(|n| *n > 0)?;
            let nearest = dividend.checked_add(divisor / 2)? / divisor;
            return u64::try_from(nearest.max(1)).ok().filter(|_| from_kind == to_kind);
        }
        // Reservations: by way of the absolute amount.
        let is_known = values.capacity != Capacity::Parts;
        if !is_known && (from_kind == Kind::Absolute || to_kind == Kind::Absolute) {
            return None;
        }
        let absolute = match from_kind {
            Kind::Part => divide(times(quantity.into(), worth(from)), MILLIONTH.into())?,
            _ => quantity,
        };
        match to_kind {
            Kind::Part => divide(times(absolute.into(), MILLIONTH), worth(to).into()),
            _ => Some(absolute),
        }
    }

    /// Whether a currency's tickets are worth nothing now, so that they cannot be compared with other
    /// tickets. So it is if no holder of such tickets is active, or if reservations and limits leave nothing
    /// for tickets.
    fn is_worth_nothing(&self, resource: Resource, currency: Option<UnitId>) -> bool {
        let values = self.to(resource);
        values.division(currency, values.currency(currency)).per_ticket().is_none_or(|(value, _)| value == 0)
    }

    /// Whether a unit lends more than it may, since a reload reduced its tickets or its reservation. If
    /// `offer` is of tickets: whether the unit lends at least all its tickets. Else: whether it lends more
    /// than its reservation.
    fn has_overlent(&self, unit: UnitId, offer: Offer) -> bool {
        let (resource, Ok(unit)) = (offer.resource, self.unit(unit)) else { return false };
        match offer.stake {
            Stake::Tickets(_) => unit.lent[resource] >= unit.tickets[resource],
            Stake::Hard(amount) => {
                let (kind, _) = Kind::of(amount);
                let reserved = unit.terms[resource].hard().map(Kind::of).filter(|(own, _)| *own == kind);
                reserved.is_none_or(|(_, reserved)| unit.hard_lent[resource] > reserved)
            }
        }
    }

    /// Whether the borrower of a leg, with the borrowed tickets, would have at most [`TICKETS_MAX`].
    fn has_room(&self, leg: &Leg) -> bool {
        let resource = leg.what.resource;
        match leg.what.stake {
            Stake::Tickets(tickets) => {
                let total = |unit: &Unit| match leg.is_lot() {
                    true => self.lots.quantity(resource, leg.lot()).saturating_add(tickets),
                    false => (unit.tickets[resource] + unit.borrowed[resource]).saturating_add(tickets),
                };
                self.unit(leg.to).is_ok_and(|unit| total(unit) <= TICKETS_MAX)
            }
            Stake::Hard(_) => true,
        }
    }

    /// Puts one leg of an exchange into force.
    fn lend(&mut self, leg: &Leg) {
        self.move_leg(leg, u64::saturating_add);
    }

    /// Reverses [`Rights::lend`]. Units that left the contract are skipped.
    fn give_back(&mut self, leg: &Leg) {
        self.move_leg(leg, u64::saturating_sub);
    }

    /// Updates what the lender of a leg lends and what its borrower borrows: `change` computes each new
    /// amount from the old amount and the leg's quantity.
    fn move_leg(&mut self, leg: &Leg, change: impl Fn(u64, u64) -> u64) {
        let (resource, quantity) = (leg.what.resource, leg.quantity());
        self.change_unit(leg.from, resource, |unit| {
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
            false => self.change_unit(leg.to, resource, |unit| {
                unit.borrowed[resource] = change(unit.borrowed[resource], quantity);
            }),
        }
    }

    /// Sets a unit's tickets to a number that the caller has checked.
    fn store_tickets(&mut self, id: UnitId, resource: Resource, tickets: u64) -> Result<(), Refused> {
        self.unit(id)?;
        self.change_unit(id, resource, |unit| unit.tickets[resource] = tickets);
        self.market.mark_dirty();
        Ok(())
    }

    /// Applies `change` to a unit's tickets or loans, and updates the unit's entry in its encloser's level.
    /// No effect for an unknown unit.
    fn change_unit(&mut self, id: UnitId, resource: Resource, change: impl FnOnce(&mut Unit)) {
        let Ok(unit) = self.unit_mut(id) else { return };
        let (is_active, parent, before) = (unit.active[resource], unit.parent, unit.entry(id, resource));
        change(unit);
        let after = unit.entry(id, resource);
        if is_active {
            self.update_entry(parent, resource, before.0, before.1, false);
            self.update_entry(parent, resource, after.0, after.1, true);
        }
    }

    /// Sets the capacity of a resource. It changes when CPUs come or go, or memory is added.
    pub fn set_capacity(&mut self, resource: Resource, capacity: Capacity) {
        self.capacity[resource] = Some(capacity);
    }

    /// The capacity of a resource.
    pub fn capacity(&self, resource: Resource) -> Capacity {
        self.capacity[resource].unwrap_or(Capacity::Parts)
    }

    /// The rights to a resource, as amounts that sum to the resource's capacity.
    pub fn to(&self, resource: Resource) -> Values<'_> {
        self.at_capacity(resource, self.capacity(resource))
    }

    /// The rights to a part of a resource, such as one of several disks: as [`Rights::to`], with another
    /// capacity.
    pub fn at_capacity(&self, resource: Resource, capacity: Capacity) -> Values<'_> {
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

/// The values of the rights to one resource at a given capacity, in the measure of that capacity.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    rights: &'a Rights,
    resource: Resource,
    capacity: Capacity,
}

impl<'a> Values<'a> {
    /// The division of `worth` among the holders of a currency's tickets.
    fn division(self, currency: Option<UnitId>, worth: u64) -> Division<'a> {
        let (rights, resource) = (self.rights, self.resource);
        let classes = &rights.level(currency).classes[resource];
        let own_tickets = rights.own_tickets(currency, resource);
        Division::new(&rights.forest, classes, self.capacity, worth, own_tickets)
    }

    /// The amount that a unit and its sub-units hold; 0 for an inactive or unknown unit.
    ///
    /// Computed from the unit's worth: add the lots that its sub-units hold of currencies outside the unit,
    /// and subtract the lots that units outside hold of currencies inside it (its own or a sub-unit's).
    pub fn value(self, unit: UnitId) -> u64 {
        let (rights, resource) = (self.rights, self.resource);
        let mut value = self.worth(unit);
        for (lot, quantity) in rights.lots.all(resource) {
            // A lot that the unit itself holds is part of its worth already.
            let is_held_inside = rights.encloses(unit, lot.holder);
            let is_issued_inside = rights.is_in(unit, lot.currency);
            if is_held_inside != is_issued_inside && rights.is_active(lot.holder, resource) {
                let part = self.lot_part(lot, quantity, &mut BTreeMap::new()).total;
                // The total is never negative, but a partial sum may be.
                value = if is_held_inside { value.wrapping_add(part) } else { value.wrapping_sub(part) };
            }
        }
        value
    }

    /// The part of [`Values::value`] that is reserved, the same number as in [`Values::all`].
    pub fn hard(self, unit: UnitId) -> u64 {
        let (rights, resource) = (self.rights, self.resource);
        let Ok(known) = rights.unit(unit) else { return 0 };
        if !known.active[resource] {
            return 0;
        }
        let (terms, entry) = known.entry(unit, resource);
        let encloser_worth = self.currency(known.parent);
        let mut hard = self.division(known.parent, encloser_worth).part(terms, entry).hard;
        let mut lent = 0u64;
        for (lot, quantity) in rights.lots.all(resource) {
            let is_held_inside = rights.is_in(unit, Some(lot.holder));
            let is_issued_inside = rights.is_in(unit, lot.currency);
            if rights.is_active(lot.holder, resource) && (is_held_inside || is_issued_inside) {
                let part = self.lot_part(lot, quantity, &mut BTreeMap::new()).hard;
                hard = hard.saturating_add(if is_held_inside { part } else { 0 });
                lent = lent.saturating_add(if is_issued_inside { part } else { 0 });
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
        self.worth_memoised(unit, &mut BTreeMap::new())
    }

    /// As [`Values::worth`], with results stored in `memo`. Without lots no unit is visited twice, so no
    /// result is stored.
    fn worth_memoised(self, id: UnitId, memo: &mut BTreeMap<UnitId, u64>) -> u64 {
        let (rights, resource) = (self.rights, self.resource);
        let Ok(unit) = rights.unit(id) else { return 0 };
        if !unit.active[resource] {
            return 0;
        }
        if let Some(worth) = memo.get(&id) {
            return *worth;
        }
        let encloser_worth = match unit.parent {
            Some(encloser) => self.worth_memoised(encloser, memo),
            None => self.capacity.total(),
        };
        let (terms, entry) = unit.entry(id, resource);
        let mut worth = self.division(unit.parent, encloser_worth).part(terms, entry).total;
        if !rights.lots.is_empty(resource) {
            for (lot, quantity) in rights.lots.held_by(resource, id) {
                worth = worth.saturating_add(self.lot_part(lot, quantity, memo).total);
            }
            memo.insert(id, worth);
        }
        worth
    }

    /// What a lot is worth: a part of the worth of its currency. `memo` is as in [`Values::worth_memoised`].
    fn lot_part(self, lot: Lot, quantity: u64, memo: &mut BTreeMap<UnitId, u64>) -> Part {
        let currency_worth = match lot.currency {
            Some(issuer) => self.worth_memoised(issuer, memo),
            None => self.capacity.total(),
        };
        let (terms, entry) = lot.entry(quantity);
        self.division(lot.currency, currency_worth).part(terms, entry)
    }

    /// The amount that a unit's own processes hold. It includes what the sub-units may not take because of
    /// their limits. 0 for an inactive or unknown unit.
    pub fn own(self, unit: UnitId) -> u64 {
        match self.rights.is_active(unit, self.resource) {
            true => self.division(Some(unit), self.worth(unit)).own(),
            false => 0,
        }
    }

    /// The part of the capacity that no top-level unit may take because of limits.
    pub fn unheld(self) -> u64 {
        self.division(None, self.capacity.total()).own()
    }

    /// The values, own parts and reserved parts of all units, in one pass from the top level down.
    pub fn all(self) -> Entitlement {
        let (rights, resource) = (self.rights, self.resource);
        let n = rights.units.len();
        let top = self.division(None, self.capacity.total());
        let mut all = Entitlement { value: vec![0; n], own: vec![0; n], hard: vec![0; n], unheld: top.own() };
        // A unit's worth can be divided once all its parts are known: one part for its own tickets, and one
        // for each of its lots. For each unit that holds lots, this map has the number of parts not known
        // yet.
        let mut missing: BTreeMap<UnitId, usize> = BTreeMap::new();
        for (lot, _) in rights.lots.all(resource) {
            *missing.entry(lot.holder).or_insert(1) += 1;
        }
        let mut lots: Vec<(Lot, Part)> = Vec::new();
        let mut divisions = vec![(None, top)];
        while let Some((level, division)) = divisions.pop() {
            division.for_each(&mut |id, part| {
                let unit = Lot::holder(id);
                all.value[unit.index()] += part.total;
                all.hard[unit.index()] += part.hard;
                if let Some(kind) = Lot::kind(id) {
                    lots.push((Lot { holder: unit, currency: level, kind }, part));
                }
                if let Some(missing_parts) = missing.get_mut(&unit) {
                    *missing_parts -= 1;
                    if *missing_parts > 0 {
                        return;
                    }
                }
                let worth = all.value[unit.index()];
                // Without an active sub-unit, the unit's own processes hold all its worth.
                all.own[unit.index()] = worth;
                if rights.level(Some(unit)).active[resource] > 0 {
                    let inside = self.division(Some(unit), worth);
                    all.own[unit.index()] = inside.own();
                    divisions.push((Some(unit), inside));
                }
            });
        }
        // So far a lot counts in the values of its holder, of its issuer, and of the units around the issuer.
        // Add it to the values of the units around the holder, and subtract it from the issuer and from the
        // units around the issuer.
        for (lot, part) in &lots {
            for unit in rights.lineage(rights.unit(lot.holder).ok().and_then(|unit| unit.parent)) {
                all.value[unit.index()] += part.total;
                all.hard[unit.index()] += part.hard;
            }
        }
        for (lot, part) in &lots {
            for unit in rights.lineage(lot.currency) {
                all.value[unit.index()] -= part.total;
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
