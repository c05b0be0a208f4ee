//! Recordings: what tasks did on a real machine, as a workload for the simulated one.
//!
//! # Format
//!
//! A recording is the text of the kernel's `trace` file (tracefs). Lines before it say which threads are in which
//! unit:
//!
//! ```text
//! # commonhold unit light: 101 102
//! # commonhold unit heavy: 103
//!           <idle>-0     [002] d..2.    81.000120: sched_switch: prev_comm=swapper/2 prev_pid=0 ... ==> ... next_pid=101 ...
//! ```
//!
//! The numbers are threads' (`cgroup.threads`). Threads that they fork are in the same unit. These events count:
//! `sched_switch`, `sched_wakeup`, `sched_wakeup_new`, `sched_process_fork`; all others are passed over. Only the keys
//! `prev_pid`, `prev_state`, `next_pid`, `pid` and `child_pid` of an event are read, so a recording may be cut to
//! them. Its clock must be the same on all CPUs (`mono`). Nothing may be lost: a buffer that overran is an error.
//!
//! # The workload
//!
//! Every task becomes a job with a program of its own: the CPU time of each of its bursts, and how long it slept
//! between two of them. Two facts are left out. How long a task waits for a CPU is for the simulation to find out, and
//! so is on which CPU it runs. A task that could run when the recording ended computes for ever; one that slept sleeps
//! to the end.
//!
//! # Limits
//!
//! Sleeps are as long as they were, and a child comes when it came, even if other tasks are faster or slower in the
//! simulation. A parent does not wait for its children, nor one task for another's message. Work of no unit's task
//! (interrupts' own threads, a daemon) is not replayed, only counted.

#![allow(clippy::result_large_err, reason = "a recording is read once, and has one error at most")]

mod event;
mod history;
#[cfg(test)]
mod tests;
mod text;

use commonhold_contract::Diagnostic;

use crate::Time;

/// What the tasks of units did while they were recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// From the first event to the last, in ns.
    pub length_ns: Time,
    /// In the order in which they came; those that were there from the beginning in the order of the text.
    pub tasks: Vec<Recorded>,
    /// CPU time of tasks that are in no unit, in ns.
    pub others_ns: Time,
    /// How often a task went to sleep and ran again though nothing woke it: a signal came first. It then counts as awake.
    pub unwoken: u64,
}

/// What one task did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Its number; another task may have had it before.
    pub pid: u32,
    /// The path of its unit.
    pub unit: String,
    /// When it came, in ns from the beginning of the recording.
    pub start_ns: Time,
    /// What it did, in order.
    pub steps: Vec<Step>,
    /// What it did when the recording ended.
    pub end: End,
}

/// A step of a task; amounts in ns, at least 1000: what the kernel's text resolves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It computed for so long, perhaps in several pieces.
    Cpu(Time),
    /// It slept for so long.
    Sleep(Time),
}

/// How a task's history ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It ended.
    Gone,
    /// It could have gone on.
    Computing,
    /// It slept.
    Asleep,
}

impl Recorded {
    /// Its CPU time in ns.
    pub fn used_ns(&self) -> Time {
        self.steps.iter().map(|step| if let Step::Cpu(ns) = step { *ns } else { 0 }).sum()
    }
}

/// Reads a recording: the first thing that is wrong with it, at its place in the text, or what was recorded.
pub fn read(text: &str) -> Result<Recording, Diagnostic> {
    history::recording(text)
}

impl Recording {
    /// It as the text of a `workload.toml`; `source` says where it comes from.
    pub fn workload(&self, source: &str) -> String {
        text::workload(self, source)
    }
}
