//! The policy: which unit holds what, what is lent, and why.
//!
//! Pure: no I/O, no clock, no randomness of its own, no floating point. Time is an argument. The same inputs give the
//! same plan on the live machine and in a simulator. The entry point is [`step`].
#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::float_arithmetic))]

extern crate alloc;

pub mod bandwidth;
pub mod check;
pub mod disk;
pub mod entitlement;
pub mod frames;
mod free;
mod lend;
mod limits;
pub mod membership;
pub mod memory;
mod orders;
pub mod partition;
mod plan;
pub mod rights;
pub mod share;
mod snapshot;
mod step;
mod tally;
mod waiting;

pub use lend::{SETTLE_NS, borrows, lends};
pub use orders::first_weight;
pub use plan::{Action, Bytes, CpuCount, Cpus, Plan, Reason, Speed, Step};
pub use snapshot::{Means, Snapshot, SwitchLoans, UnitFacts};
pub use step::{Input, State, needs_cap, partitions, step};

/// Nanoseconds since an arbitrary start that never goes back: the backend's clock.
pub type Time = u64;

/// One millisecond, in [`Time`]'s measure.
pub const MS: Time = 1_000_000;
