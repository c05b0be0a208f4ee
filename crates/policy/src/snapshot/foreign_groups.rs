//! Foreign groups: control groups of other programs in which units are held, as a backend sees them.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use super::DiskUse;

/// The number of a foreign group. The backend assigns it, and does not reuse it while the group is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

/// A control group that another program manages, and in which a unit is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFacts {
    /// Its number.
    pub id: GroupId,
    /// Its path, as in /proc/PID/cgroup.
    pub path: String,
    /// The unit of all its processes, sub-units included.
    pub unit: UnitId,
    /// CPU time used in the group since it has been held, in nanoseconds. Monotonic.
    pub used_ns: u64,
    /// Memory charged to it, in bytes.
    pub memory: u64,
    /// Transfers from the group since it has been held, by disk. Monotonic.
    pub disks: Vec<(String, DiskUse)>,
    /// The settings of the group's manager.
    pub most: GroupBounds,
}

/// The settings of a control group's manager, or of an administrator by way of the manager.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupBounds {
    /// Memory limit in bytes; `None`: unlimited.
    pub memory: Option<u64>,
    /// Allowed CPUs; `None`: all.
    pub cpus: Option<CpuSet>,
    /// Whether a weight is set.
    pub weight: bool,
    /// Whether CPU time is capped.
    pub cap: bool,
    /// Whether memory is protected.
    pub kept: bool,
    /// Whether disk rates are limited.
    pub rates: bool,
}

impl GroupBounds {
    /// Whether nothing is set.
    pub fn is_none(&self) -> bool {
        *self == GroupBounds::default()
    }
}
