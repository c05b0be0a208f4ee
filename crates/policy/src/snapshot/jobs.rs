//! Jobs as a backend observes them: groups of threads, and the CPUs and nodes of these threads and their
//! memory.

use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::UnitId;
use commonhold_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A job's number, assigned by the backend and unique while the job exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

/// A thread's number, assigned by the backend and unique while the thread exists. Within a job, older threads
/// have lower numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ThreadId(pub u64);

/// How a backend can place threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seats {
    /// Not at all: it has no jobs.
    #[default]
    None,
    /// A thread's CPUs can be set at any time.
    Cpus,
    /// As `Cpus`, with a dedicated CPU for each thread: a thread without a seat does not start (seed 001,
    /// section 3).
    Fixed,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    /// Its number.
    pub job: JobId,
    /// A label for users: a program's name and the number of its first process.
    pub name: String,
    /// The unit of its threads.
    pub unit: UnitId,
    /// Its threads by ascending number.
    pub threads: Vec<ThreadFacts>,
    /// Its memory by node, as node number and bytes; `None` if not sampled.
    pub memory: Option<Vec<(u32, u64)>>,
    /// Its use of the resource that gangs share; `None` if unknown.
    pub shared: Option<SharedUse>,
}

/// A job's use of the resource that gangs share, chosen by the contract's `gangs-share`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedUse {
    /// Time of the sample, on the backend's clock; older than the snapshot if the program reports it itself.
    pub at: Time,
    /// The sum over the job's threads since some moment before the job was first observed: bytes transferred
    /// over the memory bus, or bytes held in the last-level caches times seconds. Monotonic.
    pub amount: u64,
}

/// A unit's memory bus transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusUse {
    /// Time of the sample, on the backend's clock; older than the snapshot if a program reports it itself.
    pub at: Time,
    /// Bytes since some moment before the job was first observed. Monotone.
    pub bytes: u64,
}

/// A thread of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadFacts {
    /// Its number.
    pub thread: ThreadId,
    /// Whether it wants a CPU now, or ran since the previous sample.
    pub wants: bool,
    /// The CPU that it ran on last; its creator's if it never ran.
    pub cpu: Option<u32>,
    /// Its affinity as set by its owner; `None`: all CPUs, or unknown.
    pub tied: Option<CpuSet>,
}
