//! Which unit borrows how much of the idle memory.
//!
//! Algorithm:
//! - Each borrower has a *target*: the loan that it should have. To find the targets, the excess is divided
//!   down the tree of units, among the units that may borrow. First, units that lent in the past get frames
//!   in proportion to their credits, as many as the credits pay for. The rest of the excess is divided by
//!   tickets.
//! - A target is bounded by the unit's limit, by the amount that the unit may borrow, and by the amount that
//!   could be called back from it in time. A unit that is not short gets no more than it uses now.
//! - A loan grows towards its target by at most 1/[`GROWTH_PART`] of the divided frames per period. A
//!   borrower that does not use its loan gives it back at the same pace.

use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{DEFAULT_TICKETS, Permission, Resource, UnitId};

use super::frames::{Division, Trigger, in_whole_frames};
use crate::rights::share::split_capped;

/// In one period a loan grows by at most 1/16 of the divided frames. So a lender that soon wants its memory
/// back finds most of its frames clean and free.
const GROWTH_PART: u64 = 16;

impl Division<'_> {
    /// Each borrower's target: its part of the excess, cut to what could be called back in time.
    pub(super) fn targets(&self, excess: u64, headroom: &[u64]) -> Vec<u64> {
        let mut targets = self.zeros();
        self.deal(None, excess, headroom, &mut targets);
        self.fit_in_time(&mut targets, &self.zeros());
        targets
    }

    /// The next size of each loan, on the way from its current size to its target.
    pub(super) fn next_loans(&self, current: &[u64], targets: &[u64]) -> Vec<u64> {
        // A borrower keeps the used part of its loan until another unit needs that part. A new loan is kept
        // for a period, so that the unit has time to use it.
        let in_use = |id: UnitId| match self.input.trigger {
            Trigger::Period => self.use_beyond_entitlement(id),
            Trigger::CallBack => current[id.index()],
        };
        let mut keep = self.per_unit(|id| targets[id.index()].max(in_use(id).min(self.callable(id))));
        self.fit_in_time(&mut keep, targets);
        // The part of a loan that exceeds a permission or a trial's maximum comes back at once, not step by
        // step.
        let next = |id: UnitId| {
            let i = id.index();
            let next = self.one_step(current[i], targets[i], keep[i]);
            next.min(self.borrow_max(id)).min(self.trial_max(id))
        };
        let mut loans = self.per_unit(next);
        // If one loan grows while another shrinks, both may not fit in time together. Then the growth is cut.
        let shrunk: Vec<u64> = loans.iter().zip(current).map(|(loan, current)| *loan.min(current)).collect();
        self.fit_in_time(&mut loans, &shrunk);
        loans
    }

    /// A loan's next size: one step up towards its target, or one step down towards `keep`, the part of the
    /// loan that is kept unless a unit calls back.
    fn one_step(&self, current: u64, target: u64, keep: u64) -> u64 {
        let step = (self.divided / GROWTH_PART).max(1);
        match self.input.trigger {
            Trigger::Period if current < target => target.min(current + step),
            _ if current > keep => keep.max(current.saturating_sub(step)),
            _ => current,
        }
    }

    /// The size of a unit's loan before this division. If the unit's entitlement sank, the difference counts
    /// as a loan at first. A loan that the unit does not need counts as 0.
    pub(super) fn current_loan(&self, unit: UnitId) -> u64 {
        let may_use_soon = self.input.trigger == Trigger::CallBack && self.idle(unit) == 0;
        let needs_loan =
            may_use_soon || self.facts[unit.index()].short || self.use_beyond_entitlement(unit) > 0;
        let loan = self.previously_allowed[unit.index()].saturating_sub(self.entitlement.own(unit));
        if needs_loan && self.borrow_max(unit) > 0 { loan } else { 0 }
    }

    /// How many frames a unit's own processes could use on loan.
    fn loan_wanted(&self, unit: UnitId) -> u64 {
        let facts = self.facts[unit.index()];
        // A lender that is short gets its own frames back before it borrows.
        let wants_more = facts.short && self.previously_allowed[unit.index()] >= self.entitlement.own(unit);
        let max = self.callable(unit).min(self.borrow_max(unit)).min(self.trial_max(unit));
        match (facts.present, wants_more) {
            (false, _) => 0,
            (true, true) => max,
            (true, false) => self.use_beyond_entitlement(unit).min(max),
        }
    }

    /// The contract's permission for a unit to borrow, in frames.
    pub(super) fn borrow_permission(&self, unit: UnitId) -> Permission {
        in_whole_frames(self.input.contract.unit(unit).borrow.memory, self.input.frame_bytes)
    }

    /// The most frames that the contract lets a unit borrow; 0: it may not borrow. An amount that covers all
    /// divided memory counts as unlimited (`u64::MAX`).
    pub(super) fn borrow_max(&self, unit: UnitId) -> u64 {
        let most = self.borrow_permission(unit).most(self.parent_value(unit));
        if most > 0 && most >= self.divided { u64::MAX } else { most }
    }

    fn trial_max(&self, unit: UnitId) -> u64 {
        self.facts[unit.index()].on_trial.unwrap_or(u64::MAX)
    }

    /// The most frames that a unit could borrow so that they come back in time, if no other unit borrowed.
    fn callable(&self, unit: UnitId) -> u64 {
        self.terms.loan_max(unit).unwrap_or(u64::MAX)
    }

    /// How many frames a unit and its sub-units may borrow by the unit's limit; `None`: the unit has no
    /// limit.
    pub(super) fn headroom_below_limit(&self, unit: UnitId) -> Option<u64> {
        let limit = self.input.contract.unit(unit).limit.memory;
        let most = self.capacity.weigh(limit, self.parent_value(unit))?;
        Some(most.saturating_sub(self.entitlement.value(unit)))
    }

    /// The most that could be lent to each unit, sub-units included: what they could use, up to their limits.
    pub(super) fn headroom(&self) -> Vec<u64> {
        let mut headroom = self.per_unit(|id| self.loan_wanted(id));
        // A parent precedes its children, so going backwards sums the children's headroom first.
        for id in self.input.contract.held().rev() {
            let own_headroom = headroom[id.index()].min(self.headroom_below_limit(id).unwrap_or(u64::MAX));
            headroom[id.index()] = own_headroom;
            if let Some(parent) = self.input.contract.unit(id).parent {
                headroom[parent.index()] = headroom[parent.index()].saturating_add(own_headroom);
            }
        }
        headroom
    }

    /// Divides `amount` among the units directly inside the unit `level` and that unit's own processes; among
    /// the outermost units if `level` is `None`. Then divides each unit's part among the units inside it.
    fn deal(&self, level: Option<UnitId>, amount: u64, headroom: &[u64], targets: &mut [u64]) {
        let has_headroom = |id: &UnitId| headroom[id.index()] > 0 && amount > 0;
        let units: Vec<UnitId> = self.levels.at(level).iter().copied().filter(has_headroom).collect();
        let mut tickets: Vec<u64> =
            units.iter().map(|id| self.input.rights.tickets(*id, Resource::Memory)).collect();
        let mut caps: Vec<u64> = units.iter().map(|id| headroom[id.index()]).collect();
        if let Some(own) = level {
            tickets.push(DEFAULT_TICKETS);
            caps.push(self.loan_wanted(own));
        }
        let mut first: Vec<u64> = units.iter().map(|id| self.first[id.index()]).collect();
        first.extend(level.map(|own| self.own_first(own)));
        // First the frames that credits pay for.
        let first_caps: Vec<u64> = caps.iter().zip(&first).map(|(cap, first)| *cap.min(first)).collect();
        let (mut parts, remaining) = if first_caps.iter().any(|cap| *cap > 0) {
            split_capped(amount, &first, &first_caps)
        } else {
            (vec![0; first_caps.len()], amount)
        };
        // Then the rest, by tickets.
        let remaining_caps: Vec<u64> = caps.iter().zip(&parts).map(|(cap, part)| cap - part).collect();
        let (by_tickets, _) = split_capped(remaining, &tickets, &remaining_caps);
        parts.iter_mut().zip(by_tickets).for_each(|(part, more)| *part += more);
        for (id, part) in units.iter().zip(&parts) {
            self.deal(Some(*id), *part, headroom, targets);
        }
        if let Some(own) = level {
            targets[own.index()] = parts[units.len()];
        }
    }

    /// How many frames a unit's own processes may borrow before other units, by the unit's credit.
    pub(super) fn own_first(&self, unit: UnitId) -> u64 {
        self.input.first.get(unit.index()).copied().unwrap_or(0)
    }
}
