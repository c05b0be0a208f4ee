//! CPUs in a plan: ownership and loans, and orders.

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A change of a CPU's owner or borrower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum CpuDecision {
    /// The unit becomes the CPU's owner, for a turn or as its home.
    Own {
        /// The CPU.
        cpu: u32,
        /// The new owner.
        unit: UnitId,
    },
    /// The CPU loses its owner: the owner left, or another owner follows in the same plan.
    Disown {
        /// The CPU.
        cpu: u32,
        /// The previous owner.
        unit: UnitId,
    },
    /// An idle CPU is lent. The lender stays its owner, and may go on using it.
    Lend {
        /// The CPU.
        cpu: u32,
        /// Its owner.
        lender: UnitId,
        /// The unit that may also use it from now on.
        borrower: UnitId,
    },
    /// The owner wants its CPU back: the loan ends now.
    CallBack {
        /// The CPU.
        cpu: u32,
        /// Its owner.
        lender: UnitId,
        /// The borrower.
        borrower: UnitId,
        /// The last sample in which the lender did not want the CPU. The call-back's latency counts from
        /// here, so that the reported value is an upper bound.
        since: Time,
    },
    /// The loan ends: the borrower no longer needs the CPU, or another unit needs it more.
    Return {
        /// The CPU.
        cpu: u32,
        /// Its owner.
        lender: UnitId,
        /// The borrower.
        borrower: UnitId,
    },
}

/// An order about CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum CpuOrder {
    /// The unit's processes run on these CPUs only. `None`: on any CPU.
    Confine {
        /// The unit, and its sub-units that have no such order themselves.
        unit: UnitId,
        /// The CPUs; never an empty set.
        cpus: Option<CpuSet>,
    },
    /// The unit's weight against its siblings, 1 to 10,000.
    Weigh {
        /// The unit.
        unit: UnitId,
        /// In the unit of cgroup v2's `cpu.weight`, default 100.
        weight: u32,
    },
    /// The unit's credit ([`crate::credits`]), for a scheduler that lends at every switch: the unit counts as
    /// having borrowed that much less. Not ordered where plans make the loans.
    Credit {
        /// An outermost unit.
        unit: UnitId,
        /// Net lending in milliseconds of a CPU; negative: net borrowing.
        credit_ms: i32,
    },
    /// The unit's maximum CPU use. `None`: no cap.
    Cap {
        /// The unit.
        unit: UnitId,
        /// Millionths of a CPU.
        micro_cpus: Option<u64>,
    },
    /// Stops or continues all of the unit's processes.
    Gate {
        /// The unit.
        unit: UnitId,
        /// Whether they run.
        open: bool,
    },
}

impl CpuDecision {
    /// The unit that the decision concerns: the owner, or the borrower of a loan.
    pub fn unit(&self) -> UnitId {
        match *self {
            CpuDecision::Own { unit, .. } | CpuDecision::Disown { unit, .. } => unit,
            CpuDecision::Lend { borrower, .. }
            | CpuDecision::CallBack { borrower, .. }
            | CpuDecision::Return { borrower, .. } => borrower,
        }
    }
}

impl CpuOrder {
    /// The unit that the order concerns.
    pub fn unit(&self) -> UnitId {
        match *self {
            CpuOrder::Confine { unit, .. }
            | CpuOrder::Weigh { unit, .. }
            | CpuOrder::Credit { unit, .. }
            | CpuOrder::Cap { unit, .. }
            | CpuOrder::Gate { unit, .. } => unit,
        }
    }
}
