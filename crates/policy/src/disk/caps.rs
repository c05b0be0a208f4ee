//! The caps (io.max) of units on one disk, each way: the tightest of rates in force, limits and ceilings.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, MILLIONTH, Resource, Scheme, UnitId};

use super::in_force::{DiskCap, Order, RATE_MIN};
use super::rates::{RateControl, RateInForce, TransferRate};
use crate::input::Input;
use crate::plan::Reason;
use crate::rights::entitlement::Entitlement;
use crate::rights::limits;
use crate::rights::share::part_of;
use crate::snapshot::DiskFacts;
use crate::tree;

/// The caps that are wanted on one disk. A unit's cap covers its sub-units.
pub(super) fn wanted(
    input: Input<'_>,
    entitlement: &Entitlement,
    facts: &DiskFacts,
    control: &RateControl,
    rates: &BTreeMap<UnitId, RateInForce>,
) -> BTreeMap<UnitId, Order<DiskCap>> {
    let contract = input.contract;
    // Where a unit is stopped for exceeding its rate, a percentage of an unmeasured capacity is no limit.
    let peak = if input.means.disk.limits_only { 0 } else { control.peak() };
    let capacity = facts.bytes_per_s.unwrap_or(peak);
    let total = contract.children(None).map(|unit| entitlement.value(unit)).sum::<u64>() + entitlement.unheld;
    let transferred = transferred_with_sub_units(contract, control);
    let mut caps = BTreeMap::new();
    for unit in contract.held() {
        let with_sub_units = transferred[unit.index()];
        let controlled = rates.get(&unit).map(|in_force| {
            // Sub-units share the cap with the unit's own processes, so what they transfer is added.
            let own = control.rate(unit).total();
            let of_sub_units = with_sub_units.total().saturating_sub(own);
            RateInForce { rate: of_sub_units.saturating_add(in_force.rate), ..*in_force }
        });
        let limit = limit(contract, unit, capacity)
            .map(|rate| RateInForce { rate, because: Reason::DiskLimit { bytes_per_s: rate } });
        let ceiling = ceiling(input, (entitlement.value(unit), total), unit, capacity);
        let bounds = [limit, ceiling, controlled].into_iter().flatten();
        let Some(tightest) = bounds.min_by_key(|bound| bound.rate) else {
            continue;
        };
        let value = each_way(tightest.rate.max(1), with_sub_units);
        caps.insert(unit, Order { value, because: tightest.because });
    }
    caps
}

/// The most that a unit may have by entitlement and loans: its entitlement if it may not borrow, or under `quota`;
/// otherwise that and the amount that it may borrow. `value` is the unit's entitlement out of `total`. `None` if there
/// is no such bound, or if the capacity of the disk is not known yet.
fn ceiling(input: Input<'_>, (value, total): (u64, u64), unit: UnitId, capacity: u64) -> Option<RateInForce> {
    let contract = input.contract;
    let borrows = contract.machine.scheme != Scheme::Quota && contract.unit(unit).borrow.disk.allows();
    let loan = limits::borrows(contract, Resource::Disk, unit, capacity);
    let own = part_of(capacity, value, total.max(1)).max(RATE_MIN);
    if !borrows {
        return (capacity > 0).then_some(RateInForce { rate: own, because: Reason::MayNotBorrow });
    }
    let rate = own.saturating_add(loan?);
    (rate < capacity).then_some(RateInForce { rate, because: Reason::LoanLimit })
}

/// A unit's own limit, in bytes per second. Only an absolute limit may be below [`RATE_MIN`].
fn limit(contract: &Contract, unit: UnitId, capacity: u64) -> Option<u64> {
    let limit = limits::own(contract, Resource::Disk, unit, capacity)?;
    Some(match contract.unit(unit).limit.disk {
        Some(Amount::Part(_)) => limit.max(RATE_MIN),
        _ => limit,
    })
}

/// What each unit transfers, sub-units included.
fn transferred_with_sub_units(contract: &Contract, control: &RateControl) -> Vec<TransferRate> {
    let read = tree::sums(contract, |unit| control.rate(unit).read);
    let write = tree::sums(contract, |unit| control.rate(unit).write);
    read.into_iter().zip(write).map(|(read, write)| TransferRate { read, write }).collect()
}

/// Splits a rate for both ways into a cap each way, as the kernel wants it: in proportion to what is transferred each
/// way, and at least a sixteenth, so that the other way can begin. A unit that transfers one way only may use the full
/// rate either way.
fn each_way(rate: u64, transferred: TransferRate) -> DiskCap {
    let total = transferred.total();
    let read = part_of(transferred.read, MILLIONTH, total);
    let write = part_of(transferred.write, MILLIONTH, total);
    if read.min(write) < MILLIONTH / 64 {
        return DiskCap { read: rate, write: rate };
    }
    let part = |micro: u64| part_of(rate, micro.max(MILLIONTH / 16), MILLIONTH).max(1);
    DiskCap { read: part(read), write: part(write) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_gets_its_part_and_room_to_begin() {
        let ways = |read, write| {
            let cap = each_way(1_000, TransferRate { read, write });
            (cap.read, cap.write)
        };
        assert_eq!(ways(100, 0), (1_000, 1_000), "one way only: the full rate either way");
        assert_eq!(ways(75, 25), (750, 250));
        assert_eq!(ways(97, 3), (970, 62), "a sixteenth at least");
        assert_eq!(ways(0, 0), (1_000, 1_000));
    }
}
