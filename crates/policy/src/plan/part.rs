//! Parts in a plan: what of a unit's orders holds in each control group that has its processes.

use alloc::string::String;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::snapshot::{PlaceBounds, PlaceId};

/// A control group of another program's that a unit is held in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Which.
    pub place: PlaceId,
    /// The unit.
    pub unit: UnitId,
    /// The control group, as /proc shows its path.
    pub group: String,
    /// What its manager has set there: the unit's orders are within it.
    #[serde(default, skip_serializing_if = "PlaceBounds::is_none")]
    pub most: PlaceBounds,
}

/// What a backend is to do at one of a unit's holders: a place, or the unit's own control group (`at` is `None`). It comes after
/// the unit's orders, which are for the unit's own control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum PartOrder {
    /// It runs on these CPUs. `None`: wherever its manager allows.
    Confine {
        /// The unit.
        unit: UnitId,
        /// The place.
        at: PlaceId,
        /// Never an empty set.
        cpus: Option<CpuSet>,
    },
    /// Its weight, 1 to 10,000, in one measure for all places.
    Weigh {
        /// The unit.
        unit: UnitId,
        /// The place.
        at: PlaceId,
        /// cgroup v2's measure.
        weight: u32,
    },
    /// It uses no more CPU than this. `None`: no cap.
    Cap {
        /// The unit.
        unit: UnitId,
        /// Where.
        at: Option<PlaceId>,
        /// Millionths of a CPU.
        micro_cpus: Option<u64>,
    },
    /// What others may not take of its memory, in bytes; of the unit's own group with what is in it.
    Guarantee {
        /// The unit.
        unit: UnitId,
        /// Where.
        at: Option<PlaceId>,
        /// What is never taken.
        min: u64,
        /// What is not taken while any unit has more than that; at least `min`.
        low: u64,
        /// The part of `low` that is the unit's own processes'.
        own: u64,
    },
    /// It uses no more memory than this. `None`: no bound.
    Allow {
        /// The unit.
        unit: UnitId,
        /// Where.
        at: Option<PlaceId>,
        /// Bytes.
        bytes: Option<u64>,
    },
    /// So much memory is taken from it now. An act, not a state.
    Reclaim {
        /// The unit.
        unit: UnitId,
        /// Where.
        at: Option<PlaceId>,
        /// Bytes.
        bytes: u64,
        /// Of pages of files alone, where the kernel can tell.
        #[serde(default)]
        files: bool,
    },
    /// It transfers no more than this to and from a disk. `None`: no bound that way.
    Transfer {
        /// The unit.
        unit: UnitId,
        /// Where.
        at: Option<PlaceId>,
        /// The disk's name.
        disk: String,
        /// Reading, in bytes per second.
        read: Option<u64>,
        /// Writing, in bytes per second.
        write: Option<u64>,
    },
}

impl PartOrder {
    /// The unit that it is about.
    pub fn unit(&self) -> UnitId {
        match *self {
            PartOrder::Confine { unit, .. }
            | PartOrder::Weigh { unit, .. }
            | PartOrder::Cap { unit, .. }
            | PartOrder::Guarantee { unit, .. }
            | PartOrder::Allow { unit, .. }
            | PartOrder::Reclaim { unit, .. }
            | PartOrder::Transfer { unit, .. } => unit,
        }
    }

    /// The place; `None`: the unit's own control group.
    pub fn at(&self) -> Option<PlaceId> {
        match *self {
            PartOrder::Confine { at, .. } | PartOrder::Weigh { at, .. } => Some(at),
            PartOrder::Cap { at, .. }
            | PartOrder::Guarantee { at, .. }
            | PartOrder::Allow { at, .. }
            | PartOrder::Reclaim { at, .. }
            | PartOrder::Transfer { at, .. } => at,
        }
    }
}
