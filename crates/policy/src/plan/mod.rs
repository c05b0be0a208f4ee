//! The plan: what was decided about each resource, and what a backend is to do for it, each step with its reason.
//!
//! *Decisions* say which unit holds what. A backend may ignore them; the ledger and the plan checker do not. *Orders*
//! follow from the decisions. A backend carries them out in the plan's order, without any choice of its own.
//!
//! Orders are differences. What an earlier plan ordered stays in force until another order on the same unit replaces
//! it.

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
pub use part::{PartOrder, Place};
pub use reason::Reason;
pub use seat::{NodePart, Seat, SeatOrder};

use crate::negotiate::Negotiation;
use crate::rights::{Change, Refused, Trade};
use crate::time::Time;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step<A> {
    /// What.
    pub action: A,
    /// Why.
    pub reason: Reason,
}

/// What to do now, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The moment it was made for.
    pub at: Time,
    /// When the next snapshot is wanted at the latest.
    pub next: Time,
    /// Units whose facts must be fresh in that snapshot: owners of lent CPUs. Of all others the backend may hand in facts
    /// up to 100 ms old. Empty with `next` far off means that nothing can happen that would need a quick answer.
    pub watch: Vec<UnitId>,
    /// Which unit holds what.
    pub decisions: Decisions,
    /// What a backend is to do.
    pub orders: Orders,
}

/// Which unit holds what, by resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Decisions {
    /// Changes of rights that were asked for, each made or refused.
    pub rights: Vec<RightsChange>,
    /// What came of offers to exchange tickets.
    pub trade: Vec<Trade>,
    /// What the negotiator tried, kept and undid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negotiated: Vec<Negotiation>,
    /// CPUs.
    pub cpu: CpuPlan,
    /// Threads of jobs whose pool changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<Step<Seat>>,
    /// Gangs that were chosen, where a quantum begins or CPUs were left; `None`: those that run go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Quantum>,
    /// The memory bus; `None` where no quantum ended, or nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusPlan>,
    /// Memory; `None` where it was not observed, and what is in force stays.
    pub memory: Option<MemoryPlan>,
    /// Disks.
    pub disk: DiskPlan,
    /// All places of units, where they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Vec<Place>>,
}

/// A change of rights that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RightsChange {
    /// What was asked for.
    pub change: Change,
    /// Why it was not made; `None`: it was.
    pub refused: Option<Refused>,
}

/// What was decided about CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuPlan {
    /// What each unit of the contract is entitled to while this plan is in force, in millionths of a CPU, sub-units
    /// included; one element per unit. What no unit is entitled to is the `shared` unit's: the top level sums to the
    /// machine's CPUs.
    pub entitled: Vec<u64>,
    /// Owners and loans that change, in order.
    pub steps: Vec<Step<CpuDecision>>,
    /// What each unit lent beyond what it was lent, as far as it is remembered, in nanoseconds of a CPU; what is below 0 is
    /// the other way. By unit; none where nothing was lent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<i64>,
}

/// What was decided about disks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskPlan {
    /// The disks that were observed. What was ordered about others has ended with them.
    pub disks: Vec<String>,
    /// What each unit's own processes are entitled to of what each disk transfers, in millionths; what no unit is
    /// entitled to is the `shared` unit's. Empty where no disk was observed.
    pub entitled: Vec<u64>,
    /// What each unit lent beyond what it was lent, as far as it is remembered, in bytes, of all disks; what is below 0 is the
    /// other way. By unit; none where nothing was lent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<i64>,
}

/// What a backend is to do, by resource, each list in the order in which it is to be carried out.
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
    /// What of these holds in each control group of a unit that has several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Step<PartOrder>>,
}

impl Orders {
    /// Orders for CPUs alone.
    #[must_use]
    pub fn of_cpus(because: Reason, actions: impl IntoIterator<Item = CpuOrder>) -> Orders {
        Orders { cpu: because_of(because, actions), ..Orders::default() }
    }

    /// Orders for memory alone.
    #[must_use]
    pub fn of_memory(because: Reason, actions: impl IntoIterator<Item = MemoryOrder>) -> Orders {
        Orders { memory: because_of(because, actions), ..Orders::default() }
    }

    /// Orders for disks alone.
    #[must_use]
    pub fn of_disks(because: Reason, actions: impl IntoIterator<Item = DiskOrder>) -> Orders {
        Orders { disk: because_of(because, actions), ..Orders::default() }
    }
}

fn because_of<A>(reason: Reason, actions: impl IntoIterator<Item = A>) -> Vec<Step<A>> {
    actions.into_iter().map(|action| Step { action, reason }).collect()
}

impl Plan {
    /// Decisions that change something, and orders.
    pub fn steps(&self) -> usize {
        let Orders { cpu, seats, gangs, bus, memory, disk, parts } = &self.orders;
        let decided = self.decisions.cpu.steps.len() + self.decisions.seats.len();
        decided + cpu.len() + seats.len() + gangs.len() + bus.len() + memory.len() + disk.len() + parts.len()
    }
}
