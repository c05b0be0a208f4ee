//! Jobs on a live machine: where their threads are told to run, and where their pages are told to come.
//!
//! A seat is a thread's affinity (see [`super::confine`]), so it needs neither root nor control groups. Pages are moved
//! process by process (see [`super::pages`]).

use std::collections::BTreeMap;

use commonhold_contract::Contract;
use commonhold_policy::plan::{PlaceOrder, Step};
use commonhold_policy::{JobFacts, JobId, Means, Seats as SeatMeans, Time};

use super::confine::Confinement;
use super::pages;
use crate::LiveError;
use crate::observe::capability;
use crate::observe::jobs::{Jobs, Tied};
use crate::observe::process::ProcessKey;
use crate::observe::roster::Roster;

/// The jobs of a contract's units, and what was ordered for them.
#[derive(Debug, Default)]
pub(super) struct Seats {
    jobs: Jobs,
    /// Pages that are on their way, by job: each has at most one move at a time.
    moving: BTreeMap<JobId, pages::Moving>,
}

impl Seats {
    /// A backend's means, and those that it has for jobs: nothing where the contract has none.
    pub(super) fn means(contract: &Contract, means: Means) -> Means {
        match contract.units.iter().any(|unit| unit.job.is_some()) {
            true => Means { seats: SeatMeans::Cpus, brings: capability::moves_pages(), ..means },
            false => means,
        }
    }

    /// The jobs that are there.
    pub(super) fn observe(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
        tied: Tied<'_>,
    ) -> Result<Vec<JobFacts>, LiveError> {
        self.jobs.observe(now, contract, roster, tied)
    }

    /// Takes in what is ordered. The processes of threads whose seats changed.
    pub(super) fn order(
        &mut self,
        orders: &[Step<PlaceOrder>],
        confinement: &mut Confinement,
        failed: &mut Vec<LiveError>,
    ) -> Vec<ProcessKey> {
        let mut concerned = Vec::new();
        for order in orders.iter().map(|step| &step.action) {
            match order {
                PlaceOrder::Seat { thread, cpus, .. } => {
                    // One that ended meanwhile needs no seat.
                    let Some((key, tid)) = self.jobs.thread(*thread) else { continue };
                    confinement.seat(key, tid, cpus.clone());
                    if concerned.last() != Some(&key) {
                        concerned.push(key);
                    }
                }
                PlaceOrder::Bring { job, nodes, divided, .. } => {
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
