//! The ledger: what each unit was promised, got, lent, borrowed and waited for.
//!
//! It reads plans and snapshots and nothing else. Its sums are conserved; it says so whenever one is not, and goes on.

mod bus;
mod disk;
mod gangs;
mod imbalance;
mod jobs;
mod ledger;
mod memory;
mod spread;
mod trade;

pub use bus::BusAccount;
pub use disk::DiskAccount;
pub use gangs::{Gang, GangAccount, GangState, Known};
pub use imbalance::Imbalance;
pub use jobs::Job;
pub use ledger::Ledger;
pub use memory::{CallBacks, MemoryAccount, MemoryTotals, Return};
pub use trade::{Cause, Done, Exchange, Lent, Negotiated, Side, Trial};

use std::collections::BTreeMap;

use commonhold_contract::Scheme;
use commonhold_policy::GroupBounds;

/// The CPU account of one unit since the ledger was opened. Times are CPU time in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Account {
    /// The unit's path: `physics/night-batch`.
    pub unit: String,
    /// Member processes now, sub-units not counted.
    pub processes: u32,
    /// Of these, the processes that stay in control groups of other programs, and are not held by groups.
    #[serde(default)]
    pub outside: u32,
    /// What it is entitled to now, in millionths of a CPU, sub-units included.
    pub entitled_micro_cpus: u64,
    /// CPUs it owns now.
    pub owned: commonhold_machine::CpuSet,
    /// CPUs of its own that it lends now.
    pub lending: commonhold_machine::CpuSet,
    /// CPUs of others that it borrows now.
    pub borrowing: commonhold_machine::CpuSet,
    /// Its share over the last interval between snapshots, in millionths of a CPU.
    pub using_micro_cpus: u64,
    /// What it was entitled to, over time.
    pub entitled_ns: u64,
    /// What it used.
    pub used_ns: u64,
    /// Home-CPU time it lent.
    pub lent_ns: u64,
    /// CPU time it held on loan.
    pub borrowed_ns: u64,
    /// Loans it made by plans; those made at every switch are not counted one by one.
    pub loans: u64,
    /// Loans it called back.
    pub called_back: u64,
    /// The longest call-back, from when it was last seen not to want the CPU to the end of the loan.
    pub call_back_max_ns: u64,
    /// All call-backs together, for the mean.
    pub call_back_sum_ns: u64,
    /// Time its threads were runnable without a CPU.
    pub waited_ns: u64,
    /// The part of `waited_ns` during which a home CPU of its own was on loan, by borrower.
    pub waited_on_ns: BTreeMap<String, u64>,
    /// Disk bandwidth, where it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskAccount>,
    /// The memory bus, of outermost units, where what they transfer is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusAccount>,
    /// Its gangs, if it has or had some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gangs: Option<GangAccount>,
    /// Memory, where it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryAccount>,
    /// What is remembered of its loans, if it lent or borrowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits: Option<Credits>,
}

/// What a unit lent beyond what it was lent, as far as the policy remembers it ([`commonhold_policy::credits`]). What is below
/// 0 is the other way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Credits {
    /// Nanoseconds of a CPU.
    pub cpu_ns: i64,
    /// Bytes of memory times seconds.
    pub memory_byte_s: i64,
    /// Bytes transferred.
    pub disk_bytes: i64,
}

/// Everything the ledger knows, for `status` and reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Statement {
    /// The scheme in force.
    pub scheme: Scheme,
    /// CPUs of the machine.
    pub cpus: u32,
    /// How long the ledger has been open, in nanoseconds.
    pub elapsed_ns: u64,
    /// Capacity over that time: `cpus` × `elapsed_ns`.
    pub capacity_ns: u64,
    /// Idle CPU time.
    pub idle_ns: u64,
    /// CPU time used by the common parts, by processes outside every unit, and by what was too short to be seen.
    pub common_ns: u64,
    /// The machine's memory, where it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryTotals>,
    /// Units that hold tickets, in the contract's order; a unit's figures include those of its sub-units except where the
    /// field says otherwise.
    pub accounts: Vec<Account>,
    /// Exchanges of tickets: those in force and the last hundred that ended, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchange>,
    /// What trials of exchanges cost units that negotiate, and brought them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negotiated: Vec<Negotiated>,
    /// Jobs that are there, of units that have some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<Job>,
    /// Control groups of other programs that units are held in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
}

/// A control group of another program that a unit is held in.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Place {
    /// Its number, as plans have it.
    pub place: u32,
    /// The unit.
    pub unit: String,
    /// The control group, as /proc shows its path.
    pub group: String,
    /// What its manager, or an administrator, has set there: what holds is within it.
    #[serde(default, skip_serializing_if = "GroupBounds::is_none")]
    pub set: GroupBounds,
}

impl Statement {
    /// The account of a unit.
    pub fn account(&self, path: &str) -> Option<&Account> {
        self.accounts.iter().find(|account| account.unit == path)
    }
}
