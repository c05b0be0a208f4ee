//! CPU orders: the differences between the orders in force and those that a plan wants.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;

use crate::plan::{CpuOrder, Reason, Step};

/// The default weight of a control group.
pub(crate) const WEIGHT_USUAL: u32 = 100;

/// A unit's weight, 1 to 10,000, until a plan orders one. [`UnitId::SHARED`] keeps the maximum: on time-shared CPUs it competes
/// with all units together, and on a home CPU with the owner. So an administrator's shell, which is in no unit, stays
/// responsive while units use the whole machine.
pub const fn first_weight(unit: UnitId) -> u32 {
    if unit.0 == UnitId::SHARED.0 { 10_000 } else { WEIGHT_USUAL }
}

/// The orders in force for one unit, each with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuOrders {
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) cpus_because: Reason,
    pub(crate) weight: u32,
    pub(crate) weight_because: Reason,
    pub(crate) cap: Option<u64>,
    pub(crate) cap_because: Reason,
    pub(crate) open: bool,
    pub(crate) credit_ms: i32,
}

impl CpuOrders {
    /// No restrictions. `because` is reported if restrictions were in force before.
    pub(crate) fn none(because: Reason) -> Self {
        CpuOrders {
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

/// Whether `new` contains a CPU that `old` lacks. `None` means all CPUs.
fn gains(old: Option<&CpuSet>, new: Option<&CpuSet>) -> bool {
    match (old, new) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(old), Some(new)) => !new.difference(old).is_empty(),
    }
}

/// The steps from the orders in force to those wanted.
///
/// Gates close first and open last, so that two units never run on one CPU at the same time.
pub(crate) fn differences(
    before: &BTreeMap<UnitId, CpuOrders>,
    wanted: &BTreeMap<UnitId, CpuOrders>,
    gone: Reason,
) -> Vec<Step<CpuOrder>> {
    if before == wanted {
        return Vec::new();
    }
    let units: BTreeSet<UnitId> = before.keys().chain(wanted.keys()).copied().collect();
    let none = CpuOrders::none(gone);
    let pairs: Vec<(UnitId, &CpuOrders, &CpuOrders)> = units
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
    let mut confined: Vec<&(UnitId, &CpuOrders, &CpuOrders)> =
        pairs.iter().filter(|(_, old, new)| old.cpus != new.cpus).collect();
    // A unit gains a CPU before the previous one leaves it: an idle CPU looks for work once when it falls idle, and then not
    // for a long time.
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
