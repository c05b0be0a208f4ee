//! Gangs in a plan: the jobs that run in a quantum, and their gates.

use alloc::vec::Vec;

use commonhold_contract::{GangsShare, UnitId};
use serde::{Deserialize, Serialize};

use super::Step;
use crate::snapshot::JobId;
use crate::time::Time;

/// The gangs chosen for a quantum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantum {
    /// When the next quantum may begin.
    pub until: Time,
    /// Whether the quantum begins now. If not, the chosen gangs fill CPUs that fell free in the current
    /// quantum.
    pub begins: bool,
    /// Gangs that continue to run. Gangs that ran before and are not listed ended or sleep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goes_on: Vec<JobId>,
    /// Gangs that start to run, in the order in which they were chosen.
    pub chosen: Vec<Step<Gang>>,
    /// The number of jobs that wait for another quantum.
    pub waiting: u32,
}

/// A chosen gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// The job.
    pub job: JobId,
    /// Its unit.
    pub unit: UnitId,
    /// CPUs for its threads.
    pub cpus: u32,
    /// The rate at which each of its threads is assumed to use the shared resource.
    #[serde(flatten)]
    pub rate: SharedRate,
}

/// A thread's use of the resource that `gangs-share` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedRate {
    /// Transfers over the memory bus, in bytes per second.
    BytesPerS(u64),
    /// Bytes held in the last-level caches.
    CacheBytes(u64),
}

impl SharedRate {
    /// A rate of the given resource.
    pub const fn of(share: GangsShare, rate: u64) -> SharedRate {
        match share {
            GangsShare::Bus => SharedRate::BytesPerS(rate),
            GangsShare::Cache => SharedRate::CacheBytes(rate),
        }
    }
}

/// An order about a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum GangOrder {
    /// Lets the job's threads run (open), or stops all of them.
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
    /// The unit that the order concerns.
    pub fn unit(&self) -> UnitId {
        let GangOrder::Gate { unit, .. } = self;
        *unit
    }
}
