//! Loans of idle CPUs, and their call-back.
//!
//! Problem: a unit that does not use its CPUs should lend them, and must get them back within the contract's
//! call-back time when it needs them. Under the `kernel` backend the scheduler lends and calls back at every
//! switch, without this module: see `loan_of` in dispatch/src/choice.h.
//!
//! Terms: a unit *wants* as many CPUs as it has runnable threads, or as many as it used on average since the
//! previous sample if that is more. The unit's *settled* want falls only after the unit wanted less for
//! [`SETTLE_NS`] (hysteresis), so that a pause between two commands lends nothing. A unit *keeps* the CPUs
//! that it owns and does not lend. It *holds* the CPUs that it keeps and the CPUs that it borrows.
//!
//! Algorithm, at each step:
//! 1. End loans whose CPU changed its owner, and loans beyond what a unit may currently lend or borrow.
//! 2. If an owner wants more CPUs than it keeps, call back as many of its lent CPUs as it lacks.
//! 3. If a borrower holds more CPUs than it wants, return the surplus from the CPUs that it borrows.
//! 4. At a rotation, move at most one loan: from the borrower that holds the most CPUs relative to its
//!    entitlement to a waiting unit that holds fewer relative to its own.
//! 5. Lend each idle CPU to a unit that may borrow and wants more CPUs than it holds. The lender's siblings
//!    come first, since the tickets of an idle unit raise the value of its siblings' tickets. Among equally
//!    close units, the unit that holds the fewest CPUs relative to its entitlement comes first. A unit that
//!    has lent more than it borrowed ([`crate::credits`]) counts as holding fewer: one CPU fewer for each CPU
//!    that it lent for one rotation.
//!
//! Example: A is entitled to 2 CPUs and holds 2, B is entitled to 1 and holds 2. An idle CPU goes to A, since
//! 2/2 < 2/1. If A also has a credit of one CPU for one rotation, A counts as holding 1, and comes even
//! before a unit that is entitled to 3 CPUs and holds 2, since 1/2 < 2/3.
//!
//! Properties:
//! - Only CPUs that no task of the owner waits for are lent. Lender and borrower of each loan are known at
//!   every step.
//! - A unit that may not lend or borrow never does. No unit borrows beyond its limit. No unit lends or
//!   borrows more than the amount in its contract, rounded down to whole CPUs.
//! - The numbers of CPUs that each unit owns, lends and borrows are counted once and then maintained. A step
//!   costs one visit to each loan and unit, and each new loan one lookup of the next waiter.
//!
//! Limit: demand is known from samples only. A burst between two samples shows only as CPU time used.
//!
//! Source: seed 000, section 3.1 (idle CPUs lent, revoked at the next 10 ms tick); seed 004, section 5.2
//! (inactive tickets raise the value of their siblings').

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

/// How long a unit's demand must stay lower before its idle CPUs are lent. So shorter pauses lend nothing.
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
    /// The number in the latest snapshot.
    pub(crate) now: u32,
    /// The number by which the unit lends and borrows. It rises with demand at once, and falls only after
    /// demand was lower for [`SETTLE_NS`].
    pub(crate) settled: u32,
    /// When demand was last as high as `settled`.
    reached_at: Time,
    /// The last time at which the CPUs that the unit keeps sufficed for its demand. The latency of a
    /// call-back counts from then.
    met_at: Time,
    /// The last time at which demand was higher than `settled` is now. Since then, CPUs of the unit are idle.
    higher_until: Time,
}

impl Want {
    /// The demand of a new unit: one CPU until it is sampled, since it came to run something.
    pub(crate) fn of_newcomer(now: Time) -> Self {
        Want { now: 1, settled: 1, reached_at: now, met_at: now, higher_until: now }
    }

    /// The demand of a common part (`shared`), which never wants a CPU.
    pub(crate) fn of_common_part(now: Time) -> Self {
        Want { higher_until: now, ..Want::default() }
    }

    /// Adds a sample of demand, in CPUs.
    pub(crate) fn sample(&mut self, now: Time, demand: u32) {
        if demand >= self.settled || now.saturating_sub(self.reached_at) >= SETTLE_NS {
            if demand < self.settled {
                self.higher_until = self.reached_at;
            }
            self.settled = demand;
            self.reached_at = now;
        }
        self.now = demand;
    }
}

/// Whether a unit may lend idle CPUs. The common parts own the CPUs that no unit is entitled to, and always
/// lend them.
pub fn lends(contract: &Contract, unit: UnitId) -> bool {
    contract.machine.scheme == Scheme::Isolate && (unit.is_common() || contract.unit(unit).lend.cpu.allows())
}

/// Whether a unit may borrow idle CPUs of other units.
pub fn borrows(contract: &Contract, unit: UnitId) -> bool {
    contract.machine.scheme == Scheme::Isolate && contract.unit(unit).borrow.cpu.allows()
}

/// An amount of CPUs to lend or borrow that the backend cannot enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotHeld {
    /// The unit whose contract has the amount.
    pub unit: UnitId,
    /// Whether the amount limits what the unit lends or what it borrows.
    pub side: Side,
    /// Why the backend cannot enforce the amount.
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

/// Lists the amounts of CPUs to lend and to borrow that the contract states and that a backend with these
/// means cannot enforce on a machine with `cpus` CPUs. They are in the contract's order, `lend` before
/// `borrow`. The list is empty if the scheme makes no loans, or if the backend enforces nothing about CPUs.
pub fn not_held(contract: &Contract, means: Means, cpus: usize) -> Vec<NotHeld> {
    let holds_cpus = means.cpu_sets || means.weights;
    if contract.machine.scheme != Scheme::Isolate || !holds_cpus {
        return Vec::new();
    }
    let top_level_units = contract.children(None).count();
    let partitioned = partitions(contract, means, top_level_units, cpus);
    let machine_micro = cpus as u64 * MILLIONTH;
    let why = |id: UnitId, side: Side| {
        let unit = contract.unit(id);
        let permission = match side {
            Side::Lend => unit.lend.cpu,
            Side::Borrow => unit.borrow.cpu,
        };
        let amount = permission.amount().filter(|_| permission.allows())?;
        // Plans lend CPUs between all units; but if weights divide the CPUs inside top-level units, between
        // these alone.
        let lent_by_plans = partitioned && (!means.weights || unit.parent.is_none());
        match side {
            _ if means.switches => Some(WhyNot::EverySwitch),
            Side::Borrow if !lent_by_plans && means.caps => None,
            _ if !lent_by_plans => Some(WhyNot::Shared),
            // A percentage to lend is of the CPUs that the unit owns. It is reported only if it would be less
            // than a CPU even of the whole machine.
            _ => (amount.of(machine_micro) < MILLIONTH).then_some(WhyNot::LessThanACpu),
        }
    };
    let sides = |unit: UnitId| [Side::Lend, Side::Borrow].map(|side| (unit, side));
    let not_held = |(unit, side): (UnitId, Side)| why(unit, side).map(|why| NotHeld { unit, side, why });
    contract.held().flat_map(sides).filter_map(not_held).collect()
}

/// One step of lending: the facts that it is decided from, and the wants, loans, counts and decisions that it
/// changes.
pub(crate) struct Market<'a> {
    pub(crate) contract: &'a Contract,
    pub(crate) now: Time,
    pub(crate) owners: &'a Owners,
    /// The competing units' entitlements, in millionths of a CPU.
    pub(crate) claims: &'a BTreeMap<UnitId, u64>,
    /// The most CPUs that each unit with a limit may hold.
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

    /// The CPUs that a unit owns and does not lend.
    fn kept(&self, unit: UnitId) -> usize {
        self.owned.get(unit) - self.lent.get(unit)
    }

    /// The CPUs that a unit keeps or borrows.
    fn held(&self, unit: UnitId) -> usize {
        self.kept(unit) + self.borrowed.get(unit)
    }
}

impl Market<'_> {
    /// Runs one step of the algorithm. `redistributes` enables rule 4: it is true if CPUs were reassigned, or
    /// if a rotation period has passed.
    pub(crate) fn settle(&mut self, redistributes: bool) {
        self.end_orphans();
        self.end_excess();
        self.call_back();
        self.return_surplus();
        if redistributes {
            self.move_one_loan();
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

    /// Enters a loan and counts it.
    fn begin(&mut self, cpu: u32, loan: Loan) {
        self.loans.insert(cpu, loan);
        self.counts.lent.add(loan.lender);
        self.counts.borrowed.add(loan.borrower);
    }

    /// Removes the loan of a CPU, if there is one, from the loans and from the counts.
    fn end(&mut self, cpu: u32) {
        if let Some(loan) = self.loans.remove(&cpu) {
            self.counts.lent.sub(loan.lender);
            self.counts.borrowed.sub(loan.borrower);
        }
    }

    fn want(&self, unit: UnitId) -> Want {
        self.wants.get(&unit).copied().unwrap_or_default()
    }

    /// Ends loans whose lender no longer owns the CPU, or whose borrower no longer competes.
    fn end_orphans(&mut self) {
        let orphans: Vec<(u32, Loan)> = self
            .loans
            .iter()
            .filter(|(cpu, loan)| {
                self.owners.get(cpu) != Some(&loan.lender) || !self.claims.contains_key(&loan.borrower)
            })
            .map(|(cpu, loan)| (*cpu, *loan))
            .collect();
        for (cpu, loan) in orphans {
            self.end(cpu);
            let reason = if self.owners.contains_key(&cpu) { Reason::TurnOver } else { Reason::CpuGone };
            self.steps.push(returned(cpu, loan, reason));
        }
    }

    /// Ends loans beyond what units may lend or borrow: the contract or an entitlement may have changed since
    /// they began.
    fn end_excess(&mut self) {
        for (lender, loans) in self.loans_by(|loan| loan.lender) {
            let excess = self.counts.lent.get(lender).saturating_sub(self.lend_max(lender));
            self.end_first(loans, excess);
        }
        for (borrower, loans) in self.loans_by(|loan| loan.borrower) {
            let excess = self.counts.borrowed.get(borrower).saturating_sub(self.borrow_max(borrower));
            self.end_first(loans, excess);
        }
    }

    /// Ends the first `count` of these loans, since the contract does not allow them.
    fn end_first(&mut self, loans: Vec<(u32, Loan)>, count: usize) {
        for (cpu, loan) in loans.into_iter().take(count) {
            self.end(cpu);
            self.steps.push(returned(cpu, loan, Reason::LoanLimit));
        }
    }

    /// If an owner wants more CPUs than it keeps, calls back as many of its lent CPUs as it lacks, those with
    /// the highest numbers first.
    fn call_back(&mut self) {
        let by_lender = self.loans_by(|loan| loan.lender);
        let lenders: Vec<UnitId> = self.claims.keys().copied().collect();
        for lender in lenders {
            let (want, kept) = (self.want(lender), self.counts.kept(lender));
            let missing = (want.now as usize).saturating_sub(kept);
            let reason =
                Reason::OwnerWants { runnable: want.now, kept: u32::try_from(kept).unwrap_or(u32::MAX) };
            for (cpu, loan) in loans_of(&by_lender, lender).iter().take(missing) {
                self.end(*cpu);
                let action =
                    CpuDecision::CallBack { cpu: *cpu, lender, borrower: loan.borrower, since: want.met_at };
                self.steps.push(Step { action, reason });
            }
            if want.now as usize <= kept
                && let Some(want) = self.wants.get_mut(&lender)
            {
                want.met_at = self.now;
            }
        }
    }

    /// If a borrower holds more CPUs than it wants, returns the surplus from its borrowed CPUs, those with
    /// the highest numbers first.
    fn return_surplus(&mut self) {
        for (borrower, loans) in self.loans_by(|loan| loan.borrower) {
            // Computed anew for each borrower: it may own a CPU that another borrower has just returned.
            let surplus = self.counts.held(borrower).saturating_sub(self.want(borrower).settled as usize);
            for (cpu, loan) in loans.into_iter().take(surplus) {
                self.end(cpu);
                self.steps.push(returned(cpu, loan, Reason::BorrowerIdle));
            }
        }
    }

    /// The loans grouped by lender or by borrower: `unit_of` chooses one of the two. Within a group, the CPU
    /// with the highest number comes first.
    fn loans_by(&self, unit_of: impl Fn(&Loan) -> UnitId) -> BTreeMap<UnitId, Vec<(u32, Loan)>> {
        let mut groups: BTreeMap<UnitId, Vec<(u32, Loan)>> = BTreeMap::new();
        for (cpu, loan) in self.loans.iter().rev() {
            groups.entry(unit_of(loan)).or_default().push((*cpu, *loan));
        }
        groups
    }

    /// Lends idle CPUs. One pass over the CPUs suffices: after each loan, the lender has fewer idle CPUs and
    /// the borrower less unmet demand. So a CPU that was skipped would be skipped in a second pass, too.
    fn lend(&mut self) {
        let mut queues = Queues::of(self.contract, self.waiters());
        if queues.is_empty() {
            return;
        }
        // The CPUs with the highest numbers are lent first, so that on the others the owner's cache contents
        // survive longest.
        for (cpu, lender) in self.owners.iter().rev() {
            if !self.can_lend(*cpu, *lender) {
                continue;
            }
            // An owner with idle CPUs has no unmet demand, so it is not among the waiters.
            let current = |unit| self.is_waiting(unit).then(|| self.waiter(unit));
            let Some(borrower) = queues.next(*lender, current) else { return };
            self.lend_one(*cpu, *lender, borrower);
        }
    }

    /// Lends one CPU. The reason names the borrower's credit, if the borrower has lent more than it borrowed.
    fn lend_one(&mut self, cpu: u32, lender: UnitId, borrower: UnitId) {
        let idle_ns = self.now.saturating_sub(self.want(lender).higher_until);
        self.begin(cpu, Loan { lender, borrower });
        let action = CpuDecision::Lend { cpu, lender, borrower };
        let reason = match u64::try_from(self.credits.of(borrower)) {
            Ok(credit_ns) if credit_ns > 0 => Reason::OwnerIdleToGiver { idle_ns, credit_ns },
            _ => Reason::OwnerIdle { idle_ns },
        };
        self.steps.push(Step { action, reason });
    }

    /// Whether this CPU is not lent, and its owner keeps more CPUs than it wants and may lend one more.
    fn can_lend(&self, cpu: u32, lender: UnitId) -> bool {
        self.counts.kept(lender) > self.want(lender).settled as usize
            && !self.loans.contains_key(&cpu)
            && lends(self.contract, lender)
            && self.counts.lent.get(lender) < self.lend_max(lender)
    }

    /// How many CPUs a unit may lend at the same time. A percentage in the contract applies to the CPUs that
    /// the unit owns now, including a shared CPU during the unit's turn. So on average over time the
    /// percentage applies to the unit's entitlement.
    fn lend_max(&self, unit: UnitId) -> usize {
        if unit.is_common() {
            return usize::MAX;
        }
        let owned = self.counts.owned.get(unit) as u64 * MILLIONTH;
        whole_cpus(self.contract.unit(unit).lend.cpu.most(owned))
    }

    /// How many CPUs a unit may borrow at the same time.
    fn borrow_max(&self, unit: UnitId) -> usize {
        let machine_micro = self.owners.len() as u64 * MILLIONTH;
        match self.contract.unit(unit).borrow.cpu {
            Permission::No => 0,
            Permission::Yes => usize::MAX,
            Permission::AtMost(_) => limits::borrows(self.contract, Resource::Cpu, unit, machine_micro)
                .map_or(usize::MAX, whole_cpus),
        }
    }

    /// The units that may borrow and have unmet demand.
    fn waiters(&self) -> impl Iterator<Item = Waiter> {
        self.claims.keys().filter(|unit| self.is_waiting(**unit)).map(|unit| self.waiter(*unit))
    }

    /// The number of CPUs that a unit holds, its entitlement and its credit: the queues order units by these.
    fn waiter(&self, unit: UnitId) -> Waiter {
        let claim = self.claims.get(&unit).copied().unwrap_or(0).max(1);
        Waiter { unit, held: self.counts.held(unit), claim, credit: self.credit(unit) }
    }

    /// A unit's credit, in millionths of a CPU lent for one rotation; negative for a net borrower.
    fn credit(&self, unit: UnitId) -> i64 {
        let rotation = i128::from(self.contract.machine.rotation_ns.max(1));
        let micro = self.credits.of(unit).saturating_mul(i128::from(MILLIONTH)) / rotation;
        i64::try_from(micro).unwrap_or(if micro < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whether a unit may borrow one more CPU and has unmet demand.
    fn is_waiting(&self, unit: UnitId) -> bool {
        let held = self.counts.held(unit);
        !unit.is_common()
            && borrows(self.contract, unit)
            && self.want(unit).settled as usize > held
            && self.limits.get(&unit).is_none_or(|limit| held < *limit)
            && self.counts.borrowed.get(unit) < self.borrow_max(unit)
    }

    /// Moves one loan: from the borrower that holds the most CPUs relative to its entitlement to the waiting
    /// unit that holds the fewest relative to its own.
    fn move_one_loan(&mut self) {
        let Some(poorest) = self.waiters().min() else { return };
        let borrowers: BTreeSet<UnitId> = self.loans.values().map(|loan| loan.borrower).collect();
        let others = borrowers.into_iter().filter(|unit| *unit != poorest.unit).map(|unit| self.waiter(unit));
        // Ties go to the lowest unit number.
        let richest = others.max_by(|a, b| a.compare_holdings(b).then(b.unit.cmp(&a.unit)));
        let Some(richest) = richest else { return };
        // Relative to their entitlements, the poorest with one CPU more may hold no more than the richest
        // holds now. Otherwise the next rotation would move the loan back, and so on forever.
        if (Waiter { held: poorest.held + 1, ..poorest }).compare_holdings(&richest).is_gt() {
            return;
        }
        let can_move =
            |(_, loan): &(&u32, &Loan)| loan.borrower == richest.unit && loan.lender != poorest.unit;
        let loan_to_move = self.loans.iter().rev().find(can_move).map(|(cpu, loan)| (*cpu, *loan));
        let Some((cpu, loan)) = loan_to_move else { return };
        let reason = Reason::LargerClaim { of: poorest.unit };
        self.end(cpu);
        self.steps.push(returned(cpu, loan, reason));
        let (lender, borrower) = (loan.lender, poorest.unit);
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

/// The decision to return a borrowed CPU to its owner.
fn returned(cpu: u32, loan: Loan, reason: Reason) -> Step<CpuDecision> {
    Step { action: CpuDecision::Return { cpu, lender: loan.lender, borrower: loan.borrower }, reason }
}
