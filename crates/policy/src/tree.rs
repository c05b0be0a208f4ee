//! The tree of a contract's units, asked for all of it at once.
//!
//! A contract knows each unit's encloser. To look for what is in a unit means to look at all units. Who wants to know it of
//! many units asks here, once.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

/// A unit and those around it, from within.
pub fn lineage(contract: &Contract, unit: UnitId) -> impl Iterator<Item = UnitId> + '_ {
    core::iter::successors(Some(unit), |unit| contract.unit(*unit).parent)
}

/// The outermost unit around one, or itself.
pub fn outermost(contract: &Contract, unit: UnitId) -> UnitId {
    lineage(contract, unit).last().unwrap_or(unit)
}

/// What each unit has together with all that is in it, by index.
pub fn sums(contract: &Contract, own: impl Fn(UnitId) -> u64) -> Vec<u64> {
    let mut sums = vec![0u64; contract.units.len()];
    // A parent stands before its children: going backwards carries sums all the way up.
    for id in contract.held().rev() {
        let sum = sums[id.index()].saturating_add(own(id));
        sums[id.index()] = sum;
        if let Some(parent) = contract.unit(id).parent {
            sums[parent.index()] = sums[parent.index()].saturating_add(sum);
        }
    }
    sums
}

/// The units directly in each unit that encloses any, and at the top (`None`), in the order of their places.
#[derive(Debug, Clone, Default)]
pub struct Levels(BTreeMap<Option<UnitId>, Vec<UnitId>>);

impl Levels {
    /// Those of a contract.
    pub fn of(contract: &Contract) -> Levels {
        let mut levels: BTreeMap<Option<UnitId>, Vec<UnitId>> = BTreeMap::new();
        for unit in contract.held() {
            levels.entry(contract.unit(unit).parent).or_default().push(unit);
        }
        Levels(levels)
    }

    /// The units directly in one, or at the top.
    pub fn at(&self, level: Option<UnitId>) -> &[UnitId] {
        self.0.get(&level).map_or(&[], Vec::as_slice)
    }

    /// All levels that have units.
    pub fn all(&self) -> impl Iterator<Item = &[UnitId]> {
        self.0.values().map(Vec::as_slice)
    }

    /// A unit and all that is in it, in the order of their places. Costs as much as there are.
    pub fn within(&self, unit: UnitId) -> Vec<UnitId> {
        let mut found = vec![unit];
        let mut looked = 0;
        while let Some(unit) = found.get(looked) {
            found.extend_from_slice(self.at(Some(*unit)));
            looked += 1;
        }
        found.sort_unstable();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::is_within;
    use proptest::prelude::*;

    proptest! {
        /// What a search through all units finds, with units that are vacant.
        #[test]
        fn the_tree_is_that_of_the_contract(
            parents in proptest::collection::vec((0usize..20, any::<bool>()), 1..20),
            gone in 0usize..20,
        ) {
            let mut contract = Contract::default();
            let mut units: Vec<UnitId> = Vec::new();
            for (n, (parent, nested)) in parents.into_iter().enumerate() {
                let parent = units.get(parent % n.max(1)).copied().filter(|_| nested);
                units.push(contract.add(parent, &format!("u{n}")));
            }
            let gone = units.get(gone).copied();
            let gone = gone.filter(|gone| contract.held().all(|id| id == *gone || !is_within(&contract, id, *gone)));
            contract.vacant.extend(gone);
            let levels = Levels::of(&contract);
            let own = |id: UnitId| u64::from(id.0) * 7;
            let sums = sums(&contract, own);
            for unit in contract.held() {
                let within: Vec<UnitId> = contract.held().filter(|id| is_within(&contract, *id, unit)).collect();
                prop_assert_eq!(sums[unit.index()], within.iter().map(|id| own(*id)).sum::<u64>());
                prop_assert_eq!(levels.within(unit), within);
                prop_assert!(lineage(&contract, unit).all(|around| is_within(&contract, unit, around)));
                prop_assert_eq!(levels.at(Some(unit)), contract.children(Some(unit)).collect::<Vec<_>>());
            }
            prop_assert_eq!(levels.at(None), contract.children(None).collect::<Vec<_>>());
            prop_assert_eq!(levels.all().flatten().count(), contract.held().count());
        }
    }
}
