//! The policy decides which unit holds which resources and which of these are lent, and gives the reason of
//! each decision.
//!
//! The policy is pure: no I/O, no clock, no randomness, no floating point; time is an argument. Equal inputs
//! give equal plans, on a live machine and in the simulator. The entry point is [`step`].
//!
//! The rooms (folders) of this crate, each of which uses only the rooms above it:
//! - `time`;
//! - `snapshot`: facts and means, from a backend; `plan`: decisions and orders, for a backend;
//! - `membership`: the unit of each process; `tree`: subtrees of units;
//! - `rights`: each unit's entitlements; `negotiate`: trial exchanges;
//! - `credits`: how much each unit has lent and borrowed in the past;
//! - `input`: everything that a step reads;
//! - `cpu`, `memory`, `disk`: one resource each; none of these three uses another;
//! - `bus`: the memory bus; `gangs`: which jobs run together;
//! - `foreign_groups`: units held in control groups of other programs;
//! - `step`: combines them.
//!
//! `check` is the plan checker: it verifies each plan against records of its own.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::float_arithmetic))]

extern crate alloc;

mod bus;
pub mod check;
pub mod cpu;
pub mod credits;
pub mod disk;
pub mod foreign_groups;
mod gangs;
mod input;
pub mod membership;
pub mod memory;
pub mod negotiate;
pub mod plan;
pub mod rights;
mod snapshot;
mod step;
mod time;
pub mod tree;

pub use cpu::seats::pools;
pub use input::Input;
pub use plan::{Plan, Reason, Step};
pub use rights::{entitlement, share};
pub use snapshot::{
    BusUse, DeviceUse, DiskFacts, DiskMeans, DiskUse, Frames, GroupBounds, GroupFacts, GroupId, JobFacts,
    JobId, LentTo, LoansByPair, Means, MemoryFacts, MemoryMeans, Occupant, Seats, SharedUse, Snapshot,
    SwitchLoans, ThreadFacts, ThreadId, Throttle, UnitFacts, UnitMemory, WaitedFor,
};
pub use step::{PolicyState, step};
pub use time::{MS, Time};
