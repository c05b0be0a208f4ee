//! Parts in a plan: how a unit's orders are split over the control groups that contain its processes.

use alloc::string::String;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::snapshot::{GroupBounds, GroupId};

/// A control group of another program in which a unit is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignGroup {
    /// Its number.
    pub id: GroupId,
    /// The unit.
    pub unit: UnitId,
    /// Its path, as in /proc/PID/cgroup.
    pub path: String,
    /// The settings of the group's manager; the unit's orders stay within these.
    #[serde(default, skip_serializing_if = "GroupBounds::is_none")]
    pub most: GroupBounds,
}

/// An order about one of a unit's *holders*: the control groups that contain its processes. A holder is a
/// foreign group, or the unit's own control group (`at` is `None`).
///
/// The unit's order states the unit's total, which the ledger and the plan checker read. A part order states
/// the part of one holder. Backends carry out part orders last; in the unit's own group, they replace what
/// the unit's order set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum PartOrder {
    /// The group runs on these CPUs. `None`: on all that its manager allows.
    Confine {
        /// The unit.
        unit: UnitId,
        /// The group.
        at: GroupId,
        /// Never an empty set.
        cpus: Option<CpuSet>,
    },
    /// The group's weight, 1 to 10,000, on one scale for all foreign groups.
    Weigh {
        /// The unit.
        unit: UnitId,
        /// The group.
        at: GroupId,
        /// In the unit of cgroup v2's `cpu.weight`.
        weight: u32,
    },
    /// The holder's maximum CPU use. `None`: no cap.
    Cap {
        /// The unit.
        unit: UnitId,
        /// The holder.
        at: Option<GroupId>,
        /// Millionths of a CPU.
        micro_cpus: Option<u64>,
    },
    /// Protects the holder's memory from reclaim by others, in bytes. For the unit's own group, control
    /// groups inside it are included.
    Guarantee {
        /// The unit.
        unit: UnitId,
        /// The holder.
        at: Option<GroupId>,
        /// Never reclaimed.
        min: u64,
        /// Not reclaimed while any unit exceeds its own `low`; at least `min`.
        low: u64,
        /// The part of `low` for the unit's own processes.
        own: u64,
    },
    /// The holder's maximum memory use. `None`: no bound.
    Allow {
        /// The unit.
        unit: UnitId,
        /// The holder.
        at: Option<GroupId>,
        /// Bytes.
        bytes: Option<u64>,
    },
    /// Reclaims memory from the holder now. An action, not a state.
    Reclaim {
        /// The unit.
        unit: UnitId,
        /// The holder.
        at: Option<GroupId>,
        /// Bytes.
        bytes: u64,
        /// File pages only, where the kernel can distinguish.
        #[serde(default)]
        files: bool,
    },
    /// The holder's maximum transfer rate. `None`: unlimited in that direction.
    Transfer {
        /// The unit.
        unit: UnitId,
        /// The holder.
        at: Option<GroupId>,
        /// The disk's name.
        disk: String,
        /// Reading, in bytes per second.
        read: Option<u64>,
        /// Writing, in bytes per second.
        write: Option<u64>,
    },
}

impl PartOrder {
    /// The unit that the order concerns.
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

    /// The foreign group; `None`: the unit's own control group.
    pub fn at(&self) -> Option<GroupId> {
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
