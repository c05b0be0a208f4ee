//! How concurrent work slows down: what the machine's CPUs cost each other when they work at once.
//!
//! Between two events the simulation is fluid: each running task progresses at a constant rate, so much of its work
//! (time it takes alone on the machine) per unit of time. This module tells by how much each task is slower than
//! alone:
//! - [`Kernel`], for its kernel work, by what runs beside it;
//! - [`Bus`], for its memory traffic, by what runs beside it;
//! - [`LastCaches`], for its working set, by what runs beside it on the same cache;
//! - [`Cores`], by what runs beside it on the same core;
//! - [`Remote`], by where its pages lie;
//! - [`Shared`], by where the data of its job's other tasks lies, and by what is on the way there beside it.
//!
//! These are independent of each other, so a task's slowdown is their product, but for the last two, which add up.
//! [`Caches`] says what coming back to a CPU costs, once.
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
