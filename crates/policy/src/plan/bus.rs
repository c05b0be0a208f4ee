//! The memory bus in a plan: accounts of units, and throttle orders.

use alloc::vec::Vec;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Accounts of outermost units for the quantum that just ended. All rates are in bytes per second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusPlan {
    /// The length of the quantum, in nanoseconds.
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
    /// The unit's limit; `None`: unlimited.
    pub most: Option<u64>,
    /// The unit's transfers.
    pub used: u64,
    /// The transfers that the unit would have made on a private bus of the size of its entitlement; 0 if it
    /// wanted no transfers.
    pub due: u64,
    /// The accumulated shortfall of `used` against `due`, in bytes; negative: surplus. Clamped on both sides.
    pub owed: i64,
    /// Whether the unit's gangs wait in the next quantum, because others are owed, or because the unit
    /// exceeds `most`.
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
