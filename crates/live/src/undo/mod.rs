//! Undoing what a journal says was done.
//!
//! Algorithm: the last entry comes first. Processes that were stopped continue. Threads get back the CPUs and I/O
//! priorities they had, and processes their `oom_score_adj`. Control groups are emptied and removed. Properties of systemd
//! units are set back, and their files are taken away. Members fork
//! while this goes on, and a child has the affinity and priority of a parent that was not restored yet. So everything
//! is looked at again until a look finds nothing to do.
//!
//! Properties: idempotent.
//! - A thread is only touched while it has a mask, or a priority, that the daemon gave. One that its owner chose
//!   meanwhile stays.
//! - A process is only continued while it is stopped and the journal says that the daemon stopped it. A process that a
//!   user stopped stays stopped.
//! - A process is only moved while it is in a control group that the daemon made.

mod bus;
pub mod caretaker;
pub mod entered;
mod groups;
mod inherited;
pub mod journal;
mod properties;
pub mod tickets;
pub(crate) mod way_back;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use rustix::process::Signal;

use crate::host::signal;
use crate::observe::process::{ProcFs, ProcessKey, State, is_now};
use crate::undo::journal::Entry;

/// What was undone.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Undone {
    /// Threads that may run where they could before.
    pub threads: u32,
    /// Threads with the I/O priority that they had.
    #[serde(default)]
    pub priorities: u32,
    /// Processes with the `oom_score_adj` that they had.
    #[serde(default)]
    pub oom_scores: u32,
    /// Processes that were stopped and run again.
    pub continued: u32,
    /// Processes back in the control group they came from.
    pub moved: u32,
    /// Control groups removed.
    pub removed: u32,
    /// File systems that are mounted no more.
    #[serde(default)]
    pub unmounted: u32,
    /// Files with their former content again.
    pub knobs: u32,
    /// Properties of systemd units that are as they were.
    #[serde(default)]
    pub properties: u32,
    /// What is not as it was before although nothing failed: a setting that another program made meanwhile, a process whose
    /// control group is gone.
    #[serde(default)]
    pub notices: Vec<String>,
    /// What could not be undone: object, reason and what to do.
    pub problems: Vec<String>,
}

impl Undone {
    /// Whether there was nothing to undo.
    pub fn is_empty(&self) -> bool {
        *self == Undone::default()
    }
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.threads, "thread unpinned", "threads unpinned"),
            (self.priorities, "I/O priority restored", "I/O priorities restored"),
            (self.oom_scores, "oom_score_adj restored", "oom_score_adj restored"),
            (self.continued, "process continued", "processes continued"),
            (self.moved, "process moved back", "processes moved back"),
            (self.removed, "control group removed", "control groups removed"),
            (self.unmounted, "file system unmounted", "file systems unmounted"),
            (self.knobs, "file restored", "files restored"),
            (self.properties, "property of systemd's restored", "properties of systemd's restored"),
        ];
        let mut parts = counts.iter().filter(|(count, ..)| *count > 0).peekable();
        if parts.peek().is_none() {
            return f.write_str("nothing to undo");
        }
        f.write_str("undone: ")?;
        for (i, (count, one, many)) in parts.enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {}", if *count == 1 { one } else { many })?;
        }
        Ok(())
    }
}

/// Undoes a journal's entries. `proc` is where the procfs is mounted.
pub fn undo(entries: &[Entry], proc: &Path) -> Undone {
    undo_visibly(entries, proc, &mut || ())
}

/// The same, for those who wait: calls `progress` whenever something more was undone.
pub(crate) fn undo_visibly(entries: &[Entry], proc: &Path, progress: &mut dyn FnMut()) -> Undone {
    let mut undone = Undone::default();
    if entries.is_empty() {
        return undone;
    }
    let mut procfs = match ProcFs::open(proc) {
        Ok(procfs) => procfs,
        Err(err) => {
            undone.problems.push(format!("nothing can be undone: {err}"));
            return undone;
        }
    };
    // Stopped processes first: who waits for a person at a terminal should not wait for the rest.
    continue_stopped(entries, &mut procfs, &mut undone);
    progress();
    // Before Linux 6.2 the way home overwrites an affinity once more: so affinities after the groups.
    // What an administrator has set by way of systemd is not written over in the kernel's files.
    let properties = properties::restore(entries, &mut undone, progress);
    let is_anothers = |entry: &&Entry| match entry {
        Entry::Knob { path, .. } => properties.is_anothers(path),
        _ => false,
    };
    let ours: Vec<Entry> = entries.iter().filter(|entry| !is_anothers(entry)).cloned().collect();
    groups::restore(&ours, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::Affinity>(entries, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::Priority>(entries, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::OomScore>(entries, &mut procfs, &mut undone, progress);
    bus::restore(entries, Path::new("/"), &mut undone);
    properties.finish(&mut undone);
    undone
}

fn continue_stopped(entries: &[Entry], procfs: &mut ProcFs, undone: &mut Undone) {
    let mut stopped: BTreeSet<ProcessKey> = BTreeSet::new();
    for entry in entries {
        match entry {
            Entry::Stopped { process } => stopped.insert(*process),
            Entry::Continued { process } => stopped.remove(process),
            _ => false,
        };
    }
    for key in stopped.into_iter().rev() {
        // A signal sent to a process that is deep in the kernel stops it only later: SIGCONT takes it back all the same,
        // and does nothing to a process that runs.
        let wanted = || is_now(procfs, key, |stat| stat.state != State::Ended);
        match signal::send(key.pid, Signal::CONT, wanted) {
            Ok(sent) => undone.continued += u32::from(sent),
            Err(err) => undone.problems.push(format!(
                "process {}: cannot continue: {err}; continue it by hand: kill -CONT {}",
                key.pid, key.pid
            )),
        }
    }
}
