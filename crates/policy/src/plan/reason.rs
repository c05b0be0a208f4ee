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
    /// The unit's turn on a shared CPU ended, and the unit holds no other CPU.
    TurnOver,
    /// The contract now forms the machine's pools in another way.
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
    /// The owner left the CPU idle for this long, while the borrower had work. The borrower comes first,
    /// since it lent more than it borrowed before.
    OwnerIdleToGiver {
        /// Nanoseconds.
        idle_ns: u64,
        /// The borrower's net lending, in nanoseconds of a CPU.
        credit_ns: u64,
    },
    /// The unit's credit changed: past lending and borrowing is remembered for a time.
    Remembered,
    /// The owner wants more CPUs than it has not lent.
    OwnerWants {
        /// The owner's threads that want a CPU.
        runnable: u32,
        /// The owner's CPUs that are not lent.
        kept: u32,
    },
    /// The borrower no longer needs the CPU.
    BorrowerIdle,
    /// Another unit with a larger claim waits for the CPU.
    LargerClaim {
        /// The other unit.
        of: UnitId,
    },
    /// No pool that the thread's unit may use has a free seat.
    NoSeatFree,
    /// The thread ended, or left its job.
    ThreadGone,
    /// The thread has not wanted a CPU for long.
    Rests,
    /// The thread is the first of its job: the contract's placement chose the pool.
    FirstOfItsJob {
        /// The placement.
        placement: Placement,
        /// Free CPUs of the pool.
        free: u32,
    },
    /// Other threads of the thread's job are in that pool.
    BesideItsJob {
        /// The number of these threads.
        threads: u32,
    },
    /// The pools of the thread's job are full: the contract's placement chose another pool.
    PoolsOfItsJobFull {
        /// The placement.
        placement: Placement,
        /// Free CPUs of the pool.
        free: u32,
    },
    /// The thread moved to a pool with more threads of its job, or made room for a thread that did.
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
    /// The gang's use of the shared resource per thread is nearest to the amount left per CPU.
    Fittest {
        /// The shared resource.
        of: GangsShare,
        /// The amount left per CPU, in the measure of [`super::SharedRate`]; negative: overcommitted.
        left: i64,
    },
    /// Beside the gangs chosen before, this gang leads to the most progress of the chosen and the waiting
    /// gangs.
    GetsOnBeside {
        /// The expected progress of the chosen gangs and the next ones, in permille of running alone.
        permille: u32,
    },
    /// CPUs were left, and no other gang fits.
    CpusLeft,
    /// Other gangs were chosen for this quantum.
    NotThisQuantum,
    /// Jobs are no longer gangs, or the gang is no longer a job.
    NoGang,
    /// The unit transferred more over the memory bus than its entitlement, and another unit got less for
    /// that.
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
    /// The CPUs that the unit owns and borrows changed.
    HoldsChanged,
    /// The unit's CPUs are time-shared in proportion to entitlements.
    Proportion {
        /// The unit's entitlement, in millionths of a CPU.
        micro_cpus: u64,
    },
    /// The contract limits the unit.
    Limit {
        /// Millionths of a CPU.
        micro_cpus: u64,
    },
    /// The contract forbids the unit to borrow.
    MayNotBorrow,
    /// The contract limits how much may be lent or borrowed.
    LoanLimit,
    /// The unit has no processes any more.
    NobodyThere,
    /// The unit owns or borrows a CPU again.
    HoldsAgain,
    /// The CPU no longer exists.
    CpuGone,
    /// The unit gets its share of a disk.
    DiskPart {
        /// Millionths of the transfers.
        part: u64,
    },
    /// The unit was ahead of its share of a disk, and another unit waited for the disk.
    DiskWanted {
        /// The share of the unit that was ahead, in millionths.
        part: u64,
        /// The unit that waited.
        by: UnitId,
        /// The last sample in which the waiting unit did not wait, or had its share: the call-back's latency
        /// counts from here.
        #[serde(rename = "since_ns")]
        since: Time,
    },
    /// The unit's weight is corrected, since its measured part of the transfers differed from its share.
    DiskCorrected {
        /// The unit's share, in millionths.
        part: u64,
        /// The accumulated correction, in millionths of the share.
        by: u64,
    },
    /// The contract limits the unit on every disk.
    DiskLimit {
        /// Bytes per second.
        bytes_per_s: u64,
    },
    /// No other unit wants the disk.
    DiskFree,
    /// The unit transferred more than its rate had earned.
    DiskDebt {
        /// The debt, in bytes.
        bytes: u64,
    },
    /// The unit's debt is paid, or the unit has no rate or no processes any more.
    DiskDebtPaid,
    /// The unit's entitlement to memory.
    EntitledTo {
        /// Bytes.
        bytes: u64,
    },
    /// The unit lends memory that it does not need.
    Lends {
        /// Bytes.
        bytes: u64,
        /// The time within which all of the memory must be back, in nanoseconds. It depends on how long the
        /// memory was idle.
        within_ns: Time,
    },
    /// The unit is short of memory that it lent, and gets the memory back.
    CallsBack {
        /// Bytes.
        bytes: u64,
    },
    /// The unit is short of memory, and borrows memory that others do not need.
    Borrows {
        /// Bytes.
        bytes: u64,
    },
    /// The unit is short of memory, and borrows as much as could be called back in time.
    BorrowsInTime {
        /// Bytes.
        bytes: u64,
    },
    /// The unit is short of memory, and borrows before others, since it lent more than it borrowed before.
    BorrowsFirst {
        /// Bytes.
        bytes: u64,
    },
    /// The unit returns memory that it borrowed.
    GivesBack {
        /// Bytes.
        bytes: u64,
    },
    /// The unit is short of memory, and at a limit of the contract.
    AtLimit,
    /// The unit is short of memory, and no unit has memory to lend.
    NothingIdle,
    /// The unit's allowance sank below its use.
    Owes {
        /// The unit's allowance, in bytes.
        allowed: u64,
    },
    /// A trial measures how fast memory can be reclaimed from the unit, before more is lent to it.
    OnTrial,
    /// Memory is short, and the unit exceeds its entitlement by memory that only killing processes would
    /// free.
    Beyond {
        /// The excess, in bytes.
        bytes: u64,
    },
    /// Memory is no longer short, or the unit is within its entitlement.
    Enough,
}
