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
    /// Its deadlines.
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
    all: Switched,
    /// By CPU number.
    cpus: Vec<Account>,
}

/// Counters of former schedulers, by slot.
#[derive(Debug, Default)]
pub(super) struct PastCounts(BTreeMap<u32, UnitCounts>);

impl PastCounts {
    /// Adds the counters of a scheduler that is being detached, in total and by CPU.
    pub(super) fn keep(&mut self, slot: u32, counted: &Switched, cpus: &[Account]) {
        let sum = self.0.entry(slot).or_default();
        sum.all.add(counted);
        add_each(&mut sum.cpus, cpus);
    }

    /// Forgets the unit of a slot.
    pub(super) fn drop(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// The counters of a slot's unit, including the present scheduler's.
    pub(super) fn with(&self, slot: u32, now: Option<&Switched>) -> Switched {
        let mut sum = self.0.get(&slot).map(|sum| sum.all).unwrap_or_default();
        if let Some(now) = now {
            sum.add(now);
        }
        sum
    }

    /// The same by CPU.
    pub(super) fn cpus_with(&self, slot: u32, now: &[Account]) -> Vec<Account> {
        let mut cpus = self.0.get(&slot).map(|sum| sum.cpus.clone()).unwrap_or_default();
        add_each(&mut cpus, now);
        cpus
    }
}

/// Adds accounts CPU by CPU.
fn add_each(to: &mut Vec<Account>, accounts: &[Account]) {
    to.resize(to.len().max(accounts.len()), Account::default());
    for (sum, account) in to.iter_mut().zip(accounts) {
        *sum += *account;
    }
}
