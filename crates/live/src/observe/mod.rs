//! Reading the machine. No order is given here; to see which pages are cold, the kernel is asked to begin another generation
//! of them (`memory/ages.rs`).

pub mod arena;
pub mod bounds;
pub mod bus;
pub mod capability;
pub(crate) mod caps;
pub mod cpu_kinds;
pub(crate) mod disk;
pub(crate) mod files;
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
