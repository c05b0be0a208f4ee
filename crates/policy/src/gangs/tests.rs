//! Gangs in a small simulation of whole quanta: a running gang transfers what it wants, or its share of a
//! full bus.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::snapshot::{Means, Snapshot, ThreadFacts, ThreadId};
use commonhold_contract::{Amount, GangsShare, JobKind};
use commonhold_contract::{Contract, MILLIONTH};
use commonhold_machine::Machine;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SECOND: u64 = 1_000_000_000;
const QUANTUM: Time = 200 * MS;

/// A test job: its unit, its threads, and what each wants of the bus, in bytes per second.
#[derive(Debug, Clone, Copy)]
struct Job {
    unit: u32,
    threads: u32,
    wants: u64,
    sleeps: bool,
}

fn job(threads: u32, wants: u64) -> Job {
    Job { unit: 2, threads, wants, sleeps: false }
}

struct World {
    contract: Contract,
    machine: Machine,
    means: Means,
    gang_cpus: GangCpus,
    state: GangQueue,
    now: Time,
    jobs: BTreeMap<u32, Job>,
    bytes: BTreeMap<u32, u64>,
    shut: BTreeSet<u32>,
    /// Quanta in which each job ran.
    ran: BTreeMap<u32, u64>,
    quantum: Option<Quantum>,
    orders: Vec<Step<GangOrder>>,
}

impl World {
    fn new(by: Gangs, jobs: &[Job]) -> World {
        let mut contract = Contract::default();
        for name in ["a", "b"] {
            let unit = contract.add(None, name);
            contract.units[unit.index()].job = Some(JobKind::Process);
        }
        contract.machine.gangs.by = by;
        World {
            contract,
            machine: Machine::synthetic("nodes:1 cpus:4 bus:10GB/s").unwrap(),
            means: Means { gangs: true, ..Means::NONE },
            gang_cpus: GangCpus::Machine,
            state: GangQueue::default(),
            now: SECOND,
            jobs: (1..).zip(jobs.iter().copied()).collect(),
            bytes: BTreeMap::new(),
            shut: BTreeSet::new(),
            ran: BTreeMap::new(),
            quantum: None,
            orders: Vec::new(),
        }
    }

    fn facts(&self) -> Snapshot {
        let facts = |(number, job): (&u32, &Job)| {
            let wants = !job.sleeps && !self.shut.contains(number);
            let thread = |at| ThreadFacts {
                thread: ThreadId(u64::from(number * 100 + at)),
                wants,
                cpu: None,
                tied: None,
            };
            JobFacts {
                job: JobId(*number),
                name: String::new(),
                unit: UnitId(job.unit),
                threads: (0..job.threads).map(thread).collect(),
                memory: None,
                shared: Some(SharedUse {
                    at: self.now,
                    amount: self.bytes.get(number).copied().unwrap_or(0),
                }),
            }
        };
        Snapshot { at: self.now, jobs: self.jobs.iter().map(facts).collect(), ..Snapshot::default() }
    }

    /// One step, then time until the quantum's end.
    fn sample(&mut self) {
        let snapshot = self.facts();
        let input = Input {
            contract: &self.contract,
            machine: &self.machine,
            means: self.means,
            snapshot: &snapshot,
            changes: &[],
        };
        self.orders.clear();
        let bus = |_: UnitId| 10 * SECOND;
        let sampled = super::sample(&mut self.state, self.now, input, &self.gang_cpus, &mut self.orders);
        self.quantum = sampled.and_then(|sampled| {
            let inputs = ChoiceInputs {
                gang_cpus: &self.gang_cpus,
                begins: sampled.begins,
                bus_entitlement: &bus,
                why_unit_waits: &|_| None,
            };
            choose(&mut self.state, self.now, input, &inputs, &mut self.orders).0
        });
        for step in &self.orders {
            let GangOrder::Gate { job, open, .. } = step.action;
            let changed = if open { self.shut.remove(&job.0) } else { self.shut.insert(job.0) };
            assert!(changed, "an order that changes nothing: {step:?}");
        }
    }

    fn run(&mut self, span: Time) {
        let runs = |number: &u32, job: &Job| !job.sleeps && !self.shut.contains(number);
        let wanted: u64 = self
            .jobs
            .iter()
            .filter(|(number, job)| runs(number, job))
            .map(|(_, job)| job.wants * u64::from(job.threads))
            .sum();
        let full = wanted.max(10 * SECOND);
        for (number, job) in self.jobs.iter().filter(|(number, job)| runs(number, job)) {
            let rate =
                u128::from(job.wants) * u128::from(job.threads) * u128::from(10 * SECOND) / u128::from(full);
            *self.bytes.entry(*number).or_default() +=
                u64::try_from(rate * u128::from(span) / u128::from(SECOND)).unwrap();
            *self.ran.entry(*number).or_default() += 1;
        }
        self.now += span;
    }

    /// Samples at the quantum's beginning and in its middle; returns the running jobs.
    fn quantum(&mut self) -> Vec<u32> {
        self.sample();
        let chosen = self.running();
        self.run(QUANTUM / 2);
        self.sample();
        self.run(QUANTUM / 2);
        chosen
    }

    fn running(&self) -> Vec<u32> {
        self.jobs
            .iter()
            .filter(|(number, job)| !job.sleeps && !self.shut.contains(number))
            .map(|(number, _)| *number)
            .collect()
    }
}

#[test]
fn the_fittest_runs_beside_the_head() {
    // 10 GB/s on 4 CPUs. After the first round: job 1 wants 4 on 2 CPUs. 6 are left for 2 CPUs, 3 for each.
    let jobs = [job(2, 2 * SECOND), job(1, SECOND / 10), job(1, SECOND / 10), job(2, 3 * SECOND)];
    let mut world = World::new(Gangs::LatestQuantum, &jobs);
    for _ in 0..4 {
        world.quantum();
    }
    let head =
        world.state.gangs.iter().filter(|gang| !gang.runs).min_by_key(|gang| gang.place).unwrap().job.0;
    let chosen = world.quantum();
    assert!(chosen.contains(&head), "the head {head} is among {chosen:?}");
    let mut beside = 0;
    for _ in 0..20 {
        let chosen = world.quantum();
        beside += u32::from(chosen == [1, 4]);
    }
    assert!(beside >= 6, "1 and 4 fill the bus exactly, together in {beside} of 20 quanta");
}

#[test]
fn a_gang_that_sleeps_is_not_stopped() {
    let jobs = [job(4, SECOND), job(4, SECOND), Job { sleeps: true, ..job(2, SECOND) }];
    let mut world = World::new(Gangs::QuantaWindow, &jobs);
    for _ in 0..6 {
        world.quantum();
        assert!(!world.shut.contains(&3));
        assert_eq!(world.running().len(), 1);
    }
    // It wakes, and no CPU is free: it waits for the next quantum, or the one after.
    world.jobs.get_mut(&3).unwrap().sleeps = false;
    world.sample();
    world.run(QUANTUM / 4);
    world.sample();
    assert!(world.running().len() == 1, "{:?}", world.running());
    let waits = (0..4).find(|_| world.quantum().contains(&3));
    assert!(waits.is_some());
}

#[test]
fn a_new_gang_gets_remaining_cpus() {
    let mut world = World::new(Gangs::Demand, &[job(2, SECOND)]);
    world.quantum();
    world.jobs.insert(7, job(1, SECOND));
    world.jobs.insert(8, job(2, SECOND));
    world.sample();
    world.run(QUANTUM / 4);
    world.sample();
    assert_eq!(world.running(), [1, 7], "8 has two threads, and one CPU is left");
}

#[test]
fn a_gang_of_more_threads_than_cpus_has_the_machine() {
    let mut world = World::new(Gangs::LatestQuantum, &[job(9, SECOND), job(1, SECOND), job(1, SECOND)]);
    let mut alone = 0;
    for _ in 0..9 {
        let chosen = world.quantum();
        assert!(chosen == [1] || chosen == [2, 3], "{chosen:?}");
        alone += u32::from(chosen == [1]);
    }
    assert!((4..=5).contains(&alone));
}

#[test]
fn a_former_gang_is_continued() {
    let mut world = World::new(Gangs::LatestQuantum, &[job(4, 0), job(4, 0)]);
    world.quantum();
    assert_eq!(world.shut.len(), 1);
    world.contract.machine.gangs.by = Gangs::Off;
    world.sample();
    assert_eq!(world.shut.len(), 0);
    assert_eq!(world.orders[0].reason, Reason::NoGang);
    assert!(world.state.is_empty());
}

#[test]
fn a_job_that_ends_is_released() {
    let mut world = World::new(Gangs::LatestQuantum, &[job(4, 0), job(4, 0)]);
    world.quantum();
    let waits = *world.shut.iter().next().unwrap();
    world.jobs.remove(&waits);
    world.sample();
    assert_eq!(world.shut.len(), 0, "a process that is in no job any more runs");
}

/// Units that share CPUs three to one: so do their gangs.
#[test]
fn units_have_their_parts_of_the_quanta() {
    for by in [Gangs::LatestQuantum, Gangs::Demand] {
        let job_of = |unit, threads| Job { unit, ..job(threads, SECOND) };
        let mut world =
            World::new(by, &[job_of(2, 4), job_of(2, 4), job_of(3, 2), job_of(3, 2), job_of(3, 2)]);
        world.gang_cpus =
            GangCpus::Parts([(UnitId(2), 3 * MILLIONTH), (UnitId(3), MILLIONTH)].into_iter().collect());
        for _ in 0..100 {
            world.quantum();
        }
        let cpus = |numbers: &[u32]| -> u64 {
            numbers.iter().map(|number| world.ran[number] * u64::from(world.jobs[number].threads)).sum()
        };
        let (a, b) = (cpus(&[1, 2]), cpus(&[3, 4, 5]));
        let part = a * 1_000 / (a + b);
        assert!((700..=800).contains(&part), "{by}: {a} and {b} quanta of a CPU");
    }
}

/// Each unit on CPUs of its own.
#[test]
fn units_with_cpus_choose_apart() {
    let job_of = |unit, threads| Job { unit, ..job(threads, SECOND) };
    let mut world = World::new(Gangs::Demand, &[job_of(2, 1), job_of(2, 1), job_of(3, 3), job_of(3, 3)]);
    world.gang_cpus = GangCpus::Cpus([(UnitId(2), 1), (UnitId(3), 3)].into_iter().collect());
    for _ in 0..8 {
        let chosen = world.quantum();
        assert_eq!(chosen.iter().filter(|number| **number <= 2).count(), 1, "{chosen:?}");
        assert_eq!(chosen.iter().filter(|number| **number > 2).count(), 1, "{chosen:?}");
    }
}

/// Of programs that fill the bus alone, four at once show a quarter each. The estimate recovers their demand.
#[test]
fn demand_is_seen_through_a_full_bus() {
    let hungry = [job(1, 10 * SECOND); 4];
    let mut world = World::new(Gangs::Demand, &hungry);
    for _ in 0..4 {
        world.quantum();
    }
    let gang = &world.state.gangs[0];
    let latest = gang.rates.by(Gangs::LatestQuantum, 5).unwrap();
    let demand = gang.rates.by(Gangs::Demand, 5).unwrap();
    assert!(latest.abs_diff(SECOND * 5 / 2) < SECOND / 10, "{latest}");
    assert!(demand > 9 * SECOND, "{demand}");
}

#[test]
fn unmeasured_gangs_have_the_contracts_rate() {
    for (rate, taken) in [(Amount::Part(0), 0), (Amount::Part(MILLIONTH), 5 * SECOND / 2)] {
        let mut world = World::new(Gangs::LatestQuantum, &[job(4, SECOND)]);
        world.contract.machine.gangs.first_rate = rate;
        world.sample();
        assert_eq!(world.quantum.as_ref().unwrap().chosen[0].action.rate, SharedRate::BytesPerS(taken));
    }
}

/// Four gangs of one thread use much of the shared resource, and four use little: from the second round on,
/// two of each run together, as on the bus. `wants` is each gang's use per second.
fn mixes(share: GangsShare, machine: &str, much: u64, little: u64) -> World {
    let mut jobs = vec![job(1, much); 4];
    jobs.extend([job(1, little); 4]);
    let mut world = World::new(Gangs::LatestQuantum, &jobs);
    world.contract.machine.gangs.share = share;
    world.machine = Machine::synthetic(machine).unwrap();
    for _ in 0..16 {
        world.quantum();
    }
    for _ in 0..10 {
        let chosen = world.quantum();
        assert_eq!(chosen.iter().filter(|number| **number <= 4).count(), 2, "{share}: {chosen:?}");
    }
    world
}

/// A cache of 10 MiB has room for two of the four.
#[test]
fn gangs_are_chosen_by_caches_too() {
    let mut world = mixes(GangsShare::Cache, "cpus:4 cache:10MiB", 4 << 20, 1 << 16);
    world.sample();
    let chosen = world.quantum.as_ref().map(|quantum| quantum.chosen.clone()).unwrap();
    let large = chosen.iter().find(|step| step.action.job.0 <= 4).map(|step| step.action.rate);
    assert!(
        matches!(large, Some(SharedRate::CacheBytes(bytes)) if bytes.abs_diff(4 << 20) < 100),
        "{large:?}"
    );
    let is_fittest = |step: &Step<_>| matches!(step.reason, Reason::Fittest { of: GangsShare::Cache, .. });
    assert!(chosen.iter().any(is_fittest), "{chosen:?}");
}

/// Measurements of one shared resource do not carry over to another.
#[test]
fn each_shared_resource_is_measured_separately() {
    let mut world = World::new(Gangs::LatestQuantum, &[job(2, SECOND), job(4, SECOND)]);
    for _ in 0..4 {
        world.quantum();
    }
    let known = |world: &World| {
        let rates = world.state.gangs.iter().map(|gang| gang.rates.by(Gangs::LatestQuantum, 5));
        rates.flatten().count()
    };
    assert_eq!(known(&world), 2);
    world.contract.machine.gangs.share = GangsShare::Cache;
    world.sample();
    assert_eq!((known(&world), world.state.used.len()), (0, 0));
    for _ in 0..4 {
        world.quantum();
    }
    assert_eq!(known(&world), 2);
}

fn any_jobs() -> impl Strategy<Value = Vec<Job>> {
    let any = (1u32..6, 0u64..8, proptest::bool::weighted(0.1));
    proptest::collection::vec(any, 1..12).prop_map(|jobs| {
        jobs.iter()
            .map(|(threads, wants, sleeps)| Job { sleeps: *sleeps, ..job(*threads, wants * SECOND) })
            .collect()
    })
}

proptest! {
    /// No gang starves, no CPU has two threads, and no CPU stays idle that a waiting gang could use.
    #[test]
    fn nobody_starves(jobs in any_jobs(), by in 1usize..4, share in 0usize..2, comes in 0u32..8) {
        let by = Gangs::ALL[by];
        let mut world = World::new(by, &jobs);
        world.contract.machine.gangs.share = GangsShare::ALL[share];
        let mut waited: BTreeMap<u32, u32> = BTreeMap::new();
        for round in 0..40 {
            if round == comes {
                world.jobs.insert(50, job(2, SECOND));
            }
            if round == comes + 9 {
                world.jobs.remove(&1);
            }
            let chosen = world.quantum();
            if round == 0 {
                continue; // its demand is sampled only now
            }
            let cpus: u32 = chosen.iter().map(|number| world.jobs[number].threads).sum();
            prop_assert!(cpus <= 4 || chosen.len() == 1, "{chosen:?} on 4 CPUs");
            let bound = u32::try_from(world.jobs.len()).unwrap() + 1;
            for (number, job) in world.jobs.iter().filter(|(_, job)| !job.sleeps) {
                let fits = job.threads <= 4u32.saturating_sub(cpus);
                let runs = chosen.contains(number);
                prop_assert!(runs || !fits || *number == 50, "{number} fits beside {chosen:?}");
                let wait = waited.entry(*number).or_default();
                *wait = if runs { 0 } else { *wait + 1 };
                prop_assert!(*wait <= bound, "{number} has waited for {wait} quanta under {by}");
            }
        }
    }
}
