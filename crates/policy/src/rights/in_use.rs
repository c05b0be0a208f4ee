//! What of reserved memory is in use, so that no exchange gives it away.
//!
//! Example: 2 GiB are reserved for `ana`, who has 1.6 GiB that cannot be dropped at once. She may give 0.4 GiB of her reservation.
//! If she gave more, the guarantee would sink under pages that stay, and others would be promised memory that is not there.
//!
//! Terms: memory is *in use* that a unit and its sub-units have and that cannot be dropped at once. Clean pages of files can,
//! where the machine tells them apart. It counts against what is reserved for the unit first, and against its tickets' part only
//! then.
//!
//! Algorithm: a unit may lend so much of a reservation that what is left for it is no less than what it uses. That is asked when
//! an offer is made, and again when it is to be served: use may have grown, and then the offer waits. When it is served, the same
//! is asked of the units around the one that lends, as far as what is lent leaves them.
//!
//! Properties (tested): no exchange that is made takes a reservation below what its unit uses of it, nor one around it.
//!
//! Limits: use is as of the last look at memory, and nobody knows it before the first. The end of an exchange asks nothing: what
//! was lent was lent for a time. A percentage that is reserved in a sub-unit follows what the unit around it is worth, whatever
//! that one exchanges.

use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, Resource, UnitId};

use super::trade::Leg;
use super::{Capacity, Offer, Refused, Rights, Stake};
use crate::snapshot::MemoryFacts;
use crate::tree;

/// Memory in use, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InUse {
    /// What units divide.
    divided: u64,
    /// Of each unit with its sub-units, by index.
    used: Vec<u64>,
}

impl InUse {
    /// As a backend observed it.
    pub fn new(contract: &Contract, facts: &MemoryFacts) -> InUse {
        let own = |id: UnitId| facts.units.get(id.index()).map_or(0, |unit| unit.used - unit.clean());
        let divided = facts.total.saturating_sub(facts.kernel).saturating_sub(facts.shared);
        InUse { divided, used: tree::sums(contract, own) }
    }

    /// The same without the units that the contract has no more: their numbers are free for others.
    #[must_use]
    pub fn without_gone(mut self, contract: &Contract) -> InUse {
        for id in &contract.vacant {
            if let Some(used) = self.used.get_mut(id.index()) {
                *used = 0;
            }
        }
        self
    }

    fn of(&self, unit: UnitId) -> u64 {
        self.used.get(unit.index()).copied().unwrap_or(0)
    }
}

/// Whether it is of reserved memory.
pub(super) fn is_reserved_memory(what: Offer) -> bool {
    what.resource == Resource::Memory && matches!(what.stake, Stake::Hard(_))
}

impl Rights {
    /// Says what is in use of memory. Offers of what is reserved are looked at again.
    pub fn set_in_use(&mut self, in_use: &InUse) {
        if self.in_use.as_ref() != Some(in_use) {
            self.in_use = Some(in_use.clone());
            self.market.stir();
        }
    }

    /// Whether an offer stands that waits for what is in use, so that it has to be known.
    pub(crate) fn asks_for_use(&self) -> bool {
        self.market.offers().values().any(|bid| is_reserved_memory(bid.gives))
    }

    /// Whether this is what is known to be in use.
    pub(crate) fn knows_in_use(&self, in_use: &InUse) -> bool {
        self.in_use.as_ref() == Some(in_use)
    }

    /// Whether a unit can do without so much of its reservation of memory. Of other resources all can be done without.
    pub(super) fn can_spare(&self, unit: UnitId, what: Offer) -> Result<(), Refused> {
        if !is_reserved_memory(what) {
            return Ok(());
        }
        let of = self.unit(unit)?.parent;
        self.keeps_what_it_uses(unit, self.in_bytes(what, of))
    }

    /// Whether the units that lend memory can do without it, and those around them, if all of this is moved.
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

    /// What a reservation of a currency is worth.
    fn in_bytes(&self, what: Offer, of: Option<UnitId>) -> u64 {
        match what.stake {
            Stake::Hard(Amount::Absolute(bytes)) => bytes,
            Stake::Hard(part) => part.of(self.memory_divided().map_or(0, |values| values.currency(of))),
            Stake::Tickets(_) => 0,
        }
    }

    fn memory_divided(&self) -> Option<super::Values<'_>> {
        let in_use = self.in_use.as_ref()?;
        Some(self.to_part(Resource::Memory, Capacity::Known(in_use.divided)))
    }

    /// Whether what is reserved for a unit is no less than what it uses of it, when so many bytes are gone.
    fn keeps_what_it_uses(&self, unit: UnitId, gone: u64) -> Result<(), Refused> {
        let (Some(in_use), Some(values)) = (&self.in_use, self.memory_divided()) else { return Ok(()) };
        // Nothing is reserved for a unit that is not there.
        if gone == 0 || !self.is_active(unit, Resource::Memory) {
            return Ok(());
        }
        let (used, reserved) = (in_use.of(unit), values.hard(unit));
        let kept = used.min(reserved);
        match reserved.saturating_sub(gone) >= kept {
            true => Ok(()),
            false => Err(Refused::InUse { unit, used, reserved, most: reserved - kept }),
        }
    }
}

#[cfg(test)]
mod tests;
