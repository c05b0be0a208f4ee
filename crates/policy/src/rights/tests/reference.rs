//! The reference model for tests of `Rights`: a slow computation of values from scratch, by definition.

use std::collections::BTreeMap;

use commonhold_contract::{Amount, Contract, DEFAULT_TICKETS, Resource, Scheme, UnitId};

use super::entitlement::{Capacity, Entitlement};

/// Everything set so far.
#[derive(Debug, Clone)]
pub(super) struct Plain {
    pub(super) contract: Contract,
    pub(super) tickets: BTreeMap<(UnitId, Resource), u64>,
    pub(super) present: BTreeMap<(UnitId, Resource), bool>,
    pub(super) capacity: BTreeMap<Resource, Capacity>,
}

impl Plain {
    pub(super) fn new(contract: &Contract) -> Plain {
        let mut plain = Plain {
            contract: contract.clone(),
            tickets: BTreeMap::new(),
            present: BTreeMap::new(),
            capacity: BTreeMap::new(),
        };
        for id in contract.held() {
            for resource in Resource::ALL {
                plain.tickets.insert((id, resource), contract.unit(id).tickets[resource]);
            }
        }
        plain
    }

    /// What a reload keeps: presence, and tickets of units for which the contract gives the same number as
    /// before.
    pub(super) fn adopted(&self, contract: &Contract) -> Plain {
        let mut new = Plain::new(contract);
        new.capacity.clone_from(&self.capacity);
        for ((id, resource), now) in &mut new.tickets {
            if id.index() >= self.contract.units.len() {
                continue;
            }
            let asked = self.contract.unit(*id).tickets[*resource];
            if self.contract.unit(*id).parent == contract.unit(*id).parent && asked == *now {
                *now = self.tickets[&(*id, *resource)];
            }
            new.present.insert((*id, *resource), self.is_set_present(*id, *resource));
        }
        new
    }

    pub(super) fn is_set_present(&self, unit: UnitId, resource: Resource) -> bool {
        self.present.get(&(unit, resource)).copied().unwrap_or(false)
    }

    pub(super) fn capacity(&self, resource: Resource) -> Capacity {
        self.capacity.get(&resource).copied().unwrap_or(Capacity::Parts)
    }

    pub(super) fn is_present(&self, unit: UnitId, resource: Resource) -> bool {
        let fixed = self.contract.machine.scheme == Scheme::Quota;
        self.is_set_present(unit, resource) || (fixed && self.contract.children(Some(unit)).next().is_none())
    }

    pub(super) fn is_active(&self, unit: UnitId, resource: Resource) -> bool {
        self.is_present(unit, resource)
            || self.contract.children(Some(unit)).any(|sub| self.is_active(sub, resource))
    }

    pub(super) fn all(&self, resource: Resource, capacity: Capacity) -> Entitlement {
        let n = self.contract.units.len();
        let mut all = Entitlement { value: vec![0; n], own: vec![0; n], hard: vec![0; n], unheld: 0 };
        all.unheld = self.divide(resource, capacity, None, capacity.total(), &mut all);
        all
    }

    fn weigh(capacity: Capacity, amount: Option<Amount>, value: u64) -> Option<u64> {
        match (capacity, amount?) {
            (Capacity::Parts, Amount::Absolute(_)) => None,
            (_, amount) => Some(amount.of(value)),
        }
    }

    /// Divides one level and those below it; returns what stays with the encloser.
    fn divide(
        &self,
        resource: Resource,
        capacity: Capacity,
        level: Option<UnitId>,
        value: u64,
        all: &mut Entitlement,
    ) -> u64 {
        struct Part {
            id: UnitId,
            tickets: u128,
            hard: u128,
            room: u128,
            is_limited: bool,
        }
        let key = |amount: Option<Amount>| match amount {
            None => (0, 0),
            Some(Amount::Part(part)) => (1, part),
            Some(Amount::Absolute(amount)) => (2, amount),
        };
        let active = |id: &UnitId| self.is_active(*id, resource);
        let mut units: Vec<UnitId> = self.contract.children(level).filter(active).collect();
        // The order of rounding.
        units.sort_by_key(|id| {
            let unit = self.contract.unit(*id);
            let tickets = unit.limit[resource].map(|_| self.tickets[&(*id, resource)]);
            (key(unit.limit[resource]), key(unit.hard[resource]), tickets, *id)
        });
        let mut parts: Vec<Part> = Vec::new();
        for id in units {
            let unit = self.contract.unit(id);
            let limit = Self::weigh(capacity, unit.limit[resource], value);
            let hard = Self::weigh(capacity, unit.hard[resource], value).unwrap_or(0);
            let hard = hard.min(limit.unwrap_or(u64::MAX));
            let room = limit.unwrap_or(u64::MAX) - hard;
            let tickets = self.tickets[&(id, resource)].into();
            parts.push(Part {
                id,
                tickets,
                hard: hard.into(),
                room: room.into(),
                is_limited: limit.is_some(),
            });
        }
        let own = level.is_some_and(|id| self.is_present(id, resource));
        let total = u128::from(value);
        let hard: u128 = parts.iter().map(|part| part.hard).sum();
        let mut values: Vec<u128> = Vec::new();
        let kept = if hard > total {
            values.extend(rounded(total, &parts.iter().map(|part| part.hard).collect::<Vec<_>>()));
            0
        } else {
            // Limited units in the order in which they become full; this decides how many are full.
            let mut limited: Vec<&Part> = parts.iter().filter(|part| part.is_limited).collect();
            limited.sort_by(|a, b| (a.room * b.tickets).cmp(&(b.room * a.tickets)));
            let own_tickets = if own { u128::from(DEFAULT_TICKETS) } else { 0 };
            let (mut left, mut open) =
                (total - hard, parts.iter().map(|part| part.tickets).sum::<u128>() + own_tickets);
            let mut full = Vec::new();
            for part in limited {
                // Sorted: if this one is not full, none of the rest is.
                if part.tickets * left <= part.room * open {
                    break;
                }
                full.push(part.id);
                left -= part.room;
                open -= part.tickets;
            }
            let weight = |part: &Part| if full.contains(&part.id) { 0 } else { part.tickets };
            let mut weights: Vec<u128> = parts.iter().map(weight).collect();
            weights.push(own_tickets);
            let soft = rounded(left, &weights);
            for (part, soft) in parts.iter().zip(&soft) {
                values.push(part.hard + if full.contains(&part.id) { part.room } else { *soft });
            }
            if open == 0 { left } else { soft[parts.len()] }
        };
        for (part, part_value) in parts.iter().zip(values) {
            let part_value = u64::try_from(part_value).unwrap();
            all.value[part.id.index()] = part_value;
            all.hard[part.id.index()] =
                if hard > total { part_value } else { u64::try_from(part.hard).unwrap() };
            all.own[part.id.index()] = self.divide(resource, capacity, Some(part.id), part_value, all);
        }
        u64::try_from(kept).unwrap()
    }
}

/// Divides `total` by weights, with rounding by prefix sums.
fn rounded(total: u128, weights: &[u128]) -> Vec<u128> {
    let sum: u128 = weights.iter().sum();
    let up_to = |n: usize| match sum {
        0 => 0,
        _ => total * weights[..n].iter().sum::<u128>() / sum,
    };
    (0..weights.len()).map(|n| up_to(n + 1) - up_to(n)).collect()
}
