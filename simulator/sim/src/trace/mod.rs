//! Recordings: the CPU bursts, sleeps and transfers of tasks on a live machine, as a workload for the
//! simulated one. [`History`] follows a machine's events. They may be from a file of `commonhold record`, or
//! from the kernel's own text.
//!
//! # The kernel's text
//!
//! [`read()`] reads the text of the kernel's `trace` file (tracefs). Lines before the events list the threads
//! of each unit:
//!
//! ```text
//! # commonhold unit light: 101 102
//! # commonhold unit heavy: 103
//!           <idle>-0     [002] d..2.    81.000120: sched_switch: prev_comm=swapper/2 prev_pid=0 ... ==> ... next_pid=101 ...
//! ```
//!
//! The numbers are thread IDs (`cgroup.threads`). A forked thread is in the unit of the thread that forked
//! it, unless a line lists the new thread. Four events count: `sched_switch`, `sched_wakeup`,
//! `sched_wakeup_new`, `sched_process_fork`; others are ignored. The reader uses only the keys `prev_pid`,
//! `prev_state`, `next_pid`, `pid` and `child_pid`, so a recording may omit the others. The clock must be the
//! same on all CPUs (`mono`). A recording with lost events is refused.
//!
//! # The workload
//!
//! Every task becomes a job with a program of its own: the CPU time of each burst, and the time of each sleep
//! between two bursts. Waits for a CPU and the choice of CPU are left out, since the simulation determines
//! both. A task that was runnable when the recording ended computes without end; a task that slept then
//! sleeps to the end of the simulation.
//!
//! # Limits
//!
//! In the text of a workload, the length of each sleep and the time of each fork are those of the recording,
//! even if other tasks are faster or slower in the simulation. A parent does not wait for its children, nor a
//! task for another task's message. The work of tasks in no unit (interrupt threads, daemons) is counted but
//! not replayed.

#![allow(clippy::result_large_err, reason = "a recording is read once, and has one error at most")]

mod ftrace;
mod history;
#[cfg(test)]
mod tests;
mod text;

use commonhold_contract::Diagnostic;

use crate::Time;

pub use history::{Event, History, Impossible, SwitchReason, Transfer, Waits};

/// The recorded activity of the tasks in units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// The time from the first event to the last, in ns.
    pub length_ns: Time,
    /// The tasks: first those that existed when the recording began, in the order of the text, then the
    /// others by arrival.
    pub tasks: Vec<Recorded>,
    /// Tasks that are in no unit, such as the kernel's threads and daemons. Their unit is empty.
    pub others: Vec<Recorded>,
    /// The number of sleeps that ended without a wake-up event, since a signal was pending. Such a task
    /// counts as awake.
    pub unwoken: u64,
}

/// The recorded activity of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Its number among all tasks of the recording, by arrival.
    pub serial: u32,
    /// The task that forked it, by serial number; `None` if it existed before the recording.
    pub parent: Option<u32>,
    /// Its thread ID. Several tasks of a recording may have had the same ID, one after another.
    pub pid: u32,
    /// The path of its unit.
    pub unit: String,
    /// When the task began, in ns from the beginning of the recording; 0 if it existed before.
    pub start_ns: Time,
    /// Its bursts, sleeps and transfers, in order.
    pub steps: Vec<Step>,
    /// How long it waited for a CPU.
    pub waits: Waits,
    /// Its state when the recording ended.
    pub end: End,
}

/// A step of a task, in ns. Each is at least 1000 ns, the resolution of the kernel's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A CPU burst: the CPU time between two sleeps, possibly interrupted by waits for a CPU.
    Cpu(Time),
    /// A sleep.
    Sleep(Time),
    /// A sleep from which another task woke it.
    Wait {
        /// How long the task slept.
        slept_ns: Time,
        /// The other task's serial number.
        by: u32,
    },
    /// It woke another task from its sleep, which is a [`Step::Wait`].
    Wake {
        /// The other task's serial number.
        task: u32,
    },
    /// The task forked another.
    Fork {
        /// The other task's serial number.
        child: u32,
    },
    /// Requests to a disk, for which it waited.
    Transfer {
        /// The disk's number.
        device: u32,
        /// The sum of the requests' lengths, in bytes.
        bytes: u64,
        /// Whether they write.
        write: bool,
        /// Whether the first of them did not follow the task's request before it.
        random: bool,
        /// How long the task waited.
        took_ns: Time,
    },
}

/// A task's state when the recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The task had ended.
    Gone,
    /// The task was runnable.
    Computing,
    /// The task slept.
    Asleep {
        /// For how long until then.
        slept_ns: Time,
    },
}

impl Recorded {
    /// The task's CPU time in ns.
    pub fn used_ns(&self) -> Time {
        let bursts = self.steps.iter().map(|step| if let Step::Cpu(ns) = step { *ns } else { 0 });
        bursts.fold(0, Time::saturating_add)
    }
}

/// Reads a recording. The error is the first mistake, with its position in the text.
pub fn read(text: &str) -> Result<Recording, Diagnostic> {
    ftrace::recording(text)
}

impl Recording {
    /// CPU time of tasks that are in no unit, in ns.
    pub fn others_ns(&self) -> Time {
        self.others.iter().map(Recorded::used_ns).fold(0, Time::saturating_add)
    }

    /// The recording as the text of a `workload.toml`. `source` becomes the workload's `source`: where the
    /// recording is from.
    pub fn workload(&self, source: &str) -> String {
        text::workload(self, source)
    }
}
