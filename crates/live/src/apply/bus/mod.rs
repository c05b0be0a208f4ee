//! The memory bus: measuring what it carries, and slowing down what units transfer.

pub mod probe;
pub(crate) mod resctrl;
