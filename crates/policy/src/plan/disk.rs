//! Disks in a plan: what a backend is to do about them.

use alloc::string::String;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

/// What a backend is to do about a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum DiskOrder {
    /// The unit's weight on a disk against its siblings, 1 to 1,000.
    Weigh {
        /// The unit.
        unit: UnitId,
        /// The disk's name.
        disk: String,
        /// Where 100 is the usual.
        weight: u32,
    },
    /// The unit, sub-units included, transfers no more than this. `None`: no bound that way.
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
    /// The unit's own processes hold this share of a disk that schedules by shares.
    Share {
        /// The unit.
        unit: UnitId,
        /// The disk's name.
        disk: String,
        /// In relation to all other units' shares; 0 is none.
        share: u64,
    },
    /// The unit's processes stand still until its rates have earned what they transferred, or go on. Only where rates are
    /// held by that.
    Stop {
        /// The unit, with its sub-units.
        unit: UnitId,
        /// The disk that it was stopped for, which may have gone since.
        disk: String,
        /// Whether they stand still: for what is owed at any disk.
        stopped: bool,
    },
}

impl DiskOrder {
    /// The unit that it is about.
    pub fn unit(&self) -> UnitId {
        match *self {
            DiskOrder::Weigh { unit, .. }
            | DiskOrder::Cap { unit, .. }
            | DiskOrder::Stop { unit, .. }
            | DiskOrder::Share { unit, .. } => unit,
        }
    }
}
