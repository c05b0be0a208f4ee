//! Gangs: which jobs run in a quantum, which wait, and for how long.
//!
//! Counts are taken from plans. A gang *ran* in a quantum if it was chosen for it or came to spare CPUs. It
//! *waited* if it was stopped when the quantum ended and had not run in it. One that slept did neither.

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
    /// CPUs that it had when it last ran; 0 if it never did.
    pub cpus: u32,
    /// Estimated use by each of its threads of the shared resource when it was last chosen; `None` if it
    /// never was.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<SharedRate>,
    /// The source of `rate`.
    pub known: Known,
    /// Whole quanta for which it has waited since it last ran.
    pub waits: u64,
    /// Quanta in which it ran.
    pub ran: u64,
    /// Quanta in which it waited.
    pub waited: u64,
    /// The longest run of consecutive ones.
    pub longest: u64,
}

/// JSON of [`Gang::because`]: the reason's name is the key, `{"head_of_list": {"waited": 2}}`, not a field `kind` as in plans.
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
    /// It runs.
    Runs,
    /// It is stopped.
    Waits,
    /// It wants no CPU and is not stopped.
    #[default]
    Sleeps,
}

/// The source of a gang's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    /// Measured in quanta in which it ran, by its processes or the processor.
    Told,
    /// The contract's `first-rate`, used until it is measured.
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

#[derive(Debug, Clone, PartialEq, Eq)]
struct GangEntry {
    unit: UnitId,
    gang: Gang,
    /// Whether it ran in the current quantum.
    ran: bool,
    /// Whether its use of the shared resource was ever reported.
    reports: bool,
}

/// Totals over a unit's gangs, those that ended included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
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
    units: BTreeMap<UnitId, Sum>,
}

impl Gangs {
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        let rules = contract.machine.gangs;
        if std::mem::replace(&mut self.share, rules.share) != rules.share {
            for own in self.gangs.values_mut() {
                (own.reports, own.gang.known, own.gang.rate) = (false, Known::Taken, None);
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
            let own = self.gangs.entry(facts.job).or_insert(new);
            own.unit = facts.unit;
            own.reports |= facts.shared.is_some();
        }
    }

    pub(crate) fn book(&mut self, plan: &Plan) {
        let quantum = plan.decisions.quantum.as_ref();
        self.are_chosen |= quantum.is_some();
        if quantum.is_some_and(|quantum| quantum.begins) {
            self.close();
        }
        for step in &plan.orders.gangs {
            let GangOrder::Gate { job, open, .. } = step.action;
            let Some(own) = self.gangs.get_mut(&job) else { continue };
            (own.gang.state, own.gang.because) =
                if open { (GangState::Sleeps, None) } else { (GangState::Waits, Some(step.reason)) };
            own.gang.waits = 0;
        }
        let Some(quantum) = quantum else { return };
        for (job, own) in &mut self.gangs {
            if own.gang.state == GangState::Runs && !quantum.goes_on.contains(job) {
                (own.gang.state, own.gang.because) = (GangState::Sleeps, None);
            }
        }
        for step in &quantum.chosen {
            let Some(own) = self.gangs.get_mut(&step.action.job) else { continue };
            own.ran = true;
            let gang = &mut own.gang;
            (gang.state, gang.because, gang.waits) = (GangState::Runs, Some(step.reason), 0);
            (gang.cpus, gang.rate) = (step.action.cpus, Some(step.action.rate));
        }
    }

    /// Ends a quantum.
    fn close(&mut self) {
        for own in self.gangs.values_mut() {
            let sum = self.units.entry(own.unit).or_default();
            let gang = &mut own.gang;
            if std::mem::take(&mut own.ran) {
                gang.ran += 1;
                sum.ran += 1;
                if own.reports {
                    gang.known = Known::Told;
                }
            } else if gang.state == GangState::Waits {
                gang.waits += 1;
                gang.waited += 1;
                gang.longest = gang.longest.max(gang.waits);
                sum.waited += 1;
                sum.longest = sum.longest.max(gang.waits);
            }
        }
    }

    pub(crate) fn gang(&self, job: JobId) -> Option<Gang> {
        self.gangs.get(&job).filter(|_| self.are_chosen).map(|own| own.gang.clone())
    }

    /// The account of a unit, given the unit and its sub-units; `None` if it never had a gang.
    pub(crate) fn account(&self, family: &[UnitId]) -> Option<GangAccount> {
        let sums: Vec<&Sum> = family.iter().filter_map(|unit| self.units.get(unit)).collect();
        let gangs = self.gangs.values().filter(|own| self.are_chosen && family.contains(&own.unit));
        let in_state = |state| {
            let count = gangs.clone().filter(|own| own.gang.state == state).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let there = !sums.is_empty() || gangs.clone().next().is_some();
        there.then(|| GangAccount {
            running: in_state(GangState::Runs),
            waiting: in_state(GangState::Waits),
            ran: sums.iter().map(|sum| sum.ran).sum(),
            waited: sums.iter().map(|sum| sum.waited).sum(),
            longest: sums.iter().map(|sum| sum.longest).max().unwrap_or(0),
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
        contract.machine.gangs.share = GangsShare::Cores;
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
