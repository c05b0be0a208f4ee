//! The plan: what a backend is to do, step by step, each with its reason.
//!
//! There are two kinds of steps:
//! - *Decisions* ([`Action::Own`], [`Action::Disown`], [`Action::Lend`], [`Action::CallBack`], [`Action::Return`]) say
//!   which unit holds which CPU. A backend may ignore them; the ledger and the plan checker do not.
//! - *Orders* ([`Action::Confine`], [`Action::Weigh`], [`Action::Cap`], [`Action::Gate`], and [`Action::Guarantee`],
//!   [`Action::Allow`], [`Action::Reclaim`], [`Action::Expose`] for memory) follow from the decisions. A backend
//!   carries them out in the plan's order, without any choice of its own.
//!
//! Orders are differences. What an earlier plan ordered stays in force until another order on the same unit replaces
//! it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_machine::CpuSet;

use crate::Time;
use crate::memory::MemoryPlan;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
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
    /// Order: the unit's processes run on these CPUs and on no others. `None`: wherever the kernel likes.
    Confine {
        /// The unit, and those of its sub-units that have no order of this kind of their own.
        unit: UnitId,
        /// The CPUs; never an empty set.
        cpus: Option<CpuSet>,
    },
    /// Order: the unit's weight against its siblings, 1 to 10,000.
    Weigh {
        /// The unit.
        unit: UnitId,
        /// cgroup v2's measure, where 100 is the usual.
        weight: u32,
    },
    /// Order: the unit uses no more CPU than this. `None`: no cap.
    Cap {
        /// The unit.
        unit: UnitId,
        /// Millionths of a CPU.
        micro_cpus: Option<u64>,
    },
    /// Order: what others may not take from the unit, however short of memory they are. In bytes; 0 is nothing.
    Guarantee {
        /// The unit, with its sub-units.
        unit: UnitId,
        /// What is never taken (hard tickets).
        min: u64,
        /// What is not taken while any unit has more than that; at least `min`.
        low: u64,
        /// The part of `low` that is its own processes'.
        own: u64,
    },
    /// Order: the unit's own processes use no more memory than this, entitled - lent + borrowed. `None`: no bound.
    Allow {
        /// The unit; its sub-units have orders of their own.
        unit: UnitId,
        /// Bytes.
        bytes: Option<u64>,
    },
    /// Order: so much memory is taken from the unit's own processes now: what it borrowed is called back, or what it lends
    /// is made free. An act, not a state: nothing stays in force.
    Reclaim {
        /// The unit.
        unit: UnitId,
        /// Bytes.
        bytes: u64,
    },
    /// Order: of a kernel that is out of memory and kills, the unit's own processes are to be killed before others'.
    Expose {
        /// The unit.
        unit: UnitId,
        /// Or no more than others'.
        exposed: bool,
    },
    /// Order: the unit's processes run (open) or are stopped (closed).
    Gate {
        /// The unit.
        unit: UnitId,
        /// Whether they run.
        open: bool,
    },
    /// Order: the unit's weight on a disk against its siblings, 1 to 1,000.
    WeighDisk {
        /// The unit.
        unit: UnitId,
        /// The disk's name.
        disk: String,
        /// Where 100 is the usual.
        weight: u32,
    },
    /// Order: the unit, sub-units included, transfers no more than this. `None`: no bound that way.
    CapDisk {
        /// The unit.
        unit: UnitId,
        /// The disk's name.
        disk: String,
        /// Reading, in bytes per second.
        read: Option<u64>,
        /// Writing, in bytes per second.
        write: Option<u64>,
    },
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The unit's tickets are worth so much memory.
    EntitledTo {
        /// Bytes.
        bytes: u64,
    },
    /// It lends memory that it does not need.
    Lends {
        /// Bytes.
        bytes: u64,
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

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

/// What to do now, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The moment it was made for.
    pub at: Time,
    /// In the order in which they are to be carried out.
    pub steps: Vec<Step>,
    /// When the next snapshot is wanted at the latest.
    pub next: Time,
    /// What each unit of the contract is entitled to while this plan is in force, in millionths of a CPU, sub-units
    /// included; one element per unit. What no unit is entitled to is the `shared` unit's: the top level sums to the
    /// machine's CPUs.
    pub entitled: Vec<u64>,
    /// What each unit's own processes are entitled to of what each disk transfers, in millionths; what no unit is
    /// entitled to is the `shared` unit's. Empty where no disk was observed.
    pub disk_entitled: Vec<u64>,
    /// Units whose facts must be fresh in that snapshot: owners of lent CPUs. Of all others the backend may hand in facts
    /// up to 100 ms old. Empty with `next` far off means that nothing can happen that would need a quick answer.
    pub watch: Vec<UnitId>,
    /// What was decided about memory; `None` where it was not observed, and what is in force stays.
    pub memory: Option<MemoryPlan>,
}

impl Action {
    /// The action in words, with the contract's names.
    pub fn describe<'a>(&'a self, contract: &'a Contract) -> impl fmt::Display + 'a {
        Described(self, contract)
    }

    /// The unit that the step is about: the owner, or the borrower of a loan.
    pub fn unit(&self) -> UnitId {
        match *self {
            Action::Own { unit, .. }
            | Action::Disown { unit, .. }
            | Action::Confine { unit, .. }
            | Action::Weigh { unit, .. }
            | Action::Cap { unit, .. }
            | Action::Guarantee { unit, .. }
            | Action::Allow { unit, .. }
            | Action::Reclaim { unit, .. }
            | Action::Expose { unit, .. }
            | Action::Gate { unit, .. }
            | Action::WeighDisk { unit, .. }
            | Action::CapDisk { unit, .. } => unit,
            Action::Lend { borrower, .. }
            | Action::CallBack { borrower, .. }
            | Action::Return { borrower, .. } => borrower,
        }
    }
}

struct Described<'a>(&'a Action, &'a Contract);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |unit: &UnitId| self.1.units.get(unit.index()).map_or("?", |unit| unit.path.as_str());
        match self.0 {
            Action::Own { cpu, unit } => write!(f, "cpu {cpu}: owned by {}", name(unit)),
            Action::Disown { cpu, unit } => write!(f, "cpu {cpu}: no longer owned by {}", name(unit)),
            Action::Lend { cpu, lender, borrower } => {
                write!(f, "cpu {cpu}: lent by {} to {}", name(lender), name(borrower))
            }
            Action::CallBack { cpu, lender, borrower, .. } => {
                write!(f, "cpu {cpu}: called back by {} from {}", name(lender), name(borrower))
            }
            Action::Return { cpu, lender, borrower } => {
                write!(f, "cpu {cpu}: returned to {} by {}", name(lender), name(borrower))
            }
            Action::Confine { unit, cpus: Some(cpus) } => write!(f, "{}: runs on cpus {cpus}", name(unit)),
            Action::Confine { unit, cpus: None } => write!(f, "{}: runs on any cpu", name(unit)),
            Action::Weigh { unit, weight } => write!(f, "{}: weight {weight}", name(unit)),
            Action::Cap { unit, micro_cpus: Some(micro) } => {
                write!(f, "{}: at most {}", name(unit), CpuCount(*micro))
            }
            Action::Cap { unit, micro_cpus: None } => write!(f, "{}: no cap", name(unit)),
            Action::Guarantee { unit, min, low, .. } => {
                write!(
                    f,
                    "{}: {} of memory are guaranteed, {} of these in any case",
                    name(unit),
                    Bytes(*low),
                    Bytes(*min)
                )
            }
            Action::Allow { unit, bytes: Some(bytes) } => {
                write!(f, "{}: at most {} of memory", name(unit), Bytes(*bytes))
            }
            Action::Allow { unit, bytes: None } => write!(f, "{}: any amount of memory", name(unit)),
            Action::Reclaim { unit, bytes } => {
                write!(f, "{}: gives up {} of memory", name(unit), Bytes(*bytes))
            }
            Action::Expose { unit, exposed: true } => {
                write!(f, "{}: if memory runs out, the kernel kills its processes first", name(unit))
            }
            Action::Expose { unit, exposed: false } => {
                write!(
                    f,
                    "{}: if memory runs out, the kernel kills its processes by their size again",
                    name(unit)
                )
            }
            Action::Gate { unit, open: true } => write!(f, "{}: continues", name(unit)),
            Action::Gate { unit, open: false } => write!(f, "{}: stopped until its turn", name(unit)),
            Action::WeighDisk { unit, disk, weight } => {
                write!(f, "{}: weight {weight} on disk {disk}", name(unit))
            }
            Action::CapDisk { unit, disk, read: None, write: None } => {
                write!(f, "{}: no bound on disk {disk}", name(unit))
            }
            Action::CapDisk { unit, disk, read, write } => {
                write!(
                    f,
                    "{}: at most {} read, {} written on disk {disk}",
                    name(unit),
                    Speed(*read),
                    Speed(*write)
                )
            }
        }
    }
}

impl Reason {
    /// The reason in words, with the contract's names.
    pub fn describe<'a>(&'a self, contract: &'a Contract) -> impl fmt::Display + 'a {
        Because(self, contract)
    }
}

struct Because<'a>(&'a Reason, &'a Contract);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            Reason::Scheme(scheme) => write!(f, "the scheme is {scheme}"),
            Reason::Entitled { micro_cpus } => write!(f, "it is entitled to {}", CpuCount(micro_cpus)),
            Reason::Turn { part } => write!(f, "its turn: it holds {} of a shared cpu", Cpus(part)),
            Reason::TurnOver => write!(f, "its turn on a shared cpu is over"),
            Reason::EntitlementChanged { from, to } => {
                write!(f, "its entitlement changed from {} to {}", Cpus(from), CpuCount(to))
            }
            Reason::OwnerIdle { idle_ns } => {
                write!(f, "idle for {} ms, and the borrower waits", idle_ns / crate::MS)
            }
            Reason::OwnerWants { runnable, kept } => {
                write!(f, "the owner has {runnable} threads to run and kept {kept} cpus")
            }
            Reason::BorrowerIdle => write!(f, "the borrower has no use for it"),
            Reason::LargerClaim { of } => {
                let name = self.1.units.get(of.index()).map_or("?", |unit| unit.path.as_str());
                write!(f, "{name} has the larger claim")
            }
            Reason::HoldsChanged => write!(f, "the cpus it holds changed"),
            Reason::Proportion { micro_cpus } => {
                write!(f, "time-shared: it is entitled to {}", CpuCount(micro_cpus))
            }
            Reason::Limit { micro_cpus } => write!(f, "the contract limits it to {}", CpuCount(micro_cpus)),
            Reason::MayNotBorrow => write!(f, "it may not borrow"),
            Reason::LoanLimit => write!(f, "the contract limits the loan"),
            Reason::NobodyThere => write!(f, "it has no processes any more"),
            Reason::HoldsAgain => write!(f, "it holds a cpu again"),
            Reason::CpuGone => write!(f, "the cpu is gone"),
            Reason::DiskPart { part } => write!(f, "it is entitled to {} % of the disk", Percent(part)),
            Reason::DiskWanted { part, by, .. } => {
                let name = self.1.units.get(by.index()).map_or("?", |unit| unit.path.as_str());
                write!(f, "it moved more than its {} % of the disk, and {name} waits", Percent(part))
            }
            Reason::DiskCorrected { part, by } => {
                write!(
                    f,
                    "to get {} % of the disk, it needs {} % of the usual weight",
                    Percent(part),
                    Percent(by)
                )
            }
            Reason::DiskLimit { bytes_per_s } => {
                write!(f, "the contract limits it to {}", Speed(Some(bytes_per_s)))
            }
            Reason::DiskFree => write!(f, "no other unit wants the disk"),
            Reason::EntitledTo { bytes } => write!(f, "it is entitled to {}", Bytes(bytes)),
            Reason::Lends { bytes } => write!(f, "it does not need {}, which others borrow", Bytes(bytes)),
            Reason::CallsBack { bytes } => {
                write!(f, "it is short, and takes back {} that it lent", Bytes(bytes))
            }
            Reason::Borrows { bytes } => write!(f, "it is short, and borrows {}", Bytes(bytes)),
            Reason::GivesBack { bytes } => write!(f, "it gives back {}", Bytes(bytes)),
            Reason::AtLimit => write!(f, "it is short, and at a limit of the contract"),
            Reason::NothingIdle => write!(f, "it is short, and no unit has memory to lend"),
            Reason::Owes { allowed } => write!(f, "it is allowed {}", Bytes(allowed)),
            Reason::OnTrial => write!(f, "a trial: how fast it gives up memory decides what it may borrow"),
            Reason::Beyond { bytes } => {
                write!(f, "memory is tight, and it uses {} beyond its entitlement", Bytes(bytes))
            }
            Reason::Enough => write!(f, "memory is no longer tight, or the unit is within its entitlement"),
        }
    }
}

/// Millionths as a percentage with at most one decimal.
struct Percent(u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.saturating_add(500) / 1_000;
        match tenths % 10 {
            0 => write!(f, "{}", tenths / 10),
            rest => write!(f, "{}.{rest}", tenths / 10),
        }
    }
}

/// A rate, in bytes per second, in a few digits: `12.5 MB/s`; `any amount` without one.
pub struct Speed(pub Option<u64>);

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rate) = self.0 else { return write!(f, "any amount") };
        match rate {
            0..10_000 => write!(f, "{rate} B/s"),
            10_000..1_000_000 => write!(f, "{} kB/s", rate / 1_000),
            _ => write!(f, "{}.{} MB/s", rate / 1_000_000, rate / 100_000 % 10),
        }
    }
}

/// Millionths of a CPU as a decimal with up to three places: `1.5`, `0.333`, `2`.
pub struct Cpus(pub u64);

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousandths = self.0.saturating_add(500) / 1_000;
        let (whole, rest) = (thousandths / 1_000, thousandths % 1_000);
        match rest {
            0 => write!(f, "{whole}"),
            _ if rest % 100 == 0 => write!(f, "{whole}.{}", rest / 100),
            _ if rest % 10 == 0 => write!(f, "{whole}.{:02}", rest / 10),
            _ => write!(f, "{whole}.{rest:03}"),
        }
    }
}

/// The same with what it counts: `1 CPU`, `1.5 CPUs`.
pub struct CpuCount(pub u64);

impl fmt::Display for CpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.0.saturating_add(500) / 1_000 == 1_000;
        write!(f, "{} {}", Cpus(self.0), if one { "CPU" } else { "CPUs" })
    }
}

/// Bytes in the largest binary measure of which there is one at least, with up to one place: `512 KiB`, `1.5 GiB`, `2 GiB`.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measures = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let Some((measure, name)) = measures.into_iter().find(|(measure, _)| self.0 >= *measure) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = u128::from(self.0) * 10 / u128::from(measure);
        match tenths % 10 {
            0 => write!(f, "{} {name}", tenths / 10),
            tenth => write!(f, "{}.{tenth} {name}", tenths / 10),
        }
    }
}
