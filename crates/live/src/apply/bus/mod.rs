//! The memory bus: measuring what it carries.

pub mod probe;
