//! The parameters of a scheduler that decides at every switch: parameters of each unit and of each CPU.
//!
//! A plan determines the owner of each CPU, and units' weights and credits. The contract determines the tree
//! of units, their disciplines, and which units lend and borrow. [`Switches`] merges plan and contract. Live
//! and simulated machines both configure their scheduler from [`Switches`]; each numbers units in its own
//! way.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_dispatch::{ANYWHERE, BORROWS, Deadline, Discipline, LENDS, SEATS};
use commonhold_policy::Plan;
use commonhold_policy::cpu::{borrows, first_weight, lends};
use commonhold_policy::plan::{CpuDecision, CpuOrder};

/// A unit's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The enclosing unit.
    pub parent: Option<UnitId>,
    /// The unit's weight among its siblings, 1 to 10,000; the enclosing unit's own tasks together have 100.
    pub weight: u32,
    /// Flags: [`LENDS`], [`BORROWS`], [`ANYWHERE`] and [`SEATS`].
    pub flags: u32,
    /// An outermost unit's credit: milliseconds of a CPU that it lent beyond what it borrowed.
    pub credit_ms: i32,
    /// The discipline by which the unit orders its own tasks and its sub-units.
    pub discipline: Discipline,
    /// The unit's deadline, used if the enclosing unit's discipline is [`Discipline::Dwcs`].
    pub deadline: Deadline,
}

/// An update for the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchUpdate {
    /// A unit's new parameters.
    Unit(UnitId, Rules),
    /// A CPU's new owner; `None`: unowned.
    Own(u32, Option<UnitId>),
}

/// The complete configuration of a scheduler. A newly loaded scheduler gets all of [`Switches::units`] and
/// [`Switches::owners`], and then the updates of [`Switches::apply`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Switches {
    units: BTreeMap<UnitId, Rules>,
    owners: BTreeMap<u32, UnitId>,
}

impl Switches {
    /// The initial state for a contract without a plan.
    pub fn new(contract: &Contract) -> Switches {
        let mut switches = Switches::default();
        switches.follow(contract);
        switches
    }

    /// Adopts another contract. Units in both contracts keep their weights, credits and CPUs; the CPUs of
    /// units that left become unowned.
    pub fn follow(&mut self, contract: &Contract) {
        let weight_and_credit = |unit: UnitId| {
            let before = self.units.get(&unit);
            before.map_or((first_weight(unit), 0), |rules| (rules.weight, rules.credit_ms))
        };
        let rules_of = |unit: UnitId| (unit, rules(contract, unit, weight_and_credit(unit)));
        self.units = contract.present().map(rules_of).collect();
        self.owners.retain(|_, unit| contract.has(*unit));
    }

    /// Applies a plan. Returns the updates: weights and credits, then owners. A CPU passes directly from one
    /// owner to the next.
    pub fn apply(&mut self, plan: &Plan) -> Vec<SwitchUpdate> {
        let mut updates = Vec::new();
        for step in &plan.orders.cpu {
            let Some(rules) = self.units.get_mut(&step.action.unit()) else { continue };
            match step.action {
                CpuOrder::Weigh { weight, .. } => rules.weight = weight,
                CpuOrder::Credit { credit_ms, .. } => rules.credit_ms = credit_ms,
                CpuOrder::Confine { .. } | CpuOrder::Cap { .. } | CpuOrder::Gate { .. } => continue,
            }
            updates.push(SwitchUpdate::Unit(step.action.unit(), *rules));
        }
        // The final owner of each CPU: a CPU that is disowned and owned again within the plan has one update.
        let mut owners: BTreeMap<u32, Option<UnitId>> = BTreeMap::new();
        for step in &plan.decisions.cpu.steps {
            match step.action {
                CpuDecision::Own { cpu, unit } => drop(owners.insert(cpu, Some(unit))),
                CpuDecision::Disown { cpu, .. } => drop(owners.entry(cpu).or_insert(None)),
                CpuDecision::Lend { .. } | CpuDecision::CallBack { .. } | CpuDecision::Return { .. } => {}
            }
        }
        for (cpu, unit) in owners {
            match unit {
                Some(unit) => drop(self.owners.insert(cpu, unit)),
                None => drop(self.owners.remove(&cpu)),
            }
            updates.push(SwitchUpdate::Own(cpu, unit));
        }
        updates
    }

    /// Every unit's parameters, enclosers before their sub-units.
    pub fn units(&self) -> impl Iterator<Item = (UnitId, Rules)> + '_ {
        self.units.iter().map(|(unit, rules)| (*unit, *rules))
    }

    /// The owner of each owned CPU.
    pub fn owners(&self) -> impl Iterator<Item = (u32, UnitId)> + '_ {
        self.owners.iter().map(|(cpu, unit)| (*cpu, *unit))
    }
}

/// A unit's parameters by the contract, with the given weight and credit. Tasks in no unit (`shared`) may run
/// on any CPU ([`ANYWHERE`]): otherwise they could starve if the contract divides all CPUs among units.
fn rules(contract: &Contract, unit: UnitId, (weight, credit_ms): (u32, i32)) -> Rules {
    let lends = if lends(contract, unit) { LENDS } else { 0 };
    let borrows = if unit.is_common() || borrows(contract, unit) { BORROWS } else { 0 };
    let is_isolated = contract.machine.scheme != Scheme::Smp;
    let anywhere = if unit == UnitId::SHARED && is_isolated { ANYWHERE } else { 0 };
    // Without isolation, all units are inside `shared`, whose discipline then orders all tasks.
    let has_seats =
        contract.unit(unit).job.is_some() || !is_isolated && unit == UnitId::SHARED && seated(contract);
    let seats = if has_seats { SEATS } else { 0 };
    let default_parent = if is_isolated || unit.is_common() { None } else { Some(UnitId::SHARED) };
    let discipline = discipline(contract, unit);
    let deadline = contract.unit(unit).deadline.map_or(Deadline::NONE, |deadline| Deadline {
        period_ns: deadline.period_ns,
        budget_ns: deadline.budget_ns,
        misses: deadline.misses,
        of: deadline.of,
    });
    Rules {
        parent: contract.unit(unit).parent.or(default_parent),
        weight,
        flags: lends | borrows | anywhere | seats,
        credit_ms,
        discipline,
        deadline,
    }
}

/// The scheduler's discipline for a unit. Under `smp`, `shared` has the discipline `smp`, and disciplines of
/// units have no effect.
fn discipline(contract: &Contract, unit: UnitId) -> Discipline {
    use commonhold_contract::Discipline as Named;
    match contract.unit(unit).discipline {
        _ if contract.machine.scheme == Scheme::Smp && unit == UnitId::SHARED => Discipline::Smp,
        _ if contract.machine.scheme == Scheme::Smp => Discipline::Stride,
        Named::Stride => Discipline::Stride,
        Named::Lottery => Discipline::Lottery,
        Named::Entitlement => Discipline::Entitlement,
        Named::Decay => Discipline::Decay,
        Named::Fifo => Discipline::Fifo,
        Named::Rr => Discipline::Rr,
        Named::Batch => Discipline::Batch,
        Named::JobCurrency => Discipline::Job,
        Named::Gang => Discipline::Gang,
        Named::Dwcs => Discipline::Dwcs,
        Named::Smp => Discipline::Smp,
        Named::Classes => Discipline::Classes,
    }
}

/// Whether the scheduler needs its support for seats under this contract: the jobs of some unit are placed in
/// pools.
pub fn seated(contract: &Contract) -> bool {
    contract.present().any(|unit| contract.unit(unit).job.is_some())
}

/// Whether the scheduler needs disciplines other than stride under this contract.
pub fn disciplined(contract: &Contract) -> bool {
    contract.present().any(|unit| discipline(contract, unit) != Discipline::Stride)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_policy::{Reason, Step};

    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);

    fn contract() -> Contract {
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        contract.add(Some(a), "b");
        contract
    }

    fn plan(decided: &[CpuDecision], ordered: &[CpuOrder]) -> Plan {
        let reason = Reason::TurnOver;
        let mut plan = Plan::default();
        plan.decisions.cpu.steps = decided.iter().map(|d| Step { action: d.clone(), reason }).collect();
        plan.orders.cpu = ordered.iter().map(|o| Step { action: o.clone(), reason }).collect();
        plan
    }

    #[test]
    fn a_cpu_passes_directly_from_one_owner_to_the_next() {
        let mut switches = Switches::new(&contract());
        let first = [CpuDecision::Own { cpu: 0, unit: A }, CpuDecision::Own { cpu: 1, unit: A }];
        assert_eq!(
            switches.apply(&plan(&first, &[])),
            [SwitchUpdate::Own(0, Some(A)), SwitchUpdate::Own(1, Some(A))]
        );
        let next = [
            CpuDecision::Disown { cpu: 0, unit: A },
            CpuDecision::Disown { cpu: 1, unit: A },
            CpuDecision::Own { cpu: 1, unit: B },
        ];
        let weights = [CpuOrder::Weigh { unit: B, weight: 7 }, CpuOrder::Gate { unit: B, open: true }];
        let updates = switches.apply(&plan(&next, &weights));
        assert!(
            matches!(updates[0], SwitchUpdate::Unit(B, Rules { parent: Some(A), weight: 7, .. })),
            "{updates:?}"
        );
        assert_eq!(updates[1..], [SwitchUpdate::Own(0, None), SwitchUpdate::Own(1, Some(B))]);
        assert_eq!(switches.owners().collect::<Vec<_>>(), [(1, B)]);
    }

    #[test]
    fn units_in_both_contracts_keep_weights_and_cpus() {
        let before = contract();
        let mut switches = Switches::new(&before);
        let own = [CpuDecision::Own { cpu: 0, unit: A }, CpuDecision::Own { cpu: 1, unit: B }];
        switches.apply(&plan(&own, &[CpuOrder::Weigh { unit: A, weight: 9 }]));
        let mut after = Contract::default();
        after.add(None, "c");
        after.add(None, "a");
        after.machine.scheme = Scheme::Quota;
        after.adopt(&before, true);
        switches.follow(&after);
        assert_eq!(switches.owners().collect::<Vec<_>>(), [(0, A)]);
        let units: Vec<(UnitId, u32, u32)> =
            switches.units().map(|(id, r)| (id, r.weight, r.flags)).collect();
        let common = BORROWS | ANYWHERE;
        assert_eq!(
            units,
            [(UnitId(0), 100, BORROWS), (UnitId(1), 10_000, common), (A, 9, 0), (UnitId(4), 100, 0)]
        );
    }
}
