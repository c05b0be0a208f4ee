//! The units that wait for CPUs, in the order in which idle CPUs are lent.
//!
//! Problem: each idle CPU goes to a unit among the lender's closest relatives: to the one that holds least for what it
//! is entitled to. What a unit lent before, less what it was lent, counts as if it held less. Thousands of CPUs may be lent at one step.
//!
//! Terms: a lender's *circles* are the units that enclose it, from the inside out, and the machine last. Every circle
//! holds the units of the one inside it.
//!
//! Algorithm: there is one queue per circle, ordered by what is held for the claim, then by number. A unit stands in
//! the queues of all circles that it lies in, and in its own. A lender asks its circles from the inside out. While
//! CPUs are lent, what a waiting unit holds only grows. So a place in a queue is renewed when it comes to the front
//! and is out of date.
//!
//! Properties: the order is that of a search through all units. A loan costs a place in each queue, logarithmic in how
//! many wait.
//!
//! Limit: the queues are good for one round of lending only, since at the next one holds may have sunk.
//!
//! Source: seed 004, section 5.2 (siblings first).

use alloc::collections::{BTreeMap, BinaryHeap};
use core::cmp::{Ordering, Reverse};

use commonhold_contract::{Contract, MILLIONTH, UnitId};

/// A unit, what it holds, and what it is entitled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) unit: UnitId,
    /// CPUs.
    pub(crate) held: usize,
    /// Millionths of a CPU; at least 1.
    pub(crate) claim: u64,
    /// What it lent beyond what it was lent: it counts as holding so many millionths of a CPU less.
    pub(crate) credit: i64,
}

impl Waiter {
    /// Compares what two hold, less their credits, for their entitlement.
    pub(crate) fn compare_holds(&self, other: &Waiter) -> Ordering {
        let counts =
            |waiter: &Waiter| waiter.held as i128 * i128::from(MILLIONTH) - i128::from(waiter.credit);
        (counts(self) * i128::from(other.claim)).cmp(&(counts(other) * i128::from(self.claim)))
    }
}

impl Ord for Waiter {
    fn cmp(&self, other: &Waiter) -> Ordering {
        self.compare_holds(other).then(self.unit.cmp(&other.unit))
    }
}

impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Waiter) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The queues, by circle; `None` is the machine.
#[derive(Debug)]
pub(crate) struct Queues<'a> {
    contract: &'a Contract,
    queues: BTreeMap<Option<UnitId>, BinaryHeap<Reverse<Waiter>>>,
}

impl<'a> Queues<'a> {
    pub(crate) fn of(contract: &'a Contract, waiting: impl Iterator<Item = Waiter>) -> Queues<'a> {
        let mut queues: BTreeMap<Option<UnitId>, BinaryHeap<Reverse<Waiter>>> = BTreeMap::new();
        for waiter in waiting {
            let mut circle = Some(waiter.unit);
            while let Some(unit) = circle {
                queues.entry(circle).or_default().push(Reverse(waiter));
                circle = contract.unit(unit).parent;
            }
            queues.entry(None).or_default().push(Reverse(waiter));
        }
        Queues { contract, queues }
    }

    /// Whether no unit waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The unit that is to have a CPU of that lender. `now` tells what a unit holds now, if it still waits.
    pub(crate) fn next(&mut self, lender: UnitId, now: impl Fn(UnitId) -> Option<Waiter>) -> Option<UnitId> {
        let parent = |unit: UnitId| self.contract.unit(unit).parent;
        let mut circle = if lender.is_common() { None } else { parent(lender) };
        while let Some(unit) = circle {
            if let Some(found) = front(self.queues.get_mut(&circle), &now) {
                return Some(found);
            }
            circle = self.contract.unit(unit).parent;
        }
        front(self.queues.get_mut(&None), &now)
    }
}

/// The first of a queue that still waits.
fn front(
    queue: Option<&mut BinaryHeap<Reverse<Waiter>>>,
    now: &impl Fn(UnitId) -> Option<Waiter>,
) -> Option<UnitId> {
    let queue = queue?;
    while let Some(Reverse(first)) = queue.peek().copied() {
        match now(first.unit) {
            Some(waiter) if waiter == first => return Some(first.unit),
            Some(waiter) => {
                queue.pop();
                queue.push(Reverse(waiter));
            }
            None => {
                queue.pop();
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::is_within;
    use proptest::prelude::*;

    /// The definition: most shared enclosers first, then the least held for the claim, then the lowest number.
    fn by_definition(contract: &Contract, waiting: &[Waiter], lender: UnitId) -> Option<UnitId> {
        let kinship = |unit: UnitId| {
            let mut enclosers = 0;
            let mut level = contract.unit(lender).parent;
            while let Some(encloser) = level {
                enclosers += usize::from(is_within(contract, unit, encloser));
                level = contract.unit(encloser).parent;
            }
            enclosers
        };
        waiting
            .iter()
            .min_by_key(|waiter| (Reverse(kinship(waiter.unit)), **waiter))
            .map(|waiter| waiter.unit)
    }

    /// 1 of 2, 2 of 4 and 1 of 1 CPUs: the first two tie, and the lower number wins; with one more it has 2 of 2 and stands
    /// behind the second's 2 of 4.
    #[test]
    fn who_holds_least_for_its_claim_comes_first() {
        let mut contract = Contract::default();
        let units = ["a", "b", "c", "d"].map(|name| contract.add(None, name));
        let waiter = |n: usize, held, claim| Waiter { unit: units[n], held, claim, credit: 0 };
        let mut waiting = [waiter(0, 1, 2), waiter(1, 2, 4), waiter(2, 1, 1)];
        let mut queues = Queues::of(&contract, waiting.into_iter());
        let now = |waiting: [Waiter; 3]| {
            move |unit: UnitId| waiting.iter().copied().find(|waiter| waiter.unit == unit)
        };
        assert_eq!(queues.next(units[3], now(waiting)), Some(units[0]));
        waiting[0].held = 2;
        assert_eq!(queues.next(units[3], now(waiting)), Some(units[1]));
        assert_eq!(queues.next(UnitId::SHARED, |_| None), None);
    }

    proptest! {
        /// Whatever the tree and whoever lends: the order is that of a search through everybody, until nobody waits.
        #[test]
        fn the_order_is_that_of_a_search(
            parents in proptest::collection::vec(0u32..12, 1..12),
            units in proptest::collection::vec((any::<bool>(), 0usize..6, 1u64..6, 0usize..4, -3i64..4), 12),
            lenders in proptest::collection::vec(0usize..12, 40),
        ) {
            let mut contract = Contract::default();
            for (n, parent) in (0u32..).zip(&parents) {
                contract.add((*parent < n).then_some(UnitId(2 + *parent)), &format!("u{n}"));
            }
            let all: Vec<UnitId> = contract.held().collect();
            let mut waiting: Vec<Waiter> = all
                .iter()
                .zip(&units)
                .filter(|(_, (waits, ..))| *waits)
                .map(|(unit, (_, held, claim, _, credit))| {
                    Waiter { unit: *unit, held: *held, claim: *claim, credit: credit * 500_000 }
                })
                .collect();
            let most = |unit: UnitId| units[unit.index() - 2].1 + units[unit.index() - 2].3;
            let mut queues = Queues::of(&contract, waiting.iter().copied());
            for lender in lenders.into_iter().map(|n| all[n % all.len()]) {
                let now = |unit: UnitId| waiting.iter().copied().find(|waiter| waiter.unit == unit);
                let found = queues.next(lender, now);
                prop_assert_eq!(found, by_definition(&contract, &waiting, lender));
                for waiter in waiting.iter_mut().filter(|waiter| Some(waiter.unit) == found) {
                    waiter.held += 1;
                }
                waiting.retain(|waiter| waiter.held <= most(waiter.unit));
            }
        }
    }
}
