//! Lots: tickets of a foreign currency, or a borrowed reservation, that a unit holds beside its own tickets.
//!
//! Example: unit `ana` is in `lab`, unit `bo` in `works`. `ana` lends 30 of its tickets in the currency of
//! `lab` to `bo`, which holds them as a lot. So `bo` has a part of `works` by its own tickets, and a part of
//! `lab` by the lot. The value of every other unit in `lab` and `works` is unchanged.
//!
//! A lent part of a reservation is always a lot. Soft tickets lent to a sibling are not a lot: lender and
//! borrower have the same currency, so the tickets count with the borrower's other tickets.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Amount, PerResource, Resource, UnitId};

use super::ordered::Entry;
use super::worth::Terms;

/// The kind of amount in a lot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Soft tickets.
    Soft,
    /// Reserved: a fraction of the currency's worth, in millionths.
    Part,
    /// Reserved: an amount in the resource's measure.
    Absolute,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Soft, Kind::Part, Kind::Absolute];

    /// The kind of a reserved amount, and its quantity.
    pub(super) fn of(amount: Amount) -> (Kind, u64) {
        match amount {
            Amount::Part(quantity) => (Kind::Part, quantity),
            Amount::Absolute(quantity) => (Kind::Absolute, quantity),
        }
    }

    /// `quantity` of this kind as a reservation; `None` for tickets.
    pub(super) fn amount(self, quantity: u64) -> Option<Amount> {
        match self {
            Kind::Soft => None,
            Kind::Part => Some(Amount::Part(quantity)),
            Kind::Absolute => Some(Amount::Absolute(quantity)),
        }
    }
}

/// Identifies a lot of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lot {
    /// The unit that holds the lot.
    pub(super) holder: UnitId,
    /// The unit whose currency the lot is in; `None`: the base currency of the top level.
    pub(super) currency: Option<UnitId>,
    pub(super) kind: Kind,
}

impl Lot {
    /// The class and entry of a lot with this `quantity`, in the level of its currency.
    pub(super) fn entry(self, quantity: u64) -> (Terms, Entry) {
        let kind = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u64 + 1;
        let tickets = if self.kind == Kind::Soft { quantity } else { 0 };
        let terms = Terms::new(self.kind.amount(quantity), None);
        (terms, Entry { id: kind << u32::BITS | u64::from(self.holder.0), tickets })
    }

    /// The unit that an entry's number means: the unit itself, or the holder of the lot.
    pub(super) fn holder(id: u64) -> UnitId {
        UnitId(u32::try_from(id & u64::from(u32::MAX)).unwrap_or(u32::MAX))
    }

    /// The kind of the lot that an entry's number means; `None` for a unit's own entry.
    pub(super) fn kind(id: u64) -> Option<Kind> {
        let nth = usize::try_from(id >> u32::BITS).ok()?.checked_sub(1)?;
        Kind::ALL.get(nth).copied()
    }
}

/// All lots with their amounts; empty lots are not stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Lots(PerResource<BTreeMap<Lot, u64>>);

impl Lots {
    pub(super) fn is_empty(&self, resource: Resource) -> bool {
        self.0[resource].is_empty()
    }

    /// The amount in a lot; 0 if there is no such lot.
    pub(super) fn quantity(&self, resource: Resource, lot: Lot) -> u64 {
        self.0[resource].get(&lot).copied().unwrap_or(0)
    }

    /// The lots of a unit.
    pub(super) fn held_by(
        &self,
        resource: Resource,
        holder: UnitId,
    ) -> impl Iterator<Item = (Lot, u64)> + '_ {
        let first = Lot { holder, currency: None, kind: Kind::Soft };
        let all = self.0[resource].range(first..).map(|(lot, quantity)| (*lot, *quantity));
        all.take_while(move |(lot, _)| lot.holder == holder)
    }

    /// All lots of a resource.
    pub(super) fn all(&self, resource: Resource) -> impl Iterator<Item = (Lot, u64)> + '_ {
        self.0[resource].iter().map(|(lot, quantity)| (*lot, *quantity))
    }

    pub(super) fn set(&mut self, resource: Resource, lot: Lot, quantity: u64) {
        match quantity {
            0 => drop(self.0[resource].remove(&lot)),
            _ => drop(self.0[resource].insert(lot, quantity)),
        }
    }

    /// Drops the lots whose holder or issuing unit is not known.
    pub(super) fn retain(&mut self, is_known: impl Fn(UnitId) -> bool) {
        for resource in Resource::ALL {
            let stays = |lot: &Lot| is_known(lot.holder) && lot.currency.is_none_or(&is_known);
            self.0[resource].retain(|lot, _| stays(lot));
        }
    }

    /// Whether currencies would form a cycle if each holder in `added` also held a lot of the currency beside
    /// it.
    ///
    /// A unit's worth depends on the worth of its encloser, and on that of the currencies of its lots. This
    /// searches the graph of these dependencies, depth first, from each holder back to the holder.
    pub(super) fn would_form_cycle(
        &self,
        resource: Resource,
        added: &[(UnitId, Option<UnitId>)],
        encloser: impl Fn(UnitId) -> Option<UnitId>,
    ) -> bool {
        let dependencies = |unit: UnitId| -> Vec<UnitId> {
            let lots = self.held_by(resource, unit).filter_map(|(lot, _)| lot.currency);
            let added =
                added.iter().filter(|(holder, _)| *holder == unit).filter_map(|(_, currency)| *currency);
            encloser(unit).into_iter().chain(lots).chain(added).collect()
        };
        added.iter().any(|(holder, _)| {
            let (mut visited, mut stack) = (Vec::new(), dependencies(*holder));
            while let Some(unit) = stack.pop() {
                if unit == *holder {
                    return true;
                }
                if !visited.contains(&unit) {
                    visited.push(unit);
                    stack.extend(dependencies(unit));
                }
            }
            false
        })
    }
}
