//! Jobs in a plan: which pool each of their threads is in, and what a backend is to do for that.

use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::snapshot::{JobId, ThreadId};

/// The pool of a thread from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The thread.
    pub thread: ThreadId,
    /// Its job.
    pub job: JobId,
    /// The job's unit.
    pub unit: UnitId,
    /// The pool, by its place among the machine's; `None`: none of them has room.
    pub pool: Option<u32>,
}

/// What a backend is to do about the places of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum PlaceOrder {
    /// The thread runs on these CPUs, which its unit may use. Where a scheduler decides at every switch, it looks for a CPU
    /// there first. `None`: wherever its unit may; where each thread has a CPU of its own, it has none and does not begin.
    Seat {
        /// The thread.
        thread: ThreadId,
        /// Its job.
        job: JobId,
        /// The job's unit.
        unit: UnitId,
        /// The CPUs; never an empty set.
        cpus: Option<CpuSet>,
    },
    /// The job's pages come to these nodes. An act, not a state.
    Bring {
        /// The job.
        job: JobId,
        /// Its unit.
        unit: UnitId,
        /// Numbers of nodes; never empty.
        nodes: Vec<u32>,
    },
}

impl PlaceOrder {
    /// The unit that it is about.
    pub fn unit(&self) -> UnitId {
        match self {
            PlaceOrder::Seat { unit, .. } | PlaceOrder::Bring { unit, .. } => *unit,
        }
    }
}
