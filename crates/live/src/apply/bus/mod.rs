//! The memory bus: measuring its capacity, and throttling units.

pub mod probe;
pub(crate) mod resctrl;
