//! Empties and removes the control groups that the daemon made, and restores the files it wrote.
//!
//! A setting that another program changed meanwhile is left alone: a device's line that differs from the
//! daemon's stays, and a controller that another control group uses stays enabled. Both are notices, not
//! problems.
//!
//! A scope belongs to systemd, which removes the scope when its last process ends. So only the processes
//! leave: each goes back to its original group, if that still exists.
//!
//! Algorithm: entries are undone in reverse order, and failures are retried for [`PATIENCE`], because entries
//! depend on one another. A group cannot be removed until its last process has left, and a process cannot go
//! back to a group whose controllers are still enabled for the group's children.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::Undone;
use crate::host;
use crate::observe::knob::processes;
use crate::observe::process::{ProcFs, ProcessKey, is_alive};
use crate::undo::journal::{Entry, compacted, first_word};
use crate::undo::way_back::{Elsewhere, Sent, WayBack, enter, origin_of, residents, send_out_of_scope};

/// How long failures are retried after the last success. The time is counted from the last success, so that
/// undoing may take as long as it makes progress.
const PATIENCE: Duration = Duration::from_millis(700);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Undoes the entries about control groups and files. Calls `progress` after each success.
pub(super) fn restore(
    entries: &[Entry],
    procfs: &mut ProcFs,
    undone: &mut Undone,
    progress: &mut dyn FnMut(),
) {
    let mut work = Work { procfs, undone, elsewhere: Elsewhere::default(), insist: false };
    Tree::from_entries(entries).restore(&mut work, progress);
    let notices = work.elsewhere.notices();
    undone.notices.extend(notices);
}

/// Thaws the daemon's frozen control groups. The groups stay.
pub(super) fn thaw(entries: &[Entry], undone: &mut Undone) {
    let groups: BTreeSet<&PathBuf> = entries.iter().filter_map(created).collect();
    for group in groups {
        let file = group.join("cgroup.freeze");
        // A removed group, or one that systemd made, has nothing to thaw.
        if host::read_to_string(&file).is_ok_and(|text| text.trim_end() == "1") {
            match host::write(&file, "0") {
                Ok(()) => undone.knobs += 1,
                Err(err) => {
                    let (path, remedy) = (file.display(), "write 0 to it");
                    undone.problems.push(format!("{path}: cannot write 0: {err}; {remedy} by hand"));
                }
            }
        }
    }
}

/// The state of undoing.
struct Work<'a> {
    procfs: &'a mut ProcFs,
    undone: &'a mut Undone,
    elsewhere: Elsewhere,
    /// Whether a process that its original group refuses goes into a leaf of that group. Set when nothing has
    /// succeeded for [`PATIENCE`].
    insist: bool,
}

/// What the journal records about control groups.
struct Tree {
    /// The entries to undo, compacted, in the journal's order.
    entries: Vec<Entry>,
    /// The groups that the daemon made ("our groups" below).
    created: BTreeSet<PathBuf>,
    /// The original group of each process that the daemon moved.
    origins: BTreeMap<ProcessKey, PathBuf>,
}

impl Tree {
    /// Undoes all entries, in rounds: each round retries what failed in the round before. Gives up, and
    /// reports the failures as problems, when nothing has succeeded for [`PATIENCE`], and again after
    /// `insist` is set.
    fn restore(&self, work: &mut Work<'_>, progress: &mut dyn FnMut()) {
        let mut pending: Vec<&Entry> = self.entries.iter().rev().collect();
        let mut last_success = Instant::now();
        while !pending.is_empty() {
            let mut failed = Vec::new();
            let processes_inside = self.processes_in_our_groups();
            for entry in pending {
                match self.undo_one(entry, &processes_inside, work) {
                    Ok(()) => {
                        last_success = Instant::now();
                        progress();
                    }
                    Err(err) => failed.push((entry, err)),
                }
            }
            if !failed.is_empty() && last_success.elapsed() > PATIENCE {
                // EBUSY: an original group takes no process while controllers are enabled for its children.
                // With `insist`, the process goes into a leaf of that group.
                let is_busy = failed.iter().any(|(_, err)| err.raw_os_error() == Some(libc::EBUSY));
                if work.insist || !is_busy {
                    work.undone.problems.extend(failed.iter().map(|(entry, err)| problem_of(entry, err)));
                    return;
                }
                work.insist = true;
            }
            if !failed.is_empty() {
                thread::sleep(PAUSE);
            }
            pending = failed.into_iter().map(|(entry, _)| entry).collect();
        }
    }

    fn from_entries(entries: &[Entry]) -> Tree {
        let created: BTreeSet<PathBuf> = entries.iter().filter_map(created).cloned().collect();
        let scopes: BTreeSet<PathBuf> = entries.iter().filter_map(scope).cloned().collect();
        let is_ours =
            |path: &Path| path.ancestors().any(|path| created.contains(path) || scopes.contains(path));
        let relevant = entries.iter().filter(|entry| match entry {
            // A move between two of our groups does not tell where a process came from.
            Entry::Moved { from, .. } => !is_ours(from),
            Entry::Created { .. }
            | Entry::Scope { .. }
            | Entry::ScopeEnded { .. }
            | Entry::Knob { .. }
            | Entry::KnobReleased { .. }
            | Entry::Line { .. } => true,
            _ => false,
        });
        let entries = compacted(&relevant.cloned().collect::<Vec<_>>(), |_| true);
        let origins = entries.iter().filter_map(origin).map(|(key, from)| (key, from.clone())).collect();
        Tree { entries, created, origins }
    }

    /// Undoes one entry. `processes_inside` has the processes that were in our groups when the round began;
    /// other processes are not moved here. Processes that were born in our groups since then have no entry:
    /// [`Tree::remove`] moves them.
    fn undo_one(
        &self,
        entry: &Entry,
        processes_inside: &BTreeSet<u32>,
        work: &mut Work<'_>,
    ) -> io::Result<()> {
        match entry {
            Entry::Moved { process, from } => {
                if processes_inside.contains(&process.pid)
                    && is_alive(work.procfs, *process).map_err(io::Error::other)?
                {
                    work.undone.moved += u32::from(self.send(*process, Some(from), work)?);
                }
                Ok(())
            }
            Entry::Created { cgroup } => self.remove(cgroup, work),
            Entry::Scope { cgroup } => self.leave_scope(cgroup, work),
            Entry::Knob { path, original } if is_subtree_control(path) => {
                self.disable_controllers(path, original, work.undone)
            }
            Entry::Knob { path, original } => {
                work.undone.knobs += u32::from(write_back(path, original)?);
                Ok(())
            }
            Entry::Line { path, original, given } => write_line_back(path, original, given, work.undone),
            _ => Ok(()),
        }
    }

    /// The numbers of the processes in our groups.
    fn processes_in_our_groups(&self) -> BTreeSet<u32> {
        self.created.iter().flat_map(|group| processes(group).unwrap_or_default()).collect()
    }

    /// Sends each process that is in a scope, or in a group below the scope, back to its original group, if
    /// that group exists.
    fn leave_scope(&self, scope: &Path, work: &mut Work<'_>) -> io::Result<()> {
        for child in children(scope) {
            self.leave_scope(&child, work)?;
        }
        // Repeated until no new process is found, because the processes may fork meanwhile.
        let mut handled = BTreeSet::new();
        loop {
            let mut remaining = residents(work.procfs, scope).unwrap_or_default();
            remaining.retain(|key| handled.insert(*key));
            if remaining.is_empty() {
                break;
            }
            for key in remaining {
                let origin = origin_of(work.procfs, key.pid, &self.origins);
                let sent = send_out_of_scope(work.procfs, key, origin.as_deref())?;
                work.undone.moved += u32::from(sent);
            }
        }
        Ok(())
    }

    /// Removes a group of ours, after removing all groups below it, including those that others made, and
    /// moving the group's processes out.
    fn remove(&self, group: &Path, work: &mut Work<'_>) -> io::Result<()> {
        if !host::is_there(group)? {
            return Ok(());
        }
        for child in host::list(group)?.iter().filter(|child| child.is_dir) {
            self.remove(&child.path, work)?;
        }
        for key in residents(work.procfs, group).unwrap_or_default() {
            work.undone.moved += u32::from(self.move_home(key, group, work)?);
        }
        match host::remove_dir(group) {
            Ok(()) => work.undone.removed += 1,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
        Ok(())
    }

    /// Moves a process out of a group of ours. Returns whether the process has left our groups.
    ///
    /// If the original group was delegated to the daemon, it refuses the process while its controllers are
    /// enabled for our groups in it. The process then waits in another of our groups there, which is emptied
    /// later.
    fn move_home(&self, key: ProcessKey, group: &Path, work: &mut Work<'_>) -> io::Result<bool> {
        let origin = origin_of(work.procfs, key.pid, &self.origins);
        let home = origin.as_deref().or(self.enclosing_group());
        let is_sibling = |leaf: &&PathBuf| leaf.parent() == home && !group.starts_with(leaf);
        match (self.send(key, origin.as_deref(), work), self.created.iter().find(is_sibling)) {
            (Err(err), Some(leaf)) if err.raw_os_error() == Some(libc::EBUSY) => {
                enter(work.procfs, key, leaf).map(|_| false)
            }
            (result, _) => result,
        }
    }

    /// Sends a process back to its original group, or to the next best group ([`way_back`](super::way_back)).
    /// False if the process has ended.
    fn send(&self, key: ProcessKey, origin: Option<&Path>, work: &mut Work<'_>) -> io::Result<bool> {
        let (Some(ours), Some(last)) = (self.created.first(), self.enclosing_group()) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the journal lists no control group made by commonhold",
            ));
        };
        match (WayBack { last, ours }).send(work.procfs, key, origin, work.insist)? {
            Sent::Gone => Ok(false),
            Sent::Home => Ok(true),
            Sent::Elsewhere(to) => {
                work.elsewhere.note(work.procfs, key.pid, origin, to);
                Ok(true)
            }
        }
    }

    /// The group in which our groups were made.
    fn enclosing_group(&self) -> Option<&Path> {
        self.created.first()?.parent()
    }

    /// Disables the controllers that this program enabled for a group's children, except for those that a
    /// child of another program uses now. `file` is the group's `cgroup.subtree_control`, and `original` the
    /// file's content before.
    fn disable_controllers(&self, file: &Path, original: &str, undone: &mut Undone) -> io::Result<()> {
        let exists = host::is_there(file)?;
        let Some(group) = file.parent().filter(|_| exists) else { return Ok(()) };
        let current = host::read_to_string(file)?;
        let enabled_by_us: Vec<&str> = current
            .split_whitespace()
            .filter(|name| !original.split_whitespace().any(|former| former == *name))
            // This program never enables other controllers, such as `pids`: another program did.
            .filter(|name| DEFAULTS.iter().any(|(controller, _)| controller == name))
            .collect();
        let is_ours = |child: &PathBuf| self.created.contains(child);
        let foreign_children: Vec<PathBuf> = children(group).filter(|child| !is_ours(child)).collect();
        let mut changed = false;
        for name in enabled_by_us {
            let uses_controller = |child: &&PathBuf| uses(child, name);
            if let Some(other) = foreign_children.iter().find(uses_controller) {
                let (group, other) = (group.display(), other.display());
                let notice = format!("{group}: the {name} controller stays enabled, since {other} uses it");
                // Already reported if this entry is being retried for another controller.
                if !undone.notices.contains(&notice) {
                    undone.notices.push(notice);
                }
                continue;
            }
            match host::overwrite(file, &format!("-{name}")) {
                Ok(()) => changed = true,
                Err(err) if is_gone(&err) => {}
                Err(err) => return Err(err),
            }
        }
        undone.knobs += u32::from(changed);
        Ok(())
    }
}

/// Whether a file lists the controllers that a group enables for its children.
fn is_subtree_control(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "cgroup.subtree_control")
}

/// The groups directly below a group; empty if the group is gone or cannot be read.
fn children(group: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = host::list(group).unwrap_or_default().into_iter();
    entries.filter(|entry| entry.is_dir).map(|entry| entry.path)
}

/// The files of each controller that this program may enable, each with the content that the kernel shows by
/// default.
const DEFAULTS: [(&str, &[(&str, &str)]); 4] = [
    (
        "cpu",
        &[
            ("cpu.weight", "100"),
            ("cpu.max", "max"),
            ("cpu.max.burst", "0"),
            ("cpu.idle", "0"),
            ("cpu.uclamp.min", "0.00"),
            ("cpu.uclamp.max", "max"),
        ],
    ),
    ("cpuset", &[("cpuset.cpus", ""), ("cpuset.mems", ""), ("cpuset.cpus.partition", "member")]),
    (
        "io",
        &[
            ("io.weight", "default 100"),
            ("io.bfq.weight", "default 100"),
            ("io.max", ""),
            ("io.prio.class", "no-change"),
            ("io.latency", ""),
        ],
    ),
    (
        "memory",
        &[
            ("memory.min", "0"),
            ("memory.low", "0"),
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("memory.swap.high", "max"),
            ("memory.swap.max", "max"),
            ("memory.zswap.max", "max"),
            ("memory.zswap.writeback", "1"),
            ("memory.oom.group", "0"),
        ],
    ),
];

/// Whether a group uses a controller: it enables the controller for its children, or one of the controller's
/// files in the group is not at its default.
fn uses(group: &Path, controller: &str) -> bool {
    let read = |file: &str| host::read_to_string(&group.join(file)).ok();
    let enabled = read("cgroup.subtree_control").unwrap_or_default();
    let files = DEFAULTS.iter().filter(|(name, _)| *name == controller).flat_map(|(_, files)| *files);
    // cpu.max has a second word, the period, as in `max 100000`, which does not count.
    let is_set = |(file, default): &(&str, &str)| {
        read(file).is_some_and(|text| {
            let text = text.trim();
            let first_word_counts = *file == "cpu.max";
            if first_word_counts { first_word(text) != *default } else { text != *default }
        })
    };
    enabled.split_whitespace().any(|name| name == controller) || files.copied().any(|file| is_set(&file))
}

fn created(entry: &Entry) -> Option<&PathBuf> {
    match entry {
        Entry::Created { cgroup } => Some(cgroup),
        _ => None,
    }
}

fn scope(entry: &Entry) -> Option<&PathBuf> {
    match entry {
        Entry::Scope { cgroup } => Some(cgroup),
        _ => None,
    }
}

fn origin(entry: &Entry) -> Option<(ProcessKey, &PathBuf)> {
    match entry {
        Entry::Moved { process, from } => Some((*process, from)),
        _ => None,
    }
}

/// Whether an error says that a file, or the device it is about, no longer exists.
fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || matches!(err.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

/// Restores the line of one device in a file with a line per device. Leaves the line alone if it is already
/// restored, if the file or the device is gone, or if another program has changed the line, so that it
/// differs from `given`, the line that the daemon wrote. The kernel may show more words than were written, so
/// a line counts as restored if it has all words of `original`.
fn write_line_back(path: &Path, original: &str, given: &str, undone: &mut Undone) -> io::Result<()> {
    let current = match host::read_to_string(path) {
        Ok(current) => current,
        Err(err) if is_gone(&err) => return Ok(()),
        Err(err) => return Err(err),
    };
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<BTreeSet<String>>();
    let line = current.lines().find(|line| first_word(line) == first_word(original)).map(words);
    if line.as_ref().is_some_and(|line| words(original).is_subset(line)) {
        return Ok(());
    }
    if line.is_some_and(|line| !words(given).is_subset(&line)) {
        let device = first_word(original);
        let file = path.display();
        undone.notices.push(format!("{file}: the line of {device} stays: another program wrote it"));
        return Ok(());
    }
    match host::write(path, &format!("{original}\n")) {
        Err(err) if is_gone(&err) => {}
        written => {
            written?;
            undone.knobs += 1;
        }
    }
    Ok(())
}

/// Restores a file's content. False if the file is gone, or has the original content already.
fn write_back(path: &Path, original: &str) -> io::Result<bool> {
    let current = match host::read_to_string(path) {
        Ok(current) => current,
        Err(err) if is_gone(&err) => return Ok(false),
        Err(err) => return Err(err),
    };
    if current.trim() == original.trim() {
        return Ok(false);
    }
    // With a line break, even if the original is empty: the kernel ignores a write of zero bytes, so a CPU
    // list would not become empty.
    let text = format!("{}\n", original.trim_end());
    match host::overwrite(path, &text) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && path.ends_with("cpuset.cpus") => {
            host::empty_cpus(path)?;
        }
        written => written?,
    }
    Ok(true)
}

/// The problem to report for an entry that was not undone.
fn problem_of(entry: &Entry, err: &io::Error) -> String {
    match entry {
        Entry::Moved { process, from } => format!(
            "process {}: cannot move back to {}: {err}; move it by hand: echo {} > {}/cgroup.procs",
            process.pid,
            from.display(),
            process.pid,
            from.display()
        ),
        Entry::Scope { cgroup } => format!(
            "{}: cannot move its processes back to their original groups: {err}; they stay there",
            cgroup.display()
        ),
        Entry::Created { cgroup } => {
            format!("{}: cannot remove: {err}; end its processes and remove it: rmdir {0}", cgroup.display())
        }
        Entry::Knob { path, original } | Entry::Line { path, original, .. } => {
            format!("{}: cannot write back `{original}`: {err}; the file stays as it is", path.display())
        }
        _ => err.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    use crate::host::{Answer, Kind, tamper};

    /// This process and its unrecorded child are in a scope: both go back to the session. Another scope is
    /// gone. The processes of a third came from a session that is gone: they stay.
    #[test]
    fn processes_in_a_scope_go_back_or_stay() {
        let root = tempfile::tempdir().unwrap();
        let [session, scope, other] = ["session", "scope", "other"].map(|name| root.path().join(name));
        for dir in [&session, &scope, &other] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("cgroup.procs"), "").unwrap();
        }
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (own, born) = (std::process::id(), child.id());
        let mut procfs = ProcFs::open(Path::new("/proc")).unwrap();
        let process = procfs.stat(own).unwrap().unwrap().key;
        let say = |dir: &Path, text: &str| fs::write(dir.join("cgroup.procs"), text).unwrap();
        let reads = |dir: &Path| fs::read_to_string(dir.join("cgroup.procs")).unwrap().trim().to_owned();
        let came = |from: &Path, scope: &Path| {
            vec![
                Entry::Scope { cgroup: scope.to_owned() },
                Entry::Moved { process, from: from.to_owned() },
                Entry::Scope { cgroup: root.path().join("gone") },
            ]
        };
        say(&scope, &format!("{own}\n{born}\n"));
        let mut entries = came(&session, &scope);
        // A move between two scopes does not tell where a process came from.
        entries.extend(came(&scope, &other));
        let undone = undo(&entries);
        assert_eq!((undone.moved, undone.problems.as_slice()), (2, [].as_slice()));
        assert_eq!(reads(&session), born.to_string(), "a plain file has what was written last");
        assert!(scope.exists());

        let gone = root.path().join("session-that-ended");
        say(&session, "");
        let undone = undo(&came(&gone, &scope));
        assert_eq!((undone.moved, undone.problems.len(), undone.notices.len()), (0, 0, 0));
        assert_eq!(reads(&scope), format!("{own}\n{born}"));
        // systemd has ended it: it is not examined.
        let ended = Entry::ScopeEnded { cgroup: scope.clone() };
        let undone = undo(&[came(&session, &scope), vec![ended]].concat());
        assert_eq!((undone.moved, reads(&session)), (0, String::new()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A group that cannot be examined for a moment is not taken for gone.
    #[test]
    fn a_group_that_cannot_be_examined_is_not_taken_for_gone() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("group");
        fs::create_dir(&group).unwrap();
        let mut times = 1;
        let hook =
            tamper(move |access| match access.is(Kind::Look, "group") && std::mem::take(&mut times) == 1 {
                true => Answer::Refuse(libc::ENOMEM),
                false => Answer::GoOn,
            });
        let undone = undo(&[Entry::Created { cgroup: group.clone() }]);
        drop(hook);
        assert_eq!((undone.removed, undone.problems.as_slice()), (1, [].as_slice()));
        assert!(!group.exists());
    }

    /// The outcome of undoing these entries.
    fn undo(entries: &[Entry]) -> Undone {
        let mut undone = Undone::default();
        restore(entries, &mut ProcFs::open(Path::new("/proc")).unwrap(), &mut undone, &mut || ());
        undone
    }

    /// A group with four controllers enabled: io was enabled before, and pids by another program.
    fn controllers_enabled(dir: &Path) -> Vec<Entry> {
        let file = dir.join("cgroup.subtree_control");
        fs::write(&file, "cpu io memory pids\n").unwrap();
        vec![Entry::Knob { path: file, original: "io".to_owned() }]
    }

    #[test]
    fn enabled_controllers_are_disabled_again() {
        let dir = tempfile::tempdir().unwrap();
        let entries = controllers_enabled(dir.path());
        let undone = undo(&entries);
        assert_eq!((undone.knobs, undone.problems.len(), undone.notices.len()), (1, 0, 0));
        // A plain file keeps the last write; the kernel's takes one after the other.
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap(), "-memory");
    }

    #[test]
    fn a_controller_that_another_group_uses_by_now_stays() {
        let dir = tempfile::tempdir().unwrap();
        let entries = controllers_enabled(dir.path());
        let put = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        for group in ["system.slice", "user.slice"] {
            fs::create_dir(dir.path().join(group)).unwrap();
        }
        put("system.slice/cgroup.subtree_control", "memory pids\n");
        for (file, text) in [("cpu.weight", "50\n"), ("cpu.max", "max 100000\n"), ("memory.max", "max\n")] {
            put(&format!("user.slice/{file}"), text);
        }
        let undone = undo(&entries);
        assert_eq!((undone.knobs, undone.problems.len()), (0, 0), "{undone:?}");
        let base = dir.path().display();
        let stays = |name: &str, group: &str| {
            format!("{base}: the {name} controller stays enabled, since {base}/{group} uses it")
        };
        assert_eq!(undone.notices, [stays("cpu", "user.slice"), stays("memory", "system.slice")]);
        put("user.slice/cpu.weight", "100\n");
        fs::write(dir.path().join("cgroup.subtree_control"), "cpu io\n").unwrap();
        assert_eq!(undo(&entries).knobs, 1, "no weight is set any more");
    }

    #[test]
    fn a_device_that_another_program_set_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("io.cost.qos");
        let entry = |given: &str| Entry::Line {
            path: path.clone(),
            original: "8:0 enable=0".to_owned(),
            given: given.to_owned(),
        };
        fs::write(&path, "8:0 enable=1 ctrl=user rpct=50.00\n").unwrap();
        let undone = undo(&[entry("8:0 enable=1 ctrl=user rpct=95.00")]);
        assert_eq!((undone.knobs, undone.problems.len(), undone.notices.len()), (0, 0, 1));
        assert_eq!(undo(&[entry("8:0 enable=1 rpct=50.00")]).knobs, 1, "it is as this program wrote it");
    }

    #[test]
    fn a_files_first_recorded_content_is_restored() {
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

    /// Failures are retried however long the other entries take, and given up when nothing has succeeded for
    /// a while.
    #[test]
    fn patience_counts_from_the_last_success() {
        let dir = tempfile::tempdir().unwrap();
        let group = |n: u32| dir.path().join(format!("group{n}"));
        let blocked = group(9).join("file");
        for n in 0..10 {
            fs::create_dir(group(n)).unwrap();
        }
        // A plain directory that contains a file cannot be removed, just as a group with processes cannot.
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
        assert_eq!(undo(false), (0, 1, 9), "a lasting failure is given up, and reported");
    }

    #[test]
    fn a_devices_first_recorded_line_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("io.cost.qos");
        let entry = |original: &str| Entry::Line {
            path: path.clone(),
            original: original.to_owned(),
            given: String::new(),
        };
        let entries = [entry("8:0 enable=0 ctrl=auto"), entry("8:0 enable=1"), entry("8:16 enable=0")];
        // A plain file keeps what is written at its beginning; the kernel's takes it as the device's line.
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
