//! Undoing what a journal says was done.
//!
//! Algorithm: the last entry comes first. Processes that were stopped continue. Threads get back the CPUs and I/O
//! priorities they had, and processes their `oom_score_adj`. Control groups are emptied and removed. Properties of systemd
//! units are set back, and their files are taken away. The autogroup of the daemon's session gets its nice value back. Members fork
//! while this goes on, and a child has the affinity and priority of a parent that was not restored yet. So everything
//! is looked at again until a look finds nothing to do.
//!
//! Properties: idempotent.
//! - A thread is only touched while it has a mask, or a priority, that the daemon gave. One that its owner chose
//!   meanwhile stays.
//! - A process is only continued while it is stopped and the journal says that the daemon stopped it, or that it may have
//!   stopped itself for that ([`followers`]). A process that a user stopped stays stopped.
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
mod properties;
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
    /// Autogroups with the nice value that they had.
    #[serde(default)]
    pub autogroups: u32,
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
    // What systemd says is not written over in the kernel's files.
    let properties = properties::restore(entries, &mut undone, progress);
    let is_systemds = |entry: &&Entry| match entry {
        Entry::Knob { path, .. } => properties.is_systemds(path),
        _ => false,
    };
    let ours: Vec<Entry> = entries.iter().filter(|entry| !is_systemds(entry)).cloned().collect();
    groups::restore(&ours, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::Affinity>(entries, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::Priority>(entries, &mut procfs, &mut undone, progress);
    inherited::restore::<inherited::OomScore>(entries, &mut procfs, &mut undone, progress);
    bus::restore(entries, Path::new("/"), &mut undone);
    autogroup::restore(entries, &mut procfs, &mut undone);
    properties.finish(&mut undone, progress);
    followers::settle(entries, &stopped_ones(entries), &mut procfs, &mut undone);
    undone
}

/// Continues what is stopped, by signals and by the freezer, and undoes nothing else: the daemon is there, and makes no turn.
/// `tell` is called once that is done, and then with what was found of those that stopped themselves, which takes longer.
fn let_go(entries: &[Entry], proc: &Path, tell: &mut dyn FnMut(&Undone)) {
    let mut undone = Undone::default();
    match ProcFs::open(proc) {
        Ok(mut procfs) => {
            continue_stopped(entries, &mut procfs, &mut undone);
            groups::thaw(entries, &mut undone);
            tell(&undone);
            let mut late = Undone::default();
            followers::settle(entries, &BTreeSet::new(), &mut procfs, &mut late);
            tell(&late);
        }
        Err(err) => {
            undone.problems.push(format!("nothing can be continued: {err}"));
            tell(&undone);
        }
    }
}

/// Continues whom the journal says to be stopped, and then who stopped themselves for that: they would stop again while they see
/// a stopped child.
fn continue_stopped(entries: &[Entry], procfs: &mut ProcFs, undone: &mut Undone) {
    let followed = followers::stopped(entries, procfs, undone);
    // Children before their parents, here too.
    let mut stopped: Vec<ProcessKey> = stopped_ones(entries).into_iter().collect();
    stopped.sort_unstable_by_key(|key| std::cmp::Reverse((key.start, key.pid)));
    for key in stopped {
        // A signal sent to a process that is deep in the kernel stops it only later: SIGCONT takes it back all the same,
        // and does nothing to a process that runs.
        continue_one(key, procfs, undone, |stat| stat.state != ThreadState::Ended);
    }
    for key in followed {
        continue_one(key, procfs, undone, Stat::is_stopped_by_sigstop);
    }
}

/// Processes that the daemon stopped and did not continue.
fn stopped_ones(entries: &[Entry]) -> BTreeSet<ProcessKey> {
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

fn continue_one(key: ProcessKey, procfs: &mut ProcFs, undone: &mut Undone, wanted: fn(&Stat) -> bool) {
    match signal::send(key.pid, Signal::CONT, || is_now(procfs, key, wanted)) {
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

    /// A control group of version 2 for this test; `None` where the machine has none, or this user may not make one.
    fn a_group() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
        let group = Path::new(mount.split(' ').nth(1)?).join(format!("thawed-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        Some(group)
    }

    /// What waits for its turn in a frozen group goes on if the daemon makes none. The group stays.
    #[test]
    fn what_is_frozen_goes_on() {
        let Some(group) = a_group() else {
            println!("SKIPPED: no control group of version 2 can be made here");
            return;
        };
        let mut member = Command::new("sleep").arg("1000").spawn().unwrap();
        fs::write(group.join("cgroup.procs"), member.id().to_string()).unwrap();
        fs::write(group.join("cgroup.freeze"), "1").unwrap();
        let gone = Entry::Created { cgroup: group.join("gone") };
        let mut told = Vec::new();
        let entries = [Entry::Created { cgroup: group.clone() }, gone];
        let_go(&entries, Path::new("/proc"), &mut |undone| told.push(undone.clone()));
        let undone = told.remove(0);
        let frozen = fs::read_to_string(group.join("cgroup.freeze"));
        member.kill().unwrap();
        member.wait().unwrap();
        fs::remove_dir(&group).unwrap();
        assert_eq!((frozen.unwrap().trim(), undone), ("0", Undone { knobs: 1, ..Undone::default() }));
    }
}
