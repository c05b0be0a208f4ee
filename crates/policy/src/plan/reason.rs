//! Why a step is taken: data that the reports turn into sentences.

use commonhold_contract::{GangsShare, Placement, Scheme, UnitId};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The reason for a decision or an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// The scheme asks for no isolation.
    Scheme {
        /// The scheme.
        scheme: Scheme,
    },
    /// The unit's entitlement covers whole CPUs.
    Entitled {
        /// Millionths of a CPU.
        micro_cpus: u64,
    },
    /// The unit's turn on a CPU that several units hold in part.
    Turn {
        /// Its fraction of such CPUs, in millionths.
        part: u64,
    },
    /// Its turn on a shared CPU ended, and it holds no other.
    TurnOver,
    /// The contract forms the machine's pools in another way.
    PoolsChanged,
    /// A unit came or went, or its tickets changed.
    EntitlementChanged {
        /// Before, in millionths of a CPU.
        from: u64,
        /// Now, in millionths of a CPU.
        to: u64,
    },
    /// The owner left the CPU idle for this long, while the borrower had work.
    OwnerIdle {
        /// Nanoseconds.
        idle_ns: u64,
    },
    /// The owner left the CPU idle for this long, while the borrower had work and had lent more than it borrowed before.
    OwnerIdleToGiver {
        /// Nanoseconds.
        idle_ns: u64,
        /// Its net lending, in nanoseconds of a CPU.
        credit_ns: u64,
    },
    /// Past lending and borrowing is remembered for a time.
    Remembered,
    /// The owner wants more CPUs than it kept.
    OwnerWants {
        /// Threads that want a CPU.
        runnable: u32,
        /// Its CPUs that were not lent.
        kept: u32,
    },
    /// The borrower no longer needs it.
    BorrowerIdle,
    /// A unit with a larger claim waits.
    LargerClaim {
        /// The unit.
        of: UnitId,
    },
    /// No pool that the thread's unit may use has a free seat.
    NoSeatFree,
    /// The thread ended, or left its job.
    ThreadGone,
    /// The thread has not wanted a CPU for long.
    Rests,
    /// The first thread of its job: the contract's placement chose the pool.
    FirstOfItsJob {
        /// The placement.
        placement: Placement,
        /// Free CPUs of the pool.
        free: u32,
    },
    /// Other threads of its job are in that pool.
    BesideItsJob {
        /// Their number.
        threads: u32,
    },
    /// Its job's pools are full: the contract's placement chose another.
    PoolsOfItsJobFull {
        /// The placement.
        placement: Placement,
        /// Free CPUs of the pool.
        free: u32,
    },
    /// It was moved to where more of its job is, or made room for a thread that was.
    Together {
        /// The previous pool.
        from: u32,
        /// Threads of its job in the new pool.
        threads: u32,
    },
    /// Pages of the job are in other nodes than its threads.
    PagesApart {
        /// Misplaced bytes.
        bytes: u64,
    },
    /// The gang waited longest of its unit's gangs.
    HeadOfList {
        /// Quanta that it waited.
        waited: u32,
    },
    /// Its use of the shared resource per thread is nearest to what was left per CPU.
    Fittest {
        /// The shared resource.
        of: GangsShare,
        /// What was left per CPU, in the unit of [`super::SharedRate`]; negative: over-committed.
        left: i64,
    },
    /// Together with the gangs chosen before, it leads to the most progress of these and the waiting ones.
    GetsOnBeside {
        /// The expected progress of the chosen gangs and the next ones, in permille of running alone.
        permille: u32,
    },
    /// CPUs were left, and no other gang fits.
    CpusLeft,
    /// Others were chosen for this quantum.
    NotThisQuantum,
    /// Jobs are no longer gangs, or this one is no longer a job.
    NoGang,
    /// The unit transferred more over the memory bus than its entitlement, and another unit got less for that.
    YieldsTheBus {
        /// The other unit.
        to: UnitId,
    },
    /// The unit transferred more over the memory bus than the contract permits.
    MostOfTheBus {
        /// The permitted rate, in bytes per second.
        #[serde(rename = "bytes_per_s")]
        most: u64,
    },
    /// No unit is owed anything of the memory bus.
    BusIsLeft,
    /// A unit's parts follow the use in its groups.
    FollowsUse,
    /// The CPUs that it owns and borrows changed.
    HoldsChanged,
    /// Time-shared in proportion to its entitlement.
    Proportion {
        /// Millionths of a CPU.
        micro_cpus: u64,
    },
    /// The contract limits it.
    Limit {
        /// Millionths of a CPU.
        micro_cpus: u64,
    },
    /// The contract forbids it to borrow.
    MayNotBorrow,
    /// The contract limits how much may be lent or borrowed.
    LoanLimit,
    /// It has no processes any more.
    NobodyThere,
    /// It owns or borrows a CPU again.
    HoldsAgain,
    /// The CPU is gone.
    CpuGone,
    /// Its share of a disk.
    DiskPart {
        /// Millionths of the transfers.
        part: u64,
    },
    /// It was ahead of its share of a disk, and another unit waited for it.
    DiskWanted {
        /// Its share, in millionths.
        part: u64,
        /// The unit that waited.
        by: UnitId,
        /// The last sample in which that unit did not wait, or had its share: the call-back's latency counts from here.
        #[serde(rename = "since_ns")]
        since: Time,
    },
    /// Its weight is corrected, since its measured part of the transfers was not its share.
    DiskCorrected {
        /// Its share, in millionths.
        part: u64,
        /// The accumulated correction, in millionths of the share.
        by: u64,
    },
    /// The contract limits it on every disk.
    DiskLimit {
        /// Bytes per second.
        bytes_per_s: u64,
    },
    /// No other unit wants the disk.
    DiskFree,
    /// It transferred more than its rate had earned.
    DiskDebt {
        /// The debt, in bytes.
        bytes: u64,
    },
    /// Its debt is paid, or it has no rate or no processes any more.
    DiskDebtPaid,
    /// The unit's entitlement to memory.
    EntitledTo {
        /// Bytes.
        bytes: u64,
    },
    /// It lends memory that it does not need.
    Lends {
        /// Bytes.
        bytes: u64,
        /// All of it must be back within this time, in nanoseconds, which depends on how long it was idle.
        within_ns: Time,
    },
    /// It is short of memory that it lent, and gets it back.
    CallsBack {
        /// Bytes.
        bytes: u64,
    },
    /// It is short of memory, and others do not need theirs.
    Borrows {
        /// Bytes.
        bytes: u64,
    },
    /// It is short of memory, and borrows as much as could be called back in time.
    BorrowsInTime {
        /// Bytes.
        bytes: u64,
    },
    /// It is short of memory, and borrows before others, since it lent more than it borrowed before.
    BorrowsFirst {
        /// Bytes.
        bytes: u64,
    },
    /// It returns memory that it borrowed.
    GivesBack {
        /// Bytes.
        bytes: u64,
    },
    /// It is short of memory, and at a limit of the contract.
    AtLimit,
    /// It is short of memory, and no unit has any to lend.
    NothingIdle,
    /// Its allowance sank below what it uses.
    Owes {
        /// Its allowance, in bytes.
        allowed: u64,
    },
    /// A trial measures how fast memory can be reclaimed from it, before more is lent to it.
    OnTrial,
    /// Memory is short, and the unit exceeds its entitlement by memory that only killing processes would free.
    Beyond {
        /// The excess, in bytes.
        bytes: u64,
    },
    /// Memory is no longer short, or the unit is within its entitlement.
    Enough,
}
