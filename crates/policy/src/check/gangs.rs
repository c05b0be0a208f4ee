//! The plan checker's books of gangs: which jobs run, and since when other jobs are stopped.
//!
//! Checked whenever gangs are chosen:
//! - The gangs that run together need no more CPUs than exist. A gang is chosen at most once in a quantum.
//! - A gang is continued only if it was chosen, or if it is no gang any more. A gang is stopped only if it
//!   was not chosen.
//! - The gang that is chosen first (the head) is the one that was stopped longest among the gangs of its
//!   outermost unit (under `smp`, among all gangs). Gangs of units that wait for the memory bus are left out,
//!   and must not be chosen.
//!
//! Checked whenever the bus is divided: entitlements sum to at most the capacity of the bus. A unit waits for
//! the bus only if the unit has a limit on the bus or transferred more than its entitlement.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Contract, GangsShare, Scheme, UnitId};
use commonhold_machine::Machine;

use crate::plan::{GangOrder, Plan, Reason};
use crate::snapshot::JobId;
use crate::tree::{lineage, outermost};

/// Running and stopped gangs, according to the plans so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GangBooks {
    /// The running gangs, each with its number of CPUs.
    running: BTreeMap<JobId, u32>,
    stopped: BTreeMap<JobId, Stopped>,
    /// How many quanta have begun.
    quanta: u64,
    /// Units that wait for the bus.
    waiting_for_bus: BTreeSet<UnitId>,
    /// The bus rate of each unit when it last ran, in bytes per second.
    bus_rate: BTreeMap<UnitId, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stopped {
    unit: UnitId,
    /// The first quantum in which the gang did not run.
    since: u64,
}

impl GangBooks {
    /// Replays the decisions and orders about gangs and the bus, and appends what is wrong with them to
    /// `errors`.
    pub(super) fn replay(
        &mut self,
        contract: &Contract,
        machine: &Machine,
        plan: &Plan,
        errors: &mut Vec<String>,
    ) {
        self.replay_bus(contract, plan, errors);
        if plan.decisions.quantum.is_none() && plan.orders.gangs.is_empty() {
            return;
        }
        self.stopped.retain(|_, stopped| contract.has(stopped.unit));
        // First drop the gangs that ended or are no longer gangs, since a new head need not have waited
        // longer than they did.
        for step in plan.orders.gangs.iter().filter(|step| step.reason == Reason::NoGang) {
            let GangOrder::Gate { job, open, .. } = step.action;
            if !open || self.stopped.remove(&job).is_none() {
                errors.push(format!("job {} is released as no longer a gang, and was not stopped", job.0));
            }
        }
        // Then the choice of gangs for the quantum.
        if let Some(quantum) = &plan.decisions.quantum {
            if quantum.begins {
                self.running.clear();
                self.quanta += 1;
            }
            self.running.retain(|job, _| quantum.goes_on.contains(job));
            for step in &quantum.chosen {
                let gang = step.action;
                if let Reason::HeadOfList { .. } = step.reason {
                    self.check_head(contract, gang.job, gang.unit, errors);
                }
                if self.waits_for_the_bus(contract, gang.unit) {
                    errors.push(format!("job {} is chosen, and its unit waits for the bus", gang.job.0));
                }
                if self.running.insert(gang.job, gang.cpus).is_some() {
                    errors.push(format!("job {} is chosen twice for a quantum", gang.job.0));
                }
            }
            let cpus: u64 = self.running.values().map(|cpus| u64::from(*cpus)).sum();
            if cpus > machine.cpus.len() as u64 {
                errors.push(format!("gangs run on {cpus} cpus, and there are {}", machine.cpus.len()));
            }
        }
        // The orders must agree with the choice.
        for step in plan.orders.gangs.iter().filter(|step| step.reason != Reason::NoGang) {
            let GangOrder::Gate { job, unit, open } = step.action;
            let is_chosen = self.running.contains_key(&job);
            if open {
                if self.stopped.remove(&job).is_none() {
                    errors.push(format!("job {} is continued, and was not stopped", job.0));
                }
                if !is_chosen {
                    errors.push(format!("job {} is continued, and was not chosen", job.0));
                }
            } else {
                if is_chosen {
                    errors.push(format!("job {} is stopped, and was chosen", job.0));
                }
                if self.stopped.insert(job, Stopped { unit, since: self.quanta }).is_some() {
                    errors.push(format!("job {} is stopped twice", job.0));
                }
            }
        }
    }

    /// Checks the division of the memory bus.
    fn replay_bus(&mut self, contract: &Contract, plan: &Plan, errors: &mut Vec<String>) {
        if contract.machine.scheme == Scheme::Smp || contract.machine.gangs.share != GangsShare::Bus {
            self.waiting_for_bus.clear();
        }
        let Some(bus) = &plan.decisions.bus else { return };
        let is_outermost = |unit: UnitId| contract.has(unit) && contract.unit(unit).parent.is_none();
        let entitled = bus.units.iter().filter(|part| is_outermost(part.unit)).map(|part| part.entitled);
        let entitled: u64 = entitled.fold(0, u64::saturating_add);
        if entitled > bus.carries {
            errors.push(format!(
                "units are entitled to {entitled} of the {} that the bus carries",
                bus.carries
            ));
        }
        for part in &bus.units {
            let name = if contract.has(part.unit) { &contract.unit(part.unit).name } else { "a unit" };
            // A unit that waited hardly ran, so its rate says nothing about its demand.
            let waited = self.waiting_for_bus.contains(&part.unit);
            if part.used > 0 && !waited {
                self.bus_rate.insert(part.unit, part.used);
            }
            let rate = self.bus_rate.get(&part.unit).copied().unwrap_or(0);
            if part.waits && rate <= part.entitled && part.most.is_none() {
                errors
                    .push(format!("{name} waits for the bus, and transferred no more than its entitlement"));
            }
        }
        self.waiting_for_bus = bus.units.iter().filter(|part| part.waits).map(|part| part.unit).collect();
    }

    /// Whether a unit, or a unit that encloses it, waits for the bus.
    fn waits_for_the_bus(&self, contract: &Contract, unit: UnitId) -> bool {
        contract.has(unit) && lineage(contract, unit).any(|unit| self.waiting_for_bus.contains(&unit))
    }

    /// Checks that the head was stopped longest among the gangs that compete with it.
    fn check_head(&self, contract: &Contract, job: JobId, unit: UnitId, errors: &mut Vec<String>) {
        let competes = |other: UnitId| {
            contract.machine.scheme == Scheme::Smp
                || !contract.has(unit)
                || outermost(contract, other) == outermost(contract, unit)
        };
        let since = self.stopped.get(&job).map_or(self.quanta, |stopped| stopped.since);
        let mut could_run =
            self.stopped.iter().filter(|(_, stopped)| !self.waits_for_the_bus(contract, stopped.unit));
        let stopped_earlier = could_run.find(|(_, stopped)| competes(stopped.unit) && stopped.since < since);
        if let Some((earlier, _)) = stopped_earlier {
            errors.push(format!("job {} goes first, and job {} has waited longer", job.0, earlier.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{BusPart, BusPlan, Gang, Quantum, SharedRate, Step};
    use alloc::vec;

    const UNIT: UnitId = UnitId(2);

    /// A plan with these gangs and CPUs chosen, the first as the head, and these gates.
    fn plan(begins: bool, chosen: &[(u32, u32)], gates: &[(u32, bool)]) -> Plan {
        let mut plan = Plan::default();
        let gang = |(at, (job, cpus)): (usize, &(u32, u32))| Step {
            action: Gang { job: JobId(*job), unit: UNIT, cpus: *cpus, rate: SharedRate::BytesPerS(0) },
            reason: if at == 0 { Reason::HeadOfList { waited: 0 } } else { Reason::CpusLeft },
        };
        let chosen = chosen.iter().enumerate().map(gang).collect();
        plan.decisions.quantum = Some(Quantum { until: 0, begins, goes_on: vec![], chosen, waiting: 0 });
        let gate = |(job, open): &(u32, bool)| Step {
            action: GangOrder::Gate { job: JobId(*job), unit: UNIT, open: *open },
            reason: Reason::NotThisQuantum,
        };
        plan.orders.gangs = gates.iter().map(gate).collect();
        plan
    }

    fn replay(books: &GangBooks, plan: &Plan) -> Result<GangBooks, Vec<String>> {
        let mut contract = Contract::default();
        contract.add(None, "a");
        let machine = Machine::synthetic("cpus:4").unwrap();
        let (mut books, mut wrong) = (books.clone(), vec![]);
        books.replay(&contract, &machine, plan, &mut wrong);
        if wrong.is_empty() { Ok(books) } else { Err(wrong) }
    }

    fn bus_plan(entitled: u64, used: u64, waits: bool) -> Plan {
        let part = BusPart { unit: UNIT, entitled, most: None, used, due: 0, owed: 0, waits };
        let mut plan = plan(true, &[(1, 1)], &[]);
        plan.decisions.bus = Some(BusPlan { quantum_ns: 1, carries: 10, units: vec![part] });
        plan
    }

    #[test]
    fn errors_about_the_bus_are_reported() {
        let books = GangBooks::default();
        assert!(replay(&books, &bus_plan(5, 6, false)).is_ok());
        for (wrong, plan) in [
            ("units are entitled to 11 of the 10 that the bus carries", bus_plan(11, 0, false)),
            ("a waits for the bus, and transferred no more than its entitlement", bus_plan(5, 5, true)),
            ("job 1 is chosen, and its unit waits for the bus", bus_plan(5, 6, true)),
        ] {
            let found = replay(&books, &plan).err().unwrap_or_default();
            assert!(found.iter().any(|found| found == wrong), "{wrong}: {found:?}");
        }
    }

    #[test]
    fn errors_about_gangs_are_reported() {
        let first = replay(&GangBooks::default(), &plan(true, &[(1, 2), (2, 2)], &[(3, false), (4, false)]));
        let books = first.expect("the plan is correct");
        let second = replay(&books, &plan(true, &[(3, 4)], &[(1, false), (2, false), (3, true)]));
        let later = second.expect("the plan is correct");
        for (wrong, books, plan) in [
            ("gangs run on 5 cpus, and there are 4", &books, plan(true, &[(3, 3), (4, 2)], &[])),
            ("job 3 is chosen twice for a quantum", &books, plan(true, &[(3, 1), (3, 1)], &[])),
            ("job 1 is continued, and was not stopped", &books, plan(true, &[(1, 1)], &[(1, true)])),
            ("job 4 is continued, and was not chosen", &books, plan(true, &[(3, 1)], &[(4, true)])),
            ("job 3 is stopped, and was chosen", &later, plan(true, &[(3, 1)], &[(3, false)])),
            ("job 4 is stopped twice", &books, plan(true, &[(3, 1)], &[(4, false)])),
            ("job 1 goes first, and job 4 has waited longer", &later, plan(true, &[(1, 1)], &[])),
        ] {
            let found = replay(books, &plan).err().unwrap_or_default();
            assert!(found.iter().any(|found| found == wrong), "{wrong}: {found:?}");
        }
    }

    /// The gang that was stopped longest ends just as a quantum begins: the next one becomes the head.
    #[test]
    fn a_gang_that_ended_is_not_waited_for() {
        let first = replay(&GangBooks::default(), &plan(true, &[(1, 4)], &[(2, false), (3, false)]))
            .expect("the plan is correct");
        let second =
            replay(&first, &plan(true, &[(2, 4)], &[(1, false), (2, true)])).expect("the plan is correct");
        let mut third = plan(true, &[(1, 4)], &[(1, true)]);
        assert!(replay(&second, &third).is_err(), "it was stopped after job 3");
        let gate = GangOrder::Gate { job: JobId(3), unit: UNIT, open: true };
        third.orders.gangs.push(Step { action: gate, reason: Reason::NoGang });
        let third = replay(&second, &third).expect("the plan is correct");
        let mut again = plan(true, &[(1, 4)], &[]);
        again.orders.gangs.push(Step { action: gate, reason: Reason::NoGang });
        let found = replay(&third, &again).expect_err("it was continued before");
        assert_eq!(found, ["job 3 is released as no longer a gang, and was not stopped"]);
    }
}
