//! Whole-tree queries on a contract's units.
//!
//! A contract stores each unit's encloser only, so finding a unit's sub-units scans all units. Callers that
//! need the sub-units of many units build an index once: [`Levels`].

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

/// A unit and its enclosers, from the inside out.
pub fn lineage(contract: &Contract, unit: UnitId) -> impl Iterator<Item = UnitId> + '_ {
    core::iter::successors(Some(unit), |unit| contract.unit(*unit).parent)
}

/// The top-level unit that contains `unit`; `unit` itself if it is at the top level.
pub fn outermost(contract: &Contract, unit: UnitId) -> UnitId {
    lineage(contract, unit).last().unwrap_or(unit)
}

/// For each unit by index, the sum of `own` over that unit and all units inside it. Sums saturate.
pub fn sums(contract: &Contract, own: impl Fn(UnitId) -> u64) -> Vec<u64> {
    let mut sums = vec![0u64; contract.units.len()];
    // Parents precede their children, so one backward pass carries sums all the way up.
    for id in contract.held().rev() {
        let sum = sums[id.index()].saturating_add(own(id));
        sums[id.index()] = sum;
        if let Some(parent) = contract.unit(id).parent {
            sums[parent.index()] = sums[parent.index()].saturating_add(sum);
        }
    }
    sums
}

/// An index of the units directly in each enclosing unit, and at the top level (`None`), in the order of
/// their numbers.
#[derive(Debug, Clone, Default)]
pub struct Levels(BTreeMap<Option<UnitId>, Vec<UnitId>>);

impl Levels {
    /// Indexes a contract.
    pub fn of(contract: &Contract) -> Levels {
        let mut levels: BTreeMap<Option<UnitId>, Vec<UnitId>> = BTreeMap::new();
        for unit in contract.held() {
            levels.entry(contract.unit(unit).parent).or_default().push(unit);
        }
        Levels(levels)
    }

    /// The units directly in the given unit; `None`: at the top level.
    pub fn at(&self, level: Option<UnitId>) -> &[UnitId] {
        self.0.get(&level).map_or(&[], Vec::as_slice)
    }

    /// All non-empty levels.
    pub fn all(&self) -> impl Iterator<Item = &[UnitId]> {
        self.0.values().map(Vec::as_slice)
    }

    /// A unit and all units inside it, in the order of their numbers. O(n log n) for n such units.
    pub fn within(&self, unit: UnitId) -> Vec<UnitId> {
        let mut subtree = vec![unit];
        // Breadth first: `subtree` is the result and the queue of units to expand.
        let mut expanded = 0;
        while let Some(unit) = subtree.get(expanded) {
            subtree.extend_from_slice(self.at(Some(*unit)));
            expanded += 1;
        }
        subtree.sort_unstable();
        subtree
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::is_within;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a scan of all units, some of them vacant.
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
