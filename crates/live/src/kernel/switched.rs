//! What the scheduler counted of each unit, over all the times that it was loaded.
//!
//! Properties: nothing goes back when the scheduler ends and another is loaded, or when a slot becomes another unit's.

use std::collections::BTreeMap;

use commonhold_dispatch::{Account, CallBacks};
use commonhold_policy::SwitchLoans;

/// What the scheduler counted of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Switched {
    /// CPU time, waits and moves.
    pub account: Account,
    /// CPUs that were called back.
    pub call_backs: CallBacks,
}

impl Switched {
    /// What the ledger takes of it.
    pub(super) fn loans(&self) -> SwitchLoans {
        let (Account { lent_ns, borrowed_ns, .. }, call_backs) = (self.account, self.call_backs);
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
    }
}

/// What schedulers that ended had counted, by slot.
#[derive(Debug, Default)]
pub(super) struct Former(BTreeMap<u32, Switched>);

impl Former {
    /// A scheduler goes; this is what it counted.
    pub(super) fn keep(&mut self, slot: u32, counted: &Switched) {
        self.0.entry(slot).or_default().add(counted);
    }

    /// A slot's unit is gone.
    pub(super) fn drop(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// All that was counted of a slot's unit, with what the present scheduler has.
    pub(super) fn with(&self, slot: u32, now: Option<&Switched>) -> Switched {
        let mut sum = self.0.get(&slot).copied().unwrap_or_default();
        if let Some(now) = now {
            sum.add(now);
        }
        sum
    }
}
