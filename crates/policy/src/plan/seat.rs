//! Jobs in a plan: the pools of their threads, and orders about threads and pages.

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
    /// The index of the pool in the machine's list; `None`: no pool has a free seat.
    pub pool: Option<u32>,
}

/// An order about where a job's threads run, or where its pages are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum SeatOrder {
    /// The thread runs on these CPUs, which its unit may use. A scheduler that decides at every switch only
    /// prefers these CPUs. `None`: the thread runs on any CPU of its unit; but where each thread has a
    /// dedicated CPU, the thread does not start.
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
    /// Moves the job's pages to these nodes, in proportion to their weights: from unlisted nodes and nodes
    /// above their share to nodes below it, in the listed order. If `divided` is not set, pages in any of the
    /// nodes stay. An action, not a state.
    Bring {
        /// The job.
        job: JobId,
        /// Its unit.
        unit: UnitId,
        /// Never empty. The nodes of the parent's pool come first.
        nodes: Vec<NodePart>,
        /// Whether the job is in several pools, so that each node must get its share; otherwise any of the
        /// nodes will do.
        divided: bool,
    },
}

/// A node's share of a job's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePart {
    /// The node's number.
    pub node: u32,
    /// Its weight, relative to the sum of all weights. Never 0.
    pub part: u64,
}

impl NodePart {
    /// Each node's share of a number of pages, as node number and pages. The shares sum to `pages` exactly.
    pub fn due(parts: &[NodePart], pages: u64) -> Vec<(u32, u64)> {
        let weights: Vec<u64> = parts.iter().map(|part| part.part).collect();
        parts.iter().map(|part| part.node).zip(crate::share::split(pages, &weights)).collect()
    }
}

impl SeatOrder {
    /// The unit that the order concerns.
    pub fn unit(&self) -> UnitId {
        match self {
            SeatOrder::Seat { unit, .. } | SeatOrder::Bring { unit, .. } => *unit,
        }
    }
}
