//! Reading the machine: topology, capabilities, processes.

pub mod capability;
pub(crate) mod files;
mod perf;
pub mod process;
pub mod topology;
