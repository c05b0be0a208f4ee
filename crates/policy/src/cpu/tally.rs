//! One counter per unit: for example, how many CPUs each unit owns, counted in one pass over all CPUs.
//!
//! The counters are a dense vector indexed by unit number. The vector grows when a unit with a higher number
//! is counted: a unit that has left the contract may still occur in the policy's state.

use alloc::vec::Vec;

use commonhold_contract::UnitId;

/// A count for each unit; 0 for a unit that was never counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tally(Vec<usize>);

impl Tally {
    /// A unit's count.
    pub(crate) fn get(&self, unit: UnitId) -> usize {
        self.0.get(unit.index()).copied().unwrap_or(0)
    }

    /// Whether a unit's count is above 0.
    pub(crate) fn has(&self, unit: UnitId) -> bool {
        self.get(unit) > 0
    }

    /// Adds one to a unit's count.
    pub(crate) fn add(&mut self, unit: UnitId) {
        if self.0.len() <= unit.index() {
            self.0.resize(unit.index() + 1, 0);
        }
        self.0[unit.index()] += 1;
    }

    /// Subtracts one from a unit's count, which must be above 0.
    pub(crate) fn sub(&mut self, unit: UnitId) {
        debug_assert!(self.has(unit), "{unit:?} has none to give");
        if let Some(n) = self.0.get_mut(unit.index()) {
            *n = n.saturating_sub(1);
        }
    }
}

impl FromIterator<UnitId> for Tally {
    fn from_iter<I: IntoIterator<Item = UnitId>>(units: I) -> Self {
        let mut tally = Tally::default();
        for unit in units {
            tally.add(unit);
        }
        tally
    }
}
