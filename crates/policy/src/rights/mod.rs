//! Rights: which units are active, and what their tickets are worth.

pub mod entitlement;
pub(crate) mod limits;
pub mod share;
