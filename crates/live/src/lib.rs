//! The live machine: observes it, and applies plans to it. Applying makes no choices.

pub mod affinity;
pub mod caretaker;
pub mod cgroup;
pub mod clock;
pub mod disk;
pub mod io_priority;
pub mod journal;
pub mod kernel;
mod live_backend;
pub(crate) mod memory;
pub mod names;
pub mod observe;
pub mod oom_score;
pub mod roster;
mod signal;
pub mod undo;
pub mod user;
mod way_back;

pub use commonhold_steward::Backend;
pub use live_backend::{HeldBy, Instead, LiveBackend};

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
