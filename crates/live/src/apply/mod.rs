//! Carries out plans. Everything here that changes the system first records how to undo it.

mod allowance;
pub mod bus;
pub mod calibrate;
pub mod cgroup;
mod confine;
mod kept;
pub mod kernel;
mod pages;
pub mod seats;
pub mod standing;
mod stops;
pub mod user;
