//! What each unit's tickets are worth, at one moment and without a history: whether a contract fits a machine.
//!
//! The rules are those of [`Rights`], which keeps them up as they change.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, MILLIONTH, PerResource, Resource, Span, UnitId};
use commonhold_machine::Machine;

use super::Rights;

/// How much of a resource a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// In the resource's own measure: millionths of a CPU, bytes, bytes per second.
    Known(u64),
    /// Of memory, so many pieces of so many bytes: entitlements are in whole pieces. Reservations are rounded up, and
    /// limits down.
    Pieces {
        /// How many there are.
        total: u64,
        /// The size of one, in bytes; at least 1.
        bytes: u64,
    },
    /// Not known in absolute terms: entitlements are millionths of the whole, and absolute amounts cannot be weighed.
    Parts,
}

impl Capacity {
    /// The number that entitlements sum to.
    pub fn total(self) -> u64 {
        match self {
            Capacity::Known(total) | Capacity::Pieces { total, .. } => total,
            Capacity::Parts => MILLIONTH,
        }
    }

    /// An amount in the measure of this capacity, where `whole` is what the encloser holds. `None`: cannot be weighed.
    pub(crate) fn weigh(self, amount: Option<Amount>, whole: u64) -> Option<u64> {
        match (self, amount?) {
            (Capacity::Parts, Amount::Absolute(_)) => None,
            (Capacity::Pieces { bytes, .. }, Amount::Absolute(amount)) => Some(amount / bytes.max(1)),
            (_, amount) => Some(amount.of(whole)),
        }
    }

    /// The same, rounded up.
    pub(crate) fn weigh_up(self, amount: Option<Amount>, whole: u64) -> Option<u64> {
        match (self, amount) {
            (Capacity::Pieces { bytes, .. }, Some(Amount::Absolute(amount))) => {
                Some(amount.div_ceil(bytes.max(1)))
            }
            _ => self.weigh(amount, whole),
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
    /// What of a unit's value is reserved (hard), sub-units' lots included.
    pub hard: Vec<u64>,
    /// What no unit may take.
    pub unheld: u64,
}

impl Entitlement {
    /// A unit's value; 0 for a unit that it does not know.
    pub fn value(&self, unit: UnitId) -> u64 {
        self.value.get(unit.index()).copied().unwrap_or(0)
    }

    /// What is reserved of a unit's value; 0 for a unit that it does not know.
    pub fn hard(&self, unit: UnitId) -> u64 {
        self.hard.get(unit.index()).copied().unwrap_or(0)
    }

    /// A unit's own part; 0 for a unit that it does not know.
    pub fn own(&self, unit: UnitId) -> u64 {
        self.own.get(unit.index()).copied().unwrap_or(0)
    }
}

/// What every unit is entitled to, of `capacity`, while the units in `present` (one element per unit) have processes of
/// their own.
pub fn entitle(contract: &Contract, resource: Resource, capacity: Capacity, present: &[bool]) -> Entitlement {
    let mut rights = Rights::new(contract);
    for (id, present) in contract.ids().zip(present) {
        // The common parts hold nothing.
        let _ = rights.set_present_for(id, resource, *present);
    }
    rights.to_part(resource, capacity).all()
}

/// The same of every resource, of what a machine has of it.
pub fn entitle_all(contract: &Contract, machine: &Machine, present: &[bool]) -> PerResource<Entitlement> {
    let mut rights = Rights::new(contract);
    for (id, present) in contract.ids().zip(present) {
        let _ = rights.set_present(id, *present);
    }
    let of = |resource| rights.to_part(resource, capacity(contract, machine, resource)).all();
    PerResource {
        cpu: of(Resource::Cpu),
        memory: of(Resource::Memory),
        disk: of(Resource::Disk),
        bus: of(Resource::Bus),
    }
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
    let least = entitle_all(contract, machine, &vec![true; contract.units.len()]);
    let hard = |resource: &Resource| hard_conflicts(contract, machine, *resource, &least[*resource]);
    let mut found: Vec<Conflict> = Resource::ALL.iter().flat_map(hard).collect();
    let (units, cpus) = (contract.children(None).count() as u64, machine.cpus.len() as u64);
    if contract.machine.cpu == commonhold_contract::CpuMode::Partition && units > cpus {
        let span = contract.children(None).last().map_or(0..0, |id| contract.unit(id).span.clone());
        found.push(Conflict { span, what: Ask::Partition { units, cpus } });
    }
    found
}

/// Given what each unit has at the least.
fn hard_conflicts(
    contract: &Contract,
    machine: &Machine,
    resource: Resource,
    least: &Entitlement,
) -> Vec<Conflict> {
    let capacity = capacity(contract, machine, resource);
    let levels = core::iter::once(None).chain(contract.held().map(Some));
    let available = |level: Option<UnitId>| level.map_or(capacity.total(), |id| least.value(id));
    let asks = |id: UnitId| {
        let unit = contract.unit(id);
        capacity.weigh(unit.hard[resource], available(unit.parent)).unwrap_or(0)
    };
    let mut asked_of: BTreeMap<Option<UnitId>, u64> = BTreeMap::new();
    for id in contract.held() {
        let asked = asked_of.entry(contract.unit(id).parent).or_default();
        *asked = asked.saturating_add(asks(id));
    }
    let mut found = Vec::new();
    for level in levels {
        let (asked, available) = (asked_of.get(&level).copied().unwrap_or(0), available(level));
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
