//! Counters by unit, so that the CPUs that a unit owns, lends or borrows are counted once rather than searched for.
//!
//! A dense vector indexed by unit. Units that were never counted are absent, and a state may know units that the present
//! contract no longer has.

use alloc::vec::Vec;

use commonhold_contract::UnitId;

/// A count for each unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tally(Vec<usize>);

impl Tally {
    pub(crate) fn get(&self, unit: UnitId) -> usize {
        self.0.get(unit.index()).copied().unwrap_or(0)
    }

    /// Whether the count is not zero.
    pub(crate) fn has(&self, unit: UnitId) -> bool {
        self.get(unit) > 0
    }

    pub(crate) fn add(&mut self, unit: UnitId) {
        if self.0.len() <= unit.index() {
            self.0.resize(unit.index() + 1, 0);
        }
        self.0[unit.index()] += 1;
    }

    /// Subtracts one that was added before.
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
