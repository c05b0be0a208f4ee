//! The plan checker's books of parts.
//!
//! Checked: a part is at a place that there is, and of the place's unit. The bounds of a unit's memory at its places and in its own
//! group sum to no more than the unit may use. Rates and sets of CPUs are what a kernel takes.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use crate::plan::{MemoryOrder, PartOrder, Plan};
use crate::snapshot::PlaceId;

/// What is in force, as the plans so far said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PartBooks {
    places: BTreeMap<PlaceId, UnitId>,
    allowed: BTreeMap<UnitId, u64>,
    parts: BTreeMap<(UnitId, Option<PlaceId>), u64>,
}

impl PartBooks {
    /// Replays the orders about parts; what is wrong with them is added to `wrong`.
    pub(super) fn replay(&mut self, contract: &Contract, plan: &Plan, wrong: &mut Vec<String>) {
        if let Some(places) = &plan.decisions.places {
            self.places = places.iter().map(|place| (place.place, place.unit)).collect();
            let at = |(unit, place): &(UnitId, Option<PlaceId>)| {
                place.is_none_or(|place| self.places.get(&place) == Some(unit))
            };
            self.parts.retain(|holder, _| at(holder));
        }
        self.allowed.retain(|unit, _| contract.has(*unit));
        self.parts.retain(|(unit, _), _| contract.has(*unit));
        for step in &plan.orders.memory {
            if let MemoryOrder::Allow { unit, bytes } = step.action {
                // The unit's own group has all of it until its part is told.
                self.parts.remove(&(unit, None));
                match bytes {
                    Some(bytes) => self.allowed.insert(unit, bytes),
                    None => self.allowed.remove(&unit),
                };
            }
        }
        for step in &plan.orders.parts {
            let unit = step.action.unit();
            if let Some(place) = step.action.at().filter(|place| self.places.get(place) != Some(&unit)) {
                wrong.push(format!("place {} is no place of unit {}", place.0, unit.0));
            }
            match &step.action {
                PartOrder::Confine { cpus: Some(cpus), at, .. } if cpus.is_empty() => {
                    wrong.push(format!("place {} is confined to no CPU", at.0));
                }
                PartOrder::Weigh { weight, at, .. } if !(1..=10_000).contains(weight) => {
                    wrong.push(format!("place {} has weight {weight}", at.0));
                }
                PartOrder::Guarantee { min, low, .. } if min > low => {
                    wrong.push(format!("unit {} is guaranteed {min} in any case, of {low}", unit.0));
                }
                PartOrder::Transfer { read, write, disk, .. } if [read, write].contains(&&Some(0)) => {
                    wrong.push(format!("unit {} has a rate of 0 on {disk}", unit.0));
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
                wrong.push(format!("the parts of unit {} sum to {sum} bytes of {allowed}", unit.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::plan::{Place, Reason, Step};
    use crate::snapshot::PlaceBounds;

    fn step<A>(action: A) -> Step<A> {
        Step { action, reason: Reason::FollowsUse }
    }

    #[test]
    fn what_is_wrong_with_parts_is_said() {
        let mut contract = Contract::default();
        let unit = contract.add(None, "a");
        let at = Some(PlaceId(1));
        let mut plan = Plan::default();
        plan.decisions.places = Some(vec![Place {
            place: PlaceId(1),
            unit,
            group: "/a.slice".to_string(),
            most: PlaceBounds::default(),
        }]);
        plan.orders.memory = vec![step(MemoryOrder::Allow { unit, bytes: Some(100) })];
        let allow = |at, bytes| step(PartOrder::Allow { unit, at, bytes: Some(bytes) });
        let mut books = PartBooks::default();
        let mut said = |plan: &Plan| {
            let mut wrong = Vec::new();
            books.replay(&contract, plan, &mut wrong);
            wrong
        };
        plan.orders.parts = vec![allow(None, 40), allow(at, 60)];
        assert_eq!(said(&plan), Vec::<String>::new());
        plan.orders.parts = vec![allow(None, 41)];
        assert_eq!(said(&plan), ["the parts of unit 2 sum to 101 bytes of 100"]);
        let disk = "sda".to_string();
        plan.orders.parts = vec![
            allow(None, 40),
            allow(Some(PlaceId(2)), 0),
            step(PartOrder::Confine {
                unit,
                at: PlaceId(1),
                cpus: Some(commonhold_machine::CpuSet::default()),
            }),
            step(PartOrder::Weigh { unit, at: PlaceId(1), weight: 0 }),
            step(PartOrder::Guarantee { unit, at, min: 2, low: 1, own: 0 }),
            step(PartOrder::Transfer { unit, at, disk, read: Some(0), write: None }),
        ];
        assert_eq!(said(&plan).len(), 5);
    }
}
