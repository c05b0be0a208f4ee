//! Carrying out: everything here writes, and records first how to undo it.

mod allowance;
pub mod bus;
pub mod calibrate;
pub mod cgroup;
mod confine;
mod kept;
pub mod kernel;
mod pages;
pub mod program;
pub mod seats;
pub mod standing;
mod stops;
pub mod user;
