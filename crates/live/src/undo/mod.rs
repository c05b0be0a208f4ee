//! Undoes the changes that a journal records.
//!
//! Problem: when the daemon ends, for any reason, nothing may stay stopped, pinned or limited.
//!
//! Algorithm: one kind of change is undone after another, in the order that [`undo`] needs. Stopped processes
//! continue. Threads get back their original CPUs and I/O priorities, processes their `oom_score_adj`.
//! Control groups are emptied and removed. Properties of systemd units are restored and their drop-ins
//! removed. The autogroup of the daemon's session gets back its nice value. Members keep forking meanwhile,
//! and a child inherits the affinity and priority of a parent that is not restored yet. So passes over all
//! processes are repeated until a pass restores nothing.
//!
//! Properties: undoing is idempotent, and keeps what others changed.
//! - A thread's affinity or priority is only restored while it has a value that the daemon gave. A value that
//!   its owner chose meanwhile stays.
//! - A process is only continued if the journal says that the daemon stopped it, or that it may have stopped
//!   itself in response ([`followers`]). A process that a user stopped stays stopped.
//! - A process is only moved while it is in a control group that the daemon made.

mod autogroup;
mod bus;
pub mod caretaker;
pub mod entered;
mod followers;
mod groups;
mod inherited;
pub mod journal;
mod lifeline;
pub mod lock;
mod systemd;
pub mod tickets;
mod watch;
pub(crate) mod way_back;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use rustix::process::Signal;

use crate::host::signal;
use crate::observe::process::{ProcFs, ProcessKey, Stat, ThreadState, is_now};
use crate::undo::journal::Entry;

pub use lifeline::Beats;

/// The changes that were undone, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Undone {
    /// Threads whose affinity was restored.
    pub threads: u32,
    /// Threads whose I/O priority was restored.
    #[serde(default)]
    pub priorities: u32,
    /// Processes whose `oom_score_adj` was restored.
    #[serde(default)]
    pub oom_scores: u32,
    /// Stopped processes that were continued.
    pub continued: u32,
    /// Processes moved back to the control group they came from.
    pub moved: u32,
    /// Control groups removed.
    pub removed: u32,
    /// File systems unmounted.
    #[serde(default)]
    pub unmounted: u32,
    /// Files whose former content was restored.
    pub knobs: u32,
    /// Properties of systemd units that were restored.
    #[serde(default)]
    pub properties: u32,
    /// Autogroups whose nice value was restored.
    #[serde(default)]
    pub autogroups: u32,
    /// Notices of changes that were not undone although nothing failed: a setting that another program has
    /// changed meanwhile, a process whose original control group has been removed.
    #[serde(default)]
    pub notices: Vec<String>,
    /// Changes that could not be undone, each with object, reason and remedy.
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
            (self.properties, "systemd property restored", "systemd properties restored"),
            (self.autogroups, "autogroup restored", "autogroups restored"),
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

/// Undoes a journal's entries. `proc` is the mount point of procfs.
pub fn undo(entries: &[Entry], proc: &Path) -> Undone {
    undo_with_progress(entries, proc, &mut || ())
}

/// Like [`undo`], calling `progress` after each change that was undone, so that a waiting daemon does not
/// give up.
pub(crate) fn undo_with_progress(entries: &[Entry], proc: &Path, progress: &mut dyn FnMut()) -> Undone {
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
    // Stopped processes first: a user may be waiting for one at a terminal.
    continue_stopped(entries, &mut procfs, &mut undone);
    progress();
    // Properties before groups: where systemd has set a value, the kernel's file must not be overwritten.
    let properties = systemd::restore(entries, &mut undone, progress);
    let is_settled = |entry: &&Entry| match entry {
        Entry::Knob { path, .. } => properties.is_settled(path),
        _ => false,
    };
    let unsettled: Vec<Entry> = entries.iter().filter(|entry| !is_settled(entry)).cloned().collect();
    groups::restore(&unsettled, &mut procfs, &mut undone, progress);
    // Affinities after groups: before Linux 6.2, moving a process between groups overwrites its affinity.
    inherited::restore::<inherited::Affinity>(entries, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::Priority>(entries, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::OomScore>(entries, &mut procfs, &mut undone, progress);
    bus::restore(entries, Path::new("/"), &mut undone);
    autogroup::restore(entries, &mut procfs, &mut undone);
    // The slow stages last: a silent systemd is asked again, and followers may still stop themselves.
    properties.finish(&mut undone, progress);
    followers::continue_late_followers(entries, &stopped_processes(entries), &mut procfs, &mut undone);
    undone
}

/// Continues every stopped and frozen process, and undoes nothing else, because the daemon is alive and only
/// stalled. `report` is called twice: at once for the processes that the daemon stopped, and later for
/// followers, which take longer to find.
fn continue_all(entries: &[Entry], proc: &Path, report: &mut dyn FnMut(&Undone)) {
    let mut undone = Undone::default();
    match ProcFs::open(proc) {
        Ok(mut procfs) => {
            continue_stopped(entries, &mut procfs, &mut undone);
            groups::thaw(entries, &mut undone);
            report(&undone);
            let mut undone_later = Undone::default();
            followers::continue_late_followers(entries, &BTreeSet::new(), &mut procfs, &mut undone_later);
            report(&undone_later);
        }
        Err(err) => {
            undone.problems.push(format!("nothing can be continued: {err}"));
            report(&undone);
        }
    }
}

/// Continues the processes that the journal lists as stopped, and then their stopped followers. A follower
/// that was continued first would see a stopped child, and stop itself again.
fn continue_stopped(entries: &[Entry], procfs: &mut ProcFs, undone: &mut Undone) {
    let stopped_followers = followers::stopped(entries, procfs, undone);
    // Children before their parents.
    let mut stopped: Vec<ProcessKey> = stopped_processes(entries).into_iter().collect();
    stopped.sort_unstable_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
    for key in stopped {
        // Also if the process is not stopped yet: a stop signal to a process deep in the kernel takes effect
        // later. SIGCONT cancels the pending stop, and does nothing to a running process.
        continue_one(key, procfs, undone, |stat| stat.state != ThreadState::Ended);
    }
    for key in stopped_followers {
        continue_one(key, procfs, undone, Stat::is_stopped_by_sigstop);
    }
}

/// The processes that the daemon stopped and did not continue.
fn stopped_processes(entries: &[Entry]) -> BTreeSet<ProcessKey> {
    let mut stopped = BTreeSet::new();
    for entry in entries {
        match entry {
            Entry::Stopped { process } => stopped.insert(*process),
            Entry::Continued { process } => stopped.remove(process),
            _ => false,
        };
    }
    stopped
}

/// Sends SIGCONT to a process if `should_continue` holds for its present state. A process that reused the
/// number gets no signal.
fn continue_one(
    key: ProcessKey,
    procfs: &mut ProcFs,
    undone: &mut Undone,
    should_continue: fn(&Stat) -> bool,
) {
    match signal::send(key.pid, Signal::CONT, || is_now(procfs, key, should_continue)) {
        Ok(sent) => undone.continued += u32::from(sent),
        Err(err) => undone.problems.push(format!(
            "process {}: cannot continue: {err}; continue it by hand: kill -CONT {}",
            key.pid, key.pid
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    /// A version 2 control group for this test; `None` if the machine has none, or this user may not make
    /// one.
    fn a_group() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
        let group = Path::new(mount.split(' ').nth(1)?).join(format!("thawed-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        Some(group)
    }

    /// A member of a frozen group continues if the daemon stalls. The group stays.
    #[test]
    fn a_stalled_daemons_frozen_groups_are_thawed() {
        let Some(group) = a_group() else {
            println!("SKIPPED: no control group of version 2 can be made here");
            return;
        };
        let mut member = Command::new("sleep").arg("1000").spawn().unwrap();
        fs::write(group.join("cgroup.procs"), member.id().to_string()).unwrap();
        fs::write(group.join("cgroup.freeze"), "1").unwrap();
        let gone = Entry::Created { cgroup: group.join("gone") };
        let mut reports = Vec::new();
        let entries = [Entry::Created { cgroup: group.clone() }, gone];
        continue_all(&entries, Path::new("/proc"), &mut |undone| reports.push(undone.clone()));
        let undone = reports.remove(0);
        let frozen = fs::read_to_string(group.join("cgroup.freeze"));
        member.kill().unwrap();
        member.wait().unwrap();
        fs::remove_dir(&group).unwrap();
        assert_eq!((frozen.unwrap().trim(), undone), ("0", Undone { knobs: 1, ..Undone::default() }));
    }
}
