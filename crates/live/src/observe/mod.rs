//! Reading the machine. No order is given here; to see which pages are cold, the kernel is asked to begin another generation
//! of them (`memory/ages.rs`).

pub mod arena;
pub mod bounds;
pub mod bus;
pub mod capability;
pub(crate) mod caps;
pub mod cpu_kinds;
pub mod disk;
pub(crate) mod files;
pub(crate) mod idle;
pub(crate) mod jobs;
pub(crate) mod kernels_locks;
pub(crate) mod knob;
pub(crate) mod machine_counts;
pub(crate) mod mapped;
pub(crate) mod memory;
pub(crate) mod metered;
pub mod names;
pub mod peer;
pub(crate) mod perf_map;
pub(crate) mod polls;
pub mod process;
pub mod quota;
pub mod roster;
pub(crate) mod symbols;
pub(crate) mod threads;
pub mod topology;
pub(crate) mod waits;
