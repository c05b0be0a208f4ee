//! The replies of `io.commonhold.Monitor`: the present state of all units, and then what changed.
//!
//! The first reply has everything ([`MonitorReply::whole`]). Each later one has the units that changed, the
//! paths of those that are gone, and the machine's state if it changed. [`MonitorReply::merge_into`] keeps a
//! client's picture up to date.

use std::collections::BTreeMap;

use commonhold_contract::Resource;
use commonhold_ledger::{CpuLoan, Exchange, Finding, Job, MemoryTotals, Wait};
use commonhold_report::holdings::Holding;
use serde::{Deserialize, Serialize};

use crate::replies::{Instead, PaceReply};

/// The shortest interval between replies, in milliseconds.
pub const EVERY_MS_MIN: u64 = 250;

/// The present state, or the difference to the previous reply.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MonitorReply {
    /// Whether the reply has everything, and replaces what earlier replies had.
    pub whole: bool,
    /// When it was computed, in nanoseconds since the accounts were opened.
    pub at_ns: u64,
    /// The same moment in milliseconds since 1970, by the machine's clock.
    pub wall_ms: u64,
    /// The machine, if anything about it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineView>,
    /// The units that are new or changed, in the contract's order. A whole reply has all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<UnitView>,
    /// The paths of units that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// The paths of all units in the contract's order; always in a whole reply, else if units came or went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<String>>,
}

/// The machine as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MachineView {
    /// The file from which the contract in force was read.
    pub contract: String,
    /// The scheme in force: `isolate`, `quota` or `smp`.
    pub scheme: String,
    /// The active backend: `kernel`, `cgroup` or `user`.
    pub backend: String,
    /// The preferred backend, if the active one is a fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Instead>,
    /// How each resource is held.
    pub holdings: Vec<Holding>,
    /// The number of CPUs.
    pub cpus: u32,
    /// CPU time of all units, of the common parts, and idle, since the accounts were opened, in nanoseconds.
    pub used_ns: u64,
    /// See `used_ns`.
    pub common_ns: u64,
    /// See `used_ns`.
    pub idle_ns: u64,
    /// Memory, if it is controlled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryTotals>,
    /// The promised time of a CPU's call-back, in nanoseconds.
    pub call_back_promised_ns: u64,
    /// Statistics of the daemon's loop.
    pub daemon: PaceReply,
    /// Problems, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Exchanges of tickets that are in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchange>,
    /// Existing jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<Job>,
    /// Loans of CPUs now, the largest first, see [`Statement`](commonhold_ledger::Statement).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loans: Vec<CpuLoan>,
}

/// A unit, sub-units included unless a field states otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnitView {
    /// The path: `physics/night-batch`.
    pub unit: String,
    /// Member processes, sub-units excluded.
    pub processes: u32,
    /// CPUs: millionths of a CPU.
    pub cpu: Gauge,
    /// Memory: bytes. `None` if it is not controlled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Gauge>,
    /// All disks together: bytes per second. `None` if they are not controlled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Gauge>,
    /// The memory bus: bytes per second. `None` if the unit's transfers are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Gauge>,
    /// Totals since the accounts were opened.
    pub totals: UnitTotals,
    /// The waits since the accounts were opened, by resource and cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// Call-backs by resource: `cpu`, `memory`, `disk`. Only of resources with call-backs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub call_backs: BTreeMap<Resource, CallBackView>,
    /// The verdict on each resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// The state of its gangs in words; empty if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gangs: String,
}

/// A unit's present part of one resource, in the resource's measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Gauge {
    /// The amount that all units together divide.
    pub whole: u64,
    /// What the unit is entitled to now.
    pub entitled: u64,
    /// What it uses: over the last interval between snapshots.
    pub using: u64,
    /// What it lends now.
    pub lent: u64,
    /// What it borrows now.
    pub borrowed: u64,
}

/// A unit's totals since the accounts were opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnitTotals {
    /// CPU time used, in nanoseconds.
    pub cpu_used_ns: u64,
    /// CPU time of its CPUs that others used.
    pub cpu_lent_ns: u64,
    /// Time for which it had CPUs of others on loan.
    pub cpu_borrowed_ns: u64,
    /// Time that its threads were runnable without a CPU.
    pub cpu_waited_ns: u64,
    /// Time that one of its processes was stalled for memory.
    pub memory_waited_ns: u64,
    /// Time that one of its processes was stalled for a disk.
    pub disk_waited_ns: u64,
    /// Bytes read from disks.
    pub disk_read_bytes: u64,
    /// Bytes written to disks.
    pub disk_written_bytes: u64,
}

/// A unit's call-backs of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallBackView {
    /// Their number.
    pub count: u64,
    /// The promised time, in nanoseconds; `None` if none is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised_ns: Option<u64>,
    /// The 99th percentile, in nanoseconds; `None` if only the longest is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// The histogram: upper bounds in nanoseconds, ascending, each with the number of call-backs below it
    /// and not below the previous one. Longer ones are in `count` alone. Empty if only the longest is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<(u64, u64)>,
}

impl MonitorReply {
    /// Brings `picture`, a whole reply, up to date with this reply.
    pub fn merge_into(self, picture: &mut MonitorReply) {
        if self.whole {
            *picture = self;
            return;
        }
        picture.at_ns = self.at_ns;
        picture.wall_ms = self.wall_ms;
        if let Some(machine) = self.machine {
            picture.machine = Some(machine);
        }
        let mut units: BTreeMap<String, UnitView> =
            std::mem::take(&mut picture.units).into_iter().map(|unit| (unit.unit.clone(), unit)).collect();
        let order: Vec<String> = match self.order {
            Some(order) => order,
            None => picture.order.clone().unwrap_or_else(|| units.keys().cloned().collect()),
        };
        for path in &self.gone {
            units.remove(path);
        }
        units.extend(self.units.into_iter().map(|unit| (unit.unit.clone(), unit)));
        picture.units = order.iter().filter_map(|path| units.remove(path)).collect();
        picture.order = Some(order);
    }
}
