//! Carries out orders for jobs: seats their threads on CPUs, moves their pages to nodes, and notes which
//! gangs must stop.
//!
//! A seat is enforced by the thread's affinity ([`super::confine`]), so seats need neither root nor control
//! groups. Pages are moved process by process ([`super::pages`]). A gang is *shut* while it must not run: the
//! backend then stops its processes, unless a scheduler runs the gangs.

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
use crate::observe::jobs::{Jobs, Tied, has_gangs, report_interval_ns};
use crate::observe::process::ProcessKey;
use crate::observe::roster::Roster;

/// The jobs of a contract's units, and the orders for them.
#[derive(Debug, Default)]
pub(super) struct Seats {
    jobs: Jobs,
    /// Whether a scheduler runs the gangs, so that no signals are needed.
    left_to_scheduler: bool,
    /// Moves of pages that have not ended, at most one for each job.
    moving: BTreeMap<JobId, pages::Moving>,
}

/// The means of a backend. If the contract has jobs, the means for jobs are added, which every live backend
/// has.
pub fn means_for_jobs(contract: &Contract, means: Means) -> Means {
    match contract.units.iter().any(|unit| unit.job.is_some()) {
        true => Means { seats: SeatMeans::Cpus, gangs: true, brings: capability::moves_pages(), ..means },
        false => means,
    }
}

impl Seats {
    /// [`means_for_jobs`], for the backends.
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

    /// The units whose processes to examine: those in `watch`, and units with gangs, whose demand must be
    /// known at each scan.
    pub(super) fn watched(contract: &Contract, watch: &[UnitId]) -> Vec<UnitId> {
        let has_gangs = has_gangs(contract);
        let is_added =
            |unit: &UnitId| has_gangs && contract.unit(*unit).job.is_some() && !watch.contains(unit);
        watch.iter().copied().chain(contract.held().filter(is_added)).collect()
    }

    /// Assigns processes to jobs. Call this once per scan, before [`Seats::observe`].
    pub(super) fn follow(&mut self, contract: &Contract, roster: &mut Roster) -> Result<(), LiveError> {
        self.jobs.settle(contract, roster)
    }

    /// Assigns new processes to jobs if any job is shut: a new process of a shut job must be stopped, too.
    pub(super) fn catch_up(&mut self, contract: &Contract, roster: &mut Roster) -> Result<(), LiveError> {
        if self.jobs.any_shut() { self.jobs.catch_up(contract, roster) } else { Ok(()) }
    }

    /// Marks gangs as shut or open, as ordered. No process is stopped here: the backend stops the processes
    /// for which [`Seats::is_shut`] is true.
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

    /// The units that must be stopped as a whole, because the unit is one job, and that job is shut.
    pub(super) fn shut_units(&self, contract: &Contract) -> BTreeSet<UnitId> {
        if self.left_to_scheduler { BTreeSet::new() } else { self.jobs.shut_units(contract) }
    }

    /// If `leave` is true, a scheduler runs the gangs from now on; otherwise the backend stops and continues
    /// them.
    pub(super) fn leave_gangs(&mut self, leave: bool) {
        self.left_to_scheduler = leave;
    }

    /// The processes of all jobs, each with its job and whether that job is shut.
    pub(super) fn members(&self) -> impl Iterator<Item = (ProcessKey, JobId, bool)> + '_ {
        self.jobs.members()
    }

    /// The unit of each job.
    pub(super) fn units(&self) -> BTreeMap<JobId, UnitId> {
        self.jobs.units().collect()
    }

    /// Adds the threads of shut jobs that wanted a CPU when they were stopped to their units' demand.
    /// Otherwise a unit would seem to want nothing while its gang waits.
    pub(super) fn count_shut(&self, roster: &Roster, units: &mut [UnitFacts]) {
        self.jobs.count_shut(roster, units);
    }

    /// [`LiveBackend::join`](crate::LiveBackend::join).
    pub(super) fn join(
        &mut self,
        contract: &Contract,
        key: ProcessKey,
        user: u32,
        roster: &mut Roster,
    ) -> Option<Result<(OwnedFd, u64), NotJoined>> {
        let page = has_gangs(contract).then(|| self.jobs.join(contract, key, user, roster))?;
        Some(page.map(|page| (page, report_interval_ns(contract))))
    }

    /// Adds problems with the measurement of jobs' processes, such as implausible reports, to `problems`.
    pub(super) fn complain(&mut self, problems: &mut Problems) {
        for (key, kind, error) in self.jobs.take_complaints() {
            problems.once(key, kind, || error);
        }
    }

    /// Seats threads and begins to move pages, as ordered. Adds the errors of moves to `failed`. Returns the
    /// processes to confine again, because seats of their threads changed.
    pub(super) fn order(
        &mut self,
        orders: &[Step<SeatOrder>],
        confinement: &mut Confinement,
        failed: &mut Vec<LiveError>,
    ) -> Vec<ProcessKey> {
        let mut reseated = Vec::new();
        for order in orders.iter().map(|step| &step.action) {
            match order {
                SeatOrder::Seat { thread, cpus, .. } => {
                    // An unknown thread has ended, and needs no seat.
                    let Some((key, tid)) = self.jobs.thread(*thread) else { continue };
                    confinement.seat(key, tid, cpus.clone());
                    if reseated.last() != Some(&key) {
                        reseated.push(key);
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
        // Collect the errors of the moves that have ended.
        self.moving.retain(|_, moving| match moving.ended() {
            Some(problems) => {
                failed.extend(problems);
                false
            }
            None => true,
        });
        reseated.sort_unstable();
        reseated.dedup();
        reseated
    }
}
