//! Who is lent how much of the idle memory.
//!
//! Algorithm:
//! - Each borrower has a *target*. The excess is dealt down the tree by tickets, among the units that may borrow.
//!   What units may borrow *first*, since they lent before, is dealt before the rest, in proportion to that.
//! - No unit gets more than its limit, its permission to borrow, or what could be called back from it in time. A unit
//!   that is not short gets no more than it uses now.
//! - A loan grows towards its target by at most 1/[`GROWTH_PART`] of the divided frames a period. A borrower that does
//!   not use a loan gives it back at the same pace.

use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{DEFAULT_TICKETS, Permission, Resource, UnitId};

use super::frames::{Division, Trigger, in_whole_frames};
use crate::rights::share::split_capped;

/// At one sample a loan grows by at most 1/16 of the divided frames: a lender that comes back soon finds most of its
/// frames clean and free.
const GROWTH_PART: u64 = 16;

impl Division<'_> {
    /// Each borrower's target: its part of the excess, if that could be called back in time.
    pub(super) fn targets(&self, excess: u64, rooms: &[u64]) -> Vec<u64> {
        let mut targets = self.nothing();
        self.deal(None, excess, rooms, &mut targets);
        self.fit_in_time(&mut targets, &self.nothing());
        targets
    }

    /// The next size of each loan, on the way from its current size to its target.
    pub(super) fn next_loans(&self, current: &[u64], targets: &[u64]) -> Vec<u64> {
        // What a borrower uses it keeps until another unit needs it. A loan that was just made is kept for a period, so
        // that the unit can use it.
        let in_use = |id: UnitId| match self.input.trigger {
            Trigger::Period => self.beyond(id),
            Trigger::CallBack => current[id.index()],
        };
        let mut keep = self.per_unit(|id| targets[id.index()].max(in_use(id).min(self.callable(id))));
        self.fit_in_time(&mut keep, targets);
        // What exceeds a permission or a trial's maximum comes back at once, like what exceeds a limit.
        let next = |id: UnitId| {
            let i = id.index();
            let next = self.towards(current[i], targets[i], keep[i]);
            next.min(self.may_borrow(id)).min(self.trial_max(id))
        };
        let mut loans = self.per_unit(next);
        // A loan grows as fast as another shrinks. Until the latter has come back, the former waits.
        let shrunk: Vec<u64> = loans.iter().zip(current).map(|(loan, current)| *loan.min(current)).collect();
        self.fit_in_time(&mut loans, &shrunk);
        loans
    }

    /// A loan's next size, from its current size, its target, and what is kept of it unless a unit calls back.
    fn towards(&self, current: u64, target: u64, keep: u64) -> u64 {
        let step = (self.divided / GROWTH_PART).max(1);
        match self.input.trigger {
            Trigger::Period if current < target => target.min(current + step),
            _ if current > keep => keep.max(current.saturating_sub(step)),
            _ => current,
        }
    }

    /// What a unit has on loan. If its entitlement sank, the difference counts as a loan at first.
    pub(super) fn current_loan(&self, unit: UnitId) -> u64 {
        let just_lent = self.input.trigger == Trigger::CallBack && self.idle(unit) == 0;
        let needs = just_lent || self.facts[unit.index()].short || self.beyond(unit) > 0;
        let loan = self.before[unit.index()].saturating_sub(self.entitlement.own(unit));
        if needs && self.may_borrow(unit) > 0 { loan } else { 0 }
    }

    /// What a unit could use on loan.
    fn want(&self, unit: UnitId) -> u64 {
        let facts = self.facts[unit.index()];
        // A lender that is short gets its own frames back before it borrows.
        let wants_more = facts.short && self.before[unit.index()] >= self.entitlement.own(unit);
        let max = self.callable(unit).min(self.may_borrow(unit)).min(self.trial_max(unit));
        match (facts.present, wants_more) {
            (false, _) => 0,
            (true, true) => max,
            (true, false) => self.beyond(unit).min(max),
        }
    }

    /// What a unit may borrow, by the contract.
    pub(super) fn borrow_permission(&self, unit: UnitId) -> Permission {
        in_whole_frames(self.input.contract.unit(unit).borrow.memory, self.input.frame_bytes)
    }

    /// The most that a unit may borrow. An amount that covers all that is divided is unlimited.
    pub(super) fn may_borrow(&self, unit: UnitId) -> u64 {
        let most = self.borrow_permission(unit).most(self.parent_value(unit));
        if most > 0 && most >= self.divided { u64::MAX } else { most }
    }

    fn trial_max(&self, unit: UnitId) -> u64 {
        self.facts[unit.index()].on_trial.unwrap_or(u64::MAX)
    }

    /// What could be called back from a unit in time, if from no other.
    fn callable(&self, unit: UnitId) -> u64 {
        self.terms.loan_max(unit).unwrap_or(u64::MAX)
    }

    /// What a unit's limit leaves for loans to it and its sub-units; `None`: it has no limit.
    pub(super) fn room_below_limit(&self, unit: UnitId) -> Option<u64> {
        let limit = self.input.contract.unit(unit).limit.memory;
        let most = self.capacity.weigh(limit, self.parent_value(unit))?;
        Some(most.saturating_sub(self.entitlement.value(unit)))
    }

    /// What could be lent to each unit, sub-units included.
    pub(super) fn rooms(&self) -> Vec<u64> {
        let mut rooms = self.per_unit(|id| self.want(id));
        // A parent precedes its children, so going backwards sums their wants first.
        for id in self.input.contract.held().rev() {
            let room = rooms[id.index()].min(self.room_below_limit(id).unwrap_or(u64::MAX));
            rooms[id.index()] = room;
            if let Some(parent) = self.input.contract.unit(id).parent {
                rooms[parent.index()] = rooms[parent.index()].saturating_add(room);
            }
        }
        rooms
    }

    /// Deals `amount` by tickets among the units of one level and the own processes of the unit around them, then on to
    /// their sub-units.
    fn deal(&self, level: Option<UnitId>, amount: u64, rooms: &[u64], targets: &mut [u64]) {
        let has_room = |id: &UnitId| rooms[id.index()] > 0 && amount > 0;
        let units: Vec<UnitId> = self.levels.at(level).iter().copied().filter(has_room).collect();
        let mut tickets: Vec<u64> =
            units.iter().map(|id| self.input.rights.tickets(*id, Resource::Memory)).collect();
        let mut caps: Vec<u64> = units.iter().map(|id| rooms[id.index()]).collect();
        if let Some(own) = level {
            tickets.push(DEFAULT_TICKETS);
            caps.push(self.want(own));
        }
        let mut first: Vec<u64> = units.iter().map(|id| self.first[id.index()]).collect();
        first.extend(level.map(|own| self.own_first(own)));
        // What credits pay for is dealt before the rest; for more than that, tickets decide.
        let first_caps: Vec<u64> = caps.iter().zip(&first).map(|(cap, first)| *cap.min(first)).collect();
        let (mut parts, left) = if first_caps.iter().any(|cap| *cap > 0) {
            split_capped(amount, &first, &first_caps)
        } else {
            (vec![0; first_caps.len()], amount)
        };
        let rest: Vec<u64> = caps.iter().zip(&parts).map(|(cap, part)| cap - part).collect();
        let (more, _) = split_capped(left, &tickets, &rest);
        parts.iter_mut().zip(more).for_each(|(part, more)| *part += more);
        for (id, part) in units.iter().zip(&parts) {
            self.deal(Some(*id), *part, rooms, targets);
        }
        if let Some(own) = level {
            targets[own.index()] = parts[units.len()];
        }
    }

    /// What a unit's own processes may borrow first.
    pub(super) fn own_first(&self, unit: UnitId) -> u64 {
        self.input.first.get(unit.index()).copied().unwrap_or(0)
    }
}
