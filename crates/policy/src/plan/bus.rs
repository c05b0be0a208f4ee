//! The memory bus in a plan: accounts of units, and throttle orders.

use alloc::vec::Vec;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Accounts of outermost units for the quantum that just ended. All rates are in bytes per second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusPlan {
    /// Its length, in nanoseconds.
    pub quantum_ns: Time,
    /// The capacity of the bus.
    pub carries: u64,
    /// Units with measurements.
    pub units: Vec<BusPart>,
}

/// One unit's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusPart {
    /// The unit, sub-units included.
    pub unit: UnitId,
    /// Its entitlement.
    pub entitled: u64,
    /// The most that it may transfer; `None`: unlimited.
    pub most: Option<u64>,
    /// What it transferred.
    pub used: u64,
    /// What it would have transferred on a private bus of the size of its entitlement; 0 if it wanted nothing.
    pub due: u64,
    /// The accumulated shortfall against its due, in bytes; negative: surplus. Both are clamped.
    pub owed: i64,
    /// Whether its gangs wait in the next quantum, because others are owed, or because it is beyond its most.
    pub waits: bool,
}

/// An order about the memory bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum BusOrder {
    /// The processor throttles the transfers of the unit, sub-units included.
    Throttle {
        /// The unit.
        unit: UnitId,
        /// The processor's throttle setting, in percent of the bandwidth; 100: not throttled.
        percent: u32,
    },
}

impl BusOrder {
    /// The unit that the order concerns.
    pub fn unit(&self) -> UnitId {
        let BusOrder::Throttle { unit, .. } = self;
        *unit
    }
}
