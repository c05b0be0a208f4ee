//! The orders of a plan: from what each unit holds to what a backend is to do, as differences to the orders in force.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;

use crate::plan::{CpuOrder, Reason, Step};

/// Weight that cgroups have unless told otherwise.
pub(crate) const WEIGHT_USUAL: u32 = 100;

/// The weight of a unit, 1 to 10,000, before a plan says any: the usual one. No plan says that of [`UnitId::SHARED`]:
/// on time-shared CPUs it counts for as much as all units together, as it has turns with the owner of a home CPU. A
/// process that comes to the machine and is in no unit, to see what is going on there for instance, does not wait for
/// the units that use all of it.
pub const fn first_weight(unit: UnitId) -> u32 {
    if unit.0 == UnitId::SHARED.0 { 10_000 } else { WEIGHT_USUAL }
}

/// What is in force for one unit, each with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) cpus_because: Reason,
    pub(crate) weight: u32,
    pub(crate) weight_because: Reason,
    pub(crate) cap: Option<u64>,
    pub(crate) cap_because: Reason,
    pub(crate) open: bool,
    pub(crate) credit_ms: i32,
}

impl Orders {
    /// Nothing ordered, for a reason that is given when something was ordered before.
    pub(crate) fn none(because: Reason) -> Self {
        Orders {
            cpus: None,
            cpus_because: because,
            weight: WEIGHT_USUAL,
            weight_because: because,
            cap: None,
            cap_because: because,
            open: true,
            credit_ms: 0,
        }
    }
}

/// Whether the new set has a CPU that the old one has not. No set is all CPUs.
fn gains(old: Option<&CpuSet>, new: Option<&CpuSet>) -> bool {
    match (old, new) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(old), Some(new)) => !new.difference(old).is_empty(),
    }
}

/// The steps from the orders in force to those wanted; a unit that is in neither is not mentioned.
///
/// Gates close first and open last, so that no unit runs, even for a moment, where another already does.
pub(crate) fn differences(
    before: &BTreeMap<UnitId, Orders>,
    wanted: &BTreeMap<UnitId, Orders>,
    gone: Reason,
) -> Vec<Step<CpuOrder>> {
    if before == wanted {
        return Vec::new();
    }
    let units: BTreeSet<UnitId> = before.keys().chain(wanted.keys()).copied().collect();
    let none = Orders::none(gone);
    let pairs: Vec<(UnitId, &Orders, &Orders)> = units
        .iter()
        .map(|unit| (*unit, before.get(unit).unwrap_or(&none), wanted.get(unit).unwrap_or(&none)))
        .collect();
    let mut steps = Vec::new();
    let mut order = |action, reason| steps.push(Step { action, reason });
    for (unit, old, new) in &pairs {
        if old.open && !new.open {
            order(CpuOrder::Gate { unit: *unit, open: false }, Reason::TurnOver);
        }
    }
    let mut confined: Vec<&(UnitId, &Orders, &Orders)> =
        pairs.iter().filter(|(_, old, new)| old.cpus != new.cpus).collect();
    // A unit that gains a CPU may run there before the one that loses it leaves: a kernel looks for work when a CPU
    // falls idle, and not again for long when that finds none.
    confined.sort_by_cached_key(|(_, old, new)| !gains(old.cpus.as_ref(), new.cpus.as_ref()));
    for (unit, _, new) in confined {
        order(CpuOrder::Confine { unit: *unit, cpus: new.cpus.clone() }, new.cpus_because);
    }
    for (unit, old, new) in &pairs {
        if old.weight != new.weight {
            order(CpuOrder::Weigh { unit: *unit, weight: new.weight }, new.weight_because);
        }
        if old.credit_ms != new.credit_ms {
            order(CpuOrder::Credit { unit: *unit, credit_ms: new.credit_ms }, Reason::Remembered);
        }
        if old.cap != new.cap {
            order(CpuOrder::Cap { unit: *unit, micro_cpus: new.cap }, new.cap_because);
        }
    }
    for (unit, old, new) in &pairs {
        if !old.open && new.open {
            order(CpuOrder::Gate { unit: *unit, open: true }, Reason::HoldsAgain);
        }
    }
    steps
}
