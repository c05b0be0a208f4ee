//! Contention: how much tasks slow each other down when they run at the same time.
//!
//! Between two events the simulation is fluid: each running task progresses at a constant rate, in work (time
//! alone on the machine) per unit of time. This module computes how much slower each task is than alone,
//! because of
//! - [`Kernel`]: other tasks' work in the kernel, if the task works in the kernel;
//! - [`Bus`]: other tasks' memory traffic;
//! - [`LastCaches`]: other tasks' working sets in the same last-level cache;
//! - [`Cores`]: other tasks on the same core;
//! - [`Remote`]: pages of the task in other nodes;
//! - [`Shared`]: data of its job's other tasks in other nodes, and queues on the way there.
//!
//! These factors are independent, so a task's slowdown is their product; only the last two are added instead.
//! [`Caches`] computes the one-time cost of refilling a CPU's cache.
//!
//! Slowdowns are whole millionths, one million for no slowdown, rounded to the nearest. Floating point
//! appears only inside the formulas, with the four operations that every machine rounds alike.

mod bus;
mod cores;
mod kernel;
mod last_caches;
mod refill;
mod remote;
mod shared;

pub use bus::Bus;
pub use cores::Cores;
pub use kernel::{Kernel, Slowdown};
pub use last_caches::{Holding, LastCaches};
pub use refill::{Caches, Left, refill_ns};
pub use remote::Remote;
pub use shared::{Shared, Sharer};

use commonhold_contract::MILLIONTH;

/// A ratio in whole millionths, to the nearest, halves up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ratios are not negative, and the largest, thousands of CPUs waiting for one, is far below 2^64 millionths"
)]
fn millionths(ratio: f64) -> u64 {
    (ratio * real(MILLIONTH) + 0.5) as u64
}

/// Converts a whole number for a formula: exact below 2^53, which rates, millionths and numbers of CPUs are.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn real(number: u64) -> f64 {
    number as f64
}
