//! The report of a sum in the ledger that should be conserved and is not.

use commonhold_contract::UnitId;

/// A sum of the ledger that is not conserved, with both sides. On a live machine it is reported as a problem;
/// a test or a simulation fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Imbalance {
    /// The CPU time lent by plans differs from the CPU time borrowed, in nanoseconds.
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
        /// Its owner, if any.
        owner: Option<UnitId>,
    },
    /// The disk transfers below units' parts (lent) differ from those beyond them (borrowed), in bytes.
    #[error("the accounts of disks do not balance: {lent} bytes are lent and {borrowed} bytes borrowed")]
    Disk {
        /// Lent by all units.
        lent: u64,
        /// Borrowed by all units.
        borrowed: u64,
    },
    /// The memory bus transfers below units' entitlements (lent) and those without a lender together differ
    /// from those beyond entitlements (borrowed), in bytes.
    #[error(
        "the accounts of the memory bus do not balance: {lent} bytes are lent, {lenderless} bytes have no lender, and \
         {borrowed} bytes are borrowed"
    )]
    Bus {
        /// Lent by all units.
        lent: u64,
        /// Borrowed without a lender.
        lenderless: u64,
        /// Borrowed by all units.
        borrowed: u64,
    },
    /// More memory is lent than borrowed, in bytes. The reverse is allowed: units may borrow memory that no
    /// unit is entitled to.
    #[error(
        "the accounts of memory do not balance: {lent} bytes are lent and only {borrowed} bytes borrowed"
    )]
    Memory {
        /// Lent by all units.
        lent: u64,
        /// Borrowed by all units.
        borrowed: u64,
    },
    /// Units are allowed more memory than is divided, in bytes.
    #[error("the accounts of memory do not balance: {allowed} bytes are allowed of {divided} bytes")]
    Allowed {
        /// Allowed to all units.
        allowed: u64,
        /// Divided among units.
        divided: u64,
    },
    /// An exchange of tickets began twice, or ended without being in force in this form.
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
    /// The name of the sum that does not balance, without numbers. The numbers of a lasting imbalance change,
    /// but its name does not, so that a caller can report it once.
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
