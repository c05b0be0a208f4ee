//! The plan checker's books of memory.
//!
//! Checked:
//! - A unit's allowance is its entitlement, minus what it lends, plus what it borrows. Allowances sum to no
//!   more than the memory that is divided.
//! - Every loan has a borrower, and a call-back time that the contract permits. Units lend and borrow only if
//!   they may, and within the contract's limits.
//! - The bounds in force equal the allowances.
//! - No unit is guaranteed more than its entitlement, nor (`min`) more than it may use. A unit's `min` covers
//!   the sum of its sub-units' `min`, since a kernel protects nothing that is not protected in the enclosing
//!   group.
//! - `smp` restricts nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_machine::Machine;

use crate::plan::{MemoryOrder, MemoryPlan, Plan, Share};

/// The orders in force according to the plans so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MemoryBooks {
    /// The guarantees `min` and `low`, in bytes.
    guaranteed: BTreeMap<UnitId, (u64, u64)>,
    /// The bounds, in bytes.
    allowed: BTreeMap<UnitId, u64>,
    exposed: BTreeSet<UnitId>,
}

impl MemoryBooks {
    /// Replays the decisions and orders about memory, and appends what is wrong with them to `errors`.
    pub(super) fn replay(
        &mut self,
        contract: &Contract,
        machine: &Machine,
        plan: &Plan,
        errors: &mut Vec<String>,
    ) {
        if !contract.vacant.is_empty() {
            self.guaranteed.retain(|unit, _| contract.has(*unit));
            self.allowed.retain(|unit, _| contract.has(*unit));
            self.exposed.retain(|unit| contract.has(*unit));
        }
        for step in &plan.orders.memory {
            match step.action {
                MemoryOrder::Guarantee { unit, min, low, .. } => {
                    self.guaranteed.insert(unit, (min, low));
                }
                MemoryOrder::Allow { unit, bytes: Some(bytes) } => {
                    self.allowed.insert(unit, bytes);
                }
                MemoryOrder::Allow { unit, bytes: None } => {
                    self.allowed.remove(&unit);
                }
                MemoryOrder::Expose { unit, exposed: true } => {
                    self.exposed.insert(unit);
                }
                MemoryOrder::Expose { unit, exposed: false } => {
                    self.exposed.remove(&unit);
                }
                MemoryOrder::Reclaim { .. } => {}
            }
        }
        self.guaranteed.retain(|_, min_and_low| *min_and_low != (0, 0));
        let is_unrestricted =
            self.guaranteed.is_empty() && self.allowed.is_empty() && self.exposed.is_empty();
        if contract.machine.scheme == Scheme::Smp && !is_unrestricted {
            errors.push(String::from("the scheme is smp, and memory is restricted"));
        }
        let total = machine.memory_bytes();
        let low = |id: UnitId| self.guaranteed.get(&id).map_or(0, |(_, low)| *low);
        let guaranteed = contract.children(None).map(low).fold(0, u64::saturating_add);
        if guaranteed > total {
            errors.push(format!("{guaranteed} bytes of memory are guaranteed of {total}"));
        }
        if let Some(memory) = &plan.decisions.memory {
            errors.extend(conservation_errors(contract, memory));
            let entitled = sums(contract, |id| share(memory, id).entitled);
            let charge_max = sums(contract, |id| charge_max(memory, id));
            errors.extend(contract.held().filter_map(|id| loan_error(contract, memory, id, &entitled)));
            errors.extend(self.uncovered_guarantees(contract));
            let sums = |id: UnitId| (entitled[id.index()], charge_max[id.index()]);
            errors.extend(contract.held().filter_map(|id| self.order_error(contract, memory, id, sums(id))));
        }
    }

    /// Errors about units whose `min` is less than the sum of their sub-units' `min`.
    fn uncovered_guarantees(&self, contract: &Contract) -> Vec<String> {
        let min = |id: UnitId| self.guaranteed.get(&id).map_or(0, |(min, _)| *min);
        let mut inside = vec![0u64; contract.units.len()];
        for id in contract.held() {
            if let Some(parent) = contract.unit(id).parent {
                inside[parent.index()] = inside[parent.index()].saturating_add(min(id));
            }
        }
        let is_uncovered = |id: &UnitId| inside[id.index()] > min(*id);
        let error = |id: UnitId| {
            let (path, inside) = (&contract.unit(id).path, inside[id.index()]);
            format!("{inside} bytes are guaranteed to the sub-units of {path}, and {} to itself", min(id))
        };
        contract.held().filter(is_uncovered).map(error).collect()
    }

    /// The first error in the orders in force on a unit. `entitled` is the unit's entitlement, and
    /// `charge_max` the most that may be charged to the unit, both with its sub-units.
    fn order_error(
        &self,
        contract: &Contract,
        memory: &MemoryPlan,
        id: UnitId,
        (entitled, charge_max_within): (u64, u64),
    ) -> Option<String> {
        let path = &contract.unit(id).path;
        let (min, low) = self.guaranteed.get(&id).copied().unwrap_or_default();
        if min > low || low > entitled {
            return Some(format!("{path} is guaranteed {min} and {low} bytes of {entitled}"));
        }
        if min > charge_max_within {
            return Some(format!("{path} is guaranteed {min} bytes and may use {charge_max_within}"));
        }
        let allowed = charge_max(memory, id);
        let bound = self.allowed.get(&id).copied().unwrap_or(allowed);
        (bound != allowed).then(|| format!("{path} may use {bound} bytes but is allowed {allowed}"))
    }
}

/// A unit's share; zero for a unit that the plan does not have.
fn share(memory: &MemoryPlan, id: UnitId) -> Share {
    memory.units.get(id.index()).copied().unwrap_or_default()
}

/// The most bytes that may be charged to a unit's own processes: the allowance less compressed swap, which is
/// not charged.
fn charge_max(memory: &MemoryPlan, id: UnitId) -> u64 {
    share(memory, id).allowed.saturating_sub(share(memory, id).packed)
}

/// For each unit by index, the sum of `own` over the unit and its sub-units.
fn sums(contract: &Contract, own: impl Fn(UnitId) -> u64) -> Vec<u64> {
    let mut sums = vec![0u64; contract.units.len()];
    // Parents precede their children.
    for id in contract.held().rev() {
        sums[id.index()] = sums[id.index()].saturating_add(own(id));
        if let Some(parent) = contract.unit(id).parent {
            sums[parent.index()] = sums[parent.index()].saturating_add(sums[id.index()]);
        }
    }
    sums
}

/// Errors of conservation: more is lent than borrowed or than has a time to be back, or more is allowed than
/// is divided.
fn conservation_errors(contract: &Contract, memory: &MemoryPlan) -> Vec<String> {
    let sum = |amount: fn(Share) -> u64| {
        contract.held().map(|id| amount(share(memory, id))).fold(0, u64::saturating_add)
    };
    let (lent, borrowed) = (sum(|share| share.lent), sum(|share| share.borrowed));
    let (allowed, divided) = (sum(|share| share.allowed), memory.divided);
    let mut errors = Vec::new();
    let timed = memory.terms.iter().map(|term| term.lent).fold(0, u64::saturating_add);
    if lent > timed {
        errors.push(format!("{lent} bytes of memory are lent, of which only {timed} have a time to be back"));
    }
    if lent > borrowed {
        errors.push(format!("{lent} bytes of memory are lent and {borrowed} borrowed"));
    }
    if allowed > divided {
        errors.push(format!("{allowed} bytes of memory are allowed of {divided}"));
    }
    errors
}

/// The first error in a unit's allowance and loans. `entitled` has each unit's entitlement, sub-units
/// included.
fn loan_error(contract: &Contract, memory: &MemoryPlan, id: UnitId, entitled: &[u64]) -> Option<String> {
    let (unit, share) = (contract.unit(id), share(memory, id));
    let path = &unit.path;
    if share.allowed != share.entitled.saturating_add(share.borrowed).saturating_sub(share.lent) {
        return Some(format!(
            "{path} is allowed {} bytes, which is not its entitlement less what it lends plus what it borrows",
            share.allowed
        ));
    }
    let isolate = contract.machine.scheme == Scheme::Isolate;
    if share.lent > 0 && !(unit.lend.memory.allows() && isolate) {
        return Some(format!("{path} lends memory but may not"));
    }
    if share.borrowed > 0 && !(unit.borrow.memory.allows() && isolate) {
        return Some(format!("{path} borrows memory but may not"));
    }
    if (share.lent > 0) != share.within_ns.is_some() {
        return Some(format!(
            "{path} lends {} bytes of memory, which does not agree with its call-back time",
            share.lent
        ));
    }
    let promise = contract.promise(id);
    let (within, most) = (share.within_ns.unwrap_or(0), promise.most_ns.max(promise.first_ns));
    if within > most {
        return Some(format!("{path} must have back what it lends within {within} ns, of at most {most}"));
    }
    let parent_entitled = unit.parent.map_or(memory.divided, |parent| entitled[parent.index()]);
    let sides = [
        ("lends", share.lent, unit.lend.memory.most(share.entitled)),
        ("borrows", share.borrowed, unit.borrow.memory.most(parent_entitled)),
    ];
    let exceeding = sides.into_iter().find(|(_, bytes, most)| bytes > most);
    exceeding.map(|(does, bytes, most)| format!("{path} {does} {bytes} bytes of memory of {most} at most"))
}
