//! The units that wait for CPUs, in the order in which idle CPUs are lent to them.
//!
//! Problem: a unit that shares a smaller enclosing unit with the lender comes before one that shares only a
//! larger one. Among equally close units, the unit that holds the fewest CPUs relative to its entitlement
//! comes first; a unit that has lent more than it borrowed counts as holding fewer. One step may lend
//! thousands of CPUs, so a scan of all waiters for each CPU would be too slow.
//!
//! Terms: a lender's *circles* are the units that enclose it, innermost first, then the machine. Each circle
//! contains the previous one.
//!
//! Algorithm: one priority queue per circle, ordered by CPUs held over CPUs entitled to, then by unit number.
//! A waiter is queued in each of its circles. It is also queued in itself, as the innermost circle of its
//! sub-units. A lender tries its circles from the innermost outwards. During a round of lending, the number
//! of CPUs that a waiter holds only grows. So keys are updated lazily: if an entry at the front has an
//! outdated key, it is queued again with the waiter's current key.
//!
//! Properties: the order is the same as by linear search. A loan costs one heap operation per circle, O(log
//! waiters) each.
//!
//! Limit: queues are valid for one round of lending. Before the next round, a waiter may lose CPUs, which
//! lazy updates would miss.
//!
//! Source: seed 004, section 5.2 (siblings first).

use alloc::collections::{BTreeMap, BinaryHeap};
use core::cmp::{Ordering, Reverse};

use commonhold_contract::{Contract, MILLIONTH, UnitId};

/// A waiting unit with its holdings and entitlement. Ordered by holdings, less credits, relative to
/// entitlement; then by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) unit: UnitId,
    /// The CPUs that the unit holds.
    pub(crate) held: usize,
    /// Its entitlement, in millionths of a CPU; at least 1.
    pub(crate) claim: u64,
    /// Its past net lending, in millionths of a CPU, subtracted from what it holds.
    pub(crate) credit: i64,
}

impl Waiter {
    /// Compares holdings, less credits, relative to entitlements: a / b < c / d where a * d < c * b.
    pub(crate) fn compare_holdings(&self, other: &Waiter) -> Ordering {
        let net_held =
            |waiter: &Waiter| waiter.held as i128 * i128::from(MILLIONTH) - i128::from(waiter.credit);
        (net_held(self) * i128::from(other.claim)).cmp(&(net_held(other) * i128::from(self.claim)))
    }
}

impl Ord for Waiter {
    fn cmp(&self, other: &Waiter) -> Ordering {
        self.compare_holdings(other).then(self.unit.cmp(&other.unit))
    }
}

impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Waiter) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The queues of waiting units, by circle; `None` is the machine.
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

    /// The borrower for a CPU of `lender`; `None` if no unit waits. `current` gives a unit's current
    /// holdings, or `None` if the unit no longer waits.
    pub(crate) fn next(
        &mut self,
        lender: UnitId,
        current: impl Fn(UnitId) -> Option<Waiter>,
    ) -> Option<UnitId> {
        let parent = |unit: UnitId| self.contract.unit(unit).parent;
        let mut circle = if lender.is_common() { None } else { parent(lender) };
        while let Some(unit) = circle {
            if let Some(borrower) = front(self.queues.get_mut(&circle), &current) {
                return Some(borrower);
            }
            circle = self.contract.unit(unit).parent;
        }
        front(self.queues.get_mut(&None), &current)
    }
}

/// The first unit in a queue that still waits, after stale entries before it were queued again or dropped.
fn front(
    queue: Option<&mut BinaryHeap<Reverse<Waiter>>>,
    current: &impl Fn(UnitId) -> Option<Waiter>,
) -> Option<UnitId> {
    let queue = queue?;
    while let Some(Reverse(first)) = queue.peek().copied() {
        match current(first.unit) {
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

    /// Reference: most shared enclosing units first, then the least held relative to entitlement, then the
    /// lowest number.
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

    /// 1 of 2, 2 of 4 and 1 of 1 CPUs: the first two tie, and the lower number wins. With one more CPU it has
    /// 2 of 2, and comes after the second's 2 of 4.
    #[test]
    fn the_least_held_relative_to_the_claim_comes_first() {
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
        /// For any tree and any lenders, the order equals that of a linear search, until no unit waits.
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
