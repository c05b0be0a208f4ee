//! The ledger: the amounts that each unit was promised, got, lent, borrowed and waited for.
//!
//! The only inputs are plans and snapshots. Sums are conserved, such as lent and borrowed CPU time. A sum
//! that does not balance is reported as an [`Imbalance`], and the ledger continues.

mod bus;
mod disk;
mod gangs;
mod imbalance;
mod jobs;
pub mod latencies;
mod ledger;
mod loans;
mod memory;
mod spread;
mod trade;
mod verdict;
mod waits;

pub use bus::BusAccount;
pub use disk::DiskAccount;
pub use gangs::{Gang, GangAccount, GangState, Known};
pub use imbalance::Imbalance;
pub use jobs::Job;
pub use ledger::Ledger;
pub use memory::{CallBacks, MemoryAccount, MemoryIntegrals, MemoryTotals, Return};
pub use trade::{Cause, Done, Exchange, Lent, Negotiated, Side, Trial};
pub use verdict::{Finding, FindingReason, Verdict, WINDOW_NS};
pub use waits::{Wait, WaitCause};

use std::collections::BTreeMap;

use commonhold_contract::Scheme;
use commonhold_policy::GroupBounds;

/// The account of one unit since the ledger was opened. Times are CPU time in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Account {
    /// The unit's path: `physics/night-batch`.
    pub unit: String,
    /// Member processes now, sub-units excluded.
    pub processes: u32,
    /// The number of these processes that stay in other programs' control groups, outside the unit's limits.
    #[serde(default)]
    pub outside: u32,
    /// The unit's entitlement now, in millionths of a CPU, sub-units included.
    pub entitled_micro_cpus: u64,
    /// CPUs that the unit owns now.
    pub owned: commonhold_machine::CpuSet,
    /// The unit's own CPUs that it lends now.
    pub lending: commonhold_machine::CpuSet,
    /// Other units' CPUs that the unit borrows now.
    pub borrowing: commonhold_machine::CpuSet,
    /// The unit's CPU use over the last interval between snapshots, in millionths of a CPU.
    pub using_micro_cpus: u64,
    /// The unit's entitlement, integrated over time.
    pub entitled_ns: u64,
    /// CPU time used.
    pub used_ns: u64,
    /// Time of home CPUs that was lent.
    pub lent_ns: u64,
    /// Time for which the unit held CPUs on loan.
    pub borrowed_ns: u64,
    /// The number of loans made by plans; loans made at switches are not counted individually.
    pub loans: u64,
    /// The number of loans that the unit called back.
    pub called_back: u64,
    /// The longest call-back, from the last sample at which the unit did not want the CPU to the end of the
    /// loan.
    pub call_back_max_ns: u64,
    /// The sum of all call-backs' durations, for the mean.
    pub call_back_sum_ns: u64,
    /// The number of call-backs that took longer than promised. A scheduler that makes the loans may not
    /// count all of them: see [`SwitchLoans::late`](commonhold_policy::SwitchLoans::late).
    #[serde(default)]
    pub call_backs_late: u64,
    /// Time for which the unit's threads were runnable without a CPU.
    pub waited_ns: u64,
    /// The part of `waited_ns` during which a home CPU of the unit was on loan, by borrower.
    pub waited_on_ns: BTreeMap<String, u64>,
    /// Disk bandwidth, if it is controlled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskAccount>,
    /// The memory bus, of outermost units with known transfers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusAccount>,
    /// Its gangs, if it has or had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gangs: Option<GangAccount>,
    /// Memory, if it is controlled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryAccount>,
    /// Its waiting time by resource and cause, the causes of a resource in the order of their time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// The verdicts on its resources: CPUs, memory, disks, bus.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Its credits, if it lent or borrowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits: Option<Credits>,
}

/// A unit's credits ([`commonhold_policy::credits`]): the amount lent less the amount borrowed, with
/// exponential decay. Negative for a net borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Credits {
    /// Nanoseconds of a CPU.
    pub cpu_ns: i64,
    /// Bytes of memory times seconds.
    pub memory_byte_s: i64,
    /// Bytes transferred.
    pub disk_bytes: i64,
}

/// The state of the ledger, for `status` and reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Statement {
    /// The scheme in force.
    pub scheme: Scheme,
    /// The number of the machine's CPUs.
    pub cpus: u32,
    /// How long the ledger has been open, in nanoseconds.
    pub elapsed_ns: u64,
    /// Capacity over that time: `cpus` × `elapsed_ns`.
    pub capacity_ns: u64,
    /// Idle CPU time.
    pub idle_ns: u64,
    /// CPU time of the common parts, of processes outside all units, and of processes too short-lived to be
    /// observed.
    pub common_ns: u64,
    /// The machine's memory, if it is controlled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryTotals>,
    /// Units that hold tickets, in the contract's order. Figures include sub-units unless the field states
    /// otherwise.
    pub accounts: Vec<Account>,
    /// Loans of CPUs in the last second, the largest first, at most [`LOANS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loans: Vec<CpuLoan>,
    /// Exchanges of tickets: those in force and the last hundred that ended, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchange>,
    /// Costs and gains from negotiated exchanges, by unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negotiated: Vec<Negotiated>,
    /// Existing jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<Job>,
    /// Other programs' control groups in which units' limits apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
}

/// The most loans in a statement. There may be as many as the square of the number of units.
pub const LOANS_MAX: usize = 64;

/// CPUs on loan from one unit to another, sub-units excluded. Memory and disk transfers that units do not use
/// are lent to all that want more together, so that they have no pairs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CpuLoan {
    /// The path of the unit that owns the CPUs.
    pub lender: String,
    /// The path of the unit that uses them.
    pub borrower: String,
    /// Millionths of a CPU, on average over the last second.
    pub micro_cpus: u64,
}

/// Another program's control group in which a unit's limits apply.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Place {
    /// The number of the control group in plans.
    pub place: u32,
    /// The unit.
    pub unit: String,
    /// The path of the control group, as in /proc.
    pub group: String,
    /// The bounds set there by its manager or an administrator; the unit's limits apply within these.
    #[serde(default, skip_serializing_if = "GroupBounds::is_none")]
    pub set: GroupBounds,
}

impl Statement {
    /// The account of a unit.
    pub fn account(&self, path: &str) -> Option<&Account> {
        self.accounts.iter().find(|account| account.unit == path)
    }
}
