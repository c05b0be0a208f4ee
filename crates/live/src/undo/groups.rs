//! Emptying and removing the control groups that the daemon made, and restoring the files it wrote.
//!
//! The last entry comes first, and each is tried again for a while. A group is busy until the last of its processes is
//! out of it. And a process cannot go back to a group whose controllers are still enabled for its children.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::Undone;
use crate::journal::{Entry, ProcessKey, compacted, first_word};
use crate::observe::process::{ProcFs, is_alive};

/// How long what fails is tried again while nothing else succeeds: the more there is to undo, the longer that takes.
const PATIENCE: Duration = Duration::from_millis(700);

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn restore(
    entries: &[Entry],
    procfs: &mut ProcFs,
    undone: &mut Undone,
    progress: &mut dyn FnMut(),
) {
    let tree = Tree::of(entries);
    let mut pending: Vec<&Entry> = tree.entries.iter().rev().collect();
    let mut succeeded = Instant::now();
    while !pending.is_empty() {
        let mut failed = Vec::new();
        let inside = tree.inside();
        for entry in pending {
            match tree.undo_one(entry, &inside, procfs, undone) {
                Ok(()) => {
                    succeeded = Instant::now();
                    progress();
                }
                Err(err) => failed.push((entry, err)),
            }
        }
        if !failed.is_empty() && succeeded.elapsed() > PATIENCE {
            undone.problems.extend(failed.iter().map(|(entry, err)| describe(entry, err)));
            return;
        }
        if !failed.is_empty() {
            thread::sleep(PAUSE);
        }
        pending = failed.into_iter().map(|(entry, _)| entry).collect();
    }
}

/// What the journal says about control groups.
struct Tree {
    entries: Vec<Entry>,
    created: BTreeSet<PathBuf>,
    origins: BTreeMap<u32, PathBuf>,
}

impl Tree {
    fn of(entries: &[Entry]) -> Tree {
        let created: BTreeSet<PathBuf> = entries.iter().filter_map(created).cloned().collect();
        // From one of our groups to another is not where a process came from.
        let is_ours = |path: &Path| path.ancestors().any(|path| created.contains(path));
        let foreign = entries.iter().filter(|entry| match entry {
            Entry::Moved { from, .. } => !is_ours(from),
            Entry::Created { .. } | Entry::Knob { .. } | Entry::Line { .. } => true,
            _ => false,
        });
        let entries = compacted(&foreign.cloned().collect::<Vec<_>>(), |_| true);
        let origins = entries.iter().filter_map(origin).map(|(key, from)| (key.pid, from.clone())).collect();
        Tree { entries, created, origins }
    }

    /// `inside` are those who were in our groups when this round began; who was born there since is found in its group.
    fn undo_one(
        &self,
        entry: &Entry,
        inside: &BTreeSet<u32>,
        procfs: &mut ProcFs,
        undone: &mut Undone,
    ) -> io::Result<()> {
        match entry {
            Entry::Moved { process, from } => {
                if inside.contains(&process.pid) && is_alive(procfs, *process).map_err(io::Error::other)? {
                    undone.moved += u32::from(move_process(process.pid, from)?);
                }
                Ok(())
            }
            Entry::Created { cgroup } => self.remove(cgroup, procfs, undone),
            Entry::Knob { path, original } => {
                undone.knobs += u32::from(write_back(path, original)?);
                Ok(())
            }
            Entry::Line { path, original } => {
                undone.knobs += u32::from(write_line_back(path, original)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Who is in one of our groups.
    fn inside(&self) -> BTreeSet<u32> {
        self.created.iter().flat_map(|group| processes(group)).collect()
    }

    /// Moves out whoever is in a group, removes what others made below it, and then the group.
    fn remove(&self, group: &Path, procfs: &mut ProcFs, undone: &mut Undone) -> io::Result<()> {
        if !group.exists() {
            return Ok(());
        }
        for child in fs::read_dir(group)?.flatten().filter(|child| child.path().is_dir()) {
            self.remove(&child.path(), procfs, undone)?;
        }
        for pid in processes(group) {
            undone.moved += u32::from(self.move_home(pid, group, procfs)?);
        }
        match fs::remove_dir(group) {
            Ok(()) => undone.removed += 1,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
        Ok(())
    }

    /// Moves a process out of a group. Home may not take processes yet: in a delegated group its controllers are enabled
    /// for ours until those are gone. Then it waits in the leaf that was made beside them, whose turn comes later.
    fn move_home(&self, pid: u32, group: &Path, procfs: &mut ProcFs) -> io::Result<bool> {
        let home = self.home(pid, procfs);
        let beside = |leaf: &&PathBuf| leaf.parent() == Some(&home) && !group.starts_with(leaf);
        match (move_process(pid, &home), self.created.iter().find(beside)) {
            (Err(err), Some(leaf)) if err.raw_os_error() == Some(libc::EBUSY) => {
                move_process(pid, leaf).map(|_| false)
            }
            (result, _) => result,
        }
    }

    /// Where a process that the journal does not know should go: where its next known ancestor came from; else the group
    /// that ours were made in.
    fn home(&self, pid: u32, procfs: &mut ProcFs) -> PathBuf {
        let mut next = pid;
        // No line of descent is longer than there are process numbers to tell apart; usual ones have a dozen.
        for _ in 0..1000 {
            if let Some(origin) = self.origins.get(&next) {
                return origin.clone();
            }
            match procfs.stat(next) {
                Ok(Some(stat)) if stat.parent > 1 => next = stat.parent,
                _ => break,
            }
        }
        let top = self.created.first().and_then(|group| group.parent());
        top.map_or_else(|| PathBuf::from("/sys/fs/cgroup"), Path::to_owned)
    }
}

fn created(entry: &Entry) -> Option<&PathBuf> {
    match entry {
        Entry::Created { cgroup } => Some(cgroup),
        _ => None,
    }
}

fn origin(entry: &Entry) -> Option<(ProcessKey, &PathBuf)> {
    match entry {
        Entry::Moved { process, from } => Some((*process, from)),
        _ => None,
    }
}

fn processes(group: &Path) -> Vec<u32> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    listed.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Moves a process to a group, or to the nearest group above it that is still there. False if the process is gone.
fn move_process(pid: u32, to: &Path) -> io::Result<bool> {
    let Some(group) = to.ancestors().find(|group| group.join("cgroup.procs").exists()) else {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("no control group is left on {}", to.display()),
        ));
    };
    match fs::write(group.join("cgroup.procs"), pid.to_string()) {
        Ok(()) => Ok(true),
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(err) => Err(err),
    }
}

/// Whether an error says that a file, or the device that it is about, is not there any more.
fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || matches!(err.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

/// Writes a device's former line. False if it says so already, or has gone.
fn write_line_back(path: &Path, original: &str) -> io::Result<bool> {
    let now = match fs::read_to_string(path) {
        Ok(now) => now,
        Err(err) if is_gone(&err) => return Ok(false),
        Err(err) => return Err(err),
    };
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<BTreeSet<String>>();
    let line = now.lines().find(|line| first_word(line) == first_word(original)).map(words);
    if line.is_some_and(|line| words(original).is_subset(&line)) {
        return Ok(false);
    }
    match fs::OpenOptions::new().write(true).open(path)?.write_all(format!("{original}\n").as_bytes()) {
        Err(err) if is_gone(&err) => Ok(false),
        written => written.map(|()| true),
    }
}

/// Writes a file's former content. False if there is no such file or nothing to change.
fn write_back(path: &Path, original: &str) -> io::Result<bool> {
    let now = match fs::read_to_string(path) {
        Ok(now) => now,
        Err(err) if is_gone(&err) => return Ok(false),
        Err(err) => return Err(err),
    };
    if now.trim() == original.trim() {
        return Ok(false);
    }
    let text = if path.file_name().is_some_and(|name| name == "cgroup.subtree_control") {
        difference(now.trim(), original.trim())
    } else {
        // At least a line break: the kernel is not told of a write of nothing, which empties a list of CPUs.
        format!("{}\n", original.trim_end())
    };
    fs::write(path, text).map(|()| true)
}

/// `cgroup.subtree_control` takes changes and shows the result: `+cpu -io` leads from `io memory` to `cpu memory`.
fn difference(now: &str, original: &str) -> String {
    let (now, original): (BTreeSet<&str>, BTreeSet<&str>) =
        (now.split_whitespace().collect(), original.split_whitespace().collect());
    let less = now.difference(&original).map(|name| format!("-{name}"));
    let more = original.difference(&now).map(|name| format!("+{name}"));
    less.chain(more).collect::<Vec<_>>().join(" ")
}

fn describe(entry: &Entry, err: &io::Error) -> String {
    match entry {
        Entry::Moved { process, from } => format!(
            "process {}: cannot move back to {}: {err}; move it by hand: echo {} > {}/cgroup.procs",
            process.pid,
            from.display(),
            process.pid,
            from.display()
        ),
        Entry::Created { cgroup } => {
            format!(
                "{}: cannot remove: {err}; end what runs in it and remove it: rmdir {0}",
                cgroup.display()
            )
        }
        Entry::Knob { path, original } | Entry::Line { path, original } => {
            format!("{}: cannot write back `{original}`: {err}; write it by hand", path.display())
        }
        _ => err.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn subtree_control_takes_changes() {
        assert_eq!(difference("io memory", "cpu memory"), "-io +cpu");
        assert_eq!(difference("cpu cpuset", ""), "-cpu -cpuset");
    }

    #[test]
    fn a_file_gets_its_first_content_back() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, gone) = (dir.path().join("cpu.weight"), dir.path().join("gone"));
        fs::write(&kept, "300\n").unwrap();
        let knob = |path: &Path, original: &str| Entry::Knob {
            path: path.to_owned(),
            original: original.to_owned(),
        };
        let entries = [knob(&kept, "100"), knob(&kept, "200"), knob(&gone, "1")];
        for expected in [1, 0] {
            let mut undone = Undone::default();
            restore(&entries, &mut ProcFs::open(Path::new("/proc")).unwrap(), &mut undone, &mut || ());
            assert_eq!((undone.knobs, undone.problems.len()), (expected, 0));
            assert_eq!(fs::read_to_string(&kept).unwrap(), "100\n");
        }
    }

    /// What fails first is tried again however long the rest takes, and given up when nothing has succeeded for a while.
    #[test]
    fn patience_counts_from_the_last_success() {
        let dir = tempfile::tempdir().unwrap();
        let group = |n: u32| dir.path().join(format!("group{n}"));
        let blocked = group(9).join("file");
        for n in 0..10 {
            fs::create_dir(group(n)).unwrap();
        }
        // A plain directory with a file in it cannot be removed, as a group with processes cannot.
        fs::write(&blocked, "").unwrap();
        let entries: Vec<Entry> = (0..10).map(|n| Entry::Created { cgroup: group(n) }).collect();
        let undo = |free: bool| {
            let (mut undone, mut successes) = (Undone::default(), 0u32);
            restore(&entries, &mut ProcFs::open(Path::new("/proc")).unwrap(), &mut undone, &mut || {
                successes += 1;
                if successes < 5 {
                    thread::sleep(PATIENCE / 3);
                } else if free {
                    let _ = fs::remove_file(&blocked);
                }
            });
            (undone.removed, undone.problems.len(), successes)
        };
        assert_eq!(
            undo(true),
            (10, 0, 10),
            "it took longer than a failure's patience, and the first was tried again"
        );
        fs::create_dir(group(9)).unwrap();
        fs::write(&blocked, "").unwrap();
        assert_eq!(undo(false), (0, 1, 9), "what never succeeds is given up, and said");
    }

    #[test]
    fn a_device_gets_its_first_line_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("io.cost.qos");
        let entry = |original: &str| Entry::Line { path: path.clone(), original: original.to_owned() };
        let entries = [entry("8:0 enable=0 ctrl=auto"), entry("8:0 enable=1"), entry("8:16 enable=0")];
        // A plain file keeps what is written at its beginning; the kernel's own takes it as the line.
        fs::write(&path, "8:16 enable=0 ctrl=auto rpct=0.00\n8:0 enable=1 ctrl=user rpct=95.00\n").unwrap();
        let mut undone = Undone::default();
        restore(&entries, &mut ProcFs::open(Path::new("/proc")).unwrap(), &mut undone, &mut || ());
        assert_eq!((undone.knobs, undone.problems.len()), (1, 0));
        assert!(fs::read_to_string(&path).unwrap().starts_with("8:0 enable=0 ctrl=auto\n"));
        let mut undone = Undone::default();
        restore(&entries[..1], &mut ProcFs::open(Path::new("/proc")).unwrap(), &mut undone, &mut || ());
        assert_eq!(undone.knobs, 0, "nothing is written twice");
    }
}
