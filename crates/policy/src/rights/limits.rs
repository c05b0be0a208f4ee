//! Nested limits: the most that a unit may have.
//!
//! A limit in percent is a percentage of another limit: that of the nearest enclosing unit that has a limit.
//! Without such a unit, it is a percentage of the whole machine's amount. No unit may exceed the limit of a
//! unit around it.
//!
//! In all functions, `whole` is the machine's amount of the resource, in the measure of absolute limits; 0 if
//! unknown.

use commonhold_contract::{Amount, Contract, Resource, UnitId};

use crate::tree::lineage;

/// A unit's own limit. `None` if it has no limit, or if the limit is a percentage of an unknown amount.
pub fn own(contract: &Contract, resource: Resource, unit: UnitId, whole: u64) -> Option<u64> {
    match contract.unit(unit).limit[resource]? {
        Amount::Absolute(amount) => Some(amount),
        part @ Amount::Part(_) => Some(part.of(percentage_base(contract, resource, unit, whole)?)),
    }
}

/// The amount to which a unit's limit in percent refers; `None` if unknown.
pub(crate) fn percentage_base(
    contract: &Contract,
    resource: Resource,
    unit: UnitId,
    whole: u64,
) -> Option<u64> {
    let mut enclosers = lineage(contract, unit).skip(1);
    match enclosers.find(|id| contract.unit(*id).limit[resource].is_some()) {
        Some(id) => own(contract, resource, id, whole),
        None => (whole > 0).then_some(whole),
    }
}

/// The most that a unit may borrow. A percentage refers to the same amount as a limit in percent does. `None`
/// if the contract sets no amount to borrow, or if it is a percentage of an unknown amount.
pub(crate) fn borrows(contract: &Contract, resource: Resource, unit: UnitId, whole: u64) -> Option<u64> {
    match contract.unit(unit).borrow[resource].amount()? {
        Amount::Absolute(amount) => Some(amount),
        part @ Amount::Part(_) => Some(part.of(percentage_base(contract, resource, unit, whole)?)),
    }
}

/// The lowest of a unit's limit and the limits of the units around it; `None` if there is no limit.
pub(crate) fn tightest(contract: &Contract, resource: Resource, unit: UnitId, whole: u64) -> Option<u64> {
    lineage(contract, unit).filter_map(|unit| own(contract, resource, unit, whole)).min()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_contract::Permission;

    #[test]
    fn a_part_is_of_the_limit_around() {
        let mut contract = Contract::default();
        let lab = contract.add(None, "lab");
        let (group, ana) = (contract.add(Some(lab), "group"), contract.add(None, "ana"));
        let one = contract.add(Some(group), "one");
        let mut limit = |unit: UnitId, amount| contract.units[unit.index()].limit.cpu = Some(amount);
        limit(lab, Amount::Part(500_000));
        limit(one, Amount::Part(250_000));
        limit(ana, Amount::Absolute(3));
        let tightest = |unit: UnitId, whole| tightest(&contract, Resource::Cpu, unit, whole);
        let of_800 = [lab, group, one, ana].map(|unit| tightest(unit, 800));
        assert_eq!(of_800, [Some(400), Some(400), Some(100), Some(3)]);
        assert_eq!(
            (tightest(one, 0), tightest(ana, 0), tightest(UnitId::SHARED, 800)),
            (None, Some(3), None)
        );
        // Percentages of borrowing refer to the same: a quarter of lab's 400, and of the machine's 800.
        for unit in [one, ana] {
            contract.units[unit.index()].borrow.cpu = Permission::AtMost(Amount::Part(250_000));
        }
        let borrows = |unit: UnitId, whole| borrows(&contract, Resource::Cpu, unit, whole);
        assert_eq!([one, ana, lab].map(|unit| borrows(unit, 800)), [Some(100), Some(200), None]);
        assert_eq!(borrows(ana, 0), None);
        contract.units[one.index()].limit.cpu = Some(Amount::Absolute(500));
        assert_eq!(super::tightest(&contract, Resource::Cpu, one, 800), Some(400));
    }
}
