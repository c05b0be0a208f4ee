//! JSON of rt-app (<https://github.com/scheduler-tools/rt-app>), from which a workload is read and to which
//! one is written.
//!
//! What an event means is taken from rt-app's source, since its tutorial differs in places. Where releases
//! differ, `read` says which it follows.

mod json;
mod read;
mod structure;
mod write;

pub(crate) use read::read;
pub use write::{Exported, export};
