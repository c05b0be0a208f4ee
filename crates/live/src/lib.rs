//! The live machine: observes it, and applies plans to it. Applying makes no choices.
//!
//! A module's path is the path of its file: `commonhold_live::undo::journal` is `undo/journal.rs`.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make what the code is to find"))]

pub mod apply;
pub mod host;
mod live_backend;
pub mod observe;
pub mod systemd;
pub mod undo;

pub use commonhold_steward::Backend;
pub use live_backend::{ActiveBackend, LiveBackend, Unavailable};

/// The remedy in an error about the limit on open files.
pub const MORE_FILES: &str =
    "; raise the limit on open files before it starts: `ulimit -n` as root, or LimitNOFILE= of the service";

use std::path::PathBuf;

/// An error on a live machine. Every message names the object, the value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The kernel refused or failed an operation on a file.
    #[error("{path}: cannot {what}: {source}{remedy}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operation, as a verb phrase: `write "0-3"`.
        what: String,
        /// The kernel's error.
        source: std::io::Error,
        /// The remedy, as `; do this`, or empty.
        remedy: String,
    },
    /// The kernel accepted a value, but another reads back.
    #[error("{path}: wrote `{wrote}` but reads back `{read}`: the limit is not in force{remedy}", path = .path.display())]
    NotInForce {
        /// The file.
        path: PathBuf,
        /// What was written.
        wrote: String,
        /// What reads back.
        read: String,
        /// The remedy, as `; do this`, or empty.
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
        /// The kernel's error.
        source: std::io::Error,
        /// The remedy, as `; do this`, or empty.
        remedy: String,
    },
    /// The machine lacks support, or this user the privileges.
    #[error("{what}; {remedy}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// The remedy.
        remedy: String,
    },
}
