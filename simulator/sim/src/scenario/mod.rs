//! Scenarios: a contract, a machine and a workload, as files of a folder.
//!
//! The contract crate reads `contract.toml`. [`parse_machine()`] reads `machine.toml`. [`parse_workload()`]
//! reads `workload.toml`, which names units of the contract and disks of the machine. Like the contract's,
//! both languages are tables of keys (`keys`). One pass reports all mistakes of a text, each with its
//! position and a remedy; [`commonhold_contract::render`] shows them. This module opens no file.
//! [`reference()`] lists every key.
//!
//! Code map, in the order of the flow:
//! - `values`: reads numbers and names, by the contract crate's `document`;
//! - `machine` with `latency`, `workload` with `steps`: turn text into values;
//! - `check`, with `limits`: finds values that contradict each other.
//!
//! For sweeps, [`edit`] sets single values in the texts, and [`range`] reads lists of such values.

mod changes;
mod check;
mod cycles;
mod demand;
pub mod edit;
mod folder;
mod hotplug;
mod interrupts;
mod keys;
mod latency;
mod limits;
mod locks;
mod machine;
pub(crate) mod model;
pub mod range;
mod reference;
mod steps;
mod swap;
#[cfg(test)]
mod tests;
mod values;
mod workload;

pub use folder::{Finding, Overrides, Part, Read, read, read_with};
pub(crate) use limits::PROGRAMS_MAX;
pub use limits::{SECTOR, TASKS_MAX};
pub use machine::parse_machine;
pub use model::*;
pub use reference::reference;
pub use values::{About, Parsed};
pub use workload::parse_workload;
