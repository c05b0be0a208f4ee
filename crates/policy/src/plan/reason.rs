//! Why a step is taken: data, which the reports put into words.

use commonhold_contract::{GangsShare, Placement, Scheme, UnitId};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Reason {
    /// The scheme asks for no isolation.
    Scheme(Scheme),
    /// The unit's entitlement, in millionths of a CPU, covers whole CPUs.
    Entitled {
        /// Millionths of a CPU.
        micro_cpus: u64,
    },
    /// It is the unit's turn on a CPU that several units hold in part.
    Turn {
        /// The part it holds of such CPUs, in millionths.
        part: u64,
    },
    /// Its turn on a shared CPU is over, and it holds no other.
    TurnOver,
    /// The contract forms the machine's pools in another way.
    PoolsChanged,
    /// The unit came or went, or its tickets changed.
    EntitlementChanged {
        /// Before, in millionths of a CPU.
        from: u64,
        /// Now, in millionths of a CPU.
        to: u64,
    },
    /// The owner had nothing to run on it for this long, and the borrower had.
    OwnerIdle {
        /// Nanoseconds.
        idle_ns: u64,
    },
    /// The owner had nothing to run on it for this long. The borrower had, and lent more before than it was lent.
    OwnerIdleToGiver {
        /// Nanoseconds.
        idle_ns: u64,
        /// By so much more, in nanoseconds of a CPU.
        credit_ns: u64,
    },
    /// What it lent and was lent before is remembered for a time.
    Remembered,
    /// The owner wants more CPUs than are left to it.
    OwnerWants {
        /// Threads that want a CPU.
        runnable: u32,
        /// CPUs of its own that were not lent.
        kept: u32,
    },
    /// The borrower has no use for it any more.
    BorrowerIdle,
    /// A unit with a larger claim waits.
    LargerClaim {
        /// The unit.
        of: UnitId,
    },
    /// No pool that the thread's unit may use has a free CPU.
    NoSeatFree,
    /// The thread has ended, or is in no job any more.
    ThreadGone,
    /// The thread has not wanted a CPU for long.
    Rests,
    /// It is its job's first: the contract's placement chose the pool.
    FirstOfItsJob {
        /// How.
        placement: Placement,
        /// CPUs of the pool that were free.
        free: u32,
    },
    /// Other threads of its job are in that pool.
    BesideItsJob {
        /// So many.
        threads: u32,
    },
    /// The pools in which its job is are full: the contract's placement chose another.
    PoolsOfItsJobFull {
        /// How.
        placement: Placement,
        /// CPUs of the pool that were free.
        free: u32,
    },
    /// It was moved to where more of its job is, or made room for one that was.
    Together {
        /// The pool that it was in.
        from: u32,
        /// Threads of its job in the pool where it is now.
        threads: u32,
    },
    /// Pages of the job lie in other nodes than its threads.
    PagesApart {
        /// So much.
        bytes: u64,
    },
    /// The gang waited longest of its unit's.
    HeadOfList {
        /// For so many quanta.
        waited: u32,
    },
    /// What each of its threads has of what gangs share is nearest to what was left of that for each CPU that was left.
    Fittest {
        /// What gangs share.
        of: GangsShare,
        /// What was left for each CPU, as [`super::SharedRate`] has it; below 0 where too much was given already.
        left: i64,
    },
    /// Beside those that were chosen before, it and those that wait get on most.
    GetsOnBeside {
        /// What of a CPU the chosen ones and those that come next get on by, each as if it ran alone, in permille.
        permille: u32,
    },
    /// CPUs were left, and no other gang fits.
    CpusLeft,
    /// Others were chosen for this quantum.
    NotThisQuantum,
    /// Jobs are gangs no more, or this one is no job any more.
    NoGang,
    /// The unit transferred more over the memory bus than it holds, and another gets less than that for it.
    YieldsTheBus {
        /// The other.
        to: UnitId,
    },
    /// The unit transferred more over the memory bus than the contract lets it.
    MostOfTheBus {
        /// That, in bytes per second.
        most: u64,
    },
    /// Nobody is owed anything of the memory bus.
    BusIsLeft,
    /// The parts of a unit follow what is used where its processes are.
    FollowsUse,
    /// The CPUs it owns and borrows changed.
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
    /// The contract says how much may be lent or borrowed at most.
    LoanLimit,
    /// It has no processes any more.
    NobodyThere,
    /// It owns or borrows a CPU again.
    HoldsAgain,
    /// The CPU is not there any more.
    CpuGone,
    /// Its part of a disk, in millionths of what is transferred.
    DiskPart {
        /// Millionths.
        part: u64,
    },
    /// It was ahead of its part of a disk, and another waited for it.
    DiskWanted {
        /// Its part, in millionths.
        part: u64,
        /// The unit that waited.
        by: UnitId,
        /// The last look at which that unit did not wait, or had its part: the call-back's latency counts from here.
        since: Time,
    },
    /// What it got of a disk was not its part, so that its weight is changed.
    DiskCorrected {
        /// Its part, in millionths.
        part: u64,
        /// The correction so far, in millionths of that.
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
        /// By so many bytes.
        bytes: u64,
    },
    /// Its rates have earned what it transferred, or it has none any more, or no processes.
    DiskDebtPaid,
    /// The unit's tickets are worth so much memory.
    EntitledTo {
        /// Bytes.
        bytes: u64,
    },
    /// It lends memory that it does not need.
    Lends {
        /// Bytes.
        bytes: u64,
        /// All of it is to be back within this time, in nanoseconds, by how long it was idle.
        within_ns: Time,
    },
    /// It is short of memory that it lent, and has it back.
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
    /// It is short of memory, and borrows before others, since it lent more before than it was lent.
    BorrowsFirst {
        /// Bytes.
        bytes: u64,
    },
    /// It gives memory back that it borrowed.
    GivesBack {
        /// Bytes.
        bytes: u64,
    },
    /// It is short of memory, and at a limit of the contract.
    AtLimit,
    /// It is short of memory, and no unit has any to lend.
    NothingIdle,
    /// It uses more memory than it is allowed by now.
    Owes {
        /// What it is allowed, in bytes.
        allowed: u64,
    },
    /// How fast memory comes back from it is measured, before more is lent to it.
    OnTrial,
    /// Memory is short, and the unit uses more than it is entitled to, which only its processes' end would free.
    Beyond {
        /// How much, in bytes.
        bytes: u64,
    },
    /// Memory is short no more, or the unit is within what it is entitled to.
    Enough,
}
