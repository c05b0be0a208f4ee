//! Reserved memory that is in use, which no exchange may give away.
//!
//! Example: `ana` has 2 GiB reserved, and uses 1.6 GiB that cannot be dropped at once. She may give away 0.4
//! GiB. If she gave more, her reservation would sink below her use, and another unit would be promised memory
//! that is not free.
//!
//! Terms: memory is *in use* if it is charged to a unit or to the unit's sub-units, and cannot be dropped at
//! once. Clean page cache can be dropped; it counts as in use only where the machine does not report it
//! separately. A unit's use counts against its reservation first, and only the excess counts against the
//! value of its tickets.
//!
//! Algorithm: a unit may lend a part of its reservation if the remaining reservation covers its use. This is
//! checked when an offer is made, and again when the offer is served; if use has grown meanwhile, the offer
//! waits. When an offer is served, every unit around the lender is checked likewise; for such a unit, only
//! memory that leaves it counts, not memory that moves between two of its sub-units.
//!
//! Properties (tested): no exchange reduces the reservation of a unit, or of a unit around it, below the
//! memory in use that counts against that reservation.
//!
//! Limits: use is as of the last sample of memory, and unknown before the first sample; while it is unknown,
//! nothing is refused. The end of an exchange is not checked, since its loans were temporary. If a sub-unit
//! reserves a percentage of its encloser's value, an exchange by the encloser changes the sub-unit's
//! reservation, and this is not checked.

use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, Resource, UnitId};

use super::trade::Leg;
use super::{Capacity, Offer, Refused, Rights, Stake};
use crate::snapshot::MemoryFacts;
use crate::tree;

/// Memory in use, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InUse {
    /// The memory that units divide.
    divided: u64,
    /// The memory in use by each unit, sub-units included; indexed by unit.
    used: Vec<u64>,
}

impl InUse {
    /// The memory in use according to a backend's sample.
    pub fn new(contract: &Contract, facts: &MemoryFacts) -> InUse {
        let own = |id: UnitId| facts.units.get(id.index()).map_or(0, |unit| unit.used - unit.clean());
        let divided = facts.total.saturating_sub(facts.kernel).saturating_sub(facts.shared);
        InUse { divided, used: tree::sums(contract, own) }
    }

    /// Sets the use of every unit that left the contract to 0, since the unit's number may be given to a new
    /// unit.
    #[must_use]
    pub fn without_gone(mut self, contract: &Contract) -> InUse {
        for id in &contract.vacant {
            if let Some(used) = self.used.get_mut(id.index()) {
                *used = 0;
            }
        }
        self
    }

    fn used_by(&self, unit: UnitId) -> u64 {
        self.used.get(unit.index()).copied().unwrap_or(0)
    }
}

/// Whether an offered amount is a part of a memory reservation.
pub(super) fn is_reserved_memory(offer: Offer) -> bool {
    offer.resource == Resource::Memory && matches!(offer.stake, Stake::Hard(_))
}

impl Rights {
    /// Sets the memory in use. On a change, the next [`Rights::settle`] reconsiders all offers.
    pub fn set_in_use(&mut self, in_use: &InUse) {
        if self.in_use.as_ref() != Some(in_use) {
            self.in_use = Some(in_use.clone());
            self.market.mark_dirty();
        }
    }

    /// Whether an open offer gives reserved memory, so that the memory in use must be known.
    pub(crate) fn asks_for_use(&self) -> bool {
        self.market.offers().values().any(|bid| is_reserved_memory(bid.gives))
    }

    /// Whether `in_use` is the value set last.
    pub(crate) fn knows_in_use(&self, in_use: &InUse) -> bool {
        self.in_use.as_ref() == Some(in_use)
    }

    /// Refuses if a unit would lend reserved memory that it uses. Never refuses offers of other resources, or
    /// of tickets.
    pub(super) fn check_can_spare(&self, unit: UnitId, offer: Offer) -> Result<(), Refused> {
        if !is_reserved_memory(offer) {
            return Ok(());
        }
        let currency = self.unit(unit)?.parent;
        self.check_covers_use(unit, self.in_bytes(offer, currency))
    }

    /// Refuses if the legs of an exchange, taken together, would take reserved memory that is in use from a
    /// lender or from a unit around a lender.
    pub(super) fn check_can_move(&self, legs: &[Leg]) -> Result<(), Refused> {
        let memory_legs: Vec<&Leg> = legs.iter().filter(|leg| is_reserved_memory(leg.what)).collect();
        for unit in memory_legs.iter().flat_map(|leg| self.lineage(Some(leg.from))) {
            // The bytes of the legs whose `end` (lender or borrower) is in the unit.
            let sum = |end: fn(&Leg) -> UnitId| -> u64 {
                let inside = memory_legs.iter().filter(|leg| self.is_in(unit, Some(end(leg))));
                inside.map(|leg| self.in_bytes(leg.what, leg.of)).fold(0, u64::saturating_add)
            };
            let (leaves, arrives) = (sum(|leg| leg.from), sum(|leg| leg.to));
            self.check_covers_use(unit, leaves.saturating_sub(arrives))?;
        }
        Ok(())
    }

    /// Converts an offered part of a memory reservation to bytes; 0 for tickets. A percentage is of the
    /// present worth of `currency`. Before the first sample of memory that worth is unknown, and a percentage
    /// counts as 0 bytes.
    fn in_bytes(&self, offer: Offer, currency: Option<UnitId>) -> u64 {
        match offer.stake {
            Stake::Hard(Amount::Absolute(bytes)) => bytes,
            Stake::Hard(part) => part.of(self.memory_values().map_or(0, |values| values.currency(currency))),
            Stake::Tickets(_) => 0,
        }
    }

    /// The values of memory in bytes, at the capacity that units divide; `None` before the first sample.
    fn memory_values(&self) -> Option<super::Values<'_>> {
        let in_use = self.in_use.as_ref()?;
        Some(self.at_capacity(Resource::Memory, Capacity::Known(in_use.divided)))
    }

    /// Refuses if a unit's reservation, reduced by `lent` bytes, would no longer cover the memory in use that
    /// counts against it.
    fn check_covers_use(&self, unit: UnitId, lent: u64) -> Result<(), Refused> {
        let (Some(in_use), Some(values)) = (&self.in_use, self.memory_values()) else { return Ok(()) };
        // An inactive unit has no reservation.
        if lent == 0 || !self.is_active(unit, Resource::Memory) {
            return Ok(());
        }
        let (used, reserved) = (in_use.used_by(unit), values.hard(unit));
        let needed = used.min(reserved);
        match reserved.saturating_sub(lent) >= needed {
            true => Ok(()),
            false => Err(Refused::InUse { unit, used, reserved, most: reserved - needed }),
        }
    }
}

#[cfg(test)]
mod tests;
