//! The live machine: observes it, and applies plans to it. Applying makes no choices.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make what the code is to find"))]

pub mod apply;
pub mod host;
mod live_backend;
pub mod observe;
pub mod systemd;
pub mod undo;

pub use apply::{means_for_jobs, standing};
pub use commonhold_steward::Backend;
pub use host::child::{command, ends_with_this, keep_children};
pub use host::{affinity, clock, trust};
pub use live_backend::{ActiveBackend, LiveBackend, Unavailable};
pub use observe::{names, quota, roster};
pub use undo::{caretaker, entered, journal, lock, tickets};

/// Disks: measuring one, what was measured, and the cost model that the kernel is given of it.
pub mod disk {
    pub use crate::apply::calibrate;
    pub use crate::apply::cgroup::io_cost;
    pub use crate::observe::disk::model;
}

/// The memory bus: measuring what it carries, and what was measured.
pub mod bus {
    pub use crate::apply::bus::probe;
    pub use crate::observe::bus::capacity;
}

/// What to do where a process has no descriptor left.
pub const MORE_FILES: &str =
    "; raise the limit on open files before it starts: `ulimit -n` as root, or LimitNOFILE= of the service";

use std::path::PathBuf;

/// What can go wrong on a live machine. Every message names the object, the value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The kernel refused or failed an operation on a file.
    #[error("{path}: cannot {what}: {source}{remedy}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operation, as a verb phrase: `write "0-3"`.
        what: String,
        /// The kernel's answer.
        source: std::io::Error,
        /// What to do about it, as `; do this`, or empty.
        remedy: String,
    },
    /// The kernel accepted a value and then showed another.
    #[error("{path}: wrote `{wrote}` but reads back `{read}`: the limit is not in force{remedy}", path = .path.display())]
    NotInForce {
        /// The file.
        path: PathBuf,
        /// What was written.
        wrote: String,
        /// What the kernel shows.
        read: String,
        /// What to do about it, as `; do this`, or empty.
        remedy: String,
    },
    /// An operation on a process failed.
    #[error("process {pid} ({name}): cannot {what}: {source}{remedy}")]
    Process {
        /// The process.
        pid: u32,
        /// Its program.
        name: String,
        /// The operation, as a verb phrase.
        what: String,
        /// The kernel's answer.
        source: std::io::Error,
        /// What to do about it, as `; do this`, or empty.
        remedy: String,
    },
    /// This machine or these privileges do not allow it.
    #[error("{what}; {remedy}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// What to do about it.
        remedy: String,
    },
}
