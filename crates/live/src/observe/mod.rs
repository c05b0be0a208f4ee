//! Reads the machine, and changes nothing on it. One exception: to find cold pages, `memory/ages.rs` asks the
//! kernel to begin another generation of pages.

pub mod arena;
pub mod bounds;
pub mod bus;
pub mod capability;
pub(crate) mod caps;
pub mod cpu_kinds;
pub mod disk;
pub(crate) mod files;
pub mod hidden;
pub(crate) mod idle;
pub(crate) mod jobs;
pub(crate) mod knob;
pub(crate) mod mapped;
pub(crate) mod memory;
pub mod names;
pub mod peer;
pub mod process;
pub mod roster;
pub mod topology;
