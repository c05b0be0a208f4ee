//! Jobs on a live machine: seats their threads, and moves their pages.
//!
//! A seat is a thread's affinity (see [`super::confine`]), so it needs neither root nor control groups. Pages are moved process
//! by process (see [`super::pages`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::{GangOrder, SeatOrder, Step};
use commonhold_policy::{JobFacts, JobId, Means, Seats as SeatMeans, Time, UnitFacts};

use super::confine::{Confinement, Problems};
use super::pages;
use crate::LiveError;
use crate::observe::arena::NotJoined;
use crate::observe::capability;
use crate::observe::jobs::{Jobs, Tied, has_gangs};
use crate::observe::process::ProcessKey;
use crate::observe::roster::Roster;

/// The jobs of a contract's units, and the orders for them.
#[derive(Debug, Default)]
pub(super) struct Seats {
    jobs: Jobs,
    /// Whether gangs are left to a scheduler, and not stopped by signals.
    left_to_scheduler: bool,
    /// Pages in transit, by job: each has at most one move at a time.
    moving: BTreeMap<JobId, pages::Moving>,
}

/// A backend's means, with those that every backend has for jobs, if the contract has any.
pub fn means_for_jobs(contract: &Contract, means: Means) -> Means {
    match contract.units.iter().any(|unit| unit.job.is_some()) {
        true => Means { seats: SeatMeans::Cpus, gangs: true, brings: capability::moves_pages(), ..means },
        false => means,
    }
}

impl Seats {
    /// The same as [`means_for_jobs`], for the backends.
    pub(super) fn means(contract: &Contract, means: Means) -> Means {
        means_for_jobs(contract, means)
    }

    /// The facts of all jobs.
    pub(super) fn observe(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
        tied: Tied<'_>,
    ) -> Result<Vec<JobFacts>, LiveError> {
        self.jobs.observe(now, contract, roster, tied)
    }

    /// The units to examine: `watch`, and units with gangs, whose demand must be seen at each scan.
    pub(super) fn watched(contract: &Contract, watch: &[UnitId]) -> Vec<UnitId> {
        let has_jobs = |unit: &UnitId| contract.unit(*unit).job.is_some() && !watch.contains(unit);
        let gangs = contract.held().filter(has_jobs).take(if has_gangs(contract) { usize::MAX } else { 0 });
        watch.iter().copied().chain(gangs).collect()
    }

    /// Puts processes into their jobs, once a turn and before [`Seats::observe`].
    pub(super) fn follow(&mut self, contract: &Contract, roster: &mut Roster) -> Result<(), LiveError> {
        self.jobs.settle(contract, roster)
    }

    /// Puts those who came since the last look into their jobs, where that matters: one that is shut may have grown.
    pub(super) fn catch_up(&mut self, contract: &Contract, roster: &mut Roster) -> Result<(), LiveError> {
        if self.jobs.any_shut() { self.jobs.catch_up(contract, roster) } else { Ok(()) }
    }

    /// Takes in which gangs run. [`Seats::is_shut`] then tells which processes must stop.
    pub(super) fn gate(&mut self, orders: &[Step<GangOrder>], now: Time, roster: &Roster) {
        for order in orders {
            let GangOrder::Gate { job, unit, open } = order.action;
            self.jobs.gate(job, unit, open, now, roster);
        }
    }

    /// Whether a process must be stopped because its gang is shut.
    pub(super) fn is_shut(&self, key: ProcessKey) -> bool {
        !self.left_to_scheduler && self.jobs.is_shut(key)
    }

    /// Whether any gang is shut whose processes must be stopped.
    pub(super) fn any_shut(&self) -> bool {
        !self.left_to_scheduler && self.jobs.any_shut()
    }

    /// The units that consist of one job which is shut, and must be stopped.
    pub(super) fn shut_units(&self, contract: &Contract) -> BTreeSet<UnitId> {
        if self.left_to_scheduler { BTreeSet::new() } else { self.jobs.shut_units(contract) }
    }

    /// Leaves gangs to a scheduler, or takes them back.
    pub(super) fn leave_gangs(&mut self, leave: bool) {
        self.left_to_scheduler = leave;
    }

    /// The processes of all jobs, and whether the job is shut.
    pub(super) fn members(&self) -> impl Iterator<Item = (ProcessKey, JobId, bool)> + '_ {
        self.jobs.members()
    }

    /// The unit of each job.
    pub(super) fn units(&self) -> BTreeMap<JobId, UnitId> {
        self.jobs.units().collect()
    }

    /// Has threads that are stopped count in what their units want.
    pub(super) fn count_shut(&self, roster: &Roster, units: &mut [UnitFacts]) {
        self.jobs.count_shut(roster, units);
    }

    /// A page in which a process reports its transfers over the memory bus.
    pub(super) fn join(
        &mut self,
        contract: &Contract,
        key: ProcessKey,
        user: u32,
        roster: &mut Roster,
    ) -> Result<OwnedFd, NotJoined> {
        self.jobs.join(contract, key, user, roster)
    }

    /// Reports implausible numbers from processes, once each.
    pub(super) fn complain(&mut self, problems: &mut Problems) {
        for (key, kind, error) in self.jobs.take_complaints() {
            problems.once(key, kind, || error);
        }
    }

    /// Takes in orders. Returns the processes of threads whose seats changed.
    pub(super) fn order(
        &mut self,
        orders: &[Step<SeatOrder>],
        confinement: &mut Confinement,
        failed: &mut Vec<LiveError>,
    ) -> Vec<ProcessKey> {
        let mut concerned = Vec::new();
        for order in orders.iter().map(|step| &step.action) {
            match order {
                SeatOrder::Seat { thread, cpus, .. } => {
                    // A thread that has ended needs no seat.
                    let Some((key, tid)) = self.jobs.thread(*thread) else { continue };
                    confinement.seat(key, tid, cpus.clone());
                    if concerned.last() != Some(&key) {
                        concerned.push(key);
                    }
                }
                SeatOrder::Bring { job, nodes, divided, .. } => {
                    let processes = self.jobs.processes(*job);
                    match pages::Moving::begin(processes, nodes, *divided) {
                        Ok(moving) => {
                            self.moving.insert(*job, moving);
                        }
                        Err(error) => failed.push(error),
                    }
                }
            }
        }
        self.moving.retain(|_, moving| match moving.ended() {
            Some(problems) => {
                failed.extend(problems);
                false
            }
            None => true,
        });
        concerned.sort_unstable();
        concerned.dedup();
        concerned
    }
}
