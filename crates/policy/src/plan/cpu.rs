//! CPUs in a plan: which unit holds which, and what a backend is to do for that.

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Which unit holds which CPU from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum CpuDecision {
    /// The unit becomes the CPU's owner: it is one of its home CPUs.
    Own {
        /// The CPU.
        cpu: u32,
        /// Its owner from now on.
        unit: UnitId,
    },
    /// The CPU has no owner any more (its owner left, or its ownership moves on).
    Disown {
        /// The CPU.
        cpu: u32,
        /// Its owner so far.
        unit: UnitId,
    },
    /// An idle home CPU is lent. The lender stays its owner and may go on using it.
    Lend {
        /// The CPU.
        cpu: u32,
        /// Its owner.
        lender: UnitId,
        /// The unit that may use it from now on.
        borrower: UnitId,
    },
    /// The owner wants its CPU back: the loan ends now.
    CallBack {
        /// The CPU.
        cpu: u32,
        /// Its owner.
        lender: UnitId,
        /// The unit that used it.
        borrower: UnitId,
        /// The last moment at which the lender was seen not to want the CPU: the call-back's latency counts from here,
        /// so that what is reported is an upper bound.
        since: Time,
    },
    /// The borrower needs the CPU no longer, or another needs it more: the loan ends.
    Return {
        /// The CPU.
        cpu: u32,
        /// Its owner.
        lender: UnitId,
        /// The unit that used it.
        borrower: UnitId,
    },
}

/// What a backend is to do about CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum CpuOrder {
    /// The unit's processes run on these CPUs and on no others. `None`: wherever the kernel likes.
    Confine {
        /// The unit, and those of its sub-units that have no order of this kind of their own.
        unit: UnitId,
        /// The CPUs; never an empty set.
        cpus: Option<CpuSet>,
    },
    /// The unit's weight against its siblings, 1 to 10,000.
    Weigh {
        /// The unit.
        unit: UnitId,
        /// cgroup v2's measure, where 100 is the usual.
        weight: u32,
    },
    /// A scheduler that makes loans at every switch takes the unit for one that was lent so much less, among those that
    /// borrow: see [`crate::credits`]. Where plans make the loans, nobody is told.
    Credit {
        /// An outermost unit.
        unit: UnitId,
        /// Milliseconds of a CPU that it lent beyond what it was lent; below 0: the other way.
        credit_ms: i32,
    },
    /// The unit uses no more CPU than this. `None`: no cap.
    Cap {
        /// The unit.
        unit: UnitId,
        /// Millionths of a CPU.
        micro_cpus: Option<u64>,
    },
    /// The unit's processes run (open) or are stopped (closed).
    Gate {
        /// The unit.
        unit: UnitId,
        /// Whether they run.
        open: bool,
    },
}

impl CpuDecision {
    /// The unit that it is about: the owner, or the borrower of a loan.
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
    /// The unit that it is about.
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
