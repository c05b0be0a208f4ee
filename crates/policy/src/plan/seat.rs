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

/// What a backend is to do about where jobs run, and where their pages are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum SeatOrder {
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
    /// The job's pages come to these nodes, in proportion to their parts: those of a node that has more than its part, or is
    /// none of them, to those that have less, the first one first. A job of one pool keeps what lies in any of its nodes. An
    /// act, not a state.
    Bring {
        /// The job.
        job: JobId,
        /// Its unit.
        unit: UnitId,
        /// Never empty. The first are those of the parent's pool.
        nodes: Vec<NodePart>,
        /// Whether the job is in several pools, and each node is to have its part; else any of the nodes will do.
        divided: bool,
    },
}

/// A node's part of a job's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePart {
    /// Its number.
    pub node: u32,
    /// Its part; what all of them sum to is the whole. Never 0.
    pub part: u64,
}

impl NodePart {
    /// So many pages by their parts: each node's, to the page.
    pub fn due(parts: &[NodePart], pages: u64) -> Vec<(u32, u64)> {
        let weights: Vec<u64> = parts.iter().map(|part| part.part).collect();
        parts.iter().map(|part| part.node).zip(crate::share::split(pages, &weights)).collect()
    }
}

impl SeatOrder {
    /// The unit that it is about.
    pub fn unit(&self) -> UnitId {
        match self {
            SeatOrder::Seat { unit, .. } | SeatOrder::Bring { unit, .. } => *unit,
        }
    }
}
