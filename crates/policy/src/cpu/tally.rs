//! Numbers by unit. So how many CPUs a unit owns, lends or borrows is counted once and not searched for.
//!
//! It is a list by the unit's index, which is dense in a contract. A unit that was never counted has none. A state may
//! know units that the present contract no longer has.

use alloc::vec::Vec;

use commonhold_contract::UnitId;

/// How many of something each unit has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tally(Vec<usize>);

impl Tally {
    pub(crate) fn get(&self, unit: UnitId) -> usize {
        self.0.get(unit.index()).copied().unwrap_or(0)
    }

    /// Whether it was counted at all.
    pub(crate) fn has(&self, unit: UnitId) -> bool {
        self.get(unit) > 0
    }

    pub(crate) fn add(&mut self, unit: UnitId) {
        if self.0.len() <= unit.index() {
            self.0.resize(unit.index() + 1, 0);
        }
        self.0[unit.index()] += 1;
    }

    /// Takes back one that was added.
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
