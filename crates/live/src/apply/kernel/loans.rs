//! Which unit's tasks ran on which unit's CPUs, of the loans that the scheduler makes at switches.
//!
//! Problem: the scheduler counts, for each unit and CPU, what the unit lent and what it borrowed there, but
//! not to whom it lent.
//!
//! Algorithm: once a second, the growth of all counters of a CPU is compared. A CPU has one owner at a time,
//! so what units borrowed there, they borrowed from the unit that lent. If the CPU changed its owner
//! meanwhile, each borrower's part is divided over the lenders in proportion to what they lent.

use std::collections::BTreeMap;

use commonhold_contract::UnitId;
use commonhold_dispatch::Account;
use commonhold_policy::share::split;
use commonhold_policy::{LentTo, LoansByPair, Time};

/// The sums of all loans so far, by lender and borrower.
#[derive(Debug, Default)]
pub(super) struct Loans {
    sums: BTreeMap<(UnitId, UnitId), u64>,
    /// What each unit lent and borrowed on each CPU at the latest sample.
    seen: BTreeMap<UnitId, Vec<(u64, u64)>>,
    /// When that was.
    at: Time,
}

impl Loans {
    /// Adds the loans since the previous sample. `accounts` has each unit's account on each CPU, by CPU
    /// number. Sums of units that it lacks are dropped.
    pub(super) fn sample(&mut self, now: Time, accounts: Vec<(UnitId, Vec<Account>)>) {
        self.at = now;
        let before = std::mem::take(&mut self.seen);
        let mut lenders: BTreeMap<usize, Vec<(UnitId, u64)>> = BTreeMap::new();
        let mut borrowers: BTreeMap<usize, Vec<(UnitId, u64)>> = BTreeMap::new();
        for (unit, accounts) in accounts {
            let counted: Vec<(u64, u64)> =
                accounts.iter().map(|account| (account.lent_ns, account.borrowed_ns)).collect();
            let before = before.get(&unit).into_iter().flatten();
            for (cpu, (now, before)) in counted.iter().zip(before).enumerate() {
                if now.0 > before.0 {
                    lenders.entry(cpu).or_default().push((unit, now.0 - before.0));
                }
                if now.1 > before.1 {
                    borrowers.entry(cpu).or_default().push((unit, now.1 - before.1));
                }
            }
            self.seen.insert(unit, counted);
        }
        let seen = &self.seen;
        self.sums.retain(|(lender, borrower), _| seen.contains_key(lender) && seen.contains_key(borrower));
        for (cpu, borrowers) in borrowers {
            let lenders = lenders.remove(&cpu).unwrap_or_default();
            let parts: Vec<u64> = lenders.iter().map(|(_, lent)| *lent).collect();
            for (borrower, borrowed) in borrowers {
                for ((lender, _), ns) in lenders.iter().zip(split(borrowed, &parts)) {
                    *self.sums.entry((*lender, borrower)).or_default() += ns;
                }
            }
        }
    }

    /// The sums, by ascending lender and borrower.
    pub(super) fn all(&self) -> LoansByPair {
        let lent = |(&(lender, borrower), &ns): (&(UnitId, UnitId), &u64)| LentTo { lender, borrower, ns };
        LoansByPair { at: self.at, lent: self.sums.iter().map(lent).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);
    const C: UnitId = UnitId(4);

    /// Of each unit, what it lent and borrowed on CPU 0, and on CPU 1.
    fn counted(units: &[(UnitId, [(u64, u64); 2])]) -> Vec<(UnitId, Vec<Account>)> {
        let account = |(lent_ns, borrowed_ns)| Account { lent_ns, borrowed_ns, ..Account::default() };
        units.iter().map(|(unit, cpus)| (*unit, cpus.map(account).to_vec())).collect()
    }

    fn lent(lender: UnitId, borrower: UnitId, ns: u64) -> LentTo {
        LentTo { lender, borrower, ns }
    }

    #[test]
    fn a_borrower_on_a_cpu_borrows_from_the_lender_on_that_cpu() {
        let mut loans = Loans::default();
        loans.sample(1, counted(&[(A, [(5, 0), (0, 0)]), (B, [(0, 0), (9, 0)]), (C, [(0, 5), (0, 9)])]));
        assert_eq!(loans.all().lent, [], "what was counted before the first sample has no interval");
        loans.sample(1, counted(&[(A, [(15, 0), (0, 3)]), (B, [(0, 0), (16, 0)]), (C, [(0, 15), (0, 13)])]));
        assert_eq!(loans.all().lent, [lent(A, C, 10), lent(B, A, 3), lent(B, C, 4)]);
        loans.sample(1, counted(&[(A, [(15, 0), (0, 3)]), (C, [(0, 15), (0, 13)])]));
        assert_eq!(loans.all().lent, [lent(A, C, 10)], "b left");
    }

    /// A and B own the CPU in turn: C's 30 are divided as they lent, 10 to 20.
    #[test]
    fn a_cpu_that_changes_its_owner_is_divided() {
        let mut loans = Loans::default();
        let none = [(0, 0); 2];
        loans.sample(1, counted(&[(A, none), (B, none), (C, none)]));
        loans.sample(1, counted(&[(A, [(10, 0), (0, 0)]), (B, [(20, 0), (0, 0)]), (C, [(0, 30), (0, 0)])]));
        assert_eq!(loans.all().lent, [lent(A, C, 10), lent(B, C, 20)]);
    }
}
