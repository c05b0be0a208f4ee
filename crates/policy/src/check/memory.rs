//! The plan checker's books of memory.
//!
//! Checked:
//! - A unit's allowance is its entitlement, minus what it lends, plus what it borrows. Allowances sum to no more than is
//!   divided.
//! - Every loan has a borrower, and a time within which it must be back, as the contract permits. Units lend and borrow only if
//!   they may, and within the contract's limits.
//! - The bounds in force are those allowances.
//! - No unit is guaranteed more than its entitlement, nor (`min`) more than it may use. Its `min` covers its sub-units': a
//!   kernel protects nothing that is not protected in the enclosing group.
//! - Memory is reclaimed only from a unit that has a bound or is gone. `smp` orders nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_machine::Machine;

use crate::plan::{MemoryOrder, MemoryPlan, Plan, Share};

/// What is in force according to the plans so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MemoryBooks {
    /// `min` and `low`.
    guaranteed: BTreeMap<UnitId, (u64, u64)>,
    allowed: BTreeMap<UnitId, u64>,
    exposed: BTreeSet<UnitId>,
}

impl MemoryBooks {
    /// Replays the decisions and orders about memory; appends errors to `wrong`.
    pub(super) fn replay(
        &mut self,
        contract: &Contract,
        machine: &Machine,
        plan: &Plan,
        wrong: &mut Vec<String>,
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
        self.guaranteed.retain(|_, kept| *kept != (0, 0));
        let none = self.guaranteed.is_empty() && self.allowed.is_empty() && self.exposed.is_empty();
        if contract.machine.scheme == Scheme::Smp && !none {
            wrong.push(String::from("the scheme is smp, and memory is restricted"));
        }
        let whole = machine.memory_bytes();
        let low = |id: UnitId| self.guaranteed.get(&id).map_or(0, |(_, low)| *low);
        let kept = contract.children(None).map(low).fold(0, u64::saturating_add);
        if kept > whole {
            wrong.push(format!("{kept} bytes of memory are guaranteed of {whole}"));
        }
        if let Some(memory) = &plan.decisions.memory {
            wrong.extend(conserved(contract, memory));
            let entitled = sums(contract, |id| share(memory, id).entitled);
            let charged = sums(contract, |id| charged(memory, id));
            wrong.extend(contract.held().filter_map(|id| permitted(contract, memory, id, &entitled)));
            wrong.extend(self.not_kept_around(contract));
            let sums = |id: UnitId| (entitled[id.index()], charged[id.index()]);
            wrong.extend(contract.held().filter_map(|id| self.in_force(contract, memory, id, sums(id))));
        }
    }

    /// Guarantees that the enclosing unit's does not cover.
    fn not_kept_around(&self, contract: &Contract) -> Vec<String> {
        let min = |id: UnitId| self.guaranteed.get(&id).map_or(0, |(min, _)| *min);
        let mut inside = vec![0u64; contract.units.len()];
        for id in contract.held() {
            if let Some(around) = contract.unit(id).parent {
                inside[around.index()] = inside[around.index()].saturating_add(min(id));
            }
        }
        let lacks = |id: &UnitId| inside[id.index()] > min(*id);
        let tell = |id: UnitId| {
            let (path, inside) = (&contract.unit(id).path, inside[id.index()]);
            format!("{inside} bytes are guaranteed to the sub-units of {path}, and {} to itself", min(id))
        };
        contract.held().filter(lacks).map(tell).collect()
    }

    /// What is wrong with the orders in force on a unit, given its entitlement and its maximum charge, sub-units included.
    fn in_force(
        &self,
        contract: &Contract,
        memory: &MemoryPlan,
        id: UnitId,
        (entitled, most): (u64, u64),
    ) -> Option<String> {
        let path = &contract.unit(id).path;
        let (min, low) = self.guaranteed.get(&id).copied().unwrap_or_default();
        if min > low || low > entitled {
            return Some(format!("{path} is guaranteed {min} and {low} bytes of {entitled}"));
        }
        if min > most {
            return Some(format!("{path} is guaranteed {min} bytes and may use {most}"));
        }
        let allowed = charged(memory, id);
        let held = self.allowed.get(&id).copied().unwrap_or(allowed);
        (held != allowed).then(|| format!("{path} may use {held} bytes but is allowed {allowed}"))
    }
}

fn share(memory: &MemoryPlan, id: UnitId) -> Share {
    memory.units.get(id.index()).copied().unwrap_or_default()
}

/// What may be charged to a unit's own processes.
fn charged(memory: &MemoryPlan, id: UnitId) -> u64 {
    share(memory, id).allowed.saturating_sub(share(memory, id).packed)
}

/// Sums over each unit's subtree, by index.
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

fn conserved(contract: &Contract, memory: &MemoryPlan) -> Vec<String> {
    let sum = |part: fn(Share) -> u64| {
        contract.held().map(|id| part(share(memory, id))).fold(0, u64::saturating_add)
    };
    let (lent, borrowed) = (sum(|share| share.lent), sum(|share| share.borrowed));
    let (allowed, divided) = (sum(|share| share.allowed), memory.divided);
    let mut wrong = Vec::new();
    let timed = memory.terms.iter().map(|term| term.lent).fold(0, u64::saturating_add);
    if lent > timed {
        wrong.push(format!("{lent} bytes of memory are lent, of which only {timed} have a time to be back"));
    }
    if lent > borrowed {
        wrong.push(format!("{lent} bytes of memory are lent and {borrowed} borrowed"));
    }
    if allowed > divided {
        wrong.push(format!("{allowed} bytes of memory are allowed of {divided}"));
    }
    wrong
}

/// What is wrong with a unit's loans; `entitled` has each unit's entitlement, sub-units included.
fn permitted(contract: &Contract, memory: &MemoryPlan, id: UnitId, entitled: &[u64]) -> Option<String> {
    let (unit, share) = (contract.unit(id), share(memory, id));
    let path = &unit.path;
    if share.allowed != share.entitled.saturating_add(share.borrowed).saturating_sub(share.lent) {
        return Some(format!("{path} is allowed {} bytes, which is not what it holds", share.allowed));
    }
    let isolate = contract.machine.scheme == Scheme::Isolate;
    if share.lent > 0 && !(unit.lend.memory.allows() && isolate) {
        return Some(format!("{path} lends memory but may not"));
    }
    if share.borrowed > 0 && !(unit.borrow.memory.allows() && isolate) {
        return Some(format!("{path} borrows memory but may not"));
    }
    if (share.lent > 0) != share.within_ns.is_some() {
        return Some(format!("{path} lends {} bytes of memory without a time, or none with one", share.lent));
    }
    let promise = contract.promise(id);
    let (within, most) = (share.within_ns.unwrap_or(0), promise.most_ns.max(promise.first_ns));
    if within > most {
        return Some(format!("{path} must have back what it lends within {within} ns, of at most {most}"));
    }
    let around = unit.parent.map_or(memory.divided, |around| entitled[around.index()]);
    let sides = [
        ("lends", share.lent, unit.lend.memory.most(share.entitled)),
        ("borrows", share.borrowed, unit.borrow.memory.most(around)),
    ];
    let beyond = sides.into_iter().find(|(_, bytes, most)| bytes > most);
    beyond.map(|(does, bytes, most)| format!("{path} {does} {bytes} bytes of memory of {most} at most"))
}
