//! What each unit's tickets are worth, and whether a contract fits a machine.
//!
//! Terms: a unit is *active* if it or one of its sub-units has processes. A unit's *value* is what it is entitled to,
//! sub-units included. Its *own part* is what its own processes hold, beside its sub-units.
//!
//! Algorithm, at each level of the tree, for the value V to be divided among the active units there:
//! 1. Each unit gets its hard reservation; a percentage is of V.
//! 2. The rest is divided by soft tickets. No unit gets more than its limit.
//!
//! The processes of a unit that are in none of its sub-units count as one more sub-unit, with [`DEFAULT_TICKETS`] and
//! nothing hard. If all units are at their limits, the rest stays with the enclosing unit. At the top level it is
//! *unheld*.
//!
//! Properties: values sum to V, exactly. Rights are local: what happens among the sub-units of one unit changes no
//! value outside it, except when that unit becomes active or inactive.
//!
//! Source: seed 004, sections 5.2 to 5.4 (hard and soft tickets, inactive tickets); seed 000, section 2.1 (only units
//! with active processes need be allocated resources).

use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, DEFAULT_TICKETS, MILLIONTH, Resource, Span, UnitId};
use commonhold_machine::Machine;

use crate::share::{split, split_capped};

/// How much of a resource a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// In the resource's own measure: millionths of a CPU, bytes, bytes per second.
    Known(u64),
    /// Not known in absolute terms: entitlements are millionths of the whole, and absolute amounts cannot be weighed.
    Parts,
}

impl Capacity {
    /// The number that entitlements sum to.
    pub fn total(self) -> u64 {
        match self {
            Capacity::Known(total) => total,
            Capacity::Parts => MILLIONTH,
        }
    }

    /// An amount in the measure of this capacity, where `whole` is what the encloser holds. `None`: cannot be weighed.
    pub(crate) fn weigh(self, amount: Option<Amount>, whole: u64) -> Option<u64> {
        match (self, amount?) {
            (Capacity::Parts, Amount::Absolute(_)) => None,
            (_, amount) => Some(amount.of(whole)),
        }
    }
}

/// What a machine has of a resource to divide. Memory: less the reserve that makes call-backs quick.
pub fn capacity(contract: &Contract, machine: &Machine, resource: Resource) -> Capacity {
    let known = |bytes: Option<u64>| bytes.map_or(Capacity::Parts, Capacity::Known);
    match resource {
        Resource::Cpu => Capacity::Known(machine.cpus.len() as u64 * MILLIONTH),
        Resource::Memory => {
            let total = machine.memory_bytes();
            Capacity::Known(total.saturating_sub(contract.machine.reserve.of(total)))
        }
        // Entitlements are per disk: of several disks, the slowest known one is what an absolute amount is weighed against.
        Resource::Disk => known(machine.disks.iter().filter_map(|disk| disk.bytes_per_s).min()),
        Resource::Bus => known(machine.bus_bytes_per_s),
    }
}

/// What units are entitled to of one resource. Vectors have one element per unit of the contract.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entitlement {
    /// Each unit's value, sub-units included.
    pub value: Vec<u64>,
    /// What a unit's own processes hold. These sum to the capacity less `unheld`.
    pub own: Vec<u64>,
    /// What no unit may take.
    pub unheld: u64,
}

impl Entitlement {
    /// A unit's value; 0 for a unit that it does not know.
    pub fn value(&self, unit: UnitId) -> u64 {
        self.value.get(unit.index()).copied().unwrap_or(0)
    }

    /// A unit's own part; 0 for a unit that it does not know.
    pub fn own(&self, unit: UnitId) -> u64 {
        self.own.get(unit.index()).copied().unwrap_or(0)
    }
}

/// The tree of a contract with what is active in it, so that dividing does not search.
struct Tree<'a> {
    contract: &'a Contract,
    /// Units with processes of their own.
    present: &'a [bool],
    /// Units that are active.
    active: Vec<bool>,
    /// Direct sub-units by unit, and at the end the top level.
    children: Vec<Vec<UnitId>>,
}

impl<'a> Tree<'a> {
    fn new(contract: &'a Contract, present: &'a [bool]) -> Self {
        let n = contract.units.len();
        let mut active: Vec<bool> = (0..n).map(|i| present.get(i).copied().unwrap_or(false)).collect();
        let mut children = vec![Vec::new(); n + 1];
        // A parent stands before its children, so going backwards carries activity all the way up.
        for id in contract.held().rev() {
            let parent = contract.unit(id).parent;
            if let (true, Some(parent)) = (active[id.index()], parent) {
                active[parent.index()] = true;
            }
        }
        for id in contract.held() {
            children[contract.unit(id).parent.map_or(n, UnitId::index)].push(id);
        }
        Tree { contract, present, active, children }
    }

    fn active_children(&self, level: Option<UnitId>) -> Vec<UnitId> {
        let level = level.map_or(self.contract.units.len(), UnitId::index);
        self.children[level].iter().copied().filter(|id| self.active[id.index()]).collect()
    }
}

/// What every unit is entitled to, of `capacity`, while the units in `present` (one element per unit) have processes of
/// their own.
pub fn entitle(contract: &Contract, resource: Resource, capacity: Capacity, present: &[bool]) -> Entitlement {
    let tree = Tree::new(contract, present);
    let n = contract.units.len();
    let mut out = Entitlement { value: vec![0; n], own: vec![0; n], unheld: 0 };
    out.unheld = divide(&tree, resource, capacity, None, capacity.total(), &mut out);
    // Parents stand before their children: a unit's value is final when its turn comes.
    for id in contract.held() {
        if tree.active[id.index()] {
            let value = out.value[id.index()];
            out.own[id.index()] = divide(&tree, resource, capacity, Some(id), value, &mut out);
        }
    }
    debug_assert_eq!(
        out.own.iter().sum::<u64>() + out.unheld,
        capacity.total(),
        "entitlements are conserved"
    );
    out
}

/// Divides `value` among the active units of one level; what is returned stays with the encloser.
fn divide(
    tree: &Tree<'_>,
    resource: Resource,
    capacity: Capacity,
    level: Option<UnitId>,
    value: u64,
    out: &mut Entitlement,
) -> u64 {
    let units = tree.active_children(level);
    if units.is_empty() {
        return value;
    }
    let unit = |id: UnitId| tree.contract.unit(id);
    let limits: Vec<u64> =
        units.iter().map(|id| capacity.weigh(unit(*id).limit[resource], value).unwrap_or(u64::MAX)).collect();
    let mut hard: Vec<u64> = units
        .iter()
        .zip(&limits)
        .map(|(id, limit)| capacity.weigh(unit(*id).hard[resource], value).unwrap_or(0).min(*limit))
        .collect();
    // Only a nested unit whose encloser is worth less than was promised at the least can get here: all shrink alike.
    if hard.iter().try_fold(0u64, |sum, h| sum.checked_add(*h)).is_none_or(|sum| sum > value) {
        hard = split(value, &hard);
    }
    let rest = value - hard.iter().sum::<u64>();
    let mut tickets: Vec<u64> = units.iter().map(|id| unit(*id).tickets).collect();
    let mut room: Vec<u64> = limits.iter().zip(&hard).map(|(limit, hard)| limit - hard).collect();
    let own = level.is_some_and(|id| tree.present.get(id.index()).copied().unwrap_or(false));
    if own {
        tickets.push(DEFAULT_TICKETS);
        room.push(u64::MAX);
    }
    let (soft, mut left) = split_capped(rest, &tickets, &room);
    for ((id, hard), soft) in units.iter().zip(&hard).zip(&soft) {
        out.value[id.index()] = hard + soft;
    }
    if own {
        left += soft[units.len()];
    }
    left
}

/// Why a contract does not fit a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Where the contract says it.
    pub span: Span,
    /// What is asked for too much.
    pub what: Ask,
}

/// What is asked for too much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The hard reservations of a level sum to more than it has, even at the least it is promised.
    Hard {
        /// The enclosing unit; `None`: the machine.
        level: Option<UnitId>,
        /// Of what.
        resource: Resource,
        /// All of them together.
        asked: u64,
        /// What there is.
        available: u64,
    },
    /// Partition mode was asked for with more top-level units than CPUs.
    Partition {
        /// Top-level units.
        units: u64,
        /// CPUs.
        cpus: u64,
    },
}

/// Whether the machine can give what the contract promises when every unit is active: an empty list if so.
pub fn conflicts(contract: &Contract, machine: &Machine) -> Vec<Conflict> {
    let mut found: Vec<Conflict> =
        Resource::ALL.iter().flat_map(|r| hard_conflicts(contract, machine, *r)).collect();
    let (units, cpus) = (contract.children(None).count() as u64, machine.cpus.len() as u64);
    if contract.machine.cpu == commonhold_contract::CpuMode::Partition && units > cpus {
        let span = contract.children(None).last().map_or(0..0, |id| contract.unit(id).span.clone());
        found.push(Conflict { span, what: Ask::Partition { units, cpus } });
    }
    found
}

fn hard_conflicts(contract: &Contract, machine: &Machine, resource: Resource) -> Vec<Conflict> {
    let capacity = capacity(contract, machine, resource);
    let everybody = vec![true; contract.units.len()];
    let least = entitle(contract, resource, capacity, &everybody);
    let levels = core::iter::once(None).chain(contract.held().map(Some));
    let mut found = Vec::new();
    for level in levels {
        let available = level.map_or(capacity.total(), |id| least.value(id));
        let asks = |id: UnitId| capacity.weigh(contract.unit(id).hard[resource], available).unwrap_or(0);
        let asked = contract.children(level).map(asks).fold(0u64, u64::saturating_add);
        if asked > available {
            let worst = contract.children(level).max_by_key(|id| asks(*id));
            let span = worst.map_or(0..0, |id| contract.unit(id).hard_span(resource));
            found.push(Conflict { span, what: Ask::Hard { level, resource, asked, available } });
        }
    }
    found
}

#[cfg(test)]
mod tests;
