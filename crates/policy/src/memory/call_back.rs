//! When a loan of memory is called back, and how it is enforced.
//!
//! The decision: a unit that is short lends nothing. So what it lent leaves the excess at the next sample, and loans no
//! longer fit. The borrowers above their targets then give back the difference at once, in proportion to how far above
//! they are. The same happens if a limit sinks. [`facts`](super::facts)
//! determines which unit is short, [`idleness`](super::idleness) what leaves the excess, and [`frames`](super::frames) has the
//! terms.
//!
//! The enforcement: a borrower's bound sinks with its allowance, but a kernel may leave pages beyond a bound that sank
//! as long as the unit allocates nothing. What a unit uses beyond its allowance it *owes*: because its loan sank,
//! because it lends what is cold, or because it may not borrow. Where the backend can, it is ordered to reclaim that:
//! again after [`RECLAIM_NS`] if the unit still owes, and after [`FRUITLESS_NS`] if nothing was reclaimed meanwhile and
//! no lender waits. A call-back lasts until the borrower is within its allowance.

use alloc::vec::Vec;

use commonhold_contract::UnitId;

use super::frames::Division;
use super::{MemoryState, Sample};
use crate::plan::{MemoryOrder, Reason, Step};
use crate::rights::share::split;
use crate::time::{MS, Time};

/// After this time reclaim is ordered again from a unit that still owes.
const RECLAIM_NS: Time = 250 * MS;
/// The same if nothing was reclaimed meanwhile from a unit for which no lender waits.
const FRUITLESS_NS: Time = 10_000 * MS;

impl Division<'_> {
    /// Shrinks loans until they fit the excess and every limit. Targets fit, so the loans above theirs can give enough.
    pub(super) fn call_back(&self, loans: &mut [u64], targets: &[u64], excess: u64) {
        let contract = self.input.contract;
        for id in contract.held().rev() {
            if let Some(room) = self.room_below_limit(id) {
                shrink(loans, targets, room, &self.levels.within(id));
            }
        }
        shrink(loans, targets, excess, &contract.held().collect::<Vec<_>>());
    }
}

/// Cuts the loans of `units` to a sum of `max`: those above their targets, in proportion to how far above.
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
    /// Orders reclaim from the units that owe, and learns how fast memory comes back from them. Returns whether a unit
    /// owes memory to a lender.
    pub(super) fn reclaim_debts(&mut self, sample: Sample<'_>, steps: &mut Vec<Step<MemoryOrder>>) -> bool {
        let Sample { now, input, facts, .. } = sample;
        let mut lender_waits = false;
        for id in input.contract.held() {
            let unit = &mut self.units[id.index()];
            let debt = unit.facts.used.saturating_sub(unit.share.allowed);
            let owes_lender = debt > sample.slack() && (unit.share.called_back || unit.share.lent > 0);
            let may_not_borrow = !input.contract.unit(id).borrow.memory.allows();
            let owes = owes_lender || debt > sample.slack() && may_not_borrow;
            self.reclaim_rates.observe(now, &mut unit.reclaiming, unit.facts, facts, owes);
            if !owes {
                unit.reclaim_ordered = None;
                continue;
            }
            lender_waits |= owes_lender;
            let due = unit.reclaim_ordered.is_none_or(|(at, used_then)| {
                let fruitless = !owes_lender && unit.facts.used >= used_then;
                now.saturating_sub(at) >= if fruitless { FRUITLESS_NS } else { RECLAIM_NS }
            });
            if due && input.means.memory.reclaim {
                unit.reclaim_ordered = Some((now, unit.facts.used));
                let files = unit.facts.has_to_drop(debt);
                let action = MemoryOrder::Reclaim { unit: id, bytes: debt, files };
                steps.push(Step { action, reason: Reason::Owes { allowed: unit.share.allowed } });
            }
        }
        lender_waits
    }
}
