//! The plan checker's books of parts: how each unit's memory is split over its holders, the control groups
//! that contain its processes.
//!
//! Checked: a part is for a known foreign group of its unit. The memory bounds of a unit's holders sum to at
//! most the unit's allowance. Rates, weights and CPU sets are in the kernel's range.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use crate::plan::{MemoryOrder, PartOrder, Plan};
use crate::snapshot::GroupId;

/// Foreign groups and memory bounds in force, according to the plans so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PartBooks {
    /// The foreign groups, each with its unit.
    groups: BTreeMap<GroupId, UnitId>,
    /// The allowances of units, in bytes.
    allowed: BTreeMap<UnitId, u64>,
    /// The bounds of holders, in bytes; `None` is the unit's own group.
    parts: BTreeMap<(UnitId, Option<GroupId>), u64>,
}

impl PartBooks {
    /// Replays the orders about parts, and appends what is wrong with them to `errors`.
    pub(super) fn replay(&mut self, contract: &Contract, plan: &Plan, errors: &mut Vec<String>) {
        if let Some(groups) = &plan.decisions.foreign_groups {
            self.groups = groups.iter().map(|group| (group.id, group.unit)).collect();
            let is_held = |(unit, group): &(UnitId, Option<GroupId>)| {
                group.is_none_or(|group| self.groups.get(&group) == Some(unit))
            };
            self.parts.retain(|holder, _| is_held(holder));
        }
        self.allowed.retain(|unit, _| contract.has(*unit));
        self.parts.retain(|(unit, _), _| contract.has(*unit));
        for step in &plan.orders.memory {
            if let MemoryOrder::Allow { unit, bytes } = step.action {
                // The unit's own group has the whole allowance until its part is ordered.
                self.parts.remove(&(unit, None));
                match bytes {
                    Some(bytes) => self.allowed.insert(unit, bytes),
                    None => self.allowed.remove(&unit),
                };
            }
        }
        for step in &plan.orders.parts {
            let unit = step.action.unit();
            if let Some(group) = step.action.at().filter(|group| self.groups.get(group) != Some(&unit)) {
                errors.push(format!("group {} is not held for unit {}", group.0, unit.0));
            }
            match &step.action {
                PartOrder::Confine { cpus: Some(cpus), at, .. } if cpus.is_empty() => {
                    errors.push(format!("group {} is confined to no CPU", at.0));
                }
                PartOrder::Weigh { weight, at, .. } if !(1..=10_000).contains(weight) => {
                    errors.push(format!("group {} has weight {weight}", at.0));
                }
                PartOrder::Guarantee { min, low, .. } if min > low => {
                    errors.push(format!("unit {} is guaranteed min {min}, above low {low}", unit.0));
                }
                PartOrder::Transfer { read, write, disk, .. } if [read, write].contains(&&Some(0)) => {
                    errors.push(format!("unit {} has a rate of 0 on {disk}", unit.0));
                }
                PartOrder::Allow { at, bytes: Some(bytes), .. } => {
                    self.parts.insert((unit, *at), *bytes);
                }
                PartOrder::Allow { at, bytes: None, .. } => {
                    self.parts.remove(&(unit, *at));
                }
                _ => {}
            }
        }
        let mut sums: BTreeMap<UnitId, u64> = BTreeMap::new();
        for ((unit, _), bytes) in &self.parts {
            let sum = sums.entry(*unit).or_default();
            *sum = sum.saturating_add(*bytes);
        }
        for (unit, sum) in sums {
            if let Some(allowed) = self.allowed.get(&unit).filter(|allowed| sum > **allowed) {
                errors.push(format!("the parts of unit {} sum to {sum} bytes of {allowed}", unit.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::plan::{ForeignGroup, Reason, Step};
    use crate::snapshot::GroupBounds;

    fn step<A>(action: A) -> Step<A> {
        Step { action, reason: Reason::FollowsUse }
    }

    #[test]
    fn errors_in_parts_are_reported() {
        let mut contract = Contract::default();
        let unit = contract.add(None, "a");
        let at = Some(GroupId(1));
        let mut plan = Plan::default();
        plan.decisions.foreign_groups = Some(vec![ForeignGroup {
            id: GroupId(1),
            unit,
            path: "/a.slice".to_string(),
            most: GroupBounds::default(),
        }]);
        plan.orders.memory = vec![step(MemoryOrder::Allow { unit, bytes: Some(100) })];
        let allow = |at, bytes| step(PartOrder::Allow { unit, at, bytes: Some(bytes) });
        let mut books = PartBooks::default();
        let mut errors = |plan: &Plan| {
            let mut wrong = Vec::new();
            books.replay(&contract, plan, &mut wrong);
            wrong
        };
        plan.orders.parts = vec![allow(None, 40), allow(at, 60)];
        assert_eq!(errors(&plan), Vec::<String>::new());
        plan.orders.parts = vec![allow(None, 41)];
        assert_eq!(errors(&plan), ["the parts of unit 2 sum to 101 bytes of 100"]);
        let disk = "sda".to_string();
        plan.orders.parts = vec![
            allow(None, 40),
            allow(Some(GroupId(2)), 0),
            step(PartOrder::Confine {
                unit,
                at: GroupId(1),
                cpus: Some(commonhold_machine::CpuSet::default()),
            }),
            step(PartOrder::Weigh { unit, at: GroupId(1), weight: 0 }),
            step(PartOrder::Guarantee { unit, at, min: 2, low: 1, own: 0 }),
            step(PartOrder::Transfer { unit, at, disk, read: Some(0), write: None }),
        ];
        assert_eq!(errors(&plan).len(), 5);
    }
}
