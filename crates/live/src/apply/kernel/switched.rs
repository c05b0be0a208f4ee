//! Each unit's counters, summed over all loads of the scheduler.
//!
//! Properties: counters never decrease when the scheduler is reloaded, and start at zero when a slot gets another unit.

use std::collections::BTreeMap;

use commonhold_dispatch::{Account, CallBacks, Had};
use commonhold_policy::SwitchLoans;

/// A unit's counters in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Switched {
    /// CPU time, waits and moves.
    pub account: Account,
    /// CPUs that were called back.
    pub call_backs: CallBacks,
    /// The deadlines of the unit's tasks.
    pub deadlines: Had,
}

impl Switched {
    /// The part for the ledger.
    pub(super) fn loans(&self) -> SwitchLoans {
        let Switched { account: Account { lent_ns, borrowed_ns, .. }, call_backs, .. } = *self;
        SwitchLoans {
            lent_ns,
            borrowed_ns,
            called_back: call_backs.count,
            call_back_sum_ns: call_backs.sum_ns,
            call_back_max_ns: call_backs.max_ns,
        }
    }

    fn add(&mut self, other: &Switched) {
        self.account += other.account;
        self.call_backs += other.call_backs;
        self.deadlines += other.deadlines;
    }
}

/// A unit's counters under former schedulers.
#[derive(Debug, Default)]
struct UnitCounts {
    total: Switched,
    /// The accounts by CPU number.
    cpus: Vec<Account>,
}

/// Counters of former schedulers, by slot.
#[derive(Debug, Default)]
pub(super) struct PastCounts(BTreeMap<u32, UnitCounts>);

impl PastCounts {
    /// Adds the counters of a scheduler that is being detached, in total and by CPU.
    pub(super) fn keep(&mut self, slot: u32, counted: &Switched, cpus: &[Account]) {
        let past = self.0.entry(slot).or_default();
        past.total.add(counted);
        add_each(&mut past.cpus, cpus);
    }

    /// Forgets the counters of a slot, which another unit may take from now on.
    pub(super) fn drop(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// The counters of a slot's unit under former schedulers and under the present one.
    pub(super) fn with(&self, slot: u32, present: Option<&Switched>) -> Switched {
        let mut sum = self.0.get(&slot).map(|past| past.total).unwrap_or_default();
        if let Some(present) = present {
            sum.add(present);
        }
        sum
    }

    /// The accounts of a slot's unit by CPU, under former schedulers and under the present one.
    pub(super) fn cpus_with(&self, slot: u32, present: &[Account]) -> Vec<Account> {
        let mut cpus = self.0.get(&slot).map(|past| past.cpus.clone()).unwrap_or_default();
        add_each(&mut cpus, present);
        cpus
    }
}

/// Adds accounts to sums, CPU by CPU.
fn add_each(to: &mut Vec<Account>, accounts: &[Account]) {
    to.resize(to.len().max(accounts.len()), Account::default());
    for (sum, account) in to.iter_mut().zip(accounts) {
        *sum += *account;
    }
}
