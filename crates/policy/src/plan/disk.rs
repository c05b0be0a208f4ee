//! Disks in a plan: orders.

use alloc::string::String;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

/// An order about a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum DiskOrder {
    /// The unit's weight on a disk against its siblings, 1 to 1,000.
    Weigh {
        /// The unit.
        unit: UnitId,
        /// The disk's name.
        disk: String,
        /// Default 100.
        weight: u32,
    },
    /// The unit's maximum transfer rate, sub-units included. `None`: unlimited in that direction.
    Cap {
        /// The unit.
        unit: UnitId,
        /// The disk's name.
        disk: String,
        /// Reading, in bytes per second.
        read: Option<u64>,
        /// Writing, in bytes per second.
        write: Option<u64>,
    },
    /// The share of the unit's own processes, on a disk that schedules by shares.
    Share {
        /// The unit.
        unit: UnitId,
        /// The disk's name.
        disk: String,
        /// Relative to the other units' shares; 0: no share.
        share: u64,
    },
    /// Stops the unit's processes until their rates have paid for what they transferred, or continues them.
    /// Only where rates are enforced by stopping.
    Stop {
        /// The unit, sub-units included.
        unit: UnitId,
        /// The disk whose debt caused the stop; it may have gone since.
        disk: String,
        /// Whether they are stopped, for debt at any disk.
        stopped: bool,
    },
}

impl DiskOrder {
    /// The unit that the order concerns.
    pub fn unit(&self) -> UnitId {
        match *self {
            DiskOrder::Weigh { unit, .. }
            | DiskOrder::Cap { unit, .. }
            | DiskOrder::Stop { unit, .. }
            | DiskOrder::Share { unit, .. } => unit,
        }
    }
}
