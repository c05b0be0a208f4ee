//! Reading the machine: nothing here changes what it looks at.

pub mod capability;
pub(crate) mod disk;
pub(crate) mod files;
pub(crate) mod idle;
pub(crate) mod knob;
pub(crate) mod memory;
pub mod names;
pub mod process;
pub mod roster;
pub mod topology;
