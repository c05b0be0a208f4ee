//! CPU orders: each unit's CPU set, weight, cap, gate and credit, and the steps from the orders in force to
//! those that a plan wants. The sequence of these steps matters: see [`differences`].

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;

use crate::plan::{CpuOrder, Reason, Step};

/// The default weight of a control group.
pub(crate) const WEIGHT_USUAL: u32 = 100;

/// A unit's weight, 1 to 10,000, until a plan orders one. No plan orders one for [`UnitId::SHARED`], which
/// keeps the maximum: on time-shared CPUs it competes with all units together, and on a home CPU with the
/// owner. So an administrator's shell, which is in no unit, stays responsive while units use the whole
/// machine.
pub const fn first_weight(unit: UnitId) -> u32 {
    if unit.0 == UnitId::SHARED.0 { 10_000 } else { WEIGHT_USUAL }
}

/// The orders in force for one unit, each with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuOrders {
    /// The CPUs on which the unit may run; `None`: all.
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) cpus_because: Reason,
    /// Its weight among its siblings, 1 to 10,000.
    pub(crate) weight: u32,
    pub(crate) weight_because: Reason,
    /// The most CPU time that it may use, in millionths of a CPU; `None`: unlimited.
    pub(crate) cap: Option<u64>,
    pub(crate) cap_because: Reason,
    /// Whether its gate is open; otherwise the unit is stopped.
    pub(crate) open: bool,
    /// Its past net lending, in CPU milliseconds, by which a scheduler chooses borrowers.
    pub(crate) credit_ms: i32,
}

impl CpuOrders {
    /// Orders that restrict nothing. `because` is the reason to report if they lift restrictions that were in
    /// force.
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
fn gains_cpu(old: Option<&CpuSet>, new: Option<&CpuSet>) -> bool {
    match (old, new) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(old), Some(new)) => !new.difference(old).is_empty(),
    }
}

/// The steps from the orders in force (`before`) to those wanted. A unit that is not in `wanted` loses all
/// restrictions, for the reason `lifted_because`.
///
/// Gates close first and open last, so that two units never run on one CPU at the same time.
pub(crate) fn differences(
    before: &BTreeMap<UnitId, CpuOrders>,
    wanted: &BTreeMap<UnitId, CpuOrders>,
    lifted_because: Reason,
) -> Vec<Step<CpuOrder>> {
    if before == wanted {
        return Vec::new();
    }
    let units: BTreeSet<UnitId> = before.keys().chain(wanted.keys()).copied().collect();
    let unrestricted = CpuOrders::none(lifted_because);
    let pairs: Vec<(UnitId, &CpuOrders, &CpuOrders)> = units
        .iter()
        .map(|unit| {
            let (old, new) = (before.get(unit), wanted.get(unit));
            (*unit, old.unwrap_or(&unrestricted), new.unwrap_or(&unrestricted))
        })
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
    // First the CPU sets that gain a CPU, then those that only lose one: the new unit may use a CPU before
    // the previous unit leaves. For an idle CPU looks for work once, when it becomes idle, and then not for a
    // long time.
    confined.sort_by_cached_key(|(_, old, new)| !gains_cpu(old.cpus.as_ref(), new.cpus.as_ref()));
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
