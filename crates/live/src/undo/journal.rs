//! The journal: how to undo each change, written before the change is made.
//!
//! Problem: a daemon that dies must leave nothing stopped, pinned or restricted behind.
//!
//! Algorithm: before the first change to a process or a file, an entry with its original state is appended to
//! a file on a memory file system. When the daemon ends, for any reason, the caretaker
//! ([`caretaker`](super::caretaker)), a process that exists only for this, reads the journal, undoes
//! everything, and removes the file. A regular shutdown takes the same path, so undoing is exercised every
//! time. If daemon and caretaker are killed together, the next start finds the journal and undoes it first.
//!
//! Properties: undoing is idempotent. An entry whose change was never made is harmless. A process is
//! identified by number and start time, so that a process that reused the number is never touched.

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_machine::CpuSet;

use crate::LiveError;
use crate::host::io_priority::IoPriority;
use crate::host::{self, File, trust};
use crate::observe::process::{ProcFs, ProcessKey, is_alive};
use crate::systemd::{Instance, Property, PropertyState, Value};
use crate::undo::lifeline::Beats;

/// A change to undo, or the end of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// The affinity that a thread's owner chose is about to be replaced.
    Affinity {
        /// The thread's process.
        process: ProcessKey,
        /// The thread.
        tid: u32,
        /// The original: the CPUs on which the thread could run.
        cpus: CpuSet,
    },
    /// A mask that the daemon gives to threads. If a member's descendant without an entry has this mask, it
    /// inherited the mask.
    AffinityGiven {
        /// The mask.
        cpus: CpuSet,
    },
    /// The I/O priority that a thread's owner chose is about to be replaced.
    Priority {
        /// The thread's process.
        process: ProcessKey,
        /// The thread.
        tid: u32,
        /// The original.
        priority: IoPriority,
    },
    /// An I/O priority that the daemon gives to threads.
    PriorityGiven {
        /// The priority.
        priority: IoPriority,
    },
    /// The `oom_score_adj` that a process's owner chose is about to be replaced.
    OomScore {
        /// The process.
        process: ProcessKey,
        /// The original.
        value: i16,
    },
    /// An `oom_score_adj` that the daemon gives to processes.
    OomScoreGiven {
        /// The value.
        value: i16,
    },
    /// The autogroup of the daemon's session is about to get another nice value. The entry identifies the
    /// autogroup and no process, because the daemon has ended when the change is undone.
    Autogroup {
        /// The autogroup's number, which is never reused.
        number: u64,
        /// The original nice value.
        nice: i32,
        /// The nice value that the daemon is about to set. A later value other than `given` was set by
        /// another program.
        given: i32,
    },
    /// A process is about to be stopped (SIGSTOP).
    Stopped {
        /// The process.
        process: ProcessKey,
    },
    /// A stopped process was continued. Cancels its [`Entry::Stopped`], so that a later stop by the process's
    /// own user is left alone.
    Continued {
        /// The process.
        process: ProcessKey,
    },
    /// A descendant of this running process is about to be stopped. When this process learns of the stop, it
    /// may stop itself, as su, sudo and script do, and must then be continued.
    MayFollow {
        /// The process.
        process: ProcessKey,
    },
    /// This process runs, and the daemon keeps no descendant of it stopped any more. Cancels its
    /// [`Entry::MayFollow`], so that a later stop by its user is left alone.
    NoLongerFollows {
        /// The process.
        process: ProcessKey,
    },
    /// A process is about to be moved to a control group of ours, or to a scope.
    Moved {
        /// The process.
        process: ProcessKey,
        /// The full path of the control group that the process was in.
        from: PathBuf,
    },
    /// A cgroup is about to be created.
    Created {
        /// Its directory.
        cgroup: PathBuf,
    },
    /// systemd is about to be asked for a scope.
    Scope {
        /// The directory of the control group that the scope will have.
        cgroup: PathBuf,
    },
    /// A scope has ended, or was not made. Cancels its [`Entry::Scope`].
    ScopeEnded {
        /// The directory of the control group that the scope had.
        cgroup: PathBuf,
    },
    /// A group of `resctrl` is about to be made.
    ResourceGroup {
        /// Its directory.
        dir: PathBuf,
    },
    /// `resctrl` is about to be mounted.
    Mounted {
        /// The mount point.
        point: PathBuf,
    },
    /// A file is about to be written.
    Knob {
        /// The file.
        path: PathBuf,
        /// The file's present content, to write back.
        original: String,
    },
    /// The file is gone, or belongs to another program again and needs no restoring. Cancels its
    /// [`Entry::Knob`] and [`Entry::Line`] entries.
    KnobReleased {
        /// The file.
        path: PathBuf,
    },
    /// One device's line in a file with one line per device is about to be written.
    Line {
        /// The file.
        path: PathBuf,
        /// The text to write to restore the line; it begins with the device.
        original: String,
        /// The text that is about to be written. A line that differs from `given` later was changed by
        /// another program. Empty in a journal of an older version.
        given: String,
    },
    /// A property of a systemd unit is about to be set.
    Property {
        /// The systemd instance.
        instance: Instance,
        /// The systemd unit.
        unit: String,
        /// The property, and its present value and drop-in.
        former: PropertyState,
    },
    /// A value that the daemon gives to a property. A value that was never given was set by an administrator.
    PropertyGiven {
        /// The systemd instance.
        instance: Instance,
        /// The systemd unit.
        unit: String,
        /// The property.
        property: Property,
        /// The value.
        value: Value,
    },
    /// A property was reverted, or its systemd unit is gone. Cancels the earlier entries about the property.
    PropertyReverted {
        /// The systemd instance.
        instance: Instance,
        /// The systemd unit.
        unit: String,
        /// The property.
        property: Property,
    },
}

/// The journal's file name in the daemon's directory.
pub const FILE_NAME: &str = "journal";

/// A journal larger than this is compacted: it is rewritten without superseded entries.
const COMPACT_BYTES: u64 = 1 << 20;

/// The largest journal that is written or read: some two million entries.
const BYTES_MAX: u64 = 256 << 20;

/// How long a new daemon waits for the caretaker of a dead daemon to finish undoing: a fixed time, plus a
/// time for each KiB of journal (about thirty control groups), up to a maximum that a user may be willing to
/// wait. Undoing usually takes less than a second.
const TAKE_OVER: Duration = Duration::from_secs(3);
const TAKE_OVER_PER_KIB: Duration = Duration::from_millis(500);
const TAKE_OVER_MAX: Duration = Duration::from_secs(60);

/// The open journal. Its writer holds the file's lock: the daemon, or the caretaker while it undoes.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// The file's size, up to the end of its last whole entry.
    bytes: u64,
    /// Whether a partial entry follows the whole entries, because truncating the file failed.
    torn: bool,
    /// The size at which the file is compacted next.
    compact_at: u64,
    /// The heartbeats to the caretaker, which do nothing if there is no caretaker.
    beats: Beats,
    /// The largest size to which the file may grow: [`BYTES_MAX`], or less in tests.
    bytes_max: u64,
}

impl Journal {
    /// Opens the journal in `dir`, creating the directory if needed. Also returns the entries that an earlier
    /// daemon left to undo. Pass them to [`undo`](crate::undo::undo) and then call [`Journal::clear`]; until
    /// then they stay in the file.
    ///
    /// The directory should be on a memory file system: nothing that the journal lists outlives a reboot.
    ///
    /// Errors, all of which leave the file unchanged: a running daemon holds the journal; another user owns
    /// the file or may write it, and so could have us undo anything; the file has another version, whose
    /// entries this program cannot undo; the file is no journal.
    pub fn create(dir: &Path) -> Result<(Journal, Vec<Entry>), LiveError> {
        let path = dir.join(FILE_NAME);
        host::make_dirs(dir).map_err(|err| failed(dir, "create", err))?;
        let mut file = open_locked(&path, take_over_after)?;
        let content = file.read_at_most(BYTES_MAX).map_err(|err| failed(&path, "read", err))?;
        let leftover = text::parse(&content).map_err(|err| failed(&path, "undo what it lists", err))?;
        let bytes = content.len() as u64;
        let mut journal = Journal {
            file,
            path,
            bytes,
            torn: false,
            compact_at: COMPACT_BYTES,
            bytes_max: BYTES_MAX,
            beats: Beats::default(),
        };
        if leftover.is_empty() {
            journal.clear()?;
        } else if content.last() != Some(&b'\n') {
            // The dead daemon's last line is torn: terminate it, so that the next entry starts on its own
            // line.
            journal.append(b"\n").map_err(|err| failed(&journal.path, "write", err))?;
        }
        Ok((journal, leftover))
    }

    /// Appends entries, in one write. The changes may be made only after this has returned, when the entries
    /// are in the file.
    ///
    /// Errors: `FileTooLarge` if the journal would exceed the size that a caretaker reads; otherwise the
    /// kernel's error.
    pub fn record(&mut self, entries: &[Entry]) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        if entries.iter().any(|entry| matches!(entry, Entry::Stopped { .. })) {
            self.beats.watch();
        }
        let mut lines = Vec::new();
        for entry in entries {
            text::write(&mut lines, entry);
        }
        let size_after = |journal: &Journal| journal.bytes.saturating_add(lines.len() as u64);
        if size_after(self) > self.bytes_max {
            self.compact()?;
            if size_after(self) > self.bytes_max {
                let why = format!("the journal would have more than {} MiB", self.bytes_max >> 20);
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
        }
        self.append(&lines)?;
        // The entries are written, so a failed compaction is no error; it is tried again at twice the size.
        if self.bytes >= self.compact_at && self.compact().is_err() {
            self.compact_at = self.bytes * 2;
        }
        Ok(())
    }

    /// Sets the heartbeats to send while the journal has stopped processes.
    pub fn beat_with(&mut self, beats: Beats) {
        self.beats = beats;
    }

    /// The heartbeats to the caretaker.
    pub(crate) fn beats(&self) -> &Beats {
        &self.beats
    }

    /// Removes all entries. Call this once they are undone.
    pub fn clear(&mut self) -> Result<(), LiveError> {
        let cleared = self.file.set_len(0).and_then(|()| {
            self.bytes = 0;
            self.append(text::HEADER)
        });
        cleared.map_err(|err| failed(&self.path, "clear", err))
    }

    /// The file's path, for the caretaker.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads every entry of a journal, without its lock. An incomplete last line is left out: its change was
    /// not made.
    pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
        text::parse(
            &trust::open_own(path, OpenOptions::new().read(true), BYTES_MAX)?.read_at_most(BYTES_MAX)?,
        )
    }

    /// Writes lines at the end of the file: all of them, or none after an error.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.bytes)?;
            self.torn = false;
        }
        let written = self.file.write_all(lines);
        match written {
            Ok(()) => self.bytes += lines.len() as u64,
            // A part of the lines may have been written (a full file system): truncate it, or the next entry
            // would continue it.
            Err(_) => self.torn = self.file.set_len(self.bytes).is_err(),
        }
        written
    }

    /// Rewrites the file without superseded entries and entries of ended processes. The next compaction is
    /// due at twice the new size, so that a journal of many living processes is not compacted again and
    /// again.
    fn compact(&mut self) -> io::Result<()> {
        let mut procfs = ProcFs::open(Path::new("/proc")).map_err(io::Error::other)?;
        self.file.rewind()?;
        let content = self.file.read_at_most(self.bytes_max)?;
        // Entries that were not read would be lost.
        if content.len() as u64 != self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let entries = compacted(&text::parse(&content)?, |key| {
            // If /proc cannot be read, keep the entry.
            is_alive(&mut procfs, key).unwrap_or(true)
        });
        let mut lines = text::HEADER.to_vec();
        for entry in &entries {
            text::write(&mut lines, entry);
        }
        let temporary = self.path.with_extension("new");
        let mut file = open(&temporary)?;
        file.lock()?;
        file.set_len(0)?;
        file.write_all(&lines)?;
        host::rename(&temporary, &self.path)?;
        self.file = file;
        self.bytes = lines.len() as u64;
        self.compact_at = COMPACT_BYTES.max(self.bytes * 2);
        Ok(())
    }
}

/// Takes over a journal to undo it: waits up to [`TAKE_OVER`] for the lock, and returns the entries with a
/// guard that can remove the file. `None` if there is no journal, or if another process holds the lock and
/// will undo the journal.
pub(crate) fn take_over(path: &Path) -> Result<Option<(Vec<Entry>, Taken)>, LiveError> {
    if !host::is_there(path).map_err(|err| failed(path, "examine", err))? {
        return Ok(None);
    }
    let mut file = match open_locked(path, |_| TAKE_OVER) {
        Ok(file) => file,
        Err(LiveError::Unavailable { .. }) => return Ok(None),
        Err(err) => return Err(err),
    };
    let content = file.read_at_most(BYTES_MAX).map_err(|err| failed(path, "read", err))?;
    let entries = text::parse(&content).map_err(|err| failed(path, "undo what it lists", err))?;
    Ok(Some((entries, Taken { _file: file, path: path.to_owned() })))
}

/// A journal that this process is undoing. This process holds the journal's lock until the value is dropped.
pub(crate) struct Taken {
    _file: File,
    path: PathBuf,
}

impl Taken {
    /// Removes the journal, once everything in it is undone.
    pub(crate) fn remove(self) -> io::Result<()> {
        host::remove_file(&self.path)
    }
}

/// How long to wait for another process to undo a journal of this size, in bytes.
fn take_over_after(bytes: u64) -> Duration {
    let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    TAKE_OVER_PER_KIB.saturating_mul(kib).saturating_add(TAKE_OVER).min(TAKE_OVER_MAX)
}

/// Opens a journal and locks it. Waits up to `patience`, which depends on the journal's size in bytes, for
/// another process to release the lock. That process may replace or remove the file meanwhile. So after each
/// attempt the lock only counts if `path` still names the locked file.
fn open_locked(path: &Path, patience: impl Fn(u64) -> Duration) -> Result<File, LiveError> {
    let begin = Instant::now();
    loop {
        let mut file = open(path).map_err(|err| failed(path, "open", err))?;
        let locked = file.lock();
        let opened = file.look().map_err(|err| failed(path, "examine", err))?;
        let named = host::look(path).ok();
        let is_same_file =
            named.is_some_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino()));
        if locked.is_ok() && is_same_file {
            file.rewind().map_err(|err| failed(path, "read", err))?;
            return Ok(file);
        }
        if begin.elapsed() > patience(opened.len()) {
            return Err(LiveError::Unavailable {
                what: format!("{} is locked by another running commonhold", path.display()),
                remedy: "stop that one first, or give this one another directory".to_owned(),
            });
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    trust::open_own(path, options.read(true).append(true).create(true).mode(0o600), BYTES_MAX)
}

fn failed(path: &Path, what: &str, source: io::Error) -> LiveError {
    let remedy = match source.kind() {
        io::ErrorKind::PermissionDenied => "; use a directory that this user may write to",
        io::ErrorKind::StorageFull => "; free some space there, or use another directory for the journal",
        io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge if source.raw_os_error().is_none() => {
            "; no daemon writes such a file: find out who did, and move it away"
        }
        io::ErrorKind::InvalidData => {
            "; it was left unchanged, since processes that it lists may still be stopped or confined: run the version of \
             commonhold that wrote it, which undoes that, or continue processes yourself (kill -CONT PID) and then remove the \
             file"
        }
        _ => "",
    };
    LiveError::File { path: path.to_owned(), what: what.to_owned(), source, remedy: remedy.to_owned() }
}

/// The first word of a line; empty if the line is empty. In a file with one line per device, that word names
/// the device.
pub(crate) fn first_word(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

/// The entries that still matter, in the journal's order.
///
/// - Of the affinities and priorities of a thread, and of the scores and origins of a process, the latest
///   entry counts: the owner may have changed the value in between.
/// - Of the entries about a file, a device's line or an autogroup, the first counts: when later ones were
///   written, the value was the daemon's own. After a release of the file, the next entry counts as the
///   first.
/// - Of a property that is still changed, the first former state and the last two given values count.
/// - Of entries of equal content, one counts. Cancelled entries do not count, nor do entries of processes
///   that are not `alive`.
pub(crate) fn compacted(entries: &[Entry], mut alive: impl FnMut(ProcessKey) -> bool) -> Vec<Entry> {
    // Backwards: drop the entries that a later entry supersedes or cancels. Each set has what later entries
    // were about.
    let (mut threads, mut stops, mut origins) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut prioritized, mut scored, mut following) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut reverted, mut given_counts) = (BTreeSet::new(), BTreeMap::new());
    let (mut released_files, mut ended_scopes) = (BTreeSet::new(), BTreeSet::new());
    let mut kept: Vec<&Entry> = Vec::new();
    for entry in entries.iter().rev() {
        let keep = match entry {
            Entry::Affinity { process, tid, .. } => threads.insert((*process, *tid)) && alive(*process),
            Entry::Priority { process, tid, .. } => prioritized.insert((*process, *tid)) && alive(*process),
            Entry::OomScore { process, .. } => scored.insert(*process) && alive(*process),
            Entry::Stopped { process } => stops.insert(*process) && alive(*process),
            Entry::Continued { process } => {
                stops.insert(*process);
                false
            }
            Entry::MayFollow { process } => following.insert(*process) && alive(*process),
            Entry::NoLongerFollows { process } => {
                following.insert(*process);
                false
            }
            Entry::Moved { process, .. } => origins.insert(*process) && alive(*process),
            Entry::ScopeEnded { cgroup } => {
                ended_scopes.insert(cgroup);
                false
            }
            Entry::Scope { cgroup } => !ended_scopes.contains(cgroup),
            Entry::PropertyReverted { instance, unit, property } => {
                reverted.insert((instance, unit, *property));
                false
            }
            Entry::KnobReleased { path } => {
                released_files.insert(path);
                false
            }
            Entry::Knob { path, .. } | Entry::Line { path, .. } => !released_files.contains(path),
            Entry::Property { instance, unit, former } => {
                !reverted.contains(&(instance, unit, former.property))
            }
            Entry::PropertyGiven { instance, unit, property, .. } => {
                let count = given_counts.entry((instance, unit, *property)).or_insert(0);
                *count += 1;
                *count <= 2 && !reverted.contains(&(instance, unit, *property))
            }
            Entry::AffinityGiven { .. }
            | Entry::PriorityGiven { .. }
            | Entry::OomScoreGiven { .. }
            | Entry::Autogroup { .. }
            | Entry::Created { .. }
            | Entry::ResourceGroup { .. }
            | Entry::Mounted { .. } => true,
        };
        if keep {
            kept.push(entry);
        }
    }
    // Forwards: drop the entries of which an earlier one counts. Each set has what earlier entries were
    // about.
    let (mut masks, mut created, mut knobs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut lines, mut priorities, mut scores) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut properties, mut autogroups) = (BTreeSet::new(), BTreeSet::new());
    let first_entries = kept.into_iter().rev().filter(|entry| match entry {
        Entry::AffinityGiven { cpus } => masks.insert(cpus.clone()),
        Entry::PriorityGiven { priority } => priorities.insert(*priority),
        Entry::OomScoreGiven { value } => scores.insert(*value),
        Entry::Autogroup { number, .. } => autogroups.insert(*number),
        Entry::Created { cgroup: path }
        | Entry::Scope { cgroup: path }
        | Entry::ResourceGroup { dir: path }
        | Entry::Mounted { point: path } => created.insert(path.clone()),
        Entry::Knob { path, .. } => knobs.insert(path.clone()),
        Entry::Line { path, original, .. } => lines.insert((path.clone(), first_word(original).to_owned())),
        Entry::Property { instance, unit, former } => {
            properties.insert((instance.clone(), unit.clone(), former.property))
        }
        _ => true,
    });
    first_entries.cloned().collect()
}

/// Records entries before a change is made. After an error the change must not be made.
pub(crate) fn record(journal: &mut Journal, entries: &[Entry]) -> Result<(), LiveError> {
    journal.record(entries).map_err(|source| LiveError::File {
        path: PathBuf::from("journal"),
        what: "record how to undo the next change, which is therefore not made".to_owned(),
        source,
        remedy: "; make room on the file system of the run directory".to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::{Answer, Kind};

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start: 7 }
    }

    fn stopped(pid: u32) -> Entry {
        Entry::Stopped { process: key(pid) }
    }

    fn follows(pid: u32) -> Entry {
        Entry::MayFollow { process: key(pid) }
    }

    fn affinity(pid: u32, cpus: &str) -> Entry {
        Entry::Affinity { process: key(pid), tid: pid, cpus: cpus.parse().unwrap() }
    }

    fn given(cpus: &str) -> Entry {
        Entry::AffinityGiven { cpus: cpus.parse().unwrap() }
    }

    #[test]
    fn the_next_daemon_finds_what_one_left() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, leftover) = Journal::create(dir.path()).unwrap();
        assert_eq!(leftover, []);
        journal.record(&[stopped(1), given("0-1")]).unwrap();
        journal.record(&[affinity(1, "3")]).unwrap();
        let all = vec![stopped(1), given("0-1"), affinity(1, "3")];
        assert_eq!(Journal::read(journal.path()).unwrap(), all);
        drop(journal);

        let (mut journal, leftover) = Journal::create(dir.path()).unwrap();
        assert_eq!(leftover, all);
        // Not undone yet: if this daemon dies now, the next one gets all of it.
        assert_eq!(Journal::read(journal.path()).unwrap(), all);
        journal.clear().unwrap();
        journal.record(&[stopped(2)]).unwrap();
        assert_eq!(Journal::read(journal.path()).unwrap(), [stopped(2)]);
    }

    #[test]
    fn a_torn_line_does_not_spoil_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(dir.path()).unwrap();
        journal.record(&[stopped(1)]).unwrap();
        journal.append(b"S 23-").unwrap();
        drop(journal);
        let (mut journal, leftover) = Journal::create(dir.path()).unwrap();
        assert_eq!(leftover, [stopped(1)]);
        journal.record(&[stopped(2)]).unwrap();
        assert_eq!(Journal::read(journal.path()).unwrap(), [stopped(1), stopped(2)]);
    }

    /// Gives the first `times` calls of a kind this answer.
    fn first(mut times: u32, kind: Kind, answer: Answer) -> host::Tampering {
        host::tamper(move |access| {
            if access.kind != kind || times == 0 {
                return Answer::GoOn;
            }
            times -= 1;
            answer.clone()
        })
    }

    /// Half of the entries are written, and then the file system is full: none of them remains, and later
    /// entries are whole.
    #[test]
    fn a_short_write_is_truncated_away() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(dir.path()).unwrap();
        journal.record(&[stopped(1)]).unwrap();
        let mut part = true;
        let hook = host::tamper(move |access| match access.kind {
            Kind::Write if std::mem::take(&mut part) => Answer::Shorten(access.bytes.len() - 3),
            Kind::Write => Answer::Refuse(libc::ENOSPC),
            _ => Answer::GoOn,
        });
        let error = journal.record(&[stopped(2), affinity(3, "0-1")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(Journal::read(journal.path()).unwrap(), [stopped(1)]);
        drop(hook);
        journal.record(&[stopped(4)]).unwrap();
        assert_eq!(Journal::read(journal.path()).unwrap(), [stopped(1), stopped(4)]);
    }

    /// A partial write could not even be truncated: the next entry waits until it is.
    #[test]
    fn no_entry_is_appended_to_a_partial_one() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(dir.path()).unwrap();
        let mut part = true;
        let hook = host::tamper(move |access| match access.kind {
            Kind::Write if std::mem::take(&mut part) => Answer::Shorten(4),
            Kind::Write => Answer::Refuse(libc::ENOSPC),
            Kind::Resize => Answer::Refuse(libc::EIO),
            _ => Answer::GoOn,
        });
        journal.record(&[stopped(23)]).unwrap_err();
        assert!(!std::fs::read(journal.path()).unwrap().ends_with(b"\n"), "there is a part of it");
        let hook = (hook, first(1, Kind::Resize, Answer::Refuse(libc::EIO)));
        journal.record(&[stopped(2)]).unwrap_err();
        drop(hook);
        journal.record(&[stopped(2)]).unwrap();
        assert_eq!(Journal::read(journal.path()).unwrap(), [stopped(2)]);
    }

    /// A failed compaction loses no entry, and does not keep others from being recorded.
    #[test]
    fn a_failed_compaction_leaves_the_journal_whole_and_usable() {
        for (kind, answer) in [
            (Kind::Rename, Answer::Refuse(libc::EACCES)),
            (Kind::Open, Answer::Refuse(libc::EMFILE)),
            (Kind::Read, Answer::Shorten(200)),
            (Kind::Resize, Answer::Refuse(libc::EIO)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (mut journal, _) = Journal::create(dir.path()).unwrap();
            let all: Vec<Entry> = (0..50).map(|n| given(&format!("{n}"))).collect();
            journal.record(&all).unwrap();
            journal.compact_at = 1;
            let hook = first(1, kind, answer);
            journal.record(&[given("60")]).unwrap();
            drop(hook);
            journal.record(&[given("61")]).unwrap();
            let kept = Journal::read(journal.path()).unwrap();
            assert_eq!((kept.len(), kept.last()), (52, Some(&given("61"))), "{kind:?}");
        }
    }

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(dir.path()).unwrap();
        let refused = open_locked(journal.path(), |_| Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains("is locked by another running commonhold"), "{refused}");
        let path = journal.path().to_owned();
        drop(journal);
        open_locked(&path, |_| Duration::ZERO).unwrap();
    }

    #[test]
    fn a_long_journal_is_waited_for_longer() {
        let patience = [0, 1_023, 40 << 10, u64::MAX].map(take_over_after);
        assert_eq!(patience.map(|patience| patience.as_millis()), [3_000, 3_000, 23_000, 60_000]);
    }

    /// A caretaker that cannot look reports that, and does not assume that there is no journal.
    #[test]
    fn a_journal_that_cannot_be_examined_is_not_taken_for_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(dir.path()).unwrap();
        let path = journal.path().to_owned();
        drop(journal);
        let hook = host::tamper(|access| match access.is(host::Kind::Look, FILE_NAME) {
            true => host::Answer::Refuse(libc::ENOMEM),
            false => host::Answer::GoOn,
        });
        assert!(take_over(&path).is_err());
        drop(hook);
        assert!(take_over(&path).unwrap().is_some());
        assert!(take_over(&dir.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("victim"), "precious").unwrap();
        std::os::unix::fs::symlink(dir.path().join("victim"), dir.path().join(FILE_NAME)).unwrap();
        assert!(Journal::create(dir.path()).is_err());
        assert_eq!(std::fs::read(dir.path().join("victim")).unwrap(), b"precious");
    }

    /// Anything else under the journal's name is refused at once, and left unchanged.
    #[test]
    fn a_foreign_file_is_refused_and_left_unchanged() {
        trust::tests::each_impostor(|path, words| {
            let path = path.parent().unwrap();
            std::fs::rename(path.join("file"), path.join(FILE_NAME)).unwrap();
            let error = Journal::create(path).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("move it away"), "{words}: {error}");
            let error = take_over(&path.join(FILE_NAME)).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        trust::tests::huge(&path);
        assert!(Journal::create(dir.path()).unwrap_err().to_string().contains("it has more than 256 MiB"));
        for (content, words) in [
            (&b"commonhold journal 2\nS 1-2\n"[..], "it is of version 2"),
            (&[0; 4_096], "is not the header of a journal"),
            (&b"garbage"[..], "is not the header of a journal"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = Journal::create(dir.path()).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("kill -CONT PID"), "{error}");
            assert!(take_over(&path).is_err(), "{words}");
            assert_eq!(std::fs::read(&path).unwrap(), content, "it is left unchanged");
        }
        // A daemon that died while it wrote the first line had changed nothing yet.
        std::fs::write(&path, &text::HEADER[..9]).unwrap();
        assert_eq!(Journal::create(dir.path()).unwrap().1, []);
    }

    /// A change whose entry would not fit is not recorded.
    #[test]
    fn entries_beyond_the_size_limit_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(dir.path()).unwrap();
        journal.bytes_max = 200;
        let mut recorded = Vec::new();
        let error = (0..50).map(|n| given(&format!("{n}"))).find_map(|entry| {
            let error = journal.record(std::slice::from_ref(&entry)).err();
            recorded.push(entry);
            error
        });
        assert_eq!(error.unwrap().kind(), io::ErrorKind::FileTooLarge);
        recorded.pop();
        assert_eq!(Journal::read(journal.path()).unwrap(), recorded);
        // Superseded entries make room.
        journal.clear().unwrap();
        for _ in 0..100 {
            journal.record(&[given("7")]).unwrap();
        }
    }

    #[test]
    fn compaction_drops_superseded_entries() {
        let knob = |original: &str| Entry::Knob { path: "/k".into(), original: original.to_owned() };
        let autogroup = |nice| Entry::Autogroup { number: 9, nice, given: -15 };
        let entries = [
            knob("first"),
            affinity(1, "0"),
            stopped(1),
            given("0"),
            affinity(9, "0"),
            Entry::Continued { process: key(1) },
            stopped(2),
            follows(1),
            follows(2),
            follows(2),
            Entry::NoLongerFollows { process: key(1) },
            knob("ours"),
            autogroup(0),
            given("0"),
            autogroup(-15),
            affinity(1, "1"),
            Entry::Knob { path: "/job".into(), original: "a manager's".to_owned() },
            Entry::KnobReleased { path: "/job".into() },
            Entry::Knob { path: "/job".into(), original: "another of the manager's".to_owned() },
            Entry::Line { path: "/gone".into(), original: "8:0 rbps=max".to_owned(), given: String::new() },
            Entry::KnobReleased { path: "/gone".into() },
        ];
        // Process 9 has ended; process 1 was continued, and its owner changed its mask.
        let kept = compacted(&entries, |key| key.pid != 9);
        let last = Entry::Knob { path: "/job".into(), original: "another of the manager's".to_owned() };
        assert_eq!(
            kept,
            [knob("first"), given("0"), stopped(2), follows(2), autogroup(0), affinity(1, "1"), last]
        );
    }

    #[test]
    fn of_properties_the_first_state_and_the_last_values_are_kept() {
        let instance = Instance::system;
        let unit = || "a.slice".to_owned();
        let property = Property::CPUWeight;
        let before = |weight: u64| {
            let file = "/run/systemd/system.control/a.slice.d/50-CPUWeight.conf".into();
            let former = PropertyState { property, value: Value::Number(weight), file, content: None };
            Entry::Property { instance: instance(), unit: unit(), former }
        };
        let given = |weight: u64| {
            let value = Value::Number(weight);
            Entry::PropertyGiven { instance: instance(), unit: unit(), property, value }
        };
        let back = Entry::PropertyReverted { instance: instance(), unit: unit(), property };
        let entries = [
            before(1),
            given(2),
            before(2),
            given(3),
            given(4),
            back.clone(),
            before(5),
            given(6),
            given(7),
            given(8),
        ];
        assert_eq!(compacted(&entries[..5], |_| true), [before(1), given(3), given(4)]);
        assert_eq!(compacted(&entries[..6], |_| true), []);
        assert_eq!(compacted(&entries, |_| true), [before(5), given(7), given(8)]);
    }

    #[test]
    fn the_journal_does_not_grow_without_bound() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(dir.path()).unwrap();
        // These numbers are above the kernel's limit: processes that ended long ago.
        let storm: Vec<Entry> = (0..2_000).map(|pid| affinity(0x3fff_0000 + pid, "0-1")).collect();
        journal.record(&[given("0")]).unwrap();
        for _ in 0..40 {
            journal.record(&storm).unwrap();
        }
        let bytes = std::fs::metadata(journal.path()).unwrap().len();
        assert!(bytes < COMPACT_BYTES + 100_000, "{bytes}");
        assert_eq!(Journal::read(journal.path()).unwrap().first(), Some(&given("0")));
        // Still locked, though it is another file now.
        assert!(open_locked(journal.path(), |_| Duration::ZERO).is_err());
    }
}
