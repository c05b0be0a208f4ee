//! What a plan decides and orders, and why, in words with the contract's names.

use std::fmt;

use commonhold_contract::measure::{Bytes, CpuCount, Cpus, Percent, Speed};
use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::{CpuDecision, CpuOrder, DiskOrder, MemoryOrder};
use commonhold_policy::{MS, Plan, Reason};

/// What one step of a plan does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// Which unit holds which CPU.
    Decision(&'a CpuDecision),
    /// What is ordered for CPUs.
    Cpu(&'a CpuOrder),
    /// For memory.
    Memory(&'a MemoryOrder),
    /// For a disk.
    Disk(&'a DiskOrder),
}

/// The steps of a plan with their reasons, in the order in which they count: decisions, then orders.
pub fn steps(plan: &Plan) -> Vec<(Action<'_>, Reason)> {
    let decisions = plan.decisions.cpu.steps.iter().map(|step| (Action::Decision(&step.action), step.reason));
    let cpus = plan.orders.cpu.iter().map(|step| (Action::Cpu(&step.action), step.reason));
    let memory = plan.orders.memory.iter().map(|step| (Action::Memory(&step.action), step.reason));
    let disks = plan.orders.disk.iter().map(|step| (Action::Disk(&step.action), step.reason));
    decisions.chain(cpus).chain(memory).chain(disks).collect()
}

impl Action<'_> {
    /// The unit that the step is about: the owner, or the borrower of a loan.
    pub fn unit(&self) -> UnitId {
        match self {
            Action::Decision(decision) => decision.unit(),
            Action::Cpu(order) => order.unit(),
            Action::Memory(order) => order.unit(),
            Action::Disk(order) => order.unit(),
        }
    }
}

/// One step in words: what, and why.
pub fn words(contract: &Contract, action: Action<'_>, reason: Reason) -> (String, String) {
    (Described(action, contract).to_string(), Because(reason, contract).to_string())
}

/// A unit's name; `?` for one that the contract does not have.
pub(crate) fn path(contract: &Contract, unit: UnitId) -> &str {
    contract.units.get(unit.index()).map_or("?", |unit| unit.path.as_str())
}

struct Described<'a>(Action<'a>, &'a Contract);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |unit: &UnitId| path(self.1, *unit);
        match self.0 {
            Action::Decision(CpuDecision::Own { cpu, unit }) => {
                write!(f, "cpu {cpu}: owned by {}", name(unit))
            }
            Action::Decision(CpuDecision::Disown { cpu, unit }) => {
                write!(f, "cpu {cpu}: no longer owned by {}", name(unit))
            }
            Action::Decision(CpuDecision::Lend { cpu, lender, borrower }) => {
                write!(f, "cpu {cpu}: lent by {} to {}", name(lender), name(borrower))
            }
            Action::Decision(CpuDecision::CallBack { cpu, lender, borrower, .. }) => {
                write!(f, "cpu {cpu}: called back by {} from {}", name(lender), name(borrower))
            }
            Action::Decision(CpuDecision::Return { cpu, lender, borrower }) => {
                write!(f, "cpu {cpu}: returned to {} by {}", name(lender), name(borrower))
            }
            Action::Cpu(CpuOrder::Confine { unit, cpus: Some(cpus) }) => {
                write!(f, "{}: runs on cpus {cpus}", name(unit))
            }
            Action::Cpu(CpuOrder::Confine { unit, cpus: None }) => {
                write!(f, "{}: runs on any cpu", name(unit))
            }
            Action::Cpu(CpuOrder::Weigh { unit, weight }) => write!(f, "{}: weight {weight}", name(unit)),
            Action::Cpu(CpuOrder::Cap { unit, micro_cpus: Some(micro) }) => {
                write!(f, "{}: at most {}", name(unit), CpuCount(*micro))
            }
            Action::Cpu(CpuOrder::Cap { unit, micro_cpus: None }) => write!(f, "{}: no cap", name(unit)),
            Action::Memory(MemoryOrder::Guarantee { unit, min, low, .. }) => {
                write!(
                    f,
                    "{}: {} of memory are guaranteed, {} of these in any case",
                    name(unit),
                    Bytes(*low),
                    Bytes(*min)
                )
            }
            Action::Memory(MemoryOrder::Allow { unit, bytes: Some(bytes) }) => {
                write!(f, "{}: at most {} of memory", name(unit), Bytes(*bytes))
            }
            Action::Memory(MemoryOrder::Allow { unit, bytes: None }) => {
                write!(f, "{}: any amount of memory", name(unit))
            }
            Action::Memory(MemoryOrder::Reclaim { unit, bytes }) => {
                write!(f, "{}: gives up {} of memory", name(unit), Bytes(*bytes))
            }
            Action::Memory(MemoryOrder::Expose { unit, exposed: true }) => {
                write!(f, "{}: if memory runs out, the kernel kills its processes first", name(unit))
            }
            Action::Memory(MemoryOrder::Expose { unit, exposed: false }) => {
                write!(
                    f,
                    "{}: if memory runs out, the kernel kills its processes by their size again",
                    name(unit)
                )
            }
            Action::Cpu(CpuOrder::Gate { unit, open: true }) => write!(f, "{}: continues", name(unit)),
            Action::Cpu(CpuOrder::Gate { unit, open: false }) => {
                write!(f, "{}: stopped until its turn", name(unit))
            }
            Action::Disk(DiskOrder::Weigh { unit, disk, weight }) => {
                write!(f, "{}: weight {weight} on disk {disk}", name(unit))
            }
            Action::Disk(DiskOrder::Stop { unit, stopped: true, .. }) => {
                write!(f, "{}: stopped until its rate has earned what it transferred", name(unit))
            }
            Action::Disk(DiskOrder::Stop { unit, stopped: false, .. }) => {
                write!(f, "{}: goes on", name(unit))
            }
            Action::Disk(DiskOrder::Share { unit, disk, share }) => {
                write!(f, "{}: share {share} of disk {disk}", name(unit))
            }
            Action::Disk(DiskOrder::Cap { unit, disk, read: None, write: None }) => {
                write!(f, "{}: no bound on disk {disk}", name(unit))
            }
            Action::Disk(DiskOrder::Cap { unit, disk, read, write }) => {
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

struct Because<'a>(Reason, &'a Contract);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reason::Scheme(scheme) => write!(f, "the scheme is {scheme}"),
            Reason::Entitled { micro_cpus } => write!(f, "it is entitled to {}", CpuCount(micro_cpus)),
            Reason::Turn { part } => write!(f, "its turn: it holds {} of a shared cpu", Cpus(part)),
            Reason::TurnOver => write!(f, "its turn on a shared cpu is over"),
            Reason::EntitlementChanged { from, to } => {
                write!(f, "its entitlement changed from {} to {}", Cpus(from), CpuCount(to))
            }
            Reason::OwnerIdle { idle_ns } => {
                write!(f, "idle for {} ms, and the borrower waits", idle_ns / MS)
            }
            Reason::OwnerWants { runnable, kept } => {
                write!(f, "the owner has {runnable} threads to run and kept {kept} cpus")
            }
            Reason::BorrowerIdle => write!(f, "the borrower has no use for it"),
            Reason::LargerClaim { of } => {
                let name = path(self.1, of);
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
                let name = path(self.1, by);
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
            Reason::DiskDebt { bytes } => {
                write!(f, "it transferred {} more than its limit on disks allows", Bytes(bytes))
            }
            Reason::DiskDebtPaid => write!(f, "its limit on disks allows it again"),
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
