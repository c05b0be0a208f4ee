//! The policy: which unit holds what, what is lent, and why.
//!
//! Pure: no I/O, no clock, no randomness of its own, no floating point. Time is an argument. The same inputs give the
//! same plan on the live machine and in a simulator. The entry point is [`step`].
//!
//! Rooms, each of which uses only those above it: `time`; `snapshot` (facts) and `plan` (decisions and orders);
//! `membership` and `tree`; `credits` (what loans are remembered); `rights` (what each unit is entitled to); `input` (all that a
//! step reads); `cpu`, `memory` and `disk` (the decisions, none of which knows the others); `gangs` (which jobs run together); `places` (units held where their processes are); `negotiate` (exchanges that are
//! tried); `step`, which puts them together. `check` replays plans on books of its own.
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
    BusUse, DeviceUse, DiskFacts, DiskMeans, DiskUse, Frames, JobFacts, JobId, Means, MemoryFacts,
    MemoryMeans, PlaceBounds, PlaceFacts, PlaceId, Seats, SharedUse, Snapshot, SwitchLoans, ThreadFacts,
    ThreadId, Throttle, UnitFacts, UnitMemory,
};
pub use step::{State, step};
pub use time::{MS, Time};
