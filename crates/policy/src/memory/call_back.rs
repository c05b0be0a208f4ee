//! When a loan of memory is called back, and how the call-back is enforced.
//!
//! The decision: a unit that is short lends nothing. So when a lender becomes short, its memory no longer
//! counts in the excess at the next sample, and the loans exceed the excess. The difference is called back at
//! once from the borrowers whose loans are above their targets, in proportion to how far they are above. The
//! same happens if a limit is lowered. [`facts`](super::facts) determines which unit is short,
//! [`idleness`](super::idleness) computes the excess, and [`frames`](super::frames) defines the terms.
//!
//! The enforcement: a borrower's bound sinks with its allowance. But a kernel may leave a unit's pages beyond
//! the lowered bound while the unit allocates nothing. A unit that uses more than its allowance *owes* the
//! surplus in three cases: if its loan was reduced, if it lends cold memory, or if it may not borrow. If the
//! backend can reclaim by order, it is ordered to reclaim the owed memory. While the unit owes, the order is
//! repeated after [`RECLAIM_NS`], but only after [`FRUITLESS_NS`] if nothing was reclaimed meanwhile and no
//! lender waits. A call-back lasts until the borrower is within its allowance.

use alloc::vec::Vec;

use commonhold_contract::UnitId;

use super::frames::Division;
use super::{MemoryState, Sample};
use crate::plan::{MemoryOrder, Reason, Step};
use crate::rights::share::split;
use crate::time::{MS, Time};

/// The time until reclaim is ordered again from a unit that still owes.
const RECLAIM_NS: Time = 250 * MS;
/// The time until reclaim is ordered again if the last order reclaimed nothing, and no lender waits.
const FRUITLESS_NS: Time = 10_000 * MS;

impl Division<'_> {
    /// Shrinks loans until they fit the excess and every limit. Only loans above their targets shrink. That
    /// suffices, since the targets fit.
    pub(super) fn call_back(&self, loans: &mut [u64], targets: &[u64], excess: u64) {
        let contract = self.input.contract;
        for id in contract.held().rev() {
            if let Some(headroom) = self.headroom_below_limit(id) {
                shrink(loans, targets, headroom, &self.levels.within(id));
            }
        }
        shrink(loans, targets, excess, &contract.held().collect::<Vec<_>>());
    }
}

/// Cuts the loans of `units` to a sum of at most `max`: each loan in proportion to its amount above its
/// target.
fn shrink(loans: &mut [u64], targets: &[u64], max: u64, units: &[UnitId]) {
    let sum: u64 = units.iter().map(|id| loans[id.index()]).sum();
    if sum <= max {
        return;
    }
    let above: Vec<u64> =
        units.iter().map(|id| loans[id.index()].saturating_sub(targets[id.index()])).collect();
    let cuts = split(sum - max, &above);
    for (id, cut) in units.iter().zip(cuts) {
        loans[id.index()] -= cut;
    }
}

impl MemoryState {
    /// Orders reclaim from the units that owe memory, and learns how fast memory is reclaimed. Returns
    /// whether a lender waits: whether some unit owes memory that was called back or that the unit itself
    /// lends.
    pub(super) fn reclaim_debts(&mut self, sample: Sample<'_>, steps: &mut Vec<Step<MemoryOrder>>) -> bool {
        let Sample { now, input, facts, .. } = sample;
        let mut lender_waits = false;
        for id in input.contract.held() {
            let unit = &mut self.units[id.index()];
            let debt = unit.facts.used.saturating_sub(unit.share.allowed);
            let exceeds = debt > sample.slack();
            let owes_lender = exceeds && (unit.share.called_back || unit.share.lent > 0);
            let may_not_borrow = !input.contract.unit(id).borrow.memory.allows();
            let owes = owes_lender || exceeds && may_not_borrow;
            self.reclaim_rates.observe(now, &mut unit.reclaiming, unit.facts, facts, owes);
            if !owes {
                unit.reclaim_ordered = None;
                continue;
            }
            lender_waits |= owes_lender;
            let is_due = unit.reclaim_ordered.is_none_or(|(ordered_at, used_at_order)| {
                let was_fruitless = !owes_lender && unit.facts.used >= used_at_order;
                now.saturating_sub(ordered_at) >= if was_fruitless { FRUITLESS_NS } else { RECLAIM_NS }
            });
            if is_due && input.means.memory.reclaim {
                unit.reclaim_ordered = Some((now, unit.facts.used));
                let files = unit.facts.has_to_drop(debt);
                let action = MemoryOrder::Reclaim { unit: id, bytes: debt, files };
                steps.push(Step { action, reason: Reason::Owes { allowed: unit.share.allowed } });
            }
        }
        lender_waits
    }
}
