//! Gangs in a plan: which jobs run in a quantum, and what a backend is to do for that.

use alloc::vec::Vec;

use commonhold_contract::{GangsShare, UnitId};
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
    /// What each of its threads is taken to have of what gangs share.
    #[serde(flatten)]
    pub rate: SharedRate,
}

/// What a thread has of what gangs share, by the contract's `gangs-share`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedRate {
    /// It transfers so much over the memory bus, in bytes per second.
    BytesPerS(u64),
    /// It holds so many bytes of the last-level caches.
    CacheBytes(u64),
    /// It executes so many instructions in a second.
    InstructionsPerS(u64),
}

impl SharedRate {
    /// So much of that.
    pub const fn of(share: GangsShare, rate: u64) -> SharedRate {
        match share {
            GangsShare::Bus => SharedRate::BytesPerS(rate),
            GangsShare::Cache => SharedRate::CacheBytes(rate),
            GangsShare::Cores => SharedRate::InstructionsPerS(rate),
        }
    }
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
