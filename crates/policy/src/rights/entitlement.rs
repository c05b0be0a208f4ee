//! Whether a contract fits a machine: entitlements computed from scratch, before any unit runs.
//!
//! While units run, [`Rights`] updates entitlements incrementally, by the same rules (`worth`).

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
    /// Memory in page frames: entitlements are whole frames. Reservations are rounded up, limits down.
    Pieces {
        /// Number of frames.
        total: u64,
        /// Size of a frame in bytes, at least 1.
        bytes: u64,
    },
    /// Unknown: entitlements are millionths of the whole, and absolute amounts do not count.
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

    /// Converts an amount of a contract to the measure of this capacity, rounding down; a percentage is of
    /// `whole`, the encloser's value. `None` if there is no amount, or the amount is absolute and the
    /// capacity unknown.
    pub(crate) fn weigh(self, amount: Option<Amount>, whole: u64) -> Option<u64> {
        match (self, amount?) {
            (Capacity::Parts, Amount::Absolute(_)) => None,
            (Capacity::Pieces { bytes, .. }, Amount::Absolute(amount)) => Some(amount / bytes.max(1)),
            (_, amount) => Some(amount.of(whole)),
        }
    }

    /// As [`Capacity::weigh`], rounding up.
    pub(crate) fn weigh_up(self, amount: Option<Amount>, whole: u64) -> Option<u64> {
        match (self, amount) {
            (Capacity::Pieces { bytes, .. }, Some(Amount::Absolute(amount))) => {
                Some(amount.div_ceil(bytes.max(1)))
            }
            _ => self.weigh(amount, whole),
        }
    }
}

/// The capacity of a machine's resource that units divide. For memory, that is all memory except the reserve,
/// which keeps call-backs quick.
pub fn capacity(contract: &Contract, machine: &Machine, resource: Resource) -> Capacity {
    let known_or_parts = |bytes: Option<u64>| bytes.map_or(Capacity::Parts, Capacity::Known);
    match resource {
        Resource::Cpu => Capacity::Known(machine.cpus.len() as u64 * MILLIONTH),
        Resource::Memory => {
            let total = machine.memory_bytes();
            Capacity::Known(total.saturating_sub(contract.machine.reserve.of(total)))
        }
        // Entitlements are per disk. Absolute amounts are taken relative to the slowest disk of known rate.
        Resource::Disk => known_or_parts(machine.disks.iter().filter_map(|disk| disk.bytes_per_s).min()),
        Resource::Bus => known_or_parts(machine.bus_bytes_per_s),
    }
}

/// The entitlements of all units to one resource. Vectors are indexed by unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entitlement {
    /// Each unit's value, sub-units included.
    pub value: Vec<u64>,
    /// The part of each unit's own processes. These parts sum to the capacity less `unheld`.
    pub own: Vec<u64>,
    /// The reserved (hard) part of each unit's value, lots of its sub-units included.
    pub hard: Vec<u64>,
    /// The amount that no unit may take because of limits.
    pub unheld: u64,
}

impl Entitlement {
    /// A unit's value; 0 for an unknown unit.
    pub fn value(&self, unit: UnitId) -> u64 {
        self.value.get(unit.index()).copied().unwrap_or(0)
    }

    /// The reserved part of a unit's value; 0 for an unknown unit.
    pub fn hard(&self, unit: UnitId) -> u64 {
        self.hard.get(unit.index()).copied().unwrap_or(0)
    }

    /// A unit's own part; 0 for an unknown unit.
    pub fn own(&self, unit: UnitId) -> u64 {
        self.own.get(unit.index()).copied().unwrap_or(0)
    }
}

/// The entitlements to a resource of this capacity if the units in `present` (indexed by unit) have processes
/// of their own, and no other units do.
pub fn entitle(contract: &Contract, resource: Resource, capacity: Capacity, present: &[bool]) -> Entitlement {
    let mut rights = Rights::new(contract);
    for (id, present) in contract.ids().zip(present) {
        // Refused for `shared` and `kernel`, which hold no tickets.
        let _ = rights.set_present_for(id, resource, *present);
    }
    rights.at_capacity(resource, capacity).all()
}

/// As [`entitle`], for every resource, with the machine's capacities.
pub fn entitle_all(contract: &Contract, machine: &Machine, present: &[bool]) -> PerResource<Entitlement> {
    let mut rights = Rights::new(contract);
    for (id, present) in contract.ids().zip(present) {
        let _ = rights.set_present(id, *present);
    }
    let entitled = |resource| rights.at_capacity(resource, capacity(contract, machine, resource)).all();
    PerResource {
        cpu: entitled(Resource::Cpu),
        memory: entitled(Resource::Memory),
        disk: entitled(Resource::Disk),
        bus: entitled(Resource::Bus),
    }
}

/// Why a contract does not fit a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The position of the demand in the contract's text.
    pub span: Span,
    /// The demand that cannot be met.
    pub what: Ask,
}

/// A demand that cannot be met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The hard reservations of a level sum to more than the level is guaranteed.
    Hard {
        /// The enclosing unit; `None`: the machine.
        level: Option<UnitId>,
        /// The resource.
        resource: Resource,
        /// The sum of the reservations.
        asked: u64,
        /// The guaranteed value of the level.
        available: u64,
    },
    /// Partition mode with more top-level units than CPUs.
    Partition {
        /// The number of top-level units.
        units: u64,
        /// The number of CPUs.
        cpus: u64,
    },
}

/// The demands of a contract that the machine cannot meet while every unit is active; empty if it can meet
/// all.
pub fn conflicts(contract: &Contract, machine: &Machine) -> Vec<Conflict> {
    // A unit's entitlement is smallest while all units are active.
    let guaranteed = entitle_all(contract, machine, &vec![true; contract.units.len()]);
    let hard = |resource: &Resource| hard_conflicts(contract, machine, *resource, &guaranteed[*resource]);
    let mut conflicts: Vec<Conflict> = Resource::ALL.iter().flat_map(hard).collect();
    let (units, cpus) = (contract.children(None).count() as u64, machine.cpus.len() as u64);
    if contract.machine.cpu == commonhold_contract::CpuMode::Partition && units > cpus {
        let span = contract.children(None).last().map_or(0..0, |id| contract.unit(id).span.clone());
        conflicts.push(Conflict { span, what: Ask::Partition { units, cpus } });
    }
    conflicts
}

/// The conflicts of one resource: levels whose reservations sum to more than the level is guaranteed. Each
/// conflict points at the largest reservation of its level. `guaranteed` has each unit's value while all
/// units are active.
fn hard_conflicts(
    contract: &Contract,
    machine: &Machine,
    resource: Resource,
    guaranteed: &Entitlement,
) -> Vec<Conflict> {
    let capacity = capacity(contract, machine, resource);
    let levels = core::iter::once(None).chain(contract.held().map(Some));
    let available = |level: Option<UnitId>| level.map_or(capacity.total(), |id| guaranteed.value(id));
    let reservation = |id: UnitId| {
        let unit = contract.unit(id);
        capacity.weigh(unit.hard[resource], available(unit.parent)).unwrap_or(0)
    };
    let mut reserved_in: BTreeMap<Option<UnitId>, u64> = BTreeMap::new();
    for id in contract.held() {
        let reserved = reserved_in.entry(contract.unit(id).parent).or_default();
        *reserved = reserved.saturating_add(reservation(id));
    }
    let mut conflicts = Vec::new();
    for level in levels {
        let (asked, available) = (reserved_in.get(&level).copied().unwrap_or(0), available(level));
        if asked > available {
            let largest = contract.children(level).max_by_key(|id| reservation(*id));
            let span = largest.map_or(0..0, |id| contract.unit(id).hard_span(resource));
            conflicts.push(Conflict { span, what: Ask::Hard { level, resource, asked, available } });
        }
    }
    conflicts
}

#[cfg(test)]
mod tests;
