//! Memory in a plan: its division, and orders.

use alloc::vec::Vec;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Decisions about memory. In bytes unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// When the next facts are due at the latest.
    pub next: Time,
    /// The memory divided among the units.
    pub divided: u64,
    /// One share per unit of the contract, sub-units excluded.
    pub units: Vec<Share>,
    /// Units to sample often: units that lend, units far below their bound and, while memory is tight, units
    /// that might soon exceed their entitlement. A unit that reaches its bound should be noticed at once.
    pub watch: Vec<UnitId>,
    /// Units that exceed their allowance while memory is short, and from which nothing can be reclaimed.
    pub beyond: Vec<Beyond>,
    /// Loans by the time within which they must be back, the shortest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<MemoryTerm>,
    /// Remembered net lending by unit, in bytes times seconds; negative: net borrowing. Empty if nothing was
    /// lent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<i64>,
}

/// Loans that must be back within the same time. In bytes unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryTerm {
    /// The time, in nanoseconds.
    pub within_ns: Time,
    /// The memory lent on this term, including memory that no unit is entitled to.
    pub lent: u64,
    /// The memory that could be reclaimed from all borrowers within the time, if each returned the same
    /// fraction of its loan; `None`: any amount.
    pub callable: Option<u64>,
}

/// One unit's memory. In bytes unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Share {
    /// The entitlement of the unit's own processes.
    pub entitled: u64,
    /// The memory that the unit lends.
    pub lent: u64,
    /// The memory that the unit borrows.
    pub borrowed: u64,
    /// The memory that the unit may use: entitled - lent + borrowed.
    pub allowed: u64,
    /// The part of `allowed` that is assumed to be in compressed swap (zram), and so is not charged to the
    /// unit.
    pub packed: u64,
    /// The largest loan that could be called back from the unit in time if no other unit borrowed; `None`: no
    /// such bound.
    pub callable: Option<u64>,
    /// The time within which all memory that the unit lends must be back, in nanoseconds; `None`: it lends
    /// nothing.
    #[serde(default)]
    pub within_ns: Option<Time>,
    /// Why the unit may not use more although it is short; `None` unless the cause persists.
    #[serde(default)]
    pub no_more: Option<NoMore>,
    /// Whether the unit's allowance sank because other units want the memory, so that its excess is called
    /// back.
    pub called_back: bool,
}

/// Why a unit that is short of memory may not use more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoMore {
    /// A larger loan could not be called back from it in time.
    InTime,
    /// Nothing is idle beyond the reserve.
    NothingIdle,
    /// It, or an enclosing unit, is at a limit of the contract.
    Limit,
    /// The contract forbids it to borrow.
    MayNotBorrow,
}

/// Memory in excess of a unit's allowance that only swapping could reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beyond {
    /// The unit.
    pub unit: UnitId,
    /// Bytes beyond its allowance.
    pub bytes: u64,
}

/// An order about memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum MemoryOrder {
    /// Protects the unit's memory from reclaim by others. In bytes; 0: no protection.
    Guarantee {
        /// The unit, sub-units included.
        unit: UnitId,
        /// Never reclaimed (hard tickets).
        min: u64,
        /// Not reclaimed while any unit exceeds its own `low`; at least `min`.
        low: u64,
        /// The part of `low` for its own processes.
        own: u64,
    },
    /// The maximum memory use of the unit's own processes: entitled - lent + borrowed. `None`: no bound.
    Allow {
        /// The unit; its sub-units have orders of their own.
        unit: UnitId,
        /// Bytes.
        bytes: Option<u64>,
    },
    /// Reclaims memory from the unit's own processes now, to call back memory that the unit borrowed or to
    /// free memory that it lends. An action, not a state: nothing stays in force.
    Reclaim {
        /// The unit.
        unit: UnitId,
        /// Bytes.
        bytes: u64,
        /// File pages only, where the kernel can distinguish: the unit has enough that need only be dropped.
        #[serde(default)]
        files: bool,
    },
    /// Marks the unit's own processes as the first victims of the kernel's out-of-memory killer.
    Expose {
        /// The unit.
        unit: UnitId,
        /// Whether they are exposed; `false`: like all others.
        exposed: bool,
    },
}

impl MemoryOrder {
    /// The unit that the order concerns.
    pub fn unit(&self) -> UnitId {
        match *self {
            MemoryOrder::Guarantee { unit, .. }
            | MemoryOrder::Allow { unit, .. }
            | MemoryOrder::Reclaim { unit, .. }
            | MemoryOrder::Expose { unit, .. } => unit,
        }
    }
}
