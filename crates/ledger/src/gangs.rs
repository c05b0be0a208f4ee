//! The accounts of gangs: in how many quanta each job ran, and in how many it waited.
//!
//! Counts are taken from plans. A gang *ran* in a quantum if it was chosen at the quantum's start, or was
//! chosen later for CPUs that became free. A gang *waited* if it did not run in the quantum and was stopped
//! at the quantum's end. A gang that slept neither ran nor waited.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, Gangs as By, GangsShare, UnitId};
use commonhold_policy::plan::{GangOrder, SharedRate};
use commonhold_policy::{JobFacts, JobId, Plan, Reason};

/// A job as a gang.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Gang {
    /// Its present state.
    pub state: GangState,
    /// Why it runs or is stopped; `None` while it sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "because")]
    pub because: Option<Reason>,
    /// The number of CPUs when the gang last ran; 0 if it never ran.
    pub cpus: u32,
    /// The estimated use of the shared resource by each of the gang's threads when the gang was last chosen;
    /// `None` if it was never chosen.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<SharedRate>,
    /// The source of `rate`.
    pub known: Known,
    /// The number of whole quanta for which the gang has waited since it last ran.
    pub waits: u64,
    /// The number of quanta in which the gang ran.
    pub ran: u64,
    /// The number of quanta in which the gang waited.
    pub waited: u64,
    /// The largest number of consecutive quanta in which the gang waited.
    pub longest: u64,
}

/// JSON of [`Gang::because`]: the reason's name is the key, `{"head_of_list": {"waited": 2}}`, not a field
/// `kind` as in plans.
mod because {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{GangsShare, Reason, UnitId};

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Keyed {
        HeadOfList {
            waited: u32,
        },
        Fittest {
            of: GangsShare,
            left: i64,
        },
        GetsOnBeside {
            permille: u32,
        },
        CpusLeft,
        NotThisQuantum,
        NoGang,
        YieldsTheBus {
            to: UnitId,
        },
        MostOfTheBus {
            most: u64,
        },
        BusIsLeft,
        #[serde(untagged)]
        Other(Reason),
    }

    #[allow(clippy::ref_option, reason = "serde asks for this signature")]
    pub(super) fn serialize<S: Serializer>(reason: &Option<Reason>, to: S) -> Result<S::Ok, S::Error> {
        let keyed = reason.map(|reason| match reason {
            Reason::HeadOfList { waited } => Keyed::HeadOfList { waited },
            Reason::Fittest { of, left } => Keyed::Fittest { of, left },
            Reason::GetsOnBeside { permille } => Keyed::GetsOnBeside { permille },
            Reason::CpusLeft => Keyed::CpusLeft,
            Reason::NotThisQuantum => Keyed::NotThisQuantum,
            Reason::NoGang => Keyed::NoGang,
            Reason::YieldsTheBus { to } => Keyed::YieldsTheBus { to },
            Reason::MostOfTheBus { most } => Keyed::MostOfTheBus { most },
            Reason::BusIsLeft => Keyed::BusIsLeft,
            other => Keyed::Other(other),
        });
        keyed.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reason>, D::Error> {
        let keyed = Option::<Keyed>::deserialize(from)?;
        Ok(keyed.map(|keyed| match keyed {
            Keyed::HeadOfList { waited } => Reason::HeadOfList { waited },
            Keyed::Fittest { of, left } => Reason::Fittest { of, left },
            Keyed::GetsOnBeside { permille } => Reason::GetsOnBeside { permille },
            Keyed::CpusLeft => Reason::CpusLeft,
            Keyed::NotThisQuantum => Reason::NotThisQuantum,
            Keyed::NoGang => Reason::NoGang,
            Keyed::YieldsTheBus { to } => Reason::YieldsTheBus { to },
            Keyed::MostOfTheBus { most } => Reason::MostOfTheBus { most },
            Keyed::BusIsLeft => Reason::BusIsLeft,
            Keyed::Other(reason) => reason,
        }))
    }
}

/// The state of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GangState {
    /// The gang runs.
    Runs,
    /// The gang is stopped.
    Waits,
    /// The gang wants no CPU and is not stopped.
    #[default]
    Sleeps,
}

/// The source of a gang's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    /// Measured in quanta in which the gang ran, by the gang's processes or by the processor.
    Told,
    /// The contract's `first-rate`, used until there is a measurement.
    #[default]
    Taken,
}

/// A unit's gangs since the ledger was opened, sub-units included. One quantum of one gang counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct GangAccount {
    /// Running gangs.
    pub running: u32,
    /// Stopped gangs.
    pub waiting: u32,
    /// Quanta of running gangs.
    pub ran: u64,
    /// Quanta of waiting gangs.
    pub waited: u64,
    /// The most consecutive quanta for which one gang waited.
    pub longest: u64,
}

/// A gang's running account.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GangEntry {
    unit: UnitId,
    gang: Gang,
    /// Whether the gang ran in the current quantum.
    ran: bool,
    /// Whether the gang's use of the shared resource was ever reported.
    reports: bool,
}

/// Totals over a unit's gangs, including gangs that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Totals {
    ran: u64,
    waited: u64,
    longest: u64,
}

/// All existing gangs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Gangs {
    /// Whether a quantum was ever planned.
    are_chosen: bool,
    share: GangsShare,
    gangs: BTreeMap<JobId, GangEntry>,
    units: BTreeMap<UnitId, Totals>,
}

impl Gangs {
    /// Adopts another contract. If its gangs share another resource, rates are unknown again; if jobs are no
    /// longer gangs, all gangs are dropped.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        let rules = contract.machine.gangs;
        if std::mem::replace(&mut self.share, rules.share) != rules.share {
            for entry in self.gangs.values_mut() {
                (entry.reports, entry.gang.known, entry.gang.rate) = (false, Known::Taken, None);
            }
        }
        if rules.by == By::Off {
            self.are_chosen = false;
            self.gangs.clear();
        }
        self.units.retain(|unit, _| contract.has(*unit));
    }

    /// Enters the existing jobs, sorted by number.
    pub(crate) fn observe(&mut self, jobs: &[JobFacts]) {
        self.gangs.retain(|job, _| jobs.binary_search_by_key(job, |facts| facts.job).is_ok());
        for facts in jobs {
            let new = GangEntry { unit: facts.unit, gang: Gang::default(), ran: false, reports: false };
            let entry = self.gangs.entry(facts.job).or_insert(new);
            entry.unit = facts.unit;
            entry.reports |= facts.shared.is_some();
        }
    }

    /// Enters the gangs that a plan stops, continues and chooses.
    pub(crate) fn book(&mut self, plan: &Plan) {
        let quantum = plan.decisions.quantum.as_ref();
        self.are_chosen |= quantum.is_some();
        if quantum.is_some_and(|quantum| quantum.begins) {
            self.end_quantum();
        }
        // A gang whose gate opens counts as sleeping, unless the quantum below has chosen it.
        for step in &plan.orders.gangs {
            let GangOrder::Gate { job, open, .. } = step.action;
            let Some(entry) = self.gangs.get_mut(&job) else { continue };
            (entry.gang.state, entry.gang.because) =
                if open { (GangState::Sleeps, None) } else { (GangState::Waits, Some(step.reason)) };
            entry.gang.waits = 0;
        }
        let Some(quantum) = quantum else { return };
        for (job, entry) in &mut self.gangs {
            if entry.gang.state == GangState::Runs && !quantum.goes_on.contains(job) {
                (entry.gang.state, entry.gang.because) = (GangState::Sleeps, None);
            }
        }
        for step in &quantum.chosen {
            let Some(entry) = self.gangs.get_mut(&step.action.job) else { continue };
            entry.ran = true;
            let gang = &mut entry.gang;
            (gang.state, gang.because, gang.waits) = (GangState::Runs, Some(step.reason), 0);
            (gang.cpus, gang.rate) = (step.action.cpus, Some(step.action.rate));
        }
    }

    /// Counts the quantum that ends as one in which each gang ran or waited.
    fn end_quantum(&mut self) {
        for entry in self.gangs.values_mut() {
            let totals = self.units.entry(entry.unit).or_default();
            let gang = &mut entry.gang;
            if std::mem::take(&mut entry.ran) {
                gang.ran += 1;
                totals.ran += 1;
                if entry.reports {
                    gang.known = Known::Told;
                }
            } else if gang.state == GangState::Waits {
                gang.waits += 1;
                gang.waited += 1;
                gang.longest = gang.longest.max(gang.waits);
                totals.waited += 1;
                totals.longest = totals.longest.max(gang.waits);
            }
        }
    }

    /// A job's account as a gang; `None` for an unknown job, or if jobs are no gangs.
    pub(crate) fn gang(&self, job: JobId) -> Option<Gang> {
        self.gangs.get(&job).filter(|_| self.are_chosen).map(|entry| entry.gang.clone())
    }

    /// The account of a unit, given the unit and its sub-units; `None` if they never had a gang.
    pub(crate) fn account(&self, family: &[UnitId]) -> Option<GangAccount> {
        let totals: Vec<&Totals> = family.iter().filter_map(|unit| self.units.get(unit)).collect();
        let gangs = self.gangs.values().filter(|entry| self.are_chosen && family.contains(&entry.unit));
        let in_state = |state| {
            let count = gangs.clone().filter(|entry| entry.gang.state == state).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let has_gangs = !totals.is_empty() || gangs.clone().next().is_some();
        has_gangs.then(|| GangAccount {
            running: in_state(GangState::Runs),
            waiting: in_state(GangState::Waits),
            ran: totals.iter().map(|totals| totals.ran).sum(),
            waited: totals.iter().map(|totals| totals.waited).sum(),
            longest: totals.iter().map(|totals| totals.longest).max().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use commonhold_policy::plan::{Gang as Chosen, Quantum, Step};
    use commonhold_policy::{SharedUse, Time};

    const A: UnitId = UnitId(2);
    const B: UnitId = UnitId(3);

    fn facts(job: u32, unit: UnitId, reports: bool) -> JobFacts {
        let shared = reports.then_some(SharedUse { at: 1, amount: 1 });
        JobFacts { job: JobId(job), name: String::new(), unit, threads: Vec::new(), memory: None, shared }
    }

    struct Says<'a> {
        begins: bool,
        goes_on: &'a [u32],
        chosen: &'a [u32],
        stopped: &'a [u32],
    }

    fn plan(at: Time, says: &Says<'_>) -> Plan {
        let mut plan = Plan { at, ..Plan::default() };
        let gate = |job: &u32, open, reason| Step {
            action: GangOrder::Gate { job: JobId(*job), unit: A, open },
            reason,
        };
        plan.orders.gangs.extend(says.stopped.iter().map(|job| gate(job, false, Reason::NotThisQuantum)));
        plan.orders.gangs.extend(says.chosen.iter().map(|job| gate(job, true, Reason::CpusLeft)));
        let chosen = |job: &u32| Step {
            action: Chosen { job: JobId(*job), unit: A, cpus: 2, rate: SharedRate::CacheBytes(7) },
            reason: Reason::CpusLeft,
        };
        plan.decisions.quantum = Some(Quantum {
            until: at + 10,
            begins: says.begins,
            goes_on: says.goes_on.iter().map(|job| JobId(*job)).collect(),
            chosen: says.chosen.iter().map(chosen).collect(),
            waiting: 0,
        });
        plan
    }

    /// Three jobs. In the first quantum job 1 runs and job 3 sleeps; in the second, job 2 runs; in the third,
    /// job 1 again, with job 2 on spare CPUs a little later.
    #[test]
    fn three_quanta_by_hand() {
        let mut gangs = Gangs::default();
        gangs.observe(&[facts(1, A, true), facts(2, B, false), facts(3, B, false)]);
        assert_eq!((gangs.gang(JobId(1)), gangs.account(&[A]).map(|account| account.ran)), (None, None));
        gangs.book(&plan(0, &Says { begins: true, goes_on: &[], chosen: &[1], stopped: &[2] }));
        let gang = |gangs: &Gangs, job| gangs.gang(JobId(job)).unwrap();
        assert_eq!((gang(&gangs, 1).state, gang(&gangs, 1).known), (GangState::Runs, Known::Taken));
        assert_eq!(
            (gang(&gangs, 2).state, gang(&gangs, 2).because),
            (GangState::Waits, Some(Reason::NotThisQuantum))
        );
        assert_eq!((gang(&gangs, 3).state, gang(&gangs, 2).waits), (GangState::Sleeps, 0));
        gangs.book(&plan(10, &Says { begins: true, goes_on: &[], chosen: &[2], stopped: &[1] }));
        assert_eq!((gang(&gangs, 1).state, gang(&gangs, 1).known), (GangState::Waits, Known::Told));
        assert_eq!((gang(&gangs, 2).waits, gang(&gangs, 2).waited, gang(&gangs, 2).longest), (0, 1, 1));
        gangs.book(&plan(20, &Says { begins: true, goes_on: &[], chosen: &[1], stopped: &[2] }));
        gangs.book(&plan(25, &Says { begins: false, goes_on: &[1], chosen: &[2], stopped: &[] }));
        assert_eq!((gang(&gangs, 1).state, gang(&gangs, 2).state), (GangState::Runs, GangState::Runs));
        gangs.book(&plan(27, &Says { begins: false, goes_on: &[2], chosen: &[3], stopped: &[] }));
        assert_eq!(gang(&gangs, 1).state, GangState::Sleeps, "it no longer runs, and is not stopped");
        gangs.book(&plan(30, &Says { begins: true, goes_on: &[], chosen: &[], stopped: &[2, 3] }));
        gangs.book(&plan(40, &Says { begins: true, goes_on: &[], chosen: &[], stopped: &[] }));
        gangs.book(&plan(50, &Says { begins: true, goes_on: &[], chosen: &[2], stopped: &[] }));
        let two = gang(&gangs, 2);
        assert_eq!((two.ran, two.waited, two.longest, two.rate), (2, 3, 2, Some(SharedRate::CacheBytes(7))));
        assert_eq!(two.known, Known::Taken, "it reports nothing");
        let (a, b) = (gangs.account(&[A]).unwrap(), gangs.account(&[B]).unwrap());
        assert_eq!((a.ran, a.waited, a.longest), (2, 1, 1));
        assert_eq!((b.ran, b.waited, b.longest, b.running, b.waiting), (3, 5, 2, 1, 1));
        assert_eq!(gangs.account(&[A, B]).unwrap().waited, 6);
        let json = serde_json::to_value(&two).unwrap();
        assert_eq!(json["cache_bytes"], 7, "{json}");
        assert_eq!(serde_json::from_value::<Gang>(json).unwrap(), two);
        assert_eq!(gang(&gangs, 1).known, Known::Told);
        let mut others = gangs.clone();
        let mut contract = Contract::default();
        contract.machine.gangs.by = By::LatestQuantum;
        contract.machine.gangs.share = GangsShare::Cache;
        others.adopt(&contract);
        assert_eq!(
            (gang(&others, 1).known, gang(&others, 1).rate, gang(&others, 2).ran),
            (Known::Taken, None, 2)
        );
        // Totals of gangs that ended stay in their unit's account.
        gangs.observe(&[facts(1, A, true)]);
        assert_eq!(gangs.account(&[B]).map(|account| (account.ran, account.running)), Some((3, 0)));
        gangs.adopt(&Contract::default());
        assert_eq!((gangs.gang(JobId(1)), gangs.account(&[A, B])), (None, None));
    }
}
