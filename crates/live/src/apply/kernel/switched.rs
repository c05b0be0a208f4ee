//! What the scheduler counted of each unit, over all the times that it was loaded.
//!
//! Properties: nothing goes back when the scheduler ends and another is loaded, or when a slot becomes another unit's.

use std::collections::BTreeMap;

use commonhold_dispatch::{Account, CallBacks, Had};
use commonhold_policy::SwitchLoans;

/// What the scheduler counted of a unit.
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
    /// What the ledger takes of it.
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

/// What schedulers that ended had counted of a unit.
#[derive(Debug, Default)]
struct Sum {
    all: Switched,
    /// By the CPU's number.
    cpus: Vec<Account>,
}

/// What schedulers that ended had counted, by slot.
#[derive(Debug, Default)]
pub(super) struct Former(BTreeMap<u32, Sum>);

impl Former {
    /// A scheduler goes; this is what it counted, and the same by CPU.
    pub(super) fn keep(&mut self, slot: u32, counted: &Switched, cpus: &[Account]) {
        let sum = self.0.entry(slot).or_default();
        sum.all.add(counted);
        add_each(&mut sum.cpus, cpus);
    }

    /// A slot's unit is gone.
    pub(super) fn drop(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// All that was counted of a slot's unit, with what the present scheduler has.
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

/// Adds accounts to those of the same CPUs.
fn add_each(to: &mut Vec<Account>, accounts: &[Account]) {
    to.resize(to.len().max(accounts.len()), Account::default());
    for (sum, account) in to.iter_mut().zip(accounts) {
        *sum += *account;
    }
}
