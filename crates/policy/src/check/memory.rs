//! The plan checker's books of memory.
//!
//! Checked:
//! - A unit's allowance is what it is entitled to, less what it lends, plus what it borrows. Allowances sum to no more
//!   than is divided.
//! - What is lent has a borrower. No unit lends or borrows that may not, nor beyond what its contract allows.
//! - The bounds in force are those allowances.
//! - No unit is guaranteed more than it is entitled to, nor (`min`) more than it may use.
//! - Memory is taken only from a unit that has a bound or is gone. `smp` orders nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_machine::Machine;

use crate::membership::is_within;
use crate::plan::{MemoryOrder, MemoryPlan, Plan, Share};

/// What is in force, as the plans so far said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MemoryBooks {
    /// `min` and `low`.
    guaranteed: BTreeMap<UnitId, (u64, u64)>,
    allowed: BTreeMap<UnitId, u64>,
    exposed: BTreeSet<UnitId>,
}

impl MemoryBooks {
    /// Replays the steps about memory; what is wrong with them is added to `wrong`.
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
            wrong.push(String::from("the scheme is smp and yet memory is held"));
        }
        let whole = machine.memory_bytes();
        let kept: u64 = contract.children(None).filter_map(|id| self.guaranteed.get(&id)).map(|g| g.1).sum();
        if kept > whole {
            wrong.push(format!("{kept} bytes of memory are guaranteed of {whole}"));
        }
        if let Some(memory) = &plan.decisions.memory {
            wrong.extend(conserved(contract, memory));
            wrong.extend(contract.held().filter_map(|id| permitted(contract, memory, id)));
            wrong.extend(contract.held().filter_map(|id| self.in_force(contract, memory, id)));
        }
    }

    fn in_force(&self, contract: &Contract, memory: &MemoryPlan, id: UnitId) -> Option<String> {
        let path = &contract.unit(id).path;
        let entitled: u64 = contract
            .held()
            .filter(|sub| is_within(contract, *sub, id))
            .map(|sub| share(memory, sub).entitled)
            .sum();
        let (min, low) = self.guaranteed.get(&id).copied().unwrap_or_default();
        if min > low || low > entitled {
            return Some(format!("{path} is guaranteed {min} and {low} bytes of {entitled}"));
        }
        let charged = |sub: UnitId| share(memory, sub).allowed.saturating_sub(share(memory, sub).packed);
        let most: u64 = contract.held().filter(|sub| is_within(contract, *sub, id)).map(charged).sum();
        if min > most {
            return Some(format!("{path} is guaranteed {min} bytes and may use {most}"));
        }
        let allowed = share(memory, id).allowed.saturating_sub(share(memory, id).packed);
        let held = self.allowed.get(&id).copied().unwrap_or(allowed);
        (held != allowed).then(|| format!("{path} may use {held} bytes but is allowed {allowed}"))
    }
}

fn share(memory: &MemoryPlan, id: UnitId) -> Share {
    memory.units.get(id.index()).copied().unwrap_or_default()
}

fn conserved(contract: &Contract, memory: &MemoryPlan) -> Vec<String> {
    let sum = |part: fn(Share) -> u64| contract.held().map(|id| part(share(memory, id))).sum::<u64>();
    let (lent, borrowed) = (sum(|share| share.lent), sum(|share| share.borrowed));
    let (allowed, divided) = (sum(|share| share.allowed), memory.divided);
    let mut wrong = Vec::new();
    if lent > borrowed {
        wrong.push(format!("{lent} bytes of memory are lent and {borrowed} borrowed"));
    }
    if allowed > divided {
        wrong.push(format!("{allowed} bytes of memory are allowed of {divided}"));
    }
    wrong
}

fn permitted(contract: &Contract, memory: &MemoryPlan, id: UnitId) -> Option<String> {
    let (unit, share) = (contract.unit(id), share(memory, id));
    let path = &unit.path;
    if share.allowed != (share.entitled + share.borrowed).saturating_sub(share.lent) {
        return Some(format!("{path} is allowed {} bytes, which is not what it holds", share.allowed));
    }
    let isolate = contract.machine.scheme == Scheme::Isolate;
    if share.lent > 0 && !(unit.lend.memory.allows() && isolate) {
        return Some(format!("{path} lends memory but may not"));
    }
    if share.borrowed > 0 && !(unit.borrow.memory.allows() && isolate) {
        return Some(format!("{path} borrows memory but may not"));
    }
    let around = unit.parent.map_or(memory.divided, |around| {
        contract
            .held()
            .filter(|sub| is_within(contract, *sub, around))
            .map(|sub| self::share(memory, sub).entitled)
            .sum()
    });
    let sides = [
        ("lends", share.lent, unit.lend.memory.most(share.entitled)),
        ("borrows", share.borrowed, unit.borrow.memory.most(around)),
    ];
    let beyond = sides.into_iter().find(|(_, bytes, most)| bytes > most);
    beyond.map(|(does, bytes, most)| format!("{path} {does} {bytes} bytes of memory of {most} at most"))
}
