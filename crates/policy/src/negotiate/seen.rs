//! The counters that the negotiator reads from snapshots: each unit's CPU time and waiting time, sub-units
//! included.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};

use super::{MILLION, TRADED, fraction_of, millionths};
use crate::input::Input;
use crate::snapshot::Snapshot;
use crate::time::Time;
use crate::tree;

/// A unit's counters at one sample, sub-units included. They are monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) unit: UnitId,
    pub(crate) parent: Option<UnitId>,
    /// Whether the contract lets the negotiator exchange the unit's tickets.
    pub(crate) negotiates: bool,
    /// When the counters were read.
    pub(crate) at: Time,
    /// CPU time.
    pub(crate) used_ns: u64,
    /// Waiting time by resource, indexed as [`TRADED`].
    pub(crate) waited_ns: [u64; TRADED.len()],
}

/// All units at one sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// In the contract's order.
    pub(crate) units: Vec<Facts>,
    /// Which resources are controlled, indexed as [`TRADED`].
    pub(crate) held: [bool; TRADED.len()],
    /// The machine's capacity in millionths of a CPU.
    pub(crate) cpus: u64,
}

impl Seen {
    /// Whether a unit is in the contract and negotiates.
    pub(crate) fn negotiates(&self, unit: UnitId) -> bool {
        self.units.iter().any(|facts| facts.unit == unit && facts.negotiates)
    }
}

/// A unit's memory and disk counters as of their last sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct StallCounters {
    /// Time stalled for memory.
    memory_ns: u64,
    /// Refaulted bytes.
    refaulted: u64,
    /// Time stalled for disks while refaulting: the part of `disk_ns` that is attributed to memory.
    refault_ns: u64,
    /// Time stalled for disks.
    disk_ns: u64,
    /// Bytes read from disks.
    read: u64,
}

/// The latest stall counters. Memory and disks are sampled less often than CPUs, so most snapshots lack some.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LastStalls {
    units: BTreeMap<UnitId, StallCounters>,
    /// Whether any snapshot had memory, and so memory is controlled.
    has_memory: bool,
    /// Whether any snapshot had stall times of disks.
    has_disks: bool,
}

impl LastStalls {
    /// Updates the counters from a snapshot that has a sample of memory; disk stalls are attributed at these
    /// times only.
    pub(super) fn note(&mut self, snapshot: &Snapshot) {
        for disk in &snapshot.disks {
            self.has_disks |= disk.units.iter().any(|used| used.stalled_ns.is_some());
        }
        let Some(memory) = &snapshot.memory else { return };
        self.has_memory = true;
        for (index, facts) in (0..).zip(&memory.units) {
            let unit = UnitId(index);
            let uses = snapshot.disks.iter().map(|disk| disk.unit(unit));
            let (disk_ns, read) = uses.fold((0, 0), |(ns, read): (u64, u64), used| {
                // The kernel reports one stall time for all disks.
                (ns.max(used.stalled_ns.unwrap_or(0)), read.saturating_add(used.read_bytes))
            });
            // Of the disk stalls since the last sample, memory caused the fraction of refaulted bytes among
            // the bytes read.
            let stalls = self.units.entry(unit).or_default();
            let refaulted = facts.refaulted.saturating_sub(stalls.refaulted);
            let refault_fraction = millionths(refaulted, read.saturating_sub(stalls.read)).min(MILLION);
            let refault_ns = fraction_of(refault_fraction, disk_ns.saturating_sub(stalls.disk_ns));
            stalls.refault_ns = stalls.refault_ns.saturating_add(refault_ns);
            (stalls.memory_ns, stalls.refaulted) = (facts.stalled_ns, facts.refaulted);
            (stalls.disk_ns, stalls.read) = (disk_ns, read);
        }
    }

    /// The present counters of all units of the contract, sub-units included.
    pub(super) fn units(&self, input: Input<'_>) -> Seen {
        let (contract, snapshot) = (input.contract, input.snapshot);
        let sums = |own: &dyn Fn(UnitId) -> u64| tree::sums(contract, own);
        let used_ns = sums(&|unit| snapshot.unit(unit).used_ns);
        let cpu_waited_ns = sums(&|unit| snapshot.unit(unit).waited_ns);
        let memory_waited_ns = sums(&|unit| {
            self.units.get(&unit).map_or(0, |stalls| stalls.memory_ns.saturating_add(stalls.refault_ns))
        });
        let disk_waited_ns = sums(&|unit| {
            let stalled = |used: crate::DiskUse| used.stalled_ns.unwrap_or(0);
            snapshot.disks.iter().map(|disk| stalled(disk.unit(unit))).max().unwrap_or(0)
        });
        let facts = |unit: UnitId| {
            let index = unit.index();
            Facts {
                unit,
                parent: contract.unit(unit).parent,
                negotiates: negotiates(contract, unit),
                at: match snapshot.unit(unit).at {
                    0 => snapshot.at,
                    at => at,
                },
                used_ns: used_ns[index],
                waited_ns: [cpu_waited_ns[index], memory_waited_ns[index], disk_waited_ns[index]],
            }
        };
        let cpus = input.machine.cpus.len() as u64 * MILLION;
        let held = [true, self.has_memory, self.has_disks];
        Seen { units: contract.held().map(facts).collect(), held, cpus }
    }
}

/// Whether a unit negotiates. Under `smp` nothing is controlled, so no unit does.
fn negotiates(contract: &Contract, unit: UnitId) -> bool {
    contract.unit(unit).negotiate && contract.machine.scheme != Scheme::Smp
}
