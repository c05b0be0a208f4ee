//! What the negotiator reads from snapshots: what each unit did and waited for, sub-units included.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};

use super::{MILLION, TRADED, part, times};
use crate::input::Input;
use crate::snapshot::Snapshot;
use crate::time::Time;
use crate::tree;

/// A unit at one look, sub-units included. Counts never go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) unit: UnitId,
    pub(crate) parent: Option<UnitId>,
    pub(crate) negotiates: bool,
    /// When these facts were read.
    pub(crate) at: Time,
    /// CPU time.
    pub(crate) used_ns: u64,
    /// Time that it waited, by [`TRADED`].
    pub(crate) waited_ns: [u64; TRADED.len()],
}

/// All units at one look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// In the contract's order.
    pub(crate) units: Vec<Facts>,
    /// Which resources are held, by [`TRADED`].
    pub(crate) held: [bool; TRADED.len()],
    /// What the machine has, in millionths of a CPU.
    pub(crate) cpus: u64,
}

impl Seen {
    pub(crate) fn negotiates(&self, unit: UnitId) -> bool {
        self.units.iter().any(|facts| facts.unit == unit && facts.negotiates)
    }
}

/// What a unit's memory and disks showed when they were looked at last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Slow {
    /// Time stalled for memory.
    memory_ns: u64,
    /// Bytes that came back soon after they were taken.
    refaulted: u64,
    /// The part of the stalls for disks that was for memory, summed.
    back_ns: u64,
    disk_ns: u64,
    read: u64,
}

/// Memory and disks are looked at less often than CPUs: the last facts are remembered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Memory {
    units: BTreeMap<UnitId, Slow>,
    memory: bool,
    disks: bool,
}

impl Memory {
    /// Takes in what a snapshot has.
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
                // The kernel tells a unit's stalls once, for all disks.
                (ns.max(used.stalled_ns.unwrap_or(0)), read.saturating_add(used.read_bytes))
            });
            let slow = self.units.entry(unit).or_default();
            let refaulted = facts.refaulted.saturating_sub(slow.refaulted);
            let back = part(refaulted, read.saturating_sub(slow.read)).min(1_000_000);
            slow.back_ns = slow.back_ns.saturating_add(times(back, disk_ns.saturating_sub(slow.disk_ns)));
            (slow.memory_ns, slow.refaulted) = (facts.stalled_ns, facts.refaulted);
            (slow.disk_ns, slow.read) = (disk_ns, read);
        }
    }

    /// All units of the contract as they are now.
    pub(super) fn units(&self, input: Input<'_>) -> Seen {
        let (contract, snapshot) = (input.contract, input.snapshot);
        let sums = |own: &dyn Fn(UnitId) -> u64| tree::sums(contract, own);
        let used = sums(&|unit| snapshot.unit(unit).used_ns);
        let cpu = sums(&|unit| snapshot.unit(unit).waited_ns);
        let memory =
            sums(&|unit| self.units.get(&unit).map_or(0, |slow| slow.memory_ns.saturating_add(slow.back_ns)));
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

/// Whether a unit negotiates: nobody does where nothing is held.
fn negotiates(contract: &Contract, unit: UnitId) -> bool {
    contract.unit(unit).negotiate && contract.machine.scheme != Scheme::Smp
}
