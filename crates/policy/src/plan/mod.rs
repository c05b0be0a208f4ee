//! The plan: decisions about each resource, and orders for a backend. Each decision and each order states its
//! reason.
//!
//! *Decisions* say which unit holds which resources. The ledger and the plan checker read them; a backend may
//! ignore them. *Orders* follow from the decisions. A backend carries them out in the plan's order, without
//! choices of its own.
//!
//! Orders are differences: a plan has only orders that change something. An order stays in force until
//! another order of the same kind on the same unit replaces it.

mod bus;
mod cpu;
mod disk;
mod gangs;
mod memory;
mod part;
mod reason;
mod seat;

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

pub use bus::{BusOrder, BusPart, BusPlan};
pub use cpu::{CpuDecision, CpuOrder};
pub use disk::DiskOrder;
pub use gangs::{Gang, GangOrder, Quantum, SharedRate};
pub use memory::{Beyond, MemoryOrder, MemoryPlan, MemoryTerm, NoMore, Share};
pub use part::{ForeignGroup, PartOrder};
pub use reason::Reason;
pub use seat::{NodePart, Seat, SeatOrder};

use crate::negotiate::Negotiation;
use crate::rights::{Change, Refused, Trade};
use crate::time::Time;

/// An action with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step<A> {
    /// The decision or order.
    pub action: A,
    /// Its reason.
    pub reason: Reason,
}

/// The decisions and orders of one step, and when to take the next.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// When it was made.
    pub at: Time,
    /// When the next snapshot is due at the latest.
    pub next: Time,
    /// Units whose facts must be fresh in that snapshot: owners of lent CPUs. Facts of other units may be up
    /// to 100 ms old. If this is empty and `next` is far off, nothing can happen that needs a quick answer.
    pub watch: Vec<UnitId>,
    /// Which unit holds what.
    pub decisions: Decisions,
    /// What the backend must do.
    pub orders: Orders,
}

/// Which unit holds what, by resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Decisions {
    /// Requested changes of rights, each made or refused.
    pub rights: Vec<RightsChange>,
    /// Results of offers to exchange tickets.
    pub trade: Vec<Trade>,
    /// Exchanges that the negotiator tried, kept or undid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negotiated: Vec<Negotiation>,
    /// CPUs.
    pub cpu: CpuPlan,
    /// Threads of jobs whose pool changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<Step<Seat>>,
    /// The gangs chosen at the start of a quantum or for CPUs that fell free; `None`: no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Quantum>,
    /// The memory bus; `None` if no quantum ended, or without measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusPlan>,
    /// Memory; `None` if it was not observed: the previous decisions stay in force.
    pub memory: Option<MemoryPlan>,
    /// Disks.
    pub disk: DiskPlan,
    /// All foreign groups in which units are held; `None`: no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_groups: Option<Vec<ForeignGroup>>,
}

/// A requested change of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RightsChange {
    /// The request.
    pub change: Change,
    /// Why it was refused; `None`: it was made.
    pub refused: Option<Refused>,
}

/// Decisions about CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuPlan {
    /// Each unit's entitlement while this plan is in force, in millionths of a CPU, sub-units included; one
    /// element per unit of the contract. `shared` has the part to which no unit is entitled, so that the top
    /// level sums to the machine's CPUs.
    pub entitled: Vec<u64>,
    /// Changes of owners and loans, in order.
    pub steps: Vec<Step<CpuDecision>>,
    /// Remembered net lending by unit, in nanoseconds of a CPU; negative: net borrowing. Empty if nothing was
    /// lent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<i64>,
}

/// Decisions about disks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskPlan {
    /// The observed disks. Orders about other disks are void.
    pub disks: Vec<String>,
    /// The entitlement of each unit's own processes to every disk, in millionths of the disk's throughput.
    /// `shared` has the part to which no unit is entitled. Empty if no disk was observed.
    pub entitled: Vec<u64>,
    /// Remembered net lending by unit, over all disks, in bytes; negative: net borrowing. Empty if nothing
    /// was lent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<i64>,
}

/// Orders for the backend, by resource, each list in the order of execution.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Orders {
    /// CPUs.
    pub cpu: Vec<Step<CpuOrder>>,
    /// Seats of jobs' threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<Step<SeatOrder>>,
    /// Gangs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gangs: Vec<Step<GangOrder>>,
    /// The memory bus.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bus: Vec<Step<BusOrder>>,
    /// Memory.
    pub memory: Vec<Step<MemoryOrder>>,
    /// Disks.
    pub disk: Vec<Step<DiskOrder>>,
    /// For units that are held in several control groups, the part of each control group in the orders above.
    /// Carried out last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Step<PartOrder>>,
}

impl Orders {
    /// Orders for CPUs only.
    #[must_use]
    pub fn of_cpus(because: Reason, actions: impl IntoIterator<Item = CpuOrder>) -> Orders {
        Orders { cpu: with_reason(because, actions), ..Orders::default() }
    }

    /// Orders for memory only.
    #[must_use]
    pub fn of_memory(because: Reason, actions: impl IntoIterator<Item = MemoryOrder>) -> Orders {
        Orders { memory: with_reason(because, actions), ..Orders::default() }
    }

    /// Orders for disks only.
    #[must_use]
    pub fn of_disks(because: Reason, actions: impl IntoIterator<Item = DiskOrder>) -> Orders {
        Orders { disk: with_reason(because, actions), ..Orders::default() }
    }
}

/// Steps that all have the same reason.
fn with_reason<A>(reason: Reason, actions: impl IntoIterator<Item = A>) -> Vec<Step<A>> {
    actions.into_iter().map(|action| Step { action, reason }).collect()
}

impl Plan {
    /// The number of orders, and of decisions that change something.
    pub fn steps(&self) -> usize {
        let Orders { cpu, seats, gangs, bus, memory, disk, parts } = &self.orders;
        let decided = self.decisions.cpu.steps.len() + self.decisions.seats.len();
        decided + cpu.len() + seats.len() + gangs.len() + bus.len() + memory.len() + disk.len() + parts.len()
    }
}
