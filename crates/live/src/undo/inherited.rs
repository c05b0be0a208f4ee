//! Restores what threads inherit from their parents: CPUs, I/O priorities and `oom_score_adj`. Descendants that the journal
//! does not know are restored, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;

use commonhold_machine::CpuSet;

use super::Undone;
use crate::LiveError;
use crate::host::io_priority::{self, IoPriority};
use crate::host::oom_score;
use crate::host::{Pinned, affinity};
use crate::observe::process::{Listed, Pins, ProcFs, ProcessKey, Stat};
use crate::observe::roster::MARKER;
use crate::undo::journal::Entry;

/// More rounds than any fork storm needs: each round at least halves the time in which a fork can be missed.
const ROUNDS_MAX: usize = 50;

/// A property of a thread that its children inherit.
pub(super) trait Inherited {
    type Value: Ord + Clone + Display;
    /// Its name in messages.
    const NAME: &'static str;

    /// An entry's content, if it is about this property.
    fn entry(entry: &Entry) -> Option<Recorded<Self::Value>>;
    fn get(tid: u32) -> io::Result<Self::Value>;
    /// Sets it on a thread of a pinned process only: `ESRCH` if the thread's number was reused.
    fn set(process: &Pinned, tid: u32, value: &Self::Value) -> io::Result<()>;
    /// The counter of restored threads.
    fn count(undone: &mut Undone) -> &mut u32;
    /// The command that restores it by hand.
    fn remedy(tid: u32, value: &Self::Value) -> String;
}

/// An entry about an inherited property.
pub(super) enum Recorded<V> {
    Original(ProcessKey, u32, V),
    Given(V),
}

/// The CPUs that a thread may run on.
pub(super) enum Affinity {}

impl Inherited for Affinity {
    type Value = CpuSet;
    const NAME: &'static str = "cpus";

    fn entry(entry: &Entry) -> Option<Recorded<CpuSet>> {
        match entry {
            Entry::Affinity { process, tid, cpus } => Some(Recorded::Original(*process, *tid, cpus.clone())),
            Entry::AffinityGiven { cpus } => Some(Recorded::Given(cpus.clone())),
            _ => None,
        }
    }

    fn get(tid: u32) -> io::Result<CpuSet> {
        affinity::get(tid)
    }

    fn set(process: &Pinned, tid: u32, cpus: &CpuSet) -> io::Result<()> {
        let is_ours = |now: &CpuSet| now.difference(cpus).is_empty();
        process.give(tid, cpus, (affinity::get, affinity::set), is_ours)
    }

    fn count(undone: &mut Undone) -> &mut u32 {
        &mut undone.threads
    }

    fn remedy(tid: u32, cpus: &CpuSet) -> String {
        format!("taskset -pc {cpus} {tid}")
    }
}

/// A thread's I/O priority.
pub(super) enum Priority {}

impl Inherited for Priority {
    type Value = IoPriority;
    const NAME: &'static str = "I/O priority";

    fn entry(entry: &Entry) -> Option<Recorded<IoPriority>> {
        match entry {
            Entry::Priority { process, tid, priority } => Some(Recorded::Original(*process, *tid, *priority)),
            Entry::PriorityGiven { priority } => Some(Recorded::Given(*priority)),
            _ => None,
        }
    }

    fn get(tid: u32) -> io::Result<IoPriority> {
        io_priority::get(tid)
    }

    fn set(process: &Pinned, tid: u32, priority: &IoPriority) -> io::Result<()> {
        process.give(tid, priority, (io_priority::get, io_priority::set_to), |now| now == priority)
    }

    fn count(undone: &mut Undone) -> &mut u32 {
        &mut undone.priorities
    }

    fn remedy(tid: u32, _: &IoPriority) -> String {
        format!("ionice -c 0 -p {tid}")
    }
}

/// A process's `oom_score_adj`; all its threads share it.
pub(super) enum OomScore {}

impl Inherited for OomScore {
    type Value = i16;
    const NAME: &'static str = "oom_score_adj";

    fn entry(entry: &Entry) -> Option<Recorded<i16>> {
        match entry {
            Entry::OomScore { process, value } => Some(Recorded::Original(*process, process.pid, *value)),
            Entry::OomScoreGiven { value } => Some(Recorded::Given(*value)),
            _ => None,
        }
    }

    fn get(tid: u32) -> io::Result<i16> {
        oom_score::get(tid)
    }

    fn set(process: &Pinned, tid: u32, value: &i16) -> io::Result<()> {
        oom_score::set(process, tid, *value)
    }

    fn count(undone: &mut Undone) -> &mut u32 {
        &mut undone.oom_scores
    }

    fn remedy(tid: u32, value: &i16) -> String {
        format!("choom -n {value} -p {tid}")
    }
}

/// What the journal records about one property.
struct Record<V> {
    given: BTreeSet<V>,
    /// Originals by process and thread; the latest of each thread.
    originals: BTreeMap<ProcessKey, BTreeMap<u32, V>>,
}

impl<V: Ord + Clone> Record<V> {
    fn from_entries<I: Inherited<Value = V>>(entries: &[Entry]) -> Record<V> {
        let mut record = Record { given: BTreeSet::new(), originals: BTreeMap::new() };
        for recorded in entries.iter().filter_map(I::entry) {
            match recorded {
                Recorded::Given(value) => {
                    record.given.insert(value);
                }
                Recorded::Original(process, tid, value) => {
                    record.originals.entry(process).or_default().insert(tid, value);
                }
            }
        }
        record
    }

    /// The original of a thread of a known process: its own, or that of the main thread, from which it was inherited.
    fn original(&self, process: ProcessKey, tid: u32) -> Option<&V> {
        let threads = self.originals.get(&process)?;
        threads.get(&tid).or_else(|| threads.get(&process.pid)).or_else(|| threads.values().next())
    }
}

pub(super) fn restore<I: Inherited>(
    entries: &[Entry],
    procfs: &mut ProcFs,
    undone: &mut Undone,
    progress: &mut dyn FnMut(),
) {
    let record = Record::from_entries::<I>(entries);
    if record.originals.is_empty() {
        return;
    }
    let mut refused = BTreeMap::new();
    for _ in 0..ROUNDS_MAX {
        match round::<I>(&record, procfs, &mut refused) {
            Ok(0) => break,
            Ok(restored) => {
                *I::count(undone) += restored;
                progress();
            }
            Err(err) => {
                undone.problems.push(format!("the {} of processes: {err}", I::NAME));
                break;
            }
        }
    }
    undone.problems.extend(refused.into_iter().map(|(tid, (value, err))| {
        let (name, remedy) = (I::NAME, I::remedy(tid, &value));
        format!("thread {tid}: cannot restore {name} {value}: {err}; try: {remedy}")
    }));
}

/// Threads that could not be restored: the original, and the error.
type Refused<V> = BTreeMap<u32, (V, io::Error)>;

/// One pass over all processes. Returns how many threads it restored.
fn round<I: Inherited>(
    record: &Record<I::Value>,
    procfs: &mut ProcFs,
    refused: &mut Refused<I::Value>,
) -> Result<u32, LiveError> {
    let mut listed: Vec<Listed> = Vec::new();
    procfs.processes(&mut listed)?;
    let mut stats: BTreeMap<u32, Stat> = BTreeMap::new();
    for entry in listed {
        if let Some(stat) = procfs.stat(entry.pid)? {
            stats.insert(entry.pid, stat);
        }
    }
    let mut restored = 0;
    let (mut threads, mut pins) = (Vec::new(), Pins::default());
    for stat in stats.values().filter(|stat| !stat.kernel_thread) {
        let pid = stat.key.pid;
        let relative = if record.originals.contains_key(&stat.key) {
            Some(stat.key)
        } else if I::get(pid).is_ok_and(|now| record.given.contains(&now)) {
            relative(record, procfs, &stats, stat)
        } else {
            None
        };
        let Some(relative) = relative else { continue };
        // Its identity was read above. Once pinned, a later process with its number cannot be mistaken for it.
        let process = match pins.pin(procfs, stat.key) {
            Ok(process) => process,
            Err(err) if err.raw_os_error() == Some(libc::ESRCH) => continue,
            Err(err) => {
                let original = record.original(relative, pid).cloned();
                refused.extend(original.map(|original| (pid, (original, err))));
                continue;
            }
        };
        if procfs.threads(pid, &mut threads)? {
            let restore = |tid: &u32| restore_thread::<I>(record, relative, process, *tid, refused);
            restored += threads.iter().map(restore).sum::<u32>();
        }
    }
    Ok(restored)
}

/// 1 if the thread was restored now.
fn restore_thread<I: Inherited>(
    record: &Record<I::Value>,
    relative: ProcessKey,
    process: &Pinned,
    tid: u32,
    refused: &mut Refused<I::Value>,
) -> u32 {
    let (Ok(now), Some(original)) = (I::get(tid), record.original(relative, tid)) else { return 0 };
    if now == *original || !record.given.contains(&now) || refused.contains_key(&tid) {
        return 0;
    }
    match I::set(process, tid, original) {
        Ok(()) => u32::from(I::get(tid).is_ok_and(|after| after != now)),
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => 0,
        Err(err) => {
            refused.insert(tid, (original.clone(), err));
            0
        }
    }
}

/// The member that an unknown process descends from: an ancestor; if its parent is gone, a member of its session; else the
/// member with the same marker in its environment.
fn relative<V>(
    record: &Record<V>,
    procfs: &mut ProcFs,
    stats: &BTreeMap<u32, Stat>,
    stat: &Stat,
) -> Option<ProcessKey> {
    let is_member = |stat: &&Stat| record.originals.contains_key(&stat.key);
    let mut ancestor = stats.get(&stat.parent);
    for _ in 0..stats.len() {
        match ancestor {
            Some(found) if is_member(&found) => return Some(found.key),
            Some(found) => ancestor = stats.get(&found.parent),
            None => break,
        }
    }
    // Its parent is alive and in its session: its ancestry is known, and no member is in it.
    if stats.get(&stat.parent).is_some_and(|parent| parent.session == stat.session) {
        return None;
    }
    let in_session = stats.values().find(|other| other.session == stat.session && is_member(other));
    // The session's number is not reused while the session lasts, even after its leader has ended.
    let leader = || record.originals.keys().copied().find(|key| key.pid == stat.session);
    if let Some(found) = in_session.map(|other| other.key).or_else(leader) {
        return Some(found);
    }
    same_marker(record, procfs, stats, stat.key.pid).ok()?
}

/// A member of the same user with the same marker in its environment. Another user could have forged the marker.
fn same_marker<V>(
    record: &Record<V>,
    procfs: &mut ProcFs,
    stats: &BTreeMap<u32, Stat>,
    pid: u32,
) -> Result<Option<ProcessKey>, LiveError> {
    let (Some(marker), Some(identity)) = (procfs.variable(pid, MARKER)?, procfs.identity(pid)?) else {
        return Ok(None);
    };
    for other in stats.values().filter(|other| record.originals.contains_key(&other.key)) {
        let same_user = procfs.identity(other.key.pid)?.is_some_and(|theirs| theirs.uid == identity.uid);
        if same_user && procfs.variable(other.key.pid, MARKER)?.as_ref() == Some(&marker) {
            return Ok(Some(other.key));
        }
    }
    Ok(None)
}
