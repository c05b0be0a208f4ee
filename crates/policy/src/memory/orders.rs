//! From what units may use to what a backend is to write, as differences to what is in force.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::UnitId;

use crate::input::Input;
use crate::plan::{MemoryOrder, Reason, Share, Step};
use crate::tree;

/// What is in force for one unit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Orders {
    /// Of the unit with its sub-units: kept whatever happens, and kept as long as others have something to give.
    pub(super) min: u64,
    low: u64,
    /// The part of `low` that is its own processes'.
    own: u64,
    /// Of its own processes: `None` is no bound.
    pub(super) high: Option<u64>,
}

/// What is to be in force. A unit without processes is held to nothing, so that a process that comes finds room.
///
/// `reserved` is what no wants of others may take from a unit and its sub-units. A unit is guaranteed what its sub-units are, too:
/// a kernel keeps nothing for a unit that is not kept for the one around it. That is never more than the unit is entitled to, nor
/// than it may use, since its sub-units' entitlements and allowances are parts of its own.
pub(super) fn wanted(
    input: Input<'_>,
    shares: &[Share],
    reserved: impl Fn(UnitId) -> u64,
) -> BTreeMap<UnitId, Orders> {
    let values = tree::sums(input.contract, |unit| shares[unit.index()].entitled);
    let allowed = tree::sums(input.contract, |unit| shares[unit.index()].allowed);
    let guarantees = input.means.memory.guarantees;
    // What is lent of a reservation is no part of the guarantee until it is called back: a bound below a guarantee would say that
    // the unit is to lose what nothing may take from it.
    let of_its_own = |id: UnitId| reserved(id).min(values[id.index()]).min(allowed[id.index()]);
    let mut min = alloc::vec![0u64; input.contract.units.len()];
    // A unit stands before its sub-units: going backwards, theirs are summed by then.
    for id in input.contract.held().rev() {
        let kept = min[id.index()].max(of_its_own(id));
        min[id.index()] = kept;
        if let Some(around) = input.contract.unit(id).parent {
            min[around.index()] = min[around.index()].saturating_add(kept);
        }
    }
    // A machine that hands out frames itself lets a process that comes have some, whatever its unit's bound is.
    let all = input.means.memory.frames.is_some();
    let order = |id: UnitId| {
        let value = values[id.index()];
        let present = input.snapshot.unit(id).processes > 0;
        let share = shares[id.index()];
        Orders {
            min: if guarantees { min[id.index()] } else { 0 },
            low: if guarantees { value } else { 0 },
            own: if guarantees { share.entitled } else { 0 },
            high: (present || all).then_some(share.allowed),
        }
    };
    input
        .contract
        .held()
        .map(|id| (id, order(id)))
        .filter(|(_, orders)| *orders != Orders::default())
        .collect()
}

/// The steps from the orders in force to those wanted: guarantees that sink, bounds that sink, bounds that grow, guarantees
/// that grow. So at no step is the bound of a unit without sub-units below its guarantee.
pub(super) fn differences(
    before: &BTreeMap<UnitId, Orders>,
    wanted: &BTreeMap<UnitId, Orders>,
    reason: Reason,
    steps: &mut Vec<Step<MemoryOrder>>,
) {
    if before == wanted {
        return;
    }
    let units: BTreeSet<UnitId> = before.keys().chain(wanted.keys()).copied().collect();
    let of = |orders: &BTreeMap<UnitId, Orders>, unit| orders.get(&unit).copied().unwrap_or_default();
    let pairs: Vec<(UnitId, Orders, Orders)> =
        units.into_iter().map(|unit| (unit, of(before, unit), of(wanted, unit))).collect();
    let bound = |high: Option<u64>| high.unwrap_or(u64::MAX);
    let allow = |sinks: bool| {
        let changed = pairs.iter().filter(|(_, old, new)| old.high != new.high);
        let these = changed.filter(move |(_, old, new)| (bound(new.high) < bound(old.high)) == sinks);
        these.map(|(unit, _, new)| Step {
            action: MemoryOrder::Allow { unit: *unit, bytes: new.high },
            reason,
        })
    };
    let kept = |orders: &Orders| (orders.min, orders.low, orders.own);
    let guarantee = |sinks: bool| {
        let changed = pairs.iter().filter(|(_, old, new)| kept(old) != kept(new));
        let these = changed.filter(move |(_, old, new)| (new.min < old.min) == sinks);
        these.map(|(unit, _, new)| {
            let action = MemoryOrder::Guarantee { unit: *unit, min: new.min, low: new.low, own: new.own };
            let reason = if new.low > 0 { Reason::EntitledTo { bytes: new.low } } else { reason };
            Step { action, reason }
        })
    };
    steps.extend(guarantee(true).chain(allow(true)).chain(allow(false)).chain(guarantee(false)));
}
