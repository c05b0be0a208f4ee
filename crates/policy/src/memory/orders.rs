//! Turns the units' allowances into orders for the backend. Only orders that differ from those in force are
//! given.
//!
//! A unit's *bound* is its allowance. A unit's *guarantees* are amounts of memory that no other unit's demand
//! may take from the unit: `min` is the reservation less its lent part, and `low` is the entitlement.
//!
//! Properties (tested):
//! - A unit without processes has no bound, so that a process that joins it finds room.
//! - For a unit without sub-units, the bound is never below a guarantee, not even between two orders of one
//!   plan.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::UnitId;

use super::frames::{Allowance, Because, Shares};
use super::{MemoryState, Sample, UnitRecord};
use crate::input::Input;
use crate::plan::{MemoryOrder, NoMore, Reason, Share, Step};
use crate::tree;

/// The bound and guarantees in force for one unit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BoundAndGuarantees {
    /// Memory of the unit, sub-units included, that is never reclaimed for others.
    pub(super) min: u64,
    /// Memory of the unit, sub-units included, that is not reclaimed while other units have memory beyond
    /// their own `low`.
    low: u64,
    /// The part of `low` that belongs to the unit's own processes.
    own: u64,
    /// The bound of the unit's own processes; `None`: unlimited.
    pub(super) high: Option<u64>,
}

impl MemoryState {
    /// Stores the decided shares, in bytes, and determines from which units memory is called back.
    pub(super) fn record(&mut self, sample: Sample<'_>, shares: &Shares) {
        let frame_bytes = sample.frame_bytes;
        for (unit, allowance) in self.units.iter_mut().zip(&shares.allowances) {
            let previous = unit.share;
            let share = Share {
                entitled: allowance.entitled * frame_bytes,
                lent: allowance.lent * frame_bytes,
                borrowed: allowance.borrowed * frame_bytes,
                allowed: allowance.allowed * frame_bytes,
                packed: previous.packed,
                callable: allowance.callable.map(|callable| callable.saturating_mul(frame_bytes)),
                within_ns: allowance.within_ns,
                no_more: if unit.short { no_more(allowance.because, shares.spent) } else { None },
                called_back: false,
            };
            // A call-back lasts until the unit is within its allowance, which may also grow again meanwhile.
            let loan_sank = share.borrowed < previous.borrowed || previous.called_back;
            let exceeds = unit.facts.used > share.allowed.saturating_add(sample.slack());
            let called_back = loan_sank && exceeds && allowance.because != Because::Common;
            unit.share = Share { called_back, ..share };
        }
    }

    /// Orders bounds and guarantees, as differences to those in force.
    pub(super) fn order_bounds(
        &mut self,
        sample: Sample<'_>,
        allowances: &[Allowance],
        steps: &mut Vec<Step<MemoryOrder>>,
    ) {
        let reserved = |id: UnitId| allowances[id.index()].reserved * sample.frame_bytes;
        let wanted = wanted(sample.input, &self.charged(), reserved);
        differences(&self.in_force, &wanted, Reason::NobodyThere, steps);
        explain(steps, allowances, sample.frame_bytes);
        self.in_force = wanted;
    }

    /// Withdraws all bounds and guarantees.
    pub(super) fn withdraw_bounds(&self, reason: Reason, steps: &mut Vec<Step<MemoryOrder>>) {
        differences(&self.in_force, &BTreeMap::new(), reason, steps);
    }

    /// The shares less packed memory (compressed swap). That memory counts as used by the unit, but the
    /// kernel charges it to no unit, so bounds and guarantees must not include it.
    fn charged(&self) -> Vec<Share> {
        let charged = |unit: &UnitRecord| Share {
            entitled: unit.share.entitled.saturating_sub(unit.share.packed),
            allowed: unit.share.allowed.saturating_sub(unit.share.packed),
            ..unit.share
        };
        self.units.iter().map(charged).collect()
    }
}

/// The bounds and guarantees that are to be in force; units without any are left out.
///
/// `reserved` gives the reservation of a unit, sub-units included, in bytes. A unit's guarantee covers at
/// least the sum of its sub-units' guarantees, since a kernel protects no memory of a group that is not
/// protected in its parent. This sum never exceeds the unit's entitlement or allowance, sub-units included.
fn wanted(
    input: Input<'_>,
    shares: &[Share],
    reserved: impl Fn(UnitId) -> u64,
) -> BTreeMap<UnitId, BoundAndGuarantees> {
    let entitled = tree::sums(input.contract, |unit| shares[unit.index()].entitled);
    let allowed = tree::sums(input.contract, |unit| shares[unit.index()].allowed);
    let guarantees = input.means.memory.guarantees;
    // The lent part of a reservation is not guaranteed until it is called back. Otherwise the bound would be
    // below the guarantee, and the kernel would have to reclaim pages that it may not reclaim.
    let own_min = |id: UnitId| reserved(id).min(entitled[id.index()]).min(allowed[id.index()]);
    let mut min = alloc::vec![0u64; input.contract.units.len()];
    // A unit precedes its sub-units, so going backwards sums the sub-units first.
    for id in input.contract.held().rev() {
        let kept = min[id.index()].max(own_min(id));
        min[id.index()] = kept;
        if let Some(parent) = input.contract.unit(id).parent {
            min[parent.index()] = min[parent.index()].saturating_add(kept);
        }
    }
    // A machine that hands out frames itself grants a new process some frames beyond its unit's bound. So
    // there, units without processes are bounded, too.
    let bounds_all = input.means.memory.frames.is_some();
    let order = |id: UnitId| {
        let present = input.snapshot.unit(id).processes > 0;
        let share = shares[id.index()];
        BoundAndGuarantees {
            min: if guarantees { min[id.index()] } else { 0 },
            low: if guarantees { entitled[id.index()] } else { 0 },
            own: if guarantees { share.entitled } else { 0 },
            high: (present || bounds_all).then_some(share.allowed),
        }
    };
    input
        .contract
        .held()
        .map(|id| (id, order(id)))
        .filter(|(_, order)| *order != BoundAndGuarantees::default())
        .collect()
}

/// Appends the steps from the bounds and guarantees in force to the wanted ones: first guarantees that sink,
/// then bounds that sink, bounds that grow, and guarantees that grow. In this order no bound is ever below a
/// guarantee, for units without sub-units. `reason` is given for every step except guarantees of an
/// entitlement.
fn differences(
    in_force: &BTreeMap<UnitId, BoundAndGuarantees>,
    wanted: &BTreeMap<UnitId, BoundAndGuarantees>,
    reason: Reason,
    steps: &mut Vec<Step<MemoryOrder>>,
) {
    if in_force == wanted {
        return;
    }
    let units: BTreeSet<UnitId> = in_force.keys().chain(wanted.keys()).copied().collect();
    let pair = |unit| {
        let order = |orders: &BTreeMap<_, BoundAndGuarantees>| orders.get(&unit).copied().unwrap_or_default();
        (unit, order(in_force), order(wanted))
    };
    let pairs: Vec<_> = units.into_iter().map(pair).collect();
    let bound = |high: Option<u64>| high.unwrap_or(u64::MAX);
    let allow = |sinks: bool| {
        let changed = pairs.iter().filter(|(_, old, new)| old.high != new.high);
        let selected = changed.filter(move |(_, old, new)| (bound(new.high) < bound(old.high)) == sinks);
        selected.map(|(unit, _, new)| Step {
            action: MemoryOrder::Allow { unit: *unit, bytes: new.high },
            reason,
        })
    };
    let guarantees = |order: &BoundAndGuarantees| (order.min, order.low, order.own);
    let guarantee = |sinks: bool| {
        let changed = pairs.iter().filter(|(_, old, new)| guarantees(old) != guarantees(new));
        let selected = changed.filter(move |(_, old, new)| (new.min < old.min) == sinks);
        selected.map(|(unit, _, new)| {
            let action = MemoryOrder::Guarantee { unit: *unit, min: new.min, low: new.low, own: new.own };
            let reason = if new.low > 0 { Reason::EntitledTo { bytes: new.low } } else { reason };
            Step { action, reason }
        })
    };
    steps.extend(guarantee(true).chain(allow(true)).chain(allow(false)).chain(guarantee(false)));
}

/// Why a unit that is short may not use more; `None` if its allowance may still grow by itself.
pub(super) fn no_more(because: Because, spent: bool) -> Option<NoMore> {
    match because {
        Because::BorrowsInTime | Because::OnTrial => Some(NoMore::InTime),
        Because::Borrows | Because::BorrowsFirst if spent => Some(NoMore::NothingIdle),
        Because::NothingIdle => Some(NoMore::NothingIdle),
        Because::Limit => Some(NoMore::Limit),
        Because::MayNotBorrow => Some(NoMore::MayNotBorrow),
        _ => None,
    }
}

/// Replaces the reasons of the orders that set bounds by the reasons of the allowances.
fn explain(steps: &mut [Step<MemoryOrder>], allowances: &[Allowance], frame_bytes: u64) {
    for step in steps {
        if let MemoryOrder::Allow { unit, bytes: Some(_) } = step.action
            && let Some(allowance) = allowances.get(unit.index())
        {
            step.reason = reason(*allowance, frame_bytes);
        }
    }
}

fn reason(allowance: Allowance, frame_bytes: u64) -> Reason {
    match allowance.because {
        Because::Common | Because::Entitled => Reason::EntitledTo { bytes: allowance.entitled * frame_bytes },
        Because::Scheme(scheme) => Reason::Scheme { scheme },
        Because::Lends => {
            let within_ns = allowance.within_ns.unwrap_or(0);
            Reason::Lends { bytes: allowance.lent * frame_bytes, within_ns }
        }
        Because::CalledBack { frames } => Reason::CallsBack { bytes: frames * frame_bytes },
        Because::BorrowsFirst => Reason::BorrowsFirst { bytes: allowance.borrowed * frame_bytes },
        Because::BorrowsInTime => Reason::BorrowsInTime { bytes: allowance.borrowed * frame_bytes },
        Because::OnTrial => Reason::OnTrial,
        Because::Borrows => Reason::Borrows { bytes: allowance.borrowed * frame_bytes },
        Because::GaveBack { frames } => Reason::GivesBack { bytes: frames * frame_bytes },
        Because::MayNotBorrow => Reason::MayNotBorrow,
        Because::Limit => Reason::AtLimit,
        Because::NothingIdle => Reason::NothingIdle,
    }
}
