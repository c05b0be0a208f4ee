//! Loans of idle CPUs, and their call-back.
//!
//! Problem: a unit that does not use its CPUs should lend them, and must get them back within the contract's call-back time
//! when it needs them. Under the `kernel` backend the scheduler does that at every switch, without this module: see `loan_of` in
//! dispatch/src/choice.h.
//!
//! Terms: a unit *wants* as many CPUs as it has runnable threads, or as many as it used recently if that is more. A peak of
//! demand is remembered for [`SETTLE_NS`] (hysteresis), so that a pause between two commands lends nothing. A unit *holds* what
//! it owns, minus what it lends, plus what it borrows.
//!
//! Algorithm, at each step:
//! 1. End loans whose CPU changed its owner, and loans beyond what a unit may currently lend or borrow.
//! 2. Call back what each owner wants beyond what it kept.
//! 3. Return what each borrower holds beyond what it wants.
//! 4. Lend each idle CPU to a unit that may borrow and wants more than it holds. The lender's siblings come first: an idle
//!    unit's share stays within the family. Ties go to the unit that holds the least relative to its entitlement. Past net
//!    lending ([`crate::credits`]) counts as if the unit held less: one CPU for each CPU lent for one rotation.
//! 5. At a rotation, move at most one loan, from the borrower that holds the most relative to its entitlement to a waiting unit
//!    that holds less.
//!
//! Properties:
//! - Only CPUs that no task of the owner waits for are lent. Lender and borrower know of a loan at every step.
//! - A unit that may not lend or borrow never does. No unit borrows beyond its limit. No unit lends or borrows more than the
//!   amount in its contract, rounded down to whole CPUs.
//! - The numbers of CPUs that each unit owns, lends and borrows are counted once and then maintained. A step costs one visit to
//!   each loan and unit, and each new loan one lookup of the next waiter.
//!
//! Limit: a step sees samples. A burst between two of them shows only as CPU time used.
//!
//! Source: seed 000, section 3.1 (idle CPUs lent, revoked at the next 10 ms tick); seed 004, section 5.2 (inactive tickets
//! raise the value of their siblings').

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, Permission, Resource, Scheme, UnitId};

use super::partition::{Owners, partitions};
use super::tally::Tally;
use super::waiting::{Queues, Waiter};
use crate::credits::Credits;
use crate::plan::{CpuDecision, Reason, Step};
use crate::rights::limits;
use crate::snapshot::Means;
use crate::time::{MS, Time};

/// How long a peak of demand is remembered: shorter pauses lend nothing.
pub const SETTLE_NS: Time = 50 * MS;

/// A CPU on loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loan {
    pub(crate) lender: UnitId,
    pub(crate) borrower: UnitId,
}

/// How many CPUs a unit wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Want {
    /// In the latest snapshot.
    pub(crate) now: u32,
    /// The largest want of the last [`SETTLE_NS`].
    pub(crate) settled: u32,
    /// When demand was last as high as `settled`.
    seen_at: Time,
    /// When demand was last met by the CPUs it kept: the start of a call-back's latency.
    content_at: Time,
    /// When demand was last above the present `settled`.
    sank_at: Time,
}

impl Want {
    /// The demand of a new unit: one CPU until it is sampled, since it came to run something.
    pub(crate) fn of_newcomer(now: Time) -> Self {
        Want { now: 1, settled: 1, seen_at: now, content_at: now, sank_at: now }
    }

    /// The demand of the common parts: none.
    pub(crate) fn of_common_part(now: Time) -> Self {
        Want { sank_at: now, ..Want::default() }
    }

    /// Adds a sample.
    pub(crate) fn sample(&mut self, now: Time, wants: u32) {
        if wants >= self.settled || now.saturating_sub(self.seen_at) >= SETTLE_NS {
            if wants < self.settled {
                self.sank_at = self.seen_at;
            }
            self.settled = wants;
            self.seen_at = now;
        }
        self.now = wants;
    }
}

/// Whether any of a unit's idle CPUs may be lent. CPUs that no unit is entitled to belong to the common parts, which lend them
/// to any unit.
pub fn lends(contract: &Contract, unit: UnitId) -> bool {
    contract.machine.scheme == Scheme::Isolate && (unit.is_common() || contract.unit(unit).lend.cpu.allows())
}

/// Whether a unit may borrow idle CPUs of others.
pub fn borrows(contract: &Contract, unit: UnitId) -> bool {
    contract.machine.scheme == Scheme::Isolate && contract.unit(unit).borrow.cpu.allows()
}

/// An amount of CPUs to lend or borrow that the backend cannot enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotHeld {
    /// The unit whose contract has the amount.
    pub unit: UnitId,
    /// Which side of a loan it limits.
    pub side: Side,
    /// Why.
    pub why: WhyNot,
}

/// A side of a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `lend`.
    Lend,
    /// `borrow`.
    Borrow,
}

/// Why an amount cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNot {
    /// The scheduler lends at every switch, and knows only yes and no. The amount counts as yes.
    EverySwitch,
    /// CPUs are time-shared by weight, which is work-conserving. The amount counts as yes.
    Shared,
    /// Only whole CPUs are lent, and the amount is less than one. It counts as no.
    LessThanACpu,
}

/// The amounts of CPUs to lend and borrow that a backend with these means cannot enforce on a machine with `cpus` CPUs, in the
/// contract's order, `lend` before `borrow`. Empty if the scheme makes no loans, or if the backend enforces nothing about CPUs.
pub fn not_held(contract: &Contract, means: Means, cpus: usize) -> Vec<NotHeld> {
    let holds_cpus = means.cpu_sets || means.weights;
    if contract.machine.scheme != Scheme::Isolate || !holds_cpus {
        return Vec::new();
    }
    let tops = contract.children(None).count();
    let partitioned = partitions(contract, means, tops, cpus);
    let whole = cpus as u64 * MILLIONTH;
    let why = |id: UnitId, side: Side| {
        let unit = contract.unit(id);
        let permission = match side {
            Side::Lend => unit.lend.cpu,
            Side::Borrow => unit.borrow.cpu,
        };
        let amount = permission.amount().filter(|_| permission.allows())?;
        // Plans lend between top-level units where weights divide CPUs inside them, otherwise between all units.
        let by_plans = partitioned && (!means.weights || unit.parent.is_none());
        match side {
            _ if means.switches => Some(WhyNot::EverySwitch),
            Side::Borrow if !by_plans && means.caps => None,
            _ if !by_plans => Some(WhyNot::Shared),
            // A percentage to lend is of the CPUs that the unit owns, which are at most the machine's.
            _ => (amount.of(whole) < MILLIONTH).then_some(WhyNot::LessThanACpu),
        }
    };
    let sides = |unit: UnitId| [Side::Lend, Side::Borrow].map(|side| (unit, side));
    let found = |(unit, side): (UnitId, Side)| why(unit, side).map(|why| NotHeld { unit, side, why });
    contract.held().flat_map(sides).filter_map(found).collect()
}

/// The inputs and outputs of lending.
pub(crate) struct Market<'a> {
    pub(crate) contract: &'a Contract,
    pub(crate) now: Time,
    pub(crate) owners: &'a Owners,
    /// Entitlements of the competing units, in millionths of a CPU.
    pub(crate) claims: &'a BTreeMap<UnitId, u64>,
    /// The most CPUs that a limited unit may hold.
    pub(crate) limits: &'a BTreeMap<UnitId, usize>,
    pub(crate) wants: &'a mut BTreeMap<UnitId, Want>,
    pub(crate) loans: &'a mut BTreeMap<u32, Loan>,
    pub(crate) steps: &'a mut Vec<Step<CpuDecision>>,
    pub(crate) counts: Counts,
    pub(crate) credits: &'a Credits,
}

/// How many CPUs each unit owns, lends and borrows.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    owned: Tally,
    lent: Tally,
    borrowed: Tally,
}

impl Counts {
    pub(crate) fn of(owners: &Owners, loans: &BTreeMap<u32, Loan>) -> Counts {
        Counts {
            owned: owners.values().copied().collect(),
            lent: loans.values().map(|loan| loan.lender).collect(),
            borrowed: loans.values().map(|loan| loan.borrower).collect(),
        }
    }

    fn kept(&self, unit: UnitId) -> usize {
        self.owned.get(unit) - self.lent.get(unit)
    }

    fn held(&self, unit: UnitId) -> usize {
        self.kept(unit) + self.borrowed.get(unit)
    }
}

impl Market<'_> {
    /// Runs one step of the algorithm. `rotated`: CPUs were reassigned, or loans are due for redistribution.
    pub(crate) fn settle(&mut self, rotated: bool) {
        self.end_orphans();
        self.end_beyond();
        self.call_back();
        self.give_back();
        if rotated {
            self.rebalance();
        }
        self.lend();
    }

    /// Ends every loan.
    pub(crate) fn close(&mut self, reason: Reason) {
        for (cpu, loan) in core::mem::take(self.loans) {
            self.steps.push(returned(cpu, loan, reason));
        }
        self.counts = Counts::of(self.owners, self.loans);
    }

    fn begin(&mut self, cpu: u32, loan: Loan) {
        self.loans.insert(cpu, loan);
        self.counts.lent.add(loan.lender);
        self.counts.borrowed.add(loan.borrower);
    }

    fn end(&mut self, cpu: u32) {
        if let Some(loan) = self.loans.remove(&cpu) {
            self.counts.lent.sub(loan.lender);
            self.counts.borrowed.sub(loan.borrower);
        }
    }

    fn want(&self, unit: UnitId) -> Want {
        self.wants.get(&unit).copied().unwrap_or_default()
    }

    fn end_orphans(&mut self) {
        let gone: Vec<(u32, Loan)> = self
            .loans
            .iter()
            .filter(|(cpu, loan)| {
                self.owners.get(cpu) != Some(&loan.lender) || !self.claims.contains_key(&loan.borrower)
            })
            .map(|(cpu, loan)| (*cpu, *loan))
            .collect();
        for (cpu, loan) in gone {
            self.end(cpu);
            let reason = if self.owners.contains_key(&cpu) { Reason::TurnOver } else { Reason::CpuGone };
            self.steps.push(returned(cpu, loan, reason));
        }
    }

    /// Ends loans beyond what units may lend or borrow: the contract or an entitlement may have changed.
    fn end_beyond(&mut self) {
        for (lender, theirs) in self.loans_by(|loan| loan.lender) {
            let beyond = self.counts.lent.get(lender).saturating_sub(self.may_lend(lender));
            self.end_some(theirs, beyond);
        }
        for (borrower, theirs) in self.loans_by(|loan| loan.borrower) {
            let beyond = self.counts.borrowed.get(borrower).saturating_sub(self.may_borrow(borrower));
            self.end_some(theirs, beyond);
        }
    }

    fn end_some(&mut self, loans: Vec<(u32, Loan)>, count: usize) {
        for (cpu, loan) in loans.into_iter().take(count) {
            self.end(cpu);
            self.steps.push(returned(cpu, loan, Reason::LoanLimit));
        }
    }

    fn call_back(&mut self) {
        let by_lender = self.loans_by(|loan| loan.lender);
        let lenders: Vec<UnitId> = self.claims.keys().copied().collect();
        for lender in lenders {
            let (want, kept) = (self.want(lender), self.counts.kept(lender));
            let short = (want.now as usize).saturating_sub(kept);
            let reason =
                Reason::OwnerWants { runnable: want.now, kept: u32::try_from(kept).unwrap_or(u32::MAX) };
            for (cpu, loan) in loans_of(&by_lender, lender).iter().take(short) {
                self.end(*cpu);
                let action = CpuDecision::CallBack {
                    cpu: *cpu,
                    lender,
                    borrower: loan.borrower,
                    since: want.content_at,
                };
                self.steps.push(Step { action, reason });
            }
            if want.now as usize <= kept
                && let Some(want) = self.wants.get_mut(&lender)
            {
                want.content_at = self.now;
            }
        }
    }

    fn give_back(&mut self) {
        for (borrower, theirs) in self.loans_by(|loan| loan.borrower) {
            // Recomputed for each borrower: a CPU that one returned may count for another by now.
            let surplus = self.counts.held(borrower).saturating_sub(self.want(borrower).settled as usize);
            for (cpu, loan) in theirs.into_iter().take(surplus) {
                self.end(cpu);
                self.steps.push(returned(cpu, loan, Reason::BorrowerIdle));
            }
        }
    }

    /// The loans by lender or borrower, highest CPU first.
    fn loans_by(&self, whose: impl Fn(&Loan) -> UnitId) -> BTreeMap<UnitId, Vec<(u32, Loan)>> {
        let mut sorted: BTreeMap<UnitId, Vec<(u32, Loan)>> = BTreeMap::new();
        for (cpu, loan) in self.loans.iter().rev() {
            sorted.entry(whose(loan)).or_default().push((*cpu, *loan));
        }
        sorted
    }

    /// Lends idle CPUs. One pass suffices: each loan leaves the lender fewer idle CPUs and the borrower less unmet demand, so
    /// that a CPU that was skipped would be skipped again.
    fn lend(&mut self) {
        let mut waiting = Queues::of(self.contract, self.waiting());
        if waiting.is_empty() {
            return;
        }
        // Highest CPUs first, so that an owner's lowest CPUs keep its own cache contents longest.
        for (cpu, lender) in self.owners.iter().rev() {
            if !self.idle(*cpu, *lender) {
                continue;
            }
            // An owner with idle CPUs has no unmet demand, so it is not among the waiters.
            let now = |unit| self.waits(unit).then(|| self.waiter(unit));
            let Some(borrower) = waiting.next(*lender, now) else { return };
            self.lend_one(*cpu, *lender, borrower);
        }
    }

    fn lend_one(&mut self, cpu: u32, lender: UnitId, borrower: UnitId) {
        let idle_ns = self.now.saturating_sub(self.want(lender).sank_at);
        self.begin(cpu, Loan { lender, borrower });
        let action = CpuDecision::Lend { cpu, lender, borrower };
        let reason = match u64::try_from(self.credits.of(borrower)) {
            Ok(credit_ns) if credit_ns > 0 => Reason::OwnerIdleToGiver { idle_ns, credit_ns },
            _ => Reason::OwnerIdle { idle_ns },
        };
        self.steps.push(Step { action, reason });
    }

    /// Whether the owner can spare this CPU and may lend it.
    fn idle(&self, cpu: u32, lender: UnitId) -> bool {
        self.counts.kept(lender) > self.want(lender).settled as usize
            && !self.loans.contains_key(&cpu)
            && lends(self.contract, lender)
            && self.counts.lent.get(lender) < self.may_lend(lender)
    }

    /// How many CPUs a unit may lend at once. A percentage applies to the CPUs that it owns at the moment. A shared CPU is
    /// owned for part of the time, so on average the percentage applies to the entitlement.
    fn may_lend(&self, unit: UnitId) -> usize {
        if unit.is_common() {
            return usize::MAX;
        }
        let owned = self.counts.owned.get(unit) as u64 * MILLIONTH;
        whole_cpus(self.contract.unit(unit).lend.cpu.most(owned))
    }

    /// How many CPUs a unit may borrow at once.
    fn may_borrow(&self, unit: UnitId) -> usize {
        let machine = self.owners.len() as u64 * MILLIONTH;
        match self.contract.unit(unit).borrow.cpu {
            Permission::No => 0,
            Permission::Yes => usize::MAX,
            Permission::AtMost(_) => {
                limits::borrows(self.contract, Resource::Cpu, unit, machine).map_or(usize::MAX, whole_cpus)
            }
        }
    }

    /// The units that may borrow and have unmet demand.
    fn waiting(&self) -> impl Iterator<Item = Waiter> {
        self.claims.keys().filter(|unit| self.waits(**unit)).map(|unit| self.waiter(*unit))
    }

    /// A unit's holdings and entitlement, as the queue needs them.
    fn waiter(&self, unit: UnitId) -> Waiter {
        let claim = self.claims.get(&unit).copied().unwrap_or(0).max(1);
        Waiter { unit, held: self.counts.held(unit), claim, credit: self.credit(unit) }
    }

    /// A unit's net lending in the past, in millionths of a CPU over one rotation.
    fn credit(&self, unit: UnitId) -> i64 {
        let rotation = i128::from(self.contract.machine.rotation_ns.max(1));
        let micro = self.credits.of(unit).saturating_mul(i128::from(MILLIONTH)) / rotation;
        i64::try_from(micro).unwrap_or(if micro < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whether a unit may borrow one more CPU and has unmet demand.
    fn waits(&self, unit: UnitId) -> bool {
        let held = self.counts.held(unit);
        !unit.is_common()
            && borrows(self.contract, unit)
            && self.want(unit).settled as usize > held
            && self.limits.get(&unit).is_none_or(|limit| held < *limit)
            && self.counts.borrowed.get(unit) < self.may_borrow(unit)
    }

    fn rebalance(&mut self) {
        let Some(poor) = self.waiting().min() else { return };
        let borrowers: BTreeSet<UnitId> = self.loans.values().map(|loan| loan.borrower).collect();
        let others = borrowers.into_iter().filter(|unit| *unit != poor.unit).map(|unit| self.waiter(unit));
        // Ties go to the lowest number.
        let Some(rich) = others.max_by(|a, b| a.compare_holds(b).then(b.unit.cmp(&a.unit))) else { return };
        // Only if the giving unit would still hold at least as much relative to its entitlement; otherwise the two would swap
        // forever.
        if (Waiter { held: poor.held + 1, ..poor }).compare_holds(&rich).is_gt() {
            return;
        }
        let given = |(_, loan): &(&u32, &Loan)| loan.borrower == rich.unit && loan.lender != poor.unit;
        let Some((cpu, loan)) = self.loans.iter().rev().find(given).map(|(cpu, loan)| (*cpu, *loan)) else {
            return;
        };
        let reason = Reason::LargerClaim { of: poor.unit };
        self.end(cpu);
        self.steps.push(returned(cpu, loan, reason));
        let (lender, borrower) = (loan.lender, poor.unit);
        self.begin(cpu, Loan { lender, borrower });
        self.steps.push(Step { action: CpuDecision::Lend { cpu, lender, borrower }, reason });
    }
}

/// Millionths of a CPU as whole CPUs, rounded down.
fn whole_cpus(micro: u64) -> usize {
    usize::try_from(micro / MILLIONTH).unwrap_or(usize::MAX)
}

/// One unit's loans.
fn loans_of(by_unit: &BTreeMap<UnitId, Vec<(u32, Loan)>>, unit: UnitId) -> &[(u32, Loan)] {
    by_unit.get(&unit).map_or(&[], Vec::as_slice)
}

fn returned(cpu: u32, loan: Loan, reason: Reason) -> Step<CpuDecision> {
    Step { action: CpuDecision::Return { cpu, lender: loan.lender, borrower: loan.borrower }, reason }
}
