//! The caps (io.max) of units on one disk, for reading and for writing. A unit's cap is the lowest of three
//! bounds: the rate to which it is throttled, the contract's limit, and the ceiling of a unit that may not
//! borrow, or only a certain amount.

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

/// The caps that units should have on one disk. A unit's cap covers its sub-units. `rates` has the throttled
/// units.
pub(super) fn wanted(
    input: Input<'_>,
    entitlement: &Entitlement,
    facts: &DiskFacts,
    control: &RateControl,
    rates: &BTreeMap<UnitId, RateInForce>,
) -> BTreeMap<UnitId, Order<DiskCap>> {
    let contract = input.contract;
    // If rates are enforced by stopping units, a percentage is a limit only if the disk's capacity was
    // measured, and not if it was learnt from use.
    let peak = if input.means.disk.limits_only { 0 } else { control.peak() };
    let capacity = facts.bytes_per_s.unwrap_or(peak);
    let total = contract.children(None).map(|unit| entitlement.value(unit)).sum::<u64>() + entitlement.unheld;
    let transferred = transferred_with_sub_units(contract, control);
    let mut caps = BTreeMap::new();
    for unit in contract.held() {
        let with_sub_units = transferred[unit.index()];
        let throttled = rates.get(&unit).map(|in_force| {
            // Sub-units share the cap with the unit's own processes, so their rate is added.
            let own = control.rate(unit).total();
            let of_sub_units = with_sub_units.total().saturating_sub(own);
            RateInForce { rate: of_sub_units.saturating_add(in_force.rate), ..*in_force }
        });
        let limit = limit(contract, unit, capacity)
            .map(|rate| RateInForce { rate, because: Reason::DiskLimit { bytes_per_s: rate } });
        let ceiling = ceiling(input, (entitlement.value(unit), total), unit, capacity);
        let bounds = [limit, ceiling, throttled].into_iter().flatten();
        let Some(tightest) = bounds.min_by_key(|bound| bound.rate) else {
            continue;
        };
        let value = read_and_write_caps(tightest.rate.max(1), with_sub_units);
        caps.insert(unit, Order { value, because: tightest.because });
    }
    caps
}

/// The highest rate that a unit may have by entitlement and loans: its entitlement if it may not borrow, or
/// under `quota`; otherwise the sum of its entitlement and the amount that it may borrow. `value` is the
/// unit's entitlement out of `total`. `None` if loans are not bounded, or if the capacity of the disk is not
/// known yet.
fn ceiling(input: Input<'_>, (value, total): (u64, u64), unit: UnitId, capacity: u64) -> Option<RateInForce> {
    let contract = input.contract;
    let may_borrow = contract.machine.scheme != Scheme::Quota && contract.unit(unit).borrow.disk.allows();
    let loan = limits::borrows(contract, Resource::Disk, unit, capacity);
    let own = part_of(capacity, value, total.max(1)).max(RATE_MIN);
    if !may_borrow {
        return (capacity > 0).then_some(RateInForce { rate: own, because: Reason::MayNotBorrow });
    }
    let rate = own.saturating_add(loan?);
    (rate < capacity).then_some(RateInForce { rate, because: Reason::LoanLimit })
}

/// A unit's own limit, in bytes per second; `None`: no limit, or a percentage of an unknown capacity. Only an
/// absolute limit may be below [`RATE_MIN`].
fn limit(contract: &Contract, unit: UnitId, capacity: u64) -> Option<u64> {
    let limit = limits::own(contract, Resource::Disk, unit, capacity)?;
    Some(match contract.unit(unit).limit.disk {
        Some(Amount::Part(_)) => limit.max(RATE_MIN),
        _ => limit,
    })
}

/// Each unit's average rates, sub-units included, by unit index.
fn transferred_with_sub_units(contract: &Contract, control: &RateControl) -> Vec<TransferRate> {
    let read = tree::sums(contract, |unit| control.rate(unit).read);
    let write = tree::sums(contract, |unit| control.rate(unit).write);
    read.into_iter().zip(write).map(|(read, write)| TransferRate { read, write }).collect()
}

/// Splits a rate into one cap for reading and one for writing, since the kernel has no cap on both together.
/// The caps are in proportion to the rates at which the unit reads and writes, and at least a sixteenth, so
/// that the slower way can grow. A unit that only reads, or only writes, may use the full rate either way.
fn read_and_write_caps(rate: u64, transferred: TransferRate) -> DiskCap {
    let total = transferred.total();
    let read_micro = part_of(transferred.read, MILLIONTH, total);
    let write_micro = part_of(transferred.write, MILLIONTH, total);
    if read_micro.min(write_micro) < MILLIONTH / 64 {
        return DiskCap { read: rate, write: rate };
    }
    let cap = |micro: u64| part_of(rate, micro.max(MILLIONTH / 16), MILLIONTH).max(1);
    DiskCap { read: cap(read_micro), write: cap(write_micro) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_and_writing_get_caps_by_their_rates_and_a_minimum() {
        let ways = |read, write| {
            let cap = read_and_write_caps(1_000, TransferRate { read, write });
            (cap.read, cap.write)
        };
        assert_eq!(ways(100, 0), (1_000, 1_000), "one way only: the full rate either way");
        assert_eq!(ways(75, 25), (750, 250));
        assert_eq!(ways(97, 3), (970, 62), "a sixteenth at least");
        assert_eq!(ways(0, 0), (1_000, 1_000));
    }
}
