//! Places as a backend sees them: control groups of other programs that units are held in.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use super::DiskUse;

/// A place's number. The backend gives it, and gives it to no other place while this one is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlaceId(pub u32);

/// A control group that another program manages, and in which a unit is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceFacts {
    /// Which.
    pub place: PlaceId,
    /// The control group, as /proc shows its path.
    pub group: String,
    /// The unit that its processes are in, or in units within that.
    pub unit: UnitId,
    /// CPU time used in it since it is a place, in nanoseconds. Never goes back.
    pub used_ns: u64,
    /// What it is charged of memory, in bytes.
    pub memory: u64,
    /// By disk, what was done to it from here since it is a place. Never goes back.
    pub disks: Vec<(String, DiskUse)>,
    /// What its manager has set there.
    pub most: PlaceBounds,
}

/// What the manager of a control group, or an administrator by way of it, has set there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlaceBounds {
    /// Bytes of memory that it may use; `None`: no bound.
    pub memory: Option<u64>,
    /// The CPUs that it may run on; `None`: all.
    pub cpus: Option<CpuSet>,
    /// Whether a weight is set.
    pub weight: bool,
    /// Whether a cap on CPU time is set.
    pub cap: bool,
    /// Whether memory is kept for it.
    pub kept: bool,
    /// Whether rates of disks are set.
    pub rates: bool,
}

impl PlaceBounds {
    /// Whether nothing is set.
    pub fn is_none(&self) -> bool {
        *self == PlaceBounds::default()
    }
}
