//! What the negotiator reads from snapshots: each unit's CPU time and waiting time, sub-units included.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};

use super::{MILLION, TRADED, millionths, times};
use crate::input::Input;
use crate::snapshot::Snapshot;
use crate::time::Time;
use crate::tree;

/// A unit's counters at one sample, sub-units included. They are monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) unit: UnitId,
    pub(crate) parent: Option<UnitId>,
    pub(crate) negotiates: bool,
    /// When they were read.
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
    /// Time stalled for disks while refaulting: the part of `disk_ns` attributed to memory.
    back_ns: u64,
    disk_ns: u64,
    read: u64,
}

/// Memory and disks are sampled less often than CPUs, so the latest counters are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LastStalls {
    units: BTreeMap<UnitId, StallCounters>,
    memory: bool,
    disks: bool,
}

impl LastStalls {
    /// Updates the counters that a snapshot contains.
    pub(super) fn note(&mut self, snapshot: &Snapshot) {
        for disk in &snapshot.disks {
            self.disks |= disk.units.iter().any(|used| used.stalled_ns.is_some());
        }
        let Some(memory) = &snapshot.memory else { return };
        self.memory = true;
        for (at, facts) in (0..).zip(&memory.units) {
            let unit = UnitId(at);
            let uses = snapshot.disks.iter().map(|disk| disk.unit(unit));
            let (disk_ns, read) = uses.fold((0, 0), |(ns, read): (u64, u64), used| {
                // The kernel reports one stall time for all disks.
                (ns.max(used.stalled_ns.unwrap_or(0)), read.saturating_add(used.read_bytes))
            });
            let stalls = self.units.entry(unit).or_default();
            let refaulted = facts.refaulted.saturating_sub(stalls.refaulted);
            let back = millionths(refaulted, read.saturating_sub(stalls.read)).min(1_000_000);
            stalls.back_ns =
                stalls.back_ns.saturating_add(times(back, disk_ns.saturating_sub(stalls.disk_ns)));
            (stalls.memory_ns, stalls.refaulted) = (facts.stalled_ns, facts.refaulted);
            (stalls.disk_ns, stalls.read) = (disk_ns, read);
        }
    }

    /// The counters of all units of the contract now.
    pub(super) fn units(&self, input: Input<'_>) -> Seen {
        let (contract, snapshot) = (input.contract, input.snapshot);
        let sums = |own: &dyn Fn(UnitId) -> u64| tree::sums(contract, own);
        let used = sums(&|unit| snapshot.unit(unit).used_ns);
        let cpu = sums(&|unit| snapshot.unit(unit).waited_ns);
        let memory = sums(&|unit| {
            self.units.get(&unit).map_or(0, |stalls| stalls.memory_ns.saturating_add(stalls.back_ns))
        });
        let disk = sums(&|unit| {
            let stalled = |used: crate::DiskUse| used.stalled_ns.unwrap_or(0);
            snapshot.disks.iter().map(|disk| stalled(disk.unit(unit))).max().unwrap_or(0)
        });
        let facts = |unit: UnitId| {
            let at = unit.index();
            Facts {
                unit,
                parent: contract.unit(unit).parent,
                negotiates: negotiates(contract, unit),
                at: match snapshot.unit(unit).at {
                    0 => snapshot.at,
                    at => at,
                },
                used_ns: used[at],
                waited_ns: [cpu[at], memory[at], disk[at]],
            }
        };
        let cpus = input.machine.cpus.len() as u64 * MILLION;
        Seen { units: contract.held().map(facts).collect(), held: [true, self.memory, self.disks], cpus }
    }
}

/// Whether a unit negotiates. Under `smp` nothing is controlled, so none does.
fn negotiates(contract: &Contract, unit: UnitId) -> bool {
    contract.unit(unit).negotiate && contract.machine.scheme != Scheme::Smp
}
