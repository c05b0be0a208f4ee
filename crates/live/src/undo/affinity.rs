//! Giving threads back the CPUs they had, those of descendants that the journal does not know included.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use commonhold_machine::CpuSet;

use super::Undone;
use crate::LiveError;
use crate::affinity;
use crate::journal::{Entry, ProcessKey};
use crate::observe::process::{Listed, ProcFs, Stat};
use crate::roster::MARKER;

/// More rounds than any storm of forks needs: each round halves the time in which a fork can go unseen, at least.
const ROUNDS_MAX: usize = 50;

/// What the journal says about affinity.
struct Record {
    given: BTreeSet<CpuSet>,
    /// Original masks by process and thread; the latest of each thread.
    originals: BTreeMap<ProcessKey, BTreeMap<u32, CpuSet>>,
}

impl Record {
    fn of(entries: &[Entry]) -> Record {
        let mut record = Record { given: BTreeSet::new(), originals: BTreeMap::new() };
        for entry in entries {
            match entry {
                Entry::Given { cpus } => {
                    record.given.insert(cpus.clone());
                }
                Entry::Affinity { process, tid, cpus } => {
                    record.originals.entry(*process).or_default().insert(*tid, cpus.clone());
                }
                _ => {}
            }
        }
        record
    }

    /// The mask of a thread of a known process: its own, or that of the first thread, which it was born with.
    fn original(&self, process: ProcessKey, tid: u32) -> Option<&CpuSet> {
        let threads = self.originals.get(&process)?;
        threads.get(&tid).or_else(|| threads.get(&process.pid)).or_else(|| threads.values().next())
    }
}

pub(super) fn restore(entries: &[Entry], procfs: &mut ProcFs, undone: &mut Undone) {
    let record = Record::of(entries);
    if record.originals.is_empty() {
        return;
    }
    let mut refused = BTreeMap::new();
    for _ in 0..ROUNDS_MAX {
        match round(&record, procfs, &mut refused) {
            Ok(0) => break,
            Ok(restored) => undone.threads += restored,
            Err(err) => {
                undone.problems.push(format!("the affinity of processes: {err}"));
                break;
            }
        }
    }
    undone.problems.extend(refused.into_iter().map(|(tid, (cpus, err))| {
        format!("thread {tid}: cannot let it run on cpus {cpus} again: {err}; try: taskset -pc {cpus} {tid}")
    }));
}

/// Threads that could not be restored: where they should be, and why not.
type Refused = BTreeMap<u32, (CpuSet, io::Error)>;

/// One look at all processes. How many threads it restored.
fn round(record: &Record, procfs: &mut ProcFs, refused: &mut Refused) -> Result<u32, LiveError> {
    let mut listed: Vec<Listed> = Vec::new();
    procfs.processes(&mut listed)?;
    let mut stats: BTreeMap<u32, Stat> = BTreeMap::new();
    for entry in listed {
        if let Some(stat) = procfs.stat(entry.pid)? {
            stats.insert(entry.pid, stat);
        }
    }
    let mut restored = 0;
    let mut threads = Vec::new();
    for stat in stats.values().filter(|stat| !stat.kernel_thread) {
        let pid = stat.key.pid;
        let relative = if record.originals.contains_key(&stat.key) {
            Some(stat.key)
        } else if affinity::get(pid).is_ok_and(|cpus| record.given.contains(&cpus)) {
            relative(record, procfs, &stats, stat)
        } else {
            None
        };
        let Some(relative) = relative else { continue };
        if procfs.threads(pid, &mut threads)? {
            restored +=
                threads.iter().map(|tid| restore_thread(record, relative, *tid, refused)).sum::<u32>();
        }
    }
    Ok(restored)
}

/// 1 if the thread was restored now.
fn restore_thread(record: &Record, relative: ProcessKey, tid: u32, refused: &mut Refused) -> u32 {
    let (Ok(now), Some(original)) = (affinity::get(tid), record.original(relative, tid)) else { return 0 };
    if now == *original || !record.given.contains(&now) || refused.contains_key(&tid) {
        return 0;
    }
    match affinity::set(tid, original) {
        Ok(()) => u32::from(affinity::get(tid).is_ok_and(|after| after != now)),
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => 0,
        Err(err) => {
            refused.insert(tid, (original.clone(), err));
            0
        }
    }
}

/// The member that a process unknown to the journal descends from: an ancestor; else, if its parent is gone, one of its
/// session, or the member whose environment has the same marker.
fn relative(
    record: &Record,
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
    // While its own parent is there and in its session, it descends from that, and from no member.
    if stats.get(&stat.parent).is_some_and(|parent| parent.session == stat.session) {
        return None;
    }
    let in_session = stats.values().find(|other| other.session == stat.session && is_member(other));
    // A session keeps its leader's number from being used again, after its leader's end too.
    let leader = || record.originals.keys().copied().find(|key| key.pid == stat.session);
    if let Some(found) = in_session.map(|other| other.key).or_else(leader) {
        return Some(found);
    }
    same_marker(record, procfs, stats, stat.key.pid).ok()?
}

/// A member of the same user with the same marker in its environment: another user could have written anything there.
fn same_marker(
    record: &Record,
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
