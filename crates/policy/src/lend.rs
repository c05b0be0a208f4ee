//! Loans of idle CPUs, and their call-back.
//!
//! Problem: a unit that does not use its CPUs should lend them, and must get them back within the contract's call-back
//! time when it wants them again. Terms: a unit *wants* as many CPUs as it has threads to run, or as it used lately if that
//! is more; wants are held for [`SETTLE_NS`], so that a pause between two commands lends nothing. A unit *holds* what it
//! owns, less what it lends, plus what it borrows.
//!
//! Algorithm, at each step: (1) loans whose CPU changed its owner end; (2) an owner that wants more than it kept calls
//! back the difference; (3) borrowers that hold more than they want return the difference; (4) each idle CPU goes to the
//! unit that may borrow and wants more than it holds: first among the lender's siblings in the tree (an idle unit's share
//! stays in the family), then the one that holds least for what it is entitled to; (5) at a rotation, one loan may pass
//! from the borrower that holds most for its entitlement to one that waits and holds less.
//!
//! Properties: only what nobody of the owner's waits for is lent; a loan is known to lender and borrower at every step;
//! who may not lend or borrow never does; nobody borrows beyond its limit. Limit: a step sees samples; what a thread did
//! between two of them shows only in the time it used. Source: seed 000, section 3.1 (idle CPUs lent, revoked at the next
//! 10 ms tick); seed 004, section 5.2 (inactive tickets raise the value of their siblings').

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use commonhold_contract::{Contract, MILLIONTH, UnitId};

use crate::membership::is_within;
use crate::partition::Owners;
use crate::plan::{Action, Reason, Step};
use crate::{MS, Time};

/// How long a unit's want is remembered after it sank: shorter pauses lend nothing.
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
    /// When `settled` was last seen to be true.
    seen_at: Time,
    /// The last moment at which it wanted no more than it kept: a call-back's latency counts from there.
    content_at: Time,
    /// When it was last seen to want more than `settled`.
    sank_at: Time,
}

impl Want {
    /// The want of a unit that has just come: nobody comes to do nothing, so one CPU, until it is seen.
    pub(crate) fn of_newcomer(now: Time) -> Self {
        Want { now: 1, settled: 1, seen_at: now, content_at: now, sank_at: now }
    }

    /// The want of the common parts: none, since they came.
    pub(crate) fn of_nobody(now: Time) -> Self {
        Want { sank_at: now, ..Want::default() }
    }

    /// Takes in a new sample.
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

/// Everything that lending decides on.
pub(crate) struct Market<'a> {
    pub(crate) contract: &'a Contract,
    pub(crate) now: Time,
    pub(crate) owners: &'a Owners,
    /// Entitlements of the units that compete for CPUs, in millionths.
    pub(crate) claims: &'a BTreeMap<UnitId, u64>,
    /// CPUs that a unit may hold at the most, where its contract limits it.
    pub(crate) limits: &'a BTreeMap<UnitId, usize>,
    pub(crate) wants: &'a mut BTreeMap<UnitId, Want>,
    pub(crate) loans: &'a mut BTreeMap<u32, Loan>,
    pub(crate) steps: &'a mut Vec<Step>,
}

impl Market<'_> {
    /// One step of the algorithm. `rotated`: ownership was dealt out anew.
    pub(crate) fn settle(&mut self, rotated: bool) {
        self.end_orphans();
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
    }

    fn want(&self, unit: UnitId) -> Want {
        self.wants.get(&unit).copied().unwrap_or_default()
    }

    fn owned(&self, unit: UnitId) -> usize {
        self.owners.values().filter(|owner| **owner == unit).count()
    }

    fn lent(&self, unit: UnitId) -> usize {
        self.loans.values().filter(|loan| loan.lender == unit).count()
    }

    fn kept(&self, unit: UnitId) -> usize {
        self.owned(unit) - self.lent(unit)
    }

    fn held(&self, unit: UnitId) -> usize {
        self.kept(unit) + self.loans.values().filter(|loan| loan.borrower == unit).count()
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
            self.loans.remove(&cpu);
            let reason = if self.owners.contains_key(&cpu) { Reason::TurnOver } else { Reason::CpuGone };
            self.steps.push(returned(cpu, loan, reason));
        }
    }

    fn call_back(&mut self) {
        let owners: Vec<UnitId> = self.claims.keys().copied().collect();
        for lender in owners {
            let (want, kept) = (self.want(lender), self.kept(lender));
            let short = (want.now as usize).saturating_sub(kept);
            let since = want.content_at;
            let mine: Vec<(u32, Loan)> = self.loans_where(|loan| loan.lender == lender).take(short).collect();
            for (cpu, loan) in mine {
                self.loans.remove(&cpu);
                let reason =
                    Reason::OwnerWants { runnable: want.now, kept: u32::try_from(kept).unwrap_or(u32::MAX) };
                let action = Action::CallBack { cpu, lender, borrower: loan.borrower, since };
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
        let borrowers: Vec<UnitId> = self.claims.keys().copied().collect();
        for borrower in borrowers {
            let surplus = self.held(borrower).saturating_sub(self.want(borrower).settled as usize);
            let theirs: Vec<(u32, Loan)> =
                self.loans_where(|loan| loan.borrower == borrower).take(surplus).collect();
            for (cpu, loan) in theirs {
                self.loans.remove(&cpu);
                self.steps.push(returned(cpu, loan, Reason::BorrowerIdle));
            }
        }
    }

    /// The loans of a kind, highest CPU first.
    fn loans_where(&self, which: impl Fn(&Loan) -> bool) -> impl Iterator<Item = (u32, Loan)> {
        self.loans.iter().rev().filter(move |(_, loan)| which(loan)).map(|(cpu, loan)| (*cpu, *loan))
    }

    fn lend(&mut self) {
        while let Some((cpu, lender, borrower)) = self.next_loan() {
            let idle_ns = self.now.saturating_sub(self.want(lender).sank_at);
            self.loans.insert(cpu, Loan { lender, borrower });
            self.steps.push(Step {
                action: Action::Lend { cpu, lender, borrower },
                reason: Reason::OwnerIdle { idle_ns },
            });
        }
    }

    /// An idle CPU and who is to have it.
    fn next_loan(&self) -> Option<(u32, UnitId, UnitId)> {
        let waiting: Vec<UnitId> = self.claims.keys().copied().filter(|unit| self.waits(*unit)).collect();
        if waiting.is_empty() {
            return None;
        }
        // Highest CPUs first: an owner's lowest ones are the last that others have ever warmed up for themselves.
        for (cpu, owner) in self.owners.iter().rev() {
            let lender = *owner;
            let idle =
                !self.loans.contains_key(cpu) && self.kept(lender) > self.want(lender).settled as usize;
            if idle && self.may_lend(lender) {
                let best = waiting.iter().copied().filter(|unit| *unit != lender).min_by(|a, b| {
                    let family = |unit: UnitId| core::cmp::Reverse(self.kinship(lender, unit));
                    family(*a).cmp(&family(*b)).then_with(|| self.compare_holds(*a, 0, *b, 0)).then(a.cmp(b))
                });
                if let Some(borrower) = best {
                    return Some((*cpu, lender, borrower));
                }
            }
        }
        None
    }

    fn may_lend(&self, unit: UnitId) -> bool {
        unit.is_common() || self.contract.unit(unit).lend.cpu
    }

    /// Whether it may borrow one more CPU and has a use for it.
    fn waits(&self, unit: UnitId) -> bool {
        let held = self.held(unit);
        !unit.is_common()
            && self.contract.unit(unit).borrow.cpu
            && self.want(unit).settled as usize > held
            && self.limits.get(&unit).is_none_or(|limit| held < *limit)
    }

    /// How many enclosing units two units share.
    fn kinship(&self, a: UnitId, b: UnitId) -> usize {
        if a.is_common() {
            return 0;
        }
        let mut enclosers = 0;
        let mut level = self.contract.unit(a).parent;
        while let Some(unit) = level {
            enclosers += usize::from(is_within(self.contract, b, unit));
            level = self.contract.unit(unit).parent;
        }
        enclosers
    }

    /// Compares what two units would hold for their entitlement with `more_a` and `more_b` CPUs added.
    fn compare_holds(&self, a: UnitId, more_a: usize, b: UnitId, more_b: usize) -> core::cmp::Ordering {
        let claim = |unit: UnitId| u128::from(self.claims.get(&unit).copied().unwrap_or(0).max(1));
        let hold = |unit: UnitId, more: usize| (self.held(unit) + more) as u128 * u128::from(MILLIONTH);
        (hold(a, more_a) * claim(b)).cmp(&(hold(b, more_b) * claim(a)))
    }

    fn rebalance(&mut self) {
        let waiting: Vec<UnitId> = self.claims.keys().copied().filter(|unit| self.waits(*unit)).collect();
        let poorest = waiting.into_iter().min_by(|a, b| self.compare_holds(*a, 0, *b, 0).then(a.cmp(b)));
        let Some(poor) = poorest else { return };
        let richest = self
            .loans
            .values()
            .map(|loan| loan.borrower)
            .filter(|unit| *unit != poor)
            .max_by(|a, b| self.compare_holds(*a, 0, *b, 0).then(b.cmp(a)));
        let Some(rich) = richest else { return };
        // Only if the one who gives still holds as much for its entitlement as the one who takes: else they would swap
        // for ever.
        if self.compare_holds(poor, 1, rich, 0).is_gt() {
            return;
        }
        let loan = self.loans_where(|loan| loan.borrower == rich && loan.lender != poor).next();
        if let Some((cpu, loan)) = loan {
            self.loans.remove(&cpu);
            self.steps.push(returned(cpu, loan, Reason::LargerClaim { of: poor }));
            let lender = loan.lender;
            self.loans.insert(cpu, Loan { lender, borrower: poor });
            let action = Action::Lend { cpu, lender, borrower: poor };
            self.steps.push(Step { action, reason: Reason::LargerClaim { of: poor } });
        }
    }
}

fn returned(cpu: u32, loan: Loan, reason: Reason) -> Step {
    Step { action: Action::Return { cpu, lender: loan.lender, borrower: loan.borrower }, reason }
}
