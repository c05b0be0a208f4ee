//! Carrying out: everything here writes, and records first how to undo it.

mod allowance;
pub mod bus;
pub mod calibrate;
pub mod cgroup;
mod confine;
mod kept;
mod pages;
pub mod process;
pub mod program;
pub mod scheduler;
mod seats;
pub mod standing;
mod stops;

pub use seats::means_for_jobs;
