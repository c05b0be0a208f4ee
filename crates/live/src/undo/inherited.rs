//! Restores what threads inherit from their parents: CPUs, I/O priorities and `oom_score_adj`.
//!
//! Problem: a member forks, and its child inherits a value that the daemon gave. The journal has no entry for
//! the child.
//!
//! Algorithm: each pass looks at all processes of the machine. A process in the journal gets back its own
//! original. Another process that has a value that the daemon gave gets the original of the recorded process
//! that it descends from ([`recorded_relative`]). A child may inherit the value between being listed and its
//! parent's restoration, so passes are repeated until one restores nothing.

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

/// The maximum number of passes. No fork storm needs as many, because each pass at least halves the time in
/// which a fork can be missed.
const PASSES_MAX: usize = 50;

/// A property of a thread that its children inherit.
pub(super) trait Inherited {
    type Value: Ord + Clone + Display;
    /// The property's name in messages.
    const NAME: &'static str;

    /// The content of a journal entry; `None` if the entry is about something else.
    fn entry(entry: &Entry) -> Option<Recorded<Self::Value>>;
    /// A thread's present value.
    fn get(tid: u32) -> io::Result<Self::Value>;
    /// Sets the value of a thread, which must belong to the pinned process: `ESRCH` if the thread's number
    /// was reused.
    fn set(process: &Pinned, tid: u32, value: &Self::Value) -> io::Result<()>;
    /// The counter of restored threads in the report.
    fn count(undone: &mut Undone) -> &mut u32;
    /// The command that restores the value by hand.
    fn remedy(tid: u32, value: &Self::Value) -> String;
}

/// The content of a journal entry about an inherited property.
pub(super) enum Recorded<V> {
    /// A process, one of its threads, and the thread's value before the daemon changed it.
    Original(ProcessKey, u32, V),
    /// A value that the daemon gives to threads.
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
        // A subset: the kernel may have narrowed the mask.
        let is_ours = |current: &CpuSet| current.difference(cpus).is_empty();
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
        let is_ours = |current: &IoPriority| current == priority;
        process.give(tid, priority, (io_priority::get, io_priority::set_to), is_ours)
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
    /// The values that the daemon gave.
    given: BTreeSet<V>,
    /// The latest original of each thread, by process and thread.
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

    /// The original value of a thread of a recorded process. A thread without a recorded original was created
    /// later, and gets that of the main thread, or, if the main thread has none, that of any thread. `None`
    /// if the process is not recorded.
    fn original(&self, process: ProcessKey, tid: u32) -> Option<&V> {
        let threads = self.originals.get(&process)?;
        threads.get(&tid).or_else(|| threads.get(&process.pid)).or_else(|| threads.values().next())
    }
}

/// Restores one property of all threads that have a value which the daemon gave. Calls `progress` after each
/// pass that restored a thread.
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
    for _ in 0..PASSES_MAX {
        match restore_pass::<I>(&record, procfs, &mut refused) {
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

/// The threads that could not be restored, each with its original value and the error.
type Refused<V> = BTreeMap<u32, (V, io::Error)>;

/// One pass over all processes. Returns how many threads it restored.
fn restore_pass<I: Inherited>(
    record: &Record<I::Value>,
    procfs: &mut ProcFs,
    refused: &mut Refused<I::Value>,
) -> Result<u32, LiveError> {
    let mut listed: Vec<Listed> = Vec::new();
    procfs.processes(&mut listed)?;
    let mut stats: BTreeMap<u32, Stat> = BTreeMap::new();
    for process in listed {
        if let Some(stat) = procfs.stat(process.pid)? {
            stats.insert(process.pid, stat);
        }
    }
    let mut restored = 0;
    let (mut threads, mut pins) = (Vec::new(), Pins::default());
    for stat in stats.values().filter(|stat| !stat.kernel_thread) {
        let pid = stat.key.pid;
        // The recorded process whose originals this process gets.
        let relative = if record.originals.contains_key(&stat.key) {
            Some(stat.key)
        } else if I::get(pid).is_ok_and(|current| record.given.contains(&current)) {
            recorded_relative(record, procfs, &stats, stat)
        } else {
            None
        };
        let Some(relative) = relative else { continue };
        // Pinning fails if the number was reused since the process was listed, and prevents reuse from now
        // on.
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

/// Restores a thread's original value if the thread has a value that the daemon gave. Returns 1 if that
/// changed the value, else
/// 0. A thread in `refused` is not tried again.
fn restore_thread<I: Inherited>(
    record: &Record<I::Value>,
    relative: ProcessKey,
    process: &Pinned,
    tid: u32,
    refused: &mut Refused<I::Value>,
) -> u32 {
    let (Ok(current), Some(original)) = (I::get(tid), record.original(relative, tid)) else { return 0 };
    if current == *original || !record.given.contains(&current) || refused.contains_key(&tid) {
        return 0;
    }
    match I::set(process, tid, original) {
        Ok(()) => u32::from(I::get(tid).is_ok_and(|after| after != current)),
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => 0,
        Err(err) => {
            refused.insert(tid, (original.clone(), err));
            0
        }
    }
}

/// The recorded process from which a process without an entry probably inherited its value: its nearest
/// recorded ancestor; if its parent has ended, a recorded process of its session; else a recorded process
/// with the same marker in its environment.
fn recorded_relative<V>(
    record: &Record<V>,
    procfs: &mut ProcFs,
    stats: &BTreeMap<u32, Stat>,
    stat: &Stat,
) -> Option<ProcessKey> {
    let is_recorded = |stat: &&Stat| record.originals.contains_key(&stat.key);
    let mut next = stats.get(&stat.parent);
    for _ in 0..stats.len() {
        match next {
            Some(ancestor) if is_recorded(&ancestor) => return Some(ancestor.key),
            Some(ancestor) => next = stats.get(&ancestor.parent),
            None => break,
        }
    }
    // The parent is alive and in the same session, so the process was not orphaned: its whole ancestry was
    // searched above.
    if stats.get(&stat.parent).is_some_and(|parent| parent.session == stat.session) {
        return None;
    }
    let in_session = stats.values().find(|other| other.session == stat.session && is_recorded(other));
    // The session's number is not reused while the session lasts, even after its leader has ended.
    let leader = || record.originals.keys().copied().find(|key| key.pid == stat.session);
    if let Some(relative) = in_session.map(|other| other.key).or_else(leader) {
        return Some(relative);
    }
    recorded_with_same_marker(record, procfs, stats, stat.key.pid).ok()?
}

/// A recorded process of the same user with the same marker in its environment. A process of another user is
/// not taken, because that user could have forged the marker.
fn recorded_with_same_marker<V>(
    record: &Record<V>,
    procfs: &mut ProcFs,
    stats: &BTreeMap<u32, Stat>,
    pid: u32,
) -> Result<Option<ProcessKey>, LiveError> {
    let (Some(marker), Some(identity)) = (procfs.variable(pid, MARKER)?, procfs.identity(pid)?) else {
        return Ok(None);
    };
    for other in stats.values().filter(|other| record.originals.contains_key(&other.key)) {
        let others_identity = procfs.identity(other.key.pid)?;
        let is_same_user = others_identity.is_some_and(|others_identity| others_identity.uid == identity.uid);
        if is_same_user && procfs.variable(other.key.pid, MARKER)?.as_ref() == Some(&marker) {
            return Ok(Some(other.key));
        }
    }
    Ok(None)
}
