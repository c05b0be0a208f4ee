//! The plan checker: replays a plan's decisions on books of its own (its record of what each unit holds), and
//! reports what is wrong with the plan.
//!
//! The checker shares no code with the policy. So a mistake passes only if the policy and the checker both
//! have it. Every plan is checked before it is applied, in the daemon and in tests. A plan that fails is not
//! applied.
//!
//! Checked:
//! - Decisions and orders concern units of the contract.
//! - A CPU has at most one owner, and in a partition exactly one.
//! - Only an owner lends, each CPU once. A CPU that is called back or returned was lent.
//! - Units lend and borrow only if they may, and no more CPUs than the amount in their contract.
//! - `quota` lends nothing, and `smp` orders nothing.
//! - A unit that holds CPUs is confined to exactly those that it owns and borrows.
//! - A unit is stopped for its disk transfers only while it has a rate limit on a disk that exists. A stopped
//!   unit is not stopped again, and only a stopped unit is continued. Whether the unit has processes is not
//!   checked, since a plan does not say so.
//! - A gate is closed only for a unit that holds no CPU.
//! - Weights and rates are in the kernel's range. A rate is not above the contract's limit. Under `smp`, no
//!   unit has a rate.
//! - The entitlements of the top-level units sum to the machine's capacity.
//! - The gangs that run together need no more CPUs than exist. A chosen gang runs, and a stopped gang was not
//!   chosen. The gang that is chosen first was stopped longest among the gangs of its outermost unit.
//! - A pool seats no more threads of jobs than it has CPUs; each of these threads is restricted to CPUs of
//!   its pool.
//! - The memory bounds of a unit's holders (the control groups that contain its processes) sum to at most the
//!   unit's allowance.
//! - An exchange moves tickets around a ring of units. It begins once, and ends once, unchanged.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Amount, Contract, MILLIONTH, Permission, Scheme, Unit, UnitId};
use commonhold_machine::{CpuSet, Machine};

use crate::plan::{CpuDecision, CpuOrder, DiskOrder, Plan};

mod gangs;
mod memory;
mod parts;
mod seats;
mod trade;

use gangs::GangBooks;
use memory::MemoryBooks;
use parts::PartBooks;
use seats::SeatBooks;
use trade::TradeBooks;

/// What each unit holds according to the plans so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Books {
    /// The owner of each CPU.
    owner: BTreeMap<u32, UnitId>,
    /// The borrower of each CPU that is lent.
    borrower: BTreeMap<u32, UnitId>,
    /// The CPUs to which units are confined.
    confined: BTreeMap<UnitId, CpuSet>,
    /// Units whose gate is closed.
    shut: BTreeSet<UnitId>,
    /// Units with a rate, with the disk that the rate concerns.
    capped: BTreeSet<(UnitId, String)>,
    /// Units stopped because they transferred more than their rates allow.
    stopped: BTreeSet<UnitId>,
    seats: SeatBooks,
    gangs: GangBooks,
    memory: MemoryBooks,
    parts: PartBooks,
    trade: TradeBooks,
}

impl Books {
    /// The books after replaying only the orders about parts.
    #[cfg(test)]
    pub(crate) fn parts_alone(&self, contract: &Contract, plan: &Plan, errors: &mut Vec<String>) -> Books {
        let mut books = self.clone();
        books.parts.replay(contract, plan, errors);
        books
    }

    /// Forgets the units that the contract no longer has: orders on a unit ended with the unit.
    fn forget_gone(&mut self, contract: &Contract) {
        self.confined.retain(|unit, _| contract.has(*unit));
        self.shut.retain(|unit| contract.has(*unit));
        self.capped.retain(|(unit, _)| contract.has(*unit));
        self.stopped.retain(|unit| contract.has(*unit));
    }

    /// Replays one plan. Returns the books after the plan, or all errors of the plan.
    pub fn replay(&self, contract: &Contract, machine: &Machine, plan: &Plan) -> Result<Books, Vec<String>> {
        let mut replay = Replay { contract, machine, books: self.clone(), errors: Vec::new() };
        if !contract.vacant.is_empty() {
            replay.books.forget_gone(contract);
        }
        // Orders on a disk ended with the disk.
        replay.books.capped.retain(|(_, disk)| plan.decisions.disk.disks.contains(disk));
        replay.check_units_exist(plan);
        for step in &plan.decisions.cpu.steps {
            replay.decision(&step.action);
        }
        for step in &plan.orders.cpu {
            replay.cpu_order(&step.action);
        }
        for step in &plan.orders.disk {
            replay.disk_order(&step.action);
        }
        replay.check_state(plan);
        replay.books.seats.replay(contract, machine, plan, &mut replay.errors);
        replay.books.gangs.replay(contract, machine, plan, &mut replay.errors);
        replay.books.memory.replay(contract, machine, plan, &mut replay.errors);
        replay.books.parts.replay(contract, plan, &mut replay.errors);
        replay.books.trade.replay(contract, plan, &mut replay.errors);
        if replay.errors.is_empty() { Ok(replay.books) } else { Err(replay.errors) }
    }
}

/// The replay of one plan: the books so far, and the errors found.
struct Replay<'a> {
    contract: &'a Contract,
    machine: &'a Machine,
    books: Books,
    errors: Vec<String>,
}

impl Replay<'_> {
    /// Reports `error` unless the condition holds.
    fn expect(&mut self, condition: bool, error: impl FnOnce() -> String) {
        if !condition {
            self.errors.push(error());
        }
    }

    fn scheme(&self) -> Scheme {
        self.contract.machine.scheme
    }

    fn path(&self, unit: UnitId) -> String {
        match self.contract.has(unit) {
            true => self.contract.unit(unit).path.clone(),
            false => format!("unit {}", unit.0),
        }
    }

    /// Checks that decisions and orders concern units of the contract. Decisions that take a CPU from a unit
    /// are exempt, since the unit may have been removed.
    fn check_units_exist(&mut self, plan: &Plan) {
        let receiving_or_lending = plan.decisions.cpu.steps.iter().flat_map(|step| match step.action {
            CpuDecision::Own { unit, .. } => [Some(unit), None],
            CpuDecision::Lend { lender, borrower, .. } => [Some(lender), Some(borrower)],
            CpuDecision::Disown { .. } | CpuDecision::CallBack { .. } | CpuDecision::Return { .. } => {
                [None; 2]
            }
        });
        let cpu = plan.orders.cpu.iter().map(|step| step.action.unit());
        let memory = plan.orders.memory.iter().map(|step| step.action.unit());
        let disk = plan.orders.disk.iter().map(|step| step.action.unit());
        let seats = plan.orders.seats.iter().map(|step| step.action.unit());
        let gangs = plan.orders.gangs.iter().map(|step| step.action.unit());
        let parts = plan.orders.parts.iter().map(|step| step.action.unit());
        let orders = cpu.chain(memory).chain(disk).chain(seats).chain(gangs).chain(parts);
        let units: BTreeSet<UnitId> = receiving_or_lending.flatten().chain(orders).collect();
        for unit in units {
            self.expect(self.contract.has(unit), || format!("the contract has no unit {}", unit.0));
        }
    }

    /// Replays a decision about a CPU, and checks it against the books.
    fn decision(&mut self, decision: &CpuDecision) {
        match decision {
            CpuDecision::Own { cpu, unit } => {
                let previous_owner = self.books.owner.insert(*cpu, *unit);
                let exists = self.machine.cpu(*cpu).is_some();
                self.expect(exists, || format!("cpu {cpu} is owned but does not exist"));
                self.expect(previous_owner.is_none(), || format!("cpu {cpu} has two owners"));
            }
            CpuDecision::Disown { cpu, unit } => {
                let previous_owner = self.books.owner.remove(cpu);
                self.expect(previous_owner == Some(*unit), || {
                    format!("cpu {cpu} is taken from a unit that does not own it")
                });
            }
            CpuDecision::Lend { cpu, lender, borrower } => self.lend(*cpu, *lender, *borrower),
            CpuDecision::CallBack { cpu, borrower, .. } | CpuDecision::Return { cpu, borrower, .. } => {
                let previous_borrower = self.books.borrower.remove(cpu);
                self.expect(previous_borrower == Some(*borrower), || {
                    format!("cpu {cpu} is returned by a unit that did not borrow it")
                });
            }
        }
    }

    /// Replays an order about CPUs, and checks it against the books.
    fn cpu_order(&mut self, order: &CpuOrder) {
        match order {
            CpuOrder::Confine { unit, cpus } => self.confine(*unit, cpus.as_ref()),
            CpuOrder::Weigh { unit, weight } => {
                self.expect((1..=10_000).contains(weight), || format!("unit {} has weight {weight}", unit.0));
            }
            CpuOrder::Credit { unit, credit_ms } => {
                let outermost = self.contract.unit(*unit).parent.is_none();
                let path = self.path(*unit);
                self.expect(outermost || *credit_ms == 0, || {
                    format!("{path} has a credit, and is not an outermost unit")
                });
                self.expect(!unit.is_common(), || format!("{path} has a credit, and is a common part"));
            }
            CpuOrder::Cap { unit, micro_cpus } => {
                self.expect(micro_cpus.is_none_or(|micro| micro > 0), || {
                    format!("unit {} is capped at zero", unit.0)
                });
            }
            CpuOrder::Gate { unit, open: true } => {
                self.books.shut.remove(unit);
            }
            CpuOrder::Gate { unit, open: false } => {
                self.books.shut.insert(*unit);
            }
        }
    }

    /// Replays an order about disks, and checks it against the books.
    fn disk_order(&mut self, order: &DiskOrder) {
        match order {
            DiskOrder::Weigh { unit, disk, weight } => {
                self.expect((1..=1_000).contains(weight), || {
                    format!("unit {} has weight {weight} on disk {disk}", unit.0)
                });
            }
            // Shares are relative, so no share is too large.
            DiskOrder::Share { .. } => {}
            DiskOrder::Stop { unit, stopped: true, .. } => {
                let was_running = self.books.stopped.insert(*unit);
                let path = self.path(*unit);
                self.expect(was_running, || {
                    format!("{path} is stopped for its rate, and was stopped before")
                });
                self.expect(!unit.is_common(), || {
                    format!("{path} is stopped for a rate, and is a common part")
                });
            }
            DiskOrder::Stop { unit, stopped: false, .. } => {
                let was_stopped = self.books.stopped.remove(unit);
                let path = self.path(*unit);
                self.expect(was_stopped, || format!("{path} is continued, and was not stopped for its rate"));
            }
            DiskOrder::Cap { unit, disk, read: None, write: None } => {
                self.books.capped.remove(&(*unit, disk.clone()));
            }
            DiskOrder::Cap { unit, disk, read, write } => self.cap_disk(*unit, disk, *read, *write),
        }
    }

    fn cap_disk(&mut self, unit: UnitId, disk: &str, read: Option<u64>, write: Option<u64>) {
        self.books.capped.insert((unit, String::from(disk)));
        let path = self.path(unit);
        self.expect(!unit.is_common(), || format!("{path} has a rate on disk {disk}, and is a common part"));
        let limit = match self.contract.units.get(unit.index()).and_then(|unit| unit.limit.disk) {
            Some(Amount::Absolute(limit)) => limit,
            _ => u64::MAX,
        };
        for rate in [read, write].into_iter().flatten() {
            self.expect((1..=limit).contains(&rate), || {
                format!("{path} may transfer {rate} bytes per second on disk {disk}")
            });
        }
    }

    fn lend(&mut self, cpu: u32, lender: UnitId, borrower: UnitId) {
        let previous_borrower = self.books.borrower.insert(cpu, borrower);
        self.expect(previous_borrower.is_none(), || format!("cpu {cpu} is lent twice"));
        let owner = self.books.owner.get(&cpu).copied();
        self.expect(owner == Some(lender), || format!("cpu {cpu} is lent by a unit that does not own it"));
        self.expect(lender != borrower, || format!("cpu {cpu} is lent to its owner"));
        let may_lend = lender.is_common() || self.permission(lender, |unit| unit.lend.cpu).allows();
        self.expect(may_lend, || format!("cpu {cpu} is lent by a unit that may not lend"));
        let may_borrow = !borrower.is_common() && self.permission(borrower, |unit| unit.borrow.cpu).allows();
        self.expect(may_borrow, || format!("cpu {cpu} is lent to a unit that may not borrow"));
        let scheme = self.scheme();
        self.expect(scheme == Scheme::Isolate, || {
            format!("cpu {cpu} is lent although the scheme is {scheme}")
        });
    }

    fn confine(&mut self, unit: UnitId, cpus: Option<&CpuSet>) {
        match cpus {
            Some(cpus) => {
                let path = self.path(unit);
                self.expect(!cpus.is_empty(), || format!("{path} is confined to nothing"));
                self.books.confined.insert(unit, cpus.clone());
            }
            None => {
                self.books.confined.remove(&unit);
            }
        }
    }

    /// Checks the books after the replay: the rules that concern all units or CPUs together.
    fn check_state(&mut self, plan: &Plan) {
        self.check_owners();
        self.check_confinement();
        self.check_amounts(plan);
        let top = self.contract.children(None).chain([UnitId::SHARED]);
        let sum: u64 =
            top.map(|unit| plan.decisions.cpu.entitled.get(unit.index()).copied().unwrap_or(0)).sum();
        let machine = self.machine.cpus.len() as u64 * MILLIONTH;
        self.expect(sum == machine, || format!("entitlements sum to {sum} of {machine} millionths of a cpu"));
        let capped: BTreeSet<UnitId> = self.books.capped.iter().map(|(unit, _)| *unit).collect();
        let stopped_without_rate = self.books.stopped.difference(&capped);
        let without_rate: Vec<String> = stopped_without_rate
            .map(|unit| format!("{} is stopped for a rate, and has none", self.path(*unit)))
            .collect();
        self.errors.extend(without_rate);
        if self.scheme() == Scheme::Smp {
            let is_unrestricted = self.books.owner.is_empty()
                && self.books.confined.is_empty()
                && self.books.shut.is_empty()
                && self.books.capped.is_empty();
            self.expect(is_unrestricted, || {
                String::from("the scheme is smp, and CPUs or disks are restricted")
            });
        }
    }

    /// Checks that units lend and borrow no more than their contract permits. Where CPUs are lent, loans are
    /// counted in whole CPUs. Where caps limit borrowing, a cap may exceed the entitlement by no more than
    /// the permitted amount.
    fn check_amounts(&mut self, plan: &Plan) {
        let entitled = |unit: UnitId| plan.decisions.cpu.entitled.get(unit.index()).copied().unwrap_or(0);
        let mut counts: BTreeMap<(UnitId, &str), u64> = BTreeMap::new();
        for (cpu, borrower) in &self.books.borrower {
            let lender = self.books.owner.get(cpu).copied().unwrap_or(UnitId::SHARED);
            *counts.entry((*borrower, "borrows")).or_default() += 1;
            if !lender.is_common() {
                *counts.entry((lender, "lends")).or_default() += 1;
            }
        }
        let mut errors = Vec::new();
        for ((unit, does), cpus) in counts {
            let most = match does {
                // A percentage that limits lending refers to the CPUs that the unit owns at the moment.
                "lends" => self.permission(unit, |unit| unit.lend.cpu).most(self.owned(unit)),
                _ => self.borrow_max(unit),
            };
            if cpus.saturating_mul(MILLIONTH) > most {
                errors.push(format!("{} {does} {cpus} cpus of {most} millionths at most", self.path(unit)));
            }
        }
        for step in &plan.orders.cpu {
            let CpuOrder::Cap { unit, micro_cpus: Some(micro) } = step.action else { continue };
            // In a partition, loans of CPUs rather than caps limit what an outermost unit borrows.
            let own = self.contract.units.get(unit.index());
            let limited_by_loans =
                !self.books.owner.is_empty() && own.is_none_or(|unit| unit.parent.is_none());
            let most = entitled(unit).saturating_add(self.borrow_max(unit)).max(MILLIONTH / 1_000);
            if micro > most && !limited_by_loans {
                errors.push(format!("{} is capped to {micro} of {most} millionths", self.path(unit)));
            }
        }
        self.errors.append(&mut errors);
    }

    /// The CPUs that a unit owns, in millionths.
    fn owned(&self, unit: UnitId) -> u64 {
        self.books.owner.values().filter(|owner| **owner == unit).count() as u64 * MILLIONTH
    }

    /// A permission of a unit, selected by `select`; [`Permission::No`] if the contract does not have the
    /// unit.
    fn permission(&self, unit: UnitId, select: fn(&Unit) -> Permission) -> Permission {
        self.contract.units.get(unit.index()).map_or(Permission::No, select)
    }

    /// The most that a unit may borrow, in millionths of a CPU.
    fn borrow_max(&self, unit: UnitId) -> u64 {
        let parent = self.contract.units.get(unit.index()).and_then(|unit| unit.parent);
        self.permission(unit, |unit| unit.borrow.cpu).most(self.limit(parent))
    }

    /// The CPU limit of a unit, in millionths of a CPU: its own limit or, without one, that of the innermost
    /// enclosing unit that has one. A limit in percent refers to the limit around the unit. Without any
    /// limit, or without a unit: all CPUs of the machine.
    fn limit(&self, unit: Option<UnitId>) -> u64 {
        let Some(unit) = unit else { return self.machine.cpus.len() as u64 * MILLIONTH };
        let unit = self.contract.unit(unit);
        match unit.limit.cpu {
            None => self.limit(unit.parent),
            Some(Amount::Absolute(amount)) => amount,
            Some(percentage) => percentage.of(self.limit(unit.parent)),
        }
    }

    /// Checks that all CPUs have an owner, or none of them, and that every CPU that is lent has one.
    fn check_owners(&mut self) {
        let owned = self.books.owner.len();
        let cpus = self.machine.cpus.len();
        self.expect(owned == 0 || owned == cpus, || format!("{owned} of {cpus} cpus have an owner"));
        let unowned = self.books.borrower.keys().find(|cpu| !self.books.owner.contains_key(cpu)).copied();
        self.expect(unowned.is_none(), || {
            format!("cpu {} is borrowed and has no owner", unowned.unwrap_or(0))
        });
    }

    /// Checks that units are confined to the CPUs that they hold, and that a unit with a closed gate holds no
    /// CPU.
    fn check_confinement(&mut self) {
        if self.books.confined.is_empty() && self.books.shut.is_empty() {
            return;
        }
        let mut held: BTreeMap<UnitId, CpuSet> = BTreeMap::new();
        for (cpu, unit) in self.books.owner.iter().chain(&self.books.borrower) {
            held.entry(*unit).or_default().insert(*cpu);
        }
        let mut errors = Vec::new();
        for (unit, cpus) in &self.books.confined {
            // A unit that holds no CPU sleeps, or its gate is closed. Such a unit stays confined to its
            // previous CPUs.
            if let Some(held) = held.get(unit).filter(|held| *held != cpus) {
                let path = self.path(*unit);
                errors.push(format!("{path} is confined to cpus {cpus} but holds {held}"));
            }
        }
        for unit in self.books.shut.iter().filter(|unit| held.contains_key(unit)) {
            errors.push(format!("{} holds a cpu and is stopped", self.path(*unit)));
        }
        self.errors.append(&mut errors);
    }
}
