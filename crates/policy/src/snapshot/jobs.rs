//! Jobs as a backend sees them: threads that belong together, and where they and their memory are.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A job's number. The backend gives it, and gives it to no other job while this one is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

/// A thread's number, likewise. Of two threads of a job, the one that came first has the lower number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ThreadId(pub u64);

/// What a backend can do about where threads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seats {
    /// Nothing: there are no jobs for it.
    #[default]
    None,
    /// A thread can be told the CPUs that it is to run on, at any time.
    Cpus,
    /// The same, and each thread has a CPU of its own: one without a seat does not begin (seed 001, section 3).
    Fixed,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    /// Which.
    pub job: JobId,
    /// What people may know it by: a program's name, and the number of its first process.
    pub name: String,
    /// The unit that its threads are in.
    pub unit: UnitId,
    /// By ascending number.
    pub threads: Vec<ThreadFacts>,
    /// Numbers of nodes, and bytes of its memory there; `None` where nobody looked.
    pub memory: Option<Vec<(u32, u64)>>,
    /// What it had of what gangs share; `None` where nobody can tell, or nobody did yet.
    pub shared: Option<SharedUse>,
}

/// What a job had of what gangs share, by the contract's `gangs-share`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedUse {
    /// When this was so, on the backend's clock: older than the snapshot where a program tells it itself.
    pub at: Time,
    /// Since some moment before the job was seen first, all its threads together. Bytes that it transferred over the memory
    /// bus; or bytes that it held of the last-level caches, times the seconds for which it did; or instructions. Never goes
    /// back.
    pub amount: u64,
}

/// What a unit transferred over the memory bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusUse {
    /// When this was so, on the backend's clock: older than the snapshot where a program tells it itself.
    pub at: Time,
    /// Bytes since some moment before the job was seen first. Never goes back.
    pub bytes: u64,
}

/// A thread of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadFacts {
    /// Which.
    pub thread: ThreadId,
    /// Whether it wants a CPU now, or had one since the look before.
    pub wants: bool,
    /// The CPU that it ran on last; where it never ran, its creator's.
    pub cpu: Option<u32>,
    /// The CPUs that its owner ties it to; `None`: all, or nobody can tell.
    pub tied: Option<CpuSet>,
}
