//! The plan checker: replays a plan's decisions on books of its own, and reports what is wrong with it.
//!
//! It shares no code with the policy, so that a mistake must be made twice to pass. It runs before every plan is applied, in
//! the daemon and in tests; a plan that fails is not applied.
//!
//! Checked:
//! - Decisions and orders concern units of the contract.
//! - A CPU has at most one owner, and in a partition exactly one.
//! - Only an owner lends, each CPU once. A CPU that is called back or returned was lent.
//! - Units lend and borrow only if they may, and no more CPUs than the amount in their contract.
//! - `quota` lends nothing, and `smp` orders nothing.
//! - A unit that holds CPUs is confined to exactly those that it owns and borrows.
//! - A unit is stopped for its transfers only while it has a rate on a disk that exists. It is not stopped twice, and only a
//!   stopped unit is continued. Plans do not say whether it has processes.
//! - A gate is closed only for a unit that holds no CPU.
//! - Weights and rates are in the kernel's range. A rate is not above the contract's limit. Under `smp`, no unit has a rate.
//! - Entitlements of the top level sum to the machine.
//! - Gangs run on no more CPUs than exist. A chosen gang runs, and a stopped one was not chosen. The gang that is chosen first
//!   was stopped longest among its outermost unit's.
//! - No more threads of jobs sit in a pool than it has CPUs; each is restricted to CPUs of its pool.
//! - The parts of a unit's holders sum to at most the unit's amount.
//! - An exchange moves tickets around a ring of units in one encloser. It begins once, and ends once, unchanged.

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
    owner: BTreeMap<u32, UnitId>,
    borrower: BTreeMap<u32, UnitId>,
    confined: BTreeMap<UnitId, CpuSet>,
    shut: BTreeSet<UnitId>,
    /// Units with a rate, by disk.
    capped: BTreeSet<(UnitId, String)>,
    /// Units stopped for their rates.
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
    pub(crate) fn parts_alone(&self, contract: &Contract, plan: &Plan, wrong: &mut Vec<String>) -> Books {
        let mut books = self.clone();
        books.parts.replay(contract, plan, wrong);
        books
    }

    /// Orders on removed units vanished with the units.
    fn forget_gone(&mut self, contract: &Contract) {
        self.confined.retain(|unit, _| contract.has(*unit));
        self.shut.retain(|unit| contract.has(*unit));
        self.capped.retain(|(unit, _)| contract.has(*unit));
        self.stopped.retain(|unit| contract.has(*unit));
    }

    /// Replays one plan. Returns the books after it, or everything that is wrong with it.
    pub fn replay(&self, contract: &Contract, machine: &Machine, plan: &Plan) -> Result<Books, Vec<String>> {
        let mut replay = Replay { contract, machine, books: self.clone(), wrong: Vec::new() };
        if !contract.vacant.is_empty() {
            replay.books.forget_gone(contract);
        }
        // Orders on a disk vanished with the disk.
        replay.books.capped.retain(|(_, disk)| plan.decisions.disk.disks.contains(disk));
        replay.all_are_there(plan);
        for step in &plan.decisions.cpu.steps {
            replay.decision(&step.action);
        }
        for step in &plan.orders.cpu {
            replay.cpu_order(&step.action);
        }
        for step in &plan.orders.disk {
            replay.disk_order(&step.action);
        }
        replay.finish(plan);
        replay.books.seats.replay(contract, machine, plan, &mut replay.wrong);
        replay.books.gangs.replay(contract, machine, plan, &mut replay.wrong);
        replay.books.memory.replay(contract, machine, plan, &mut replay.wrong);
        replay.books.parts.replay(contract, plan, &mut replay.wrong);
        replay.books.trade.replay(contract, plan, &mut replay.wrong);
        if replay.wrong.is_empty() { Ok(replay.books) } else { Err(replay.wrong) }
    }
}

struct Replay<'a> {
    contract: &'a Contract,
    machine: &'a Machine,
    books: Books,
    wrong: Vec<String>,
}

impl Replay<'_> {
    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(otherwise());
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

    /// Units of the contract only, except where something is taken from a removed unit.
    fn all_are_there(&mut self, plan: &Plan) {
        let given = plan.decisions.cpu.steps.iter().flat_map(|step| match step.action {
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
        let all: BTreeSet<UnitId> = given.flatten().chain(orders).collect();
        for unit in all {
            self.expect(self.contract.has(unit), || format!("the contract has no unit {}", unit.0));
        }
    }

    fn decision(&mut self, decision: &CpuDecision) {
        match decision {
            CpuDecision::Own { cpu, unit } => {
                let before = self.books.owner.insert(*cpu, *unit);
                let known = self.machine.cpu(*cpu).is_some();
                self.expect(known, || format!("cpu {cpu} is owned but does not exist"));
                self.expect(before.is_none(), || format!("cpu {cpu} has two owners"));
            }
            CpuDecision::Disown { cpu, unit } => {
                let before = self.books.owner.remove(cpu);
                self.expect(before == Some(*unit), || {
                    format!("cpu {cpu} is taken from a unit that does not own it")
                });
            }
            CpuDecision::Lend { cpu, lender, borrower } => self.lend(*cpu, *lender, *borrower),
            CpuDecision::CallBack { cpu, borrower, .. } | CpuDecision::Return { cpu, borrower, .. } => {
                let before = self.books.borrower.remove(cpu);
                self.expect(before == Some(*borrower), || {
                    format!("cpu {cpu} is returned by a unit that did not borrow it")
                });
            }
        }
    }

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

    fn disk_order(&mut self, order: &DiskOrder) {
        match order {
            DiskOrder::Weigh { unit, disk, weight } => {
                self.expect((1..=1_000).contains(weight), || {
                    format!("unit {} has weight {weight} on disk {disk}", unit.0)
                });
            }
            // Shares are relative, so that none is too large.
            DiskOrder::Share { .. } => {}
            DiskOrder::Stop { unit, stopped: true, .. } => {
                let runs = self.books.stopped.insert(*unit);
                let path = self.path(*unit);
                self.expect(runs, || format!("{path} is stopped for its rate, and was stopped before"));
                self.expect(!unit.is_common(), || {
                    format!("{path} is stopped for a rate, and is a common part")
                });
            }
            DiskOrder::Stop { unit, stopped: false, .. } => {
                let stood = self.books.stopped.remove(unit);
                let path = self.path(*unit);
                self.expect(stood, || format!("{path} is continued, and was not stopped for its rate"));
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
        let before = self.books.borrower.insert(cpu, borrower);
        self.expect(before.is_none(), || format!("cpu {cpu} is lent twice"));
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

    fn finish(&mut self, plan: &Plan) {
        self.every_cpu_has_an_owner();
        self.confined_to_what_is_held();
        self.within_amounts(plan);
        let top = self.contract.children(None).chain([UnitId::SHARED]);
        let sum: u64 =
            top.map(|unit| plan.decisions.cpu.entitled.get(unit.index()).copied().unwrap_or(0)).sum();
        let whole = self.machine.cpus.len() as u64 * MILLIONTH;
        self.expect(sum == whole, || format!("entitlements sum to {sum} of {whole} millionths of a cpu"));
        let capped: BTreeSet<UnitId> = self.books.capped.iter().map(|(unit, _)| *unit).collect();
        let without = self.books.stopped.difference(&capped);
        let without = without.map(|unit| format!("{} is stopped for a rate, and has none", self.path(*unit)));
        let without: Vec<String> = without.collect();
        self.wrong.extend(without);
        if self.scheme() == Scheme::Smp {
            let free =
                self.books.owner.is_empty() && self.books.confined.is_empty() && self.books.shut.is_empty();
            let free = free && self.books.capped.is_empty();
            self.expect(free, || String::from("the scheme is smp, and CPUs or disks are restricted"));
        }
    }

    /// Loans are counted in whole CPUs. Where caps limit borrowing, they are compared with the amounts.
    fn within_amounts(&mut self, plan: &Plan) {
        let entitled = |unit: UnitId| plan.decisions.cpu.entitled.get(unit.index()).copied().unwrap_or(0);
        let mut counts: BTreeMap<(UnitId, &str), u64> = BTreeMap::new();
        for (cpu, borrower) in &self.books.borrower {
            let lender = self.books.owner.get(cpu).copied().unwrap_or(UnitId::SHARED);
            *counts.entry((*borrower, "borrows")).or_default() += 1;
            if !lender.is_common() {
                *counts.entry((lender, "lends")).or_default() += 1;
            }
        }
        let mut wrong = Vec::new();
        for ((unit, does), cpus) in counts {
            let most = match does {
                // A percentage to lend is of the CPUs owned at the moment.
                "lends" => self.permission(unit, |unit| unit.lend.cpu).most(self.owned(unit)),
                _ => self.may_borrow(unit),
            };
            if cpus.saturating_mul(MILLIONTH) > most {
                wrong.push(format!("{} {does} {cpus} cpus of {most} millionths at most", self.path(unit)));
            }
        }
        for step in &plan.orders.cpu {
            let CpuOrder::Cap { unit, micro_cpus: Some(micro) } = step.action else { continue };
            let own = self.contract.units.get(unit.index());
            let by_loans = !self.books.owner.is_empty() && own.is_none_or(|unit| unit.parent.is_none());
            let most = entitled(unit).saturating_add(self.may_borrow(unit)).max(MILLIONTH / 1_000);
            if micro > most && !by_loans {
                wrong.push(format!("{} is capped to {micro} of {most} millionths", self.path(unit)));
            }
        }
        self.wrong.append(&mut wrong);
    }

    /// The CPUs that a unit owns, in millionths.
    fn owned(&self, unit: UnitId) -> u64 {
        self.books.owner.values().filter(|owner| **owner == unit).count() as u64 * MILLIONTH
    }

    fn permission(&self, unit: UnitId, of: fn(&Unit) -> Permission) -> Permission {
        self.contract.units.get(unit.index()).map_or(Permission::No, of)
    }

    /// The most that a unit may borrow, in millionths of a CPU.
    fn may_borrow(&self, unit: UnitId) -> u64 {
        let parent = self.contract.units.get(unit.index()).and_then(|unit| unit.parent);
        self.permission(unit, |unit| unit.borrow.cpu).most(self.may_have(parent))
    }

    /// The tightest limit on a unit: its own, relative to the next one outwards.
    fn may_have(&self, unit: Option<UnitId>) -> u64 {
        let Some(unit) = unit else { return self.machine.cpus.len() as u64 * MILLIONTH };
        let unit = self.contract.unit(unit);
        match unit.limit.cpu {
            None => self.may_have(unit.parent),
            Some(Amount::Absolute(amount)) => amount,
            Some(part) => part.of(self.may_have(unit.parent)),
        }
    }

    fn every_cpu_has_an_owner(&mut self) {
        let owned = self.books.owner.len();
        let whole = self.machine.cpus.len();
        self.expect(owned == 0 || owned == whole, || format!("{owned} of {whole} cpus have an owner"));
        let unowned = self.books.borrower.keys().find(|cpu| !self.books.owner.contains_key(cpu)).copied();
        self.expect(unowned.is_none(), || {
            format!("cpu {} is borrowed and has no owner", unowned.unwrap_or(0))
        });
    }

    fn confined_to_what_is_held(&mut self) {
        if self.books.confined.is_empty() && self.books.shut.is_empty() {
            return;
        }
        let mut held: BTreeMap<UnitId, CpuSet> = BTreeMap::new();
        for (cpu, unit) in self.books.owner.iter().chain(&self.books.borrower) {
            held.entry(*unit).or_default().insert(*cpu);
        }
        let mut wrong = Vec::new();
        for (unit, cpus) in &self.books.confined {
            // A unit that holds no CPU sleeps, or its gate is closed: it stays confined to its previous CPUs.
            if let Some(held) = held.get(unit).filter(|held| *held != cpus) {
                let path = self.path(*unit);
                wrong.push(format!("{path} is confined to cpus {cpus} but holds {held}"));
            }
        }
        for unit in self.books.shut.iter().filter(|unit| held.contains_key(unit)) {
            wrong.push(format!("{} holds a cpu and is stopped", self.path(*unit)));
        }
        self.wrong.append(&mut wrong);
    }
}
