//! The memory bus in a plan: what units hold of it, and what a backend is to do for that.

use alloc::vec::Vec;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// How outermost units stood in the quantum that has just ended. All rates are in bytes per second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusPlan {
    /// How long it was, in nanoseconds.
    pub quantum_ns: Time,
    /// What the bus carries.
    pub carries: u64,
    /// By unit; those alone of which something is known.
    pub units: Vec<BusPart>,
}

/// What one unit has of the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusPart {
    /// The unit, with its sub-units.
    pub unit: UnitId,
    /// What it is entitled to.
    pub entitled: u64,
    /// The most that it may transfer; `None`: what there is.
    pub most: Option<u64>,
    /// What it transferred.
    pub used: u64,
    /// What it would have transferred on a bus of its own, as large as what it is entitled to; 0 for one that wanted nothing.
    pub due: u64,
    /// What it got less than that, and has not got since, in bytes; below 0: what it got more, as far as that is remembered.
    pub owed: i64,
    /// Whether it waits until others have what they are owed, or until it is back at the most that it may transfer.
    pub waits: bool,
}

/// What a backend is to do about the memory bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum BusOrder {
    /// The processor slows down what the unit, sub-units included, transfers.
    Throttle {
        /// The unit.
        unit: UnitId,
        /// What it is given of the bandwidth, in percent as the processor takes them; 100: it is not slowed down.
        percent: u32,
    },
}

impl BusOrder {
    /// The unit that it is about.
    pub fn unit(&self) -> UnitId {
        let BusOrder::Throttle { unit, .. } = self;
        *unit
    }
}
