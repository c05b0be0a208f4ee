//! Reserved memory that is in use, which no exchange may give away.
//!
//! Example: 2 GiB are reserved for `ana`, who uses 1.6 GiB that cannot be dropped at once. She may give away
//! 0.4 GiB. If she gave more, the guarantee would sink below what she uses, and others would be promised
//! memory that is not free.
//!
//! Terms: memory is *in use* if a unit or its sub-units have it and it cannot be dropped at once. Clean page
//! cache can be dropped, if the machine reports it separately. Use counts against the unit's reservation
//! first, and only then against what its tickets are worth.
//!
//! Algorithm: a unit may lend a part of its reservation if the rest covers its use. This is checked when the
//! offer is made and again when it is served; if use has grown meanwhile, the offer waits. When it is served,
//! the units around the lender are checked likewise, net of what moves within them.
//!
//! Properties (tested): no exchange takes a reservation below its unit's use of it, nor that of an enclosing
//! unit.
//!
//! Limits: use is as of the last sample of memory, and unknown before the first. Ending an exchange checks
//! nothing, since the loan was temporary. A percentage reserved in a sub-unit follows the value of its
//! encloser, whatever that exchanges.

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
    /// Indexed by unit, sub-units included.
    used: Vec<u64>,
}

impl InUse {
    /// From a backend's sample.
    pub fn new(contract: &Contract, facts: &MemoryFacts) -> InUse {
        let own = |id: UnitId| facts.units.get(id.index()).map_or(0, |unit| unit.used - unit.clean());
        let divided = facts.total.saturating_sub(facts.kernel).saturating_sub(facts.shared);
        InUse { divided, used: tree::sums(contract, own) }
    }

    /// Clears the use of units that left the contract: their numbers may be reassigned.
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

/// Whether the amount is of reserved memory.
pub(super) fn is_reserved_memory(what: Offer) -> bool {
    what.resource == Resource::Memory && matches!(what.stake, Stake::Hard(_))
}

impl Rights {
    /// Sets the memory in use, and has offers of reserved memory reconsidered.
    pub fn set_in_use(&mut self, in_use: &InUse) {
        if self.in_use.as_ref() != Some(in_use) {
            self.in_use = Some(in_use.clone());
            self.market.stir();
        }
    }

    /// Whether an open offer gives reserved memory, so that its use matters.
    pub(crate) fn asks_for_use(&self) -> bool {
        self.market.offers().values().any(|bid| is_reserved_memory(bid.gives))
    }

    /// Whether `in_use` is the value set last.
    pub(crate) fn knows_in_use(&self, in_use: &InUse) -> bool {
        self.in_use.as_ref() == Some(in_use)
    }

    /// Refuses if the unit uses the reserved memory that it would lend. Amounts of other resources are never
    /// in use.
    pub(super) fn can_spare(&self, unit: UnitId, what: Offer) -> Result<(), Refused> {
        if !is_reserved_memory(what) {
            return Ok(());
        }
        let currency = self.unit(unit)?.parent;
        self.keeps_what_it_uses(unit, self.in_bytes(what, currency))
    }

    /// Refuses if moving all these legs would take reserved memory in use from a lender or a unit around it.
    pub(super) fn can_move(&self, legs: &[Leg]) -> Result<(), Refused> {
        let moved: Vec<&Leg> = legs.iter().filter(|leg| is_reserved_memory(leg.what)).collect();
        for unit in moved.iter().flat_map(|leg| self.lineage(Some(leg.from))) {
            let sum = |end: fn(&Leg) -> UnitId| -> u64 {
                let inside = moved.iter().filter(|leg| self.is_in(unit, Some(end(leg))));
                inside.map(|leg| self.in_bytes(leg.what, leg.of)).fold(0, u64::saturating_add)
            };
            self.keeps_what_it_uses(unit, sum(|leg| leg.from).saturating_sub(sum(|leg| leg.to)))?;
        }
        Ok(())
    }

    /// The value in bytes of a reservation in a currency.
    fn in_bytes(&self, what: Offer, currency: Option<UnitId>) -> u64 {
        match what.stake {
            Stake::Hard(Amount::Absolute(bytes)) => bytes,
            Stake::Hard(part) => part.of(self.memory_divided().map_or(0, |values| values.currency(currency))),
            Stake::Tickets(_) => 0,
        }
    }

    fn memory_divided(&self) -> Option<super::Values<'_>> {
        let in_use = self.in_use.as_ref()?;
        Some(self.to_part(Resource::Memory, Capacity::Known(in_use.divided)))
    }

    /// Refuses if a unit's reservation, `gone` bytes smaller, would not cover what it uses of it.
    fn keeps_what_it_uses(&self, unit: UnitId, gone: u64) -> Result<(), Refused> {
        let (Some(in_use), Some(values)) = (&self.in_use, self.memory_divided()) else { return Ok(()) };
        // An inactive unit has no reservation.
        if gone == 0 || !self.is_active(unit, Resource::Memory) {
            return Ok(());
        }
        let (used, reserved) = (in_use.used_by(unit), values.hard(unit));
        let kept = used.min(reserved);
        match reserved.saturating_sub(gone) >= kept {
            true => Ok(()),
            false => Err(Refused::InUse { unit, used, reserved, most: reserved - kept }),
        }
    }
}

#[cfg(test)]
mod tests;
