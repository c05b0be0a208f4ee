//! The journal: how to undo what was done, written before it is done.
//!
//! Problem: a daemon that dies must leave nothing stopped, pinned or squeezed behind. Algorithm: before the first change
//! to a process or a file, one entry with its original state is appended to a file on a memory file system. The caretaker,
//! a process that lives only for this, holds the read end of a pipe whose write end only the daemon has; when the daemon
//! is gone, for whatever reason, it reads the journal, undoes everything, last entry first, and removes the file. A
//! regular end is the same path: there is one way of undoing, and it is used every time. If both processes are killed, the
//! next start finds the journal and undoes it first.
//!
//! Properties: undoing is idempotent; an entry whose action never happened is harmless; a process is known by number and
//! start time, so that a reused number is never touched.

use std::path::PathBuf;

use commonhold_machine::CpuSet;

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ProcessKey {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of /proc/PID/stat.
    pub start: u64,
}

/// One thing to undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A thread's own affinity is about to be replaced; this is the original.
    Affinity {
        /// The thread's process.
        process: ProcessKey,
        /// The thread.
        tid: u32,
        /// Where it was allowed to run.
        cpus: CpuSet,
    },
    /// A mask that the daemon gives to threads: one found on an unknown descendant of a member came from here.
    Given {
        /// The mask.
        cpus: CpuSet,
    },
    /// A process is about to be stopped (SIGSTOP).
    Stopped {
        /// The process.
        process: ProcessKey,
    },
    /// A process is about to be moved to a cgroup of ours; this is where it was.
    Moved {
        /// The process.
        process: ProcessKey,
        /// Its cgroup's directory, in full.
        from: PathBuf,
    },
    /// A cgroup is about to be created.
    Created {
        /// Its directory.
        cgroup: PathBuf,
    },
    /// A file is about to be written; this was in it.
    Knob {
        /// The file.
        path: PathBuf,
        /// What to write back.
        original: String,
    },
}
