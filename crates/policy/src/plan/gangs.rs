//! Gangs in a plan: which jobs run in a quantum, and what a backend is to do for that.

use alloc::vec::Vec;

use commonhold_contract::UnitId;
use serde::{Deserialize, Serialize};

use super::Step;
use crate::snapshot::JobId;
use crate::time::Time;

/// Gangs that were chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantum {
    /// When others are chosen, at the earliest.
    pub until: Time,
    /// Whether it begins now; or else it goes on, and those that are listed came to CPUs that were left.
    pub begins: bool,
    /// Those that run on, where it goes on; others that did are there no more, or sleep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goes_on: Vec<JobId>,
    /// Those that run from now on, in the order in which they were chosen.
    pub chosen: Vec<Step<Gang>>,
    /// Jobs that wait for another quantum.
    pub waiting: u32,
}

/// A gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// The job.
    pub job: JobId,
    /// Its unit.
    pub unit: UnitId,
    /// CPUs that it has for its threads.
    pub cpus: u32,
    /// What each of its threads is taken to transfer, in bytes per second.
    pub bytes_per_s: u64,
}

/// What a backend is to do about gangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum GangOrder {
    /// The job's threads run (open), or none of them does.
    Gate {
        /// The job.
        job: JobId,
        /// Its unit.
        unit: UnitId,
        /// Whether they run.
        open: bool,
    },
}

impl GangOrder {
    /// The unit that it is about.
    pub fn unit(&self) -> UnitId {
        let GangOrder::Gate { unit, .. } = self;
        *unit
    }
}
