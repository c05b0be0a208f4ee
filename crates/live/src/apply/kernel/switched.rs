//! Sums each unit's counters over all schedulers that the daemon has loaded.
//!
//! Problem: each time a scheduler is loaded, its counters start at zero. The ledger needs counters that only
//! grow.

use std::collections::BTreeMap;

use commonhold_dispatch::{Account, CallBacks, Had};
use commonhold_policy::SwitchLoans;

/// A unit's counters in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitCounters {
    /// CPU time, waits and moves.
    pub account: Account,
    /// CPUs that were called back.
    pub call_backs: CallBacks,
    /// The deadlines of the unit's tasks.
    pub deadlines: Had,
}

impl UnitCounters {
    /// The counters of loans, in the ledger's format.
    /// `promised_ns` is the promised time of a call-back.
    pub(super) fn loans(&self, promised_ns: u64) -> SwitchLoans {
        let UnitCounters { account: Account { lent_ns, borrowed_ns, .. }, call_backs, .. } = *self;
        SwitchLoans {
            lent_ns,
            borrowed_ns,
            called_back: call_backs.count,
            call_back_sum_ns: call_backs.sum_ns,
            call_back_max_ns: call_backs.max_ns,
            late: call_backs.longer_than(promised_ns),
        }
    }

    fn add(&mut self, other: &UnitCounters) {
        self.account += other.account;
        self.call_backs += other.call_backs;
        self.deadlines += other.deadlines;
    }
}

/// A unit's counters, summed over the schedulers before the present one.
#[derive(Debug, Default)]
struct PastUnitCounters {
    total: UnitCounters,
    /// The part of the account that was counted on each CPU, indexed by CPU number.
    cpus: Vec<Account>,
}

/// Each unit's counters, summed over the schedulers before the present one, by the unit's slot.
#[derive(Debug, Default)]
pub(super) struct PastCounts(BTreeMap<u32, PastUnitCounters>);

impl PastCounts {
    /// Adds a unit's counters in a scheduler that is being detached: `counted` in total, and `cpus` by CPU
    /// number.
    pub(super) fn add(&mut self, slot: u32, counted: &UnitCounters, cpus: &[Account]) {
        let past = self.0.entry(slot).or_default();
        past.total.add(counted);
        add_each(&mut past.cpus, cpus);
    }

    /// Forgets the counters of a slot, which another unit may take from now on.
    pub(super) fn forget(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// A unit's counters in all schedulers so far. `present`: the unit's counters in the present scheduler,
    /// if one is attached.
    pub(super) fn sum_with(&self, slot: u32, present: Option<&UnitCounters>) -> UnitCounters {
        let mut sum = self.0.get(&slot).map(|past| past.total).unwrap_or_default();
        if let Some(present) = present {
            sum.add(present);
        }
        sum
    }

    /// A unit's account in all schedulers so far, by CPU number. `present`: the unit's account in the present
    /// scheduler.
    pub(super) fn sums_by_cpu_with(&self, slot: u32, present: &[Account]) -> Vec<Account> {
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
