//! A sum that does not come out.

use commonhold_contract::UnitId;

/// A sum of the ledger that is not conserved, with both sides. On a live machine it is a problem to be told; a test and
/// a simulated machine fail by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Imbalance {
    /// CPU time on loan by plans, in nanoseconds.
    #[error("the accounts of CPU time do not balance: {lent} ns are lent and {borrowed} ns borrowed")]
    CpuTime {
        /// Lent by all units.
        lent: u64,
        /// Borrowed by all units.
        borrowed: u64,
    },
    /// A CPU is on loan from a unit that does not own it.
    #[error(
        "the accounts of CPUs do not balance: CPU {cpu} is on loan from unit number {}, and its owner is {}",
        .lender.0, owner_text(*.owner)
    )]
    Stranger {
        /// The CPU.
        cpu: u32,
        /// The unit that lent it.
        lender: UnitId,
        /// The unit that owns it, if any does.
        owner: Option<UnitId>,
    },
    /// What disks transferred beyond and below units' parts, in bytes.
    #[error("the accounts of disks do not balance: {lent} bytes are lent and {borrowed} bytes borrowed")]
    Disk {
        /// Lent by all units.
        lent: u64,
        /// Borrowed by all units.
        borrowed: u64,
    },
    /// What units transferred over the memory bus beyond and below what they are entitled to, in bytes.
    #[error(
        "the accounts of the memory bus do not balance: {lent} bytes are lent, {nobodys} bytes are nobody's, and {borrowed} \
         bytes are borrowed"
    )]
    Bus {
        /// Lent by all units.
        lent: u64,
        /// Borrowed of what no unit left.
        nobodys: u64,
        /// Borrowed by all units.
        borrowed: u64,
    },
    /// Memory on loan, in bytes: it may be borrowed of what no unit holds, and not be lent to no unit.
    #[error(
        "the accounts of memory do not balance: {lent} bytes are lent and only {borrowed} bytes borrowed"
    )]
    Memory {
        /// Lent by all units.
        lent: u64,
        /// Borrowed by all units.
        borrowed: u64,
    },
    /// Units may use more memory than there is to divide, in bytes.
    #[error("the accounts of memory do not balance: {allowed} bytes are allowed of {divided} bytes")]
    Allowed {
        /// By all units.
        allowed: u64,
        /// What is divided.
        divided: u64,
    },
    /// An exchange of tickets began twice, or ended without having been in force as it was.
    #[error(
        "the accounts of exchanges do not balance: number {number} began or ended twice, or changed meanwhile"
    )]
    Exchange {
        /// Its number.
        number: u64,
    },
}

fn owner_text(owner: Option<UnitId>) -> String {
    owner.map_or_else(|| "no unit".to_owned(), |unit| format!("unit number {}", unit.0))
}

impl Imbalance {
    /// What does not balance, without the numbers: what is told once, although the numbers go on changing.
    pub fn kind(&self) -> &'static str {
        match self {
            Imbalance::CpuTime { .. } => "CPU time",
            Imbalance::Stranger { .. } => "CPUs",
            Imbalance::Disk { .. } => "disks",
            Imbalance::Bus { .. } => "the memory bus",
            Imbalance::Memory { .. } => "memory on loan",
            Imbalance::Allowed { .. } => "memory that is allowed",
            Imbalance::Exchange { .. } => "exchanges",
        }
    }
}
