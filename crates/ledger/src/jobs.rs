//! Jobs: the pools in which their threads have seats, and how often threads really ran there.
//!
//! At each snapshot, each thread that wants a CPU is one sample, whether it has a seat or not. The thread is
//! *at home* if it has a seat and its CPU is in the pool of that seat.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, PoolForm, UnitId};
use commonhold_machine::{Cpu, Machine};
use commonhold_policy::{JobId, Plan, Reason, Snapshot, ThreadId};

use crate::gangs::{Gang, GangAccount, Gangs};

/// A job in a statement.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Its number.
    pub job: u32,
    /// A program's name, and the number of its first process.
    pub name: String,
    /// The path of its unit.
    pub unit: String,
    /// Number of threads.
    pub threads: u32,
    /// Pools, each with the number of the job's threads that have a seat in it.
    pub pools: Vec<(u32, u32)>,
    /// Number of times that a thread was moved to bring the job together.
    pub moved: u64,
    /// Samples of threads that wanted a CPU, in which the thread was in the pool of its seat.
    pub at_home: u64,
    /// All samples of threads that wanted a CPU.
    pub looks: u64,
    /// Its memory by node, as node number and bytes, as last sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<(u32, u64)>,
    /// The job's account as a gang, if jobs are gangs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Gang>,
}

/// A job's running account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct JobEntry {
    /// `None` before the job was observed.
    unit: Option<UnitId>,
    name: String,
    threads: u32,
    moved: u64,
    at_home: u64,
    looks: u64,
    memory: Vec<(u32, u64)>,
}

/// All existing jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Jobs {
    form: PoolForm,
    /// The CPUs from which `pool_of` was computed.
    cpus: Vec<Cpu>,
    /// The pool of each CPU.
    pool_of: BTreeMap<u32, u32>,
    jobs: BTreeMap<JobId, JobEntry>,
    /// The job of each thread with a seat, and the seat's pool.
    seats: BTreeMap<ThreadId, (JobId, u32)>,
    gangs: Gangs,
}

impl Jobs {
    /// Adopts another contract. If it forms other pools, the next snapshot recomputes them.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        if self.form != contract.machine.pools {
            (self.form, self.cpus) = (contract.machine.pools, Vec::new());
        }
        self.gangs.adopt(contract);
    }

    /// Enters one sample of each thread that wants a CPU, and drops jobs that ended.
    pub(crate) fn observe(&mut self, machine: &Machine, snapshot: &Snapshot) {
        self.gangs.observe(&snapshot.jobs);
        if snapshot.jobs.is_empty() {
            self.jobs.clear();
            self.seats.clear();
            return;
        }
        if self.cpus != machine.cpus {
            let pools = commonhold_policy::pools(machine, self.form).by_cpu();
            let number = |pool| u32::try_from(pool).unwrap_or(u32::MAX);
            self.pool_of = pools.into_iter().map(|(cpu, pool)| (cpu, number(pool))).collect();
            self.cpus.clone_from(&machine.cpus);
        }
        let exists = |job: &JobId| snapshot.jobs.binary_search_by_key(job, |facts| facts.job).is_ok();
        self.jobs.retain(|job, _| exists(job));
        for facts in &snapshot.jobs {
            let entry = self.jobs.entry(facts.job).or_default();
            entry.unit = Some(facts.unit);
            entry.name.clone_from(&facts.name);
            entry.threads = u32::try_from(facts.threads.len()).unwrap_or(u32::MAX);
            for thread in facts.threads.iter().filter(|thread| thread.wants) {
                let seat = self.seats.get(&thread.thread).map(|(_, pool)| *pool);
                let pool = thread.cpu.and_then(|cpu| self.pool_of.get(&cpu).copied());
                entry.looks += 1;
                entry.at_home += u64::from(seat.is_some() && seat == pool);
            }
            if let Some(memory) = &facts.memory {
                entry.memory.clone_from(memory);
            }
        }
    }

    /// Enters the seats that a plan assigns or takes away, and its gangs.
    pub(crate) fn book(&mut self, plan: &Plan) {
        self.gangs.book(plan);
        for step in &plan.decisions.seats {
            let seat = step.action;
            match seat.pool {
                Some(pool) => drop(self.seats.insert(seat.thread, (seat.job, pool))),
                None => drop(self.seats.remove(&seat.thread)),
            }
            if let (Reason::Together { .. }, Some(entry)) = (step.reason, self.jobs.get_mut(&seat.job)) {
                entry.moved += 1;
            }
        }
    }

    /// The gang account of a unit, given the unit and its sub-units.
    pub(crate) fn gangs_of(&self, family: &[UnitId]) -> Option<GangAccount> {
        self.gangs.account(family)
    }

    /// All existing jobs by number.
    pub(crate) fn statement(&self, contract: &Contract) -> Vec<Job> {
        let mut pools: BTreeMap<JobId, BTreeMap<u32, u32>> = BTreeMap::new();
        for (job, pool) in self.seats.values() {
            *pools.entry(*job).or_default().entry(*pool).or_default() += 1;
        }
        let job = |(id, entry): (&JobId, &JobEntry)| Job {
            job: id.0,
            name: entry.name.clone(),
            unit: entry
                .unit
                .and_then(|unit| contract.units.get(unit.index()))
                .map_or_else(String::new, |unit| unit.path.clone()),
            threads: entry.threads,
            pools: pools.get(id).into_iter().flatten().map(|(pool, count)| (*pool, *count)).collect(),
            moved: entry.moved,
            at_home: entry.at_home,
            looks: entry.looks,
            memory: entry.memory.clone(),
            gang: self.gangs.gang(*id),
        };
        self.jobs.iter().map(job).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use commonhold_policy::plan::{Seat, Step};
    use commonhold_policy::{JobFacts, ThreadFacts};

    #[test]
    fn a_sample_counts_whether_a_thread_is_at_home() {
        let machine = Machine::synthetic("nodes:2 cpus:2").unwrap();
        let mut contract = Contract::default();
        let unit = contract.add(None, "a");
        let mut jobs = Jobs::default();
        jobs.adopt(&contract);
        let thread =
            |thread, cpu, wants| ThreadFacts { thread: ThreadId(thread), wants, cpu: Some(cpu), tied: None };
        let sample = |cpu| {
            let threads = vec![thread(1, cpu, true), thread(2, 3, false)];
            let name = "make (12)".to_owned();
            let job =
                JobFacts { job: JobId(7), name, unit, threads, memory: Some(vec![(1, 4096)]), shared: None };
            Snapshot { jobs: vec![job], ..Snapshot::default() }
        };
        jobs.observe(&machine, &sample(0));
        let seat = Seat { thread: ThreadId(1), job: JobId(7), unit, pool: Some(1) };
        let mut plan = Plan::default();
        plan.decisions.seats.push(Step { action: seat, reason: Reason::Together { from: 0, threads: 1 } });
        jobs.book(&plan);
        jobs.observe(&machine, &sample(2));
        jobs.observe(&machine, &sample(1));
        let listed = jobs.statement(&contract);
        let expected = Job {
            job: 7,
            name: "make (12)".to_owned(),
            unit: "a".to_owned(),
            threads: 2,
            pools: vec![(1, 1)],
            moved: 1,
            at_home: 1,
            looks: 3,
            memory: vec![(1, 4096)],
            gang: None,
        };
        assert_eq!(listed, [expected]);
        jobs.observe(&machine, &Snapshot::default());
        assert_eq!(jobs.statement(&contract), []);
    }
}
