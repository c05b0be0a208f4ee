//! From rates that hold units to their parts, and limits, to orders each way.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, MILLIONTH, Resource, Scheme, UnitId};

use super::in_force::{DiskCap, Order, RATE_MIN};
use super::rates::{Held, Rate, Rates};
use crate::input::Input;
use crate::plan::Reason;
use crate::rights::entitlement::Entitlement;
use crate::rights::limits;
use crate::rights::share::part_of;
use crate::snapshot::DiskFacts;
use crate::tree;

/// What every unit is held to on one disk, sub-units included.
pub(super) fn capped(
    input: Input<'_>,
    entitlement: &Entitlement,
    facts: &DiskFacts,
    rates: &Rates,
    held: &BTreeMap<UnitId, Held>,
) -> BTreeMap<UnitId, Order<DiskCap>> {
    let contract = input.contract;
    // A unit that is stopped for it is not held to a part of something unknown.
    let known = if input.means.disk.limits_only { 0 } else { rates.peak() };
    let whole = facts.bytes_per_s.unwrap_or(known);
    let top = contract.children(None).map(|unit| entitlement.value(unit)).sum::<u64>() + entitlement.unheld;
    let families = families(contract, rates);
    let mut caps = BTreeMap::new();
    for unit in contract.held() {
        let family = families[unit.index()];
        let shared =
            held.get(&unit).map(|held| Held { rate: family_rate(held, family, rates.rate(unit)), ..*held });
        let limit = limit(contract, unit, whole)
            .map(|rate| Held { rate, because: Reason::DiskLimit { bytes_per_s: rate } });
        let own = ceiling(input, (entitlement.value(unit), top), unit, whole);
        let Some(tightest) = [limit, own, shared].into_iter().flatten().min_by_key(|held| held.rate) else {
            continue;
        };
        let value = both_ways(tightest.rate.max(1), family);
        caps.insert(unit, Order { value, because: tightest.because });
    }
    caps
}

/// A unit that may not borrow gets no more, and under `quota` no unit gets more, than it is entitled to. A unit that may
/// borrow so much gets that beyond it. Nothing is known before a disk was used. `value` is of `top`.
fn ceiling(input: Input<'_>, (value, top): (u64, u64), unit: UnitId, whole: u64) -> Option<Held> {
    let contract = input.contract;
    let fixed = contract.machine.scheme == Scheme::Quota || !contract.unit(unit).borrow.disk.allows();
    let loan = limits::borrows(contract, Resource::Disk, unit, whole);
    let own = part_of(whole, value, top.max(1)).max(RATE_MIN);
    if fixed {
        return (whole > 0).then_some(Held { rate: own, because: Reason::MayNotBorrow });
    }
    let rate = own.saturating_add(loan?);
    (rate < whole).then_some(Held { rate, because: Reason::LoanLimit })
}

/// A unit's own limit, in bytes per second. One that is written so is held as low as the kernel can.
fn limit(contract: &Contract, unit: UnitId, whole: u64) -> Option<u64> {
    let limit = limits::own(contract, Resource::Disk, unit, whole)?;
    Some(match contract.unit(unit).limit.disk {
        Some(Amount::Part(_)) => limit.max(RATE_MIN),
        _ => limit,
    })
}

/// Processes that stand beside sub-units share a rate with these: what is transferred by those is added.
fn family_rate(held: &Held, family: Rate, own: Rate) -> u64 {
    family.total().saturating_sub(own.total()).saturating_add(held.rate)
}

/// What each unit transfers, with its sub-units.
fn families(contract: &Contract, rates: &Rates) -> Vec<Rate> {
    let read = tree::sums(contract, |unit| rates.rate(unit).read);
    let write = tree::sums(contract, |unit| rates.rate(unit).write);
    read.into_iter().zip(write).map(|(read, write)| Rate { read, write }).collect()
}

/// A rate for both ways together, as the kernel wants it for each: in proportion to what is transferred each way, at
/// least a sixteenth, so that the other way can begin. A unit that does only one may do either at the full rate.
fn both_ways(rate: u64, now: Rate) -> DiskCap {
    let total = now.total();
    let (read, write) = (part_of(now.read, MILLIONTH, total), part_of(now.write, MILLIONTH, total));
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
    fn each_way_has_its_part_and_room_to_begin() {
        let ways = |read, write| {
            let cap = both_ways(1_000, Rate { read, write });
            (cap.read, cap.write)
        };
        assert_eq!(ways(100, 0), (1_000, 1_000), "who does only one may do either at the full rate");
        assert_eq!(ways(75, 25), (750, 250));
        assert_eq!(ways(97, 3), (970, 62), "a sixteenth at least");
        assert_eq!(ways(0, 0), (1_000, 1_000));
    }
}
