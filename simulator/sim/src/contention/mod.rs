//! How concurrent work slows down: what the machine's CPUs cost each other when they work at once.
//!
//! Between two events the simulation is fluid: each running task progresses at a constant rate: work (the time that
//! it takes alone on the machine) per unit of time. This module computes how much slower each task is than alone:
//! - [`Kernel`]: its kernel work, because of other tasks' kernel work;
//! - [`Bus`]: its memory traffic, because of other tasks' traffic;
//! - [`LastCaches`]: its working set, because of other tasks on the same cache;
//! - [`Cores`]: because of other tasks on the same core;
//! - [`Remote`]: because its pages are in other nodes;
//! - [`Shared`]: because data of its job's other tasks is in other nodes, and because of queues on the way there.
//!
//! These are independent of each other, so a task's slowdown is their product; only the last two add up.
//! [`Caches`] computes the one-time cost of refilling a CPU's cache.
//!
//! Slowdowns are whole millionths, one million for no slowdown, rounded to the nearest. Floating point appears only
//! inside the formulas, with the four operations that every machine rounds alike.

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

/// A whole number for a formula; exact below 2^53, which rates, millionths and CPUs are.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn real(whole: u64) -> f64 {
    whole as f64
}
