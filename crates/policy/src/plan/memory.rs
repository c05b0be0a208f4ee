//! Memory in a plan: how it is divided, and what a backend is to do for that.

use alloc::vec::Vec;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// What was decided about memory. Bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// When the next facts are wanted at the latest.
    pub next: Time,
    /// What is divided among the units.
    pub divided: u64,
    /// One per unit of the contract; sub-units left out.
    pub units: Vec<Share>,
    /// Units that lend, those that are far from their bound, and those that might soon be beyond what they are entitled
    /// to, where memory is tight: one of them that meets its bound should be seen at once.
    pub watch: Vec<UnitId>,
    /// Units that are beyond what they may use, where memory is short and nothing can be taken from them.
    pub beyond: Vec<Beyond>,
    /// What is lent, by the time within which it is to be back, the shortest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<MemoryTerm>,
    /// What each unit lent beyond what it was lent, as far as it is remembered, in bytes times seconds; what is below 0 is the
    /// other way. By unit; none where nothing was lent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<i64>,
}

/// What is lent with the same time to be back in. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryTerm {
    /// The time, in nanoseconds.
    pub within_ns: Time,
    /// What is lent so, with what no unit is entitled to.
    pub lent: u64,
    /// What could be taken in that time from all borrowers, if each gave the same part of its loan; `None`: any amount.
    pub callable: Option<u64>,
}

/// One unit's memory in a plan. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Share {
    /// What its own processes are entitled to.
    pub entitled: u64,
    /// What it lends.
    pub lent: u64,
    /// What it borrows.
    pub borrowed: u64,
    /// What it may use: entitled - lent + borrowed.
    pub allowed: u64,
    /// What of that is taken to be in swap that is memory: what is charged may be so much less.
    pub packed: u64,
    /// How much it could be lent for the time that calling it back takes, if no other unit borrowed; `None` where that does
    /// not matter.
    pub callable: Option<u64>,
    /// Within what time all that it lends is to be back, in nanoseconds; `None`: it lends nothing.
    #[serde(default)]
    pub within_ns: Option<Time>,
    /// Why it may not use more, if it is short: where that will not change by itself.
    #[serde(default)]
    pub no_more: Option<NoMore>,
    /// Whether its allowance sank because the memory is wanted elsewhere, so that what it uses beyond is called back.
    pub called_back: bool,
}

/// Why a unit that is short of memory may not use more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoMore {
    /// More could not be called back from it in time.
    InTime,
    /// No more is idle, beyond the reserve.
    NothingIdle,
    /// It is at a limit of the contract, or a unit around it is.
    Limit,
    /// The contract forbids it to borrow.
    MayNotBorrow,
}

/// What a unit uses that nothing can be done about but by way of swap. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beyond {
    /// The unit.
    pub unit: UnitId,
    /// How much of that is beyond what it may use.
    pub bytes: u64,
}

/// What a backend is to do about memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum MemoryOrder {
    /// What others may not take from the unit, however short of memory they are. In bytes; 0 is nothing.
    Guarantee {
        /// The unit, with its sub-units.
        unit: UnitId,
        /// What is never taken (hard tickets).
        min: u64,
        /// What is not taken while any unit has more than that; at least `min`.
        low: u64,
        /// The part of `low` that is its own processes'.
        own: u64,
    },
    /// The unit's own processes use no more memory than this, entitled - lent + borrowed. `None`: no bound.
    Allow {
        /// The unit; its sub-units have orders of their own.
        unit: UnitId,
        /// Bytes.
        bytes: Option<u64>,
    },
    /// So much memory is taken from the unit's own processes now: what it borrowed is called back, or what it lends
    /// is made free. An act, not a state: nothing stays in force.
    Reclaim {
        /// The unit.
        unit: UnitId,
        /// Bytes.
        bytes: u64,
        /// Of pages of files alone, where the kernel can tell: the unit has enough that only have to be dropped.
        #[serde(default)]
        files: bool,
    },
    /// Of a kernel that is out of memory and kills, the unit's own processes are to be killed before others'.
    Expose {
        /// The unit.
        unit: UnitId,
        /// Or no more than others'.
        exposed: bool,
    },
}

impl MemoryOrder {
    /// The unit that it is about.
    pub fn unit(&self) -> UnitId {
        match *self {
            MemoryOrder::Guarantee { unit, .. }
            | MemoryOrder::Allow { unit, .. }
            | MemoryOrder::Reclaim { unit, .. }
            | MemoryOrder::Expose { unit, .. } => unit,
        }
    }
}
